//! One error for the crate: what was being done, and what the kernel said.

use std::{fmt, io};

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on the kernel: `cannot <what>: <why>`.
#[derive(Debug)]
pub struct Error {
    what: String,
    why: io::Error,
}

impl Error {
    /// `what` reads after "cannot": `pin a map at /sys/fs/bpf/…`.
    pub fn new(what: impl Into<String>, why: io::Error) -> Self {
        Self {
            what: what.into(),
            why,
        }
    }

    /// The operating system's part.
    pub fn io(&self) -> &io::Error {
        &self.why
    }

    /// From a libbpf-rs error, keeping its chain as text.
    pub(crate) fn bpf(what: impl Into<String>, e: libbpf_rs::Error) -> Self {
        Self::new(what, io::Error::other(format!("{e:#}")))
    }

    /// An error for a refusal by weir itself.
    pub(crate) fn refused(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(what, io::Error::other(why.into()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.why)
    }
}

impl std::error::Error for Error {}

/// Adds what was being done to a system call's answer.
pub(crate) trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(what(), e))
    }
}

impl<T> Context<T> for rustix::io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(what(), e.into()))
    }
}

impl<T> Context<T> for libbpf_rs::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::bpf(what(), e))
    }
}

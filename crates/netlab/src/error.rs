//! One error for the crate: what was being done, and what the command or the
//! system said.

use std::{fmt, io, process::Output};

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program ran and failed; the message has its standard error.
    Command,
    /// The other side answered that nobody listens.
    Refused,
    /// No answer came within the time allowed.
    TimedOut,
    /// No route, or an ICMP error came back.
    Unreachable,
    /// A text is not what it should be (an address, a prefix).
    Malformed,
    /// Another error of the system.
    Io,
}

/// A failed step: `cannot <what>: <why>`.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    why: String,
}

impl Error {
    /// `what` reads after "cannot".
    pub fn new(kind: ErrorKind, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            why: why.into(),
        }
    }

    /// An error of a system call.
    pub fn io(what: impl Into<String>, e: &io::Error) -> Self {
        let kind = match e.kind() {
            io::ErrorKind::ConnectionRefused => ErrorKind::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ErrorKind::TimedOut,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                ErrorKind::Unreachable
            }
            _ => ErrorKind::Io,
        };
        Self::new(kind, what, e.to_string())
    }

    /// From a program that ended with a failure.
    pub fn command(what: impl Into<String>, out: &Output) -> Self {
        let said = String::from_utf8_lossy(&out.stderr);
        let said = said.trim();
        let why = if said.is_empty() {
            out.status.to_string()
        } else {
            format!("{}: {said}", out.status)
        };
        Self::new(ErrorKind::Command, what, why)
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.what, self.why)
    }
}

impl std::error::Error for Error {}

/// Adds what was being done to a system call's answer.
pub trait Context<T> {
    /// `what` reads after "cannot".
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    /// `what` reads after "cannot".
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::io(what(), &e.into()))
    }
}

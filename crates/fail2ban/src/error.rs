//! What is wrong in a file of Fail2ban's, and where it stands.

use std::{fmt, path::PathBuf};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Origin {
    /// The file; empty for what no file says (a parameter of the caller's).
    pub file: PathBuf,
    /// Counted from 1; 0 is the whole file.
    pub line: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_os_str().is_empty(), self.line) {
            (true, _) => f.write_str("a parameter"),
            (false, 0) => write!(f, "{}", self.file.display()),
            (false, line) => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// Why a file, a filter or a jail cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Where the mistake is.
    pub origin: Origin,
    /// What kind of mistake it is.
    pub kind: ErrorKind,
    /// The mistake, in words; never longer than a few lines.
    pub message: String,
}

/// What an [`Error`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file is missing or cannot be read.
    Read,
    /// A line is neither a section nor a key nor a continuation.
    Syntax,
    /// `%(name)s` or `<name>` that is unknown, never ends, or grows without bound.
    Interpolation,
    /// A value that its key does not allow.
    Value,
    /// A regular expression or date pattern that cannot be translated.
    Pattern,
}

impl Error {
    /// An error with its place.
    pub fn new(origin: Origin, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            origin,
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

impl std::error::Error for Error {}

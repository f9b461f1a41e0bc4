//! What can go wrong when a segment is created, opened or read. What a writer
//! meets record by record is [`WriteError`](crate::Refused), which costs nothing.

use std::fmt;
use std::io;

/// Result of everything here that may fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, for programs; the message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, size or option that cannot be.
    InvalidInput,
    /// No segment or directory has this name.
    NotFound,
    /// The file is not a ring segment.
    NotARing,
    /// Written by an incompatible version of this library.
    Version,
    /// An existing segment has another size or policy than asked for.
    Geometry,
    /// The file is shorter or longer than its header says, or was cut short
    /// while it was mapped.
    Truncated,
    /// Header, index or record that no correct writer produces. A reader
    /// that reports this once reports it for ever.
    Corrupt,
    /// The file belongs to somebody the caller did not allow.
    Owner,
    /// Another writer is attached to this segment.
    WriterActive,
    /// No reader slot of the segment is free.
    NoSlot,
    /// A living reader holds the resume name asked for.
    ReaderActive,
    /// No memory or no room in the file system.
    NoSpace,
    /// Another answer of the operating system.
    System,
}

/// An error with its kind, message and cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Error {
        let kind = match source.raw_os_error() {
            Some(libc::ENOENT) => ErrorKind::NotFound,
            Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT) => ErrorKind::NoSpace,
            Some(libc::ELOOP) => ErrorKind::Owner,
            _ => ErrorKind::System,
        };
        Error {
            kind,
            message: what.into(),
            source: Some(source),
        }
    }

    /// The failure with the file's path before its message.
    pub(crate) fn at(mut self, path: &std::path::Path) -> Error {
        self.message = format!("{}: {}", path.display(), self.message);
        self
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The system's error number, if the system refused.
    pub fn os_error(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

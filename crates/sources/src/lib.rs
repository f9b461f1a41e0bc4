//! Where records come from: log files (`file`), the systemd journal
//! (`journal`) and shared-memory rings (`ring`). A [`Source`] delivers lines as
//! bytes and knows where it stands, so that a restart loses and repeats
//! nothing; what lines mean is not known here. Beside them, what is read about
//! addresses: databases of countries and autonomous systems (`geo`), and lists of
//! addresses that others publish (`list`).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod certificates;
pub mod file;
pub mod fs_call;
pub mod geo;
#[cfg(feature = "journal")]
pub mod journal;
pub mod list;
pub mod ring;

use std::{path::Path, path::PathBuf, time::Duration};

use jiff::Timestamp;
use weir_core::detect::{Age, Record, Writer};

pub use file::{FileConfig, FilePositions, FileSource, Fingerprint, Position, Start};
#[cfg(feature = "journal")]
pub use journal::{JournalConfig, JournalSource, JournalStart};
pub use ring::{Ring, RingConfig, RingSource, RingStatistics, ring_fault};

/// The longest part of a line that is delivered, in bytes; the rest is skipped.
/// Filters know a cut line by this length.
pub const MAX_LINE: usize = weir_core::detect::MAX_LINE;

/// Where a line comes from, and what the source knows of it.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The file, or the journal's or ring's directory.
    pub path: &'a Path,
    /// The readers of the line, of those who read from one source.
    pub readers: Readers<'a>,
    /// Which part of it, such as a ring's segment: lines of one part come in
    /// order.
    pub part: usize,
    /// The number of the file or segment: two files that had one name after each other are
    /// two.
    pub stream: u64,
    /// The time of the log entry, which the journal and rings know.
    pub time: Option<Timestamp>,
    /// The line is the message alone, of a program that the source has checked.
    pub message_only: bool,
    /// Whether the line was written just now, or before reading began.
    pub age: Age,
    /// The process that wrote the line, which the journal knows.
    pub writer: Writer,
    /// The identifier by which that program calls itself, by the journal.
    pub identifier: Option<&'a [u8]>,
}

/// The readers of a line.
#[derive(Clone, Copy, Debug)]
pub enum Readers<'a> {
    /// All readers of the source.
    All,
    /// The readers whose flag is set, by the numbers of subscriptions
    /// ([`FileConfig::subscriptions`]).
    Some(&'a [bool]),
}

impl Readers<'_> {
    /// Whether the reader of this number is one of them.
    pub fn has(&self, reader: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(readers) => readers.get(reader).copied().unwrap_or(false),
        }
    }
}

impl<'o> Origin<'o> {
    /// The line of this origin as filters read it.
    pub fn record<'a>(&self, line: &'a [u8]) -> Record<'a>
    where
        'o: 'a,
    {
        Record {
            line,
            time: self.time,
            message_only: self.message_only,
            age: self.age,
            stream: self.stream,
            writer: self.writer,
            identifier: self.identifier,
        }
    }
}

/// Counts of one `read_batch`, and what it has noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct BatchInfo {
    /// Lines that were delivered.
    pub lines: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Lines of which only the first [`MAX_LINE`] bytes were delivered.
    pub cut: u64,
    /// Files found truncated or rewritten in place, read again from 0.
    pub truncated: u64,
    /// Files that took the place of another one under the same name.
    pub rotated: u64,
    /// Entries of the programs read that journald says it has dropped by its
    /// rate limit.
    pub rate_limited: u64,
    /// Whether more lines are waiting: the next call returns at once.
    pub more: bool,
    /// What newly went wrong, or is right again; reading goes on.
    pub problems: Vec<Problem>,
    /// What went wrong once and cannot be mended, for the log.
    pub warnings: Vec<String>,
}

/// A file or journal that cannot be read now, told once; it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file or pattern.
    pub path: PathBuf,
    /// What is wrong and what to do.
    pub message: String,
    /// Told before, now over.
    pub resolved: bool,
}

/// Why a source cannot work at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A pattern is not a glob, or not an absolute path.
    #[error("{pattern:?} is not a log path: {reason}")]
    Pattern {
        /// The pattern as it is configured.
        pattern: String,
        /// The reason, in words.
        reason: String,
    },
    /// The kernel refuses an operation.
    #[error("{what}: {error}")]
    Io {
        /// What was tried, with what to do.
        what: String,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// There is no journal to read.
    #[error("{0}")]
    NoJournal(String),
    /// A ring's directory cannot be read.
    #[error("ring: {0}")]
    Ring(#[from] weir_ring::Error),
}

/// A source of log lines. A source stays on the thread that opened it (libsystemd's rule).
pub trait Source {
    /// Delivers what is there, or waits up to `timeout` for something.
    ///
    /// # Errors
    /// The source cannot go on; it is to be opened anew.
    fn read_batch(
        &mut self,
        timeout: Duration,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> Result<BatchInfo, SourceError>;

    /// How far it was read, to be stored with what its lines led to; `None` where
    /// the source remembers that itself, or has nothing to remember yet.
    fn position(&self) -> Option<String>;

    /// The positions of log files, for whoever has to know them while this source
    /// waits for a file system.
    fn reached(&self) -> Option<FilePositions> {
        None
    }

    /// What cannot be read now, given what the first batch told.
    fn unreadable(&self, first: &BatchInfo) -> Vec<PathBuf> {
        let problems = first.problems.iter().filter(|problem| !problem.resolved);
        problems.map(|problem| problem.path.clone()).collect()
    }

    /// A ring's directory and counters, if it is one and they are told here.
    fn ring(&self) -> Option<(&Path, RingStatistics)> {
        None
    }
}

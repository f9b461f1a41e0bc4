//! Reads findings out of records: which line of which program says that which
//! address failed, and when. Where lines come from is `weir-sources`' matter,
//! what findings lead to is `policy`'s.
//!
//! A filter (`definition`, or one of `builtin`) is compiled to a `program`: what
//! stands before its messages (`head`, `declared_head`, `timestamp`, `time_format`), what of
//! JSON makes a message (`json_message`),
//! which of its rules can fit (`dispatch`), whether one does (`matcher`, `fields`),
//! what other lines have told of the same attempt (`memory`), and when it happened
//! (`clock`). Filters in which a client could name somebody else are refused
//! (`impersonation`).
//!
//! A line is text of whoever wrote it. Patterns are therefore anchored at both
//! ends of the message and read the server's fields from the side where no
//! free text stands (see `matcher`); a line costs time linear in its length.

mod builtin;
mod clock;
mod declared_head;
mod definition;
mod dispatch;
mod fields;
mod head;
mod host_name;
mod impersonation;
mod journal_match;
mod json_message;
mod line;
mod matcher;
mod memory;
mod miss;
mod notices;
mod offender;
mod program;
mod template;
mod time_format;
mod timestamp;

use jiff::{Timestamp, tz::TimeZone};

pub use clock::{Age, Clock, STAMP_TOLERANCE, when};
pub use declared_head::HeadError;
pub use definition::{Cure, Definition, DefinitionError, Impersonation, PatternDefinition};
pub use head::{LineHead, line_heads};
pub use host_name::{HostName, MAX_HOST_NAME, NameError};
pub use journal_match::{JournalField, JournalMatch, JournalMatchError, TRUSTED};
pub use json_message::{JsonDefinition, JsonMessageError};
pub use line::Line;
pub use miss::Miss;
pub use notices::{BEHIND_NO_HEAD, HeadlessLine, Notices, suppressed};
pub use offender::{Offender, Refused, WIDEST_PREFIX};
pub use program::{Program, ProgramState};
pub use template::TemplateError;
pub use time_format::TimeFormatError;

/// The longest part of a line that is read; sources cut lines there.
pub const MAX_LINE: usize = 8192;

/// The longest user name that a finding keeps, in bytes.
pub const MAX_USER: usize = 64;

/// One line as a source delivers it, without its newline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// The bytes; any bytes.
    pub line: &'a [u8],
    /// The time of the log entry, where the source knows it (journal, ring): for lines
    /// without a stamp of their own; where nobody knows, it was now.
    pub time: Option<Timestamp>,
    /// The line is the message alone, without stamp, host and tag; the source
    /// has made sure which program wrote it.
    pub message_only: bool,
    /// The age of the line, as far as the source knows.
    pub age: Age,
    /// Which file or segment it is from: the lines of one come in order.
    pub stream: u64,
    /// The process that wrote the line, where the source knows.
    pub writer: Writer,
    /// What the program that wrote an entry of the journal calls itself, which anybody
    /// may choose.
    pub identifier: Option<&'a [u8]>,
}

/// What the journal notes of the process that wrote an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// The process id.
    pub pid: Option<u32>,
    /// The user it ran as.
    pub uid: Option<u32>,
    /// It wrote to standard output or error, where each line is an entry: a
    /// client's line break begins another one.
    pub stdout: bool,
}

/// What reading a line needs to know of the world.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The wall clock: guesses the year that BSD stamps lack.
    pub now: Timestamp,
    /// The zone of stamps that name none.
    pub zone: &'a TimeZone,
}

/// Somebody did something, once (or `attempts` times).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The address, prefix or host name that failed.
    pub offender: Offender,
    /// The time of the attempt, by the record.
    pub time: Timestamp,
    /// The clock that gave this time.
    pub clock: Clock,
    /// The user name that was tried: the attacker's text, at most [`MAX_USER`]
    /// bytes, invalid UTF-8 replaced. Escape it when printing.
    pub user: Option<String>,
    /// The number of attempts: more than one where syslog joined equal lines.
    pub attempts: u32,
    /// Which pattern of the filter, counted from 0.
    pub pattern: usize,
}

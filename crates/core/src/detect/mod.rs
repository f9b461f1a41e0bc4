//! Reads findings out of records: which line of which program says that which
//! address failed, and when. Where lines come from is `weir-sources`' matter,
//! what findings lead to is `policy`'s.
//!
//! A line is text of whoever wrote it. Patterns are therefore anchored at both
//! ends of the message and read the server's fields from the side where no
//! free text stands (see `pattern`); a line costs time linear in its length.

mod builtin;
mod connections;
mod filter;
mod head;
mod miss;
mod notices;
mod pattern;
mod stamp;

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

pub use filter::{Definition, DefinitionError, Filter, FilterState, PatternDefinition};
pub use head::{LineHead, line_heads};
pub use miss::Miss;
pub use notices::{BEHIND_NO_HEAD, HeadlessLine, Notices, suppressed};
pub use pattern::PatternError;

/// The longest part of a line that is read; sources cut lines there.
pub const MAX_LINE: usize = 8192;

/// The longest user name that a finding keeps, in bytes.
pub const MAX_USER: usize = 64;

/// How far a live line's stamp may be from the clock: lines are written late,
/// clocks differ. Zones differ by a quarter of an hour at least.
pub const STAMP_TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// One line as a source delivers it, without its newline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// The bytes; any bytes.
    pub line: &'a [u8],
    /// When it was logged, where the source knows (journal, ring): for lines
    /// without a stamp of their own; where nobody knows, it was now.
    pub time: Option<Timestamp>,
    /// The line is the message alone, without stamp, host and tag; the source
    /// has made sure which program wrote it.
    pub message_only: bool,
    /// When it was written, as far as the source knows.
    pub age: Age,
    /// Which file or segment it is from: the lines of one come in order.
    pub stream: u64,
    /// Who wrote it, where the source knows.
    pub writer: Writer,
}

/// What the journal notes of the process that wrote an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// Its number.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: Option<u32>,
    /// It wrote to standard output or error, where each line is an entry: a
    /// client's line break begins another one.
    pub stdout: bool,
}

/// When a line was written, as far as its source knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Age {
    /// Just now: without a stamp, or with one that is further off than
    /// [`STAMP_TOLERANCE`], it counts as now.
    Live,
    /// Before reading began: it has the time of its stamp, and does not count
    /// without one, or with one of the future.
    Backlog,
    /// Nobody knows: it has the time of its stamp; without one it is now.
    #[default]
    Unknown,
}

/// Where a finding's time is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The line's own stamp.
    #[default]
    Stamp,
    /// The source; the line has no stamp that is a time.
    Source,
    /// The clock: the line has no stamp that is a time, and the source none.
    Now,
    /// The source, or the clock: the line's stamp is off by so much, ahead where
    /// it is positive.
    Off(SignedDuration),
}

/// What reading a line needs to know of the world.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The wall clock: guesses the year that BSD stamps lack.
    pub now: Timestamp,
    /// The zone of stamps that name none.
    pub zone: &'a TimeZone,
}

/// An address did something, once (or `attempts` times).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Who; IPv4-mapped IPv6 is IPv4, a zone is cut off.
    pub addr: IpAddr,
    /// When, by the record.
    pub time: Timestamp,
    /// By which clock.
    pub clock: Clock,
    /// The user name that was tried: the attacker's text, at most [`MAX_USER`]
    /// bytes, invalid UTF-8 replaced. Escape it when printing.
    pub user: Option<String>,
    /// How often: more than one where syslog joined equal lines.
    pub attempts: u32,
    /// Which pattern of the filter, counted from 0.
    pub pattern: usize,
}

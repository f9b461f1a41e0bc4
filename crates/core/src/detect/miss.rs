//! Why a line tells of no failure: for `weir filter test` and whoever writes a
//! filter. Never asked for on the way of a line.

use std::fmt;

use super::{BEHIND_NO_HEAD, Refused, matcher::Reach};
use crate::json::JsonError;

/// The most of a line that a message shows.
const SHOWN: usize = 60;

/// How far a line came, and why it stopped there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Miss {
    /// No stamp of a known form begins it.
    NoStamp,
    /// The line has not the head that the filter declares.
    NoDeclaredHead {
        /// The part of the head that fits.
        read: String,
        /// The part that the head wants next.
        wanted: String,
    },
    /// The message is not the object of JSON that the filter reads.
    NoJson(JsonError),
    /// The object has no value at this path, which `json.message` asks for.
    NoJsonField(String),
    /// The line's stamp is not followed by a host and a tag.
    NoTag,
    /// A syslog daemon says it about itself.
    SyslogDaemon,
    /// The line's tag is not one of the filter's.
    OtherProgram {
        /// The tag of the program that wrote the line.
        tag: String,
    },
    /// The line has a syslog head, and the filter has no identifiers.
    HeadNotRead {
        /// The program that its tag names.
        tag: String,
        /// A pattern fits behind the head.
        fits: bool,
    },
    /// No pattern fits its message.
    NoPattern {
        /// The number of the pattern that came furthest, from 0.
        pattern: usize,
        /// The text that this pattern read of the message, from the side where it stopped.
        read: String,
        /// Whether it stopped while reading from the end of the message.
        backwards: bool,
        /// The part that the pattern wants next.
        wanted: String,
    },
    /// A pattern fits, and reads no message of that length (`max_length`), or
    /// the line was cut.
    TooLong {
        /// The number of that pattern, from 0.
        pattern: usize,
    },
    /// An `ignore` pattern fits the message.
    Ignored {
        /// The number of that `ignore` pattern, from 0.
        ignore: usize,
    },
    /// A pattern fits, and what it names cannot be counted.
    Refused(Refused),
    /// The time of the line is unknown.
    NoTime,
    /// A pattern fits; its attempt has counted by another line.
    Counted,
    /// A pattern fits; a line without a stamp or a tag came shortly before.
    BehindNoHead,
    /// A pattern fits; the entry came from standard output, and the filter is
    /// `syslog_only`.
    Stdout,
    /// A pattern fits; not root's process wrote it, and the filter is
    /// `root_only`.
    NotRoot,
}

impl Miss {
    pub(super) fn other_program(tag: &[u8]) -> Self {
        Self::OtherProgram { tag: shown(tag) }
    }

    pub(super) fn head_not_read(tag: &[u8], fits: bool) -> Self {
        Self::HeadNotRead {
            tag: shown(tag),
            fits,
        }
    }

    pub(super) fn no_declared_head(read: &[u8], wanted: String) -> Self {
        Self::NoDeclaredHead {
            read: shown(&read[read.len().saturating_sub(SHOWN)..]),
            wanted,
        }
    }

    pub(super) fn no_pattern(pattern: usize, message: &[u8], reach: &Reach<'_>) -> Self {
        let read = match reach.backwards {
            false => &message[reach.start.saturating_sub(SHOWN)..reach.start],
            true => &message[reach.end..message.len().min(reach.end + SHOWN)],
        };
        Self::NoPattern {
            pattern,
            read: shown(read),
            backwards: reach.backwards,
            wanted: reach.wanted(),
        }
    }
}

/// Somebody's bytes, not many of them.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned()
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStamp => f.write_str(
                "no time stamp begins the line (known: \"Nov 21 04:33:07\", \"2026-11-21T04:33:07\", RFC 5424)",
            ),
            Self::NoDeclaredHead { read, wanted } if read.is_empty() => {
                write!(f, "its start is not the filter's head, which wants {wanted} there")
            }
            Self::NoDeclaredHead { read, wanted } => {
                write!(f, "its start is not the filter's head, which wants {wanted} behind {read:?}")
            }
            Self::NoJson(why) => why.fmt(f),
            Self::NoJsonField(path) => {
                write!(f, "the object has no value {path:?}, which json.message asks for")
            }
            Self::NoTag => f.write_str(
                "no \"host program[pid]: \" follows the time stamp, and the filter has identifiers",
            ),
            Self::SyslogDaemon => f.write_str("a syslog daemon says it about itself"),
            Self::OtherProgram { tag } => {
                write!(f, "the line is of {tag:?}, which is not one of the identifiers")
            }
            Self::HeadNotRead { tag, fits } => {
                f.write_str("the line has a syslog head, and the filter has no identifiers: ")?;
                let then = if *fits { ", then a pattern fits" } else { "" };
                write!(f, "add identifiers = [{tag:?}]{then}")
            }
            Self::NoPattern {
                pattern,
                read,
                backwards,
                wanted,
            } => {
                write!(f, "no pattern fits; patterns[{pattern}] comes furthest: ")?;
                match (read.is_empty(), backwards) {
                    (true, false) => write!(f, "it wants {wanted} at the start of the message"),
                    (true, true) => write!(f, "it wants {wanted} at the end of the message"),
                    (false, false) => write!(f, "behind {read:?} it wants {wanted}"),
                    (false, true) => write!(f, "before {read:?} it wants {wanted}"),
                }
            }
            Self::TooLong { pattern } => write!(
                f,
                "patterns[{pattern}] fits, and reads no message of this length (max_length; lines are cut at {})",
                super::MAX_LINE
            ),
            Self::Ignored { ignore } => write!(f, "ignore[{ignore}] names it"),
            Self::Refused(why) => write!(f, "a pattern fits, and whom it names cannot be counted: {why}"),
            Self::NoTime => f.write_str("nobody knows when it was written"),
            Self::Counted => f.write_str("another line has told of this attempt, and counted"),
            Self::BehindNoHead => write!(
                f,
                "a line without a time stamp or without a program's tag came within the {BEHIND_NO_HEAD} before it: its writer may let a client's line breaks through to the log, so it may be a client's text"
            ),
            Self::Stdout => f.write_str(
                "it came from a program's standard output, where a client's line break begins another entry, and the filter has syslog_only",
            ),
            Self::NotRoot => {
                f.write_str("it is not of a process of root's, and the filter has root_only")
            }
        }
    }
}

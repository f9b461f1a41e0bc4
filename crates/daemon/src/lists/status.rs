//! What is said of a list: the API's document.

use jiff::Timestamp;
use serde::Serialize;
use weir_core::Scope;
use weir_sources::list::Skipped;

use super::ListAction;

/// A list's state.
#[derive(Debug, Clone, Serialize)]
pub struct ListStatus {
    /// Its name.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// What being on it means.
    pub action: ListAction,
    /// The grammar it was read as.
    pub format: String,
    /// Which ports.
    pub ports: Scope,
    /// Packets from it, to it, or both.
    pub direction: &'static str,
    /// Prefixes in force, after joining.
    pub prefixes: usize,
    /// Of these, IPv4.
    pub ipv4: usize,
    /// Of these, IPv6.
    pub ipv6: usize,
    /// Entries as they were written.
    pub entries: usize,
    /// Lines that are neither entry nor comment.
    pub skipped: LeftOut,
    /// Entries that no list may hold: too wide, private, nobody's.
    pub refused: LeftOut,
    /// How many of the exempt (own addresses, gateways, what is allowed) are
    /// on a deny list: they pass all the same.
    pub exempt: usize,
    /// Its size, unpacked.
    pub bytes: usize,
    /// Nothing has come from the source since the start: it is the copy on disk.
    pub from_cache: bool,
    /// When it was last known to be the newest.
    pub last_success: Option<Timestamp>,
    /// When a refresh last failed, if none has succeeded since.
    pub last_failure: Option<Timestamp>,
    /// What went wrong.
    pub error: Option<String>,
    /// When it is refreshed next; a file is followed.
    pub next_refresh: Option<Timestamp>,
}

/// Lines that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// How many.
    pub count: usize,
    /// The first of them.
    pub first: Vec<LeftOutLine>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOutLine {
    /// Its number.
    pub line: usize,
    /// What is there.
    pub text: String,
}

impl From<Skipped> for LeftOut {
    fn from(skipped: Skipped) -> Self {
        let lines = skipped.first.into_iter();
        Self {
            count: skipped.count,
            first: lines
                .map(|(line, text)| LeftOutLine { line, text })
                .collect(),
        }
    }
}

//! What is said of a list: the API's document.

use jiff::Timestamp;
use serde::Serialize;
use weir_core::PortSet;

use super::{LeftOut, ListAction};

/// A list's state.
#[derive(Debug, Clone, Serialize)]
pub struct ListStatus {
    /// The list's name.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// What being on it means.
    pub action: ListAction,
    /// The grammar it was read as.
    pub format: String,
    /// The ports that the list denies.
    pub ports: PortSet,
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
    /// Lines that are neither entry nor comment; of CrowdSec decisions of other
    /// kinds.
    pub skipped: LeftOut,
    /// Entries that no list may hold: too wide, private, nobody's.
    pub refused: LeftOut,
    /// Decisions of CrowdSec's that cannot be read.
    pub malformed: LeftOut,
    /// How much of the addresses that it names is left out because a list must
    /// not hold so many in one piece.
    pub left_out_percent_ipv4: f64,
    /// The same of IPv6.
    pub left_out_percent_ipv6: f64,
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

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
    /// The URL, file or service that the list is from.
    pub source: String,
    /// Whether addresses of the list are denied or allowed.
    pub action: ListAction,
    /// The grammar it was read as.
    pub format: String,
    /// The ports that the list denies.
    pub ports: PortSet,
    /// Packets from it, to it, or both.
    pub direction: &'static str,
    /// Prefixes in force, after joining.
    pub prefixes: usize,
    /// Prefixes of IPv4 in force, after joining.
    pub ipv4: usize,
    /// Prefixes of IPv6 in force, after joining.
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
    /// IPv4 addresses of the list that are left out, in percent of all that it names,
    /// because a list must not hold so many in one piece.
    pub left_out_percent_ipv4: f64,
    /// IPv6 addresses of the list that are left out, in percent of all that it names, for
    /// the same reason.
    pub left_out_percent_ipv6: f64,
    /// How many of the exempt (own addresses, gateways, what is allowed) are
    /// on a deny list: they pass all the same.
    pub exempt: usize,
    /// Bytes of the list, unpacked.
    pub bytes: usize,
    /// Nothing has come from the source since the start: it is the copy on disk.
    pub from_cache: bool,
    /// The time at which the list was last known to be the newest.
    pub last_success: Option<Timestamp>,
    /// When a refresh last failed, if none has succeeded since.
    pub last_failure: Option<Timestamp>,
    /// The error of the last refresh that failed.
    pub error: Option<String>,
    /// The time of the next refresh; none for a file, which is followed.
    pub next_refresh: Option<Timestamp>,
}

//! What a line tells: a failure of somebody, or why there is none.

use std::sync::Arc;

use jiff::Timestamp;
use weir_core::json::JsonError;

use super::{group_values::GroupValues, sessions::WholeLine};

/// Somebody failed, or did what a filter looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which `failregex`, from 0.
    pub regex: usize,
    /// The name that the failure is counted by: an address, a host name, or what `<F-ID>` holds.
    pub id: String,
    /// How the line names it.
    pub kind: IdKind,
    /// The address's length as a prefix, if the line says it.
    pub prefix_length: Option<u8>,
    /// When, by the line's date, or by the last one's; `None`: nothing says it.
    pub time: Option<Timestamp>,
    /// What the filter's groups hold beside that, by their names: `user`, `fport` …
    pub values: GroupValues,
    /// All users that the session has tried.
    pub users: Vec<String>,
    /// How many lines tell of it.
    pub attempts: u32,
    /// The lines that tell of it, where [`Filter::try_line`](super::Filter::try_line) was asked.
    pub lines: Vec<Arc<WholeLine>>,
}

/// What a failure is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// An IPv4 address.
    Ip4,
    /// An IPv6 address.
    Ip6,
    /// A host name, whose addresses somebody has to look up.
    Dns,
    /// Anything that a filter counts by.
    Id,
}

/// Why a line tells of no failure; for people who write filters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoFailure {
    /// `prefregex` does not fit.
    Prefregex,
    /// No `failregex` fits this text.
    Failregex(String),
    /// The `ignoreregex` of this number, from 0, fits.
    Ignored(usize),
    /// That `failregex` fits, and the session has not told yet who failed.
    Pending(usize),
    /// That `failregex` fits, and it is no failure by itself (`<F-NOFAIL>`).
    NoFail(usize),
    /// The filter reads fields of JSON, and the line is none, or none with one meaning.
    Json(JsonError),
    /// A search would have taken too long, of whichever expression.
    GivenUp,
}

impl Failure {
    /// What a group holds.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name)
    }

    /// The user that was tried.
    pub fn user(&self) -> Option<&str> {
        self.value("user")
    }
}

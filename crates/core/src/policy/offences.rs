//! How often a subject was banned by a jail before: what the ledger's
//! increments grow with, as the database stores it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::BanTarget;

/// A jail's past bans of one subject.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offence {
    /// The jail's name.
    pub jail: String,
    /// The addresses that were banned.
    pub subject: BanTarget,
    /// The number of past bans.
    pub offences: u32,
    /// The time at which the last ban was decided.
    pub last: Timestamp,
}

/// The past bans of a subject inside the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PastOffences {
    pub offences: u32,
    pub last: Option<Timestamp>,
}

//! What a command is told of a ban.

use jiff::Timestamp;
use weir_core::{Ban, BanTarget, Until};

use crate::store::{ActionNotice, CapturedValues};

/// What a command is told of a ban.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BanNotice {
    pub subject: BanTarget,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
    /// How many failures led to the ban.
    pub failures: u32,
    /// The lines that led to it, as far as they are known.
    pub matches: Vec<String>,
    /// The ban was made before the action was told of it.
    pub is_restored: bool,
    /// What the filter has captured of the first of the failures.
    pub captured: Option<CapturedValues>,
}

impl BanNotice {
    /// A ban that comes into force, or was made longer.
    pub fn of(ban: &Ban, is_restored: bool, captured: Option<CapturedValues>) -> Self {
        Self {
            subject: ban.subject,
            since: ban.since,
            until: end_of(ban.until),
            failures: u32::try_from(ban.evidence.len()).unwrap_or(u32::MAX),
            matches: ban.evidence.clone(),
            is_restored,
            captured,
        }
    }

    /// An address about which a jail asks: nothing is known of it but itself.
    pub fn of_address(subject: BanTarget) -> Self {
        Self {
            subject,
            since: Timestamp::now(),
            until: None,
            failures: 0,
            matches: Vec::new(),
            is_restored: false,
            captured: None,
        }
    }

    /// A ban as it was told or is about to be told, from its beginning to its end.
    pub fn of_told(told: &ActionNotice) -> Self {
        Self {
            subject: told.subject,
            since: told.since,
            until: end_of(told.until),
            failures: told.failures,
            matches: Vec::new(),
            is_restored: told.is_restored,
            captured: told.captured.clone(),
        }
    }

    /// The notice of the same ban from now on, with what is left of its time.
    pub fn from_now(told: &ActionNotice) -> Self {
        Self {
            since: Timestamp::now().max(told.since),
            ..Self::of_told(told)
        }
    }

    /// The part of the notice that the store remembers.
    pub fn remembered(&self) -> ActionNotice {
        ActionNotice {
            subject: self.subject,
            since: self.since,
            until: self.until.map_or(Until::Never, Until::At),
            failures: self.failures,
            is_restored: self.is_restored,
            captured: self.captured.clone(),
        }
    }

    /// 0 for IPv4 and 1 for IPv6, as the commands of families stand.
    pub fn family(&self) -> usize {
        family(self.subject)
    }
}

/// 0 for IPv4 and 1 for IPv6, as the commands of families stand.
pub(super) fn family(subject: BanTarget) -> usize {
    usize::from(subject.prefix().addr().is_ipv6())
}

fn end_of(until: Until) -> Option<Timestamp> {
    match until {
        Until::At(end) => Some(end),
        Until::Never => None,
    }
}

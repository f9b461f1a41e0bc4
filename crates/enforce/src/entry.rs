//! What a backend stores: subject, policy, expiry.

use std::sync::Arc;

use serde::Serialize;
use weir_core::{Action, BanSource, BanTarget, PortSet};

/// A moment on CLOCK_BOOTTIME, nanoseconds since boot, suspend included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
pub struct BootNanos(pub u64);

impl BootNanos {
    /// The time now, by CLOCK_BOOTTIME.
    pub fn now() -> Self {
        Self(weir_bpf::clock::boottime())
    }
}

/// When an entry stops being enforced, without anybody's doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize)]
pub enum Expiry {
    /// The entry expires at this moment of this boot.
    At(BootNanos),
    /// The entry never expires by itself: only `remove` ends it.
    Never,
}

impl Expiry {
    /// Whether the expiry has passed at `now`.
    pub fn is_over(self, now: BootNanos) -> bool {
        matches!(self, Self::At(end) if end <= now)
    }
}

/// What all bans of one producer with one scope and action share; the kernel
/// stores it once and refers to it by number.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct Policy {
    /// The administrator, jail, watch, list or port that decides these bans.
    pub producer: BanSource,
    /// The ports that they cover.
    pub scope: PortSet,
    /// Whether packets of these bans are dropped or rejected, or these bans only notify.
    pub action: Action,
}

impl Policy {
    /// The policy of the same bans with the other action that denies packets: one subject
    /// has one of the two. Itself, if these bans only notify.
    pub fn with_opposite_action(&self) -> Self {
        Self {
            action: self.action.other(),
            ..self.clone()
        }
    }

    /// The policies of the same bans with each other action: one subject has one of them all.
    pub fn with_other_actions(&self) -> impl Iterator<Item = Self> {
        let others = Action::ALL.into_iter().filter(|one| *one != self.action);
        others.map(|action| Self {
            action,
            ..self.clone()
        })
    }
}

/// A ban as enforced. (subject, policy) is its name; it replaces those of (subject,
/// [`Policy::with_other_actions`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// The address or network that is banned.
    pub subject: BanTarget,
    /// The producer, ports and action of the ban.
    pub policy: Arc<Policy>,
    /// When the ban expires.
    pub expiry: Expiry,
}

//! What goes wrong while enforcing, in words that say which object and what to do.

use weir_bpf::prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS, PREFIX_BAN_WORDS};
use weir_core::BanTarget;

use crate::backend_feature::Feature;

/// An error of a backend.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel cannot do what the configuration asks; names the probe.
    #[error("{0}")]
    Unsupported(String),
    /// The backend does not have what the configuration asks.
    #[error("{says}")]
    NotOffered {
        /// The feature that it lacks.
        feature: Feature,
        /// The refusal, with the backend's name.
        says: String,
    },
    /// Another program holds the hook or the instance.
    #[error("{0}")]
    Busy(String),
    /// The table is full and this producer has nothing that may be evicted.
    #[error("the ban table is full ({0} bans): raise max_bans or unban something")]
    Full(usize),
    /// There are as many bans of other prefixes as the kernel's table of those
    /// holds, and this producer has none that may be evicted.
    #[error(
        "there are {0} bans of prefixes other than single addresses and IPv6 /64: unban some, or ban wider ones"
    )]
    PrefixBansFull(usize),
    /// There are as many bans of other prefixes as those that are not manual may take: the
    /// rest is kept for manual ones.
    #[error(
        "jails, watches and decoy ports have {0} bans of prefixes other than single addresses and IPv6 /64, and the last {kept} places are kept for manual ones: unban some, or ban wider ones",
        kept = MAX_PREFIX_BANS - MAX_SHARED_PREFIX_BANS
    )]
    PrefixBanShareFull(usize),
    /// Some address would be under more bans of prefixes than the kernel looks at.
    #[error(
        "cannot ban {0}: some of its addresses would be under more than {max} bans of prefixes: lift some, or ban all ports",
        max = PREFIX_BAN_WORDS
    )]
    TooDeep(BanTarget),
    /// The ban denies no packet: it has no place in a table of the kernel's.
    #[error("the ban of {0} only notifies: the kernel is not told of it")]
    OnlyNotifies(BanTarget),
    /// More policies in use than the kernel's table has numbers.
    #[error(
        "too many different ban policies in force: at most {0} sets of source, ports and action; lift the bans of some"
    )]
    Policies(usize),
    /// One subject has more bans at once than its places in the table.
    #[error("{0} has too many different bans at once: lift some, or ban all ports")]
    Crowded(BanTarget),
    /// The table is as full as it should be, and a larger one cannot be made.
    #[error("cannot make the ban table larger: {0}; tried again within a minute")]
    Growth(String),
    /// nftables or ipset refused, or the program that talks to them.
    #[error("{what}: {source}")]
    System {
        /// What was being done to which object.
        what: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] weir_bpf::Error),
}

impl Error {
    /// Whether it is this feature that the backend does not have.
    pub fn is_about(&self, feature: Feature) -> bool {
        matches!(self, Self::NotOffered { feature: of, .. } if *of == feature)
    }
}

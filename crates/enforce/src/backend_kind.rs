//! Which backend a configuration asks for, and what each one cannot do: said
//! here once, for `weir check`, `weir status` and the log at start.

use std::fmt;

use serde::Serialize;
use weir_bpf::attachment::Hook;

use crate::{backend_feature::Feature, error::Error};

/// The backend that the configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// The best hook that attaches.
    Auto,
    /// This hook, or the next one that attaches.
    Kernel(Hook),
    /// A table of nftables.
    Nft,
    /// Sets of ipset, and rules of iptables that look into them.
    Ipset,
    /// Decide everything, drop nothing.
    DryRun,
}

impl BackendChoice {
    /// All that can be typed, with the configuration's words.
    pub const ALL: [(&str, Self); 9] = [
        ("auto", Self::Auto),
        ("xdp", Self::Kernel(Hook::Xdp)),
        ("xdp-generic", Self::Kernel(Hook::XdpGeneric)),
        ("tcx", Self::Kernel(Hook::Tcx)),
        ("cls_bpf", Self::Kernel(Hook::ClsBpf)),
        ("netfilter", Self::Kernel(Hook::Netfilter)),
        ("nft", Self::Nft),
        ("ipset", Self::Ipset),
        ("dry-run", Self::DryRun),
    ];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        let known = Self::ALL.iter().find(|(_, choice)| *choice == self);
        known.map_or("auto", |(name, _)| name)
    }

    /// The hook that is named; `None` leaves it to weir.
    pub fn hook(self) -> Option<Hook> {
        match self {
            Self::Kernel(hook) => Some(hook),
            Self::Auto | Self::Nft | Self::Ipset | Self::DryRun => None,
        }
    }

    /// Whether the backend runs weir's own BPF programs.
    pub fn is_bpf(self) -> bool {
        matches!(self, Self::Auto | Self::Kernel(_))
    }

    /// What a configuration cannot have from this backend.
    pub fn limits(self) -> &'static [Limit] {
        match self {
            Self::Kernel(Hook::Netfilter) => &NETFILTER,
            Self::Kernel(Hook::XdpGeneric) => &GENERIC,
            Self::Auto | Self::Kernel(_) => &[],
            Self::Nft => &NFT,
            Self::Ipset => &IPSET,
            Self::DryRun => &[],
        }
    }

    /// The limit that is about this feature, if there is one.
    pub fn limit(self, feature: Feature) -> Option<&'static Limit> {
        self.limits().iter().find(|limit| limit.feature == feature)
    }
}

/// What a backend cannot do, in a sentence for the administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The feature that is missing.
    pub feature: Feature,
    /// The effect on the administrator, in words.
    pub says: &'static str,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.says)
    }
}

impl Limit {
    /// The error for whoever asks for it all the same.
    pub(crate) fn refusal(&self, backend: &str) -> Error {
        Error::NotOffered {
            feature: self.feature,
            says: format!("backend {backend:?} has {self}"),
        }
    }
}

const DECOYS: Limit = Limit {
    feature: Feature::Decoys,
    says: "no decoy or tarpit ports: netfilter cannot answer a SYN with a cookie, and without that no source is proven",
};
const BALANCE: Limit = Limit {
    feature: Feature::Balance,
    says: "no load balancing: only XDP and tc can send a packet on with another link-layer address",
};
const TUNNELS: Limit = Limit {
    feature: Feature::Tunnels,
    says: "no tunnels to reals: generic XDP gets packets put together by GRO, and an outer header for each of their parts cannot be written there",
};
const EVENTS: Limit = Limit {
    feature: Feature::PacketEvents,
    says: "no drop events: packets are counted, not told of one by one",
};
const REJECT: Limit = Limit {
    feature: Feature::Reject,
    says: "no answer to those whose ban rejects: it drops",
};
const DEVICES: Limit = Limit {
    feature: Feature::Devices,
    says: "only packets that this host's IP stack receives: a VLAN's packets if the VLAN's own interface is named, none that are bridged or go to a macvlan",
};

/// Limits of a BPF backend whose kernel does not load the program that answers for bans
/// that reject.
pub(crate) static WITHOUT_REJECT: [Limit; 1] = [REJECT];
/// Limits of a BPF backend whose kernel does not load the program that answers at decoy
/// ports.
pub(crate) static WITHOUT_DECOYS: [Limit; 1] = [DECOYS_NOT_LOADED];
/// Limits of a BPF backend whose kernel loads neither of these programs.
pub(crate) static WITHOUT_ANSWERS: [Limit; 2] = [DECOYS_NOT_LOADED, REJECT];

const DECOYS_NOT_LOADED: Limit = Limit {
    feature: Feature::Decoys,
    says: "no decoy or tarpit ports for now: this kernel does not load the program with them; it is asked again every ten minutes",
};

static GENERIC: [Limit; 1] = [TUNNELS];

static NETFILTER: [Limit; 5] = [
    DECOYS,
    BALANCE,
    REJECT,
    Limit {
        feature: Feature::Counters,
        says: "frames that are not IP, and malformed packets, are not counted: the IP stack does not hand them on",
    },
    DEVICES,
];

static NFT: [Limit; 6] = [
    DECOYS,
    BALANCE,
    EVENTS,
    Limit {
        feature: Feature::Counters,
        says: "packets that pass because their ban is of other ports count as pass, and those with a wrong checksum that a ban rejects as rejected; bytes count from the IP header on",
    },
    Limit {
        feature: Feature::Devices,
        says: "where an interface is judged in prerouting only, just packets that this host's IP stack receives: none that are bridged or go to a macvlan; answers to rejected packets always come from there",
    },
    Limit {
        feature: Feature::Clock,
        says: "nftables' clock stands still while the machine is suspended: bans are corrected within a second of the return",
    },
];

static IPSET: [Limit; 9] = [
    DECOYS,
    BALANCE,
    Limit {
        feature: Feature::Geofence,
        says: "no geofence: ipset has no map from an address to its country, nor stamps for answers",
    },
    Limit {
        feature: Feature::Outbound,
        says: "no lists for packets on their way out",
    },
    EVENTS,
    REJECT,
    Limit {
        feature: Feature::Counters,
        says: "packets that pass are not counted; bytes count from the IP header on",
    },
    DEVICES,
    Limit {
        feature: Feature::Clock,
        says: "ends of bans to the second, after a suspend corrected within a second; 24 days at most in the kernel, prolonged by the daemon while it runs",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_names_one_choice() {
        for (name, choice) in BackendChoice::ALL {
            assert_eq!(choice.name(), name);
        }
    }

    #[test]
    fn a_feature_is_limited_once() {
        for (name, choice) in BackendChoice::ALL {
            for limit in choice.limits() {
                let same = |other: &&Limit| other.feature == limit.feature;
                assert_eq!(choice.limits().iter().filter(same).count(), 1, "{name}");
            }
        }
    }
}

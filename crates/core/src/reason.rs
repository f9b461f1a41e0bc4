//! Why a packet passed or was dropped, as counted by the kernel. The numbers
//! are `enum reason` of `bpf/abi/reason.h`; `abi.rs` of `weir-bpf` asserts each.

use serde::{Deserialize, Serialize};

/// One exit of the packet path; every packet leaves through exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Reason {
    /// Passed: its source is not banned.
    Pass = 0,
    /// Passed: neither IPv4 nor IPv6.
    NotIp = 1,
    /// Passed: a header is cut or contradicts itself; the host's stack drops it.
    Malformed = 2,
    /// Passed: banned, but the allow list holds the source.
    Allowed = 3,
    /// Passed: the source's bans cover other ports only.
    OtherPort = 4,
    /// Passed: neighbour discovery or DHCP, which keep the host reachable.
    Essential = 5,
    /// Passed: its place is denied, but it answers a flow that began here.
    Reply = 6,
    /// Passed, would be dropped: the daemon runs with `observe = true`.
    Observed = 7,
    /// Dropped: a ban of all ports.
    BannedAll = 8,
    /// Dropped: a ban of this port.
    BannedScope = 9,
    /// Dropped: a list holds its source.
    Listed = 10,
    /// Dropped: the geofence denies its source.
    Fenced = 11,
    /// Dropped on the way out: a list holds its destination.
    ListedOut = 12,
    /// Dropped on the way out: the geofence denies its destination.
    FencedOut = 13,
    /// Dropped: it is for a decoy port, its source unproven.
    Decoy = 14,
    /// Dropped: it completes a handshake with a decoy port, so its source is real.
    #[serde(rename = "proven")]
    DecoyHandshake = 15,
    /// Dropped and answered: a ban that rejects.
    Rejected = 16,
    /// Dropped: a ban that rejects, of a packet that may not be answered, or above
    /// the limit of answers.
    RejectedSilent = 17,
    /// Dropped: it is for a tarpit port; answered, as far as the limits allow.
    Tarpit = 18,
    /// Dropped: it completes a handshake with a tarpit port, so its source is real.
    TarpitHandshake = 19,
    /// Dropped: its source is an address that nobody has, such as `0.1.2.3` or
    /// `::ffff:192.0.2.7`.
    InvalidSource = 20,
    /// Dropped: more than eight VLAN tags.
    TooManyTags = 21,
    /// Dropped: it is for a pool that has no live real.
    NoReal = 22,
    /// Dropped: the access list of a pool denies its source.
    PoolDenied = 23,
    /// Dropped, and its sender told: with the outer header that a real beyond a router
    /// needs it is larger than the way to it takes.
    TooBig = 24,
    /// Dropped: the kernel made no room for the outer header.
    NoRoom = 25,
}

impl Reason {
    /// All reasons, by number.
    pub const ALL: [Reason; 26] = [
        Self::Pass,
        Self::NotIp,
        Self::Malformed,
        Self::Allowed,
        Self::OtherPort,
        Self::Essential,
        Self::Reply,
        Self::Observed,
        Self::BannedAll,
        Self::BannedScope,
        Self::Listed,
        Self::Fenced,
        Self::ListedOut,
        Self::FencedOut,
        Self::Decoy,
        Self::DecoyHandshake,
        Self::Rejected,
        Self::RejectedSilent,
        Self::Tarpit,
        Self::TarpitHandshake,
        Self::InvalidSource,
        Self::TooManyTags,
        Self::NoReal,
        Self::PoolDenied,
        Self::TooBig,
        Self::NoRoom,
    ];

    /// The reason with this number in the kernel's tables.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Is a packet that leaves here dropped?
    pub fn is_drop(self) -> bool {
        self >= Self::BannedAll
    }

    /// The name in JSON, metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::NotIp => "not-ip",
            Self::Malformed => "malformed",
            Self::Allowed => "allowed",
            Self::OtherPort => "other-port",
            Self::Essential => "essential",
            Self::Reply => "reply",
            Self::Observed => "observed",
            Self::BannedAll => "banned-all",
            Self::BannedScope => "banned-scope",
            Self::Listed => "listed",
            Self::Fenced => "fenced",
            Self::ListedOut => "listed-out",
            Self::FencedOut => "fenced-out",
            Self::Decoy => "decoy",
            Self::DecoyHandshake => "proven",
            Self::Rejected => "rejected",
            Self::RejectedSilent => "rejected-silent",
            Self::Tarpit => "tarpit",
            Self::TarpitHandshake => "tarpit-handshake",
            Self::InvalidSource => "invalid-source",
            Self::TooManyTags => "too-many-tags",
            Self::NoReal => "no-real",
            Self::PoolDenied => "pool-denied",
            Self::TooBig => "too-big",
            Self::NoRoom => "no-room",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

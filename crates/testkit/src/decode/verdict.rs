//! What must become of a packet by bans and the allow list.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{Decoded, L3, Transport};

/// The ports that a ban covers: all, or these destination ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// `None` for all ports and protocols.
    pub ports: Option<Vec<PortRange>>,
}

/// Destination ports, ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// Protocol number; `None` for every protocol with ports.
    pub proto: Option<u8>,
    /// The first port of the range.
    pub lo: u16,
    /// The last port of the range.
    pub hi: u16,
}

impl Scope {
    /// A scope of all packets of the source.
    pub fn all() -> Self {
        Self::default()
    }

    /// A scope of these ports only.
    pub fn ports(ranges: impl IntoIterator<Item = PortRange>) -> Self {
        Self {
            ports: Some(ranges.into_iter().collect()),
        }
    }
}

/// An address and length with host bits cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// Clears the bits behind `len`; a length beyond the family's is its own.
    pub fn new(addr: impl Into<IpAddr>, len: u8) -> Self {
        match addr.into() {
            IpAddr::V4(addr) => {
                let len = len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Self {
                    addr: Ipv4Addr::from(u32::from(addr) & mask).into(),
                    len,
                }
            }
            IpAddr::V6(addr) => {
                let len = len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Self {
                    addr: Ipv6Addr::from(u128::from(addr) & mask).into(),
                    len,
                }
            }
        }
    }

    /// Whether the address is inside.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.addr.is_ipv4() == addr.is_ipv4() && Self::new(addr, self.len) == *self
    }
}

/// Bans, and the few switches that change a verdict.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// IPv4 /32 and the fixed length, IPv6 /64 and /128; several scopes each.
    pub bans: BTreeMap<Prefix, Vec<Scope>>,
    /// The one IPv4 length besides 32.
    pub fixed_v4: Option<u8>,
    /// Whether a malformed packet is dropped.
    pub drop_malformed: bool,
}

impl Table {
    /// Adds a ban. Lengths that are never looked up may be added; they are
    /// never found.
    pub fn ban(&mut self, subject: Prefix, scope: Scope) {
        self.bans.entry(subject).or_default().push(scope);
    }

    fn scopes(&self, src: IpAddr) -> Vec<&Scope> {
        let lengths = match src {
            IpAddr::V4(_) => vec![Some(32), self.fixed_v4.filter(|len| *len != 32)],
            IpAddr::V6(_) => vec![Some(64), Some(128)],
        };
        let subjects = lengths
            .into_iter()
            .flatten()
            .map(|len| Prefix::new(src, len));
        subjects
            .filter_map(|subject| self.bans.get(&subject))
            .flatten()
            .collect()
    }
}

/// The allow list.
#[derive(Debug, Clone, Default)]
pub struct Allow {
    /// Prefixes of any length.
    pub prefixes: Vec<Prefix>,
}

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet goes on to the network stack.
    Pass,
    /// The packet is dropped.
    Drop,
}

/// Why a packet has its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing known against the source, or one that cannot be banned.
    Pass,
    /// The frame holds no IP packet.
    NotIp,
    /// A header cut or contradicting itself.
    Malformed,
    /// A ban applies, the allow list wins.
    Allowed,
    /// A ban of all ports.
    BannedAll,
    /// A ban of this port.
    BannedScope,
    /// Bans exist, none for this port.
    OtherPort,
    /// A ban applies, but the network would break.
    Essential,
    /// No host has the source address.
    InvalidSource,
    /// The frame has more than eight VLAN tags.
    TooManyTags,
}

/// The verdict that every hook has to reach.
pub fn reference_verdict(packet: &Decoded, table: &Table, allow: &Allow) -> (Verdict, Reason) {
    let src = match packet.l3 {
        L3::NotIp => return (Verdict::Pass, Reason::NotIp),
        L3::Malformed if table.drop_malformed => return (Verdict::Drop, Reason::Malformed),
        L3::Malformed => return (Verdict::Pass, Reason::Malformed),
        L3::TooManyTags => return (Verdict::Drop, Reason::TooManyTags),
        L3::V4(src) => IpAddr::V4(src),
        L3::V6(src) => IpAddr::V6(src),
    };
    if nobody(src) {
        let unspecified = src.is_unspecified();
        return match allow.prefixes.iter().any(|prefix| prefix.contains(src)) {
            _ if unspecified && packet.without_address => (Verdict::Pass, Reason::Pass),
            true => (Verdict::Pass, Reason::Allowed),
            false => (Verdict::Drop, Reason::InvalidSource),
        };
    }
    if unbannable(src) {
        return (Verdict::Pass, Reason::Pass);
    }
    let scopes = table.scopes(src);
    if scopes.is_empty() {
        return (Verdict::Pass, Reason::Pass);
    }
    let why = if scopes.iter().any(|scope| scope.ports.is_none()) {
        Reason::BannedAll
    } else if scopes.iter().any(|scope| covers(scope, packet.transport)) {
        Reason::BannedScope
    } else {
        return (Verdict::Pass, Reason::OtherPort);
    };
    if packet.essential {
        return (Verdict::Pass, Reason::Essential);
    }
    if allow.prefixes.iter().any(|prefix| prefix.contains(src)) {
        return (Verdict::Pass, Reason::Allowed);
    }
    (Verdict::Drop, why)
}

fn covers(scope: &Scope, transport: Transport) -> bool {
    match transport {
        Transport::Unknown => true,
        Transport::LaterFragment | Transport::NoPorts { .. } => false,
        Transport::Ports { proto, dst, .. } => scope.ports.iter().flatten().any(|range| {
            range.proto.is_none_or(|wanted| wanted == proto) && (range.lo..=range.hi).contains(&dst)
        }),
    }
}

/// Is this an address that no host has?
fn nobody(src: IpAddr) -> bool {
    match src {
        IpAddr::V4(src) => src.octets()[0] == 0,
        IpAddr::V6(src) => src.octets()[..3] == [0, 0, 0] && src != Ipv6Addr::LOCALHOST,
    }
}

fn unbannable(src: IpAddr) -> bool {
    match src {
        IpAddr::V4(src) => src.is_multicast() || src.is_broadcast(),
        IpAddr::V6(src) => src.is_loopback() || src.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::tests::{A6, B4, B6, of, six},
        packet::Packet,
    };

    fn tcp(lo: u16, hi: u16) -> Scope {
        Scope::ports([PortRange {
            proto: Some(6),
            lo,
            hi,
        }])
    }

    #[test]
    fn verdicts() {
        use {Reason as R, Verdict::*};
        let mut table = Table {
            fixed_v4: Some(24),
            ..Table::default()
        };
        let all = [10, 0, 0, 1];
        table.ban(Prefix::new(all, 32), Scope::all());
        table.ban(Prefix::new([10, 0, 0, 2], 32), tcp(22, 23));
        table.ban(Prefix::new([10, 0, 0, 2], 32), tcp(80, 80));
        let any = Scope::ports([PortRange {
            proto: None,
            lo: 53,
            hi: 53,
        }]);
        table.ban(Prefix::new([10, 0, 0, 2], 32), any);
        table.ban(Prefix::new([10, 0, 3, 0], 24), Scope::all());
        table.ban(Prefix::new([10, 4, 0, 0], 16), Scope::all());
        table.ban(Prefix::new(A6, 64), tcp(22, 22));
        let lone = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
        table.ban(Prefix::new(lone, 128), Scope::all());
        for never in [
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "ff02::1",
        ] {
            let never: IpAddr = never.parse().unwrap();
            table.ban(Prefix::new(never, 128), Scope::all());
            table.ban(Prefix::new(never, 64), Scope::all());
        }
        let allow = Allow {
            prefixes: vec![
                Prefix::new([10, 0, 3, 128], 25),
                Prefix::new([10, 0, 0, 2], 31),
            ],
        };
        let none = Allow::default();
        let this_network = Allow {
            prefixes: vec![Prefix::new([0, 0, 0, 0], 8)],
        };
        let p4 = |src: [u8; 4]| Packet::eth().ip4(src, B4);
        let part = [10, 0, 0, 2];
        let later = p4(part).fragment(9, false).protocol(6).payload_len(20);
        for (name, packet, allow, wanted) in [
            (
                "innocent",
                p4([10, 0, 0, 9]).tcp(1, 22),
                &none,
                (Pass, R::Pass),
            ),
            ("all", p4(all).tcp(1, 9), &none, (Drop, R::BannedAll)),
            ("all, icmp", p4(all).icmp(8, 0), &none, (Drop, R::BannedAll)),
            (
                "all, later",
                p4(all).fragment(9, false),
                &none,
                (Drop, R::BannedAll),
            ),
            (
                "all, dhcp",
                p4(all).udp(68, 67),
                &none,
                (Pass, R::Essential),
            ),
            (
                "range low",
                p4(part).tcp(1, 22),
                &none,
                (Drop, R::BannedScope),
            ),
            (
                "range high",
                p4(part).tcp(1, 23),
                &none,
                (Drop, R::BannedScope),
            ),
            ("beyond", p4(part).tcp(1, 24), &none, (Pass, R::OtherPort)),
            (
                "second ban",
                p4(part).tcp(1, 80),
                &none,
                (Drop, R::BannedScope),
            ),
            (
                "other protocol",
                p4(part).udp(1, 22),
                &none,
                (Pass, R::OtherPort),
            ),
            (
                "any protocol",
                p4(part).sctp(1, 53),
                &none,
                (Drop, R::BannedScope),
            ),
            (
                "source port",
                p4(part).tcp(22, 1),
                &none,
                (Pass, R::OtherPort),
            ),
            ("no ports", p4(part).icmp(8, 0), &none, (Pass, R::OtherPort)),
            ("later", later.clone(), &none, (Pass, R::OtherPort)),
            (
                "cut",
                p4(part).tcp(1, 9).truncate(36),
                &none,
                (Drop, R::BannedScope),
            ),
            ("allowed", p4(part).tcp(1, 22), &allow, (Pass, R::Allowed)),
            (
                "allowed, other",
                p4(part).tcp(1, 9),
                &allow,
                (Pass, R::OtherPort),
            ),
            (
                "fixed length",
                p4([10, 0, 3, 7]).tcp(1, 9),
                &allow,
                (Drop, R::BannedAll),
            ),
            (
                "allowed inside",
                p4([10, 0, 3, 200]).tcp(1, 9),
                &allow,
                (Pass, R::Allowed),
            ),
            (
                "other length",
                p4([10, 4, 3, 7]).tcp(1, 9),
                &none,
                (Pass, R::Pass),
            ),
            ("/64", six().tcp(1, 22), &none, (Drop, R::BannedScope)),
            ("/64, other", six().tcp(1, 23), &none, (Pass, R::OtherPort)),
            (
                "/128 wins",
                Packet::eth().ip6(lone, B6).tcp(1, 23),
                &none,
                (Drop, R::BannedAll),
            ),
            (
                "this host",
                p4([0; 4]).tcp(1, 22),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "this host's dhcp",
                p4([0; 4]).udp(68, 67),
                &none,
                (Pass, R::Pass),
            ),
            (
                "this network's",
                p4([0, 1, 2, 3]).udp(68, 67),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "this network's, allowed",
                p4([0, 1, 2, 3]).tcp(1, 22),
                &this_network,
                (Pass, R::Allowed),
            ),
            (
                "multicast",
                p4([224, 0, 0, 1]).tcp(1, 22),
                &none,
                (Pass, R::Pass),
            ),
            ("broadcast", p4([255; 4]).tcp(1, 22), &none, (Pass, R::Pass)),
            (
                "::",
                Packet::eth().ip6([0; 8], B6).tcp(1, 22),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "is the address free?",
                Packet::eth().ip6([0; 8], B6).ttl(255).icmp6(135, 0),
                &none,
                (Pass, R::Pass),
            ),
            (
                "it is mine, says ::",
                Packet::eth().ip6([0; 8], B6).ttl(255).icmp6(136, 0),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "the same from ::5",
                Packet::eth()
                    .ip6([0, 0, 0, 0, 0, 0, 0, 5], B6)
                    .ttl(255)
                    .icmp6(135, 0),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "a listener's report",
                Packet::eth()
                    .ip6([0; 8], B6)
                    .ttl(1)
                    .hop_by_hop()
                    .icmp6(143, 0),
                &none,
                (Pass, R::Pass),
            ),
            (
                "IPv4-mapped",
                Packet::eth()
                    .ip6(Ipv4Addr::from(all).to_ipv6_mapped(), B6)
                    .tcp(1, 22),
                &none,
                (Drop, R::InvalidSource),
            ),
            (
                "loopback",
                Packet::eth().ip6(Ipv6Addr::LOCALHOST, B6).tcp(1, 22),
                &none,
                (Pass, R::Pass),
            ),
            (
                "arp",
                Packet::eth().ethertype(0x0806),
                &none,
                (Pass, R::NotIp),
            ),
            ("malformed", p4(all).ihl(2), &none, (Pass, R::Malformed)),
            (
                "tags",
                (0..9).fold(Packet::eth(), |p, _| p.vlan(0)).ip4(all, B4),
                &none,
                (Drop, R::TooManyTags),
            ),
        ] {
            assert_eq!(
                reference_verdict(&of(&packet), &table, allow),
                wanted,
                "{name}"
            );
        }
        for never in ["ff02::1", "ff05::2"] {
            let packet = Packet::eth()
                .ip6(never.parse::<Ipv6Addr>().unwrap(), B6)
                .tcp(1, 22);
            assert_eq!(
                reference_verdict(&of(&packet), &table, &none),
                (Pass, R::Pass),
                "{never}"
            );
        }
        table.drop_malformed = true;
        let seen = reference_verdict(&of(&p4(all).ihl(2)), &table, &none);
        assert_eq!(seen, (Drop, R::Malformed));
    }

    #[test]
    fn prefixes() {
        let net = Prefix::new([10, 1, 2, 3], 8);
        assert!(net.contains([10, 9, 9, 9].into()) && !net.contains([11, 0, 0, 0].into()));
        assert!(Prefix::new([1, 2, 3, 4], 0).contains([9, 9, 9, 9].into()));
        assert!(
            !Prefix::new([0, 0, 0, 0], 0).contains(A6.into()),
            "other family"
        );
        assert!(Prefix::new(A6, 0).contains(B6.into()));
        assert!(!Prefix::new(A6, 128).contains(B6.into()));
    }
}

//! The reference: what a frame is and what must become of it, written from
//! RFC 791, 2675, 4302, 6864, 6980, 8200 and 802.1Q in the plainest way, to compare
//! the packet path with. It shares no code with it and no one may make it fast.
//!
//! Where the standards leave a choice, the rules are:
//! * At most eight VLAN tags (0x8100, 0x88a8), those held beside the frame
//!   included; a ninth makes `TooManyTags`. A cut link header is `Malformed`.
//! * IPv4 needs 20 bytes, version 4, ihl ≥ 5, ihl × 4 bytes in the frame and a
//!   total length of at least that, else `Malformed`.
//! * The packet ends where the frame ends or where the IP length says,
//!   whichever is first; bytes behind it do not exist. An IPv6 payload length
//!   of zero before a hop-by-hop header is a jumbogram: the frame decides.
//! * An IPv6 chain has at most six extension headers, each of them whole;
//!   longer or cut is `Unknown`. A fragment header counts like any other.
//! * IPv4 knows no chain: AH there is a protocol without ports.
//! * From 0.0.0.0/8 and ::/24 nobody sends; but a host without an address sends
//!   DHCP requests and IGMP from 0.0.0.0, and from :: router and neighbour
//!   solicitations and multicast listener messages with the hop limits that their
//!   RFCs demand. ::1 is for the stack to refuse.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

const MAX_TAGS: usize = 8;
const MAX_EXTENSIONS: usize = 6;

/// The layers of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decoded {
    /// The network layer.
    pub l3: L3,
    /// The transport layer; `Unknown` when `l3` is no IP.
    pub transport: Transport,
    /// Neighbour discovery or DHCP, never dropped.
    pub essential: bool,
    /// Whether a host sends it that has no address yet.
    pub without_address: bool,
}

/// The network layer of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum L3 {
    /// A frame of another ethertype.
    NotIp,
    /// A header that is cut or contradicts itself.
    Malformed,
    /// A ninth VLAN tag.
    TooManyTags,
    /// IPv4 from this source.
    V4(Ipv4Addr),
    /// IPv6 from this source.
    V6(Ipv6Addr),
}

/// The transport layer, as far as it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A protocol with ports, and both of them.
    Ports {
        /// The protocol's number.
        proto: u8,
        /// The source port.
        src: u16,
        /// The destination port.
        dst: u16,
    },
    /// A fragment that is not the first: the ports were in another packet.
    LaterFragment,
    /// A protocol that has no ports, or hides them.
    NoPorts {
        /// The protocol's number.
        proto: u8,
    },
    /// Ports cut off, or a chain of extension headers that is cut or too long.
    Unknown,
}

impl Decoded {
    fn no_ip(l3: L3) -> Self {
        Self {
            l3,
            transport: Transport::Unknown,
            essential: false,
            without_address: false,
        }
    }
}

/// Decodes an Ethernet frame; `tags_beside` counts VLAN tags that the kernel
/// has already taken out of it.
pub fn decode(frame: &[u8], tags_beside: usize) -> Decoded {
    let mut tags = tags_beside;
    let mut at = 12;
    let ethertype = loop {
        if tags > MAX_TAGS {
            return Decoded::no_ip(L3::TooManyTags);
        }
        let Some(ethertype) = word(frame, at) else {
            return Decoded::no_ip(L3::Malformed);
        };
        at += 2;
        match ethertype {
            // Two bytes of tag control, then the next type.
            0x8100 | 0x88a8 => {
                tags += 1;
                at += 2;
            }
            other => break other,
        }
    };
    match ethertype {
        0x0800 => ip4(&frame[at..]),
        0x86dd => ip6(&frame[at..]),
        _ => Decoded::no_ip(L3::NotIp),
    }
}

fn ip4(bytes: &[u8]) -> Decoded {
    let malformed = Decoded::no_ip(L3::Malformed);
    if bytes.len() < 20 {
        return malformed;
    }
    let header = usize::from(bytes[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    if bytes[0] >> 4 != 4 || header < 20 || header > bytes.len() || total < header {
        return malformed;
    }
    let src = Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
    let field = u16::from_be_bytes([bytes[6], bytes[7]]);
    let (more, offset) = (field & 0x2000 != 0, field & 0x1fff);
    let packet = &bytes[..total.min(bytes.len())];
    let transport = if offset != 0 {
        Transport::LaterFragment
    } else {
        transport(bytes[9], &packet[header..])
    };
    let fragment = more || offset != 0;
    let dhcp = matches!(
        transport,
        Transport::Ports {
            proto: 17,
            src: 67,
            dst: 68
        } | Transport::Ports {
            proto: 17,
            src: 68,
            dst: 67
        }
    );
    let request = matches!(transport, Transport::Ports { dst: 67, .. });
    Decoded {
        l3: L3::V4(src),
        transport,
        essential: dhcp && !fragment,
        without_address: !fragment && ((dhcp && request) || bytes[9] == 2),
    }
}

fn ip6(bytes: &[u8]) -> Decoded {
    if bytes.len() < 40 || bytes[0] >> 4 != 6 {
        return Decoded::no_ip(L3::Malformed);
    }
    let mut src = [0; 16];
    src.copy_from_slice(&bytes[8..24]);
    let payload = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
    let hop_limit = bytes[7];
    let jumbogram = payload == 0 && bytes[6] == 0;
    let end = if jumbogram {
        bytes.len()
    } else {
        bytes.len().min(40 + payload)
    };
    let chain = walk(bytes[6], &bytes[40..end]);
    let essential = !chain.fragment
        && (is_discovery(&chain, hop_limit)
            || matches!(
                chain.transport,
                Transport::Ports {
                    proto: 17,
                    src: 546,
                    dst: 547
                } | Transport::Ports {
                    proto: 17,
                    src: 547,
                    dst: 546
                }
            ));
    let icmp = chain.transport == Transport::NoPorts { proto: 58 } && !chain.fragment;
    let without_address = icmp
        && match chain.upper {
            [133 | 135, 0, ..] => hop_limit == 255,
            [130..=132 | 143, _, ..] => hop_limit == 1,
            _ => false,
        };
    Decoded {
        l3: L3::V6(src.into()),
        transport: chain.transport,
        essential,
        without_address,
    }
}

/// An IPv6 packet behind its fixed header.
struct Chain<'a> {
    transport: Transport,
    /// A fragment header was seen, even one of a packet that is whole.
    fragment: bool,
    /// The transport header and all behind it.
    upper: &'a [u8],
}

fn walk(first: u8, mut rest: &[u8]) -> Chain<'_> {
    let mut next = first;
    let mut seen = 0;
    let mut fragment = false;
    loop {
        let len = match next {
            // Hop-by-hop, routing, destination, mobility, HIP, shim6.
            0 | 43 | 60 | 135 | 139 | 140 => byte(rest, 1).map(|n| (n + 1) * 8),
            51 => byte(rest, 1).map(|n| (n + 2) * 4),
            44 => Some(8),
            _ => {
                return Chain {
                    transport: transport(next, rest),
                    fragment,
                    upper: rest,
                };
            }
        };
        seen += 1;
        fragment |= next == 44;
        let unknown = Chain {
            transport: Transport::Unknown,
            fragment,
            upper: &[],
        };
        let Some(len) = len else { return unknown };
        if seen > MAX_EXTENSIONS || len > rest.len() {
            return unknown;
        }
        if next == 44 && u16::from_be_bytes([rest[2], rest[3]]) >> 3 != 0 {
            return Chain {
                transport: Transport::LaterFragment,
                fragment,
                upper: &[],
            };
        }
        next = rest[0];
        rest = &rest[len..];
    }
}

fn is_discovery(chain: &Chain<'_>, hop_limit: u8) -> bool {
    chain.transport == Transport::NoPorts { proto: 58 }
        && hop_limit == 255
        && matches!(chain.upper, [133..=137, 0, ..])
}

fn transport(proto: u8, bytes: &[u8]) -> Transport {
    match proto {
        // TCP, UDP, DCCP, SCTP, UDP-Lite: the ports come first in all of them.
        6 | 17 | 33 | 132 | 136 => match (word(bytes, 0), word(bytes, 2)) {
            (Some(src), Some(dst)) => Transport::Ports { proto, src, dst },
            _ => Transport::Unknown,
        },
        _ => Transport::NoPorts { proto },
    }
}

fn byte(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at).map(|b| usize::from(*b))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

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
    use crate::packet::{Packet, proto};

    const A4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
    const B4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const A6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
    const B6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

    fn four() -> Packet {
        Packet::eth().ip4(A4, B4)
    }

    fn six() -> Packet {
        Packet::eth().ip6(A6, B6)
    }

    fn of(packet: &Packet) -> Decoded {
        decode(&packet.build(), 0)
    }

    const SSH: Transport = Transport::Ports {
        proto: 6,
        src: 1000,
        dst: 22,
    };

    #[test]
    fn link_layer() {
        let tagged = |n: usize| (0..n).fold(Packet::eth(), |p, n| p.vlan(n as u16));
        let ssh = |packet: Packet| packet.ip4(A4, B4).tcp(1000, 22).build();
        for (tags, beside, l3) in [
            (0, 0, L3::V4(A4)),
            (1, 0, L3::V4(A4)),
            (2, 0, L3::V4(A4)),
            (8, 0, L3::V4(A4)),
            (9, 0, L3::TooManyTags),
            (1, 1, L3::V4(A4)),
            (7, 1, L3::V4(A4)),
            (8, 1, L3::TooManyTags),
            (0, 9, L3::TooManyTags),
        ] {
            assert_eq!(
                decode(&ssh(tagged(tags)), beside).l3,
                l3,
                "{tags} + {beside}"
            );
        }
        assert_eq!(
            decode(&ssh(Packet::eth().qinq(1).vlan(2)), 0).transport,
            SSH
        );
        assert_eq!(
            of(&Packet::eth().ethertype(0x0806).payload_len(28)).l3,
            L3::NotIp
        );
        assert_eq!(
            of(&Packet::eth().ethertype(46).payload_len(46)).l3,
            L3::NotIp
        );
        assert_eq!(decode(&[0; 13], 0).l3, L3::Malformed);
        assert_eq!(
            decode(&ssh(Packet::eth().vlan(1))[..17], 0).l3,
            L3::Malformed
        );
    }

    #[test]
    fn ip4_headers() {
        let l3 = |packet: &Packet| of(packet).l3;
        assert_eq!(of(&four().tcp(1000, 22)).transport, SSH);
        assert_eq!(of(&four().options(&[1; 40]).tcp(1000, 22)).transport, SSH);
        assert_eq!(l3(&four().ihl(4).tcp(1, 2)), L3::Malformed);
        assert_eq!(l3(&four().version(6).tcp(1, 2)), L3::Malformed);
        assert_eq!(
            l3(&four().ihl(15).tcp(1, 2)),
            L3::Malformed,
            "header longer than the frame"
        );
        assert_eq!(l3(&four().length(19).tcp(1, 2)), L3::Malformed);
        assert_eq!(l3(&four().length(0).tcp(1, 2)), L3::Malformed);
        assert_eq!(
            of(&four().length(20).tcp(1, 2)).transport,
            Transport::Unknown
        );
        assert_eq!(
            of(&four().length(23).tcp(1, 2)).transport,
            Transport::Unknown
        );
        assert_eq!(of(&four().length(24).tcp(1000, 22)).transport, SSH);
        assert_eq!(of(&four().length(9000).tcp(1000, 22)).transport, SSH);
        assert_eq!(of(&four().bad_checksum().tcp(1000, 22)).transport, SSH);
        assert_eq!(
            of(&four().icmp(8, 0)).transport,
            Transport::NoPorts { proto: 1 }
        );
        assert_eq!(
            of(&four().auth().tcp(1, 2)).transport,
            Transport::NoPorts { proto: 51 }
        );
        assert_eq!(of(&four().fragment(0, true).tcp(1000, 22)).transport, SSH);
        let later = four().protocol(6).fragment(1, true).payload_len(40);
        assert_eq!(of(&later).transport, Transport::LaterFragment);
    }

    #[test]
    fn every_protocol_with_ports() {
        for (packet, proto) in [
            (four().udp(1, 2), 17),
            (four().sctp(1, 2), 132),
            (four().dccp(1, 2), 33),
            (four().udplite(1, 2), 136),
        ] {
            assert_eq!(
                of(&packet).transport,
                Transport::Ports {
                    proto,
                    src: 1,
                    dst: 2
                }
            );
        }
    }

    #[test]
    fn cut_at_every_byte() {
        let whole = four().tcp(1000, 22).build();
        for n in 0..whole.len() {
            let seen = decode(&whole[..n], 0);
            match n {
                0..34 => assert_eq!(seen.l3, L3::Malformed, "{n}"),
                34..38 => assert_eq!((seen.l3, seen.transport), (L3::V4(A4), Transport::Unknown)),
                _ => assert_eq!((seen.l3, seen.transport), (L3::V4(A4), SSH), "{n}"),
            }
        }
        let whole = six().hop_by_hop().auth().tcp(1000, 22).build();
        for n in 0..whole.len() {
            let seen = decode(&whole[..n], 0);
            match n {
                0..54 => assert_eq!(seen.l3, L3::Malformed, "{n}"),
                54..90 => assert_eq!((seen.l3, seen.transport), (L3::V6(A6), Transport::Unknown)),
                _ => assert_eq!((seen.l3, seen.transport), (L3::V6(A6), SSH), "{n}"),
            }
        }
    }

    #[test]
    fn ip6_chains() {
        let chain = |n: usize| (0..n).fold(six(), |p, _| p.destination()).tcp(1000, 22);
        for n in 0..=6 {
            assert_eq!(of(&chain(n)).transport, SSH, "{n}");
        }
        assert_eq!(of(&chain(7)).transport, Transport::Unknown);
        let all = six().hop_by_hop().routing().fragment(0, true).auth();
        let all = all
            .extension(proto::MOBILITY, &[0; 14])
            .extension(proto::HIP, &[0; 6]);
        assert_eq!(of(&all.clone().tcp(1000, 22)).transport, SSH);
        assert_eq!(
            of(&all.extension(proto::SHIM6, &[]).tcp(1, 2)).transport,
            Transport::Unknown
        );
        assert_eq!(
            of(&six().extension(proto::SHIM6, &[]).tcp(1000, 22)).transport,
            SSH
        );
        for proto in [proto::NO_NEXT, proto::ESP, 200] {
            let packet = six().destination().protocol(proto).payload_len(30);
            assert_eq!(of(&packet).transport, Transport::NoPorts { proto });
        }
        let later = six().fragment(5, false).protocol(6).payload_len(30);
        assert_eq!(of(&later).transport, Transport::LaterFragment);
        assert_eq!(of(&later.truncate(61)).transport, Transport::Unknown);
        assert_eq!(of(&six().version(4).tcp(1, 2)).l3, L3::Malformed);
        // The packet ends where its length says, a jumbogram with its frame.
        assert_eq!(of(&six().length(3).tcp(1, 2)).transport, Transport::Unknown);
        assert_eq!(of(&six().length(0).tcp(1, 2)).transport, Transport::Unknown);
        assert_eq!(of(&six().length(4).tcp(1000, 22)).transport, SSH);
        assert_eq!(
            of(&six().length(0).hop_by_hop().tcp(1000, 22)).transport,
            SSH
        );
    }

    #[test]
    fn essential_packets() {
        for (name, packet, essential) in [
            ("solicitation", six().solicitation(B6), true),
            ("advertisement", six().advertisement(B6), true),
            ("redirect", six().ttl(255).icmp6(137, 0), true),
            (
                "behind options",
                six().ttl(255).destination().icmp6(133, 0),
                true,
            ),
            ("hop limit 254", six().solicitation(B6).ttl(254), false),
            ("code 1", six().ttl(255).icmp6(135, 1), false),
            ("type 132", six().ttl(255).icmp6(132, 0), false),
            ("type 138", six().ttl(255).icmp6(138, 0), false),
            (
                "whole, fragment header",
                six().fragment(0, false).solicitation(B6),
                false,
            ),
            (
                "cut after the type",
                six().ttl(255).icmp6(135, 0).truncate(55),
                false,
            ),
            ("as ICMP over IPv4", four().ttl(255).icmp(135, 0), false),
            ("dhcp request", four().udp(68, 67), true),
            ("dhcp reply", four().udp(67, 68), true),
            ("dhcp relay", four().udp(67, 67), false),
            ("dhcp over tcp", four().tcp(68, 67), false),
            ("dhcp fragment", four().fragment(0, true).udp(68, 67), false),
            ("dhcpv6", six().udp(546, 547), true),
            ("dhcpv6 reply", six().udp(547, 546), true),
            ("dhcpv6 ports over ipv4", four().udp(547, 546), false),
            ("dhcp ports over ipv6", six().udp(67, 68), false),
        ] {
            assert_eq!(of(&packet).essential, essential, "{name}");
        }
    }

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

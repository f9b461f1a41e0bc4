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

#[cfg(test)]
mod tests;
mod verdict;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use verdict::{Allow, PortRange, Prefix, Reason, Scope, Table, Verdict, reference_verdict};

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

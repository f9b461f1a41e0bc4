//! What leaves for a real, byte by byte: the frame itself, an outer packet (RFC 2003, 2473,
//! 4213, 6935; GUE variant 1), or what the client is told of a packet that is too big for it
//! (RFC 1191, 4443).

use std::net::IpAddr;

use super::{
    Arrival, Real, Tunnel,
    packet::{ETH, Packet, Part},
};
use crate::{
    Reason,
    checksum::{checksum, pseudo_header},
};

/// Bytes of a packet that is too big in what is said of it.
const QUOTE: usize = 512;
const TTL: u8 = 64;

/// What becomes of a frame, once its real is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The host's stack gets it, as it came.
    Host(Reason),
    /// Nobody gets it.
    Dropped(Reason),
    /// This leaves, counted by this reason.
    Sent(Reason, Departure),
    /// Dropped as [`Reason::TooBig`]. `Some`: this goes back to the client, unless too many
    /// were told.
    TooBig(Option<Departure>),
}

/// A frame that leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The index of the interface.
    pub ifindex: u32,
    /// The frame's bytes. Those that spread flows over ways are zero: see [`Self::spread`].
    pub frame: Vec<u8>,
    /// Where those bits are, and whose are the same.
    pub spread: Option<Spread>,
}

/// The bits of an outer header that depend on the flow within: the lower 20 of IPv6's flow
/// label, and the lower 14 of the UDP source port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    has_label: bool,
    port_at: Option<usize>,
    /// Equal for all packets of one flow, but for its fragments.
    pub key: (IpAddr, IpAddr, Option<u32>),
}

impl Departure {
    /// The bits of a frame that leaves which depend on its flow, if all others are as they
    /// must be.
    pub fn spread(&self, sent: &[u8]) -> Option<u64> {
        let mut rest = sent.to_vec();
        let mut bits = 0;
        let mut take = |at: usize, mask: u8| {
            if let Some(byte) = rest.get_mut(at) {
                bits = bits << 8 | u64::from(*byte & mask);
                *byte &= !mask;
            }
        };
        if let Some(spread) = &self.spread {
            if spread.has_label {
                take(ETH + 1, 0x0f);
                take(ETH + 2, 0xff);
                take(ETH + 3, 0xff);
            }
            if let Some(at) = spread.port_at {
                take(at, 0x3f);
                take(at + 1, 0xff);
            }
        }
        (rest == self.frame).then_some(bits)
    }
}

/// Is the frame addressed to this host, as far as it can be known?
pub(super) fn is_here(packet: &Packet<'_>, arrival: &Arrival, real: &Real) -> bool {
    let dest = &packet.frame[..6];
    if arrival.ifindex == real.ifindex || dest == real.source {
        return dest == real.source;
    }
    // A frame to a group of hosts is routed by none of them (RFC 1812 5.3.4).
    arrival.mac.map_or(dest[0] & 1 == 0, |mac| dest == mac)
}

/// What becomes of a packet whose real is this one. `passes`: the reason by which it would
/// leave without a pool.
pub(super) fn fate(packet: &Packet<'_>, arrival: &Arrival, real: &Real, passes: Reason) -> Fate {
    let host = Fate::Host(passes);
    if !is_here(packet, arrival, real) {
        return host;
    }
    let Some(tunnel) = &real.tunnel else {
        // A tag of VLAN 0 has a priority only.
        if packet.tag.unwrap_or(0) != real.vlan || packet.hops() < 2 {
            return host;
        }
        let ip_at = packet.frame.len() - packet.ip.len();
        let mut frame = [&real.dest, &real.source, &packet.frame[12..ip_at]].concat();
        frame.extend(one_hop_less(packet));
        let departure = Departure {
            ifindex: real.ifindex,
            frame,
            spread: None,
        };
        return Fate::Sent(passes, departure);
    };
    // Its tag would have to go.
    if packet.tag.is_some() {
        return host;
    }
    if packet.len() < packet.head() || packet.len() > packet.ip.len() {
        return Fate::Host(Reason::Malformed);
    }
    if packet.hops() < 2 {
        return host;
    }
    let fits = (tunnel.mtu as usize).saturating_sub(overhead(tunnel));
    if packet.len() > fits {
        return Fate::TooBig(too_big(packet, arrival, fits));
    }
    Fate::Sent(passes, outer(packet, real, tunnel))
}

/// The packet after one hop. A wrong checksum of IPv4 stays wrong (RFC 1624, equation 3).
fn one_hop_less(packet: &Packet<'_>) -> Vec<u8> {
    let mut ip = packet.ip.to_vec();
    if !packet.is_v4 {
        ip[7] -= 1;
        return ip;
    }
    let field = |ip: &[u8], at: usize| u32::from(ip[at]) << 8 | u32::from(ip[at + 1]);
    let before = field(&ip, 8);
    ip[8] -= 1;
    let mut sum = (field(&ip, 10) ^ 0xffff) + (before ^ 0xffff) + field(&ip, 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    ip
}

/// Bytes of an outer header.
fn overhead(tunnel: &Tunnel) -> usize {
    let ip = if tunnel.dest.is_ipv4() { 20 } else { 40 };
    ip + if tunnel.gue_port.is_some() { 8 } else { 0 }
}

/// An IP header before `len` bytes; what may follow the flow within is zero.
fn ip_header(class: u8, len: usize, next: u8, source: IpAddr, dest: IpAddr) -> Vec<u8> {
    let mut ip = Vec::new();
    match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            ip.extend([0x45, class]);
            ip.extend((20 + len as u16).to_be_bytes());
            // No identification, for it may not be fragmented (RFC 6864).
            ip.extend([0, 0, 0x40, 0, TTL, next, 0, 0]);
            ip.extend(source.octets());
            ip.extend(dest.octets());
            let sum = checksum(&[&ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            ip.extend([0x60 | class >> 4, class << 4, 0, 0]);
            ip.extend((len as u16).to_be_bytes());
            ip.extend([next, TTL]);
            ip.extend(source.octets());
            ip.extend(dest.octets());
        }
        _ => unreachable!("addresses of two families in one header"),
    }
    ip
}

fn ethernet(dest: &[u8], source: &[u8], is_v4: bool) -> Vec<u8> {
    let kind: [u8; 2] = if is_v4 { [8, 0] } else { [0x86, 0xdd] };
    [dest, source, &kind].concat()
}

/// The outer packet, with the padding of the frame behind it.
fn outer(packet: &Packet<'_>, real: &Real, tunnel: &Tunnel) -> Departure {
    let is_v4 = tunnel.dest.is_ipv4();
    let class = match packet.is_v4 {
        true => packet.ip[1],
        false => packet.ip[0] << 4 | packet.ip[1] >> 4,
    };
    let within = if packet.is_v4 { 4 } else { 41 };
    let mut udp = Vec::new();
    if let Some(port) = tunnel.gue_port {
        udp.extend([0xc0, 0]);
        udp.extend(port.to_be_bytes());
        udp.extend((8 + packet.len() as u16).to_be_bytes());
        udp.extend([0, 0]);
    }
    let next = if udp.is_empty() { within } else { 17 };
    let len = udp.len() + packet.len();
    // Without ECN: who takes it off may not know how to hand congestion on (RFC 6040).
    let mut frame = ethernet(&real.dest, &real.source, is_v4);
    frame.extend(ip_header(class & !3, len, next, tunnel.source, tunnel.dest));
    let port_at = (!udp.is_empty()).then_some(frame.len());
    frame.extend(&udp);
    frame.extend(one_hop_less(packet));
    let spread = packet.addrs().map(|(source, dest)| {
        let ports = match packet.part {
            Part::Whole(flow) => Some(u32::from(flow.client_port) << 16 | u32::from(flow.port)),
            _ => None,
        };
        Spread {
            has_label: !is_v4,
            port_at,
            key: (source, dest, ports),
        }
    });
    Departure {
        ifindex: real.ifindex,
        frame,
        spread,
    }
}

/// The answer to the sender of a packet that is too big; `None`: nothing.
fn too_big(packet: &Packet<'_>, arrival: &Arrival, fits: usize) -> Option<Departure> {
    let (source, dest) = packet.addrs()?;
    // Of an error nobody is told (RFC 1122 3.2.2, RFC 4443 2.4), nor is anybody whom no
    // answer reaches.
    if matches!(packet.part, Part::Error(_)) || matches!(packet.protocol(), 1 | 58) {
        return None;
    }
    if packet.len() < QUOTE || !is_answerable(source) {
        return None;
    }
    // Of IPv4 only the first fragment is answered for (RFC 1122 3.2.2).
    if packet.is_v4 && matches!(packet.part, Part::LaterFragment(_)) {
        return None;
    }
    if arrival.is_skb && is_damaged(packet, source, dest) {
        return None;
    }
    let mut message = match packet.is_v4 {
        true => vec![3, 4, 0, 0, 0, 0],
        false => vec![2, 0, 0, 0, 0, 0],
    };
    message.extend((fits as u16).to_be_bytes());
    message.extend(&packet.ip[..QUOTE]);
    let sum = match packet.is_v4 {
        true => checksum(&[&message]),
        false => checksum(&[&pseudo_header(dest, source, 58, message.len()), &message]),
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let next = if packet.is_v4 { 1 } else { 58 };
    let mut frame = ethernet(&packet.frame[6..12], &packet.frame[..6], packet.is_v4);
    frame.extend(ip_header(0, message.len(), next, dest, source));
    frame.extend(message);
    Some(Departure {
        ifindex: arrival.ifindex,
        frame,
        spread: None,
    })
}

/// Is the address one host's, which is reached beyond its own link?
fn is_answerable(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => !matches!(addr.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(addr) => {
            addr.to_bits() >> 104 != 0 && !addr.is_unicast_link_local() && !addr.is_multicast()
        }
    }
}

/// Does the checksum of TCP or UDP say that the packet was changed on its way?
fn is_damaged(packet: &Packet<'_>, source: IpAddr, dest: IpAddr) -> bool {
    let Part::Whole(_) = packet.part else {
        return false;
    };
    let segment = &packet.ip[packet.head()..packet.len()];
    let protocol = packet.protocol();
    if packet.is_v4 && protocol == 17 && segment.get(6..8) == Some(&[0, 0]) {
        return false;
    }
    let pseudo = pseudo_header(source, dest, protocol, segment.len());
    checksum(&[&pseudo, segment]) != 0
}

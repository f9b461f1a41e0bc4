//! Builds Ethernet frames, right or wrong on purpose: layers are named from
//! the outside in, lengths and checksums are filled in unless overridden.
//!
//! ```
//! use weir_testkit::packet::Packet;
//! let frame = Packet::eth().vlan(5).ip4([192, 0, 2, 7], [192, 0, 2, 1]).tcp(1234, 22).build();
//! assert_eq!(frame.len(), 14 + 4 + 20 + 20);
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol and next header numbers (IANA).
pub mod proto {
    #![allow(missing_docs)]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const DCCP: u8 = 33;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const NO_NEXT: u8 = 59;
    pub const DESTINATION: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const MOBILITY: u8 = 135;
    pub const UDPLITE: u8 = 136;
    pub const HIP: u8 = 139;
    pub const SHIM6: u8 = 140;
}

/// TCP flags, to be or-ed.
pub mod flag {
    #![allow(missing_docs)]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

const MIN_FRAME: usize = 60;

#[derive(Debug, Clone)]
enum Layer {
    Tag { tpid: u16, tci: u16 },
    Ip4(Ip4),
    Ip6(Ip6),
    Extension { number: u8, body: Vec<u8> },
    Fragment { offset: u16, more: bool, id: u32 },
    Auth { icv: usize },
    Transport(Transport),
}

#[derive(Debug, Clone)]
struct Ip4 {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    ttl: u8,
    id: u16,
    /// Flags and offset as on the wire.
    fragment: u16,
    options: Vec<u8>,
    version: u8,
    ihl: Option<u8>,
    length: Option<u16>,
    bad_checksum: bool,
}

#[derive(Debug, Clone)]
struct Ip6 {
    src: Ipv6Addr,
    dst: Ipv6Addr,
    hop_limit: u8,
    version: u8,
    length: Option<u16>,
}

#[derive(Debug, Clone)]
struct Transport {
    number: u8,
    /// The header with its checksum zero.
    header: Vec<u8>,
    bad_checksum: bool,
}

/// A frame under construction. Setters apply to the layer named last (or the
/// IP header named last, for IP fields) and do nothing where there is none.
#[derive(Debug, Clone)]
pub struct Packet {
    src: [u8; 6],
    dst: [u8; 6],
    layers: Vec<Layer>,
    ethertype: Option<u16>,
    protocol: Option<u8>,
    payload: Vec<u8>,
    pad_to: usize,
    cut_at: usize,
}

impl Packet {
    /// Ethernet between two made-up unicast stations.
    pub fn eth() -> Self {
        Self::eth_between(
            [0x02, 0x77, 0x6c, 0xff, 0, 1],
            [0x02, 0x77, 0x6c, 0xff, 0, 2],
        )
    }

    /// Ethernet from one MAC address to another.
    pub fn eth_between(src: [u8; 6], dst: [u8; 6]) -> Self {
        Self {
            src,
            dst,
            layers: Vec::new(),
            ethertype: None,
            protocol: None,
            payload: Vec::new(),
            pad_to: 0,
            cut_at: usize::MAX,
        }
    }

    /// An 802.1Q tag with this VLAN id.
    pub fn vlan(self, id: u16) -> Self {
        self.tag(0x8100, id & 0x0fff)
    }

    /// An 802.1ad service tag with this VLAN id.
    pub fn qinq(self, id: u16) -> Self {
        self.tag(0x88a8, id & 0x0fff)
    }

    /// A tag of any type and control information.
    pub fn tag(self, tpid: u16, tci: u16) -> Self {
        self.with(Layer::Tag { tpid, tci })
    }

    /// An IPv4 or IPv6 header by the kind of addresses; of two kinds, IPv6
    /// with the IPv4 one mapped.
    pub fn ip(self, src: IpAddr, dst: IpAddr) -> Self {
        let wide = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.ip4(src, dst),
            (src, dst) => self.ip6(wide(src), wide(dst)),
        }
    }

    /// An IPv4 header: TTL 64, no options, not a fragment.
    pub fn ip4(self, src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Self {
        self.with(Layer::Ip4(Ip4 {
            src: src.into(),
            dst: dst.into(),
            ttl: 64,
            id: 0,
            fragment: 0,
            options: Vec::new(),
            version: 4,
            ihl: None,
            length: None,
            bad_checksum: false,
        }))
    }

    /// An IPv6 header: hop limit 64.
    pub fn ip6(self, src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Self {
        self.with(Layer::Ip6(Ip6 {
            src: src.into(),
            dst: dst.into(),
            hop_limit: 64,
            version: 6,
            length: None,
        }))
    }

    /// TTL or hop limit.
    pub fn ttl(self, ttl: u8) -> Self {
        self.on_ip(|ip| ip.ttl = ttl, |ip| ip.hop_limit = ttl)
    }

    /// The version field, whatever the header is.
    pub fn version(self, version: u8) -> Self {
        self.on_ip(|ip| ip.version = version, |ip| ip.version = version)
    }

    /// Sets the IPv4 identification.
    pub fn id(self, id: u16) -> Self {
        self.on_ip(|ip| ip.id = id, |_| ())
    }

    /// IPv4 options, padded with zeros to whole words (at most 40 bytes fit).
    pub fn options(self, options: &[u8]) -> Self {
        self.on_ip(|ip| ip.options = options.to_vec(), |_| ())
    }

    /// The IPv4 header length field in words, whatever the header is.
    pub fn ihl(self, words: u8) -> Self {
        self.on_ip(|ip| ip.ihl = Some(words & 0x0f), |_| ())
    }

    /// IPv4 total length or IPv6 payload length, whatever follows.
    pub fn length(self, length: u16) -> Self {
        self.on_ip(|ip| ip.length = Some(length), |ip| ip.length = Some(length))
    }

    /// IPv4's don't-fragment bit.
    pub fn dont_fragment(self) -> Self {
        self.on_ip(|ip| ip.fragment |= 0x4000, |_| ())
    }

    /// A fragment, at an offset in units of eight bytes. On IPv4 it sets the
    /// fields, on IPv6 it adds a fragment header here in the chain. What is
    /// named afterwards follows literally: a later fragment has only payload.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        match self.last_ip() {
            Some(Layer::Ip4(ip)) => {
                ip.fragment = ip.fragment & 0x4000 | u16::from(more) << 13 | offset & 0x1fff;
                self
            }
            _ => self.with(Layer::Fragment {
                offset,
                more,
                id: 1,
            }),
        }
    }

    /// An extension header of any number: next header, length in eight-byte
    /// units, then `body`, padded to fit.
    pub fn extension(self, number: u8, body: &[u8]) -> Self {
        self.with(Layer::Extension {
            number,
            body: body.to_vec(),
        })
    }

    /// Hop-by-hop options, nothing but padding.
    pub fn hop_by_hop(self) -> Self {
        self.extension(proto::HOP_BY_HOP, &PAD_N)
    }

    /// Destination options, nothing but padding.
    pub fn destination(self) -> Self {
        self.extension(proto::DESTINATION, &PAD_N)
    }

    /// A routing header (type 0) with no segments left.
    pub fn routing(self) -> Self {
        self.extension(proto::ROUTING, &[0; 6])
    }

    /// An authentication header with 12 bytes of check value.
    pub fn auth(self) -> Self {
        self.with(Layer::Auth { icv: 12 })
    }

    /// TCP with SYN set.
    pub fn tcp(self, src: u16, dst: u16) -> Self {
        let mut header = ports(src, dst, 20);
        header[4..8].copy_from_slice(&1_u32.to_be_bytes());
        header[12] = 5 << 4;
        header[13] = flag::SYN;
        header[14..16].copy_from_slice(&0xffff_u16.to_be_bytes());
        self.transport(proto::TCP, header)
    }

    /// Flags of the TCP header.
    pub fn tcp_flags(self, flags: u8) -> Self {
        self.on_transport(proto::TCP, |tcp| tcp.header[13] = flags)
    }

    /// Sequence and acknowledgement numbers of the TCP header.
    pub fn tcp_seq(self, seq: u32, ack: u32) -> Self {
        self.on_transport(proto::TCP, |tcp| {
            tcp.header[4..8].copy_from_slice(&seq.to_be_bytes());
            tcp.header[8..12].copy_from_slice(&ack.to_be_bytes());
        })
    }

    /// Options of the TCP header, padded to whole words, and its window.
    pub fn tcp_options(self, options: &[u8], window: u16) -> Self {
        self.on_transport(proto::TCP, |tcp| {
            tcp.header[14..16].copy_from_slice(&window.to_be_bytes());
            tcp.header.truncate(20);
            tcp.header.extend(options);
            tcp.header.resize(20 + options.len().next_multiple_of(4), 0);
            tcp.header[12] = (tcp.header.len() as u8 / 4) << 4;
        })
    }

    /// Carries UDP with these ports.
    pub fn udp(self, src: u16, dst: u16) -> Self {
        self.transport(proto::UDP, ports(src, dst, 8))
    }

    /// UDP-Lite, the whole packet covered.
    pub fn udplite(self, src: u16, dst: u16) -> Self {
        self.transport(proto::UDPLITE, ports(src, dst, 8))
    }

    /// SCTP's common header, verification tag 1.
    pub fn sctp(self, src: u16, dst: u16) -> Self {
        let mut header = ports(src, dst, 12);
        header[7] = 1;
        self.transport(proto::SCTP, header)
    }

    /// A DCCP request.
    pub fn dccp(self, src: u16, dst: u16) -> Self {
        let mut header = ports(src, dst, 20);
        header[4] = 5;
        header[8] = 1;
        header[15] = 1;
        self.transport(proto::DCCP, header)
    }

    /// ICMP of this type and code, four zero bytes after the checksum.
    pub fn icmp(self, kind: u8, code: u8) -> Self {
        self.transport(proto::ICMP, vec![kind, code, 0, 0, 0, 0, 0, 0])
    }

    /// ICMPv6 of this type and code, four zero bytes after the checksum.
    pub fn icmp6(self, kind: u8, code: u8) -> Self {
        self.transport(proto::ICMPV6, vec![kind, code, 0, 0, 0, 0, 0, 0])
    }

    /// A neighbour solicitation, hop limit 255.
    pub fn solicitation(self, target: impl Into<Ipv6Addr>) -> Self {
        self.ttl(255).icmp6(135, 0).payload(&target.into().octets())
    }

    /// A neighbour advertisement, hop limit 255.
    pub fn advertisement(self, target: impl Into<Ipv6Addr>) -> Self {
        self.ttl(255).icmp6(136, 0).payload(&target.into().octets())
    }

    /// Makes the checksum named last wrong: the transport's, or else IPv4's.
    pub fn bad_checksum(mut self) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Ip4(ip)) => ip.bad_checksum = true,
            Some(Layer::Transport(transport)) => transport.bad_checksum = true,
            _ => (),
        }
        self
    }

    /// The protocol number where no layer of ours follows.
    pub fn protocol(mut self, number: u8) -> Self {
        self.protocol = Some(number);
        self
    }

    /// The ethertype where no IP header follows, or a wrong one before it.
    pub fn ethertype(mut self, ethertype: u16) -> Self {
        self.ethertype = Some(ethertype);
        self
    }

    /// Sets the payload behind the last layer.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// A payload of this many bytes, counting up.
    pub fn payload_len(self, len: usize) -> Self {
        let bytes: Vec<u8> = (0..len).map(|n| (n % 256) as u8).collect();
        self.payload(&bytes)
    }

    /// Zeros behind the packet up to the shortest frame (60 without FCS).
    pub fn pad(self) -> Self {
        self.pad_to(MIN_FRAME)
    }

    /// Zeros behind the packet up to a frame of this length.
    pub fn pad_to(mut self, len: usize) -> Self {
        self.pad_to = len;
        self
    }

    /// Cuts the finished frame to at most this length.
    pub fn truncate(mut self, len: usize) -> Self {
        self.cut_at = len;
        self
    }

    /// The frame's bytes, with lengths and checksums filled in.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.payload.clone();
        let mut next = self.protocol;
        let mut ethertype = None;
        for (at, layer) in self.layers.iter().enumerate().rev() {
            // Written innermost first: `bytes` is all that follows this layer.
            let following = next.unwrap_or(proto::NO_NEXT);
            let header = match layer {
                Layer::Transport(transport) => {
                    next = Some(transport.number);
                    self.sealed(transport, at, &bytes)
                }
                Layer::Extension { number, body } => {
                    next = Some(*number);
                    extension_header(following, body)
                }
                Layer::Fragment { offset, more, id } => {
                    next = Some(proto::FRAGMENT);
                    let field = offset << 3 | u16::from(*more);
                    let mut header = vec![following, 0];
                    header.extend(field.to_be_bytes());
                    header.extend(id.to_be_bytes());
                    header
                }
                Layer::Auth { icv } => {
                    next = Some(proto::AH);
                    let mut header = vec![0; 12 + icv];
                    header[0] = following;
                    header[1] = (header.len() / 4 - 2) as u8;
                    header[7] = 1;
                    header[11] = 1;
                    header
                }
                Layer::Ip4(ip) => {
                    next = Some(proto::IPIP);
                    ethertype = Some(0x0800);
                    ip.header(following, bytes.len())
                }
                Layer::Ip6(ip) => {
                    next = Some(proto::IPV6);
                    ethertype = Some(0x86dd);
                    ip.header(following, bytes.len())
                }
                Layer::Tag { tpid, tci } => {
                    let inner = self.inner_type(at, ethertype);
                    ethertype = Some(*tpid);
                    [tci.to_be_bytes(), inner.to_be_bytes()].concat()
                }
            };
            bytes.splice(0..0, header);
        }
        let outer = match self.layers.first() {
            Some(Layer::Tag { tpid, .. }) => *tpid,
            _ => self.ethertype.or(ethertype).unwrap_or(0x88b5),
        };
        let mut frame = [self.dst, self.src].concat();
        frame.extend(outer.to_be_bytes());
        frame.extend(bytes);
        if frame.len() < self.pad_to {
            frame.resize(self.pad_to, 0);
        }
        frame.truncate(self.cut_at);
        frame
    }

    /// The ethertype that a tag at `at` announces.
    fn inner_type(&self, at: usize, built: Option<u16>) -> u16 {
        match self.layers.get(at + 1) {
            Some(Layer::Tag { tpid, .. }) => *tpid,
            _ => self.ethertype.or(built).unwrap_or(0x88b5),
        }
    }

    /// A transport header with length and checksum filled in.
    fn sealed(&self, transport: &Transport, at: usize, payload: &[u8]) -> Vec<u8> {
        let mut header = transport.header.clone();
        let len = header.len() + payload.len();
        let checksum_at = match transport.number {
            proto::TCP => 16,
            proto::UDP | proto::UDPLITE | proto::DCCP => 6,
            proto::SCTP => 8,
            _ => 2,
        };
        if transport.number == proto::UDP {
            header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        }
        if transport.number == proto::SCTP {
            let mut sum = crc32c(&[&header[..], payload].concat());
            if transport.bad_checksum {
                sum ^= 0xffff;
            }
            header[checksum_at..checksum_at + 4].copy_from_slice(&sum.to_le_bytes());
            return header;
        }
        let mut covered = match transport.number {
            proto::ICMP => Vec::new(),
            number => self.pseudo_header(at, number, len),
        };
        covered.extend(&header);
        covered.extend(payload);
        let mut sum = checksum(&covered);
        if sum == 0 && matches!(transport.number, proto::UDP | proto::UDPLITE) {
            sum = 0xffff;
        }
        if transport.bad_checksum {
            sum ^= 0x5555;
        }
        header[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
        header
    }

    /// RFC 9293 section 3.1 and RFC 8200 section 8.1; nothing without IP.
    fn pseudo_header(&self, at: usize, number: u8, len: usize) -> Vec<u8> {
        let ip = self.layers[..at]
            .iter()
            .rev()
            .find(|l| matches!(l, Layer::Ip4(_) | Layer::Ip6(_)));
        let mut bytes = Vec::with_capacity(40);
        match ip {
            Some(Layer::Ip4(ip)) => {
                bytes.extend(ip.src.octets());
                bytes.extend(ip.dst.octets());
                bytes.extend([0, number]);
                bytes.extend((len as u16).to_be_bytes());
            }
            Some(Layer::Ip6(ip)) => {
                bytes.extend(ip.src.octets());
                bytes.extend(ip.dst.octets());
                bytes.extend((len as u32).to_be_bytes());
                bytes.extend([0, 0, 0, number]);
            }
            _ => (),
        }
        bytes
    }

    fn with(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    fn transport(self, number: u8, header: Vec<u8>) -> Self {
        self.with(Layer::Transport(Transport {
            number,
            header,
            bad_checksum: false,
        }))
    }

    fn last_ip(&mut self) -> Option<&mut Layer> {
        self.layers
            .iter_mut()
            .rev()
            .find(|l| matches!(l, Layer::Ip4(_) | Layer::Ip6(_)))
    }

    fn on_ip(mut self, four: impl FnOnce(&mut Ip4), six: impl FnOnce(&mut Ip6)) -> Self {
        match self.last_ip() {
            Some(Layer::Ip4(ip)) => four(ip),
            Some(Layer::Ip6(ip)) => six(ip),
            _ => (),
        }
        self
    }

    fn on_transport(mut self, number: u8, set: impl FnOnce(&mut Transport)) -> Self {
        match self.layers.last_mut() {
            Some(Layer::Transport(transport)) if transport.number == number => set(transport),
            _ => (),
        }
        self
    }
}

/// A PadN option of six bytes.
const PAD_N: [u8; 6] = [1, 4, 0, 0, 0, 0];

impl Ip4 {
    fn header(&self, protocol: u8, payload: usize) -> Vec<u8> {
        let options = self.options.len().next_multiple_of(4).min(40);
        let len = 20 + options;
        let ihl = self.ihl.unwrap_or((len / 4) as u8);
        let total = self.length.unwrap_or((len + payload) as u16);
        let mut header = vec![0; len];
        header[0] = self.version << 4 | ihl;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        header[6..8].copy_from_slice(&self.fragment.to_be_bytes());
        header[8] = self.ttl;
        header[9] = protocol;
        header[12..16].copy_from_slice(&self.src.octets());
        header[16..20].copy_from_slice(&self.dst.octets());
        let given = self.options.len().min(options);
        header[20..20 + given].copy_from_slice(&self.options[..given]);
        let mut sum = checksum(&header);
        if self.bad_checksum {
            sum ^= 0x5555;
        }
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }
}

impl Ip6 {
    fn header(&self, next: u8, payload: usize) -> Vec<u8> {
        let length = self.length.unwrap_or(payload as u16);
        let mut header = vec![self.version << 4, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([next, self.hop_limit]);
        header.extend(self.src.octets());
        header.extend(self.dst.octets());
        header
    }
}

fn extension_header(next: u8, body: &[u8]) -> Vec<u8> {
    let len = (2 + body.len()).next_multiple_of(8);
    let mut header = vec![0; len];
    header[0] = next;
    header[1] = (len / 8 - 1) as u8;
    header[2..2 + body.len()].copy_from_slice(body);
    header
}

fn ports(src: u16, dst: u16, len: usize) -> Vec<u8> {
    let mut header = vec![0; len];
    header[..2].copy_from_slice(&src.to_be_bytes());
    header[2..4].copy_from_slice(&dst.to_be_bytes());
    header
}

/// The Internet checksum (RFC 1071), ready to be stored.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u64::from(u16::from_be_bytes([pair[0], low]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// CRC-32C (RFC 9260 appendix A), stored in SCTP least significant byte first.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    const A4: [u8; 4] = [192, 0, 2, 7];
    const B4: [u8; 4] = [192, 0, 2, 1];
    const A6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 7];
    const B6: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];

    #[test]
    fn checksum_of_rfc_1071_section_3() {
        let sum = !checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum, 0xddf2);
        // An odd byte counts as the high half of a word.
        assert_eq!(!checksum(&[0x00, 0x01, 0xf2]), 0xf201);
    }

    #[test]
    fn crc32c_of_rfc_3720_appendix_b_4() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        for (bytes, crc) in [
            (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (up, [0x4e, 0x79, 0xdd, 0x46]),
            (down, [0x5c, 0xdb, 0x3f, 0x11]),
        ] {
            assert_eq!(crc32c(&bytes).to_le_bytes(), crc);
        }
    }

    /// A header seen in the wild, quoted widely for its checksum 0xb861.
    #[test]
    fn ip4_header_checksum() {
        let mut udp = Packet::eth().ip4([192, 168, 0, 1], [192, 168, 0, 199]);
        udp = udp.dont_fragment().protocol(17).length(0x73);
        assert_eq!(udp.build()[24..26], [0xb8, 0x61]);
    }

    /// A receiver's check: the sum over pseudo header and segment is zero.
    fn verifies(packet: &Packet, number: u8, at: usize) -> bool {
        let frame = packet.build();
        let segment = &frame[at..];
        let last = packet.layers.len() - 1;
        let mut covered = match number {
            proto::ICMP => Vec::new(),
            number => packet.pseudo_header(last, number, segment.len()),
        };
        covered.extend(segment);
        checksum(&covered) == 0
    }

    #[test]
    fn transport_checksums_verify() {
        for len in [0, 1, 2, 33, 1400, 8900] {
            let four = || Packet::eth().ip4(A4, B4);
            let six = || Packet::eth().ip6(A6, B6);
            for (name, packet, number, at) in [
                ("tcp4", four().tcp(1, 22), proto::TCP, 34),
                ("udp4", four().udp(1, 53), proto::UDP, 34),
                ("udplite4", four().udplite(1, 53), proto::UDPLITE, 34),
                ("dccp4", four().dccp(1, 53), proto::DCCP, 34),
                ("icmp4", four().icmp(8, 0), proto::ICMP, 34),
                ("tcp6", six().tcp(1, 22), proto::TCP, 54),
                ("udp6", six().udp(1, 53), proto::UDP, 54),
                ("icmp6", six().icmp6(128, 0), proto::ICMPV6, 54),
                (
                    "tcp6 chain",
                    six().hop_by_hop().auth().tcp(1, 22),
                    proto::TCP,
                    54 + 8 + 24,
                ),
            ] {
                let packet = packet.payload_len(len);
                assert!(verifies(&packet, number, at), "{name} with {len} bytes");
                assert!(
                    !verifies(&packet.bad_checksum(), number, at),
                    "{name} made bad"
                );
            }
        }
    }

    /// UDP from RFC 768: a sum of zero is sent as all ones.
    #[test]
    fn udp_never_sends_checksum_zero() {
        let zero = |payload: [u8; 2]| {
            Packet::eth()
                .ip4(A4, B4)
                .udp(1, 2)
                .payload(&payload)
                .build()
        };
        let plain = zero([0, 0]);
        let sum = [plain[40], plain[41]];
        assert_eq!(zero(sum)[40..42], [0xff, 0xff]);
    }

    #[test]
    fn layers_announce_each_other() {
        let frame = Packet::eth()
            .qinq(7)
            .vlan(5)
            .ip6(A6, B6)
            .hop_by_hop()
            .fragment(0, true)
            .tcp(1, 2);
        let frame = frame.build();
        assert_eq!(frame[12..22], [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x86, 0xdd]);
        let ip = &frame[22..];
        assert_eq!(ip[4..6], 36_u16.to_be_bytes(), "payload length");
        assert_eq!(
            (ip[6], ip[40], ip[48]),
            (proto::HOP_BY_HOP, proto::FRAGMENT, proto::TCP)
        );
        assert_eq!(
            ip[41..48],
            [0, 1, 4, 0, 0, 0, 0],
            "hop-by-hop: one unit, PadN"
        );
        assert_eq!(
            ip[48..56],
            [6, 0, 0, 1, 0, 0, 0, 1],
            "fragment: offset 0, more"
        );
    }

    #[test]
    fn wrong_on_purpose() {
        let frame = Packet::eth()
            .ip4(A4, B4)
            .options(&[1; 5])
            .ihl(3)
            .length(9)
            .udp(1, 2)
            .build();
        assert_eq!(frame[14], 0x43);
        assert_eq!(frame[16..18], [0, 9]);
        assert_eq!(frame.len(), 14 + 28 + 8);
        let frame = Packet::eth()
            .ip4(A4, B4)
            .fragment(3, true)
            .payload_len(8)
            .build();
        assert_eq!(frame[20..22], [0x20, 3]);
        assert_eq!(Packet::eth().ip4(A4, B4).udp(1, 2).pad().build().len(), 60);
        assert_eq!(
            Packet::eth()
                .ip4(A4, B4)
                .udp(1, 2)
                .truncate(30)
                .build()
                .len(),
            30
        );
        assert_eq!(
            Packet::eth().ethertype(0x0806).payload_len(28).build()[12..14],
            [8, 6]
        );
    }
}

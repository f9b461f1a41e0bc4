//! A packet with options put on it, by the rules of `bpf/options/inject.bpf.c`: for packets that
//! come to a program, as by netfilter's queue, each in one piece and with finished checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::Prefix;

use crate::Sections;

const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// Bytes of a header of IPv4 or TCP at most.
const MAX_HEADER: usize = 60;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP, UDP, DCCP, SCTP and UDP-Lite begin with their ports.
const PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];
const FRAGMENT: u8 = 44;
/// Extension headers of IPv6 (those that IANA has).
const EXTENSIONS: [u8; 10] = [0, 43, 44, 51, 60, 135, 139, 140, 253, 254];
const SYN: u8 = 0x02;

/// The packets that get options.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FlowSelector {
    /// Destinations, by address and prefix length; empty: all.
    pub networks: Vec<(IpAddr, u8)>,
    /// The IP protocol.
    pub protocol: Option<u8>,
    /// The source port.
    pub source_port: Option<u16>,
    /// The destination port.
    pub dest_port: Option<u16>,
    /// Whether of TCP only SYN and SYN-ACK are meant.
    pub syn_only: bool,
}

impl FlowSelector {
    fn names(&self, dest: IpAddr, protocol: u8) -> bool {
        if self.protocol.is_some_and(|chosen| chosen != protocol) {
            return false;
        }
        let is_in = |(addr, bits): &(IpAddr, u8)| {
            Prefix::new(*addr, *bits).is_some_and(|prefix| prefix.contains(dest))
        };
        self.networks.is_empty() || self.networks.iter().any(is_in)
    }

    /// Is it of the chosen ports and, if these are chosen, a SYN?
    fn names_flow(&self, protocol: u8, transport: &[u8]) -> bool {
        if protocol == TCP && self.syn_only && transport.get(13).is_none_or(|b| b & SYN == 0) {
            return false;
        }
        let wanted = [self.source_port, self.dest_port];
        if wanted == [None, None] {
            return true;
        }
        let has = |at: usize, port: Option<u16>| {
            port.is_none_or(|port| half(transport, at) == Some(port))
        };
        PORTS.contains(&protocol) && has(0, wanted[0]) && has(2, wanted[1])
    }
}

/// Why a packet of a chosen flow stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// The packet would exceed the MTU with its options.
    TooBig,
    /// The packet is a fragment.
    Fragment,
    /// The header has no room for the options.
    NoRoom,
    /// The packet has extension headers or a surplus area already.
    Other,
    /// The lengths that it says contradict each other.
    Malformed,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rewritten {
    /// The packet with its options.
    Changed(Vec<u8>),
    /// The packet stays as it is, for this reason.
    Left(LeftAlone),
    /// The packet is none of those that get options.
    NotMeant,
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn put_half(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Brings a finished checksum up to date (RFC 1624): words that change, and words that are
/// added, whose number is even.
fn adjust(bytes: &mut [u8], at: usize, changes: &[(u16, u16)], added: &[u8]) {
    let Some(before) = half(bytes, at) else {
        return;
    };
    let mut sum = u64::from(!before);
    for (old, new) in changes {
        sum += u64::from(!old) + u64::from(*new);
    }
    let words = added.as_chunks::<2>().0.iter();
    sum += words
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    put_half(bytes, at, !(sum as u16));
}

/// A packet as far as it counts here.
struct Parts<'p> {
    dest: IpAddr,
    is_v4: bool,
    /// Of what is behind the IP header.
    protocol: u8,
    header: &'p [u8],
    transport: &'p [u8],
    is_fragment: bool,
    is_malformed: bool,
}

impl<'p> Parts<'p> {
    fn read(packet: &'p [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let head: &[u8; IPV4] = packet.first_chunk()?;
                let length = usize::from(head[0] & 15) * 4;
                let stated = usize::from(half(head, 2)?);
                let is_malformed = length < IPV4 || stated != packet.len() || packet.len() < length;
                let at = if is_malformed { IPV4 } else { length };
                let (header, transport) = packet.split_at(at);
                Some(Self {
                    dest: Ipv4Addr::from(*head[16..].first_chunk::<4>()?).into(),
                    is_v4: true,
                    protocol: head[9],
                    header,
                    transport,
                    is_fragment: half(head, 6)? & 0x3fff != 0,
                    is_malformed,
                })
            }
            6 => {
                let head: &[u8; IPV6] = packet.first_chunk()?;
                let (header, transport) = packet.split_at(IPV6);
                Some(Self {
                    dest: Ipv6Addr::from(*head[24..].first_chunk::<16>()?).into(),
                    is_v4: false,
                    protocol: head[6],
                    header,
                    transport,
                    is_fragment: head[6] == FRAGMENT,
                    is_malformed: usize::from(half(head, 4)?) != transport.len(),
                })
            }
            _ => None,
        }
    }

    /// The IP header before a transport of this length, with the options of its layer.
    fn grown_header(&self, sections: &Sections, transport: usize) -> Vec<u8> {
        let mut header = self.header.to_vec();
        if !self.is_v4 {
            let chain = &sections.extensions;
            if !chain.bytes.is_empty() {
                header[6] = chain.first;
                header.extend(chain.before(self.protocol));
            }
            let length = header.len() - IPV6 + transport;
            put_half(&mut header, 4, length as u16);
            return header;
        }
        let (first, stated) = (half(&header, 0), half(&header, 2));
        header.splice(IPV4..IPV4, sections.ip.iter().copied());
        header[0] += (sections.ip.len() / 4) as u8;
        let length = (header.len() + transport) as u16;
        put_half(&mut header, 2, length);
        let changes = [
            (first.unwrap_or(0), half(&header, 0).unwrap_or(0)),
            (stated.unwrap_or(0), length),
        ];
        adjust(&mut header, 10, &changes, &sections.ip);
        header
    }
}

/// A TCP segment with these options, first behind the fixed header: some stacks end theirs with
/// "end of list".
fn grown_tcp(segment: &[u8], options: &[u8]) -> Result<Vec<u8>, LeftAlone> {
    let offset = half(segment, 12).ok_or(LeftAlone::Malformed)?;
    let header = usize::from(offset >> 12) * 4;
    if header < TCP_HEADER || header > segment.len() {
        return Err(LeftAlone::Malformed);
    }
    if header + options.len() > MAX_HEADER {
        return Err(LeftAlone::NoRoom);
    }
    let grown = offset + ((options.len() / 4) << 12) as u16;
    let mut bytes = segment.to_vec();
    bytes.splice(TCP_HEADER..TCP_HEADER, options.iter().copied());
    put_half(&mut bytes, 12, grown);
    let lengths = (segment.len() as u16, bytes.len() as u16);
    adjust(&mut bytes, 16, &[(offset, grown), lengths], options);
    Ok(bytes)
}

/// A UDP datagram with the surplus area behind it. Its own length stays, and its checksum, which
/// goes as far as that.
fn grown_udp(datagram: &[u8], sections: &Sections) -> Result<Vec<u8>, LeftAlone> {
    let length = half(datagram, 4).map_or(0, usize::from);
    if length < UDP_HEADER || length > datagram.len() {
        return Err(LeftAlone::Malformed);
    }
    if length != datagram.len() {
        return Err(LeftAlone::Other);
    }
    let area = match length % 2 {
        0 => &sections.udp_even,
        _ => &sections.udp_odd,
    };
    Ok([datagram, area].concat())
}

/// Puts options on an IP packet that is to leave by an interface of this MTU.
pub fn rewrite(packet: &[u8], sections: &Sections, flows: &FlowSelector, mtu: usize) -> Rewritten {
    let Some(parts) = Parts::read(packet) else {
        return Rewritten::NotMeant;
    };
    let is_extended = !parts.is_v4 && EXTENSIONS.contains(&parts.protocol);
    // What protocol is behind extension headers is not looked for: the packet is none that gets
    // more of them.
    let protocol = match flows.protocol {
        Some(chosen) if is_extended => chosen,
        _ => parts.protocol,
    };
    if !flows.names(parts.dest, protocol) {
        return Rewritten::NotMeant;
    }
    let network = match parts.is_v4 {
        true => sections.ip.len(),
        false => sections.extensions.bytes.len(),
    };
    let of_udp = sections.udp_odd.len();
    let transport = match parts.protocol {
        TCP => sections.tcp.len(),
        UDP => of_udp,
        _ => 0,
    };
    let is_behind = is_extended && (!sections.tcp.is_empty() || of_udp > 0);
    if network == 0 && transport == 0 && !is_behind {
        return Rewritten::NotMeant;
    }
    let left = Rewritten::Left;
    if parts.is_fragment {
        return left(LeftAlone::Fragment);
    }
    if parts.is_malformed {
        return left(LeftAlone::Malformed);
    }
    if is_extended {
        return left(LeftAlone::Other);
    }
    if !flows.names_flow(parts.protocol, parts.transport) {
        return Rewritten::NotMeant;
    }
    if parts.is_v4 && parts.header.len() + network > MAX_HEADER {
        return left(LeftAlone::NoRoom);
    }
    if packet.len() + network + transport > mtu.min(0xffff) {
        return left(LeftAlone::TooBig);
    }
    let grown = match parts.protocol {
        _ if transport == 0 => Ok(parts.transport.to_vec()),
        TCP => grown_tcp(parts.transport, &sections.tcp),
        _ => grown_udp(parts.transport, sections),
    };
    match grown {
        Ok(grown) => {
            let header = parts.grown_header(sections, grown.len());
            Rewritten::Changed([header, grown].concat())
        }
        Err(why) => left(why),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_core::checksum::{checksum, pseudo_header};

    use super::*;

    fn sections(texts: &[&str]) -> Sections {
        let specs: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Sections::of(&specs).unwrap()
    }

    fn addresses(is_v4: bool) -> [IpAddr; 2] {
        match is_v4 {
            true => [[192, 0, 2, 1].into(), [198, 51, 100, 9].into()],
            false => [
                "2001:db8::1".parse().unwrap(),
                "2001:db8:9::9".parse().unwrap(),
            ],
        }
    }

    /// A packet with right checksums, of this protocol and payload.
    fn packet(is_v4: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [source, dest] = addresses(is_v4);
        let mut transport = [40_000_u16.to_be_bytes(), 8080_u16.to_be_bytes()].concat();
        let at = match protocol {
            TCP => {
                transport.extend([0, 0, 0, 7, 0, 0, 0, 0, 0x60, 0x02, 9, 9, 0, 0, 0, 0]);
                transport.extend([2, 4, 5, 180]);
                16
            }
            _ => {
                transport.extend(((8 + payload.len()) as u16).to_be_bytes());
                transport.extend([0, 0]);
                6
            }
        };
        transport.extend(payload);
        let pseudo = pseudo_header(source, dest, protocol, transport.len());
        let sum = checksum(&[&pseudo, &transport]);
        put_half(&mut transport, at, sum);
        let mut header = Vec::new();
        match (source, dest) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                let length = ((IPV4 + transport.len()) as u16).to_be_bytes();
                header.extend([
                    0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol, 0, 0,
                ]);
                header.extend([source.octets(), dest.octets()].concat());
                let sum = checksum(&[&header]);
                put_half(&mut header, 10, sum);
            }
            (IpAddr::V6(source), IpAddr::V6(dest)) => {
                let length = (transport.len() as u16).to_be_bytes();
                header.extend([0x60, 0, 0, 0, length[0], length[1], protocol, 64]);
                header.extend([source.octets(), dest.octets()].concat());
            }
            _ => unreachable!("both are of one family"),
        }
        [header, transport].concat()
    }

    /// What a receiver finds: the extension headers of IPv6, and the transport, whose checksum
    /// is right.
    fn received(packet: &[u8], protocol: u8) -> (Vec<u8>, Vec<u8>) {
        let is_v4 = packet[0] >> 4 == 4;
        let [source, dest] = addresses(is_v4);
        let mut extensions = Vec::new();
        let mut at = match is_v4 {
            true => {
                let header = usize::from(packet[0] & 15) * 4;
                assert_eq!(half(packet, 2), Some(packet.len() as u16));
                assert_eq!(checksum(&[&packet[..header]]), 0);
                header
            }
            false => {
                assert_eq!(half(packet, 4), Some((packet.len() - IPV6) as u16));
                IPV6
            }
        };
        let mut next = if is_v4 { packet[9] } else { packet[6] };
        while next != protocol {
            let length = 8 * (usize::from(packet[at + 1]) + 1);
            extensions.push(next);
            next = packet[at];
            at += length;
        }
        let transport = &packet[at..];
        let covered = match protocol {
            UDP => &transport[..usize::from(half(transport, 4).unwrap())],
            _ => transport,
        };
        let pseudo = pseudo_header(source, dest, protocol, covered.len());
        assert_eq!(checksum(&[&pseudo, covered]), 0);
        (extensions, transport.to_vec())
    }

    fn changed(before: &[u8], sections: &Sections) -> Vec<u8> {
        match rewrite(before, sections, &FlowSelector::default(), 1500) {
            Rewritten::Changed(after) => after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_layer_gets_its_options() {
        for payload in [&b""[..], b"odd", b"even"] {
            for is_v4 in [true, false] {
                let after = changed(&packet(is_v4, TCP, payload), &sections(&["tcp:exp-254"]));
                let (_, segment) = received(&after, TCP);
                assert_eq!(segment[20..28], [254, 6, 0xde, 0xad, 0, 1, 1, 1]);
                assert_eq!(segment[28..32], [2, 4, 5, 180]);
                assert!(segment.ends_with(payload));

                let made = sections(&["udp:exp"]);
                let after = changed(&packet(is_v4, UDP, payload), &made);
                let (_, datagram) = received(&after, UDP);
                let is_odd = payload.len() % 2 == 1;
                let area = if is_odd {
                    &made.udp_odd
                } else {
                    &made.udp_even
                };
                assert_eq!(&datagram[8 + payload.len()..], area);
            }
            let after = changed(
                &packet(true, TCP, payload),
                &sections(&["ip:rr", "tcp:nop"]),
            );
            assert_eq!((after[0], after[20]), (0x4f, 7));
            received(&after, TCP);
            let after = changed(
                &packet(false, UDP, payload),
                &sections(&["hop:padn", "dst:exp-1e", "ext:43", "udp:time"]),
            );
            assert_eq!(received(&after, UDP).0, [0, 60, 43]);
        }
    }

    #[test]
    fn what_stays_as_it_is_says_why() {
        let made = sections(&["ip:94/8", "tcp:253/8", "dst:exp-1e"]);
        let says = |packet: &[u8], mtu| rewrite(packet, &made, &FlowSelector::default(), mtu);
        let left = |why| Rewritten::Left(why);
        let good = packet(true, TCP, b"text");
        assert_eq!(says(&good, good.len() + 15), left(LeftAlone::TooBig));
        assert!(matches!(
            says(&good, good.len() + 16),
            Rewritten::Changed(_)
        ));
        let with = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            packet
        };
        assert_eq!(says(&with(6, 0x20), 1500), left(LeftAlone::Fragment));
        assert_eq!(says(&with(3, 3), 1500), left(LeftAlone::Malformed));
        assert_eq!(says(&with(0, 0x44), 1500), left(LeftAlone::Malformed));
        assert_eq!(says(&with(32, 0xf0), 1500), left(LeftAlone::Malformed));
        let mut full = packet(true, TCP, &[1; 40]);
        full[32] = 0xf0;
        assert_eq!(says(&full, 1500), left(LeftAlone::NoRoom));
        let v6 = packet(false, TCP, b"text");
        let once = changed(&v6, &made);
        assert_eq!(says(&once, 1500), left(LeftAlone::Other));
        let surplus = sections(&["udp:exp"]);
        let once = changed(&packet(true, UDP, b"text"), &surplus);
        let again = rewrite(&once, &surplus, &FlowSelector::default(), 1500);
        assert_eq!(again, left(LeftAlone::Other));
        for cut in 0..IPV4 {
            assert_eq!(says(&good[..cut], 1500), Rewritten::NotMeant);
        }
    }

    #[test]
    fn only_chosen_flows_are_meant() {
        let made = sections(&["ip:94/8", "tcp:253/8", "dst:exp-1e"]);
        let is_meant = |packet: &[u8], flows: &FlowSelector| {
            rewrite(packet, &made, flows, 1500) != Rewritten::NotMeant
        };
        let to = |text: &str| FlowSelector {
            networks: vec![{
                let prefix: Prefix = text.parse().unwrap();
                (prefix.addr(), prefix.bits())
            }],
            ..FlowSelector::default()
        };
        let [v4, v6] = [true, false].map(|is_v4| packet(is_v4, TCP, b""));
        for (text, of_v4, of_v6) in [
            ("198.51.100.0/24", true, false),
            ("192.0.2.0/24", false, false),
            ("2001:db8:9::/48", false, true),
            ("::/0", false, true),
            ("0.0.0.0/0", true, false),
        ] {
            assert_eq!(
                (is_meant(&v4, &to(text)), is_meant(&v6, &to(text))),
                (of_v4, of_v6)
            );
        }
        let flows = FlowSelector {
            protocol: Some(TCP),
            source_port: Some(40_000),
            dest_port: Some(8080),
            syn_only: true,
            ..FlowSelector::default()
        };
        assert!(is_meant(&v4, &flows) && !is_meant(&packet(true, UDP, b""), &flows));
        let mut ack = v4.clone();
        ack[33] = 0x10;
        assert!(!is_meant(&ack, &flows));
        for (source_port, dest_port) in [(Some(1), None), (None, Some(1))] {
            let flows = FlowSelector {
                source_port,
                dest_port,
                ..FlowSelector::default()
            };
            assert!(!is_meant(&v4, &flows) && !is_meant(&v6, &flows));
        }
    }

    proptest! {
        /// Checksums that were wrong stay wrong, and those that were right stay right.
        #[test]
        fn nobody_mends_a_checksum(
            payload in prop::collection::vec(any::<u8>(), 0..64), by: u16, is_v4: bool,
            data in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let option = crate::OptionSpec { layer: crate::Layer::Tcp, number: 200, data };
            let made = Sections::of(&[option]).unwrap();
            let mut before = packet(is_v4, TCP, &payload);
            let at = if is_v4 { IPV4 } else { IPV6 } + 16;
            let wrong = half(&before, at).unwrap().wrapping_add(by);
            put_half(&mut before, at, wrong);
            let after = changed(&before, &made);
            let [source, dest] = addresses(is_v4);
            let transport = &after[at - 16..];
            let pseudo = pseudo_header(source, dest, TCP, transport.len());
            let sum = checksum(&[&pseudo, transport]);
            let first = &before[at - 16..];
            let pseudo = pseudo_header(source, dest, TCP, first.len());
            // 0xffff and 0 are one number here.
            prop_assert_eq!(sum % 0xffff, checksum(&[&pseudo, first]) % 0xffff);
        }

        #[test]
        fn any_bytes_are_a_packet_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..120), is_v4: bool,
        ) {
            let made = sections(&["ip:94/8", "tcp:253/8", "udp:time", "dst:exp-1e"]);
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if is_v4 { 0x40 | *first & 15 } else { 0x60 };
            }
            if let Rewritten::Changed(after) =
                rewrite(&bytes, &made, &FlowSelector::default(), 1500)
            {
                prop_assert!(after.len() > bytes.len() && after.len() <= 1500);
            }
        }
    }
}

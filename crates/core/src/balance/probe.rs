//! Questions to a real at a virtual address: a TCP SYN or a UDP datagram as the packet path
//! would send it on, to the real's link-layer address, and what comes back. A real answers it
//! if it has the address; a host that has not drops it, for the packet has no hop left by
//! which another one could answer in its place. Beyond a router it goes in an outer header
//! ([`outer`]). Sockets are the caller's.

pub mod outer;

use std::net::IpAddr;

use crate::{
    Protocol,
    checksum::{checksum, pseudo_header},
    neighbour::Mac,
};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;
/// Of an error, before the packet that it quotes (RFC 792, RFC 4443).
const ICMP: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
/// Type and code of "port unreachable".
const UNREACHABLE: [u8; 2] = [3, 3];
const UNREACHABLE_V6: [u8; 2] = [1, 4];
/// No router forwards it.
const HOPS: u8 = 1;
/// The maximum segment size of Ethernet, without which some filters take a SYN for forged.
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// RFC 791: a later fragment, or a first one.
const IS_FRAGMENT: u16 = 0x3fff;

/// A question: who asks which real at which virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The link-layer address of the interface that asks.
    pub source_mac: Mac,
    /// The link-layer address of the real.
    pub real: Mac,
    /// The address of this host that asks, of the family of `vip`.
    pub source: IpAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port of this host that asks.
    pub source_port: u16,
    /// The virtual address.
    pub vip: IpAddr,
    /// A port of the pool.
    pub port: u16,
    /// By what an answer is known besides the ports. Of TCP the sequence number, which nobody
    /// can guess who does not see the question; of UDP what the first two bytes of the answer
    /// say (of DNS the ID), and 0 where the port is closed.
    pub number: u32,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The question as its answer tells it; `real` is who answers.
    pub question: Question,
    /// Whether the port is open (SYN-ACK, a datagram); otherwise nobody listens there (RST,
    /// "port unreachable").
    pub is_open: bool,
}

/// The frame of a question by TCP: a SYN.
///
/// # Panics
/// The addresses are of two families.
pub fn syn(question: &Question) -> Vec<u8> {
    segment(question, question.number, SYN, &MSS)
}

/// The frame that takes a question back once the port is known to be open: a RST, so that
/// the real does not wait for a connection.
///
/// # Panics
/// The addresses are of two families.
pub fn reset(question: &Question) -> Vec<u8> {
    segment(question, question.number.wrapping_add(1), RST, &[])
}

/// The frame of a question by UDP: this payload.
///
/// # Panics
/// The addresses are of two families, or the payload is longer than 65,000 bytes.
pub fn datagram(question: &Question, payload: &[u8]) -> Vec<u8> {
    let length = UDP + payload.len();
    assert!(length <= 65_008, "{length} bytes in a datagram");
    let mut udp = Vec::with_capacity(length);
    udp.extend(question.source_port.to_be_bytes());
    udp.extend(question.port.to_be_bytes());
    udp.extend((length as u16).to_be_bytes());
    udp.extend([0; 2]);
    udp.extend(payload);
    let header = pseudo_header(question.source, question.vip, PROTOCOL_UDP, length);
    // 0 says that there is none (RFC 768).
    let sum = match checksum(&[&header, &udp]) {
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    frame(question, PROTOCOL_UDP, &udp)
}

/// `options`: whole words of four bytes.
fn segment(question: &Question, number: u32, flags: u8, options: &[u8]) -> Vec<u8> {
    let length = TCP + options.len();
    let mut tcp = Vec::with_capacity(length);
    tcp.extend(question.source_port.to_be_bytes());
    tcp.extend(question.port.to_be_bytes());
    tcp.extend(number.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend([(length as u8 / 4) << 4, flags]);
    // The window; checksum and urgent pointer follow.
    tcp.extend(1024u16.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(options);
    let header = pseudo_header(question.source, question.vip, PROTOCOL_TCP, tcp.len());
    let sum = checksum(&[&header, &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame(question, PROTOCOL_TCP, &tcp)
}

fn frame(question: &Question, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let Question { source, vip, .. } = *question;
    let length = payload.len();
    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + length);
    frame.extend(question.real);
    frame.extend(question.source_mac);
    match (source, vip) {
        (IpAddr::V4(source), IpAddr::V4(vip)) => {
            frame.extend(ETHERTYPE_IPV4);
            let total = (IPV4 + length) as u16;
            frame.extend([0x45, 0]);
            frame.extend(total.to_be_bytes());
            frame.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(vip.octets());
            let sum = checksum(&[&frame[ETHERNET..]]);
            frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(vip)) => {
            frame.extend(ETHERTYPE_IPV6);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend([protocol, HOPS]);
            frame.extend(source.octets());
            frame.extend(vip.octets());
        }
        _ => panic!("a question from {source} to {vip}: two families"),
    }
    frame.extend(payload);
    frame
}

/// A packet's addresses and what is in it.
struct Packet<'a> {
    source: IpAddr,
    dest: IpAddr,
    protocol: u8,
    payload: &'a [u8],
}

/// `None`: it is cut, a fragment, or of another version than the frame says.
fn packet(is_ipv4: bool, packet: &[u8]) -> Option<Packet<'_>> {
    if is_ipv4 {
        let header = packet.first_chunk::<IPV4>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & IS_FRAGMENT;
        if header[0] >> 4 != 4 || fragment != 0 {
            return None;
        }
        let length = usize::from(header[0] & 0xf) * 4;
        let [source, dest]: [IpAddr; 2] =
            [12, 16].map(|at| [0, 1, 2, 3].map(|n| header[at + n]).into());
        return Some(Packet {
            source,
            dest,
            protocol: header[9],
            payload: packet.get(length.max(IPV4)..)?,
        });
    }
    let (header, payload) = packet.split_first_chunk::<IPV6>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let source: [u8; 16] = header[8..24].try_into().ok()?;
    let dest: [u8; 16] = header[24..40].try_into().ok()?;
    Some(Packet {
        source: source.into(),
        dest: dest.into(),
        protocol: header[6],
        payload,
    })
}

/// Reads what a frame answers; `None`: it is no answer. Whether its question was asked say
/// ports and number.
pub fn read(frame: &[u8]) -> Option<Answer> {
    let (ethernet, rest) = frame.split_first_chunk::<ETHERNET>()?;
    let is_ipv4 = match &ethernet[12..] {
        [0x08, 0x00] => true,
        [0x86, 0xdd] => false,
        _ => return None,
    };
    let mac = |at: usize| [0, 1, 2, 3, 4, 5].map(|n| ethernet[at + n]);
    let mut answer = read_packet(is_ipv4, rest)?;
    (answer.question.source_mac, answer.question.real) = (mac(0), mac(6));
    Some(answer)
}

/// Reads what a packet without a link-layer header answers, as [`read`] does. The question
/// has link-layer addresses of zeros.
pub fn read_packet(is_ipv4: bool, rest: &[u8]) -> Option<Answer> {
    let Packet {
        source: vip,
        dest: source,
        protocol,
        payload,
    } = packet(is_ipv4, rest)?;
    let answer = |protocol, [port, source_port]: [u16; 2], number, is_open| Answer {
        question: Question {
            source_mac: Mac::default(),
            real: Mac::default(),
            source,
            protocol,
            source_port,
            vip,
            port,
            number,
        },
        is_open,
    };
    match (protocol, is_ipv4) {
        (PROTOCOL_TCP, _) => {
            let tcp = payload.first_chunk::<TCP>()?;
            let flags = tcp[13];
            if flags & ACK == 0 || flags & (SYN | RST) == 0 {
                return None;
            }
            let acknowledged = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
            let number = acknowledged.wrapping_sub(1);
            let is_open = flags & RST == 0;
            Some(answer(Protocol::Tcp, ports(tcp)?, number, is_open))
        }
        (PROTOCOL_UDP, _) => {
            let (udp, data) = payload.split_first_chunk::<UDP>()?;
            let number = data
                .first_chunk()
                .map_or(0, |bytes| u16::from_be_bytes(*bytes));
            Some(answer(Protocol::Udp, ports(udp)?, number.into(), true))
        }
        (PROTOCOL_ICMP, true) | (PROTOCOL_ICMPV6, false) => {
            let (icmp, quoted) = payload.split_first_chunk::<ICMP>()?;
            let expected = match is_ipv4 {
                true => UNREACHABLE,
                false => UNREACHABLE_V6,
            };
            let quoted = packet(is_ipv4, quoted)?;
            let is_of =
                (quoted.source, quoted.dest, quoted.protocol) == (source, vip, PROTOCOL_UDP);
            if icmp[..2] != expected || !is_of {
                return None;
            }
            let [source_port, port] = ports(quoted.payload)?;
            Some(answer(Protocol::Udp, [port, source_port], 0, false))
        }
        _ => None,
    }
}

/// Where TCP and UDP have the ports: source and destination.
fn ports(header: &[u8]) -> Option<[u16; 2]> {
    let bytes = header.first_chunk::<4>()?;
    Some([0, 2].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 60_001;

    fn question(source: &str, vip: &str) -> Question {
        Question {
            source_mac: [2, 0, 0, 0, 0, 1],
            real: [2, 0, 0, 0, 0, 11],
            source: source.parse().unwrap(),
            protocol: Protocol::Tcp,
            source_port: PORT,
            vip: vip.parse().unwrap(),
            port: 80,
            number: u32::MAX,
        }
    }

    fn questions() -> [Question; 2] {
        [
            question("192.0.2.1", "192.0.2.80"),
            question("2001:db8::1", "2001:db8::80"),
        ]
    }

    /// The question's way back, as one from the other side.
    fn back(asked: &Question) -> Question {
        Question {
            source_mac: asked.real,
            real: asked.source_mac,
            source: asked.vip,
            vip: asked.source,
            source_port: asked.port,
            port: asked.source_port,
            ..*asked
        }
    }

    /// "Port unreachable" about a frame, as a host sends it back.
    fn unreachable(asked: &Question, frame: &[u8]) -> Vec<u8> {
        let (protocol, kind) = match asked.vip.is_ipv4() {
            true => (PROTOCOL_ICMP, UNREACHABLE),
            false => (PROTOCOL_ICMPV6, UNREACHABLE_V6),
        };
        let icmp = [&kind[..], &[0; ICMP - 2], &frame[ETHERNET..]].concat();
        super::frame(&back(asked), protocol, &icmp)
    }

    fn by_udp() -> [Question; 2] {
        questions().map(|asked| Question {
            protocol: Protocol::Udp,
            number: 0x1234,
            ..asked
        })
    }

    /// What a host with the address sends back: both ways turned round, these flags, and
    /// this number acknowledged. (Its checksum is the kernel's to look at.)
    fn answer(asked: &Question, flags: u8, acknowledged: u32) -> Vec<u8> {
        let mut frame = segment(&back(asked), 7, flags, &[]);
        let tcp = frame.len() - TCP;
        frame[tcp + 8..tcp + 12].copy_from_slice(&acknowledged.to_be_bytes());
        frame
    }

    #[test]
    fn a_question_is_a_syn_with_whole_checksums_to_the_real() {
        for asked in questions() {
            for (frame, flags, number, length) in [
                (syn(&asked), SYN, u32::MAX, TCP + MSS.len()),
                (reset(&asked), RST, 0, TCP),
            ] {
                assert_eq!(frame[..6], asked.real);
                assert_eq!(frame[6..12], asked.source_mac);
                let packet = &frame[ETHERNET..];
                let (header, tcp) = packet.split_at(packet.len() - length);
                assert_eq!(usize::from(tcp[12] >> 4) * 4, length);
                if asked.vip.is_ipv4() {
                    assert_eq!(checksum(&[header]), 0);
                }
                let pseudo = pseudo_header(asked.source, asked.vip, PROTOCOL_TCP, length);
                assert_eq!(checksum(&[&pseudo, tcp]), 0);
                assert_eq!(tcp[..4], [0xea, 0x61, 0, 80]);
                assert_eq!(tcp[4..8], u32::to_be_bytes(number));
                assert_eq!(tcp[13], flags);
            }
        }
    }

    #[test]
    fn an_answer_is_known_by_its_number_and_says_whether_the_port_is_open() {
        for asked in questions() {
            for (flags, is_open) in [(SYN | ACK, true), (RST | ACK, false)] {
                let read = read(&answer(&asked, flags, 0));
                let expected = Answer {
                    question: asked,
                    is_open,
                };
                assert_eq!(read, Some(expected));
                // Without a link-layer header it says the same, but who sent it.
                let frame = answer(&asked, flags, 0);
                let bare = read_packet(asked.vip.is_ipv4(), &frame[ETHERNET..]);
                let expected = Answer {
                    question: Question {
                        source_mac: [0; 6],
                        real: [0; 6],
                        ..asked
                    },
                    is_open,
                };
                assert_eq!(bare, Some(expected));
            }
        }
    }

    #[test]
    fn what_answers_nothing_is_no_answer() {
        for asked in questions() {
            let good = answer(&asked, SYN | ACK, 0);
            for flags in [0, SYN, RST, ACK] {
                assert_eq!(read(&answer(&asked, flags, 0)), None);
            }
            for len in 0..good.len() {
                assert_eq!(read(&good[..len]), None, "{len} bytes");
            }
            let at_protocol = ETHERNET + if asked.vip.is_ipv4() { 9 } else { 6 };
            for (at, byte) in [(12, 0), (ETHERNET, 0), (at_protocol, 132)] {
                let mut other = good.clone();
                other[at] = byte;
                assert_eq!(read(&other), None, "byte {at}");
            }
        }
        let mut fragment = answer(&questions()[0], SYN | ACK, 0);
        fragment[ETHERNET + 7] = 1;
        assert_eq!(read(&fragment), None);
    }

    #[test]
    fn a_datagram_has_whole_checksums_and_its_answer_says_the_first_bytes() {
        for asked in by_udp() {
            for payload in [&b"\x12\x34ping"[..], b"\x12\x34odd"] {
                let frame = datagram(&asked, payload);
                let length = UDP + payload.len();
                let (header, udp) = frame[ETHERNET..].split_at(frame.len() - ETHERNET - length);
                if asked.vip.is_ipv4() {
                    assert_eq!(checksum(&[header]), 0);
                }
                let pseudo = pseudo_header(asked.source, asked.vip, PROTOCOL_UDP, length);
                assert_eq!(checksum(&[&pseudo, udp]), 0);
                assert_eq!(udp[4..6], (length as u16).to_be_bytes());
                assert_eq!(&udp[8..], payload);
                let said = datagram(&back(&asked), payload);
                let expected = Answer {
                    question: asked,
                    is_open: true,
                };
                assert_eq!(read(&said), Some(expected));
            }
            let short = datagram(&back(&asked), b"x");
            assert_eq!(read(&short).map(|answer| answer.question.number), Some(0));
        }
    }

    #[test]
    fn an_error_about_a_datagram_says_that_the_port_is_closed() {
        for asked in by_udp() {
            let sent = datagram(&asked, b"\x12\x34");
            let good = unreachable(&asked, &sent);
            let expected = Answer {
                question: Question { number: 0, ..asked },
                is_open: false,
            };
            assert_eq!(read(&good), Some(expected));
            for len in 0..good.len() - 2 - 4 {
                assert_eq!(read(&good[..len]), None, "{len} bytes");
            }
            // About another host's packet, of TCP, and of another kind.
            let other = Question {
                source: back(&asked).source,
                ..asked
            };
            assert_eq!(read(&unreachable(&asked, &datagram(&other, b""))), None);
            assert_eq!(read(&unreachable(&asked, &syn(&asked))), None);
            let at_code = good.len() - (sent.len() - ETHERNET) - ICMP + 1;
            let mut other = good;
            other[at_code] ^= 1;
            assert_eq!(read(&other), None);
        }
    }
}

//! Questions to a real at a virtual address: a TCP SYN as the packet path would send it on,
//! to the real's link-layer address, and what comes back. A real answers it if it has the
//! address; a host that has not drops it, for the packet has no hop left by which another
//! one could answer in its place. Sockets are the caller's.

use std::net::IpAddr;

use crate::{
    checksum::{checksum, pseudo_header},
    neighbour::Mac,
};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_TCP: u8 = 6;
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
    /// The TCP port of this host that asks.
    pub source_port: u16,
    /// The virtual address.
    pub vip: IpAddr,
    /// A TCP port of the pool.
    pub port: u16,
    /// The sequence number, by which an answer is known: nobody who does not see the
    /// question can guess it.
    pub number: u32,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The question as its answer tells it; `real` is who answers.
    pub question: Question,
    /// Whether the port is open (SYN-ACK); otherwise nobody listens there (RST).
    pub is_open: bool,
}

/// The frame of a question: a SYN.
///
/// # Panics
/// The addresses are of two families.
pub fn syn(question: &Question) -> Vec<u8> {
    frame(question, question.number, SYN, &MSS)
}

/// The frame that takes a question back once the port is known to be open: a RST, so that
/// the real does not wait for a connection.
///
/// # Panics
/// The addresses are of two families.
pub fn reset(question: &Question) -> Vec<u8> {
    frame(question, question.number.wrapping_add(1), RST, &[])
}

/// `options`: whole words of four bytes.
fn frame(question: &Question, number: u32, flags: u8, options: &[u8]) -> Vec<u8> {
    let Question { source, vip, .. } = *question;
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
    let header = pseudo_header(source, vip, PROTOCOL_TCP, tcp.len());
    let sum = checksum(&[&header, &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());

    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + length);
    frame.extend(question.real);
    frame.extend(question.source_mac);
    match (source, vip) {
        (IpAddr::V4(source), IpAddr::V4(vip)) => {
            frame.extend(ETHERTYPE_IPV4);
            let total = (IPV4 + length) as u16;
            frame.extend([0x45, 0]);
            frame.extend(total.to_be_bytes());
            frame.extend([0, 0, 0x40, 0, HOPS, PROTOCOL_TCP, 0, 0]);
            frame.extend(source.octets());
            frame.extend(vip.octets());
            let sum = checksum(&[&frame[ETHERNET..]]);
            frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(vip)) => {
            frame.extend(ETHERTYPE_IPV6);
            frame.extend([0x60, 0, 0, 0]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend([PROTOCOL_TCP, HOPS]);
            frame.extend(source.octets());
            frame.extend(vip.octets());
        }
        _ => panic!("a question from {source} to {vip}: two families"),
    }
    frame.extend(tcp);
    frame
}

/// Reads what a frame answers; `None`: it is no answer. Whether its question was asked say
/// port and number.
pub fn read(frame: &[u8]) -> Option<Answer> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET>()?;
    let (vip, source, tcp) = match &ethernet[12..] {
        [0x08, 0x00] => {
            let header = packet.first_chunk::<IPV4>()?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & IS_FRAGMENT;
            if header[0] >> 4 != 4 || header[9] != PROTOCOL_TCP || fragment != 0 {
                return None;
            }
            let length = usize::from(header[0] & 0xf) * 4;
            let [vip, source]: [IpAddr; 2] =
                [12, 16].map(|at| [0, 1, 2, 3].map(|n| header[at + n]).into());
            (vip, source, packet.get(length.max(IPV4)..)?)
        }
        [0x86, 0xdd] => {
            let header = packet.first_chunk::<IPV6>()?;
            if header[0] >> 4 != 6 || header[6] != PROTOCOL_TCP {
                return None;
            }
            let vip: [u8; 16] = header[8..24].try_into().ok()?;
            let source: [u8; 16] = header[24..40].try_into().ok()?;
            (IpAddr::from(vip), IpAddr::from(source), &packet[IPV6..])
        }
        _ => return None,
    };
    let tcp = tcp.first_chunk::<TCP>()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let mac = |at: usize| [0, 1, 2, 3, 4, 5].map(|n| ethernet[at + n]);
    let acknowledged = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
    let flags = tcp[13];
    if flags & ACK == 0 || flags & (SYN | RST) == 0 {
        return None;
    }
    Some(Answer {
        question: Question {
            source_mac: mac(0),
            real: mac(6),
            source,
            source_port: port(2),
            vip,
            port: port(0),
            number: acknowledged.wrapping_sub(1),
        },
        is_open: flags & RST == 0,
    })
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

    /// What a host with the address sends back: both ways turned round, these flags, and
    /// this number acknowledged. (Its checksum is the kernel's to look at.)
    fn answer(asked: &Question, flags: u8, acknowledged: u32) -> Vec<u8> {
        let back = Question {
            source_mac: asked.real,
            real: asked.source_mac,
            source: asked.vip,
            vip: asked.source,
            source_port: asked.port,
            port: asked.source_port,
            ..*asked
        };
        let mut frame = frame(&back, 7, flags, &[]);
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
            for (at, byte) in [(12, 0), (ETHERNET, 0), (at_protocol, 17)] {
                let mut other = good.clone();
                other[at] = byte;
                assert_eq!(read(&other), None, "byte {at}");
            }
        }
        let mut fragment = answer(&questions()[0], SYN | ACK, 0);
        fragment[ETHERNET + 7] = 1;
        assert_eq!(read(&fragment), None);
    }
}

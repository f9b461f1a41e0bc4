//! The outer header of a question to a real beyond a router, as the packet path writes that
//! of clients' packets: IP in IP (RFC 2003, RFC 2473, RFC 4213) or GUE variant 1, either
//! family in either.

use std::net::IpAddr;

use super::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, PROTOCOL_UDP, UDP};
use crate::checksum::checksum;

const PROTOCOL_IPIP: u8 = 4;
const PROTOCOL_IPV6: u8 = 41;
/// As the packet path's: routers are on the way.
const HOPS: u8 = 64;
/// The first of the source ports that GUE has.
const FIRST_PORT: u16 = 0xc000;

/// An outer header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outer {
    /// The address of this host, of the family of `dest`.
    pub source: IpAddr,
    /// The real's own address.
    pub dest: IpAddr,
    /// The UDP port at which the real takes GUE off; `None`: IP in IP.
    pub gue_port: Option<u16>,
}

impl Outer {
    /// The frame of a question, with this header between those of Ethernet and IP. `flow`: of
    /// what GUE's source port and IPv6's flow label are made, by which routers choose ways.
    ///
    /// # Panics
    /// The addresses are of two families, or the frame is shorter than an Ethernet header or
    /// longer than 65,000 bytes.
    pub fn wrap(&self, frame: &[u8], flow: u16) -> Vec<u8> {
        let (ethernet, inner) = frame.split_at(ETHERNET);
        assert!(inner.len() <= 65_000, "{} bytes in a tunnel", inner.len());
        let (macs, ethertype) = ethernet.split_at(12);
        let udp = self.gue_port.map(|port| {
            let mut udp = Vec::with_capacity(UDP);
            udp.extend((FIRST_PORT | flow).to_be_bytes());
            udp.extend(port.to_be_bytes());
            udp.extend(((UDP + inner.len()) as u16).to_be_bytes());
            // No checksum (RFC 6935): what is inside has its own.
            udp.extend([0; 2]);
            udp
        });
        let udp = udp.unwrap_or_default();
        let protocol = match (self.gue_port, ethertype == ETHERTYPE_IPV4) {
            (Some(_), _) => PROTOCOL_UDP,
            (None, true) => PROTOCOL_IPIP,
            (None, false) => PROTOCOL_IPV6,
        };
        let length = udp.len() + inner.len();
        let mut wrapped = Vec::with_capacity(ETHERNET + IPV6 + length);
        wrapped.extend(macs);
        match (self.source, self.dest) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                wrapped.extend(ETHERTYPE_IPV4);
                wrapped.extend([0x45, 0]);
                wrapped.extend(((IPV4 + length) as u16).to_be_bytes());
                // Don't fragment.
                wrapped.extend([0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
                wrapped.extend(source.octets());
                wrapped.extend(dest.octets());
                let sum = checksum(&[&wrapped[ETHERNET..]]);
                wrapped[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(dest)) => {
                wrapped.extend(ETHERTYPE_IPV6);
                wrapped.extend([0x60, 0]);
                wrapped.extend(flow.to_be_bytes());
                wrapped.extend((length as u16).to_be_bytes());
                wrapped.extend([protocol, HOPS]);
                wrapped.extend(source.octets());
                wrapped.extend(dest.octets());
            }
            (source, dest) => panic!("a tunnel from {source} to {dest}: two families"),
        }
        wrapped.extend(udp);
        wrapped.extend(inner);
        wrapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Protocol,
        balance::probe::{Question, syn},
    };

    fn question(source: &str, vip: &str) -> Question {
        Question {
            source_mac: [2, 0, 0, 0, 0, 1],
            real: [2, 0, 0, 0, 0, 254],
            source: source.parse().unwrap(),
            protocol: Protocol::Tcp,
            source_port: 61_001,
            vip: vip.parse().unwrap(),
            port: 80,
            number: 7,
        }
    }

    fn outer(source: &str, dest: &str, gue_port: Option<u16>) -> Outer {
        Outer {
            source: source.parse().unwrap(),
            dest: dest.parse().unwrap(),
            gue_port,
        }
    }

    /// Either family in either, by both; the question is in it as it was.
    #[test]
    fn a_question_goes_whole_in_an_outer_header_to_the_real() {
        let inner = [
            question("192.0.2.1", "198.51.100.80"),
            question("2001:db8::1", "2001:db8:80::80"),
        ];
        let ends = [("192.0.2.1", "10.2.1.11"), ("2001:db8::1", "fd02:2::11")];
        for asked in inner {
            let frame = syn(&asked);
            let ethertype = &frame[12..ETHERNET];
            for (source, dest) in ends {
                for gue_port in [None, Some(6080)] {
                    let outer = outer(source, dest, gue_port);
                    let wrapped = outer.wrap(&frame, 0x1234);
                    assert_eq!(wrapped[..12], frame[..12]);
                    let is_ipv4 = outer.dest.is_ipv4();
                    let (expected, head) = match is_ipv4 {
                        true => (ETHERTYPE_IPV4, IPV4),
                        false => (ETHERTYPE_IPV6, IPV6),
                    };
                    assert_eq!(wrapped[12..ETHERNET], expected);
                    let (header, rest) = wrapped[ETHERNET..].split_at(head);
                    let inside = match ethertype == ETHERTYPE_IPV4 {
                        true => 4,
                        false => 41,
                    };
                    let protocol = if gue_port.is_some() { 17 } else { inside };
                    if is_ipv4 {
                        assert_eq!(checksum(&[header]), 0);
                        assert_eq!(header[..2], [0x45, 0]);
                        assert_eq!(header[2..4], ((head + rest.len()) as u16).to_be_bytes());
                        assert_eq!(header[4..10], [0, 0, 0x40, 0, 64, protocol]);
                        assert_eq!(header[12..], [192, 0, 2, 1, 10, 2, 1, 11]);
                    } else {
                        assert_eq!(header[..4], [0x60, 0, 0x12, 0x34]);
                        assert_eq!(header[4..6], (rest.len() as u16).to_be_bytes());
                        assert_eq!(header[6..8], [protocol, 64]);
                        let addresses = [source, dest].map(|addr| {
                            let addr: std::net::Ipv6Addr = addr.parse().unwrap();
                            addr.octets()
                        });
                        assert_eq!(header[8..], addresses.concat());
                    }
                    let inner = match gue_port {
                        None => rest,
                        Some(_) => {
                            let (udp, inner) = rest.split_at(UDP);
                            // 0xd234, 6080, the length, no checksum.
                            let length = (rest.len() as u16).to_be_bytes();
                            let whole = [0xd2, 0x34, 0x17, 0xc0, length[0], length[1], 0, 0];
                            assert_eq!(udp, whole);
                            inner
                        }
                    };
                    assert_eq!(inner, &frame[ETHERNET..]);
                }
            }
        }
    }
}

//! What a packet says that waits: between whom, and of which kind it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_netlink::conntrack::Tuple;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
pub(super) const UDP_LITE: u8 = 136;
/// IPv6 headers before the transport's that are gone through.
const CHAIN: usize = 8;

/// A packet as it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// As the kernel's table of connections has it.
    pub tuple: Tuple,
    /// The packet is a SYN: it begins a connection of TCP.
    pub is_syn: bool,
    /// The packet is a reset: it ends one without any data.
    pub is_reset: bool,
}

fn port(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Asked {
    /// Reads the first bytes of a packet, from its IP header on; `None`: it is none of IPv4 or
    /// IPv6, or cut before that is known.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (from, to, protocol, rest): (IpAddr, IpAddr, u8, &[u8]) = match bytes.first()? >> 4 {
            4 => {
                let source: [u8; 4] = *bytes.get(12..)?.first_chunk()?;
                let target: [u8; 4] = *bytes.get(16..)?.first_chunk()?;
                let head = usize::from(bytes[0] & 15) * 4;
                let rest = bytes.get(head..)?;
                (
                    Ipv4Addr::from(source).into(),
                    Ipv4Addr::from(target).into(),
                    bytes[9],
                    rest,
                )
            }
            6 => {
                let source: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let target: [u8; 16] = *bytes.get(24..)?.first_chunk()?;
                let (protocol, rest) = behind_headers(*bytes.get(6)?, bytes.get(40..)?)?;
                (
                    Ipv6Addr::from(source).into(),
                    Ipv6Addr::from(target).into(),
                    protocol,
                    rest,
                )
            }
            _ => return None,
        };
        let (mut ports, mut flags) = ([0, 0], 0);
        match protocol {
            // Those with ports that conntrack knows, DCCP and SCTP among them.
            TCP | UDP | UDP_LITE | 33 | 132 => {
                ports = [port(rest, 0)?, port(rest, 2)?];
                if protocol == TCP {
                    flags = *rest.get(13)?;
                }
            }
            // Type and code, and the identifier.
            ICMP | ICMPV6 => ports = [port(rest, 4)?, port(rest, 0)?],
            _ => {}
        }
        let (syn, reset, ack) = (flags & 2 != 0, flags & 4 != 0, flags & 16 != 0);
        Some(Self {
            tuple: Tuple {
                protocol,
                from: SocketAddr::new(from, ports[0]),
                to: SocketAddr::new(to, ports[1]),
            },
            is_syn: syn && !ack && !reset,
            is_reset: reset && !syn,
        })
    }
}

/// The transport's protocol and bytes behind the other headers of IPv6.
fn behind_headers(mut next: u8, mut rest: &[u8]) -> Option<(u8, &[u8])> {
    for _ in 0..CHAIN {
        let length = match next {
            // Hop by hop, routing, for the receiver, mobility.
            0 | 43 | 60 | 135 => (usize::from(*rest.get(1)?) + 1) * 8,
            // A fragment: the first one has the transport's header.
            44 if port(rest, 2)? & 0xfff8 == 0 => 8,
            // Authentication.
            51 => (usize::from(*rest.get(1)?) + 2) * 4,
            _ => return Some((next, rest)),
        };
        next = *rest.first()?;
        rest = rest.get(length..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, above: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        bytes.extend([192, 0, 2, 1, 198, 51, 100, 7]);
        bytes.extend(above);
        bytes
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut above = vec![0x1f, 0x90, 1, 0xbb];
        above.extend([0; 9]);
        above.push(flags);
        above.extend([0; 6]);
        above
    }

    #[test]
    fn packets_say_between_whom_they_are() {
        let syn = Asked::read(&v4(6, &tcp(2))).unwrap();
        assert_eq!(syn.tuple.from, "192.0.2.1:8080".parse().unwrap());
        assert_eq!(syn.tuple.to, "198.51.100.7:443".parse().unwrap());
        assert!(syn.is_syn && !syn.is_reset);
        let answers = [0x12, 0x10, 0x14].map(|flags| Asked::read(&v4(6, &tcp(flags))).unwrap());
        assert!(answers.iter().all(|packet| !packet.is_syn));
        assert_eq!(answers.map(|packet| packet.is_reset), [false, false, true]);
        let echo = Asked::read(&v4(1, &[8, 0, 0, 0, 0x12, 0x34, 0, 0])).unwrap();
        assert_eq!(
            (echo.tuple.from.port(), echo.tuple.to.port()),
            (0x1234, 0x0800)
        );
        let other = Asked::read(&v4(47, &[])).unwrap();
        assert_eq!((other.tuple.protocol, other.tuple.from.port()), (47, 0));
    }

    #[test]
    fn headers_of_ipv6_are_passed_over() {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, 0, 64];
        bytes.extend([0; 15]);
        bytes.push(1);
        bytes.extend([0; 15]);
        bytes.push(2);
        // Hop by hop, then a first fragment.
        bytes.extend([44, 0, 1, 4, 0, 0, 0, 0]);
        bytes.extend([17, 0, 0, 1, 0, 0, 0, 9]);
        bytes.extend([0, 53, 0x10, 0, 0, 8, 0, 0]);
        let read = Asked::read(&bytes).unwrap();
        assert_eq!(read.tuple.protocol, 17);
        assert_eq!(read.tuple.from, "[::1]:53".parse().unwrap());
        // The next fragment has none: its own kind is all that is known.
        bytes[51] = 0x09;
        assert_eq!(Asked::read(&bytes).unwrap().tuple.protocol, 44);
    }

    #[test]
    fn what_is_cut_is_no_packet() {
        let whole = v4(6, &tcp(2));
        for cut in 0..34 {
            assert_eq!(Asked::read(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(Asked::read(&[0x25; 60]), None);
        assert_eq!(Asked::read(&[0x4f; 40]), None, "options that are not there");
    }
}

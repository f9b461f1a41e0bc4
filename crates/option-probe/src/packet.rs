//! An IP packet taken apart as far as options go. The packet is anybody's: each length in it
//! is checked against what is there.

use std::net::IpAddr;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Extension headers that are looked through at most.
const MAX_HEADERS: usize = 16;

/// Protocol numbers of IPv6 extension headers whose second byte is a length (or, of a fragment
/// header, zero).
fn is_extension(number: u8) -> bool {
    matches!(number, 0 | 43 | 44 | 60 | 135 | 139 | 140 | 253 | 254)
}

/// The parts of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketParts<'p> {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub dest: IpAddr,
    /// Options of the IPv4 header; empty of IPv6.
    pub ip_options: &'p [u8],
    /// IPv6 extension headers with their protocol numbers.
    pub extensions: Vec<(u8, &'p [u8])>,
    /// The protocol number of the transport.
    pub protocol: u8,
    /// The transport's fixed header: 20 bytes of TCP, 8 of UDP and ICMP; empty of others.
    pub header: &'p [u8],
    /// Options of the TCP header.
    pub tcp_options: &'p [u8],
    /// The data of the transport.
    pub payload: &'p [u8],
    /// What is behind a UDP datagram in its IP packet.
    pub surplus: &'p [u8],
}

impl<'p> PacketParts<'p> {
    /// Takes an IPv4 or IPv6 packet apart; `None` if lengths in it contradict each other, or it
    /// is a fragment of several.
    pub fn read(packet: &'p [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &'p [u8]) -> Option<Self> {
        let header = usize::from(packet[0] & 15) * 4;
        let length = usize::from(word(packet, 2)?);
        let is_fragment = word(packet, 6)? & 0x3fff != 0;
        if header < 20 || length < header || is_fragment {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(bytes.into())
        };
        let parts = Self {
            source: address(12)?,
            dest: address(16)?,
            ip_options: packet.get(20..header)?,
            extensions: Vec::new(),
            protocol: packet[9],
            header: &[],
            tcp_options: &[],
            payload: &[],
            surplus: &[],
        };
        parts.with_transport(packet.get(header..length)?)
    }

    fn read_v6(packet: &'p [u8]) -> Option<Self> {
        let length = usize::from(word(packet, 4)?);
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(bytes.into())
        };
        let mut rest = packet.get(40..40 + length)?;
        let mut number = packet[6];
        let mut extensions = Vec::new();
        while is_extension(number) {
            let units = match number {
                44 if word(rest, 2)? & 0xfff9 != 0 => return None,
                44 => 0,
                _ => usize::from(*rest.get(1)?),
            };
            let (header, behind) = rest.split_at_checked(8 * (units + 1))?;
            extensions.push((number, header));
            if extensions.len() > MAX_HEADERS {
                return None;
            }
            (number, rest) = (header[0], behind);
        }
        let parts = Self {
            source: address(8)?,
            dest: address(24)?,
            ip_options: &[],
            extensions,
            protocol: number,
            header: &[],
            tcp_options: &[],
            payload: &[],
            surplus: &[],
        };
        parts.with_transport(rest)
    }

    fn with_transport(self, bytes: &'p [u8]) -> Option<Self> {
        Some(match self.protocol {
            TCP => {
                let options = usize::from(bytes.get(12)? >> 4) * 4;
                Self {
                    header: bytes.get(..20)?,
                    tcp_options: bytes.get(20..options)?,
                    payload: &bytes[options..],
                    ..self
                }
            }
            UDP => {
                let length = usize::from(word(bytes, 4)?);
                Self {
                    header: bytes.get(..8)?,
                    payload: bytes.get(8..length)?,
                    surplus: &bytes[length..],
                    ..self
                }
            }
            ICMP | ICMPV6 => Self {
                header: bytes.get(..8)?,
                payload: &bytes[8..],
                ..self
            },
            _ => Self {
                payload: bytes,
                ..self
            },
        })
    }
}

/// A number of two bytes in network order.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

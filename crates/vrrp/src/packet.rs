//! Advertisements with the IP header that they came in.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Advertisement, PROTOCOL, ParseError, TTL};

const IPV4: usize = 20;
const IPV6: usize = 40;

/// An advertisement with its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAdvertisement {
    /// The address that it was sent from.
    pub from: IpAddr,
    /// The advertisement of that sender.
    pub advertisement: Advertisement,
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a slice of this length is given")
}

/// Reads an IPv4 packet from its header on.
///
/// # Errors
/// It is not as the RFC has it, or has come through a router.
pub fn read_ipv4(packet: &[u8]) -> Result<ReceivedAdvertisement, ParseError> {
    let header = packet.get(..IPV4).ok_or(ParseError::Malformed)?;
    let head_len = usize::from(header[0] & 0x0f) * 4;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // A fragment, or a length that cannot be.
    let is_part = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if header[0] >> 4 != 4 || head_len < IPV4 || header[9] != PROTOCOL || is_part {
        return Err(ParseError::Malformed);
    }
    let message = packet.get(head_len..len).ok_or(ParseError::Malformed)?;
    let [from, to] = [12, 16].map(|at| Ipv4Addr::from(array::<4>(&header[at..at + 4])).into());
    read(header[8], message, from, to)
}

/// Reads an IPv6 packet from its header on. Extension headers are none that it has.
///
/// # Errors
/// It is not as the RFC has it, or has come through a router.
pub fn read_ipv6(packet: &[u8]) -> Result<ReceivedAdvertisement, ParseError> {
    let (header, rest) = packet.split_at_checked(IPV6).ok_or(ParseError::Malformed)?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || header[6] != PROTOCOL {
        return Err(ParseError::Malformed);
    }
    let message = rest.get(..len).ok_or(ParseError::Malformed)?;
    let [from, to] = [8, 24].map(|at| Ipv6Addr::from(array::<16>(&header[at..at + 16])).into());
    read(header[7], message, from, to)
}

fn read(
    ttl: u8,
    message: &[u8],
    from: IpAddr,
    to: IpAddr,
) -> Result<ReceivedAdvertisement, ParseError> {
    if ttl != TTL {
        return Err(ParseError::Ttl);
    }
    if from.is_multicast() || from.is_unspecified() {
        return Err(ParseError::Malformed);
    }
    let advertisement = Advertisement::read(message, from, to)?;
    Ok(ReceivedAdvertisement {
        from,
        advertisement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checksum;

    fn packets() -> [Vec<u8>; 2] {
        [
            ["192.0.2.1", "224.0.0.18", "192.0.2.80"],
            ["fe80::1", "ff02::12", "2001:db8::80"],
        ]
        .map(|text| {
            let [from, to, vip]: [IpAddr; 3] = text.map(|text| text.parse().unwrap());
            let advertisement = Advertisement {
                id: 7,
                priority: 100,
                interval: 100,
                addresses: vec![vip],
            };
            let message = advertisement.write(from, to, Checksum::WithPseudoHeader);
            let len = message.len() as u16;
            let mut packet = match (from, to) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let mut packet = vec![0x45, 0xc0];
                    packet.extend((20 + len).to_be_bytes());
                    packet.extend([0, 0, 0x40, 0, 255, 112, 0, 0]);
                    packet.extend(from.octets());
                    packet.extend(to.octets());
                    packet
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    let mut packet = vec![0x6c, 0, 0, 0];
                    packet.extend(len.to_be_bytes());
                    packet.extend([112, 255]);
                    packet.extend(from.octets());
                    packet.extend(to.octets());
                    packet
                }
                _ => unreachable!("of one family"),
            };
            packet.extend(message);
            packet
        })
    }

    #[test]
    fn what_comes_from_the_segment_is_read_and_nothing_else() {
        let [v4, v6] = packets();
        assert_eq!(read_ipv4(&v4).unwrap().advertisement.id, 7);
        assert_eq!(
            read_ipv6(&v6).unwrap().from,
            "fe80::1".parse::<IpAddr>().unwrap()
        );
        for ttl in [0, 1, 254] {
            let (mut far4, mut far6) = (v4.clone(), v6.clone());
            (far4[8], far6[7]) = (ttl, ttl);
            assert_eq!(read_ipv4(&far4), Err(ParseError::Ttl));
            assert_eq!(read_ipv6(&far6), Err(ParseError::Ttl));
        }
        for at in 0..v4.len() {
            assert!(read_ipv4(&v4[..at]).is_err(), "cut at {at}");
        }
        for at in 0..v6.len() {
            assert!(read_ipv6(&v6[..at]).is_err(), "cut at {at}");
        }
        // A fragment, a header that is too short, another protocol, another sender.
        for (at, value) in [
            (6, 0x20),
            (7, 1),
            (0, 0x44),
            (0, 0x65),
            (9, 17),
            (12, 193),
            (12, 224),
        ] {
            let mut wrong = v4.clone();
            wrong[at] = value;
            assert!(read_ipv4(&wrong).is_err(), "byte {at}");
        }
        for (at, value) in [(0, 0x40), (6, 0), (8, 0xff), (30, 1)] {
            let mut wrong = v6.clone();
            wrong[at] = value;
            assert!(read_ipv6(&wrong).is_err(), "byte {at}");
        }
        // What an Ethernet pads it with is not part of it.
        let padded = [v4, vec![0; 14]].concat();
        assert!(read_ipv4(&padded).is_ok());
    }
}

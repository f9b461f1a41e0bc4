//! The checksum of the Internet protocols (RFC 1071).

use std::net::IpAddr;

/// The Internet checksum of these parts, one behind the other; each but the last has an
/// even length. A message with its checksum in place has 0.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        let (pairs, rest) = part.as_chunks::<2>();
        sum += pairs
            .iter()
            .map(|pair| u64::from(u16::from_be_bytes(*pair)))
            .sum::<u64>();
        sum += rest.first().map_or(0, |last| u64::from(*last) << 8);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What a checksum covers beside the message itself: its addresses, protocol and length,
/// as IPv4 and IPv6 have it (RFC 8200 8.1).
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    for addr in [source, destination] {
        match addr {
            IpAddr::V4(v4) => bytes.extend(v4.octets()),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    match source {
        IpAddr::V4(_) => {
            bytes.extend([0, protocol]);
            bytes.extend((len as u16).to_be_bytes());
        }
        IpAddr::V6(_) => {
            bytes.extend((len as u32).to_be_bytes());
            bytes.extend([0, 0, 0, protocol]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&bytes]), !0xddf2);
        assert_eq!(checksum(&[&bytes[..2], &bytes[2..]]), !0xddf2);
        assert_eq!(checksum(&[&[1]]), !0x0100);
        assert_eq!(checksum(&[&vec![0xff; 1 << 17]]), 0);
        let v6 = pseudo_header(
            [0xfe80u16, 0, 0, 0, 0, 0, 0, 1].into(),
            [0; 16].into(),
            58,
            32,
        );
        assert_eq!((v6.len(), &v6[32..]), (40, &[0, 0, 0, 32, 0, 0, 0, 58][..]));
    }
}

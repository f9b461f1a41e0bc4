//! The one packet of VRRP (RFC 9568 5).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use weir_core::checksum::{checksum, pseudo_header};

use crate::PROTOCOL;

const VERSION_3_ADVERTISEMENT: u8 = 0x31;
const HEADER: usize = 8;
/// The longest interval that fits, in hundredths of a second.
pub const MAX_INTERVAL: u16 = 0x0fff;
/// More addresses do not fit into a packet of 1,280 bytes.
pub const MAX_V6_ADDRESSES: usize = 77;
/// The most IPv4 addresses: the field with their number has eight bits.
pub const MAX_V4_ADDRESSES: usize = 255;

/// What an active router tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertisement {
    /// The virtual router's id, 1-255.
    pub id: u8,
    /// The sender's priority; 0: it gives the addresses up.
    pub priority: u8,
    /// The interval between advertisements, in hundredths of a second.
    pub interval: u16,
    /// The virtual addresses, of one family.
    pub addresses: Vec<IpAddr>,
}

/// What an IPv4 packet's checksum covers beside the message. RFC 5798 could be read both
/// ways, and was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Addresses, protocol and length as well, as keepalived and FRR send it.
    WithPseudoHeader,
    /// The message alone, as RFC 9568 says.
    Plain,
}

/// Why a packet is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// The packet has come through a router, or pretends to.
    Ttl,
    /// The packet is of another version, or no advertisement.
    Version,
    /// The checksum is wrong.
    Checksum,
    /// The length of the packet, or a number in it, cannot be.
    Malformed,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ParseError {
    /// The error's word, by which it is counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttl => "ttl",
            Self::Version => "version",
            Self::Checksum => "checksum",
            Self::Malformed => "malformed",
        }
    }
}

impl Advertisement {
    /// The message, as it is sent between these addresses.
    pub fn write(&self, source: IpAddr, destination: IpAddr, covers: Checksum) -> Vec<u8> {
        let mut message = vec![
            VERSION_3_ADVERTISEMENT,
            self.id,
            self.priority,
            self.addresses.len() as u8,
        ];
        message.extend(self.interval.to_be_bytes());
        message.extend([0; 2]);
        for address in &self.addresses {
            match address {
                IpAddr::V4(v4) => message.extend(v4.octets()),
                IpAddr::V6(v6) => message.extend(v6.octets()),
            }
        }
        let sum = match (source, covers) {
            (IpAddr::V4(_), Checksum::Plain) => checksum(&[&message]),
            _ => {
                let pseudo = pseudo_header(source, destination, PROTOCOL, message.len());
                checksum(&[&pseudo, &message])
            }
        };
        message[6..8].copy_from_slice(&sum.to_be_bytes());
        message
    }

    /// Reads a message that was sent between these addresses. Both checksums are taken
    /// over IPv4, for they tell damage and nothing else.
    ///
    /// # Errors
    /// The message is not as the RFC has it.
    pub fn read(message: &[u8], source: IpAddr, destination: IpAddr) -> Result<Self, ParseError> {
        let (header, addresses) = message
            .split_at_checked(HEADER)
            .ok_or(ParseError::Malformed)?;
        if header[0] != VERSION_3_ADVERTISEMENT {
            return Err(ParseError::Version);
        }
        let pseudo = pseudo_header(source, destination, PROTOCOL, message.len());
        let is_whole =
            checksum(&[&pseudo, message]) == 0 || source.is_ipv4() && checksum(&[message]) == 0;
        if !is_whole {
            return Err(ParseError::Checksum);
        }
        let interval = u16::from_be_bytes([header[4], header[5]]) & MAX_INTERVAL;
        let addresses: Vec<IpAddr> = match source {
            IpAddr::V4(_) => {
                let (all, rest) = addresses.as_chunks::<4>();
                let all = all.iter().map(|octets| Ipv4Addr::from(*octets).into());
                rest.is_empty().then(|| all.collect())
            }
            IpAddr::V6(_) => {
                let (all, rest) = addresses.as_chunks::<16>();
                let all = all.iter().map(|octets| Ipv6Addr::from(*octets).into());
                rest.is_empty().then(|| all.collect())
            }
        }
        .ok_or(ParseError::Malformed)?;
        let is_counted = addresses.len() == usize::from(header[3]) && !addresses.is_empty();
        if header[1] == 0 || interval == 0 || !is_counted {
            return Err(ParseError::Malformed);
        }
        Ok(Self {
            id: header[1],
            priority: header[2],
            interval,
            addresses,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(v6: bool) -> (Advertisement, IpAddr, IpAddr) {
        let text = match v6 {
            false => ["192.0.2.80", "192.0.2.1", "224.0.0.18"],
            true => ["2001:db8::80", "fe80::1", "ff02::12"],
        };
        let [address, source, destination] = text.map(|text| text.parse().unwrap());
        let advertisement = Advertisement {
            id: 51,
            priority: 150,
            interval: 100,
            addresses: vec![address; 3],
        };
        (advertisement, source, destination)
    }

    #[test]
    fn what_is_written_is_read() {
        for v6 in [false, true] {
            let (sent, source, destination) = one(v6);
            for covers in [Checksum::WithPseudoHeader, Checksum::Plain] {
                let message = sent.write(source, destination, covers);
                let read = Advertisement::read(&message, source, destination);
                assert_eq!(read.as_ref(), Ok(&sent));
                for at in 0..message.len() {
                    let mut damaged = message.clone();
                    damaged[at] ^= 1;
                    let read = Advertisement::read(&damaged, source, destination);
                    assert!(read.is_err(), "byte {at}");
                    assert!(Advertisement::read(&message[..at], source, destination).is_err());
                }
            }
        }
    }

    /// By hand, from the figure of the RFC.
    #[test]
    fn the_form_is_that_of_the_rfc() {
        let (mut sent, source, destination) = one(false);
        sent.addresses.truncate(1);
        let plain = sent.write(source, destination, Checksum::Plain);
        // 0x3133 + 0x9601 + 0x0064 + 0xc000 + 0x0250 = 0x189e8
        assert_eq!(plain, [0x31, 51, 150, 1, 0, 100, 0x76, 0x16, 192, 0, 2, 80]);
        let other = sent.write(source, destination, Checksum::WithPseudoHeader);
        assert_ne!(plain[6..8], other[6..8]);
        // Another destination is another checksum over IPv6, always.
        let (sent, source, destination) = one(true);
        let message = sent.write(source, destination, Checksum::Plain);
        let read = Advertisement::read(&message, source, source);
        assert_eq!(read, Err(ParseError::Checksum));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let (sent, source, destination) = one(false);
        let write = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut message = sent.write(source, destination, Checksum::Plain);
            change(&mut message);
            message[6..8].fill(0);
            let sum = checksum(&[&message]);
            message[6..8].copy_from_slice(&sum.to_be_bytes());
            Advertisement::read(&message, source, destination)
        };
        assert_eq!(write(&|_| ()), Ok(sent.clone()));
        assert_eq!(write(&|m| m[0] = 0x21), Err(ParseError::Version));
        assert_eq!(write(&|m| m[0] = 0x32), Err(ParseError::Version));
        for change in [
            &(|m: &mut Vec<u8>| m[1] = 0) as &dyn Fn(&mut Vec<u8>),
            &|m| m[3] = 2,
            &|m| m[3] = 0,
            &|m| m.truncate(8),
            &|m| m.extend([0; 2]),
            &|m| m[4..6].fill(0),
        ] {
            assert_eq!(write(change), Err(ParseError::Malformed));
        }
        // The upper bits of the interval are reserved, and ignored.
        assert_eq!(write(&|m| m[4] |= 0xf0), Ok(sent.clone()));
    }
}

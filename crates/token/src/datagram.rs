//! A UDP datagram as far as tokens are concerned, and a token as it stands in its IP header:
//! an option of IPv4, or of an IPv6 destination options header. The reference that the
//! programs in the kernel (`bpf/token/sign_datagram.h`, `bpf/token/datagram.h`) are held against.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    OPTION_BYTES, TokenOption,
    option::{OptionError, find_kind, note_token},
};

/// The number of the option, in IPv4 as in IPv6: one for experiments (RFC 4727) that does not
/// go into later fragments, and that who does not know it passes over.
pub const IP_KIND: u8 = 30;
/// The length of the IPv6 extension header with a token.
pub const EXTENSION_BYTES: usize = 24;

const UDP: u8 = 17;
const DESTINATION_OPTIONS: u8 = 60;
const FRAGMENT: u8 = 44;
/// IPv6 headers before UDP's that are gone through.
const CHAIN: usize = 6;
/// Bytes of destination options that are looked through.
pub(crate) const EXTENSION_MOST: usize = 62;
const PAD1: u8 = 0;
const PAD_N: u8 = 1;

/// A datagram as far as it counts here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Address and port of the sender.
    pub source: (IpAddr, u16),
    /// Address and port of the receiver.
    pub dest: (IpAddr, u16),
    /// Its token, if there is one, unless its options contradict themselves.
    pub token: Result<Option<TokenOption>, OptionError>,
}

impl Datagram {
    /// The datagram in an IP packet; `None`: it is none, a part of one, or behind headers that
    /// are not gone through.
    pub fn read(packet: &[u8]) -> Option<Self> {
        let (source, dest, udp): (IpAddr, IpAddr, &[u8]);
        let token;
        match packet.first()? >> 4 {
            4 => {
                let head: &[u8; 20] = packet.first_chunk()?;
                let part = |at: usize| head[at..].first_chunk::<4>().copied();
                let length = usize::from(head[0] & 15) * 4;
                let is_fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
                if length < 20 || is_fragment || head[9] != UDP {
                    return None;
                }
                source = Ipv4Addr::from(part(12)?).into();
                dest = Ipv4Addr::from(part(16)?).into();
                udp = packet.get(length..)?;
                token = find_kind(&packet[20..length], IP_KIND);
            }
            6 => {
                let (head, mut rest): (&[u8; 40], _) = packet.split_first_chunk()?;
                let part = |at: usize| head[at..].first_chunk::<16>().copied();
                source = Ipv6Addr::from(part(8)?).into();
                dest = Ipv6Addr::from(part(24)?).into();
                let mut next = head[6];
                let mut options: &[u8] = &[];
                for _ in 0..CHAIN {
                    // Hop-by-hop options, routing, destination options.
                    if !matches!(next, 0 | 43 | FRAGMENT | DESTINATION_OPTIONS) {
                        break;
                    }
                    let [after, length, offset, more, ..] = rest else {
                        return None;
                    };
                    let length = match next {
                        // That of a whole packet (RFC 6946).
                        FRAGMENT if *offset == 0 && more & 0xf9 == 0 => 8,
                        FRAGMENT => return None,
                        _ => (usize::from(*length) + 1) * 8,
                    };
                    if next == DESTINATION_OPTIONS && *after == UDP {
                        options = rest.get(2..length)?;
                    }
                    next = *after;
                    rest = rest.get(length..)?;
                }
                if next != UDP {
                    return None;
                }
                udp = rest;
                token = match options.len() <= EXTENSION_MOST {
                    true => find_ipv6(options),
                    false => Ok(None),
                };
            }
            _ => return None,
        }
        let [a, b, c, d] = *udp.first_chunk()?;
        Some(Self {
            source: (source, u16::from_be_bytes([a, b])),
            dest: (dest, u16::from_be_bytes([c, d])),
            token,
        })
    }
}

/// The token among options of an IPv6 extension header, whose lengths are without their
/// heads.
pub(crate) fn find_ipv6(mut options: &[u8]) -> Result<Option<TokenOption>, OptionError> {
    let mut found = None;
    while let [kind, rest @ ..] = options {
        if *kind == PAD1 {
            options = rest;
            continue;
        }
        let length = 2 + usize::from(*rest.first().ok_or(OptionError::Length)?);
        let (option, rest) = options
            .split_at_checked(length)
            .ok_or(OptionError::Length)?;
        note_token(&mut found, option, IP_KIND)?;
        options = rest;
    }
    Ok(found.as_ref().map(TokenOption::of))
}

impl TokenOption {
    /// The token as it stands among the options of an IPv4 header.
    pub fn ipv4_bytes(&self) -> [u8; OPTION_BYTES] {
        let mut bytes = self.bytes();
        bytes[0] = IP_KIND;
        bytes
    }

    /// The IPv6 extension header that stands before UDP's.
    pub fn ipv6_header(&self) -> [u8; EXTENSION_BYTES] {
        let mut bytes = [0; EXTENSION_BYTES];
        bytes[..4].copy_from_slice(&[UDP, EXTENSION_BYTES as u8 / 8 - 1, PAD_N, 0]);
        bytes[4..].copy_from_slice(&self.bytes());
        bytes[4] = IP_KIND;
        bytes[5] = OPTION_BYTES as u8 - 2;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: TokenOption = TokenOption {
        version: 1,
        key_id: 3,
        epoch: 0x1234,
        tag: *b"tag!",
        mac: *b"mac-mac!",
    };

    /// IPv4 with these options.
    fn ipv4(options: &[u8]) -> Vec<u8> {
        let words = 5 + options.len() as u8 / 4;
        let mut packet = vec![0x40 | words, 0, 0, 0, 0, 0, 0x40, 0, 64, UDP, 0, 0];
        packet.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend(options);
        packet.extend([0, 7, 0, 53, 0, 8, 0, 0]);
        packet
    }

    fn ipv6(first: u8, extension: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, first, 64];
        packet.extend([[0x20; 16], [0x21; 16]].concat());
        packet.extend(extension);
        packet.extend([0, 7, 0, 53, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn a_token_is_found_in_either_family() {
        let token = |packet: &[u8]| Datagram::read(packet).unwrap().token;
        assert_eq!(token(&ipv4(&[])), Ok(None));
        assert_eq!(token(&ipv4(&TOKEN.ipv4_bytes())), Ok(Some(TOKEN)));
        let behind = [&[1, 1, 1, 1][..], &TOKEN.ipv4_bytes()].concat();
        assert_eq!(token(&ipv4(&behind)), Ok(Some(TOKEN)));
        let twice = TOKEN.ipv4_bytes().repeat(2);
        assert_eq!(token(&ipv4(&twice)), Err(OptionError::Several));
        // That of a SYN is none here.
        assert_eq!(token(&ipv4(&TOKEN.bytes())), Ok(None));

        assert_eq!(token(&ipv6(UDP, &[])), Ok(None));
        let header = TOKEN.ipv6_header();
        assert_eq!(token(&ipv6(60, &header)), Ok(Some(TOKEN)));
        let mut cut = header;
        cut[5] = 20;
        assert_eq!(token(&ipv6(60, &cut)), Err(OptionError::Length));
        cut[5] = 17;
        assert_eq!(token(&ipv6(60, &cut)), Err(OptionError::TokenLength));
        // Behind the fragment header of a whole packet, whose second byte is no length.
        let mut whole = [&[60, 9, 0, 6, 1, 2, 3, 4][..], &header].concat();
        assert_eq!(token(&ipv6(FRAGMENT, &whole)), Ok(Some(TOKEN)));
        for part in [[0, 1], [0, 8], [1, 0]] {
            whole[2..4].copy_from_slice(&part);
            assert_eq!(Datagram::read(&ipv6(FRAGMENT, &whole)), None, "{part:?}");
        }
        // Behind hop-by-hop options; and not before another header.
        let hops = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &header].concat();
        assert_eq!(token(&ipv6(0, &hops)), Ok(Some(TOKEN)));
        let mut before = header.to_vec();
        before[0] = 60;
        before.extend([UDP, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(token(&ipv6(60, &before)), Ok(None));
    }

    #[test]
    fn what_is_no_datagram_is_not_read() {
        let mut whole = ipv6(60, &TOKEN.ipv6_header());
        for length in 0..whole.len() - 4 {
            assert_eq!(Datagram::read(&whole[..length]), None, "{length}");
        }
        whole[6] = 44;
        assert_eq!(Datagram::read(&whole), None);
        let mut fragment = ipv4(&[]);
        fragment[6] = 0x20;
        assert_eq!(Datagram::read(&fragment), None);
    }
}

//! What ARP (RFC 826, RFC 5227) and neighbour discovery (RFC 4861, RFC 4862) say of who has
//! an address: frames that ask whether somebody has it, frames that announce it, and
//! those of others read. [`claim`] decides what follows; sockets are the caller's.

pub mod claim;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{checksum, pseudo_header};

/// An Ethernet address.
pub type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];
const ETHERNET: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ARP: usize = 28;
const IPV6: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// An advertisement or solicitation without options.
const ND: usize = 24;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// The override flag of an advertisement, which replaces entries in caches.
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The claim of a message to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// The sender has the address.
    Has,
    /// The sender is about to take the address, if nobody has it.
    Probes,
}

/// A message that tells who has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The link-layer address of the sender.
    pub sender: Mac,
    /// The address that the message is about.
    pub address: IpAddr,
    /// The sender's claim to that address.
    pub says: Says,
}

/// Why a frame is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Asks whether somebody has the address, without filling anybody's cache: an ARP probe,
/// or a solicitation of duplicate address detection.
pub fn probe(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => arp(mac, Ipv4Addr::UNSPECIFIED, v4),
        IpAddr::V6(v6) => {
            let group = solicited_node(v6);
            nd(mac, SOLICITATION, 0, (Ipv6Addr::UNSPECIFIED, group), v6)
        }
    }
}

/// Tells all that this is where the address is: an ARP announcement (gratuitous ARP), or
/// an unsolicited neighbour advertisement.
pub fn announcement(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => arp(mac, v4, v4),
        IpAddr::V6(v6) => nd(mac, ADVERTISEMENT, OVERRIDE, (v6, ALL_NODES), v6),
    }
}

fn ethernet(from: Mac, to: Mac, ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + IPV6 + ND + 8);
    frame.extend(to);
    frame.extend(from);
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn arp(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(mac, BROADCAST, ETHERTYPE_ARP);
    frame.extend(1u16.to_be_bytes());
    frame.extend(ETHERTYPE_IPV4.to_be_bytes());
    frame.extend([6, 4, 0, 1]);
    frame.extend(mac);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

fn nd(
    mac: Mac,
    kind: u8,
    flags: u8,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend(target.octets());
    // A solicitation without a source has none of the sender either.
    if !source.is_unspecified() {
        message.extend([TARGET_ADDRESS, 1]);
        message.extend(mac);
    }
    let header = pseudo_header(source.into(), destination.into(), ICMPV6, message.len());
    let sum = checksum(&[&header, &message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let [.., a, b, c, d] = destination.octets();
    let mut frame = ethernet(mac, [0x33, 0x33, a, b, c, d], ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(message);
    frame
}

/// The group that asks for an address are sent to.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let [high, low] = [0xff00 | u16::from(a), u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low)
}

/// Reads a frame from its Ethernet header on. None: it says of no address who has it.
///
/// # Errors
/// It is ARP or neighbour discovery, and not as their RFCs have it.
pub fn read(frame: &[u8]) -> Result<Option<Message>, Malformed> {
    let (header, rest) = frame.split_at_checked(ETHERNET).ok_or(Malformed)?;
    match u16::from_be_bytes([header[12], header[13]]) {
        ETHERTYPE_ARP => read_arp(rest).map(Some),
        ETHERTYPE_IPV6 => read_ipv6(rest, array(&header[6..12])),
        _ => Ok(None),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a slice of this length is given")
}

fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

fn read_arp(packet: &[u8]) -> Result<Message, Malformed> {
    let packet = packet.get(..ARP).ok_or(Malformed)?;
    let sender = array(&packet[8..14]);
    let of_ethernet = packet[..6] == [0, 1, 8, 0, 6, 4] && packet[6] == 0;
    let operation = packet[7];
    if !of_ethernet || !(1..=2).contains(&operation) || !is_station(sender) {
        return Err(Malformed);
    }
    let [from, target] = [14, 24].map(|at| Ipv4Addr::from(array::<4>(&packet[at..at + 4])));
    let (address, says) = match (from.is_unspecified(), operation) {
        (false, _) => (from, Says::Has),
        (true, 1) => (target, Says::Probes),
        (true, _) => return Err(Malformed),
    };
    if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
        return Err(Malformed);
    }
    Ok(Message {
        sender,
        address: address.into(),
        says,
    })
}

fn read_ipv6(packet: &[u8], link: Mac) -> Result<Option<Message>, Malformed> {
    let (header, rest) = packet.split_at_checked(IPV6).ok_or(Malformed)?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 {
        return Err(Malformed);
    }
    if header[6] != ICMPV6 {
        return Ok(None);
    }
    let message = rest.get(..len).ok_or(Malformed)?;
    let kind = *message.first().ok_or(Malformed)?;
    if ![SOLICITATION, ADVERTISEMENT].contains(&kind) {
        return Ok(None);
    }
    let [source, destination] = [8, 24].map(|at| Ipv6Addr::from(array::<16>(&header[at..at + 16])));
    let pseudo = pseudo_header(source.into(), destination.into(), ICMPV6, len);
    // From another segment, or damaged.
    if header[7] != 255 || len < ND || message[1] != 0 || checksum(&[&pseudo, message]) != 0 {
        return Err(Malformed);
    }
    let target = Ipv6Addr::from(array::<16>(&message[8..ND]));
    let option = link_address(&message[ND..])?;
    if target.is_multicast() || target.is_unspecified() || source.is_multicast() {
        return Err(Malformed);
    }
    let (address, says) = match kind {
        ADVERTISEMENT => (target, Says::Has),
        _ if !source.is_unspecified() => (source, Says::Has),
        _ if option.is_some() || destination != solicited_node(target) => return Err(Malformed),
        _ => (target, Says::Probes),
    };
    let sender = option.unwrap_or(link);
    if !is_station(sender) {
        return Err(Malformed);
    }
    Ok(Some(Message {
        sender,
        address: address.into(),
        says,
    }))
}

/// The link-layer address that the options have; each has a length in units of 8 bytes.
fn link_address(mut options: &[u8]) -> Result<Option<Mac>, Malformed> {
    let mut found = None;
    while !options.is_empty() {
        let len = options.get(1).map_or(0, |units| usize::from(*units) * 8);
        let (option, rest) = options.split_at_checked(len).ok_or(Malformed)?;
        match option.first() {
            None => return Err(Malformed),
            Some(&(SOURCE_ADDRESS | TARGET_ADDRESS)) => found = Some(array(&option[2..8])),
            Some(_) => (),
        }
        options = rest;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    fn addresses() -> [IpAddr; 2] {
        ["192.0.2.80", "2001:db8::1:80"].map(|text| text.parse().unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        for address in addresses() {
            for (frame, says) in [
                (probe(MAC, address), Says::Probes),
                (announcement(MAC, address), Says::Has),
            ] {
                // A short frame has an Ethernet's padding behind it.
                let mut padded = frame.clone();
                padded.resize(frame.len().max(60), 0);
                for frame in [&frame, &padded] {
                    let sender = MAC;
                    let message = Message {
                        sender,
                        address,
                        says,
                    };
                    assert_eq!(read(frame), Ok(Some(message)));
                }
                for cut in 0..frame.len() {
                    assert_eq!(read(&frame[..cut]), Err(Malformed), "cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn frames_are_as_the_rfcs_have_them() {
        let [v4, v6] = addresses();
        let frame = announcement(MAC, v4);
        assert_eq!(
            frame[..14],
            [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 8, 6]
        );
        assert_eq!(frame[20..22], [0, 1]); // a request, as RFC 5227 3 recommends
        assert_eq!(
            (&frame[28..32], &frame[38..42]),
            (&[192, 0, 2, 80][..], &[192, 0, 2, 80][..])
        );
        assert_eq!(probe(MAC, v4)[28..32], [0; 4]);
        let frame = probe(MAC, v6);
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x01, 0x00, 0x80]);
        assert_eq!((frame[21], frame.len()), (255, 14 + 40 + 24));
        let frame = announcement(MAC, v6);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(
            (frame[58], &frame[78..]),
            (0x20, &[2, 1, 2, 0, 0, 0, 0, 7][..])
        );
    }

    /// Each byte that decides is wrong once.
    #[test]
    fn what_is_not_as_the_rfcs_have_it_is_refused() {
        let [v4, v6] = addresses();
        let good = announcement(MAC, v4);
        for (at, value) in [
            (15, 6),
            (17, 1),
            (18, 8),
            (19, 6),
            (20, 1),
            (21, 3),
            (21, 0),
            (22, 3),
        ] {
            let mut frame = good.clone();
            frame[at] = value;
            assert_eq!(read(&frame), Err(Malformed), "byte {at}");
        }
        for sender in [[0, 0, 0, 0], [224, 0, 0, 1], [255; 4]] {
            let mut frame = good.clone();
            frame[28..32].copy_from_slice(&sender);
            frame[21] = 2; // a reply without a sender is none
            assert_eq!(read(&frame), Err(Malformed), "{sender:?}");
        }
        let good = announcement(MAC, v6);
        for at in [14, 21, 22, 38, 54, 55, 56, 60, 62, 78, 79, 80] {
            let mut frame = good.clone();
            frame[at] ^= 0x40;
            let read = read(&frame);
            assert!(
                matches!(read, Err(Malformed) | Ok(None)),
                "byte {at}: {read:?}"
            );
        }
        // An option without a length would be read for ever.
        let mut options = good.clone();
        options[79] = 0;
        assert_eq!(link_address(&options[78..]), Err(Malformed));
        assert_eq!(read(&ethernet(MAC, MAC, 0x0800)), Ok(None));
    }
}

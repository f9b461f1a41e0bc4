//! Who is on the segments of this host, with their link-layer addresses: the kernel's
//! neighbour table by rtnetlink. It has those that this host has sent to lately; of the
//! reals of pools it has them by their checks.

use std::{collections::BTreeMap, io, net::IpAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// linux/rtnetlink.h, linux/netlink.h, linux/neighbour.h
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_AND_DUMP: u16 = 0x301;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Reachable, stale, delay, probe, permanent: an address is known.
const NUD_KNOWN: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;
/// Of the head of a message, and of what a neighbour's has behind it.
const HEAD: usize = 16;
const NDMSG: usize = 12;

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// The neighbours of an interface; 0: of all.
pub(crate) fn neighbours(ifindex: u32) -> io::Result<BTreeMap<IpAddr, Mac>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is 0, the default
    )?;
    let mut request = Vec::with_capacity(HEAD + NDMSG);
    request.extend(((HEAD + NDMSG) as u32).to_ne_bytes());
    request.extend(RTM_GETNEIGH.to_ne_bytes());
    request.extend(NLM_F_REQUEST_AND_DUMP.to_ne_bytes());
    request.extend([0; 8 + NDMSG]);
    send(&socket, &request, SendFlags::empty())?;
    let mut found = BTreeMap::new();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let len = match recv(&socket, &mut *buffer, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?.0,
        };
        if !read(&buffer[..len], ifindex, &mut found)? {
            return Ok(found);
        }
    }
}

/// One datagram of the answer; false: it was the last.
fn read(mut rest: &[u8], ifindex: u32, found: &mut BTreeMap<IpAddr, Mac>) -> io::Result<bool> {
    if rest.is_empty() {
        return Ok(false);
    }
    while rest.len() >= HEAD {
        let size = word(rest, 0) as usize;
        if size < HEAD || size > rest.len() {
            break;
        }
        let body = &rest[HEAD..size];
        match half(rest, 4) {
            NLMSG_DONE => return Ok(false),
            NLMSG_ERROR if body.len() >= 4 => {
                return match word(body, 0) as i32 {
                    0 => Ok(false),
                    errno => Err(io::Error::from_raw_os_error(-errno)),
                };
            }
            RTM_NEWNEIGH => found.extend(neighbour(body, ifindex)),
            _ => (),
        }
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
    }
    Ok(true)
}

fn neighbour(body: &[u8], ifindex: u32) -> Option<(IpAddr, Mac)> {
    let elsewhere = |at| ifindex != 0 && at != ifindex;
    if body.len() < NDMSG || elsewhere(word(body, 4)) || half(body, 8) & NUD_KNOWN == 0 {
        return None;
    }
    let (mut addr, mut mac) = (None, None);
    let mut rest = &body[NDMSG..];
    while rest.len() >= 4 {
        let size = usize::from(half(rest, 0));
        if size < 4 || size > rest.len() {
            break;
        }
        let value = &rest[4..size];
        match half(rest, 2) {
            NDA_DST => addr = address(value),
            NDA_LLADDR => mac = Mac::try_from(value).ok(),
            _ => (),
        }
        rest = &rest[size.next_multiple_of(4).min(rest.len())..];
    }
    Some((addr?, mac.filter(|mac| *mac != [0; 6])?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, ifindex: u32, state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(ifindex.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0; 2]);
        for (kind, value) in attributes {
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut bytes = ((HEAD + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn what_is_resolved_on_this_interface_counts() {
        let mac = [2, 0, 0, 0, 0, 7];
        let (v4, v6) = ([10, 0, 0, 11], [0xfd; 16]);
        let mut answer = message(RTM_NEWNEIGH, 3, 0x02, &[(NDA_DST, &v4), (NDA_LLADDR, &mac)]);
        answer.extend(message(
            RTM_NEWNEIGH,
            3,
            0x04,
            &[(NDA_LLADDR, &mac), (NDA_DST, &v6)],
        ));
        // Another interface, failed, without an address, an odd one.
        answer.extend(message(
            RTM_NEWNEIGH,
            4,
            0x02,
            &[(NDA_DST, &[10, 0, 0, 1]), (NDA_LLADDR, &mac)],
        ));
        answer.extend(message(
            RTM_NEWNEIGH,
            3,
            0x20,
            &[(NDA_DST, &[10, 0, 0, 2]), (NDA_LLADDR, &mac)],
        ));
        answer.extend(message(RTM_NEWNEIGH, 3, 0x02, &[(NDA_DST, &[10, 0, 0, 3])]));
        answer.extend(message(
            RTM_NEWNEIGH,
            3,
            0x02,
            &[(NDA_DST, &[10, 0, 0, 4]), (NDA_LLADDR, &[1, 2])],
        ));
        let mut found = BTreeMap::new();
        assert!(read(&answer, 3, &mut found).unwrap());
        let expected = [(IpAddr::from(v4), mac), (IpAddr::from(v6), mac)];
        assert_eq!(found, expected.into());
        assert!(!read(&message(NLMSG_DONE, 0, 0, &[]), 3, &mut found).unwrap());
        for cut in 0..answer.len() {
            let _ = read(&answer[..cut], 3, &mut BTreeMap::new());
        }
    }

    #[test]
    fn this_host_is_asked() {
        neighbours(1).unwrap();
    }
}

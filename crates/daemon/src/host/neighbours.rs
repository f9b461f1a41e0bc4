//! Who is on the segments of this host, with their link-layer addresses: the kernel's
//! neighbour table by rtnetlink. It has those that this host has sent to lately; of the
//! reals of pools it has them by their checks.

use std::{collections::BTreeMap, io, net::IpAddr};

use weir_netlink::{
    Attributes, Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Protocol, Request,
    ask, family, half, ip, word,
};

/// linux/rtnetlink.h, linux/neighbour.h
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Reachable, stale, delay, probe, permanent: an address is known.
const NUD_KNOWN: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x80;
/// Has the kernel resolve an entry as if somebody sent to it (NTF_USE).
const USE: u8 = 0x01;
/// What a neighbour's message has before its attributes.
const NDMSG: usize = 12;

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// A link-layer address as people write it: `02:00:00:00:00:0a`.
pub(crate) fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The neighbours of an interface; 0: of all.
pub(crate) fn neighbours(ifindex: u32) -> io::Result<BTreeMap<IpAddr, Mac>> {
    let request = Request::new(RTM_GETNEIGH, NLM_F_DUMP, &[0; NDMSG]).finish();
    let found = ask(Protocol::Route, &request, |message| read(message, ifindex))?;
    Ok(found.into_iter().collect())
}

/// Has the kernel find out the link-layer address of this neighbour, as for a packet of this
/// host's own; nothing waits for the answer.
///
/// # Errors
/// The interface is gone, or the kernel has no room.
pub(crate) fn resolve(ifindex: u32, addr: IpAddr) -> io::Result<()> {
    let mut body = [0; NDMSG];
    body[0] = family(addr);
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[10] = USE;
    let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
    let request = Request::new(RTM_NEWNEIGH, flags, &body).address(NDA_DST, addr);
    ask(Protocol::Route, &request.finish(), |_| None::<()>).map(drop)
}

/// Reads a neighbour from a netlink message.
fn read(message: Message<'_>, ifindex: u32) -> Option<(IpAddr, Mac)> {
    let body = message.body;
    let is_elsewhere = ifindex != 0 && word(body, 4)? != ifindex;
    if message.kind != RTM_NEWNEIGH || is_elsewhere || half(body, 8)? & NUD_KNOWN == 0 {
        return None;
    }
    let (mut addr, mut mac) = (None, None);
    for (kind, value) in Attributes::behind(body, NDMSG).iter() {
        match kind {
            NDA_DST => addr = ip(value),
            NDA_LLADDR => mac = Mac::try_from(value).ok(),
            _ => (),
        }
    }
    Some((addr?, mac.filter(|mac| *mac != [0; 6])?))
}

#[cfg(test)]
mod tests {
    use weir_netlink::Messages;

    use super::*;

    fn message(kind: u16, ifindex: u32, state: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(ifindex.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0; 2]);
        let message = Request::new(kind, 0, &body);
        let add = |message: Request, (kind, value): &(u16, &[u8])| message.attribute(*kind, value);
        attributes.iter().fold(message, add).finish()
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
        let read = |bytes: &[u8]| -> Vec<_> {
            let messages = Messages::of(bytes);
            messages
                .filter_map(|message| super::read(message, 3))
                .collect()
        };
        let expected = [(IpAddr::from(v4), mac), (IpAddr::from(v6), mac)];
        assert_eq!(read(&answer), expected);
        for cut in 0..answer.len() {
            assert!(expected.starts_with(&read(&answer[..cut])), "cut at {cut}");
        }
    }

    #[test]
    fn this_host_is_asked() {
        neighbours(1).unwrap();
    }
}

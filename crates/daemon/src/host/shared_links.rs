//! Which interfaces carry frames for others than this host, by rtnetlink: the ports of a
//! bridge or a bond, and those on which virtual machines or containers have interfaces of
//! their own (macvlan, ipvlan). Who is behind these is not seen by what comes in.

use std::{collections::BTreeSet, io};

use weir_netlink::{Attributes, NLM_F_DUMP, Protocol, Request, ask, word};

/// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// What a link's message has before its attributes.
const IFINFOMSG: usize = 16;
/// Interfaces of others on one of this host.
pub(super) const ON_ANOTHER: [&[u8]; 4] = [b"macvlan", b"macvtap", b"ipvlan", b"ipvtap"];

/// Indices of interfaces that carry frames of others: the ports of a bridge or a bond, and
/// those below a macvlan or an ipvlan.
///
/// # Errors
/// The kernel's.
pub(crate) fn shared() -> io::Result<BTreeSet<u32>> {
    let request = Request::new(RTM_GETLINK, NLM_F_DUMP, &[0; IFINFOMSG]).finish();
    let found = ask(Protocol::Route, &request, |message| {
        (message.kind == RTM_NEWLINK).then(|| read(message.body))?
    })?;
    Ok(found.into_iter().collect())
}

/// The index of this link, if it is a port, or of the one below it.
fn read(body: &[u8]) -> Option<u32> {
    let ifindex = word(body, 4)?;
    let attributes = Attributes::behind(body, IFINFOMSG);
    let kind = attributes.nested(IFLA_LINKINFO).get(IFLA_INFO_KIND);
    let kind = kind.map(|name| name.strip_suffix(b"\0").unwrap_or(name));
    match kind.is_some_and(|name| ON_ANOTHER.contains(&name)) {
        true => word(attributes.get(IFLA_LINK)?, 0),
        false => attributes.get(IFLA_MASTER).map(|_| ifindex),
    }
}

#[cfg(test)]
mod tests {
    use weir_netlink::HEADER;

    use super::*;

    /// A link as a dump has it.
    fn link(index: u32, attributes: &[(u16, &[u8])]) -> Option<u32> {
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend([0; 8]);
        let message = Request::new(RTM_NEWLINK, 0, &body);
        let add = |message: Request, (kind, value): &(u16, &[u8])| message.attribute(*kind, value);
        read(&attributes.iter().fold(message, add).finish()[HEADER..])
    }

    #[test]
    fn links_that_carry_others_are_told_from_those_that_do_not() {
        let five = 5u32.to_ne_bytes();
        let kind = |name: &[u8]| {
            let mut info = ((4 + name.len()) as u16).to_ne_bytes().to_vec();
            info.extend(IFLA_INFO_KIND.to_ne_bytes());
            info.extend(name);
            info
        };
        let of = |name: &[u8]| link(7, &[(IFLA_LINK, &five), (IFLA_LINKINFO, &kind(name))]);
        assert_eq!(link(7, &[]), None);
        assert_eq!(link(7, &[(IFLA_MASTER, &five)]), Some(7), "a bridge's port");
        assert_eq!(of(b"macvlan\0"), Some(5));
        assert_eq!(of(b"ipvlan\0"), Some(5));
        // Frames of a VLAN have its tag, and a veth's other end is elsewhere.
        assert_eq!(of(b"vlan\0"), None);
        assert_eq!(of(b"veth\0"), None);
        assert_eq!(read(&[0; 15]), None);
    }
}

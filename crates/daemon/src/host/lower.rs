//! The interfaces by which an interface gets its packets: below a VLAN, a bridge, a bond.

use std::io;

use nix::net::if_::if_nametoindex;
use weir_netlink::{Attributes, NLM_F_DUMP, Protocol, Request, ask, word};

use super::shared_links::ON_ANOTHER;

/// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
/// What a link's message has before its attributes.
const IFINFOMSG: usize = 16;

/// An interface, and which ones it is connected with.
struct Link {
    index: u32,
    name: String,
    /// The one below, in this network namespace.
    below: Option<u32>,
    /// The bridge or bond whose port it is.
    master: Option<u32>,
}

/// The kernel's name of this interface, and then the names of all below it. Programs at each
/// of these may see its packets.
///
/// # Errors
/// The kernel's; there is no such interface.
pub(super) fn with_lower(name: &str) -> io::Result<Vec<String>> {
    let index = if_nametoindex(name)?;
    let request = Request::new(RTM_GETLINK, NLM_F_DUMP, &[0; IFINFOMSG]).finish();
    let links = ask(Protocol::Route, &request, |message| {
        (message.kind == RTM_NEWLINK).then(|| read(message.body))?
    })?;
    Ok(names(&links, index))
}

fn read(body: &[u8]) -> Option<Link> {
    let link = Attributes::behind(body, IFINFOMSG);
    let text = |value: &[u8]| {
        let name = value.strip_suffix(b"\0").unwrap_or(value);
        String::from_utf8_lossy(name).into_owned()
    };
    let kind = link.nested(IFLA_LINKINFO).get(IFLA_INFO_KIND).map(text);
    // Of other kinds IFLA_LINK may be the other end of a pair.
    let is_on_another =
        kind.is_some_and(|kind| kind == "vlan" || ON_ANOTHER.contains(&kind.as_bytes()));
    let is_here = link.get(IFLA_LINK_NETNSID).is_none();
    let below = link.get(IFLA_LINK).filter(|_| is_on_another && is_here);
    Some(Link {
        index: word(body, 4)?,
        name: text(link.get(IFLA_IFNAME)?),
        below: below.and_then(|value| word(value, 0)),
        master: link.get(IFLA_MASTER).and_then(|value| word(value, 0)),
    })
}

fn names(links: &[Link], index: u32) -> Vec<String> {
    let mut all = vec![index];
    let mut next = 0;
    while let Some(&upper) = all.get(next) {
        next += 1;
        let of = links.iter().find(|link| link.index == upper);
        let below = of.and_then(|link| link.below);
        let ports = links.iter().filter(|link| link.master == Some(upper));
        for lower in below.into_iter().chain(ports.map(|link| link.index)) {
            if !all.contains(&lower) {
                all.push(lower);
            }
        }
    }
    let name = |index: &u32| links.iter().find(|link| link.index == *index);
    let named = all.iter().filter_map(name);
    named.map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use weir_netlink::HEADER;

    use super::*;

    /// A link as a dump has it.
    fn link(index: u32, name: &[u8], kind: &[u8], attributes: &[(u16, &[u8])]) -> Link {
        let mut info = weir_netlink::Writer::default();
        info.attribute(IFLA_INFO_KIND, kind);
        let info = info.into_bytes();
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend([0; 8]);
        let message = Request::new(RTM_NEWLINK, 0, &body)
            .attribute(IFLA_IFNAME, name)
            .attribute(IFLA_LINKINFO, &info);
        let add = |message: Request, (kind, value): &(u16, &[u8])| message.attribute(*kind, value);
        read(&attributes.iter().fold(message, add).finish()[HEADER..]).unwrap()
    }

    #[test]
    fn the_ports_of_a_bridge_and_the_interface_of_a_vlan_are_below() {
        let number = |index: u32| index.to_ne_bytes();
        let links = [
            link(1, b"lo\0", b"", &[]),
            link(
                2,
                b"eth0\0",
                b"veth\0",
                &[(IFLA_LINK, &number(3)), (IFLA_MASTER, &number(4))],
            ),
            link(3, b"eth1\0", b"veth\0", &[(IFLA_LINK, &number(2))]),
            link(4, b"br0\0", b"bridge\0", &[]),
            link(5, b"br0.10\0", b"vlan\0", &[(IFLA_LINK, &number(4))]),
            // Its tag is taken off in another network namespace.
            link(
                6,
                b"far\0",
                b"vlan\0",
                &[(IFLA_LINK, &number(4)), (IFLA_LINK_NETNSID, &number(0))],
            ),
        ];
        assert_eq!(names(&links, 5), ["br0.10", "br0", "eth0"]);
        assert_eq!(names(&links, 4), ["br0", "eth0"]);
        assert_eq!(names(&links, 2), ["eth0"]);
        assert_eq!(names(&links, 3), ["eth1"]);
        assert_eq!(names(&links, 6), ["far"]);
        assert_eq!(names(&links, 9), [""; 0]);
        // Each is another's port.
        let two = [
            link(1, b"a\0", b"bond\0", &[(IFLA_MASTER, &number(2))]),
            link(2, b"b\0", b"bond\0", &[(IFLA_MASTER, &number(1))]),
        ];
        assert_eq!(names(&two, 1), ["a", "b"]);
    }

    #[test]
    fn the_kernel_is_asked() {
        assert_eq!(with_lower("lo").unwrap(), ["lo"]);
        assert!(with_lower("no-such").is_err());
    }
}

//! VLAN devices such as eth0.10: which tag their frames have on the wire, and which device
//! the wire is at.

use std::io;

use weir_netlink::{Attributes, Protocol, Request, ask, half, word};

/// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
/// What a link's message has before its attributes.
const IFINFOMSG: usize = 16;

/// What makes a device one of a VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// The number of the device that its frames have a tag at.
    pub parent: u32,
    /// The VLAN's number in the tag.
    pub id: u16,
}

/// The VLAN of a device of this network namespace; `None`: it is of none, or its frames
/// have their tag in another namespace.
pub(crate) fn vlan(ifindex: u32) -> io::Result<Option<Vlan>> {
    let mut body = [0; IFINFOMSG];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let request = Request::new(RTM_GETLINK, 0, &body).finish();
    let found = ask(Protocol::Route, &request, |message| {
        let is_it = message.kind == RTM_NEWLINK && word(message.body, 4)? == ifindex;
        is_it.then(|| read(Attributes::behind(message.body, IFINFOMSG)))?
    })?;
    Ok(found.into_iter().next())
}

fn read(link: Attributes<'_>) -> Option<Vlan> {
    if link.get(IFLA_LINK_NETNSID).is_some() {
        return None;
    }
    let info = link.nested(IFLA_LINKINFO);
    let kind = info.get(IFLA_INFO_KIND)?;
    if kind.split(|byte| *byte == 0).next()? != b"vlan" {
        return None;
    }
    Some(Vlan {
        parent: word(link.get(IFLA_LINK)?, 0)?,
        id: half(info.nested(IFLA_INFO_DATA).get(IFLA_VLAN_ID)?, 0)?,
    })
}

#[cfg(test)]
mod tests {
    use weir_netlink::Writer;

    use super::*;

    /// The flag of an attribute that holds others.
    const NLA_F_NESTED: u16 = 0x8000;

    fn attributes(all: &[(u16, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::default();
        for (kind, value) in all {
            writer.attribute(*kind, value);
        }
        writer.into_bytes()
    }

    fn read(link: &[u8]) -> Option<Vlan> {
        super::read(Attributes::of(link))
    }

    fn info(kind: &[u8]) -> Vec<u8> {
        // With protocol 0x8100 behind the number, in the order of the network.
        let data = attributes(&[(IFLA_VLAN_ID, &10u16.to_ne_bytes()), (5, &[0x81, 0])]);
        attributes(&[(IFLA_INFO_KIND, kind), (IFLA_INFO_DATA, &data)])
    }

    #[test]
    fn a_device_of_a_vlan_is_known_by_its_tag_and_its_parent() {
        let (name, parent) = (b"eth0.10\0", 2u32.to_ne_bytes());
        let whole = info(b"vlan\0");
        let link =
            |info: &[u8]| attributes(&[(3, name), (IFLA_LINK, &parent), (IFLA_LINKINFO, info)]);
        let vlan = Some(Vlan { parent: 2, id: 10 });
        assert_eq!(read(&link(&whole)), vlan);
        let nested = attributes(&[(IFLA_LINK, &parent), (IFLA_LINKINFO | NLA_F_NESTED, &whole)]);
        assert_eq!(read(&nested), vlan);
        assert_eq!(read(&link(&info(b"macvlan\0"))), None);
        assert_eq!(
            read(&attributes(&[(3, name), (IFLA_LINKINFO, &whole)])),
            None
        );
        let elsewhere = [link(&whole), attributes(&[(IFLA_LINK_NETNSID, &[0; 4])])].concat();
        assert_eq!(read(&elsewhere), None);
        for cut in 0..nested.len() {
            assert!(
                read(&nested[..cut]).is_none() || cut >= nested.len() - 4,
                "{cut}"
            );
        }
    }

    #[test]
    fn the_loopback_device_is_of_no_vlan() {
        assert_eq!(vlan(1).unwrap(), None);
        assert!(vlan(u32::MAX).is_err(), "there is no such device");
    }
}

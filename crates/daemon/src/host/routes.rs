//! The way that packets of this host take to an address: by which interface, to whom, and
//! how large they may be. The kernel's own answers, by rtnetlink.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use weir_core::Prefix;
use weir_netlink::{Attributes, NLM_F_DUMP, Protocol, Request, ask, family, half, ip, word};

use super::neighbours::Mac;

/// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
/// Bytes of the fixed headers before a message's attributes.
const RTMSG: usize = 12;
const IFINFOMSG: usize = 16;

/// The way of packets to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// The index of the interface.
    pub ifindex: u32,
    /// The router, or the address itself where it is on the segment.
    pub next_hop: IpAddr,
    /// The address that packets are from, if nobody chooses another.
    pub source: Option<IpAddr>,
    /// A limit of the route's own, one that was learned included.
    pub mtu: Option<u32>,
}

/// The route to an address; `None`: there is none that leads to another host.
pub(crate) fn route(dest: IpAddr) -> io::Result<Option<Route>> {
    let length = if dest.is_ipv4() { 32 } else { 128 };
    let mut body = [0; RTMSG];
    (body[0], body[1]) = (family(dest), length);
    let request = Request::new(RTM_GETROUTE, 0, &body).address(RTA_DST, dest);
    let asked = ask(Protocol::Route, &request.finish(), |message| {
        (message.kind == RTM_NEWROUTE).then(|| read_route(message.body, dest))?
    });
    match asked {
        Err(error) if is_unreachable(&error) => Ok(None),
        asked => Ok(asked?.into_iter().next()),
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
    )
}

fn read_route(body: &[u8], dest: IpAddr) -> Option<Route> {
    if *body.get(7)? != RTN_UNICAST {
        return None;
    }
    let mut route = Route {
        ifindex: 0,
        next_hop: dest,
        source: None,
        mtu: None,
    };
    for (kind, value) in Attributes::behind(body, RTMSG).iter() {
        match kind {
            RTA_OIF => route.ifindex = word(value, 0)?,
            RTA_GATEWAY => route.next_hop = ip(value)?,
            // A router of the other family: its family, then its address.
            RTA_VIA => route.next_hop = ip(value.get(2..)?)?,
            RTA_PREFSRC => route.source = ip(value),
            RTA_METRICS => {
                let mtu = Attributes::of(value).get(RTAX_MTU);
                route.mtu = mtu.and_then(|mtu| word(mtu, 0)).filter(|mtu| *mtu != 0);
            }
            _ => (),
        }
    }
    (route.ifindex != 0).then_some(route)
}

/// The loopback interface, in each network namespace.
const LOOPBACK: u32 = 1;

/// The indices of the interfaces by which packets may leave for an address of these
/// networks: of all routes of all tables. To this host itself that is `lo`.
pub(crate) fn interfaces_to(networks: &[Prefix]) -> io::Result<BTreeSet<u32>> {
    let request = Request::new(RTM_GETROUTE, NLM_F_DUMP, &[0; RTMSG]).finish();
    let found = ask(Protocol::Route, &request, |message| {
        (message.kind == RTM_NEWROUTE).then(|| read_interfaces(message.body, networks))?
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// The interfaces of one route, if it is about one of these networks.
fn read_interfaces(body: &[u8], networks: &[Prefix]) -> Option<Vec<u32>> {
    let [family, bits, .., kind] = *body.first_chunk::<8>()?;
    let unspecified = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let any = unspecified
        .into_iter()
        .find(|any| weir_netlink::family(*any) == family)?;
    let attributes = Attributes::behind(body, RTMSG);
    let dest = attributes.get(RTA_DST).map_or(Some(any), ip)?;
    let dest = Prefix::new(dest, bits)?;
    if !networks
        .iter()
        .any(|one| one.covers(dest) || dest.covers(*one))
    {
        return None;
    }
    match kind {
        RTN_LOCAL => return Some(vec![LOOPBACK]),
        RTN_UNICAST => {}
        _ => return None,
    }
    let by = attributes.get(RTA_OIF).and_then(|index| word(index, 0));
    let mut found: Vec<_> = by.into_iter().collect();
    // struct rtnexthop: its length with attributes, flags, weight, the interface.
    let mut hops = attributes.get(RTA_MULTIPATH).unwrap_or_default();
    while let Some(length) = half(hops, 0).map(usize::from).filter(|length| *length >= 8) {
        found.extend(word(hops, 4));
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(found)
}

/// An interface's link-layer address, if it has an Ethernet one, and its MTU.
pub(crate) fn interface(ifindex: u32) -> io::Result<(Option<Mac>, u32)> {
    let mut body = [0; IFINFOMSG];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let request = Request::new(RTM_GETLINK, 0, &body).finish();
    let found = ask(Protocol::Route, &request, |message| {
        (message.kind == RTM_NEWLINK).then(|| read_interface(message.body))?
    })?;
    let found = found.into_iter().next();
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// linux/if_arp.h
const ARPHRD_ETHER: u16 = 1;

fn read_interface(body: &[u8]) -> Option<(Option<Mac>, u32)> {
    let is_ethernet = half(body, 2)? == ARPHRD_ETHER;
    let (mut mac, mut mtu) = (None, None);
    for (kind, value) in Attributes::behind(body, IFINFOMSG).iter() {
        match kind {
            IFLA_ADDRESS if is_ethernet => mac = Mac::try_from(value).ok(),
            IFLA_MTU => mtu = word(value, 0),
            _ => (),
        }
    }
    Some((mac, mtu?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_asked() {
        let (mac, mtu) = interface(1).unwrap();
        assert!(mac.is_none() && mtu >= 1280, "{mac:?} {mtu}");
        // Loopback leads to no other host.
        assert_eq!(route([127, 0, 0, 1].into()).unwrap(), None);
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_route_is_read_with_its_router_and_limit() {
        let dest = IpAddr::from([10, 2, 0, 11]);
        let mut body = vec![2, 32, 0, 0, 0, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        body.extend(attribute(RTA_OIF, &7u32.to_ne_bytes()));
        let on_link = read_route(&body, dest).unwrap();
        assert_eq!((on_link.ifindex, on_link.next_hop), (7, dest));
        body.extend(attribute(RTA_GATEWAY, &[10, 1, 0, 254]));
        body.extend(attribute(RTA_PREFSRC, &[10, 1, 0, 1]));
        let mtu = attribute(RTAX_MTU, &1400u32.to_ne_bytes());
        body.extend(attribute(RTA_METRICS, &mtu));
        let expected = Route {
            ifindex: 7,
            next_hop: [10, 1, 0, 254].into(),
            source: Some([10, 1, 0, 1].into()),
            mtu: Some(1400),
        };
        assert_eq!(read_route(&body, dest), Some(expected));
        let via = [&10u16.to_ne_bytes()[..], &[0xfd; 16]].concat();
        body.extend(attribute(RTA_VIA, &via));
        let router = read_route(&body, dest).unwrap().next_hop;
        assert_eq!(router, IpAddr::from([0xfd; 16]));
        body[7] = 6; // blackhole
        assert_eq!(read_route(&body, dest), None);
        for cut in 0..body.len() {
            let _ = read_route(&body[..cut], dest);
        }
    }

    #[test]
    fn the_interfaces_of_routes_to_networks_are_found() {
        let networks = ["192.0.2.0/24", "2001:db8::/32"].map(|text| text.parse().unwrap());
        let found = |body: &[u8]| read_interfaces(body, &networks);
        let head = |family, bits, kind| vec![family, bits, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0];
        let by_7 = attribute(RTA_OIF, &7u32.to_ne_bytes());
        // The default route, of either family; a part of a network; another network.
        for family in [2, 10] {
            let default = [head(family, 0, RTN_UNICAST), by_7.clone()].concat();
            assert_eq!(found(&default), Some(vec![7]));
        }
        let to = |bits, dest: [u8; 4], kind| {
            let dest = attribute(RTA_DST, &dest);
            [head(2, bits, kind), dest, by_7.clone()].concat()
        };
        assert_eq!(found(&to(32, [192, 0, 2, 9], RTN_UNICAST)), Some(vec![7]));
        assert_eq!(found(&to(24, [198, 51, 100, 0], RTN_UNICAST)), None);
        // To an address of this host it is lo; and nowhere by a blackhole.
        assert_eq!(found(&to(32, [192, 0, 2, 9], RTN_LOCAL)), Some(vec![1]));
        assert_eq!(found(&to(24, [192, 0, 2, 0], 6)), None);
        // By several ways at once.
        let hop = |index: u32| [&8u16.to_ne_bytes()[..], &[0, 0], &index.to_ne_bytes()].concat();
        let hops = attribute(RTA_MULTIPATH, &[hop(3), hop(4)].concat());
        let several = [head(2, 0, RTN_UNICAST), hops].concat();
        assert_eq!(found(&several), Some(vec![3, 4]));
        for cut in 0..several.len() {
            let _ = found(&several[..cut]);
        }
    }
}

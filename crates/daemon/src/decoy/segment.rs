//! Who is on the segments of this host: its interfaces, on which addresses of tarpits are
//! answered for, and the neighbours that the kernel knows, which have theirs.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::{ifaddrs::InterfaceAddress, net::if_::if_nametoindex};
use weir_core::{Prefix, PrefixSet};
use weir_enforce::{BootNanos, NeighbourSnapshot, TarpitLink};

use crate::host::{self, neighbours, shared_links::shared};

/// The interfaces and live neighbours of this host now; of the neighbours those inside
/// these prefixes. `dark`: prefixes whose addresses are asked for.
pub(super) fn look(within: &PrefixSet, dark: &PrefixSet) -> io::Result<NeighbourSnapshot> {
    let mut alive: Vec<IpAddr> = neighbours(0)?.into_keys().collect();
    let is_within = |addr: IpAddr| within.lookup(addr).is_some() || dark.lookup(addr).is_some();
    alive.retain(|addr| is_within(*addr));
    let mut links = links()?;
    if !dark.is_empty() {
        asking(&mut links, dark)?;
    }
    Ok(NeighbourSnapshot {
        links,
        alive,
        seconds: (BootNanos::now().0 / 1_000_000_000) as u32,
    })
}

/// Of these prefixes what is in a network of this host. Of IPv4 no other host has to answer
/// questions of this one, whose address is of none of its networks: it would lose its address.
/// In IPv6 every host of the link answers link-local addresses.
pub(super) fn within_networks(dark: &PrefixSet, addresses: &[host::InterfaceAddress]) -> PrefixSet {
    let has_neighbours = |one: &&host::InterfaceAddress| {
        one.network.bits() < 32 && one.address.is_ipv4() && !one.address.is_loopback()
    };
    let networks = addresses
        .iter()
        .filter(has_neighbours)
        .map(|one| one.network);
    let networks: Vec<_> = networks.collect();
    let mut within = PrefixSet::default();
    for prefix in dark.iter() {
        if prefix.addr().is_ipv6() || networks.iter().any(|network| network.covers(prefix)) {
            within.insert(prefix);
            continue;
        }
        for network in networks.iter().filter(|network| prefix.covers(**network)) {
            within.insert(*network);
        }
    }
    within
}

/// Interfaces with an Ethernet address, by index.
fn links() -> io::Result<BTreeMap<u32, TarpitLink>> {
    let addresses = nix::ifaddrs::getifaddrs()?;
    Ok(addresses
        .filter_map(|one| one.address?.as_link_addr().copied())
        .filter_map(|link| Some((u32::try_from(link.ifindex()).ok()?, link.addr()?)))
        .filter(|(_, mac)| *mac != [0; 6])
        .map(|(index, mac)| {
            let link = TarpitLink {
                mac,
                ..TarpitLink::default()
            };
            (index, link)
        })
        .collect())
}

/// Tells those on whose segment such addresses are which of this host's to ask from. None
/// that carries frames for others: who is behind it would be asked by nobody.
fn asking(links: &mut BTreeMap<u32, TarpitLink>, dark: &PrefixSet) -> io::Result<()> {
    let shared = shared()?;
    for one in nix::ifaddrs::getifaddrs()? {
        let Ok(index) = if_nametoindex(one.interface_name.as_str()) else {
            continue;
        };
        let Some(link) = links.get_mut(&index).filter(|_| !shared.contains(&index)) else {
            continue;
        };
        if let Some((addr, subnet)) = v4(&one)
            && dark
                .iter()
                .any(|dark| dark.covers(subnet) || subnet.covers(dark))
        {
            link.addr4.get_or_insert(addr);
        }
        if let Some(addr) = link_local(&one)
            && dark.iter().any(|dark| dark.addr().is_ipv6())
        {
            link.addr6.get_or_insert(addr);
        }
    }
    Ok(())
}

/// An address that has neighbours, and where they are.
fn v4(one: &InterfaceAddress) -> Option<(Ipv4Addr, Prefix)> {
    let addr = one.address?.as_sockaddr_in()?.ip();
    let mask = one.netmask?.as_sockaddr_in()?.ip();
    let bits = mask.to_bits().leading_ones() as u8;
    let subnet = Prefix::new(addr.into(), bits).filter(|_| bits < 32)?;
    Some((addr, subnet))
}

/// Whoever is on the link answers this one.
fn link_local(one: &InterfaceAddress) -> Option<Ipv6Addr> {
    let addr = one.address?.as_sockaddr_in6()?.ip();
    addr.is_unicast_link_local().then_some(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_from_an_address_of_another_network() {
        let at = |text: &str| {
            let (address, bits) = text.split_once('/').unwrap();
            let address = address.parse().unwrap();
            host::InterfaceAddress {
                interface: "eth0".to_owned(),
                address,
                network: Prefix::new(address, bits.parse().unwrap()).unwrap(),
            }
        };
        let within = |dark: &[&str], addresses: &[&str]| {
            let mut all = PrefixSet::default();
            for prefix in dark {
                all.insert(prefix.parse().unwrap());
            }
            let addresses: Vec<_> = addresses.iter().map(|text| at(text)).collect();
            let within = within_networks(&all, &addresses);
            within
                .iter()
                .map(|prefix| prefix.to_string())
                .collect::<Vec<_>>()
        };
        let own = [
            "198.51.100.2/24",
            "203.0.113.7/32",
            "127.0.0.1/8",
            "2001:db8::2/64",
        ];
        assert_eq!(within(&["198.51.100.128/25"], &own), ["198.51.100.128/25"]);
        assert_eq!(
            within(&["192.0.2.0/24", "198.51.100.128/25"], &own),
            ["198.51.100.128/25"]
        );
        assert_eq!(within(&["198.51.0.0/16"], &own), ["198.51.100.0/24"]);
        assert_eq!(within(&["203.0.113.0/24", "127.0.1.0/24"], &own), [""; 0]);
        assert_eq!(within(&["2001:db8:1::/64"], &own), ["2001:db8:1::/64"]);
        assert_eq!(within(&["198.51.100.0/24"], &[]), [""; 0]);
    }
}

//! Which network interfaces there are, and which of them lead outside.
//! Attaching to them is the backend's business.

use std::{collections::BTreeSet, fs, io, net::IpAddr};

use nix::net::if_::InterfaceFlags;
use weir_core::Prefix;

/// All names in this network namespace (/sys may show another one's).
pub(crate) fn all() -> Vec<String> {
    let Ok(list) = nix::net::if_::if_nameindex() else {
        return Vec::new();
    };
    let mut names: Vec<_> = list
        .iter()
        .map(|interface| interface.name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// An address of an interface, with the network that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name.
    pub interface: String,
    /// One of those that the interface has.
    pub address: IpAddr,
    /// The prefix that is on the link with it.
    pub network: Prefix,
}

/// All addresses in this network namespace.
pub(crate) fn addresses() -> Vec<InterfaceAddress> {
    let Ok(all) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let ip = |storage: Option<nix::sys::socket::SockaddrStorage>| {
        let storage = storage?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| Some(IpAddr::from(storage.as_sockaddr_in6()?.ip())))
    };
    let with_network = all.filter_map(|one| {
        let address = ip(one.address)?;
        let bits = match ip(one.netmask)? {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        };
        Some(InterfaceAddress {
            // Without the label of an IPv4 address, as in `eth0:1`.
            interface: match one.interface_name.split_once(':') {
                Some((name, _)) => name.to_owned(),
                None => one.interface_name,
            },
            address,
            network: Prefix::new(address, bits as u8)?,
        })
    });
    with_network.collect()
}

/// Is there an interface of this name? An alternative one (`ip link property`)
/// is as good.
pub(crate) fn is_there(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

/// Whether the flags of an interface say that it takes frames for every multicast group.
pub(crate) fn takes_all_multicast(name: &str) -> bool {
    let taking = InterfaceFlags::IFF_ALLMULTI | InterfaceFlags::IFF_PROMISC;
    let mut all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.any(|one| one.interface_name == name && one.flags.intersects(taking))
}

/// The interfaces that have a default route.
pub(crate) fn with_default_route() -> Vec<String> {
    let read = |path| read(path).unwrap_or_default();
    let names: BTreeSet<_> = default_routes_v4(&read("/proc/net/route"))
        .into_iter()
        .chain(default_routes_v6(&read("/proc/net/ipv6_route")))
        .map(|(interface, _)| interface)
        .collect();
    names.into_iter().collect()
}

/// The gateways of the default routes.
pub(crate) fn default_gateways() -> io::Result<Vec<std::net::IpAddr>> {
    let routes = default_routes_v4(&read("/proc/net/route")?)
        .into_iter()
        .chain(default_routes_v6(&read("/proc/net/ipv6_route")?));
    Ok(routes.filter_map(|(_, gateway)| gateway).collect())
}

/// A kernel without IPv6 has no such file.
fn read(path: &str) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

const RTF_UP: u32 = 0x1;
const RTF_REJECT: u32 = 0x200;

/// (interface, gateway) of each default route in /proc/net/route: columns
/// `Iface Destination Gateway Flags … Mask …`, addresses in host byte order.
fn default_routes_v4(text: &str) -> Vec<(String, Option<std::net::IpAddr>)> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            let [interface, destination, gateway, flags, _, _, _, mask, ..] = columns[..] else {
                return None;
            };
            let flags = u32::from_str_radix(flags, 16).ok()?;
            if destination != "00000000"
                || mask != "00000000"
                || flags & RTF_UP == 0
                || flags & RTF_REJECT != 0
            {
                return None;
            }
            let gateway = u32::from_str_radix(gateway, 16).ok()?;
            let gateway =
                (gateway != 0).then(|| std::net::Ipv4Addr::from(gateway.to_ne_bytes()).into());
            Some((interface.to_owned(), gateway))
        })
        .collect()
}

/// Default routes of /proc/net/ipv6_route: `destination length source length gateway metric
/// refs use flags interface`.
fn default_routes_v6(text: &str) -> Vec<(String, Option<std::net::IpAddr>)> {
    text.lines()
        .filter_map(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            let [
                destination,
                length,
                _,
                _,
                gateway,
                _,
                _,
                _,
                flags,
                interface,
            ] = columns[..]
            else {
                return None;
            };
            let flags = u32::from_str_radix(flags, 16).ok()?;
            if length != "00"
                || destination.bytes().any(|b| b != b'0')
                || flags & RTF_UP == 0
                || flags & RTF_REJECT != 0
                || interface == "lo"
            {
                return None;
            }
            let gateway = u128::from_str_radix(gateway, 16).ok()?;
            let gateway = (gateway != 0).then(|| std::net::Ipv6Addr::from(gateway).into());
            Some((interface.to_owned(), gateway))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_read() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                  eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
                  ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n\
                  short line\n";
        assert_eq!(
            default_routes_v4(v4),
            [
                ("eth0".to_owned(), Some("192.168.1.1".parse().unwrap())),
                ("ppp0".to_owned(), None)
            ]
        );
        let zeros = "0".repeat(32);
        let gateway = "fe800000000000000000000000000001";
        let v6 = format!(
            "{zeros} 00 {zeros} 00 {gateway} 00000400 00000001 00000000 00000003     eth1\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo\n"
        );
        assert_eq!(
            default_routes_v6(&v6),
            [("eth1".to_owned(), Some("fe80::1".parse().unwrap()))]
        );
    }
}

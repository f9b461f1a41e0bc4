//! Which addresses are no answer to a public name: those that lead inside.

use std::net::IpAddr;

/// The addresses that this host has on any of its interfaces.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
    });
    addresses.collect()
}

/// Why an address is no answer to a public name.
pub(super) fn refusal(addr: IpAddr, own: &[IpAddr]) -> Option<&'static str> {
    let is_private = match addr {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            // 100.64.0.0/10 is a provider's own network.
            v4.is_private() || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    };
    let is_link_local = match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let is_nobody = match addr {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.octets()[0] >= 240,
        IpAddr::V6(v6) => v6.is_unspecified(),
    };
    [
        (addr.is_loopback(), "it is this host's loopback"),
        (own.contains(&addr), "it is an address of this host"),
        (is_private, "it is private"),
        (is_link_local, "it is of the link"),
        (addr.is_multicast() || is_nobody, "it is nobody's"),
    ]
    .into_iter()
    .find_map(|(is_so, why)| is_so.then_some(why))
}

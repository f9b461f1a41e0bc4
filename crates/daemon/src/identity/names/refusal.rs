//! Which addresses are no answer to a public name: those that lead inside.

use std::net::IpAddr;

use crate::host::default_gateways;

/// Addresses of this host and of its routers, whatever these are.
#[derive(Debug, Default)]
pub(super) struct Inside {
    /// On any interface of this host.
    pub(super) own: Vec<IpAddr>,
    /// The gateways of default routes.
    pub(super) routers: Vec<IpAddr>,
}

impl Inside {
    pub(super) fn of_this_host() -> Self {
        let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let addresses = all.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
        });
        Self {
            own: addresses.collect(),
            routers: default_gateways().unwrap_or_default(),
        }
    }
}

/// Why an address is no answer to a public name.
pub(super) fn refusal(addr: IpAddr, inside: &Inside) -> Option<&'static str> {
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
        (inside.own.contains(&addr), "it is an address of this host"),
        (inside.routers.contains(&addr), "it is this host's router"),
        (is_private, "it is private"),
        (is_link_local, "it is of the link"),
        (addr.is_multicast() || is_nobody, "it is nobody's"),
    ]
    .into_iter()
    .find_map(|(is_so, why)| is_so.then_some(why))
}

//! From which of this host's addresses reals are asked: from none that is virtual, for a
//! real has that one itself and would answer nobody else.

use std::net::IpAddr;

use super::State;
use crate::host::InterfaceAddress;

impl State {
    /// Addresses of the interface of the reals, from which checks may ask.
    pub(super) fn find_sources(&self) -> Vec<InterfaceAddress> {
        let is_virtual = |addr: &IpAddr| {
            let mut pools = self.pools.iter();
            pools.any(|pool| pool.config.vips.contains(addr))
        };
        let is_link_local = |addr: &IpAddr| match addr {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let mut sources = crate::host::interface_addresses();
        sources.retain(|one| {
            one.interface == self.interface
                && !is_virtual(&one.address)
                && !is_link_local(&one.address)
        });
        sources
    }
}

/// The one that asks this real: in its network, or else any of its family.
pub(super) fn of(sources: &[InterfaceAddress], real: IpAddr) -> Option<IpAddr> {
    let is_of_family = |one: &&InterfaceAddress| one.address.is_ipv4() == real.is_ipv4();
    let mut of_family = sources.iter().filter(is_of_family);
    let beside = of_family.clone().find(|one| one.network.contains(real));
    Some(beside.or(of_family.next())?.address)
}

#[cfg(test)]
mod tests {
    use weir_core::Prefix;

    use super::*;

    #[test]
    fn a_real_is_asked_from_beside_it() {
        let source = |text: &str| {
            let (address, bits) = text.split_once('/').unwrap();
            let address = address.parse().unwrap();
            InterfaceAddress {
                interface: "eth0".to_owned(),
                address,
                network: Prefix::new(address, bits.parse().unwrap()).unwrap(),
            }
        };
        let sources = ["192.0.2.1/24", "10.0.0.1/8", "2001:db8::1/64"].map(source);
        for (real, from) in [
            ("192.0.2.11", Some("192.0.2.1")),
            ("10.9.9.9", Some("10.0.0.1")),
            ("198.51.100.1", Some("192.0.2.1")),
            ("2001:db8:1::11", Some("2001:db8::1")),
        ] {
            let from = from.map(|from| from.parse().unwrap());
            assert_eq!(of(&sources, real.parse().unwrap()), from, "{real}");
        }
        assert_eq!(of(&sources[..2], "2001:db8::11".parse().unwrap()), None);
    }
}

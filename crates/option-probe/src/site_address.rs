//! The addresses of a site: which of those that its agent tells others may send to, and from
//! which it sends itself.

use std::net::IpAddr;

use crate::agent_protocol::MAX_ADDRESSES;

/// Whether an address may be a host's own by which others reach it: no loopback, link-local,
/// multicast, broadcast or reserved one, nor IPv4 in the form of IPv6.
pub(crate) fn can_be_reached(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0.0.0.0/8 is "this network", 224.0.0.0/4 multicast, 240.0.0.0/4 reserved, with
            // the broadcast address.
            (1..224).contains(&first) && !v4.is_loopback() && !v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            !v6.is_unspecified()
                && !v6.is_loopback()
                && !v6.is_multicast()
                && !v6.is_unicast_link_local()
                && v6.to_ipv4().is_none()
        }
    }
}

/// Addresses that an agent tells of its host, of those that a host may have. What it tells is
/// an attacker's: others send to the first ones.
pub(crate) fn check_told(told: Vec<IpAddr>) -> Result<Vec<IpAddr>, String> {
    if told.len() > MAX_ADDRESSES {
        let count = told.len();
        return Err(format!(
            "its agent tells {count} addresses; allowed: up to {MAX_ADDRESSES}"
        ));
    }
    match told.iter().find(|address| !can_be_reached(address)) {
        Some(address) => Err(format!(
            "its agent tells {address}, which is no address by which others reach a host: nothing is sent to this site"
        )),
        None => Ok(told),
    }
}

/// The address of a family from which a host sends that others reach by `reached_by`, and that
/// has `own` itself.
pub(crate) fn source(reached_by: &[IpAddr], own: &[IpAddr], is_v4: bool) -> Option<IpAddr> {
    let mut reached_by = reached_by.iter().filter(|a| a.is_ipv4() == is_v4);
    let both = reached_by.find(|address| own.contains(address));
    let mut own = own.iter().filter(|a| a.is_ipv4() == is_v4);
    both.or_else(|| own.next()).copied()
}

/// An address that a site takes for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) address: IpAddr,
    /// Others reach the site by it; else it sends from it.
    pub(crate) is_reached: bool,
    /// Only its agent says so.
    pub(crate) is_told: bool,
}

/// The sites, by their places, that share an address with another one, and why they are refused.
/// Two may send from one address, each behind a NAT.
pub(crate) fn refusals(sites: &[(&str, Vec<Claim>)]) -> Vec<(usize, String)> {
    let mut refused = Vec::new();
    for (at, (_, claims)) in sites.iter().enumerate() {
        let others = sites.iter().enumerate().filter(|(other, _)| *other != at);
        let shared = others.flat_map(|(_, (label, theirs))| {
            let pairs = claims
                .iter()
                .flat_map(move |own| theirs.iter().map(move |their| (own, their)));
            pairs.map(move |(own, their)| (*label, own, their))
        });
        let mut shared = shared.filter(|(_, own, their)| {
            let is_shared = own.address == their.address && (own.is_reached || their.is_reached);
            is_shared && (own.is_told || !their.is_told)
        });
        if let Some((label, own, _)) = shared.next() {
            let address = own.address;
            refused.push((
                at,
                match own.is_told {
                    true => format!(
                        "its agent tells {address}, which is the address of site {label}: nothing is sent to this site; allowed: the addresses of both behind /, each another"
                    ),
                    false => format!(
                        "it is named with {address}, as site {label} is; allowed: an address of its own behind /"
                    ),
                },
            ));
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_tells_addresses_of_hosts_only() {
        let read = |text: &str| text.parse::<IpAddr>().unwrap();
        for fine in ["192.0.2.1", "10.0.0.5", "2001:db8::1", "fd00::7"] {
            assert_eq!(check_told(vec![read(fine)]), Ok(vec![read(fine)]));
        }
        for bad in [
            "127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.1.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:192.0.2.1",
        ] {
            let error = check_told(vec![read("192.0.2.1"), read(bad)]).unwrap_err();
            assert!(error.contains("its agent tells "), "{error}");
        }
        let many = vec![read("192.0.2.1"); MAX_ADDRESSES + 1];
        let error = check_told(many).unwrap_err();
        assert_eq!(error, "its agent tells 65 addresses; allowed: up to 64");
    }

    #[test]
    fn an_address_is_that_of_one_site() {
        let claim = |address: &str, is_reached, is_told| Claim {
            address: address.parse().unwrap(),
            is_reached,
            is_told,
        };
        let named = |address| vec![claim(address, true, false), claim(address, false, false)];
        let told = |address| vec![claim(address, true, true), claim(address, false, true)];
        // Behind a NAT: the outer address is named, the inner one told.
        let inner = |outer, inner| vec![claim(outer, true, false), claim(inner, false, true)];
        let refused = |sites: &[Vec<Claim>]| {
            let labels = ["west", "east", "evil"];
            let sites: Vec<_> = labels.into_iter().zip(sites.to_vec()).collect();
            refusals(&sites)
        };
        let (west, east) = ("192.0.2.1", "2001:db8::2");
        assert!(refused(&[named(west), told(east), told("2001:db8::3")]).is_empty());
        let refused_evil = refused(&[named(west), named(east), told(east)]);
        assert_eq!(
            refused_evil,
            [(
                2,
                "its agent tells 2001:db8::2, which is the address of site east: nothing is sent to this site; allowed: the addresses of both behind /, each another".to_owned()
            )]
        );
        let places = |sites: &[Vec<Claim>]| -> Vec<usize> {
            refused(sites).into_iter().map(|(at, _)| at).collect()
        };
        // Who lies is not known.
        assert_eq!(places(&[named(west), told(east), told(east)]), [1, 2]);
        assert_eq!(places(&[named(west), named(east), named(east)]), [1, 2]);
        // It would send in the name of another.
        assert_eq!(places(&[named(west), inner("198.51.100.9", west)]), [1]);
        assert_eq!(places(&[inner(west, "10.0.0.5"), told("10.0.0.5")]), [0, 1]);
        // Two networks may have the same inner addresses.
        let nats = [inner(west, "10.0.0.5"), inner("198.51.100.9", "10.0.0.5")];
        assert!(places(&nats).is_empty());
    }

    #[test]
    fn packets_leave_from_an_address_of_the_host() {
        let read = |list: &[&str]| -> Vec<IpAddr> {
            list.iter().map(|text| text.parse().unwrap()).collect()
        };
        let own = read(&["10.0.0.5", "192.0.2.7", "2001:db8::7"]);
        for (reached_by, is_v4, wanted) in [
            (&["198.51.100.1"][..], true, "10.0.0.5"),
            (&["192.0.2.7"], true, "192.0.2.7"),
            (&["198.51.100.1", "192.0.2.7"], true, "192.0.2.7"),
            (&["198.51.100.1"], false, "2001:db8::7"),
        ] {
            let source = source(&read(reached_by), &own, is_v4).unwrap();
            assert_eq!(source.to_string(), wanted, "{reached_by:?}");
        }
        assert_eq!(source(&read(&["2001:db8::9"]), &own[..2], false), None);
    }
}

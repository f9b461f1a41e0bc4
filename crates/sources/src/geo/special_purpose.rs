//! Addresses that are nowhere: those of RFC 6890's registries that are not globally
//! reachable. Registries of networks give many of them the country of the registry's
//! office, which is why the built-in database is not asked about them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::Prefix;

const IPV4: [([u8; 4], u8); 15] = [
    ([0, 0, 0, 0], 8),       // "this network" (RFC 791)
    ([10, 0, 0, 0], 8),      // private use (RFC 1918)
    ([100, 64, 0, 0], 10),   // between a provider and its customers (RFC 6598)
    ([127, 0, 0, 0], 8),     // loopback (RFC 1122)
    ([169, 254, 0, 0], 16),  // link-local (RFC 3927)
    ([172, 16, 0, 0], 12),   // private use (RFC 1918)
    ([192, 0, 0, 0], 24),    // protocol assignments (RFC 6890)
    ([192, 0, 2, 0], 24),    // documentation (RFC 5737)
    ([192, 168, 0, 0], 16),  // private use (RFC 1918)
    ([198, 18, 0, 0], 15),   // benchmarks (RFC 2544)
    ([198, 51, 100, 0], 24), // documentation (RFC 5737)
    ([203, 0, 113, 0], 24),  // documentation (RFC 5737)
    ([224, 0, 0, 0], 4),     // multicast (RFC 5771)
    ([240, 0, 0, 0], 4),     // reserved, and broadcast (RFC 1112, RFC 919)
    ([192, 88, 99, 0], 24),  // the 6to4 relays that there were (RFC 7526)
];

const IPV6: [(u128, u8); 9] = [
    (0, 96),                           // unspecified, loopback
    (0x0064_ff9b_0001_u128 << 80, 48), // local translation (RFC 8215)
    (0x0100_u128 << 112, 64),          // discard (RFC 6666)
    (0x2001_0000_u128 << 96, 23),      // protocol assignments (RFC 2928)
    (0x2001_0db8_u128 << 96, 32),      // documentation (RFC 3849)
    (0x3fff_u128 << 112, 20),          // documentation (RFC 9637)
    (0xfc00_u128 << 112, 7),           // unique local (RFC 4193)
    (0xfe80_u128 << 112, 10),          // link-local (RFC 4291)
    (0xff00_u128 << 112, 8),           // multicast (RFC 4291)
];

/// Every special-purpose prefix of both families.
pub(super) fn prefixes() -> Vec<Prefix> {
    let v4 = IPV4.map(|(octets, len)| (IpAddr::V4(Ipv4Addr::from(octets)), len));
    let v6 = IPV6.map(|(bits, len)| (IpAddr::V6(Ipv6Addr::from_bits(bits)), len));
    v4.into_iter()
        .chain(v6)
        .filter_map(|(addr, len)| Prefix::new(addr, len))
        .collect()
}

/// The parts of `network` that hold no address of `special`, in order, given to `keep`.
pub(super) fn without(network: Prefix, special: &[Prefix], keep: &mut impl FnMut(Prefix)) {
    if special.iter().any(|one| one.covers(network)) {
        return;
    }
    if !special.iter().any(|one| network.covers(*one)) {
        return keep(network);
    }
    for half in halves(network).into_iter().flatten() {
        without(half, special, keep);
    }
}

/// Both prefixes that are a bit longer; none of a host.
fn halves(network: Prefix) -> Option<[Prefix; 2]> {
    let len = network.bits() + 1;
    let upper = match network.addr() {
        IpAddr::V4(addr) => {
            let bit = 1_u32.checked_shl(32_u32.checked_sub(len.into())?)?;
            IpAddr::V4(Ipv4Addr::from_bits(addr.to_bits() | bit))
        }
        IpAddr::V6(addr) => {
            let bit = 1_u128.checked_shl(128_u32.checked_sub(len.into())?)?;
            IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() | bit))
        }
    };
    Some([Prefix::new(network.addr(), len)?, Prefix::new(upper, len)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(network: &str, special: &[&str]) -> Vec<String> {
        let special: Vec<Prefix> = special.iter().map(|text| text.parse().unwrap()).collect();
        let mut kept = Vec::new();
        without(network.parse().unwrap(), &special, &mut |part| {
            kept.push(part.to_string());
        });
        kept
    }

    #[test]
    fn what_is_left_of_a_network_is_all_of_it_but_the_special_part() {
        assert_eq!(
            parts("192.168.0.0/14", &["192.168.0.0/16"]),
            ["192.169.0.0/16", "192.170.0.0/15"]
        );
        assert_eq!(parts("192.168.1.0/24", &["192.168.0.0/16"]), [""; 0]);
        assert_eq!(parts("8.8.8.0/24", &["192.168.0.0/16"]), ["8.8.8.0/24"]);
        assert_eq!(parts("203.0.113.0/31", &["203.0.113.0"]), ["203.0.113.1"]);
        assert_eq!(
            parts("2001:db8::/31", &["2001:db8::/32"]),
            ["2001:db9::/32"]
        );
        assert_eq!(parts("::1", &["::1"]), [""; 0]);
    }

    #[test]
    fn every_row_of_the_table_is_a_prefix_without_bits_behind_its_length() {
        let all = prefixes();
        assert_eq!(all.len(), IPV4.len() + IPV6.len());
        for one in all {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
    }
}

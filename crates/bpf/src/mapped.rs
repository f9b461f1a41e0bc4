//! Networks of both families as keys of one table, IPv4 as ::ffff:a.b.c.d: how the programs of
//! `[app]` and `[token]` look addresses up.

use std::net::{IpAddr, Ipv6Addr};

use weir_core::Prefix;

/// ::ffff:0:0/96, where IPv4 lies among the addresses of IPv6.
const V4: u128 = 0xffff_0000_0000;
const V4_BITS: u8 = 96;

/// A network of IPv6 around ::ffff:0:0/96; IPv4 is not meant by it.
fn is_around_v4(prefix: Prefix) -> bool {
    prefix.addr().is_ipv6()
        && prefix.bits() < V4_BITS
        && u128::MAX
            .checked_shl(128 - u32::from(prefix.bits()))
            .unwrap_or(0)
            & V4
            == addr_bits(prefix)
}

fn addr_bits(prefix: Prefix) -> u128 {
    match prefix.addr() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// How many keys a network has.
pub(crate) fn key_count(prefix: Prefix) -> usize {
    match is_around_v4(prefix) {
        true => usize::from(V4_BITS - prefix.bits()),
        false => 1,
    }
}

/// The keys of a network: addresses, and how many of their bits count. One; but of ::/0 and
/// others around ::ffff:0:0/96 those of the rest, so that no address of IPv4 is in them.
pub(crate) fn keys(prefix: Prefix) -> Vec<([u8; 16], u32)> {
    if !is_around_v4(prefix) {
        let before = if prefix.addr().is_ipv4() { V4_BITS } else { 0 };
        let bits = u32::from(before) + u32::from(prefix.bits());
        return vec![(addr_bits(prefix).to_be_bytes(), bits)];
    }
    // Of each smaller one around IPv4's the other half.
    let half = |before: u8| {
        let bit = 1_u128 << (127 - before);
        let addr = Ipv6Addr::from_bits((V4 ^ bit) & !(bit - 1));
        (addr.octets(), u32::from(before) + 1)
    };
    (prefix.bits()..V4_BITS).map(half).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(keys: &[([u8; 16], u32)], addr: &str) -> bool {
        let addr = match addr.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        keys.iter().any(|(key, bits)| {
            let rest = 128 - bits;
            let cut = |addr: u128| addr.checked_shr(rest).unwrap_or(0);
            cut(addr) == cut(u128::from_be_bytes(*key))
        })
    }

    #[test]
    fn no_network_of_ipv6_holds_an_address_of_ipv4() {
        for text in [
            "::/0",
            "::/1",
            "::/64",
            "::/80",
            "::8000:0:0/81",
            "::fffe:0:0/95",
        ] {
            let prefix: Prefix = text.parse().unwrap();
            let keys = keys(prefix);
            assert_eq!(keys.len(), key_count(prefix), "{text}");
            for addr in ["0.0.0.0", "127.0.0.1", "192.0.2.1", "255.255.255.255"] {
                assert!(!holds(&keys, addr), "{text}: {addr}");
            }
            let all = [
                "::",
                "::1",
                "::7fff:1:1",
                "::8000:0:1",
                "::fffd:0:1",
                "::fffe:0:1",
                "::fffe:ffff:ffff",
                "::1:0:0:0",
                "2001:db8::1",
                "8000::",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            ];
            for addr in all {
                let is_in = prefix.contains(addr.parse().unwrap());
                assert_eq!(holds(&keys, addr), is_in, "{text}: {addr}");
            }
        }
    }

    #[test]
    fn other_networks_have_one_key() {
        for (text, addr, bits) in [
            ("0.0.0.0/0", "::ffff:0:0", 96),
            ("192.0.2.0/24", "::ffff:192.0.2.0", 120),
            ("2001:db8::/32", "2001:db8::", 32),
            ("::1", "::1", 128),
            ("::fffe:0:0/96", "::fffe:0:0", 96),
        ] {
            let addr: Ipv6Addr = addr.parse().unwrap();
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(keys(prefix), [(addr.octets(), bits)], "{text}");
            assert_eq!(key_count(prefix), 1, "{text}");
        }
    }
}

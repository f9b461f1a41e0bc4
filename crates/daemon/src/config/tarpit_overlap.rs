//! Addresses that somebody has among those of `[tarpit]`, which nobody has.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{balance::config::PoolConfig, decoy::tarpit::TarpitConfig, vips::config::VrrpConfig};

/// So many of them are named.
const NAMED: usize = 4;

/// An error if virtual addresses, reals or peers of these are in `addresses` of `[tarpit]`.
pub(super) fn overlap<'a>(
    tarpit: Option<&TarpitConfig>,
    pools: impl IntoIterator<Item = &'a PoolConfig>,
    routers: &[VrrpConfig],
) -> Option<String> {
    let tarpit = tarpit.filter(|tarpit| !tarpit.addresses.is_empty())?;
    let mut found = BTreeMap::new();
    let mut take = |address: IpAddr, what: &str, of: &str, name: &str| {
        if let Some(prefix) = tarpit.addresses.lookup(address) {
            found.entry(address).or_insert_with(|| {
                format!("{address} is {what} of [{of}.{name}], and in {prefix}")
            });
        }
    };
    for pool in pools {
        for vip in &pool.vips {
            take(*vip, "a virtual address", "pool", &pool.name);
        }
        for real in pool.own_reals() {
            take(real.address, "a real", "pool", &pool.name);
        }
    }
    for router in routers {
        for vip in &router.vips {
            take(*vip, "a virtual address", "vrrp", &router.name);
        }
        for peer in &router.peers {
            take(*peer, "a peer", "vrrp", &router.name);
        }
    }
    let more = match found.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("; {more} more are"),
    };
    let named: Vec<_> = found.into_values().take(NAMED).collect();
    (!named.is_empty()).then(|| {
        format!(
            "addresses in [tarpit]: {}{more}; allowed: prefixes without addresses that somebody has",
            named.join("; ")
        )
    })
}

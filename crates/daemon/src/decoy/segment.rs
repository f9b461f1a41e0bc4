//! Who is on the segments of this host: its interfaces, on which addresses of tarpits are
//! answered for, and the neighbours that the kernel knows, which have theirs.

use std::{collections::BTreeMap, io, net::IpAddr};

use weir_core::PrefixSet;
use weir_enforce::{BootNanos, Segment};

use crate::host::{Mac, neighbours};

/// As it is now; of the neighbours those inside these prefixes.
pub(super) fn look(within: &PrefixSet) -> io::Result<Segment> {
    let mut alive: Vec<IpAddr> = neighbours(0)?.into_keys().collect();
    alive.retain(|addr| within.lookup(*addr).is_some());
    Ok(Segment {
        links: links()?,
        alive,
        seconds: (BootNanos::now().0 / 1_000_000_000) as u32,
    })
}

/// Interfaces with an Ethernet address, by index.
fn links() -> io::Result<BTreeMap<u32, Mac>> {
    let addresses = nix::ifaddrs::getifaddrs()?;
    Ok(addresses
        .filter_map(|one| one.address?.as_link_addr().copied())
        .filter_map(|link| Some((u32::try_from(link.ifindex()).ok()?, link.addr()?)))
        .filter(|(_, mac)| *mac != [0; 6])
        .collect())
}

//! The geofence as nftables would have it: a verdict map of all countries'
//! ranges, judged for every packet, at one of two hooks. It has no counter: nft
//! reads the whole map, some 18 s, to list one; `net` counts around the hook.

use std::{fmt::Write, net::Ipv4Addr};

use anyhow::Context;
use weir_core::geo::Country;
use weir_netlab::Namespace;

use super::{layout::DEVICE, world::Range};

/// The hook and priority of the chain that looks addresses up in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// inet prerouting, before connection tracking.
    Prerouting,
    /// netdev ingress of the device.
    Ingress,
}

/// Loads the rules; IPv4 alone, everything else passes.
pub fn load(
    host: &Namespace,
    at: At,
    ranges: &[Range],
    allow: &[Country],
    dir: &std::path::Path,
) -> anyhow::Result<()> {
    let file = dir.join("geo.nft");
    std::fs::write(&file, rules(at, ranges, allow))?;
    host.run("nft", &["-f".as_ref(), file.as_os_str()])
        .context("load the country map into nft")?;
    Ok(())
}

fn family(at: At) -> &'static str {
    match at {
        At::Prerouting => "inet",
        At::Ingress => "netdev",
    }
}

fn rules(at: At, ranges: &[Range], allow: &[Country]) -> String {
    let hook = match at {
        At::Prerouting => "hook prerouting priority -300".to_owned(),
        At::Ingress => format!("hook ingress device {DEVICE:?} priority 0"),
    };
    let only_ipv4 = match at {
        At::Prerouting => "meta nfproto != ipv4 accept",
        At::Ingress => "meta protocol != ip accept",
    };
    let mut text = format!(
        "table {} geo {{\n map country {{ type ipv4_addr : verdict; flags interval; elements = {{\n",
        family(at)
    );
    for (first, last, country) in ranges {
        let verdict = if allow.contains(country) {
            "accept"
        } else {
            "drop"
        };
        let _ = write!(text, "{}", Ipv4Addr::from(*first));
        if first != last {
            let _ = write!(text, "-{}", Ipv4Addr::from(*last));
        }
        let _ = writeln!(text, " : {verdict},");
    }
    let _ = write!(
        text,
        " }}; }}\n chain judge {{ type filter {hook}; policy accept;\n  \
         {only_ipv4}\n  ip saddr vmap @country\n  drop\n }}\n}}\n"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_has_its_verdict_and_the_rest_is_denied() {
        let nl = Country::from_letters(*b"NL").unwrap();
        let fr = Country::from_letters(*b"FR").unwrap();
        let ranges = [
            (0x0100_0000, 0x0100_00ff, nl),
            (0x0200_0001, 0x0200_0001, fr),
        ];
        let text = rules(At::Ingress, &ranges, &[nl]);
        assert!(text.starts_with("table netdev geo"), "{text}");
        assert!(text.contains("\n1.0.0.0-1.0.0.255 : accept,\n"), "{text}");
        assert!(text.contains("\n2.0.0.1 : drop,\n"), "{text}");
        assert!(text.contains("vmap @country\n  drop\n"), "{text}");
    }
}

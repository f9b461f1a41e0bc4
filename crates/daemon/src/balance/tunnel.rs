//! The way to a real beyond a router: its next hop as the kernel resolves it, the addresses
//! of the outer header, and how large a packet may be. Asked anew each second, as a route
//! and a neighbour change; the packet path looks nothing up.

use std::{io, net::IpAddr};

use weir_enforce::{KnownReal, Real, Tunnel};

use super::{
    config::{PoolConfig, TunnelConfig},
    neighbours::Neighbours,
};
use crate::host;

/// What a client can be told at least: every host takes so large an IPv6 packet (RFC 8200
/// 5), and of IPv4 so large a one that comes together again (RFC 1122 3.3.2).
const LEAST_MTU_V4: u32 = 576;
const LEAST_MTU_V6: u32 = 1280;

/// Where packets for a real go, in which outer header, or why nowhere. Of [`Real::id`] it
/// knows nothing. `before`: how an earlier daemon has left the real in the kernel.
pub(super) fn way(
    pool: &PoolConfig,
    tunnel: &TunnelConfig,
    real: IpAddr,
    before: Option<KnownReal>,
    neighbours: &mut Neighbours,
) -> io::Result<Result<Real, String>> {
    let Some(route) = host::route(real)? else {
        return Ok(Err("there is no route to it".to_owned()));
    };
    let (mac, mtu) = match host::interface_link(route.ifindex) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err("its interface is gone".to_owned()));
        }
        link => link?,
    };
    let Some(mac) = mac else {
        return Ok(Err(
            "the interface to it has no Ethernet address: a tunnel leaves by Ethernet".to_owned(),
        ));
    };
    let chosen = tunnel.sources.iter().copied();
    let chosen = chosen.clone().find(|from| from.is_ipv4() == real.is_ipv4());
    let Some(source) = chosen.or(route.source) else {
        return Ok(Err(
            "this host has no address to send to it from: name one in tunnel_source".to_owned(),
        ));
    };
    let tunnel = Tunnel {
        source,
        dest: real,
        mtu: route.mtu.map_or(mtu, |limit| limit.min(mtu)),
        gue_port: tunnel.gue_port,
    };
    if let Err(why) = fits(pool, &tunnel) {
        return Ok(Err(why));
    }
    let next_hop = (route.ifindex, route.next_hop);
    let before = before.filter(|before| before.is_tunneled && before.ifindex == route.ifindex);
    let before = before.map(|before| before.dest);
    let Some(dest) = neighbours.find(next_hop, before, true)? else {
        return Ok(Err(format!(
            "{} on the way to it does not say its link-layer address",
            route.next_hop
        )));
    };
    Ok(Ok(Real {
        id: 0,
        dest,
        source: mac,
        ifindex: route.ifindex,
        vlan: 0,
        tunnel: Some(tunnel),
        drains: false,
    }))
}

/// Is there room for what every client may send, however small he has to make it?
fn fits(pool: &PoolConfig, tunnel: &Tunnel) -> Result<(), String> {
    let least = match pool.vips.iter().any(IpAddr::is_ipv6) {
        true => LEAST_MTU_V6,
        false => LEAST_MTU_V4,
    };
    let (mtu, overhead) = (tunnel.mtu, tunnel.overhead());
    match mtu >= least + overhead {
        true => Ok(()),
        false => Err(format!(
            "the MTU of the way to it is {mtu}: with an outer header of {overhead} bytes it must be {} at least",
            least + overhead
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::fixture::pool_of;

    #[test]
    fn a_way_too_narrow_for_every_client_is_named() {
        let pool = |vip: &str| PoolConfig {
            vips: vec![vip.parse().unwrap()],
            ..pool_of(0, 80)
        };
        let tunnel = |mtu, dest: &str, gue_port| Tunnel {
            source: dest.parse().unwrap(),
            dest: dest.parse().unwrap(),
            mtu,
            gue_port,
        };
        let cases = [
            ("198.51.100.80", "10.2.0.11", None, 596),
            ("198.51.100.80", "fd02::11", Some(6080), 624),
            ("2001:db8::80", "10.2.0.11", Some(6080), 1308),
            ("2001:db8::80", "fd02::11", None, 1320),
        ];
        for (vip, real, gue_port, least) in cases {
            assert_eq!(fits(&pool(vip), &tunnel(least, real, gue_port)), Ok(()));
            let why = fits(&pool(vip), &tunnel(least - 1, real, gue_port)).unwrap_err();
            assert!(why.contains(&format!("must be {least} at least")), "{why}");
        }
    }
}

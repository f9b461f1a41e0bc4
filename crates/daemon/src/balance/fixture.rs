//! Pools for the tests of what is known of them.

use std::{net::IpAddr, time::Duration};

use super::config::{
    BalanceConfig, CheckConfig, CheckKind, Forward, HttpConfig, Method, PoolConfig, RealConfig,
};

/// A pool with so many reals, checked by HTTP at a port.
pub(super) fn pool_of(reals: usize, port: u16) -> PoolConfig {
    let real = |n: usize| RealConfig {
        address: IpAddr::from([127, 0, (n / 200) as u8, (n % 200) as u8 + 1]),
        weight: 1,
        port: None,
        quic_server_id: None,
        place: None,
    };
    let http = HttpConfig {
        path: "/".to_owned(),
        host: None,
        status: vec![200..=399],
    };
    PoolConfig {
        name: "web".to_owned(),
        vips: vec![],
        ports: vec![],
        reals: (0..reals).map(real).collect(),
        emergency: None,
        acl: None,
        method: Method::Maglev,
        slow_start: Duration::ZERO,
        udp_timeout: Duration::from_secs(60),
        forward: Forward::L2,
        check: CheckConfig {
            kind: CheckKind::Http(http),
            port,
            is_port_chosen: true,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(600),
            rise: 1,
            fall: 1,
            asks_vips: false,
        },
        place: None,
    }
}

/// A configuration with this pool alone.
pub(super) fn config_of(pool: PoolConfig) -> BalanceConfig {
    BalanceConfig {
        interface: Some("eth0".to_owned()),
        announce: false,
        flows: weir_enforce::DEFAULT_FLOWS,
        threads: None,
        pools: vec![pool],
    }
}

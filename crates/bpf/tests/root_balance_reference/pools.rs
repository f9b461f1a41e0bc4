//! Random pools, and their changes.

use std::net::IpAddr;

use weir_core::{
    Protocol,
    balance::{
        acl::{Access, Acl},
        decision::{Method, Pool, Pools, Real, Service, Tunnel},
    },
};

use crate::Random;

/// The link-layer address of this host.
pub(crate) const HERE: [u8; 6] = [2, 0x77, 0x6c, 0xff, 0, 2];
/// The interface by which BPF_PROG_RUN's frames come in: the loopback device.
pub(crate) const INTERFACE: u32 = 1;
pub(crate) const VLAN: u16 = 10;

pub(crate) const VIPS: [[&str; 2]; 2] = [
    ["192.0.2.80", "192.0.2.81"],
    ["2001:db8::80", "2001:db8::81"],
];
pub(crate) const PORTS: [(Protocol, u16); 4] = [
    (Protocol::Tcp, 80),
    (Protocol::Udp, 443),
    (Protocol::Tcp, 53),
    (Protocol::Udp, 53),
];

/// Pools as the kernel and the reference are told of them.
pub(crate) struct Config {
    pub(crate) pools: Pools,
    /// Reals of each pool, and the weight of each.
    pub(crate) members: Vec<Vec<(u16, u32)>>,
    /// The reals as they come back when they were gone.
    all: Vec<Real>,
}

impl Config {
    /// The id of a real, whether it is there or not.
    pub(crate) fn id(&self, number: u16) -> u64 {
        self.all[usize::from(number)].id
    }

    /// Changes each real for good.
    pub(crate) fn each_real(&mut self, change: impl Fn(&mut Real)) {
        self.all.iter_mut().for_each(&change);
        self.pools.reals.iter_mut().flatten().for_each(change);
    }

    /// The reals of the first pool have these server IDs.
    pub(crate) fn name_servers(&mut self, ids: &[&str]) {
        let ids = ids.iter().map(|id| id.parse().unwrap());
        self.pools.pools[0].quic_servers = ids.zip(0..).collect();
    }

    /// New flows go to those that are there, do not drain and have a weight.
    pub(crate) fn fill_rings(&mut self) {
        let Pools { pools, reals, .. } = &mut self.pools;
        for (pool, members) in pools.iter_mut().zip(&self.members) {
            let takes = |number: u16| {
                let real = &reals[usize::from(number)];
                real.as_ref().is_some_and(|real| !real.drains)
            };
            let takers = members
                .iter()
                .filter(|(n, weight)| *weight > 0 && takes(*n));
            pool.ring = takers.map(|(number, _)| *number).collect();
        }
    }
}

fn real(random: &mut Random, number: usize, id: u64, vlan: u16) -> Real {
    let outer = [["10.1.0.1", "10.2.0"], ["fd01::1", "fd02:"]];
    let family = random.below(2);
    let [source, net] = outer[family];
    let dest = [format!("{net}.{number}"), format!("{net}:{number}")];
    let tunnel = Tunnel {
        source: source.parse().unwrap(),
        dest: dest[family].parse().unwrap(),
        mtu: random.pick(&[600, 1280, 1400, 1500]),
        gue_port: random.pick(&[None, Some(6080), Some(7000)]),
    };
    let is_tunneled = random.one_in(2);
    Real {
        id,
        dest: [2, 0, 0, 0, 1, number as u8],
        source: HERE,
        ifindex: if random.one_in(4) { 7 } else { INTERFACE },
        vlan: if is_tunneled { 0 } else { vlan },
        tunnel: is_tunneled.then_some(tunnel),
        drains: random.one_in(10),
    }
}

fn acl(random: &mut Random) -> Acl {
    let rules = [
        "deny 203.0.113.0/25",
        "allow 203.0.113.7",
        "deny 203.0.113.7",
        "allow 198.51.100.0/24",
        "deny 2001:db8:c::/64",
        "allow 2001:db8:c::7",
        "deny 2001:db8:c::7",
        "allow 2001:db8:d::/48",
        "deny ::/0",
        "allow 0.0.0.0/0",
    ];
    let count = random.below(5);
    let rules = (0..count).map(|_| random.pick(&rules).parse().unwrap());
    Acl {
        rules: rules.collect(),
        default: random.pick(&[Access::Allow, Access::Allow, Access::Deny]),
    }
}

/// Pools whose reals have ids from `id` on.
pub(crate) fn generated(random: &mut Random, id: u64) -> Config {
    let vlan = random.pick(&[0, 0, 0, VLAN]);
    let reals = 1 + random.below(8);
    let all: Vec<_> = (0..reals)
        .map(|number| real(random, number, id + number as u64, vlan))
        .collect();
    let count = 1 + random.below(3);
    let mut members = Vec::new();
    let mut pools = Vec::new();
    for number in 0..count {
        // Each real is of one pool.
        let mut of_pool = Vec::new();
        for real in (number..reals).step_by(count) {
            of_pool.push((real as u16, random.pick(&[0, 1, 1, 1, 2, 2, 3, 3])));
        }
        let ids = [
            "0a01", "0a02", "0000", "0a03", "0a04", "0a05", "0a06", "0a07",
        ];
        let named = if random.one_in(2) { of_pool.len() } else { 0 };
        let quic = of_pool.iter().zip(ids).take(named);
        pools.push(Pool {
            ring: Vec::new(),
            method: random.pick(&[
                Method::Flow,
                Method::Flow,
                Method::Turn,
                Method::Least,
                Method::Source,
                Method::SourcePort,
            ]),
            acl: random.one_in(4).then(|| acl(random)),
            quic_servers: quic
                .map(|((real, _), id)| (id.parse().unwrap(), *real))
                .collect(),
        });
        members.push(of_pool);
    }
    let mut services = Vec::new();
    let has_all_ports = random.one_in(2);
    for vip in VIPS.as_flattened() {
        for (protocol, port) in PORTS {
            if !random.one_in(3) {
                services.push(Service {
                    addr: vip.parse::<IpAddr>().unwrap(),
                    protocol,
                    port: Some(port),
                    pool: random.below(count),
                });
            }
        }
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            if has_all_ports && random.one_in(3) {
                // Before those that name a port, or behind them.
                let at = random.below(services.len() + 1);
                let all = Service {
                    addr: vip.parse::<IpAddr>().unwrap(),
                    protocol,
                    port: None,
                    pool: random.below(count),
                };
                services.insert(at, all);
            }
        }
    }
    let mut config = Config {
        pools: Pools {
            services,
            pools,
            reals: all.iter().cloned().map(Some).collect(),
            observe: random.one_in(8),
        },
        members,
        all,
    };
    config.fill_rings();
    config
}

/// Two reals on the segment, which serve the first virtual address of each family.
pub(crate) fn two() -> Config {
    let real = |number: u8| Real {
        id: 1 + u64::from(number),
        dest: [2, 0, 0, 0, 1, number],
        source: HERE,
        ifindex: INTERFACE,
        vlan: 0,
        tunnel: None,
        drains: false,
    };
    let all: Vec<_> = (0..2).map(real).collect();
    let vips = VIPS.iter().map(|[vip, _]| vip.parse().unwrap());
    let services = vips.flat_map(|addr| {
        PORTS.map(|(protocol, port)| Service {
            addr,
            protocol,
            port: Some(port),
            pool: 0,
        })
    });
    let mut config = Config {
        pools: Pools {
            services: services.collect(),
            pools: vec![Pool {
                ring: Vec::new(),
                method: Method::Flow,
                acl: None,
                quic_servers: Vec::new(),
            }],
            reals: all.iter().cloned().map(Some).collect(),
            observe: false,
        },
        members: vec![vec![(0, 1), (1, 1)]],
        all,
    };
    config.fill_rings();
    config
}

/// Two such reals that are reached by GUE over IPv4.
pub(crate) fn two_beyond_a_router(mtu: u32) -> Config {
    let mut config = two();
    config.each_real(|real| {
        real.tunnel = Some(Tunnel {
            source: [10, 1, 0, 1].into(),
            dest: [10, 2, 0, real.dest[5]].into(),
            mtu,
            gue_port: Some(6080),
        });
    });
    config
}

/// Reals go, come back, drain and have other weights.
pub(crate) fn changed(random: &mut Random, config: &mut Config) {
    for (real, of_all) in config.pools.reals.iter_mut().zip(&config.all) {
        match random.below(10) {
            0 => *real = None,
            1..4 => *real = Some(of_all.clone()),
            4 | 5 => {
                let mut other = of_all.clone();
                other.drains = random.one_in(2);
                *real = Some(other);
            }
            _ => (),
        }
    }
    for (_, weight) in config.members.iter_mut().flatten() {
        if random.one_in(4) {
            *weight = random.pick(&[0, 1, 3]);
        }
    }
    // At times the ring is not yet another one.
    if !random.one_in(4) {
        config.fill_rings();
    }
}

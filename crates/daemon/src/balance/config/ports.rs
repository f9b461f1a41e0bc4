//! `ports` of a pool: single ports, or all of a protocol, and whose they are at an address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_config::Section;
use weir_core::{PortRange, PortSet, Protocol, decoy::DecoyPorts};
use weir_enforce::MAX_SERVICES;

use super::{PoolConfig, Read, missing};

const PORTS: &str = "a list of ports such as [\"80/tcp\", \"443/udp\", \"8000-8003/tcp\"], with all ports of a protocol as \"1-65535/tcp\", or \"all\"";

/// The protocols that pools serve.
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

pub(super) fn read(section: &mut Section<'_, '_>, of: &str) -> Vec<PortRange> {
    let line = section.line_of("ports");
    let typed = section.list("ports", PORTS);
    let mut ports = Vec::new();
    let mut taken = BTreeSet::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        let scope = entry.value.parse::<PortSet>().ok();
        let ranges = match &scope {
            Some(all) if all.is_all() => PROTOCOLS.map(PortRange::all).to_vec(),
            Some(ports) => ports.ranges().to_vec(),
            None => Vec::new(),
        };
        let known = |range: &PortRange| PROTOCOLS.contains(&range.protocol);
        if ranges.is_empty() || !ranges.iter().all(known) {
            section.error(
                entry.line,
                format!("ports in {of} has {:?}; allowed: {PORTS}", entry.value),
            );
            continue;
        }
        for range in ranges {
            let single = (range.low..=range.high).map(|port| PortRange::one(range.protocol, port));
            let all = range.is_all().then_some(range);
            let single = single.take(if range.is_all() { 0 } else { usize::MAX });
            for port in all.into_iter().chain(single) {
                if ports.len() <= MAX_SERVICES && taken.insert(port) {
                    ports.push(port);
                }
            }
        }
    }
    let read = Read::of(line, typed.as_ref().map(|at| at.value.as_slice()));
    missing(section, of, "ports", read, PORTS);
    ports
}

/// One of the ports that is answered on this host as well.
pub(super) fn answered(ports: &[PortRange], theirs: &DecoyPorts) -> Option<PortRange> {
    ports.iter().find_map(|range| {
        let mut single = range.low..=range.high;
        let port = single.find(|port| theirs.contains(range.protocol, *port))?;
        Some(PortRange::one(range.protocol, port))
    })
}

/// A proxy cannot have all ports.
pub(super) fn check_proxy(
    ports: &[PortRange],
    is_proxied: bool,
    of: &str,
    section: &Section<'_, '_>,
    line: usize,
) {
    let Some(all) = ports.iter().find(|port| port.is_all() && is_proxied) else {
        return;
    };
    section.error(
        line,
        format!(
            "ports in {of} has {all}, and the proxy has a socket for each port; allowed: ports by number, or another forward"
        ),
    );
}

/// Which pool serves which port of which virtual address.
#[derive(Default)]
pub(super) struct Taken(BTreeMap<(IpAddr, PortRange), Taker>);

struct Taker {
    pool: String,
    is_proxied: bool,
}

impl Taken {
    /// What these pools serve.
    pub(super) fn of(pools: &[PoolConfig]) -> Self {
        let mut taken = Self::default();
        for pool in pools {
            for vip in &pool.vips {
                for port in &pool.ports {
                    let taker = Taker {
                        pool: pool.name.clone(),
                        is_proxied: pool.is_proxied(),
                    };
                    taken.0.insert((*vip, *port), taker);
                }
            }
        }
        taken
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() > MAX_SERVICES
    }

    /// Gives a port of an address to a pool; why it cannot have it, if another has it.
    pub(super) fn take(
        &mut self,
        pool: &str,
        is_proxied: bool,
        vip: IpAddr,
        port: PortRange,
    ) -> Option<String> {
        let beside = self.beside(is_proxied, vip, port);
        let taker = Taker {
            pool: pool.to_owned(),
            is_proxied,
        };
        if let Some(other) = self.0.insert((vip, port), taker) {
            return Some(format!("which [pool.{}] serves", other.pool));
        }
        beside
    }

    /// Where a pool has all ports of an address, a proxy gets no packet of it.
    fn beside(&self, is_proxied: bool, vip: IpAddr, port: PortRange) -> Option<String> {
        let all = PortRange::all(port.protocol);
        if is_proxied {
            let other = self.0.get(&(vip, all)).filter(|other| !other.is_proxied)?;
            return Some(format!(
                "which the proxy does not get where [pool.{}] serves {all}; allowed: another virtual address",
                other.pool
            ));
        }
        if port != all {
            return None;
        }
        let least = PortRange::one(port.protocol, 0);
        let most = PortRange::one(port.protocol, u16::MAX);
        let mut others = self.0.range((vip, least)..=(vip, most));
        let ((_, of), other) = others.find(|(_, other)| other.is_proxied)?;
        Some(format!(
            "and {of} there is the proxy's of [pool.{}], which would get nothing; allowed: another virtual address",
            other.pool
        ))
    }
}

//! Pools, reals and services as they are shown.

use std::{net::IpAddr, time::Instant};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{PortRange, Protocol};
use weir_enforce::VirtualService;

use super::{
    Balancer, RealState,
    config::PoolConfig,
    health::Health,
    proxied::{ProxiedReal, ProxiedService},
    slow_start,
};
use crate::host::mac_text;

/// A pool as shown.
#[derive(Debug, Clone, Serialize)]
pub struct PoolStatus {
    /// The name of the pool.
    pub name: String,
    /// Where the configuration has it, as `file:line`, or `added`: by a command.
    pub origin: String,
    /// How a new flow finds its real.
    pub method: &'static str,
    /// The way in which packets reach the reals: `l2`, `ipip`, `gue` or `proxy`.
    pub forward: &'static str,
    /// The number of reals that take flows.
    pub live: usize,
    /// The servers that take new flows: `reals`, `emergency` (its own), `pool NAME`, or
    /// `nobody`.
    pub served_by: String,
    /// The access list, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl: Option<AclStatus>,
    /// The virtual addresses and ports of the pool, with their counters.
    pub services: Vec<ServiceStatus>,
    /// The servers of the pool.
    pub reals: Vec<RealStatus>,
}

/// An access list as shown.
#[derive(Debug, Clone, Serialize)]
pub struct AclStatus {
    /// The rules, in the order in which they are asked.
    pub rules: Vec<String>,
    /// The answer to clients that no rule covers: `allow` or `deny`.
    pub default: &'static str,
    /// Networks in the kernel for which the default does not hold.
    pub networks: usize,
}

/// A virtual address with a port, as shown; counted since the daemon's start, or since
/// the pools changed.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceStatus {
    /// The virtual address.
    pub vip: IpAddr,
    /// Port and protocol, as in `80/tcp`.
    pub port: String,
    /// Flows that began and are remembered; with a proxy those that a real was found for.
    pub flows: u64,
    /// New flows a second, in the last five seconds that are over; `null`: not counted so
    /// long.
    pub new_flows_per_second: Option<f64>,
    /// Packets that were sent to a real.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets that were dropped: no real was alive.
    pub unserved: u64,
    /// Packets of flows that are not remembered, for more began at once than are: they
    /// go where the ring says, and may move when it changes.
    pub unremembered: u64,
    /// Packets that were dropped, or with a proxy connections and datagrams: the pool's
    /// access list denies their client.
    pub denied: u64,
    /// Flows that were forgotten for new ones of this service, though they had had several
    /// packets, the last one lately: they go where the ring says, as `unremembered` ones.
    pub displaced: u64,
    /// Packets that went to their real by the server ID in their QUIC connection ID; only
    /// of UDP, where reals of the pool have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quic_placed: Option<u64>,
    /// Packets whose QUIC connection ID has the server ID of no real that takes packets:
    /// they went by their flow. Of a real that is gone, of a server that writes another ID
    /// than the configuration says, or random: one in eight looks like one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quic_unknown: Option<u64>,
    /// The proxy's counters, with `forward` = `proxy`; the packets above are 0, and
    /// `unserved` is of connections and flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxiedService>,
}

/// A real as shown; counted since the daemon's start.
#[derive(Debug, Clone, Serialize)]
pub struct RealStatus {
    /// The address of the real itself.
    pub address: IpAddr,
    /// The port at which it serves, where it is not that of each service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Where the configuration has it, as `file:line`, or `added`: by a command.
    pub origin: String,
    /// `real`, or `emergency`: it takes new flows while no real does.
    pub role: &'static str,
    /// Its share of the flows that are new, as it is now.
    pub weight: u32,
    /// `enabled`, or what `weir real` has said: `draining`, `disabled`.
    pub mode: &'static str,
    /// `up`, `down`, `unresolved` (it answers, and packets of clients have no way to it) or
    /// `unknown` (no check of it has ended yet).
    pub state: &'static str,
    /// The reason of a state: of `down` the result of the last check; of `unresolved` the
    /// missing way; of `unknown` that it has flows from before, if so; of `up` what its last
    /// check found wrong, or the virtual address at which it does not answer, if so.
    pub why: String,
    /// The time at which the real was found up or down.
    pub since: Timestamp,
    /// The link-layer address of the real, or of the router before it.
    pub mac: Option<String>,
    /// The server ID in its QUIC connection IDs, if the configuration has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quic_server_id: Option<String>,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Flows that began there.
    pub flows: u64,
    /// New flows a second, as of services.
    pub new_flows_per_second: Option<f64>,
    /// Flows that live there, with `method` = `least-connections`, but for a proxy: those that
    /// had a packet lately and whose client has not ended them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// The proxy's counters of the real, with `forward` = `proxy`; the packets above are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxiedReal>,
}

/// Where a pool or real comes from, by its place in the configuration.
fn origin(place: Option<&str>) -> String {
    place.unwrap_or("added").to_owned()
}

/// The port of a service in the kernel, or all of its protocol.
pub(super) fn port_of(service: &VirtualService) -> PortRange {
    match service.port {
        Some(port) => PortRange::one(service.protocol, port),
        None => PortRange::all(service.protocol),
    }
}

impl Balancer {
    /// The pools with what was counted of them.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn status(&self) -> Result<Vec<PoolStatus>, weir_enforce::Error> {
        let state = self.state();
        let forwarder = self.backend.balancer();
        let told = state.told.as_ref();
        let mut pools = Vec::new();
        for pool in &state.pools {
            let name = pool.config.name.as_str();
            let mut services = Vec::new();
            let names_servers = { pool.reals.iter() }.any(|r| r.config.quic_server_id.is_some());
            let has_quic = |protocol| names_servers && protocol == Protocol::Udp;
            let all = told
                .map(|told| told.services.as_slice())
                .unwrap_or_default();
            for (number, service) in (0..).zip(all).filter(|(_, s)| s.pool == pool.number) {
                let count = forwarder
                    .map_or_else(|| Ok(Default::default()), |f| f.service_count(number))?;
                let port = port_of(service).to_string();
                services.push(ServiceStatus {
                    vip: service.addr,
                    new_flows_per_second: self.rates().of(name, service.addr, Some(&port)),
                    port,
                    flows: count.flows,
                    packets: count.packets,
                    bytes: count.bytes,
                    unserved: count.unserved,
                    unremembered: count.unremembered,
                    denied: count.denied,
                    displaced: count.displaced,
                    quic_placed: has_quic(service.protocol).then_some(count.quic_placed),
                    quic_unknown: has_quic(service.protocol).then_some(count.quic_unknown),
                    proxy: None,
                });
            }
            let of_proxy = self.proxied().services(name).into_iter();
            services.extend(of_proxy.map(|(vip, port, proxy)| ServiceStatus {
                vip,
                flows: proxy.flows,
                new_flows_per_second: self.rates().of(name, vip, Some(&port)),
                port,
                packets: 0,
                bytes: proxy.bytes_in + proxy.bytes_out,
                unserved: proxy.unserved(),
                unremembered: 0,
                denied: proxy.denied,
                displaced: 0,
                quic_placed: None,
                quic_unknown: None,
                proxy: Some(proxy),
            }));
            let reals = pool.reals.iter().map(|real| self.shown(&pool.config, real));
            let reals = reals.collect::<Result<_, _>>()?;
            pools.push(PoolStatus {
                name: pool.config.name.clone(),
                origin: origin(pool.config.place.as_deref()),
                method: pool.config.method.name(),
                forward: pool.config.forward.name(),
                live: pool.live(),
                served_by: pool.served_by.name(),
                acl: pool.config.acl.as_ref().map(|acl| AclStatus {
                    rules: acl.rules.iter().map(ToString::to_string).collect(),
                    default: acl.default.name(),
                    networks: state.acl(&pool.config.name).map_or(0, |acl| acl.len()),
                }),
                services,
                reals,
            });
        }
        Ok(pools)
    }

    pub(super) fn shown(
        &self,
        pool: &PoolConfig,
        real: &RealState,
    ) -> Result<RealStatus, weir_enforce::Error> {
        let mut count = self
            .backend
            .balancer()
            .map_or_else(|| Ok(Default::default()), |f| f.real_count(real.number))?;
        let proxy = self.proxied().real(&pool.name, real.config.address);
        if let Some(proxy) = &proxy {
            count.flows = proxy.flows;
            count.bytes = proxy.bytes_in + proxy.bytes_out;
        }
        Ok(RealStatus {
            address: real.config.address,
            port: real.config.port,
            origin: origin(real.config.place.as_deref()),
            role: if real.is_emergency {
                "emergency"
            } else {
                "real"
            },
            weight: real.weight(),
            mode: real.setting.mode.name(),
            state: real.state(),
            why: match (real.ramp(pool.slow_start, Instant::now()), &real.not_asked) {
                (Some(step), _) => format!(
                    "slow start, {} % of its weight",
                    step * 100 / slow_start::STEPS
                ),
                _ if real.state() == "unresolved" => real.no_way.clone(),
                (None, Some(why)) => format!("cannot be checked: {why}"),
                _ if real.health == Health::UNKNOWN_WITH_FLOWS => {
                    "not checked yet, keeps its flows".to_owned()
                }
                // It is kept, because no other answers there.
                (None, None) if real.why.is_empty() => {
                    real.lacks_vips().unwrap_or_default().to_owned()
                }
                (None, None) => real.why.clone(),
            },
            since: real.since,
            mac: real.mac.map(mac_text),
            quic_server_id: real.config.quic_server_id.map(|id| id.to_string()),
            packets: count.packets,
            bytes: count.bytes,
            flows: count.flows,
            new_flows_per_second: self.rates().of(&pool.name, real.config.address, None),
            active: { self.backend.balancer() }
                .filter(|_| pool.counts_flows())
                .map(|it| it.active_flows(real.number)),
            proxy,
        })
    }
}

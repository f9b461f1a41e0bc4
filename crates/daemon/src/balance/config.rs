//! `[balance]` and `[pool.NAME]`: virtual addresses, and the servers behind them.

mod acl;
mod added;
mod check;
mod command;
mod emergency;
mod manual;
mod ports;
mod quic;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use weir_bpf::decap::GUE_PORT;
use weir_config::{
    At, Section,
    values::{SECOND, name_byte},
};
use weir_core::{
    PortRange, Protocol,
    balance::{acl::Acl, quic::ServerId},
    ban::MAX_NAME,
    decoy::DecoyPorts,
};
use weir_enforce::{DEFAULT_FLOWS, FLOWS, MAX_POOLS, MAX_REALS, MAX_SERVICES, SlotBy, table_for};
use weir_proxy::Limits;

use super::proxy_config;
use crate::host::HostFacts;
pub(crate) use added::{read_pools, read_reals, there_is};
pub use check::{CheckConfig, CheckKind, HttpConfig, UdpConfig};
pub use emergency::Emergency;
pub(crate) use manual::MANUAL;
use ports::Taken;

pub(crate) use super::proxy_config::threads as proxy_threads;

const VIP: &str = "a list of addresses such as [\"198.51.100.80\", \"2001:db8::80\"]";
const REALS: &str = "a list of tables such as [{ address = \"10.0.0.11\", weight = 2 }]";
pub(crate) const ADDRESS: &str = "an address of one host such as \"10.0.0.11\" or \"2001:db8::11\"";

/// The largest weight of a real.
pub const MAX_WEIGHT: u32 = 1000;

/// How a pool with very many ports counts as one.
const ALL_PORTS_ARE_ONE: &str = " (all ports of a protocol are one: \"1-65535/tcp\")";

/// A checked `[balance]` with its pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalanceConfig {
    /// On whose segment the reals of direct server return are, if any are.
    pub interface: Option<String>,
    /// Whether weir holds the virtual addresses there.
    pub announce: bool,
    /// The flows that find room in the kernel and stay with their real: a power of two.
    pub flows: u32,
    /// Threads of the proxy; `None`: as many as there are processors.
    pub threads: Option<usize>,
    /// The pools, by name.
    pub pools: Vec<PoolConfig>,
}

/// A checked `[pool.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The name in the configuration.
    pub name: String,
    /// The pool's virtual addresses.
    pub vips: Vec<IpAddr>,
    /// The ports that the pool serves at each of these addresses: each one port, or all of
    /// a protocol that no pool names there ([`PortRange::is_all`]).
    pub ports: Vec<PortRange>,
    /// The servers of the pool.
    pub reals: Vec<RealConfig>,
    /// The servers or the pool that takes new flows while no real of these is alive.
    pub emergency: Option<Emergency>,
    /// The access list; `None`: every client is allowed.
    pub acl: Option<Acl>,
    /// How a new flow finds its real.
    pub method: Method,
    /// So long the share of a real that comes back grows.
    pub slow_start: Duration,
    /// After so long a silence a flow of UDP ends, or leaves a real that drains.
    pub udp_timeout: Duration,
    /// The way in which packets reach the reals.
    pub forward: Forward,
    /// The health check of the reals.
    pub check: CheckConfig,
    /// The place in the configuration, as `file:line`; `None`: a command has added the pool.
    pub place: Option<String>,
}

impl BalanceConfig {
    /// What of it the files of the configuration say, without what commands have added.
    pub(crate) fn of_files(&self) -> Option<Self> {
        let mut config = self.clone();
        config.pools.retain(|pool| pool.place.is_some());
        for pool in &mut config.pools {
            pool.reals.retain(|real| real.place.is_some());
        }
        (config.interface.is_some() || !config.pools.is_empty()).then_some(config)
    }

    /// How many flows the kernel's table is to have room for; `None` without `[balance]`.
    pub(crate) fn wanted_flows(&self) -> Option<u32> {
        self.interface.is_some().then_some(self.flows)
    }

    /// Does the packet path forward, and not the proxy alone?
    pub(crate) fn forwards(&self) -> bool {
        self.interface.is_some()
            && (self.pools.is_empty() || !self.pools.iter().all(PoolConfig::is_proxied))
    }
}

impl PoolConfig {
    /// Does this host relay for it?
    pub fn is_proxied(&self) -> bool {
        matches!(self.forward, Forward::Proxy(_))
    }

    /// Whether the proxy needs a capability to receive at its ports.
    pub(crate) fn has_privileged_proxy_port(&self) -> bool {
        self.is_proxied() && self.ports.iter().any(|port| port.low < 1024)
    }

    /// Whether clients are sent to this port, unless another pool names it at the same
    /// address.
    pub fn serves(&self, protocol: Protocol, port: u16) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|range| range.contains(protocol, port))
    }

    /// How many of its ports at its virtual addresses there are.
    fn services(&self) -> usize {
        self.vips.len() * self.ports.len()
    }

    /// What the proxy cannot do for it.
    pub(super) fn check_proxy(&self, section: &Section<'_, '_>, line: usize) {
        let Forward::Proxy(limits) = &self.forward else {
            return;
        };
        let reals = self.own_reals().map(|real| real.address);
        let mut all = self.vips.iter().copied().chain(reals);
        let first = all.next().map(|addr| addr.is_ipv4());
        if limits.is_transparent && all.any(|addr| Some(addr.is_ipv4()) != first) {
            section.error(
                line,
                format!(
                    "transparent in [pool.{}]: its virtual addresses and reals are of both families, and no real can see a client's address of the other one; allowed: a pool for each family",
                    self.name
                ),
            );
        }
    }

    /// The port at which a real is asked whether it lives.
    pub fn checked_port(&self, real: &RealConfig) -> u16 {
        match real.port {
            Some(port) if !self.check.is_port_chosen => port,
            _ => self.check.port,
        }
    }

    /// All that are checked for it: its reals, then those for an emergency that are its
    /// own.
    pub fn own_reals(&self) -> impl Iterator<Item = &RealConfig> {
        let emergency = self.emergency.iter().flat_map(Emergency::reals);
        self.reals.iter().chain(emergency)
    }
}

/// How a new flow finds its real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A consistent hash of both addresses and ports.
    Maglev,
    /// A consistent hash of the client's address.
    SourceHash,
    /// A consistent hash of the client's address and port.
    SourcePortHash,
    /// Each has its turn.
    RoundRobin,
    /// Where few connections are open for the real's weight.
    LeastConnections,
}

impl Method {
    pub(super) const ALL: [(&str, Self); 5] = [
        ("maglev", Self::Maglev),
        ("source-hash", Self::SourceHash),
        ("source-port-hash", Self::SourcePortHash),
        ("round-robin", Self::RoundRobin),
        ("least-connections", Self::LeastConnections),
    ];

    /// The method's word in the configuration.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    pub(super) fn slot_by(self) -> SlotBy {
        match self {
            Self::Maglev => SlotBy::Flow,
            Self::SourceHash => SlotBy::Source,
            Self::SourcePortHash => SlotBy::SourcePort,
            Self::RoundRobin => SlotBy::Turn,
            Self::LeastConnections => SlotBy::Least,
        }
    }
}

impl BalanceConfig {
    /// Are there reals beyond a router?
    pub fn has_tunnels(&self) -> bool {
        let mut pools = self.pools.iter();
        pools.any(|pool| matches!(pool.forward, Forward::Tunnel(_)))
    }
}

/// How packets reach the reals of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Forward {
    /// By their link-layer addresses, on the segment of the interface.
    L2,
    /// Packets leave in outer packets.
    Tunnel(TunnelConfig),
    /// The connections end here, and the proxy opens others to the reals.
    Proxy(Limits),
}

impl Forward {
    /// The configuration's word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Tunnel(tunnel) if tunnel.gue_port.is_some() => "gue",
            Self::Tunnel(_) => "ipip",
            Self::Proxy(_) => "proxy",
        }
    }
}

/// The outer headers of a pool's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The port of GUE; `None`: IP in IP.
    pub gue_port: Option<u16>,
    /// Source addresses of outer headers, at most one of each family.
    pub sources: Vec<IpAddr>,
}

/// A server of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealConfig {
    /// The address of the real itself.
    pub address: IpAddr,
    /// The real's share of new flows.
    pub weight: u32,
    /// With the proxy: the port at which it serves; `None`: that which clients ask for.
    pub port: Option<u16>,
    /// The part of its QUIC connection IDs by which its connections are known wherever
    /// their client goes; `None`: they are known by addresses and ports alone.
    pub quic_server_id: Option<ServerId>,
    /// The place in the configuration, as `file:line`; `None`: a command has added the real.
    pub place: Option<String>,
}

/// Ports of this host that are answered on it, by the table that names them.
type Answering<'a> = [(&'static str, Option<&'a DecoyPorts>)];

/// `threads`: of the proxy, which is read by itself ([`proxy_threads`]).
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    threads: Option<usize>,
    answering: &Answering<'_>,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> Option<BalanceConfig> {
    let line = root.line_of("pool").unwrap_or(0);
    let balance = root.section("balance").map(|mut section| {
        const NAME: &str = "the name of an interface such as \"eth0\"";
        let line = section.line();
        let interface = section.string("interface", NAME);
        match &interface {
            None if section.is_written("interface") => (),
            None => section.error(
                line,
                format!("interface is missing in [balance]; allowed: {NAME}"),
            ),
            Some(at) if !host.has_interface(&at.value) => warnings.push(format!(
                "interface in [balance] is {:?}, which this host has not: no real is found until it comes",
                at.value
            )),
            Some(_) => (),
        }
        let announce = section.boolean("announce").unwrap_or_default();
        let flows = section.integer("flows", (*FLOWS.start()).into()..=(*FLOWS.end()).into());
        let flows = flows.map_or(DEFAULT_FLOWS, |at| table_for(at.value as u32));
        section.finish();
        let interface = interface.map(|at| at.value).unwrap_or_default();
        (line, interface, announce, flows)
    });
    let mut taken = Taken::default();
    let mut pools = Vec::new();
    let (mut stand_ins, mut lines) = (Vec::new(), BTreeMap::new());
    for (name, section) in root.named_sections("pool") {
        stand_ins.extend(emergency::named_line(&name, &section));
        let line_of = |key| section.line_of(key).unwrap_or(section.line());
        lines.insert(name.clone(), ["reals", "emergency"].map(line_of));
        pools.extend(pool(name, section, &mut taken, answering, lists, warnings));
    }
    if balance.is_none() && pools.iter().any(|pool| !pool.is_proxied()) {
        root.error(
            line,
            "[pool] without [balance], which names the interface of its reals; allowed without it: pools with forward = \"proxy\"",
        );
    }
    if balance.is_none() && pools.is_empty() {
        emergency::check(root, &pools, &stand_ins);
        return None;
    }
    let (balance_line, interface, announce, flows) = match balance {
        Some((line, interface, announce, flows)) => (line, Some(interface), announce, flows),
        None => (line, None, false, DEFAULT_FLOWS),
    };
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    check_together(root, balance_line, &pools, &stand_ins, &lines);
    let config = BalanceConfig {
        interface,
        announce,
        flows,
        threads,
        pools,
    };
    let proxied = config.pools.iter().filter_map(|pool| match &pool.forward {
        Forward::Proxy(limits) => Some((pool.ports.as_slice(), limits)),
        _ => None,
    });
    warnings.extend(proxy_config::too_many_connections(proxied));
    Some(config)
}

/// What pools must have or be together. `stand_ins`: which pool names another one for an
/// emergency, on which line. `lines`: on which ones its reals and those for an emergency begin.
fn check_together(
    root: &Section<'_, '_>,
    line: usize,
    pools: &[PoolConfig],
    stand_ins: &[(String, usize)],
    lines: &BTreeMap<String, [usize; 2]>,
) {
    emergency::check(root, pools, stand_ins);
    // Of a pool that has too many alone it is said there.
    let services = pools.iter().map(PoolConfig::services);
    let services: usize = services.filter(|count| *count <= MAX_SERVICES).sum();
    let most = [
        (pools.len(), MAX_POOLS, "pools", ""),
        (
            pools.iter().map(|p| p.own_reals().count()).sum(),
            MAX_REALS,
            "reals",
            "",
        ),
        (
            services,
            MAX_SERVICES,
            "virtual addresses with a port",
            ALL_PORTS_ARE_ONE,
        ),
    ];
    for (count, most, what, hint) in most {
        if count > most {
            root.error(
                line,
                format!("[balance] has {count} {what}; allowed: at most {most}{hint}"),
            );
        }
    }
    let vips: BTreeSet<_> = pools.iter().flat_map(|pool| &pool.vips).collect();
    for pool in pools {
        let lines = lines.get(&pool.name).copied().unwrap_or([line; 2]);
        let emergency = pool.emergency.iter().flat_map(Emergency::reals);
        let all = { pool.reals.iter().map(|real| (lines[0], "reals", real)) }
            .chain(emergency.map(|real| (lines[1], "emergency", real)));
        for (line, key, real) in all.filter(|(_, _, real)| vips.contains(&real.address)) {
            root.error(
                line,
                format!(
                    "{key} in [pool.{}] has {}, a virtual address; allowed: the real's own address",
                    pool.name, real.address
                ),
            );
        }
    }
}

fn pool(
    name: String,
    mut section: Section<'_, '_>,
    taken: &mut Taken,
    answering: &Answering<'_>,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> Option<PoolConfig> {
    let line = section.line();
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(name_byte) {
        section.error(
            line,
            format!("pool name {name:?}; allowed: 1-{MAX_NAME} letters, digits, - and _"),
        );
    }
    let of = format!("[pool.{name}]");
    let vips = vips(&mut section, &of);
    let ports_line = section.line_of("ports").unwrap_or(line);
    let ports = ports::read(&mut section, &of);
    for (table, theirs) in answering {
        if let Some(port) = theirs.and_then(|theirs| ports::answered(&ports, theirs)) {
            section.error(
                ports_line,
                format!("ports in {of}: {port} is in [{table}] as well, which answers on this host's addresses, virtual ones too; leave it out of one of them"),
            );
        }
    }
    let udp_timeout = proxy_config::udp_timeout(&mut section);
    let forward = forward(&mut section, &of, udp_timeout);
    let is_proxied = matches!(forward, Forward::Proxy(_));
    ports::check_proxy(&ports, is_proxied, &of, &section, ports_line);
    let reals = reals(&mut section, &of, "reals", REALS, is_proxied, &[]);
    let acl = acl::read(&mut section, &of, lists);
    let emergency = emergency::read(&mut section, &of, &reals, is_proxied);
    let method = section.choice("method", &Method::ALL);
    let slow_start = section.duration("slow_start", Duration::ZERO..=3600 * SECOND);
    let checked = check::read(
        &mut section,
        &format!("[pool.{name}.check]"),
        &ports,
        &forward,
        warnings,
    );
    for vip in &vips {
        for port in &ports {
            // Too many of them are a mistake of their own.
            if taken.is_full() {
                break;
            }
            if let Some(why) = taken.take(&name, is_proxied, *vip, *port) {
                section.error(line, format!("{of} serves {port} of {vip}, {why}"));
            }
        }
    }
    let pool = checked.map(|check| PoolConfig {
        name,
        vips,
        ports,
        reals,
        emergency,
        acl,
        method: method.map_or(Method::Maglev, |at| at.value),
        slow_start: slow_start.map_or(Duration::ZERO, |at| at.value),
        udp_timeout,
        forward,
        check,
        place: Some(section.full_place(line)),
    });
    if let Some(pool) = &pool {
        if pool.services() > MAX_SERVICES {
            let hint = if is_proxied { "" } else { ALL_PORTS_ARE_ONE };
            section.error(
                ports_line,
                format!("{of} has more than {MAX_SERVICES} virtual addresses with a port; allowed: as many, of all pools together{hint}"),
            );
        }
        pool.check_proxy(&section, line);
        warnings.extend(check::warnings(pool));
        quic::check(pool, &section, line, warnings);
    }
    section.finish();
    pool
}

/// Says that a list is not there, or has nothing in it; not of one that is something else,
/// which was said.
fn missing(section: &Section<'_, '_>, of: &str, key: &str, read: Read, allowed: &str) {
    let line = match read {
        Read::Absent => section.line(),
        Read::Empty(line) => line,
        Read::Some => return,
    };
    section.error(
        line,
        format!("{key} in {of} names none; allowed: {allowed}"),
    );
}

/// What of a list there was to be read.
enum Read {
    Absent,
    Empty(usize),
    Some,
}

impl Read {
    /// `line`: of the key, before it was read.
    fn of<T>(line: Option<usize>, read: Option<&[T]>) -> Self {
        match (line, read) {
            (None, _) => Self::Absent,
            (Some(line), Some([])) => Self::Empty(line),
            (Some(_), _) => Self::Some,
        }
    }
}

fn vips(section: &mut Section<'_, '_>, of: &str) -> Vec<IpAddr> {
    let line = section.line_of("vip");
    let typed = section.list("vip", VIP);
    let mut vips = Vec::new();
    let mut known = BTreeSet::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        match unicast(&entry.value) {
            Some(vip) if !known.insert(vip) => {
                section.error(entry.line, format!("vip in {of} has {vip} twice"));
            }
            Some(vip) => vips.push(vip),
            None => section.error(
                entry.line,
                format!("vip in {of} has {:?}; allowed: {ADDRESS}", entry.value),
            ),
        }
    }
    let read = Read::of(line, typed.as_ref().map(|at| at.value.as_slice()));
    missing(section, of, "vip", read, VIP);
    vips
}

fn forward(section: &mut Section<'_, '_>, of: &str, udp_timeout: Duration) -> Forward {
    const SOURCE: &str = "at most one address of this host of each family, such as [\"10.1.0.1\", \"2001:db8:1::1\"]";
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        L2,
        Ipip,
        Gue,
        Proxy,
    }
    const KINDS: [(&str, Kind); 4] = [
        ("l2", Kind::L2),
        ("ipip", Kind::Ipip),
        ("gue", Kind::Gue),
        ("proxy", Kind::Proxy),
    ];
    let kind = section.choice("forward", &KINDS);
    let kind = kind.map_or(Kind::L2, |at| at.value);
    let limits = proxy_config::limits(section, of, kind == Kind::Proxy, udp_timeout);
    let port = section.integer("gue_port", 1..=65535);
    if let Some(port) = port.as_ref().filter(|_| kind != Kind::Gue) {
        let what = format!("gue_port in {of} is of forward = \"gue\" only");
        section.error(port.line, what);
    }
    let typed = section.list("tunnel_source", SOURCE);
    let mut sources: Vec<IpAddr> = Vec::new();
    for entry in typed.iter().flat_map(|at| &at.value) {
        let source = unicast(&entry.value);
        let is_new = |s: &IpAddr| sources.iter().all(|known| known.is_ipv4() != s.is_ipv4());
        match source.filter(is_new) {
            Some(source) => sources.push(source),
            None => section.error(
                entry.line,
                format!(
                    "tunnel_source in {of} has {:?}; allowed: {SOURCE}",
                    entry.value
                ),
            ),
        }
    }
    let has_tunnel = matches!(kind, Kind::Ipip | Kind::Gue);
    if let Some(typed) = typed.filter(|_| !has_tunnel) {
        let what = format!("tunnel_source in {of} is of forward = \"ipip\" and \"gue\" only");
        section.error(typed.line, what);
    }
    match kind {
        Kind::L2 => Forward::L2,
        Kind::Ipip | Kind::Gue => {
            let port = port.map_or(GUE_PORT, |at| at.value as u16);
            Forward::Tunnel(TunnelConfig {
                gue_port: (kind == Kind::Gue).then_some(port),
                sources,
            })
        }
        Kind::Proxy => Forward::Proxy(limits),
    }
}

/// The tables of this key. `others`: reals of the same pool that were read before.
fn reals(
    section: &mut Section<'_, '_>,
    of: &str,
    key: &'static str,
    allowed: &str,
    is_proxied: bool,
    others: &[RealConfig],
) -> Vec<RealConfig> {
    let line = section.line_of(key);
    let typed = section.texts_or_sections(key, allowed);
    let mut reals: Vec<RealConfig> = Vec::new();
    let read = Read::of(line, typed.as_deref());
    for entry in typed.into_iter().flatten() {
        let mut table = match entry {
            Ok(text) => {
                section.error(
                    text.line,
                    format!("{key} in {of} is {:?}; allowed: {allowed}", text.value),
                );
                continue;
            }
            Err(table) => table,
        };
        let line = table.line();
        let address = table.string("address", ADDRESS);
        let weight = table
            .integer("weight", 0..=MAX_WEIGHT.into())
            .map_or(1, |at| at.value as u32);
        let port = table.integer("port", 1..=65535);
        if let Some(at) = port.as_ref().filter(|_| !is_proxied) {
            table.error(
                at.line,
                format!(
                    "port in {key} of {of}: packets keep the port that they have; allowed: with forward = \"proxy\" only"
                ),
            );
        }
        let port = port.map(|at| at.value as u16);
        let quic_server_id = quic::read(
            &mut table,
            &format!("{key} of {of}"),
            is_proxied,
            others.iter().chain(&reals),
        );
        match address.as_ref().map(|at| (at, unicast(&at.value))) {
            None if table.is_written("address") => (),
            None => table.error(
                line,
                format!("address is missing in {key} of {of}; allowed: {ADDRESS}"),
            ),
            Some((at, None)) => table.error(
                at.line,
                format!(
                    "address in {key} of {of} is {:?}; allowed: {ADDRESS}",
                    at.value
                ),
            ),
            Some((at, Some(address))) => {
                if reals.iter().any(|real| real.address == address) {
                    table.error(at.line, format!("{key} in {of} has {address} twice"));
                }
                reals.push(RealConfig {
                    address,
                    weight,
                    port,
                    quic_server_id,
                    place: Some(table.full_place(line)),
                });
            }
        }
        table.finish();
    }
    missing(section, of, key, read, allowed);
    reals
}

fn wrong(section: &Section<'_, '_>, of: &str, key: &str, at: &At<String>, allowed: &str) {
    section.error(
        at.line,
        format!("{key} in {of} is {:?}; allowed: {allowed}", at.value),
    );
}

/// An address that one host can have, and that is reached by a network.
pub(crate) fn unicast(text: &str) -> Option<IpAddr> {
    let addr: IpAddr = text.parse().ok()?;
    let addr = addr.to_canonical();
    let fits = match addr {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_broadcast() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    };
    (fits && !addr.is_multicast()).then_some(addr)
}

#[cfg(test)]
mod tests;

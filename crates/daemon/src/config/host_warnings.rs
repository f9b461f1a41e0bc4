//! What is no mistake in the files, and serves nobody, or somebody else than meant, on this
//! host as it is now: pools and virtual routers held against its addresses, gateways and
//! listeners, and against each other.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weir_core::{PortRange, Prefix, Protocol};

use super::Config;
use crate::{
    balance::config::{BalanceConfig, Emergency, Forward, Method, PoolConfig, RealConfig},
    host::{HostFacts, InterfaceAddress},
    vips::config::VrrpConfig,
};

/// Virtual addresses of a pool of which each has a warning of its own.
const MOST_WARNINGS: usize = 16;

/// What this host says of itself, asked once.
pub(super) struct HostView<'a> {
    host: &'a dyn HostFacts,
    addresses: Vec<InterfaceAddress>,
    here: BTreeSet<IpAddr>,
    gateways: BTreeSet<IpAddr>,
    listeners: OnceCell<BTreeSet<(Protocol, u16)>>,
}

impl<'a> HostView<'a> {
    pub(super) fn new(host: &'a dyn HostFacts) -> Self {
        let addresses = host.addresses();
        Self {
            host,
            here: addresses.iter().map(|one| one.address).collect(),
            addresses,
            gateways: host.gateways().into_iter().collect(),
            listeners: OnceCell::new(),
        }
    }
}

/// Warnings about all that the files say.
pub(super) fn of_files(config: &Config, host: &HostView<'_>) -> Vec<String> {
    let context = Context {
        config,
        balance: config.balance.as_ref(),
        host,
    };
    let pools = config.balance.iter().flat_map(|balance| &balance.pools);
    let mut warnings: Vec<_> = { pools.flat_map(|pool| context.pool_warnings(pool)) }.collect();
    for router in &config.routers {
        warnings.extend(context.router_warnings(router));
    }
    warnings.extend(context.tarpit_warnings());
    warnings.extend(context.token_warnings());
    warnings
}

/// Warnings about pools that a command adds to these.
pub(super) fn of_pools(
    config: &Config,
    balance: &BalanceConfig,
    pools: &[PoolConfig],
    host: &HostView<'_>,
) -> Vec<String> {
    let context = Context {
        config,
        balance: Some(balance),
        host,
    };
    let of_one = |pool| context.pool_warnings(pool);
    pools.iter().flat_map(of_one).collect()
}

/// Warnings about reals that a command adds to a pool.
pub(super) fn of_reals(
    config: &Config,
    balance: &BalanceConfig,
    pool: &PoolConfig,
    reals: &[&RealConfig],
    host: &HostView<'_>,
) -> Vec<String> {
    let context = Context {
        config,
        balance: Some(balance),
        host,
    };
    context.real_warnings(pool, reals)
}

/// The host and the configuration together.
struct Context<'a> {
    config: &'a Config,
    balance: Option<&'a BalanceConfig>,
    host: &'a HostView<'a>,
}

impl<'a> Context<'a> {
    /// The interface of the reals of direct server return.
    fn reals_interface(&self) -> Option<&'a str> {
        self.balance?.interface.as_deref()
    }

    fn announces(&self) -> bool {
        self.balance.is_some_and(|balance| balance.announce)
    }

    /// The virtual router that has this address; weir adds it while that is active.
    fn router_of(&self, vip: &IpAddr) -> Option<&'a VrrpConfig> {
        let mut routers = self.config.routers.iter();
        routers.find(|router| router.vips.contains(vip))
    }

    /// What this host has, or weir adds.
    fn is_held(&self, address: &IpAddr) -> bool {
        let vips = self.balance.iter().flat_map(|balance| &balance.pools);
        let mut announced = vips
            .filter(|_| self.announces())
            .flat_map(|pool| &pool.vips);
        self.host.here.contains(address)
            || self.router_of(address).is_some()
            || announced.any(|vip| vip == address)
    }

    /// Has the interface of the reals, or the host, no address yet?
    fn waits_for_addresses(&self) -> bool {
        match self.reals_interface() {
            Some(name) => !self.host.addresses.iter().any(|one| one.interface == name),
            None => self.host.here.is_empty(),
        }
    }

    fn pool_warnings(&self, pool: &PoolConfig) -> Vec<String> {
        let reals: Vec<_> = pool.own_reals().collect();
        let all = [
            self.vip_warnings(pool),
            self.uncovered_interfaces(pool),
            self.selection_warnings(pool),
            self.port_warnings(pool),
            self.tunnel_warnings(pool),
            self.real_warnings(pool, &reals),
        ];
        all.concat()
    }

    /// Virtual addresses that are not here, or a gateway's, or stay where others move.
    fn vip_warnings(&self, pool: &PoolConfig) -> Vec<String> {
        let of = &pool.name;
        let mut warnings = Vec::new();
        let is_unrouted = |vip: &&IpAddr| self.router_of(vip).is_none();
        let of_gateways = pool
            .vips
            .iter()
            .filter(|vip| self.host.gateways.contains(*vip));
        for vip in of_gateways.filter(is_unrouted) {
            warnings.push(format!(
                "vip in [pool.{of}] is {vip}, a gateway of this host: it keeps the address, and none of its packets are the pool's; allowed: an address that no host has"
            ));
        }
        // The administrator's own stay in any case.
        let is_its_own = |vip: &IpAddr| {
            let mut all = self.host.addresses.iter();
            all.any(|one| one.address == *vip && one.network != Prefix::host(*vip))
        };
        let mut unrouted = pool.vips.iter().filter(is_unrouted);
        let is_or_comes = |vip: &IpAddr| self.announces() || self.host.here.contains(vip);
        let stays = unrouted.find(|vip| is_or_comes(vip) && !is_its_own(vip));
        let stays = stays.filter(|_| !self.config.routers.is_empty());
        if let Some(vip) = stays {
            let what = match pool.place {
                Some(_) => "name the pool in pools of a [vrrp.NAME]",
                None => {
                    "add it to addresses of a [vrrp.NAME], on all of its hosts, and the pool by weir pool add on each"
                }
            };
            warnings.push(format!(
                "vip in [pool.{of}] has {vip}, which no [vrrp.NAME] has: it stays on this host when another one becomes active, which does not get it; {what}"
            ));
        }
        if self.waits_for_addresses() && !pool.is_proxied() {
            return warnings;
        }
        // One that weir adds comes with it.
        let is_missing = |vip: &&IpAddr| !self.is_held(vip) && !self.host.gateways.contains(*vip);
        let adds = !self.announces() || self.reals_interface().is_none();
        let missing: Vec<_> = pool
            .vips
            .iter()
            .filter(is_missing)
            .filter(|_| adds)
            .collect();
        if let Some(more) = missing.get(MOST_WARNINGS..).filter(|more| !more.is_empty()) {
            warnings.push(format!(
                "vip in [pool.{of}] has {} more than those named below that this host has on no interface",
                more.len()
            ));
        }
        let how = match self.reals_interface() {
            Some(_) => "with announce = true in [balance], or by a [vrrp.NAME], weir adds it",
            None => "with [balance] and announce = true there, or by a [vrrp.NAME], weir adds it",
        };
        for vip in missing.into_iter().take(MOST_WARNINGS) {
            warnings.push(format!(
                "vip in [pool.{of}] is {vip}, which this host has on no interface: unless a router sends its packets here, none come; {how}"
            ));
        }
        warnings
    }

    /// Interfaces by which packets for virtual addresses come in, and where weir takes none.
    fn uncovered_interfaces(&self, pool: &PoolConfig) -> Vec<String> {
        if pool.is_proxied() || self.config.enforcement.interfaces.is_empty() {
            return Vec::new();
        }
        let mut by_interface = BTreeMap::<&str, Vec<&IpAddr>>::new();
        for vip in &pool.vips {
            let mut all = self.host.addresses.iter();
            let here = all
                .find(|one| one.address == *vip)
                .map(|one| &*one.interface);
            let routed = || self.router_of(vip).map(|router| &*router.interface);
            let announced = || self.reals_interface().filter(|_| self.announces());
            let interface = here.or_else(routed).or_else(announced);
            // One of the loopback interface is routed here, by whichever other.
            if let Some(name) = interface.filter(|name| *name != "lo") {
                by_interface.entry(name).or_default().push(vip);
            }
        }
        let warn = |(name, vips): (&str, Vec<&IpAddr>)| {
            let is_there = self.host.host.has_interface(name);
            (is_there && !self.is_covered(name)).then(|| {
                format!(
                    "vip in [pool.{}] has {}, an address of {name}, and interfaces has {} only: packets for it that come in by {name} are not taken; add {name} to interfaces",
                    pool.name,
                    vips[0],
                    self.config.enforcement.interfaces.join(", ")
                )
            })
        };
        by_interface.into_iter().filter_map(warn).collect()
    }

    /// Are the packets of this interface seen at one that weir protects?
    fn is_covered(&self, name: &str) -> bool {
        let interfaces = &self.config.enforcement.interfaces;
        if interfaces.iter().any(|known| known == name) {
            return true;
        }
        let below = self.host.host.with_lower(name);
        let mut protected = interfaces.iter();
        protected.any(|known| {
            let known = self.host.host.with_lower(known);
            known.first().is_some_and(|known| below.contains(known))
        })
    }

    /// Who gets new flows, and whether another host would send them there.
    fn selection_warnings(&self, pool: &PoolConfig) -> Vec<String> {
        let mut warnings = Vec::new();
        let name = &pool.name;
        let has_none = |reals: &[RealConfig]| reals.iter().all(|real| real.weight == 0);
        let stands_in = match &pool.emergency {
            None => false,
            Some(Emergency::Pool(_)) => true,
            Some(Emergency::Reals(reals)) if has_none(reals) => {
                warnings.push(format!(
                    "emergency of [pool.{name}] has weight = 0, all of it: none of these gets a new flow"
                ));
                false
            }
            Some(Emergency::Reals(_)) => true,
        };
        if !pool.reals.is_empty() && has_none(&pool.reals) && !stands_in {
            warnings.push(format!(
                "reals of [pool.{name}] have weight = 0, all of them: none gets a new flow"
            ));
        }
        let is_shared = !matches!(pool.method, Method::RoundRobin | Method::LeastConnections);
        let has_connections = { pool.ports.iter() }.any(|port| port.protocol == Protocol::Tcp);
        // The proxy's connections end with their host, whatever the method.
        if is_shared || pool.is_proxied() || !has_connections {
            return warnings;
        }
        if let Some(router) = pool.vips.iter().find_map(|vip| self.router_of(vip)) {
            warnings.push(format!(
                "method in [pool.{name}] is \"{}\", and [vrrp.{}] moves its addresses to another host, which does not know the reals of live connections: most of those end then; with \"maglev\" and the source hashes they go on",
                pool.method.name(),
                router.name
            ));
        }
        warnings
    }

    /// A pool with a port of the only address by which this host is reached in its family
    /// may take the host itself off the network.
    fn port_warnings(&self, pool: &PoolConfig) -> Vec<String> {
        let is_all = |port: &PortRange| port.is_all() && port.protocol == Protocol::Tcp;
        let has_all = pool.ports.iter().any(is_all);
        // Before the proxy there is a listener, which is weir's.
        let served = match pool.is_proxied() {
            true => None,
            false => {
                let listeners = self
                    .host
                    .listeners
                    .get_or_init(|| self.host.host.listeners());
                let mut listeners = listeners.iter();
                listeners.find(|(protocol, port)| pool.serves(*protocol, *port))
            }
        };
        let served = served.map(|(protocol, port)| PortRange::one(*protocol, *port));
        if !has_all && served.is_none() {
            return Vec::new();
        }
        let takes = |other: &&PoolConfig| {
            let serves = |port: &PortRange| other.serves(port.protocol, port.low);
            other.ports.iter().any(is_all) || served.as_ref().is_some_and(serves)
        };
        let pools = self.balance.iter().flat_map(|balance| &balance.pools);
        let pools = pools.filter(takes).chain([pool]);
        let vips: BTreeSet<_> = pools.flat_map(|pool| &pool.vips).collect();
        let is_reached = |address: &IpAddr| {
            let is_local = match address {
                IpAddr::V4(v4) => v4.is_loopback(),
                IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
            };
            !is_local && !vips.contains(address)
        };
        let mut warnings = Vec::new();
        for (family, is_v4) in [("IPv4", true), ("IPv6", false)] {
            let of_family = |address: &&IpAddr| address.is_ipv4() == is_v4;
            let mut here = self.host.here.iter().filter(of_family);
            let mut vips = pool.vips.iter().filter(of_family);
            let Some(vip) = vips.find(|vip| self.host.here.contains(vip)) else {
                continue;
            };
            if here.any(is_reached) {
                continue;
            }
            let name = &pool.name;
            match &served {
                _ if has_all => warnings.push(format!(
                    "[pool.{name}] serves all TCP ports of {vip}, and this host has no other {family} address: nobody reaches the host itself by {family} any more, by SSH neither"
                )),
                // Nobody reached the host by an address that weir has added.
                Some(port) if self.router_of(vip).is_none() && !self.announces() => {
                    warnings.push(format!(
                        "[pool.{name}] serves {port} of {vip}, and this host, which serves {port} itself, has no other {family} address: who connects there by {family} reaches a real"
                    ));
                }
                _ => (),
            }
        }
        warnings
    }

    fn tunnel_warnings(&self, pool: &PoolConfig) -> Vec<String> {
        let Forward::Tunnel(tunnel) = &pool.forward else {
            return Vec::new();
        };
        let sources = tunnel.sources.iter();
        let elsewhere =
            sources.filter(|source| !self.waits_for_addresses() && !self.is_held(source));
        let warn = |source: &IpAddr| {
            format!(
                "tunnel_source in [pool.{}] has {source}, which this host has on no interface: routers may drop such packets, and their errors reach nobody",
                pool.name
            )
        };
        elsewhere.map(warn).collect()
    }

    fn real_warnings(&self, pool: &PoolConfig, reals: &[&RealConfig]) -> Vec<String> {
        if pool.is_proxied() {
            return Vec::new();
        }
        let interface = self.reals_interface().unwrap_or_default();
        let of = &pool.name;
        let mut warnings = Vec::new();
        for address in reals.iter().map(|real| real.address) {
            let of_family = |one: &&InterfaceAddress| {
                one.interface == interface && one.address.is_ipv4() == address.is_ipv4()
            };
            let here: Vec<_> = self.host.addresses.iter().filter(of_family).collect();
            // Without a network, as clouds give them, addresses say nothing of neighbours.
            let says_nothing = !here.is_empty()
                && here
                    .iter()
                    .all(|one| one.network == Prefix::host(one.address));
            let is_beside = || here.iter().any(|one| one.network.contains(address));
            let is_l2 = pool.forward == Forward::L2;
            let has = |list: &[IpAddr]| list.contains(&address);
            let routers = || self.config.routers.iter();
            if self.host.here.contains(&address) {
                warnings.push(format!(
                    "reals of [pool.{of}] have {address}, an address of this host, which sends no packets to itself: no flow reaches it; allowed: another host, or forward = \"proxy\""
                ));
            } else if let Some(router) = routers().find(|router| has(&router.own_vips)) {
                warnings.push(format!(
                    "reals of [pool.{of}] have {address}, a virtual address of [vrrp.{}]: no flow reaches it while this host is active; allowed: the real's own address",
                    router.name
                ));
            } else if let Some(router) = routers().find(|router| has(&router.peers)) {
                warnings.push(format!(
                    "reals of [pool.{of}] have {address}, a peer in [vrrp.{}]: two hosts that balance the pool would pass its packets to each other; allowed: a host that does not",
                    router.name
                ));
            } else if is_l2 && self.host.gateways.contains(&address) {
                warnings.push(format!(
                    "reals of [pool.{of}] have {address}, a gateway of this host: unless it has the virtual addresses, it sends the pool's packets back, or elsewhere"
                ));
            } else if is_l2 && !self.waits_for_addresses() && !says_nothing && !is_beside() {
                warnings.push(format!(
                    "reals of [pool.{of}] have {address}, which is in no network of {interface}: only a neighbour there is found"
                ));
            }
        }
        warnings
    }

    fn router_warnings(&self, router: &VrrpConfig) -> Vec<String> {
        let of = format!("[vrrp.{}]", router.name);
        let mut warnings = Vec::new();
        for (family, is_v4) in [("IPv4", true), ("IPv6", false)] {
            if router.vips.iter().any(|vip| vip.is_ipv4() == is_v4) {
                warnings.extend(self.peer_warning(router, &of, family, is_v4));
            }
        }
        for vip in &router.vips {
            // weir adds them without a network.
            let mut all = self.host.addresses.iter();
            let is_its_own =
                |one: &&InterfaceAddress| one.address == *vip && one.network != Prefix::host(*vip);
            if let Some(own) = all.find(is_its_own) {
                warnings.push(format!(
                    "{of} has {vip}, which is an address of {} with its network ({}): it stays there while another host is active, and two hosts have it; allowed: an address that weir adds",
                    own.interface, own.network
                ));
            }
        }
        warnings
    }

    /// Peers of a family of which none can advertise anything that is taken.
    fn peer_warning(
        &self,
        router: &VrrpConfig,
        of: &str,
        family: &str,
        is_v4: bool,
    ) -> Option<String> {
        let of_interface = |one: &&InterfaceAddress| {
            one.interface == router.interface && one.address.is_ipv4() == is_v4
        };
        let own: Vec<_> = self.host.addresses.iter().filter(of_interface).collect();
        let why = |peer: &IpAddr| {
            let is_beside = || own.iter().any(|one| one.network.contains(*peer));
            match peer {
                _ if own.iter().any(|one| one.address == *peer) => {
                    Some("an address of this host itself")
                }
                _ if router.unicast => None,
                IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(
                    "and IPv6 advertisements come from link-local addresses (fe80::…), but with unicast = true",
                ),
                IpAddr::V4(_) if !own.is_empty() && !is_beside() => {
                    Some("which is in no network of the interface")
                }
                _ => None,
            }
        };
        let peers = || router.peers.iter().filter(|peer| peer.is_ipv4() == is_v4);
        let first = peers().next()?;
        let reason = peers().map(why).collect::<Option<Vec<_>>>()?[0];
        Some(format!(
            "peers in {of} has {first}, {reason}, and no other of {family} can be another host's: what those advertise is refused, and two are active; name the others' addresses"
        ))
    }

    /// Interfaces that are not there.
    fn token_warnings(&self) -> Vec<String> {
        let Some(token) = &self.config.token else {
            return Vec::new();
        };
        let forward = token.forward.as_ref().map(|of| &of.interfaces);
        let strip = token.strip.as_ref().map(|of| &of.interfaces);
        let mut warnings = Vec::new();
        for (of, names, then) in [
            ("token", token.interfaces.as_ref(), "signs there"),
            ("token.forward", forward, "judges what comes in there"),
            ("token.strip", strip, "overwrites tokens there"),
        ] {
            let names = names.into_iter().flatten();
            for name in names.filter(|name| !self.host.host.has_interface(name)) {
                warnings.push(format!(
                    "interfaces in [{of}]: there is no interface {name:?} now: weir {then} as soon as it is there; this host has: {}",
                    self.host.host.interfaces().join(", ")
                ));
            }
        }
        warnings
    }

    /// A gateway among the addresses that nobody has; IPv6 ones for which nobody is heard to
    /// ask.
    fn tarpit_warnings(&self) -> Vec<String> {
        let Some(tarpit) = &self.config.tarpit else {
            return Vec::new();
        };
        let held = |gateway: &IpAddr| Some((*gateway, tarpit.addresses.lookup(*gateway)?));
        let found = self.host.gateways.iter().filter_map(held);
        let warn = |(gateway, prefix)| {
            format!(
                "addresses in [tarpit]: {gateway} is a gateway of this host, and in {prefix}: the tarpit leaves it alone only while the kernel knows it as a neighbour; name prefixes without it"
            )
        };
        let mut warnings: Vec<_> = found.map(warn).collect();
        let mut own = self
            .host
            .addresses
            .iter()
            .filter(|one| one.interface != "lo");
        let own = own.find_map(|one| Some((one.address, tarpit.addresses.lookup(one.address)?)));
        if let Some((own, prefix)) = own {
            warnings.push(format!(
                "addresses in [tarpit]: {own} is an address of this host, and in {prefix}, where others may have theirs: addresses are of prefixes that nobody has; where some are had, dark = [\"{prefix}\"] finds out which"
            ));
        }
        // Questions have an address of the interface as their sender, which hosts of other
        // networks may leave without an answer.
        let of_v4 = { self.host.addresses.iter() }.filter(|one| one.address.is_ipv4());
        let networks: Vec<_> = of_v4.map(|one| one.network).collect();
        let mut dark = tarpit.dark.iter().filter(|prefix| prefix.addr().is_ipv4());
        let is_beside = |dark: &Prefix| networks.iter().any(|network| network.covers(*dark));
        if let Some(dark) = dark.find(|dark| !networks.is_empty() && !is_beside(dark)) {
            warnings.push(format!(
                "dark in [tarpit]: {dark} is in no network of an interface of this host, from which neighbours could be asked: no address outside of its networks becomes a tarpit; allowed: prefixes of its networks"
            ));
        }
        let mut prefixes = tarpit.addresses.iter().chain(tarpit.dark.iter());
        if prefixes.any(|prefix| prefix.addr().is_ipv6()) {
            let interfaces = self.config.enforcement.interfaces.iter();
            let deaf = interfaces
                .filter(|name| self.host.host.has_interface(name))
                .filter(|name| !self.host.host.takes_all_multicast(name));
            warnings.extend(deaf.map(|name| {
                format!(
                    "[tarpit] has IPv6 addresses, and {name} does not take all multicast, by which neighbours ask for them: a network card that filters it hides the questions; ip link set {name} allmulticast on"
                )
            }));
        }
        warnings
    }
}

#[cfg(test)]
mod tests;

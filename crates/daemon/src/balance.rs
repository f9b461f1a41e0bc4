//! Load balancing: knows which reals live and where they are on the segment, and tells
//! the backend which real each new flow goes to. Forwarding is the packet path's
//! (bpf/balance/balance.h), the choice of a real is `weir_core::balance`'s.

mod acl;
mod check;
pub mod config;
mod emergency;
mod health;
mod proxied;
mod proxy_config;
mod settings;
mod slow_start;
mod sources;
mod tunnel;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{
    PortRange, Prefix,
    balance::{
        maglev::{Member, ring},
        turns::turns,
    },
};
use weir_enforce::{
    Backend, Balance, MAX_POOLS, MAX_REALS, PoolRules, Real, SLOTS, VirtualService, real_id,
};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::{
    access::{geo::GeoService, lists::Lists},
    host::{
        Interface, InterfaceAddress, Mac, interface, neighbours,
        vlan::{Vlan, vlan},
    },
    threads::{self, Pulse, Pulses},
};
use check::{Check, Target};
use config::{BalanceConfig, CheckKind, Forward, Method, PoolConfig, RealConfig};
use emergency::{Servers, servers};
use health::{Health, Life};
use proxied::{Proxied, ProxiedReal, ProxiedService};
use settings::{Setting, Settings};
use tunnel::Neighbourhoods;

pub use acl::PoolAccess;
pub use config::MAX_WEIGHT;
pub use settings::Mode;

/// A start, or a reload, waits so long for the first checks; where silence is an answer
/// it waits for that, up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const FIRST_LONGEST: Duration = Duration::from_secs(5);
/// How often is looked at a check that is under way.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// So many checks are under way at once, each with a descriptor of its own.
const MAX_CHECKS: usize = 256;
/// And so many that are commands.
const MAX_COMMANDS: usize = 16;
/// How often the neighbours are looked at, whatever the checks do.
const NEIGHBOURS: Duration = Duration::from_secs(1);
/// What alerts about the whole of it are about.
const ABOUT: &str = "balance";
/// And about what `weir real` has said.
const ABOUT_SETTINGS: &str = "balance:reals";
/// And about the proxy.
const ABOUT_PROXY: &str = "proxy";

/// The pools of a daemon.
pub struct Balancer {
    backend: Arc<dyn Backend>,
    alerts: Arc<Alerts>,
    events: Arc<Events>,
    geography: Arc<GeoService>,
    lists: Lists,
    state: Mutex<State>,
    /// Which pools have a live real. Not under the lock of `state`, which is held while
    /// first checks are waited for.
    alive: Mutex<BTreeSet<String>>,
    /// Taken after `state`, where both are.
    proxied: Mutex<Proxied>,
}

/// What `weir real` changes of one real; what is absent stays.
#[derive(Debug, Default, Clone, Copy)]
pub struct Change {
    /// Whether it takes flows.
    pub mode: Option<Mode>,
    /// Its share; `Some(None)`: the configuration's again.
    pub weight: Option<Option<u32>>,
}

/// Why a real is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RealChangeError {
    /// There is no such pool, or no such real in it.
    #[error("{0}")]
    NotFound(String),
    /// The backend cannot do it.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
}

#[derive(Default)]
struct State {
    interface: String,
    pools: Vec<Pool>,
    /// Which number has what in the kernel.
    pool_numbers: Numbers<String, MAX_POOLS>,
    real_numbers: Numbers<(String, IpAddr), MAX_REALS>,
    /// As the backend has it.
    told: Option<Balance>,
    /// The shares that its rings are made of, where reals come back slowly.
    ramps: Vec<(u32, u32)>,
    /// The configuration is another one than that which `told` was made from.
    is_new: bool,
    looked: Option<Instant>,
    settings: Settings,
    /// This host's addresses that may ask reals.
    sources: Vec<InterfaceAddress>,
    /// The access lists of those pools that have one.
    acls: BTreeMap<String, acl::Joined>,
    /// What has changed and nobody was told yet.
    news: Vec<Event>,
    /// Of the proxy, if the configuration says how many.
    threads: Option<usize>,
}

struct Pool {
    config: PoolConfig,
    number: u32,
    reals: Vec<RealState>,
    served_by: Servers,
}

impl Pool {
    /// How many of its reals take new flows; those for an emergency are none of them.
    fn live(&self) -> usize {
        let regular = self.reals.iter().filter(|real| !real.is_emergency);
        regular.filter(|real| real.takes_new_flows()).count()
    }
}

struct RealState {
    config: RealConfig,
    /// It takes new flows only while no real of the pool does.
    is_emergency: bool,
    setting: Setting,
    number: u32,
    id: u64,
    health: Health,
    since: Timestamp,
    /// When it came back, if it was gone.
    back: Option<Instant>,
    why: String,
    next: Instant,
    check: Option<Check>,
    /// Of itself, or of the router before it.
    mac: Option<Mac>,
    /// The way to it, where that is a tunnel; its number is not in it.
    way: Option<Real>,
    /// Why its packets have no way.
    no_way: String,
    /// This host relays for it, wherever it is.
    is_proxied: bool,
}

/// Numbers below `PLACES` that stay with what has them: flows are known by them.
struct Numbers<T, const PLACES: usize>(BTreeMap<T, u32>);

impl<T, const PLACES: usize> Default for Numbers<T, PLACES> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone, const PLACES: usize> Numbers<T, PLACES> {
    /// Gives these one each, at most as many as there are places. What has one keeps it,
    /// and one that is given up now is given out last: who still finds it meanwhile does
    /// not find another there. Returns the numbers that are given out anew.
    fn keep(&mut self, wanted: &[T]) -> Vec<u32> {
        let before: BTreeSet<u32> = self.0.values().copied().collect();
        self.0.retain(|known, _| wanted.contains(known));
        let used: BTreeSet<u32> = self.0.values().copied().collect();
        let unused = (0..PLACES as u32).filter(|n| !before.contains(n));
        let mut free = unused.chain(before.difference(&used).copied());
        let mut fresh = Vec::new();
        for one in wanted {
            if self.0.contains_key(one) {
                continue;
            }
            let number = free
                .next()
                .expect("a configuration wants no more than there are places");
            self.0.insert(one.clone(), number);
            fresh.push(number);
        }
        fresh
    }
}

/// A pool as shown.
#[derive(Debug, Clone, Serialize)]
pub struct PoolStatus {
    /// The name in the configuration.
    pub name: String,
    /// How a new flow finds its real.
    pub method: &'static str,
    /// How its packets reach it: `l2`, `ipip`, `gue` or `proxy`.
    pub forward: &'static str,
    /// How many of its reals take flows.
    pub live: usize,
    /// Who takes new flows: `reals`, `emergency` (its own), `pool NAME`, or `nobody`.
    pub served_by: String,
    /// Whom it serves, where that is not everybody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acl: Option<AclStatus>,
    /// What it serves.
    pub services: Vec<ServiceStatus>,
    /// Who serves it.
    pub reals: Vec<RealStatus>,
}

/// An access list as shown.
#[derive(Debug, Clone, Serialize)]
pub struct AclStatus {
    /// In the order in which they are asked.
    pub rules: Vec<String>,
    /// What holds where none fits: `allow` or `deny`.
    pub default: &'static str,
    /// Networks for which that does not hold, in the kernel.
    pub networks: usize,
}

/// A virtual address with a port, as shown; counted since the daemon's start, or since
/// the pools changed.
#[derive(Debug, Clone, Serialize)]
pub struct ServiceStatus {
    /// The virtual address.
    pub vip: IpAddr,
    /// As in `80/tcp`.
    pub port: String,
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
    /// With `forward` = `proxy`: what it has counted; the packets above are 0, and
    /// `unserved` is of connections and flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxiedService>,
}

/// A real as shown; counted since the daemon's start.
#[derive(Debug, Clone, Serialize)]
pub struct RealStatus {
    /// Its own address.
    pub address: IpAddr,
    /// `real`, or `emergency`: it takes new flows while no real does.
    pub role: &'static str,
    /// Its share of the flows that are new, as it is now.
    pub weight: u32,
    /// `enabled`, or what `weir real` has said: `draining`, `disabled`.
    pub mode: &'static str,
    /// `up`, `down`, `unresolved` (it answers, and packets of clients have no way to it) or
    /// `unknown`.
    pub state: &'static str,
    /// Of `down`: what the last check said; of `unresolved`: what is in the way.
    pub why: String,
    /// When it was found up or down.
    pub since: Timestamp,
    /// Its link-layer address, or that of the router before it.
    pub mac: Option<String>,
    /// Packets that were sent to it.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Flows that began there.
    pub flows: u64,
    /// With `forward` = `proxy`: what it has counted; the packets above are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxiedReal>,
}

impl RealState {
    /// Where its packets go, if it takes any.
    fn takes(&self, link: Option<&Link>) -> Option<Real> {
        let lives = self.health.life == Life::Up && !self.is_proxied;
        let takes = lives && self.setting.mode != Mode::Disabled;
        let on_segment = |link: &Link| {
            Some(Real {
                id: self.id,
                dest: self.mac?,
                source: link.mac,
                ifindex: link.out,
                vlan: link.vlan,
                tunnel: None,
            })
        };
        let way = match self.way {
            Some(way) => Some(Real { id: self.id, ..way }),
            None => link.and_then(on_segment),
        };
        way.filter(|_| takes)
    }

    /// A check of it is over; what is to be told.
    fn note(&mut self, pool: &PoolConfig, outcome: Result<(), String>) -> Option<Event> {
        self.check = None;
        let lives = outcome.is_ok();
        self.why = outcome.err().unwrap_or_default();
        let was_down = self.health.life == Life::Down;
        if !self.health.note(lives, pool.check.rise, pool.check.fall) {
            return None;
        }
        self.back = (was_down && lives).then(Instant::now);
        self.since = Timestamp::now();
        let (pool, address) = (&pool.name, self.config.address);
        let is = match lives {
            true => "up".to_owned(),
            false => format!("down: {}", self.why),
        };
        let text = format!("pool {pool}: real {address} is {is}");
        match lives {
            true => tracing::info!("{text}"),
            false => tracing::warn!("{text}"),
        }
        Some(event(pool, text).about(Prefix::host(address)))
    }

    /// Does it take flows that nobody has yet?
    fn takes_new_flows(&self) -> bool {
        self.is_up() && self.weight() > 0
    }

    fn is_up(&self) -> bool {
        self.health.life == Life::Up && (self.mac.is_some() || self.is_proxied)
    }

    /// Its share of new flows.
    fn weight(&self) -> u32 {
        match self.setting.mode {
            Mode::Enabled => self.setting.weight.unwrap_or(self.config.weight),
            Mode::Draining | Mode::Disabled => 0,
        }
    }

    fn state(&self) -> &'static str {
        match (self.health.life, self.mac) {
            (Life::Unknown, _) => "unknown",
            (Life::Down, _) => "down",
            (Life::Up, None) if !self.is_proxied => "unresolved",
            (Life::Up, _) => "up",
        }
    }
}

/// The interface of the reals as it is now.
struct Link {
    index: u32,
    mac: Mac,
    /// By which frames for the reals leave: this one, or the one that a VLAN's frames have
    /// their tag at.
    out: u32,
    /// Of their tag; 0: they have none there.
    vlan: u16,
}

/// `is_protected`: is it among weir's interfaces, by its number? A VLAN's device that is
/// not is served where its frames have their tag.
fn link(name: &str, is_protected: impl Fn(u32) -> bool) -> io::Result<Option<Link>> {
    let Some(Interface { index, mac, .. }) = interface(name)? else {
        return Ok(None);
    };
    let (out, vlan) = leaves_by(index, vlan(index)?, is_protected);
    Ok(Some(Link {
        index,
        mac,
        out,
        vlan,
    }))
}

/// The interface, and the VLAN whose tag frames have there; 0: none.
fn leaves_by(index: u32, vlan: Option<Vlan>, is_protected: impl Fn(u32) -> bool) -> (u32, u16) {
    match vlan {
        Some(vlan) if !is_protected(index) => (vlan.parent, vlan.id),
        _ => (index, 0),
    }
}

impl State {
    /// Takes a configuration on; what is known of reals that stay is kept.
    fn configure(&mut self, config: &BalanceConfig) -> Vec<u32> {
        self.interface = config.interface.clone().unwrap_or_default();
        self.threads = config.threads;
        let names: Vec<_> = config.pools.iter().map(|pool| pool.name.clone()).collect();
        self.pool_numbers.keep(&names);
        let reals: Vec<_> = config
            .pools
            .iter()
            .flat_map(|pool| pool.own_reals().map(|r| (pool.name.clone(), r.address)))
            .collect();
        let fresh = self.real_numbers.keep(&reals);
        let served: BTreeMap<String, Servers> = self
            .pools
            .iter()
            .map(|pool| (pool.config.name.clone(), pool.served_by.clone()))
            .collect();
        let mut before: BTreeMap<(String, IpAddr), RealState> = std::mem::take(&mut self.pools)
            .into_iter()
            .flat_map(|pool| {
                let (name, check) = (pool.config.name, pool.config.check);
                let same = config
                    .pools
                    .iter()
                    .any(|p| p.name == name && p.check.asks_like(&check));
                let kept = pool.reals.into_iter().filter(move |_| same);
                kept.map(move |real| ((name.clone(), real.config.address), real))
            })
            .collect();
        let settings = &self.settings;
        let pools = config.pools.iter().map(|pool| {
            let reals = (0..).zip(pool.own_reals()).map(|(n, real)| {
                let is_emergency = n >= pool.reals.len();
                let key = (pool.name.clone(), real.address);
                let setting = settings.of(&pool.name, real.address);
                match before.remove(&key) {
                    Some(known) => RealState {
                        config: real.clone(),
                        is_emergency,
                        setting,
                        is_proxied: pool.is_proxied(),
                        ..known
                    },
                    None => RealState {
                        config: real.clone(),
                        is_emergency,
                        setting,
                        number: self.real_numbers.0[&key],
                        id: real_id(&pool.name, real.address),
                        health: Health::UNKNOWN,
                        since: Timestamp::now(),
                        back: None,
                        why: String::new(),
                        next: Instant::now(),
                        check: None,
                        mac: None,
                        way: None,
                        no_way: String::new(),
                        is_proxied: pool.is_proxied(),
                    },
                }
            });
            Pool {
                config: pool.clone(),
                number: self.pool_numbers.0[&pool.name],
                reals: reals.collect(),
                served_by: served.get(&pool.name).cloned().unwrap_or_default(),
            }
        });
        self.pools = pools.collect();
        self.sources = self.find_sources();
        self.is_new = true;
        fresh
    }

    fn reals(&self) -> impl Iterator<Item = &RealState> {
        self.pools.iter().flat_map(|pool| &pool.reals)
    }

    /// How long the first checks may take.
    fn first_checks(&self) -> Duration {
        let silent = self.pools.iter().map(|pool| &pool.config.check);
        let silent = silent.filter(|check| match &check.kind {
            CheckKind::Udp(config) => !config.require_answer,
            _ => false,
        });
        let longest = silent.map(|check| check.timeout + 10 * POLL_INTERVAL).max();
        longest.map_or(FIRST, |time| time.clamp(FIRST, FIRST_LONGEST))
    }

    /// Notes what has come of what was begun, and begins what is due.
    fn check(&mut self) {
        let (mut under_way, mut commands) = (0, 0);
        for pool in &mut self.pools {
            for real in &mut pool.reals {
                let kind = &pool.config.check.kind;
                let is_command = real.check.as_ref().is_some_and(Check::is_command);
                match real.check.as_mut().map(|check| check.look(kind)) {
                    Some(Some(outcome)) => self.news.extend(real.note(&pool.config, outcome)),
                    Some(None) => {
                        under_way += 1;
                        commands += usize::from(is_command);
                    }
                    None => (),
                }
            }
        }
        // Who has waited longest is next, so that no pool's dead reals keep the checks of
        // others from being begun.
        let now = Instant::now();
        let all = self.pools.iter_mut().flat_map(|pool| {
            let config = &pool.config;
            pool.reals.iter_mut().map(move |real| (config, real))
        });
        let mut due: Vec<_> = all
            .filter(|(_, real)| real.check.is_none() && now >= real.next)
            .collect();
        due.sort_by_key(|(_, real)| real.next);
        for (pool, real) in due {
            let config = &pool.check;
            let is_command = matches!(config.kind, CheckKind::Command(_));
            if under_way == MAX_CHECKS || (is_command && commands == MAX_COMMANDS) {
                continue;
            }
            under_way += 1;
            commands += usize::from(is_command);
            real.next = now + config.interval;
            let address = real.config.address;
            let target = Target {
                to: SocketAddr::new(address, config.port),
                // The proxy asks as every program of this host.
                from: match pool.is_proxied() {
                    true => None,
                    false => sources::of(&self.sources, address),
                },
                vip: vip_for(pool, address),
                pool: pool.name.clone(),
            };
            match Check::begin(&config.kind, &target, config.timeout) {
                Ok(check) => real.check = Some(check),
                Err(why) => self.news.extend(real.note(pool, Err(why))),
            }
        }
    }

    /// Looks where the reals are on the segment.
    fn locate(&mut self, is_protected: impl Fn(u32) -> bool) -> io::Result<Option<Link>> {
        let link = link(&self.interface, is_protected)?;
        self.sources = self.find_sources();
        let known = match &link {
            Some(link) => neighbours(link.index)?,
            None => BTreeMap::new(),
        };
        let mut neighbourhoods = Neighbourhoods::default();
        for pool in &mut self.pools {
            for real in &mut pool.reals {
                let address = real.config.address;
                (real.mac, real.way) = (None, None);
                real.no_way.clear();
                match &pool.config.forward {
                    Forward::L2 => {
                        real.mac = known.get(&address).copied();
                        if real.mac.is_none() {
                            real.no_way = format!("it is no neighbour on {}", self.interface);
                        }
                    }
                    Forward::Tunnel(config) => {
                        match tunnel::way(&pool.config, config, address, &mut neighbourhoods)? {
                            Ok(way) => (real.mac, real.way) = (Some(way.dest), Some(way)),
                            Err(why) => real.no_way = why,
                        }
                    }
                    Forward::Proxy(_) => (),
                }
            }
        }
        Ok(link)
    }

    /// Where the packets of each real go, by its number.
    fn destinations(&self, link: Option<&Link>) -> Vec<Option<Real>> {
        let mut reals = vec![None; places(self.reals().map(|real| real.number))];
        for real in self.reals() {
            reals[real.number as usize] = real.takes(link);
        }
        reals
    }

    /// What is served in the kernel, by which pool.
    fn services(&self) -> Vec<VirtualService> {
        let mut services = Vec::new();
        for pool in self.pools.iter().filter(|pool| !pool.config.is_proxied()) {
            for vip in &pool.config.vips {
                let ports = pool.config.ports.iter();
                services.extend(ports.map(|(protocol, port)| VirtualService {
                    addr: *vip,
                    protocol: *protocol,
                    port: *port,
                    pool: pool.number,
                }));
            }
        }
        services
    }

    /// What holds for each pool, by number.
    fn rules(&self) -> Vec<PoolRules> {
        let numbers = self.pools.iter().map(|pool| pool.number);
        let mut rules = vec![PoolRules::default(); places(numbers)];
        for pool in self.pools.iter().filter(|pool| !pool.config.is_proxied()) {
            rules[pool.number as usize] = PoolRules {
                slot_by: pool.config.method.slot_by(),
                acl: self.acl(&pool.config.name),
            };
        }
        rules
    }

    /// Which real each slot of each pool belongs to.
    fn rings(&self) -> Vec<Vec<Option<u16>>> {
        let now = Instant::now();
        let pools = places(self.pools.iter().map(|pool| pool.number));
        let mut rings = vec![vec![None; SLOTS]; pools];
        for pool in self.pools.iter().filter(|pool| !pool.config.is_proxied()) {
            let members: Vec<_> = servers(pool, &self.pools)
                .1
                .into_iter()
                .map(|real| (real.config.address.to_string(), real))
                .collect();
            let named: Vec<_> = members
                .iter()
                .map(|(name, real)| Member {
                    name,
                    weight: real.share(pool.config.slow_start, now),
                })
                .collect();
            let of_pool = &mut rings[pool.number as usize];
            let ring = match pool.config.method {
                Method::RoundRobin => turns(&named, SLOTS),
                _ => ring(&named, SLOTS),
            };
            for (slot, member) in of_pool.iter_mut().zip(ring) {
                *slot = Some(members[member].1.number as u16);
            }
        }
        rings
    }
}

/// How many places there are up to the last of these numbers.
fn places(numbers: impl Iterator<Item = u32>) -> usize {
    numbers.max().map_or(0, |last| last as usize + 1)
}

impl Balancer {
    /// No pools yet; of this backend. What was said of single reals is kept in the state
    /// directory.
    pub fn new(
        backend: Arc<dyn Backend>,
        alerts: Arc<Alerts>,
        events: Arc<Events>,
        access: (Arc<GeoService>, Lists),
        state_dir: &Path,
        pulses: Arc<Pulses>,
    ) -> Self {
        let (settings, read) = Settings::read(state_dir.join("reals.json"));
        if let Err(error) = read {
            let message = format!(
                "cannot read {}: {error}; reals that were drained, disabled or given a weight are as configured",
                state_dir.join("reals.json").display()
            );
            alerts.raise(ABOUT_SETTINGS, message);
        }
        let state = State {
            settings,
            ..State::default()
        };
        Self {
            backend,
            alerts,
            events,
            geography: access.0,
            lists: access.1,
            state: Mutex::new(state),
            alive: Mutex::default(),
            proxied: Mutex::new(Proxied::new(pulses)),
        }
    }

    /// Changes what a real takes, at once and for as long as it is configured. Returns it
    /// as it is then, and whether that is on disk.
    ///
    /// # Errors
    /// There is no such real, or the backend cannot do it.
    pub fn change(
        &self,
        pool: &str,
        address: IpAddr,
        change: Change,
    ) -> Result<(RealStatus, io::Result<()>), RealChangeError> {
        let mut state = self.state();
        let names = state.pools.iter().map(|pool| pool.config.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let not_found = |what: String, there: &str| {
            let there = if there.is_empty() { "none" } else { there };
            RealChangeError::NotFound(format!("there is no {what}; there are: {there}"))
        };
        let state = &mut *state;
        let Some(found) = state.pools.iter_mut().find(|p| p.config.name == pool) else {
            return Err(not_found(format!("pool {}", crate::escape(pool)), &names));
        };
        let there = found
            .reals
            .iter()
            .map(|real| real.config.address.to_string());
        let there = there.collect::<Vec<_>>().join(", ");
        let Some(real) = found.reals.iter_mut().find(|r| r.config.address == address) else {
            return Err(not_found(format!("real {address} in pool {pool}"), &there));
        };
        let before = real.setting;
        real.setting = Setting {
            mode: change.mode.unwrap_or(before.mode),
            weight: change.weight.unwrap_or(before.weight),
        };
        let (setting, number) = (real.setting, real.number);
        if setting.mode == Mode::Enabled && before.mode != Mode::Enabled {
            real.back = Some(Instant::now());
        }
        state.is_new |= setting != before;
        if let Err(error) = self.follow(state) {
            let real = state.pools.iter_mut().flat_map(|pool| &mut pool.reals);
            real.filter(|real| real.number == number)
                .for_each(|real| real.setting = before);
            return Err(error.into());
        }
        if setting != before {
            let weight = setting.weight.map(|w| format!(", weight {w}"));
            let weight = weight.unwrap_or_default();
            let text = format!(
                "pool {pool}: real {address} is {}{weight} now",
                setting.mode.name()
            );
            tracing::info!("{text}");
            self.events
                .tell(&event(pool, text).about(Prefix::host(address)));
        }
        state.settings.set(pool, address, setting);
        let saved = state.settings.save();
        match &saved {
            Ok(()) => self.alerts.clear(ABOUT_SETTINGS),
            Err(error) => {
                let message = format!(
                    "cannot save what was said of reals ({error}): it is forgotten at the next start"
                );
                self.alerts.raise(ABOUT_SETTINGS, message);
            }
        }
        let all = state
            .pools
            .iter()
            .flat_map(|pool| pool.reals.iter().map(move |real| (&pool.config, real)));
        let (pool, real) = { all }
            .find(|(_, real)| real.number == number)
            .expect("it was found above");
        let shown = self.shown(pool, real)?;
        Ok((shown, saved))
    }

    fn shown(
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
            role: if real.is_emergency {
                "emergency"
            } else {
                "real"
            },
            weight: real.weight(),
            mode: real.setting.mode.name(),
            state: real.state(),
            why: match real.ramp(pool.slow_start, Instant::now()) {
                Some(step) => format!(
                    "slow start, {} % of its weight",
                    step * 100 / slow_start::STEPS
                ),
                None if real.state() == "unresolved" => real.no_way.clone(),
                None => real.why.clone(),
            },
            since: real.since,
            mac: real
                .mac
                .map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
            packets: count.packets,
            bytes: count.bytes,
            flows: count.flows,
            proxy,
        })
    }

    fn proxied(&self) -> MutexGuard<'_, Proxied> {
        self.proxied.lock().expect("no holder of this lock panics")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn alive(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.alive.lock().expect("no holder of this lock panics")
    }

    /// Is there a real in this pool that takes new flows?
    pub fn has_live_real(&self, pool: &str) -> bool {
        self.alive().contains(pool)
    }

    /// Puts the pools of a configuration into force, with what a first check says of
    /// their reals. What an earlier daemon left serves them until then.
    ///
    /// # Errors
    /// The backend cannot forward.
    pub fn apply(&self, config: Option<&BalanceConfig>) -> Result<(), weir_enforce::Error> {
        let mut state = self.state();
        let names: Vec<_> = state.pools.iter().map(|p| p.config.name.clone()).collect();
        let Some(config) = config else {
            let mut settings = std::mem::take(&mut state.settings);
            self.forget(&mut settings, |_, _| false);
            *state = State {
                told: state.told.take(),
                settings,
                ..State::default()
            };
            names
                .iter()
                .for_each(|name| self.alerts.clear(&about(name)));
            self.alerts.clear(ABOUT);
            self.follow_proxied(&state);
            return self.tell(&mut state, Balance::default());
        };
        self.forget(&mut state.settings, |pool, real| {
            let pools = config.pools.iter().filter(|known| known.name == pool);
            let mut reals = pools.flat_map(PoolConfig::own_reals);
            reals.any(|known| known.address == real)
        });
        let fresh = state.configure(config);
        let gone = names
            .iter()
            .filter(|name| !config.pools.iter().any(|p| p.name == **name));
        gone.for_each(|name| self.alerts.clear(&about(name)));
        let until = Instant::now() + state.first_checks();
        loop {
            state.check();
            let mut waiting = state.reals().map(|real| real.health.life);
            if !waiting.any(|life| life == Life::Unknown) || Instant::now() > until {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.tell_news(&mut state);
        if let Some(forwarder) = self.backend.balancer() {
            let next = state.services();
            let changed = state.told.as_ref().map(|told| &told.services) != Some(&next);
            let numbers = if changed { 0..next.len() as u32 } else { 0..0 };
            forwarder.forget_balance_counts(&fresh, &numbers.collect::<Vec<_>>())?;
        }
        self.follow(&mut state)
    }

    /// What was said of reals that are configured no more counts no more.
    fn forget(&self, settings: &mut Settings, is_there: impl Fn(&str, IpAddr) -> bool) {
        let gone = settings.keep(is_there);
        for (pool, real) in &gone {
            tracing::info!("pool {pool}: what was said of real {real} is forgotten with it");
        }
        if !gone.is_empty()
            && let Err(error) = settings.save()
        {
            let message = format!("cannot save what was said of reals: {error}");
            self.alerts.raise(ABOUT_SETTINGS, message);
        }
    }

    /// Has the backend do what is known now.
    fn follow(&self, state: &mut State) -> Result<(), weir_enforce::Error> {
        state.looked = Some(Instant::now());
        self.join_acls(state);
        self.follow_proxied(state);
        let is_protected = |index| {
            let all = self.backend.attachments().into_iter();
            let mut names = all.map(|one| one.renamed.unwrap_or(one.interface));
            names.any(|name| nix::net::if_::if_nametoindex(&*name) == Ok(index))
        };
        let link = match state.locate(is_protected) {
            Ok(link) => link,
            // What the backend has may be right still.
            Err(error) => {
                let message =
                    format!("cannot read the kernel's interfaces and neighbours: {error}");
                self.alerts.raise(ABOUT, message);
                return Ok(());
            }
        };
        // Rings are made where something has changed, and not each second.
        let reals = state.destinations(link.as_ref());
        state.is_new |= state.has_ramped();
        if state.is_new || state.told.as_ref().is_none_or(|told| told.reals != reals) {
            let (services, rings) = (state.services(), state.rings());
            let wanted = Balance {
                services,
                rings,
                reals,
                pools: state.rules(),
            };
            self.tell(state, wanted)?;
            state.is_new = false;
        }
        let alive = state.pools.iter().filter(|pool| pool.live() > 0);
        *self.alive() = alive.map(|pool| pool.config.name.clone()).collect();
        self.alerts.clear(ABOUT);
        let served_by = state.pools.iter();
        let served_by: Vec<_> = served_by
            .map(|pool| servers(pool, &state.pools).0)
            .collect();
        for (pool, now) in state.pools.iter_mut().zip(served_by) {
            self.note_servers(pool, now);
            self.alert(pool);
        }
        Ok(())
    }

    /// Has the proxy do what is known now.
    fn follow_proxied(&self, state: &State) {
        let mut proxied = self.proxied();
        match proxied.follow(state, &self.alerts) {
            Ok(()) => self.alerts.clear(ABOUT_PROXY),
            Err(error) => {
                let message = format!("cannot start the proxy: {error}");
                self.alerts.raise(ABOUT_PROXY, message);
            }
        }
    }

    /// Tells who takes a pool's new flows, where that has changed.
    fn note_servers(&self, pool: &mut Pool, now: Servers) {
        if pool.served_by == now {
            return;
        }
        let name = &pool.config.name;
        let text = format!("pool {name}: {}", now.consequence(&pool.config));
        match now {
            Servers::Reals => tracing::info!("{text}"),
            _ => tracing::warn!("{text}"),
        }
        self.events.tell(&event(name, text));
        pool.served_by = now;
    }

    fn tell_news(&self, state: &mut State) {
        for event in state.news.drain(..) {
            self.events.tell(&event);
        }
    }

    fn tell(&self, state: &mut State, wanted: Balance) -> Result<(), weir_enforce::Error> {
        if state.told.as_ref() != Some(&wanted) {
            weir_enforce::set_balance(&*self.backend, &wanted)?;
            state.told = Some(wanted);
        }
        Ok(())
    }

    fn alert(&self, pool: &Pool) {
        let name = &pool.config.name;
        let is_served = pool.served_by == Servers::Reals;
        // Who serves nobody because an administrator said so is missed only when
        // nobody else does.
        let is_missed = |real: &&RealState| match is_served {
            true => !real.is_up() && real.setting.mode != Mode::Disabled,
            false => !real.takes_new_flows(),
        };
        let missing = pool.reals.iter().filter(is_missed).map(|real| {
            let mut why = match real.state() {
                _ if real.setting.mode == Mode::Disabled => "disabled".to_owned(),
                "unresolved" => real.no_way.clone(),
                "down" => real.why.clone(),
                "unknown" => "not checked yet".to_owned(),
                _ if real.setting.mode == Mode::Draining => "draining".to_owned(),
                _ => "weight 0".to_owned(),
            };
            if real.is_emergency {
                why.insert_str(0, "emergency; ");
            }
            format!("{} ({why})", real.config.address)
        });
        let missing = missing.collect::<Vec<_>>().join(", ");
        if is_served && missing.is_empty() {
            return match self.generic_hooks(pool) {
                hooks if hooks.is_empty() => self.alerts.clear(&about(name)),
                hooks => self.alerts.raise(
                    &about(name),
                    format!(
                        "pool {name} has forward = \"{}\", and {} has generic XDP only: packets that GRO puts together there are dropped (too-big); turn GRO off (ethtool -K {} gro off) or have backend = \"tcx\"",
                        pool.config.forward.name(),
                        hooks.join(", "),
                        hooks[0]
                    ),
                ),
            };
        }
        let message = match is_served {
            true => format!("pool {name} does without {missing}"),
            false => format!(
                "pool {name} has no live real, {}: {missing}",
                pool.served_by.consequence(&pool.config)
            ),
        };
        self.alerts.raise(&about(name), message);
    }

    /// Interfaces where a tunnel cannot be had for every packet.
    fn generic_hooks(&self, pool: &Pool) -> Vec<String> {
        if !matches!(pool.config.forward, Forward::Tunnel(_)) {
            return Vec::new();
        }
        let attachments = self.backend.attachments().into_iter();
        let generic = attachments.filter(|one| one.hook == "xdp-generic");
        generic.map(|one| one.interface).collect()
    }

    /// Checks until the daemon stops.
    pub fn run(&self, stopping: &AtomicBool, pulse: &Pulse) {
        while !stopping.load(Ordering::Relaxed) {
            pulse.beat();
            let mut state = self.state();
            let before: Vec<_> = state.reals().map(|real| real.health.life).collect();
            state.check();
            self.tell_news(&mut state);
            let changed = before.into_iter().ne(state.reals().map(|r| r.health.life));
            let is_due = state.looked.is_none_or(|at| at.elapsed() >= NEIGHBOURS);
            if !state.pools.is_empty()
                && (changed || is_due)
                && let Err(error) = self.follow(&mut state)
            {
                self.alerts.raise(ABOUT, error.to_string());
            }
            let is_waiting = state.reals().any(|real| real.check.is_some());
            let next = state.reals().map(|real| real.next).min();
            drop(state);
            let due = next.map_or(NEIGHBOURS, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let time = match is_waiting {
                true => POLL_INTERVAL,
                false => due.clamp(POLL_INTERVAL, NEIGHBOURS),
            };
            threads::wait(time, stopping);
        }
        self.proxied().stop();
    }

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
            let mut services = Vec::new();
            let all = told
                .map(|told| told.services.as_slice())
                .unwrap_or_default();
            for (number, service) in (0..).zip(all).filter(|(_, s)| s.pool == pool.number) {
                let count = forwarder
                    .map_or_else(|| Ok(Default::default()), |f| f.service_count(number))?;
                services.push(ServiceStatus {
                    vip: service.addr,
                    port: PortRange::one(service.protocol, service.port).to_string(),
                    packets: count.packets,
                    bytes: count.bytes,
                    unserved: count.unserved,
                    unremembered: count.unremembered,
                    denied: count.denied,
                    proxy: None,
                });
            }
            let of_proxy = self.proxied().services(&pool.config.name).into_iter();
            services.extend(of_proxy.map(|(vip, port, proxy)| ServiceStatus {
                vip,
                port,
                packets: 0,
                bytes: proxy.bytes_in + proxy.bytes_out,
                unserved: proxy.unserved(),
                unremembered: 0,
                denied: proxy.denied,
                proxy: Some(proxy),
            }));
            let reals = pool.reals.iter().map(|real| self.shown(&pool.config, real));
            let reals = reals.collect::<Result<_, _>>()?;
            pools.push(PoolStatus {
                name: pool.config.name.clone(),
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
}

/// An event about a pool.
fn event(pool: &str, text: String) -> Event {
    let mut event = Event::new(Kind::Pool, Timestamp::now(), text);
    event.pool = Some(pool.to_owned());
    event
}

/// The virtual address that goes with this real: of its family, if the pool has one.
fn vip_for(pool: &PoolConfig, real: IpAddr) -> IpAddr {
    let mut vips = pool.vips.iter();
    let same = vips.clone().find(|vip| vip.is_ipv4() == real.is_ipv4());
    *same.or(vips.next()).unwrap_or(&real)
}

/// What alerts about a pool are about.
fn about(pool: &str) -> String {
    format!("pool-{pool}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_is_served_by_its_own_device_where_weir_protects_that() {
        let vlan = Some(Vlan { parent: 2, id: 10 });
        assert_eq!(leaves_by(7, vlan, |index| index == 2), (2, 10));
        assert_eq!(leaves_by(7, vlan, |index| index == 7), (7, 0));
        assert_eq!(leaves_by(2, None, |_| false), (2, 0));
    }

    /// Without a descriptor nothing is known of it: the reals stay where they are.
    #[test]
    fn an_interface_that_cannot_be_asked_for_is_not_gone() {
        use rustix::process::{Resource::Nofile, Rlimit, setrlimit};
        const ALONE: &str = "WEIR_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(ALONE).is_none() {
            // The limit is the process's, so this test is run in one of its own.
            let name = thread::current().name().unwrap().to_owned();
            let test = std::env::current_exe().unwrap();
            let mut alone = std::process::Command::new(test);
            let done = alone.args(["--exact", &name]).env(ALONE, "1").output();
            let done = done.unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(said.contains(" 1 passed"), "{said}");
            return;
        }
        assert!(link("no-such-0", |_| false).unwrap().is_none());
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Nofile, none).unwrap();
        // Which error, the C library does not say.
        assert!(link("lo", |_| false).is_err());
    }

    #[test]
    fn numbers_stay_and_those_given_up_are_given_out_last() {
        let mut numbers = Numbers::<_, 5>::default();
        assert_eq!(numbers.keep(&["a", "b", "c"]), [0, 1, 2]);
        assert_eq!(numbers.keep(&["c", "d"]), [3]);
        assert_eq!(numbers.0, [("c", 2), ("d", 3)].into());
        assert_eq!(numbers.keep(&["c", "d", "e"]), [0]);
    }

    /// Beyond its places the kernel has none: what is written there is refused.
    #[test]
    fn numbers_of_a_full_table_are_given_out_again() {
        const PLACES: usize = 32;
        let mut numbers = Numbers::<_, PLACES>::default();
        for round in 0..5 {
            let all: Vec<_> = (0..PLACES).map(|n| n + round * 20).collect();
            numbers.keep(&all);
            let given: BTreeSet<_> = numbers.0.values().copied().collect();
            assert_eq!(given, (0..PLACES as u32).collect(), "of round {round}");
        }
    }

    #[test]
    fn checks_are_bounded_and_nobody_is_forgotten() {
        // It answers nobody.
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let real = |n: usize| RealConfig {
            address: IpAddr::from([127, 0, (n / 200) as u8, (n % 200) as u8 + 1]),
            weight: 1,
        };
        let http = config::HttpConfig {
            path: "/".to_owned(),
            host: None,
            status: vec![200..=399],
        };
        let pool = PoolConfig {
            name: "web".to_owned(),
            vips: vec![],
            ports: vec![],
            reals: (0..MAX_CHECKS + 40).map(real).collect(),
            emergency: None,
            acl: None,
            method: Method::Maglev,
            slow_start: Duration::ZERO,
            forward: Forward::L2,
            check: config::CheckConfig {
                kind: config::CheckKind::Http(http),
                port: listener.local_addr().unwrap().port(),
                interval: Duration::from_secs(1),
                timeout: Duration::from_secs(600),
                rise: 1,
                fall: 1,
            },
        };
        let mut state = State::default();
        state.configure(&BalanceConfig {
            interface: Some("eth0".to_owned()),
            announce: false,
            threads: None,
            pools: vec![pool],
        });
        let are_under_way = |state: &State| -> Vec<bool> {
            state.reals().map(|real| real.check.is_some()).collect()
        };
        for _ in 0..2 {
            state.check();
            let begun = are_under_way(&state);
            let (first, rest) = begun.split_at(MAX_CHECKS);
            assert!(first.iter().all(|begun| *begun));
            assert!(!rest.iter().any(|begun| *begun));
        }
        // All of them are over, and due again: those that never had one come first.
        for real in &mut state.pools[0].reals[..MAX_CHECKS] {
            real.check = None;
            real.next = Instant::now();
        }
        state.check();
        let begun = are_under_way(&state);
        assert!(begun[MAX_CHECKS..].iter().all(|begun| *begun));
        assert_eq!(begun.iter().filter(|begun| **begun).count(), MAX_CHECKS);
    }
}

//! What is known of pools and reals: which are alive, where they are, and what the
//! kernel is told of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{
    Prefix,
    balance::{
        maglev::{Member, ring},
        turns::turns,
    },
};
use weir_enforce::{PoolRules, QuicServer, Real, SLOTS, VirtualService, real_id};
use weir_events::Event;

use super::{
    FIRST, FIRST_LONGEST, POLL_INTERVAL, Pool, RealState, State,
    check::{Check, Target},
    config::{BalanceConfig, CheckKind, Emergency, Forward, Method, PoolConfig},
    emergency::{Servers, servers},
    event,
    health::{Health, Life},
    link::{Link, link},
    not_begun::NotBegun,
    settings::Mode,
    sources,
    tunnel::{self, Neighbourhoods},
    vip_check::{VipAsker, VipCheck},
    vip_for,
};
use crate::host::{interface, neighbours};

/// The most checks that are under way at once, each with a descriptor of its own.
const MAX_CHECKS: usize = 256;
/// The most of these checks that are commands.
const MAX_COMMANDS: usize = 16;

impl Pool {
    /// The reals whose QUIC connections stay with them wherever the client goes.
    fn quic_servers(&self) -> Vec<QuicServer> {
        let with = |real: &RealState| {
            Some(QuicServer {
                server_id: real.config.quic_server_id?,
                real: real.number,
                id: real.id,
            })
        };
        self.reals.iter().filter_map(with).collect()
    }

    /// What becomes of a real that was asked at the virtual addresses. One that lacks them
    /// is down while another real has them, or may have: that none has is no reason to
    /// serve nobody, but one to tell ([`Pool::lack_vips`]).
    fn judge_vip_check(&mut self, real: usize, outcome: Result<(), String>) -> Result<(), String> {
        let asked = &mut self.reals[real];
        asked.has_vips = Some(outcome.clone());
        if outcome.is_ok() {
            let count = self.config.vips.len().max(1);
            asked.vip_turn = (asked.vip_turn + VipCheck::STEP) % count;
        }
        match self.lack_vips() {
            true => Ok(()),
            false => outcome,
        }
    }

    /// Whether all reals of the pool were asked at the virtual addresses, and no real that
    /// lives has them.
    pub(super) fn lack_vips(&self) -> bool {
        let mut lack = false;
        for real in &self.reals {
            match &real.has_vips {
                Some(Err(_)) => lack = true,
                // It takes nothing anyway, and cannot take the others' place.
                _ if real.health.life == Life::Down || real.weight() == 0 => (),
                _ => return false,
            }
        }
        lack
    }
}

impl RealState {
    /// Where its packets go, if it takes any.
    pub(super) fn takes(&self, link: Option<&Link>) -> Option<Real> {
        let lives = self.health.may_have_flows() && !self.is_proxied;
        let takes = lives && self.setting.mode != Mode::Disabled;
        let on_segment = |link: &Link| {
            Some(Real {
                id: self.id,
                dest: self.mac?,
                source: link.mac,
                ifindex: link.out,
                vlan: link.vlan,
                tunnel: None,
                drains: false,
            })
        };
        let way = match self.way {
            Some(way) => Some(Real { id: self.id, ..way }),
            None => link.and_then(on_segment),
        };
        way.filter(|_| takes)
    }

    /// A check of it is over; what is to be told.
    pub(super) fn note(&mut self, pool: &PoolConfig, outcome: Result<(), String>) -> Option<Event> {
        (self.check, self.vip_check) = (None, None);
        let lives = outcome.is_ok();
        self.why = outcome.err().unwrap_or_default();
        let was_down = self.health.life == Life::Down;
        if !self.health.note(lives, pool.check.rise, pool.check.fall) {
            return None;
        }
        self.down_because = self.why.clone();
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

    /// Whether a check of it is under way.
    pub(super) fn is_being_checked(&self) -> bool {
        self.check.is_some() || self.vip_check.is_some()
    }

    /// Whether the real takes new flows.
    pub(super) fn takes_new_flows(&self) -> bool {
        self.is_up() && self.weight() > 0
    }

    /// Whether the real can have flows: it lives, or did when it was asked last, and there
    /// is a way to it.
    pub(super) fn is_up(&self) -> bool {
        self.health.may_have_flows() && (self.mac.is_some() || self.is_proxied)
    }

    /// The real's share of new flows: 0 if it is draining or disabled.
    pub(super) fn weight(&self) -> u32 {
        match self.setting.mode {
            Mode::Enabled => self.setting.weight.unwrap_or(self.config.weight),
            Mode::Draining | Mode::Disabled => 0,
        }
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.health.life, self.mac) {
            (Life::Unknown, _) => "unknown",
            (Life::Down, _) => "down",
            (Life::Up, None) if !self.is_proxied => "unresolved",
            (Life::Up, _) => "up",
        }
    }
}

/// All reals of a configuration, by pool and address.
fn reals_of(config: &BalanceConfig) -> Vec<(String, IpAddr)> {
    let pools = config.pools.iter();
    pools
        .flat_map(|pool| pool.own_reals().map(|r| (pool.name.clone(), r.address)))
        .collect()
}

impl State {
    /// At a start: reals have the numbers by which the flows in the kernel know them, so
    /// that these stay where they are. `numbers`: by the reals' ids.
    pub(super) fn take_over(&mut self, config: &BalanceConfig, numbers: &HashMap<u64, u32>) {
        let known =
            |(pool, address): &(String, IpAddr)| numbers.get(&real_id(pool, *address)).copied();
        self.real_numbers.take_over(&reals_of(config), known);
    }

    /// Takes a configuration on; what is known of reals that stay is kept. One that had
    /// flows so far, and is to be checked otherwise or by another daemon, has them until
    /// the first check has ended.
    pub(super) fn configure(&mut self, config: &BalanceConfig) -> Vec<u32> {
        self.interface = config.interface.clone().unwrap_or_default();
        // Opened anew by the first who is asked; checks that are under way are begun anew.
        (self.vip_asker, self.no_vip_asker) = (None, None);
        self.threads = config.threads;
        let names: Vec<_> = config.pools.iter().map(|pool| pool.name.clone()).collect();
        self.pool_numbers.keep(&names);
        // At a start no more is known of them than that the kernel has them.
        let mut with_flows: BTreeSet<_> = match self.pools.is_empty() {
            true => self.real_numbers.0.keys().cloned().collect(),
            false => BTreeSet::new(),
        };
        let fresh = self.real_numbers.keep(&reals_of(config));
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
                let all = pool.reals.into_iter();
                all.map(move |real| ((name.clone(), real.config.address), real, same))
            })
            .filter_map(|(key, real, same)| {
                if !same && real.health.may_have_flows() {
                    with_flows.insert(key.clone());
                }
                same.then_some((key, real))
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
                        vip_check: None,
                        has_vips: None,
                        ..known
                    },
                    None => RealState {
                        config: real.clone(),
                        is_emergency,
                        setting,
                        number: self.real_numbers.0[&key],
                        id: real_id(&pool.name, real.address),
                        health: match with_flows.contains(&key) {
                            true => Health::UNKNOWN_WITH_FLOWS,
                            false => Health::UNKNOWN,
                        },
                        since: Timestamp::now(),
                        back: None,
                        why: String::new(),
                        down_because: String::new(),
                        next: Instant::now(),
                        not_asked: None,
                        check: None,
                        vip_check: None,
                        vip_turn: 0,
                        has_vips: None,
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

    pub(super) fn reals(&self) -> impl Iterator<Item = &RealState> {
        self.pools.iter().flat_map(|pool| &pool.reals)
    }

    /// How long the first checks may take.
    pub(super) fn first_checks(&self) -> Duration {
        let silent = self.pools.iter().map(|pool| &pool.config.check);
        let silent = silent.filter(|check| match &check.kind {
            CheckKind::Udp(config) => !config.require_answer,
            _ => false,
        });
        let longest = silent.map(|check| check.timeout + 10 * POLL_INTERVAL).max();
        longest.map_or(FIRST, |time| time.clamp(FIRST, FIRST_LONGEST))
    }

    /// Notes what has come of what was begun, and begins what is due.
    pub(super) fn check(&mut self) {
        let (mut under_way, mut commands) = (0, 0);
        let asker = self.vip_asker.as_ref();
        let answers = asker.map(VipAsker::read).unwrap_or_default();
        for p in 0..self.pools.len() {
            for r in 0..self.pools[p].reals.len() {
                let Pool { config, reals, .. } = &mut self.pools[p];
                let real = &mut reals[r];
                let is_command = real.check.as_ref().is_some_and(Check::is_command);
                let own = real.check.as_mut().map(|c| c.look(&config.check.kind));
                let vip = real.vip_check.as_mut().zip(self.vip_asker.as_ref());
                let vip = vip.map(|(check, asker)| check.look(&answers, asker));
                match own.or(vip) {
                    Some(Some(Ok(()))) if real.check.is_some() && self.begin_vip_check(p, r) => {
                        under_way += 1;
                    }
                    Some(Some(outcome)) => {
                        let outcome = match self.pools[p].reals[r].vip_check.is_some() {
                            true => self.pools[p].judge_vip_check(r, outcome),
                            false => outcome,
                        };
                        let Pool { config, reals, .. } = &mut self.pools[p];
                        self.news.extend(reals[r].note(config, outcome));
                    }
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
            .filter(|(_, real)| !real.is_being_checked() && now >= real.next)
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
                to: SocketAddr::new(address, pool.checked_port(&real.config)),
                // The proxy asks as every program of this host.
                from: match pool.is_proxied() {
                    true => None,
                    false => sources::of(&self.sources, address),
                },
                vip: vip_for(pool, address),
                pool: pool.name.clone(),
            };
            match Check::begin(&config.kind, &target, config.timeout) {
                Ok(check) => (real.check, real.not_asked) = (Some(check), None),
                Err(NotBegun::HostLacks(why)) => real.not_asked = Some(why),
                Err(NotBegun::RealFails(why)) => {
                    real.not_asked = None;
                    self.news.extend(real.note(pool, Err(why)));
                }
            }
        }
    }

    /// Asks a real that has passed its check at the virtual addresses of its pool;
    /// `false`: it is not asked.
    fn begin_vip_check(&mut self, pool: usize, real: usize) -> bool {
        let Pool { config, reals, .. } = &mut self.pools[pool];
        let real = &mut reals[real];
        if !config.asks_vips() {
            return false;
        }
        if self.vip_asker.is_none() {
            let opened = match interface(&self.interface) {
                Ok(Some(interface)) => VipAsker::open(interface),
                Ok(None) => return false,
                Err(error) => Err(error),
            };
            match opened {
                Ok(asker) => (self.vip_asker, self.no_vip_asker) = (Some(asker), None),
                Err(error) => self.no_vip_asker = Some(error.to_string()),
            }
        }
        let Some(asker) = &mut self.vip_asker else {
            return false;
        };
        // A first check has just made a neighbour of it.
        let mac = real.mac.or_else(|| {
            let known = neighbours(asker.index()).ok()?;
            known.get(&real.config.address).copied()
        });
        let Some(mac) = mac else {
            return false;
        };
        let at = (real.config.address, mac);
        let check = VipCheck::begin(config, at, real.vip_turn, &self.sources, asker);
        real.check = None;
        real.vip_check = check;
        real.vip_check.is_some()
    }

    /// Looks where the reals are on the segment.
    pub(super) fn locate(
        &mut self,
        is_protected: impl Fn(u32) -> bool,
    ) -> io::Result<Option<Link>> {
        let link = link(&self.interface, is_protected)?;
        self.sources = self.find_sources();
        let known = match &link {
            Some(link) => neighbours(link.index)?,
            None => BTreeMap::new(),
        };
        // Checks that are under way are over without an answer then, and begun anew.
        let is_same = |asker: &VipAsker| link.as_ref().is_some_and(|l| asker.is_of(l.index, l.mac));
        if !self.vip_asker.as_ref().is_some_and(is_same) {
            self.vip_asker = None;
            let all = self.pools.iter_mut().flat_map(|pool| &mut pool.reals);
            all.for_each(|real| real.vip_check = None);
        }
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
    pub(super) fn destinations(&self, link: Option<&Link>) -> Vec<Option<Real>> {
        let mut reals = vec![None; places(self.reals().map(|real| real.number))];
        let takers = self.takers();
        for real in self.reals() {
            let drains = !takers.contains(&real.number);
            reals[real.number as usize] = real.takes(link).map(|to| Real { drains, ..to });
        }
        reals
    }

    /// The numbers of the reals that take new flows of some pool: the others drain.
    fn takers(&self) -> BTreeSet<u32> {
        let pools = self.pools.iter();
        let takers = pools.flat_map(|pool| servers(pool, &self.pools).1);
        takers.map(|real| real.number).collect()
    }

    /// What is served in the kernel, by which pool.
    pub(super) fn services(&self) -> Vec<VirtualService> {
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
    pub(super) fn rules(&self) -> Vec<PoolRules> {
        let takers = self.takers();
        let drains = |pool: &Pool| {
            let keeps = |real: &RealState| {
                real.health.may_have_flows() && real.setting.mode != Mode::Disabled
            };
            let mut reals = pool.reals.iter();
            reals.any(|real| keeps(real) && !takers.contains(&real.number))
        };
        let numbers = self.pools.iter().map(|pool| pool.number);
        let mut rules = vec![PoolRules::default(); places(numbers)];
        for pool in self.pools.iter().filter(|pool| !pool.config.is_proxied()) {
            rules[pool.number as usize] = PoolRules {
                slot_by: pool.config.method.slot_by(),
                acl: self.acl(&pool.config.name),
                any_drains: drains(pool)
                    || match &pool.config.emergency {
                        // Its reals have flows of this pool, too.
                        Some(Emergency::Pool(name)) => self
                            .pools
                            .iter()
                            .any(|p| p.config.name == *name && drains(p)),
                        _ => false,
                    },
                udp_silence: Some(pool.config.udp_timeout),
                quic_servers: pool.quic_servers(),
            };
        }
        rules
    }

    /// Which real each slot of each pool belongs to.
    pub(super) fn rings(&self) -> Vec<Vec<Option<u16>>> {
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
pub(super) fn places(numbers: impl Iterator<Item = u32>) -> usize {
    numbers.max().map_or(0, |last| last as usize + 1)
}

#[cfg(test)]
mod tests;

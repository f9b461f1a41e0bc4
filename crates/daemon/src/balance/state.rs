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
use weir_enforce::{KnownReal, PoolRules, QuicServer, Real, SLOTS, VirtualService, real_id};
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
    sources, tunnel,
    vip_answers::AtVips,
    vip_check::VipAsker,
    vip_for,
};

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
        let lives = outcome.is_ok();
        self.why = outcome.err().unwrap_or_default();
        let was_down = self.health.life == Life::Down;
        if !self.health.note(lives, pool.check.rise, pool.check.fall) {
            return None;
        }
        self.down_because = self.why.clone();
        self.back = (was_down && lives).then(Instant::now);
        self.took_none_until = self.back.or(self.took_none_until);
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
    /// At a start: reals have the numbers by which the flows in the kernel know them, and the
    /// link-layer addresses, so that these stay where they are. `known`: by the reals' ids.
    pub(super) fn take_over(&mut self, config: &BalanceConfig, known: &HashMap<u64, KnownReal>) {
        let number = |(pool, address): &(String, IpAddr)| {
            let known = known.get(&real_id(pool, *address));
            known.map(|real| real.number)
        };
        self.real_numbers.take_over(&reals_of(config), number);
        self.left.clone_from(known);
    }

    /// Takes a configuration on; what is known of reals that stay is kept. One that had
    /// flows so far, and is to be checked otherwise or by another daemon, has them until
    /// the first check has ended.
    pub(super) fn configure(&mut self, config: &BalanceConfig) -> Vec<u32> {
        self.interface = config.interface.clone().unwrap_or_default();
        // Opened anew by the first who is asked; checks that are under way are begun anew.
        (self.vip_asker, self.no_vip_asker) = (VipAsker::default(), None);
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
                        at_vips: AtVips::default(),
                        stand_ins: BTreeMap::new(),
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
                        took_none_until: None,
                        why: String::new(),
                        down_because: String::new(),
                        next: Instant::now(),
                        not_asked: None,
                        check: None,
                        vip_check: None,
                        vip_turn: 0,
                        at_vips: AtVips::default(),
                        stand_ins: BTreeMap::new(),
                        before: self.left.get(&real_id(&pool.name, real.address)).copied(),
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
        self.left.clear();
        self.sources = self.find_sources();
        self.is_new = true;
        self.count_flows_at = None;
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
        let answers = self.vip_asker.read();
        for p in 0..self.pools.len() {
            for r in 0..self.pools[p].reals.len() {
                let Pool { config, reals, .. } = &mut self.pools[p];
                let real = &mut reals[r];
                let is_command = real.check.as_ref().is_some_and(Check::is_command);
                let own = real.check.as_mut().map(|c| c.look(&config.check.kind));
                let asker = &mut self.vip_asker;
                let vip = real.vip_check.as_mut();
                let vip = vip.map(|check| check.look(&answers, asker));
                match (own, vip) {
                    (Some(Some(outcome)), _) => {
                        real.check = None;
                        if outcome.is_ok() {
                            self.begin_stand_in_checks(p, r);
                            if self.begin_vip_check(p, r) {
                                under_way += 1;
                                continue;
                            }
                        }
                        let Pool { config, reals, .. } = &mut self.pools[p];
                        reals[r].decide_by_check();
                        self.news.extend(reals[r].note(config, outcome));
                    }
                    (None, Some(Some(outcome))) => {
                        real.vip_check = None;
                        self.pools[p].note_at_vips(r, outcome);
                        let Pool { config, reals, .. } = &mut self.pools[p];
                        if reals[r].at_vips == AtVips::Answers {
                            self.news.extend(reals[r].note(config, Ok(())));
                        }
                    }
                    (Some(None), _) | (None, Some(None)) => {
                        under_way += 1;
                        commands += usize::from(is_command);
                    }
                    (None, None) => (),
                }
            }
            for (r, outcome) in self.pools[p].decide_at_vips() {
                let Pool { config, reals, .. } = &mut self.pools[p];
                self.news.extend(reals[r].note(config, outcome));
            }
        }
        self.look_at_stand_ins(&answers);
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

    /// Looks where the reals are on the segment.
    pub(super) fn locate(
        &mut self,
        is_protected: impl Fn(u32) -> bool,
    ) -> io::Result<Option<Link>> {
        let link = link(&self.interface, is_protected)?;
        self.sources = self.find_sources();
        // Checks that are under way are over without an answer then, and begun anew.
        let of = link.as_ref().map(|link| (link.index, link.mac));
        if !self.vip_asker.keep_segment(of) {
            let on_segment = |pool: &&mut Pool| pool.config.forward == Forward::L2;
            let pools = self.pools.iter_mut().filter(on_segment);
            let all = pools.flat_map(|pool| &mut pool.reals);
            all.for_each(RealState::forget_questions);
        }
        self.neighbours.begin();
        for pool in &mut self.pools {
            for real in &mut pool.reals {
                let address = real.config.address;
                (real.mac, real.way) = (None, None);
                real.no_way.clear();
                // It seeds what is known of the neighbour, and counts no more once that is.
                let before = real.before.take();
                match &pool.config.forward {
                    Forward::L2 => {
                        if let Some(link) = &link {
                            let mut networks = self.sources.iter().map(|one| one.network);
                            let is_on_link = networks.any(|network| network.contains(address));
                            let key = (link.index, address);
                            let before = before.and_then(|before| link.left_by(&before));
                            real.mac = self.neighbours.find(key, before, is_on_link)?;
                        }
                        if real.mac.is_none() {
                            real.no_way = format!("it is no neighbour on {}", self.interface);
                        }
                    }
                    Forward::Tunnel(config) => {
                        let neighbours = &mut self.neighbours;
                        match tunnel::way(&pool.config, config, address, before, neighbours)? {
                            Ok(way) => (real.mac, real.way) = (Some(way.dest), Some(way)),
                            Err(why) => real.no_way = why,
                        }
                    }
                    Forward::Proxy(_) => (),
                }
            }
        }
        self.neighbours.end();
        let ways = self.reals().filter_map(|real| real.way);
        let interfaces = ways.map(|way| way.ifindex).collect();
        self.vip_asker.keep_senders(&interfaces);
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
                services.extend(ports.map(|port| VirtualService {
                    addr: *vip,
                    protocol: port.protocol,
                    port: (!port.is_all()).then_some(port.low),
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
                weights: self.weights(pool),
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

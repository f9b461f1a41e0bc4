//! Load balancing: knows which reals live and where they are on the segment, and tells
//! the backend which real each new flow goes to. Forwarding is the packet path's
//! (bpf/balance/balance.h), the choice of a real is `weir_core::balance`'s.

mod acl;
mod active_flows;
pub mod added;
mod check;
pub mod config;
mod emergency;
#[cfg(test)]
mod fixture;
mod health;
mod link;
mod neighbours;
mod not_begun;
mod numbers;
mod proxied;
mod proxy_config;
mod rates;
mod settings;
mod slow_start;
mod sources;
mod state;
mod state_file;
mod status;
mod tunnel;
mod vip_answers;
mod vip_check;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::Prefix;
use weir_enforce::{Backend, Balance, KnownReal, MAX_POOLS, MAX_REALS, Real};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::{
    access::{geo::GeoService, lists::Lists},
    host::{InterfaceAddress, Mac},
    threads::{self, Pulse, Pulses},
};
use added::Added;
use check::Check;
use config::{BalanceConfig, Forward, PoolConfig, RealConfig};
use emergency::{Servers, servers};
use health::{Health, Life};
use neighbours::Neighbours;
use numbers::Numbers;
use proxied::Proxied;
use rates::Rates;
use settings::{Setting, Settings};
use vip_answers::{AtVips, StandIn};
use vip_check::{VipAsker, VipCheck};

pub use acl::PoolAccess;
pub use check::answer as check_answer;
pub use config::MAX_WEIGHT;
pub use settings::Mode;
pub use status::{AclStatus, PoolStatus, RealStatus, ServiceStatus};

/// A start, or a reload, waits so long for the first checks; where silence is an answer
/// it waits for that, up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const FIRST_LONGEST: Duration = Duration::from_secs(5);
/// How often is looked at a check that is under way.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often the neighbours are looked at, whatever the checks do.
const NEIGHBOURS: Duration = Duration::from_secs(1);
/// Alerts about the pools as a whole have this subject.
const ABOUT: &str = "balance";
/// Alerts about the settings of `weir real` have this subject.
const ABOUT_SETTINGS: &str = "balance:reals";
/// Alerts about checks at virtual addresses have this subject.
const ABOUT_VIP_CHECKS: &str = "balance:vip-checks";
/// Alerts about checks that cannot be begun have this subject.
const ABOUT_CHECKS: &str = "balance:checks";
/// Alerts about link-layer addresses of reals and routers have this subject.
const ABOUT_NEIGHBOURS: &str = "balance:neighbours";
/// Alerts about the size of the table of flows have this subject.
const ABOUT_FLOWS: &str = "balance:flows";
/// Alerts about the count of live flows have this subject.
const ABOUT_ACTIVE_FLOWS: &str = "balance:active-flows";
/// Alerts about the proxy have this subject.
const ABOUT_PROXY: &str = "proxy";

/// The pools of a daemon.
pub struct Balancer {
    backend: Arc<dyn Backend>,
    alerts: Arc<Alerts>,
    events: Arc<Events>,
    geography: Arc<GeoService>,
    lists: Lists,
    state: Mutex<State>,
    /// Pools with a live real, or one that would be if nobody had drained or disabled it, by
    /// name. Not under the lock of `state`, which is held while first checks are waited for.
    alive: Mutex<BTreeSet<String>>,
    /// Taken after `state`, where both are.
    proxied: Mutex<Proxied>,
    /// As well; and after `proxied`.
    rates: Mutex<Rates>,
}

/// What `weir real` changes of one real; what is absent stays.
#[derive(Debug, Default, Clone, Copy)]
pub struct Change {
    /// Whether it takes flows.
    pub mode: Option<Mode>,
    /// The new share; `Some(None)`: the configuration's again.
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
    /// Numbers of the pools in the kernel.
    pool_numbers: Numbers<String, MAX_POOLS>,
    real_numbers: Numbers<(String, IpAddr), MAX_REALS>,
    /// At a start: the reals that an earlier daemon has left in the kernel, by their ids.
    left: HashMap<u64, KnownReal>,
    /// The link-layer addresses of reals and routers.
    neighbours: Neighbours,
    /// The pools as the backend has been told of them.
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
    /// Threads of the proxy, if the configuration says how many.
    threads: Option<usize>,
    /// The time at which the flows of reals are counted next; `None`: now.
    count_flows_at: Option<Instant>,
    /// The sockets by which reals are asked at virtual addresses.
    vip_asker: VipAsker,
    /// The reason why there are none.
    no_vip_asker: Option<String>,
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
    /// The time at which the real came back, if it was gone.
    back: Option<Instant>,
    /// The time until which it took no packets at all, if there was one: flows that have had
    /// none since are lost.
    took_none_until: Option<Instant>,
    /// What the last check said, if it failed.
    why: String,
    /// What the check said by which it was found down: an alert that told each failure's
    /// own words would be told again with each.
    down_because: String,
    next: Instant,
    /// The reason why the last check could not be begun, which is none of the real's.
    not_asked: Option<String>,
    check: Option<Check>,
    /// Behind a check that it has passed: whether it has the virtual addresses.
    vip_check: Option<VipCheck>,
    /// The virtual address of its pool that is asked next, by its place among those that this
    /// host can ask, in rounds.
    vip_turn: usize,
    /// What came of the last check at virtual addresses.
    at_vips: AtVips,
    /// The same of the virtual addresses of other pools, for whose reals it stands in, by name.
    stand_ins: BTreeMap<String, StandIn>,
    /// How an earlier daemon has left it in the kernel, until it is looked for.
    before: Option<KnownReal>,
    /// The link-layer address of the real, or of the router before it.
    mac: Option<Mac>,
    /// The way to it, where that is a tunnel; its number is not in it.
    way: Option<Real>,
    /// The reason why packets have no way to the real.
    no_way: String,
    /// This host relays for it, wherever it is.
    is_proxied: bool,
}

impl Balancer {
    /// No pools yet, for this backend. Settings of single reals by `weir real` are kept in
    /// the state directory.
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
            rates: Mutex::default(),
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
        let (mut reals, saved) = self.change_reals(pool, Some(address), change)?;
        Ok((reals.remove(0), saved))
    }

    /// The same of all reals of a pool together, but for those that it has for an emergency.
    ///
    /// # Errors
    /// There is no such pool, or the backend cannot do it: then all are as they were.
    pub fn change_all(
        &self,
        pool: &str,
        change: Change,
    ) -> Result<(Vec<RealStatus>, io::Result<()>), RealChangeError> {
        self.change_reals(pool, None, change)
    }

    /// `address`: of one; else all but those for an emergency.
    fn change_reals(
        &self,
        pool: &str,
        address: Option<IpAddr>,
        change: Change,
    ) -> Result<(Vec<RealStatus>, io::Result<()>), RealChangeError> {
        let mut state = self.state();
        let names = state.pools.iter().map(|pool| pool.config.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let not_found = |what: String, there: &str| {
            let there = if there.is_empty() { "none" } else { there };
            RealChangeError::NotFound(format!("there is no {what}; there are: {there}"))
        };
        let state = &mut *state;
        let Some(at) = state.pools.iter().position(|p| p.config.name == pool) else {
            return Err(not_found(format!("pool {}", crate::escape(pool)), &names));
        };
        let is_meant = |real: &RealState| match address {
            Some(address) => real.config.address == address,
            None => !real.is_emergency,
        };
        let mut before = Vec::new();
        for real in state.pools[at]
            .reals
            .iter_mut()
            .filter(|real| is_meant(real))
        {
            let was = (real.setting, real.back, real.took_none_until);
            before.push(was);
            let setting = Setting {
                mode: change.mode.unwrap_or(was.0.mode),
                weight: change.weight.unwrap_or(was.0.weight),
            };
            if setting.mode == Mode::Enabled && was.0.mode != Mode::Enabled {
                real.back = Some(Instant::now());
            }
            if setting.mode != Mode::Disabled && was.0.mode == Mode::Disabled {
                real.took_none_until = Some(Instant::now());
            }
            state.is_new |= setting != was.0;
            real.setting = setting;
        }
        if let Some(address) = address.filter(|_| before.is_empty()) {
            let reals = state.pools[at].reals.iter();
            let there = reals.map(|real| real.config.address.to_string());
            let there = there.collect::<Vec<_>>().join(", ");
            return Err(not_found(format!("real {address} in pool {pool}"), &there));
        }
        if let Err(error) = self.follow(state) {
            let changed = state.pools[at]
                .reals
                .iter_mut()
                .filter(|real| is_meant(real));
            for (real, was) in changed.zip(before) {
                (real.setting, real.back, real.took_none_until) = was;
            }
            return Err(error.into());
        }
        let Pool { config, reals, .. } = &state.pools[at];
        let changed: Vec<_> = reals.iter().filter(|real| is_meant(real)).collect();
        for (real, (was, ..)) in changed.iter().zip(before) {
            let (setting, address) = (real.setting, real.config.address);
            if setting != was {
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
        }
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
        let shown = { changed.into_iter() }.map(|real| self.shown(config, real));
        let shown = shown.collect::<Result<_, _>>()?;
        Ok((shown, saved))
    }

    fn proxied(&self) -> MutexGuard<'_, Proxied> {
        self.proxied.lock().expect("no holder of this lock panics")
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().expect("no holder of this lock panics")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn alive(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.alive.lock().expect("no holder of this lock panics")
    }

    /// Is there a real in this pool that takes new flows, or would if nobody had drained or
    /// disabled it?
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
            *state = State {
                told: state.told.take(),
                settings: std::mem::take(&mut state.settings),
                ..State::default()
            };
            for name in &names {
                self.alerts.clear(&about(name));
                self.alerts.clear(&about_emergency(name));
            }
            self.alerts.clear(ABOUT);
            self.alerts.clear(ABOUT_FLOWS);
            self.alerts.clear(ABOUT_VIP_CHECKS);
            self.alerts.clear(ABOUT_CHECKS);
            self.alerts.clear(ABOUT_NEIGHBOURS);
            self.alerts.clear(ABOUT_ACTIVE_FLOWS);
            self.follow_proxied(&state);
            return self.tell(&mut state, Balance::default());
        };
        self.compare_flows(config.wanted_flows());
        // Reals whose counters begin anew: at a start all of them, as services' do.
        let mut fresh = Vec::new();
        if state.real_numbers.0.is_empty()
            && let Some(forwarder) = self.backend.balancer()
        {
            state.take_over(config, &forwarder.known_reals()?);
            fresh.extend(state.real_numbers.0.values());
        }
        fresh.extend(state.configure(config));
        let gone = names
            .iter()
            .filter(|name| !config.pools.iter().any(|p| p.name == **name));
        gone.for_each(|name| {
            self.alerts.clear(&about(name));
            self.alerts.clear(&about_emergency(name));
        });
        // Reals that are no neighbours yet are resolved while the first checks go on. An error
        // is told below.
        let _ = state.locate(|index| self.is_protected(index));
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
            if changed || !fresh.is_empty() {
                self.rates().forget();
            }
        }
        self.follow(&mut state)
    }

    /// What was said of reals that neither this configuration has nor a command has added, in
    /// force or not, counts no more. The configuration is in
    /// force, and nothing takes it back: a reload that is refused after
    /// [`apply`](Self::apply) would lose the settings otherwise.
    pub fn forget_settings(&self, config: Option<&BalanceConfig>, added: &Added) {
        let mut state = self.state();
        let settings = &mut state.settings;
        let gone = settings.keep(|pool, real| {
            let pools = config.iter().flat_map(|config| &config.pools);
            let pools = pools.filter(|known| known.name == pool);
            let mut reals = pools.flat_map(PoolConfig::own_reals);
            reals.any(|known| known.address == real) || added.names_real(pool, real)
        });
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
        match state.cannot_ask() {
            None => self.alerts.clear(ABOUT_CHECKS),
            Some(message) => self.alerts.raise(ABOUT_CHECKS, message),
        }
        self.join_acls(state);
        self.follow_proxied(state);
        let link = match state.locate(|index| self.is_protected(index)) {
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
        // What an administrator takes out here does not make another host better.
        let lives = |real: &RealState| real.is_up() && !real.is_emergency;
        let is_alive = |pool: &&Pool| pool.live() > 0 || pool.reals.iter().any(lives);
        let alive = state.pools.iter().filter(is_alive);
        *self.alive() = alive.map(|pool| pool.config.name.clone()).collect();
        self.alerts.clear(ABOUT);
        match state.neighbours.contested(Instant::now()) {
            None => self.alerts.clear(ABOUT_NEIGHBOURS),
            Some(message) => self.alerts.raise(ABOUT_NEIGHBOURS, message),
        }
        match &state.no_vip_asker {
            None => self.alerts.clear(ABOUT_VIP_CHECKS),
            Some(error) => {
                let message = format!(
                    "cannot ask reals at virtual addresses: {error}; one that lacks them stays up. Restart weir, for it gives up CAP_NET_RAW where it starts without [balance], or turn it off: check = {{ vip = false }}"
                );
                self.alerts.raise(ABOUT_VIP_CHECKS, message);
            }
        }
        let served_by = state.pools.iter();
        let served_by: Vec<_> = served_by
            .map(|pool| servers(pool, &state.pools).0)
            .collect();
        for (pool, now) in state.pools.iter_mut().zip(served_by) {
            self.note_servers(pool, now);
            self.alert(pool);
        }
        for Pool { config, .. } in &state.pools {
            let about = about_emergency(&config.name);
            match state.stand_ins_that_lack(config) {
                None => self.alerts.clear(&about),
                Some(message) => self.alerts.raise(&about, message),
            }
        }
        Ok(())
    }

    /// Tells if there is room for another number of flows than the configuration wants: a
    /// table of another size would have forgotten those that live.
    fn compare_flows(&self, wanted: Option<u32>) {
        let there = self.backend.balancer().and_then(|it| it.flows());
        match wanted.zip(there).filter(|(wanted, there)| wanted != there) {
            None => self.alerts.clear(ABOUT_FLOWS),
            Some((wanted, there)) => self.alerts.raise(
                ABOUT_FLOWS,
                format!(
                    "the kernel has room for {there} flows, and [balance] wants flows = {wanted}: a new table would forget all flows, so the old one stays. For the new one, when flows may move: systemctl stop weir, weir detach, systemctl start weir"
                ),
            ),
        }
    }

    /// Whether weir protects the interface of this index.
    fn is_protected(&self, index: u32) -> bool {
        let all = self.backend.attachments().into_iter();
        let mut names = all.map(|one| one.renamed.unwrap_or(one.interface));
        names.any(|name| nix::net::if_::if_nametoindex(&*name) == Ok(index))
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
            // Half of it may be in the kernel, if it is refused.
            state.told = None;
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
                "down" => real.down_because.clone(),
                "unknown" => match &real.not_asked {
                    Some(why) => format!("cannot be checked: {why}"),
                    None => "not checked yet".to_owned(),
                },
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
            let lacking = pool.lack_vips();
            if !lacking.is_empty() {
                let message = format!(
                    "pool {name}: all reals fail at a virtual address, so that none is taken out for it: {}",
                    lacking.join(", ")
                );
                return self.alerts.raise(&about(name), message);
            }
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
            let is_waiting = state.reals().any(RealState::is_being_asked);
            let next = state.reals().map(|real| real.next).min();
            drop(state);
            // Of what cannot be read the status says so.
            let _ = self.read_rates();
            self.count_active_flows();
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
}

/// An event about a pool.
pub fn event(pool: &str, text: String) -> Event {
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

/// What alerts about those who would stand in for a pool are about.
fn about_emergency(pool: &str) -> String {
    format!("pool-{pool}:emergency")
}

/// What alerts about a pool are about.
fn about(pool: &str) -> String {
    format!("pool-{pool}")
}

//! Findings that name a host: its addresses are looked up by threads of their own,
//! so that no line waits for a name server, and each of them is counted as if the
//! line had named it. What the log says is looked up, never an address's name: that
//! is chosen by whoever has the address. Names are asked for with a dot at their
//! end, so that no search domain makes another one of them.
//!
//! The system's resolver is asked (`resolver.rs`). It cannot be given a time: who has
//! waited too long is let go meanwhile.

mod table;

use std::{
    collections::{HashMap, HashSet},
    io,
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{
    Ban,
    detect::{Finding, HostName, Offender},
    policy::{Ledger, MAX_EVIDENCE},
};
use weir_events::alerts::Alerts;

use super::{Handles, running::Running};
use crate::{
    jails::UseDns,
    judge::{Judge, Offence, Suspect},
    resolver, threads,
};
use table::{Addresses, Asked, MAX_ADDRESSES, MAX_FINDINGS, MAX_NAMES, Table};

/// So many names are looked up at once: one name server that does not answer keeps
/// the others waiting less.
const LOOKUPS: usize = 4;
/// The time between two looks for findings that have waited too long.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// A stop waits so long for the answers that findings wait for.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// So many names in a row without an answer are an alert.
const FAILURES: u32 = 3;
/// An alert ends when nothing of its kind has happened for so long.
const ENDS_AFTER: Duration = Duration::from_secs(600);
/// The log tells of so many names a minute.
const TOLD: u32 = 10;

const FAILING: &str = "resolver";
const FULL: &str = "resolver:full";

/// How a name is looked up: its addresses, or why nobody knows.
type Lookup = dyn Fn(&HostName) -> Result<Vec<IpAddr>, String> + Send + Sync;

/// Names, who waits for them, and who looks them up.
pub(super) struct HostNames {
    table: Mutex<Table<Waiting>>,
    /// There is a name to look up, or no more to do.
    work: Condvar,
    lookup: Box<Lookup>,
    jails: RwLock<Jails>,
    state: Mutex<State>,
    is_started: AtomicBool,
    is_over: AtomicBool,
}

/// The jails and the ledger for which findings are counted.
#[derive(Default)]
pub(super) struct Jails {
    ledger: Option<Arc<Ledger>>,
    by_name: HashMap<String, Running>,
}

/// A finding that waits.
#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    /// The name of its jail, whose number may be another one by then.
    jail: String,
    finding: Finding,
    line: Box<[u8]>,
}

/// Failures and alerts of the resolver that are to be told.
#[derive(Default)]
struct State {
    /// Names in a row without an answer.
    failures: u32,
    failed: Option<Instant>,
    full: Option<Instant>,
    /// The minute's beginning, and how many names were told of since.
    told: Option<(Instant, u32)>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for HostNames {
    fn default() -> Self {
        Self::with(Box::new(resolver::addresses))
    }
}

impl HostNames {
    fn with(lookup: Box<Lookup>) -> Self {
        Self {
            table: Mutex::default(),
            work: Condvar::new(),
            lookup,
            jails: RwLock::default(),
            state: Mutex::default(),
            is_started: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Makes the threads, once a jail needs them.
    pub fn start<'a>(
        self: &Arc<Self>,
        daemon: &Arc<Handles>,
        jails: impl IntoIterator<Item = &'a Running>,
    ) -> io::Result<()> {
        let needs = |jail: &Running| jail.filter.names_hosts() && jail.config.use_dns != UseDns::No;
        if !jails.into_iter().any(needs) || self.is_started.load(Relaxed) {
            return Ok(());
        }
        let (names, weak) = (self.clone(), Arc::downgrade(daemon));
        threads::spawn("weir-names", move || names.tend_until_over(&weak))?;
        for number in 0..LOOKUPS {
            let (names, weak) = (self.clone(), Arc::downgrade(daemon));
            threads::spawn(format!("weir-lookup-{number}"), move || {
                names.look_up(&weak)
            })?;
        }
        self.is_started.store(true, Relaxed);
        Ok(())
    }

    /// Held while the jails change: nothing is counted meanwhile.
    pub fn jails(&self) -> RwLockWriteGuard<'_, Jails> {
        self.jails.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> RwLockReadGuard<'_, Jails> {
        self.jails.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of the name that a line has, where they are known. Otherwise
    /// the finding waits for them, or does not count.
    pub fn ask(
        &self,
        daemon: &Handles,
        jail: &Running,
        name: &HostName,
        finding: &Finding,
        line: &[u8],
    ) -> Option<Addresses> {
        if jail.config.use_dns == UseDns::No {
            jail.counters.refused.inc();
            return None;
        }
        let mut table = lock(&self.table);
        let asked = table.ask(name, Instant::now(), || Waiting {
            jail: jail.config.name.clone(),
            finding: finding.clone(),
            line: line[..line.len().min(MAX_EVIDENCE)].into(),
        });
        daemon.metrics.resolver.load.set(table.load());
        drop(table);
        let resolver = &daemon.metrics.resolver;
        let (what, most) = match asked {
            Asked::Known(addresses) => {
                resolver.cached.inc();
                return Some(addresses);
            }
            Asked::Waits(is_new) => {
                if is_new {
                    self.work.notify_one();
                }
                return None;
            }
            Asked::NamesFull => ("names", MAX_NAMES),
            Asked::FindingsFull => ("findings", MAX_FINDINGS),
        };
        resolver.full.of([what]).inc();
        jail.counters.refused.inc();
        if lock(&self.state).full.replace(Instant::now()).is_none() {
            daemon.alerts.raise(
                FULL,
                format!(
                    "failures do not count: {most} {what} wait for the resolver of this host, and there is no room for more. Is it slow? Or have the program log addresses, or set use_dns = \"no\" in its jail"
                ),
            );
        }
        None
    }

    /// The loop of one thread.
    fn look_up(&self, daemon: &Weak<Handles>) {
        loop {
            let mut table = lock(&self.table);
            let name = loop {
                if self.is_over.load(Relaxed) {
                    return;
                }
                match table.next() {
                    Some(name) => break name,
                    None => {
                        let waited = self.work.wait(table);
                        table = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(table);
            let answer = (self.lookup)(&name);
            let Some(daemon) = daemon.upgrade() else {
                return;
            };
            self.answered(&daemon, name, answer);
        }
    }

    fn answered(&self, daemon: &Handles, name: HostName, answer: Result<Vec<IpAddr>, String>) {
        let resolver = &daemon.metrics.resolver;
        let addresses = match &answer {
            Err(why) => {
                resolver.lookups.of(["failed"]).inc();
                self.failed(&daemon.alerts, &name, why);
                None
            }
            Ok(found) => {
                lock(&self.state).failures = 0;
                daemon.alerts.clear(FAILING);
                let (kept, left_out) = at_most(MAX_ADDRESSES, found);
                let what = if kept.is_empty() { "none" } else { "addresses" };
                resolver.lookups.of([what]).inc();
                if left_out > 0 {
                    resolver.left_out.add(left_out as u64);
                }
                Some(kept)
            }
        };
        let mut table = lock(&self.table);
        let (waiting, evicted) = table.answer(name.clone(), addresses.clone(), Instant::now());
        resolver.load.set(table.load());
        drop(table);
        if evicted > 0 {
            resolver.evicted.add(evicted);
        }
        self.deliver(
            daemon,
            &name,
            waiting,
            addresses.as_deref().unwrap_or_default(),
        );
    }

    /// Counts those who have waited; without an address they do not count.
    fn deliver(
        &self,
        daemon: &Handles,
        name: &HostName,
        waiting: Vec<Waiting>,
        addresses: &[IpAddr],
    ) {
        if waiting.is_empty() {
            return;
        }
        let jails = self.current();
        let mut judge = Judge::new(&daemon.exempt);
        let now = Timestamp::now();
        let mut bans = Vec::new();
        let mut warned = None;
        for one in &waiting {
            // A reload has removed it.
            let (Some(ledger), Some(jail)) = (&jails.ledger, jails.by_name.get(&one.jail)) else {
                continue;
            };
            if jail.config.use_dns == UseDns::Warn && !addresses.is_empty() {
                warned = Some(one.jail.as_str());
            }
            let count = Counting {
                daemon,
                ledger,
                jail,
                now,
            };
            bans.extend(count.each(&mut judge, (name, addresses), &one.finding, &one.line));
        }
        if let Some(jail) = warned {
            self.warn(jail, name, addresses);
        }
        drop(jails);
        daemon.bans.enforce(bans);
    }

    /// As Fail2ban does with `usedns = warn`.
    fn warn(&self, jail: &str, name: &HostName, addresses: &[IpAddr]) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        let (begun, told) = state.told.get_or_insert((now, 0));
        if now.duration_since(*begun) >= Duration::from_secs(60) {
            (*begun, *told) = (now, 0);
        }
        *told += 1;
        if *told <= TOLD {
            let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
            tracing::warn!(
                "jail {jail}: its log names the host {name}, and each of its addresses is counted: {}; have the program log addresses, or set use_dns in the jail",
                addresses.join(" ")
            );
        }
    }

    fn failed(&self, alerts: &Alerts, name: &HostName, why: &str) {
        let mut state = lock(&self.state);
        state.failures = state.failures.saturating_add(1);
        state.failed = Some(Instant::now());
        if state.failures >= FAILURES {
            drop(state);
            alerts.raise(
                FAILING,
                format!(
                    "failures by host name do not count: the resolver of this host gives no answer (last for {name}: {}). See to /etc/resolv.conf and the servers that it names",
                    crate::escape(why)
                ),
            );
        }
    }

    fn tend_until_over(&self, daemon: &Weak<Handles>) {
        while !self.is_over.load(Relaxed)
            && let Some(daemon) = daemon.upgrade()
        {
            self.tend(&daemon, Instant::now());
            drop(daemon);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Lets those go who have waited too long, and ends alerts.
    fn tend(&self, daemon: &Handles, now: Instant) {
        let mut table = lock(&self.table);
        let late = table.late(now);
        daemon.metrics.resolver.load.set(table.load());
        drop(table);
        for (name, waiting) in late {
            daemon.metrics.resolver.lookups.of(["late"]).inc();
            self.failed(&daemon.alerts, &name, "no answer in time");
            self.deliver(daemon, &name, waiting, &[]);
        }
        let mut state = lock(&self.state);
        let is_over = |since: Instant| now.duration_since(since) >= ENDS_AFTER;
        if state.failed.is_some_and(is_over) {
            (state.failed, state.failures) = (None, 0);
            daemon.alerts.clear(FAILING);
        }
        if state.full.is_some_and(is_over) {
            state.full = None;
            daemon.alerts.clear(FULL);
        }
    }

    /// The daemon ends: waits a moment for answers, and says what has none.
    pub fn finish(&self, daemon: &Handles) {
        let patience = Instant::now() + STOP_WITHIN;
        let waiting = || lock(&self.table).load()[1];
        while waiting() > 0 && Instant::now() < patience {
            thread::sleep(Duration::from_millis(5));
        }
        self.is_over.store(true, Relaxed);
        let mut table = lock(&self.table);
        let left = table.all();
        self.work.notify_all();
        drop(table);
        let mut count = 0;
        for (name, waiting) in left {
            count += waiting.len();
            self.deliver(daemon, &name, waiting, &[]);
        }
        if count > 0 {
            tracing::warn!(
                "{count} failures by host name do not count: the resolver has not answered before the end"
            );
        }
        // One that is being delivered is counted before the ledger is saved.
        drop(self.jails());
    }
}

impl Jails {
    /// Findings count for these from now on.
    pub fn replace<'a>(
        &mut self,
        ledger: &Arc<Ledger>,
        jails: impl IntoIterator<Item = &'a Running>,
    ) {
        self.ledger = Some(ledger.clone());
        let named = jails.into_iter();
        self.by_name = named
            .map(|jail| (jail.config.name.clone(), jail.clone()))
            .collect();
    }
}

/// Where the addresses of a name are counted.
pub(super) struct Counting<'a> {
    pub daemon: &'a Handles,
    pub ledger: &'a Ledger,
    pub jail: &'a Running,
    pub now: Timestamp,
}

impl Counting<'_> {
    /// Counts a finding for each address of the name that it has; the bans that this
    /// makes.
    pub fn each(
        &self,
        judge: &mut Judge,
        (name, addresses): (&HostName, &[IpAddr]),
        finding: &Finding,
        line: &[u8],
    ) -> Vec<Ban> {
        let counters = &self.jail.counters;
        match addresses {
            [] => counters.names_failed.inc(),
            _ => counters.names_resolved.inc(),
        }
        let mut one = finding.clone();
        let count = |addr: &IpAddr| {
            one.offender = Offender::from(*addr);
            let offence = Offence {
                jail: self.jail.number,
                suspect: Suspect::Found(&one),
                line,
            };
            let judgement = judge.judge(self.ledger, offence, self.now);
            let ban = self.jail.conclude(&self.daemon.events, &one, judgement);
            ban.map(|mut ban| {
                ban.reason = format!("{} by host name {name}", ban.reason);
                ban
            })
        };
        addresses.iter().filter_map(count).collect()
    }
}

/// The first so many different ones, and how many there are beside them.
fn at_most(most: usize, found: &[IpAddr]) -> (Addresses, usize) {
    let mut seen = HashSet::new();
    let found = found.iter().map(IpAddr::to_canonical);
    let mut different: Vec<_> = found.filter(|addr| seen.insert(*addr)).collect();
    let left_out = different.len().saturating_sub(most);
    different.truncate(most);
    (different.into(), left_out)
}

#[cfg(test)]
mod tests;

//! Host names in `ignoreip` of Fail2ban's jails. Their addresses are looked up by a thread of
//! its own, now and again, so that no line and no ban waits for a name server: who has one of
//! the addresses that were found last is not banned. Of a name that nobody answers for, they
//! hold on. A jail's ban of an address that a name turns out to have is lifted.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use weir_core::{BanTarget, Prefix, detect::HostName, policy::Ledger};
use weir_events::alerts::Alerts;

use crate::{current::Current, jails::JailConfig, resolver, threads};

/// A name is looked up again after so long, as in Fail2ban.
const REFRESH: Duration = Duration::from_secs(300);
/// The same of one that nobody has answered for, or that has no address.
const RETRY: Duration = Duration::from_secs(10);
/// The most addresses of one name that count.
const MAX_ADDRESSES: usize = 16;
/// A ban that was on its way when an address became known is in force after so long.
const BAN_IN_FLIGHT: Duration = Duration::from_secs(1);

/// How a name is looked up: its addresses, or why nobody knows.
type Lookup = dyn Fn(&HostName) -> Result<Vec<IpAddr>, String> + Send + Sync;
/// Lifts the ban of a jail, by its name, and says why.
type Lift = dyn Fn(&str, BanTarget, &str) + Send + Sync;

/// The names of all jails, and their addresses.
pub(crate) struct IgnoredNames {
    state: Mutex<State>,
    changed: Condvar,
    lookup: Box<Lookup>,
    lift: Box<Lift>,
    /// Counts the neighbours of named hosts one by one.
    ledger: Arc<Current<Ledger>>,
    alerts: Arc<Alerts>,
    /// No jail has a name: nobody who bans takes a lock.
    is_idle: AtomicBool,
    is_started: AtomicBool,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    jails: BTreeMap<String, Ignoring>,
    known: HashMap<HostName, Known>,
    /// Whom to let in once more, and when, because a ban may have been on its way.
    lift_again: Vec<(Instant, Lifted)>,
}

/// What a jail ignores, and how it counts.
#[derive(Clone)]
struct Ignoring {
    names: Vec<HostName>,
    ipv6_prefix: u8,
}

struct Known {
    addresses: Vec<IpAddr>,
    /// The time of the next lookup.
    due: Instant,
    /// A jail has the name that did not have it: of its bans none was lifted.
    is_new_to_jail: bool,
}

/// The ban of an address, or of its network, that a name turned out to have.
#[derive(Clone)]
struct Lifted {
    jail: String,
    subject: BanTarget,
    name: HostName,
}

fn about(name: &HostName) -> String {
    format!("ignoreip:{name}")
}

impl IgnoredNames {
    /// Asks the host's resolver; bans are lifted by `lift`.
    pub fn new(ledger: Arc<Current<Ledger>>, alerts: Arc<Alerts>, lift: Box<Lift>) -> Self {
        Self::with(Box::new(resolver::addresses), ledger, alerts, lift)
    }

    fn with(
        lookup: Box<Lookup>,
        ledger: Arc<Current<Ledger>>,
        alerts: Arc<Alerts>,
        lift: Box<Lift>,
    ) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            lookup,
            lift,
            ledger,
            alerts,
            is_idle: AtomicBool::new(true),
            is_started: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Looks up what these jails ignore from now on.
    pub fn run(self: &Arc<Self>, jails: &[JailConfig]) {
        let named = jails.iter().filter(|jail| !jail.ignore_names.is_empty());
        let ignoring = |jail: &JailConfig| Ignoring {
            names: jail.ignore_names.clone(),
            ipv6_prefix: jail.limits.ipv6_prefix,
        };
        let now = Instant::now();
        let mut state = self.state();
        let jails: BTreeMap<_, _> = named
            .map(|jail| (jail.name.clone(), ignoring(jail)))
            .collect();
        let had = std::mem::replace(&mut state.jails, jails.clone());
        let mut before = std::mem::take(&mut state.known);
        for (jail, ignoring) in &jails {
            let had = had.get(jail).map_or(&[][..], |had| &had.names);
            for name in &ignoring.names {
                let known = state.known.entry(name.clone());
                let known = known.or_insert_with(|| Known {
                    addresses: before
                        .remove(name)
                        .map_or(Vec::new(), |known| known.addresses),
                    due: now,
                    is_new_to_jail: false,
                });
                known.is_new_to_jail |= !had.contains(name);
            }
        }
        let is_idle = state.known.is_empty();
        drop(state);
        before
            .keys()
            .for_each(|name| self.alerts.forget(&about(name)));
        self.is_idle.store(is_idle, Relaxed);
        self.tell(&self.ledger.get());
        self.changed.notify_all();
        if is_idle || self.is_started.swap(true, Relaxed) {
            return;
        }
        let names = self.clone();
        match threads::spawn("weir-ignoreip", move || names.work()) {
            Ok(_) => self.alerts.clear("ignoreip"),
            Err(error) => {
                self.is_started.store(false, Relaxed);
                let message = format!("cannot start a thread for the names of ignoreip: {error}");
                self.alerts.raise("ignoreip", message);
            }
        }
    }

    /// Tells a ledger whose neighbours each jail counts one by one.
    pub fn tell(&self, ledger: &Ledger) {
        // Held, so that what is told last is what holds.
        let state = self.state();
        let of = |ignoring: &Ignoring| {
            let known = ignoring
                .names
                .iter()
                .filter_map(|name| state.known.get(name));
            known
                .flat_map(|known| known.addresses.iter().copied())
                .collect()
        };
        let jails = state.jails.iter();
        ledger.set_named(
            &jails
                .map(|(jail, ignoring)| (jail.clone(), of(ignoring)))
                .collect(),
        );
    }

    /// The name by which this jail ignores the subject of a ban. That subject may be a network
    /// that holds the host: a line or a person named it, or it was counted before the host's
    /// address was known.
    pub fn spares(&self, jail: &str, subject: BanTarget) -> Option<HostName> {
        if self.is_idle.load(Relaxed) {
            return None;
        }
        let state = self.state();
        let has = |name: &&HostName| {
            let known = state.known.get(*name);
            let mut addresses = known.into_iter().flat_map(|known| &known.addresses);
            addresses.any(|addr| subject.prefix().covers(Prefix::host(*addr)))
        };
        state.jails.get(jail)?.names.iter().find(has).cloned()
    }

    /// The life of the thread. It ends as soon as the resolver has answered, and nobody waits
    /// for that.
    fn work(&self) {
        while !self.is_over.load(Relaxed) {
            let mut state = self.state();
            let now = Instant::now();
            let lifts = state.take_lifts(now);
            if !lifts.is_empty() {
                drop(state);
                self.lift_all(&lifts);
                continue;
            }
            let next = state.known.iter().min_by_key(|(_, known)| known.due);
            match next.map(|(name, known)| (name.clone(), known.due)) {
                Some((name, due)) if due <= now => {
                    drop(state);
                    let answer = (self.lookup)(&name);
                    self.answered(&name, answer, Instant::now());
                }
                next => {
                    let lifts = state.lift_again.iter().map(|(at, _)| *at);
                    let next = next.map(|(_, due)| due).into_iter().chain(lifts).min();
                    let wait = next.map_or(REFRESH, |next| next.saturating_duration_since(now));
                    let waited = self.changed.wait_timeout(state, wait);
                    drop(waited.expect("no holder of this lock panics"));
                }
            }
        }
    }

    fn answered(&self, name: &HostName, answer: Result<Vec<IpAddr>, String>, now: Instant) {
        let mut state = self.state();
        let Some(known) = state.known.get_mut(name) else {
            // No jail has it any more.
            return;
        };
        let mut new = Vec::new();
        let problem = match answer {
            Ok(found) => {
                let mut found: Vec<_> = found.iter().map(IpAddr::to_canonical).collect();
                found.sort();
                found.dedup();
                let left_out = found.len().saturating_sub(MAX_ADDRESSES);
                found.truncate(MAX_ADDRESSES);
                known.due = now + if found.is_empty() { RETRY } else { REFRESH };
                let before = std::mem::replace(&mut known.addresses, found);
                new.clone_from(&known.addresses);
                // Whom somebody bans by hand in such a jail stays banned.
                let knows_all = !std::mem::take(&mut known.is_new_to_jail);
                new.retain(|addr| !(knows_all && before.contains(addr)));
                match (known.addresses.is_empty(), left_out) {
                    (true, _) => Some(format!(
                        "{name} has no address: jails that have it in ignoreip ignore nobody by it"
                    )),
                    (false, 0) => None,
                    (false, left_out) => Some(format!(
                        "{name} has {left_out} addresses more than the {MAX_ADDRESSES} that count: jails that have it in ignoreip do not ignore those"
                    )),
                }
            }
            Err(why) => {
                known.due = now + RETRY;
                let holds = match known.addresses.is_empty() {
                    true => "jails that have it in ignoreip ignore nobody by it".to_owned(),
                    false => format!("what it had goes on to be ignored: {:?}", known.addresses),
                };
                Some(format!("{name} cannot be looked up ({why}): {holds}"))
            }
        };
        let lifted = state.bans_of(name, &new);
        let once_more = lifted.iter().map(|one| (now + BAN_IN_FLIGHT, one.clone()));
        state.lift_again.extend(once_more);
        drop(state);
        self.tell(&self.ledger.get());
        match problem {
            Some(problem) => self.alerts.raise(&about(name), problem),
            None => self.alerts.clear(&about(name)),
        }
        self.lift_all(&lifted);
    }

    fn lift_all(&self, all: &[Lifted]) {
        for one in all {
            let why = format!("ignoreip has {}, whose address it is", one.name);
            (self.lift)(&one.jail, one.subject, &why);
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.is_over.store(true, Relaxed);
        self.changed.notify_all();
    }
}

impl State {
    /// Whom to let in once more by now.
    fn take_lifts(&mut self, now: Instant) -> Vec<Lifted> {
        let due = self.lift_again.extract_if(.., |(at, _)| *at <= now);
        due.map(|(_, lifted)| lifted).collect()
    }

    /// The bans that jails may have of these addresses of a name: of a network, one from before
    /// the ledger knew the address.
    fn bans_of(&self, name: &HostName, addresses: &[IpAddr]) -> Vec<Lifted> {
        let mut all = Vec::new();
        for (jail, ignoring) in &self.jails {
            if !ignoring.names.contains(name) {
                continue;
            }
            for addr in addresses {
                let host = Prefix::host(*addr);
                let networks = match addr {
                    IpAddr::V4(_) => None,
                    IpAddr::V6(_) => Some([ignoring.ipv6_prefix, 64.max(ignoring.ipv6_prefix)]),
                };
                let networks = networks.into_iter().flatten();
                let mut prefixes: Vec<_> = networks
                    .filter_map(|length| Prefix::new(*addr, length))
                    .collect();
                prefixes.insert(0, host);
                prefixes.dedup();
                for prefix in prefixes {
                    all.extend(BanTarget::new(prefix).ok().map(|subject| Lifted {
                        jail: jail.clone(),
                        subject,
                        name: name.clone(),
                    }));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;

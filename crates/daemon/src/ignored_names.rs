//! Host names in `ignoreip` of Fail2ban's jails. Their addresses are looked up by threads of
//! their own, now and again, so that no line and no ban waits for a name server: who has one of
//! the addresses that were found last is not banned. Of a name that nobody answers for, they
//! hold on. A jail's ban of an address that a name turns out to have is lifted.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use weir_core::{BanTarget, Prefix, detect::HostName, policy::Ledger};
use weir_events::alerts::Alerts;

use crate::{
    current::Current,
    jails::JailConfig,
    resolver::{self, Answer},
    threads,
};

/// So many names are looked up at once: one name server that does not answer keeps the others
/// waiting less.
const LOOKUPS: usize = 4;
/// A name is looked up again after so long, as in Fail2ban.
const REFRESH: Duration = Duration::from_secs(300);
/// The same of one that nobody has answered for, or that has no address.
const RETRY: Duration = Duration::from_secs(10);
/// The most addresses of one name that count.
const MAX_ADDRESSES: usize = 16;
/// A ban that was on its way when an address became known is in force after so long.
const BAN_IN_FLIGHT: Duration = Duration::from_secs(1);

/// How a name is looked up: its addresses of IPv4 and of IPv6.
type Lookup = dyn Fn(&HostName) -> [Answer; 2] + Send + Sync;
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
    /// Threads that run.
    threads: AtomicUsize,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    jails: BTreeMap<String, Ignoring>,
    known: HashMap<HostName, Known>,
    /// Whom to let in once more, and when, because a ban may have been on its way.
    lift_again: Vec<(Instant, Lifted)>,
    /// Threads that wait for the resolver.
    lookups: usize,
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
    /// A thread has asked for it and waits.
    is_under_way: bool,
    /// It was answered for when it was asked for last, if ever.
    is_answered: bool,
    /// A jail has the name that did not have it: of its bans by IPv4, and by IPv6, none was
    /// lifted.
    is_new_to_jail: [bool; 2],
}

/// The ban of an address, or of its network, that a name turned out to have.
#[derive(Clone)]
struct Lifted {
    jail: String,
    subject: BanTarget,
    name: HostName,
}

/// Why somebody is not banned who has an address of this name.
pub(crate) fn spared_by(name: &HostName) -> String {
    format!("its address is that of {name} in ignoreip")
}

fn about(name: &HostName) -> String {
    format!("ignoreip:{name}")
}

impl IgnoredNames {
    /// Asks the host's resolver; bans are lifted by `lift`.
    pub fn new(ledger: Arc<Current<Ledger>>, alerts: Arc<Alerts>, lift: Box<Lift>) -> Self {
        Self::with(
            Box::new(resolver::addresses_by_family),
            ledger,
            alerts,
            lift,
        )
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
            threads: AtomicUsize::new(0),
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
                let known = known.or_insert_with(|| {
                    let before = before.remove(name);
                    Known {
                        due: now,
                        is_under_way: before.as_ref().is_some_and(|known| known.is_under_way),
                        is_answered: before.as_ref().is_none_or(|known| known.is_answered),
                        // Bans may still be to be lifted for a jail that got it before.
                        is_new_to_jail: before
                            .as_ref()
                            .map_or([false; 2], |known| known.is_new_to_jail),
                        addresses: before.map_or(Vec::new(), |known| known.addresses),
                    }
                });
                if !had.contains(name) {
                    known.is_new_to_jail = [true; 2];
                }
            }
        }
        let is_idle = state.known.is_empty();
        for name in before.keys() {
            self.alerts.forget(&about(name));
        }
        drop(state);
        self.is_idle.store(is_idle, Relaxed);
        self.tell(&self.ledger.get());
        self.changed.notify_all();
        while !is_idle && self.threads.load(Relaxed) < LOOKUPS {
            let names = self.clone();
            if let Err(error) = threads::spawn("weir-ignoreip", move || names.work()) {
                let message = format!("cannot start a thread for the names of ignoreip: {error}");
                self.alerts.raise("ignoreip", message);
                return;
            }
            self.threads.fetch_add(1, Relaxed);
        }
        self.alerts.clear("ignoreip");
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

    /// The life of a thread. It ends as soon as the resolver has answered, and nobody waits
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
            // One thread stays for lifts.
            let may_look_up = state.lift_again.is_empty() || state.lookups + 1 < LOOKUPS;
            if may_look_up && let Some(name) = state.take_due(now) {
                state.lookups += 1;
                drop(state);
                let answer = (self.lookup)(&name);
                self.state().lookups -= 1;
                if !self.is_over.load(Relaxed) {
                    self.answered(&name, answer, Instant::now());
                }
                continue;
            }
            let lifts = state.lift_again.iter().map(|(at, _)| *at);
            let names = state.known.values().filter(|known| !known.is_under_way);
            let names = names.map(|known| known.due).filter(|_| may_look_up);
            let wait = lifts.chain(names).min();
            let wait = wait.map_or(REFRESH, |next| next.saturating_duration_since(now));
            let waited = self.changed.wait_timeout(state, wait);
            drop(waited.expect("no holder of this lock panics"));
        }
    }

    fn answered(&self, name: &HostName, answer: [Answer; 2], now: Instant) {
        let mut state = self.state();
        let Some(known) = state.known.get_mut(name) else {
            // No jail has it any more.
            return;
        };
        known.is_under_way = false;
        let before = std::mem::take(&mut known.addresses);
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        let has_answer = answer.each_ref().map(Result::is_ok);
        for (answer, family) in answer.into_iter().zip(["IPv4", "IPv6"]) {
            match answer {
                Ok(addrs) => found.extend(addrs.iter().map(IpAddr::to_canonical)),
                Err(why) => {
                    let last = before.iter().copied();
                    found.extend(last.filter(|addr| addr.is_ipv6() == (family == "IPv6")));
                    failed.push((family, why));
                }
            }
        }
        found.sort();
        found.dedup();
        let left_out = found.len().saturating_sub(MAX_ADDRESSES);
        found.truncate(MAX_ADDRESSES);
        known.is_answered = failed.is_empty();
        let is_settled = failed.is_empty() && !found.is_empty();
        known.due = now + if is_settled { REFRESH } else { RETRY };
        // An address that was known is not lifted again and again: somebody may have banned it
        // by hand since. That holds until a restart.
        let mut new = found.clone();
        new.retain(|addr| {
            let family = usize::from(addr.is_ipv6());
            !before.contains(addr) || (known.is_new_to_jail[family] && has_answer[family])
        });
        for (is_new, has_answer) in known.is_new_to_jail.iter_mut().zip(has_answer) {
            *is_new &= !has_answer;
        }
        let problem = problem(name, &found, &failed, left_out);
        known.addresses = found;
        let lifted = state.bans_of(name, &new);
        let once_more = lifted.iter().map(|one| (now + BAN_IN_FLIGHT, one.clone()));
        state.lift_again.extend(once_more);
        // Before a reload may forget the name.
        match problem {
            Some(problem) => self.alerts.raise(&about(name), problem),
            None => self.alerts.clear(&about(name)),
        }
        drop(state);
        self.changed.notify_all();
        self.tell(&self.ledger.get());
        self.lift_all(&lifted);
    }

    fn lift_all(&self, all: &[Lifted]) {
        for one in all {
            let why = spared_by(&one.name);
            (self.lift)(&one.jail, one.subject, &why);
        }
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.is_over.store(true, Relaxed);
        self.changed.notify_all();
    }
}

/// What an administrator should know of an answer.
fn problem(
    name: &HostName,
    found: &[IpAddr],
    failed: &[(&str, String)],
    left_out: usize,
) -> Option<String> {
    let nobody = "ignoreip exempts nobody by it";
    let why = match failed {
        [] if found.is_empty() => return Some(format!("{name} has no address: {nobody}")),
        [] if left_out == 0 => return None,
        [] => {
            return Some(format!(
                "{name} has {left_out} addresses more than the {MAX_ADDRESSES} that count: ignoreip does not exempt those"
            ));
        }
        [(_, why), (_, other)] if why == other => why.clone(),
        failed => {
            let failed = failed
                .iter()
                .map(|(family, why)| format!("{family}: {why}"));
            failed.collect::<Vec<_>>().join(", ")
        }
    };
    let holds = match found {
        [] => nobody.to_owned(),
        found => {
            let found: Vec<_> = found.iter().map(IpAddr::to_string).collect();
            format!("its last addresses ({}) stay exempt", found.join(", "))
        }
    };
    Some(format!("{name} cannot be looked up ({why}): {holds}"))
}

impl State {
    /// A name that is to be looked up now, which is under way from now on: first those that
    /// were answered for last time.
    fn take_due(&mut self, now: Instant) -> Option<HostName> {
        let due = self.known.iter_mut();
        let due = due.filter(|(_, known)| !known.is_under_way && known.due <= now);
        let (name, known) = due.min_by_key(|(_, known)| (!known.is_answered, known.due))?;
        known.is_under_way = true;
        Some(name.clone())
    }

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

//! The configured lists, each kept current by a thread of its own
//! (`lists/refresher.rs`), so that a slow server holds nobody up. What they hold
//! now is [`Lists::current`]; who enforces it waits for [`Lists::changes`].
//! Deny lists go into the kernel's class table, allow lists into the
//! `exemptions`; neither is done here.

pub mod config;
mod left_out;
mod refresher;
mod status;

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_core::{PortSet, Prefix, geofence::Direction};
use weir_events::alerts::Alerts;
use weir_sources::list::Cache;

pub use config::ListAction;
pub use left_out::{LeftOut, LeftOutLine};
pub use status::ListStatus;

use config::ListConfig;
use refresher::Refresher;

/// Lists that are fetched and read at the same time: each may need the memory
/// of a whole one.
const AT_ONCE: usize = 8;

/// The content of one list in force.
#[derive(Debug, Clone)]
pub struct CurrentList {
    /// The list's name.
    pub name: String,
    /// The URL, file or service that the list is from, for messages.
    pub source: String,
    /// Whether addresses of the list are denied or allowed.
    pub action: ListAction,
    /// The ports that a denied address may not use.
    pub scope: PortSet,
    /// Packets from it, to it, or both.
    pub direction: Direction,
    /// Sorted, none in another, neighbours joined.
    pub prefixes: Arc<[Prefix]>,
}

impl CurrentList {
    /// The prefix of the list that holds all of this one.
    pub fn covering(&self, prefix: Prefix) -> Option<Prefix> {
        let next = self.prefixes.partition_point(|p| *p <= prefix);
        let candidate = self.prefixes[..next].last()?;
        candidate.covers(prefix).then_some(*candidate)
    }

    /// The prefix of the list that holds this address.
    pub fn lookup(&self, addr: IpAddr) -> Option<Prefix> {
        self.covering(Prefix::host(addr))
    }

    /// Whether it is the same list with the same prefixes.
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.source == other.source
            && self.action == other.action
            && self.scope == other.scope
            && self.direction == other.direction
            && Arc::ptr_eq(&self.prefixes, &other.prefixes)
    }
}

/// What is to be done about a list, by name: there may be none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no list {name:?}; enabled are: {known}")]
pub struct NoSuchList {
    name: String,
    known: String,
}

/// All lists, as a handle: clones are the same lists.
#[derive(Clone)]
pub struct Lists(Arc<Shared>);

/// The state that the lists' threads share.
struct Shared {
    cache: Cache,
    alerts: Arc<Alerts>,
    state: Mutex<State>,
    /// Something in `state` is different.
    news: Condvar,
    /// The number of threads that refresh a list now.
    at_work: Mutex<usize>,
    turn: Condvar,
}

#[derive(Default)]
struct State {
    refreshers: Vec<Arc<Refresher>>,
    current: Arc<Vec<CurrentList>>,
    changes: u64,
    started: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    /// Puts together anew what is current.
    fn publish(&self) {
        let mut state = self.state();
        let new: Vec<CurrentList> = state.refreshers.iter().map(|k| k.current()).collect();
        let same = new.len() == state.current.len()
            && new.iter().zip(&*state.current).all(|(a, b)| a.is_same(b));
        if !same {
            state.current = Arc::new(new);
            state.changes += 1;
            self.news.notify_all();
        }
    }

    /// Waits until few enough are at work.
    fn turn(&self) -> Turn<'_> {
        let at_work = self.at_work.lock().expect("no holder of this lock panics");
        let mut at_work = self
            .turn
            .wait_while(at_work, |n| *n >= AT_ONCE)
            .expect("no holder of this lock panics");
        *at_work += 1;
        Turn(self)
    }
}

/// A place among those at work.
struct Turn<'a>(&'a Shared);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self
            .0
            .at_work
            .lock()
            .expect("no holder of this lock panics") -= 1;
        self.0.turn.notify_one();
    }
}

impl Lists {
    /// The lists as they were kept by an earlier run, and files as they are:
    /// nothing here waits for a server.
    pub fn open(configs: &[ListConfig], state_dir: &Path, alerts: Arc<Alerts>) -> Self {
        let lists = Self(Arc::new(Shared {
            cache: Cache::new(state_dir.join("lists")),
            alerts,
            state: Mutex::default(),
            news: Condvar::new(),
            at_work: Mutex::default(),
            turn: Condvar::new(),
        }));
        lists.configure(configs);
        lists
    }

    /// From now on they are kept current.
    pub fn start(&self) {
        let refreshers = {
            let mut state = self.0.state();
            state.started = true;
            state.refreshers.clone()
        };
        for refresher in refreshers {
            refresher::start(&self.0, refresher);
        }
    }

    /// Takes on a changed configuration: lists that are new or from elsewhere
    /// begin with what was kept of them; those that are gone are forgotten.
    pub fn configure(&self, configs: &[ListConfig]) {
        let (before, started) = {
            let state = self.0.state();
            (state.refreshers.clone(), state.started)
        };
        let (mut refreshers, mut new) = (Vec::new(), Vec::new());
        for config in configs {
            let known = before
                .iter()
                .find(|refresher| refresher.name() == config.name);
            match known.filter(|refresher| refresher.adopt(config)) {
                Some(refresher) => refreshers.push(refresher.clone()),
                None => {
                    if let Some(other) = known {
                        other.stop();
                    }
                    let refresher = Arc::new(Refresher::open(config.clone(), &self.0));
                    refreshers.push(refresher.clone());
                    new.push(refresher);
                }
            }
        }
        for gone in &before {
            if !refreshers
                .iter()
                .any(|refresher| refresher.name() == gone.name())
            {
                gone.stop();
                self.0.alerts.clear(&gone.about());
                self.0.alerts.clear(&format!("list-copy:{}", gone.name()));
                self.0.alerts.clear(&left_out::about(&gone.name()));
            }
        }
        self.0.state().refreshers = refreshers;
        self.0.publish();
        let names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
        self.0.cache.forget_others(&names);
        if started {
            for refresher in new {
                refresher::start(&self.0, refresher);
            }
        }
    }

    /// The content of all lists now, in the order of the configuration; replaced whole.
    pub fn current(&self) -> Arc<Vec<CurrentList>> {
        self.0.state().current.clone()
    }

    /// The number of changes of [`current`](Self::current) so far.
    pub fn changes(&self) -> u64 {
        self.0.state().changes
    }

    /// Waits until there have been other than `seen` changes, or for `timeout`;
    /// returns how many there are then.
    pub fn wait_for_change(&self, seen: u64, timeout: Duration) -> u64 {
        let state = self.0.state();
        self.0
            .news
            .wait_timeout_while(state, timeout, |state| state.changes == seen)
            .expect("no holder of this lock panics")
            .0
            .changes
    }

    /// Has a list refreshed now, also if it has shrunk too much with `force`;
    /// returns the number of the attempt, for [`attempted`](Self::attempted).
    pub fn refresh(&self, name: &str, force: bool) -> Result<u64, NoSuchList> {
        Ok(self.refresher(name)?.order(force))
    }

    /// The list's state once this attempt has been made; `None` before. Of a
    /// list that denies, how many of the `exempt` are on it is part of that.
    pub fn attempted(
        &self,
        name: &str,
        attempt: u64,
        exempt: &[Prefix],
    ) -> Result<Option<ListStatus>, NoSuchList> {
        let refresher = self.refresher(name)?;
        Ok((refresher.attempts() >= attempt).then(|| refresher.status(exempt)))
    }

    fn refresher(&self, name: &str) -> Result<Arc<Refresher>, NoSuchList> {
        let state = self.0.state();
        let found = state
            .refreshers
            .iter()
            .find(|refresher| refresher.name() == name);
        found.cloned().ok_or_else(|| NoSuchList {
            name: name.chars().take(64).collect(),
            known: match &state.refreshers[..] {
                [] => "none".to_owned(),
                refreshers => refreshers
                    .iter()
                    .map(|refresher| refresher.name())
                    .collect::<Vec<_>>()
                    .join(", "),
            },
        })
    }

    /// Every list's state.
    pub fn status(&self, exempt: &[Prefix]) -> Vec<ListStatus> {
        let refreshers = self.0.state().refreshers.clone();
        refreshers
            .iter()
            .map(|refresher| refresher.status(exempt))
            .collect()
    }

    /// Ends all refreshes; a download that runs ends with the process. What the copies on
    /// disk do not say yet is written.
    pub fn stop(&self) {
        let refreshers = self.0.state().refreshers.clone();
        for refresher in &refreshers {
            refresher.stop();
        }
        for refresher in &refreshers {
            refresher.keep_decisions(&self.0);
        }
    }
}

/// A number from 0 to 1 that nobody can guess, to spread what would coincide.
fn chance() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now()) as f64 / u64::MAX as f64
}

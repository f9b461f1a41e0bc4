//! The addresses of names in rules (`name:example.org`), looked up beside the packets' way
//! by threads of their own, and refreshed while the rules are in force.
//!
//! An answer is somebody else's word: one that leads to this host, to its network or to
//! private addresses is refused unless `private_names` expects it (DNS rebinding). Servers
//! that answer with some of many addresses each time are met by keeping each address for a
//! while after it was seen last.
//!
//! The last answers are on disk as well (`kept.rs`): after a start they hold until there is
//! an answer, so that rules do not wait for a name server that is slow, or gone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::detect::HostName;
use weir_identity::{NamePattern, policy::MAX_ADDRESSES};

use self::refusal::{Inside, refusal};
use super::kept::{self, KEEP, KeptAddress};
use crate::{
    resolver,
    store::{Change, ResolvedRow, Store},
    threads,
};

/// A name is looked up again this often …
const REFRESH: Duration = Duration::from_secs(60);
/// … and this often as long as it has no answer.
const RETRY: Duration = Duration::from_secs(10);
/// What is known of a name is kept for so long after rules have asked for it last: a reload
/// that is refused brings the rules before back.
const KEEP_LEFT: Duration = Duration::from_secs(60);
/// Names that are kept so; for another one the oldest goes.
const MAX_LEFT: usize = 256;
/// How often it is looked whether there is an answer.
const LOOK: Duration = Duration::from_millis(20);
/// So many names are looked up at once: one that nobody answers keeps the others waiting
/// less.
const LOOKUPS: usize = 2;
/// Addresses are written when they change, and this often, for the times at which they were
/// in an answer.
const SAVE: Duration = Duration::from_secs(600);

/// How a name is looked up: its addresses, or why nobody knows.
type Lookup = dyn Fn(&HostName) -> Result<Vec<IpAddr>, String> + Send + Sync;

/// Addresses of one name, and when they were asked for.
#[derive(Debug, Default)]
struct Known {
    /// When each was in an answer last.
    addresses: BTreeMap<IpAddr, Instant>,
    /// There was an answer, be it that there are none.
    is_answered: bool,
    /// Why the last lookup has failed.
    failed: Option<String>,
    /// What was refused of the last answer, and why.
    refused: Option<(IpAddr, &'static str)>,
    /// Addresses of the last answer that found no room.
    left_out: usize,
    due: Option<Instant>,
    is_asked: bool,
    /// When rules stopped to ask for it.
    left: Option<Instant>,
    /// Addresses of an earlier daemon, until there is an answer.
    kept: Vec<KeptAddress>,
    /// Those of them that are refused as things are: other settings may take them.
    withheld: Vec<KeptAddress>,
    /// When its addresses were written last, and which these were.
    saved: Option<(Instant, BTreeSet<IpAddr>)>,
}

/// A name whose addresses an earlier daemon was given: nobody has answered this one yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptName {
    /// The name of a host, as rules have it.
    pub name: String,
    /// How many addresses the name has from disk.
    pub addresses: usize,
    /// When the last of these addresses was in an answer.
    pub seen: Timestamp,
}

impl Known {
    fn is_wanted(&self) -> bool {
        self.left.is_none()
    }

    /// Those that rules take for its addresses.
    fn in_use(&self) -> BTreeSet<IpAddr> {
        let kept = self.kept.iter().map(|kept| kept.addr);
        self.addresses.keys().copied().chain(kept).collect()
    }

    /// Leaves of the addresses from disk those that may hold now.
    fn sift(&mut self, is_private: bool, inside: &Inside, now: Timestamp) {
        let mut refused = None;
        let mut all = std::mem::take(&mut self.kept);
        all.append(&mut self.withheld);
        for kept in all.into_iter().filter(|kept| kept.holds(now)) {
            match refusal(kept.addr, inside).filter(|_| !is_private) {
                Some(why) => {
                    refused = Some((kept.addr, why));
                    self.withheld.push(kept);
                }
                None => self.kept.push(kept),
            }
        }
        // What was refused before there is an answer was one of these.
        self.refused = refused.or(self.refused.filter(|_| self.is_answered));
    }
}

#[derive(Default)]
struct Table {
    names: BTreeMap<String, Known>,
    private: Vec<NamePattern>,
    /// Counts changes of addresses.
    changes: u64,
    is_started: bool,
    is_over: bool,
    /// What the disk had of names, until rules say which these are.
    kept: BTreeMap<String, Vec<KeptAddress>>,
    /// What on disk was not taken, and why.
    untaken: Vec<String>,
}

/// All names of the rules in force.
pub(super) struct Names {
    table: Mutex<Table>,
    work: Condvar,
    lookup: Box<Lookup>,
    inside: Box<dyn Fn() -> Inside + Send + Sync>,
    store: Option<Arc<Store>>,
}

/// The addresses of names at one moment.
pub(super) type Addresses = HashMap<String, Vec<IpAddr>>;

impl Table {
    /// Forgets names that rules ask for no more, and says which: their rows go.
    fn forget_left(&mut self, now: Instant) -> Vec<String> {
        let left = |(name, known): (&String, &Known)| Some((known.left?, name.clone()));
        let mut left: Vec<_> = self.names.iter().filter_map(left).collect();
        left.sort();
        let too_many = left.len().saturating_sub(MAX_LEFT);
        let old = |number: usize, left: Instant| {
            number < too_many || now.duration_since(left) >= KEEP_LEFT
        };
        let mut gone = Vec::new();
        for (number, (left, name)) in left.into_iter().enumerate() {
            if old(number, left) {
                self.names.remove(&name);
                gone.push(name);
            }
        }
        gone
    }
}

impl Names {
    fn with(lookup: Box<Lookup>, inside: Box<dyn Fn() -> Inside + Send + Sync>) -> Self {
        Self {
            table: Mutex::default(),
            work: Condvar::new(),
            lookup,
            inside,
            store: None,
        }
    }

    /// Names that the system's resolver is asked for, with the addresses that the disk has.
    pub fn over(store: Arc<Store>) -> Self {
        Self::with(
            Box::new(resolver::addresses),
            Box::new(Inside::of_this_host),
        )
        .kept_in(store)
    }

    fn kept_in(mut self, store: Arc<Store>) -> Self {
        let found = kept::read(&store, Timestamp::now());
        for why in &found.untaken {
            tracing::warn!("[app.rules]: {why}");
        }
        if found.is_foreign {
            store.remember([Change::ForgetResolved]);
        }
        let row = |name| Change::Resolved(ResolvedRow { name, record: None });
        store.remember(found.wrong.into_iter().map(row));
        let mut table = self.table();
        (table.kept, table.untaken) = (found.kept, found.untaken);
        drop(table);
        self.store = Some(store);
        self
    }

    /// Deletes the rows of these names.
    fn delete(&self, names: Vec<String>) {
        let row = |name: String| ResolvedRow {
            name: name.into(),
            record: None,
        };
        self.save(names.into_iter().map(row).collect());
    }

    fn save(&self, rows: Vec<ResolvedRow>) {
        if let Some(store) = &self.store
            && !rows.is_empty()
        {
            store.remember(rows.into_iter().map(Change::Resolved));
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the names of the rules in force: others are forgotten after a while, and new
    /// ones looked up at once. Makes the threads when there is the first one.
    pub fn follow<'a>(
        self: &Arc<Self>,
        names: impl Iterator<Item = &'a str>,
        private: &[NamePattern],
    ) {
        let names: BTreeSet<_> = names.collect();
        let inside = (self.inside)();
        let mut table = self.table();
        table.private = private.to_vec();
        let (now, time) = (Instant::now(), Timestamp::now());
        for (name, known) in &mut table.names {
            if names.contains(name.as_str()) {
                known.left = None;
            } else if known.left.is_none() {
                known.left = Some(now);
            }
        }
        // Of what was on disk the rest is kept as what rules have left.
        for (name, kept) in std::mem::take(&mut table.kept) {
            let left = (!names.contains(name.as_str())).then_some(now);
            let known = Known {
                kept,
                left,
                ..Known::default()
            };
            table.names.entry(name).or_insert(known);
        }
        let gone = table.forget_left(now);
        for name in &names {
            let known = table.names.entry((*name).to_owned()).or_default();
            let is_private = private.iter().any(|pattern| pattern.matches(name));
            known.sift(is_private, &inside, time);
        }
        // What is refused may be another by now.
        table.names.values_mut().for_each(|known| known.due = None);
        let starts = !table.names.is_empty() && !table.is_started;
        table.is_started |= starts;
        self.delete(gone);
        drop(table);
        self.work.notify_all();
        if starts {
            for number in 0..LOOKUPS {
                let weak = Arc::downgrade(self);
                let work = move || look_up(&weak);
                if let Err(error) = threads::spawn(format!("weir-app-names-{number}"), work) {
                    tracing::error!("names in [app.rules] are not looked up: {error}");
                }
            }
        }
    }

    /// Waits until each name was answered, or has failed, or has addresses from disk, but no
    /// longer than this.
    pub fn wait(&self, at_most: Duration) {
        let waits = || {
            let table = self.table();
            let mut wanted = table.names.values().filter(|known| known.is_wanted());
            wanted
                .any(|known| !known.is_answered && known.failed.is_none() && known.kept.is_empty())
        };
        let until = Instant::now() + at_most;
        while waits() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }

    /// Is there a name that was never answered?
    pub fn has_unanswered(&self) -> bool {
        let table = self.table();
        let mut wanted = table.names.values().filter(|known| known.is_wanted());
        wanted.any(|known| !known.is_answered)
    }

    /// The addresses of all names that were answered, or that the disk has, and the number
    /// of this state.
    pub fn addresses(&self) -> (Addresses, u64) {
        let table = self.table();
        let known = table
            .names
            .iter()
            .filter(|(_, known)| known.is_wanted())
            .filter(|(_, known)| known.is_answered || !known.kept.is_empty());
        let addresses =
            known.map(|(name, known)| (name.clone(), known.in_use().into_iter().collect()));
        (addresses.collect(), table.changes)
    }

    /// The names whose addresses are those from disk.
    pub fn kept(&self) -> Vec<KeptName> {
        let table = self.table();
        let wanted = table.names.iter().filter(|(_, known)| known.is_wanted());
        let names = wanted.filter_map(|(name, known)| {
            Some(KeptName {
                name: name.clone(),
                addresses: known.kept.len(),
                seen: known.kept.iter().map(|kept| kept.seen).max()?,
            })
        });
        names.collect()
    }

    /// Counts up with each change of an address.
    pub fn changes(&self) -> u64 {
        self.table().changes
    }

    /// What an administrator has to know of names; empty: nothing.
    pub fn troubles(&self) -> Vec<String> {
        let table = self.table();
        let wanted = table.names.iter().filter(|(_, known)| known.is_wanted());
        let troubles = wanted.flat_map(|(name, known)| {
            let failed = known.failed.as_ref().map(|why| match known.is_answered {
                true => format!("name:{name} is not answered any more ({why}): the addresses before hold for an hour"),
                false if !known.kept.is_empty() => format!(
                    "name:{name} is not answered ({why}): {} addresses from before the start hold for a day after they were in an answer",
                    known.kept.len()
                ),
                false => format!("name:{name} has no answer: {why}"),
            });
            let none = (known.is_answered && known.failed.is_none() && known.addresses.is_empty() && known.refused.is_none())
                .then(|| format!("name:{name} has no address"));
            let refused = known.refused.map(|(addr, why)| {
                format!("name:{name} leads to {addr}, which is refused because {why}; if that is right, add it to private_names in [app]")
            });
            let left_out = (known.left_out > 0).then(|| {
                format!("name:{name} has more than {MAX_ADDRESSES} addresses: {} are left out", known.left_out)
            });
            [failed, none, refused, left_out].into_iter().flatten()
        });
        // With an answer of each name nobody misses what was on disk.
        let mut wanted = table.names.values().filter(|known| known.is_wanted());
        let untaken: &[String] = match wanted.any(|known| !known.is_answered) {
            true => &table.untaken,
            false => &[],
        };
        troubles.chain(untaken.iter().cloned()).collect()
    }

    /// The next name whose time has come, or how long that takes.
    fn next(table: &mut Table, now: Instant) -> Result<String, Duration> {
        let waiting = table
            .names
            .iter_mut()
            .filter(|(_, known)| !known.is_asked && known.is_wanted());
        let Some((name, known)) = waiting.min_by_key(|(_, known)| known.due) else {
            return Err(REFRESH);
        };
        match known.due.filter(|due| *due > now) {
            Some(due) => Err(due - now),
            None => {
                known.is_asked = true;
                Ok(name.clone())
            }
        }
    }

    fn answered(&self, name: &str, answer: Result<Vec<IpAddr>, String>, now: Instant) {
        let inside = (self.inside)();
        let time = Timestamp::now();
        let mut table = self.table();
        let is_private = table.private.iter().any(|pattern| pattern.matches(name));
        // The rules do not ask for it any more.
        let Some(known) = table.names.get_mut(name) else {
            return;
        };
        known.is_asked = false;
        if !known.is_wanted() {
            return;
        }
        let before = known.in_use();
        let was_answered = known.is_answered;
        known
            .addresses
            .retain(|_, seen| now.duration_since(*seen) < KEEP);
        match answer {
            Err(why) => {
                known.failed = Some(why);
                known.due = Some(now + RETRY);
                known.sift(is_private, &inside, time);
            }
            Ok(found) => {
                (known.failed, known.refused, known.left_out) = (None, None, 0);
                known.is_answered = true;
                known.due = Some(now + if found.is_empty() { RETRY } else { REFRESH });
                for addr in found.iter().map(IpAddr::to_canonical) {
                    let why = refusal(addr, &inside).filter(|_| !is_private);
                    if let Some(why) = why {
                        known.refused = Some((addr, why));
                        known.addresses.remove(&addr);
                    } else if known.addresses.contains_key(&addr)
                        || known.addresses.len() < MAX_ADDRESSES
                    {
                        known.addresses.insert(addr, now);
                    } else {
                        known.left_out += 1;
                    }
                }
                known.sift(is_private, &inside, time);
                known.withheld.clear();
                // These have been in an answer not long ago, as others that are not in this one.
                for kept in std::mem::take(&mut known.kept) {
                    let seen = now.checked_sub(kept.age(time));
                    if let Some(seen) = seen.filter(|seen| now.duration_since(*seen) < KEEP)
                        && known.addresses.len() < MAX_ADDRESSES
                    {
                        known.addresses.entry(kept.addr).or_insert(seen);
                    }
                }
            }
        }
        let after = known.in_use();
        let is_same = known.is_answered == was_answered && after == before;
        let is_saved = |(at, saved): &(Instant, BTreeSet<IpAddr>)| {
            *saved == after && now.duration_since(*at) < SAVE
        };
        let mut rows = Vec::new();
        if known.is_answered
            && known.failed.is_none()
            && !known.saved.as_ref().is_some_and(is_saved)
        {
            let addresses = known.addresses.iter();
            let addresses = addresses.map(|(addr, seen)| (*addr, now.duration_since(*seen)));
            rows.push(ResolvedRow {
                name: name.into(),
                record: kept::record(addresses, time),
            });
            known.saved = Some((now, after));
        }
        table.changes += u64::from(!is_same);
        self.save(rows);
    }

    /// The daemon ends: threads that wait for an answer are not waited for.
    pub fn finish(&self) {
        self.table().is_over = true;
        self.work.notify_all();
    }
}

/// One thread's work.
fn look_up(names: &Weak<Names>) {
    while let Some(names) = names.upgrade() {
        let mut table = names.table();
        if table.is_over {
            return;
        }
        let gone = table.forget_left(Instant::now());
        if !gone.is_empty() {
            names.delete(gone);
            continue;
        }
        let name = match Names::next(&mut table, Instant::now()) {
            Ok(name) => name,
            Err(wait) => {
                let wait = wait.min(Duration::from_secs(1));
                let waited = names.work.wait_timeout(table, wait);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
        };
        drop(table);
        let answer = match HostName::new(name.as_bytes()) {
            Ok(host) => (names.lookup)(&host),
            Err(_) => Err("it is no host name".to_owned()),
        };
        names.answered(&name, answer, Instant::now());
    }
}

mod refusal;
#[cfg(test)]
mod tests;

//! Remembers: why each ban was made, the allow list of run time, the history
//! of offences, where each source was read to. SQLite in the state directory,
//! written in batches by one thread, at most a second behind; what the API
//! answers as done is durable first. Enforcement never waits for it: when the
//! disk is full, read-only or the file corrupt, bans go on, an alert says so,
//! and writing is retried.

mod action_notices;
pub mod clock;
mod database;
mod history;
mod identity;
mod learned;
mod pins;
mod progress;
mod resolved;
pub mod restore;
mod row;
mod writer;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rusqlite::Connection;
use serde::Serialize;
use weir_core::{
    Ban, BanSource, BanTarget, PortSet, Prefix, Until,
    policy::{self, Tracked},
};
use weir_enforce::{BanCounts, BootNanos, Entry, Expiry, Policy};
use weir_events::alerts::Alerts;

pub use action_notices::{
    ActionKey, ActionNotice, ActionNoticeChange, CapturedValues, number_of_texts,
};
pub use database::allow_set;
pub use history::KeepHistory;
pub use learned::LearnedRow;
pub use pins::PinRow;
pub use progress::Progress;
pub use resolved::ResolvedRow;
pub use row::{DatabaseError, TextRow};

use crate::threads;
use clock::Now;
use restore::StoredState;
use writer::{move_aside, write_until_stopped};

/// How many changes may wait while the database cannot be written. Beyond
/// that the oldest are forgotten and counted; the bans stay in force.
const MAX_PENDING: usize = 200_000;
/// The database's name in the state directory.
const FILE: &str = "weir.db";
/// Bans that the database is to have are written in portions of this size.
pub const PORTION: usize = 20_000;
/// How long an API call waits for its commit.
const DURABLE_WITHIN: Duration = Duration::from_secs(5);

/// Something to remember.
#[derive(Debug, Clone)]
pub enum Change {
    /// A ban was made or made longer.
    Ban {
        /// The ban, with its explanation.
        ban: Ban,
        /// The ban's end on this boot's clock.
        expiry: Expiry,
    },
    /// Bans that were made elsewhere, and count as past ones.
    PastBans {
        /// The last of them.
        ban: Ban,
        /// How often the subject was banned, this one included.
        count: u32,
    },
    /// A ban is in force, and the database may not know of it. What is known of it there
    /// stays, and the offence is counted once.
    Recovered {
        /// The ban as it is enforced.
        entry: Entry,
        /// The ban's end by the wall clock.
        until: Until,
    },
    /// A ban of an earlier boot is in force again, under this boot's clock.
    Restored {
        /// The ban as it is enforced.
        entry: Entry,
        /// The ban's end by the wall clock.
        until: Until,
    },
    /// A ban was lifted or evicted.
    Unban {
        /// The address or network of the ban.
        subject: BanTarget,
        /// The producer, ports and action of the ban.
        policy: Arc<Policy>,
    },
    /// A ban ended by itself, unless it was made longer since.
    Ended {
        /// The address or network of the ban.
        subject: BanTarget,
        /// The producer, ports and action of the ban.
        policy: Arc<Policy>,
        /// The moment of this boot by which the ban ended.
        by: BootNanos,
    },
    /// All bans were lifted by one command.
    UnbanAll,
    /// A prefix was allowed at run time.
    AllowAdd(AllowEntry),
    /// An allowed prefix was taken back.
    AllowDel(Prefix),
    /// A source has been read further.
    Progress(Progress),
    /// There are no other jails than these.
    KeepJails(Vec<String>),
    /// A source is no longer read.
    ForgetPosition(String),
    /// More is known of what a program does.
    Learned(LearnedRow),
    /// A name in rules has these addresses.
    Resolved(ResolvedRow),
    /// An executable that rules name by its path is pinned so.
    Pin(PinRow),
    /// What is known of the addresses of names is not to be used.
    ForgetResolved,
    /// An action elsewhere was told of a ban, or of an end.
    ActionNotice(ActionNoticeChange),
}

impl Change {
    /// The subject whose bans the change is about, if it is about one.
    fn subject(&self) -> Option<BanTarget> {
        match self {
            Self::Ban { ban, .. } | Self::PastBans { ban, .. } => Some(ban.subject),
            Self::Recovered { entry, .. } | Self::Restored { entry, .. } => Some(entry.subject),
            Self::Unban { subject, .. } | Self::Ended { subject, .. } => Some(*subject),
            _ => None,
        }
    }
}

/// A prefix allowed at run time.
#[derive(Debug, Clone, Serialize)]
pub struct AllowEntry {
    /// The prefix that is allowed.
    pub prefix: Prefix,
    /// The time at which the prefix was allowed.
    pub since: Timestamp,
    /// The administrator's words about it.
    pub note: String,
}

/// What only the database knows of a ban.
#[derive(Debug, Clone, Serialize)]
pub struct Detail {
    /// The time of the decision.
    pub since: Timestamp,
    /// The reason of the ban, in words.
    pub reason: String,
    /// The lines that led to it.
    pub evidence: Vec<String>,
}

/// One ban of the past or present.
#[derive(Debug, Clone, Serialize)]
pub struct Offence {
    /// The address or network that was banned.
    pub subject: BanTarget,
    /// The jail, list, command or port that banned it.
    pub producer: BanSource,
    /// The ports that the ban covered.
    pub scope: PortSet,
    /// When the ban began.
    pub since: Timestamp,
    /// When the ban ends or ended.
    pub until: Until,
    /// The reason of the ban, in words.
    pub reason: String,
}

/// Why a change could not be made durable now; it is kept and tried again.
#[derive(Debug, thiserror::Error)]
#[error("not saved: {0}; it is in force and saving is tried again")]
pub struct SaveError(String);

#[derive(Default)]
struct Queue {
    /// What is being written, and what waits behind it.
    in_flight: Arc<Vec<Change>>,
    pending: VecDeque<Change>,
    /// Sources whose progress is among them.
    sources: HashSet<String>,
    /// How often the file was made anew, and for each source, when it saved last.
    made_anew: u64,
    saved_in: HashMap<String, u64>,
    /// How many changes were ever queued, and how many of them are settled:
    /// written, replaced by a later one, or forgotten for want of room.
    queued: u64,
    settled: u64,
    forgotten: u64,
    /// Failed writes so far, and the last answer.
    failures: u64,
    error: String,
    urgent: bool,
    recreated: bool,
    keep_history: KeepHistory,
    stop: bool,
}

struct Shared {
    path: PathBuf,
    queue: Mutex<Queue>,
    /// The writer waits here for work, callers for their commit.
    work: Condvar,
    done: Condvar,
    alerts: Arc<Alerts>,
}

/// The database and its writer thread.
pub struct Store {
    shared: Arc<Shared>,
    /// For questions, and of which of the files that were made.
    reader: Mutex<(u64, Option<Connection>)>,
    writer: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Queue {
    /// The file is a new one: what is known has to be written again.
    fn made_anew(&mut self) {
        self.recreated = true;
        self.made_anew += 1;
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of this lock panics")
    }
}

impl Store {
    /// Opens `dir`/weir.db, moving a broken one aside, and starts the writer.
    /// Also says what was in it.
    pub fn open(dir: &Path, keep_history: KeepHistory, alerts: Arc<Alerts>) -> (Self, StoredState) {
        let path = dir.join(FILE);
        let mut loaded = StoredState::default();
        let mut connection = None;
        for _ in 0..2 {
            let opened = database::open(&path);
            let read = match &opened {
                Ok(connection) => database::load(connection),
                Err(error) if error.is_corrupt() => Err(DatabaseError::Sqlite(
                    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(11), None),
                )),
                // Not writable: what can be read still counts.
                Err(_) => database::open_reader(&path).and_then(|c| database::load(&c)),
            };
            match (opened, read) {
                (_, Err(error)) if error.is_corrupt() => {
                    move_aside(&path, &alerts, &format!("corrupt ({error})"));
                    continue;
                }
                (Ok(writable), Ok(read)) => {
                    connection = Some(writable);
                    loaded = read;
                }
                (Err(error), read) => {
                    alerts.raise("database", format!("{}: {error}", path.display()));
                    loaded = read.unwrap_or_default();
                }
                (Ok(_), Err(error)) => {
                    alerts.raise("database", format!("{}: {error}", path.display()));
                }
            }
            break;
        }
        let shared = Arc::new(Shared {
            path,
            queue: Mutex::new(Queue {
                keep_history,
                ..Queue::default()
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            alerts,
        });
        let writer = threads::spawn("weir-store", {
            let shared = shared.clone();
            move || write_until_stopped(&shared, connection)
        })
        .expect("a thread can be started");
        let store = Self {
            shared,
            reader: Mutex::default(),
            writer: Mutex::new(Some(writer)),
        };
        (store, loaded)
    }

    /// Opens the database and, at the same time, whatever `other` opens: the
    /// kernel verifies programs about as long as a million bans are read.
    /// `other` is told how many bans there are.
    pub fn open_beside<T: Send>(
        dir: &Path,
        keep_history: KeepHistory,
        alerts: Arc<Alerts>,
        other: impl FnOnce(BanCounts) -> T + Send,
    ) -> ((Self, StoredState), T) {
        // Broken or absent: opening says so.
        let room = database::open_reader(&dir.join(FILE))
            .and_then(|connection| database::count(&connection))
            .unwrap_or_default();
        thread::scope(|scope| {
            let other = scope.spawn(move || other(room));
            let opened = Self::open(dir, keep_history, alerts);
            match other.join() {
                Ok(other) => (opened, other),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Remembers soon (within a second); never waits.
    pub fn remember(&self, changes: impl IntoIterator<Item = Change>) {
        let mut queue = self.shared.queue();
        push(&mut queue, changes);
        drop(queue);
    }

    /// Remembers now: returns when the change is on disk.
    pub fn remember_now(&self, changes: Vec<Change>) -> Result<(), SaveError> {
        self.remember(changes);
        self.flush()
    }

    /// Returns when all that was remembered before is on disk.
    pub fn flush(&self) -> Result<(), SaveError> {
        let mut queue = self.shared.queue();
        let (mine, failures) = (queue.queued, queue.failures);
        queue.urgent = true;
        self.shared.work.notify_one();
        let deadline = Instant::now() + DURABLE_WITHIN;
        loop {
            if queue.failures > failures {
                return Err(SaveError(queue.error.clone()));
            }
            if queue.settled >= mine {
                return Ok(());
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Err(SaveError("the disk is slow".into()));
            };
            queue = self
                .shared
                .done
                .wait_timeout(queue, left)
                .expect("no holder of this lock panics")
                .0;
        }
    }

    /// Has the database know of these bans, which are in force; waits for the disk
    /// as long as it answers.
    pub fn recover(&self, entries: Vec<Entry>) {
        let now = Now::read();
        let recovered = |entry: &Entry| Change::Recovered {
            entry: entry.clone(),
            until: now.until(entry.expiry),
        };
        let mut saved = true;
        for portion in entries.chunks(PORTION) {
            let changes = portion.iter().map(recovered);
            match saved {
                true => saved = self.remember_now(changes.collect()).is_ok(),
                false => self.remember(changes), // There is an alert.
            }
        }
    }

    /// Was the file made anew since the last question? Then whoever knows the
    /// bans in force should write them again.
    pub fn take_recreated(&self) -> bool {
        std::mem::take(&mut self.shared.queue().recreated)
    }

    /// Remembers how far a source was read, soon. `take` says what has changed in
    /// the counts meanwhile; it is not asked while the last answer still waits
    /// for the disk, unless this is the `last` time: what has changed by then is
    /// in the next one. It is told whether all must be said again, because the
    /// file was made anew.
    pub fn progress(
        &self,
        source: &str,
        last: bool,
        take: impl FnOnce(bool) -> (Option<String>, Vec<Tracked>),
    ) {
        let again = {
            let mut queue = self.shared.queue();
            if !last && queue.sources.contains(source) {
                return;
            }
            let now = queue.made_anew;
            queue
                .saved_in
                .insert(source.to_owned(), now)
                .unwrap_or_default()
                < now
        };
        let (position, tracked) = take(again);
        if position.is_none() && tracked.is_empty() {
            return;
        }
        let mut queue = self.shared.queue();
        queue.sources.insert(source.to_owned());
        let progress = Progress {
            source: source.to_owned(),
            position,
            tracked,
        };
        push(&mut queue, [Change::Progress(progress)]);
    }

    /// What programs were seen doing: keys and records.
    pub fn learned(&self) -> Vec<TextRow> {
        self.read(learned::all)
    }

    /// The executables that rules by path are about: of so many paths at most; `None` is a
    /// record of more than `longest` bytes, or of another kind.
    pub fn pins(&self, paths: usize, longest: usize) -> Vec<TextRow> {
        self.read(|connection| pins::all(connection, paths, longest))
    }

    /// The addresses that names in rules had last: of so many names at most; `None` is a
    /// record of more than `longest` bytes, or of another kind.
    pub fn resolved(&self, names: usize, longest: usize) -> Vec<TextRow> {
        self.read(|connection| resolved::all(connection, names, longest))
    }

    /// The bans that actions elsewhere were told of, by action.
    pub fn action_notices(&self) -> Vec<(ActionKey, ActionNotice)> {
        self.read(action_notices::all)
    }

    /// How often the file was made anew: what is in memory has to be written again.
    pub fn times_made_anew(&self) -> u64 {
        self.shared.queue().made_anew
    }

    /// Changes that wait for the disk.
    pub fn pending(&self) -> usize {
        let queue = self.shared.queue();
        queue.in_flight.len() + queue.pending.len()
    }

    /// Changes that found no room while the disk could not be written: the
    /// bans are in force, but a reboot forgets them.
    pub fn forgotten(&self) -> u64 {
        self.shared.queue().forgotten
    }

    /// How much history is kept, from now on.
    pub fn set_keep_history(&self, keep: KeepHistory) {
        self.shared.queue().keep_history = keep;
    }

    /// Writes what is pending and stops the writer.
    pub fn close(&self) {
        self.shared.queue().stop = true;
        self.shared.work.notify_one();
        let writer = self.writer.lock().ok().and_then(|mut w| w.take());
        if let Some(writer) = writer {
            // A panic of the writer was reported by its thread already.
            let _ = writer.join();
        }
    }

    fn read<T: Default>(&self, question: impl Fn(&Connection) -> Result<T, DatabaseError>) -> T {
        let mut reader = self.reader.lock().expect("no holder of this lock panics");
        let made_anew = self.shared.queue().made_anew;
        if reader.0 != made_anew {
            // It would go on reading the file that is gone.
            *reader = (made_anew, None);
        }
        for _ in 0..2 {
            if reader.1.is_none() {
                reader.1 = database::open_reader(&self.shared.path).ok();
            }
            let Some(connection) = reader.1.as_ref() else {
                return T::default();
            };
            match question(connection) {
                Ok(answer) => return answer,
                Err(error) => {
                    tracing::debug!("reading the database: {error}");
                    reader.1 = None;
                }
            }
        }
        T::default()
    }

    /// The explanation of each of these bans, as far as there is one.
    pub fn details(&self, bans: &[Entry]) -> Vec<Option<Detail>> {
        let mut recent = HashMap::new();
        {
            let asked: HashSet<BanTarget> = bans.iter().map(|ban| ban.subject).collect();
            let queue = self.shared.queue();
            for change in queue.in_flight.iter().chain(&queue.pending) {
                if let Change::Ban { ban, .. } = change
                    && asked.contains(&ban.subject)
                {
                    let detail = Detail {
                        since: ban.since,
                        reason: ban.reason.clone(),
                        evidence: ban.evidence.clone(),
                    };
                    let policy = Policy {
                        producer: ban.producer.clone(),
                        scope: ban.scope.clone(),
                        action: ban.action,
                    };
                    recent.insert((ban.subject, Arc::new(policy)), detail);
                }
            }
        }
        self.read(|connection| {
            bans.iter()
                .map(|ban| match recent.get(&(ban.subject, ban.policy.clone())) {
                    Some(detail) => Ok(Some(detail.clone())),
                    None => database::detail(connection, ban.subject, &ban.policy),
                })
                .collect::<Result<Vec<_>, _>>()
        })
        .into_iter()
        .chain(std::iter::repeat(None))
        .take(bans.len())
        .collect()
    }

    /// The last bans of an address, newest first.
    pub fn offences(&self, addr: IpAddr, limit: usize) -> Vec<Offence> {
        self.read(|connection| history::offences(connection, addr, limit))
    }

    /// The allow list of run time.
    pub fn allow(&self) -> Vec<AllowEntry> {
        self.read(database::allow)
    }

    /// How often each jail and watch banned each subject, the oldest first.
    pub fn jail_history(&self) -> Vec<policy::Offence> {
        self.read(|connection| history::past_bans(connection, BanSource::ledger_name))
    }

    /// How often this producer banned each subject, the oldest first; as if it
    /// were a jail of the name `producer` is written with.
    pub fn history_of(&self, producer: &BanSource) -> Vec<policy::Offence> {
        self.read(|connection| {
            history::past_bans(connection, |p| (p == producer).then(|| p.to_string()))
        })
    }

    /// The failures that were counted when they were last remembered.
    pub fn tracked(&self) -> Vec<Tracked> {
        self.read(progress::tracked)
    }

    /// Where each source was read to.
    pub fn positions(&self) -> HashMap<String, String> {
        self.read(progress::positions)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

fn push(queue: &mut Queue, changes: impl IntoIterator<Item = Change>) {
    for change in changes {
        queue.pending.push_back(change);
        queue.queued += 1;
    }
    keep_bound(queue);
}

/// Forgets the oldest that wait when there are too many. Not how far sources
/// were read: there is one of each, and the next one builds on it.
fn keep_bound(queue: &mut Queue) {
    let waiting = queue.in_flight.len() + queue.pending.len();
    let over = waiting.saturating_sub(MAX_PENDING).min(queue.pending.len());
    let (kept, forgotten): (Vec<_>, Vec<_>) = queue
        .pending
        .drain(..over)
        .partition(|change| matches!(change, Change::Progress(_)));
    for change in kept.into_iter().rev() {
        queue.pending.push_front(change);
    }
    queue.settled += forgotten.len() as u64;
    queue.forgotten += forgotten.len() as u64;
}

#[cfg(test)]
mod tests;

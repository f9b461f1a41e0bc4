//! `ignorecommand` of Fail2ban's jails: a command that says who is not to be banned. It is run
//! beside the reading of lines, at the first failure of an address, so that its answer is
//! mostly there when a ban is due. A ban without an answer waits for a moment only: who is
//! meanwhile asked about for longer counts as not ignored.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use weir_core::{Ban, BanSource, BanTarget};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::{
    fail2ban_actions::{self, Ran},
    jails::{IgnoreCommand, JailConfig},
    threads,
};

/// Commands that run at a time.
const PROCESSES: usize = 2;
/// A ban waits for an answer so long.
const GRACE: Duration = Duration::from_secs(2);
/// A command runs so long at most.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A thread looks this often what is due.
const WAIT: Duration = Duration::from_millis(100);
/// Questions that wait, and answers that are kept, of all jails.
const MAX_KNOWN: usize = 10_000;

/// Puts bans into force.
type Put = dyn Fn(Vec<Ban>) + Send + Sync;

type Key = (String, BanTarget);

/// What is known of an address.
enum Known {
    /// It is asked about; a ban that waits for the answer, and until when.
    Asked(Option<(Ban, Instant)>),
    /// It is to be ignored, or not; until when that holds.
    Answered(bool, Instant),
}

#[derive(Default)]
struct Table {
    commands: HashMap<String, Arc<IgnoreCommand>>,
    known: HashMap<Key, Known>,
    questions: VecDeque<Key>,
}

/// Asks the commands of all jails.
pub struct IgnoreChecks {
    table: Mutex<Table>,
    work: Condvar,
    /// No jail has such a command: nobody who bans takes a lock.
    is_idle: AtomicBool,
    is_over: AtomicBool,
    put: Box<Put>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    events: Arc<Events>,
    alerts: Arc<Alerts>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("no holder of this lock panics")
}

fn about(jail: &str) -> String {
    format!("ignorecommand:{jail}")
}

impl IgnoreChecks {
    /// Nobody is asked about yet. Bans that have waited go to `put`.
    pub fn new(events: Arc<Events>, alerts: Arc<Alerts>, put: Box<Put>) -> Self {
        Self {
            table: Mutex::default(),
            work: Condvar::new(),
            is_idle: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            put,
            threads: Mutex::default(),
            events,
            alerts,
        }
    }

    /// Asks by the commands of these jails from now on.
    pub fn run(self: &Arc<Self>, jails: &[JailConfig]) {
        let commands: HashMap<_, _> = jails
            .iter()
            .filter_map(|jail| Some((jail.name.clone(), Arc::new(jail.ignore_command.clone()?))))
            .collect();
        let mut table = lock(&self.table);
        for name in table.commands.keys() {
            if commands.get(name) != table.commands.get(name) {
                self.alerts.forget(&about(name));
            }
        }
        let before = std::mem::replace(&mut table.commands, commands);
        let is_as_before = |jail: &String| before.get(jail) == table.commands.get(jail);
        let changed: Vec<_> = before
            .keys()
            .filter(|jail| !is_as_before(jail))
            .cloned()
            .collect();
        // What another command has said; who waits for it is asked about by the new one.
        table
            .known
            .retain(|(jail, _), known| !changed.contains(jail) || matches!(known, Known::Asked(_)));
        let is_idle = table.commands.is_empty() && table.known.is_empty();
        drop(table);
        self.is_idle.store(is_idle, Relaxed);
        let mut threads = lock(&self.threads);
        while !is_idle && threads.len() < PROCESSES {
            let checks = self.clone();
            match threads::spawn("weir-ignore", move || checks.work()) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let message = format!("cannot start a thread for ignorecommand: {error}");
                    self.alerts.raise("ignorecommand", message);
                    return;
                }
            }
        }
    }

    /// An address has failed: it may be banned soon.
    pub fn found(&self, jail: &str, subject: BanTarget) {
        if !self.is_idle.load(Relaxed) {
            self.ask(&mut lock(&self.table), jail, subject);
        }
    }

    /// Has somebody asked about; `None` if the jail asks about nobody, or there is no room.
    fn ask<'t>(
        &self,
        table: &'t mut Table,
        jail: &str,
        subject: BanTarget,
    ) -> Option<&'t mut Known> {
        if !table.commands.contains_key(jail) {
            return None;
        }
        let now = Instant::now();
        let key = (jail.to_owned(), subject);
        if matches!(table.known.get(&key), Some(Known::Answered(_, until)) if *until <= now) {
            table.known.remove(&key);
        }
        if !table.known.contains_key(&key) {
            if table.known.len() >= MAX_KNOWN {
                let holds = |known: &mut Known| !matches!(known, Known::Answered(_, until) if *until <= now);
                table.known.retain(|_, known| holds(known));
            }
            if table.known.len() >= MAX_KNOWN {
                let message = format!(
                    "{MAX_KNOWN} addresses are asked about, as many as may be: others count as not ignored; is the command of jail {jail} slow?"
                );
                self.alerts.raise("ignorecommand:full", message);
                return None;
            }
            table.questions.push_back(key.clone());
            table.known.insert(key.clone(), Known::Asked(None));
            self.work.notify_one();
        }
        table.known.get_mut(&key)
    }

    /// Of bans that are due, those that come into force now: not those of who is to be
    /// ignored, and not yet those of who is asked about.
    pub fn admit(&self, bans: Vec<Ban>) -> Vec<Ban> {
        if self.is_idle.load(Relaxed) {
            return bans;
        }
        let mut table = lock(&self.table);
        let mut ignored = Vec::new();
        let mut now = Vec::with_capacity(bans.len());
        for ban in bans {
            let known = match &ban.producer {
                BanSource::Jail(jail) => self.ask(&mut table, jail, ban.subject),
                _ => None,
            };
            match known {
                Some(Known::Asked(waiting)) => *waiting = Some((ban, Instant::now() + GRACE)),
                Some(Known::Answered(true, _)) => ignored.push(ban),
                Some(Known::Answered(false, _)) | None => now.push(ban),
            }
        }
        drop(table);
        ignored.iter().for_each(|ban| self.tell(ban));
        now
    }

    fn tell(&self, ban: &Ban) {
        let reason = format!("not banned ({}): ignorecommand says so", ban.reason);
        let event = Event::new(Kind::Allow, jiff::Timestamp::now(), reason);
        self.events
            .tell(&event.about(ban.subject.prefix()).by(&ban.producer));
    }

    /// The life of a thread.
    fn work(&self) {
        let mut table = lock(&self.table);
        while !self.is_over.load(Relaxed) {
            let due = take_due(&mut table, Instant::now());
            if !due.is_empty() {
                drop(table);
                (self.put)(due);
                table = lock(&self.table);
                continue;
            }
            let Some(key) = table.questions.pop_front() else {
                let waited = self.work.wait_timeout(table, WAIT);
                table = waited.expect("no holder of this lock panics").0;
                continue;
            };
            let Some(command) = table.commands.get(&key.0).cloned() else {
                // Its jail is no more.
                table.known.remove(&key);
                continue;
            };
            drop(table);
            let ran = self.run_command(&key, &command);
            table = lock(&self.table);
            let is_ignored = ran == Ran::Yes;
            let until = Instant::now() + command.keep;
            let before = table.known.insert(key, Known::Answered(is_ignored, until));
            if let Some(Known::Asked(Some((ban, _)))) = before {
                drop(table);
                match is_ignored {
                    true => self.tell(&ban),
                    false => (self.put)(vec![ban]),
                }
                table = lock(&self.table);
            }
        }
    }

    fn run_command(&self, (jail, subject): &Key, command: &IgnoreCommand) -> Ran {
        let due = || {
            let due = take_due(&mut lock(&self.table), Instant::now());
            if !due.is_empty() {
                (self.put)(due);
            }
            self.is_over.load(Relaxed)
        };
        let ran = fail2ban_actions::ask(&command.script, jail, *subject, TIMEOUT, due);
        match &ran {
            Ran::Yes | Ran::No => self.alerts.clear(&about(jail)),
            Ran::Failed(why) => self.alerts.raise(
                &about(jail),
                format!("ignorecommand of jail {jail} {why}: addresses count as not ignored"),
            ),
        }
        ran
    }

    /// Ends the threads; bans that wait come into force.
    pub fn stop(&self) {
        self.is_over.store(true, Relaxed);
        self.work.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            thread.join().expect("a panic ends the daemon");
        }
        let rest = take_due(&mut lock(&self.table), Instant::now() + GRACE);
        (self.put)(rest);
    }
}

/// Bans that have waited long enough.
fn take_due(table: &mut Table, now: Instant) -> Vec<Ban> {
    let mut due = Vec::new();
    for known in table.known.values_mut() {
        if let Known::Asked(waiting) = known
            && waiting.as_ref().is_some_and(|(_, until)| *until <= now)
            && let Some((ban, _)) = waiting.take()
        {
            due.push(ban);
        }
    }
    due
}

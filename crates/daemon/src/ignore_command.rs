//! `ignorecommand` of Fail2ban's jails: a command that says who is not to be banned. It is run
//! beside the reading of lines, at the first failure of an address, so that its answer is
//! mostly there when a ban is due. A ban without an answer waits for a moment only, and then
//! comes into force: an attacker must not gain time by a command that is slow. An answer
//! that comes later and says that the address is to be ignored lifts the ban.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use weir_core::{Ban, BanSource, BanTarget, PortSet, detect::HostName, policy::Ledger};
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::{
    current::Current,
    fail2ban_actions::{self, Ran},
    ignored_names::{IgnoredNames, spared_by},
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
/// Why somebody is not banned whom a command ignores.
const SAYS_SO: &str = "ignorecommand says so";
/// Where there is no room, answers are thrown away this often.
const MAKE_ROOM: Duration = Duration::from_secs(1);

/// What becomes of bans that have waited.
pub(crate) trait Waited: Send + Sync {
    /// Puts bans into force.
    fn put(&self, bans: Vec<Ban>);
    /// Lifts the ban of a subject by its source, on these ports or any, and says why.
    fn lift(&self, subject: BanTarget, producer: &BanSource, scope: Option<&PortSet>, why: &str);
}

type Key = (String, BanTarget);

/// The state of an address.
enum Known {
    /// The command is asked about the address: the ban that waits for its answer, or has come
    /// into force without one. A ban is of one address in one jail.
    Asked {
        waits: Option<(Box<Ban>, Instant)>,
        in_force: Option<Box<Ban>>,
    },
    /// It is to be ignored, or not; until when that holds.
    Answered(bool, Instant),
}

#[derive(Default)]
struct Table {
    commands: HashMap<String, Arc<IgnoreCommand>>,
    known: HashMap<Key, Known>,
    questions: VecDeque<Key>,
    /// When the ban of an address has waited long enough, the first ones first.
    due: VecDeque<(Instant, Key)>,
    /// When room was made last.
    made_room: Option<Instant>,
}

/// Asks the commands of all jails.
pub struct IgnoreChecks {
    table: Mutex<Table>,
    work: Condvar,
    /// No jail has such a command: nobody who bans takes a lock.
    is_idle: AtomicBool,
    is_over: AtomicBool,
    bans: Arc<dyn Waited>,
    /// Whom jails ignore by name, of whom no command is asked.
    names: Arc<IgnoredNames>,
    /// Held from when bans are taken out of the table until they are in force: who lifts
    /// one finds it there.
    order: Mutex<()>,
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
    /// Nobody is asked about yet. Bans that have waited go to `bans`.
    pub(crate) fn new(
        events: Arc<Events>,
        alerts: Arc<Alerts>,
        ledger: Arc<Current<Ledger>>,
        bans: Arc<dyn Waited>,
    ) -> Self {
        let from = bans.clone();
        let lift = move |jail: &str, subject, why: &str| {
            from.lift(subject, &BanSource::Jail(jail.to_owned()), None, why);
        };
        Self {
            names: Arc::new(IgnoredNames::new(ledger, alerts.clone(), Box::new(lift))),
            table: Mutex::default(),
            work: Condvar::new(),
            is_idle: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            bans,
            order: Mutex::default(),
            threads: Mutex::default(),
            events,
            alerts,
        }
    }

    /// Asks by the commands of these jails from now on, and looks up the names that they have.
    pub fn run(self: &Arc<Self>, jails: &[JailConfig]) {
        self.names.run(jails);
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
        table.known.retain(|(jail, _), known| {
            !changed.contains(jail) || matches!(known, Known::Asked { .. })
        });
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
        self.alerts.clear("ignorecommand");
    }

    /// Tells a ledger that begins to count whom jails ignore by name.
    pub fn tell_names(&self, ledger: &Ledger) {
        self.names.tell(ledger);
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
                table.make_room(now);
            }
            if table.known.len() >= MAX_KNOWN {
                let message = format!(
                    "{MAX_KNOWN} addresses are asked about, as many as may be: others count as not ignored; is the command of jail {jail} slow?"
                );
                self.alerts.raise("ignorecommand:full", message);
                return None;
            }
            table.questions.push_back(key.clone());
            let asked = Known::Asked {
                waits: None,
                in_force: None,
            };
            table.known.insert(key.clone(), asked);
            self.work.notify_one();
        }
        table.known.get_mut(&key)
    }

    /// Of bans that are due, those that come into force now: not those of who is to be
    /// ignored, and not yet those of who is asked about.
    pub fn admit(&self, mut bans: Vec<Ban>) -> Vec<Ban> {
        self.leave_out_named(&mut bans);
        if self.is_idle.load(Relaxed) {
            return bans;
        }
        let mut table = lock(&self.table);
        let mut ignored = Vec::new();
        let mut now = Vec::with_capacity(bans.len());
        let mut due = Vec::new();
        for ban in bans {
            let known = match &ban.producer {
                BanSource::Jail(jail) => self.ask(&mut table, jail, ban.subject),
                _ => None,
            };
            match known {
                Some(Known::Asked { waits, .. }) => {
                    let until = Instant::now() + GRACE;
                    if let BanSource::Jail(jail) = &ban.producer {
                        due.push((until, (jail.clone(), ban.subject)));
                    }
                    *waits = Some((Box::new(ban), until));
                }
                Some(Known::Answered(true, _)) => ignored.push(ban),
                Some(Known::Answered(false, _)) | None => now.push(ban),
            }
        }
        table.due.extend(due);
        drop(table);
        ignored.iter().for_each(|ban| self.tell(ban, SAYS_SO));
        now
    }

    /// Puts bans into force that have waited: a name may have got their address meanwhile.
    fn put(&self, mut bans: Vec<Ban>) {
        self.leave_out_named(&mut bans);
        if !bans.is_empty() {
            self.bans.put(bans);
        }
    }

    /// Leaves out bans of whom a name in `ignoreip` spares, and tells of each.
    pub(crate) fn leave_out_named(&self, bans: &mut Vec<Ban>) {
        bans.retain(|ban| match self.name_that_spares(ban) {
            None => true,
            Some(name) => {
                self.tell(ban, &spared_by(&name));
                false
            }
        });
    }

    fn name_that_spares(&self, ban: &Ban) -> Option<HostName> {
        match &ban.producer {
            BanSource::Jail(jail) => self.names.spares(jail, ban.subject),
            _ => None,
        }
    }

    fn tell(&self, ban: &Ban, why: &str) {
        let reason = format!("not banned ({}): {why}", ban.reason);
        let event = Event::new(Kind::Allow, jiff::Timestamp::now(), reason);
        self.events
            .tell(&event.about(ban.subject.prefix()).by(&ban.producer));
    }

    /// The life of a thread.
    fn work(&self) {
        while !self.is_over.load(Relaxed) {
            self.put_due(Instant::now());
            let mut table = lock(&self.table);
            if table.known.len() < MAX_KNOWN / 10 * 9 {
                self.alerts.clear("ignorecommand:full");
            }
            let Some(key) = table.questions.pop_front() else {
                let waited = self.work.wait_timeout(table, WAIT);
                drop(waited.expect("no holder of this lock panics"));
                continue;
            };
            let Some(command) = table.commands.get(&key.0).cloned() else {
                // Its jail is no more.
                let known = table.known.remove(&key);
                drop(table);
                if let Some(Known::Asked {
                    waits: Some((ban, _)),
                    ..
                }) = known
                {
                    self.put(vec![*ban]);
                }
                continue;
            };
            drop(table);
            let ran = self.run_command(&key, &command);
            self.answered(key, ran == Ran::Yes, command.keep);
        }
    }

    /// An answer is there: it decides about a ban that waits, and one that says that the
    /// address is to be ignored lifts the ban that did not wait so long.
    fn answered(&self, key: Key, is_ignored: bool, keep: Duration) {
        let until = Instant::now() + keep;
        let answer = Known::Answered(is_ignored, until);
        let before = lock(&self.table).known.insert(key, answer);
        let Some(Known::Asked { waits, in_force }) = before else {
            return;
        };
        if !is_ignored {
            if let Some((ban, _)) = waits {
                self.put(vec![*ban]);
            }
            return;
        }
        if let Some(ban) = in_force {
            // Another thread may be about to put it into force.
            let order = lock(&self.order);
            let why = "ignorecommand says so, later than the ban could wait";
            self.bans
                .lift(ban.subject, &ban.producer, Some(&ban.scope), why);
            drop(order);
        }
        if let Some((ban, _)) = waits {
            self.tell(&ban, SAYS_SO);
        }
    }

    /// Puts bans into force that have waited long enough.
    fn put_due(&self, now: Instant) {
        let order = lock(&self.order);
        let due = lock(&self.table).take_due(now);
        if due.is_empty() {
            return;
        }
        for ban in &due {
            if let BanSource::Jail(jail) = &ban.producer {
                let message = format!(
                    "ignorecommand of jail {jail} has not answered within {} s: bans come into force without its answer, and are lifted if it says later that the address is to be ignored",
                    GRACE.as_secs()
                );
                self.alerts.raise(&about(jail), message);
            }
        }
        self.put(due);
        drop(order);
    }

    fn run_command(&self, (jail, subject): &Key, command: &IgnoreCommand) -> Ran {
        let began = Instant::now();
        let due = || {
            self.put_due(Instant::now());
            self.is_over.load(Relaxed)
        };
        let ran = fail2ban_actions::ask(&command.script, jail, *subject, TIMEOUT, due);
        match &ran {
            // One that answers late is still slow.
            Ran::Yes | Ran::No if began.elapsed() < GRACE => self.alerts.clear(&about(jail)),
            Ran::Yes | Ran::No => {}
            Ran::Failed(why) => self.alerts.raise(
                &about(jail),
                format!("ignorecommand of jail {jail} {why}: addresses count as not ignored"),
            ),
        }
        ran
    }

    /// Ends the threads; bans that wait come into force.
    pub fn stop(&self) {
        self.names.stop();
        self.is_over.store(true, Relaxed);
        self.work.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            thread.join().expect("a panic ends the daemon");
        }
        let rest = lock(&self.table).take_due(Instant::now() + GRACE);
        if !rest.is_empty() {
            self.put(rest);
        }
    }
}

impl Table {
    /// Bans that have waited long enough; they are in force from now on.
    fn take_due(&mut self, now: Instant) -> Vec<Ban> {
        let mut due = Vec::new();
        while self.due.front().is_some_and(|(until, _)| *until <= now) {
            let Some((_, key)) = self.due.pop_front() else {
                break;
            };
            // It may have its answer since, or wait again for another one.
            if let Some(Known::Asked { waits, in_force }) = self.known.get_mut(&key)
                && waits.as_ref().is_some_and(|(_, until)| *until <= now)
                && let Some((ban, _)) = waits.take()
            {
                *in_force = Some(ban.clone());
                due.push(*ban);
            }
        }
        due
    }

    /// Throws answers away: those that hold no more, and where that is too little, those
    /// that say nothing but what counts without them.
    fn make_room(&mut self, now: Instant) {
        if self.made_room.is_some_and(|at| now < at + MAKE_ROOM) {
            return;
        }
        self.made_room = Some(now);
        self.known
            .retain(|_, known| !matches!(known, Known::Answered(_, until) if *until <= now));
        if self.known.len() >= MAX_KNOWN {
            self.known
                .retain(|_, known| !matches!(known, Known::Answered(false, _)));
        }
    }
}

#[cfg(test)]
mod tests;

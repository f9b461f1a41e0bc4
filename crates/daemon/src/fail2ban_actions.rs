//! The commands that Fail2ban's jails run beside a ban: mail, reports, other firewalls.
//! Each action of a jail has a queue, whose commands run one after the other; a few
//! threads run the queues. Whoever bans puts a job into a queue and never waits: a command
//! that hangs delays the other commands of its own queue until its timeout, and nothing
//! else. What a queue cannot hold is counted and told. The scripts are
//! `weir_fail2ban`'s; which values they see is in `values`, the process in
//! `command::child`.

mod captures;
mod notice;
mod process;
mod queue;
mod turn;
mod values;

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use weir_core::{Ban, BanSource, BanTarget, Until, detect::Finding, policy::Ledger};
use weir_enforce::Policy;
use weir_events::alerts::Alerts;

use crate::{
    current::Current,
    jails::JailConfig,
    metrics::ActionMetrics,
    store::{ActionKey, ActionNotice, ActionNoticeChange, Change, Store},
    threads,
};
use captures::Captures;
use notice::BanNotice;
use process::Leftovers;
pub(crate) use process::{Ran, ask};
use queue::{ActionQueue, BanInForce, Job, MAX_BANS};

/// Commands that run at a time.
const PROCESSES: usize = 4;
/// A thread looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// At a stop the queues have this long for what waits.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// Runs the actions of the configuration in force.
pub struct Fail2banActions {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    queues: Mutex<ActionQueues>,
    /// What filters have captured of failures. (No holder of this lock takes another.)
    captures: Mutex<Captures>,
    /// What commands have left behind. (No holder of this lock takes another.)
    leftovers: Mutex<Leftovers>,
    work: Condvar,
    /// Whether no command is to run, so that no thread that bans takes a lock.
    is_idle: AtomicBool,
    /// Whether running commands are to be ended.
    ending: AtomicBool,
    alerts: Arc<Alerts>,
    metrics: ActionMetrics,
    ledger: Arc<Current<Ledger>>,
    store: Arc<Store>,
}

#[derive(Default)]
struct ActionQueues {
    all: Vec<ActionQueue>,
    /// Where the search for the next job begins.
    next: usize,
    /// Each has a number of its own.
    made: u64,
    stopping: bool,
    /// What actions were told by an earlier daemon; `None` until that was read.
    remembered: Option<HashMap<ActionKey, Vec<ActionNotice>>>,
    /// While jails are exchanged: bans, each with its jail, that actions are to be told
    /// which do not run yet.
    meanwhile: Option<Vec<(String, Arc<BanNotice>)>>,
    /// Alerts about actions that are removed.
    removed: Vec<String>,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, ActionQueues> {
        self.queues.lock().expect("no holder of this lock panics")
    }

    fn captures(&self) -> MutexGuard<'_, Captures> {
        self.captures.lock().expect("no holder of this lock panics")
    }

    fn leftovers(&self) -> MutexGuard<'_, Leftovers> {
        let held = self.leftovers.lock();
        held.expect("no holder of this lock panics")
    }

    /// Has the database remember what a queue has noted.
    fn save(&self, queue: &mut ActionQueue) {
        if !queue.changes.is_empty() {
            self.store.remember(queue.changes.drain(..));
        }
    }

    fn lost(&self, queue: &ActionQueue) {
        queue.counters.lost.inc();
        let message = format!(
            "as many commands of action {} wait in jail {} as may: further ones are not run, `weir metrics` says how many",
            queue.action.name, queue.jail
        );
        self.alerts.raise(&queue.about_queue, message);
    }
}

impl Fail2banActions {
    /// No action runs yet.
    pub fn new(
        alerts: Arc<Alerts>,
        metrics: ActionMetrics,
        ledger: Arc<Current<Ledger>>,
        store: Arc<Store>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                queues: Mutex::default(),
                captures: Mutex::default(),
                leftovers: Mutex::default(),
                work: Condvar::new(),
                is_idle: AtomicBool::new(true),
                ending: AtomicBool::new(false),
                alerts,
                metrics,
                ledger,
                store,
            }),
            threads: Mutex::default(),
        }
    }

    /// The jails are about to be exchanged: until [`run`](Self::run) or
    /// [`stay`](Self::stay), bans are kept for actions that are new.
    pub(crate) fn begin_change(&self) {
        self.shared.queues().meanwhile = Some(Vec::new());
        self.shared.is_idle.store(false, Relaxed);
    }

    /// The jails were not exchanged after all.
    pub(crate) fn stay(&self) {
        let mut queues = self.shared.queues();
        queues.meanwhile = None;
        self.shared.is_idle.store(queues.is_idle(), Relaxed);
    }

    /// Runs the actions of these jails, or none while weir observes: one that is as before
    /// goes on; any other is stopped, and what it was told undone, or started. `in_force`
    /// says whom a jail has banned already, by which policy and until when.
    pub fn run(
        &self,
        jails: &[JailConfig],
        observes: bool,
        in_force: impl Fn(&str) -> Vec<(BanTarget, Arc<Policy>, Until)>,
    ) {
        let shared = &self.shared;
        let mut queues = shared.queues();
        let queues = &mut *queues;
        if queues.remembered.is_none() {
            let mut remembered = HashMap::<_, Vec<_>>::new();
            for (key, notice) in shared.store.action_notices() {
                remembered.entry(key).or_default().push(notice);
            }
            queues.remembered = Some(remembered);
        }
        for about in queues.removed.drain(..) {
            shared.alerts.forget(&about);
        }
        let jails = if observes { &[] } else { jails };
        let is_wanted = |queue: &ActionQueue| {
            let jail = jails.iter().find(|jail| jail.name == queue.jail);
            jail.is_some_and(|jail| jail.commands.contains(&queue.action))
        };
        for queue in queues.all.iter_mut().filter(|queue| !queue.is_leaving) {
            if !is_wanted(queue) {
                queue.leave_and_undo();
                shared.save(queue);
                shared.alerts.forget(&queue.about);
                shared.alerts.forget(&queue.about_queue);
            }
        }
        let meanwhile = queues.meanwhile.take().unwrap_or_default();
        for jail in jails {
            for action in &jail.commands {
                let of_name = |queue: &&ActionQueue| {
                    queue.jail == jail.name && queue.action.name == action.name
                };
                let is_there = |queue: &ActionQueue| !queue.is_leaving && queue.action == *action;
                if queues.all.iter().filter(of_name).any(is_there) {
                    continue;
                }
                // One that takes another's place is told of what that one knew with the rest.
                let is_new = !queues.all.iter().any(|queue| of_name(&queue));
                queues.made += 1;
                let key = queue::key_of(&jail.name, action);
                let remembered = queues.remembered.as_mut().and_then(|all| all.remove(&key));
                let mut queue = ActionQueue::new(
                    queues.made,
                    &jail.name,
                    action,
                    shared.metrics.of(&jail.name, &action.name),
                    in_force(&jail.name).into_iter().map(ban_in_force).collect(),
                    remembered.unwrap_or_default(),
                );
                for (_, told) in meanwhile
                    .iter()
                    .filter(|(name, _)| is_new && *name == jail.name)
                {
                    if !queue.ban_meanwhile(told) {
                        shared.lost(&queue);
                    }
                }
                if queue.overflow > 0 {
                    shared.lost(&queue);
                    queue.counters.lost.add(queue.overflow as u64 - 1);
                }
                shared.save(&mut queue);
                queues.all.push(queue);
            }
        }
        if !observes {
            self.forget_removed(queues);
        }
        let is_named = |name: &str| jails.iter().any(|jail| jail.name == name);
        shared.metrics.keep_only(is_named);
        shared.captures().keep_only(is_named);
        let is_idle = queues.is_idle();
        shared.is_idle.store(is_idle, Relaxed);
        shared.work.notify_all();
        if !is_idle {
            self.start_threads();
        }
    }

    /// Actions that an earlier daemon ran, and that are no more: nobody knows their
    /// commands, so that what they were told stays where they have put it.
    fn forget_removed(&self, queues: &mut ActionQueues) {
        for (key, notices) in std::mem::take(&mut queues.remembered).unwrap_or_default() {
            let about = format!("action:{}/{}:removed", key.jail, key.action);
            let message = format!(
                "action {} of jail {} was removed or changed while weir did not run: {} bans that it was told of are not undone, and stay where it has put them (until the next reload)",
                key.action,
                key.jail,
                notices.len()
            );
            self.shared.alerts.raise(&about, message);
            queues.removed.push(about);
            let delete =
                |notice: ActionNotice| ActionNoticeChange::Delete(key.clone(), notice.subject);
            let changes = notices.into_iter().map(delete).map(Change::ActionNotice);
            self.shared.store.remember(changes);
        }
        queues.remembered = Some(HashMap::new());
    }

    fn start_threads(&self) {
        let mut threads = self.threads.lock().expect("no holder of this lock panics");
        while threads.len() < PROCESSES {
            let shared = self.shared.clone();
            match threads::spawn("weir-action", move || turn::work(&shared)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let message = format!("cannot start a thread for actions: {error}");
                    self.shared.alerts.raise("action", message);
                    return;
                }
            }
        }
        self.shared.alerts.clear("action");
    }

    /// A failure was found of whom this jail may ban, with what the filter has captured, by
    /// its names.
    pub(crate) fn captured(
        &self,
        jail: &JailConfig,
        finding: &Finding,
        values: &[(Arc<str>, String)],
        wanted: &[String],
    ) {
        let prefix = finding.offender.prefix();
        let Some(subject) = prefix.and_then(|who| BanTarget::new(who).ok()) else {
            return;
        };
        if self.shared.is_idle.load(Relaxed) {
            return;
        }
        let when = (finding.time, jail.limits.find_time);
        let added = (self.shared.captures()).add((&jail.name, subject), when, values, wanted);
        if !added {
            self.shared.metrics.captures_lost(&jail.name).inc();
        }
    }

    /// A ban came into force, or was made longer. `is_restored`: another program has made it,
    /// and has told whom that concerns.
    pub(crate) fn banned(&self, ban: &Ban, is_restored: bool) {
        let BanSource::Jail(jail) = &ban.producer else {
            return;
        };
        if self.shared.is_idle.load(Relaxed) {
            return;
        }
        let mut captured = self.shared.captures().take(jail, ban.subject);
        let mut queues = self.shared.queues();
        let mut told = None;
        let mut told = || {
            let notice = told.get_or_insert_with(|| {
                let captured = captured.take();
                Arc::new(BanNotice::of(ban, is_restored, captured))
            });
            notice.clone()
        };
        if let Some(meanwhile) = &mut queues.meanwhile
            && meanwhile.len() < MAX_BANS
        {
            meanwhile.push((jail.clone(), told()));
        }
        for queue in queues.of_jail(jail) {
            if !queue.ban(&told()) {
                self.shared.lost(queue);
            }
            self.shared.save(queue);
        }
        drop(queues);
        self.shared.work.notify_one();
    }

    /// A ban is over.
    pub(crate) fn ended(&self, subject: BanTarget, policy: &Policy) {
        let BanSource::Jail(jail) = &policy.producer else {
            return;
        };
        if self.shared.is_idle.load(Relaxed) {
            return;
        }
        let mut queues = self.shared.queues();
        if let Some(meanwhile) = &mut queues.meanwhile {
            meanwhile.retain(|(name, told)| name != jail || told.subject != subject);
        }
        for queue in queues.of_jail(jail) {
            if !queue.unban(subject) {
                self.shared.lost(queue);
            }
            self.shared.save(queue);
        }
        drop(queues);
        self.shared.work.notify_one();
    }

    /// All bans are about to be lifted, or all of one jail: actions that can undo them at
    /// once do.
    pub(crate) fn flush(&self, producer: Option<&BanSource>) {
        let mut queues = self.shared.queues();
        for queue in &mut queues.all {
            let is_meant = match producer {
                None => true,
                Some(BanSource::Jail(jail)) => *jail == queue.jail,
                Some(_) => false,
            };
            if is_meant && !queue.is_leaving {
                queue.flush();
                self.shared.save(queue);
            }
        }
        drop(queues);
        self.shared.work.notify_all();
    }

    /// Stops all actions. What waits has some seconds; what is not over then is ended.
    pub fn stop(&self) {
        let mut queues = self.shared.queues();
        for queue in &mut queues.all {
            queue.leave();
        }
        queues.stopping = true;
        drop(queues);
        self.shared.work.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().expect("no holder of this lock panics"));
        let deadline = Instant::now() + STOP_WITHIN;
        while threads.iter().any(|thread| !thread.is_finished()) {
            if Instant::now() > deadline {
                self.shared.ending.store(true, Relaxed);
            }
            self.shared.work.notify_all();
            thread::sleep(Duration::from_millis(5));
        }
        for thread in threads {
            thread.join().expect("a panic ends the daemon");
        }
        self.shared.leftovers().end();
        for queue in &self.shared.queues().all {
            let left = queue.waiting();
            if left > 0 {
                queue.counters.lost.add(left as u64);
                tracing::error!(
                    "action {} of jail {}: {} not run before the end",
                    queue.action.name,
                    queue.jail,
                    crate::counted(left as u64, "command was", "commands were")
                );
            }
        }
    }
}

impl ActionQueues {
    fn of_jail<'a>(&'a mut self, jail: &'a str) -> impl Iterator<Item = &'a mut ActionQueue> {
        let queues = self.all.iter_mut();
        queues.filter(move |queue| !queue.is_leaving && queue.jail == jail)
    }

    /// The next job, of a queue in which none runs.
    fn take(&mut self) -> Option<(u64, Job)> {
        let length = self.all.len();
        for step in 0..length {
            let at = (self.next + step) % length;
            let queue = &self.all[at];
            if queue.is_running || queue.waiting() == 0 || self.waits_for_another(at) {
                continue;
            }
            let queue = &mut self.all[at];
            if let Some(job) = queue.take() {
                self.next = at + 1;
                return Some((queue.number, job));
            }
        }
        None
    }

    /// Does an action wait until the one whose place it takes is stopped?
    fn waits_for_another(&self, at: usize) -> bool {
        let queue = &self.all[at];
        self.all[..at].iter().any(|before| {
            before.is_leaving
                && before.jail == queue.jail
                && before.action.name == queue.action.name
        })
    }

    fn is_idle(&self) -> bool {
        self.all.is_empty() && self.meanwhile.is_none()
    }

    fn by_number(&mut self, number: u64) -> Option<&mut ActionQueue> {
        self.all.iter_mut().find(|queue| queue.number == number)
    }
}

/// A ban in force as an action is told of it that begins now.
fn ban_in_force((subject, policy, until): (BanTarget, Arc<Policy>, Until)) -> BanInForce {
    BanInForce {
        notice: ActionNotice {
            subject,
            since: jiff::Timestamp::now(),
            until,
            failures: 0,
            is_restored: true,
            captured: None,
        },
        policy: Some(policy),
    }
}

#[cfg(test)]
mod tests;

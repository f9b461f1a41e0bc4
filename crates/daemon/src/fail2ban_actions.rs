//! The commands that Fail2ban's jails run beside a ban: mail, reports, other firewalls.
//! Each action of a jail has a queue, whose commands run one after the other; a few
//! threads run the queues. Whoever bans puts a job into a queue and never waits: a command
//! that hangs delays the other commands of its own queue until its timeout, and nothing
//! else. What a queue cannot hold is counted and told. The scripts are
//! `weir_fail2ban`'s; which values they see is in `values`, the process in
//! `command::child`.

mod queue;
mod values;

use std::{
    collections::VecDeque,
    io::Read,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{Ban, BanSource, BanTarget, policy::Ledger};
use weir_enforce::Policy;
use weir_events::alerts::Alerts;
use weir_fail2ban::Script;

use crate::{
    command::child::{Group, Rights},
    current::Current,
    jails::{JailCommands, JailConfig},
    metrics::ActionMetrics,
    threads,
};
use queue::{ActionQueue, BanNotice, Job};

/// Commands that run at a time.
const PROCESSES: usize = 4;
/// A thread looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// At a stop the queues have this long for what waits.
const STOP_WITHIN: Duration = Duration::from_secs(3);
/// What of a command's last words a message has, in bytes.
const SAID: usize = 300;

/// Runs the actions of the configuration in force.
pub struct Fail2banActions {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    queues: Mutex<ActionQueues>,
    work: Condvar,
    /// Whether no command is to run, so that no thread that bans takes a lock.
    is_idle: AtomicBool,
    /// Whether running commands are to be ended.
    ending: AtomicBool,
    alerts: Arc<Alerts>,
    metrics: ActionMetrics,
    ledger: Arc<Current<Ledger>>,
}

#[derive(Default)]
struct ActionQueues {
    all: Vec<ActionQueue>,
    /// Where the search for the next job begins.
    next: usize,
    /// Each has a number of its own.
    made: u64,
    stopping: bool,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, ActionQueues> {
        self.queues.lock().expect("no holder of this lock panics")
    }
}

impl Fail2banActions {
    /// No action runs yet.
    pub fn new(alerts: Arc<Alerts>, metrics: ActionMetrics, ledger: Arc<Current<Ledger>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                queues: Mutex::default(),
                work: Condvar::new(),
                is_idle: AtomicBool::new(true),
                ending: AtomicBool::new(false),
                alerts,
                metrics,
                ledger,
            }),
            threads: Mutex::default(),
        }
    }

    /// Runs the actions of these jails: one that is as before goes on; any other is
    /// stopped or started. `in_force` says whom a jail has banned already, and until when.
    pub fn run(
        &self,
        jails: &[JailConfig],
        in_force: impl Fn(&str) -> Vec<(BanTarget, Option<Timestamp>)>,
    ) {
        let shared = &self.shared;
        let mut queues = shared.queues();
        let is_wanted = |queue: &ActionQueue| {
            let jail = jails.iter().find(|jail| jail.name == queue.jail);
            jail.is_some_and(|jail| jail.commands.contains(&queue.action))
        };
        for queue in queues.all.iter_mut().filter(|queue| !queue.is_leaving) {
            if !is_wanted(queue) {
                queue.leave();
                shared.alerts.forget(&queue.about);
                shared.alerts.forget(&queue.about_queue);
            }
        }
        for jail in jails {
            for action in &jail.commands {
                let is_there = queues.all.iter().any(|queue| {
                    !queue.is_leaving && queue.jail == jail.name && queue.action == *action
                });
                if !is_there {
                    queues.made += 1;
                    let number = queues.made;
                    let counters = shared.metrics.of(&jail.name, &action.name);
                    let queue = ActionQueue::new(
                        number,
                        &jail.name,
                        action,
                        counters,
                        in_force(&jail.name),
                    );
                    queues.all.push(queue);
                }
            }
        }
        let is_named = |name: &str| jails.iter().any(|jail| jail.name == name);
        shared.metrics.keep_only(is_named);
        let is_idle = queues.all.is_empty();
        drop(queues);
        shared.is_idle.store(is_idle, Relaxed);
        shared.work.notify_all();
        if !is_idle {
            self.start_threads();
        }
    }

    fn start_threads(&self) {
        let mut threads = self.threads.lock().expect("no holder of this lock panics");
        while threads.len() < PROCESSES {
            let shared = self.shared.clone();
            match threads::spawn("weir-action", move || work(&shared)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let message = format!("cannot start a thread for actions: {error}");
                    self.shared.alerts.raise("action", message);
                    return;
                }
            }
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
        let mut queues = self.shared.queues();
        let mut told = None;
        for queue in queues.of_jail(jail) {
            let told = told.get_or_insert_with(|| Arc::new(BanNotice::of(ban, is_restored)));
            if !queue.ban(told) {
                self.lost(queue);
            }
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
        for queue in queues.of_jail(jail) {
            if !queue.unban(subject) {
                self.lost(queue);
            }
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
            }
        }
        drop(queues);
        self.shared.work.notify_all();
    }

    fn lost(&self, queue: &ActionQueue) {
        queue.counters.lost.inc();
        let message = format!(
            "as many commands of action {} wait in jail {} as may: further ones are not run, `weir metrics` says how many",
            queue.action.name, queue.jail
        );
        self.shared.alerts.raise(&queue.about_queue, message);
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
        for queue in &self.shared.queues().all {
            let left = queue.waiting();
            if left > 0 {
                queue.counters.lost.add(left as u64);
                tracing::error!(
                    "action {} of jail {}: {left} commands were not run before the end",
                    queue.action.name,
                    queue.jail
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
            let queue = &mut self.all[at];
            if let Some(job) = queue.take() {
                self.next = at + 1;
                return Some((queue.number, job));
            }
        }
        None
    }

    fn by_number(&mut self, number: u64) -> Option<&mut ActionQueue> {
        self.all.iter_mut().find(|queue| queue.number == number)
    }
}

/// The life of a thread.
fn work(shared: &Shared) {
    loop {
        let mut queues = shared.queues();
        let (number, job) = loop {
            if shared.ending.load(Relaxed) {
                return;
            }
            if let Some(taken) = queues.take() {
                break taken;
            }
            if queues.stopping {
                return;
            }
            let waited = shared.work.wait_timeout(queues, WAIT);
            queues = waited.expect("no holder of this lock panics").0;
        };
        let Some(queue) = queues.by_number(number) else {
            continue;
        };
        let mut turn = Turn {
            shared,
            jail: queue.jail.clone(),
            action: queue.action.clone(),
            again: VecDeque::new(),
            number,
        };
        drop(queues);
        let result = turn.carry_out(&job);
        let mut queues = shared.queues();
        if let Some(queue) = queues.by_number(number) {
            queue.is_running = false;
            report(shared, queue, result);
            if queue.is_leaving && queue.waiting() == 0 {
                queues.all.retain(|queue| queue.number != number);
            }
        }
        shared.is_idle.store(queues.all.is_empty(), Relaxed);
        drop(queues);
        shared.work.notify_one();
    }
}

/// Which command it was, and why it failed.
type Done = Option<(&'static str, Result<(), String>)>;

fn report(shared: &Shared, queue: &mut ActionQueue, ran: Done) {
    let Some((key, result)) = ran else {
        return;
    };
    queue.counters.runs.inc();
    if queue.waiting() == 0 && !queue.is_leaving {
        shared.alerts.clear(&queue.about_queue);
    }
    match result {
        Ok(()) => {
            // Another command that works says nothing of the one that does not.
            if queue.failing == Some(key) {
                queue.failing = None;
                shared.alerts.clear(&queue.about);
            }
        }
        Err(why) => {
            queue.counters.failures.inc();
            let message = format!(
                "{key} of action {} in jail {} {why}",
                queue.action.name, queue.jail
            );
            if queue.is_leaving {
                tracing::error!("{}", weir_core::text::escape(&message));
                return;
            }
            queue.failing = Some(key);
            shared.alerts.raise(&queue.about, message);
        }
    }
}

/// One job of a queue, while the queue is this thread's.
struct Turn<'a> {
    shared: &'a Shared,
    jail: String,
    action: JailCommands,
    /// Bans that are to be made again, after a repair.
    again: VecDeque<BanTarget>,
    number: u64,
}

impl Turn<'_> {
    fn carry_out(&mut self, job: &Job) -> Done {
        let commands = self.action.commands.clone();
        let of = |told: &BanNotice| {
            &commands.families[usize::from(told.subject.prefix().addr().is_ipv6())]
        };
        let [v4, _] = &commands.families;
        let (key, script, told) = match job {
            Job::Start => ("actionstart", &v4.start, None),
            Job::Stop => ("actionstop", &v4.stop, None),
            Job::Flush => ("actionflush", &v4.flush, None),
            Job::Ban(told) => ("actionban", &of(told).ban, Some(&**told)),
            Job::Prolong(told) => ("actionprolong", &of(told).prolong, Some(&**told)),
            Job::Unban(told) => ("actionunban", &of(told).unban, Some(told)),
        };
        let script = script.as_ref()?;
        let mut result = self.run(script, told);
        if result.is_err()
            && let Job::Ban(told) = job
            && self.repaired(told)
        {
            result = self.run(script, Some(told));
        }
        Some((key, result))
    }

    /// Asks the action whether it is as it should be, has it set up anew if it is not,
    /// and tells it of all bans but this one again.
    fn repaired(&mut self, told: &BanNotice) -> bool {
        let commands = self.action.commands.clone();
        let family = &commands.families[usize::from(told.subject.prefix().addr().is_ipv6())];
        let Some(check) = &family.check else {
            return false;
        };
        if self.run(check, None).is_ok() {
            return false;
        }
        match &family.repair {
            Some(repair) => _ = self.run(repair, None),
            None => {
                for script in [&family.stop, &family.start].into_iter().flatten() {
                    let _ = self.run(script, None);
                }
            }
        }
        if self.run(check, None).is_err() {
            return false;
        }
        if let Some(queue) = self.shared.queues().by_number(self.number) {
            self.again = queue
                .told_of()
                .filter(|other| *other != told.subject)
                .collect();
        }
        while let Some(subject) = self.again.pop_front() {
            if self.shared.ending.load(Relaxed) {
                break;
            }
            let told = BanNotice::again(subject, None);
            let family = &commands.families[usize::from(subject.prefix().addr().is_ipv6())];
            if let Some(script) = family.reban.as_ref().or(family.ban.as_ref()) {
                let _ = self.run(script, Some(&told));
            }
        }
        true
    }

    fn run(&self, script: &Script, told: Option<&BanNotice>) -> Result<(), String> {
        let environment =
            values::environment(script, told, &self.jail, self.action.max_matches, || {
                let ledger = self.shared.ledger.get();
                let jail = ledger.jail(&self.jail)?;
                Some(ledger.offences(jail, told?.subject)?.0)
            });
        let is_ending = || self.shared.ending.load(Relaxed);
        match run_script(
            script,
            &environment,
            self.action.commands.timeout,
            is_ending,
        )? {
            (Some(0), _) => Ok(()),
            (code, said) => Err(ended_with(code, &said)),
        }
    }
}

/// What a command answers by its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ran {
    /// The command ended with exit code 0.
    Yes,
    /// The command ended with exit code 1.
    No,
    /// The command failed, for this reason.
    Failed(String),
}

/// Asks a command about an address of a jail. `is_over` is looked at while it runs.
pub(crate) fn ask(
    script: &Script,
    jail: &str,
    subject: BanTarget,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Ran {
    let told = BanNotice::again(subject, None);
    let environment = values::environment(script, Some(&told), jail, 0, || None);
    match run_script(script, &environment, timeout, is_over) {
        Ok((Some(0), _)) => Ran::Yes,
        Ok((Some(1), _)) => Ran::No,
        Ok((code, said)) => Ran::Failed(ended_with(code, &said)),
        Err(why) => Ran::Failed(why),
    }
}

fn ended_with(code: Option<i32>, said: &str) -> String {
    let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    match said.trim() {
        "" => format!("ended with {code}"),
        said => format!("ended with {code}: {said}"),
    }
}

/// Runs a script to its end, or ends it: its exit code, and its last words.
fn run_script(
    script: &Script,
    environment: &[(&'static str, String)],
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<(Option<i32>, String), String> {
    let command = ["/bin/sh", "-c", &script.text].map(str::to_owned);
    let started = Group::start(Rights::Daemon, environment, &command);
    let mut group = started.map_err(|error| format!("cannot be started: {error}"))?;
    let ends = Instant::now() + timeout;
    let mut said = Vec::new();
    loop {
        // (The supervisor has the pipes open as long as it lives.)
        group.wait(WAIT.min(ends.saturating_duration_since(Instant::now())));
        let has_ended = group.has_ended();
        let mut bytes = [0; 4096];
        for _ in 0..16 {
            let output = group.output().map(|pipe| pipe.read(&mut bytes));
            if !matches!(output, Some(Ok(1..))) {
                break;
            }
        }
        for _ in 0..16 {
            match group.complaints().map(|pipe| pipe.read(&mut bytes)) {
                Some(Ok(count @ 1..)) => {
                    said.extend_from_slice(&bytes[..count]);
                    let surplus = said.len().saturating_sub(SAID);
                    said.drain(..surplus);
                }
                _ => break,
            }
        }
        if has_ended {
            let status = group.end().map_err(|error| error.to_string())?;
            return Ok((status.code(), String::from_utf8_lossy(&said).into_owned()));
        }
        if Instant::now() >= ends {
            group.kill();
            let time = weir_core::policy::format_duration(timeout);
            return Err(format!(
                "took longer than its timeout of {time} and was ended"
            ));
        }
        if is_over() {
            group.kill();
            return Err("was ended with the daemon".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;

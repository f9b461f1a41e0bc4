//! The threads that run the queues, and what they do with one job.

use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use weir_enforce::{Entry, Expiry};
use weir_fail2ban::{FamilyCommands, Script};
use weir_metrics::Counter;

use super::{
    Shared, WAIT,
    notice::BanNotice,
    process::{Ended, ended_with, run_script},
    queue::{ActionQueue, Job, is_same},
    values,
};
use crate::jails::JailCommands;

/// The life of a thread.
pub(super) fn work(shared: &Shared) {
    loop {
        shared.leftovers().reap();
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
            drop(waited.expect("no holder of this lock panics"));
            shared.leftovers().reap();
            queues = shared.queues();
        };
        let Some(queue) = queues.by_number(number) else {
            continue;
        };
        let mut turn = Turn {
            shared,
            jail: queue.jail.clone(),
            action: queue.action.clone(),
            started: queue.started,
            on_demand: queue.starts_on_demand(),
            detail: None,
            number,
            leftovers_ended: queue.counters.leftovers_ended.clone(),
        };
        drop(queues);
        let ran = turn.carry_out(&job);
        let mut queues = shared.queues();
        if let Some(queue) = queues.by_number(number) {
            queue.is_running = false;
            queue.started = turn.started;
            let was_ended = shared.ending.load(Relaxed);
            let is_done = ran.last().is_none_or(|(_, result)| result.is_ok());
            // What the end of the daemon has ended is told by the next one.
            if is_done || !was_ended {
                queue.has_ended(&job, is_done, turn.detail);
            }
            shared.save(queue);
            for (key, result) in ran {
                report(shared, queue, key, result);
            }
            if let Some((done, total)) = queue.progress() {
                tracing::info!(
                    "action {} of jail {} is removed: {done} of the {total} bans that it was told of are undone",
                    queue.action.name,
                    queue.jail
                );
            }
            if queue.is_leaving && queue.waiting() == 0 {
                let message = has_left(queue);
                let about = format!("{}:removed", queue.about);
                queues.all.retain(|queue| queue.number != number);
                if let Some(message) = message {
                    queues.removed.push(about.clone());
                    shared.alerts.raise(&about, message);
                }
            }
        }
        shared.is_idle.store(queues.is_idle(), Relaxed);
        drop(queues);
        shared.work.notify_one();
    }
}

/// Says how a removed action has ended: what it has not undone is an alert.
fn has_left(queue: &ActionQueue) -> Option<String> {
    let undoing = queue.undoing.as_ref()?;
    let (name, jail, total) = (&queue.action.name, &queue.jail, undoing.total);
    let removed = format!("action {name} of jail {jail} is removed:");
    match (undoing.failed, undoing.failing) {
        (0, None) => {
            tracing::info!("{removed} {total} bans that it was told of are undone");
            None
        }
        (0, Some(key)) => Some(format!(
            "{removed} its {key} has failed, and what it was told may stay where it has put it; the log says why (until the next reload)"
        )),
        (failed, _) => Some(format!(
            "{removed} {failed} of the {total} bans that it was told of are not undone, and stay where it has put them; the log says why (until the next reload)"
        )),
    }
}

fn report(shared: &Shared, queue: &mut ActionQueue, key: &'static str, result: Result<(), String>) {
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
                if let Some(undoing) = &mut queue.undoing {
                    undoing.failing.get_or_insert(key);
                }
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
    started: [bool; 2],
    on_demand: bool,
    /// What the database knows of an older ban: when it began, and its failures.
    detail: Option<(Timestamp, u32)>,
    number: u64,
    leftovers_ended: Counter,
}

/// Which commands were run, and why they failed.
type Results = Vec<(&'static str, Result<(), String>)>;

impl Turn<'_> {
    fn family(&self, family: usize) -> &FamilyCommands {
        &self.action.commands.families[family]
    }

    fn carry_out(&mut self, job: &Job) -> Results {
        match job {
            Job::Start => {
                self.started = [true; 2];
                self.run_for_families("actionstart", |one| one.start.as_ref())
            }
            Job::Stop => self.run_for_families("actionstop", |one| one.stop.as_ref()),
            Job::Flush => self.run_for_families("actionflush", |one| one.flush.as_ref()),
            Job::Ban(told) => self.ban("actionban", told, |one| one.ban.as_ref()),
            Job::Restored(told, policy) => {
                let mut told = told.clone();
                let entry = policy.clone().map(|policy| Entry {
                    subject: told.subject,
                    policy,
                    expiry: Expiry::Never,
                });
                let details = entry.map(|entry| self.shared.store.details(&[entry]));
                if let Some(detail) = details.into_iter().flatten().flatten().next() {
                    told.failures = u32::try_from(detail.evidence.len()).unwrap_or(u32::MAX);
                    told.matches = detail.evidence;
                    self.detail = Some((detail.since, told.failures));
                }
                self.ban("actionban", &told, |one| one.ban.as_ref())
            }
            Job::Reban(told) => match self.family(told.family()).reban.is_some() {
                true => self.ban("actionreban", told, |one| one.reban.as_ref()),
                false => self.ban("actionban", told, |one| one.ban.as_ref()),
            },
            Job::Prolong(told) => {
                let script = self.family(told.family()).prolong.clone();
                let run = |script| {
                    (
                        "actionprolong",
                        self.run(&script, Some(told), told.family()),
                    )
                };
                script.map(run).into_iter().collect()
            }
            Job::Unban(told) => self.unban(told),
        }
    }

    /// Runs a command of the families that were started: once, if it is the same for both.
    fn run_for_families(
        &self,
        key: &'static str,
        of: impl Fn(&FamilyCommands) -> Option<&Script>,
    ) -> Results {
        let commands = self.action.commands.clone();
        let [v4, v6] = [0, 1].map(|family| of(&commands.families[family]));
        let is_once = self.started == [true; 2] && is_same([v4, v6]);
        [v4, v6.filter(|_| !is_once)]
            .into_iter()
            .enumerate()
            .filter(|(family, _)| self.started[*family])
            .filter_map(|(family, script)| Some((key, self.run(script?, None, family))))
            .collect()
    }

    /// Starts the action for the first ban of a family, if it waits for that.
    fn start_on_demand(&mut self, family: usize) -> Results {
        if !self.on_demand || self.started[family] {
            return Results::new();
        }
        let commands = self.action.commands.clone();
        let start = [0, 1].map(|family| commands.families[family].start.as_ref());
        let is_there = self.started[1 - family] && is_same(start);
        let Some(script) = start[family].filter(|_| !is_there) else {
            self.started[family] = true;
            return Results::new();
        };
        let result = self.run(script, None, family);
        // One that fails is tried again with the next ban.
        self.started[family] = result.is_ok();
        vec![("actionstart", result)]
    }

    fn ban(
        &mut self,
        key: &'static str,
        told: &BanNotice,
        of: impl Fn(&FamilyCommands) -> Option<&Script>,
    ) -> Results {
        let commands = self.action.commands.clone();
        let family = told.family();
        let Some(script) = of(&commands.families[family]) else {
            return Results::new();
        };
        let mut ran = self.start_on_demand(family);
        let mut result = self.run(script, Some(told), family);
        if result.is_err() && self.repaired(told) {
            result = self.run(script, Some(told), family);
        }
        ran.push((key, result));
        ran
    }

    /// Tells the end of a ban. One that fails says nothing of the action, unless it is to be
    /// repaired then, too.
    fn unban(&mut self, told: &BanNotice) -> Results {
        let family = told.family();
        let Some(script) = self.family(family).unban.clone() else {
            return Results::new();
        };
        let mut result = self.run(&script, Some(told), family);
        if result.is_err() && self.action.commands.repair_on_unban && self.repaired(told) {
            let commands = self.family(family);
            result = match commands.repair.is_none() && commands.start.is_some() {
                // It was set up anew, and holds nothing against anybody.
                true => Ok(()),
                false => self.run(&script, Some(told), family),
            };
        }
        vec![("actionunban", result)]
    }

    /// Asks the action whether it is as it should be, and has it set up anew if it is not;
    /// what it was told before then waits to be told again.
    fn repaired(&mut self, told: &BanNotice) -> bool {
        let commands = self.action.commands.clone();
        let own = told.family();
        let [family, other] = [own, 1 - own].map(|family| &commands.families[family]);
        let Some(check) = &family.check else {
            return false;
        };
        if self.run(check, None, own).is_ok() {
            return false;
        }
        let is_shared = match &family.repair {
            Some(repair) => {
                let _ = self.run(repair, None, own);
                is_same([Some(repair), other.repair.as_ref()])
            }
            None => {
                for script in [&family.stop, &family.start].into_iter().flatten() {
                    let _ = self.run(script, None, own);
                }
                is_same([family.start.as_ref(), other.start.as_ref()])
            }
        };
        if self.run(check, None, own).is_err() {
            return false;
        }
        self.started[own] = true;
        let is_empty = family.repair.is_none() && family.start.is_some();
        if let Some(queue) = self.shared.queues().by_number(self.number) {
            let families = [is_shared || own == 0, is_shared || own == 1];
            queue.lose(families, is_empty, told.subject);
            self.shared.save(queue);
        }
        true
    }

    fn run(&self, script: &Script, told: Option<&BanNotice>, family: usize) -> Result<(), String> {
        let max_matches = self.action.max_matches;
        let environment =
            values::environment(script, told, family, &self.jail, max_matches, || {
                let ledger = self.shared.ledger.get();
                let jail = ledger.jail(&self.jail)?;
                Some(ledger.offences(jail, told?.subject)?.0)
            });
        let is_ending = || self.shared.ending.load(Relaxed);
        let timeout = self.action.commands.timeout;
        let Ended { code, said, left } =
            run_script(script, &environment, timeout, true, is_ending)?;
        if let Some(group) = left {
            let ended = self.leftovers_ended.clone();
            let goes = self.shared.leftovers().keep(self.number, group, ended);
            if let Some(mut group) = goes {
                group.kill();
            }
        }
        match code {
            Some(0) => Ok(()),
            code => Err(ended_with(code, &said)),
        }
    }
}

//! The commands of one action in one jail that wait, and whom it has been told of.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::BanTarget;
use weir_enforce::Policy;
use weir_fail2ban::{FamilyCommands, Script, Tag};

use super::notice::{BanNotice, family};
use crate::{
    jails::JailCommands,
    metrics::ActionCounters,
    store::{ActionKey, ActionNotice, ActionNoticeChange, Change, number_of_texts},
};

/// Bans that wait for their commands.
pub(super) const MAX_BANS: usize = 1_000;
/// Jobs that wait in all: an end that is not told leaves somebody banned elsewhere, and
/// costs little room.
pub(super) const MAX_JOBS: usize = 100_000;
/// Bans of which one action knows: further ones are not told to it.
pub(super) const MAX_KNOWN: usize = 100_000;
/// An action that was removed has this long to undo what it was told.
pub(super) const UNDO_WITHIN: Duration = Duration::from_secs(600);
/// The log says this often how far that has come.
const PROGRESS: Duration = Duration::from_secs(10);

/// One command that is to run.
#[derive(Debug, PartialEq)]
pub(super) enum Job {
    Start,
    Stop,
    Flush,
    Ban(Arc<BanNotice>),
    /// A ban that is older than the action, and whose lines the database may have.
    Restored(BanNotice, Option<Arc<Policy>>),
    /// A ban that the action was told of, and has lost.
    Reban(BanNotice),
    Prolong(Arc<BanNotice>),
    Unban(BanNotice),
}

/// A ban that is in force when an action begins.
#[derive(Debug, Clone)]
pub(super) struct BanInForce {
    pub notice: ActionNotice,
    pub policy: Option<Arc<Policy>>,
}

/// What an action knows of somebody who is banned.
#[derive(Debug, Clone, PartialEq)]
enum Knows {
    /// The command that tells the action of the ban waits in the queue.
    Queued,
    /// The command that tells the action of the ban runs.
    Running,
    /// The command that tells the action of the ban has failed.
    Tried,
    /// The action was told of the ban.
    Told,
    /// The action waits to be told of a ban that was there before.
    Restored(Option<Arc<Policy>>),
    /// The action was told of the ban, has lost it, and waits to be told again.
    Lost,
    /// The action is not told of a ban that was there before.
    Nothing,
}

impl Knows {
    /// Does it wait behind all new bans?
    fn waits(&self) -> bool {
        matches!(self, Self::Restored(_) | Self::Lost)
    }
}

/// How far an action that was removed has come with undoing what it was told.
#[derive(Debug)]
pub(super) struct Undoing {
    ends: Instant,
    logged: Instant,
    pub total: usize,
    pub left: usize,
    /// Ends whose command failed, or that were not told in time.
    pub failed: usize,
    /// The first command that failed.
    pub failing: Option<&'static str>,
}

pub(super) struct ActionQueue {
    pub number: u64,
    pub jail: String,
    pub action: JailCommands,
    pub counters: ActionCounters,
    /// The subjects of the queue's alerts.
    pub about: String,
    pub about_queue: String,
    /// The command that failed last, until it works.
    pub failing: Option<&'static str>,
    pub is_running: bool,
    /// For IPv4 and IPv6: whether actionstart has run.
    pub started: [bool; 2],
    /// The action was removed: no new jobs come, and the queue goes when it is empty.
    pub is_leaving: bool,
    /// What a removed action has to undo.
    pub undoing: Option<Undoing>,
    /// What the database is to remember.
    pub changes: Vec<Change>,
    /// How many bans that were in force at its beginning found no room.
    pub overflow: usize,
    key: ActionKey,
    /// It keeps what it was told beyond the stop of a daemon.
    keeps: bool,
    jobs: VecDeque<Job>,
    bans: usize,
    /// Bans that are told when nothing else waits.
    pending: VecDeque<BanTarget>,
    known: HashMap<BanTarget, (Knows, ActionNotice)>,
}

/// Does this command do the same for both families?
pub(super) fn is_same(of: [Option<&Script>; 2]) -> bool {
    let names_family = |script: &Script| script.tags.contains(&Tag::Family);
    of[0] == of[1] && !of[0].is_some_and(names_family)
}

/// The key of an action of a jail.
pub(super) fn key_of(jail: &str, action: &JailCommands) -> ActionKey {
    let families = &action.commands.families;
    let texts = families.iter().flat_map(|one| {
        let all = [&one.ban, &one.unban, &one.prolong, &one.reban];
        all.map(|script| script.as_ref().map_or("", |script| script.text.as_str()))
    });
    ActionKey {
        jail: jail.to_owned(),
        action: action.name.clone(),
        commands: number_of_texts(texts),
    }
}

impl ActionQueue {
    /// Begins with actionstart, or has it wait for the first ban of a family. `remembered` is
    /// what an action was told by an earlier daemon: one without start, stop and flush has
    /// kept that. It is told of all other bans in force.
    pub fn new(
        number: u64,
        jail: &str,
        action: &JailCommands,
        counters: ActionCounters,
        in_force: Vec<BanInForce>,
        remembered: Vec<ActionNotice>,
    ) -> Self {
        let about = format!("action:{jail}/{}", action.name);
        let mut queue = Self {
            number,
            jail: jail.to_owned(),
            action: action.clone(),
            counters,
            about_queue: format!("{about}:queue"),
            about,
            failing: None,
            is_running: false,
            started: [false; 2],
            is_leaving: false,
            undoing: None,
            changes: Vec::new(),
            overflow: 0,
            key: key_of(jail, action),
            keeps: false,
            jobs: VecDeque::new(),
            bans: 0,
            pending: VecDeque::new(),
            known: HashMap::new(),
        };
        if !queue.starts_on_demand() {
            queue.jobs.push_back(Job::Start);
        }
        if !queue.has(|family| family.ban.is_some() || family.unban.is_some()) {
            return queue;
        }
        queue.keeps =
            !queue.has(|one| one.start.is_some() || one.stop.is_some() || one.flush.is_some());
        let mut told: HashMap<_, _> = remembered
            .into_iter()
            .map(|notice| (notice.subject, notice))
            .collect();
        for ban in in_force {
            let subject = ban.notice.subject;
            if queue.known.contains_key(&subject) {
                continue;
            }
            if queue.known.len() >= MAX_KNOWN {
                queue.overflow += 1;
                continue;
            }
            let known = match told.remove(&subject).filter(|_| queue.keeps) {
                Some(told) => {
                    let until = ban.notice.until;
                    (Knows::Told, ActionNotice { until, ..told })
                }
                None if queue.action.commands.norestored => (Knows::Nothing, ban.notice),
                None => {
                    queue.pending.push_back(subject);
                    (Knows::Restored(ban.policy), ban.notice)
                }
            };
            queue.known.insert(subject, known);
        }
        // They have ended while no daemon ran.
        if queue.keeps {
            for notice in told.into_values() {
                queue.end(&notice);
            }
        }
        queue
    }

    fn has(&self, which: impl Fn(&FamilyCommands) -> bool) -> bool {
        self.action.commands.families.iter().any(which)
    }

    fn commands_of(&self, subject: BanTarget) -> &FamilyCommands {
        &self.action.commands.families[family(subject)]
    }

    /// Does actionstart wait for the first ban of a family, as actionstart_on_demand says or,
    /// without it, because the families differ?
    pub fn starts_on_demand(&self) -> bool {
        let commands = &self.action.commands;
        let [v4, v6] = &commands.families;
        commands.start_on_demand.unwrap_or(v4 != v6)
    }

    fn remember(&mut self, change: impl FnOnce(ActionKey) -> ActionNoticeChange) {
        if self.keeps {
            let change = change(self.key.clone());
            self.changes.push(Change::ActionNotice(change));
        }
    }

    /// Takes a ban in; `false` if there is no room.
    pub fn ban(&mut self, told: &Arc<BanNotice>) -> bool {
        if !self.has(|family| family.ban.is_some() || family.unban.is_some()) {
            return true;
        }
        let subject = told.subject;
        let is_told = match self.known.get_mut(&subject) {
            Some((knows, known)) if !matches!(knows, Knows::Tried | Knows::Nothing) => {
                let is_restored = known.is_restored;
                *known = ActionNotice {
                    is_restored,
                    ..told.remembered()
                };
                // One that waits is told of it with the others.
                Some((!knows.waits(), *knows == Knows::Told, known.clone()))
            }
            _ => None,
        };
        if let Some((has_command, is_told, known)) = is_told {
            if is_told {
                self.remember(|key| ActionNoticeChange::Put(key, known));
            }
            return match has_command && self.commands_of(subject).prolong.is_some() {
                true => self.push(Job::Prolong(told.clone())),
                false => true,
            };
        }
        if !self.known.contains_key(&subject) && self.known.len() >= MAX_KNOWN {
            return false;
        }
        if told.is_restored && self.action.commands.norestored {
            self.known
                .insert(subject, (Knows::Nothing, told.remembered()));
            return true;
        }
        let has_room = self.push(Job::Ban(told.clone()));
        if has_room {
            self.known
                .insert(subject, (Knows::Queued, told.remembered()));
        }
        has_room
    }

    /// Takes a ban in that came into force while the action began: it is not an older one.
    pub fn ban_meanwhile(&mut self, told: &Arc<BanNotice>) -> bool {
        if let Some((Knows::Restored(_) | Knows::Nothing, _)) = self.known.get(&told.subject) {
            self.known.remove(&told.subject);
        }
        self.ban(told)
    }

    /// Takes the end of a ban in; `false` if there is no room.
    pub fn unban(&mut self, subject: BanTarget) -> bool {
        match self.known.remove(&subject) {
            Some((Knows::Queued | Knows::Running | Knows::Tried | Knows::Told, notice)) => {
                self.end(&notice)
            }
            // It has lost it.
            Some((Knows::Lost, _)) => {
                self.remember(|key| ActionNoticeChange::Delete(key, subject));
                true
            }
            Some(_) | None => true,
        }
    }

    fn end(&mut self, notice: &ActionNotice) -> bool {
        if self.commands_of(notice.subject).unban.is_some() {
            return self.push(Job::Unban(BanNotice::of_told(notice)));
        }
        self.remember(|key| ActionNoticeChange::Delete(key, notice.subject));
        true
    }

    /// Undoes all bans, if it can at once: the end of each need not be told.
    pub fn flush(&mut self) {
        let families = &self.action.commands.clone().families;
        let flushes = |who: BanTarget| families[family(who)].flush.is_some();
        if self.has(|family| family.flush.is_some()) {
            self.known.retain(|subject, _| !flushes(*subject));
            self.pending.retain(|subject| !flushes(*subject));
            let is_undone = |job: &Job| matches!(job, Job::Unban(told) if flushes(told.subject));
            self.jobs.retain(|job| !is_undone(job));
            self.jobs.push_back(Job::Flush);
        }
    }

    /// Nothing new comes, and the action is stopped.
    pub fn leave(&mut self) {
        if self.is_leaving {
            return;
        }
        self.pending.clear();
        if self.has(|family| family.flush.is_some()) {
            self.jobs.push_back(Job::Flush);
        }
        self.jobs.push_back(Job::Stop);
        self.is_leaving = true;
    }

    /// The same for an action that was removed: what it was told is undone before.
    pub fn leave_and_undo(&mut self) {
        if self.is_leaving {
            return;
        }
        // Of whom it was not told yet, it need not be. A message is sent all the same.
        let families = &self.action.commands.clone().families;
        let undoes = |who: BanTarget| families[family(who)].unban.is_some();
        let mut dropped = Vec::new();
        self.jobs.retain(|job| match job {
            Job::Ban(told) if undoes(told.subject) => {
                dropped.push(told.subject);
                false
            }
            Job::Prolong(told) => !undoes(told.subject),
            _ => true,
        });
        self.bans = self.bans_waiting();
        for subject in dropped {
            if let Some((Knows::Queued, _)) = self.known.get(&subject) {
                self.known.remove(&subject);
            }
        }
        self.flush();
        for (knows, notice) in std::mem::take(&mut self.known).into_values() {
            if !matches!(knows, Knows::Told | Knows::Tried | Knows::Running) {
                continue;
            }
            match undoes(notice.subject) {
                // There is room: known bans are bounded.
                true => self.jobs.push_back(Job::Unban(BanNotice::of_told(&notice))),
                false => {
                    self.remember(|key| ActionNoticeChange::Delete(key, notice.subject));
                }
            }
        }
        self.pending.clear();
        self.jobs.push_back(Job::Stop);
        self.is_leaving = true;
        let is_end = |job: &&Job| matches!(job, Job::Unban(_));
        let total = self.jobs.iter().filter(is_end).count();
        let now = Instant::now();
        self.undoing = Some(Undoing {
            ends: now + UNDO_WITHIN,
            logged: now,
            total,
            left: total,
            failed: 0,
            failing: None,
        });
    }

    fn bans_waiting(&self) -> usize {
        let is_ban = |job: &&Job| matches!(job, Job::Ban(_) | Job::Prolong(_));
        self.jobs.iter().filter(is_ban).count()
    }

    fn push(&mut self, job: Job) -> bool {
        let is_ban = !matches!(job, Job::Unban(_));
        if self.jobs.len() >= MAX_JOBS || (is_ban && self.bans >= MAX_BANS) {
            return false;
        }
        self.bans += usize::from(is_ban);
        self.jobs.push_back(job);
        true
    }

    /// Takes the next job, unless a command runs.
    pub fn take(&mut self) -> Option<Job> {
        if self.is_running {
            return None;
        }
        self.give_up_if_late(Instant::now());
        let job = match self.jobs.pop_front() {
            Some(job) => {
                self.bans -= usize::from(matches!(job, Job::Ban(_) | Job::Prolong(_)));
                if let Job::Ban(told) = &job
                    && let Some((knows @ Knows::Queued, _)) = self.known.get_mut(&told.subject)
                {
                    *knows = Knows::Running;
                }
                job
            }
            None => self.next_pending()?,
        };
        self.is_running = true;
        Some(job)
    }

    /// Ends of a removed action that are late are not told: the action is stopped.
    pub fn give_up_if_late(&mut self, now: Instant) {
        if let Some(undoing) = &mut self.undoing
            && now >= undoing.ends
        {
            self.jobs
                .retain(|job| matches!(job, Job::Flush | Job::Stop));
            self.bans = 0;
            self.counters.lost.add(undoing.left as u64);
            undoing.failed += undoing.left;
            undoing.left = 0;
        }
    }

    fn next_pending(&mut self) -> Option<Job> {
        while let Some(subject) = self.pending.pop_front() {
            // It may be over since.
            let Some((knows, notice)) = self.known.get_mut(&subject) else {
                continue;
            };
            let job = match knows {
                Knows::Restored(policy) => {
                    notice.is_restored = true;
                    Job::Restored(BanNotice::from_now(notice), policy.take())
                }
                Knows::Lost => Job::Reban(BanNotice::from_now(notice)),
                _ => continue,
            };
            *knows = Knows::Running;
            return Some(job);
        }
        None
    }

    /// Takes in how a job has ended. `detail` is what the database knew of an older ban: when
    /// it began, and how many failures led to it.
    pub fn has_ended(&mut self, job: &Job, is_done: bool, detail: Option<(Timestamp, u32)>) {
        let subject = match job {
            Job::Unban(told) => {
                let subject = told.subject;
                self.remember(|key| ActionNoticeChange::Delete(key, subject));
                if let Some(undoing) = &mut self.undoing {
                    undoing.left = undoing.left.saturating_sub(1);
                    undoing.failed += usize::from(!is_done);
                }
                return;
            }
            Job::Ban(told) => told.subject,
            Job::Restored(told, _) | Job::Reban(told) => told.subject,
            Job::Start | Job::Stop | Job::Flush | Job::Prolong(_) => return,
        };
        let Some((knows, notice)) = self.known.get_mut(&subject) else {
            return;
        };
        if let Some((since, failures)) = detail {
            notice.since = since;
            notice.failures = failures;
        }
        if *knows != Knows::Running {
            return;
        }
        *knows = if is_done { Knows::Told } else { Knows::Tried };
        if is_done {
            let notice = notice.clone();
            self.remember(|key| ActionNoticeChange::Put(key, notice));
        }
    }

    /// The action was set up anew and has lost what it was told of these families, but for
    /// `current`: it is told again behind all new bans. `is_empty`: it was stopped and
    /// started, so that there is no end to tell.
    pub fn lose(&mut self, families: [bool; 2], is_empty: bool, current: BanTarget) {
        let is_meant = |who: BanTarget| who != current && families[family(who)];
        let mut lost = Vec::new();
        for (subject, (knows, notice)) in &mut self.known {
            if is_meant(*subject) && matches!(knows, Knows::Told | Knows::Tried) {
                *knows = Knows::Lost;
                lost.push((notice.since, *subject));
            }
        }
        lost.sort_unstable();
        for (_, subject) in lost {
            self.remember(|key| ActionNoticeChange::Delete(key, subject));
            self.pending.push_back(subject);
        }
        let mut forgotten = Vec::new();
        let known = &self.known;
        self.jobs.retain(|job| match job {
            Job::Prolong(told) => !matches!(known.get(&told.subject), Some((Knows::Lost, _))),
            Job::Unban(told) if is_empty && is_meant(told.subject) => {
                forgotten.push(told.subject);
                false
            }
            _ => true,
        });
        for subject in forgotten {
            self.remember(|key| ActionNoticeChange::Delete(key, subject));
        }
        self.bans = self.bans_waiting();
    }

    /// Is it time to say how far the undoing has come?
    pub fn progress(&mut self) -> Option<(usize, usize)> {
        let undoing = self.undoing.as_mut()?;
        if undoing.logged.elapsed() < PROGRESS {
            return None;
        }
        undoing.logged = Instant::now();
        Some((undoing.total - undoing.left, undoing.total))
    }

    /// How many commands are to run yet.
    pub fn waiting(&self) -> usize {
        self.jobs.len() + self.pending.len()
    }
}

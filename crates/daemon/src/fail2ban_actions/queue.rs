//! The commands of one action in one jail that wait, and whom it has been told of.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use weir_core::{Ban, BanTarget, Until};
use weir_fail2ban::FamilyCommands;

use crate::{jails::JailCommands, metrics::ActionCounters};

/// Bans that wait for their commands.
pub(super) const MAX_BANS: usize = 1_000;
/// Jobs that wait in all: an end that is not told leaves somebody banned elsewhere, and
/// costs little room.
pub(super) const MAX_JOBS: usize = 100_000;

/// What a command is told of a ban.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BanNotice {
    pub subject: BanTarget,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
    pub matches: Vec<String>,
    pub is_restored: bool,
}

impl BanNotice {
    pub fn of(ban: &Ban, is_restored: bool) -> Self {
        Self {
            subject: ban.subject,
            since: ban.since,
            until: match ban.until {
                Until::At(end) => Some(end),
                Until::Never => None,
            },
            matches: ban.evidence.clone(),
            is_restored,
        }
    }

    /// A ban that was told of before, by this daemon or another one.
    pub fn again(subject: BanTarget, until: Option<Timestamp>) -> Self {
        Self {
            subject,
            since: Timestamp::now(),
            until,
            matches: Vec::new(),
            is_restored: true,
        }
    }
}

/// One command that is to run.
#[derive(Debug, PartialEq)]
pub(super) enum Job {
    Start,
    Stop,
    Flush,
    Ban(Arc<BanNotice>),
    Prolong(Arc<BanNotice>),
    Unban(BanNotice),
}

/// What an action knows of somebody who is banned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knows {
    /// The action was told of the ban, or is about to be.
    Told,
    /// The action waits to be told of a ban that was there before.
    Waits,
    /// The action is not told of a ban that was there before.
    Nothing,
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
    /// It remembers by itself whom it was told of, also from an earlier daemon.
    keeps: bool,
    /// Whether the action was removed: no new jobs come, and the queue goes when it is
    /// empty.
    pub is_leaving: bool,
    jobs: VecDeque<Job>,
    bans: usize,
    /// Bans that were there before: told when nothing else waits.
    restored: VecDeque<(BanTarget, Option<Timestamp>)>,
    known: HashMap<BanTarget, Knows>,
}

impl ActionQueue {
    /// Begins with actionstart. An action that keeps nothing beyond its stop is told again of
    /// bans that are in force; one without start, stop and flush has kept what it was told.
    pub fn new(
        number: u64,
        jail: &str,
        action: &JailCommands,
        counters: ActionCounters,
        in_force: Vec<(BanTarget, Option<Timestamp>)>,
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
            keeps: false,
            is_leaving: false,
            jobs: VecDeque::new(),
            bans: 0,
            restored: VecDeque::new(),
            known: HashMap::new(),
        };
        let commands = queue.action.commands.clone();
        if !queue.has(|family| family.ban.is_some() || family.unban.is_some()) {
            queue.jobs.push_back(Job::Start);
            return queue;
        }
        let forgets =
            queue.has(|one| one.start.is_some() || one.stop.is_some() || one.flush.is_some());
        let knows = match (commands.norestored, forgets) {
            (true, _) => Knows::Nothing,
            (false, true) => Knows::Waits,
            (false, false) => Knows::Told,
        };
        queue.keeps = knows == Knows::Told;
        queue.known = in_force
            .iter()
            .map(|(subject, _)| (*subject, knows))
            .collect();
        if knows == Knows::Waits {
            queue.restored = in_force.into();
        }
        queue.jobs.push_back(Job::Start);
        queue
    }

    fn has(&self, which: impl Fn(&FamilyCommands) -> bool) -> bool {
        self.action.commands.families.iter().any(which)
    }

    /// Takes a ban in; `false` if there is no room.
    pub fn ban(&mut self, told: &Arc<BanNotice>) -> bool {
        let is_known = self.known.get(&told.subject).copied();
        match is_known {
            Some(Knows::Told) => {
                if self.has(|family| family.prolong.is_some()) {
                    return self.push(Job::Prolong(told.clone()));
                }
                return true;
            }
            // It is told of it with the others.
            Some(Knows::Waits) => return true,
            Some(Knows::Nothing) | None => {}
        }
        if told.is_restored && self.action.commands.norestored {
            self.known.insert(told.subject, Knows::Nothing);
            return true;
        }
        let has_room = self.push(Job::Ban(told.clone()));
        if has_room {
            self.known.insert(told.subject, Knows::Told);
        }
        has_room
    }

    /// Takes the end of a ban in; `false` if there is no room.
    pub fn unban(&mut self, subject: BanTarget) -> bool {
        match self.known.remove(&subject) {
            known
                if self.has(|family| family.unban.is_some())
                    && (known == Some(Knows::Told) || (known.is_none() && self.keeps)) =>
            {
                self.push(Job::Unban(BanNotice::again(subject, None)))
            }
            _ => true,
        }
    }

    /// Undoes all bans, if it can at once: the end of each need not be told.
    pub fn flush(&mut self) {
        if self.has(|family| family.flush.is_some()) {
            self.known.clear();
            self.restored.clear();
            self.jobs.retain(|job| !matches!(job, Job::Unban(_)));
            self.jobs.push_back(Job::Flush);
        }
    }

    /// Nothing new comes, and what is there is undone.
    pub fn leave(&mut self) {
        if self.is_leaving {
            return;
        }
        self.restored.clear();
        if self.has(|family| family.flush.is_some()) {
            self.jobs.push_back(Job::Flush);
        }
        self.jobs.push_back(Job::Stop);
        self.is_leaving = true;
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
        let job = match self.jobs.pop_front() {
            Some(job) => {
                self.bans -= usize::from(matches!(job, Job::Ban(_) | Job::Prolong(_)));
                job
            }
            None => self.next_restored()?,
        };
        self.is_running = true;
        Some(job)
    }

    fn next_restored(&mut self) -> Option<Job> {
        while let Some((subject, until)) = self.restored.pop_front() {
            // It may be over since.
            if let Some(knows @ Knows::Waits) = self.known.get_mut(&subject) {
                *knows = Knows::Told;
                return Some(Job::Ban(Arc::new(BanNotice::again(subject, until))));
            }
        }
        None
    }

    /// How many commands are to run yet.
    pub fn waiting(&self) -> usize {
        self.jobs.len() + self.restored.len()
    }

    /// The subjects of whose bans the action was told.
    pub fn told_of(&self) -> impl Iterator<Item = BanTarget> + '_ {
        let told = self
            .known
            .iter()
            .filter(|(_, knows)| **knows == Knows::Told);
        told.map(|(subject, _)| *subject)
    }
}

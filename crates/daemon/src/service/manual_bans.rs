//! Manual bans, and lifting bans of any kind.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use weir_core::{
    Action, Ban, BanSource, BanTarget, PortSet, Prefix, Until,
    policy::{self, BanTime, Ignored, Ledger, Outcome},
};
use weir_enforce::{Backend, Entry};

use super::{Done, ListedBan, MAX_REASON, Refusal, UnbanOutcome, questions::is_a_jail};
use crate::{
    access::{classes::ClassSync, exemptions::Exempt},
    bans::{Bans, entry},
    config::Config,
    current::Current,
    jails::JailConfig,
    judge::{Judge, Judgement, Offence, Suspect},
    store::{Detail, PORTION, Store, clock::Now},
};

/// The longest ban that is not permanent.
const MAX_BAN: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Bans and lifts what a person names.
pub struct ManualBans {
    pub(super) bans: Arc<Bans>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) store: Arc<Store>,
    pub(super) exempt: Arc<Exempt>,
    pub(super) config: Arc<Current<Config>>,
    pub(super) ledger: Arc<Current<Ledger>>,
    pub(super) classes: Arc<ClassSync>,
}

impl ManualBans {
    /// A manual ban: in force, then durable. Without a reason of its own it has
    /// that of the ban which it renews.
    pub fn ban(
        &self,
        subject: &str,
        length: Option<Duration>,
        scope: PortSet,
        action: Action,
        reason: Option<String>,
    ) -> Result<Done<ListedBan>, Refusal> {
        let subject: BanTarget = subject.parse()?;
        let reason = match reason {
            Some(reason) => reason,
            None => self
                .reason_of_manual_ban(subject, &scope)?
                .unwrap_or_else(|| "manual ban".to_owned()),
        };
        if reason.len() > MAX_REASON {
            return Err(Refusal::Malformed(format!(
                "the reason has {} bytes: at most {MAX_REASON}",
                reason.len()
            )));
        }
        if length.is_some_and(|l| l.is_zero() || l > MAX_BAN) {
            return Err(Refusal::Malformed(format!(
                "a ban lasts 1s-{}, or forever",
                policy::format_duration(MAX_BAN)
            )));
        }
        self.refuse_exempt(subject)?;
        let mut done = self.put(length, |since, until| Ban {
            subject,
            scope,
            producer: BanSource::Manual,
            action,
            reason,
            since,
            until,
            evidence: Vec::new(),
        })?;
        if self.config.get().enforcement.observe {
            done.warning
                .get_or_insert_with(|| "observe = true: nothing is dropped".to_owned());
        }
        Ok(done)
    }

    /// A ban that the jail itself would have made: with its ports, action and time.
    pub fn ban_in_jail(
        &self,
        jail: &JailConfig,
        subject: BanTarget,
    ) -> Result<Done<ListedBan>, Refusal> {
        self.refuse_exempt(subject)?;
        let length = match jail.limits.ban_time {
            BanTime::Never => None,
            BanTime::For(length) => Some(length),
        };
        self.put(length, |since, until| Ban {
            subject,
            scope: jail.scope.clone(),
            producer: BanSource::Jail(jail.name.clone()),
            action: jail.action,
            reason: "banned manually in this jail".to_owned(),
            since,
            until,
            evidence: Vec::new(),
        })
    }

    /// Failures of an address that a person tells of, with a line each, count as those that
    /// the jail finds, now: the last one that it takes makes the ban.
    pub fn attempt(
        &self,
        jail: &JailConfig,
        prefix: Prefix,
        lines: &[&str],
    ) -> Result<(), Refusal> {
        self.refuse_exempt(BanTarget::new(prefix)?)?;
        let ledger = self.ledger.get();
        let Some(number) = ledger.jail(&jail.name) else {
            let message = format!("jail {} does not run", jail.name);
            return Err(Refusal::NotFound(message));
        };
        let (mut judge, now) = (Judge::new(&self.exempt), Timestamp::now());
        let mut bans = Vec::new();
        for line in lines {
            let offence = Offence {
                jail: number,
                suspect: Suspect::Named(prefix),
                line: line.as_bytes(),
            };
            match judge.judge(&ledger, offence, now) {
                Judgement::Judged(Outcome::Ban(ban)) => bans.push(ban),
                Judgement::Judged(Outcome::Ignored(Ignored::Listed(by))) => {
                    let message = format!("jail {} ignores {by}", jail.name);
                    return Err(Refusal::Malformed(message));
                }
                Judgement::HoldsExempt(inside) => {
                    let message = format!("{prefix} holds {inside}, which is exempt");
                    return Err(Refusal::Malformed(message));
                }
                _ => {}
            }
        }
        self.bans.enforce(bans);
        Ok(())
    }

    fn refuse_exempt(&self, subject: BanTarget) -> Result<(), Refusal> {
        match self.exempt.current().covering(subject) {
            None => Ok(()),
            Some(exemption) => Err(Refusal::Exempt {
                subject,
                reason: exemption.reason,
            }),
        }
    }

    /// In force, then durable; a ban without a length is permanent.
    fn put(
        &self,
        length: Option<Duration>,
        ban: impl FnOnce(Timestamp, Until) -> Ban,
    ) -> Result<Done<ListedBan>, Refusal> {
        let now = Now::read();
        let until = match length {
            None => Until::Never,
            Some(length) => Until::At(now.wall.checked_add(length).unwrap_or(Timestamp::MAX)),
        };
        let ban = ban(now.wall, until);
        let entry = entry(&ban, &now);
        let detail = Detail {
            since: ban.since,
            reason: ban.reason.clone(),
            evidence: Vec::new(),
        };
        self.bans.put(ban, entry.clone(), &now)?;
        let saved = self.store.flush();
        Ok(Done::new(ListedBan::new(entry, Some(detail), &now), saved))
    }

    /// Why this subject is banned manually on these ports, if it is.
    fn reason_of_manual_ban(
        &self,
        subject: BanTarget,
        scope: &PortSet,
    ) -> Result<Option<String>, Refusal> {
        let mut entries = self.backend.entries_for(subject.prefix().addr())?;
        entries.retain(|entry| {
            entry.subject == subject
                && entry.policy.producer == BanSource::Manual
                && entry.policy.scope == *scope
        });
        let mut details = self.store.details(&entries).into_iter().flatten();
        Ok(details.next().map(|detail| detail.reason))
    }

    /// Lifts the bans of exactly this subject, of one producer and scope if named.
    pub fn unban(
        &self,
        subject: &str,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Done<UnbanOutcome>, Refusal> {
        let prefix: Prefix = subject.parse()?;
        let subject = BanTarget::new(prefix)?;
        let lifted = self
            .bans
            .lift(subject, producer, scope, "lifted manually")?;
        if lifted == 0 {
            return Err(Refusal::NotFound(
                self.why_not_lifted(subject, producer, scope)?,
            ));
        }
        let saved = self.store.flush();
        self.ledger.get().forgive(subject);
        let still = self.still_denied(subject)?;
        Ok(Done::new(UnbanOutcome { lifted, still }, saved))
    }

    /// Why no ban of this subject is lifted: it has none, or not such a one.
    fn why_not_lifted(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<String, Refusal> {
        let entries = self.backend.entries_for(subject.prefix().addr())?;
        let (own, others): (Vec<_>, Vec<_>) = entries.iter().partition(|e| e.subject == subject);
        if let Some(own) = own.first() {
            let (mut asked, policy) = (String::new(), &own.policy);
            if let Some(producer) = producer.filter(|p| **p != policy.producer) {
                asked.push_str(&format!(" {}", by(producer)));
            }
            if let Some(scope) = scope.filter(|s| **s != policy.scope) {
                asked.push_str(&format!(" on {scope}"));
            }
            return Ok(format!("{}, not{asked}", in_words(own)));
        }
        Ok(match others.first() {
            Some(wider) => format!("{subject} itself is not banned, but {} is", wider.subject),
            None => format!("{subject} is not banned"),
        })
    }

    /// What denies this subject although a ban of it was lifted.
    fn still_denied(&self, subject: BanTarget) -> Result<Option<String>, Refusal> {
        let prefix = subject.prefix();
        if self.exempt.current().covering(subject).is_some() {
            return Ok(None);
        }
        let entries = self.backend.entries_for(prefix.addr())?;
        let holds = |entry: &&Entry| {
            entry.policy.action.denies_packets() && entry.subject.prefix().covers(prefix)
        };
        let mut holding = entries.iter().filter(holds);
        if let Some(entry) = holding.next() {
            return Ok(Some(format!(
                "{subject} is still denied: {}",
                in_words(entry)
            )));
        }
        let denied = match prefix.is_host() {
            true => self.classes.denies(prefix.addr()),
            false => None,
        };
        Ok(denied.map(|denied| format!("{subject} is still denied: {denied}")))
    }

    /// Lifts every ban, or every one of a producer.
    pub fn unban_all(&self, producer: Option<&BanSource>) -> Result<Done<UnbanOutcome>, Refusal> {
        let (mut entries, waiting) = self.bans.begin_lifting_all(producer)?;
        entries.retain(|entry| producer.is_none_or(|p| *p == entry.policy.producer));
        if let Some(BanSource::Jail(jail)) = producer
            && entries.is_empty()
            && waiting == 0
        {
            is_a_jail(&self.config.get(), jail)?;
        }
        entries.sort_unstable_by_key(|entry| entry.subject);
        let mut lifted = waiting;
        let mut saved = self.store.flush();
        for portion in entries.chunks(PORTION) {
            for of_subject in portion.chunk_by(|a, b| a.subject == b.subject) {
                let why = "lifted manually, with all others";
                lifted += self.bans.lift(of_subject[0].subject, producer, None, why)?;
            }
            saved = saved.and_then(|()| self.store.flush());
        }
        let of = producer.map_or_else(String::new, |producer| format!(" of {producer}"));
        let bans = crate::counted(lifted as u64, "ban", "bans");
        tracing::info!("all{of}: {bans} lifted manually");
        let still = None;
        Ok(Done::new(UnbanOutcome { lifted, still }, saved))
    }
}

/// A ban in words.
fn in_words(entry: &Entry) -> String {
    let policy = &entry.policy;
    let (subject, by) = (entry.subject, by(&policy.producer));
    match policy.action.denies_packets() {
        true => format!("{subject} is banned {by} on {}", policy.scope),
        false => format!("{subject} is banned {by}, which only notifies"),
    }
}

/// The producer of a ban, in words.
fn by(producer: &BanSource) -> String {
    match producer {
        BanSource::Manual => "manually".to_owned(),
        BanSource::Jail(name) => format!("by jail {name}"),
        BanSource::Watch(name) => format!("by watch {name}"),
        BanSource::List(name) => format!("by list {name}"),
        BanSource::Decoy => "by a decoy port".to_owned(),
        BanSource::Tarpit => "by a tarpit port".to_owned(),
        BanSource::Geofence => "by the geofence".to_owned(),
    }
}

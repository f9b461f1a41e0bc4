//! What a shard of the ledger keeps of one jail: who is counted, who was banned
//! before, and what of it the database does not know yet.

use smallvec::SmallVec;

use super::evidence::{Entry, Moment};
use crate::{
    BanTarget,
    policy::{
        lru::{Hashed, Lru},
        offences::PastOffences,
    },
};

#[derive(Debug)]
pub(super) struct Books {
    pub tracked: Lru<Counted>,
    pub past: Lru<PastOffences>,
    /// The number of calls of [`Ledger::take_changes`].
    pub turn: u32,
    /// Subjects that the database has and that are no longer counted: not more
    /// than `tracked` may hold.
    pub gone: Vec<BanTarget>,
}

/// Failures, oldest first. A jail that bans with the fifth, as by default, keeps
/// four: no allocation for those.
pub(super) type Entries = SmallVec<[Entry; 4]>;

/// The failures of a subject.
#[derive(Debug, Default)]
pub(super) struct Counted {
    entries: Entries,
    /// The sum of attempts over all entries.
    attempts: u32,
    /// [`Books::turn`] when they changed last.
    pub changed: u32,
    /// Does the database know of the subject?
    pub saved: bool,
}

impl Counted {
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Replaces the entries by these, which are in order.
    pub fn set(&mut self, entries: Entries) {
        self.entries = entries;
        self.sum_up();
    }

    fn sum_up(&mut self) {
        let attempts = self.entries.iter().map(|entry| entry.attempts);
        self.attempts = attempts.fold(0, u32::saturating_add);
    }

    /// Counts one more, and forgets those that happened before `oldest`. Returns
    /// how many attempts there are. Nearly always the new one is the newest and
    /// none is forgotten: then it looks at the first and the last only.
    pub fn add(&mut self, entry: Entry, oldest: Moment, now: Moment) -> u32 {
        self.age_from(now);
        let too_old = |entry: &Entry| entry.moment() < oldest;
        if self.entries.first().is_some_and(too_old) {
            self.entries.retain(|entry| !too_old(entry));
            self.sum_up();
        }
        match self.entries.last() {
            Some(last) if last.moment() > entry.moment() => {
                let not_later = |other: &Entry| other.moment() <= entry.moment();
                let place = self.entries.partition_point(not_later);
                self.entries.insert(place, entry);
            }
            _ => self.entries.push(entry),
        }
        self.attempts = self.attempts.saturating_add(entry.attempts);
        self.attempts
    }

    /// What happened later than now (the clock was set back) happened now.
    pub fn age_from(&mut self, now: Moment) {
        if self.entries.last().is_some_and(|last| last.moment() > now) {
            for entry in &mut self.entries {
                entry.not_after(now);
            }
        }
    }
}

impl Books {
    pub fn new(cap: usize) -> Self {
        Self {
            tracked: Lru::new(cap),
            past: Lru::new(cap),
            turn: 0,
            gone: vec![],
        }
    }

    /// No longer counts a subject; returns its failures.
    pub fn remove(&mut self, key: Hashed) -> Option<Entries> {
        let counted = self.tracked.remove(key)?;
        self.note_gone(key.subject, &counted);
        Some(counted.entries)
    }

    fn note_gone(&mut self, subject: BanTarget, counted: &Counted) {
        if counted.saved {
            self.gone.push(subject);
        }
    }

    /// The failures of a subject, about to change; and whether another subject
    /// was forgotten for it.
    pub fn touch(&mut self, key: Hashed) -> (&mut Counted, bool) {
        let (counted, evicted) = self.tracked.touch(key);
        counted.changed = self.turn;
        let was_evicted = evicted.is_some();
        if let Some((subject, Counted { saved: true, .. })) = evicted {
            self.gone.push(subject);
        }
        (counted, was_evicted)
    }

    /// Forgets the subjects whose failures all happened before `oldest`. Ends
    /// at the first that counts: whoever was counted after it can wait.
    pub fn forget_expired(&mut self, oldest: Moment, now: Moment) {
        while let Some((key, counted)) = self.tracked.oldest() {
            match counted.entries.last() {
                // The clock was set back: they all age from now on.
                Some(newest) if newest.moment() > now => {
                    self.tracked.newest_first(|_, counted| {
                        counted.age_from(now);
                        true
                    });
                    return;
                }
                Some(newest) if newest.moment() >= oldest => return,
                _ => self.remove(key),
            };
        }
    }
}

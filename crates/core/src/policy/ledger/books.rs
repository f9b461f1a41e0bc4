//! What a shard of the ledger keeps of one jail: who is counted, who was banned
//! before, and what of it the database does not know yet.

use jiff::Timestamp;
use smallvec::SmallVec;

use super::evidence::Entry;
use crate::{
    Subject,
    policy::{
        history::Past,
        lru::{Hashed, Lru},
    },
};

#[derive(Debug)]
pub(super) struct Books {
    pub tracked: Lru<Counted>,
    pub past: Lru<Past>,
    /// How often [`Ledger::take_changes`] was called.
    pub turn: u32,
    /// Subjects that the database has and that are no longer counted: not more
    /// than `tracked` may hold.
    pub gone: Vec<Subject>,
}

/// The failures of a subject.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Most subjects fail once or twice: no allocation for those.
    pub entries: SmallVec<[Entry; 2]>,
    /// [`Books::turn`] when they changed last.
    pub changed: u32,
    /// Does the database know of the subject?
    pub saved: bool,
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
    pub fn remove(&mut self, key: Hashed) -> Option<SmallVec<[Entry; 2]>> {
        let counted = self.tracked.remove(key)?;
        self.note_gone(key.subject, &counted);
        Some(counted.entries)
    }

    fn note_gone(&mut self, subject: Subject, counted: &Counted) {
        if counted.saved {
            self.gone.push(subject);
        }
    }

    /// The failures of a subject, about to change; and whether another subject
    /// was forgotten for it.
    pub fn touch(&mut self, key: Hashed) -> (&mut SmallVec<[Entry; 2]>, bool) {
        let (counted, evicted) = self.tracked.touch(key);
        counted.changed = self.turn;
        let was_evicted = evicted.is_some();
        if let Some((subject, Counted { saved: true, .. })) = evicted {
            self.gone.push(subject);
        }
        (&mut counted.entries, was_evicted)
    }

    /// Forgets the subjects whose failures all happened before `oldest`. Ends
    /// at the first that counts: whoever was counted after it can wait.
    pub fn forget_expired(&mut self, oldest: Timestamp, now: Timestamp) {
        while let Some((key, counted)) = self.tracked.oldest() {
            match counted.entries.last() {
                // The clock was set back: they all age from now on.
                Some(newest) if newest.time > now => {
                    self.tracked.newest_first(|_, counted| {
                        for entry in &mut counted.entries {
                            entry.time = entry.time.min(now);
                        }
                        true
                    });
                    return;
                }
                Some(newest) if newest.time >= oldest => return,
                _ => self.remove(key),
            };
        }
    }
}

//! The earliest end among the bans of the table, as far as it is known: nobody
//! reads all of the table for bans that are over when none can be.

use std::sync::atomic::{AtomicU64, Ordering};

use weir_bpf::table::NEVER;

/// See the file's head. Zero: nothing is known.
#[derive(Default)]
pub(super) struct NextExpiry(AtomicU64);

impl NextExpiry {
    /// The bans are other ones, or their ends.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Can a ban be over at this jiffy?
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= now
    }

    /// A ban with this end is in the table from now on.
    pub(super) fn note(&self, expiry: u64) {
        self.0.fetch_min(expiry, Ordering::Relaxed);
    }

    /// A pass over the table, which tells the earliest end that it leaves. What
    /// is inserted meanwhile is noted all the same.
    pub(super) fn after<T>(&self, pass: impl FnOnce() -> (T, u64)) -> T {
        self.0.store(NEVER, Ordering::Relaxed);
        let (outcome, next) = pass();
        self.note(next);
        outcome
    }
}

/// Collects the ends that one run of insertions brings, and notes them at its
/// end.
pub(super) struct Noting<'a> {
    to: &'a NextExpiry,
    earliest: u64,
}

impl<'a> Noting<'a> {
    pub(super) fn new(to: &'a NextExpiry) -> Self {
        let earliest = NEVER;
        Self { to, earliest }
    }

    pub(super) fn note(&mut self, expiry: u64) {
        self.earliest = self.earliest.min(expiry);
    }
}

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        if self.earliest < NEVER {
            self.to.note(self.earliest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_due_when_a_ban_can_be_over() {
        let next = NextExpiry::default();
        assert!(next.is_due(1), "nothing is known yet");
        // A ban that comes during the pass ends before those that it has seen.
        let lifted = next.after(|| {
            next.note(70);
            (3, 90)
        });
        assert_eq!(lifted, 3);
        assert!(!next.is_due(69) && next.is_due(70));
        {
            let mut run = Noting::new(&next);
            run.note(80);
            run.note(50);
            run.note(60);
            assert!(!next.is_due(69));
        }
        assert!(!next.is_due(49) && next.is_due(50));
        next.forget();
        assert!(next.is_due(1));
    }
}

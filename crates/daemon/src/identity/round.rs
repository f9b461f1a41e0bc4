//! Which of the programs that are known somebody still runs: all processes are gone through, some
//! each second, and of files that none of these programs has mapped the leases end. Without that
//! a file system would stay busy for as long as weir remembers who ran from it.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use weir_bpf::identity::Key;

use super::programs::{IDLE, of_any_user};

/// How long after one round the next one begins.
const PAUSE: Duration = Duration::from_secs(10);
/// So often somebody who waits for it has two rounds begin without that pause.
const HASTEN: Duration = Duration::from_secs(60);
/// So long processes are looked at in one second.
const AT_ONCE: Duration = Duration::from_millis(20);

/// A round over all processes.
#[derive(Debug)]
pub(super) struct Round {
    /// The processes that are left.
    left: Vec<u32>,
    is_open: bool,
    /// When it began, or the last one ended.
    since: Instant,
    /// So many begin without a pause, and when that was asked for.
    hasty: u8,
    hastened: Option<Instant>,
    /// The last one has shown that somebody runs no more, which nobody has taken note of yet.
    is_news: bool,
    /// The programs that were known when it began and were not met yet, of any user, and whether
    /// they have run no more before.
    unmet: HashMap<Key, bool>,
}

impl Round {
    /// None is open.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: Vec::new(),
            is_open: false,
            since: now,
            hasty: 0,
            hastened: None,
            is_news: false,
            unmet: HashMap::new(),
        }
    }

    /// Somebody waits to be told who runs no more. Not more often than each [`HASTEN`]: it may be
    /// that they run on.
    pub(super) fn hasten(&mut self, now: Instant) {
        if self.hastened.is_none_or(|at| at + HASTEN <= now) {
            (self.hasty, self.hastened) = (IDLE, Some(now));
        }
    }

    /// Has it shown since this was asked last that somebody runs no more?
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    /// Whether a round is to begin.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.hasty > 0 || now.duration_since(self.since) >= PAUSE
    }

    /// Has one begun that is not at its end?
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// The next process that is to be looked at; `None`: all were.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.left.pop()
    }

    /// Has it gone on for long enough since then, and is not at its end?
    pub(super) fn is_for_later(&self, since: Instant) -> bool {
        since.elapsed() >= AT_ONCE && !self.left.is_empty()
    }

    /// A process with this key runs. Was nobody known to run it?
    pub(super) fn meet(&mut self, key: &Key) -> bool {
        self.unmet.remove(&of_any_user(key)).unwrap_or(false)
    }

    /// It has shown, or not, that somebody runs no more.
    pub(super) fn note_news(&mut self, is_news: bool) {
        self.is_news |= is_news;
    }

    /// Begins one, in which these are to be met.
    pub(super) fn begin(&mut self, unmet: HashMap<Key, bool>, now: Instant) {
        self.hasty = self.hasty.saturating_sub(1);
        (self.left, self.unmet) = (processes(), unmet);
        (self.is_open, self.since) = (true, now);
    }

    /// The time at which it began, and who was not met.
    pub(super) fn end(&mut self, now: Instant) -> (Instant, HashMap<Key, bool>) {
        self.is_open = false;
        let begun = std::mem::replace(&mut self.since, now);
        (begun, std::mem::take(&mut self.unmet))
    }
}

/// The numbers of all processes.
fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_rounds_has_two_begin_at_once() {
        let mut now = Instant::now();
        let mut round = Round::new(now);
        let is_begun = |round: &mut Round, now: Instant| {
            let is_due = round.is_due(now);
            if is_due {
                round.begin(HashMap::new(), now);
                assert_eq!(round.end(now).0, now);
            }
            is_due
        };
        assert!(!is_begun(
            &mut round,
            now + PAUSE - Duration::from_millis(1)
        ));
        round.hasten(now);
        let begun: Vec<_> = (0..4).map(|_| is_begun(&mut round, now)).collect();
        assert_eq!(begun, [true, true, false, false]);
        // Those that he waits for run on: no more rounds than before.
        now += PAUSE;
        round.hasten(now);
        assert!(is_begun(&mut round, now) && !is_begun(&mut round, now));
        now += HASTEN;
        round.hasten(now);
        assert!(is_begun(&mut round, now) && is_begun(&mut round, now));
        assert!(!is_begun(&mut round, now));
    }
}

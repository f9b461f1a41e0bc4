//! Which of the programs that are known somebody still runs: all processes are gone through, some
//! each second, and of files that none of these programs has mapped the leases end. Without that
//! a file system would stay busy for as long as weir remembers who ran from it.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use weir_bpf::identity::Key;

use super::{
    programs::{IDLE, of_any_user},
    state::State,
};

/// How long after one round the next one begins.
const PAUSE: Duration = Duration::from_secs(10);
/// So often somebody who waits for it has two rounds begin without that pause.
const HASTEN: Duration = Duration::from_secs(60);
/// So long processes are looked at in one second.
const AT_ONCE: Duration = Duration::from_millis(20);

/// A round over all processes.
#[derive(Debug)]
pub(super) struct Round {
    /// Those that are left.
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

    /// Is it time to begin one?
    fn is_due(&self, now: Instant) -> bool {
        self.hasty > 0 || now.duration_since(self.since) >= PAUSE
    }

    fn begin(&mut self, unmet: HashMap<Key, bool>, now: Instant) {
        self.hasty = self.hasty.saturating_sub(1);
        (self.left, self.unmet) = (processes(), unmet);
        (self.is_open, self.since) = (true, now);
    }

    /// The time at which it began, and who was not met.
    fn end(&mut self, now: Instant) -> (Instant, HashMap<Key, bool>) {
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

impl State {
    /// Goes on with a round, or begins one if it is time; at its end the leases are given back of
    /// files that nobody has mapped any longer.
    ///
    /// # Errors
    /// The kernel refuses to look at a process, or to forget who it was.
    pub(super) fn go_round(&mut self) -> Result<(), weir_bpf::Error> {
        let now = Instant::now();
        if !self.round.is_open {
            if !self.round.is_due(now) {
                return Ok(());
            }
            self.round.begin(self.programs.of_any_user(), now);
        }
        while let Some(pid) = self.round.left.pop() {
            if let Some((_, seen)) = self.look_at(pid)?
                && let Some(was_idle) = self.round.unmet.remove(&of_any_user(&seen.key))
                && was_idle
            {
                // Its files have no lease any more.
                self.identify(pid, None, true)?;
            }
            if now.elapsed() >= AT_ONCE && !self.round.left.is_empty() {
                return Ok(());
            }
        }
        let (begun, unmet) = self.round.end(Instant::now());
        self.round.is_news |= self.programs.end_round(begun, &unmet);
        self.give_back_leases()
    }
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

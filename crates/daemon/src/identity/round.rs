//! Which of the programs that are known somebody still runs: all processes are gone through, some
//! each second, and of files that none of these programs has mapped the leases end. Without that
//! a file system would stay busy for as long as weir remembers who ran from it.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use weir_bpf::identity::Key;

use super::{programs::of_any_user, state::State};

/// How long after one round the next one begins.
const PAUSE: Duration = Duration::from_secs(10);
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
            unmet: HashMap::new(),
        }
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
            if now.duration_since(self.round.since) < PAUSE {
                return Ok(());
            }
            self.round = Round {
                left: processes(),
                is_open: true,
                since: now,
                unmet: self.programs.of_any_user(),
            };
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
        self.programs.end_round(self.round.since, &self.round.unmet);
        self.round = Round::new(Instant::now());
        self.give_back_leases()
    }
}

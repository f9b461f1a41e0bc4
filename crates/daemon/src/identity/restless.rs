//! Processes that never stand still while they are looked at: each is looked at less and less
//! often, so that others are told meanwhile who are waiting.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// So many are remembered; of more the one goes whose time is over first.
const MAX_RESTLESS: usize = 1024;
/// One is not looked at for so many times as long as it has taken, at first; twice as long each
/// time, up to this one. Programs that begin stand still soon, and are cheap.
const SHARE: u32 = 10;
const WAIT_LAST: Duration = Duration::from_secs(60);
/// What takes less keeps nobody waiting: as one that has no mappings, for it ends or is the kernel's.
const CHEAP: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Known {
    /// When it was started: another one may have its number later.
    started: u64,
    wait: Duration,
    until: Instant,
}

/// Those that did not stand still, by number.
#[derive(Debug, Default)]
pub(super) struct Restless {
    by_pid: BTreeMap<u32, Known>,
}

impl Restless {
    /// Is this one not to be looked at yet? `started`: when it was, which is asked only of one that
    /// is remembered.
    pub(super) fn is_put_off(
        &mut self,
        pid: u32,
        started: impl FnOnce() -> Option<u64>,
        now: Instant,
    ) -> bool {
        let Some(known) = self.by_pid.get(&pid) else {
            return false;
        };
        if started() == Some(known.started) {
            return now < known.until;
        }
        self.by_pid.remove(&pid);
        false
    }

    /// It was looked at for so long, and did not stand still: each time it is waited twice as long.
    pub(super) fn note(&mut self, pid: u32, started: u64, took: Duration, now: Instant) {
        if took < CHEAP {
            return;
        }
        let before = self.by_pid.get(&pid);
        let before = before.filter(|known| known.started == started);
        let wait = before.map_or(Duration::ZERO, |known| known.wait * 2);
        let wait = wait.max(took * SHARE).min(WAIT_LAST);
        let known = Known {
            started,
            wait,
            until: now + wait,
        };
        self.by_pid.insert(pid, known);
        if self.by_pid.len() > MAX_RESTLESS {
            let first = self.by_pid.iter().min_by_key(|(_, known)| known.until);
            if let Some(pid) = first.map(|(pid, _)| *pid) {
                self.by_pid.remove(&pid);
            }
        }
    }

    /// It stood still.
    pub(super) fn forget(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }

    /// Those that are not to be looked at yet: one of them, and how many there are. Who has not
    /// asked for a long time after that is forgotten.
    pub(super) fn put_off(&mut self, now: Instant) -> Option<(u32, usize)> {
        self.by_pid.retain(|_, known| now < known.until + WAIT_LAST);
        let mut put_off = self.by_pid.iter().filter(|(_, known)| now < known.until);
        let (first, _) = put_off.next()?;
        Some((*first, put_off.count() + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_stands_still_is_looked_at_less_and_less_often() {
        let (mut all, mut now) = (Restless::default(), Instant::now());
        assert!(!all.is_put_off(7, || unreachable!(), now));
        let took = Duration::from_millis(100);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            all.note(7, 100, took, now);
            let wait = Duration::from_secs(seconds);
            assert!(all.is_put_off(7, || Some(100), now + wait - Duration::from_millis(1)));
            assert_eq!(all.put_off(now), Some((7, 1)));
            assert!(!all.is_put_off(7, || Some(100), now + wait), "{seconds}");
            now += wait;
        }
        assert_eq!(all.put_off(now), None);
        // Who takes no time is not put off.
        all.note(6, 1, CHEAP - Duration::from_nanos(1), now);
        assert!(!all.is_put_off(6, || unreachable!(), now));
        // Others are served meanwhile, also one that has its number.
        all.note(7, 100, took, now);
        assert!(!all.is_put_off(8, || unreachable!(), now));
        assert!(!all.is_put_off(7, || Some(101), now));
        all.note(7, 101, took, now);
        all.forget(7);
        assert!(!all.is_put_off(7, || unreachable!(), now));
        for pid in 0..MAX_RESTLESS as u32 + 10 {
            all.note(pid, 1, took, now + Duration::from_millis(u64::from(pid)));
        }
        assert_eq!(all.by_pid.len(), MAX_RESTLESS);
        assert!(!all.is_put_off(9, || unreachable!(), now));
        assert!(all.is_put_off(10, || Some(1), now));
        assert_eq!(all.put_off(now + Duration::from_secs(600)), None);
        assert!(all.by_pid.is_empty());
    }
}

//! Programs that ended before weir could look at them: what the kernel has told of each.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use weir_bpf::identity::IdentityEvent;

use super::{Apps, executables::Executables};

/// So many are remembered; of more the one goes that was met longest ago.
const MAX_SHORT_LIVED: usize = 128;
/// So many processes that wait for something are remembered with what was told of them; of
/// more the one goes that waits longest: that it has ended meanwhile is not listed.
const MAX_WAITING: usize = 1024;

/// A program that was gone when weir wanted to see who it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShortLived {
    /// Its executable, if weir knows the file.
    pub path: Option<String>,
    /// What the process called itself: its own word; empty, if the kernel could not tell.
    pub comm: String,
    /// The user that it ran as.
    pub uid: u32,
    /// How often weir came too late; at most five times a second for each program.
    pub count: u64,
    /// When the last one was met.
    pub last: Timestamp,
}

/// The programs that ended too early, by path, name and user.
#[derive(Debug, Default)]
pub(super) struct ShortLivedPrograms {
    met: BTreeMap<(Option<String>, String, u32), (u64, Timestamp)>,
    total: u64,
    /// Processes that cannot be told yet, by number, as they were asked about, and as which
    /// one.
    waiting: BTreeMap<u32, (u64, IdentityEvent)>,
    /// How many were to wait so far.
    waits: u64,
}

impl ShortLivedPrograms {
    /// A process was asked about, and is gone.
    pub fn note(&mut self, event: &IdentityEvent, executables: &Executables) {
        let path = event.executable.and_then(|key| executables.path(key));
        let path = path.map(|path| path.to_string_lossy().into_owned());
        self.add((path, event.comm.to_text(), event.uid), Timestamp::now());
    }

    /// A process was asked about, and who it is will be known later.
    pub fn wait(&mut self, event: &IdentityEvent) {
        self.waits += 1;
        self.waiting.insert(event.pid, (self.waits, *event));
        if self.waiting.len() > MAX_WAITING
            && let Some((pid, _)) = self.waiting.iter().min_by_key(|(_, (number, _))| *number)
        {
            let pid = *pid;
            self.waiting.remove(&pid);
        }
    }

    /// A process waits no more. `is_gone`: it has ended before it could be told.
    pub fn end_wait(&mut self, pid: u32, is_gone: bool, executables: &Executables) {
        if let Some((_, event)) = self.waiting.remove(&pid)
            && is_gone
        {
            self.note(&event, executables);
        }
    }

    fn add(&mut self, program: (Option<String>, String, u32), now: Timestamp) {
        self.total += 1;
        let (count, last) = self.met.entry(program).or_insert((0, now));
        (*count, *last) = (*count + 1, now);
        if self.met.len() > MAX_SHORT_LIVED
            && let Some(oldest) = self.met.iter().min_by_key(|(_, (_, last))| *last)
        {
            let oldest = oldest.0.clone();
            self.met.remove(&oldest);
        }
    }

    /// The last ones first.
    fn list(&self) -> Vec<ShortLived> {
        let met = self.met.iter();
        let mut all: Vec<_> = met
            .map(|((path, comm, uid), (count, last))| ShortLived {
                path: path.clone(),
                comm: comm.clone(),
                uid: *uid,
                count: *count,
                last: *last,
            })
            .collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.last));
        all
    }

    /// How often weir came too late, those counted in that are remembered no more.
    pub fn total(&self) -> u64 {
        self.total
    }
}

impl Apps {
    /// Programs that ended before weir could look at them, the last ones first; at most 128.
    pub fn short_lived(&self) -> Vec<ShortLived> {
        let guard = self.state();
        guard
            .as_ref()
            .map(|state| state.short_lived.list())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use weir_bpf::identity::IdentityEventKind;

    use super::{super::turns::tests::event, *};

    fn asked(pid: u32) -> IdentityEvent {
        IdentityEvent {
            uid: pid,
            ..event(pid, IdentityEventKind::Unknown)
        }
    }

    #[test]
    fn who_ends_while_its_package_is_looked_up_is_listed() {
        let (mut all, executables) = (ShortLivedPrograms::default(), Executables::default());
        for pid in [7, 8] {
            all.wait(&asked(pid));
        }
        // The one is known now, the other one gone, and nobody was asked about the third.
        all.end_wait(7, false, &executables);
        all.end_wait(8, true, &executables);
        all.end_wait(8, true, &executables);
        all.end_wait(9, true, &executables);
        let list: Vec<_> = all.list().iter().map(|one| (one.uid, one.count)).collect();
        assert_eq!(list, [(8, 1)]);
    }

    #[test]
    fn of_many_processes_that_wait_the_last_ones_are_remembered() {
        let mut all = ShortLivedPrograms::default();
        let most = MAX_WAITING as u32;
        for pid in 0..most {
            all.wait(&asked(pid));
        }
        // What was told last counts.
        all.wait(&asked(0));
        all.wait(&asked(most));
        assert_eq!(all.waiting.len(), MAX_WAITING);
        let waits = [0, 1, 2, most].map(|pid| all.waiting.contains_key(&pid));
        assert_eq!(waits, [true, false, true, true]);
    }

    #[test]
    fn of_many_programs_the_last_ones_are_remembered() {
        let mut all = ShortLivedPrograms::default();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let program = |number: usize| (None, format!("p{number}"), 0);
        for number in 0..MAX_SHORT_LIVED {
            all.add(program(number), at(number as i64));
        }
        all.add(program(0), at(1000));
        all.add(program(MAX_SHORT_LIVED), at(1001));
        let list = all.list();
        assert_eq!(list.len(), MAX_SHORT_LIVED);
        assert_eq!((&*list[1].comm, list[1].count), ("p0", 2));
        assert!(!list.iter().any(|one| one.comm == "p1"));
        assert_eq!(all.total(), MAX_SHORT_LIVED as u64 + 2);
    }
}

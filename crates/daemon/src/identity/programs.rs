//! The programs that the kernel knows, by their numbers there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    time::{Duration, Instant},
};

use weir_bpf::identity::{Handle, Identity, Key, MAX_IDENTITIES};
use weir_identity::{Digest, hash::FileKey};

use super::{
    containers::{NoLabels, group_of},
    objects::NoDigest,
    process::ReadProgram,
};

/// One that is known.
pub struct KnownProgram {
    key: Key,
    handle: Handle,
    since: Instant,
    /// So many rounds over all processes in a row have met none of it.
    idle: u8,
    /// The process as it was read from /proc.
    pub read: ReadProgram,
}

/// The programs that have a handle in the kernel.
pub struct Programs {
    known: BTreeMap<u16, KnownProgram>,
    by_key: HashMap<Key, u16>,
    /// Handles that an earlier daemon has given: who is still there keeps his.
    given: HashMap<Key, Handle>,
    serial: u16,
    next: u16,
    evicted: u64,
    /// How often somebody came or went.
    changes: u64,
}

/// A program that so many rounds have not met runs no more: one that is started anew while the old
/// one ends may be missed by one of them.
pub const IDLE: u8 = 2;

/// The key of the same program, whoever runs it.
pub fn of_any_user(key: &Key) -> Key {
    Key { uid: 0, ..*key }
}

impl KnownProgram {
    /// Has nobody run it for a while?
    pub fn is_idle(&self) -> bool {
        self.idle >= IDLE
    }

    /// The handle of the program in the kernel.
    pub fn handle(&self) -> Handle {
        self.handle
    }
}

impl Programs {
    /// None yet; those that an earlier daemon has named are known again when they are
    /// identified.
    pub fn over(identity: &Identity) -> Self {
        Self::of(identity.named().into_iter().collect())
    }

    fn of(given: HashMap<Key, Handle>) -> Self {
        let next = given
            .values()
            .map(|handle| handle.number())
            .max()
            .unwrap_or(0);
        let next = match usize::from(next) >= MAX_IDENTITIES {
            true => 1,
            false => next + 1,
        };
        let serials = given.values().map(|handle| handle.serial());
        Self {
            serial: serials.max().unwrap_or(0).wrapping_add(1).max(1),
            known: BTreeMap::new(),
            by_key: HashMap::new(),
            given,
            next,
            evicted: 0,
            changes: 0,
        }
    }

    /// A number that nobody has, or that of whoever is known for longest.
    fn free_number(&mut self) -> u16 {
        for _ in 0..MAX_IDENTITIES {
            let number = self.next;
            self.next = match usize::from(number) >= MAX_IDENTITIES {
                true => 1,
                false => number + 1,
            };
            if !self.known.contains_key(&number) {
                return number;
            }
        }
        let oldest = self.known.iter().min_by_key(|(_, program)| program.since);
        let number = oldest.map_or(1, |(number, _)| *number);
        if let Some(gone) = self.known.remove(&number) {
            self.release_key(&gone.key, number);
            self.evicted += 1;
        }
        number
    }

    /// Nobody has this key any longer, if it was that of this number; false: it was not, for
    /// who was identified anew has it under another number.
    fn release_key(&mut self, key: &Key, number: u16) -> bool {
        let is_own = self.by_key.get(key) == Some(&number);
        if is_own {
            self.by_key.remove(key);
        }
        is_own
    }

    /// Notes who that is; the kernel is told with this handle.
    pub fn note(&mut self, key: &Key, read: ReadProgram) -> Handle {
        let known = self
            .by_key
            .get(key)
            .and_then(|number| self.known.get(number));
        let given = self.given.remove(key);
        let handle = match (known, given) {
            (Some(known), _) => known.handle,
            (None, Some(given)) if !self.known.contains_key(&given.number()) => given,
            (None, _) => {
                let number = self.free_number();
                self.serial = self.serial.wrapping_add(1).max(1);
                Handle::new(number, self.serial)
            }
        };
        self.changes += 1;
        self.by_key.insert(*key, handle.number());
        let program = KnownProgram {
            key: *key,
            handle,
            since: Instant::now(),
            idle: 0,
            read,
        };
        self.known.insert(handle.number(), program);
        handle
    }

    /// Says of all of them who they are.
    pub fn name_all(&self, identity: &Identity) -> weir_bpf::Result<()> {
        let is_named = |(number, program): &(&u16, &KnownProgram)| {
            self.by_key.get(&program.key) == Some(*number)
        };
        let mut named = self.known.iter().filter(is_named);
        named.try_for_each(|(_, program)| identity.name(&program.key, program.handle))
    }

    /// Forgets these: they are asked about anew when they send.
    pub fn forget(
        &mut self,
        identity: &Identity,
        is_wanted: impl Fn(&ReadProgram) -> bool,
    ) -> weir_bpf::Result<()> {
        self.forget_known(identity, |program| is_wanted(&program.read))
    }

    /// Nobody is any longer who was identified before this time, and not since. The handle
    /// stays, with what its rules are: sockets have it that were accepted by one process of
    /// a program and are used by another one.
    pub fn unname_before(&mut self, identity: &Identity, time: Instant) {
        let known = self.known.iter();
        let before = known.filter(|(_, program)| program.since < time);
        let before: Vec<_> = before
            .map(|(number, program)| (*number, program.key))
            .collect();
        for (number, key) in before {
            if self.release_key(&key, number) {
                identity.unname(&key);
            }
        }
    }

    /// Forgets those of these that were identified some time ago.
    pub fn forget_old(
        &mut self,
        identity: &Identity,
        age: Duration,
        is_wanted: impl Fn(&ReadProgram) -> bool,
    ) -> weir_bpf::Result<()> {
        let now = Instant::now();
        self.forget_known(identity, |program| {
            now.duration_since(program.since) > age && is_wanted(&program.read)
        })
    }

    fn forget_known(
        &mut self,
        identity: &Identity,
        is_wanted: impl Fn(&KnownProgram) -> bool,
    ) -> weir_bpf::Result<()> {
        self.forget_by(is_wanted, |key, handle| {
            if let Some(key) = key {
                identity.unname(key);
            }
            identity.forget_identity(handle)
        })
    }

    /// Nobody has the keys of these any longer. Those whose handles are refused to be taken back
    /// stay, to be forgotten the next time; the others are forgotten all the same.
    fn forget_by<E>(
        &mut self,
        is_wanted: impl Fn(&KnownProgram) -> bool,
        mut take_back: impl FnMut(Option<&Key>, Handle) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = self.known.iter().filter(|(_, program)| is_wanted(program));
        let wanted: Vec<_> = wanted
            .map(|(number, program)| (*number, program.key, program.handle))
            .collect();
        let mut result = Ok(());
        for (number, key, handle) in wanted {
            self.changes += 1;
            let is_own = self.release_key(&key, number);
            match take_back(is_own.then_some(&key), handle) {
                Ok(()) => _ = self.known.remove(&number),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// The program with this handle.
    pub fn by_handle(&self, handle: Handle) -> Option<&KnownProgram> {
        let program = self.known.get(&handle.number())?;
        (program.handle == handle).then_some(program)
    }

    /// Who this is, if it is known.
    pub fn by_key(&self, key: &Key) -> Option<&KnownProgram> {
        self.known.get(self.by_key.get(key)?)
    }

    /// All with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &KnownProgram)> {
        self.known.values().map(|program| (program.handle, program))
    }

    /// Is this one known?
    pub fn has(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Those that are known, whoever their users are, and whether one of each runs no more as far
    /// as was seen: a thread has the files of its process, and may have another user than that.
    pub fn of_any_user(&self) -> HashMap<Key, bool> {
        let mut all = HashMap::new();
        for program in self.known.values() {
            *all.entry(of_any_user(&program.key)).or_default() |= program.is_idle();
        }
        all
    }

    /// A round over all processes, which began at this time, has met all but these, which are of
    /// any user; true: somebody runs no more who did before.
    pub fn end_round(&mut self, begun: Instant, unmet: &HashMap<Key, bool>) -> bool {
        let before = self.known.values_mut().filter(|one| one.since < begun);
        let mut is_news = false;
        for program in before {
            let was_idle = program.is_idle();
            program.idle = match unmet.contains_key(&of_any_user(&program.key)) {
                false => 0,
                true => program.idle.saturating_add(1),
            };
            is_news |= program.is_idle() && !was_idle;
        }
        is_news
    }

    /// The files of those that somebody runs, and that are known by their keys.
    pub fn files_in_use(&self) -> impl Iterator<Item = &FileKey> {
        let runs = |(number, program): &(&u16, &KnownProgram)| {
            !program.is_idle() && self.by_key.get(&program.key) == Some(*number)
        };
        let running = self.known.iter().filter(runs);
        running.flat_map(|(_, program)| &program.read.files)
    }

    /// What is in the executables of those that somebody runs.
    pub fn executables_in_use(&self) -> impl Iterator<Item = Digest> {
        let running = self.known.values().filter(|program| !program.is_idle());
        running.filter_map(|program| program.read.program.exe.as_ref()?.digest)
    }

    /// Nobody is any longer who has one of these files, and whom nobody runs: their keys. Their
    /// handles stay, as with [`Self::unname_before`].
    pub fn release_idle(&mut self, files: &BTreeSet<FileKey>) -> Vec<Key> {
        let has_one = |program: &KnownProgram| !program.read.files.is_disjoint(files);
        let known = self.known.iter();
        let idle = known.filter(|(_, program)| program.is_idle() && has_one(program));
        let idle: Vec<_> = idle
            .map(|(number, program)| (*number, program.key))
            .collect();
        let released = idle.into_iter();
        let released = released.filter(|(number, key)| self.release_key(key, *number));
        released.map(|(_, key)| key).collect()
    }

    /// Moves whenever somebody comes or goes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many had to go for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// One with a file that has no digest: executable, file, why.
    pub fn without_digest(&self) -> Option<(PathBuf, PathBuf, NoDigest)> {
        self.known.values().find_map(|program| {
            let (file, why) = program.read.without.clone()?;
            let exe = program.read.program.exe.as_ref();
            let exe = exe.map(|exe| exe.path.clone()).unwrap_or_default();
            Some((exe, file, why))
        })
    }

    /// The control groups of containers whose labels are not known, and why of one.
    pub fn without_labels(&self) -> (BTreeSet<&str>, Option<(&str, &NoLabels)>) {
        let mut groups = BTreeSet::new();
        let mut first = None;
        for program in self.known.values() {
            let read = &program.read;
            if let Some(why) = &read.without_labels
                && let Some((group, _)) = group_of(&read.program.cgroup)
            {
                groups.insert(group);
                first.get_or_insert((group, why));
            }
        }
        (groups, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key {
            set: [number, 7],
            cgroup: 0,
            uid: 0,
            space: 0,
            anonymous: false,
            altered: false,
        }
    }

    fn note(programs: &mut Programs, number: u64) -> Handle {
        let read = ReadProgram {
            program: weir_identity::Program::default(),
            files: Default::default(),
            executable: None,
            is_at_path: false,
            is_looked_up: false,
            without_labels: None,
            without: None,
        };
        programs.note(&key(number), read)
    }

    /// At the cap the one that is known for longest goes, and its handle is nobody's.
    #[test]
    fn of_many_programs_the_oldest_makes_room() {
        let mut programs = Programs::of(HashMap::new());
        let first = note(&mut programs, 0);
        for number in 1..MAX_IDENTITIES as u64 {
            note(&mut programs, number);
        }
        assert_eq!(
            (programs.evicted(), programs.iter().count()),
            (0, MAX_IDENTITIES)
        );
        assert!(programs.by_handle(first).is_some());
        let next = note(&mut programs, MAX_IDENTITIES as u64);
        assert_eq!(
            (programs.evicted(), programs.iter().count()),
            (1, MAX_IDENTITIES)
        );
        assert!(!programs.has(&key(0)) && programs.by_handle(first).is_none());
        // It has the number, and another serial.
        assert_eq!(next.number(), first.number());
        assert_ne!(next, first);
        // Who is known keeps his handle.
        assert_eq!(note(&mut programs, MAX_IDENTITIES as u64), next);
        assert_eq!(programs.evicted(), 1);
    }

    /// What is kept of a program that has ended keeps no file system busy, and nothing is concluded
    /// from its files any longer.
    #[test]
    fn of_programs_that_nobody_runs_no_file_is_in_use() {
        let mut programs = Programs::of(HashMap::new());
        let file = |ino| FileKey {
            dev: 1,
            ino,
            generation: 0,
            ctime: (0, 0),
            size: 0,
        };
        let handles = [1, 2, 3].map(|number| {
            let handle = note(&mut programs, number);
            let known = programs.known.get_mut(&handle.number()).unwrap();
            known.read.files = BTreeSet::from([file(number)]);
            handle
        });
        let of = |numbers: &[u64]| -> Vec<FileKey> { numbers.iter().map(|n| file(*n)).collect() };
        let in_use = |programs: &Programs| -> Vec<FileKey> {
            let mut files: Vec<_> = programs.files_in_use().copied().collect();
            files.sort();
            files
        };
        // A round that has met these, as processes of whatever users.
        let round = |programs: &mut Programs, begun: Instant, met: &[u64]| {
            let mut unmet = programs.of_any_user();
            for number in met {
                let seen = Key {
                    uid: 33,
                    ..key(*number)
                };
                unmet.remove(&of_any_user(&seen));
            }
            programs.end_round(begun, &unmet)
        };
        // One that was noted while the round went on may have been passed by.
        let before = Instant::now() - Duration::from_secs(1);
        for _ in 0..3 {
            assert!(!round(&mut programs, before, &[1]));
        }
        assert_eq!(in_use(&programs), of(&[1, 2, 3]));
        // One round is not enough, and who comes back is there again.
        assert!(!round(&mut programs, Instant::now(), &[1]));
        assert!(round(&mut programs, Instant::now(), &[1, 2]));
        assert_eq!(in_use(&programs), of(&[1, 2]));
        assert_eq!(
            programs.of_any_user(),
            HashMap::from([(key(1), false), (key(2), false), (key(3), true)])
        );
        assert!(!round(&mut programs, Instant::now(), &[1]));
        assert!(round(&mut programs, Instant::now(), &[1]));
        assert!(!round(&mut programs, Instant::now(), &[1]));
        assert_eq!(in_use(&programs), of(&[1]));
        let all = BTreeSet::from([file(1), file(2)]);
        assert_eq!(programs.release_idle(&all), [key(2)]);
        assert!(programs.release_idle(&all).is_empty());
        assert!(programs.has(&key(1)) && !programs.has(&key(2)) && programs.has(&key(3)));
        // Sockets that it has handed on are still its.
        assert!(programs.by_handle(handles[1]).is_some());
    }

    /// What the kernel refuses to forget is not as good as forgotten, and hides nothing behind it.
    #[test]
    fn programs_that_cannot_be_forgotten_are_tried_again() {
        let mut programs = Programs::of(HashMap::new());
        let handles = [1, 2, 3].map(|number| note(&mut programs, number));
        let mut asked = Vec::new();
        let refused = programs.forget_by(
            |_| true,
            |key, handle| {
                asked.push((key.copied(), handle));
                match handle == handles[0] {
                    true => Err("no memory"),
                    false => Ok(()),
                }
            },
        );
        assert_eq!(refused, Err("no memory"));
        let all = [1, 2, 3].map(|number| (Some(key(number)), handles[number as usize - 1]));
        assert_eq!(asked, all);
        assert!(!programs.has(&key(1)) && programs.by_handle(handles[0]).is_some());
        assert!(programs.by_handle(handles[1]).is_none());
        // Whoever is identified meanwhile by that key is another one.
        let other = note(&mut programs, 1);
        assert_ne!(other, handles[0]);
        asked.clear();
        let done: Result<(), ()> = programs.forget_by(
            |program| program.handle == handles[0],
            |key, handle| {
                asked.push((key.copied(), handle));
                Ok(())
            },
        );
        assert_eq!((done, asked), (Ok(()), vec![(None, handles[0])]));
        assert!(programs.has(&key(1)) && programs.by_handle(other).is_some());
    }

    #[test]
    fn a_handle_that_an_earlier_daemon_has_given_is_kept() {
        let given = Handle::new(5, 9);
        let mut programs = Programs::of(HashMap::from([(key(1), given)]));
        let other = note(&mut programs, 2);
        assert_ne!(other.number(), 5);
        assert_eq!(note(&mut programs, 1), given);
        assert_eq!(other.serial(), 11);
    }
}

//! The programs that the kernel knows, by their numbers there.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    time::{Duration, Instant},
};

use weir_bpf::identity::{Handle, Identity, Key, MAX_IDENTITIES};

use super::{
    containers::{NoLabels, group_of},
    objects::NoDigest,
    process::ReadProgram,
    take_if,
};

/// One that is known.
pub struct KnownProgram {
    key: Key,
    handle: Handle,
    since: Instant,
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

impl KnownProgram {
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
        for (number, program) in take_if(&mut self.known, is_wanted) {
            self.changes += 1;
            if self.release_key(&program.key, number) {
                identity.unname(&program.key);
            }
            identity.forget_identity(program.handle)?;
        }
        Ok(())
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

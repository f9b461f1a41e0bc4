//! Of which packages executables are, by dpkg's records and rpm's. One look goes through the
//! records of all packages, and reads the file: so it is done by a thread of its own, for all
//! files that wait at once, and remembered. Until then a program is one that is not known.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_identity::{
    Digest,
    hash::{self, FileKey, HashError, Limits},
    packages::{Records, Written},
};

use crate::threads;

/// Files whose package is remembered: of more the one that was looked up longest ago goes.
const MAX_KNOWN: usize = 4096;
/// Files that wait at a time; of more the package is looked up when they are asked for again.
const MAX_WAITING: usize = 256;
/// Processes of one file that are told of when its package is known.
const MAX_PROCESSES: usize = 64;
/// So long a file is read at most: one that takes longer is of no package. Anybody may have
/// a very long file that takes no room stand where a package has one.
const PER_FILE: Duration = Duration::from_secs(5);
/// So long the thread reads files in one pass, short ones first; the others, and those that
/// were asked for meanwhile, come in the next one.
const PER_PASS: Duration = Duration::from_secs(15);
/// So long an answer holds, if no record was written meanwhile.
const HOLDS: Duration = Duration::from_secs(600);

/// A file, and by what path it is on record if at all.
type FileAt = (PathBuf, FileKey);

/// What is remembered of packages, and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PackageStatus {
    /// Files whose package is known, or which no package has.
    pub known: usize,
    /// Files whose package is being looked up.
    pub waiting: usize,
    /// How often the records were gone through.
    pub passes: u64,
    /// How often a file was left for later because too many waited.
    pub put_off: u64,
}

#[derive(Debug)]
struct Known {
    /// With the SHA-256 that was read together with what the record has: who knows another one
    /// of the file has another file.
    package: Option<(String, Digest)>,
    at: Instant,
    /// When the records were written last.
    records: Option<Written>,
    /// Processes that had asked before the records were gone through: to each this is an
    /// answer once, also if the records were written since, as they are for as long as an upgrade
    /// takes.
    asked: BTreeSet<u32>,
}

struct Waiting {
    file: File,
    /// Those that have asked since the last pass began.
    processes: BTreeSet<u32>,
    /// Those that had asked before it did.
    early: BTreeSet<u32>,
}

#[derive(Default)]
struct Table {
    known: BTreeMap<FileAt, Known>,
    waiting: BTreeMap<FileAt, Waiting>,
    answered: BTreeSet<u32>,
    passes: u64,
    put_off: u64,
    is_started: bool,
}

struct Shared {
    records: Records,
    table: Mutex<Table>,
    work: Condvar,
}

/// The packages of executables.
pub(super) struct Packages(Arc<Shared>);

impl Default for Packages {
    fn default() -> Self {
        Self::of_records(Records::default())
    }
}

impl Table {
    fn note(&mut self, at: FileAt, known: Known) {
        if !self.known.contains_key(&at) && self.known.len() >= MAX_KNOWN {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.at);
            if let Some(oldest) = oldest.map(|(at, _)| at.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(at, known);
    }

    /// The same of a file that has waited.
    fn answer(&mut self, at: FileAt, mut known: Known) {
        known.asked = self.release(&at);
        self.note(at, known);
    }

    /// Nobody waits for this file any more, and who has waited asks again. Those that had
    /// asked before the pass began.
    fn release(&mut self, at: &FileAt) -> BTreeSet<u32> {
        let Some(waiting) = self.waiting.remove(at) else {
            return BTreeSet::new();
        };
        self.answered.extend(&waiting.early);
        self.answered.extend(&waiting.processes);
        waiting.early
    }

    /// Has nobody wait for any file, as [`Self::release`] does for one.
    fn release_all(&mut self) {
        let all: Vec<_> = self.waiting.keys().cloned().collect();
        for at in &all {
            self.release(at);
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The packages of these files, in one pass: each is noted at once, short files first.
    /// Those are left out that the time, from the first file on, is too short for.
    fn look(
        &self,
        mut files: Vec<(FileAt, File)>,
        until: Option<Instant>,
        note: impl Fn(&mut Table, FileAt, Known),
    ) {
        let records = self.records.written();
        let paths: Vec<_> = files.iter().map(|((path, _), _)| path.as_path()).collect();
        self.table().passes += 1;
        let (recorded, error) = self.records.of(&paths);
        if let Some(error) = error {
            tracing::warn!("not all records of packages were read: {error}");
        }
        let length = |file: &File| file.metadata().map_or(u64::MAX, |about| about.len());
        files.sort_by_cached_key(|(_, file)| length(file));
        let until = until.unwrap_or_else(|| Instant::now() + PER_PASS);
        for (at, file) in files {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let mut package = None;
            if let Some(recorded) = recorded.get(&at.0) {
                let limits = Limits {
                    time: PER_FILE.min(left),
                    ..Limits::default()
                };
                match hash::file_with_md5(&file, limits) {
                    Ok((hashed, md5)) => {
                        let digest = hashed.trusted();
                        let digest = digest.filter(|digest| recorded.is_of(*digest, md5));
                        package = digest.map(|digest| (recorded.package.clone(), digest));
                    }
                    // In the next pass it comes sooner.
                    Err(HashError::TooSlow(_)) if left < PER_FILE => break,
                    Err(error) => tracing::warn!(
                        "{:?} is of no package: it was not compared with the record of {:?} ({error}; it is read for {} s at most)",
                        at.0,
                        recorded.package,
                        PER_FILE.as_secs()
                    ),
                }
            }
            let known = Known {
                package,
                at: Instant::now(),
                records: Some(records.clone()),
                asked: BTreeSet::new(),
            };
            note(&mut self.table(), at, known);
        }
    }

    fn known(
        &self,
        table: &mut Table,
        at: &FileAt,
        pid: Option<u32>,
    ) -> Option<Option<(String, Digest)>> {
        let known = table.known.get_mut(at)?;
        if known.at.elapsed() >= HOLDS {
            return None;
        }
        // Also where the records are the same: by the next time they may be others.
        let has_waited = pid.is_some_and(|pid| known.asked.remove(&pid));
        let holds = has_waited || known.records == Some(self.records.written());
        holds.then(|| known.package.clone())
    }
}

impl Packages {
    fn of_records(records: Records) -> Self {
        Self(Arc::new(Shared {
            records,
            table: Mutex::default(),
            work: Condvar::new(),
        }))
    }

    /// The package that has this very file, which would be on record by this path, and whose
    /// SHA-256 is this one, as long as nobody can write to it: a store to a mapping of a file
    /// need not leave a time stamp. The inner `None`: no package has it. The outer one: it is
    /// looked up, and the process is among [`Self::take_answered`] once that is done.
    pub fn of(&self, path: &Path, file: File, digest: Digest, pid: u32) -> Option<Option<String>> {
        let key = FileKey::of(&file.metadata().ok()?);
        let at = (path.to_owned(), key);
        let mut table = self.0.table();
        if let Some(found) = self.0.known(&mut table, &at, Some(pid)) {
            let package = found.filter(|(_, read)| *read == digest);
            return Some(package.map(|(package, _)| package));
        }
        if let Some(waiting) = table.waiting.get_mut(&at) {
            if waiting.processes.len() + waiting.early.len() < MAX_PROCESSES {
                waiting.processes.insert(pid);
            }
            return None;
        }
        if table.waiting.len() >= MAX_WAITING {
            table.put_off += 1;
            return None;
        }
        let waiting = Waiting {
            file,
            processes: BTreeSet::from([pid]),
            early: BTreeSet::new(),
        };
        table.waiting.insert(at, waiting);
        let starts = !std::mem::replace(&mut table.is_started, true);
        drop(table);
        self.0.work.notify_one();
        if starts {
            let shared = Arc::downgrade(&self.0);
            if let Err(error) = threads::spawn("weir-app-packages", move || look_up(&shared)) {
                tracing::error!("packages in [app.rules] are not looked up: {error}");
                self.0.table().is_started = false;
            }
        }
        None
    }

    /// Looks these up now, in one pass, as far as there is time: before rules come into force
    /// nobody waits, and everybody is asked about.
    pub fn look_up(&self, files: impl Iterator<Item = (PathBuf, File)>, until: Instant) {
        let mut wanted = BTreeMap::new();
        for (path, file) in files {
            let Ok(about) = file.metadata() else { continue };
            let at = (path, FileKey::of(&about));
            if self.0.known(&mut self.0.table(), &at, None).is_none() && wanted.len() < MAX_KNOWN {
                wanted.insert(at, file);
            }
        }
        if wanted.is_empty() {
            return;
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        self.0.look(wanted, Some(until), Table::note);
    }

    /// Processes of files that have waited, and whose package is known now.
    pub fn take_answered(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.0.table().answered)
    }

    /// How much is remembered, and how much waits.
    pub fn status(&self) -> PackageStatus {
        let table = self.0.table();
        PackageStatus {
            known: table.known.len(),
            waiting: table.waiting.len(),
            passes: table.passes,
            put_off: table.put_off,
        }
    }
}

/// The thread ends, be it by a panic: the next one who asks makes another.
struct Leaving<'a>(&'a Weak<Shared>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        tracing::error!("the thread that looks up packages has ended: it is started again");
        let mut table = shared.table();
        table.is_started = false;
        table.release_all();
    }
}

/// The thread's work, until nobody asks any more.
fn look_up(shared: &Weak<Shared>) {
    let _leaving = Leaving(shared);
    while let Some(shared) = shared.upgrade() {
        let mut table = shared.table();
        let waiting = table.waiting.iter_mut();
        let taken = waiting.filter_map(|(at, waiting)| {
            waiting.early.append(&mut waiting.processes);
            Some((at.clone(), waiting.file.try_clone().ok()?))
        });
        let taken: Vec<_> = taken.collect();
        if taken.is_empty() {
            // No copy of a descriptor could be made.
            table.release_all();
            let waited = shared.work.wait_timeout(table, Duration::from_secs(1));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            continue;
        }
        let mut without: BTreeSet<_> = table.waiting.keys().cloned().collect();
        for (at, _) in &taken {
            without.remove(at);
        }
        drop(table);
        shared.look(taken, None, Table::answer);
        let mut table = shared.table();
        // Those without a copy of their descriptor.
        for at in &without {
            table.release(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// md5sum of "one".
    const ONE: &str = "f97c5d29941bfb1b2fdab0874906ab82";

    struct Lab {
        dir: tempfile::TempDir,
        packages: Packages,
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let info = dir.path().join("info");
            fs::create_dir(&info).unwrap();
            let packages = Packages::of_records(Records::of_dpkg(&info));
            Self { dir, packages }
        }

        fn program(&self, name: &str) -> PathBuf {
            let path = self.dir.path().join(name);
            fs::write(&path, "one").unwrap();
            path
        }

        fn record(&self, package: &str, program: &Path) {
            let name = program.to_str().unwrap().trim_start_matches('/');
            let file = self
                .dir
                .path()
                .join("info")
                .join(format!("{package}.md5sums"));
            fs::write(file, format!("{ONE}  {name}\n")).unwrap();
        }

        fn of(&self, path: &Path, pid: u32) -> Option<Option<String>> {
            let limits = Limits {
                bytes: 1 << 20,
                ..Limits::default()
            };
            let digest = hash::path(path, limits).map_or(Digest::NONE, |hashed| hashed.digest);
            self.with_digest(path, digest, pid)
        }

        fn with_digest(&self, path: &Path, digest: Digest, pid: u32) -> Option<Option<String>> {
            self.packages
                .of(path, File::open(path).unwrap(), digest, pid)
        }

        /// What is said once it is known.
        fn later(&self, path: &Path) -> Option<String> {
            for _ in 0..1000 {
                if let Some(found) = self.of(path, 1) {
                    return found;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("{} stays unknown", path.display());
        }
    }

    #[test]
    fn many_processes_of_a_file_cost_one_pass_over_the_records() {
        let lab = Lab::new();
        let tool = lab.program("tool");
        lab.record("tools", &tool);
        assert_eq!(lab.of(&tool, 7), None);
        assert_eq!(lab.later(&tool).as_deref(), Some("tools"));
        assert!(lab.packages.take_answered().contains(&7));
        for pid in 0..1000 {
            assert_eq!(lab.of(&tool, pid).unwrap().as_deref(), Some("tools"));
        }
        assert_eq!(lab.packages.status().passes, 1);
        // One whose content was another, without a trace, when it was read for a digest.
        assert_eq!(lab.with_digest(&tool, Digest([1; 32]), 7), Some(None));
        // dpkg writes: an upgrade, which gives the file to another package.
        fs::remove_file(lab.dir.path().join("info/tools.md5sums")).unwrap();
        lab.record("other", &tool);
        assert_eq!(lab.later(&tool).as_deref(), Some("other"));
        // Another file at its path.
        fs::write(&tool, "two").unwrap();
        assert_eq!(lab.later(&tool), None);
        // All that run are looked up at once.
        let programs: Vec<_> = (0..20).map(|n| lab.program(&format!("p{n}"))).collect();
        let passes = lab.packages.status().passes;
        let open = programs
            .iter()
            .map(|path| (path.clone(), File::open(path).unwrap()));
        let until = Instant::now() + Duration::from_secs(60);
        lab.packages.look_up(open, until);
        assert!(programs.iter().all(|path| lab.of(path, 1) == Some(None)));
        assert_eq!(lab.packages.status().passes, passes + 1);
    }

    #[test]
    fn a_look_that_takes_long_keeps_nobody_waiting_and_what_waits_is_bounded() {
        let lab = Lab::new();
        // A record that nobody writes: who reads it waits.
        let slow = lab.dir.path().join("info/slow.md5sums");
        let done = std::process::Command::new("mkfifo").arg(&slow).status();
        assert!(done.unwrap().success());
        let begun = Instant::now();
        let programs: Vec<_> = (0..MAX_WAITING + 10)
            .map(|n| lab.program(&format!("p{n}")))
            .collect();
        for path in &programs {
            assert_eq!(lab.of(path, 1), None);
        }
        for pid in 0..2 * MAX_PROCESSES as u32 {
            assert_eq!(lab.of(&programs[0], pid), None);
        }
        assert!(begun.elapsed() < Duration::from_secs(20));
        let status = lab.packages.status();
        assert_eq!((status.waiting, status.put_off), (MAX_WAITING, 10));
        assert!(
            lab.packages
                .0
                .table()
                .waiting
                .values()
                .all(|one| one.processes.len() <= MAX_PROCESSES)
        );
        // It is written, and all are known; the next pass does not meet it.
        let writer = File::options().write(true).open(&slow).unwrap();
        fs::remove_file(&slow).unwrap();
        drop(writer);
        for path in &programs {
            assert_eq!(lab.later(path), None);
        }
    }

    #[test]
    fn of_many_files_the_one_looked_up_longest_ago_goes() {
        let lab = Lab::new();
        let tool = lab.program("tool");
        let key = FileKey::of(&fs::metadata(&tool).unwrap());
        let mut table = lab.packages.0.table();
        for n in 0..MAX_KNOWN + 5 {
            let known = Known {
                package: None,
                at: Instant::now(),
                records: None,
                asked: BTreeSet::new(),
            };
            table.note((PathBuf::from(format!("/{n}")), key), known);
        }
        assert_eq!(table.known.len(), MAX_KNOWN);
        assert!(!table.known.contains_key(&(PathBuf::from("/4"), key)));
        assert!(table.known.contains_key(&(PathBuf::from("/5"), key)));
    }

    #[test]
    fn who_has_waited_is_answered_while_dpkg_goes_on_writing() {
        let lab = Lab::new();
        let tool = lab.program("tool");
        lab.record("tools", &tool);
        assert_eq!(lab.of(&tool, 7), None);
        let is_answered = || {
            std::thread::sleep(Duration::from_millis(10));
            lab.packages.take_answered().contains(&7)
        };
        assert!((0..1000).any(|_| is_answered()));
        std::thread::sleep(Duration::from_millis(20));
        lab.record("more", &lab.program("more"));
        assert_eq!(lab.of(&tool, 7), Some(Some("tools".to_owned())));
        // Who asks only now is told what dpkg has by now.
        assert_eq!(lab.of(&tool, 8), None);
        assert_eq!(lab.later(&tool).as_deref(), Some("tools"));
    }

    #[test]
    fn a_very_long_file_keeps_no_other_waiting_and_is_of_no_package() {
        let lab = Lab::new();
        let (long, tool) = (lab.program("long"), lab.program("tool"));
        let file = File::options().write(true).open(&long).unwrap();
        // It takes no room.
        file.set_len(4 << 30).unwrap();
        for path in [&long, &tool] {
            lab.record(path.file_name().unwrap().to_str().unwrap(), path);
        }
        let open = [&long, &tool].map(|path| (path.clone(), File::open(path).unwrap()));
        let begun = Instant::now();
        let until = begun + Duration::from_millis(300);
        lab.packages.look_up(open.into_iter(), until);
        assert!(begun.elapsed() < Duration::from_secs(3));
        assert_eq!(lab.of(&tool, 1), Some(Some("tool".to_owned())));
        assert_eq!(lab.later(&long), None);
    }

    #[test]
    fn a_thread_that_ends_by_a_panic_is_started_again_and_who_has_waited_asks_again() {
        let lab = Lab::new();
        let tool = lab.program("tool");
        lab.record("tools", &tool);
        // No thread yet.
        lab.packages.0.table().is_started = true;
        assert_eq!(lab.of(&tool, 7), None);
        let shared = Arc::downgrade(&lab.packages.0);
        let ended = std::thread::spawn(move || {
            let _leaving = Leaving(&shared);
            panic!("as somebody who reads records may");
        });
        assert!(ended.join().is_err());
        assert!(lab.packages.take_answered().contains(&7));
        assert_eq!(lab.later(&tool).as_deref(), Some("tools"));
    }
}

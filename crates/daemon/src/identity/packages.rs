//! Of which packages executables are, by dpkg's records. One look goes through the records
//! of all packages, and reads the file: so it is done by a thread of its own, for all files
//! that wait at once, and remembered. Until then a program is one that is not known.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use serde::Serialize;
use weir_identity::{
    hash::FileKey,
    packages::{self, DPKG_INFO},
};

use crate::threads;

/// Files whose package is remembered: of more the one that was looked up longest ago goes.
const MAX_KNOWN: usize = 4096;
/// Files that wait at a time; of more the package is looked up when they are asked for again.
const MAX_WAITING: usize = 256;
/// Processes of one file that are told of when its package is known.
const MAX_PROCESSES: usize = 64;
/// So long an answer holds, if dpkg has written nothing meanwhile.
const HOLDS: Duration = Duration::from_secs(600);

/// A file, and by what path dpkg has it on record if at all.
type FileAt = (PathBuf, FileKey);

/// What is remembered of packages, and what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PackageStatus {
    /// Files whose package is known, or which no package has.
    pub known: usize,
    /// Files whose package is being looked up.
    pub waiting: usize,
    /// How often dpkg's records were gone through.
    pub passes: u64,
    /// How often a file was left for later because too many waited.
    pub put_off: u64,
}

#[derive(Debug)]
struct Known {
    package: Option<String>,
    at: Instant,
    /// When the records were written last.
    records: Option<(i64, i64)>,
}

struct Waiting {
    file: File,
    processes: BTreeSet<u32>,
    is_taken: bool,
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
    info: PathBuf,
    table: Mutex<Table>,
    work: Condvar,
}

/// The packages of executables.
pub(super) struct Packages(Arc<Shared>);

impl Default for Packages {
    fn default() -> Self {
        Self::of_records(Path::new(DPKG_INFO))
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
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When dpkg has written its records last: it puts each in its place by a rename.
    fn written(&self) -> Option<(i64, i64)> {
        let about = fs::metadata(&self.info).ok()?;
        Some((about.mtime(), about.mtime_nsec()))
    }

    /// The packages of these files, in one pass; those that `until` leaves no time for are
    /// left out.
    fn look(&self, files: &[(FileAt, File)], until: Option<Instant>) -> Vec<(FileAt, Known)> {
        let records = self.written();
        let paths: Vec<_> = files.iter().map(|((path, _), _)| path.as_path()).collect();
        self.table().passes += 1;
        let recorded = packages::recorded(&self.info, &paths).unwrap_or_default();
        let in_time = |_: &&(FileAt, File)| until.is_none_or(|until| Instant::now() < until);
        let files = files.iter().take_while(in_time).map(|(at, file)| {
            let owner = recorded
                .get(&at.0)
                .filter(|recorded| packages::is_as_recorded(file, recorded).unwrap_or_default());
            let known = Known {
                package: owner.map(|recorded| recorded.package.clone()),
                at: Instant::now(),
                records,
            };
            (at.clone(), known)
        });
        files.collect()
    }

    fn known(&self, table: &Table, at: &FileAt) -> Option<Option<String>> {
        let known = table.known.get(at)?;
        let holds = known.at.elapsed() < HOLDS && known.records == self.written();
        holds.then(|| known.package.clone())
    }
}

impl Packages {
    fn of_records(info: &Path) -> Self {
        Self(Arc::new(Shared {
            info: info.to_owned(),
            table: Mutex::default(),
            work: Condvar::new(),
        }))
    }

    /// The package that has this very file, which dpkg would have on record by this path;
    /// the inner `None`: no package has it. The outer one: it is looked up, and the process is among
    /// [`Self::take_answered`] once that is done.
    pub fn of(&self, path: &Path, file: File, pid: u32) -> Option<Option<String>> {
        let key = FileKey::of(&file.metadata().ok()?);
        let at = (path.to_owned(), key);
        let mut table = self.0.table();
        if let Some(package) = self.0.known(&table, &at) {
            return Some(package);
        }
        if let Some(waiting) = table.waiting.get_mut(&at) {
            if waiting.processes.len() < MAX_PROCESSES {
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
            is_taken: false,
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
            if self.0.known(&self.0.table(), &at).is_none() && wanted.len() < MAX_KNOWN {
                wanted.insert(at, file);
            }
        }
        if wanted.is_empty() {
            return;
        }
        let wanted: Vec<_> = wanted.into_iter().collect();
        for (at, known) in self.0.look(&wanted, Some(until)) {
            self.0.table().note(at, known);
        }
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

/// The thread's work, until nobody asks any more.
fn look_up(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let mut table = shared.table();
        let waiting = table.waiting.iter_mut();
        let taken = waiting.filter_map(|(at, waiting)| {
            waiting.is_taken = true;
            Some((at.clone(), waiting.file.try_clone().ok()?))
        });
        let taken: Vec<_> = taken.collect();
        if taken.is_empty() {
            // No copy of a descriptor could be made: they are asked for again.
            table.waiting.clear();
            let waited = shared.work.wait_timeout(table, Duration::from_secs(1));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            continue;
        }
        drop(table);
        let found = shared.look(&taken, None);
        let mut table = shared.table();
        for (at, known) in found {
            if let Some(waiting) = table.waiting.remove(&at) {
                table.answered.extend(waiting.processes);
            }
            table.note(at, known);
        }
        // Those without a copy of their descriptor.
        table.waiting.retain(|_, waiting| !waiting.is_taken);
    }
}

#[cfg(test)]
mod tests {
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
            let packages = Packages::of_records(&info);
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
            self.packages.of(path, File::open(path).unwrap(), pid)
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
            };
            table.note((PathBuf::from(format!("/{n}")), key), known);
        }
        assert_eq!(table.known.len(), MAX_KNOWN);
        assert!(!table.known.contains_key(&(PathBuf::from("/4"), key)));
        assert!(table.known.contains_key(&(PathBuf::from("/5"), key)));
    }
}

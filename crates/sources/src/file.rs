//! Log files, followed through rotation (rename, copytruncate, deletion and
//! re-creation), found by globs, woken by inotify. Each complete line is
//! delivered once and in order; a line without its newline waits. A file is read
//! once, however many subscriptions it belongs to: each line says which ones.
//!
//! A file is its (device, inode), held open: a renamed file is read to its end
//! before its successor begins, and its inode cannot be used again meanwhile.
//! Truncation is seen by the size and by the first bytes of the file, so a file
//! that was rewritten in place is read anew even when it is longer than before.
//! Lines that were written and truncated between two reads are lost: nobody
//! has them any more. A file that takes the name of another and is a copy of it, maybe
//! an edited one, goes on where that stood ([`Tail::go_on_in`]).

mod newlines;
mod reached;
mod scan;
mod tail;

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, ReadFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use weir_core::detect::Age;

use crate::{BatchInfo, Origin, Problem, Source, SourceError};
use tail::Tail;

pub use reached::FilePositions;

/// Looked at without an event this often: inotify does not see everything
/// (network file systems, targets of symbolic links).
const RESCAN: Duration = Duration::from_secs(5);

/// The time between two looks where there is no inotify at all.
const POLL: Duration = Duration::from_secs(1);

/// What inotify lacks when it cannot be had.
const INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";

/// A file that was rotated away is read on until nothing has come for so long:
/// its writer may not have opened the new one yet.
const LINGER: Duration = Duration::from_secs(60);

/// The same where nobody has written to the new one, or there is none: its writer was
/// not told, and may write a line an hour.
const LINGER_UNTOLD: Duration = Duration::from_secs(24 * 3600);

/// The most files that one source follows.
const MAX_FILES: usize = 4096;

/// The most files that linger; those go first to which nothing has come for
/// longest.
const MAX_LINGERING: usize = 64;

/// The most files that may be a copy of one that was truncated and are looked into.
const MAX_COPIES: usize = 64;

/// The most files that are away and whose positions are kept until they are back.
const MAX_AWAY: usize = 1024;

/// The files to read, and the place to begin at.
#[derive(Clone, Debug)]
pub struct FileConfig {
    /// Patterns by reader: for each reader absolute paths, with `*`, `?` and `[…]`; `**`
    /// for any directories. [`Origin::readers`] counts them from 0.
    pub subscriptions: Vec<Vec<String>>,
    /// The place to begin at.
    pub from: Start,
    /// The age of lines that are there already.
    pub held: Age,
}

/// The place where reading begins; files that appear later are read from their beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With lines that come from now on.
    End,
    /// With the first line of each file.
    Beginning,
    /// With the lines in the last so many bytes of each file; these are of [`Age::Backlog`].
    Tail(u64),
    /// Where an earlier run stood. A file that was rotated meanwhile is
    /// finished first, if it is still in its directory. Files without a
    /// position are new and read from their beginning, except for those that
    /// none of the patterns of that run finds.
    Saved {
        /// How far each file was read.
        positions: Vec<Position>,
        /// The patterns of that run.
        patterns: Vec<String>,
    },
}

/// Does a pattern find this path?
pub fn finds(pattern: &str, path: &Path) -> bool {
    let options = glob::MatchOptions {
        require_literal_separator: true,
        ..glob::MatchOptions::default()
    };
    glob::Pattern::new(pattern).is_ok_and(|pattern| pattern.matches_path_with(path, options))
}

/// How far a file was delivered; for the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The path by which the file was found.
    pub path: PathBuf,
    /// The device, for people: numbers may change with a reboot.
    pub device: u64,
    /// The file's inode number.
    pub inode: u64,
    /// Bytes delivered as complete lines.
    pub offset: u64,
    /// A hash of the file's first bytes.
    pub fingerprint: Fingerprint,
}

/// The first bytes of a file, hashed: is an inode still the same log?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The number of bytes that are hashed.
    pub len: u16,
    /// The FNV-1a hash of these bytes, signed: SQLite's integers are.
    pub hash: i64,
}

impl Fingerprint {
    /// The fingerprint of a file of which nothing is known but its name.
    pub fn nothing() -> Self {
        Self::of(b"")
    }

    fn of(bytes: &[u8]) -> Self {
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            len: bytes.len() as u16,
            hash: i64::from_ne_bytes(hash.to_ne_bytes()),
        }
    }
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FileId {
    device: u64,
    inode: u64,
}

/// Files being followed.
pub struct FileSource {
    /// Absent while the host has none left: then files are looked at.
    inotify: Option<OwnedFd>,
    watch: fn() -> Result<OwnedFd, Errno>,
    patterns: Vec<Subscribed>,
    subscriptions: usize,
    /// Watch descriptors by path; a directory may have several names.
    directories: HashMap<PathBuf, i32>,
    tails: HashMap<FileId, Tail>,
    /// Files that the patterns match now, by path.
    paths: BTreeMap<PathBuf, FileId>,
    /// Where an earlier run stood in files that are not there: their file system
    /// may not be mounted yet.
    away: Vec<Position>,
    reached: FilePositions,
    problems: BTreeMap<PathBuf, String>,
    /// Warnings of the next batch.
    lost: Vec<String>,
    scanned: Option<Instant>,
    rescan: bool,
    /// Numbers tails in the order in which they are read.
    next_order: u64,
    buffer: Vec<u8>,
}

/// A pattern, and the numbers of the subscriptions that have it.
#[derive(Clone, Debug)]
struct Subscribed {
    pattern: String,
    by: Vec<usize>,
}

/// Each pattern once, in the order in which they came, those without a wildcard
/// first: of more files than [`MAX_FILES`] the ones that have a name of their own are
/// read.
fn subscribed(subscriptions: Vec<Vec<String>>) -> Vec<Subscribed> {
    let mut all: Vec<Subscribed> = Vec::new();
    for (number, patterns) in subscriptions.into_iter().enumerate() {
        for pattern in patterns {
            match all.iter_mut().find(|known| known.pattern == pattern) {
                Some(known) => known.by.push(number),
                None => all.push(Subscribed {
                    pattern,
                    by: vec![number],
                }),
            }
        }
    }
    all.sort_by_key(|subscribed| scan::has_wildcard(Path::new(&subscribed.pattern)));
    all
}

fn watch() -> Result<OwnedFd, Errno> {
    inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
}

impl FileSource {
    /// Checks the patterns and finds the files. That one is missing or
    /// unreadable is no error: the first `read_batch` tells, and it is waited
    /// for.
    pub fn open(config: FileConfig) -> Result<Self, SourceError> {
        Self::open_with(config, watch)
    }

    /// `watch` makes an inotify instance, if there is one left.
    fn open_with(
        config: FileConfig,
        watch: fn() -> Result<OwnedFd, Errno>,
    ) -> Result<Self, SourceError> {
        for pattern in config.subscriptions.iter().flatten() {
            let wrong = |reason: String| SourceError::Pattern {
                pattern: pattern.clone(),
                reason,
            };
            glob::Pattern::new(pattern).map_err(|e| wrong(e.to_string()))?;
            if !pattern.starts_with('/') {
                return Err(wrong("write it as an absolute path".into()));
            }
        }
        let mut source = Self {
            inotify: None,
            watch,
            subscriptions: config.subscriptions.len(),
            patterns: subscribed(config.subscriptions),
            directories: HashMap::new(),
            tails: HashMap::new(),
            paths: BTreeMap::new(),
            away: Vec::new(),
            reached: FilePositions::default(),
            problems: BTreeMap::new(),
            lost: Vec::new(),
            scanned: None,
            rescan: false,
            next_order: 0,
            buffer: vec![0; 128 * 1024],
        };
        source.begin(&config.from, config.held);
        source.publish();
        Ok(source)
    }

    /// How far each file was delivered.
    pub fn positions(&self) -> Vec<Position> {
        self.reached.positions()
    }

    /// Other files are followed from now on.
    fn publish(&self) {
        let tails = self.tails.values();
        let files = tails.map(|tail| (tail.order, tail.position()));
        self.reached.replace(&self.away, files);
    }

    fn rescan_after(&self) -> Duration {
        match self.inotify {
            Some(_) => RESCAN,
            None => POLL,
        }
    }

    fn wait(&self, timeout: Duration) -> Result<(), SourceError> {
        let Some(inotify) = &self.inotify else {
            std::thread::sleep(timeout);
            return Ok(());
        };
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(3600) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(inotify, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(SourceError::Io {
                what: "cannot wait for log files".into(),
                error: error.into(),
            }),
        }
    }

    fn take_events(&mut self) -> Result<(), SourceError> {
        let Some(inotify) = &self.inotify else {
            return Ok(());
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => {
                    return Err(SourceError::Io {
                        what: "cannot read inotify events".into(),
                        error: error.into(),
                    });
                }
            };
            let (wd, what) = (event.wd(), event.events());
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.rescan = true;
                self.tails.values_mut().for_each(|tail| tail.dirty = true);
                continue;
            }
            let moved = what.intersects(ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF);
            if let Some(tail) = self.tails.values_mut().find(|tail| tail.watch == Some(wd)) {
                tail.dirty = true;
                if what.contains(ReadFlags::IGNORED) {
                    tail.watch = None;
                }
                self.rescan |= moved || what.contains(ReadFlags::ATTRIB);
                continue;
            }
            self.rescan = true;
            if moved || what.contains(ReadFlags::IGNORED) {
                // Another directory may have this name now.
                let before = self.directories.len();
                self.directories.retain(|_, watch| *watch != wd);
                if before > self.directories.len() && what.contains(ReadFlags::MOVE_SELF) {
                    // Fails when it is gone by itself.
                    let _ = inotify::remove_watch(inotify, wd);
                }
            }
        }
    }

    /// Reads what is new, files that were rotated away before their
    /// successors.
    fn read_tails(&mut self, info: &mut BatchInfo, each: &mut dyn FnMut(&[u8], Origin<'_>)) {
        let mut dirty: Vec<_> = self
            .tails
            .values()
            .filter(|tail| tail.dirty)
            .map(|tail| (tail.order, tail.id))
            .collect();
        dirty.sort_unstable();
        // Names of rotated files that are not read to their end yet.
        let mut unfinished: Vec<PathBuf> = Vec::new();
        for (_, id) in dirty {
            let tail = self.tails.get_mut(&id).expect("just listed");
            if unfinished.contains(&tail.path) {
                continue;
            }
            let read = tail.read(&mut self.buffer, &self.reached, info, each);
            if read.is_ok() && tail.trouble.take().is_some() {
                self.rescan = true; // Which tells that it is over.
            }
            match read {
                Ok(true) => {
                    info.more = true;
                    if tail.retired.is_some() {
                        unfinished.push(tail.path.clone());
                    }
                }
                Ok(false) => tail.dirty = false,
                Err(error) => {
                    tail.dirty = false;
                    let (path, message) = (tail.path.clone(), format!("cannot read: {error}"));
                    tail.trouble = Some(message.clone());
                    self.problem(info, path, message);
                }
            }
        }
        let mut over: Vec<_> = self
            .tails
            .values()
            .filter(|tail| !tail.dirty)
            .filter_map(|tail| Some((tail.retired?, tail.id)))
            .collect();
        over.sort_unstable();
        let too_many = over.len().saturating_sub(MAX_LINGERING);
        let before = self.tails.len();
        for (n, (since, id)) in over.into_iter().enumerate() {
            if (n < too_many || self.is_over(id, since.elapsed()))
                && let Some(mut tail) = self.tails.remove(&id)
            {
                if let (Some(watch), Some(inotify)) = (tail.watch, &self.inotify) {
                    // Fails when the file is gone.
                    let _ = inotify::remove_watch(inotify, watch);
                }
                // Its last line will not be finished any more.
                tail.flush(info, each);
                self.reached.set(tail.order, tail.position());
                tail.close();
            }
        }
        if self.tails.len() < before {
            self.publish();
        }
    }

    /// Will nothing come any more in a file that was rotated away and has been quiet
    /// for so long?
    fn is_over(&self, id: FileId, quiet: Duration) -> bool {
        let Some(tail) = self.tails.get(&id) else {
            return true;
        };
        let successor = self.paths.get(&tail.path).and_then(|id| self.tails.get(id));
        quiet > LINGER
            && (quiet > LINGER_UNTOLD || successor.is_some_and(Tail::is_begun) || tail.is_deleted())
    }

    /// Tells of a problem, once.
    fn problem(&mut self, info: &mut BatchInfo, path: PathBuf, message: String) {
        if self.problems.get(&path) != Some(&message) {
            self.problems.insert(path.clone(), message.clone());
            info.problems.push(Problem {
                path,
                message,
                resolved: false,
            });
        }
    }

    /// For each subscription, whether its patterns find a file by this name.
    fn readers_of(&self, path: &Path) -> Vec<bool> {
        let mut readers = vec![false; self.subscriptions];
        let finding = self.patterns.iter().filter(|p| finds(&p.pattern, path));
        finding
            .flat_map(|subscribed| &subscribed.by)
            .for_each(|number| readers[*number] = true);
        readers
    }

    fn follow(&mut self, file: File, id: FileId, path: PathBuf) -> &mut Tail {
        let order = self.next_order;
        self.next_order += 1;
        let watch = scan::watch_file(self.inotify.as_ref(), &file, &path);
        let readers = self.readers_of(&path);
        let mut tail = Tail::new(file, id, path, order, watch);
        // It may be new, or an old log that was put here.
        tail.holds(Age::Unknown);
        tail.readers = readers;
        self.tails.entry(id).or_insert(tail)
    }
}

impl Source for FileSource {
    fn read_batch(
        &mut self,
        timeout: Duration,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> Result<BatchInfo, SourceError> {
        let deadline = Instant::now() + timeout;
        let mut info = BatchInfo {
            warnings: std::mem::take(&mut self.lost),
            ..BatchInfo::default()
        };
        loop {
            self.take_events()?;
            let due = self
                .scanned
                .is_none_or(|at| at.elapsed() >= self.rescan_after());
            if self.rescan || due {
                self.scan(&mut info);
                self.publish();
                if due {
                    self.tails.values_mut().for_each(|tail| tail.dirty = true);
                }
            }
            self.read_tails(&mut info, each);
            let now = Instant::now();
            if info.lines > 0 || info.more || !info.problems.is_empty() || now >= deadline {
                return Ok(info);
            }
            let scan = self.scanned.map_or(now, |at| at + self.rescan_after());
            self.wait(deadline.min(scan).saturating_duration_since(now))?;
        }
    }

    fn position(&self) -> Option<String> {
        serde_json::to_string(&self.positions()).ok()
    }

    fn reached(&self) -> Option<FilePositions> {
        Some(self.reached.clone())
    }

    /// All that was found so far: a problem may be older than the batch.
    fn unreadable(&self, _first: &BatchInfo) -> Vec<PathBuf> {
        self.problems.keys().cloned().collect()
    }
}

impl Drop for FileSource {
    fn drop(&mut self) {
        self.tails.drain().for_each(|(_, tail)| tail.close());
    }
}

#[cfg(test)]
mod tests;

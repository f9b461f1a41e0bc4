//! Which files the patterns match now, which directories must be watched to
//! learn of others, and where reading begins.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::fs::{
    OFlags,
    inotify::{self, WatchFlags},
};
use weir_core::detect::Age;

use super::{
    FileId, FileSource, INSTANCES, MAX_AWAY, MAX_COPIES, MAX_FILES, Position, Start, Subscribed,
    finds,
    tail::{Tail, is_name_of},
};
use crate::{BatchInfo, Problem, fs_call};

/// Watches a file by what is open, not by a name that may belong to another
/// one by now. `None` where it cannot be watched: then it is looked at every
/// few seconds.
pub(super) fn watch_file(inotify: Option<&OwnedFd>, file: &File, path: &Path) -> Option<i32> {
    let inotify = inotify?;
    let flags =
        WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs_call::make("watch", path, || {
        inotify::add_watch(inotify, open, flags)
            .or_else(|_| inotify::add_watch(inotify, path, flags))
            .ok()
    })
}

pub(super) fn has_wildcard(path: &Path) -> bool {
    path.to_str().is_none_or(|p| p.contains(['*', '?', '[']))
}

fn id(meta: &fs::Metadata) -> FileId {
    FileId {
        device: meta.dev(),
        inode: meta.ino(),
    }
}

/// Opens a regular file; a FIFO or device is refused, and never waited for.
fn open(path: &Path) -> io::Result<(File, FileId)> {
    fs_call::make("open", path, || {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
            .open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok((file, id(&meta)))
    })
}

fn metadata(path: &Path) -> io::Result<fs::Metadata> {
    fs_call::make("stat", path, || fs::metadata(path))
}

fn is_dir(path: &Path) -> bool {
    metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// The device of the file system that `path` is, or would be, in.
fn device_of(path: &Path) -> Option<u64> {
    let mut there = path.ancestors().filter_map(|part| metadata(part).ok());
    there.next().map(|meta| meta.dev())
}

impl FileSource {
    /// Finds the files and goes to the start.
    pub(super) fn begin(&mut self, start: &Start, held: Age) {
        // Problems are told by the first batch.
        self.scan(&mut BatchInfo::default());
        self.problems.clear();
        self.rescan = true;
        for tail in self.tails.values_mut() {
            tail.holds(held);
        }
        let (saved, known) = match start {
            Start::Beginning => return,
            Start::Tail(bytes) => {
                for tail in self.tails.values_mut() {
                    tail.holds(Age::Backlog);
                    // A file that cannot be read is told of by the first batch.
                    let _ = tail.seek_tail(*bytes);
                }
                return;
            }
            Start::Saved {
                positions,
                patterns,
            } => (&positions[..], &patterns[..]),
            Start::End => (&[][..], &[][..]),
        };
        for tail in self.tails.values_mut() {
            if !known.iter().any(|pattern| finds(pattern, &tail.path)) {
                // A file that cannot be read is told of by the first batch.
                let _ = tail.seek_end();
            }
        }
        let first = self.next_order;
        self.next_order += saved.len() as u64;
        for (order, position) in (first..).zip(saved) {
            let readers = self.readers_of(&position.path);
            let known = self.tails.values_mut().find(|tail| tail.is_at(position));
            if let Some(tail) = known {
                let _ = tail.resume(position.offset);
                tail.read_by(&readers);
                continue;
            }
            // Rotated while nobody looked: finish it, before its successor.
            if let Some((file, id, path)) = self.find_rotated(position) {
                let watch = watch_file(self.inotify.as_ref(), &file, &path);
                let mut tail = Tail::new(file, id, position.path.clone(), order, watch);
                tail.retired = Some(Instant::now());
                tail.holds(held);
                tail.readers = readers;
                let _ = tail.resume(position.offset);
                if let Some(successor) = self.named(&position.path) {
                    go_on_in(&mut tail, successor);
                }
                self.tails.insert(id, tail);
            } else if let Some(copy) = self.named(&position.path)
                && copy.is_copy_at(position)
            {
                let _ = copy.resume(position.offset);
            } else if self.may_come_back(position) {
                self.away.push(position.clone());
            } else if self.paths.contains_key(&position.path) && position.fingerprint.len > 0 {
                self.lost.push(format!(
                    "{} was rotated, truncated or deleted while nobody read it, and what it was renamed or copied to is not to be found: lines behind byte {} are lost if there were any",
                    weir_core::text::escape(&position.path.to_string_lossy()),
                    position.offset
                ));
            }
        }
        let surplus = self.away.len().saturating_sub(MAX_AWAY);
        self.away.drain(..surplus);
        // Those found by the scan come behind the rotated ones.
        let rotated = self.next_order;
        for tail in self.tails.values_mut().filter(|t| t.order < first) {
            tail.order += rotated;
        }
        self.next_order += rotated;
    }

    /// The file that has this name now.
    fn named(&mut self, path: &Path) -> Option<&mut Tail> {
        let id = self.paths.get(path)?;
        self.tails.get_mut(id)
    }

    /// The file of that position under another name in its directory, or the copy that
    /// was made of it before it was truncated (logrotate's copytruncate).
    fn find_rotated(&self, position: &Position) -> Option<(File, FileId, PathBuf)> {
        use std::os::unix::fs::DirEntryExt;
        let directory = position.path.parent()?;
        let (same_inode, copies) = fs_call::make("list", directory, || {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let (mut same, mut copies) = (vec![], vec![]);
            for entry in entries.take(100_000) {
                let path = entry.path();
                if entry.ino() == position.inode {
                    same.push(path);
                } else if path != position.path && is_name_of(&path, &position.path) {
                    copies.push(path);
                }
            }
            (same, copies)
        });
        let open_if = |path: PathBuf, is_it: fn(&Tail, &Position) -> bool| {
            let (file, id) = open(&path).ok()?;
            let tail = Tail::new(file, id, path.clone(), 0, None);
            if is_it(&tail, position) && !self.tails.contains_key(&id) {
                return Some((tail.file, id, path));
            }
            tail.close();
            None
        };
        let mut same_inode = same_inode.into_iter();
        let mut copies = copies.into_iter().take(MAX_COPIES);
        same_inode
            .find_map(|path| open_if(path, Tail::is_at))
            .or_else(|| copies.find_map(|path| open_if(path, Tail::is_copy_at)))
    }

    /// Is nothing of this name there, and may the file be back one day? One that
    /// only a wildcard finds is kept if its file system is away: others are deleted
    /// and never come again.
    fn may_come_back(&self, position: &Position) -> bool {
        let patterns = self.patterns.iter().map(|known| &known.pattern);
        let mut finding = patterns.filter(|pattern| finds(pattern, &position.path));
        !self.paths.contains_key(&position.path)
            && finding.any(|pattern| {
                !has_wildcard(Path::new(pattern))
                    || device_of(&position.path) != Some(position.device)
            })
    }

    /// A file of this name is there: it may be the one that was away, or its
    /// successor. Where to go on in it.
    fn is_back(&mut self, path: &Path, new: &Tail) -> Option<u64> {
        let mut at = None;
        let away = std::mem::take(&mut self.away);
        for position in away {
            if new.is_at(&position) {
                at = Some(position.offset);
            } else if position.path != path {
                self.away.push(position);
            } else if let Some((file, id, _)) = self.find_rotated(&position) {
                let tail = self.follow(file, id, position.path.clone());
                tail.retired = Some(Instant::now());
                // A file that cannot be read is told of when it is.
                let _ = tail.resume(position.offset);
            }
        }
        at
    }

    /// Finds what the patterns match now.
    pub(super) fn scan(&mut self, info: &mut BatchInfo) {
        self.rescan = false;
        self.scanned = Some(Instant::now());
        let mut problems = BTreeMap::new();
        if self.inotify.is_none() {
            match (self.watch)() {
                Ok(inotify) => self.inotify = Some(inotify),
                Err(error) => {
                    let message = format!(
                        "log files cannot be watched ({error}): they are looked at each second; raise fs.inotify.max_user_instances"
                    );
                    problems.insert(INSTANCES.into(), message);
                }
            }
        }
        // Watched before it is looked at: what comes in between is an event.
        self.watch_directories();
        let mut found = BTreeMap::new();
        let mut readers: HashMap<FileId, Vec<bool>> = HashMap::new();
        for Subscribed { pattern, by } in self.patterns.clone() {
            let mut any = false;
            for path in matches(&pattern) {
                let path = match path {
                    Ok(path) => path,
                    Err((path, error)) => {
                        problems.insert(path, format!("cannot read: {error}"));
                        continue;
                    }
                };
                any = true;
                if found.len() >= MAX_FILES && !found.contains_key(&path) {
                    let message =
                        format!("more than {MAX_FILES} files match; the others are not read");
                    problems.insert(pattern.clone().into(), message);
                    continue;
                }
                match self.found(&path) {
                    Ok(id) => {
                        if let Some(before) = self.paths.get(&path)
                            && *before != id
                        {
                            info.rotated += 1;
                        }
                        found.insert(path, id);
                        let none = || vec![false; self.subscriptions];
                        let readers = readers.entry(id).or_insert_with(none);
                        by.iter().for_each(|number| readers[*number] = true);
                    }
                    // Gone since it was listed.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => any = false,
                    Err(error) => {
                        problems.insert(path, format!("cannot read: {error}"));
                    }
                }
            }
            if !any {
                let message = "there is no such file yet; waiting for it";
                problems.insert(pattern.into(), message.into());
            }
        }
        for (path, id) in &found {
            let tail = self.tails.get_mut(id).expect("found() made it");
            tail.retired = None;
            if tail.watch.is_none() {
                tail.watch = watch_file(self.inotify.as_ref(), &tail.file, path);
            }
            if tail.watch.is_none() && self.inotify.is_some() {
                let message = "cannot be watched (is fs.inotify.max_user_watches reached?); looking at it every 5 s";
                problems.insert(path.clone(), message.into());
            }
            // By all its names; once, though it may have several.
            if let Some(readers) = readers.remove(id) {
                let all = tail.read_by(&readers);
                // A name that it has now; the same one while it has that, or while
                // somebody reads it who finds it by no other: a wildcard of another
                // subscription may find the rotated file.
                if all && found.get(&tail.path) != Some(id) {
                    tail.path.clone_from(path);
                }
            }
        }
        let current: BTreeSet<_> = found.values().copied().collect();
        for tail in self.tails.values_mut() {
            if !current.contains(&tail.id) && tail.retired.is_none() {
                tail.retired = Some(Instant::now());
                tail.dirty = true;
            }
        }
        self.paths = found;
        // What could not be read is told until it has been read.
        for tail in self.tails.values() {
            if let Some(trouble) = &tail.trouble {
                let told = problems.entry(tail.path.clone());
                told.or_insert_with(|| trouble.clone());
            }
        }
        let over: Vec<_> = self
            .problems
            .keys()
            .filter(|path| !problems.contains_key(*path))
            .cloned()
            .collect();
        for path in over {
            self.problems.remove(&path);
            info.problems.push(Problem {
                path,
                message: "can be read again".into(),
                resolved: true,
            });
        }
        for (path, message) in problems {
            self.problem(info, path, message);
        }
    }

    /// The file of this name, followed from its beginning if it is new.
    fn found(&mut self, path: &Path) -> io::Result<FileId> {
        let known = id(&metadata(path)?);
        if self.tails.contains_key(&known) {
            return Ok(known);
        }
        let (file, id) = open(path)?;
        if self.tails.contains_key(&id) {
            return Ok(id);
        }
        let mut new = Tail::new(file, id, path.to_owned(), 0, None);
        let mut offset = self.is_back(path, &new);
        if let Some(old) = self.named(path) {
            offset = offset.or_else(|| go_on_in(old, &mut new));
        }
        let tail = self.follow(new.file, id, path.to_owned());
        if let Some(offset) = offset {
            let _ = tail.resume(offset);
        }
        Ok(id)
    }

    fn watch_directories(&mut self) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let mut wanted = BTreeSet::new();
        for Subscribed { pattern, .. } in &self.patterns {
            for ancestor in Path::new(pattern).ancestors().skip(1) {
                if has_wildcard(ancestor) {
                    let text = ancestor.to_str().unwrap_or_default();
                    wanted.extend(fs_call::make("list", ancestor, || {
                        let found = glob::glob(text).into_iter().flatten().flatten();
                        let directories = found.filter(|d| d.is_dir()).take(MAX_FILES);
                        directories.collect::<Vec<_>>()
                    }));
                } else if is_dir(ancestor) {
                    wanted.insert(ancestor.to_owned());
                    break;
                }
            }
        }
        for path in self.paths.keys() {
            // Where a symbolic link leads.
            if let Ok(real) = fs_call::make("stat", path, || fs::canonicalize(path))
                && let Some(directory) = real.parent()
            {
                wanted.insert(directory.to_owned());
            }
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for directory in wanted {
            if !self.directories.contains_key(&directory)
                && let Ok(watch) = fs_call::make("watch", &directory, || {
                    inotify::add_watch(inotify, &directory, flags)
                })
            {
                self.directories.insert(directory, watch);
            }
        }
    }
}

/// Goes to where the lines of `old` go on in `new`, if that is a copy of it.
fn go_on_in(old: &mut Tail, new: &mut Tail) -> Option<u64> {
    // What cannot be read is told of when its lines are.
    let offset = old.go_on_in(new).ok().flatten()?;
    let _ = new.resume(offset);
    Some(offset)
}

/// The files that a pattern names.
fn matches(pattern: &str) -> Vec<Result<PathBuf, (PathBuf, io::Error)>> {
    if !has_wildcard(Path::new(pattern)) {
        let path = PathBuf::from(pattern);
        return match metadata(&path) {
            Ok(_) => vec![Ok(path)],
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            Err(error) => vec![Err((path, error))],
        };
    }
    let Ok(paths) = glob::glob(pattern) else {
        return vec![];
    };
    let files = paths.filter_map(|path| match path {
        Ok(path) if path.is_dir() => None,
        Ok(path) => Some(Ok(path)),
        Err(error) => Some(Err((error.path().to_owned(), error.into()))),
    });
    fs_call::make("list", Path::new(pattern), || {
        files.take(MAX_FILES + 1).collect()
    })
}

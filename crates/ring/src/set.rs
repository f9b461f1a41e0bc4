//! All segments of a directory as one source: found as writers create them,
//! read round robin by any number of worker threads, each with a share of
//! its own and, if wanted, of the others' while it has nothing to do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Duration;

use crate::ancestors::check_directory;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Batch, Reader, ReaderOptions};
use crate::{sys, wake};

/// Segments of one set; more are not read, and counted.
const SEGMENTS: usize = 1024;
/// Files of the directory that are looked at.
const FILES: usize = 4 * SEGMENTS;
/// How often the directory is looked at.
const LOOK_EVERY: u64 = 100_000_000;
/// How often a file that could not be opened is tried again.
const RETRY_EVERY: u64 = 1_000_000_000;
/// How long a worker sleeps while another one has a segment of its own.
const HELD: Duration = Duration::from_millis(1);

struct Source {
    name: String,
    /// The number of its file (inode).
    file: u64,
    /// The length of its file.
    size: u64,
    reader: Mutex<Reader>,
    /// Its file is gone, and whoever sees to that found the reader held: nobody sleeps
    /// over it until it was seen to.
    is_going: AtomicBool,
    /// Records lost, as of the last turn: who asks need not wait for the reader, which a
    /// sleeping worker holds.
    lost: AtomicU64,
    lost_bytes: AtomicU64,
    bad: OnceLock<String>,
}

/// A file in the directory that is there and is not read, or the directory
/// itself, `.`, or [`Trouble::LIMIT`] of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The file's name in the directory.
    pub name: String,
    /// The reason why it is not read.
    pub why: String,
    /// Found while it was read, not when it was opened.
    pub bad: bool,
}

impl Trouble {
    /// The name under which a limit is told that leaves files unread.
    pub const LIMIT: &str = "limit";
}

/// What is there, is not read, and may be so later.
#[derive(Default)]
struct Waiting {
    /// Why nothing of the directory is read.
    directory: Option<String>,
    /// Files that could not be opened when they were last tried, by number.
    files: HashMap<u64, Trouble>,
    /// The time at which they were tried last, in nanoseconds.
    tried: u64,
    /// Files beyond what a set reads.
    unread: usize,
    /// The limit that leaves them unread.
    limit: String,
}

/// The segments of a directory.
pub struct Set {
    directory: PathBuf,
    options: ReaderOptions,
    /// A segment keeps its index for as long as it is there.
    sources: RwLock<Vec<Option<Arc<Source>>>>,
    /// Counts changes of `sources`.
    generation: AtomicUsize,
    looked: AtomicU64,
    /// Files that could not be opened as segments, by number: each counts
    /// once.
    refused: Mutex<HashMap<u64, Trouble>>,
    waiting: Mutex<Waiting>,
    bad: AtomicU64,
    /// Losses of segments that are gone.
    lost_before: AtomicU64,
    lost_bytes_before: AtomicU64,
}

/// Counts of a set since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Segments being read.
    pub segments: usize,
    /// Segments found bad while they were read, and given up.
    pub bad: u64,
    /// Files in the directory that are not segments, or of a stranger.
    pub refused: usize,
    /// Files beyond [`ReaderOptions::max_mapped`] or the number of segments that
    /// a set reads.
    pub unread: usize,
    /// Records lost, over all segments.
    pub lost: u64,
    /// Bytes that the lost records took, or would have taken; see [`Reader::lost_bytes`].
    pub lost_bytes: u64,
}

impl Set {
    /// Opens every segment in `directory`, which need not exist yet. Files
    /// whose names begin with a dot are passed over.
    pub fn open(directory: impl AsRef<Path>, options: &ReaderOptions) -> Result<Arc<Set>> {
        let set = Set {
            directory: directory.as_ref().to_owned(),
            options: options.clone(),
            sources: RwLock::new(Vec::new()),
            generation: AtomicUsize::new(0),
            looked: AtomicU64::new(0),
            refused: Mutex::default(),
            waiting: Mutex::default(),
            bad: AtomicU64::new(0),
            lost_before: AtomicU64::new(0),
            lost_bytes_before: AtomicU64::new(0),
        };
        set.rescan()?;
        Ok(Arc::new(set))
    }

    /// A worker for every `of`-th segment, beginning with `index`, among them
    /// those that are created later.
    pub fn worker(self: &Arc<Set>, index: usize, of: usize) -> Worker {
        self.worker_of(Share::Every(index, of.max(1)))
    }

    /// A worker for segments `range`, numbered as they were found: by name
    /// those that were there at first.
    pub fn worker_for(self: &Arc<Set>, range: Range<usize>) -> Worker {
        self.worker_of(Share::Range(range))
    }

    fn worker_of(self: &Arc<Set>, share: Share) -> Worker {
        Worker {
            set: Arc::clone(self),
            share,
            steal: false,
            own: Vec::new(),
            others: Vec::new(),
            generation: usize::MAX,
            next: 0,
            next_other: 0,
        }
    }

    /// Looks for new, replaced and removed segments. Workers do it by
    /// themselves ten times a second.
    pub fn rescan(&self) -> Result<()> {
        let now = sys::coarse_interval();
        self.looked.store(now, Relaxed);
        // Whoever owns the directory says what is in it: removes segments, puts
        // others of the same owner in their place. Whoever can write on the way
        // there says which directory it is.
        match check_directory(&self.directory, self.options.owner) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                *waiting = Waiting::default();
                waiting.directory = Some(format!("the directory {error}"));
                return Ok(());
            }
            Ok(()) => {}
        }
        let (found, whole) = self.files()?;
        if whole {
            self.drop_the_gone(&found);
        }
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let present: HashSet<u64> = found.values().copied().collect();
        refused.retain(|file, _| present.contains(file));
        let before =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let retry = now.wrapping_sub(before.tried) >= RETRY_EVERY;
        let mut waiting = Waiting {
            tried: if retry { now } else { before.tried },
            ..Waiting::default()
        };
        if !whole {
            waiting.unread = 1;
            waiting.limit = format!("more than {FILES} files, the others are not looked at");
        }
        let mut known = HashSet::new();
        let (mut segments, mut mapped) = (0, 0);
        for source in self.list().into_iter().flatten() {
            segments += 1;
            mapped += source.size;
            known.insert(source.name.clone());
        }
        for (name, file) in found {
            if refused.contains_key(&file) || known.contains(&name) {
                continue;
            }
            if let Some(trouble) = before.files.get(&file).filter(|_| !retry) {
                waiting.files.insert(file, trouble.clone());
                continue;
            }
            let path = self.directory.join(&name);
            let room = self.options.max_mapped.saturating_sub(mapped);
            let over = if segments == SEGMENTS {
                Some(format!("a ring has at most {SEGMENTS}"))
            } else if fs::symlink_metadata(&path).is_ok_and(|meta| meta.len() > room) {
                let most = self.options.max_mapped;
                Some(format!("all together they may take {most} bytes"))
            } else {
                None
            };
            if let Some(over) = over {
                waiting.unread += 1;
                if waiting.limit.is_empty() {
                    waiting.limit = format!("{name} and perhaps more are too many: {over}");
                }
                continue;
            }
            let trouble = |error: Error| Trouble {
                name: name.clone(),
                why: error.to_string(),
                bad: false,
            };
            match Reader::open_within(&path, &self.options, room) {
                Ok(reader) => {
                    segments += 1;
                    mapped += reader.file_size();
                    self.add(Source {
                        size: reader.file_size(),
                        name,
                        file,
                        reader: Mutex::new(reader),
                        is_going: AtomicBool::new(false),
                        lost: AtomicU64::new(0),
                        lost_bytes: AtomicU64::new(0),
                        bad: OnceLock::new(),
                    });
                }
                Err(error) => match error.kind() {
                    ErrorKind::NotFound => {}
                    // Out of slots or memory, or not permitted: worth
                    // another look.
                    ErrorKind::NoSlot
                    | ErrorKind::NoSpace
                    | ErrorKind::ReaderActive
                    | ErrorKind::System => {
                        waiting.files.insert(file, trouble(error));
                    }
                    _ => {
                        refused.insert(file, trouble(error));
                    }
                },
            }
        }
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
        Ok(())
    }

    /// Names and numbers of the plain files in the directory, and whether that
    /// is all of them.
    fn files(&self) -> Result<(BTreeMap<String, u64>, bool)> {
        let mut found = BTreeMap::new();
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((found, true)),
            Err(error) => {
                let what = format!("cannot list {}", self.directory.display());
                return Err(Error::system(what, error));
            }
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // From the listing itself, without a look at each file.
            if name.starts_with('.') || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            if found.len() == FILES {
                return Ok((found, false));
            }
            found.insert(name, entry.ino());
        }
        Ok((found, true))
    }

    fn add(&self, source: Source) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        match sources.iter().position(Option::is_none) {
            Some(free) => sources[free] = Some(Arc::new(source)),
            None => sources.push(Some(Arc::new(source))),
        }
        self.generation.fetch_add(1, Relaxed);
    }

    /// Lets go of segments whose file was removed or replaced, once they have
    /// been read to the end.
    fn drop_the_gone(&self, found: &BTreeMap<String, u64>) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        for place in sources.iter_mut() {
            let Some(source) = place else { continue };
            if found.get(&source.name) == Some(&source.file) {
                source.is_going.store(false, Relaxed);
                continue;
            }
            let Some(mut reader) = source.try_lock() else {
                source.is_going.store(true, Relaxed);
                continue;
            };
            source.is_going.store(false, Relaxed);
            if reader.is_bad() || (!reader.has_records() && !reader.has_writer()) {
                self.lost_before.fetch_add(reader.lost(), Relaxed);
                let bytes = reader.lost_bytes();
                self.lost_bytes_before.fetch_add(bytes, Relaxed);
                drop(reader);
                *place = None;
                self.generation.fetch_add(1, Relaxed);
            }
        }
    }

    fn list(&self) -> Vec<Option<Arc<Source>>> {
        self.sources
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counters over all segments.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics {
            bad: self.bad.load(Relaxed),
            refused: self
                .refused
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len(),
            unread: self
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .unread,
            lost: self.lost_before.load(Relaxed),
            lost_bytes: self.lost_bytes_before.load(Relaxed),
            ..Statistics::default()
        };
        for source in self.list().iter().flatten() {
            statistics.segments += usize::from(source.bad.get().is_none());
            statistics.lost += source.lost.load(Relaxed);
            statistics.lost_bytes += source.lost_bytes.load(Relaxed);
        }
        statistics
    }

    /// What is there and is not read, bad segments included.
    pub fn troubles(&self) -> Vec<Trouble> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let mut troubles: Vec<_> = refused.values().cloned().collect();
        drop(refused);
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |name: &str, why: &str| Trouble {
            name: name.into(),
            why: why.into(),
            bad: false,
        };
        troubles.extend(waiting.directory.as_deref().map(|why| whole(".", why)));
        if waiting.unread > 0 {
            troubles.push(whole(Trouble::LIMIT, &waiting.limit));
        }
        troubles.extend(waiting.files.values().cloned());
        drop(waiting);
        for source in self.list().iter().flatten() {
            if let Some(why) = source.bad.get() {
                troubles.push(Trouble {
                    name: source.name.clone(),
                    why: why.clone(),
                    bad: true,
                });
            }
        }
        troubles
    }

    /// Names of the segments, by number.
    pub fn names(&self) -> Vec<(usize, String)> {
        self.list()
            .into_iter()
            .enumerate()
            .filter_map(|(index, source)| Some((index, source?.name.clone())))
            .collect()
    }

    fn look_again(&self) {
        let now = sys::coarse_interval();
        let looked = self.looked.load(Relaxed);
        if now.wrapping_sub(looked) >= LOOK_EVERY
            && self
                .looked
                .compare_exchange(looked, now, Relaxed, Relaxed)
                .is_ok()
        {
            // A directory that cannot be listed now may be so next time; what
            // is open is read on.
            let _ = self.rescan();
        }
    }
}

impl Source {
    /// Notes after a turn what others may want to know.
    fn note(&self, set: &Set, reader: &mut Reader) {
        self.lost.store(reader.lost(), Relaxed);
        self.lost_bytes.store(reader.lost_bytes(), Relaxed);
        if reader.is_bad()
            && let Err(error) = reader.batch()
            && self.bad.set(error.to_string()).is_ok()
        {
            set.bad.fetch_add(1, Relaxed);
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Reader>> {
        match self.reader.try_lock() {
            Ok(reader) => Some(reader),
            // Whoever panicked was looking at copies; the reader is whole.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[derive(Clone)]
enum Share {
    Range(Range<usize>),
    Every(usize, usize),
}

impl Share {
    fn has(&self, index: usize) -> bool {
        match self {
            Share::Range(range) => range.contains(&index),
            Share::Every(first, of) => index % of == first % of,
        }
    }
}

/// One thread's part in reading a set.
pub struct Worker {
    set: Arc<Set>,
    share: Share,
    steal: bool,
    own: Vec<(usize, Arc<Source>)>,
    others: Vec<(usize, Arc<Source>)>,
    generation: usize,
    next: usize,
    next_other: usize,
}

/// The segment that a turn has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The number of the segment that the records are from.
    pub segment: usize,
    /// Somebody else's segment.
    pub stolen: bool,
}

impl Worker {
    /// Whether to read from others' segments while there is nothing in its
    /// own. A segment is read by one worker at a time, in order.
    pub fn stealing(mut self, steal: bool) -> Worker {
        self.steal = steal;
        self
    }

    /// Hands the next batch to `each`: of the next segment, round robin, that
    /// has one. No segment gets a second turn before every other has had
    /// one. `None`: there is nothing now.
    pub fn turn(&mut self, mut each: impl FnMut(usize, Batch<'_>)) -> Option<Turn> {
        self.set.look_again();
        self.update();
        let found = round(&self.set, &self.own, &mut self.next, &mut each);
        if let Some(segment) = found {
            return Some(Turn {
                segment,
                stolen: false,
            });
        }
        if !self.steal {
            return None;
        }
        let found = round(&self.set, &self.others, &mut self.next_other, &mut each);
        found.map(|segment| Turn {
            segment,
            stolen: true,
        })
    }

    fn update(&mut self) {
        let generation = self.set.generation.load(Relaxed);
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let numbered = self.set.list().into_iter().enumerate();
        (self.own, self.others) = numbered
            .filter_map(|(index, source)| Some((index, source?)))
            .partition(|(index, _)| self.share.has(*index));
    }

    /// Sleeps until one of its own segments has something, not longer than
    /// `timeout`. True if one has. Wakes ten times a second to look for new
    /// segments and for work to steal.
    pub fn sleep(&mut self, timeout: Duration) -> bool {
        let begun = std::time::Instant::now();
        let look = Duration::from_nanos(LOOK_EVERY);
        loop {
            self.set.look_again();
            self.update();
            let left = timeout.saturating_sub(begun.elapsed());
            let awake = {
                let mut readers: Vec<_> = self
                    .own
                    .iter()
                    .filter(|(_, source)| !source.is_going.load(Relaxed))
                    .filter_map(|(_, source)| source.try_lock())
                    .collect();
                // Nobody rings for a segment that a thief has just read, or that is let
                // go of.
                let look = if readers.len() < self.own.len() {
                    HELD
                } else {
                    look
                };
                wake::sleep(
                    readers.iter_mut().map(|reader| &mut **reader),
                    left.min(look),
                )
            };
            let stealable = self.steal
                && self.others.iter().any(|(_, source)| {
                    source
                        .try_lock()
                        .is_some_and(|mut reader| reader.has_records())
                });
            if awake || stealable {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    /// The set it reads.
    pub fn set(&self) -> &Arc<Set> {
        &self.set
    }
}

/// One round over `sources`, from `next` on, until a batch was handed out.
fn round(
    set: &Set,
    sources: &[(usize, Arc<Source>)],
    next: &mut usize,
    each: &mut impl FnMut(usize, Batch<'_>),
) -> Option<usize> {
    for _ in 0..sources.len() {
        let (index, source) = &sources[*next % sources.len()];
        *next = (*next + 1) % sources.len();
        let Some(mut reader) = source.try_lock() else {
            continue;
        };
        if reader.is_bad() {
            continue;
        }
        let found = match reader.batch() {
            Ok(batch) if !batch.is_empty() => {
                each(*index, batch);
                true
            }
            _ => false,
        };
        source.note(set, &mut reader);
        if found {
            return Some(*index);
        }
    }
    None
}

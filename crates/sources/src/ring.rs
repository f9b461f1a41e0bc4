//! Reads the segments of a shared-memory log ring: a directory to which
//! servers write through `weir-ring`, each thread its own segment. A record is
//! a line, or several. How far each segment was read is kept in the segment
//! itself, under the name of this reader, so there is no position to save.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::detect::{Age, Writer};
use weir_ring::{Owner, ReaderOptions, Set, Start, Trouble, Worker};

use crate::{BatchInfo, MAX_LINE, Origin, Problem, Readers, Source, SourceError};

/// Batches delivered by one call, each at most 16 KiB or one long record: what
/// follows from them is put into force when the call returns.
const TURNS: usize = 2;
/// Losses and unreadable files are looked at this often.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Losses that go on are told again after this time; after it without a loss,
/// the last one is over.
const CALM: Duration = Duration::from_secs(60);
/// Files of one ring that are named when they cannot be read.
const NAMED: usize = 32;

/// A ring's directory, with owner and readers.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// The directory with the segments; need not exist yet.
    pub directory: PathBuf,
    /// The reader's name, the same after a restart: reading goes on where it stopped. Two
    /// readers at a time cannot have one name.
    pub reader: String,
    /// A user whose segments are read, besides root and our own.
    pub owner: Option<u32>,
    /// How many threads read, at least 1.
    pub workers: usize,
    /// Bytes that its segments may take together; others are not read.
    pub max_memory: u64,
}

/// What a ring has been through since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStatistics {
    /// Threads that read it.
    pub workers: usize,
    /// Segments being read.
    pub segments: usize,
    /// Files that are refused: no segments, damaged, of a user who is not
    /// trusted, or more than are read.
    pub unreadable: usize,
    /// Segments found bad while they were read.
    pub bad: u64,
    /// Records that were read.
    pub records: u64,
    /// Records lost: overwritten before they were read, or dropped by writers.
    pub lost: u64,
    /// Bytes of the lost records, headers included.
    pub lost_bytes: u64,
}

/// A ring that several threads read, each through a [`RingSource`].
#[derive(Clone)]
pub struct Ring(Arc<Shared>);

struct Shared {
    config: RingConfig,
    set: Mutex<Option<Arc<Set>>>,
    records: AtomicU64,
}

impl Ring {
    /// Opens nothing yet.
    pub fn new(config: RingConfig) -> Self {
        Self(Arc::new(Shared {
            config,
            set: Mutex::default(),
            records: AtomicU64::new(0),
        }))
    }

    /// What thread `index` of the workers reads: every n-th segment, and with
    /// nothing to do there, the others'. Opens what is there; segments that
    /// come later are found.
    pub fn source(&self, index: usize) -> Result<RingSource, SourceError> {
        let config = &self.0.config;
        let mut set = self.0.set.lock().unwrap_or_else(PoisonError::into_inner);
        let set = match &mut *set {
            Some(set) => set.clone(),
            none => {
                let options = ReaderOptions::new()
                    .start(Start::Resume(name_of(&config.reader)))
                    .owner(config.owner.map_or(Owner::Trusted, Owner::User))
                    .max_mapped(config.max_memory);
                none.insert(Set::open(&config.directory, &options)?).clone()
            }
        };
        Ok(RingSource {
            ring: self.clone(),
            worker: set
                .worker(index, config.workers)
                .stealing(config.workers > 1),
            // One tells for all.
            watch: (index == 0).then(ReportedState::default),
        })
    }
}

/// Why nothing is read of a ring's directory, if it is there: somebody else than
/// root, our own user and `owner` can exchange it.
pub fn ring_fault(directory: &Path, owner: Option<u32>) -> Option<String> {
    let owner = owner.map_or(Owner::Trusted, Owner::User);
    let error = weir_ring::check_directory(directory, owner).err()?;
    (error.kind() != weir_ring::ErrorKind::NotFound).then(|| error.to_string())
}

/// One thread's part in reading a ring.
pub struct RingSource {
    ring: Ring,
    worker: Worker,
    watch: Option<ReportedState>,
}

/// What was told, so that only changes are.
#[derive(Default)]
struct ReportedState {
    looked: Option<Instant>,
    lost: u64,
    /// When records were last found lost, and when that was last told.
    losing: Option<(Instant, Instant)>,
    troubles: BTreeMap<String, String>,
}

impl RingSource {
    /// False: there was nothing.
    fn read(&mut self, info: &mut BatchInfo, each: &mut dyn FnMut(&[u8], Origin<'_>)) -> bool {
        let directory = &self.ring.0.config.directory;
        let mut records = 0;
        for _ in 0..TURNS {
            let turn = self.worker.turn(|segment, batch| {
                for record in batch {
                    records += 1;
                    info.bytes += record.payload.len() as u64;
                    let origin = origin(directory, segment, record.time);
                    deliver(record.payload, origin, info, each);
                }
            });
            info.more = turn.is_some();
            if !info.more {
                break;
            }
        }
        self.ring.0.records.fetch_add(records, Ordering::Relaxed);
        records > 0
    }

    /// Tells what has changed since the last look.
    fn look(&mut self, info: &mut BatchInfo) {
        let Some(watch) = &mut self.watch else { return };
        if watch.looked.is_some_and(|at| at.elapsed() < POLL_INTERVAL) {
            return;
        }
        watch.looked = Some(Instant::now());
        let directory = &self.ring.0.config.directory;
        let set = self.worker.set();
        watch.look_at_losses(directory, set.statistics().lost, &mut info.problems);
        let mut troubles: BTreeMap<_, _> = set
            .troubles()
            .into_iter()
            .map(|trouble| (trouble.name, trouble.why))
            .collect();
        if is_missing(directory) {
            let why = "there is no such ring yet; waiting for it";
            troubles.insert(".".into(), why.into());
        }
        let limit = troubles.remove_entry(Trouble::LIMIT);
        while troubles.len() > NAMED {
            troubles.pop_last();
        }
        troubles.extend(limit);
        watch.look_at_files(directory, troubles, &mut info.problems);
    }
}

impl Source for RingSource {
    fn read_batch(
        &mut self,
        timeout: Duration,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> Result<BatchInfo, SourceError> {
        let mut info = BatchInfo::default();
        if !self.read(&mut info, each) && self.worker.sleep(timeout) {
            self.read(&mut info, each);
        }
        self.look(&mut info);
        Ok(info)
    }

    /// A ring remembers its readers itself.
    fn position(&self) -> Option<String> {
        None
    }

    /// Counters of all threads together; one of them tells them.
    fn ring(&self) -> Option<(&Path, RingStatistics)> {
        self.watch.as_ref()?;
        let now = self.worker.set().statistics();
        let statistics = RingStatistics {
            workers: self.ring.0.config.workers,
            segments: now.segments,
            unreadable: now.refused + now.unread,
            bad: now.bad,
            records: self.ring.0.records.load(Ordering::Relaxed),
            lost: now.lost,
            lost_bytes: now.lost_bytes,
        };
        Some((&self.ring.0.config.directory, statistics))
    }
}

/// What cannot be looked at is not missing.
fn is_missing(directory: &Path) -> bool {
    matches!(std::fs::metadata(directory), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

impl ReportedState {
    fn look_at_losses(&mut self, directory: &Path, lost: u64, problems: &mut Vec<Problem>) {
        let now = Instant::now();
        let told = self.losing.map(|(_, told)| told);
        if lost > self.lost {
            self.lost = lost;
            let tell = told.is_none_or(|told| now - told >= CALM);
            self.losing = Some((now, told.filter(|_| !tell).unwrap_or(now)));
            if tell {
                problems.push(Problem {
                    path: directory.join("losses"),
                    message: format!(
                        "{lost} records lost since the start: they come faster than they are read; larger segments or more workers help"
                    ),
                    resolved: false,
                });
            }
        } else if self.losing.is_some_and(|(at, _)| now - at >= CALM) {
            self.losing = None;
            problems.push(Problem {
                path: directory.join("losses"),
                message: "no record lost for a minute".into(),
                resolved: true,
            });
        }
    }

    fn look_at_files(
        &mut self,
        directory: &Path,
        now: BTreeMap<String, String>,
        problems: &mut Vec<Problem>,
    ) {
        if now == self.troubles {
            return;
        }
        let before = std::mem::replace(&mut self.troubles, now);
        for name in before
            .keys()
            .filter(|name| !self.troubles.contains_key(*name))
        {
            problems.push(Problem {
                path: directory.join(name),
                message: "gone".into(),
                resolved: true,
            });
        }
        for (name, why) in &self.troubles {
            if before.get(name) != Some(why) {
                problems.push(Problem {
                    path: directory.join(name),
                    message: match name.as_str() {
                        "." if is_missing(directory) => why.clone(),
                        "." => format!("{why}; nothing in it is read"),
                        Trouble::LIMIT => format!(
                            "{why}; they are not read: remove old ones, or raise ring_max_mib"
                        ),
                        _ => format!("{why}; not read until it is removed"),
                    },
                    resolved: false,
                });
            }
        }
    }
}

fn origin(directory: &Path, segment: usize, time: u64) -> Origin<'_> {
    Origin {
        path: directory,
        readers: Readers::All,
        part: segment,
        stream: segment as u64,
        // A writer without a clock writes 0.
        time: (time > 0)
            .then(|| Timestamp::from_nanosecond(time.into()).ok())
            .flatten(),
        message_only: false,
        age: Age::Unknown,
        writer: Writer::default(),
        identifier: None,
    }
}

/// The lines of one record. An empty line says nothing to any filter.
fn deliver(
    payload: &[u8],
    origin: Origin<'_>,
    info: &mut BatchInfo,
    each: &mut dyn FnMut(&[u8], Origin<'_>),
) {
    let mut rest = payload;
    while !rest.is_empty() {
        let (line, after) = match memchr::memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &[][..]),
        };
        rest = after;
        if line.is_empty() {
            continue;
        }
        info.lines += 1;
        info.cut += u64::from(line.len() > MAX_LINE);
        each(&line[..line.len().min(MAX_LINE)], origin);
    }
}

/// The number that stands for a reader's name in a segment: FNV-1a, never 0.
fn name_of(reader: &str) -> u64 {
    let hash = reader
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use weir_ring::{Options, Writer};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn ring(directory: &Path, workers: usize) -> Ring {
        Ring::new(RingConfig {
            directory: directory.to_owned(),
            reader: "test".into(),
            owner: None,
            workers,
            max_memory: 1 << 30,
        })
    }

    fn source(directory: &Path) -> RingSource {
        ring(directory, 1).source(0).unwrap()
    }

    fn writer(directory: &Path, name: &str) -> Writer {
        Writer::create(directory.join(name), &Options::new().size(1 << 16)).unwrap()
    }

    /// Reads until `done` says so of the lines, or the deadline is over.
    fn read_until(
        source: &mut RingSource,
        done: impl Fn(&[String], &[Problem]) -> bool,
    ) -> (Vec<String>, Vec<Problem>) {
        let (mut lines, mut problems) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        while !done(&lines, &problems) {
            assert!(begun.elapsed() < SOON, "{lines:?} {problems:?}");
            let info = source
                .read_batch(Duration::from_millis(100), &mut |line, origin| {
                    assert!(origin.time.is_some());
                    lines.push(String::from_utf8_lossy(line).into_owned());
                })
                .unwrap();
            problems.extend(info.problems);
        }
        (lines, problems)
    }

    #[test]
    fn a_ring_that_is_not_there_is_told_until_it_comes() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("shop");
        let mut source = source(&directory);
        let (_, problems) = read_until(&mut source, |_, problems| !problems.is_empty());
        assert!(
            problems[0].message.contains("no such ring yet") && !problems[0].resolved,
            "{problems:?}"
        );
        let told = problems[0].path.clone();
        fs::create_dir(&directory).unwrap();
        let (_, problems) = read_until(&mut source, |_, problems| !problems.is_empty());
        assert!(
            problems[0].resolved && problems[0].path == told,
            "{problems:?}"
        );
    }

    #[test]
    fn records_become_lines_of_bounded_length() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = source(dir.path());
        let mut writer = writer(dir.path(), "a");
        writer.write(b"one\n").unwrap();
        writer.write(b"two\n\nthree").unwrap();
        writer.write(b"").unwrap();
        writer.write(&vec![b'x'; MAX_LINE + 5]).unwrap();
        let (lines, _) = read_until(&mut source, |lines, _| lines.len() >= 4);
        assert_eq!(lines[..3], ["one", "two", "three"]);
        assert_eq!(lines[3].len(), MAX_LINE);
    }

    #[test]
    fn the_directory_and_its_segments_may_come_late_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let ring = dir.path().join("later");
        let mut source = source(&ring);
        writer(&ring, "a").write(b"first").unwrap();
        read_until(&mut source, |lines, _| lines == ["first"]);
        fs::remove_dir_all(&ring).unwrap();
        writer(&ring, "a").write(b"second").unwrap();
        writer(&ring, "b").write(b"second").unwrap();
        read_until(&mut source, |lines, _| lines == ["second", "second"]);
        // A writer that comes back goes on in its segment.
        writer(&ring, "b").write(b"third").unwrap();
        read_until(&mut source, |lines, _| lines == ["third"]);
    }

    #[test]
    fn another_reader_of_the_name_goes_on_where_the_first_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), "a");
        writer.write(b"before").unwrap();
        let mut first = source(dir.path());
        read_until(&mut first, |lines, _| lines == ["before"]);
        drop(first);
        writer.write(b"meanwhile").unwrap();
        read_until(&mut source(dir.path()), |lines, _| lines == ["meanwhile"]);
    }

    #[test]
    fn losses_and_files_that_are_no_segments_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), "a");
        let mut source = source(dir.path());
        fs::write(dir.path().join("junk"), b"no segment").unwrap();
        while writer.write(&[b'y'; 1000]).is_ok() {}
        let (lines, _) = read_until(&mut source, |lines, _| lines.len() > 50);
        // What comes behind the gap shows it.
        writer.write(b"again").unwrap();
        let told = |problems: &[Problem], file: &str, words: &str| {
            problems.iter().any(|problem| {
                problem.path == dir.path().join(file)
                    && problem.message.contains(words)
                    && !problem.resolved
            })
        };
        read_until(&mut source, |_, problems| {
            told(problems, "losses", "1 records lost")
                && told(problems, "junk", "too short for a ring segment")
        });
        let now = source.ring().unwrap().1;
        assert_eq!((now.lost, now.unreadable, now.segments), (1, 1, 1));
        assert_eq!(now.lost_bytes, 1016);
        assert_eq!(now.records, lines.len() as u64 + 1);
        fs::remove_file(dir.path().join("junk")).unwrap();
        read_until(&mut source, |_, problems| {
            problems
                .iter()
                .any(|problem| problem.resolved && problem.path.ends_with("junk"))
        });
    }

    #[test]
    fn a_bad_segment_is_told_and_the_others_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut good = writer(dir.path(), "good");
        let mut bad = writer(dir.path(), "bad");
        let mut source = source(dir.path());
        bad.write(b"before").unwrap();
        read_until(&mut source, |lines, _| lines == ["before"]);
        // The head that readers know, far outside of the ring.
        let file = fs::File::options()
            .write(true)
            .open(dir.path().join("bad"))
            .unwrap();
        file.write_all_at(&[0xff; 8], 4096).unwrap();
        read_until(&mut source, |_, problems| {
            problems
                .iter()
                .any(|problem| problem.path.ends_with("bad") && !problem.resolved)
        });
        good.write(b"after").unwrap();
        read_until(&mut source, |lines, _| lines == ["after"]);
        let now = source.ring().unwrap().1;
        assert_eq!((now.bad, now.segments), (1, 1));
    }

    #[test]
    fn segments_beyond_the_memory_are_told_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let _writers = ["a", "b", "c"].map(|name| writer(dir.path(), name));
        let ring = Ring::new(RingConfig {
            max_memory: 2 << 16,
            ..ring(dir.path(), 1).0.config.clone()
        });
        let mut source = ring.source(0).unwrap();
        let words = "b and perhaps more are too many: all together they may take 131072 bytes; they are not read: remove old ones, or raise ring_max_mib";
        read_until(&mut source, |_, problems| {
            let told = |problem: &Problem| problem.message == words && !problem.resolved;
            problems.iter().any(told)
        });
        let now = source.ring().unwrap().1;
        assert_eq!((now.segments, now.unreadable), (1, 2));
    }

    /// Every record once, whoever reads it.
    #[test]
    fn several_workers_share_the_segments() {
        const RECORDS: usize = 5000;
        let dir = tempfile::tempdir().unwrap();
        let ring = ring(dir.path(), 3);
        let mut writers: Vec<_> = (0..4).map(|i| writer(dir.path(), &i.to_string())).collect();
        let seen = Mutex::new(Vec::new());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for index in 0..3 {
                let seen = &seen;
                // Here, not in the thread: writers wait only for who reads.
                let mut source = ring.source(index).unwrap();
                assert_eq!(source.ring().is_some(), index == 0);
                scope.spawn(move || {
                    while seen.lock().unwrap().len() < 4 * RECORDS {
                        assert!(begun.elapsed() < SOON);
                        let each = &mut |line: &[u8], origin: Origin<'_>| {
                            let line = String::from_utf8_lossy(line).into_owned();
                            seen.lock().unwrap().push((origin.part, line));
                        };
                        let wait = Duration::from_millis(10);
                        source.read_batch(wait, each).map(drop).unwrap();
                    }
                });
            }
            for number in 0..RECORDS {
                for writer in &mut writers {
                    let line = format!("{number:05}");
                    while writer.write(line.as_bytes()).is_err() {
                        assert!(begun.elapsed() < SOON);
                        std::thread::yield_now();
                    }
                }
            }
        });
        let seen = seen.into_inner().unwrap();
        for segment in 0..4 {
            let lines: Vec<_> = seen.iter().filter(|(part, _)| *part == segment).collect();
            assert_eq!(lines.len(), RECORDS);
            assert!(lines.is_sorted(), "out of order in segment {segment}");
        }
    }

    #[test]
    fn segments_of_strangers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), "a");
        writer.write(b"line").unwrap();
        // Only root can give a file away.
        if std::os::unix::fs::chown(dir.path().join("a"), Some(4242), None).is_err() {
            return;
        }
        read_until(&mut source(dir.path()), |_, problems| {
            problems
                .iter()
                .any(|problem| problem.message.contains("4242"))
        });
        let trusting = Ring::new(RingConfig {
            owner: Some(4242),
            ..ring(dir.path(), 1).0.config.clone()
        });
        read_until(&mut trusting.source(0).unwrap(), |lines, _| {
            lines == ["line"]
        });
    }
}

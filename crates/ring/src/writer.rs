//! A segment's writer: creates or takes over the segment, stamps, stores,
//! publishes, counts what it dropped, wakes who sleeps, buries dead readers.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use crate::ancestors;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Policy, SLOTS};
use crate::protocol::{self, Memory, POSITION_LIMIT, Producer, footprint};
use crate::segment::{self, Owner, Segment, WRITER_LOCK, slot_lock};
use crate::sys;

/// Which time a record gets from [`Writer::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// That of the last timer tick (1 to 10 ms old), asked for at each call.
    Coarse,
    /// That of the last timer tick when it was last asked for: after so many
    /// records, or by [`Writer::refresh_time`]. For a server that has an
    /// event loop to call it from.
    Every(u32),
}

/// Options for making a segment.
#[derive(Clone, Debug)]
pub struct Options {
    size: u64,
    policy: Policy,
    mode: u32,
    owner: (Option<u32>, Option<u32>),
    huge_pages: bool,
    clock: Clock,
    replace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            size: 1 << 20,
            policy: Policy::DropNewest,
            mode: 0o600,
            owner: (None, None),
            huge_pages: true,
            clock: Clock::Coarse,
            replace: false,
        }
    }
}

impl Options {
    /// 1 MiB, drop-newest, readable by its owner only, huge pages if there
    /// are any, the coarse clock.
    pub fn new() -> Options {
        Options::default()
    }

    /// Bytes of data: a power of two from 4 KiB to 16 GiB. A record takes its
    /// length rounded up to 8, and 16 more; the longest is a quarter of this.
    pub fn size(mut self, bytes: u64) -> Options {
        self.size = bytes;
        self
    }

    /// Sets the policy for a full ring.
    pub fn policy(mut self, policy: Policy) -> Options {
        self.policy = policy;
        self
    }

    /// Permissions of the file. Readers need to write as well: they publish
    /// how far they are.
    pub fn mode(mut self, mode: u32) -> Options {
        self.mode = mode;
        self
    }

    /// User and group of the file; `None` leaves ours.
    pub fn owner(mut self, user: Option<u32>, group: Option<u32>) -> Options {
        self.owner = (user, group);
        self
    }

    /// Whether [`Writer::memfd`] tries huge pages of the system's pool first.
    /// A named segment has them if its directory is on hugetlbfs.
    pub fn huge_pages(mut self, wanted: bool) -> Options {
        self.huge_pages = wanted;
        self
    }

    /// Sets the clock from which records get their time.
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// Replaces a segment that has another size, policy or version, or is
    /// damaged, instead of failing. Never one that has a writer.
    pub fn replace(mut self, replace: bool) -> Options {
        self.replace = replace;
        self
    }
}

/// Why a record was not written. It was counted, and took a number, so that
/// readers count it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// A reader has not read what would have to go ([`Policy::DropNewest`]).
    Full,
    /// Longer than [`Writer::max_record`].
    TooLong,
    /// Somebody cut the file short: nothing written any more can be read.
    Gone,
}

impl std::fmt::Display for WriteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WriteError::Full => "ring is full",
            WriteError::TooLong => "record is longer than a quarter of the ring",
            WriteError::Gone => "segment was cut short",
        })
    }
}

impl std::error::Error for WriteError {}

/// Counts of the records of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Records that readers can read.
    pub stored: u64,
    /// Records that were dropped, and counted.
    pub dropped: u64,
}

/// The one writer of a segment. Dropping it ends the stream in good order:
/// the records stay until another writer takes the segment over.
pub struct Writer {
    segment: Segment,
    producer: Producer,
    max_record: u64,
    clock: Clock,
    time: u64,
    time_left: u32,
    dropped: u64,
    dropped_bytes: u64,
    /// When dead readers were last looked for.
    looked: u64,
    /// The segment is another process's: leave it as it is.
    abandoned: bool,
}

/// Blocked by a reader, look so often whether it still lives.
const LOOK_EVERY: u64 = 10_000_000;

impl Writer {
    /// Creates the segment `path`, or goes on where the last writer of it
    /// stopped. The directory is made if it is not there: in a memory file
    /// system, by a way that nobody else can change ([`ErrorKind::Owner`]).
    pub fn create(path: impl AsRef<Path>, options: &Options) -> Result<Writer> {
        let path = path.as_ref();
        if let Some(directory) = directory_of(path) {
            match ancestors::judge(directory, options.trusted(), false) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                judged => judged?,
            }
        }
        // Each turn that does not end here found that somebody else created
        // or removed the file meanwhile.
        for _ in 0..100 {
            match segment::open(path, options.trusted()) {
                Ok(file) => match Writer::take_over(file, Some(options)) {
                    Err(error) if options.replace && replaceable(error.kind()) => {
                        segment::remove(path)?;
                    }
                    other => return other.map_err(|error| error.at(path)),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    if let Some(writer) = Writer::make(path, options)? {
                        return Ok(writer);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(ErrorKind::System, "somebody keeps replacing the segment").at(path))
    }

    /// A segment without a name. Its length is sealed; hand
    /// [`as_fd`](Writer::as_fd) to readers, by inheritance or over a socket.
    pub fn memfd(options: &Options) -> Result<Writer> {
        let plain = || {
            let file = sys::memfd("weir-ring", false)
                .map_err(|error| Error::system("cannot create a memfd", error))?;
            segment::format(&file, options.size, options.policy)?;
            Ok(file)
        };
        let huge = || {
            let file = sys::memfd("weir-ring", true).ok()?;
            segment::format(&file, options.size, options.policy).ok()?;
            Some(file)
        };
        let file = match options.huge_pages.then(huge).flatten() {
            Some(file) => file,
            None => plain()?,
        };
        sys::seal_size(&file).map_err(|error| Error::system("cannot seal the segment", error))?;
        Writer::take_over(file, Some(options))
    }

    /// Takes over a segment that was handed over as an open file.
    pub fn from_fd(fd: impl AsFd, clock: Clock) -> Result<Writer> {
        let file = clone_of(fd.as_fd())?;
        let file = sys::reopen(&file)
            .map_err(|error| Error::system("cannot reopen the segment", error))?;
        let mut writer = Writer::take_over(file, None)?;
        writer.clock = clock;
        Ok(writer)
    }

    /// Creates the file under a passing name, then gives it its own in one
    /// step: nobody ever sees half a segment. `None`: somebody was faster.
    fn make(path: &Path, options: &Options) -> Result<Option<Writer>> {
        let name = path.file_name().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "a segment needs a file name").at(path)
        })?;
        if let Some(directory) = directory_of(path) {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(|error| {
                    Error::system(format!("cannot create {}", directory.display()), error)
                })?;
            // Somebody else may have made it meanwhile.
            ancestors::judge(directory, options.trusted(), false)?;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let passing = Passing(path.with_file_name(format!(
            ".{}.{}.{}",
            name.to_string_lossy(),
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        )));
        let told = |what: &str| format!("cannot {what} {}", passing.0.display());
        segment::remove(&passing.0)?;
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&passing.0)
            .map_err(|error| Error::system(told("create"), error))?;
        segment::format(&file, options.size, options.policy).map_err(|error| error.at(path))?;
        let (user, group) = options.owner;
        if user.is_some() || group.is_some() {
            std::os::unix::fs::fchown(&file, user, group)
                .map_err(|error| Error::system(told("change the owner of"), error))?;
        }
        // Not by umask: the mode is what was asked for.
        file.set_permissions(fs::Permissions::from_mode(options.mode & 0o777))
            .map_err(|error| Error::system(told("change the mode of"), error))?;
        let writer = Writer::take_over(file, Some(options))?;
        match fs::hard_link(&passing.0, path) {
            Ok(()) => Ok(Some(writer)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(Error::system(told("link"), error)),
        }
    }

    fn take_over(file: fs::File, options: Option<&Options>) -> Result<Writer> {
        let locked = sys::lock(&file, WRITER_LOCK)
            .map_err(|error| Error::system("cannot lock the segment", error))?;
        if !locked {
            return Err(Error::new(
                ErrorKind::WriterActive,
                "another writer is attached to this segment",
            ));
        }
        let mut segment = Segment::map(file, u64::MAX)?;
        let header = *segment.header();
        if let Some(options) = options
            && (header.data_size, segment.policy()) != (options.size, options.policy)
        {
            return Err(Error::new(
                ErrorKind::Geometry,
                format!(
                    "exists with {} bytes, {:?}; asked for were {} bytes, {:?}",
                    header.data_size,
                    segment.policy(),
                    options.size,
                    options.policy
                ),
            ));
        }
        let producer = recover(&segment)?;
        let membarrier = sys::membarrier_register();
        segment.fences = !membarrier;
        let info = &segment.control().writer;
        info.membarrier.store(u64::from(membarrier), Relaxed);
        info.pid.store(u64::from(std::process::id()), Relaxed);
        let dropped = info.dropped.load(Relaxed);
        let dropped_bytes = info.dropped_bytes.load(Relaxed);
        let state = info.state.load(Relaxed);
        info.state.store((state | 1).wrapping_add(2), Release);
        Ok(Writer {
            max_record: header.max_record,
            segment,
            producer,
            clock: options.map_or(Clock::Coarse, |options| options.clock),
            time: 0,
            time_left: 0,
            dropped,
            dropped_bytes,
            looked: 0,
            abandoned: false,
        })
    }

    /// Writes one record with the clock's time. Never waits; the only system
    /// calls are one to wake readers that sleep, and some when a reader
    /// seems dead.
    #[inline]
    pub fn write(&mut self, payload: &[u8]) -> Result<(), WriteError> {
        let time = self.time(1);
        self.write_at(time, payload)
    }

    /// Writes a record with the caller's time, nanoseconds since 1970.
    #[inline]
    pub fn write_at(&mut self, time: u64, payload: &[u8]) -> Result<(), WriteError> {
        self.put(time, payload)?;
        self.publish();
        Ok(())
    }

    /// Writes many records with one time and one publication. What does not
    /// fit is dropped and counted, each by itself.
    pub fn writev<R: AsRef<[u8]>>(&mut self, records: impl IntoIterator<Item = R>) -> Written {
        let mut written = Written::default();
        let time = self.time(1);
        for record in records {
            match self.put(time, record.as_ref()) {
                Ok(()) => written.stored += 1,
                Err(_) => written.dropped += 1,
            }
        }
        self.publish();
        written
    }

    /// Writes one record, waiting for slow readers up to `patience`. For
    /// programs that would rather be late than lose a record.
    pub fn write_patiently(
        &mut self,
        time: u64,
        payload: &[u8],
        patience: Duration,
    ) -> Result<(), WriteError> {
        let need = footprint(payload.len());
        if payload.len() as u64 <= self.max_record && !self.producer.has_room(need) {
            self.await_room(need, patience);
        }
        self.write_at(time, payload)
    }

    #[cold]
    fn await_room(&mut self, need: u64, patience: Duration) {
        let begun = Instant::now();
        let mut turns = 0_u32;
        // Asking for the tail as fast as possible would take its cache line
        // away from the reader that is to move it.
        while !self.make_room(need) && begun.elapsed() < patience && !self.segment.is_cut() {
            turns += 1;
            if turns < 2000 {
                for _ in 0..64 {
                    std::hint::spin_loop();
                }
            } else {
                std::thread::sleep(Duration::from_micros(50).min(patience));
            }
        }
    }

    #[inline]
    fn put(&mut self, time: u64, payload: &[u8]) -> Result<(), WriteError> {
        if payload.len() as u64 > self.max_record {
            return self.refuse(WriteError::TooLong, payload.len());
        }
        let need = footprint(payload.len());
        if !self.producer.has_room(need) && !self.make_room(need) {
            let cut = self.segment.is_cut();
            let why = if cut {
                WriteError::Gone
            } else {
                WriteError::Full
            };
            return self.refuse(why, payload.len());
        }
        self.producer.put(&self.segment, time, payload);
        Ok(())
    }

    #[cold]
    fn make_room(&mut self, need: u64) -> bool {
        !self.segment.is_cut()
            && (self.producer.make_room(&self.segment, need)
                || (self.bury_the_dead() && self.producer.make_room(&self.segment, need)))
    }

    /// Frees the slots of readers that died. A system call each, so not at
    /// every record that is dropped.
    fn bury_the_dead(&mut self) -> bool {
        let now = sys::coarse_interval();
        if now.wrapping_sub(self.looked) < LOOK_EVERY {
            return false;
        }
        self.looked = now;
        let mut buried = false;
        for slot in 0..SLOTS {
            let state = self.segment.state(slot).load(Acquire);
            if state & 1 == 1
                && matches!(
                    sys::locked_by_other(self.segment.file(), slot_lock(slot)),
                    Ok(false)
                )
            {
                buried |= protocol::bury(&self.segment, slot, state);
            }
        }
        buried
    }

    #[cold]
    fn refuse(&mut self, why: WriteError, length: usize) -> Result<(), WriteError> {
        self.dropped += 1;
        self.dropped_bytes = self.dropped_bytes.wrapping_add(footprint(length));
        let info = &self.segment.control().writer;
        info.dropped.store(self.dropped, Relaxed);
        info.dropped_bytes.store(self.dropped_bytes, Relaxed);
        self.producer.skip(&self.segment);
        Err(why)
    }

    #[inline]
    fn publish(&mut self) {
        if self.producer.publish(&self.segment) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&mut self) {
        protocol::ring_bell(&self.segment);
        sys::futex_wake(self.segment.bell());
    }

    #[inline]
    fn time(&mut self, records: u32) -> u64 {
        match self.clock {
            Clock::Coarse => return sys::coarse_time(),
            Clock::Every(_) if self.time_left >= records => self.time_left -= records,
            Clock::Every(_) => self.refresh_time(),
        }
        self.time
    }

    /// Asks the coarse clock now, for [`Clock::Every`].
    pub fn refresh_time(&mut self) {
        self.time = sys::coarse_time();
        if let Clock::Every(records) = self.clock {
            self.time_left = records.saturating_sub(1);
        }
    }

    /// Lets go of it in a child after `fork()`, where the parent goes on
    /// writing: unmaps and closes without a word to readers. As long as a
    /// child holds on to it, the parent's death goes unnoticed.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }

    /// The longest payload.
    pub fn max_record(&self) -> usize {
        self.max_record as usize
    }

    /// Records dropped since the segment was created.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Records written or dropped since the segment was created: the next
    /// one's number.
    pub fn next_seq(&self) -> u64 {
        self.producer.seq
    }

    /// Readers attached now, dead ones that nobody noticed yet included.
    pub fn readers(&self) -> usize {
        (0..SLOTS)
            .filter(|&slot| self.segment.state(slot).load(Relaxed) & 1 == 1)
            .count()
    }

    /// Whether nobody can cut the segment short any more.
    pub fn is_sealed(&self) -> bool {
        self.segment.is_sealed()
    }

    /// Whether it lies in huge pages of the system's pool.
    pub fn has_huge_pages(&self) -> bool {
        sys::on_hugetlbfs(self.segment.file())
    }

    /// To resize, flag or hand the segment on: the descriptor of its file.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.segment.file().as_fd()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.abandoned {
            return;
        }
        let state = &self.segment.control().writer.state;
        state.store(state.load(Relaxed) & !1, Release);
        // Sleepers learn of it at once.
        self.wake();
        sys::unlock(self.segment.file(), WRITER_LOCK);
    }
}

impl Options {
    /// The users whose existing segment we write into: the one that we would make it for.
    fn trusted(&self) -> Owner {
        self.owner.0.map_or(Owner::Trusted, Owner::User)
    }
}

fn directory_of(path: &Path) -> Option<&Path> {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
}

fn replaceable(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Version
            | ErrorKind::Geometry
            | ErrorKind::Corrupt
            | ErrorKind::Truncated
            | ErrorKind::NotARing
    )
}

pub(crate) fn clone_of(fd: BorrowedFd<'_>) -> Result<fs::File> {
    let fd: OwnedFd = fd
        .try_clone_to_owned()
        .map_err(|error| Error::system("cannot duplicate the descriptor", error))?;
    Ok(fs::File::from(fd))
}

/// A file that is removed unless it got another name; then only this one is.
struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Goes on where the last writer stopped. A record that it had not finished
/// was never published: its number is missing, as if it had been dropped.
fn recover(segment: &Segment) -> Result<Producer> {
    let damaged = |what| Error::new(ErrorKind::Corrupt, what);
    let head = segment.head().load(Acquire);
    let floor = segment.floor().load(Acquire);
    let seq = segment.next_seq().load(Acquire);
    let capacity = segment.capacity();
    let between_records = |position: u64| !position.is_multiple_of(8);
    if head > POSITION_LIMIT
        || seq > POSITION_LIMIT
        || floor > head
        || head - floor > capacity
        || between_records(head)
        || between_records(floor)
    {
        return Err(damaged("indices are not a writer's"));
    }
    // A writer that died between moving the floor and looking at the readers
    // again may have moved it past one. What that one has not read is still
    // there, since nothing was written after the floor was moved.
    let oldest = head.saturating_sub(capacity);
    let tail = (0..SLOTS)
        .filter(|&slot| segment.state(slot).load(Acquire) & 1 == 1)
        .map(|slot| segment.tail(slot).load(Acquire))
        .filter(|&tail| (oldest..floor).contains(&tail) && !between_records(tail))
        .min();
    let begin = match segment.policy() {
        Policy::DropNewest => tail.unwrap_or(floor),
        Policy::OverwriteOldest => floor,
    };
    let walk = |begin: u64| {
        let mut producer = Producer::new(segment.policy(), capacity, begin, seq);
        while producer.head < head {
            let mut words = [0; 1];
            segment.get(producer.head, &mut words);
            let length = words[0] & 0xff_ffff;
            let need = footprint(length as usize);
            if length > segment.header().max_record || producer.head + need > head {
                return None;
            }
            producer.recall(need);
        }
        Some(producer)
    };
    let producer = walk(begin)
        .or_else(|| walk(floor))
        .ok_or_else(|| damaged("records are not a writer's"))?;
    segment.floor().store(producer.floor, Release);
    Ok(producer)
}

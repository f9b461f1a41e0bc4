//! One reader of one segment: occupies a slot, copies what is published into
//! memory of its own, and only there looks at it. Everything in the segment
//! is a stranger's.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::layout::{Policy, SLOTS};
use crate::protocol::{self, Consumer, Copied, From, Memory, Step};
use crate::segment::{self, Owner, Segment, WRITER_LOCK, slot_lock};
use crate::sys;

/// Bytes behind the writer at which copying is at its full speed.
const GATHER: u64 = 64 << 10;
/// For so long at most, and one wait more, records wait for others.
const PATIENCE: Duration = Duration::from_micros(20);
/// Of one wait between two looks at the head, the shortest and the longest. A
/// pause is 20 ns on a Zen 4, some 50 ns on an Intel since Skylake: 13 us.
const PAUSES: (u64, u64) = (32, 256);

/// The record with which a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest record that is still there.
    Oldest,
    /// With the record that is written next.
    Newest,
    /// Where the reader of this name (any number but 0) stopped, when it
    /// detached, or at latest an eighth of the ring before it died; if that
    /// is gone, with the oldest, and what is missing counts as lost. The
    /// first of the name begins with the oldest.
    Resume(u64),
}

/// Options for reading a segment.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    pub(crate) start: Start,
    pub(crate) owner: Owner,
    pub(crate) batch: usize,
    pub(crate) max_mapped: u64,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        ReaderOptions {
            start: Start::Oldest,
            owner: Owner::Trusted,
            batch: 16384,
            max_mapped: 1 << 30,
        }
    }
}

impl ReaderOptions {
    /// From the oldest record on, files of root and ourselves only.
    pub fn new() -> ReaderOptions {
        ReaderOptions::default()
    }

    /// Sets the record to begin with.
    pub fn start(mut self, start: Start) -> ReaderOptions {
        self.start = start;
        self
    }

    /// Sets the users whose segments are opened.
    pub fn owner(mut self, owner: Owner) -> ReaderOptions {
        self.owner = owner;
        self
    }

    /// Bytes that the segments of a [`Set`](crate::Set) may take together, 1 GiB
    /// unless said otherwise; segments beyond that are not read, and counted.
    /// Their pages may be charged to whoever maps them.
    pub fn max_mapped(mut self, bytes: u64) -> ReaderOptions {
        self.max_mapped = bytes;
        self
    }

    /// Bytes copied at a time, headers included. 16 KiB stay in the first
    /// level of cache; a record that is longer is read all the same.
    pub fn batch(mut self, bytes: usize) -> ReaderOptions {
        self.batch = bytes.clamp(64, 1 << 24);
        self
    }
}

/// A record, in the reader's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The writer's time, nanoseconds since 1970; not checked by anybody.
    pub time: u64,
    /// The record's number: every attempt to write, successful or not, takes one.
    pub seq: u64,
    /// Records missing between the one before and this.
    pub lost: u64,
    /// The bytes that were written.
    pub payload: &'a [u8],
}

/// Reads one segment. Dropping it frees the slot.
pub struct Reader {
    segment: Segment,
    slot: usize,
    consumer: Consumer,
    words: Vec<u64>,
    begin: usize,
    end: usize,
    bad: Option<(ErrorKind, &'static str)>,
    /// Whether the last look found nothing.
    idle: bool,
    /// What the writer had dropped when we came.
    dropped_before: u64,
}

impl Reader {
    /// Attaches to the segment `path`.
    pub fn open(path: impl AsRef<Path>, options: &ReaderOptions) -> Result<Reader> {
        Reader::open_within(path.as_ref(), options, u64::MAX)
    }

    /// Opens a segment whose file is at most `room` bytes long.
    pub(crate) fn open_within(path: &Path, options: &ReaderOptions, room: u64) -> Result<Reader> {
        let file = segment::open(path, options.owner)?;
        Reader::attach(file, options, room).map_err(|error| error.at(path))
    }

    /// Attaches to a segment that was handed over as an open file. Whose it
    /// is does not matter then.
    pub fn from_fd(fd: impl AsFd, options: &ReaderOptions) -> Result<Reader> {
        let file = crate::writer::clone_of(fd.as_fd())?;
        // A description of our own: with the writer's, locks would be shared.
        let file = sys::reopen(&file)
            .map_err(|error| Error::system("cannot reopen the segment", error))?;
        Reader::attach(file, options, u64::MAX)
    }

    fn attach(file: std::fs::File, options: &ReaderOptions, room: u64) -> Result<Reader> {
        let segment = Segment::map(file, room)?;
        let header = *segment.header();
        let (slot, from) = claim(&segment, options.start)?;
        let id = match options.start {
            Start::Resume(id) => id,
            _ => 0,
        };
        let info = &segment.control().slots[slot];
        info.id.store(id, Relaxed);
        info.pid.store(u64::from(std::process::id()), Relaxed);
        info.lost.store(0, Relaxed);
        let attached = Consumer::attach(&segment, slot, from, segment.policy(), header.max_record);
        let Some(consumer) = attached else {
            protocol::detach(&segment, slot);
            return Err(Error::new(ErrorKind::Corrupt, "indices are not a writer's"));
        };
        let dropped_before = segment.control().writer.dropped_bytes.load(Relaxed);
        let words = (options.batch as u64).min(header.data_size) as usize / 8;
        Ok(Reader {
            segment,
            slot,
            consumer,
            words: vec![0; words],
            begin: 0,
            end: 0,
            bad: None,
            idle: false,
            dropped_before,
        })
    }

    /// The records that are there now, as many as one batch holds; none if
    /// there are none. The records of the batch before have been handled
    /// then: their room goes back to the writer, though not at once.
    ///
    /// An error says that the segment is bad, and is repeated for ever.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        if self.begin == self.end {
            self.fill()?;
        }
        Ok(Batch {
            words: &self.words[..self.end],
            begin: &mut self.begin,
            consumer: &mut self.consumer,
            bad: &mut self.bad,
        })
    }

    /// The next record, if there is one.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        // Twice: what is left of a batch may be the first part of a record.
        for _ in 0..2 {
            if self.begin == self.end {
                self.fill()?;
            }
            if self.begin == self.end {
                return Ok(None);
            }
            let first = self.begin;
            match self.consumer.step(&self.words[first..self.end]) {
                Step::Record(found) => {
                    self.begin += found.next;
                    return Ok(Some(record(&self.words[first..], &found)));
                }
                Step::Cut => self.begin = self.end,
                Step::Bad(why) => {
                    self.begin = self.end;
                    self.bad = Some((ErrorKind::Corrupt, why));
                    self.check()?;
                }
            }
        }
        Ok(None)
    }

    fn check(&self) -> Result<()> {
        match self.bad {
            Some((kind, why)) => Err(Error::new(kind, why)),
            None => Ok(()),
        }
    }

    fn fill(&mut self) -> Result<()> {
        self.check()?;
        self.begin = 0;
        self.end = 0;
        let pending = self.gather();
        let released = self.consumer.position - self.consumer.released;
        if released >= self.segment.capacity() / 8 || (pending == 0 && released > 0) {
            self.release();
        }
        match self.copy() {
            Ok(()) => Ok(()),
            Err(why) => {
                // A mapping cut short reads as zeros, which is corrupt too.
                self.bad = Some(if self.segment.is_cut() {
                    (ErrorKind::Truncated, "file was cut short")
                } else {
                    (ErrorKind::Corrupt, why)
                });
                self.check()
            }
        }
    }

    fn copy(&mut self) -> Result<(), &'static str> {
        // A second time if the buffer is too small for one record.
        for attempt in 0..2 {
            let copied = self.consumer.copy(&self.segment, &mut self.words)?;
            if self.segment.is_cut() {
                return Err("file was cut short");
            }
            let (begin, end) = match copied {
                Copied::Words(begin, end) => (begin, end),
                Copied::Nothing => {
                    self.settle();
                    return Ok(());
                }
                Copied::Overrun => return Ok(()),
            };
            match self.consumer.wants(&self.words[begin..end]) {
                Some(need) if attempt == 0 && need > self.words.len() => {
                    self.words.resize(need, 0);
                }
                _ => {
                    (self.begin, self.end) = (begin, end);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The last records that a closed writer dropped have nothing behind
    /// them to be missed by.
    fn settle(&mut self) {
        if self.segment.control().writer.state.load(Acquire) & 1 == 0 {
            self.consumer.settle(&self.segment);
            self.tell_lost();
        }
    }

    /// Waits while records keep coming and are still few. In lock step every
    /// record costs both sides a transfer of the line that the other has just
    /// written: 12 M records/s, not 100. Each look costs the writer one, so
    /// the next is when, at the speed so far, enough will be there. One record
    /// by itself is delayed by the shortest wait, any by [`PATIENCE`] and one
    /// longest at most.
    fn gather(&mut self) -> u64 {
        let enough = (self.segment.capacity() / 8).min(GATHER);
        let mut pending = self.consumer.pending(&self.segment);
        let (mut begun, mut pauses) = (None, PAUSES.0);
        // Nothing: the caller does something else. Nothing again: it polls,
        // and must not take the line away at every record either.
        while pending < enough && (pending > 0 || self.idle) {
            if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                break;
            }
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            let before = pending;
            pending = self.consumer.pending(&self.segment);
            let (Some(grown), Some(missing)) =
                (pending.checked_sub(before), enough.checked_sub(pending))
            else {
                break;
            };
            if grown == 0 {
                break;
            }
            pauses = (pauses * missing / grown).clamp(PAUSES.0, PAUSES.1);
        }
        self.idle = pending == 0;
        pending
    }

    /// Tells the writer at once that everything handed out so far has been
    /// handled; by itself this happens every eighth of the ring and whenever
    /// there is nothing to read.
    pub fn release(&mut self) {
        self.consumer.release(&self.segment, self.slot);
        self.tell_lost();
    }

    fn tell_lost(&self) {
        let slot = &self.segment.control().slots[self.slot];
        slot.lost.store(self.consumer.lost, Relaxed);
    }

    pub(crate) fn has_records(&mut self) -> bool {
        self.begin < self.end || (self.bad.is_none() && self.consumer.pending(&self.segment) != 0)
    }

    /// Releases everything before sleep: the writer may need the room to go on.
    pub(crate) fn release_all(&mut self) {
        if self.consumer.released != self.consumer.position {
            self.release();
        }
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Records lost so far: overwritten before they were read, or dropped by
    /// the writer. Exact for every gap of less than 2^39 records.
    pub fn lost(&self) -> u64 {
        self.consumer.lost
    }

    /// What the lost records took, or would have taken, in the ring: those
    /// overwritten, and those that the writer says it has dropped since this
    /// reader came, also the ones whose gap has not been reached yet.
    pub fn lost_bytes(&self) -> u64 {
        let dropped = self.segment.control().writer.dropped_bytes.load(Relaxed);
        let dropped = dropped.saturating_sub(self.dropped_before);
        self.consumer.overwritten.saturating_add(dropped)
    }

    /// Bytes published and not yet read, headers included.
    pub fn backlog(&self) -> u64 {
        let head = self.segment.head().load(Relaxed);
        head.saturating_sub(self.consumer.position)
            .min(self.segment.capacity())
    }

    /// Whether a correct writer cannot have written what is there.
    pub fn is_bad(&self) -> bool {
        self.bad.is_some()
    }

    /// Whether a writer is attached and alive.
    pub fn has_writer(&self) -> bool {
        sys::locked_by_other(self.segment.file(), WRITER_LOCK).unwrap_or(true)
    }

    /// What the writer does when the ring is full.
    pub fn policy(&self) -> Policy {
        self.segment.policy()
    }

    /// Whether nobody can cut the segment short any more.
    pub fn is_sealed(&self) -> bool {
        self.segment.is_sealed()
    }

    /// The longest payload that can come.
    pub fn max_record(&self) -> usize {
        self.segment.header().max_record as usize
    }

    /// Which of the 64 slots it occupies.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The length of its file.
    pub(crate) fn file_size(&self) -> u64 {
        self.segment.header().file_size()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.consumer.release(&self.segment, self.slot);
        protocol::detach(&self.segment, self.slot);
        sys::unlock(self.segment.file(), slot_lock(self.slot));
    }
}

/// Records copied out of the segment. What is not taken comes again with the
/// next batch.
pub struct Batch<'a> {
    words: &'a [u64],
    begin: &'a mut usize,
    consumer: &'a mut Consumer,
    bad: &'a mut Option<(ErrorKind, &'static str)>,
}

impl Batch<'_> {
    /// Whether nothing was there.
    pub fn is_empty(&self) -> bool {
        *self.begin == self.words.len()
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        let words = &self.words[*self.begin..];
        if words.is_empty() {
            return None;
        }
        match self.consumer.step(words) {
            Step::Record(found) => {
                *self.begin += found.next;
                Some(record(words, &found))
            }
            Step::Cut => {
                *self.begin = self.words.len();
                None
            }
            Step::Bad(why) => {
                *self.begin = self.words.len();
                *self.bad = Some((ErrorKind::Corrupt, why));
                None
            }
        }
    }
}

#[inline]
fn record<'a>(words: &'a [u64], found: &protocol::Found) -> Record<'a> {
    let payload = &words[found.payload..found.next];
    // SAFETY: any word is eight valid bytes, and they lie within `payload`.
    let bytes =
        unsafe { std::slice::from_raw_parts(payload.as_ptr().cast::<u8>(), payload.len() * 8) };
    Record {
        time: found.time,
        seq: found.seq,
        lost: found.lost,
        payload: &bytes[..found.length],
    }
}

/// Finds a slot that nobody alive has, and locks it. The lock is what makes
/// it ours; the kernel takes it away when we die.
fn claim(segment: &Segment, start: Start) -> Result<(usize, From)> {
    let lock = |slot: usize| {
        sys::lock(segment.file(), slot_lock(slot))
            .map_err(|error| Error::system("cannot lock a reader slot", error))
    };
    let slots = &segment.control().slots;
    let from = match start {
        Start::Oldest | Start::Resume(_) => From::Oldest,
        Start::Newest => From::Newest,
    };
    if let Start::Resume(id) = start {
        if id == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "0 is no name to resume under",
            ));
        }
        for (slot, info) in slots.iter().enumerate() {
            if info.id.load(Relaxed) != id {
                continue;
            }
            if !lock(slot)? {
                return Err(Error::new(
                    ErrorKind::ReaderActive,
                    format!("a living reader has the name {id}"),
                ));
            }
            let tail = info.tail.load(Acquire);
            return Ok(match info.seen.load(Relaxed) {
                0 => (slot, From::Oldest),
                seen => (slot, From::At(tail, seen - 1)),
            });
        }
    }
    // First those that nobody wants to come back to.
    let nameless = |slot: &usize| slots[*slot].id.load(Relaxed) == 0;
    for slot in (0..SLOTS).filter(nameless).chain(0..SLOTS) {
        if lock(slot)? {
            return Ok((slot, from));
        }
    }
    Err(Error::new(
        ErrorKind::NoSlot,
        format!("all {SLOTS} reader slots are taken"),
    ))
}

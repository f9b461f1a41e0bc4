//! What a log record could go through in place of weir's ring, each as good
//! as its kind gets without leaving it: pipe, datagram socket, file with
//! inotify; and two rings in shared memory that are in every textbook.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::inotify,
};

use super::work::{Sink, Source, Sum};

/// Bytes that readers take from the kernel at once.
const READ: usize = 256 << 10;
/// A reader that waits in the kernel looks so often whether all has ended.
const WAIT: Duration = Duration::from_millis(20);

fn pause() -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: WAIT.as_nanos() as _,
    }
}

/// Bytes that may hold part of a record at their end.
struct Inbox {
    bytes: Vec<u8>,
    held: usize,
    record: usize,
}

impl Inbox {
    fn new(record: usize) -> Self {
        Self {
            bytes: vec![0; READ],
            held: 0,
            record,
        }
    }

    /// Reads once. Whether something came.
    fn read(&mut self, from: &mut impl Read, sum: &mut Sum) -> std::io::Result<bool> {
        let got = from.read(&mut self.bytes[self.held..])?;
        let all = self.held + got;
        let whole = all - all % self.record;
        sum.add_all(&self.bytes[..whole]);
        self.bytes.copy_within(whole..all, 0);
        self.held = all - whole;
        Ok(got > 0)
    }
}

/// A pipe, as large as an ordinary user may make it; one write a record.
pub fn pipe(bytes: usize) -> anyhow::Result<(PipeSink, PipeSource)> {
    let (reader, writer) = std::io::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20)?;
    Ok((PipeSink(writer), PipeSource(reader, Inbox::new(bytes))))
}

pub struct PipeSink(std::io::PipeWriter);

impl Sink for PipeSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write_all(record)?)
    }
}

pub struct PipeSource(std::io::PipeReader, Inbox);

impl Source for PipeSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        // Waits for the writer, or for its end.
        self.1.read(&mut self.0, sum)?;
        Ok(())
    }
}

/// A datagram socket, as to a syslog daemon; a message a record.
pub fn datagram(bytes: usize) -> anyhow::Result<(DatagramSink, DatagramSource)> {
    let (reader, writer) = UnixDatagram::pair()?;
    reader.set_read_timeout(Some(WAIT))?;
    Ok((
        DatagramSink(writer),
        DatagramSource(reader, vec![0; bytes + 1]),
    ))
}

pub struct DatagramSink(UnixDatagram);

impl Sink for DatagramSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        self.0.send(record)?;
        Ok(())
    }
}

pub struct DatagramSource(UnixDatagram, Vec<u8>);

impl Source for DatagramSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        match self.0.recv(&mut self.1) {
            Ok(0) => Ok(()),
            Ok(length) => {
                sum.add(&self.1[..length]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            // The writer is gone, and so is all that it sent.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A file that grows, and a reader that inotify wakes, as log followers do;
/// one write a record.
pub fn file(dir: &Path, bytes: usize) -> anyhow::Result<(FileSink, FileSource)> {
    let path = dir.join("log");
    let writer = File::options().create(true).append(true).open(&path)?;
    writer.set_len(0)?;
    let wakes = inotify::init(inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&wakes, &path, inotify::WatchFlags::MODIFY)?;
    let source = FileSource {
        file: File::open(&path)?,
        inbox: Inbox::new(bytes),
        wakes,
    };
    Ok((FileSink(writer), source))
}

pub struct FileSink(File);

impl Sink for FileSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write_all(record)?)
    }
}

pub struct FileSource {
    file: File,
    inbox: Inbox,
    wakes: OwnedFd,
}

impl Source for FileSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        if self.inbox.read(&mut self.file, sum)? {
            return Ok(());
        }
        let mut waiting = [PollFd::new(&self.wakes, PollFlags::IN)];
        if rustix::event::poll(&mut waiting, Some(&pause()))? > 0 {
            // What it says is known: there is more.
            let mut events = [0; 4096];
            rustix::io::read(&self.wakes, &mut events)?;
        }
        Ok(())
    }
}

/// An index alone on its cache lines: the processor fetches them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Index(AtomicU64);

/// Bytes of each ring, and of all buffers together: as many as weir's.
const RING: usize = super::weir::RING as usize;

fn store(cells: &[AtomicU64], record: &[u8]) {
    let (words, _) = record.as_chunks::<8>();
    for (cell, word) in cells.iter().zip(words) {
        cell.store(u64::from_ne_bytes(*word), Relaxed);
    }
}

fn load(cells: &[AtomicU64]) -> impl Iterator<Item = u64> + Clone {
    cells.iter().map(|cell| cell.load(Relaxed))
}

fn cells(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Head and tail, each side looking at the other's and publishing its own
/// with every record.
pub fn textbook(bytes: usize, cached: bool) -> (TextbookSink, TextbookSource) {
    let words = bytes / 8;
    let ring = Arc::new(Textbook {
        head: Index::default(),
        tail: Index::default(),
        slots: RING / bytes,
        cells: cells(RING / bytes * words),
        words,
    });
    let side = Side {
        ring,
        own: 0,
        other: 0,
        cached,
    };
    (TextbookSink(side.clone()), TextbookSource(side))
}

struct Textbook {
    head: Index,
    tail: Index,
    /// A power of two.
    slots: usize,
    words: usize,
    cells: Box<[AtomicU64]>,
}

impl Textbook {
    fn slot(&self, index: u64) -> &[AtomicU64] {
        let first = (index as usize & (self.slots - 1)) * self.words;
        &self.cells[first..first + self.words]
    }
}

#[derive(Clone)]
struct Side {
    ring: Arc<Textbook>,
    own: u64,
    /// The other side's index when it was last looked at.
    other: u64,
    /// Look at it only when there is no room, or nothing left, by that.
    cached: bool,
}

pub struct TextbookSink(Side);

impl Sink for TextbookSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        let side = &mut self.0;
        let room = side.ring.slots as u64;
        if !side.cached || side.own - side.other == room {
            side.other = side.ring.tail.0.load(Acquire);
            while side.own - side.other == room {
                std::hint::spin_loop();
                side.other = side.ring.tail.0.load(Acquire);
            }
        }
        store(side.ring.slot(side.own), record);
        side.own += 1;
        side.ring.head.0.store(side.own, Release);
        Ok(())
    }
}

pub struct TextbookSource(Side);

impl Source for TextbookSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        let side = &mut self.0;
        loop {
            if !side.cached || side.own == side.other {
                side.other = side.ring.head.0.load(Acquire);
            }
            if side.own == side.other {
                return Ok(());
            }
            sum.add_words(load(side.ring.slot(side.own)));
            side.own += 1;
            side.ring.tail.0.store(side.own, Release);
        }
    }
}

/// No indices to share: each slot says whether it is full.
pub fn per_message(bytes: usize) -> (PerMessageSink, PerMessageSource) {
    let words = bytes / 8 + 1;
    let ring = Arc::new(PerMessage {
        slots: RING / bytes,
        cells: cells(RING / bytes * words),
        words,
    });
    (
        PerMessageSink(Arc::clone(&ring), 0),
        PerMessageSource(ring, 0),
    )
}

struct PerMessage {
    /// A power of two.
    slots: usize,
    words: usize,
    cells: Box<[AtomicU64]>,
}

impl PerMessage {
    /// A slot's state, 1 if it is full, and its words.
    fn slot(&self, index: u64) -> (&AtomicU64, &[AtomicU64]) {
        let first = (index as usize & (self.slots - 1)) * self.words;
        let [state, words @ ..] = &self.cells[first..first + self.words] else {
            unreachable!("a slot has a state");
        };
        (state, words)
    }
}

pub struct PerMessageSink(Arc<PerMessage>, u64);

impl Sink for PerMessageSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        let (state, words) = self.0.slot(self.1);
        while state.load(Acquire) != 0 {
            std::hint::spin_loop();
        }
        store(words, record);
        state.store(1, Release);
        self.1 += 1;
        Ok(())
    }
}

pub struct PerMessageSource(Arc<PerMessage>, u64);

impl Source for PerMessageSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        loop {
            let (state, words) = self.0.slot(self.1);
            if state.load(Acquire) == 0 {
                return Ok(());
            }
            sum.add_words(load(words));
            state.store(0, Release);
            self.1 += 1;
        }
    }
}

/// The limit: whole buffers change hands, and nothing says where a record
/// begins. What is left is making the bytes, moving them from one core's cache
/// to the other's, and adding them up.
pub fn buffers() -> (BufferSink, BufferSource) {
    let (full, to_read) = sync_channel(BUFFERS);
    let (empty, to_fill) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        // There is room for all of them.
        let _ = empty.try_send(Vec::with_capacity(BUFFER));
    }
    let sink = BufferSink {
        now: Vec::new(),
        full,
        to_fill,
    };
    (sink, BufferSource { to_read, empty })
}

const BUFFER: usize = 64 << 10;
const BUFFERS: usize = RING / BUFFER;

pub struct BufferSink {
    now: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    to_fill: Receiver<Vec<u8>>,
}

impl BufferSink {
    #[cold]
    fn change(&mut self) {
        self.hand_over();
        while self.now.capacity() == 0 {
            match self.to_fill.try_recv() {
                Ok(buffer) => self.now = buffer,
                Err(_) => std::hint::spin_loop(),
            }
        }
    }

    fn hand_over(&mut self) {
        let now = std::mem::take(&mut self.now);
        if !now.is_empty() {
            // There are no more buffers than there is room for.
            let _ = self.full.try_send(now);
        }
    }
}

impl Sink for BufferSink {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        if self.now.len() + record.len() > self.now.capacity() {
            self.change();
        }
        self.now.extend_from_slice(record);
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.hand_over();
        Ok(())
    }
}

pub struct BufferSource {
    to_read: Receiver<Vec<u8>>,
    empty: SyncSender<Vec<u8>>,
}

impl Source for BufferSource {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        if let Ok(mut buffer) = self.to_read.try_recv() {
            sum.add_all(&buffer);
            buffer.clear();
            let _ = self.empty.try_send(buffer);
        }
        Ok(())
    }
}

//! weir's ring in each of the ways that it can be used.

use std::{ops::Range, path::Path, sync::Arc, time::Duration};

use tempfile::TempDir;
use weir_ring::{Options, Policy, Reader, ReaderOptions, Set, Start, Worker, Writer};

use super::work::{Sink, Source, Sum, fill};

/// Bytes of a segment.
pub const RING: u64 = 4 << 20;
/// A writer that may not lose a record waits so long for readers.
const PATIENCE: Duration = Duration::from_secs(1);

/// A segment, and as many readers of it as wanted.
pub fn segment(policy: Policy, readers: usize) -> anyhow::Result<(Writer, Vec<Reader>)> {
    let writer = Writer::memfd(&Options::new().size(RING).policy(policy))?;
    let begin = ReaderOptions::new().start(Start::Newest);
    let readers = (0..readers)
        .map(|_| Reader::from_fd(writer.as_fd(), &begin))
        .collect::<Result<_, _>>()?;
    Ok((writer, readers))
}

/// Loses nothing: waits while the ring is full.
pub struct Patient(pub Writer);

impl Sink for Patient {
    fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.write_patiently(index, record, PATIENCE)?)
    }
}

/// Never waits: a record is stored, or dropped and counted by the segment.
pub struct Hasty(pub Writer);

impl Sink for Hasty {
    fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
        // Refused: every attempt has taken a number, which readers miss.
        let _ = self.0.write_at(index, record);
        Ok(())
    }
}

/// Publishes as many records at once as a server takes from its sockets.
/// Never waits: what does not fit is dropped and counted.
pub struct Vectored {
    writer: Writer,
    records: Vec<Vec<u8>>,
}

impl Vectored {
    const AT_ONCE: usize = 64;

    /// A publisher of records of `bytes` bytes.
    pub fn new(writer: Writer, bytes: usize) -> Self {
        Self {
            writer,
            records: vec![vec![0; bytes]; Self::AT_ONCE],
        }
    }
}

impl Sink for Vectored {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        self.writer.writev([record]);
        Ok(())
    }

    fn burst(&mut self, _: &mut [u8], indices: Range<u64>) -> anyhow::Result<()> {
        for first in indices.step_by(Self::AT_ONCE) {
            for (index, record) in (first..).zip(&mut self.records) {
                fill(record, index);
            }
            self.writer.writev(&self.records);
        }
        Ok(())
    }
}

/// Takes all that is there, as `readv`.
pub struct Batches(pub Reader);

impl Source for Batches {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        for record in self.0.batch()? {
            sum.add(record.payload);
        }
        Ok(())
    }

    fn lost(&mut self) -> u64 {
        self.0.lost()
    }
}

/// Takes record by record, as `read`.
pub struct Single(pub Reader);

impl Source for Single {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        while let Some(record) = self.0.next_record()? {
            sum.add(record.payload);
        }
        Ok(())
    }

    fn lost(&mut self) -> u64 {
        self.0.lost()
    }
}

/// Shares its core with other readers: gives way when there is nothing.
pub struct Polite(pub Reader);

impl Source for Polite {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        let batch = self.0.batch()?;
        if batch.is_empty() {
            std::thread::yield_now();
            return Ok(());
        }
        for record in batch {
            sum.add(record.payload);
        }
        Ok(())
    }

    fn lost(&mut self) -> u64 {
        self.0.lost()
    }
}

/// Has other things to do after each batch.
pub struct Slow(pub Reader);

impl Slow {
    const BUSY: Duration = Duration::from_micros(20);
}

impl Source for Slow {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        for record in self.0.batch()? {
            sum.add(record.payload);
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < Self::BUSY {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn lost(&mut self) -> u64 {
        self.0.lost()
    }
}

/// Several segments, written in turn: a server's threads.
pub struct Server(Vec<Writer>);

impl Sink for Server {
    fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
        let writers = self.0.len() as u64;
        Ok(self.0[(index % writers) as usize].write_patiently(index, record, PATIENCE)?)
    }
}

/// Four segments below `dir`, all written, and one worker whose own they are;
/// or one segment more, that stays empty and is the worker's own: it steals
/// all that it reads.
pub fn set(dir: &Path, stealing: bool) -> anyhow::Result<(Server, Stealer)> {
    const WRITTEN: usize = 4;
    let home = tempfile::tempdir_in(dir)?;
    let options = Options::new().size(RING / WRITTEN as u64);
    let make = |name: String| Writer::create(home.path().join(name), &options);
    let writers = (0..WRITTEN)
        .map(|n| make(format!("busy-{n}")))
        .collect::<Result<_, _>>()?;
    // The set numbers them by name: this is the last.
    let silent = stealing.then(|| make("silent".to_owned())).transpose()?;
    let set = Set::open(home.path(), &ReaderOptions::new().start(Start::Newest))?;
    let worker = if stealing {
        set.worker_for(WRITTEN..WRITTEN + 1).stealing(true)
    } else {
        set.worker(0, 1)
    };
    let stealer = Stealer {
        set,
        worker,
        _silent: silent,
        _home: home,
    };
    Ok((Server(writers), stealer))
}

pub struct Stealer {
    set: Arc<Set>,
    worker: Worker,
    _silent: Option<Writer>,
    _home: TempDir,
}

impl Source for Stealer {
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
        self.worker.turn(|_, batch| {
            for record in batch {
                sum.add(record.payload);
            }
        });
        Ok(())
    }

    fn lost(&mut self) -> u64 {
        self.set.statistics().lost
    }
}

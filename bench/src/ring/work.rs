//! The work, the same for every transport: one thread makes records and hands
//! them over for a given time, others add up every word of them, each thread on
//! a core of its own if there are enough. What came through is compared with
//! what was sent before a figure is believed.

use std::{
    ops::Range,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

/// Records between two looks at the clock, and of one burst.
const BURST: u64 = 1024;
/// A reader that gets nothing for so long has missed something.
const PATIENCE: Duration = Duration::from_secs(5);

/// The side that writes.
pub trait Sink: Send {
    /// Hands one record over; readers can read it when this returns.
    fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()>;

    /// Makes records and hands them over.
    fn burst(&mut self, record: &mut [u8], indices: Range<u64>) -> anyhow::Result<()> {
        for index in indices {
            fill(record, index);
            self.put(index, record)?;
        }
        Ok(())
    }

    /// Completes the writing after the last record.
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// A server: it has some 80 ns of other things to do for each record, so that
/// readers keep up with it.
pub struct AtWork<S>(pub S);

impl<S: Sink> Sink for AtWork<S> {
    fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
        let mut word = index;
        for _ in 0..64 {
            word = (word ^ 0x9e37_79b9).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        std::hint::black_box(word);
        self.0.put(index, record)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.0.finish()
    }
}

/// Hands nothing over: the work alone.
pub struct Nowhere;

impl Sink for Nowhere {
    fn put(&mut self, _: u64, record: &[u8]) -> anyhow::Result<()> {
        std::hint::black_box(record);
        Ok(())
    }
}

/// The side that reads.
pub trait Source: Send {
    /// Adds up what is there now; with nothing there it may wait a little, but
    /// returns.
    fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()>;

    /// Records that were sent and will never come, as the transport counts them.
    fn lost(&mut self) -> u64 {
        0
    }
}

/// A record: its number, then a byte of the number over and over.
pub fn fill(record: &mut [u8], index: u64) {
    record.fill(index as u8);
    record[..8].copy_from_slice(&index.to_ne_bytes());
}

/// The sum of a record's words.
fn sum_of(index: u64, bytes: usize) -> u64 {
    u64::from_ne_bytes([index as u8; 8])
        .wrapping_mul(bytes as u64 / 8 - 1)
        .wrapping_add(index)
}

/// Count and checksum of the records that a reader has read.
pub struct Sum {
    /// Records that were read.
    pub records: u64,
    sum: u64,
    bytes: usize,
    /// Whether each record is held against its own number: where some are
    /// lost, the total says nothing.
    each: bool,
    wrong: u64,
}

impl Sum {
    /// A sum over records of `bytes` bytes; see `each`.
    pub fn new(bytes: usize, each: bool) -> Self {
        Self {
            records: 0,
            sum: 0,
            bytes,
            each,
            wrong: 0,
        }
    }

    /// Adds one record.
    #[inline]
    pub fn add(&mut self, record: &[u8]) {
        let (words, rest) = record.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        self.wrong += u64::from(!rest.is_empty());
        self.add_words(words);
    }

    /// Adds one record that is given as words.
    #[inline]
    pub fn add_words(&mut self, words: impl Iterator<Item = u64> + Clone) {
        let first = words.clone().next().unwrap_or(0);
        let sum = words.fold(0, u64::wrapping_add);
        if self.each {
            self.wrong += u64::from(sum != sum_of(first, self.bytes));
        }
        self.sum = self.sum.wrapping_add(sum);
        self.records += 1;
    }

    /// Adds many records that lie one behind the other.
    #[inline]
    pub fn add_all(&mut self, records: &[u8]) {
        for record in records.chunks_exact(self.bytes) {
            self.add(record);
        }
    }
}

/// The cores and length of a race.
pub struct Track {
    /// The writer's core, the readers' core.
    pub cores: [usize; 2],
    /// How long the writer writes.
    pub length: Duration,
}

/// Records written, read and lost in a race.
#[derive(Debug)]
pub struct Outcome {
    /// Records that the writer made.
    pub written: u64,
    /// Records that the first reader read.
    pub read: u64,
    /// Records that the first reader lost.
    pub lost: u64,
    /// Seconds from the first record until the last reader had the last one.
    pub seconds: f64,
    /// Seconds from the first record until the writer had written the last one.
    pub writing: f64,
    /// Seconds for which a side waited for its core, while something else ran there or
    /// after it had slept.
    pub waited: f64,
}

impl Outcome {
    /// Records made a second, in millions.
    pub fn rate(&self) -> f64 {
        self.written as f64 / self.seconds / 1e6
    }

    /// Nanoseconds that the writer took for each record.
    pub fn nanos_written(&self) -> f64 {
        self.writing * 1e9 / self.written as f64
    }

    /// Records that the first reader lost, in percent of those made.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost as f64 / self.written as f64
    }
}

/// The first two cores that we may use.
pub fn cores() -> anyhow::Result<[usize; 2]> {
    let ours = rustix::thread::sched_getaffinity(None)?;
    let mut cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu));
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => anyhow::bail!("two cores are needed, one for each side"),
    }
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(core);
    rustix::thread::sched_setaffinity(None, &cpus).context("pin a thread to a core")
}

/// Nanoseconds that a cache line takes to the other core and back: how far apart
/// they are. A hypervisor may move them in the middle of a run.
pub fn round_trip(track: &Track) -> anyhow::Result<f64> {
    const TRIPS: u64 = 200_000;
    let word = AtomicU64::new(0);
    // One side makes it odd, the other even.
    let bounce = |core, odd: u64| {
        pin(core)?;
        let start = Instant::now();
        for trip in 0..TRIPS {
            let mine = 2 * trip + odd;
            while word.load(Ordering::Acquire) != mine {
                std::hint::spin_loop();
            }
            word.store(mine + 1, Ordering::Release);
        }
        anyhow::Ok(start.elapsed())
    };
    let took = std::thread::scope(|scope| {
        let other = scope.spawn(|| bounce(track.cores[1], 1));
        let took = scope.spawn(|| bounce(track.cores[0], 0)).join();
        other.join().expect("no side panics")?;
        took.expect("no side panics")
    })?;
    Ok(took.as_secs_f64() * 1e9 / TRIPS as f64)
}

/// How long this thread has been ready to run, and did not.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().nth(1);
    Duration::from_nanos(nanos.and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Runs it: `sink` on the first core, every source, if any, on the second. Where
/// records may be lost (`lossy`), each is checked by itself and the lost ones
/// must be counted; else, all must come and the sums agree.
pub fn race<R: Source>(
    track: &Track,
    bytes: usize,
    lossy: bool,
    sink: impl Sink,
    sources: Vec<R>,
) -> anyhow::Result<Outcome> {
    let end = AtomicU64::new(u64::MAX);
    let (ready, failed) = (Barrier::new(sources.len() + 1), AtomicBool::new(false));
    // All begin together, or nobody: a writer without its reader never ends.
    let begin = |core| {
        let pinned = pin(core);
        failed.fetch_or(pinned.is_err(), Ordering::Relaxed);
        ready.wait();
        pinned?;
        ensure!(
            !failed.load(Ordering::Relaxed),
            "another thread is not on its core"
        );
        anyhow::Ok(())
    };
    let (written, results) = std::thread::scope(|scope| {
        let (end, begin) = (&end, &begin);
        let readers: Vec<_> = sources
            .into_iter()
            .map(|source| {
                let core = track.cores[1];
                scope.spawn(move || {
                    begin(core)?;
                    let (sum, lost, done) = read(source, Sum::new(bytes, lossy), end)?;
                    anyhow::Ok((sum, lost, done, waited()))
                })
            })
            .collect();
        let writer = scope.spawn(move || {
            begin(track.cores[0])?;
            let start = Instant::now();
            let written = write(sink, track.length, bytes, start);
            // After a failure, too: readers must not wait for it.
            end.store(*written.as_ref().unwrap_or(&0), Ordering::Release);
            let writing = start.elapsed();
            written.map(|written| (written, start, writing, waited()))
        });
        let written = writer.join().expect("the writer does not panic");
        let results: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().expect("the reader does not panic"))
            .collect();
        (written, results)
    });
    let (written, start, writing, mut waited) = written?;
    let mut first = None;
    let mut last = start;
    for result in results {
        let (sum, lost, done, waiting) = result?;
        waited += waiting;
        ensure!(sum.wrong == 0, "{} records came damaged", sum.wrong);
        ensure!(
            sum.records + lost == written,
            "{written} records written, {} read and {lost} counted as lost",
            sum.records
        );
        if !lossy {
            ensure!(lost == 0, "{lost} of {written} records lost");
            let expected = (0..written).map(|index| sum_of(index, bytes));
            ensure!(
                sum.sum == expected.fold(0, u64::wrapping_add),
                "the sum of {written} records is wrong"
            );
        }
        last = last.max(done);
        first.get_or_insert((sum.records, lost));
    }
    let (read, lost) = first.unwrap_or_default();
    Ok(Outcome {
        written,
        read,
        lost,
        seconds: (last - start).as_secs_f64(),
        writing: writing.as_secs_f64(),
        waited: waited.as_secs_f64(),
    })
}

fn write(
    mut sink: impl Sink,
    length: Duration,
    bytes: usize,
    start: Instant,
) -> anyhow::Result<u64> {
    let mut record = vec![0; bytes];
    let mut written = 0;
    // One at least, also where the thread got no time before it was over.
    loop {
        sink.burst(&mut record, written..written + BURST)?;
        written += BURST;
        if start.elapsed() >= length {
            break;
        }
    }
    sink.finish()?;
    Ok(written)
}

fn read(
    mut source: impl Source,
    mut sum: Sum,
    end: &AtomicU64,
) -> anyhow::Result<(Sum, u64, Instant)> {
    let mut waiting: Option<Instant> = None;
    loop {
        let before = sum.records;
        // Loaded first: all that was written is there to be read, then.
        let end = end.load(Ordering::Acquire);
        source.take(&mut sum)?;
        if sum.records != before {
            waiting = None;
            continue;
        }
        if end != u64::MAX {
            let lost = source.lost();
            let since = *waiting.get_or_insert_with(Instant::now);
            if sum.records + lost >= end || since.elapsed() > PATIENCE {
                return Ok((sum, lost, since));
            }
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands records over in a vector, with one fault.
    struct Faulty(
        std::sync::mpsc::Sender<Vec<u8>>,
        fn(u64, &mut Vec<u8>) -> bool,
    );

    impl Sink for Faulty {
        fn put(&mut self, index: u64, record: &[u8]) -> anyhow::Result<()> {
            let mut record = record.to_vec();
            if (self.1)(index, &mut record) {
                self.0.send(record)?;
            }
            Ok(())
        }
    }

    struct Plain(std::sync::mpsc::Receiver<Vec<u8>>, u64);

    impl Source for Plain {
        fn take(&mut self, sum: &mut Sum) -> anyhow::Result<()> {
            while let Ok(record) = self.0.try_recv() {
                sum.add(&record);
            }
            Ok(())
        }

        fn lost(&mut self) -> u64 {
            self.1
        }
    }

    fn faulty(lossy: bool, lost: u64, fault: fn(u64, &mut Vec<u8>) -> bool) -> String {
        let (sender, receiver) = std::sync::mpsc::channel();
        let track = Track {
            cores: cores().unwrap_or([0, 0]),
            length: Duration::from_millis(1),
        };
        let source = Plain(receiver, lost);
        match race(&track, 64, lossy, Faulty(sender, fault), vec![source]) {
            Ok(outcome) => format!("{} lost", outcome.lost),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn what_comes_through_whole_is_believed() {
        assert_eq!(faulty(false, 0, |_, _| true), "0 lost");
        assert_eq!(faulty(true, 1, |index, _| index != 7), "1 lost");
    }

    #[test]
    fn a_changed_byte_is_found() {
        let change = |index, record: &mut Vec<u8>| {
            record[63] ^= u8::from(index == 7);
            true
        };
        assert!(faulty(false, 0, change).ends_with("records is wrong"));
        assert_eq!(faulty(true, 0, change), "1 records came damaged");
    }

    #[test]
    fn a_record_that_never_comes_is_found() {
        let told = faulty(false, 1, |index, _| index != 7);
        assert!(told.starts_with("1 of "), "{told}");
        let told = faulty(true, 2, |index, _| index != 7);
        assert!(told.ends_with("2 counted as lost"), "{told}");
    }
}

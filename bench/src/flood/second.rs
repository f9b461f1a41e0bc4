//! A second reader of the ring, beside the filter: takes every record and does
//! nothing with it, as what forwards logs would, but for the forwarding.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use weir_ring::{ReaderOptions, Set};

/// A thread that reads.
pub struct SecondReader {
    set: Arc<Set>,
    read: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SecondReader {
    /// Starts it on the segments in `ring`.
    pub fn start(ring: &Path) -> anyhow::Result<Self> {
        let set = Set::open(ring, &ReaderOptions::new())?;
        let (read, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (mut worker, counter, ended) = (set.worker(0, 1), read.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let mut records = 0;
                let turn = worker.turn(|_, batch| {
                    records = batch.map(std::hint::black_box).count() as u64;
                });
                counter.fetch_add(records, Ordering::Relaxed);
                if turn.is_none() {
                    worker.sleep(Duration::from_millis(50));
                }
            }
        });
        Ok(Self {
            set,
            read,
            stop,
            thread: Some(thread),
        })
    }

    /// Records read, and lost, when all that were `logged` are one or the
    /// other, or at latest after `patience`.
    pub fn finish(self, logged: u64, patience: Duration) -> anyhow::Result<(u64, u64)> {
        let until = Instant::now() + patience;
        loop {
            let (read, lost) = (
                self.read.load(Ordering::Relaxed),
                self.set.statistics().lost,
            );
            if read + lost >= logged || Instant::now() > until {
                return Ok((read, lost));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for SecondReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to panic about, and nothing to tell.
            let _ = thread.join();
        }
    }
}

//! What the watches have done, counted for the daemon's whole life: a reload that
//! exchanges a watch goes on with its numbers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use serde::Serialize;

use super::config::WatchConfig;
use crate::metrics::{WatchCounters, WatchMetrics};

/// A watch's numbers since the start of the daemon, and what it does now.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) numbers: WatchCounters,
    /// 0: not running.
    pub(crate) pid: AtomicU32,
    pub(crate) last_rejected: Mutex<String>,
}

/// A watch as shown.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // the fields are those of WatchConfig and Counters
pub struct WatchStatus {
    pub name: String,
    pub command: Vec<String>,
    /// The process group of the watch's command, if it runs now.
    pub pid: Option<u32>,
    pub starts: u64,
    pub lines: u64,
    pub bans: u64,
    /// Lines about somebody whom this watch has banned already.
    pub known: u64,
    pub not_denied: u64,
    pub ignored: u64,
    /// Lines that name nobody.
    pub rejected: u64,
    /// Why the last of them did not; the attacker's text, escape it.
    pub last_rejected: Option<String>,
}

/// The numbers of all watches, for the daemon's whole life.
#[derive(Debug)]
pub struct WatchStats {
    all: Mutex<BTreeMap<String, Arc<Counters>>>,
    metrics: WatchMetrics,
}

impl WatchStats {
    /// No watch runs yet.
    pub fn new(metrics: WatchMetrics) -> Self {
        Self {
            all: Mutex::default(),
            metrics,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Counters>>> {
        self.all.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn of(&self, watch: &str) -> Arc<Counters> {
        let mut all = self.lock();
        let new = || {
            Arc::new(Counters {
                numbers: self.metrics.of(watch),
                ..Counters::default()
            })
        };
        all.entry(watch.to_owned()).or_insert_with(new).clone()
    }

    /// Forgets the counts of all watches but these.
    pub(crate) fn keep_only(&self, is_kept: impl Fn(&str) -> bool) {
        let mut all = self.lock();
        all.retain(|watch, _| is_kept(watch));
        self.metrics.keep_only(is_kept);
    }

    /// The watches of a configuration with their numbers.
    pub fn status(&self, watches: &[WatchConfig]) -> Vec<WatchStatus> {
        let watches = watches.iter().map(|watch| {
            let counters = self.lock().get(&watch.name).cloned().unwrap_or_default();
            let numbers = &counters.numbers;
            WatchStatus {
                name: watch.name.clone(),
                command: watch.command.clone(),
                pid: Some(counters.pid.load(Relaxed)).filter(|pid| *pid != 0),
                starts: numbers.starts.get(),
                lines: numbers.lines.get(),
                bans: numbers.bans.get(),
                known: numbers.known.get(),
                not_denied: numbers.not_denied.get(),
                ignored: numbers.ignored.get(),
                rejected: numbers.rejected.get(),
                last_rejected: Some(counters.last_rejected().clone()).filter(|r| !r.is_empty()),
            }
        });
        watches.collect()
    }
}

impl Counters {
    pub(crate) fn last_rejected(&self) -> MutexGuard<'_, String> {
        self.last_rejected
            .lock()
            .expect("no holder of this lock panics")
    }
}

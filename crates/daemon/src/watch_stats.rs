//! What the watches have done, counted for the daemon's whole life: a reload that
//! exchanges a watch goes on with its numbers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;

use crate::config::Config;

/// A watch's numbers since the start of the daemon.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) lines: AtomicU64,
    pub(crate) bans: AtomicU64,
    /// Banned by this watch already.
    pub(crate) known: AtomicU64,
    /// Not denied, with `only_if = "denied"`.
    pub(crate) not_denied: AtomicU64,
    /// Exempt, or on its ignore list.
    pub(crate) ignored: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) starts: AtomicU64,
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
    /// Its process group, if it runs now.
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
#[derive(Debug, Default)]
pub struct WatchStats(Mutex<BTreeMap<String, Arc<Counters>>>);

impl WatchStats {
    pub(crate) fn of(&self, watch: &str) -> Arc<Counters> {
        let mut all = self.0.lock().expect("no holder of this lock panics");
        all.entry(watch.to_owned()).or_default().clone()
    }

    /// The watches of a configuration with their numbers.
    pub fn status(&self, config: &Config) -> Vec<WatchStatus> {
        let watches = config.watches.iter().map(|watch| {
            let counters = self.of(&watch.name);
            let read = |n: &AtomicU64| n.load(Relaxed);
            WatchStatus {
                name: watch.name.clone(),
                command: watch.command.clone(),
                pid: Some(counters.pid.load(Relaxed)).filter(|pid| *pid != 0),
                starts: read(&counters.starts),
                lines: read(&counters.lines),
                bans: read(&counters.bans),
                known: read(&counters.known),
                not_denied: read(&counters.not_denied),
                ignored: read(&counters.ignored),
                rejected: read(&counters.rejected),
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

//! What the threads that read logs say of them, for whoever asks how the daemon is:
//! whether each has something to read, and the numbers of rings.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Mutex, MutexGuard},
};

use weir_sources::RingStatistics;

/// The state of rings and files, as last told.
#[derive(Default)]
pub struct LogStatus {
    /// Rings by their directory.
    rings: Mutex<BTreeMap<String, RingStatistics>>,
    /// By the names of the workers: has each something to read?
    sources: Mutex<BTreeMap<String, bool>>,
}

impl LogStatus {
    /// The rings that are read, by directory.
    pub fn rings(&self) -> MutexGuard<'_, BTreeMap<String, RingStatistics>> {
        self.rings.lock().expect("no holder of this lock panics")
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.sources.lock().expect("no holder of this lock panics")
    }

    /// The workers from now on: of one that is new nothing is read yet.
    pub fn set_sources(&self, names: &BTreeSet<String>) {
        let mut sources = self.sources();
        let reads = |name: &String| sources.get(name).copied().unwrap_or(false);
        *sources = names.iter().map(|n| (n.clone(), reads(n))).collect();
    }

    /// Has this worker something to read?
    pub fn set_source(&self, name: &str, is_read: bool) {
        if let Some(before) = self.sources().get_mut(name) {
            *before = is_read;
        }
    }

    /// Are there logs to be read, and none that can be?
    pub fn reads_no_log(&self) -> bool {
        let sources = self.sources();
        !sources.is_empty() && !sources.values().any(|is_read| *is_read)
    }

    /// What a worker knows of its ring now.
    pub fn set_ring(&self, directory: &Path, statistics: RingStatistics) {
        let ring = directory.display().to_string();
        self.rings().insert(ring, statistics);
    }

    /// Other rings may be read from now on.
    pub fn forget_rings(&self) {
        self.rings().clear();
    }
}

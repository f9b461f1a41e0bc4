//! How often something was done that takes long under the maintenance lock: a
//! pass over all of the table, a load of the packet path.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Kernel;
use crate::Work;

/// See the file's head.
#[derive(Default)]
pub(super) struct WorkCounts {
    pub(super) expiry_passes: AtomicU64,
    pub(super) growths: AtomicU64,
    pub(super) policy_scans: AtomicU64,
}

impl WorkCounts {
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Kernel {
    /// How often what takes long under the maintenance lock was done so far.
    pub fn work(&self) -> Work {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Work {
            expiry_passes: read(&self.work.expiry_passes),
            growths: read(&self.work.growths),
            policy_scans: read(&self.work.policy_scans),
            prefix_passes: self.tables().prefix_bans().passes(),
        }
    }

    /// So many bans are gone, perhaps the last ones of their policies.
    pub(super) fn note_left(&self, gone: usize) {
        if gone > 0 {
            self.numbers_left.store(true, Ordering::Relaxed);
        }
    }
}

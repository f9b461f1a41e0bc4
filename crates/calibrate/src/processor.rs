//! Which processor a measuring thread is on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Puts the calling thread on the first or second of the processors that this
/// process may use: the receiving softirq then runs where the packets are made.
pub(crate) fn pin(which: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    if let Some(cpu) = cpus.get(which).or(cpus.first()) {
        let mut one = CpuSet::new();
        one.set(*cpu);
        // Unpinned it measures, too, with more noise.
        let _ = sched_setaffinity(None, &one);
    }
}

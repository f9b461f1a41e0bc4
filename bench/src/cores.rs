//! Which core a thread runs on.

/// Keeps the calling thread, and those that it starts from now on, to a core; where there is
/// none of the number, it stays where it is.
pub fn pin(core: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

//! CPU seconds: of threads by the scheduler's own count, of cores by
//! /proc/stat, whose unit is a hundredth of a second.

use std::{path::Path, sync::LazyLock};

/// Lets this process, and what it starts from now on, run before all others:
/// a rate is by the clock on the wall. With autogroups, which weigh a session
/// against another, niceness alone does nothing.
pub fn go_first() {
    let _ = rustix::process::setpriority_process(None, -20);
    let _ = std::fs::write("/proc/self/autogroup", "-20");
}

/// Seconds that a schedstat file says.
pub fn seconds_in(schedstat: &Path) -> f64 {
    let text = std::fs::read_to_string(schedstat).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
    nanos.unwrap_or(0.0) / 1e9
}

/// CPU seconds of the calling thread, softirqs on its back included.
pub fn of_thread() -> f64 {
    seconds_in(Path::new("/proc/thread-self/schedstat"))
}

/// CPU seconds of the kernel's threads that take over softirqs.
pub fn of_softirq_threads() -> f64 {
    static THREADS: LazyLock<Vec<std::path::PathBuf>> = LazyLock::new(|| {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter(|entry| {
            std::fs::read_to_string(entry.path().join("comm"))
                .is_ok_and(|comm| comm.starts_with("ksoftirqd/"))
        })
        .map(|entry| entry.path().join("schedstat"))
        .collect()
    });
    THREADS.iter().map(|file| seconds_in(file)).sum()
}

/// What cores were busy with, seconds since boot, each.
pub fn of_cores() -> Vec<f64> {
    cores_in(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn cores_in(stat: &str) -> Vec<f64> {
    // user nice system idle iowait irq softirq: all but the waiting.
    const BUSY: [usize; 5] = [0, 1, 2, 5, 6];
    stat.lines()
        .filter_map(|line| line.strip_prefix("cpu"))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| {
            let ticks: Vec<f64> = line
                .split_whitespace()
                .skip(1)
                .filter_map(|n| n.parse().ok())
                .collect();
            let busy: f64 = BUSY.iter().filter_map(|n| ticks.get(*n)).sum();
            busy / 100.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        let stat = "cpu  300 0 0 900 0 0 0 0 0 0\n\
                    cpu0 100 10 20 800 7 3 50 9 0 0\n\
                    cpu1 0 0 0 100 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(cores_in(stat), [1.83, 0.0]);
    }
}

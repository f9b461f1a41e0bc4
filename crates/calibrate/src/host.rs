//! What else the machine did while it was measured. Figures are processor time
//! and rounds are compared with their neighbours, but a host that is busy, or
//! whose hypervisor takes processors away, has less in its caches: who reads
//! the figures should know.

use std::{fs, time::Duration};

use rustix::param::clock_ticks_per_second;
use serde::{Deserialize, Serialize};

use super::stream::kernel_threads;

/// How the processors' time was spent meanwhile, in percent of all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Company {
    /// Processor time of other programs, in percent.
    pub others: f64,
    /// Processor time of other guests of the hypervisor, in percent.
    pub stolen: f64,
}

/// Up to a moment, of all processors.
#[derive(Clone, Copy)]
pub(super) struct Spent {
    all: Duration,
    idle: Duration,
    stolen: Duration,
    ours: Duration,
}

impl Spent {
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let [all, idle, stolen] = processors(&stat);
        // Of this process, and of ksoftirqd, which works for it.
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self {
            all,
            idle,
            stolen,
            ours: process(&own) + kernel_threads(),
        }
    }

    pub(super) fn since(&self, before: &Self) -> Company {
        let passed = |of: fn(&Self) -> Duration| of(self).saturating_sub(of(before));
        let all = passed(|s| s.all).as_secs_f64().max(f64::MIN_POSITIVE);
        let percent = |time: Duration| (time.as_secs_f64() / all * 1000.0).round() / 10.0;
        let (idle, stolen) = (passed(|s| s.idle), passed(|s| s.stolen));
        let known = idle + stolen + passed(|s| s.ours);
        Company {
            others: percent(passed(|s| s.all).saturating_sub(known)),
            stolen: percent(stolen),
        }
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / clock_ticks_per_second() as f64)
}

/// All, idle and stolen time of `/proc/stat`.
fn processors(text: &str) -> [Duration; 3] {
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guests' is in user.
    let mut times = [0u64; 8];
    for (time, word) in times.iter_mut().zip(line.split_whitespace().skip(1)) {
        *time = word.parse().unwrap_or(0);
    }
    [times.iter().sum(), times[3] + times[4], times[7]].map(ticks)
}

/// The time of a process and of its children that ended, by `/proc/PID/stat`.
fn process(text: &str) -> Duration {
    // A name may hold anything but ends with the last bracket.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = rest.split_whitespace().skip(11).take(4);
    ticks(fields.filter_map(|n| n.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let stat = "cpu  10 20 30 400 50 6 7 80 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processors(stat), [603, 450, 80].map(ticks));
        assert_eq!(processors(""), [Duration::ZERO; 3]);
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(process(stat), ticks(127));
        assert_eq!(process("nonsense"), Duration::ZERO);
    }

    #[test]
    fn what_is_neither_idle_nor_ours_is_others() {
        let spent = |all, idle, stolen, ours| {
            let [all, idle, stolen, ours] = [all, idle, stolen, ours].map(Duration::from_secs);
            Spent {
                all,
                idle,
                stolen,
                ours,
            }
        };
        let before = spent(100, 50, 3, 10);
        let company = spent(200, 70, 8, 65).since(&before);
        assert_eq!((company.others, company.stolen), (20.0, 5.0));
        let none = before.since(&before);
        assert_eq!((none.others, none.stolen), (0.0, 0.0));
    }
}

//! Jiffies for user space. Ban expiries are compared with jiffies64 in the
//! kernel; jiffies advance with CLOCK_MONOTONIC, one per tick, so one sample at
//! a tick's edge gives every later value without a system call into BPF. How long
//! a tick is the kernel says itself: what could be measured in a tenth of a second
//! would not tell 1000 a second from 1024.

use std::{io, mem::MaybeUninit, os::fd::AsFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::{
    error::{Context, Error, Result},
    fault, prog_test_run,
    skeleton::clock::{ClockSkelBuilder, types::clock_sample},
};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Converts CLOCK_BOOTTIME to jiffies64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JiffyClock {
    /// Nanoseconds between two ticks.
    tick: u64,
    /// jiffies64 at `edge`.
    jiffies: u64,
    /// A moment just after a tick, CLOCK_MONOTONIC.
    edge: u64,
}

fn nanos(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * SECOND + t.tv_nsec as u64
}

/// CLOCK_BOOTTIME now, nanoseconds.
pub fn boottime() -> u64 {
    nanos(ClockId::Boottime) + fault::slept()
}

/// CLOCK_BOOTTIME − CLOCK_MONOTONIC: time spent suspended, nanoseconds.
pub fn suspended() -> u64 {
    boottime().saturating_sub(nanos(ClockId::Monotonic))
}

/// The length of a tick, which is the resolution of the clocks that advance with
/// it: 1 / CONFIG_HZ as the kernel rounds it.
fn tick() -> Result<u64> {
    let resolution = clock_getres(ClockId::MonotonicCoarse);
    match resolution.tv_nsec as u64 {
        // From 10000 ticks a second to 10.
        tick @ 100_000..=100_000_000 if resolution.tv_sec == 0 => Ok(tick),
        other => Err(Error::refused(
            "read the kernel's tick",
            format!("CLOCK_MONOTONIC_COARSE has a resolution of {other} ns"),
        )),
    }
}

impl JiffyClock {
    /// Finds the relation to CLOCK_MONOTONIC by watching some ticks through a
    /// BPF program (20–120 ms).
    pub fn probe() -> Result<Self> {
        let tick = tick()?;
        let mut storage = MaybeUninit::uninit();
        let skel = ClockSkelBuilder::default()
            .open(&mut storage)
            .and_then(|open| open.load())
            .context(|| "load the clock program (needs CAP_BPF and CAP_PERFMON)".into())?;
        let sample = || -> Result<clock_sample> {
            let bytes = prog_test_run::packet(skel.progs.weir_clock.as_fd(), &[0; 64], 1)?.packet;
            Ok(clock_sample {
                jiffies: u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes")),
                mono_ns: u64::from_ne_bytes(bytes[8..16].try_into().expect("8 bytes")),
            })
        };
        let next_edge = |mut last: clock_sample| -> Result<clock_sample> {
            let deadline = last.mono_ns + SECOND;
            loop {
                let now = sample()?;
                if now.jiffies != last.jiffies {
                    return Ok(now);
                }
                if now.mono_ns > deadline {
                    return Err(Error::new(
                        "measure the kernel's tick",
                        io::Error::other("jiffies stand still"),
                    ));
                }
                last = clock_sample {
                    jiffies: last.jiffies,
                    mono_ns: last.mono_ns,
                };
            }
        };
        // A tick may be handled late: of several edges, the one that came
        // earliest in its own period is nearest the true edge.
        let first = next_edge(sample()?)?;
        let mut last = clock_sample {
            jiffies: first.jiffies,
            mono_ns: first.mono_ns,
        };
        let mut edges = vec![(first.jiffies, first.mono_ns)];
        while last.jiffies < first.jiffies + 12 {
            last = next_edge(last)?;
            edges.push((last.jiffies, last.mono_ns));
        }
        let (jiffies, edge) = edges
            .into_iter()
            .min_by_key(|(j, t)| i128::from(*t) - i128::from(*j) * i128::from(tick))
            .expect("there are edges");
        Ok(Self {
            tick,
            jiffies,
            edge,
        })
    }

    /// Ticks a second.
    pub fn hz(&self) -> u64 {
        (SECOND + self.tick / 2) / self.tick
    }

    /// The kernel's `jiffies64` now.
    pub fn now(&self) -> u64 {
        self.at_monotonic(nanos(ClockId::Monotonic))
    }

    fn at_monotonic(&self, mono: u64) -> u64 {
        let since = mono.wrapping_sub(self.edge) as i64;
        self.jiffies
            .saturating_add_signed(since.div_euclid(self.tick as i64))
    }

    /// The first jiffy at or after this CLOCK_BOOTTIME moment, if the machine
    /// is not suspended in between. A packet of a ban that ends then passes
    /// from that jiffy on, never before.
    pub fn jiffy_at(&self, boottime: u64) -> u64 {
        self.jiffy_after(boottime, suspended())
    }

    /// As [`JiffyClock::jiffy_at`], with [`suspended`] read once for many.
    pub fn jiffy_after(&self, boottime: u64, suspended: u64) -> u64 {
        self.at_monotonic(boottime.saturating_sub(suspended).saturating_sub(1)) + 1
    }

    /// The CLOCK_BOOTTIME moment at which this jiffy begins.
    pub fn boottime_of(&self, jiffy: u64) -> u64 {
        let ticks = i128::from(jiffy) - i128::from(self.jiffies);
        let mono = i128::from(self.edge) + ticks * i128::from(self.tick);
        u64::try_from(mono).unwrap_or(0) + suspended()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_as_long_as_some_kernel_makes_it() {
        let hz = JiffyClock {
            tick: tick().expect("every kernel has coarse clocks"),
            jiffies: 0,
            edge: 0,
        }
        .hz();
        let rates = [24, 48, 100, 128, 250, 256, 300, 1000, 1024, 1200];
        assert!(rates.contains(&hz), "{hz}");
        // CONFIG_HZ, and the tick as linux/jiffies.h rounds it.
        for (hz, tick) in [(300, 3_333_333), (1000, 1_000_000), (1024, 976_563)] {
            let clock = JiffyClock {
                tick,
                jiffies: 0,
                edge: 0,
            };
            assert_eq!(clock.hz(), hz);
            assert_eq!(clock.at_monotonic(tick * 1_000_000), 1_000_000, "{hz}");
        }
    }

    #[test]
    fn a_moment_rounds_up_to_its_jiffy_and_back() {
        let clock = JiffyClock {
            tick: SECOND / 250,
            jiffies: 1 << 32,
            edge: 10 * SECOND,
        };
        let gap = suspended();
        for (mono, jiffy) in [
            (10 * SECOND, 1 << 32),
            (10 * SECOND + 1, (1 << 32) + 1),
            (10 * SECOND + 4_000_000, (1 << 32) + 1),
            (10 * SECOND - 4_000_000, (1 << 32) - 1),
            (9 * SECOND, (1 << 32) - 250),
            (11 * SECOND, (1 << 32) + 250),
        ] {
            assert_eq!(clock.jiffy_at(mono + gap), jiffy, "at {mono}");
            assert!(
                clock.boottime_of(jiffy) + 1_000_000 >= mono + gap,
                "at {mono}"
            );
        }
    }
}

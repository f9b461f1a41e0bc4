//! The three clocks that a stored ban is dated with, read together. Everything
//! that decides by time takes one of these, so that a test can hold them.

use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use weir_core::Until;
use weir_enforce::{BootNanos, Expiry};

/// The two clocks are not read at the same instant, and the calendar's is slewed: by
/// so much it may lie beside the boot clock until it is followed.
const SLACK: SignedDuration = SignedDuration::from_millis(100);
static BOOTED: Booted = Booted(Mutex::new(None));

/// When the boot clock began by the calendar, as it was read last: what ends at one
/// moment of the boot clock ends at one moment of the calendar, whenever it is asked.
struct Booted(Mutex<Option<Timestamp>>);

impl Booted {
    /// The calendar's time at a moment of the boot clock, by which it reads `wall`.
    fn wall(&self, boottime: BootNanos, wall: Timestamp) -> Timestamp {
        let since = SignedDuration::from_nanos_i128(boottime.0.into());
        let mut booted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(booted) = *booted
            && let Ok(known) = booted.checked_add(since)
            && known.duration_since(wall).abs() <= SLACK
        {
            return known;
        }
        *booted = wall.checked_sub(since).ok();
        wall
    }
}

/// One moment, on every clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now {
    /// The kernel's random name for this boot.
    pub boot: String,
    /// Nanoseconds since boot, suspend included.
    pub boottime: BootNanos,
    /// The wall clock.
    pub wall: Timestamp,
}

impl Now {
    /// Reads the clocks of this host.
    pub fn read() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned());
        let boottime = BootNanos::now();
        Self {
            boot,
            boottime,
            wall: BOOTED.wall(boottime, Timestamp::now()),
        }
    }

    /// When a ban that ends at `until` expires on the boot clock.
    pub fn expiry(&self, until: Until) -> Expiry {
        match until {
            Until::Never => Expiry::Never,
            Until::At(end) => {
                let left = end.duration_since(self.wall).as_nanos().max(0);
                let left = u64::try_from(left).unwrap_or(u64::MAX);
                Expiry::At(BootNanos(self.boottime.0.saturating_add(left)))
            }
        }
    }

    /// The wall time at which `expiry` is reached.
    pub fn until(&self, expiry: Expiry) -> Until {
        match expiry {
            Expiry::Never => Until::Never,
            Expiry::At(end) => {
                let left = i128::from(end.0) - i128::from(self.boottime.0);
                let left = SignedDuration::from_nanos_i128(left);
                Until::At(self.wall.checked_add(left).unwrap_or(Timestamp::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that asks twice sees one end, unless the clock is set.
    #[test]
    fn the_end_of_a_ban_does_not_move_between_two_questions() {
        let (booted, end) = (Booted(Mutex::new(None)), BootNanos(9_000_000_000));
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        // Read this long behind the boot clock, in milliseconds.
        let until = |at: u64, late: i64| {
            let boottime = BootNanos(at * 1_000_000_000);
            let read =
                begin + SignedDuration::new(at as i64, 0) + SignedDuration::from_millis(late);
            let now = Now {
                boot: "boot".to_owned(),
                boottime,
                wall: booted.wall(boottime, read),
            };
            match now.until(Expiry::At(end)) {
                Until::At(end) => end.duration_since(begin).as_millis(),
                Until::Never => unreachable!("it has an end"),
            }
        };
        for (at, late, expected) in [
            (1, 0, 9_000),
            (2, 3, 9_000),
            (3, -90, 9_000),
            (4, 3_600_000, 3_609_000),
            (5, 3_600_001, 3_609_000),
            (6, -200, 8_800),
        ] {
            assert_eq!(until(at, late), expected, "at {at}");
        }
        // The clocks of this host.
        let ban = Expiry::At(BootNanos(BootNanos::now().0 + 3_600_000_000_000));
        let ends = [0; 100].map(|_| Now::read().until(ban));
        assert_eq!(ends, [ends[0]; 100]);
    }
}

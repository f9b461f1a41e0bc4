//! The three clocks that a stored ban is dated with, read together. Everything
//! that decides by time takes one of these, so that a test can hold them.

use jiff::{SignedDuration, Timestamp};
use weir_core::Until;
use weir_enforce::{BootNanos, Expiry};

/// One moment, on every clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now {
    /// The kernel's random name for this boot.
    pub boot: String,
    /// Since boot, suspend included.
    pub boottime: BootNanos,
    /// By the calendar.
    pub wall: Timestamp,
}

impl Now {
    /// Reads the clocks of this host.
    pub fn read() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned());
        Self {
            boot,
            boottime: BootNanos::now(),
            wall: Timestamp::now(),
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

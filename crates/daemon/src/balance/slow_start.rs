//! A real that comes back has no cache yet, and no connections to its database: its share
//! of new flows grows to its weight in equal steps, while its checks go on.

use std::time::{Duration, Instant};

use super::{RealState, State};

/// The number of steps in which a share grows.
pub(super) const STEPS: u32 = 10;

impl RealState {
    /// At which of the steps it is, 1 and up; `None`: it has all of its weight.
    pub(super) fn ramp(&self, slow_start: Duration, now: Instant) -> Option<u32> {
        let since = now.saturating_duration_since(self.back?);
        step(slow_start, since)
    }

    /// Its share of new flows now, in which a step of the lightest real is a whole number.
    pub(super) fn share(&self, slow_start: Duration, now: Instant) -> u32 {
        self.weight() * self.ramp(slow_start, now).unwrap_or(STEPS)
    }
}

fn step(slow_start: Duration, since: Duration) -> Option<u32> {
    if slow_start.is_zero() {
        return None;
    }
    let begun = since.as_millis() * u128::from(STEPS) / slow_start.as_millis() + 1;
    (begun < u128::from(STEPS)).then_some(begun as u32)
}

impl State {
    /// Is some real at another step than when this was asked last?
    pub(super) fn has_ramped(&mut self) -> bool {
        let now = Instant::now();
        let mut ramps = Vec::new();
        for pool in &self.pools {
            for real in &pool.reals {
                let step = real.ramp(pool.config.slow_start, now);
                ramps.extend(step.map(|step| (real.number, step)));
            }
        }
        let changed = ramps != self.ramps;
        self.ramps = ramps;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_in_equal_steps_and_at_once_without() {
        let slow = Duration::from_secs(30);
        let at = |seconds: f64| step(slow, Duration::from_secs_f64(seconds));
        assert_eq!(at(0.0), Some(1));
        assert_eq!(at(2.9), Some(1));
        assert_eq!(at(3.0), Some(2));
        assert_eq!(at(26.9), Some(9));
        assert_eq!(at(27.0), None);
        assert_eq!(at(3000.0), None);
        assert_eq!(step(Duration::ZERO, Duration::ZERO), None);
    }
}

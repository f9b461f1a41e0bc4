//! What may be said of a figure after some rounds: its median, and between which
//! bounds it lies. Both go by the order of the rounds alone, so that a round in
//! which something else had the processor moves neither far.

use serde::{Deserialize, Serialize};
use weir_enforce::hook_selection::Estimate;

/// The middle of the rounds, and the bounds between which it lies with 95 %
/// confidence: those of the sign test, whatever the rounds' distribution. Of
/// fewer than nine rounds they are the least and the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds were below.
    pub median: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

impl Spread {
    /// The spread of these rounds, to four decimal places; `None` of no round.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = rounds.iter().map(|n| (n * 1e4).round() / 1e4).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let beyond = beyond(sorted.len());
        Some(Self {
            median: (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0,
            low: sorted[beyond],
            high: sorted[last - beyond],
        })
    }

    /// How far the bounds are from each other.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }

    /// The bounds of a figure that follows from this one.
    pub(super) fn map<T>(self, of: impl Fn(f64) -> T) -> Estimate<T> {
        Estimate {
            median: of(self.median),
            low: of(self.low),
            high: of(self.high),
        }
    }

    /// Whether the spread can have been measured. A difference of two measurements may come
    /// out a little below zero.
    pub(super) fn is_sane(&self, max: f64) -> bool {
        self.low >= -max && self.low <= self.median && self.median <= self.high && self.high <= max
    }
}

/// How many of so many rounds lie below the lower bound, and how many above the
/// upper one: as few as below the median by chance in one of forty cases.
fn beyond(rounds: usize) -> usize {
    // The chance of exactly, and of at most, as many below the median.
    let mut exactly = 0.5f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX));
    let (mut at_most, mut many) = (exactly, 0);
    loop {
        exactly *= (rounds - many) as f64 / (many + 1) as f64;
        at_most += exactly;
        if at_most > 0.025 {
            return many;
        }
        many += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rounds: &[f64], median: f64, low: f64, high: f64) {
        let spread = Spread::of(rounds).expect("there are rounds");
        assert_eq!(spread, Spread { median, low, high }, "{rounds:?}");
    }

    #[test]
    fn a_spread_is_of_its_rounds() {
        assert_eq!(Spread::of(&[]), None);
        check(&[7.0], 7.0, 7.0, 7.0);
        check(&[3.0, 1.0], 2.0, 1.0, 3.0);
        check(&[3.0, 1.0, 2.0], 2.0, 1.0, 3.0);
        check(&[0.5, 0.4, 0.7, 0.6], 0.55, 0.4, 0.7);
    }

    /// The ranks of tables of the sign test.
    #[test]
    fn its_bounds_close_in_with_more_rounds() {
        for (rounds, beyond) in [(5, 0), (8, 0), (9, 1), (12, 2), (16, 3), (20, 5), (25, 7)] {
            let all: Vec<f64> = (0..rounds).map(f64::from).collect();
            let middle = f64::from(rounds - 1) / 2.0;
            check(
                &all,
                middle,
                f64::from(beyond),
                f64::from(rounds - 1 - beyond),
            );
        }
    }

    /// One wild round in nine does not show.
    #[test]
    fn a_disturbed_round_moves_no_bound() {
        let mut rounds = vec![10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0];
        let calm = Spread::of(&rounds);
        rounds[8] = 900.0;
        assert_eq!(Spread::of(&rounds), calm);
    }
}

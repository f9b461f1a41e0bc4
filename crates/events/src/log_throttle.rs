//! Keeps the log readable in a burst: of each kind the first lines of a second
//! are written, the rest is counted and told in one line. Without it ten
//! thousand bans in a second are a megabyte on standard error, which a slow
//! journal makes the worker wait for. Time comes in with each call.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// Lines of one kind that a second may bring.
const LINES: u64 = 20;
/// How long a count goes on: the line says "in a second".
const WINDOW: Duration = Duration::from_secs(1);

/// What has lines of its own to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    Bans,
    Unbans,
    Allows,
    Apps,
}

/// Lines that were not written in one second.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missed {
    budget: Budget,
    lines: u64,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = grouped(self.lines);
        match self.budget {
            Budget::Bans => write!(f, "… and {n} more bans in a second, see `weir bans`"),
            Budget::Unbans => write!(f, "… and {n} more unbans in a second, see `weir bans`"),
            Budget::Allows => write!(
                f,
                "… and {n} more in a second that are allowed, see `weir allow list`"
            ),
            Budget::Apps => write!(
                f,
                "… and {n} more of programs in a second, see `weir app list`"
            ),
        }
    }
}

/// 9990 as 9,990.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// May a line be written, and what is to be said of the second before it?
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) write: bool,
    pub(crate) missed: Option<Missed>,
}

/// One second's count; it begins with its first line.
#[derive(Debug, Default, Clone, Copy)]
struct Second {
    since: Option<Instant>,
    lines: u64,
}

impl Second {
    fn is_over(&self, now: Instant) -> bool {
        self.since
            .is_some_and(|since| now.duration_since(since) >= WINDOW)
    }

    fn end(&mut self, budget: Budget) -> Option<Missed> {
        let lines = std::mem::take(self).lines.saturating_sub(LINES);
        (lines > 0).then_some(Missed { budget, lines })
    }
}

/// The seconds that are counted now, one a kind.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    seconds: [Second; 4],
}

impl LogThrottle {
    /// Counts a line.
    pub(crate) fn admit(&mut self, budget: Budget, now: Instant) -> Admitted {
        let second = &mut self.seconds[budget as usize];
        let missed = match second.is_over(now) {
            true => second.end(budget),
            false => None,
        };
        second.since.get_or_insert(now);
        second.lines += 1;
        Admitted {
            write: second.lines <= LINES,
            missed,
        }
    }

    /// Ends the seconds that are over, or `all`.
    pub(crate) fn settle(&mut self, now: Instant, all: bool) -> Vec<Missed> {
        [Budget::Bans, Budget::Unbans, Budget::Allows, Budget::Apps]
            .into_iter()
            .filter_map(|budget| {
                let second = &mut self.seconds[budget as usize];
                (all || second.is_over(now)).then(|| second.end(budget))?
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(calm: &mut LogThrottle, budget: Budget, lines: u64, at: Instant) -> u64 {
        (0..lines)
            .filter(|_| calm.admit(budget, at).write)
            .count()
            .try_into()
            .unwrap()
    }

    #[test]
    fn the_first_lines_of_a_second_are_written_and_the_rest_counted() {
        let start = Instant::now();
        let mut calm = LogThrottle::default();
        assert_eq!(written(&mut calm, Budget::Bans, 10_010, start), LINES);
        // Another kind has its own.
        assert_eq!(written(&mut calm, Budget::Unbans, 3, start), 3);
        let almost = start + WINDOW - Duration::from_millis(1);
        assert_eq!(calm.settle(almost, false), []);
        let over = start + WINDOW;
        let admitted = calm.admit(Budget::Bans, over);
        assert!(admitted.write);
        let missed = admitted.missed.expect("9,990 were not written");
        assert_eq!(
            missed.to_string(),
            "… and 9,990 more bans in a second, see `weir bans`"
        );
        // Said once; the new second has one line so far.
        assert_eq!(written(&mut calm, Budget::Bans, LINES + 5, over), LINES - 1);
        let missed = Missed {
            budget: Budget::Bans,
            lines: 6,
        };
        assert_eq!(calm.settle(over + WINDOW, false), [missed]);
        assert_eq!(calm.settle(over + WINDOW * 9, true), []);
    }

    #[test]
    fn numbers_are_grouped() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(n), text);
        }
    }
}

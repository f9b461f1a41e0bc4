//! What a filter remembers from line to line: the dates of its log, sessions, the lines of a
//! window, and memory that its searches use again.

use jiff::Timestamp;

use super::{
    Filter,
    expression::{Memory, Scratches},
    sessions::Sessions,
    window::Window,
};
use crate::date::LogDates;

/// What a filter remembers from line to line. Bounded.
#[derive(Clone, Debug)]
pub struct FilterState {
    pub(super) dates: LogDates,
    pub(super) last_date: Option<Timestamp>,
    /// Where the date of the last line was cut out of it.
    pub(super) cut: (usize, usize),
    pub(super) sessions: Sessions,
    pub(super) window: Window,
    pub(super) memories: Memories,
    pub(super) scratch: Scratches,
    pub(super) text: String,
    pub(super) content: String,
}

/// What the expressions have learned.
#[derive(Clone, Debug)]
pub(super) struct Memories {
    pub(super) prefregex: Memory,
    pub(super) failregex: Memory,
    pub(super) ignoreregex: Memory,
}

impl FilterState {
    /// Searches that were given up because they would have taken too long.
    pub fn exhausted(&self) -> u64 {
        self.scratch.exhausted
    }

    /// Finds dates together with the filter of `other` from now on, if both have the same forms
    /// of dates and have learned the same: what each finds stays the same. Both are to read the
    /// same lines of a log, in one zone, each before the next one. A clone shares with nobody.
    pub fn share_dates(&mut self, other: &Self) -> bool {
        self.dates.share(&other.dates)
    }
}

impl Filter {
    /// The state before the first line.
    pub fn state(&self) -> FilterState {
        FilterState {
            dates: LogDates::new(self.dates.state()),
            last_date: None,
            cut: (0, 0),
            sessions: Sessions::default(),
            window: Window::default(),
            memories: Memories {
                prefregex: self.prefregex.memory(),
                failregex: self.failregex.memory(),
                ignoreregex: self.ignoreregex.memory(),
            },
            scratch: Scratches::default(),
            text: String::new(),
            content: String::new(),
        }
    }
}

//! The dates of one log for several filters. Detection learns from line to line, and what it
//! takes for a date hangs on what it has learned; but filters that have the same forms, have
//! learned the same and read the same lines learn and find the same. These have one state in
//! common, and the first of them to read a line finds its date for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

use super::{Clock, DateMatch, DateState, Dates};

/// What one filter has learned of dates, in common with others perhaps. A clone has nothing
/// in common with anybody.
#[derive(Debug)]
pub struct LogDates {
    common: Arc<Mutex<Common>>,
    /// How many lines this filter has read, as `Common::lines` counts them.
    read: u64,
}

#[derive(Debug)]
struct Common {
    state: DateState,
    lines: u64,
    /// The last line, where several may ask for it, and when it was read.
    line: String,
    now: Timestamp,
    found: Option<DateMatch>,
}

impl LogDates {
    /// With a state that this filter has for itself.
    pub fn new(state: DateState) -> Self {
        let common = Common {
            state,
            lines: 0,
            line: String::new(),
            now: Timestamp::UNIX_EPOCH,
            found: None,
        };
        Self {
            common: Arc::new(Mutex::new(common)),
            read: 0,
        }
    }

    fn common(&self) -> MutexGuard<'_, Common> {
        // What a thread that has panicked has left is as good as any state.
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this state in common with `other` from now on, if both have learned the same of the
    /// same forms. Both are to read the same lines, in one zone, each before the next one.
    pub fn share(&mut self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.common, &other.common) {
            return true;
        }
        let learned_the_same = {
            let there = other.common();
            // One that lags behind has not learned what is there.
            there.lines == other.read && self.common().state.has_learned_as(&there.state)
        };
        if learned_the_same {
            self.common = other.common.clone();
            self.read = other.read;
        }
        learned_the_same
    }

    /// The date of the next line; what it teaches is remembered.
    pub fn find(&mut self, dates: &Dates, line: &str, clock: Clock<'_>) -> Option<DateMatch> {
        if let Some(common) = Arc::get_mut(&mut self.common) {
            let common = common.get_mut().unwrap_or_else(PoisonError::into_inner);
            common.lines += 1;
            self.read = common.lines;
            return dates.find(&mut common.state, line, clock);
        }
        let mut common = self.common();
        let behind = common.lines - self.read;
        if behind == 1 && common.now == clock.now && common.line == line {
            let found = common.found;
            drop(common);
            self.read += 1;
            return found;
        }
        if behind != 0 {
            // The others have read something else: they go on without this one.
            let state = common.state.clone();
            drop(common);
            *self = Self::new(state);
            return self.find(dates, line, clock);
        }
        common.lines += 1;
        common.line.clear();
        common.line.push_str(line);
        common.now = clock.now;
        common.found = dates.find(&mut common.state, line, clock);
        let (found, lines) = (common.found, common.lines);
        drop(common);
        self.read = lines;
        found
    }

    /// Each form of `dates` as people are shown it, and how often it was taken.
    pub fn hits(&self, dates: &Dates) -> Vec<(String, u32)> {
        dates.hits(&self.common().state)
    }
}

impl Clone for LogDates {
    fn clone(&self) -> Self {
        Self::new(self.common().state.clone())
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    const LINES: [&str; 8] = [
        "Mar  4 05:06:07 host sshd[7]: a",
        "2025-03-04 05:06:08,123 b",
        "no date",
        "Mar  4 05:06:09 host sshd[7]: 2024-01-01 00:00:00 c",
        "[04/Mar/2025:05:06:10 +0000] d",
        "x 04/Mar/2025:05:06:11 +0000 2025-03-04 05:06:08 e",
        "1741064772 f",
        "2025-03-04 05:06:13 g",
    ];

    fn clock(zone: &TimeZone, n: i64) -> Clock<'_> {
        Clock {
            now: Timestamp::from_second(1_741_064_780 + n).unwrap(),
            zone,
        }
    }

    #[test]
    fn filters_that_share_find_what_each_finds_alone() {
        let (dates, zone) = (Dates::new(None).unwrap(), TimeZone::UTC);
        let alone = || LogDates::new(dates.state());
        let mut all = [alone(), alone(), alone()];
        let [first, others @ ..] = &mut all;
        assert!(others.iter_mut().all(|other| other.share(first)));
        let mut one = alone();
        for (n, line) in LINES.into_iter().cycle().take(100).enumerate() {
            let now = clock(&zone, n as i64);
            let found = one.find(&dates, line, now);
            for dates_of in &mut all {
                assert_eq!(dates_of.find(&dates, line, now), found, "{line}");
            }
        }
        // Each line was looked at once for all of them.
        assert_eq!(all[2].common().lines, 100);
        assert_eq!(all[0].hits(&dates), one.hits(&dates));
    }

    /// Who has read a line that the others have not goes on alone, with its own line.
    #[test]
    fn whoever_reads_other_lines_goes_on_alone() {
        let (dates, zone) = (Dates::new(None).unwrap(), TimeZone::UTC);
        let mut one = LogDates::new(dates.state());
        let mut other = LogDates::new(dates.state());
        assert!(other.share(&one));
        let now = clock(&zone, 0);
        let seconds = |found: Option<DateMatch>| found.unwrap().time.unwrap().as_second();
        let first = seconds(one.find(&dates, LINES[0], now));
        assert_eq!(seconds(other.find(&dates, LINES[1], now)), first + 1);
        assert!(!Arc::ptr_eq(&one.common, &other.common));
        // So does one that has missed a line, and none that has learned otherwise joins.
        assert!(!other.share(&one));
        let mut third = one.clone();
        assert!(third.share(&one));
        for line in [LINES[0], LINES[3]] {
            one.find(&dates, line, now);
        }
        assert_eq!(seconds(third.find(&dates, LINES[0], now)), first);
        assert!(!Arc::ptr_eq(&one.common, &third.common));
    }

    #[test]
    fn others_forms_are_not_shared() {
        let [one, other] = [None, Some("%Y-%m-%d %H:%M:%S")].map(|pattern| {
            let dates = Dates::new(pattern).unwrap();
            LogDates::new(dates.state())
        });
        let mut joined = other.clone();
        assert!(!joined.share(&one));
        assert!(joined.share(&other));
    }
}

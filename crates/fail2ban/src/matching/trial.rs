//! A line tried out against a filter, as `fail2ban-regex` does it: each expression that
//! fits is told, not the first alone, and the lines themselves are kept. The daemon reads
//! lines by [`Filter::read`], which keeps nothing of them.

use std::sync::Arc;

use super::{
    Failure, Filter, FilterState, LogLine,
    groups::{CONTENT, MLFID, Value, Values},
    json_pattern,
    sessions::WholeLine,
    window::Window,
};
use crate::date::Clock;

/// What a line that fits an expression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A failure of somebody.
    Failed,
    /// A failure, and its session has not told yet who failed.
    Pending,
    /// No failure by itself (`<F-NOFAIL>`).
    NoFail,
}

/// An expression that fits a line, and what it tells.
#[derive(Clone, Debug)]
pub struct Told {
    /// With an empty `id` if nobody is named.
    pub failure: Failure,
    /// What the line is by it.
    pub standing: Standing,
}

/// All that one line tells.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The groups of `prefregex` in their order, if there is one and it fits.
    pub prefix: Option<Vec<(String, Option<String>)>>,
    /// Each `failregex` that fits and that no `ignoreregex` takes away.
    pub told: Vec<Told>,
    /// Each `ignoreregex` that fits, once for each match that it takes away.
    pub ignored: Vec<usize>,
    /// Lines before this one that a match over several lines has used up.
    pub used: Vec<Arc<WholeLine>>,
}

/// What trying a filter out remembers from line to line. Bounded.
#[derive(Clone, Debug)]
pub struct TrialState {
    state: FilterState,
    /// The lines of the window: without their dates as there, and whole.
    window: Vec<(String, Arc<WholeLine>)>,
    /// How the last date was written.
    last_date: String,
}

impl TrialState {
    /// Searches that were given up because they would have taken too long.
    pub fn exhausted(&self) -> u64 {
        self.state.exhausted()
    }

    /// The lines that have left the window since it was looked at last.
    fn take_used(&mut self) -> Vec<Arc<WholeLine>> {
        let mut used = Vec::new();
        let mut there = self.state.window.lines().peekable();
        self.window.retain(|(rest, whole)| {
            let stays = there.next_if(|line| *line == rest).is_some();
            if !stays {
                used.push(whole.clone());
            }
            stays
        });
        used
    }
}

impl Filter {
    /// The state before the first line.
    pub fn trial_state(&self) -> TrialState {
        TrialState {
            state: self.state(),
            window: Vec::new(),
            last_date: String::new(),
        }
    }

    /// Each form of a date as people are shown it, and how often it was taken, in the
    /// order in which they are tried by now.
    pub fn date_hits(&self, state: &TrialState) -> Vec<(String, u32)> {
        state.state.dates.hits(&self.dates)
    }

    /// What a line tells by the first expression that fits, or by all of them.
    pub fn try_line(
        &self,
        trial_state: &mut TrialState,
        line: LogLine<'_>,
        clock: Clock<'_>,
        all: bool,
    ) -> Trial {
        let text = line.text.trim_end_matches(['\r', '\n']);
        let mut rest = String::new();
        let date = self.cut_date(&mut trial_state.state, text, line.time, clock, &mut rest);
        let whole = Arc::new(trial_state.whole(text, date.is_some() && line.time.is_none()));
        let window = match self.maxlines {
            _ if !self.fields.is_empty() => match json_pattern::text(&self.fields, text) {
                Ok(values) => {
                    rest = values;
                    None
                }
                Err(_) => return Trial::default(),
            },
            1 => {
                rest.push('\n');
                None
            }
            max => {
                trial_state.state.window.push(rest.clone(), max);
                trial_state.window.push((rest, whole.clone()));
                let over = trial_state.window.len().saturating_sub(max);
                trial_state.window.drain(..over);
                let window = trial_state.state.window.clone();
                rest = window.text();
                Some(window)
            }
        };
        let mut trial = Trial::default();
        let state = &mut trial_state.state;
        let ignores_early =
            !self.ignoreregex.is_empty() && self.ignoreregex.len() + 2 < self.failregex.len();
        if ignores_early {
            trial.ignored = self.ignored_by(state, &rest, all);
            if !trial.ignored.is_empty() {
                return trial;
            }
        }
        let mut before: Values<'_> = Vec::new();
        let mut content = None;
        if let Some(prefregex) = self.prefregex.first() {
            if !prefregex.search(&rest, &mut state.scratch) {
                return trial;
            }
            before.resize(self.names.len(), None);
            prefregex.fill(&rest, &state.scratch, &mut before);
            trial.prefix = Some(self.groups(prefregex.group_names(), &before));
            let part = before[CONTENT].take();
            let part = part.as_ref().map(Value::as_str).unwrap_or_default();
            if !part.is_empty() {
                content = Some(format!("{part}\n"));
                if window.is_some() {
                    state.window = Window::default();
                    state.window.push(part.to_owned(), 1);
                }
            }
        }
        let subject = content.unwrap_or_else(|| rest.clone());
        let matching = Matching {
            subject,
            before: &before,
            window,
            whole: &whole,
        };
        self.try_failregex(trial_state, matching, (date, clock), all, &mut trial);
        trial.used.retain(|used| !Arc::ptr_eq(used, &whole));
        trial
    }

    fn try_failregex(
        &self,
        trial_state: &mut TrialState,
        matching: Matching<'_>,
        (date, clock): (Option<jiff::Timestamp>, Clock<'_>),
        all: bool,
        trial: &mut Trial,
    ) {
        let Matching {
            mut subject,
            before,
            mut window,
            whole,
        } = matching;
        let memory = &mut trial_state.state.memories.failregex;
        let mut can_fit = Some(self.failregex.candidates(&subject, memory));
        for number in 0..self.failregex.len() {
            if can_fit.as_ref().is_some_and(|can| !can.contains(&number)) {
                continue;
            }
            let state = &mut trial_state.state;
            if !self.failregex[number].search(&subject, &mut state.scratch) {
                continue;
            }
            let fit = self.fit(state, number, &subject, window.as_ref(), before.clone());
            let has_session = fit.values[MLFID].is_some();
            let ignored = self.ignored_by(state, fit.text(&subject), all);
            let is_ignored = !ignored.is_empty();
            trial.ignored.extend(ignored);
            if is_ignored {
                if !all {
                    break;
                }
            } else {
                let wholes = match window {
                    None => vec![whole.clone()],
                    Some(_) => trial_state.take_used(),
                };
                if window.is_some() {
                    trial.used.extend_from_slice(&wholes);
                }
                let state = &mut trial_state.state;
                let (failure, standing) = self.conclude(state, fit, (date, &wholes), clock);
                // What only belongs to a session is not told, as in a jail.
                if all || !(has_session && standing == Standing::NoFail) {
                    trial.told.push(Told { failure, standing });
                }
                if !all {
                    break;
                }
            }
            if window.is_some() {
                trial.used.extend(trial_state.take_used());
                let left = trial_state.state.window.clone();
                subject = left.text();
                window = Some(left);
                can_fit = None;
            }
        }
    }

    /// What `names` hold, those that only help to fill others apart.
    fn groups(&self, names: Vec<&str>, values: &Values<'_>) -> Vec<(String, Option<String>)> {
        let helps = |name: &str| name.starts_with("alt_") || name.starts_with("tuple_");
        let held = |name: &str| {
            let key = self.names.iter().position(|known| **known == *name)?;
            Some(values[key].as_ref()?.as_str().to_owned())
        };
        let names = names.into_iter().filter(|name| !helps(name));
        names.map(|name| (name.to_owned(), held(name))).collect()
    }

    /// The names of the groups of `prefregex` and of one `failregex`, in their order.
    pub fn group_names(&self, failregex: usize) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        let expressions = self.prefregex.first().into_iter();
        for expression in expressions.chain(self.failregex.get(failregex)) {
            for name in expression.group_names() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// The first `ignoreregex` that fits, or all that do.
    fn ignored_by(&self, state: &mut FilterState, text: &str, all: bool) -> Vec<usize> {
        if !all {
            return self.ignored(state, text).into_iter().collect();
        }
        let memory = &mut state.memories.ignoreregex;
        let candidates = self.ignoreregex.candidates(text, memory);
        let fits = |number: &usize| self.ignoreregex[*number].search(text, &mut state.scratch);
        candidates.into_iter().filter(fits).collect()
    }
}

/// What `failregex` are searched in.
struct Matching<'m> {
    subject: String,
    before: &'m Values<'m>,
    window: Option<Window>,
    whole: &'m Arc<WholeLine>,
}

impl TrialState {
    /// The line with the place of its date; one without takes the last one's text over, if
    /// `has_time`.
    fn whole(&mut self, text: &str, has_time: bool) -> WholeLine {
        let (begin, end) = self.state.cut;
        if begin < end {
            if has_time {
                self.last_date = text[begin..end].to_owned();
            }
            return WholeLine {
                text: text.to_owned(),
                date: (begin, end),
            };
        }
        let last = match has_time {
            true => self.last_date.as_str(),
            false => "",
        };
        WholeLine {
            text: format!("{last}{text}"),
            date: (0, last.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::{Timestamp, tz::TimeZone};

    use super::*;
    use crate::filter_source::{FilterSource, Pattern};

    fn source(failregex: &[&str], ignoreregex: &[&str], maxlines: usize) -> FilterSource {
        let patterns = |texts: &[&str]| {
            let pattern = |text: &&str| Pattern {
                text: (*text).to_owned(),
                origin: Default::default(),
            };
            texts.iter().map(pattern).collect()
        };
        FilterSource {
            name: "a".to_owned(),
            failregex: patterns(failregex),
            ignoreregex: patterns(ignoreregex),
            prefregex: None,
            datepattern: None,
            maxlines,
            says_maxlines: false,
            journalmatch: Vec::new(),
            logencoding: None,
            usedns: None,
            logtype: None,
            origin: Default::default(),
        }
    }

    fn tried(source: &FilterSource, lines: &[&str], all: bool) -> Vec<Trial> {
        let filter = Filter::new(source).unwrap();
        let mut state = filter.trial_state();
        let clock = Clock {
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            zone: &TimeZone::UTC,
        };
        let line = |text: &&str| {
            let line = LogLine { text, time: None };
            filter.try_line(&mut state, line, clock, all)
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn each_expression_that_fits_is_told() {
        let named = source(&["a <HOST>", "^ a <ADDR>$"], &["ignored"], 1);
        let lines = [
            "2005-01-02 03:04:05 a 192.0.2.1",
            "2005-01-02 03:04:05 a 2001:db8::1 ignored",
            "nothing",
        ];
        let all = tried(&named, &lines, true);
        let regexes = |trial: &Trial| -> Vec<_> {
            let told = trial.told.iter();
            told.map(|told| (told.failure.regex, told.failure.id.clone()))
                .collect()
        };
        let v4 = "192.0.2.1".to_owned();
        assert_eq!(regexes(&all[0]), [(0, v4.clone()), (1, v4.clone())]);
        assert_eq!(
            all[0].told[0].failure.time.unwrap().as_second(),
            1_104_635_045
        );
        let line = &all[0].told[0].failure.lines[0];
        assert_eq!(line.text, lines[0]);
        assert_eq!(&line.text[line.date.0..line.date.1], "2005-01-02 03:04:05");
        assert!(all[1].told.is_empty());
        assert_eq!(all[1].ignored, [0]);
        assert!(all[2].told.is_empty() && all[2].ignored.is_empty());
        let first = tried(&named, &lines, false);
        assert_eq!(regexes(&first[0]), [(0, v4)]);
    }

    #[test]
    fn a_match_over_lines_says_which_it_used() {
        let source = source(&["^ begin<SKIPLINES> end <ADDR>$"], &[], 3);
        let lines = [
            "10:00:00 begin",
            "10:00:01 between",
            "10:00:02 end 192.0.2.1",
            "10:00:03 end 192.0.2.1",
        ];
        let all = tried(&source, &lines, true);
        let used: Vec<_> = all[2].used.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(used, ["10:00:00 begin"]);
        let told: Vec<_> = all[2].told[0]
            .failure
            .lines
            .iter()
            .map(|l| &l.text)
            .collect();
        assert_eq!(told, ["10:00:00 begin", "10:00:02 end 192.0.2.1"]);
        assert!(all[3].told.is_empty(), "its beginning is used up");
    }
}

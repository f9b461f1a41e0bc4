//! A filter at work: from a line to a failure, as Fail2ban goes: the date is found and
//! cut out, what is to be ignored is, `prefregex` says which part of the line counts,
//! the first `failregex` that fits says who failed, and what other lines of the same
//! session have told is put together with it.

mod compile;
mod conclude;
mod expression;
mod failure;
mod group_values;
mod groups;
mod json_pattern;
mod search;
mod sessions;
mod state;
mod trial;
mod window;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use weir_core::json::Fields;

pub use failure::{Failure, IdKind, NoFailure};
pub use group_values::GroupValues;
pub use sessions::{MAX_SESSIONS, SESSION_TIME, WholeLine};
pub use state::FilterState;
pub use trial::{Standing, Told, Trial, TrialState};

use crate::date::{Clock, Dates};
use expression::{Expression, Expressions};
use groups::{CIDR, DNS};

/// How old the last date may be that a line without one takes over.
const LAST_DATE: SignedDuration = SignedDuration::from_secs(60);

/// A compiled filter; shared between threads, each with its own [`FilterState`].
#[derive(Clone, Debug)]
pub struct Filter {
    dates: Dates,
    /// One, or none.
    prefregex: Expressions,
    failregex: Expressions,
    ignoreregex: Expressions,
    /// The names of its groups, by their keys.
    names: Arc<[Arc<str>]>,
    maxlines: usize,
    /// The fields of its lines that it asks for, which are JSON then.
    fields: Fields,
}

/// One line of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'a> {
    /// Without its newline.
    pub text: &'a str,
    /// When it was written, where the source knows and the text has no date.
    pub time: Option<Timestamp>,
}

impl Filter {
    /// How many `failregex` it has.
    pub fn failregex_count(&self) -> usize {
        self.failregex.len()
    }

    /// Can a failure be of a host name?
    pub fn names_hosts(&self) -> bool {
        self.expressions().any(|e| e.has(&[DNS]))
    }

    /// Can a failure be of a prefix?
    pub fn names_prefixes(&self) -> bool {
        self.expressions().any(|e| e.has(&[CIDR]))
    }

    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.prefregex.iter().chain(self.failregex.iter())
    }

    /// What one line tells.
    ///
    /// # Errors
    /// No failure; why.
    pub fn read(
        &self,
        state: &mut FilterState,
        line: LogLine<'_>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let given_up = state.scratch.exhausted;
        let found = self.read_all(state, line, clock);
        match state.scratch.exhausted > given_up {
            true => Err(NoFailure::GivenUp),
            false => found,
        }
    }

    /// The line as if each search came to its end.
    fn read_all(
        &self,
        state: &mut FilterState,
        line: LogLine<'_>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let text = line.text.trim_end_matches(['\r', '\n']);
        let mut buffer = std::mem::take(&mut state.text);
        let date = self.cut_date(state, text, line.time, clock, &mut buffer);
        if !self.fields.is_empty() {
            // The date is cut out of what people see, and the fields are of all of it.
            let found = match json_pattern::text(&self.fields, text) {
                Ok(values) => self.find(state, &values, None, date, clock),
                Err(why) => Err(NoFailure::Json(why)),
            };
            state.text = buffer;
            return found;
        }
        let found = match self.maxlines {
            1 => {
                buffer.push('\n');
                self.find(state, &buffer, None, date, clock)
            }
            max => {
                state.window.push(buffer.clone(), max);
                let window = state.window.clone();
                self.find(state, &window.text(), Some(&window), date, clock)
            }
        };
        state.text = buffer;
        found
    }

    /// Puts the line without its date into `rest`; the time it counts at.
    fn cut_date(
        &self,
        state: &mut FilterState,
        text: &str,
        known: Option<Timestamp>,
        clock: Clock<'_>,
        rest: &mut String,
    ) -> Option<Timestamp> {
        rest.clear();
        state.cut = (0, 0);
        if known.is_some() {
            state.last_date = known;
            rest.push_str(text);
            return known;
        }
        let last = (state.last_date).filter(|last| clock.now.duration_since(*last) < LAST_DATE);
        match state.dates.find(&self.dates, text, clock) {
            Some(dated) if dated.cut.0 == dated.cut.1 => {
                // It says that there is none.
                rest.push_str(text);
                Some(last.unwrap_or(clock.now))
            }
            Some(dated) => match dated.time {
                Some(time) => {
                    rest.push_str(&text[..dated.cut.0]);
                    rest.push_str(&text[dated.cut.1..]);
                    state.cut = dated.cut;
                    state.last_date = Some(time);
                    Some(time)
                }
                None if last.is_some() => {
                    rest.push_str(text);
                    last
                }
                None => {
                    rest.push_str(&text[..dated.cut.0]);
                    rest.push_str(&text[dated.cut.1..]);
                    state.cut = dated.cut;
                    None
                }
            },
            None => {
                rest.push_str(text);
                last
            }
        }
    }
}

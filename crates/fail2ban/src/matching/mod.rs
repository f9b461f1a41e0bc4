//! A filter at work: from a line to a failure, as Fail2ban goes: the date is found and
//! cut out, what is to be ignored is, `prefregex` says which part of the line counts,
//! the first `failregex` that fits says who failed, and what other lines of the same
//! session have told is put together with it.

mod expression;
mod groups;
mod json_pattern;
mod sessions;
mod trial;
mod window;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use weir_core::json::{Fields, JsonError};

use sessions::Sessions;
pub use sessions::{MAX_SESSIONS, SESSION_TIME, WholeLine};
pub use trial::{Standing, Told, Trial, TrialState};

use crate::{
    date::{Clock, DateState, Dates},
    error::Error,
    filter_source::{FilterSource, Pattern, UseDns},
};
use expression::{Expression, Expressions, Memory, Scratches};
use groups::{CIDR, CONTENT, DNS, FID, IP4, IP6, Key, MLFID, NOFAIL, Names, Value, Values};
use window::{Span, Window};

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
    names: Names,
    maxlines: usize,
    /// The fields of its lines that it asks for, which are JSON then.
    fields: Fields,
}

/// What a filter remembers from line to line. Bounded.
#[derive(Clone, Debug)]
pub struct FilterState {
    dates: DateState,
    last_date: Option<Timestamp>,
    /// Where the date of the last line was cut out of it.
    cut: (usize, usize),
    sessions: Sessions,
    window: Window,
    memories: Memories,
    scratch: Scratches,
    text: String,
    content: String,
}

/// What the expressions have learned.
#[derive(Clone, Debug)]
struct Memories {
    prefregex: Memory,
    failregex: Memory,
    ignoreregex: Memory,
}

impl FilterState {
    /// Searches that were given up because they would have taken too long.
    pub fn exhausted(&self) -> u64 {
        self.scratch.exhausted
    }
}

/// One line of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogLine<'a> {
    /// Without its newline.
    pub text: &'a str,
    /// When it was written, where the source knows and the text has no date.
    pub time: Option<Timestamp>,
}

/// Somebody failed, or did what a filter looks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which `failregex`, from 0.
    pub regex: usize,
    /// Whom it is counted by: an address, a host name, or what `<F-ID>` holds.
    pub id: String,
    /// How the line names it.
    pub kind: IdKind,
    /// The address's length as a prefix, if the line says it.
    pub prefix_length: Option<u8>,
    /// When, by the line's date, or by the last one's; `None`: nothing says it.
    pub time: Option<Timestamp>,
    /// What the filter's groups hold beside that, by their names: `user`, `fport` …
    pub values: Vec<(Arc<str>, String)>,
    /// All users that the session has tried.
    pub users: Vec<String>,
    /// How many lines tell of it.
    pub attempts: u32,
    /// Those lines, where [`Filter::try_line`] was asked.
    pub lines: Vec<Arc<WholeLine>>,
}

/// A `failregex` that has fitted.
struct Fit<'t> {
    regex: usize,
    values: Values<'t>,
    /// How many lines it is of.
    lines: u32,
    /// Those of a window.
    matched: Option<String>,
}

impl Fit<'_> {
    /// What `ignoreregex` sees of it.
    fn text<'s>(&'s self, subject: &'s str) -> &'s str {
        self.matched.as_deref().unwrap_or(subject)
    }
}

/// What a failure is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    /// An IPv4 address.
    Ip4,
    /// An IPv6 address.
    Ip6,
    /// A host name, whose addresses somebody has to look up.
    Dns,
    /// Anything that a filter counts by.
    Id,
}

/// Why a line tells of no failure; for people who write filters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoFailure {
    /// `prefregex` does not fit.
    Prefregex,
    /// No `failregex` fits this text.
    Failregex(String),
    /// That `ignoreregex` fits.
    Ignored(usize),
    /// That `failregex` fits, and the session has not told yet who failed.
    Pending(usize),
    /// That `failregex` fits, and it is no failure by itself (`<F-NOFAIL>`).
    NoFail(usize),
    /// The filter reads fields of JSON, and the line is none, or none with one meaning.
    Json(JsonError),
    /// A search would have taken too long, of whichever expression.
    GivenUp,
}

impl Failure {
    /// What a group holds.
    pub fn value(&self, name: &str) -> Option<&str> {
        let (_, value) = self.values.iter().find(|(known, _)| **known == *name)?;
        Some(value)
    }

    /// The user that was tried.
    pub fn user(&self) -> Option<&str> {
        self.value("user")
    }
}

impl Filter {
    /// Compiles what was read.
    ///
    /// # Errors
    /// An expression that cannot be translated, or that names nobody; with its place.
    pub fn new(source: &FilterSource) -> Result<Self, Error> {
        let mut names = Names::default();
        let finds_names = source.usedns != Some(UseDns::No);
        let multi = source.maxlines > 1;
        let of_json = || source.failregex.iter().chain(&source.ignoreregex);
        let asks = of_json().find(|pattern| json_pattern::asks(pattern));
        let paths = match (asks, &source.prefregex) {
            (None, _) => Vec::new(),
            (Some(pattern), Some(_)) => {
                let why = "<json:field> and prefregex do not go together";
                return Err(expression::error(pattern, why));
            }
            (Some(pattern), None) if multi => {
                let why = "<json:field> and maxlines do not go together: each line is an object";
                return Err(expression::error(pattern, why));
            }
            (Some(_), None) => json_pattern::paths(of_json())?,
        };
        let fields = Fields::new(&paths);
        let mut compile = |pattern: &Pattern, multi| {
            let expanded = match paths.is_empty() {
                true => None,
                false => Some(json_pattern::expanded(pattern, &paths)?),
            };
            let pattern = expanded.as_ref().unwrap_or(pattern);
            Expression::new(pattern, multi, finds_names, &mut names)
        };
        let prefregex = (source.prefregex.as_ref())
            .map(|pattern| compile(pattern, false))
            .transpose()?;
        let mut failregex = Vec::new();
        for pattern in &source.failregex {
            let expression = compile(pattern, multi)?;
            let is_named = [Some(&expression), prefregex.as_ref()]
                .into_iter()
                .flatten()
                .any(Expression::names_somebody);
            if !is_named {
                return Err(expression::error(
                    pattern,
                    "it names nobody: there is no <HOST>, <ADDR>, <F-ID> or <F-MLFID> in it",
                ));
            }
            failregex.push(expression);
        }
        let ignoreregex = (source.ignoreregex.iter())
            .map(|pattern| compile(pattern, false))
            .collect::<Result<_, _>>()?;
        let pattern = source.datepattern.as_ref();
        let dates = Dates::new(pattern.map(|pattern| &*pattern.text)).map_err(|why| {
            let pattern = pattern.expect("the usual dates are expressions");
            expression::error(pattern, &format!("datepattern: {why}"))
        })?;
        Ok(Self {
            dates,
            prefregex: Expressions::new(prefregex.into_iter().collect()),
            failregex: Expressions::new(failregex),
            ignoreregex: Expressions::new(ignoreregex),
            names,
            maxlines: source.maxlines,
            fields,
        })
    }

    /// Nothing was read yet.
    pub fn state(&self) -> FilterState {
        FilterState {
            dates: self.dates.state(),
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
        match self.dates.find(&mut state.dates, text, clock) {
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

    /// `text`: the line, or the window's lines.
    fn find(
        &self,
        state: &mut FilterState,
        text: &str,
        window: Option<&Window>,
        date: Option<Timestamp>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let ignores_early = self.ignoreregex.len() + 2 < self.failregex.len();
        if ignores_early && let Some(ignore) = self.ignored(state, text) {
            return Err(NoFailure::Ignored(ignore));
        }
        let mut before: Values<'_> = Vec::new();
        let mut content = std::mem::take(&mut state.content);
        content.clear();
        if let Some(prefregex) = self.prefregex.first() {
            let memory = &mut state.memories.prefregex;
            if (self.prefregex)
                .first_fitting(text, memory, &mut state.scratch)
                .is_none()
            {
                state.content = content;
                return Err(NoFailure::Prefregex);
            }
            before.resize(self.names.len(), None);
            prefregex.fill(text, state, &mut before);
            let part = before[CONTENT].take();
            if let Some(part) = part
                .as_ref()
                .map(Value::as_str)
                .filter(|part| !part.is_empty())
            {
                content.push_str(part);
                content.push('\n');
                if window.is_some() {
                    let mut only = Window::default();
                    only.push(part.to_owned(), 1);
                    state.window = only;
                }
            }
        }
        let subject = match content.is_empty() {
            true => text,
            false => &content,
        };
        let found = self.fitting(state, subject, window, &before, date, clock);
        state.content = content;
        found
    }

    fn fitting<'t>(
        &self,
        state: &mut FilterState,
        subject: &'t str,
        window: Option<&Window>,
        before: &Values<'t>,
        date: Option<Timestamp>,
        clock: Clock<'_>,
    ) -> Result<Failure, NoFailure> {
        let memory = &mut state.memories.failregex;
        let found = self
            .failregex
            .first_fitting(subject, memory, &mut state.scratch);
        let Some(regex) = found else {
            let text = subject.trim_end_matches('\n').to_owned();
            return Err(NoFailure::Failregex(text));
        };
        let fit = self.fit(state, regex, subject, window, before);
        if let Some(ignore) = self.ignored(state, fit.text(subject)) {
            return Err(NoFailure::Ignored(ignore));
        }
        let (failure, standing) = self.conclude(state, fit, (date, &[]), clock);
        match standing {
            Standing::Failed => Ok(failure),
            Standing::Pending => Err(NoFailure::Pending(regex)),
            Standing::NoFail => Err(NoFailure::NoFail(regex)),
        }
    }

    /// What the expression's groups hold which has fitted last; the lines of the window
    /// that it has used up leave.
    fn fit<'t>(
        &self,
        state: &mut FilterState,
        regex: usize,
        subject: &'t str,
        window: Option<&Window>,
        before: &Values<'t>,
    ) -> Fit<'t> {
        let mut fit = Fit {
            regex,
            values: match before.is_empty() {
                true => vec![None; self.names.len()],
                false => before.clone(),
            },
            lines: 1,
            matched: None,
        };
        self.failregex[regex].fill(subject, state, &mut fit.values);
        if let Some(window) = window {
            let (begin, end) = state.scratch.span();
            let span = Span {
                text: subject,
                begin,
                end,
                skipped: self.skipped(&fit.values),
            };
            let (matched, rest) = window.split(&span);
            fit.lines = matched.len() as u32;
            fit.matched = Some(
                matched
                    .iter()
                    .fold(String::new(), |all, line| all + line + "\n"),
            );
            state.window = rest;
        }
        fit
    }

    /// What a match tells together with the lines before of its session. Of what is no
    /// failure only `wholes`' readers are told more than that.
    fn conclude(
        &self,
        state: &mut FilterState,
        fit: Fit<'_>,
        (date, wholes): (Option<Timestamp>, &[Arc<WholeLine>]),
        clock: Clock<'_>,
    ) -> (Failure, Standing) {
        let mut failure = Failure {
            regex: fit.regex,
            id: String::new(),
            kind: IdKind::Id,
            prefix_length: None,
            time: date,
            values: Vec::new(),
            users: Vec::new(),
            attempts: fit.lines.max(1),
            lines: Vec::new(),
        };
        let values = fit.values;
        let Some(Value::Part(session_name)) = values[MLFID].clone() else {
            failure.lines = wholes.to_vec();
            let get = |key: Key| values[key].as_ref().map(Value::as_str);
            let standing = match get(NOFAIL).is_some_and(|value| !value.is_empty()) {
                true if wholes.is_empty() => Standing::NoFail,
                is_nofail => match (self.complete(&mut failure, get), is_nofail) {
                    (_, true) => Standing::NoFail,
                    (true, false) => Standing::Failed,
                    (false, false) => Standing::Pending,
                },
            };
            return (failure, standing);
        };
        let (mut session, keeps) =
            (state.sessions).merge(session_name, values, (fit.lines, wholes), clock.now);
        failure.attempts = session.matches.max(1);
        failure.users = session.users.iter().map(|user| user.to_string()).collect();
        failure.lines = session.lines.clone();
        let is_nofail = session.get(NOFAIL).is_some_and(|value| !value.is_empty());
        let standing = if is_nofail && wholes.is_empty() {
            Standing::NoFail
        } else {
            let is_named = self.complete(&mut failure, |key| session.get(key));
            session.pending |= !is_named;
            match (is_nofail, is_named) {
                (true, _) => Standing::NoFail,
                (false, true) => Standing::Failed,
                (false, false) => Standing::Pending,
            }
        };
        match keeps {
            true => state.sessions.put(session_name, session, clock.now),
            false => state.sessions.forget(session_name),
        }
        (failure, standing)
    }

    /// Whom it is counted by, and what else is known; false if nobody is named.
    fn complete<'v>(&self, failure: &mut Failure, get: impl Fn(Key) -> Option<&'v str>) -> bool {
        let named = [
            (IP4, IdKind::Ip4),
            (IP6, IdKind::Ip6),
            (DNS, IdKind::Dns),
            (FID, IdKind::Id),
        ];
        let Some((id, kind)) = named
            .into_iter()
            .find_map(|(key, kind)| Some((get(key)?, kind)))
        else {
            return false;
        };
        (failure.kind, failure.id) = match get(FID) {
            // What it is counted by is more than the address.
            Some(fid) if fid != id => (IdKind::Id, fid.to_owned()),
            _ => (kind, id.to_owned()),
        };
        failure.prefix_length = get(CIDR).and_then(|length| length.parse().ok());
        failure.values = (self.names.iter().enumerate())
            .filter_map(|(key, name)| Some((name.clone(), get(key)?.to_owned())))
            .collect();
        true
    }

    fn ignored(&self, state: &mut FilterState, text: &str) -> Option<usize> {
        let memory = &mut state.memories.ignoreregex;
        self.ignoreregex
            .first_fitting(text, memory, &mut state.scratch)
    }

    /// What `<SKIPLINES>` have passed over, in their order.
    fn skipped(&self, values: &Values<'_>) -> String {
        let mut all: Vec<_> = (self.names.iter().zip(values))
            .filter_map(|(name, value)| {
                let number: usize = name.strip_prefix("skiplines")?.parse().ok()?;
                Some((number, value.as_ref()?.as_str()))
            })
            .collect();
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, text)| text).collect()
    }
}

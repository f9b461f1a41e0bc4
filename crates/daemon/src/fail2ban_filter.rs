//! A filter of Fail2ban's as the log worker runs it: a record becomes the line that
//! Fail2ban would have read, and what it finds a finding of weir's.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr, sync::Arc};

use weir_core::{
    Prefix,
    detect::{Context, Finding, HostName, Line, MAX_LINE, MAX_USER, Offender, when},
};
use weir_fail2ban::{
    FilterSource, LogEncoding, Pattern, UseDns,
    date::Clock,
    matching::{self, Failure, Filter, GroupValues, IdKind, LogLine},
    regex::expand_for_python,
};

/// As much of a line as is shown.
const MAX_SHOWN: usize = 100;

/// A compiled filter, and what it was compiled from.
#[derive(Debug, Clone)]
pub struct Fail2banFilter {
    source: FilterSource,
    filter: Filter,
    encoding: LogEncoding,
}

/// What it remembers from line to line.
#[derive(Debug, Clone)]
pub struct FilterState {
    state: matching::FilterState,
    /// The line as Fail2ban formats an entry of the journal.
    text: String,
    /// A line that was cut has been told of.
    told_cut: bool,
    given_up: GivenUp,
    /// What was captured of the failure that was found last.
    captured: GroupValues,
}

/// Lines that were not read because searching them would have taken too long, or because
/// they were cut, since somebody asked last.
#[derive(Debug, Clone, Default)]
pub struct GivenUp {
    /// How many there were, of any length.
    pub lines: u64,
    /// The beginning of the first.
    pub line: Vec<u8>,
}

impl GivenUp {
    /// Counts a line that is not read.
    fn add(&mut self, line: &[u8]) {
        if self.lines == 0 {
            self.line = line[..line.len().min(MAX_SHOWN)].to_vec();
        }
        self.lines += 1;
    }
}

impl FilterState {
    /// What was captured of the failure that was found last, by its names: `user` of
    /// `<F-USER>`. As long as the line may be, and a client's text.
    pub fn take_captured(&mut self) -> Vec<(Arc<str>, String)> {
        let captured = std::mem::take(&mut self.captured);
        let captured = captured.iter();
        captured
            .map(|(name, value)| (name.clone(), value.to_owned()))
            .collect()
    }

    /// Finds dates together with the filter of `other` from now on, where that changes nothing
    /// that is found. Both read the same lines, by the same encoding and in one zone.
    pub fn share_dates(&mut self, other: &Self) -> bool {
        self.state.share_dates(&other.state)
    }

    /// What was given up since the last call.
    pub fn take_given_up(&mut self) -> GivenUp {
        std::mem::take(&mut self.given_up)
    }
}

/// By what it was compiled from: equal filters read alike.
impl PartialEq for Fail2banFilter {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Fail2banFilter {
    /// Compiles what was read.
    ///
    /// # Errors
    /// An expression that cannot be translated, with its place.
    pub fn new(source: &FilterSource) -> Result<Self, weir_fail2ban::Error> {
        Ok(Self {
            source: source.clone(),
            filter: Filter::new(source)?,
            // Names of encodings are checked where jails are read.
            encoding: (source.logencoding.as_deref())
                .and_then(LogEncoding::of)
                .unwrap_or_default(),
        })
    }

    /// Whether it decodes the lines of a log as the other one does.
    pub fn decodes_as(&self, other: &Self) -> bool {
        self.encoding == other.encoding
    }

    /// The text that the filter was compiled from.
    pub fn source(&self) -> &FilterSource {
        &self.source
    }

    /// Its expressions as Fail2ban hands them to Python.
    pub fn failregex(&self) -> Vec<String> {
        self.for_python(&self.source.failregex)
    }

    /// The same of what is no failure.
    pub fn ignoreregex(&self) -> Vec<String> {
        self.for_python(&self.source.ignoreregex)
    }

    /// The same of what every line must match.
    pub fn prefregex(&self) -> Option<String> {
        let prefregex = self.source.prefregex.as_ref()?;
        self.for_python(std::slice::from_ref(prefregex)).pop()
    }

    fn for_python(&self, patterns: &[Pattern]) -> Vec<String> {
        let names = self.source.usedns != Some(UseDns::No);
        let expanded = |one: &Pattern| expand_for_python(&one.text, names);
        patterns.iter().map(expanded).collect()
    }

    /// The forms of dates that it knows, as people are shown them.
    pub fn date_forms(&self) -> Vec<String> {
        let hits = self.filter.date_hits(&self.filter.trial_state());
        hits.into_iter().map(|(form, _)| form).collect()
    }

    /// The state before the first line.
    pub fn state(&self) -> FilterState {
        FilterState {
            state: self.filter.state(),
            text: String::new(),
            told_cut: false,
            given_up: GivenUp::default(),
            captured: GroupValues::default(),
        }
    }

    /// Can a finding name a host, whose addresses are to be looked up?
    pub fn names_hosts(&self) -> bool {
        self.filter.names_hosts()
    }

    /// Can a finding name a prefix?
    pub fn names_prefixes(&self) -> bool {
        self.filter.names_prefixes()
    }

    /// What one record tells; `None` when it tells of no failure.
    pub fn read_line(
        &self,
        state: &mut FilterState,
        line: &Line<'_>,
        context: &Context<'_>,
    ) -> Option<Finding> {
        // Its end is where its writer, a client perhaps, wanted it: an expression that ends
        // with an address would read one of the client's choice.
        if line.is_cut() {
            if !std::mem::replace(&mut state.told_cut, true) {
                tracing::warn!(
                    "filter {} of Fail2ban's: a line of {MAX_LINE} bytes or more is not read, because it is cut there; told once",
                    self.source.name
                );
            }
            state.given_up.add(line.text());
            return None;
        }
        let record = line.record();
        // The journal's entries are UTF-8.
        let message = match record.message_only {
            true => String::from_utf8_lossy(line.text()),
            false => self.encoding.decode(line.text()),
        };
        let text = match record.message_only {
            true => {
                journal_line(
                    &mut state.text,
                    record.identifier,
                    record.writer.pid,
                    &message,
                );
                Cow::Borrowed(state.text.as_str())
            }
            false => message,
        };
        let line = LogLine {
            text: &text,
            // Other sources know when a line came, and Fail2ban reads its date.
            time: record.time.filter(|_| record.message_only),
        };
        let clock = Clock {
            now: context.now,
            zone: context.zone,
        };
        let given_up = state.state.exhausted();
        let found = self.filter.read(&mut state.state, line, clock);
        if state.state.exhausted() > given_up {
            state.given_up.add(text.as_bytes());
        }
        let failure = found.ok()?;
        let offender = offender(&failure)?;
        let (time, clock) = when(failure.time, record, context.now)?;
        let user = failure.user().map(bounded);
        state.captured = failure.values;
        Some(Finding {
            offender,
            time,
            clock,
            user,
            attempts: 1,
            pattern: failure.regex,
        })
    }
}

/// As Fail2ban's `systemd` backend writes an entry: host, program and process before the
/// message. A session is known by them.
pub(crate) fn journal_line(
    text: &mut String,
    identifier: Option<&[u8]>,
    pid: Option<u32>,
    message: &str,
) {
    text.clear();
    text.push_str("localhost ");
    if let Some(identifier) = identifier {
        text.push_str(&String::from_utf8_lossy(identifier));
        if let Some(pid) = pid {
            let _: std::fmt::Result = write!(text, "[{pid}]");
        }
        text.push_str(": ");
    }
    text.push_str(message);
}

/// The offender that a failure names; `None` if it is nobody who can be banned by address.
fn offender(failure: &Failure) -> Option<Offender> {
    match failure.kind {
        IdKind::Dns => HostName::new(failure.id.as_bytes())
            .ok()
            .map(Offender::Name),
        IdKind::Ip4 | IdKind::Ip6 | IdKind::Id => {
            let addr: IpAddr = match failure.id.parse() {
                Ok(addr) => addr,
                Err(_) => return failure.id.parse::<Prefix>().ok().map(Offender::Prefix),
            };
            match failure.prefix_length {
                Some(length) => Prefix::new(addr, length).map(Offender::Prefix),
                None => Some(Offender::from(addr)),
            }
        }
    }
}

/// As much of a user's name as a finding keeps.
fn bounded(user: &str) -> String {
    let mut end = user.len().min(MAX_USER);
    while !user.is_char_boundary(end) {
        end -= 1;
    }
    user[..end].to_owned()
}

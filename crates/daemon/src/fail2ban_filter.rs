//! A filter of Fail2ban's as the log worker runs it: a record becomes the line that
//! Fail2ban would have read, and what it finds a finding of weir's.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr};

use weir_core::{
    Prefix,
    detect::{Context, Finding, HostName, Line, MAX_LINE, MAX_USER, Offender, when},
};
use weir_fail2ban::{
    FilterSource,
    date::Clock,
    matching::{self, Failure, Filter, IdKind, LogLine},
};

/// A compiled filter, and what it was compiled from.
#[derive(Debug, Clone)]
pub struct Fail2banFilter {
    source: FilterSource,
    filter: Filter,
}

/// What it remembers from line to line.
#[derive(Debug, Clone)]
pub struct FilterState {
    state: matching::FilterState,
    /// The line as Fail2ban formats an entry of the journal.
    text: String,
    /// A line that was cut has been told of.
    told_cut: bool,
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
        })
    }

    /// Its expressions, with the tags of Fail2ban's language in them.
    pub fn expressions(&self) -> impl Iterator<Item = &str> {
        self.source.failregex.iter().map(|one| one.text.as_str())
    }

    /// Nothing was read yet.
    pub fn state(&self) -> FilterState {
        FilterState {
            state: self.filter.state(),
            text: String::new(),
            told_cut: false,
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
            return None;
        }
        let record = line.record();
        let message = String::from_utf8_lossy(line.text());
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
        if given_up == 0 && state.state.exhausted() > 0 {
            tracing::warn!(
                "filter {} of Fail2ban's: a line costs too much to search and is not read; told once",
                self.source.name
            );
        }
        let failure = found.ok()?;
        let offender = offender(&failure)?;
        let (time, clock) = when(failure.time, record, context.now)?;
        Some(Finding {
            offender,
            time,
            clock,
            user: failure.user().map(bounded),
            attempts: 1,
            pattern: failure.regex,
        })
    }
}

/// As Fail2ban's `systemd` backend writes an entry: host, program and process before the
/// message. A session is known by them.
fn journal_line(text: &mut String, identifier: Option<&[u8]>, pid: Option<u32>, message: &str) {
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

/// Who failed; `None` if it is nobody who can be banned by address.
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

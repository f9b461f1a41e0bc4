//! A filter: the patterns of one program's messages, compiled from weir's own
//! form (`Definition`, TOML) and run on one record after the other. What a
//! pattern is stands in `pattern`, the filters that weir brings in `builtin`.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, de};

use super::{
    Age, Clock, Context, Finding, MAX_LINE, MAX_USER, Miss, Record, STAMP_TOLERANCE, builtin,
    connections::{Bond, Connection, Connections},
    head::{self, Head, NoHead},
    notices::{self, Headless, Notices},
    pattern::{Captures, Pattern, PatternError},
    stamp::{self, Stamp, StampCache},
};

/// A filter as it is written.
///
/// ```toml
/// identifiers = ["sshd", "sshd-session"]
/// patterns = [
///     'Failed password for [invalid user ]<user> from <addr> port <port>[ ssh2]',
///     { text = 'Invalid user <user> from <addr>', announces = "invalid" },
/// ]
/// ignore = []
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The syslog tags of the program. Empty: lines have no host and tag, the
    /// message follows the stamp; such a filter never reads a syslog daemon's
    /// lines.
    #[serde(default)]
    pub identifiers: Vec<String>,
    /// What counts as a failure; the first that fits is taken.
    pub patterns: Vec<PatternDefinition>,
    /// Messages that do not count although a pattern fits. They need an
    /// `<addr>` as well.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// Of the journal, only entries that came by syslog or journald's own
    /// protocol count, none that a program wrote to its standard output: for
    /// programs that leave a client's line breaks as they are there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub syslog_only: bool,
    /// Of the journal, only entries of root's processes count. (A jail's
    /// `journal_match` that names a user goes before.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub root_only: bool,
    /// Of a file, lines that have a time stamp and no tag do not count, and say
    /// nothing about the lines behind them: for logs in which others than the
    /// filter's programs leave the tag out. Without it such a line is taken for a
    /// program's that lets a client's line breaks through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_untagged: bool,
}

/// One pattern: a plain string, or a table where several messages can tell of
/// one and the same attempt on a connection (address and port).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PatternDefinition {
    /// The pattern: fixed text with `<addr>`, `<port>`, `<user>`,
    /// `<user:word>`, `<text>`, `<word>`, `<number>`, `[optional]`, `(a|b)`.
    pub text: String,
    /// It counts, and the next message of this connection that `completes`
    /// the same label tells of the same attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announces: Option<String>,
    /// It does not count when it completes an announced attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes: Option<String>,
    /// It counts only where nothing of this connection has counted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unless_counted: bool,
    /// It reads no message of more bytes: where the program cuts long ones, a
    /// client's text can be made to end one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<usize>,
}

impl From<&str> for PatternDefinition {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for PatternDefinition {
    fn deserialize<D: de::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            text: String,
            announces: Option<String>,
            completes: Option<String>,
            #[serde(default)]
            unless_counted: bool,
            max_length: Option<usize>,
        }
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = PatternDefinition;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern: a string, or a table with text, announces, completes, unless_counted, max_length")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(text.into())
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(PatternDefinition {
                    text: table.text,
                    announces: table.announces,
                    completes: table.completes,
                    unless_counted: table.unless_counted,
                    max_length: table.max_length,
                })
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// Why a definition is not a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefinitionError {
    /// There is no pattern.
    NoPatterns,
    /// More than 1000 patterns.
    TooMany(usize),
    /// An identifier that cannot be a syslog tag.
    Identifier(String),
    /// More than eight labels in `announces`.
    TooManyLabels,
    /// A label is completed that nothing announces.
    Label {
        /// Number of the pattern, from 0.
        pattern: usize,
        /// The label.
        label: String,
    },
    /// A pattern is malformed.
    Pattern {
        /// `patterns` or `ignore`.
        list: &'static str,
        /// Number of the pattern, from 0.
        pattern: usize,
        /// Its text.
        text: String,
        /// What is wrong.
        error: PatternError,
    },
}

impl fmt::Display for DefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPatterns => f.write_str("a filter needs at least one pattern"),
            Self::TooMany(n) => write!(f, "{n} patterns in one filter: at most 1000"),
            Self::Identifier(tag) => write!(
                f,
                "identifier {tag:?} cannot be a syslog tag: 1 to 64 characters without blank, colon and bracket"
            ),
            Self::TooManyLabels => f.write_str("more than 8 different labels in announces"),
            Self::Label { pattern, label } => write!(
                f,
                "patterns[{pattern}] completes {label:?}, which no pattern announces"
            ),
            Self::Pattern {
                list,
                pattern,
                text,
                error,
            } => {
                let text: String = text.chars().take(120).collect();
                write!(f, "{list}[{pattern}] {text:?}: {error}")
            }
        }
    }
}

impl std::error::Error for DefinitionError {}

/// A compiled filter; shared between threads, each with its own [`FilterState`].
#[derive(Clone, Debug)]
pub struct Filter {
    identifiers: Vec<Box<[u8]>>,
    patterns: Vec<Rule>,
    ignore: Vec<Pattern>,
    /// By the first byte of a message: which patterns can fit.
    by_first: Vec<Box<[u16]>>,
    /// Is any message bound to another one of its connection?
    connections: bool,
    syslog_only: bool,
    root_only: bool,
    allow_untagged: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    pattern: Pattern,
    bond: Bond,
    max_length: usize,
}

/// Why a line is not one of the filter's programs'.
enum NotRead<'a> {
    NoHead(NoHead),
    /// Another program's.
    Other(Head<'a>),
}

/// A line of the filter's programs, taken apart.
struct Parts<'a> {
    stamp: Option<Stamp<'a>>,
    host: Option<&'a [u8]>,
    /// 0: nobody knows.
    pid: u32,
    message: &'a [u8],
}

impl Filter {
    /// The names of the filters that weir brings.
    pub fn builtin_names() -> &'static [&'static str] {
        &["sshd", "sshd-aggressive"]
    }

    /// A filter that weir brings: `sshd` counts failed logins;
    /// `sshd-aggressive` also connections that end before a login and failed
    /// negotiations.
    pub fn builtin(name: &str) -> Option<Self> {
        let definition = Self::builtin_definition(name)?;
        Some(Self::compile(&definition).expect("the built-in filters are tested"))
    }

    /// The definition of a filter that weir brings, to read or to extend.
    pub fn builtin_definition(name: &str) -> Option<Definition> {
        match name {
            "sshd" => Some(builtin::sshd(false)),
            "sshd-aggressive" => Some(builtin::sshd(true)),
            _ => None,
        }
    }

    /// Checks and compiles a definition.
    pub fn compile(definition: &Definition) -> Result<Self, DefinitionError> {
        if definition.patterns.is_empty() {
            return Err(DefinitionError::NoPatterns);
        }
        for n in [definition.patterns.len(), definition.ignore.len()] {
            if n > 1000 {
                return Err(DefinitionError::TooMany(n));
            }
        }
        for tag in &definition.identifiers {
            let bad = |b: u8| b <= b' ' || b == b':' || b == b'[';
            if tag.is_empty() || tag.len() > 64 || tag.bytes().any(bad) {
                return Err(DefinitionError::Identifier(tag.clone()));
            }
        }
        let mut labels: Vec<&str> = vec![];
        for label in definition
            .patterns
            .iter()
            .filter_map(|p| p.announces.as_deref())
        {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        if labels.len() > 8 {
            return Err(DefinitionError::TooManyLabels);
        }
        let parse = |list, pattern, text: &String| {
            Pattern::parse(text).map_err(|error| DefinitionError::Pattern {
                list,
                pattern,
                text: text.clone(),
                error,
            })
        };
        let bit = |pattern, label: &Option<String>| match label {
            None => Ok(0),
            Some(label) => match labels.iter().position(|l| l == label) {
                Some(at) => Ok(1u8 << at),
                None => Err(DefinitionError::Label {
                    pattern,
                    label: label.clone(),
                }),
            },
        };
        let patterns = definition
            .patterns
            .iter()
            .enumerate()
            .map(|(i, p)| {
                Ok(Rule {
                    pattern: parse("patterns", i, &p.text)?,
                    bond: Bond {
                        announces: bit(i, &p.announces)?,
                        completes: bit(i, &p.completes)?,
                        unless_counted: p.unless_counted,
                    },
                    max_length: p.max_length.unwrap_or(usize::MAX),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let ignore = definition
            .ignore
            .iter()
            .enumerate()
            .map(|(i, text)| parse("ignore", i, text))
            .collect::<Result<Vec<_>, _>>()?;
        let firsts: Vec<_> = patterns.iter().map(|r| r.pattern.first_bytes()).collect();
        let by_first = (0..=u8::MAX)
            .map(|byte| {
                (0u16..)
                    .zip(&firsts)
                    .filter(|(_, first)| first.as_ref().is_none_or(|f| f.contains(&byte)))
                    .map(|(i, _)| i)
                    .collect()
            })
            .collect();
        Ok(Self {
            identifiers: definition
                .identifiers
                .iter()
                .map(|tag| tag.as_bytes().into())
                .collect(),
            connections: patterns
                .iter()
                .any(|r| r.bond.announces != 0 || r.bond.unless_counted),
            patterns,
            ignore,
            by_first,
            syslog_only: definition.syslog_only,
            root_only: definition.root_only,
            allow_untagged: definition.allow_untagged,
        })
    }

    /// The same filter for a jail that names the users whose entries it reads.
    pub fn of_named_users(self) -> Self {
        Self {
            root_only: false,
            ..self
        }
    }

    /// The syslog tags whose lines this filter reads.
    pub fn identifiers(&self) -> impl Iterator<Item = &str> {
        self.identifiers
            .iter()
            .map(|tag| std::str::from_utf8(tag).expect("it was a String"))
    }

    /// What one record tells; `None` when it tells of no failure.
    pub fn read(
        &self,
        state: &mut FilterState,
        record: &Record<'_>,
        context: &Context<'_>,
    ) -> Option<Finding> {
        let behind_headless = state.headless.next(record.stream);
        let parts = match self.split(record) {
            Ok(parts) => parts,
            Err(why) => {
                self.notice(state, record, &why);
                return None;
            }
        };
        state.headless.names(parts.host);
        let (attempts, message, length) = trimmed(parts.message);
        let (pattern, captures) = self.matching(message, length, is_cut(record))?;
        let addr = captures.addr?;
        if self.ignore.iter().any(|p| p.read(message).is_some()) {
            return None;
        }
        if let Some(why) = self.untrusted(record, behind_headless) {
            match why {
                Miss::Stdout => state.notices.stdout += 1,
                Miss::BehindNoHead => state.notices.headless += 1,
                _ => {}
            }
            return None;
        }
        let stamp = (parts.stamp).and_then(|stamp| state.stamps.time(stamp, context));
        let (time, clock) = when(stamp, record, context.now)?;
        let attempts = match self.connections {
            false => attempts,
            true => {
                let connection = Connection {
                    addr,
                    port: captures.port.unwrap_or(0),
                    pid: parts.pid,
                };
                let bond = &self.patterns[pattern].bond;
                state.connections.counts(bond, connection, attempts, time)
            }
        };
        (attempts > 0).then(|| Finding {
            addr,
            time,
            clock,
            user: captures.user.map(bounded),
            attempts,
            pattern,
        })
    }

    /// Why a message that a pattern fits may be a client's text.
    fn untrusted(&self, record: &Record<'_>, behind_headless: bool) -> Option<Miss> {
        if !record.message_only {
            let reads_heads = !self.identifiers.is_empty();
            return (behind_headless && reads_heads).then_some(Miss::BehindNoHead);
        }
        if self.root_only && record.writer.uid.is_some_and(|uid| uid != 0) {
            return Some(Miss::NotRoot);
        }
        (self.syslog_only && record.writer.stdout).then_some(Miss::Stdout)
    }

    /// What a line that is not read tells of its log.
    fn notice(&self, state: &mut FilterState, record: &Record<'_>, why: &NotRead<'_>) {
        let has_no_tag = match why {
            NotRead::NoHead(NoHead::SyslogDaemon) => return,
            NotRead::NoHead(NoHead::Stamp) => false,
            NotRead::NoHead(NoHead::Tag) => true,
            NotRead::Other(head) if head.may_be_a_function() => true,
            NotRead::Other(head) => {
                state.headless.names(head.host);
                let message = head.message.trim_ascii();
                let lost = notices::rate_limited(head.tag, message, self.identifiers());
                let sum = &mut state.notices.rate_limited;
                *sum = sum.saturating_add(lost.unwrap_or(0));
                return;
            }
        };
        if has_no_tag && self.allow_untagged {
            return;
        }
        let line = &record.line[..record.line.len().min(MAX_LINE)];
        if let Some(host) = head::host_of_odd_tag(line).filter(|_| has_no_tag)
            && !state.headless.last
            && state.headless.knows(host)
        {
            return;
        }
        state.headless.saw(record.stream, line, has_no_tag);
        let behind_stamp = stamp::split(line).filter(|_| has_no_tag);
        let (_, message, length) = trimmed(behind_stamp.map_or(line, |(_, rest)| rest));
        let is_failure = self.matching(message, length, is_cut(record)).is_some();
        state.notices.headless += u64::from(is_failure);
    }

    /// Does a line with a time stamp and no tag say nothing about those behind it?
    pub fn allows_untagged(&self) -> bool {
        self.allow_untagged
    }

    /// The stamp and the message of a line of this filter's programs.
    fn split<'a>(&self, record: &Record<'a>) -> Result<Parts<'a>, NotRead<'a>> {
        let line = &record.line[..record.line.len().min(MAX_LINE)];
        let pid = record.writer.pid.unwrap_or(0);
        if record.message_only {
            return Ok(Parts {
                stamp: None,
                host: None,
                pid,
                message: line,
            });
        }
        if self.identifiers.is_empty() {
            let (stamp, message) = match stamp::split(line) {
                Some((stamp, message)) => (Some(stamp), message),
                None => (None, line),
            };
            return Ok(Parts {
                stamp,
                host: None,
                pid,
                message,
            });
        }
        let head = head::split(line).map_err(NotRead::NoHead)?;
        if !self.identifiers.iter().any(|known| **known == *head.tag) {
            return Err(NotRead::Other(head));
        }
        Ok(Parts {
            stamp: head.stamp,
            host: head.host,
            pid: head.pid,
            message: head.message,
        })
    }

    /// Why `read` found nothing in this record, in the state in which it was
    /// read; for people who write filters.
    pub fn explain(&self, state: &FilterState, record: &Record<'_>, context: &Context<'_>) -> Miss {
        let Parts { stamp, message, .. } = match self.split(record) {
            Ok(parts) => parts,
            Err(NotRead::NoHead(NoHead::Stamp)) => return Miss::NoStamp,
            Err(NotRead::NoHead(NoHead::SyslogDaemon)) => return Miss::SyslogDaemon,
            Err(NotRead::NoHead(NoHead::Tag)) => return Miss::NoTag,
            Err(NotRead::Other(head)) => return Miss::other_program(head.tag),
        };
        let (_, message, length) = trimmed(message);
        let patterns = self.patterns.iter().map(|rule| &rule.pattern);
        if self.matching(message, length, is_cut(record)).is_none() {
            if let Some(pattern) = patterns.clone().position(|p| p.read(message).is_some()) {
                return Miss::TooLong { pattern };
            }
            let head = head::split(record.line).ok();
            if let Some(head) = head.filter(|_| self.identifiers.is_empty()) {
                let (_, message, length) = trimmed(head.message);
                let fits = self.matching(message, length, is_cut(record)).is_some();
                return Miss::head_not_read(head.tag, fits);
            }
            let reached = patterns.map(|pattern| pattern.reach(message)).enumerate();
            return match reached.max_by_key(|(n, reach)| (reach.bytes(message), usize::MAX - n)) {
                Some((pattern, reach)) => Miss::no_pattern(pattern, message, &reach),
                None => Miss::NoStamp,
            };
        }
        if let Some(ignore) = self.ignore.iter().position(|p| p.read(message).is_some()) {
            return Miss::Ignored { ignore };
        }
        if let Some(why) = self.untrusted(record, state.headless.last) {
            return why;
        }
        let stamp = stamp.and_then(|stamp| state.stamps.clone().time(stamp, context));
        match when(stamp, record, context.now) {
            None => Miss::NoTime,
            Some(_) => Miss::Counted,
        }
    }

    /// `length`: of the message with the blanks at its ends.
    fn matching<'a>(
        &self,
        message: &'a [u8],
        length: usize,
        cut: bool,
    ) -> Option<(usize, Captures<'a>)> {
        self.by_first[usize::from(*message.first()?)]
            .iter()
            .find_map(|i| {
                let i = usize::from(*i);
                let Rule {
                    pattern,
                    max_length,
                    ..
                } = &self.patterns[i];
                if length > *max_length || cut && !pattern.is_open_ended() {
                    return None;
                }
                Some((i, pattern.read(message)?))
            })
    }
}

/// The end of a line that was cut is wherever its writer wanted it to be.
fn is_cut(record: &Record<'_>) -> bool {
    record.line.len() >= MAX_LINE
}

/// The time that a record counts at, given what its stamp says; `None` when it
/// must not count.
fn when(
    stamp: Option<Timestamp>,
    record: &Record<'_>,
    now: Timestamp,
) -> Option<(Timestamp, Clock)> {
    let known = record.time.unwrap_or(now);
    let off = stamp.map(|stamp| stamp.duration_since(known));
    let is_far = off.is_some_and(|off| off.abs() > STAMP_TOLERANCE);
    let judged = record.time.is_some() || record.age == Age::Live;
    match (stamp, off) {
        (Some(_), Some(off)) if is_far && judged => Some((known, Clock::Off(off))),
        // In a zone that does not fit: it was written before now.
        (Some(_), Some(off)) if record.age == Age::Backlog && off > STAMP_TOLERANCE => None,
        (Some(stamp), _) => Some((stamp, Clock::Stamp)),
        (None, _) if record.time.is_some() => Some((known, Clock::Source)),
        (None, _) if record.age == Age::Backlog => None,
        (None, _) => Some((now, Clock::Now)),
    }
}

/// A message without blanks at its ends and without rsyslog's "message repeated
/// N times", N, and its length with the blanks: a client can write some where
/// its program, or a syslog daemon, cuts the message.
fn trimmed(message: &[u8]) -> (u32, &[u8], usize) {
    let text = message.trim_ascii();
    let blanks = message.len() - text.len();
    let (attempts, text) = repeated(text);
    (attempts, text, text.len() + blanks)
}

/// rsyslog's `message repeated N times: [ text]`: N and the text.
fn repeated(message: &[u8]) -> (u32, &[u8]) {
    let whole = || {
        let rest = message.strip_prefix(b"message repeated ")?;
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let text = rest[digits..]
            .strip_prefix(b" times: [")?
            .strip_suffix(b"]")?;
        let n = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        (n > 0).then_some((n, text.trim_ascii()))
    };
    whole().unwrap_or((1, message))
}

/// Somebody's text, at most [`MAX_USER`] bytes of it.
fn bounded(user: &[u8]) -> String {
    let user = &user[..user.len().min(MAX_USER)];
    if let Ok(text) = std::str::from_utf8(user) {
        return text.to_owned();
    }
    let mut text = String::from_utf8_lossy(user).into_owned();
    // A replacement character is longer than what it replaces.
    while text.len() > MAX_USER {
        text.pop();
    }
    text
}

/// What a filter remembers from line to line: the last stamp's time, the
/// connections of the last minutes, and what it has noticed. Bounded.
#[derive(Clone, Debug, Default)]
pub struct FilterState {
    stamps: StampCache,
    connections: Connections,
    headless: Headless,
    notices: Notices,
}

impl FilterState {
    /// What was noticed since the last call.
    pub fn take_notices(&mut self) -> Notices {
        let mut notices = std::mem::take(&mut self.notices);
        if notices.headless > 0 {
            notices.line = Some(self.headless.line.clone());
        }
        notices
    }
}

#[cfg(test)]
mod tests;

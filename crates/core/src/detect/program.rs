//! A program reads records: whose line it is, which rule fits its message, whether
//! it may be believed, when it happened and how many attempts it tells of. What it
//! is compiled from is `definition`'s.

use super::{
    Context, Finding, Line, MAX_USER, Miss, Offender, Record,
    clock::when,
    declared_head::DeclaredHead,
    dispatch::Dispatch,
    head::{self, Head, NoHead},
    journal_match::JournalMatch,
    json_message::{JsonMessage, NoMessage},
    matcher::{Captures, Matcher},
    memory::{Bond, Connection, Connections},
    notices::{self, Headless, Notices, Unfit},
    timestamp::{self, Stamp, StampCache},
};

/// A compiled filter; shared between threads, each with its own [`ProgramState`].
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) head: HeadRule,
    /// How a message is made of an object of JSON, where the messages are such.
    pub(super) json: Option<JsonMessage>,
    pub(super) trust: Trust,
    pub(super) journal_match: JournalMatch,
    /// The first that fits is taken.
    pub(super) rules: Vec<Rule>,
    pub(super) dispatch: Dispatch,
    /// Messages that do not count although a rule fits.
    pub(super) ignore: Vec<Matcher>,
    pub(super) ignore_dispatch: Dispatch,
    /// Is any message bound to another one of its connection?
    pub(super) has_bonds: bool,
}

/// What stands before a message in a file or a ring, and whose messages are read.
#[derive(Clone, Debug)]
pub(super) enum HeadRule {
    /// A time stamp, or nothing; everybody's.
    Stamp,
    /// A syslog daemon's head.
    Syslog {
        /// Lines of programs with one of these tags.
        tags: Vec<Box<str>>,
        /// A line with a stamp and no tag says nothing about those behind it.
        allow_untagged: bool,
    },
    /// Lines with the head that the filter declares.
    Declared {
        head: DeclaredHead,
        /// Lines of programs with one of these tags; none: of every program.
        tags: Vec<Box<str>>,
    },
}

/// Which entries of the journal are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    /// Whether entries of standard output are refused, where a client's line break begins
    /// another entry.
    pub syslog_only: bool,
    /// Whether entries of root's processes alone are believed.
    pub root_only: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub matcher: Matcher,
    pub bond: Bond,
    /// The longest message that the pattern reads, in bytes.
    pub max_length: usize,
}

/// Why a line is not one of the program's.
enum NotRead<'l, 'a> {
    NoHead(NoHead),
    /// The record is another program's.
    Other(&'l Head<'a>),
    /// A line without the declared head.
    NoDeclaredHead,
    /// A line with the declared head and another program's tag.
    OtherTag(&'a [u8]),
}

/// A line of the program's, taken apart.
struct Parts<'a> {
    stamp: Option<Stamp<'a>>,
    host: Option<&'a [u8]>,
    /// 0: nobody knows.
    pid: u32,
    message: &'a [u8],
}

/// A message that a pattern fits.
struct Fit<'a> {
    attempts: u32,
    /// Without blanks at its ends, and without what rsyslog put around it.
    message: &'a [u8],
    pattern: usize,
    captures: Captures<'a>,
}

impl Program {
    /// The same program for a jail that names the users whose entries it reads.
    pub fn of_named_users(self) -> Self {
        let trust = Trust {
            root_only: false,
            ..self.trust
        };
        Self { trust, ..self }
    }

    /// Can a finding name a prefix?
    pub fn names_prefixes(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.names_prefixes())
    }

    /// Can a finding name a host, whose addresses are to be looked up?
    pub fn names_hosts(&self) -> bool {
        self.rules.iter().any(|rule| rule.matcher.names_hosts())
    }

    /// The syslog tags whose lines it reads; none: it reads no syslog daemon's.
    pub fn identifiers(&self) -> impl Iterator<Item = &str> {
        let tags = match &self.head {
            HeadRule::Stamp => &[][..],
            HeadRule::Syslog { tags, .. } | HeadRule::Declared { tags, .. } => tags,
        };
        tags.iter().map(|tag| &**tag)
    }

    /// Which entries of the journal it reads; where it says nothing, those of its
    /// [`identifiers`](Self::identifiers).
    pub fn journal_match(&self) -> &JournalMatch {
        &self.journal_match
    }

    /// Reads one record; `None` when it tells of no failure.
    pub fn read(
        &self,
        state: &mut ProgramState,
        record: &Record<'_>,
        context: &Context<'_>,
    ) -> Option<Finding> {
        self.read_line(state, &Line::from(*record), context)
    }

    /// Reads a record that other programs read as well; `None` when it tells of no failure.
    pub fn read_line(
        &self,
        state: &mut ProgramState,
        line: &Line<'_>,
        context: &Context<'_>,
    ) -> Option<Finding> {
        let record = &line.record;
        let behind_headless = state.headless.next(record.stream);
        let parts = match self.split(line) {
            Ok(parts) => parts,
            Err(why) => {
                self.notice(state, line, &why);
                return None;
            }
        };
        let object;
        let parts = match &self.json {
            None => parts,
            Some(json) => match json.read(parts.message) {
                Ok(read) => {
                    object = read;
                    Parts {
                        // The source knows when an entry of the journal came.
                        stamp: match record.message_only {
                            true => None,
                            false => json.stamp(&object).or(parts.stamp),
                        },
                        message: object.message.as_bytes(),
                        ..parts
                    }
                }
                Err(NoMessage::Field(_)) => {
                    // It tells of something else.
                    state.has_head(record.stream);
                    return None;
                }
                Err(NoMessage::Json(_)) => {
                    state.unfit_line(line);
                    return None;
                }
            },
        };
        let is_declared = self.json.is_some() || matches!(self.head, HeadRule::Declared { .. });
        if is_declared && !record.message_only {
            state.has_head(record.stream);
        }
        state.headless.names(parts.host);
        let Fit {
            attempts,
            message,
            pattern,
            captures,
        } = self.fit(parts.message, line.is_cut())?;
        let offender = captures.offender?;
        if self.ignored_by(message).is_some() {
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
        let offender = match offender {
            Ok(offender) => Offender::from(offender),
            Err(_) => {
                state.refuse(line.text());
                return None;
            }
        };
        let stamp = (parts.stamp).and_then(|stamp| state.stamps.time(stamp, context));
        let (time, clock) = when(stamp, record, context.now)?;
        let attempts = match offender {
            // Others have no bonds.
            Offender::Addr(addr) if self.has_bonds => {
                let connection = Connection {
                    addr,
                    port: captures.port.unwrap_or(0),
                    pid: parts.pid,
                    host: state.connections.host(parts.host),
                };
                let bond = &self.rules[pattern].bond;
                state.connections.counts(bond, connection, attempts, time)
            }
            _ => attempts,
        };
        (attempts > 0).then(|| Finding {
            offender,
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
            let reads_heads = matches!(self.head, HeadRule::Syslog { .. });
            return (behind_headless && reads_heads).then_some(Miss::BehindNoHead);
        }
        if self.trust.root_only && record.writer.uid.is_some_and(|uid| uid != 0) {
            return Some(Miss::NotRoot);
        }
        (self.trust.syslog_only && record.writer.stdout).then_some(Miss::Stdout)
    }

    /// What a line that is not read tells of its log.
    fn notice(&self, state: &mut ProgramState, line: &Line<'_>, why: &NotRead<'_, '_>) {
        let has_no_tag = match why {
            NotRead::NoHead(NoHead::SyslogDaemon) => return,
            NotRead::OtherTag(_) => {
                state.has_head(line.record.stream);
                return;
            }
            NotRead::NoDeclaredHead => {
                state.unfit_line(line);
                return;
            }
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
        if has_no_tag && self.allows_untagged() {
            return;
        }
        let text = line.text();
        if let Some(host) = head::host_of_odd_tag(text).filter(|_| has_no_tag)
            && !state.headless.last
            && state.headless.knows(host)
        {
            return;
        }
        state.headless.saw(line.record.stream, text, has_no_tag);
        let (_, behind_stamp) = line.stamped();
        let message = if has_no_tag { behind_stamp } else { text };
        let is_failure = |message: &[u8]| self.fit(message, line.is_cut()).is_some();
        let is_failure = match &self.json {
            None => is_failure(message),
            Some(json) => json
                .read(message)
                .is_ok_and(|object| is_failure(object.message.as_bytes())),
        };
        state.notices.headless += u64::from(is_failure);
    }

    /// Does a line with a time stamp and no tag say nothing about those behind it?
    pub fn allows_untagged(&self) -> bool {
        match self.head {
            HeadRule::Stamp | HeadRule::Declared { .. } => false,
            HeadRule::Syslog { allow_untagged, .. } => allow_untagged,
        }
    }

    /// The stamp and the message of a line of these tags.
    fn split<'l, 'a>(&self, line: &'l Line<'a>) -> Result<Parts<'a>, NotRead<'l, 'a>> {
        let of_source = |stamp, message| Parts {
            stamp,
            host: None,
            pid: line.record.writer.pid.unwrap_or(0),
            message,
        };
        if line.record.message_only {
            return Ok(of_source(None, line.text()));
        }
        let tags = match &self.head {
            HeadRule::Syslog { tags, .. } => tags,
            HeadRule::Stamp => {
                let (stamp, message) = line.stamped();
                return Ok(of_source(stamp, message));
            }
            HeadRule::Declared { head, tags } => {
                let head = head
                    .read(line.text())
                    .map_err(|_| NotRead::NoDeclaredHead)?;
                if let Some(tag) = head.tag.filter(|_| !tags.is_empty())
                    && !tags.iter().any(|known| known.as_bytes() == tag)
                {
                    return Err(NotRead::OtherTag(tag));
                }
                return Ok(Parts {
                    stamp: head.stamp,
                    host: head.host,
                    pid: head.pid,
                    message: head.message,
                });
            }
        };
        let head = match line.syslog_head() {
            Ok(head) => head,
            Err(why) => return Err(NotRead::NoHead(*why)),
        };
        if !tags.iter().any(|known| known.as_bytes() == head.tag) {
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
    pub fn explain(
        &self,
        state: &ProgramState,
        record: &Record<'_>,
        context: &Context<'_>,
    ) -> Miss {
        let line = Line::from(*record);
        let Parts { stamp, message, .. } = match self.split(&line) {
            Ok(parts) => parts,
            Err(NotRead::NoHead(NoHead::Stamp)) => return Miss::NoStamp,
            Err(NotRead::NoHead(NoHead::SyslogDaemon)) => return Miss::SyslogDaemon,
            Err(NotRead::NoHead(NoHead::Tag)) => return Miss::NoTag,
            Err(NotRead::Other(head)) => return Miss::other_program(head.tag),
            Err(NotRead::OtherTag(tag)) => return Miss::other_program(tag),
            Err(NotRead::NoDeclaredHead) => return self.head_miss(line.text()),
        };
        let object;
        let (stamp, message) = match &self.json {
            None => (stamp, message),
            Some(json) => match json.read(message) {
                Ok(read) => {
                    object = read;
                    let of_source = record.message_only;
                    let own = json.stamp(&object).filter(|_| !of_source);
                    (own.or(stamp), object.message.as_bytes())
                }
                Err(NoMessage::Json(why)) => return Miss::NoJson(why),
                Err(NoMessage::Field(path)) => return Miss::NoJsonField(path.to_owned()),
            },
        };
        let patterns = self.rules.iter().map(|rule| &rule.matcher);
        let Some(fit) = self.fit(message, line.is_cut()) else {
            let message = trimmed(message).text;
            if let Some(pattern) = patterns.clone().position(|p| p.read(message).is_some()) {
                return Miss::TooLong { pattern };
            }
            if let (Ok(head), HeadRule::Stamp, None) = (line.syslog_head(), &self.head, &self.json)
            {
                let fits = self.fit(head.message, line.is_cut()).is_some();
                return Miss::head_not_read(head.tag, fits);
            }
            let reached = patterns.map(|pattern| pattern.reach(message)).enumerate();
            return match reached.max_by_key(|(n, reach)| (reach.bytes(message), usize::MAX - n)) {
                Some((pattern, reach)) => Miss::no_pattern(pattern, message, &reach),
                None => Miss::NoStamp,
            };
        };
        if let Some(ignore) = self.ignored_by(fit.message) {
            return Miss::Ignored { ignore };
        }
        if let Some(why) = self.untrusted(record, state.headless.last) {
            return why;
        }
        if let Some(Err(why)) = fit.captures.offender {
            return Miss::Refused(why);
        }
        let stamp = stamp.and_then(|stamp| state.stamps.clone().time(stamp, context));
        match when(stamp, record, context.now) {
            None => Miss::NoTime,
            Some(_) => Miss::Counted,
        }
    }

    /// How far the declared head fits a line that has not all of it.
    fn head_miss(&self, text: &[u8]) -> Miss {
        match &self.head {
            HeadRule::Declared { head, .. } => match head.read(text) {
                Err(miss) => Miss::no_declared_head(&text[..miss.read], miss.wanted()),
                Ok(_) => Miss::NoTag,
            },
            HeadRule::Stamp | HeadRule::Syslog { .. } => Miss::NoStamp,
        }
    }

    /// Does a line have the head, or the object of JSON, that the filter declares? `None`: it
    /// declares none.
    pub fn fits_declared_head(&self, line: &[u8]) -> Option<bool> {
        let is_object = |message: &[u8]| match &self.json {
            None => true,
            Some(json) => !matches!(json.read(message), Err(NoMessage::Json(_))),
        };
        match &self.head {
            HeadRule::Declared { head, .. } => {
                Some(head.read(line).is_ok_and(|parts| is_object(parts.message)))
            }
            HeadRule::Stamp if self.json.is_some() => {
                let message = timestamp::split(line).map_or(line, |(_, message)| message);
                Some(is_object(message))
            }
            HeadRule::Stamp | HeadRule::Syslog { .. } => None,
        }
    }

    /// The pattern for which a message does not count.
    fn ignored_by(&self, message: &[u8]) -> Option<usize> {
        let mut candidates = self.ignore_dispatch.candidates(message);
        candidates.find(|number| self.ignore[*number].read(message).is_some())
    }

    /// Which pattern fits a message, or else the one that rsyslog says was repeated: a
    /// client's text may look as if it said that, so what the filter reads as it stands
    /// is read so.
    #[inline]
    fn fit<'a>(&self, message: &'a [u8], cut: bool) -> Option<Fit<'a>> {
        let Trimmed {
            attempts,
            text,
            length,
            may_be_cut,
        } = trimmed(message);
        let fit = |(pattern, captures), attempts, message| Fit {
            attempts,
            message,
            pattern,
            captures,
        };
        let whole = message.trim_ascii();
        if text.len() != whole.len()
            && let Some(found) = self.matching(whole, message.len(), cut || may_be_cut)
        {
            return Some(fit(found, 1, whole));
        }
        let found = self.matching(text, length, cut || may_be_cut)?;
        Some(fit(found, attempts, text))
    }

    /// `length`: of the message with the blanks at its ends.
    fn matching<'a>(
        &self,
        message: &'a [u8],
        length: usize,
        cut: bool,
    ) -> Option<(usize, Captures<'a>)> {
        self.dispatch.candidates(message).find_map(|number| {
            let Rule {
                matcher,
                max_length,
                ..
            } = &self.rules[number];
            if length > *max_length || cut && !matcher.is_open_ended() {
                return None;
            }
            Some((number, matcher.read(message)?))
        })
    }
}

/// rsyslog cuts what it joins at so many bytes (`[%.800s]`).
const JOINED: usize = 800;

/// A message that rsyslog has joined and that is longer, without the blank before it,
/// may be cut.
pub(super) const LONGEST_JOINED: usize = JOINED - 2;

/// A message without blanks at its ends and without rsyslog's "message repeated N
/// times".
struct Trimmed<'a> {
    /// How many attempts the message stands for.
    attempts: u32,
    text: &'a [u8],
    /// Bytes of the message with the blanks: a client can write some where its program, or
    /// a syslog daemon, cuts the message.
    length: usize,
    /// Whether the end may be where rsyslog has cut the message.
    may_be_cut: bool,
}

fn trimmed(message: &[u8]) -> Trimmed<'_> {
    let whole = message.trim_ascii();
    let (attempts, joined) = repeated(whole);
    // The blank with which a message begins for rsyslog is none of the program's.
    let said = match joined.len() == whole.len() {
        true => joined,
        false => joined.strip_prefix(b" ").unwrap_or(joined),
    };
    Trimmed {
        attempts,
        text: joined.trim_ascii(),
        length: said.len() + (message.len() - whole.len()),
        may_be_cut: joined.len() != whole.len() && joined.len() >= JOINED,
    }
}

/// rsyslog's `message repeated N times: [ text]`: N and the text with its blanks.
fn repeated(message: &[u8]) -> (u32, &[u8]) {
    let whole = || {
        let rest = message.strip_prefix(b"message repeated ")?;
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let text = rest[digits..]
            .strip_prefix(b" times: [")?
            .strip_suffix(b"]")?;
        let n = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        (n > 0).then_some((n, text))
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

/// What a program remembers from line to line: the last stamp's time, the
/// connections of the last minutes, and what it has noticed. Bounded.
#[derive(Clone, Debug, Default)]
pub struct ProgramState {
    stamps: StampCache,
    connections: Connections,
    headless: Headless,
    notices: Notices,
    unfit: Unfit,
}

impl ProgramState {
    /// The line that came has the declared head.
    fn has_head(&mut self, stream: u64) {
        self.unfit.ends(stream);
        self.notices.fits = true;
    }

    /// The line that came lacks what the filter declares.
    fn unfit_line(&mut self, line: &Line<'_>) {
        if self.unfit.saw(line.record.stream) {
            if self.notices.unfit == 0 {
                self.headless.keep(line.text());
            }
            self.notices.unfit += 1;
        }
    }

    /// What the line names cannot be counted.
    fn refuse(&mut self, line: &[u8]) {
        if self.notices.refused == 0 {
            self.notices.refused_line = notices::shown(line);
        }
        self.notices.refused += 1;
    }

    /// The state for the same log, opened anew: its connections, and the lines that do not
    /// count yet.
    pub fn reopened(&self) -> Self {
        let mut headless = self.headless.clone();
        headless.reopen();
        Self {
            connections: self.connections.clone(),
            headless,
            ..Self::default()
        }
    }

    /// What was noticed since the last call.
    pub fn take_notices(&mut self) -> Notices {
        let mut notices = std::mem::take(&mut self.notices);
        if notices.headless + notices.unfit > 0 {
            notices.line = Some(self.headless.line.clone());
        }
        notices
    }
}

#[cfg(test)]
mod tests;

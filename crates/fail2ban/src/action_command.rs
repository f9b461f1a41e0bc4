//! The commands of `action.d`, made scripts for a shell into which no value is ever
//! written: what configuration says is expanded when they are read, and each tag whose
//! value is known only when somebody is banned becomes a variable of the environment,
//! quoted as its place asks. What cannot be made safe is refused, by file and line.

mod runners;
mod words;

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use crate::{
    definition::Definition,
    error::{Error, ErrorKind, Origin},
    expression,
    filter_files::wrong,
    text::Text,
};
use runners::{names_interpreter, runner_in, runs_arguments};
use words::words_of;

/// How long a command may run, if `timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest `timeout`.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// A script may have this many bytes.
const MAX_SCRIPT: usize = 64 * 1024;

/// A script may ask for so many values that filters capture.
const MAX_CAPTURED: usize = 8;

/// The name by which a filter captures `<F-ID>`.
pub const CAPTURED_ID: &str = "fid";

/// What Fail2ban calls IPv4 and IPv6 in `[Init?family=inet6]`.
pub(crate) const FAMILIES: [&str; 2] = ["inet4", "inet6"];

/// A value that is known when somebody is banned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tag {
    /// The address or prefix that is banned.
    Ip,
    /// What the filter has captured as `<F-ID>`, if it has; else as [`Tag::Ip`].
    Id,
    /// The same as labels of a reverse name, with a dot at the end.
    IpRev,
    /// `inet4` or `inet6`.
    Family,
    /// How many failures led to the ban.
    Failures,
    /// Since when it is banned, in seconds since 1970.
    Time,
    /// For how many seconds; -1 is for ever.
    BanTime,
    /// How many bans of this address this jail has made, with this one.
    BanCount,
    /// `1` if the ban was made before, and is in force again; else `0`.
    Restored,
    /// The lines that led to the ban.
    Matches,
    /// This host's name with its domain.
    HostNameFull,
    /// This host's name.
    HostName,
}

impl Tag {
    const ALL: [(&str, Self); 17] = [
        ("ip", Self::Ip),
        ("ADDR", Self::Ip),
        ("fid", Self::Id),
        ("F-ID", Self::Id),
        ("ip-rev", Self::IpRev),
        ("family", Self::Family),
        ("failures", Self::Failures),
        ("ipfailures", Self::Failures),
        ("ipjailfailures", Self::Failures),
        ("time", Self::Time),
        ("bantime", Self::BanTime),
        ("bancount", Self::BanCount),
        ("restored", Self::Restored),
        ("matches", Self::Matches),
        ("ipmatches", Self::Matches),
        ("ipjailmatches", Self::Matches),
        ("fq-hostname", Self::HostNameFull),
    ];

    /// Each value once.
    const VALUES: [Self; 12] = [
        Self::Ip,
        Self::Id,
        Self::IpRev,
        Self::Family,
        Self::Failures,
        Self::Time,
        Self::BanTime,
        Self::BanCount,
        Self::Restored,
        Self::Matches,
        Self::HostNameFull,
        Self::HostName,
    ];

    fn of(name: &str) -> Option<Self> {
        if name == "sh-hostname" {
            return Some(Self::HostName);
        }
        let found = Self::ALL.iter().find(|(tag, _)| *tag == name);
        found.map(|(_, tag)| *tag)
    }

    /// Its variable in the environment of a command.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Ip => "WEIR_IP",
            Self::Id => "WEIR_ID",
            Self::IpRev => "WEIR_IP_REV",
            Self::Family => "WEIR_FAMILY",
            Self::Failures => "WEIR_FAILURES",
            Self::Time => "WEIR_TIME",
            Self::BanTime => "WEIR_BAN_TIME",
            Self::BanCount => "WEIR_BAN_COUNT",
            Self::Restored => "WEIR_RESTORED",
            Self::Matches => "WEIR_MATCHES",
            Self::HostNameFull => "WEIR_HOST_NAME_FULL",
            Self::HostName => "WEIR_HOST_NAME",
        }
    }

    /// Can its value be any text, as a client of a server may have chosen it?
    fn is_text(self) -> bool {
        matches!(self, Self::Matches)
    }

    /// Does it say something of one ban?
    fn is_of_ban(self) -> bool {
        !matches!(self, Self::HostNameFull | Self::HostName)
    }
}

/// Tags that Fail2ban has and weir has no value for.
const WITHOUT_VALUE: [&str; 6] = [
    "ip-host",
    "raw-ticket",
    "jail.banned",
    "jail.banned_total",
    "jail.found",
    "jail.found_total",
];

/// One command: a script for `/bin/sh -c`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The script; values of bans are variables in it.
    pub text: String,
    /// The variables that it reads.
    pub tags: Vec<Tag>,
    /// The values that it reads of those which filters capture, as `user` of `<F-USER>`.
    pub captured: Vec<String>,
}

/// The variable in the environment of a command that has a value which a filter captures.
pub fn captured_variable(name: &str) -> String {
    format!("WEIR_F_{}", name.to_uppercase())
}

/// The name by which a filter captures what a tag asks for: `user` of `F-USER`.
pub(crate) fn captured_name(tag: &str) -> Option<String> {
    let name = tag.strip_prefix("F-")?;
    let fits =
        |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(fits);
    is_name.then(|| match name {
        "PORT" => "fport".to_owned(),
        _ => name.to_lowercase().replace('-', "_"),
    })
}

/// A value that stands at a place of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Tag(Tag),
    /// Of the failure that led to the ban, by its name in the filter.
    Captured(String),
}

impl Value {
    /// Can it be any text, as a client of a server may have chosen it?
    fn is_text(&self) -> bool {
        match self {
            Self::Tag(tag) => tag.is_text(),
            Self::Captured(_) => true,
        }
    }

    fn variable(&self) -> String {
        match self {
            Self::Tag(tag) => tag.variable().to_owned(),
            Self::Captured(name) => captured_variable(name),
        }
    }
}

/// The commands of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// For IPv4 and for IPv6.
    pub families: [FamilyCommands; 2],
    /// Bans that were made before the start are not told to it.
    pub norestored: bool,
    /// Whether actionstart waits for the first ban; `None`: where the families differ.
    pub start_on_demand: Option<bool>,
    /// An actionunban that fails has the action checked and repaired, too.
    pub repair_on_unban: bool,
    /// How long one of its commands may run.
    pub timeout: Duration,
}

/// The commands of one action for one family of addresses; those that are empty are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the fields are Fail2ban's keys, without "action"
pub struct FamilyCommands {
    pub start: Option<Script>,
    pub stop: Option<Script>,
    pub flush: Option<Script>,
    pub check: Option<Script>,
    pub repair: Option<Script>,
    pub ban: Option<Script>,
    pub unban: Option<Script>,
    pub prolong: Option<Script>,
    pub reban: Option<Script>,
}

impl FamilyCommands {
    /// The scripts that are not empty.
    pub fn scripts(&self) -> impl Iterator<Item = &Script> {
        [
            &self.start,
            &self.stop,
            &self.flush,
            &self.check,
            &self.repair,
            &self.ban,
            &self.unban,
            &self.prolong,
            &self.reban,
        ]
        .into_iter()
        .flatten()
    }
}

impl Commands {
    /// The values that its commands read of those which filters capture.
    pub(crate) fn captured(&self) -> BTreeSet<&str> {
        let scripts = self.families.iter().flat_map(FamilyCommands::scripts);
        scripts
            .flat_map(|script| script.captured.iter().map(String::as_str))
            .collect()
    }

    /// The names by which filters capture what its commands ask for: `user` of `<F-USER>`,
    /// and `fid` of `<F-ID>`.
    pub fn asks_filters_for(&self) -> BTreeSet<&str> {
        let mut scripts = self.families.iter().flat_map(FamilyCommands::scripts);
        let mut names = self.captured();
        if scripts.any(|script| script.tags.contains(&Tag::Id)) {
            names.insert(CAPTURED_ID);
        }
        names
    }

    /// Reads the commands of an action's definition.
    ///
    /// # Errors
    /// A command that cannot be made safe, and a `timeout` or `norestored` that is none.
    pub(crate) fn read(definition: &mut Definition) -> Result<Self, Error> {
        let mut families = FAMILIES.map(|_| FamilyCommands::default());
        for (family, commands) in FAMILIES.into_iter().zip(&mut families) {
            definition.family = Some(family);
            for (key, about_ban, command) in [
                ("actionstart", false, &mut commands.start),
                ("actionstop", false, &mut commands.stop),
                ("actionflush", false, &mut commands.flush),
                ("actioncheck", false, &mut commands.check),
                ("actionrepair", false, &mut commands.repair),
                ("actionban", true, &mut commands.ban),
                ("actionunban", true, &mut commands.unban),
                ("actionprolong", true, &mut commands.prolong),
                ("actionreban", true, &mut commands.reban),
            ] {
                if let Some(text) = definition.get(key)? {
                    *command = script(key, &text, about_ban)?;
                }
            }
        }
        definition.family = None;
        let word = |key: &str| -> Result<Option<Text>, Error> {
            Ok(definition.get(key)?.filter(|text| !text.is_empty()))
        };
        let is_true = |key: &str| -> Result<Option<bool>, Error> {
            let Some(text) = word(key)? else {
                return Ok(None);
            };
            match text.joined().trim().to_lowercase().as_str() {
                "1" | "on" | "true" | "yes" => Ok(Some(true)),
                "0" | "off" | "false" | "no" | "none" => Ok(Some(false)),
                _ => Err(wrong(key, &text, "true or false")),
            }
        };
        let norestored = is_true("norestored")?.unwrap_or(false);
        let start_on_demand = is_true("actionstart_on_demand")?;
        let repair_on_unban = is_true("actionrepair_on_unban")?.unwrap_or(false);
        let timeout = match word("timeout")? {
            None => TIMEOUT,
            Some(text) => match expression::duration(&text.joined()) {
                Ok(Some(time)) if !time.is_zero() && time <= MAX_TIMEOUT => time,
                _ => return Err(wrong("timeout", &text, "a time from 1s to 1h")),
            },
        };
        Ok(Self {
            families,
            norestored,
            start_on_demand,
            repair_on_unban,
            timeout,
        })
    }

    /// Is there anything to run?
    pub fn is_empty(&self) -> bool {
        self.families
            .iter()
            .all(|one| *one == FamilyCommands::default())
    }
}

/// How a shell reads what stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    /// Outside of quotes: at the top, in `( )` or in `$( )`.
    Plain,
    Single,
    Double,
    Backtick,
    /// `${ }`, `$(( ))` and what else has rules of its own.
    Other,
    /// The lines of a here-document; those of a quoted one are read by nobody.
    Document {
        is_quoted: bool,
    },
}

struct Scanner<'a> {
    key: &'a str,
    out: String,
    tags: Vec<Tag>,
    captured: Vec<String>,
    /// What is open, and where in `out` its present command begins.
    open: Vec<(Quoting, usize)>,
    /// How much is open in each `$( )`.
    substitutions: Vec<usize>,
    /// Here-documents whose lines begin with the next one.
    pending: Vec<Document>,
    document: Option<Document>,
    /// Where in `out` commands begin.
    commands: Vec<usize>,
    /// A here-document has a command in it, which the shell runs.
    document_runs: bool,
    /// The first text of others, for a message about the whole at the end.
    text_at: Option<(String, Origin)>,
}

#[derive(Clone)]
struct Document {
    end: String,
    is_quoted: bool,
    strips_tabs: bool,
}

/// A command as a script; `None` if there is none.
pub(crate) fn script(key: &str, text: &Text, about_ban: bool) -> Result<Option<Script>, Error> {
    if text.lines.iter().all(|line| line.text.trim().is_empty()) {
        return Ok(None);
    }
    let mut scanner = Scanner {
        key,
        out: String::new(),
        tags: Vec::new(),
        captured: Vec::new(),
        open: vec![(Quoting::Plain, 0)],
        substitutions: Vec::new(),
        pending: Vec::new(),
        document: None,
        commands: vec![0],
        document_runs: false,
        text_at: None,
    };
    for (number, line) in text.lines.iter().enumerate() {
        if number > 0 {
            scanner.newline();
        }
        scanner.line(&line.text, &line.place.origin(), about_ban)?;
    }
    scanner.finish(&text.origin())
}

impl Scanner<'_> {
    fn error(&self, at: &Origin, tag: &str, why: &str) -> Error {
        let message = format!("{}: <{tag}> {why}", self.key);
        Error::new(at.clone(), ErrorKind::Value, message)
    }

    fn quoting(&self) -> Quoting {
        match &self.document {
            Some(document) => Quoting::Document {
                is_quoted: document.is_quoted,
            },
            None => self.open.last().map_or(Quoting::Plain, |(open, _)| *open),
        }
    }

    fn push(&mut self, quoting: Quoting) {
        self.open.push((quoting, self.out.len()));
    }

    /// Closes what is open; the outermost stays.
    fn pop(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
        }
    }

    fn command_begins(&mut self) {
        let at = self.out.len();
        self.commands.push(at);
        if let Some((_, begin)) = self.open.last_mut() {
            *begin = at;
        }
    }

    fn newline(&mut self) {
        self.out.push('\n');
        if self.document.is_none() {
            let goes_on = self.out.ends_with("\\\n") || !self.pending.is_empty();
            if self.quoting() == Quoting::Plain && !goes_on {
                self.command_begins();
            }
            if !self.pending.is_empty() {
                self.document = Some(self.pending.remove(0));
            }
        }
    }

    fn line(&mut self, line: &str, at: &Origin, about_ban: bool) -> Result<(), Error> {
        if let Some(document) = &self.document {
            let bare = match document.strips_tabs {
                true => line.trim_start_matches('\t'),
                false => line,
            };
            if bare == document.end {
                self.out.push_str(line);
                self.document = match self.pending.is_empty() {
                    true => None,
                    false => Some(self.pending.remove(0)),
                };
                return Ok(());
            }
        }
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            if c == '<'
                && let Some((name, after)) = rest[1..].split_once('>')
                && !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_.-/".contains(&b))
            {
                match name {
                    "br" => {
                        self.out.push('\n');
                        rest = after;
                        continue;
                    }
                    "sp" => {
                        self.out.push(' ');
                        rest = after;
                        continue;
                    }
                    _ => {}
                }
                if let Some(tag) = Tag::of(name) {
                    if tag.is_of_ban() && !about_ban {
                        // Fail2ban says the family to all of them.
                        if tag != Tag::Family {
                            return Err(self.error(at, name, "is known when somebody is banned"));
                        }
                    }
                    self.value(Value::Tag(tag), name, at)?;
                    rest = after;
                    continue;
                }
                let captured = captured_name(name);
                // It is asked before anybody is banned.
                let is_kept = captured.is_none() || self.key != "ignorecommand";
                if WITHOUT_VALUE.contains(&name) || !is_kept {
                    let why = "is a value that weir does not keep";
                    return Err(self.error(at, name, why));
                }
                if let Some(captured) = captured {
                    if !about_ban {
                        return Err(self.error(at, name, "is known when somebody is banned"));
                    }
                    self.value(Value::Captured(captured), name, at)?;
                    rest = after;
                    continue;
                }
            }
            rest = self.step(c, rest);
        }
        if self.out.len() > MAX_SCRIPT {
            let message = format!("{}: more than {MAX_SCRIPT} bytes", self.key);
            return Err(Error::new(at.clone(), ErrorKind::Value, message));
        }
        Ok(())
    }

    /// Goes over one character, or over what belongs to it; returns what is behind.
    fn step<'t>(&mut self, c: char, rest: &'t str) -> &'t str {
        let quoting = self.quoting();
        let take = |scanner: &mut Self, length: usize| {
            scanner.out.push_str(&rest[..length]);
            &rest[length..]
        };
        match (quoting, c) {
            (Quoting::Document { is_quoted: false }, '`' | '$') => {
                self.document_runs |= c == '`' || rest.starts_with("$(");
            }
            (Quoting::Document { .. }, _) => {}
            (Quoting::Single, '\'') => self.pop(),
            (Quoting::Single, _) => {}
            (_, '\\') => {
                let next = rest[1..].chars().next();
                return take(self, 1 + next.map_or(0, char::len_utf8));
            }
            (Quoting::Double, '"') => self.pop(),
            (Quoting::Backtick, '`') => self.pop(),
            (_, '`') => {
                self.push(Quoting::Backtick);
                let rest = take(self, 1);
                self.command_begins();
                return rest;
            }
            (_, '$') if rest.starts_with("$((") => {
                self.push(Quoting::Other);
                // Its two brackets close one after the other.
                self.push(Quoting::Other);
                return take(self, 3);
            }
            (_, '$') if rest.starts_with("$(") => {
                self.push(Quoting::Plain);
                self.substitutions.push(self.open.len());
                let rest = take(self, 2);
                self.command_begins();
                return rest;
            }
            (_, '$') if rest.starts_with("${") => {
                self.push(Quoting::Other);
                return take(self, 2);
            }
            (Quoting::Double, _) => {}
            (Quoting::Other, '}' | ')') => self.pop(),
            (Quoting::Other, '(' | '{') => self.push(Quoting::Other),
            (Quoting::Other, _) => {}
            (_, '\'') => self.push(Quoting::Single),
            (_, '"') => self.push(Quoting::Double),
            (Quoting::Plain, '#')
                if self.out.is_empty() || self.out.ends_with([' ', '\t', '\n', ';', '(']) =>
            {
                // To the end of the line nobody reads it: no quote begins there.
                self.out.push('#');
                return "";
            }
            (Quoting::Plain, '(') => {
                self.push(Quoting::Plain);
                let rest = take(self, 1);
                self.command_begins();
                return rest;
            }
            (Quoting::Plain, ')') => {
                // Behind a pattern of `case` a command begins; behind others perhaps.
                let depth = self.open.len();
                self.substitutions.retain(|at| *at <= depth);
                let is_substitution = self.substitutions.pop_if(|at| *at == depth).is_some();
                self.pop();
                let rest = take(self, 1);
                match depth {
                    1 => self.command_begins(),
                    _ if is_substitution => (),
                    _ => self.commands.push(self.out.len()),
                }
                return rest;
            }
            (Quoting::Plain, '<') if rest.starts_with("<<") && !rest.starts_with("<<<") => {
                let strips_tabs = rest[2..].starts_with('-');
                let begin = 2 + usize::from(strips_tabs);
                let word = rest[begin..].trim_start();
                let skipped = rest.len() - word.len();
                let length = word
                    .find(|c: char| c.is_whitespace() || ";|&<>()".contains(c))
                    .unwrap_or(word.len());
                let word = &word[..length];
                let end: String = word.chars().filter(|c| !"'\"\\".contains(*c)).collect();
                if !end.is_empty() {
                    self.pending.push(Document {
                        is_quoted: end != word,
                        end,
                        strips_tabs,
                    });
                }
                return take(self, skipped + length);
            }
            (Quoting::Plain, ';' | '|' | '&') => {
                let rest = take(self, 1);
                self.command_begins();
                return rest;
            }
            _ => {}
        }
        take(self, c.len_utf8())
    }

    /// A value's place: a variable, quoted so that the shell leaves it as it is.
    fn value(&mut self, value: Value, name: &str, at: &Origin) -> Result<(), Error> {
        let quoting = self.quoting();
        if self.out.ends_with('$') {
            return Err(self.error(at, name, "stands behind $"));
        }
        if value.is_text() {
            let why = match quoting {
                Quoting::Backtick => Some("stands in backticks; write $( )"),
                Quoting::Other => Some("stands in ${ } or $(( )), where its text would be read"),
                _ => self.is_argument_of_interpreter().then_some(
                    "is an argument of a program that may run it: let that program read it from a file or its input"
                ),
            };
            if let Some(why) = why {
                return Err(self.error(at, name, why));
            }
            if self.text_at.is_none() {
                self.text_at = Some((name.to_owned(), at.clone()));
            }
        }
        let variable = value.variable();
        let _ = match quoting {
            Quoting::Document { is_quoted: true } => {
                let why = "stands in a here-document whose end is quoted, where no value comes";
                return Err(self.error(at, name, why));
            }
            Quoting::Plain => write!(self.out, "\"${{{variable}}}\""),
            Quoting::Single => write!(self.out, "'\"${{{variable}}}\"'"),
            Quoting::Double
            | Quoting::Backtick
            | Quoting::Other
            | Quoting::Document { is_quoted: false } => write!(self.out, "${{{variable}}}"),
        };
        match value {
            Value::Tag(tag) if !self.tags.contains(&tag) => self.tags.push(tag),
            Value::Captured(captured) if !self.captured.contains(&captured) => {
                if self.captured.len() == MAX_CAPTURED {
                    let why = format!(
                        "is one value of a filter's too many; allowed: {MAX_CAPTURED} in a command"
                    );
                    return Err(self.error(at, name, &why));
                }
                self.captured.push(captured);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a command that is being written names a program which runs its arguments: that
    /// around the value, or one in whose `$( )` it stands. (Quotes have a beginning of their
    /// own: the command is that of what is around.)
    fn is_argument_of_interpreter(&self) -> bool {
        let commands = self.open.iter().filter_map(|(quoting, begin)| {
            matches!(quoting, Quoting::Plain | Quoting::Backtick).then_some(*begin)
        });
        let (mut runs, mut innermost, mut is_whole) = (false, "", true);
        for begin in commands {
            innermost = &self.out[begin..];
            let command = words_of(innermost);
            runs |= command.words.split(|word| word == "{").any(runs_arguments);
            is_whole = command.is_whole;
        }
        // Where the words may not be what a shell reads, none may name such a program.
        let is_doubtful = !is_whole
            || self
                .out
                .split_whitespace()
                .any(|word| word.ends_with("case"));
        runs || (is_doubtful && names_interpreter(innermost))
    }

    /// The first program of all commands that runs what it reads, or reads it as a name.
    fn runner(&self) -> Option<String> {
        let commands = self
            .commands
            .iter()
            .map(|begin| words_of(&self.out[*begin..]).words);
        commands.into_iter().find_map(|words| {
            let parts = words.split(|word| word == "{");
            parts.into_iter().find_map(runner_in).map(str::to_owned)
        })
    }

    fn finish(self, origin: &Origin) -> Result<Option<Script>, Error> {
        let is_open = self.open.len() > 1 || self.document.is_some() || !self.pending.is_empty();
        if let Some((name, at)) = &self.text_at
            && is_open
        {
            return Err(self.error(at, name, "stands in a command whose quotes do not close"));
        }
        if let Some((name, at)) = &self.text_at {
            if let Some(program) = self.runner() {
                let why = format!(
                    "stands in a command with {program}, which could run its text: call a program of your own with it instead"
                );
                return Err(self.error(at, name, &why));
            }
            if let Some(sum) = ["$((", "[["].into_iter().find(|sum| self.out.contains(sum)) {
                let why = format!(
                    "stands in a command that has {sum}, where some shells run what they read"
                );
                return Err(self.error(at, name, &why));
            }
            if self.document_runs {
                let why = "stands in a command that has $( ) or backticks in a here-document";
                return Err(self.error(at, name, why));
            }
        }
        if self.out.contains('\0') {
            let message = format!("{}: a byte of 0", self.key);
            return Err(Error::new(origin.clone(), ErrorKind::Value, message));
        }
        Ok(Some(Script {
            text: self.out,
            tags: self.tags,
            captured: self.captured,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn made(text: &str) -> Result<Script, String> {
        let script = script("actionban", &Text::parameter(text), true);
        script
            .map(|script| script.expect("there is one"))
            .map_err(|e| e.message)
    }

    /// Text that would be a command anywhere but in a variable.
    const HOSTILE: &str =
        "'\"; touch pwned; $(touch pwned) `touch pwned` \\\" ${X} <ip> * \n~!touch pwned\nEOF\n";

    fn run(text: &str) -> String {
        let script = made(text).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new("/bin/sh")
            .args(["-c", &script.text])
            .env("WEIR_IP", "2001:db8::7")
            .env("WEIR_FAILURES", "5")
            .env("WEIR_MATCHES", HOSTILE)
            .env("WEIR_F_USER", HOSTILE)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(!dir.path().join("pwned").exists(), "{}", script.text);
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn values_reach_the_shell_as_variables_wherever_they_stand() {
        for (text, expected) in [
            ("printf %s <ip>", "2001:db8::7"),
            ("printf %s a<ip>b", "a2001:db8::7b"),
            ("printf %s \"[<ip>]\"", "[2001:db8::7]"),
            ("printf %s '{\"ip\":\"<ip>\"}'", "{\"ip\":\"2001:db8::7\"}"),
            ("printf %s \"`printf %s <ip>`\"", "2001:db8::7"),
            ("printf %s \"$(printf '%s' \"<ip>\")\"", "2001:db8::7"),
            ("X=<ip>; printf %s ${X}", "2001:db8::7"),
            ("printf %s $((<failures> + 1))", "6"),
            ("cat <<EOF\n[<ip>]\nEOF\nprintf x", "[2001:db8::7]\nx"),
            ("printf '%s' <ip> # it's <ip>\nprintf x", "2001:db8::7x"),
            ("printf %s 'a<br>b<sp>c'", "a\nb c"),
        ] {
            assert_eq!(run(text), expected, "{text}");
        }
        for text in [
            "printf %s <matches>",
            "printf %s \"<matches>\"",
            "printf %s '<matches>'",
            "printf %s \"$(printf '%s.' \"<matches>\")\" | sed 's/\\.$//'",
            "( printf %s \"<matches>\" ) | cat",
            "if [ -n '<matches>' ]; then printf %s '<matches>'; fi",
        ] {
            assert_eq!(run(text).trim_end(), HOSTILE.trim_end(), "{text}");
            // So are all texts of clients.
            let text = text.replace("<matches>", "<F-USER>");
            assert_eq!(run(&text).trim_end(), HOSTILE.trim_end(), "{text}");
        }
        assert_eq!(
            run("cat <<-EOF\n<matches>\n\tEOF\n"),
            format!("{HOSTILE}\n")
        );
    }

    /// What only looks like a program that runs what it reads.
    #[test]
    fn words_are_not_taken_for_programs() {
        for text in [
            "printf %b \"Hi,\nsomebody at <ip> failed (sh, perl): <matches>\n\" | sendmail -t",
            "curl --data-urlencode 'comment=<matches>' https://example.org/api/ssh",
            "logger -t mysql <matches>; find . -name at; grep x /var/log/mysql",
            "report --service mysql \"$(date)\" \"`date`\" <matches> >/tmp/sh 2>&1",
            "awk '{ print }' F; sed -n 1p F; echo <matches>",
            "awk '{ print $1 }' F; sed \"/<ip>/d; s/ *$//\" F; echo <matches>",
            "logger -t ssh <matches>",
            "if true; then /usr/bin/logger -t perl -- \"<matches>\"; fi",
            "X=1 sudo -u log logger -t su '<matches>' >/dev/null",
            "printf '%s\\n' \"<matches>\" | mail -s php root",
            "curl -d user=node -d php --data-urlencode \"c=<matches>\" https://example.org/",
            "echo sh ${X} ssh <matches>",
            "$(command -v curl) -d \"<matches>\" https://example.org/",
            "${HELPERS}/report <matches>; \"$DIR\"/tell <matches>",
        ] {
            assert_eq!(made(text).map(|_| ()), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_made_safe_is_refused() {
        for (text, why) in [
            ("eval \"x <matches>\"", "may run it"),
            ("sh -c \"x '<matches>'\"", "may run it"),
            ("x | /usr/bin/perl -e 'print \"<matches>\"'", "may run it"),
            ("python3.11 -c \"<matches>\"", "may run it"),
            ("ssh host \"log <matches>\"", "may run it"),
            ("x `printf <matches>`", "backticks"),
            ("x ${Y:-<matches>}", "${ }"),
            ("x $((<matches>))", "$(( ))"),
            ("x $<ip>", "behind $"),
            ("cat <<'EOF'\n<ip>\nEOF", "whose end is quoted"),
            ("x \"<matches>", "do not close"),
            ("printf '%s\\n' \"<matches>\" | sh", "with sh, which"),
            ("cat <<EOF | sh\necho <matches>\nEOF", "may run it"),
            (
                "M=\"<matches>\"; eval \"logger -t x $M\"",
                "with eval, which",
            ),
            ("trap \"<matches>\" EXIT", "with trap, which"),
            ("flock F -c \"echo <matches> >> G\"", "with flock, which"),
            ("cat <<EOF\n$(sh -c '<matches>')\nEOF", "in a here-document"),
            ("echo \"<matches>\" | sqlite3 db", "with sqlite3, which"),
            ("$SHELL -c \"<matches>\"", "with $SHELL, which"),
            ("at now <<EOF\n<matches>\nEOF", "with at, which"),
            (
                "if true; then X=1 sudo -n runuser u <matches>; fi",
                "with runuser, which",
            ),
            ("printf <matches> > f; timeout 5 bash f", "with bash, which"),
            (
                "x \"$(echo \"<matches>\" | python3.11)\"",
                "with python3.11, which",
            ),
            ("printf %s <matches> | env -u FOO sh", "with sh, which"),
            ("printf %s <matches> | sudo -u backup sh", "with sh, which"),
            (
                "printf %s <matches> | timeout -s KILL 5 sh",
                "with sh, which",
            ),
            (
                "printf %s <matches> | docker exec -i web sh",
                "with sh, which",
            ),
            (
                "printf %s <matches> | sudo -u backup ssh x",
                "with ssh, which",
            ),
            ("printf %s <matches> | s\\h", "with sh, which"),
            ("printf %s <matches> | \"s\"h", "with sh, which"),
            ("printf %s <matches> | tcsh", "with tcsh, which"),
            ("printf %s <matches> | crontab -", "with crontab, which"),
            ("printf %s <matches> | awk -f -", "with awk, which"),
            ("printf %s <matches> | sed -f/dev/stdin", "with sed, which"),
            ("f() { ssh x; }; printf %s <matches> | f", "with ssh, which"),
            (
                "printf %s <matches> > f; >/dev/null sh <f",
                "with sh, which",
            ),
            ("export <matches>", "with export, which"),
            (
                "case <family> in inet4) sh -c \"log '<matches>'\" ;; esac",
                "may run it",
            ),
            (
                "logger \"$(case x in x) ssh h <matches> ;; esac)\"",
                "may run it",
            ),
            (
                "printf %s <matches> >F; case x in x) sh <F;; esac",
                "with sh, which",
            ),
            ("U=<matches>; /etc/hooks/$U", "with /etc/hooks/$U, which"),
            ("U=<matches>; $DIR/$U", "with $DIR/$U, which"),
            ("/etc/hooks/<matches>", "with /etc/hooks/${WEIR_"),
            (
                "docker compose exec mail sh -c \"log '<matches>'\"",
                "may run it",
            ),
            (
                "nice -n $(sed 's/)//' F) ssh h \"log <matches>\"",
                "may run it",
            ),
            ("printf %s <matches> >F; $(cat F)", "with $( ), which"),
            (
                "printf %s <matches> >F; sed \"$(cat F)\" G",
                "with sed, which",
            ),
            ("logger -t x <matches> | sh", "with sh, which"),
            ("logger <matches> > >(sh)", "with sh, which"),
            ("logger; ssh h <matches>", "may run it"),
            ("logger \"$(ssh h <matches>)\"", "may run it"),
            ("{ ssh h <matches>; }", "may run it"),
            ("sudo -u logger ssh h <matches>", "may run it"),
            ("nice logger ssh; env -i ssh h <matches>", "may run it"),
            ("find . -exec ssh h <matches> \\;", "may run it"),
            (
                "printf <matches> >F; find F -exec ssh -F {} h \\;",
                "with ssh, which",
            ),
            ("awk \"$(printf %s '<matches>')\"", "may run it"),
            ("env $(printf %s <matches>)", "may run it"),
            ("sed -e 1d -e \"s/x/<matches>/\" F", "may run it"),
            ("$(echo <matches>)", "with $( ), which"),
            ("M=<matches>; `echo $M`", "with $( ), which"),
            ("M=<matches>; sudo -u x $M", "with $M, which"),
            ("M=<matches>; docker exec -i web ${M}", "with ${M}, which"),
            ("M=<matches>; chroot /srv $M", "with $M, which"),
            ("<matches>", "with ${WEIR_"),
            (
                "M=<matches>; awk \"BEGIN { x = \\\"$M\\\" }\"",
                "with awk, which",
            ),
            ("M=<matches>; sed -e \"s/x/$M/\" F", "with sed, which"),
            ("M=<matches>; sudo sed \"s/x/${M}/\" F", "with sed, which"),
            ("U=<matches>; echo $((U + 1))", "has $((, where"),
            ("[[ <matches> -eq 5 ]]", "with [[, which"),
            ("x <ip-host>", "does not keep"),
            (
                "x <F-A> <F-B> <F-C> <F-D> <F-E> <F-F> <F-G> <F-H> <F-A> <F-I>",
                "<F-I> is one",
            ),
        ] {
            let error = made(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            // What a filter captures is a client's text as well.
            if text.contains("<matches>") {
                let text = text.replace("<matches>", "<F-USER>");
                let error = made(&text).unwrap_err();
                assert!(error.contains(why), "{text}: {error}");
            }
        }
        for (key, why) in [
            ("actionstart", "when somebody is banned"),
            ("ignorecommand", "not keep"),
        ] {
            let about_ban = key == "ignorecommand";
            let error = script(key, &Text::parameter("x <F-USER>"), about_ban).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        // (Fail2ban's are in capitals.)
        assert_eq!(made("x '<F-user>'").unwrap().text, "x '<F-user>'");
        let made_of = made("x <F-USER> <F-PORT> <F-ALT-USER>").unwrap();
        assert_eq!(made_of.captured, ["user", "fport", "alt_user"]);
        let start = script("actionstart", &Text::parameter("x <ip>"), false).unwrap_err();
        assert!(start.message.contains("when somebody is banned"), "{start}");
        // What no configuration knows stays, as in Fail2ban.
        assert_eq!(made("x '<nobody>'").unwrap().text, "x '<nobody>'");
        assert!(made(&"x".repeat(MAX_SCRIPT + 1)).is_err());
    }
}

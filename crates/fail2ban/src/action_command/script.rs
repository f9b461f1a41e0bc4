//! A command as a script: its text is read as a shell reads it, so that each tag becomes a
//! variable in the quotes that its place asks for.

use std::fmt::Write as _;

use super::{
    runners::{names_interpreter, runner_in, runs_arguments},
    tag::{Tag, Value, WITHOUT_VALUE, captured_name},
    words::words_of,
};
use crate::{
    error::{Error, ErrorKind, Origin},
    text::Text,
};

/// A script may have this many bytes.
pub(super) const MAX_SCRIPT: usize = 64 * 1024;

/// A script may ask for so many values that filters capture.
const MAX_CAPTURED: usize = 8;

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

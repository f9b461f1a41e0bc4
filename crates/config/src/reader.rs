//! Reads a TOML document key by key and remembers where everything stood, so
//! that each mistake is named with its line, its key and what is allowed
//! there, and all of them at once. What the keys mean is for whoever asks for them.

mod syntax;

use std::{
    cell::RefCell,
    fmt,
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};
use weir_core::{
    policy::{format_duration, parse_duration},
    text::escape,
};

use crate::suggestion::{did_you_mean, suggestion};

/// One mistake in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file with the mistake.
    pub file: PathBuf,
    /// The line in that file, from 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.message),
        }
    }
}

/// All mistakes that were found, in the order of the file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// A value and the line it stands on.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value that was read.
    pub value: T,
    /// The line of the value, counted through all files from 1.
    pub line: usize,
}

/// A word, or else a list of words.
pub type WordOrList = Result<At<String>, At<Vec<At<String>>>>;

/// The files being read, and the mistakes found so far. Lines are counted
/// through all of them, the configuration file's first; whoever reads of a
/// mistake is told the file and its own line.
pub struct Document<'i> {
    files: &'i [Part],
    errors: RefCell<Vec<ConfigError>>,
    /// Mistakes after which a file says nothing that could be relied on.
    syntax_errors: RefCell<Vec<ConfigError>>,
    /// Tables of tables of which some could not be read.
    unread: RefCell<Vec<String>>,
}

/// A file: its name, its text, and the table that it stands for.
pub type Source = (PathBuf, String, Option<(&'static str, String)>);

/// A file of the configuration, with its place in the whole text.
pub struct Part {
    /// The path of the file.
    pub file: PathBuf,
    text: String,
    /// How many bytes the files before it have: what is found in it has its
    /// place among all of them.
    begins: usize,
    /// The number of its first line among all lines, from 1.
    line: usize,
    /// The table that it stands for, such as `["filter", "shop"]`.
    table: Option<(&'static str, String)>,
}

impl Part {
    /// All files, in order: each with its text and the table that it is.
    pub fn all(files: Vec<Source>) -> Vec<Self> {
        let (mut begins, mut line) = (0, 1);
        files
            .into_iter()
            .map(|(file, text, table)| {
                let (lines, bytes) = (text.matches('\n').count() + 1, text.len() + 1);
                let part = Self {
                    file,
                    text,
                    begins,
                    line,
                    table,
                };
                line += lines;
                begins += bytes;
                part
            })
            .collect()
    }
}

impl<'i> Document<'i> {
    /// Nothing of these has been read yet.
    pub fn new(files: &'i [Part]) -> Self {
        Self {
            files,
            errors: RefCell::default(),
            syntax_errors: RefCell::default(),
            unread: RefCell::default(),
        }
    }

    /// The top of the document. After a mistake of syntax nothing else is reported, because
    /// what a file says is known only once it can be parsed.
    pub fn root<'d>(&'d self) -> Section<'d, 'i> {
        let mut root = DeTable::new();
        for part in self.files {
            let (table, errors) = DeTable::parse_recoverable(&part.text);
            let found = errors.into_iter();
            let found = found.map(|e| (e.span().unwrap_or_default(), e.message().to_owned()));
            for error in syntax::mistakes(&part.text, found.collect()) {
                let at = error.at + part.begins;
                let into = match error.is_harmless {
                    true => &self.errors,
                    false => &self.syntax_errors,
                };
                into.borrow_mut()
                    .push(mistake(self.line(at..at), &error.message));
            }
            let mut table = moved_table(table.into_inner(), part.begins);
            if let Some((kind, name)) = &part.table {
                let at = part.begins..part.begins;
                let named = |name: String, table| {
                    let value = Spanned::new(at.clone(), DeValue::Table(table));
                    let mut outer = DeTable::new();
                    outer.insert(Spanned::new(at.clone(), name.into()), value);
                    outer
                };
                table = named((*kind).to_owned(), named(name.clone(), table));
            }
            self.merge(&mut root, table, "");
        }
        Section {
            document: self,
            name: String::new(),
            line: 1,
            table: root,
            known: Vec::new(),
            written: Vec::new(),
        }
    }

    /// Adds what another file says. Tables of tables, such as `[jail]`, may be
    /// spread over files; everything else is in one of them.
    fn merge(&self, into: &mut DeTable<'i>, from: DeTable<'i>, of: &str) {
        const SPREAD: [&str; 7] = [
            "jail",
            "filter",
            "list",
            "watch",
            "sink",
            "app",
            "app.rules",
        ];
        for (key, value) in from {
            let name = format!("{of}{}", key.get_ref());
            match into.get_mut(&**key.get_ref()) {
                None => {
                    into.insert(key, value);
                }
                Some(known) if SPREAD.contains(&name.as_str()) => {
                    let at = known.span();
                    match (known.get_mut(), value.into_inner()) {
                        (DeValue::Table(known), DeValue::Table(table)) => {
                            self.merge(known, table, &format!("{name}."));
                        }
                        _ => self.twice(key.span(), at, &name),
                    }
                }
                Some(known) => self.twice(key.span(), known.span(), &name),
            }
        }
    }

    fn twice(&self, again: Range<usize>, before: Range<usize>, name: &str) {
        let before = self.full_place(self.line(before));
        self.error(
            self.line(again),
            format!("{name} is in {before} already; allowed: in one of the files"),
        );
    }

    fn line(&self, span: Range<usize>) -> usize {
        let part = self.part(|part| part.begins <= span.start);
        let text = part.text.as_bytes();
        let before = &text[..(span.start - part.begins).min(text.len())];
        part.line + before.iter().filter(|b| **b == b'\n').count()
    }

    /// Whether a line is the head of a table, `[NAME]`.
    fn is_head(&self, line: usize) -> bool {
        let part = self.part(|part| part.line <= line);
        let text = part.text.lines().nth(line.saturating_sub(part.line));
        text.is_some_and(|text| text.trim_start().starts_with('['))
    }

    /// The last file of which this holds; it holds of the first.
    fn part(&self, holds: impl Fn(&Part) -> bool) -> &'i Part {
        let last = self.files.iter().rev().find(|part| holds(part));
        last.unwrap_or(&self.files[0])
    }

    /// The file of a line, and its number there.
    fn file_and_line(&self, line: usize) -> (&'i Path, usize) {
        let part = self.part(|part| part.line <= line);
        (&part.file, (line + 1).saturating_sub(part.line))
    }

    /// A line as people call it: with its file, where that is not the
    /// configuration file itself.
    pub fn place(&self, line: usize) -> String {
        match self.file_and_line(line) {
            (file, line) if file == self.files[0].file => format!("line {line}"),
            (file, line) => format!("{}:{line}", file.display()),
        }
    }

    /// A line with its file and its number there, for a message about another line.
    pub fn full_place(&self, line: usize) -> String {
        let (file, line) = self.file_and_line(line);
        format!("{}:{line}", file.display())
    }

    /// Notes a mistake; what a message quotes of the files is escaped, so that it is one line.
    pub fn error(&self, line: usize, message: impl Into<String>) {
        let error = mistake(line, &message.into());
        self.errors.borrow_mut().push(error);
    }

    /// The result, unless something was wrong.
    pub fn finish<T>(self, value: T) -> Result<T, ConfigErrors> {
        let mut errors = self.syntax_errors.take();
        if errors.is_empty() {
            errors = self.errors.take();
        }
        if errors.is_empty() {
            return Ok(value);
        }
        errors.sort_by_key(|e| e.line);
        errors.dedup();
        for error in &mut errors {
            let (file, line) = match error.line {
                0 => (&*self.files[0].file, 0),
                line => self.file_and_line(line),
            };
            (error.file, error.line) = (file.to_owned(), line);
        }
        Err(ConfigErrors(errors))
    }
}

fn mistake(line: usize, message: &str) -> ConfigError {
    ConfigError {
        file: PathBuf::new(),
        line,
        message: escape(message),
    }
}

/// A table whose text begins so many bytes further on.
fn moved_table(table: DeTable<'_>, by: usize) -> DeTable<'_> {
    let pairs = table.into_iter();
    pairs
        .map(|(key, value)| {
            let span = key.span();
            let key = Spanned::new(span.start + by..span.end + by, key.into_inner());
            (key, moved(value, by))
        })
        .collect()
}

fn moved(value: Spanned<DeValue<'_>>, by: usize) -> Spanned<DeValue<'_>> {
    let span = value.span();
    let value = match value.into_inner() {
        DeValue::Array(array) => {
            DeValue::Array(array.into_iter().map(|item| moved(item, by)).collect())
        }
        DeValue::Table(table) => DeValue::Table(moved_table(table, by)),
        other => other,
    };
    Spanned::new(span.start + by..span.end + by, value)
}

/// One table. Asking for a key makes it a known one; `finish` reports the rest.
pub struct Section<'d, 'i> {
    document: &'d Document<'i>,
    name: String,
    line: usize,
    table: DeTable<'i>,
    known: Vec<&'static str>,
    /// Of the known keys those that were there.
    written: Vec<&'static str>,
}

impl<'d, 'i> Section<'d, 'i> {
    /// The line of its head.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Notes a mistake.
    pub fn error(&self, line: usize, message: impl Into<String>) {
        self.document.error(line, message);
    }

    /// A line as people call it.
    pub fn place(&self, line: usize) -> String {
        self.document.place(line)
    }

    /// A line with its file and its number there, for a message about another line.
    pub fn full_place(&self, line: usize) -> String {
        self.document.full_place(line)
    }

    /// Where this key is, if it is there.
    pub fn line_of(&self, key: &str) -> Option<usize> {
        let value = self.table.get(key)?;
        Some(self.document.line(value.span()))
    }

    /// Where this key of a table in it is, if it is there.
    pub fn line_within(&self, table: &str, key: &str) -> Option<usize> {
        let value = self.table.get(table)?.get_ref().get(key)?;
        Some(self.document.line(value.span()))
    }

    fn of(&self) -> String {
        if self.name.is_empty() {
            String::new()
        } else {
            format!(" in [{}]", self.name)
        }
    }

    fn take(&mut self, key: &'static str) -> Option<At<Spanned<DeValue<'i>>>> {
        self.known.push(key);
        let value = self.table.remove(key)?;
        self.written.push(key);
        let line = self.document.line(value.span());
        Some(At { value, line })
    }

    fn mistyped(&self, line: usize, key: &str, found: &DeValue<'_>, allowed: &str) {
        self.error(
            line,
            format!(
                "{key}{} is {}; allowed: {allowed}",
                self.of(),
                describe(found)
            ),
        );
    }

    /// Was this key written, and not asked for yet?
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Was this key written, whatever its value is, and asked for by now or not?
    pub fn is_written(&self, key: &str) -> bool {
        self.has(key) || self.written.contains(&key)
    }

    /// Could some tables of this kind, such as `pool`, not be read? Then nobody knows
    /// which there are.
    pub fn is_unread(&self, kind: &str) -> bool {
        let unread = self.document.unread.borrow();
        unread.iter().any(|name| name == kind)
    }

    /// Is the key there, and a text? It stays unread.
    pub fn is_text(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|v| v.get_ref().is_str())
    }

    /// The text of a key, which stays unread.
    pub fn peek(&self, key: &str) -> Option<&str> {
        self.table.get(key)?.get_ref().as_str()
    }

    /// A text; a value of another type is a mistake that says what is `allowed`.
    pub fn string(&mut self, key: &'static str, allowed: &str) -> Option<At<String>> {
        let At { value, line } = self.take(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(At {
                value: text.clone().into_owned(),
                line,
            }),
            other => {
                self.mistyped(line, key, other, allowed);
                None
            }
        }
    }

    /// The value of a key that takes one of a few words.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<At<T>> {
        let allowed = choices
            .iter()
            .map(|(name, _)| format!("{name:?}"))
            .collect::<Vec<_>>()
            .join(", ");
        let At { value, line } = self.string(key, &allowed)?;
        match choices.iter().find(|(name, _)| *name == value) {
            Some((_, value)) => Some(At {
                value: *value,
                line,
            }),
            None => {
                self.error(
                    line,
                    format!(
                        "{key}{} is {value:?}{}; allowed: {allowed}",
                        self.of(),
                        did_you_mean(&value, choices.iter().map(|(name, _)| *name))
                    ),
                );
                None
            }
        }
    }

    /// `true` or `false`.
    pub fn boolean(&mut self, key: &'static str) -> Option<bool> {
        let At { value, line } = self.take(key)?;
        match value.get_ref() {
            DeValue::Boolean(value) => Some(*value),
            other => {
                self.mistyped(line, key, other, "true, false");
                None
            }
        }
    }

    /// A whole number of this range.
    pub fn integer(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<At<u64>> {
        let At { value, line } = self.take(key)?;
        let allowed = format!("a whole number {}-{}", range.start(), range.end());
        match value.get_ref() {
            DeValue::Integer(number) => {
                let read = u64::from_str_radix(number.as_str(), number.radix());
                match read {
                    Ok(value) if range.contains(&value) => return Some(At { value, line }),
                    _ => self.error(
                        line,
                        format!("{key}{} is {number}; allowed: {allowed}", self.of()),
                    ),
                }
            }
            other => self.mistyped(line, key, other, &allowed),
        }
        None
    }

    /// A number, whole or not.
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let At { value, line } = self.take(key)?;
        let text = match value.get_ref() {
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            _ => String::new(),
        };
        match text.parse() {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let allowed = format!("a number {}-{}", range.start(), range.end());
                self.mistyped(line, key, value.get_ref(), &allowed);
                None
            }
        }
    }

    /// A length of time, within `range`; a bare number means seconds.
    pub fn duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<At<Duration>> {
        match self.duration_or_forever(key, range, false)? {
            At {
                value: Some(value),
                line,
            } => Some(At { value, line }),
            At { value: None, .. } => None,
        }
    }

    /// A duration, or the word `"forever"` (`None`) where `forever` says so.
    pub fn duration_or_forever(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
        forever: bool,
    ) -> Option<At<Option<Duration>>> {
        let At { value, line } = self.take(key)?;
        let allowed = format!(
            "{}-{} such as {}, or seconds as a number{}",
            format_duration(*range.start()),
            format_duration(*range.end()),
            examples(&range),
            if forever { ", or \"forever\"" } else { "" }
        );
        let text = match value.get_ref() {
            DeValue::String(text) => text.clone().into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            other => {
                self.mistyped(line, key, other, &allowed);
                return None;
            }
        };
        if forever && matches!(text.as_str(), "forever" | "never") {
            return Some(At { value: None, line });
        }
        match parse_duration(&text) {
            Ok(value) if range.contains(&value) => Some(At {
                value: Some(value),
                line,
            }),
            _ => {
                self.error(
                    line,
                    format!("{key}{} is {text:?}; allowed: {allowed}", self.of()),
                );
                None
            }
        }
    }

    /// A list of texts, each with its line.
    pub fn list(&mut self, key: &'static str, allowed: &str) -> Option<At<Vec<At<String>>>> {
        let At { value, line } = self.take(key)?;
        let DeValue::Array(array) = value.get_ref() else {
            self.mistyped(line, key, value.get_ref(), allowed);
            return None;
        };
        let mut list = Vec::new();
        for item in array.iter() {
            let line = self.document.line(item.span());
            match item.get_ref() {
                DeValue::String(text) => list.push(At {
                    value: text.clone().into_owned(),
                    line,
                }),
                other => self.mistyped(line, key, other, allowed),
            }
        }
        Some(At { value: list, line })
    }

    /// A list of texts that read as `T`; the bad ones are noted and left out.
    pub fn parsed_list<T: FromStr<Err: fmt::Display>>(
        &mut self,
        key: &'static str,
        allowed: &str,
    ) -> Option<Vec<T>> {
        let list = self.list(key, allowed)?.value;
        let mut parsed = Vec::with_capacity(list.len());
        for At { value, line } in list {
            match value.parse() {
                Ok(value) => parsed.push(value),
                Err(error) => self.error(line, format!("{key}{}: {error}", self.of())),
            }
        }
        Some(parsed)
    }

    /// Either a text or a list of texts.
    pub fn word_or_list(&mut self, key: &'static str, allowed: &str) -> Option<WordOrList> {
        match self.is_text(key) {
            true => self.string(key, allowed).map(Ok),
            false => self.list(key, allowed).map(Err),
        }
    }

    /// A table below this one.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'d, 'i>> {
        let At { value, line } = self.take(key)?;
        self.table_of(key, value, line)
    }

    /// A table of tables, each with the name somebody gave it.
    pub fn named_sections(&mut self, key: &'static str) -> Vec<(String, Section<'d, 'i>)> {
        let Some(section) = self.section(key) else {
            return Vec::new();
        };
        let document = section.document;
        // Whoever forgets the name has the keys of a table where tables should be.
        let is_head = |name: &Spanned<_>| document.is_head(document.line(name.span()));
        let mut entries = section.table.iter();
        let is_nameless = document.is_head(section.line)
            && entries.any(|(name, value)| !value.get_ref().is_table() && !is_head(name));
        if is_nameless {
            document.error(
                section.line,
                format!(
                    "[{of}] has no name, and the keys below it belong to a table with one; write [{of}.NAME], with a name of your choice",
                    of = section.name
                ),
            );
            document.unread.borrow_mut().push(section.name.clone());
        }
        let mut named = Vec::new();
        for (name, value) in section.table {
            if is_nameless && !is_head(&name) {
                continue;
            }
            let line = document.line(name.span());
            let full = format!("{}.{}", section.name, name.get_ref());
            match value.into_inner() {
                DeValue::Table(table) => named.push((
                    name.into_inner().into_owned(),
                    Section {
                        document,
                        name: full,
                        line,
                        table,
                        known: Vec::new(),
                        written: Vec::new(),
                    },
                )),
                other => {
                    document.unread.borrow_mut().push(section.name.clone());
                    document.error(
                        line,
                        format!("{full} is {}; allowed: a table [{full}]", describe(&other)),
                    );
                }
            }
        }
        named.sort_by_key(|(_, section)| section.line);
        named
    }

    /// A list of texts, or of tables in their place; what is neither is noted and
    /// left out.
    pub fn texts_or_sections(
        &mut self,
        key: &'static str,
        allowed: &str,
    ) -> Option<Vec<Result<At<String>, Self>>> {
        let At { value, line } = self.take(key)?;
        let array = match value.into_inner() {
            DeValue::Array(array) => array,
            other => {
                self.mistyped(line, key, &other, allowed);
                return None;
            }
        };
        let mut items = Vec::new();
        for item in array {
            let line = self.document.line(item.span());
            if let DeValue::String(text) = item.get_ref() {
                let value = text.clone().into_owned();
                items.push(Ok(At { value, line }));
            } else if item.get_ref().is_table() {
                items.extend(self.table_of(key, item, line).map(Err));
            } else {
                self.mistyped(line, key, item.get_ref(), allowed);
            }
        }
        Some(items)
    }

    fn table_of(
        &self,
        key: &str,
        value: Spanned<DeValue<'i>>,
        line: usize,
    ) -> Option<Section<'d, 'i>> {
        let name = if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        };
        match value.into_inner() {
            DeValue::Table(table) => Some(Section {
                document: self.document,
                name,
                line,
                table,
                known: Vec::new(),
                written: Vec::new(),
            }),
            other => {
                self.mistyped(line, key, &other, &format!("a table [{name}]"));
                None
            }
        }
    }

    /// How many mistakes were found by now, in the whole document.
    pub fn mistakes(&self) -> usize {
        self.document.errors.borrow().len()
    }

    /// Reports the keys that nobody asked for.
    pub fn finish(self) {
        for (key, _) in &self.table {
            self.error(
                self.document.line(key.span()),
                format!(
                    "unknown key {:?}{}{}; allowed: {}",
                    key.get_ref(),
                    self.of(),
                    suggestion(
                        key.get_ref(),
                        &self.name,
                        &self.known,
                        &self.document.files[0].file
                    ),
                    self.known.join(", "),
                ),
            );
        }
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.chars().take(64).collect::<String>()),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(when) => when.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests;

/// Lengths of time within a range, for a message.
fn examples(range: &RangeInclusive<Duration>) -> String {
    const USUAL: [(&str, u64); 4] = [("90s", 90), ("10m", 600), ("1h", 3_600), ("7d", 604_800)];
    let within = |seconds: u64| range.contains(&Duration::from_secs(seconds));
    let fitting = USUAL.into_iter().filter(|(_, seconds)| within(*seconds));
    let quoted: Vec<_> = fitting.map(|(text, _)| format!("{text:?}")).collect();
    match quoted.is_empty() {
        true => "\"5s\"".to_owned(),
        false => quoted.join(", "),
    }
}

//! One file of sections and keys, read by the rules of the reader that Fail2ban uses:
//! keys are lower case, `=` and `:` both separate, deeper lines continue a value, `#` and
//! `;` at the beginning of a line and `;` after a blank begin a comment. What includes
//! and which files there are is in `includes`.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Origin},
    text::{Line, Location, Text},
};

/// The section that all others fall back to.
pub(crate) const DEFAULT: &str = "DEFAULT";

/// Bytes that a file may have.
const MAX_FILE: usize = 4 << 20;

/// The keys of a section.
pub(crate) type Section = BTreeMap<String, Text>;

/// The sections of one file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ini {
    pub defaults: Section,
    /// In the order of the file.
    pub sections: Vec<(String, Section)>,
}

/// What the reader is in while it goes through the lines.
struct Reader {
    ini: Ini,
    file: Arc<Path>,
    /// The place of the section in `ini.sections`; none is the one of defaults.
    section: Option<Option<usize>>,
    key: Option<String>,
    /// How far the line of the key stands in.
    indent: usize,
}

/// Reads a file.
///
/// # Errors
/// The first line that is no section, key or continuation, a section or key that is
/// there twice, and what is not UTF-8.
pub(crate) fn parse(bytes: &[u8], file: &Path) -> Result<Ini, Error> {
    let whole = |message: String| {
        let origin = Origin {
            file: file.to_owned(),
            line: 0,
        };
        Error::new(origin, ErrorKind::Syntax, message)
    };
    if bytes.len() > MAX_FILE {
        return Err(whole(format!("the file is larger than {MAX_FILE} bytes")));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let before = &bytes[..e.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let origin = Origin {
            file: file.to_owned(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
        };
        Error::new(origin, ErrorKind::Syntax, "the line is not UTF-8")
    })?;
    let mut reader = Reader {
        ini: Ini::default(),
        file: Arc::from(file),
        section: None,
        key: None,
        indent: 0,
    };
    // A file of another system, or of an editor that marks UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in (1..).zip(text.split('\n')) {
        reader.line(line.strip_suffix('\r').unwrap_or(line), number)?;
    }
    let mut ini = reader.ini;
    let sections = ini.sections.iter_mut().map(|(_, section)| section);
    for value in sections
        .chain([&mut ini.defaults])
        .flat_map(|section| section.values_mut())
    {
        while value.lines.len() > 1 && value.lines.last().is_some_and(|line| line.text.is_empty()) {
            value.lines.pop();
        }
    }
    Ok(ini)
}

/// What stands before a comment, and whether there is one.
fn before_comment(line: &str) -> (&str, bool) {
    if line.trim_start().starts_with(['#', ';']) {
        return ("", true);
    }
    let after_blank = |at: &usize| line[..*at].ends_with(char::is_whitespace);
    let comment = line.match_indices(';').map(|(at, _)| at).find(after_blank);
    match comment {
        Some(at) => (line[..at].trim(), true),
        None => (line.trim(), false),
    }
}

impl Reader {
    fn line(&mut self, line: &str, number: u32) -> Result<(), Error> {
        let place = Location {
            file: self.file.clone(),
            line: number,
        };
        let (value, has_comment) = before_comment(line);
        if value.is_empty() {
            if !has_comment && let Some(text) = self.current() {
                text.begin_line(place);
            }
            return Ok(());
        }
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        let continues = indent > self.indent;
        if continues && let Some(text) = self.current() {
            text.lines.push(Line {
                text: value.to_owned(),
                place,
            });
            return Ok(());
        }
        self.indent = indent;
        let name = value.strip_prefix('[').and_then(|rest| {
            let end = rest.rfind(']').filter(|end| *end > 0)?;
            Some(&rest[..end])
        });
        match name {
            Some(name) => self.begin_section(name, &place),
            None => self.begin_key(value, place),
        }
    }

    fn begin_section(&mut self, name: &str, place: &Location) -> Result<(), Error> {
        self.key = None;
        if name == DEFAULT {
            self.section = Some(None);
            return Ok(());
        }
        if self.ini.sections.iter().any(|(there, _)| there == name) {
            return Err(syntax(place, format!("section [{name}] is there twice")));
        }
        self.section = Some(Some(self.ini.sections.len()));
        self.ini.sections.push((name.to_owned(), Section::new()));
        Ok(())
    }

    fn begin_key(&mut self, value: &str, place: Location) -> Result<(), Error> {
        if self.section.is_none() {
            return Err(syntax(&place, "a key stands before the first [section]"));
        }
        let Some(at) = value.find(['=', ':']) else {
            let message = format!(
                "expected key = value, [section] or a comment: {}",
                clip(value)
            );
            return Err(syntax(&place, message));
        };
        let mut key = value[..at].trim_end().to_lowercase();
        let mut text = value[at + 1..].trim();
        // `blocktype?family=inet6 = …`: the condition has a separator of its own.
        if let Some((_, condition)) = key.split_once('?')
            && is_word(condition)
            && let Some((of, rest)) = text.split_once('=')
            && is_word(of.trim())
        {
            key = format!("{key}={}", of.trim());
            text = rest.trim();
        }
        if key.is_empty() {
            return Err(syntax(&place, "there is no key before the ="));
        }
        self.key = None;
        if self.section_mut().contains_key(&key) {
            return Err(syntax(
                &place,
                format!("key {key} is there twice in its section"),
            ));
        }
        self.section_mut()
            .insert(key.clone(), Text::new(text, place));
        self.key = Some(key);
        Ok(())
    }

    fn section_mut(&mut self) -> &mut Section {
        match self.section {
            Some(Some(at)) => &mut self.ini.sections[at].1,
            _ => &mut self.ini.defaults,
        }
    }

    /// The value that a deeper line would continue.
    fn current(&mut self) -> Option<&mut Text> {
        let key = self.key.clone()?;
        self.section_mut().get_mut(&key)
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn syntax(place: &Location, message: impl Into<String>) -> Error {
    Error::new(place.origin(), ErrorKind::Syntax, message)
}

/// As much of a text as a message may quote, control characters escaped.
pub(crate) fn clip(text: &str) -> String {
    const MOST: usize = 80;
    let mut clipped = String::new();
    for c in text.chars().take(MOST) {
        match c.is_control() {
            true => clipped.extend(c.escape_default()),
            false => clipped.push(c),
        }
    }
    if text.chars().nth(MOST).is_some() {
        clipped.push('…');
    }
    clipped
}

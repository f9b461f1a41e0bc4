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

/// A mistake, and the section that it is in; none: before the first.
pub(crate) type Broken = (Option<String>, Error);

/// Reads a file. A mistake (a line that is no section, key or continuation, a section or
/// key that is there twice, what is not UTF-8) is one of its section: what stands in the
/// others counts. Of a section the first mistake is told.
///
/// # Errors
/// The file is too large.
pub(crate) fn parse(bytes: &[u8], file: &Path) -> Result<(Ini, Vec<Broken>), Error> {
    if bytes.len() > MAX_FILE {
        let origin = Origin {
            file: file.to_owned(),
            line: 0,
        };
        let message = format!("the file is larger than {MAX_FILE} bytes");
        return Err(Error::new(origin, ErrorKind::Syntax, message));
    }
    let mut reader = Reader {
        ini: Ini::default(),
        file: Arc::from(file),
        section: None,
        key: None,
        indent: 0,
    };
    let mut broken: Vec<Broken> = Vec::new();
    // The rest of a broken section is passed over.
    let mut is_broken = false;
    // A file of another system, or of an editor that marks UTF-8.
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let begins_section = line.starts_with(b"[");
        if is_broken && !begins_section {
            continue;
        }
        let read = match std::str::from_utf8(line) {
            Ok(line) => reader.line(line, number),
            Err(_) => {
                let place = Location {
                    file: reader.file.clone(),
                    line: number,
                };
                Err(syntax(&place, "the line is not UTF-8"))
            }
        };
        is_broken = false;
        if let Err(error) = read {
            is_broken = true;
            let section = match begins_section {
                true => Some(name_in(line)),
                false => reader.section_name(),
            };
            if !broken.iter().any(|(known, _)| *known == section) {
                broken.push((section, error));
            }
        }
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
    Ok((ini, broken))
}

/// As much of a section's name as a line that begins one wrongly tells.
fn name_in(line: &[u8]) -> String {
    const LONGEST: usize = 64;
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let name = line[1..].iter().take_while(is_name).take(LONGEST);
    let name: String = name.copied().map(char::from).collect();
    match name.is_empty() {
        true => "?".to_owned(),
        false => name,
    }
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
            None if value.starts_with('[') && !value.contains(['=', ':']) => {
                let message = format!("the [section] is not closed: {}", clip(value));
                Err(syntax(&place, message))
            }
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

    fn section_name(&self) -> Option<String> {
        Some(match self.section? {
            None => DEFAULT.to_owned(),
            Some(at) => self.ini.sections[at].0.clone(),
        })
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

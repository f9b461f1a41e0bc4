//! The head of a line as a filter declares it, for programs that write files of
//! their own in no form that `head` knows:
//!
//! ```text
//! head = '\[<time>\] <tag>\[<pid>\]: '       [2026-11-22 10:11:12] shopd[77]: message
//! head = '<time> \[<word>\] <number>#<number>: '  with time_format = "%Y/%m/%d %H:%M:%S"
//! ```
//!
//! It is read from the start of the line, each field up to the text behind it, so
//! that it costs time linear in its own length and nothing of the message can be
//! taken for a part of it.

use std::fmt;

use super::{
    time_format::{TimeFormat, TimeFormatError},
    timestamp::{self, Stamp},
};

/// A head that was read.
#[derive(Clone, Debug)]
pub(super) struct DeclaredHead {
    parts: Vec<Part>,
    time_format: Option<TimeFormat>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<[u8]>),
    /// Taken where all of it fits; begins with text.
    Optional(Vec<Part>),
    /// A field, with the texts that end it.
    Field(Field, Vec<Box<[u8]>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Time,
    Host,
    Tag,
    Pid,
    Word,
    Number,
}

const FIELDS: [(&str, Field); 6] = [
    ("time", Field::Time),
    ("host", Field::Host),
    ("tag", Field::Tag),
    ("pid", Field::Pid),
    ("word", Field::Word),
    ("number", Field::Number),
];

/// Why a text is not a head.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadError {
    /// `<name>` is not a field of a head.
    UnknownField(String),
    /// A bracket is not closed, or closed without being open, or in another.
    Unbalanced(char),
    /// A field with no text behind it that would end it.
    NoEnd(&'static str),
    /// One of time, host, tag and pid is there twice.
    Twice(&'static str),
    /// An optional part that does not begin with text.
    Optional,
    /// An empty head.
    Empty,
    /// Longer than 256 bytes.
    TooLong,
    /// `identifiers`, and no `<tag>` that could be one.
    NoTag,
    /// A key that is about another kind of head.
    NotWith(&'static str),
    /// A form of time stamps, and no `<time>`.
    NoTime,
    /// The form of its time stamps is wrong.
    TimeFormat(TimeFormatError),
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField(name) => write!(
                f,
                "head: <{}> is not a field; allowed: <time>, <host>, <tag>, <pid>, <word>, <number>, [optional], or \\< for a literal <",
                name.escape_debug()
            ),
            Self::Unbalanced(c) => write!(
                f,
                "head: {c:?} without its partner, or in another optional part: write \\{c} for a literal one"
            ),
            Self::NoEnd(name) => write!(
                f,
                "head: nothing says where <{name}> ends; allowed: text behind it, such as a blank or \": \""
            ),
            Self::Twice(name) => write!(f, "head: more than one <{name}>; allowed: <word> for the other"),
            Self::Optional => f.write_str("head: an optional part begins with a field; allowed: text first, as in [\\[<pid>\\]]"),
            Self::Empty => f.write_str("head: there is nothing in it; allowed: what stands before a message, such as '<time> <tag>: '"),
            Self::TooLong => f.write_str("head: it is longer than 256 bytes"),
            Self::NoTag => f.write_str(
                "head: no <tag> in it, and identifiers are tags; allowed: a <tag> outside optional parts, or no identifiers",
            ),
            Self::NotWith(key) => write!(f, "{key} is about a syslog daemon's head; allowed: no {key} with head"),
            Self::NoTime => f.write_str("time_format: it is for the <time> of head; allowed: with a head that has one"),
            Self::TimeFormat(error) => write!(f, "time_format: {error}"),
        }
    }
}

impl std::error::Error for HeadError {}

/// What the head of a line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeclaredParts<'a> {
    pub stamp: Option<Stamp<'a>>,
    pub host: Option<&'a [u8]>,
    pub tag: Option<&'a [u8]>,
    /// 0: the head has none.
    pub pid: u32,
    pub message: &'a [u8],
}

/// How much of a line is the head, and what stood in the way of the rest.
pub(super) struct HeadMiss<'h> {
    pub read: usize,
    wanted: &'h Part,
}

impl HeadMiss<'_> {
    pub fn wanted(&self) -> String {
        match self.wanted {
            Part::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
            Part::Optional(_) => "an optional part".to_owned(),
            Part::Field(field, _) => format!("<{}>", name_of(*field)),
        }
    }
}

fn name_of(field: Field) -> &'static str {
    let known = FIELDS.iter().find(|(_, known)| *known == field);
    known.expect("each has a name").0
}

/// No word of a head is longer (RFC 5424: a host's name, 255).
const MAX_WORD: usize = 256;

impl DeclaredHead {
    /// Reads a head as it is written, and the form of its time stamps if they have
    /// none of the known ones.
    pub fn parse(text: &str, time_format: Option<&str>) -> Result<Self, HeadError> {
        if text.len() > 256 {
            return Err(HeadError::TooLong);
        }
        let mut parts = sequence(&mut text.chars(), false)?;
        if parts.is_empty() {
            return Err(HeadError::Empty);
        }
        end_fields(&mut parts, &[])?;
        let head = Self {
            parts,
            time_format: match time_format {
                None => None,
                Some(text) => Some(TimeFormat::parse(text).map_err(HeadError::TimeFormat)?),
            },
        };
        for field in [Field::Time, Field::Host, Field::Tag, Field::Pid] {
            if head.fields().filter(|known| *known == field).count() > 1 {
                return Err(HeadError::Twice(name_of(field)));
            }
        }
        match time_format.is_some() && !head.fields().any(|field| field == Field::Time) {
            true => Err(HeadError::NoTime),
            false => Ok(head),
        }
    }

    fn fields(&self) -> impl Iterator<Item = Field> {
        let inner = |part: &Part| match part {
            Part::Optional(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        self.parts
            .iter()
            .flat_map(inner)
            .filter_map(|part| match part {
                Part::Field(field, _) => Some(field),
                _ => None,
            })
    }

    /// Has every line with this head a tag?
    pub fn has_tag(&self) -> bool {
        let is_tag = |part: &Part| matches!(part, Part::Field(Field::Tag, _));
        self.parts.iter().any(is_tag)
    }

    /// Reads the head of a line.
    pub fn read<'a>(&self, line: &'a [u8]) -> Result<DeclaredParts<'a>, HeadMiss<'_>> {
        let mut found = DeclaredParts::default();
        let mut rest = line;
        for part in &self.parts {
            rest = self.read_part(part, rest, &mut found).ok_or(HeadMiss {
                read: line.len() - rest.len(),
                wanted: part,
            })?;
        }
        found.message = rest;
        Ok(found)
    }

    fn read_part<'a>(
        &self,
        part: &Part,
        text: &'a [u8],
        found: &mut DeclaredParts<'a>,
    ) -> Option<&'a [u8]> {
        match part {
            Part::Text(literal) => text.strip_prefix(&**literal),
            Part::Field(field, ends) => self.read_field(*field, ends, text, found),
            Part::Optional(parts) => {
                let mut with = *found;
                let mut rest = text;
                for part in parts {
                    match self.read_part(part, rest, &mut with) {
                        Some(behind) => rest = behind,
                        None => return Some(text),
                    }
                }
                *found = with;
                Some(rest)
            }
        }
    }

    fn read_field<'a>(
        &self,
        field: Field,
        ends: &[Box<[u8]>],
        text: &'a [u8],
        found: &mut DeclaredParts<'a>,
    ) -> Option<&'a [u8]> {
        let ends_at = |rest: &[u8]| ends.iter().any(|end| rest.starts_with(end));
        if field == Field::Time {
            let (stamp, rest) = match &self.time_format {
                Some(format) => {
                    let (fields, end) = format.read(text)?;
                    (Stamp::Declared(fields), &text[end..])
                }
                None => timestamp::split_before(text, ends_at)?,
            };
            found.stamp = Some(stamp);
            return Some(rest);
        }
        let is_end = |at: &usize| text[*at] == b' ' || ends_at(&text[*at..]);
        let end = (0..text.len().min(MAX_WORD)).find(is_end)?;
        let (word, rest) = text.split_at_checked(end).filter(|_| end > 0)?;
        let number = || {
            let text = std::str::from_utf8(word).ok()?;
            let is_number = text.len() <= 20 && text.bytes().all(|b| b.is_ascii_digit());
            is_number.then_some(text)
        };
        match field {
            Field::Host => found.host = Some(word),
            Field::Tag => found.tag = Some(word),
            Field::Pid => found.pid = number()?.parse().ok()?,
            Field::Number => drop(number()?),
            Field::Word | Field::Time => {}
        }
        Some(rest)
    }
}

/// Reads parts up to the end, or up to the `]` of an optional part.
fn sequence(chars: &mut std::str::Chars<'_>, inside: bool) -> Result<Vec<Part>, HeadError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let flush = |literal: &mut String, parts: &mut Vec<Part>| {
        if !literal.is_empty() {
            parts.push(Part::Text(literal.as_bytes().into()));
            literal.clear();
        }
    };
    loop {
        match chars.next() {
            None if inside => return Err(HeadError::Unbalanced('[')),
            None => break,
            Some('\\') => literal.push(chars.next().ok_or(HeadError::Unbalanced('\\'))?),
            Some(']') if inside => break,
            Some('[') if !inside => {
                flush(&mut literal, &mut parts);
                let part = sequence(chars, true)?;
                if !matches!(part.first(), Some(Part::Text(_))) {
                    return Err(HeadError::Optional);
                }
                parts.push(Part::Optional(part));
            }
            Some('<') => {
                flush(&mut literal, &mut parts);
                let mut name = String::new();
                loop {
                    match chars.next().ok_or(HeadError::Unbalanced('<'))? {
                        '>' => break,
                        c => name.push(c),
                    }
                }
                match FIELDS.iter().find(|(known, _)| *known == name) {
                    Some((_, field)) => parts.push(Part::Field(*field, Vec::new())),
                    None => return Err(HeadError::UnknownField(name)),
                }
            }
            Some(c @ ('[' | ']' | '>')) => return Err(HeadError::Unbalanced(c)),
            Some(c) => literal.push(c),
        }
    }
    flush(&mut literal, &mut parts);
    Ok(parts)
}

/// Gives each field the texts that can follow it. `behind`: those that can follow
/// the parts.
fn end_fields(parts: &mut [Part], behind: &[Box<[u8]>]) -> Result<(), HeadError> {
    // A blank ends a field whatever comes behind it.
    let start_of = |text: &[u8]| match text {
        [b' ', ..] => (*b" ").into(),
        _ => text.into(),
    };
    let mut following = behind.to_vec();
    for part in parts.iter_mut().rev() {
        match part {
            Part::Text(text) => following = vec![start_of(text)],
            Part::Optional(inner) => {
                end_fields(inner, &following)?;
                if let Some(Part::Text(text)) = inner.first() {
                    following.push(start_of(text));
                }
            }
            Part::Field(field, ends) => {
                if following.is_empty() {
                    return Err(HeadError::NoEnd(name_of(*field)));
                }
                // Nothing ends the field before it.
                *ends = std::mem::take(&mut following);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(head: &str, format: Option<&str>, line: &'a str) -> Option<DeclaredParts<'a>> {
        let head = DeclaredHead::parse(head, format).unwrap_or_else(|e| panic!("{head}: {e}"));
        head.read(line.as_bytes()).ok()
    }

    #[test]
    fn heads_are_read_as_declared() {
        let nginx = Some("%Y/%m/%d %H:%M:%S");
        let apache = Some("%a %b %d %H:%M:%S.%f %Y");
        for (head, format, line, (host, tag, pid), message) in [
            (
                r"\[<time>\] <tag>: ",
                None,
                "[2026-11-22 10:11:12] app: hello: x",
                ("", "app", 0),
                "hello: x",
            ),
            (
                r"\[<time>\] <tag>: ",
                None,
                "[2026-11-22T10:11:12.5+01:00] app: y",
                ("", "app", 0),
                "y",
            ),
            (
                r"<time> <host> <tag>[\[<pid>\]]: ",
                None,
                "Nov 22 10:11:12 h app[77]: z",
                ("h", "app", 77),
                "z",
            ),
            (
                r"<time> <host> <tag>[\[<pid>\]]: ",
                None,
                "Nov 22 10:11:12 h app: z",
                ("h", "app", 0),
                "z",
            ),
            (
                r"<time> \[<word>\] <pid>#<number>: ",
                nginx,
                "2026/11/22 10:11:12 [error] 77#8: *1 m",
                ("", "", 77),
                "*1 m",
            ),
            (
                r"\[<time>\] \[<tag>:<word>\] \[pid <pid>[:tid <number>]\] ",
                apache,
                "[Sun Nov 22 10:11:12.123456 2026] [auth_basic:error] [pid 77:tid 1234] [client 192.0.2.7:5] m",
                ("", "auth_basic", 77),
                "[client 192.0.2.7:5] m",
            ),
            (
                r"\[<time>\] \[<tag>:<word>\] \[pid <pid>[:tid <number>]\] ",
                apache,
                "[Sun Nov 22 10:11:12.1 2026] [core:error] [pid 77] m",
                ("", "core", 77),
                "m",
            ),
            // A container runtime's: stamp, stream, F for a whole line.
            (
                r"<time> <word> F ",
                None,
                "2026-11-22T10:11:12.123456789Z stdout F m",
                ("", "", 0),
                "m",
            ),
            (
                r"<time>,<number> - <tag> - ",
                None,
                "2026-11-22 10:11:12,123 - auth - m",
                ("", "auth", 0),
                "m",
            ),
            // A field ends where all of the text behind it begins.
            (
                "<time> <host>: ",
                None,
                "2026-11-22T10:11:12Z 192.0.2.7: m: x",
                ("192.0.2.7", "", 0),
                "m: x",
            ),
            (
                "<time> <host>: ",
                None,
                "2026-11-22T10:11:12Z 2001:db8::9: m: x",
                ("2001:db8::9", "", 0),
                "m: x",
            ),
            (
                "<time>: <tag>: ",
                None,
                "2026-11-22T10:11:12+01:00: a::b: m",
                ("", "a::b", 0),
                "m",
            ),
            (
                r"\<<number>\><host>/<tag>: ",
                None,
                "<38>fe80::1/app: m",
                ("fe80::1", "app", 0),
                "m",
            ),
        ] {
            let found = read(head, format, line).unwrap_or_else(|| panic!("{head}: {line}"));
            let text = |bytes: Option<&[u8]>| {
                String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap()
            };
            assert_eq!(
                (&*text(found.host), &*text(found.tag), found.pid),
                (host, tag, pid),
                "{line}"
            );
            assert_eq!(found.message, message.as_bytes(), "{line}");
            assert_eq!(found.stamp.is_some(), head.contains("<time>"), "{line}");
            // Of a line that ends within its head there is none.
            for cut in 0..line.len() - message.len() {
                assert_eq!(
                    read(head, format, &line[..cut]),
                    None,
                    "{line} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn a_line_without_the_head_has_none() {
        for (head, line) in [
            (r"\[<time>\] <tag>: ", "2026-11-22 10:11:12 app: x"),
            (r"\[<time>\] <tag>: ", "[2026-11-22 10:11:12] a b: x"),
            (r"\[<time>\] <tag>: ", "[2026-11-22 10:11:12] : x"),
            (r"<time> <tag>\[<pid>\]: ", "Nov 22 10:11:12 app[x]: x"),
            (
                r"<time> <tag>\[<pid>\]: ",
                "Nov 22 10:11:12 app[99999999999]: x",
            ),
            (r"<host> <number>: ", "h 123456789012345678901: x"),
            (r"<tag>: ", ""),
        ] {
            assert_eq!(read(head, None, line), None, "{head}: {line}");
        }
        let long = format!("{}: x", "a".repeat(MAX_WORD));
        assert_eq!(read("<tag>: ", None, &long), None);
        let head = DeclaredHead::parse(r"\[<time>\] <tag>: ", None).unwrap();
        let miss = head.read(b"[2026-11-22 10:11:12] a b: x").unwrap_err();
        assert_eq!((miss.read, &*miss.wanted()), (23, "\": \""));
        let miss = head.read(b"[22.11.2026] a: x").unwrap_err();
        assert_eq!((miss.read, &*miss.wanted()), (1, "<time>"));
    }

    #[test]
    fn what_is_no_head_is_refused() {
        for (head, format, said) in [
            (
                "<time> <addr> ",
                None,
                "<addr> is not a field; allowed: <time>",
            ),
            ("<time> <ho", None, "'<' without its partner"),
            ("[<time>] ", None, "an optional part begins with a field"),
            ("a [b [c] ", None, "'[' without its partner"),
            ("a] ", None, "']' without its partner"),
            ("a > ", None, "'>' without its partner"),
            ("[a<word>", None, "'[' without its partner"),
            ("a\\", None, "'\\\\' without its partner"),
            ("<time> <tag>", None, "where <tag> ends"),
            ("<host><tag>: ", None, "where <host> ends"),
            ("<time>[ <tag>]", None, "where <tag> ends"),
            ("<tag> <tag>: ", None, "more than one <tag>"),
            ("<time>[ x <time>] ", None, "more than one <time>"),
            ("", None, "there is nothing in it"),
            ("<tag>: ", Some("%s"), "time_format: it is for the <time>"),
            ("<time> ", Some("%H"), "time_format: it names no time"),
            (&"x".repeat(257), None, "longer than 256 bytes"),
        ] {
            let error = DeclaredHead::parse(head, format).map(drop);
            let error = error.expect_err(head).to_string();
            assert!(error.contains(said), "{head}: {error}");
        }
    }
}

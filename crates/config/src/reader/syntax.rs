//! What is wrong with a file that is no TOML: the first mistake alone, because the parser
//! finds others in what the first one has disarranged; where it was made, and what to write.
//! Keys and tables that are there twice disarrange nothing, and each is named.

use std::ops::Range;

/// A mistake of syntax.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Its place in the text, in bytes.
    pub at: usize,
    pub message: String,
    /// Whether the rest of the file says what it seems to say.
    pub is_harmless: bool,
}

/// Mistakes that the parser found in `text`: each with its place and the parser's words.
pub(super) fn mistakes(text: &str, mut found: Vec<(Range<usize>, String)>) -> Vec<SyntaxError> {
    found.sort_by_key(|(span, _)| span.start);
    let mut told: Vec<SyntaxError> = Vec::new();
    // The end of a table that is there twice: its keys are, too.
    let mut twice_until = 0;
    for (span, words) in found {
        if !words.starts_with("duplicate key") {
            let (at, message) = explained(text, &span, &words);
            told.retain(|before| before.at < at);
            told.push(SyntaxError {
                at,
                message,
                is_harmless: false,
            });
            break;
        }
        if span.start < twice_until {
            continue;
        }
        let line = line_at(text, span.start);
        let name = match line.trim_start().starts_with('[') {
            true => {
                twice_until = next_header(text, span.start);
                without_comment(line)
            }
            false => text.get(span.clone()).unwrap_or_default(),
        };
        told.push(SyntaxError {
            at: span.start,
            message: format!("{} is there already; allowed: once", short(name)),
            is_harmless: true,
        });
    }
    told
}

/// Where a mistake was made, and what to write.
fn explained(text: &str, span: &Range<usize>, words: &str) -> (usize, String) {
    let at = span.start.min(text.len());
    let line = line_at(text, at);
    // What the list or table of an earlier line lacks is found where something else begins.
    let begin = line_start(text, at);
    if begins_anew(line)
        && let Some((place, bracket)) = open_brackets(text, begin).last()
    {
        return (*place, unclosed(*bracket));
    }
    let starts = |beginning: &str| words.starts_with(beginning);
    if starts("invalid inline table element") || starts("unclosed inline table") {
        let open = open_brackets(text, at);
        let table = open.iter().rfind(|(_, bracket)| *bracket == b'{');
        return (table.map_or(at, |(place, _)| *place), unclosed(b'{'));
    }
    if starts("unclosed array") {
        let open = open_brackets(text, text.len());
        let place = open.first().map_or(at, |(place, _)| *place);
        return (place, unclosed(b'['));
    }
    let value = value_at(text, at);
    let message = if value.contains(['“', '”', '„', '‘', '’']) {
        format!("{value} has quotation marks of typography; write \" in their place")
    } else if value.is_empty()
        && (starts("string values must be quoted") || is_about_numbers(words))
    {
        "a value is missing; write KEY = VALUE".to_owned()
    } else if starts("string values must be quoted") {
        let there = short(text.get(span.clone()).unwrap_or_default());
        format!("{there} is no value; allowed: \"{there}\", a number, true, false")
    } else if starts("invalid boolean") && is_like_boolean(value) {
        format!("{value} is no value; allowed: true, false")
    } else if starts("invalid basic string") || starts("invalid literal string") {
        "a text ends in its line; write \" before it and behind it".to_owned()
    } else if is_about_numbers(words) || starts("invalid boolean") {
        let bare = value.trim_matches('"');
        format!("{value} is no value; allowed: \"{bare}\" if it is a text, a number")
    } else if starts("unclosed table") || starts("unclosed array of tables") {
        format!(
            "{} is no head of a table; write [NAME], with \" around a name that has other signs than letters, digits, - and _",
            short(without_comment(line))
        )
    } else if starts("key with no value") || starts("invalid unquoted key") {
        format!(
            "{} is no setting; write KEY = VALUE, a table as [NAME], a comment behind #",
            short(line.trim())
        )
    } else if starts("missing comma") {
        "no comma between two parts of a list or table; write [A, B], { A = 1, B = 2 }".to_owned()
    } else if starts("unexpected key or value") || starts("extra `=`") {
        format!(
            "{} is more than a setting; write one KEY = VALUE in a line, without a sign behind it",
            short(line.trim())
        )
    } else {
        words.replace('\n', ", ")
    };
    (at, message)
}

fn unclosed(bracket: u8) -> String {
    match bracket {
        b'{' => "the table that begins here with { is not closed; write } at its end".to_owned(),
        _ => "the list that begins here with [ is not closed; write ] at its end".to_owned(),
    }
}

fn is_like_boolean(value: &str) -> bool {
    ["true", "false"]
        .iter()
        .any(|word| value.eq_ignore_ascii_case(word))
}

fn is_about_numbers(words: &str) -> bool {
    [
        "float", "integer", "datetime", "date", "time", "offset", "number", "value",
    ]
    .iter()
    .any(|kind| words.starts_with(&format!("invalid {kind}")))
}

fn line_start(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    before
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |newline| newline + 1)
}

fn line_at(text: &str, at: usize) -> &str {
    text[line_start(text, at)..]
        .lines()
        .next()
        .unwrap_or_default()
}

/// The place of the next head of a table behind this line, or the end.
fn next_header(text: &str, at: usize) -> usize {
    let mut place = line_start(text, at);
    for (index, line) in text[place..].split_inclusive('\n').enumerate() {
        if index > 0 && line.trim_start().starts_with('[') {
            return place;
        }
        place += line.len();
    }
    text.len()
}

/// Whether a line can only be a setting or the head of a table, whatever is open before it.
fn begins_anew(line: &str) -> bool {
    let line = line.trim();
    let is_key = |key: &str| {
        let mut bytes = key.trim_end().bytes().peekable();
        bytes.peek().is_some()
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-.\"".contains(&byte))
    };
    let is_setting = line.split_once('=').is_some_and(|(key, _)| is_key(key));
    let head = line.trim_start_matches('[');
    let is_head = head.len() < line.len()
        && head.split_once(']').is_some_and(|(name, _)| {
            is_key(name) && name.starts_with(|first: char| first.is_ascii_lowercase())
        });
    is_setting || is_head
}

/// A value as it was typed, from its beginning to what follows it.
fn value_at(text: &str, at: usize) -> &str {
    let is_end = |c: char| c.is_whitespace() || ",[]{}#=".contains(c);
    let line = line_at(text, at);
    let within = at - line_start(text, at);
    let before = line.get(..within).unwrap_or(line);
    let begin = before.rfind(is_end).map_or(0, |place| {
        place + before[place..].chars().next().map_or(1, char::len_utf8)
    });
    let rest = &line[begin..];
    short(rest.split(is_end).next().unwrap_or_default())
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

/// At most 64 signs of it.
fn short(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(64)
        .map_or(text.len(), |(end, _)| end);
    &text[..end]
}

/// Brackets of values that are open at this place, the outermost first.
fn open_brackets(text: &str, until: usize) -> Vec<(usize, u8)> {
    let bytes = &text.as_bytes()[..until.min(text.len())];
    let mut open: Vec<(usize, u8)> = Vec::new();
    let (mut at, mut is_line_empty) = (0, true);
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let to_line_end = || rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        match byte {
            b'#' => at += to_line_end(),
            b'[' if open.is_empty() && is_line_empty => at += to_line_end(),
            b'"' | b'\'' => {
                at += text_length(rest);
                is_line_empty = false;
            }
            _ => {
                match byte {
                    b'[' | b'{' => open.push((at, *byte)),
                    b']' | b'}' => drop(open.pop()),
                    _ => (),
                }
                is_line_empty = *byte == b'\n' || is_line_empty && byte.is_ascii_whitespace();
                at += 1;
            }
        }
    }
    open
}

/// The length of the text at the beginning, with its quotation marks; one that is not closed
/// ends with its line.
fn text_length(bytes: &[u8]) -> usize {
    let mark = bytes[0];
    let is_long = bytes.starts_with(&[mark; 3]);
    let width = if is_long { 3 } else { 1 };
    let mut at = width;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if mark == b'"' => at += 1,
            b'\n' if !is_long => return at,
            byte if byte == mark && (!is_long || bytes[at..].starts_with(&[mark; 3])) => {
                return at + width;
            }
            _ => (),
        }
        at += 1;
    }
    bytes.len()
}

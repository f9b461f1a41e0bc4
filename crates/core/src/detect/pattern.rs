//! One pattern of a filter: fixed text with fields, matched in linear time
//! without backtracking. What stands before the free text of a message is read
//! from its start and what stands behind it from its end, so free text (a user
//! name that an attacker chose) can never take the place of the server's own
//! fields. Which patterns exist and what a match counts is not decided here.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// Fixed text, fields `<name>`, optional parts `[…]` and choices `(a|b)`;
/// a backslash takes the next character literally.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    before: Vec<Element>,
    free: Option<Free>,
    behind: Vec<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Element {
    Literal(Box<[u8]>),
    /// Longest first; the first that fits is taken.
    Choice(Vec<Box<[u8]>>),
    /// Taken whenever it fits.
    Optional(Vec<Element>),
    /// `before`/`behind`: a neighbouring literal byte that could also be part
    /// of an address, such as the colon of `ADDR:PORT`.
    Addr {
        before: Option<u8>,
        behind: Option<u8>,
    },
    Port,
    Number,
    Word,
    UserWord,
    /// Only while parsing: split off by `Pattern::parse`.
    Free(Free),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Free {
    User,
    Text,
}

/// What a match found; texts are parts of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captures<'a> {
    pub addr: Option<IpAddr>,
    pub port: Option<u16>,
    pub user: Option<&'a [u8]>,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatternError {
    /// `<name>` is not a field.
    UnknownField(String),
    /// A bracket is not closed, or closed without being open.
    Unbalanced(char),
    /// A bracket or choice inside a choice, or parts nested too deep.
    Nested,
    /// An optional part or a choice without text.
    Empty,
    /// No `<addr>`, or only in an optional part.
    NoAddr,
    /// More than one `<addr>`.
    TwoAddrs,
    /// More than one free text.
    TwoFree,
    /// A client's text on both sides of `<addr>`.
    ClientTextAround {
        /// The field before the address, such as `<user>`.
        before: &'static str,
        /// The field behind it.
        behind: &'static str,
    },
    /// A free text inside an optional part.
    FreeInOptional,
    /// Part of a regular expression, which no line has as it stands.
    Regex(String),
    /// Longer than 1024 bytes.
    TooLong,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField(name) => write!(
                f,
                "<{}> is not a field: write <addr>, <port>, <user>, <user:word>, <text>, <word> or <number>, or \\< for a literal <",
                name.escape_debug()
            ),
            Self::Unbalanced(c) => write!(f, "{c:?} without its partner: write \\{c} for a literal one"),
            Self::Nested => f.write_str("parts are nested too deep: choices hold text only, optional parts nest at most 4 deep"),
            Self::Empty => f.write_str("an optional part or a choice is empty"),
            Self::NoAddr => f.write_str("it needs one <addr> outside optional parts"),
            Self::TwoAddrs => f.write_str("it has more than one <addr>"),
            Self::TwoFree => f.write_str(
                "it has more than one free text: only one of <user> and <text>, so that nobody's text can pose as a field",
            ),
            Self::ClientTextAround { before, behind } => write!(
                f,
                "client text on both sides of <addr>: {before} before it and {behind} behind it, so that a client could write an address of its choice into either; write out what the program itself says on one side, as fixed text or (one|another)"
            ),
            Self::FreeInOptional => f.write_str("<user> and <text> may not stand in an optional part: they may be empty anyway"),
            Self::Regex(part) => write!(
                f,
                "{part} in it, and a pattern is no regular expression: {}; for a literal {part} write {}",
                instead_of(part),
                literal(part)
            ),
            Self::TooLong => f.write_str("it is longer than 1024 bytes"),
        }
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.len() > 1024 {
            return Err(PatternError::TooLong);
        }
        if let Some(part) = regex_part(text) {
            return Err(PatternError::Regex(part));
        }
        let mut chars = text.chars().peekable();
        let elements = parse_sequence(&mut chars, 0)?;
        let (mut addrs, mut frees) = (0, 0);
        for element in &elements {
            match element {
                Element::Addr { .. } => addrs += 1,
                Element::Free(_) => frees += 1,
                Element::Optional(part) if holds_addr(part) => return Err(PatternError::NoAddr),
                _ => {}
            }
        }
        match addrs {
            0 => return Err(PatternError::NoAddr),
            1 => {}
            _ => return Err(PatternError::TwoAddrs),
        }
        let at = elements
            .iter()
            .position(|e| matches!(e, Element::Addr { .. }))
            .expect("just counted");
        let (left, right) = (&elements[..at], &elements[at + 1..]);
        if let (Some(before), Some(behind)) = (client_text(left), client_text(right)) {
            return Err(PatternError::ClientTextAround { before, behind });
        }
        if frees > 1 {
            return Err(PatternError::TwoFree);
        }
        let elements = with_neighbours(elements);
        let mut pattern = Self {
            before: vec![],
            free: None,
            behind: vec![],
        };
        for element in elements {
            match element {
                Element::Free(free) => pattern.free = Some(free),
                other if pattern.free.is_none() => pattern.before.push(other),
                other => pattern.behind.push(other),
            }
        }
        Ok(pattern)
    }

    /// The bytes that a match can begin with; `None` when any can.
    pub fn first_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![];
        for element in &self.before {
            match element {
                Element::Literal(text) => {
                    bytes.push(text[0]);
                    return Some(bytes);
                }
                Element::Choice(texts) => {
                    bytes.extend(texts.iter().map(|t| t[0]));
                    return Some(bytes);
                }
                Element::Optional(part) => match part.first() {
                    Some(Element::Literal(text)) => bytes.push(text[0]),
                    Some(Element::Choice(texts)) => bytes.extend(texts.iter().map(|t| t[0])),
                    _ => return None,
                },
                _ => return None,
            }
        }
        None
    }

    /// Does it end with free text, so that a line's end tells nothing?
    pub fn is_open_ended(&self) -> bool {
        self.free.is_some() && self.behind.is_empty()
    }

    /// Does the whole of `line` have this form?
    pub fn read<'a>(&self, line: &'a [u8]) -> Option<Captures<'a>> {
        let mut captures = Captures::default();
        let (mut start, mut end) = (0, line.len());
        eat(&self.before, line, &mut start, &mut captures)?;
        match self.free {
            None if start < end => return None,
            None => {}
            Some(free) => {
                eat_back(&self.behind, line, start, &mut end, &mut captures)?;
                if free == Free::User {
                    captures.user = Some(&line[start..end]);
                }
            }
        }
        Some(captures)
    }
}

/// How far a pattern came in a line that it does not fit.
pub(crate) struct Reach<'p> {
    /// Read from the start up to here …
    pub start: usize,
    /// … and from the end back to here.
    pub end: usize,
    /// What it wanted there; `None` where the line should have ended.
    wanted: Option<&'p Element>,
    /// At `end`, not at `start`.
    pub backwards: bool,
}

impl Reach<'_> {
    /// How much of the line was read.
    pub fn bytes(&self, line: &[u8]) -> usize {
        self.start + (line.len() - self.end)
    }

    /// What the pattern wanted where it stopped, as it is written.
    pub fn wanted(&self) -> String {
        match self.wanted {
            Some(element) => element.to_string(),
            None => "the end".to_owned(),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self {
            Self::Literal(bytes) => write!(f, "{:?}", text(bytes)),
            Self::Choice(texts) => {
                let texts: Vec<_> = texts.iter().map(|t| format!("{:?}", text(t))).collect();
                f.write_str(&texts.join(" or "))
            }
            Self::Optional(_) => f.write_str("an optional part"),
            Self::Addr { .. } => f.write_str("<addr>"),
            Self::Port => f.write_str("<port>"),
            Self::Number => f.write_str("<number>"),
            Self::Word => f.write_str("<word>"),
            Self::UserWord => f.write_str("<user:word>"),
            Self::Free(Free::User) => f.write_str("<user>"),
            Self::Free(Free::Text) => f.write_str("<text>"),
        }
    }
}

impl Pattern {
    /// How far it comes in a line that it does not fit.
    pub fn reach(&self, line: &[u8]) -> Reach<'_> {
        let mut captures = Captures::default();
        let (mut start, mut end) = (0, line.len());
        let stopped = self.before.iter().find(|element| {
            let one = std::slice::from_ref(*element);
            eat(one, line, &mut start, &mut captures).is_none()
        });
        let mut backwards = false;
        let wanted = stopped.or_else(|| {
            backwards = self.free.is_some();
            self.behind.iter().rev().find(|element| {
                let one = std::slice::from_ref(*element);
                eat_back(one, line, start, &mut end, &mut captures).is_none()
            })
        });
        Reach {
            start,
            end,
            wanted,
            backwards,
        }
    }
}

/// What only whoever takes a pattern for a regular expression writes. Other
/// characters than letters and digits may be escaped.
fn regex_part(text: &str) -> Option<String> {
    if text.starts_with('^') {
        return Some("^".to_owned());
    }
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(next)) if next.is_ascii_alphanumeric() => return Some(format!("\\{next}")),
            ('\\', _) => {
                chars.next();
            }
            ('.', Some(next @ ('*' | '+')))
            | (']' | ')' | '>', Some(next @ ('*' | '+' | '?' | '{')))
            | ('(', Some(next @ '?')) => return Some(format!("{c}{next}")),
            ('$', None) => return Some("$".to_owned()),
            _ => {}
        }
    }
    None
}

/// What to write for a part of a regular expression.
fn instead_of(part: &str) -> &'static str {
    match part {
        "^" | "$" => "leave it out, as a pattern is the whole message",
        "\\d" => "write <number>",
        "\\s" => "write a blank",
        "\\S" | "\\w" => "write <word>, or <user:word> for a client's",
        ".*" | ".+" => "write <text>, or <user> for a user's name",
        _ => "write [optional], (one|another), <word>, <number> or <text>",
    }
}

/// The same, to be taken as it stands.
fn literal(part: &str) -> String {
    match part.strip_prefix([']', ')', '>']) {
        Some(repetition) => format!("{}\\{repetition}", &part[..1]),
        None => format!("\\{part}"),
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Reads elements up to the end, or up to the `]` of an optional part.
fn parse_sequence(chars: &mut Chars<'_>, depth: u8) -> Result<Vec<Element>, PatternError> {
    if depth > 4 {
        return Err(PatternError::Nested);
    }
    let mut elements = vec![];
    let mut literal = String::new();
    let flush = |literal: &mut String, elements: &mut Vec<Element>| {
        if !literal.is_empty() {
            elements.push(Element::Literal(literal.as_bytes().into()));
            literal.clear();
        }
    };
    loop {
        let Some(c) = chars.next() else {
            if depth > 0 {
                return Err(PatternError::Unbalanced('['));
            }
            break;
        };
        match c {
            '\\' => literal.push(chars.next().ok_or(PatternError::Unbalanced('\\'))?),
            '[' => {
                flush(&mut literal, &mut elements);
                let part = parse_sequence(chars, depth + 1)?;
                elements.push(Element::Optional(part));
            }
            ']' if depth > 0 => {
                flush(&mut literal, &mut elements);
                if elements.is_empty() {
                    return Err(PatternError::Empty);
                }
                if elements.iter().any(|e| matches!(e, Element::Free(_))) {
                    return Err(PatternError::FreeInOptional);
                }
                return Ok(elements);
            }
            '(' => {
                flush(&mut literal, &mut elements);
                elements.push(parse_choice(chars)?);
            }
            '<' => {
                flush(&mut literal, &mut elements);
                let mut name = String::new();
                loop {
                    match chars.next() {
                        Some('>') => break,
                        Some(c) => name.push(c),
                        None => return Err(PatternError::Unbalanced('<')),
                    }
                }
                elements.push(match name.as_str() {
                    "addr" => Element::Addr {
                        before: None,
                        behind: None,
                    },
                    "port" => Element::Port,
                    "number" => Element::Number,
                    "word" => Element::Word,
                    "user:word" => Element::UserWord,
                    "user" => Element::Free(Free::User),
                    "text" => Element::Free(Free::Text),
                    _ => return Err(PatternError::UnknownField(name)),
                });
            }
            ']' | ')' | '>' | '|' => return Err(PatternError::Unbalanced(c)),
            c => literal.push(c),
        }
    }
    flush(&mut literal, &mut elements);
    Ok(elements)
}

fn parse_choice(chars: &mut Chars<'_>) -> Result<Element, PatternError> {
    let mut texts = vec![String::new()];
    loop {
        let last = texts.last_mut().expect("there is always one");
        match chars.next().ok_or(PatternError::Unbalanced('('))? {
            '\\' => last.push(chars.next().ok_or(PatternError::Unbalanced('\\'))?),
            '|' => texts.push(String::new()),
            ')' => break,
            '(' | '[' | '<' => return Err(PatternError::Nested),
            c => last.push(c),
        }
    }
    if texts.iter().any(String::is_empty) {
        return Err(PatternError::Empty);
    }
    texts.sort_by_key(|t| std::cmp::Reverse(t.len()));
    Ok(Element::Choice(
        texts.into_iter().map(|t| t.into_bytes().into()).collect(),
    ))
}

fn holds_addr(part: &[Element]) -> bool {
    part.iter().any(|e| match e {
        Element::Addr { .. } => true,
        Element::Optional(part) => holds_addr(part),
        _ => false,
    })
}

/// The first field that holds what a client chose. `<word>` does not: it is for
/// words that the program itself chooses, such as a date.
fn client_text(elements: &[Element]) -> Option<&'static str> {
    elements.iter().find_map(|element| match element {
        Element::Free(Free::User) => Some("<user>"),
        Element::Free(Free::Text) => Some("<text>"),
        Element::UserWord => Some("<user:word>"),
        Element::Optional(part) => client_text(part),
        _ => None,
    })
}

/// Tells each `<addr>` which neighbouring literal byte ends it, where that
/// byte could be part of an address.
fn with_neighbours(mut elements: Vec<Element>) -> Vec<Element> {
    for i in 0..elements.len() {
        let left = match i.checked_sub(1).map(|i| &elements[i]) {
            Some(Element::Literal(text)) => text.last().copied().filter(|b| in_address(*b)),
            _ => None,
        };
        let right = match elements.get(i + 1) {
            Some(Element::Literal(text)) => text.first().copied().filter(|b| in_address(*b)),
            _ => None,
        };
        if let Element::Addr { before, behind } = &mut elements[i] {
            (*before, *behind) = (left, right);
        }
    }
    elements
}

/// Can this byte be part of an address or its zone?
fn in_address(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b':' | b'.' | b'%' | b'_' | b'-')
}

/// An address, canonical; a zone (`%eth0`) is cut off.
fn address(text: &[u8]) -> Option<IpAddr> {
    // 45 for the longest IPv6 form, 15 for an interface name, one percent sign.
    if text.is_empty() || text.len() > 61 {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    match text.split_once('%') {
        Some((addr, zone)) if !zone.is_empty() => Some(addr.parse::<Ipv6Addr>().ok()?.into()),
        Some(_) => None,
        None => text.parse().ok(),
    }
    .map(|addr: IpAddr| addr.to_canonical())
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    Some(
        digits
            .iter()
            .fold(0, |n, d| n * 10 + u64::from(d.wrapping_sub(b'0'))),
    )
}

/// Takes one field's text; false when it is not one.
fn take<'a>(element: &Element, text: &'a [u8], captures: &mut Captures<'a>) -> Option<()> {
    match element {
        Element::Addr { .. } => captures.addr = Some(address(text)?),
        Element::Port => captures.port = Some(u16::try_from(number(text)?).ok()?),
        Element::Number => {
            number(text)?;
        }
        Element::Word if text.is_empty() => return None,
        Element::UserWord if text.is_empty() => return None,
        Element::UserWord => captures.user = Some(text),
        _ => {}
    }
    Some(())
}

fn class(element: &Element) -> fn(&u8) -> bool {
    match element {
        Element::Addr { .. } => |b| in_address(*b),
        Element::Port | Element::Number => u8::is_ascii_digit,
        _ => |b| !matches!(b, b' ' | b'\t'),
    }
}

fn eat<'a>(
    elements: &[Element],
    line: &'a [u8],
    at: &mut usize,
    captures: &mut Captures<'a>,
) -> Option<()> {
    for element in elements {
        let rest = &line[*at..];
        match element {
            Element::Literal(text) => {
                if !rest.starts_with(text) {
                    return None;
                }
                *at += text.len();
            }
            Element::Choice(texts) => *at += texts.iter().find(|t| rest.starts_with(t))?.len(),
            Element::Optional(part) => {
                let (mut tried, mut found) = (*at, *captures);
                if eat(part, line, &mut tried, &mut found).is_some() {
                    (*at, *captures) = (tried, found);
                }
            }
            field => {
                let class = class(field);
                let mut len = rest.iter().take_while(|b| class(b)).count();
                if let Element::Addr {
                    behind: Some(byte), ..
                } = field
                {
                    len = rest[..len].iter().rposition(|b| b == byte)?;
                }
                take(field, &rest[..len], captures)?;
                *at += len;
            }
        }
    }
    Some(())
}

fn eat_back<'a>(
    elements: &[Element],
    line: &'a [u8],
    start: usize,
    end: &mut usize,
    captures: &mut Captures<'a>,
) -> Option<()> {
    for element in elements.iter().rev() {
        let rest = &line[start..*end];
        match element {
            Element::Literal(text) => {
                if !rest.ends_with(text) {
                    return None;
                }
                *end -= text.len();
            }
            Element::Choice(texts) => *end -= texts.iter().find(|t| rest.ends_with(t))?.len(),
            Element::Optional(part) => {
                let (mut tried, mut found) = (*end, *captures);
                if eat_back(part, line, start, &mut tried, &mut found).is_some() {
                    (*end, *captures) = (tried, found);
                }
            }
            field => {
                let class = class(field);
                let mut len = rest.iter().rev().take_while(|b| class(b)).count();
                if let Element::Addr {
                    before: Some(byte), ..
                } = field
                {
                    let run = &rest[rest.len() - len..];
                    len -= run.iter().position(|b| b == byte)? + 1;
                }
                take(field, &rest[rest.len() - len..], captures)?;
                *end -= len;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pattern: &str, line: &str) -> Option<(String, Option<u16>, Option<String>)> {
        let pattern = Pattern::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        let found = pattern.read(line.as_bytes())?;
        Some((
            found.addr.expect("a pattern holds an address").to_string(),
            found.port,
            found.user.map(|u| String::from_utf8_lossy(u).into_owned()),
        ))
    }

    #[test]
    fn fields_behind_free_text_are_read_from_the_end() {
        let pattern =
            "Failed (pass|password) for [invalid user ]<user> from <addr> port <port>[ ssh2]";
        for (line, addr, port, user) in [
            (
                "Failed password for root from 192.0.2.7 port 22 ssh2",
                "192.0.2.7",
                22,
                "root",
            ),
            (
                "Failed password for invalid user  from 2001:db8::7 port 65535",
                "2001:db8::7",
                65535,
                "",
            ),
            (
                "Failed pass for a from 203.0.113.9 port 22 ssh2 from 198.51.100.7 port 4711 ssh2",
                "198.51.100.7",
                4711,
                "a from 203.0.113.9 port 22 ssh2",
            ),
            (
                "Failed password for x from ::ffff:192.0.2.7 port 1",
                "192.0.2.7",
                1,
                "x",
            ),
            (
                "Failed password for x from fe80::1%eth0 port 1",
                "fe80::1",
                1,
                "x",
            ),
        ] {
            assert_eq!(
                read(pattern, line),
                Some((addr.into(), Some(port), Some(user.into()))),
                "{line}"
            );
        }
        for line in [
            "",
            "Failed",
            "Failed password for root from 192.0.2.7 port 22 ssh2 ",
            "Failed password for root from 192.0.2.7 port 65536 ssh2",
            "Failed password for root from 192.0.2.700 port 22 ssh2",
            "Failed password for root from  port 22 ssh2",
            "Failed password for root from 192.0.2.7 port  ssh2",
            "xFailed password for root from 192.0.2.7 port 22 ssh2",
            "Failed password for from 192.0.2.7 port 22 ssh2",
        ] {
            assert_eq!(read(pattern, line), None, "{line:?}");
        }
    }

    #[test]
    fn an_address_ends_where_the_literal_begins() {
        assert_eq!(
            read("from <addr>:<port>", "from 192.0.2.7:80"),
            Some(("192.0.2.7".into(), Some(80), None))
        );
        assert_eq!(
            read("from \\[<addr>\\]:<port>", "from [2001:db8::1]:80"),
            Some(("2001:db8::1".into(), Some(80), None))
        );
        assert_eq!(
            read("<text> by <addr>.", "x by 192.0.2.7."),
            Some(("192.0.2.7".into(), None, None))
        );
        assert_eq!(
            read("<text>rhost:<addr>", "x rhost:2001:db8::1"),
            Some(("2001:db8::1".into(), None, None))
        );
    }

    /// Wherever the address is read from, a client's text would lie between
    /// that end and the address: it could name one of its own there.
    #[test]
    fn no_pattern_has_client_text_on_both_sides_of_the_address() {
        for (pattern, before, behind) in [
            ("<user> <addr> <text>", "<user>", "<text>"),
            ("<text> from <addr> as <user:word>", "<text>", "<user:word>"),
            (
                "User <user:word> from <addr> not allowed because <text>",
                "<user:word>",
                "<text>",
            ),
            (
                "User <user:word> from <addr>[ as <user:word>] refused",
                "<user:word>",
                "<user:word>",
            ),
            (
                "[x[ <user:word>]: ]<addr>[ <number>]: <text>",
                "<user:word>",
                "<text>",
            ),
        ] {
            let error = Pattern::parse(pattern).expect_err(pattern);
            assert_eq!(
                error,
                PatternError::ClientTextAround { before, behind },
                "{pattern}"
            );
            let said = error.to_string();
            assert!(said.contains(before) && said.contains(behind), "{said}");
        }
        for pattern in [
            "<user:word> <text> <addr>",
            "<word> <addr> <number> <user>",
            "<user> from <addr> port <port>[ via <word>]",
        ] {
            Pattern::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (pattern, error) in [
            ("", PatternError::NoAddr),
            ("x[ <addr>]", PatternError::NoAddr),
            ("<addr> <addr>", PatternError::TwoAddrs),
            ("<user> <text> <addr>", PatternError::TwoFree),
            ("[a<text>]<addr>", PatternError::FreeInOptional),
            ("<host>", PatternError::UnknownField("host".into())),
            ("[<addr>", PatternError::Unbalanced('[')),
            ("<addr>]", PatternError::Unbalanced(']')),
            ("<addr", PatternError::Unbalanced('<')),
            ("(a|b<addr>)", PatternError::Nested),
            ("(a||b) <addr>", PatternError::Empty),
            ("[]<addr>", PatternError::Empty),
            ("[[[[[[a]]]]]]<addr>", PatternError::Nested),
            ("<addr>\\", PatternError::Unbalanced('\\')),
            ("^no <addr>", PatternError::Regex("^".into())),
            ("no <addr>$", PatternError::Regex("$".into())),
            ("no .* from <addr>", PatternError::Regex(".*".into())),
            ("no .+ from <addr>", PatternError::Regex(".+".into())),
            ("no \\S+ from <addr>", PatternError::Regex("\\S".into())),
            ("no (\\d|x) from <addr>", PatternError::Regex("\\d".into())),
            ("no [0-9]+ from <addr>", PatternError::Regex("]+".into())),
            ("no (a|b)* from <addr>", PatternError::Regex(")*".into())),
            ("(?:no|none) from <addr>", PatternError::Regex("(?".into())),
            ("no <word>? from <addr>", PatternError::Regex(">?".into())),
        ] {
            assert_eq!(
                Pattern::parse(pattern).expect_err(pattern),
                error,
                "{pattern}"
            );
        }
        for (pattern, said) in [
            ("^no <addr>", "leave it out"),
            (
                "no \\d <addr>",
                "write <number>; for a literal \\d write \\\\d",
            ),
            ("no .* <addr>", "write <text>, or <user> for a user's name"),
            ("no [0-9]+ <addr>", "for a literal ]+ write ]\\+"),
        ] {
            let error = Pattern::parse(pattern).expect_err(pattern).to_string();
            assert!(error.contains(said), "{pattern}: {error}");
        }
        // Where such characters are a message's own, they are written so.
        for (pattern, line) in [
            ("\\^no \\.* \\\\S <addr>\\$", "^no .* \\S 192.0.2.7$"),
            (
                "$5 a^b... <addr>.[ \\[preauth\\]]",
                "$5 a^b... 192.0.2.7. [preauth]",
            ),
            ("[0-9]\\+ (a|b)\\* <addr>", "0-9+ a* 192.0.2.7"),
            ("really? 1+1 a*b <addr>", "really? 1+1 a*b 192.0.2.7"),
        ] {
            let read = Pattern::parse(pattern).unwrap().read(line.as_bytes());
            assert!(read.is_some(), "{pattern}: {line}");
        }
    }
}

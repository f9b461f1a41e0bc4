//! The pattern language of filters, built-in ones and administrators': fixed
//! text with fields `<name>`, optional parts `[…]` and choices `(a|b)`; a
//! backslash takes the next character literally. Text becomes elements here. How
//! elements fit a message is `matcher`'s; whether a client's text could be read as
//! the address is judged by `impersonation`.

mod unfit;

use std::fmt;

use super::fields::{ADDRESS, Class, HOST, PREFIX};

/// A pattern that was read: one of `<addr>`, `<prefix>` and `<host>` outside optional
/// parts, one free text at most, no client's text on both sides of the address.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub elements: Vec<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Literal(Box<[u8]>),
    /// Longest first; the first that fits is taken.
    Choice(Vec<Box<[u8]>>),
    /// Taken whenever it fits; holds no free text.
    Optional(Vec<Element>),
    /// `before`/`behind`: a neighbouring literal byte that could also be part
    /// of an address, such as the colon of `ADDR:PORT`.
    Addr {
        form: AddrForm,
        before: Option<Neighbour>,
        behind: Option<Neighbour>,
    },
    Port,
    Number,
    Word,
    UserWord,
    Free(Free),
}

/// A literal byte beside an address that could also be part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    /// A byte that is in every message.
    Always(u8),
    /// A byte that an optional part brings or takes away.
    Perhaps(u8),
}

/// What stands where a pattern names who failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddrForm {
    /// `<addr>`: an address.
    Addr,
    /// `<prefix>`: an address, or a prefix with its length.
    Prefix,
    /// `<host>`: an address, or a host name.
    Host,
}

impl AddrForm {
    /// The bytes of which it is made.
    pub fn class(self) -> Class {
        match self {
            Self::Addr => ADDRESS,
            Self::Prefix => PREFIX,
            Self::Host => HOST,
        }
    }
}

impl fmt::Display for AddrForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Addr => "<addr>",
            Self::Prefix => "<prefix>",
            Self::Host => "<host>",
        })
    }
}

/// Text of any length and any bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Free {
    User,
    Text,
}

/// A field that holds what a client chose. `<word>` does not: it is for words that
/// the program itself chooses, such as a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientField {
    User,
    Text,
    UserWord,
}

impl From<Free> for ClientField {
    fn from(free: Free) -> Self {
        match free {
            Free::User => Self::User,
            Free::Text => Self::Text,
        }
    }
}

impl ClientField {
    /// The field as written in a pattern.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "<user>",
            Self::Text => "<text>",
            Self::UserWord => "<user:word>",
        }
    }
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// `<name>` is not a field.
    UnknownField(String),
    /// A bracket is not closed, or closed without being open.
    Unbalanced(char),
    /// A bracket or choice inside a choice, or parts nested too deep.
    Nested,
    /// An optional part or a choice without text.
    Empty,
    /// None of `<addr>`, `<prefix>` and `<host>`, or only in an optional part.
    NoAddr,
    /// More than one of `<addr>`, `<prefix>` and `<host>`.
    TwoAddrs,
    /// A second free text.
    TwoFree,
    /// A client's text on both sides of `<addr>`.
    ClientTextAround {
        /// The field before the address, such as `<user>`.
        before: &'static str,
        /// The field behind it.
        behind: &'static str,
    },
    /// A message exists in which a client's text is read as `<addr>`.
    ClientTextAsAddress,
    /// An optional part beside the address begins with a byte that an address takes.
    OptionalInAddress(char),
    /// A text of a choice beside the address has a byte next to it that an address takes.
    ChoiceInAddress(char),
    /// A field takes the text, or the field, that stands beside it.
    TakenByField {
        /// The field, such as `<word>`.
        field: String,
        /// The text or field beside it.
        text: String,
    },
    /// Text with a blank where a message begins or ends.
    BlankAtEnd(String),
    /// The pattern can be read in more ways than are judged.
    TooManyWays,
    /// A free text inside an optional part.
    FreeInOptional,
    /// Part of a regular expression, which no line has as it stands.
    Regex(String),
    /// Longer than 1024 bytes.
    TooLong,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField(name) => write!(
                f,
                "<{}> is not a field: write <addr>, <prefix>, <host>, <port>, <user>, <user:word>, <text>, <word> or <number>, or \\< for a literal <",
                name.escape_debug()
            ),
            Self::Unbalanced(c) => write!(f, "{c:?} without its partner: write \\{c} for a literal one"),
            Self::Nested => f.write_str("parts are nested too deep: choices hold text only, optional parts nest at most 4 deep"),
            Self::Empty => f.write_str("an optional part or a choice is empty"),
            Self::NoAddr => f.write_str("it needs one <addr>, <prefix> or <host> outside optional parts"),
            Self::TwoAddrs => f.write_str("it has more than one <addr>, <prefix> or <host>: one line tells of one"),
            Self::TwoFree => f.write_str(
                "it has more than one free text: only one of <user> and <text>, so that nobody's text can pose as a field",
            ),
            Self::ClientTextAround { before, behind } => write!(
                f,
                "client text on both sides of <addr>: {before} before it and {behind} behind it, so that a client could write an address of its choice into either; write out what the program itself says on one side, as fixed text or (one|another)"
            ),
            Self::ClientTextAsAddress => f.write_str(
                "a client could write an address of its choice where <addr> is read: an optional part beside it fits the address itself in a message without that part, or the client's text touches it; write two patterns, the one without the optional part first (the first that fits is taken), and fixed text around <addr> that no address has",
            ),
            Self::OptionalInAddress(byte) => write!(
                f,
                "an optional part beside <addr> has {byte:?} next to it, which is read as part of the address, so that no message with that part fits; write two patterns, the one without it first"
            ),
            Self::ChoiceInAddress(byte) => write!(
                f,
                "a choice beside <addr> has {byte:?} next to it, which is read as part of the address, so that no message with that text fits; write a pattern for each text of the choice"
            ),
            Self::TakenByField { field, text } => write!(
                f,
                "{field} takes all bytes that it can have, and {text:?} beside it would be read with it, so that no message with both fits; leave {text:?} out where {field} may have it, as in <word> <addr> for <word>: <addr>, or write text between them that {field} cannot have, such as a blank"
            ),
            Self::BlankAtEnd(text) => write!(
                f,
                "{text:?} has a blank where a message begins or ends, and blanks are cut off there, so that no message with it fits; leave the blank out, or write it inside the optional part behind or before it"
            ),
            Self::TooManyWays => f.write_str(
                "its messages can be read in too many ways to judge whether a client could write an address of its choice; write several patterns with fewer optional parts",
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

impl std::error::Error for TemplateError {}

impl Template {
    /// Reads a pattern as it is written.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > 1024 {
            return Err(TemplateError::TooLong);
        }
        if let Some(part) = regex_part(text) {
            return Err(TemplateError::Regex(part));
        }
        let mut chars = text.chars().peekable();
        let elements = parse_sequence(&mut chars, 0)?;
        let (mut addrs, mut frees) = (0, 0);
        for element in &elements {
            match element {
                Element::Addr { .. } => addrs += 1,
                Element::Free(_) => frees += 1,
                Element::Optional(part) if holds_addr(part) => return Err(TemplateError::NoAddr),
                _ => {}
            }
        }
        match addrs {
            0 => return Err(TemplateError::NoAddr),
            1 => {}
            _ => return Err(TemplateError::TwoAddrs),
        }
        let at = elements
            .iter()
            .position(|e| matches!(e, Element::Addr { .. }))
            .expect("just counted");
        let (left, right) = (&elements[..at], &elements[at + 1..]);
        if let (Some(before), Some(behind)) = (client_text(left), client_text(right)) {
            let (before, behind) = (before.name(), behind.name());
            return Err(TemplateError::ClientTextAround { before, behind });
        }
        if frees > 1 {
            return Err(TemplateError::TwoFree);
        }
        let template = Self {
            elements: with_neighbours(elements),
        };
        template.check_beside_address(at)?;
        template.check_fits()?;
        Ok(template)
    }

    /// The first field that holds what a client chose.
    pub fn client_text(&self) -> Option<ClientField> {
        client_text(&self.elements)
    }

    /// Whether the pattern ends with free text.
    pub fn is_open_ended(&self) -> bool {
        matches!(self.elements.last(), Some(Element::Free(_)))
    }

    /// Is its address read from a message's end, behind the free text?
    pub fn is_read_backwards(&self) -> bool {
        let mut ends = self
            .elements
            .iter()
            .filter(|e| matches!(e, Element::Free(_) | Element::Addr { .. }));
        matches!(ends.next(), Some(Element::Free(_)))
    }

    /// Its messages that begin or end with the free text, where that is empty: the
    /// blanks of the fixed text beside it are cut off with those at the message's
    /// ends. `None`: no message loses any.
    pub fn without_free_text(&self) -> Option<Vec<Element>> {
        let is_free = |element: &Element| matches!(element, Element::Free(_));
        let is_last = self.elements.last().is_some_and(is_free);
        if !is_last && !self.elements.first().is_some_and(is_free) {
            return None;
        }
        let trim = match is_last {
            true => <[u8]>::trim_ascii_end,
            false => <[u8]>::trim_ascii_start,
        };
        let others = self.elements.iter().filter(|element| !is_free(element));
        let mut elements: Vec<_> = others.cloned().collect();
        let beside = match is_last {
            true => elements.last_mut()?,
            false => elements.first_mut()?,
        };
        let whole = beside.clone();
        match beside {
            Element::Literal(text) => *text = trim(text).into(),
            Element::Choice(texts) => {
                texts.iter_mut().for_each(|text| *text = trim(text).into());
                texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
            }
            _ => return None,
        }
        (*beside != whole).then_some(elements)
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
            Self::Addr { form, .. } => form.fmt(f),
            Self::Port => f.write_str("<port>"),
            Self::Number => f.write_str("<number>"),
            Self::Word => f.write_str("<word>"),
            Self::UserWord => f.write_str("<user:word>"),
            Self::Free(Free::User) => f.write_str("<user>"),
            Self::Free(Free::Text) => f.write_str("<text>"),
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

/// The part with a backslash, so that it is taken as it stands.
fn literal(part: &str) -> String {
    match part.strip_prefix([']', ')', '>']) {
        Some(repetition) => format!("{}\\{repetition}", &part[..1]),
        None => format!("\\{part}"),
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Reads elements up to the end, or up to the `]` of an optional part.
fn parse_sequence(chars: &mut Chars<'_>, depth: u8) -> Result<Vec<Element>, TemplateError> {
    if depth > 4 {
        return Err(TemplateError::Nested);
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
                return Err(TemplateError::Unbalanced('['));
            }
            break;
        };
        match c {
            '\\' => literal.push(chars.next().ok_or(TemplateError::Unbalanced('\\'))?),
            '[' => {
                flush(&mut literal, &mut elements);
                let part = parse_sequence(chars, depth + 1)?;
                elements.push(Element::Optional(part));
            }
            ']' if depth > 0 => {
                flush(&mut literal, &mut elements);
                if elements.is_empty() {
                    return Err(TemplateError::Empty);
                }
                if elements.iter().any(|e| matches!(e, Element::Free(_))) {
                    return Err(TemplateError::FreeInOptional);
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
                        None => return Err(TemplateError::Unbalanced('<')),
                    }
                }
                elements.push(match name.as_str() {
                    "addr" => addr(AddrForm::Addr),
                    "prefix" => addr(AddrForm::Prefix),
                    "host" => addr(AddrForm::Host),
                    "port" => Element::Port,
                    "number" => Element::Number,
                    "word" => Element::Word,
                    "user:word" => Element::UserWord,
                    "user" => Element::Free(Free::User),
                    "text" => Element::Free(Free::Text),
                    _ => return Err(TemplateError::UnknownField(name)),
                });
            }
            ']' | ')' | '>' | '|' => return Err(TemplateError::Unbalanced(c)),
            c => literal.push(c),
        }
    }
    flush(&mut literal, &mut elements);
    Ok(elements)
}

/// An element for the address, whose neighbours are not known yet.
fn addr(form: AddrForm) -> Element {
    Element::Addr {
        form,
        before: None,
        behind: None,
    }
}

fn parse_choice(chars: &mut Chars<'_>) -> Result<Element, TemplateError> {
    let mut texts = vec![String::new()];
    loop {
        let last = texts.last_mut().expect("there is always one");
        match chars.next().ok_or(TemplateError::Unbalanced('('))? {
            '\\' => last.push(chars.next().ok_or(TemplateError::Unbalanced('\\'))?),
            '|' => texts.push(String::new()),
            ')' => break,
            '(' | '[' | '<' => return Err(TemplateError::Nested),
            c => last.push(c),
        }
    }
    if texts.iter().any(String::is_empty) {
        return Err(TemplateError::Empty);
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

/// The first field that holds what a client chose.
fn client_text(elements: &[Element]) -> Option<ClientField> {
    elements.iter().find_map(|element| match element {
        Element::Free(free) => Some((*free).into()),
        Element::UserWord => Some(ClientField::UserWord),
        Element::Optional(part) => client_text(part),
        _ => None,
    })
}

/// Tells each `<addr>` which neighbouring literal byte ends it, where that
/// byte could be part of an address.
fn with_neighbours(mut elements: Vec<Element>) -> Vec<Element> {
    for i in 0..elements.len() {
        let Element::Addr { form, .. } = elements[i] else {
            continue;
        };
        let left = neighbour(form, elements[..i].iter().rev(), |text| text.last());
        let right = neighbour(form, elements[i + 1..].iter(), |text| text.first());
        if let Element::Addr { before, behind, .. } = &mut elements[i] {
            (*before, *behind) = (left, right);
        }
    }
    elements
}

/// The byte that is next to an address, by the elements from there on. Behind
/// optional parts it is not in every message.
fn neighbour<'e>(
    form: AddrForm,
    elements: impl Iterator<Item = &'e Element>,
    next: impl Fn(&[u8]) -> Option<&u8>,
) -> Option<Neighbour> {
    let mut is_certain = true;
    for element in elements {
        match element {
            Element::Literal(text) => {
                let byte = next(text).copied().filter(|b| form.class().has(*b))?;
                return Some(match is_certain {
                    true => Neighbour::Always(byte),
                    false => Neighbour::Perhaps(byte),
                });
            }
            Element::Optional(_) => is_certain = false,
            _ => return None,
        }
    }
    None
}

impl Template {
    /// Refuses optional parts and choices beside the address, which stands at `at`,
    /// whose text it would take with it, where it is read towards them. A zone, and
    /// the length of a prefix, are part of what is named, and so is the start of a
    /// mapped IPv4 address: a message has them or not.
    fn check_beside_address(&self, at: usize) -> Result<(), TemplateError> {
        let Element::Addr { form, .. } = self.elements[at] else {
            return Ok(());
        };
        let backwards = self.is_read_backwards();
        let beside: Vec<&Element> = match backwards {
            true => self.elements[..at].iter().rev().collect(),
            false => self.elements[at + 1..].iter().collect(),
        };
        for element in beside {
            match element {
                Element::Optional(part) => {
                    if let Some(byte) = taken_from_optional(part, form, backwards) {
                        return Err(TemplateError::OptionalInAddress(byte.into()));
                    }
                }
                Element::Choice(texts) => {
                    let mut bytes = texts.iter().filter_map(|text| beside_end(text, backwards));
                    return match bytes.find(|byte| form.class().has(*byte)) {
                        Some(byte) => Err(TemplateError::ChoiceInAddress(byte.into())),
                        None => Ok(()),
                    };
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The byte of an optional part next to an address that would take it.
fn taken_from_optional(part: &[Element], form: AddrForm, backwards: bool) -> Option<u8> {
    let taken = |text: &[u8]| {
        let byte = beside_end(text, backwards)?;
        let is_named = match byte {
            b'%' | b'/' => true,
            _ => backwards && text.eq_ignore_ascii_case(b"::ffff:"),
        };
        (form.class().has(byte) && !is_named).then_some(byte)
    };
    for n in 0..part.len() {
        let element = &part[if backwards { part.len() - 1 - n } else { n }];
        match element {
            Element::Optional(inner) => {
                if let Some(byte) = taken_from_optional(inner, form, backwards) {
                    return Some(byte);
                }
            }
            Element::Literal(text) => return taken(text),
            Element::Choice(texts) => return texts.iter().find_map(|text| taken(text)),
            _ => return None,
        }
    }
    None
}

/// The byte of a text that is next to an address.
fn beside_end(text: &[u8], backwards: bool) -> Option<u8> {
    let byte = if backwards { text.last() } else { text.first() };
    byte.copied()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = Template::parse(pattern).expect_err(pattern);
            assert_eq!(
                error,
                TemplateError::ClientTextAround { before, behind },
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
            Template::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
    }

    #[test]
    fn a_pattern_has_1024_bytes_at_most() {
        for (length, is_fine) in [(1023, true), (1024, true), (1025, false), (5000, false)] {
            let pattern = format!("<addr> {}", "x".repeat(length - 7));
            let read = Template::parse(&pattern).map(drop);
            let expected = if is_fine {
                Ok(())
            } else {
                Err(TemplateError::TooLong)
            };
            assert_eq!(read, expected, "{length}");
        }
    }

    /// Such a part would never be found: the address is read with it.
    #[test]
    fn an_optional_part_that_an_address_would_take_is_refused() {
        for (pattern, byte) in [
            ("<addr>[:<port>] refused", ':'),
            ("<addr>[ again][:<port>] refused", ':'),
            ("<addr>[[ again]:<port>] refused", ':'),
            ("from <addr>[.]", '.'),
            ("<prefix>[:<port>] refused", ':'),
            ("<user> at [<word>:]<addr>", ':'),
        ] {
            let error = Template::parse(pattern).expect_err(pattern);
            assert_eq!(error, TemplateError::OptionalInAddress(byte), "{pattern}");
            assert!(error.to_string().contains(&format!("{byte:?}")), "{error}");
        }
        for pattern in [
            "<addr>:<port> refused",
            "<addr>[ port <port>]: refused",
            "[<number>:]x <addr> refused",
            "[::ffff:]<addr> refused",
            "<user> [::ffff:]<addr>",
            "<addr>[%<word>] refused",
            "<prefix>[/<number>] refused",
            "\\[<addr>\\][:<port>] refused",
        ] {
            Template::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
    }

    /// A choice is refused if a text of it has a byte that an address takes.
    #[test]
    fn a_choice_that_an_address_would_take_is_refused() {
        for (pattern, byte) in [
            ("<addr>(:|.)x", ':'),
            ("<addr>( |.|, )x", '.'),
            ("<addr>[ again](, |:)<text>", ':'),
            ("<prefix>(, |/)<text>", '/'),
            ("<addr>(%eth0| )x", '%'),
            ("<host>(, |#)<text>", '#'),
            ("<user> (at |by:)<addr>", ':'),
            ("<user> (at |::ffff:)[ again ]<addr>", ':'),
        ] {
            let error = Template::parse(pattern).expect_err(pattern);
            assert_eq!(error, TemplateError::ChoiceInAddress(byte), "{pattern}");
            assert!(error.to_string().contains(&format!("{byte:?}")), "{error}");
        }
        for (pattern, byte) in [
            ("<addr>[(:|.)<port>] refused", ':'),
            ("<user> at [<word>(, |:)]<addr>", ':'),
        ] {
            let error = Template::parse(pattern).expect_err(pattern);
            assert_eq!(error, TemplateError::OptionalInAddress(byte), "{pattern}");
        }
        for pattern in [
            "<addr>(/| port )<number>",
            "<addr>( :| .)x",
            "<addr> (:|.)x",
            "<addr>:(a|b)",
            "<addr>[(%|, )<word>] refused",
            "(at:|.)<addr>",
            "<user> (:at |#)<addr>",
            "<user> at <addr>(:|.)<number>",
        ] {
            Template::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (pattern, error) in [
            ("", TemplateError::NoAddr),
            ("x[ <addr>]", TemplateError::NoAddr),
            ("<addr> <addr>", TemplateError::TwoAddrs),
            ("<user> <text> <addr>", TemplateError::TwoFree),
            ("[a<text>]<addr>", TemplateError::FreeInOptional),
            ("<ip>", TemplateError::UnknownField("ip".into())),
            ("[<addr>", TemplateError::Unbalanced('[')),
            ("<addr>]", TemplateError::Unbalanced(']')),
            ("<addr", TemplateError::Unbalanced('<')),
            ("(a|b<addr>)", TemplateError::Nested),
            ("(a||b) <addr>", TemplateError::Empty),
            ("[]<addr>", TemplateError::Empty),
            ("[[[[[[a]]]]]]<addr>", TemplateError::Nested),
            ("<addr>\\", TemplateError::Unbalanced('\\')),
            ("^no <addr>", TemplateError::Regex("^".into())),
            ("no <addr>$", TemplateError::Regex("$".into())),
            ("no .* from <addr>", TemplateError::Regex(".*".into())),
            ("no .+ from <addr>", TemplateError::Regex(".+".into())),
            ("no \\S+ from <addr>", TemplateError::Regex("\\S".into())),
            ("no (\\d|x) from <addr>", TemplateError::Regex("\\d".into())),
            ("no [0-9]+ from <addr>", TemplateError::Regex("]+".into())),
            ("no (a|b)* from <addr>", TemplateError::Regex(")*".into())),
            ("(?:no|none) from <addr>", TemplateError::Regex("(?".into())),
            ("no <word>? from <addr>", TemplateError::Regex(">?".into())),
        ] {
            assert_eq!(
                Template::parse(pattern).expect_err(pattern),
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
            let error = Template::parse(pattern).expect_err(pattern).to_string();
            assert!(error.contains(said), "{pattern}: {error}");
        }
    }
}

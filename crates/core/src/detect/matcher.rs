//! Does a message have a pattern's form, and what stands in its fields? Decided
//! in linear time without backtracking: what stands before the free text of a
//! pattern is read from the message's start and what stands behind it from its
//! end, so free text (a user name that an attacker chose) can never take the
//! place of the server's own fields. How patterns are written is `template`'s.

use super::{
    fields::{self, Class, DIGIT, WORD},
    offender::{self, Named, Refused},
    template::{AddrForm, Element, Free, Neighbour, Template},
};

/// A pattern, ready to be matched.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    before: Vec<Element>,
    free: Option<Free>,
    behind: Vec<Element>,
    /// Messages whose free text is empty, at an end where blanks are cut off; they
    /// are read from the other end, like the others.
    emptied: Option<Box<Matcher>>,
}

/// The fields that a match found; texts are parts of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Captures<'a> {
    /// The address, prefix or name that failed, or the reason why it cannot be counted.
    pub offender: Option<Result<Named<'a>, Refused>>,
    pub port: Option<u16>,
    pub user: Option<&'a [u8]>,
}

impl From<Template> for Matcher {
    fn from(template: Template) -> Self {
        let emptied = template.without_free_text().map(|elements| {
            let is_first = matches!(template.elements[..], [Element::Free(_), ..]);
            let (before, behind) = match is_first {
                true => (vec![], elements),
                false => (elements, vec![]),
            };
            Box::new(Self {
                before,
                free: None,
                behind,
                emptied: None,
            })
        });
        let mut matcher = Self {
            before: vec![],
            free: None,
            behind: vec![],
            emptied,
        };
        for element in template.elements {
            match element {
                Element::Free(free) => matcher.free = Some(free),
                other if matcher.free.is_none() => matcher.before.push(other),
                other => matcher.behind.push(other),
            }
        }
        matcher
    }
}

impl Matcher {
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

    /// Whether the pattern has a field that takes a prefix.
    pub fn names_prefixes(&self) -> bool {
        self.has_form(AddrForm::Prefix)
    }

    /// Whether the pattern has a field that takes a host name.
    pub fn names_hosts(&self) -> bool {
        self.has_form(AddrForm::Host)
    }

    /// Is an address all that its field takes?
    pub fn names_an_address(&self) -> bool {
        self.has_form(AddrForm::Addr)
    }

    fn has_form(&self, wanted: AddrForm) -> bool {
        let mut elements = self.before.iter().chain(&self.behind);
        elements.any(|element| matches!(element, Element::Addr { form, .. } if *form == wanted))
    }

    /// Does the whole of `line` have this form? It has no blanks at its ends.
    pub fn read<'a>(&self, line: &'a [u8]) -> Option<Captures<'a>> {
        let mut captures = Captures::default();
        let between = match (self.read_ends(line, &mut captures), &self.emptied) {
            (Some(between), _) => between,
            (None, Some(emptied)) => {
                captures = Captures::default();
                let between = emptied.read_ends(line, &mut captures)?;
                between.is_empty().then_some(between)?
            }
            (None, None) => return None,
        };
        match self.free {
            None if !between.is_empty() => return None,
            Some(Free::User) => captures.user = Some(between),
            _ => {}
        }
        Some(captures)
    }

    /// Reads what stands at both ends of a line; returns what is left between them.
    #[inline]
    fn read_ends<'a>(&self, line: &'a [u8], captures: &mut Captures<'a>) -> Option<&'a [u8]> {
        let (mut start, mut end) = (0, line.len());
        eat(&self.before, line, &mut start, captures)?;
        if !self.behind.is_empty() {
            eat_back(&self.behind, line, start, &mut end, captures)?;
        }
        Some(&line[start..end])
    }

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

/// How far a matcher came in a message that it does not fit.
pub(super) struct Reach<'p> {
    /// Read from the start up to here …
    pub start: usize,
    /// … and from the end back to here.
    pub end: usize,
    /// The element that comes next in the pattern; `None` where the line should have ended.
    wanted: Option<&'p Element>,
    /// Whether the matcher stopped at `end`, not at `start`.
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

/// The address, prefix or name that a text is; `None`: it has not this form.
fn named(form: AddrForm, text: &[u8]) -> Option<Result<Named<'_>, Refused>> {
    match form {
        AddrForm::Addr => Some(Ok(Named::Addr(fields::address(text)?))),
        AddrForm::Prefix => offender::prefix(text),
        AddrForm::Host => offender::host(text),
    }
}

/// Takes one field's text; false when it is not one.
fn take<'a>(element: &Element, text: &'a [u8], captures: &mut Captures<'a>) -> Option<()> {
    match element {
        Element::Addr { form, .. } => captures.offender = Some(named(*form, text)?),
        Element::Port => captures.port = Some(u16::try_from(fields::number(text)?).ok()?),
        Element::Number => {
            fields::number(text)?;
        }
        Element::Word if text.is_empty() => return None,
        Element::UserWord if text.is_empty() => return None,
        Element::UserWord => captures.user = Some(text),
        _ => {}
    }
    Some(())
}

/// The byte at which an address ends within a run of bytes that it may have;
/// `None`: it is all of them.
fn ends_at(form: AddrForm, neighbour: Neighbour, run: &[u8]) -> Option<u8> {
    match neighbour {
        Neighbour::Always(byte) => Some(byte),
        // What is no host name is refused as it stands where nothing can end it.
        Neighbour::Perhaps(byte) if form == AddrForm::Host => {
            let ends = !matches!(named(form, run), Some(Ok(_))) && run.contains(&byte);
            ends.then_some(byte)
        }
        Neighbour::Perhaps(byte) => named(form, run).is_none().then_some(byte),
    }
}

fn class(element: &Element) -> Class {
    match element {
        Element::Addr { form, .. } => form.class(),
        Element::Port | Element::Number => DIGIT,
        _ => WORD,
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
                // As most are; nothing is captured then.
                if let [Element::Literal(text)] = &part[..] {
                    if rest.starts_with(text) {
                        *at += text.len();
                    }
                    continue;
                }
                let (mut tried, mut found) = (*at, *captures);
                if eat(part, line, &mut tried, &mut found).is_some() {
                    (*at, *captures) = (tried, found);
                }
            }
            field => {
                let mut len = class(field).leading(rest);
                if let Element::Addr {
                    form,
                    behind: Some(neighbour),
                    ..
                } = field
                    && let Some(byte) = ends_at(*form, *neighbour, &rest[..len])
                {
                    len = rest[..len].iter().rposition(|b| *b == byte)?;
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
                if let [Element::Literal(text)] = &part[..] {
                    if rest.ends_with(text) {
                        *end -= text.len();
                    }
                    continue;
                }
                let (mut tried, mut found) = (*end, *captures);
                if eat_back(part, line, start, &mut tried, &mut found).is_some() {
                    (*end, *captures) = (tried, found);
                }
            }
            field => {
                let mut len = class(field).trailing(rest);
                let run = &rest[rest.len() - len..];
                if let Element::Addr {
                    form,
                    before: Some(neighbour),
                    ..
                } = field
                    && let Some(byte) = ends_at(*form, *neighbour, run)
                {
                    len -= run.iter().position(|b| *b == byte)? + 1;
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
    use crate::detect::Offender;

    fn matcher(pattern: &str) -> Matcher {
        let template = Template::parse(pattern);
        template.unwrap_or_else(|e| panic!("{pattern}: {e}")).into()
    }

    fn read(pattern: &str, line: &str) -> Option<(String, Option<u16>, Option<String>)> {
        let found = matcher(pattern).read(line.as_bytes())?;
        Some((
            match found.offender.expect("a pattern names somebody") {
                Ok(named) => Offender::from(named).to_string(),
                Err(why) => why.to_string(),
            },
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

    #[test]
    fn an_address_ends_where_an_optional_part_may_begin() {
        let disconnect = "from <addr>[ port <port>]:[ ]<number>: <text>";
        for own in ["192.0.2.7", "2001:db8::7", "2001:db8::", "fe80::7%eth0"] {
            let addr = own.split('%').next().unwrap().to_owned();
            for (line, port) in [
                (format!("from {own} port 22:11: x"), Some(22)),
                (format!("from {own}: 11: x"), None),
            ] {
                let found = Some((addr.clone(), port, None));
                assert_eq!(read(disconnect, &line), found, "{line}");
            }
            let found = Some((addr, None, Some("x".to_owned())));
            for line in [format!("x rhost:{own}"), format!("x rhost: {own}")] {
                assert_eq!(read("<user> rhost:[ ]<addr>", &line), found, "{line}");
            }
        }
    }

    #[test]
    fn characters_of_the_language_are_written_with_a_backslash() {
        for (pattern, line) in [
            ("\\^no \\.* \\\\S <addr>\\$", "^no .* \\S 192.0.2.7$"),
            (
                "$5 a^b... <addr>.[ \\[preauth\\]]",
                "$5 a^b... 192.0.2.7. [preauth]",
            ),
            ("[0-9]\\+ (a|b)\\* <addr>", "0-9+ a* 192.0.2.7"),
            ("really? 1+1 a*b <addr>", "really? 1+1 a*b 192.0.2.7"),
        ] {
            assert!(read(pattern, line).is_some(), "{pattern}: {line}");
        }
    }
}

//! Patterns of which no message, or none with one of their parts, is ever read: a
//! field takes all bytes that it can have, so that text behind it that begins with
//! one of them is not there any more, and blanks at a message's ends are cut off.
//! Whoever writes one would hear nothing of it.

use super::{Element, Neighbour, Template, TemplateError};
use crate::detect::fields::{Class, DIGIT, WORD};

impl Template {
    /// Refuses text that a field beside it takes, and blanks at the ends.
    pub(super) fn check_fits(&self) -> Result<(), TemplateError> {
        let is_free = |element: &Element| matches!(element, Element::Free(_));
        let free = self.elements.iter().position(is_free);
        let (before, behind) = match free {
            Some(free) => (&self.elements[..free], &self.elements[free + 1..]),
            None => (&self.elements[..], &[][..]),
        };
        for (elements, backwards) in [(before, false), (behind, true)] {
            fields_fit(&in_order(elements, backwards), &[], backwards)?;
        }
        for backwards in [false, true] {
            let elements = in_order(&self.elements, backwards);
            if let Some(text) = blank_at_end(&elements, backwards) {
                return Err(TemplateError::BlankAtEnd(shown(text)));
            }
        }
        Ok(())
    }
}

/// In the order in which they are read.
fn in_order(elements: &[Element], backwards: bool) -> Vec<&Element> {
    match backwards {
        true => elements.iter().rev().collect(),
        false => elements.iter().collect(),
    }
}

/// The byte of a text that is read first.
fn first_byte(text: &[u8], backwards: bool) -> Option<u8> {
    let byte = if backwards { text.last() } else { text.first() };
    byte.copied()
}

/// The bytes that a field takes; `None`: it is none, or takes all.
fn class(element: &Element) -> Option<Class> {
    match element {
        Element::Addr { form, .. } => Some(form.class()),
        Element::Port | Element::Number => Some(DIGIT),
        Element::Word | Element::UserWord => Some(WORD),
        Element::Literal(_) | Element::Choice(_) | Element::Optional(_) | Element::Free(_) => None,
    }
}

fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(40).collect()
}

/// `behind`: what follows these elements.
fn fields_fit(
    elements: &[&Element],
    behind: &[&Element],
    backwards: bool,
) -> Result<(), TemplateError> {
    for (n, element) in elements.iter().enumerate() {
        let next = &elements[n + 1..];
        if let Element::Optional(part) = element {
            let next = [next, behind].concat();
            fields_fit(&in_order(part, backwards), &next, backwards)?;
        } else if let Some(class) = class(element) {
            let next = next.iter().chain(behind).copied();
            if let Some(text) = taken(element, class, next, backwards) {
                let field = element.to_string();
                return Err(TemplateError::TakenByField { field, text });
            }
        }
    }
    Ok(())
}

/// What stands next to a field, is read behind it and would be taken with it.
fn taken<'e>(
    field: &Element,
    class: Class,
    mut next: impl Iterator<Item = &'e Element>,
    backwards: bool,
) -> Option<String> {
    let is_address = matches!(field, Element::Addr { .. });
    let begins = |text: &[u8]| first_byte(text, backwards).is_some_and(|byte| class.has(byte));
    while let Some(element) = next.next() {
        match element {
            // Beside an address they are judged where its neighbours are.
            Element::Optional(_) | Element::Choice(_) if is_address => {
                if matches!(element, Element::Choice(_)) {
                    return None;
                }
            }
            Element::Optional(part) => {
                let part = in_order(part, backwards);
                let is_all = part.iter().all(|element| is_within(element, class));
                if let Some(text) = begin(&part, class, backwards).filter(|_| !is_all) {
                    return Some(text);
                }
            }
            Element::Literal(text) if is_address => {
                return ends_before(field, class, text, next, backwards);
            }
            Element::Literal(text) => return begins(text).then(|| shown(text)),
            Element::Choice(texts) => {
                let text = texts.iter().find(|text| begins(text));
                return text.map(|text| shown(text));
            }
            other => {
                let is_within = self::class(other)?.is_within(class);
                return is_within.then(|| other.to_string());
            }
        }
    }
    None
}

/// An address ends at the last of its neighbour's bytes in the run: text in which
/// the byte is once more would be taken with it.
fn ends_before<'e>(
    field: &Element,
    class: Class,
    text: &[u8],
    next: impl Iterator<Item = &'e Element>,
    backwards: bool,
) -> Option<String> {
    let Element::Addr { before, behind, .. } = field else {
        return None;
    };
    let neighbour = if backwards { before } else { behind };
    let (Neighbour::Always(byte) | Neighbour::Perhaps(byte)) = (*neighbour)?;
    let mut taken = 0;
    let of_run = |text: &[u8]| {
        let bytes: Vec<u8> = match backwards {
            true => text.iter().rev().copied().collect(),
            false => text.to_vec(),
        };
        let length = class.leading(&bytes);
        let count = bytes[..length].iter().filter(|b| **b == byte).count();
        (count, length == bytes.len())
    };
    let (count, mut goes_on) = of_run(text);
    taken += count;
    if taken > 1 {
        return Some(shown(text));
    }
    for element in next {
        match element {
            _ if !goes_on => return None,
            Element::Number | Element::Port => {}
            Element::Literal(text) => {
                let count;
                (count, goes_on) = of_run(text);
                taken += count;
                if taken > 1 {
                    return Some(shown(text));
                }
            }
            _ => return None,
        }
    }
    None
}

/// Is all that an element reads of these bytes? A field takes it then, and nothing is
/// missed.
fn is_within(element: &Element, of: Class) -> bool {
    let all = |text: &[u8]| text.iter().all(|byte| of.has(*byte));
    match element {
        Element::Literal(text) => all(text),
        Element::Choice(texts) => texts.iter().all(|text| all(text)),
        Element::Optional(part) => part.iter().all(|element| is_within(element, of)),
        field => class(field).is_some_and(|class| class.is_within(of)),
    }
}

/// What an optional part begins with, where a field takes it.
fn begin(part: &[&Element], of: Class, backwards: bool) -> Option<String> {
    let begins = |text: &[u8]| first_byte(text, backwards).is_some_and(|byte| of.has(byte));
    for element in part {
        match element {
            Element::Optional(inner) => {
                if let Some(text) = begin(&in_order(inner, backwards), of, backwards) {
                    return Some(text);
                }
            }
            Element::Literal(text) => return begins(text).then(|| shown(text)),
            Element::Choice(texts) => {
                let text = texts.iter().find(|text| begins(text));
                return text.map(|text| shown(text));
            }
            field => {
                let is_within = class(field)?.is_within(of);
                return is_within.then(|| field.to_string());
            }
        }
    }
    None
}

/// The text that has a blank where a message begins, or ends.
fn blank_at_end<'e>(elements: &[&'e Element], backwards: bool) -> Option<&'e [u8]> {
    let is_blank =
        |text: &&[u8]| first_byte(text, backwards).is_some_and(|b| b.is_ascii_whitespace());
    for element in elements {
        match element {
            Element::Optional(part) => {
                if let Some(text) = blank_at_end(&in_order(part, backwards), backwards) {
                    return Some(text);
                }
            }
            Element::Literal(text) => return Some(&**text).filter(is_blank),
            Element::Choice(texts) => return texts.iter().map(|text| &**text).find(is_blank),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_a_field_would_take_is_refused() {
        for (pattern, field, text) in [
            ("<word>: <addr>", "<word>", ": "),
            ("no <user:word>, from <addr>", "<user:word>", ", from "),
            ("no <number>0 <addr>", "<number>", "0 "),
            ("at <port>(22|x) <addr>", "<port>", "22"),
            ("<word>(, | )<addr>", "<word>", ", "),
            ("<word><number> <addr>", "<word>", "<number>"),
            ("<word><addr>", "<word>", "<addr>"),
            ("<number><port> <addr>", "<number>", "<port>"),
            ("<addr><port>", "<addr>", "<port>"),
            ("<host><number> x", "<host>", "<number>"),
            // Of optional parts, and behind them.
            ("x[ <word>: ]<addr>", "<word>", ": "),
            ("<word>[ x]: <addr>", "<word>", ": "),
            ("<word>[, again] <addr>", "<word>", ", again"),
            ("<word>[[ y][(, again| x)] z] <addr>", "<word>", ", again"),
            ("<number>[<number> x] <addr>", "<number>", "<number>"),
            ("[<word>]x <addr>", "<word>", "x "),
            ("<addr>[ x]<port>", "<addr>", "<port>"),
            // Read from the end.
            ("<user> at <addr> (by:|to)<word>", "<word>", "by:"),
            ("<user> at <addr> in 7<number>", "<number>", " in 7"),
            // The last of the byte that ends an address.
            ("<addr>:<port>: <text>", "<addr>", ": "),
            ("<addr>:: <text>", "<addr>", ":: "),
            ("<prefix>[ x].a.b", "<prefix>", ".a.b"),
            ("<text> ::ffff:<addr>", "<addr>", " ::ffff:"),
            ("<text> :<number>:<addr>", "<addr>", " :"),
        ] {
            let error = Template::parse(pattern).expect_err(pattern);
            let expected = TemplateError::TakenByField {
                field: field.to_owned(),
                text: text.to_owned(),
            };
            assert_eq!(error, expected, "{pattern}");
            let said = error.to_string();
            assert!(said.contains(&format!("{field} takes")), "{said}");
        }
        for pattern in [
            "<word> <addr>",
            "\\[<word>[:<port>] <addr>",
            "<word>[,][(;|:)][<number>] <addr>",
            "<number>: <word>",
            "<number><word> <addr>",
            "<user:word><text> <addr>",
            "<addr>:<port> x: y",
            "<addr>:<port>. <text>",
            "<addr>:<word> x: <text>",
            "<addr>[ port <port>]: <text>",
            "<text> x:<addr>",
            "<word> :<text> <addr>",
            "::ffff:<addr>",
            "<user>: <word> <addr>",
        ] {
            let expected = match pattern {
                "<number>: <word>" => Some(TemplateError::NoAddr),
                _ => None,
            };
            assert_eq!(Template::parse(pattern).err(), expected, "{pattern}");
        }
    }

    #[test]
    fn blanks_at_the_ends_are_refused() {
        for (pattern, text) in [
            (" no <addr>", " no "),
            ("no <addr> ", " "),
            ("no <addr>\t", "\t"),
            ("no <addr> [again]", " "),
            ("[x] no <addr>", " no "),
            ("[[ x]y]no <addr>", " x"),
            ("no <addr> x( x |y)", " x "),
            ("no <addr>[ x[ ]]", " "),
        ] {
            let error = Template::parse(pattern).expect_err(pattern);
            assert_eq!(error, TemplateError::BlankAtEnd(text.into()), "{pattern}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
        for pattern in ["no <addr>: <text>", "<user> <addr>[ again]", "[x ]<addr>"] {
            Template::parse(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        }
    }
}

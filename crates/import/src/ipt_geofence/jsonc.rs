//! JSON with comments and trailing commas, as jsoncpp reads it.
//!
//! By hand, before serde_json, so that mistakes are told as everywhere else and
//! at their place: jsonc-parser has other messages and the place where something
//! began that never ends, json-strip-comments loses the line ends in comments.

use serde_json::Value;

use crate::Error;

/// Reads it; an error names line and column.
pub fn parse(text: &str) -> Result<Value, Error> {
    let plain = plain(text.strip_prefix('\u{feff}').unwrap_or(text));
    serde_json::from_str(&plain).map_err(|e| Error(format!("it is not JSON: {e}")))
}

/// The text with spaces for what is not JSON: errors keep their place.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    // Where a comma is that may turn out to be a trailing one.
    let mut comma = None;
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('"', _) => {
                comma = None;
                out.push(c);
                while let Some(c) = rest.next() {
                    out.push(c);
                    match c {
                        '\\' => out.extend(rest.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => {
                out.push(' ');
                while rest.next_if(|c| *c != '\n').is_some() {
                    out.push(' ');
                }
            }
            ('/', Some('*')) => {
                rest.next();
                out.push_str("  ");
                let mut star = false;
                for c in rest.by_ref() {
                    out.push(if c == '\n' { '\n' } else { ' ' });
                    if star && c == '/' {
                        break;
                    }
                    star = c == '*';
                }
            }
            (',', _) => {
                comma = Some(out.len());
                out.push(c);
            }
            (']' | '}', _) => {
                if let Some(at) = comma.take() {
                    out.replace_range(at..=at, " ");
                }
                out.push(c);
            }
            _ => {
                if !c.is_whitespace() {
                    comma = None;
                }
                out.push(c);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_no_part_of_it() {
        let text = "\u{feff}// first\n{ /* x\n , */ \"a//b\": [1, 2, /* 3 */ ], // end ä\n\"c\": \"/* \\\" */,]\",}";
        let value = parse(text).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"a//b": [1, 2], "c": "/* \" */,]"})
        );
    }

    #[test]
    fn mistakes_keep_their_place() {
        for (text, place) in [
            ("// one\n{\n \"a\": x }", "line 3 column 7"),
            ("/* one\ntwo */ {]", "line 2 column 9"),
            ("{ \"a\": 1", "EOF"),
            ("/* never closed", "EOF"),
            ("\"never closed \\", "EOF"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(place), "{text}: {error}");
        }
    }
}

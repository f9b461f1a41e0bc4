//! The second layer of interpolation: `<name>` inside of the values of filters and actions,
//! also nested (`<mode-<mode>>`). Names that nobody has stay: they are tags of matching
//! (`<HOST>`) or of a ban (`<ip>`).

use std::collections::HashMap;

use crate::{
    error::{Error, ErrorKind},
    ini::clip,
    text::{Line, MAX_TEXT, Text},
};

/// How often one tag may be replaced in one value.
const MAX_REPLACED: usize = 25;

/// The place of a tag in a line: `<` without blank and bracket up to `>`.
fn next_tag(line: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = line.as_bytes();
    let mut open = None;
    for (at, byte) in bytes.iter().enumerate().skip(from) {
        match byte {
            b'<' => open = Some(at),
            b' ' => open = None,
            b'>' => {
                if let Some(begin) = open.take()
                    && at > begin + 1
                {
                    return Some((begin, at + 1));
                }
            }
            _ => {}
        }
    }
    None
}

/// Replaces tags in the value of `key` until none is left that `of` knows.
///
/// # Errors
/// A value that contains itself, and one that grows beyond bounds; and those of `of`.
pub(crate) fn expand(
    key: &str,
    value: &Text,
    of: &mut dyn FnMut(&str) -> Result<Option<Text>, Error>,
) -> Result<Text, Error> {
    let mut value = value.clone();
    let mut counts = HashMap::<String, usize>::new();
    loop {
        let mut changed = false;
        let (mut number, mut from) = (0, 0);
        while let Some(line) = value.lines.get(number) {
            let Some((begin, end)) = next_tag(&line.text, from) else {
                (number, from) = (number + 1, 0);
                continue;
            };
            let tag = line.text[begin + 1..end - 1].to_owned();
            let error = |message: String| {
                let message = format!("{key}: {message}");
                Err(Error::new(
                    line.place.origin(),
                    ErrorKind::Interpolation,
                    message,
                ))
            };
            let count = counts.entry(tag.clone()).or_default();
            let known = if tag == key { None } else { of(&tag)? };
            let Some(with) = known else {
                if tag == key {
                    return error(format!("<{}> contains itself", clip(&tag)));
                }
                from = end;
                continue;
            };
            *count += 1;
            if *count > MAX_REPLACED {
                return error(format!("<{}> contains itself", clip(&tag)));
            }
            replace(&mut value, &format!("<{tag}>"), &with);
            if value.len() > MAX_TEXT {
                let message = format!("{key}: the value grows beyond all bounds");
                return Err(Error::new(
                    value.origin(),
                    ErrorKind::Interpolation,
                    message,
                ));
            }
            changed = true;
            from = begin;
        }
        if !changed {
            return Ok(value);
        }
    }
}

/// Replaces every `tag`. A line that held nothing but a tag counts as written where the
/// tag's value is.
fn replace(value: &mut Text, tag: &str, with: &Text) {
    let mut lines: Vec<Line> = Vec::with_capacity(value.lines.len() + with.lines.len());
    for line in &value.lines {
        let mut out = Text {
            lines: vec![Line {
                text: String::new(),
                place: line.place.clone(),
            }],
        };
        let mut parts = line.text.split(tag);
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            out.append(with, line.text == tag);
            out.push_str(part);
        }
        lines.append(&mut out.lines);
    }
    value.lines = lines;
}

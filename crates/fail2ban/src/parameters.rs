//! `name[key=value, other="a,b"]`, as jails name filters and actions, and lists of them.

use crate::ini::clip;

/// A filter or an action with what a jail says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub name: String,
    /// In order; a later one of the same key wins.
    pub options: Vec<(String, String)>,
}

fn is_key(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Reads one name with its options.
///
/// # Errors
/// What stands where an option should.
pub(crate) fn parse(text: &str) -> Result<Named, String> {
    let text = text.trim();
    let (name, rest) = match text.find('[') {
        Some(at) => (&text[..at], &text[at..]),
        None => (text, ""),
    };
    let mut named = Named {
        name: name.trim().to_owned(),
        options: Vec::new(),
    };
    if named.name.is_empty() {
        return Err(format!("expected a name: {}", clip(text)));
    }
    let Some(inside) = rest.strip_prefix('[') else {
        return Ok(named);
    };
    let Some(inside) = inside.strip_suffix(']') else {
        return Err(format!("the options are not closed by ]: {}", clip(rest)));
    };
    let mut rest = inside.trim_start();
    while !rest.is_empty() {
        let (option, after) = option(rest)?;
        named.options.push(option);
        rest = separator(after)?;
    }
    Ok(named)
}

/// `key=value` at the beginning of `text`, and what comes behind.
fn option(text: &str) -> Result<((String, String), &str), String> {
    // `blocktype?family=inet6="…"`: the condition belongs to the key.
    let mut end = text.find(|c| !is_key(c)).unwrap_or(text.len());
    if text[end..].starts_with('?')
        && let Some(at) = text[end..].find('=')
    {
        let value = end + at + 1;
        end = value + text[value..].find(|c| !is_key(c)).unwrap_or(0);
    }
    let key = &text[..end];
    let Some(value) = text[end..].strip_prefix('=').filter(|_| !key.is_empty()) else {
        return Err(format!("expected key=value: {}", clip(text)));
    };
    for quote in ['"', '\''] {
        if let Some(inside) = value.strip_prefix(quote) {
            let Some((value, after)) = inside.split_once(quote) else {
                break;
            };
            return Ok(((key.to_owned(), value.trim().to_owned()), after));
        }
    }
    let end = value.find([',', ']']).unwrap_or(value.len());
    let option = (key.to_owned(), value[..end].trim().to_owned());
    Ok((option, &value[end..]))
}

/// Goes over `,` or `][` to the next option.
fn separator(text: &str) -> Result<&str, String> {
    let text = text.trim_start();
    if text.is_empty() {
        return Ok(text);
    }
    if let Some(rest) = text.strip_prefix(',') {
        return Ok(rest.trim_start());
    }
    let next = text
        .strip_prefix(']')
        .and_then(|rest| rest.trim_start().strip_prefix('['));
    next.map(str::trim_start)
        .ok_or_else(|| format!("expected , between options: {}", clip(text)))
}

/// The parts of a list that newlines and blanks separate, but not those inside of
/// brackets or quotes. Each with the number of its line, from 0.
pub(crate) fn split(text: &str) -> Vec<(usize, String)> {
    let mut parts = Vec::new();
    let (mut part, mut began, mut line) = (String::new(), 0, 0);
    let (mut is_inside, mut quote) = (false, None);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let ends = !is_inside && c.is_whitespace() && {
            // `name [option]` is one part, too.
            let mut ahead = chars.clone();
            let next = ahead.find(|c| !c.is_whitespace());
            next != Some('[') || part.is_empty() || part.ends_with(']')
        };
        if ends {
            if !part.trim().is_empty() {
                parts.push((began, part.trim().to_owned()));
            }
            part.clear();
        } else {
            if part.is_empty() {
                began = line;
            }
            part.push(c);
            match (quote, c) {
                (Some(q), c) if q == c => quote = None,
                (None, '"' | '\'') if is_inside => quote = Some(c),
                (None, '[') => is_inside = true,
                (None, ']') => is_inside = false,
                _ => {}
            }
        }
        line += usize::from(c == '\n');
    }
    if !part.trim().is_empty() {
        parts.push((began, part.trim().to_owned()));
    }
    parts
}

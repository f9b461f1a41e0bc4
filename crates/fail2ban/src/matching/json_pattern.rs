//! `<json:field>` in an expression: what stands behind it, up to the next one, must fit the
//! whole value of that field. The values come as lines of one text, and the
//! expression as one of that text: as it counts the lines, no part of it can reach over
//! the end of a value.

use std::fmt::Write as _;

use weir_core::json::{Fields, JsonError, MAX_FIELDS, is_path};

use crate::{error::Error, filter_source::Pattern};

use super::expression;

const TAG: &str = "<json:";
/// What stands for a field that has no value; no value has it in it.
const MISSING: char = '\u{1}';

/// The text that [`expanded`] expressions read: the values of a line's fields, each with a
/// newline behind it.
///
/// # Errors
/// The line is no object, or has more than one meaning.
pub fn text(fields: &Fields, line: &str) -> Result<String, JsonError> {
    let mut text = String::with_capacity(line.len());
    for value in fields.values(line)? {
        match value {
            Some(value) => text.push_str(&value),
            None => text.push(MISSING),
        }
        text.push('\n');
    }
    Ok(text)
}

/// Whether the expression asks for fields.
pub fn asks(pattern: &Pattern) -> bool {
    pattern.text.contains(TAG)
}

/// The fields with what their values must fit.
fn parts(pattern: &Pattern) -> Result<Vec<(&str, &str)>, Error> {
    let refuse = |why: &str| Err(expression::error(pattern, why));
    let text = pattern.text.strip_prefix('^').unwrap_or(&pattern.text);
    let Some(mut rest) = text.strip_prefix(TAG) else {
        return refuse("an expression of JSON begins with <json:field>");
    };
    let mut parts: Vec<(&str, &str)> = Vec::new();
    loop {
        let Some((path, behind)) = rest.split_once('>') else {
            return refuse("<json: is not closed by >");
        };
        if !is_path(path) {
            return refuse("<json:field> wants a path such as <json:remote.ip>");
        }
        if parts.iter().any(|(known, _)| *known == path) {
            return refuse(&format!("<json:{path}> stands in it twice"));
        }
        let (value, next) = match behind.split_once(TAG) {
            Some((value, next)) => (value, Some(next)),
            None => (behind, None),
        };
        let value = value.strip_prefix('^').unwrap_or(value);
        let value = match value.strip_suffix('$') {
            Some(before) if !before.ends_with('\\') => before,
            _ => value,
        };
        parts.push((path, value));
        match next {
            Some(next) => rest = next,
            None => return Ok(parts),
        }
    }
}

/// The paths that these expressions ask for, in order.
///
/// # Errors
/// One of them asks for none, or not as it should.
pub fn paths<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Result<Vec<String>, Error> {
    let mut paths: Vec<String> = Vec::new();
    for pattern in patterns {
        for (path, _) in parts(pattern)? {
            if !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
        if paths.len() > MAX_FIELDS {
            let why = format!("more than {MAX_FIELDS} fields of JSON in one filter");
            return Err(expression::error(pattern, &why));
        }
    }
    Ok(paths)
}

/// The expression of the text with the values of `paths`.
///
/// # Errors
/// As of [`paths`].
pub fn expanded(pattern: &Pattern, paths: &[String]) -> Result<Pattern, Error> {
    let mut parts = parts(pattern)?;
    let number = |path: &str| paths.iter().position(|known| known == path);
    parts.sort_by_key(|(path, _)| number(path));
    let mut text = String::from("^");
    let mut line = 0;
    let skip = |text: &mut String, lines: usize| {
        if lines > 0 {
            let _ = write!(text, "(?:[^\\n]*\\n){{{lines}}}");
        }
    };
    for (path, value) in parts {
        let at = number(path).expect("its path is one of them");
        skip(&mut text, at - line);
        let _ = write!(text, "(?!\\x01)(?:{value})\\n");
        line = at + 1;
    }
    skip(&mut text, paths.len() - line);
    text.push_str("\\Z");
    Ok(Pattern {
        text,
        origin: pattern.origin.clone(),
    })
}

#[cfg(test)]
mod tests {
    use jiff::{Timestamp, tz::TimeZone};

    use crate::{
        JsonError,
        date::Clock,
        filter_source::{FilterSource, Pattern},
        matching::{Failure, Filter, LogLine, NoFailure},
    };

    fn source(failregex: &[&str], ignoreregex: &[&str]) -> FilterSource {
        let patterns = |texts: &[&str]| {
            let pattern = |text: &&str| Pattern {
                text: (*text).to_owned(),
                origin: Default::default(),
            };
            texts.iter().map(pattern).collect()
        };
        FilterSource {
            name: "a".to_owned(),
            failregex: patterns(failregex),
            ignoreregex: patterns(ignoreregex),
            prefregex: None,
            datepattern: None,
            maxlines: 1,
            says_maxlines: false,
            journalmatch: Vec::new(),
            logencoding: None,
            usedns: None,
            logtype: None,
            origin: Default::default(),
        }
    }

    fn read(source: &FilterSource, line: &str) -> Result<Failure, NoFailure> {
        let filter = Filter::new(source).unwrap();
        let clock = Clock {
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            zone: &TimeZone::UTC,
        };
        let line = LogLine {
            text: line,
            time: None,
        };
        filter.read(&mut filter.state(), line, clock)
    }

    #[test]
    fn fields_are_read_whatever_their_order() {
        let source = source(
            &[
                r"<json:event>login_(?:failed|denied)<json:user><F-USER>[^x]*</F-USER><json:remote.ip><HOST>",
                r"^<json:remote.ip>^<ADDR>$<json:status>40[13]$",
            ],
            &["<json:user>friend"],
        );
        let line = r#"{"ts":"2023-11-14T22:13:00Z","remote":{"ip":"192.0.2.1","port":2},"user":"a\"b","event":"login_failed"}"#;
        let failure = read(&source, line).unwrap();
        assert_eq!((failure.regex, failure.id.as_str()), (0, "192.0.2.1"));
        assert_eq!(failure.user(), Some("a\"b"));
        assert_eq!(failure.time.unwrap().as_second(), 1_699_999_980);
        let line = r#"{"status":403,"remote.ip":"2001:db8::1"}"#;
        let failure = read(&source, line).unwrap();
        assert_eq!((failure.regex, failure.id.as_str()), (1, "2001:db8::1"));
        let line = r#"{"user":"friend","event":"login_denied","remote":{"ip":"192.0.2.1"}}"#;
        assert_eq!(read(&source, line), Err(NoFailure::Ignored(0)));
        for line in [
            // Another value, a part of one, none.
            r#"{"user":"a","event":"login_failed_not","remote":{"ip":"192.0.2.1"}}"#,
            r#"{"user":"a","event":"login_failed","remote":{"ip":"192.0.2.1 or so"}}"#,
            r#"{"event":"login_failed","remote":{"ip":"192.0.2.1"}}"#,
            // A client's text that would be fields if it could end its own.
            r#"{"user":"a\n192.0.2.9\nlogin_failed","event":"x","remote":{"ip":"192.0.2.1"}}"#,
            r#"{"user":"a\",\"remote\":{\"ip\":\"192.0.2.9\"},\"event\":\"login_failed","event":"x"}"#,
        ] {
            assert!(
                matches!(read(&source, line), Err(NoFailure::Failregex(_))),
                "{line}"
            );
        }
        let twice = r#"{"user":"a","event":"login_failed","remote":{"ip":"192.0.2.1"},"user":"b"}"#;
        assert_eq!(read(&source, twice), Err(NoFailure::Json(JsonError::Twice)));
        assert!(matches!(read(&source, "no json"), Err(NoFailure::Json(_))));
    }

    #[test]
    fn what_is_no_expression_of_fields_is_refused() {
        for (failregex, why) in [
            (
                &["<json:ip><HOST>", "x <HOST>"][..],
                "begins with <json:field>",
            ),
            (&["x<json:ip><HOST>"], "begins with <json:field>"),
            (&["<json:ip"], "is not closed by >"),
            (&["<json:><HOST>"], "wants a path"),
            (&["<json:ip><HOST><json:ip>x"], "stands in it twice"),
            (&["<json:ip>x"], "it names nobody"),
        ] {
            let error = Filter::new(&source(failregex, &[])).unwrap_err();
            assert!(error.message.contains(why), "{failregex:?}: {error}");
        }
        let many: String = (0..40).map(|n| format!("<json:f{n}>x")).collect();
        let error = Filter::new(&source(&[&format!("{many}<json:ip><HOST>")], &[])).unwrap_err();
        assert!(error.message.contains("more than 32 fields"), "{error}");
        let mut over_lines = source(&["<json:ip><HOST>"], &[]);
        over_lines.maxlines = 2;
        let error = Filter::new(&over_lines).unwrap_err();
        assert!(error.message.contains("maxlines"), "{error}");
    }

    /// A megabyte of brackets, of keys and of text costs what it takes to read it.
    #[test]
    fn a_hostile_object_costs_bounded_time() {
        let source = source(&["<json:msg>(?:a+)+b <HOST><json:x>.*"], &[]);
        let filter = Filter::new(&source).unwrap();
        let mut state = filter.state();
        let long = 1 << 20;
        for line in [
            format!("{{\"x\":{}", "[".repeat(long)),
            format!("{{\"x\":[{}1]}}", "1,".repeat(long / 2)),
            format!("{{{}\"x\":1}}", "\"k\":1,".repeat(long / 6)),
            format!("{{\"msg\":\"{}\",\"x\":1}}", "a".repeat(8_000)),
        ] {
            let clock = Clock {
                now: Timestamp::UNIX_EPOCH,
                zone: &TimeZone::UTC,
            };
            let line = LogLine {
                text: &line,
                time: Some(clock.now),
            };
            let begin = std::time::Instant::now();
            assert!(filter.read(&mut state, line, clock).is_err());
            let took = begin.elapsed();
            assert!(took < std::time::Duration::from_millis(500), "{took:?}");
        }
    }
}

//! `--out`: one failure as scripts want it.

use std::{
    io::{self, Write},
    net::IpAddr,
};

use jiff::Timestamp;
use weir_daemon::escape;
use weir_fail2ban::matching::{Failure, WholeLine};

/// Prints a failure of `id` by a format: the name of a part, or a text with tags.
/// `groups`: the names that its expression knows, in their order.
pub fn print(
    out: &mut impl Write,
    format: &str,
    failure: &Failure,
    id: &str,
    groups: &[&str],
) -> io::Result<()> {
    match format {
        "id" | "fid" => writeln!(out, "{}", escape(id)),
        "ip" => writeln!(out, "{}", escape(address(failure, id))),
        "msg" => {
            for line in &failure.lines {
                writeln!(out, "{}", escape(&line.text))?;
            }
            Ok(())
        }
        "matches" => writeln!(out, "{}", matches(failure)),
        "row" => writeln!(
            out,
            "[{},\t{},\t{}],",
            quoted(id),
            time(failure.time),
            row(failure, groups)
        ),
        name if !name.contains('<') => {
            let value = failure.value(name).map(escape);
            writeln!(out, "{}", value.as_deref().unwrap_or("None"))
        }
        text => {
            // A line for each of several lines.
            let texts: Vec<_> = failure
                .lines
                .iter()
                .map(|line| escape(&line.text))
                .collect();
            if text.contains("<msg>") {
                for line in &texts {
                    writeln!(out, "{}", filled(text, failure, id, Some(line)))?;
                }
                return Ok(());
            }
            writeln!(out, "{}", filled(text, failure, id, None))
        }
    }
}

/// The address where the id is more than that.
fn address<'f>(failure: &'f Failure, id: &'f str) -> &'f str {
    let names_more = failure.value("fid").is_some();
    let address = || {
        ["ip4", "ip6", "dns"]
            .iter()
            .find_map(|name| failure.value(name))
    };
    names_more.then(address).flatten().unwrap_or(id)
}

/// A text with values in place of tags; what is no tag stays.
fn filled(text: &str, failure: &Failure, id: &str, line: Option<&str>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = rest.find('<') {
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let Some(end) = rest.find('>') else { break };
        let tag = &rest[1..end];
        match value(tag, failure, id, line) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[..=end]),
        }
        rest = &rest[end + 1..];
    }
    out + rest
}

fn value(tag: &str, failure: &Failure, id: &str, line: Option<&str>) -> Option<String> {
    let ip = address(failure, id);
    let parsed: Option<IpAddr> = ip.parse().ok();
    Some(match tag {
        "ip" => escape(ip),
        "fid" => escape(id),
        "family" => match parsed? {
            IpAddr::V4(_) => "inet4".to_owned(),
            IpAddr::V6(_) => "inet6".to_owned(),
        },
        "ip-rev" => match parsed? {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                format!("{d}.{c}.{b}.{a}.")
            }
            IpAddr::V6(ip) => {
                let nibbles = ip.octets().into_iter().rev();
                let of = |byte: u8| format!("{:x}.{:x}.", byte & 15, byte >> 4);
                nibbles.map(of).collect()
            }
        },
        "time" => time(failure.time),
        "failures" => failure.attempts.to_string(),
        "msg" => line?.to_owned(),
        "matches" => {
            let lines: Vec<_> = failure
                .lines
                .iter()
                .map(|line| escape(&line.text))
                .collect();
            lines.join("\n")
        }
        tag => {
            let name = tag.strip_prefix("F-")?.to_lowercase();
            let name = match name.as_str() {
                "id" => "fid",
                "port" => "fport",
                name => name,
            };
            escape(failure.value(name).unwrap_or_default())
        }
    })
}

/// Seconds since 1970, as Python prints a float.
fn time(time: Option<Timestamp>) -> String {
    match time {
        None => "None".to_owned(),
        Some(time) if time.subsec_nanosecond() == 0 => format!("{}.0", time.as_second()),
        Some(time) => (time.as_nanosecond() as f64 / 1e9).to_string(),
    }
}

/// What the groups hold, as Python prints a dictionary.
fn row(failure: &Failure, groups: &[&str]) -> String {
    let is_shown = |name: &&&str| {
        let helps = ["alt_", "tuple_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        !helps && !matches!(**name, "content" | "mlfforget")
    };
    let mut pairs: Vec<_> = (groups.iter().filter(is_shown))
        .map(|name| {
            let value = failure.value(name).map_or("None".to_owned(), quoted);
            format!("{}: {value}", quoted(name))
        })
        .collect();
    if !failure.users.is_empty() {
        let users: Vec<_> = failure.users.iter().map(|user| quoted(user)).collect();
        pairs.push(format!("'users': {{{}}}", users.join(", ")));
    }
    format!("{{{}}}", pairs.join(", "))
}

/// The lines as Python prints a list of them: before the date, the date, behind it.
fn matches(failure: &Failure) -> String {
    let parts = |line: &WholeLine| {
        let (begin, end) = line.date;
        let parts = [
            &line.text[..begin],
            &line.text[begin..end],
            &line.text[end..],
        ];
        let parts = parts.map(quoted);
        format!("({})", parts.join(", "))
    };
    let lines: Vec<_> = failure.lines.iter().map(|line| parts(line)).collect();
    format!("[{}]", lines.join(", "))
}

/// A text as Python's `repr` has it.
pub fn quoted(text: &str) -> String {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 0x100 && c.is_control() => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c => out.push_str(&escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_python_quotes_them() {
        for (text, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("it's \"so\"", "'it\\'s \"so\"'"),
            ("a\\\n\u{1b}\u{85}é", "'a\\\\\\n\\x1b\\x85é'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}

//! How answers are written: JSON as it came, or lines for a person, with other
//! people's text escaped. A closed pipe ends the output without a fuss.
//!
//! Tables are by hand: comfy-table and tabled wrap or cut the widest columns,
//! where a narrow terminal here loses the least important column first, and
//! what is left, columns padded by spaces, is ten lines.

use std::{
    io::{self, BufWriter, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use jiff::{Timestamp, tz::TimeZone};
use serde_json::{Map, Value};
use weir_daemon::escape;

/// Lines on a terminal are no longer than this, where words allow it.
const COLUMNS: usize = 80;

/// Are times shown in this host's time zone?
static LOCAL: AtomicBool = AtomicBool::new(false);

/// Shows times in this host's time zone from now on, not in UTC.
pub fn local_times() {
    LOCAL.store(true, Relaxed);
}

/// Prints one line.
pub fn line(text: impl AsRef<str>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", text.as_ref())
}

/// Prints text of several lines as it is: nobody else's text is in it but what is escaped.
pub fn text_as_it_is(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

/// Prints text; on a terminal in as many lines as it takes, those after the
/// first one indented by four columns more. A pipe gets one line, for grep.
pub fn wrapped(text: impl AsRef<str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        return writeln!(out, "{}", text.as_ref());
    }
    for line in wrap(text.as_ref()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn wrap(text: &str) -> Vec<String> {
    let indent = text.len() - text.trim_start_matches(' ').len();
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut begun = false;
    for word in text.split_ascii_whitespace() {
        let space = usize::from(begun);
        if begun && width(&line) + space + width(word) > COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent + 4)));
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    lines.push(line);
    lines
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// What a word says about the host, in the colour of a traffic light.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// The state is as it should be.
    Good,
    /// The state is worth a look.
    Doubtful,
    /// The state needs to be mended.
    Bad,
}

/// A line that begins with a word in colour, where a terminal shows it.
pub fn headline(tone: Tone, word: &str, rest: &str) -> io::Result<()> {
    let colour = match tone {
        _ if !has_colours() => None,
        Tone::Good => Some("32"),
        Tone::Doubtful => Some("33"),
        Tone::Bad => Some("31"),
    };
    let Some(colour) = colour else {
        return wrapped(format!("{word}{rest}"));
    };
    // Escape sequences take no columns: they come in once the lines are cut.
    let mut out = io::stdout().lock();
    for (n, line) in wrap(&format!("{word}{rest}")).into_iter().enumerate() {
        match line.strip_prefix(word).filter(|_| n == 0) {
            Some(rest) => writeln!(out, "\x1b[1;{colour}m{word}\x1b[0m{rest}")?,
            None => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

/// Standard output is a terminal, and nobody asked for it to be plain.
fn has_colours() -> bool {
    let asked_not_to = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal()
        && !asked_not_to("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a value as JSON.
pub fn json(value: &Value) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    writeln!(out, "{}", weir_daemon::escape_json(text))?;
    Ok(())
}

/// Prints an object as JSON whose list `name` may be long: each of its rows is made, and printed,
/// in a line of its own before the next one is.
pub fn json_rows(
    name: &str,
    rows: impl Iterator<Item = Value>,
    rest: &Map<String, Value>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    write_json_rows(&mut out, name, rows, rest)?;
    out.flush()?;
    Ok(())
}

fn write_json_rows(
    out: &mut impl Write,
    name: &str,
    rows: impl Iterator<Item = Value>,
    rest: &Map<String, Value>,
) -> io::Result<()> {
    let text = |value: &Value| serde_json::to_string(value).map(weir_daemon::escape_json);
    write!(out, "{{\n  {}: [", text(&name.into())?)?;
    let mut comma = "";
    for row in rows {
        write!(out, "{comma}\n    {}", text(&row)?)?;
        comma = ",";
    }
    let end = if comma.is_empty() { "]" } else { "\n  ]" };
    write!(out, "{end}")?;
    for (name, value) in rest {
        let name = Value::from(name.as_str());
        write!(out, ",\n  {}: {}", text(&name)?, text(value)?)?;
    }
    writeln!(out, "\n}}")
}

/// A text of the answer, escaped; empty if there is none.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The number of an answer with what is counted, as `1 rule` and `2 rules`.
pub fn counted(number: &Value, one: &str, many: &str) -> String {
    weir_daemon::counted(number.as_u64().unwrap_or_default(), one, many)
}

/// When a ban ends and how long that is from now.
pub fn end(ban: &Value) -> String {
    match ban["until"].as_str() {
        Some(until) if ban["remaining_seconds"].is_u64() => {
            format!("until {} ({})", moment(until), left(ban))
        }
        _ => left(ban),
    }
}

/// How long a ban lasts from now.
pub fn left(ban: &Value) -> String {
    match ban["remaining_seconds"].as_u64() {
        Some(left) => {
            let left = std::time::Duration::from_secs(left);
            format!("{} left", weir_core::policy::format_duration(left))
        }
        None => "permanent".to_owned(),
    }
}

/// A timestamp to the second, in UTC unless this host's time was asked for.
pub fn moment(text: &str) -> String {
    let seconds = text.parse::<Timestamp>().map(|time| time.as_second());
    match seconds.and_then(Timestamp::from_second) {
        Ok(time) if LOCAL.load(Relaxed) => time
            .to_zoned(TimeZone::system())
            .strftime("%Y-%m-%dT%H:%M:%S%:z")
            .to_string(),
        Ok(time) => time.to_string(),
        Err(_) => escape(text),
    }
}

/// The producer of a ban, for a sentence.
pub fn by(ban: &Value) -> String {
    match ban["producer"].as_str() {
        Some("manual") => "manual".to_owned(),
        _ => format!("by {}", text(&ban["producer"])),
    }
}

/// Does this ban, or do the bans of this jail, deny no packet?
pub fn only_notifies(ban: &Value) -> bool {
    ban["action"] == "notify"
}

/// On which ports a ban holds, and what is to be said beside it: packets are answered, or
/// none is denied.
pub fn ports(ban: &Value) -> String {
    match ban["action"].as_str() {
        Some("notify") => "none (notifies only)".to_owned(),
        Some("reject") => format!("{} (reject)", text(&ban["scope"])),
        _ => text(&ban["scope"]),
    }
}

/// The columns of the terminal that standard output is; a file or a pipe has none.
pub fn terminal_columns() -> Option<usize> {
    let out = io::stdout();
    out.is_terminal().then(|| {
        let size = terminal_size::terminal_size_of(&out);
        size.map_or(COLUMNS, |(width, _)| usize::from(width.0))
    })
}

fn widths(head: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = head.iter().map(|cell| width(cell)).collect();
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    widths
}

/// The width of the table that [`table`] prints of these rows.
pub fn table_width(head: &[&str], rows: &[Vec<String>]) -> usize {
    let widths = widths(head, rows);
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

/// Shortens columns until the table has room: each of these, in order, down to so
/// many characters; with less than its head has, a column is left out.
pub fn fit(head: &mut Vec<&str>, rows: &mut [Vec<String>], room: usize, columns: &[(&str, usize)]) {
    for (name, least) in columns {
        let over = table_width(head, rows).saturating_sub(room);
        let Some(column) = head
            .iter()
            .position(|head| head == name)
            .filter(|_| over > 0)
        else {
            continue;
        };
        let now = widths(head, rows)[column];
        let new = now.saturating_sub(over).max(*least).min(now);
        if new < width(name) {
            head.remove(column);
            for row in rows.iter_mut() {
                row.remove(column);
            }
            continue;
        }
        for row in rows.iter_mut().filter(|row| width(&row[column]) > new) {
            row[column] = row[column].chars().take(new - 1).chain(['…']).collect();
        }
    }
}

/// A table with columns as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let widths = widths(head, rows);
    let mut out = io::stdout().lock();
    let mut write = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        writeln!(out, "{}", padded.join("  ").trim_end())
    };
    write(&mut head.iter().copied())?;
    for row in rows {
        write(&mut row.iter().map(String::as_str))?;
    }
    Ok(())
}

/// What the administrator should know although it was done.
pub fn warning(answer: &Value) {
    if let Some(warning) = answer["warning"].as_str() {
        // Nobody is left to tell if this fails.
        let _ = writeln!(io::stderr(), "weir: warning: {}", escape(warning));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_json_are_written_as_they_are_made() {
        struct Counting<'c>(&'c std::cell::Cell<usize>, Vec<u8>);
        impl Write for Counting<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1.extend_from_slice(bytes);
                self.0.set(self.1.len());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = std::cell::Cell::new(0);
        let rest: Map<_, _> = [("valid".to_owned(), 3.into())].into_iter().collect();
        let print = |count: u64| {
            let mut before = 0;
            let rows = (0..count).map(|n| {
                // The one before is out.
                assert!(written.get() > before);
                before = written.get();
                serde_json::json!({ "n": n, "text": "\u{202e}" })
            });
            let mut out = Counting(&written, Vec::new());
            write_json_rows(&mut out, "flows", rows, &rest).unwrap();
            String::from_utf8(out.1).unwrap()
        };
        let text = print(2);
        assert!(!text.contains('\u{202e}'), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value["flows"][1],
            serde_json::json!({ "n": 1, "text": "\u{202e}" })
        );
        assert_eq!(value["valid"], 3);
        written.set(0);
        let value: Value = serde_json::from_str(&print(0)).unwrap();
        assert_eq!(value, serde_json::json!({ "flows": [], "valid": 3 }));
    }

    #[test]
    fn lines_for_a_person_fit_into_eighty_columns() {
        let lines = wrap(&format!("  sink a: {}", "delivered, ".repeat(20)));
        assert!(lines.len() > 2);
        for line in &lines {
            assert!(width(line) <= COLUMNS, "{line:?}");
        }
        assert!(lines[0].starts_with("  sink a: delivered,"));
        assert!(lines[1].starts_with("      delivered,"), "{:?}", lines[1]);
        // A word that is longer stands alone.
        let long = "x".repeat(100);
        assert_eq!(
            wrap(&format!("a {long} b")),
            ["a".to_owned(), format!("    {long}"), "    b".to_owned()]
        );
        assert_eq!(wrap("äöü short"), ["äöü short"]);
    }

    #[test]
    fn columns_are_shortened_in_order_until_a_table_fits() {
        const ORDER: [(&str, usize); 4] = [("WHY", 5), ("PORTS", 6), ("BY", 4), ("WHY", 0)];
        let fitted = |room| {
            let mut head = vec!["WHO", "PORTS", "BY", "WHY"];
            let row = ["192.0.2.7", "22/tcp,80/tcp", "jail:sshd", "5 failures"];
            let mut rows = vec![row.map(str::to_owned).to_vec()];
            fit(&mut head, &mut rows, room, &ORDER);
            assert!(rows[0].len() == head.len());
            (table_width(&head, &rows), rows[0].join("  "))
        };
        let whole = "192.0.2.7  22/tcp,80/tcp  jail:sshd  5 failures";
        for (room, shown) in [
            (80, whole),
            (47, whole),
            (46, "192.0.2.7  22/tcp,80/tcp  jail:sshd  5 failur…"),
            (42, "192.0.2.7  22/tcp,80/tcp  jail:sshd  5 fa…"),
            (40, "192.0.2.7  22/tcp,80/…  jail:sshd  5 fa…"),
            (30, "192.0.2.7  22/tc…  jai…  5 fa…"),
            (24, "192.0.2.7  22/tc…  jai…"),
            (10, "192.0.2.7  22/tc…  jai…"),
        ] {
            assert_eq!(fitted(room).1, shown, "{room}");
            assert!(fitted(room).0 <= room.max(23), "{room}");
        }
    }

    #[test]
    fn times_are_in_utc_to_the_second() {
        assert_eq!(moment("2026-11-22T06:30:01.25Z"), "2026-11-22T06:30:01Z");
        assert_eq!(moment("so\u{1b}on"), "so\\u{1b}on");
    }
}

//! How answers are written: JSON as it came, or lines for a person, with other
//! people's text escaped. A closed pipe ends the output without a fuss.

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::Value;
use weir_daemon::escape;

/// Prints one line.
pub fn line(text: impl AsRef<str>) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{}", text.as_ref())
}

/// Prints a value as JSON.
pub fn json(value: &Value) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// A text of the answer, escaped; empty if there is none.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => escape(text),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// When a ban ends and how long that is from now.
pub fn end(ban: &Value) -> String {
    match (ban["until"].as_str(), ban["remaining_seconds"].as_u64()) {
        (Some(until), Some(left)) => format!(
            "until {} ({} left)",
            moment(until),
            weir_daemon::config::duration_text(std::time::Duration::from_secs(left))
        ),
        _ => "until lifted".to_owned(),
    }
}

/// A timestamp to the second.
pub fn moment(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(time) => Timestamp::from_second(time.as_second())
            .map_or_else(|_| escape(text), |time| time.to_string()),
        Err(_) => escape(text),
    }
}

/// Who made it, to go after "by".
pub fn producer(ban: &Value) -> String {
    match ban["producer"].as_str() {
        Some("manual") => "hand".to_owned(),
        _ => text(&ban["producer"]),
    }
}

/// What is to be said beside a ban, where its packets are answered.
pub fn rejected(ban: &Value) -> &'static str {
    match ban["action"].as_str() {
        Some("reject") => " (reject)",
        _ => "",
    }
}

/// A table with columns as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
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

//! `weir filter show`: a filter's definition, written as a file of filter.d has it.

use std::fmt::Write;

use weir_core::detect::{Definition, JsonDefinition, PatternDefinition};

/// The definition in TOML, one pattern a line.
pub fn text(definition: &Definition) -> String {
    let Definition {
        identifiers,
        head,
        time_format,
        json,
        patterns,
        ignore,
        journal_match,
        syslog_only,
        root_only,
        allow_untagged,
    } = definition;
    let mut text = String::new();
    if !identifiers.is_empty() {
        list(
            &mut text,
            "identifiers",
            identifiers.iter().map(|s| quoted(s)),
        );
    }
    for (key, value) in [("head", head), ("time_format", time_format)] {
        if let Some(value) = value {
            push(&mut text, format_args!("{key} = {}\n", quoted(value)));
        }
    }
    if let Some(json) = json {
        push(&mut text, format_args!("json = {}\n", json_table(json)));
    }
    if !journal_match.is_empty() {
        list(
            &mut text,
            "journal_match",
            journal_match.iter().map(|s| quoted(s)),
        );
    }
    for (key, is_set) in [
        ("syslog_only", syslog_only),
        ("root_only", root_only),
        ("allow_untagged", allow_untagged),
    ] {
        if *is_set {
            push(&mut text, format_args!("{key} = true\n"));
        }
    }
    list(&mut text, "patterns", patterns.iter().map(pattern));
    if !ignore.is_empty() {
        list(&mut text, "ignore", ignore.iter().map(|s| quoted(s)));
    }
    text
}

fn list(text: &mut String, key: &str, items: impl Iterator<Item = String>) {
    push(text, format_args!("{key} = [\n"));
    for item in items {
        push(text, format_args!("    {item},\n"));
    }
    text.push_str("]\n");
}

fn json_table(json: &JsonDefinition) -> String {
    let JsonDefinition {
        time,
        time_format,
        message,
    } = json;
    let keys = [
        ("time", time.as_ref()),
        ("time_format", time_format.as_ref()),
        ("message", Some(message)),
    ];
    let keys: Vec<_> = keys
        .into_iter()
        .filter_map(|(key, value)| Some(format!("{key} = {}", quoted(value?))))
        .collect();
    format!("{{ {} }}", keys.join(", "))
}

fn pattern(pattern: &PatternDefinition) -> String {
    let PatternDefinition {
        text,
        announces,
        completes,
        unless_counted,
        max_length,
    } = pattern;
    let mut keys = Vec::new();
    for (key, label) in [("announces", announces), ("completes", completes)] {
        if let Some(label) = label {
            keys.push(format!("{key} = {}", quoted(label)));
        }
    }
    if *unless_counted {
        keys.push("unless_counted = true".to_owned());
    }
    if let Some(length) = max_length {
        keys.push(format!("max_length = {length}"));
    }
    match keys.is_empty() {
        true => quoted(text),
        false => format!("{{ text = {}, {} }}", quoted(text), keys.join(", ")),
    }
}

/// As TOML writes it, as it is where that can be; what steers a terminal is escaped.
fn quoted(text: &str) -> String {
    let steers = |c: char| weir_daemon::escape(c.encode_utf8(&mut [0; 4])).len() > c.len_utf8();
    if text.contains(['"', '\\']) && !text.contains('\'') && !text.contains(steers) {
        return format!("'{text}'");
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if steers(c) => {
                push(&mut quoted, format_args!("\\U{:08X}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("a String takes all");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown, copied to filter.d, is the same filter.
    #[test]
    fn a_definition_that_is_shown_reads_as_itself() {
        let odd = Definition {
            patterns: vec![
                "a \"quoted\" \\[x\\] \u{1b}[2J \u{202e}é <addr>".into(),
                PatternDefinition {
                    text: "b <addr>".into(),
                    announces: Some("one".into()),
                    completes: Some("two".into()),
                    unless_counted: true,
                    max_length: Some(200),
                },
            ],
            ignore: vec!["c <addr>".into()],
            head: Some("\\[<time>\\] '<word>\u{1b}': ".into()),
            time_format: Some("%s".into()),
            json: Some(JsonDefinition {
                time: Some("ts".into()),
                time_format: Some("%s \u{1b}".into()),
                message: "<a.\"b> '\u{202e}<c>".into(),
            }),
            journal_match: vec![
                "_SYSTEMD_UNIT=a \u{1b}.service".into(),
                "+".into(),
                "_UID=0".into(),
            ],
            root_only: true,
            allow_untagged: true,
            ..Definition::default()
        };
        let builtin = Definition::builtin_names().into_iter();
        let builtin = builtin.map(|name| Definition::builtin(name).unwrap().clone());
        for definition in builtin.chain([odd]) {
            let shown = text(&definition);
            assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown}");
            let read: Definition =
                toml::from_str(&shown).unwrap_or_else(|e| panic!("{e}\n{shown}"));
            assert_eq!(read, definition);
        }
    }
}

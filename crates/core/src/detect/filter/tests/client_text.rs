//! Every message of `testdata/sshd/client_text.txt`, with what a client could
//! write into it to accuse somebody else. tests/root_names.rs says the like to a
//! real sshd.

use super::*;

const FAMILIES: [(&str, &str); 2] = [
    ("198.51.100.7", "203.0.113.9"),
    ("2001:db8:bad::7", "2001:db8::9"),
];

/// One row: how often sshd escapes it, its text with the client's address, and
/// how many texts of the client's are in it.
fn rows(own: &str) -> Vec<(usize, String, usize)> {
    let table = include_str!("../../../../../../testdata/sshd/client_text.txt");
    let row = |row: &str| {
        let (escapes, row) = row.split_once(" | ").expect("two columns");
        let row = row.replace("ADDR", own).replace("PORT", "4711");
        let texts = row.split('{').skip(1);
        let digit = |c: char| c.is_ascii_digit();
        let slots = texts.filter(|t| t.trim_start_matches(digit).starts_with('}'));
        let slots = slots.count();
        (escapes.parse().unwrap(), row, slots)
    };
    let lines = table.lines().filter(|row| !row.starts_with('#'));
    lines.map(row).collect()
}

/// Every end of a pattern with the victim's address, and each whole one.
fn lies(definition: &Definition, victim: &str) -> Vec<String> {
    let mut lies = Vec::new();
    for pattern in &definition.patterns {
        let free = ["<user>", "<text>"].map(|field| Some((pattern.text.find(field)?, field)));
        if let Some((at, field)) = free.into_iter().flatten().next() {
            lies.extend(spellings(&pattern.text[at + field.len()..], victim));
        }
        lies.extend(spellings(&pattern.text, victim).into_iter().take(1));
    }
    lies.sort();
    lies.dedup();
    lies.retain(|lie| lie.contains(victim));
    lies
}

/// The ways to write a pattern's part: optional parts with and without,
/// each of a choice, fields with the victim's address.
fn spellings(part: &str, victim: &str) -> Vec<String> {
    let field = |text: &str, name: &str, value: &str| {
        text.replace(&format!("<{name}>"), value)
            .replace(&format!("<{name}:word>"), value)
    };
    let mut all = vec![part.replace("\\[", "\u{1}").replace("\\]", "\u{2}")];
    let mut done = Vec::new();
    while let Some(text) = all.pop() {
        if let Some(end) = text.find(']') {
            let begin = text[..end].rfind('[').expect("balanced");
            let (before, behind) = (&text[..begin], &text[end + 1..]);
            all.push(format!("{before}{behind}"));
            all.push(format!("{before}{}{behind}", &text[begin + 1..end]));
        } else if let Some(begin) = text.find('(') {
            let end = begin + text[begin..].find(')').expect("balanced");
            for choice in text[begin + 1..end].split('|') {
                all.push(format!("{}{choice}{}", &text[..begin], &text[end + 1..]));
            }
        } else {
            let text = field(&text, "addr", victim).replace('\u{1}', "[");
            let text = field(&field(&text, "port", "22"), "word", "w");
            let text = field(&field(&text, "user", "x"), "text", "x");
            done.push(text.replace('\u{2}', "]"));
        }
    }
    done
}

/// What sshd makes of one row of client_text.txt when the client's texts are
/// `texts`, before a syslog daemon cuts it.
fn sshd_writes(row: &str, escapes: usize, texts: &mut dyn Iterator<Item = &str>) -> String {
    let mut message = sshd_escapes(row, escapes, texts);
    message.truncate(500);
    message
}

/// The same with -e or -E, where line breaks are no characters to escape.
fn sshd_writes_raw(row: &str, escapes: usize, texts: &mut dyn Iterator<Item = &str>) -> String {
    let mut message = sshd_escapes(row, escapes, texts);
    message.truncate(1020);
    message + "\r\n"
}

/// What sshd makes of a row, escaped as often as it is handed on.
fn sshd_escapes(row: &str, escapes: usize, texts: &mut dyn Iterator<Item = &str>) -> String {
    fn fill(row: &mut &str, texts: &mut dyn Iterator<Item = &str>, out: &mut String) {
        while let Some(at) = row.find(['{', '}']) {
            out.push_str(&row[..at]);
            let open = &row[at..at + 1] == "{";
            *row = &row[at + 1..];
            if !open {
                return;
            }
            let digits = row.bytes().take_while(u8::is_ascii_digit).count();
            let limit = row[..digits].parse().unwrap_or(usize::MAX);
            *row = &row[digits..];
            let mut part = String::new();
            match row.strip_prefix(':') {
                Some(rest) => {
                    *row = rest;
                    fill(row, texts, &mut part);
                }
                None => {
                    *row = &row[1..];
                    part.push_str(texts.next().expect("a text for each"));
                }
            }
            part.truncate(limit);
            out.push_str(&part);
        }
        out.push_str(row);
        *row = "";
    }
    let mut message = String::new();
    fill(&mut &*row, texts, &mut message);
    for n in 0..escapes {
        // MSGBUFSIZ.
        message.truncate(1023);
        message = message.replace('\\', "\\\\").replace('\u{1}', "\\001");
        message.truncate(1023);
        if n == 1 {
            message.push_str(" [preauth]");
        }
    }
    message
}

/// With every end of a pattern as the client's text: alone, in front of more, and
/// where sshd cuts the message.
#[test]
fn no_text_of_a_client_names_another_address() {
    let definition = Filter::builtin_definition("sshd-aggressive").unwrap();
    let filter = Filter::compile(&definition).unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let (mut tried, mut found) = (0, 0);
    for (own, victim) in FAMILIES {
        let addr: IpAddr = own.parse().unwrap();
        let lies = lies(&definition, victim);
        for (escapes, row, slots) in rows(own) {
            tried += 1;
            for (slot, lie) in (0..slots).flat_map(|s| lies.iter().map(move |l| (s, l))) {
                // 120 characters that sshd escapes are more than a message holds.
                for escaped in 0..120 {
                    let pad = "\u{1}".repeat(escaped);
                    let plain = "x".repeat(escaped);
                    let texts = [
                        format!("{pad}{lie}"),
                        format!("{plain}{lie}"),
                        format!("{lie}{pad}"),
                        format!("{pad}{lie}{}", " ".repeat(500)),
                    ];
                    for text in &texts {
                        let mut texts = (0..slots).map(|s| if s == slot { text } else { "x" });
                        let message = sshd_writes(&row, escapes, &mut texts);
                        let record = Record {
                            line: message.as_bytes(),
                            message_only: true,
                            ..Record::default()
                        };
                        let finding = filter.read(&mut FilterState::default(), &record, &context);
                        if let Some(finding) = finding {
                            assert_eq!(finding.addr, addr, "{row}\n{message}");
                            found += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(tried > 100 && found > 10_000, "{tried} rows, {found} found");
}

/// BusyBox's syslogd reads 255 bytes of what libc sends; others 1,023 or 2,047.
/// The client puts the lie, or its own address, where the line is cut.
#[test]
fn a_line_cut_by_a_syslogd_names_no_other_address() {
    const LENGTHS: [usize; 3] = [255, 1023, 2047];
    let definition = Filter::builtin_definition("sshd-aggressive").unwrap();
    let filter = Filter::compile(&definition).unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let mut cut = 0;
    for (own, victim) in [
        ("198.51.100.77", "203.0.113.9"),
        ("2001:db8:bad::1234", "2001:db8::9"),
    ] {
        let addr: IpAddr = own.parse().unwrap();
        let lies = lies(&definition, victim);
        for (escapes, row, slots) in rows(own) {
            let heads = [
                "<38>Nov 21 04:33:07 sshd[7]: ",
                "<190>Nov 21 04:33:07 sshd-session[4194304]: ",
            ];
            for head in heads {
                let behind = &head[head.find('>').unwrap() + 1..];
                let mut check = |text: &str, slot: usize| {
                    let mut texts = (0..slots).map(|s| if s == slot { text } else { "x" });
                    let message = sshd_writes(&row, escapes, &mut texts);
                    for length in LENGTHS {
                        let Some(message) = message.get(..length - head.len()) else {
                            continue;
                        };
                        cut += 1;
                        // Its file has a host as well, or not.
                        for line in [
                            format!("{behind}{message}"),
                            format!("Nov 21 04:33:07 h auth.info {}{message}", &behind[16..]),
                        ] {
                            let record = Record {
                                line: line.as_bytes(),
                                ..Record::default()
                            };
                            let state = &mut FilterState::default();
                            let finding = filter.read(state, &record, &context);
                            assert!(finding.is_none_or(|f| f.addr == addr), "{line}");
                        }
                    }
                };
                for slot in 0..slots {
                    // One character more or less moves each place of a message
                    // to where it is cut.
                    for escaped in 10..50 {
                        for plain in 0..5 {
                            let pad = "\u{1}".repeat(escaped) + &"x".repeat(plain);
                            check(&pad, slot);
                            for lie in &lies {
                                check(&format!("{pad}{lie}"), slot);
                                if plain == 0 {
                                    check(&format!("{pad}{lie}{}", " ".repeat(100)), slot);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(cut > 10_000, "{cut} lines were cut");
}

/// With -e or -E a client's line break begins an entry of the journal, or a line
/// of the file, of which the client writes every byte.
#[test]
fn a_line_break_that_sshd_does_not_escape_accuses_nobody() {
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    for name in Filter::builtin_names() {
        let definition = Filter::builtin_definition(name).unwrap();
        let filter = Filter::compile(&definition).unwrap();
        let (mut stdout, mut headless) = (0, 0);
        for (own, victim) in FAMILIES {
            let mut whole = vec![
                format!("Invalid user x from {victim}"),
                format!("Failed password for root from {victim} port 22 ssh2"),
            ];
            for head in [
                "Nov 21 04:33:07 h sshd: ",
                "2026-11-21T04:33:07Z h sshd[1]: ",
                "1 - h sshd - - - ",
            ] {
                whole.extend([0, 1].map(|n| format!("{head}{}", whole[n])));
            }
            for (escapes, row, slots) in rows(own) {
                let mut journal = FilterState::default();
                let mut file = FilterState::default();
                for (slot, lie) in (0..slots).flat_map(|s| whole.iter().map(move |l| (s, l))) {
                    for break_ in ["\n", "\r\n", "\r"] {
                        let many = format!("{break_}{lie}").repeat(9);
                        for text in [
                            format!("x{break_}{lie}{break_}"),
                            format!("{break_}{lie}{break_}{lie}"),
                            many,
                        ] {
                            let text = text.as_str();
                            let mut texts = (0..slots).map(|s| if s == slot { text } else { "x" });
                            let written = sshd_writes_raw(&row, escapes, &mut texts);
                            for line in written.split_terminator('\n') {
                                let entry = Record {
                                    line: line.trim_end().as_bytes(),
                                    message_only: true,
                                    writer: Writer {
                                        uid: Some(0),
                                        stdout: true,
                                        ..Writer::default()
                                    },
                                    ..Record::default()
                                };
                                assert_eq!(filter.read(&mut journal, &entry, &context), None);
                                let line = Record {
                                    line: line.as_bytes(),
                                    age: Age::Live,
                                    ..Record::default()
                                };
                                assert_eq!(
                                    filter.read(&mut file, &line, &context),
                                    None,
                                    "{written}"
                                );
                            }
                        }
                    }
                }
                stdout += journal.take_notices().stdout;
                headless += file.take_notices().headless;
            }
        }
        // Each was seen, and said so.
        assert!(
            stdout > 1000 && headless > 1000,
            "{name}: {stdout}, {headless}"
        );
    }
}

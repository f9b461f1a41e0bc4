//! Every message of `testdata/sshd/client_text.txt`, with what a client could
//! write into it to accuse somebody else. tests/root_hostile_usernames.rs says the like to a
//! real sshd.

use super::*;

const FAMILIES: [(&str, &str); 2] = [
    ("198.51.100.7", "203.0.113.9"),
    ("2001:db8:bad::7", "2001:db8::9"),
];

/// One message in which sshd logs texts of a client's.
struct Row {
    /// The client's own address.
    addr: IpAddr,
    /// How often sshd escapes it.
    escapes: usize,
    message: String,
    /// How many texts of the client's are in it.
    slots: usize,
}

fn rows(own: &str) -> Vec<Row> {
    let table = include_str!("../../../../../../testdata/sshd/client_text.txt");
    let row = |row: &str| {
        let (escapes, row) = row.split_once(" | ").expect("two columns");
        let message = row.replace("ADDR", own).replace("PORT", "4711");
        let texts = message.split('{').skip(1);
        let digit = |c: char| c.is_ascii_digit();
        let slots = texts.filter(|t| t.trim_start_matches(digit).starts_with('}'));
        Row {
            addr: own.parse().unwrap(),
            escapes: escapes.parse().unwrap(),
            slots: slots.count(),
            message,
        }
    };
    let lines = table.lines().filter(|row| !row.starts_with('#'));
    lines.map(row).collect()
}

/// Every row, with the lies about a victim of the same family.
fn for_each_row(
    definition: &Definition,
    families: [(&str, &str); 2],
    mut each: impl FnMut(&Row, &[String]),
) {
    for (own, victim) in families {
        let lies = lies(definition, victim);
        rows(own).iter().for_each(|row| each(row, &lies));
    }
}

fn compiled(name: &str) -> (Definition, Program) {
    let definition = Definition::builtin(name).unwrap().clone();
    let filter = definition.compile().unwrap();
    (definition, filter)
}

fn context() -> Context<'static> {
    static ZONE: TimeZone = TimeZone::UTC;
    Context {
        now: NOW.parse().unwrap(),
        zone: &ZONE,
    }
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

impl Row {
    /// What sshd makes of it with `text` in this slot, before a syslog daemon cuts
    /// it.
    fn written(&self, slot: usize, text: &str) -> String {
        let mut message = self.escaped(slot, text);
        message.truncate(500);
        message
    }

    /// The same with -e or -E, where line breaks are no characters to escape.
    fn written_raw(&self, slot: usize, text: &str) -> String {
        let mut message = self.escaped(slot, text);
        message.truncate(1020);
        message + "\r\n"
    }

    fn escaped(&self, slot: usize, text: &str) -> String {
        let mut texts = (0..self.slots).map(|s| if s == slot { text } else { "x" });
        sshd_escapes(&self.message, self.escapes, &mut texts)
    }
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
    let (definition, filter) = compiled("sshd-aggressive");
    let context = context();
    let (mut tried, mut found) = (0, 0);
    for_each_row(&definition, FAMILIES, |row, lies| {
        tried += 1;
        for (slot, lie) in (0..row.slots).flat_map(|s| lies.iter().map(move |l| (s, l))) {
            // 120 characters that sshd escapes are more than a message holds.
            for escaped in 0..120 {
                let pad = "\u{1}".repeat(escaped);
                let plain = "x".repeat(escaped);
                for text in [
                    format!("{pad}{lie}"),
                    format!("{plain}{lie}"),
                    format!("{lie}{pad}"),
                    format!("{pad}{lie}{}", " ".repeat(500)),
                ] {
                    let message = row.written(slot, &text);
                    let record = Record {
                        line: message.as_bytes(),
                        message_only: true,
                        ..Record::default()
                    };
                    let finding = filter.read(&mut ProgramState::default(), &record, &context);
                    if let Some(finding) = finding {
                        assert_eq!(
                            finding.offender,
                            row.addr.into(),
                            "{}\n{message}",
                            row.message
                        );
                        found += 1;
                    }
                }
            }
        }
    });
    assert!(tried > 100 && found > 10_000, "{tried} rows, {found} found");
}

/// A message without the optional part, whose address that part fits, or one in
/// which the client's text touches the address: a client would write another's
/// address into it, and the pattern is no part of any filter.
#[test]
fn a_pattern_in_which_a_client_can_name_somebody_else_is_refused() {
    let compiled = |pattern: &str| {
        let definition = Definition {
            patterns: vec![pattern.into()],
            ..Definition::default()
        };
        definition.compile().map(drop).map_err(|e| e.to_string())
    };
    for (pattern, message) in [
        // Read from the start.
        (
            "rejected [<word> ]<addr>: <text>",
            "rejected 192.0.2.7: 203.0.113.9: x",
        ),
        (
            "rejected [<word> ]<addr> <text>",
            "rejected 192.0.2.7 203.0.113.9 x",
        ),
        (
            "rejected [<word> - ]<addr>: <text>",
            "rejected 192.0.2.7: - 203.0.113.9: x",
        ),
        (
            "[<word> <word> ]no <addr>: <text>",
            "no 192.0.2.7: no 203.0.113.9: x",
        ),
        (
            "[[<word> ]<word> ]no <addr>: <text>",
            "no 192.0.2.7: no 203.0.113.9: x",
        ),
        (
            "no [<word> ]<addr>[ port <port>]: <text>",
            "no 192.0.2.7: 203.0.113.9: x",
        ),
        (
            "no [<number> ][<word> ]<addr>, <user>",
            "no 192.0.2.7, 203.0.113.9, x",
        ),
        ("no [<word> ]<addr> a<text>", "no 192.0.2.7 abcd::9 ax"),
        ("no <addr>:<text>", "no 2001:db8::7:9:"),
        (
            "no <addr>[ port <port>]:<text>",
            "no 2001:db8::7:9 port 22:",
        ),
        // Read from the end.
        (
            "closed by <user> <addr>[ <word>]",
            "closed by 203.0.113.9 192.0.2.7",
        ),
        (
            "closed by <user>: <addr>[ <word>]",
            "closed by 2001:db8:: 192.0.2.7",
        ),
        ("<text> <addr>[ <word>][ again]", "203.0.113.9 192.0.2.7"),
        ("<text> by <addr>[ by <word>]", "203.0.113.9 by 192.0.2.7"),
        (
            "<user> at <addr>[, <word> at <word>]",
            "203.0.113.9, x at 192.0.2.7",
        ),
        (
            "(a|b) user <user> rhost=<addr>[  <word>]",
            "a user x rhost=203.0.113.9  rhost=192.0.2.7",
        ),
        ("<user>:<addr>", "2001:db8:7::9"),
        ("<user><addr>", "1192.0.2.7"),
        ("<user>-eth0 <addr>[ <word>]", "fe80::1%x-eth0 192.0.2.7"),
    ] {
        let error = compiled(pattern).expect_err(pattern);
        assert!(
            error.contains("an address of its choice"),
            "{pattern}, {message}: {error}"
        );
    }
    for pattern in [
        "rejected <word> <addr>: <text>",
        "rejected [again ]<addr>: <text>",
        "rejected [<number> ]<addr>: <text>",
        "rejected [<number>, ]<addr>: <text>",
        "rejected [by <word> ]<addr>: <text>",
        "[<word> ]rejected <addr>: <text>",
        "no [<word> ]<addr> of <user:word> x",
        "no <addr>[ port <port>]: <text>",
        "no <addr>[ port <port>]:[ ]<number>: <text>",
        "no \\[<addr>\\]:<port> <text>",
        "no <addr>#<port> <text>",
        "closed by <user> <addr>",
        "closed by <user> <addr>[ port <port>][ \\[preauth\\]]",
        "closed by <user> from <addr>[ via <word>]",
        "closed by <user>, <addr>[ \\(<number>\\)]",
        "closed by <user:word> <addr>[ <word>]",
        "(a|b) user <user> rhost=<addr>[  user=(root|admin)]",
        "<user>: <addr>",
    ] {
        compiled(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
    }
}

/// What is said to write instead of an optional part that fits the address: in
/// this order each line is read with the address that the program wrote.
#[test]
fn of_two_patterns_the_one_without_the_optional_part_stands_first() {
    let with_part = Definition {
        patterns: vec!["rejected [<word> ]<addr>: <text>".into()],
        ..Definition::default()
    };
    let error = with_part.compile().map(drop).unwrap_err().to_string();
    let advice = "two patterns, the one without the optional part first";
    assert!(error.contains(advice), "{error}");
    let guide = include_str!("../../../../../../docs/guide/write-a-filter.md");
    assert!(guide.contains(advice));
    let filter = Definition {
        patterns: vec![
            "rejected <addr>: <text>".into(),
            "rejected <word> <addr>: <text>".into(),
        ],
        ..Definition::default()
    };
    let filter = filter.compile().unwrap();
    for (own, victim) in FAMILIES {
        for message in [
            format!("rejected {own}: {victim}: x"),
            format!("rejected mail {own}: {victim}: x"),
        ] {
            let record = Record {
                line: message.as_bytes(),
                message_only: true,
                ..Record::default()
            };
            let found = filter.read(&mut ProgramState::default(), &record, &context());
            let own: IpAddr = own.parse().unwrap();
            assert_eq!(found.unwrap().offender, own.into(), "{message}");
        }
    }
}

/// However many ways there are to read it, a pattern is judged in a moment.
#[test]
fn the_longest_pattern_is_judged_soon() {
    for part in ["[<word> ]", "[<number>[ <word>]]", "<word> ", "(a|aa|aaa)"] {
        let pattern = format!("{}<addr>: <text>", part.repeat((1024 - 14) / part.len()));
        let definition = Definition {
            patterns: vec![pattern.as_str().into()],
            ..Definition::default()
        };
        let begun = std::time::Instant::now();
        // Whether it is refused for what it says, or unjudged.
        let _: Result<Program, _> = definition.compile();
        let took = begun.elapsed();
        assert!(
            took < std::time::Duration::from_secs(20),
            "{part}: {took:?}"
        );
    }
}

/// BusyBox's syslogd reads 255 bytes of what libc sends; others 1,023 or 2,047.
/// The client puts the lie, or its own address, where the line is cut.
#[test]
fn a_line_cut_by_a_syslogd_names_no_other_address() {
    const LENGTHS: [usize; 3] = [255, 1023, 2047];
    const LONG: [(&str, &str); 2] = [
        ("198.51.100.77", "203.0.113.9"),
        ("2001:db8:bad::1234", "2001:db8::9"),
    ];
    let (definition, filter) = compiled("sshd-aggressive");
    let context = context();
    let mut cut = 0;
    for_each_row(&definition, LONG, |row, lies| {
        let heads = [
            "<38>Nov 21 04:33:07 sshd[7]: ",
            "<190>Nov 21 04:33:07 sshd-session[4194304]: ",
        ];
        for head in heads {
            let behind = &head[head.find('>').unwrap() + 1..];
            let mut check = |text: &str, slot: usize| {
                let message = row.written(slot, text);
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
                        let finding = filter.read(&mut ProgramState::default(), &record, &context);
                        assert!(
                            finding.is_none_or(|f| f.offender == row.addr.into()),
                            "{line}"
                        );
                    }
                }
            };
            for slot in 0..row.slots {
                // One character more or less moves each place of a message to
                // where it is cut.
                for escaped in 10..50 {
                    for plain in 0..5 {
                        let pad = "\u{1}".repeat(escaped) + &"x".repeat(plain);
                        check(&pad, slot);
                        for lie in lies {
                            check(&format!("{pad}{lie}"), slot);
                            if plain == 0 {
                                check(&format!("{pad}{lie}{}", " ".repeat(100)), slot);
                            }
                        }
                    }
                }
            }
        }
    });
    assert!(cut > 10_000, "{cut} lines were cut");
}

/// With -e or -E a client's line break begins an entry of the journal, or a line
/// of the file, of which the client writes every byte.
#[test]
fn a_line_break_that_sshd_does_not_escape_accuses_nobody() {
    let context = context();
    for name in Definition::builtin_names() {
        let (_, filter) = compiled(name);
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
            for row in rows(own) {
                let mut journal = ProgramState::default();
                let mut file = ProgramState::default();
                for (slot, lie) in (0..row.slots).flat_map(|s| whole.iter().map(move |l| (s, l))) {
                    for break_ in ["\n", "\r\n", "\r"] {
                        let many = format!("{break_}{lie}").repeat(9);
                        for text in [
                            format!("x{break_}{lie}{break_}"),
                            format!("{break_}{lie}{break_}{lie}"),
                            many,
                        ] {
                            let written = row.written_raw(slot, &text);
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

/// With -e or -E behind something that puts a time stamp before each line, and no
/// tag: a client's line has a stamp, and every tag that the client wants.
#[test]
fn a_line_break_behind_a_stamp_without_a_tag_accuses_nobody() {
    // `ts`, an ISO 8601 stamp, `svlogd -tt`, `svlogd -t`.
    const STAMPS: [&str; 4] = [
        "Nov 21 04:33:07 ",
        "2026-11-21T04:33:07.123456+00:00 ",
        "2026-11-21_04:33:07.12345 ",
        "@400000006741bd03075bcd15 ",
    ];
    let context = context();
    for name in Definition::builtin_names() {
        let (definition, filter) = compiled(name);
        let allowing = compile(Definition {
            allow_untagged: true,
            ..definition
        });
        let allowing = allowing.unwrap();
        let (mut headless, mut allowed) = (0, 0);
        for (own, victim) in FAMILIES {
            let mut whole = Vec::new();
            for head in ["h sshd[1]: ", "sshd: ", "h auth.info sshd[1]: ", ""] {
                whole.push(format!("{head}Invalid user x from {victim}"));
                whole.push(format!(
                    "{head}Failed password for root from {victim} port 22 ssh2"
                ));
            }
            // What PAM says goes to syslog, whoever asks it.
            let rows = rows(own).into_iter();
            for row in rows.filter(|row| !row.message.starts_with("pam_")) {
                for (slot, lie) in (0..row.slots).flat_map(|s| whole.iter().map(move |l| (s, l))) {
                    let many_heads = "a: \n".repeat(240);
                    for text in [
                        format!("x\n{lie}\n"),
                        format!("\n{lie}\r\n{lie}"),
                        format!("{lie}\n{lie}\n"),
                        format!("a: b\n{lie}\n"),
                        format!("sshd[1]: a\n{lie}\n"),
                        format!("-- MARK --\n{lie}\n"),
                        format!("last message repeated 2 times\n{lie}\n"),
                        format!("x\n{many_heads}{lie}\n"),
                    ] {
                        let written = row.written_raw(slot, &text);
                        for stamp in STAMPS {
                            // As if nothing had been in the log before.
                            let (mut state, mut other) = <(ProgramState, ProgramState)>::default();
                            for line in written.split_terminator('\n') {
                                let line = format!("{stamp}{line}");
                                let record = Record {
                                    line: line.as_bytes(),
                                    age: Age::Live,
                                    ..Record::default()
                                };
                                let finding = filter.read(&mut state, &record, &context);
                                assert_eq!(finding, None, "{line:?} in {written}");
                                let finding = allowing.read(&mut other, &record, &context);
                                allowed += u64::from(finding.is_some());
                            }
                            headless += state.take_notices().headless;
                        }
                    }
                }
            }
        }
        assert!(
            headless > 1000 && allowed > 1000,
            "{name}: {headless} were told of, {allowed} with allow_untagged"
        );
    }
}

/// A syslog daemon's own lines have no tag either, and other logs have none at all.
#[test]
fn lines_without_a_tag_count_where_they_are_no_sign_of_a_client() {
    const FAILURE: &str =
        "Nov 21 04:33:07 host sshd[7]: Failed password for root from 192.0.2.7 port 22 ssh2";
    let context = context();
    let counts = |filter: &Program, lines: &[&str]| {
        let mut state = ProgramState::default();
        let read = lines.iter().map(|line| {
            let record = Record {
                line: line.as_bytes(),
                age: Age::Live,
                ..Record::default()
            };
            let finding = filter.read(&mut state, &record, &context);
            finding.map_or(0, |finding| finding.attempts)
        });
        read.sum::<u32>()
    };
    let sshd = Program::builtin("sshd").unwrap();
    for (before, expected) in [
        ("Nov 21 04:33:07 host -- MARK --", 1),
        ("Nov 21 04:33:07 host last message repeated 2 times", 1),
        ("Nov 21 04:33:07 host kernel: x", 1),
        ("Nov 21 04:33:07 host su(pam_unix)[7]: x", 1),
        ("Nov 21 04:33:07 host some_daemon: x", 1),
        ("Nov 21 04:33:07 host anything else", 0),
        ("Nov 21 04:33:07 kex_exchange_identification: x", 0),
    ] {
        assert_eq!(counts(&sshd, &[before, FAILURE]), expected, "{before}");
    }
    // As syslog daemons and programs write them; `true`: once the host is known.
    for (before, needs_host) in [
        (
            "Jan 21 21:29:12 host gdm-password]: gkr-pam: unlocked login keyring",
            false,
        ),
        ("Jan 21 21:29:12 host gdm-launch-environment]: x", false),
        ("Jun  9 06:06:20 host syslogd 1.4.1: restart.", false),
        (
            "Jun  9 06:06:20 host syslogd (GNU inetutils 2.4): restart",
            false,
        ),
        ("Nov 21 04:33:07 backup_db: x", false),
        ("Nov 21 04:33:07 host gnome shell[16940]: x", true),
        (
            "Nov 21 04:33:07 host systemd-networkd-wait-online[123 text",
            true,
        ),
    ] {
        let alone = counts(&sshd, &[before, FAILURE]);
        assert_eq!(alone, u32::from(!needs_host), "{before}");
        assert_eq!(counts(&sshd, &[FAILURE, before, FAILURE]), 2, "{before}");
        // Behind a line that is evidence a client may have written the host, too.
        let lines = ["Nov 21 04:33:07 Invalid user x", FAILURE, before, FAILURE];
        assert_eq!(counts(&sshd, &lines), 0, "{before}");
    }
    for before in [
        "Nov 21 04:33:07 host anything else",
        "Nov 21 04:33:07 other gnome shell[16940]: x",
        "Nov 21 04:33:07 Invalid user shell[16940]: x",
        "Nov 21 04:33:07 host Invalid user shell[16940]: x",
        "Nov 21 04:33:07 host User shell[16940]: x",
        "Nov 21 04:33:07 Connection from x]: x",
    ] {
        assert_eq!(counts(&sshd, &[FAILURE, before, FAILURE]), 1, "{before}");
    }
    // Without identifiers no line of the log has a tag, and each one counts.
    let nginx = compile(Definition {
        patterns: vec!["<word> <text>, client: <addr>, server: x".into()],
        ..Definition::default()
    })
    .unwrap();
    let refused = "2026/11/21 04:33:07 [error] 7#7: x, client: 192.0.2.7, server: x";
    let stamped = "2026-11-21T04:33:07Z [error] 7#7: x, client: 192.0.2.7, server: x";
    assert_eq!(counts(&nginx, &[refused, stamped, "x", refused]), 3);
    // A program whose name looks like a function of OpenSSH's.
    let own = compile(Definition {
        identifiers: vec!["my_app".into()],
        patterns: vec!["refused <addr>".into()],
        ..Definition::default()
    })
    .unwrap();
    assert_eq!(
        counts(&own, &["Nov 21 04:33:07 my_app: refused 192.0.2.7"; 2]),
        2
    );
}

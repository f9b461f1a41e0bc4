//! Whom a program's lines name beside addresses.

use super::*;

fn filter(patterns: &[&str]) -> Program {
    compile(Definition {
        patterns: patterns.iter().map(|text| (*text).into()).collect(),
        ignore: vec!["<user> of <prefix> is a monitor".into()],
        ..Definition::default()
    })
    .unwrap()
}

/// What a line tells, or why it tells nothing, and what was noticed of it.
fn told(filter: &Program, line: &str) -> (Result<String, String>, u64) {
    let mut state = ProgramState::default();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let line = format!("2026-11-21T04:59:07Z {line}");
    let record = Record {
        line: line.as_bytes(),
        ..Record::default()
    };
    let told = match filter.read(&mut state, &record, &context) {
        Some(finding) => Ok(finding.offender.to_string()),
        None => Err(filter.explain(&state, &record, &context).to_string()),
    };
    (told, state.take_notices().refused)
}

#[test]
fn a_prefix_is_an_offender_as_a_whole() {
    let filter = filter(&[
        "<user> of <prefix> is a monitor",
        "too many connections from network <prefix>, limit <number>",
        "<text> blocked \\[<prefix>\\]",
        "over quota: <prefix>/<word>",
        "full: <prefix>[ of <number>]:",
    ]);
    for (line, offender) in [
        ("x of 192.0.2.0/24 is a spammer", None),
        ("x of 192.0.2.0/24 is a monitor", None),
        (
            "too many connections from network 192.0.2.77/24, limit 9",
            Some("192.0.2.0/24"),
        ),
        (
            "too many connections from network 2001:db8:1::/48, limit 9",
            Some("2001:db8:1::/48"),
        ),
        (
            "too many connections from network 192.0.2.7, limit 9",
            Some("192.0.2.7"),
        ),
        (
            "x blocked [203.0.113.0/24] blocked [2001:db8::/56]",
            Some("2001:db8::/56"),
        ),
        // The byte that ends the field could be part of it.
        ("over quota: 192.0.2.0/24/x", Some("192.0.2.0/24")),
        ("over quota: 2001:db8::7/x", Some("2001:db8::7")),
        ("full: 192.0.2.0/24:", Some("192.0.2.0/24")),
        ("full: 2001:db8::/48:", Some("2001:db8::/48")),
        ("full: 2001:db8::/48 of 9:", Some("2001:db8::/48")),
        ("too many connections from network x/24, limit 9", None),
    ] {
        let (told, refused) = told(&filter, line);
        assert_eq!(told.ok().as_deref(), offender, "{line}");
        assert_eq!(refused, 0, "{line}");
    }
}

#[test]
fn a_prefix_that_cannot_be_counted_is_noticed() {
    let filter = filter(&["network <prefix> is over quota", "<text> from <prefix>"]);
    for (line, said) in [
        ("network 0.0.0.0/0 is over quota", "wider"),
        ("network ::/0 is over quota", "wider"),
        ("network 10.0.0.0/15 is over quota", "wider"),
        ("network 192.0.2.0/33 is over quota", "out of range"),
        ("x from 2001:db8::/129", "out of range"),
    ] {
        let (told, refused) = told(&filter, line);
        let why = told.expect_err(line);
        assert!(
            why.contains("cannot be counted") && why.contains(said),
            "{why}"
        );
        assert_eq!(refused, 1, "{line}");
    }
    let mut state = ProgramState::default();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    for user in ["x", "y"] {
        let line = format!("{user} {} from ::/0", "z".repeat(8000));
        let record = Record {
            line: line.as_bytes(),
            message_only: true,
            ..Record::default()
        };
        assert_eq!(filter.read(&mut state, &record, &context), None);
    }
    // The first is shown, and not all of it.
    let notices = state.take_notices();
    assert_eq!((notices.refused, notices.refused_line.len()), (2, 100));
    assert!(notices.refused_line.starts_with(b"x zzz"));
    assert_eq!(state.take_notices(), Notices::default());
}

#[test]
fn a_pattern_that_names_no_address_has_no_connection() {
    for (text, message) in [
        (
            "patterns = ['<addr> <prefix>']",
            "more than one <addr>, <prefix> or <host>",
        ),
        (
            "patterns = ['x[ <prefix>]']",
            "it needs one <addr>, <prefix> or <host>",
        ),
        (
            "patterns = ['<addr>', { text = '<prefix>', unless_counted = true }]",
            "patterns[1] has <prefix> or <host>",
        ),
        (
            "patterns = [{ text = '<prefix>', announces = 'x' }]",
            "patterns[0] has <prefix> or <host>",
        ),
        (
            "patterns = [{ text = '<addr>', announces = 'x' }, { text = '<prefix>', completes = 'x' }]",
            "patterns[1] has <prefix> or <host>",
        ),
        (
            "patterns = ['rejected [<word> ]<prefix>: <text>']",
            "an address of its choice where <addr> is read",
        ),
        (
            "patterns = ['<user> from <prefix> because <text>']",
            "client text on both sides",
        ),
        (
            "patterns = ['<text> from <host> as <user:word>']",
            "client text on both sides",
        ),
        (
            "patterns = ['rejected [<word> ]<host>: <text>']",
            "where <addr> is read",
        ),
        (
            "patterns = ['rejected <host>:<text>']",
            "where <addr> is read",
        ),
        ("patterns = ['<user><host>']", "where <addr> is read"),
        (
            "patterns = ['<host> <addr>']",
            "more than one <addr>, <prefix> or <host>",
        ),
        (
            "patterns = [{ text = '<host>', unless_counted = true }]",
            "patterns[0] has <prefix> or <host>",
        ),
    ] {
        let definition: Definition = toml::from_str(text).unwrap();
        let error = definition.compile().expect_err(text).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_host_name_is_an_offender() {
    let filter = filter(&[
        "rejected <host>",
        "no login for <user> from <host>:<port>",
        "lost <host>\\[unknown\\]",
        "bye <number> <host>",
        "rhost=<host> failed",
        "<text> by <host>.",
        "open <host>[ port <port>]: gone",
    ]);
    assert!(filter.names_hosts() && !filter.names_prefixes());
    for (line, offender, refused) in [
        ("rejected Mail.Example.ORG", Ok("mail.example.org"), 0),
        ("rejected mail.example.org.", Ok("mail.example.org"), 0),
        ("rejected 2001:db8::7", Ok("2001:db8::7"), 0),
        ("no login for x from host:22", Ok("host"), 0),
        ("no login for from a:22 from ::1:22", Ok("::1"), 0),
        ("lost example.org[unknown]", Ok("example.org"), 0),
        ("rhost=example.org failed", Ok("example.org"), 0),
        ("bye 7 192.0.2.7", Ok("192.0.2.7"), 0),
        ("x by mail.example.org.", Ok("mail.example.org"), 0),
        ("x by 192.0.2.7.", Ok("192.0.2.7"), 0),
        ("open example.org port 25: gone", Ok("example.org"), 0),
        ("open example.org: gone", Ok("example.org"), 0),
        ("open 2001:db8::7: gone", Ok("2001:db8::7"), 0),
        ("open b*d: gone", Err("neither an address nor"), 1),
        ("open b*d port 25: gone", Err("neither an address nor"), 1),
        (
            "rejected b\u{fc}cher.example",
            Err("neither an address nor"),
            1,
        ),
        ("rejected *.example.org", Err("neither an address nor"), 1),
        ("rejected ../../etc", Err("neither an address nor"), 1),
        ("rejected 192.0.2.700", Err("neither an address nor"), 1),
        ("rejected 192.0.2.0/24", Err("neither an address nor"), 1),
        ("rejected a\u{1b}[2J", Err("no pattern fits"), 0),
        ("rejected a b", Err("no pattern fits"), 0),
        ("rejected ", Err("no pattern fits"), 0),
    ] {
        let (told, noticed) = told(&filter, line);
        match offender {
            Ok(offender) => assert_eq!(told.as_deref(), Ok(offender), "{line}"),
            Err(said) => assert!(told.as_ref().unwrap_err().contains(said), "{told:?}"),
        }
        assert_eq!(noticed, refused, "{line}");
    }
    let (longest, noticed) = told(&filter, &format!("rejected {}", "x.".repeat(127)));
    assert_eq!((longest.is_ok(), noticed), (true, 0));
    let (longer, noticed) = told(&filter, &format!("rejected {}", "x.".repeat(128)));
    assert!(longer.unwrap_err().contains("more than the 253 bytes"));
    assert_eq!(noticed, 1);
}

/// Blanks at a message's ends are cut off, by us or by a syslog daemon before us.
#[test]
fn a_message_with_an_empty_text_at_its_end_is_read() {
    for own in ["192.0.2.7", "2001:db8::7", "2001:db8::"] {
        for (pattern, said) in [
            ("refused ADDR: <text>", format!("refused {own}: ")),
            ("refused ADDR: <user>", format!("refused {own}: ")),
            ("refused ADDR <text>", format!("refused {own} ")),
            (
                "refused ADDR[ port <port>]: <text>",
                format!("refused {own} port 22: "),
            ),
            (
                "refused ADDR( - |, by |,  )<text>",
                format!("refused {own} - "),
            ),
            (
                "refused ADDR( - |, by |,  )<text>",
                format!("refused {own},  "),
            ),
            ("<text> from ADDR", format!(" from {own}")),
            (
                "<user> from ADDR[ port <port>]",
                format!(" from {own} port 22"),
            ),
            ("<user> at ADDR[, port <port>]", format!(" at {own}")),
            ("<user> ADDR", format!(" {own}")),
        ] {
            for form in ["<addr>", "<prefix>", "<host>"] {
                let filter = filter(&[&pattern.replace("ADDR", form)]);
                for line in [
                    said.clone(),
                    said.trim().to_owned(),
                    format!("\t{said}\r\n"),
                    format!("message repeated 3 times: [ {}]", said.trim_start()),
                    format!("message repeated 3 times: [ {}]", said.trim()),
                ] {
                    let found = told(&filter, &line);
                    assert_eq!(found, (Ok(own.to_owned()), 0), "{pattern}: {line:?}");
                }
            }
        }
        for (pattern, said) in [
            ("refused <addr>: <user>", format!("refused {own}: ")),
            ("<user> by <addr>", format!(" by {own}")),
        ] {
            let record = Record {
                line: said.as_bytes(),
                ..Record::default()
            };
            let zone = TimeZone::UTC;
            let context = Context {
                now: NOW.parse().unwrap(),
                zone: &zone,
            };
            let found = filter(&[pattern]).read(&mut ProgramState::default(), &record, &context);
            assert_eq!(found.unwrap().user.as_deref(), Some(""), "{said:?}");
        }
        // What is left of the text beside it is all of it.
        for (pattern, said) in [
            ("refused <addr>: <user>", format!("refused {own}")),
            ("refused <addr>: <user>", format!("refused {own}:x")),
            ("refused <addr>: <user>", format!("x refused {own}:")),
            ("<user> by <addr>", format!("by {own} x")),
            ("<user> by <addr>", format!("xby {own}")),
        ] {
            assert!(told(&filter(&[pattern]), &said).0.is_err(), "{said:?}");
        }
    }
}

/// Nor do they have another pattern read what a client wrote, so many times.
#[test]
fn a_text_that_looks_like_a_repeated_message_names_nobody_else() {
    let filter = filter(&[
        "<user> from \\[<addr>\\]",
        "refused <addr> at <word> from <word>",
    ]);
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    for [own, other] in [["192.0.2.7", "203.0.113.9"], ["2001:db8::7", "2001:db8::9"]] {
        let user = format!("message repeated 9 times: [ refused {other} at x");
        let message = format!("{user} from [{own}]");
        let record = Record {
            line: message.as_bytes(),
            message_only: true,
            ..Record::default()
        };
        let found = filter.read(&mut ProgramState::default(), &record, &context);
        let found = found.unwrap();
        assert_eq!(found.offender.to_string(), own);
        assert_eq!(found.attempts, 1);
    }
}

/// rsyslog's words around a repeated message can be a client's own.
#[test]
fn a_text_that_looks_like_a_repeated_message_hides_nothing() {
    let filter = filter(&["<user> \\[<addr>\\]"]);
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    for own in ["192.0.2.7", "2001:db8::7"] {
        for (message, attempts) in [
            (format!("x [{own}]"), 1),
            (format!("message repeated 3 times: [ x [{own}]]"), 3),
            (format!("message repeated 3 times: [ x [{own}]"), 1),
            (format!("message repeated 3 times: [{own}]"), 1),
            (format!(" message repeated 3 times: [ x [{own}]\r\n"), 1),
        ] {
            let record = Record {
                line: message.as_bytes(),
                message_only: true,
                ..Record::default()
            };
            let mut state = ProgramState::default();
            let told = filter.explain(&state, &record, &context);
            assert_eq!(told, Miss::Counted, "{message:?}");
            let found = filter.read(&mut state, &record, &context).unwrap();
            assert_eq!(found.offender.to_string(), own, "{message:?}");
            assert_eq!(found.attempts, attempts, "{message:?}");
        }
    }
}

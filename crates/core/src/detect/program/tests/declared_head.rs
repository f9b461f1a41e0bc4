//! Filters that declare what stands before their messages.

use super::*;
use crate::detect::{LineHead, Miss, line_heads, notices::HEAD_NEVER_FITS};

fn shop(head: &str, identifiers: &[&str], time_format: Option<&str>) -> Program {
    let definition = Definition {
        head: Some(head.to_owned()),
        time_format: time_format.map(str::to_owned),
        identifiers: identifiers.iter().map(|&tag| tag.to_owned()).collect(),
        patterns: vec!["login of <user> from <addr> refused".into()],
        ..Definition::default()
    };
    definition
        .compile()
        .unwrap_or_else(|e| panic!("{head}: {e}"))
}

fn read(program: &Program, state: &mut ProgramState, line: &str) -> Option<Finding> {
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let record = Record {
        line: line.as_bytes(),
        ..Record::default()
    };
    program.read(state, &record, &context)
}

#[test]
fn a_program_is_read_behind_the_head_that_its_filter_declares() {
    let state = &mut ProgramState::default();
    let program = shop(r"\[<time>\] <tag>[\[<pid>\]]: ", &["shopd"], None);
    assert!(program.identifiers().eq(["shopd"]));
    let said = "login of a: b from 2001:db8::7 refused";
    for (line, time) in [
        (format!("[2026-11-21 04:33:07] shopd: {said}"), "04:33:07"),
        (
            format!("[2026-11-21T05:33:07.5+01:00] shopd[7]: {said}"),
            "04:33:07.5",
        ),
        (format!("[Nov 21 04:33:07] shopd: {said}"), "04:33:07"),
    ] {
        let found = read(&program, state, &line).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(
            found.offender,
            "2001:db8::7".parse::<IpAddr>().unwrap().into()
        );
        assert_eq!(found.user.as_deref(), Some("a: b"));
        assert_eq!(found.time.to_string(), format!("2026-11-21T{time}Z"));
        assert_eq!(found.clock, Clock::Stamp);
    }
    for line in [
        format!("[2026-11-21 04:33:07] other: {said}"),
        format!("2026-11-21 04:33:07 shopd: {said}"),
        format!("Nov 21 04:33:07 host shopd: {said}"),
        said.to_owned(),
    ] {
        assert_eq!(read(&program, state, &line), None, "{line}");
    }
    // Without identifiers everybody's, in a form of its own.
    let format = Some("%d/%b/%Y:%T %z");
    let program = shop(r"<word> - \[<time>\] ", &[], format);
    let line = format!("- - [21/Nov/2026:05:33:07 +0100] {said}");
    let found = read(&program, state, &line).expect("it is declared");
    assert_eq!(found.time.to_string(), "2026-11-21T04:33:07Z");
    // What the source says is the message has no head.
    let record = Record {
        line: said.as_bytes(),
        message_only: true,
        ..Record::default()
    };
    let zone = TimeZone::UTC;
    let now = NOW.parse().unwrap();
    let context = Context { now, zone: &zone };
    assert!(program.read(state, &record, &context).is_some());
}

/// A declared head that says what a known one is finds the same.
#[test]
fn syslogs_head_declared_finds_what_syslogs_head_finds() {
    let declared = Definition {
        head: Some(r"<time> <host> <tag>[\[<pid>\]]: ".to_owned()),
        ..Definition::builtin("sshd").unwrap().clone()
    };
    let (declared, known) = (
        compile(declared).unwrap(),
        Program::builtin("sshd").unwrap(),
    );
    let mut states = [ProgramState::default(), ProgramState::default()];
    let (mut lines, mut found) = (0, 0);
    for text in include_str!("../../../../../../testdata/sshd/messages.txt").lines() {
        let Some(message) = text.splitn(4, '|').nth(3).map(str::trim) else {
            continue;
        };
        let line = format!("Nov 21 04:33:07 host sshd[{}]: {message}", 7 + lines);
        assert_eq!(
            line_heads([line.as_bytes()].into_iter()),
            [LineHead::Syslog("sshd".into())]
        );
        let [one, other] = &mut states;
        let finding = read(&declared, one, &line);
        assert_eq!(finding, read(&known, other, &line), "{line}");
        found += usize::from(finding.is_some());
        lines += 1;
    }
    assert!(lines > 50 && found > 20, "{found} of {lines}");
}

#[test]
fn a_head_that_never_fits_is_noticed() {
    let program = shop(r"\[<time>\] ", &[], None);
    let mut state = ProgramState::default();
    let wrong = "22.11.2026 04:33:07 login of x from 192.0.2.7 refused";
    let read_wrong = |state: &mut ProgramState, times: u32| {
        for _ in 0..times {
            assert_eq!(read(&program, state, wrong), None);
        }
        state.take_notices()
    };
    // The rest of a message with line breaks.
    let few = HEAD_NEVER_FITS - 1;
    assert_eq!(read_wrong(&mut state, few), Notices::default());
    assert!(read(&program, &mut state, "[2026-11-21 04:33:07] x").is_none());
    let fitted = Notices {
        fits: true,
        ..Notices::default()
    };
    assert_eq!(read_wrong(&mut state, few), fitted);
    let notices = read_wrong(&mut state, 3);
    assert_eq!((notices.unfit, notices.fits), (3, false));
    assert_eq!(notices.line.unwrap().text, wrong.as_bytes());
    assert_eq!(program.fits_declared_head(wrong.as_bytes()), Some(false));

    let zone = TimeZone::UTC;
    let now = NOW.parse().unwrap();
    let context = Context { now, zone: &zone };
    let record = Record {
        line: wrong.as_bytes(),
        ..Record::default()
    };
    let miss = program.explain(&state, &record, &context);
    assert!(matches!(miss, Miss::NoDeclaredHead { .. }), "{miss:?}");
    let said = "its start is not the filter's head, which wants \"[\" there";
    assert_eq!(miss.to_string(), said);
    let miss = Miss::NoDeclaredHead {
        read: "[2026".into(),
        wanted: "\"]\"".into(),
    };
    let said = "its start is not the filter's head, which wants \"]\" behind \"[2026\"";
    assert_eq!(miss.to_string(), said);
}

/// A jail's files may have heads of different forms.
#[test]
fn a_file_whose_head_fits_hides_no_other() {
    let program = shop(r"\[<time>\] ", &[], None);
    let mut state = ProgramState::default();
    let zone = TimeZone::UTC;
    let now = NOW.parse().unwrap();
    let context = Context { now, zone: &zone };
    for _ in 0..HEAD_NEVER_FITS {
        for (stream, line) in [(0, "[2026-11-21 04:33:07] x"), (1, "22.11.2026 x")] {
            let record = Record {
                line: line.as_bytes(),
                stream,
                ..Record::default()
            };
            program.read(&mut state, &record, &context);
        }
    }
    let notices = state.take_notices();
    assert_eq!((notices.unfit, notices.fits), (1, true));
    assert_eq!(notices.line.unwrap().text, b"22.11.2026 x");
}

#[test]
fn keys_that_do_not_go_with_a_head_are_refused() {
    let with = |change: fn(&mut Definition)| {
        let mut definition = Definition {
            head: Some("<time> <word>: ".into()),
            patterns: vec!["<addr>".into()],
            ..Definition::default()
        };
        change(&mut definition);
        compile(definition).map(drop).unwrap_err().to_string()
    };
    for (said, change) in [
        (
            "no <tag> in it",
            (|d| d.identifiers = vec!["x".into()]) as fn(&mut Definition),
        ),
        ("no allow_untagged with head", |d| d.allow_untagged = true),
        ("time_format: it is for the <time>", |d| {
            d.head = None;
            d.time_format = Some("%s".into());
        }),
    ] {
        let error = with(change);
        assert!(error.contains(said), "{error}");
    }
}

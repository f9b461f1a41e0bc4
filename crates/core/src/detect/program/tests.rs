use super::*;
use crate::detect::{Age, Clock, Definition, DefinitionError, MAX_LINE, PatternDefinition, Writer};
use jiff::{Timestamp, tz::TimeZone};
use std::net::IpAddr;

mod client_text;
mod declared_head;
mod impersonation;
mod json_message;
mod offenders;

const NOW: &str = "2026-11-21T05:00:00Z";

fn compile(definition: Definition) -> Result<Program, DefinitionError> {
    definition.compile()
}

fn read_all(filter: &str, lines: &[&str]) -> Vec<Option<Finding>> {
    let filter = Program::builtin(filter).expect("a built-in filter");
    let mut state = ProgramState::default();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    lines
        .iter()
        .map(|line| {
            let line = format!("Nov 21 04:33:07 host sshd[1]: {line}");
            let record = Record {
                line: line.as_bytes(),
                time: None,
                message_only: false,
                age: Age::Unknown,
                ..Record::default()
            };
            filter.read(&mut state, &record, &context)
        })
        .collect()
}

fn attempts(filter: &str, lines: &[&str]) -> u32 {
    read_all(filter, lines)
        .into_iter()
        .flatten()
        .map(|f| f.attempts)
        .sum()
}

/// `testdata/sshd/messages.txt`: address or `-` per filter, user, message.
#[test]
fn sshd_messages() {
    let table = include_str!("../../../../../testdata/sshd/messages.txt");
    let mut rows = 0;
    for row in table
        .lines()
        .filter(|r| !r.starts_with('#') && !r.is_empty())
    {
        let mut columns = row.splitn(4, '|').map(str::trim);
        let mut next = || columns.next().expect("four columns");
        let (normal, aggressive, user, message) = (next(), next(), next(), next());
        for (name, expected) in [("sshd", normal), ("sshd-aggressive", aggressive)] {
            let found = read_all(name, &[message]).remove(0);
            let addr = found
                .as_ref()
                .map_or("-".to_owned(), |f| f.offender.to_string());
            assert_eq!(addr, expected, "{name}: {message}");
            if let Some(found) = found {
                assert_eq!(
                    found.user.as_deref().unwrap_or("-"),
                    user,
                    "{name}: {message}"
                );
                assert_eq!(found.time.to_string(), "2026-11-21T04:33:07Z");
            }
        }
        rows += 1;
    }
    assert!(rows > 40, "{rows} rows read");
}

/// Two hosts that write to one log: a process of each serves the same port of a
/// client that comes to both.
#[test]
fn hosts_of_one_log_have_connections_of_their_own() {
    let filter = Program::builtin("sshd").expect("a built-in filter");
    let mut state = ProgramState::default();
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &TimeZone::UTC,
    };
    let said = [
        "Invalid user x from 192.0.2.7 port 4711",
        "Failed password for invalid user x from 192.0.2.7 port 4711 ssh2",
    ];
    let mut counts = |host, message| {
        let line = format!("Nov 21 04:33:07 {host} sshd[77]: {message}");
        let record = Record {
            line: line.as_bytes(),
            ..Record::default()
        };
        filter.read(&mut state, &record, &context).is_some()
    };
    for (host, message, expected) in [
        ("a", said[0], true),
        ("b", said[1], true),
        ("a", said[1], false),
        ("b", said[0], true),
        ("b", said[1], false),
    ] {
        assert_eq!(counts(host, message), expected, "{host}: {message}");
    }
}

#[test]
fn one_attempt_counts_once() {
    let invalid = "Invalid user bob from 192.0.2.7 port 4711";
    let failed = "Failed password for invalid user bob from 192.0.2.7 port 4711 ssh2";
    let other = "Failed password for invalid user bob from 192.0.2.7 port 4712 ssh2";
    let none = "Failed none for invalid user bob from 192.0.2.7 port 4711 ssh2";
    let root = "Failed password for root from 192.0.2.7 port 4711 ssh2";
    let refused = "ROOT LOGIN REFUSED FROM 192.0.2.7 port 4711";
    let pam = "error: PAM: Authentication failure for root from 192.0.2.7";
    let pam_invalid = "error: PAM: Authentication failure for illegal user bob from 192.0.2.7";
    let typed = "Failed keyboard-interactive/pam for root from 192.0.2.7 port 4711 ssh2";
    let most = "error: maximum authentication attempts exceeded for root from 192.0.2.7 port 4711 ssh2 [preauth]";
    let denied = "User mail from 192.0.2.7 not allowed because not listed in AllowUsers";
    let denied_failed = "Failed password for invalid user mail from 192.0.2.7 port 4711 ssh2";
    let closed = "Connection closed by invalid user bob 192.0.2.7 port 4711 [preauth]";
    // rsyslog's: all but one of them tell of attempts of their own.
    let repeated = &format!("message repeated 3 times: [ {failed}]");
    let repeated_most = &format!("message repeated 2 times: [ {most}]");
    for (lines, expected) in [
        (&[invalid][..], 1),
        (&[invalid, failed], 1),
        (&[invalid, none, failed, failed], 2),
        (&[failed, failed], 2),
        (&[invalid, other], 2),
        (&[none], 1),
        (&[invalid, root], 2),
        (&[root, root, root, most], 3),
        (&[most], 1),
        (&[refused, root, root], 2),
        (&[pam, pam, typed], 2),
        (&[invalid, repeated], 3),
        (&[invalid, failed, repeated], 4),
        (&[failed, repeated], 4),
        (&[root, repeated_most], 1),
        (&[repeated_most], 1),
        (&[invalid, pam_invalid, failed], 1),
        (&[denied, denied_failed], 1),
        (&[invalid, closed, invalid, failed], 2),
    ] {
        assert_eq!(attempts("sshd", lines), expected, "{lines:?}");
    }
    assert_eq!(attempts("sshd-aggressive", &[invalid, failed, closed]), 1);
    assert_eq!(attempts("sshd-aggressive", &[closed]), 1);
    let late = "fatal: Timeout before authentication for 192.0.2.7 port 4711";
    assert_eq!(attempts("sshd-aggressive", &[root, late]), 1);
    let late = "Timeout before authentication for connection from 192.0.2.7 to 192.0.2.1, pid = 9";
    assert_eq!(attempts("sshd-aggressive", &[late, late]), 2);
}

/// A client binds its port as it likes, and another process serves it then.
#[test]
fn a_port_used_again_is_another_connection() {
    let filter = Program::builtin("sshd-aggressive").unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let messages = [
        "Connection closed by authenticating user root 192.0.2.7 port 4711 [preauth]",
        "Connection closed by 192.0.2.7 port 4711 [preauth]",
        "Invalid user bob from 192.0.2.7 port 4711",
        "Failed password for invalid user bob from 192.0.2.7 port 4711 ssh2",
    ];
    for (pids, message, expected) in [
        ([1, 1, 1, 1], messages[0], 1),
        ([1, 2, 2, 3], messages[0], 3),
        ([1, 2, 3, 4], messages[1], 4),
        ([0, 0, 0, 0], messages[1], 1),
    ] {
        let mut states = [ProgramState::default(), ProgramState::default()];
        let mut counted = [0, 0];
        for pid in pids {
            let line = format!("Nov 21 04:33:07 host sshd[{pid}]: {message}");
            let in_file = Record {
                line: line.as_bytes(),
                ..Record::default()
            };
            let in_journal = Record {
                line: message.as_bytes(),
                message_only: true,
                writer: Writer {
                    pid: (pid > 0).then_some(pid),
                    ..Writer::default()
                },
                ..Record::default()
            };
            for (n, record) in [in_file, in_journal].iter().enumerate() {
                let finding = filter.read(&mut states[n], record, &context);
                counted[n] += finding.map_or(0, |finding| finding.attempts);
            }
        }
        assert_eq!(counted, [expected; 2], "{pids:?} {message}");
    }
    // What tells of one attempt is of one process.
    let mut state = ProgramState::default();
    let mut read = |pid: u32, message: &str| {
        let line = format!("<38>1 2026-11-21T04:33:07Z host sshd {pid} - - {message}");
        let record = Record {
            line: line.as_bytes(),
            ..Record::default()
        };
        let finding = filter.read(&mut state, &record, &context);
        finding.map_or(0, |finding| finding.attempts)
    };
    let counted = [
        read(1, messages[2]),
        read(1, messages[3]),
        read(2, messages[3]),
        read(3, messages[2]),
        read(3, messages[3]),
    ];
    assert_eq!(counted, [1, 0, 1, 1, 0]);
}

#[test]
fn what_a_log_daemon_dropped_is_noticed_in_a_file() {
    let filter = Program::builtin("sshd").unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let mut state = ProgramState::default();
    for line in [
        "Nov 21 04:33:07 host rsyslogd: imuxsock[7]: 842 messages lost due to rate-limiting (200 allowed within 5 seconds)",
        "Nov 21 04:33:07 host systemd-journald[9]: Suppressed 158 messages from ssh.service",
        "Nov 21 04:33:07 host systemd-journald[9]: Suppressed 500 messages from nginx.service",
        // sshd does not speak for the log daemon.
        "Nov 21 04:33:07 host sshd[7]: Suppressed 77 messages from ssh.service",
    ] {
        let record = Record {
            line: line.as_bytes(),
            ..Record::default()
        };
        assert_eq!(filter.read(&mut state, &record, &context), None);
    }
    let noticed = Notices {
        rate_limited: 1000,
        ..Notices::default()
    };
    assert_eq!(state.take_notices(), noticed);
    assert_eq!(state.take_notices(), Notices::default());
}

#[test]
fn joined_lines_count_each() {
    let line = "message repeated 3 times: [ Failed password for root from 192.0.2.7 port 22 ssh2]";
    assert_eq!(attempts("sshd", &[line]), 3);
    for n in ["0", "", "-1", "99999999999", "x"] {
        let line = format!(
            "message repeated {n} times: [ Failed password for root from 192.0.2.7 port 22 ssh2]"
        );
        assert_eq!(read_all("sshd", &[&line]), [None], "{line}");
        assert_eq!(repeated(line.as_bytes()), (1, line.as_bytes()));
    }
}

/// The blanks that a client has written count as they do where nothing is joined, and
/// what rsyslog may have cut is read where the end says nothing.
#[test]
fn a_joined_message_is_as_long_as_it_was() {
    let pattern = |text: &str, max_length| PatternDefinition {
        max_length,
        ..PatternDefinition::from(text)
    };
    let reads = |pattern: PatternDefinition, line: &str| {
        let filter = compile(Definition {
            patterns: vec![pattern],
            ..Definition::default()
        })
        .unwrap();
        let zone = TimeZone::UTC;
        let context = Context {
            now: NOW.parse().unwrap(),
            zone: &zone,
        };
        let record = Record {
            line: line.as_bytes(),
            message_only: true,
            ..Record::default()
        };
        let found = filter.read(&mut ProgramState::default(), &record, &context);
        found.map_or(0, |finding| finding.attempts)
    };
    let joined = |text: &str| format!("message repeated 3 times: [{text}]");
    let text = "no x from 192.0.2.7";
    for (blanks, is_read) in [(0, true), (5, true), (6, false)] {
        let closed = || pattern("no <user> from <addr>", Some(text.len() + 5));
        let line = format!("{text}{}", " ".repeat(blanks));
        assert_eq!(reads(closed(), &line), u32::from(is_read), "{line:?}");
        let with_blank = joined(&format!(" {line}"));
        for line in [joined(&line), with_blank.clone(), format!(" {with_blank}")] {
            let outside = line.len() - line.trim_ascii().len();
            let expected = if is_read && blanks + outside <= 5 {
                3
            } else {
                0
            };
            assert_eq!(reads(closed(), &line), expected, "{line:?}");
        }
    }
    for (length, is_whole) in [(798, true), (799, false), (900, false)] {
        let user = "x".repeat(length - " no  from 192.0.2.7".len() + 1);
        let line = joined(&format!(" no {user} from 192.0.2.7"));
        let found = reads(pattern("no <user> from <addr>", None), &line);
        assert_eq!(found, if is_whole { 3 } else { 0 }, "{length}");
        let line = joined(&format!(" no 192.0.2.7: {user}yz"));
        assert_eq!(
            reads(pattern("no <addr>: <text>", None), &line),
            3,
            "{length}"
        );
        // Nor is rsyslog's bracket the program's.
        let line = joined(&format!(" {user}vwxyzab [192.0.2.7"));
        let found = reads(pattern("<user> \\[<addr>\\]", None), &line);
        assert_eq!(found, u32::from(is_whole), "{length}");
        // Of a message that is not joined it says nothing.
        let line = format!("no {user} from 192.0.2.7");
        assert_eq!(line.len(), length);
        assert_eq!(
            reads(pattern("no <user> from <addr>", None), &line),
            1,
            "{length}"
        );
    }
}

#[test]
fn heads_and_journal_records() {
    let filter = Program::builtin("sshd").unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let text = "Failed password for root from 192.0.2.7 port 22 ssh2";
    let mut state = ProgramState::default();
    let mut read = |line: &str, time: Option<&str>, message_only| {
        let time = time.map(|t| t.parse().unwrap());
        let record = Record {
            line: line.as_bytes(),
            time,
            message_only,
            age: Age::Unknown,
            ..Record::default()
        };
        filter
            .read(&mut state, &record, &context)
            .map(|f| f.time.to_string())
    };
    for (head, time) in [
        ("Nov 21 04:33:07 host sshd[1]: ", "2026-11-21T04:33:07Z"),
        (
            "Nov 21 04:33:07 host sshd-session[17]: ",
            "2026-11-21T04:33:07Z",
        ),
        ("Nov 21 04:33:07 host sshd: ", "2026-11-21T04:33:07Z"),
        ("Nov 21 04:33:07 sshd[1]: ", "2026-11-21T04:33:07Z"),
        ("Nov 1 04:33:07 host sshd[1]: ", "2026-11-01T04:33:07Z"),
        (
            "<38>1 2026-11-21T04:33:07.5Z host sshd 77 - - ",
            "2026-11-21T04:33:07.5Z",
        ),
        ("<38>1 - host sshd 77 - - ", NOW),
        (
            "2026-11-21T04:33:07.123456+00:00 host sshd[1]: ",
            "2026-11-21T04:33:07.123456Z",
        ),
        (
            "2026-11-21T05:33:07+01:00 host sshd[1]: ",
            "2026-11-21T04:33:07Z",
        ),
        ("Xov 21 04:33:07 host sshd[1]: ", NOW),
    ] {
        assert_eq!(
            read(&format!("{head}{text}"), None, false).as_deref(),
            Some(time),
            "{head}"
        );
    }
    for head in [
        "",
        "Nov 21 04:33:07 host cron[1]: ",
        "Nov 21 04:33:07 host sshdx[1]: ",
        "Nov 21 04:33:07 host cron[1]: sshd[1]: ",
        "Nov 21 04:33:07 myapp: sshd: ",
        "Nov 21 04:33:07 myapp sshd[1]: sshd[1]: ",
    ] {
        assert_eq!(read(&format!("{head}{text}"), None, false), None, "{head}");
    }
    let time = "2026-11-21T04:00:00.5Z";
    assert_eq!(read(text, Some(time), true).as_deref(), Some(time));
    assert_eq!(read(text, None, true).as_deref(), Some(NOW));
}

#[test]
fn a_definition_is_toml_and_its_errors_name_the_pattern() {
    let definition: Definition = toml::from_str(
        r"
        patterns = [
            'login failed for <user> \[<addr>\]',
            { text = 'denied <addr>', unless_counted = true },
        ]
        ",
    )
    .unwrap();
    let filter = definition.compile().unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let record = Record {
        line: b"2026-11-21T04:33:07Z login failed for \xff\x00 [192.0.2.7]",
        time: None,
        message_only: false,
        age: Age::Unknown,
        ..Record::default()
    };
    let found = filter
        .read(&mut ProgramState::default(), &record, &context)
        .unwrap();
    assert_eq!(found.user.as_deref(), Some("\u{fffd}\0"));
    for (text, message) in [
        ("patterns = []", "at least one pattern"),
        ("patterns = ['x']", "patterns[0] \"x\": it needs one <addr>"),
        (
            "patterns = ['<addr>']\nignore = ['<ip>']",
            "ignore[0] \"<ip>\": <ip> is not a field",
        ),
        (
            "patterns = ['<addr>']\nidentifiers = ['a b']",
            "identifier \"a b\"",
        ),
        (
            "patterns = [{ text = '<addr>', completes = 'x' }]",
            "which no pattern announces",
        ),
    ] {
        let definition: Definition = toml::from_str(text).unwrap();
        let error = definition.compile().expect_err(text).to_string();
        assert!(error.contains(message), "{error}");
    }
    for text in [
        "pattern = []",
        "patterns = [1]",
        "patterns = [{ text = 'x', once = true }]",
        "patterns = [{}]",
    ] {
        assert!(toml::from_str::<Definition>(text).is_err(), "{text}");
    }
    let error = toml::from_str::<Definition>("patterns = [1]").unwrap_err();
    let wanted = "expected a pattern: a string, or a table";
    assert!(error.to_string().contains(wanted), "{error}");
}

#[test]
fn a_filter_of_roots_entries_reads_some_of_roots() {
    for (words, is_fine) in [
        (&[][..], true),
        (&["_SYSTEMD_UNIT=shop.service"], true),
        (&["_UID=0"], true),
        (&["_UID=33"], false),
        (&["_COMM=shop", "_UID=33", "+", "_UID=0"], true),
        (&["_UID=33", "+", "_COMM=shop", "_UID=34"], false),
    ] {
        for root_only in [true, false] {
            let compiled = compile(Definition {
                patterns: vec!["<addr>".into()],
                journal_match: words.iter().map(|word| (*word).to_owned()).collect(),
                root_only,
                ..Definition::default()
            });
            let expected = match is_fine || !root_only {
                true => Ok(()),
                false => Err(DefinitionError::RootOnly),
            };
            assert_eq!(compiled.map(drop), expected, "{words:?}, {root_only}");
        }
    }
}

#[test]
fn user_names_and_lines_are_bounded() {
    // Cut where the attacker wants the line to end.
    let filter = compile(Definition {
        identifiers: vec!["sshd".into()],
        patterns: vec!["Failed password for <user> from <addr> port <port> ssh2".into()],
        ..Definition::default()
    })
    .unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let head = "Nov 21 04:33:07 host sshd[1]: Failed password for ";
    let tail = " from 203.0.113.9 port 22 ssh2";
    for (len, more, count) in [
        (MAX_LINE - 1, "", true),
        (MAX_LINE, " from 198.51.100.7 port 22 ssh2", false),
    ] {
        let user = "x".repeat(len - head.len() - tail.len());
        let line = format!("{head}{user}{tail}{more}");
        let record = Record {
            line: line.as_bytes(),
            ..Record::default()
        };
        let found = filter.read(&mut ProgramState::default(), &record, &context);
        assert_eq!(found.is_some(), count);
    }
    let line = format!(
        "Failed password for {} from 192.0.2.7 port 22 ssh2",
        "\u{1F980}x".repeat(25)
    );
    let user = read_all("sshd", &[&line]).remove(0).unwrap().user.unwrap();
    assert!(user.len() <= MAX_USER && user.len() > 56);
}

/// sshd cuts at 500 bytes and a journal trims spaces; tests/root_hostile_usernames.rs has
/// a real sshd write the like.
#[test]
fn a_name_that_ends_a_cut_message_names_no_address() {
    for head in [
        "Connection closed by invalid user ",
        "Connection reset by authenticating user ",
        "Disconnected from invalid user ",
    ] {
        for lie in [" 1.1.1.1 port 1", " 203.0.113.9 port 22 [preauth]"] {
            let true_end = " 192.0.2.7 port 4711 [preauth]";
            // Of 187 characters, as few control characters as fill it.
            for control in 0..187 - lie.len() {
                let spaces = 187 - lie.len() - control;
                let name = format!("{}{lie}{}", "\\\\001".repeat(control), " ".repeat(spaces));
                let mut message = format!("{head}{name}{true_end}");
                message.truncate(500);
                for found in read_all("sshd-aggressive", &[&message, message.trim_end()]) {
                    let from = found.map(|f| f.offender.to_string());
                    assert!(from.is_none_or(|f| f == "192.0.2.7"), "{message:?}");
                }
            }
        }
        let message = format!("{head}bob 192.0.2.7 port 4711 [preauth]");
        assert_eq!(attempts("sshd-aggressive", &[&message]), 1);
    }
}

proptest::proptest! {
    /// Whatever the user name is, the address is the one that sshd appended.
    #[test]
    fn a_user_name_cannot_name_an_address(user in "( from |port |ssh2|203\\.0\\.113\\.9|22|[a-z :\\[\\]<>%.]|\\PC){0,20}") {
        for line in [
            format!("Failed password for invalid user {user} from 198.51.100.7 port 4711 ssh2"),
            format!("Failed password for {user} from 198.51.100.7 port 4711 ssh2"),
            format!("Invalid user {user} from 198.51.100.7 port 4711"),
            format!("Invalid user {user} from 198.51.100.7"),
            format!("Connection closed by invalid user {user} 198.51.100.7 port 4711 [preauth]"),
            format!("error: maximum authentication attempts exceeded for {user} from 198.51.100.7 port 4711 ssh2 [preauth]"),
        ] {
            let found = read_all("sshd-aggressive", &[&line]).remove(0);
            // Longer ones may have been cut.
            assert!(found.is_some() || line.len() > 210, "{line} is a failure");
            if let Some(found) = found {
                assert_eq!(found.offender.to_string(), "198.51.100.7", "{line}");
            }
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(line in proptest::collection::vec(proptest::num::u8::ANY, 0..200), cut in 0usize..120) {
        let whole = b"Nov 21 04:33:07 host sshd[1]: message repeated 3 times: [ Failed password for root from 192.0.2.7 port 22 ssh2]";
        let mut mixed = whole[..cut.min(whole.len())].to_vec();
        mixed.extend(&line);
        let filter = Program::builtin("sshd-aggressive").unwrap();
        let zone = TimeZone::UTC;
        let context = Context { now: NOW.parse().unwrap(), zone: &zone };
        for line in [&line, &mixed] {
            for message_only in [false, true] {
                let record = Record { line, message_only, ..Record::default() };
                filter.read(&mut ProgramState::default(), &record, &context);
            }
        }
    }
}

#[test]
fn a_line_without_a_stamp_has_the_time_of_its_record() {
    let definition: PatternDefinition = "denied <addr>".into();
    let filter = compile(Definition {
        patterns: vec![definition],
        ..Definition::default()
    })
    .unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let recorded: Timestamp = "2026-11-21T04:59:00Z".parse().unwrap();
    let time = |line: &str, time| {
        let record = Record {
            line: line.as_bytes(),
            time,
            message_only: false,
            age: Age::Unknown,
            ..Record::default()
        };
        let finding = filter.read(&mut ProgramState::default(), &record, &context);
        finding.expect("matches").time
    };
    let bare = "denied 192.0.2.7";
    assert_eq!(time(bare, Some(recorded)), recorded);
    assert_eq!(time(bare, None), context.now);
    // What a server says of itself is closer to what happened.
    let stamped = "2026-11-21T04:58:57Z denied 192.0.2.7";
    let said = "2026-11-21T04:58:57Z".parse().unwrap();
    assert_eq!(time(stamped, Some(recorded)), said);
}

/// A filter of lines without host and tag.
fn denied() -> Program {
    compile(Definition {
        patterns: vec!["denied <addr>".into()],
        ..Definition::default()
    })
    .unwrap()
}

#[test]
fn a_stamp_counts_as_far_as_it_can_be() {
    let filter = denied();
    let zone = TimeZone::UTC;
    let now: Timestamp = NOW.parse().unwrap();
    let context = Context { now, zone: &zone };
    let read = |line: &str, time: Option<&str>, age| {
        let record = Record {
            line: line.as_bytes(),
            time: time.map(|time| time.parse().unwrap()),
            message_only: false,
            age,
            ..Record::default()
        };
        let finding = filter.read(&mut ProgramState::default(), &record, &context)?;
        Some((finding.time.to_string(), finding.clock))
    };
    let hours = |hours| Clock::Off(jiff::SignedDuration::from_hours(hours));
    let (hour_ago, hour_ahead) = ("2026-11-21T04:00:00Z", "2026-11-21T06:00:00Z");
    let stamped = |stamp: &str| format!("{stamp} denied 192.0.2.7");
    for (line, time, age, expected) in [
        // A zone that does not fit.
        (stamped(hour_ago), None, Age::Live, Some((NOW, hours(-1)))),
        (stamped(hour_ahead), None, Age::Live, Some((NOW, hours(1)))),
        (
            stamped("Nov 21 04:00:00"),
            None,
            Age::Live,
            Some((NOW, hours(-1))),
        ),
        // Written late, or by a clock that is a little off.
        (
            stamped("2026-11-21T04:55:00Z"),
            None,
            Age::Live,
            Some(("2026-11-21T04:55:00Z", Clock::Stamp)),
        ),
        (
            stamped("2026-11-21T05:05:00Z"),
            None,
            Age::Live,
            Some(("2026-11-21T05:05:00Z", Clock::Stamp)),
        ),
        // What lay there is as old as it says, and else nobody knows.
        (
            stamped(hour_ago),
            None,
            Age::Backlog,
            Some((hour_ago, Clock::Stamp)),
        ),
        (stamped(hour_ahead), None, Age::Backlog, None),
        ("denied 192.0.2.7".into(), None, Age::Backlog, None),
        (
            "21/Nov/2026:04:00:00 denied 192.0.2.7".into(),
            None,
            Age::Backlog,
            None,
        ),
        (
            "denied 192.0.2.7".into(),
            None,
            Age::Live,
            Some((NOW, Clock::Now)),
        ),
        (
            "denied 192.0.2.7".into(),
            None,
            Age::Unknown,
            Some((NOW, Clock::Now)),
        ),
        (
            stamped(hour_ago),
            None,
            Age::Unknown,
            Some((hour_ago, Clock::Stamp)),
        ),
        // A ring's record has a time; its stamp is judged by that one.
        (
            stamped(hour_ago),
            Some(hour_ago),
            Age::Unknown,
            Some((hour_ago, Clock::Stamp)),
        ),
        (
            stamped(hour_ago),
            Some(NOW),
            Age::Unknown,
            Some((NOW, hours(-1))),
        ),
        (
            "denied 192.0.2.7".into(),
            Some(hour_ago),
            Age::Unknown,
            Some((hour_ago, Clock::Source)),
        ),
    ] {
        let expected = expected.map(|(time, clock)| (time.to_owned(), clock));
        assert_eq!(read(&line, time, age), expected, "{line} {time:?} {age:?}");
    }
}

#[test]
fn a_line_that_missed_is_explained() {
    let sshd = Program::builtin("sshd").unwrap();
    let own = compile(Definition {
        identifiers: vec!["shop".into()],
        patterns: vec![
            "login of <user> from <addr> port <port> refused".into(),
            PatternDefinition {
                unless_counted: true,
                max_length: Some(30),
                ..PatternDefinition::from("no <addr>:<port>[ <number>]")
            },
        ],
        ignore: vec!["login of monitor from <addr> port <port> refused".into()],
        ..Definition::default()
    })
    .unwrap();
    let bare = compile(Definition {
        patterns: vec!["login of <user> from <addr> refused".into()],
        ..Definition::default()
    })
    .unwrap();
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let why = |filter: &Program, line: &str, age| {
        let mut state = ProgramState::default();
        let record = Record {
            line: line.as_bytes(),
            time: None,
            message_only: false,
            age,
            ..Record::default()
        };
        let found = filter.read(&mut state, &record, &context);
        assert_eq!(found, None, "{line}");
        filter.explain(&state, &record, &context).to_string()
    };
    let head = "Nov 21 04:59:07 host shop[1]: ";
    let long = "9".repeat(80);
    for (filter, line, said) in [
        (
            &sshd,
            "21/Nov/2026 sshd: x".to_owned(),
            "no time stamp begins the line",
        ),
        (&sshd, "Nov 21 04:59:07".into(), "no time stamp"),
        (
            &sshd,
            "Nov 21 04:59:07 host a b: x".into(),
            "no \"host program[pid]: \"",
        ),
        (
            &sshd,
            "Nov 21 04:59:07 host cron[1]: x".into(),
            "is of \"cron\"",
        ),
        (
            &bare,
            "Nov 21 04:59:07 host shop[1]: login of x from 192.0.2.7 refused".into(),
            "add identifiers = [\"shop\"], then a pattern fits",
        ),
        (
            &bare,
            "Nov 21 04:59:07 host shop[1]: x".into(),
            "add identifiers = [\"shop\"]",
        ),
        (
            &own,
            format!("{head}logout"),
            "patterns[0] comes furthest: it wants \"login of \" at the start of the message",
        ),
        (
            &own,
            format!("{head}login of x from 192.0.2.7 port 1 taken"),
            "patterns[0] comes furthest: it wants \" refused\" at the end of the message",
        ),
        (
            &own,
            format!("{head}login of x from example.org port 1 refused"),
            "patterns[0] comes furthest: before \" port 1 refused\" it wants <addr>",
        ),
        (
            &own,
            format!("{head}no 192.0.2.7:http"),
            "patterns[1] comes furthest: behind \"no 192.0.2.7:\" it wants <port>",
        ),
        (
            &own,
            format!("{head}no 192.0.2.7:80 5 or so"),
            "behind \"no 192.0.2.7:80 5\" it wants the end",
        ),
        (
            &own,
            format!("{head}no 192.0.2.7:80{long}"),
            "patterns[1] comes furthest",
        ),
        (
            &own,
            format!("{head}no 192.0.2.7:80 123456789012345678"),
            "patterns[1] fits, and reads no message of this length",
        ),
        (
            &own,
            format!("{head}login of monitor from 192.0.2.7 port 1 refused"),
            "ignore[0] names it",
        ),
    ] {
        let answer = why(filter, &line, Age::Unknown);
        assert!(answer.contains(said), "{line}: {answer}");
    }
    let line = "denied 192.0.2.7";
    assert_eq!(
        why(&denied(), line, Age::Backlog),
        "nobody knows when it was written"
    );
    let fits = format!("{head}no 192.0.2.7:80");
    let mut state = ProgramState::default();
    let mut read = |line: &str| {
        let record = Record {
            line: line.as_bytes(),
            time: None,
            message_only: false,
            age: Age::Unknown,
            ..Record::default()
        };
        let found = own.read(&mut state, &record, &context);
        (found, own.explain(&state, &record, &context))
    };
    assert!(read(&fits).0.is_some());
    assert_eq!(read(&fits), (None, Miss::Counted));
}

/// Jails that read one file share a line's head: what each finds is what it finds
/// alone.
#[test]
fn programs_that_share_a_line_find_what_each_finds_alone() {
    let zone = TimeZone::UTC;
    let context = Context {
        now: NOW.parse().unwrap(),
        zone: &zone,
    };
    let own = |identifiers: &[&str]| {
        compile(Definition {
            identifiers: identifiers.iter().map(|tag| (*tag).to_owned()).collect(),
            patterns: vec!["Failed password for <user> from <addr> port <port> ssh2".into()],
            ..Definition::default()
        })
        .unwrap()
    };
    let programs = [
        Program::builtin("sshd").unwrap(),
        Program::builtin("sshd-aggressive").unwrap(),
        own(&["sshd", "cron"]),
        own(&["cron"]),
        own(&[]),
    ];
    let text = "Failed password for root from 192.0.2.7 port 22 ssh2";
    let lines = [
        format!("Nov 21 04:33:07 host sshd[1]: {text}"),
        format!("2026-11-21T04:33:07Z {text}"),
        format!("Nov 21 04:33:07 host cron[1]: {text}"),
        format!("no head: {text}"),
        text.to_owned(),
    ];
    let mut alone = vec![ProgramState::default(); programs.len()];
    let mut shared = alone.clone();
    let mut found = 0;
    for text in &lines {
        for message_only in [false, true] {
            let record = Record {
                line: text.as_bytes(),
                message_only,
                ..Record::default()
            };
            let line = Line::from(record);
            for (number, program) in programs.iter().enumerate() {
                let finding = program.read(&mut alone[number], &record, &context);
                found += usize::from(finding.is_some());
                let with_others = program.read_line(&mut shared[number], &line, &context);
                assert_eq!(with_others, finding, "{number}: {text}");
            }
        }
    }
    assert!(found > programs.len(), "{found}");
}

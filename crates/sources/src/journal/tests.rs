//! Against journals made from export text by systemd-journal-remote, which
//! writes trusted fields as it is told.

use super::*;
use std::{
    io::Write,
    process::{Command, Stdio},
};

const REMOTE: &str = "/lib/systemd/systemd-journal-remote";

/// Whether the tool is installed. Named as the probe of a skip.
fn probe(test: &str) -> bool {
    let there = Path::new(REMOTE).exists();
    if !there {
        eprintln!(
            "skip {test}: probe systemd-journal-remote: {REMOTE} is missing (Debian package systemd-journal-remote)"
        );
    }
    there
}

/// One entry in the journal export format.
fn entry(second: u64, comm: &str, uid: u32, message: &[u8]) -> Vec<u8> {
    of_unit(second, (comm, uid), ("session-1.scope", "sshd"), message)
}

/// Writes an entry of a unit's process, under an identifier.
fn of_unit(
    second: u64,
    (comm, uid): (&str, u32),
    (unit, tag): (&str, &str),
    message: &[u8],
) -> Vec<u8> {
    with_fields(
        second,
        &format!(
            "_COMM={comm}\n_UID={uid}\n_SYSTEMD_UNIT={unit}\nSYSLOG_IDENTIFIER={tag}\n_TRANSPORT=syslog\n"
        ),
        message,
    )
}

fn with_fields(second: u64, fields: &str, message: &[u8]) -> Vec<u8> {
    let mut text = format!(
        "__REALTIME_TIMESTAMP={}\n__MONOTONIC_TIMESTAMP={}\n_BOOT_ID=4d5f2b9a3c1e4f6f8a7b6c5d4e3f2a1b\n_MACHINE_ID=0f1e2d3c4b5a69788796a5b4c3d2e1f0\n{fields}MESSAGE\n",
        1_800_000_000_000_000 + second * 1_000_000,
        1_000_000_000 + second * 1_000_000,
    )
    .into_bytes();
    text.extend((message.len() as u64).to_le_bytes());
    text.extend(message);
    text.extend(b"\n\n");
    text
}

/// Writes entries to a journal file.
fn write(file: &Path, entries: &[Vec<u8>]) {
    let mut child = Command::new(REMOTE)
        .arg("--output")
        .arg(file)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the probe found it");
    let mut input = child.stdin.take().expect("it is piped");
    for entry in entries {
        input.write_all(entry).expect("it reads");
    }
    drop(input);
    assert!(child.wait().expect("it ends").success());
}

fn config(path: &Path, start: JournalStart) -> JournalConfig {
    JournalConfig {
        path: Some(path.to_owned()),
        start,
        ..JournalConfig::program(&["sshd", "sshd-session"])
    }
}

fn read(source: &mut JournalSource) -> Vec<(String, String)> {
    let mut lines = vec![];
    loop {
        let info = source
            .read_batch(Duration::from_millis(50), &mut |line, origin| {
                assert!(origin.message_only);
                let time = origin.time.expect("the journal knows the time").to_string();
                lines.push((String::from_utf8_lossy(line).into_owned(), time));
            })
            .expect("reading works");
        assert_eq!(info.problems, []);
        if info.lines == 0 && !info.more {
            return lines;
        }
    }
}

fn messages(source: &mut JournalSource) -> Vec<String> {
    read(source).into_iter().map(|(line, _)| line).collect()
}

#[test]
fn only_entries_of_the_program_as_root() {
    if !probe("only_entries_of_the_program_as_root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.journal");
    write(
        &file,
        &[
            entry(0, "sshd", 0, b"one"),
            entry(
                1,
                "logger",
                1000,
                b"forged: any user can claim SYSLOG_IDENTIFIER",
            ),
            entry(2, "sshd", 1000, b"forged: own program named sshd"),
            entry(3, "sshd-session", 0, b"two\nlines \xff\0"),
            entry(4, "sshd", 0, &[b'x'; 20_000]),
        ],
    );
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Beginning)).unwrap();
    let found = read(&mut source);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0], ("one".into(), "2027-01-15T08:00:00Z".into()));
    assert_eq!(found[1].0, "two\nlines \u{fffd}\0");
    assert_eq!(found[2].0.len(), MAX_LINE);
}

#[test]
fn an_entry_says_what_its_program_calls_itself() {
    if !probe("an_entry_says_what_its_program_calls_itself") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.journal");
    let tagged = |second, tag| of_unit(second, ("sshd", 0), ("ssh.service", tag), b"one");
    let entries = [tagged(0, "sshd"), tagged(1, "sshd-session")];
    write(&file, &entries);
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Beginning)).unwrap();
    let mut names = vec![];
    let _ = source
        .read_batch(Duration::from_millis(50), &mut |_, origin| {
            let name = origin.identifier.expect("both have one");
            names.push(String::from_utf8_lossy(name).into_owned());
        })
        .expect("reading works");
    assert_eq!(names, ["sshd", "sshd-session"]);
}

/// Issue 13, 9: most services do not log as root, nor under their file's name.
#[test]
fn entries_of_a_service_are_known_by_its_unit() {
    if !probe("entries_of_a_service_are_known_by_its_unit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.journal");
    let postfix = ("postfix@-.service", "postfix/smtpd");
    let entries = [
        of_unit(0, ("smtpd", 106), postfix, b"postfix"),
        of_unit(1, ("log", 0), ("dovecot.service", "dovecot"), b"dovecot"),
        of_unit(
            2,
            ("isc-net-0000", 111),
            ("named.service", "named"),
            b"named",
        ),
        of_unit(
            3,
            ("weird", 61_200),
            ("named.service", "named"),
            b"dynamic user",
        ),
        // Anybody, in a session and in a unit of one's own.
        of_unit(4, ("logger", 1000), ("session-3.scope", "named"), b"forged"),
        of_unit(
            5,
            ("named", 1000),
            ("user@1000.service", "named"),
            b"forged",
        ),
        // A person's command that Postfix runs for a mailbox.
        of_unit(6, ("logger", 1000), postfix, b"forged"),
        // Another program of the service, another service's of that name.
        of_unit(
            7,
            ("cleanup", 106),
            (postfix.0, "postfix/cleanup"),
            b"other",
        ),
        of_unit(8, ("php", 33), ("apache2.service", "named"), b"forged"),
    ];
    write(&file, &entries);
    let found = |config: JournalConfig| {
        let config = JournalConfig {
            path: Some(dir.path().to_owned()),
            start: JournalStart::Beginning,
            ..config
        };
        messages(&mut JournalSource::open(config).unwrap())
    };
    let program = |name| found(JournalConfig::program(&[name]));
    assert_eq!(program("postfix/smtpd"), ["postfix"]);
    assert_eq!(program("dovecot"), ["dovecot"]);
    assert_eq!(program("named"), ["named", "dynamic user"]);
    let all = JournalConfig::program(&["named", "dovecot"]);
    assert_eq!(found(all), ["dovecot", "named", "dynamic user"]);

    // As an administrator writes it.
    let matching = |words: &str, identifiers: &[&str]| {
        let words = JournalMatch::parse(words.split(' ')).unwrap();
        found(JournalConfig::matching(&words, identifiers))
    };
    let unit = "_SYSTEMD_UNIT=postfix@-.service";
    assert_eq!(matching(unit, &["postfix/smtpd"]), ["postfix"]);
    assert_eq!(matching(unit, &[]), ["postfix", "other"]);
    let comm = "_COMM=cleanup";
    assert_eq!(matching(&format!("{unit} {comm}"), &["x"]), ["other"]);
    assert_eq!(matching(&format!("{unit} _UID=1000"), &[]), ["forged"]);
    // Any of several sets: a person's entries where he is named.
    let dovecot = "_SYSTEMD_UNIT=dovecot.service";
    assert_eq!(
        matching(&format!("{unit} {comm} + {dovecot}"), &["dovecot"]),
        ["dovecot", "other"]
    );
    assert_eq!(
        matching(&format!("{dovecot} _UID=0 + {unit} _UID=1000"), &[]),
        ["dovecot", "forged"]
    );
}

#[test]
fn entries_say_who_wrote_them_and_how() {
    if !probe("entries_say_who_wrote_them_and_how") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |second, more: &str| {
        let unit = "_SYSTEMD_UNIT=sshd.service\nSYSLOG_IDENTIFIER=sshd";
        with_fields(second, &format!("_COMM=sshd\n{unit}\n{more}"), b"x")
    };
    let entries = [
        of(0, "_UID=0\n_PID=77\n_TRANSPORT=syslog\n"),
        of(1, "_UID=0\n_TRANSPORT=journal\n"),
        of(2, "_UID=110\n_PID=78\n_TRANSPORT=stdout\n"),
        // Nobody says how it came, nor who wrote it.
        of(3, "_UID=0\n_PID=79\n"),
        of(4, "_TRANSPORT=syslog\n"),
    ];
    write(&dir.path().join("test.journal"), &entries);
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Beginning)).unwrap();
    let mut writers = Vec::new();
    let _ = source
        .read_batch(Duration::from_millis(50), &mut |_, origin| {
            writers.push(origin.writer)
        })
        .unwrap();
    let writer = |uid, pid, stdout| Writer {
        uid: Some(uid),
        pid,
        stdout,
    };
    let expected = [
        writer(0, Some(77), false),
        writer(0, None, false),
        writer(110, Some(78), true),
        writer(0, Some(79), true),
    ];
    assert_eq!(writers, expected);
}

/// What journald drops by its rate limit, it says in an entry of its own.
#[test]
fn messages_that_journald_drops_are_counted() {
    if !probe("messages_that_journald_drops_are_counted") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let suppressed = |second, transport, text: &str| {
        let fields = format!(
            "_COMM=systemd-journal\n_UID=0\n_TRANSPORT={transport}\nMESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e\n"
        );
        with_fields(second, &fields, text.as_bytes())
    };
    let entries = [
        of_unit(
            0,
            ("sshd", 0),
            ("ssh.service", "sshd"),
            b"of a unit with a name of its own",
        ),
        suppressed(1, "driver", "Suppressed 842 messages from ssh.service"),
        suppressed(2, "driver", "Suppressed 10 messages from sshd.service"),
        suppressed(3, "driver", "Suppressed 77 messages from nginx.service"),
        suppressed(4, "journal", "Suppressed 99 messages from ssh.service"),
        suppressed(5, "driver", "Suppressed"),
    ];
    write(&dir.path().join("test.journal"), &entries);
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Beginning)).unwrap();
    let mut lines = 0;
    let info = source
        .read_batch(Duration::from_millis(50), &mut |_, _| lines += 1)
        .unwrap();
    assert_eq!((lines, info.lines, info.rate_limited), (1, 1, 852));
}

#[test]
fn a_restart_neither_loses_nor_repeats() {
    if !probe("a_restart_neither_loses_nor_repeats") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let numbers =
        |range: std::ops::Range<u64>| -> Vec<String> { range.map(|n| n.to_string()).collect() };
    let entries = |range: std::ops::Range<u64>| -> Vec<Vec<u8>> {
        range
            .map(|n| entry(n, "sshd", 0, n.to_string().as_bytes()))
            .collect()
    };
    write(&dir.path().join("a.journal"), &entries(0..6000));
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Beginning)).unwrap();
    // One batch, then a crash.
    let mut first = vec![];
    let info = source
        .read_batch(Duration::ZERO, &mut |line, _| {
            first.push(String::from_utf8_lossy(line).into_owned());
        })
        .unwrap();
    assert!(info.more);
    let cursor = source.position().expect("entries were read");
    drop(source);
    let start = JournalStart::Cursor(cursor.clone());
    let mut source = JournalSource::open(config(dir.path(), start.clone())).unwrap();
    first.extend(messages(&mut source));
    assert_eq!(first, numbers(0..6000));
    // New entries in another file, as after journald's rotation.
    let last = source.position().unwrap();
    write(&dir.path().join("b.journal"), &entries(6000..6010));
    assert_eq!(
        messages(&mut source),
        numbers(6000..6010),
        "while it is open"
    );
    let mut source = JournalSource::open(config(dir.path(), JournalStart::Cursor(last))).unwrap();
    assert_eq!(messages(&mut source), numbers(6000..6010));
    assert_eq!(messages(&mut source), Vec::<String>::new());
    // The cursor's entry was vacuumed.
    std::fs::remove_file(dir.path().join("a.journal")).unwrap();
    let mut source = JournalSource::open(config(dir.path(), start)).unwrap();
    assert_eq!(messages(&mut source), numbers(6000..6010));
    // From the end: only what comes.
    let mut source = JournalSource::open(config(dir.path(), JournalStart::End)).unwrap();
    assert_eq!(messages(&mut source), Vec::<String>::new());
    write(&dir.path().join("c.journal"), &entries(6010..6012));
    assert_eq!(messages(&mut source), numbers(6010..6012));
}

#[test]
fn a_journal_that_is_not_there_says_what_to_do() {
    let config = config(Path::new("/nonexistent/journal"), JournalStart::End);
    let error = JournalSource::open(config)
        .err()
        .expect("there is none")
        .to_string();
    assert!(error.contains("/nonexistent/journal"), "{error}");
    assert!(error.contains("systemd-journal"), "{error}");
}

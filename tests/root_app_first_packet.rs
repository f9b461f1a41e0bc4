//! Rules about executables hold from the first packet of a program that has never run:
//! while the daemon is stopped, so that it cannot say who that is.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use app_host::{ADDRESSES, TestHost, sha256};
use common::soon;
use tempfile::TempDir;

const PYTHON: &str = "/usr/bin/python3";

/// An interpreter that nobody has run: with a word behind its end it has another SHA-256.
fn fresh_program(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    let mut bytes = fs::read(PYTHON).unwrap();
    bytes.extend(name.as_bytes());
    fs::write(&path, bytes).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, executable).unwrap();
    path
}

/// What such a program says when it connects to port 8080: `connected`, or the error.
fn connects(host: &TestHost, program: &Path, address: &str) -> String {
    let address = address.trim_matches(['[', ']']);
    let script = format!(
        "import socket\ntry: socket.create_connection(('{address}', 8080), 3); print('connected')\nexcept OSError as e: print(type(e).__name__)"
    );
    let program = program.to_str().unwrap();
    let done = host.run(&["env", "PYTHONHOME=/usr", program, "-c", &script]);
    let said = [done.stdout, done.stderr].concat();
    String::from_utf8_lossy(&said).trim().to_owned()
}

#[test]
fn root_rules_by_path_hold_for_a_program_that_has_never_run() {
    let dir = tempfile::tempdir().unwrap();
    let [denied, allowed, other] = ["denied", "allowed", "other"].map(|n| fresh_program(&dir, n));
    let rules = format!(
        "default = \"drop\"\nunknown = \"learn\"\n\
         [app.rules.no]\nverdict = \"reject\"\npath = {denied:?}\n\
         [app.rules.user]\nverdict = \"reject\"\npath = {other:?}\nuser = \"4711\"\n\
         [app.rules.yes]\nverdict = \"allow\"\npath = {allowed:?}\n"
    );
    let Some(mut host) = TestHost::new("fresh", &rules) else {
        return;
    };
    host.host.signal("STOP");
    for address in ADDRESSES {
        assert_eq!(connects(&host, &denied, address), "PermissionError");
        assert_eq!(connects(&host, &allowed, address), "connected");
        // A rule about it asks for something else as well, which nobody has looked at.
        assert_eq!(connects(&host, &other, address), "connected");
    }
    host.host.signal("CONT");
    soon("the other one to be known", || {
        (connects(&host, &other, "127.0.0.1") == "PermissionError").then_some(())
    });
    // Who was gone by then is listed, with what the kernel told.
    let listed = host.host.json(&["app", "list", "--short-lived"]);
    let mut listed = listed.as_array().unwrap().iter();
    let denied = denied.to_str().unwrap();
    let one = listed.find(|one| one["path"] == denied).unwrap();
    assert_eq!((&one["comm"], &one["uid"]), (&"denied".into(), &0.into()));
    assert!(one["count"].as_u64().unwrap() >= 1, "{one}");

    // Unknown programs are dropped: it makes no difference to these, not even in time.
    let strict = rules.replace("\"learn\"", "\"drop\"");
    let [denied, allowed, other] =
        ["denied2", "allowed2", "other2"].map(|n| fresh_program(&dir, n));
    let strict = ["denied", "allowed", "other"]
        .iter()
        .fold(strict, |text, name| {
            text.replace(&format!("/{name}\""), &format!("/{name}2\""))
        });
    host.configure(&strict);
    host.host.done(&["reload"]);
    host.host.signal("STOP");
    for address in ADDRESSES {
        let begun = Instant::now();
        assert_eq!(connects(&host, &denied, address), "PermissionError");
        assert_eq!(connects(&host, &allowed, address), "connected");
        println!("{address}: both within {:?}", begun.elapsed());
        assert_eq!(connects(&host, &other, address), "TimeoutError");
    }
    // Without a daemon, too.
    host.host.signal("CONT");
    host.host.end("KILL");
    for address in ADDRESSES {
        assert_eq!(connects(&host, &denied, address), "PermissionError");
        assert_eq!(connects(&host, &allowed, address), "connected");
    }
    // The next daemon takes over what is there.
    host.host.start();
    for address in ADDRESSES {
        assert_eq!(connects(&host, &denied, address), "PermissionError");
        assert_eq!(connects(&host, &allowed, address), "connected");
    }
}

/// What is written over a file, or put in its place, is another program.
#[test]
fn root_a_file_that_changes_is_not_what_its_path_was() {
    let dir = tempfile::tempdir().unwrap();
    let program = fresh_program(&dir, "tool");
    let rules = format!(
        "default = \"allow\"\nunknown = \"allow\"\n[app.rules.no]\nverdict = \"reject\"\npath = {program:?}\n"
    );
    let Some(host) = TestHost::new("changed", &rules) else {
        return;
    };
    let address = "127.0.0.1";
    assert_eq!(connects(&host, &program, address), "PermissionError");
    // In place: who writes waits until nothing is concluded from the file any more.
    let mut bytes = fs::read(&program).unwrap();
    bytes.extend(b"more");
    fs::write(&program, &bytes).unwrap();
    soon(
        "the file with other bytes to be no more than any file",
        || (connects(&host, &program, address) == "connected").then_some(()),
    );
    // By rename, to what the rule is about: known once it has been looked at.
    let next = dir.path().join("next");
    bytes.truncate(bytes.len() - 4);
    fs::write(&next, &bytes).unwrap();
    fs::set_permissions(&next, fs::metadata(&program).unwrap().permissions()).unwrap();
    fs::rename(&next, &program).unwrap();
    soon("the file of the rule to be known again", || {
        (connects(&host, &program, address) == "PermissionError").then_some(())
    });
}

/// A connection that passed while its program was not known is judged again once it is.
#[test]
fn root_what_passed_unknown_is_judged_once_it_is_known() {
    let library = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1";
    if !Path::new(library).exists() {
        eprintln!("skipped: {library} (probe: it is not there)");
        return;
    }
    let rules = format!(
        "default = \"allow\"\nunknown = \"learn\"\n[app.rules.lib]\nverdict = \"drop\"\ndirection = \"out\"\nobject = \"{}\"\n",
        sha256(library)
    );
    for family in ["4", "6"] {
        let Some(host) = TestHost::new(&format!("known{family}"), &rules) else {
            return;
        };
        host.host.signal("STOP");
        let mut client = host.begin(&[PYTHON, "-c", TO_ITSELF, family, library]);
        assert_eq!(client.line(), "arrives");
        client.go_on();
        assert_eq!(client.line(), "arrives");
        host.host.signal("CONT");
        soon("the program to be known, and cut off", || {
            client.go_on();
            (client.line() == "nothing").then_some(())
        });
    }
}

/// A connection to itself, of a program with one library more; a byte a line.
const TO_ITSELF: &str = r#"
import sys, socket, ctypes
family, lib = sys.argv[1:3]
kind, addr = (socket.AF_INET, '127.0.0.1') if family == '4' else (socket.AF_INET6, '::1')
ctypes.CDLL(lib)
l = socket.socket(kind); l.bind((addr, 0)); l.listen(1)
c = socket.socket(kind); c.connect(l.getsockname()); s, _ = l.accept(); s.settimeout(1)
while True:
    try: c.send(b'x'); s.recv(1); print('arrives', flush=True)
    except OSError: print('nothing', flush=True)
    if not sys.stdin.readline(): break
"#;

#[test]
fn root_why_answers_for_whoever_is_asked_about() {
    let script = tempfile::tempdir().unwrap();
    let script = script.path().join("backup");
    fs::write(&script, "#!/bin/sh\ncurl http://127.0.0.1\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, executable).unwrap();
    let rules = format!("[app.rules.backup]\nverdict = \"reject\"\npath = {script:?}\n");
    let Some(host) = TestHost::new("why", &rules) else {
        return;
    };
    // A script is never a program: said at the start, by check, and by `app deny`.
    let (code, checked) = host.host.ask(&["check"]);
    assert_eq!(code, Some(0), "{checked}");
    let flat = checked.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("it is a script, and what runs is /bin/sh;"),
        "{flat}"
    );
    assert!(
        flat.contains("programs: 1 rule, 1 reject, default allow"),
        "{flat}"
    );
    assert!(
        host.host.said().contains("it is a script"),
        "{}",
        host.host.said()
    );
    let (code, told) = host
        .host
        .ask(&["app", "deny", "--dry-run", script.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("it is a script"), "{told}");
    let json = host.host.json(&["check"]);
    assert_eq!(json["app"]["rules"][0]["name"], "backup");

    let (code, told) = host.host.ask(&["app", "why", "4194305"]);
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("there is no process 4194305"), "{told}");
    let kernel = fs::read_to_string("/proc/2/status").unwrap_or_default();
    if kernel.contains("kthreadd") {
        let (code, told) = host.host.ask(&["app", "why", "2"]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("2 is a thread of the kernel"), "{told}");
    }
    let mut sleep = Command::new("sleep").arg("60").spawn().unwrap();
    let (code, told) = host.host.ask(&["app", "why", &sleep.id().to_string()]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("has no socket of IPv4 or IPv6"), "{told}");
    assert!(told.contains("is not in the control group"), "{told}");
    sleep.kill().unwrap();
    // It ends when it gets a processor.
    soon("its end", || {
        let (_, told) = host.host.ask(&["app", "why", &sleep.id().to_string()]);
        (told.contains("has ended") || told.contains("no process")).then_some(())
    });
    sleep.wait().unwrap();
}

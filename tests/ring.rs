//! `weir ring` from the command line, without a daemon and without root: what
//! goes into a ring comes out of it, and what is lost is said.

use std::{
    fs::{self, File},
    io::Write,
    net::UdpSocket,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_ring::{Reader, ReaderOptions};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const SOON: Duration = Duration::from_secs(60);

fn dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("weir-test-")
        .tempdir_in("/dev/shm")
        .unwrap()
}

fn ring(verb: &str, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(WEIR);
    command.args(["ring", verb]).args(more).arg(dir);
    command
}

/// Runs it with this input to its end.
fn run(mut command: Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may refuse before it has read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn out(output: Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(output: Output, code: i32, words: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{err}");
    assert!(err.contains(words), "no {words:?} in {err}");
}

#[track_caller]
fn soon<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < SOON, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn status(dir: &Path) -> Value {
    let text = out(run(ring("status", dir, &["--json", "--interval", "0"]), ""));
    serde_json::from_str(&text).unwrap()
}

/// A verb that runs until it is told to end, or this value goes.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let done = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(done.unwrap().success());
    }

    /// Waits until it reads the ring.
    fn reads(&self, dir: &Path) {
        soon("the reader", || {
            let text = run(ring("status", dir, &["--json", "--interval", "0"]), "").stdout;
            let status: Value = serde_json::from_slice(&text).ok()?;
            let readers = status["segments"][0]["readers"].as_array()?.clone();
            readers
                .iter()
                .any(|r| r["pid"] == self.0.id())
                .then_some(())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn lines_come_out_as_they_went_in() {
    let dir = dir();
    let text = "one\n\nwith \"quotes\" and \u{e9}\nlast";
    out(run(ring("pipe", dir.path(), &[]), text));
    let raw = run(
        ring("tail", dir.path(), &["--raw", "--once", "--from", "oldest"]),
        "",
    );
    assert_eq!(out(raw), format!("{text}\n"));
    let json = out(run(
        ring("tail", dir.path(), &["--once", "--from", "oldest"]),
        "",
    ));
    let records: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(records.len(), 4);
    let last = &records[3];
    assert_eq!(last["record"], "last");
    assert_eq!(last["segment"], "pipe-0");
    assert_eq!(last["number"], 3);
    let time: jiff::Timestamp = last["time"].as_str().unwrap().parse().unwrap();
    assert!(jiff::Timestamp::now().duration_since(time).as_secs() < 60);
    // A later one goes on in the same segment.
    out(run(ring("pipe", dir.path(), &[]), "more\n"));
    let seen = &status(dir.path())["segments"];
    assert_eq!(seen.as_array().unwrap().len(), 1);
    let seen = &seen[0];
    assert_eq!((&seen["records"], &seen["dropped"]), (&5.into(), &0.into()));
    assert_eq!(
        (&seen["size"], &seen["policy"]),
        (&(4 << 20).into(), &"drop".into())
    );
    assert_eq!(seen["writer"], Value::Null);
}

#[test]
fn who_writes_and_reads_is_named() {
    let dir = dir();
    let mut pipe = ring(
        "pipe",
        dir.path(),
        &["--policy", "overwrite", "--size", "64K"],
    )
    .stdin(Stdio::piped())
    .spawn()
    .unwrap();
    let mut input = pipe.stdin.take().unwrap();
    input.write_all(b"first\n").unwrap();
    let tail = Running::start(ring("tail", dir.path(), &[]));
    tail.reads(dir.path());
    // The first name is taken, so another one has the next.
    out(run(
        ring(
            "pipe",
            dir.path(),
            &["--policy", "overwrite", "--size", "64K"],
        ),
        "x\n",
    ));
    let seen = status(dir.path());
    let first = &seen["segments"][0];
    assert_eq!(first["policy"], "overwrite");
    assert_eq!(first["writer"]["pid"], pipe.id());
    assert_eq!(first["writer"]["program"], "weir");
    let reader = &first["readers"][0];
    assert_eq!(
        (&reader["program"], &reader["alive"]),
        (&"weir".into(), &true.into())
    );
    assert_eq!(seen["segments"][1]["segment"], "pipe-1");
    let text = out(run(ring("status", dir.path(), &["--interval", "0.1"]), ""));
    for word in [
        "pipe-0",
        "RECORDS/S",
        "overwrite",
        &format!("{} weir", tail.0.id()),
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    drop(input);
    assert!(pipe.wait().unwrap().success());
}

#[test]
fn what_a_slow_reader_costs_is_said() {
    let dir = dir();
    out(run(ring("pipe", dir.path(), &["--size", "4K"]), "first\n"));
    let reader = Reader::open(dir.path().join("pipe-0"), &ReaderOptions::new()).unwrap();
    let lines = "a line of some thirty characters\n".repeat(1000);
    let output = run(ring("pipe", dir.path(), &["--size", "4K"]), &lines);
    refused(output, 1, "of 1000 lines, 9");
    let seen = &status(dir.path())["segments"][0];
    assert!(seen["dropped"].as_u64().unwrap() > 900, "{seen}");
    assert!(seen["unread_bytes"].as_u64().unwrap() > 3000, "{seen}");
    drop(reader);
    // Longer than a record can be: cut, and said.
    let output = run(
        ring("pipe", dir.path(), &["--size", "4K"]),
        &"x".repeat(5000),
    );
    refused(output, 1, "1 were cut");
}

#[test]
fn a_fifo_is_read_on_when_its_writer_has_gone() {
    let dir = dir();
    let fifo = dir.path().join(".fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let ring_dir = dir.path().join("ring");
    let pipe = Running::start(ring(
        "pipe",
        &ring_dir,
        &["--input", fifo.to_str().unwrap()],
    ));
    for number in 1..=3 {
        fs::write(&fifo, "line\n").unwrap();
        soon("the line", || {
            let text = run(
                ring("status", &ring_dir, &["--json", "--interval", "0"]),
                "",
            )
            .stdout;
            let status: Value = serde_json::from_slice(&text).ok()?;
            (status["segments"][0]["records"] == number).then_some(())
        });
    }
    drop(pipe);
}

#[test]
fn what_cannot_be_is_refused() {
    let dir = dir();
    for (arguments, words) in [
        (&["--size", "3K"][..], "a power of two from 4K to 16G"),
        (&["--mode", "066"], "octal permissions"),
        (
            &["--name", "../x"],
            "file names that do not begin with a dot",
        ),
        (&["--policy", "wait"], "drop, overwrite"),
        (&["--input", "/nonexistent"], "cannot read /nonexistent"),
    ] {
        refused(run(ring("pipe", dir.path(), arguments), ""), 2, words);
    }
    out(run(ring("pipe", dir.path(), &["--name", "a"]), ""));
    let other = ["--name", "a", "--size", "64K"];
    let words = "exists with 4194304 bytes";
    refused(run(ring("pipe", dir.path(), &other), ""), 2, words);
    out(run(
        ring("pipe", dir.path(), &[&other[..], &["--replace"]].concat()),
        "",
    ));
    let missing = dir.path().join("missing");
    refused(run(ring("status", &missing, &[]), ""), 2, "cannot list");
    let fails = ["--listen", "tcp:127.0.0.1:1"];
    refused(
        run(ring("syslog", dir.path(), &fails), ""),
        2,
        "udp:127.0.0.1:514",
    );
    // A file that is no segment is named, and the others are shown.
    fs::write(dir.path().join("junk"), "junk").unwrap();
    let text = out(run(ring("status", dir.path(), &["--interval", "0"]), ""));
    assert!(
        text.contains("junk: ") && text.contains("too short"),
        "{text}"
    );
}

#[test]
fn files_are_rotated_by_size_and_opened_again_by_sighup() {
    let dir = dir();
    let ring_dir = dir.path().join("ring");
    let file = |name: &str| -> PathBuf { dir.path().join(name) };
    let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
    out(run(ring("pipe", &ring_dir, &[]), "before\n"));
    let log = file("log");
    let arguments = ["--raw", "--output", log.to_str().unwrap(), "--rotate", "20"];
    let tail = Running::start(ring("tail", &ring_dir, &arguments));
    tail.reads(&ring_dir);
    out(run(
        ring("pipe", &ring_dir, &[]),
        "0123456789\nabcdefghij\n",
    ));
    soon("both files", || {
        (read("log.1") == "0123456789\n" && read("log") == "abcdefghij\n").then_some(())
    });
    fs::rename(&log, file("moved")).unwrap();
    tail.signal("HUP");
    soon("a new file", || log.exists().then_some(()));
    out(run(ring("pipe", &ring_dir, &[]), "new\n"));
    soon("the new line", || (read("log") == "new\n").then_some(()));
    assert_eq!(read("moved"), "abcdefghij\n");
    tail.signal("TERM");
    let mut tail = tail;
    assert!(tail.0.wait().unwrap().success());
}

#[test]
fn syslog_messages_become_records() {
    let dir = dir();
    let ring_dir = dir.path().join("ring");
    let unix = dir.path().join("log.sock");
    let free = UdpSocket::bind("[::1]:0").unwrap().local_addr().unwrap();
    let (udp, path) = (format!("udp:{free}"), format!("unix:{}", unix.display()));
    let syslog = Running::start(ring(
        "syslog",
        &ring_dir,
        &["--listen", &udp, "--listen", &path],
    ));
    soon("the socket", || {
        let seen = fs::read_dir(&ring_dir).ok()?.flatten().count();
        (unix.exists() && seen >= 2).then_some(())
    });
    let sender = UdpSocket::bind("[::1]:0").unwrap();
    let text = b"<34>Nov 21 04:33:07 web sshd[7]: by udp\n";
    sender.send_to(text, free).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    let text = b"<34>1 2026-11-21T04:33:07Z web sshd 7 - - by\nunix";
    sender.send_to(text, &unix).unwrap();
    soon("two records", || {
        let status = status(&ring_dir);
        let of = |number: usize| status["segments"][number]["records"].as_u64();
        (of(0) == Some(1) && of(1) == Some(1)).then_some(())
    });
    let tail = ["--raw", "--once", "--from", "oldest"];
    let text = out(run(ring("tail", &ring_dir, &tail), ""));
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let expected = [
        "2026-11-21T04:33:07Z web sshd[7]: by#012unix",
        "Nov 21 04:33:07 web sshd[7]: by udp",
    ];
    assert_eq!(lines, expected);
    // After a crash its socket is in the way of nobody.
    syslog.signal("KILL");
    drop(syslog);
    let _again = Running::start(ring("syslog", &ring_dir, &["--listen", &path]));
    soon("the socket", || sender.send_to(b"<1>x", &unix).ok());
    // A full disk, as far as a tail can meet one.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = ring("tail", &ring_dir, &tail)
        .stdout(full)
        .output()
        .unwrap();
    refused(output, 2, "cannot write the records");
}

/// The guide's own text, with the places of this test.
#[test]
fn rsyslog_fills_a_ring_as_the_guide_says() {
    let rsyslogd = Path::new("/usr/sbin/rsyslogd");
    if !rsyslogd.exists() {
        println!("skipped: no program rsyslogd");
        return;
    }
    let dir = dir();
    let (ring_dir, socket) = (dir.path().join("ring"), dir.path().join("log.sock"));
    let guide = include_str!("../docs/guide/ring.md");
    let (_, recipe) = guide.split_once("```rsyslog\n").unwrap();
    let (recipe, _) = recipe.split_once("```").unwrap();
    for place in ["/usr/sbin/weir", "/run/weir-ring/sshd"] {
        assert!(recipe.contains(place), "{recipe}");
    }
    let recipe = recipe
        .replace("/usr/sbin/weir", WEIR)
        .replace("/run/weir-ring/sshd", ring_dir.to_str().unwrap());
    let config = dir.path().join("rsyslog.conf");
    let input = format!(
        "module(load=\"imuxsock\" SysSock.Use=\"off\")\ninput(type=\"imuxsock\" Socket=\"{}\")\n",
        socket.display()
    );
    fs::write(&config, input + &recipe).unwrap();
    let mut command = Command::new(rsyslogd);
    command.arg("-n").arg("-f").arg(&config);
    command
        .arg("-i")
        .arg(dir.path().join("pid"))
        .stderr(Stdio::null());
    let rsyslogd = Running::start(command);
    let sender = UnixDatagram::unbound().unwrap();
    let message =
        b"<34>Nov 21 04:33:07 sshd[7]: Failed password for root from 192.0.2.7 port 4 ssh2";
    soon("rsyslogd", || sender.send_to(message, &socket).ok());
    sender
        .send_to(b"<34>Nov 21 04:33:07 cron[8]: not for weir", &socket)
        .unwrap();
    sender.send_to(message, &socket).unwrap();
    let tail = ["--raw", "--once", "--from", "oldest"];
    let text = soon("two records", || {
        let text = String::from_utf8(run(ring("tail", &ring_dir, &tail), "").stdout).unwrap();
        (text.lines().count() == 2).then_some(text)
    });
    for line in text.lines() {
        assert!(line.contains("sshd[7]: Failed password"), "{line}");
    }
    assert_eq!(status(&ring_dir)["segments"][0]["segment"], "rsyslog");
    // It ends its programs with itself.
    rsyslogd.signal("TERM");
    let mut rsyslogd = rsyslogd;
    soon("the end", || rsyslogd.0.try_wait().unwrap());
}

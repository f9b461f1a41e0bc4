//! The control socket at its limits: however many clients follow events, leave
//! answers unread or say nothing, commands and questions get through.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    process::Command,
};

use super::{DEADLINE, Host};

impl Host {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("weir.sock")).unwrap();
        stream.set_read_timeout(Some(DEADLINE * 3)).unwrap();
        stream
    }

    fn request(&self, path: &str) -> UnixStream {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\n\r\n").unwrap();
        stream
    }

    /// KiB of memory that the daemon has used at most.
    fn peak(&self) -> u64 {
        let pid = self.daemon.as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let number = line.unwrap().trim_end_matches("kB").trim();
        number.parse().unwrap()
    }

    /// Commands and questions are answered.
    #[track_caller]
    fn is_at_work(&self) {
        for args in [
            &["ban", "192.0.2.99", "--for", "1h"][..],
            &["status"],
            &["why", "192.0.2.99"],
            &["unban", "192.0.2.99"],
            &["reload"],
        ] {
            let answer = self.weir(args);
            assert_eq!(answer.code, 0, "{args:?}: {}{}", answer.out, answer.err);
        }
    }
}

/// The first line of an answer.
fn first_line(stream: &mut UnixStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte[0] != b'\r' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn readers_of_events_leave_commands_their_places() {
    let host = Host::started();
    let mut streams: Vec<_> = (0..64).map(|_| host.request("/v1/events")).collect();
    let answers: Vec<_> = streams.iter_mut().map(first_line).collect();
    let with = |status: &str| answers.iter().filter(|a| a.contains(status)).count();
    assert_eq!((with("200"), with("503")), (32, 32), "{answers:?}");
    host.is_at_work();
    let mut told = String::new();
    streams[63].read_to_string(&mut told).unwrap();
    assert!(
        told.contains("32 readers of events already, as many as may be"),
        "{told}"
    );
    let verb = host.weir(&["events"]);
    assert_eq!((verb.code, &*verb.out), (2, ""));
    assert!(verb.err.contains("32 readers of events"), "{}", verb.err);
    // A place that is given back is there for the next.
    drop(streams);
    host.until("a reader has a place again", |h| {
        first_line(&mut h.request("/v1/events")).contains("200")
    });
}

#[test]
fn answers_that_nobody_reads_cost_little_and_not_for_long() {
    const BANS: usize = 20_000;
    let host = Host::new();
    let text = fs::read_to_string(host.path("weir.toml")).unwrap();
    let text = text.replace("max_retry = 3", "max_retry = 1");
    fs::write(host.path("weir.toml"), text).unwrap();
    let mut host = host;
    host.start();
    // With a line of evidence each: some 8 MB of JSON.
    let mut lines = String::new();
    for n in 0..BANS {
        let addr = format!("10.{}.{}.7", n / 250, n % 250);
        lines.push_str(&host.line(&format!(
            "Failed password for {} from {addr} port 1 ssh2",
            "x".repeat(150)
        )));
    }
    fs::write(host.path("auth.log"), lines).unwrap();
    host.until("all are banned", |h| h.status()["usage"]["bans"] == BANS);
    let whole = host.weir(&["bans", "--limit", "0", "--json"]);
    assert!(whole.out.len() > 6_000_000, "{}", whole.out.len());
    let whole = whole.json();
    assert_eq!(whole["total"], BANS);
    assert_eq!(whole["bans"].as_array().unwrap().len(), BANS);
    let some = host.weir(&["bans", "--limit", "3", "--json"]).json();
    assert_eq!(some["bans"].as_array().unwrap().len(), 3);
    assert_eq!(some["total"], BANS);
    assert_eq!(some["bans"][2]["subject"], whole["bans"][2]["subject"]);

    let before = host.peak();
    let mut unread: Vec<_> = (0..64)
        .map(|_| host.request("/v1/bans?limit=1000000"))
        .collect();
    host.is_at_work();
    // Each whole answer in memory would be half a gigabyte.
    let more = host.peak().saturating_sub(before);
    assert!(more < 100_000, "{more} KiB for answers that nobody reads");
    // Some never got a place; the others are let go before they have read all.
    host.until("nobody is waited for", |h| {
        h.weir(&["bans", "--limit", "1"]).code == 0
    });
    let mut last = unread.pop().unwrap();
    assert!(first_line(&mut last).contains("503"));
    let mut first = unread.remove(0);
    let mut rest = Vec::new();
    match first.read_to_end(&mut rest) {
        Ok(read) => assert!(read < 6_000_000, "{read}"),
        Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock),
    }
}

#[test]
fn clients_that_say_nothing_make_room() {
    let host = Host::started();
    // The daemon has fewer places; this program's own limit is 1,024 files.
    let silent: Vec<_> = (0..700).map(|_| host.connect()).collect();
    host.is_at_work();
    // Half a request is silence, too.
    let halves: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = host.connect();
            let half = b"POST /v1/bans HTTP/1.1\r\nhost: weir\r\ncontent-length: 99\r\n\r\n{";
            // It may be let go already.
            let _ = stream.write_all(half);
            stream
        })
        .collect();
    host.is_at_work();
    drop((silent, halves));
}

/// Said once, as an alert, however often it is tried again; and its end.
#[test]
fn a_daemon_out_of_descriptors_says_so_once() {
    let host = Host::started();
    let pid = host.daemon.as_ref().unwrap().id().to_string();
    let limit = |files: usize| {
        let limit = format!("--nofile={files}:");
        let set = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(set.unwrap().success());
    };
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    limit(open + 3);
    let mut clients: Vec<_> = (0..16).map(|_| host.connect()).collect();
    let said = |words: &str| {
        let log = fs::read_to_string(host.path("daemon.log")).unwrap();
        log.matches(words).count()
    };
    host.until("the daemon is out of descriptors", |_| {
        said("cannot take a connection") > 0
    });
    // It was said ten times a second, and over with each client that went.
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(clients.remove(0));
    }
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(said("cannot take a connection"), 1);
    assert_eq!(said("control-socket: works again"), 0);
    limit(4096);
    drop(clients);
    host.until("it takes connections", |_| {
        said("control-socket: works again") == 1
    });
    host.until("it is at work", |host| host.weir(&["status"]).code == 0);
    host.is_at_work();
}

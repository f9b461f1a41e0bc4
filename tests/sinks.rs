//! Sinks as their receivers see them: HTTP servers, a ZeroMQ subscriber and a
//! log file, told by a real daemon; and what becomes of the daemon when they
//! are slow, dead, or refuse.

#[path = "sinks/http.rs"]
mod http;
#[path = "common/plain.rs"]
mod plain;
#[path = "sinks/zmq.rs"]
mod zmq;

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use http::Server;
use plain::Plain;
use serde_json::Value;

fn secret(host: &Plain, name: &str, text: &str) {
    let path = host.write(name, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn number(host: &Plain, sink: &str, key: &str) -> u64 {
    host.status_of("sinks", sink)[key].as_u64().unwrap()
}

/// A watch that names this many addresses at once.
fn flood(host: &Plain, bans: usize) -> String {
    let lines: String = (0..bans)
        .map(|n| format!("198.18.{}.{}\n", n / 256, n % 256))
        .collect();
    host.write("flood", &lines);
    host.filled(
        "[watch.flood]\ncommand = [\"/bin/sh\", \"-c\", \"cat {dir}/flood; exec sleep 1000\"]\n",
    )
}

#[test]
fn a_file_gets_lines_and_follows_its_rotation() {
    let mut host = Plain::new();
    fs::create_dir(host.path("log")).unwrap();
    host.configure(
        "[sink.log]\nkind = \"file\"\npath = \"{dir}/log/events.json\"\nevents = [\"ban\", \"unban\"]\n",
    );
    host.start();
    let subjects = |host: &Plain, name: &str| -> Vec<String> {
        host.read(&format!("log/{name}"))
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                event["subject"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    host.done(&["ban", "203.0.113.1"]);
    host.until("a line", |h| subjects(h, "events.json") == ["203.0.113.1"]);
    let mode = fs::metadata(host.path("log/events.json"))
        .unwrap()
        .permissions()
        .mode();
    // Not more than that; a umask may take from it.
    assert_eq!(mode & 0o777 & !0o640, 0);

    fs::rename(host.path("log/events.json"), host.path("log/events.json.1")).unwrap();
    host.done(&["ban", "203.0.113.2"]);
    host.until("a line in a new file", |h| {
        subjects(h, "events.json") == ["203.0.113.2"]
    });
    assert_eq!(subjects(&host, "events.json.1"), ["203.0.113.1"]);
    // Cut, as by copytruncate.
    fs::write(host.path("log/events.json"), "").unwrap();
    host.done(&["ban", "203.0.113.3"]);
    host.until("a line in the cut file", |h| {
        subjects(h, "events.json") == ["203.0.113.3"]
    });

    // Its directory goes: an alert, and the line is there when it is back.
    fs::remove_dir_all(host.path("log")).unwrap();
    host.done(&["ban", "203.0.113.4"]);
    host.until("an alert", |h| h.alerts().contains("cannot write to"));
    assert_eq!(host.ask(&["sink", "test", "log"]).0, Some(1));
    fs::create_dir(host.path("log")).unwrap();
    host.until("what waited", |h| {
        subjects(h, "events.json") == ["203.0.113.4"]
    });
    host.until("no alert", |h| h.alerts() == "[]");

    // A link or a FIFO in its place is neither followed nor waited for.
    fs::remove_file(host.path("log/events.json")).unwrap();
    std::os::unix::fs::symlink("/dev/null", host.path("log/events.json")).unwrap();
    let (code, text) = host.ask(&["sink", "test", "log"]);
    assert_eq!(code, Some(1), "{text}");
}

/// The daemon never waits for a sink, dead or hanging, and counts what it loses.
#[test]
fn dead_and_slow_receivers_slow_nobody() {
    const BANS: usize = 5000;
    // Takes connections and never answers.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = hangs.local_addr().unwrap();
    // Refuses connections, until it is there.
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let reborn = dead.local_addr().unwrap();
    drop(dead);
    let mut host = Plain::new();
    let sinks = format!(
        "[sink.hangs]\nkind = \"webhook\"\nurl = \"http://{hanging}/\"\nqueue = 100\nevents = [\"ban\"]\nrate = 100000\n\
         [sink.dead]\nkind = \"webhook\"\nurl = \"http://{reborn}/\"\nqueue = 10\nevents = [\"ban\", \"error\"]\nrate = 100000\n\
         [sink.bus]\nkind = \"zmq\"\nurl = \"tcp://127.0.0.1:1\"\nplain = true\nqueue = 10\nevents = [\"ban\"]\n\
         [sink.log]\nkind = \"file\"\npath = \"{{dir}}/events.json\"\nqueue = 10000\nevents = [\"ban\"]\n"
    );
    host.configure(&(sinks + &flood(&host, BANS)));
    let begun = Instant::now();
    host.start();
    host.until("all bans", |h| h.json(&["status"])["usage"]["bans"] == BANS);
    println!("{BANS} bans beside dead receivers: {:?}", begun.elapsed());
    host.until("the file has all of them", |h| {
        h.read("events.json").lines().count() == BANS
    });
    for (sink, cap) in [("hangs", 100), ("dead", 10), ("bus", 10)] {
        let status = host.status_of("sinks", sink);
        assert_eq!(status["queued"], cap, "{status}");
        // One is on its way; alerts are events, too.
        let lost = status["lost"].as_u64().unwrap() as usize;
        assert!(
            (BANS - cap - 1..=BANS - cap + 4).contains(&lost),
            "{status}"
        );
        assert_eq!(status["delivered"], 0);
    }
    let alerts = host.alerts();
    for about in [
        "sink:hangs:queue",
        "sink:dead:queue",
        "sink:bus:queue",
        "\"sink:dead\"",
    ] {
        assert!(alerts.contains(about), "no {about} in {alerts}");
    }
    assert!(
        alerts.matches("\"about\"").count() <= 8,
        "one each: {alerts}"
    );
    assert_eq!(number(&host, "log", "lost"), 0);

    // The dead comes back: what waited, then how much did not.
    let server = Server::on(TcpListener::bind(reborn).unwrap(), &[]);
    // Alerts about the others may come, and find no room, until it is back.
    host.until("it is told of its loss", |h| {
        let lost = format!("\"{} events were lost here", number(h, "dead", "lost"));
        server.seen().iter().any(|r| r.body.contains(&lost))
    });
    host.until("its alerts are over", |h| !h.alerts().contains("sink:dead"));

    // Nor does the end wait for long.
    let begun = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
}

/// Each reload gives the dead sinks new queues, which overflow at once.
#[test]
fn dead_sinks_are_mended_by_a_reload_while_they_overflow() {
    let mut host = Plain::new();
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let configure = |host: &Plain, url: &str| {
        let sink = |name: &str| {
            format!(
                "[sink.{name}]\nkind = \"webhook\"\nurl = \"{url}\"\nqueue = 1\nevents = [\"found\", \"error\"]\nrate = 100000\n"
            )
        };
        host.configure(&format!(
            "[jail.sshd]\npaths = [\"{{dir}}/auth.log\"]\nmax_retry = 1000\n{}{}",
            sink("one"),
            sink("two")
        ));
    };
    host.write("auth.log", "");
    configure(&host, &nobody);
    host.start();
    let findings = |host: &Plain| {
        let mut log = fs::File::options()
            .append(true)
            .open(host.path("auth.log"))
            .unwrap();
        let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S");
        let line = |n| {
            format!(
                "{stamp} host sshd[77]: Failed password for root from 198.18.0.{n} port 22 ssh2\n"
            )
        };
        let lines: String = (0..200).map(line).collect();
        log.write_all(lines.as_bytes()).unwrap();
    };
    findings(&host);
    host.until("an overflow", |h| h.alerts().contains("sink:one:queue"));
    for turn in 0..20 {
        configure(&host, &format!("{nobody}/{turn}"));
        findings(&host);
        host.done_in_time(&["reload"]);
    }
    let server = Server::start(&[]);
    configure(&host, &server.url());
    host.done_in_time(&["reload"]);
    findings(&host);
    host.until("the mended sinks to be told", |_| !server.seen().is_empty());
}

#[test]
fn a_rate_holds_events_back_and_sums_them_up() {
    let server = Server::start(&[]);
    let mut host = Plain::new();
    host.configure(&format!(
        "[sink.tower]\nkind = \"webhook\"\nurl = \"{}/\"\nrate = 2\nevents = [\"ban\"]\n{}",
        server.url(),
        flood(&host, 50)
    ));
    host.start();
    host.until("48 held back", |h| number(h, "tower", "held_back") == 48);
    assert_eq!(server.seen().len(), 2);
    assert_eq!(host.end("TERM"), Some(0));
    let summary = server.seen().pop().unwrap().json();
    assert_eq!(summary["kind"], "summary");
    assert_eq!(summary["reason"], "and 48 more bans in the last minute");
    assert_eq!(server.seen().len(), 3);
}

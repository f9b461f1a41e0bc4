//! Shared-memory rings with a real daemon that enforces in the kernel: what
//! servers write is counted and banned, wherever it is spread, whatever
//! becomes of a segment or of the daemon.

mod common;

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt, chown},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, OTHER, TestNet, WEIR, Weir, at, skipped, soon};
use tempfile::TempDir;
use weir_bpf::{Generation, Key};
use weir_core::Prefix;
use weir_ring::{Options, Writer};

/// A ring's directory in shared memory, which goes with this value.
struct Ring(TempDir);

impl Ring {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("weir-test-")
            .tempdir_in("/dev/shm");
        Self(dir.unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("shop")
    }

    /// A configuration that reads it.
    fn config(&self, more: &str) -> String {
        format!(
            "interfaces = [\"eth0\"]\n\
             [filter.shop]\npatterns = [\"denied <addr> <text>\"]\n\
             [jail.shop]\nsource = \"ring\"\nring = \"{}\"\nmax_retry = 3\n{more}",
            self.path().display()
        )
    }

    fn writer(&self, name: &str) -> Writer {
        Writer::create(self.path().join(name), &Options::new()).unwrap()
    }
}

fn line(who: &str) -> String {
    format!("denied {who} /wp-login.php")
}

fn write(writer: &mut Writer, who: &str, times: usize) {
    for _ in 0..times {
        writer.write(line(who).as_bytes()).unwrap();
    }
}

/// Failures counted of somebody who is not banned.
#[track_caller]
fn counted(weir: &Weir, who: &str) -> u64 {
    let why = weir.why(who);
    assert_eq!(why["dropped"], false, "{why}");
    why["tracked"][0]["findings"].as_u64().unwrap_or(0)
}

/// Waits for an alert about a file of the ring that says these words.
#[track_caller]
fn alert(weir: &Weir, file: &std::path::Path, words: &str) {
    let about = format!("source:{}", file.display());
    soon(&format!("an alert about {about}"), || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap();
        alerts
            .iter()
            .find(|alert| alert["about"] == about)
            .map(|alert| {
                let message = alert["message"].as_str().unwrap();
                assert!(message.contains(words), "{message}");
            })
    });
}

#[test]
fn root_lines_piped_into_a_ring_ban_their_senders() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let weir = Weir::start(&net.host, &ring.config(""));
    let mut pipe = Command::new(WEIR)
        .args(["ring", "pipe"])
        .arg(ring.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = pipe.stdin.take().unwrap();
    for who in ATTACKER {
        net.serves(who, at(usize::from(who.contains(':'))));
        for _ in 0..3 {
            writeln!(stdin, "{}", line(who)).unwrap();
        }
        net.drops_soon(who);
    }
    // Twice is not enough.
    writeln!(stdin, "{0}\n{0}", line(OTHER[0])).unwrap();
    soon("two failures", || {
        (weir.why(OTHER[0])["tracked"][0]["findings"] == 2).then_some(())
    });
    drop(stdin);
    assert!(pipe.wait().unwrap().success());
    for (family, who) in CUSTOMER.into_iter().enumerate() {
        net.serves(who, at(family));
    }
    net.serves(OTHER[0], at(0));
    let status = soon("the counters", || {
        let status = weir.json(&["status"]);
        (status["rings"][0]["records"] == 8).then_some(status)
    });
    let seen = &status["rings"][0];
    assert_eq!((&seen["segments"], &seen["lost"]), (&1.into(), &0.into()));
    assert_eq!(
        status["jails"][0]["source"],
        format!("ring {}", ring.path().display())
    );
    let directory = ring.path().display().to_string();
    let read = weir.metric("weir_ring_records_total", &[&directory]);
    let lines = weir.metric("weir_source_lines_total", &[&format!("ring:{directory}")]);
    assert_eq!((read, lines), (Some(8), Some(8)));
}

#[test]
fn root_an_attacker_spread_over_segments_counts_once() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let weir = Weir::start(&net.host, &ring.config("workers = 4\n"));
    let mut writers: Vec<_> = (0..4).map(|i| ring.writer(&i.to_string())).collect();
    for who in ATTACKER {
        // One line each by three threads; the fourth asks too late.
        std::thread::scope(|scope| {
            for writer in &mut writers[..3] {
                scope.spawn(move || writer.write(line(who).as_bytes()).unwrap());
            }
        });
        net.drops_soon(who);
        writers[3].write(line(who).as_bytes()).unwrap();
    }
    soon("all records to be read", || {
        (weir.json(&["status"])["rings"][0]["records"] == 8).then_some(())
    });
    // An IPv6 attacker is its /64.
    let mut banned = weir.banned();
    banned.sort();
    assert_eq!(banned, [ATTACKER[0], "2001:db8:bad::/64"]);
    net.serves(CUSTOMER[0], at(0));
}

#[test]
fn root_a_killed_daemon_goes_on_where_it_read() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let mut weir = Weir::start(&net.host, &ring.config("workers = 2\n"));
    let (mut a, mut b) = (ring.writer("a"), ring.writer("b"));
    for who in ATTACKER {
        write(&mut a, who, 1);
        write(&mut b, who, 1);
        soon("two failures", || (counted(&weir, who) == 2).then_some(()));
    }
    weir.kill();
    for who in OTHER {
        write(&mut a, who, 2);
        write(&mut b, who, 1);
    }
    weir.run();
    for who in OTHER {
        net.drops_soon(who);
    }
    // Read again, their lines would make four.
    for who in ATTACKER {
        assert!(counted(&weir, who) <= 2);
        write(&mut b, who, 3);
        net.drops_soon(who);
    }
}

#[test]
fn root_a_reload_loses_no_failure() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let weir = Weir::start(&net.host, &ring.config("workers = 1\n"));
    let mut writer = ring.writer("a");
    write(&mut writer, ATTACKER[0], 2);
    soon("two failures", || {
        (counted(&weir, ATTACKER[0]) == 2).then_some(())
    });
    weir.configure(&ring.config("workers = 3\n"));
    weir.ask(&["reload"]).done();
    assert_eq!(counted(&weir, ATTACKER[0]), 2);
    write(&mut writer, ATTACKER[0], 1);
    net.drops_soon(ATTACKER[0]);
    soon("three workers", || {
        (weir.json(&["status"])["rings"][0]["workers"] == 3).then_some(())
    });
}

#[test]
fn root_a_corrupted_segment_is_told_and_the_others_go_on() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let weir = Weir::start(&net.host, &ring.config(""));
    let (mut good, mut bad) = (ring.writer("good"), ring.writer("bad"));
    write(&mut bad, ATTACKER[0], 1);
    soon("a failure", || {
        (counted(&weir, ATTACKER[0]) == 1).then_some(())
    });
    // Where readers look how far the writer is (the layout is in the
    // README of weir-ring): farther than it has ever been.
    let file = ring.path().join("bad");
    let segment = File::options().write(true).open(&file).unwrap();
    segment.write_all_at(&[0xff; 8], 4096).unwrap();
    alert(&weir, &file, "until it is removed");
    write(&mut good, ATTACKER[0], 2);
    net.drops_soon(ATTACKER[0]);
    soon("the counters", || {
        let seen = &weir.json(&["status"])["rings"][0];
        (seen["bad"] == 1 && seen["segments"] == 1).then_some(())
    });
    // Its successor is read.
    drop(bad);
    std::fs::remove_file(&file).unwrap();
    let mut bad = ring.writer("bad");
    write(&mut bad, ATTACKER[1], 3);
    net.drops_soon(ATTACKER[1]);
    soon("the alert to be over", || {
        let status = weir.json(&["status"]);
        status["alerts"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
}

#[test]
fn root_a_strangers_segment_is_read_only_if_allowed() {
    if skipped(&[]) {
        return;
    }
    const STRANGER: u32 = 54321;
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    // The daemon may not open what only its owner may: a group lets it.
    let options = Options::new().mode(0o660);
    let file = ring.path().join("theirs");
    let mut writer = Writer::create(&file, &options).unwrap();
    let private = ring.path().join("private");
    drop(ring.writer("private"));
    for file in [&file, &private] {
        chown(file, Some(STRANGER), None).unwrap();
    }
    write(&mut writer, ATTACKER[0], 3);
    let mut ours = ring.writer("ours");
    let weir = Weir::start(&net.host, &ring.config(""));
    alert(&weir, &file, &STRANGER.to_string());
    alert(&weir, &private, "Permission denied");
    write(&mut ours, OTHER[0], 3);
    net.drops_soon(OTHER[0]);
    assert_eq!(counted(&weir, ATTACKER[0]), 0);
    weir.configure(&ring.config(&format!("ring_owner = \"{STRANGER}\"\n")));
    weir.ask(&["reload"]).done();
    net.drops_soon(ATTACKER[0]);
}

/// Issue 13, R9: who owns the directory decides what is in it.
#[test]
fn root_a_strangers_directory_is_read_only_if_allowed() {
    if skipped(&[]) {
        return;
    }
    const STRANGER: u32 = 54321;
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let mut writer = ring.writer("ours");
    chown(ring.path(), Some(STRANGER), None).unwrap();
    let weir = Weir::start(&net.host, &ring.config(""));
    write(&mut writer, ATTACKER[0], 3);
    alert(&weir, &ring.path().join("."), "belongs to user 54321");
    assert_eq!(counted(&weir, ATTACKER[0]), 0);
    weir.configure(&ring.config(&format!("ring_owner = \"{STRANGER}\"\n")));
    weir.ask(&["reload"]).done();
    write(&mut writer, OTHER[0], 3);
    net.drops_soon(OTHER[0]);
}

/// Issue 13: on a way that others can change, they say which directory it is.
#[test]
fn root_a_ring_that_others_can_exchange_is_told_and_not_read() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let ring = Ring::new();
    let mut writer = ring.writer("ours");
    let above = ring.0.path();
    let mode = |mode: u32| {
        fs::set_permissions(above, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o777);
    let weir = Weir::start(&net.host, &ring.config(""));
    write(&mut writer, ATTACKER[0], 3);
    alert(&weir, &ring.path().join("."), "can be written to by others");
    assert_eq!(counted(&weir, ATTACKER[0]), 0);
    mode(0o755);
    net.drops_soon(ATTACKER[0]);
}

/// Printed, not asserted: a busy machine says nothing about weir.
#[test]
fn root_from_record_to_ban_in_the_kernel() {
    if skipped(&[]) {
        return;
    }
    const RECORDS: u32 = 500;
    let net = TestNet::new();
    let ring = Ring::new();
    let config = ring
        .config("max_retry = 1\n")
        .replace("max_retry = 3\n", "");
    let weir = Weir::start(&net.host, &config);
    let generation = Generation::adopt(&weir.pins().join("current")).unwrap();
    let mut writer = ring.writer("a");
    let mut micros = Vec::new();
    for number in 0..=RECORDS {
        let who = std::net::Ipv4Addr::from(0xc612_0000 + number);
        let key = Key::of(Prefix::host(who.into())).unwrap();
        let begun = Instant::now();
        write(&mut writer, &who.to_string(), 1);
        while generation.table.get(key).is_empty() {
            assert!(begun.elapsed() < common::SOON, "{who} is not banned");
            // A watcher that only spins keeps a worker woken on its
            // processor waiting for the next tick: 4 ms.
            std::thread::yield_now();
        }
        // The first waits until the daemon has found the segment.
        if number > 0 {
            micros.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        // The worker goes back to sleep: each record pays for waking it.
        std::thread::sleep(Duration::from_millis(2));
    }
    micros.sort_by(f64::total_cmp);
    let at = |part: f64| micros[((micros.len() - 1) as f64 * part) as usize];
    println!(
        "record to ban in the kernel, {RECORDS} records: p50 {:.0} us, p99 {:.0} us, max {:.0} us",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

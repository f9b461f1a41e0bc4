//! Very many at once: a hundred thousand bans that end together, a million
//! lines in one go, more bans than the table holds.
//! Runs alone: a million lines take all of two processors.

mod common;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{CUSTOMER, HOST, SOON, TestNet, Weir, addr, skipped, soon};
use weir_bpf::{Generation, JiffyClock, Key};
use weir_core::Prefix;
use weir_testkit::traffic::TcpServer;

const PORT: u16 = 9999;
const MANY: u32 = 100_000;

/// One of many sources, half of them IPv6, each in a /64 of its own.
fn source(n: u32) -> IpAddr {
    match n % 2 {
        0 => IpAddr::from((0xc612_0000 + n / 2).to_be_bytes()),
        _ => IpAddr::V6(Ipv6Addr::from(
            0x2001_0db8_0bad_0000_0000_0000_0000_0007 + (u128::from(n / 2) << 64),
        )),
    }
}

/// What the ban of a source is listed and stored as.
fn subject(source: IpAddr) -> Prefix {
    let length = if source.is_ipv4() { 32 } else { 64 };
    Prefix::new(source, length).unwrap()
}

/// Appends sshd's words about failures of many, all at once.
fn log_failures(log: &Path, sources: u32, each: usize) {
    let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
    let mut text = String::new();
    for source in (0..sources).map(source) {
        text.push_str(&format!(
            "{stamp} host sshd[77]: Failed password for root from {source} port 40022 ssh2\n"
        ));
    }
    let mut file = File::options().create(true).append(true).open(log).unwrap();
    for _ in 0..each {
        file.write_all(text.as_bytes()).unwrap();
    }
}

fn config(more: &str) -> String {
    format!("interfaces = [\"eth0\"]\n{more}")
}

#[track_caller]
fn all_banned(weir: &Weir, bans: u64) {
    let begun = Instant::now();
    let patience = Duration::from_secs(60);
    while weir.json(&["status"])["usage"]["bans"].as_u64() < Some(bans) {
        assert!(
            begun.elapsed() < patience,
            "{} of {bans} bans",
            weir.json(&["status"])["usage"]
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// A datagram: from which sample, sent not before this jiffy, and received by
/// that one, if it was.
#[derive(Debug)]
struct Shot {
    sample: usize,
    sent: u64,
    received: Option<u64>,
}

/// Sends from each source by turns until the jiffy `until`. One thread sends
/// and receives, so that no queue on the way can overflow.
fn shoot(net: &TestNet, sources: &[IpAddr], clock: &JiffyClock, until: u64) -> Vec<Shot> {
    let servers = HOST.map(|host| {
        let server = net.host.enter(|| UdpSocket::bind((addr(host), PORT)));
        let server = server.unwrap().unwrap();
        server.set_nonblocking(true).unwrap();
        server
    });
    let senders: Vec<(UdpSocket, SocketAddr)> = net
        .internet
        .enter(|| {
            sources
                .iter()
                .map(|from| {
                    let to = addr(HOST[usize::from(from.is_ipv6())]);
                    let socket = UdpSocket::bind((*from, 0)).unwrap();
                    (socket, SocketAddr::new(to, PORT))
                })
                .collect()
        })
        .unwrap();
    let mut shots: Vec<Shot> = Vec::new();
    let receive = |shots: &mut Vec<Shot>| {
        let mut number = [0; 8];
        for server in &servers {
            while server.recv(&mut number).is_ok() {
                shots[u64::from_ne_bytes(number) as usize].received = Some(clock.now());
            }
        }
    };
    while clock.now() < until {
        for (sample, (socket, to)) in senders.iter().enumerate() {
            let number = (shots.len() as u64).to_ne_bytes();
            shots.push(Shot {
                sample,
                sent: clock.now(),
                received: None,
            });
            socket.send_to(&number, to).unwrap();
            receive(&mut shots);
        }
    }
    // veth hands a packet over before the call returns; a busy machine leaves
    // it to another thread. The last of all passes: every ban is over.
    soon("the last datagram", || {
        receive(&mut shots);
        shots
            .last()
            .is_some_and(|s| s.received.is_some())
            .then_some(())
    });
    shots
}

#[test]
fn root_a_hundred_thousand_bans_end_together_at_their_jiffies() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let ban_time = 12;
    let weir = Weir::start(
        &net.host,
        &config(&format!(
            "[jail.sshd]\npaths = [\"{{log}}\"]\nmax_retry = 1\nban_time = \"{ban_time}s\"\n"
        )),
    );
    let clock = JiffyClock::probe().unwrap();
    log_failures(&weir.log(), MANY, 1);
    all_banned(&weir, MANY.into());
    // As the program recorded them: in the table, and in words.
    let samples: Vec<IpAddr> = (0..MANY).step_by(997).map(source).collect();
    let pinned = Generation::adopt(&weir.pins().join("current")).unwrap();
    let ends: Vec<u64> = samples
        .iter()
        .map(|source| {
            let slots = pinned.table.get(Key::of(subject(*source)).unwrap());
            assert_eq!(slots.len(), 1, "{source} has {} bans", slots.len());
            slots[0].expiry
        })
        .collect();
    for (source, end) in samples.iter().zip(&ends).step_by(20) {
        let why = weir.why(&source.to_string());
        let since: jiff::Timestamp = why["bans"][0]["since"].as_str().unwrap().parse().unwrap();
        let left = since.as_nanosecond() + ban_time * 1_000_000_000
            - jiff::Timestamp::now().as_nanosecond();
        let said = weir_bpf::clock::boottime() + u64::try_from(left).expect("not over yet");
        // Two clocks are read one after the other here and in the daemon.
        let off = clock.jiffy_at(said).abs_diff(*end);
        assert!(off <= 1 + clock.hz() / 50, "{source}: off by {off} jiffies");
    }
    let (first, last) = (*ends.iter().min().unwrap(), *ends.iter().max().unwrap());
    println!(
        "{MANY} bans end within {} jiffies of 1/{} s",
        last - first,
        clock.hz()
    );
    assert!(clock.now() < first, "the bans took longer than they last");
    soon("the end to come near", || {
        (clock.now() + clock.hz() / 4 > first).then_some(())
    });
    let shots = shoot(&net, &samples, &clock, last + clock.hz() / 10);

    let (mut passed, mut dropped) = (0, 0);
    for shot in &shots {
        let (source, end) = (samples[shot.sample], ends[shot.sample]);
        match shot.received {
            Some(at) => {
                passed += 1;
                // User space may see a tick up to one late.
                assert!(at + 1 >= end, "{source} passed {} jiffies early", end - at);
            }
            None => {
                dropped += 1;
                assert!(
                    shot.sent < end + 2,
                    "{source} was dropped {} jiffies late",
                    shot.sent - end
                );
            }
        }
    }
    println!("{passed} datagrams passed, {dropped} were dropped");
    assert!(passed > 1000 && dropped > 1000);
    // Of each source, the last before its end and the first behind it.
    for (sample, source) in samples.iter().enumerate() {
        let mine = |received: bool| {
            shots
                .iter()
                .any(|s| s.sample == sample && s.received.is_some() == received)
        };
        assert!(mine(true) && mine(false), "{source}");
    }
    assert!(weir.banned().is_empty());
}

/// (bans told one by one, bans told as a number) in a log.
fn told(said: &str) -> (u64, u64) {
    let one_by_one = said.lines().filter(|l| l.contains("INFO ban ")).count();
    let counted = said
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("… and ")?;
            let (number, _) = rest.split_once(" more bans in a second")?;
            number.replace(',', "").parse::<u64>().ok()
        })
        .sum();
    (one_by_one as u64, counted)
}

/// Appends sshd's words about one failure of each of these.
fn log_each(log: &Path, sources: Range<u32>) {
    let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
    let lines: String = sources
        .map(|n| {
            format!(
                "{stamp} host sshd[77]: Failed password for root from {} port 40022 ssh2\n",
                source(n)
            )
        })
        .collect();
    let mut file = File::options().create(true).append(true).open(log).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

/// A log that is written without a pause while the daemon reloads again and
/// again, with other settings each time: no line is lost, so that who failed
/// three times is banned, and none counts twice, so that who failed twice is
/// not.
#[test]
fn root_reloads_under_a_flood_of_lines_count_each_once() {
    if skipped(&[]) {
        return;
    }
    const RELOADS: u32 = 50;
    // Of each batch of sources half fail a third time.
    const BATCH: u32 = 100;
    let net = TestNet::new();
    let jail = |minutes: u32| {
        config(&format!(
            "[jail.sshd]\npaths = [\"{{log}}\"]\nmax_retry = 3\nfind_time = \"{minutes}m\"\n"
        ))
    };
    let weir = Weir::start(&net.host, &jail(60));
    let (stop, batches) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let first = batches.load(Ordering::Relaxed) * BATCH;
                for last in [BATCH, BATCH, BATCH / 2] {
                    log_each(&weir.log(), first..first + last);
                    thread::sleep(Duration::from_millis(2));
                }
                batches.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 1..=RELOADS {
            let before = batches.load(Ordering::Relaxed);
            soon("the flood to go on", || {
                (batches.load(Ordering::Relaxed) > before).then_some(())
            });
            weir.configure(&jail(60 + n % 2));
            weir.ask(&["reload"]).done();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let batches = batches.into_inner();
    let expected: BTreeSet<String> = (0..batches)
        .flat_map(|batch| batch * BATCH..batch * BATCH + BATCH / 2)
        .map(|n| subject(source(n)).to_string())
        .collect();
    let banned = || BTreeSet::from_iter(weir.banned());
    soon("the last ban", || {
        (banned().len() >= expected.len()).then_some(())
    });
    // One that fails a last time comes behind all lines that may count twice.
    let last = batches * BATCH;
    for _ in 0..3 {
        log_each(&weir.log(), last..last + 1);
    }
    let last = subject(source(last)).to_string();
    soon("the last line to count", || {
        banned().contains(&last).then_some(())
    });
    let mut seen = banned();
    seen.remove(&last);
    assert_eq!(seen, expected);
    println!(
        "{RELOADS} reloads, {} lines, each counted once",
        batches * BATCH / 2 * 5
    );
}

#[test]
fn root_a_million_lines_at_once() {
    if skipped(&[]) {
        return;
    }
    const SOURCES: u32 = 5000;
    const EACH: usize = 200;
    let net = TestNet::new();
    let mut weir = Weir::start(
        &net.host,
        &config("[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 5\n"),
    );
    let server = TcpServer::start(&net.host, SocketAddr::new(addr("::"), PORT), b"").unwrap();
    let before = weir.resident();
    // 85 MB, renamed to where the daemon looks for them: there all at once.
    log_failures(&weir.path("million"), SOURCES, EACH);
    let begun = Instant::now();
    fs::rename(weir.path("million"), weir.log()).unwrap();
    // It answers while it reads, and reads on to the end.
    let (mut answers, mut slowest, mut most) = (0, Duration::ZERO, 0);
    loop {
        let asked = Instant::now();
        let jail = weir.json(&["status", "sshd"]);
        slowest = slowest.max(asked.elapsed());
        most = most.max(weir.resident());
        assert!(begun.elapsed() < SOON * 3, "{jail}");
        if jail["lines"].as_u64() >= Some(1_000_000) {
            break;
        }
        answers += 1;
    }
    println!(
        "a million lines in {:?}; {answers} answers meanwhile, the slowest in {slowest:?}; \
         memory {before} to {most} KiB",
        begun.elapsed()
    );
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(answers > 3, "nothing was asked while it read");
    assert!(most < before + (32 << 10), "{before} to {most} KiB");
    // Behind the fifth, those of who is banned already.
    let ignored = u64::from(SOURCES) * (EACH as u64 - 5);
    soon("the last line to count", || {
        let jail = weir.json(&["status", "sshd"]);
        let counted = jail["lines"] == 1_000_000
            && jail["findings"] == 1_000_000
            && jail["bans"] == SOURCES
            && jail["ignored"] == ignored;
        counted.then_some(())
    });
    all_banned(&weir, SOURCES.into());
    assert!(!net.connects("198.18.0.5", SocketAddr::new(addr(HOST[0]), PORT)));
    for family in [0, 1] {
        net.serves(CUSTOMER[family], SocketAddr::new(addr(HOST[family]), PORT));
    }
    soon("two connections", || (server.accepted() == 2).then_some(()));
    // Every ban is told or counted, and few are told.
    soon("all bans to be told", || {
        let (one_by_one, counted) = told(&weir.said());
        (one_by_one + counted == u64::from(SOURCES)).then_some(())
    });
    let (one_by_one, counted) = told(&weir.said());
    println!("{one_by_one} bans told, {counted} counted");
    assert!(
        one_by_one <= 20 * (seconds + 1),
        "{one_by_one} in {seconds} s"
    );
    let lines = weir.said().lines().count() as u64;
    assert!(lines < 40 + 25 * seconds, "{lines} lines in {seconds} s");
    // A quiet ban is told in words again.
    weir.ask(&["ban", CUSTOMER[0]]).done();
    soon("a ban to be told", || {
        weir.said()
            .contains(&format!("ban {}", CUSTOMER[0]))
            .then_some(())
    });
    weir.stop();
    let (one_by_one, counted) = told(&weir.said());
    assert_eq!(one_by_one + counted, u64::from(SOURCES) + 1);
}

#[test]
fn root_bans_that_find_no_room_are_one_alert_and_no_event() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(
        &net.host,
        &config("max_bans = 64\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n"),
    );
    // Manual bans give up no place, and the jail has none of its own to give.
    weir.ban_all((1..=64).map(|n| addr(&format!("203.0.113.{}", n + 100))));
    log_failures(&weir.log(), 5000, 1);
    soon("all lines to be read", || {
        (weir.json(&["status", "sshd"])["lines"] == 5000).then_some(())
    });
    let refused = soon("the alert", || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap().clone();
        alerts.into_iter().find(|alert| alert["about"] == "insert")
    });
    let message = refused["message"].as_str().unwrap();
    for words in ["cannot ban ", "more: ", "max_bans"] {
        assert!(message.contains(words), "{message}");
    }
    let said = weir.said();
    let lines = said.lines().filter(|l| l.contains("cannot ban")).count();
    assert!((1..100).contains(&lines), "{lines} lines: {said}");
    assert!(!said.contains("INFO ban 198.18"), "{said}");
    let why = weir.why("198.18.0.1");
    assert_eq!(why["verdict"], "pass", "{why}");
    assert_eq!(why["history"].as_array().unwrap().len(), 0, "{why}");
    assert_eq!(weir.banned().len(), 64);
    // Nor does the next daemon find any.
    weir.stop();
    weir.detach().done();
    weir.run();
    assert_eq!(weir.banned().len(), 64);
}

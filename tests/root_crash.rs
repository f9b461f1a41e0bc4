//! The daemon is killed under attack, at twenty moments and at each fault
//! point: no packet of a banned source passes, the kernel's count of drops is
//! the attackers' count of packets, and after each restart every ban is there.

mod common;

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::process::ExitStatusExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use common::{CUSTOMER, HOST, SILENCE, SOON, TestNet, Weir, addr, skipped, soon};
use weir_netlab::{Side, VethOpts};
use weir_testkit::{
    fuse::FuseLog,
    traffic::{UdpServer, udp_request},
};

const SOURCES: u16 = 32;
const PORT: u16 = 9999;

/// Banned sources of both families that never stop sending.
struct Attack {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

fn sources() -> impl Iterator<Item = IpAddr> {
    (1..=SOURCES).flat_map(|n| {
        [
            addr(&format!("198.51.100.{n}")),
            addr(&format!("2001:db8:bad:{n:x}::7")),
        ]
    })
}

impl Attack {
    fn start(net: &TestNet) -> Self {
        let sockets: Vec<(UdpSocket, SocketAddr)> = net
            .internet
            .enter(|| {
                sources()
                    .map(|from| {
                        let socket = UdpSocket::bind((from, 0)).unwrap();
                        let to = addr(HOST[usize::from(from.is_ipv6())]);
                        (socket, SocketAddr::new(to, PORT))
                    })
                    .collect()
            })
            .unwrap();
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (stop.clone(), sent.clone());
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for (socket, to) in &sockets {
                    if socket.send_to(b"attack", to).is_ok() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                // Some 50,000 a second: enough to hit any gap, and no queue
                // on the way overflows, so that counts can be compared.
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            stop,
            sent,
            thread: Some(thread),
        }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until it has sent this many more.
    fn more(&self, packets: u64) {
        let enough = self.sent() + packets;
        soon("the attack to go on", || {
            (self.sent() >= enough).then_some(())
        });
    }

    /// Ends it; how many packets it sent.
    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.sent()
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.end();
    }
}

/// Somebody who is not banned gets an answer, in both families.
fn customer_is_served(net: &TestNet) {
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), PORT);
        let from = Some(addr(CUSTOMER[family]));
        let seen = udp_request(&net.internet, from, to, b"order", SOON);
        assert!(seen.is_ok(), "{}", seen.unwrap_err());
    }
}

/// The two UDP servers that no attacker may reach.
fn servers(net: &TestNet) -> [UdpServer; 2] {
    HOST.map(|host| UdpServer::start(&net.host, SocketAddr::new(addr(host), PORT)).unwrap())
}

fn received(servers: &[UdpServer; 2]) -> u64 {
    servers.iter().map(UdpServer::received).sum()
}

#[track_caller]
fn all_in_force(weir: &Weir, at_least: usize) {
    let bans = weir.banned();
    for source in sources() {
        let source = source.to_string();
        assert!(bans.contains(&source), "{source} is not banned any more");
    }
    assert!(bans.len() >= at_least, "{} bans of {at_least}", bans.len());
}

const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";

#[test]
fn root_sigkill_at_twenty_moments_lets_nothing_through() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    weir.ban_all(sources());
    let servers = servers(&net);
    let mut served = 0;
    let dropped = weir.packets("banned-all");
    let mut attack = Attack::start(&net);
    let mut bans = usize::from(SOURCES) * 2;
    for moment in 0..20_u64 {
        attack.more(500);
        if moment % 2 == 0 {
            // While it works: bans by the log, growth among them.
            let base = 0xc612_0000 + moment as u32 * 2000;
            let new = (0..2000).map(|n| IpAddr::from((base + n).to_be_bytes()));
            weir.log_failures(new, 1);
            thread::sleep(Duration::from_millis(moment * 7));
            weir.kill();
            bans += 2000;
        } else {
            // At any point of its start: loading, taking over, attaching.
            weir.stop();
            weir.launch(None);
            thread::sleep(Duration::from_millis(moment * 4));
            weir.kill();
        }
        attack.more(500);
        customer_is_served(&net);
        served += 2;
        assert_eq!(
            received(&servers),
            served,
            "moment {moment}: a banned packet got in"
        );
        weir.run();
        // Lines that were not yet read are read now: no ban is lost.
        soon("all bans", || (weir.banned().len() >= bans).then_some(()));
        all_in_force(&weir, bans);
    }
    let sent = attack.end();
    let dropped = weir.packets("banned-all") - dropped;
    println!("{sent} packets sent, {dropped} dropped, {bans} bans");
    assert_eq!(received(&servers), served);
    assert_eq!(dropped, sent);
    assert!(
        weir.json(&["status"])["usage"]["generation"].as_u64() > Some(1),
        "it did not grow"
    );
}

/// SIGKILL lets nothing through by any backend, its start included: what it left in the
/// kernel enforces while there is no daemon.
#[test]
fn root_sigkill_lets_nothing_through_by_any_backend() {
    if skipped(&["ipset", "iptables"]) {
        return;
    }
    const BACKENDS: [&str; 6] = ["xdp", "xdp-generic", "cls_bpf", "netfilter", "nft", "ipset"];
    for backend in BACKENDS {
        let net = TestNet::new();
        let mut weir = Weir::start(&net.host, &format!("backend = {backend:?}\n{CONFIG}"));
        weir.ban_all(sources());
        let servers = servers(&net);
        let (mut attack, mut served) = (Attack::start(&net), 0);
        for moment in 0..6_u64 {
            attack.more(300);
            if moment % 2 == 0 {
                weir.kill();
            } else {
                weir.stop();
                weir.launch(None);
                thread::sleep(Duration::from_millis(moment * 15));
                weir.kill();
            }
            attack.more(300);
            customer_is_served(&net);
            served += 2;
            assert_eq!(received(&servers), served, "{backend}, moment {moment}");
            weir.run();
            all_in_force(&weir, usize::from(SOURCES) * 2);
        }
        println!(
            "{backend}: {} packets of banned sources, none passed",
            attack.end()
        );
        assert_eq!(received(&servers), served, "{backend}");
    }
}

/// An upgrade: what the earlier weir left cannot be read, and enforces until all
/// is in tables that can.
#[test]
fn root_tables_of_another_layout_are_replaced_under_attack() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    weir.ban_all(sources());
    let servers = servers(&net);
    let mut attack = Attack::start(&net);
    attack.more(200);
    weir.stop();
    let meta = MapHandle::from_pinned_path(weir.pins().join("current/meta")).unwrap();
    let (key, mut about) = (0u32.to_ne_bytes(), vec![]);
    about.extend(meta.lookup(&key, MapFlags::ANY).unwrap().unwrap());
    about[0] ^= 1;
    meta.update(&key, &about, MapFlags::ANY).unwrap();
    attack.more(200);
    weir.run();
    all_in_force(&weir, usize::from(SOURCES) * 2);
    let dropped = weir.packets("banned-all");
    attack.more(500);
    customer_is_served(&net);
    assert!(weir.packets("banned-all") > dropped, "the new tables drop");
    attack.end();
    assert_eq!(received(&servers), 2, "a banned packet got in");
    assert!(weir.said().contains("another layout"), "{}", weir.said());
}

#[cfg(feature = "fault-points")]
mod fault {
    use weir_testkit::traffic::retry_interrupted;

    use super::*;

    /// Runs until the daemon dies at the point, then asserts that it did.
    #[track_caller]
    fn dies(weir: &mut Weir, point: &str) {
        let status = weir.ended();
        assert_eq!(
            status.signal(),
            Some(9),
            "{point}: {status}: {}",
            weir.said()
        );
    }

    /// A host with two interfaces, so that links are switched one by one.
    fn two_wires(net: &TestNet) {
        let more = net.net.namespace("more").unwrap();
        let opts = VethOpts::new(&["198.51.99.1/24"], &["198.51.99.2/24"]).unwrap();
        net.net
            .veth(&net.host, "eth1", &more, "eth0", opts)
            .unwrap();
        assert_eq!(net.veth.dev(Side::A), "eth0");
    }

    const TWO: &str =
        "interfaces = [\"eth0\", \"eth1\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";

    /// A change of the compiled-in prefix length makes a new generation at the
    /// next start; `length` alternates so that each start does.
    fn rebuilt(length: &mut u8) -> String {
        *length = if *length == 24 { 20 } else { 24 };
        format!("ipv4_length = {length}\n{TWO}")
    }

    #[test]
    fn root_sigkill_inside_take_over_and_link_update() {
        if skipped(&[]) {
            return;
        }
        let net = TestNet::new();
        two_wires(&net);
        let mut length = 24;
        let mut weir = Weir::start(&net.host, &rebuilt(&mut length));
        weir.ban_all(sources());
        let servers = servers(&net);
        let dropped = weir.packets("banned-all");
        let mut attack = Attack::start(&net);
        let mut served = 0;
        for point in [
            "pin-before-meta",
            "growth-before-fill",
            "growth-mid-fill",
            "switch-before-links",
            "switch-between-links",
            "switch-after-current",
            "growth-before-unpin",
            "attach-between-interfaces",
        ] {
            attack.more(200);
            weir.stop();
            weir.configure(&rebuilt(&mut length));
            weir.launch(Some(point));
            dies(&mut weir, point);
            attack.more(500);
            customer_is_served(&net);
            served += 2;
            assert_eq!(
                received(&servers),
                served,
                "{point}: a banned packet got in"
            );
            weir.run();
            all_in_force(&weir, usize::from(SOURCES) * 2);
            attack.more(200);
            for wire in ["eth0", "eth1"] {
                assert_eq!(weir.attachment(wire).0, "tcx", "{point}");
            }
            // The tables and programs that were given up are gone.
            let generations = std::fs::read_dir(weir.pins())
                .unwrap()
                .filter(|e| {
                    e.as_ref()
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .starts_with('g')
                })
                .count();
            assert_eq!(generations, 1, "{point}: an old generation is still pinned");
        }
        let sent = attack.end();
        let dropped = weir.packets("banned-all") - dropped;
        println!("{sent} packets sent, {dropped} dropped");
        assert_eq!((received(&servers), dropped), (served, sent));
    }

    #[test]
    fn root_sigkill_inside_growth() {
        if skipped(&[]) {
            return;
        }
        for point in [
            "growth-before-fill",
            "growth-mid-fill",
            "switch-before-links",
            "switch-between-links",
            "switch-after-current",
            "growth-before-unpin",
        ] {
            let net = TestNet::new();
            two_wires(&net);
            let mut weir = Weir::new(&net.host, TWO);
            weir.launch(Some(point));
            soon("the daemon", || {
                (weir.ask(&["status"]).code != Some(2)).then_some(())
            });
            weir.ban_all(sources());
            let servers = servers(&net);
            let dropped = weir.packets("banned-all");
            let mut attack = Attack::start(&net);
            let many = (0..14_000_u32).map(|n| IpAddr::from((0xc612_0000 + n).to_be_bytes()));
            weir.log_failures(many, 1);
            dies(&mut weir, point);
            attack.more(500);
            customer_is_served(&net);
            assert_eq!(received(&servers), 2, "{point}: a banned packet got in");
            weir.run();
            let all = 14_000 + usize::from(SOURCES) * 2;
            soon("all bans", || (weir.banned().len() >= all).then_some(()));
            all_in_force(&weir, all);
            let sent = attack.end();
            let dropped = weir.packets("banned-all") - dropped;
            println!("{point}: {sent} packets sent, {dropped} dropped");
            assert_eq!((received(&servers), dropped), (2, sent), "{point}");
        }
    }

    /// The class table is written aside: half of the next one is in nobody's
    /// way, and the one before stays in force, whole.
    #[test]
    fn root_sigkill_inside_a_rebuild_of_the_class_table() {
        if skipped(&[]) {
            return;
        }
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, "");
        let list = weir.path("list.txt");
        let attackers = "198.51.100.0/24\n2001:db8:bad::/48\n";
        let everybody = attackers.to_owned() + &CUSTOMER.map(|who| format!("{who}\n")).concat();
        fs::write(&list, attackers).unwrap();
        weir.configure(&format!(
            "interfaces = [\"eth0\"]\n[list.bad]\nfile = {list:?}\n"
        ));
        weir.run();
        let servers = servers(&net);
        let shop = SocketAddr::new(addr("::"), PORT + 1);
        let _shop = UdpServer::start(&net.host, shop).unwrap();
        let is_served = |family: usize, time| {
            let to = SocketAddr::new(addr(HOST[family]), PORT + 1);
            let from = Some(addr(CUSTOMER[family]));
            udp_request(&net.internet, from, to, b"order", time).is_ok()
        };
        let dropped = weir.packets("listed");
        let mut attack = Attack::start(&net);
        for point in ["classes-half-written", "classes-before-swap"] {
            // Twice: either of the two copies is the one in force.
            for turn in 0..2 {
                attack.more(200);
                weir.stop();
                fs::write(&list, &everybody).unwrap();
                weir.launch(Some(point));
                dies(&mut weir, point);
                attack.more(500);
                for family in [0, 1] {
                    assert!(is_served(family, SOON), "{point}, turn {turn}");
                }
                weir.run();
                for family in [0, 1] {
                    soon("the new list", || {
                        (!is_served(family, SILENCE)).then_some(())
                    });
                }
                fs::write(&list, attackers).unwrap();
                weir.ask(&["list", "refresh"]).done();
                for family in [0, 1] {
                    soon("the old list", || is_served(family, SILENCE).then_some(()));
                }
                assert_eq!(
                    received(&servers),
                    0,
                    "{point}, turn {turn}: a listed packet got in"
                );
            }
        }
        let sent = attack.end();
        let dropped = weir.packets("listed") - dropped;
        println!("{sent} packets sent, {dropped} dropped, the customers' among them");
        assert_eq!(received(&servers), 0);
        assert!(dropped >= sent);
    }

    /// A thread that panics ends the daemon: bans are pinned, and half a daemon is worse
    /// than a new one.
    #[test]
    fn root_a_thread_that_panics_ends_the_daemon_and_no_ban() {
        if skipped(&[]) {
            return;
        }
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, CONFIG);
        weir.env = vec![("WEIR_FAULT", "panic:worker".to_owned())];
        weir.run();
        weir.ban_all(sources());
        weir.log_failures([addr("198.18.0.1")], 1);
        let status = weir.ended();
        assert_eq!(status.signal(), Some(6), "{status}");
        let said = weir.said();
        assert!(said.contains("the fault point worker"), "{said}");
        assert!(said.contains("what is banned stays banned"), "{said}");
        let servers = servers(&net);
        let mut attack = Attack::start(&net);
        attack.more(500);
        customer_is_served(&net);
        assert_eq!(received(&servers), 2, "a banned packet got in");
        // As systemd does; what the worker had read is read again.
        weir.env.clear();
        weir.run();
        soon("the ban by the line", || {
            weir.banned()
                .contains(&"198.18.0.1".to_owned())
                .then_some(())
        });
        all_in_force(&weir, usize::from(SOURCES) * 2 + 1);
        attack.end();
        assert_eq!(received(&servers), 2);
    }

    /// systemd's side of the watchdog: a socket that is told.
    #[test]
    fn root_a_thread_that_stands_still_is_told_to_the_watchdog() {
        if skipped(&[]) {
            return;
        }
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, CONFIG);
        let place = weir.path("notify.sock");
        let systemd = std::os::unix::net::UnixDatagram::bind(&place).unwrap();
        systemd.set_read_timeout(Some(SOON)).unwrap();
        let told = |wanted: &str| {
            let mut bytes = [0; 4096];
            loop {
                let length = retry_interrupted(|| systemd.recv(&mut bytes)).expect(wanted);
                let message = String::from_utf8_lossy(&bytes[..length]);
                if message.lines().any(|line| line == wanted) {
                    return;
                }
                assert_ne!(message.trim(), "WATCHDOG=trigger");
            }
        };
        weir.env = vec![
            ("WEIR_FAULT", "stall:worker".to_owned()),
            ("NOTIFY_SOCKET", place.display().to_string()),
            ("WATCHDOG_USEC", "60000000".to_owned()),
        ];
        weir.run();
        told("READY=1");
        told("WATCHDOG=1");
        weir.log_failures([addr("198.18.0.1")], 1);
        // Nobody asks for the alert: it is told where it counts.
        let mut bytes = [0; 4096];
        loop {
            let length = retry_interrupted(|| systemd.recv(&mut bytes)).unwrap();
            match &bytes[..length] {
                b"WATCHDOG=trigger" | b"WATCHDOG=trigger\n" => break,
                other => assert!(other.starts_with(b"WATCHDOG=1"), "{other:?}"),
            }
        }
        let alerts = weir.json(&["status"])["alerts"].to_string();
        for word in ["threads", "weir-worker-0 does not go on", "systemd"] {
            assert!(alerts.contains(word), "no {word:?} in {alerts}");
        }
        weir.kill();
    }

    #[test]
    fn root_sigkill_before_the_first_tables_are_whole() {
        if skipped(&[]) {
            return;
        }
        for point in [
            "pin-before-meta",
            "take-over-before-current",
            "insert-mid-run",
        ] {
            let net = TestNet::new();
            let mut weir = Weir::start(&net.host, CONFIG);
            weir.ban_all(sources());
            // Nothing in the kernel: the database has to bring all back.
            weir.stop();
            weir.detach().done();
            weir.launch(Some(point));
            dies(&mut weir, point);
            weir.run();
            all_in_force(&weir, usize::from(SOURCES) * 2);
            let servers = servers(&net);
            let mut attack = Attack::start(&net);
            attack.more(500);
            customer_is_served(&net);
            let sent = attack.end();
            assert_eq!((received(&servers), weir.packets("banned-all")), (2, sent));
        }
    }
}

fn lacks_fuse() -> bool {
    let why = weir_testkit::fuse::missing();
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

/// The attacker in the log of another file system.
const REMOTE: &str = "198.18.7.7";

fn append_failures(log: &FuseLog, failures: usize) {
    let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.6f%:z");
    let line =
        format!("{now} host sshd[77]: Failed password for root from {REMOTE} port 40022 ssh2\n");
    log.append(line.repeat(failures));
}

fn counted(weir: &Weir) -> u64 {
    let findings = &weir.why(REMOTE)["tracked"][0]["findings"];
    findings.as_u64().unwrap_or(0)
}

#[track_caller]
fn until_counted(weir: &Weir, failures: u64) {
    soon("the lines of the remote log", || {
        (counted(weir) >= failures).then_some(())
    });
    assert_eq!(counted(weir), failures);
}

/// A server of NFS that is gone, a FUSE program that hangs: no restart helps.
#[test]
fn root_a_log_on_a_hung_file_system_stops_nothing_else() {
    if skipped(&[]) || lacks_fuse() {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let place = weir.path("notify.sock");
    let systemd = std::os::unix::net::UnixDatagram::bind(&place).unwrap();
    let told = Arc::new(std::sync::Mutex::new(String::new()));
    thread::spawn({
        let told = told.clone();
        move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = systemd.recv(&mut bytes) {
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                told.lock().unwrap().push_str(&format!("{message}\n"));
            }
        }
    });
    let log = FuseLog::mount().unwrap();
    let without = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";
    let with = format!(
        "{without}[jail.remote]\nfilter = \"sshd\"\nmax_retry = 100\npaths = [{:?}]\n",
        log.path()
    );
    weir.configure(&with);
    weir.env = vec![
        ("NOTIFY_SOCKET", place.display().to_string()),
        ("WATCHDOG_USEC", "20000000".to_owned()),
    ];
    weir.run();
    append_failures(&log, 3);
    until_counted(&weir, 3);
    let alert = |weir: &Weir| {
        let alerts = weir.json(&["status"])["alerts"].clone();
        let alerts = alerts.as_array().unwrap().iter();
        let mut about = alerts.filter(|alert| alert["about"] == "file-system");
        about.next().map(|alert| alert["message"].to_string())
    };
    let bans_by_the_other_log = |weir: &Weir, who: &str| {
        weir.log_failures([addr(who)], 1);
        soon("a ban by the other log", || {
            weir.banned().contains(&who.to_owned()).then_some(())
        });
    };

    log.hang(true);
    append_failures(&log, 2);
    let message = soon("the alert", || alert(&weir));
    // A look for it waits in its directory already.
    let directory = log.path().parent().unwrap().display().to_string();
    for word in ["weir-worker-", &directory, "does not answer"] {
        assert!(message.contains(word), "no {word:?} in {message}");
    }
    bans_by_the_other_log(&weir, "198.18.0.1");
    // Nor does a reload wait for it.
    weir.ask(&["reload"]).done();
    bans_by_the_other_log(&weir, "198.18.0.2");
    soon("the alert about the next thread", || alert(&weir));
    // It is back, and so is the thread that nobody waits for: its lines count
    // once.
    log.hang(false);
    until_counted(&weir, 5);
    append_failures(&log, 4);
    until_counted(&weir, 9);
    let ended = |weir: &Weir| alert(weir).is_none().then_some(());
    soon("the end of the alert", || ended(&weir));
    assert_eq!(counted(&weir), 9);

    // What is taken out of the configuration troubles nobody.
    log.hang(true);
    soon("the alert", || alert(&weir));
    weir.configure(without);
    weir.ask(&["reload"]).done();
    soon("the end of the alert", || ended(&weir));
    bans_by_the_other_log(&weir, "198.18.0.3");
    // Nor does a stop wait.
    weir.configure(&with);
    weir.ask(&["reload"]).done();
    soon("the alert", || alert(&weir));
    weir.stop();
    drop(log);
    let told = told.lock().unwrap();
    assert!(told.contains("WATCHDOG=1"), "{told}");
    assert!(!told.contains("WATCHDOG=trigger"), "{told}");
}

/// No single call takes long, and all of them together longer than anybody waits.
#[test]
fn root_a_log_that_answers_slowly_holds_no_stop_up() {
    if skipped(&[]) || lacks_fuse() {
        return;
    }
    let net = TestNet::new();
    let log = FuseLog::mount().unwrap();
    let directory = log.path().parent().unwrap().to_owned();
    // Each look for one of them asks the file system.
    let more = (0..20).map(|n| directory.join(format!("{n}.log")));
    let paths: Vec<_> = more.chain([log.path()]).collect();
    let mut weir = Weir::new(
        &net.host,
        &format!(
            "interfaces = [\"eth0\"]\n[jail.remote]\nfilter = \"sshd\"\nmax_retry = 100\npaths = {paths:?}\n"
        ),
    );
    weir.run();
    append_failures(&log, 3);
    until_counted(&weir, 3);
    let before = log.requests();
    log.delay(Duration::from_secs(2));
    // It looks for all of them now.
    soon("the next look", || {
        (log.requests() > before + 1).then_some(())
    });
    weir.stop();
    let said = weir.said();
    assert!(said.contains("not waited for any more: "), "{said}");
    log.delay(Duration::ZERO);
    weir.run();
    append_failures(&log, 3);
    until_counted(&weir, 6);
    weir.stop();
}

#[cfg(not(feature = "fault-points"))]
#[test]
fn root_sigkill_at_fault_points() {
    println!("skipped: built without the feature fault-points");
}

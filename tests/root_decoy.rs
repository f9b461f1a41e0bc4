//! Decoy ports against real scanners: who completes a handshake is banned on
//! all ports, and nobody is for what others send in his name. IPv4 and IPv6,
//! on tcx, native and generic XDP. (Which packet is answered how:
//! crates/bpf/tests/root_decoy.rs.)

mod common;

use std::{
    fs::File,
    net::{SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
    time::Duration,
};

use common::{ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, TestNet, Weir, addr, skipped, soon};
use weir_bpf::attachment::Link;
use weir_netlab::Side;
use weir_testkit::{
    packet::Packet,
    traffic::{self, TcpServer},
};

const BACKENDS: [&str; 3] = ["tcx", "xdp", "xdp-generic"];
/// The port that is served, and a range of decoys around it.
const SERVED: u16 = 1500;
const DECOYS: &str = "[decoy]\nports = [\"23/tcp\", \"1000-1999/tcp\", \"!1500/tcp\", \"161/udp\"]\nban_time = \"15m\"\n";

struct Trap {
    weir: Weir,
    net: TestNet,
    _servers: Vec<TcpServer>,
    _peer: Option<Link>,
}

impl Trap {
    fn new(backend: &str, more: &str) -> Self {
        let net = TestNet::new();
        let peer = net.takes_answers_of(backend);
        let servers = HOST
            .map(|host| {
                let at = SocketAddr::new(addr(host), SERVED);
                TcpServer::start(&net.host, at, b"").unwrap()
            })
            .into();
        let config = format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n{more}\n{DECOYS}");
        let weir = Weir::start(&net.host, &config);
        assert_eq!(weir.attachment("eth0").0, backend);
        Self {
            weir,
            net,
            _servers: servers,
            _peer: peer,
        }
    }

    fn served(&self, family: usize) -> SocketAddr {
        SocketAddr::new(addr(HOST[family]), SERVED)
    }

    fn outside(&self, program: &str, args: &[&str]) -> Output {
        self.net.internet.output(program, args).unwrap()
    }

    /// Waits for the ban of a decoy port, and looks at both ends.
    #[track_caller]
    fn is_banned(&self, who: &str, family: usize) {
        soon(&format!("{who} to be banned"), || {
            (self.weir.why(who)["dropped"] == true).then_some(())
        });
        let ban = &self.weir.why(who)["bans"][0];
        assert_eq!(ban["producer"], "decoy", "{ban}");
        let reason = ban["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("completed a handshake with decoy port "),
            "{reason}"
        );
        assert_eq!(ban["scope"], "all ports", "{ban}");
        assert!(!self.net.connects(who, self.served(family)), "{who}");
        self.net.serves(CUSTOMER[family], self.served(family));
    }

    fn seconds_left(&self, who: &str) -> u64 {
        let why = self.weir.why(who);
        why["bans"][0]["remaining_seconds"].as_u64().unwrap_or(0)
    }

    /// Completes a handshake with a decoy port; the connection says nothing.
    #[track_caller]
    fn visits(&self, who: &str, family: usize) {
        let at = SocketAddr::new(addr(HOST[family]), 23);
        self.net.serves(who, at);
    }
}

/// The subject of an address in a list of bans: IPv6 is banned by /64.
fn is_of(who: &str, banned: &str) -> bool {
    banned
        .parse::<weir_core::Prefix>()
        .is_ok_and(|prefix| prefix.contains(addr(who)))
}

#[test]
fn root_decoy_a_connect_scan_is_banned() {
    if skipped(&["nmap", "curl"]) {
        return;
    }
    for backend in BACKENDS {
        let trap = Trap::new(backend, "");
        for family in [0, 1] {
            let who = ATTACKER[family];
            trap.net.serves(who, trap.served(family));
            let mut args = vec!["-sT", "-Pn", "-n", "-p", "1000-1009", "-S", who];
            args.extend(["-e", "eth0", "--host-timeout", "3s", HOST[family]]);
            args.extend(["-6"].iter().take(family));
            let scan = trap.outside("nmap", &args);
            println!("{backend}: {}", String::from_utf8_lossy(&scan.stdout));
            trap.is_banned(who, family);

            let who = OTHER[family];
            let url = format!("http://{}/", SocketAddr::new(addr(HOST[family]), 23));
            trap.outside("curl", &["--interface", who, "--max-time", "2", "-g", &url]);
            trap.is_banned(who, family);
        }
        let decoy = &trap.weir.json(&["status"])["decoy"];
        assert_eq!(decoy["bans_in_force"], 4, "{decoy}");
        assert_eq!(decoy["bans"], 4, "one visit, one offence: {decoy}");
        let text = trap.weir.ask(&["status"]).out;
        assert!(text.contains("decoy ports 23/tcp 1000-1999/tcp"), "{text}");
    }
}

#[test]
fn root_decoy_masscan_is_banned_when_it_talks() {
    if skipped(&["masscan"]) {
        return;
    }
    for backend in BACKENDS {
        let trap = Trap::new(backend, "");
        let mac = trap.net.veth.mac(Side::A).map(|b| format!("{b:02x}"));
        let mac = mac.join("-");
        let output = trap.weir.path("masscan.out");
        // It does not end before another packet comes: ended with its guard.
        let scan = |more: &[&str], who: &str| {
            let mut masscan = Command::new("masscan");
            masscan
                .args([HOST[0], "-p1000-1100", "--rate", "2000", "-e", "eth0"])
                .args(["--adapter-ip", who, "--router-mac", &mac])
                .args(more)
                .stdin(Stdio::null())
                .stdout(File::create(&output).unwrap())
                .stderr(Stdio::null());
            trap.net.internet.spawn(masscan).unwrap()
        };
        // Half-open: it finds ports open, and proves nothing.
        let half_open = scan(&[], OTHER[0]);
        soon("masscan to find ports open", || {
            let found = std::fs::read_to_string(&output).unwrap();
            found.contains("open port 1").then_some(())
        });
        drop(half_open);
        soon("the scan to be told", || {
            (trap.weir.json(&["status"])["decoy"]["strikes"].as_u64() > Some(0)).then_some(())
        });
        assert_eq!(trap.weir.json(&["status"])["decoy"]["proofs"], 0);
        assert_eq!(trap.weir.why(OTHER[0])["dropped"], false);
        trap.net.serves(OTHER[0], trap.served(0));

        let talking = scan(&["--banners"], ATTACKER[0]);
        trap.is_banned(ATTACKER[0], 0);
        drop(talking);
    }
}

#[test]
fn root_decoy_a_half_open_scan_is_told() {
    if skipped(&["nmap"]) {
        return;
    }
    let trap = Trap::new("tcx", "");
    for family in [0, 1] {
        let who = ATTACKER[family];
        let mut args = vec!["-sS", "-Pn", "-n", "-p", "1000-1010", "-S", who];
        args.extend(["-e", "eth0", HOST[family]]);
        args.extend(["-6"].iter().take(family));
        let scan = trap.outside("nmap", &args);
        let found = String::from_utf8_lossy(&scan.stdout).into_owned();
        assert!(found.contains("1000/tcp open"), "{found}");
        assert_eq!(trap.weir.why(who)["dropped"], false, "no proof");
        trap.net.serves(who, trap.served(family));
    }
    let decoy = &trap.weir.json(&["status"])["decoy"];
    assert!(decoy["strikes"].as_u64() > Some(0), "{decoy}");
    assert_eq!(decoy["proofs"], 0, "{decoy}");
}

/// G7, and the point of it all: what is sent in somebody's name bans nobody,
/// though its owner's kernel answers our SYN-ACKs with RSTs.
#[test]
fn root_decoy_forged_floods_ban_nobody() {
    if skipped(&[]) {
        return;
    }
    const FRAMES: usize = 1_000_000;
    for backend in BACKENDS {
        let trap = Trap::new(backend, "");
        let (ours, theirs) = (trap.net.veth.mac(Side::A), trap.net.veth.mac(Side::B));
        let mut frames = Vec::new();
        for family in [0, 1] {
            for who in [CUSTOMER[family], GATEWAY[family], HOST[family]] {
                for n in 0..64 {
                    let to = |p: Packet| p.ip(addr(who), addr(HOST[family]));
                    let eth = || to(Packet::eth_between(theirs, ours));
                    let mss = [2, 4, 5, 0xb4];
                    let syn = eth().tcp(40_000 + n, 1_000 + n);
                    frames.push(syn.clone().build());
                    frames.push(syn.clone().tcp_options(&mss, 1024).build());
                    frames.push(syn.tcp_flags(16).tcp_seq(9, u32::from(n) << 20).build());
                    frames.push(eth().udp(40_000 + n, 161).payload_len(8).build());
                }
            }
        }
        let many = frames.iter().cycle().take(FRAMES).map(Vec::as_slice);
        let sent = traffic::send_frames(&trap.net.internet, "eth0", many).unwrap();
        assert!(sent > FRAMES as u64 * 9 / 10, "{sent} left");
        soon("the flood to be told", || {
            (trap.weir.json(&["status"])["decoy"]["strikes"].as_u64() > Some(0)).then_some(())
        });
        for family in [0, 1] {
            trap.net.serves(CUSTOMER[family], trap.served(family));
        }
        assert_eq!(trap.weir.banned(), [""; 0], "{backend}");
        let status = trap.weir.json(&["status"]);
        assert_eq!(status["decoy"]["proofs"], 0, "{backend}: {status}");
        assert!(trap.weir.packets("decoy") > sent / 6, "{backend}");
        // Gateway and host are exempt: they meet the ports as without weir.
        assert!(trap.weir.packets("allowed") > sent / 3, "{backend}");
        // And it did not deafen: who proves himself is banned still, once the
        // second of the flood with its limits is over.
        for family in [0, 1] {
            let who = ATTACKER[family];
            let at = SocketAddr::new(addr(HOST[family]), 23);
            soon("a visit to be proof again", || {
                trap.net.connects(who, at);
                (trap.weir.why(who)["dropped"] == true).then_some(())
            });
            trap.is_banned(who, family);
        }
    }
}

/// G6: who we connect to from a decoy port is not a visitor.
/// One host of our own network must not have all others there banned.
#[test]
fn root_decoy_a_neighbour_is_banned_alone() {
    if skipped(&[]) {
        return;
    }
    let trap = Trap::new(BACKENDS[0], "");
    // An address of this host in the visitor's /64.
    let own = "2001:db8:bad::1";
    trap.net
        .host
        .ip(&[format!("addr add {own}/128 dev lo")])
        .unwrap();
    soon("the address to be known", || {
        trap.weir.why(own)["exempt"].is_object().then_some(())
    });
    trap.weir.ask(&["reload"]).done();
    trap.visits(ATTACKER[1], 1);
    trap.is_banned(ATTACKER[1], 1);
    assert_eq!(trap.weir.banned(), [ATTACKER[1]]);
}

#[test]
fn root_decoy_own_connections_work() {
    if skipped(&[]) {
        return;
    }
    for backend in BACKENDS {
        let trap = Trap::new(backend, "");
        for family in [0, 1] {
            let at = SocketAddr::new(addr(CUSTOMER[family]), 8080);
            let server = TcpServer::start(&trap.net.internet, at, b"hello").unwrap();
            trap.net
                .host
                .sysctl("ipv4.ip_local_port_range", "1024 1400")
                .unwrap();
            let macs = [Side::B, Side::A].map(|side| trap.net.veth.mac(side));
            for round in 0..5 {
                // Somebody forges SYNs in its name, so that its segments look
                // like answers to a cookie at first.
                if round > 2 {
                    let syns = (1024..=1400).map(|port| {
                        let frame = Packet::eth_between(macs[0], macs[1]);
                        let frame = frame.ip(at.ip(), addr(HOST[family]));
                        frame.tcp(8080, port).build()
                    });
                    let syns: Vec<_> = syns.collect();
                    // No more at a time than the wire's queue holds.
                    for some in syns.chunks(100) {
                        let seen = trap.weir.packets("decoy");
                        let syns = some.iter().map(Vec::as_slice);
                        traffic::send_frames(&trap.net.internet, "eth0", syns).unwrap();
                        let all = seen + some.len() as u64;
                        soon("the SYNs to be seen", || {
                            (trap.weir.packets("decoy") >= all).then_some(())
                        });
                    }
                }
                let (mut stream, _) =
                    traffic::tcp_open(&trap.net.host, None, at, common::SOON).unwrap();
                let port = stream.local_addr().unwrap().port();
                assert!((1024..=1400).contains(&port), "{port} is a decoy port");
                let mut hello = [0; 5];
                std::io::Read::read_exact(&mut stream, &mut hello).unwrap();
                assert_eq!(&hello, b"hello");
            }
            assert_eq!(server.accepted(), 5);
        }
        assert_eq!(trap.weir.packets("decoy"), 2 * 2 * 377, "{backend}");
        assert_eq!(trap.weir.packets("proven"), 0);
        assert_eq!(trap.weir.banned(), [""; 0]);
    }
}

/// G8, as far as it shows in time: each offence doubles the ban, a restart
/// forgets none, the cap holds. (A million of them: crates/daemon/src/decoy.rs.)
#[test]
fn root_decoy_bans_grow_and_are_remembered() {
    if skipped(&[]) {
        return;
    }
    let mut trap = Trap::new("tcx", "");
    let minutes = |trap: &Trap, who| trap.seconds_left(who).div_ceil(60);
    for family in [0, 1] {
        for (offence, expected) in [15, 30, 60].into_iter().enumerate() {
            let who = ATTACKER[family];
            if offence == 2 {
                trap.weir.stop();
                trap.weir.run();
            }
            trap.visits(who, family);
            trap.is_banned(who, family);
            assert_eq!(minutes(&trap, who), expected, "offence {offence}");
            let banned = trap.weir.banned();
            let subject = banned.iter().find(|b| is_of(who, b)).unwrap();
            trap.weir.ask(&["unban", subject]).done();
            // A visit within the same second would be the same offence.
            let lifted = std::time::Instant::now();
            soon("a second to pass", || {
                (lifted.elapsed() > Duration::from_millis(1500)).then_some(())
            });
        }
    }
    // In force over a crash, and while no daemon lives: decoys answer on.
    trap.weir.kill();
    trap.visits(OTHER[0], 0);
    trap.weir.run();
    trap.is_banned(OTHER[0], 0);
}

#[test]
fn root_decoy_served_ports_are_none() {
    if skipped(&[]) {
        return;
    }
    let trap = Trap::new("tcx", "");
    // One that begins to be served later.
    let late = SocketAddr::new(addr(HOST[0]), 1234);
    let server = TcpServer::start(&trap.net.host, late, b"").unwrap();
    soon("the listener to be seen", || {
        let status = trap.weir.json(&["status"]);
        (status["decoy"]["served"] == serde_json::json!(["1234/tcp"])).then_some(())
    });
    let alerts = trap.weir.json(&["status"])["alerts"].to_string();
    assert!(alerts.contains("decoy port 1234/tcp"), "{alerts}");
    trap.net.serves_soon(CUSTOMER[0], late);
    assert_eq!(trap.weir.why(CUSTOMER[0])["dropped"], false);
    // One that is, when the file is read.
    let check = trap.weir.ask(&["check"]);
    check.is_mistaken(&["ports in [decoy]: 1234/tcp is served", "\"!1234/tcp\""]);
    trap.weir.ask(&["reload"]).refused(&["1234/tcp is served"]);
    drop(server);
    soon("the port to be a decoy again", || {
        let status = trap.weir.json(&["status"]);
        (status["decoy"]["served"] == serde_json::json!([])).then_some(())
    });
    trap.weir.ask(&["check"]).done();
    // On loopback it is nobody's business.
    let inside = trap.net.host.enter(|| TcpListener::bind("127.0.0.1:1235"));
    trap.weir.ask(&["check"]).done();
    drop(inside);
}

#[test]
fn root_decoy_exempt_sources_meet_the_port_itself() {
    if skipped(&[]) {
        return;
    }
    let allow = "allow = [\"198.51.100.7\", \"2001:db8:bad::/64\"]";
    for backend in BACKENDS {
        let trap = Trap::new(backend, allow);
        for family in [0, 1] {
            let at = SocketAddr::new(addr(HOST[family]), 23);
            let refused = traffic::tcp_connect(
                &trap.net.internet,
                Some(addr(ATTACKER[family])),
                at,
                common::SOON,
            );
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("refused"), "{error}");
        }
        assert!(trap.weir.packets("allowed") > 0);
        assert_eq!(trap.weir.banned(), [""; 0]);
    }
}

#[test]
fn root_decoy_without_proof_when_told_so() {
    if skipped(&[]) {
        return;
    }
    let trap = Trap::new("tcx", "");
    let config = format!("interfaces = [\"eth0\"]\nbackend = \"tcx\"\n{DECOYS}proof = \"none\"\n");
    trap.weir.configure(&config);
    let answer = trap.weir.ask(&["reload"]).done();
    let said = format!("{}{}", answer.out, answer.err);
    assert!(said.contains("in a customer's name"), "{said}");
    for family in [0, 1] {
        let who = ATTACKER[family];
        let at = SocketAddr::new(addr(HOST[family]), 161);
        traffic::udp_send(&trap.net.internet, Some(addr(who)), at, b"?", 1).unwrap();
        soon("one datagram to ban", || {
            (trap.weir.why(who)["dropped"] == true).then_some(())
        });
        let why = trap.weir.why(who).to_string();
        assert!(why.contains("asked decoy port 161/udp"), "{why}");
        assert!(why.contains("without proof"), "{why}");
    }
}

/// What answers comes and goes with the section; the bans stay where they are.
#[test]
fn root_decoy_comes_and_goes_by_reload() {
    if skipped(&[]) {
        return;
    }
    let trap = Trap::new("tcx", "");
    let generation = || trap.weir.json(&["status"])["usage"]["generation"].clone();
    let before = generation();
    let at = SocketAddr::new(addr(HOST[0]), 23);
    trap.weir
        .configure("interfaces = [\"eth0\"]\nbackend = \"tcx\"\n");
    trap.weir.ask(&["reload"]).done();
    assert!(trap.weir.json(&["status"])["decoy"].is_null());
    let refused = traffic::tcp_connect(
        &trap.net.internet,
        Some(addr(ATTACKER[0])),
        at,
        common::SOON,
    );
    assert!(refused.unwrap_err().to_string().contains("refused"));
    assert_eq!(trap.weir.banned(), [""; 0]);
    trap.weir.configure(&format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n{DECOYS}"
    ));
    trap.weir.ask(&["reload"]).done();
    trap.visits(ATTACKER[0], 0);
    trap.is_banned(ATTACKER[0], 0);
    assert_eq!(generation(), before, "tables were copied for it");
}

//! The same through every backend, with real packets: what a ban, a list, the
//! allow list and the geofence do does not depend on who carries it out.

mod common;

#[path = "root_backends/beside_others.rs"]
mod beside_others;
#[path = "root_backends/changing_lists.rs"]
mod changing_lists;
#[path = "root_backends/reference.rs"]
mod reference;

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use common::{
    ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SILENCE, SOON, Stop, Stream, TestNet, Traffic, Weir,
    addr, all_arrived, send_gently, skipped, soon,
};
use weir_core::{
    Action, PortSet, Prefix, PrefixSet, Reason,
    address_class::{ListLayer, Plan},
    geo::{Continent, Country, GeoTable, GeoTableBuilder, Place},
    geofence::{Direction, Fence, RuleAction},
    verdict::{Asked, decide},
};
use weir_netlab::{ErrorKind, Side, VethOpts};
use weir_testkit::{
    mmdb::{Mmdb, country},
    packet::Packet,
    traffic::{
        TcpServer, UdpServer, ping, retry_interrupted, send_frames, tcp_connect, udp_request,
        udp_send,
    },
};

const PORT: u16 = 8080;
const OTHER_PORT: u16 = 2222;
/// What backends and their neighbours are driven by.
const PROGRAMS: [&str; 3] = ["nft", "ipset", "iptables-restore"];

/// What the table has a line for.
#[derive(Clone, Copy, Debug)]
struct Case {
    backend: &'static str,
    geofence: bool,
}

const BACKENDS: [Case; 7] = [
    Case {
        backend: "xdp",
        geofence: true,
    },
    Case {
        backend: "xdp-generic",
        geofence: true,
    },
    Case {
        backend: "tcx",
        geofence: true,
    },
    Case {
        backend: "cls_bpf",
        geofence: true,
    },
    Case {
        backend: "netfilter",
        geofence: true,
    },
    Case {
        backend: "nft",
        geofence: true,
    },
    Case {
        backend: "ipset",
        geofence: false,
    },
];

fn at(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), port)
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(addr("::"), port)
}

fn config(case: Case, more: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{}\"\nipv4_length = 24\n{more}",
        case.backend
    )
}

fn pings(net: &TestNet, from: &str, family: usize, time: Duration) -> bool {
    ping(&net.internet, Some(addr(from)), addr(HOST[family]), time).is_ok()
}

#[test]
fn root_bans_are_the_same_everywhere() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(case, ""));
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let _other = TcpServer::start(&net.host, any(OTHER_PORT), b"").unwrap();
        assert_eq!(weir.json(&["status"])["backend"], case.backend);
        for family in [0, 1] {
            let bad = ATTACKER[family];
            net.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad]).done();
            assert!(!net.connects(bad, at(family, PORT)), "{bad}");
            assert!(!pings(&net, bad, family, SILENCE));
            assert!(weir.packets("banned-all") >= 2);
            for good in [CUSTOMER[family], OTHER[family], GATEWAY[family]] {
                net.serves(good, at(family, PORT));
            }
            // The allow list wins.
            weir.ask(&["allow", "add", bad]).done();
            net.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", bad]).done();
            assert!(!net.connects(bad, at(family, PORT)));
            // Some ports only, beside a ban of all of them.
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            weir.ask(&["unban", bad]).done();
            net.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            assert!(!net.connects(bad, at(family, PORT)));
            net.serves(bad, at(family, OTHER_PORT));
            assert!(pings(&net, bad, family, SOON));
            // Ends by itself.
            weir.ask(&["ban", OTHER[family], "--for", "5s"]).done();
            assert!(!net.connects(OTHER[family], at(family, PORT)));
            net.serves_soon(OTHER[family], at(family, PORT));
        }
        // Prefixes: the one that the table has, and others.
        for (family, prefix) in [
            (0, "198.51.100.0/24"),
            (0, "198.51.96.0/20"),
            (1, "2001:db8:bad:1::/64"),
            (1, "2001:db8:bad::/48"),
        ] {
            weir.ask(&["ban", prefix, "--for", "1h"]).done();
            assert!(
                !net.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            net.serves(CUSTOMER[family], at(family, PORT));
            // Nobody's doing: the next daemon finds it.
            weir.kill();
            assert!(
                !net.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.run();
            assert!(
                !net.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.ask(&["unban", prefix]).done();
            net.serves(OTHER[family], at(family, OTHER_PORT));
        }
        for family in [0, 1] {
            assert!(!net.connects(ATTACKER[family], at(family, PORT)));
            net.serves(ATTACKER[family], at(family, OTHER_PORT));
        }
        weir.stop();
        assert!(!net.connects(ATTACKER[0], at(0, PORT)));
        let gone = weir.detach().done();
        assert!(
            gone.out.contains("eth0") || gone.out.contains(case.backend),
            "{gone:?}"
        );
        net.serves(ATTACKER[0], at(0, PORT));
        nothing_left(&net);
        weir.run();
        assert!(!net.connects(ATTACKER[0], at(0, PORT)));
    }
}

/// Lists and, where there is one, the geofence, with a list of some ports.
#[test]
fn root_lists_and_places_are_the_same_everywhere() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, "");
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let _other = TcpServer::start(&net.host, any(OTHER_PORT), b"").unwrap();
        let udp = UdpServer::start(&net.host, any(PORT)).unwrap();
        fs::write(weir.path("bad.txt"), "198.51.100.8\n2001:db8:bad:1::/64\n").unwrap();
        fs::write(weir.path("some.txt"), "203.0.113.5\n2001:db8:c::5\n").unwrap();
        let places = Mmdb::new("Test-Country")
            .with("198.51.100.0/24", country("RU", "EU"))
            .with("2001:db8:bad::/48", country("RU", "EU"))
            .build();
        fs::write(weir.path("places.mmdb"), places).unwrap();
        let path = |name: &str| weir.path(name).display().to_string();
        let geofence = format!(
            "[geofence]\ndatabase = {:?}\ndeny = [\"country:RU\"]\n",
            path("places.mmdb")
        );
        let lists = format!(
            "[list.bad]\nfile = {:?}\n[list.some]\nfile = {:?}\nports = [\"{OTHER_PORT}/tcp\"]\n",
            path("bad.txt"),
            path("some.txt")
        );
        let more = if case.geofence {
            geofence + &lists
        } else {
            lists.clone()
        };
        weir.configure(&config(case, &more));
        weir.run();
        for family in [0, 1] {
            let (bad, customer) = (OTHER[family], CUSTOMER[family]);
            assert!(!net.connects(bad, at(family, PORT)), "{bad}");
            assert!(!pings(&net, bad, family, SILENCE));
            assert_eq!(weir.why(bad)["verdict"], "listed");
            net.serves(customer, at(family, PORT));
            assert!(!net.connects(customer, at(family, OTHER_PORT)));
            net.serves(GATEWAY[family], at(family, OTHER_PORT));
            weir.ask(&["allow", "add", bad]).done();
            net.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", bad]).done();
            assert!(!net.connects(bad, at(family, PORT)));
        }
        assert!(weir.packets("listed") >= 6);
        if case.geofence {
            for family in [0, 1] {
                let denied = addr(ATTACKER[family]);
                assert!(!net.connects(ATTACKER[family], at(family, PORT)));
                assert!(!pings(&net, ATTACKER[family], family, SILENCE));
                let before = udp.received();
                udp_send(&net.internet, Some(denied), at(family, PORT), b"!", 3).unwrap();
                // What this host asks for is answered, whatever the protocol.
                let there = |port| SocketAddr::new(denied, port);
                let _web = TcpServer::start(&net.internet, there(443), b"").unwrap();
                let _dns = UdpServer::start(&net.internet, there(53)).unwrap();
                tcp_connect(&net.host, None, there(443), SOON).unwrap();
                udp_request(&net.host, None, there(53), b"?", SOON).unwrap();
                ping(&net.host, None, denied, SOON).unwrap();
                assert_eq!(udp.received(), before);
            }
            assert!(weir.packets("fenced") >= 4);
            assert!(weir.packets("reply") >= 4);
            let status = weir.json(&["status"]);
            let dropped = status["dropped"].as_array().unwrap();
            assert!(dropped.iter().any(|d| d["country"] == "RU"), "{status}");
            assert!(dropped.iter().any(|d| d["list"] == "bad"), "{status}");
        }
        // Another list, in its place: one is let in, one is not any more.
        fs::write(weir.path("bad.txt"), "203.0.113.5\n2001:db8:c::/64\n").unwrap();
        weir.configure(&config(case, &lists));
        weir.ask(&["reload"]).done();
        weir.ask(&["list", "refresh"]).done();
        for family in [0, 1] {
            net.serves_soon(OTHER[family], at(family, PORT));
            soon("the new list", || {
                (!net.connects(CUSTOMER[family], at(family, PORT))).then_some(())
            });
        }
        // It outlives the daemon, and goes when the configuration has none.
        weir.kill();
        assert!(!net.connects(CUSTOMER[0], at(0, PORT)));
        weir.configure(&config(case, ""));
        weir.run();
        for family in [0, 1] {
            net.serves_soon(CUSTOMER[family], at(family, PORT));
        }
        weir.stop();
        weir.detach().done();
        nothing_left(&net);
    }
}

/// What somebody else has is as before, and nothing of ours is there.
fn nothing_left(net: &TestNet) {
    for (program, args) in [
        ("nft", &["list", "ruleset"][..]),
        ("ipset", &["list", "-name"]),
        ("iptables-save", &[]),
        ("ip6tables-save", &[]),
    ] {
        let said = net.host.output(program, args).unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(!said.contains("weir"), "{program}: {said}");
    }
}

/// From each backend to each: by a reload while packets come, and by another
/// configuration at the next start. Not one packet comes through, and no ban is
/// lost, also none that is made meanwhile.
#[test]
fn root_no_packet_passes_while_the_backend_changes() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let case = |backend| Case {
        backend,
        geofence: false,
    };
    // The daemon keeps what iptables needs only when it begins with it.
    let mut weir = Weir::start(&net.host, &config(case("ipset"), ""));
    let server = UdpServer::start(&net.host, any(PORT)).unwrap();
    let from = [ATTACKER[0], ATTACKER[1], "198.18.7.7"];
    for subject in [ATTACKER[0], "2001:db8:bad::/64", "198.18.0.0/17"] {
        weir.ask(&["ban", subject, "--for", "1h"]).done();
    }
    let sent = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for source in from {
                    let source = addr(source);
                    let to = at(usize::from(source.is_ipv6()), PORT);
                    let some = udp_send(&net.internet, Some(source), to, b"x", 20).unwrap();
                    sent.fetch_add(some, Ordering::Relaxed);
                }
            }
        });
        let mut made = 0;
        let way = [
            "nft",
            "tcx",
            "ipset",
            "xdp",
            "nft",
            "ipset",
            "tcx",
            "nft",
            "xdp-generic",
            "netfilter",
            "cls_bpf",
            "netfilter",
            "nft",
        ];
        for (turn, backend) in way.into_iter().enumerate() {
            let before = sent.load(Ordering::Relaxed);
            weir.configure(&config(case(backend), ""));
            std::thread::scope(|scope| {
                let changing = scope.spawn(|| weir.ask(&["reload"]));
                // As many as a /24 has room for: a slow machine makes more.
                while !changing.is_finished() && made < 150 {
                    let subject = format!("203.0.113.{}", 100 + made);
                    weir.ask(&["ban", &subject, "--for", "1h"]).done();
                    made += 1;
                }
                changing.join().unwrap().done();
            });
            let status = weir.json(&["status"]);
            assert_eq!(status["backend"], backend);
            assert_eq!(status["usage"]["bans"], 2 + made, "{turn}: {status}");
            assert_eq!(status["usage"]["prefix_bans"], 1, "{status}");
            assert!(sent.load(Ordering::Relaxed) > before);
            assert_eq!(server.received(), 0, "to {backend}");
            if made > 0 {
                let last = format!("203.0.113.{}", 99 + made);
                assert!(!pings(&net, &last, 0, SILENCE), "{last} on {backend}");
            }
        }
        let total = 2 + made;
        for backend in ["nft", "ipset", "tcx", "nft", "xdp", "ipset", "nft"] {
            weir.stop();
            weir.configure(&config(case(backend), ""));
            weir.run();
            let status = weir.json(&["status"]);
            assert_eq!(status["backend"], backend);
            assert_eq!(status["usage"]["bans"], total, "{status}");
            assert_eq!(server.received(), 0, "restarted with {backend}");
        }
    });
    println!("{} packets while the backend changed", sent.into_inner());
    // The unspent time went along.
    let left = weir.why(ATTACKER[0])["bans"][0]["remaining_seconds"].as_u64();
    assert!((3300..=3600).contains(&left.unwrap()), "{left:?}");
    weir.ask(&["unban", "--all"]).done();
    let asks = |source| {
        udp_request(
            &net.internet,
            Some(addr(source)),
            at(0, PORT),
            b"?",
            SILENCE,
        )
        .is_ok()
    };
    soon("to be served again", || asks(ATTACKER[0]).then_some(()));
    weir.stop();
    weir.detach().done();
    nothing_left(&net);
}

/// A device by an alternative name, by both of its names or by one given twice: it
/// is protected, and each packet judged once.
#[test]
fn root_two_names_of_a_device_protect_it_once() {
    if skipped(&PROGRAMS) {
        return;
    }
    const SENT: u64 = 100;
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let mut weir = Weir::new(&net.host, "");
        for (turn, names) in [&["lan0"][..], &["lan0", "eth0"], &["eth0", "lan0", "eth0"]]
            .into_iter()
            .enumerate()
        {
            let config = config(case, "");
            weir.configure(&config.replace("[\"eth0\"]", &format!("{names:?}")));
            match turn {
                2 => {
                    weir.ask(&["reload"]).done();
                }
                _ => weir.run(),
            }
            let check = weir.ask(&["check"]).out;
            assert!(!check.contains("there is no interface"), "{check}");
            for family in [0, 1] {
                let bad = ATTACKER[family];
                weir.ask(&["ban", bad, "--for", "1h"]).done();
                assert!(!net.connects(bad, at(family, PORT)), "{names:?}");
                net.serves(CUSTOMER[family], at(family, PORT));
                let before = weir.packets("banned-all");
                let to = at(family, 5353);
                let sent = udp_send(&net.internet, Some(addr(bad)), to, b"x", SENT);
                assert_eq!(sent.unwrap(), SENT);
                soon("them all", || {
                    (weir.packets("banned-all") - before >= SENT).then_some(())
                });
                assert_eq!(weir.packets("banned-all") - before, SENT, "{names:?}");
            }
            for name in names {
                let (hook, note) = weir.attachment(name);
                assert_eq!(hook, case.backend, "{name} of {names:?}: {note}");
            }
            if turn == 0 {
                weir.kill();
            }
        }
        weir.stop();
        weir.detach().done();
        nothing_left(&net);
    }
}

/// A hundred thousand at once by a jail, then over a restart and away again.
#[test]
fn root_a_hundred_thousand_bans_hold_everywhere() {
    if skipped(&PROGRAMS) {
        return;
    }
    const MANY: u32 = 100_000;
    for case in only() {
        println!("{case:?}");
        let net = TestNet::new();
        let jail = "[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";
        let mut weir = Weir::start(&net.host, &config(case, jail));
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let begun = Instant::now();
        let all = (0..MANY).map(|n| IpAddr::from((0xc612_0000 + n).to_be_bytes()));
        weir.log_failures(all, 1);
        let bans = |weir: &Weir| weir.json(&["status"])["usage"]["bans"].as_u64().unwrap();
        soon("all of them", || {
            (bans(&weir) == u64::from(MANY)).then_some(())
        });
        println!("{MANY} lines to bans: {:?}", begun.elapsed());
        let in_force = || {
            for who in ["198.18.0.1", "198.18.200.7", "198.19.134.159"] {
                assert!(!net.connects(who, at(0, PORT)), "{who}");
            }
            net.serves("198.19.134.160", at(0, PORT));
            net.serves(CUSTOMER[1], at(1, PORT));
        };
        in_force();
        weir.kill();
        in_force();
        let begun = Instant::now();
        weir.run();
        println!("restarted in {:?}", begun.elapsed());
        in_force();
        assert_eq!(bans(&weir), u64::from(MANY));
        weir.ask(&["unban", "198.18.200.7"]).done();
        net.serves("198.18.200.7", at(0, PORT));
    }
}

/// What was counted before a restart counts once after it, and after the ones
/// behind it; also when somebody has taken the rules away, and what lists drop.
#[test]
fn root_restarts_neither_double_nor_lose_what_was_counted() {
    if skipped(&PROGRAMS) {
        return;
    }
    const SENT: u64 = 500;
    for (backend, flush) in [
        ("nft", &["nft", "flush", "ruleset"][..]),
        ("ipset", &["iptables", "-t", "raw", "-F"]),
    ] {
        let net = TestNet::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let mut weir = Weir::new(&net.host, "");
        let file = weir.path("bad.txt");
        fs::write(&file, OTHER.join("\n")).unwrap();
        weir.configure(&config(case, &format!("[list.bad]\nfile = {file:?}\n")));
        weir.run();
        for who in ATTACKER {
            weir.ask(&["ban", who, "--for", "1h"]).done();
        }
        let sent = |n: u64| {
            for who in [ATTACKER, OTHER].concat() {
                let to = at(usize::from(who.contains(':')), PORT);
                send_gently(&net, who, to, n);
            }
        };
        let counted = |weir: &Weir| {
            let list = weir.json(&["status"])["dropped"].clone();
            let list = list.as_array().unwrap().iter().find(|d| d["list"] == "bad");
            let list = list.and_then(|list| list["packets"].as_u64());
            [
                weir.packets("banned-all"),
                weir.packets("listed"),
                list.unwrap_or(0),
            ]
        };
        let all = [2 * SENT; 3];
        sent(SENT);
        soon("them all", || (counted(&weir) == all).then_some(()));
        for restart in 1..4 {
            weir.kill();
            weir.run();
            assert_eq!(counted(&weir), all, "{backend}, restart {restart}");
        }
        // Rules that are made anew, and ones that somebody takes away.
        weir.ask(&["allow", "add", "203.0.113.99"]).done();
        weir.ask(&["ban", "198.18.0.0/16", "--for", "1h"]).done();
        weir.ask(&["ban", "198.18.7.7", "--port", "22/tcp", "--for", "1h"])
            .done();
        assert_eq!(counted(&weir), all, "{backend}, other rules");
        let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        net.serves(CUSTOMER[0], at(0, PORT));
        net.host.run(flush[0], &flush[1..]).unwrap();
        // Nobody listens there: a connection that came about before the bans are
        // back would send again what they drop, for minutes, and be counted.
        soon("the bans to be back", || {
            (weir.said().contains("somebody has changed")
                && is_dropped(&net, ATTACKER[0], at(0, OTHER_PORT)))
            .then_some(())
        });
        let [banned, listed, list] = counted(&weir);
        assert!(banned >= all[0], "{backend}: {banned} after a flush");
        assert_eq!([listed, list], [all[1], all[2]], "{backend}");
        sent(1);
        soon("what comes then", || {
            (counted(&weir) == [banned + 2, listed + 2, list + 2]).then_some(())
        });
    }
}

/// What a backend cannot do is told, and refused where it would be silence.
#[test]
fn root_limits_are_told() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let case = |backend| Case {
        backend,
        geofence: false,
    };
    for (backend, more, words) in [
        (
            "nft",
            "[decoy]\nports = [\"23/tcp\"]\n",
            "no decoy or tarpit ports",
        ),
        (
            "ipset",
            "[decoy]\nports = [\"23/tcp\"]\n",
            "no decoy or tarpit ports",
        ),
        (
            "ipset",
            "[geofence]\ndeny = [\"country:RU\"]\n",
            "no geofence",
        ),
    ] {
        let weir = Weir::new(&net.host, &config(case(backend), more));
        weir.ask(&["check"])
            .is_mistaken(&["backend", backend, words]);
    }
    for backend in ["nft", "ipset"] {
        let weir = Weir::start(&net.host, &config(case(backend), ""));
        let status = weir.json(&["status"]);
        let limits = status["limits"].as_array().unwrap();
        assert!(limits.iter().any(|l| l["feature"] == "decoys"), "{status}");
        // Nothing is enabled: the exit code is 1.
        let said = weir.ask(&["status"]).out;
        assert!(said.contains("no decoy or tarpit ports"), "{said}");
        // ipset tells what its sets take, nftables does not.
        let memory = &status["usage"]["map_bytes"];
        assert_eq!(memory.as_u64().is_some(), backend == "ipset", "{memory}");
        assert_eq!(said.contains("kernel memory"), backend == "ipset", "{said}");
        // Nobody is told that he is answered where nobody is.
        for subject in ATTACKER {
            weir.ask(&["ban", subject, "--for", "1h", "--reject"])
                .done();
            let why = weir.json(&["why", subject]);
            let verdict = match backend {
                "nft" => "rejected",
                _ => "banned-all",
            };
            assert_eq!(why["verdict"], verdict, "{why}");
            assert_eq!(why["bans"][0]["action"], "reject", "{why}");
        }
    }
    let weir = Weir::start(&net.host, &config(case("tcx"), ""));
    assert_eq!(
        weir.json(&["status"])["limits"].as_array().unwrap().len(),
        0
    );
    // What iptables needs was given up at the start.
    weir.configure(&config(case("ipset"), ""));
    weir.ask(&["reload"]).refused(&["restart", "CAP_NET_RAW"]);
}

/// Does nothing answer, not even that nobody listens there?
fn is_dropped(net: &TestNet, from: &str, to: SocketAddr) -> bool {
    let answer = tcp_connect(&net.internet, Some(addr(from)), to, SILENCE);
    answer.expect_err("nobody listens").kind() != ErrorKind::Refused
}

/// The cases, or the one that WEIR_BACKEND names, less those that this kernel
/// lacks (tests/root_missing_kernel_features.rs).
fn only() -> impl Iterator<Item = Case> {
    let only = std::env::var("WEIR_BACKEND").ok();
    BACKENDS
        .into_iter()
        .filter(move |case| only.as_ref().is_none_or(|name| name == case.backend))
        .filter(|case| {
            let why = match case.backend {
                "tcx" if weir_bpf::probe::tcx_programs(1).is_none() => "no tcx, Linux 6.6",
                "netfilter" if !weir_bpf::programs::netfilter_supported() => {
                    "no netfilter hook for BPF, Linux 6.4"
                }
                _ => return true,
            };
            println!("skipped: this kernel has {why}");
            false
        })
}

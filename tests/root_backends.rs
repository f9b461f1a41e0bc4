//! The same through every backend, with real packets: what a ban, a list, the
//! allow list and the geofence do does not depend on who carries it out.

mod common;

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use common::{
    ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SILENCE, SOON, Site, Stop, Stream, Traffic, Weir,
    addr, all_arrived, send_gently, skipped, soon,
};
use weir_core::{
    Action, Prefix, PrefixSet, Reason, Scope,
    class::{ListLayer, Plan},
    fence::{Direction, Fate, Fence},
    geo::{Atlas, Continent, Country, Place, Survey},
    verdict::{Asked, decide},
};
use weir_netlab::{Side, VethOpts};
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

fn pings(site: &Site, from: &str, family: usize, time: Duration) -> bool {
    ping(&site.internet, Some(addr(from)), addr(HOST[family]), time).is_ok()
}

#[test]
fn root_bans_are_the_same_everywhere() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let site = Site::new();
        let mut weir = Weir::start(&site.host, &config(case, ""));
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        let _other = TcpServer::start(&site.host, any(OTHER_PORT), b"").unwrap();
        assert_eq!(weir.json(&["status"])["backend"], case.backend);
        for family in [0, 1] {
            let bad = ATTACKER[family];
            site.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad]).done();
            assert!(!site.connects(bad, at(family, PORT)), "{bad}");
            assert!(!pings(&site, bad, family, SILENCE));
            assert!(weir.packets("banned-all") >= 2);
            for good in [CUSTOMER[family], OTHER[family], GATEWAY[family]] {
                site.serves(good, at(family, PORT));
            }
            // The allow list wins.
            weir.ask(&["allow", "add", bad]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", bad]).done();
            assert!(!site.connects(bad, at(family, PORT)));
            // Some ports only, beside a ban of all of them.
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            weir.ask(&["unban", bad]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["ban", bad, "--port", "8080/tcp", "--for", "1h"])
                .done();
            assert!(!site.connects(bad, at(family, PORT)));
            site.serves(bad, at(family, OTHER_PORT));
            assert!(pings(&site, bad, family, SOON));
            // Ends by itself.
            weir.ask(&["ban", OTHER[family], "--for", "2s"]).done();
            assert!(!site.connects(OTHER[family], at(family, PORT)));
            site.serves_soon(OTHER[family], at(family, PORT));
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
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            site.serves(CUSTOMER[family], at(family, PORT));
            // Nobody's doing: the next daemon finds it.
            weir.kill();
            assert!(
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.run();
            assert!(
                !site.connects(OTHER[family], at(family, OTHER_PORT)),
                "{prefix}"
            );
            weir.ask(&["unban", prefix]).done();
            site.serves(OTHER[family], at(family, OTHER_PORT));
        }
        for family in [0, 1] {
            assert!(!site.connects(ATTACKER[family], at(family, PORT)));
            site.serves(ATTACKER[family], at(family, OTHER_PORT));
        }
        weir.stop();
        assert!(!site.connects(ATTACKER[0], at(0, PORT)));
        let gone = weir.detach().done();
        assert!(
            gone.out.contains("eth0") || gone.out.contains(case.backend),
            "{gone:?}"
        );
        site.serves(ATTACKER[0], at(0, PORT));
        nothing_left(&site);
        weir.run();
        assert!(!site.connects(ATTACKER[0], at(0, PORT)));
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
        let site = Site::new();
        let mut weir = Weir::new(&site.host, "");
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        let _other = TcpServer::start(&site.host, any(OTHER_PORT), b"").unwrap();
        let udp = UdpServer::start(&site.host, any(PORT)).unwrap();
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
            assert!(!site.connects(bad, at(family, PORT)), "{bad}");
            assert!(!pings(&site, bad, family, SILENCE));
            assert_eq!(weir.why(bad)["verdict"], "listed");
            site.serves(customer, at(family, PORT));
            assert!(!site.connects(customer, at(family, OTHER_PORT)));
            site.serves(GATEWAY[family], at(family, OTHER_PORT));
            weir.ask(&["allow", "add", bad]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", bad]).done();
            assert!(!site.connects(bad, at(family, PORT)));
        }
        assert!(weir.packets("listed") >= 6);
        if case.geofence {
            for family in [0, 1] {
                let denied = addr(ATTACKER[family]);
                assert!(!site.connects(ATTACKER[family], at(family, PORT)));
                assert!(!pings(&site, ATTACKER[family], family, SILENCE));
                let before = udp.received();
                udp_send(&site.internet, Some(denied), at(family, PORT), b"!", 3).unwrap();
                // What this host asks for is answered, whatever the protocol.
                let there = |port| SocketAddr::new(denied, port);
                let _web = TcpServer::start(&site.internet, there(443), b"").unwrap();
                let _dns = UdpServer::start(&site.internet, there(53)).unwrap();
                tcp_connect(&site.host, None, there(443), SOON).unwrap();
                udp_request(&site.host, None, there(53), b"?", SOON).unwrap();
                ping(&site.host, None, denied, SOON).unwrap();
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
            site.serves_soon(OTHER[family], at(family, PORT));
            soon("the new list", || {
                (!site.connects(CUSTOMER[family], at(family, PORT))).then_some(())
            });
        }
        // It outlives the daemon, and goes when the configuration has none.
        weir.kill();
        assert!(!site.connects(CUSTOMER[0], at(0, PORT)));
        weir.configure(&config(case, ""));
        weir.run();
        for family in [0, 1] {
            site.serves_soon(CUSTOMER[family], at(family, PORT));
        }
        weir.stop();
        weir.detach().done();
        nothing_left(&site);
    }
}

/// What somebody else has is as before, and nothing of ours is there.
fn nothing_left(site: &Site) {
    for (program, args) in [
        ("nft", &["list", "ruleset"][..]),
        ("ipset", &["list", "-name"]),
        ("iptables-save", &[]),
        ("ip6tables-save", &[]),
    ] {
        let said = site.host.output(program, args).unwrap();
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
    let site = Site::new();
    let case = |backend| Case {
        backend,
        geofence: false,
    };
    // The daemon keeps what iptables needs only when it begins with it.
    let mut weir = Weir::start(&site.host, &config(case("ipset"), ""));
    let server = UdpServer::start(&site.host, any(PORT)).unwrap();
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
                    let some = udp_send(&site.internet, Some(source), to, b"x", 20).unwrap();
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
            assert_eq!(status["usage"]["wide"], 1, "{status}");
            assert!(sent.load(Ordering::Relaxed) > before);
            assert_eq!(server.received(), 0, "to {backend}");
            if made > 0 {
                let last = format!("203.0.113.{}", 99 + made);
                assert!(!pings(&site, &last, 0, SILENCE), "{last} on {backend}");
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
            &site.internet,
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
    nothing_left(&site);
}

/// As firewalld and Docker have them, in part: zones, a service chain, address
/// translation to a container, user chains.
const THEIRS: &str = "
table inet firewalld {
	set trusted { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 203.0.113.0/24 } }
	chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; }
	chain nat_PREROUTING { type nat hook prerouting priority dstnat + 10; policy accept;
		tcp dport 8081 counter dnat ip to 10.9.0.2:8080
	}
	chain public {
		tcp dport { 22, 8080 } accept
	}
	map zones { type ifname : verdict; elements = { \"eth0\" : goto public } }
	chain filter_INPUT { type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname vmap @zones
	}
	chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
		ip saddr @trusted counter accept
	}
}
";
const THEIR_IPTABLES: &str = "*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER ! -i docker0 -p tcp -m tcp --dport 8082 -j DNAT --to-destination 10.9.0.2:8080
-A POSTROUTING -s 10.9.0.0/24 ! -o docker0 -j MASQUERADE
COMMIT
*filter
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -j DOCKER
-A DOCKER -d 10.9.0.2/32 -o docker0 -p tcp -m tcp --dport 8080 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
*raw
:THEIRS - [0:0]
-A PREROUTING -p udp -m udp --dport 12345 -j THEIRS
-A THEIRS -s 203.0.113.9/32 -j NOTRACK
COMMIT
";

/// As ufw has them, in part, for IPv4 and for IPv6.
const THEIR_UFW: &str = "*filter
:ufw-before-input - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-user-input -p tcp -m tcp --dport 8080 -j ACCEPT
COMMIT
";

/// Everybody else's rules and sets, without counters and dates.
fn theirs(site: &Site) -> String {
    [
        ("nft", &["-s", "list", "ruleset"][..]),
        ("ipset", &["save"]),
        ("iptables-save", &[]),
        ("ip6tables-save", &[]),
    ]
    .map(|(program, args)| {
        let out = site.host.output(program, args).unwrap();
        assert!(out.status.success(), "{program}: {out:?}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.split(" [").next().unwrap().to_owned() + "\n")
            .collect::<String>()
    })
    .concat()
}

/// With other people's rules in place: translated and forwarded packets of
/// banned sources are dropped as well, and the rules are the same, byte by byte,
/// before and after weir's whole life.
#[test]
fn root_other_rules_stay_and_forwarded_packets_are_dropped() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let site = Site::new();
        let inside = site.net.namespace("inside").unwrap();
        let opts = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"]).unwrap();
        let _wire = site
            .net
            .veth(&site.host, "docker0", &inside, "eth0", opts)
            .unwrap();
        inside
            .ip(&["route add default via 10.9.0.1".to_owned()])
            .unwrap();
        site.host.forward().unwrap();
        let feed = |program: &str, args: &[&str], text: &str| {
            let file = std::env::temp_dir().join(format!("weir-rules-{}", std::process::id()));
            fs::write(&file, text).unwrap();
            let path = file.display().to_string();
            let args = [args, &[path.as_str()]].concat();
            site.host.run(program, &args).unwrap();
            fs::remove_file(file).unwrap();
        };
        feed("nft", &["-f"], THEIRS);
        feed("iptables-restore", &["--noflush"], THEIR_IPTABLES);
        for restore in ["iptables-restore", "ip6tables-restore"] {
            feed(restore, &["--noflush"], THEIR_UFW);
        }
        site.host
            .run("ipset", &["create", "theirs", "hash:net"])
            .unwrap();
        site.host
            .run("ipset", &["add", "theirs", "10.0.0.0/8"])
            .unwrap();
        let before = theirs(&site);

        let server = TcpServer::start(&inside, any(PORT), b"").unwrap();
        let _own = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        let mut weir = Weir::start(&site.host, &config(case, ""));
        for port in [8081, 8082] {
            site.serves(ATTACKER[0], at(0, port));
        }
        soon("both to be accepted", || {
            (server.accepted() == 2).then_some(())
        });
        weir.ask(&["ban", ATTACKER[0], "--for", "1h"]).done();
        for port in [PORT, 8081, 8082] {
            assert!(!site.connects(ATTACKER[0], at(0, port)), "{port}");
            site.serves(CUSTOMER[0], at(0, port));
        }
        // Of one port: that on the wire, before translation.
        weir.ask(&["unban", ATTACKER[0]]).done();
        weir.ask(&["ban", ATTACKER[0], "--port", "8081/tcp"]).done();
        assert!(!site.connects(ATTACKER[0], at(0, 8081)));
        site.serves(ATTACKER[0], at(0, 8082));
        // All others can still be listed beside ours.
        let beside = theirs(&site);
        for line in before.lines().filter(|line| !line.is_empty()) {
            assert!(beside.contains(line), "{line}");
        }
        weir.kill();
        assert!(!site.connects(ATTACKER[0], at(0, 8081)));
        weir.run();
        weir.stop();
        weir.detach().done();
        assert_eq!(theirs(&site), before, "{case:?}");
        site.serves(ATTACKER[0], at(0, 8081));
    }
}

/// Somebody reloads the firewall and takes everybody's rules with it.
#[test]
fn root_what_others_flush_comes_back() {
    if skipped(&PROGRAMS) {
        return;
    }
    for (backend, flush) in [
        ("nft", &["nft", "flush", "ruleset"][..]),
        ("ipset", &["iptables", "-t", "raw", "-F"]),
        ("ipset", &["nft", "flush", "ruleset"]),
    ] {
        let site = Site::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let weir = Weir::start(&site.host, &config(case, ""));
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        weir.ask(&["ban", ATTACKER[0], "--for", "1h"]).done();
        assert!(!site.connects(ATTACKER[0], at(0, PORT)));
        for _ in 0..2 {
            site.host.run(flush[0], &flush[1..]).unwrap();
            soon("the bans to be back", || {
                (!site.connects(ATTACKER[0], at(0, PORT))).then_some(())
            });
            site.serves(CUSTOMER[0], at(0, PORT));
        }
        assert!(weir.said().contains("somebody has changed"));
    }
}

/// While somebody takes the rules away, so that all of it is written again, the
/// allow list changes all the time: neither is in the other's way.
#[test]
fn root_ipset_allow_list_changes_while_all_is_written_again() {
    if skipped(&PROGRAMS) {
        return;
    }
    const CHANGES: usize = 25;
    let site = Site::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let weir = Weir::new(&site.host, "");
    let office: String = (0..20_000u32)
        .map(|n| {
            let v4 = IpAddr::from((0x0b00_0000 + 2 * n).to_be_bytes());
            format!("{v4}\n2001:db8:a:{n:x}::1\n")
        })
        .collect();
    fs::write(weir.path("office.txt"), office).unwrap();
    let list = format!(
        "[list.office]\nfile = {:?}\naction = \"allow\"\n",
        weir.path("office.txt")
    );
    weir.configure(&config(case, &list));
    let mut weir = weir;
    weir.run();
    weir.ask(&["ban", "198.18.0.0/16", "--for", "1h"]).done();
    let stop = AtomicBool::new(false);
    let times = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (site, stop, times) = (&site, &stop, &times);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                site.host.run("iptables", &["-t", "raw", "-F"]).unwrap();
                soon("all of it to be written again", || {
                    let saved = site.host.output("iptables-save", &["-t", "raw"]).unwrap();
                    let saved = String::from_utf8(saved.stdout).unwrap();
                    saved.contains("-A PREROUTING -j weir_").then_some(())
                });
                times.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 0..CHANGES {
            let who = format!("198.18.0.{n}");
            weir.ask(&["allow", "add", &who]).done();
            weir.ask(&["allow", "del", &who]).done();
        }
    });
    println!("all was written {times:?} times");
    assert!(!weir.said().contains("ERROR"), "{}", weir.said());
    weir.ask(&["allow", "add", "198.18.0.7"]).done();
    let saved = site.host.output("ipset", &["save"]).unwrap();
    let saved = String::from_utf8(saved.stdout).unwrap();
    assert!(!saved.contains(".new"), "a set that was filled is left");
    for (family, host) in [(4, "198.18.0.7"), (6, "2001:db8:a:4e1f::1")] {
        let elements = saved
            .lines()
            .filter(|line| line.starts_with("add ") && line.contains(&format!(".allow{family} ")));
        let (count, found) = elements.fold((0, false), |(count, found), line| {
            (count + 1, found || line.ends_with(&format!(" {host}")))
        });
        assert!(count >= 20_000 && found, "allow{family}: {count} entries");
    }
}

/// Allowed addresses of thousands, as a list of one's own.
fn office(weir: &Weir) -> String {
    let office: String = (0..5000u32)
        .map(|n| {
            let v4 = IpAddr::from((0x0b00_0000 + 2 * n).to_be_bytes());
            format!("{v4}\n2001:db8:a:{n:x}::1\n")
        })
        .collect();
    let file = weir.path("office.txt");
    fs::write(&file, office).unwrap();
    format!("[list.office]\nfile = {file:?}\naction = \"allow\"\n")
}

/// The allow list changes all the time, and bans that begin to touch it move to
/// other sets: who is allowed before and after gets every packet through though
/// somebody has banned his network, and who never was gets none.
#[test]
fn root_nobody_slips_by_while_the_allow_list_changes() {
    if skipped(&PROGRAMS) {
        return;
    }
    const CHANGES: usize = 12;
    const KILLS: usize = 4;
    for backend in ["nft", "ipset"] {
        println!("{backend}");
        let site = Site::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let mut weir = Weir::new(&site.host, "");
        let more = format!("allow = {CUSTOMER:?}\n{}", office(&weir));
        weir.configure(&config(case, &more));
        weir.run();
        for subject in [
            "203.0.113.0/24",
            "2001:db8:c::/48",
            "198.51.100.0/24",
            "2001:db8:bad::/48",
        ] {
            weir.ask(&["ban", subject, "--for", "1h"]).done();
        }
        let server = UdpServer::start(&site.host, any(PORT)).unwrap();
        let _shop = UdpServer::start(&site.host, any(PORT + 1)).unwrap();
        let traffic = Traffic::default();
        for is_killed in [false, true] {
            traffic.flows(&site, PORT, || {
                for turn in 0..if is_killed { KILLS } else { CHANGES } {
                    if is_killed {
                        weir.kill();
                        weir.run();
                    }
                    // Beside the attackers, and somewhere else.
                    let who = ["198.51.100.9", "2001:db8:bad::9", "11.9.9.9"];
                    for verb in ["add", "del"] {
                        for who in who {
                            weir.ask(&["allow", verb, who]).done();
                        }
                    }
                    assert_eq!(server.received(), 0, "{backend}, {is_killed}, {turn}");
                }
            });
            let Traffic { denied, customers } = &traffic;
            println!("killed: {is_killed}; {denied:?} denied packets, none passed");
            all_arrived(&site, customers.load(Ordering::Relaxed));
        }
    }
}

/// Lists come and go in front of others, which have another number for it: who
/// is listed before and after gets no packet through.
#[test]
fn root_ipset_lists_hold_while_others_come_and_go() {
    if skipped(&PROGRAMS) {
        return;
    }
    let site = Site::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let mut weir = Weir::new(&site.host, "");
    let list = |name: &str, text: &str| {
        let file = weir.path(&format!("{name}.txt"));
        fs::write(&file, text).unwrap();
        format!("[list.{name}]\nfile = {file:?}\n")
    };
    let listed = list("m", &ATTACKER.join("\n")) + &list("n", &OTHER.join("\n"));
    // Of documentation's and tests' networks, none of them a sender.
    let many: String = (0..5000u32)
        .map(|n| format!("198.19.{}.{}\n2001:db8:f00:{n:x}::1\n", n >> 6, n % 64 * 2))
        .collect();
    let front = list("a", &many);
    let without = config(case, &listed);
    let with = config(case, &(front + &listed));
    weir.configure(&without);
    weir.run();
    let server = UdpServer::start(&site.host, any(PORT)).unwrap();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let denied = [ATTACKER[0], ATTACKER[1], OTHER[0], OTHER[1]];
        let (site, stream) = (
            &site,
            Stream {
                stop: &stop,
                sent: &sent,
            },
        );
        scope.spawn(move || stream.run(site, &denied, PORT));
        for turn in 0..8 {
            for config in [&with, &without] {
                weir.configure(config);
                match turn {
                    0..5 => {
                        weir.ask(&["reload"]).done();
                    }
                    // Another order of lists than the one in the kernel.
                    _ => {
                        weir.kill();
                        weir.run();
                    }
                }
                let front = config == &with;
                soon("the lists as they are configured", || {
                    let said = weir.why("198.19.0.2")["verdict"] == "listed";
                    (said == front).then_some(())
                });
                assert_eq!(server.received(), 0, "turn {turn}: a listed packet passed");
            }
        }
    });
    println!("{} denied packets, none passed", sent.into_inner());
    // A set that a rule of before still holds goes a second later.
    soon("no set of a list to be left behind", || {
        let sets = site.host.output("ipset", &["list", "-name"]).unwrap();
        let sets = String::from_utf8(sets.stdout).unwrap();
        let lists = sets.lines().filter(|set| set.contains(".list")).count();
        (lists == 4).then_some(())
    });
}

/// Lists that ipset does not take, here because somebody has a set of our name: what
/// was made for them goes at each attempt, and what is in force stays. The same
/// where every number for sets is taken.
#[test]
fn root_ipset_lists_that_cannot_be_put_leave_nothing_behind() {
    if skipped(&PROGRAMS) {
        return;
    }
    let site = Site::new();
    let case = Case {
        backend: "ipset",
        geofence: false,
    };
    let mut weir = Weir::new(&site.host, "");
    let file = weir.path("bad.txt");
    let list = |who: &[&str]| fs::write(&file, who.join("\n")).unwrap();
    list(&ATTACKER);
    weir.configure(&config(case, &format!("[list.bad]\nfile = {file:?}\n")));
    weir.run();
    let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
    let run = |program: &str, args: &[&str]| site.host.run(program, args).unwrap();
    let sets = || {
        let sets = site.host.output("ipset", &["list", "-name"]).unwrap();
        let sets = String::from_utf8(sets.stdout).unwrap();
        sets.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let base = sets()
        .iter()
        .find_map(|set| set.strip_suffix(".allow4").map(str::to_owned))
        .unwrap();
    // Rules of somebody else's hold sets.
    let hold = |set: &str, verb: &str| {
        let rule = ["-m", "set", "--match-set", set, "dst"];
        run(
            "iptables",
            &[&["-t", "raw", verb, "OUTPUT"][..], &rule].concat(),
        );
    };
    let in_force = |listed: &[&str], others: &[&str]| {
        for (all, is_listed) in [(listed, true), (others, false)] {
            for who in all {
                let to = at(usize::from(who.contains(':')), PORT);
                match is_listed {
                    true => assert!(!site.connects(who, to), "{who}"),
                    false => site.serves(who, to),
                }
            }
        }
    };
    in_force(&ATTACKER, &OTHER);
    let usual = sets().len();

    let aside = format!("{base}.new");
    run("ipset", &["create", &aside, "hash:ip"]);
    hold(&aside, "-A");
    list(&OTHER);
    weir.ask(&["list", "refresh"]);
    soon("the error to be told", || {
        let said = weir.ask(&["status"]).out;
        said.contains("cannot change the sets of ipset")
            .then_some(())
    });
    // It tries again every second: what it made is not there for long.
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let there = sets();
        assert!(there.len() <= usual + 3, "{there:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    in_force(&ATTACKER, &OTHER);
    hold(&aside, "-D");
    // Ours to destroy, for want of another owner.
    soon("the new list", || {
        (!site.connects(OTHER[0], at(0, PORT))).then_some(())
    });
    in_force(&OTHER, &ATTACKER);
    soon("what is left to go", || {
        (sets().len() == usual).then_some(())
    });

    let number = |set: &str| {
        let rest = set.strip_prefix(&format!("{base}.list"))?;
        rest.get(..1)?.parse::<u8>().ok()
    };
    let numbers: Vec<u8> = sets().iter().filter_map(|set| number(set)).collect();
    let taken: Vec<String> = (0..10)
        .filter(|n| !numbers.contains(n))
        .map(|n| format!("{base}.list{n}-9-4"))
        .collect();
    for set in &taken {
        run("ipset", &["create", set, "hash:net"]);
        hold(set, "-A");
    }
    list(&ATTACKER);
    weir.ask(&["reload"]);
    soon("the error to be told", || {
        let said = weir.ask(&["status"]).out;
        said.contains("cannot make sets of ipset beside those in force")
            .then_some(())
    });
    in_force(&OTHER, &ATTACKER);
    assert_eq!(sets().len(), usual + taken.len());
    for set in &taken {
        hold(set, "-D");
    }
    soon("the new list", || {
        (!site.connects(ATTACKER[0], at(0, PORT))).then_some(())
    });
    in_force(&ATTACKER, &OTHER);
    soon("what is left to go", || {
        (sets().len() == usual).then_some(())
    });
}

/// The allow list may hold everybody: not every kind of set has a length of zero.
#[test]
fn root_everybody_may_be_allowed() {
    if skipped(&PROGRAMS) {
        return;
    }
    for case in only() {
        println!("{case:?}");
        let site = Site::new();
        let weir = Weir::start(&site.host, &config(case, ""));
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        for (family, everybody) in ["0.0.0.0/0", "::/0"].into_iter().enumerate() {
            let bad = ATTACKER[family];
            weir.ask(&["ban", bad, "--for", "1h"]).done();
            assert!(!site.connects(bad, at(family, PORT)), "{bad}");
            weir.ask(&["allow", "add", everybody, "--force"]).done();
            site.serves(bad, at(family, PORT));
            weir.ask(&["allow", "del", everybody]).done();
            assert!(!site.connects(bad, at(family, PORT)), "{bad}");
            site.serves(CUSTOMER[family], at(family, PORT));
        }
    }
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
        let site = Site::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        site.host.ip(&named).unwrap();
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        let mut weir = Weir::new(&site.host, "");
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
                assert!(!site.connects(bad, at(family, PORT)), "{names:?}");
                site.serves(CUSTOMER[family], at(family, PORT));
                let before = weir.packets("banned-all");
                let to = at(family, 5353);
                let sent = udp_send(&site.internet, Some(addr(bad)), to, b"x", SENT);
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
        nothing_left(&site);
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
        let site = Site::new();
        let jail = "[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";
        let mut weir = Weir::start(&site.host, &config(case, jail));
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
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
                assert!(!site.connects(who, at(0, PORT)), "{who}");
            }
            site.serves("198.19.134.160", at(0, PORT));
            site.serves(CUSTOMER[1], at(1, PORT));
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
        site.serves("198.18.200.7", at(0, PORT));
    }
}

/// A stream of numbers that is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.roll(of.len())]
    }

    /// Somebody outside; few, so that prefixes hold many of them.
    fn source(&mut self) -> IpAddr {
        let n = self.roll(48) as u16;
        Self::sources_of(n)[self.roll(2)]
    }

    fn sources_of(n: u16) -> [IpAddr; 2] {
        [
            IpAddr::from([198, 18, (n >> 4) as u8, (n & 15) as u8 * 16 + 1]),
            IpAddr::from([0x2001, 0xdb8, 0xbad, n >> 3, 0, 0, 0, (n & 7) + 1]),
        ]
    }

    fn sources() -> impl Iterator<Item = IpAddr> {
        (0..48).flat_map(Self::sources_of)
    }

    fn prefix(&mut self) -> Prefix {
        let source = self.source();
        let lengths: &[u8] = match source {
            IpAddr::V4(_) => &[32, 32, 32, 32, 32, 31, 28, 27, 25, 24],
            IpAddr::V6(_) => &[128, 128, 128, 128, 127, 126, 125, 64, 64, 63],
        };
        Prefix::new(source, lengths[self.roll(lengths.len())]).unwrap()
    }
}

/// Every source somewhere or nowhere, and a geofence of two rules: for one port
/// by whom it lets in, for the others by whom it does not. Adds it to the
/// configuration; returns it as the reference has it.
fn places(dice: &mut Dice, weir: &Weir, config: &mut String) -> (Atlas, Vec<Fence>) {
    let mut database = Mmdb::new("Test-Country");
    let mut survey = Survey::default();
    for source in Dice::sources() {
        let code = *dice.pick(&[&"RU", &"NL", &"NA", &""]);
        if code.is_empty() {
            continue;
        }
        let continent = if code == "NA" { "AF" } else { "EU" };
        let host = Prefix::host(source);
        let network = format!("{source}/{}", host.bits());
        database = database.with(&network, country(code, continent));
        let place = Place {
            country: Country::from_letters(code.as_bytes().try_into().unwrap()),
            continent: Continent::from_code(continent),
            asn: None,
        };
        let place = survey.number(place).unwrap();
        survey.add(host, place);
    }
    let file = weir.path("places.mmdb");
    fs::write(&file, database.build()).unwrap();
    *config += &format!(
        "[geofence]\ndatabase = {file:?}\ndeny = [\"country:RU\"]\n\
         [geofence.rules.some]\nports = [\"2222/udp\"]\ndefault = \"drop\"\n\
         unknown = \"drop\"\nallow = [\"continent:EU\"]\n"
    );
    let selectors = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect();
    let rest = Fence {
        name: "geofence".to_owned(),
        scope: Scope::all(),
        direction: Direction::In,
        default: Fate::Pass,
        allow: Vec::new(),
        deny: selectors(&["country:RU"]),
        unknown: Fate::Pass,
        except: PrefixSet::default(),
    };
    let some = Fence {
        name: "some".to_owned(),
        scope: "2222/udp".parse().unwrap(),
        default: Fate::Drop,
        allow: selectors(&["continent:EU"]),
        deny: Vec::new(),
        unknown: Fate::Drop,
        ..rest.clone()
    };
    (survey.finish(), vec![some, rest])
}

/// Random bans, allow list, lists and, where there is one, geofence; random
/// packets. Who gets through is whom the reference decision lets through, with
/// every backend.
#[test]
fn root_every_backend_agrees_with_the_reference() {
    if skipped(&PROGRAMS) {
        return;
    }
    const PORTS: [u16; 3] = [PORT, OTHER_PORT, 5353];
    const NOBODY: [&str; 4] = ["0.1.2.3", "::5", "::ffff:198.18.0.1", "::198.18.0.1"];
    const SCOPES: [&str; 7] = [
        "all",
        "all",
        "8080/udp",
        "2222",
        "2000-9000/udp",
        "22/tcp,8080/tcp",
        "5353/udp,8080",
    ];
    for (case, seed) in only().flat_map(|case| [(case, 1), (case, 2)]) {
        let mut dice = Dice(seed);
        let site = Site::new();
        let mut weir = Weir::new(&site.host, "");
        let prefixes =
            |dice: &mut Dice, count| -> Vec<Prefix> { (0..count).map(|_| dice.prefix()).collect() };
        let lists = [prefixes(&mut dice, 6), prefixes(&mut dice, 6)];
        let allow: Vec<_> = (0..8).map(|_| Prefix::host(dice.source())).collect();
        let exempt: PrefixSet = allow.iter().copied().collect();
        let scopes: [Scope; 2] = ["all", "2222/udp"].map(|scope| scope.parse().unwrap());
        let mut more = format!("allow = {:?}\n", texts(&allow));
        let (atlas, fences) = match case.geofence {
            true => places(&mut dice, &weir, &mut more),
            false => Default::default(),
        };
        for (number, list) in lists.iter().enumerate() {
            let file = weir.path(&format!("list{number}.txt"));
            fs::write(&file, texts(list).join("\n") + "\n").unwrap();
            let ports = ["", "ports = [\"2222/udp\"]\n"][number];
            more += &format!("[list.l{number}]\nfile = {file:?}\n{ports}");
        }
        weir.configure(&config(case, &more));
        weir.run();
        if case.backend == "nft" {
            soon("its chain at ingress", || {
                let note = weir.attachment("eth0").1;
                note.contains("at ingress and").then_some(())
            });
        }
        let mut bans: Vec<(Prefix, Scope)> = Vec::new();
        for _ in 0..24 {
            let (subject, scope) = (dice.prefix(), dice.pick(&SCOPES));
            // Nobody bans whom the allow list holds.
            if exempt.covering(subject).is_some() {
                continue;
            }
            let text = subject.to_string();
            let mut verb = vec!["ban", &text, "--for", "1h"];
            if scope != "all" {
                verb.extend(["--port", scope]);
            }
            weir.ask(&verb).done();
            bans.push((subject, scope.parse().unwrap()));
        }
        for _ in 0..4 {
            let (subject, _) = bans[dice.roll(bans.len())].clone();
            weir.ask(&["unban", &subject.to_string()]).done();
            bans.retain(|(other, _)| *other != subject);
            if bans.is_empty() {
                break;
            }
        }

        let layers: Vec<_> = ["l0", "l1"]
            .into_iter()
            .enumerate()
            .map(|(number, name)| ListLayer {
                name,
                scope: &scopes[number],
                direction: Direction::In,
                prefixes: &lists[number],
            })
            .collect();
        let classes = Plan {
            atlas: &atlas,
            fences: &fences,
            lists: &layers,
        };
        let classes = classes.join().unwrap();
        let expected = |source: IpAddr, port: u16| {
            let holding = bans.iter().filter(|(subject, _)| subject.contains(source));
            let asked = Asked {
                source,
                ports: &[(17, port)],
                denied: classes.judge(source, false, Some((17, port))).reason(),
                allowed: exempt.lookup(source).is_some(),
                observe: false,
            };
            decide(holding.map(|(_, scope)| (scope, Action::Drop)), &asked)
        };

        let sockets = site
            .host
            .enter(|| PORTS.map(|port| UdpSocket::bind(any(port)).unwrap()));
        let sockets = sockets.unwrap();
        let (mut dropped, mut passed, mut fenced) = (0, 0, 0);
        for round in 0..16u32 {
            // Some from addresses that nobody has, some behind priority tags.
            let packets: Vec<(IpAddr, usize, usize)> = (0..60)
                .map(|_| {
                    let source = match dice.roll(12) {
                        0 => addr(dice.pick(&NOBODY)),
                        _ => dice.source(),
                    };
                    let tags = [0, 0, 0, 1, 2, 3][dice.roll(6)];
                    (source, dice.roll(PORTS.len()), tags)
                })
                .collect();
            let send = |source: IpAddr, port: usize, tags: usize, number: u32| {
                let family = usize::from(source.is_ipv6());
                let wire = Packet::eth_between(site.veth.mac(Side::B), site.veth.mac(Side::A));
                let frame = (0..tags)
                    .fold(wire, |frame, _| frame.vlan(0))
                    .ip(source, addr(HOST[family]))
                    .udp(40022, PORTS[port])
                    .payload(&number.to_be_bytes())
                    .build();
                let sent = send_frames(&site.internet, "eth0", [&frame[..]].into_iter());
                assert_eq!(sent.unwrap(), 1, "{source}");
            };
            for (number, (source, port, tags)) in packets.iter().enumerate() {
                send(*source, *port, *tags, number as u32);
            }
            // One wire: what was to come has come when these are here.
            let mut arrived = vec![false; packets.len()];
            for (port, socket) in sockets.iter().enumerate() {
                send(addr(GATEWAY[0]), port, 0, u32::MAX);
                socket.set_read_timeout(Some(SOON)).unwrap();
                let mut bytes = [0; 4];
                loop {
                    retry_interrupted(|| socket.recv(&mut bytes)).unwrap();
                    match u32::from_be_bytes(bytes) {
                        u32::MAX => break,
                        number => arrived[number as usize] = true,
                    }
                }
            }
            for ((source, port, tags), arrived) in packets.iter().zip(arrived) {
                // nftables' ingress cannot look behind two tags.
                let reason = match case.backend == "nft" && *tags > 1 {
                    true => Reason::TooManyTags,
                    false => expected(*source, PORTS[*port]),
                };
                assert_eq!(
                    arrived,
                    !reason.is_drop(),
                    "{case:?}, seed {seed}, round {round}: {source} ({:?}) behind {tags} tags to {}: {reason}\n{bans:?}\n{lists:?}\n{allow:?}",
                    atlas.place(*source),
                    PORTS[*port]
                );
                fenced += usize::from(reason == Reason::Fenced);
                match arrived {
                    true => passed += 1,
                    false => dropped += 1,
                }
            }
        }
        println!(
            "{} seed {seed}: {dropped} dropped, {fenced} for their place, {passed} passed",
            case.backend
        );
        assert!(dropped > 100 && passed > 100);
        assert_eq!(fenced > 50, case.geofence);
    }
}

fn texts(prefixes: &[Prefix]) -> Vec<String> {
    prefixes.iter().map(ToString::to_string).collect()
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
        let site = Site::new();
        let case = Case {
            backend,
            geofence: false,
        };
        let mut weir = Weir::new(&site.host, "");
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
                send_gently(&site, who, to, n);
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
        let _tcp = TcpServer::start(&site.host, any(PORT), b"").unwrap();
        site.serves(CUSTOMER[0], at(0, PORT));
        site.host.run(flush[0], &flush[1..]).unwrap();
        soon("the bans to be back", || {
            (weir.said().contains("somebody has changed")
                && !site.connects(ATTACKER[0], at(0, PORT)))
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
    let site = Site::new();
    let case = |backend| Case {
        backend,
        geofence: false,
    };
    for (backend, more, words) in [
        ("nft", "[decoy]\nports = [\"23/tcp\"]\n", "no decoy ports"),
        ("ipset", "[decoy]\nports = [\"23/tcp\"]\n", "no decoy ports"),
        (
            "ipset",
            "[geofence]\ndeny = [\"country:RU\"]\n",
            "no geofence",
        ),
    ] {
        let weir = Weir::new(&site.host, &config(case(backend), more));
        weir.ask(&["check"])
            .is_mistaken(&["backend", backend, words]);
    }
    for backend in ["nft", "ipset"] {
        let weir = Weir::start(&site.host, &config(case(backend), ""));
        let status = weir.json(&["status"]);
        let limits = status["limits"].as_array().unwrap();
        assert!(limits.iter().any(|l| l["feature"] == "decoys"), "{status}");
        // Nothing is enabled: the exit code is 1.
        let said = weir.ask(&["status"]).out;
        assert!(said.contains("no decoy ports"), "{said}");
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
    let weir = Weir::start(&site.host, &config(case("tcx"), ""));
    assert_eq!(
        weir.json(&["status"])["limits"].as_array().unwrap().len(),
        0
    );
    // What iptables needs was given up at the start.
    weir.configure(&config(case("ipset"), ""));
    weir.ask(&["reload"]).refused(&["restart", "CAP_NET_RAW"]);
}

/// The cases, or the one that WEIR_BACKEND names, less those that this kernel
/// lacks (tests/root_lacking.rs).
fn only() -> impl Iterator<Item = Case> {
    let only = std::env::var("WEIR_BACKEND").ok();
    BACKENDS
        .into_iter()
        .filter(move |case| only.as_ref().is_none_or(|name| name == case.backend))
        .filter(|case| {
            let why = match case.backend {
                "tcx" if weir_bpf::probe::tcx_programs(1).is_none() => "no tcx, Linux 6.6",
                "netfilter" if !weir_bpf::generation::netfilter_supported() => {
                    "no netfilter hook for BPF, Linux 6.4"
                }
                _ => return true,
            };
            println!("skipped: this kernel has {why}");
            false
        })
}

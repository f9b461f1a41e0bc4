//! The geofence and deny lists through the whole daemon, with real TCP, UDP and
//! ICMP, IPv4 and IPv6, on XDP and tcx: who gets in, who does not, who may be
//! answered, and that it outlives the daemon. Each test that holds a defect of
//! ipt_geofence against us says which (G1 to G14).

mod common;

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use common::{
    ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SILENCE, SOON, TestNet, Weir, addr, skipped, soon,
};
use weir_netlab::Side;
use weir_testkit::{
    mmdb::{Mmdb, country},
    packet::{Packet, flag},
    traffic::{TcpServer, UdpServer, ping, send_frames, tcp_connect, udp_request, udp_send},
};

const PORT: u16 = 8080;

/// Attackers are in Russia, customers in the Netherlands, the rest of their
/// networks in Namibia, whose code is that of North America.
fn database(weir: &Weir) -> String {
    let path = weir.path("places.mmdb");
    let places = Mmdb::new("Test-Country")
        .with("198.51.100.0/24", country("RU", "EU"))
        .with("2001:db8:bad::/48", country("RU", "EU"))
        .with("203.0.113.0/24", country("NL", "EU"))
        .with("2001:db8:c::/48", country("NL", "EU"))
        .with("198.18.0.0/16", country("NA", "AF"));
    fs::write(&path, places.build()).unwrap();
    format!("database = {:?}\n", path.display().to_string())
}

fn start(net: &TestNet, before: &str, geofence: &str) -> Weir {
    let mut weir = Weir::new(&net.host, "");
    let database = database(&weir);
    weir.configure(&format!(
        "interfaces = [\"eth0\"]\n{before}[geofence]\n{database}{geofence}"
    ));
    weir.run();
    weir
}

fn at(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), port)
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(addr("::"), port)
}

fn pings(net: &TestNet, from: &str, family: usize, time: Duration) -> bool {
    ping(&net.internet, Some(addr(from)), addr(HOST[family]), time).is_ok()
}

fn asks(net: &TestNet, from: &str, to: SocketAddr, time: Duration) -> bool {
    udp_request(&net.internet, Some(addr(from)), to, b"?", time).is_ok()
}

/// G1, G2: the first packet never reaches a socket, whatever the protocol.
#[test]
fn root_denied_countries_do_not_get_in() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "tcx"] {
        let net = TestNet::new();
        let tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
        let udp = UdpServer::start(&net.host, any(PORT)).unwrap();
        let weir = start(
            &net,
            &format!("backend = \"{backend}\"\n"),
            "deny = [\"country:RU\"]\n",
        );
        for family in [0, 1] {
            let denied = ATTACKER[family];
            assert!(
                !net.connects(denied, at(family, PORT)),
                "{backend} {denied}"
            );
            assert!(!asks(&net, denied, at(family, PORT), SILENCE));
            assert!(!pings(&net, denied, family, SILENCE));
        }
        assert_eq!((tcp.accepted(), udp.received()), (0, 0), "{backend}");
        assert!(weir.packets("fenced") >= 6);
        for family in [0, 1] {
            for other in [CUSTOMER[family], GATEWAY[family]] {
                net.serves(other, at(family, PORT));
                assert!(asks(&net, other, at(family, PORT), SOON));
                assert!(pings(&net, other, family, SOON));
            }
            let why = weir.why(ATTACKER[family]);
            assert_eq!(why["verdict"], "fenced", "{why}");
            assert_eq!(why["place"]["country"], "RU");
            assert!(why["denied"].as_str().unwrap().contains("country RU"));
        }
        assert_eq!(weir.ask(&["why", CUSTOMER[0]]).code, Some(1));
        let status = weir.json(&["status"]);
        assert_eq!(status["dropped"][0]["country"], "RU", "{status}");
        assert!(weir.ask(&["status"]).done().out.contains("country RU"));
    }
}

/// Addresses that no host has are in no database and no ban: their packets are
/// dropped and counted all the same, but for what a host sends to get an address.
#[test]
fn root_sources_that_nobody_has_do_not_get_in() {
    if skipped(&["nft", "ipset", "iptables-restore"]) {
        return;
    }
    for backend in [
        "xdp",
        "xdp-generic",
        "tcx",
        "cls_bpf",
        "netfilter",
        "nft",
        "ipset",
    ] {
        let net = TestNet::new();
        let weir = match backend {
            // Without a geofence.
            "ipset" => Weir::start(&net.host, "interfaces = [\"eth0\"]\nbackend = \"ipset\"\n"),
            _ => start(
                &net,
                &format!("backend = \"{backend}\"\n"),
                "default = \"drop\"\nunknown = \"drop\"\nallow = [\"country:NL\"]\n",
            ),
        };
        let server = UdpServer::start(&net.host, any(PORT)).unwrap();
        let dhcp = UdpServer::start(&net.host, any(67)).unwrap();
        // The host would answer, which takes a route.
        let routes = ["route add 0.1.2.0/24 via 192.0.2.2 dev eth0".to_owned()];
        net.host.ip(&routes).unwrap();
        let mut expected = 0;
        let mut send = |packet: Packet, comes: u64| {
            let last = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A))
                .ip(addr(CUSTOMER[0]), addr(HOST[0]))
                .udp(40022, PORT)
                .build();
            let frame = packet.build();
            let frames = [&frame[..], &last[..]];
            send_frames(&net.internet, "eth0", frames.into_iter()).unwrap();
            expected += 1 + comes;
            soon("the customer's datagram", || {
                (server.received() >= expected).then_some(())
            });
            assert_eq!(server.received(), expected, "{backend}: {frame:02x?}");
        };
        let wire = || Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
        let many = || Packet::eth_between(net.veth.mac(Side::B), [0xff; 6]);
        let sources = [
            "0.1.2.3",
            "::5",
            "::198.51.100.7",
            "::ffff:203.0.113.5",
            "::",
        ];
        for source in sources {
            let to = addr(HOST[usize::from(source.contains(':'))]);
            send(wire().ip(addr(source), to).udp(40022, PORT), 0);
        }
        let everybody = addr("255.255.255.255");
        for source in ["0.1.2.3", "0.0.0.0"] {
            send(many().ip(addr(source), everybody).udp(40022, PORT), 0);
        }
        let dropped = weir.packets("invalid-source");
        assert!(dropped >= 6, "{backend}: {dropped}");
        // What a host without an address asks for.
        assert_eq!(dhcp.received(), 0);
        send(many().ip(addr("0.0.0.0"), everybody).udp(68, 67), 0);
        soon("the DHCP request", || (dhcp.received() == 1).then_some(()));
        let why = weir.json(&["why", "::5"]);
        assert_eq!(why["verdict"], "invalid-source", "{why}");
        // The allow list wins.
        weir.ask(&["allow", "add", "0.1.2.3"]).done();
        send(many().ip(addr("0.1.2.3"), everybody).udp(40022, PORT), 1);
        assert_eq!(weir.packets("invalid-source"), dropped);
    }
}

/// What is sent back to this host in fragments comes together again; what would
/// begin a connection does not, in however many parts.
#[test]
fn root_fragments_of_own_connections_come_together() {
    if skipped(&["nft"]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter", "nft"] {
        let net = TestNet::new();
        let _weir = start(
            &net,
            &format!("backend = \"{backend}\"\n"),
            "deny = [\"country:RU\"]\n",
        );
        let wire = || Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
        let send = |family: usize, from: &str, flags: u8, id: u16| {
            let ends = (addr(from), addr(HOST[family]));
            let whole = wire().ip(ends.0, ends.1).tcp(443, 40022).tcp_flags(flags);
            let whole = whole.payload_len(80).build();
            let segment = &whole[14 + [20, 40][family]..];
            let part = |offset: usize, bytes: &[u8], more| {
                let part = wire().ip(ends.0, ends.1).id(id);
                let part = part.fragment(offset as u16 / 8, more);
                part.protocol(6).payload(bytes).build()
            };
            let (head, tail) = segment.split_at(48);
            let frames = [part(0, head, true), part(48, tail, false)];
            let frames = frames.iter().map(Vec::as_slice);
            send_frames(&net.internet, "eth0", frames).unwrap();
        };
        for family in [0, 1] {
            let together = || reassembled(&net, family);
            let mut expected = 0;
            for (round, (flags, passes)) in [(flag::ACK, 1), (flag::SYN, 0)].into_iter().enumerate()
            {
                send(family, ATTACKER[family], flags, 1 + round as u16);
                send(family, CUSTOMER[family], flags, 9 + round as u16);
                expected += 1 + passes;
                soon(&format!("{backend}: {expected} packets"), || {
                    (together() >= expected).then_some(())
                });
                assert_eq!(together(), expected, "{backend}: flags {flags:#x}");
            }
        }
    }
}

/// How many packets the host's stack has put together from fragments.
fn reassembled(net: &TestNet, family: usize) -> u64 {
    let file = ["/proc/net/snmp", "/proc/net/snmp6"][family];
    let text = net.host.run("cat", &[file]).unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let number = |text: &str| text.trim().parse().unwrap();
    if family == 1 {
        let line = text.lines().find_map(|l| l.strip_prefix("Ip6ReasmOKs"));
        return number(line.unwrap());
    }
    let mut ip = text.lines().filter_map(|l| l.strip_prefix("Ip: "));
    let names = ip.next().unwrap().split(' ');
    let place = names.take_while(|name| *name != "ReasmOKs").count();
    number(ip.next().unwrap().split(' ').nth(place).unwrap())
}

/// G3, G4, and rules for ports: country NA is not continent NA, `unknown` is
/// what the configuration says.
#[test]
fn root_default_drop_lets_in_whom_it_names() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    let _ssh = TcpServer::start(&net.host, any(22), b"").unwrap();
    let namibia = "198.18.5.5";
    let unknown = "198.19.5.5";
    let weir = start(
        &net,
        "",
        "default = \"drop\"\nunknown = \"drop\"\nallow = [\"continent:NA\", \"country:NL\"]\n\
         except = [\"198.51.100.8\", \"2001:db8:bad:1::/64\"]\n",
    );
    for family in [0, 1] {
        net.serves(CUSTOMER[family], at(family, PORT));
        assert!(!net.connects(ATTACKER[family], at(family, PORT)));
        // An exception by prefix, and the gateway, which nobody may lock out.
        net.serves(OTHER[family], at(family, PORT));
        net.serves(GATEWAY[family], at(family, PORT));
    }
    assert!(!net.connects(namibia, at(0, PORT)));
    assert!(!net.connects(unknown, at(0, PORT)));

    let database = database(&weir);
    weir.configure(&format!(
        "interfaces = [\"eth0\"]\n[geofence]\n{database}deny = [\"country:NL\"]\n\
         [geofence.rules.ssh]\nports = [\"22/tcp\"]\ndefault = \"drop\"\nallow = [\"country:NA\"]\n"
    ));
    weir.ask(&["reload"]).done();
    // For ssh the rule of its port decides, for the rest the general one.
    net.serves(namibia, at(0, 22));
    net.serves(namibia, at(0, PORT));
    net.serves(unknown, at(0, 22));
    net.serves(ATTACKER[0], at(0, PORT));
    assert!(!net.connects(ATTACKER[0], at(0, 22)));
    assert!(!net.connects(CUSTOMER[1], at(1, 22)));
    assert!(!net.connects(CUSTOMER[1], at(1, PORT)));
    for (port, verdict) in [("22/tcp", "fenced"), ("8080/tcp", "pass")] {
        let why = weir
            .ask(&["why", ATTACKER[0], "--port", port, "--json"])
            .json();
        assert_eq!(why["verdict"], verdict, "{port}: {why}");
    }
}

/// G5 and G6: flows that this host begins are answered, and a source port of a
/// service gets nobody in.
#[test]
fn root_answers_come_in_and_nothing_else() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "tcx"] {
        let net = TestNet::new();
        let _weir = start(
            &net,
            &format!("backend = \"{backend}\"\n"),
            "deny = [\"country:RU\"]\n",
        );
        let udp = UdpServer::start(&net.host, any(PORT)).unwrap();
        for family in [0, 1] {
            let denied = addr(ATTACKER[family]);
            let _there =
                TcpServer::start(&net.internet, SocketAddr::new(denied, 443), b"").unwrap();
            let _dns = UdpServer::start(&net.internet, SocketAddr::new(denied, 53)).unwrap();
            let out = |port| SocketAddr::new(denied, port);
            tcp_connect(&net.host, None, out(443), SOON).unwrap();
            udp_request(&net.host, None, out(53), b"?", SOON).unwrap();
            ping(&net.host, None, denied, SOON).unwrap();
            // From port 53 to a service: nobody asked for that.
            let forged = Some(addr(OTHER[family]));
            udp_send(&net.internet, forged, at(family, PORT), b"!", 3).unwrap();
            udp_send(&net.internet, Some(denied), at(family, PORT), b"!", 3).unwrap();
        }
        std::thread::sleep(SILENCE);
        assert_eq!(udp.received(), 0, "{backend}");
    }
}

/// Outbound, the twin on egress: destinations in denied countries cannot be
/// reached, who asks from there is answered.
#[test]
fn root_denied_destinations_are_not_reached() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = start(&net, "", "deny = [\"country:RU\"]\ndirection = \"out\"\n");
    let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    let _udp = UdpServer::start(&net.host, any(PORT)).unwrap();
    for family in [0, 1] {
        let denied = addr(ATTACKER[family]);
        let there = TcpServer::start(&net.internet, SocketAddr::new(denied, 443), b"").unwrap();
        let dns = UdpServer::start(&net.internet, SocketAddr::new(denied, 53)).unwrap();
        assert!(tcp_connect(&net.host, None, SocketAddr::new(denied, 443), SILENCE).is_err());
        assert!(udp_request(&net.host, None, SocketAddr::new(denied, 53), b"?", SILENCE).is_err());
        assert_eq!((there.accepted(), dns.received()), (0, 0));
        net.serves(ATTACKER[family], at(family, PORT));
        assert!(asks(&net, ATTACKER[family], at(family, PORT), SOON));
        let free = addr(CUSTOMER[family]);
        let _open = TcpServer::start(&net.internet, SocketAddr::new(free, 443), b"").unwrap();
        tcp_connect(&net.host, None, SocketAddr::new(free, 443), SOON).unwrap();
    }
    assert!(weir.packets("fenced-out") >= 4);
}

/// Lists deny every packet and name themselves; allow lists and `weir allow` win
/// over them (G12: in IPv6 as well).
#[test]
fn root_a_listed_address_is_dropped_and_says_by_whom() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let bad = weir.path("bad.txt");
    fs::write(
        &bad,
        "198.51.100.0/24 ; SBL1\n2001:db8:bad::/48 # all of it\n",
    )
    .unwrap();
    let good = weir.path("good.txt");
    fs::write(&good, "198.51.100.8\n2001:db8:bad:1::8\n").unwrap();
    weir.configure(&format!(
        "interfaces = [\"eth0\"]\n[list.bad]\nfile = {bad:?}\n[list.good]\nfile = {good:?}\naction = \"allow\"\n"
    ));
    weir.run();
    let tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family, PORT)));
        assert!(!pings(&net, ATTACKER[family], family, SILENCE));
        let why = weir.why(ATTACKER[family]);
        assert_eq!(why["verdict"], "listed", "{why}");
        assert_eq!(why["lists"][0]["list"], "bad");
        let said = weir.ask(&["why", ATTACKER[family]]).done().out;
        assert!(
            said.contains("list bad") && said.contains("bad.txt"),
            "{said}"
        );
        net.serves(CUSTOMER[family], at(family, PORT));
        net.serves(OTHER[family], at(family, PORT));
    }
    // The customers and those on the allow list: nobody else got as far.
    soon("the server to see them", || {
        (tcp.accepted() >= 4).then_some(())
    });
    assert_eq!(tcp.accepted(), 4);
    assert_eq!(weir.json(&["status"])["dropped"][0]["list"], "bad");
    weir.ask(&["allow", "add", ATTACKER[0]]).done();
    net.serves_soon(ATTACKER[0], at(0, PORT));

    // The file changes: so does what is enforced, nothing else needed.
    fs::write(&bad, "203.0.113.0/24\n2001:db8:c::/48\n").unwrap();
    net.serves_soon(ATTACKER[1], at(1, PORT));
    for family in [0, 1] {
        assert!(!net.connects(CUSTOMER[family], at(family, PORT)));
    }
    // No list any more: no class stage, and no egress program.
    weir.configure("interfaces = [\"eth0\"]\n");
    weir.ask(&["reload"]).done();
    net.serves_soon(CUSTOMER[0], at(0, PORT));
    let egress = net
        .host
        .run("tc", &["filter", "show", "dev", "eth0", "egress"]);
    drop(egress);
    assert!(!weir.pins().join("links").read_dir().unwrap().any(|pin| {
        pin.unwrap()
            .file_name()
            .to_string_lossy()
            .contains("egress")
    }));
}

/// G9: what was in force stays in force without the daemon, and a start never
/// lets anybody in between.
#[test]
fn root_the_geofence_outlives_the_daemon() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    let mut weir = start(&net, "", "deny = [\"country:RU\"]\n");
    assert!(!net.connects(ATTACKER[0], at(0, PORT)));
    weir.kill();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for family in [0, 1] {
                    assert!(!net.connects(ATTACKER[family], at(family, PORT)));
                }
            }
        });
        for _ in 0..2 {
            weir.run();
            weir.kill();
        }
        weir.run();
        weir.ask(&["reload"]).done();
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(tcp.accepted(), 0);
    weir.stop();
    weir.detach().done();
    net.serves(ATTACKER[0], at(0, PORT));
    net.serves(ATTACKER[1], at(1, PORT));
}

/// G14: rules of others are as they were, forwarding is not switched on.
#[test]
fn root_nothing_of_others_is_touched() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let nft = |args: &[&str]| net.host.output("nft", args).unwrap();
    for rule in [
        "add table inet theirs",
        "add set inet theirs seen { type ipv4_addr; elements = { 192.0.2.77 } }",
        "add chain inet theirs in { type filter hook input priority 0; policy accept; }",
        "add rule inet theirs in ip saddr @seen counter drop",
    ] {
        nft(&rule.split(' ').collect::<Vec<_>>());
    }
    let sysctl = || {
        let read = |path: &str| net.host.enter(|| fs::read_to_string(path)).unwrap();
        (
            read("/proc/sys/net/ipv4/ip_forward").unwrap(),
            read("/proc/sys/net/ipv6/conf/all/forwarding").unwrap(),
        )
    };
    let rules = || String::from_utf8(nft(&["-a", "list", "ruleset"]).stdout).unwrap();
    let before = (rules(), sysctl());
    assert!(before.0.contains("theirs"), "{}", before.0);
    let mut weir = start(&net, "", "deny = [\"country:RU\"]\ndirection = \"both\"\n");
    assert!(!net.connects(ATTACKER[0], at(0, PORT)));
    weir.ask(&["ban", "198.51.100.9"]).done();
    weir.stop();
    weir.detach().done();
    assert_eq!((rules(), sysctl()), before);
}

/// Countries change hands: the database is replaced under the running daemon, a
/// broken one leaves the last good one in force and raises an alert.
#[test]
fn root_a_new_database_is_taken_and_a_broken_one_is_not() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _tcp = TcpServer::start(&net.host, any(PORT), b"").unwrap();
    let weir = start(&net, "", "deny = [\"country:RU\"]\n");
    assert!(!net.connects(ATTACKER[0], at(0, PORT)));
    let path = weir.path("places.mmdb");
    let other = Mmdb::new("Test-Country").with("203.0.113.0/24", country("RU", "EU"));
    let aside = weir.path("aside");
    fs::write(&aside, other.build()).unwrap();
    fs::rename(&aside, &path).unwrap();
    net.serves_soon(ATTACKER[0], at(0, PORT));
    assert!(!net.connects(CUSTOMER[0], at(0, PORT)));
    fs::write(&aside, b"<html>not found</html>").unwrap();
    fs::rename(&aside, &path).unwrap();
    soon("the alert", || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].to_string();
        alerts.contains("places.mmdb").then_some(())
    });
    assert!(!net.connects(CUSTOMER[0], at(0, PORT)));
}

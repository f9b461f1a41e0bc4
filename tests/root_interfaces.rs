//! Each backend on real interfaces: what is dropped and what is not, other
//! programs, interfaces that go and come back, VLANs, jumbo frames, and what
//! is refused.

mod common;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, HOST, PORT, SOON, TestNet, Weir, addr, at, skipped, soon};
use weir_bpf::{
    attachment::{Hook, Link, xdp_program_on},
    generator::Generator,
};
use weir_netlab::{Side, Veth, VethOpts};
use weir_testkit::{
    packet::Packet,
    traffic::{UdpServer, send_frames, udp_request, udp_send},
};

/// What the backends `nft` and `ipset` are driven by.
const RULES: [&str; 3] = ["nft", "ipset", "iptables-restore"];

fn config(backend: &str) -> String {
    format!("interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n")
}

fn ban(weir: &Weir) {
    for who in ATTACKER {
        weir.ask(&["ban", who, "--for", "1h"]).done();
    }
}

/// The attacker is dropped and counted, the customer is not, both families.
#[track_caller]
fn enforces(net: &TestNet, weir: &Weir) {
    for family in [0, 1] {
        let before = weir.packets("banned-all");
        assert!(!net.connects(ATTACKER[family], at(family)));
        assert!(weir.packets("banned-all") > before);
        net.serves(CUSTOMER[family], at(family));
    }
}

#[test]
fn root_each_backend_drops_and_passes() {
    if skipped(&[]) {
        return;
    }
    for (backend, hook) in [
        ("xdp", "xdp"),
        ("xdp-generic", "xdp-generic"),
        ("tcx", "tcx"),
        ("cls_bpf", "cls_bpf"),
        ("netfilter", "netfilter"),
        ("auto", "tcx"),
    ] {
        let net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        let _server = net.server();
        for family in [0, 1] {
            net.serves(ATTACKER[family], at(family));
        }
        ban(&weir);
        enforces(&net, &weir);
        let (found, note) = weir.attachment("eth0");
        assert_eq!(found, hook, "{backend}: {note}");
        assert_eq!(weir.json(&["status"])["backend"], hook);
        if backend == "auto" {
            assert!(note.contains("virtual"), "{note}");
        }

        // Without a daemon it stays, and the next one takes it over.
        weir.kill();
        for family in [0, 1] {
            assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
            net.serves(CUSTOMER[family], at(family));
        }
        weir.run();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("eth0").0, hook);

        // A live daemon is not pulled from under its tables.
        weir.ask(&["detach"]).refused(&["another weir daemon"]);
        enforces(&net, &weir);

        // Detached: nothing is left, and everybody is let in.
        weir.stop();
        let said = weir.detach().done().out;
        assert!(said.contains("eth0"), "{said}");
        assert!(!weir.pins().exists());
        for family in [0, 1] {
            net.serves(ATTACKER[family], at(family));
        }
        let index = net.host.ifindex("eth0").unwrap();
        let left = net.host.enter(|| xdp_program_on(index)).unwrap();
        assert_eq!(left, None, "{backend}");
        assert!(weir.detach().done().out.contains("nothing was attached"));
    }
}

/// Issue 13: `why` says that somebody is dropped only where `status` says that
/// something is.
#[test]
fn root_why_agrees_with_status() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["tcx", "nft"] {
        let net = TestNet::new();
        let away = config(backend).replace("eth0", "wwan9");
        let weir = Weir::start(&net.host, &away);
        ban(&weir);
        weir.ask(&["status"])
            .says_no(&["NOT PROTECTED: attached to no interface: wwan9 is not there"]);
        for (config, code, verdict, [dropped, would_drop], words) in [
            (
                away,
                1,
                "banned-all",
                [false, true],
                [
                    "would be dropped",
                    "but it passes: attached to no interface",
                ],
            ),
            (
                format!("observe = true\n{}", config(backend)),
                0,
                "observed",
                [false, true],
                ["would be dropped", "but it passes: observe = true counts"],
            ),
            (
                config(backend),
                0,
                "banned-all",
                [true, true],
                ["is dropped", "banned on all ports"],
            ),
        ] {
            weir.configure(&config);
            weir.ask(&["reload"]).done();
            for who in ATTACKER {
                let said = weir.ask(&["why", who]);
                assert_eq!(said.code, Some(code), "{backend} {config}: {said:?}");
                for words in words {
                    assert!(said.out.contains(words), "{backend} {config}: {said:?}");
                }
                let why = weir.why(who);
                assert_eq!(why["verdict"], verdict, "{why}");
                assert_eq!(why["dropped"], dropped, "{why}");
                assert_eq!(why["would_drop"], would_drop, "{why}");
            }
        }
        weir.ask(&["allow", "add", "0.0.0.0/0", "--force"]).done();
        weir.ask(&["status"])
            .says_no(&["NOT PROTECTED: 0.0.0.0/0 is allowed: no ban"]);
    }
}

/// What `status` says first, with a daemon and without; and where a packet that
/// was dropped came in.
#[test]
fn root_status_says_what_protects_and_an_event_by_which_interface() {
    if skipped(&RULES) {
        return;
    }
    for (backend, left) in [("tcx", "BPF programs pinned in /"), ("nft", "rules of nft")] {
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, "");
        let events = weir.path("events.json");
        weir.configure(&format!(
            "{}[sink.log]\nkind = \"file\"\npath = \"{}\"\nevents = [\"drop\"]\n",
            config(backend),
            events.display()
        ));
        weir.run();
        let _server = net.server();
        weir.ask(&["status"])
            .says_no(&["NOT PROTECTED: nothing is enabled that bans or denies\n"]);
        ban(&weir);
        let said = weir.ask(&["status"]).out;
        assert!(
            said.starts_with(&format!("PROTECTED: {backend} on eth0\n")),
            "{said}"
        );
        enforces(&net, &weir);
        let attached = weir.metric("weir_interface_attached", &["eth0", backend]);
        let bans = weir.metric("weir_producer_bans_in_force", &["manual"]);
        assert_eq!((attached, bans), (Some(1), Some(ATTACKER.len() as u64)));
        let dropped = weir.metric("weir_packets_total", &["banned-all"]);
        assert!(dropped.is_some_and(|packets| packets > 0), "{dropped:?}");
        if backend == "tcx" {
            assert_eq!(weir.metric("weir_table_growths_total", &[]), Some(0));
            assert!(weir.metric("weir_table_memory_bytes", &[]) > Some(0));
            soon("an event of a packet that was dropped", || {
                let text = std::fs::read_to_string(&events).unwrap_or_default();
                let mut lines = text.lines().filter_map(|line| {
                    let event: serde_json::Value = serde_json::from_str(line).ok()?;
                    Some(event["interface"] == "eth0" && event["packet"]["port"] == PORT)
                });
                lines.any(|found| found).then_some(())
            });
        }
        weir.kill();
        let dead = weir.ask(&["status"]);
        assert_eq!(dead.code, Some(2), "{dead:?}");
        for words in [
            "NOT PROTECTED: the daemon does not run; instance \"test-",
            "goes on dropping what it had banned",
            left,
        ] {
            assert!(dead.out.contains(words), "no {words:?} in {dead:?}");
        }
        assert!(!net.connects(ATTACKER[0], at(0)));
    }
}

#[test]
fn root_another_xdp_program_is_named_and_left_alone() {
    if skipped(&[]) {
        return;
    }
    for (theirs, backend) in [(Hook::Xdp, "xdp"), (Hook::XdpGeneric, "xdp-generic")] {
        let net = TestNet::new();
        let index = net.host.ifindex("eth0").unwrap();
        let other = Generator::load().unwrap();
        let link = net
            .host
            .enter(|| Link::attach(other.accept(), index, theirs))
            .unwrap()
            .unwrap();
        let (_, id) = link.target().unwrap();
        let _server = net.server();
        let weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        enforces(&net, &weir);
        let (hook, note) = weir.attachment("eth0");
        assert_eq!(hook, "tcx", "{note}");
        assert!(note.contains(&format!("id {id}")), "{note}");
        assert!(note.contains("another XDP program"), "{note}");
        let there = net.host.enter(|| xdp_program_on(index)).unwrap();
        assert_eq!(there, Some((id, theirs.name())));
        drop(weir);
        let there = net.host.enter(|| xdp_program_on(index)).unwrap();
        assert_eq!(there, Some((id, theirs.name())));
    }
}

#[test]
fn root_an_interface_that_comes_back_is_protected_again() {
    if skipped(&[]) {
        return;
    }
    let mut all_took = vec![];
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter"] {
        let mut net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        let dropped = weir.packets("banned-all");
        for _ in 0..2 {
            net.veth.delete().unwrap();
            soon("the interface to be missed", || {
                (weir.attachment("eth0").0 == "none").then_some(())
            });
            net.veth.create().unwrap();
            let begun = Instant::now();
            soon("the interface to be protected", || {
                (weir.attachment("eth0").0 == backend).then_some(())
            });
            let took = begun.elapsed();
            println!("{backend}: protected {took:?} after the veth pair was ready");
            all_took.push(took);
            enforces(&net, &weir);
        }
        assert!(weir.packets("banned-all") > dropped, "counters began anew");
        // Renamed away and back: the name decides.
        net.veth.rename(Side::A, "wan").unwrap();
        net.veth.rename(Side::A, "eth0").unwrap();
        soon("the interface to be protected", || {
            (weir.attachment("eth0").0 == backend).then_some(())
        });
        enforces(&net, &weir);
    }
    // 4 to 11 ms here, `weir status` included; the promise is 100 ms. Who finds it
    // by looking once a second takes 500; and one may meet a machine that stands.
    all_took.sort();
    let median = all_took[all_took.len() / 2];
    assert!(median < Duration::from_millis(200), "{all_took:?}");
}

/// Rules name an interface: one that is made again is protected from its first
/// packet on, also where nobody is told of it.
#[test]
fn root_rules_protect_an_interface_made_again_without_a_gap() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["nft", "ipset"] {
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        for daemon in [true, false] {
            if !daemon {
                weir.kill();
            }
            net.veth.delete().unwrap();
            if daemon {
                let (hook, note) = weir.attachment("eth0");
                assert_eq!(hook, "none");
                assert!(note.contains("no such interface now"), "{note}");
            }
            net.veth.create().unwrap();
            for family in [0, 1] {
                assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
                net.serves(CUSTOMER[family], at(family));
            }
        }
        weir.run();
        enforces(&net, &weir);
    }
}

/// The same by an alternative name, which a device is given when it has packets
/// already: rules go by the name that it had.
#[test]
fn root_rules_protect_a_device_before_it_has_its_alternative_name() {
    if skipped(&RULES) {
        return;
    }
    for (backend, rules) in [
        ("nft", &["nft", "list", "ruleset"][..]),
        ("ipset", &["iptables-save", "-t", "raw"]),
    ] {
        let mut net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let weir = Weir::start(&net.host, &config(backend).replace("eth0", "lan0"));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        for _ in 0..2 {
            net.veth.delete().unwrap();
            soon("rules for when it is back", || {
                let said = net.host.output(rules[0], &rules[1..]).unwrap();
                let said = String::from_utf8_lossy(&said.stdout).into_owned();
                said.contains("lan0").then_some(())
            });
            net.veth.create().unwrap();
            for family in [0, 1] {
                assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
                net.serves(CUSTOMER[family], at(family));
            }
            net.host.ip(&named).unwrap();
            protected_soon(&weir, "lan0", backend);
            enforces(&net, &weir);
        }
    }
}

/// Of two names of a device the one that is pinned has it after a restart, whatever
/// stands first.
#[test]
fn root_the_pinned_name_of_a_device_has_it_after_a_restart() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf"] {
        let net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        weir.kill();
        weir.configure(&config(backend).replace("[\"eth0\"", "[\"lan0\", \"eth0\""));
        weir.run();
        let (_, note) = weir.attachment("lan0");
        assert!(
            note.contains("the same device as eth0"),
            "{backend}: {note}"
        );
        let pins: Vec<_> = std::fs::read_dir(weir.pins().join("links"))
            .unwrap()
            .map(|pin| pin.unwrap().file_name())
            .collect();
        assert_eq!(pins, [format!("eth0@{backend}").as_str()]);
        enforces(&net, &weir);
    }
}

/// Whoever cannot look at an interface, here for want of descriptors, does not know
/// that it is gone: it is protected as before, and new bans are in force at once.
#[test]
fn root_want_of_descriptors_lets_go_of_no_interface() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter", "nft"] {
        let net = TestNet::new();
        let named = ["link property add dev eth0 altname lan0".to_owned()];
        net.host.ip(&named).unwrap();
        let jail = "[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n";
        let config = config(backend).replace("eth0", "lan0") + jail;
        let weir = Weir::start(&net.host, &config);
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        // Has the daemon open the log: it opens nothing for a while.
        weir.log_failures([addr("203.0.113.77")], 1);
        soon("the log to be read", || {
            (weir.banned().len() == 3).then_some(())
        });
        let descriptors = |most: &str| {
            let (pid, most) = (weir.pid().to_string(), format!("--nofile={most}:"));
            net.host.run("prlimit", &["--pid", &pid, &most]).unwrap();
        };
        descriptors("3");
        soon("the error to be told", || {
            weir.said()
                .contains("cannot look at interface")
                .then_some(())
        });
        for family in [0, 1] {
            assert!(!net.connects(ATTACKER[family], at(family)), "{backend}");
            net.serves(CUSTOMER[family], at(family));
        }
        weir.log_failures(CUSTOMER.map(addr), 1);
        for who in CUSTOMER {
            net.drops_soon(who);
        }
        descriptors("1024");
        soon("the end of the alert", || {
            let status = weir.ask(&["status", "--json"]);
            (status.code == Some(0)).then_some(())
        });
        protected_soon(&weir, "lan0", backend);
        for banned in [CUSTOMER[0], "2001:db8:c::/64"] {
            weir.ask(&["unban", banned]).done();
        }
        enforces(&net, &weir);
    }
}

#[test]
fn root_an_interface_made_again_while_no_daemon_runs() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter"] {
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        weir.kill();
        net.veth.delete().unwrap();
        net.veth.create().unwrap();
        // Said in the README: nobody protects it until the daemon is back.
        net.serves(ATTACKER[0], at(0));
        weir.run();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("eth0").0, backend);
        assert_eq!(weir.banned().len(), 2);
    }
}

/// Has a tun device receive packets, read in hexadecimal, one a line.
const RECEIVE_ON_TUN: &str = "
import fcntl, struct, sys
tun = open('/dev/net/tun', 'r+b', buffering=0)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', b'tun0', 0x1001))
for line in sys.argv[1].split():
    tun.write(bytes.fromhex(line))
";

fn make_tun(net: &TestNet) -> Result<(), String> {
    let add = ["tuntap", "add", "mode", "tun", "name", "tun0"];
    net.host
        .run("ip", &add)
        .and_then(|_| net.host.run("ip", &["link", "set", "tun0", "up"]))
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// Packets without an Ethernet header, as from a VPN: the kernel receives one
/// after the other, so what was sent before the last one has come or was dropped.
#[test]
fn root_rules_protect_an_interface_without_ethernet() {
    if skipped(&[&RULES[..], &["python3"]].concat()) {
        return;
    }
    for backend in ["nft", "ipset"] {
        let net = TestNet::new();
        if let Err(error) = make_tun(&net) {
            println!("skipped: no tun device: {error}");
            return;
        }
        let server = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
        let mut weir = Weir::start(
            &net.host,
            &format!("interfaces = [\"tun0\"]\nbackend = \"{backend}\"\n"),
        );
        let receive = |sources: &[&str]| {
            let packet = |from: &&str| {
                let to = addr(HOST[usize::from(addr(from).is_ipv6())]);
                let frame = Packet::eth().ip(addr(from), to).udp(40022, PORT).build();
                hex::encode(&frame[14..])
            };
            let packets: Vec<_> = sources.iter().map(packet).collect();
            net.host
                .run("python3", &["-c", RECEIVE_ON_TUN, &packets.join(" ")])
                .unwrap();
        };
        let mut expected = 0;
        let mut let_in = |sources: &[&str], passing: u64| {
            receive(sources);
            expected += passing;
            soon("those who are not banned", || {
                (server.received() >= expected).then_some(())
            });
            assert_eq!(server.received(), expected, "{backend}: {sources:?}");
        };
        let all = [ATTACKER, CUSTOMER].concat();
        let_in(&all, 4);
        ban(&weir);
        let before = weir.packets("banned-all");
        let_in(&all, 2);
        assert_eq!(weir.packets("banned-all") - before, 2);
        assert_eq!(weir.attachment("tun0").0, backend);
        // As a VPN that connects anew; then with nobody there to see it.
        for daemon in [true, false] {
            if !daemon {
                weir.kill();
            }
            net.host.run("ip", &["link", "del", "tun0"]).unwrap();
            make_tun(&net).unwrap();
            let_in(&all, 2);
        }
        weir.run();
        let_in(&all, 2);
        for who in ATTACKER {
            weir.ask(&["unban", who]).done();
        }
        let_in(&all, 4);
    }
}

/// Sends frames as they are, read in hexadecimal, one a line.
const SEND_FRAMES: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
for line in sys.argv[1].split():
    s.send(bytes.fromhex(line))
";

#[test]
fn root_tagged_frames_of_a_banned_source_are_dropped() {
    if skipped(&["python3"]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf"] {
        let net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let tagged = |tags: usize, family: usize, from: &str| {
            let mut frame = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
            if tags == 2 {
                frame = frame.qinq(100);
            }
            if tags > 0 {
                frame = frame.vlan(7);
            }
            let frame = frame
                .ip(addr(from), addr(HOST[family]))
                .udp(40022, PORT)
                .pad()
                .build();
            hex::encode(frame)
        };
        for tags in 0..=2 {
            for family in [0, 1] {
                let counts = || (weir.packets("banned-all"), weir.packets("pass"));
                let before = counts();
                let frames: Vec<_> = (0..5)
                    .map(|_| tagged(tags, family, ATTACKER[family]))
                    .chain((0..3).map(|_| tagged(tags, family, CUSTOMER[family])))
                    .collect();
                net.internet
                    .run("python3", &["-c", SEND_FRAMES, &frames.join(" ")])
                    .unwrap();
                soon(
                    &format!("{backend}: five drops, three passes, {tags} tags"),
                    || (counts() == (before.0 + 5, before.1 + 3)).then_some(()),
                );
            }
        }
        assert_eq!(weir.attachment("eth0").0, backend);
    }
}

/// Linux takes any number of priority tags (VLAN 0) off a frame: behind as many as
/// a sender likes, weir judges what is inside, or drops it.
#[test]
fn root_stacked_priority_tags_hide_nobody() {
    if skipped(&["nft", "ipset", "iptables-restore"]) {
        return;
    }
    for (backend, judged) in [
        ("xdp", 8),
        ("xdp-generic", 8),
        ("tcx", 8),
        ("cls_bpf", 8),
        // Behind the stack, which takes all of them off.
        ("netfilter", usize::MAX),
        ("ipset", usize::MAX),
        // nftables' ingress looks behind one.
        ("nft", 1),
    ] {
        let net = TestNet::new();
        let weir = Weir::start(&net.host, &config(backend));
        if backend == "nft" {
            soon("its chain at ingress", || {
                let note = weir.attachment("eth0").1;
                note.contains("at ingress and").then_some(())
            });
        }
        ban(&weir);
        let servers = [0, 1].map(|family| UdpServer::start(&net.host, at(family)).unwrap());
        let send = |tags: usize, from: &str| {
            let wire = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A));
            let to = addr(HOST[usize::from(addr(from).is_ipv6())]);
            let frame = (0..tags)
                .fold(wire, |frame, _| frame.vlan(0))
                .ip(addr(from), to)
                .udp(40022, PORT)
                .build();
            send_frames(&net.internet, "eth0", [&frame[..]].into_iter()).unwrap();
        };
        let most = [1, 2, 3, 4, 8, 9, 12, 40];
        for (family, server) in servers.iter().enumerate() {
            let mut expected = 0;
            for tags in most {
                send(tags, ATTACKER[family]);
                send(tags, CUSTOMER[family]);
                // More are dropped unjudged, where they are seen.
                expected += u64::from(tags <= judged);
                // One wire: what was sent before has come, or does not.
                send(0, CUSTOMER[family]);
                expected += 1;
                soon(
                    &format!("{backend}: who is not banned, {tags} tags"),
                    || (server.received() >= expected).then_some(()),
                );
                assert_eq!(server.received(), expected, "{backend}: {tags} tags");
            }
        }
        let banned = most.iter().filter(|tags| **tags <= judged).count() as u64;
        let too_many = 2 * 2 * (most.len() as u64 - banned);
        assert_eq!(weir.packets("too-many-tags"), too_many, "{backend}");
        assert_eq!(weir.packets("banned-all"), 2 * banned, "{backend}");
    }
}

#[test]
fn root_jumbo_frames() {
    if skipped(&[]) {
        return;
    }
    for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter"] {
        let net = TestNet::with_mtu(9000);
        let weir = Weir::start(&net.host, &config(backend));
        assert_eq!(weir.attachment("eth0").0, backend);
        ban(&weir);
        let bytes = vec![7; 8900];
        for family in [0, 1] {
            let server = UdpServer::start(&net.host, at(family)).unwrap();
            let before = weir.packets("banned-all");
            let from = Some(addr(ATTACKER[family]));
            udp_send(&net.internet, from, at(family), &bytes, 10).unwrap();
            soon("ten drops", || {
                (weir.packets("banned-all") == before + 10).then_some(())
            });
            let from = Some(addr(CUSTOMER[family]));
            let (echo, _) = udp_request(&net.internet, from, at(family), &bytes, SOON).unwrap();
            assert_eq!(echo, bytes, "{backend}");
            assert_eq!(server.received(), 1, "{backend}");
        }
    }
}

#[test]
fn root_what_cannot_be_protected_is_refused_by_name() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let wireguard = net
        .host
        .run("ip", &["link", "add", "wg0", "type", "wireguard"]);
    if let Err(error) = &wireguard {
        println!("skipped: no wireguard device: {error}");
    }
    if let Err(error) = make_tun(&net) {
        println!("skipped: no tun device: {error}");
        return;
    }
    let devices = ["tun0", "wg0"].into_iter();
    for device in devices.filter(|name| *name == "tun0" || wireguard.is_ok()) {
        for backend in ["xdp", "xdp-generic", "tcx", "cls_bpf"] {
            weir.configure(&format!(
                "interfaces = [\"{device}\"]\nbackend = \"{backend}\"\n"
            ));
            let words = format!("interface {device} carries no Ethernet frames");
            weir.ask(&["check"])
                .says_no(&["problem: interfaces: ", &words]);
            weir.fails().refused(&[&words]);
            assert!(!weir.pins().join("current").exists());
        }
    }
    // A reload to it is refused as well, and what is enforced stays.
    weir.configure(&config("tcx"));
    weir.run();
    ban(&weir);
    let _server = net.server();
    weir.configure("interfaces = [\"eth0\", \"tun0\"]\nbackend = \"tcx\"\n");
    weir.ask(&["reload"])
        .refused(&["interface tun0 carries no Ethernet frames"]);
    enforces(&net, &weir);
}

/// Another wire into the same host, with a neighbour of its own.
fn wire(net: &TestNet, name: &str, number: u8) -> Veth {
    let more = net.net.namespace(name).unwrap();
    let opts = VethOpts::new(
        &[&format!("198.51.{number}.1/24")],
        &[&format!("198.51.{number}.2/24")],
    );
    let opts = opts.unwrap();
    net.net.veth(&net.host, name, &more, "eth0", opts).unwrap()
}

fn alerts(weir: &Weir) -> String {
    weir.json(&["status"])["alerts"].to_string()
}

#[track_caller]
fn protected_soon(weir: &Weir, interface: &str, hook: &str) {
    soon(&format!("{interface} to be protected by {hook}"), || {
        let status = weir.json(&["status"]);
        let all = status["attachments"].as_array().unwrap();
        let found = all
            .iter()
            .any(|a| a["interface"] == interface && a["hook"] == hook && a["present"] == true);
        found.then_some(())
    });
}

/// A modem, a tunnel: it comes later than the daemon, and keeps nobody waiting.
#[test]
fn root_an_interface_that_is_not_there_is_waited_for() {
    if skipped(&RULES) {
        return;
    }
    for backend in ["xdp", "tcx", "cls_bpf", "netfilter", "nft", "ipset"] {
        let net = TestNet::new();
        let three = format!("interfaces = [\"wan1\", \"eth0\"]\nbackend = \"{backend}\"\n");
        let mut weir = Weir::new(&net.host, &three);
        let said = weir.ask(&["check"]).done();
        let said = said.out + &said.err;
        assert!(said.contains("no interface \"wan1\" now"), "{said}");
        weir.run();
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        soon("an alert", || {
            alerts(&weir).contains("interface:wan1").then_some(())
        });
        let status = weir.json(&["status"]);
        let absent = status["attachments"].as_array().unwrap().iter();
        let absent: Vec<_> = absent.filter(|a| a["present"] == false).collect();
        assert_eq!(absent.len(), 1, "{status}");
        assert_eq!(absent[0]["interface"], "wan1");
        // One more by a reload, which takes no other away.
        weir.configure(&three.replace("[\"wan1\"", "[\"wan1\", \"wan2\""));
        weir.ask(&["reload"]).done();
        enforces(&net, &weir);
        let _wires = [wire(&net, "wan1", 1), wire(&net, "wan2", 2)];
        for name in ["wan1", "wan2"] {
            protected_soon(&weir, name, backend);
        }
        soon("no alert", || {
            (!alerts(&weir).contains("interface:")).then_some(())
        });
        enforces(&net, &weir);
    }
}

/// An interface that lost its default route may get it back: until then it is attacked as
/// before.
#[test]
fn root_auto_keeps_what_is_attached_without_a_default_route() {
    if skipped(&RULES) {
        return;
    }
    for (backend, hook) in [
        ("auto", "tcx"),
        ("xdp", "xdp"),
        ("nft", "nft"),
        ("ipset", "ipset"),
    ] {
        let net = TestNet::new();
        let auto = format!("interfaces = \"auto\"\nbackend = \"{backend}\"\n");
        let mut weir = Weir::start(&net.host, &auto);
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        let gateways = ["route del default", "-6 route del default"];
        for gateway in gateways {
            let words: Vec<_> = gateway.split(' ').collect();
            net.host.run("ip", &words).unwrap();
        }
        let drops = |weir: &Weir| {
            for family in [0, 1] {
                let before = weir.packets("banned-all");
                assert!(!net.connects(ATTACKER[family], at(family)));
                assert!(weir.packets("banned-all") > before, "{backend}");
            }
        };
        drops(&weir);
        weir.configure(&format!("max_bans = 1000\n{auto}"));
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("eth0").0, hook);
        drops(&weir);
        weir.kill();
        weir.run();
        assert_eq!(weir.attachment("eth0").0, hook);
        drops(&weir);
    }
}

/// A reload and the look at the routes each second have one owner.
#[test]
fn root_auto_follows_routes_through_reloads_and_losses() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let auto = "interfaces = \"auto\"\n";
    let weir = Weir::start(&net.host, auto);
    ban(&weir);
    let _server = net.server();
    let route = |verb: &str, name: &str, number: u8| {
        let line = format!("route {verb} default via 198.51.{number}.2 dev {name} metric 9000");
        net.host.ip(&[line]).unwrap();
    };
    let mut first = wire(&net, "wan1", 1);
    route("add", "wan1", 1);
    protected_soon(&weir, "wan1", "tcx");
    route("del", "wan1", 1);
    for turn in 0..4 {
        weir.configure(&format!("max_bans = {}\n{auto}", 1000 + turn));
        weir.ask(&["reload"]).done();
        assert_eq!(weir.attachment("wan1").0, "tcx");
        enforces(&net, &weir);
    }
    // One that is gone keeps no other from being protected.
    first.delete().unwrap();
    let _second = wire(&net, "wan2", 2);
    route("add", "wan2", 2);
    protected_soon(&weir, "wan2", "tcx");
    enforces(&net, &weir);
    first.create().unwrap();
    protected_soon(&weir, "wan1", "tcx");
}

/// What is refused at the next start must not be said to be done now.
#[test]
fn root_a_geofence_that_cannot_be_enforced_refuses_reload_and_start() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    if let Err(error) = make_tun(&net) {
        println!("skipped: no tun device: {error}");
        return;
    }
    let plain = "interfaces = [\"eth0\", \"tun0\"]\n";
    let fenced = format!("{plain}[geofence]\ndeny = [\"country:AQ\"]\n");
    let mut weir = Weir::start(&net.host, plain);
    ban(&weir);
    let _server = net.server();
    enforces(&net, &weir);
    let words = ["what goes out of tun0 cannot be judged"];
    weir.configure(&fenced);
    weir.ask(&["reload"]).refused(&words);
    enforces(&net, &weir);
    let status = weir.json(&["status"]);
    assert_eq!(status["alerts"], serde_json::json!([]));
    assert_eq!(status["classes"], serde_json::Value::Null);
    weir.stop();
    weir.fails().refused(&words);
    weir.configure(plain);
    weir.run();
    enforces(&net, &weir);
}

/// The device is the same, and so are its attackers.
#[test]
fn root_a_renamed_interface_stays_protected() {
    if skipped(&[]) {
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
        println!("{backend}");
        let has_rules = ["nft", "ipset"].contains(&backend);
        if has_rules && skipped(&["nft", "ipset", "iptables-restore"]) {
            continue;
        }
        let mut net = TestNet::new();
        let mut weir = Weir::start(&net.host, &config(backend));
        ban(&weir);
        let _server = net.server();
        enforces(&net, &weir);
        net.veth.rename(Side::A, "wan").unwrap();
        soon("an alert", || {
            alerts(&weir).contains("called wan now").then_some(())
        });
        enforces(&net, &weir);
        let (hook, note) = weir.attachment("eth0");
        assert_eq!(
            (hook.as_str(), note.contains("wan")),
            (backend, true),
            "{note}"
        );
        // The next daemon finds it by what is attached; rules have names only.
        if !has_rules {
            weir.kill();
            weir.run();
            enforces(&net, &weir);
            assert_eq!(weir.attachment("eth0").0, backend);
        }
        // Named as it is called now, by a reload; back, by a restart.
        weir.configure(&config(backend).replace("eth0", "wan"));
        weir.ask(&["reload"]).done();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("wan").0, backend);
        soon("no alert", || {
            (!alerts(&weir).contains("wan")).then_some(())
        });
        net.veth.rename(Side::A, "eth0").unwrap();
        weir.kill();
        weir.configure(&config(backend));
        weir.run();
        enforces(&net, &weir);
        assert_eq!(weir.attachment("eth0").0, backend);
        if !has_rules {
            let links = std::fs::read_dir(weir.pins().join("links")).unwrap();
            let names = links.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(names.into_iter().all(|name| !name.contains("wan")));
        }
    }
}

#[test]
fn root_a_reload_moves_to_another_hook_without_a_gap() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, &config("tcx"));
    ban(&weir);
    let server = UdpServer::start(&net.host, at(0)).unwrap();
    let from = Some(addr(ATTACKER[0]));
    let mut sent = 0;
    let before = weir.packets("banned-all");
    for backend in [
        "xdp",
        "tcx",
        "xdp-generic",
        "tcx",
        "xdp",
        "netfilter",
        "cls_bpf",
        "tcx",
        "cls_bpf",
        "netfilter",
        "xdp-generic",
    ] {
        weir.configure(&config(backend));
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| weir.ask(&["reload"]));
            while !reload.is_finished() {
                sent += udp_send(&net.internet, from, at(0), b"x", 20).unwrap();
            }
            reload.join().unwrap().done();
        });
        assert_eq!(weir.attachment("eth0").0, backend);
    }
    soon("all to be counted", || {
        (weir.packets("banned-all") - before >= sent).then_some(())
    });
    println!("{sent} packets while the hook changed");
    assert_eq!(server.received(), 0);
}

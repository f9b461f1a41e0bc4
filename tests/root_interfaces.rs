//! Each backend on real interfaces: what is dropped and what is not, other
//! programs, interfaces that go and come back, VLANs, jumbo frames, and what
//! is refused.

#[path = "root_interfaces/coming_and_going.rs"]
mod coming_and_going;
mod common;
#[path = "root_interfaces/frames.rs"]
mod frames;

use common::{ATTACKER, CUSTOMER, PORT, TestNet, Weir, addr, at, skipped, soon};
use weir_bpf::{
    attachment::{Hook, Link, xdp_program_on},
    generator::Generator,
};
use weir_testkit::traffic::{UdpServer, udp_send};

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
    if let Err(error) = net.make_tun() {
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

/// What is refused at the next start must not be said to be done now.
#[test]
fn root_a_geofence_that_cannot_be_enforced_refuses_reload_and_start() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    if let Err(error) = net.make_tun() {
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

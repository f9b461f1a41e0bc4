//! The hook `cls_bpf`: filters and qdiscs of others stay as they are, what weir
//! made goes with it, and what somebody took away comes back. (That it drops
//! what every hook drops: root_interfaces.rs.)

mod common;

use std::net::SocketAddr;

use common::{ATTACKER, CUSTOMER, PORT, SOON, TestNet, Weir, addr, at, skipped, soon};
use weir_testkit::traffic::{self, TcpServer, UdpServer};

const CONFIG: &str = "interfaces = [\"eth0\"]\nbackend = \"cls_bpf\"\n";

fn tc(net: &TestNet, words: &str) -> String {
    let words: Vec<_> = words.split(' ').collect();
    net.host.run("tc", &words).unwrap().stdout_text()
}

/// The output of a program as text.
trait Text {
    fn stdout_text(self) -> String;
}

impl Text for std::process::Output {
    fn stdout_text(self) -> String {
        String::from_utf8(self.stdout).unwrap()
    }
}

/// Qdiscs, and the filters of both directions.
fn tc_state(net: &TestNet) -> [String; 3] {
    [
        "qdisc show dev eth0",
        "filter show dev eth0 ingress",
        "filter show dev eth0 egress",
    ]
    .map(|words| tc(net, words))
}

fn weirs(text: &str) -> usize {
    text.lines().filter(|line| line.contains("weir_")).count()
}

#[track_caller]
fn enforces(net: &TestNet) {
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
}

fn ban(weir: &Weir) {
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
}

#[test]
fn root_filters_of_others_stay_and_ours_go() {
    if skipped(&["tc"]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let bare = tc_state(&net);
    assert!(!bare[0].contains("clsact"), "{bare:?}");

    // Alone: the qdisc is made, and goes with the filter.
    let mut weir = Weir::start(&net.host, CONFIG);
    ban(&weir);
    enforces(&net);
    let now = tc_state(&net);
    assert!(now[0].contains("clsact"), "{now:?}");
    assert!(now[1].contains("pref 1 bpf"), "{now:?}");
    assert_eq!((weirs(&now[1]), weirs(&now[2])), (1, 0), "{now:?}");
    weir.stop();
    weir.detach().done();
    assert_eq!(tc_state(&net), bare);

    // Others came meanwhile: theirs stays, and so does the qdisc they use.
    weir.run();
    let theirs = "filter add dev eth0 ingress pref 7 protocol all u32 match u32 0x12345678 0xffffffff at 0 classid 1:1";
    tc(&net, theirs);
    weir.stop();
    weir.detach().done();
    let left = tc_state(&net);
    assert!(
        left[0].contains("clsact") && left[1].contains("pref 7 u32"),
        "{left:?}"
    );
    assert_eq!(weirs(&left[1]), 0);

    // They were first, at the first priorities, in both directions.
    for (pref, way) in [(1, "ingress"), (2, "ingress"), (1, "egress")] {
        let kind = "protocol all u32 match u32 0x12345678 0xffffffff at 0 classid 1:1";
        tc(
            &net,
            &format!("filter add dev eth0 {way} pref {pref} {kind}"),
        );
    }
    let before = tc_state(&net);
    weir.run();
    ban(&weir);
    enforces(&net);
    let (hook, note) = weir.attachment("eth0");
    assert_eq!(hook, "cls_bpf");
    assert!(
        note.contains("filters of others come before it (priority 3)"),
        "{note}"
    );
    weir.stop();
    weir.detach().done();
    assert_eq!(tc_state(&net), before);
}

#[test]
fn root_a_filter_that_somebody_removed_comes_back() {
    if skipped(&["tc"]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let mut weir = Weir::start(&net.host, CONFIG);
    ban(&weir);
    for removal in ["qdisc del dev eth0 clsact", "filter del dev eth0 ingress"] {
        enforces(&net);
        tc(&net, removal);
        soon("the filter to come back", || {
            (weirs(&tc(&net, "filter show dev eth0 ingress")) == 1).then_some(())
        });
    }
    enforces(&net);
    // While no daemon looks, the next one does.
    weir.kill();
    enforces(&net);
    tc(&net, "qdisc del dev eth0 clsact");
    net.serves(ATTACKER[0], at(0));
    weir.run();
    enforces(&net);
    assert_eq!(weirs(&tc(&net, "filter show dev eth0 ingress")), 1);
}

/// A generation, a killed daemon and its successor: never a packet between.
#[test]
fn root_a_filter_is_replaced_without_a_gap() {
    if skipped(&["tc"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    ban(&weir);
    let server = UdpServer::start(&net.host, at(0)).unwrap();
    let from = Some(addr(ATTACKER[0]));
    let flood = |until: &dyn Fn() -> bool| {
        while !until() {
            traffic::udp_send(&net.internet, from, at(0), b"x", 20).unwrap();
        }
    };
    let before = weir.json(&["status"])["usage"]["generation"].clone();
    for n in 0..3 {
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| {
                // With a geofence and without: a generation each.
                let geofence = if n % 2 == 0 {
                    "[geofence]\ndeny = [\"continent:AN\"]\n"
                } else {
                    ""
                };
                weir.configure(&format!("{CONFIG}{geofence}"));
                weir.ask(&["reload"]).done();
            });
            flood(&|| reload.is_finished());
        });
    }
    assert_ne!(weir.json(&["status"])["usage"]["generation"], before);
    weir.kill();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| weir.run());
        flood(&|| next.is_finished());
    });
    assert_eq!(server.received(), 0);
    assert_eq!(weirs(&tc(&net, "filter show dev eth0 ingress")), 1);
}

/// What goes out is judged by a filter as well, and both go together.
#[test]
fn root_a_filter_judges_what_goes_out() {
    if skipped(&["tc"]) {
        return;
    }
    let net = TestNet::new();
    let bare = tc_state(&net);
    let list = |weir: &Weir| {
        std::fs::write(weir.path("deny"), "198.51.100.0/24\n2001:db8:bad::/48\n").unwrap();
        let file = weir.path("deny");
        weir.configure(&format!(
            "{CONFIG}[list.foes]\ndirection = \"both\"\nfile = \"{}\"\n",
            file.display()
        ));
    };
    let mut weir = Weir::new(&net.host, CONFIG);
    list(&weir);
    weir.run();
    let outside = [0, 1].map(|family| {
        let at = SocketAddr::new(addr(ATTACKER[family]), PORT);
        TcpServer::start(&net.internet, at, b"").unwrap()
    });
    soon("the list to be in force", || {
        (weirs(&tc(&net, "filter show dev eth0 egress")) == 1).then_some(())
    });
    for server in &outside {
        let to = server.addr();
        let said = traffic::tcp_connect(&net.host, None, to, common::SILENCE);
        assert!(said.is_err(), "{to}");
    }
    soon("drops to be counted", || {
        (weir.packets("listed-out") >= 2).then_some(())
    });
    // Without the list the twin goes, with it both come back, and leave.
    weir.configure(CONFIG);
    weir.ask(&["reload"]).done();
    soon("the twin to go", || {
        (weirs(&tc(&net, "filter show dev eth0 egress")) == 0).then_some(())
    });
    assert_eq!(weirs(&tc(&net, "filter show dev eth0 ingress")), 1);
    for server in &outside {
        traffic::tcp_connect(&net.host, None, server.addr(), SOON).unwrap();
    }
    list(&weir);
    weir.ask(&["reload"]).done();
    soon("the twin to come back", || {
        (weirs(&tc(&net, "filter show dev eth0 egress")) == 1).then_some(())
    });
    weir.kill();
    weir.detach().done();
    assert_eq!(tc_state(&net), bare);
}

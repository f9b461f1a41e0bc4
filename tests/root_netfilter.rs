//! The hook `netfilter`: it judges the packets of the interfaces it is told to,
//! of no others, before connection tracking, and goes on doing so while its
//! program is exchanged, which takes a second link. (That it drops what every
//! hook drops: root_interfaces.rs.)

mod common;

use std::{fs, net::SocketAddr};

use common::{ATTACKER, CUSTOMER, HOST, SILENCE, Site, Weir, addr, skipped, soon};
use weir_lab::{
    VethOpts,
    traffic::{self, TcpServer, UdpServer},
};

const PORT: u16 = 8080;
const CONFIG: &str = "interfaces = [\"eth0\"]\nbackend = \"netfilter\"\n";

fn at(family: usize) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), PORT)
}

fn ban(weir: &Weir) {
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
}

#[track_caller]
fn enforces(site: &Site) {
    for family in [0, 1] {
        assert!(!site.connects(ATTACKER[family], at(family)));
        site.serves(CUSTOMER[family], at(family));
    }
}

#[test]
fn root_netfilter_judges_the_interfaces_that_are_named() {
    if skipped(&[]) {
        return;
    }
    let site = Site::new();
    let aside = site.net.namespace("aside").unwrap();
    let addresses = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"]).unwrap();
    let _veth = site
        .net
        .veth(&site.host, "eth1", &aside, "eth0", addresses)
        .unwrap();
    let _server = TcpServer::start(&site.host, SocketAddr::new(addr("::"), PORT), b"").unwrap();
    let inside = SocketAddr::new(addr("10.9.0.1"), PORT);
    let connects = || traffic::tcp_connect(&aside, None, inside, SILENCE).is_ok();
    let mut weir = Weir::start(&site.host, CONFIG);
    ban(&weir);
    weir.ask(&["ban", "10.9.0.2"]).done();
    enforces(&site);
    assert!(connects(), "eth1 is not configured");
    let (hook, _) = weir.attachment("eth0");
    assert_eq!(hook, "netfilter");
    let status = weir.json(&["status"]);
    let limits = status["limits"].as_array().unwrap();
    assert!(limits.iter().any(|l| l["feature"] == "decoys"), "{status}");

    let both = CONFIG.replace("[\"eth0\"]", "[\"eth0\", \"eth1\"]");
    for (config, judged) in [(both.as_str(), true), (CONFIG, false), (&both, true)] {
        weir.configure(config);
        weir.ask(&["reload"]).done();
        assert_eq!(connects(), !judged, "{config}");
        enforces(&site);
    }
    weir.kill();
    enforces(&site);
    assert!(!connects());
    weir.run();
    enforces(&site);
    // With eth0 the pair does not go while eth1 has a part in it.
    weir.configure(&CONFIG.replace("eth0", "eth1"));
    weir.ask(&["reload"]).done();
    assert!(!connects());
    site.serves(ATTACKER[0], at(0));
    weir.stop();
    weir.detach().done();
    assert!(connects());
    assert!(!weir.pins().exists());
}

#[test]
fn root_netfilter_is_exchanged_without_a_gap() {
    if skipped(&[]) {
        return;
    }
    let site = Site::new();
    let mut weir = Weir::start(&site.host, CONFIG);
    ban(&weir);
    let servers = [0, 1].map(|family| UdpServer::start(&site.host, at(family)).unwrap());
    let flood = |until: &dyn Fn() -> bool| {
        while !until() {
            for family in [0, 1] {
                let from = Some(addr(ATTACKER[family]));
                traffic::udp_send(&site.internet, from, at(family), b"x", 20).unwrap();
            }
        }
    };
    let before = weir.json(&["status"])["usage"]["generation"].clone();
    std::thread::scope(|scope| {
        // The first ban that rejects makes a generation; here it only drops.
        let ban = scope.spawn(|| weir.ask(&["ban", "203.0.113.9", "--reject"]).done());
        flood(&|| ban.is_finished());
    });
    assert_ne!(weir.json(&["status"])["usage"]["generation"], before);
    weir.kill();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| weir.run());
        flood(&|| next.is_finished());
    });
    for server in &servers {
        assert_eq!(server.received(), 0);
    }
    assert!(!site.connects("203.0.113.9", at(0)));
}

#[test]
fn root_netfilter_enforces_lists_scopes_and_the_allow_list() {
    if skipped(&[]) {
        return;
    }
    let site = Site::new();
    let _server = TcpServer::start(&site.host, SocketAddr::new(addr("::"), PORT), b"").unwrap();
    let weir = Weir::new(&site.host, CONFIG);
    let file = weir.path("deny");
    fs::write(&file, "198.51.100.0/24\n2001:db8:bad::/48\n").unwrap();
    let list = format!(
        "{CONFIG}[list.foes]\ndirection = \"both\"\nfile = \"{}\"\n",
        file.display()
    );
    weir.configure(&list);
    let mut weir = weir;
    weir.run();
    soon("the list to be in force", || {
        (0..2)
            .all(|family| !site.connects(ATTACKER[family], at(family)))
            .then_some(())
    });
    assert!(weir.packets("listed") >= 2);
    let outside = SocketAddr::new(addr(ATTACKER[0]), PORT);
    let _outside = TcpServer::start(&site.internet, outside, b"").unwrap();
    assert!(traffic::tcp_connect(&site.host, None, outside, SILENCE).is_err());
    assert!(weir.packets("listed-out") >= 1);
    weir.configure(CONFIG);
    weir.ask(&["reload"]).done();
    for family in [0, 1] {
        let who = ATTACKER[family];
        site.serves_soon(who, at(family));
        weir.ask(&["ban", who, "--port", "9/tcp"]).done();
        site.serves(who, at(family));
        weir.ask(&["ban", who, "--port", "8000-9000/tcp"]).done();
        assert!(!site.connects(who, at(family)), "{who}");
        let wide = ["198.51.0.0/16", "2001:db8:b00::/40"][family];
        weir.ask(&["ban", wide]).done();
        assert!(!site.connects(who, at(family)), "{who}");
        weir.ask(&["allow", "add", who]).done();
        site.serves(who, at(family));
    }
}

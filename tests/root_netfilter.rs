//! The hook `netfilter`: it judges the packets of the interfaces it is told to,
//! of no others, before connection tracking, and goes on doing so while its
//! program is exchanged, which takes a second link. (That it drops what every
//! hook drops: root_interfaces.rs.)

mod common;

use std::{fs, net::SocketAddr};

use common::{ATTACKER, CUSTOMER, PORT, SILENCE, TestNet, Weir, addr, at, skipped, soon};
use weir_netlab::VethOpts;
use weir_testkit::{
    packet::Packet,
    traffic::{self, TcpServer, UdpServer},
};

const CONFIG: &str = "interfaces = [\"eth0\"]\nbackend = \"netfilter\"\n";

fn ban(weir: &Weir) {
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
}

#[track_caller]
fn enforces(net: &TestNet) {
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
}

#[test]
fn root_netfilter_judges_the_interfaces_that_are_named() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let aside = net.net.namespace("aside").unwrap();
    let addresses = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"]).unwrap();
    let _veth = net
        .net
        .veth(&net.host, "eth1", &aside, "eth0", addresses)
        .unwrap();
    let _server = net.server();
    let inside = SocketAddr::new(addr("10.9.0.1"), PORT);
    let connects = || traffic::tcp_connect(&aside, None, inside, SILENCE).is_ok();
    let mut weir = Weir::start(&net.host, CONFIG);
    ban(&weir);
    weir.ask(&["ban", "10.9.0.2"]).done();
    enforces(&net);
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
        enforces(&net);
    }
    weir.kill();
    enforces(&net);
    assert!(!connects());
    weir.run();
    enforces(&net);
    // With eth0 the pair does not go while eth1 has a part in it.
    weir.configure(&CONFIG.replace("eth0", "eth1"));
    weir.ask(&["reload"]).done();
    assert!(!connects());
    net.serves(ATTACKER[0], at(0));
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
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    ban(&weir);
    let servers = [0, 1].map(|family| UdpServer::start(&net.host, at(family)).unwrap());
    let flood = |until: &dyn Fn() -> bool| {
        while !until() {
            for family in [0, 1] {
                let from = Some(addr(ATTACKER[family]));
                traffic::udp_send(&net.internet, from, at(family), b"x", 20).unwrap();
            }
        }
    };
    let before = weir.json(&["status"])["usage"]["generation"].clone();
    std::thread::scope(|scope| {
        // The first geofence makes a generation.
        let reload = scope.spawn(|| {
            weir.configure(&format!("{CONFIG}[geofence]\ndeny = [\"continent:AN\"]\n"));
            weir.ask(&["reload"]).done();
        });
        flood(&|| reload.is_finished());
    });
    // A ban that rejects only drops here.
    weir.ask(&["ban", "203.0.113.9", "--reject"]).done();
    assert_ne!(weir.json(&["status"])["usage"]["generation"], before);
    weir.kill();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| weir.run());
        flood(&|| next.is_finished());
    });
    for server in &servers {
        assert_eq!(server.received(), 0);
    }
    assert!(!net.connects("203.0.113.9", at(0)));
}

#[test]
fn root_netfilter_enforces_lists_scopes_and_the_allow_list() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let _server = net.server();
    let weir = Weir::new(&net.host, CONFIG);
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
            .all(|family| !net.connects(ATTACKER[family], at(family)))
            .then_some(())
    });
    assert!(weir.packets("listed") >= 2);
    let outside = SocketAddr::new(addr(ATTACKER[0]), PORT);
    let _outside = TcpServer::start(&net.internet, outside, b"").unwrap();
    assert!(traffic::tcp_connect(&net.host, None, outside, SILENCE).is_err());
    assert!(weir.packets("listed-out") >= 1);
    weir.configure(CONFIG);
    weir.ask(&["reload"]).done();
    for family in [0, 1] {
        let who = ATTACKER[family];
        net.serves_soon(who, at(family));
        weir.ask(&["ban", who, "--port", "9/tcp"]).done();
        net.serves(who, at(family));
        weir.ask(&["ban", who, "--port", "8000-9000/tcp"]).done();
        assert!(!net.connects(who, at(family)), "{who}");
        let wide = ["198.51.0.0/16", "2001:db8:b00::/40"][family];
        weir.ask(&["ban", wide]).done();
        assert!(!net.connects(who, at(family)), "{who}");
        weir.ask(&["allow", "add", who]).done();
        net.serves(who, at(family));
    }
}

/// Writes packets, of hexadecimal digits, into a TUN device as its far end.
const INTO_TUN: &str = "\
import fcntl, os, struct, sys
tun = os.open('/dev/net/tun', os.O_RDWR)
IFF_TUN, IFF_NO_PI, TUNSETIFF = 1, 0x1000, 0x400454ca
fcntl.ioctl(tun, TUNSETIFF, struct.pack('16sH22x', b'tun0', IFF_TUN | IFF_NO_PI))
for packet in sys.argv[1].split():
    os.write(tun, bytes.fromhex(packet))
";

/// What a geofence cannot be had for, a reload may add when it leaves the geofence.
#[test]
fn root_one_reload_leaves_the_geofence_and_adds_a_tun_device() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    if let Err(error) = net.make_tun() {
        println!("skipped: no tun device: {error}");
        return;
    }
    let fenced = "[geofence]\ndeny = [\"country:AQ\"]\n";
    let both = "interfaces = [\"eth0\", \"tun0\"]\n";
    let weir = Weir::start(&net.host, &format!("interfaces = [\"eth0\"]\n{fenced}"));
    weir.configure(both);
    weir.ask(&["reload"]).done();
    assert_eq!(weir.attachment("tun0").0, "netfilter");
    weir.configure(&format!("{both}{fenced}"));
    weir.ask(&["reload"]).refused(&["geofence", "tun0"]);
    assert_eq!(weir.attachment("tun0").0, "netfilter");
    assert_eq!(weir.json(&["status"])["alerts"], serde_json::json!([]));
}

/// A device without Ethernet frames, as wireguard's and ppp's: `auto` finds the
/// one hook that is there. What that cannot do is refused by name.
#[test]
fn root_auto_protects_a_tun_device_by_netfilter() {
    if skipped(&["python3"]) {
        return;
    }
    let net = TestNet::new();
    if let Err(error) = net.make_tun() {
        println!("skipped: no tun device: {error}");
        return;
    }
    let auto = "interfaces = [\"eth0\", \"tun0\"]\n";
    let _server = net.server();
    let mut weir = Weir::start(&net.host, auto);
    ban(&weir);
    enforces(&net);
    assert_eq!(weir.attachment("eth0").0, "tcx");
    let (hook, note) = weir.attachment("tun0");
    assert_eq!(hook, "netfilter", "{note}");
    assert!(note.contains("carries no Ethernet frames"), "{note}");
    let status = weir.json(&["status"]);
    let limits = status["limits"].as_array().unwrap();
    assert!(limits.iter().any(|l| l["feature"] == "decoys"), "{status}");

    let packet = |from: [&str; 2], family: usize| -> String {
        let frame = Packet::eth()
            .ip(addr(from[family]), at(family).ip())
            .udp(40022, PORT)
            .build();
        hex::encode(&frame[14..])
    };
    let arrive = |weir: &Weir| {
        let before = (weir.packets("banned-all"), weir.packets("pass"));
        let packets: Vec<_> = [(ATTACKER, 3), (CUSTOMER, 2)]
            .into_iter()
            .flat_map(|(from, times)| (0..2 * times).map(move |n| (from, n % 2)))
            .map(|(from, family)| packet(from, family))
            .collect();
        net.host
            .run("python3", &["-c", INTO_TUN, &packets.join(" ")])
            .unwrap();
        soon("six drops and four passes", || {
            let now = (weir.packets("banned-all"), weir.packets("pass"));
            (now.0 == before.0 + 6 && now.1 >= before.1 + 4).then_some(())
        });
    };
    arrive(&weir);
    weir.kill();
    weir.run();
    arrive(&weir);

    let decoys = format!("{auto}[decoy]\nports = [\"23/tcp\"]\n");
    weir.configure(&decoys);
    // As a start refuses it, and with nothing half done.
    weir.ask(&["reload"])
        .refused(&["has no decoy or tarpit ports: netfilter"]);
    arrive(&weir);
    assert_eq!(weir.json(&["status"])["alerts"], serde_json::json!([]));
    weir.kill();
    weir.fails()
        .refused(&["cannot protect tun0", "netfilter: it has no decoy ports"]);
    weir.configure(auto);
    weir.run();
    arrive(&weir);
    weir.configure(&format!("{auto}backend = \"tcx\"\n"));
    weir.ask(&["reload"])
        .refused(&["interface tun0 carries no Ethernet frames"]);
    arrive(&weir);
    enforces(&net);
}

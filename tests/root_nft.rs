//! The backend `nft` where it has more than one place to judge a packet: each
//! interface's ingress and, behind it, prerouting; and what it answers.

mod common;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, HOST, Site, Weir, addr, skipped, soon};
use weir_lab::{
    Side,
    packet::Packet,
    traffic::{TcpServer, UdpServer, send_frames, udp_send},
};

const PORT: u16 = 8080;
const CONFIG: &str = "interfaces = [\"eth0\"]\nbackend = \"nft\"\n";
const AT_INGRESS: &str = "at ingress and";
const IN_PREROUTING: &str = "in prerouting only";

fn at(family: usize) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), PORT)
}

fn start(site: &Site) -> (Weir, TcpServer) {
    let weir = Weir::start(&site.host, CONFIG);
    for who in ATTACKER {
        weir.ask(&["ban", who, "--for", "1h"]).done();
    }
    let any = SocketAddr::new(addr("::"), PORT);
    (weir, TcpServer::start(&site.host, any, b"").unwrap())
}

#[track_caller]
fn judges(weir: &Weir, place: &str) {
    soon(&format!("eth0 to be judged {place}"), || {
        weir.attachment("eth0").1.contains(place).then_some(())
    });
}

#[track_caller]
fn enforces(site: &Site) {
    for family in [0, 1] {
        assert!(!site.connects(ATTACKER[family], at(family)));
        site.serves(CUSTOMER[family], at(family));
    }
}

/// Packets that pass are counted once, whoever judges them, and dropped ones.
#[track_caller]
fn counts_once(site: &Site, weir: &Weir) {
    const SENT: u64 = 200;
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), 5353);
        let server = UdpServer::start(&site.host, to).unwrap();
        for (who, reason) in [(CUSTOMER, "pass"), (ATTACKER, "banned-all")] {
            let before = weir.packets(reason);
            let received = server.received();
            let who = addr(who[family]);
            let sent = udp_send(&site.internet, Some(who), to, b"x", SENT).unwrap();
            assert_eq!(sent, SENT);
            let counted = || weir.packets(reason) - before;
            soon("them all", || (counted() >= SENT).then_some(()));
            if reason == "pass" {
                soon("them to arrive", || {
                    (server.received() - received == SENT).then_some(())
                });
            }
            // Neighbour discovery and the like pass as well.
            assert!(counted() < SENT + 40, "{reason}: {} of {SENT}", counted());
        }
    }
}

#[test]
fn root_nft_judges_at_ingress_and_counts_once() {
    if skipped(&["nft", "tc"]) {
        return;
    }
    let site = Site::new();
    let (mut weir, _server) = start(&site);
    judges(&weir, AT_INGRESS);
    enforces(&site);
    counts_once(&site, &weir);

    // Filters there may send packets past ingress.
    let qdisc = |verb| {
        let args = ["qdisc", verb, "dev", "eth0", "clsact"];
        site.host.run("tc", &args).unwrap();
    };
    qdisc("add");
    judges(&weir, IN_PREROUTING);
    enforces(&site);
    counts_once(&site, &weir);
    qdisc("del");
    judges(&weir, AT_INGRESS);
    enforces(&site);
    counts_once(&site, &weir);

    // Somebody takes the chain of the interface away.
    let chain = format!("ingress-{}", site.host.ifindex("eth0").unwrap());
    let table = format!("weir_{}", weir.instance);
    site.host
        .run("nft", &["delete", "chain", "inet", &table, &chain])
        .unwrap();
    soon("the chain to be back", || {
        let list = ["list", "chain", "inet", &table, &chain];
        site.host.run("nft", &list).is_ok().then_some(())
    });
    enforces(&site);
    counts_once(&site, &weir);

    weir.kill();
    enforces(&site);
    weir.run();
    judges(&weir, AT_INGRESS);
    counts_once(&site, &weir);
}

#[test]
fn root_nft_covers_an_interface_that_is_made_again() {
    if skipped(&["nft"]) {
        return;
    }
    let mut site = Site::new();
    let (mut weir, _server) = start(&site);
    for _ in 0..2 {
        judges(&weir, AT_INGRESS);
        site.veth.delete().unwrap();
        soon("the interface to be missed", || {
            let note = weir.attachment("eth0").1;
            note.contains("no such interface").then_some(())
        });
        site.veth.create().unwrap();
        // From its first packet on.
        enforces(&site);
        judges(&weir, AT_INGRESS);
        enforces(&site);
        counts_once(&site, &weir);
    }
    assert!(!weir.said().contains("somebody has changed"));
    // Nobody is there to see it: prerouting goes by the name.
    weir.kill();
    site.veth.delete().unwrap();
    site.veth.create().unwrap();
    enforces(&site);
    weir.run();
    judges(&weir, AT_INGRESS);
    enforces(&site);
    counts_once(&site, &weir);
}

/// What the IP stack does not get from this device: frames with a tag, of which
/// the configuration names only the interface below.
#[test]
fn root_nft_sees_what_prerouting_does_not() {
    if skipped(&["nft"]) {
        return;
    }
    const SENT: u64 = 5;
    let site = Site::new();
    let (weir, _server) = start(&site);
    judges(&weir, AT_INGRESS);
    for family in [0, 1] {
        let before = weir.packets("banned-all");
        let frame = Packet::eth_between(site.veth.mac(Side::B), site.veth.mac(Side::A))
            .vlan(7)
            .ip(addr(ATTACKER[family]), addr(HOST[family]))
            .udp(40022, PORT)
            .pad()
            .build();
        let frames = (0..SENT).map(|_| frame.as_slice());
        let sent = send_frames(&site.internet, "eth0", frames).unwrap();
        assert_eq!(sent, SENT);
        soon("them to be dropped", || {
            (weir.packets("banned-all") == before + SENT).then_some(())
        });
    }
}

/// Those whose ban rejects leave ingress for prerouting, which has the answers:
/// a thousand a second and no more, and none to resets.
#[test]
fn root_nft_rejects_so_many_and_counts_once() {
    if skipped(&["nft"]) {
        return;
    }
    const SENT: u64 = 3000;
    let site = Site::new();
    let (weir, _server) = start(&site);
    judges(&weir, AT_INGRESS);
    for family in [0, 1] {
        let (who, port) = (ATTACKER[family], "5353/udp");
        weir.ask(&["unban", who]).done();
        // Of one port, under a ban of all ports that drops.
        weir.ask(&["ban", who, "--for", "1h", "--port", port, "--reject"])
            .done();
        let wide = ["198.51.100.0/24", "2001:db8:bad::/48"][family];
        weir.ask(&["ban", wide, "--for", "1h"]).done();
        let counts =
            || ["rejected", "rejected-silent", "banned-all", "pass"].map(|r| weir.packets(r));
        let before = counts();
        let begun = Instant::now();
        let to = SocketAddr::new(addr(HOST[family]), 5353);
        let sent = udp_send(&site.internet, Some(addr(who)), to, &[7; 100], SENT);
        let after = soon("them all", || {
            let now = counts();
            (now[0] + now[1] - before[0] - before[1] >= SENT).then_some(now)
        });
        let allowed = begun.elapsed() + Duration::from_millis(300);
        let [answered, silent, dropped, passed] =
            [0, 1, 2, 3].map(|at: usize| after[at] - before[at]);
        assert_eq!(sent.unwrap(), SENT);
        assert_eq!(answered + silent, SENT);
        assert!(answered > 200, "{answered}");
        assert!(
            u128::from(answered) <= allowed.as_millis() + 250,
            "{answered} in {allowed:?}"
        );
        assert_eq!(dropped, 0);
        assert!(passed < 40, "{passed}");
        // The other ports drop.
        assert!(!site.connects(who, at(family)));
        assert!(weir.packets("banned-all") > after[2]);
        site.serves(CUSTOMER[family], at(family));
    }
}

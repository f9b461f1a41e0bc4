//! The backend `nft` where it has more than one place to judge a packet: each
//! interface's ingress and, behind it, prerouting; and what it answers.

mod common;

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

#[cfg(feature = "fault-points")]
use common::Stream;
use common::{
    ATTACKER, CUSTOMER, HOST, OTHER, TestNet, Traffic, Weir, addr, all_arrived, skipped, soon,
    stack_counted,
};
use weir_netlab::Side;
use weir_testkit::{
    mmdb::{Mmdb, country},
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

fn start(net: &TestNet) -> (Weir, TcpServer) {
    let weir = Weir::start(&net.host, CONFIG);
    for who in ATTACKER {
        weir.ask(&["ban", who, "--for", "1h"]).done();
    }
    let any = SocketAddr::new(addr("::"), PORT);
    (weir, TcpServer::start(&net.host, any, b"").unwrap())
}

#[track_caller]
fn judges(weir: &Weir, place: &str) {
    soon(&format!("eth0 to be judged {place}"), || {
        weir.attachment("eth0").1.contains(place).then_some(())
    });
}

#[track_caller]
fn enforces(net: &TestNet) {
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
}

/// Packets that pass are counted once, whoever judges them, and dropped ones.
#[track_caller]
fn counts_once(net: &TestNet, weir: &Weir) {
    const SENT: u64 = 200;
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), 5353);
        let server = UdpServer::start(&net.host, to).unwrap();
        for (who, reason) in [(CUSTOMER, "pass"), (ATTACKER, "banned-all")] {
            let before = weir.packets(reason);
            let received = server.received();
            let who = addr(who[family]);
            let sent = udp_send(&net.internet, Some(who), to, b"x", SENT).unwrap();
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
    let net = TestNet::new();
    let (mut weir, _server) = start(&net);
    judges(&weir, AT_INGRESS);
    enforces(&net);
    counts_once(&net, &weir);

    // Filters there may send packets past ingress.
    let qdisc = |verb| {
        let args = ["qdisc", verb, "dev", "eth0", "clsact"];
        net.host.run("tc", &args).unwrap();
    };
    qdisc("add");
    judges(&weir, IN_PREROUTING);
    enforces(&net);
    counts_once(&net, &weir);
    qdisc("del");
    judges(&weir, AT_INGRESS);
    enforces(&net);
    counts_once(&net, &weir);

    // Somebody takes the chain of the interface away.
    let chain = format!("ingress-{}", net.host.ifindex("eth0").unwrap());
    let table = format!("weir_{}", weir.instance);
    net.host
        .run("nft", &["delete", "chain", "inet", &table, &chain])
        .unwrap();
    soon("the chain to be back", || {
        let list = ["list", "chain", "inet", &table, &chain];
        net.host.run("nft", &list).is_ok().then_some(())
    });
    enforces(&net);
    counts_once(&net, &weir);

    weir.kill();
    enforces(&net);
    weir.run();
    judges(&weir, AT_INGRESS);
    counts_once(&net, &weir);
}

#[test]
fn root_nft_covers_an_interface_that_is_made_again() {
    if skipped(&["nft"]) {
        return;
    }
    let mut net = TestNet::new();
    let (mut weir, _server) = start(&net);
    for _ in 0..2 {
        judges(&weir, AT_INGRESS);
        net.veth.delete().unwrap();
        soon("the interface to be missed", || {
            let note = weir.attachment("eth0").1;
            note.contains("no such interface").then_some(())
        });
        net.veth.create().unwrap();
        // From its first packet on.
        enforces(&net);
        judges(&weir, AT_INGRESS);
        enforces(&net);
        counts_once(&net, &weir);
    }
    assert!(!weir.said().contains("somebody has changed"));
    // Nobody is there to see it: prerouting goes by the name.
    weir.kill();
    net.veth.delete().unwrap();
    net.veth.create().unwrap();
    enforces(&net);
    weir.run();
    judges(&weir, AT_INGRESS);
    enforces(&net);
    counts_once(&net, &weir);
}

/// A device that the kernel gives one of the two chains that it is to have, here for
/// want of room for hooks: it has none then, and prerouting judges.
#[test]
fn root_nft_covers_a_device_by_both_chains_or_by_none() {
    if skipped(&["nft"]) {
        return;
    }
    /// `MAX_HOOK_COUNT` of the kernel's net/netfilter/core.c.
    const MOST: usize = 1024;
    let net = TestNet::new();
    let theirs: String = (0..MOST - 1)
        .map(|n| {
            format!("chain c{n} {{ type filter hook ingress device eth0 priority {n}; policy accept; }}\n")
        })
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("table netdev theirs {{ {theirs} }}")).unwrap();
    let path = file.path().display().to_string();
    net.host.run("nft", &["-f", &path]).unwrap();

    let (mut weir, _server) = start(&net);
    judges(&weir, IN_PREROUTING);
    let table = format!("weir_{}", weir.instance);
    for _ in 0..2 {
        let said = net
            .host
            .output("nft", &["list", "chains", "netdev"])
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let ours = said
            .lines()
            .filter(|line| line.contains("ingress-"))
            .count();
        assert_eq!(ours, 0, "a chain is left behind in {table}");
        enforces(&net);
        weir.kill();
        weir.run();
    }
    assert!(
        !weir.said().contains("somebody has changed"),
        "{}",
        weir.said()
    );

    // With room, it has both.
    net.host
        .run("nft", &["delete", "table", "netdev", "theirs"])
        .unwrap();
    weir.kill();
    weir.run();
    judges(&weir, AT_INGRESS);
    enforces(&net);
    counts_once(&net, &weir);
}

/// What the IP stack does not get from this device: frames with a tag, of which
/// the configuration names only the interface below.
#[test]
fn root_nft_sees_what_prerouting_does_not() {
    if skipped(&["nft"]) {
        return;
    }
    const SENT: u64 = 5;
    let net = TestNet::new();
    let (weir, _server) = start(&net);
    judges(&weir, AT_INGRESS);
    for family in [0, 1] {
        let before = weir.packets("banned-all");
        let frame = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A))
            .vlan(7)
            .ip(addr(ATTACKER[family]), addr(HOST[family]))
            .udp(40022, PORT)
            .pad()
            .build();
        let frames = (0..SENT).map(|_| frame.as_slice());
        let sent = send_frames(&net.internet, "eth0", frames).unwrap();
        assert_eq!(sent, SENT);
        soon("them to be dropped", || {
            (weir.packets("banned-all") == before + SENT).then_some(())
        });
    }
}

/// nftables drops them at ingress before any rule, as the IP stack would have
/// done, and it is the kernel that counts them.
#[test]
fn root_nft_leaves_malformed_packets_to_the_kernels_counter() {
    if skipped(&["nft"]) {
        return;
    }
    const SENT: u64 = 5;
    let net = TestNet::new();
    let (weir, _server) = start(&net);
    judges(&weir, AT_INGRESS);
    let errors = |family| stack_counted(&net, &[["Ip:InHdrErrors", "Ip6InHdrErrors"][family]]);
    for family in [0, 1] {
        let (before, banned) = (errors(family), weir.packets("banned-all"));
        let packet = Packet::eth_between(net.veth.mac(Side::B), net.veth.mac(Side::A))
            .ip(addr(ATTACKER[family]), addr(HOST[family]))
            .udp(40022, PORT);
        let frame = packet.version(7).pad().build();
        let frames = (0..SENT).map(|_| frame.as_slice());
        assert_eq!(send_frames(&net.internet, "eth0", frames).unwrap(), SENT);
        soon("them to be counted", || {
            (errors(family) == before + SENT).then_some(())
        });
        assert_eq!(weir.packets("banned-all"), banned);
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
    let net = TestNet::new();
    let (weir, _server) = start(&net);
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
        let sent = udp_send(&net.internet, Some(addr(who)), to, &[7; 100], SENT);
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
        assert!(!net.connects(who, at(family)));
        assert!(weir.packets("banned-all") > after[2]);
        net.serves(CUSTOMER[family], at(family));
    }
}

/// Fixed attackers and some more ranges each time: lists and places that change.
struct Lists {
    list: PathBuf,
    turn: u32,
}

impl Lists {
    const RANGES: u32 = 4000;

    fn new(weir: &Weir) -> Self {
        let mut new = Self {
            list: weir.path("bad.txt"),
            turn: 0,
        };
        new.change();
        new
    }

    fn change(&mut self) {
        self.turn += 1;
        let listed = [ATTACKER, CUSTOMER].concat();
        let mut text: String = listed.iter().map(|who| format!("{who}\n")).collect();
        // Of documentation's and tests' networks, none of them a sender.
        for n in 0..Self::RANGES {
            let (a, b) = (n >> 8, n & 255);
            let turn = self.turn & 63;
            text += &format!(
                "198.19.{}.{b}\n2001:db8:f00:{n:x}::{turn:x}\n",
                (a + turn) & 255
            );
        }
        let new = self.list.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.list).unwrap();
    }
}

/// A list changes, the geofence changes, the daemon dies and starts again: not
/// one packet of whom both versions deny comes through.
#[test]
fn root_nft_lists_hold_while_they_change() {
    if skipped(&["nft"]) {
        return;
    }
    const CHANGES: u32 = 25;
    const KILLS: u32 = 15;
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let mut lists = Lists::new(&weir);
    let places = Mmdb::new("Test-Country")
        .with("198.51.100.0/24", country("RU", "EU"))
        .with("2001:db8:bad::/48", country("RU", "EU"))
        .build();
    fs::write(weir.path("places.mmdb"), places).unwrap();
    let config = |fence: &str| {
        format!(
            "{CONFIG}allow = {CUSTOMER:?}\n[geofence]\ndatabase = {:?}\ndeny = [{fence}]\n[list.bad]\nfile = {:?}\n",
            weir.path("places.mmdb"),
            weir.path("bad.txt")
        )
    };
    let fences = ["\"country:RU\"", "\"country:RU\", \"country:NA\""].map(config);
    weir.configure(&fences[0]);
    weir.run();
    let udp = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
    let _shop = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT + 1)).unwrap();
    let traffic = Traffic::default();
    traffic.flows(&net, PORT, || {
        let more = || {
            let before = traffic.denied.load(Ordering::Relaxed);
            soon("more packets", || {
                (traffic.denied.load(Ordering::Relaxed) > before + 200).then_some(())
            });
        };
        let in_force = |weir: &Weir, turn: u32| {
            let mark = format!("2001:db8:f00::{:x}", turn & 63);
            soon("the new list", || {
                (weir.why(&mark)["verdict"] == "listed").then_some(())
            });
        };
        for turn in 0..CHANGES {
            lists.change();
            in_force(&weir, lists.turn);
            if turn % 5 == 0 {
                weir.configure(&fences[(turn / 5 % 2) as usize]);
                weir.ask(&["reload"]).done();
            }
            more();
            assert_eq!(udp.received(), 0, "change {turn}: a denied packet passed");
        }
        for turn in 0..KILLS {
            weir.kill();
            if turn % 3 == 0 {
                lists.change();
            }
            more();
            weir.run();
            more();
            assert_eq!(udp.received(), 0, "kill {turn}: a denied packet passed");
        }
    });
    println!("{:?} denied packets, none passed", traffic.denied);
    // The allow list wins all the time: of the customers, who are on the list,
    // every packet came.
    all_arrived(&net, traffic.customers.into_inner());
    weir.stop();
    weir.detach().done();
    let left = net.host.output("nft", &["list", "tables"]).unwrap();
    assert!(left.stdout.is_empty(), "{left:?}");
}

/// Killed between its transactions it leaves the denied denied, and the next
/// start takes away what lies about.
#[cfg(feature = "fault-points")]
#[test]
fn root_sigkill_between_the_transactions_of_nft() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let mut lists = Lists::new(&weir);
    weir.configure(&format!("{CONFIG}[list.bad]\nfile = {:?}\n", lists.list));
    weir.run();
    for who in OTHER {
        weir.ask(&["ban", who]).done();
    }
    let udp = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
    let tables = |weir: &Weir| {
        let said = net.host.output(
            "nft",
            &["list", "table", "inet", &format!("weir_{}", weir.instance)],
        );
        let sets = String::from_utf8(said.unwrap().stdout).unwrap();
        let sets = ["map ranges-", "set allow"].map(|set| sets.matches(set).count());
        // Beside the one of netdev.
        let said = net.host.output("nft", &["list", "tables", "inet"]);
        (
            String::from_utf8(said.unwrap().stdout)
                .unwrap()
                .lines()
                .count(),
            sets,
        )
    };
    let whole = (1, [2, 2]);
    assert_eq!(tables(&weir), whole);
    Stream::beside(&net, &[ATTACKER, OTHER].concat(), PORT, |sent| {
        for point in [
            "nft-standby-filled",
            "nft-standing-by",
            "nft-filled",
            "nft-before-standing-down",
            "nft-lists-after-transaction-1",
            "nft-lists-after-transaction-2",
            "nft-allow-after-transaction-1",
            "nft-allow-after-transaction-2",
        ] {
            weir.stop();
            let before = tables(&weir);
            weir.launch(Some(point));
            if point.contains("transaction") {
                soon("the daemon", || {
                    (weir.ask(&["status"]).code != Some(2)).then_some(())
                });
                match point.contains("lists") {
                    true => lists.change(),
                    // It does not live to answer.
                    false => {
                        let who = format!("203.0.113.10{}", &point[point.len() - 1..]);
                        weir.ask(&["allow", "add", &who]);
                    }
                }
            }
            let status = weir.ended();
            assert_eq!(status.code(), None, "{point}: {status}");
            assert_ne!(tables(&weir), before, "{point}: nothing was begun");
            let seen = sent.load(Ordering::Relaxed);
            soon("more packets", || {
                (sent.load(Ordering::Relaxed) > seen + 200).then_some(())
            });
            weir.run();
            assert_eq!(tables(&weir), whole, "{point}: something is left");
            assert_eq!(udp.received(), 0, "{point}: a denied packet passed");
        }
        // Without lists it is taken away as well, and by `weir detach`.
        for again in [true, false] {
            weir.stop();
            weir.launch(Some("nft-standing-by"));
            weir.ended();
            assert_eq!(tables(&weir).0, 2);
            if again {
                weir.configure(CONFIG);
                weir.run();
                assert_eq!(tables(&weir), (1, [0, 2]));
                weir.configure(&format!("{CONFIG}[list.bad]\nfile = {:?}\n", lists.list));
                weir.ask(&["reload"]).done();
            }
        }
        weir.detach().done();
        assert_eq!(tables(&weir), (0, [0, 0]));
    });
}

/// The daemon's faults, and what makes it write its table anew: a suspended machine.
#[cfg(feature = "fault-points")]
struct Faults {
    refuse: PathBuf,
    slept: PathBuf,
    seconds: u32,
}

#[cfg(feature = "fault-points")]
impl Faults {
    /// In the daemon's environment from its next start on.
    fn of(weir: &mut Weir) -> Self {
        let [refuse, slept] = ["refuse", "slept"].map(|name| weir.path(name));
        weir.env = vec![
            ("WEIR_FAULT_REFUSE", refuse.display().to_string()),
            ("WEIR_FAULT_SLEPT", slept.display().to_string()),
        ];
        Self {
            refuse,
            slept,
            seconds: 0,
        }
    }

    fn refuse(&self, what: &str) {
        fs::write(&self.refuse, what).unwrap();
    }

    fn make_anew(&mut self) {
        self.seconds += 10;
        let new = self.slept.with_extension("new");
        fs::write(&new, self.seconds.to_string()).unwrap();
        fs::rename(new, &self.slept).unwrap();
    }
}

/// The handle of our table, another one for each that is made anew; and whether
/// packets come to it, and to the one that stands by.
#[cfg(feature = "fault-points")]
fn table_and_chains(net: &TestNet, weir: &Weir) -> (Option<u64>, [bool; 2]) {
    let said = net
        .host
        .output("nft", &["-j", "-a", "list", "tables"])
        .unwrap();
    let tables: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let tables = tables["nftables"].as_array().unwrap();
    let name = format!("weir_{}", weir.instance);
    let of_inet =
        |t: &&serde_json::Value| t["table"]["family"] == "inet" && t["table"]["name"] == name;
    let handle = tables
        .iter()
        .find(of_inet)
        .and_then(|t| t["table"]["handle"].as_u64());
    let is_led_to = |table: &str| {
        let list = ["list", "chain", "inet", table, "in"];
        net.host.output("nft", &list).unwrap().status.success()
    };
    let chains = [name.clone(), format!("{name}.standby")].map(|table| is_led_to(&table));
    (handle, chains)
}

/// The table cannot be led to after it was filled: what stands by enforces as long,
/// goes afterwards, and what it dropped is counted once.
#[cfg(feature = "fault-points")]
#[test]
fn root_nft_stands_by_until_the_table_is_whole() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let mut faults = Faults::of(&mut weir);
    weir.run();
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
    let udp = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
    let sent = Stream::beside(&net, &ATTACKER, PORT, |sent| {
        for turn in 0..3 {
            faults.refuse("nft-lead");
            faults.make_anew();
            soon("the table that stands by to be all there is", || {
                (table_and_chains(&net, &weir).1 == [false, true]).then_some(())
            });
            let before = sent.load(Ordering::Relaxed);
            soon("more packets", || {
                (sent.load(Ordering::Relaxed) > before + 2000).then_some(())
            });
            faults.refuse("");
            soon("the table to be whole", || {
                (table_and_chains(&net, &weir).1 == [true, false]).then_some(())
            });
            assert_eq!(udp.received(), 0, "turn {turn}: a banned packet passed");
        }
    });
    let counted = weir.packets("banned-all");
    println!("{sent} banned packets, {counted} counted");
    assert!(counted <= sent, "{counted} counted of {sent}");
    assert!(counted > 3 * 2000, "{counted} counted of {sent}");
}

/// The table that stands by follows each ban that comes or goes, and counts on.
#[cfg(feature = "fault-points")]
#[test]
fn root_nft_what_stands_by_follows_changes() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let mut faults = Faults::of(&mut weir);
    weir.run();
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
    let _tcp = TcpServer::start(&net.host, SocketAddr::new(addr("::"), PORT), b"").unwrap();
    let stands_by = || {
        soon("the table that stands by to be all there is", || {
            (table_and_chains(&net, &weir).1 == [false, true]).then_some(())
        });
    };
    faults.refuse("nft-lead");
    faults.make_anew();
    stands_by();
    const SENT: u64 = 100;
    let from = Some(addr(ATTACKER[0]));
    udp_send(&net.internet, from, at(0), b"x", SENT).unwrap();
    // Each change ends in an error, for the table itself cannot be led to.
    for family in [0, 1] {
        weir.ask(&["ban", OTHER[family]]);
        weir.ask(&["unban", ATTACKER[family]]);
        weir.ask(&["allow", "add", CUSTOMER[family]]);
    }
    let in_force = || {
        for family in [0, 1] {
            assert!(!net.connects(OTHER[family], at(family)));
            net.serves(ATTACKER[family], at(family));
            net.serves(CUSTOMER[family], at(family));
        }
    };
    in_force();
    stands_by();
    faults.refuse("");
    soon("the table to be whole", || {
        (table_and_chains(&net, &weir).1 == [true, false]).then_some(())
    });
    let counted = weir.packets("banned-all");
    assert!(counted >= SENT, "{counted} of {SENT} counted");
    in_force();
}

/// Without room for a table that stands by, the new one is filled and led to in one
/// transaction: nothing is open between the two.
#[cfg(feature = "fault-points")]
#[test]
fn root_nft_leaves_no_moment_open_where_nothing_can_stand_by() {
    if skipped(&["nft"]) {
        return;
    }
    const TURNS: u32 = 20;
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let mut faults = Faults::of(&mut weir);
    faults.refuse("nft-standby");
    weir.run();
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
    let udp = UdpServer::start(&net.host, SocketAddr::new(addr("::"), PORT)).unwrap();
    let sent = Stream::beside(&net, &ATTACKER, PORT, |_| {
        for turn in 0..TURNS {
            let (before, _) = table_and_chains(&net, &weir);
            faults.make_anew();
            soon("the table to be another one", || {
                let (now, chains) = table_and_chains(&net, &weir);
                (now != before && chains == [true, false]).then_some(())
            });
            println!("turn {turn}: {} passed so far", udp.received());
        }
    });
    let passed = udp.received();
    println!("{passed} of {sent} passed");
    // Two transactions let hundreds pass, one nearly none: what is between two chains
    // of one priority when it is carried out.
    assert!(passed < 10, "{passed} of {sent} banned packets passed");
    assert!(weir.said().contains("may pass while"), "{}", weir.said());
}

/// Debian's `nft` lists all of the table, as text and as JSON, and finds every
/// type that it names.
#[test]
fn root_nft_lists_our_table_itself() {
    if skipped(&["nft"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "");
    let lists = Lists::new(&weir);
    let places = Mmdb::new("Test-Country")
        .with("198.51.100.0/24", country("RU", "EU"))
        .with("2001:db8:bad::/48", country("RU", "EU"))
        .build();
    fs::write(weir.path("places.mmdb"), places).unwrap();
    weir.configure(&format!(
        "{CONFIG}allow = {CUSTOMER:?}\n[geofence]\ndatabase = {:?}\ndeny = [\"country:RU\"]\n\
         direction = \"both\"\n[list.bad]\nfile = {:?}\nports = [\"22/tcp\", \"5353\"]\n",
        weir.path("places.mmdb"),
        lists.list
    ));
    weir.run();
    for family in [0, 1] {
        let wide = ["198.18.0.0/20", "2001:db8:c::/64"][family];
        for subject in [ATTACKER[family], wide] {
            weir.ask(&["ban", subject, "--for", "1h"]).done();
            weir.ask(&["ban", subject, "--port", "25/tcp", "--reject"])
                .done();
        }
        // A flow that is remembered.
        let to = SocketAddr::new(addr(OTHER[family]), 53);
        udp_send(&net.host, None, to, b"?", 1).unwrap();
    }
    judges(&weir, AT_INGRESS);
    for args in [
        &["list", "ruleset"][..],
        &["-s", "list", "ruleset"],
        &["-n", "list", "ruleset"],
        &["-j", "list", "ruleset"],
        &["list", "sets"],
        &["list", "maps"],
    ] {
        let said = net.host.output("nft", args).unwrap();
        let [out, err] = [said.stdout, said.stderr].map(|b| String::from_utf8(b).unwrap());
        assert!(
            said.status.success() && err.is_empty(),
            "nft {args:?}: {err}"
        );
        for name in [
            "covered",
            "interfaces",
            "with-ports",
            "allow4",
            "bans4-32-sure",
            "bans6-",
            "begun-out4",
        ] {
            let of_maps = args[1..] == ["maps"];
            assert!(of_maps || out.contains(name), "nft {args:?}: no {name}");
        }
        assert!(
            args[1..] == ["sets"] || out.contains("ranges-in6"),
            "nft {args:?}"
        );
        assert!(!out.contains("unknown"), "nft {args:?}: {out}");
        if args[0] == "-j" {
            let all: serde_json::Value = serde_json::from_str(&out).unwrap();
            let all = all["nftables"].as_array().unwrap();
            let covered = all.iter().find(|o| o["set"]["name"] == "covered").unwrap();
            assert_eq!(covered["set"]["type"], "iface_index", "{covered}");
            assert_eq!(covered["set"]["elem"], serde_json::json!(["eth0"]));
        }
    }
}

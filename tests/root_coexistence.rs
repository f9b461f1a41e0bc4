//! Other people's programs on the same interface: those on the tcx hook keep
//! running, keep their order, get what weir passes, and stay when weir goes;
//! where they leave no room, weir takes the next hook or none. The others here
//! are loaded by the test, most of them packet paths with tables and counters
//! of their own, which tell what reached them.

mod common;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    path::Path,
    process::Command,
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, TestNet, Weir, addr, skipped, soon};
use libbpf_rs::ObjectBuilder;
use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Options, Slot,
    attachment::{Hook, Link},
    small_maps,
    table::NEVER,
};
use weir_core::{Prefix, Reason};
use weir_testkit::traffic::{UdpServer, udp_send};

const PORT: u16 = 8080;

fn config(backend: &str) -> String {
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"{backend}\"\n[jail.sshd]\npaths = [\"{{log}}\"]\nmax_retry = 1\n"
    )
}

/// Somebody else's program, at the head of the chain when it is attached.
struct Other {
    generation: Generation,
    link: Link,
}

impl Other {
    fn attach(net: &TestNet, seed: u64) -> Self {
        Self::attach_to(net, "eth0", Hook::Tcx, seed)
    }

    fn attach_to(net: &TestNet, interface: &str, hook: Hook, seed: u64) -> Self {
        let options = Options {
            seed: [seed, seed + 1, seed + 2],
            ..Options::bans(Geometry::for_bans(BanCounts::each(100)))
        };
        let generation = Generation::create(1, &options, None).unwrap();
        let index = net.host.ifindex(interface).unwrap();
        let link = net
            .host
            .enter(|| Link::attach(generation.program(hook).unwrap(), index, hook))
            .unwrap()
            .unwrap();
        Self { generation, link }
    }

    /// Drops these by its own table.
    fn bans(&self, who: [&str; 2]) {
        for who in who {
            let slot = Slot {
                key: Key::of(Prefix::host(addr(who))).unwrap(),
                policy: 1,
                expiry: NEVER,
            };
            self.generation.table.insert(slot);
        }
    }

    /// (passed on, dropped), in packets.
    fn counts(&self) -> (u64, u64) {
        let counts = small_maps::read_counters(&self.generation.counters).unwrap();
        let of = |wanted: Reason| {
            let reasons = Reason::ALL.into_iter().zip(&counts);
            reasons
                .filter(|(reason, _)| *reason == wanted)
                .map(|(_, (packets, _))| *packets)
                .sum()
        };
        (of(Reason::Pass), of(Reason::BannedAll))
    }

    fn id(&self) -> u32 {
        self.link.target().unwrap().1
    }

    fn is_attached(&self) -> bool {
        is_attached(&self.link)
    }
}

fn is_attached(link: &Link) -> bool {
    link.target().is_ok_and(|(ifindex, _)| ifindex != 0)
}

/// What became of ten datagrams from each of both families: how many were
/// received, and what each of the others saw of them.
fn fate(net: &TestNet, servers: &[UdpServer; 2], others: &[&Other], who: [&str; 2]) -> Fate {
    let received = || servers.iter().map(UdpServer::received).sum::<u64>();
    let before = (
        received(),
        others.iter().map(|o| o.counts()).collect::<Vec<_>>(),
    );
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), PORT);
        let from: Option<IpAddr> = Some(addr(who[family]));
        assert_eq!(udp_send(&net.internet, from, to, b"x", 10).unwrap(), 10);
    }
    // Behind them on the same wire, and answered: they have been judged.
    for family in [0, 1] {
        let to = SocketAddr::new(addr(HOST[family]), PORT);
        let from = Some(addr(CUSTOMER[family]));
        weir_testkit::traffic::udp_request(&net.internet, from, to, b"last", common::SOON).unwrap();
    }
    let sentinels = 2;
    Fate {
        received: received() - before.0 - sentinels,
        seen: others
            .iter()
            .zip(before.1)
            .map(|(other, before)| {
                let now = other.counts();
                // The sentinels pass, and may meet neighbour discovery.
                (now.0 - before.0 >= 20 + sentinels, now.1 - before.1)
            })
            .collect(),
    }
}

/// `seen`: did it pass all twenty on, and how many did it drop?
#[derive(Debug, PartialEq, Eq)]
struct Fate {
    received: u64,
    seen: Vec<(bool, u64)>,
}

fn all(others: usize) -> Fate {
    Fate {
        received: 20,
        seen: vec![(true, 0); others],
    }
}

#[test]
fn root_other_tcx_programs_keep_running_and_their_order() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let servers =
        HOST.map(|host| UdpServer::start(&net.host, SocketAddr::new(addr(host), PORT)).unwrap());
    // The chain as it is before weir comes: early, late. Late has a ban.
    let late = Other::attach(&net, 1);
    late.bans(OTHER);
    let early = Other::attach(&net, 5);
    let others = [&early, &late];
    let fate = |who| fate(&net, &servers, &others, who);
    assert_eq!(fate(CUSTOMER), all(2));

    let mut weir = Weir::start(&net.host, &config("tcx"));
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
    let behind_weir = || {
        // What weir drops reaches none of them; what it passes, both: and
        // early before late, for what late drops has passed early.
        let nobody = Fate {
            received: 0,
            seen: vec![(false, 0); 2],
        };
        let dropped_late = Fate {
            received: 0,
            seen: vec![(true, 0), (false, 20)],
        };
        assert_eq!(fate(ATTACKER), nobody);
        assert_eq!(fate(CUSTOMER), all(2));
        assert_eq!(fate(OTHER), dropped_late);
    };
    behind_weir();
    // Growth: another program under weir's link.
    let many = (0..14_000_u32).map(|n| IpAddr::from((0xc612_0000 + n).to_be_bytes()));
    weir.log_failures(many, 1);
    soon("growth", || {
        let usage = weir.json(&["status"])["usage"].clone();
        (usage["generation"].as_u64() > Some(1) && usage["bans"] == 14_002).then_some(())
    });
    behind_weir();
    // A crash, another daemon, another hook and back.
    weir.kill();
    behind_weir();
    weir.run();
    behind_weir();
    weir.configure(&config("xdp"));
    weir.ask(&["reload"]).done();
    behind_weir();
    weir.configure(&config("tcx"));
    weir.ask(&["reload"]).done();
    assert_eq!(weir.attachment("eth0").0, "tcx");
    behind_weir();
    // And gone: they go on, in their order.
    weir.stop();
    weir.detach().done();
    assert!(early.is_attached() && late.is_attached());
    assert_eq!(fate(ATTACKER), all(2));
    assert_eq!(fate(OTHER).seen, [(true, 0), (false, 20)]);
}

#[test]
fn root_a_tcx_program_that_came_later_is_not_displaced() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let servers =
        HOST.map(|host| UdpServer::start(&net.host, SocketAddr::new(addr(host), PORT)).unwrap());
    let mut weir = Weir::start(&net.host, &config("tcx"));
    for who in ATTACKER {
        weir.ask(&["ban", who]).done();
    }
    let first = Other::attach(&net, 1);
    first.bans(OTHER);
    let fate = |who| fate(&net, &servers, &[&first], who);
    let before_weir = |weir: &Weir| {
        // It sees all; what it passes, weir judges.
        let dropped = weir.packets("banned-all");
        let passed = Fate {
            received: 0,
            seen: vec![(true, 0)],
        };
        assert_eq!(fate(ATTACKER), passed);
        assert_eq!(weir.packets("banned-all"), dropped + 20);
        // What it drops, weir never sees.
        let dropped_first = Fate {
            received: 0,
            seen: vec![(false, 20)],
        };
        assert_eq!(fate(OTHER), dropped_first);
        assert_eq!(weir.packets("banned-all"), dropped + 20);
        assert_eq!(fate(CUSTOMER), all(1));
    };
    before_weir(&weir);
    weir.kill();
    weir.run();
    before_weir(&weir);
    weir.stop();
    weir.detach().done();
    assert!(first.is_attached());
    assert_eq!(fate(ATTACKER), all(1));
}

/// Attaches programs that do nothing, until the kernel takes no more.
fn fill_tcx(net: &TestNet, dir: &Path, interface: &str) -> Vec<Link> {
    // BPF_MPROG_MAX is 64.
    let functions = (0..70).map(|n| {
        format!(
            "__attribute__((section(\"tcx/ingress\"))) int next{n}(void *ctx) {{ return -1; }}\n"
        )
    });
    let (source, object) = (dir.join("next.c"), dir.join("next.o"));
    fs::write(&source, functions.collect::<String>()).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-c", "-o"]);
    let compiled = clang.args([&object, &source]).status().unwrap();
    assert!(compiled.success());
    let loaded = ObjectBuilder::default()
        .open_file(&object)
        .and_then(|object| object.load())
        .unwrap();
    let index = net.host.ifindex(interface).unwrap();
    let links = net.host.enter(|| {
        loaded
            .progs()
            .map_while(|program| Link::attach(program.as_fd(), index, Hook::Tcx).ok())
            .collect::<Vec<_>>()
    });
    let links = links.unwrap();
    assert!((50..70).contains(&links.len()), "{} programs", links.len());
    links
}

/// From native XDP to generic to tcx, by who is there already; when all three
/// are taken, it is refused, with the names of who has them.
#[test]
fn root_hooks_are_tried_in_order_and_then_refused() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    // A bridge has no native XDP.
    net.host
        .ip(&["link add br0 type bridge", "link set br0 up"].map(str::to_owned))
        .unwrap();
    let config = config("xdp").replace("eth0", "br0");
    let mut weir = Weir::start(&net.host, &config);
    let (hook, note) = weir.attachment("br0");
    assert_eq!(hook, "xdp-generic", "{note}");
    assert_eq!(note, "xdp: the driver \"bridge\" has no native XDP");
    weir.stop();
    weir.detach().done();

    let generic = Other::attach_to(&net, "br0", Hook::XdpGeneric, 1);
    weir.run();
    let (hook, note) = weir.attachment("br0");
    assert_eq!(hook, "tcx", "{note}");
    let named = format!("(id {}, xdp-generic)", generic.id());
    assert!(note.contains(&named), "{note}");
    weir.stop();
    weir.detach().done();

    let many = fill_tcx(&net, weir.dir.path(), "br0");
    weir.fails().refused(&[
        "cannot protect br0: xdp: ",
        &named,
        "tcx: as many other programs",
    ]);
    assert!(generic.is_attached() && many.iter().all(is_attached));
    drop(many);
    weir.run();
    assert_eq!(weir.attachment("br0").0, "tcx");
    assert!(generic.is_attached());
}

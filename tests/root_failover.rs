//! Ten thousand live TCP connections by two balancers of which VRRP has one active: which
//! of them break when a real dies, one is drained, weights change, the active balancer is
//! killed and comes back. Counted, each with the real that it was at. Questions to name
//! servers by them are in `dns`.

#[path = "common/bind.rs"]
mod bind;
mod common;
#[path = "root_failover/dns.rs"]
mod dns;
#[path = "common/flows.rs"]
mod flows;

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    process::{self, Command},
    time::Instant,
};

use common::{
    Weir, addr,
    lan::{Lan, VIP, has},
    skipped, soon,
};
use flows::{Ends, Flows, NumberServer, count_by_real};
use weir_core::{
    Protocol,
    balance::{maglev, slot},
};
use weir_netlab::Namespace;

const FLOWS: usize = 10_000;
/// The last two are nginx.
const REALS: [u8; 4] = [11, 12, 13, 14];
/// Hosts of 192.0.2.0/24 and 2001:db8::/64 that the client is.
const CLIENTS: [u8; 4] = [100, 101, 102, 103];

fn config(priority: u8) -> String {
    let reals = REALS.map(|number| format!("{{ address = \"192.0.2.{number}\" }}"));
    format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [\"80/tcp\"]\nreals = [{}]\n\
         check = {{ interval = \"1s\", fall = 3, rise = 1 }}\n\
         [vrrp.edge]\nid = 51\npools = [\"web\"]\npriority = {priority}\ninterval = 50\n",
        VIP[0],
        VIP[1],
        reals.join(", ")
    )
}

/// Descriptors that this process needs: one for each flow, and one at a server of it for each
/// that has one here.
const DESCRIPTORS: u64 = FLOWS as u64 * 3 / 2 + 1000;

/// Has this process open as many files as it may; is that enough?
fn raise_descriptors() -> bool {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let hard = line.unwrap().split_whitespace().nth(4).unwrap();
    let most = hard.parse().unwrap_or(u64::MAX).min(65_536);
    let (pid, wanted) = (process::id().to_string(), format!("--nofile={most}:"));
    let status = Command::new("prlimit")
        .args(["--pid", &pid, &wanted])
        .status();
    assert!(status.unwrap().success());
    most >= DESCRIPTORS
}

/// The addresses of the client, each with the virtual one of its family.
fn pairs() -> Vec<(IpAddr, IpAddr)> {
    let of = |number: &u8| {
        [
            (addr(&format!("192.0.2.{number}")), addr(VIP[0])),
            (addr(&format!("2001:db8::{number}")), addr(VIP[1])),
        ]
    };
    CLIENTS.iter().flat_map(of).collect()
}

#[track_caller]
fn live_soon(weirs: [&Weir; 2], count: usize) {
    for weir in weirs {
        soon(&format!("{count} live reals"), || {
            let live = weir.json(&["pool", "list"])["pools"][0]["live"].as_u64();
            (live == Some(count as u64)).then_some(())
        });
    }
}

/// Flows that a balancer has remembered.
fn remembered(weir: &Weir) -> u64 {
    let pool = weir.json(&["pool", "show", "web"]);
    let reals = pool["reals"].as_array().unwrap();
    reals
        .iter()
        .map(|real| real["flows"].as_u64().unwrap())
        .sum()
}

#[track_caller]
fn soon_has_all(host: &Namespace, other: &Namespace) {
    soon("the virtual addresses to be there and nowhere else", || {
        let is_there = VIP.iter().all(|vip| has(host, vip) && !has(other, vip));
        is_there.then_some(())
    });
}

/// Both are told, as an administrator of two hosts would.
fn tell(weirs: [&Weir; 2], args: &[&str]) {
    for weir in weirs {
        weir.ask(args).done();
    }
}

/// Those that a balancer sends elsewhere that has never seen them: the ring of these reals,
/// with their weights, gives their slot to another.
fn elsewhere(flows: &[Ends], weights: &[(u8, u32)]) -> Vec<Ends> {
    let names: Vec<_> = weights
        .iter()
        .map(|(number, _)| format!("192.0.2.{number}"))
        .collect();
    let members: Vec<_> = names
        .iter()
        .zip(weights)
        .map(|(name, (_, weight))| maglev::Member {
            name,
            weight: *weight,
        })
        .collect();
    let slots = weir_bpf::balance::SLOTS;
    let ring = maglev::ring(&members, slots);
    let is_elsewhere = |flow: &&Ends| {
        let slot = slot::of_flow(flow.client, flow.vip, Protocol::Tcp, slots);
        weights[ring[slot]].0 != flow.real
    };
    flows.iter().filter(is_elsewhere).copied().collect()
}

#[test]
fn root_of_ten_thousand_live_flows_none_to_a_healthy_real_breaks() {
    if skipped(&["nginx", "ip", "bridge", "prlimit"]) {
        return;
    }
    if !raise_descriptors() {
        println!("skipped: fewer than {DESCRIPTORS} descriptors (probe: /proc/self/limits)");
        return;
    }
    let begun = Instant::now();
    let note = |what: &str| println!("{:4.1} s: {what}", begun.elapsed().as_secs_f64());
    let mut lan = Lan::new();
    let [one, two] = [("one", 2), ("two", 3)].map(|(name, number)| lan.join(name, number));
    let client = lan.join("client", CLIENTS[0]);
    for number in &CLIENTS[1..] {
        let lines = [
            format!("addr add 192.0.2.{number}/24 dev eth0"),
            format!("addr add 2001:db8::{number}/64 dev eth0 nodad"),
        ];
        client.ip(&lines).unwrap();
    }
    let hosts = REALS[..2]
        .iter()
        .map(|number| lan.real_without_server(*number));
    let hosts: Vec<_> = hosts.collect();
    let servers = hosts.iter().zip(REALS);
    let _servers: Vec<_> = servers
        .map(|(host, n)| NumberServer::start(host, n))
        .collect();
    for number in &REALS[2..] {
        lan.real(*number);
    }
    let mut first = Weir::start(&one, &config(150));
    let second = Weir::start(&two, &config(100));
    live_soon([&first, &second], 4);
    soon_has_all(&one, &two);
    let mut flows = Flows::new(&client);
    let pairs = pairs();
    flows.open(FLOWS, &pairs);
    note(&format!("open, by real: {:?}", flows.by_real()));
    // A fifth of the mean: the deviation is 43.
    assert_eq!(flows.by_real().len(), 4);
    assert!(
        flows
            .by_real()
            .values()
            .all(|n| n.abs_diff(FLOWS / 4) < FLOWS / 20)
    );
    // Of new flows so many are remembered in a second, and all in a few.
    soon("all flows to be remembered", || {
        assert_eq!(flows.ask_all(), []);
        (remembered(&first) >= FLOWS as u64).then_some(())
    });

    note("the active balancer is killed, and comes back");
    let broken = flows.during(|| {
        first.kill();
        soon_has_all(&two, &one);
    });
    assert_eq!(count_by_real(&broken), [].into());
    // It knows them, too, once each had a packet that was remembered.
    soon("all flows to be remembered", || {
        assert_eq!(flows.ask_all(), []);
        (remembered(&second) >= FLOWS as u64).then_some(())
    });
    let broken = flows.during(|| {
        first.run();
        soon_has_all(&one, &two);
        live_soon([&first, &second], 4);
    });
    assert_eq!(count_by_real(&broken), [].into());

    note("a real dies");
    let all: BTreeSet<_> = flows.all().into_iter().collect();
    let mut lost: Vec<_> = all.iter().filter(|flow| flow.real == 12).copied().collect();
    lost.sort_unstable();
    let broken = flows.during(|| {
        hosts[1].ip(&["link set eth0 down".into()]).unwrap();
        live_soon([&first, &second], 3);
    });
    assert_eq!(broken, lost);

    note("one is drained");
    let broken = flows.during(|| tell([&first, &second], &["real", "drain", "web", "192.0.2.13"]));
    assert_eq!(count_by_real(&broken), [].into());
    assert!(flows.by_real()[&13] > FLOWS / 5);
    let before = flows.by_real();
    flows.open(400, &pairs);
    assert_eq!(
        flows.by_real()[&13],
        before[&13],
        "a real that drains has new flows"
    );

    note("weights change");
    let broken = flows.during(|| {
        tell(
            [&first, &second],
            &["real", "weight", "web", "192.0.2.11", "3"],
        )
    });
    assert_eq!(count_by_real(&broken), [].into());
    let before = flows.by_real();
    flows.open(400, &pairs);
    let of_new = flows.by_real()[&11] - before[&11];
    // Three quarters: the deviation is 9.
    assert!((250..350).contains(&of_new), "{of_new} of 400 new flows");

    // The other balancer has seen most flows, and knows these. Those that began since were the
    // first one's only: whose slot has another real by now breaks, and no other does.
    note("the active balancer is killed, and comes back");
    let fresh: Vec<_> = flows
        .all()
        .into_iter()
        .filter(|flow| !all.contains(flow))
        .collect();
    assert_eq!(fresh.len(), 800);
    let expected = elsewhere(&fresh, &[(11, 3), (14, 1)]);
    let broken = flows.during(|| {
        first.kill();
        soon_has_all(&two, &one);
    });
    note(&format!(
        "broken, by real: {:?} of {:?}",
        count_by_real(&broken),
        count_by_real(&fresh)
    ));
    let [broken, expected] = [broken, expected].map(BTreeSet::from_iter);
    let differ: Vec<&Ends> = broken.symmetric_difference(&expected).collect();
    assert!(differ.is_empty(), "{differ:?}");
    assert!(
        !expected.is_empty(),
        "the change of weights has moved no slot"
    );
    let broken = flows.during(|| {
        first.run();
        soon_has_all(&one, &two);
        // The drained one takes no new flows.
        live_soon([&first, &second], 2);
    });
    assert_eq!(count_by_real(&broken), [].into());

    note("the drained real takes flows again, by the weights of the configuration");
    let broken = flows.during(|| {
        tell([&first, &second], &["real", "enable", "web", "192.0.2.13"]);
        tell(
            [&first, &second],
            &["real", "weight", "web", "192.0.2.11", "default"],
        );
    });
    assert_eq!(count_by_real(&broken), [].into());
    note(&format!("open still, by real: {:?}", flows.by_real()));
}

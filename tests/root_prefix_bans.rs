//! Bans of prefixes of any length through the whole daemon: manual and of a
//! jail, IPv4 and IPv6, over restart, crash, growth and a change of
//! `ipv4_length`, to their end; and at their cap.

mod common;

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use common::{CUSTOMER, GATEWAY, HOST, SILENCE, SOON, TestNet, Weir, addr, skipped, soon};
use weir_testkit::traffic::{TcpServer, ping};

const PORT: u16 = 8080;
const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 1\n\
                      ipv6_prefix = 48\n";
/// Prefixes whose length is neither whole bytes nor a /64.
const BANNED: [&str; 2] = ["198.18.128.0/17", "2001:db8:b80::/41"];
const INSIDE: [&str; 2] = ["198.18.200.9", "2001:db8:bad:1::8"];
/// Addresses in the same /16 and /32: where the hint says that a prefix may lie.
const BESIDE: [&str; 2] = ["198.18.100.9", "2001:db8:c:1::8"];

fn at(family: usize) -> SocketAddr {
    SocketAddr::new(addr(HOST[family]), PORT)
}

fn server(net: &TestNet) -> TcpServer {
    TcpServer::start(&net.host, SocketAddr::new(addr("::"), PORT), b"").unwrap()
}

fn pings(net: &TestNet, from: &str, to: usize, time: Duration) -> bool {
    ping(&net.internet, Some(addr(from)), addr(HOST[to]), time).is_ok()
}

/// Whoever is inside is dropped, whoever is beside is served.
#[track_caller]
fn in_force(net: &TestNet) {
    for family in [0, 1] {
        assert!(!net.connects(INSIDE[family], at(family)), "{family}");
        for other in [BESIDE[family], CUSTOMER[family], GATEWAY[family]] {
            net.serves(other, at(family));
        }
    }
}

fn ban_both(weir: &Weir, more: &[&str]) {
    for prefix in BANNED {
        weir.ask(&[&["ban", prefix], more].concat()).done();
    }
}

#[track_caller]
fn prefix_bans(weir: &Weir) -> u64 {
    weir.json(&["status"])["usage"]["prefix_bans"]
        .as_u64()
        .unwrap()
}

#[test]
fn root_a_prefix_of_any_length_is_banned_and_let_in_again() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    let _server = server(&net);
    for (family, prefix) in BANNED.into_iter().enumerate() {
        let (inside, beside) = (INSIDE[family], BESIDE[family]);
        net.serves(inside, at(family));
        let said = weir
            .ask(&["ban", prefix, "--for", "1h", "--reason", "all of them"])
            .done();
        assert!(said.out.contains(prefix), "{said:?}");
        let before = weir.packets("banned-all");
        assert!(!net.connects(inside, at(family)));
        assert!(!pings(&net, inside, family, SILENCE));
        assert!(weir.packets("banned-all") > before);
        net.serves(beside, at(family));
        assert!(pings(&net, beside, family, SOON));
        let why = weir.why(inside);
        assert_eq!(why["verdict"], "banned-all", "{why}");
        assert_eq!(why["bans"][0]["subject"], prefix, "{why}");
        assert_eq!(why["bans"][0]["reason"], "all of them", "{why}");
        assert!(weir.ask(&["why", inside]).done().out.contains(prefix));
        assert_eq!(weir.why(beside)["verdict"], "pass");

        // The allow list wins inside it.
        weir.ask(&["allow", "add", inside]).done();
        net.serves(inside, at(family));
        weir.ask(&["allow", "del", inside]).done();
        assert!(!net.connects(inside, at(family)));

        // Some ports of a part of it do not shadow all ports of all of it.
        let part = ["198.18.192.0/18", "2001:db8:bad::/48"][family];
        weir.ask(&["ban", part, "--port", "22/tcp"]).done();
        assert!(!net.connects(inside, at(family)));
        let why = weir.why(inside);
        assert_eq!(why["bans"].as_array().unwrap().len(), 2, "{why}");
        // Nobody lifts one by the name of another.
        weir.ask(&["unban", inside])
            .says_no(&["itself is not banned", "but", "is"]);
        weir.ask(&["unban", prefix]).done();
        net.serves(inside, at(family));
        weir.ask(&["ban", prefix, "--port", "8080/tcp"]).done();
        assert!(!net.connects(inside, at(family)));
        assert!(pings(&net, inside, family, SOON));
        assert_eq!(weir.why(inside)["verdict"], "banned-scope");
        weir.ask(&["unban", part]).done();
        assert!(!net.connects(inside, at(family)));
        weir.ask(&["unban", prefix]).done();
        net.serves(inside, at(family));
        weir.ask(&["unban", prefix]).says_no(&["is not banned"]);
    }
    assert!(weir.banned().is_empty());
    // A prefix that holds the host and its gateway locks neither out.
    for prefix in ["192.0.2.0/24", "2001:db8::/32"] {
        weir.ask(&["ban", prefix]).done();
    }
    for family in [0, 1] {
        net.serves(GATEWAY[family], at(family));
    }
    assert!(!net.connects(CUSTOMER[1], at(1)));
    net.serves(CUSTOMER[0], at(0));
    weir.ask(&["unban", "--all"]).done();
    net.serves(CUSTOMER[1], at(1));
}

#[test]
fn root_prefix_bans_outlive_the_daemon_and_its_tables() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let _server = server(&net);
    ban_both(&weir, &["--for", "1h"]);
    in_force(&net);
    weir.stop();
    in_force(&net);
    weir.run();
    in_force(&net);
    weir.kill();
    in_force(&net);
    weir.run();
    in_force(&net);
    assert_eq!(weir.banned(), BANNED);

    // Growth makes another generation, which has them too.
    let before = weir.json(&["status"])["usage"]["generation"].clone();
    let others = (0..14_000u32).map(|n| IpAddr::from((0x4000_0000 + n).to_be_bytes()));
    weir.log_failures(others, 1);
    soon("another generation", || {
        (weir.json(&["status"])["usage"]["generation"] != before).then_some(())
    });
    in_force(&net);
    weir.ask(&["unban", BANNED[0]]).done();
    net.serves(INSIDE[0], at(0));
    weir.ask(&["ban", BANNED[0], "--for", "1h"]).done();
    in_force(&net);

    // Without pins the database brings them back, and what is left of them.
    weir.stop();
    weir.detach().done();
    net.serves(INSIDE[0], at(0));
    weir.run();
    in_force(&net);
    for who in INSIDE {
        let why = weir.why(who);
        let left = why["bans"][0]["remaining_seconds"].as_u64().unwrap();
        assert!((3500..=3600).contains(&left), "{why}");
    }
    assert_eq!(prefix_bans(&weir), 2);
}

#[test]
fn root_a_prefix_ban_expires_by_itself() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let _server = server(&net);
    // Longer than it takes to see that both are in force, on a machine that does something else.
    ban_both(&weir, &["--for", "15s"]);
    in_force(&net);
    // Nobody's doing: the daemon is dead.
    weir.kill();
    for family in [0, 1] {
        net.serves_soon(INSIDE[family], at(family));
    }
    weir.run();
    assert!(weir.banned().is_empty());
    ban_both(&weir, &["--for", "15s"]);
    in_force(&net);
    soon("both to be taken out", || {
        (prefix_bans(&weir) == 0).then_some(())
    });
    for family in [0, 1] {
        net.serves(INSIDE[family], at(family));
    }
}

#[test]
fn root_another_ipv4_length_keeps_the_bans_of_the_old_one() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let _server = server(&net);
    // Each of them is of the length that the table holds at one of the starts.
    let lengths = [
        (Some(24), 1, "198.18.200.0/24"),
        (None, 3, "198.18.0.0/16"),
        (Some(16), 3, "198.18.192.0/18"),
        (Some(24), 3, "198.18.200.9"),
    ];
    let mut banned = Vec::new();
    for (length, other, subject) in lengths {
        let length = length.map_or(String::new(), |n| format!("ipv4_length = {n}\n"));
        weir.configure(&format!("{length}{CONFIG}"));
        weir.run();
        if banned.is_empty() {
            weir.ask(&["ban", "198.18.128.0/17"]).done();
            banned.push("198.18.128.0/17");
        }
        weir.ask(&["ban", subject]).done();
        banned.push(subject);
        let mut listed = weir.banned();
        let mut expected = banned.clone();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        assert_eq!(prefix_bans(&weir), other);
        assert!(!net.connects(INSIDE[0], at(0)));
        net.serves(CUSTOMER[0], at(0));
        weir.stop();
    }
    weir.run();
    for subject in banned {
        assert!(!net.connects(INSIDE[0], at(0)), "{subject}");
        weir.ask(&["unban", subject]).done();
    }
    net.serves(INSIDE[0], at(0));
}

const CAP: u32 = weir_bpf::abi::MAX_PREFIX_BANS;
/// The cap on prefix bans that are not manual.
const SHARE: u32 = 7168;

#[test]
fn root_a_jail_bans_by_48_up_to_the_cap() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    let _server = server(&net);
    // One failure from the /48 bans all of it.
    weir.log_failures([addr("2001:db8:bad:7::7")], 1);
    soon("the ban of a /48", || {
        (weir.banned() == ["2001:db8:bad::/48"]).then_some(())
    });
    assert!(!net.connects(INSIDE[1], at(1)));
    net.serves(BESIDE[1], at(1));
    let why = weir.why(INSIDE[1]);
    assert_eq!(why["bans"][0]["producer"], "jail:sshd", "{why}");

    // Manual ones first: those stay.
    weir.ask(&["ban", BANNED[0]]).done();
    let nth = |n: u32| IpAddr::from(Ipv6Addr::from(0x2a00_u128 << 112 | u128::from(n) << 80 | 7));
    weir.log_failures((0..SHARE - 1).map(nth), 1);
    soon("as many as there is room for", || {
        (prefix_bans(&weir) == u64::from(SHARE + 1)).then_some(())
    });
    assert_eq!(weir.json(&["status"])["usage"]["evicted"], 0);
    weir.log_failures((SHARE - 1..SHARE + 7).map(nth), 1);
    soon("eight evictions", || {
        (weir.json(&["status"])["usage"]["evicted"] == 8).then_some(())
    });
    let status = weir.json(&["status"]);
    assert_eq!(status["usage"]["prefix_bans"], SHARE + 1, "{status}");
    assert_eq!(status["usage"]["max_prefix_bans"], CAP, "{status}");
    assert_eq!(status["usage"]["shared_prefix_bans"], SHARE, "{status}");
    let alerts = status["alerts"].as_array().unwrap();
    assert!(
        alerts.len() == 1 && alerts[0].to_string().contains("7168 bans of prefixes"),
        "{status}"
    );
    let told = "unban 2001:db8:bad::/48, jail sshd: evicted";
    soon(told, || weir.said().contains(told).then_some(()));
    net.serves(INSIDE[1], at(1));
    assert!(!net.connects(INSIDE[0], at(0)));
    // The rest is kept for manual ones, of either family. For one more nothing is
    // evicted: it is said. Bans of addresses have room.
    let kept = (SHARE + 1..CAP).map(|n| match n % 2 {
        0 => format!("11.{}.{}.0/25", n >> 8, n & 255),
        _ => format!("2b00:{n:x}::/48"),
    });
    let kept: Vec<_> = std::iter::once("ban".to_owned()).chain(kept).collect();
    let kept: Vec<_> = kept.iter().map(String::as_str).collect();
    weir.ask(&kept).done();
    assert_eq!(prefix_bans(&weir), u64::from(CAP));
    weir.ask(&["ban", "203.0.112.0/20"])
        .refused(&["8192 bans of prefixes", "unban"]);
    weir.ask(&["ban", CUSTOMER[0]]).done();
    assert!(!net.connects(CUSTOMER[0], at(0)));
    // So is what would be too many on one address.
    weir.ask(&["unban", "--all"]).done();
    for length in 9..17 {
        let prefix = format!("{}/{length}", IpAddr::from([64, 0, 0, 0]));
        weir.ask(&["ban", &prefix]).done();
    }
    weir.ask(&["ban", "64.0.0.0/20"])
        .refused(&["64.0.0.0/20", "more than 8 bans", "lift some"]);
    assert_eq!(weir.banned().len(), 8);
}

#[cfg(feature = "fault-points")]
mod at_fault_points {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Killed when the covering ban is written and those that it covers do not
    /// know of it yet: who takes over tells them.
    #[test]
    fn root_sigkill_between_the_writes_of_a_prefix_ban() {
        if skipped(&[]) {
            return;
        }
        let net = TestNet::new();
        let mut weir = Weir::start(&net.host, CONFIG);
        let _server = server(&net);
        for part in ["198.18.200.0/24", "2001:db8:bad::/48"] {
            weir.ask(&["ban", part, "--port", "22/tcp"]).done();
        }
        for (family, prefix) in BANNED.into_iter().enumerate() {
            weir.stop();
            weir.launch(Some("prefix-bans-between-writes"));
            soon("the daemon to answer, or its end", || {
                (weir.ask(&["status"]).code != Some(2)).then_some(())
            });
            let answer = weir.ask(&["ban", prefix]);
            assert_ne!(answer.code, Some(0), "{answer:?}");
            assert_eq!(weir.ended().signal(), Some(9), "{}", weir.said());
            weir.run();
            assert!(!net.connects(INSIDE[family], at(family)));
            assert_eq!(weir.why(INSIDE[family])["verdict"], "banned-all");
            assert_eq!(weir.banned().len(), 3 + family);
        }
        in_force(&net);
    }
}

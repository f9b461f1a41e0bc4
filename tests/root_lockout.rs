//! Nobody locks the administrator out: where root, and who may become root, is logged
//! in from, and the host's resolvers, no log line and no `weir ban` bans; the former
//! nor for the grace time after the logout. Real sshd writes utmp; then entries made
//! by hand, for what sshd does not write. (Own addresses, gateways: root_config.)

mod common;

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, GATEWAY, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use weir_netlab::FakeHost;
use weir_testkit::{
    sshd::{self, CUSTOMER as ACCOUNT, Outcome, PROGRAMS, SshHost, SshOpts},
    traffic::TcpServer,
};

const GRACE: Duration = Duration::from_secs(10);
/// The daemon looks for logins once in a second, and later on a machine that does something
/// else as well: it has seen the last one so much before its end at most.
const LATE: Duration = Duration::from_secs(5);
const CONFIG: &str = "interfaces = [\"eth0\"]\n[lockout]\ngrace = \"10s\"\n\
                      [jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\nipv6_prefix = 128\n";

/// Fails until it would be banned, and is not, because of these words.
#[track_caller]
fn fails_unharmed(weir: &Weir, who: &str, ignored: u64, because: &str) {
    weir.log_failures([addr(who)], 5);
    soon(&format!("the failures of {who} to be ignored"), || {
        let jail = weir.json(&["status", "sshd"]);
        (jail["ignored"].as_u64() >= Some(ignored + 5)).then_some(())
    });
    assert!(!weir.banned().iter().any(|banned| banned == who), "{who}");
    weir.ask(&["ban", who])
        .refused(&[who, "cannot be banned", because]);
    let why = weir.why(who);
    assert!(
        why["exempt"]["reason"].as_str().unwrap().contains(because),
        "{why}"
    );
}

#[track_caller]
fn bannable_soon(weir: &Weir, who: &str) {
    soon(&format!("{who} to be bannable"), || {
        (weir.ask(&["ban", who]).code == Some(0)).then_some(())
    });
}

/// One host of our own network must not have all others there banned.
#[test]
fn root_a_neighbour_is_banned_alone() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let config = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\n";
    let weir = Weir::start(&net.host, config);
    let everybody_elses = "2001:db8:bad::/64";
    for (who, banned) in [
        ("2001:db8::666", "2001:db8::666"),
        ("fe80::666", "fe80::666"),
        (ATTACKER[1], everybody_elses),
    ] {
        weir.log_failures([addr(who)], 3);
        soon(&format!("the ban of {banned}"), || {
            weir.banned().iter().any(|b| b == banned).then_some(())
        });
    }
    assert_eq!(weir.banned().len(), 3, "{:?}", weir.banned());
    let _server = net.server();
    assert!(!net.connects(ATTACKER[1], common::at(1)));
    net.serves(GATEWAY[1], common::at(1));
}

#[test]
fn root_nobody_bans_where_root_is_logged_in_from() {
    if skipped(&PROGRAMS) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let ssh = SshHost::start(&net.host, &SshOpts::new(weir.path("sshd.log"))).unwrap();
    weir.fake_host = FakeHost::default().instead_of("/run", ssh.run());
    weir.run();
    let at = |family: usize| SocketAddr::new(addr(HOST[family]), ssh.port());
    let mut ignored = 0;
    for family in [0, 1] {
        let (root, customer) = (OTHER[family], CUSTOMER[family]);
        let login = |from: &str, user: &str| {
            let from = Some(addr(from));
            sshd::session(&net.internet, from, at(family), user, &ssh.key()).unwrap()
        };
        let session = login(root, "root");
        let another = login(customer, ACCOUNT);
        soon("root's login to be noticed", || {
            weir.why(root)["exempt"].is_object().then_some(())
        });
        fails_unharmed(
            &weir,
            root,
            ignored,
            "root is, or was within 10s, logged in from it",
        );
        ignored += 5;
        // Anybody else's login protects nobody.
        weir.log_failures([addr(customer)], 3);
        soon("the customer's ban", || {
            weir.banned().iter().any(|b| b == customer).then_some(())
        });
        weir.ask(&["unban", customer]).done();
        // Root's next login comes through.
        let from = Some(addr(root));
        let seen = sshd::login(&net.internet, from, at(family), "root", &ssh.key(), SOON);
        assert_eq!(seen.unwrap(), Outcome::LoggedIn);

        drop((session, another));
        let begun = Instant::now();
        bannable_soon(&weir, root);
        let took = begun.elapsed();
        println!("{root} was bannable {took:?} after the logout");
        assert!(took > GRACE - LATE, "{took:?}");
        assert!(!net.connects(root, at(family)));
    }
}

/// glibc's struct utmp: its size, and where the address is.
const UTMP: (usize, usize) = match cfg!(target_arch = "aarch64") {
    true => (400, 360),
    false => (384, 348),
};
const USER_PROCESS: i16 = 7;
const DEAD_PROCESS: i16 = 8;

fn entry(kind: i16, user: &str, from: &str) -> Vec<u8> {
    let mut entry = vec![0; UTMP.0];
    entry[..2].copy_from_slice(&kind.to_ne_bytes());
    entry[44..44 + user.len()].copy_from_slice(user.as_bytes());
    match addr(from) {
        IpAddr::V4(v4) => entry[UTMP.1..UTMP.1 + 4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => entry[UTMP.1..UTMP.1 + 16].copy_from_slice(&v6.octets()),
    }
    entry
}

#[test]
fn root_a_login_wins_over_a_ban_that_is_there() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    fs::create_dir(weir.path("run")).unwrap();
    weir.fake_host = FakeHost::default().instead_of("/run", weir.path("run"));
    let log_in = |weir: &Weir, kind: i16, who: [&str; 2]| {
        let entries = who.map(|who| entry(kind, "root", who)).concat();
        // A reader sees the old file or the new one.
        fs::write(weir.path("run/utmp.new"), entries).unwrap();
        fs::rename(weir.path("run/utmp.new"), weir.path("run/utmp")).unwrap();
    };
    weir.run();
    let at = |family: usize| SocketAddr::new(addr(HOST[family]), 8080);
    let _server = TcpServer::start(&net.host, SocketAddr::new(addr("::"), 8080), b"").unwrap();
    // Banned first, and by /64 in IPv6: then root comes from there (by the
    // console of a neighbour, say).
    weir.ask(&["ban", ATTACKER[0]]).done();
    weir.ask(&["ban", "2001:db8:bad::/64"]).done();
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
    }
    log_in(&weir, USER_PROCESS, ATTACKER);
    for family in [0, 1] {
        net.serves_soon(ATTACKER[family], at(family));
        assert_eq!(weir.why(ATTACKER[family])["verdict"], "allowed");
        weir.ask(&["ban", ATTACKER[family]]).refused(&["logged in"]);
    }
    // The neighbour in the /64 is not root.
    assert!(!net.connects("2001:db8:bad::8", at(1)));
    // Logged out: after the grace time the old bans hold again.
    log_in(&weir, DEAD_PROCESS, ATTACKER);
    let begun = Instant::now();
    for who in ATTACKER {
        soon(&format!("{who} to be banned again"), || {
            (weir.why(who)["verdict"] == "banned-all").then_some(())
        });
    }
    assert!(begun.elapsed() > GRACE - LATE);
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
    }
    // Nonsense in the file harms nothing.
    fs::write(weir.path("run/utmp"), [7; 1000]).unwrap();
    for who in OTHER {
        weir.ask(&["ban", who]).done();
    }
    // Who does not want the guard turns it off.
    weir.configure(&CONFIG.replace("grace = \"10s\"", "logins = false"));
    weir.ask(&["reload"]).done();
    log_in(&weir, USER_PROCESS, CUSTOMER);
    for who in CUSTOMER {
        weir.ask(&["ban", who]).done();
    }
}

#[test]
fn root_nobody_bans_a_resolver() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let resolv = weir.path("resolv.conf");
    fs::write(
        &resolv,
        CUSTOMER.map(|who| format!("nameserver {who}\n")).concat(),
    )
    .unwrap();
    fs::create_dir(weir.path("run")).unwrap();
    weir.fake_host = FakeHost::default()
        .instead_of("/etc/resolv.conf", &resolv)
        .instead_of("/run", weir.path("run"));
    weir.run();
    for (n, who) in CUSTOMER.into_iter().enumerate() {
        fails_unharmed(&weir, who, 5 * n as u64, "it is a resolver of this host");
    }
    assert!(weir.banned().is_empty());
    // Written in place: the file is mounted, and another would not be seen.
    fs::write(
        &resolv,
        OTHER.map(|who| format!("nameserver {who}\n")).concat(),
    )
    .unwrap();
    for family in [0, 1] {
        bannable_soon(&weir, CUSTOMER[family]);
        weir.ask(&["ban", OTHER[family]]).refused(&["resolver"]);
    }
    assert_eq!(weir.banned().len(), 2);
    // Behind a stub on this host: those that it asks.
    fs::write(&resolv, "nameserver 127.0.0.53\n").unwrap();
    for who in OTHER {
        bannable_soon(&weir, who);
    }
    let behind = weir.path("run/systemd/resolve");
    fs::create_dir_all(&behind).unwrap();
    let real = ATTACKER.map(|who| format!("nameserver {who}\n")).concat();
    fs::write(behind.join("resolv.conf"), real).unwrap();
    for who in ATTACKER {
        soon("the real resolver to be exempt", || {
            let reason = weir.why(who)["exempt"]["reason"].clone();
            let reason = reason.as_str().unwrap_or_default();
            reason
                .contains("/run/systemd/resolve/resolv.conf")
                .then_some(())
        });
    }
}

/// Issue 13, 24: cloud hosts log in as somebody who may become root.
#[test]
fn root_who_may_become_root_is_not_locked_out() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let write = |name: &str, text: &str| {
        fs::write(weir.path(name), text).unwrap();
        weir.path(name)
    };
    let passwd = write(
        "passwd",
        "root:x:0:0::/root:/bin/sh\ndebian:x:1000:1000::/:/bin/sh\neve:x:1001:1001::/:/bin/sh\n",
    );
    let group = write("group", "root:x:0:\nsudo:x:27:debian\n");
    fs::create_dir_all(weir.path("run/systemd/sessions")).unwrap();
    for (session, uid, from) in [
        ("1", 1000, ATTACKER[0]),
        ("2", 1000, ATTACKER[1]),
        ("3", 1001, CUSTOMER[0]),
        ("4", 1001, CUSTOMER[1]),
    ] {
        let text = format!("UID={uid}\nREMOTE=1\nREMOTE_HOST={from}\n");
        fs::write(weir.path("run/systemd/sessions").join(session), text).unwrap();
    }
    weir.fake_host = FakeHost::default()
        .instead_of("/run", weir.path("run"))
        .instead_of("/etc/passwd", passwd)
        .instead_of("/etc/group", group);
    weir.run();
    for (family, who) in ATTACKER.into_iter().enumerate() {
        let because = "debian (of the group sudo) is, or was within 10s, logged in from it";
        fails_unharmed(&weir, who, 5 * family as u64, because);
        weir.ask(&["ban", CUSTOMER[family]]).done();
    }
}

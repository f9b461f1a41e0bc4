//! From a real sshd's log line to a dropped packet and back, over IPv4 and
//! IPv6: ban, unban, expiry, allow list, scopes, two jails on one address, and
//! a user name that is written to look like somebody else's address.

mod common;

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use weir_testkit::{
    sshd::{self, CUSTOMER_PASSWORD, Outcome, PROGRAMS, SshHost, SshOpts, Stamp},
    traffic::TcpServer,
};

/// A net with sshd and weir, and what a test asks of them.
struct Scene {
    weir: Weir,
    sshd: SshHost,
    net: TestNet,
}

impl Scene {
    fn new(stamp: Stamp, config: &str) -> Self {
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, config);
        let mut opts = SshOpts::new(weir.log());
        opts.stamp = stamp;
        let sshd = SshHost::start(&net.host, &opts).unwrap();
        weir.run();
        Self { weir, sshd, net }
    }

    fn ssh(&self, family: usize) -> SocketAddr {
        SocketAddr::new(addr(HOST[family]), self.sshd.port())
    }

    fn guess(&self, family: usize, from: &str, user: &str, password: &str) -> Outcome {
        self.guess_within(family, from, user, password, SOON)
    }

    fn guess_within(
        &self,
        family: usize,
        from: &str,
        user: &str,
        password: &str,
        time: Duration,
    ) -> Outcome {
        let to = self.ssh(family);
        let internet = &self.net.internet;
        sshd::attempt(internet, Some(addr(from)), to, user, password, time).unwrap()
    }

    fn fail(&self, family: usize, from: &str, times: usize) {
        for _ in 0..times {
            assert_eq!(self.guess(family, from, "root", "guess"), Outcome::Denied);
        }
    }

    /// Waits until the jail has counted so many findings.
    #[track_caller]
    fn counted(&self, jail: &str, findings: u64) {
        soon(&format!("{findings} findings of {jail}"), || {
            let jail = self.weir.json(&["status", jail]);
            (jail["findings"].as_u64() >= Some(findings)).then_some(())
        });
    }

    #[track_caller]
    fn banned(&self, who: &str) {
        soon(&format!("the ban of {who}"), || {
            self.weir.banned().iter().any(|b| b == who).then_some(())
        });
    }

    #[track_caller]
    fn dropped(&self, family: usize, from: &str, reason: &str) {
        let before = self.weir.packets(reason);
        let to = self.ssh(family);
        assert!(!self.net.connects(from, to), "{from} reached {to}");
        let after = self.weir.packets(reason);
        assert!(after > before, "no packet counted under {reason}");
        let why = self.weir.why(from);
        assert_eq!(why["verdict"], reason, "{why}");
        assert_eq!(why["dropped"], true, "{why}");
    }
}

/// The name of an attacker in `weir bans`: IPv6 is counted by /64.
fn subject(from: &str) -> String {
    match from.split_once("::") {
        Some((network, _)) => {
            let groups = network.split(':').count();
            let tail = if groups < 4 { "::/64" } else { "/64" };
            format!("{network}{tail}")
        }
        None => from.to_owned(),
    }
}

const JAIL: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\n";

#[test]
fn root_an_attacker_is_banned_and_let_in_again() {
    if skipped(&PROGRAMS) {
        return;
    }
    for stamp in [Stamp::Traditional, Stamp::Iso] {
        let scene = Scene::new(stamp, JAIL);
        for family in [0, 1] {
            let who = ATTACKER[family];
            scene.fail(family, who, 2);
            scene.counted("sshd", family as u64 * 3 + 2);
            assert!(!scene.weir.banned().contains(&subject(who)));
            assert_eq!(scene.weir.why(who)["tracked"][0]["findings"], 2);
            scene.fail(family, who, 1);
            scene.banned(&subject(who));
            scene.dropped(family, who, "banned-all");

            let why = scene.weir.why(who);
            let ban = &why["bans"][0];
            assert_eq!(ban["producer"], "jail:sshd", "{why}");
            assert_eq!(ban["subject"], subject(who), "{why}");
            let left = ban["remaining_seconds"].as_u64().unwrap();
            assert!((3500..=3600).contains(&left), "{why}");
            let evidence = ban["evidence"].as_array().unwrap();
            assert_eq!(evidence.len(), 3, "{why}");
            for line in evidence {
                let line = line.as_str().unwrap();
                assert!(line.contains(&format!("Failed password for root from {who} port")));
            }

            // Others can still, and the attacker cannot by another port.
            for other in [CUSTOMER[family], OTHER[family]] {
                let seen = scene.guess(family, other, sshd::CUSTOMER, CUSTOMER_PASSWORD);
                assert_eq!(seen, Outcome::LoggedIn, "{other}");
            }
            let web = SocketAddr::new(addr(HOST[family]), 8080);
            let server = TcpServer::start(&scene.net.host, web, b"").unwrap();
            assert!(!scene.net.connects(who, web));
            scene.net.serves(CUSTOMER[family], web);
            soon("one connection", || (server.accepted() == 1).then_some(()));
        }
        for family in [0, 1] {
            let who = ATTACKER[family];
            let lifted = scene.weir.json(&["unban", &subject(who)]);
            assert_eq!(lifted["lifted"], 1);
            let seen = scene.guess(family, who, sshd::CUSTOMER, CUSTOMER_PASSWORD);
            assert_eq!(seen, Outcome::LoggedIn);
            let why = scene.weir.why(who);
            assert_eq!(why["verdict"], "pass", "{why}");
            assert_eq!(why["history"].as_array().unwrap().len(), 1, "{why}");
            // An unban forgives: it takes three again.
            scene.fail(family, who, 2);
            scene.counted("sshd", 6 + family as u64 * 2 + 2);
            assert!(!scene.weir.banned().contains(&subject(who)));
        }
        assert_eq!(scene.weir.ask(&["unban", ATTACKER[0]]).code, Some(1));
    }
}

#[test]
fn root_ipv6_is_counted_by_its_network() {
    if skipped(&PROGRAMS) {
        return;
    }
    let scene = Scene::new(Stamp::Iso, JAIL);
    for host in ["a", "b:1", "c:2:3"] {
        scene.fail(1, &format!("2001:db8:bad:5::{host}"), 1);
    }
    scene.banned("2001:db8:bad:5::/64");
    for host in [":a", ":d", "ffff:ffff:ffff:ffff"] {
        scene.dropped(1, &format!("2001:db8:bad:5:{host}"), "banned-all");
    }
    scene.net.serves("2001:db8:bad:6::a", scene.ssh(1));
    // IPv4 is not.
    for host in 1..=3 {
        scene.fail(0, &format!("198.51.100.{host}"), 1);
    }
    scene.counted("sshd", 6);
    assert_eq!(scene.weir.banned(), ["2001:db8:bad:5::/64"]);
}

#[test]
fn root_a_ban_ends_by_itself() {
    if skipped(&PROGRAMS) {
        return;
    }
    // Longer than it takes to see that it is in force, on a machine that does something else.
    let scene = Scene::new(Stamp::Traditional, &format!("{JAIL}ban_time = \"20s\"\n"));
    for family in [0, 1] {
        let who = ATTACKER[family];
        scene.fail(family, who, 3);
        scene.banned(&subject(who));
        let begun = Instant::now();
        scene.dropped(family, who, "banned-all");
        scene.net.serves_soon(who, scene.ssh(family));
        println!("{who} was let in after {:?}", begun.elapsed());
        assert!(scene.weir.banned().is_empty());
        assert_eq!(scene.weir.why(who)["verdict"], "pass");
    }
}

#[test]
fn root_the_allow_list_wins() {
    if skipped(&PROGRAMS) {
        return;
    }
    let allow = "allow = [\"203.0.113.0/24\", \"2001:db8:c::/48\"]\n";
    let scene = Scene::new(Stamp::Traditional, &format!("{allow}{JAIL}"));
    for family in [0, 1] {
        let friend = CUSTOMER[family];
        scene.fail(family, friend, 4);
        scene.counted("sshd", family as u64 * 7 + 4);
        assert!(!scene.weir.banned().contains(&subject(friend)));
        let seen = scene.guess(family, friend, sshd::CUSTOMER, CUSTOMER_PASSWORD);
        assert_eq!(seen, Outcome::LoggedIn);
        scene
            .weir
            .ask(&["ban", friend])
            .refused(&[friend, "allow list"]);

        let who = ATTACKER[family];
        scene.fail(family, who, 3);
        scene.banned(&subject(who));
        scene.dropped(family, who, "banned-all");
        let before = scene.weir.packets("allowed");
        scene
            .weir
            .ask(&["allow", "add", who, "--note", "sorry"])
            .done();
        let seen = scene.guess(family, who, sshd::CUSTOMER, CUSTOMER_PASSWORD);
        assert_eq!(seen, Outcome::LoggedIn);
        assert!(scene.weir.packets("allowed") > before);
        let why = scene.weir.why(who);
        assert_eq!(why["verdict"], "allowed", "{why}");
        assert!(why["exempt"]["reason"].as_str().unwrap().contains("sorry"));
        scene.weir.ask(&["allow", "del", who]).done();
        scene.dropped(family, who, "banned-all");
    }
}

#[test]
fn root_a_scoped_ban_leaves_other_ports_open() {
    if skipped(&PROGRAMS) {
        return;
    }
    let scene = Scene::new(Stamp::Traditional, &format!("{JAIL}ports = [\"22/tcp\"]\n"));
    let web = TcpServer::start(&scene.net.host, "[::]:8080".parse().unwrap(), b"").unwrap();
    for family in [0, 1] {
        let who = ATTACKER[family];
        scene.fail(family, who, 3);
        scene.banned(&subject(who));
        scene.dropped(family, who, "banned-scope");
        let passed = scene.weir.packets("other-port");
        let to = SocketAddr::new(addr(HOST[family]), web.addr().port());
        scene.net.serves(who, to);
        assert!(scene.weir.packets("other-port") > passed);
        let by_port = |port: &str| scene.weir.ask(&["why", who, "--port", port]).code;
        assert_eq!(by_port("22/tcp"), Some(0));
        assert_eq!(by_port("8080/tcp"), Some(1));
        assert_eq!(by_port("22/udp"), Some(1));
    }
    soon("two connections", || (web.accepted() == 2).then_some(()));
}

#[test]
fn root_two_jails_on_one_address() {
    if skipped(&PROGRAMS) {
        return;
    }
    let config = format!(
        "{JAIL}ports = [\"22/tcp\"]\n\
         [jail.web]\nfilter = \"sshd\"\npaths = [\"{{log}}\"]\nmax_retry = 3\nports = [\"8080/tcp\"]\n"
    );
    let scene = Scene::new(Stamp::Traditional, &config);
    let web = TcpServer::start(&scene.net.host, "[::]:8080".parse().unwrap(), b"").unwrap();
    for family in [0, 1] {
        let who = ATTACKER[family];
        let ssh = scene.ssh(family);
        let web = SocketAddr::new(addr(HOST[family]), web.addr().port());
        scene.fail(family, who, 3);
        soon("both bans", || {
            let bans = scene.weir.banned();
            (bans.iter().filter(|b| **b == subject(who)).count() == 2).then_some(())
        });
        assert!(!scene.net.connects(who, ssh));
        assert!(!scene.net.connects(who, web));
        let lifted = scene.weir.json(&["unban", &subject(who), "--jail", "web"]);
        assert_eq!(lifted["lifted"], 1);
        scene.net.serves(who, web);
        scene.dropped(family, who, "banned-scope");
        let lifted = scene
            .weir
            .json(&["unban", &subject(who), "--port", "22/tcp"]);
        assert_eq!(lifted["lifted"], 1);
        scene.net.serves(who, ssh);
        scene.net.serves(CUSTOMER[family], ssh);
    }
}

#[test]
fn root_a_crafted_user_name_bans_who_wrote_it() {
    if skipped(&PROGRAMS) {
        return;
    }
    let victim = ["203.0.113.9", "2001:db8:c::9"];
    for stamp in [Stamp::Traditional, Stamp::Iso] {
        let config = JAIL.replace("max_retry = 3", "max_retry = 7");
        let scene = Scene::new(stamp, &config);
        for family in [0, 1] {
            let (who, victim) = (ATTACKER[family], victim[family]);
            let users = [
                format!("root from {victim} port 22 ssh2"),
                format!("x]: Failed password for root from {victim} port 22 ssh2"),
                format!("invalid user y from {victim} port 22 ssh2: RSA SHA256:x"),
            ];
            for user in &users {
                assert_eq!(
                    scene.guess(family, who, user, "x"),
                    Outcome::Denied,
                    "{user:?}"
                );
            }
            // A name that is no account's counts more than once in a try.
            for user in users.iter().cycle().take(5) {
                if scene.weir.banned().contains(&subject(who)) {
                    break;
                }
                scene.guess_within(family, who, user, "x", Duration::from_secs(2));
            }
            scene.banned(&subject(who));
            scene.dropped(family, who, "banned-all");
            assert!(!scene.weir.banned().contains(&subject(victim)));
            let why = scene.weir.why(victim);
            assert_eq!(why["verdict"], "pass", "{why}");
            assert_eq!(why["tracked"].as_array().unwrap().len(), 0, "{why}");
            scene.net.serves(victim, scene.ssh(family));
        }
        let log = fs::read_to_string(scene.sshd.log()).unwrap();
        assert!(log.contains(victim[0]), "the names were not logged: {log}");
    }
}

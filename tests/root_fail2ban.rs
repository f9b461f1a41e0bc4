//! Debian's own Fail2ban configuration, unchanged but for where sshd's log is, run by weir:
//! a real attacker of a real sshd is banned, by the ports and in the manner of the jail.

mod common;

use std::{fs, net::SocketAddr, path::Path};

use common::{ATTACKER, CUSTOMER, HOST, SOON, TestNet, Weir, addr, skipped, soon};
use weir_testkit::{
    sshd::{self, CUSTOMER_PASSWORD, Outcome, PROGRAMS, SshHost, SshOpts, Stamp},
    traffic::TcpServer,
};

/// Where the package has its configuration.
const STOCK: &str = "/etc/fail2ban";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), to).unwrap(),
        }
    }
}

#[test]
fn root_the_stock_sshd_jail_bans_an_attacker() {
    if skipped(&PROGRAMS) {
        return;
    }
    if !Path::new(STOCK).join("jail.conf").exists() {
        eprintln!("skipped: fail2ban package: there is no {STOCK}/jail.conf");
        return;
    }
    for stamp in [Stamp::Traditional, Stamp::Iso] {
        let net = TestNet::new();
        let dir = tempfile::tempdir().unwrap();
        copy(Path::new(STOCK), dir.path());
        let config = format!(
            "interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{}\"\n",
            dir.path().display()
        );
        let mut weir = Weir::new(&net.host, &config);
        let log = weir.log();
        let local = format!(
            "[DEFAULT]\nsshd_log = {}\nsshd_backend = auto\n",
            log.display()
        );
        fs::write(dir.path().join("jail.local"), local).unwrap();
        let mut opts = SshOpts::new(log);
        opts.stamp = stamp;
        let sshd = SshHost::start(&net.host, &opts).unwrap();
        weir.run();
        let ssh = |family: usize| SocketAddr::new(addr(HOST[family]), sshd.port());
        let guess = |family: usize, from: &str, user: &str, password: &str| {
            let (to, from) = (ssh(family), Some(addr(from)));
            sshd::attempt(&net.internet, from, to, user, password, SOON).unwrap()
        };
        for family in [0, 1] {
            let who = ATTACKER[family];
            // maxretry is 5, and each attempt is one failure.
            for _ in 0..4 {
                assert_eq!(guess(family, who, "root", "guess"), Outcome::Denied);
            }
            soon("four failures", || {
                let tracked = weir.why(who)["tracked"][0]["findings"].clone();
                (tracked == 4).then_some(())
            });
            assert!(!weir.banned().contains(&who.to_owned()));
            assert_eq!(guess(family, who, "root", "guess"), Outcome::Denied);
            soon("the ban", || {
                weir.banned().contains(&who.to_owned()).then_some(())
            });

            let why = weir.why(who);
            let ban = &why["bans"][0];
            assert_eq!(
                (&ban["producer"], &ban["scope"], &ban["action"]),
                (&"jail:sshd".into(), &"22/tcp".into(), &"reject".into()),
                "{why}"
            );
            let left = ban["remaining_seconds"].as_u64().unwrap();
            assert!((500..=600).contains(&left), "{why}");
            let before = weir.packets("rejected");
            assert!(!net.connects(who, ssh(family)));
            assert!(weir.packets("rejected") > before, "no packet was rejected");

            // Other ports stay open to the attacker, and sshd to others.
            let web = SocketAddr::new(addr(HOST[family]), 8080);
            let _server = TcpServer::start(&net.host, web, b"").unwrap();
            net.serves(who, web);
            let seen = guess(family, CUSTOMER[family], sshd::CUSTOMER, CUSTOMER_PASSWORD);
            assert_eq!(seen, Outcome::LoggedIn);
            assert_eq!(weir.json(&["unban", who])["lifted"], 1);
            let seen = guess(family, who, sshd::CUSTOMER, CUSTOMER_PASSWORD);
            assert_eq!(seen, Outcome::LoggedIn);
        }
    }
}

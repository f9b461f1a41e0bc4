//! Debian's own Fail2ban configuration, unchanged but for where sshd's log is, run by weir:
//! a real attacker of a real sshd is banned, by the ports and in the manner of the jail.

mod common;
#[path = "common/journal.rs"]
mod journal;
#[path = "common/stock_fail2ban.rs"]
mod stock_fail2ban;

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{ATTACKER, CUSTOMER, HOST, OTHER, SOON, TestNet, Weir, addr, skipped, soon};
use journal::Journal;
use weir_testkit::{
    sshd::{self, CUSTOMER_PASSWORD, Outcome, PROGRAMS, SshHost, SshOpts, Stamp},
    traffic::TcpServer,
};

#[test]
fn root_the_stock_sshd_jail_bans_an_attacker() {
    if skipped(&PROGRAMS) || stock_fail2ban::is_missing() {
        return;
    }
    for stamp in [Stamp::Traditional, Stamp::Iso] {
        let net = TestNet::new();
        let dir = tempfile::tempdir().unwrap();
        stock_fail2ban::copy("", dir.path());
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

/// The switch itself: Fail2ban bans by its own nftables rules, weir starts beside it and takes
/// its bans over, Fail2ban stops and takes its rules away.
#[test]
fn root_nobody_gets_in_while_weir_takes_over_from_fail2ban() {
    if skipped(&["fail2ban-client", "fail2ban-server", "nft"]) {
        return;
    }
    let net = TestNet::new();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    stock_fail2ban::copy("action.d", &dir.path().join("action.d"));
    fs::create_dir(at("filter.d")).unwrap();
    fs::write(
        at("filter.d/shop.conf"),
        "[Definition]\nfailregex = login from <HOST> failed$\n",
    )
    .unwrap();
    fs::write(at("shop.log"), "").unwrap();
    let jail = "[shop]\nenabled = true\nfilter = shop\nbackend = polling\nbantime = 1h\nmaxretry = 2\n\
                action = nftables[type=multiport, name=shop, port=8080, protocol=tcp]\n";
    fs::write(
        at("jail.conf"),
        format!("{jail}logpath = {}\n", at("shop.log")),
    )
    .unwrap();
    let server = format!(
        "[Definition]\nloglevel = INFO\nlogtarget = {}\nsyslogsocket = auto\nsocket = {}\npidfile = {}\n\
         dbfile = {}\ndbpurgeage = 1d\ndbmaxmatches = 10\n",
        at("fail2ban.log"),
        at("sock"),
        at("pid"),
        at("db.sqlite3")
    );
    fs::write(at("fail2ban.conf"), server).unwrap();
    let (conf, socket, pid) = (dir.path().display().to_string(), at("sock"), at("pid"));
    let fail2ban = |args: &[&str]| {
        let mut all = vec!["-c", &conf, "-s", &socket, "-p", &pid];
        all.extend(args);
        let output = net.host.output("fail2ban-client", &all).unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let rules = || {
        let output = net.host.output("nft", &["list", "ruleset"]).unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let web = |family: usize| SocketAddr::new(addr(HOST[family]), 8080);
    let _servers = [0, 1].map(|family| TcpServer::start(&net.host, web(family), b"").unwrap());
    for family in [0, 1] {
        net.serves(ATTACKER[family], web(family));
    }
    let said = fail2ban(&["start"]);
    assert!(said.contains("Server ready"), "{said}");
    for who in ATTACKER {
        fail2ban(&["set", "shop", "banip", who]);
    }
    soon("Fail2ban's rules", || {
        let rules = rules();
        ATTACKER.iter().all(|who| rules.contains(who)).then_some(())
    });
    let config = format!("interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{conf}\"\n");
    let mut weir = Weir::new(&net.host, &config);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attackers: Vec<_> = [0, 1]
            .map(|family| {
                let (net, is_over) = (&net, &is_over);
                scope.spawn(move || {
                    let mut tries = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        assert!(
                            !net.connects(ATTACKER[family], web(family)),
                            "{} got in",
                            ATTACKER[family]
                        );
                        tries += 1;
                    }
                    tries
                })
            })
            .into();
        weir.run();
        for who in ATTACKER {
            assert!(weir.banned().contains(&who.to_owned()), "{who}");
            let ban = &weir.why(who)["bans"][0];
            assert_eq!(
                (&ban["producer"], &ban["scope"], &ban["action"]),
                (&"jail:shop".into(), &"8080/tcp".into(), &"reject".into())
            );
            let left = ban["remaining_seconds"].as_u64().unwrap();
            assert!((3_000..=3_600).contains(&left), "{left}");
        }
        fail2ban(&["stop"]);
        soon("Fail2ban's rules to go", || {
            (!rules().contains("f2b")).then_some(())
        });
        let before = weir.packets("rejected");
        soon("weir to hold them", || {
            (weir.packets("rejected") > before + 4).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        for attacker in attackers {
            assert!(attacker.join().unwrap() > 2);
        }
    });
    for family in [0, 1] {
        net.serves(CUSTOMER[family], web(family));
    }
    // What it was told is its own by now.
    for who in ATTACKER {
        assert_eq!(weir.json(&["unban", who])["lifted"], 1);
    }
    for family in [0, 1] {
        net.serves_soon(ATTACKER[family], web(family));
    }
}

/// `backend = systemd` in `[DEFAULT]`, as many have it: `recidive` counts weir's bans from
/// weir's own file and Fail2ban's from the journal, each once.
#[test]
fn root_recidive_on_the_journal_counts_weirs_bans_and_fail2bans() {
    if !journal::ready() || stock_fail2ban::is_missing() {
        return;
    }
    let net = TestNet::new();
    let dir = tempfile::tempdir().unwrap();
    stock_fail2ban::copy("", dir.path());
    let log = dir.path().join("shop.log");
    fs::write(&log, "").unwrap();
    let filter = "[Definition]\nfailregex = login from <HOST> failed$\n";
    fs::write(dir.path().join("filter.d/shop.conf"), filter).unwrap();
    let jails = format!(
        "[DEFAULT]\nbackend = systemd\n[sshd]\nenabled = false\n\
         [recidive]\nenabled = true\nmaxretry = 3\n\
         [shop]\nenabled = true\nbackend = polling\nmaxretry = 1\nbantime = 8\nport = 8080\nlogpath = {}\n",
        log.display()
    );
    fs::write(dir.path().join("jail.local"), jails).unwrap();
    let config = format!(
        "interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{}\"\n",
        dir.path().display()
    );
    let mut weir = Weir::new(&net.host, &config);
    let journal = Journal::of(&mut weir);
    let of_fail2ban = [
        ("_COMM", "fail2ban-server"),
        ("_PID", "7"),
        ("_UID", "0"),
        ("_SYSTEMD_UNIT", "fail2ban.service"),
        ("PRIORITY", "5"),
        ("SYSLOG_IDENTIFIER", "fail2ban-server"),
        ("_TRANSPORT", "syslog"),
    ];
    let bans = OTHER.iter().chain(&OTHER);
    let bans = bans
        .map(|who| format!("fail2ban.actions        [7]: NOTICE  [sshd] Ban {who}").into_bytes());
    journal.write_entries(&of_fail2ban, bans);
    weir.run();
    let status = weir.json(&["status", "recidive"]);
    let own = weir.path("state/fail2ban.log").display().to_string();
    assert_eq!(status["source"], format!("journal {own}"), "{status}");
    let findings = |weir: &Weir, number: u64| {
        soon(&format!("{number} bans to be counted"), || {
            let status = weir.json(&["status", "recidive"]);
            (status["findings"].as_u64() >= Some(number)).then_some(())
        });
        assert_eq!(weir.json(&["status", "recidive"])["findings"], number);
    };
    findings(&weir, 4);
    let is_by_recidive = |weir: &Weir, who: &str| {
        let why = weir.why(who);
        let bans = why["bans"].as_array().unwrap();
        bans.iter().any(|ban| ban["producer"] == "jail:recidive")
    };
    let is_banned = |weir: &Weir, who: &str| {
        let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
        let mut file = fs::File::options().append(true).open(&log).unwrap();
        writeln!(file, "{now} web shop: login from {who} failed").unwrap();
        soon(&format!("the ban of {who}"), || {
            weir.banned().contains(&who.to_owned()).then_some(())
        });
    };
    let mut counted = 4;
    for who in ATTACKER {
        for _ in 0..2 {
            is_banned(&weir, who);
            counted += 1;
            findings(&weir, counted);
            assert!(!is_by_recidive(&weir, who));
            // Not lifted by hand, by which all counts of an address would go.
            soon("the end of the ban", || {
                (!weir.banned().contains(&who.to_owned())).then_some(())
            });
        }
    }
    // The third of Fail2ban's two and one of weir's.
    for who in OTHER {
        is_banned(&weir, who);
        soon("the ban by recidive", || {
            is_by_recidive(&weir, who).then_some(())
        });
    }
    findings(&weir, counted + 2);
    // Neither log is read again after a restart, and counts go on.
    weir.stop();
    weir.run();
    for who in ATTACKER {
        is_banned(&weir, who);
        soon("the ban by recidive", || {
            is_by_recidive(&weir, who).then_some(())
        });
    }
    findings(&weir, 2);
}

/// The daemon dies as soon as a ban is counted: it counts once, in weir's own log of bans.
#[test]
fn root_recidive_counts_each_ban_once_although_the_daemon_is_killed() {
    if skipped(&[]) || stock_fail2ban::is_missing() {
        return;
    }
    let net = TestNet::new();
    let dir = tempfile::tempdir().unwrap();
    stock_fail2ban::copy("", dir.path());
    let log = dir.path().join("shop.log");
    fs::write(&log, "").unwrap();
    let filter = "[Definition]\nfailregex = login from <HOST> failed$\n";
    fs::write(dir.path().join("filter.d/shop.conf"), filter).unwrap();
    let jails = format!(
        "[DEFAULT]\nbackend = polling\n[sshd]\nenabled = false\n\
         [recidive]\nenabled = true\nmaxretry = 3\n\
         [shop]\nenabled = true\nmaxretry = 1\nbantime = 8\nport = 8080\nlogpath = {}\n",
        log.display()
    );
    fs::write(dir.path().join("jail.local"), jails).unwrap();
    let config = format!(
        "interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{}\"\n",
        dir.path().display()
    );
    let mut weir = Weir::start(&net.host, &config);
    let by = |weir: &Weir, who: &str, jail: &str| {
        let why = weir.why(who);
        let bans = why["bans"].as_array().unwrap();
        bans.iter()
            .any(|ban| ban["producer"] == format!("jail:{jail}"))
    };
    let counted = |weir: &Weir, who: &str| {
        let why = weir.why(who);
        let tracked = why["tracked"].as_array().unwrap();
        let of_recidive = tracked.iter().find(|one| one["jail"] == "recidive");
        of_recidive.map_or(0, |one| one["findings"].as_u64().unwrap())
    };
    for number in 1..=3 {
        for who in ATTACKER {
            let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
            let mut file = fs::File::options().append(true).open(&log).unwrap();
            writeln!(file, "{now} web shop: login from {who} failed").unwrap();
            soon(&format!("ban {number} of {who}"), || {
                by(&weir, who, "shop").then_some(())
            });
            match number {
                3 => soon("the ban by recidive", || {
                    by(&weir, who, "recidive").then_some(())
                }),
                _ => soon("it to be counted", || {
                    (counted(&weir, who) == number).then_some(())
                }),
            }
        }
        weir.kill();
        weir.run();
        for who in ATTACKER {
            match number {
                3 => assert!(by(&weir, who, "recidive"), "{who}"),
                _ => {
                    assert!(!by(&weir, who, "recidive"), "{who} after {number}");
                    soon("the same count", || {
                        (counted(&weir, who) == number).then_some(())
                    });
                }
            }
            // Not lifted by hand, by which all counts of an address would go.
            soon("the end of the ban", || {
                (!by(&weir, who, "shop")).then_some(())
            });
        }
    }
}

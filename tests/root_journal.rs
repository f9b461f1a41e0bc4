//! A jail whose source is the systemd journal: the whole daemon follows a
//! journal that grows, is rotated and goes on while no daemon runs. No systemd
//! is needed: systemd-journal-remote writes the files, and the daemon sees
//! them as those of its host.

mod common;
#[path = "common/journal.rs"]
mod journal;

use common::{ATTACKER, CUSTOMER, OTHER, TestNet, Weir, at, soon};
use journal::{Journal, ready};

const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\nsource = \"journal\"\nmax_retry = 3\n";

#[track_caller]
fn findings(weir: &Weir, number: u64) {
    soon(&format!("{number} findings"), || {
        let jail = weir.json(&["status", "sshd"]);
        (jail["findings"].as_u64() >= Some(number)).then_some(())
    });
    assert_eq!(weir.json(&["status", "sshd"])["findings"], number);
}

#[test]
fn root_the_journal_is_followed_over_rotation_and_restart() {
    if !ready() {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let journal = Journal::of(&mut weir);
    // Older than the daemon: not its business.
    journal.failures("198.51.100.99", 9);
    weir.run();
    let status = weir.json(&["status"]);
    assert_eq!(status["alerts"].as_array().unwrap().len(), 0, "{status}");
    assert_eq!(weir.json(&["status", "sshd"])["source"], "journal");
    let _server = net.server();

    // It grows.
    for (family, who) in ATTACKER.into_iter().enumerate() {
        journal.failures(who, 2);
        findings(&weir, family as u64 * 3 + 2);
        net.serves(who, at(family));
        journal.failures(who, 1);
        net.drops_soon(who);
        net.serves(CUSTOMER[family], at(family));
        let why = weir.why(who);
        assert_eq!(why["bans"][0]["producer"], "jail:sshd", "{why}");
        let line = format!("Failed password for root from {who} port 40000 ssh2");
        assert_eq!(why["bans"][0]["evidence"][0], line, "{why}");
    }
    assert_eq!(weir.banned().len(), 2);

    // What anybody can write is not believed: another program with sshd's
    // identifier, another user's program of that name.
    let forged = |_| format!("Failed password for root from {} port 1 ssh2", CUSTOMER[0]);
    journal.write("logger", 0, (0..5).map(forged));
    journal.write("sshd", 1000, (0..5).map(forged));

    // Rotated between the second and the third failure.
    for (family, who) in OTHER.into_iter().enumerate() {
        journal.failures(who, 2);
        findings(&weir, 6 + family as u64 * 3 + 2);
        journal.rotate(family as u32 + 1);
        journal.failures(who, 1);
        net.drops_soon(who);
    }
    findings(&weir, 12);

    // Stopped after one, rotated while it is down, one in each file: neither
    // read twice nor lost.
    let who = ["198.51.100.31", "2001:db8:bad:31::1"];
    for family in [0, 1] {
        journal.failures(who[family], 1);
    }
    findings(&weir, 14);
    weir.stop();
    for source in who {
        journal.failures(source, 1);
    }
    journal.rotate(3);
    // The first is complete, the second is not.
    journal.failures(who[0], 1);
    weir.run();
    net.drops_soon(who[0]);
    findings(&weir, 3);
    net.serves(who[1], at(1));
    assert_eq!(weir.why(who[1])["tracked"][0]["findings"], 2);
    // And killed: what was saved within the last second counts.
    soon("the position to be saved", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.kill();
    journal.failures(who[1], 1);
    weir.run();
    net.drops_soon(who[1]);
    net.serves(CUSTOMER[0], at(0));
    assert_eq!(weir.banned().len(), 6);
    assert_eq!(
        weir.why(CUSTOMER[0])["tracked"].as_array().unwrap().len(),
        0
    );
}

/// On a fresh host sshd has written nothing yet when the daemon first runs.
#[test]
fn root_a_journal_without_entries_is_read_from_the_first_start_on() {
    if !ready() {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["nothing of sshd's".to_owned()]);
    weir.run();
    soon("the position to be saved", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.stop();
    for who in ATTACKER {
        journal.failures(who, 3);
    }
    weir.run();
    soon("both bans", || (weir.banned().len() == 2).then_some(()));
    let _server = net.server();
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
    }
}

/// Issue 13, 9: Postfix, Dovecot and BIND do not log as root.
#[test]
fn root_a_service_is_read_by_its_unit() {
    if !ready() {
        return;
    }
    const MAIL: &str = "interfaces = [\"eth0\"]\n\
        [filter.mail]\nidentifiers = [\"postfix/smtpd\"]\n\
        patterns = ['lost connection after AUTH from <addr>']\n\
        [jail.mail]\nfilter = \"mail\"\nsource = \"journal\"\nmax_retry = 3\n\
        [jail.exim]\nfilter = \"mail\"\nsource = \"journal\"\nmax_retry = 3\nports = [\"25/tcp\"]\n\
        journal_match = [\"_SYSTEMD_UNIT=exim4.service\", \"_UID=101\"]\n";
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, MAIL);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    weir.run();
    let lines = |who: &str| {
        let line = format!("lost connection after AUTH from {who}");
        std::iter::repeat_n(line, 3)
    };
    let tag = "postfix/smtpd";
    // In the service's name, and not by it.
    for (uid, unit) in [
        (1000, "postfix@-.service"),
        (1000, "user@1000.service"),
        (33, "apache2.service"),
    ] {
        journal.write_as("smtpd", uid, (unit, tag), lines(CUSTOMER[0]));
    }
    journal.write_as("exim4", 102, ("exim4.service", tag), lines(CUSTOMER[0]));
    for who in ATTACKER {
        journal.write_as("smtpd", 106, ("postfix@-.service", tag), lines(who));
    }
    journal.write_as("exim4", 101, ("exim4.service", tag), lines(OTHER[0]));
    soon("the bans", || (weir.banned().len() == 3).then_some(()));
    for who in ATTACKER {
        assert_eq!(weir.why(who)["bans"][0]["producer"], "jail:mail");
    }
    assert_eq!(weir.why(OTHER[0])["bans"][0]["producer"], "jail:exim");
    assert_eq!(
        weir.why(CUSTOMER[0])["tracked"].as_array().unwrap().len(),
        0
    );
}

/// A filter says which entries are its program's; a jail may say it otherwise.
#[test]
fn root_a_filter_says_which_entries_it_reads() {
    if !ready() {
        return;
    }
    const SHOP: &str = "interfaces = [\"eth0\"]\n\
        [filter.shop]\npatterns = ['refused <addr>']\n\
        journal_match = [\"_SYSTEMD_UNIT=shop.service\", \"_UID=990\", \"+\", \"_COMM=helper\", \"_UID=0\"]\n\
        [jail.shop]\nsource = \"journal\"\nmax_retry = 3\n\
        [jail.other]\nfilter = \"shop\"\nsource = \"journal\"\nmax_retry = 3\nports = [\"25/tcp\"]\n\
        journal_match = [\"_SYSTEMD_UNIT=other.service\"]\n\
        [jail.sshd]\nsource = \"journal\"\nmax_retry = 3\n";
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, SHOP);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    weir.run();
    let refused = |who: &str| std::iter::repeat_n(format!("refused {who}"), 3);
    let nobody = CUSTOMER[0];
    for (program, uid, unit, who) in [
        ("helper", 990, "other2.service", nobody),
        ("shop", 1000, "session-1.scope", nobody),
        ("shop", 1000, "shop.service", nobody),
        ("shop", 1000, "other.service", nobody),
        ("shop", 990, "shop.service", ATTACKER[0]),
        ("helper", 0, "session-1.scope", ATTACKER[1]),
        ("shop", 990, "other.service", OTHER[0]),
    ] {
        journal.write_as(program, uid, (unit, "shop"), refused(who));
    }
    // Debian's unit, and a process by another name.
    let failed = |n| format!("Failed password for root from {} port {n} ssh2", OTHER[1]);
    journal.write_as(
        "main",
        0,
        ("ssh.service", "sshd-session"),
        (1..4).map(failed),
    );
    soon("the bans", || (weir.banned().len() == 4).then_some(()));
    for (who, jail) in [
        (ATTACKER[0], "shop"),
        (ATTACKER[1], "shop"),
        (OTHER[0], "other"),
        (OTHER[1], "sshd"),
    ] {
        let why = weir.why(who);
        assert_eq!(why["bans"][0]["producer"], format!("jail:{jail}"), "{why}");
    }
    let why = weir.why(nobody);
    assert_eq!(why["tracked"].as_array().unwrap().len(), 0, "{why}");
}

/// While there is no journal yet, nothing of it is lost.
#[test]
fn root_a_journal_that_comes_later_is_read_from_the_start_on() {
    if !ready() {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let journal = Journal::of(&mut weir);
    weir.run();
    soon("the alert", || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap();
        let about =
            |alert: &serde_json::Value| alert["message"].as_str().unwrap().contains("no journal");
        alerts.iter().any(about).then_some(())
    });
    for who in ATTACKER {
        journal.failures(who, 3);
    }
    soon("both bans", || (weir.banned().len() == 2).then_some(()));
}

#[track_caller]
fn alert(weir: &Weir, about: &str) -> String {
    soon(&format!("the alert {about}"), || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap();
        let found = alerts.iter().find(|alert| alert["about"] == about)?;
        Some(found["message"].as_str().unwrap().to_owned())
    })
}

/// sshd's own filters believe root's processes alone, and what came by syslog.
#[test]
fn root_sshd_counts_what_root_wrote_by_syslog() {
    if !ready() {
        return;
    }
    const OWN: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\nsource = \"journal\"\nmax_retry = 3\n\
        [filter.own]\nidentifiers = [\"sshd\"]\npatterns = ['Failed password for <user> from <addr> port <port> ssh2']\n\
        [jail.own]\nsource = \"journal\"\nmax_retry = 3\nports = [\"22/tcp\"]\n\
        [jail.named]\nfilter = \"sshd\"\nsource = \"journal\"\nmax_retry = 3\nports = [\"23/tcp\"]\n\
        journal_match = [\"_SYSTEMD_UNIT=sshd.service\", \"_UID=110\"]\n";
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, OWN);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    weir.run();
    let lines = |who: &str| {
        let line = |n| format!("Failed password for root from {who} port {n} ssh2").into_bytes();
        (1..4).map(line).collect::<Vec<_>>()
    };
    let of = |uid, transport| {
        let fields = [
            ("_COMM", "sshd"),
            ("_UID", uid),
            ("_SYSTEMD_UNIT", "sshd.service"),
            ("SYSLOG_IDENTIFIER", "sshd"),
        ];
        let transport = Option::map(transport, |t| ("_TRANSPORT", t));
        fields.into_iter().chain(transport).collect::<Vec<_>>()
    };
    // A filter of one's own that says nothing of it believes all of them.
    let cases = [
        (
            "198.51.100.41",
            "110",
            Some("syslog"),
            &["named", "own"][..],
        ),
        ("198.51.100.42", "0", Some("stdout"), &["own"]),
        ("2001:db8:bad:42::1", "0", Some("stdout"), &["own"]),
        ("198.51.100.43", "0", None, &["own"]),
        ("198.51.100.44", "0", Some("journal"), &["own", "sshd"]),
        ("2001:db8:bad:44::1", "0", Some("syslog"), &["own", "sshd"]),
    ];
    for (who, uid, transport, _) in cases {
        journal.write_entries(&of(uid, transport), lines(who));
    }
    let number: usize = cases.iter().map(|case| case.3.len()).sum();
    soon("the bans", || (weir.banned().len() == number).then_some(()));
    for (who, _, _, jails) in cases {
        let why = weir.why(who);
        let bans = why["bans"].as_array().unwrap();
        let mut by: Vec<_> = bans
            .iter()
            .map(|ban| ban["producer"].as_str().unwrap())
            .collect();
        by.sort_unstable();
        let wanted: Vec<_> = jails.iter().map(|jail| format!("jail:{jail}")).collect();
        assert_eq!(by, wanted, "{why}");
    }
    let said = alert(&weir, "jail:sshd:stdout");
    assert!(said.contains("start it without -e"), "{said}");
    let status = weir.json(&["status"]);
    let alerts = status["alerts"].as_array().unwrap();
    assert_eq!(alerts.len(), 1, "{status}");
}

/// An alert tells that journald drops messages; how many nobody can count.
#[test]
fn root_messages_that_journald_drops_are_an_alert() {
    if !ready() {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let journal = Journal::of(&mut weir);
    journal.write("cron", 0, ["the journal is there".to_owned()]);
    weir.run();
    let service = ("ssh.service", "sshd");
    let lines = ["Server listening on 0.0.0.0 port 22.".to_owned()];
    journal.write_as("sshd", 0, service, lines);
    let suppressed = |transport, units: &[&str]| {
        let fields = [
            ("_COMM", "systemd-journal"),
            ("_UID", "0"),
            ("_TRANSPORT", transport),
            ("SYSLOG_IDENTIFIER", "systemd-journald"),
            ("MESSAGE_ID", "a596d6fe7bfa4994828e72309e95d61e"),
        ];
        let line = |unit: &&str| format!("Suppressed 421 messages from {unit}").into_bytes();
        journal.write_entries(&fields, units.iter().map(line));
    };
    // Another service's, and what somebody else says of this one.
    suppressed("driver", &["nginx.service"]);
    suppressed("journal", &["ssh.service", "ssh.service"]);
    suppressed("driver", &["ssh.service"]);
    let said = alert(&weir, "jail:sshd:rate-limit");
    assert!(said.starts_with("421 log messages were dropped"), "{said}");
}

//! A jail of Fail2ban's that only notifies: Debian's stock sshd jail on the log of a real sshd,
//! with its stock mail and an action of the administrator's own, and no firewall's. Who fails
//! is told of and is let go on; nothing enters the kernel's tables.

mod common;
#[path = "common/stock_fail2ban.rs"]
mod stock_fail2ban;

use std::{fs, net::SocketAddr, os::unix::fs::symlink, path::Path, process::Command};

use common::{ATTACKER, HOST, OTHER, SOON, TestNet, WEIR, Weir, addr, skipped, soon};
use weir_testkit::sshd::{self, CUSTOMER_PASSWORD, Outcome, PROGRAMS, SshHost, SshOpts};

/// Tells a file of bans and their ends.
const TELL: &str = "[Definition]\n\
    actionban = echo ban <ip> <failures> <restored> >> {dir}/told\n\
    actionunban = echo unban <ip> >> {dir}/told\n";

fn lines(dir: &Path, file: &str) -> Vec<String> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until a file has a line.
#[track_caller]
fn has_line(dir: &Path, file: &str, line: &str) {
    soon(&format!("{line:?} in {file}"), || {
        lines(dir, file).iter().any(|l| l == line).then_some(())
    });
}

#[test]
fn root_a_jail_that_only_notifies_drops_nothing() {
    if skipped(&PROGRAMS) || stock_fail2ban::is_missing() {
        return;
    }
    let net = TestNet::new();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let filled = |text: &str| text.replace("{dir}", &dir.display().to_string());
    stock_fail2ban::copy("", dir);
    fs::write(dir.join("action.d/tell.conf"), filled(TELL)).unwrap();
    let config = filled("interfaces = [\"eth0\"]\n[fail2ban]\npath = \"{dir}\"\n");
    let mut weir = Weir::new(&net.host, &config);
    let log = weir.log();
    let local = |bantime: &str| {
        let text = format!(
            "[DEFAULT]\nsshd_log = {}\nsshd_backend = auto\n[sshd]\nmaxretry = 2\nbantime = {bantime}\n\
             action = sendmail[mailcmd=\"cat >> {{dir}}/mails\", dest=root]\n    tell\n",
            log.display()
        );
        fs::write(dir.join("jail.local"), filled(&text)).unwrap();
    };
    local("1h");
    let sshd = SshHost::start(&net.host, &SshOpts::new(weir.log())).unwrap();

    // It is said before anything runs.
    let path = dir.display().to_string();
    let import = weir.ask(&["import", "fail2ban", &path, "--dry-run"]).out;
    let expected = "sshd: NOTIFIES ONLY, weir drops nothing for it: filter sshd reads";
    assert!(import.contains(expected), "{import}");
    assert!(import.contains("and runs sendmail, tell"), "{import}");
    let notifies = "jail sshd notifies only, and weir drops nothing for it";
    let flat = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let check = flat(weir.ask(&["check"]).out);
    assert!(check.contains(notifies), "{check}");
    weir.run();
    let status = weir.ask(&["status"]);
    let said = flat(status.out);
    assert!(said.contains(notifies), "{said}");
    assert!(
        said.contains("NOT PROTECTED: its jails only notify"),
        "{said}"
    );
    assert!(
        said.contains("and notifies only: weir drops nothing for it"),
        "{said}"
    );
    let client = weir.path("fail2ban-client");
    symlink(WEIR, &client).unwrap();
    let fail2ban = |weir: &Weir, command: &[&str]| {
        let mut client = Command::new(&client);
        client.arg("-s").arg(weir.path("weir.sock")).args(command);
        let output = net.host.enter(move || client.output()).unwrap().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let actions = fail2ban(&weir, &["get", "sshd", "actions"]);
    assert!(actions.ends_with("\nsendmail, tell\n"), "{actions}");

    let ssh = |family: usize| SocketAddr::new(addr(HOST[family]), sshd.port());
    let guess = |family: usize, from: &str, password: &str| {
        let (to, from) = (ssh(family), Some(addr(from)));
        sshd::attempt(&net.internet, from, to, sshd::CUSTOMER, password, SOON).unwrap()
    };
    let fails = |weir: &Weir, family: usize, who: &str| {
        for _ in 0..2 {
            assert_eq!(guess(family, who, "guess"), Outcome::Denied);
        }
        soon(&format!("the ban of {who}"), || {
            weir.banned().contains(&who.to_owned()).then_some(())
        });
    };
    // In force, and in no table: all of them pass.
    let in_tables = |weir: &Weir, notified: u64| {
        let usage = &weir.json(&["status"])["usage"];
        assert_eq!(
            (&usage["bans"], &usage["prefix_bans"]),
            (&0.into(), &0.into())
        );
        assert_eq!(usage["notified"], notified, "{usage}");
        assert_eq!(weir.metric("weir_notified_bans", &[]), Some(notified));
    };
    for family in [0, 1] {
        let who = ATTACKER[family];
        fails(&weir, family, who);
        has_line(dir, "told", &format!("ban {who} 2 0"));
        let mail = format!("The IP {who} has just been banned by Fail2Ban after");
        has_line(dir, "mails", &mail);
        in_tables(&weir, family as u64 + 1);

        let why = weir.why(who);
        let ban = &why["bans"][0];
        assert_eq!(
            (&ban["producer"], &ban["action"]),
            (&"jail:sshd".into(), &"notify".into()),
            "{why}"
        );
        for is_dropped in ["dropped", "would_drop"] {
            assert_eq!(why[is_dropped], false, "{why}");
        }
        assert_eq!(why["verdict"], "pass");
        let why = weir.ask(&["why", who]);
        assert_eq!(why.code, Some(1));
        let says = format!("{who} passes: its bans only notify\n");
        assert!(why.out.starts_with(&says), "{}", why.out);
        let says = format!("ban of {who} that notifies only and drops nothing, by jail:sshd");
        assert!(why.out.contains(&says), "{}", why.out);
        assert!(!why.out.contains("dropped"), "{}", why.out);
        let bans = weir.ask(&["bans"]).out;
        assert!(bans.contains("none (notifies only)"), "{bans}");
        let said = weir.said();
        let told = format!("ban {who}, jail sshd, notifies only: ");
        assert!(said.contains(&told), "{said}");

        assert_eq!(guess(family, who, CUSTOMER_PASSWORD), Outcome::LoggedIn);
    }
    let status = fail2ban(&weir, &["status", "sshd"]);
    assert!(status.contains("Currently banned:\t2\n"), "{status}");
    let banned = format!("Banned IP list:\t{} {}", ATTACKER[0], ATTACKER[1]);
    assert!(status.contains(&banned), "{status}");
    // Fail2ban would know of them, too.
    let database = weir.path("fail2ban.sqlite3").display().to_string();
    let export = weir.ask(&["export", "fail2ban", &database]).done().out;
    assert!(export.starts_with("2 bans written"), "{export}");

    // A person's ban drops beside it, and its end leaves it as it is.
    let who = ATTACKER[0];
    weir.ask(&["ban", who, "--port", "22"]).done();
    assert_eq!(weir.why(who)["dropped"], true);
    weir.ask(&["unban", who, "--port", "22"]).done();
    assert_eq!(weir.why(who)["bans"][0]["action"], "notify");

    // The database has them; whoever was told is not told again.
    weir.stop();
    let told = lines(dir, "told");
    weir.run();
    in_tables(&weir, 2);
    fails(&weir, 0, OTHER[0]);
    has_line(dir, "told", &format!("ban {} 2 0", OTHER[0]));
    soon("the ban to be on disk", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.kill();
    weir.run();
    in_tables(&weir, 3);
    assert_eq!(lines(dir, "told")[..told.len()], told);
    assert_eq!(lines(dir, "told").len(), told.len() + 1);
    let status = weir.json(&["status"]);
    assert_eq!(status["restored"], "3 bans restored from the database");

    // Ends: by a person, and in time.
    for who in ATTACKER {
        assert_eq!(weir.json(&["unban", who])["lifted"], 1);
        has_line(dir, "told", &format!("unban {who}"));
    }
    local("4");
    weir.ask(&["reload"]).done();
    let who = OTHER[1];
    fails(&weir, 1, who);
    has_line(dir, "told", &format!("unban {who}"));
    assert!(!weir.banned().contains(&who.to_owned()));
    assert_eq!(weir.banned(), [OTHER[0]]);
    for reason in ["banned-all", "banned-scope", "rejected"] {
        assert_eq!(weir.packets(reason), 0, "{reason}");
    }
}

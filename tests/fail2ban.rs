//! A configuration of Fail2ban's, written down here: what `weir import` says of it, what
//! `weir check` says, and a daemon that runs its jails.

#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::Write,
    sync::atomic::{AtomicU32, Ordering},
};

use plain::Plain;

const JAIL_CONF: &str = "[DEFAULT]\nbackend = polling\nfilter = %(__name__)s[mode=%(mode)s]\nmode = normal\n\
    port = http,https\nprotocol = tcp\nmaxretry = 3\n\
    action_ = nftables[port=\"%(port)s\", protocol=\"%(protocol)s\"]\n\
    action_mw = %(action_)s\n            mail-whois[dest=\"root\"]\n\
    action = %(action_)s\n\
    [shop]\nlogpath = {dir}/shop.log\n[off]\nlogpath = {dir}/off.log\n";
const COMMON: &str =
    "[DEFAULT]\n_daemon = \\S*\n__prefix_line = \\s*\\S+ %(_daemon)s(?:\\[\\d+\\])?:\\s+\n";
const FILTER: &str = "[INCLUDES]\nbefore = common.conf\n\
    [Definition]\n_daemon = shop\n\
    prefregex = ^<F-MLFID>%(__prefix_line)s</F-MLFID><F-CONTENT>.+</F-CONTENT>$\n\
    failregex = ^login of <F-USER>\\S+</F-USER> from <HOST> failed$\n            <mode-<mode>>\n\
    mode-normal =\nmode-hard = ^odd request from <HOST>$\n";

/// Sessions that have been logged.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// A directory with this jail.local.
fn host(local: &str) -> Plain {
    let host = Plain::new();
    for dir in ["f", "f/filter.d", "f/action.d"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    host.write("f/jail.conf", JAIL_CONF);
    host.write("f/jail.local", local);
    host.write("f/filter.d/common.conf", COMMON);
    host.write("f/filter.d/shop.conf", FILTER);
    host.write(
        "f/action.d/nftables.conf",
        "[Definition]\n[Init]\nblocktype = reject\n",
    );
    host.write(
        "f/action.d/mail-whois.conf",
        "[Definition]\nactionban = mail <dest>\n",
    );
    host.write("shop.log", "");
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n");
    host
}

fn log(host: &Plain, messages: &[String]) {
    let mut file = fs::File::options()
        .append(true)
        .open(host.path("shop.log"))
        .unwrap();
    for message in messages {
        let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
        // A session is known by its process: each has one of its own.
        let pid = 1000 + SESSIONS.fetch_add(1, Ordering::Relaxed);
        writeln!(file, "{now} web shop[{pid}]: {message}").unwrap();
    }
}

fn failures(who: &str, times: usize) -> Vec<String> {
    vec![format!("login of anna from {who} failed"); times]
}

#[test]
fn a_jail_of_fail2bans_bans() {
    let mut host = host("[shop]\nenabled = true\nmode = hard\nbantime = 1h\n");
    host.start();
    log(&host, &failures("203.0.113.7", 2));
    log(
        &host,
        &[
            "odd request from 2001:db8:bad::7".to_owned(),
            "login of anna from 203.0.113.8 succeeded".to_owned(),
        ],
    );
    host.until("the failures to be counted", |host| {
        host.json(&["status", "shop"])["findings"] == 3
    });
    assert!(!host.is_banned("203.0.113.7"));
    log(&host, &failures("203.0.113.7", 1));
    log(&host, &failures("2001:db8:bad::7", 2));
    for who in ["203.0.113.7", "2001:db8:bad::7"] {
        host.until(who, |host| host.is_banned(who));
        let why = host.json(&["why", who]);
        let ban = &why["bans"][0];
        assert_eq!(ban["producer"], "jail:shop", "{why}");
        assert_eq!(ban["scope"], "80/tcp,443/tcp", "{why}");
        assert_eq!(ban["action"], "reject", "{why}");
        assert_eq!(ban["subject"], who, "{why}");
    }
    assert!(!host.is_banned("203.0.113.8"));

    // What is changed in Fail2ban's files counts with a reload.
    host.write(
        "f/jail.local",
        "[shop]\nenabled = true\nmaxretry = 1\n[other]\nenabled = true\n",
    );
    host.done(&["reload"]);
    let alerts = host.alerts();
    assert!(alerts.contains("fail2ban:other"), "{alerts}");
    log(&host, &failures("203.0.113.9", 1));
    host.until("one failure to be enough", |host| {
        host.is_banned("203.0.113.9")
    });
    host.write("f/jail.local", "[shop]\nenabled = true\n");
    host.done(&["reload"]);
    assert!(!host.alerts().contains("fail2ban:other"));

    // One of weir's that begins to read the log in its place.
    host.configure("[jail.sshd]\npaths = [\"{dir}/shop.log\"]\n");
    host.done(&["reload"]);
    assert_eq!(host.json(&["status", "sshd"])["name"], "sshd");
    assert_eq!(host.ask(&["status", "shop"]).0, Some(2));
}

#[test]
fn import_says_what_each_jail_becomes() {
    let host = host(
        "[DEFAULT]\naction = %(action_mw)s\nignoreip = friend.example\n[shop]\nenabled = true\nbantime = 2h\n\
         [twin]\nenabled = true\nfilter = nobody\nlogpath = /x\n",
    );
    let dir = host.path("f");
    let dir = dir.to_str().unwrap();
    let (code, dry) = host.ask(&["import", "fail2ban", dir, "--dry-run"]);
    assert_eq!(code, Some(1), "{dry}");
    for line in [
        "shop: filter shop reads {dir}/shop.log; 3 failures in 10m ban 80/tcp,443/tcp for 2h (reject), and runs mail-whois",
        "  not honoured: {dir}/f/jail.local:3: ignoreip: friend.example is no address; names are not looked up",
        "twin: NOT RUN: {dir}/f/jail.local:9: filter nobody: {dir}/f/filter.d/nobody.conf: there is no such file",
        "1 jails run, 1 do not; 1 more are not enabled",
    ] {
        let line = host.filled(line);
        assert!(dry.lines().any(|there| there == line), "{line}\n{dry}");
    }
    let (_, toml) = host.ask(&["import", "fail2ban", dir]);
    let comments = toml
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .collect::<Vec<_>>();
    assert_eq!(comments.join("\n"), dry.trim_end());
    assert!(
        toml.ends_with(&format!("[fail2ban]\npath = \"{dir}\"\n")),
        "{toml}"
    );

    // The check says the same: sound, but not all of it runs.
    let (code, said) = host.ask(&["check"]);
    assert_eq!(code, Some(1), "{said}");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in ["jail twin is not run", "jail.local:3: ignoreip"] {
        assert!(flat.contains(expected), "{expected}: {said}");
    }
    let (code, said) = host.ask(&["import", "fail2ban", "/nowhere"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("/nowhere/jail.conf: there is no such file"),
        "{said}"
    );
}

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
        "[DEFAULT]\naction = %(action_mw)s\nignoreip = friend!\n[shop]\nenabled = true\nbantime = 2h\n\
         [twin]\nenabled = true\nfilter = nobody\nlogpath = /x\n",
    );
    host.write("f/fail2ban.local", "[Definition]\nallowipv6 = no\n");
    let dir = host.path("f");
    let dir = dir.to_str().unwrap();
    let (code, dry) = host.ask(&["import", "fail2ban", dir, "--dry-run"]);
    assert_eq!(code, Some(1), "{dry}");
    for line in [
        "not honoured: {dir}/f/fail2ban.local:2: allowipv6 = no is not read: weir bans IPv6 as it does IPv4",
        "shop: filter shop reads {dir}/shop.log; 3 failures in 10m ban 80/tcp,443/tcp for 2h (reject), and runs mail-whois",
        "  not honoured: {dir}/f/jail.local:3: ignoreip: friend! is no address, and no name of a host",
        "twin: NOT RUN: {dir}/f/jail.local:9: filter nobody: {dir}/f/filter.d/nobody.conf: there is no such file",
        "1 jail runs, 1 is broken; 1 more is not enabled",
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
    for expected in [
        "jail twin is not run",
        "jail.local:3: ignoreip",
        "fail2ban.local:2: allowipv6 = no is not read",
    ] {
        assert!(flat.contains(expected), "{expected}: {said}");
    }
    let (code, said) = host.ask(&["import", "fail2ban", "/nowhere"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("/nowhere/jail.conf: there is no such file"),
        "{said}"
    );
}

/// What all jails have of one line is told once.
#[test]
fn a_note_of_several_jails_is_told_once() {
    let host = host(
        "[DEFAULT]\nignoreip = friend!\nenabled = true\n\
         [twin]\nfilter = shop\nlogpath = {dir}/shop.log\n\
         [third]\nfilter = shop\nlogpath = {dir}/shop.log\n",
    );
    host.write("off.log", "");
    host.write("f/filter.d/off.conf", FILTER);
    let dir = host.path("f");
    let (_, dry) = host.ask(&["import", "fail2ban", dir.to_str().unwrap(), "--dry-run"]);
    let note = "not honoured by 4 jails, shop to third: {dir}/f/jail.local:2: ignoreip: friend! is no address, and no name of a host";
    let note = host.filled(note);
    assert!(dry.lines().any(|line| line == note), "{note}\n{dry}");
    assert_eq!(dry.matches("friend!").count(), 1, "{dry}");
    assert!(
        dry.ends_with("4 jails run, none is broken; 0 more are not enabled\n"),
        "{dry}"
    );
    let (_, said) = host.ask(&["check"]);
    assert_eq!(said.matches("friend!").count(), 1, "{said}");
}

/// A start leaves a broken jail out; a reload must not take one away that runs.
#[test]
fn a_reload_that_would_break_a_jail_that_runs_is_refused() {
    let mut host = host("[shop]\nenabled = true\nmaxretry = 1\nbantime = 1h\n");
    host.start();
    log(&host, &failures("203.0.113.7", 1));
    host.until("the ban", |host| host.is_banned("203.0.113.7"));
    let good = host.read("f/filter.d/shop.conf");
    host.write("f/filter.d/shop.conf", &format!("{good}[Broken\n"));
    let line = good.lines().count() + 1;
    let (code, said) = host.ask(&["reload"]);
    assert_eq!(code, Some(2), "{said}");
    let place = format!(
        "jail shop, which runs: {}",
        host.filled("{dir}/f/filter.d/shop.conf")
    );
    assert!(said.contains(&format!("{place}:{line}: ")), "{said}");
    // It goes on as it was, and the mended file is taken.
    log(&host, &failures("203.0.113.8", 1));
    host.until("the ban", |host| host.is_banned("203.0.113.8"));
    host.write("f/filter.d/shop.conf", &good);
    assert_eq!(host.ask(&["reload"]).0, Some(0));
    log(&host, &failures("2001:db8::9", 1));
    host.until("the ban", |host| host.is_banned("2001:db8::9"));
    // Who wants it gone says so.
    host.write("f/filter.d/shop.conf", &format!("{good}[Broken\n"));
    host.write("f/jail.local", "[shop]\nenabled = false\n");
    let (code, said) = host.ask(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
}

/// The filter that is tried is the one that a jail runs.
#[test]
fn filter_test_tries_the_filter_that_runs() {
    let host = host("[shop]\nenabled = true\n[sshd]\nenabled = true\nlogpath = {dir}/shop.log\n");
    host.write(
        "f/filter.d/sshd.conf",
        "[Definition]\nfailregex = ^ Guests: <HOST>$\n",
    );
    let test = |name: &str, line: &str| {
        let line = format!("Nov 26 10:00:00 {line}\n");
        host.ask_with(&["filter", "test", name], &line)
    };
    let (code, said) = test("shop", "web shop[1]: login of anna from 192.0.2.7 failed");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = test("sshd", "Guests: 192.0.2.7");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("filter sshd of Fail2ban's, below"), "{said}");
    // Of weir's own jail it is weir's.
    host.configure("[jail.sshd]\npaths = [\"{dir}/shop.log\"]\n[fail2ban]\npath = \"{dir}/f\"\n");
    let (code, said) = test("sshd", "Guests: 192.0.2.7");
    assert_eq!(code, Some(1), "{said}");
    assert!(!said.contains("Fail2ban's"), "{said}");
}

/// What weir does otherwise than Fail2ban is said before the move.
#[test]
fn import_says_what_a_jail_loses_and_asks() {
    let host = host(
        "[shop]\nenabled = true\nignorecommand = /bin/false <ip>\n\
         [again]\nenabled = true\nfilter = shop\nlogpath = {dir}/fail2ban.log\n\
         [recidive]\nenabled = true\nfilter = recidive\nbackend = systemd\n",
    );
    host.write(
        "f/action.d/nftables.local",
        "[Definition]\nactionunban = true\nactionban = nft add <ip>\n            curl <ip>\n",
    );
    host.write(
        "f/fail2ban.conf",
        "[Definition]\nlogtarget = {dir}/fail2ban.log[format=x]\n",
    );
    host.write(
        "f/filter.d/recidive.conf",
        &format!("{FILTER}journalmatch = _COMM=fail2ban\n"),
    );
    let dir = host.path("f");
    let (code, dry) = host.ask(&["import", "fail2ban", dir.to_str().unwrap(), "--dry-run"]);
    assert_eq!(code, Some(0), "{dry}");
    for (jail, line) in [
        (
            "shop: ",
            "and asks ignorecommand before a ban, for 2 seconds at most",
        ),
        (
            "not honoured by 3 jails, shop to recidive: {dir}/f/action.d/nftables.local:3: ",
            "actionban: weir bans in place of this firewall, so that this command is not run",
        ),
    ] {
        let jail = host.filled(jail);
        let mut lines = dry.lines();
        let is_there = lines.any(|there| there.starts_with(&jail) && there.contains(line));
        assert!(is_there, "{jail}{line}\n{dry}");
    }
}

/// What Fail2ban has logged counts, beside what weir logs when it drops; here it does not.
#[test]
fn a_jail_that_counts_bans_reads_fail2bans_and_weirs() {
    let mut host = host(
        "[shop]\nenabled = true\nmaxretry = 1\n\
         [recidive]\nenabled = true\nfilter = again\nlogpath = {dir}/fail2ban.log\n",
    );
    let target = "[Definition]\nlogtarget = {dir}/fail2ban.log\n";
    host.write("f/fail2ban.conf", target);
    host.write(
        "f/filter.d/again.conf",
        "[Definition]\nfailregex = \\[\\d+\\]: NOTICE  \\[(?!recidive\\])[^\\]]*\\] Ban <HOST>$\n",
    );
    let (_, said) = host.ask(&["check"]);
    assert!(said.contains("jail recidive guards nothing"), "{said}");
    host.write("fail2ban.log", "");
    host.start();
    let own = host.path("state/fail2ban.log").display().to_string();
    let jails = host.json(&["status", "recidive"]);
    assert!(jails.to_string().contains(&own), "{jails}");
    log(&host, &["login of anna from 203.0.113.7 failed".to_owned()]);
    host.until("the ban by shop", |host| host.is_banned("203.0.113.7"));
    let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S,123");
    let line = format!("{now} fail2ban.actions        [7]: NOTICE  [sshd] Ban 203.0.113.8\n");
    host.write("fail2ban.log", &line.repeat(3));
    host.until("the ban by recidive", |host| host.is_banned("203.0.113.8"));
    assert_eq!(host.end("TERM"), Some(0));
    assert!(!host.path("state/fail2ban.log").exists());
}

/// Fail2ban itself does not start for want of a log. weir starts, and says that it guards less.
#[test]
fn a_jail_without_a_log_is_a_problem_of_the_check_and_begins_when_one_comes() {
    let mut host = host(
        "[shop]\nenabled = true\nmaxretry = 1\nlogpath = {dir}/shop.log\n          {dir}/gone.log\n\
         [late]\nenabled = true\nfilter = shop\nmaxretry = 1\nlogpath = {dir}/late*.log\n",
    );
    let (code, said) = host.ask(&["check"]);
    assert_eq!(code, Some(1), "{said}");
    let flat = |said: &str| said.split_whitespace().collect::<Vec<_>>().join(" ");
    let problem = "problem: [fail2ban]: jail late guards nothing: none of its logs can be read";
    assert!(flat(&said).contains(problem), "{said}");
    assert!(!flat(&said).contains("jail shop guards nothing"), "{said}");
    host.start();
    host.write("late-1.log", "");
    let (code, said) = host.ask(&["check"]);
    assert_eq!(code, Some(0), "{said}");
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
    host.until("the new log to be read", |host| {
        let mut file = fs::File::options()
            .append(true)
            .open(host.path("late-1.log"));
        let line = format!("{now} web shop[1]: login of anna from 203.0.113.7 failed\n");
        file.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        host.is_banned("203.0.113.7")
    });
}

#[test]
fn the_status_of_a_jail_is_for_a_person() {
    let mut host = host("[shop]\nenabled = true\nbantime = 1h\nignoreip = 192.0.2.1\n");
    host.start();
    log(&host, &failures("203.0.113.7", 3));
    log(&host, &failures("2001:db8::7", 3));
    log(&host, &failures("203.0.113.8", 2));
    log(&host, &failures("192.0.2.1", 2));
    host.until("all lines to be counted", |host| {
        let jail = host.json(&["status", "shop"]);
        jail["lines"] == 10 && jail["bans_in_force"] == 2
    });
    let said = host.done(&["status", "shop"]);
    for line in [
        "jail shop: 2 bans in force, 1 address with failures that make no ban yet",
        "  source: {dir}/shop.log",
        "  filter: shop",
        "  a ban: at 3 failures in 10m, for 1h, of ports 80/tcp,443/tcp, rejected",
        "  lines: 10 read",
        "  failures: 10 found; not counted: 2 of addresses that are never banned",
        "  bans: 2 made, 2 in force",
    ] {
        let line = host.filled(line);
        assert!(said.lines().any(|there| there == line), "{line}\n{said}");
    }
    for who in ["203.0.113.7 ", "2001:db8::7 "] {
        let row = said.lines().find(|line| line.starts_with(who));
        assert!(
            row.is_some_and(|row| row.contains(" until 20") && row.contains(" left)")),
            "{said}"
        );
    }
}

/// A mistake in a jail's own file, its filter or its action is that jail's: the others
/// run, and every screen says what does not, with file and line.
#[test]
fn a_broken_jail_stops_no_other() {
    let mut host = host("[shop]\nenabled = true\nmaxretry = 1\nbantime = 1h\n");
    fs::create_dir(host.path("f/jail.d")).unwrap();
    host.write(
        "f/jail.d/10-mail.conf",
        "[mail]\nenabled = true\nlogpath = {dir}/shop.log\nthis is no key\n\
         [late]\nenabled = true\nfilter = shop\nlogpath = {dir}/late.log\n",
    );
    host.write("f/jail.d/20-odd.conf", "[odd\nenabled = true\n");
    host.write(
        "f/jail.d/30-more.conf",
        "[open]\nenabled = true\nlogpath = {dir}/shop.log\n\
         [nobody]\nenabled = true\nlogpath = {dir}/shop.log\n\
         [act]\nenabled = true\nfilter = shop\nlogpath = {dir}/shop.log\naction = gone[x=1]\n",
    );
    for (name, failregex) in [("open", "a (<HOST>"), ("nobody", "no host here")] {
        let text = format!("[Definition]\nfailregex = {failregex}\n");
        host.write(&format!("f/filter.d/{name}.conf"), &text);
    }
    let broken = [
        ("mail", "f/jail.d/10-mail.conf:4: expected key = value"),
        ("odd", "f/jail.d/20-odd.conf:1: the [section] is not closed"),
        ("open", "f/filter.d/open.conf:2: "),
        ("nobody", "f/filter.d/nobody.conf:2: it names nobody"),
        ("act", "f/action.d/gone.conf"),
    ];
    let (code, said) = host.ask(&["check"]);
    assert_eq!(code, Some(1), "{said}");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for (jail, why) in broken {
        let problem = format!("jail {jail} is not run: ");
        let place = host.filled(&format!("{{dir}}/{why}"));
        assert!(
            said.contains(&problem) && said.contains(&place),
            "{place}: {said}"
        );
    }
    let late = host.filled("jail late: there is no log {dir}/late.log yet");
    assert!(said.contains(&late), "{said}");

    host.start();
    log(&host, &failures("203.0.113.7", 1));
    host.until("the ban", |host| host.is_banned("203.0.113.7"));
    let alerts = host.alerts();
    let (_, status) = host.ask(&["status"]);
    for (jail, why) in broken {
        assert!(
            alerts.contains(&format!("fail2ban:{jail}")),
            "{jail}: {alerts}"
        );
        let place = host.filled(&format!("{{dir}}/{why}"));
        let flat = status.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&place), "{place}: {status}");
    }
    let link = host.path("fail2ban-client");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), &link).unwrap();
    let client = |args: &[&str]| {
        let mut command = std::process::Command::new(&link);
        let output = command
            .arg("-s")
            .arg(host.path("weir.sock"))
            .args(args)
            .output();
        let output = output.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text, beside) = client(&["status"]);
    assert_eq!(code, Some(0), "{beside}");
    let list = "Status\n|- Number of jail:\t2\n`- Jail list:\tshop, late\n";
    assert_eq!(text, list, "what programs read has the jails that run");
    let (code, _, one) = client(&["status", "nobody"]);
    assert_eq!(code, Some(255), "{one}");
    let dir = host.path("f");
    let (code, tested, said) = client(&["-c", dir.to_str().unwrap(), "-t"]);
    assert_eq!((code, tested.as_str()), (Some(255), ""), "{said}");
    for (jail, why) in broken {
        let place = host.filled(&format!("jail {jail}"));
        assert!(
            beside.contains(&place) && said.contains(&place),
            "{place}: {beside}{said}"
        );
        let place = host.filled(&format!("{{dir}}/{why}"));
        assert!(
            beside.contains(&place) && said.contains(&place),
            "{place}: {beside}{said}"
        );
    }
    assert!(one.contains("nobody.conf:2: it names nobody"), "{one}");

    // Whom nobody may ban stands in [DEFAULT]: without it no jail runs.
    host.write("f/jail.d/40-all.conf", "[DEFAULT]\nignoreip 192.0.2.1\n");
    let (code, said) = host.ask(&["reload"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("40-all.conf:2: expected key = value"),
        "{said}"
    );
    assert!(host.is_banned("203.0.113.7"));
}

/// A client chooses when a search is given up: no other expression then reads its text.
#[test]
fn a_line_on_which_a_search_is_given_up_bans_nobody() {
    let mut host = host("[shop]\nenabled = true\nmaxretry = 1\nbantime = 1h\n");
    let first = r"^ login failed user=\w*(\w*)(\w*)(\w*)-\3\2\1 from <HOST>(?: text .*)?$";
    let loose = "^ login failed .* from <HOST>$";
    for (number, keys) in [
        format!("failregex = {first}\n            {loose}\n"),
        format!("failregex = {loose}\nignoreregex = {first}\n"),
        format!("prefregex = {first}\nfailregex = {loose}\n"),
    ]
    .iter()
    .enumerate()
    {
        host.write("f/filter.d/shop.conf", &format!("[Definition]\n{keys}"));
        match number {
            0 => host.start(),
            _ => _ = host.done(&["reload"]),
        }
        let line = format!(
            "login failed user={}-{} from 198.51.100.7 text x from 203.0.113.9",
            "a".repeat(150),
            "a".repeat(100)
        );
        let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
        let mut file = fs::File::options()
            .append(true)
            .open(host.path("shop.log"))
            .unwrap();
        let who = format!("203.0.113.2{number}");
        let good = format!("login failed user=b-b from {who}");
        writeln!(file, "{now} {line}\n{now} {good}").unwrap();
        let read = "weir_jail_given_up_lines_total{jail=\"shop\"} ";
        host.until("the line to be given up", |host| {
            let metrics = host.done(&["metrics"]);
            let line = metrics.lines().find(|line| line.starts_with(read));
            line.is_some_and(|line| line.ends_with(&format!(" {}", number + 1)))
        });
        assert!(!host.is_banned("203.0.113.9"), "{keys}");
    }
    // A line that was cut is one of those.
    let long = format!("login failed {} from 203.0.113.9", "x".repeat(9_000));
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
    let mut file = fs::File::options()
        .append(true)
        .open(host.path("shop.log"))
        .unwrap();
    writeln!(file, "{now} {long}").unwrap();
    host.until("the long line to be counted", |host| {
        host.done(&["metrics"])
            .contains("weir_jail_given_up_lines_total{jail=\"shop\"} 4")
    });
    assert!(host.alerts().contains("jail:shop:given-up"));
}

/// A search that would take too long is given up, counted and told.
#[test]
fn a_line_that_costs_too_much_is_counted_and_an_alert() {
    let mut host = host("[shop]\nenabled = true\nmaxretry = 1\nbantime = 1h\n");
    host.write(
        "f/filter.d/shop.conf",
        "[Definition]\nfailregex = ^ web shop\\[\\d+\\]: (?P<x>a*)(?:a+)+(?P=x)(?!c)c <HOST>$\n            \
         ^ web shop\\[\\d+\\]: failed <HOST>$\n",
    );
    host.start();
    let hostile = format!("{}c 192.0.2.5", "a".repeat(7_000));
    log(&host, &[hostile.clone(), "failed 203.0.113.7".to_owned()]);
    host.until("the line behind it", |host| host.is_banned("203.0.113.7"));
    host.until("the alert", |host| {
        host.alerts().contains("jail:shop:given-up")
    });
    let alerts = host.alerts();
    assert!(
        alerts.contains("1 lines of its log were not read"),
        "{alerts}"
    );
    assert!(alerts.contains("shop["), "{alerts}");
    let metrics = host.done(&["metrics"]);
    assert!(
        metrics.contains("weir_jail_given_up_lines_total{jail=\"shop\"} 1"),
        "{metrics}"
    );
    assert!(!host.is_banned("192.0.2.5"));
}

/// What `logencoding` says is what the bytes mean.
#[test]
fn a_jail_reads_its_log_in_its_encoding() {
    let mut host = host(
        "[DEFAULT]\nmaxretry = 1\nbantime = 1h\nfilter = greek\n\
         [greek]\nenabled = true\nlogpath = {dir}/greek.log\nlogencoding = cp1253\n\
         [wide]\nenabled = true\nlogpath = {dir}/wide.log\nlogencoding = utf-16\n\
         [odd]\nenabled = true\nlogpath = {dir}/odd.log\nlogencoding = utf-9\n",
    );
    host.write(
        "f/filter.d/greek.conf",
        "[Definition]\nfailregex = ^ λάθος <HOST>$\n",
    );
    let wide = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    fs::write(host.path("greek.log"), "").unwrap();
    fs::write(host.path("wide.log"), wide("\u{feff}")).unwrap();
    host.start();
    let alerts = host.alerts();
    assert!(
        alerts.contains("logencoding = utf-9: expected auto, utf-8"),
        "{alerts}"
    );
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S").to_string();
    let greek = [now.as_bytes(), b" \xeb\xdc\xe8\xef\xf2 203.0.113.7\n"].concat();
    let append = |name: &str, bytes: &[u8]| {
        let mut file = fs::File::options()
            .append(true)
            .open(host.path(name))
            .unwrap();
        file.write_all(bytes).unwrap();
    };
    append("greek.log", &greek);
    // A character with a byte like a newline ends no line: nobody is banned by what a
    // client wrote before it.
    let lines = format!("{now} λάθος 192.0.2.5\u{10a} and more\n{now} λάθος 2001:db8:bad::7\n");
    append("wide.log", &wide(&lines));
    for who in ["203.0.113.7", "2001:db8:bad::7"] {
        host.until(who, |host| host.is_banned(who));
    }
    assert!(!host.is_banned("192.0.2.5"));
}

/// A log of JSON objects: whole values of fields count, wherever they stand, and nothing
/// that a client writes into one makes another.
#[test]
fn a_jail_reads_fields_of_json() {
    let mut host = host("[shop]\nenabled = true\nmaxretry = 1\nbantime = 1h\n");
    host.write(
        "f/filter.d/shop.conf",
        "[Definition]\nfailregex = <json:event>login_failed<json:user><F-USER>.*</F-USER><json:remote.ip><ADDR>\n\
         datepattern = \"ts\":\"%%ExY-%%m-%%dT%%H:%%M:%%S%%z\n",
    );
    host.start();
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let line = |user: &str, ip: &str, event: &str| {
        format!(
            "{{\"remote\":{{\"port\":7,\"ip\":\"{ip}\"}},\"ts\":\"{now}\",\"user\":\"{user}\",\"event\":\"{event}\"}}\n"
        )
    };
    let lines = [
        line("a\\\",\\\"event\\\":\\\"login_failed", "192.0.2.1", "login"),
        line("a\\nlogin_failed\\n192.0.2.2", "192.0.2.2", "login"),
        line("a", "192.0.2.3 or so", "login_failed"),
        line("\u{f6}", "203.0.113.7", "login_failed"),
        line("", "2001:db8:bad::7", "login_failed"),
    ];
    let mut file = fs::File::options()
        .append(true)
        .open(host.path("shop.log"))
        .unwrap();
    file.write_all(lines.concat().as_bytes()).unwrap();
    for who in ["203.0.113.7", "2001:db8:bad::7"] {
        host.until(who, |host| host.is_banned(who));
    }
    for who in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        assert!(!host.is_banned(who), "{who}");
    }
}

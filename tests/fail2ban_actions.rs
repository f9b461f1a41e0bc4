//! The commands of Fail2ban's actions, run by a real daemon: what they are told, what a
//! client's text becomes in them, and what of them delays or ends.

#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

use plain::Plain;

const JAIL_CONF: &str = "[DEFAULT]\nbackend = polling\nmaxretry = 1\nbantime = 1h\n\
    action_ = nftables[port=80, protocol=tcp]\n\
    [shop]\nenabled = true\nfilter = shop\nlogpath = {dir}/shop.log\n";

/// A directory whose jail runs `action` beside its ban.
fn host(actions: &[(&str, &str)]) -> Plain {
    let host = Plain::new();
    for dir in ["f", "f/filter.d", "f/action.d"] {
        fs::create_dir(host.path(dir)).unwrap();
    }
    let mut jail = format!("{JAIL_CONF}action = %(action_)s\n");
    for (name, text) in actions {
        jail.push_str(&format!("    {name}\n"));
        host.write(&format!("f/action.d/{name}.conf"), text);
    }
    host.write("f/jail.conf", &jail);
    let filter = "[Definition]\nfailregex = login of .* from <HOST> failed$\n";
    host.write("f/filter.d/shop.conf", filter);
    host.write(
        "f/action.d/nftables.conf",
        "[Definition]\n[Init]\nblocktype = reject\n",
    );
    host.write("shop.log", "");
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n");
    host
}

fn fails(host: &Plain, user: &str, who: &str) {
    let log = fs::File::options().append(true).open(host.path("shop.log"));
    let now = jiff::Zoned::now().strftime("%b %d %H:%M:%S");
    let line = format!("{now} web shop: login of {user} from {who} failed\n");
    log.unwrap().write_all(line.as_bytes()).unwrap();
}

fn wait_for(host: &Plain, file: &str, line: &str) {
    let has = |host: &Plain| host.read(file).lines().any(|there| there == line);
    host.until(line, |host| has(host));
}

const HOSTILE: &str = "x'\"; touch {dir}/pwned; $(touch {dir}/pwned) `touch {dir}/pwned` ~!x";

#[test]
fn an_action_is_told_of_bans_and_their_ends() {
    let mut host = host(&[(
        "tell",
        "[Definition]\nactionstart = echo start <name> >> {dir}/told\n\
         actionstop = echo stop <name> >> {dir}/told\n\
         actionban = echo \"ban <word> <ip> <family> <failures> <bancount> <restored> <ip-rev> for <bantime>\" >> {dir}/told\n\
         \x20           printf '%%s\\n' \"<matches>\" >> {dir}/lines\n\
         \x20           printf '%%s\\n' '<matches>' >> {dir}/lines\n\
         actionunban = echo unban <ip> >> {dir}/told\n\
         [Init]\nword = four\n[Init?family=inet6]\nword = six\n",
    )]);
    host.start();
    wait_for(&host, "told", "start shop");
    fails(&host, &host.filled(HOSTILE), "203.0.113.7");
    wait_for(
        &host,
        "told",
        "ban four 203.0.113.7 inet4 1 1 0 7.113.0.203. for 3600",
    );
    fails(&host, "anna", "2001:db8:bad::7");
    let v6 = format!(
        "ban six 2001:db8:bad::7 inet6 1 1 0 7.0.0.0.{}d.a.b.0.8.b.d.0.1.0.0.2. for 3600",
        "0.".repeat(16)
    );
    wait_for(&host, "told", &v6);
    let lines = host.read("lines");
    let hostile = format!("login of {} from 203.0.113.7 failed", host.filled(HOSTILE));
    assert_eq!(
        lines
            .lines()
            .filter(|line| line.ends_with(&hostile))
            .count(),
        2,
        "{lines}"
    );
    assert!(!host.path("pwned").exists());

    host.done(&["unban", "203.0.113.7"]);
    wait_for(&host, "told", "unban 203.0.113.7");
    // It sets something up, so it is told again of what is in force; of what is over it is not.
    assert_eq!(host.end("TERM"), Some(0));
    wait_for(&host, "told", "stop shop");
    host.write("told", "");
    host.start();
    host.until("the older ban to be told", |host| {
        host.read("told")
            .contains("ban six 2001:db8:bad::7 inet6 0 1 1 ")
    });
    assert!(host.read("told").starts_with("start shop\n"));
    assert!(!host.read("told").contains("203.0.113.7"));
    // A reload without the action stops it.
    let jail = host.read("f/jail.conf").replace("    tell\n", "");
    host.write("f/jail.conf", &jail);
    host.done(&["reload"]);
    wait_for(&host, "told", "stop shop");
    assert!(!host.alerts().contains("action:"));
}

#[test]
fn a_mail_is_written_once() {
    let mut host = host(&[(
        "post",
        "[Definition]\nnorestored = 1\nactionban = echo <ip> >> {dir}/mails\nactionunban = echo end <ip> >> {dir}/mails\n",
    )]);
    host.start();
    fails(&host, "anna", "203.0.113.7");
    wait_for(&host, "mails", "203.0.113.7");
    assert_eq!(host.end("TERM"), Some(0));
    host.start();
    assert!(host.is_banned("203.0.113.7"));
    fails(&host, "anna", "203.0.113.8");
    wait_for(&host, "mails", "203.0.113.8");
    host.done(&["unban", "203.0.113.7"]);
    host.done(&["unban", "203.0.113.8"]);
    wait_for(&host, "mails", "end 203.0.113.8");
    assert_eq!(
        host.read("mails"),
        "203.0.113.7\n203.0.113.8\nend 203.0.113.8\n"
    );
}

#[test]
fn an_action_that_fails_is_an_alert_and_is_set_up_anew() {
    let mut host = host(&[
        (
            "broken",
            "[Definition]\nactionban = echo 'no such list' >&2; exit 7\n",
        ),
        (
            "lost",
            "[Definition]\nactionstart = touch {dir}/set; echo start >> {dir}/told\n\
             actionstop = rm -f {dir}/set; echo stop >> {dir}/told\nactioncheck = test -e {dir}/set\n\
             actionban = test -e {dir}/set && echo ban <ip> >> {dir}/told\n\
             actionreban = echo again <ip> >> {dir}/told\nactionunban = echo unban <ip> >> {dir}/told\n\
             actionflush = echo flush >> {dir}/told\n",
        ),
    ]);
    host.start();
    fails(&host, "anna", "203.0.113.7");
    host.until("the alert", |host| host.alerts().contains("exit code 7"));
    let alerts = host.alerts();
    assert!(
        alerts.contains(
            "actionban of action broken in jail shop ended with exit code 7: no such list"
        ),
        "{alerts}"
    );
    for name in ["runs", "failures"] {
        let sample = format!("weir_action_{name}_total{{jail=\"shop\",action=\"broken\"}} 1");
        host.until(&sample, |host| host.done(&["metrics"]).contains(&sample));
    }
    wait_for(&host, "told", "ban 203.0.113.7");
    // Somebody has flushed the firewall.
    fs::remove_file(host.path("set")).unwrap();
    fails(&host, "anna", "2001:db8::8");
    wait_for(&host, "told", "ban 2001:db8::8");
    assert_eq!(
        host.read("told"),
        "start\nban 203.0.113.7\nstop\nstart\nagain 203.0.113.7\nban 2001:db8::8\n"
    );
    assert!(!host.alerts().contains("action lost"));
    host.done(&["unban", "--all"]);
    wait_for(&host, "told", "flush");
    fails(&host, "anna", "203.0.113.9");
    wait_for(&host, "told", "ban 203.0.113.9");
    assert!(!host.read("told").contains("unban"));
}

/// An action that hangs, leaves a process behind, and prints without end delays nobody:
/// bans and the end do not wait.
#[test]
fn an_action_that_hangs_delays_nobody() {
    let mut host = host(&[
        (
            "hangs",
            "[Definition]\nactionban = sleep 3601 & echo $! >> {dir}/pids; yes | cat; sleep 3601\n[Init]\ntimeout = 2\n",
        ),
        (
            "sound",
            "[Definition]\nactionban = echo <ip> >> {dir}/told\n",
        ),
        (
            "endless",
            "[Definition]\nactionban = yes >&2\nactionstop = sleep 3601\n[Init]\ntimeout = 1h\n",
        ),
    ]);
    host.start();
    for n in 1..=5 {
        let who = format!("203.0.113.{n}");
        let began = Instant::now();
        fails(&host, "anna", &who);
        host.until(&who, |host| host.is_banned(&who));
        assert!(began.elapsed() < Duration::from_secs(2));
        wait_for(&host, "told", &who);
    }
    host.until("the timeout", |host| {
        host.alerts()
            .contains("hangs in jail shop took longer than its timeout of 2s")
    });
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    assert!(host.said().contains("commands were not run before the end"));
    for pid in host.read("pids").lines() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        assert!(
            status.is_empty() || status.contains("State:\tZ"),
            "{pid} lives on: {status}"
        );
    }
}

#[test]
fn what_cannot_be_run_safely_is_named_and_a_jail_that_bans_elsewhere_bans_here() {
    let host = host(&[
        (
            "code",
            "[Definition]\nactionban = sh -c \"log '<matches>'\"\n",
        ),
        ("tagged", "[Definition]\nactionban = echo <F-USER>\n"),
    ]);
    let dir = host.path("f");
    let import = || {
        host.ask(&["import", "fail2ban", dir.to_str().unwrap(), "--dry-run"])
            .1
    };
    let said = import();
    for expected in [
        "action code: not run: {dir}/f/action.d/code.conf:2: actionban: <matches> is an argument of a program that may run it",
        "action tagged: not run: {dir}/f/action.d/tagged.conf:2: actionban: <F-USER> is a value that weir does not keep",
    ] {
        assert!(said.contains(&host.filled(expected)), "{said}");
    }
    host.write(
        "f/action.d/cloud.conf",
        "[Definition]\nactionban = curl <ip>\nactionunban = curl -X DELETE <ip>\n",
    );
    host.write("f/action.d/post.conf", "[Definition]\nactionban = mail\n");
    let jail =
        "[shop]\nenabled = true\nfilter = shop\nlogpath = {dir}/shop.log\nport = 443\naction = ";
    host.write("f/jail.conf", &format!("{jail}cloud\n"));
    let said = import();
    assert!(
        said.contains("ban 443/tcp for 10m (reject), and runs cloud"),
        "{said}"
    );
    assert!(
        said.contains("it bans elsewhere; weir bans 443/tcp of this host besides"),
        "{said}"
    );
    // Who only writes mails bans nobody in Fail2ban either.
    host.write("f/jail.conf", &format!("{jail}post\n"));
    let said = import();
    assert!(
        said.contains("shop: NOT RUN: none of its actions bans anybody (post)"),
        "{said}"
    );
    host.write("f/jail.conf", &format!("{jail}cloud\n"));
    host.configure("observe = true\n[fail2ban]\npath = \"{dir}/f\"\n");
    let said = host.ask(&["check"]).1;
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("while observe is true the actions of these jails run no commands: shop"),
        "{said}"
    );
}

/// As the guide has an administrator move over: what the commands may need is kept while
/// weir observes, also for jails that were taken out meanwhile.
#[test]
fn actions_begin_when_a_reload_ends_observing() {
    let mut host = host(&[(
        "tell",
        "[Definition]\nactionban = echo <ip> >> {dir}/told\n",
    )]);
    let jail = host.read("f/jail.conf");
    host.configure("observe = true\n[fail2ban]\npath = \"{dir}/f\"\n");
    host.start();
    host.write(
        "f/jail.conf",
        &jail.replace("enabled = true", "enabled = false"),
    );
    assert_eq!(host.ask(&["reload"]).0, Some(0));
    host.write("f/jail.conf", &jail);
    host.configure("[fail2ban]\npath = \"{dir}/f\"\n");
    let (code, said) = host.ask(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
    fails(&host, "anna", "203.0.113.7");
    wait_for(&host, "told", "203.0.113.7");
}

#[test]
fn an_ignorecommand_says_who_is_not_banned() {
    let mut host = host(&[]);
    let jail = host.read("f/jail.conf");
    let command = "echo <ip> >> {dir}/asked; test <ip> = 203.0.113.7 -o <ip> = 2001:db8::7";
    let text =
        format!("{jail}ignorecommand = {command}\nignorecache = key=\"<ip>\", max-time=1h\n");
    host.write("f/jail.conf", &text);
    host.start();
    for who in ["203.0.113.7", "2001:db8::7", "203.0.113.8", "2001:db8::8"] {
        fails(&host, "anna", who);
    }
    for who in ["203.0.113.8", "2001:db8::8"] {
        host.until(who, |host| host.is_banned(who));
    }
    host.until("all to be asked about", |host| {
        host.read("asked").lines().count() == 4
    });
    // The answer is kept.
    fails(&host, "anna", "203.0.113.7");
    host.until("the failure to be counted", |host| {
        host.json(&["status", "shop"])["findings"] == 5
    });
    assert!(!host.is_banned("203.0.113.7") && !host.is_banned("2001:db8::7"));
    assert_eq!(host.read("asked").lines().count(), 4);
    assert!(!host.alerts().contains("ignorecommand"));

    // It fails, or never ends: nobody is spared, and a ban comes all the same.
    for (command, who, alert) in [
        (
            "echo broken >&2; exit 3",
            "203.0.113.21",
            "ended with exit code 3: broken",
        ),
        ("sleep 3601", "203.0.113.22", ""),
    ] {
        let text = format!("{jail}ignorecommand = {command}\n");
        host.write("f/jail.conf", &text);
        host.done(&["reload"]);
        let began = Instant::now();
        fails(&host, "anna", who);
        host.until(who, |host| host.is_banned(who));
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
        assert!(host.alerts().contains(alert), "{}", host.alerts());
    }
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
}

//! Commands of Fail2ban's jails where nothing is dropped: what cannot be run, what is not run,
//! and `ignorecommand`. The commands of actions, run by a daemon that drops, are in
//! `root_fail2ban_actions.rs`.

#[path = "common/fail2ban_host.rs"]
mod fail2ban_host;
#[path = "common/plain.rs"]
mod plain;

use std::time::{Duration, Instant};

use fail2ban_host::{fails, host};
use plain::Plain;

/// What waits for no command takes less, on a machine that does something else as well.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn what_cannot_be_run_safely_is_named_and_a_jail_without_a_firewall_notifies_only() {
    let host = host(&[
        (
            "code",
            "[Definition]\nactionban = sh -c \"log '<matches>'\"\n",
        ),
        ("tagged", "[Definition]\nactionban = echo <ip-host>\n"),
        (
            "late",
            "[Definition]\nactionban = echo\nactionstart_on_demand = perhaps\n",
        ),
    ]);
    let dir = host.path("f");
    let import = || {
        host.ask(&["import", "fail2ban", dir.to_str().unwrap(), "--dry-run"])
            .1
    };
    let said = import();
    for expected in [
        "action code: not run: {dir}/f/action.d/code.conf:2: actionban: <matches> is an argument of a program that may run it",
        "action tagged: not run: {dir}/f/action.d/tagged.conf:2: actionban: <ip-host> is a value that weir does not keep",
        "action late: not run: {dir}/f/action.d/late.conf:3: actionstart_on_demand = perhaps",
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
    // Whether or not what they do is undone, they drop nothing in Fail2ban either.
    for (actions, runs) in [
        ("cloud", ", and runs cloud"),
        ("post", ", and runs post"),
        ("post\n    smtp.py", ", and runs post"),
        ("", "that only notifies\n"),
    ] {
        host.write("f/jail.conf", &format!("{jail}{actions}\n"));
        let said = import();
        let notifies = "shop: NOTIFIES ONLY, weir drops nothing for it: filter shop reads";
        assert!(said.contains(notifies) && said.contains(runs), "{said}");
        let said = host.ask(&["check"]).1;
        let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let notifies = "jail shop notifies only, and weir drops nothing for it";
        assert!(flat.contains(notifies), "{said}");
    }
    // But a firewall's action that is not carried out is not passed over for the others.
    for (actions, why) in [
        ("pf\n    post", "pf: it is a firewall of another system"),
        ("smtp.py", "smtp.py: it is a program in Python"),
    ] {
        host.write("f/jail.conf", &format!("{jail}{actions}\n"));
        let said = import();
        let not_run = format!(
            "shop: NOT RUN: what of its actions is to ban cannot be carried out, so that it would ban nobody ({why})"
        );
        assert!(said.contains(&not_run), "{said}");
    }
    host.write("f/jail.conf", &format!("{jail}cloud\n"));
    host.configure("observe = true\n[fail2ban]\npath = \"{dir}/f\"\n");
    let said = host.ask(&["check"]).1;
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("while observe is true the actions of these jails run no commands: shop"),
        "{said}"
    );
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
    assert!(!host.alerts().contains("count as not ignored"));

    // It fails, or never ends: nobody is spared, and a ban comes all the same.
    for (command, who, alert) in [
        (
            "echo broken >&2; exit 3",
            "203.0.113.21",
            "ended with exit code 3: broken",
        ),
        (
            "sleep 3601",
            "203.0.113.22",
            "ignorecommand of jail shop has not answered within 2 s",
        ),
    ] {
        ask_by(&mut host, &jail, command);
        let began = Instant::now();
        fails(&host, "anna", who);
        host.until(who, |host| host.is_banned(who));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert!(host.alerts().contains(alert), "{}", host.alerts());
    }
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

fn ask_by(host: &mut Plain, jail: &str, command: &str) {
    let text = format!("{jail}ignorecommand = {command}\n");
    host.write("f/jail.conf", &text);
    host.done(&["reload"]);
}

/// A ban does not wait longer for a command that is slow; who is to be ignored after all is
/// freed as soon as the command says so, and nobody else is.
#[test]
fn a_late_answer_of_an_ignorecommand_lifts_the_ban() {
    let mut host = host(&[]);
    let jail = host.read("f/jail.conf");
    host.start();
    let slow = "sleep 4; test <ip> = 203.0.113.7 -o <ip> = 2001:db8::7";
    ask_by(&mut host, &jail, slow);
    let (spared, guilty) = (["203.0.113.7", "2001:db8::7"], "203.0.113.8");
    for who in spared {
        fails(&host, "anna", who);
    }
    for who in spared {
        let lifted = format!("unban {who}, jail shop: ignorecommand says so");
        host.until(&lifted, |host| host.said().contains(&lifted));
        assert!(host.said().contains(&format!(" ban {who}, jail shop")));
        assert!(!host.is_banned(who));
    }
    let alert = "ignorecommand of jail shop has not answered within 2 s";
    assert!(host.alerts().contains(alert), "{}", host.alerts());
    fails(&host, "anna", guilty);
    host.until(guilty, |host| host.is_banned(guilty));
    // The answer "no" comes after 4 s.
    std::thread::sleep(Duration::from_secs(5));
    assert!(host.is_banned(guilty));
    // Quick ones end the alert.
    ask_by(&mut host, &jail, "test <ip> = 203.0.113.7");
    let mut n = 10;
    host.until("the alert to end", |host| {
        n += 1;
        let who = format!("203.0.113.{n}");
        fails(host, "anna", &who);
        host.until(&who, |host| host.is_banned(&who));
        !host.alerts().contains("ignorecommand")
    });
}

#[test]
fn nothing_is_run_where_nothing_is_dropped() {
    let action = "[Definition]\nactionstart = echo start >> {dir}/told\n\
        actionban = echo ban <ip> >> {dir}/told\n";
    let mut host = host(&[("tell", action)]);
    for (config, setting) in [
        ("", "backend is \"dry-run\""),
        ("observe = true\n", "observe is true"),
    ] {
        host.configure(&format!("{config}[fail2ban]\npath = \"{{dir}}/f\"\n"));
        host.start();
        for who in ["203.0.113.7", "2001:db8::7"] {
            fails(&host, "anna", who);
            host.until(who, |host| host.is_banned(who));
        }
        let expected = format!("while {setting} the actions of these jails run no commands: shop");
        for verb in ["check", "status"] {
            let said = host.ask(&[verb]).1;
            let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(&expected), "{verb}: {said}");
        }
        assert_eq!(host.end("TERM"), Some(0));
        assert_eq!(host.read("told"), "");
    }
}

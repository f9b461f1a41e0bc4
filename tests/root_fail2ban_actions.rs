//! The commands of Fail2ban's actions, run by a real daemon that drops packets in a network
//! namespace of its own: what they are told, what a client's text becomes in them, how they are
//! started and repaired. What they leave behind is in `root_fail2ban_leftovers.rs`, what they
//! have missed or must undo in `root_fail2ban_undo.rs`.

#[path = "common/fail2ban_host.rs"]
mod fail2ban_host;
#[path = "common/plain.rs"]
mod plain;

use std::{fs, process::Command, time::Duration};

use fail2ban_host::{HOSTILE, dropping, fails, lines, skipped, wait_for};
use plain::Plain;

/// A command in the network namespace of the daemon.
fn inside(host: &Plain, args: &[&str]) -> String {
    let pid = host.pid().to_string();
    let output = Command::new("nsenter")
        .args(["-t", &pid, "-n"])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn root_an_action_is_told_of_bans_and_their_ends() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
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
            .contains("ban six 2001:db8:bad::7 inet6 1 1 1 ")
    });
    assert!(host.read("told").starts_with("start shop\n"));
    assert!(!host.read("told").contains("203.0.113.7"));
    // A reload without the action undoes what it was told, and stops it.
    let jail = host.read("f/jail.conf").replace("    tell\n", "");
    host.write("f/jail.conf", &jail);
    host.done(&["reload"]);
    wait_for(&host, "told", "stop shop");
    let told = host.read("told");
    assert!(
        told.ends_with("\nunban 2001:db8:bad::7\nstop shop\n"),
        "{told}"
    );
    assert!(!host.alerts().contains("action:"));
}

#[test]
fn root_a_mail_is_written_once() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
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
        "203.0.113.7\n203.0.113.8\nend 203.0.113.7\nend 203.0.113.8\n"
    );
}

#[test]
fn root_an_action_that_fails_is_an_alert_and_is_set_up_anew() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[
        (
            "broken",
            "[Definition]\nactionban = echo 'no such list' >&2; exit 7\n",
        ),
        (
            "lost",
            "[Definition]\nactionstart = touch {dir}/set; echo start >> {dir}/told\n\
             actionstop = rm -f {dir}/set; echo stop >> {dir}/told\nactioncheck = test -e {dir}/set\n\
             actionban = test -e {dir}/set && echo ban <ip> >> {dir}/told\n\
             actionreban = echo again <ip> <failures> <restored> <bantime> >> {dir}/told\n\
             actionunban = echo unban <ip> >> {dir}/told\n\
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
    // It is told of the new ban first, and of the older one with what is left of it.
    host.until("the older ban to be told again", |host| {
        host.read("told").contains("again ")
    });
    let told = host.read("told");
    let before = "start\nban 203.0.113.7\nstop\nstart\nban 2001:db8::8\nagain 203.0.113.7 1 0 ";
    let left = told.strip_prefix(before).expect(&told).trim().parse();
    assert!((3000..=3600).contains(&left.unwrap()), "{told}");
    assert!(!host.alerts().contains("action lost"));
    host.done(&["unban", "--all"]);
    wait_for(&host, "told", "flush");
    fails(&host, "anna", "203.0.113.9");
    wait_for(&host, "told", "ban 203.0.113.9");
    assert!(!host.read("told").contains("unban"));
}

/// Real sets of nftables, one of each family: each is made for the first ban of its family,
/// repaired alone, and taken away.
#[test]
fn root_each_family_has_a_set_of_its_own() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "sets",
        "[Definition]\n\
         actionstart = nft add table inet elsewhere\n\
         \x20             nft 'add set inet elsewhere <set> { type <settype>; flags timeout; }'\n\
         actionstop = nft delete set inet elsewhere <set>\n\
         actionflush = nft flush set inet elsewhere <set>\n\
         actioncheck = nft list set inet elsewhere <set>\n\
         actionban = nft 'add element inet elsewhere <set> { <ip> timeout <bantime>s }'\n\
         actionunban = nft 'delete element inet elsewhere <set> { <ip> }'\n\
         [Init]\nset = s4\nsettype = ipv4_addr\n\
         [Init?family=inet6]\nset = s6\nsettype = ipv6_addr\n",
    )]);
    host.start();
    let set = |host: &Plain, name| inside(host, &["nft", "list", "set", "inet", "elsewhere", name]);
    let has = |host: &Plain, name, who: &str| {
        host.until(who, |host| {
            set(host, name).contains(&format!("{who} timeout"))
        });
    };
    fails(&host, "anna", "203.0.113.7");
    has(&host, "s4", "203.0.113.7");
    assert_eq!(set(&host, "s6"), "");
    fails(&host, "anna", "2001:db8::7");
    has(&host, "s6", "2001:db8::7");
    // Somebody deletes one of them.
    inside(&host, &["nft", "delete", "set", "inet", "elsewhere", "s6"]);
    fails(&host, "anna", "2001:db8::8");
    has(&host, "s6", "2001:db8::8");
    has(&host, "s6", "2001:db8::7");
    assert!(set(&host, "s4").contains("203.0.113.7 timeout"));
    host.done(&["unban", "2001:db8::7"]);
    host.until("the end to be told", |host| {
        !set(host, "s6").contains("2001:db8::7")
    });
    assert!(!host.alerts().contains("action:"), "{}", host.alerts());
    let jail = host.read("f/jail.conf").replace("    sets\n", "");
    host.write("f/jail.conf", &jail);
    host.done(&["reload"]);
    host.until("both to be taken away", |host| {
        set(host, "s4").is_empty() && set(host, "s6").is_empty()
    });
    assert!(!host.said().contains("actionstop"), "{}", host.said());
}

#[test]
fn root_what_a_filter_captures_reaches_commands() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "tell",
        "[Definition]\nactionban = printf '%%s\\n' \"ban <ip> <F-USER>|<F-WAY>|<F-NONE>\" >> {dir}/told\n\
         \x20           printf '%%s\\n' <F-USER> '<F-USER>' >> {dir}/told\n\
         actionunban = printf '%%s\\n' 'unban <ip> <F-USER>' >> {dir}/told\n",
    )]);
    let filter = "[Definition]\nfailregex = login of <F-USER>.*?</F-USER>(?: via <F-WAY>\\w+</F-WAY>)? from <HOST> failed$\n";
    host.write("f/filter.d/shop.conf", filter);
    let jail = host.read("f/jail.conf");
    host.write("f/jail.conf", &jail.replace("maxretry = 1", "maxretry = 2"));
    host.start();
    let hostile = host.filled(HOSTILE);
    for who in ["203.0.113.7", "2001:db8::7"] {
        fails(&host, &format!("{hostile} via imap"), who);
        fails(&host, "berta via pop3", who);
        wait_for(&host, "told", &format!("ban {who} {hostile}|imap|"));
        host.done(&["unban", who]);
        wait_for(&host, "told", &format!("unban {who} {hostile}"));
    }
    let times = lines(&host, "told")
        .iter()
        .filter(|line| **line == hostile)
        .count();
    assert_eq!(times, 4);
    assert!(!host.path("pwned").exists());
    // The next ban is of other failures. (Those of the second in which somebody was let in
    // do not count, and stamps of logs have whole seconds.)
    std::thread::sleep(Duration::from_millis(1_100));
    for user in ["carla", "dora via imap"] {
        fails(&host, user, "203.0.113.7");
    }
    wait_for(&host, "told", "ban 203.0.113.7 carla||");
}

#[test]
fn root_actionstart_waits_for_the_first_ban_if_it_is_to() {
    if skipped() {
        return;
    }
    let action = |name: &str, init: &str| {
        let text = "[Definition]\nactionstart = echo start <word> >> {dir}/{name}\n\
            actionstop = echo stop <word> >> {dir}/{name}\n\
            actionban = echo ban <word> <ip> >> {dir}/{name}\n[Init]\nword = one\n";
        format!("{}{init}", text.replace("{name}", name))
    };
    let by_family = "[Init?family=inet6]\nword = six\n";
    let mut host = dropping(&[
        ("same", &action("same", "")),
        ("waits", &action("waits", "actionstart_on_demand = true\n")),
        ("differs", &action("differs", by_family)),
        ("never", &action("never", "")),
    ]);
    host.write("f/action.d/first.conf", &action("first", by_family));
    let jail = host.read("f/jail.conf");
    let jail = jail.replace("    never\n", "    first[actionstart_on_demand=false]\n");
    host.write("f/jail.conf", &jail);
    let import = host.ask(&[
        "import",
        "fail2ban",
        host.path("f").to_str().unwrap(),
        "--dry-run",
    ]);
    assert!(!import.1.contains("no parameter"), "{}", import.1);
    host.start();
    wait_for(&host, "same", "start one");
    wait_for(&host, "first", "start six");
    assert_eq!(lines(&host, "first"), ["start one", "start six"]);
    fails(&host, "anna", "2001:db8::7");
    let all = ["same", "waits", "differs", "first"];
    for file in all {
        let word = if ["differs", "first"].contains(&file) {
            "six"
        } else {
            "one"
        };
        wait_for(&host, file, &format!("ban {word} 2001:db8::7"));
    }
    assert_eq!(lines(&host, "waits"), ["start one", "ban one 2001:db8::7"]);
    assert_eq!(
        lines(&host, "differs"),
        ["start six", "ban six 2001:db8::7"]
    );
    // Started once, for whichever family.
    fails(&host, "anna", "203.0.113.7");
    for file in all {
        wait_for(&host, file, "ban one 203.0.113.7");
    }
    assert_eq!(lines(&host, "waits").len(), 3);
    assert_eq!(
        lines(&host, "differs")[2..],
        ["start one", "ban one 203.0.113.7"]
    );
    assert_eq!(lines(&host, "first").len(), 4);
    // What never began is not stopped: without a ban only the others are.
    host.done(&["unban", "--all"]);
    assert_eq!(host.end("TERM"), Some(0));
    for file in all {
        host.write(file, "");
    }
    host.start();
    wait_for(&host, "same", "start one");
    wait_for(&host, "first", "start six");
    assert_eq!(host.end("TERM"), Some(0));
    assert_eq!(lines(&host, "same"), ["start one", "stop one"]);
    assert_eq!(
        lines(&host, "first"),
        ["start one", "start six", "stop one", "stop six"]
    );
    assert_eq!(host.read("waits") + &host.read("differs"), "");
}

/// By `<F-ID>`, as the log writes it; where no filter captures that, the address.
#[test]
fn root_the_id_that_a_filter_captures_is_told_as_it_stands() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "tell",
        "[Definition]\nactionban = echo ban <ip> <F-ID> <fid> >> {dir}/told\n\
         actionunban = echo unban <ip> <F-ID> >> {dir}/told\n",
    )]);
    let filter = "[Definition]\nfailregex = login of .* from <F-ID>\\S+</F-ID> failed$\n";
    let plain = host.read("f/filter.d/shop.conf");
    host.write("f/filter.d/shop.conf", filter);
    host.start();
    for (who, id) in [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8::7", "2001:0DB8::0007"),
    ] {
        fails(&host, "anna", id);
        wait_for(&host, "told", &format!("ban {who} {id} {id}"));
        host.done(&["unban", who]);
        wait_for(&host, "told", &format!("unban {who} {id}"));
    }
    // What is no address bans nobody.
    fails(&host, "anna", "`id`");
    host.write("f/filter.d/shop.conf", &plain);
    host.done(&["reload"]);
    fails(&host, "anna", "203.0.113.9");
    wait_for(&host, "told", "ban 203.0.113.9 203.0.113.9 203.0.113.9");
    assert_eq!(lines(&host, "told").len(), 5, "{}", host.read("told"));
}

/// A set that somebody has deleted is made anew by the end of a ban only where it is to be, and
/// the other bans are told again then.
#[test]
fn root_an_end_repairs_an_action_only_if_it_is_to() {
    if skipped() {
        return;
    }
    let action = |name: &str, init: &str| {
        let text = "[Definition]\nactionstart = touch {dir}/{name}.set; echo start >> {dir}/{name}\n\
            actionstop = rm -f {dir}/{name}.set\nactioncheck = test -e {dir}/{name}.set\n\
            actionban = test -e {dir}/{name}.set && echo ban <ip> >> {dir}/{name}\n\
            actionunban = test -e {dir}/{name}.set && echo unban <ip> >> {dir}/{name}\n";
        format!("{}{init}", text.replace("{name}", name))
    };
    let mut host = dropping(&[
        ("stays", &action("stays", "")),
        (
            "repairs",
            &action("repairs", "actionrepair_on_unban = true\n"),
        ),
    ]);
    host.start();
    let [first, second] = ["203.0.113.7", "2001:db8::8"];
    for who in [first, second] {
        fails(&host, "anna", who);
        for name in ["stays", "repairs"] {
            wait_for(&host, name, &format!("ban {who}"));
        }
    }
    for name in ["stays", "repairs"] {
        fs::remove_file(host.path(&format!("{name}.set"))).unwrap();
    }
    host.done(&["unban", first]);
    host.until("the other ban to be told again", |host| {
        lines(host, "repairs").len() == 5
    });
    let told = lines(&host, "repairs");
    assert_eq!(told[3..], ["start".to_owned(), format!("ban {second}")]);
    host.until("the alert", |host| host.alerts().contains("actionunban"));
    let alerts = host.alerts();
    assert!(alerts.contains("actionunban of action stays"), "{alerts}");
    assert!(!alerts.contains("action repairs"), "{alerts}");
    assert_eq!(lines(&host, "stays").len(), 3);
    host.done(&["unban", second]);
    wait_for(&host, "repairs", &format!("unban {second}"));
}

//! The commands of Fail2ban's actions, run by a real daemon that drops packets in a network
//! namespace of its own: what they are told, what a client's text becomes in them, and what
//! of them delays or ends.

#[path = "common/fail2ban_host.rs"]
mod fail2ban_host;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use fail2ban_host::{fails, wait_for};
use plain::Plain;

const PROGRAMS: [&str; 3] = ["unshare", "nsenter", "nft"];

fn skipped() -> bool {
    let why = weir_netlab::missing(&PROGRAMS);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

/// A host whose daemon drops: its own network namespace ends with it.
fn dropping(actions: &[(&str, &str)]) -> Plain {
    let mut host = fail2ban_host::host(actions);
    host.under = ["unshare", "--net", "--"].map(str::to_owned).to_vec();
    configure(&host, "nft", "");
    host
}

fn configure(host: &Plain, backend: &str, more: &str) {
    host.configure(&format!("{more}[fail2ban]\npath = \"{{dir}}/f\"\n"));
    let text = host.read("weir.toml");
    host.write("weir.toml", &text.replace("dry-run", backend));
}

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

const HOSTILE: &str = "x'\"; touch {dir}/pwned; $(touch {dir}/pwned) `touch {dir}/pwned` ~!x";

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

/// An action that hangs, leaves a process behind, and prints without end delays nobody:
/// bans and the end do not wait.
#[test]
fn root_an_action_that_hangs_delays_nobody() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[
        (
            "hangs",
            "[Definition]\nactionban = sleep 3601 & echo $! >> {dir}/pids; yes | cat; sleep 3601\n[Init]\ntimeout = 12\n",
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
        assert!(began.elapsed() < Duration::from_secs(8));
        wait_for(&host, "told", &who);
    }
    host.until("the timeout", |host| {
        host.alerts()
            .contains("hangs in jail shop took longer than its timeout of 12s")
    });
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    assert!(host.said().contains("commands were not run before the end"));
    assert_eq!(alive(&host, "pids"), 0);
}

/// How many of the processes whose numbers a file has are alive.
fn alive(host: &Plain, file: &str) -> usize {
    let is_alive = |pid: &&str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("State:\tZ")
    };
    host.read(file).lines().filter(is_alive).count()
}

/// Three ways to stay: in a session of its own, behind a double fork and deaf to SIGTERM,
/// and in the command's own group; and a message that is delivered in the background.
const LEAVE: &str = "setsid sh -c 'echo $$ >> {dir}/pids; exec sleep 3607' &\n\
    (setsid sh -c 'echo $$ >> {dir}/pids; trap \"\" TERM; while :; do sleep 1; done' &) &\n\
    sh -c 'echo $$ >> {dir}/pids; exec sleep 3607' &\n\
    (sleep 1; echo delivered $1 >> {dir}/told) &\n\
    echo $1 >> {dir}/told\n";

#[test]
fn root_what_a_command_leaves_behind_ends_by_its_timeout() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[
        (
            "leaves",
            "[Definition]\nactionban = sh {dir}/leave.sh <ip>\n[Init]\ntimeout = 4\n",
        ),
        (
            "many",
            "[Definition]\nactionban = setsid sh -c 'echo $$ >> {dir}/many; exec sleep 3607' &\n[Init]\ntimeout = 1h\n",
        ),
    ]);
    host.write("leave.sh", LEAVE);
    host.start();
    let began = Instant::now();
    for who in ["203.0.113.1", "2001:db8::2"] {
        fails(&host, "anna", who);
        wait_for(&host, "told", who);
    }
    // The second one has not waited for what the first one has left.
    assert!(began.elapsed() < Duration::from_secs(4));
    host.until("all to have begun", |host| lines(host, "pids").len() == 6);
    assert_eq!(alive(&host, "pids"), 6);
    wait_for(&host, "told", "delivered 2001:db8::2");
    host.until("the timeout", |host| alive(host, "pids") == 0);
    let ended = |host: &Plain, action: &str, count: u32| {
        let sample = format!(
            "weir_action_leftovers_ended_total{{jail=\"shop\",action=\"{action}\"}} {count}\n"
        );
        host.until(&sample, |host| host.done(&["metrics"]).contains(&sample));
    };
    ended(&host, "leaves", 2);
    assert!(!host.alerts().contains("action:"), "{}", host.alerts());

    // So many at a time, and none beyond the daemon, in whatever way that ends.
    for n in 3..=10 {
        fails(&host, "anna", &format!("203.0.113.{n}"));
    }
    ended(&host, "many", 2);
    host.until("the last to begin", |host| lines(host, "many").len() == 10);
    host.until("8 to be left", |host| alive(host, "many") == 8);
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(began.elapsed() < Duration::from_secs(8));
    assert_eq!(alive(&host, "many") + alive(&host, "pids"), 0);
    host.start();
    fails(&host, "anna", "203.0.113.11");
    host.until("one more", |host| alive(host, "many") == 1);
    host.end("KILL");
    host.until("its end", |host| {
        alive(host, "many") + alive(host, "pids") == 0
    });
}

/// An action elsewhere that keeps what it is told, as one of a provider's does.
const CLOUD: &str = "[Definition]\n\
    actionban = echo ban <ip> <failures> <restored> >> {dir}/{name}\n\
    actionunban = echo unban <ip> <failures> <bantime> >> {dir}/{name}\n";

fn cloud(name: &str) -> String {
    CLOUD.replace("{name}", name)
}

fn lines(host: &Plain, file: &str) -> Vec<String> {
    host.read(file).lines().map(str::to_owned).collect()
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

#[test]
fn root_an_action_is_told_of_what_it_has_missed_and_of_nothing_twice() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[("one", &cloud("one"))]);
    host.write("f/action.d/two.conf", &cloud("two"));
    configure(&host, "nft", "observe = true\n");
    host.start();
    let both = ["203.0.113.7", "2001:db8::7"];
    for who in both {
        fails(&host, "anna", who);
        host.until(who, |host| host.is_banned(who));
    }
    assert_eq!(host.end("TERM"), Some(0));
    assert_eq!(host.read("one"), "");
    // They were made while weir observed.
    configure(&host, "nft", "");
    host.start();
    for who in both {
        wait_for(&host, "one", &format!("ban {who} 1 1"));
    }
    assert_eq!(host.end("TERM"), Some(0));
    host.start();
    // An action that is new is told of them, and the other one of nothing again.
    let jail = host.read("f/jail.conf");
    host.write("f/jail.conf", &format!("{jail}    two\n"));
    host.done(&["reload"]);
    for who in both {
        wait_for(&host, "two", &format!("ban {who} 1 1"));
    }
    fails(&host, "anna", "203.0.113.9");
    for name in ["one", "two"] {
        wait_for(&host, name, "ban 203.0.113.9 1 0");
        assert_eq!(lines(&host, name).len(), 3, "{}", host.read(name));
    }
    // Their ends are told with the whole length of the ban.
    for who in both {
        host.done(&["unban", who]);
        for name in ["one", "two"] {
            wait_for(&host, name, &format!("unban {who} 1 3600"));
        }
    }
    assert!(!host.alerts().contains("action:"), "{}", host.alerts());
}

#[test]
fn root_a_removed_action_undoes_what_it_was_told() {
    if skipped() {
        return;
    }
    let stays = "[Definition]\nactionban = true\nactionunban = echo gone >&2; exit 9\n";
    let mut host = dropping(&[("one", &cloud("one")), ("stays", stays)]);
    let other = "[other]\nenabled = true\nfilter = shop\nlogpath = {dir}/other.log\n\
        action = %(action_)s\n    post\n";
    host.write("other.log", "");
    host.write("f/action.d/post.conf", "[Definition]\nactionban = true\n");
    let jail = host.read("f/jail.conf");
    host.write("f/jail.conf", &format!("{jail}{other}"));
    host.start();
    let who = ["203.0.113.7", "203.0.113.8", "2001:db8::7"];
    for who in who {
        fails(&host, "anna", who);
        wait_for(&host, "one", &format!("ban {who} 1 0"));
    }
    let jail = host.read("f/jail.conf");
    let disabled = jail.replacen("enabled = true", "enabled = false", 1);
    host.write("f/jail.conf", &disabled);
    host.done(&["reload"]);
    for who in who {
        wait_for(&host, "one", &format!("unban {who} 1 3600"));
    }
    host.until("the alert", |host| host.alerts().contains("stays:removed"));
    let alerts = host.alerts();
    let expected =
        "action stays of jail shop is removed: 3 of the 3 bans that it was told of are not undone";
    assert!(alerts.contains(expected), "{alerts}");
    assert!(host.said().contains("exit code 9: gone"));
    // It is told of what is in force when it comes back.
    host.write("f/jail.conf", &jail);
    host.done(&["reload"]);
    assert!(!host.alerts().contains("removed"), "{}", host.alerts());
    for who in who {
        wait_for(&host, "one", &format!("ban {who} 1 1"));
    }
    assert_eq!(lines(&host, "one").len(), 9, "{}", host.read("one"));
    // Removed while no daemon runs: nobody can undo it, and that is said.
    assert_eq!(host.end("TERM"), Some(0));
    host.write("f/jail.conf", &jail.replace("    one\n", ""));
    host.start();
    let expected = "action one of jail shop was removed or changed while weir did not run: 3 bans";
    assert!(host.alerts().contains(expected), "{}", host.alerts());
}

/// As the guide has an administrator move over: what the commands may need is kept while
/// weir observes, also for jails that were taken out meanwhile.
#[test]
fn root_actions_begin_when_a_reload_ends_observing() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "tell",
        "[Definition]\nactionban = echo <ip> >> {dir}/told\n",
    )]);
    let jail = host.read("f/jail.conf");
    configure(&host, "nft", "observe = true\n");
    host.start();
    host.write(
        "f/jail.conf",
        &jail.replace("enabled = true", "enabled = false"),
    );
    assert_eq!(host.ask(&["reload"]).0, Some(0));
    host.write("f/jail.conf", &jail);
    configure(&host, "nft", "");
    let (code, said) = host.ask(&["reload"]);
    assert_eq!(code, Some(0), "{said}");
    fails(&host, "anna", "203.0.113.7");
    wait_for(&host, "told", "203.0.113.7");
}

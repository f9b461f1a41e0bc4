//! What Fail2ban's actions have missed, and what they undo, as a real daemon tells them that
//! drops packets in a network namespace of its own: bans from under `observe` or before a
//! reload, actions that are removed.

#[path = "common/fail2ban_host.rs"]
mod fail2ban_host;
#[path = "common/plain.rs"]
mod plain;

use fail2ban_host::{configure, dropping, fails, lines, skipped, wait_for};

/// An action elsewhere that keeps what it is told, as one of a provider's does.
const CLOUD: &str = "[Definition]\n\
    actionban = echo ban <ip> <failures> <restored> >> {dir}/{name}\n\
    actionunban = echo unban <ip> <failures> <bantime> >> {dir}/{name}\n";

fn cloud(name: &str) -> String {
    CLOUD.replace("{name}", name)
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

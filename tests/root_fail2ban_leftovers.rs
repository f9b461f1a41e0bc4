//! What commands of Fail2ban's actions hold up and leave behind, run by a real daemon that
//! drops packets in a network namespace of its own: one that hangs delays nobody, and what is
//! left ends in time, however it hides.

#[path = "common/fail2ban_host.rs"]
mod fail2ban_host;
#[path = "common/plain.rs"]
mod plain;

use std::{
    fs,
    time::{Duration, Instant},
};

use fail2ban_host::{dropping, fails, lines, skipped, wait_for};
use plain::Plain;

/// What waits for nothing takes less, on a machine that does something else as well; each
/// command that hangs has a longer time-out.
const AT_ONCE: Duration = Duration::from_secs(20);

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
            "[Definition]\nactionban = sleep 3601 & echo $! >> {dir}/pids; yes | cat; sleep 3601\n[Init]\ntimeout = 30\n",
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
        assert!(began.elapsed() < AT_ONCE);
        wait_for(&host, "told", &who);
    }
    host.until("the timeout", |host| {
        host.alerts()
            .contains("hangs in jail shop took longer than its timeout of 30s")
    });
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
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
            "[Definition]\nactionban = sh {dir}/leave.sh <ip>\n[Init]\ntimeout = 25\n",
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
    assert!(began.elapsed() < AT_ONCE);
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
    assert!(began.elapsed() < AT_ONCE);
    assert_eq!(alive(&host, "many") + alive(&host, "pids"), 0);
    host.start();
    fails(&host, "anna", "203.0.113.11");
    host.until("one more", |host| alive(host, "many") == 1);
    host.end("KILL");
    host.until("its end", |host| {
        alive(host, "many") + alive(host, "pids") == 0
    });
}

/// Each in a session of its own, and the parent of the next one.
#[test]
fn root_two_hundred_sessions_one_in_the_other_end_by_the_timeout() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "nests",
        "[Definition]\nactionban = setsid sh {dir}/nest.sh 200 &\n[Init]\ntimeout = 60\n",
    )]);
    // One behind the other: on a loaded machine that takes more than ten seconds.
    host.deadline = Duration::from_secs(180);
    host.write(
        "nest.sh",
        "echo $$ >> {dir}/pids\n\
         test $1 -gt 1 && setsid sh {dir}/nest.sh $(($1 - 1)) &\n\
         exec sleep 3607\n",
    );
    host.start();
    fails(&host, "anna", "203.0.113.1");
    host.until("all to have begun", |host| lines(host, "pids").len() == 200);
    assert_eq!(alive(&host, "pids"), 200);
    host.until("the timeout", |host| alive(host, "pids") == 0);
    assert!(!host.alerts().contains("action:"), "{}", host.alerts());
}

/// With a ninth one the oldest has no time to be deaf to SIGTERM.
#[test]
fn root_a_ninth_leftover_ends_the_oldest_although_it_ignores_sigterm() {
    if skipped() {
        return;
    }
    let mut host = dropping(&[(
        "deaf",
        "[Definition]\nactionban = setsid sh {dir}/deaf.sh <ip> &\n[Init]\ntimeout = 1h\n",
    )]);
    host.write(
        "deaf.sh",
        "trap '' TERM HUP INT\necho $$ >> {dir}/pids\nwhile :; do sleep 1; done\n",
    );
    host.start();
    for n in 1..=8 {
        fails(&host, "anna", &format!("203.0.113.{n}"));
        host.until("it to begin", |host| lines(host, "pids").len() == n);
    }
    assert_eq!(alive(&host, "pids"), 8);
    let oldest = lines(&host, "pids")[0].clone();
    let began = Instant::now();
    fails(&host, "anna", "2001:db8::9");
    host.until("the ninth to begin", |host| lines(host, "pids").len() == 9);
    host.until("the oldest to end", |host| alive(host, "pids") == 8);
    assert!(began.elapsed() < AT_ONCE);
    host.until("the oldest to be gone", |_| {
        !fs::exists(format!("/proc/{oldest}")).unwrap()
    });
    let sample = "weir_action_leftovers_ended_total{jail=\"shop\",action=\"deaf\"} 1\n";
    host.until(sample, |host| host.done(&["metrics"]).contains(sample));
    let began = Instant::now();
    assert_eq!(host.end("TERM"), Some(0));
    assert!(began.elapsed() < AT_ONCE);
    assert_eq!(alive(&host, "pids"), 0);
}

//! What the daemon remembers, and what it does when it cannot: log positions and
//! counts over SIGKILL, a database that goes away, the end of bans.

#[path = "common/plain.rs"]
mod plain;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use plain::Plain;

const WHO: [&str; 2] = ["203.0.113.7", "2001:db8:bad::7"];

fn append(log: &Path, text: &str) {
    let mut file = File::options().create(true).append(true).open(log).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// What sshd logs of a failed login, now.
fn failure(who: &str) -> String {
    let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.6f%:z");
    format!("{now} host sshd[77]: Failed password for root from {who} port 40022 ssh2\n")
}

fn fail(host: &Plain, log: &str, who: &str, times: usize) {
    append(&host.path(log), &failure(who).repeat(times));
}

/// Failures of an address that are counted and have not led to a ban.
fn counted(host: &Plain, who: &str) -> u64 {
    let tracked = &host.json(&["why", who])["tracked"];
    tracked[0]["findings"].as_u64().unwrap_or(0)
}

/// Issue 13, 23: counts and positions are one transaction.
#[test]
fn sigkill_neither_repeats_nor_loses_a_line() {
    let mut host = Plain::new();
    host.configure(
        "[jail.sshd]\npaths = [\"{dir}/auth.log\"]\nmax_retry = 1000\nfind_time = \"1d\"\n",
    );
    append(&host.path("auth.log"), "");
    host.start();
    host.until("the position to be saved", |host| {
        host.json(&["status"])["unsaved"] == 0
    });
    let (stop, written) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let writer = thread::spawn({
        let (stop, written, log) = (stop.clone(), written.clone(), host.path("auth.log"));
        move || {
            while !stop.load(Relaxed) && written.load(Relaxed) < 990 {
                for who in WHO {
                    append(&log, &failure(who));
                }
                written.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(15));
            }
        }
    });
    for kill in 1..=5 {
        // Some lines are read and saved, some read and not saved.
        let enough = written.load(Relaxed) + 23 * kill;
        host.until("lines to be counted", |host| {
            counted(host, WHO[0]) > enough.min(900)
        });
        host.end("KILL");
        host.start();
    }
    stop.store(true, Relaxed);
    writer.join().unwrap();
    let written = written.load(Relaxed);
    for who in WHO {
        host.until("all lines to be counted", |host| {
            counted(host, who) >= written
        });
        assert_eq!(counted(&host, who), written, "{who}");
    }
}

/// As soon as a daemon answers, it has written down where it reads from.
#[test]
fn a_daemon_killed_in_its_first_second_goes_on_where_it_began() {
    for who in WHO {
        let mut host = Plain::new();
        host.configure("[jail.sshd]\npaths = [\"{dir}/auth.log\"]\nmax_retry = 3\n");
        fail(&host, "auth.log", "203.0.113.99", 9);
        host.start();
        host.end("KILL");
        // Nobody reads.
        fail(&host, "auth.log", who, 3);
        host.start();
        host.until("the lines meanwhile", |host| host.is_banned(who));
        assert!(!host.is_banned("203.0.113.99"), "older than the daemon");
    }
}

/// Issue 13, 23: a path more is not a source more.
#[test]
fn a_path_that_is_added_loses_no_line_of_the_others() {
    let config = |paths: &str| format!("[jail.sshd]\nmax_retry = 100\npaths = [{paths}]\n");
    let mut host = Plain::new();
    for log in ["a.log", "b.log"] {
        fail(&host, log, "203.0.113.99", 9);
    }
    host.configure(&config("\"{dir}/a.log\""));
    host.start();
    fail(&host, "a.log", WHO[0], 2);
    host.until("they are counted", |host| counted(host, WHO[0]) == 2);
    host.end("TERM");
    // Nobody reads.
    fail(&host, "a.log", WHO[0], 3);
    host.configure(&config("\"{dir}/a.log\", \"{dir}/b.log\""));
    host.start();
    host.until("the lines meanwhile", |host| counted(host, WHO[0]) == 5);
    fail(&host, "b.log", WHO[1], 4);
    host.until("the new file", |host| counted(host, WHO[1]) == 4);
    // And by a reload, from both to one, with lines in the moment of it.
    fail(&host, "b.log", WHO[1], 3);
    host.configure(&config("\"{dir}/b.log\""));
    host.done(&["reload"]);
    fail(&host, "b.log", WHO[1], 1);
    host.until("the lines around it", |host| counted(host, WHO[1]) == 8);
    assert_eq!(counted(&host, WHO[0]), 5);
    assert_eq!(counted(&host, "203.0.113.99"), 0, "older than the daemon");
}

/// How often the daemon has a file open.
fn opened(host: &Plain, log: &str) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap();
    let leads_there =
        |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|to| to == host.path(log));
    descriptors.flatten().filter(leads_there).count()
}

/// What each jail has counted of an address.
fn counted_by_jail(host: &Plain, who: &str) -> BTreeMap<String, u64> {
    let tracked = host.json(&["why", who])["tracked"].clone();
    let of_jail = |tracked: &serde_json::Value| {
        let jail = tracked["jail"].as_str().unwrap().to_owned();
        (jail, tracked["findings"].as_u64().unwrap())
    };
    tracked
        .as_array()
        .into_iter()
        .flatten()
        .map(of_jail)
        .collect()
}

/// Jails whose paths differ and have a file in common read it together, with one
/// position, over restarts and reloads.
#[test]
fn a_file_of_several_jails_is_read_once() {
    let jail = |name: &str, paths: &[&str]| {
        let paths = paths.iter().map(|path| format!("\"{{dir}}/{path}\""));
        let paths = paths.collect::<Vec<_>>().join(", ");
        format!("[jail.{name}]\nfilter = \"sshd\"\nmax_retry = 100\npaths = [{paths}]\n")
    };
    let two = jail("one", &["a.log"]) + &jail("two", &["a.log", "b.log"]);
    let counts = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
        all.iter()
            .map(|(jail, count)| ((*jail).to_owned(), *count))
            .collect()
    };
    let mut host = Plain::new();
    for log in ["a.log", "b.log", "c.log"] {
        fail(&host, log, "203.0.113.99", 9);
    }
    host.configure(&two);
    host.start();
    fail(&host, "a.log", WHO[0], 2);
    fail(&host, "b.log", WHO[1], 3);
    host.until("each jail to count its files", |host| {
        counted_by_jail(host, WHO[0]) == counts(&[("one", 2), ("two", 2)])
            && counted_by_jail(host, WHO[1]) == counts(&[("two", 3)])
    });
    assert_eq!((opened(&host, "a.log"), opened(&host, "b.log")), (1, 1));
    for signal in ["TERM", "KILL"] {
        host.until("the position to be saved", |host| {
            host.json(&["status"])["unsaved"] == 0
        });
        let before = counted_by_jail(&host, WHO[0])["one"];
        host.end(signal);
        // Nobody reads.
        fail(&host, "a.log", WHO[0], 1);
        host.start();
        let after = counts(&[("one", before + 1), ("two", before + 1)]);
        host.until("both to go on where they stood", |host| {
            counted_by_jail(host, WHO[0]) == after
        });
        assert_eq!(counted_by_jail(&host, WHO[1]), counts(&[("two", 3)]));
    }
    // A jail that is added begins with what comes; the others lose nothing.
    host.configure(&(two + &jail("new", &["c.log", "a.log"])));
    fail(&host, "a.log", WHO[0], 1);
    host.done(&["reload"]);
    fail(&host, "c.log", WHO[1], 2);
    host.until("the new jail to count", |host| {
        counted_by_jail(host, WHO[1]) == counts(&[("new", 2), ("two", 3)])
    });
    host.until("the lines around the reload", |host| {
        let counted = counted_by_jail(host, WHO[0]);
        counted["one"] == 5 && counted["two"] == 5
    });
    assert_eq!((opened(&host, "a.log"), opened(&host, "c.log")), (1, 1));
    assert_eq!(counted_by_jail(&host, "203.0.113.99"), counts(&[]));
}

/// SQLite's lock holds while the daemon looks after the file: whoever opened the
/// database would take its log away when he closes it.
#[test]
fn nobody_else_opens_the_database_while_weir_runs() {
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: no program python3");
        return;
    }
    let mut host = Plain::new();
    host.configure("");
    host.start();
    host.done(&["ban", WHO[0]]);
    // The daemon looks each second.
    thread::sleep(Duration::from_millis(2500));
    let read = "import sqlite3, sys\n\
                print(sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT name FROM sqlite_master').fetchall())";
    let database = host.path("state/weir.db");
    let stranger = || {
        let mut python = std::process::Command::new("python3");
        python.args(["-c", read]).arg(&database);
        let said = python.output().unwrap();
        (
            said.status.success(),
            String::from_utf8_lossy(&said.stderr).into_owned(),
        )
    };
    let (opened, said) = stranger();
    assert!(!opened && said.contains("locked"), "{said}");
    host.done(&["ban", WHO[1]]);
    host.end("KILL");
    let (opened, said) = stranger();
    assert!(opened, "{said}");
    host.start();
    for who in WHO {
        host.done(&["unban", who]);
    }
}

/// A database that is made anew knows whom commands have allowed.
#[test]
fn the_allow_list_outlives_the_database() {
    let mut host = Plain::new();
    host.configure("");
    host.start();
    host.done(&["allow", "add", WHO[0]]);
    std::fs::remove_file(host.path("state/weir.db")).unwrap();
    host.until("the loss to be told", |host| {
        host.json(&["status"])["alerts"]
            .to_string()
            .contains("deleted while weir was running")
    });
    // Who knows the list looks each second.
    thread::sleep(Duration::from_millis(2500));
    host.end("TERM");
    host.start();
    let allowed = host.json(&["allow", "list"]).to_string();
    assert!(allowed.contains(WHO[0]), "{allowed}");
}

/// The events that a sink of kind `file` got, as (kind, subject).
fn events(host: &Plain, kind: &str) -> Vec<String> {
    let lines = host.read("events.json");
    let events = lines.lines().map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        (event["kind"].clone(), event["subject"].clone())
    });
    let mut subjects: Vec<_> = events
        .filter(|(of, _)| of == kind)
        .map(|(_, subject)| subject.as_str().unwrap_or_default().to_owned())
        .collect();
    subjects.sort();
    subjects
}

/// Issue 13, 16: whoever opens a firewall or a ticket at a ban closes it again.
#[test]
fn each_ban_has_one_end_however_it_ends() {
    let mut host = Plain::new();
    host.configure(
        "[jail.sshd]\npaths = [\"{dir}/auth.log\"]\nmax_retry = 1\nban_time = 3\n\
         [sink.all]\nkind = \"file\"\npath = \"{dir}/events.json\"\nevents = [\"ban\", \"unban\"]\n",
    );
    append(&host.path("auth.log"), "");
    host.start();
    for who in WHO {
        fail(&host, "auth.log", who, 1);
    }
    host.done(&["ban", "203.0.113.8", "--for", "1h"]);
    host.done(&["ban", "203.0.113.9", "--for", "15s"]);
    // Made longer: it has one end.
    host.done(&["ban", "203.0.113.9", "--for", "18s"]);
    host.done(&["ban", "203.0.113.10", "--for", "1h"]);
    host.done(&["unban", "203.0.113.10"]);
    let gone = [
        "2001:db8:bad::/64",
        "203.0.113.10",
        "203.0.113.7",
        "203.0.113.9",
    ];
    host.until("the ends", |host| events(host, "unban").len() >= gone.len());
    assert_eq!(events(&host, "unban"), gone);
    // Banned again: another ban, another end.
    fail(&host, "auth.log", WHO[0], 1);
    host.until("its second end", |host| {
        events(host, "unban").len() > gone.len()
    });
    // While no daemon runs, after a stop and after SIGKILL.
    for (n, signal) in ["TERM", "KILL"].into_iter().enumerate() {
        let who = format!("198.18.0.{n}");
        host.done(&["ban", &who, "--for", "2s"]);
        host.end(signal);
        thread::sleep(Duration::from_secs(3));
        host.start();
        host.until("the end meanwhile", |host| {
            events(host, "unban").contains(&who)
        });
    }
    host.done(&["ban", "203.0.113.11"]);
    host.done(&["unban", "--all"]);
    let mut bans = events(&host, "ban");
    host.until("an end of each", |host| {
        events(host, "unban").len() >= bans.len() - 1
    });
    // One ban was made longer: it came twice and goes once.
    let twice = bans.iter().position(|who| who == "203.0.113.9").unwrap();
    bans.remove(twice);
    host.end("TERM");
    assert_eq!(events(&host, "unban"), bans);
}

/// Issue 13, 15: one slip of the finger is not to turn weir off.
#[test]
fn what_is_too_wide_is_allowed_by_force_only() {
    let mut host = Plain::new();
    host.configure_only("");
    host.start();
    for wide in ["0.0.0.0/0", "::/0", "128.0.0.0/1", "2000::/3"] {
        let (code, told) = host.ask(&["allow", "add", wide]);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--force"), "{told}");
    }
    assert_eq!(host.alerts(), "[]");
    for fine in ["10.0.0.0/8", "2001:db8::/32", "fc00::/7"] {
        host.done(&["allow", "add", fine]);
    }
    assert_eq!(host.alerts(), "[]");
    host.done(&["allow", "add", "0.0.0.0/0", "--force"]);
    host.until("the alert", |host| {
        host.alerts().contains("0.0.0.0/0 is allowed")
    });
    host.done(&["allow", "add", "::/0", "--force"]);
    host.until("the alert about both", |host| {
        host.alerts().contains("0.0.0.0/0, ::/0 are allowed")
    });
    host.done(&["allow", "del", "::/0"]);
    // It stays, over restarts, for as long as it is true.
    host.end("TERM");
    host.start();
    host.until("the alert again", |host| {
        host.alerts().contains("allow-wide")
    });
    host.done(&["allow", "del", "0.0.0.0/0"]);
    host.until("its end", |host| host.alerts() == "[]");
    // The file says it as the command does, in check, reload and start alike.
    host.configure_only("allow = [\n  \"10.0.0.0/8\",\n  \"0.0.0.0/0\",\n  \"::/1\",\n]\n");
    for verb in ["check", "reload"] {
        let (code, told) = host.ask(&[verb]);
        assert_eq!(code, Some(2), "{verb}: {told}");
        for words in [
            "weir.toml:7: allow: 0.0.0.0/0 is too wide to be allowed: no ban",
            "weir.toml:8: allow: ::/1 is too wide",
        ] {
            assert!(told.contains(words), "{verb}: {told}");
        }
    }
    host.end("TERM");
    assert!(
        host.refuses_to_start()
            .contains("is too wide to be allowed")
    );
}

/// Paths that come, go and come back: a file is gone on with, whatever it is
/// read with, and one that nobody read meanwhile is a new one.
#[test]
fn paths_that_come_and_go_repeat_no_line() {
    let config = |paths: &str| format!("[jail.sshd]\nmax_retry = 1000\npaths = [{paths}]\n");
    let (a, both) = ("\"{dir}/a.log\"", "\"{dir}/a.log\", \"{dir}/b.log\"");
    let mut host = Plain::new();
    for log in ["a.log", "b.log"] {
        append(&host.path(log), "");
    }
    host.configure(&config(a));
    host.start();
    let (mut of_a, mut of_b) = (0, 0);
    for round in 1..=4 {
        // As fast as may be: nothing may hang on what the disk has by then.
        host.configure(&config(both));
        host.done(&["reload"]);
        fail(&host, "a.log", WHO[0], round);
        fail(&host, "b.log", WHO[1], round);
        of_a += round as u64;
        of_b += round as u64;
        host.until("the lines of both", |host| {
            counted(host, WHO[0]) >= of_a && counted(host, WHO[1]) >= of_b
        });
        host.configure(&config(a));
        host.done(&["reload"]);
        fail(&host, "a.log", WHO[0], 2);
        of_a += 2;
        // Nobody reads these.
        fail(&host, "b.log", WHO[1], 50);
        host.until("the lines of one", |host| counted(host, WHO[0]) >= of_a);
        assert_eq!(counted(&host, WHO[0]), of_a, "round {round}");
        assert_eq!(counted(&host, WHO[1]), of_b, "round {round}");
    }
    // Nor does a crash bring anything back.
    host.end("KILL");
    host.configure(&config(both));
    host.start();
    fail(&host, "a.log", WHO[0], 1);
    fail(&host, "b.log", WHO[1], 1);
    host.until("the lines after the crash", |host| {
        counted(host, WHO[0]) > of_a && counted(host, WHO[1]) > of_b
    });
    assert_eq!(counted(&host, WHO[0]), of_a + 1);
    assert_eq!(counted(&host, WHO[1]), of_b + 1);
}

/// A file system that is mounted late, a log that is put back: it is gone on
/// with where it was left.
#[test]
fn a_log_that_is_missing_at_the_start_keeps_its_position() {
    let mut host = Plain::new();
    host.configure("[jail.sshd]\nmax_retry = 100\npaths = [\"{dir}/logs/auth.log\"]\n");
    std::fs::create_dir(host.path("logs")).unwrap();
    fail(&host, "logs/auth.log", "203.0.113.99", 3);
    host.start();
    for who in WHO {
        fail(&host, "logs/auth.log", who, 3);
        host.until("its lines", |host| counted(host, who) == 3);
    }
    host.end("TERM");
    for signal in ["TERM", "KILL"] {
        std::fs::rename(host.path("logs"), host.path("away")).unwrap();
        host.start();
        host.until("the alert", |host| host.alerts().contains("no such file"));
        host.until("the position to be saved", |host| {
            host.json(&["status"])["unsaved"] == 0
        });
        host.end(signal);
        std::fs::rename(host.path("away"), host.path("logs")).unwrap();
    }
    std::fs::rename(host.path("logs"), host.path("away")).unwrap();
    host.start();
    host.until("the alert", |host| host.alerts().contains("no such file"));
    for who in WHO {
        fail(&host, "away/auth.log", who, 2);
    }
    std::fs::rename(host.path("away"), host.path("logs")).unwrap();
    for who in WHO {
        host.until("what was written meanwhile", |host| counted(host, who) >= 5);
        assert_eq!(counted(&host, who), 5);
    }
    assert_eq!(counted(&host, "203.0.113.99"), 0);
    assert_eq!(host.alerts(), "[]");
}

/// What a reload takes out of the configuration troubles nobody any more.
#[test]
fn the_alert_about_a_source_ends_with_the_source() {
    let config = |paths: &str| format!("[jail.sshd]\npaths = [\"{{dir}}/auth.log\"{paths}]\n");
    let mut host = Plain::new();
    append(&host.path("auth.log"), "");
    host.configure(&config(", \"{dir}/none.log\", \"{dir}/nor-this.log\""));
    host.start();
    host.until("both alerts", |host| {
        let alerts = host.alerts();
        alerts.contains("none.log") && alerts.contains("nor-this.log")
    });
    host.configure(&config(", \"{dir}/none.log\""));
    host.done(&["reload"]);
    host.until("one of them", |host| {
        !host.alerts().contains("nor-this.log")
    });
    host.until("the other one", |host| host.alerts().contains("none.log"));
    host.configure(&config(""));
    host.done(&["reload"]);
    host.until("none", |host| host.alerts() == "[]");
}

/// A ban that finds no room waits for it: no other ban ends the alert.
#[test]
fn a_refused_ban_comes_into_force_when_it_can() {
    let mut host = Plain::new();
    let jail = |name: &str| {
        format!(
            "[jail.{name}]\nfilter = \"sshd\"\nmax_retry = 1\npaths = [\"{{dir}}/{name}.log\"]\n"
        )
    };
    host.configure(&format!("max_bans = 64\n{}{}", jail("one"), jail("two")));
    for log in ["one.log", "two.log"] {
        append(&host.path(log), "");
    }
    host.start();
    let manual = |n: u32| format!("198.18.0.{n}");
    for n in 1..64 {
        host.done(&["ban", &manual(n)]);
    }
    fail(&host, "one.log", "198.18.1.1", 1);
    host.until("a ban of jail one", |host| host.is_banned("198.18.1.1"));
    // It has no ban that may go, and manual ones stay.
    for who in WHO {
        fail(&host, "two.log", who, 1);
    }
    host.until("the alert", |host| {
        host.alerts().contains("cannot ban") && host.alerts().contains("and 1 more")
    });
    fail(&host, "one.log", "198.18.1.2", 1);
    host.until("another ban of jail one", |host| {
        host.is_banned("198.18.1.2")
    });
    assert!(host.alerts().contains("and 1 more"), "{}", host.alerts());
    // Lifted before it was in force.
    host.done(&["unban", "2001:db8:bad::/64"]);
    assert!(!host.alerts().contains("more"), "{}", host.alerts());
    host.done(&["unban", &manual(1)]);
    host.until("the ban that was refused", |host| host.is_banned(WHO[0]));
    host.until("the end of the alert", |host| {
        !host.alerts().contains("cannot ban")
    });
    assert!(!host.is_banned(WHO[1]));
}

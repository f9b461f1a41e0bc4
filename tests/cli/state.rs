//! What a daemon keeps, over SIGKILL and with a database that is damaged or cannot be
//! written, and what it holds of the system.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{Host, WEIR};

#[test]
fn a_second_daemon_is_refused_and_the_first_is_named() {
    let host = Host::started();
    let second = host.weir(&["daemon"]);
    assert_eq!(second.code, 2);
    let pid = host.daemon.as_ref().unwrap().id();
    assert!(second.err.contains(&format!("pid {pid}")), "{}", second.err);
    assert_eq!(host.weir(&["status"]).code, 0);
}

#[test]
fn after_sigkill_bans_counts_and_positions_are_intact() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.50", "--for", "1h"]).code, 0);
    assert_eq!(host.weir(&["ban", "192.0.2.51", "--for", "2s"]).code, 0);
    assert_eq!(host.weir(&["ban", "192.0.2.52"]).code, 0);
    host.fail("203.0.113.7", 3);
    host.fail("203.0.113.8", 2);
    host.until("the jail bans", |h| h.is_banned("203.0.113.7"));
    // Jail bans, counts and positions are on disk within a second or two.
    host.until("everything is written", |h| h.status()["unsaved"] == 0);
    std::thread::sleep(Duration::from_secs(3));
    host.end("KILL");
    // While nobody reads.
    host.fail("203.0.113.8", 1);
    host.start();

    let bans = host.weir(&["bans", "--json"]).json();
    let of = |subject: &str| {
        bans["bans"]
            .as_array()
            .unwrap()
            .iter()
            .find(|b| b["subject"] == subject)
            .cloned()
    };
    let hour = of("192.0.2.50").unwrap();
    let left = hour["remaining_seconds"].as_u64().unwrap();
    assert!((3500..3600).contains(&left), "{left}");
    assert_eq!(hour["reason"], "manual ban");
    assert_eq!(of("192.0.2.51"), None, "it ended while the daemon was dead");
    assert_eq!(of("192.0.2.52").unwrap()["until"], Value::Null);
    let jail = of("203.0.113.7").unwrap();
    assert_eq!(jail["evidence"].as_array().unwrap().len(), 3);
    host.until("the line written meanwhile completes the count", |h| {
        h.is_banned("203.0.113.8")
    });
    // No line was read twice: the count of the ended ban did not start anew.
    assert_eq!(host.status()["jails"][0]["lines"], 1);
}

#[test]
fn a_corrupt_database_is_moved_aside() {
    let mut host = Host::new();
    fs::create_dir(host.path("state")).unwrap();
    fs::write(host.path("state/weir.db"), "no database ".repeat(1000)).unwrap();
    host.start();
    assert!(host.alerts().contains("was corrupt"), "{}", host.alerts());
    let aside = fs::read_dir(host.path("state")).unwrap().any(|e| {
        e.unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("weir.db.corrupt-")
    });
    assert!(aside);
    assert_eq!(
        host.weir(&["ban", "192.0.2.99", "--json"]).json()["saved"],
        true
    );
}

#[test]
fn with_a_read_only_database_bans_go_on() {
    let mut host = Host::started();
    assert_eq!(host.weir(&["ban", "192.0.2.50"]).code, 0);
    assert_eq!(host.end("TERM"), Some(0));
    let dir = host.dir.path().to_owned();
    let mode = |name: &str, mode| {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("state/weir.db", 0o444);
    mode("state", 0o555);
    host.start();
    assert!(host.is_banned("192.0.2.50"), "what can be read is restored");
    let ban = host.weir(&["ban", "192.0.2.99", "--json"]);
    assert_eq!(ban.code, 0, "{}", ban.err);
    assert_eq!(ban.json()["saved"], false);
    assert!(ban.err.contains("warning: not saved"), "{}", ban.err);
    assert!(host.is_banned("192.0.2.99"));
    host.fail("203.0.113.7", 3);
    host.until("the jail bans", |h| h.is_banned("203.0.113.7"));
    host.until("there is an alert", |h| h.alerts().contains("weir.db"));
    // The disk is writable again: everything is caught up with.
    mode("state", 0o700);
    mode("state/weir.db", 0o600);
    host.until("it is saved after all", |h| {
        h.status()["unsaved"] == 0 && !h.alerts().contains("weir.db")
    });
    host.end("KILL");
    host.start();
    assert!(host.is_banned("192.0.2.99") && host.is_banned("203.0.113.7"));
}

/// The allocator reserves 64 MiB of address space a thread where it may.
#[test]
fn a_limited_address_space_is_not_reserved_by_threads() {
    let mut host = Host::new();
    let mut command = Command::new("prlimit");
    command
        .args(["--as=400000000", WEIR, "--config"])
        .arg(host.path("weir.toml"))
        .arg("daemon");
    host.daemon = Some(command.stderr(Stdio::null()).spawn().unwrap());
    host.until("the daemon answers", |host| {
        host.weir(&["status", "--json"]).code != 2
    });
    let pid = host.daemon.as_ref().unwrap().id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmPeak:"));
    let kib = line.unwrap().trim_end_matches("kB").trim();
    let kib: u64 = kib.parse().unwrap();
    assert!(kib < 200_000, "{kib} KiB");
}

#[test]
fn the_daemon_holds_no_more_than_it_needs() {
    let host = Host::started();
    let mode = fs::metadata(host.path("weir.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    let pid = host.daemon.as_ref().unwrap().id();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // CAP_DAC_READ_SEARCH 2, CAP_NET_ADMIN 12, CAP_PERFMON 38, CAP_BPF 39.
    let kept: u64 = 1 << 2 | 1 << 12 | 1 << 38 | 1 << 39;
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|l| l.strip_prefix(name))
                .unwrap()
                .trim()
                .to_owned()
        };
        for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            let held = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(held & !kept, 0, "{set} {held:x}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
    }
}

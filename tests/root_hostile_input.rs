//! Bad input to a daemon that enforces in the kernel: hostile and rotated
//! logs, a database that is broken, read-only or on a full disk, a caller
//! without permission. Bans go on, and nothing is lost.

mod common;

use std::{
    fs::{self, File},
    io::Write,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
};

use common::{ATTACKER, CUSTOMER, OTHER, TestNet, WEIR, Weir, addr, at, skipped, soon};

const CONFIG: &str = "interfaces = [\"eth0\"]\n[jail.sshd]\npaths = [\"{log}\"]\nmax_retry = 3\n";

#[test]
fn root_a_hostile_log_does_no_harm() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let weir = Weir::start(&net.host, CONFIG);
    let _server = net.server();
    weir.log_failures([addr(ATTACKER[0])], 2);
    let before = weir.resident();
    let mut log = File::options().append(true).open(weir.log()).unwrap();
    // 10 MiB on one line, with a failure of the customer's inside and at its end.
    let inside = format!("Failed password for root from {} port 1 ssh2", CUSTOMER[0]);
    let mut long = vec![b'A'; 5 << 20];
    long.extend(inside.bytes());
    long.extend(vec![b' '; 5 << 20]);
    long.extend(inside.bytes());
    long.push(b'\n');
    for _ in 0..5 {
        log.write_all(&long).unwrap();
    }
    // Every byte there is, cut anywhere; NULs; no UTF-8.
    let mut bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    bytes.extend([0; 100_000]);
    bytes.extend(b"\n\xff\xfe Failed password for \xc3\x28 from \n\0\0\n");
    log.write_all(&bytes).unwrap();
    // Who writes lines without a head may write any: for a while none counts,
    // then the third failure does.
    weir.log_failures([addr(CUSTOMER[0])], 3);
    for n in 0..weir_core::detect::BEHIND_NO_HEAD {
        writeln!(log, "Nov 21 10:00:00 host cron[{n}]: x").unwrap();
    }
    weir.log_failures([addr(ATTACKER[0])], 1);
    net.drops_soon(ATTACKER[0]);
    assert_eq!(weir.banned(), [ATTACKER[0]]);
    net.serves(CUSTOMER[0], at(0));
    let grown = weir.resident().saturating_sub(before);
    println!("resident memory grew by {grown} KiB");
    assert!(grown < 16 << 10, "{grown} KiB");
}

/// Issue 13, 7: such a jail found failures and never counted one.
#[test]
fn root_a_time_zone_that_does_not_fit_is_told() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let config = |zone: &str| format!("{CONFIG}time_zone = \"{zone}\"\n");
    let weir = Weir::start(&net.host, &config("EAST-5"));
    let alert = || {
        let status = weir.json(&["status"]);
        let alerts = status["alerts"].as_array().unwrap().clone();
        let ours = alerts
            .into_iter()
            .find(|alert| alert["about"] == "jail:sshd:time_zone");
        ours.map(|alert| alert["message"].as_str().unwrap().to_owned())
    };
    let write = |who: &str| {
        let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
        let stamp = now.strftime("%b %e %H:%M:%S");
        let mut log = File::options().append(true).open(weir.log()).unwrap();
        for _ in 0..3 {
            let line = format!("Failed password for root from {who} port 1 ssh2");
            writeln!(log, "{stamp} host sshd[7]: {line}").unwrap();
        }
    };
    assert_eq!(alert(), None);
    write(ATTACKER[0]);
    soon("the ban", || {
        weir.banned().contains(&ATTACKER[0].into()).then_some(())
    });
    let told = alert().expect("an alert");
    assert!(
        told.contains("5h behind the clock") && told.contains("Set time_zone in [jail.sshd]"),
        "{told}"
    );
    // The other way round; then the one that is right.
    for (zone, who, told) in [
        ("WEST5", CUSTOMER[0], Some("5h ahead of the clock")),
        ("UTC", OTHER[0], None),
    ] {
        weir.configure(&config(zone));
        weir.ask(&["reload"]).done();
        assert_eq!(alert(), None);
        write(who);
        soon("the ban", || {
            weir.banned().contains(&who.into()).then_some(())
        });
        let said = alert();
        assert_eq!(said.is_some(), told.is_some(), "{said:?}");
        assert!(told.is_none_or(|told| said.unwrap().contains(told)));
    }
}

/// Issue 13, 8: lines of five days were five failures within a second.
#[test]
fn root_a_backlog_without_stamps_does_not_count() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let config = "interfaces = [\"eth0\"]\n\
        [filter.web]\npatterns = [\"<word> <word> denied <addr>\", \"denied <addr>\"]\n\
        [jail.web]\npaths = [\"{log}\"]\nmax_retry = 3\nfind_time = \"1h\"\n";
    let mut weir = Weir::start(&net.host, config);
    let write = |weir: &Weir, stamp: &dyn Fn(i64) -> String, who: &str| {
        let mut log = File::options().append(true).open(weir.log()).unwrap();
        for day in (0..5).rev() {
            writeln!(log, "{}denied {who}", stamp(day)).unwrap();
        }
    };
    let days_ago = |day| jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * day);
    let nginx = |day| days_ago(day).strftime("%Y/%m/%d %H:%M:%S ").to_string();
    let iso = |day| days_ago(day).strftime("%Y-%m-%dT%H:%M:%SZ ").to_string();
    let fresh = |_| days_ago(0).strftime("%Y-%m-%dT%H:%M:%SZ ").to_string();
    let none = |_| String::new();
    weir.stop();
    // Neither how old they are is known, nor are they of one hour …
    write(&weir, &nginx, ATTACKER[0]);
    write(&weir, &none, ATTACKER[0]);
    write(&weir, &iso, ATTACKER[1]);
    // … but these are.
    write(&weir, &fresh, OTHER[0]);
    weir.run();
    soon("the ban of who has failed within the hour", || {
        weir.banned().contains(&OTHER[0].into()).then_some(())
    });
    assert_eq!(weir.banned(), [OTHER[0]]);
    for who in ATTACKER {
        let tracked = weir.why(who)["tracked"].as_array().unwrap().clone();
        let failures = tracked
            .first()
            .map_or(0, |jail| jail["findings"].as_u64().unwrap());
        // Today's has a stamp.
        assert_eq!(failures, u64::from(who == ATTACKER[1]), "{tracked:?}");
    }
    // What comes now is of now.
    write(&weir, &nginx, ATTACKER[0]);
    soon("the ban by live lines", || {
        weir.banned().contains(&ATTACKER[0].into()).then_some(())
    });
}

#[test]
fn root_no_failure_is_lost_when_the_log_is_rotated() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let _server = net.server();
    let stamp = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
    let line = |who: &str| {
        format!("{stamp} host sshd[7]: Failed password for root from {who} port 1 ssh2\n")
    };

    // Renamed in the middle of a line; its end comes by the old name's file.
    let who = "198.51.100.21";
    let mut old = File::options().append(true).open(weir.log()).unwrap();
    let text = line(who);
    old.write_all(text.as_bytes()).unwrap();
    old.write_all(&text.as_bytes()[..40]).unwrap();
    fs::rename(weir.log(), weir.path("auth.log.1")).unwrap();
    old.write_all(&text.as_bytes()[40..]).unwrap();
    drop(old);
    fs::write(weir.log(), "").unwrap();
    weir.log_failures([addr(who)], 1);
    net.drops_soon(who);

    // Copied and truncated.
    let who = "198.51.100.22";
    weir.log_failures([addr(who)], 2);
    soon("two failures", || {
        (weir.why(who)["tracked"][0]["findings"] == 2).then_some(())
    });
    fs::copy(weir.log(), weir.path("auth.log.2")).unwrap();
    File::options()
        .write(true)
        .open(weir.log())
        .unwrap()
        .set_len(0)
        .unwrap();
    weir.log_failures([addr(who)], 1);
    net.drops_soon(who);

    // Deleted, and made again later.
    let who = "198.51.100.23";
    weir.log_failures([addr(who)], 2);
    fs::remove_file(weir.log()).unwrap();
    soon("two failures", || {
        (weir.why(who)["tracked"][0]["findings"] == 2).then_some(())
    });
    fs::write(weir.log(), "").unwrap();
    weir.log_failures([addr(who)], 1);
    net.drops_soon(who);

    // While no daemon runs, and rotated meanwhile.
    let who = "198.51.100.24";
    weir.log_failures([addr(who)], 1);
    soon("a failure", || {
        (weir.why(who)["tracked"][0]["findings"] == 1).then_some(())
    });
    weir.stop();
    weir.log_failures([addr(who)], 1);
    fs::rename(weir.log(), weir.path("auth.log.3")).unwrap();
    fs::write(weir.log(), "").unwrap();
    weir.log_failures([addr(who)], 1);
    weir.run();
    net.drops_soon(who);
    assert_eq!(weir.banned().len(), 4);
}

/// The sources are open when the daemon says that it runs, also where opening
/// them takes some milliseconds: a pattern that meets very many directories.
#[test]
fn root_the_first_line_after_a_start_or_reload_counts() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, "interfaces = [\"eth0\"]\n");
    let config = "interfaces = [\"eth0\"]\n[jail.sshd]\nmax_retry = 1\n\
                  paths = [\"/usr/*/*/*/weir-test.log\", \"{log}\"]\n";
    weir.run();
    weir.configure(config);
    let answer = weir.raw(b"POST /v1/reload HTTP/1.1\r\nhost: weir\r\ncontent-length: 0\r\n\r\n");
    weir.log_failures(ATTACKER.map(addr), 1);
    assert_eq!(answer, "HTTP/1.1 200 OK");
    soon("bans after the reload", || {
        (weir.banned().len() == 2).then_some(())
    });
    // Without a position to go on from.
    weir.stop();
    fs::remove_dir_all(weir.path("state")).unwrap();
    weir.run();
    weir.log_failures(OTHER.map(addr), 1);
    soon("bans after the start", || {
        (weir.banned().len() == 4).then_some(())
    });
}

#[test]
fn root_a_broken_database_leaves_the_kernels_bans() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let _server = net.server();
    weir.log_failures(ATTACKER.map(addr), 3);
    soon("two bans", || (weir.banned().len() == 2).then_some(()));
    weir.stop();
    let database = weir.path("state/weir.db");
    fs::write(&database, b"SQLite format 3\0 not at all").unwrap();
    for extra in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{extra}", database.display()));
    }
    weir.run();
    assert_eq!(weir.banned().len(), 2);
    let alerts = weir.json(&["status"])["alerts"].to_string();
    assert!(alerts.contains("weir.db"), "{alerts}");
    for family in [0, 1] {
        assert!(!net.connects(ATTACKER[family], at(family)));
        net.serves(CUSTOMER[family], at(family));
    }
    let ban = &weir.why(ATTACKER[0])["bans"][0];
    let left = ban["remaining_seconds"].as_u64().unwrap();
    assert!(
        (3400..=3600).contains(&left),
        "the remaining time is the kernel's: {ban}"
    );

    // Read-only: bans go on, said to be unsaved.
    weir.stop();
    for file in fs::read_dir(weir.path("state")).unwrap() {
        let read_only = fs::Permissions::from_mode(0o400);
        fs::set_permissions(file.unwrap().path(), read_only).unwrap();
    }
    fs::set_permissions(
        weir.path("state/weir.lock"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    fs::set_permissions(weir.path("state"), fs::Permissions::from_mode(0o500)).unwrap();
    weir.run();
    let answer = weir.ask(&["ban", OTHER[0], "--json"]).done().json();
    assert_eq!(answer["saved"], false, "{answer}");
    assert!(!net.connects(OTHER[0], at(0)));
    let alerts = weir.json(&["status"])["alerts"].to_string();
    assert!(alerts.contains("weir.db"), "{alerts}");
    // Killed and read again: the kernel's table decides.
    weir.kill();
    weir.run();
    assert_eq!(weir.banned().len(), 3);
}

/// A file system of its own that is unmounted when this goes.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, size: &str) -> Self {
        fs::create_dir(&at).unwrap();
        let options = format!("size={size},mode=700");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "weir-test"])
            .arg(&at)
            .status();
        assert!(status.unwrap().success());
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

impl Small {
    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        let mut command = Command::new("mount");
        let status = command.args(["-o", &options]).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

/// Issue 13, R8: a disk that went read-only at boot is no reason to protect
/// nobody.
#[test]
fn root_a_read_only_state_directory_stops_no_start() {
    if skipped(&["mount", "umount"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let small = Small::mount(weir.path("state"), "8m");
    let _server = net.server();
    // With nothing in it, then with what an earlier daemon left there.
    for (family, who) in ATTACKER.into_iter().enumerate() {
        small.remount("ro");
        weir.run();
        let alerts = weir.json(&["status"])["alerts"].to_string();
        assert!(alerts.contains("weir.db"), "{alerts}");
        let answer = weir.ask(&["ban", who, "--json"]).done().json();
        assert_eq!(answer["saved"], false, "{answer}");
        assert!(!net.connects(who, at(family)));
        weir.log_failures([addr(OTHER[family])], 3);
        net.drops_soon(OTHER[family]);
        // Nobody else beside it.
        let config = weir.path("weir.toml").display().to_string();
        let second = net
            .host
            .output(WEIR, &["--config", &config, "daemon"])
            .unwrap();
        assert!(!second.status.success());
        let told = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(told.contains("another weir daemon"), "{told}");
        small.remount("rw");
        soon("everything to be saved", || {
            let status = weir.json(&["status"]);
            let quiet = !status["alerts"].to_string().contains("weir.db");
            (status["unsaved"] == 0 && quiet).then_some(())
        });
        weir.stop();
    }
    weir.detach().done();
    weir.run();
    assert_eq!(weir.banned().len(), 4, "from the database alone");
}

#[test]
fn root_bans_go_on_when_the_disk_is_full() {
    if skipped(&["mount", "umount"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let small = Small::mount(weir.path("state"), "2m");
    weir.run();
    let _server = net.server();
    assert_eq!(
        weir.ask(&["ban", ATTACKER[0], "--json"]).done().json()["saved"],
        true
    );
    // Nothing is left of it.
    let fill = weir.path("state/fill");
    let mut file = File::create(&fill).unwrap();
    while file.write_all(&[7; 1024]).is_ok() {}
    drop(file);
    // Pages that SQLite holds already may take a few more.
    let mut unsaved = None;
    let many: Vec<IpAddr> = (1..=200).map(|n| addr(&format!("198.18.7.{n}"))).collect();
    for who in &many {
        let answer = weir.ask(&["ban", &who.to_string(), "--json"]).done().json();
        if answer["saved"] == false {
            unsaved = Some(who.to_string());
            break;
        }
    }
    let unsaved = unsaved.expect("a full disk is noticed");
    let status = weir.json(&["status"]);
    assert!(
        status["alerts"].to_string().contains("weir.db"),
        "{}",
        status["alerts"]
    );
    assert!(status["unsaved"].as_u64() > Some(0));
    assert!(!net.connects(&unsaved, at(0)));
    weir.log_failures([addr(OTHER[0])], 3);
    net.drops_soon(OTHER[0]);
    net.serves(CUSTOMER[0], at(0));
    // Room again: it is caught up on.
    fs::remove_file(&fill).unwrap();
    soon("everything to be saved", || {
        let status = weir.json(&["status"]);
        let quiet = !status["alerts"].to_string().contains("weir.db");
        (status["unsaved"] == 0 && quiet).then_some(())
    });
    // From the database alone.
    weir.stop();
    weir.detach().done();
    weir.run();
    let bans = weir.banned();
    for who in [ATTACKER[0], OTHER[0], &unsaved] {
        assert!(bans.iter().any(|b| b == who), "{who} was not saved");
    }
    weir.stop();
    drop(small);
}

#[test]
fn root_without_permission_it_says_what_is_missing() {
    if skipped(&["setpriv"]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    let open = |path: PathBuf| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(weir.dir.path().to_owned());
    fs::create_dir(weir.path("state")).unwrap();
    open(weir.path("state"));
    // Nobody may not run what lies in a private directory: a copy.
    let weir_program = weir.path("weir");
    fs::copy(WEIR, &weir_program).unwrap();
    let config = weir.path("weir.toml");
    let nobody = |verb: &[&str]| {
        let args: Vec<_> = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"]
            .into_iter()
            .chain([
                weir_program.to_str().unwrap(),
                "--config",
                config.to_str().unwrap(),
            ])
            .chain(verb.iter().copied())
            .collect();
        let output = net.host.output("setpriv", &args).unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, said) = nobody(&["daemon"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("CAP_BPF"), "{said}");
    assert!(!weir.pins().exists());
    println!("as nobody: {said}");
    for file in ["state/weir.lock", "weir.sock"] {
        let _ = fs::remove_file(weir.path(file));
    }
    // A daemon's socket is for root and its group.
    weir.run();
    let (code, said) = nobody(&["bans"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("be root"), "{said}");
}

#[test]
fn root_somebody_elses_pin_directory_is_refused() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    weir.stop();
    weir.detach().done();
    // Where the BPF file system is mode 1777, anybody can be there first.
    fs::create_dir_all(weir.pins()).unwrap();
    std::os::unix::fs::chown(weir.pins(), Some(65534), Some(65534)).unwrap();
    let name = weir.instance.clone();
    weir.fails().refused(&[&name, "uid 65534", "remove it"]);
    std::os::unix::fs::chown(weir.pins(), Some(0), Some(0)).unwrap();
    fs::set_permissions(weir.pins(), fs::Permissions::from_mode(0o777)).unwrap();
    weir.fails().refused(&[&name, "mode 777", "remove it"]);
    fs::remove_dir(weir.pins()).unwrap();
    weir.run();
    let mode = fs::metadata(weir.pins()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

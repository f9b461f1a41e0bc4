//! The daemon and its clocks: the machine sleeps while the daemon runs or not,
//! boots anew, its wall clock jumps. Ends of bans follow real time, in the
//! kernel too. The daemon is given another boot clock by a time namespace,
//! another boot by a file in the place of the kernel's, another wall clock by
//! libfaketime.

mod common;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::{ATTACKER, CUSTOMER, OTHER, TestNet, Weir, at, skipped, soon};
use weir_netlab::FakeHost;

const CONFIG: &str = "interfaces = [\"eth0\"]\n";
/// What the backends `nft` and `ipset` are driven by.
const SETS: [&str; 3] = ["nft", "ipset", "iptables-restore"];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A test that takes longer than this has other troubles.
const SLACK: u64 = 60;

fn ban(weir: &Weir, who: [&str; 2], time: &str) {
    for who in who {
        weir.ask(&["ban", who, "--for", time]).done();
    }
}

/// Both are dropped, by bans that go on for some `seconds`.
#[track_caller]
fn banned_for(net: &TestNet, weir: &Weir, who: [&str; 2], seconds: u64) {
    for family in [0, 1] {
        let why = weir.why(who[family]);
        let left = why["bans"][0]["remaining_seconds"].as_u64();
        let left = left.unwrap_or_else(|| panic!("no end: {why}"));
        assert!(
            (seconds.saturating_sub(SLACK)..=seconds).contains(&left),
            "{left} s left, not {seconds}: {why}"
        );
        assert!(!net.connects(who[family], at(family)), "{why}");
    }
}

#[track_caller]
fn free(net: &TestNet, weir: &Weir, who: [&str; 2]) {
    for family in [0, 1] {
        net.serves(who[family], at(family));
        assert_eq!(weir.why(who[family])["verdict"], "pass");
    }
}

/// Without a word from its daemon, which would have saved what it could; and
/// what was in the kernel is gone.
fn power_off(weir: &mut Weir) {
    soon("all to be saved", || {
        (weir.json(&["status"])["unsaved"] == 0).then_some(())
    });
    weir.kill();
    weir.detach().done();
}

/// A boot that is not this one.
fn other_boot(weir: &Weir, name: u8) -> FakeHost {
    let file = weir.path(&format!("boot_id-{name}"));
    fs::write(&file, format!("{name:08x}-0000-4000-8000-000000000000\n")).unwrap();
    FakeHost::default().instead_of(BOOT_ID, file)
}

const HALF_HOUR: Duration = Duration::from_secs(1800);

#[test]
fn root_bans_go_on_ending_while_the_machine_sleeps_without_a_daemon() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::start(&net.host, CONFIG);
    let _server = net.server();
    ban(&weir, ATTACKER, "1h");
    ban(&weir, OTHER, "10m");
    weir.ask(&["ban", CUSTOMER[0]]).done();
    banned_for(&net, &weir, OTHER, 600);
    weir.stop();
    weir.fake_host = FakeHost::default().suspended_for(HALF_HOUR);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 1800);
    free(&net, &weir, OTHER);
    assert!(!net.connects(CUSTOMER[0], at(0)));
    // Counted once: the next daemon finds it done.
    weir.kill();
    weir.run();
    banned_for(&net, &weir, ATTACKER, 1800);
    // New bans are not made shorter by it.
    ban(&weir, OTHER, "10m");
    banned_for(&net, &weir, OTHER, 600);
    // From the database alone, on the same boot: the boot clock decides.
    power_off(&mut weir);
    weir.fake_host = FakeHost::default().suspended_for(HALF_HOUR * 3 / 2);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 900);
    free(&net, &weir, OTHER);
    assert_eq!(weir.why(CUSTOMER[0])["verdict"], "banned-all");
}

/// The machine sleeps twice while the daemon runs; with sets and tables whose
/// ends the kernel keeps, and with our own.
#[cfg(feature = "fault-points")]
#[track_caller]
fn sleeps_under_the_daemon(backend: &str) {
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, &format!("{CONFIG}backend = \"{backend}\"\n"));
    let slept = weir.path("slept");
    weir.env = vec![("WEIR_FAULT_SLEPT", slept.display().to_string())];
    weir.run();
    let _server = net.server();
    ban(&weir, ATTACKER, "1h");
    for round in 1..=2 {
        ban(&weir, OTHER, "10m");
        banned_for(&net, &weir, OTHER, 600);
        // Awake again. What is banned before the daemon has noticed keeps its
        // time; what it drops until then ended during the sleep.
        fs::write(weir.path("slept.new"), (round * 900).to_string()).unwrap();
        fs::rename(weir.path("slept.new"), &slept).unwrap();
        ban(&weir, CUSTOMER, "10m");
        for family in [0, 1] {
            net.serves_soon(OTHER[family], at(family));
        }
        banned_for(&net, &weir, CUSTOMER, 600);
        banned_for(&net, &weir, ATTACKER, 3600 - round * 900);
        free(&net, &weir, OTHER);
    }
    // The next daemon adds nothing to it.
    weir.kill();
    weir.run();
    banned_for(&net, &weir, CUSTOMER, 600);
    banned_for(&net, &weir, ATTACKER, 1800);
}

#[cfg(feature = "fault-points")]
#[test]
fn root_bans_go_on_ending_while_the_machine_sleeps_under_the_daemon() {
    if skipped(&[]) {
        return;
    }
    sleeps_under_the_daemon("auto");
}

#[cfg(feature = "fault-points")]
#[test]
fn root_bans_in_sets_go_on_ending_while_the_machine_sleeps() {
    if skipped(&SETS) {
        return;
    }
    sleeps_under_the_daemon("nft");
    sleeps_under_the_daemon("ipset");
}

/// The set that has an element, and the seconds that are left of it.
fn left_in_set(net: &TestNet, who: &str) -> (String, u64) {
    let saved = net.host.output("ipset", &["save"]).unwrap();
    let saved = String::from_utf8(saved.stdout).unwrap();
    let line = saved
        .lines()
        .find(|line| line.contains(&format!(" {who} ")))
        .unwrap_or_else(|| panic!("no {who} in {saved}"));
    let mut words = line.split(' ');
    let set = words.nth(1).unwrap().to_owned();
    let left = words.skip_while(|word| *word != "timeout").nth(1).unwrap();
    (set, left.parse().unwrap())
}

/// ipset counts 24 days at most: a longer ban is prolonged until it ends, one
/// that is not is left alone, and none is cut short by a restart or a sleep.
#[cfg(feature = "fault-points")]
#[test]
fn root_bans_longer_than_ipset_counts_are_prolonged() {
    const DAY: u64 = 86_400;
    const LONGEST: u64 = 2_147_483;
    if skipped(&SETS) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, &format!("{CONFIG}backend = \"ipset\"\n"));
    let slept = weir.path("slept");
    weir.env = vec![
        ("WEIR_FAULT_SLEPT", slept.display().to_string()),
        ("WEIR_FAULT_PROLONG", "1".to_owned()),
    ];
    weir.run();
    let _server = net.server();
    ban(&weir, ATTACKER, "40d");
    ban(&weir, OTHER, "1h");
    for turn in 0..2 {
        banned_for(&net, &weir, ATTACKER, 40 * DAY);
        // As if its time had almost run out: weeks pass.
        for who in ATTACKER {
            let (set, left) = left_in_set(&net, who);
            assert!((LONGEST - SLACK..=LONGEST).contains(&left), "{left}");
            let short = ["-exist", "add", &set, who, "timeout", "60"];
            net.host.run("ipset", &short).unwrap();
        }
        for who in ATTACKER {
            soon("it to be prolonged", || {
                (left_in_set(&net, who).1 >= LONGEST - SLACK).then_some(())
            });
        }
        for who in OTHER {
            let (_, left) = left_in_set(&net, who);
            assert!((3600 - SLACK..=3600).contains(&left), "{left}");
        }
        // The next daemon reads a set that says 24 days.
        if turn == 0 {
            weir.kill();
            weir.run();
        }
    }
    // Asleep for so long that the rest is less than ipset counts.
    fs::write(weir.path("slept.new"), (30 * DAY).to_string()).unwrap();
    fs::rename(weir.path("slept.new"), &slept).unwrap();
    for family in [0, 1] {
        net.serves_soon(OTHER[family], at(family));
    }
    banned_for(&net, &weir, ATTACKER, 10 * DAY);
    for who in ATTACKER {
        let (_, left) = left_in_set(&net, who);
        assert!((10 * DAY - SLACK..=10 * DAY).contains(&left), "{left}");
    }
}

#[test]
fn root_a_reboot_keeps_bans_by_the_wall_clock() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    // The first boot has been up for a day longer than the second: by its
    // clock every ban of it would be far from over.
    weir.fake_host = other_boot(&weir, 1).suspended_for(Duration::from_secs(86_400));
    weir.run();
    let _server = net.server();
    ban(&weir, ATTACKER, "1h");
    weir.ask(&["ban", CUSTOMER[1]]).done();
    for who in OTHER {
        weir.ask(&["ban", who, "--for", "2s"]).done();
    }
    power_off(&mut weir);
    for family in [0, 1] {
        net.serves(ATTACKER[family], at(family));
    }
    // The short ones end while it is off.
    let over = Instant::now() + Duration::from_secs(2);
    soon("the short bans' time", || {
        (Instant::now() > over).then_some(())
    });

    weir.fake_host = other_boot(&weir, 2);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);
    free(&net, &weir, OTHER);
    assert_eq!(weir.banned().len(), 3);
    assert!(!net.connects(CUSTOMER[1], at(1)));
    let why = weir.why(ATTACKER[0]);
    assert_eq!(why["bans"][0]["reason"], "manual ban", "{why}");
    // Written again under this boot's clock: it is this one that counts now.
    power_off(&mut weir);
    weir.fake_host = other_boot(&weir, 2).suspended_for(HALF_HOUR);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 1800);
    // And another boot whose clock is ahead: by it all would be over.
    power_off(&mut weir);
    weir.fake_host = other_boot(&weir, 3).suspended_for(Duration::from_secs(86_400));
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);
    assert_eq!(weir.banned().len(), 3);
}

/// `$LIB` is the loader's own: lib/x86_64-linux-gnu on Debian.
const FAKETIME: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// A daemon whose wall clock is this much off, and no other clock.
fn wall_clock(weir: &mut Weir, offset: &str) {
    weir.env = vec![
        ("LD_PRELOAD", FAKETIME.into()),
        ("FAKETIME", offset.into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ];
}

/// What the daemon takes for now, against this process's clock.
fn ahead(weir: &Weir) -> i64 {
    let since = weir.json(&["status"])["since"].as_str().unwrap().to_owned();
    let since: jiff::Timestamp = since.parse().unwrap();
    since.as_second() - jiff::Timestamp::now().as_second()
}

#[test]
fn root_a_wall_clock_that_jumps_neither_frees_nor_detains() {
    if skipped(&[]) {
        return;
    }
    let libs = fs::read_dir("/usr/lib").unwrap().flatten();
    let there = libs
        .map(|dir| dir.path().join("faketime/libfaketimeMT.so.1"))
        .any(|file| Path::exists(&file));
    if !there {
        println!("skipped: no faketime/libfaketimeMT.so.1 in /usr/lib (Debian package faketime)");
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, CONFIG);
    // The clock is two hours ahead.
    weir.fake_host = other_boot(&weir, 1);
    wall_clock(&mut weir, "+7200");
    weir.run();
    assert!(
        (7200 - SLACK as i64..=7200).contains(&ahead(&weir)),
        "libfaketime does nothing"
    );
    let _server = net.server();
    ban(&weir, ATTACKER, "1h");
    banned_for(&net, &weir, ATTACKER, 3600);

    // Set right while the machine runs; the tables are there, then the
    // database alone: the boot clock decides.
    weir.stop();
    weir.env.clear();
    weir.run();
    assert!(ahead(&weir) <= 0);
    banned_for(&net, &weir, ATTACKER, 3600);
    power_off(&mut weir);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);

    // Ahead again, then a boot with the clock set right, so behind the last
    // write: what was left of the ban is left.
    power_off(&mut weir);
    wall_clock(&mut weir, "+7200");
    weir.run();
    ban(&weir, OTHER, "2h");
    power_off(&mut weir);
    weir.env.clear();
    weir.fake_host = other_boot(&weir, 2);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);
    banned_for(&net, &weir, OTHER, 7200);

    // A boot without a battery for its clock: back by years.
    power_off(&mut weir);
    weir.fake_host = other_boot(&weir, 3);
    wall_clock(&mut weir, "-20y");
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);
    banned_for(&net, &weir, OTHER, 7200);
    // The clock is set by the network while it runs, and the machine boots
    // once more: the wall clock can be trusted again, nobody is freed.
    weir.stop();
    weir.env.clear();
    weir.run();
    power_off(&mut weir);
    weir.fake_host = other_boot(&weir, 4);
    weir.run();
    banned_for(&net, &weir, ATTACKER, 3600);
    banned_for(&net, &weir, OTHER, 7200);
}

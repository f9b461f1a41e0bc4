use super::{
    evidence::{EVIDENCE, clip},
    *,
};
use crate::{
    detect::{Finding, Offender},
    policy::{Increment, MAX_EVIDENCE},
};
use proptest::prelude::*;
use std::net::IpAddr;

fn jail(name: &str, max_retry: u32, max_tracked: usize) -> Jail {
    Jail {
        name: name.into(),
        limits: JailLimits {
            max_retry,
            max_tracked,
            ..JailLimits::default()
        },
        scope: "22/tcp".parse().unwrap(),
        action: crate::Action::Drop,
        ignore: ["192.0.2.200".parse().unwrap()].into_iter().collect(),
        names_prefixes: false,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn finding(addr: &str, second: i64) -> Finding {
    Finding {
        offender: addr.parse::<IpAddr>().unwrap().into(),
        time: at(second),
        user: None,
        attempts: 1,
        pattern: 0,
        clock: crate::detect::Clock::Stamp,
    }
}

fn record(ledger: &Ledger, addr: &str, second: i64, now: i64) -> Outcome {
    let line = format!("{addr} at {second}");
    ledger.record(0, &finding(addr, second), line.as_bytes(), at(now))
}

fn counted(failures: u32, of: u32) -> Outcome {
    Outcome::Counted { failures, of }
}

#[test]
fn a_ban_comes_with_max_retry() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 100)]);
    assert_eq!(record(&ledger, "192.0.2.7", 0, 0), counted(1, 3));
    assert_eq!(record(&ledger, "192.0.2.8", 1, 1), counted(1, 3));
    assert_eq!(record(&ledger, "192.0.2.7", 100, 100), counted(2, 3));
    let Outcome::Ban(ban) = record(&ledger, "192.0.2.7", 125, 130) else {
        panic!("the third failure bans");
    };
    assert_eq!(ban.subject, "192.0.2.7".parse().unwrap());
    assert_eq!(ban.producer, BanSource::Jail("sshd".into()));
    assert_eq!(ban.scope, "22/tcp".parse().unwrap());
    assert_eq!((ban.since, ban.until), (at(130), Until::At(at(3730))));
    assert_eq!(ban.reason, "3 failures in 2m 5s");
    assert_eq!(
        ban.evidence,
        ["192.0.2.7 at 0", "192.0.2.7 at 100", "192.0.2.7 at 125"]
    );
    assert_eq!(
        record(&ledger, "192.0.2.7", 130, 131),
        Outcome::Ignored(Ignored::BeforeBan)
    );
    assert_eq!(record(&ledger, "192.0.2.7", 131, 131), counted(1, 3));
    let stats = ledger.stats(0).unwrap();
    assert_eq!(
        (stats.tracked, stats.failures, stats.bans, stats.ignored),
        (2, 5, 1, 1)
    );
}

#[test]
fn failures_leave_the_window() {
    let ledger = Ledger::new(vec![jail("sshd", 2, 100)]);
    assert_eq!(record(&ledger, "192.0.2.7", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "192.0.2.7", 601, 601), counted(1, 2));
    assert_eq!(record(&ledger, "192.0.2.7", 0, 601), Outcome::TooOld);
    assert!(
        matches!(record(&ledger, "192.0.2.7", 1201, 1201), Outcome::Ban(_)),
        "600 s are within"
    );
}

#[test]
fn times_of_the_future_and_a_clock_set_back() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 100)]);
    assert_eq!(record(&ledger, "192.0.2.7", 9_000_000, 0), counted(1, 3));
    assert_eq!(record(&ledger, "192.0.2.8", 0, 0), counted(1, 3));
    // Back by a day: counted failures stay, and age from now on.
    assert_eq!(
        record(&ledger, "192.0.2.8", -86_400, -86_400),
        counted(2, 3)
    );
    assert_eq!(
        record(&ledger, "192.0.2.8", -85_799, -85_799),
        counted(1, 3)
    );
    let ledger = Ledger::new(vec![jail("sshd", 1, 100)]);
    assert!(matches!(
        record(&ledger, "192.0.2.7", 0, 0),
        Outcome::Ban(_)
    ));
    assert_eq!(
        record(&ledger, "192.0.2.7", -86_400, -86_400),
        Outcome::Ignored(Ignored::BeforeBan)
    );
    assert!(matches!(
        record(&ledger, "192.0.2.7", -86_399, -86_399),
        Outcome::Ban(_)
    ));
}

#[test]
fn what_is_never_counted() {
    let ledger = Ledger::new(vec![jail("sshd", 1, 100)]);
    assert_eq!(
        record(&ledger, "192.0.2.200", 0, 0),
        Outcome::Ignored(Ignored::Listed("192.0.2.200".parse().unwrap()))
    );
    for addr in ["127.0.0.1", "::1", "0.0.0.0", "ff02::1", "255.255.255.255"] {
        let outcome = record(&ledger, addr, 0, 0);
        assert!(
            matches!(outcome, Outcome::Ignored(Ignored::Unbannable(_))),
            "{addr}: {outcome:?}"
        );
    }
    assert_eq!(
        ledger.record(1, &finding("192.0.2.7", 0), b"", at(0)),
        Outcome::Ignored(Ignored::NoSuchJail)
    );
}

/// One host on our own link must not have all others there banned.
#[test]
fn neighbours_count_by_their_own_address() {
    let ledger = Ledger::new(vec![jail("sshd", 2, 100)]);
    ledger.set_own(&["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
    for network in ["2001:db8::", "fe80::"] {
        let of = |host: u8| format!("{network}{host}");
        assert_eq!(record(&ledger, &of(6), 0, 0), counted(1, 2));
        assert_eq!(record(&ledger, &of(7), 0, 0), counted(1, 2));
        let Outcome::Ban(ban) = record(&ledger, &of(6), 1, 1) else {
            panic!("two of one address");
        };
        assert_eq!(ban.subject.to_string(), of(6));
    }
    assert_eq!(record(&ledger, "2001:db8:0:1::6", 0, 0), counted(1, 2));
    let Outcome::Ban(ban) = record(&ledger, "2001:db8:0:1::7", 0, 0) else {
        panic!("two of one /64");
    };
    assert_eq!(ban.subject.to_string(), "2001:db8:0:1::/64");
    // In something wider than a /64, neighbours have a /64 each.
    let mut wide = jail("sshd", 1, 100);
    wide.limits.ipv6_prefix = 48;
    let wide = Ledger::new(vec![wide]);
    wide.set_own(&["2001:db8::1".parse().unwrap()]);
    for (who, banned) in [
        ("2001:db8::6", "2001:db8::6"),
        ("2001:db8:0:1::6", "2001:db8:0:1::/64"),
        ("2001:db8:1:1::6", "2001:db8:1::/48"),
    ] {
        let Outcome::Ban(ban) = record(&wide, who, 0, 0) else {
            panic!("{who}");
        };
        assert_eq!(ban.subject.to_string(), banned);
    }
    // Whoever takes over does not forget.
    let next = Ledger::new(vec![jail("sshd", 1, 100)]);
    next.take_over(&ledger, at(1));
    let Outcome::Ban(ban) = record(&next, "2001:db8::9", 1, 1) else {
        panic!("the first");
    };
    assert_eq!(ban.subject.to_string(), "2001:db8::9");
}

/// Of who shares a network with a host that a jail ignores by name, each is counted apart, by
/// that jail.
#[test]
fn neighbours_of_a_named_host_count_by_their_own_address() {
    let ledger = Ledger::new(vec![jail("ssh", 1, 100), jail("sshd", 1, 100)]);
    let named = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    ledger.set_named(&HashMap::from([("sshd".to_owned(), named.to_vec())]));
    let banned = |ledger: &Ledger, jail, who: &str| match ledger.record(
        jail,
        &finding(who, 0),
        b"",
        at(0),
    ) {
        Outcome::Ban(ban) => ban.subject.to_string(),
        other => panic!("{who}: {other:?}"),
    };
    assert_eq!(banned(&ledger, 0, "2001:db8::6"), "2001:db8::/64");
    assert_eq!(banned(&ledger, 1, "2001:db8::6"), "2001:db8::6");
    assert_eq!(banned(&ledger, 1, "2001:db8:0:1::6"), "2001:db8:0:1::/64");
    // The number of the jail is another one after a reload.
    let next = Ledger::new(vec![jail("sshd", 1, 100)]);
    next.take_over(&ledger, at(0));
    assert_eq!(banned(&next, 0, "2001:db8::7"), "2001:db8::7");
    next.set_named(&HashMap::new());
    assert_eq!(banned(&next, 0, "2001:db8::8"), "2001:db8::/64");
}

/// Neighbours are counted by their own addresses, or by /64 in something wider:
/// after a restart as before it, unless the host is in another network by then.
#[test]
fn counts_of_neighbours_survive_a_restart() {
    for (length, who, other) in [
        (64, "2001:db8::6", "2001:db8::7"),
        (48, "2001:db8::6", "2001:db8::7"),
        (48, "2001:db8:0:1::6", "2001:db8:0:2::6"),
        (64, "fe80::6", "fe80::7"),
        (64, "2001:db8:0:1::6", "2001:db8:0:2::6"),
        (64, "192.0.2.7", "192.0.2.8"),
    ] {
        let new = || {
            let mut jail = jail("sshd", 3, 100);
            jail.limits.ipv6_prefix = length;
            Ledger::new(vec![jail])
        };
        let own = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let ledger = new();
        ledger.set_own(&own);
        for n in 1..=2 {
            assert_eq!(record(&ledger, who, n, n), counted(n as u32, 3), "{who}");
        }
        assert_eq!(record(&ledger, other, 2, 2), counted(1, 3), "{other}");
        let stored = ledger.take_changes(&[0], true);
        let next = new();
        next.set_own(&own);
        assert_eq!(next.restore(stored.clone(), at(3)), 2, "{who} by {length}");
        let outcome = record(&next, who, 4, 4);
        assert!(matches!(outcome, Outcome::Ban(_)), "{who}: {outcome:?}");
        assert_eq!(record(&next, other, 4, 4), counted(2, 3), "{other}");
        let elsewhere = new();
        let restored = elsewhere.restore(stored, at(3));
        let is_neighbour = who.starts_with("2001:db8::") || length == 48;
        assert_eq!(restored == 0, is_neighbour, "{who} by {length}");
    }
}

#[test]
fn ipv6_counts_by_64() {
    let ledger = Ledger::new(vec![jail("sshd", 2, 100)]);
    assert_eq!(record(&ledger, "2001:db8::1", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "2001:db8:0:1::1", 0, 0), counted(1, 2));
    let Outcome::Ban(ban) = record(&ledger, "2001:db8::2", 1, 1) else {
        panic!("two of one /64");
    };
    assert_eq!(ban.subject.to_string(), "2001:db8::/64");
    let mut by_128 = jail("sshd", 2, 100);
    by_128.limits.ipv6_prefix = 128;
    let ledger = Ledger::new(vec![by_128]);
    assert_eq!(record(&ledger, "2001:db8::1", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "2001:db8::2", 0, 0), counted(1, 2));
}

#[test]
fn ipv6_counts_by_a_wider_prefix() {
    let mut by_48 = jail("sshd", 2, 100);
    by_48.limits.ipv6_prefix = 48;
    let ledger = Ledger::new(vec![by_48]);
    assert_eq!(record(&ledger, "2001:db8:1:2::1", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "2001:db8:2:2::1", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "192.0.2.7", 0, 0), counted(1, 2));
    assert_eq!(record(&ledger, "192.0.2.8", 0, 0), counted(1, 2));
    let Outcome::Ban(ban) = record(&ledger, "2001:db8:1:ffff::1", 1, 1) else {
        panic!("two of one /48");
    };
    assert_eq!(ban.subject.to_string(), "2001:db8:1::/48");
}

#[test]
fn bans_grow_and_history_survives() {
    let mut growing = jail("sshd", 1, 100);
    growing.limits.increment = Some(Increment {
        factor: 2.0,
        max: Duration::from_secs(10_000),
    });
    let ledger = Ledger::new(vec![growing.clone()]);
    let ban = |ledger: &Ledger, second| match record(ledger, "192.0.2.7", second, second) {
        Outcome::Ban(ban) => match ban.until {
            Until::At(end) => end.as_second() - ban.since.as_second(),
            Until::Never => panic!("it ends"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!((ban(&ledger, 0), ban(&ledger, 1)), (3600, 7200));
    let history = ledger.history();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].offences, 2);
    let ledger = Ledger::new(vec![growing]);
    let mut foreign = history[0].clone();
    foreign.jail = "gone".into();
    assert_eq!(ledger.restore_history([history[0].clone(), foreign]), 1);
    assert_eq!(
        ledger.offences(0, "192.0.2.7".parse().unwrap()),
        Some((2, at(1)))
    );
    assert_eq!(ban(&ledger, 2), 10_000, "at most max");
    let mut forever = jail("sshd", 1, 100);
    forever.limits.ban_time = BanTime::Never;
    let Outcome::Ban(ban) = record(&Ledger::new(vec![forever]), "192.0.2.7", 0, 0) else {
        panic!("max_retry is 1");
    };
    assert_eq!(ban.until, Until::Never);
}

#[test]
fn a_table_says_how_long_bans_last() {
    let mut by_table = jail("sshd", 1, 100);
    by_table.limits.increment = Some(Increment {
        factor: 100.0,
        max: Duration::from_secs(1_000_000),
    });
    let time = |seconds| BanTime::For(Duration::from_secs(seconds));
    by_table.limits.ban_times = vec![time(60), time(300), time(7)];
    let ban = |ledger: &Ledger, second| match record(ledger, "192.0.2.7", second, second) {
        Outcome::Ban(ban) => match ban.until {
            Until::At(end) => Some(end.as_second() - ban.since.as_second()),
            Until::Never => None,
        },
        other => panic!("{other:?}"),
    };
    let ledger = Ledger::new(vec![by_table.clone()]);
    let times: Vec<_> = (0..5).map(|second| ban(&ledger, second)).collect();
    assert_eq!(times, [60, 300, 7, 7, 7].map(Some));
    by_table.limits.ban_times.push(BanTime::Never);
    let ledger = Ledger::new(vec![by_table]);
    let times: Vec<_> = (0..5).map(|second| ban(&ledger, second)).collect();
    assert_eq!(times, [Some(60), Some(300), Some(7), None, None]);
}

#[test]
fn bans_grow_by_chance_and_by_other_jails_if_they_are_to() {
    let time = |seconds| BanTime::For(Duration::from_secs(seconds));
    let mut alone = jail("sshd", 1, 100);
    alone.limits.ban_times = vec![time(60), time(300), time(900)];
    let mut all = alone.clone();
    all.name = "web".to_owned();
    all.limits.counts_all_jails = true;
    all.limits.random_time = Duration::from_secs(100);
    let ledger = Ledger::new(vec![alone, all]);
    let ban = |jail: usize, who: &str, second: i64| {
        let line = finding(who, second);
        match ledger.record(jail, &line, b"", at(second)) {
            Outcome::Ban(ban) => match ban.until {
                Until::At(end) => end.as_second() - ban.since.as_second(),
                Until::Never => panic!("it ends"),
            },
            other => panic!("{other:?}"),
        }
    };
    for who in ["192.0.2.7", "2001:db8::7"] {
        // The first ban is no longer than it is to be, and its own jail counts alone.
        assert_eq!(ban(1, who, 1), 60);
        assert_eq!(ban(0, who, 2), 60);
        assert!((900..=1_000).contains(&ban(1, who, 3)), "two before it");
        assert_eq!(ban(0, who, 4), 300);
    }
    let mut times: Vec<_> = (0..50).map(|n| ban(1, "192.0.2.7", 10 + n)).collect();
    times.sort_unstable();
    times.dedup();
    assert!(times.iter().all(|time| (900..=1_000).contains(time)));
    assert!(times.len() > 10, "{times:?}");
}

#[test]
fn counts_survive_a_restart() {
    let ledger = Ledger::new(vec![jail("sshd", 4, 100)]);
    for second in [0, 1, 2] {
        let _ = record(&ledger, "192.0.2.7", second, 2);
    }
    let _ = record(&ledger, "2001:db8::1", 2, 2);
    let snapshot = ledger.snapshot(at(601));
    let tracked: usize = snapshot.iter().map(|t| t.failures.len()).sum();
    assert_eq!((snapshot.len(), tracked), (2, 3), "one is too old");
    let text = serde_json::to_string(&snapshot).unwrap();
    let snapshot: Vec<Tracked> = serde_json::from_str(&text).unwrap();
    let again = Ledger::new(vec![jail("sshd", 4, 100)]);
    assert_eq!(again.restore(snapshot.clone(), at(601)), 2);
    assert_eq!(record(&again, "192.0.2.7", 601, 601), counted(3, 4));
    let Outcome::Ban(ban) = record(&again, "192.0.2.7", 601, 601) else {
        panic!("two are restored");
    };
    assert_eq!(ban.evidence[..2], ["192.0.2.7 at 1", "192.0.2.7 at 2"]);
    // A lower limit does not ban by itself, the next failure does.
    let lower = Ledger::new(vec![jail("sshd", 2, 100)]);
    assert_eq!(lower.restore(snapshot, at(601)), 2);
    assert_eq!(lower.stats(0).unwrap().bans, 0);
    assert!(matches!(
        record(&lower, "192.0.2.7", 601, 601),
        Outcome::Ban(_)
    ));
    assert_eq!(lower.restore([], at(0)), 0);
}

#[test]
fn what_no_longer_counts_is_forgotten() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 1000), jail("other", 3, 1000)]);
    let tracked = || ledger.stats(0).unwrap().tracked;
    for n in 0..200 {
        let _ = record(&ledger, &format!("192.0.2.{}", n % 100), n, n);
    }
    assert_eq!(tracked(), 100);
    ledger.forget_expired(at(700));
    assert_eq!(
        tracked(),
        100,
        "the last failure of each is younger than 600 s"
    );
    ledger.forget_expired(at(749));
    assert_eq!(tracked(), 51, "those at 149 and later count");
    // A clock set back by a day: they age from now on, and then go.
    let back = -86_400;
    ledger.forget_expired(at(back));
    assert_eq!(tracked(), 51);
    ledger.forget_expired(at(back + 600));
    assert_eq!(tracked(), 51);
    ledger.forget_expired(at(back + 601));
    assert_eq!(tracked(), 0);
}

#[test]
fn the_database_learns_what_has_changed_and_no_more() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 100), jail("other", 3, 100)]);
    let changes = |ledger: &Ledger| {
        let mut changes: Vec<_> = ledger
            .take_changes(&[0], false)
            .into_iter()
            .map(|tracked| (tracked.subject.to_string(), tracked.failures.len()))
            .collect();
        changes.sort();
        changes
    };
    let is = |expected: &[(&str, usize)]| {
        let expected: Vec<_> = expected.iter().map(|(s, n)| (s.to_string(), *n)).collect();
        assert_eq!(changes(&ledger), expected);
        assert_eq!(changes(&ledger), [], "told once");
    };
    for who in ["192.0.2.7", "192.0.2.8", "2001:db8::1"] {
        let _ = record(&ledger, who, 0, 0);
    }
    let _ = ledger.record(1, &finding("192.0.2.7", 0), b"", at(0));
    is(&[("192.0.2.7", 1), ("192.0.2.8", 1), ("2001:db8::/64", 1)]);
    let _ = record(&ledger, "192.0.2.8", 1, 1);
    is(&[("192.0.2.8", 2)]);
    assert_eq!(ledger.take_changes(&[0], true).len(), 3, "a new database");
    // Banned, forgiven, expired: each is gone, once.
    assert!(matches!(
        record(&ledger, "192.0.2.8", 2, 2),
        Outcome::Ban(_)
    ));
    ledger.forgive("192.0.2.7".parse().unwrap());
    is(&[("192.0.2.7", 0), ("192.0.2.8", 0)]);
    ledger.forget_expired(at(601));
    is(&[("2001:db8::/64", 0)]);
    // What the database never heard of needs no farewell.
    let _ = record(&ledger, "192.0.2.9", 601, 601);
    ledger.forgive("192.0.2.9".parse().unwrap());
    is(&[]);
    // Gone and back again: as it is.
    let _ = record(&ledger, "192.0.2.9", 602, 602);
    is(&[("192.0.2.9", 1)]);
    ledger.forgive("192.0.2.9".parse().unwrap());
    let _ = record(&ledger, "192.0.2.9", 603, 603);
    is(&[("192.0.2.9", 1)]);
}

#[test]
fn what_waits_for_the_database_is_bounded() {
    let ledger = Ledger::new(vec![jail("sshd", 2, 64)]);
    let mut stored = std::collections::BTreeSet::new();
    for round in 0..20 {
        for n in 0..1000 {
            let _ = record(
                &ledger,
                &format!("10.{round}.{}.{}", n / 250, n % 250),
                0,
                0,
            );
        }
        let changes = ledger.take_changes(&[0], false);
        assert!(changes.len() <= 128, "{} changes", changes.len());
        for change in changes {
            match change.failures.is_empty() {
                true => assert!(stored.remove(&change.subject)),
                false => assert!(stored.insert(change.subject)),
            }
        }
        let counted: Vec<_> = ledger.snapshot(at(0)).iter().map(|t| t.subject).collect();
        assert_eq!(stored, counted.into_iter().collect());
    }
}

/// Stored before the ban, restored behind it: the count starts anew.
#[test]
fn restored_failures_before_a_ban_do_not_count() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 100)]);
    for second in [0, 1] {
        let _ = record(&ledger, "192.0.2.7", second, second);
    }
    let stored = ledger.snapshot(at(1));
    assert!(matches!(
        record(&ledger, "192.0.2.7", 2, 2),
        Outcome::Ban(_)
    ));
    let again = Ledger::new(vec![jail("sshd", 3, 100)]);
    again.restore_history(ledger.history());
    assert_eq!(again.restore(stored, at(3)), 0);
    assert_eq!(record(&again, "192.0.2.7", 3, 3), counted(1, 3));
    // And the database is told.
    let changes = again.take_changes(&[0], false);
    assert_eq!(
        changes.len(),
        1,
        "counted again, so it is there: {changes:?}"
    );
}

#[test]
fn another_configuration_takes_counts_over() {
    let ledger = Ledger::new(vec![jail("sshd", 3, 100), jail("gone", 3, 100)]);
    let _ = record(&ledger, "192.0.2.7", 0, 0);
    let _ = ledger.record(1, &finding("192.0.2.7", 0), b"", at(0));
    let new = Ledger::new(vec![jail("more", 3, 100), jail("sshd", 3, 100)]);
    new.take_over(&ledger, at(1));
    let changes = new.take_changes(&[0, 1], false);
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (changes[0].jail.as_str(), changes[0].failures.len()),
        ("sshd", 1)
    );
}

#[test]
fn forgiving_starts_anew() {
    let ledger = Ledger::new(vec![jail("sshd", 2, 100), jail("other", 2, 100)]);
    for jail in 0..2 {
        let _ = ledger.record(jail, &finding("192.0.2.7", 0), b"", at(0));
    }
    ledger.forgive("192.0.2.7".parse().unwrap());
    assert_eq!(record(&ledger, "192.0.2.7", 0, 0), counted(1, 2));
    assert_eq!(
        ledger.record(1, &finding("192.0.2.7", 0), b"", at(0)),
        counted(1, 2)
    );
}

#[test]
fn memory_is_bounded_at_the_cap() {
    for cap in [1, 7, 16, 100] {
        let ledger = Ledger::new(vec![jail("sshd", 5, cap)]);
        for n in 0..2000u32 {
            let addr = IpAddr::from((0x0a00_0000 + n).to_be_bytes());
            let _ = record(&ledger, &addr.to_string(), 0, 0);
        }
        let stats = ledger.stats(0).unwrap();
        assert!(stats.tracked <= cap, "{} of {cap}", stats.tracked);
        assert_eq!(stats.evicted, 2000 - stats.tracked as u64);
        assert!(cap < 100 || stats.tracked == cap);
    }
}

#[test]
fn evidence_is_a_ring() {
    let mut evidence = Evidence::default();
    let mut entries = vec![];
    for n in 0..10_000u64 {
        let line = format!("{n:0>500}");
        let kept_at = evidence.push(line.as_bytes());
        entries.push(Entry::new(at(0).into(), 1, kept_at));
    }
    assert!(evidence.ring.len() <= EVIDENCE);
    let kept: Vec<_> = entries.iter().map(|e| evidence.line(e)).collect();
    assert_eq!(kept[0], "(line no longer kept)");
    for (n, line) in kept.iter().enumerate().skip(8000) {
        assert_eq!(*line, format!("{n:0>500}"));
    }
    let long = "ä\u{1F980}".repeat(400);
    assert!(evidence::text(clip(long.as_bytes())).len() <= MAX_EVIDENCE);
    assert!(evidence::text(clip(&[0xff; 2000])).len() <= MAX_EVIDENCE);
}

#[test]
fn workers_count_together() {
    let ledger = Ledger::new(vec![jail("sshd", 8, 10_000)]);
    let bans: usize = std::thread::scope(|scope| {
        let worker = |_| {
            scope.spawn(|| {
                (0..1000)
                    .filter(|n| {
                        let addr = format!("10.0.{}.{}", n / 250, n % 250 + 1);
                        matches!(record(&ledger, &addr, 0, 0), Outcome::Ban(_))
                    })
                    .count()
            })
        };
        let workers: Vec<_> = (0..8).map(worker).collect();
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    assert_eq!(bans, 1000, "8 failures of each, whoever counted them");
}

/// The rules of the module's head, told again without a window structure: all
/// findings are kept and looked through each time.
#[derive(Default)]
struct Model {
    kept: Vec<(usize, i64, u32, String)>,
    bans: Vec<(usize, i64)>,
}

impl Model {
    fn record(
        &mut self,
        who: usize,
        time: i64,
        attempts: u32,
        line: String,
        now: i64,
        of: u32,
    ) -> Option<Vec<String>> {
        let time = time.min(now);
        if time < now - 600 {
            return None;
        }
        for kept in self.kept.iter_mut().filter(|k| k.0 == who) {
            kept.1 = kept.1.min(now);
        }
        for ban in self.bans.iter_mut().filter(|b| b.0 == who) {
            ban.1 = ban.1.min(now);
        }
        if self.bans.iter().any(|b| b.0 == who && time <= b.1) {
            return None;
        }
        // What has expired stays so when the clock is set back.
        self.kept.retain(|k| k.0 != who || k.1 >= now - 600);
        self.kept.push((who, time, attempts, line));
        // Stable, and not sorted again once a clock set back made times equal.
        self.kept.sort_by_key(|k| k.1);
        let mine: Vec<_> = self
            .kept
            .iter()
            .filter(|k| k.0 == who && k.1 >= now - 600)
            .collect();
        if mine.iter().map(|k| k.2).sum::<u32>() < of {
            return None;
        }
        let lines = mine.iter().map(|k| k.3.clone()).collect();
        self.kept.retain(|k| k.0 != who);
        self.bans.push((who, now));
        Some(lines)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn as_the_naive_model(
        of in 1u32..6,
        steps in prop::collection::vec((0usize..3, -700i64..300, 1u32..4, prop_oneof![8 => 0i64..200, 1 => -2000i64..0]), 1..120),
    ) {
        let addrs = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
        let ledger = Ledger::new(vec![jail("sshd", of, 1000)]);
        let mut model = Model::default();
        let mut now = 0;
        for (n, (who, offset, attempts, tick)) in steps.into_iter().enumerate() {
            now += tick;
            // Most lines are fresh.
            let time = if offset % 3 == 0 { now + offset } else { now };
            let line = format!("line {n}");
            let finding = Finding { attempts, ..finding(addrs[who], time) };
            let outcome = ledger.record(0, &finding, line.as_bytes(), at(now));
            let expected = model.record(who, time, attempts, line, now, of);
            match (outcome, expected) {
                (Outcome::Ban(ban), Some(lines)) => prop_assert_eq!(ban.evidence, lines),
                (Outcome::Ban(ban), None) => prop_assert!(false, "ban too early: {ban:?}"),
                (other, Some(_)) => prop_assert!(false, "no ban: {other:?}"),
                (Outcome::Counted { failures, .. }, None) => prop_assert!(failures < of),
                _ => {}
            }
        }
    }

    /// Two jails with caps that are reached, times that are too old or to come, a
    /// clock that is set back; who is ignored, who cannot be banned, and no jail.
    #[test]
    fn a_batch_counts_as_one_after_the_other(
        of in 1u32..6,
        cap in 1usize..60,
        batches in prop::collection::vec(
            (
                prop_oneof![8 => 0i64..400, 1 => -2000i64..0],
                any::<bool>(),
                prop::collection::vec((0usize..3, 0u8..40, -700i64..300, 1u32..4), 0..80),
            ),
            1..12,
        ),
    ) {
        let jails = || vec![jail("sshd", of, cap), jail("web", of + 1, 100)];
        let single = Ledger::new(jails());
        let batched = Ledger { hash: single.hash.clone(), ..Ledger::new(jails()) };
        let mut now = 0;
        for (tick, forget, found) in batches {
            now += tick;
            let found: Vec<_> = found
                .into_iter()
                .enumerate()
                .map(|(n, (jail, who, offset, attempts))| {
                    let addr = match who {
                        0 => "127.0.0.1".to_owned(),
                        1 => "192.0.2.200".to_owned(),
                        2..20 => format!("192.0.2.{who}"),
                        _ => format!("2001:db8:{}::{who}", who / 2),
                    };
                    // Most lines are fresh.
                    let time = if offset % 3 == 0 { now + offset } else { now };
                    let finding = Finding { attempts, ..finding(&addr, time) };
                    (jail, finding, format!("line {n} at {now}"))
                })
                .collect();
            let expected: Vec<_> = found
                .iter()
                .map(|(jail, finding, line)| {
                    single.record(*jail, finding, line.as_bytes(), at(now))
                })
                .collect();
            let accusations: Vec<_> = found
                .iter()
                .map(|(jail, finding, line)| Accusation::new(*jail, finding, line.as_bytes()))
                .collect();
            prop_assert_eq!(batched.record_batch(&accusations, at(now)), expected);
            if forget {
                single.forget_expired(at(now));
                batched.forget_expired(at(now));
            }
            for jail in 0..2 {
                prop_assert_eq!(batched.stats(jail), single.stats(jail));
            }
            prop_assert_eq!(batched.snapshot(at(now)), single.snapshot(at(now)));
            prop_assert_eq!(batched.history(), single.history());
            prop_assert_eq!(
                batched.take_changes(&[0, 1], false),
                single.take_changes(&[0, 1], false)
            );
        }
    }

    #[test]
    fn the_cap_is_never_exceeded(
        cap in 1usize..40,
        addrs in prop::collection::vec(any::<u16>(), 1..300),
    ) {
        let ledger = Ledger::new(vec![jail("sshd", 3, cap)]);
        for addr in addrs {
            let _ = record(&ledger, &format!("10.9.{}.{}", addr >> 8, addr & 255), 0, 0);
            prop_assert!(ledger.stats(0).unwrap().tracked <= cap);
            prop_assert!(ledger.history().len() <= cap);
        }
    }
}

#[test]
fn a_prefix_that_a_line_names_is_counted_and_kept_as_it_is() {
    let named = |prefix: &str, attempts| Finding {
        offender: Offender::Prefix(prefix.parse().unwrap()),
        attempts,
        ..finding("192.0.2.7", 0)
    };
    let jail = || Jail {
        names_prefixes: true,
        ..jail("quota", 4, 100)
    };
    let ledger = Ledger::new(vec![jail()]);
    let prefixes = ["192.0.3.0/24", "2001:db8::/48", "2001:db8:1::/120"];
    for prefix in prefixes {
        let outcome = ledger.record(0, &named(prefix, 2), b"first", at(0));
        assert_eq!(outcome, counted(2, 4), "{prefix}");
    }
    // Its addresses are counted for themselves.
    assert_eq!(record(&ledger, "192.0.3.7", 0, 0), counted(1, 4));
    assert_eq!(record(&ledger, "2001:db8::7", 0, 0), counted(1, 4));
    let old = ledger.record(0, &named("192.0.3.0/24", 2), b"", at(601));
    assert_eq!(old, Outcome::TooOld);
    for bad in ["127.1.0.0/16", "224.0.0.0/16", "::/40"] {
        let outcome = ledger.record(0, &named(bad, 1), b"", at(0));
        assert!(
            matches!(outcome, Outcome::Ignored(Ignored::Unbannable(_))),
            "{bad}: {outcome:?}"
        );
    }
    let ignored = ledger.record(0, &named("192.0.2.200/32", 1), b"", at(0));
    assert!(matches!(ignored, Outcome::Ignored(Ignored::Listed(_))));
    // They are as they were behind a restart.
    let again = Ledger::new(vec![jail()]);
    assert_eq!(again.restore(ledger.snapshot(at(1)), at(1)), 5);
    for prefix in prefixes {
        let Outcome::Ban(ban) = again.record(0, &named(prefix, 2), b"second", at(1)) else {
            panic!("{prefix}: the fourth failure bans");
        };
        assert_eq!(ban.subject.to_string(), prefix);
        assert_eq!(ban.evidence, ["first", "second"]);
    }
}

//! The store on a real disk: durable replies, corruption, read-only, reopening.

use std::{fs, time::Duration};

use weir_core::Action;

use super::{clock::Now, *};

const KEEP: KeepHistory = KeepHistory {
    time: Duration::from_secs(86_400),
    bytes: 1 << 30,
};

fn open(dir: &Path) -> (Store, StoredState, Arc<Alerts>) {
    let alerts = Arc::new(Alerts::default());
    let (store, loaded) = Store::open(dir, KEEP, alerts.clone());
    (store, loaded, alerts)
}

fn ban(subject: &str) -> Change {
    let now = Now::read();
    let until = Until::At(now.wall + Duration::from_secs(3600));
    Change::Ban {
        ban: Ban {
            subject: subject.parse().unwrap(),
            scope: "22/tcp".parse().unwrap(),
            action: Action::Drop,
            producer: BanSource::Jail("sshd".into()),
            reason: "5 failures".into(),
            since: now.wall,
            until,
            evidence: vec!["a \u{1b}[31mline".into()],
        },
        expiry: now.expiry(until),
    }
}

fn entry(change: &Change) -> Entry {
    let Change::Ban { ban, expiry } = change else {
        panic!("a ban")
    };
    Entry {
        subject: ban.subject,
        policy: Arc::new(Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
            action: ban.action,
        }),
        expiry: *expiry,
    }
}

#[test]
fn what_was_remembered_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (store, loaded, _) = open(dir.path());
    assert_eq!(loaded, StoredState::default());
    let change = ban("192.0.2.7");
    store.remember_now(vec![change.clone()]).unwrap();
    // Not closed: as after SIGKILL, the next opener finds the WAL.
    let (again, loaded, alerts) = open(dir.path());
    assert_eq!(loaded.rows.len(), 1);
    let row = &loaded.rows[0];
    assert_eq!(row.expiry, entry(&change).expiry);
    assert_eq!(loaded.boots[row.boot].id, Now::read().boot);
    let detail = again.details(&[entry(&change)])[0].clone().unwrap();
    assert_eq!(detail.reason, "5 failures");
    assert_eq!(detail.evidence, ["a \u{1b}[31mline"]);
    assert_eq!(again.offences("192.0.2.7".parse().unwrap(), 10).len(), 1);
    assert!(alerts.list().is_empty(), "{:?}", alerts.list());
}

#[test]
fn a_pending_ban_is_explained_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let change = ban("2001:db8::/64");
    store.remember([change.clone()]);
    assert!(store.details(&[entry(&change)])[0].is_some());
}

#[test]
fn what_opens_beside_is_told_how_many_bans_come() {
    let dir = tempfile::tempdir().unwrap();
    let told = || {
        let alerts = Arc::new(Alerts::default());
        let ((store, loaded), room) = Store::open_beside(dir.path(), KEEP, alerts, |room| room);
        (store, loaded.rows.len(), room)
    };
    let (store, _, room) = told();
    assert_eq!(room, BanCounts::default());
    let subjects = ["192.0.2.7", "192.0.2.8", "2001:db8::/64", "2001:db8::1"];
    store.remember_now(subjects.map(ban).into()).unwrap();
    store.close();
    let (store, rows, room) = told();
    let wanted = BanCounts {
        v4_hosts: 2,
        networks: 1,
        v6_hosts: 1,
    };
    assert_eq!((rows, room), (4, wanted));
    store.close();
    fs::write(dir.path().join(FILE), "no database").unwrap();
    let (_store, rows, room) = told();
    assert_eq!((rows, room), (0, BanCounts::default()));
}

/// A large batch in an order that its trees do not have.
#[test]
fn the_last_change_of_a_subject_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let subject = |n: usize| format!("192.0.{}.{}", n / 256, n % 256);
    let unban = |n| {
        let Entry {
            subject, policy, ..
        } = entry(&ban(&subject(n)));
        Change::Unban { subject, policy }
    };
    let order: Vec<usize> = (0..2000).map(|n| n * 611 % 2000).collect();
    let mut changes: Vec<Change> = order.iter().map(|n| ban(&subject(*n))).collect();
    changes.push(Change::UnbanAll);
    changes.extend(order.iter().map(|n| ban(&subject(*n))));
    changes.extend(order.iter().filter(|n| *n % 2 == 0).map(|n| unban(*n)));
    changes.extend(
        order
            .iter()
            .filter(|n| *n % 4 == 0)
            .map(|n| ban(&subject(*n))),
    );
    store.remember_now(changes).unwrap();
    store.close();
    let (_store, loaded, _) = open(dir.path());
    let mut left: Vec<_> = loaded.rows.iter().map(|row| row.subject).collect();
    left.sort();
    let expected = (0..2000).filter(|n| n % 2 == 1 || n % 4 == 0);
    let expected: Vec<BanTarget> = expected.map(|n| subject(n).parse().unwrap()).collect();
    assert_eq!(left, expected);
}

#[test]
fn an_unban_is_forgotten_and_stays_in_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let change = ban("192.0.2.7");
    let entry = entry(&change);
    store.remember_now(vec![change]).unwrap();
    store
        .remember_now(vec![Change::Unban {
            subject: entry.subject,
            policy: entry.policy,
        }])
        .unwrap();
    store.close();
    let (again, loaded, _) = open(dir.path());
    assert_eq!(loaded.rows, []);
    assert_eq!(again.offences("192.0.2.7".parse().unwrap(), 10).len(), 1);
}

#[test]
fn a_corrupt_file_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    for content in [
        &b"this is not a database, but long enough to be read as one"[..],
        &[0xff; 8192],
    ] {
        fs::write(dir.path().join("weir.db"), content).unwrap();
        let (store, loaded, alerts) = open(dir.path());
        assert_eq!(loaded, StoredState::default());
        assert!(alerts.list()[0].message.contains("was corrupt"));
        store.remember_now(vec![ban("192.0.2.7")]).unwrap();
        store.close();
        let aside = fs::read_dir(dir.path())
            .unwrap()
            .filter_map(|e| e.unwrap().file_name().into_string().ok())
            .find(|name| name.starts_with("weir.db.corrupt-"))
            .expect("the corrupt file is kept");
        assert_eq!(fs::read(dir.path().join(&aside)).unwrap(), content);
        for name in ["weir.db", &aside] {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
    }
}

#[test]
fn a_file_that_breaks_while_in_use_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, alerts) = open(dir.path());
    store.remember_now(vec![ban("192.0.2.7")]).unwrap();
    for name in ["weir.db", "weir.db-wal"] {
        let path = dir.path().join(name);
        let len = fs::metadata(&path).map_or(8192, |m| m.len().max(8192));
        fs::write(&path, vec![0x55; len as usize]).unwrap();
    }
    // The first answer may be "not saved"; it must heal.
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.remember_now(vec![ban("192.0.2.8")]).is_err() {
        assert!(Instant::now() < deadline, "{:?}", alerts.list());
    }
}

#[test]
fn a_database_of_a_newer_weir_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.db");
    Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let (store, _, alerts) = open(dir.path());
    assert!(store.remember_now(vec![ban("192.0.2.7")]).is_err());
    assert!(alerts.list()[0].message.contains("newer weir"));
    assert!(path.exists());
}

#[test]
fn pending_changes_are_bounded() {
    let mut queue = Queue::default();
    let position = |n: u64| Change::Unban {
        subject: "192.0.2.7".parse().unwrap(),
        policy: Arc::new(Policy {
            producer: BanSource::Jail(format!("j{n}")),
            scope: PortSet::all(),
            action: Action::Drop,
        }),
    };
    push(&mut queue, (0..MAX_PENDING as u64 + 10).map(position));
    assert_eq!(queue.pending.len(), MAX_PENDING);
    assert_eq!((queue.settled, queue.forgotten), (10, 10));

    // What is being written cannot be forgotten, and counts.
    queue.in_flight = Arc::new(std::mem::take(&mut queue.pending).into());
    push(&mut queue, (0..10).map(position));
    assert!(queue.pending.is_empty());
    assert_eq!((queue.settled, queue.forgotten), (20, 20));
}

#[test]
fn a_ban_with_the_other_action_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let dropped = ban("192.0.2.7");
    let Change::Ban { ban, expiry } = dropped.clone() else {
        unreachable!()
    };
    let rejected = Change::Ban {
        ban: Ban {
            action: Action::Reject,
            ..ban
        },
        expiry,
    };
    for order in [[&dropped, &rejected], [&rejected, &dropped]] {
        // In one batch and in two.
        store.remember_now(order.map(Clone::clone).into()).unwrap();
        let last = entry(order[1]);
        assert!(store.details(&[entry(order[0])])[0].is_none());
        assert!(store.details(std::slice::from_ref(&last))[0].is_some());
        store.remember_now(vec![order[0].clone()]).unwrap();
        store.remember_now(vec![order[1].clone()]).unwrap();
        let connection = database::open_reader(&dir.path().join(FILE)).unwrap();
        let rows = database::load(&connection).unwrap().rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].policy, last.policy);
    }
}

#[test]
fn bans_of_version_1_drop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let (store, ..) = open(dir.path());
    store.remember_now(vec![ban("192.0.2.7")]).unwrap();
    store.close();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, producer TEXT NOT NULL, scope TEXT NOT NULL,
             UNIQUE (producer, scope));
         INSERT INTO p SELECT id, producer, scope FROM policies;
         DROP TABLE policies; ALTER TABLE p RENAME TO policies; PRAGMA user_version = 1;",
    )
    .unwrap();
    // As found, where nobody can write; then for writing.
    let found = database::load(&database::open_reader(&path).unwrap()).unwrap();
    assert_eq!(found.rows[0].policy.action, Action::Drop);
    drop(old);
    let (store, loaded, alerts) = open(dir.path());
    assert_eq!(loaded.rows, found.rows);
    assert_eq!(alerts.list(), []);
    let Change::Ban { mut ban, expiry } = ban("192.0.2.8") else {
        unreachable!()
    };
    ban.action = Action::Reject;
    store
        .remember_now(vec![Change::Ban { ban, expiry }])
        .unwrap();
    store.close();
    let (_store, loaded, _) = open(dir.path());
    let mut actions: Vec<_> = loaded.rows.iter().map(|r| r.policy.action).collect();
    actions.sort_unstable();
    assert_eq!(actions, [Action::Drop, Action::Reject]);
}

fn tracked(jail: &str, subject: &str, failures: i64) -> Tracked {
    let failure = |n| policy::Failure {
        time: Timestamp::from_second(n).unwrap(),
        attempts: 1,
        line: format!("line {n}"),
    };
    Tracked {
        jail: jail.into(),
        subject: subject.parse().unwrap(),
        failures: (0..failures).map(failure).collect(),
    }
}

fn sorted(store: &Store) -> Vec<Tracked> {
    let mut all = store.tracked();
    all.sort_by_key(|tracked| (tracked.jail.clone(), tracked.subject));
    all
}

#[test]
fn a_place_and_its_counts_are_saved_together() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let save = |at: &str, changes: Vec<Tracked>| {
        store.progress("file:a", false, |_| (Some(at.into()), changes));
        store.remember_now(vec![]).unwrap();
    };
    let who = "192.0.2.7";
    let six = "2001:db8::/64";
    save("1", vec![tracked("sshd", who, 2), tracked("web", six, 1)]);
    // What has not changed stays; what is gone goes.
    save("2", vec![tracked("sshd", who, 3), tracked("sshd", six, 1)]);
    save("3", vec![tracked("web", six, 0)]);
    assert_eq!(store.positions()["file:a"], "3");
    assert_eq!(
        sorted(&store),
        [tracked("sshd", who, 3), tracked("sshd", six, 1)]
    );
    store
        .remember_now(vec![
            Change::KeepJails(vec!["web".into()]),
            Change::ForgetPosition("file:a".into()),
        ])
        .unwrap();
    assert_eq!(sorted(&store), []);
    assert!(store.positions().is_empty());
}

#[test]
fn one_progress_of_a_source_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    store.close();
    let asked = std::cell::Cell::new(0);
    let progress = |last| {
        store.progress("file:a", last, |_| {
            asked.set(asked.get() + 1);
            (None, vec![tracked("sshd", "192.0.2.7", 1)])
        });
    };
    for _ in 0..100 {
        progress(false);
    }
    assert_eq!((asked.get(), store.pending()), (1, 1));
    progress(true);
    assert_eq!((asked.get(), store.pending()), (2, 2));

    // And it is not forgotten for bans.
    let mut queue = Queue::default();
    let one = Progress {
        source: "file:a".into(),
        position: None,
        tracked: vec![],
    };
    push(&mut queue, [Change::Progress(one)]);
    push(&mut queue, (0..MAX_PENDING + 10).map(|_| Change::UnbanAll));
    assert!(matches!(queue.pending[0], Change::Progress(_)));
    assert_eq!(
        (queue.forgotten, queue.pending.len()),
        (10, MAX_PENDING + 1)
    );
}

#[test]
fn counts_of_version_2_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    store.remember_now(vec![ban("192.0.2.7")]).unwrap();
    store.close();
    let old = tracked("sshd", "192.0.2.8", 2);
    let connection = Connection::open(dir.path().join(FILE)).unwrap();
    connection
        .execute_batch(
            "DROP TABLE tracked;
             CREATE TABLE tracked (id INTEGER PRIMARY KEY, failures TEXT NOT NULL);
             PRAGMA user_version = 2;",
        )
        .unwrap();
    for text in [serde_json::to_string(&old).unwrap(), "nonsense".into()] {
        connection
            .execute("INSERT INTO tracked (failures) VALUES (?1)", [text])
            .unwrap();
    }
    drop(connection);
    let (store, loaded, alerts) = open(dir.path());
    assert_eq!((loaded.rows.len(), alerts.list()), (1, vec![]));
    assert_eq!(store.tracked(), [old]);
}

/// Issue 13, 18: the number of a policy is of its ports, too.
#[test]
fn offences_are_counted_over_changes_of_ports_and_action() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let change = |ports: &str, action, jail: &str| {
        let Change::Ban { ban, expiry } = ban("192.0.2.7") else {
            unreachable!()
        };
        let ban = Ban {
            scope: ports.parse().unwrap(),
            producer: BanSource::Jail(jail.into()),
            action,
            ..ban
        };
        Change::Ban { ban, expiry }
    };
    let changes = [
        change("22/tcp", Action::Drop, "sshd"),
        change("22/tcp", Action::Drop, "sshd"),
        change("2222/tcp", Action::Drop, "sshd"),
        change("2222/tcp", Action::Reject, "sshd"),
        change("22/tcp", Action::Drop, "other"),
    ];
    store.remember_now(changes.into()).unwrap();
    let mut found: Vec<_> = store
        .jail_history()
        .into_iter()
        .map(|offence| (offence.jail, offence.offences))
        .collect();
    found.sort();
    assert_eq!(found, [("other".into(), 1), ("sshd".into(), 4)]);
    let sshd = BanSource::Jail("sshd".into());
    assert_eq!(store.history_of(&sshd)[0].offences, 4);
}

#[test]
fn the_history_is_bounded_by_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let subject = |n: usize| format!("198.18.{}.{}", n / 250, n % 250);
    let changes = (0..20_000).map(|n| ban(&subject(n))).collect();
    store.remember_now(changes).unwrap();
    store.close();
    let mut connection = database::open(&dir.path().join(FILE)).unwrap();
    let count = |connection: &Connection| -> i64 {
        let count = "SELECT count(*) FROM history";
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    };
    let mut purge = |bytes| {
        let keep = KeepHistory { bytes, ..KEEP };
        history::purge(&mut connection, &Now::read(), keep).unwrap()
    };
    assert_eq!(purge(10_000_000), history::Purged::default());
    let purged = purge(500_000);
    assert!(!purged.more && purged.for_size > 8_000, "{purged:?}");
    assert_eq!(purge(500_000), history::Purged::default());
    let left = count(&connection);
    assert!((5_000..12_000).contains(&left), "{left} are left");
    // The oldest went.
    let oldest: Vec<u8> = connection
        .query_row("SELECT subject FROM history ORDER BY id LIMIT 1", [], |r| {
            r.get(0)
        })
        .unwrap();
    assert!(oldest.as_slice() > &[32, 198, 18, 10][..], "{oldest:?}");

    // A long flood: the store says so.
    let (store, _, alerts) = open(dir.path());
    store.set_keep_history(KeepHistory {
        bytes: 100_000,
        ..KEEP
    });
    let mut trimmed = None;
    let keep = store.shared.queue().keep_history;
    purge_all(&store, keep, &mut trimmed);
    let said = alerts.list();
    assert_eq!(said[0].about, "history", "{said:?}");
    assert!(said[0].message.contains("raise history_mb"), "{said:?}");
    trimmed = Some(Instant::now().checked_sub(writer::TRIMMED).unwrap());
    purge_all(&store, keep, &mut trimmed);
    assert_eq!(alerts.list(), []);
}

fn purge_all(store: &Store, keep: KeepHistory, trimmed: &mut Option<Instant>) {
    let mut connection = database::open(&store.shared.path).unwrap();
    while writer::purge(&store.shared, &mut connection, keep, trimmed).unwrap() {}
}

/// Issue 13, R9: writes into a file that nobody will open again are no writes.
#[test]
fn a_file_that_goes_away_while_in_use_is_told_and_made_again() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 5] = [
        ("deleted", |db| fs::remove_file(db).unwrap()),
        ("replaced by another file", |db| {
            let other = db.with_file_name("other.db");
            fs::copy(db, &other).unwrap();
            fs::rename(&other, db).unwrap();
        }),
        ("cut short", |db| fs::write(db, "").unwrap()),
        ("cut short", |db| fs::write(db, [7; 300]).unwrap()),
        ("overwritten", |db| {
            let dir = tempfile::tempdir().unwrap();
            let (store, ..) = open(dir.path());
            store.remember_now(vec![ban("192.0.2.99")]).unwrap();
            store.close();
            let other = fs::read(dir.path().join(FILE)).unwrap();
            let file = fs::File::options().write(true).open(db).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &other, 0).unwrap();
        }),
    ];
    for (was, harm) in harms {
        let dir = tempfile::tempdir().unwrap();
        let (store, _, alerts) = open(dir.path());
        store.remember_now(vec![ban("192.0.2.7")]).unwrap();
        let all = |again: bool| {
            let position = again.then(|| "17".to_owned());
            (position, vec![])
        };
        store.progress("file:a", false, all);
        harm(&dir.path().join(FILE));
        let deadline = Instant::now() + Duration::from_secs(20);
        let told = || alerts.list().iter().any(|a| a.message.contains(was));
        while !told() {
            assert!(Instant::now() < deadline, "{was}: {:?}", alerts.list());
            thread::sleep(Duration::from_millis(50));
        }
        // Whoever knows the bans in force, and what was read, writes it again.
        while !store.take_recreated() {
            assert!(Instant::now() < deadline, "{was}");
            thread::sleep(Duration::from_millis(50));
        }
        store.progress("file:a", false, all);
        store.remember_now(vec![ban("192.0.2.8")]).unwrap();
        store.close();
        let (store, loaded, _) = open(dir.path());
        let left: Vec<_> = loaded.rows.iter().map(|r| r.subject.to_string()).collect();
        assert_eq!(left, ["192.0.2.8"], "{was}");
        assert_eq!(store.positions()["file:a"], "17", "{was}");
    }
}

/// Issue 13, R9: SQLite maps a file beside the database, if one lets it.
#[test]
fn nobody_can_cut_a_mapped_file_short() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    store.remember_now(vec![ban("192.0.2.7")]).unwrap();
    assert_eq!(store.offences("192.0.2.7".parse().unwrap(), 10).len(), 1);
    let names = fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["weir.db", "weir.db-wal"], "and no weir.db-shm");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(dir.path().to_str().unwrap()), "{maps}");
}

/// Its change waits for the disk when the database is made anew, and whoever
/// knows the bans in force has it written as well.
#[test]
fn a_ban_that_is_recovered_is_no_second_offence() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ..) = open(dir.path());
    let (pending, lost) = (ban("192.0.2.7"), ban("2001:db8::/64"));
    let entries = [entry(&pending), entry(&lost)];
    store.remember([pending]);
    store.recover(entries.to_vec());
    store.recover(entries.to_vec());
    let why = |addr: &str| -> Vec<String> {
        let offences = store.offences(addr.parse().unwrap(), 10).into_iter();
        offences.map(|offence| offence.reason).collect()
    };
    assert_eq!(why("192.0.2.7"), ["5 failures"]);
    let [recovered] = &why("2001:db8::1")[..] else {
        panic!("{:?}", why("2001:db8::1"));
    };
    assert!(recovered.contains("recovered"), "{recovered}");
    let detail = store.details(&entries)[0].clone().unwrap();
    assert_eq!(detail.reason, "5 failures");
    store.close();
    let (_store, loaded, _) = open(dir.path());
    assert_eq!(loaded.rows.len(), 2);
}

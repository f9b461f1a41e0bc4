//! The store on a real disk: durable replies, corruption, read-only, reopening.

use std::{fs, time::Duration};

use super::{clock::Now, *};

const KEEP: Duration = Duration::from_secs(86_400);

fn open(dir: &Path) -> (Store, Loaded, Arc<Alerts>) {
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
            producer: Producer::Jail("sshd".into()),
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
        policy: Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
        },
        expiry: *expiry,
    }
}

#[test]
fn what_was_remembered_is_there_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (store, loaded, _) = open(dir.path());
    assert_eq!(loaded, Loaded::default());
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
        assert_eq!(loaded, Loaded::default());
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
        policy: Policy {
            producer: Producer::Jail(format!("j{n}")),
            scope: Scope::all(),
        },
    };
    push(&mut queue, (0..MAX_PENDING as u64 + 10).map(position));
    assert_eq!(queue.pending.len(), MAX_PENDING);
    assert_eq!(queue.settled, 10);
}

#[test]
#[ignore = "a measurement: run with --release --ignored --nocapture"]
fn a_million_bans_are_read_quickly() {
    let dir = tempfile::tempdir().unwrap();
    let now = Now::read();
    let until = Until::At(now.wall + Duration::from_secs(3600));
    let rows: Vec<_> = (0..1_000_000_u32)
        .map(|i| Change::Restored {
            entry: Entry {
                subject: Subject::new(Prefix::host(IpAddr::V4((0x0a00_0000 + i).into()))).unwrap(),
                policy: Policy {
                    producer: Producer::Jail("sshd".into()),
                    scope: Scope::all(),
                },
                expiry: now.expiry(until),
            },
            until,
        })
        .collect();
    let path = dir.path().join("weir.db");
    let mut connection = database::open(&path).unwrap();
    database::write(&mut connection, &rows, &now).unwrap();
    drop(connection);
    let connection = database::open(&path).unwrap();
    let start = Instant::now();
    let loaded = database::load(&connection).unwrap();
    let read = start.elapsed();
    let plan = restore::plan(loaded, vec![], &now);
    println!(
        "1M bans: read {read:?}, with the plan {:?}",
        start.elapsed()
    );
    assert_eq!(plan.insert.len(), 1_000_000);
}

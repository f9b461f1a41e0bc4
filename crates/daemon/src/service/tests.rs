//! What is left when bans come, go and are written down at the same time. The
//! backend stops where it is told to, so that the other one comes in between.

use std::{
    path::Path,
    sync::{
        atomic::Ordering,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use weir_core::{Action, Ban, BanSource, PortSet, Until};
use weir_enforce::{BootNanos, DryRun, Entry, Error, Expiry, Policy, Step as At};

use super::*;
use crate::{
    host::Host,
    store::{KeepHistory, restore::Row},
};

/// Tells that the backend has stopped, and waits for the word to go on.
struct Stop {
    at: At,
    stopped: Sender<()>,
    go_on: Receiver<()>,
}

/// What the backend does at its steps.
#[derive(Default)]
struct Steps {
    stop: Mutex<Option<Stop>>,
    refuses: AtomicBool,
}

impl Steps {
    /// Has the thread stop at this step the next time that it comes there.
    fn stop(&self, at: At) -> (Receiver<()>, Sender<()>) {
        let (stopped, has_stopped) = mpsc::channel();
        let (say_go_on, go_on) = mpsc::channel();
        *self.stop.lock().unwrap() = Some(Stop { at, stopped, go_on });
        (has_stopped, say_go_on)
    }

    fn at(&self, at: At) -> Result<(), Error> {
        if at == At::Insert && self.refuses.load(Ordering::Relaxed) {
            return Err(Error::Full(1));
        }
        let stop = self.stop.lock().unwrap().take_if(|stop| stop.at == at);
        if let Some(stop) = stop {
            stop.stopped.send(()).unwrap();
            // A test that failed has gone.
            let _ = stop.go_on.recv();
        }
        Ok(())
    }
}

const KEEP: KeepHistory = KeepHistory {
    time: Duration::from_secs(86_400),
    bytes: 1 << 30,
};
/// The subjects of the test, one of each family.
const WHO: [&str; 2] = ["192.0.2.7", "2001:db8:7::/64"];

struct Daemon {
    service: Service,
    backend: Arc<DryRun>,
    steps: Arc<Steps>,
    dir: tempfile::TempDir,
}

impl Daemon {
    fn new() -> Self {
        Self::with_room_for(1000)
    }

    fn with_room_for(max_bans: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "backend = \"dry-run\"\ninterfaces = []\nstate_dir = \"{}\"\n",
            dir.path().display()
        );
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let alerts = Arc::new(Alerts::default());
        let (store, _) = Store::open(dir.path(), KEEP, alerts.clone());
        let steps = Arc::new(Steps::default());
        let at = steps.clone();
        let backend = Arc::new(DryRun::new(max_bans, None).at_each_step(move |step| at.at(step)));
        let interfaces = ProtectedInterfaces::default();
        let service = Service::new(
            config,
            backend.clone(),
            store,
            interfaces,
            alerts,
            String::new(),
        );
        Self {
            service,
            backend,
            steps,
            dir,
        }
    }

    fn ban_by_jail(&self, subject: &str) {
        self.service
            .bans
            .enforce(vec![by_jail(subject, Until::Never)]);
    }

    fn ban_by_hand(&self, subject: &str, length: Option<Duration>) {
        let done =
            self.service
                .manual_bans
                .ban(subject, length, PortSet::all(), Action::Drop, None);
        done.unwrap();
    }

    fn in_force(&self) -> Vec<Entry> {
        let mut entries = self.backend.entries().unwrap();
        entries.sort_by_key(|entry| entry.subject);
        entries
    }

    fn offences(&self, subject: &str) -> usize {
        let subject: BanTarget = subject.parse().unwrap();
        let store = &self.service.store;
        // A disk that others keep busy gets its time.
        assert!((0..12).any(|_| store.flush().is_ok()));
        store.offences(subject.prefix().addr(), 10).len()
    }

    /// What a daemon after a reboot would find, in the database.
    fn remembered(&self) -> Vec<Row> {
        self.service.store.close();
        let (_, mut loaded) = Store::open(self.dir.path(), KEEP, Arc::default());
        loaded.rows.sort_by_key(|row| row.subject);
        loaded.rows
    }
}

fn by_jail(subject: &str, until: Until) -> Ban {
    Ban {
        subject: subject.parse().unwrap(),
        scope: PortSet::all(),
        producer: BanSource::Jail("sshd".into()),
        action: Action::Drop,
        reason: "5 failures".into(),
        since: Timestamp::now(),
        until,
        evidence: Vec::new(),
    }
}

/// While the one has stopped half-way, the other one begins, and ends if it can.
fn between<T: Send>(
    daemon: &Daemon,
    at: At,
    one: impl FnOnce() + Send,
    other: impl FnOnce() -> T + Send,
) -> T {
    // One that waits for the first one ends behind it.
    within(daemon, at, Duration::from_millis(300), one, other)
}

/// The same, and the other one has so long to end before the first goes on.
fn within<T: Send>(
    daemon: &Daemon,
    at: At,
    patience: Duration,
    one: impl FnOnce() + Send,
    other: impl FnOnce() -> T + Send,
) -> T {
    let (has_stopped, go_on) = daemon.steps.stop(at);
    thread::scope(|scope| {
        scope.spawn(one);
        has_stopped.recv().unwrap();
        let (tell, ended) = mpsc::channel();
        let other = scope.spawn(move || {
            let outcome = other();
            let _ = tell.send(());
            outcome
        });
        let _ = ended.recv_timeout(patience);
        go_on.send(()).unwrap();
        other.join().unwrap()
    })
}

#[test]
fn a_refused_ban_that_is_tried_again_is_there_for_unban() {
    for who in WHO {
        for all in [false, true] {
            for at in [At::Insert, At::Inserted] {
                let daemon = Daemon::new();
                let service = &daemon.service;
                daemon.steps.refuses.store(true, Ordering::Relaxed);
                daemon.ban_by_jail(who);
                daemon.steps.refuses.store(false, Ordering::Relaxed);
                assert_eq!(service.alerts.list().len(), 1);
                let lifted = between(
                    &daemon,
                    at,
                    || service.bans.follow_refused(),
                    || match all {
                        true => service.manual_bans.unban_all(None),
                        false => service.manual_bans.unban(who, None, None),
                    },
                );
                let lifted = lifted.unwrap_or_else(|e| panic!("{at:?} {all} {e}"));
                assert_eq!(lifted.what.lifted, 1, "{at:?} {all}");
                assert_eq!(daemon.in_force(), []);
                service.bans.follow_refused();
                assert_eq!(daemon.in_force(), [], "it came back");
                assert_eq!(service.alerts.list().len(), 0);
                assert_eq!(daemon.remembered(), []);
            }
        }
    }
}

#[test]
fn nothing_is_left_of_a_ban_that_is_lifted_half_way() {
    for who in WHO {
        for all in [false, true] {
            for manual in [false, true] {
                for at in [At::Insert, At::Inserted] {
                    let daemon = Daemon::new();
                    let service = &daemon.service;
                    // The one that is renewed meanwhile.
                    let jail = BanSource::Jail("sshd".into());
                    match manual {
                        true => daemon.ban_by_hand(who, None),
                        false => daemon.ban_by_jail(who),
                    }
                    let producer = if manual { BanSource::Manual } else { jail };
                    let lifted = between(
                        &daemon,
                        at,
                        || match manual {
                            true => daemon.ban_by_hand(who, None),
                            false => daemon.ban_by_jail(who),
                        },
                        || match all {
                            true => service.manual_bans.unban_all(None),
                            false => service.manual_bans.unban(who, Some(&producer), None),
                        },
                    );
                    let case = format!("{who} {at:?} all {all} manual {manual}");
                    assert_eq!(lifted.unwrap().what.lifted, 1, "{case}");
                    assert_eq!(daemon.in_force(), [], "{case}");
                    assert_eq!(daemon.remembered(), [], "{case}");
                }
            }
        }
    }
}

/// What is in force and what is remembered are the same, whatever came between.
#[test]
fn a_database_made_anew_has_the_bans_as_they_are() {
    for at in [At::Entries, At::Insert, At::Inserted] {
        let daemon = Daemon::new();
        let service = &daemon.service;
        // In force, and the database knows nothing of them.
        let (kept, lifted, longer, new) = ("192.0.2.1", "192.0.2.2", "2001:db8:3::/64", WHO[0]);
        let entries = [kept, lifted, longer].map(|subject| Entry {
            subject: subject.parse().unwrap(),
            policy: Arc::new(Policy {
                producer: BanSource::Manual,
                scope: PortSet::all(),
                action: Action::Drop,
            }),
            expiry: Expiry::At(BootNanos(BootNanos::now().0 + 3_600_000_000_000)),
        });
        daemon.backend.insert(&entries).unwrap();
        let again = || service.bans.remember_bans_again().unwrap();
        let change = || {
            service.manual_bans.unban(lifted, None, None).unwrap();
            daemon.ban_by_hand(longer, None);
            daemon.ban_by_hand(new, None);
        };
        match at {
            // Nothing keeps the changes waiting. One that comes behind the recovery is
            // an offence of its own.
            At::Entries => within(&daemon, at, Duration::from_secs(60), again, change),
            _ => between(&daemon, at, change, again),
        }
        for subject in [kept, longer, new] {
            assert_eq!(daemon.offences(subject), 1, "{at:?} {subject}");
        }
        let in_force = daemon.in_force();
        assert_eq!(in_force.len(), 3);
        let rows = daemon.remembered().into_iter();
        let remembered: Vec<_> = rows
            .map(|row| (row.subject, row.policy, row.expiry))
            .collect();
        let in_force: Vec<_> = in_force
            .into_iter()
            .map(|entry| (entry.subject, entry.policy, entry.expiry))
            .collect();
        assert_eq!(remembered, in_force, "{at:?}");
    }
}

/// The ban that is written down again is one offence, and the ban that renews it
/// another, as in a database that was not lost.
#[test]
fn a_ban_that_renews_a_recovered_one_is_an_offence_of_its_own() {
    let offences = |is_lost: bool| {
        let daemon = Daemon::new();
        match is_lost {
            false => daemon.ban_by_hand(WHO[0], None),
            true => {
                let ban = by_jail(WHO[0], Until::Never);
                let policy = Policy {
                    producer: BanSource::Manual,
                    scope: ban.scope,
                    action: ban.action,
                };
                let entry = Entry {
                    subject: ban.subject,
                    policy: Arc::new(policy),
                    expiry: Expiry::Never,
                };
                daemon.backend.insert(&[entry]).unwrap();
            }
        }
        for _ in 0..2 {
            daemon.service.bans.remember_bans_again().unwrap();
        }
        assert_eq!(daemon.offences(WHO[0]), 1, "lost: {is_lost}");
        daemon.ban_by_hand(WHO[0], None);
        daemon.offences(WHO[0])
    };
    assert_eq!((offences(false), offences(true)), (2, 2));
}

/// A ban that the backend refuses leaves the one before it as it was.
#[test]
fn a_manual_ban_that_is_refused_is_not_remembered() {
    let daemon = Daemon::new();
    daemon.ban_by_hand(WHO[0], None);
    daemon.steps.refuses.store(true, Ordering::Relaxed);
    for who in WHO {
        let refused = daemon.service.manual_bans.ban(
            who,
            None,
            PortSet::all(),
            Action::Drop,
            Some("again".into()),
        );
        assert!(matches!(refused, Err(Refusal::Backend(Error::Full(1)))));
    }
    assert_eq!(daemon.offences(WHO[0]), 1);
    assert_eq!(daemon.offences(WHO[1]), 0);
    assert_eq!(daemon.remembered().len(), 1);
}

/// A batch larger than the table evicts the first of its own bans, and may renew
/// one that it has evicted before.
#[test]
fn what_a_batch_evicts_of_itself_is_not_remembered() {
    let daemon = Daemon::with_room_for(2);
    let ban = |subject: &str, hours: i64| {
        let end = Timestamp::now() + jiff::SignedDuration::from_hours(hours);
        by_jail(subject, Until::At(end))
    };
    daemon
        .service
        .bans
        .enforce(vec![ban("192.0.2.1", 1), ban("192.0.2.2", 2)]);
    // The second and the fourth go, the first comes back.
    let batch = [
        ("2001:db8:3::/64", 9),
        ("192.0.2.4", 3),
        ("192.0.2.1", 8),
        ("2001:db8:3::/64", 9),
    ];
    let batch = batch.map(|(subject, hours)| ban(subject, hours)).to_vec();
    daemon.service.bans.enforce(batch);
    let names = |subjects: Vec<BanTarget>| -> Vec<String> {
        subjects.iter().map(BanTarget::to_string).collect()
    };
    let in_force = daemon.in_force().into_iter().map(|entry| entry.subject);
    let in_force = names(in_force.collect());
    assert_eq!(in_force, ["192.0.2.1", "2001:db8:3::/64"]);
    let over = BootNanos(BootNanos::now().0 + 86_400_000_000_000);
    let ends = daemon.service.bans.take_ended(over);
    let mut ends = names(ends.into_iter().map(|ended| ended.subject).collect());
    ends.sort();
    assert_eq!(ends, in_force, "their ends are to be told");
    let remembered = daemon.remembered().into_iter().map(|row| row.subject);
    assert_eq!(names(remembered.collect()), in_force);
}

/// Bans by hand may take more than the places kept for them, and then jails and
/// lists find none before they have all that they may have.
#[test]
fn a_table_of_prefixes_full_of_bans_by_hand_is_told() {
    let daemon = Daemon::with_room_for(40);
    let usage = daemon.backend.usage();
    let by_hand = 3000;
    assert!(usage.max_prefix_bans - by_hand < usage.max_shared_prefix_bans);
    let entry = |n: usize, producer: &BanSource| Entry {
        subject: format!("10.{}.{}.0/24", n / 256, n % 256).parse().unwrap(),
        policy: Arc::new(Policy {
            producer: producer.clone(),
            scope: PortSet::all(),
            action: Action::Drop,
        }),
        expiry: Expiry::Never,
    };
    let sshd = BanSource::Jail("sshd".into());
    let prefixes: Vec<_> = (0..usage.max_prefix_bans)
        .map(|n| {
            entry(
                n,
                if n < by_hand {
                    &BanSource::Manual
                } else {
                    &sshd
                },
            )
        })
        .collect();
    let (last, others) = prefixes.split_last().unwrap();
    daemon.backend.insert(others).unwrap();
    daemon.service.bans.follow_usage();
    assert_eq!(daemon.service.alerts.list(), []);
    daemon.backend.insert(std::slice::from_ref(last)).unwrap();
    daemon.service.bans.follow_usage();
    let alerts = daemon.service.alerts.list();
    let [alert] = &alerts[..] else {
        panic!("{alerts:?}");
    };
    assert_eq!(alert.about, "table-full:prefixes");
    let all = format!("there are {} bans of prefixes", usage.max_prefix_bans);
    assert!(alert.message.starts_with(&all), "{alert:?}");
    // It stands until a twentieth is free.
    daemon
        .service
        .manual_bans
        .unban(&last.subject.to_string(), None, None)
        .unwrap();
    daemon.service.bans.follow_usage();
    assert_eq!(daemon.service.alerts.list().len(), 1);
}

/// Each table has its own alert, which stands for as long as it is full, also for
/// a daemon that finds it so.
#[test]
fn a_full_table_is_told_until_it_has_room() {
    let about = |daemon: &Daemon| -> Vec<String> {
        let alerts = daemon.service.alerts.list().into_iter();
        alerts.map(|alert| alert.about).collect()
    };
    let daemon = Daemon::with_room_for(40);
    let entry = |subject: String| Entry {
        subject: subject.parse().unwrap(),
        policy: Arc::new(Policy {
            producer: BanSource::Jail("sshd".into()),
            scope: PortSet::all(),
            action: Action::Drop,
        }),
        expiry: Expiry::Never,
    };
    let hosts: Vec<_> = (1..=40).map(|n| entry(format!("192.0.2.{n}"))).collect();
    daemon.backend.insert(&hosts).unwrap();
    daemon.service.bans.follow_usage();
    assert_eq!(about(&daemon), ["table-full:addresses"]);
    let most = daemon.backend.usage().max_prefix_bans;
    let prefix = |n: usize| entry(format!("10.{}.{}.0/24", n / 256, n % 256));
    let prefixes: Vec<_> = (0..most).map(prefix).collect();
    daemon.backend.insert(&prefixes).unwrap();
    // One prefix more, while the other table is full as well.
    daemon
        .service
        .bans
        .enforce(vec![by_jail("2001:db8::/32", Until::Never)]);
    let both = ["table-full:addresses", "table-full:prefixes"];
    assert_eq!(about(&daemon), both);
    let alerts = daemon.service.alerts.list();
    assert!(alerts[0].message.contains("at its cap of 40"), "{alerts:?}");
    assert!(alerts[1].message.contains("bans of prefixes"), "{alerts:?}");
    for (n, left) in [(1, &both[..]), (2, &both), (3, &both[1..])] {
        daemon
            .service
            .manual_bans
            .unban(&format!("192.0.2.{n}"), None, None)
            .unwrap();
        daemon.service.bans.follow_usage();
        assert_eq!(about(&daemon), left, "{n} lifted");
    }
}

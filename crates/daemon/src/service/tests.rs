//! What is left when bans come, go and are written down at the same time. The
//! backend stops where it is told to, so that the other one comes in between.

use std::{
    sync::{
        atomic::Ordering,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use weir_core::{Action, Ban, Producer, Scope, Until};
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
    /// It stops there next time.
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
/// One address of each family.
const WHO: [&str; 2] = ["192.0.2.7", "2001:db8:7::/64"];

struct Daemon {
    service: Service,
    backend: Arc<DryRun>,
    steps: Arc<Steps>,
    dir: tempfile::TempDir,
}

impl Daemon {
    fn new() -> Self {
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
        let backend = Arc::new(DryRun::new(1000, None).at_each_step(move |step| at.at(step)));
        let uplinks = Uplinks::default();
        let service = Service::new(
            config,
            backend.clone(),
            store,
            uplinks,
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
        self.service.enforce(vec![Ban {
            subject: subject.parse().unwrap(),
            scope: Scope::all(),
            producer: Producer::Jail("sshd".into()),
            action: Action::Drop,
            reason: "5 failures".into(),
            since: Timestamp::now(),
            until: Until::Never,
            evidence: Vec::new(),
        }]);
    }

    fn ban_by_hand(&self, subject: &str, length: Option<Duration>) {
        let done = self
            .service
            .ban(subject, length, Scope::all(), Action::Drop, None);
        done.unwrap();
    }

    fn in_force(&self) -> Vec<Entry> {
        let mut entries = self.backend.entries().unwrap();
        entries.sort_by_key(|entry| entry.subject);
        entries
    }

    fn offences(&self, subject: &str) -> usize {
        let subject: Subject = subject.parse().unwrap();
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

/// While the one has stopped half-way, the other one begins, and ends if it can.
fn between<T: Send>(
    daemon: &Daemon,
    at: At,
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
        // One that waits for the first one ends behind it.
        let _ = ended.recv_timeout(Duration::from_millis(300));
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
                    || service.follow_refused(),
                    || match all {
                        true => service.unban_all(None),
                        false => service.unban(who, None, None),
                    },
                );
                let lifted = lifted.unwrap_or_else(|e| panic!("{at:?} {all} {e}"));
                assert_eq!(lifted.what.lifted, 1, "{at:?} {all}");
                assert_eq!(daemon.in_force(), []);
                service.follow_refused();
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
                    let jail = Producer::Jail("sshd".into());
                    match manual {
                        true => daemon.ban_by_hand(who, None),
                        false => daemon.ban_by_jail(who),
                    }
                    let producer = if manual { Producer::Manual } else { jail };
                    let lifted = between(
                        &daemon,
                        at,
                        || match manual {
                            true => daemon.ban_by_hand(who, None),
                            false => daemon.ban_by_jail(who),
                        },
                        || match all {
                            true => service.unban_all(None),
                            false => service.unban(who, Some(&producer), None),
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
                producer: Producer::Manual,
                scope: Scope::all(),
                action: Action::Drop,
            }),
            expiry: Expiry::At(BootNanos(BootNanos::now().0 + 3_600_000_000_000)),
        });
        daemon.backend.insert(&entries).unwrap();
        let again = || service.remember_bans_again().unwrap();
        let change = || {
            service.unban(lifted, None, None).unwrap();
            daemon.ban_by_hand(longer, None);
            daemon.ban_by_hand(new, None);
        };
        match at {
            At::Entries => between(&daemon, at, again, change),
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

/// A ban that the backend refuses leaves the one before it as it was.
#[test]
fn a_manual_ban_that_is_refused_is_not_remembered() {
    let daemon = Daemon::new();
    daemon.ban_by_hand(WHO[0], None);
    daemon.steps.refuses.store(true, Ordering::Relaxed);
    for who in WHO {
        let refused =
            daemon
                .service
                .ban(who, None, Scope::all(), Action::Drop, Some("again".into()));
        assert!(matches!(refused, Err(Refusal::Backend(Error::Full(1)))));
    }
    assert_eq!(daemon.offences(WHO[0]), 1);
    assert_eq!(daemon.offences(WHO[1]), 0);
    assert_eq!(daemon.remembered().len(), 1);
}

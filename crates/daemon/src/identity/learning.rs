//! Learning: what programs do is recorded while it lasts, and kept in the database, so
//! that an administrator reviews it and makes rules of it. Nothing is enforced by it.
//!
//! What is recorded comes from the kernel's events (`told.rs`): one for each connection or
//! flow that is decided, so that nothing is looked at twice and no packet waits.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use weir_identity::learn::{Learned, LearnedChange, LearnedProgram, Observation, ProgramKey};

use crate::store::{Change, LearnedRow, SaveError, Store};

/// What was learned is written this often: a crash loses no more.
const SAVE: Duration = Duration::from_secs(10);
/// The row of the session itself; those of programs begin with a brace.
const SESSION: &str = "session";

/// Whether, and since when, is learned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Session {
    is_on: bool,
    /// In microseconds since 1970, as all times here.
    since: Option<i64>,
    until: Option<i64>,
    /// What was known then has been reviewed.
    reviewed: Option<i64>,
}

/// Learning as it is shown.
#[derive(Debug, Clone, Serialize)]
pub struct LearningStatus {
    /// Whether it is recorded what programs do.
    pub is_on: bool,
    /// When that was begun last.
    pub since: Option<Timestamp>,
    /// When learning ends by itself.
    pub until: Option<Timestamp>,
    /// What was known at that time has been reviewed.
    pub reviewed: Option<Timestamp>,
    /// Programs of which something is known.
    pub programs: usize,
    /// Programs that were forgotten because there was no room, since the daemon runs.
    pub forgotten: u64,
    /// Connections and flows of programs that were gone before anybody saw who they were,
    /// since the daemon runs.
    pub unidentified: u64,
}

/// What programs were seen doing.
pub(super) struct Learning {
    store: Arc<Store>,
    inner: Mutex<Inner>,
}

struct Inner {
    learned: Learned,
    session: Session,
    is_session_changed: bool,
    unidentified: u64,
    saved: Instant,
    made_anew: u64,
}

fn now() -> i64 {
    Timestamp::now().as_microsecond()
}

pub(super) fn moment(at: i64) -> Timestamp {
    Timestamp::from_microsecond(at).unwrap_or_default()
}

fn key_of(program: &ProgramKey) -> Vec<u8> {
    serde_json::to_vec(program).unwrap_or_default()
}

/// What a row says of a program.
fn program_of(key: &[u8], record: Option<&str>) -> Result<LearnedProgram, String> {
    let record = record.ok_or("it is no text")?;
    let program: LearnedProgram =
        serde_json::from_str(record).map_err(|error| error.to_string())?;
    match key_of(&program.program) == key {
        true => Ok(program),
        false => Err("it is of another program".to_owned()),
    }
}

fn row_of(change: LearnedChange) -> LearnedRow {
    match change {
        LearnedChange::Is(program) => LearnedRow {
            key: key_of(&program.program),
            record: serde_json::to_string(&program).ok(),
        },
        LearnedChange::Gone(program) => LearnedRow {
            key: key_of(&program),
            record: None,
        },
    }
}

impl Learning {
    /// As the database has it. Rows that are not as weir writes them are deleted, and the log
    /// says so: else they would stay, for nobody knows them.
    pub fn of(store: Arc<Store>) -> Self {
        let (mut session, mut programs) = (None, Vec::new());
        let (mut wrong, mut first) = (Vec::new(), String::new());
        for (key, record) in store.learned() {
            let read = match key == SESSION.as_bytes() {
                true => serde_json::from_str(record.as_deref().unwrap_or_default())
                    .map(|read| session = Some(read))
                    .map_err(|error| error.to_string()),
                false => program_of(&key, record.as_deref()).map(|read| programs.push(read)),
            };
            if let Err(why) = read {
                if wrong.is_empty() {
                    let key = String::from_utf8_lossy(&key);
                    first = format!("{}: {why}", key.escape_debug());
                }
                wrong.push(Change::Learned(LearnedRow { key, record: None }));
            }
        }
        if !wrong.is_empty() {
            let count = wrong.len();
            tracing::warn!(
                "{count} rows of weir.db about what programs did are not as weir writes them, and are deleted; the first is {first}"
            );
            store.remember(wrong);
        }
        let inner = Inner {
            learned: Learned::of(programs),
            session: session.unwrap_or_default(),
            is_session_changed: false,
            unidentified: 0,
            saved: Instant::now(),
            made_anew: store.times_made_anew(),
        };
        Self {
            store,
            inner: Mutex::new(inner),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Does weir record what programs do?
    pub fn is_on(&self) -> bool {
        self.inner().session.is_on
    }

    /// Begins, or goes on until another time.
    pub fn start(&self, length: Option<Duration>) -> Result<(), SaveError> {
        let mut inner = self.inner();
        let now = now();
        let session = &mut inner.session;
        if !session.is_on {
            session.since = Some(now);
        }
        session.is_on = true;
        session.until = length.map(|length| {
            now.saturating_add(i64::try_from(length.as_micros()).unwrap_or(i64::MAX))
        });
        inner.is_session_changed = true;
        self.save_now(inner)
    }

    /// Ends; what was recorded stays.
    pub fn stop(&self) -> Result<(), SaveError> {
        let mut inner = self.inner();
        inner.session.is_on = false;
        inner.session.until = None;
        inner.is_session_changed = true;
        self.save_now(inner)
    }

    /// Forgets all that was recorded; learning goes on, if it is on.
    pub fn forget(&self) -> Result<(), SaveError> {
        let mut inner = self.inner();
        inner.learned.clear();
        inner.session.reviewed = None;
        inner.is_session_changed = true;
        self.save_now(inner)
    }

    /// What was known at that time has been reviewed.
    pub fn set_reviewed(&self, at: Timestamp) -> Result<(), SaveError> {
        let mut inner = self.inner();
        let at = at.as_microsecond().min(now());
        inner.session.reviewed = inner.session.reviewed.max(Some(at));
        inner.is_session_changed = true;
        self.save_now(inner)
    }

    /// Ends if its time is over; true: it has.
    pub fn end_in_time(&self) -> bool {
        let until = self.inner().session.until;
        let is_over = until.is_some_and(|until| until <= now());
        // A failure is an alert of the database's, and it is written later.
        is_over && (self.stop().is_ok() || !self.is_on())
    }

    /// Is nothing known of this program yet?
    pub fn is_new(&self, program: &ProgramKey) -> bool {
        !self.inner().learned.has(program)
    }

    /// Records these; none: of a program that nobody knows.
    pub fn add(&self, seen: Vec<Observation>) {
        let mut inner = self.inner();
        if !inner.session.is_on {
            return;
        }
        if seen.is_empty() {
            inner.unidentified += 1;
        }
        for one in seen {
            inner.learned.add(one);
        }
    }

    /// Has what has changed written, now and then.
    pub fn save_sometimes(&self) {
        let mut inner = self.inner();
        if inner.saved.elapsed() < SAVE {
            return;
        }
        inner.saved = Instant::now();
        let made_anew = self.store.times_made_anew();
        if inner.made_anew != made_anew {
            inner.made_anew = made_anew;
            inner.is_session_changed = true;
            inner.learned.change_all();
        }
        let changes = inner.take_changes();
        drop(inner);
        self.store.remember(changes);
    }

    /// The daemon ends: what has changed is written with the rest.
    pub fn save_rest(&self) {
        let changes = self.inner().take_changes();
        self.store.remember(changes);
    }

    fn save_now(&self, mut inner: MutexGuard<'_, Inner>) -> Result<(), SaveError> {
        let changes = inner.take_changes();
        drop(inner);
        self.store.remember_now(changes)
    }

    /// In words for people and programs.
    pub fn status(&self) -> LearningStatus {
        let inner = self.inner();
        let session = &inner.session;
        LearningStatus {
            is_on: session.is_on,
            since: session.since.map(moment),
            until: session.until.map(moment),
            reviewed: session.reviewed.map(moment),
            programs: inner.learned.programs().count(),
            forgotten: inner.learned.forgotten(),
            unidentified: inner.unidentified,
        }
    }

    /// All programs, and until when what they did has been reviewed.
    pub fn programs(&self) -> (Vec<LearnedProgram>, Option<i64>) {
        let inner = self.inner();
        let programs = inner.learned.programs().cloned().collect();
        (programs, inner.session.reviewed)
    }
}

impl Inner {
    fn take_changes(&mut self) -> Vec<Change> {
        let rows = self.learned.take_changes().into_iter().map(row_of);
        let mut changes: Vec<_> = rows.map(Change::Learned).collect();
        if std::mem::take(&mut self.is_session_changed) {
            changes.push(Change::Learned(LearnedRow {
                key: SESSION.into(),
                record: serde_json::to_string(&self.session).ok(),
            }));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use weir_events::alerts::Alerts;
    use weir_identity::{Digest, Protocols};

    use super::*;
    use crate::store::KeepHistory;

    fn seen(path: &str, port: u16) -> Observation {
        Observation {
            at: now(),
            program: ProgramKey {
                path: path.to_owned(),
                digest: Some(Digest([7; 32])),
                script: None,
            },
            is_at_path: true,
            aggregate: None,
            package: None,
            parents: Vec::new(),
            cgroup: "/".to_owned(),
            uid: 0,
            is_denied: false,
            is_outward: true,
            protocol: Protocols::TCP,
            peer: "2001:db8::1".parse().unwrap(),
            port,
        }
    }

    fn open(dir: &std::path::Path) -> (Arc<Store>, Learning) {
        let (store, _) = Store::open(dir, KeepHistory::default(), Arc::new(Alerts::default()));
        let store = Arc::new(store);
        (store.clone(), Learning::of(store))
    }

    #[test]
    fn what_was_learned_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (store, learning) = open(dir.path());
        // Nothing is recorded before it is asked for.
        learning.add(vec![seen("/usr/bin/early", 1)]);
        learning.start(Some(Duration::from_secs(3600))).unwrap();
        learning.add(vec![seen("/usr/bin/curl", 443)]);
        learning.add(Vec::new());
        learning.set_reviewed(Timestamp::now()).unwrap();
        learning.add(vec![seen("/usr/bin/curl", 80), seen("/usr/bin/wget", 80)]);
        let before = learning.status();
        assert_eq!((before.programs, before.unidentified), (2, 1));
        learning.save_rest();
        store.close();

        let (store, learning) = open(dir.path());
        let after = learning.status();
        assert!(after.is_on && after.until.is_some(), "{after:?}");
        assert_eq!(
            (after.since, after.reviewed),
            (before.since, before.reviewed)
        );
        let (programs, reviewed) = learning.programs();
        let flows = programs.iter().map(|program| {
            let is_new = |count: &weir_identity::learn::FlowCount| Some(count.since) > reviewed;
            let flows = program.flows.iter();
            let flows = flows.map(|(key, count)| (key.port, is_new(count)));
            (program.program.path.as_str(), flows.collect::<Vec<_>>())
        });
        assert_eq!(
            flows.collect::<Vec<_>>(),
            [
                ("/usr/bin/curl", vec![(Some(80), true), (Some(443), false)]),
                ("/usr/bin/wget", vec![(Some(80), true)]),
            ]
        );
        learning.forget().unwrap();
        learning.stop().unwrap();
        store.close();
        let (_store, learning) = open(dir.path());
        let after = learning.status();
        assert_eq!((after.programs, after.is_on), (0, false));
    }

    /// One that is no text costs nothing of what others have, and does not stay.
    #[test]
    fn rows_that_weir_has_not_written_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (store, learning) = open(dir.path());
        learning.start(None).unwrap();
        learning.add(vec![seen("/usr/bin/curl", 443)]);
        learning.save_rest();
        let other = serde_json::to_string(&learning.programs().0[0]).unwrap();
        let row = |key: &[u8], record: &str| {
            let (key, record) = (key.into(), Some(record.to_owned()));
            Change::Learned(LearnedRow { key, record })
        };
        let wrong = [
            row(b"{\"path\":\"/usr/bin/\xff\"}", "{}"),
            row(b"{torn", "{"),
            row(b"{}", &other),
        ];
        store.remember_now(wrong.into()).unwrap();
        assert_eq!(store.learned().len(), 5);
        store.close();

        let (store, learning) = open(dir.path());
        let status = learning.status();
        assert_eq!((status.programs, status.is_on), (1, true));
        store.flush().unwrap();
        let keys: Vec<_> = store.learned().into_iter().map(|(key, _)| key).collect();
        let program = key_of(&learning.programs().0[0].program);
        assert_eq!(keys, [SESSION.into(), program]);
    }

    #[test]
    fn learning_ends_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let (_store, learning) = open(dir.path());
        assert!(!learning.end_in_time());
        learning.start(None).unwrap();
        assert!(!learning.end_in_time());
        learning.start(Some(Duration::ZERO)).unwrap();
        assert!(learning.end_in_time());
        assert!(!learning.is_on());
        assert!(!learning.end_in_time());
    }
}

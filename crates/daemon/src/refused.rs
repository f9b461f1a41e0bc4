//! Bans that the backend refused: no memory, no room for one more policy. They
//! are decided, and nobody decides them again, so they are tried again until
//! they are in force, over, or lifted. As long as one waits there is an alert.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use weir_core::{Ban, BanSource, BanTarget, PortSet};
use weir_enforce::{BootNanos, Entry, Error, Expiry};
use weir_events::alerts::Alerts;
use weir_metrics::Counter;

/// The most bans that wait. Of more the oldest are given up, and counted.
const MAX_WAITING: usize = 256;
/// The time between two attempts.
const RETRY: Duration = Duration::from_secs(5);
/// The subject of the alert.
const ABOUT: &str = "insert";

/// A ban, as decided and as enforced, and why it is not in force.
pub struct RefusedBan {
    /// The ban, with its explanation.
    pub ban: Ban,
    /// The entry that the backend refused.
    pub entry: Entry,
    /// The backend's answer.
    pub error: Error,
}

impl RefusedBan {
    fn is_of(&self, entry: &Entry) -> bool {
        let (own, other) = (&self.entry.policy, &entry.policy);
        self.entry.subject == entry.subject
            && own.producer == other.producer
            && own.scope == other.scope
    }

    fn is_over(&self, now: BootNanos) -> bool {
        matches!(self.entry.expiry, Expiry::At(end) if end <= now)
    }
}

/// All bans that the backend refused, until they are tried again.
#[derive(Default)]
pub struct RefusedBans {
    inner: Mutex<Inner>,
    /// The number of bans that were given up so far.
    given_up: Counter,
}

#[derive(Default)]
struct Inner {
    waiting: Vec<RefusedBan>,
    /// Given up for want of room since there was none last.
    given_up: usize,
    tried: Option<Instant>,
}

impl RefusedBans {
    /// No ban waits yet; `given_up` counts those that are given up.
    pub fn new(given_up: Counter) -> Self {
        Self {
            given_up,
            ..Self::default()
        }
    }

    /// The number of bans that wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Adds bans that were refused just now, and drops those that are in force.
    pub fn follow<'a>(
        &self,
        refused: Vec<RefusedBan>,
        in_force: impl Iterator<Item = &'a Entry>,
        alerts: &Alerts,
    ) {
        let mut inner = self.lock();
        if inner.waiting.is_empty() && refused.is_empty() {
            return;
        }
        for entry in in_force {
            inner.waiting.retain(|one| !one.is_of(entry));
        }
        for new in refused {
            inner.waiting.retain(|one| !one.is_of(&new.entry));
            inner.waiting.push(new);
        }
        let surplus = inner.waiting.len().saturating_sub(MAX_WAITING);
        inner.waiting.drain(..surplus);
        inner.given_up += surplus;
        self.given_up.add(surplus as u64);
        tell(inner, alerts);
    }

    /// Takes the bans that are to be tried now, if it is time; they have to be refused
    /// again, or put into force.
    pub fn take_due(&self, now: BootNanos) -> Vec<RefusedBan> {
        let mut inner = self.lock();
        let is_due = inner.tried.is_none_or(|at| at.elapsed() >= RETRY);
        if inner.waiting.is_empty() || !is_due {
            return Vec::new();
        }
        inner.tried = Some(Instant::now());
        let mut due = std::mem::take(&mut inner.waiting);
        due.retain(|one| !one.is_over(now));
        due
    }

    /// Forgets those that were lifted; returns how many.
    pub fn lift(
        &self,
        subject: Option<BanTarget>,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
        alerts: &Alerts,
    ) -> usize {
        let mut inner = self.lock();
        let before = inner.waiting.len();
        if before == 0 {
            return 0;
        }
        inner.waiting.retain(|RefusedBan { entry, .. }| {
            subject.is_some_and(|s| s != entry.subject)
                || producer.is_some_and(|p| *p != entry.policy.producer)
                || scope.is_some_and(|s| *s != entry.policy.scope)
        });
        let lifted = before - inner.waiting.len();
        tell(inner, alerts);
        lifted
    }

    /// When those that were due are over, every one, so is the alert.
    pub fn settle(&self, alerts: &Alerts) {
        let mut inner = self.lock();
        if inner.waiting.is_empty() && inner.tried.take().is_some() {
            tell(inner, alerts);
        }
    }
}

/// Says what waits, or that nothing does any more.
fn tell(mut inner: MutexGuard<'_, Inner>, alerts: &Alerts) {
    let Some(first) = inner.waiting.first() else {
        inner.given_up = 0;
        drop(inner);
        alerts.clear(ABOUT);
        return;
    };
    let more = match inner.waiting.len() {
        1 => String::new(),
        many => format!(" and {} more", many - 1),
    };
    let given_up = match inner.given_up {
        0 => String::new(),
        many => format!(" ({many} others are given up)"),
    };
    let message = format!(
        "cannot ban {}{more}: {}; tried again every {} s{given_up}",
        first.entry.subject,
        first.error,
        RETRY.as_secs()
    );
    drop(inner);
    alerts.raise(ABOUT, message);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use weir_core::{Action, Until};
    use weir_enforce::Policy;

    use super::*;

    fn refused(n: usize, end: u64) -> RefusedBan {
        let ban = Ban {
            subject: format!("198.18.{}.{}", n / 256, n % 256).parse().unwrap(),
            scope: PortSet::all(),
            producer: BanSource::Jail("sshd".into()),
            action: Action::Drop,
            reason: String::new(),
            since: Timestamp::UNIX_EPOCH,
            until: Until::Never,
            evidence: Vec::new(),
        };
        let policy = Arc::new(Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
            action: ban.action,
        });
        RefusedBan {
            entry: Entry {
                subject: ban.subject,
                policy,
                expiry: Expiry::At(BootNanos(end)),
            },
            ban,
            error: Error::Full(64),
        }
    }

    fn message(alerts: &Alerts) -> String {
        let list = alerts.list();
        list.first().map(|a| a.message.clone()).unwrap_or_default()
    }

    #[test]
    fn as_many_wait_as_may_and_those_that_are_over_do_not() {
        let given_up = Counter::default();
        let (bans, alerts) = (RefusedBans::new(given_up.clone()), Alerts::default());
        let none = || std::iter::empty::<&Entry>();
        let many = (0..MAX_WAITING + 7).map(|n| refused(n, n as u64)).collect();
        bans.follow(many, none(), &alerts);
        for words in [
            "cannot ban 198.18.0.7 and 255 more",
            "(7 others are given up)",
        ] {
            let message = message(&alerts);
            assert!(message.contains(words), "{message}");
        }
        assert_eq!((bans.waiting(), given_up.get()), (MAX_WAITING, 7));
        // Refused again: it is the same one.
        bans.follow(vec![refused(9, 9)], none(), &alerts);
        assert!(message(&alerts).contains("and 255 more"));
        let due = bans.take_due(BootNanos(MAX_WAITING as u64 + 3));
        assert_eq!(due.len(), 3);
        assert!(bans.take_due(BootNanos(0)).is_empty(), "not yet again");
        // One is in force now, one is refused again and then lifted.
        let [one, two, _] = &due[..] else {
            panic!("three of them")
        };
        let (one, two) = (one.entry.clone(), two.entry.clone());
        bans.follow(due, none(), &alerts);
        bans.follow(vec![], [&one].into_iter(), &alerts);
        assert!(message(&alerts).contains("and 1 more"));
        assert_eq!(bans.lift(Some(two.subject), None, None, &alerts), 1);
        let other = BanSource::Manual;
        assert_eq!(bans.lift(None, Some(&other), None, &alerts), 0);
        assert!(!message(&alerts).contains("more"));
        assert_eq!(bans.lift(None, None, None, &alerts), 1);
        assert_eq!(message(&alerts), "");
    }
}

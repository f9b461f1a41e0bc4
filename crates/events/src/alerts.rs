//! What an operator must know and has not asked: shown by `weir status`, the
//! log and the events until it is over. One alert per subject, so that a
//! failure repeated each second is said once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use jiff::Timestamp;
use serde::Serialize;

use crate::EventBus;

/// The alerts that hold now.
#[derive(Default)]
pub struct Alerts {
    list: Mutex<List>,
    bus: OnceLock<Arc<EventBus>>,
}

/// A condition that an administrator should know of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// The subject: `database`, `source:/var/log/auth.log`, …
    pub about: String,
    /// The time since when the condition holds.
    pub since: Timestamp,
    /// The condition and its consequence, in words.
    pub message: String,
}

/// Jails, files and the like can each have an alert, and some of them others than
/// the administrator can make: of one kind (what stands before the colon) at most
/// this many are shown and told, so that they hide no other kind.
const SHOWN: usize = 64;
/// So many of a kind are known; of those that come then nothing is.
const KNOWN: usize = 1024;

type List = BTreeMap<String, Alert>;

fn kind(about: &str) -> &str {
    about.split(':').next().unwrap_or(about)
}

fn count(list: &List, kind: &str) -> usize {
    let of_kind = list.keys().filter(|about| self::kind(about) == kind);
    of_kind.count()
}

/// What there is to say when there are more of a kind than are shown.
fn more_of(kind: &str, number: usize, since: Timestamp) -> Alert {
    let at_least = if number >= KNOWN { "at least " } else { "" };
    Alert {
        about: format!("alerts:{kind}"),
        since,
        message: format!(
            "there are {at_least}{number} alerts about `{kind}`: {SHOWN} of them are shown"
        ),
    }
}

impl Alerts {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("no holder of this lock panics")
    }

    /// Sets the bus that is told of alerts from now on.
    pub fn tell(&self, bus: Arc<EventBus>) {
        // Once, by the service that they belong to.
        let _ = self.bus.set(bus);
    }

    /// States something; logged and told when it is new or has changed.
    pub fn raise(&self, about: &str, message: String) {
        self.raise_if(|| true, about, message);
    }

    fn raise_if(&self, may: impl FnOnce() -> bool, about: &str, message: String) {
        let mut list = self.lock();
        if !may() {
            return;
        }
        let before = count(&list, kind(about));
        let is_new = match list.get_mut(about) {
            Some(alert) if alert.message == message => return,
            Some(alert) => {
                alert.message.clone_from(&message);
                false
            }
            None if before >= KNOWN => return,
            None => {
                let alert = Alert {
                    about: about.to_owned(),
                    since: Timestamp::now(),
                    message: message.clone(),
                };
                list.insert(about.to_owned(), alert);
                true
            }
        };
        drop(list);
        match (is_new, before) {
            (true, SHOWN) => {
                let more = more_of(kind(about), before + 1, Timestamp::now());
                self.say(&more.about, &more.message);
            }
            (true, SHOWN..) => {}
            (true, _) => self.say(about, &message),
            // Whether it is one of those that are shown is not known.
            (false, ..=SHOWN) => self.say(about, &message),
            (false, _) => {}
        }
    }

    fn say(&self, about: &str, message: &str) {
        tracing::error!("{about}: {}", weir_core::text::escape(message));
        if let Some(bus) = self.bus.get() {
            bus.alert(about, message);
        }
    }

    /// Ends the alert of this subject.
    pub fn clear(&self, about: &str) {
        if self.lock().remove(about).is_some() {
            tracing::info!("{about}: works again");
        }
    }

    /// Forgets the alert of a subject that is no more.
    pub fn forget(&self, about: &str) {
        self.lock().remove(about);
    }

    /// How many hold of each kind, also of those that are not shown.
    pub fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for about in self.lock().keys() {
            *kinds.entry(kind(about).to_owned()).or_default() += 1;
        }
        kinds
    }

    /// All alerts that hold, by subject.
    pub fn list(&self) -> Vec<Alert> {
        let list = self.lock();
        let mut shown = Vec::with_capacity(list.len().min(SHOWN));
        // Sorted by subject: those of a kind are neighbours.
        let alerts: Vec<&Alert> = list.values().collect();
        for alerts in alerts.chunk_by(|a, b| kind(&a.about) == kind(&b.about)) {
            shown.extend(alerts.iter().take(SHOWN).map(|alert| (*alert).clone()));
            if let Some(hidden) = alerts.get(SHOWN) {
                shown.push(more_of(kind(&hidden.about), alerts.len(), hidden.since));
            }
        }
        shown
    }
}

/// The right to speak about some things until it is taken away: whoever comes
/// next speaks about the same.
pub struct Voice {
    alerts: Arc<Alerts>,
    /// Changes under the lock of the list.
    silent: AtomicBool,
}

impl Voice {
    /// A voice that may speak.
    pub fn new(alerts: Arc<Alerts>) -> Self {
        Self {
            alerts,
            silent: AtomicBool::new(false),
        }
    }

    /// See [`Alerts::raise`].
    pub fn raise(&self, about: &str, message: String) {
        let may = || !self.silent.load(Relaxed);
        self.alerts.raise_if(may, about, message);
    }

    /// See [`Alerts::clear`].
    pub fn clear(&self, about: &str) {
        let removed = {
            let mut list = self.alerts.lock();
            !self.silent.load(Relaxed) && list.remove(about).is_some()
        };
        if removed {
            tracing::info!("{about}: works again");
        }
    }

    /// Takes the right away; what was said about these is forgotten.
    pub fn silence(&self, about: &[&str]) {
        let mut list = self.alerts.lock();
        if !self.silent.swap(true, Relaxed) {
            for about in about {
                list.remove(*about);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_alerts_of_a_kind_hide_no_other() {
        let alerts = Alerts::default();
        for n in 0..KNOWN + 300 {
            alerts.raise(&format!("source:/{n}"), "not a regular file".into());
        }
        alerts.raise("allow-wide", "everybody is allowed".into());
        let about = |about: &str| alerts.list().into_iter().find(|one| one.about == about);
        assert_eq!(alerts.list().len(), SHOWN + 2);
        assert!(about("allow-wide").is_some());
        let more = about("alerts:source").unwrap().message;
        assert!(
            more.contains("at least 1024 alerts about `source`"),
            "{more}"
        );
        // Those that are not shown come forward as others end.
        for n in 0..KNOWN - SHOWN {
            alerts.clear(&format!("source:/{n}"));
        }
        assert_eq!(alerts.list().len(), SHOWN + 1);
        assert_eq!(about("alerts:source"), None);
        assert!(about(&format!("source:/{}", KNOWN - 1)).is_some());
    }

    #[test]
    fn whoever_is_silent_changes_nothing_that_his_successor_said() {
        let alerts = Arc::new(Alerts::default());
        let told = || -> Vec<String> {
            let list = alerts.list().into_iter();
            list.map(|alert| alert.message).collect()
        };
        let old = Voice::new(alerts.clone());
        old.raise("sink:a", "old".into());
        old.silence(&["sink:a"]);
        assert_eq!(told(), Vec::<String>::new());
        let new = Voice::new(alerts.clone());
        new.raise("sink:a", "new".into());
        old.raise("sink:a", "old".into());
        old.clear("sink:a");
        old.silence(&["sink:a"]);
        assert_eq!(told(), ["new"]);
        new.clear("sink:a");
        assert_eq!(told(), Vec::<String>::new());
    }
}

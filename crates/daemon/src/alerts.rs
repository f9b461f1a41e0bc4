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

use crate::events::Outlets;

/// The alerts that hold now.
#[derive(Default)]
pub struct Alerts {
    list: Mutex<List>,
    outlets: OnceLock<Arc<Outlets>>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// What it is about: `database`, `source:/var/log/auth.log`, …
    pub about: String,
    /// Since when it holds.
    pub since: Timestamp,
    /// What is wrong and what follows.
    pub message: String,
}

/// Jails, files and the like can each have an alert, and some of them others than
/// the administrator can make: of one kind (what stands before the colon) at most
/// this many are shown, so that they hide no other kind.
const MAX_OF_A_KIND: usize = 64;

type List = BTreeMap<String, Alert>;

fn kind(about: &str) -> &str {
    about.split(':').next().unwrap_or(about)
}

/// The alert that says that there are more of this kind.
fn more_of(kind: &str) -> String {
    format!("alerts:{kind}")
}

fn is_full(list: &List, kind: &str) -> bool {
    let of_kind = list.keys().filter(|about| self::kind(about) == kind);
    of_kind.count() >= MAX_OF_A_KIND
}

fn remove(list: &mut List, about: &str) -> bool {
    let removed = list.remove(about).is_some();
    if removed && !is_full(list, kind(about)) {
        list.remove(&more_of(kind(about)));
    }
    removed
}

impl Alerts {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("no holder of this lock panics")
    }

    /// Who is told of alerts from now on.
    pub fn tell(&self, outlets: Arc<Outlets>) {
        // Once, by the service that they belong to.
        let _ = self.outlets.set(outlets);
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
        let full = is_full(&list, kind(about));
        match list.get_mut(about) {
            Some(alert) if alert.message == message => return,
            Some(alert) => alert.message = message.clone(),
            None if full => {
                drop(list);
                let kind = kind(about);
                let message = format!(
                    "there are more than {MAX_OF_A_KIND} alerts about `{kind}`: this many are shown"
                );
                return self.raise(&more_of(kind), message);
            }
            None => {
                list.insert(
                    about.to_owned(),
                    Alert {
                        about: about.to_owned(),
                        since: Timestamp::now(),
                        message: message.clone(),
                    },
                );
            }
        }
        drop(list);
        tracing::error!("{about}: {}", crate::escape(&message));
        if let Some(outlets) = self.outlets.get() {
            outlets.alert(about, &message);
        }
    }

    /// It is over.
    pub fn clear(&self, about: &str) {
        if remove(&mut self.lock(), about) {
            tracing::info!("{about}: works again");
        }
    }

    /// What it was about is no more.
    pub fn forget(&self, about: &str) {
        remove(&mut self.lock(), about);
    }

    /// All that hold, by subject.
    pub fn list(&self) -> Vec<Alert> {
        self.lock().values().cloned().collect()
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
    /// One that may speak.
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
            !self.silent.load(Relaxed) && remove(&mut list, about)
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
                remove(&mut list, about);
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
        for n in 0..300 {
            alerts.raise(&format!("source:/{n}"), "not a regular file".into());
        }
        alerts.raise("allow-wide", "everybody is allowed".into());
        let told = || -> Vec<String> {
            let list = alerts.list().into_iter();
            list.map(|alert| alert.about).collect()
        };
        assert_eq!(told().len(), MAX_OF_A_KIND + 2);
        for about in ["allow-wide", "alerts:source"] {
            assert!(told().iter().any(|one| one == about), "{:?}", told());
        }
        // One place is free again, and taken.
        alerts.clear("source:/0");
        assert!(!told().iter().any(|one| one == "alerts:source"));
        alerts.raise("source:/299", "not a regular file".into());
        assert_eq!(told().len(), MAX_OF_A_KIND + 1);
        assert!(told().iter().any(|one| one == "source:/299"));
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

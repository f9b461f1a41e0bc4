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
    list: Mutex<BTreeMap<String, Alert>>,
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

/// Jails and files can raise alerts of their own: at most this many.
const MAX_ALERTS: usize = 256;

impl Alerts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Alert>> {
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
        let full = list.len() >= MAX_ALERTS;
        match list.get_mut(about) {
            Some(alert) if alert.message == message => return,
            Some(alert) => alert.message = message.clone(),
            None if full => return,
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
        if self.lock().remove(about).is_some() {
            tracing::info!("{about}: works again");
        }
    }

    /// What it was about is no more.
    pub fn forget(&self, about: &str) {
        self.lock().remove(about);
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

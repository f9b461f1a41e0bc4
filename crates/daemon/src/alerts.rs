//! What an operator must know and has not asked: shown by `weir status`, the
//! log and the events until it is over. One alert per subject, so that a
//! failure repeated each second is said once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
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
        let mut list = self.lock();
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

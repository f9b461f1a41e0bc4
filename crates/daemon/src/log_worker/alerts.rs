//! The alerts about sources: what a thread has raised ends with the trouble, or
//! with the source, when a reload takes it out of the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use weir_events::alerts::Alerts;

/// The alerts of all log sources, each with the sources that raised it. Two sources may
/// have one trouble in common: it is over when neither has it.
#[derive(Default)]
pub(super) struct SourceAlerts(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl SourceAlerts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Ends the alerts of sources other than these.
    pub fn forget_all_but(&self, alerts: &Alerts, sources: &BTreeSet<String>) {
        self.lock().retain(|about, raised_by| {
            raised_by.retain(|source| sources.contains(source));
            if raised_by.is_empty() {
                alerts.forget(about);
            }
            !raised_by.is_empty()
        });
    }

    /// The lock is held until it is told: another source that is rid of the same
    /// trouble at this moment must not clear it behind this.
    fn raise(&self, alerts: &Alerts, source: &str, about: &str, message: String) {
        let mut raised = self.lock();
        let raised_by = raised.entry(about.to_owned()).or_default();
        raised_by.insert(source.to_owned());
        alerts.raise(about, message);
    }

    fn clear(&self, alerts: &Alerts, source: &str, about: &str) {
        let mut raised = self.lock();
        if let Some(raised_by) = raised.get_mut(about) {
            raised_by.remove(source);
            if !raised_by.is_empty() {
                return;
            }
            raised.remove(about);
        }
        alerts.clear(about);
    }

    fn of(&self, source: &str) -> Vec<String> {
        let raised = self.lock();
        let own = raised.iter().filter(|(_, by)| by.contains(source));
        own.map(|(about, _)| about.clone()).collect()
    }
}

/// The alerts that one thread raises and clears.
pub(super) struct Own {
    all: Arc<SourceAlerts>,
    alerts: Arc<Alerts>,
    /// The source's name among those that raise alerts.
    pub source: String,
}

impl Own {
    pub fn new(all: &Arc<SourceAlerts>, alerts: &Arc<Alerts>, source: String) -> Self {
        Self {
            all: all.clone(),
            alerts: alerts.clone(),
            source,
        }
    }

    /// Where those of jails are raised as well.
    pub fn of_all(&self) -> &Alerts {
        &self.alerts
    }

    pub fn raise(&self, about: &str, message: String) {
        self.all.raise(&self.alerts, &self.source, about, message);
    }

    pub fn clear(&self, about: &str) {
        self.all.clear(&self.alerts, &self.source, about);
    }

    /// A source that was opened anew has these troubles, and none that there was
    /// before.
    pub fn keep_only(&self, about: &BTreeSet<String>) {
        for old in self.all.of(&self.source) {
            if !about.contains(&old) {
                self.clear(&old);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(alerts: &Alerts) -> Vec<String> {
        alerts.list().into_iter().map(|alert| alert.about).collect()
    }

    #[test]
    fn an_alert_ends_with_the_last_who_has_the_trouble() {
        let (all, alerts) = (Arc::default(), Arc::new(Alerts::default()));
        let own = |source: &str| Own::new(&all, &alerts, source.to_owned());
        let (a, b, c) = (own("a"), own("b"), own("c"));
        for source in [&a, &b] {
            source.raise("source:/x", "there is no such file yet".into());
        }
        b.raise("source:/y", "cannot read".into());
        c.raise("source:/z", "cannot read".into());
        a.clear("source:/x");
        assert_eq!(told(&alerts), ["source:/x", "source:/y", "source:/z"]);
        // Opened anew, and one of its two troubles is over.
        b.keep_only(&["source:/x".to_owned()].into());
        assert_eq!(told(&alerts), ["source:/x", "source:/z"]);
        // A reload without `b`.
        all.forget_all_but(&alerts, &["a".to_owned(), "c".to_owned()].into());
        assert_eq!(told(&alerts), ["source:/z"]);
        c.clear("source:/z");
        assert_eq!(told(&alerts), Vec::<String>::new());
    }
}

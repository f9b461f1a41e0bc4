//! Decides everything, drops nothing: for trying a configuration, and for
//! tests that need no privilege. Same cap and eviction as the real backends.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use weir_core::{PrefixSet, Producer, Reason, Scope, Subject, class::Classes};

use crate::{
    Attachment, Backend, BootNanos, ClassCounter, Counter, Entry, Error, Expiry, Inserted,
    PacketEvent, Policy, Settings, Usage,
};

/// The backend `dry-run`.
pub struct DryRun {
    max_bans: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bans: BTreeMap<(Subject, Arc<Policy>), Expiry>,
    allow: PrefixSet,
    evicted: u64,
}

impl DryRun {
    /// A table of at most `max_bans` entries.
    pub fn new(max_bans: usize) -> Self {
        Self {
            max_bans: max_bans.into(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl State {
    fn live(&self) -> impl Iterator<Item = Entry> + '_ {
        let now = BootNanos::now();
        self.bans
            .iter()
            .filter(move |(_, expiry)| !expiry.is_over(now))
            .map(|((subject, policy), expiry)| Entry {
                subject: *subject,
                policy: policy.clone(),
                expiry: *expiry,
            })
    }

    fn drop_expired(&mut self) {
        let now = BootNanos::now();
        self.bans.retain(|_, expiry| !expiry.is_over(now));
    }
}

impl Backend for DryRun {
    fn name(&self) -> &'static str {
        "dry-run"
    }

    fn insert(&self, entries: &[Entry]) -> Result<Inserted, Error> {
        let max_bans = self.max_bans.load(Ordering::Relaxed);
        let mut state = self.state();
        let mut done = Inserted::default();
        for entry in entries {
            let key = (entry.subject, entry.policy.clone());
            if !state.bans.contains_key(&key) && state.bans.len() >= max_bans {
                state.drop_expired();
            }
            if !state.bans.contains_key(&key) && state.bans.len() >= max_bans {
                let oldest = state
                    .bans
                    .iter()
                    .filter(|((_, policy), _)| {
                        policy.producer == entry.policy.producer
                            && policy.producer != Producer::Manual
                    })
                    .min_by_key(|(_, expiry)| **expiry)
                    .map(|((subject, policy), expiry)| Entry {
                        subject: *subject,
                        policy: policy.clone(),
                        expiry: *expiry,
                    })
                    .ok_or(Error::Full(max_bans))?;
                state.bans.remove(&(oldest.subject, oldest.policy.clone()));
                state.evicted += 1;
                done.evicted.push(oldest);
            }
            match state.bans.insert(key, entry.expiry) {
                None => done.new += 1,
                Some(_) => done.replaced += 1,
            }
        }
        Ok(done)
    }

    fn remove(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Vec<Entry>, Error> {
        let mut state = self.state();
        let lifted: Vec<Entry> = state
            .live()
            .filter(|e| {
                e.subject == subject
                    && producer.is_none_or(|p| *p == e.policy.producer)
                    && scope.is_none_or(|s| *s == e.policy.scope)
            })
            .collect();
        for entry in &lifted {
            state.bans.remove(&(entry.subject, entry.policy.clone()));
        }
        Ok(lifted)
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        Ok(self.state().live().collect())
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        Ok(self
            .state()
            .live()
            .filter(|e| e.subject.prefix().contains(addr))
            .collect())
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        self.state().allow = allow.clone();
        Ok(())
    }

    fn set_classes(&self, _classes: &Arc<Classes>) -> Result<(), Error> {
        Ok(())
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        Ok(Vec::new())
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        Ok(Reason::ALL
            .map(|reason| Counter {
                reason,
                packets: 0,
                bytes: 0,
            })
            .to_vec())
    }

    fn attach(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        self.max_bans.store(settings.max_bans, Ordering::Relaxed);
        Ok(())
    }

    fn attachments(&self) -> Vec<Attachment> {
        Vec::new()
    }

    fn usage(&self) -> Usage {
        let state = self.state();
        Usage {
            bans: state.live().count(),
            max_bans: self.max_bans.load(Ordering::Relaxed),
            evicted: state.evicted,
            ..Usage::default()
        }
    }

    fn maintain(&self) -> Result<(), Error> {
        self.state().drop_expired();
        Ok(())
    }

    fn poll_events(
        &self,
        timeout: Duration,
        _each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error> {
        std::thread::sleep(timeout);
        Ok(0)
    }
}

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
use weir_kernel::wide::MAX_WIDE;

use crate::{
    Attachment, Backend, BootNanos, ClassCounter, Counter, DecoyCounts, Decoys, Entry, Error,
    Expiry, Inserted, PacketEvent, Policy, Settings, Usage,
};

/// The backend `dry-run`.
pub struct DryRun {
    max_bans: AtomicUsize,
    ipv4_length: Option<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those of the ban table, and the wide ones: each with its cap.
    bans: [BTreeMap<(Subject, Arc<Policy>), Expiry>; 2],
    allow: PrefixSet,
    evicted: u64,
}

impl DryRun {
    /// A table of at most `max_bans` entries; `ipv4_length` as in
    /// [`crate::kernel::KernelConfig`].
    pub fn new(max_bans: usize, ipv4_length: Option<u8>) -> Self {
        Self {
            max_bans: max_bans.into(),
            ipv4_length,
            state: Mutex::default(),
        }
    }

    /// Which of [`State::bans`] a subject belongs to.
    fn table(&self, subject: Subject) -> usize {
        let prefix = subject.prefix();
        let fits = match prefix.addr() {
            IpAddr::V4(_) => self.ipv4_length == Some(prefix.bits()),
            IpAddr::V6(_) => prefix.bits() == 64,
        };
        usize::from(!prefix.is_host() && !fits)
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
            .flatten()
            .filter(move |(_, expiry)| !expiry.is_over(now))
            .map(|((subject, policy), expiry)| Entry {
                subject: *subject,
                policy: policy.clone(),
                expiry: *expiry,
            })
    }

    fn drop_expired(&mut self) {
        let now = BootNanos::now();
        for bans in &mut self.bans {
            bans.retain(|_, expiry| !expiry.is_over(now));
        }
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
            let table = self.table(entry.subject);
            let (cap, full) = match table {
                0 => (max_bans, Error::Full(max_bans)),
                _ => (MAX_WIDE, Error::WideFull(MAX_WIDE)),
            };
            let key = (entry.subject, entry.policy.clone());
            let at_cap = |state: &State| {
                let bans = &state.bans[table];
                !bans.contains_key(&key) && bans.len() >= cap
            };
            if at_cap(&state) {
                state.drop_expired();
            }
            if at_cap(&state) {
                let oldest = state.bans[table]
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
                    .ok_or(full)?;
                state.bans[table].remove(&(oldest.subject, oldest.policy.clone()));
                state.evicted += 1;
                done.evicted.push(oldest);
            }
            let twin = (entry.subject, Arc::new(entry.policy.twin()));
            let twin = state.bans[table].remove(&twin);
            match state.bans[table].insert(key, entry.expiry).or(twin) {
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
            state.bans[self.table(subject)].remove(&(entry.subject, entry.policy.clone()));
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

    fn has_classes(&self) -> bool {
        false
    }

    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error> {
        Ok(Vec::new())
    }

    fn set_decoys(&self, _decoys: &Decoys) -> Result<(), Error> {
        Ok(()) // it sees no packets
    }

    fn decoy_counts(&self) -> Result<DecoyCounts, Error> {
        Ok(DecoyCounts::default())
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
        let in_force = |table| {
            let all = state.live();
            all.filter(|entry| self.table(entry.subject) == table)
                .count()
        };
        Usage {
            bans: in_force(0),
            max_bans: self.max_bans.load(Ordering::Relaxed),
            wide: in_force(1),
            max_wide: MAX_WIDE,
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::Action;

    fn entry(subject: String, producer: Producer) -> Entry {
        Entry {
            subject: subject.parse().expect("a subject"),
            policy: Arc::new(Policy {
                producer,
                scope: Scope::all(),
                action: Action::Drop,
            }),
            expiry: Expiry::Never,
        }
    }

    #[test]
    fn wide_bans_have_their_own_cap() {
        let backend = DryRun::new(16, Some(24));
        let jail = || Producer::Jail("a".into());
        let narrow: Vec<_> = (0..16)
            .map(|n| entry(format!("10.0.{n}.0/24"), jail()))
            .collect();
        backend.insert(&narrow).expect("room");
        let wide: Vec<_> = (0..MAX_WIDE)
            .map(|n| entry(format!("11.{}.{}.0/25", n >> 8, n & 255), jail()))
            .collect();
        assert_eq!(backend.insert(&wide).expect("room").new, MAX_WIDE);
        let usage = backend.usage();
        assert_eq!((usage.bans, usage.wide), (16, MAX_WIDE));
        for (subject, evicts) in [("12.0.0.0/23", "/25"), ("12.0.0.0/24", "/24")] {
            let done = backend
                .insert(&[entry(subject.into(), jail())])
                .expect("room");
            let evicted = done.evicted[0].subject.to_string();
            assert!(evicted.ends_with(evicts), "{evicted} for {subject}");
            let manual = entry(subject.replace("12", "13"), Producer::Manual);
            let error = backend.insert(&[manual]).expect_err("it is full");
            assert_eq!(
                matches!(error, Error::WideFull(MAX_WIDE)),
                evicts == "/25",
                "{error}"
            );
        }
    }
}

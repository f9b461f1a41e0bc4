//! Decides everything, drops nothing: for trying a configuration, and for
//! tests that need no privilege. Same cap and eviction as the real backends.

use std::{
    net::IpAddr,
    sync::{Mutex, MutexGuard},
};

use weir_core::{BanSource, BanTarget, PortSet, PrefixSet, Reason};

use crate::{
    backend::{Backend, Counter, InsertError, InsertSummary, Usage},
    desired_bans::DesiredBans,
    entry::{BootNanos, Entry},
    error::Error,
    hooks::attachment::Attachment,
    settings::Settings,
};

/// The backend `dry-run`.
pub struct DryRun {
    bans: Mutex<DesiredBans>,
    at: Option<Box<OnStep>>,
}

/// A moment at which whoever made a [`DryRun`] may wait or, of an insertion that
/// begins, refuse it: a test has another thread come in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// An insertion begins.
    Insert,
    /// An insertion is done.
    Inserted,
    /// The entries were all read.
    Entries,
}

type OnStep = dyn Fn(Step) -> Result<(), Error> + Send + Sync;

impl DryRun {
    /// A table of at most `max_bans` entries; `ipv4_length` as in
    /// [`crate::kernel::KernelConfig`].
    pub fn new(max_bans: usize, ipv4_length: Option<u8>) -> Self {
        Self {
            bans: Mutex::new(DesiredBans::new(max_bans, ipv4_length)),
            at: None,
        }
    }

    /// A dry run that calls `at` at each [`Step`].
    #[must_use]
    pub fn at_each_step(
        mut self,
        at: impl Fn(Step) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.at = Some(Box::new(at));
        self
    }

    fn at(&self, step: Step) -> Result<(), Error> {
        self.at.as_ref().map_or(Ok(()), |at| at(step))
    }

    fn bans(&self) -> MutexGuard<'_, DesiredBans> {
        self.bans.lock().expect("no holder of this lock panics")
    }
}

impl Backend for DryRun {
    fn name(&self) -> &'static str {
        "dry-run"
    }

    fn insert(&self, entries: &[Entry]) -> Result<InsertSummary, InsertError> {
        let mut done = InsertSummary::default();
        let outcome = self.at(Step::Insert).and_then(|()| {
            let mut bans = self.bans();
            entries
                .iter()
                .try_for_each(|entry| bans.insert(entry).map(|put| put.count_in(&mut done)))
        });
        done.with(outcome.and_then(|()| self.at(Step::Inserted)))
    }

    fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Vec<Entry>, Error> {
        Ok(self.bans().remove(subject, producer, scope))
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        let entries = self.bans().live();
        self.at(Step::Entries)?;
        Ok(entries)
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        Ok(self.bans().live_for(addr))
    }

    fn set_allow(&self, _allow: &PrefixSet) -> Result<(), Error> {
        Ok(()) // it sees no packets
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
        self.bans().set_max_bans(settings.max_bans);
        Ok(())
    }

    fn attachments(&self) -> Vec<Attachment> {
        Vec::new()
    }

    fn usage(&self) -> Usage {
        let mut bans = self.bans();
        bans.drop_over(BootNanos::now());
        bans.usage()
    }

    fn maintain(&self) -> Result<(), Error> {
        self.bans().drop_over(BootNanos::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_bpf::prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS};

    use std::sync::Arc;

    use weir_core::Action;

    use super::*;
    use crate::entry::{Expiry, Policy};

    fn entry(subject: String, producer: BanSource) -> Entry {
        Entry {
            subject: subject.parse().expect("a subject"),
            policy: Arc::new(Policy {
                producer,
                scope: PortSet::all(),
                action: Action::Drop,
            }),
            expiry: Expiry::Never,
        }
    }

    #[test]
    fn prefix_bans_have_their_own_cap() {
        let backend = DryRun::new(16, Some(24));
        let jail = || BanSource::Jail("a".into());
        let narrow: Vec<_> = (0..16)
            .map(|n| entry(format!("10.0.{n}.0/24"), jail()))
            .collect();
        backend.insert(&narrow).expect("room");
        let prefix_bans: Vec<_> = (0..MAX_PREFIX_BANS)
            .map(|n| {
                let producer = match n < MAX_SHARED_PREFIX_BANS {
                    true => jail(),
                    false => BanSource::Manual,
                };
                entry(format!("11.{}.{}.0/25", n >> 8, n & 255), producer)
            })
            .collect();
        assert_eq!(
            backend.insert(&prefix_bans).expect("room").new,
            MAX_PREFIX_BANS
        );
        let usage = backend.usage();
        assert_eq!((usage.bans, usage.prefix_bans), (16, MAX_PREFIX_BANS));
        assert_eq!(usage.shared_prefix_bans, MAX_SHARED_PREFIX_BANS);
        for (subject, evicts) in [("12.0.0.0/23", "/25"), ("12.0.0.0/24", "/24")] {
            let done = backend
                .insert(&[entry(subject.into(), jail())])
                .expect("room");
            let evicted = done.evicted[0].subject.to_string();
            assert!(evicted.ends_with(evicts), "{evicted} for {subject}");
            let manual = entry(subject.replace("12", "13"), BanSource::Manual);
            let error = Error::from(backend.insert(&[manual]).expect_err("it is full"));
            assert_eq!(
                matches!(error, Error::PrefixBansFull(MAX_PREFIX_BANS)),
                evicts == "/25",
                "{error}"
            );
        }
    }

    /// The cap on prefix bans, of both families together: manual ones have room where jails
    /// have none.
    #[test]
    fn an_eighth_of_the_prefix_bans_is_kept_for_manual_ones() {
        let backend = DryRun::new(16, None);
        let nth = |n: usize| match n % 2 {
            0 => format!("11.{}.{}.0/25", n >> 8, n & 255),
            _ => format!("2a00:{n:x}::/48"),
        };
        let jail = |name: &str| BanSource::Jail(name.into());
        let shared: Vec<_> = (0..MAX_SHARED_PREFIX_BANS)
            .map(|n| entry(nth(n), jail("a")))
            .collect();
        assert_eq!(
            backend.insert(&shared).expect("room").new,
            MAX_SHARED_PREFIX_BANS
        );
        for prefix in ["12.0.0.0/25", "2b00::/48"] {
            let list = entry(prefix.into(), jail("b"));
            let error = Error::from(backend.insert(&[list]).expect_err("it is full"));
            assert!(
                matches!(error, Error::PrefixBanShareFull(MAX_SHARED_PREFIX_BANS)),
                "{error}"
            );
            assert!(error.to_string().contains("7168"), "{error}");
            let manual = entry(prefix.into(), BanSource::Manual);
            let done = backend.insert(&[manual]).expect("kept for it");
            assert_eq!((done.new, done.evicted.len()), (1, 0));
        }
    }
}

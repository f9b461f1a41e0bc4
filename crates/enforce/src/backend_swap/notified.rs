//! Bans that deny no packet ([`Action::Notify`](weir_core::Action::Notify)): kept in this
//! process's memory beside whatever backend is in force, so that they are listed, lifted and
//! end as others do while no table of the kernel's has them. With the cap and the eviction of
//! a backend, counted apart. The next daemon has them from the database.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard},
};

use weir_core::{BanSource, BanTarget, PortSet};

use crate::{
    Backend, BootNanos, Entry, InsertError, InsertSummary, Usage, desired_bans::DesiredBans,
};

/// See the module.
pub(super) struct NotifiedBans(Mutex<DesiredBans>);

impl NotifiedBans {
    /// None yet; at most `max_bans`, and `ipv4_length` as in [`crate::kernel::KernelConfig`].
    pub(super) fn new(max_bans: usize, ipv4_length: Option<u8>) -> Self {
        Self(Mutex::new(DesiredBans::new(max_bans, ipv4_length)))
    }

    fn bans(&self) -> MutexGuard<'_, DesiredBans> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Is nobody here, nor any of these entries for here?
    pub(super) fn has_no_part_in(&self, entries: &[Entry]) -> bool {
        entries
            .iter()
            .all(|entry| entry.policy.action.denies_packets())
            && self.bans().is_empty()
    }

    /// Puts those entries in that only notify, and has `deny` put the others into force. A
    /// ban of the same name is in one of the two places only: behind `deny`, and from
    /// `before`, it is taken out of the other.
    pub(super) fn insert_beside(
        &self,
        entries: &[Entry],
        before: &dyn Backend,
        deny: impl FnOnce(&[Entry]) -> Result<InsertSummary, InsertError>,
    ) -> Result<InsertSummary, InsertError> {
        let only_notifies = |entry: &Entry| !entry.policy.action.denies_packets();
        let (notified, denying): (Vec<_>, Vec<_>) =
            entries.iter().cloned().partition(only_notifies);
        let mut done = deny(&denying)?;
        for entry in &denying {
            let policy = &entry.policy;
            self.remove(entry.subject, Some(&policy.producer), Some(&policy.scope));
        }
        let outcome = notified.iter().try_for_each(|entry| {
            self.bans().insert(entry)?.count_in(&mut done);
            let policy = &entry.policy;
            before.remove(entry.subject, Some(&policy.producer), Some(&policy.scope))?;
            Ok(())
        });
        done.with(outcome)
    }

    /// Removes bans as [`Backend::remove`] does.
    pub(super) fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Vec<Entry> {
        self.bans().remove(subject, producer, scope)
    }

    /// The entries that are not over.
    pub(super) fn entries(&self) -> Vec<Entry> {
        self.bans().live()
    }

    /// The entries that are not over and whose subject holds the address.
    pub(super) fn entries_for(&self, addr: IpAddr) -> Vec<Entry> {
        self.bans().live_for(addr)
    }

    /// Adds how many each producer has.
    pub(super) fn count_in(&self, bans: &mut BTreeMap<BanSource, u64>) {
        for (producer, count) in self.bans().by_producer(BootNanos::now()) {
            *bans.entry(producer.clone()).or_default() += count;
        }
    }

    /// `usage`, with what is here.
    pub(super) fn counted_in(&self, usage: Usage) -> Usage {
        let own = self.bans().usage();
        Usage {
            notified: own.bans + own.prefix_bans,
            evicted: usage.evicted + own.evicted,
            ..usage
        }
    }

    /// Forgets what has ended.
    pub(super) fn drop_over(&self) {
        self.bans().drop_over(BootNanos::now());
    }

    /// The cap from now on.
    pub(super) fn set_max_bans(&self, max_bans: usize) {
        self.bans().set_max_bans(max_bans);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_core::Action;

    use super::*;
    use crate::{DryRun, Error, Expiry, Policy};

    fn entry(subject: &str, jail: &str, action: Action, expiry: Expiry) -> Entry {
        Entry {
            subject: subject.parse().unwrap(),
            policy: Arc::new(Policy {
                producer: BanSource::Jail(jail.into()),
                scope: PortSet::all(),
                action,
            }),
            expiry,
        }
    }

    fn later(seconds: u64) -> Expiry {
        Expiry::At(BootNanos((1 << 50) + seconds * 1_000_000_000))
    }

    /// The kernel is not told of them, and a change of the action moves a ban over.
    #[test]
    fn a_ban_is_in_one_of_the_two_places() {
        for subject in ["192.0.2.7", "2001:db8::7", "2001:db8:1::/48"] {
            let (kernel, beside) = (DryRun::new(10, None), NotifiedBans::new(10, None));
            let insert = |action| {
                let entries = [
                    entry(subject, "mails", action, later(0)),
                    entry(subject, "drops", Action::Drop, later(0)),
                ];
                let inserted =
                    beside.insert_beside(&entries, &kernel, |denying| kernel.insert(denying));
                inserted.unwrap()
            };
            let actions = |entries: Vec<Entry>| -> Vec<_> {
                entries.iter().map(|entry| entry.policy.action).collect()
            };
            assert_eq!(insert(Action::Notify).new, 2);
            for _ in 0..2 {
                assert_eq!(actions(kernel.entries().unwrap()), [Action::Drop]);
                assert_eq!(actions(beside.entries()), [Action::Notify]);
                let mut by_producer = kernel.bans_by_producer().unwrap();
                beside.count_in(&mut by_producer);
                assert_eq!(by_producer.values().collect::<Vec<_>>(), [&1, &1]);
                let usage = beside.counted_in(kernel.usage());
                assert_eq!((usage.bans + usage.prefix_bans, usage.notified), (1, 1));

                insert(Action::Reject);
                assert_eq!(actions(beside.entries()), []);
                assert_eq!(kernel.entries().unwrap().len(), 2);
                insert(Action::Notify);
            }
            let addr = subject.parse::<BanTarget>().unwrap().prefix().addr();
            assert_eq!(beside.entries_for(addr).len(), 1);
            let lifted = beside.remove(subject.parse().unwrap(), None, None);
            assert_eq!(actions(lifted), [Action::Notify]);
            assert!(beside.has_no_part_in(&[]));
        }
    }

    #[test]
    fn at_the_cap_the_oldest_of_the_same_jail_goes() {
        let (kernel, beside) = (DryRun::new(2, None), NotifiedBans::new(2, None));
        let notify = |n: u64| entry(&format!("192.0.2.{n}"), "mails", Action::Notify, later(n));
        let insert = |entries: &[Entry]| {
            beside.insert_beside(entries, &kernel, |denying| kernel.insert(denying))
        };
        let done = insert(&[notify(1), notify(2), notify(3)]).unwrap();
        assert_eq!(done.evicted, [notify(1)]);
        let usage = beside.counted_in(kernel.usage());
        assert_eq!((usage.notified, usage.evicted), (2, 1));
        // Another jail's make no room, and those of the table have their own.
        let other = entry("192.0.2.9", "posts", Action::Notify, later(9));
        let full = insert(std::slice::from_ref(&other)).unwrap_err();
        assert!(matches!(full.error, Error::Full(2)), "{full}");
        let denies = |n| {
            entry(
                &format!("192.0.2.{n}"),
                "drops",
                Action::Drop,
                Expiry::Never,
            )
        };
        assert_eq!(insert(&[denies(1), denies(2)]).unwrap().new, 2);
        beside.set_max_bans(3);
        assert_eq!(insert(&[other]).unwrap().new, 1);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (kernel, beside) = (DryRun::new(2, None), NotifiedBans::new(2, None));
        let over = entry(
            "192.0.2.1",
            "mails",
            Action::Notify,
            Expiry::At(BootNanos(1)),
        );
        let done = beside.insert_beside(&[over], &kernel, |denying| kernel.insert(denying));
        assert_eq!(done.unwrap().new, 1);
        assert_eq!(beside.entries(), []);
        let mut by_producer = BTreeMap::new();
        beside.count_in(&mut by_producer);
        assert_eq!(by_producer.values().sum::<u64>(), 0);
        beside.drop_over();
        assert!(beside.has_no_part_in(&[]));
    }
}

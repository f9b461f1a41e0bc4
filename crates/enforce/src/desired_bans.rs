//! The desired state in memory: which bans there shall be, with the cap and the
//! eviction that [`crate::Backend::insert`] promises. For backends whose place
//! in the kernel cannot be read cheaply; how it gets there is theirs.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use weir_bpf::prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS};
use weir_core::{BanSource, BanTarget, PortSet, Prefix};

use crate::{
    backend::{InsertSummary, Usage},
    entry::{BootNanos, Entry, Expiry, Policy},
    error::Error,
};

/// Ended bans are kept this long: where the kernel rounds up, it holds them
/// a little longer than the clock says.
const GRACE: u64 = 1_000_000_000;

/// Bans of one subject at most, where the kernel looks at one after the other.
const MAX_HELD: usize = 64;

/// Subjects whose bans the kernel is to be told of; with each: did it hold any
/// against them before?
pub(crate) type Pending = HashMap<BanTarget, bool>;
/// One ban of a subject.
pub(crate) type ActiveBan = (Arc<Policy>, Expiry);
/// Bans by their end, of one producer.
type Ends = BTreeSet<(Expiry, BanTarget, Arc<Policy>)>;

/// See the module.
pub(crate) struct DesiredBans {
    max_bans: usize,
    ipv4_length: Option<u8>,
    bans: HashMap<BanTarget, Vec<ActiveBan>>,
    /// Ends of the bans in the ban table, and of those of prefixes: each with its cap.
    ends: [HashMap<BanSource, Ends>; 2],
    counts: [usize; 2],
    /// Subjects by family and length.
    lengths: [[usize; 129]; 2],
    evicted: u64,
}

/// The effect of [`DesiredBans::insert`].
pub(crate) struct InsertOutcome {
    pub(crate) replaced: bool,
    pub(crate) evicted: Option<Entry>,
}

impl InsertOutcome {
    /// Adds it to what was done before.
    pub(crate) fn count_in(self, done: &mut InsertSummary) {
        match self.replaced {
            true => done.replaced += 1,
            false => done.new += 1,
        }
        done.evicted.extend(self.evicted);
    }
}

impl DesiredBans {
    /// `ipv4_length` as in [`crate::kernel::KernelConfig`].
    pub(crate) fn new(max_bans: usize, ipv4_length: Option<u8>) -> Self {
        Self {
            max_bans,
            ipv4_length,
            bans: HashMap::new(),
            ends: Default::default(),
            counts: [0; 2],
            lengths: [[0; 129]; 2],
            evicted: 0,
        }
    }

    pub(crate) fn set_max_bans(&mut self, max_bans: usize) {
        self.max_bans = max_bans;
    }

    /// 0 of [`Self::ends`] for those of the table, 1 for those of prefixes.
    fn table(&self, subject: BanTarget) -> usize {
        let prefix = subject.prefix();
        let fits = match prefix.addr() {
            IpAddr::V4(_) => self.ipv4_length == Some(prefix.bits()),
            IpAddr::V6(_) => prefix.bits() == 64,
        };
        usize::from(!prefix.is_host() && !fits)
    }

    /// Puts an entry in; the oldest-expiring of its producer goes when there is
    /// no room.
    pub(crate) fn insert(&mut self, entry: &Entry) -> Result<InsertOutcome, Error> {
        let table = self.table(entry.subject);
        if let Some((policy, expiry)) = self.replaced_by(entry).cloned() {
            self.take(entry.subject, &policy, expiry);
            self.add(table, entry);
            return Ok(InsertOutcome {
                replaced: true,
                evicted: None,
            });
        }
        let producer = &entry.policy.producer;
        let shares = table == 1 && *producer != BanSource::Manual;
        if self.is_full(table, shares) {
            self.drop_over(BootNanos::now());
        }
        let mut evicted = None;
        if self.is_full(table, shares) {
            let (expiry, subject, policy) = self.ends[table]
                .get(producer)
                .filter(|_| *producer != BanSource::Manual)
                .and_then(BTreeSet::first)
                .cloned()
                .ok_or(match table {
                    0 => Error::Full(self.max_bans),
                    _ if shares => Error::PrefixBanShareFull(MAX_SHARED_PREFIX_BANS),
                    _ => Error::PrefixBansFull(MAX_PREFIX_BANS),
                })?;
            self.take(subject, &policy, expiry);
            self.evicted += 1;
            evicted = Some(Entry {
                subject,
                policy,
                expiry,
            });
        }
        self.add(table, entry);
        Ok(InsertOutcome {
            replaced: false,
            evicted,
        })
    }

    /// Wide bans that are not manual.
    fn shared_prefix_bans(&self) -> usize {
        let manual = self.ends[1].get(&BanSource::Manual);
        self.counts[1] - manual.map_or(0, BTreeSet::len)
    }

    /// Is there no place for one more; of those that share what is not kept for
    /// manual ones, if it is one of them?
    fn is_full(&self, table: usize, shares: bool) -> bool {
        let cap = [self.max_bans, MAX_PREFIX_BANS][table];
        self.counts[table] >= cap || (shares && self.shared_prefix_bans() >= MAX_SHARED_PREFIX_BANS)
    }

    /// The ban whose place an entry takes: of the same policy, or its opposite.
    fn replaced_by(&self, entry: &Entry) -> Option<&ActiveBan> {
        let opposite = entry.policy.with_opposite_action();
        let mut held = self.held(entry.subject).iter();
        held.find(|(policy, _)| *policy == entry.policy || **policy == opposite)
    }

    fn is_crowded(&self, entry: &Entry) -> bool {
        self.held(entry.subject).len() >= MAX_HELD && self.replaced_by(entry).is_none()
    }

    /// [`Self::insert`] of all, up to the first that does not go in, with at
    /// most [`MAX_HELD`] bans of a subject.
    pub(crate) fn insert_pending(
        &mut self,
        entries: &[Entry],
        pending: &mut Pending,
    ) -> (InsertSummary, Result<(), Error>) {
        let mut done = InsertSummary::default();
        for entry in entries {
            if !entry.policy.action.denies_packets() {
                return (done, Err(Error::OnlyNotifies(entry.subject)));
            }
            if self.is_crowded(entry) {
                self.drop_over(BootNanos::now());
            }
            if self.is_crowded(entry) {
                return (done, Err(Error::Crowded(entry.subject)));
            }
            let known = !self.held(entry.subject).is_empty();
            match self.insert(entry) {
                Ok(put) => {
                    pending.entry(entry.subject).or_insert(known);
                    if let Some(evicted) = &put.evicted {
                        pending.entry(evicted.subject).or_insert(true);
                    }
                    put.count_in(&mut done);
                }
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// [`Self::remove`], told to the kernel like an insertion.
    pub(crate) fn remove_pending(
        &mut self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
        pending: &mut Pending,
    ) -> Vec<Entry> {
        let lifted = self.remove(subject, producer, scope);
        if !lifted.is_empty() {
            pending.insert(subject, true);
        }
        lifted
    }

    fn add(&mut self, table: usize, entry: &Entry) {
        let (subject, policy, expiry) = (entry.subject, entry.policy.clone(), entry.expiry);
        let held = self.bans.entry(subject).or_default();
        if held.is_empty() {
            let prefix = subject.prefix();
            self.lengths[usize::from(prefix.addr().is_ipv6())][usize::from(prefix.bits())] += 1;
        }
        held.push((policy.clone(), expiry));
        self.counts[table] += 1;
        let ends = &mut self.ends[table];
        if !ends.contains_key(&policy.producer) {
            ends.insert(policy.producer.clone(), Ends::new());
        }
        if let Some(ends) = ends.get_mut(&policy.producer) {
            ends.insert((expiry, subject, policy));
        }
    }

    fn take(&mut self, subject: BanTarget, policy: &Arc<Policy>, expiry: Expiry) {
        let table = self.table(subject);
        if let Some(held) = self.bans.get_mut(&subject) {
            held.retain(|(other, _)| other != policy);
            if held.is_empty() {
                self.bans.remove(&subject);
                let prefix = subject.prefix();
                self.lengths[usize::from(prefix.addr().is_ipv6())][usize::from(prefix.bits())] -= 1;
            }
        }
        self.counts[table] -= 1;
        if let Some(ends) = self.ends[table].get_mut(&policy.producer) {
            ends.remove(&(expiry, subject, policy.clone()));
        }
    }

    /// Removes bans as [`crate::Backend::remove`] does.
    pub(crate) fn remove(
        &mut self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Vec<Entry> {
        let wanted: Vec<_> = self
            .held(subject)
            .iter()
            .filter(|(policy, _)| {
                producer.is_none_or(|p| *p == policy.producer)
                    && scope.is_none_or(|s| *s == policy.scope)
            })
            .cloned()
            .collect();
        let now = BootNanos::now();
        for (policy, expiry) in &wanted {
            self.take(subject, policy, *expiry);
        }
        wanted
            .into_iter()
            .filter(|(_, expiry)| !expiry.is_over(now))
            .map(|(policy, expiry)| Entry {
                subject,
                policy,
                expiry,
            })
            .collect()
    }

    /// The bans of exactly this subject, ended ones perhaps among them.
    pub(crate) fn held(&self, subject: BanTarget) -> &[ActiveBan] {
        self.bans.get(&subject).map_or(&[], Vec::as_slice)
    }

    /// All subjects with what is held against them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (BanTarget, &[ActiveBan])> {
        self.bans
            .iter()
            .map(|(subject, held)| (*subject, held.as_slice()))
    }

    /// The entries that are not over.
    pub(crate) fn live(&self) -> Vec<Entry> {
        live(self.all())
    }

    /// The entries that are not over and whose subject holds the address.
    pub(crate) fn live_for(&self, addr: IpAddr) -> Vec<Entry> {
        let addr = addr.to_canonical();
        let lengths = &self.lengths[usize::from(addr.is_ipv6())];
        let holding = (0u8..).zip(lengths).filter(|(_, count)| **count > 0);
        let subjects = holding
            .filter_map(|(len, _)| BanTarget::new(Prefix::new(addr, len)?).ok())
            .map(|subject| (subject, self.held(subject)));
        live(subjects)
    }

    /// Is nothing held, ended bans included?
    pub(crate) fn is_empty(&self) -> bool {
        self.bans.is_empty()
    }

    /// How many bans that are not over each producer has.
    pub(crate) fn by_producer(&self, now: BootNanos) -> impl Iterator<Item = (&BanSource, u64)> {
        let tables = self.ends.iter().flatten();
        let counts = tables.map(move |(producer, ends)| {
            let over = ends.iter().take_while(|(end, ..)| end.is_over(now)).count();
            (producer, (ends.len() - over) as u64)
        });
        counts.filter(|(_, count)| *count > 0)
    }

    /// Forgets what has ended.
    pub(crate) fn drop_over(&mut self, now: BootNanos) {
        let before = BootNanos(now.0.saturating_sub(GRACE));
        for table in 0..2 {
            let over: Vec<_> = self.ends[table]
                .values()
                .flat_map(|ends| ends.iter().take_while(|(end, ..)| end.is_over(before)))
                .cloned()
                .collect();
            for (expiry, subject, policy) in over {
                self.take(subject, &policy, expiry);
            }
            self.ends[table].retain(|_, ends| !ends.is_empty());
        }
    }

    /// Entries and caps; those of the kernel are the backend's to add.
    pub(crate) fn usage(&self) -> Usage {
        // Ended ones go within a second.
        Usage {
            bans: self.counts[0],
            max_bans: self.max_bans,
            prefix_bans: self.counts[1],
            max_prefix_bans: MAX_PREFIX_BANS,
            shared_prefix_bans: self.shared_prefix_bans(),
            max_shared_prefix_bans: MAX_SHARED_PREFIX_BANS,
            evicted: self.evicted,
            ..Usage::default()
        }
    }
}

fn live<'a>(subjects: impl Iterator<Item = (BanTarget, &'a [ActiveBan])>) -> Vec<Entry> {
    let now = BootNanos::now();
    subjects
        .flat_map(|(subject, held)| held.iter().map(move |held| (subject, held)))
        .filter(|(_, (_, expiry))| !expiry.is_over(now))
        .map(|(subject, (policy, expiry))| Entry {
            subject,
            policy: policy.clone(),
            expiry: *expiry,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use weir_core::Action;

    use super::*;

    fn ban(subject: &str, jail: usize, action: Action) -> Entry {
        Entry {
            subject: subject.parse().expect("a subject"),
            policy: Arc::new(Policy {
                producer: BanSource::Jail(format!("jail{jail}")),
                scope: PortSet::all(),
                action,
            }),
            expiry: Expiry::Never,
        }
    }

    #[test]
    fn a_subject_has_as_many_bans_as_fit_and_any_may_be_replaced() {
        for subject in ["192.0.2.7", "2001:db8::7"] {
            let (mut bans, mut pending) = (DesiredBans::new(1000, None), Pending::new());
            let all: Vec<_> = (0..MAX_HELD)
                .map(|n| ban(subject, n, Action::Drop))
                .collect();
            let (done, outcome) = bans.insert_pending(&all, &mut pending);
            outcome.expect("room");
            assert_eq!((done.new, done.replaced), (MAX_HELD, 0));
            // The kernel held nothing against it when the first one came.
            assert!(!pending[&all[0].subject]);

            // With the other action: one in the place of one.
            let opposite = ban(subject, 0, Action::Reject);
            let (done, outcome) =
                bans.insert_pending(std::slice::from_ref(&opposite), &mut pending);
            outcome.expect("it takes a place that is there");
            assert_eq!((done.new, done.replaced), (0, 1));
            assert!(
                bans.held(opposite.subject)
                    .iter()
                    .any(|(p, _)| *p == opposite.policy)
            );

            let more = [
                ban("198.51.100.1", 0, Action::Drop),
                ban(subject, MAX_HELD, Action::Drop),
            ];
            let (done, outcome) = bans.insert_pending(&more, &mut pending);
            assert!(matches!(outcome, Err(Error::Crowded(s)) if s == opposite.subject));
            assert_eq!(done.new, 1, "those before it are in");
            assert_eq!(bans.usage().bans, MAX_HELD + 1);
        }
    }

    #[test]
    fn the_kernel_is_told_of_no_ban_that_only_notifies() {
        let (mut bans, mut pending) = (DesiredBans::new(10, None), Pending::new());
        let notifies = ban("192.0.2.1", 0, Action::Notify);
        let (done, outcome) = bans.insert_pending(&[notifies], &mut pending);
        assert!(
            matches!(outcome, Err(Error::OnlyNotifies(_))),
            "{outcome:?}"
        );
        assert!(done.new == 0 && pending.is_empty() && bans.is_empty());
    }

    #[test]
    fn the_kernel_is_told_of_who_was_evicted_or_lifted() {
        let (mut bans, mut pending) = (DesiredBans::new(1, None), Pending::new());
        let (old, new) = (
            ban("192.0.2.1", 0, Action::Drop),
            ban("192.0.2.2", 0, Action::Drop),
        );
        bans.insert(&old).map(|_| ()).expect("room");
        let (done, outcome) = bans.insert_pending(std::slice::from_ref(&new), &mut pending);
        outcome.expect("the old one goes");
        assert_eq!(done.evicted, std::slice::from_ref(&old));
        assert_eq!(
            pending,
            HashMap::from([(old.subject, true), (new.subject, false)])
        );

        pending.clear();
        assert!(
            bans.remove_pending(old.subject, None, None, &mut pending)
                .is_empty()
        );
        assert!(pending.is_empty());
        assert_eq!(
            bans.remove_pending(new.subject, None, None, &mut pending),
            std::slice::from_ref(&new)
        );
        assert_eq!(pending, HashMap::from([(new.subject, true)]));
    }
}

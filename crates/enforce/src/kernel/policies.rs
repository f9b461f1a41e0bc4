//! Numbers for policies: the kernel's entries have 14 bits for one. When all
//! are given out, those that nothing refers to any more are given out anew.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::Ordering},
};

use weir_bpf::{
    Generation, rcu, small_maps,
    tables::{MAX_POLICIES, POLICY_NUMBER, POLICY_REJECT, POLICY_SCOPED},
};
use weir_core::{Action, BanSource};

use super::{Kernel, WorkCounts, maintenance::Maintenance};
use crate::{Error, Policy};

/// Both directions of the table that the kernel holds.
#[derive(Default)]
pub(super) struct Policies {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    numbers: HashMap<Arc<Policy>, u16>,
    /// Policies by number − 1; with those of free numbers, which the kernel's table still
    /// has.
    policies: Vec<Option<Arc<Policy>>>,
    /// Numbers that nothing refers to, and no packet on its way does.
    free: Vec<u16>,
}

impl Policies {
    /// Reads the policies of an adopted generation.
    pub(super) fn read(generation: &Generation) -> Result<Self, Error> {
        let mut known = Known::default();
        for (number, scope, action, producer) in small_maps::read_policies(&generation.policies)? {
            let policy = Arc::new(Policy {
                producer: producer.parse().unwrap_or(BanSource::Manual),
                scope,
                action,
            });
            let index = number as usize - 1;
            known.policies.resize(index + 1, None);
            let stored = entry_number(number as u16, &policy);
            known.numbers.insert(policy.clone(), stored);
            known.policies[index] = Some(policy);
        }
        Ok(Self {
            known: RwLock::new(known),
        })
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().expect("no holder of this lock panics")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().expect("no holder of this lock panics")
    }

    /// The number to store in an entry; the kernel knows it before this
    /// returns. Whoever asks holds `tables`, or the maintenance lock, until the
    /// number is stored: else it may be given to another policy meanwhile.
    ///
    /// # Errors
    /// [`Error::Policies`] when none is left; see [`Kernel::free_policies`].
    pub(super) fn number(
        &self,
        policy: &Arc<Policy>,
        generation: &Generation,
    ) -> Result<u16, Error> {
        if let Some(number) = self.known().numbers.get(policy) {
            return Ok(*number);
        }
        let mut known = self.write();
        if let Some(number) = known.numbers.get(policy) {
            return Ok(*number);
        }
        let number = known
            .free_number(policy)
            .ok_or(Error::Policies(MAX_POLICIES as usize - 1))?;
        small_maps::write_policy(
            &generation.policies,
            number.into(),
            &policy.scope,
            policy.action,
            &policy.producer.to_string(),
        )?;
        known.free.retain(|free| *free != number);
        let index = usize::from(number) - 1;
        if known.policies.len() <= index {
            known.policies.resize(index + 1, None);
        }
        let stored = entry_number(number, policy);
        known.policies[index] = Some(policy.clone());
        known.numbers.insert(policy.clone(), stored);
        Ok(stored)
    }

    /// The number under which entries that these replace are stored, if any
    /// are.
    pub(super) fn opposite_action(&self, policy: &Policy) -> Option<u16> {
        self.known()
            .numbers
            .get(&policy.with_opposite_action())
            .copied()
    }

    /// Does any of them ask for an answer?
    pub(super) fn any_rejects(&self) -> bool {
        let known = self.known();
        known.numbers.keys().any(|p| p.action == Action::Reject)
    }

    /// The policy behind an entry's number.
    pub(super) fn policy(&self, stored: u16) -> Option<Arc<Policy>> {
        let index = usize::from(stored & POLICY_NUMBER).checked_sub(1)?;
        self.known().policies.get(index).cloned().flatten()
    }

    /// Numbers whose policy satisfies `which`.
    pub(super) fn numbers(&self, which: impl Fn(&Policy) -> bool) -> Vec<u16> {
        self.known()
            .numbers
            .iter()
            .filter(|(p, _)| which(p))
            .map(|(_, n)| *n)
            .collect()
    }
}

impl Known {
    /// A number for a policy that has none: the one it had if that is free, so
    /// that the kernel's table never has a policy twice.
    fn free_number(&self, policy: &Policy) -> Option<u16> {
        let had = |number: &&u16| {
            let there = &self.policies[usize::from(**number) - 1];
            there.as_deref() == Some(policy)
        };
        let next = self.policies.len() + 1;
        self.free
            .iter()
            .find(had)
            .copied()
            .or_else(|| (next < MAX_POLICIES as usize).then_some(next as u16))
            .or_else(|| self.free.last().copied())
    }
}

impl Kernel {
    /// Makes numbers that nothing refers to available again, when there are no
    /// others; how many are. Nobody inserts between the look and the decision,
    /// and no packet is on its way with one of them once this returns.
    pub(super) fn free_policies(&self, maintenance: &mut Maintenance<'_>) -> usize {
        let known = self.policies.known();
        if !known.free.is_empty() {
            return known.free.len();
        }
        drop(known);
        if maintenance.no_number && !self.numbers_left.load(Ordering::Relaxed) {
            return 0; // as at the last scan
        }
        WorkCounts::count(&self.work.policy_scans);
        let freed = {
            // Alone: who inserts holds its number under this lock.
            let tables = self.tables_alone(maintenance);
            self.numbers_left.store(false, Ordering::Relaxed);
            let mut used: HashSet<u16> = HashSet::new();
            for generation in tables.generations() {
                generation.table.for_each(0, |slot| {
                    used.insert(slot.policy & POLICY_NUMBER);
                });
                used.extend(generation.classes.policies());
            }
            {
                let prefix_bans = tables.prefix_bans();
                if !prefix_bans.is_written() {
                    // The kernel has words of bans that are lifted.
                    self.numbers_left.store(true, Ordering::Relaxed);
                    return 0;
                }
                used.extend(prefix_bans.iter().map(|ban| ban.policy & POLICY_NUMBER));
            }
            let mut known = self.policies.write();
            let mut freed = Vec::new();
            known.numbers.retain(|_, stored| {
                let number = *stored & POLICY_NUMBER;
                let keep = used.contains(&number);
                if !keep {
                    freed.push(number);
                }
                keep
            });
            freed
        };
        // Victims are known by their numbers.
        maintenance.eviction = Default::default();
        maintenance.no_number = freed.is_empty();
        if freed.is_empty() {
            return 0;
        }
        rcu::wait_for_packets();
        let count = freed.len();
        self.policies.write().free.extend(freed);
        count
    }
}

fn entry_number(number: u16, policy: &Policy) -> u16 {
    let scoped = match policy.scope.is_all() {
        true => 0,
        false => POLICY_SCOPED,
    };
    let reject = match policy.action {
        // One that only notifies is never given one.
        Action::Drop | Action::Notify => 0,
        Action::Reject => POLICY_REJECT,
    };
    number | scoped | reject
}

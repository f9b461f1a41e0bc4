//! Numbers for policies: the kernel's entries have 16 bits for one.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock, RwLockReadGuard},
};

use weir_core::Action;
use weir_kernel::{
    Generation,
    generation::{MAX_POLICIES, POLICY_NUMBER, POLICY_REJECT, POLICY_SCOPED},
    record,
};

use crate::{Error, Policy};

/// Both directions of the table that the kernel holds.
#[derive(Default)]
pub(super) struct Policies {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    numbers: HashMap<Arc<Policy>, u16>,
    /// By number − 1.
    policies: Vec<Arc<Policy>>,
}

impl Policies {
    /// What an adopted generation has.
    pub(super) fn read(generation: &Generation) -> Result<Self, Error> {
        let mut known = Known::default();
        for (number, scope, action, producer) in record::read_policies(&generation.policies)? {
            let producer = producer.parse().unwrap_or(weir_core::Producer::Manual);
            let policy = Arc::new(Policy {
                producer,
                scope,
                action,
            });
            debug_assert_eq!(number as usize, known.policies.len() + 1);
            known
                .numbers
                .insert(policy.clone(), entry_number(number as u16, &policy));
            known.policies.push(policy);
        }
        Ok(Self {
            known: RwLock::new(known),
        })
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().expect("no holder of this lock panics")
    }

    /// The number to store in an entry; the kernel knows it before this returns.
    pub(super) fn number(
        &self,
        policy: &Arc<Policy>,
        generation: &Generation,
    ) -> Result<u16, Error> {
        if let Some(number) = self.known().numbers.get(policy) {
            return Ok(*number);
        }
        let mut known = self.known.write().expect("no holder of this lock panics");
        if let Some(number) = known.numbers.get(policy) {
            return Ok(*number);
        }
        let number = known.policies.len() as u32 + 1;
        if number >= MAX_POLICIES {
            return Err(Error::Policies(MAX_POLICIES as usize - 1));
        }
        record::write_policy(
            &generation.policies,
            number,
            &policy.scope,
            policy.action,
            &policy.producer.to_string(),
        )?;
        let stored = entry_number(number as u16, policy);
        known.policies.push(policy.clone());
        known.numbers.insert(policy.clone(), stored);
        Ok(stored)
    }

    /// The number under which entries that these replace are stored, if any
    /// ever were.
    pub(super) fn twin(&self, policy: &Policy) -> Option<u16> {
        self.known().numbers.get(&policy.twin()).copied()
    }

    /// Does any of them ask for an answer?
    pub(super) fn any_rejects(&self) -> bool {
        let known = self.known();
        known.policies.iter().any(|p| p.action == Action::Reject)
    }

    /// The policy behind an entry's number.
    pub(super) fn policy(&self, stored: u16) -> Option<Arc<Policy>> {
        let index = usize::from(stored & POLICY_NUMBER).checked_sub(1)?;
        self.known().policies.get(index).cloned()
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

fn entry_number(number: u16, policy: &Policy) -> u16 {
    let scoped = match policy.scope.is_all() {
        true => 0,
        false => POLICY_SCOPED,
    };
    let reject = match policy.action {
        Action::Drop => 0,
        Action::Reject => POLICY_REJECT,
    };
    number | scoped | reject
}

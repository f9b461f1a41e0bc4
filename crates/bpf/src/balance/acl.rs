//! The access lists of pools in the kernel: the networks of all of them in one trie, by
//! the number of the list. A list that changes is written under another number, which its
//! services get when it is whole; the old one goes then.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::balance::acl::{Access, Exceptions};

use super::{MAX_POOLS, PoolRules};
use crate::{
    abi,
    error::{Context, Error, Result},
};

/// Networks of the access lists of all pools together.
pub const MAX_NETWORKS: usize = abi::BALANCE_ACL_NETWORKS as usize / 2;

/// Access lists that this process has written, by pool.
#[derive(Default)]
pub(super) struct Written(Mutex<State>);

#[derive(Default)]
struct State {
    by_pool: BTreeMap<usize, (u32, Arc<Exceptions>)>,
    /// There may be networks of numbers that no pool has.
    has_others: bool,
}

impl Written {
    /// Has the kernel know these lists; `used`: those of the services as they are.
    /// Returns for each pool what its services say of it.
    pub(super) fn write(
        &self,
        map: &MapHandle,
        pools: &[PoolRules],
        used: &[u32],
    ) -> Result<Vec<u32>> {
        let acls = || pools.iter().map(|pool| pool.acl.as_ref());
        let wanted: usize = acls().flatten().map(|acl| acl.len()).sum();
        if wanted > MAX_NETWORKS {
            return Err(Error::refused(
                "tell the kernel who may use the pools",
                format!(
                    "acl of all pools together are {wanted} networks: at most {MAX_NETWORKS}; name fewer countries, or fewer and shorter lists"
                ),
            ));
        }
        let mut state = self.0.lock().expect("no holder of this lock panics");
        let mut words = Vec::new();
        let mut is_clear = false;
        for (pool, acl) in acls().enumerate() {
            let Some(acl) = acl else {
                words.push(0);
                continue;
            };
            let known = state.by_pool.get(&pool);
            if let Some((word, _)) = known.filter(|(word, it)| it == acl && used.contains(word)) {
                words.push(*word);
                continue;
            }
            state.has_others = true;
            if !is_clear {
                // What a write that failed, or another process, has left.
                keep(map, used)?;
                is_clear = true;
            }
            let is_used = |number: &u32| used.iter().any(|word| number_of(*word) == *number);
            let mut numbers = (pool as u32 + 1..).step_by(MAX_POOLS);
            let number = numbers.find(|number| !is_used(number));
            let number = number.expect("fewer numbers are in use than there are");
            fill(map, number, acl)?;
            let word = match acl.default {
                Access::Allow => number,
                Access::Deny => number | abi::BALANCE_ACL_DENY,
            };
            state.by_pool.insert(pool, (word, acl.clone()));
            words.push(word);
        }
        let before = state.by_pool.len();
        let has = |pool: usize| words.get(pool).is_some_and(|word| *word != 0);
        state.by_pool.retain(|pool, _| has(*pool));
        state.has_others |= state.by_pool.len() != before;
        state.has_others |= used.iter().any(|word| *word != 0 && !words.contains(word));
        Ok(words)
    }

    /// The services are told: networks of other lists go.
    pub(super) fn forget_others(&self, map: &MapHandle, words: &[u32]) -> Result<()> {
        let mut state = self.0.lock().expect("no holder of this lock panics");
        if state.has_others {
            keep(map, words)?;
            state.has_others = false;
        }
        Ok(())
    }
}

fn number_of(word: u32) -> u32 {
    word & !abi::BALANCE_ACL_DENY
}

/// Takes out the networks of all lists but these.
fn keep(map: &MapHandle, words: &[u32]) -> Result<()> {
    let is_kept = |key: &[u8]| {
        let number = key.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let number = number.map(u32::from_ne_bytes).unwrap_or(0) & !abi::BALANCE_ACL_V6;
        words.iter().any(|word| number_of(*word) == number)
    };
    let gone: Vec<_> = map.keys().filter(|key| !is_kept(key)).collect();
    for key in gone {
        map.delete(&key)
            .context(|| "take back who may use a pool".into())?;
    }
    Ok(())
}

/// Writes the networks of a list that no service has.
fn fill(map: &MapHandle, number: u32, acl: &Exceptions) -> Result<()> {
    let v4 = acl.v4.iter().map(|(first, len)| {
        let addr = std::net::Ipv4Addr::from_bits(*first).to_ipv6_mapped();
        key(number, addr.octets(), 96 + u32::from(*len))
    });
    let v6 = acl.v6.iter().map(|(first, len)| {
        let number = number | abi::BALANCE_ACL_V6;
        key(number, first.to_be_bytes(), u32::from(*len))
    });
    for key in v4.chain(v6) {
        map.update(&key, &[1], MapFlags::ANY)
            .context(|| "tell the kernel who may use a pool".into())?;
    }
    Ok(())
}

/// `struct balance_acl_key` of `bpf/balance/acl.h`.
fn key(number: u32, addr: [u8; 16], bits: u32) -> [u8; 24] {
    let mut key = [0; 24];
    key[..4].copy_from_slice(&(32 + bits).to_ne_bytes());
    key[4..8].copy_from_slice(&number.to_ne_bytes());
    key[8..].copy_from_slice(&addr);
    key
}

//! IPv4 hosts in a table of one word an entry: half of what an entry with its
//! whole key takes, so twice as many are in cache (design: `bpf/abi/ban.h`).
//!
//! A slot is free (0) or in force: one compare-exchange publishes an entry,
//! another lifts it, and a reader sees either. Any thread may do both.

use std::{os::fd::AsFd, sync::atomic::Ordering};

use super::{Key, NEVER, Slot};
use crate::{
    abi::{
        BUCKETS_PER_PAGE, POLICY_NUMBER, V4_EXPIRY_AT, V4_NEVER, V4_POLICIES, V4_POLICY_AT,
        V4_REJECT_BIT, V4_SAME, V4_SECOND, V4_SLOTS, V4_TAG, V4_USED,
    },
    error::Result,
    memory::Words,
};

const SLOTS: usize = V4_SLOTS as usize;
/// An entry goes to its first bucket while that has so many free slots: there the packet
/// path looks first, and finds nine of ten at three quarters full. Of all, one in 3,000
/// then has no room in either bucket (with one in place of three, one in 130).
const PREFERRED: usize = 3;
/// What of an entry says whose it is.
const SAME: u64 = V4_SAME as u64;
/// The bits of a policy above its number: those of an entry as the packet path
/// knows them, and where they stand in a word here.
const FLAGS: u32 = POLICY_NUMBER.count_ones() - V4_REJECT_BIT;
const EXPIRY: u64 = u64::MAX << V4_EXPIRY_AT;

/// A permutation of 32-bit numbers, keyed: `permute32` of bpf/lib/hash.h.
#[derive(Debug, Clone, Copy)]
struct Permutation {
    add: u32,
    factors: [u32; 2],
    inverses: [u32; 2],
}

impl Permutation {
    fn new(seed: [u64; 3]) -> Self {
        let [add, first, second] = seed.map(|word| (word >> 32) as u32);
        let factors = [first | 1, second | 1];
        Self {
            add,
            factors,
            // Newton's iteration: an odd number is its own inverse in three bits,
            // and each step doubles how many are right.
            inverses: factors.map(|odd| {
                (0..4).fold(odd, |inverse, _| {
                    inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)))
                })
            }),
        }
    }

    fn of(&self, addr: u32) -> u32 {
        let mut x = addr.wrapping_add(self.add);
        x ^= x >> 16;
        x = x.wrapping_mul(self.factors[0]);
        x ^= x >> 15;
        x = x.wrapping_mul(self.factors[1]);
        x ^ x >> 16
    }

    fn inverse(&self, mut x: u32) -> u32 {
        x ^= x >> 16;
        x = x.wrapping_mul(self.inverses[1]);
        x ^= x >> 15 ^ x >> 30;
        x = x.wrapping_mul(self.inverses[0]);
        x ^= x >> 16;
        x.wrapping_sub(self.add)
    }
}

/// The two buckets where an address may have its entries, and the bits that they have in
/// each.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketPair {
    buckets: [usize; 2],
    same: [u64; 2],
}

/// The effect of [`V4Hosts::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InsertOutcome {
    New,
    Replaced,
    /// No slot is free in both buckets.
    NoRoom,
    /// Somebody else was faster: look again.
    Raced,
}

/// See the file's head.
pub(super) struct V4Hosts {
    words: Words,
    buckets: u64,
    started: u64,
    permutation: Permutation,
}

impl V4Hosts {
    /// `started`: the jiffies that expiries count from.
    pub(super) fn map(map: impl AsFd, buckets: u32, started: u64, seed: [u64; 3]) -> Result<Self> {
        let words = buckets as usize * SLOTS;
        Ok(Self {
            words: Words::map(map, words, "the table of banned IPv4 hosts")?,
            buckets: buckets.into(),
            started,
            permutation: Permutation::new(seed),
        })
    }

    pub(super) fn started(&self) -> u64 {
        self.started
    }

    /// All slots of these buckets, by number.
    pub(super) fn slots(buckets: std::ops::Range<usize>) -> std::ops::Range<usize> {
        buckets.start * SLOTS..buckets.end * SLOTS
    }

    /// The buckets of an IPv4 host; `None` for any other key.
    pub(super) fn place(&self, key: Key) -> Option<BucketPair> {
        let Key::Short(key) = key else { return None };
        (key >> 32 == 32).then(|| {
            let x = self.permutation.of(key as u32);
            let first = ((u64::from(x) * self.buckets) >> 32) as usize;
            let tag = u64::from(x & V4_TAG | V4_USED);
            BucketPair {
                buckets: [first, first ^ ((x % BUCKETS_PER_PAGE) | 1) as usize],
                same: [tag, tag | u64::from(V4_SECOND)],
            }
        })
    }

    /// The address of an entry in the slot of this number.
    fn key(&self, at: usize, entry: u64) -> Key {
        let tag = entry as u32 & V4_TAG;
        let mut bucket = (at / SLOTS) as u64;
        if entry & u64::from(V4_SECOND) != 0 {
            bucket ^= u64::from((tag % BUCKETS_PER_PAGE) | 1);
        }
        // The numbers of a bucket follow one another, fewer than there are tags.
        let least = (bucket << 32).div_ceil(self.buckets) as u32;
        let x = least.wrapping_add(tag.wrapping_sub(least) & V4_TAG);
        Key::Short(u64::from(self.permutation.inverse(x)) | 32 << 32)
    }

    /// The upper part of an entry, where this table has a form for it.
    fn pack(&self, policy: u16, expiry: u64) -> Option<u64> {
        let number = u64::from(policy) & u64::from(POLICY_NUMBER);
        let flags = (u64::from(policy) & !u64::from(POLICY_NUMBER)) >> FLAGS;
        let ends = if expiry >= NEVER {
            u64::from(V4_NEVER)
        } else {
            let ends = expiry.checked_sub(self.started)?;
            (ends < u64::from(V4_NEVER)).then_some(ends)?
        };
        (number < u64::from(V4_POLICIES))
            .then_some(ends << V4_EXPIRY_AT | (number | flags) << V4_POLICY_AT)
    }

    fn expiry(&self, entry: u64) -> u64 {
        match entry >> V4_EXPIRY_AT {
            never if never == u64::from(V4_NEVER) => NEVER,
            ends => self.started + ends,
        }
    }

    fn policy(entry: u64) -> u16 {
        let policy = (entry & !EXPIRY) >> V4_POLICY_AT;
        let number = policy & u64::from(V4_POLICIES - 1);
        (number | (policy & !u64::from(V4_POLICIES - 1)) << FLAGS) as u16
    }

    /// Puts an entry in force, or replaces the expiry of the one with the same
    /// policy. `None`: this table has no form for it.
    pub(super) fn put(&self, place: BucketPair, policy: u16, expiry: u64) -> Option<InsertOutcome> {
        let what = self.pack(policy, expiry)?;
        let mut choice = (0, None);
        for (bucket, same) in place.buckets.into_iter().zip(place.same) {
            let (mut free, mut first) = (0, None);
            for at in Self::slots(bucket..bucket + 1) {
                let old = self.words.load(at);
                if (old ^ (same | what)) & !EXPIRY == 0 {
                    let replaced = self.words.replace(at, old, same | what);
                    return Some(if replaced {
                        InsertOutcome::Replaced
                    } else {
                        InsertOutcome::Raced
                    });
                }
                if old == 0 {
                    free += 1;
                    first = first.or(Some((at, same)));
                }
            }
            if choice.0 < PREFERRED && free > choice.0 {
                choice = (free, first);
            }
        }
        Some(match choice.1 {
            Some((at, same)) if self.words.replace(at, 0, same | what) => InsertOutcome::New,
            Some(_) => InsertOutcome::Raced,
            None => InsertOutcome::NoRoom,
        })
    }

    /// The entries of this address, with their slots.
    pub(super) fn each_of(&self, key: Key, place: BucketPair, mut each: impl FnMut(usize, Slot)) {
        for (bucket, same) in place.buckets.into_iter().zip(place.same) {
            for at in Self::slots(bucket..bucket + 1) {
                let entry = self.words.load(at);
                if entry & SAME == same {
                    each(at, self.unpack(key, entry));
                }
            }
        }
    }

    fn unpack(&self, key: Key, entry: u64) -> Slot {
        Slot {
            key,
            policy: Self::policy(entry),
            expiry: self.expiry(entry),
        }
    }

    /// What is in force in a slot.
    pub(super) fn entry(&self, at: usize) -> Option<Slot> {
        let entry = self.words.load(at);
        (entry != 0).then(|| self.unpack(self.key(at, entry), entry))
    }

    /// Lifts what is in a slot, whatever its expiry is by now; false where it is
    /// another address's or policy's.
    pub(super) fn lift(&self, at: usize, slot: &Slot) -> bool {
        let lifted = |entry| {
            let there = (entry != 0).then(|| self.unpack(self.key(at, entry), entry))?;
            (there.key == slot.key && there.policy == slot.policy).then_some(0)
        };
        self.update(at, lifted)
    }

    /// Lifts an entry if it is over at this jiffy.
    pub(super) fn expire(&self, at: usize, now: u64) -> bool {
        self.update(at, |entry| {
            (entry != 0 && self.expiry(entry) <= now).then_some(0)
        })
    }

    fn update(&self, at: usize, new: impl Fn(u64) -> Option<u64>) -> bool {
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        self.words.at(at).fetch_update(set, get, new).is_ok()
    }

    pub(super) fn prefetch(&self, place: BucketPair) {
        for bucket in place.buckets {
            self.words.prefetch(bucket * SLOTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::abi::V4_MIN_BUCKETS;

    /// Over memory of its own.
    fn hosts(buckets: u32, started: u64, seed: [u64; 3]) -> V4Hosts {
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(u64::from(buckets) * 64).unwrap();
        V4Hosts::map(&memory, buckets, started, seed).unwrap()
    }

    fn all(hosts: &V4Hosts) -> Vec<Slot> {
        let slots = V4Hosts::slots(0..hosts.buckets as usize);
        slots.filter_map(|at| hosts.entry(at)).collect()
    }

    proptest! {
        #[test]
        fn a_permutation_has_an_inverse(seed: [u64; 3], addr: u32) {
            let permutation = Permutation::new(seed);
            prop_assert_eq!(permutation.inverse(permutation.of(addr)), addr);
        }

        /// In either bucket, whatever the number of buckets.
        #[test]
        fn an_entry_is_the_address(
            seed: [u64; 3],
            pages in 32..200u32,
            started in 0..1u64 << 40,
            addr in 1u32 << 24..,
            number in 1..V4_POLICIES as u16,
            flags in 0..4u16,
            ends in prop::option::of(0..u64::from(V4_NEVER)),
        ) {
            let hosts = hosts(pages * BUCKETS_PER_PAGE, started, seed);
            let slot = Slot {
                key: Key::Short(u64::from(addr) | 32 << 32),
                policy: number | flags << 14,
                expiry: ends.map_or(NEVER, |ends| started + ends),
            };
            let place = hosts.place(slot.key).unwrap();
            for bucket in place.buckets {
                // Only here is room.
                let other = place.buckets.into_iter().find(|other| *other != bucket).unwrap();
                for at in V4Hosts::slots(other..other + 1) {
                    hosts.words.store(at, u64::from(V4_USED));
                }
                prop_assert_eq!(hosts.put(place, slot.policy, slot.expiry), Some(InsertOutcome::New));
                prop_assert_eq!(hosts.put(place, slot.policy, slot.expiry), Some(InsertOutcome::Replaced));
                for at in V4Hosts::slots(other..other + 1) {
                    hosts.words.store(at, 0);
                }
                prop_assert_eq!(all(&hosts), vec![slot]);
                let mut found = Vec::new();
                hosts.each_of(slot.key, place, |at, slot| found.push((at, slot)));
                prop_assert_eq!(found.len(), 1);
                prop_assert_eq!(found[0].1, slot);
                prop_assert!(hosts.lift(found[0].0, &slot));
                prop_assert!(all(&hosts).is_empty());
            }
        }
    }

    #[test]
    fn what_has_no_form_here_is_said() {
        let hosts = hosts(V4_MIN_BUCKETS, 1000, [1, 2, 3]);
        let place = hosts.place(Key::Short(0x0a00_0001 | 32 << 32)).unwrap();
        for (policy, expiry) in [
            (128, 2000),
            (1, 999),
            (1, 1000 + u64::from(V4_NEVER)),
            (1, NEVER - 1),
        ] {
            assert_eq!(hosts.put(place, policy, expiry), None, "{policy} {expiry}");
        }
        assert!(all(&hosts).is_empty());
        assert_eq!(
            hosts.put(place, 127, 999 + u64::from(V4_NEVER)),
            Some(InsertOutcome::New)
        );
    }

    /// What the packet path looks at first decides for nearly all.
    #[test]
    fn most_entries_of_a_full_table_are_in_their_first_bucket() {
        let hosts = hosts(
            V4_MIN_BUCKETS,
            0,
            [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 7],
        );
        let full = V4_MIN_BUCKETS as usize * SLOTS * 3 / 4;
        let mut refused = 0;
        for addr in (0x0b00_0000..).step_by(2).take(full) {
            let place = hosts.place(Key::Short(addr | 32 << 32)).unwrap();
            refused += usize::from(hosts.put(place, 1, 5) == Some(InsertOutcome::NoRoom));
        }
        let entries = V4Hosts::slots(0..hosts.buckets as usize).map(|at| hosts.words.load(at));
        let entries: Vec<_> = entries.filter(|entry| *entry != 0).collect();
        let first = entries
            .iter()
            .filter(|entry| **entry & u64::from(V4_SECOND) == 0);
        let (first, all) = (first.count(), entries.len());
        assert!(first * 100 > all * 84, "{first} of {all}");
        assert!(refused * 500 < full, "{refused} of {full}");
    }

    #[test]
    fn sixteen_entries_of_one_address_fit_and_the_next_is_refused() {
        let hosts = hosts(V4_MIN_BUCKETS, 0, [1, 2, 3]);
        let place = hosts.place(Key::Short(0x0a00_0001 | 32 << 32)).unwrap();
        for policy in 1..=16 {
            assert_eq!(hosts.put(place, policy, 5), Some(InsertOutcome::New));
        }
        assert_eq!(hosts.put(place, 17, 5), Some(InsertOutcome::NoRoom));
        assert_eq!(hosts.put(place, 16, 6), Some(InsertOutcome::Replaced));
        assert_eq!(all(&hosts).len(), 16);
    }
}

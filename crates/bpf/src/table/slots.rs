//! The slots of the table: what words each has, how one is claimed, and what a
//! source is stored as (design: `bpf/abi/ban.h`).

use std::{os::fd::AsFd, sync::atomic::Ordering};

use super::{Geometry, Key, Slot};
use crate::{
    abi::{BAN_DEAD, BAN_POLICY_BITS, BAN_POLICY_MASK, HOST_SWAPPED, KEY_EMPTY, KEY_TOMB},
    error::Result,
    memory::Words,
};

/// Entries in a bucket.
const SLOTS: usize = crate::abi::BUCKET_SLOTS as usize;

/// What stands in a slot for a key: its first word, and for an IPv6 host what
/// stands beside it; 0 for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) key: u64,
    pub(super) upper: u64,
}

impl Stored {
    /// `hash`: `hash64` of bpf/lib/hash.h.
    pub(super) fn of(key: Key, hash: impl Fn(u64) -> u64) -> Self {
        match key {
            Key::Short(key) => Self { key, upper: 0 },
            Key::Long(hi, lo) => match lo ^ hash(hi) {
                // An empty slot, or one that is free again.
                reserved @ ..=KEY_TOMB => Self {
                    key: hi,
                    upper: reserved | HOST_SWAPPED,
                },
                fingerprint => Self {
                    key: fingerprint,
                    upper: hi,
                },
            },
        }
    }

    /// The key that is stored so.
    pub(super) fn key(self, hash: impl Fn(u64) -> u64) -> Key {
        match self {
            Self { key, upper: 0 } => Key::Short(key),
            // No host is in ::/24.
            Self { key: hi, upper } if upper >> 40 == 0 => {
                Key::Long(hi, hash(hi) ^ upper & !HOST_SWAPPED)
            }
            Self { key, upper: hi } => Key::Long(hi, hash(hi) ^ key),
        }
    }

    /// Whether the entry is of an IPv6 host.
    pub(super) fn is_host(self) -> bool {
        self.upper != 0
    }

    /// Of an IPv4 host, which is not in the table of its own?
    pub(super) fn is_v4_host(self) -> bool {
        self.upper == 0 && self.key >> 32 == 32
    }
}

/// Slots of one bucket, a bit each.
#[derive(Default)]
pub(super) struct Seen {
    /// They hold the key that was looked for, or are being claimed for it.
    pub(super) same: u32,
    /// Never used in this generation.
    pub(super) empty: u32,
    /// May be claimed.
    pub(super) free: u32,
}

/// The slots of a bucket that `bits` names.
pub(super) fn named(bucket: usize, mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let n = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(bucket * SLOTS + n)
    })
}

/// All slots, by number: bucket after bucket.
pub(super) struct Slots {
    bans: Words,
    uppers: Words,
    /// The first slot of IPv6 hosts.
    hosts_from: usize,
}

impl Slots {
    pub(super) fn map(geometry: Geometry, bans: impl AsFd, uppers: impl AsFd) -> Result<Self> {
        let words = |buckets: u32, each: usize| buckets as usize * SLOTS * each;
        Ok(Self {
            bans: Words::map(bans, words(geometry.buckets(), 2), "the ban table")?,
            uppers: Words::map(
                uppers,
                words(geometry.host_buckets(), 1),
                "the upper halves of banned IPv6 hosts",
            )?,
            hosts_from: words(geometry.host_base(), 1),
        })
    }

    /// The slots of a bucket.
    pub(super) fn of(bucket: usize) -> std::ops::Range<usize> {
        bucket * SLOTS..(bucket + 1) * SLOTS
    }

    /// Is the slot for an IPv6 host?
    pub(super) fn is_host(&self, at: usize) -> bool {
        at >= self.hosts_from
    }

    pub(super) fn prefetch(&self, bucket: usize) {
        self.bans.prefetch(bucket * SLOTS * 2);
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        self.bans.load(2 * at + 1)
    }

    pub(super) fn key(&self, at: usize) -> u64 {
        self.bans.load(2 * at)
    }

    /// The word beside the key: an IPv6 host's upper half; 0 where there is none, or none
    /// yet.
    fn upper(&self, at: usize) -> u64 {
        if self.is_host(at) {
            self.uppers.load(at - self.hosts_from)
        } else {
            0
        }
    }

    /// Replaces a slot's word, or says that somebody else was there.
    pub(super) fn replace_word(&self, at: usize, old: u64, new: u64) -> bool {
        self.bans.replace(2 * at + 1, old, new)
    }

    /// Takes the word out.
    pub(super) fn lift(&self, at: usize) -> u64 {
        self.bans.at(2 * at + 1).swap(0, Ordering::SeqCst)
    }

    pub(super) fn holds(&self, at: usize, stored: Stored) -> bool {
        self.key(at) == stored.key && self.upper(at) == stored.upper
    }

    /// A bucket's slots by what they hold, without a branch on it as long as none
    /// has an IPv6 host's fingerprint.
    pub(super) fn look(&self, bucket: usize, stored: Stored) -> Seen {
        let mut seen = Seen::default();
        for (n, at) in Self::of(bucket).enumerate() {
            let key = self.key(at);
            let is_idle = self.word(at) == 0;
            seen.same |= u32::from(key == stored.key) << n;
            seen.empty |= u32::from(key == KEY_EMPTY) << n;
            seen.free |= u32::from(key == KEY_EMPTY || key == KEY_TOMB && is_idle) << n;
        }
        if stored.is_host() && seen.same != 0 {
            for (n, at) in Self::of(bucket).enumerate() {
                let upper = self.upper(at);
                seen.same &= !(u32::from(upper != stored.upper && upper != 0) << n);
            }
        }
        seen
    }

    /// Claims a free slot; false when somebody else did.
    pub(super) fn claim(&self, at: usize, stored: Stored) -> bool {
        let there = self.key(at);
        there <= KEY_TOMB && self.bans.replace(2 * at, there, stored.key) && self.join(at, stored)
    }

    /// Makes a slot with this key the key's whole, or says that it is another
    /// host's.
    pub(super) fn join(&self, at: usize, stored: Stored) -> bool {
        if stored.is_host() {
            self.uppers.replace(at - self.hosts_from, 0, stored.upper);
        }
        self.holds(at, stored)
    }

    /// Makes a DEAD slot a TOMB. The word comes last: were it 0 first, a claimer
    /// that stopped before it published could do so under a key about to vanish.
    pub(super) fn bury(&self, at: usize, key: u64) {
        if self.is_host(at) {
            self.uppers.store(at - self.hosts_from, 0);
        }
        if self.bans.replace(2 * at, key, KEY_TOMB) {
            self.replace_word(at, BAN_DEAD, 0);
        }
    }

    /// The entry in a slot, if one is published there: what it is stored as, and
    /// its word.
    pub(super) fn published(&self, at: usize) -> Option<(Stored, u64)> {
        let (key, word) = (self.key(at), self.word(at));
        let upper = self.upper(at);
        let is_whole = key > KEY_TOMB && (upper != 0 || !self.is_host(at));
        (word > BAN_DEAD && is_whole).then_some((Stored { key, upper }, word))
    }
}

/// A slot's word.
pub(super) fn pack(slot: &Slot) -> u64 {
    slot.expiry.min(super::NEVER) << BAN_POLICY_BITS | u64::from(slot.policy)
}

/// What a slot's word says of a key.
pub(super) fn unpack(key: Key, word: u64) -> Slot {
    Slot {
        key,
        policy: (word & BAN_POLICY_MASK) as u16,
        expiry: word >> BAN_POLICY_BITS,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(key: u64) -> u64 {
        crate::generator::mix64(key ^ 0x5eed)
    }

    proptest! {
        #[test]
        fn what_is_stored_is_the_address(hi in 1u64 << 40.., lo: u64, fingerprint in 0..4u64) {
            // Those that are nothing as a key, too.
            for lo in [lo, hash(hi) ^ fingerprint] {
                let stored = Stored::of(Key::Long(hi, lo), hash);
                prop_assert!(stored.is_host() && stored.key > KEY_TOMB);
                prop_assert_eq!(stored.key(hash), Key::Long(hi, lo));
            }
            let stored = Stored::of(Key::Short(hi), hash);
            prop_assert!(!stored.is_host());
            prop_assert_eq!(stored.key(hash), Key::Short(hi));
        }
    }
}

//! The bloom filter before the tables: bits for each key, which a packet of an
//! innocent source reads and nothing else (`bloom_word` of bpf/firewall/ban.h).

use std::sync::atomic::{Ordering, fence};

use super::{BLOOM_BASE, BanTable, Key, slots::Slots};
use crate::abi::KEY_TOMB;

impl BanTable {
    /// Sets the key's bits in both copies: a rebuild may be swapping them. The
    /// entry is published before, so a rebuild that clears these bits will
    /// find the entry.
    pub(super) fn set_bloom(&self, key: Key, apart: bool) {
        let (index, bits) = self.bloom_position(key, apart);
        for copy in 0..2 {
            let word = self
                .bloom
                .at(index + copy * self.geometry.bloom_words as usize);
            if word.load(Ordering::SeqCst) & bits != bits {
                word.fetch_or(bits, Ordering::SeqCst);
            }
        }
    }

    /// May an IPv4 host have entries outside of its own table?
    pub(super) fn may_be_apart(&self, key: Key) -> bool {
        let (index, bits) = self.bloom_position(key, true);
        self.bloom.load(self.bloom_base() + index) & bits == bits
    }

    /// Word and bits. IPv6 entries of both lengths share their /64's word (one
    /// load tells about both), each with bits of its own; an IPv4 host has both
    /// where it is not in the table of IPv4 hosts (`apart`).
    pub(super) fn bloom_position(&self, key: Key, apart: bool) -> (usize, u64) {
        let bits = |hash: u64| {
            let bit = |n: u32| 1u64 << (hash >> n & 63);
            bit(0) | bit(6) | bit(12)
        };
        let (hash, bits) = match key {
            Key::Short(key) => {
                let hash = self.hash64(key);
                (hash, bits(hash) | if apart { bits(hash >> 18) } else { 0 })
            }
            Key::Long(hi, _) => {
                let hash = self.hash64(hi);
                (hash, bits(hash >> 18))
            }
        };
        let index = (hash >> 40) as usize & (self.geometry.bloom_words as usize - 1);
        (index, bits)
    }

    /// Does the bloom filter hold bits of entries that are gone? Then innocent
    /// packets pay for table look-ups until [`BanTable::rebuild_bloom`].
    pub fn bloom_is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Builds the bloom filter anew in the copy that readers do not use, and
    /// swaps. Insertions go on meanwhile and set bits in both copies; call it
    /// from one thread, not twice within a reader's packet.
    pub fn rebuild_bloom(&self) {
        self.stale.store(false, Ordering::Relaxed);
        let words = self.geometry.bloom_words as usize;
        let aside = if self.bloom_base() == 0 { words } else { 0 };
        for index in aside..aside + words {
            self.bloom.at(index).store(0, Ordering::Relaxed);
        }
        // Pairs with the compare-exchange that publishes an entry: either the
        // scan sees the entry, or the inserter's bit comes after the zero.
        fence(Ordering::SeqCst);
        let (keyed, v4) = self.slots_in(0..self.buckets_in_all());
        let set = |key, apart| {
            let (index, bits) = self.bloom_position(key, apart);
            self.bloom
                .at(aside + index)
                .fetch_or(bits, Ordering::SeqCst);
        };
        for at in keyed.flat_map(Slots::of) {
            let key = if self.slots.is_host(at) {
                let published = self.slots.published(at);
                published.map(|(stored, _)| stored.key(|half| self.hash64(half)))
            } else {
                // With those that are claimed and not yet published.
                Some(Key::Short(self.slots.key(at))).filter(|_| self.slots.key(at) > KEY_TOMB)
            };
            if let Some(key) = key {
                set(key, key.is_v4_host());
            }
        }
        for slot in v4.filter_map(|at| self.v4_hosts.entry(at)) {
            set(slot.key, false);
        }
        self.control.set_masked(0, BLOOM_BASE, aside as u64);
    }

    fn bloom_base(&self) -> usize {
        (self.control.load(0) & BLOOM_BASE) as usize
    }
}

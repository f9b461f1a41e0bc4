//! How large a generation's tables are.

use crate::abi::{BUCKET_SLOTS, BUCKETS_PER_PAGE};

/// Entries in a bucket.
const SLOTS: usize = BUCKET_SLOTS as usize;
/// Words of a bloom filter that a second-level cache holds beside all else.
const BLOOM_IN_CACHE: usize = 1 << 16;

/// Sizes of one generation's tables. Buckets come in whole pages, the others in
/// powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Buckets of short keys, without overflow.
    pub buckets64: u32,
    /// Overflow buckets behind them.
    pub overflow64: u32,
    /// Buckets of IPv6 hosts, behind both.
    pub buckets128: u32,
    /// Overflow buckets behind them.
    pub overflow128: u32,
    /// Words of one copy of the bloom filter.
    pub bloom_words: u32,
}

impl Geometry {
    /// Tables for this many bans of each kind, as full as leaves nearly all of
    /// them outside the overflow area: three of four slots (0.9 % of entries
    /// overflow). The fuller, the more of the table is in cache: a packet from a
    /// banned source waits for one load of it, 13 ns in the second-level cache,
    /// up to 150 ns from memory.
    pub fn for_bans(short: usize, long: usize) -> Self {
        let pages = |buckets: usize, least: usize| {
            buckets
                .max(least)
                .next_multiple_of(BUCKETS_PER_PAGE as usize) as u32
        };
        let pow2 = |n: usize, least: usize| n.max(least).next_power_of_two() as u32;
        let buckets64 = pages((short * 4).div_ceil(3 * SLOTS), 512);
        let buckets128 = pages((long * 4).div_ceil(3 * SLOTS), 256);
        // Three bits a key. Four keys a word are 0.5 % false hits, eight are 3 %;
        // but beyond the second-level cache waiting for memory costs more than
        // the hits do. A host key counts twice: it shares words with /64s, and
        // an IPv6 packet asks for both patterns.
        let keys = short + 2 * long;
        let bloom_words = if keys.div_ceil(4) <= BLOOM_IN_CACHE {
            keys.div_ceil(4)
        } else {
            keys.div_ceil(8)
        };
        Self {
            buckets64,
            overflow64: pow2(buckets64 as usize / 32, 64),
            buckets128,
            overflow128: pow2(buckets128 as usize / 32, 64),
            bloom_words: pow2(bloom_words, 4096),
        }
    }

    /// Short keys that it is made for.
    pub fn target_load64(&self) -> usize {
        self.buckets64 as usize * SLOTS * 3 / 4
    }

    /// IPv6 hosts that it is made for.
    pub fn target_load128(&self) -> usize {
        self.buckets128 as usize * SLOTS * 3 / 4
    }

    /// Memory of the tables, bytes.
    pub fn bytes(&self) -> u64 {
        64 * u64::from(self.buckets())
            + 32 * u64::from(self.host_buckets())
            + 16 * u64::from(self.bloom_words)
    }

    /// Buckets in all.
    pub(crate) fn buckets(&self) -> u32 {
        self.host_base().saturating_add(self.host_buckets())
    }

    /// The first bucket of IPv6 hosts.
    pub(crate) fn host_base(&self) -> u32 {
        self.buckets64.saturating_add(self.overflow64)
    }

    /// Buckets of IPv6 hosts, with their overflow.
    pub(crate) fn host_buckets(&self) -> u32 {
        self.buckets128.saturating_add(self.overflow128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_bans_fit_their_budget() {
        const MIB: u64 = 1 << 20;
        let million = 1_000_000;
        for (short, hosts, budget) in [(million, 0, 24 * MIB), (0, million, 40 * MIB)] {
            let geometry = Geometry::for_bans(short, hosts);
            let bytes = geometry.bytes();
            assert!(bytes < budget, "{short} and {hosts}: {bytes} bytes");
            assert!(geometry.target_load64() >= short);
            assert!(geometry.target_load128() >= hosts);
        }
    }
}

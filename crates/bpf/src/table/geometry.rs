//! How large a generation's tables are.

use crate::abi::{BUCKET_SLOTS, BUCKETS_PER_PAGE, V4_MIN_BUCKETS, V4_SLOTS};

/// Entries in a bucket.
const SLOTS: usize = BUCKET_SLOTS as usize;
/// Entries in a bucket of IPv4 hosts.
const SLOTS_V4: usize = V4_SLOTS as usize;
/// Words of a bloom filter that a second-level cache holds beside all else.
const BLOOM_IN_CACHE: usize = 1 << 16;

/// A number of bans of each kind, or of places for them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct BanCounts {
    /// Single IPv4 addresses.
    pub v4_hosts: usize,
    /// IPv4 networks and IPv6 /64s.
    pub networks: usize,
    /// Single IPv6 addresses.
    pub v6_hosts: usize,
}

impl BanCounts {
    /// An equal number of bans of each kind.
    pub fn each(number: usize) -> Self {
        Self {
            v4_hosts: number,
            networks: number,
            v6_hosts: number,
        }
    }

    /// The sum over all kinds.
    pub fn sum(self) -> usize {
        self.v4_hosts + self.networks + self.v6_hosts
    }

    /// Each kind by itself, from both.
    #[must_use]
    pub fn with(self, other: Self, merge: impl Fn(usize, usize) -> usize) -> Self {
        Self {
            v4_hosts: merge(self.v4_hosts, other.v4_hosts),
            networks: merge(self.networks, other.networks),
            v6_hosts: merge(self.v6_hosts, other.v6_hosts),
        }
    }

    /// Is any kind more than in the other?
    pub fn exceed(self, other: Self) -> bool {
        self.v4_hosts > other.v4_hosts
            || self.networks > other.networks
            || self.v6_hosts > other.v6_hosts
    }
}

/// Sizes of one generation's tables. Buckets come in whole pages, the others in
/// powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Buckets of IPv4 hosts.
    pub v4_buckets: u32,
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
    pub fn for_bans(bans: BanCounts) -> Self {
        let (short, long) = (bans.networks, bans.v6_hosts);
        let pages = |buckets: usize, least: usize| {
            buckets
                .max(least)
                .next_multiple_of(BUCKETS_PER_PAGE as usize) as u32
        };
        let pow2 = |n: usize, least: usize| n.max(least).next_power_of_two() as u32;
        let v4_buckets = pages(
            (bans.v4_hosts * 4).div_ceil(3 * SLOTS_V4),
            V4_MIN_BUCKETS as usize,
        );
        let buckets64 = pages((short * 4).div_ceil(3 * SLOTS), 512);
        let buckets128 = pages((long * 4).div_ceil(3 * SLOTS), 256);
        // Three bits a key. Four keys a word are 0.5 % false hits, eight are 3 %;
        // but beyond the second-level cache waiting for memory costs more than
        // the hits do. A host key counts twice: it shares words with /64s, and
        // an IPv6 packet asks for both patterns.
        let keys = bans.v4_hosts + short + 2 * long;
        let bloom_words = if keys.div_ceil(4) <= BLOOM_IN_CACHE {
            keys.div_ceil(4)
        } else {
            keys.div_ceil(8)
        };
        Self {
            v4_buckets,
            buckets64,
            overflow64: pow2(buckets64 as usize / 32, 64),
            buckets128,
            overflow128: pow2(buckets128 as usize / 32, 64),
            bloom_words: pow2(bloom_words, 4096),
        }
    }

    /// Bans of each kind that it is made for.
    pub fn target_load(&self) -> BanCounts {
        let load = |buckets: u32, slots: usize| buckets as usize * slots * 3 / 4;
        BanCounts {
            v4_hosts: load(self.v4_buckets, SLOTS_V4),
            networks: load(self.buckets64, SLOTS),
            v6_hosts: load(self.buckets128, SLOTS),
        }
    }

    /// Memory of the tables, bytes.
    pub fn bytes(&self) -> u64 {
        64 * (u64::from(self.v4_buckets) + u64::from(self.buckets()))
            + 32 * u64::from(self.host_buckets())
            + 16 * u64::from(self.bloom_words)
    }

    /// Buckets in all, but of IPv4 hosts.
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
        let million = |v4_hosts: usize, networks: usize, v6_hosts: usize| BanCounts {
            v4_hosts: v4_hosts * 1_000_000,
            networks: networks * 1_000_000,
            v6_hosts: v6_hosts * 1_000_000,
        };
        for (bans, budget) in [
            (million(1, 0, 0), 14 * MIB),
            (million(0, 1, 0), 24 * MIB),
            (million(0, 0, 1), 40 * MIB),
        ] {
            let geometry = Geometry::for_bans(bans);
            let bytes = geometry.bytes();
            assert!(bytes < budget, "{bans:?}: {bytes} bytes");
            assert!(!bans.exceed(geometry.target_load()));
        }
    }
}

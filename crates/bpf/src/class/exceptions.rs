//! Blocks that are of one class but for a few parts: the parts, by their hash
//! (`EXCEPTION_…` of bpf/abi/class.h). Lists of single addresses are such, and a hash
//! takes two cache lines for each packet where nodes take two a level.

use std::net::IpAddr;

use crate::abi::{
    self, EXCEPTION_24 as KIND_24, EXCEPTION_32 as KIND_32, EXCEPTION_48 as KIND_48,
    EXCEPTION_64 as KIND_64, EXCEPTION_128 as KIND_128,
};

/// Parts of a block at most; one with more is a node.
const MOST: usize = 64;
/// Entries in a bucket, which is a cache line.
const SLOTS: usize = 8;
const TAKEN: u64 = abi::EXCEPTION_TAKEN as u64;
const CLASS: u64 = abi::EXCEPTION_CLASS as u64;
const PROBES: usize = abi::EXCEPTION_PROBES as usize;

/// Addresses of one class that follow on one another, as numbers; an IPv4
/// address is its 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) first: u128,
    pub(super) last: u128,
    pub(super) class: u16,
}

/// How the blocks of a family are parted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// A /16, into /24 and addresses.
    V4,
    /// A /32, into /48, /64 and addresses.
    V6,
}

impl Family {
    /// The host bits of a part, from the largest kind on.
    fn parts(self) -> &'static [u32] {
        match self {
            Self::V4 => &[8, 0],
            Self::V6 => &[80, 64, 0],
        }
    }
}

/// A part that is not as what is around it.
struct Part {
    first: u128,
    /// The number of host bits.
    bits: u32,
    class: u16,
}

struct ExceptionEntry {
    hash: u64,
    /// The hash of the /24 or /48 around the exception.
    area: u64,
    class: u16,
}

/// All exceptions of one copy of the class table.
pub(super) struct Exceptions {
    seed: [u64; 2],
    entries: Vec<ExceptionEntry>,
}

/// The exceptions in the form that the packet path reads.
pub(super) struct LaidOut {
    /// A power of two, whole lines.
    pub(super) filter: Vec<u64>,
    /// Whole buckets, a power of two.
    pub(super) buckets: Vec<u64>,
}

impl Exceptions {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        Self {
            seed: [seed[0], seed[1] | 1],
            entries: Vec::new(),
        }
    }

    pub(super) fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// Takes on the exceptions of a block, if they are few: all of its
    /// addresses in `runs`, in order. Returns the class of all others.
    pub(super) fn take(&mut self, family: Family, runs: &[Run]) -> Option<u16> {
        let most = most_of(runs);
        let mut parts = Vec::new();
        if !differences(family.parts(), runs, most, &mut parts) {
            return None;
        }
        for part in parts {
            let (area, hash) = self.place(family, &part);
            self.entries.push(ExceptionEntry {
                hash,
                area,
                class: part.class,
            });
        }
        Some(most)
    }

    /// More runs than this are more than [`Self::take`] takes on.
    pub(super) const MOST_RUNS: usize = 2 * MOST + 1;

    /// The filter and the buckets; what went into them is not kept beside.
    pub(super) fn lay_out(&mut self) -> LaidOut {
        let entries = std::mem::take(&mut self.entries);
        let count = entries.len();
        let mut filter = vec![0; (count / 6).next_power_of_two().max(SLOTS)];
        for entry in &entries {
            let at = (entry.area >> 40) as usize & (filter.len() - 1);
            filter[at] |= three_bits(entry.hash);
        }
        let mut lines = count.div_ceil(5).next_power_of_two();
        loop {
            if let Some(buckets) = fill(&entries, lines) {
                return LaidOut { filter, buckets };
            }
            lines *= 2;
        }
    }

    /// The class of an address among the exceptions, as the packet path finds
    /// it; `filter` and `buckets` as laid out, in halves.
    pub(super) fn find(&self, addr: IpAddr, filter: &[u32], buckets: &[u32]) -> Option<u16> {
        let (family, first) = match addr {
            IpAddr::V4(a) => (Family::V4, a.to_bits().into()),
            IpAddr::V6(a) => (Family::V6, a.to_bits()),
        };
        family.parts().iter().rev().find_map(|bits| {
            let part = Part {
                first,
                bits: *bits,
                class: 0,
            };
            let (area, hash) = self.place(family, &part);
            let word = whole(filter, (area >> 40) as usize & (filter.len() / 2 - 1));
            if word & three_bits(hash) != three_bits(hash) {
                return None;
            }
            let want = hash & !(TAKEN | CLASS) | TAKEN;
            let mask = buckets.len() / 2 / SLOTS - 1;
            for n in 0..PROBES {
                let line = (hash as usize + n) & mask;
                let bucket: [u64; SLOTS] =
                    std::array::from_fn(|slot| whole(buckets, line * SLOTS + slot));
                if let Some(entry) = bucket.iter().find(|e| **e & !CLASS == want) {
                    return Some((entry & CLASS) as u16);
                }
                if bucket.contains(&0) {
                    break;
                }
            }
            None
        })
    }

    /// The hashes of a part's area and its own.
    fn place(&self, family: Family, part: &Part) -> (u64, u64) {
        let (hi, lo) = ((part.first >> 64) as u64, part.first as u64);
        match family {
            Family::V4 => {
                let area = self.hash(lo >> 8) ^ KIND_24;
                match part.bits {
                    8 => (area, area),
                    _ => (area, self.hash(lo) ^ KIND_32),
                }
            }
            Family::V6 => {
                let area = self.hash(hi >> 16) ^ KIND_48;
                match part.bits {
                    80 => (area, area),
                    64 => (area, self.hash(hi) ^ KIND_64),
                    _ => (area, self.hash(self.hash(hi) ^ lo) ^ KIND_128),
                }
            }
        }
    }

    /// `class_hash` of bpf/firewall/class.h.
    fn hash(&self, key: u64) -> u64 {
        let mut key = key ^ self.seed[0];
        key ^= key >> 32;
        key = key.wrapping_mul(self.seed[1]);
        key ^= key >> 29;
        key = key.wrapping_mul(abi::CLASS_HASH_FACTOR);
        key ^ key >> 32
    }
}

/// The buckets, if these are enough.
fn fill(entries: &[ExceptionEntry], lines: usize) -> Option<Vec<u64>> {
    let mut buckets = vec![0; lines * SLOTS];
    for entry in entries {
        let mut probes = (0..PROBES).map(|n| (entry.hash as usize + n) & (lines - 1));
        let slot = probes.find_map(|line| {
            let slots = line * SLOTS..(line + 1) * SLOTS;
            slots.into_iter().find(|slot| buckets[*slot] == 0)
        })?;
        buckets[slot] = entry.hash & !(TAKEN | CLASS) | TAKEN | u64::from(entry.class);
    }
    Some(buckets)
}

fn whole(halves: &[u32], at: usize) -> u64 {
    u64::from(halves[2 * at]) | u64::from(halves[2 * at + 1]) << 32
}

fn three_bits(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63)
}

/// The class of most addresses.
fn most_of(runs: &[Run]) -> u16 {
    let mut sizes: Vec<(u16, u128)> = Vec::new();
    for run in runs {
        let size = run.last - run.first + 1;
        match sizes.iter_mut().find(|(class, _)| *class == run.class) {
            Some((_, sum)) => *sum += size,
            None => sizes.push((run.class, size)),
        }
    }
    let most = sizes.into_iter().max_by_key(|(_, sum)| *sum);
    most.map_or(0, |(class, _)| class)
}

/// What of a block is not of the class `around` it, as parts of these host
/// bits; false when they are too many.
fn differences(kinds: &[u32], runs: &[Run], around: u16, parts: &mut Vec<Part>) -> bool {
    let Some((&bits, smaller)) = kinds.split_first() else {
        return true; // single addresses are of one class
    };
    let size = 1u128 << bits;
    let mut rest = runs;
    let Some(mut at) = runs.first().map(|run| run.first) else {
        return true;
    };
    while let [run, behind @ ..] = rest {
        if run.last < at {
            rest = behind;
            continue;
        }
        let whole = (run.last - at + 1) >> bits;
        if whole > 0 {
            if run.class != around {
                if parts.len() as u128 + whole > MOST as u128 {
                    return false;
                }
                parts.extend((0..whole).map(|n| Part {
                    first: at + (n << bits),
                    bits,
                    class: run.class,
                }));
            }
            at += whole << bits;
            continue;
        }
        let last = at + size - 1;
        let inside: Vec<Run> = rest
            .iter()
            .take_while(|run| run.first <= last)
            .map(|run| Run {
                first: run.first.max(at),
                last: run.last.min(last),
                class: run.class,
            })
            .collect();
        let most = most_of(&inside);
        if most != around {
            parts.push(Part {
                first: at,
                bits,
                class: most,
            });
        }
        if parts.len() > MOST || !differences(smaller, &inside, most, parts) {
            return false;
        }
        at = last + 1;
    }
    true
}

//! The ban table: buckets in memory that the packet path reads without a lock
//! while several threads insert (design: `bpf/abi/ban.h`, `bpf/firewall/ban.h`).
//!
//! A slot's life: EMPTY → claimed (compare-exchange of its key, then for an IPv6
//! host of the upper half beside it) → published (compare-exchange of `word` from 0) → lifted or expired (`word`
//! = 0, by [`BanTable::remove`] or [`BanTable::sweep`]) → DEAD → TOMB →
//! claimed again. Each arrow of a sweep is one sweep apart, so a reader that
//! still holds a slot's old words is long done, and a claimer that was
//! stopped before it could publish finds DEAD and takes another slot. Until a
//! lifted slot is DEAD it may be published again, for the same key only: bans
//! that come and go do not use up their key's places.
//!
//! Any thread may insert. `remove`, `sweep` and `rebuild_bloom` belong to the
//! maintenance thread, or to callers under one lock.

mod geometry;
mod slots;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

use weir_core::Prefix;

pub use geometry::Geometry;
use slots::{Slots, Stored, named, pack, unpack};

use crate::{
    abi::{
        self, BAN_DEAD as DEAD, BAN_POLICY_BITS as POLICY_BITS, BAN_POLICY_MASK as POLICY_MASK,
        BUCKET_SLOTS, BUCKETS_PER_PAGE, KEY_TOMB,
    },
    error::Result,
    memory::Words,
    skeleton::firewall::types::{ban, bucket, bucket_upper, control},
};

const OVERFLOW_PROBES: u64 = abi::OVERFLOW_PROBES as u64;
/// Buckets in which a key may have entries: two and its part of the overflow
/// area.
const BUCKETS_OF_A_KEY: usize = 2 + OVERFLOW_PROBES as usize;

/// Of the control words' first, in which `observe` is the other half.
const BLOOM_BASE: u64 = 0xffff_ffff;

/// Expiry of a ban without end, jiffies.
pub const NEVER: u64 = abi::BAN_NEVER;

// The layout this computes with, checked against the skeleton's types.
const _: () = assert!(size_of::<bucket>() == 64 && size_of::<bucket_upper>() == 32);
const _: () = assert!(std::mem::offset_of!(ban, key) == 0);
const _: () = assert!(std::mem::offset_of!(ban, word) == 8);
const _: () = assert!(std::mem::offset_of!(control, bloom_base) == 0);
const _: () = assert!(std::mem::offset_of!(control, observe) == 4);

/// A subject as the table stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// IPv4 (address | length << 32) or the upper half of an IPv6 /64.
    Short(u64),
    /// An IPv6 host: upper and lower half.
    Long(u64, u64),
}

impl Key {
    /// `None` when the table has no form for this prefix: IPv6 lengths other
    /// than 64 and 128, and `::/24`.
    pub fn of(prefix: Prefix) -> Option<Self> {
        match prefix.addr() {
            IpAddr::V4(a) => Some(Self::Short(
                u64::from(a.to_bits()) | u64::from(prefix.bits()) << 32,
            )),
            IpAddr::V6(a) => {
                let (hi, lo) = ((a.to_bits() >> 64) as u64, a.to_bits() as u64);
                match prefix.bits() {
                    _ if hi >> 40 == 0 => None,
                    64 => Some(Self::Short(hi)),
                    128 => Some(Self::Long(hi, lo)),
                    _ => None,
                }
            }
        }
    }

    /// The prefix it stands for.
    pub fn prefix(self) -> Prefix {
        let (addr, len): (IpAddr, u8) = match self {
            Self::Short(key) if key >> 40 == 0 => {
                (Ipv4Addr::from(key as u32).into(), (key >> 32) as u8)
            }
            Self::Short(hi) => (Ipv6Addr::from(u128::from(hi) << 64).into(), 64),
            Self::Long(hi, lo) => (
                Ipv6Addr::from(u128::from(hi) << 64 | u128::from(lo)).into(),
                128,
            ),
        };
        Prefix::new(addr, len).expect("keys are made from prefixes")
    }
}

/// One published entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Who.
    pub key: Key,
    /// The policy's number, with the scoped bit.
    pub policy: u16,
    /// Over when jiffies64 has reached it; [`NEVER`] for a ban without end.
    pub expiry: u64,
}

/// What an insertion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// A new entry.
    New,
    /// The entry was there; its expiry was replaced.
    Replaced,
    /// Both buckets and the overflow chain are full: the table must grow.
    NoRoom,
}

/// What a sweep found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were over, now lifted.
    pub expired: usize,
    /// Entries still in force among those looked at.
    pub live: usize,
    /// Of these, how many in the overflow areas.
    pub overflow: usize,
}

/// See the file's head.
pub struct BanTable {
    geometry: Geometry,
    seed: [u64; 3],
    slots: Slots,
    bloom: Words,
    control: Words,
    live64: AtomicU64,
    live128: AtomicU64,
    /// Bits may stand in the bloom filter for entries that are gone.
    stale: AtomicBool,
}

impl BanTable {
    /// Over the maps of one generation.
    pub(crate) fn map(
        geometry: Geometry,
        seed: [u64; 3],
        bans: impl AsFd,
        uppers: impl AsFd,
        bloom: impl AsFd,
        control: impl AsFd,
    ) -> Result<Self> {
        Ok(Self {
            slots: Slots::map(geometry, bans, uppers)?,
            bloom: Words::map(bloom, geometry.bloom_words as usize * 2, "the bloom filter")?,
            control: Words::map(control, size_of::<control>() / 8, "the control words")?,
            geometry,
            seed,
            live64: AtomicU64::new(0),
            live128: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        })
    }

    /// The sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Published entries by kind (short, long), those that are over but not
    /// yet swept included.
    pub fn filled(&self) -> (usize, usize) {
        (
            self.live64.load(Ordering::Relaxed) as usize,
            self.live128.load(Ordering::Relaxed) as usize,
        )
    }

    /// Counts anew what is published; after taking over somebody else's table.
    pub(crate) fn recount(&self) {
        let (mut short, mut long) = (0, 0);
        self.for_each(0, |slot| match slot.key {
            Key::Short(_) => short += 1,
            Key::Long(..) => long += 1,
        });
        self.live64.store(short, Ordering::Relaxed);
        self.live128.store(long, Ordering::Relaxed);
        self.stale.store(true, Ordering::Relaxed);
    }

    // `hash64` of bpf/lib/hash.h.
    fn hash64(&self, key: u64) -> u64 {
        let mut h = key.wrapping_add(self.seed[0]);
        h ^= h >> 32;
        h = h.wrapping_mul(self.seed[1] | 1);
        h ^= h >> 29;
        h = h.wrapping_mul(self.seed[2] | 1);
        h ^ h >> 32
    }

    fn stored(&self, key: Key) -> Stored {
        Stored::of(key, |half| self.hash64(half))
    }

    /// Bucket numbers of a key: two, then the overflow chain. `find_all` of
    /// bpf/firewall/ban.h.
    fn buckets(&self, stored: Stored) -> [usize; BUCKETS_OF_A_KEY] {
        let hash = self.hash64(stored.key);
        let g = &self.geometry;
        let (base, main, over) = if stored.is_host() {
            (g.host_base() as usize, g.buckets128, g.overflow128)
        } else {
            (0, g.buckets64, g.overflow64)
        };
        let (main, over) = (u64::from(main), u64::from(over));
        let mut buckets = [base; BUCKETS_OF_A_KEY];
        // Both in one page: one TLB miss a packet, not two.
        let per_page = u64::from(BUCKETS_PER_PAGE);
        let page = ((hash >> 12 & 0xffff_ffff) * (main / per_page)) >> 32;
        let first = (page * per_page + (hash >> 44) % per_page) as usize;
        buckets[0] += first;
        buckets[1] += first ^ (((hash >> 50) % per_page) | 1) as usize;
        for probe in 0..OVERFLOW_PROBES {
            // The kernel adds in 64 bits before it masks; so do we.
            buckets[2 + probe as usize] +=
                (main + ((hash >> 20).wrapping_add(probe) & (over - 1))) as usize;
        }
        buckets
    }

    fn live(&self, is_host: bool) -> &AtomicU64 {
        if is_host { &self.live128 } else { &self.live64 }
    }

    /// Puts an entry in force, or replaces the expiry of the one with the same
    /// key and policy. Lock-free; tens of nanoseconds when in cache.
    pub fn insert(&self, slot: Slot) -> Placed {
        let stored = self.stored(slot.key);
        let word = pack(&slot);
        loop {
            match self.insert_once(stored, word) {
                Some(placed) => {
                    if placed == Placed::New {
                        self.live(stored.is_host()).fetch_add(1, Ordering::Relaxed);
                    }
                    if placed != Placed::NoRoom {
                        self.set_bloom(slot.key);
                    }
                    return placed;
                }
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Asks for what an insertion of this key will need, and nothing more: done
    /// for a handful of keys before they are inserted, their cache misses
    /// overlap instead of following one another (twice as fast at a million).
    pub fn prefetch(&self, key: Key) {
        let [first, second, ..] = self.buckets(self.stored(key));
        let (index, _) = self.bloom_position(key);
        let words = self.geometry.bloom_words as usize;
        self.slots.prefetch(first);
        self.slots.prefetch(second);
        self.bloom.prefetch(index);
        self.bloom.prefetch(index + words);
    }

    /// `None`: somebody else was faster, look again.
    fn insert_once(&self, stored: Stored, word: u64) -> Option<Placed> {
        // Is it there? And where would it go: the emptier of the two buckets,
        // else the first free slot of the overflow chain. (First fit would spare
        // a reader the second bucket most of the time, but both loads are on
        // their way at once: what it saves is bandwidth, not the wait; it costs
        // a branch, mispredicted by every ninth ban, and fills the overflow.)
        let (mut choice, mut room) = (None, 0);
        let mut lifted = None;
        let mut has_empty = false;
        let slots = &self.slots;
        for (i, bucket) in self.buckets(stored).into_iter().enumerate() {
            let seen = slots.look(bucket, stored);
            for at in named(bucket, seen.same) {
                let old = slots.word(at);
                if old > DEAD && old & POLICY_MASK == word & POLICY_MASK {
                    // Published, so it says for certain whose it is.
                    if !slots.holds(at, stored) {
                        return None;
                    }
                    return slots
                        .replace_word(at, old, word)
                        .then_some(Placed::Replaced);
                }
                if old == 0 && lifted.is_none() {
                    lifted = Some(at);
                }
            }
            let free = seen.free.count_ones();
            if free > room && (i < 2 || choice.is_none()) {
                choice = named(bucket, seen.free).next();
                room = free;
            }
            // Readers go on only from two buckets without EMPTY, and in the
            // overflow chain only from a bucket without EMPTY.
            has_empty |= seen.empty != 0;
            if i >= 1 && has_empty {
                break;
            }
        }
        let at = match (lifted, choice) {
            (Some(at), _) => slots.join(at, stored).then_some(at)?,
            (None, Some(at)) => slots.claim(at, stored).then_some(at)?,
            (None, None) => return Some(Placed::NoRoom),
        };
        if !slots.replace_word(at, 0, word) {
            return None;
        }
        // Two sweeps may have passed since the claim, and given the slot to
        // another key.
        if !slots.holds(at, stored) {
            slots.replace_word(at, word, 0);
            return None;
        }
        Some(Placed::New)
    }

    /// Sets the key's bits in both copies: a rebuild may be swapping them. The
    /// entry is published before, so a rebuild that clears these bits will
    /// find the entry.
    fn set_bloom(&self, key: Key) {
        let (index, bits) = self.bloom_position(key);
        for copy in 0..2 {
            let word = self
                .bloom
                .at(index + copy * self.geometry.bloom_words as usize);
            if word.load(Ordering::SeqCst) & bits != bits {
                word.fetch_or(bits, Ordering::SeqCst);
            }
        }
    }

    /// Word and bits. IPv6 entries of both lengths share their /64's word (one
    /// load tells about both), each with bits of its own.
    fn bloom_position(&self, key: Key) -> (usize, u64) {
        let (hash, bits) = match key {
            Key::Short(key) => (self.hash64(key), 0),
            Key::Long(hi, _) => (self.hash64(hi), 18),
        };
        let index = (hash >> 40) as usize & (self.geometry.bloom_words as usize - 1);
        let bit = |n: u32| 1u64 << (hash >> (bits + n) & 63);
        (index, bit(0) | bit(6) | bit(12))
    }

    /// The entries of exactly this key, at most 24.
    pub fn get(&self, key: Key) -> Vec<Slot> {
        let mut found = Vec::new();
        self.each_of(key, |_, slot| found.push(slot));
        found
    }

    fn each_of(&self, key: Key, mut each: impl FnMut(usize, Slot)) {
        let stored = self.stored(key);
        let mut has_empty = false;
        for (i, bucket) in self.buckets(stored).into_iter().enumerate() {
            let seen = self.slots.look(bucket, stored);
            for at in named(bucket, seen.same) {
                match self.slots.published(at) {
                    Some((there, word)) if there == stored => each(at, unpack(key, word)),
                    _ => {}
                }
            }
            has_empty |= seen.empty != 0;
            if i >= 1 && has_empty {
                return;
            }
        }
    }

    /// Do this key's own entries have more than half of its places? Then it is
    /// they that leave no room, and a larger table would have as little.
    pub fn is_crowded_by_itself(&self, key: Key) -> bool {
        let stored = self.stored(key);
        let own = self
            .buckets(stored)
            .map(|bucket| self.slots.look(bucket, stored).same.count_ones());
        own.iter().sum::<u32>() * 2 > BUCKETS_OF_A_KEY as u32 * BUCKET_SLOTS
    }

    /// Lifts the entries of a key whose policy satisfies `which`; returns them.
    /// A packet that comes after the return passes.
    pub fn remove(&self, key: Key, which: impl Fn(u16) -> bool) -> Vec<Slot> {
        let mut lifted = Vec::new();
        self.each_of(key, |at, slot| {
            if which(slot.policy) && self.slots.lift(at) > DEAD {
                lifted.push(slot);
            }
        });
        let is_host = matches!(key, Key::Long(..));
        self.live(is_host)
            .fetch_sub(lifted.len() as u64, Ordering::Relaxed);
        if !lifted.is_empty() {
            self.stale.store(true, Ordering::Relaxed);
        }
        lifted
    }

    /// Every published entry that is not over at jiffy `now` (0: all), one
    /// pass, no order. Entries inserted meanwhile may be missed.
    pub fn for_each(&self, now: u64, mut each: impl FnMut(Slot)) {
        self.for_each_in(0..self.buckets_in_all(), now, &mut each);
    }

    /// How many buckets there are, of both kinds with their overflow areas:
    /// the range of [`BanTable::for_each_in`] and [`BanTable::sweep`].
    pub fn buckets_in_all(&self) -> usize {
        self.geometry.buckets() as usize
    }

    /// As [`BanTable::for_each`], in these buckets only.
    pub fn for_each_in(
        &self,
        buckets: std::ops::Range<usize>,
        now: u64,
        each: &mut dyn FnMut(Slot),
    ) {
        for at in buckets.flat_map(Slots::of) {
            if let Some((stored, word)) = self.slots.published(at)
                && word >> POLICY_BITS > now
            {
                each(unpack(stored.key(|half| self.hash64(half)), word));
            }
        }
    }

    /// Is the bucket one of an overflow area?
    fn is_overflow(&self, bucket: usize) -> bool {
        let g = &self.geometry;
        let (bucket, base) = (bucket as u32, g.host_base());
        if bucket < base {
            bucket >= g.buckets64
        } else {
            bucket - base >= g.buckets128
        }
    }

    /// Lifts what is over, and frees nothing yet: may be called at any time. How
    /// many were, and the earliest end of those that it saw and are not.
    pub fn expire(&self, now: u64) -> (usize, u64) {
        let (mut expired, mut next) = (0, NEVER);
        self.each_word(|at, word| {
            let expiry = word >> POLICY_BITS;
            if expiry > now {
                next = next.min(expiry);
            } else if self.slots.replace_word(at, word, 0) {
                expired += 1;
                let live = self.live(self.slots.is_host(at));
                live.fetch_sub(1, Ordering::Relaxed);
            }
        });
        if expired > 0 {
            self.stale.store(true, Ordering::Relaxed);
        }
        (expired, next)
    }

    /// Moves every expiry by this many jiffies, after time that jiffies did
    /// not count (suspend). Bans without end stay.
    pub fn shift_expiries(&self, jiffies: i64) {
        self.each_word(|at, word| {
            let expiry = word >> POLICY_BITS;
            if expiry != NEVER {
                let moved = expiry.saturating_add_signed(jiffies).clamp(1, NEVER - 1);
                let moved = moved << POLICY_BITS | word & POLICY_MASK;
                self.slots.replace_word(at, word, moved);
            }
        });
    }

    fn each_word(&self, mut each: impl FnMut(usize, u64)) {
        for at in (0..self.buckets_in_all()).flat_map(Slots::of) {
            if let Some((_, word)) = self.slots.published(at) {
                each(at, word);
            }
        }
    }

    /// One step of every finished slot's way back to free, in these buckets.
    /// Call again for the same bucket only after readers of now are done
    /// (a second is plenty).
    pub fn sweep(&self, buckets: std::ops::Range<usize>, now: u64) -> Swept {
        let mut swept = Swept::default();
        let slots = &self.slots;
        for bucket in buckets {
            let is_overflow = self.is_overflow(bucket);
            for at in Slots::of(bucket) {
                let key = slots.key(at);
                if key <= KEY_TOMB {
                    // Left behind by a crash between the two steps of burying.
                    slots.replace_word(at, DEAD, 0);
                    continue;
                }
                match slots.word(at) {
                    0 => {
                        slots.replace_word(at, 0, DEAD);
                    }
                    DEAD => slots.bury(at, key),
                    word if word >> POLICY_BITS <= now => {
                        if slots.replace_word(at, word, 0) {
                            swept.expired += 1;
                            let live = self.live(slots.is_host(at));
                            live.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    _ => {
                        swept.live += 1;
                        swept.overflow += usize::from(is_overflow);
                    }
                }
            }
        }
        if swept.expired > 0 {
            self.stale.store(true, Ordering::Relaxed);
        }
        swept
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
        for at in (0..self.buckets_in_all()).flat_map(Slots::of) {
            let key = if self.slots.is_host(at) {
                let published = self.slots.published(at);
                published.map(|(stored, _)| stored.key(|half| self.hash64(half)))
            } else {
                // With those that are claimed and not yet published.
                Some(Key::Short(self.slots.key(at))).filter(|_| self.slots.key(at) > KEY_TOMB)
            };
            let Some(key) = key else { continue };
            let (index, bits) = self.bloom_position(key);
            self.bloom
                .at(aside + index)
                .fetch_or(bits, Ordering::SeqCst);
        }
        self.control.set_masked(0, BLOOM_BASE, aside as u64);
    }

    fn bloom_base(&self) -> usize {
        (self.control.load(0) & BLOOM_BASE) as usize
    }

    /// Count what would be dropped, and pass it?
    pub fn set_observe(&self, observe: bool) {
        self.control
            .set_masked(0, !BLOOM_BASE, u64::from(observe) << 32);
    }

    /// Tells the packet path of which families there are wide bans; see
    /// [`crate::WideBans::families`].
    pub fn set_wide(&self, families: u32) {
        self.control.store(1, families.into());
    }
}

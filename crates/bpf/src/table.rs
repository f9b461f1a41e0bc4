//! The ban table: buckets in memory that the packet path reads without a lock
//! while several threads insert (design: `bpf/abi/ban.h`, `bpf/firewall/ban.h`).
//!
//! A slot's life: EMPTY → claimed (compare-exchange of its claim word) →
//! published (compare-exchange of `word` from 0) → lifted or expired (`word`
//! = 0, by [`BanTable::remove`] or [`BanTable::sweep`]) → DEAD → TOMB →
//! claimed again. Each arrow of a sweep is one sweep apart, so a reader that
//! still holds a slot's old words is long done, and a claimer that was
//! stopped before it could publish finds DEAD and takes another slot. Until a
//! lifted slot is DEAD it may be published again, for the same key only: bans
//! that come and go do not use up their key's places.
//!
//! Any thread may insert. `remove`, `sweep` and `rebuild_bloom` belong to the
//! maintenance thread, or to callers under one lock.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

use weir_core::Prefix;

use crate::{
    abi::{
        self, BAN_DEAD as DEAD, BAN_POLICY_BITS as POLICY_BITS, BAN_POLICY_MASK as POLICY_MASK,
        BUCKETS_PER_PAGE, CLAIM_TAKEN, KEY_EMPTY, KEY_TOMB,
    },
    error::Result,
    memory::Words,
    skeleton::firewall::types::{ban64, ban128, bucket64, bucket128, control},
};

/// Of a long key's slot: published before and lifted, so the key in it stays.
const CLAIM_LIFTED: u64 = 3;
const OVERFLOW_PROBES: u64 = abi::OVERFLOW_PROBES as u64;
/// Words of a bloom filter that a second-level cache holds beside all else.
const BLOOM_IN_CACHE: usize = 1 << 16;
const SLOTS_64: usize = size_of::<bucket64>() / size_of::<ban64>();
const SLOTS_128: usize = size_of::<bucket128>() / size_of::<ban128>();
/// Buckets in which a key may have entries: two and its part of the overflow
/// area.
const BUCKETS_OF_A_KEY: usize = 2 + OVERFLOW_PROBES as usize;

/// Of the control words' first, in which `observe` is the other half.
const BLOOM_BASE: u64 = 0xffff_ffff;

/// Expiry of a ban without end, jiffies.
pub const NEVER: u64 = abi::BAN_NEVER;

// The layout this file computes with, checked against the skeleton's types.
const _: () = assert!(size_of::<bucket64>() == 64 && size_of::<bucket128>() == 64);
const _: () = assert!(std::mem::offset_of!(ban64, key) == 0);
const _: () = assert!(std::mem::offset_of!(ban64, word) == 8);
const _: () = assert!(std::mem::offset_of!(ban128, word) == 0);
const _: () = assert!(std::mem::offset_of!(ban128, hi) == 8);
const _: () = assert!(std::mem::offset_of!(ban128, lo) == 16);
const _: () = assert!(std::mem::offset_of!(ban128, claim) == 24);
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

impl Slot {
    fn word(&self) -> u64 {
        self.expiry.min(NEVER) << POLICY_BITS | u64::from(self.policy)
    }
}

/// Sizes of one generation's tables. Buckets come in whole pages, the others in
/// powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Buckets of four short keys, without overflow.
    pub buckets64: u32,
    /// Overflow buckets behind them.
    pub overflow64: u32,
    /// Buckets of two long keys.
    pub buckets128: u32,
    /// Overflow buckets behind them.
    pub overflow128: u32,
    /// Words of one copy of the bloom filter.
    pub bloom_words: u32,
}

impl Geometry {
    /// Tables for this many bans of each kind, as full as leaves nearly all of
    /// them outside the overflow area: three of four short slots (0.9 % of
    /// entries overflow), three of five long ones (2 %). The fuller, the more
    /// of the table is in cache: a packet from a banned source waits for one
    /// load of it, 13 ns in the second-level cache, up to 150 ns from memory.
    pub fn for_bans(short: usize, long: usize) -> Self {
        let pages = |buckets: usize, least: usize| {
            buckets
                .max(least)
                .next_multiple_of(BUCKETS_PER_PAGE as usize) as u32
        };
        let pow2 = |n: usize, least: usize| n.max(least).next_power_of_two() as u32;
        let buckets64 = pages((short * 4).div_ceil(3 * SLOTS_64), 512);
        let buckets128 = pages((long * 5).div_ceil(3 * SLOTS_128), 256);
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
            overflow128: pow2(buckets128 as usize / 8, 64),
            bloom_words: pow2(bloom_words, 4096),
        }
    }

    /// Short keys that it is made for.
    pub fn comfort64(&self) -> usize {
        self.buckets64 as usize * SLOTS_64 * 3 / 4
    }

    /// Long keys that it is made for.
    pub fn comfort128(&self) -> usize {
        self.buckets128 as usize * SLOTS_128 * 3 / 5
    }

    /// Memory of the tables, bytes.
    pub fn bytes(&self) -> u64 {
        64 * u64::from(self.buckets64 + self.overflow64 + self.buckets128 + self.overflow128)
            + 16 * u64::from(self.bloom_words)
    }
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
    bans64: Words,
    bans128: Words,
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
        bans64: impl AsFd,
        bans128: impl AsFd,
        bloom: impl AsFd,
        control: impl AsFd,
    ) -> Result<Self> {
        let words = |buckets: u32, overflow: u32| (buckets + overflow) as usize * 8;
        let table = Self {
            bans64: Words::map(
                bans64,
                words(geometry.buckets64, geometry.overflow64),
                "the ban table",
            )?,
            bans128: Words::map(
                bans128,
                words(geometry.buckets128, geometry.overflow128),
                "the IPv6 ban table",
            )?,
            bloom: Words::map(bloom, geometry.bloom_words as usize * 2, "the bloom filter")?,
            control: Words::map(control, size_of::<control>() / 8, "the control words")?,
            geometry,
            seed,
            live64: AtomicU64::new(0),
            live128: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        };
        Ok(table)
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

    // Mirrors hash64 and hash128 of bpf/firewall/ban.h.
    fn hash64(&self, key: u64) -> u64 {
        let mut h = key.wrapping_add(self.seed[0]);
        h ^= h >> 32;
        h = h.wrapping_mul(self.seed[1] | 1);
        h ^= h >> 29;
        h = h.wrapping_mul(self.seed[2] | 1);
        h ^ h >> 32
    }

    fn hash(&self, key: Key) -> u64 {
        match key {
            Key::Short(key) => self.hash64(key),
            Key::Long(hi, lo) => self.hash64(self.hash64(hi) ^ lo),
        }
    }

    /// Bucket numbers of a key: two, then the overflow chain.
    fn buckets(&self, key: Key) -> [usize; BUCKETS_OF_A_KEY] {
        let hash = self.hash(key);
        let (main, over) = match key {
            Key::Short(_) => (self.geometry.buckets64, self.geometry.overflow64),
            Key::Long(..) => (self.geometry.buckets128, self.geometry.overflow128),
        };
        let (main, over) = (u64::from(main), u64::from(over));
        let mut buckets = [0; BUCKETS_OF_A_KEY];
        // Both in one page: one TLB miss a packet, not two.
        let per_page = u64::from(BUCKETS_PER_PAGE);
        let page = ((hash >> 12 & 0xffff_ffff) * (main / per_page)) >> 32;
        buckets[0] = (page * per_page + (hash >> 44) % per_page) as usize;
        buckets[1] = buckets[0] ^ (((hash >> 50) % per_page) | 1) as usize;
        for probe in 0..OVERFLOW_PROBES {
            // The kernel adds in 64 bits before it masks; so do we.
            buckets[2 + probe as usize] =
                (main + ((hash >> 20).wrapping_add(probe) & (over - 1))) as usize;
        }
        buckets
    }

    fn area(&self, key: Key) -> Area<'_> {
        match key {
            Key::Short(_) => Area {
                words: &self.bans64,
                slots: SLOTS_64,
                long: false,
            },
            Key::Long(..) => Area {
                words: &self.bans128,
                slots: SLOTS_128,
                long: true,
            },
        }
    }

    fn live(&self, key: Key) -> &AtomicU64 {
        match key {
            Key::Short(_) => &self.live64,
            Key::Long(..) => &self.live128,
        }
    }

    /// Puts an entry in force, or replaces the expiry of the one with the same
    /// key and policy. Lock-free; tens of nanoseconds when in cache.
    pub fn insert(&self, slot: Slot) -> Placed {
        let area = self.area(slot.key);
        let word = slot.word();
        loop {
            match self.insert_once(&area, &slot, word) {
                Some(placed) => {
                    if placed == Placed::New {
                        self.live(slot.key).fetch_add(1, Ordering::Relaxed);
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
    pub fn warm(&self, key: Key) {
        let area = self.area(key);
        let [first, second, ..] = self.buckets(key);
        let (index, _) = self.bloom_position(key);
        let words = self.geometry.bloom_words as usize;
        area.words.prefetch(first * 8);
        area.words.prefetch(second * 8);
        self.bloom.prefetch(index);
        self.bloom.prefetch(index + words);
    }

    /// `None`: somebody else was faster, look again.
    fn insert_once(&self, area: &Area<'_>, slot: &Slot, word: u64) -> Option<Placed> {
        // Is it there? And where would it go: the emptier of the two buckets,
        // else the first free slot of the overflow chain. (First fit would spare
        // a reader the second bucket most of the time, but both loads are on
        // their way at once: what it saves is bandwidth, not the wait; it costs
        // a branch, mispredicted by every ninth ban, and fills the overflow.)
        let (mut choice, mut room) = (None, 0);
        let mut lifted = None;
        let mut has_empty = false;
        for (i, bucket) in self.buckets(slot.key).into_iter().enumerate() {
            let seen = area.look(bucket, slot.key);
            for at in seen.slots(area, bucket, seen.same) {
                let old = area.word(at);
                if old != 0 && old != DEAD && old & POLICY_MASK == word & POLICY_MASK {
                    return area
                        .words
                        .replace(area.word_at(at), old, word)
                        .then_some(Placed::Replaced);
                }
                if old == 0 && lifted.is_none() && area.keeps_its_key(at) {
                    lifted = Some(at);
                }
            }
            let free = seen.free.count_ones();
            if free > room && (i < 2 || choice.is_none()) {
                choice = seen.slots(area, bucket, seen.free).next();
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
            (Some(at), _) => {
                area.take_again(at, slot.key).then_some(())?;
                at
            }
            (None, Some(at)) => {
                area.take(at, slot.key).then_some(())?;
                at
            }
            (None, None) => return Some(Placed::NoRoom),
        };
        area.words
            .replace(area.word_at(at), 0, word)
            .then_some(Placed::New)
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

    /// The entries of exactly this key, at most 24 short or 12 long.
    pub fn get(&self, key: Key) -> Vec<Slot> {
        let mut found = Vec::new();
        self.each_of(key, |_, slot| found.push(slot));
        found
    }

    fn each_of(&self, key: Key, mut each: impl FnMut(usize, Slot)) {
        let area = self.area(key);
        let buckets = self.buckets(key);
        let mut has_empty = false;
        for (i, bucket) in buckets.into_iter().enumerate() {
            for n in 0..area.slots {
                let at = area.slot(bucket, n);
                has_empty |= area.claim(at) == KEY_EMPTY;
                if let Some(slot) = area.read(at).filter(|slot| slot.key == key) {
                    each(at, slot);
                }
            }
            if i >= 1 && has_empty {
                return;
            }
        }
    }

    /// Do this key's own entries have more than half of its places? Then it is
    /// they that leave no room, and a larger table would have as little.
    pub fn is_crowded_by_itself(&self, key: Key) -> bool {
        let area = self.area(key);
        let own = self.buckets(key).into_iter().flat_map(|bucket| {
            let seen = area.look(bucket, key);
            seen.slots(&area, bucket, seen.same)
        });
        own.filter(|at| area.claim(*at) > KEY_TOMB).count() * 2 > BUCKETS_OF_A_KEY * area.slots
    }

    /// Lifts the entries of a key whose policy satisfies `which`; returns them.
    /// A packet that comes after the return passes.
    pub fn remove(&self, key: Key, which: impl Fn(u16) -> bool) -> Vec<Slot> {
        let area = self.area(key);
        let mut lifted = Vec::new();
        self.each_of(key, |at, slot| {
            if !which(slot.policy) {
                return;
            }
            let word = area.word_at(at);
            let old = area.words.at(word).swap(0, Ordering::SeqCst);
            if old != 0 && old != DEAD {
                area.set_lifted(at);
                lifted.push(slot);
            }
        });
        self.live(key)
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
        (self.bans64.len() + self.bans128.len()) / 8
    }

    /// As [`BanTable::for_each`], in these buckets only.
    pub fn for_each_in(
        &self,
        buckets: std::ops::Range<usize>,
        now: u64,
        each: &mut dyn FnMut(Slot),
    ) {
        for bucket in buckets {
            let (area, bucket, _) = self.locate(bucket);
            for n in 0..area.slots {
                if let Some(slot) = area.read(area.slot(bucket, n)).filter(|s| s.expiry > now) {
                    each(slot);
                }
            }
        }
    }

    /// The area, bucket number in it, and whether that is overflow.
    fn locate(&self, bucket: usize) -> (Area<'_>, usize, bool) {
        let short = self.bans64.len() / 8;
        if bucket < short {
            let area = Area {
                words: &self.bans64,
                slots: SLOTS_64,
                long: false,
            };
            (area, bucket, bucket >= self.geometry.buckets64 as usize)
        } else {
            let bucket = bucket - short;
            let area = Area {
                words: &self.bans128,
                slots: SLOTS_128,
                long: true,
            };
            (area, bucket, bucket >= self.geometry.buckets128 as usize)
        }
    }

    /// Lifts what is over, and frees nothing yet: may be called at any time. How
    /// many were, and the earliest end of those that it saw and are not.
    pub fn expire(&self, now: u64) -> (usize, u64) {
        let (mut expired, mut next) = (0, NEVER);
        self.each_word(|live, words, word_at, word| {
            let expiry = word >> POLICY_BITS;
            if expiry > now {
                next = next.min(expiry);
            } else if words.replace(word_at, word, 0) {
                expired += 1;
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
        self.each_word(|_, words, word_at, word| {
            let expiry = word >> POLICY_BITS;
            if expiry != NEVER {
                let moved = expiry.saturating_add_signed(jiffies).clamp(1, NEVER - 1);
                words.replace(word_at, word, moved << POLICY_BITS | word & POLICY_MASK);
            }
        });
    }

    fn each_word(&self, mut each: impl FnMut(&AtomicU64, &Words, usize, u64)) {
        for bucket in 0..self.buckets_in_all() {
            let (area, bucket, _) = self.locate(bucket);
            let live = if area.long {
                &self.live128
            } else {
                &self.live64
            };
            for n in 0..area.slots {
                let at = area.slot(bucket, n);
                let word = area.word(at);
                if word > DEAD && area.claim(at) > KEY_TOMB {
                    each(live, area.words, area.word_at(at), word);
                }
            }
        }
    }

    /// One step of every finished slot's way back to free, in these buckets.
    /// Call again for the same bucket only after readers of now are done
    /// (a second is plenty).
    pub fn sweep(&self, buckets: std::ops::Range<usize>, now: u64) -> Swept {
        let mut swept = Swept::default();
        for bucket in buckets {
            let (area, bucket, overflow) = self.locate(bucket);
            for n in 0..area.slots {
                let at = area.slot(bucket, n);
                let claim = area.claim(at);
                let word_at = area.word_at(at);
                if claim <= KEY_TOMB {
                    // Left behind by a crash between the two steps below.
                    area.words.replace(word_at, DEAD, 0);
                    continue;
                }
                let word = area.word(at);
                match word {
                    0 => {
                        area.words.replace(word_at, 0, DEAD);
                    }
                    DEAD => {
                        // The key first: were the word 0 first, the claimer
                        // that stopped here could publish under a key about
                        // to vanish.
                        if area.words.replace(area.claim_at(at), claim, KEY_TOMB) {
                            area.words.replace(word_at, DEAD, 0);
                        }
                    }
                    _ if word >> POLICY_BITS <= now => {
                        if area.words.replace(word_at, word, 0) {
                            swept.expired += 1;
                            let live = if area.long {
                                &self.live128
                            } else {
                                &self.live64
                            };
                            live.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    _ => {
                        swept.live += 1;
                        swept.overflow += usize::from(overflow);
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
        for bucket in 0..self.buckets_in_all() {
            let (area, bucket, _) = self.locate(bucket);
            for n in 0..area.slots {
                let at = area.slot(bucket, n);
                let key = match area.claim(at) {
                    KEY_EMPTY | KEY_TOMB => continue,
                    _ if area.word(at) == 0 && area.long => continue,
                    key if !area.long => Key::Short(key),
                    _ => Key::Long(area.words.load(at + 1), area.words.load(at + 2)),
                };
                let (index, bits) = self.bloom_position(key);
                self.bloom
                    .at(aside + index)
                    .fetch_or(bits, Ordering::SeqCst);
            }
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

/// Slots of one bucket, a bit each.
#[derive(Default)]
struct Seen {
    /// They hold the key that was looked for.
    same: u32,
    /// Never used in this generation.
    empty: u32,
    /// May be claimed.
    free: u32,
}

impl Seen {
    /// The slots that `bits` names.
    fn slots(
        &self,
        area: &Area<'_>,
        bucket: usize,
        mut bits: u32,
    ) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (area.slot(bucket, 0), area.slot(0, 1));
        std::iter::from_fn(move || {
            let n = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(first + n * step)
        })
    }
}

/// Slots of one kind. A slot is named by the index of its first word.
struct Area<'a> {
    words: &'a Words,
    slots: usize,
    long: bool,
}

impl Area<'_> {
    fn slot(&self, bucket: usize, n: usize) -> usize {
        bucket * 8 + n * if self.long { 4 } else { 2 }
    }

    fn word_at(&self, at: usize) -> usize {
        if self.long { at } else { at + 1 }
    }

    fn claim_at(&self, at: usize) -> usize {
        if self.long { at + 3 } else { at }
    }

    fn word(&self, at: usize) -> u64 {
        self.words.load(self.word_at(at))
    }

    fn claim(&self, at: usize) -> u64 {
        self.words.load(self.claim_at(at))
    }

    fn holds(&self, at: usize, key: Key) -> bool {
        match key {
            Key::Short(key) => self.words.load(at) == key,
            Key::Long(hi, lo) => self.words.load(at + 1) == hi && self.words.load(at + 2) == lo,
        }
    }

    /// A bucket's slots by what they hold, without a branch on it.
    fn look(&self, bucket: usize, key: Key) -> Seen {
        let mut seen = Seen::default();
        for n in 0..self.slots {
            let at = self.slot(bucket, n);
            let claim = self.claim(at);
            let idle = self.word(at) == 0;
            seen.same |= u32::from(self.holds(at, key)) << n;
            seen.empty |= u32::from(claim == KEY_EMPTY) << n;
            seen.free |= u32::from(claim == KEY_EMPTY || claim == KEY_TOMB && idle) << n;
        }
        seen
    }

    /// Claims a free slot for `key`; false when somebody else did.
    fn take(&self, at: usize, key: Key) -> bool {
        let seen = self.claim(at);
        if seen > KEY_TOMB {
            return false;
        }
        match key {
            Key::Short(key) => self.words.replace(at, seen, key),
            Key::Long(hi, lo) => {
                if !self.words.replace(at + 3, seen, CLAIM_TAKEN) {
                    return false;
                }
                self.words.at(at + 1).store(hi, Ordering::Release);
                self.words.at(at + 2).store(lo, Ordering::Release);
                true
            }
        }
    }

    /// Is the key in this slot there to stay until a sweep ends it, whoever
    /// publishes in it?
    fn keeps_its_key(&self, at: usize) -> bool {
        !self.long || self.claim(at) == CLAIM_LIFTED
    }

    /// Says of a slot that maintenance has just lifted that it keeps its key.
    fn set_lifted(&self, at: usize) {
        if self.long {
            self.words
                .replace(self.claim_at(at), CLAIM_TAKEN, CLAIM_LIFTED);
        }
    }

    /// Claims a lifted slot that held `key`; false when somebody else did, or
    /// it holds another one by now.
    fn take_again(&self, at: usize, key: Key) -> bool {
        if !self.long {
            return true; // the key is the claim
        }
        if !self
            .words
            .replace(self.claim_at(at), CLAIM_LIFTED, CLAIM_TAKEN)
        {
            return false;
        }
        let still = self.holds(at, key);
        if !still {
            self.set_lifted(at);
        }
        still
    }

    /// The published entry in a slot, if there is one.
    fn read(&self, at: usize) -> Option<Slot> {
        let word = self.word(at);
        if word == 0 || word == DEAD || self.claim(at) <= KEY_TOMB {
            return None;
        }
        let key = if self.long {
            Key::Long(self.words.load(at + 1), self.words.load(at + 2))
        } else {
            Key::Short(self.words.load(at))
        };
        Some(Slot {
            key,
            policy: (word & POLICY_MASK) as u16,
            expiry: word >> POLICY_BITS,
        })
    }
}

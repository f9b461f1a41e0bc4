//! The ban table: buckets in memory that the packet path reads without a lock
//! while several threads insert (design: `bpf/abi/ban.h`, `bpf/firewall/ban.h`).
//!
//! A slot's life: EMPTY → claimed (compare-exchange of its key, then for an IPv6 host
//! of the upper half beside it) → published (compare-exchange of `word` from 0) →
//! lifted or expired (`word` = 0, by [`BanTable::remove`] or [`BanTable::sweep`]) →
//! DEAD → TOMB → claimed again. Each arrow of a sweep is one sweep apart, so a reader
//! that still holds a slot's old words is long done, and a claimer that was stopped
//! before it could publish finds DEAD and takes another slot. Until a lifted slot is
//! DEAD it may be published again, for the same key only: bans that come and go do
//! not use up their key's places.
//!
//! IPv4 hosts have slots of one word and no such life (`v4_hosts`); those that have
//! no form or room there are among the networks, as if they were a network.
//!
//! Any thread may insert. `remove`, `sweep` and `rebuild_bloom` belong to the
//! maintenance thread, or to callers under one lock.

mod bloom;
mod geometry;
mod key;
mod slots;
mod v4_hosts;

use std::{
    ops::Range,
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

pub use geometry::{BanCounts, Geometry};
pub use key::Key;
use slots::{Slots, Stored, named, pack, unpack};
use v4_hosts::{BucketPair, InsertOutcome, V4Hosts};

use crate::{
    abi::{
        self, BAN_DEAD as DEAD, BAN_POLICY_BITS as POLICY_BITS, BAN_POLICY_MASK as POLICY_MASK,
        BUCKET_SLOTS, BUCKETS_PER_PAGE, KEY_TOMB,
    },
    error::Result,
    memory::Words,
    skeleton::firewall::types::{ban, bucket, bucket_upper, control, v4_bucket},
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
const _: () = assert!(size_of::<v4_bucket>() == 64);
const _: () = assert!(std::mem::offset_of!(ban, key) == 0);
const _: () = assert!(std::mem::offset_of!(ban, word) == 8);
const _: () = assert!(std::mem::offset_of!(control, bloom_base) == 0);
const _: () = assert!(std::mem::offset_of!(control, observe) == 4);
const _: () = assert!(std::mem::offset_of!(control, port_features) == 20);
const _: () = assert!(std::mem::offset_of!(control, rejects) == 24);

/// One published entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The address or network that is banned.
    pub key: Key,
    /// The policy's number, with the scoped bit.
    pub policy: u16,
    /// Over when jiffies64 has reached it; [`NEVER`] for a ban without end.
    pub expiry: u64,
}

/// The effect of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// A new entry.
    New,
    /// The entry was there; its expiry was replaced.
    Replaced,
    /// Both buckets and the overflow chain are full: the table must grow.
    NoRoom,
}

/// Counts of one sweep for bans that are over.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Entries that were over, now lifted.
    pub expired: usize,
    /// Entries still in force among those looked at.
    pub live: usize,
    /// Entries in force in the overflow areas.
    pub overflow: usize,
}

/// Published entries of each kind, those that are over but not yet swept included.
#[derive(Default)]
struct Live {
    v4_hosts: AtomicU64,
    networks: AtomicU64,
    v6_hosts: AtomicU64,
    /// Entries of IPv4 hosts in the table of networks.
    v4_apart: AtomicU64,
}

/// The maps of one generation that hold its bans.
pub(crate) struct TableMaps<F> {
    pub(crate) bans: F,
    pub(crate) uppers: F,
    pub(crate) v4_bans: F,
    pub(crate) bloom: F,
    pub(crate) control: F,
}

/// What ports and addresses have beside the firewall ([`BanTable::set_port_features`]).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PortFeatures {
    /// A port has something: a decoy, a tarpit or a pool.
    pub any: bool,
    /// Fragments and ICMP errors may be for a pool.
    pub balance: bool,
    /// There are addresses that are tarpits.
    pub tarpit: bool,
}

/// See the file's head.
pub struct BanTable {
    geometry: Geometry,
    seed: [u64; 3],
    slots: Slots,
    v4_hosts: V4Hosts,
    bloom: Words,
    control: Words,
    live: Live,
    /// Bits may stand in the bloom filter for entries that are gone.
    stale: AtomicBool,
}

impl BanTable {
    /// Over the maps of one generation.
    pub(crate) fn map(
        geometry: Geometry,
        seed: [u64; 3],
        started: u64,
        maps: TableMaps<impl AsFd>,
    ) -> Result<Self> {
        let bloom_words = geometry.bloom_words as usize * 2;
        Ok(Self {
            slots: Slots::map(geometry, maps.bans, maps.uppers)?,
            v4_hosts: V4Hosts::map(maps.v4_bans, geometry.v4_buckets, started, seed)?,
            bloom: Words::map(maps.bloom, bloom_words, "the bloom filter")?,
            control: Words::map(maps.control, size_of::<control>() / 8, "the control words")?,
            geometry,
            seed,
            live: Live::default(),
            stale: AtomicBool::new(false),
        })
    }

    /// The sizes that the table was made with.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Published entries of each kind, those that are over but not yet swept
    /// included; among the networks IPv4 hosts for which their own table has no
    /// form or room.
    pub fn filled(&self) -> BanCounts {
        // One that is lifted before whoever inserted it has counted it is below 0.
        let count = |of: &AtomicU64| (of.load(Ordering::Relaxed) as i64).max(0) as usize;
        BanCounts {
            v4_hosts: count(&self.live.v4_hosts),
            networks: count(&self.live.networks),
            v6_hosts: count(&self.live.v6_hosts),
        }
    }

    /// The jiffies that expiries of IPv4 hosts count from.
    pub(crate) fn started(&self) -> u64 {
        self.v4_hosts.started()
    }

    /// Counts anew what is published; after taking over somebody else's table.
    pub(crate) fn recount(&self) {
        let mut filled = BanCounts::default();
        let mut apart = 0;
        for at in (0..self.geometry.buckets() as usize).flat_map(Slots::of) {
            match self.slots.published(at) {
                Some((stored, _)) if stored.is_host() => filled.v6_hosts += 1,
                Some((stored, _)) => {
                    filled.networks += 1;
                    apart += u64::from(stored.is_v4_host());
                }
                None => {}
            }
        }
        let v4 = V4Hosts::slots(0..self.geometry.v4_buckets as usize);
        filled.v4_hosts = v4.filter(|at| self.v4_hosts.entry(*at).is_some()).count();
        let set = |of: &AtomicU64, number| of.store(number as u64, Ordering::Relaxed);
        set(&self.live.v4_hosts, filled.v4_hosts);
        set(&self.live.networks, filled.networks);
        set(&self.live.v6_hosts, filled.v6_hosts);
        self.live.v4_apart.store(apart, Ordering::Relaxed);
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

    /// One entry more in the table of networks and IPv6 hosts.
    fn count(&self, stored: Stored) {
        if stored.is_host() {
            self.live.v6_hosts.fetch_add(1, Ordering::Relaxed);
        } else {
            self.live.networks.fetch_add(1, Ordering::Relaxed);
            if stored.is_v4_host() {
                self.live.v4_apart.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// One entry less in the table of networks and IPv6 hosts.
    fn discount(&self, stored: Stored) {
        if stored.is_host() {
            self.live.v6_hosts.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.live.networks.fetch_sub(1, Ordering::Relaxed);
            if stored.is_v4_host() {
                self.live.v4_apart.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Puts an entry in force, or replaces the expiry of the one with the same
    /// key and policy. Lock-free; tens of nanoseconds when in cache.
    pub fn insert(&self, slot: Slot) -> Placed {
        match self.v4_hosts.place(slot.key) {
            Some(place) => self.insert_v4_host(slot, place),
            None => self.insert_keyed(slot),
        }
    }

    fn insert_v4_host(&self, slot: Slot, place: BucketPair) -> Placed {
        let is_same = |there: &Slot| there.policy == slot.policy;
        if self.may_be_apart(slot.key) {
            let mut there = false;
            self.each_keyed(slot.key, |_, entry| there |= is_same(&entry));
            if there {
                return self.insert_keyed(slot);
            }
        }
        loop {
            match self.v4_hosts.put(place, slot.policy, slot.expiry) {
                Some(InsertOutcome::New) => {
                    self.live.v4_hosts.fetch_add(1, Ordering::Relaxed);
                    self.set_bloom(slot.key, false);
                    return Placed::New;
                }
                Some(InsertOutcome::Replaced) => {
                    self.set_bloom(slot.key, false);
                    return Placed::Replaced;
                }
                Some(InsertOutcome::Raced) => std::hint::spin_loop(),
                Some(InsertOutcome::NoRoom) => return self.insert_keyed(slot),
                // First there, then not here: at no moment is it in neither. Where it
                // finds no room, what is in force stays as it is.
                None => {
                    let placed = self.insert_keyed(slot);
                    if placed == Placed::NoRoom {
                        return placed;
                    }
                    let lifted = self.remove_v4_host(slot.key, place, |p| p == slot.policy);
                    return if placed == Placed::New && !lifted.is_empty() {
                        Placed::Replaced
                    } else {
                        placed
                    };
                }
            }
        }
    }

    /// In the table whose entries have their whole key.
    fn insert_keyed(&self, slot: Slot) -> Placed {
        let stored = self.stored(slot.key);
        let word = pack(&slot);
        loop {
            match self.insert_once(stored, word) {
                Some(placed) => {
                    if placed == Placed::New {
                        self.count(stored);
                    }
                    if placed != Placed::NoRoom {
                        self.set_bloom(slot.key, stored.is_v4_host());
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
        let (index, _) = self.bloom_position(key, false);
        let words = self.geometry.bloom_words as usize;
        if let Some(place) = self.v4_hosts.place(key) {
            self.v4_hosts.prefetch(place);
        } else {
            let [first, second, ..] = self.buckets(self.stored(key));
            self.slots.prefetch(first);
            self.slots.prefetch(second);
        }
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

    /// The entries of exactly this key, at most 40.
    pub fn get(&self, key: Key) -> Vec<Slot> {
        let mut found = Vec::new();
        if let Some(place) = self.v4_hosts.place(key) {
            self.v4_hosts
                .each_of(key, place, |_, slot| found.push(slot));
        }
        if !key.is_v4_host() || self.may_be_apart(key) {
            self.each_keyed(key, |_, slot| found.push(slot));
        }
        found
    }

    /// Are there IPv4 hosts whose bans are to end later than this generation's table
    /// of them can say, and could the next one say it?
    pub fn is_past_its_form(&self, now: u64) -> bool {
        self.live.v4_apart.load(Ordering::Relaxed) > 0
            && now.saturating_sub(self.v4_hosts.started()) > u64::from(abi::V4_NEVER) / 2
    }

    fn each_keyed(&self, key: Key, mut each: impl FnMut(usize, Slot)) {
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
        let mut lifted = match self.v4_hosts.place(key) {
            Some(place) => self.remove_v4_host(key, place, &which),
            None => Vec::new(),
        };
        let stored = self.stored(key);
        self.each_keyed(key, |at, slot| {
            if which(slot.policy) && self.slots.lift(at) > DEAD {
                self.discount(stored);
                lifted.push(slot);
            }
        });
        if !lifted.is_empty() {
            self.stale.store(true, Ordering::Relaxed);
        }
        lifted
    }

    fn remove_v4_host(
        &self,
        key: Key,
        place: BucketPair,
        which: impl Fn(u16) -> bool,
    ) -> Vec<Slot> {
        let mut lifted = Vec::new();
        self.v4_hosts.each_of(key, place, |at, slot| {
            if which(slot.policy) && self.v4_hosts.lift(at, &slot) {
                lifted.push(slot);
            }
        });
        let number = lifted.len() as u64;
        self.live.v4_hosts.fetch_sub(number, Ordering::Relaxed);
        lifted
    }

    /// Every published entry that is not over at jiffy `now` (0: all), one
    /// pass, no order. Entries inserted meanwhile may be missed.
    pub fn for_each(&self, now: u64, mut each: impl FnMut(Slot)) {
        self.for_each_in(0..self.buckets_in_all(), now, &mut each);
    }

    /// How many buckets there are, of all kinds with their overflow areas, IPv4
    /// hosts last: the range of [`BanTable::for_each_in`] and [`BanTable::sweep`].
    pub fn buckets_in_all(&self) -> usize {
        self.geometry.buckets() as usize + self.geometry.v4_buckets as usize
    }

    /// The slots of these buckets: with whole keys, and of IPv4 hosts.
    fn slots_in(&self, buckets: Range<usize>) -> (Range<usize>, Range<usize>) {
        let keyed = self.geometry.buckets() as usize;
        let part = |n: usize| buckets.start.max(n)..buckets.end.max(n);
        let v4 = part(keyed);
        (
            buckets.start.min(keyed)..buckets.end.min(keyed),
            V4Hosts::slots(v4.start - keyed..v4.end - keyed),
        )
    }

    /// Calls `each` as [`BanTable::for_each`] does, for entries in these buckets only.
    pub fn for_each_in(&self, buckets: Range<usize>, now: u64, each: &mut dyn FnMut(Slot)) {
        let (keyed, v4) = self.slots_in(buckets);
        for at in keyed.flat_map(Slots::of) {
            if let Some((stored, word)) = self.slots.published(at)
                && word >> POLICY_BITS > now
            {
                each(unpack(stored.key(|half| self.hash64(half)), word));
            }
        }
        let in_force = |slot: &Slot| slot.expiry > now;
        v4.filter_map(|at| self.v4_hosts.entry(at))
            .filter(in_force)
            .for_each(each);
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
        self.each_word(|at, stored, word| {
            let expiry = word >> POLICY_BITS;
            if expiry > now {
                next = next.min(expiry);
            } else if self.slots.replace_word(at, word, 0) {
                expired += 1;
                self.discount(stored);
            }
        });
        for at in self.slots_in(0..self.buckets_in_all()).1 {
            match self.v4_hosts.entry(at) {
                Some(slot) if slot.expiry > now => next = next.min(slot.expiry),
                Some(_) => expired += self.expire_v4_host(at, now),
                None => {}
            }
        }
        if expired > 0 {
            self.stale.store(true, Ordering::Relaxed);
        }
        (expired, next)
    }

    fn expire_v4_host(&self, at: usize, now: u64) -> usize {
        let over = self.v4_hosts.expire(at, now);
        self.live
            .v4_hosts
            .fetch_sub(u64::from(over), Ordering::Relaxed);
        over.into()
    }

    /// Moves every expiry by this many jiffies, after time that jiffies did
    /// not count (suspend). Bans without end stay.
    pub fn shift_expiries(&self, jiffies: i64) {
        let moved = |expiry: u64| {
            let moved = expiry.saturating_add_signed(jiffies);
            moved.clamp(1, NEVER - 1)
        };
        self.each_word(|at, _, word| {
            let expiry = word >> POLICY_BITS;
            if expiry != NEVER {
                let moved = moved(expiry) << POLICY_BITS | word & POLICY_MASK;
                self.slots.replace_word(at, word, moved);
            }
        });
        for at in self.slots_in(0..self.buckets_in_all()).1 {
            match self.v4_hosts.entry(at) {
                Some(slot) if slot.expiry != NEVER => {
                    self.insert(Slot {
                        // Earlier is as much over, and has no form there.
                        expiry: moved(slot.expiry).max(self.v4_hosts.started()),
                        ..slot
                    });
                }
                _ => {}
            }
        }
    }

    fn each_word(&self, mut each: impl FnMut(usize, Stored, u64)) {
        for at in (0..self.geometry.buckets() as usize).flat_map(Slots::of) {
            if let Some((stored, word)) = self.slots.published(at) {
                each(at, stored, word);
            }
        }
    }

    /// One step of every finished slot's way back to free, in these buckets.
    /// Call again for the same bucket only after readers of now are done
    /// (a second is plenty).
    pub fn sweep(&self, buckets: Range<usize>, now: u64) -> Swept {
        let mut swept = Swept::default();
        let slots = &self.slots;
        let (keyed, v4) = self.slots_in(buckets);
        for at in v4 {
            match self.v4_hosts.entry(at) {
                Some(slot) if slot.expiry > now => swept.live += 1,
                Some(_) => swept.expired += self.expire_v4_host(at, now),
                None => {}
            }
        }
        for bucket in keyed {
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
                        let upper = u64::from(slots.is_host(at));
                        if slots.replace_word(at, word, 0) {
                            swept.expired += 1;
                            self.discount(Stored { key, upper });
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

    /// Count what would be dropped, and pass it?
    pub fn set_observe(&self, observe: bool) {
        self.control
            .set_masked(0, !BLOOM_BASE, u64::from(observe) << 32);
    }

    /// Tells the packet path of which families there are prefix bans; see
    /// [`crate::PrefixBans::families`].
    pub fn set_prefix_bans(&self, families: u32) {
        self.control.store(1, families.into());
    }

    /// Tells the packet path that entries may reject: from then on it reads all of a
    /// source's, where one that drops is enough otherwise.
    pub fn set_rejects(&self) {
        self.control.store(3, 1);
    }

    /// Tells the packet path whether any port has a feature, [`crate::Decoys`] among
    /// them, and whether addresses have any for packets without ports: it looks at none
    /// otherwise.
    pub fn set_port_features(&self, features: PortFeatures) {
        let PortFeatures {
            any,
            balance,
            tarpit,
        } = features;
        let bits = u64::from(any)
            | (u64::from(balance) * u64::from(abi::PORT_BALANCE))
            | (u64::from(tarpit) * u64::from(abi::PORT_ADDRESSES));
        self.control.set_masked(2, !0xffff_ffff, bits << 32);
    }
}

//! Bans of prefixes of any length (`bpf/firewall/prefix_bans.h`): a trie that the packet
//! path reads, and in front of it a bitmap, both handed on from generation to
//! generation. The trie answers with its longest match alone, so each prefix in
//! it carries the words of all that cover it: [`Nest`] knows which those are.
//!
//! The trie is the truth: whoever takes it over reads each prefix's own words
//! and writes the others again, in case an earlier daemon died between two of
//! its writes.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, btree_map},
    mem::offset_of,
    net::{IpAddr, Ipv6Addr},
};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use weir_core::Prefix;

use crate::{
    abi::{self, BAN_POLICY_BITS, BAN_POLICY_MASK},
    allow::{HINT_WORDS, each_hint},
    error::{Context, Result},
    fault,
    memory::Words,
    skeleton::firewall::types,
    table::NEVER,
};

/// Entries at most, over both families.
pub const MAX_PREFIX_BANS: usize = abi::MAX_PREFIX_BANS as usize;
/// Entries at most of all who are not the administrator: an eighth is kept for
/// manual ones, which nobody else can fill up.
pub const MAX_SHARED_PREFIX_BANS: usize = MAX_PREFIX_BANS - MAX_PREFIX_BANS / 8;
/// Entries at most that one address may be under.
pub const PREFIX_BAN_WORDS: usize = abi::PREFIX_BAN_WORDS as usize;

const KEY_BYTES: usize = 20;
const WORDS_AT: usize = 8;
const VALUE_BYTES: usize = WORDS_AT + 8 * PREFIX_BAN_WORDS;

const _: () = assert!(size_of::<types::prefix_ban_words>() == VALUE_BYTES);
const _: () = assert!(size_of::<types::prefix_key>() == KEY_BYTES);
const _: () = assert!(offset_of!(types::prefix_ban_words, own) == 0);
const _: () = assert!(offset_of!(types::prefix_ban_words, words) == 4);
const _: () = assert!(offset_of!(types::prefix_ban_words, word) == WORDS_AT);
const _: () = assert!(offset_of!(types::control, prefix_bans) == 8);

/// The maps of a generation.
pub struct PrefixBanMaps {
    pub(crate) trie: MapHandle,
    pub(crate) hint: MapHandle,
}

/// A ban of one prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixBan {
    /// The prefix that is banned.
    pub prefix: Prefix,
    /// The policy's number, with the scoped bit.
    pub policy: u16,
    /// Over when jiffies64 has reached it; [`NEVER`] for a ban without end.
    pub expiry: u64,
}

/// What an insertion did, or why it did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixBanPlaced {
    /// A new entry.
    New,
    /// The entry was there; its expiry was replaced.
    Replaced,
    /// The table has [`MAX_PREFIX_BANS`] entries already.
    Full,
    /// An address would be under more than [`PREFIX_BAN_WORDS`] entries.
    TooDeep,
}

/// The entries that the kernel has, and the maps that it has them in. One
/// writer.
pub struct PrefixBans {
    nest: Nest,
    trie: MapHandle,
    hint: Words,
    /// The prefixes that the trie has, and those it still has to be told of:
    /// more than none only when the kernel refused to be.
    present: BTreeSet<Prefix>,
    unwritten: BTreeSet<Prefix>,
    /// How many of those present need a bit of the hint.
    needed: Vec<u16>,
    /// How often all entries were gone through.
    passes: Cell<u64>,
}

impl PrefixBans {
    /// Takes over what the maps of a generation hold.
    pub fn of(maps: &PrefixBanMaps) -> Result<Self> {
        let mut bans = Self {
            nest: Nest::default(),
            trie: MapHandle::try_from(&maps.trie).context(|| "keep a map".into())?,
            hint: Words::map(&maps.hint, 2 * HINT_WORDS, "the prefix bans' hint")?,
            present: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            needed: vec![0; 2 * HINT_WORDS * 64],
            passes: Cell::default(),
        };
        let mut found = Vec::new();
        let keys: Vec<_> = bans.trie.keys().collect();
        for key in keys {
            let value = bans
                .trie
                .lookup(&key, MapFlags::ANY)
                .context(|| "read the prefix bans".into())?;
            let Some((prefix, value)) = prefix_of(&key).zip(value) else {
                continue;
            };
            bans.need(prefix);
            for word in own_words(&value) {
                bans.nest.put(unpack(prefix, word));
            }
            found.push((prefix, value));
        }
        // What nothing needs any more goes, once all that is needed is there.
        let mut bits = vec![0u64; 2 * HINT_WORDS];
        for (bit, _) in bans.needed.iter().enumerate().filter(|(_, n)| **n > 0) {
            bits[bit / 64] |= 1 << (bit % 64);
        }
        for (index, word) in bits.into_iter().enumerate() {
            bans.hint.store(index, word);
        }
        found.retain(|(prefix, value)| match bans.nest.words(*prefix) {
            Some((own, words)) => value[..] != value_of(own, &words),
            None => true,
        });
        bans.write(found.into_iter().map(|(prefix, _)| prefix))?;
        Ok(bans)
    }

    /// How many entries there are, those that are over but not yet taken out
    /// included.
    pub fn len(&self) -> usize {
        self.nest.entries
    }

    /// Whether no prefix is banned.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does the kernel have what is in force, and nothing else? Not while it
    /// refuses to take a lifted entry out.
    pub fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Which families the packet path must look for, as `control.prefix_bans` says it.
    pub fn families(&self) -> u32 {
        let is_v6 = |prefix: &Prefix| prefix.addr().is_ipv6();
        let v4 = self.present.first().is_some_and(|first| !is_v6(first));
        let v6 = self.present.last().is_some_and(is_v6);
        u32::from(v4) | u32::from(v6) << 1
    }

    /// How many entries each policy has, of those that have some.
    pub fn counts(&self) -> impl Iterator<Item = (u16, usize)> + '_ {
        self.nest.counts.iter().map(|(policy, n)| (*policy, *n))
    }

    /// All entries, in the order of their prefixes.
    pub fn iter(&self) -> impl Iterator<Item = PrefixBan> + '_ {
        self.passes.set(self.passes.get() + 1);
        self.nest
            .own
            .iter()
            .flat_map(|(prefix, words)| words.iter().map(|word| unpack(*prefix, *word)))
    }

    /// How often somebody asked for all of them so far.
    pub fn passes(&self) -> u64 {
        self.passes.get()
    }

    /// The entries whose prefix holds all of `prefix`.
    pub fn covering(&self, prefix: Prefix) -> Vec<PrefixBan> {
        let covering = self.nest.covering(prefix);
        covering
            .flat_map(|(at, words)| words.iter().map(move |word| unpack(at, *word)))
            .collect()
    }

    /// Is there an entry of this prefix and policy?
    pub fn has(&self, prefix: Prefix, policy: u16) -> bool {
        self.nest.has(prefix, policy)
    }

    /// Puts an entry in force, or replaces the expiry of the one with the same
    /// prefix and policy. Before the first entry of a family can match, the
    /// packet path must be told of [`PrefixBans::families`].
    pub fn insert(&mut self, ban: PrefixBan) -> Result<PrefixBanPlaced> {
        let is_new = !self.nest.has(ban.prefix, ban.policy);
        if is_new && self.len() >= MAX_PREFIX_BANS {
            return Ok(PrefixBanPlaced::Full);
        }
        if is_new && self.nest.depth_with(ban.prefix) > PREFIX_BAN_WORDS {
            return Ok(PrefixBanPlaced::TooDeep);
        }
        self.need(ban.prefix);
        let before = self.nest.put(ban);
        let affected: Vec<_> = self.nest.covered(ban.prefix).collect();
        if let Err(e) = self.write(affected.iter().copied()) {
            // As it was: what the kernel refused is not in force.
            match before {
                Some(before) => drop(self.nest.put(before)),
                None => drop(self.nest.take(ban.prefix, |policy| policy == ban.policy)),
            }
            let _ = self.write(affected);
            return Err(e);
        }
        Ok(match before {
            Some(_) => PrefixBanPlaced::Replaced,
            None => PrefixBanPlaced::New,
        })
    }

    /// Puts an entry in the place of the one with the same prefix and this other policy,
    /// which no cap can refuse; false where there is none, or already one of its own
    /// policy.
    pub fn exchange(&mut self, ban: PrefixBan, other: u16) -> Result<bool> {
        let Some(before) = self.nest.exchange(ban, other) else {
            return Ok(false);
        };
        let affected: Vec<_> = self.nest.covered(ban.prefix).collect();
        if let Err(e) = self.write(affected.iter().copied()) {
            // As it was: what the kernel refused is not in force.
            self.nest.exchange(before, ban.policy);
            let _ = self.write(affected);
            return Err(e);
        }
        Ok(true)
    }

    /// Lifts the entries of exactly this prefix whose policy satisfies `which`;
    /// returns them. A packet that comes after the return passes.
    pub fn remove(
        &mut self,
        prefix: Prefix,
        which: impl Fn(u16) -> bool,
    ) -> Result<Vec<PrefixBan>> {
        let lifted = self.nest.take(prefix, which);
        if !lifted.is_empty() {
            let affected: Vec<_> = self.nest.covered(prefix).chain([prefix]).collect();
            self.write(affected)?;
        }
        Ok(lifted)
    }

    /// Takes out what is over at jiffy `now`; how many. Tells the kernel again
    /// what it refused before.
    pub fn expire(&mut self, now: u64) -> Result<usize> {
        let over: Vec<_> = self.iter().filter(|ban| ban.expiry <= now).collect();
        let mut affected = BTreeSet::new();
        for ban in &over {
            self.nest.take(ban.prefix, |policy| policy == ban.policy);
            affected.insert(ban.prefix);
            affected.extend(self.nest.covered(ban.prefix));
        }
        self.write(affected)?;
        Ok(over.len())
    }

    /// Moves every expiry by this many jiffies; see
    /// [`crate::BanTable::shift_expiries`].
    pub fn shift_expiries(&mut self, jiffies: i64) -> Result<()> {
        for word in self.nest.own.values_mut().flatten() {
            let expiry = *word >> BAN_POLICY_BITS;
            if expiry != NEVER {
                let moved = expiry.saturating_add_signed(jiffies).clamp(1, NEVER - 1);
                *word = moved << BAN_POLICY_BITS | *word & BAN_POLICY_MASK;
            }
        }
        let all: Vec<_> = self.nest.own.keys().copied().collect();
        self.write(all)
    }

    /// Makes the kernel's values of these prefixes what the nest says, the
    /// covering ones first.
    fn write(&mut self, prefixes: impl IntoIterator<Item = Prefix>) -> Result<()> {
        self.unwritten.extend(prefixes);
        let mut written = 0;
        while let Some(prefix) = self.unwritten.first().copied() {
            self.write_one(prefix)?;
            self.unwritten.remove(&prefix);
            written += 1;
            if written == 1 && !self.unwritten.is_empty() {
                fault::point("prefix-bans-between-writes");
            }
        }
        Ok(())
    }

    /// A prefix without words of its own leaves the trie, and the hint after it.
    fn write_one(&mut self, prefix: Prefix) -> Result<()> {
        let key = key_of(prefix);
        if let Some((own, words)) = self.nest.words(prefix) {
            return self
                .trie
                .update(&key, &value_of(own, &words), MapFlags::ANY)
                .context(|| format!("write the ban of {prefix}"));
        }
        match self.trie.delete(&key) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).context(|| format!("lift the ban of {prefix}"));
            }
            _ => {}
        }
        if self.present.remove(&prefix) {
            each_hint(prefix, |bit| {
                self.needed[bit] -= 1;
                if self.needed[bit] == 0 {
                    self.hint.clear_bits(bit / 64, 1 << (bit % 64));
                }
            });
        }
        Ok(())
    }

    /// Sets the hint for a prefix that is about to be there.
    fn need(&mut self, prefix: Prefix) {
        if self.present.insert(prefix) {
            each_hint(prefix, |bit| {
                self.needed[bit] += 1;
                self.hint.set_bits(bit / 64, 1 << (bit % 64));
            });
        }
    }
}

/// Which entries a prefix has, and which it is under. Prefixes sort by their
/// first address and then by length, so all that one covers follow it.
#[derive(Default)]
struct Nest {
    /// Words as the kernel has them; never an empty list.
    own: BTreeMap<Prefix, Vec<u64>>,
    /// Words in all.
    entries: usize,
    /// Words of each policy that has some.
    counts: BTreeMap<u16, usize>,
}

impl Nest {
    fn has(&self, prefix: Prefix, policy: u16) -> bool {
        self.own
            .get(&prefix)
            .is_some_and(|words| words.iter().any(|word| *word as u16 == policy))
    }

    /// The prefixes that hold all of this one, itself first.
    fn covering(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &Vec<u64>)> {
        (0..=prefix.bits()).rev().filter_map(move |len| {
            let at = Prefix::new(prefix.addr(), len)?;
            self.own.get(&at).map(|words| (at, words))
        })
    }

    /// The prefixes that this one holds, itself included, if they have entries.
    fn covered(&self, prefix: Prefix) -> impl Iterator<Item = Prefix> {
        self.own
            .range(prefix..)
            .map(|(at, _)| *at)
            .take_while(move |at| prefix.covers(*at))
    }

    /// What the trie holds for a prefix: its own words, how many those are, and
    /// those that cover it. `None` when it has none of its own.
    fn words(&self, prefix: Prefix) -> Option<(usize, Vec<u64>)> {
        let own = self.own.get(&prefix)?.len();
        let words = self.covering(prefix).flat_map(|(_, words)| words).copied();
        Some((own, words.collect()))
    }

    /// The most words that one prefix would have if this one had one more.
    fn depth_with(&self, prefix: Prefix) -> usize {
        let depth = |at| {
            self.covering(at)
                .map(|(_, words)| words.len())
                .sum::<usize>()
        };
        let deepest = self.covered(prefix).map(depth).max();
        1 + deepest.unwrap_or(0).max(depth(prefix))
    }

    /// Adds an entry; returns the one of the same policy that it replaces.
    fn put(&mut self, ban: PrefixBan) -> Option<PrefixBan> {
        let words = self.own.entry(ban.prefix).or_default();
        let word = pack(ban);
        match words.iter_mut().find(|old| **old as u16 == ban.policy) {
            Some(old) => Some(unpack(ban.prefix, std::mem::replace(old, word))),
            None => {
                words.push(word);
                self.count(ban.policy);
                None
            }
        }
    }

    /// Puts an entry in the place of the one of another policy; returns that one.
    fn exchange(&mut self, ban: PrefixBan, other: u16) -> Option<PrefixBan> {
        if self.has(ban.prefix, ban.policy) {
            return None;
        }
        let words = self.own.get_mut(&ban.prefix)?;
        let old = words.iter_mut().find(|old| **old as u16 == other)?;
        let before = unpack(ban.prefix, std::mem::replace(old, pack(ban)));
        self.discount(other);
        self.count(ban.policy);
        Some(before)
    }

    fn count(&mut self, policy: u16) {
        self.entries += 1;
        *self.counts.entry(policy).or_default() += 1;
    }

    fn discount(&mut self, policy: u16) {
        self.entries -= 1;
        if let btree_map::Entry::Occupied(mut count) = self.counts.entry(policy) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn take(&mut self, prefix: Prefix, which: impl Fn(u16) -> bool) -> Vec<PrefixBan> {
        let Some(words) = self.own.get_mut(&prefix) else {
            return Vec::new();
        };
        let taken: Vec<_> = words
            .extract_if(.., |word| which(*word as u16))
            .map(|word| unpack(prefix, word))
            .collect();
        if words.is_empty() {
            self.own.remove(&prefix);
        }
        for ban in &taken {
            self.discount(ban.policy);
        }
        taken
    }
}

fn pack(ban: PrefixBan) -> u64 {
    ban.expiry.min(NEVER) << BAN_POLICY_BITS | u64::from(ban.policy)
}

fn unpack(prefix: Prefix, word: u64) -> PrefixBan {
    PrefixBan {
        prefix,
        policy: word as u16,
        expiry: word >> BAN_POLICY_BITS,
    }
}

/// `struct prefix_key`: IPv4 as ::ffff:a.b.c.d.
fn key_of(prefix: Prefix) -> [u8; KEY_BYTES] {
    let (addr, bits) = match prefix.addr() {
        IpAddr::V4(a) => (a.to_ipv6_mapped(), 96 + prefix.bits()),
        IpAddr::V6(a) => (a, prefix.bits()),
    };
    let mut key = [0; KEY_BYTES];
    key[..4].copy_from_slice(&u32::from(bits).to_ne_bytes());
    key[4..].copy_from_slice(&addr.octets());
    key
}

fn prefix_of(key: &[u8]) -> Option<Prefix> {
    let (bits, addr) = key.split_first_chunk::<4>()?;
    let addr: [u8; 16] = addr.try_into().ok()?;
    let bits = u8::try_from(u32::from_ne_bytes(*bits)).ok()?;
    Prefix::new(Ipv6Addr::from(addr).into(), bits)
}

/// `struct prefix_ban_words`
fn value_of(own: usize, words: &[u64]) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..4].copy_from_slice(&(own as u32).to_ne_bytes());
    value[4..8].copy_from_slice(&(words.len() as u32).to_ne_bytes());
    let places = value[WORDS_AT..].chunks_exact_mut(8);
    for (place, word) in places.zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    value
}

fn own_words(value: &[u8]) -> Vec<u64> {
    let own = value
        .first_chunk()
        .map_or(0, |own| u32::from_ne_bytes(*own));
    let words = value.get(WORDS_AT..).unwrap_or_default().chunks_exact(8);
    words
        .take(own as usize)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few bits, so that prefixes cover one another often.
    fn prefix() -> impl Strategy<Value = Prefix> {
        prop_oneof![
            (any::<u8>(), 1u8..=8).prop_map(|(a, len)| {
                Prefix::new(IpAddr::from([a & 0xe7, 0, 0, 0]), len).expect("8 bits of 32")
            }),
            (any::<u8>(), 1u8..=8).prop_map(|(a, len)| {
                let addr = IpAddr::from([u16::from(a & 0xe7) << 8, 0, 0, 0, 0, 0, 0, 0]);
                Prefix::new(addr, len).expect("8 bits of 128")
            }),
        ]
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(Prefix, u16, u64),
        Exchange(Prefix, u16, u16),
        Take(Prefix, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (prefix(), 1u16..4, 1u64..100).prop_map(|(p, n, e)| Step::Put(p, n, e)),
            1 => (prefix(), 1u16..4, 1u16..4).prop_map(|(p, n, o)| Step::Exchange(p, n, o)),
            1 => (prefix(), 1u16..4).prop_map(|(p, n)| Step::Take(p, n)),
        ]
    }

    fn sorted(mut words: Vec<u64>) -> Vec<u64> {
        words.sort_unstable();
        words
    }

    proptest! {
        /// A trie that answers with its longest match, kept up by rewriting
        /// only what a step affects, gives each address all that covers it.
        #[test]
        fn the_longest_match_holds_all_that_covers_an_address(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let mut nest = Nest::default();
            let mut trie: BTreeMap<Prefix, (usize, Vec<u64>)> = BTreeMap::new();
            let mut model: Vec<PrefixBan> = Vec::new();
            for step in steps {
                let (changed, policy) = match step {
                    Step::Put(prefix, policy, expiry) => {
                        let ban = PrefixBan { prefix, policy, expiry };
                        let depth = nest.depth_with(prefix);
                        let is_new = !nest.has(prefix, policy);
                        nest.put(ban);
                        if is_new {
                            let deepest = nest
                                .covered(prefix)
                                .filter_map(|at| Some(nest.words(at)?.1.len()))
                                .max();
                            prop_assert_eq!(deepest, Some(depth));
                        }
                        model.retain(|b| (b.prefix, b.policy) != (prefix, policy));
                        model.push(ban);
                        (prefix, policy)
                    }
                    Step::Exchange(prefix, policy, other) => {
                        let ban = PrefixBan { prefix, policy, expiry: 7 };
                        let there = |policy| {
                            model.iter().position(|b| (b.prefix, b.policy) == (prefix, policy))
                        };
                        let at = there(other).filter(|_| there(policy).is_none());
                        let before = at.map(|at| std::mem::replace(&mut model[at], ban));
                        prop_assert_eq!(nest.exchange(ban, other), before);
                        (prefix, policy)
                    }
                    Step::Take(prefix, policy) => {
                        let taken = nest.take(prefix, |p| p == policy);
                        let before = model.len();
                        model.retain(|b| (b.prefix, b.policy) != (prefix, policy));
                        prop_assert_eq!(taken.len(), before - model.len());
                        (prefix, policy)
                    }
                };
                let affected: Vec<_> = nest.covered(changed).chain([changed]).collect();
                for at in affected {
                    match nest.words(at) {
                        Some(value) => trie.insert(at, value),
                        None => trie.remove(&at),
                    };
                }
                prop_assert_eq!(nest.entries, model.len());
                let mut counts = BTreeMap::new();
                for ban in &model {
                    *counts.entry(ban.policy).or_default() += 1;
                }
                prop_assert_eq!(&nest.counts, &counts);
                prop_assert_eq!(nest.has(changed, policy),
                    model.iter().any(|b| (b.prefix, b.policy) == (changed, policy)));
                for first in 0..=255u8 {
                    for addr in [
                        IpAddr::from([first, 9, 9, 9]),
                        IpAddr::from([u16::from(first) << 8 | 9, 0, 0, 0, 0, 0, 0, 9]),
                    ] {
                        let longest = trie
                            .iter()
                            .filter(|(at, _)| at.contains(addr))
                            .max_by_key(|(at, _)| at.bits());
                        let found = longest.map(|(_, (_, words))| words.clone());
                        let covering = model.iter().filter(|b| b.prefix.contains(addr));
                        prop_assert_eq!(
                            sorted(found.unwrap_or_default()),
                            sorted(covering.map(|b| pack(*b)).collect())
                        );
                    }
                }
                for (at, (own, words)) in &trie {
                    let mine = model.iter().filter(|b| b.prefix == *at);
                    prop_assert_eq!(
                        sorted(words[..*own].to_vec()),
                        sorted(mine.map(|b| pack(*b)).collect())
                    );
                }
            }
        }
    }

    #[test]
    fn keys_and_values_are_read_back() {
        for text in [
            "10.0.0.0/9",
            "10.1.2.3",
            "2001:db8::/48",
            "2001:db8::7",
            "2000::/3",
        ] {
            let prefix: Prefix = text.parse().expect("a prefix");
            assert_eq!(prefix_of(&key_of(prefix)), Some(prefix));
        }
        let words = [1 << 16 | 2, NEVER << 16 | 3, 7 << 16 | 4];
        assert_eq!(own_words(&value_of(2, &words)), words[..2]);
        assert_eq!(own_words(&value_of(0, &words)), []);
        assert_eq!(own_words(&[0; 3]), []);
    }
}

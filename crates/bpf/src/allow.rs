//! The allow list in the kernel: a trie a family, and in front of them a bitmap
//! that says where an entry may lie (`bpf/firewall/allow.h`), so that the way to a
//! drop seldom walks a trie.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{Prefix, PrefixSet};

use crate::{
    abi,
    error::{Context, Result},
    memory::Words,
};

/// 64-bit words of a hint, of one family.
pub(crate) const HINT_WORDS: usize = abi::HINT_WORDS as usize;
/// Prefixes of one family that there is room for.
pub const MAX_ALLOW: usize = abi::MAX_ALLOW as usize;

/// Prefixes that no ban holds for.
pub struct AllowList {
    /// LPM tries: IPv4, IPv6.
    tries: [MapHandle; 2],
    hint: Words,
}

impl AllowList {
    /// Over the maps of a generation.
    pub(crate) fn map(tries: [MapHandle; 2], hint: &MapHandle) -> Result<Self> {
        let hint = Words::map(hint, 2 * HINT_WORDS, "the allow list")?;
        Ok(Self { tries, hint })
    }

    /// Makes the kernel's allow list equal to `wanted`. Who was and stays allowed
    /// is so all the time: what only leaves goes first, which makes room; then
    /// comes what is new, and last goes what something new covers.
    pub fn write(&self, wanted: &PrefixSet) -> Result<()> {
        let mut bits = vec![0u64; 2 * HINT_WORDS];
        for prefix in wanted.iter() {
            each_hint(prefix, |bit| bits[bit / 64] |= 1 << (bit % 64));
        }
        for (index, word) in bits.iter().enumerate() {
            self.hint.set_bits(index, *word);
        }
        let mut keys = [Vec::new(), Vec::new()];
        for prefix in wanted.iter() {
            let (family, key) = trie_key(prefix);
            keys[family].push(key);
        }
        for (mut map, mut keys) in self.tries.iter().zip(keys) {
            keys.sort_unstable();
            write_trie(&mut map, &keys, wanted)?;
        }
        for (index, word) in bits.into_iter().enumerate() {
            self.hint.store(index, word);
        }
        Ok(())
    }
}

/// A map of prefixes that [`write_trie`] brings up to date.
trait Trie {
    fn held(&self) -> Vec<Vec<u8>>;
    fn put(&mut self, key: &[u8]) -> Result<()>;
    fn delete(&mut self, key: &[u8]) -> Result<()>;
}

impl Trie for &MapHandle {
    fn held(&self) -> Vec<Vec<u8>> {
        self.keys().collect()
    }

    fn put(&mut self, key: &[u8]) -> Result<()> {
        self.update(key, &[1], MapFlags::ANY)
            .context(|| match prefix_of(key) {
                Some(prefix) => format!("allow {prefix}"),
                None => "allow a prefix".into(),
            })
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        MapCore::delete(*self, key).context(|| "take a prefix off the allow list".into())
    }
}

/// `keys`: those of `wanted`, sorted.
fn write_trie(trie: &mut impl Trie, keys: &[Vec<u8>], wanted: &PrefixSet) -> Result<()> {
    let mut held = trie.held();
    held.sort_unstable();
    let stale = held.iter().filter(|key| keys.binary_search(key).is_err());
    // What overlaps a wanted prefix goes last: who was and stays allowed by
    // another prefix, wider or narrower, is so all the time.
    let all: Vec<Prefix> = wanted.iter().collect();
    let overlaps = |stale: Prefix| {
        let next = all.partition_point(|wanted| *wanted < stale);
        wanted.covering(stale).is_some() || all.get(next).is_some_and(|p| stale.covers(*p))
    };
    let (mut covered, leaving): (Vec<_>, Vec<_>) =
        stale.partition(|key| prefix_of(key).is_some_and(overlaps));
    for key in leaving {
        trie.delete(key)?;
    }
    let mut new: Vec<&Vec<u8>> = keys
        .iter()
        .filter(|key| held.binary_search(key).is_err())
        .collect();
    // The widest first: they cover what must make room.
    new.sort_unstable_by_key(|key| prefix_of(key).map(Prefix::bits));
    for key in new {
        if let Err(full) = trie.put(key) {
            if covered.is_empty() {
                return Err(full);
            }
            for key in covered.drain(..) {
                trie.delete(key)?;
            }
            trie.put(key)?;
        }
    }
    covered.into_iter().try_for_each(|key| trie.delete(key))
}

/// The way back from [`trie_key`].
fn prefix_of(key: &[u8]) -> Option<Prefix> {
    let (bits, addr) = key.split_first_chunk::<4>()?;
    let bits = u8::try_from(u32::from_ne_bytes(*bits)).ok()?;
    let addr: IpAddr = match addr.len() {
        4 => <[u8; 4]>::try_from(addr).ok()?.into(),
        _ => <[u8; 16]>::try_from(addr).ok()?.into(),
    };
    Prefix::new(addr, bits)
}

fn trie_key(prefix: Prefix) -> (usize, Vec<u8>) {
    let mut key = u32::from(prefix.bits()).to_ne_bytes().to_vec();
    match prefix.addr() {
        IpAddr::V4(a) => {
            key.extend(a.octets());
            (0, key)
        }
        IpAddr::V6(a) => {
            key.extend(a.octets());
            (1, key)
        }
    }
}

/// The bits of all sources that a prefix covers; mirrors `allowed4` and
/// `allowed6` of bpf/firewall/allow.h, and `may_have_prefix_bans` of bpf/firewall/prefix_bans.h.
pub(crate) fn each_hint(prefix: Prefix, mut set: impl FnMut(usize)) {
    match prefix.addr() {
        IpAddr::V4(a) => {
            let first = a.to_bits() >> 16;
            let halves = 1u32 << 16u8.saturating_sub(prefix.bits());
            (first..first + halves).for_each(|half| set(half as usize));
        }
        IpAddr::V6(a) => {
            let first = (a.to_bits() >> 96) as u32;
            // 2^16 uppers in a row fold to every value already.
            let uppers = 1u32 << 32u8.saturating_sub(prefix.bits()).min(16);
            for upper in (0..uppers).map(|n| first.wrapping_add(n)) {
                set(65_536 + ((upper ^ upper >> 16) & 0xffff) as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(prefix: &str) -> Vec<usize> {
        let mut bits = Vec::new();
        each_hint(prefix.parse().expect("a prefix"), |bit| bits.push(bit));
        bits.sort_unstable();
        bits.dedup();
        bits
    }

    /// Where the packet path looks for this source.
    fn looked_at(addr: IpAddr) -> usize {
        match addr {
            IpAddr::V4(a) => (a.to_bits() >> 16) as usize,
            IpAddr::V6(a) => {
                let upper = (a.to_bits() >> 96) as u32;
                65_536 + ((upper ^ upper >> 16) & 0xffff) as usize
            }
        }
    }

    /// A trie with room for so many, which watches over some addresses.
    struct Watched {
        keys: std::collections::BTreeSet<Vec<u8>>,
        most: usize,
        allowed: Vec<IpAddr>,
    }

    impl Watched {
        fn look(&self) {
            for addr in &self.allowed {
                let covers = |key: &Vec<u8>| {
                    let host = Prefix::host(*addr);
                    prefix_of(key).is_some_and(|prefix| prefix.covers(host))
                };
                assert!(self.keys.iter().any(covers), "{addr} is let down");
            }
        }
    }

    impl Trie for Watched {
        fn held(&self) -> Vec<Vec<u8>> {
            self.keys.iter().cloned().collect()
        }

        fn put(&mut self, key: &[u8]) -> Result<()> {
            if self.keys.len() >= self.most && !self.keys.contains(key) {
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                return Err(crate::Error::new("allow a prefix", full));
            }
            self.keys.insert(key.to_vec());
            self.look();
            Ok(())
        }

        fn delete(&mut self, key: &[u8]) -> Result<()> {
            assert!(self.keys.remove(key));
            self.look();
            Ok(())
        }
    }

    /// From one list to the next and back, with room and with none to spare.
    #[test]
    fn who_was_and_stays_allowed_is_so_all_the_time() {
        for (before, after, addresses) in [
            // Narrowed, widened, and both beside one another.
            (
                &["10.1.0.0/16"][..],
                &["10.1.2.0/24"][..],
                &["10.1.2.3"][..],
            ),
            (
                &["2001:db8::/32"],
                &["2001:db8:7::/48", "2001:db8:9::9"],
                &["2001:db8:7::7", "2001:db8:9::9"],
            ),
            (
                &["10.1.0.0/16", "10.2.2.2", "10.2.2.3"],
                &["10.1.7.7", "10.2.0.0/16", "10.3.3.3"],
                &["10.1.7.7", "10.2.2.2", "10.2.2.3"],
            ),
            (
                &["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1"],
                &["10.1.2.3", "192.0.2.0/24", "198.51.100.1"],
                &["10.1.2.3", "192.0.2.1"],
            ),
            (&["0.0.0.0/0"], &["203.0.113.5"], &["203.0.113.5"]),
        ] {
            let set = |all: &[&str]| -> PrefixSet {
                all.iter().map(|p| p.parse().expect("a prefix")).collect()
            };
            let sorted = |set: &PrefixSet| {
                let mut keys: Vec<_> = set.iter().map(|p| trie_key(p).1).collect();
                keys.sort_unstable();
                keys
            };
            for (before, after) in [(before, after), (after, before)] {
                let (before, after) = (set(before), set(after));
                let (old, new) = (sorted(&before), sorted(&after));
                // Without room for both, what overlaps has to go first.
                for most in [old.len().max(new.len()), old.len() + new.len()] {
                    let ample = most == old.len() + new.len();
                    let watched = addresses.iter().filter(|_| ample);
                    let mut trie = Watched {
                        keys: old.iter().cloned().collect(),
                        most,
                        allowed: watched.map(|a| a.parse().expect("an address")).collect(),
                    };
                    write_trie(&mut trie, &new, &after).expect("there is room");
                    assert!(trie.keys.iter().eq(&new));
                }
            }
        }
    }

    #[test]
    fn a_key_says_its_prefix() {
        for text in [
            "0.0.0.0/0",
            "10.1.2.3",
            "10.1.0.0/16",
            "::/0",
            "2001:db8::/32",
            "::1",
        ] {
            let prefix: Prefix = text.parse().expect("a prefix");
            assert_eq!(prefix_of(&trie_key(prefix).1), Some(prefix));
        }
    }

    #[test]
    fn every_covered_source_has_its_bit() {
        for (prefix, sources) in [
            ("10.1.2.3", &["10.1.2.3"][..]),
            ("10.1.0.0/16", &["10.1.0.0", "10.1.255.255"]),
            ("10.0.0.0/8", &["10.0.0.0", "10.77.1.2", "10.255.255.255"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255", "8.8.8.8"]),
            ("2001:db8::1", &["2001:db8::1"]),
            ("2001:db8::/32", &["2001:db8:ffff::9"]),
            ("2a00::/20", &["2a00:fff:1::", "2a00::1", "2a00:800::"]),
            ("2000::/3", &["3fff:ffff::", "2000::", "2a01:4f8::1"]),
            ("::/0", &["ffff::", "::1", "2a01:4f8::1"]),
        ] {
            let bits = hints(prefix);
            for source in sources {
                let addr = source.parse().expect("an address");
                assert!(bits.contains(&looked_at(addr)), "{source} in {prefix}");
            }
        }
        assert_eq!(hints("10.1.2.3").len(), 1);
        assert_eq!(hints("10.0.0.0/8").len(), 256);
        assert_eq!(hints("0.0.0.0/0").len(), 65_536);
        assert_eq!(hints("2001:db8::/32").len(), 1);
        assert_eq!(hints("::/0").len(), 65_536);
    }
}

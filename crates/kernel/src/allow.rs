//! The allow list in the kernel: a trie a family, and in front of them a bitmap
//! that says where an entry may lie (`bpf/stage_allow.h`), so that the way to a
//! drop seldom walks a trie.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_core::{Prefix, PrefixSet};

use crate::{
    error::{Context, Result},
    memory::Words,
};

/// `HINT_WORDS` of bpf/stage_allow.h: 65,536 bits a family.
pub(crate) const HINT_WORDS: usize = 65_536 / 64;

/// Prefixes that no ban holds for.
pub struct AllowList {
    /// LPM tries: IPv4, IPv6.
    tries: [MapHandle; 2],
    hint_map: MapHandle,
    hint: Words,
}

impl AllowList {
    /// Over the maps of a generation.
    pub(crate) fn map(tries: [MapHandle; 2], hint_map: MapHandle) -> Result<Self> {
        let hint = Words::map(&hint_map, 2 * HINT_WORDS, "the allow list")?;
        Ok(Self {
            tries,
            hint_map,
            hint,
        })
    }

    /// The maps, to pin and to hand on: IPv4, IPv6, hint.
    pub(crate) fn maps(&self) -> [&MapHandle; 3] {
        let [v4, v6] = &self.tries;
        [v4, v6, &self.hint_map]
    }

    /// Makes the kernel's allow list equal to `wanted`: additions first, so
    /// that nobody who stays allowed is dropped in between.
    pub fn write(&self, wanted: &PrefixSet) -> Result<()> {
        let mut bits = vec![0u64; 2 * HINT_WORDS];
        for prefix in wanted.iter() {
            each_hint(prefix, |bit| bits[bit / 64] |= 1 << (bit % 64));
        }
        for (index, word) in bits.iter().enumerate() {
            self.hint.set_bits(index, *word);
        }
        let mut keep = [Vec::new(), Vec::new()];
        for prefix in wanted.iter() {
            let (family, key) = trie_key(prefix);
            self.tries[family]
                .update(&key, &[1], MapFlags::ANY)
                .context(|| format!("allow {prefix}"))?;
            keep[family].push(key);
        }
        for (map, mut keep) in self.tries.iter().zip(keep) {
            keep.sort_unstable();
            let stale: Vec<_> = map
                .keys()
                .filter(|key| keep.binary_search(key).is_err())
                .collect();
            for key in stale {
                map.delete(&key)
                    .context(|| "take a prefix off the allow list".into())?;
            }
        }
        for (index, word) in bits.into_iter().enumerate() {
            self.hint.store(index, word);
        }
        Ok(())
    }
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
/// `allowed6` of bpf/stage_allow.h, and `may_be_wide` of bpf/stage_wide.h.
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

//! Whose packets the netfilter program judges: a table of interface indices in
//! shared memory, open to eight places from the one that the hash of an index
//! names (`bpf/firewall/netfilter.h`). An index that leaves its place moves no other, so
//! that a packet at any moment finds its own.

use libbpf_rs::MapHandle;

use crate::{
    abi,
    error::{Error, Result},
    memory::Words,
};

const PLACES: usize = abi::NF_INTERFACES as usize;
const PROBES: usize = abi::NF_PROBES as usize;

/// The interfaces of an instance.
pub(crate) struct Interfaces {
    words: Words,
}

impl Interfaces {
    /// Over the map of a generation.
    pub(crate) fn map(map: &MapHandle) -> Result<Self> {
        let words = Words::map(map, PLACES, "netfilter's interfaces")?;
        Ok(Self { words })
    }

    /// Has this interface's packets judged, too.
    ///
    /// # Errors
    /// The eight places are taken: some hundred interfaces do not come to that.
    pub(crate) fn add(&self, ifindex: u32) -> Result<()> {
        let mut free = None;
        for place in places(ifindex) {
            match self.words.load(place) {
                there if there == word(ifindex) => return Ok(()),
                0 => free = free.or(Some(place)),
                _ => {}
            }
        }
        let Some(place) = free else {
            return Err(Error::refused(
                format!("name the interface with index {ifindex} to netfilter"),
                format!(
                    "the table of {PLACES} has no room near its place: name fewer interfaces, or backend = \"nft\""
                ),
            ));
        };
        self.words.store(place, word(ifindex));
        Ok(())
    }

    /// Has only these interfaces' packets judged: takes out all others.
    pub(crate) fn keep_only(&self, interfaces: &[u32]) {
        for place in 0..self.words.len() {
            let there = self.words.load(place);
            if there != 0 && !interfaces.iter().any(|index| word(*index) == there) {
                self.words.store(place, 0);
            }
        }
    }
}

/// 0 is an empty place.
fn word(ifindex: u32) -> u64 {
    u64::from(ifindex) + 1
}

/// The places where an interface's index may be; mirrors `is_judged` of
/// bpf/firewall/netfilter.h.
fn places(ifindex: u32) -> impl Iterator<Item = usize> {
    let first = (ifindex.wrapping_mul(abi::NF_HASH_FACTOR) >> abi::NF_HASH_SHIFT) as usize;
    (first..first + PROBES).map(|place| place % PLACES)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use libbpf_rs::{MapType, libbpf_sys as sys};

    use super::*;

    #[test]
    fn neighbouring_indices_do_not_crowd() {
        for first in [1, 60_000, u32::MAX - 600] {
            let mut taken = HashSet::new();
            for ifindex in first..first + 512 {
                assert!(
                    places(ifindex).any(|place| taken.insert(place)),
                    "{ifindex}"
                );
            }
        }
    }
    /// Root: makes a map as bpf/firewall/netfilter.h does.
    #[test]
    fn root_a_ninth_interface_of_one_place_is_refused() {
        let options = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as _,
            map_flags: sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(
            MapType::Array,
            Some("nf_test"),
            4,
            8,
            PLACES as u32,
            &options,
        );
        let interfaces = Interfaces::map(&map.unwrap()).unwrap();
        let place = places(1).next();
        let crowd: Vec<u32> = (1..)
            .filter(|index| places(*index).next() == place)
            .take(9)
            .collect();
        let (ninth, eight) = crowd.split_last().unwrap();
        for index in eight.iter().chain(eight) {
            interfaces.add(*index).unwrap();
        }
        let refused = interfaces.add(*ninth).unwrap_err().to_string();
        assert!(refused.contains(&format!("index {ninth}")), "{refused}");

        interfaces.keep_only(&eight[1..]);
        interfaces.add(*ninth).unwrap();
        interfaces.add(eight[0]).unwrap_err();
        interfaces.keep_only(&[]);
        assert!((0..PLACES).all(|place| interfaces.words.load(place) == 0));
    }
}

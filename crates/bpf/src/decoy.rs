//! Decoy ports in the kernel: which ports, which addresses are this host's,
//! and what was answered (`bpf/answer/decoy.h`). The maps go from generation to
//! generation; whether a generation has the stage at all is decided when it is
//! made.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys as sys};
use weir_core::decoy::DecoyPorts;

use crate::{
    abi,
    error::{Context, Error, Result},
    memory::Words,
    probe,
    skeleton::firewall::types::{decoy_counter, decoy_guesses},
};

const _: () = assert!(size_of::<decoy_counter>() == 32 && size_of::<decoy_guesses>() == 16);

/// Words of both bitmaps.
const PORT_WORDS: usize = 2 * abi::DECOY_PORT_WORDS as usize;
/// Addresses of this host that decoy ports answer for.
pub const MAX_OWN: usize = abi::MAX_OWN as usize;

/// What decoy ports have done since the maps were made, over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecoyCounts {
    /// SYNs answered with a cookie.
    pub answered: u64,
    /// SYNs above the limit, not answered.
    pub silent: u64,
    /// Cookies that came back and were wrong. Above eight in a second none is
    /// looked at, and none is counted.
    pub wrong: u64,
}

/// The maps of decoy ports.
pub struct Decoys {
    /// Ports, own addresses, conversations, counters, guesses.
    maps: [MapHandle; 5],
    ports: Words,
}

impl Decoys {
    /// Over the maps of a generation, in the order that `maps` has.
    pub(crate) fn map(maps: [MapHandle; 5]) -> Result<Self> {
        let ports = Words::map(&maps[0], PORT_WORDS, "the decoy ports")?;
        Ok(Self { maps, ports })
    }

    /// Is any port a decoy? Then the next generation has the stage.
    pub fn are_there(&self) -> bool {
        (0..PORT_WORDS).any(|n| self.ports.load(n) != 0)
    }

    /// Makes these the decoy ports.
    pub fn write_ports(&self, ports: &DecoyPorts) {
        for (n, word) in ports.words().iter().enumerate() {
            if self.ports.load(n) != *word {
                self.ports.store(n, *word);
            }
        }
    }

    /// Makes these the addresses of this host.
    ///
    /// # Errors
    /// More than [`MAX_OWN`] of them.
    pub fn write_own(&self, own: &[IpAddr]) -> Result<()> {
        if own.len() > MAX_OWN {
            return Err(Error::refused(
                "tell the decoy ports this host's addresses",
                format!("there are {}: at most {MAX_OWN}", own.len()),
            ));
        }
        let mut keys: Vec<_> = own.iter().map(|addr| mapped(*addr).to_vec()).collect();
        keys.sort_unstable();
        let map = &self.maps[1];
        let there: Vec<_> = map.keys().collect();
        // Those that went first, so that a full table of others has room.
        for key in there.iter().filter(|k| keys.binary_search(k).is_err()) {
            map.delete(key)
                .context(|| "forget an address of this host".into())?;
        }
        for key in keys.iter().filter(|key| !there.contains(key)) {
            map.update(key, &[1], MapFlags::ANY)
                .context(|| "tell the decoy ports an address of this host".into())?;
        }
        Ok(())
    }

    /// What they have done.
    pub fn counts(&self) -> Result<DecoyCounts> {
        let cpus = self.maps[3]
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| "read the counters of decoy ports".into())?
            .unwrap_or_default();
        let whole = cpus
            .iter()
            .filter(|b| b.len() >= size_of::<decoy_counter>());
        let guesses = self.maps[4]
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| "read the guesses at cookies".into())?
            .filter(|bytes| bytes.len() >= size_of::<decoy_guesses>());
        let wrong = guesses.map_or(0, |bytes| {
            // SAFETY: long enough, and every bit pattern is a `decoy_guesses`.
            let guesses: decoy_guesses = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            guesses.wrong
        });
        let none = DecoyCounts {
            wrong,
            ..DecoyCounts::default()
        };
        Ok(whole.fold(none, |sum, bytes| {
            // SAFETY: long enough, and every bit pattern is a `decoy_counter`.
            let c: decoy_counter = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            DecoyCounts {
                answered: sum.answered + c.answered,
                silent: sum.silent + c.silent,
                ..sum
            }
        }))
    }
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Can this kernel answer with its cookies (Linux 6.0)? The packet path of a
/// generation with decoy ports does not load otherwise.
pub fn supported() -> bool {
    [sys::BPF_PROG_TYPE_XDP, sys::BPF_PROG_TYPE_SCHED_CLS]
        .into_iter()
        .all(|program| probe::has_helper(program, sys::BPF_FUNC_tcp_raw_check_syncookie_ipv6))
}

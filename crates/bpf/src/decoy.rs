//! Decoy and tarpit ports in the kernel: which ports, which addresses are this host's,
//! and what was answered (`bpf/answer/decoy.h`, `bpf/answer/tarpit.h`). The maps are the
//! instance's; the program that answers is the business of `answers`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys as sys};
use weir_core::{PrefixSet, decoy::DecoyPorts};

use crate::{
    abi,
    error::{Context, Error, Result},
    memory::Words,
    probe,
    skeleton::answer::types::{decoy_counter, decoy_guesses, tarpit_counter},
};

const _: () = assert!(size_of::<decoy_counter>() == 32 && size_of::<decoy_guesses>() == 16);

/// Words of both protocols' ports.
const PORT_WORDS: usize = 2 * abi::PORT_FEATURE_WORDS as usize;
const PORTS_A_WORD: usize = abi::PORTS_A_WORD as usize;
/// Addresses of this host that decoy ports answer for.
pub const MAX_OWN: usize = abi::MAX_OWN as usize;
/// Prefixes whose every address is a tarpit.
pub const MAX_TARPIT_PREFIXES: usize = abi::TARPIT_PREFIXES as usize;

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

/// What tarpit ports have done since the maps were made, over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TarpitCounts {
    /// SYNs answered with a cookie.
    pub answered: u64,
    /// Later packets answered with a window of zero.
    pub held: u64,
    /// Packets above a limit, not answered.
    pub silent: u64,
    /// ARP requests and neighbour solicitations answered for addresses of tarpits.
    pub resolved: u64,
    /// Those that this host asked in the place of somebody else, to find out whether
    /// anybody answers.
    pub asked: u64,
    /// Those for addresses that found no place to be learned, or took another's.
    pub crowded: u64,
}

/// An interface on which addresses of tarpits are answered for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TarpitLink {
    /// The interface's link-layer address.
    pub mac: [u8; 6],
    /// This host's address there to ask from over IPv4; none: it does not ask.
    pub addr4: Option<Ipv4Addr>,
    /// This host's address there to ask from over IPv6; none: it does not ask.
    pub addr6: Option<Ipv6Addr>,
}

/// The maps of decoy and tarpit ports.
pub struct Decoys {
    /// Ports, own addresses, conversations, counters, guesses; of tarpits counters,
    /// prefixes, addresses that are alive, and interfaces.
    maps: [MapHandle; 9],
    ports: Words,
}

impl Decoys {
    /// Over the maps of a generation, in the order that `maps` has.
    pub(crate) fn map(maps: [MapHandle; 9]) -> Result<Self> {
        let ports = Words::map(&maps[0], PORT_WORDS, "the decoy ports")?;
        Ok(Self { maps, ports })
    }

    /// Whether any port is a decoy.
    pub fn are_there(&self) -> bool {
        self.any_has(DECOYS)
    }

    /// Whether any port is a tarpit.
    pub fn are_tarpits_there(&self) -> bool {
        self.any_has(TARPITS)
    }

    fn any_has(&self, bits: u64) -> bool {
        (0..PORT_WORDS).any(|n| self.ports.load(n) & bits != 0)
    }

    /// Makes these the decoy ports; see also [`crate::BanTable::set_port_features`].
    pub fn write_ports(&self, ports: &DecoyPorts) {
        for (n, decoys) in features(ports.words(), abi::PORT_DECOY).enumerate() {
            self.ports.set_masked(n, DECOYS, decoys);
        }
    }

    /// Makes these the tarpit ports; see also [`crate::BanTable::set_port_features`].
    pub fn write_tarpits(&self, ports: &DecoyPorts) {
        for (n, tarpits) in features(ports.words(), abi::PORT_TARPIT).enumerate() {
            self.ports.set_masked(n, TARPITS, tarpits);
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
        let keys = own.iter().map(|addr| (mapped(*addr).to_vec(), vec![1]));
        write_whole(&self.maps[1], keys.collect())
            .context(|| "tell the decoy ports this host's addresses".into())
    }

    /// Is there a prefix whose every address is a tarpit?
    pub fn are_prefixes_there(&self) -> bool {
        self.maps[6].keys().next().is_some()
    }

    /// Makes these the prefixes whose every address is a tarpit, but for those that
    /// somebody has; of the second ones an address is one only once nobody has answered
    /// for it for so many seconds. See also [`crate::BanTable::set_port_features`].
    ///
    /// # Errors
    /// More than [`MAX_TARPIT_PREFIXES`] of them.
    pub fn write_prefixes(&self, at_once: &PrefixSet, dark: &PrefixSet, after: u32) -> Result<()> {
        let of = |prefixes: &PrefixSet, after: u32| -> Vec<_> {
            let keys = prefixes.iter().map(|prefix| {
                let v4 = if prefix.addr().is_ipv4() { 96 } else { 0 };
                let mut key = (u32::from(prefix.bits()) + v4).to_ne_bytes().to_vec();
                key.extend(mapped(prefix.addr()));
                (key, after.to_ne_bytes().to_vec())
            });
            keys.collect()
        };
        let keys = [of(dark, after), of(at_once, 0)].concat();
        write_whole(&self.maps[6], keys.into_iter().collect())
            .context(|| "tell the packet path the addresses of tarpits".into())
    }

    /// Makes these interfaces, by index, with their link-layer addresses, those on which
    /// addresses of tarpits are answered for.
    ///
    /// # Errors
    /// More than the table has room for.
    pub fn write_links(&self, links: &BTreeMap<u32, TarpitLink>) -> Result<()> {
        let links = links.iter().map(|(index, link)| {
            let mut value = link.mac.to_vec();
            value.extend([0; 2]);
            value.extend(link.addr4.map_or([0; 4], |addr| addr.octets()));
            value.extend(link.addr6.map_or([0; 16], |addr| addr.octets()));
            (index.to_ne_bytes().to_vec(), value)
        });
        write_whole(&self.maps[8], links.collect())
            .context(|| "tell the packet path the interfaces of tarpits".into())
    }

    /// Notes that these addresses are alive now, by `seconds` of CLOCK_BOOTTIME: for an
    /// hour they are no tarpits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn note_alive(&self, alive: &[IpAddr], seconds: u32) -> Result<()> {
        alive.iter().try_for_each(|addr| {
            self.maps[7]
                .update(&mapped(*addr), &seconds.to_ne_bytes(), MapFlags::ANY)
                .context(|| format!("tell the packet path that {addr} is alive"))
        })
    }

    /// Counters of the tarpit ports, summed over all CPUs.
    pub fn tarpit_counts(&self) -> Result<TarpitCounts> {
        let cpus = self.maps[5]
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .context(|| "read the counters of tarpit ports".into())?
            .unwrap_or_default();
        let whole = cpus
            .iter()
            .filter(|b| b.len() >= size_of::<tarpit_counter>());
        Ok(whole.fold(TarpitCounts::default(), |sum, bytes| {
            // SAFETY: long enough, and every bit pattern is a `tarpit_counter`.
            let c: tarpit_counter = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            TarpitCounts {
                answered: sum.answered + c.answered,
                held: sum.held + c.held,
                silent: sum.silent + c.silent,
                resolved: sum.resolved + c.resolved,
                asked: sum.asked + c.asked,
                crowded: sum.crowded + c.crowded,
            }
        }))
    }

    /// Counters of the decoy ports, summed over all CPUs.
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

/// Has the map hold these and no others. Those that went first, so that a full table of
/// others has room.
fn write_whole(map: &MapHandle, wanted: BTreeMap<Vec<u8>, Vec<u8>>) -> libbpf_rs::Result<()> {
    let there: Vec<_> = map.keys().collect();
    for key in there.iter().filter(|key| !wanted.contains_key(*key)) {
        map.delete(key)?;
    }
    for (key, value) in &wanted {
        if map.lookup(key, MapFlags::ANY)?.as_ref() != Some(value) {
            map.update(key, value, MapFlags::ANY)?;
        }
    }
    Ok(())
}

/// The bits of decoys in a word of port features.
const DECOYS: u64 = of_all_ports(abi::PORT_DECOY);
/// The bits of tarpits there.
const TARPITS: u64 = of_all_ports(abi::PORT_TARPIT);

/// The bit of a feature for all ports of a word.
const fn of_all_ports(feature: u32) -> u64 {
    let (mut bits, mut port) = (0, 0);
    while port < abi::PORTS_A_WORD {
        bits |= (feature as u64) << (port * abi::PORT_FEATURE_BITS);
        port += 1;
    }
    bits
}

/// The words of port features in which these ports, a bit each, have this one.
fn features(ports: &[u64], feature: u32) -> impl Iterator<Item = u64> {
    let parts = ports
        .iter()
        .flat_map(|word| (0..64 / PORTS_A_WORD).map(move |part| word >> (part * PORTS_A_WORD)));
    parts.map(move |ports| {
        (0..PORTS_A_WORD)
            .filter(|port| ports >> port & 1 != 0)
            .map(|port| u64::from(feature) << (port * abi::PORT_FEATURE_BITS as usize))
            .sum()
    })
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Can this kernel answer with its cookies (Linux 6.0)? The program at decoy ports does
/// not load otherwise.
pub fn supported() -> bool {
    [sys::BPF_PROG_TYPE_XDP, sys::BPF_PROG_TYPE_SCHED_CLS]
        .into_iter()
        .all(|program| probe::has_helper(program, sys::BPF_FUNC_tcp_raw_check_syncookie_ipv6))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ports of one word of sixteen, the first and the last of each protocol.
    #[test]
    fn ports_are_the_bits_that_the_packet_path_reads() {
        let ports = ["1/tcp", "2/tcp", "65535/tcp", "16/udp", "65535/udp"];
        let ports: Vec<_> = ports.iter().map(|port| port.parse().unwrap()).collect();
        let words: Vec<_> = features(DecoyPorts::new(&ports).words(), abi::PORT_DECOY).collect();
        assert_eq!(words.len(), PORT_WORDS);
        // As bpf/firewall/port_features.h has it.
        let decoy = |protocol: usize, port: usize| {
            let word = words[protocol * abi::PORT_FEATURE_WORDS as usize + port / 16];
            word >> (port % 16 * 4) & 15 == u64::from(abi::PORT_DECOY)
        };
        let all = (0..2).flat_map(|protocol| (0..65536).map(move |port| (protocol, port)));
        let decoys: Vec<_> = all
            .filter(|(protocol, port)| decoy(*protocol, *port))
            .collect();
        let wanted = [(0, 1), (0, 2), (0, 65535), (1, 16), (1, 65535)];
        assert_eq!(decoys, wanted);
        assert!(words.iter().all(|word| word & !DECOYS == 0));
    }
}

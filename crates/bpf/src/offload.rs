//! What an interface's driver has switched on that an early hook has to do with:
//! packets put together before the hook sees them, and receive queues. Read by
//! ethtool's requests; nothing is changed.

use std::io;

use crate::device::ethtool;

/// How packets are put together before the stack sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Packets are joined by the network core, behind the driver (GRO).
    pub gro: bool,
    /// Packets are joined by the hardware, so that each part may be had again (hardware
    /// GRO).
    pub gro_hw: bool,
    /// Packets are joined by the hardware, for good (LRO).
    pub lro: bool,
}

/// How many receive queues a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Queues in use.
    pub now: u32,
    /// The most queues that the driver could have.
    pub most: u32,
}

const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
/// `ETH_SS_FEATURES`: the set of the names of features.
const SET_OF_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`, in words.
const NAME_WORDS: usize = 8;
/// A kernel with more features than this is not of this world.
const MOST_FEATURES: usize = 4096;

/// A request whose structure is made of words, the command first.
fn ask(name: &str, words: &mut [u32]) -> io::Result<()> {
    // SAFETY: the callers below give each command its whole structure, with
    // as much room at the end as it was asked for before.
    unsafe { ethtool(name, words.as_mut_ptr().cast()) }
}

/// The offloads that are on.
pub fn offloads(name: &str) -> io::Result<Offloads> {
    // struct ethtool_sset_info: command, reserved, a mask of 64 bits, a size.
    let mut info = [GSSET_INFO, 0, 0, 0, 0];
    let mask = (1u64 << SET_OF_FEATURES).to_ne_bytes();
    for (word, bytes) in info[2..4].iter_mut().zip(mask.chunks(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    ask(name, &mut info)?;
    // The kernel's own, the same for every device: it does not change.
    let count = (info[4] as usize).min(MOST_FEATURES);
    if count != info[4] as usize {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // struct ethtool_gstrings: command, set, count, names.
    let mut strings = vec![0; 3 + count * NAME_WORDS];
    strings[..3].copy_from_slice(&[GSTRINGS, SET_OF_FEATURES, count as u32]);
    ask(name, &mut strings)?;
    // struct ethtool_gfeatures: command, blocks, and of each 32 features what
    // is available, requested, active and never changed.
    let blocks = count.div_ceil(32);
    let mut features = vec![0; 2 + blocks * 4];
    features[..2].copy_from_slice(&[GFEATURES, blocks as u32]);
    ask(name, &mut features)?;

    let active = |wanted: &str| {
        let mut names = strings[3..].chunks(NAME_WORDS);
        let found = names.position(|words| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.split(|byte| *byte == 0).next() == Some(wanted.as_bytes())
        });
        found.is_some_and(|bit| features[2 + bit / 32 * 4 + 2] & 1 << (bit % 32) != 0)
    };
    Ok(Offloads {
        gro: active("rx-gro"),
        gro_hw: active("rx-gro-hw"),
        lro: active("rx-lro"),
    })
}

/// The receive queues of a driver that tells them.
pub fn channels(name: &str) -> io::Result<Channels> {
    // struct ethtool_channels: command, the most and then the current numbers
    // of receiving, sending, other and combined queues.
    let mut words = [GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
    ask(name, &mut words)?;
    Ok(Channels {
        now: words[5].saturating_add(words[8]),
        most: words[1].max(words[4]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel does it for loopback, and nobody has hardware for it.
    #[test]
    fn loopback_has_software_offload() {
        let lo = offloads("lo").unwrap();
        assert!(!lo.gro_hw && !lo.lro, "{lo:?}");
        assert!(channels("lo").is_err());
        assert!(offloads("no-such-device").is_err());
    }
}

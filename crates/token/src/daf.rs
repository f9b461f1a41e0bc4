//! Signatures of DAF, for networks of hosts that still run it: an IPv4 option in each packet
//! with an HMAC-SHA256 of the payload alone. In the kernel `bpf/token/daf.h` makes and checks
//! them; this is the reference, and looks into captures.
//!
//! Of what a token of weir's proves ([`crate::Statement`]) this proves nothing: no program,
//! address, port, sequence number or time is in the MAC, so a segment that was seen is good
//! on any connection and for ever, and all segments without data have one and the same.

use std::{collections::HashMap, fmt, net::Ipv4Addr};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, block_api::compress256};

/// The type of the IPv4 option: one for experiments (RFC 4727), not copied into fragments.
pub const OPTION: u8 = 0x5e;
/// Bytes of the option: its type, this length and a whole HMAC-SHA256.
pub const OPTION_BYTES: usize = 34;
/// Bytes of a key at most, which DAF does not bound.
pub const MAX_KEY: usize = 4096;
/// Directions of connections of one capture at most; packets beyond are counted.
pub const MAX_DIRECTIONS: usize = 1 << 20;

/// The key that DAF's hosts share: the bytes of a file, whatever they are. `Debug` leaves
/// them out.
#[derive(Clone)]
pub struct DafKey {
    hmac: Hmac<Sha256>,
    states: DafStates,
}

/// HMAC-SHA256 with a key before the first byte of a message: the states of both hashes behind
/// the block of the key.
#[derive(Clone, Copy)]
pub struct DafStates {
    /// Of the inner hash, which the payload follows.
    pub inner: [u32; 8],
    /// Of the outer one, which the inner hash follows.
    pub outer: [u32; 8],
}

/// A hash of SHA-256 that has begun (FIPS 180-4, 5.3.3).
const BEGIN: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

impl DafStates {
    /// RFC 2104: a key of more than a block is hashed before.
    fn of(key: &[u8]) -> Self {
        let mut block = [0; 64];
        match block.get_mut(..key.len()) {
            Some(begin) => begin.copy_from_slice(key),
            None => block[..32].copy_from_slice(&Sha256::digest(key)),
        }
        let state = |pad: u8| {
            let mut state = BEGIN;
            compress256(&mut state, &[block.map(|byte| byte ^ pad)]);
            state
        };
        Self {
            inner: state(0x36),
            outer: state(0x5c),
        }
    }
}

impl fmt::Debug for DafKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DafKey(..)")
    }
}

/// Why a packet proves nothing to DAF, or how much it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DafVerdict {
    /// The MAC is that of the payload.
    Valid,
    /// The MAC is that of no payload, the same for each such segment of a key.
    ValidWithoutData,
    /// The header has no options, or another one first.
    Missing,
    /// The option is cut, or has another length.
    Malformed,
    /// The MAC is of another payload or key.
    WrongMac,
    /// Less was captured than the MAC is of.
    Shortened,
}

impl DafVerdict {
    /// Every verdict, by its number.
    pub const ALL: [Self; 6] = [
        Self::Valid,
        Self::ValidWithoutData,
        Self::Missing,
        Self::Malformed,
        Self::WrongMac,
        Self::Shortened,
    ];

    /// The word for it, as tokens of weir's have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::ValidWithoutData => "valid-without-data",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::WrongMac => "wrong-mac",
            Self::Shortened => "shortened",
        }
    }

    /// Would DAF's verifier let the packet pass?
    pub fn is_valid(self) -> bool {
        matches!(self, Self::Valid | Self::ValidWithoutData)
    }
}

/// One direction of a connection.
pub type Direction = ((Ipv4Addr, u16), (Ipv4Addr, u16));

impl DafKey {
    /// `None`: no bytes, or more than [`MAX_KEY`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let is_fine = !bytes.is_empty() && bytes.len() <= MAX_KEY;
        is_fine.then(|| Self {
            hmac: Hmac::new_from_slice(bytes).expect("HMAC takes any key"),
            states: DafStates::of(bytes),
        })
    }

    /// The key as the kernel has it.
    pub fn states(&self) -> DafStates {
        self.states
    }

    /// The option for a segment with this payload.
    pub fn option(&self, payload: &[u8]) -> [u8; OPTION_BYTES] {
        let mut option = [0; OPTION_BYTES];
        (option[0], option[1]) = (OPTION, OPTION_BYTES as u8);
        let mac = self.hmac.clone().chain_update(payload);
        option[2..].copy_from_slice(&mac.finalize().into_bytes());
        option
    }

    /// Whether the segment in an IP packet is signed; `None`: it is no TCP over IPv4, or a
    /// part of a packet. DAF signs nothing else that it could verify.
    pub fn verify(&self, packet: &[u8]) -> Option<(Direction, DafVerdict)> {
        let head: &[u8; 20] = packet.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if head[0] >> 4 != 4 || head[9] != 6 || word(6) & 0x3fff != 0 {
            return None;
        }
        let header = usize::from(head[0] & 15) * 4;
        let length = usize::from(word(2));
        // Behind its length is what the link has filled up.
        let whole = packet.get(..length).unwrap_or(packet);
        let tcp = whole.get(header.max(20)..)?;
        let of_tcp: &[u8; 20] = tcp.first_chunk()?;
        let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
        let port = |at: usize| u16::from_be_bytes([of_tcp[at], of_tcp[at + 1]]);
        let direction = ((address(12), port(0)), (address(16), port(2)));
        let options = whole.get(20..header).unwrap_or_default();
        let verdict = match options {
            [OPTION, length, mac @ ..] => match mac.first_chunk::<32>() {
                Some(mac) if usize::from(*length) == OPTION_BYTES => {
                    self.compare(mac, tcp, of_tcp[12], packet.len() < length_of(head))
                }
                _ => DafVerdict::Malformed,
            },
            _ => DafVerdict::Missing,
        };
        Some((direction, verdict))
    }

    fn compare(&self, mac: &[u8; 32], tcp: &[u8], offset: u8, is_cut: bool) -> DafVerdict {
        let begin = usize::from(offset >> 4) * 4;
        if is_cut {
            return DafVerdict::Shortened;
        }
        let Some(payload) = tcp.get(begin..).filter(|_| begin >= 20) else {
            return DafVerdict::Malformed;
        };
        let hmac = self.hmac.clone().chain_update(payload);
        match (hmac.verify_slice(mac), payload.is_empty()) {
            (Err(_), _) => DafVerdict::WrongMac,
            (Ok(()), false) => DafVerdict::Valid,
            (Ok(()), true) => DafVerdict::ValidWithoutData,
        }
    }
}

/// The length that an IPv4 header says.
fn length_of(head: &[u8; 20]) -> usize {
    usize::from(u16::from_be_bytes([head[2], head[3]]))
}

/// What became of the packets of each direction, in the order of their first packets.
#[derive(Debug, Default)]
pub struct DafCounts {
    directions: Vec<(Direction, [u64; DafVerdict::ALL.len()])>,
    places: HashMap<Direction, usize>,
    beyond: u64,
}

impl DafCounts {
    /// Counts a packet.
    pub fn add(&mut self, direction: Direction, verdict: DafVerdict) {
        let next = self.directions.len();
        if next == MAX_DIRECTIONS && !self.places.contains_key(&direction) {
            self.beyond += 1;
            return;
        }
        let place = *self.places.entry(direction).or_insert(next);
        if place == next {
            self.directions.push((direction, Default::default()));
        }
        self.directions[place].1[verdict as usize] += 1;
    }

    /// Packets by [`DafVerdict::ALL`], of each direction.
    pub fn directions(&self) -> &[(Direction, [u64; DafVerdict::ALL.len()])] {
        &self.directions
    }

    /// Packets of directions more than [`MAX_DIRECTIONS`].
    pub fn beyond(&self) -> u64 {
        self.beyond
    }
}

#[cfg(test)]
mod tests;

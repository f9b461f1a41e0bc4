//! What the MAC of a token is about, as the kernel has it: `struct token_statement` of
//! bpf/abi/token.h.

use std::{hash::Hasher, net::IpAddr};

use siphasher::sip::SipHasher24;

use crate::{IdentityKey, KeyId, VERSION};

/// An epoch: tokens are of one, and are good in it, the one before and the one after.
pub const EPOCH_SECONDS: u64 = 64;

/// IPPROTO_TCP.
const TCP: u8 = 6;
/// IPPROTO_UDP.
const UDP: u8 = 17;

/// The number of the epoch of a time in seconds since 1970.
pub fn epoch_at(seconds: u64) -> u64 {
    seconds / EPOCH_SECONDS
}

/// The epoch that a token means which has `lower` as the lower half of its number: the
/// nearest one to `now`, and how far that is.
pub fn epoch_near(now: u64, lower: u16) -> (u64, i16) {
    let ahead = lower.wrapping_sub(now as u16) as i16;
    (now.wrapping_add_signed(ahead.into()), ahead)
}

/// One connection at its begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// The id of the secret that signs.
    pub key_id: KeyId,
    /// The whole number.
    pub epoch: u64,
    /// Address and port of the client.
    pub source: (IpAddr, u16),
    /// Address and port of the server.
    pub dest: (IpAddr, u16),
    /// The sequence number of the SYN.
    pub isn: u32,
}

pub(crate) fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Statement {
    /// The statement as it is hashed.
    pub fn bytes(&self) -> [u8; 56] {
        self.bytes_of(TCP)
    }

    fn bytes_of(&self, protocol: u8) -> [u8; 56] {
        let mut bytes = [0; 56];
        bytes[..4].copy_from_slice(&[VERSION, self.key_id.number(), protocol, 0]);
        bytes[4..8].copy_from_slice(&self.isn.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[16..32].copy_from_slice(&mapped(self.source.0));
        bytes[32..48].copy_from_slice(&mapped(self.dest.0));
        bytes[48..50].copy_from_slice(&self.source.1.to_be_bytes());
        bytes[50..52].copy_from_slice(&self.dest.1.to_be_bytes());
        bytes
    }

    /// SipHash-2-4 of it, as it stands in the token.
    pub fn mac(&self, key: &IdentityKey) -> [u8; 8] {
        hash(&self.bytes(), key)
    }
}

fn hash(bytes: &[u8], key: &IdentityKey) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_keys(key.0[0], key.0[1]);
    hasher.write(bytes);
    hasher.finish().to_le_bytes()
}

/// Datagrams of UDP between two endpoints. What is hashed names the protocol, so that no
/// token of a connection is one of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramStatement {
    /// The id of the secret that signs.
    pub key_id: KeyId,
    /// The whole number.
    pub epoch: u64,
    /// Address and port of the sender.
    pub source: (IpAddr, u16),
    /// Address and port of the receiver.
    pub dest: (IpAddr, u16),
}

impl DatagramStatement {
    /// SipHash-2-4 of it, as it stands in the token.
    pub fn mac(&self, key: &IdentityKey) -> [u8; 8] {
        let statement = Statement {
            key_id: self.key_id,
            epoch: self.epoch,
            source: self.source,
            dest: self.dest,
            isn: 0,
        };
        hash(&statement.bytes_of(UDP), key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the paper (appendix A and its reference implementation).
    #[test]
    fn siphash_is_that_of_the_paper() {
        let hash = |length: u8| {
            let mut hasher =
                SipHasher24::new_with_keys(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
            hasher.write(&Vec::from_iter(0..length));
            hasher.finish()
        };
        assert_eq!(hash(15), 0xa129_ca61_49be_45e5);
        assert_eq!(hash(0), 0x726f_db47_dd0e_0e31);
    }

    #[test]
    fn the_nearest_epoch_is_meant() {
        assert_eq!(epoch_near(0x1_0005, 5), (0x1_0005, 0));
        assert_eq!(epoch_near(0x1_0005, 4), (0x1_0004, -1));
        assert_eq!(epoch_near(0x1_0000, 0xffff), (0xffff, -1));
        assert_eq!(epoch_near(0xffff, 0), (0x1_0000, 1));
        assert_eq!(epoch_at(64 * 7 + 63), 7);
    }

    #[test]
    fn each_part_changes_the_mac() {
        let key = IdentityKey([1, 2]);
        let one = Statement {
            key_id: KeyId::MIN,
            epoch: 27_000_000,
            source: ("192.0.2.1".parse().unwrap(), 40000),
            dest: ("192.0.2.2".parse().unwrap(), 80),
            isn: 1,
        };
        let others = [
            Statement {
                key_id: KeyId::new(2).unwrap(),
                ..one
            },
            Statement {
                epoch: one.epoch + 65536,
                ..one
            },
            Statement {
                source: (one.dest.0, 40000),
                ..one
            },
            Statement {
                source: (one.source.0, 40001),
                ..one
            },
            Statement {
                dest: (one.source.0, 80),
                ..one
            },
            Statement {
                dest: (one.dest.0, 81),
                ..one
            },
            Statement { isn: 2, ..one },
        ];
        for other in others {
            assert_ne!(one.mac(&key), other.mac(&key), "{other:?}");
        }
        assert_ne!(one.mac(&key), one.mac(&IdentityKey([2, 1])));
        // A token of a connection is none of a datagram.
        let datagram = DatagramStatement {
            key_id: one.key_id,
            epoch: one.epoch,
            source: one.source,
            dest: one.dest,
        };
        let without_isn = Statement { isn: 0, ..one };
        assert_ne!(datagram.mac(&key), without_isn.mac(&key));
    }
}

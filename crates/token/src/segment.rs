//! Tokens of segments: where the scope is the payload, each segment behind the SYN carries
//! one that is about what it carries, too. The reference that the programs in the kernel
//! (`bpf/token/sign_segment.h`, `bpf/token/segment.h`) are held against.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use weir_identity::Digest;

use crate::{
    EPOCH_SLACK, EXID, IdentityKey, KIND, KeyId, Secret, VERSION, epoch_near,
    option::{OptionError, find_bytes},
    statement::mapped,
    verify::{Refusal, Segment},
};

/// The length of the token of a segment: beside time stamps and one block of what was
/// received (SACK) there is just this room.
pub const SEGMENT_TOKEN_BYTES: usize = 16;
/// What stands beside the version in it, and in what is hashed.
pub const SEGMENT_BIT: u8 = 0x80;

/// IPPROTO_TCP.
const TCP: u8 = 6;
/// Bytes of the MAC, which are the last ones of the header.
const MAC: usize = 8;

/// The token as it stands in a segment, as its last TCP option: not whether it is true. Who
/// it is of the SYN has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentToken {
    /// See [`VERSION`]; with [`SEGMENT_BIT`].
    pub version: u8,
    /// The id of the secret.
    pub key_id: u8,
    /// The lower half of the epoch's number.
    pub epoch: u16,
    /// See [`mac`].
    pub mac: [u8; MAC],
}

impl SegmentToken {
    /// The token as it stands in the segment.
    pub fn bytes(&self) -> [u8; SEGMENT_TOKEN_BYTES] {
        let mut bytes = [0; SEGMENT_TOKEN_BYTES];
        bytes[0] = KIND;
        bytes[1] = SEGMENT_TOKEN_BYTES as u8;
        bytes[2..4].copy_from_slice(&EXID.to_be_bytes());
        bytes[4] = self.version;
        bytes[5] = self.key_id;
        bytes[6..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..].copy_from_slice(&self.mac);
        bytes
    }

    fn of(bytes: &[u8; SEGMENT_TOKEN_BYTES]) -> Self {
        Self {
            version: bytes[4],
            key_id: bytes[5],
            epoch: u16::from_be_bytes([bytes[6], bytes[7]]),
            mac: *bytes.last_chunk().expect("there are sixteen"),
        }
    }

    /// The token of a segment; `None`: it has none.
    ///
    /// # Errors
    /// Its options contradict themselves, or the token is not the last one.
    pub fn find(options: &[u8]) -> Result<Option<Self>, OptionError> {
        let found = find_bytes(options, KIND)?;
        match found {
            Some(bytes) if !options.ends_with(&bytes) => Err(OptionError::Length),
            found => Ok(found.as_ref().map(Self::of)),
        }
    }
}

/// The MAC of a segment whose token is of this key and epoch: SipHash-2-4 of a statement as
/// that of the SYN, with the length of the segment, and of the segment from its
/// TCP header on, filled up with zeros to words of eight bytes. The checksum and the MAC are
/// zeros in it. `None`: the header has no room for the MAC, or is not there.
pub fn mac(
    segment: &Segment<'_>,
    isn: u32,
    key_id: KeyId,
    epoch: u64,
    key: &IdentityKey,
) -> Option<[u8; MAC]> {
    let header = 20 + segment.options?.len();
    let mut hashed = vec![0; 56];
    hashed[..4].copy_from_slice(&[VERSION | SEGMENT_BIT, key_id.number(), TCP, 0]);
    hashed[4..8].copy_from_slice(&isn.to_be_bytes());
    hashed[8..16].copy_from_slice(&epoch.to_be_bytes());
    hashed[16..32].copy_from_slice(&mapped(segment.source.0));
    hashed[32..48].copy_from_slice(&mapped(segment.dest.0));
    hashed[48..50].copy_from_slice(&segment.source.1.to_be_bytes());
    hashed[50..52].copy_from_slice(&segment.dest.1.to_be_bytes());
    let bytes = u32::try_from(segment.bytes.len()).ok()?;
    hashed[52..56].copy_from_slice(&bytes.to_be_bytes());
    hashed.extend(segment.bytes);
    hashed[56 + 16..56 + 18].fill(0);
    hashed.get_mut(56 + header - MAC..56 + header)?.fill(0);
    hashed.resize(hashed.len().next_multiple_of(8), 0);
    let mut hasher = SipHasher24::new_with_keys(key.0[0], key.0[1]);
    hasher.write(&hashed);
    Some(hasher.finish().to_le_bytes())
}

/// Whether a segment behind the SYN is as this program has sent it, in this epoch.
///
/// # Errors
/// It proves nothing, for this reason.
pub fn verify(
    segment: &Segment<'_>,
    isn: u32,
    keys: &[(KeyId, &Secret)],
    identity: &Digest,
    epoch: u64,
) -> Result<(), Refusal> {
    let options = segment.options.ok_or(Refusal::Malformed)?;
    let token = SegmentToken::find(options).map_err(|_| Refusal::Malformed)?;
    let token = token.ok_or(Refusal::Missing)?;
    if token.version != VERSION | SEGMENT_BIT {
        return Err(Refusal::OtherVersion);
    }
    let id = KeyId::new(token.key_id);
    let known = keys.iter().find(|(known, _)| Some(*known) == id);
    let (key_id, secret) = known.ok_or(Refusal::UnknownKey)?;
    let (epoch, ahead) = epoch_near(epoch, token.epoch);
    if u64::from(ahead.unsigned_abs()) > EPOCH_SLACK {
        return Err(Refusal::OtherEpoch);
    }
    let key = secret.identity_key(*key_id, identity);
    match mac(segment, isn, *key_id, epoch, &key) == Some(token.mac) {
        true => Ok(()),
        false => Err(Refusal::WrongMac),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_ID: KeyId = KeyId::MIN;
    const ISN: u32 = 6;

    /// IPv4, with time stamps, a token and this payload.
    fn packet(secret: &Secret, identity: &Digest, epoch: u64, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
        packet.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend([156, 64, 31, 144, 0, 0, 0, 7, 0, 0, 0, 9, 12 << 4, 0x18]);
        packet.extend([1, 2, 0xaa, 0xbb, 0, 0]);
        packet.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        let mut token = SegmentToken {
            version: VERSION | SEGMENT_BIT,
            key_id: KEY_ID.number(),
            epoch: epoch as u16,
            mac: [0; 8],
        };
        packet.extend(token.bytes());
        packet.extend(payload);
        let segment = Segment::read(&packet).unwrap();
        let key = secret.identity_key(KEY_ID, identity);
        token.mac = mac(&segment, ISN, KEY_ID, epoch, &key).unwrap();
        packet[52..68].copy_from_slice(&token.bytes());
        packet
    }

    #[test]
    fn each_bit_of_a_segment_but_its_checksum_is_in_the_mac() {
        let secret = Secret::new([3; 32]);
        let identity = Digest([7; 32]);
        let keys = [(KEY_ID, &secret)];
        let epoch = 27_000_000;
        let judge = |packet: &[u8], epoch| {
            let segment = Segment::read(packet).unwrap();
            verify(&segment, ISN, &keys, &identity, epoch)
        };
        for length in [0, 1, 7, 8, 9, 64, 1460] {
            let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let packet = packet(&secret, &identity, epoch, &payload);
            for now in [epoch - 1, epoch, epoch + 1] {
                assert_eq!(judge(&packet, now), Ok(()), "{length}");
            }
            assert_eq!(judge(&packet, epoch + 2), Err(Refusal::OtherEpoch));
            for bit in 20 * 8..packet.len() * 8 {
                let mut changed = packet.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let is_checksum = (36..38).contains(&(bit / 8));
                assert_eq!(
                    judge(&changed, epoch).is_ok(),
                    is_checksum,
                    "{length} {bit}"
                );
            }
            // Of an earlier connection between the same ports.
            let segment = Segment::read(&packet).unwrap();
            let of_another = verify(&segment, ISN + 1, &keys, &identity, epoch);
            assert_eq!(of_another, Err(Refusal::WrongMac));
            // Longer by zeros, of which the last word has had some.
            let longer = [&packet[..], &[0]].concat();
            assert_eq!(judge(&longer, epoch), Err(Refusal::WrongMac));
        }
    }

    #[test]
    fn the_token_is_the_last_option_and_of_its_length() {
        let token = SegmentToken {
            version: 0x81,
            key_id: 3,
            epoch: 0x1234,
            mac: *b"mac-mac!",
        };
        let find = SegmentToken::find;
        let bytes = token.bytes();
        assert_eq!(find(&[]), Ok(None));
        assert_eq!(find(&bytes), Ok(Some(token)));
        assert_eq!(find(&[&[1, 1, 1, 1][..], &bytes].concat()), Ok(Some(token)));
        assert!(find(&[&bytes[..], &[1, 1, 1, 1]].concat()).is_err());
        assert!(find(&bytes.repeat(2)).is_err());
        // That of a SYN is none, nor the other way round.
        let mut longer = [&bytes[..], &[0; 4]].concat();
        longer[1] = 20;
        assert_eq!(find(&longer), Err(OptionError::TokenLength));
        assert_eq!(crate::find(&bytes), Err(OptionError::TokenLength));
    }
}

//! Secrets, and the keys of identities that are made of them.

use std::{fmt, str::FromStr};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Serialize, Serializer};
use sha2::Sha256;
use weir_identity::Digest;

/// What the key of an identity is made for: another use of a secret gets another key.
const FOR_IDENTITIES: &[u8] = b"weir token 1 identity";
/// The same of what is shown to compare secrets by.
const FOR_FINGERPRINTS: &[u8] = b"weir token 1 fingerprint";

/// The number of a secret, 1 to 255: it stands in each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u8);

/// A number that is no key's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no key id; allowed: 1 to 255")]
pub struct KeyIdError(String);

impl KeyId {
    /// The least of them.
    pub const MIN: Self = Self(1);

    /// `None`: 0, which is nobody's.
    pub fn new(number: u8) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    /// The number of the key as it stands in a token.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Every id that a key may have, from 1 on.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=u8::MAX).map(Self)
    }
}

impl FromStr for KeyId {
    type Err = KeyIdError;

    fn from_str(text: &str) -> Result<Self, KeyIdError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let number = text.parse().ok().filter(|_| is_plain);
        number
            .and_then(Self::new)
            .ok_or_else(|| KeyIdError(text.chars().take(64).collect()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for KeyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

/// Why a text is no secret. What was written is not said: it may be nearly one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a secret is 64 hexadecimal digits, and what is there is not")]
pub struct SecretError;

/// 32 random bytes that all hosts share which prove something to each other. It is never
/// printed: `Debug` leaves it out, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A secret of these bytes, which are to be random.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// As its file has it; for nothing but that file.
    pub fn to_hex(&self) -> String {
        Digest(self.0).to_string()
    }

    fn hmac(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes any key");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    }

    /// The key with which `identity` signs: HMAC-SHA256 of what it is for, the id and the
    /// whole aggregate, of which SipHash takes the first half.
    pub fn identity_key(&self, id: KeyId, identity: &Digest) -> IdentityKey {
        let whole = self.hmac(&[FOR_IDENTITIES, &[id.number()], &identity.0]);
        let word = |at: usize| {
            let bytes = whole[at..at + 8].try_into().expect("eight of 32 bytes");
            u64::from_le_bytes(bytes)
        };
        IdentityKey([word(0), word(8)])
    }

    /// Eight hexadecimal digits by which people see that two hosts have the same secret.
    /// They say nothing else of it.
    pub fn fingerprint(&self, id: KeyId) -> String {
        let whole = self.hmac(&[FOR_FINGERPRINTS, &[id.number()]]);
        hex::encode(&whole[..4])
    }
}

impl FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        // What a digest may have before its digits, a secret may not.
        if text.len() != 64 {
            return Err(SecretError);
        }
        let digest: Result<Digest, _> = text.parse();
        digest.map(|digest| Self(digest.0)).map_err(|_| SecretError)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // So that the compiler does not leave out what nobody reads.
        std::hint::black_box(&self.0);
    }
}

/// A key of SipHash-2-4 that one identity has with one secret: two words, the first bytes
/// first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IdentityKey(pub [u64; 2]);

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_id_is_1_to_255() {
        for (text, number) in [("1", 1), ("255", 255)] {
            assert_eq!(text.parse::<KeyId>().unwrap().number(), number);
        }
        for text in ["0", "256", "-1", "+1", "01", "", "x"] {
            let error = text.parse::<KeyId>().unwrap_err().to_string();
            assert!(error.contains("1 to 255"), "{error}");
        }
        assert_eq!(KeyId::all().count(), 255);
    }

    #[test]
    fn a_secret_is_64_digits_and_is_not_shown() {
        let text = "0123456789abcdef".repeat(4);
        let secret: Secret = text.parse().unwrap();
        assert_eq!(secret.to_hex(), text);
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        let wrong = format!("{}x", &text[1..]);
        let error = wrong.parse::<Secret>().unwrap_err().to_string();
        assert!(
            !error.contains("89abcdef") && error.contains("64"),
            "{error}"
        );
        let key = secret.identity_key(KeyId::MIN, &Digest([7; 32]));
        assert_eq!(format!("{key:?}"), "IdentityKey(…)");
    }

    /// Another id, identity or secret makes another key; and the key is that of RFC 2104,
    /// as Python's hmac has it.
    #[test]
    fn keys_of_identities_are_hmacs() {
        let secret = Secret::new(std::array::from_fn(|n| n as u8));
        let identity = Digest([0xaa; 32]);
        let id = KeyId::new(7).unwrap();
        let key = secret.identity_key(id, &identity);
        assert_eq!(
            key,
            IdentityKey([0x6b37_77e2_79e7_214d, 0xb723_acfd_7854_4771])
        );
        assert_ne!(key, secret.identity_key(KeyId::MIN, &identity));
        assert_ne!(key, secret.identity_key(id, &Digest([0xab; 32])));
        assert_ne!(key, Secret::new([1; 32]).identity_key(id, &identity));
        assert_eq!(secret.fingerprint(id), "ebdae785");
    }
}

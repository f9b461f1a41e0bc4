//! A SHA-256 digest as it is written: 64 hexadecimal digits, with `sha256:` before them or not.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The SHA-256 of a file, or of a whole program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// What may stand before the digits, as other programs write digests.
const KIND: &str = "sha256:";

impl Digest {
    /// In the place of a file that is not there: no file has it.
    pub const NONE: Self = Self([0; 32]);
}

/// Why a text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The text has another length.
    #[error("{0} characters, where a SHA-256 has 64 hexadecimal digits")]
    Length(usize),
    /// Something in it is no hexadecimal digit.
    #[error("{0:?} is no hexadecimal digit")]
    Digit(char),
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let text = text.strip_prefix(KIND).unwrap_or(text);
        if let Some(wrong) = text.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(DigestError::Digit(wrong));
        }
        if text.len() != 64 {
            return Err(DigestError::Length(text.len()));
        }
        let mut digest = [0; 32];
        for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |at: usize| char::from(digits[at]).to_digit(16).unwrap_or_default();
            *byte = (digit(0) << 4 | digit(1)) as u8;
        }
        Ok(Self(digest))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let text = "00ff10Ab".repeat(8);
        let digest: Digest = text.parse().unwrap();
        assert_eq!(digest.0[..4], [0, 255, 16, 0xab]);
        assert_eq!(digest.to_string(), text.to_lowercase());
        assert_eq!(format!("sha256:{text}").parse(), Ok(digest));
        for other in ["sha256:sha256:", "sha512:", "SHA256:"] {
            assert!(format!("{other}{text}").parse::<Digest>().is_err());
        }
        assert_eq!("sha256:".parse::<Digest>(), Err(DigestError::Length(0)));
        assert_eq!(text[1..].parse::<Digest>(), Err(DigestError::Length(63)));
        assert_eq!("".parse::<Digest>(), Err(DigestError::Length(0)));
        let other = text.replacen('b', "ü", 1);
        assert_eq!(other.parse::<Digest>(), Err(DigestError::Digit('ü')));
    }
}

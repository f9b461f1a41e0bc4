//! QUIC connection IDs from which a balancer learns the server that has chosen them, as
//! QUIC-LB writes them in plaintext (draft-ietf-quic-load-balancers, 3 and 5.1).

use std::{fmt, str::FromStr};

/// The part of a connection ID that names its server: 1 to [`ServerId::MAX_LEN`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId {
    /// Zeros behind the ID.
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl ServerId {
    /// The bytes of the longest one that weir knows; QUIC-LB has up to 15.
    pub const MAX_LEN: usize = 8;

    /// What a [`ServerId`] looks like in configuration, for messages.
    pub const ALLOWED: &str =
        "an even number of hexadecimal digits, 2 to 16 of them, such as \"0a01\"";

    /// The bytes, as they stand in a connection ID.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Text that is no server ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidServerId;

impl FromStr for ServerId {
    type Err = InvalidServerId;

    fn from_str(text: &str) -> Result<Self, InvalidServerId> {
        let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits.ok_or(InvalidServerId)?;
        if digits.is_empty() || digits.len() % 2 != 0 || digits.len() > 2 * Self::MAX_LEN {
            return Err(InvalidServerId);
        }
        let mut bytes = [0; Self::MAX_LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (pair[0] << 4 | pair[1]) as u8;
        }
        let len = (digits.len() / 2) as u8;
        Ok(Self { bytes, len })
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.bytes().iter();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_ids_are_read_as_they_are_shown() {
        for text in ["00", "0a01", "ffffffffffffffff"] {
            let id: ServerId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(id.bytes().len(), text.len() / 2);
        }
        let id: ServerId = "0A01".parse().unwrap();
        assert_eq!(id.bytes(), [10, 1]);
        // Of other lengths they are others.
        assert_ne!("0a".parse::<ServerId>(), "0a00".parse());
        for text in [
            "",
            "0",
            "0a0",
            "0x0a",
            "+a",
            "0a 1",
            "é0",
            "000000000000000000",
        ] {
            assert_eq!(text.parse::<ServerId>(), Err(InvalidServerId), "{text:?}");
        }
    }
}

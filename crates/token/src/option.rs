//! A token as it stands in a SYN: a TCP option.

use crate::KeyId;

/// The first version; another one is refused.
pub const VERSION: u8 = 1;
/// The kind of the TCP option: one for experiments (RFC 4727) ...
pub const KIND: u8 = 254;
/// ... that is told from others by this (RFC 6994).
pub const EXID: u16 = 0x7765;
/// The length of a token in bytes: beside the options of Linux's SYN (MSS, SACK, time
/// stamps, window scale) there is just this room.
pub const OPTION_BYTES: usize = 20;

/// The end of options, and padding between them.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;

/// What an option says, not whether it is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenOption {
    /// See [`VERSION`].
    pub version: u8,
    /// The id of the secret.
    pub key_id: u8,
    /// The lower half of the epoch's number.
    pub epoch: u16,
    /// The first bytes of the aggregate: who it claims to be.
    pub tag: [u8; 4],
    /// See [`crate::Statement::mac`].
    pub mac: [u8; 8],
}

/// Options of a segment that contradict themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// An option is longer than what is left, or shorter than its own head.
    #[error("the length of an option is wrong")]
    Length,
    /// A token has another length.
    #[error("a token has another length than that of its kind")]
    TokenLength,
    /// There are several.
    #[error("there are several tokens")]
    Several,
}

impl TokenOption {
    /// The token as it stands in the SYN.
    pub fn bytes(&self) -> [u8; OPTION_BYTES] {
        let mut bytes = [0; OPTION_BYTES];
        bytes[0] = KIND;
        bytes[1] = OPTION_BYTES as u8;
        bytes[2..4].copy_from_slice(&EXID.to_be_bytes());
        bytes[4] = self.version;
        bytes[5] = self.key_id;
        bytes[6..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.tag);
        bytes[12..].copy_from_slice(&self.mac);
        bytes
    }

    pub(crate) fn of(bytes: &[u8; OPTION_BYTES]) -> Self {
        let part = |at: usize| bytes[at..].first_chunk().copied();
        Self {
            version: bytes[4],
            key_id: bytes[5],
            epoch: u16::from_be_bytes([bytes[6], bytes[7]]),
            tag: part(8).expect("twelve bytes follow"),
            mac: *bytes.last_chunk().expect("there are twenty"),
        }
    }

    /// The secret that it names; `None`: 0 is none.
    pub fn key(&self) -> Option<KeyId> {
        KeyId::new(self.key_id)
    }
}

/// The token among the options of a segment; `None`: there is none.
///
/// # Errors
/// They contradict themselves, before the end that they have.
pub fn find(options: &[u8]) -> Result<Option<TokenOption>, OptionError> {
    find_kind(options, KIND)
}

/// The same among options of an IPv4 header, which have the same form.
pub(crate) fn find_kind(options: &[u8], wanted: u8) -> Result<Option<TokenOption>, OptionError> {
    Ok(find_bytes(options, wanted)?.as_ref().map(TokenOption::of))
}

/// The bytes of the token of this kind and length.
pub(crate) fn find_bytes<const BYTES: usize>(
    mut options: &[u8],
    wanted: u8,
) -> Result<Option<[u8; BYTES]>, OptionError> {
    let mut found = None;
    while let [kind, rest @ ..] = options {
        match *kind {
            END => break,
            NO_OPERATION => {
                options = rest;
                continue;
            }
            _ => {}
        }
        let length = usize::from(*rest.first().ok_or(OptionError::Length)?);
        if length < 2 || length > options.len() {
            return Err(OptionError::Length);
        }
        let (option, rest) = options.split_at(length);
        note_token(&mut found, option, wanted)?;
        options = rest;
    }
    Ok(found)
}

/// Notes the token if this option of an IP or TCP header, from its kind on, is one.
pub(crate) fn note_token<const BYTES: usize>(
    found: &mut Option<[u8; BYTES]>,
    option: &[u8],
    wanted: u8,
) -> Result<(), OptionError> {
    if option.len() < 4 || option[0] != wanted || option[2..4] != EXID.to_be_bytes() {
        return Ok(());
    }
    if found.is_some() {
        return Err(OptionError::Several);
    }
    let bytes = option.try_into().map_err(|_| OptionError::TokenLength)?;
    *found = Some(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: TokenOption = TokenOption {
        version: 1,
        key_id: 3,
        epoch: 0x1234,
        tag: *b"tag!",
        mac: *b"mac-mac!",
    };
    /// MSS, SACK, time stamps, padding and window scale, as Linux has them.
    const LINUX: [u8; 20] = [
        2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    #[test]
    fn a_token_is_found_behind_other_options() {
        assert_eq!(find(&[LINUX, TOKEN.bytes()].concat()), Ok(Some(TOKEN)));
        assert_eq!(find(&TOKEN.bytes()), Ok(Some(TOKEN)));
        assert_eq!(find(&LINUX), Ok(None));
        assert_eq!(find(&[]), Ok(None));
        // Behind the end there is nothing.
        assert_eq!(find(&[&[0][..], &TOKEN.bytes()].concat()), Ok(None));
        let mut other = TOKEN.bytes();
        other[3] ^= 1;
        assert_eq!(find(&other), Ok(None));
        assert_eq!(TOKEN.key(), KeyId::new(3));
    }

    #[test]
    fn what_contradicts_itself_is_no_token() {
        let whole = TOKEN.bytes();
        for length in 1..whole.len() {
            assert_eq!(find(&whole[..length]), Err(OptionError::Length), "{length}");
        }
        assert_eq!(find(&[whole, whole].concat()), Err(OptionError::Several));
        let mut shorter = whole;
        shorter[1] = 19;
        assert_eq!(find(&shorter), Err(OptionError::TokenLength));
        assert_eq!(find(&[2, 1]), Err(OptionError::Length));
        assert_eq!(find(&[2, 0, 0, 0]), Err(OptionError::Length));
        assert_eq!(find(&[1, 1, 1, 5]), Err(OptionError::Length));
    }
}

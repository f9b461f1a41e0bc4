//! A host name as a line may have it: text of whoever runs the name server of the
//! address that a program has looked up, until it is one that can be a host's.

use std::fmt;

/// The longest host name (RFC 1035: 255 bytes as it is sent).
pub const MAX_HOST_NAME: usize = 253;
/// The longest part of it between two dots.
const MAX_LABEL: usize = 63;

/// Why a text is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// The name is longer than [`MAX_HOST_NAME`].
    TooLong,
    /// No host has such a name.
    Malformed,
}

/// A host name: letters, digits, hyphens and underscores between dots, in lower
/// case, without a dot at its end, and no number in the place of the top level,
/// which the system's resolver would take for an address (`127.1`, `0x7f000001`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(Box<str>);

impl HostName {
    /// The name that this text is.
    ///
    /// # Errors
    /// It cannot be one.
    pub fn new(text: &[u8]) -> Result<Self, NameError> {
        let text = check(text)?;
        let text = std::str::from_utf8(text).expect("it is ASCII");
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// The name, without a dot at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same text without a dot at its end, if it is a name.
pub(super) fn check(text: &[u8]) -> Result<&[u8], NameError> {
    let text = text.strip_suffix(b".").unwrap_or(text);
    if text.len() > MAX_HOST_NAME {
        return Err(NameError::TooLong);
    }
    if !text.split(|b| *b == b'.').all(is_label) {
        return Err(NameError::Malformed);
    }
    let top = text.rsplit(|b| *b == b'.').next().unwrap_or(text);
    let is_number = match top {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        digits => digits.iter().all(u8::is_ascii_digit),
    };
    match is_number {
        true => Err(NameError::Malformed),
        false => Ok(text),
    }
}

fn is_label(label: &[u8]) -> bool {
    let may_be = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    (1..=MAX_LABEL).contains(&label.len())
        && label.iter().all(may_be)
        && label.first() != Some(&b'-')
        && label.last() != Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_is_what_can_be_one() {
        let label = "x".repeat(MAX_LABEL);
        let longest = format!("{label}.{label}.{label}.{}", &label[..61]);
        assert_eq!(longest.len(), MAX_HOST_NAME);
        for (text, name) in [
            ("example.org", "example.org"),
            ("Mail-1.EXAMPLE.org.", "mail-1.example.org"),
            ("localhost", "localhost"),
            ("7.2.0.192.in-addr.arpa", "7.2.0.192.in-addr.arpa"),
            ("_dmarc.1e100.net", "_dmarc.1e100.net"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("0x.0y", "0x.0y"),
            (&longest, &longest),
            (&format!("{longest}."), &longest),
        ] {
            let read = HostName::new(text.as_bytes());
            assert_eq!(read.as_ref().map(HostName::as_str), Ok(name), "{text}");
        }
    }

    #[test]
    fn what_can_be_no_host_name_is_refused() {
        let label = "x".repeat(MAX_LABEL + 1);
        for text in [
            "",
            ".",
            "..",
            "example..org",
            ".example.org",
            "example.org..",
            "-x.example.org",
            "x-.example.org",
            "b\u{fc}cher.example",
            "a b",
            "a/b",
            "a:b",
            "a\0b",
            "*.example.org",
            "example.org\n",
            "192.0.2.700",
            "127.1",
            "2130706433",
            "0x7f000001",
            "x.0X7F",
            "1.0x",
            &format!("{label}.org"),
        ] {
            let read = HostName::new(text.as_bytes());
            assert_eq!(read, Err(NameError::Malformed), "{text:?}");
        }
        let long = "x.".repeat(MAX_HOST_NAME / 2 + 1);
        assert_eq!(long.len(), MAX_HOST_NAME + 1);
        assert!(
            HostName::new(long.as_bytes()).is_ok(),
            "its dot is left out"
        );
        let long = format!("{long}x");
        assert_eq!(HostName::new(long.as_bytes()), Err(NameError::TooLong));
        assert_eq!(HostName::new(&[0xff; 300]), Err(NameError::TooLong));
    }
}

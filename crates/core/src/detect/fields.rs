//! The bytes of which fields are made, in one table, and the values that they
//! spell. Which field stands where is `template`'s and `matcher`'s.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A kind of bytes that a field is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class(u8);

/// Bytes of a word: all but blanks and tabs.
pub(super) const WORD: Class = Class(1);
pub(super) const DIGIT: Class = Class(2);
/// Bytes of an address or its zone.
pub(super) const ADDRESS: Class = Class(4);
/// Bytes of an address or a prefix.
pub(super) const PREFIX: Class = Class(8);
/// Where a host name or an address stands: also what no name has, so that it is
/// refused and not passed over; what programs put around names ends it.
pub(super) const HOST: Class = Class(16);

/// The classes of each byte.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        if !matches!(b, b' ' | b'\t') {
            classes[byte] |= WORD.0;
        }
        if b.is_ascii_digit() {
            classes[byte] |= DIGIT.0;
        }
        if b.is_ascii_alphanumeric() || matches!(b, b':' | b'.' | b'%' | b'_' | b'-') {
            classes[byte] |= ADDRESS.0 | PREFIX.0;
        }
        if b == b'/' {
            classes[byte] |= PREFIX.0;
        }
        let is_around = matches!(
            b,
            b'(' | b')'
                | b'<'
                | b'>'
                | b'['
                | b']'
                | b'{'
                | b'}'
                | b','
                | b';'
                | b'"'
                | b'\''
                | b'='
        );
        if !(b.is_ascii_control() || b == b' ' || is_around) {
            classes[byte] |= HOST.0;
        }
        byte += 1;
    }
    classes
};

impl Class {
    pub fn has(self, byte: u8) -> bool {
        CLASSES[usize::from(byte)] & self.0 != 0
    }

    /// Has the other one all of its bytes?
    pub fn is_within(self, other: Self) -> bool {
        (0..=u8::MAX).all(|byte| !self.has(byte) || other.has(byte))
    }

    /// How many bytes of this class `text` begins with.
    pub fn leading(self, text: &[u8]) -> usize {
        let other = text.iter().position(|b| !self.has(*b));
        other.unwrap_or(text.len())
    }

    /// The number of bytes of this class that `text` ends with.
    pub fn trailing(self, text: &[u8]) -> usize {
        let other = text.iter().rposition(|b| !self.has(*b));
        text.len() - other.map_or(0, |at| at + 1)
    }
}

/// A number of at most 18 digits, given digits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    Some(
        digits
            .iter()
            .fold(0, |n, d| n * 10 + u64::from(d.wrapping_sub(b'0'))),
    )
}

/// An address, canonical; a zone (`%eth0`) is cut off.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    // 45 for the longest IPv6 form, 15 for an interface name, one percent sign.
    if text.is_empty() || text.len() > 61 {
        return None;
    }
    if let Some(addr) = ipv4(text) {
        return Some(addr.into());
    }
    match groups(text) {
        Some(addr) => Some(IpAddr::V6(addr).to_canonical()),
        None => unusual(text),
    }
}

/// What the two below do not read: zones, and IPv4 at the end of IPv6.
#[cold]
fn unusual(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    match text.split_once('%') {
        // An interface has no colon in its name; `fe80::1%eth0:22` has one behind it.
        Some((addr, zone)) if !zone.is_empty() && !zone.contains(':') => {
            Some(addr.parse::<Ipv6Addr>().ok()?.into())
        }
        Some(_) => None,
        None => text.parse().ok(),
    }
    .map(|addr: IpAddr| addr.to_canonical())
}

/// Four numbers as the standard library reads them, at a fifth of its cost: each
/// finding has an address.
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let (mut place, mut value, mut digits) = (0, 0_u32, 0);
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            // "010" is eight to some.
            if digits > 0 && value == 0 {
                return None;
            }
            value = value * 10 + u32::from(digit);
            digits += 1;
            if value > 255 {
                return None;
            }
        } else if *byte == b'.' && digits > 0 && place < 3 {
            octets[place] = value as u8;
            place += 1;
            (value, digits) = (0, 0);
        } else {
            return None;
        }
    }
    octets[3] = value as u8;
    (place == 3 && digits > 0).then(|| octets.into())
}

/// The value of each hexadecimal digit; 255 for other bytes.
static NIBBLES: [u8; 256] = {
    let mut nibbles = [255; 256];
    let mut value = 0;
    while value < 16 {
        nibbles[b"0123456789abcdef"[value] as usize] = value as u8;
        nibbles[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    nibbles
};

/// IPv6 in hexadecimal groups alone, as the standard library reads it.
fn groups(text: &[u8]) -> Option<Ipv6Addr> {
    let mut groups = [0_u16; 8];
    let (mut count, mut gap) = (0, None);
    let (mut value, mut digits) = (0_u16, 0);
    let mut rest = text;
    if let Some(behind) = text.strip_prefix(b"::") {
        (gap, rest) = (Some(0), behind);
    }
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let nibble = NIBBLES[usize::from(*byte)];
        if nibble < 16 {
            if digits == 4 {
                return None;
            }
            value = value << 4 | u16::from(nibble);
            digits += 1;
            continue;
        }
        if *byte != b':' || digits == 0 || count == 7 {
            return None;
        }
        groups[count] = value;
        count += 1;
        (value, digits) = (0, 0);
        match rest {
            [] => return None,
            [b':', behind @ ..] if gap.is_none() => (gap, rest) = (Some(count), behind),
            _ => {}
        }
    }
    if digits > 0 {
        groups[count] = value;
        count += 1;
    }
    match gap {
        None if count == 8 => {}
        Some(gap) if count < 8 => {
            groups[gap..].rotate_right(8 - count);
        }
        _ => return None,
    }
    Some(groups.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The address that the standard library reads.
    fn expected(text: &str) -> Option<IpAddr> {
        let addr: IpAddr = text.parse().ok()?;
        Some(addr.to_canonical())
    }

    #[test]
    fn addresses_are_read_as_the_standard_library_reads_them() {
        for text in [
            "",
            "0.0.0.0",
            "192.0.2.7",
            "255.255.255.255",
            "256.0.0.1",
            "192.0.2",
            "192.0.2.",
            ".192.0.2",
            "192.0..7",
            "192.0.2.7.1",
            "192.0.2.07",
            "192.0.2.00",
            "1920.2.7.1",
            "::",
            ":",
            ":::",
            "::1",
            "1::",
            ":1",
            "1:",
            "1::2::3",
            "1:::2",
            "1:2:3:4:5:6:7:8",
            "1:2:3:4:5:6:7:8:",
            "1:2:3:4:5:6:7:8:9",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7::",
            "1:2:3:4:5:6:7::8",
            "::2:3:4:5:6:7:8",
            "::1:2:3:4:5:6:7:8",
            "1:2:3::6:7:8",
            "1:2:3:4:5:6:7:8::",
            "2001:DB8::aBcD",
            "2001:db8::12345",
            "2001:db8::g",
            "::ffff:192.0.2.7",
            "::ffff:c000:207",
            "64:ff9b::192.0.2.7",
            "::192.0.2.256",
            "1:2:3:4:5:6:192.0.2.7",
            "1:2:3:4:5:6:7:192.0.2.7",
        ] {
            assert_eq!(address(text.as_bytes()), expected(text), "{text:?}");
        }
    }

    #[test]
    fn a_zone_is_cut_off() {
        let addr = |text: &str| address(text.as_bytes()).map(|addr| addr.to_string());
        assert_eq!(addr("fe80::1%eth0").as_deref(), Some("fe80::1"));
        for text in [
            "fe80::1%",
            "%eth0",
            "192.0.2.7%eth0",
            "fe80::1%eth0:22",
            "fe80::1%\u{e9}\0".repeat(9).as_str(),
        ] {
            assert_eq!(addr(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_byte_is_of_a_class_or_not() {
        for byte in 0..=u8::MAX {
            assert_eq!(WORD.has(byte), byte != b' ' && byte != b'\t');
            assert_eq!(DIGIT.has(byte), byte.is_ascii_digit());
            let of_addresses = byte.is_ascii_alphanumeric() || b":.%_-".contains(&byte);
            assert_eq!(ADDRESS.has(byte), of_addresses);
            assert_eq!(PREFIX.has(byte), of_addresses || byte == b'/');
            let ends_names = byte <= b' ' || byte == 127 || b"()<>[]{},;\"'=".contains(&byte);
            assert_eq!(HOST.has(byte), !ends_names);
        }
        for (text, leading, trailing) in [
            (&b""[..], 0, 0),
            (b"12", 2, 2),
            (b"12x345", 2, 3),
            (b"x1", 0, 1),
            (b"1x", 1, 0),
        ] {
            assert_eq!(DIGIT.leading(text), leading, "{text:?}");
            assert_eq!(DIGIT.trailing(text), trailing, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_looks_like_an_address_is_read_as_the_standard_library_does(
            text in "[0-9]{1,4}(\\.[0-9]{1,3}){2,4}|[0-9a-fA-F:.]{0,40}|([0-9a-f]{0,5}:){2,9}[0-9a-f]{0,5}",
        ) {
            prop_assert_eq!(address(text.as_bytes()), expected(&text), "{:?}", text);
        }

        #[test]
        fn every_address_is_read(bits: u128, mask: u128, v4: u32) {
            for addr in [
                IpAddr::V4(v4.into()),
                IpAddr::V6(bits.into()),
                // With zeros for "::" to stand for.
                IpAddr::V6((bits & mask & mask.rotate_left(16)).into()),
            ] {
                let text = addr.to_string();
                prop_assert_eq!(address(text.as_bytes()), Some(addr.to_canonical()));
            }
        }
    }
}

//! The checksum of the Internet protocols (RFC 1071).

/// The ones' complement of the ones' complement sum of 16-bit words in network byte order; an
/// odd last byte counts as the upper half of a word. Over what contains a right checksum: 0.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    !parts.iter().fold(0, |sum, part| add(sum, part))
}

/// The sum so far and the words of `bytes`, which begin at an even place.
fn add(sum: u16, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match word {
        [high, low] => u16::from_be_bytes([*high, *low]),
        _ => u16::from_be_bytes([word[0], 0]),
    });
    words.fold(sum, |sum, word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(&[&bytes]), !0xddf2);
        assert_eq!(internet_checksum(&[&bytes[..4], &bytes[4..]]), !0xddf2);
        assert_eq!(internet_checksum(&[&[0xff]]), 0x00ff);
        assert_eq!(internet_checksum(&[]), 0xffff);
    }
}

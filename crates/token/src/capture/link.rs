//! The IP packet behind the headers of a link, by LINKTYPE (tcpdump.org).

/// A kind of link whose headers are not known here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "link type {0} is not read; allowed: 1 (Ethernet), 113 and 276 (Linux cooked), 12, 14, 101, 228 and 229 (raw IP), 0 and 108 (loopback)"
)]
pub struct LinkError(pub u32);

/// The IP packet in what was captured, without what may be behind it; `None`: there is none, or
/// it is cut before.
///
/// # Errors
/// Nothing is known of such a link.
pub fn ip_packet(link: u32, bytes: &[u8]) -> Result<Option<&[u8]>, LinkError> {
    let packet = match link {
        1 => by_ethertype(bytes, 12, 14),
        113 => by_ethertype(bytes, 14, 16),
        276 => by_ethertype(bytes, 0, 20),
        12 | 14 | 101 | 228 | 229 => Some(bytes),
        0 | 108 => bytes.get(4..),
        other => return Err(LinkError(other)),
    };
    Ok(packet.map(without_padding))
}

/// The packet up to the length that it says: behind it is what the link has filled up. A
/// superpacket that a device is to cut may say none.
fn without_padding(packet: &[u8]) -> &[u8] {
    let word = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *packet.get(at)?,
            *packet.get(at + 1)?,
        ])))
    };
    let length = match packet.first().map(|first| first >> 4) {
        Some(4) => word(2).filter(|length| *length >= 20),
        Some(6) => word(4)
            .filter(|length| *length > 0)
            .map(|length| 40 + length),
        _ => None,
    };
    length
        .and_then(|length| packet.get(..length))
        .unwrap_or(packet)
}

/// With the type at this offset, and what it is of at that one.
fn by_ethertype(bytes: &[u8], kind_at: usize, mut at: usize) -> Option<&[u8]> {
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let mut kind = word(kind_at)?;
    // 802.1Q, 802.1ad, and what came before it: a receiver may take off as many as there are.
    while matches!(kind, 0x8100 | 0x88a8 | 0x9100) {
        kind = word(at + 2)?;
        at += 4;
    }
    match kind {
        0x0800 | 0x86dd => bytes.get(at..),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver takes all tags off, however many there are.
    #[test]
    fn what_is_behind_many_tags_is_found() {
        let mut packet = vec![0x45, 0, 0, 20];
        packet.resize(20, 7);
        for tags in [0, 1, 5, 300] {
            let mut frame = vec![2; 12];
            frame.extend([0x81, 0, 0, 1].repeat(tags));
            frame.extend([8, 0]);
            frame.extend(&packet);
            assert_eq!(ip_packet(1, &frame), Ok(Some(&packet[..])), "{tags}");
            // Cut within them.
            assert_eq!(ip_packet(1, &frame[..13 + 4 * tags]), Ok(None), "{tags}");
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::OPTION_BYTES;

const EPOCH: u64 = 27_811_234;

fn secret() -> Secret {
    Secret::new([5; 32])
}

fn identity() -> Digest {
    Digest(std::array::from_fn(|n| n as u8 + 1))
}

fn key_id() -> KeyId {
    KeyId::new(9).unwrap()
}

/// A SYN from `source` with a token that was made for `signed`.
fn syn(source: &str, signed: &str, epoch: u64) -> Vec<u8> {
    let (source, signed): (IpAddr, IpAddr) = (source.parse().unwrap(), signed.parse().unwrap());
    let dest: IpAddr = match source {
        IpAddr::V4(_) => "192.0.2.9".parse().unwrap(),
        IpAddr::V6(_) => "2001:db8::9".parse().unwrap(),
    };
    let statement = Statement {
        key_id: key_id(),
        epoch,
        source: (signed, 40_000),
        dest: (dest, 8080),
        isn: 0x0102_0304,
    };
    let token = TokenOption {
        version: VERSION,
        key_id: 9,
        epoch: epoch as u16,
        tag: *identity().0.first_chunk().unwrap(),
        mac: statement.mac(&secret().identity_key(key_id(), &identity())),
    };
    let mut packet = match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let mut head = vec![0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0];
            head.extend(source.octets());
            head.extend(dest.octets());
            head
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            // Destination options before TCP.
            let mut head = vec![0x60, 0, 0, 0, 0, 48, 60, 64];
            head.extend(source.octets());
            head.extend(dest.octets());
            head.extend([6, 0, 1, 4, 0, 0, 0, 0]);
            head
        }
        _ => unreachable!("both are of one family"),
    };
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(8080_u16.to_be_bytes());
    packet.extend([1, 2, 3, 4, 0, 0, 0, 0, 0xa0, SYN, 0, 0, 0, 0, 0, 0]);
    packet.extend(token.bytes());
    packet
}

fn verify(packet: &[u8], epoch: u64) -> Result<Digest, Refusal> {
    let secret = secret();
    let verifier = Verifier {
        keys: vec![(key_id(), &secret)],
        identities: vec![identity()],
    };
    verifier.verify(packet, epoch)
}

const SOURCES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

#[test]
fn a_token_is_good_for_its_flow_and_three_epochs() {
    for source in SOURCES {
        let packet = syn(source, source, EPOCH);
        assert!(Segment::read(&packet).unwrap().is_syn());
        for epoch in [EPOCH - 1, EPOCH, EPOCH + 1] {
            assert_eq!(verify(&packet, epoch), Ok(identity()), "{source}");
        }
        for epoch in [EPOCH - 2, EPOCH + 2, EPOCH + 1000] {
            assert_eq!(verify(&packet, epoch), Err(Refusal::OtherEpoch));
        }
        // The lower half comes again after 48 days.
        assert_eq!(verify(&packet, EPOCH + 65536), Err(Refusal::WrongMac));
    }
}

#[test]
fn a_token_of_another_flow_is_refused() {
    for (source, signed) in [(0, "192.0.2.2"), (1, "2001:db8::2")] {
        let packet = syn(SOURCES[source], signed, EPOCH);
        assert_eq!(verify(&packet, EPOCH), Err(Refusal::WrongMac));
    }
}

#[test]
fn a_header_shorter_than_a_header_is_no_segment() {
    let packet = syn(SOURCES[0], SOURCES[0], EPOCH);
    for words in 0..16 {
        let mut packet = packet.clone();
        packet[0] = 0x40 | words;
        // Behind 15 words there is no whole TCP header.
        let is_segment = Segment::read(&packet).is_some();
        assert_eq!(is_segment, (5..=10).contains(&words), "{words} words");
    }
}

#[test]
fn each_reason_has_its_word() {
    let packet = syn(SOURCES[0], SOURCES[0], EPOCH);
    let at = packet.len() - OPTION_BYTES;
    let changed = |offset: usize, to: u8| {
        let mut packet = packet.clone();
        packet[at + offset] = to;
        verify(&packet, EPOCH).unwrap_err()
    };
    assert_eq!(changed(4, 2), Refusal::OtherVersion);
    assert_eq!(changed(5, 8), Refusal::UnknownKey);
    assert_eq!(changed(5, 0), Refusal::UnknownKey);
    assert_eq!(changed(6, 0), Refusal::OtherEpoch);
    assert_eq!(changed(8, 99), Refusal::NotNamed);
    assert_eq!(changed(0, 253), Refusal::Missing);
    assert_eq!(changed(1, 19), Refusal::Malformed);
    assert_eq!(changed(1, 21), Refusal::Malformed);
    assert_eq!(changed(19, packet[at + 19] ^ 1), Refusal::WrongMac);
    // Each with another sequence number, port, address.
    for byte in [12, 15, 16, 19, 20, 21, 22, 23, 24, 27] {
        let mut packet = packet.clone();
        packet[byte] ^= 1;
        assert_eq!(verify(&packet, EPOCH), Err(Refusal::WrongMac), "{byte}");
    }
}

proptest! {
    /// No packet is read beyond its end, and none but the right one is good.
    #[test]
    fn any_bytes_are_read(packet in proptest::collection::vec(any::<u8>(), 0..120)) {
        prop_assert!(verify(&packet, EPOCH).is_err());
    }

    #[test]
    fn a_packet_cut_anywhere_is_refused(family in 0..2_usize, at in any::<prop::sample::Index>()) {
        let packet = syn(SOURCES[family], SOURCES[family], EPOCH);
        let cut = at.index(packet.len());
        prop_assert_eq!(verify(&packet[..cut], EPOCH), Err(Refusal::Malformed));
    }

    #[test]
    fn no_changed_bit_of_the_token_is_good(family in 0..2_usize, at in 0..OPTION_BYTES, bit in 0..8) {
        let mut packet = syn(SOURCES[family], SOURCES[family], EPOCH);
        let from = packet.len() - OPTION_BYTES;
        packet[from + at] ^= 1_u8 << bit;
        prop_assert!(verify(&packet, EPOCH).is_err());
    }
}

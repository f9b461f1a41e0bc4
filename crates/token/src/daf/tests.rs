use super::*;

const SOURCE: [u8; 4] = [192, 0, 2, 1];
const DEST: [u8; 4] = [192, 0, 2, 2];

fn key() -> DafKey {
    DafKey::new(b"key").unwrap()
}

/// A segment of this payload behind these IPv4 options.
fn packet(options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let length = (header + 20 + payload.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend([SOURCE, DEST].concat());
    packet.extend(options);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x18]);
    packet.extend([0; 6]);
    packet.extend(payload);
    packet
}

fn signed(payload: &[u8]) -> Vec<u8> {
    packet(&[&key().option(payload)[..], &[1, 0]].concat(), payload)
}

fn verdict(packet: &[u8]) -> Option<DafVerdict> {
    key().verify(packet).map(|(_, verdict)| verdict)
}

/// RFC 4231, test cases 2 and 6: a short key, and one of more than a block.
#[test]
fn the_mac_is_that_of_the_rfc() {
    let option = DafKey::new(b"Jefe")
        .unwrap()
        .option(b"what do ya want for nothing?");
    assert_eq!(option[..2], [0x5e, 34]);
    assert_eq!(
        hex::encode(&option[2..]),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
    let long = DafKey::new(&[0xaa; 131]).unwrap();
    let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
    assert_eq!(
        hex::encode(&long.option(text)[2..]),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    );
}

/// From the states of a key the same MAC comes out, for keys around a block.
#[test]
fn the_states_of_a_key_are_those_of_its_mac() {
    for length in [1, 31, 32, 63, 64, 65, 4096] {
        let bytes: Vec<u8> = (0..length).map(|n| n as u8 ^ 0xa5).collect();
        let key = DafKey::new(&bytes).unwrap();
        // A message of 55 bytes and its padding are one block.
        let message = [7; 55];
        let last = |message: &[u8]| {
            let mut block = [0; 64];
            block[..message.len()].copy_from_slice(message);
            block[message.len()] = 0x80;
            let bits = (64 + message.len() as u64) * 8;
            block[56..].copy_from_slice(&bits.to_be_bytes());
            block
        };
        let digest = |state: [u32; 8], message: &[u8]| {
            let mut state = state;
            compress256(&mut state, &[last(message)]);
            state.map(u32::to_be_bytes).concat()
        };
        let states = key.states();
        let mac = digest(states.outer, &digest(states.inner, &message));
        assert_eq!(mac, key.option(&message)[2..], "{length}");
    }
}

#[test]
fn a_signed_segment_is_valid_and_what_changes_it_is_not() {
    let whole = signed(b"hello");
    let (direction, verdict) = key().verify(&whole).unwrap();
    assert_eq!(verdict, DafVerdict::Valid);
    assert_eq!(direction, ((SOURCE.into(), 40_000), (DEST.into(), 80)));
    // The frame's padding is no payload.
    let padded = [&whole[..], &[0; 6]].concat();
    assert_eq!(super::tests::verdict(&padded), Some(DafVerdict::Valid));
    for at in (22..54).chain(whole.len() - 5..whole.len()) {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert_eq!(
            super::tests::verdict(&changed),
            Some(DafVerdict::WrongMac),
            "{at}"
        );
    }
    let other = DafKey::new(b"kez").unwrap();
    assert_eq!(other.verify(&whole).unwrap().1, DafVerdict::WrongMac);
    assert_eq!(
        super::tests::verdict(&packet(&[], b"hello")),
        Some(DafVerdict::Missing)
    );
    let behind = [&[1, 1][..], &key().option(b"hello")].concat();
    assert_eq!(
        super::tests::verdict(&packet(&behind, b"hello")),
        Some(DafVerdict::Missing)
    );
    let mut short = whole.clone();
    short[21] = 33;
    assert_eq!(super::tests::verdict(&short), Some(DafVerdict::Malformed));
    assert_eq!(
        super::tests::verdict(&packet(&key().option(b"hello")[..32], b"hello")),
        Some(DafVerdict::Malformed)
    );
    // A data offset before the header's end, and beyond the packet's.
    for offset in [0, 4, 15] {
        let mut wrong = whole.clone();
        wrong[56 + 12] = offset << 4;
        assert_eq!(
            super::tests::verdict(&wrong),
            Some(DafVerdict::Malformed),
            "{offset}"
        );
    }
}

/// What is weak in it, as the guide says: these are the same to DAF.
#[test]
fn it_proves_nothing_but_the_payload() {
    let whole = signed(b"hello");
    let mut elsewhere = whole.clone();
    // Another source, port, sequence number and time to live.
    for at in [8, 15, 57, 63] {
        elsewhere[at] ^= 1;
    }
    assert_eq!(verdict(&elsewhere), Some(DafVerdict::Valid));
    let empty = key().option(b"");
    let mut reset = packet(&[&empty[..], &[1, 0]].concat(), b"");
    assert_eq!(verdict(&reset), Some(DafVerdict::ValidWithoutData));
    reset[56 + 13] = 4;
    assert_eq!(verdict(&reset), Some(DafVerdict::ValidWithoutData));
}

#[test]
fn packets_that_are_cut_are_never_valid() {
    let whole = signed(b"hello");
    for length in 0..whole.len() {
        let verdict = verdict(&whole[..length]);
        assert!(
            !verdict.is_some_and(DafVerdict::is_valid),
            "{length} {verdict:?}"
        );
    }
    assert_eq!(
        verdict(&whole[..whole.len() - 1]),
        Some(DafVerdict::Shortened)
    );
    let mut udp = whole.clone();
    udp[9] = 17;
    assert_eq!(verdict(&udp), None);
    let mut fragment = whole;
    fragment[6] = 0x20;
    assert_eq!(verdict(&fragment), None);
    assert_eq!(verdict(&[0x60; 80]), None);
}

#[test]
fn a_key_has_some_bytes_and_is_not_shown() {
    assert!(DafKey::new(b"").is_none() && DafKey::new(&[1; MAX_KEY + 1]).is_none());
    let key = DafKey::new(&[7; MAX_KEY]).unwrap();
    assert_eq!(format!("{key:?}"), "DafKey(..)");
}

#[test]
fn packets_are_counted_by_direction() {
    let mut counts = DafCounts::default();
    let there: Direction = ((SOURCE.into(), 1), (DEST.into(), 80));
    let back = (there.1, there.0);
    for (direction, verdict) in [
        (there, DafVerdict::ValidWithoutData),
        (back, DafVerdict::Missing),
        (there, DafVerdict::Valid),
        (there, DafVerdict::Valid),
    ] {
        counts.add(direction, verdict);
    }
    assert_eq!(
        counts.directions(),
        [(there, [2, 1, 0, 0, 0, 0]), (back, [0, 0, 1, 0, 0, 0])]
    );
    assert_eq!(counts.beyond(), 0);
}

#[test]
fn directions_beyond_the_limit_are_counted() {
    let mut counts = DafCounts::default();
    for n in 0..=MAX_DIRECTIONS as u32 {
        let source = Ipv4Addr::from_bits(n);
        counts.add(((source, 1), (DEST.into(), 80)), DafVerdict::Valid);
    }
    assert_eq!(counts.directions().len(), MAX_DIRECTIONS);
    assert_eq!(counts.beyond(), 1);
    // Those that are there go on.
    counts.add(
        ((Ipv4Addr::from_bits(0), 1), (DEST.into(), 80)),
        DafVerdict::Valid,
    );
    assert_eq!((counts.beyond(), counts.directions()[0].1[0]), (1, 2));
}

proptest::proptest! {
    /// Whatever comes, it is read to an end.
    #[test]
    fn any_packet_gets_an_answer(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        key().verify(&bytes);
        // Nearly right ones.
        for (at, byte) in [(0, 0x4e), (9, 6), (6, 0x40), (7, 0), (20, 0x5e), (21, 34)] {
            if let Some(there) = bytes.get_mut(at) {
                *there = byte;
            }
        }
        let verdict = key().verify(&bytes);
        proptest::prop_assert!(!verdict.is_some_and(|(_, verdict)| verdict.is_valid()));
    }
}

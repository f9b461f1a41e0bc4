//! Packets with signatures of DAF, or what looks like it, as they stand in a capture.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_token::daf::{DafCounts, DafKey, DafVerdict};

#[derive(Debug, Arbitrary)]
struct Input {
    packet: Vec<u8>,
    key: Vec<u8>,
    payload: Vec<u8>,
    /// Words of the header of TCP, beyond five.
    words: u8,
    flip: u16,
    cut: u16,
}

/// A segment over IPv4 with this option, and as many words of TCP's header.
fn segment(option: &[u8], words: usize, payload: &[u8]) -> Vec<u8> {
    let length = (20 + 36 + words * 4 + payload.len()) as u16;
    let mut packet = vec![0x4e, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 9]);
    packet.extend(option);
    packet.extend([1, 0]);
    let mut tcp = vec![0; words * 4];
    (tcp[1], tcp[3], tcp[12]) = (7, 80, (words as u8) << 4);
    packet.extend(tcp);
    packet.extend(payload);
    packet
}

fuzz_target!(|input: Input| {
    // Nobody without the key has one that is right.
    let secret = DafKey::new(b"a key that is not in the input").expect("it has bytes");
    let mut counts = DafCounts::default();
    if let Some((direction, verdict)) = secret.verify(&input.packet) {
        assert!(!verdict.is_valid());
        counts.add(direction, verdict);
        assert_eq!(counts.directions().len(), 1);
    }
    let Some(key) = DafKey::new(&input.key) else {
        assert!(input.key.is_empty() || input.key.len() > 4096);
        return;
    };
    let words = usize::from(5 + input.words % 11);
    let payload = &input.payload[..input.payload.len().min(1400)];
    let good = segment(&key.option(payload), words, payload);
    let right = match payload.is_empty() {
        true => DafVerdict::ValidWithoutData,
        false => DafVerdict::Valid,
    };
    let verdict = |packet: &[u8]| key.verify(packet).map(|(_, verdict)| verdict);
    assert_eq!(verdict(&good), Some(right));
    // Behind it is what the link has filled up.
    assert_eq!(verdict(&[&good[..], &[0; 6]].concat()), Some(right));
    let cut = usize::from(input.cut) % good.len();
    assert!(!verdict(&good[..cut]).is_some_and(DafVerdict::is_valid));
    // Each bit of the signature and of the payload counts.
    let signed = (22..54).chain(good.len() - payload.len()..good.len());
    let all: Vec<_> = signed.collect();
    let mut other = good.clone();
    other[all[usize::from(input.flip / 8) % all.len()]] ^= 1 << (input.flip % 8);
    assert_eq!(verdict(&other), Some(DafVerdict::WrongMac));
});

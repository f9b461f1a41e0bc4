//! What anybody on the network sends to a port that wants a token, files of keys, and captures.
#![no_main]

use std::{net::IpAddr, time::Duration};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_identity::Digest;
use weir_token::{
    Datagram, EPOCH_SECONDS, KeyId, Secret, Statement, TokenOption, VERSION,
    capture::{CaptureReader, ip_packet},
    find,
    flow_table::FlowTable,
    key_file::Key,
    segment,
    verify::{Segment, Verifier},
};

const EPOCH: u64 = 27_800_000;

#[derive(Debug, Arbitrary)]
struct Input {
    packet: Vec<u8>,
    options: Vec<u8>,
    key_file: String,
    /// Which magic number it begins with.
    capture_kind: u8,
    capture: Vec<u8>,
    source: [u8; 4],
    ports: [u16; 2],
    isn: u32,
}

/// Reads a capture to its end; nothing in it has a right token.
fn read_capture(kind: u8, rest: &[u8], verifier: Verifier<'_>) {
    let magic: &[u8] = match kind % 4 {
        0 => b"\xd4\xc3\xb2\xa1",
        1 => b"\xa1\xb2\x3c\x4d",
        2 => b"\x0a\x0d\x0d\x0a",
        _ => b"",
    };
    let file = [magic, rest].concat();
    let mut table = FlowTable::new(verifier);
    let Ok(mut capture) = CaptureReader::new(&file[..]) else {
        return;
    };
    while let Ok(Some(packet)) = capture.next_packet() {
        let Ok(Some(ip)) = ip_packet(packet.link, packet.bytes) else {
            continue;
        };
        if let Some(segment) = Segment::read(ip) {
            table.add(packet.number, packet.time, &segment, packet.is_shortened);
        } else if let Some(datagram) = Datagram::read(ip) {
            table.add_datagram(packet.number, packet.time, &datagram);
        }
    }
    assert!(!table.flows().iter().any(|flow| flow.verdict.passes()));
}

fuzz_target!(|input: Input| {
    let secret = Secret::new([3; 32]);
    let id = KeyId::MIN;
    let identity = Digest([7; 32]);
    let verifier = Verifier {
        keys: vec![(id, &secret)],
        identities: vec![identity],
    };
    read_capture(input.capture_kind, &input.capture, verifier.clone());
    // Nobody without the key gets in.
    assert!(verifier.verify(&input.packet, EPOCH).is_err());
    if let Some(found) = Segment::read(&input.packet) {
        let verdict = segment::verify(&found, input.isn, &verifier.keys, &identity, EPOCH);
        assert!(verdict.is_err());
    }
    if let Ok(Some(option)) = find(&input.options) {
        assert_eq!(find(&option.bytes()), Ok(Some(option)));
    }
    // Behind whatever options that leave it room, a right one does, once.
    let statement = Statement {
        key_id: id,
        epoch: EPOCH,
        source: (IpAddr::from(input.source), input.ports[0]),
        dest: (IpAddr::from([192, 0, 2, 1]), input.ports[1]),
        isn: input.isn,
    };
    let token = TokenOption {
        version: VERSION,
        key_id: id.number(),
        epoch: EPOCH as u16,
        tag: [7; 4],
        mac: statement.mac(&secret.identity_key(id, &identity)),
    };
    let is_free = matches!(find(&input.options), Ok(None)) && !input.options.contains(&0);
    let options = [&input.options[..], &token.bytes()].concat();
    let segment = Segment {
        source: statement.source,
        dest: statement.dest,
        sequence: input.isn,
        flags: 2,
        options: Some(&options),
        ip_token: Ok(None),
        bytes: &[],
    };
    if is_free {
        assert_eq!(verifier.verify_segment(&segment, EPOCH), Ok(identity));
    }
    // Behind a SYN that is right no segment is, if it is not signed.
    let mut table = FlowTable::new(verifier.clone());
    let time = Some(Duration::from_secs(EPOCH * EPOCH_SECONDS));
    let only = token.bytes();
    let syn = Segment {
        options: Some(&only),
        ..segment
    };
    table.add(1, time, &syn, false);
    let later = Segment {
        flags: 0x10,
        options: Some(&input.options),
        bytes: &input.packet,
        ..segment
    };
    table.add(2, time, &later, input.ports[0] % 8 == 0);
    assert!(table.flows()[0].verdict.passes());
    let segments = table.flows()[0].segments();
    assert!(segments.is_none_or(|segments| segments.valid() == 0 && segments.refused() == 1));
    let again = verifier.verify_segment(&segment, EPOCH + 2);
    assert!(again.is_err());
    if let Ok(key) = Key::parse(&input.key_file) {
        assert_eq!(Key::parse(&key.text()), Ok(key));
    }
});

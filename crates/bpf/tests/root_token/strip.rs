//! What is overwritten at an uplink, by BPF_PROG_RUN: tokens in IPv6 destination options of
//! every length.

use weir_bpf::token::GatewayKind;

use super::*;

const PASSES: u32 = u32::MAX;
const SHOT: u32 = 2;
/// A token: kind, length, experiment, and what must not be left.
const TOKEN: [u8; 20] = [
    0x1e, 18, 0x77, 0x65, 1, 77, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 2, 3, 4,
];
/// Another experiment's option of the same kind, which is left alone.
const OTHER: [u8; 8] = [0x1e, 6, 0x12, 0x34, 1, 2, 3, 4];
const UDP: u8 = 17;
const TCP: u8 = 6;
const ICMP: u8 = 58;

/// Filled up to this length with options that nobody knows, and that are to be skipped.
fn behind_to(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    while bytes.len() < length {
        let room = (length - bytes.len()).min(200);
        match room {
            1 => bytes.push(0),
            _ => bytes.extend([0x3d, room as u8 - 2].into_iter().chain(vec![5; room - 2])),
        }
    }
    bytes
}

/// A frame with these destination options, filled up to so many bytes of the header, in front
/// of a datagram or segment to this port.
fn frame(options: &[u8], length: usize, protocol: u8, port: u16) -> Vec<u8> {
    let header = [&[protocol, (length / 8 - 1) as u8], options].concat();
    let header = behind_to(header, length);
    assert_eq!(header.len(), length);
    let mut transport = [40_000_u16.to_be_bytes(), port.to_be_bytes()].concat();
    match protocol {
        UDP => transport.extend([0, 12, 0, 0, 1, 2, 3, 4]),
        _ => transport.extend([0, 0, 0, 7, 0, 0, 0, 0, 5 << 4, 2, 9, 9, 0, 0, 0, 0]),
    }
    let payload = ((length + transport.len()) as u16).to_be_bytes();
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, payload[0], payload[1], 60, 64]);
    for last in [[0, 1], [9, 9]] {
        frame.extend([0x20, 1, 0xd, 0xb8, 0, last[0]]);
        frame.extend([0; 9]);
        frame.push(last[1]);
    }
    [frame, header, transport].concat()
}

/// The options with zeros in their tokens.
fn without(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    while let Some(at) = frame.windows(20).position(|part| part == TOKEN) {
        frame[at + 2..at + 20].fill(0);
    }
    frame
}

/// So many bytes of other options, then these.
fn behind(before: usize, options: &[u8]) -> Vec<u8> {
    [&behind_to(Vec::new(), before), options].concat()
}

#[test]
fn root_tokens_in_long_headers_are_overwritten() {
    let known = Known::new();
    let (_lab, tokens, loaded) = Lab::load("strip-long");
    tokens.put_policy(&known.policy()).unwrap();
    let strip = loaded.gateway(GatewayKind::StripIn).unwrap();
    let ran = |frame: &[u8]| prog_test_run::packet(strip.programs()[0], frame, 1).unwrap();
    let counts = || tokens.strippings().unwrap();
    let twice = [&TOKEN[..], &OTHER, &TOKEN].concat();
    let mut number = 0;
    for protocol in [UDP, TCP] {
        for length in [24, 32, 56, 64, 72, 80, 128, 256, 264, 1024, 1400, 2048] {
            for before in [0, 1, 2, 3, 4, 7, 40, 42, 60, 62, 236, 1000, 2022] {
                for options in [&TOKEN[..], &twice] {
                    let options = behind(before, options);
                    if 2 + options.len() > length {
                        continue;
                    }
                    let sent = frame(&options, length, protocol, 22);
                    let after = ran(&sent);
                    assert_eq!(after.verdict, PASSES, "{length} {before} {protocol}");
                    assert_ne!(without(&sent), sent);
                    assert!(
                        after.packet == without(&sent),
                        "{length} {before} {protocol}"
                    );
                    number += 1;
                    assert_eq!(counts().in_ip, number, "it counts once");
                    // Who verifies tokens gets them.
                    let sent = frame(&options, length, protocol, PORTS.0);
                    assert!(ran(&sent).packet == sent, "{length} {before} {protocol}");
                }
            }
        }
    }
    assert_eq!(counts().broken, 0);

    // An option that would end behind its header is none.
    for beyond in [1, 20, 200] {
        let mut sent = frame(&behind(62, &TOKEN), 88, UDP, 22);
        sent[14 + 40 + 64 + 1] = 88 - 64 - 2 + beyond;
        let after = ran(&sent);
        assert_eq!((after.verdict, after.packet == sent), (PASSES, true));
    }

    // The longest option has its end overwritten as well.
    let long = [&[0x1e, 255, 0x77, 0x65][..], &[6; 253]].concat();
    let sent = frame(&behind(100, &long), 400, UDP, 22);
    let after = ran(&sent);
    let at = 14 + 40 + 2 + 100;
    assert_eq!(after.packet[at..at + 2], [0x1e, 255]);
    assert_eq!(after.packet[at + 2..at + 257], [0; 255]);
    assert!(after.packet[at + 257..] == sent[at + 257..]);

    // What has no token goes as it came: also another experiment's, and other protocols.
    for (options, protocol) in [(&OTHER[..], UDP), (&[], TCP), (&TOKEN[..], ICMP)] {
        let sent = frame(options, 128, protocol, 22);
        let after = ran(&sent);
        assert_eq!((after.verdict, after.packet == sent), (PASSES, true));
    }
}

#[test]
fn root_headers_of_too_many_options_do_not_pass() {
    let known = Known::new();
    let (_lab, tokens, loaded) = Lab::load("strip-many");
    tokens.put_policy(&known.policy()).unwrap();
    let strip = loaded.gateway(GatewayKind::StripIn).unwrap();
    let ran = |frame: &[u8]| prog_test_run::packet(strip.programs()[0], frame, 1).unwrap();
    let many = |count: usize, port| {
        let options = [&[0x3d, 0].repeat(count)[..], &TOKEN].concat();
        frame(&options, 2048, UDP, port)
    };
    let most = many(127, 22);
    assert!(
        ran(&most).packet == without(&most),
        "its token is the last one of 128"
    );
    assert_eq!(ran(&many(128, 22)).verdict, SHOT);
    let before = tokens.strippings().unwrap().broken;
    assert_eq!(before, 1);
    // A port that wants tokens is told of no more than it was, and decides itself.
    let wanted = many(200, PORTS.0);
    let after = ran(&wanted);
    assert_eq!((after.verdict, after.packet == wanted), (PASSES, true));
    // The longest padding of single bytes, which nobody takes.
    let zeros = frame(&[0; 2046], 2048, UDP, 22);
    assert_eq!(ran(&zeros).verdict, SHOT);
    let few = frame(&[0; 490], 512, UDP, 22);
    assert_eq!(ran(&few).verdict, PASSES);
    assert_eq!(tokens.strippings().unwrap().broken, before + 1);
}

//! Options on the packets of curl and of a client of UDP.

use super::{
    common::{SILENCE, WEIR},
    lab::{Arrived, EAST, HTTP, Lab, WEST},
};

/// What came from the other site.
pub fn from(frames: &[Vec<u8>], site: [&str; 2]) -> Vec<Arrived> {
    let addresses = site.map(super::common::addr);
    frames
        .iter()
        .filter_map(|frame| Arrived::read(frame))
        .filter(|packet| addresses.contains(&packet.source))
        .collect()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Each layer on TCP, IPv4 and IPv6, download and upload, from the first SYN to the last
/// acknowledgement.
#[test]
fn root_curl_works_with_options_on_its_packets() {
    let Some(lab) = Lab::new(&[]) else { return };
    type Has = fn(&Arrived) -> bool;
    let cases: [(&[&str], Has, bool); 8] = [
        (
            &["ip:exp-94=aabbccdd"],
            |p| p.ip_options == [94, 6, 0xaa, 0xbb, 0xcc, 0xdd, 1, 1],
            true,
        ),
        (
            &["ip:rr"],
            |p| p.ip_options.len() == 40 && p.ip_options[0] == 7,
            true,
        ),
        (
            &["tcp:exp-254"],
            |p| p.tcp_options.starts_with(&[254, 6, 0xde, 0xad, 0, 1, 1, 1]),
            true,
        ),
        (
            &["ip:94/8", "tcp:253/8"],
            |p| p.ip_options.len() == 8 && p.tcp_options.starts_with(&[253, 8]),
            true,
        ),
        (
            &["hop:exp-1e"],
            |p| p.extensions.len() == 1 && p.extensions[0].1[2..] == [0x1e, 4, 0, 1, 2, 3],
            false,
        ),
        (
            &["dst:exp-1e/20"],
            |p| p.extensions.len() == 1 && p.extensions[0].0 == 60 && p.extensions[0].1[2] == 0x1e,
            false,
        ),
        (
            &["ext:43", "hop:padn"],
            |p| p.extensions.iter().map(|e| e.0).eq([0, 43]),
            false,
        ),
        (
            &["dst:exp-1e", "hop:exp-1e", "tcp:exp-253"],
            |p| p.extensions.iter().map(|e| e.0).eq([0, 60]) && p.tcp_options[0] == 253,
            false,
        ),
    ];
    for (options, has, is_v4) in cases {
        let address = EAST[usize::from(!is_v4)];
        let capture = lab.capture(&lab.east);
        let injecting = lab.inject(&lab.west, options);
        assert!(lab.serves(address), "{options:?}");
        let said = injecting.end(2);
        let packets = from(&capture.frames(), WEST);
        let with = packets.iter().filter(|packet| has(packet)).count() as u64;
        assert!(with > 5, "{options:?}: {with} of {}", packets.len());
        assert!(
            packets.iter().any(|packet| packet.is_syn && has(packet)),
            "{options:?}"
        );
        for packet in &packets {
            assert!(packet.has_right_checksums, "{options:?} {packet:?}");
        }
        // A superpacket counts once and arrives as several.
        assert!(
            said["changed"].as_u64().unwrap() <= with,
            "{options:?} {said} {with}"
        );
        assert_eq!(said["dropped"], 0, "{options:?} {said}");
        let is_segmented = !options.iter().any(|option| option.starts_with("tcp"));
        if is_segmented {
            assert!(
                packets
                    .iter()
                    .any(|packet| has(packet) && packet.payload > 1000),
                "{options:?}: segments that the kernel cut"
            );
        } else {
            assert!(said["left"]["gso"].as_u64() > Some(0), "{options:?} {said}");
        }
        // It has ended.
        assert!(lab.serves(address));
        assert!(
            !from(&capture.frames(), WEST).iter().any(has),
            "{options:?}"
        );
    }
    assert_eq!(lab.checksum_errors(&lab.east), 0);
}

/// The surplus area of RFC 9868, behind datagrams of even and odd length.
#[test]
fn root_datagrams_carry_options_behind_them() {
    let Some(lab) = Lab::new(&[]) else { return };
    for address in EAST {
        let capture = lab.capture(&lab.east);
        let injecting = lab.inject(&lab.west, &["udp:time", "udp:exp", "--protocol", "udp"]);
        for bytes in [0, 1, 40, 41, 1000, 1001] {
            assert!(lab.echoes(address, bytes), "{address} {bytes}");
        }
        // With the options it would not fit.
        let most = if address.contains(':') { 1440 } else { 1460 };
        assert!(lab.echoes(address, most), "{address}");
        let said = injecting.end(15);
        assert_eq!(
            (&said["changed"], &said["left"]["too_big"]),
            (&6.into(), &1.into())
        );
        let packets = from(&capture.frames(), WEST);
        let packets: Vec<_> = packets.iter().filter(|p| p.protocol == 17).collect();
        assert_eq!(packets.len(), 7);
        for packet in packets {
            assert!(packet.has_right_checksums, "{packet:?}");
            let is_odd = packet.payload % 2;
            let length = if packet.payload == most {
                0
            } else {
                20 + is_odd
            };
            assert_eq!(packet.surplus.len(), length, "{packet:?}");
            if length > 0 {
                assert!(
                    contains(&packet.surplus, &[127, 8, 0xde, 0xad]),
                    "{packet:?}"
                );
                let even = &packet.surplus[is_odd..];
                let sum = weir_core::checksum::checksum(&[even, &(length as u16).to_be_bytes()]);
                assert_eq!(sum, 0, "{packet:?}");
            }
        }
    }
    assert_eq!(lab.checksum_errors(&lab.east), 0);
}

/// The flows that are named get options, and no others; `--packets syn` means what it says.
#[test]
fn root_only_the_chosen_flows_get_options() {
    let Some(lab) = Lab::new(&[]) else { return };
    let port = HTTP.to_string();
    for (words, is_chosen) in [
        (&["--to", "198.51.100.0/24"][..], true),
        (&["--to", "203.0.113.0/24"], false),
        (
            &[
                "--to",
                "198.51.100.1",
                "--to",
                "2001:db8::/32",
                "--port",
                &port,
            ],
            true,
        ),
        (&["--to", "2001:db8::/32"], false),
        (&["--port", "81"], false),
        (&["--from-port", &port], false),
        (&["--protocol", "udp"], false),
        (&["--protocol", "6"], true),
    ] {
        let capture = lab.capture(&lab.east);
        let injecting = lab.inject(&lab.west, &[&["ip:exp-94"], words].concat());
        assert!(lab.serves(EAST[0]), "{words:?}");
        let said = injecting.end(1);
        let packets = from(&capture.frames(), WEST);
        let with = packets.iter().filter(|p| !p.ip_options.is_empty()).count();
        assert_eq!(with > 0, is_chosen, "{words:?} {said}");
        let too_big = said["left"]["too_big"].as_u64().unwrap() as usize;
        assert!(
            !is_chosen || with + too_big >= packets.len(),
            "{words:?} {said}"
        );
    }
    // The answers of a server, of which only what begins the connection gets the option.
    let capture = lab.capture(&lab.west);
    let words = ["tcp:exp-253", "--packets", "syn", "--from-port", &port];
    let injecting = lab.inject(&lab.east, &words);
    assert!(EAST.iter().all(|address| lab.serves(address)));
    // One is sent again where its answer is late.
    assert!(injecting.end(2)["changed"].as_u64() >= Some(4));
    let packets = from(&capture.frames(), EAST);
    for packet in packets {
        let has = packet.tcp_options.starts_with(&[253, 6, 0xde, 0xad]);
        assert_eq!(has, packet.is_syn, "{packet:?}");
        assert!(packet.has_right_checksums, "{packet:?}");
    }
}

/// However it ends, nothing is left; what cannot be is refused.
#[test]
fn root_options_end_with_whoever_put_them_there() {
    let Some(lab) = Lab::new(&[]) else { return };
    let bare = |lab: &Lab| {
        let capture = lab.capture(&lab.east);
        assert!(lab.echoes(EAST[0], 100));
        let packets = from(&capture.frames(), WEST);
        !packets.is_empty() && packets.iter().all(|packet| packet.ip_options.is_empty())
    };
    let injecting = lab.inject(&lab.west, &["ip:exp-94"]);
    assert!(!bare(&lab));
    injecting.end(9);
    super::common::soon("the program to go", || bare(&lab).then_some(()));
    // For a second; nothing was sent.
    let words = ["options", "inject", "ip:rr", "-i", "eth0", "--for", "1s"];
    let began = std::time::Instant::now();
    lab.weir(&lab.west, &words)
        .says_no(&["packets with the options: 0"]);
    assert!(began.elapsed() > SILENCE);
    // Fragments, and headers that are full already.
    let first = lab.inject(&lab.west, &["ip:rr"]);
    let second = lab.inject(&lab.west, &["ip:exp-94"]);
    assert!(lab.echoes(EAST[0], 4000));
    let (second, first) = (second.end(2), first.end(2));
    assert!(second["left"]["fragment"].as_u64() >= Some(2), "{second}");
    assert!(lab.echoes(EAST[0], 100));
    assert!(first["left"]["fragment"].as_u64() >= Some(2), "{first}");
    for (words, said) in [
        (&["ip:rr", "-i", "nowhere0"][..], "interface nowhere0: "),
        (
            &["ip:rr", "ip:ts", "-i", "eth0"],
            "take 76 bytes; allowed: up to 40",
        ),
        (
            &["nothing", "-i", "eth0"],
            "option \"nothing\": it begins with no layer",
        ),
        (
            &["tcp:nop", "--protocol", "udp", "-i", "eth0"],
            "--protocol 17 has no tcp options",
        ),
        (
            &["ip:rr", "-i", "eth0", "--for", "soon"],
            "invalid value 'soon' for '--for",
        ),
    ] {
        lab.weir(&lab.west, &[&["options", "inject"], words].concat())
            .refused(&[said]);
    }
    // What matched nothing says so, and where packets may have gone.
    let none = ["ip:rr", "-i", "eth0", "--to", "203.0.113.9", "--for", "1s"];
    lab.weir(&lab.west, &[&["options", "inject"], &none[..]].concat())
        .says_no(&[
            "no packet matched: nothing left by eth0",
            "ip route get 203.0.113.9",
        ]);
    let _ = WEIR;
}

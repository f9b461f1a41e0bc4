use proptest::prelude::*;

use super::*;

/// A number in the byte order of the file.
fn word(order: ByteOrder, value: u32) -> [u8; 4] {
    match order {
        ByteOrder::Little => value.to_le_bytes(),
        ByteOrder::Big => value.to_be_bytes(),
    }
}

fn half(order: ByteOrder, value: u16) -> [u8; 2] {
    match order {
        ByteOrder::Little => value.to_le_bytes(),
        ByteOrder::Big => value.to_be_bytes(),
    }
}

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];
const SECONDS: u32 = 1_780_000_000;

/// Two packets, of 5 and of 3 bytes, the second of which was longer.
fn pcap(order: ByteOrder, is_nanos: bool) -> Vec<u8> {
    let magic = if is_nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = word(order, magic).to_vec();
    file.extend(half(order, 2));
    file.extend(half(order, 4));
    for value in [0, 0, 262_144, 101] {
        file.extend(word(order, value));
    }
    for (part, bytes, original) in [(7, &b"hello"[..], 5), (8, b"abc", 90)] {
        for value in [SECONDS, part, bytes.len() as u32, original] {
            file.extend(word(order, value));
        }
        file.extend(bytes);
    }
    file
}

fn block(order: ByteOrder, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = word(order, body.len() as u32 + 12);
    [&word(order, kind)[..], &len, &body, &len].concat()
}

fn section(order: ByteOrder) -> Vec<u8> {
    let mut body = word(order, 0x1a2b_3c4d).to_vec();
    body.extend(half(order, 1));
    body.extend(half(order, 0));
    body.extend([0xff; 8]);
    block(order, 0x0a0d_0d0a, &body)
}

fn interface(order: ByteOrder, link: u16, options: &[u8]) -> Vec<u8> {
    let mut body = half(order, link).to_vec();
    body.extend([0, 0]);
    body.extend(word(order, 4));
    body.extend(options);
    block(order, 1, &body)
}

fn enhanced(order: ByteOrder, interface: u32, stamp: u64, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    let len = bytes.len() as u32;
    for value in [interface, (stamp >> 32) as u32, stamp as u32, len, len] {
        body.extend(word(order, value));
    }
    body.extend(bytes);
    block(order, 6, &body)
}

/// A section of each byte order, with interfaces of micro- and nanoseconds, of powers of two
/// and of an offset; blocks of other kinds between them.
fn pcapng() -> Vec<u8> {
    let mut file = Vec::new();
    for order in ORDERS {
        let nanos = [&half(order, 9)[..], &half(order, 1), &[9, 0, 0, 0]].concat();
        let binary = [&half(order, 9)[..], &half(order, 1), &[0x8a, 0, 0, 0]].concat();
        let offset = match order {
            ByteOrder::Little => 100_u64.to_le_bytes(),
            ByteOrder::Big => 100_u64.to_be_bytes(),
        };
        let offset = [&half(order, 14)[..], &half(order, 8), &offset].concat();
        let micros = u64::from(SECONDS) * 1_000_000 + 7;
        file.extend(section(order));
        file.extend(interface(order, 1, &[]));
        file.extend(interface(order, 101, &nanos));
        file.extend(interface(order, 113, &binary));
        file.extend(interface(order, 276, &offset));
        file.extend(enhanced(order, 0, micros, b"micro"));
        file.extend(block(order, 5, &[0; 12]));
        file.extend(enhanced(order, 1, micros * 1000 + 3, b"nano"));
        file.extend(enhanced(order, 2, u64::from(SECONDS) * 1024 + 512, b"two"));
        file.extend(enhanced(order, 3, micros, b"later"));
        file.extend(block(order, 3, &[&word(order, 9)[..], b"none"].concat()));
    }
    file
}

type Told = (Vec<(Option<Duration>, u32, Vec<u8>, bool)>, Option<String>);

/// All packets of a file, and why there are no more.
fn told(file: &[u8]) -> Told {
    let mut packets = Vec::new();
    let mut capture = match CaptureReader::new(file) {
        Ok(capture) => capture,
        Err(error) => return (packets, Some(error.to_string())),
    };
    loop {
        match capture.next_packet() {
            Ok(Some(packet)) => {
                assert_eq!(packet.number, packets.len() as u64 + 1);
                let bytes = packet.bytes.to_vec();
                packets.push((packet.time, packet.link, bytes, packet.is_shortened));
            }
            Ok(None) => return (packets, None),
            Err(error) => return (packets, Some(error.to_string())),
        }
    }
}

fn at(nanos: u64) -> Option<Duration> {
    Some(Duration::from_secs(SECONDS.into()) + Duration::from_nanos(nanos))
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_units() {
    for order in ORDERS {
        for (is_nanos, unit) in [(false, 1000), (true, 1)] {
            let (packets, error) = told(&pcap(order, is_nanos));
            assert_eq!(error, None);
            assert_eq!(
                packets,
                [
                    (at(7 * unit), 101, b"hello".to_vec(), false),
                    (at(8 * unit), 101, b"abc".to_vec(), true),
                ]
            );
        }
    }
}

#[test]
fn pcapng_is_read_by_section_and_interface() {
    let (packets, error) = told(&pcapng());
    assert_eq!(error, None);
    let of_section = [
        (at(7000), 1, b"micro".to_vec(), false),
        (at(7003), 101, b"nano".to_vec(), false),
        (at(500_000_000), 113, b"two".to_vec(), false),
        (
            at(7000).map(|time| time + Duration::from_secs(100)),
            276,
            b"later".to_vec(),
            false,
        ),
        // Of the first interface, as much as it captures.
        (None, 1, b"none".to_vec(), true),
    ];
    assert_eq!(packets, [of_section.clone(), of_section].concat());
}

#[test]
fn where_a_file_is_cut_is_said() {
    for (file, whole) in [(pcap(ByteOrder::Little, false), 2), (pcapng(), 10)] {
        let mut clean_ends = 0;
        for cut in 0..file.len() {
            let (packets, error) = told(&file[..cut]);
            assert!(packets.len() < whole || error.is_none(), "{cut}");
            match error {
                None => clean_ends += 1,
                Some(error) => {
                    let place = format!(", after {} packets, has ", packets.len());
                    assert!(error.contains(&place), "{cut}: {error}");
                }
            }
        }
        // Between two records, where a capture may end.
        assert!(clean_ends >= whole - 1, "{clean_ends}");
    }
    let file = pcap(ByteOrder::Big, true);
    let (packets, error) = told(&file[..file.len() - 1]);
    assert_eq!(packets.len(), 1);
    assert_eq!(
        error.as_deref(),
        Some("it is cut: the record at byte 45, after 1 packets, has 18 of at least 19 bytes")
    );
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let order = ByteOrder::Little;
    let mut long = pcap(order, false);
    long[32..36].copy_from_slice(&word(order, 2_000_000));
    let mut unequal = section(order);
    *unequal.last_mut().unwrap() = 1;
    let head = || section(order);
    let files: [(Vec<u8>, &str); 8] = [
        (
            b"\x1f\x8b\x08\x00compressed".to_vec(),
            "it is no capture: it begins with 1f 8b 08 00",
        ),
        (
            long,
            "at byte 24, after 0 packets, is wrong: a packet of more than",
        ),
        (unequal, "the two lengths of a block differ"),
        (
            [head(), enhanced(order, 0, 0, b"x")].concat(),
            "an interface that is not described",
        ),
        (
            [head(), block(order, 6, &[0; 8])].concat(),
            "a packet block that is too short",
        ),
        (
            [head(), block(order, 1, &[0; 4])].concat(),
            "an interface description",
        ),
        (
            [head(), word(order, 6).to_vec(), word(order, 13).to_vec()].concat(),
            "a block's length",
        ),
        (
            [
                head(),
                interface(order, 1, &[]),
                block(order, 6, &[0xff; 20]),
            ]
            .concat(),
            "not described",
        ),
    ];
    for (file, why) in files {
        let (_, error) = told(&file);
        let error = error.unwrap();
        assert!(error.contains(why), "{error}");
    }
    let many = interface(order, 1, &[]).repeat(4097);
    let (_, error) = told(&[head(), many].concat());
    assert!(error.unwrap().contains("more than 4,096 interfaces"));
}

#[test]
fn the_ip_packet_is_found_behind_each_link() {
    let ip: &[u8] = &[0x45, 1, 2, 3];
    let ethernet = |tags: &[u8]| [&[0; 12], tags, &[8, 0], ip].concat();
    let cooked = [&[0; 14], &[8, 0][..], ip].concat();
    let cooked2 = [&[8, 0][..], &[0; 18], ip].concat();
    let frames: [(u32, Vec<u8>); 8] = [
        (1, ethernet(&[])),
        (1, ethernet(&[0x81, 0, 0, 5])),
        (1, ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6])),
        (113, cooked),
        (276, cooked2),
        (101, ip.to_vec()),
        (228, ip.to_vec()),
        (0, [&[2, 0, 0, 0], ip].concat()),
    ];
    for (link, frame) in frames {
        assert_eq!(ip_packet(link, &frame), Ok(Some(ip)), "{link}");
        for cut in 0..frame.len() - ip.len() {
            // Raw and loopback have no type that could be missing.
            let found = ip_packet(link, &frame[..cut]).unwrap();
            assert_eq!(found.unwrap_or_default(), b"", "{link} {cut}");
        }
    }
    assert_eq!(ip_packet(1, &[0; 60]), Ok(None), "ARP or the like");
    assert_eq!(ip_packet(105, ip), Err(LinkError(105)));
}

proptest! {
    #[test]
    fn any_file_is_read_to_an_end(
        magic in prop::sample::select(vec![
            &b"\xd4\xc3\xb2\xa1"[..], b"\xa1\xb2\x3c\x4d", b"\x0a\x0d\x0d\x0a", b"",
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        told(&[magic, &rest].concat());
    }

    #[test]
    fn a_changed_file_is_read_to_an_end(
        is_new in any::<bool>(), at in any::<prop::sample::Index>(), to in any::<u8>(),
    ) {
        let mut file = if is_new { pcapng() } else { pcap(ByteOrder::Big, true) };
        let at = at.index(file.len());
        file[at] = to;
        told(&file);
    }
}

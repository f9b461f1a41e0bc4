//! `weir token verify`: which connections of a capture proved who began them, over the kinds
//! of capture files and links, cut anywhere; the dissector for Wireshark, by tshark; and the
//! scripts for Suricata, and the plugin for Snort.

#[path = "token_verify/core_dump.rs"]
mod core_dump;
#[path = "common/dumps.rs"]
mod dumps;
#[path = "token_verify/snort.rs"]
mod snort;
#[path = "token_verify/suricata.rs"]
mod suricata;
#[path = "token_verify/syns.rs"]
mod syns;

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;
use weir_token::{
    DatagramStatement, Digest, KeyId, Statement, TokenOption, VERSION,
    daf::DafKey,
    epoch_at,
    key_file::Key,
    segment::{self, SEGMENT_BIT, SegmentToken},
    verify::Segment,
};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const SECONDS: u32 = 1_780_000_000;
const PORT: u16 = 8080;
const IDENTITY: Digest = Digest([0xab; 32]);

/// A key, and captures.
struct Lab {
    dir: TempDir,
    key: Key,
}

impl Lab {
    fn new() -> Self {
        let dir = TempDir::with_prefix("weir-token-").unwrap();
        let keys = dir.path().join("keys");
        let made = Command::new(WEIR)
            .args(["token", "key", "new", "--keys"])
            .arg(&keys)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let key = fs::read_to_string(keys.join("1.key")).unwrap();
        let key = Key::parse(&key).unwrap();
        Self { dir, key }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn verify(&self, file: &PathBuf, more: &[&str]) -> Output {
        let identity = IDENTITY.to_string();
        Command::new(WEIR)
            .args(["token", "verify", "--aggregate", &identity, "--keys"])
            .arg(self.dir.path().join("keys"))
            .args(more)
            .arg(file)
            .output()
            .unwrap()
    }

    /// The options of a SYN with a token of the time of the capture.
    fn token(&self, source: IpAddr, dest: IpAddr, isn: u32) -> [u8; 20] {
        let epoch = epoch_at(SECONDS.into());
        let statement = Statement {
            key_id: self.key.id,
            epoch,
            source: (source, 40_000),
            dest: (dest, PORT),
            isn,
        };
        let secret = self.key.secret().unwrap();
        TokenOption {
            version: VERSION,
            key_id: self.key.id.number(),
            epoch: epoch as u16,
            tag: *IDENTITY.0.first_chunk().unwrap(),
            mac: statement.mac(&secret.identity_key(self.key.id, &IDENTITY)),
        }
        .bytes()
    }

    /// Packets of connections that end in each way, by family: [`VERDICTS`].
    fn packets(&self, is_v6: bool) -> Vec<(u32, Vec<u8>)> {
        let addr = |v4: &str, v6: &str| -> IpAddr { if is_v6 { v6 } else { v4 }.parse().unwrap() };
        let dest = addr("192.0.2.9", "2001:db8::9");
        let sources =
            [1, 2, 3, 4, 5].map(|n| addr(&format!("192.0.2.{n}"), &format!("2001:db8::{n}")));
        let good = self.token(sources[0], dest, 7);
        let syn = |source, options: &[u8]| packet(source, dest, 40_000, 7, 2, options);
        let mut unknown = good;
        unknown[5] = KeyId::new(9).unwrap().number();
        vec![
            (0, syn(sources[0], &good)),
            (0, packet(sources[0], dest, 40_000, 8, 0x10, &[])),
            // A copy of it from elsewhere, and once more.
            (1, syn(sources[1], &good)),
            (1, syn(sources[0], &good)),
            (2, syn(sources[2], &[])),
            (300, syn(sources[3], &self.token(sources[3], dest, 7))),
            (3, syn(sources[4], &unknown)),
            (4, packet(dest, sources[0], PORT, 1, 0x11, &[])),
        ]
    }
}

/// What becomes of the connections of [`Lab::packets`], in order.
const VERDICTS: [&str; 6] = [
    "valid",
    "wrong-mac",
    "replayed",
    "missing",
    "other-epoch",
    "unknown-key",
];

fn packet(
    source: IpAddr,
    dest: IpAddr,
    port: u16,
    sequence: u32,
    flags: u8,
    options: &[u8],
) -> Vec<u8> {
    let other = if port == PORT { 40_000 } else { PORT };
    let mut tcp = [port.to_be_bytes(), other.to_be_bytes()].concat();
    tcp.extend(sequence.to_be_bytes());
    let words = (20 + options.len()) as u8 / 4;
    tcp.extend([0, 0, 0, 0, words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend(options);
    let len = tcp.len() as u8;
    let mut packet = match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let mut head = vec![0x45, 0, 0, 20 + len, 0, 0, 0x40, 0, 64, 6, 0, 0];
            head.extend([source.octets(), dest.octets()].concat());
            head
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let mut head = vec![0x60, 0, 0, 0, 0, len, 6, 64];
            head.extend([source.octets(), dest.octets()].concat());
            head
        }
        _ => unreachable!("both are of one family"),
    };
    packet.extend(tcp);
    packet
}

/// A pcap of packets and their seconds.
fn pcap(link: u32, is_nanos: bool, packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let magic: u32 = if is_nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = magic.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0]);
    for value in [0, 0, 262_144, link] {
        file.extend(value.to_le_bytes());
    }
    for (after, packet) in packets {
        let frame = [header(link, packet), packet.clone()].concat();
        let len = frame.len() as u32;
        // Nanoseconds that would be another second if they were microseconds.
        let part = if is_nanos { 999_999_999 } else { 999_999 };
        for value in [SECONDS + after, part, len, len] {
            file.extend(value.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// What stands before the packet on such a link.
fn header(link: u32, packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if packet[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    match link {
        1 => [&[2; 12], &kind[..]].concat(),
        113 => [&[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0], &kind[..]].concat(),
        276 => [
            &kind[..],
            &[0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0],
        ]
        .concat(),
        _ => Vec::new(),
    }
}

fn pcapng(link: u16, packets: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, &body, &len].concat()
    };
    let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0]);
    section.extend([0xff; 8]);
    // Nanoseconds.
    let [low, high] = link.to_le_bytes();
    let interface = [low, high, 0, 0, 0, 0, 4, 0, 9, 0, 1, 0, 9, 0, 0, 0];
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (after, packet) in packets {
        let frame = [header(link.into(), packet), packet.clone()].concat();
        let nanos = u64::from(SECONDS + after) * 1_000_000_000;
        let len = frame.len() as u32;
        let mut body = Vec::new();
        for value in [0, (nanos >> 32) as u32, nanos as u32, len, len] {
            body.extend(value.to_le_bytes());
        }
        body.extend(frame);
        file.extend(block(6, &body));
    }
    file
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn verdicts(answer: &Value) -> Vec<&str> {
    let flows = answer["flows"].as_array().unwrap().iter();
    flows
        .map(|flow| flow["verdict"].as_str().unwrap())
        .collect()
}

/// A capture of these packets of each kind and link type.
fn of_all_kinds(packets: &[(u32, Vec<u8>)]) -> Vec<Vec<u8>> {
    const LINKS: [u16; 4] = [1, 113, 276, 101];
    let mut files: Vec<_> = LINKS
        .into_iter()
        .flat_map(|link| [false, true].map(|is_nanos| pcap(link.into(), is_nanos, packets)))
        .collect();
    files.extend(LINKS.map(|link| pcapng(link, packets)));
    files
}

#[test]
fn each_connection_of_a_capture_has_its_verdict() {
    let lab = Lab::new();
    for is_v6 in [false, true] {
        let packets = lab.packets(is_v6);
        for file in of_all_kinds(&packets) {
            let file = lab.write("capture", &file);
            let done = lab.verify(&file, &["--json"]);
            assert_eq!(done.status.code(), Some(1), "{done:?}");
            let answer = json(&done);
            assert_eq!(verdicts(&answer), VERDICTS);
            assert_eq!(answer["packets"], 8);
            assert_eq!(
                (&answer["valid"], &answer["refused"]),
                (&1.into(), &5.into())
            );
            let first = &answer["flows"][0];
            assert_eq!(first["aggregate"], IDENTITY.to_string());
            assert_eq!(
                (&first["packets"], &first["token"]["key"]),
                (&3.into(), &1.into())
            );
            assert!(
                first["time"]
                    .as_str()
                    .unwrap()
                    .starts_with("2026-05-28T20:26:40")
            );
        }
    }
    // Only what is right: exit code 0. The text names the program.
    let good = pcap(1, false, &lab.packets(true)[..2]);
    let file = lab.write("good", &good);
    let done = lab.verify(&file, &[]);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        text.contains("[2001:db8::1]:40000") && text.contains(&IDENTITY.to_string()),
        "{text}"
    );
    assert!(
        text.contains("1 connection, 0 flows of datagrams by verdict: 1 valid, 0 refused; 2 packets, 0 of them"),
        "{text}"
    );
    // No connection to this port: nothing is proved.
    let done = lab.verify(&file, &["--port", "80"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
}

/// Packets that their receiver reads and this command does not: none of them goes unseen.
#[test]
fn what_cannot_be_read_proves_nothing() {
    let lab = Lab::new();
    for is_v6 in [false, true] {
        let good = lab.packets(is_v6).swap_remove(0);
        let first = |port: u16| {
            let mut packet = good.1.clone();
            let tcp = if is_v6 { 40 } else { 20 };
            packet[tcp + 2..tcp + 4].copy_from_slice(&port.to_be_bytes());
            match is_v6 {
                true => {
                    packet[6] = 44;
                    packet.splice(40..40, [6, 0, 0, 1, 0, 0, 0, 9]);
                    packet[5] += 8;
                }
                false => packet[6] = 0x20,
            }
            packet
        };
        let verify = |second: Vec<u8>, more: &[&str]| {
            let file = pcap(1, false, &[good.clone(), (0, second)]);
            lab.verify(&lab.write("unread", &file), more)
        };
        let done = verify(first(PORT), &["--json", "--port", "8080"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let answer = json(&done);
        assert_eq!(
            (&answer["valid"], &answer["unread_packets"]),
            (&1.into(), &1.into())
        );
        let unread = serde_json::json!([{ "packet": 2, "verdict": "malformed" }]);
        assert_eq!(answer["unread"], unread);
        let done = verify(first(PORT), &[]);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(text.contains("1 packet is malformed, and prove"), "{text}");
        // To a port that nobody asks about.
        let done = verify(first(22), &["--port", "8080"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        if !is_v6 {
            continue;
        }
        // Its ports are behind the headers: it may be for any.
        let mut many = good.1.clone();
        for _ in 0..7 {
            let next = std::mem::replace(&mut many[6], 60);
            many.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
            many[5] += 8;
        }
        let done = verify(many, &["--port", "22"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        // What its sender could have sent in one piece is read.
        let mut atomic = first(PORT);
        atomic[43] = 0;
        let done = verify(atomic, &["--json"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert_eq!(json(&done)["flows"][0]["packets"], 2);
    }
}

#[test]
fn a_capture_that_is_cut_is_shown_up_to_there() {
    let lab = Lab::new();
    for file in [
        pcap(1, false, &lab.packets(false)),
        pcapng(276, &lab.packets(true)),
    ] {
        for cut in [file.len() - 1, file.len() / 2 + 3, 30, 3, 0] {
            let path = lab.write("cut", &file[..cut]);
            let done = lab.verify(&path, &["--json"]);
            assert_eq!(done.status.code(), Some(2), "{cut}: {done:?}");
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(
                said.contains("it is cut: the record at byte "),
                "{cut}: {said}"
            );
            let answer = json(&done);
            assert!(
                answer["error"].as_str().unwrap().contains("it is cut"),
                "{answer}"
            );
            let whole = if cut == file.len() - 1 { 7 } else { 4 };
            assert!(answer["packets"].as_u64() <= Some(whole), "{answer}");
            if cut > file.len() / 2 {
                assert_eq!(verdicts(&answer)[0], "valid");
            }
        }
    }
    let path = lab.write("other", b"GIF89a and more than four bytes of it");
    let done = lab.verify(&path, &[]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        said.contains("it is no capture: it begins with 47 49 46 38"),
        "{said}"
    );
    let wifi = pcap(105, false, &lab.packets(false));
    let done = lab.verify(&lab.write("wifi", &wifi), &[]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        said.contains("packet 1: link type 105 is not read; allowed: 1 (Ethernet)"),
        "{said}"
    );
}

#[test]
fn whose_tokens_are_right_is_named() {
    let lab = Lab::new();
    let file = lab.write("capture", &pcap(101, false, &lab.packets(false)[..2]));
    let config = lab.write("weir.toml", b"interfaces = [\"lo\"]\n");
    let keys = lab.dir.path().join("keys");
    let run = |more: &[&str]| {
        let mut weir = Command::new(WEIR);
        weir.arg("--config").arg(&config).args(["token", "verify"]);
        weir.args(more).arg(&file).output().unwrap()
    };
    let done = run(&["--keys", keys.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2));
    assert!(said.contains("allowed: --aggregate SHA256"), "{said}");
    // Those of the configuration, and its keys.
    let text = format!(
        "interfaces = [\"lo\"]\n[token]\nkeys = {keys:?}\n[token.require.web]\nports = [\"{PORT}/tcp\"]\naggregate = \"{IDENTITY}\"\n"
    );
    fs::write(&config, text).unwrap();
    let done = run(&["--json"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(verdicts(&json(&done)), ["valid"]);
    // Of another program nothing is right.
    let other = "cd".repeat(32);
    let done = run(&["--json", "--aggregate", &other]);
    assert_eq!(verdicts(&json(&done)), ["not-named"]);
}

/// A segment as a host with DAF sends it, with the option of another payload if that is said.
fn with_daf(key: &DafKey, is_back: bool, payload: &[u8], signed: Option<&[u8]>) -> Vec<u8> {
    let (mut ends, mut port) = ([[192, 0, 2, 1], [192, 0, 2, 9]], 40_000);
    if is_back {
        ends.reverse();
        port = PORT;
    }
    let plain = packet(ends[0].into(), ends[1].into(), port, 7, 0x18, &[]);
    let option = signed.map(|signed| [&key.option(signed)[..], &[1, 0]].concat());
    let option = option.unwrap_or_default();
    let mut packet = [&plain[..20], &option, &plain[20..], payload].concat();
    packet[0] = 0x45 + option.len() as u8 / 4;
    packet[3] = packet.len() as u8;
    packet
}

#[test]
fn signatures_of_daf_are_told_by_direction() {
    let lab = Lab::new();
    let secret = lab.write("daf.key", b"any bytes\n");
    let key = DafKey::new(b"any bytes\n").unwrap();
    let verify = |file: &PathBuf, more: &[&str]| {
        let mut weir = Command::new(WEIR);
        weir.args(["token", "verify", "--daf"]).arg(&secret);
        weir.args(more).arg(file).output().unwrap()
    };
    let good = vec![
        (0, with_daf(&key, false, b"", Some(b""))),
        (0, with_daf(&key, false, b"question", Some(b"question"))),
        (1, with_daf(&key, true, b"answer", Some(b"answer"))),
    ];
    let file = lab.write("daf", &pcap(1, false, &good));
    // The key is nobody else's.
    let set_mode = |mode| fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o644);
    let done = verify(&file, &[]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(
        said.contains("its mode is 0644") && !said.contains("any bytes"),
        "{said}"
    );
    set_mode(0o600);
    let done = verify(&file, &[]);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(
        text.contains("3 packets valid, 0 refused; 3 packets, 0 of them"),
        "{text}"
    );
    assert!(text.contains("can send it again, from anywhere"), "{text}");

    let mut mixed = good;
    mixed.push((2, with_daf(&key, true, b"other", Some(b"answer"))));
    mixed.push((2, with_daf(&key, true, b"bare", None)));
    mixed.push((3, lab.packets(true)[0].1.clone()));
    for file in [pcap(101, true, &mixed), pcapng(113, &mixed)] {
        let done = verify(&lab.write("mixed", &file), &["--json"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let answer = json(&done);
        assert_eq!(
            (&answer["valid"], &answer["refused"]),
            (&3.into(), &2.into())
        );
        assert_eq!(
            (&answer["packets"], &answer["other_packets"]),
            (&6.into(), &1.into())
        );
        let [there, back] = &answer["directions"].as_array().unwrap()[..] else {
            panic!("{answer}")
        };
        assert_eq!(there["source"], "192.0.2.1:40000");
        let count = |of: &Value, name: &str| of["verdicts"][name].as_u64().unwrap();
        assert_eq!(
            (count(there, "valid"), count(there, "valid-without-data")),
            (1, 1)
        );
        let of_back = ["valid", "wrong-mac", "missing", "malformed"].map(|name| count(back, name));
        assert_eq!(of_back, [1, 1, 1, 0], "{answer}");
    }
    // Cut within the last packet: what is before is shown.
    let whole = pcap(1, false, &mixed[..3]);
    let done = verify(&lab.write("cut", &whole[..whole.len() - 2]), &["--json"]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert_eq!(json(&done)["valid"], 2);
    let done = verify(&file, &["--port", "80"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    // The first part of a segment, which its receiver may put together.
    let mut part = with_daf(&key, false, b"", None);
    part[6] |= 0x20;
    let parts = [mixed[0].clone(), (1, part)];
    let file = lab.write("parts", &pcap(1, false, &parts));
    let done = verify(&file, &["--json"]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let answer = json(&done);
    assert_eq!(
        (&answer["valid"], &answer["unread_packets"]),
        (&1.into(), &1.into())
    );
    let text = String::from_utf8(verify(&file, &[]).stdout).unwrap();
    assert!(
        text.contains("1 packet is malformed, and prove nothing"),
        "{text}"
    );
    assert_eq!(verify(&file, &["--port", "80"]).status.code(), Some(1));
}

#[test]
fn segments_of_a_capture_have_their_verdicts() {
    let lab = Lab::new();
    let secret = lab.key.secret().unwrap();
    for is_v6 in [false, true] {
        let addr = |v4: &str, v6: &str| -> IpAddr { if is_v6 { v6 } else { v4 }.parse().unwrap() };
        let (source, dest) = (
            addr("192.0.2.1", "2001:db8::1"),
            addr("192.0.2.9", "2001:db8::9"),
        );
        // A segment with a token of this epoch, and these bytes.
        let signed = |epoch: u64, payload: &[u8]| {
            let mut token = SegmentToken {
                version: VERSION | SEGMENT_BIT,
                key_id: lab.key.id.number(),
                epoch: epoch as u16,
                mac: [0; 8],
            };
            let make = |token: &SegmentToken| {
                let mut whole = packet(source, dest, 40_000, 8, 0x10, &token.bytes());
                whole.extend(payload);
                match is_v6 {
                    true => whole[5] += payload.len() as u8,
                    false => whole[3] += payload.len() as u8,
                }
                whole
            };
            let plain = make(&token);
            let segment = Segment::read(&plain).unwrap();
            let key = secret.identity_key(lab.key.id, &IDENTITY);
            token.mac = segment::mac(&segment, 7, lab.key.id, epoch, &key).unwrap();
            make(&token)
        };
        let now = epoch_at(SECONDS.into());
        let good = signed(now, b"some bytes");
        let mut changed = good.clone();
        *changed.last_mut().unwrap() ^= 1;
        // Filled up by the link: no part of it.
        let padded = [&good[..], &[0; 6]].concat();
        let mut unknown = good.clone();
        let head = good.len() - 10 - 36;
        unknown[head + 25] = 9;
        let mut version = good.clone();
        version[head + 24] = 0x82;
        let mut malformed = good.clone();
        malformed[head + 21] = 15;
        let syn = packet(source, dest, 40_000, 7, 2, &lab.token(source, dest, 7));
        let packets = vec![
            (0, syn.clone()),
            (0, packet(source, dest, 40_000, 8, 0x10, &[])),
            (0, packet(source, dest, 40_000, 8, 0x10, &[])),
            (1, good.clone()),
            (1, packet(dest, source, PORT, 1, 0x10, &[])),
            (1, padded),
            (1, changed),
            (1, packet(source, dest, 40_000, 18, 0x10, &[])),
            (1, signed(now + 2, b"late")),
            (1, unknown),
            (1, version),
            (1, malformed),
            // The same connection, without a token in the SYN: nothing is said of its segments.
            (2, packet(source, dest, 40_001, 7, 2, &[])),
            (
                2,
                packet(source, dest, 40_001, 8, 0x10, &good[head + 20..head + 36]),
            ),
        ];
        for file in of_all_kinds(&packets) {
            let done = lab.verify(&lab.write("capture", &file), &["--json"]);
            assert_eq!(done.status.code(), Some(1), "{done:?}");
            let answer = json(&done);
            assert_eq!(verdicts(&answer), ["valid", "missing"]);
            let segments = &answer["flows"][0]["segments"];
            let wanted = serde_json::json!({
                "missing": 3, "valid": 2, "wrong-mac": 1, "other-epoch": 1, "unknown-key": 1,
                "other-version": 1, "malformed": 1,
            });
            assert_eq!(segments["verdicts"], wanted);
            // Of those before the first token the first one.
            let named: Vec<_> = segments["refused"].as_array().unwrap().iter().collect();
            let of = |packet: u64, verdict: &str| serde_json::json!({ "packet": packet, "verdict": verdict });
            assert_eq!(
                named,
                [
                    &of(2, "missing"),
                    &of(7, "wrong-mac"),
                    &of(8, "missing"),
                    &of(9, "other-epoch"),
                    &of(10, "unknown-key"),
                    &of(11, "other-version"),
                    &of(12, "malformed"),
                ]
            );
            assert_eq!(answer["flows"][1]["segments"], Value::Null);
            assert_eq!(answer["refused_segments"], 8);
        }
        let file = lab.write("text", &pcap(1, false, &packets[..9]));
        let text = String::from_utf8(lab.verify(&file, &[]).stdout).unwrap();
        for line in [
            "2 valid, 5 refused",
            "  packet 7: wrong-mac",
            "1 more segments were refused",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        // All right: exit code 0; also of a connection without the scope.
        for packets in [&[(0, syn.clone()), (1, good.clone())], &packets[..2]] {
            let done = lab.verify(&lab.write("good", &pcap(1, true, packets)), &[]);
            assert_eq!(done.status.code(), Some(0), "{done:?}");
        }
        // Of which less was captured.
        let mut file = pcap(101, false, &[(0, syn.clone()), (1, good.clone())]);
        let at = file.len() - good.len() - 8;
        file[at..at + 4].copy_from_slice(&(good.len() as u32 - 4).to_le_bytes());
        file.truncate(file.len() - 4);
        let answer = json(&lab.verify(&lab.write("short", &file), &["--json"]));
        let verdicts = &answer["flows"][0]["segments"]["verdicts"];
        assert_eq!(verdicts, &serde_json::json!({ "shortened": 1 }));
    }
}

/// A datagram of five bytes, with these IPv4 options or behind this IPv6 header.
fn datagram(source: IpAddr, dest: IpAddr, token: Option<TokenOption>) -> Vec<u8> {
    let udp = [0x9c, 0x40, 0, 53, 0, 13, 0, 0, 1, 2, 3, 4, 5];
    let mut packet = match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let options = token.map_or(Vec::new(), |token| token.ipv4_bytes().to_vec());
            let words = 5 + options.len() as u8 / 4;
            let mut head = vec![
                0x40 | words,
                0,
                0,
                words * 4 + 13,
                0,
                0,
                0x40,
                0,
                64,
                17,
                0,
                0,
            ];
            head.extend([source.octets(), dest.octets()].concat());
            [head, options].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let extension = token.map_or(Vec::new(), |token| token.ipv6_header().to_vec());
            let first = if extension.is_empty() { 17 } else { 60 };
            let mut head = vec![0x60, 0, 0, 0, 0, extension.len() as u8 + 13, first, 64];
            head.extend([source.octets(), dest.octets()].concat());
            [head, extension].concat()
        }
        _ => unreachable!("both are of one family"),
    };
    packet.extend(udp);
    packet
}

#[test]
fn datagrams_of_a_capture_have_their_verdicts() {
    let lab = Lab::new();
    for is_v6 in [false, true] {
        let addr = |v4: &str, v6: &str| -> IpAddr { if is_v6 { v6 } else { v4 }.parse().unwrap() };
        let [client, other, server] = [
            addr("192.0.2.1", "2001:db8::1"),
            addr("192.0.2.2", "2001:db8::2"),
            addr("192.0.2.9", "2001:db8::9"),
        ];
        let epoch = epoch_at(SECONDS.into());
        let statement = DatagramStatement {
            key_id: lab.key.id,
            epoch,
            source: (client, 40_000),
            dest: (server, 53),
        };
        let secret = lab.key.secret().unwrap();
        let token = TokenOption {
            version: VERSION,
            key_id: lab.key.id.number(),
            epoch: epoch as u16,
            tag: *IDENTITY.0.first_chunk().unwrap(),
            mac: statement.mac(&secret.identity_key(lab.key.id, &IDENTITY)),
        };
        let mut packets = vec![
            (0, datagram(client, server, Some(token))),
            (1, datagram(client, server, None)),
            (2, datagram(client, server, Some(token))),
            (2, datagram(other, server, Some(token))),
            (130, datagram(client, server, None)),
        ];
        // A part of one is no whole packet.
        let mut part = datagram(client, server, None);
        match is_v6 {
            true => part[6] = 44,
            false => part[6] = 0x20,
        }
        packets.push((3, part));
        packets.push((3, packet(client, server, 40_000, 7, 2, &[])));
        for file in of_all_kinds(&packets) {
            let file = lab.write("datagrams", &file);
            let done = lab.verify(&file, &["--json"]);
            assert_eq!(done.status.code(), Some(1), "{done:?}");
            let answer = json(&done);
            assert_eq!(
                verdicts(&answer),
                ["valid", "proven", "wrong-mac", "no-flow", "missing"]
            );
            let flows = answer["flows"].as_array().unwrap().iter();
            let shown: Vec<_> = flows
                .map(|flow| (flow["protocol"].as_str().unwrap(), flow["packets"].as_u64()))
                .collect();
            let udp = |packets| ("udp", Some(packets));
            assert_eq!(shown, [udp(2), udp(1), udp(1), udp(1), ("tcp", Some(1))]);
            assert_eq!(answer["flows"][1]["aggregate"], IDENTITY.to_string());
            assert_eq!(answer["other_packets"], 1);
            // The first part of several may be for any of these ports; a later one goes with it.
            assert_eq!(answer["unread_packets"], u32::from(!is_v6));
        }
        // What is proved alone; and what answers is not asked for.
        let good = lab.write("good", &pcap(1, false, &packets[..3]));
        let done = lab.verify(&good, &["--port", "53"]);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        assert!(
            text.contains("0 connections, 2 flows of datagrams by verdict: 2 valid, 0 refused"),
            "{text}"
        );
        let done = lab.verify(&good, &["--port", "40000"]);
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        // Cut anywhere, what is before is shown.
        let whole = pcapng(1, &packets[..3]);
        for cut in [whole.len() - 1, whole.len() - 30] {
            let done = lab.verify(&lab.write("cut", &whole[..cut]), &["--json"]);
            assert_eq!(done.status.code(), Some(2), "{done:?}");
            assert_eq!(verdicts(&json(&done)), ["valid", "proven"]);
        }
    }
}

#[test]
fn tshark_shows_each_part_of_a_token() {
    if let Some(why) = weir_netlab::missing(&["tshark"]) {
        eprintln!("skipped: {why}");
        return;
    }
    let lab = Lab::new();
    for is_v6 in [false, true] {
        let mut packets = lab.packets(is_v6);
        let token = packets[0].1[packets[0].1.len() - 20..].to_vec();
        let (source, dest): (IpAddr, IpAddr) = match is_v6 {
            true => (
                "2001:db8::1".parse().unwrap(),
                "2001:db8::9".parse().unwrap(),
            ),
            false => ("192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap()),
        };
        let twice = packet(source, dest, 40_001, 1, 2, &[&token[..], &token].concat());
        let short = [&[254, 16][..], &token[2..16]].concat();
        packets.push((5, twice));
        packets.push((5, packet(source, dest, 40_002, 1, 2, &short)));
        // Of a segment: shorter, with a bit beside the version, and without the aggregate.
        let mut segment = [&[254, 16][..], &token[2..8], &token[12..20]].concat();
        segment[4] |= SEGMENT_BIT;
        packets.push((5, packet(source, dest, 40_003, 1, 0x10, &segment)));
        let file = lab.write("shown.pcap", &pcap(1, true, &packets));
        let shown = Command::new("tshark")
            .args([
                "-X",
                "lua_script:dist/wireshark/weir-token.lua",
                "-T",
                "fields",
            ])
            .args(["-E", "separator=|", "-Y", "weir_token", "-r"])
            .arg(&file)
            .args(["number", "len"].map(|name| format!("-eframe.{name}")))
            .args(
                [
                    "version",
                    "key",
                    "epoch",
                    "tag",
                    "mac",
                    "other_epoch",
                    "several",
                    "bad_length",
                    "payload",
                ]
                .map(|name| format!("-eweir_token.{name}")),
            )
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(shown.status.success() && !said.contains("Lua"), "{said}");
        let text = String::from_utf8(shown.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
        // The segment, and SYNs with a token: those of the capture that have one, and the two
        // that are wrong.
        let numbers: Vec<_> = lines.iter().map(|line| line[0]).collect();
        assert_eq!(
            numbers,
            ["1", "3", "4", "6", "7", "9", "10", "11"],
            "{text}"
        );
        let epoch = (epoch_at(SECONDS.into()) as u16).to_string();
        let mac = hex::encode(&token[12..]);
        assert_eq!(
            lines[0][2..7],
            ["1", "1", &epoch, "abababab", &mac],
            "{text}"
        );
        assert_eq!(lines[4][3], "9", "the key of another: {text}");
        for (line, which) in [(3, 7), (5, 8), (6, 9)] {
            let told: Vec<_> = (7..10).filter(|n| !lines[line][*n].is_empty()).collect();
            assert_eq!(told, [which], "{text}");
        }
        assert!(lines[0][7..10].iter().all(|text| text.is_empty()), "{text}");
        let is_of_payload = |line: usize| matches!(lines[line][10], "1" | "True");
        assert!(is_of_payload(7) && !is_of_payload(0), "{text}");
        assert_eq!(lines[7][2..7], ["1", "1", &epoch, "", &mac], "{text}");
        assert!(lines[7][7..10].iter().all(|text| text.is_empty()), "{text}");
    }
}

#[test]
fn tshark_shows_the_token_of_a_datagram() {
    if let Some(why) = weir_netlab::missing(&["tshark"]) {
        eprintln!("skipped: {why}");
        return;
    }
    let lab = Lab::new();
    let token = TokenOption {
        version: VERSION,
        key_id: 3,
        epoch: epoch_at(SECONDS.into()) as u16,
        tag: [0xab; 4],
        mac: [0xcd; 8],
    };
    let udp = [0, 7, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let ipv4 = |options: &[u8]| {
        let words = 5 + options.len() as u8 / 4;
        let length = words * 4 + udp.len() as u8;
        let mut packet = vec![0x40 | words, 0, 0, length, 0, 0, 0x40, 0, 64, 17, 0, 0];
        packet.extend([192, 0, 2, 1, 192, 0, 2, 9]);
        packet.extend([options, &udp].concat());
        packet
    };
    let ipv6 = |first: u8, extension: &[u8]| {
        let length = (extension.len() + udp.len()) as u8;
        let mut packet = vec![0x60, 0, 0, 0, 0, length, first, 64];
        packet.extend([[0x20; 16], [0x21; 16]].concat());
        packet.extend([extension, &udp].concat());
        packet
    };
    let ends: [[IpAddr; 2]; 2] = [
        ["192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap()],
        [
            "2001:db8::1".parse().unwrap(),
            "2001:db8::9".parse().unwrap(),
        ],
    ];
    // SYNs with it in the IP header.
    let [syn4, syn6] = ends.map(|[source, dest]| packet(source, dest, 40_000, 7, 2, &[]));
    let mut syn4 = [&syn4[..20], &token.ipv4_bytes(), &syn4[20..]].concat();
    (syn4[0], syn4[3]) = (0x4a, syn4.len() as u8);
    let mut syn6 = [&syn6[..40], &token.ipv6_header(), &syn6[40..]].concat();
    (syn6[5], syn6[6], syn6[40]) = (syn6.len() as u8 - 40, 60, 6);
    let packets = [
        ipv4(&token.ipv4_bytes()),
        ipv6(60, &token.ipv6_header()),
        ipv4(&[]),
        ipv6(17, &[]),
        syn4,
        syn6,
    ];
    let packets: Vec<_> = packets.into_iter().map(|packet| (0, packet)).collect();
    let file = lab.write("udp.pcap", &pcap(1, true, &packets));
    let shown = Command::new("tshark")
        .args(["-X", "lua_script:dist/wireshark/weir-token.lua", "-T"])
        .args(["fields", "-E", "separator=|", "-Y", "weir_token", "-r"])
        .arg(&file)
        .args(["frame.number", "weir_token.key", "weir_token.mac"].map(|name| format!("-e{name}")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(shown.status.success() && !said.contains("Lua"), "{said}");
    let mac = "cd".repeat(8);
    assert_eq!(
        String::from_utf8_lossy(&shown.stdout),
        format!("1|3|{mac}\n2|3|{mac}\n5|3|{mac}\n6|3|{mac}\n")
    );
}

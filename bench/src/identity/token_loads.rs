//! `weir-bench token`: streams and connections that are signed, and whose server wants that,
//! beside none; and what the verifier takes for one packet.

use std::{net::IpAddr, path::Path};

use anyhow::{Context, ensure};
use weir_bpf::{
    identity::{CgroupAt, missing},
    prog_test_run,
    token::{self, GatewayKind, Loaded, Scope, Tokens, detach},
};
use weir_token::{
    IdentityKey, KeyId, Statement, TokenOption, VERSION, epoch_at,
    segment::{self, SEGMENT_BIT, SEGMENT_TOKEN_BYTES, SegmentToken},
    verify::Segment,
};

use super::{
    IdentityArgs, KNOWN, LEVEL, Load, NONE, Rows, Through, TokenUse,
    enforced::ROOT,
    site::Site,
    tokens::{IDENTITY, KEY, forwarded, requirement},
};
use crate::report::{Report, median};

/// The conduit that every path carries, as rows name it: both sides in force.
const CONDUIT: &str = "tcp-option";
/// The IP header of the SYN: an IPv4 option, or an IPv6 destination options header.
const BY_IP: &str = "ip-option";
/// A token in each segment.
const PAYLOAD: &str = "payload";
/// DAF's signature in each segment.
const DAF: &str = "daf";
/// Every way in which a connection proves itself: each has a budget of what is left of none.
const CONDUITS: &[&str] = &[CONDUIT, BY_IP, PAYLOAD, DAF];
const STREAM: &[(&str, Through)] = &[
    ("none", NONE),
    // What signing stands on.
    (LEVEL, KNOWN),
    ("signed", Through::Tokens(TokenUse::Signed)),
    (CONDUIT, Through::Tokens(TokenUse::Required)),
    (BY_IP, Through::Tokens(TokenUse::RequiredByIp)),
    // The limit of what comes next, and what it does to other connections at the device.
    ("one segment at a time", Through::SingleSegments),
    ("payload signed", Through::Tokens(TokenUse::SegmentsSigned)),
    (PAYLOAD, Through::Tokens(TokenUse::Segments)),
    (DAF, Through::Tokens(TokenUse::Daf)),
    // The way of DAF, without what it does to a packet.
    ("nfqueue", super::QUEUE),
];
const CONNECT: &[(&str, Through)] = &[
    ("none", NONE),
    (LEVEL, KNOWN),
    ("signed", Through::Tokens(TokenUse::Signed)),
    (CONDUIT, Through::Tokens(TokenUse::Required)),
    (BY_IP, Through::Tokens(TokenUse::RequiredByIp)),
    (PAYLOAD, Through::Tokens(TokenUse::Segments)),
    (DAF, Through::Tokens(TokenUse::Daf)),
];
/// What sends segments one by one, where no timer paces them.
const UNPACED: &[(&str, Through)] = &[
    ("none", NONE),
    ("one segment at a time", Through::SingleSegments),
    ("payload signed", Through::Tokens(TokenUse::SegmentsSigned)),
    (PAYLOAD, Through::Tokens(TokenUse::Segments)),
    (DAF, Through::Tokens(TokenUse::Daf)),
];
/// Tokens are in force on both sides, but not about this traffic.
const UNSIGNED: &[(&str, Through)] = &[
    (LEVEL, KNOWN),
    (CONDUIT, Through::Tokens(TokenUse::Elsewhere)),
];

/// The conduit of UDP: an IPv4 option, or an IPv6 destination options header.
const DATAGRAMS: &[(&str, Through)] = &[
    ("none", NONE),
    (LEVEL, KNOWN),
    ("signed", Through::Tokens(TokenUse::DatagramsSigned)),
    (BY_IP, Through::Tokens(TokenUse::Datagrams)),
];

const fn load(
    name: &'static str,
    args: &'static [&'static str],
    through: &'static [(&'static str, Through)],
) -> Load {
    Load {
        name,
        args,
        unit: "Gbit/s",
        scale: 8e-9,
        through,
        is_latency: false,
        counts_connections: false,
    }
}

const LOADS: [Load; 7] = [
    load("stream 1", &["--load", "stream"], STREAM),
    load("stream 8", &["--load", "stream", "--number", "8"], STREAM),
    load(
        "unpaced stream 1",
        &["--load", "stream", "--unpaced"],
        UNPACED,
    ),
    Load {
        unit: "µs",
        scale: 1e-3,
        is_latency: true,
        counts_connections: true,
        ..load("connect", &["--load", "connect"], CONNECT)
    },
    load("unsigned stream 1", &["--load", "stream"], UNSIGNED),
    // A packet each way, one behind the other.
    Load {
        unit: "k/s",
        scale: 1e-3,
        ..load("unsigned queries", &["--load", "query"], UNSIGNED)
    },
    Load {
        unit: "k/s",
        scale: 1e-3,
        ..load("datagrams", &["--load", "query"], DATAGRAMS)
    },
];

/// What DAF reached in the harness in which it was measured, of what the same traffic reached
/// without it: one stream, each packet with an HMAC. It does not run here.
const DAF_SIGNED: f64 = 0.03;

/// SYNs of a round, each of another connection.
const SYNS: u16 = 4000;
/// Runs of a later packet of one connection in a round.
const REPEAT: u32 = 1_000_000;
const PORT: u16 = 8080;
/// The payload of a segment with a token at an MTU of 1500, of IPv4.
const SEGMENT_PAYLOAD: usize = 1432;
/// Runs of such a segment in a round.
const SEGMENT_REPEAT: u32 = 100_000;
const MATCHES: u32 = 0xffff;

/// What of a load has a budget.
fn targets(load: &Load) -> &'static [&'static str] {
    match load.name {
        "stream 1" | "stream 8" => CONDUITS,
        "unsigned stream 1" | "unsigned queries" => &[CONDUIT],
        _ => &[],
    }
}

/// Measures all rows.
pub fn run(args: &IdentityArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let lacks = missing();
    if !lacks.is_empty() {
        eprintln!("signing: left out: this kernel lacks {}", lacks.join(", "));
    }
    verify_rows(&mut report, args)?;
    let site = Site::new(args.millis, true)?;
    for (family, to) in [("", "10.9.0.2"), (" ipv6", "2001:db8::2")] {
        for load in &LOADS {
            let rows = Rows {
                site: &site,
                load,
                family,
                to,
                targets: targets(load),
                has_level: lacks.is_empty(),
            };
            rows.measure(&mut report, args)?;
        }
    }
    let stated = "stated stream 1 DAF signed";
    if stated.contains(&args.only) {
        report.add(stated, "of none", &[DAF_SIGNED]);
    }
    report.finish(args.json.as_deref())
}

/// A frame of a connection: a SYN with a token, or what comes after it.
fn frame(client: u16, is_v6: bool, is_syn: bool) -> Vec<u8> {
    let (source, dest): (IpAddr, IpAddr) = match is_v6 {
        false => ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        true => (
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into(),
        ),
    };
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let epoch = epoch_at(seconds.map_or(0, |since| since.as_secs()));
    let statement = Statement {
        key_id: KeyId::MIN,
        epoch,
        source: (source, client),
        dest: (dest, PORT),
        isn: 7,
    };
    // As Linux has them: MSS, SACK, time stamps, window scale.
    let mut options = vec![
        2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
    ];
    if is_syn {
        options.extend(
            TokenOption {
                version: VERSION,
                key_id: KeyId::MIN.number(),
                epoch: epoch as u16,
                tag: [IDENTITY[0], IDENTITY[1], IDENTITY[2], IDENTITY[3]],
                mac: statement.mac(&IdentityKey(KEY)),
            }
            .bytes(),
        );
    }
    let mut tcp = [client.to_be_bytes(), PORT.to_be_bytes()].concat();
    let (words, flags) = (
        (20 + options.len()) as u8 / 4,
        if is_syn { 2 } else { 0x10 },
    );
    tcp.extend([
        0,
        0,
        0,
        7,
        0,
        0,
        0,
        0,
        words << 4,
        flags,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    tcp.extend(options);
    let mut frame = vec![0; 12];
    match (source, dest) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let len = 20 + tcp.len() as u8;
            frame.extend([8, 0, 0x45, 0, 0, len, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend([source.octets(), dest.octets()].concat());
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, tcp.len() as u8, 6, 64]);
            frame.extend([source.octets(), dest.octets()].concat());
        }
        _ => unreachable!("both are of one family"),
    }
    frame.extend(tcp);
    frame
}

/// A full segment of a connection, with a token of its own: IPv4's is 1448 bytes long behind the
/// time stamps, less the token.
fn segment_frame(client: u16, is_v6: bool) -> anyhow::Result<Vec<u8>> {
    let syn = frame(client, is_v6, false);
    let transport = if is_v6 { 14 + 40 } else { 14 + 20 };
    let mut frame = syn[..transport + 20].to_vec();
    let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let epoch = epoch_at(seconds.map_or(0, |since| since.as_secs()));
    let mut token = SegmentToken {
        version: VERSION | SEGMENT_BIT,
        key_id: KeyId::MIN.number(),
        epoch: epoch as u16,
        mac: [0; 8],
    };
    // Time stamps between padding, then the token.
    frame[transport + 12] = ((20 + 12 + SEGMENT_TOKEN_BYTES) as u8 / 4) << 4;
    frame.extend([1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0]);
    let at = frame.len();
    frame.extend(token.bytes());
    frame.extend([7; SEGMENT_PAYLOAD]);
    let (at_length, before) = if is_v6 { (18, 14 + 40) } else { (16, 14) };
    let length = (frame.len() - before) as u16;
    frame[at_length..at_length + 2].copy_from_slice(&length.to_be_bytes());
    let segment = Segment::read(&frame[14..]).context("a segment")?;
    let mac = segment::mac(&segment, 7, KeyId::MIN, epoch, &IdentityKey(KEY));
    token.mac = mac.context("a header with room for a token")?;
    frame[at..at + SEGMENT_TOKEN_BYTES].copy_from_slice(&token.bytes());
    Ok(frame)
}

/// The verifier by BPF_PROG_RUN: SYNs of connections that are new to it, one run each, and a
/// later packet of one of them.
fn verify_rows(report: &mut Report, args: &IdentityArgs) -> anyhow::Result<()> {
    if ![
        "verify new flow",
        "verify packet",
        "verify segment",
        "forward verify new flow",
        "forward verify packet",
        "forward xdp verify new flow",
        "forward xdp verify packet",
    ]
    .iter()
    .any(|name| format!("target {name} ipv6").contains(&args.only))
    {
        return Ok(());
    }
    let instance = format!("weir-bench-token-{}", std::process::id());
    let root = Path::new(ROOT);
    let measured = verify_values(root, &instance, args.rounds.max(1));
    detach(root, &instance)?;
    let _ = std::fs::remove_dir(root.join(&instance));
    for (family, values) in ["", " ipv6"].into_iter().zip(measured?) {
        let Verified {
            new_flow,
            packet,
            segment,
            forward,
        } = values;
        report.add(&format!("target verify new flow{family}"), "ns", &new_flow);
        report.add(&format!("target verify packet{family}"), "ns", &packet);
        report.add(&format!("verify segment{family}"), "ns", &segment);
        for (hook, [new_flow, packet]) in ["", " xdp"].into_iter().zip(&forward) {
            let name = format!("forward{hook} verify");
            report.add(&format!("{name} new flow{family}"), "ns", new_flow);
            report.add(&format!("{name} packet{family}"), "ns", packet);
        }
    }
    Ok(())
}

/// Nanoseconds, by round.
#[derive(Default)]
struct Verified {
    new_flow: Vec<f64>,
    packet: Vec<f64>,
    /// Figures of segments with a token.
    segment: Vec<f64>,
    /// New flows and packets that a gateway forwards, judged on tc and on XDP.
    forward: [[Vec<f64>; 2]; 2],
}

/// What a gateway takes for what it forwards, by family.
fn forward_values(
    tokens: &Tokens,
    loaded: &Loaded,
    values: &mut [Verified; 2],
) -> anyhow::Result<()> {
    tokens.put_policy(&forwarded(&[PORT])?)?;
    // What lets a packet pass: TC_ACT_UNSPEC, XDP_PASS.
    for (hook, (kind, passes)) in [
        (GatewayKind::Forward, u32::MAX),
        (GatewayKind::ForwardXdp, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let gateway = loaded.gateway(kind)?;
        let [program, _] = gateway.programs();
        for (is_v6, values) in [false, true].into_iter().zip(&mut *values) {
            // Those of the other hook are known.
            let first = 1 + hook as u16 * SYNS;
            let mut each = Vec::new();
            for client in first..first + SYNS {
                let ran = prog_test_run::packet(program, &frame(client, is_v6, true), 1)?;
                ensure!(ran.verdict == passes, "a right SYN is not forwarded");
                each.push(f64::from(ran.nanos));
            }
            let [new_flow, packet] = &mut values.forward[hook];
            new_flow.push(median(&each));
            let later = frame(first, is_v6, false);
            let ran = prog_test_run::packet(program, &later, REPEAT)?;
            ensure!(ran.verdict == passes, "a packet of it is not forwarded");
            packet.push(f64::from(ran.nanos));
        }
    }
    Ok(())
}

/// What the verifier takes for packets of each family.
fn verify_values(root: &Path, instance: &str, rounds: usize) -> anyhow::Result<[Verified; 2]> {
    let mut values: [Verified; 2] = Default::default();
    for _ in 0..rounds {
        // Tables of their own: no flow is known.
        detach(root, instance)?;
        let (tokens, loaded) = token::Tokens::load(root, instance, &CgroupAt::open(None)?, None)?;
        tokens.put_clock(token::clock_offset())?;
        tokens.put_policy(&requirement(&[PORT]))?;
        for (is_v6, values) in [false, true].into_iter().zip(&mut values) {
            let mut each = Vec::new();
            for client in 1..=SYNS {
                let ran = prog_test_run::packet(loaded.matcher(), &frame(client, is_v6, true), 1)?;
                ensure!(ran.verdict == MATCHES, "a right SYN is refused");
                each.push(f64::from(ran.nanos));
            }
            values.new_flow.push(median(&each));
            let later = frame(1, is_v6, false);
            let ran = prog_test_run::packet(loaded.matcher(), &later, REPEAT)?;
            ensure!(
                ran.verdict == MATCHES,
                "a packet of a proven flow is refused"
            );
            values.packet.push(f64::from(ran.nanos));
        }
        forward_values(&tokens, &loaded, &mut values)?;
        let mut policy = requirement(&[PORT]);
        policy.requirements[0].scope = Scope::Payload;
        tokens.put_policy(&policy)?;
        for (is_v6, values) in [false, true].into_iter().zip(&mut values) {
            let frame = segment_frame(1, is_v6)?;
            let ran = prog_test_run::packet(loaded.matcher(), &frame, SEGMENT_REPEAT)?;
            ensure!(ran.verdict == MATCHES, "a right segment is refused");
            values.segment.push(f64::from(ran.nanos));
        }
    }
    Ok(values)
}

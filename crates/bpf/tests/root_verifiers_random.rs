//! Random packets through every program that verifies or overwrites tokens, by BPF_PROG_RUN: the
//! match of iptables and sockets, a gateway on tc and on XDP, what strips tokens. A tenth of the
//! packets is nearly right. What passes is held against the verifier of `weir token verify`
//! (`weir_token::verify`): to a port that wants tokens nothing passes that does not prove itself
//! to both. Root: loads BPF.
//!
//! `WEIR_RANDOM_PACKETS` says how many packets there are, `WEIR_RANDOM_SEED` which: a failure
//! prints the seed and the packet.

#[path = "root_verifiers_random/judge.rs"]
mod judge;
#[path = "root_verifiers_random/packets.rs"]
mod packets;
#[path = "root_verifiers_random/reference.rs"]
mod reference;

use std::{
    collections::HashMap,
    net::IpAddr,
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use weir_bpf::{
    identity::CgroupAt,
    prog_test_run,
    token::{
        self, Claim, DafStates, Forwarded, GatewayKind, Requirement, Scope, TokenPolicy, Tokens,
    },
};
use weir_core::Prefix;
use weir_identity::Digest;
use weir_testkit::random::Random;
use weir_token::{
    Datagram, DatagramStatement, IdentityKey, KeyId, Secret, Statement, TokenOption, VERSION,
    daf::DafKey,
    epoch_at,
    segment::{self, SEGMENT_BIT, SEGMENT_TOKEN_BYTES, SegmentToken},
    verify::{Refusal, Segment, Verifier},
};

use judge::{Asked, Judge, strip};
use packets::{Known, change, frame, unsigned};
use reference::{Datagrams, Flows, Networks, Ports, Proof, Reference};

const ROOT: &str = "/sys/fs/bpf/weir";
/// Packets of a run where nothing else is said, each through five programs.
const PACKETS: u64 = 400_000;
/// Right packets that nearly right ones are made of, made anew in each epoch.
const POOL: usize = 1024;

const FROM: [&str; 2] = ["192.0.2.0/24", "2001:db8::/32"];
const TO: [&str; 2] = ["198.51.100.0/24", "2001:db8:9::/48"];
/// Ports of TCP and UDP that want a token of the flow.
const FLOW: (u16, u16) = (8080, 8083);
/// Ports that want one in each segment.
const PAYLOAD: (u16, u16) = (8090, 8091);
/// The port that wants signatures of DAF, of IPv4.
const DAF: (u16, u16) = (8100, 8100);
/// A port of a requirement about forwarded packets that only logs.
const LOGGED: u16 = 7000;
/// A port that wants nothing.
const OTHER: u16 = 9000;
/// The number of SYNs to ports that want tokens in segments.
const PAYLOAD_ISN: u32 = 7;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What lets a packet pass: MATCH, TC_ACT_UNSPEC, XDP_PASS.
const MATCHES: u32 = 0xffff;
const TC_PASSES: u32 = u32::MAX;
const XDP_PASSES: u32 = 2;

fn epoch() -> u64 {
    epoch_at(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs())
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: {text} is no number")),
    )
}

fn is_within(ports: (u16, u16), port: u16) -> bool {
    (ports.0..=ports.1).contains(&port)
}

/// The tables of the test, gone when it ends.
struct Lab(String);

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = token::detach(Path::new(ROOT), &self.0);
        let _ = std::fs::remove_dir(Path::new(ROOT).join(&self.0));
    }
}

#[test]
fn root_no_random_packet_gets_by_a_verifier() {
    let lab = Lab(format!("wt-random-{}", std::process::id()));
    let cgroup = CgroupAt::open(None).unwrap();
    let (tokens, loaded) = Tokens::load(Path::new(ROOT), &lab.0, &cgroup, None).unwrap();
    tokens.put_clock(token::clock_offset()).unwrap();
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let [forward, by_xdp, strip_in] = [
        GatewayKind::Forward,
        GatewayKind::ForwardXdp,
        GatewayKind::StripIn,
    ]
    .map(|kind| loaded.gateway(kind).unwrap());
    let of_sockets = loaded.programs().find(|(name, _)| *name == "verify");
    let of_sockets = of_sockets.unwrap().1;
    let judge = |name, program, passes, is_forwarded| Judge {
        name,
        program,
        passes,
        is_forwarded,
        proved: 0,
        refused: 0,
    };
    let mut judges = [
        judge("match", loaded.matcher(), MATCHES, false),
        judge("gateway on tc", forward.programs()[0], TC_PASSES, true),
        judge("gateway on XDP", by_xdp.programs()[0], XDP_PASSES, true),
    ];
    let networks = Networks {
        from: FROM.map(|text| text.parse().unwrap()),
        to: TO.map(|text| text.parse().unwrap()),
    };
    let reference = Reference {
        known: &known,
        verifier: Verifier {
            keys: vec![(known.id, &known.secret)],
            identities: vec![known.identity],
        },
    };
    // Both programs of the gateway have one table.
    let (mut of_match, mut of_gateway) = (Flows::default(), Flows::default());
    let mut datagrams = Datagrams::new();
    let (packets, seed) = (
        number("WEIR_RANDOM_PACKETS").unwrap_or(PACKETS),
        number("WEIR_RANDOM_SEED").unwrap_or(0x5eed),
    );
    let mut random = Random(seed | 1);
    let (mut pool, mut of_epoch): (Vec<Vec<u8>>, _) = (Vec::new(), 0);
    let (mut stripped, began) = (0_u64, Instant::now());
    for number in 0..packets {
        if of_epoch != epoch() {
            of_epoch = epoch();
            tokens.put_clock(token::clock_offset()).unwrap();
            pool = (0..POOL)
                .map(|_| frame(&known.packet(&mut random, of_epoch)))
                .collect();
        }
        let frame = match random.below(10) {
            0 => {
                let mut frame = pool[random.below(POOL)].clone();
                change(&mut frame, &mut random);
                frame
            }
            _ => unsigned(&mut random),
        };
        let asked = Asked::of(&frame);
        for judge in &mut judges {
            let flows = match judge.is_forwarded {
                true => &mut of_gateway,
                false => &mut of_match,
            };
            let said = judge.run(&asked, &networks, &reference, flows, &mut datagrams);
            if let Err(why) = said {
                panic!("seed {seed}, packet {number}: {why}: {frame:02x?}");
            }
        }
        match strip(strip_in.programs()[0], &asked) {
            Ok(is_changed) => stripped += u64::from(is_changed),
            Err(why) => panic!("seed {seed}, packet {number}: {why}: {frame:02x?}"),
        }
        // It is of no socket here: it lets it pass, whatever it is.
        if let Ok(ran) = prog_test_run::packet(of_sockets, &frame, 1) {
            assert_eq!(ran.verdict, 1, "seed {seed}, packet {number}: {frame:02x?}");
        }
    }
    for Judge {
        name,
        proved,
        refused,
        ..
    } in &judges
    {
        println!("{name}: {proved} proved themselves, {refused} did not");
        assert!(*proved > packets / 200, "{name}: {proved}");
        assert!(*refused > packets / 10, "{name}: {refused}");
    }
    println!(
        "{packets} packets through 5 programs in {:.1?}, {stripped} overwritten",
        began.elapsed()
    );
    assert!(stripped > 0);
}

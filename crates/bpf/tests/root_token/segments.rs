//! Segments behind the SYN, where the scope is the payload: what the kernel says of them by
//! BPF_PROG_RUN, against the reference.

use weir_token::{
    segment::{self, SEGMENT_BIT, SegmentToken},
    verify::Refusal,
};

use super::*;

const RUNS: u32 = 200_000;
/// The number of each SYN.
pub const ISN: u32 = 6;

/// What a segment has beside its token.
struct Parts<'p> {
    flow: Flow,
    sequence: u32,
    flags: u8,
    /// Options before the token, and IPv6 headers before TCP's.
    options: &'p [u8],
    chain: usize,
    payload: &'p [u8],
}

/// Time stamps, as Linux has them.
const STAMPS: [u8; 12] = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];

impl Known {
    fn policy_of_segments(&self) -> TokenPolicy {
        let mut policy = self.policy();
        policy.requirements[0].scope = Scope::Payload;
        policy.requirements[0].udp_ports = Vec::new();
        policy
    }

    /// A frame with a token that is right, with time stamps and these data.
    pub fn segment_with(&self, flow: Flow, payload: &[u8], epoch: u64) -> Vec<u8> {
        let parts = Parts {
            flow,
            sequence: 7,
            flags: 0x18,
            options: &STAMPS,
            chain: 0,
            payload,
        };
        self.segment(&parts, epoch)
    }

    /// A frame with a token that is right.
    fn segment(&self, parts: &Parts<'_>, epoch: u64) -> Vec<u8> {
        let (source, dest) = parts.flow;
        let mut token = SegmentToken {
            version: VERSION | SEGMENT_BIT,
            key_id: self.id.number(),
            epoch: epoch as u16,
            mac: [0; 8],
        };
        // The frame of a SYN, of which the head is taken.
        let syn = self.frame(source, dest, 0, epoch, &[], parts.chain);
        let tcp = match source.0 {
            IpAddr::V4(_) => 14 + 20,
            IpAddr::V6(_) => 14 + 40 + parts.chain * 8,
        };
        let mut frame = syn[..tcp].to_vec();
        frame.extend(source.1.to_be_bytes());
        frame.extend(dest.1.to_be_bytes());
        frame.extend(parts.sequence.to_be_bytes());
        let words = 5 + (parts.options.len() + 16) as u8 / 4;
        frame.extend([0, 0, 0, 1, words << 4, parts.flags, 1, 2, 3, 4, 0, 0]);
        frame.extend(parts.options);
        let at = frame.len();
        frame.extend(token.bytes());
        frame.extend(parts.payload);
        set_length(&mut frame);
        let key = self.secret.identity_key(self.id, &self.identity);
        let read = Segment::read(&frame[14..]).unwrap();
        token.mac = segment::mac(&read, ISN, self.id, epoch, &key).unwrap();
        frame[at..at + 16].copy_from_slice(&token.bytes());
        frame
    }
}

/// Payloads of every length around those of blocks, and of the largest packets that there are.
#[test]
fn root_a_segment_of_every_length_is_verified() {
    let (_lab, tokens, loaded) = Lab::load("lengths");
    let known = Known::new();
    tokens.put_policy(&known.policy_of_segments()).unwrap();
    let run = |frame: &[u8]| {
        prog_test_run::packet(loaded.matcher(), frame, 1)
            .unwrap()
            .verdict
    };
    let bytes: Vec<u8> = (0..9000).map(|n| (n * 7) as u8).collect();
    for v6 in [false, true] {
        let flow = flow(v6, 40_000);
        let syn = known.frame(flow.0, flow.1, ISN, epoch(), &[], 0);
        assert_eq!(run(&syn), MATCH);
        let lengths = (0..300).chain([536, 1220, 1428, 1440, 1448, 3000]);
        for length in lengths {
            let parts = Parts {
                flow,
                sequence: 7 + length as u32,
                flags: 0x18,
                options: if length % 2 == 0 { &STAMPS } else { &[] },
                chain: 0,
                payload: &bytes[..length],
            };
            let frame = known.segment(&parts, epoch());
            assert_eq!(run(&frame), MATCH, "{v6} {length}");
            // Its last bit, and one byte more or less.
            for at in [frame.len() - 1, frame.len() / 2] {
                let mut changed = frame.clone();
                changed[at] ^= 1;
                let tcp = frame.len() - length - 16 - parts.options.len() - 20;
                let is_checksum = (tcp + 16..tcp + 18).contains(&at);
                assert_eq!(run(&changed) == MATCH, is_checksum, "{v6} {length} {at}");
            }
            let mut more = [&frame[..], &[0]].concat();
            assert_eq!(run(&more), MATCH, "behind the packet: {v6} {length}");
            set_length(&mut more);
            assert_eq!(run(&more), 0, "{v6} {length}");
            assert_eq!(run(&frame[..frame.len() - 1]), 0, "{v6} {length}");
        }
        // Of another flow of the same program, whose SYN was right as well.
        let other = self::flow(v6, 40_001);
        assert_eq!(
            run(&known.frame(other.0, other.1, ISN, epoch(), &[], 0)),
            MATCH
        );
        let parts = Parts {
            flow,
            sequence: 7,
            flags: 0x18,
            options: &STAMPS,
            chain: usize::from(v6),
            payload: b"transplanted",
        };
        let mut frame = known.segment(&parts, epoch());
        assert_eq!(run(&frame), MATCH);
        // Of a connection that has been, between the same ports.
        let again = known.frame(flow.0, flow.1, ISN + 9, epoch(), &[], 0);
        assert_eq!(run(&again), MATCH);
        assert_eq!(run(&frame), 0);
        let port = 14 + if v6 { 48 } else { 20 };
        frame[port..port + 2].copy_from_slice(&40_001_u16.to_be_bytes());
        assert_eq!(run(&frame), 0);
        // Fast Open: what a SYN carries nobody has signed.
        let mut syn = known.frame(other.0, other.1, 60, epoch(), &[], 0);
        assert_eq!(run(&syn), MATCH);
        syn.extend(b"GET /");
        set_length(&mut syn);
        assert_eq!(run(&syn), 0);
        // Another key, of the one scope a token in the other.
        let counts = || tokens.outcomes(0).unwrap();
        let missing = counts()[Outcome::Missing as usize];
        let flags = 14 + if v6 { 40 } else { 20 } + 13;
        let mut bare = known.frame(flow.0, flow.1, 9, epoch(), &[], 0);
        bare[flags] = 0x10;
        assert_eq!(run(&bare), 0, "the token of a SYN");
        let end = bare.len();
        bare[end - 20..].fill(1);
        assert_eq!(run(&bare), 0);
        assert_eq!(counts()[Outcome::Missing as usize], missing + 1);
    }
    // Without the scope each of them passes, as before.
    tokens.put_policy(&known.policy()).unwrap();
    let flow = flow(false, 40_000);
    let mut bare = known.frame(flow.0, flow.1, 9, epoch(), &[], 0);
    bare[14 + 20 + 13] = 0x10;
    assert_eq!(run(&bare), MATCH);
    // And with it again none, though the flow is known.
    tokens.put_policy(&known.policy_of_segments()).unwrap();
    assert_eq!(run(&bare), 0);
}

/// Segments that are nearly right: the kernel says of each what the reference does.
#[test]
fn root_the_kernel_verifies_segments_as_the_reference_does() {
    let (_lab, tokens, loaded) = Lab::load("segments");
    let known = Known::new();
    tokens.put_policy(&known.policy_of_segments()).unwrap();
    let run = |frame: &[u8]| prog_test_run::packet(loaded.matcher(), frame, 1);
    let mut random = Random(0xda7a);
    let flows: Vec<_> = (0..8).map(|n| flow(n % 2 == 1, 40_000 + n / 2)).collect();
    for flow in &flows {
        let syn = known.frame(flow.0, flow.1, ISN, epoch(), &[], 0);
        assert_eq!(run(&syn).unwrap().verdict, MATCH);
    }
    let keys = [(known.id, &known.secret)];
    let verifier = Verifier {
        keys: keys.to_vec(),
        identities: vec![known.identity],
    };
    let mut wanted = HashMap::<&str, u64>::new();
    let mut unsure = 0;
    let begun = tokens.outcomes(0).unwrap();
    for number in 0..RUNS {
        let payload: Vec<u8> = (0..random.below(200))
            .map(|_| random.number() as u8)
            .collect();
        let padding = vec![1; random.below(3) * 4];
        let parts = Parts {
            // Of some the SYN was never seen.
            flow: match random.below(20) {
                0 => flow(random.below(2) == 1, 50_000),
                _ => flows[random.below(flows.len())],
            },
            sequence: random.number() as u32,
            flags: [0x10, 0x18, 0x11, 0x14, 0x04][random.below(5)],
            options: &[&padding[..], &STAMPS[..12 * random.below(2)]].concat(),
            chain: 0,
            payload: &payload,
        };
        let of = match random.below(8) {
            0 => epoch() + random.below(7) as u64 - 3,
            _ => epoch(),
        };
        let mut frame = known.segment(&parts, of);
        for _ in 0..random.below(4) {
            // Mostly in the headers.
            let most = match random.below(3) {
                0 => frame.len(),
                _ => frame.len().min(14 + 40 + 40),
            };
            let at = 14 + random.below(most - 14);
            frame[at] ^= 1 << random.below(8);
        }
        if random.below(12) == 0 {
            frame.truncate(14 + random.below(frame.len() - 14));
        }
        let before = epoch();
        let packet = packet_of(&frame);
        let version = if frame[12] == 8 { 4 } else { 6 };
        let judge = |segment: &Segment<'_>| -> Option<&'static str> {
            let from = FROM.map(|text| text.parse::<weir_core::Prefix>().unwrap());
            let is_from = from.iter().any(|prefix| prefix.contains(segment.source.0));
            if !(PORTS.0..=PORTS.1).contains(&segment.dest.1) || !is_from {
                return None;
            }
            if segment.is_syn() {
                return Some(match verifier.verify_segment(segment, before) {
                    Err(refusal) => refusal.name(),
                    Ok(_) => unreachable!("it has no token of a SYN"),
                });
            }
            if !flows.contains(&(segment.source, segment.dest)) {
                return Some("no-flow");
            }
            let verdict = segment::verify(segment, ISN, &keys, &known.identity, before);
            Some(verdict.map_or_else(Refusal::name, |()| "proven"))
        };
        let read = Segment::read(packet).filter(|_| packet[0] >> 4 == version);
        let outcome = read.as_ref().and_then(judge);
        let Ok(ran) = run(&frame) else {
            continue; // too short for the kernel to make a packet of it
        };
        if let Some(outcome) = outcome {
            *wanted.entry(outcome).or_default() += 1;
        }
        if before != epoch() {
            unsure += 1;
            continue;
        }
        let said = if outcome == Some("proven") { MATCH } else { 0 };
        assert_eq!(
            ran.verdict, said,
            "segment {number}: {outcome:?} {frame:02x?}"
        );
    }
    let counts = tokens.outcomes(0).unwrap();
    for ((outcome, count), begun) in Outcome::ALL.into_iter().zip(counts).zip(begun) {
        let (name, count) = (outcome.name(), count - begun);
        let wanted = wanted.get(name).copied().unwrap_or(0);
        println!("{name} {count}");
        assert!(
            count.abs_diff(wanted) <= unsure,
            "{name}: {count} and not {wanted}"
        );
    }
    for name in ["proven", "missing", "malformed", "other-version"] {
        assert!(wanted[name] > 20, "{name}");
    }
    for name in ["unknown-key", "other-epoch", "wrong-mac", "no-flow"] {
        assert!(wanted[name] > 20, "{name}");
    }
    let parts = Parts {
        flow: flows[0],
        sequence: 1,
        flags: 0x18,
        options: &STAMPS,
        chain: 0,
        payload: &[7; 1432],
    };
    let frame = known.segment(&parts, epoch());
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 100_000).unwrap();
    println!("a segment of 1,432 bytes: {} ns", ran.nanos);
}

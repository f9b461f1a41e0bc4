//! The verifier of tokens by BPF_PROG_RUN against the reference of `crates/token`: random
//! packets, and those that are nearly right. Root: loads BPF.

use std::{
    collections::HashMap,
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::{
    identity::{self, CgroupAt, Identity},
    prog_test_run,
    token::{
        Claim, IdentityPrefix, KEPT, Loaded, Outcome, Requirement, Scope, TokenPolicy, Tokens,
        clock_offset, detach, refusals,
    },
};
use weir_identity::Digest;
use weir_testkit::random::Random;
use weir_token::{
    KeyId, Secret, Statement, TokenOption, VERSION, epoch_at,
    verify::{Segment, Verifier},
};

#[path = "root_token/daf.rs"]
mod daf;
#[path = "root_token/datagrams.rs"]
mod datagrams;
#[path = "root_token/forward.rs"]
mod forward;
#[path = "root_token/known_flows.rs"]
mod known_flows;
#[path = "root_token/segments.rs"]
mod segments;
#[path = "root_token/strip.rs"]
mod strip;

const ROOT: &str = "/sys/fs/bpf/weir";
const PACKETS: u32 = 300_000;
const MATCH: u32 = 0xffff;
/// What the verifier of Linux 6.18 has looked at, and half as much again; that of 6.12 looks
/// at up to a twentieth more. That of 6.1 looks at less, but of `own`, of which it finds fewer
/// states to be alike: 5,924.
const MOST: [(&str, u64); 13] = [
    ("sign", 3_400),
    ("keep", 500),
    ("sign-udp", 12_000),
    ("sign-udp-ip", 12_000),
    ("sign-tcp", 22_500),
    ("sign-tcp-ip", 22_500),
    ("verify", 132_000),
    ("own", 6_500),
    ("match", 143_000),
    ("sign-daf", 100_000),
    ("sign-daf-ip", 100_000),
    ("daf-mtu", 1_500),
    ("daf-mtu-ip", 1_500),
];

/// The tables of an instance, gone when it is dropped.
struct Lab {
    instance: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = detach(Path::new(ROOT), &self.instance);
        let _ = identity::detach(Path::new(ROOT), &self.instance);
        let _ = std::fs::remove_dir(Path::new(ROOT).join(&self.instance));
    }
}

impl Lab {
    fn new(name: &str) -> Self {
        Self {
            instance: format!("wt-{name}-{}", std::process::id()),
        }
    }

    /// An instance with its programs, by this host's clock and without a policy.
    fn load(name: &str) -> (Self, Tokens, Loaded) {
        let lab = Self::new(name);
        let cgroup = CgroupAt::open(None).unwrap();
        let loaded = Tokens::load(Path::new(ROOT), &lab.instance, &cgroup, None);
        let (tokens, loaded) = loaded.unwrap();
        tokens.put_clock(clock_offset()).unwrap();
        (lab, tokens, loaded)
    }
}

fn since_1970() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap()
}

fn epoch() -> u64 {
    epoch_at(since_1970().as_secs())
}

struct Known {
    secret: Secret,
    id: KeyId,
    identity: Digest,
}

/// Ports that want a token, and the sources from which.
const PORTS: (u16, u16) = (8080, 8083);
const FROM: [&str; 2] = ["192.0.2.0/24", "2001:db8::/32"];

impl Known {
    fn new() -> Self {
        Self {
            secret: Secret::new(std::array::from_fn(|n| n as u8 * 7)),
            id: KeyId::new(77).unwrap(),
            identity: Digest(std::array::from_fn(|n| n as u8 + 100)),
        }
    }

    fn prefix(&self) -> IdentityPrefix {
        *self.identity.0.first_chunk().unwrap()
    }

    fn policy(&self) -> TokenPolicy {
        TokenPolicy {
            sign_to: Vec::new(),
            sign_scope: Scope::Flow,
            netns: 0,
            sign_udp_to: Vec::new(),
            keep: Vec::new(),
            requirements: vec![Requirement {
                ports: vec![PORTS],
                udp_ports: vec![PORTS],
                networks: Some(FROM.map(|text| text.parse().unwrap()).to_vec()),
                identities: vec![self.prefix()],
                drops: true,
                scope: Scope::Flow,
                forwarded: None,
            }],
            keys: vec![self.id.number()],
            claims: vec![Claim {
                key_id: self.id.number(),
                key: self.secret.identity_key(self.id, &self.identity).0,
                identity: self.prefix(),
            }],
            daf: None,
        }
    }

    /// A frame with a right SYN of this family.
    fn syn(&self, random: &mut Random, v6: bool, epoch: u64) -> Vec<u8> {
        let last = random.below(4) as u8 + 1;
        let (source, dest): (IpAddr, IpAddr) = match v6 {
            false => ([192, 0, 2, last].into(), [198, 51, 100, 9].into()),
            true => (
                format!("2001:db8::{last}").parse().unwrap(),
                "2001:db8:9::9".parse().unwrap(),
            ),
        };
        let (source, dest) = (
            (source, 40_000 + random.below(4) as u16),
            (dest, PORTS.0 + random.below(4) as u16),
        );
        let isn = random.below(3) as u32;
        let mut before = vec![1; random.below(3) * 4];
        if random.below(2) == 0 {
            before.extend([2, 4, 5, 180]);
        }
        let chain = if v6 { random.below(3) } else { 0 };
        self.frame(source, dest, isn, epoch, &before, chain)
    }

    /// Puts the token of a frame, which is its end, into the IP header; or a copy of it.
    fn with_token_in_ip(frame: Vec<u8>, is_copy: bool) -> Vec<u8> {
        let token = weir_token::find(&frame[frame.len() - 20..])
            .unwrap()
            .unwrap();
        let is_v4 = frame[12..14] == [8, 0];
        // Right before the TCP header, of 5 words and these options.
        let after_ip = if is_v4 { 14 + 20 } else { 14 + 40 };
        let mut tcp = after_ip;
        if !is_v4 && frame[20] == 60 {
            while frame[tcp] == 60 {
                tcp += 8;
            }
            tcp += 8;
        }
        let option = match is_v4 {
            true => token.ipv4_bytes().to_vec(),
            false => {
                let mut header = token.ipv6_header().to_vec();
                header[0] = 6;
                header
            }
        };
        let mut fresh = [&frame[..tcp], &option, &frame[tcp..]].concat();
        match is_v4 {
            true => {
                fresh[14] += option.len() as u8 / 4;
                fresh[17] += option.len() as u8;
            }
            false => {
                // The header before it is followed by it.
                let before = if tcp == after_ip { 20 } else { tcp - 8 };
                fresh[before] = 60;
                fresh[19] += option.len() as u8;
            }
        }
        if !is_copy {
            let tcp = tcp + option.len();
            fresh[tcp + 12] -= 5 << 4;
            fresh.truncate(fresh.len() - 20);
            fresh[if is_v4 { 17 } else { 19 }] -= 20;
        }
        fresh
    }

    /// A frame with a right SYN between these, with so many options before the token, and so
    /// many headers before TCP's.
    fn frame(
        &self,
        source: (IpAddr, u16),
        dest: (IpAddr, u16),
        isn: u32,
        epoch: u64,
        before: &[u8],
        chain: usize,
    ) -> Vec<u8> {
        let statement = Statement {
            key_id: self.id,
            epoch,
            source,
            dest,
            isn,
        };
        let token = TokenOption {
            version: VERSION,
            key_id: self.id.number(),
            epoch: epoch as u16,
            tag: *self.identity.0.first_chunk().unwrap(),
            mac: statement.mac(&self.secret.identity_key(self.id, &self.identity)),
        };
        let options = [before, &token.bytes()].concat();
        let length = 20 + options.len();
        let mut frame = vec![0; 12];
        match (source.0, dest.0) {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                frame.extend([
                    8,
                    0,
                    0x45,
                    0,
                    0,
                    20 + length as u8,
                    0,
                    0,
                    0x40,
                    0,
                    64,
                    6,
                    0,
                    0,
                ]);
                frame.extend(source.octets());
                frame.extend(dest.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(dest)) => {
                let first = if chain == 0 { 6 } else { 60 };
                let payload = (length + chain * 8) as u8;
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, payload, first, 64]);
                frame.extend(source.octets());
                frame.extend(dest.octets());
                for more in (0..chain).rev() {
                    frame.extend([if more == 0 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
                }
            }
            _ => unreachable!("both are of one family"),
        }
        frame.extend(source.1.to_be_bytes());
        frame.extend(dest.1.to_be_bytes());
        frame.extend(isn.to_be_bytes());
        frame.extend([0, 0, 0, 0, (length as u8 / 4) << 4, 2, 0, 0, 0, 0, 0, 0]);
        frame.extend(options);
        frame
    }
}

/// Says in the IP header that the packet is as long as its frame is.
fn set_length(frame: &mut [u8]) {
    let (at, before) = if frame[12] == 8 {
        (16, 14)
    } else {
        (18, 14 + 40)
    };
    let length = (frame.len() - before) as u16;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

/// The packet of a frame, which is as long as its IP header says.
fn packet_of(frame: &[u8]) -> &[u8] {
    let packet = &frame[14..];
    let number = |at: usize| packet[at..].first_chunk().map(|b| u16::from_be_bytes(*b));
    let said = match frame[12] {
        8 => packet.get(2..).and_then(|_| number(2)).map(usize::from),
        _ => packet
            .get(4..)
            .and_then(|_| number(4))
            .map(|b| usize::from(b) + 40),
    };
    &packet[..said.unwrap_or(0).min(packet.len())]
}

/// Client and server.
type Flow = ((IpAddr, u16), (IpAddr, u16));

/// The flow from this port of a client of this family.
fn flow(v6: bool, port: u16) -> Flow {
    let (client, server): (IpAddr, IpAddr) = match v6 {
        false => ([192, 0, 2, 1].into(), [198, 51, 100, 9].into()),
        true => (
            "2001:db8::1".parse().unwrap(),
            "2001:db8:9::9".parse().unwrap(),
        ),
    };
    ((client, port), (server, PORTS.0))
}

/// What the kernel is to say, by the reference.
struct Expected<'k> {
    verifier: Verifier<'k>,
    identity: Digest,
    /// Sequence numbers of SYNs that were right, and whether something came after them.
    flows: HashMap<Flow, (u32, bool)>,
    counts: HashMap<&'static str, u64>,
}

impl Expected<'_> {
    /// `None`: no requirement is about it.
    fn judge(&mut self, frame: &[u8], epoch: u64) -> Option<&'static str> {
        let version = match frame[12..14] {
            [8, 0] => 4,
            _ => 6,
        };
        let packet = packet_of(frame);
        let segment = Segment::read(packet).filter(|_| packet[0] >> 4 == version)?;
        let from = FROM.map(|text| text.parse::<weir_core::Prefix>().unwrap());
        let is_from = from.iter().any(|prefix| prefix.contains(segment.source.0));
        if !(PORTS.0..=PORTS.1).contains(&segment.dest.1) || !is_from {
            return None;
        }
        let flow = (segment.source, segment.dest);
        if !segment.is_syn() {
            return Some(match self.flows.get_mut(&flow) {
                Some((_, is_used)) => {
                    *is_used = true;
                    "proven"
                }
                None => "no-flow",
            });
        }
        Some(match self.verifier.verify_segment(&segment, epoch) {
            Err(refusal) => refusal.name(),
            Ok(identity) => {
                assert_eq!(identity, self.identity);
                match self.flows.get(&flow) {
                    Some((isn, true)) if *isn == segment.sequence => "replayed",
                    Some((isn, false)) if *isn == segment.sequence => "valid",
                    _ => {
                        self.flows.insert(flow, (segment.sequence, false));
                        "valid"
                    }
                }
            }
        })
    }
}

#[test]
fn root_the_kernel_verifies_as_the_reference_does() {
    let (_lab, tokens, loaded) = Lab::load("same");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let mut expected = Expected {
        verifier: Verifier {
            keys: vec![(known.id, &known.secret)],
            identities: vec![known.identity],
        },
        identity: known.identity,
        flows: HashMap::new(),
        counts: HashMap::new(),
    };
    let mut random = Random(0x5eed);
    let (mut matched, mut unsure) = (0, 0);
    for number in 0..PACKETS {
        let is_v6 = random.below(2) == 1;
        let frame = match random.below(10) {
            0 => {
                let mut frame = vec![0; 14 + random.below(100)];
                frame
                    .iter_mut()
                    .for_each(|byte| *byte = random.number() as u8);
                let kind: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
                frame[12..14].copy_from_slice(&kind);
                frame
            }
            kind => {
                let of = (epoch() + random.below(6) as u64).saturating_sub(3);
                let mut frame = known.syn(&mut random, is_v6, if kind < 4 { of } else { epoch() });
                if random.below(4) == 0 {
                    frame = Known::with_token_in_ip(frame, random.below(3) == 0);
                }
                for _ in 0..random.below(4) {
                    let at = 14 + random.below(frame.len() - 14);
                    frame[at] ^= 1 << random.below(8);
                }
                if random.below(8) == 0 {
                    frame.truncate(14 + random.below(frame.len() - 14));
                }
                // A later segment: its flags are so far from the end, without other options.
                if frame.len() > 14 + 27 && random.below(6) == 0 {
                    let at = frame.len() - 27;
                    frame[at] ^= 0x12;
                }
                frame
            }
        };
        let before = epoch();
        let Ok(ran) = prog_test_run::packet(loaded.matcher(), &frame, 1) else {
            continue; // too short for the kernel to make a packet of it
        };
        let outcome = expected.judge(&frame, before);
        // Between two epochs either may have counted.
        if before != epoch() {
            unsure += 1;
            if let Some(outcome) = outcome {
                *expected.counts.entry(outcome).or_default() += 1;
            }
            continue;
        }
        let passes = matches!(outcome, Some("valid" | "proven"));
        let said = if passes { MATCH } else { 0 };
        assert_eq!(
            ran.verdict, said,
            "packet {number}: {outcome:?} {frame:02x?}"
        );
        matched += u32::from(passes);
        if let Some(outcome) = outcome {
            *expected.counts.entry(outcome).or_default() += 1;
        }
    }
    for (outcome, count) in Outcome::ALL.into_iter().zip(tokens.outcomes(0).unwrap()) {
        let wanted = expected.counts.get(outcome.name()).copied().unwrap_or(0);
        println!("{} {count}", outcome.name());
        let name = outcome.name();
        assert!(
            count.abs_diff(wanted) <= unsure,
            "{name}: {count} and not {wanted}"
        );
        // Each of them was met, but for what the packets here have none of.
        assert!(count > 0 || outcome == Outcome::Free, "{}", outcome.name());
    }
    assert!(matched > PACKETS / 100, "{matched}");

    let frame = known.syn(&mut random, false, epoch());
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 100_000).unwrap();
    println!("a SYN with a token: {} ns", ran.nanos);
    let (source, dest) = flow(false, 41_000);
    let mut frame = known.frame(source, dest, 7, epoch(), &[], 0);
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 1).unwrap();
    assert_eq!(ran.verdict, MATCH);
    frame[14 + 20 + 13] = 0x10;
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 1_000_000).unwrap();
    assert_eq!(ran.verdict, MATCH);
    println!("a packet of a known flow: {} ns", ran.nanos);
    frame[14 + 9] = 1;
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 1_000_000).unwrap();
    println!("one that is neither TCP nor UDP: {} ns", ran.nanos);
}

/// What a daemon has left that was killed while it wrote a policy has the number of the next
/// one, whose requirement is not about these sources.
#[test]
fn root_what_a_killed_daemon_has_left_is_not_of_the_next_policy() {
    let (lab, tokens, loaded) = Lab::load("left");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let mut random = Random(0x1ef7);
    let mut said = |is_v6: bool| {
        let frame = known.syn(&mut random, is_v6, epoch());
        let ran = prog_test_run::packet(loaded.matcher(), &frame, 1);
        ran.unwrap().verdict
    };
    assert_eq!([false, true].map(&mut said), [MATCH; 2]);
    let dir = Path::new(ROOT).join(&lab.instance);
    let pin = dir.join(format!("token-{}/token_networks", weir_bpf::abi::TOKEN_ABI));
    let networks = MapHandle::from_pinned_path(pin).unwrap();
    for generation in 2_u32..5 {
        for from in FROM {
            let from: weir_core::Prefix = from.parse().unwrap();
            let (addr, bits) = match from.addr() {
                IpAddr::V4(addr) => (addr.to_ipv6_mapped(), 96 + u32::from(from.bits())),
                IpAddr::V6(addr) => (addr, u32::from(from.bits())),
            };
            // As `struct token_network`: the length, of which policy and requirement, the address.
            let mut key = (32 + bits).to_ne_bytes().to_vec();
            key.extend((generation << 8).to_ne_bytes());
            key.extend(addr.octets());
            networks
                .update(&key, &1_u32.to_ne_bytes(), MapFlags::ANY)
                .unwrap();
        }
    }
    let mut elsewhere = known.policy();
    elsewhere.requirements[0].networks = Some(vec!["203.0.113.0/24".parse().unwrap()]);
    tokens.put_policy(&elsewhere).unwrap();
    assert_eq!([false, true].map(&mut said), [0; 2]);
    // Those of the policy before stay for who is asking by it, and no longer.
    assert_eq!(networks.keys().count(), FROM.len() + 1);
    tokens.put_policy(&elsewhere).unwrap();
    assert_eq!(networks.keys().count(), 2);
}

/// A packet that was being judged when the policy changed goes on by that of before, whole: its
/// numbers are in an entry that is not written, and its networks are there.
#[test]
fn root_a_policy_that_is_replaced_stays_as_it_was() {
    let (lab, tokens, _loaded) = Lab::load("banks");
    let known = Known::new();
    let dir = Path::new(ROOT).join(&lab.instance);
    let dir = dir.join(format!("token-{}", weir_bpf::abi::TOKEN_ABI));
    let open = |name| MapHandle::from_pinned_path(dir.join(name)).unwrap();
    let (control, networks) = (open("token_control"), open("token_networks"));
    let read = |place: u32| {
        let found = control.lookup(&place.to_ne_bytes(), MapFlags::ANY);
        found.unwrap().expect("it has both places")
    };
    let mut retired = known.policy();
    retired.keys = Vec::new();
    retired.requirements[0].networks = None;
    tokens.put_policy(&known.policy()).unwrap();
    for generation in 1..5_u32 {
        let (this, other) = (generation & 1, (generation + 1) & 1);
        let before = read(this);
        assert!(
            before
                .windows(4)
                .any(|word| *word == generation.to_ne_bytes())
        );
        let of_it = || {
            let keys = networks.keys();
            let of = |key: &Vec<u8>| u32::from_ne_bytes(*key[4..].first_chunk().unwrap()) >> 8;
            keys.filter(|key| of(key) == generation).count()
        };
        let count = of_it();
        let next = [known.policy(), retired.clone()];
        tokens.put_policy(&next[this as usize]).unwrap();
        assert_eq!(read(this), before, "after policy {generation}");
        assert_ne!(read(other), before);
        assert_eq!(of_it(), count, "networks of policy {generation}");
    }
}

/// Identities and keys that a killed daemon has left: as many as the tables take, all with
/// the number of the next policy.
#[test]
fn root_identities_that_a_killed_daemon_has_left_take_no_room_of_the_next_policy() {
    let (lab, tokens, loaded) = Lab::load("left-ids");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let dir = Path::new(ROOT).join(&lab.instance);
    let dir = dir.join(format!("token-{}", weir_bpf::abi::TOKEN_ABI));
    let open = |name| MapHandle::from_pinned_path(dir.join(name)).unwrap();
    let (identities, claims) = (open("token_identities"), open("token_claims"));
    // As `struct token_met`: what it meets and the generation, of either policy.
    let mut met: Vec<u8> = [1_u64; 2].into_iter().flat_map(u64::to_ne_bytes).collect();
    met.extend([2_u32, 0].into_iter().flat_map(u32::to_ne_bytes));
    for number in 1..2 * weir_bpf::abi::TOKEN_IDENTITIES {
        let identity = u128::from(number).to_ne_bytes();
        identities.update(&identity, &met, MapFlags::ANY).unwrap();
    }
    for number in 1..weir_bpf::abi::TOKEN_CLAIMS {
        let key = [number, u32::from(known.id.number())].map(u32::to_ne_bytes);
        let identity = u128::from(number % 2000 + 1).to_ne_bytes();
        let value = [&[7; 16][..], &identity].concat();
        claims.update(&key.concat(), &value, MapFlags::ANY).unwrap();
    }
    let mut policy = known.policy();
    let another = [0xee; 16];
    policy.requirements[0].identities.push(another);
    policy.claims.push(Claim {
        identity: another,
        ..policy.claims[0].clone()
    });
    tokens.put_policy(&policy).unwrap();
    assert_eq!(identities.keys().count(), 2);
    assert_eq!(claims.keys().count(), 2);
    let frame = known.syn(&mut Random(3), true, epoch());
    let ran = prog_test_run::packet(loaded.matcher(), &frame, 1).unwrap();
    assert_eq!(ran.verdict, MATCH);
}

#[test]
fn root_of_too_many_flows_the_least_used_go() {
    let (_lab, tokens, loaded) = Lab::load("flows");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    // IPv4, without other options.
    let client = |number: u32| -> ((IpAddr, u16), (IpAddr, u16)) {
        let source = IpAddr::from([192, 0, 2, (number / 50_000) as u8]);
        let port = 1024 + (number % 50_000) as u16;
        ((source, port), ([198, 51, 100, 9].into(), PORTS.0))
    };
    let run = |frame: &[u8]| {
        prog_test_run::packet(loaded.matcher(), frame, 1)
            .unwrap()
            .verdict
    };
    let later = |number: u32| {
        let (source, dest) = client(number);
        let mut frame = known.frame(source, dest, 7, epoch(), &[], 0);
        // An acknowledgement instead of a SYN.
        frame[14 + 20 + 13] = 0x10;
        frame
    };
    let flows = weir_bpf::abi::TOKEN_FLOWS + 20_000;
    for number in 0..flows {
        let (source, dest) = client(number);
        let frame = known.frame(source, dest, 7, epoch(), &[], 0);
        assert_eq!(
            run(&frame),
            MATCH,
            "a SYN is let in though the table is full: {number}"
        );
    }
    // Those of last are there, and of the first ones as many are gone as had no room.
    for number in flows - 100..flows {
        assert_eq!(run(&later(number)), MATCH, "{number}");
    }
    let gone = (0..flows)
        .filter(|number| run(&later(*number)) != MATCH)
        .count();
    println!("{gone} of {flows} flows are gone");
    assert!((20_000..40_000).contains(&gone), "{gone}");
    // Who is gone begins anew.
    let (source, dest) = client(0);
    assert_eq!(run(&known.frame(source, dest, 8, epoch(), &[], 0)), MATCH);
    assert_eq!(run(&later(0)), MATCH);
}

#[test]
fn root_the_last_refused_packets_of_each_reason_are_kept() {
    let lab = Lab::new("kept");
    let cgroup = CgroupAt::open(None).unwrap();
    let (tokens, loaded) = Tokens::load(Path::new(ROOT), &lab.instance, &cgroup, None).unwrap();
    let kept = || refusals(Path::new(ROOT), &lab.instance).unwrap().unwrap();
    assert_eq!(kept().packets, []);
    tokens.put_clock(clock_offset()).unwrap();
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let mut random = Random(7);
    let many = 1000;
    let mut sent = 0;
    while sent < many {
        let mut frame = known.syn(&mut random, sent % 2 == 0, epoch());
        let at = frame.len() - 1;
        frame[at] ^= 1;
        let ran = prog_test_run::packet(loaded.matcher(), &frame, 1).unwrap();
        assert_eq!(ran.verdict, 0);
        sent += 1;
    }
    // One of another reason is not pushed out.
    let old = known.syn(&mut random, true, epoch() - 9);
    prog_test_run::packet(loaded.matcher(), &old, 1).unwrap();
    let seen = kept();
    assert_eq!(
        seen.counts,
        [(Outcome::OtherEpoch, 1), (Outcome::WrongMac, many)]
    );
    assert_eq!(seen.packets.len() as u64, 1 + KEPT);
    let first = &seen.packets[0];
    assert_eq!(first.outcome, Outcome::OtherEpoch);
    assert_eq!(first.claim, Some((known.id.number(), [100, 101, 102, 103])));
    assert!(first.is_dropped && first.age() < 60_000_000_000);
    assert!(first.dest.1 >= PORTS.0 && first.dest.0.is_ipv6());
    assert!(
        seen.packets
            .is_sorted_by_key(|packet| std::cmp::Reverse(packet.at))
    );
    assert!(seen.packets.iter().any(|packet| packet.source.0.is_ipv4()));
    // A later daemon goes on where this one was.
    drop((tokens, loaded));
    let (_tokens, loaded) = Tokens::load(Path::new(ROOT), &lab.instance, &cgroup, None).unwrap();
    prog_test_run::packet(loaded.matcher(), &old, 1).unwrap();
    assert_eq!(kept().counts[0], (Outcome::OtherEpoch, 2));
}

#[test]
fn root_tokens_pass_the_verifier_with_room() {
    let missing = identity::missing();
    if !missing.is_empty() {
        eprintln!(
            "skipped: this kernel lacks {} (probe: its BTF)",
            missing.join(", ")
        );
        return;
    }
    let lab = Lab::new("loads");
    let cgroup = CgroupAt::open(None).unwrap();
    let (identity, _programs) = Identity::load(Path::new(ROOT), &lab.instance, &cgroup).unwrap();
    let loaded = Tokens::load(Path::new(ROOT), &lab.instance, &cgroup, Some(&identity));
    let (_tokens, loaded) = loaded.unwrap();
    let programs: Vec<_> = loaded.programs().collect();
    assert_eq!(programs.len(), MOST.len());
    for ((name, program), (expected, most)) in programs.into_iter().zip(MOST) {
        assert_eq!(name, expected);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
        let line = info.lines().find_map(|l| l.strip_prefix("verified_insns:"));
        let insns: u64 = line.unwrap().trim().parse().unwrap();
        println!("{name} {insns}");
        assert!(insns > 0 && insns <= most, "{name} {insns} of {most}");
    }
}

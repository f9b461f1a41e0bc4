//! Signatures of DAF: what the kernel makes and says of them by BPF_PROG_RUN, against the
//! reference, which has HMAC-SHA256 of another make.

use std::os::fd::BorrowedFd;

use weir_bpf::token::{Conduit, DafStates};
use weir_token::daf::{DafKey, DafVerdict, OPTION, OPTION_BYTES};

use super::*;

const RUNS: u32 = 100_000;
/// TC_ACT_UNSPEC: the next program is asked.
const NEXT: u32 = u32::MAX;
const SHOT: u32 = 2;
const FULL: usize = 1_460;

fn states_of(key: &DafKey) -> DafStates {
    let states = key.states();
    DafStates {
        inner: states.inner,
        outer: states.outer,
    }
}

/// The same port and sources go by signatures of DAF, and segments to the server get them.
fn policy_of_daf(known: &Known, key: &DafKey) -> TokenPolicy {
    let mut policy = known.policy();
    let requirement = &mut policy.requirements[0];
    requirement.scope = Scope::Daf;
    requirement.udp_ports = Vec::new();
    requirement.identities = Vec::new();
    policy.claims = Vec::new();
    policy.sign_scope = Scope::Daf;
    policy.sign_to = vec![("198.51.100.0/24".parse().unwrap(), Conduit::Nothing)];
    policy.daf = Some(states_of(key));
    policy
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// A frame of IPv4 with these options of either header.
fn frame(options: &[u8], tcp_options: &[u8], flags: u8, payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let tcp = 20 + tcp_options.len();
    let length = (header + tcp + payload.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([
        0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 9,
    ]);
    packet.extend(options);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([0x9c, 0x40]);
    packet.extend(PORTS.0.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 2, (tcp as u8 / 4) << 4, flags]);
    packet.extend([0; 6]);
    packet.extend(tcp_options);
    packet.extend(payload);
    [&[0; 12][..], &[8, 0], &packet].concat()
}

fn options_of(key: &DafKey, payload: &[u8]) -> Vec<u8> {
    [&key.option(payload)[..], &[1, 0]].concat()
}

fn program<'l>(loaded: &'l Loaded, wanted: &str) -> BorrowedFd<'l> {
    let mut programs = loaded.programs();
    programs.find(|(name, _)| *name == wanted).unwrap().1
}

#[test]
fn root_a_signature_of_daf_is_that_of_the_reference_at_every_length() {
    let (_lab, tokens, loaded) = Lab::load("daf");
    let known = Known::new();
    let bytes: Vec<u8> = (0..3_000).map(|n| (n * 7 + n / 255) as u8).collect();
    // Keys of less than a block, of one, and of more.
    for key in [&bytes[..32], &bytes[..64], &bytes[..100]] {
        let key = DafKey::new(key).unwrap();
        tokens.put_policy(&policy_of_daf(&known, &key)).unwrap();
        let sign = program(&loaded, "sign-daf");
        // The longest that BPF_PROG_RUN takes.
        let lengths = (0..=FULL).chain([3_000]);
        for length in lengths {
            let payload = &bytes[..length];
            let stamps = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
            let of_tcp = if length % 2 == 0 { &stamps[..] } else { &[] };
            let flags = if length == 0 { 2 } else { 0x18 };
            let bare = frame(&[], of_tcp, flags, payload);
            let wanted = frame(&options_of(&key, payload), of_tcp, flags, payload);
            let ran = prog_test_run::packet(loaded.matcher(), &wanted, 1).unwrap();
            assert_eq!(ran.verdict, MATCH, "{length}");
            let ran = prog_test_run::packet(sign, &bare, 1).unwrap();
            assert_eq!(ran.verdict, NEXT, "{length}");
            assert_eq!(ran.packet, wanted, "{length}");
            // Again, as behind a device above this one; a wrong one is made right.
            let mut wrong = wanted.clone();
            wrong[14 + 30] ^= 1;
            wrong[14 + 10..14 + 12].fill(0);
            let sum = checksum(&wrong[14..14 + 56]);
            wrong[14 + 10..14 + 12].copy_from_slice(&sum.to_be_bytes());
            for frame in [&wanted, &wrong] {
                let ran = prog_test_run::packet(sign, frame, 1).unwrap();
                assert_eq!((ran.verdict, &ran.packet), (NEXT, &wanted), "{length}");
            }
            // Each of its parts counts: the last bit, one byte more or less, each of the MAC.
            let at = wanted.len() - 1;
            let mac = 14 + 22 + length % 32;
            for at in [at, mac].iter().filter(|at| length > 0 || **at == mac) {
                let mut changed = wanted.clone();
                changed[*at] ^= 1;
                let ran = prog_test_run::packet(loaded.matcher(), &changed, 1).unwrap();
                assert_eq!(ran.verdict, 0, "{length} {at}");
            }
            let mut more = [&wanted[..], &[0]].concat();
            let ran = prog_test_run::packet(loaded.matcher(), &more, 1).unwrap();
            assert_eq!(ran.verdict, MATCH, "behind the packet: {length}");
            set_length(&mut more);
            let ran = prog_test_run::packet(loaded.matcher(), &more, 1).unwrap();
            assert_eq!(ran.verdict, 0, "{length}");
        }
    }
    let counts = tokens.segments().unwrap();
    assert!(counts.signed > 3 * FULL as u64 && counts.dropped() == 0);
}

/// What may not get a signature is dropped and counted, and what is none of it is left.
#[test]
fn root_segments_without_room_for_a_signature_of_daf_are_counted() {
    let (_lab, tokens, loaded) = Lab::load("daf-room");
    let known = Known::new();
    let key = DafKey::new(&[7; 32]).unwrap();
    tokens.put_policy(&policy_of_daf(&known, &key)).unwrap();
    let sign = program(&loaded, "sign-daf");
    let run = |frame: &[u8]| {
        let ran = prog_test_run::packet(sign, frame, 1).unwrap();
        (ran.verdict, ran.packet == frame)
    };
    let of = || tokens.segments().unwrap();
    // Another option of the sender's, a router alert (RFC 2113).
    assert_eq!(run(&frame(&[0x94, 4, 0, 0], &[], 0x10, b"x")).0, SHOT);
    assert_eq!(of().without_room, 1);
    let mut part = frame(&[], &[], 0x10, b"x");
    part[14 + 6] = 0x20;
    assert_eq!(run(&part).0, SHOT);
    assert_eq!((of().without_room, of().too_big), (2, 0));
    let mut cut = frame(&[], &[], 0x10, b"x");
    cut[14 + 20 + 12] = 15 << 4;
    assert_eq!(run(&cut).0, SHOT);
    assert_eq!(of().broken, 1);
    for elsewhere in [[14 + 16, 203], [14 + 9, 17]] {
        let mut other = frame(&[], &[], 0x10, b"x");
        other[elsewhere[0]] = elsewhere[1] as u8;
        assert_eq!(run(&other), (NEXT, true));
    }
    let all = of();
    assert_eq!(all.signed, 0);
    // Without the key of a policy nothing is signed, nor let in.
    let mut without = policy_of_daf(&known, &key);
    without.daf = None;
    let refused = tokens.put_policy(&without).unwrap_err().to_string();
    assert!(
        refused.contains("no key for signatures of DAF"),
        "{refused}"
    );
    let mut named = policy_of_daf(&known, &key);
    named.requirements[0].identities = vec![known.prefix()];
    let refused = tokens.put_policy(&named).unwrap_err().to_string();
    assert!(refused.contains("names no program"), "{refused}");
}

/// What a router says of a segment with the option is told the kernel without it.
#[test]
fn root_what_a_router_says_of_the_path_is_corrected_for_signatures_of_daf() {
    let (_lab, tokens, loaded) = Lab::load("daf-mtu");
    let known = Known::new();
    let key = DafKey::new(&[7; 32]).unwrap();
    tokens.put_policy(&policy_of_daf(&known, &key)).unwrap();
    let program = program(&loaded, "daf-mtu");
    let told = |options: &[u8], mtu: u16| {
        let about = &frame(options, &[], 0x10, &[])[14..];
        let mut icmp = vec![3, 4, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(&about[..20 + options.len() + 8]);
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0x45, 0];
        packet.extend((20 + icmp.len() as u16).to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 1, 0, 0, 203, 0, 113, 1, 192, 0, 2, 1]);
        [&[0; 12][..], &[8, 0], &packet, &icmp].concat()
    };
    let run = |frame: &[u8]| {
        let ran = prog_test_run::packet(program, frame, 1).unwrap();
        assert_eq!(ran.verdict, NEXT);
        ran.packet
    };
    let options = options_of(&key, b"");
    for mtu in [105, 576, 1_280, 1_500, 65_535] {
        assert_eq!(run(&told(&options, mtu)), told(&options, mtu - 36), "{mtu}");
    }
    // Too little; of a segment without the option; of one to elsewhere.
    let mut elsewhere = told(&options, 1_400);
    elsewhere[14 + 20 + 8 + 16] = 203;
    for left in [
        told(&options, 104),
        told(&options, 0),
        told(&[], 1_400),
        elsewhere,
    ] {
        assert_eq!(run(&left), left);
    }
}

/// Pins of a weir whose tables had another form, as the last one's: they stay until these
/// programs judge, and no longer.
#[test]
fn root_what_an_older_form_of_tokens_has_attached_ends_when_this_one_judges() {
    let (lab, tokens, loaded) = Lab::load("form");
    let known = Known::new();
    let here = Path::new(ROOT).join(&lab.instance);
    let dir = here.join(format!("token-{}", weir_bpf::abi::TOKEN_ABI));
    let older = here.join("token-2");
    // A port of its own group, for nothing else is to be judged.
    let mut policy = known.policy();
    policy.requirements[0].networks = Some(vec!["203.0.113.0/24".parse().unwrap()]);
    tokens.put_policy(&policy).unwrap();
    loaded.attach(true).unwrap();
    drop((tokens, loaded));
    std::fs::rename(&dir, &older).unwrap();
    let cgroup = CgroupAt::open(None).unwrap();
    let fresh = Tokens::load(Path::new(ROOT), &lab.instance, &cgroup, None);
    let (tokens, loaded) = fresh.unwrap();
    tokens.put_clock(clock_offset()).unwrap();
    tokens.put_policy(&policy).unwrap();
    loaded.end_other_forms_at_interfaces();
    assert!(older.join("link-verify").exists(), "it judges still");
    loaded.attach(true).unwrap();
    assert!(!older.exists() && dir.join("link-verify").exists());
}

/// Segments that are nearly right: the kernel says of each what the reference does.
#[test]
fn root_the_kernel_verifies_signatures_of_daf_as_the_reference_does() {
    let (_lab, tokens, loaded) = Lab::load("daf-same");
    let known = Known::new();
    let key = DafKey::new(b"any bytes").unwrap();
    tokens.put_policy(&policy_of_daf(&known, &key)).unwrap();
    let mut random = Random(0xdaf);
    let mut wanted = HashMap::<&str, u64>::new();
    for number in 0..RUNS {
        let payload: Vec<u8> = (0..random.below(200))
            .map(|_| random.number() as u8)
            .collect();
        let options = match random.below(12) {
            0 => Vec::new(),
            1 => vec![1; 36],
            2 => [&[1, 1][..], &key.option(&payload)].concat(),
            3 => [&key.option(&payload)[..], &[1, 1, 1, 1, 1, 0]].concat(),
            4 => vec![OPTION, OPTION_BYTES as u8, 0, 0],
            _ => options_of(&key, &payload),
        };
        let stamps = vec![1; 12 * random.below(2)];
        let flags = [2, 0x10, 0x18, 0x11, 4][random.below(5)];
        let mut frame = frame(&options, &stamps, flags, &payload);
        for _ in 0..random.below(3) {
            // Addresses, ports and the length stay: others are about other ports.
            let at = 14 + 20 + random.below(frame.len() - 14 - 20);
            let tcp = 14 + 20 + options.len();
            if !(tcp..tcp + 4).contains(&at) {
                frame[at] ^= 1 << random.below(8);
            }
        }
        let (_, verdict) = key.verify(&frame[14..]).unwrap();
        let outcome = match verdict {
            DafVerdict::Valid | DafVerdict::ValidWithoutData => "valid",
            other => other.name(),
        };
        *wanted.entry(outcome).or_default() += 1;
        let ran = prog_test_run::packet(loaded.matcher(), &frame, 1).unwrap();
        let said = if outcome == "valid" { MATCH } else { 0 };
        assert_eq!(ran.verdict, said, "packet {number}: {outcome} {frame:02x?}");
    }
    // IPv6 has no such option.
    let syn = known.syn(&mut random, true, epoch());
    let ran = prog_test_run::packet(loaded.matcher(), &syn, 1).unwrap();
    assert_eq!(ran.verdict, 0);
    *wanted.entry("missing").or_default() += 1;
    for (outcome, count) in Outcome::ALL.into_iter().zip(tokens.outcomes(0).unwrap()) {
        let name = outcome.name();
        println!("{name} {count}");
        assert_eq!(count, wanted.get(name).copied().unwrap_or(0), "{name}");
    }
    for name in ["valid", "missing", "malformed", "wrong-mac"] {
        assert!(wanted[name] > 20, "{name}");
    }

    // Where nobody has said so, it is nothing.
    let right = frame(&options_of(&key, b"x"), &[], 0x18, b"x");
    for scope in [Scope::Flow, Scope::Payload] {
        let mut policy = known.policy();
        policy.requirements[0].scope = scope;
        policy.daf = Some(states_of(&key));
        tokens.put_policy(&policy).unwrap();
        let ran = prog_test_run::packet(loaded.matcher(), &right, 1).unwrap();
        assert_eq!(ran.verdict, 0);
    }
    let full = frame(&options_of(&key, &[7; 1_412]), &[], 0x18, &[7; 1_412]);
    tokens.put_policy(&policy_of_daf(&known, &key)).unwrap();
    let ran = prog_test_run::packet(loaded.matcher(), &full, 100_000).unwrap();
    println!("a segment of 1,412 bytes: {} ns", ran.nanos);
}

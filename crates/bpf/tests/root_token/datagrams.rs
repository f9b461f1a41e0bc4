//! UDP: random datagrams against the reference, and those that are nearly right; flows whose
//! time is over; a table of flows that is full.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    path::Path,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::{
    prog_test_run,
    token::{Loaded, Outcome, Tokens},
};
use weir_token::{Datagram, DatagramStatement, TokenOption, VERSION, verify::Verifier};

use super::{FROM, Known, Lab, MATCH, PACKETS, PORTS, ROOT, Random, epoch, packet_of};

pub type Flow = ((IpAddr, u16), (IpAddr, u16));

/// A datagram of this flow, with a right token of this epoch, or with none.
pub fn frame(known: &Known, (source, dest): Flow, epoch: Option<u64>, padding: usize) -> Vec<u8> {
    let token = epoch.map(|epoch| {
        let statement = DatagramStatement {
            key_id: known.id,
            epoch,
            source,
            dest,
        };
        TokenOption {
            version: VERSION,
            key_id: known.id.number(),
            epoch: epoch as u16,
            tag: *known.identity.0.first_chunk().unwrap(),
            mac: statement.mac(&known.secret.identity_key(known.id, &known.identity)),
        }
    });
    let mut frame = vec![0; 12];
    match (source.0, dest.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut options = vec![1; padding * 4];
            options.extend(token.iter().flat_map(TokenOption::ipv4_bytes));
            let words = 5 + options.len() as u8 / 4;
            frame.extend([8, 0, 0x40 | words, 0, 0, words * 4 + 12]);
            frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
            frame.extend([from.octets(), to.octets()].concat());
            frame.extend(options);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Hop-by-hop options, then destination options.
            let mut extensions = Vec::new();
            let mut first = if token.is_some() { 60 } else { 17 };
            for _ in 0..padding.min(1) {
                extensions.extend([first, 0, 1, 4, 0, 0, 0, 0]);
                first = 0;
            }
            extensions.extend(token.iter().flat_map(TokenOption::ipv6_header));
            let length = extensions.len() as u8 + 12;
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, length, first, 64]);
            frame.extend([from.octets(), to.octets()].concat());
            frame.extend(extensions);
        }
        _ => unreachable!("both are of one family"),
    }
    frame.extend(source.1.to_be_bytes());
    frame.extend(dest.1.to_be_bytes());
    frame.extend([0, 12, 0, 0]);
    frame.extend(b"data");
    frame
}

fn flow(random: &mut Random, v6: bool) -> Flow {
    let last = random.below(4) as u8 + 1;
    let (source, dest): (IpAddr, IpAddr) = match v6 {
        false => ([192, 0, 2, last].into(), [198, 51, 100, 9].into()),
        true => (
            format!("2001:db8::{last}").parse().unwrap(),
            "2001:db8:9::9".parse().unwrap(),
        ),
    };
    (
        (source, 40_000 + random.below(4000) as u16),
        (dest, PORTS.0 + random.below(4) as u16),
    )
}

fn run(loaded: &Loaded, frame: &[u8]) -> u32 {
    let ran = prog_test_run::packet(loaded.matcher(), frame, 1);
    ran.unwrap().verdict
}

fn count(tokens: &Tokens, wanted: Outcome) -> u64 {
    tokens.outcomes(0).unwrap()[wanted as usize]
}

#[test]
fn root_the_kernel_verifies_datagrams_as_the_reference_does() {
    let (_lab, tokens, loaded) = Lab::load("udp");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let verifier = Verifier {
        keys: vec![(known.id, &known.secret)],
        identities: vec![known.identity],
    };
    let from = FROM.map(|text| text.parse::<weir_core::Prefix>().unwrap());
    let mut random = Random(0xda7a);
    let mut proven = HashSet::new();
    let mut counts = HashMap::<&str, u64>::new();
    let mut unsure = 0;
    for number in 0..PACKETS {
        let is_v6 = random.below(2) == 1;
        let mut packet = match random.below(10) {
            0 => {
                let mut packet = vec![0; 14 + random.below(100)];
                packet
                    .iter_mut()
                    .for_each(|byte| *byte = random.number() as u8);
                let kind: [u8; 2] = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
                packet[12..14].copy_from_slice(&kind);
                packet
            }
            kind => {
                let of = (epoch() + random.below(6) as u64).saturating_sub(3);
                let of = match kind {
                    1..4 => Some(of),
                    4..6 => None,
                    _ => Some(epoch()),
                };
                let flow = flow(&mut random, is_v6);
                frame(&known, flow, of, random.below(3))
            }
        };
        for _ in 0..random.below(4).saturating_sub(1) {
            let at = 14 + random.below(packet.len().max(15) - 14);
            if let Some(byte) = packet.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        if random.below(8) == 0 {
            packet.truncate(14 + random.below(packet.len().max(15) - 14));
        }
        let before = epoch();
        let Ok(ran) = prog_test_run::packet(loaded.matcher(), &packet, 1) else {
            continue; // too short for the kernel to make a packet of it
        };
        let version = if packet[12..14] == [8, 0] { 4 } else { 6 };
        let read = Datagram::read(packet_of(&packet));
        let datagram = read.filter(|_| packet[14] >> 4 == version);
        let datagram = datagram.filter(|datagram| {
            let is_from = from.iter().any(|prefix| prefix.contains(datagram.source.0));
            is_from && (PORTS.0..=PORTS.1).contains(&datagram.dest.1)
        });
        let outcome = datagram.map(|datagram| {
            let flow = (datagram.source, datagram.dest);
            match datagram.token {
                Ok(None) if proven.contains(&flow) => "proven",
                _ => match verifier.verify_datagram(&datagram, before) {
                    Err(refusal) => refusal.name(),
                    Ok(identity) => {
                        assert_eq!(identity, known.identity);
                        proven.insert(flow);
                        "valid"
                    }
                },
            }
        });
        if let Some(outcome) = outcome {
            *counts.entry(outcome).or_default() += 1;
        }
        // Between two epochs either may have counted.
        if before != epoch() {
            unsure += 1;
            continue;
        }
        let passes = matches!(outcome, Some("valid" | "proven"));
        let said = if passes { MATCH } else { 0 };
        // A frame that became one of TCP is the other test's.
        if outcome.is_some() || ran.verdict != 0 {
            assert_eq!(
                ran.verdict, said,
                "packet {number}: {outcome:?} {packet:02x?}"
            );
        }
    }
    for (outcome, count) in Outcome::ALL.into_iter().zip(tokens.outcomes(0).unwrap()) {
        let wanted = counts.get(outcome.name()).copied().unwrap_or(0);
        println!("{} {count}", outcome.name());
        let is_of_tcp = matches!(outcome, Outcome::Free | Outcome::Replayed | Outcome::NoFlow);
        // Random bytes that are TCP to these ports are rare, and prove nothing.
        assert!(
            is_of_tcp || count.abs_diff(wanted) <= unsure + 20,
            "{outcome:?}: {count} and not {wanted}"
        );
        assert!(is_of_tcp || count > 0, "{outcome:?}");
    }
    assert!(counts["valid"] > u64::from(PACKETS / 10));
}

#[test]
fn root_a_token_is_of_one_protocol() {
    let (_lab, tokens, loaded) = Lab::load("udp-tcp");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    for is_v6 in [false, true] {
        let flow @ (source, dest) = flow(&mut Random(7), is_v6);
        let mut packet = frame(&known, flow, Some(epoch()), 0);
        let at = packet.len() - 12 - 8;
        // The MAC of a SYN with sequence number 0 between the same.
        let statement = weir_token::Statement {
            key_id: known.id,
            epoch: epoch(),
            source,
            dest,
            isn: 0,
        };
        let key = known.secret.identity_key(known.id, &known.identity);
        assert_eq!(run(&loaded, &packet), MATCH);
        packet[at..at + 8].copy_from_slice(&statement.mac(&key));
        let before = count(&tokens, Outcome::WrongMac);
        assert_eq!(run(&loaded, &packet), 0);
        assert_eq!(count(&tokens, Outcome::WrongMac), before + 1);
    }
}

/// The kernel gives sockets such a datagram as it came.
#[test]
fn root_a_datagram_is_read_behind_the_fragment_header_of_a_whole_packet() {
    let (_lab, tokens, loaded) = Lab::load("udp-atomic");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let flow = flow(&mut Random(11), true);
    let fragment = |token: Option<u64>, part: [u8; 2]| {
        let mut packet = frame(&known, flow, token, 0);
        let next = std::mem::replace(&mut packet[14 + 6], 44);
        let header = [next, 0, part[0], part[1], 1, 2, 3, 4];
        packet.splice(14 + 40..14 + 40, header);
        packet[14 + 5] += 8;
        packet
    };
    let missing = count(&tokens, Outcome::Missing);
    assert_eq!(run(&loaded, &fragment(None, [0, 0])), 0);
    assert_eq!(count(&tokens, Outcome::Missing), missing + 1);
    assert_eq!(run(&loaded, &fragment(Some(epoch()), [0, 0])), MATCH);
    assert_eq!(run(&loaded, &fragment(None, [0, 0])), MATCH);
    for part in [[0, 1], [0, 8], [1, 0]] {
        assert_eq!(run(&loaded, &fragment(Some(epoch()), part)), 0);
    }
}

/// The time is set back in the table in place of waiting for two minutes.
#[test]
fn root_a_flow_goes_on_without_tokens_for_its_time_only() {
    let (lab, tokens, loaded) = Lab::load("udp-idle");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let dir = Path::new(ROOT).join(&lab.instance);
    let pin = dir.join(format!(
        "token-{}/token_udp_proven",
        weir_bpf::abi::TOKEN_ABI
    ));
    let proven = MapHandle::from_pinned_path(pin).unwrap();
    for is_v6 in [false, true] {
        let flow = flow(&mut Random(9), is_v6);
        let without = frame(&known, flow, None, 0);
        let with = frame(&known, flow, Some(epoch()), 0);
        assert_eq!(run(&loaded, &without), 0);
        assert_eq!(run(&loaded, &with), MATCH);
        assert_eq!(run(&loaded, &without), MATCH);
        let age = |seconds: u64| {
            for key in proven.keys() {
                let mut value = proven.lookup(&key, MapFlags::ANY).unwrap().unwrap();
                let at = weir_bpf::clock::boottime() - seconds * 1_000_000_000;
                value[16..24].copy_from_slice(&at.to_ne_bytes());
                proven.update(&key, &value, MapFlags::ANY).unwrap();
            }
        };
        let idle = u64::from(weir_bpf::abi::TOKEN_DATAGRAM_IDLE);
        age(idle - 5);
        assert_eq!(run(&loaded, &without), MATCH);
        // What has no token has not made it longer.
        age(idle + 1);
        let before = count(&tokens, Outcome::NoFlow);
        assert_eq!(run(&loaded, &without), 0);
        assert_eq!(count(&tokens, Outcome::NoFlow), before + 1);
        assert_eq!(run(&loaded, &with), MATCH);
        assert_eq!(run(&loaded, &without), MATCH);
    }
}

#[test]
fn root_of_too_many_flows_of_datagrams_the_least_used_go() {
    let (lab, tokens, loaded) = Lab::load("udp-full");
    let known = Known::new();
    tokens.put_policy(&known.policy()).unwrap();
    let most = weir_bpf::abi::TOKEN_DATAGRAM_FLOWS;
    let client = |number: u32| -> Flow {
        let source = IpAddr::from([192, 0, 2, (number / 50_000) as u8]);
        let port = 1024 + (number % 50_000) as u16;
        ((source, port), ([198, 51, 100, 9].into(), PORTS.0))
    };
    for number in 0..most + 10_000 {
        let packet = frame(&known, client(number), Some(epoch()), 0);
        assert_eq!(run(&loaded, &packet), MATCH, "{number}");
    }
    let dir = Path::new(ROOT).join(&lab.instance);
    let pin = dir.join(format!(
        "token-{}/token_udp_proven",
        weir_bpf::abi::TOKEN_ABI
    ));
    let proven = MapHandle::from_pinned_path(pin).unwrap();
    let there = proven.keys().count() as u64;
    assert!(there <= most.into());
    let counts = tokens.datagram_flows().unwrap();
    assert_eq!(counts.proven.present, there);
    assert_eq!(counts.proven.evicted, u64::from(most) + 10_000 - there);
    assert_eq!((counts.own, counts.logged), Default::default());
    let without = |number| run(&loaded, &frame(&known, client(number), None, 0));
    assert_eq!(without(0), 0);
    assert_eq!(without(most + 9_999), MATCH);
}

//! Tarpit ports by BPF_PROG_RUN, on XDP and tcx, IPv4 and IPv6: what is answered to which
//! packet, by a table and a reference that shares no code with the packet path.
//! Checksums of replies are computed here anew. Root: loads BPF.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    abi::{TARPIT_SOURCE_ANSWERS, TARPIT_WINDOW},
    attachment::Hook,
    events::EventReader,
    prog_test_run, small_maps,
};
use weir_core::{Reason, decoy::DecoyPorts};
use weir_testkit::packet::{Packet, checksum};

#[path = "root_tarpit/addresses.rs"]
mod addresses;

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const OWN4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEERS: [&str; 2] = ["198.51.100.7", "2001:db8:bad::7"];
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Tables with tarpit ports 25 and 1000-1999.
struct Pit {
    generation: Generation,
    events: EventReader,
}

impl Pit {
    fn new() -> Self {
        let options = Options {
            // As wide as those of a table: places follow from it.
            seed: [
                0x9e37_79b9_7f4a_7c15,
                0xbf58_476d_1ce4_e5b9,
                0x94d0_49bb_1331_11eb,
            ],
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        let entries = ["25/tcp", "1000-1999/tcp"].map(|e| e.parse().unwrap());
        generation.decoys.write_tarpits(&DecoyPorts::new(&entries));
        generation
            .decoys
            .write_own(&[OWN4.into(), OWN6.into()])
            .unwrap();
        generation
            .table
            .set_port_features(generation.port_features());
        generation.answer(AnswerProgram::Tarpit).unwrap();
        let events = EventReader::new(&generation.events).unwrap();
        let allowed = ["198.51.100.64/26", "2001:db8:a::/48"];
        let allowed = allowed.iter().map(|p| p.parse().unwrap()).collect();
        generation.allow.write(&allowed).unwrap();
        Self { generation, events }
    }

    /// Runs a frame that must leave by this reason alone.
    #[track_caller]
    fn leaves(
        &self,
        hook: Hook,
        name: &str,
        frame: &[u8],
        reason: Reason,
    ) -> prog_test_run::RunResult {
        let counters = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = counters();
        let answer =
            prog_test_run::packet(self.generation.program(hook).unwrap(), frame, 1).unwrap();
        let after = counters();
        let counted: Vec<_> = Reason::ALL
            .into_iter()
            .filter(|r| after[*r as usize].0 != before[*r as usize].0)
            .collect();
        assert_eq!(counted, [reason], "{name} on {}", hook.name());
        answer
    }

    #[track_caller]
    fn passes(&self, hook: Hook, name: &str, packet: &Packet, reason: Reason) {
        let frame = packet.build();
        let answer = self.leaves(hook, name, &frame, reason);
        let pass = if hook == Hook::Tcx { u32::MAX } else { 2 };
        assert_eq!(answer.verdict, pass, "{name} on {}", hook.name());
        assert_eq!(answer.packet, frame, "{name} on {}", hook.name());
    }

    #[track_caller]
    fn dropped(&self, hook: Hook, name: &str, packet: &Packet, reason: Reason) {
        let answer = self.leaves(hook, name, &packet.build(), reason);
        let drop = if hook == Hook::Tcx { 2 } else { 1 };
        assert_eq!(answer.verdict, drop, "{name} on {}", hook.name());
    }

    #[track_caller]
    fn answered(&self, hook: Hook, name: &str, packet: &Packet, reason: Reason) -> Reply {
        let frame = packet.build();
        let answer = self.leaves(hook, name, &frame, reason);
        // TC_ACT_REDIRECT, XDP_TX.
        let sent = if hook == Hook::Tcx { 7 } else { 3 };
        assert_eq!(answer.verdict, sent, "{name} on {}", hook.name());
        Reply::read(&answer.packet, &frame)
    }

    /// The answer to what has no data, of which one in so many gets none.
    #[track_caller]
    fn probe_answered(&self, hook: Hook, name: &str, packet: &Packet) -> Reply {
        let frame = packet.build();
        for _ in 0..100 {
            let answer = self.leaves(hook, name, &frame, Reason::Tarpit);
            if answer.verdict > 2 {
                return Reply::read(&answer.packet, &frame);
            }
        }
        panic!("{name} on {}: never answered", hook.name());
    }
}

/// The answer of a tarpit port.
#[derive(Debug, PartialEq)]
struct Reply {
    flags: u8,
    seq: u32,
    ack: u32,
    window: u16,
    options: Vec<u8>,
}

impl Reply {
    /// Checks all that any reply to `request` must be.
    #[track_caller]
    fn read(frame: &[u8], request: &[u8]) -> Self {
        assert_eq!(frame[..6], request[6..12], "to whom it came from");
        assert_eq!(frame[6..12], request[..6]);
        let (mut at, mut kind) = (12, be16(frame, 12));
        while matches!(kind, 0x8100 | 0x88a8) {
            at += 4;
            kind = be16(frame, at);
        }
        assert_eq!(frame[12..at + 2], request[12..at + 2], "tags and type stay");
        let (ip, asked) = (&frame[at + 2..], &request[at + 2..]);
        let (head, len, pseudo) = match kind {
            0x0800 => {
                assert_eq!((ip[0], ip[8], ip[9]), (0x45, 64, 6));
                assert_eq!(checksum(&ip[..20]), 0, "the header's checksum");
                assert_eq!((&ip[12..16], &ip[16..20]), (&asked[16..20], &asked[12..16]));
                (20, usize::from(be16(ip, 2)), ip[12..20].to_vec())
            }
            0x86dd => {
                assert_eq!((ip[0], ip[6], ip[7]), (0x60, 6, 64));
                assert_eq!((&ip[8..24], &ip[24..40]), (&asked[24..40], &asked[8..24]));
                (40, 40 + usize::from(be16(ip, 4)), ip[8..40].to_vec())
            }
            other => panic!("{other:#x}"),
        };
        let (tcp, of) = (&ip[head..len], &asked[head..]);
        let mut summed = pseudo;
        summed.extend([0, 6]);
        summed.extend((tcp.len() as u16).to_be_bytes());
        summed.extend(tcp);
        assert_eq!(checksum(&summed), 0, "TCP's checksum");
        assert_eq!((&tcp[..2], &tcp[2..4]), (&of[2..4], &of[..2]), "the ports");
        assert_eq!(usize::from(tcp[12] >> 4) * 4, tcp.len());
        assert!(frame.len() <= request.len(), "longer than what it answers");
        // What is shorter than a frame must be stays padded.
        assert!(at + 2 + len == frame.len() || frame.len() == request.len().min(60));
        Self {
            flags: tcp[13],
            seq: be32(tcp, 4),
            ack: be32(tcp, 8),
            window: be16(tcp, 14),
            options: tcp[20..].to_vec(),
        }
    }
}

/// The reference: what holds the sender of `len` bytes of data, in words of the RFC and
/// not of the packet path. A receiver with room for `TARPIT_WINDOW` bytes that nobody
/// reads, of which it gives none away for a probe of one byte.
fn held(seq: u32, ack: u32, len: u32, fin: bool) -> Reply {
    let next = match (len, fin) {
        (0, true) => seq,
        (0, false) => seq.wrapping_add(1),
        (2..=TARPIT_WINDOW, _) => seq.wrapping_add(len),
        _ => seq,
    };
    Reply {
        flags: ACK,
        seq: ack,
        ack: next,
        window: 0,
        options: Vec::new(),
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn between(frame: Packet, source: &str) -> Packet {
    let source: IpAddr = source.parse().unwrap();
    let own = match source {
        IpAddr::V4(_) => OWN4.into(),
        IpAddr::V6(_) => OWN6.into(),
    };
    frame.ip(source, own)
}

fn segment(source: &str, port: u16, flags: u8, seq: u32, ack: u32) -> Packet {
    between(Packet::eth(), source)
        .tcp(40_000, port)
        .tcp_flags(flags)
        .tcp_seq(seq, ack)
}

fn syn(source: &str, port: u16) -> Packet {
    segment(source, port, SYN, 7_000, 0).tcp_options(&[2, 4, 5, 0xb4], 64_240)
}

#[test]
fn root_tarpit_answers_syns_of_every_header_size() {
    let pit = Pit::new();
    let mut numbers = Vec::new();
    for hook in HOOKS {
        for peer in PEERS {
            for (vlan, frame) in [
                ("no tag", Packet::eth()),
                ("two tags", Packet::eth().qinq(6).vlan(5)),
            ] {
                for words in 0..=10 {
                    let mut options = [1; 40];
                    options[..4].copy_from_slice(&[2, 4, 5, 0xb4]);
                    let packet = between(frame.clone(), peer)
                        .tcp(40_000, 1_000 + words as u16)
                        .tcp_seq(u32::MAX, 0)
                        .tcp_options(&options[..words * 4], 8192);
                    let name = format!("{peer}, {vlan}, {words} words of options");
                    let reply = pit.answered(hook, &name, &packet, Reason::Tarpit);
                    assert_eq!((reply.flags, reply.ack), (SYN | ACK, 0), "{name}");
                    assert_eq!(u32::from(reply.window), TARPIT_WINDOW, "{name}");
                    assert_eq!(reply.options.len(), 4 * words.min(1), "{name}");
                    numbers.push(reply.seq);
                }
            }
        }
    }
    let counts = pit.generation.decoys.tarpit_counts().unwrap();
    assert_eq!((counts.answered, counts.held, counts.silent), (88, 0, 0));
    // Nobody who is not sent it knows a sequence number: not of another connection, nor
    // from that of the port before. (22 connections, each asked for four times.)
    let mut steps: Vec<_> = numbers
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    for values in [&mut numbers, &mut steps] {
        values.sort_unstable();
        values.dedup();
        assert!(values.len() >= 20, "{values:?}");
    }
}

#[test]
fn root_tarpit_holds_without_memory_of_the_connection() {
    let pit = Pit::new();
    for hook in HOOKS {
        for peer in PEERS {
            // Whether it ever sent a SYN or not.
            for (name, flags, len) in [
                ("a probe or a keep-alive", ACK, 0),
                ("one byte", ACK, 1),
                ("two bytes", ACK | PSH, 2),
                ("odd", ACK | PSH, 7),
                ("the window", ACK | PSH, TARPIT_WINDOW),
                ("more than the window", ACK | PSH, TARPIT_WINDOW + 1),
                ("a whole segment", ACK, 1_300),
                ("an end", ACK | FIN, 0),
                ("data and an end", ACK | FIN | PSH, 5),
            ] {
                for seq in [7_001, 0, u32::MAX - 3] {
                    let packet =
                        segment(peer, 25, flags, seq, 0xdead_beef).payload_len(len as usize);
                    let reply = if len == 0 && flags == ACK {
                        pit.probe_answered(hook, name, &packet)
                    } else {
                        pit.answered(hook, name, &packet, Reason::Tarpit)
                    };
                    let expected = held(seq, 0xdead_beef, len, flags & FIN != 0);
                    assert_eq!(reply, expected, "{name}, {peer}, seq {seq}");
                }
            }
            // Options, as of a client that sends time stamps unasked.
            let packet = segment(peer, 25, ACK, 9, 8).tcp_options(&[1; 12], 100);
            let reply = pit.probe_answered(hook, "options", &packet);
            assert_eq!(reply, held(9, 8, 0, false));
        }
    }
}

#[test]
fn root_tarpit_a_handshake_is_told_once() {
    let pit = Pit::new();
    let told = || pit.events.read(Duration::ZERO).unwrap();
    for hook in HOOKS {
        for peer in PEERS {
            let cookie = pit
                .answered(hook, "SYN", &syn(peer, 25), Reason::Tarpit)
                .seq;
            told();
            let ack = segment(peer, 25, ACK, 7_001, cookie.wrapping_add(1));
            pit.dropped(hook, "the cookie", &ack, Reason::TarpitHandshake);
            let proof = told();
            assert_eq!(proof.len(), 1);
            assert_eq!(proof[0].reason, Reason::TarpitHandshake as u32);
            assert_eq!((proof[0].protocol, proof[0].port), (6, 25));
            let source = IpAddr::from(proof[0].source).to_canonical();
            assert_eq!(source, peer.parse::<IpAddr>().unwrap());
            // From now on it is a probe.
            let reply = pit.probe_answered(hook, "again", &ack);
            assert_eq!(reply, held(7_001, cookie.wrapping_add(1), 0, false));
            assert_eq!(told(), []);

            // With data at once (its plain ACK was lost): proof, and an answer.
            let cookie = pit
                .answered(hook, "SYN", &syn(peer, 25), Reason::Tarpit)
                .seq;
            let data = segment(peer, 25, ACK | PSH, 7_001, cookie.wrapping_add(1));
            let data = data.payload_len(10);
            let reply = pit.answered(hook, "data", &data, Reason::TarpitHandshake);
            assert_eq!(reply, held(7_001, cookie.wrapping_add(1), 10, false));

            // A guess is none; and there is one a SYN.
            let cookie = pit
                .answered(hook, "SYN", &syn(peer, 25), Reason::Tarpit)
                .seq;
            told();
            let guess = segment(peer, 25, ACK, 7_001, cookie.wrapping_add(1 << 20));
            pit.probe_answered(hook, "a guess", &guess);
            let late = segment(peer, 25, ACK, 7_001, cookie.wrapping_add(1));
            pit.probe_answered(hook, "the cookie, too late", &late);
            assert_eq!(told(), []);
        }
    }
}

#[test]
fn root_tarpit_leaves_the_rest_alone() {
    let pit = Pit::new();
    for hook in HOOKS {
        for peer in PEERS {
            for (name, flags) in [
                ("RST", RST),
                ("RST and ACK", RST | ACK),
                ("SYN-ACK", SYN | ACK),
                ("SYN and FIN", SYN | FIN),
                ("nothing", 0),
                ("FIN", FIN),
            ] {
                let packet = segment(peer, 25, flags, 1, 2);
                pit.passes(hook, name, &packet, Reason::Pass);
            }
            pit.passes(hook, "another port", &syn(peer, 26), Reason::Pass);
            let udp = between(Packet::eth(), peer).udp(40_000, 25).payload_len(8);
            pit.passes(hook, "UDP", &udp, Reason::Pass);
            let data = segment(peer, 25, SYN, 1, 0).payload_len(8);
            pit.dropped(hook, "SYN with data", &data, Reason::Tarpit);
            let bad = syn(peer, 25).bad_checksum();
            pit.dropped(hook, "wrong checksum", &bad, Reason::Tarpit);
        }
        let fragment = Packet::eth().ip4(Ipv4Addr::new(198, 51, 100, 7), OWN4);
        let fragment = fragment.fragment(0, true).tcp(40_000, 25).tcp_flags(SYN);
        pit.passes(hook, "a fragment", &fragment, Reason::Pass);
        let forwarded = Packet::eth()
            .ip4(Ipv4Addr::new(198, 51, 100, 7), Ipv4Addr::new(192, 0, 2, 9))
            .tcp(40_000, 25);
        pit.passes(hook, "to another host", &forwarded, Reason::Pass);
        for allowed in ["198.51.100.70", "2001:db8:a::1"] {
            pit.passes(hook, "allowed", &syn(allowed, 25), Reason::Allowed);
            let ack = segment(allowed, 25, ACK, 1, 2);
            pit.passes(hook, "allowed, later", &ack, Reason::Allowed);
        }
    }
    pit.generation.table.set_observe(true);
    for hook in HOOKS {
        for peer in PEERS {
            pit.passes(hook, "observed", &syn(peer, 25), Reason::Observed);
        }
    }
}

/// Two tarpits, or a tarpit and a stack that answers every ACK, do not answer each other
/// for ever; and this host is not answered in its own name.
#[test]
fn root_tarpit_answers_come_to_an_end() {
    let pit = Pit::new();
    for hook in HOOKS {
        for peer in PEERS {
            // What a tarpit says at the other end.
            let answer = segment(peer, 25, ACK, 1, 2).tcp_options(&[], 0);
            for _ in 0..50 {
                pit.dropped(hook, "a window of zero", &answer, Reason::Tarpit);
            }
            // With data or an end it is a client's, whatever its window.
            let data = segment(peer, 25, ACK, 1, 2).tcp_options(&[], 0);
            pit.answered(hook, "data", &data.payload_len(3), Reason::Tarpit);
            let end = segment(peer, 25, ACK | FIN, 1, 2).tcp_options(&[], 0);
            pit.answered(hook, "an end", &end, Reason::Tarpit);
            // Of those that may be probes some are not answered.
            let plain = segment(peer, 25, ACK, 1, 2).build();
            let silent = (0..300)
                .filter(|_| pit.leaves(hook, "ACK", &plain, Reason::Tarpit).verdict <= 2)
                .count();
            assert!((1..100).contains(&silent), "{silent} of 300");
        }
        for own in [OWN4.to_string(), OWN6.to_string()] {
            pit.passes(hook, "itself", &syn(&own, 25), Reason::Pass);
            let data = segment(&own, 25, ACK, 1, 2).payload_len(3);
            pit.passes(hook, "itself, data", &data, Reason::Pass);
        }
    }
}

/// Above the limit of its source nothing is answered, and that is counted.
#[test]
fn root_tarpit_answers_of_a_source_are_limited() {
    let pit = Pit::new();
    let most = u64::from(TARPIT_SOURCE_ANSWERS);
    let begin = std::time::Instant::now();
    let mut sent = 0;
    for n in 0..8 * most {
        // Of IPv6 a /64 is one source.
        let peer = format!("2001:db8:bad::{n:x}");
        let frame = syn(&peer, 25).build();
        let program = pit.generation.program(Hook::Xdp).unwrap();
        prog_test_run::packet(program, &frame, 1).unwrap();
        sent += 1;
    }
    // A window is 256 jiffies long, of a millisecond at least.
    let windows = begin.elapsed().as_millis() as u64 / 256 + 2;
    let counts = pit.generation.decoys.tarpit_counts().unwrap();
    println!("{counts:?} in {windows} windows at most");
    assert_eq!(counts.answered + counts.silent, sent);
    assert!(counts.answered >= most, "{counts:?}");
    assert!(counts.answered <= windows * most, "{counts:?}, {windows}");
    assert!(counts.silent > 0, "{counts:?}");
    // Another source has an allowance of its own.
    let another = syn("203.0.113.9", 25);
    pit.answered(Hook::Xdp, "another", &another, Reason::Tarpit);
}

/// Cut anywhere, a frame does no harm; and none is answered that is not whole.
#[test]
fn root_tarpit_cut_at_every_byte() {
    let pit = Pit::new();
    for hook in HOOKS {
        for peer in PEERS {
            for whole in [syn(peer, 25), segment(peer, 25, ACK, 1, 2)] {
                let whole = whole.build();
                let least = if peer.contains(':') { 54 } else { 34 };
                for len in least..whole.len() {
                    let program = pit.generation.program(hook).unwrap();
                    let verdict = prog_test_run::packet(program, &whole[..len], 1)
                        .unwrap()
                        .verdict;
                    assert!(
                        ![3, 7].contains(&verdict),
                        "cut at {len} on {}",
                        hook.name()
                    );
                }
            }
        }
    }
}

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
    balance::{Real, SLOTS, Service, real_id},
    events::EventReader,
    link::Hook,
    prog_test_run, small_maps,
};
use weir_core::{Protocol, Reason, decoy::DecoyPorts};
use weir_testkit::packet::{Packet, checksum};

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
            seed: [11, 22, 33],
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

/// What a tarpit port answered.
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
                    assert_ne!(reply.seq, 42, "a cookie, and no constant");
                }
            }
        }
    }
    let counts = pit.generation.decoys.tarpit_counts().unwrap();
    assert_eq!((counts.answered, counts.held, counts.silent), (88, 0, 0));
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

const LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const ALL: [u8; 6] = [0xff; 6];
/// BPF_PROG_RUN's interface, and the one that its skb came in by: none.
const HERE: [(u32, [u8; 6]); 2] = [(1, LINK), (0, LINK)];

impl Pit {
    /// That holds the addresses of two prefixes, its own among them.
    fn of_addresses() -> Self {
        let pit = Self::new();
        let prefixes = ["192.0.2.0/24", "2001:db8::/64"];
        let prefixes = prefixes.iter().map(|p| p.parse().unwrap()).collect();
        let decoys = &pit.generation.decoys;
        decoys.write_tarpits(&DecoyPorts::default());
        decoys.write_prefixes(&prefixes).unwrap();
        decoys.write_links(&HERE.into()).unwrap();
        let features = pit.generation.port_features();
        pit.generation.table.set_port_features(features);
        pit
    }

    /// Runs a frame, which is answered or leaves as it came: the answer.
    #[track_caller]
    fn asked(&self, hook: Hook, name: &str, frame: &[u8], otherwise: Reason) -> Option<Vec<u8>> {
        let counters = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = counters();
        let program = self.generation.program(hook).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).unwrap();
        let sent = answer.verdict == if hook == Hook::Tcx { 7 } else { 3 };
        let reason = if sent { Reason::Tarpit } else { otherwise };
        let counted = counters()[reason as usize].0 - before[reason as usize].0;
        assert_eq!(counted, 1, "{name} on {}: {reason}", hook.name());
        if !sent {
            assert_eq!(answer.packet, frame, "{name}");
        }
        sent.then_some(answer.packet)
    }
}

/// RFC 826, of Ethernet and IPv4.
fn arp(to: [u8; 6], operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&to[..], &ASKER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend([&ASKER[..], &sender, &[0; 6], &target].concat());
    frame.resize(60, 0);
    frame
}

/// A solicitation with its sender's link-layer address.
fn solicitation(to: [u8; 6], source: &str, group: &str, target: &str) -> Packet {
    let target: Ipv6Addr = target.parse().unwrap();
    let option = [&[1, 1][..], &ASKER].concat();
    Packet::eth_between(ASKER, to)
        .ip(source.parse().unwrap(), group.parse().unwrap())
        .ttl(255)
        .icmp6(135, 0)
        .payload(&[&target.octets()[..], &option].concat())
}

#[test]
fn root_tarpit_addresses_are_located() {
    let pit = Pit::of_addresses();
    let decoys = &pit.generation.decoys;
    for hook in HOOKS {
        let run = |name, frame: &[u8]| pit.asked(hook, name, frame, Reason::NotIp);
        // Whoever asks is told, and once he sends in their name they are somebody's.
        let asker = [192, 0, 2, 254];
        for (name, to) in [("to all", ALL), ("to this interface", LINK)] {
            let answer = run(name, &arp(to, 1, asker, [192, 0, 2, 77])).expect(name);
            let mut told = [&ASKER[..], &LINK, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
            told.extend([&LINK[..], &[192, 0, 2, 77], &ASKER, &asker].concat());
            assert_eq!((&answer[..42], answer.len()), (&told[..], 60), "{name}");
        }
        let silent = |name, frame: &[u8]| assert_eq!(run(name, frame), None, "{name}");
        silent("elsewhere", &arp(ALL, 1, asker, [198, 51, 100, 1]));
        silent("this host's own", &arp(ALL, 1, asker, OWN4.octets()));
        silent("another's", &arp(ASKER, 1, asker, [192, 0, 2, 78]));
        silent("who asked", &arp(ALL, 1, [192, 0, 2, 7], asker));
        silent("a probe", &arp(ALL, 1, [0; 4], [192, 0, 2, 80]));
        silent("what was probed", &arp(ALL, 1, asker, [192, 0, 2, 80]));
        silent(
            "an announcement",
            &arp(ALL, 1, [192, 0, 2, 81], [192, 0, 2, 81]),
        );
        silent("what was announced", &arp(ALL, 1, asker, [192, 0, 2, 81]));
        silent("an answer", &arp(ALL, 2, [192, 0, 2, 82], [192, 0, 2, 83]));
        silent("who answered", &arp(ALL, 1, asker, [192, 0, 2, 82]));
        silent(
            "a loopback address",
            &arp(ALL, 1, [127, 0, 0, 1], [192, 0, 2, 84]),
        );
        let whole = arp(ALL, 1, asker, [192, 0, 2, 85]);
        for len in 15..42 {
            pit.asked(hook, "cut", &whole[..len], Reason::NotIp);
        }

        let run = |name, packet: &Packet| pit.asked(hook, name, &packet.build(), Reason::Pass);
        let group = "ff02::1:ff00:77";
        let all = [0x33, 0x33, 0xff, 0, 0, 0x77];
        let (asker, target) = ("2001:db8::fe", "2001:db8::77");
        for (name, to, group) in [("to the group", all, group), ("to one", LINK, target)] {
            let answer = run(name, &solicitation(to, asker, group, target)).expect(name);
            assert_eq!(answer[..12], [ASKER, LINK].concat()[..], "{name}");
            let ip = &answer[14..];
            assert_eq!((ip[6], ip[7], be16(ip, 4)), (58, 255, 32));
            let address = |at: usize| {
                let bytes: [u8; 16] = ip[at..at + 16].try_into().unwrap();
                Ipv6Addr::from(bytes).to_string()
            };
            assert_eq!((address(8), address(24)), (target.into(), asker.into()));
            let mut pseudo = ip[8..40].to_vec();
            pseudo.extend([0, 0, 0, 32, 0, 0, 0, 58]);
            pseudo.extend(&ip[40..72]);
            assert_eq!(checksum(&pseudo), 0, "{name}");
            // An advertisement, solicited, that overrides nobody's.
            assert_eq!((ip[40], ip[41], be32(ip, 44)), (136, 0, 0x4000_0000));
            assert_eq!(address(48), target);
            assert_eq!(ip[64..72], [&[2, 1][..], &LINK].concat()[..]);
        }
        let silent = |name, packet: &Packet| assert_eq!(run(name, packet), None, "{name}");
        let own = OWN6.to_string();
        let ask = |target| solicitation(all, asker, group, target);
        silent("elsewhere", &ask("2001:db8:1::1"));
        silent("this host's own", &ask(&own));
        silent("who asked", &ask(asker));
        silent("not of this link", &ask("2001:db8::78").ttl(254));
        silent("wrong", &ask("2001:db8::78").bad_checksum());
        let tentative = Packet::eth_between(ASKER, all)
            .ip("::".parse().unwrap(), group.parse().unwrap())
            .solicitation("2001:db8::80".parse::<Ipv6Addr>().unwrap());
        silent("a probe", &tentative);
        silent("what was probed", &ask("2001:db8::80"));
        let advertised = Packet::eth_between(ASKER, [0x33, 0x33, 0, 0, 0, 1])
            .ip("fe80::5".parse().unwrap(), "ff02::1".parse().unwrap())
            .advertisement("2001:db8::81".parse::<Ipv6Addr>().unwrap());
        silent("an advertisement", &advertised);
        silent("who advertised", &ask("2001:db8::81"));
    }
    // Nor what user space says is alive, until that is an hour ago.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32;
    let addr: IpAddr = "192.0.2.90".parse().unwrap();
    let ask = arp(ALL, 1, [192, 0, 2, 254], [192, 0, 2, 90]);
    for (seconds, answered) in [(now, false), (now.wrapping_sub(3_601), true)] {
        decoys.note_alive(&[addr], seconds).unwrap();
        let answer = pit.asked(Hook::Xdp, "alive", &ask, Reason::NotIp);
        assert_eq!(answer.is_some(), answered, "{seconds} of {now}");
    }
    // Nor on another interface.
    decoys.write_links(&[(2, LINK)].into()).unwrap();
    assert_eq!(
        pit.asked(Hook::Xdp, "another link", &ask, Reason::NotIp),
        None
    );
    let counts = decoys.tarpit_counts().unwrap();
    assert_eq!((counts.resolved, counts.silent), (9, 0));
}

/// All ports of such an address hold, but for frames that are somebody else's, and for an
/// address that somebody has.
#[test]
fn root_tarpit_addresses_hold_on_all_ports() {
    let pit = Pit::of_addresses();
    let held_by = |seq, ack, len| held(seq, ack, len, false);
    let dark = ["192.0.2.77", "2001:db8::77"];
    let alive = ["192.0.2.78", "2001:db8::78"];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32;
    let seen = alive.map(|addr| addr.parse().unwrap());
    pit.generation.decoys.note_alive(&seen, now).unwrap();
    for hook in HOOKS {
        for (family, peer) in PEERS.into_iter().enumerate() {
            let to = |mac: [u8; 6], addr: &str, port: u16| {
                let peer: IpAddr = peer.parse().unwrap();
                let eth = Packet::eth_between(ASKER, mac);
                eth.ip(peer, addr.parse().unwrap()).tcp(40_000, port)
            };
            for port in [1, 22, 25, 443, 65_535] {
                let syn = to(LINK, dark[family], port).tcp_seq(9, 0);
                let reply = pit.answered(hook, "SYN", &syn, Reason::Tarpit);
                assert_eq!((reply.flags, reply.ack), (SYN | ACK, 10));
                let data = to(LINK, dark[family], port).tcp_flags(ACK).tcp_seq(9, 8);
                let data = data.payload_len(5);
                let reply = pit.answered(hook, "data", &data, Reason::Tarpit);
                assert_eq!(reply, held_by(9, 8, 5));
            }
            let own = if family == 0 {
                OWN4.to_string()
            } else {
                OWN6.to_string()
            };
            for (name, packet) in [
                ("this host's own", to(LINK, &own, 25)),
                ("alive", to(LINK, alive[family], 25)),
                ("a flooded frame", to(ASKER, dark[family], 25)),
                ("a SYN-ACK", to(LINK, dark[family], 25).tcp_flags(SYN | ACK)),
                ("a reset", to(LINK, dark[family], 25).tcp_flags(RST)),
            ] {
                pit.passes(hook, name, &packet, Reason::Pass);
            }
        }
    }
}

/// Where addresses are tarpits a pool goes on to serve: its ports, and what is about its
/// flows; and at such an address its ports hold as any other.
#[test]
fn root_tarpit_addresses_leave_pools_alone() {
    let pit = Pit::of_addresses();
    pit.generation.answer(AnswerProgram::Balance).unwrap();
    let vips: [IpAddr; 2] = ["203.0.113.80", "2001:db8:5::80"].map(|vip| vip.parse().unwrap());
    let balancer = &pit.generation.balancer;
    let services: Vec<_> = vips
        .iter()
        .flat_map(|vip| {
            [(Protocol::Tcp, 80), (Protocol::Udp, 443)].map(|(protocol, port)| Service {
                addr: *vip,
                protocol,
                port,
                pool: 3,
            })
        })
        .collect();
    let dest = [2, 0, 0, 0, 0, 0x33];
    let real = Real {
        id: real_id("web", "10.0.0.1".parse().unwrap()),
        dest,
        source: LINK,
        ifindex: 1,
    };
    balancer.write_real(0, Some(real)).unwrap();
    balancer.write_ring(3, &vec![Some(0); SLOTS]).unwrap();
    balancer.write_services(&services).unwrap();
    let features = pit.generation.port_features();
    pit.generation.table.set_port_features(features);
    let dark = ["192.0.2.77", "2001:db8::77"];
    let allowed = ["198.51.100.70", "2001:db8:a::1"];
    for hook in HOOKS {
        for (family, peer) in PEERS.into_iter().enumerate() {
            let vip = vips[family];
            let to = |addr: IpAddr, from: &str| {
                Packet::eth_between(ASKER, LINK).ip(from.parse().unwrap(), addr)
            };
            let quoted = Packet::eth().ip(vip, peer.parse().unwrap());
            let quoted = quoted.tcp(80, 40_000).build().split_off(14);
            let error = match family {
                0 => to(vip, "198.51.100.1").icmp(3, 4),
                _ => to(vip, "2001:db8:f::1").icmp6(2, 0),
            };
            for (name, packet) in [
                ("TCP", to(vip, peer).tcp(40_000, 80)),
                ("UDP", to(vip, peer).udp(40_000, 443)),
                ("too big", error.payload(&quoted)),
                ("allowed", to(vip, allowed[family]).tcp(4, 80)),
            ] {
                let frame = packet.build();
                let answer = pit.leaves(hook, name, &frame, Reason::Pass);
                let sent = if hook == Hook::Tcx { 7 } else { 3 };
                assert_eq!(answer.verdict, sent, "{name} on {}", hook.name());
                assert_eq!(answer.packet[..12], [dest, LINK].concat()[..], "{name}");
                // Behind one hop, and IPv4's checksum.
                assert_eq!(answer.packet[26..], frame[26..], "{name}");
            }
            let dark: IpAddr = dark[family].parse().unwrap();
            for port in [80, 443] {
                let syn = to(dark, peer).tcp(40_000, port).tcp_seq(9, 0);
                let reply = pit.answered(hook, "SYN", &syn, Reason::Tarpit);
                assert_eq!((reply.flags, reply.ack), (SYN | ACK, 10));
            }
            let other = to(vip, peer).tcp(40_000, 81);
            pit.passes(hook, "another port of the pool", &other, Reason::Pass);
            let own: IpAddr = [OWN4.into(), OWN6.into()][family];
            let own = to(own, peer).tcp(40_000, 80);
            pit.passes(hook, "this host's own", &own, Reason::Pass);
        }
        // What only looks like ARP is another protocol's.
        let mut frame = arp(ALL, 1, [192, 0, 2, 254], [192, 0, 2, 77]);
        assert!(pit.asked(hook, "ARP", &frame, Reason::NotIp).is_some());
        frame[12..14].copy_from_slice(&[0x80, 0x35]);
        assert_eq!(pit.asked(hook, "RARP", &frame, Reason::NotIp), None);
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

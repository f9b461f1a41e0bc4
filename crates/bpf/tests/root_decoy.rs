//! Decoy ports by BPF_PROG_RUN, on XDP and tcx, IPv4 and IPv6: who is answered
//! and how, what proves a source, and what is left alone. Checksums of replies
//! are computed here anew. Root: loads BPF.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    abi::DECOY_ANSWERS,
    attachment::Hook,
    events::{EventReader, PacketEvent},
    prog_test_run, small_maps,
};
use weir_core::{
    Reason,
    decoy::{DecoyPorts, Scanner},
};
use weir_testkit::packet::{Packet, checksum, proto};

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const OWN4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PEERS: [&str; 2] = ["198.51.100.7", "2001:db8:bad::7"];
const MSS: [u8; 4] = [2, 4, 5, 0xb4];
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Tables with decoy ports 23, 1000-1999 of TCP and 161, 68, 546 of UDP.
struct Trap {
    generation: Generation,
    events: EventReader,
}

impl Trap {
    fn new() -> Self {
        let options = Options {
            seed: [11, 22, 33],
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        let entries = ["23/tcp", "1000-1999/tcp", "161/udp", "68/udp", "546/udp"];
        let entries: Vec<_> = entries.iter().map(|e| e.parse().unwrap()).collect();
        generation.decoys.write_ports(&DecoyPorts::new(&entries));
        generation
            .decoys
            .write_own(&[OWN4.into(), OWN6.into()])
            .unwrap();
        generation
            .table
            .set_port_features(generation.port_features());
        generation.answer(AnswerProgram::Decoy).unwrap();
        let events = EventReader::new(&generation.events).unwrap();
        let allowed = ["198.51.100.64/26", "2001:db8:a::/48"];
        let allowed = allowed.iter().map(|p| p.parse().unwrap()).collect();
        generation.allow.write(&allowed).unwrap();
        Self { generation, events }
    }

    fn run(&self, hook: Hook, frame: &[u8]) -> prog_test_run::RunResult {
        prog_test_run::packet(self.generation.program(hook).unwrap(), frame, 1)
            .expect("the program runs")
    }

    fn counters(&self) -> Vec<(u64, u64)> {
        small_maps::read_counters(&self.generation.counters).unwrap()
    }

    fn told(&self) -> Vec<PacketEvent> {
        self.events.read(Duration::ZERO).unwrap()
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
        let before = self.counters();
        let answer = self.run(hook, frame);
        let after = self.counters();
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
        assert_eq!(answer.verdict, pass(hook), "{name} on {}", hook.name());
        assert_eq!(answer.packet, frame, "{name} on {}", hook.name());
    }

    #[track_caller]
    fn dropped(&self, hook: Hook, name: &str, packet: &Packet, reason: Reason) {
        let answer = self.leaves(hook, name, &packet.build(), reason);
        assert_eq!(answer.verdict, drop_word(hook), "{name} on {}", hook.name());
    }

    #[track_caller]
    fn answered(&self, hook: Hook, name: &str, packet: &Packet) -> Reply {
        let frame = packet.build();
        let answer = self.leaves(hook, name, &frame, Reason::Decoy);
        assert_eq!(answer.verdict, sent(hook), "{name} on {}", hook.name());
        Reply::read(&answer.packet, &frame)
    }
}

fn pass(hook: Hook) -> u32 {
    if hook == Hook::Tcx { u32::MAX } else { 2 }
}

fn drop_word(hook: Hook) -> u32 {
    if hook == Hook::Tcx { 2 } else { 1 }
}

/// TC_ACT_REDIRECT, XDP_TX.
fn sent(hook: Hook) -> u32 {
    if hook == Hook::Tcx { 7 } else { 3 }
}

/// The SYN-ACK of a decoy port.
#[derive(Debug)]
struct Reply {
    seq: u32,
    /// Bytes of the IP packet.
    len: usize,
    mss: Option<u16>,
}

impl Reply {
    /// Checks all that a SYN-ACK to `request` must be.
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
                assert_eq!(ip[12..16], asked[16..20]);
                assert_eq!(ip[16..20], asked[12..16]);
                (20, usize::from(be16(ip, 2)), ip[12..20].to_vec())
            }
            0x86dd => {
                assert_eq!((ip[0], ip[6], ip[7]), (0x60, 6, 64));
                assert_eq!(ip[8..24], asked[24..40]);
                assert_eq!(ip[24..40], asked[8..24]);
                (40, 40 + usize::from(be16(ip, 4)), ip[8..40].to_vec())
            }
            other => panic!("{other:#x}"),
        };
        let (tcp, syn) = (&ip[head..len], &asked[head..]);
        let mut summed = pseudo;
        summed.extend([0, 6]);
        summed.extend((tcp.len() as u16).to_be_bytes());
        summed.extend(tcp);
        assert_eq!(checksum(&summed), 0, "TCP's checksum");
        assert_eq!(tcp[..2], syn[2..4]);
        assert_eq!(tcp[2..4], syn[..2]);
        assert_eq!(be32(tcp, 8), be32(syn, 4).wrapping_add(1));
        assert_eq!(tcp[13], SYN | ACK);
        assert_eq!(usize::from(tcp[12] >> 4) * 4, tcp.len());
        assert!(
            frame.len() <= request.len(),
            "no longer than what it answers"
        );
        let asked_len = head + usize::from(syn[12] >> 4) * 4;
        assert!(len <= asked_len);
        assert!(at + 2 + len == frame.len() || frame.len() == 60);
        let mss = (tcp.len() == 24).then(|| {
            assert_eq!(tcp[20..22], [2, 4]);
            be16(tcp, 22)
        });
        assert!(tcp.len() == 24 || tcp.len() == 20);
        Self {
            seq: be32(tcp, 4),
            len,
            mss,
        }
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn to_own(source: &str) -> Packet {
    between(Packet::eth(), source)
}

fn between(frame: Packet, source: &str) -> Packet {
    let source: IpAddr = source.parse().unwrap();
    let own = if source.is_ipv6() {
        OWN6.into()
    } else {
        OWN4.into()
    };
    frame.ip(source, own)
}

/// A SYN as an operating system sends it.
fn syn(source: &str, port: u16) -> Packet {
    let options = [&MSS[..], &[4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]].concat();
    to_own(source)
        .tcp(40_000, port)
        .tcp_seq(7_000, 0)
        .tcp_options(&options, 64_240)
}

fn ack(source: &str, port: u16, cookie: u32) -> Packet {
    to_own(source)
        .tcp(40_000, port)
        .tcp_flags(ACK)
        .tcp_seq(7_001, cookie.wrapping_add(1))
}

#[test]
fn root_decoy_answers_are_right_for_every_header_size() {
    let trap = Trap::new();
    for hook in HOOKS {
        for peer in PEERS {
            for (vlan, frame) in [
                ("no tag", Packet::eth()),
                ("a tag", Packet::eth().vlan(5)),
                ("two tags", Packet::eth().qinq(6).vlan(5)),
                ("eight tags", (0..8).fold(Packet::eth(), |p, _| p.vlan(0))),
            ] {
                for words in 0..=10 {
                    let mut options = [1; 40];
                    options[..4].copy_from_slice(&MSS);
                    for padded in [false, true] {
                        let mut packet = between(frame.clone(), peer)
                            .tcp(40_000, 23)
                            .tcp_seq(u32::MAX, 0)
                            .tcp_options(&options[..words * 4], 8192);
                        if padded {
                            packet = packet.pad();
                        }
                        let name = format!("{peer}, {vlan}, {words} words of options");
                        let reply = trap.answered(hook, &name, &packet);
                        let v6 = peer.contains(':');
                        // The kernel's cookies know 1460 for IPv4, 1440 for IPv6.
                        let (least, mss) = if v6 { (60, 1440) } else { (40, 1460) };
                        if words == 0 {
                            assert_eq!((reply.len, reply.mss), (least, None), "{name}");
                        } else {
                            assert_eq!((reply.len, reply.mss), (least + 4, Some(mss)), "{name}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn root_decoy_proof_is_the_cookie_sent_back() {
    let trap = Trap::new();
    for hook in HOOKS {
        for peer in PEERS {
            trap.told();
            let reply = trap.answered(hook, "SYN", &syn(peer, 23));
            let told = trap.told();
            assert_eq!(told.len(), 1);
            assert_eq!((told[0].reason, told[0].scanner), (Reason::Decoy as u32, 0));

            // What the owner of a forged source would send, and guesses.
            let rst = ack(peer, 23, reply.seq).tcp_flags(RST);
            trap.passes(hook, "RST", &rst, Reason::Pass);
            let elsewhere = ack(peer, 1000, reply.seq);
            trap.passes(hook, "another port's", &elsewhere, Reason::Pass);
            let other = PEERS.map(|p| p.replace('7', "8"));
            let other = &other[usize::from(peer.contains(':'))];
            trap.passes(
                hook,
                "another peer's",
                &ack(other, 23, reply.seq),
                Reason::Pass,
            );
            // One guess a SYN, or somebody could guess on.
            let wrong = ack(peer, 23, reply.seq.wrapping_add(1 << 20));
            trap.passes(hook, "wrong cookie", &wrong, Reason::Pass);
            let proof = ack(peer, 23, reply.seq);
            trap.passes(hook, "the cookie, too late", &proof, Reason::Pass);
            assert_eq!(trap.told(), []);

            let reply = trap.answered(hook, "SYN again", &syn(peer, 23));
            trap.told();
            let proof = ack(peer, 23, reply.seq);
            trap.dropped(hook, "the cookie", &proof, Reason::DecoyHandshake);
            let told = trap.told();
            assert_eq!(told.len(), 1);
            let source = IpAddr::from(told[0].source).to_canonical();
            assert_eq!(source, peer.parse::<IpAddr>().unwrap());
            assert_eq!(told[0].reason, Reason::DecoyHandshake as u32);
            assert_eq!((told[0].protocol, told[0].port), (6, 23));
            // What it sends before the ban is in: nobody resets it, nor is it
            // another offence.
            trap.dropped(hook, "the rest", &proof.payload_len(10), Reason::Decoy);
            assert_eq!(trap.told(), []);
        }
    }
}

/// Tables that grow get another seed.
#[test]
fn root_decoy_proof_is_taken_after_the_tables_have_grown() {
    let mut trap = Trap::new();
    for (n, (hook, peer)) in (4..).zip(HOOKS.into_iter().flat_map(|h| PEERS.map(|p| (h, p)))) {
        let reply = trap.answered(hook, "SYN", &syn(peer, 23));
        let options = Options {
            seed: [n, 7_654_321, 555],
            ..Options::bans(Geometry::for_bans(BanCounts::each(400)))
        };
        trap.generation = Generation::create(n, &options, Some(&trap.generation)).unwrap();
        let proof = ack(peer, 23, reply.seq);
        trap.dropped(hook, "the cookie", &proof, Reason::DecoyHandshake);
    }
}

#[test]
fn root_decoy_leaves_the_rest_alone() {
    let trap = Trap::new();
    for hook in HOOKS {
        for peer in PEERS {
            let v6 = peer.contains(':');
            let allowed = if v6 { "2001:db8:a::1" } else { "198.51.100.65" };
            trap.passes(hook, "another port", &syn(peer, 22), Reason::Pass);
            trap.passes(hook, "allowed", &syn(allowed, 23), Reason::Allowed);
            let udp = to_own(allowed).udp(9, 161).payload_len(8);
            trap.passes(hook, "allowed, UDP", &udp, Reason::Allowed);
            let elsewhere: IpAddr = if v6 {
                "2001:db8::2".parse().unwrap()
            } else {
                "192.0.2.2".parse().unwrap()
            };
            let forwarded = Packet::eth().ip(peer.parse().unwrap(), elsewhere);
            let forwarded = forwarded.tcp(40_000, 23);
            trap.passes(hook, "another host's", &forwarded, Reason::Pass);
            // G6: connections that this host opened from a decoy port.
            let own = |flags| to_own(peer).tcp(80, 1_500).tcp_flags(flags).tcp_seq(1, 2);
            trap.passes(hook, "our SYN's answer", &own(SYN | ACK), Reason::Pass);
            trap.passes(hook, "our connection's data", &own(ACK), Reason::Pass);
            trap.passes(hook, "our connection's end", &own(ACK | 1), Reason::Pass);
            trap.passes(
                hook,
                "our connection's reset",
                &own(RST | ACK),
                Reason::Pass,
            );
            trap.passes(hook, "no flags", &own(0), Reason::Pass);
            trap.passes(hook, "SYN and FIN", &own(SYN | 1), Reason::Pass);
            let first = to_own(peer).fragment(0, true).tcp(40_000, 23);
            trap.passes(hook, "a first fragment", &first, Reason::Pass);
            let later = to_own(peer).fragment(8, false).protocol(6).payload_len(40);
            trap.passes(hook, "a later fragment", &later, Reason::Pass);
            let cut = to_own(peer).protocol(proto::TCP).payload_len(10);
            trap.passes(hook, "a cut header", &cut, Reason::Pass);

            let udp = to_own(peer).udp(40_000, 161).payload_len(20);
            trap.dropped(hook, "UDP", &udp, Reason::Decoy);
            let bad = syn(peer, 23).bad_checksum();
            trap.dropped(hook, "a bad checksum", &bad, Reason::Decoy);
            let data = syn(peer, 23).payload_len(5);
            trap.dropped(hook, "a SYN with data", &data, Reason::Decoy);
        }
        let from = |source: &str| syn(source, 23);
        for nobody in ["0.0.0.1", "::5", "::ffff:198.51.100.7"] {
            trap.dropped(hook, nobody, &from(nobody), Reason::InvalidSource);
        }
        for nobody in ["127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            trap.passes(hook, nobody, &from(nobody), Reason::Pass);
        }
        for nobody in ["fe80::1", "ff02::1", "::1"] {
            trap.passes(hook, nobody, &from(nobody), Reason::Pass);
        }
        let options = to_own(PEERS[0]).options(&[1; 4]).tcp(40_000, 23);
        trap.passes(hook, "IPv4 options", &options, Reason::Pass);
        let extension = to_own(PEERS[1]).destination().tcp(40_000, 23);
        trap.passes(hook, "an extension header", &extension, Reason::Pass);
        let dhcp = to_own(PEERS[0]).udp(67, 68);
        trap.passes(hook, "DHCP", &dhcp, Reason::Essential);
        let dhcp = to_own(PEERS[1]).udp(547, 546);
        trap.passes(hook, "DHCPv6", &dhcp, Reason::Essential);
    }
}

#[test]
fn root_decoy_tells_scanners() {
    let trap = Trap::new();
    let wscale = [&MSS[..], &[1, 3, 3, 7]].concat();
    for hook in HOOKS {
        for (options, window, scanner) in [
            (&[][..], 1024, Some(Scanner::Masscan)),
            (&[], 65_535, Some(Scanner::Zmap)),
            (&[], 8192, Some(Scanner::Bare)),
            (&MSS, 1024, Some(Scanner::Nmap)),
            (&MSS, 64_240, None),
            (&wscale, 1024, None),
        ] {
            trap.told();
            let packet = to_own(PEERS[0]).tcp(1, 23).tcp_options(options, window);
            trap.answered(hook, "a SYN", &packet);
            let told = trap.told();
            assert_eq!(told.len(), 1);
            assert_eq!(Scanner::from_number(told[0].scanner), scanner);
        }
    }
}

#[test]
fn root_decoy_observed_is_passed() {
    let trap = Trap::new();
    trap.generation.table.set_observe(true);
    for hook in HOOKS {
        for peer in PEERS {
            trap.passes(hook, "SYN", &syn(peer, 23), Reason::Observed);
            let udp = to_own(peer).udp(40_000, 161);
            trap.passes(hook, "UDP", &udp, Reason::Observed);
        }
    }
}

/// Answers go to whoever the source field names: there is a limit, and it is
/// counted.
#[test]
fn root_decoy_answers_are_limited() {
    let frame = syn(PEERS[0], 23).build();
    for hook in HOOKS {
        let trap = Trap::new();
        let before = trap.generation.decoys.counts().unwrap();
        const SENT: u64 = 100_000;
        let begin = std::time::Instant::now();
        let mut answered = 0;
        for _ in 0..SENT {
            answered += u64::from(trap.run(hook, &frame).verdict == sent(hook));
        }
        let after = trap.generation.decoys.counts().unwrap();
        assert_eq!(after.answered - before.answered, answered);
        assert_eq!(after.silent - before.silent, SENT - answered);
        // A window is 2^8 jiffies, 0.25 s at the fastest clock; each CPU that
        // the test runs on has its own.
        let windows = 2 + begin.elapsed().as_millis() as u64 / 250;
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        const { assert!(DECOY_ANSWERS == 4096, "as promised") };
        let most = u64::from(DECOY_ANSWERS);
        assert!(answered <= most * windows * cpus, "{answered} answered");
        assert!(answered >= most, "{answered} answered");
    }
}

/// Who sends SYNs and guesses in a victim's name has so many guesses a second, of
/// however many processors they come through.
#[test]
fn root_decoy_guesses_are_limited_for_the_whole_host() {
    const EACH: u32 = 20_000;
    for hook in HOOKS {
        let trap = Trap::new();
        let generation = &trap.generation;
        let run = |packet: &Packet| {
            prog_test_run::packet(generation.program(hook).unwrap(), &packet.build(), 1)
        };
        let begin = std::time::Instant::now();
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        std::thread::scope(|scope| {
            for thread in 0..cpus.max(2) {
                let run = &run;
                scope.spawn(move || {
                    let peer = PEERS[thread as usize % 2];
                    for guess in 0..EACH {
                        run(&syn(peer, 23)).unwrap();
                        let answer = run(&ack(peer, 23, guess << 8)).unwrap();
                        assert_eq!(answer.verdict, pass(hook));
                    }
                });
            }
        });
        let wrong = generation.decoys.counts().unwrap().wrong;
        let seconds = 2 + begin.elapsed().as_secs();
        println!("{}: {wrong} looked at within {seconds} s", hook.name());
        assert!(wrong <= 8 * seconds, "{wrong} in {seconds} s");
        assert!(wrong >= 8, "{wrong}");
        // A proof is looked at again in the next second.
        let proof = (0..100).find(|_| {
            std::thread::sleep(Duration::from_millis(100));
            let frame = syn(PEERS[0], 23).build();
            let answer = trap.run(hook, &frame);
            if answer.verdict != sent(hook) {
                return false; // above the limit of answers
            }
            let reply = Reply::read(&answer.packet, &frame);
            let proof = run(&ack(PEERS[0], 23, reply.seq)).unwrap();
            proof.verdict == drop_word(hook)
        });
        assert!(proof.is_some(), "no proof counts any more");
    }
}

/// Cut anywhere, a frame does no harm; and none is answered that is not whole.
#[test]
fn root_decoy_cut_at_every_byte() {
    let trap = Trap::new();
    for hook in HOOKS {
        for peer in PEERS {
            let whole = syn(peer, 23).build();
            let least = if peer.contains(':') { 54 } else { 34 };
            for len in least..whole.len() {
                let verdict = trap.run(hook, &whole[..len]).verdict;
                assert_ne!(verdict, sent(hook), "cut at {len} on {}", hook.name());
            }
            trap.answered(hook, "whole", &syn(peer, 23));
        }
    }
}

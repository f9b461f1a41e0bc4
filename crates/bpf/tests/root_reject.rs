//! Bans that reject, by BPF_PROG_RUN, on XDP and tc, IPv4 and IPv6: what is
//! answered and how, what never is, and how often. Replies are read by the
//! reference decoder of `weir-testkit` and their checksums computed anew. Root:
//! loads BPF.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Key, Options, PrefixBan, PrefixBans, Slot,
    abi::{REJECT_BURST, REJECT_RATE},
    attachment::Hook,
    events::EventReader,
    prog_test_run, small_maps,
    table::NEVER,
    tables::{POLICY_REJECT, POLICY_SCOPED},
};
use weir_core::{Action, PortSet, Prefix, Reason};
use weir_testkit::{
    decode::{L3, Transport, decode},
    packet::{Packet, checksum, proto},
};

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const HOST4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);
/// Banned so that it rejects, wholly.
const LOUD: [&str; 2] = ["192.0.2.7", "2001:db8:1::7"];
const RATE: u64 = REJECT_RATE as u64;
const BURST: u64 = REJECT_BURST as u64;
// As promised, whatever the header says.
const _: () = assert!(RATE == 1000 && BURST == 250);

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

struct Path {
    generation: Generation,
    events: EventReader,
    prefix_bans: PrefixBans,
}

impl Path {
    fn new() -> Self {
        let options = Options {
            seed: [11, 22, 33],
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        generation.answer(AnswerProgram::Reject).unwrap();
        let events = EventReader::new(&generation.events).unwrap();
        let prefix_bans = PrefixBans::of(&generation.prefix_bans).unwrap();
        let mut path = Self {
            generation,
            events,
            prefix_bans,
        };
        use Action::{Drop, Reject};
        for (number, subject, scope, action) in [
            (1, "192.0.2.7", "all", Reject),
            (1, "2001:db8:1::/64", "all", Reject),
            (1, "198.51.100.0/24", "all", Reject),
            (2, "192.0.2.8", "all", Drop),
            (2, "2001:db8:2::8", "all", Drop),
            (3, "192.0.2.9", "22/tcp", Reject),
            (3, "2001:db8:2::9", "22/tcp", Reject),
            // A jail that drops and one that rejects.
            (4, "192.0.2.9", "25/tcp", Drop),
            (4, "2001:db8:2::9", "25/tcp", Drop),
            (1, "10.0.0.0/9", "all", Reject),
            (1, "2001:db8:8000::/33", "all", Reject),
            (3, "192.0.2.10", "22/tcp", Reject),
            (2, "192.0.2.10", "all", Drop),
        ] {
            path.ban(number, subject, scope, action);
        }
        path.generation
            .table
            .set_prefix_bans(path.prefix_bans.families());
        let allow: Vec<Prefix> = ["198.51.100.64/26", "2001:db8:1:0:8::/80"]
            .map(|p| p.parse().unwrap())
            .into();
        let allow = allow.into_iter().collect();
        path.generation.allow.write(&allow).unwrap();
        path
    }

    fn ban(&mut self, number: u16, subject: &str, scope: &str, action: Action) {
        let prefix: Prefix = subject.parse().unwrap();
        let scope: PortSet = scope.parse().unwrap();
        let policies = &self.generation.policies;
        small_maps::write_policy(policies, number.into(), &scope, action, "test").unwrap();
        let scoped = if scope.is_all() { 0 } else { POLICY_SCOPED };
        let reject = match action {
            Action::Drop | Action::Notify => 0,
            Action::Reject => POLICY_REJECT,
        };
        let policy = number | scoped | reject;
        let own_length = prefix.is_host() || matches!(prefix.bits(), 24 | 64);
        match Key::of(prefix).filter(|_| own_length) {
            Some(key) => {
                self.generation.table.insert(Slot {
                    key,
                    policy,
                    expiry: NEVER,
                });
            }
            None => {
                self.prefix_bans
                    .insert(PrefixBan {
                        prefix,
                        policy,
                        expiry: NEVER,
                    })
                    .unwrap();
            }
        }
    }

    fn counters(&self) -> Vec<(u64, u64)> {
        small_maps::read_counters(&self.generation.counters).unwrap()
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
        let answer = prog_test_run::packet(self.generation.program(hook).unwrap(), frame, 1)
            .expect("the program runs");
        let after = self.counters();
        for r in Reason::ALL {
            let n = r as usize;
            let counted = (after[n].0 - before[n].0, after[n].1 - before[n].1);
            let wanted = if r == reason {
                (1, frame.len() as u64)
            } else {
                (0, 0)
            };
            assert_eq!(counted, wanted, "{name} on {}: {r}", hook.name());
        }
        answer
    }

    #[track_caller]
    fn silent(&self, hook: Hook, name: &str, frame: &[u8], reason: Reason) {
        let answer = self.leaves(hook, name, frame, reason);
        let drop = if hook == Hook::Tcx { 2 } else { 1 };
        assert_eq!(answer.verdict, drop, "{name} on {}", hook.name());
    }

    #[track_caller]
    fn answered(&self, hook: Hook, name: &str, frame: &[u8]) -> Reply {
        // What one answer takes from the bucket.
        thread::sleep(Duration::from_micros(1_000_000 / RATE));
        let answer = self.leaves(hook, name, frame, Reason::Rejected);
        let sent = if hook == Hook::Tcx { 7 } else { 3 };
        assert_eq!(answer.verdict, sent, "{name} on {}", hook.name());
        Reply::read(&answer.packet, frame)
    }
}

/// What came back, checked for all that any reply must be.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Reset {
        seq: u32,
        ack: Option<u32>,
    },
    /// Bytes of the request that it quotes.
    Prohibited(usize),
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Offset of the IP header.
fn l3_of(frame: &[u8]) -> usize {
    let mut at = 12;
    while matches!(be16(frame, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    at + 2
}

impl Reply {
    #[track_caller]
    fn read(frame: &[u8], request: &[u8]) -> Self {
        assert_eq!(frame[..6], request[6..12], "to whom it came from");
        assert_eq!(frame[6..12], request[..6]);
        let l3 = l3_of(request);
        assert_eq!(frame[12..l3], request[12..l3], "tags and type stay");
        assert!(frame.len() <= request.len());
        let (ip, asked) = (&frame[l3..], &request[l3..]);
        let v6 = ip[0] >> 4 == 6;
        let (head, len, asked_len, pseudo) = if v6 {
            assert_eq!((be32(ip, 0), ip[7]), (6 << 28, 64));
            assert_eq!(ip[8..24], asked[24..40]);
            assert_eq!(ip[24..40], asked[8..24]);
            let len = |ip: &[u8]| 40 + usize::from(be16(ip, 4));
            (40, len(ip), len(asked), ip[8..40].to_vec())
        } else {
            assert_eq!((ip[0], ip[6], ip[8]), (0x45, 0x40, 64));
            assert_eq!(checksum(&ip[..20]), 0, "the header's checksum");
            assert_eq!(ip[12..16], asked[16..20]);
            assert_eq!(ip[16..20], asked[12..16]);
            let len = |ip: &[u8]| usize::from(be16(ip, 2));
            (20, len(ip), len(asked), ip[12..20].to_vec())
        };
        assert!(len <= asked_len, "no longer than what it answers");
        assert!(l3 + len == frame.len() || frame.len() <= 60);
        let body = &ip[head..len];
        let decoded = decode(&frame[..l3 + len], 0);
        let host = if v6 { L3::V6(HOST6) } else { L3::V4(HOST4) };
        assert_eq!(decoded.l3, host);
        let (protocol, Transport::Ports { src, dst, .. }) =
            (ip[if v6 { 6 } else { 9 }], decode(request, 0).transport)
        else {
            return Self::unreachable(ip[if v6 { 6 } else { 9 }], v6, body, asked, pseudo);
        };
        if protocol != proto::TCP {
            return Self::unreachable(protocol, v6, body, asked, pseudo);
        }
        assert_eq!(
            decoded.transport,
            Transport::Ports {
                proto: proto::TCP,
                src: dst,
                dst: src
            }
        );
        assert_eq!(sum(&pseudo, protocol, body), 0, "TCP's checksum");
        assert_eq!((body.len(), body[12], be16(body, 14)), (20, 0x50, 0));
        let ack = match body[13] {
            RST => {
                assert_eq!(be32(body, 8), 0);
                None
            }
            flags => {
                assert_eq!(flags, RST | ACK);
                Some(be32(body, 8))
            }
        };
        Self::Reset {
            seq: be32(body, 4),
            ack,
        }
    }

    #[track_caller]
    fn unreachable(protocol: u8, v6: bool, body: &[u8], asked: &[u8], pseudo: Vec<u8>) -> Self {
        if v6 {
            assert_eq!((protocol, body[0], body[1]), (proto::ICMPV6, 1, 1));
            assert_eq!(sum(&pseudo, protocol, body), 0, "ICMPv6's checksum");
        } else {
            assert_eq!((protocol, body[0], body[1]), (proto::ICMP, 3, 13));
            assert_eq!(checksum(body), 0, "ICMP's checksum");
        }
        let quoted = &body[8..];
        assert_eq!(quoted, &asked[..quoted.len()], "what it is about");
        Self::Prohibited(quoted.len())
    }
}

fn sum(pseudo: &[u8], protocol: u8, body: &[u8]) -> u16 {
    let mut summed = pseudo.to_vec();
    summed.extend([0, protocol]);
    summed.extend((body.len() as u16).to_be_bytes());
    summed.extend(body);
    checksum(&summed)
}

fn host(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => HOST4.into(),
        IpAddr::V6(_) => HOST6.into(),
    }
}

fn from(source: &str) -> Packet {
    between(Packet::eth(), source)
}

fn between(frame: Packet, source: &str) -> Packet {
    let source: IpAddr = source.parse().unwrap();
    frame.ip(source, host(source))
}

fn icmp(packet: Packet, v6: bool, kinds: [u8; 2]) -> Packet {
    match v6 {
        true => packet.icmp6(kinds[1], 0),
        false => packet.icmp(kinds[0], 0),
    }
}

/// The checksum's field as a sender on the same machine leaves it: the sum of
/// the pseudo-header, the rest a promise.
fn promised(mut frame: Vec<u8>) -> Vec<u8> {
    let l3 = l3_of(&frame);
    let v6 = frame[l3] >> 4 == 6;
    let (head, protocol) = if v6 {
        (40, frame[l3 + 6])
    } else {
        (20, frame[l3 + 9])
    };
    let addresses = if v6 {
        l3 + 8..l3 + 40
    } else {
        l3 + 12..l3 + 20
    };
    let len = match v6 {
        true => be16(&frame, l3 + 4),
        false => be16(&frame, l3 + 2) - 20,
    };
    let mut summed = frame[addresses].to_vec();
    summed.extend([0, protocol]);
    summed.extend(len.to_be_bytes());
    let field = l3 + head + if protocol == proto::TCP { 16 } else { 6 };
    frame[field..field + 2].copy_from_slice(&(!checksum(&summed)).to_be_bytes());
    frame
}

#[test]
fn root_reject_tcp_is_reset_as_rfc_9293_says() {
    let path = Path::new();
    let frames = [
        ("no tag", Packet::eth()),
        ("a tag", Packet::eth().vlan(5)),
        ("two tags", Packet::eth().qinq(6).vlan(5)),
    ];
    for hook in HOOKS {
        for source in LOUD {
            for (tags, frame) in &frames {
                // Flags, payload, and what the reset says.
                for (flags, payload, seq, ack) in [
                    (SYN, 0, 0, Some(1001)),
                    (SYN, 7, 0, Some(1008)),
                    (SYN | FIN, 0, 0, Some(1002)),
                    (FIN, 1, 0, Some(1002)),
                    (0, 0, 0, Some(1000)),
                    (PSH, 1400, 0, Some(2400)),
                    (ACK, 0, 77, None),
                    (SYN | ACK, 0, 77, None),
                    (ACK | FIN, 3, 77, None),
                    (ACK | PSH, 1461, 77, None),
                ] {
                    for options in [0, 4, 40] {
                        let packet = between(frame.clone(), source)
                            .tcp(40_000, 22)
                            .tcp_options(&vec![1; options], 1000)
                            .tcp_flags(flags)
                            .tcp_seq(1000, 77)
                            .payload_len(payload);
                        let name = format!("{source}, {tags}, flags {flags}, {payload} bytes");
                        let whole = packet.build();
                        let reply = path.answered(hook, &name, &whole);
                        assert_eq!(reply, Reply::Reset { seq, ack }, "{name}");
                        let name = format!("{name}, padded");
                        let padded = path.answered(hook, &name, &packet.pad().build());
                        assert_eq!(padded, Reply::Reset { seq, ack }, "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn root_reject_sequence_numbers_wrap() {
    let path = Path::new();
    for hook in HOOKS {
        for source in LOUD {
            let syn = from(source).tcp(40_000, 22).tcp_seq(u32::MAX, 0);
            let reply = path.answered(hook, "wrap", &syn.build());
            let wrapped = Reply::Reset {
                seq: 0,
                ack: Some(0),
            };
            assert_eq!(reply, wrapped);
        }
    }
}

#[test]
fn root_reject_others_are_told_that_it_is_prohibited() {
    let path = Path::new();
    for hook in HOOKS {
        for source in LOUD {
            let v6 = source.contains(':');
            let head = if v6 { 40 } else { 20 };
            let echo = icmp(from(source), v6, [8, 128]);
            for (name, packet, header) in [
                ("UDP", from(source).udp(1000, 53), 8),
                ("UDP-Lite", from(source).udplite(1000, 53), 8),
                ("SCTP", from(source).sctp(1000, 53), 12),
                ("GRE", from(source).protocol(47), 0),
                ("echo request", echo, 8),
            ] {
                for payload in [48, 49, 50, 51, 100, 511, 512, 513, 540, 1400] {
                    let name = format!("{source}, {name}, {payload} bytes");
                    // GRE's own header is payload here.
                    let own = if header == 0 { 8 } else { 0 };
                    let whole = packet.clone().payload_len(own + payload).build();
                    // As much as fits in what was asked, whole words, 512 bytes.
                    let quoted = (header + own + payload - 8) & !3;
                    let reply = path.answered(hook, &name, &whole);
                    assert_eq!(reply, Reply::Prohibited(quoted.min(512)), "{name}");
                }
            }
            // It must have room for the ports, without being the longer one.
            let needed = head + 8;
            let short = from(source).udp(1000, 53).payload_len(needed - 1);
            path.silent(hook, "short", &short.build(), Reason::RejectedSilent);
            path.silent(hook, "short", &short.pad().build(), Reason::RejectedSilent);
            let enough = from(source).udp(1000, 53).payload_len(needed);
            let reply = path.answered(hook, "long enough", &enough.build());
            assert_eq!(reply, Reply::Prohibited(needed));
        }
        // Without a checksum, which IPv4 allows.
        let mut without = from(LOUD[0]).udp(1000, 53).payload_len(40).build();
        without[40..42].copy_from_slice(&[0; 2]);
        path.answered(hook, "UDP without checksum", &without);
        let mut without = from(LOUD[1]).udp(1000, 53).payload_len(60).build();
        without[60..62].copy_from_slice(&[0; 2]);
        path.silent(hook, "no checksum", &without, Reason::RejectedSilent);
    }
}

#[test]
fn root_reject_behind_options_and_extension_headers() {
    let path = Path::new();
    let [v4, v6] = LOUD;
    let reset = Reply::Reset {
        seq: 0,
        ack: Some(2),
    };
    for hook in HOOKS {
        for (name, packet) in [
            ("options", from(v4).options(&[1; 12])),
            ("most options", from(v4).options(&[1; 40])),
            ("hop by hop", from(v6).hop_by_hop()),
            ("routing, destination", from(v6).routing().destination()),
            ("authentication", from(v6).auth()),
        ] {
            let frame = packet.clone().tcp(40_000, 22).build();
            assert_eq!(path.answered(hook, name, &frame), reset, "{name}");
            let frame = packet.udp(1000, 53).payload_len(200).build();
            let reply = path.answered(hook, name, &frame);
            assert!(matches!(reply, Reply::Prohibited(_)), "{name}: {reply:?}");
        }
    }
}

#[test]
fn root_reject_never() {
    let path = Path::new();
    for hook in HOOKS {
        for source in LOUD {
            let v6 = source.contains(':');
            let tcp = |packet: Packet| packet.tcp(40_000, 22);
            let udp = |packet: Packet| packet.udp(1000, 53).payload_len(200);
            let long = |packet: Packet| packet.payload_len(200);
            let source_addr: IpAddr = source.parse().unwrap();
            let multicast: IpAddr = match v6 {
                false => Ipv4Addr::new(224, 0, 0, 251).into(),
                true => "ff02::fb".parse().unwrap(),
            };
            let many = |mac| Packet::eth_between([2, 0, 0, 0, 0, 1], mac);
            let mut cases = vec![
                ("a reset", tcp(from(source)).tcp_flags(RST)),
                ("a reset", tcp(from(source)).tcp_flags(RST | ACK)),
                ("wrong checksum", tcp(from(source)).bad_checksum()),
                ("wrong checksum", udp(from(source)).bad_checksum()),
                (
                    "wrong checksum",
                    long(icmp(from(source), v6, [8, 128])).bad_checksum(),
                ),
                ("to many", udp(Packet::eth().ip(source_addr, multicast))),
                ("to many", tcp(Packet::eth().ip(source_addr, multicast))),
                ("broadcast", tcp(between(many([0xff; 6]), source))),
                (
                    "multicast",
                    udp(between(many([1, 0, 0x5e, 0, 0, 251]), source)),
                ),
            ];
            // Errors, redirects, echo replies, and what nobody knows.
            for kind in [0, 3, 4, 5, 11, 12, 200] {
                let packet = from(source);
                let packet = if v6 {
                    packet.icmp6([1, 2, 3, 4, 129, 137, 200][kind as usize % 7], 0)
                } else {
                    packet.icmp(kind, 0)
                };
                cases.push(("ICMP", long(packet)));
            }
            for (offset, more) in [(0, true), (185, true), (185, false)] {
                let fragment = || from(source).fragment(offset, more);
                cases.push(("a fragment", tcp(fragment())));
                cases.push(("a fragment", udp(fragment())));
            }
            if v6 {
                // Even one that is whole.
                cases.push(("a fragment", tcp(from(source).fragment(0, false))));
            } else {
                cases.push(("limited broadcast", {
                    udp(Packet::eth().ip(source_addr, Ipv4Addr::BROADCAST.into()))
                }));
            }
            for (name, packet) in cases {
                let name = format!("{source}: {name}");
                path.silent(hook, &name, &packet.build(), Reason::RejectedSilent);
            }
        }
        let mut wrong = from(LOUD[0]).tcp(40_000, 22).build();
        wrong[24] ^= 1; // the header's own checksum
        path.silent(hook, "header", &wrong, Reason::RejectedSilent);
    }
}

#[test]
fn root_reject_is_what_the_ban_says() {
    let path = Path::new();
    let tcp = |source: &str, port| from(source).tcp(40_000, port).build();
    for hook in HOOKS {
        for source in ["198.51.100.9", "10.1.2.3", "2001:db8:8000:1::1"] {
            path.answered(hook, source, &tcp(source, 22));
        }
        for source in ["192.0.2.8", "2001:db8:2::8"] {
            path.silent(hook, source, &tcp(source, 22), Reason::BannedAll);
        }
        for source in ["192.0.2.9", "2001:db8:2::9"] {
            path.answered(hook, source, &tcp(source, 22));
            path.silent(hook, source, &tcp(source, 25), Reason::BannedScope);
            path.leaves(hook, source, &tcp(source, 80), Reason::OtherPort);
        }
        // All ports drop, and this one rejects.
        path.answered(hook, "both", &tcp("192.0.2.10", 22));
        path.silent(hook, "both", &tcp("192.0.2.10", 80), Reason::BannedAll);
        for source in ["198.51.100.65", "2001:db8:1:0:8::1"] {
            path.leaves(hook, source, &tcp(source, 22), Reason::Allowed);
        }
        path.leaves(hook, "nobody", &tcp("192.0.2.11", 22), Reason::Pass);
        path.generation.table.set_observe(true);
        path.leaves(hook, "observed", &tcp(LOUD[0], 22), Reason::Observed);
        path.generation.table.set_observe(false);
        path.events.read(Duration::ZERO).unwrap();
        path.answered(hook, "told", &tcp(LOUD[0], 22));
        let told = path.events.read(Duration::ZERO).unwrap();
        if let [event] = &told[..] {
            assert_eq!(event.reason, Reason::Rejected as u32);
            assert_eq!((event.protocol, event.port), (proto::TCP, 22));
            assert_eq!(event.source.to_ipv4_mapped().unwrap().to_string(), LOUD[0]);
        } else {
            panic!("{told:?}");
        }
    }
}

/// A reply to a promise is right if somebody keeps it in the reply's frame, and
/// if nobody does.
#[test]
fn root_reject_answers_where_the_checksum_is_a_promise() {
    let path = Path::new();
    for hook in HOOKS {
        for source in LOUD {
            let (l3, head) = (14, if source.contains(':') { 40 } else { 20 });
            for (name, packet, offset) in [
                ("TCP", from(source).tcp(40_000, 22), 16),
                ("TCP", from(source).tcp(40_000, 22).payload_len(1001), 16),
                ("UDP", from(source).udp(1000, 53).payload_len(200), 6),
                ("UDP", from(source).udp(1000, 53).payload_len(301), 6),
            ] {
                let name = format!("{source}: {name}, promised");
                let request = promised(packet.build());
                thread::sleep(Duration::from_micros(1_000_000 / RATE));
                let answer = path.leaves(hook, &name, &request, Reason::Rejected);
                let mut kept = answer.packet;
                Reply::read_promised(&kept, &request);
                let (start, end) = (l3 + head, kept.len().min(l3 + reply_len(&kept)));
                let field = start + offset;
                let sum = checksum(&kept[start..end]);
                kept[field..field + 2].copy_from_slice(&sum.to_be_bytes());
                Reply::read_promised(&kept, &request);
            }
        }
        // There the promise would be kept at another place.
        let other = from(LOUD[0]).options(&[1; 4]).tcp(40_000, 22).build();
        let mut other = other;
        let mut summed = other[26..34].to_vec();
        summed.extend([0, proto::TCP, 0, 20]);
        other[38 + 16..38 + 18].copy_from_slice(&(!checksum(&summed)).to_be_bytes());
        path.silent(hook, "options, promised", &other, Reason::RejectedSilent);
    }
}

fn reply_len(frame: &[u8]) -> usize {
    match frame[14] >> 4 {
        4 => usize::from(be16(frame, 16)),
        _ => 40 + usize::from(be16(frame, 18)),
    }
}

impl Reply {
    /// As [`Reply::read`], where the urgent pointer may be anything.
    #[track_caller]
    fn read_promised(frame: &[u8], request: &[u8]) {
        match Self::read(frame, request) {
            Self::Reset { seq, .. } => assert_eq!(seq, 0),
            Self::Prohibited(quoted) => assert!(quoted >= 28),
        }
    }
}

#[test]
fn root_reject_cut_at_every_byte() {
    let path = Path::new();
    for hook in HOOKS {
        for source in LOUD {
            for whole in [
                from(source).tcp(40_000, 22).payload_len(20).build(),
                from(source).udp(1000, 53).payload_len(100).build(),
            ] {
                let least = if source.contains(':') { 54 } else { 34 };
                for len in least..whole.len() {
                    let name = format!("{source} cut at {len}");
                    path.silent(hook, &name, &whole[..len], Reason::RejectedSilent);
                }
                path.answered(hook, "whole", &whole);
            }
        }
    }
}

#[test]
fn root_reject_holds_its_rate() {
    // Each processor has a bucket of its own.
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &cpus).expect("the thread is pinned");
    for hook in HOOKS {
        let path = Path::new();
        let frame = from(LOUD[0]).tcp(40_000, 22).build();
        let before = path.counters();
        let begin = Instant::now();
        let runs = 20_000;
        for _ in 0..runs {
            let answer =
                prog_test_run::packet(path.generation.program(hook).unwrap(), &frame, 1).unwrap();
            assert_ne!(answer.verdict, u32::MAX, "a banned packet passed");
        }
        let took = begin.elapsed();
        let after = path.counters();
        let counted = |r: Reason| after[r as usize].0 - before[r as usize].0;
        let (answered, silent) = (counted(Reason::Rejected), counted(Reason::RejectedSilent));
        assert_eq!(answered + silent, runs);
        let most = BURST + RATE * (took.as_millis() as u64 + 10) / 1000;
        assert!((BURST..=most).contains(&answered), "{answered} in {took:?}");
        assert!(silent > 0);

        // Nor do tables that have grown give anybody a burst anew.
        let options = Options {
            seed: [44, 55, 66],
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(400)))
        };
        let next = Generation::create(2, &options, Some(&path.generation)).unwrap();
        path.generation.table.for_each(0, |slot| {
            next.table.insert(slot);
        });
        let run = |generation: &Generation, times: u64| {
            let program = generation.program(hook).unwrap();
            for _ in 0..times {
                prog_test_run::packet(program, &frame, 1).unwrap();
            }
        };
        next.program(hook).unwrap();
        run(&path.generation, 5000);
        // Whatever has come into the bucket since, where this waited for the processor.
        let begin = Instant::now();
        run(&path.generation, BURST);
        let before = path.counters();
        run(&next, BURST);
        let took = begin.elapsed().as_millis() as u64;
        let answered =
            path.counters()[Reason::Rejected as usize].0 - before[Reason::Rejected as usize].0;
        let most = RATE * (took + 10) / 1000;
        assert!(answered <= most, "{answered} in {took} ms");
    }
}

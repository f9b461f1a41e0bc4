//! Reals beyond a router by BPF_PROG_RUN, IPv4 and IPv6 in IPv4, IPv6 and GUE: which outer
//! packet leaves on XDP and tc, what is said of one that is too big, and what a real takes
//! out of it again. Root: loads BPF.

use std::{collections::BTreeSet, net::IpAddr};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    attachment::Hook,
    balance::{MAX_REALS, MAX_SERVICES, Real, SLOTS, Tunnel, VirtualService, real_id},
    decap::{Decap, DecapConfig, DecapCounts, GUE_PORT},
    prog_test_run, small_maps,
};
use weir_core::{Protocol, Reason};
use weir_testkit::packet::{Packet, checksum};

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];
const CLIENT: [&str; 2] = ["203.0.113.7", "2001:db8:c::7"];
/// Addresses of outer headers: the balancer's and the real's, of each family.
const OUTER: [[&str; 2]; 2] = [["10.1.0.1", "10.2.0.11"], ["fd01::1", "fd02::11"]];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];
const MTU: u32 = 1500;
const ETH: usize = 14;
const IP: [usize; 2] = [20, 40];
const ETHERTYPE: [[u8; 2]; 2] = [[8, 0], [0x86, 0xdd]];
/// IPv4 and IPv6 as what is in a packet.
const INNER: [u8; 2] = [4, 41];
const QUOTE: usize = 512;
const SYN: u8 = 2;

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn bytes(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn packet(family: usize) -> Packet {
    Packet::eth().ip(addr(CLIENT[family]), addr(VIP[family]))
}

/// A way to the real: family of the outer header, and GUE or not.
const WAYS: [(usize, Option<u16>); 4] = [
    (0, None),
    (1, None),
    (0, Some(GUE_PORT)),
    (1, Some(GUE_PORT)),
];

struct Path {
    generation: Generation,
    mac: [u8; 6],
    /// The number of the real.
    real: u16,
}

impl Path {
    fn new() -> Self {
        Self::with_number(0, 0)
    }

    /// Of a real with this number, and services behind so many others.
    fn with_number(real: u16, others: usize) -> Self {
        let options = Options {
            v4_length: 24,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        generation.answer(AnswerProgram::Balance).unwrap();
        let frame = packet(0).tcp(4000, 80).build();
        let services = VIP.iter().flat_map(|vip| {
            [(Protocol::Tcp, 80), (Protocol::Udp, 443)].map(|(protocol, port)| VirtualService {
                addr: addr(vip),
                protocol,
                port: Some(port),
                pool: 0,
            })
        });
        let path = Self {
            mac: frame[..6].try_into().unwrap(),
            real,
            generation,
        };
        let balancer = &path.generation.balancer;
        balancer.write_ring(0, &vec![Some(real); SLOTS]).unwrap();
        let others = (0..others).map(|n| VirtualService {
            addr: IpAddr::from([10, 1, (n >> 8) as u8, n as u8]),
            protocol: Protocol::Tcp,
            port: Some(80),
            pool: 0,
        });
        balancer
            .write_services(&others.chain(services).collect::<Vec<_>>())
            .unwrap();
        let features = path.generation.port_features();
        path.generation.table.set_port_features(features);
        path
    }

    fn lead(&self, (family, gue_port): (usize, Option<u16>), mtu: u32) -> Tunnel {
        let [source, dest] = OUTER[family].map(addr);
        let tunnel = Tunnel {
            source,
            dest,
            mtu,
            gue_port,
        };
        let real = Real {
            id: real_id("web", dest),
            dest: ROUTER,
            source: self.mac,
            // BPF_PROG_RUN's frames come in by the loopback device.
            ifindex: 1,
            vlan: 0,
            tunnel: Some(tunnel),
            drains: false,
        };
        let balancer = &self.generation.balancer;
        balancer.write_real(self.real.into(), Some(real)).unwrap();
        tunnel
    }

    /// Verdict and frame; it is counted under this reason and no other.
    #[track_caller]
    fn run(&self, hook: Hook, frame: &[u8], reason: Reason) -> (u32, Vec<u8>) {
        let read = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = read();
        let program = self.generation.program(hook).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).expect("the program runs");
        let after = read();
        for r in Reason::ALL {
            let counted = after[r as usize].0 - before[r as usize].0;
            assert_eq!(counted, u64::from(r == reason), "{r} on {}", hook.name());
        }
        (answer.verdict, answer.packet)
    }

    #[track_caller]
    fn sent(&self, hook: Hook, frame: &[u8], reason: Reason) -> Vec<u8> {
        let (verdict, sent) = self.run(hook, frame, reason);
        // XDP_TX, TC_ACT_REDIRECT
        let expected = if hook == Hook::Tcx { 7 } else { 3 };
        assert_eq!(verdict, expected, "on {}", hook.name());
        sent
    }

    #[track_caller]
    fn dropped(&self, hook: Hook, frame: &[u8], reason: Reason) {
        let (verdict, _) = self.run(hook, frame, reason);
        let expected = if hook == Hook::Tcx { 2 } else { 1 };
        assert_eq!(verdict, expected, "on {}", hook.name());
    }
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// Reads an outer packet byte by byte; returns what is in it, and the port of its flow.
#[track_caller]
fn opened<'a>(
    path: &Path,
    sent: &'a [u8],
    (family, gue): (usize, Option<u16>),
    inner: usize,
    class: u8,
) -> (&'a [u8], usize) {
    assert_eq!(sent[..6], ROUTER);
    assert_eq!(sent[6..12], path.mac);
    assert_eq!(sent[12..ETH], ETHERTYPE[family]);
    let ip = &sent[ETH..];
    let next = if gue.is_some() { 17 } else { INNER[inner] };
    let [source, dest] = OUTER[family].map(|text| bytes(addr(text)));
    if family == 0 {
        assert_eq!((ip[0], ip[1]), (0x45, class & !3));
        assert_eq!(half(ip, 2), ip.len());
        // Don't fragment; such a packet needs no identification (RFC 6864).
        assert_eq!((half(ip, 4), half(ip, 6)), (0, 0x4000));
        assert_eq!((ip[8], ip[9]), (64, next));
        assert_eq!(checksum(&ip[..20]), 0);
        assert_eq!((&ip[12..16], &ip[16..20]), (&source[..], &dest[..]));
    } else {
        assert_eq!(half(ip, 0) >> 4, 0x600 | usize::from(class & !3));
        assert_eq!(half(ip, 4), ip.len() - 40);
        assert_eq!((ip[6], ip[7]), (next, 64));
        assert_eq!((&ip[8..24], &ip[24..40]), (&source[..], &dest[..]));
    }
    let rest = &ip[IP[family]..];
    let Some(port) = gue else {
        return (rest, 0);
    };
    assert!(half(rest, 0) >= 0xc000, "an ephemeral port");
    assert_eq!(half(rest, 2), usize::from(port));
    assert_eq!((half(rest, 4), half(rest, 6)), (rest.len(), 0));
    (&rest[8..], half(rest, 0))
}

/// Asserts that the inner packet is that of the frame, with one hop less.
#[track_caller]
fn assert_one_hop_less(inner: &[u8], frame: &[u8]) {
    let mut expected = frame[ETH..].to_vec();
    if expected[0] >> 4 == 4 {
        expected[8] -= 1;
        expected[10..12].copy_from_slice(&inner[10..12]);
        assert_eq!(checksum(&inner[..20]), 0);
    } else {
        expected[7] -= 1;
    }
    assert_eq!(inner, expected);
}

/// With a traffic class and ECN, as routers see it.
fn with_class(mut frame: Vec<u8>, class: u8) -> Vec<u8> {
    if frame[ETH] >> 4 == 4 {
        frame[ETH + 1] = class;
        frame[ETH + 10..ETH + 12].fill(0);
        let sum = checksum(&frame[ETH..ETH + 20]);
        frame[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ETH] = 0x60 | class >> 4;
        frame[ETH + 1] = class << 4 | frame[ETH + 1] & 0xf;
    }
    frame
}

#[test]
fn root_a_packet_leaves_in_an_outer_one() {
    each_leaves_in_an_outer_one(&Path::new());
}

/// The numbers of both go with the packet from one function to another.
#[test]
fn root_packets_of_the_last_service_leave_for_the_last_real() {
    let path = Path::with_number(MAX_REALS as u16 - 1, MAX_SERVICES - 4);
    each_leaves_in_an_outer_one(&path);
    let balancer = &path.generation.balancer;
    let services = MAX_SERVICES as u32 - 4..MAX_SERVICES as u32;
    let counts = services.map(|n| balancer.service_count(n).unwrap().packets);
    let sent = balancer.real_count(path.real.into()).unwrap().packets;
    let counts: Vec<_> = counts.collect();
    assert!(
        counts.iter().all(|count| *count == sent / 4),
        "{counts:?}, {sent}"
    );
}

#[track_caller]
fn each_leaves_in_an_outer_one(path: &Path) {
    for hook in HOOKS {
        for way in WAYS {
            path.lead(way, MTU);
            for inner in 0..2 {
                let mut ports = BTreeSet::new();
                for client in 1..20u16 {
                    for payload in [0, 1, 700] {
                        let tcp = packet(inner).tcp(4000 + client, 80).tcp_flags(SYN);
                        let udp = packet(inner).udp(4000 + client, 443);
                        let frames = [tcp, udp].map(|p| p.payload_len(payload).build());
                        let of_flow = frames.map(|frame| {
                            let frame = with_class(frame, 0xb9);
                            let sent = path.sent(hook, &frame, Reason::Pass);
                            let (within, port) = opened(path, &sent, way, inner, 0xb9);
                            assert_one_hop_less(within, &frame);
                            port
                        });
                        ports.insert(of_flow[0]);
                    }
                }
                // A port for each flow, whatever its packets hold.
                let expected = if way.1.is_some() { 17..=19 } else { 1..=1 };
                assert!(expected.contains(&ports.len()), "{ports:?}");
            }
        }
    }
}

/// Behind the packet stands what is not of it: short frames are padded.
#[test]
fn root_padding_of_a_frame_does_no_harm() {
    let path = Path::new();
    for hook in HOOKS {
        path.lead((0, None), MTU);
        let frame = packet(0).tcp(4000, 80).tcp_flags(SYN).build();
        let mut padded = frame.clone();
        padded.resize(60, 0xee);
        let sent = path.sent(hook, &padded, Reason::Pass);
        let whole = path.sent(hook, &frame, Reason::Pass);
        assert_eq!(sent[..whole.len()], whole);
    }
}

#[test]
fn root_fragments_and_errors_follow_into_the_tunnel() {
    let path = Path::new();
    for hook in HOOKS {
        for way in WAYS {
            path.lead(way, MTU);
            for inner in 0..2 {
                let part = |offset, more| {
                    let part = packet(inner).fragment(offset, more);
                    part.udp(4000, 443).payload_len(64).build()
                };
                let ports = [part(0, true), part(9, false)].map(|frame| {
                    let sent = path.sent(hook, &frame, Reason::Pass);
                    let (within, port) = opened(&path, &sent, way, inner, 0);
                    assert_one_hop_less(within, &frame);
                    port
                });
                assert_eq!(ports[0], ports[1], "parts of one packet have one way");
                let about = Packet::eth().ip(addr(VIP[inner]), addr(CLIENT[inner]));
                let about = about.tcp(80, 4000).build().split_off(ETH);
                let router = ["198.51.100.1", "2001:db8:f::1"][inner];
                let error = Packet::eth().ip(addr(router), addr(VIP[inner]));
                let error = match inner {
                    0 => error.icmp(3, 4),
                    _ => error.icmp6(2, 0),
                };
                let frame = error.payload(&about).build();
                let sent = path.sent(hook, &frame, Reason::Pass);
                assert_one_hop_less(opened(&path, &sent, way, inner, 0).0, &frame);
            }
        }
    }
}

/// Payload of a TCP segment whose packet has so many bytes.
fn of_size(inner: usize, size: usize) -> Vec<u8> {
    let segment = packet(inner).tcp(4000, 80).tcp_flags(0x10);
    let frame = segment.payload_len(size - IP[inner] - 20).build();
    assert_eq!(frame.len(), ETH + size);
    frame
}

#[test]
fn root_what_is_too_big_is_told_to_the_client() {
    for hook in HOOKS {
        for way in WAYS {
            for inner in 0..2 {
                // A bucket of answers for each.
                let path = Path::new();
                let tunnel = path.lead(way, MTU);
                let fits = (MTU - tunnel.overhead()) as usize;
                let frame = of_size(inner, fits);
                let sent = path.sent(hook, &frame, Reason::Pass);
                assert_eq!(sent.len(), ETH + MTU as usize);
                let large = of_size(inner, fits + 1);
                let told = path.sent(hook, &large, Reason::TooBig);
                assert_eq!(told[..6], large[6..12]);
                assert_eq!(told[6..12], large[..6]);
                assert_eq!(told[12..ETH], ETHERTYPE[inner]);
                let (ip, message) = told[ETH..].split_at(IP[inner]);
                let [vip, client] = [VIP, CLIENT].map(|all| bytes(addr(all[inner])));
                let mut sum = message.to_vec();
                if inner == 0 {
                    assert_eq!(checksum(ip), 0);
                    assert_eq!((half(ip, 2), ip[9]), (20 + 8 + QUOTE, 1));
                    assert_eq!((&ip[12..16], &ip[16..20]), (&vip[..], &client[..]));
                    assert_eq!(message[..2], [3, 4]);
                } else {
                    assert_eq!((half(ip, 4), ip[6]), (8 + QUOTE, 58));
                    assert_eq!((&ip[8..24], &ip[24..40]), (&vip[..], &client[..]));
                    assert_eq!(message[..2], [2, 0]);
                    sum = [&ip[8..40], &[0, 0, 2, 8, 0, 0, 0, 58], message].concat();
                }
                assert_eq!(checksum(&sum), 0);
                assert_eq!(half(message, 4), 0);
                assert_eq!(half(message, 6), fits, "the MTU that fits");
                assert_eq!(message[8..], large[ETH..][..QUOTE]);
                // Nothing is said of an error, to nobody, or of what is damaged.
                let about = packet(inner).tcp(80, 4000).payload_len(1400).build();
                let router = ["198.51.100.1", "2001:db8:f::1"][inner];
                let error = Packet::eth().ip(addr(router), addr(VIP[inner]));
                let error = match inner {
                    0 => error.icmp(3, 4),
                    _ => error.icmp6(2, 0),
                };
                let mut quoted = about[ETH..].to_vec();
                // As the real had sent it.
                let (at, len) = [(12, 4), (8, 16)][inner];
                let (from, to) = quoted[at..at + 2 * len].split_at_mut(len);
                from.swap_with_slice(to);
                quoted.resize(fits - IP[inner] - 7, 0);
                path.dropped(hook, &error.payload(&quoted).build(), Reason::TooBig);
                if hook == Hook::Tcx {
                    let mut damaged = large.clone();
                    *damaged.last_mut().unwrap() ^= 1;
                    path.dropped(hook, &damaged, Reason::TooBig);
                }
                // Neither is everybody told: a flood has an end.
                let told = (0..2000).filter(|_| {
                    let (verdict, _) = path.run(hook, &large, Reason::TooBig);
                    verdict == if hook == Hook::Tcx { 7 } else { 3 }
                });
                let told = told.count();
                assert!((1..1900).contains(&told), "{told} of 2000");
            }
        }
    }
}

/// Wherever it ends, it leaves whole or not at all.
#[test]
fn root_cut_packets_do_not_leave() {
    let path = Path::new();
    for hook in HOOKS {
        for way in WAYS {
            path.lead(way, MTU);
            for (inner, head) in IP.into_iter().enumerate() {
                let frame = packet(inner).tcp(4000, 80).payload_len(9).build();
                for cut in ETH..frame.len() {
                    let program = path.generation.program(hook).unwrap();
                    let Ok(answer) = prog_test_run::packet(program, &frame[..cut], 1) else {
                        // The kernel makes no skb of less than an IP header.
                        assert!(hook == Hook::Tcx && cut < ETH + head, "{cut}");
                        continue;
                    };
                    let pass = if hook == Hook::Tcx { u32::MAX } else { 2 };
                    assert_eq!(answer.verdict, pass, "{cut} on {}", hook.name());
                    assert_eq!(answer.packet, frame[..cut]);
                }
            }
        }
    }
}

#[test]
fn root_a_real_without_a_way_gets_nothing() {
    let path = Path::new();
    for hook in HOOKS {
        path.lead((0, None), MTU);
        let frame = packet(0).ttl(1).tcp(4000, 80).build();
        // No hop left: the host's stack says so.
        let (verdict, sent) = path.run(hook, &frame, Reason::Pass);
        assert_eq!(verdict, if hook == Hook::Tcx { u32::MAX } else { 2 });
        assert_eq!(sent, frame);
        path.generation.balancer.write_real(0, None).unwrap();
        path.dropped(hook, &packet(0).tcp(4000, 80).build(), Reason::NoReal);
    }
}

fn decap_config() -> DecapConfig {
    DecapConfig {
        ipip: true,
        gue_port: Some(GUE_PORT),
        own: OUTER.map(|[_, real]| addr(real)).to_vec(),
        vips: VIP.map(addr).to_vec(),
        balancers: OUTER.map(|[balancer, _]| addr(balancer)).to_vec(),
    }
}

struct RealSide(Decap);

impl RealSide {
    fn new(config: &DecapConfig) -> Self {
        Self(Decap::load(config).unwrap())
    }

    /// Verdict, frame and what was counted.
    fn run(&self, frame: &[u8]) -> (u32, Vec<u8>, DecapCounts) {
        let before = self.0.counts().unwrap();
        let answer = prog_test_run::packet(self.0.program(), frame, 1).unwrap();
        let after = self.0.counts().unwrap();
        let counted = DecapCounts {
            taken: after.taken - before.taken,
            stranger: after.stranger - before.stranger,
            other: after.other - before.other,
            fragment: after.fragment - before.fragment,
            malformed: after.malformed - before.malformed,
            refused: after.refused - before.refused,
        };
        (answer.verdict, answer.packet, counted)
    }

    /// Asserts that the frame is left as it came, and is counted so.
    #[track_caller]
    fn leaves(&self, what: &str, frame: &[u8], counted: DecapCounts) {
        let (verdict, left, counts) = self.run(frame);
        assert_eq!((verdict, counts), (u32::MAX, counted), "{what}");
        assert_eq!(left, frame, "{what}");
    }

    #[track_caller]
    fn drops(&self, what: &str, frame: &[u8]) {
        let (verdict, _, counts) = self.run(frame);
        assert_eq!((verdict, counts), (2, MALFORMED), "{what}");
    }

    /// The packet that the host's stack receives: a frame whose outer header is taken off.
    #[track_caller]
    fn takes(&self, what: &str, frame: &[u8]) -> Vec<u8> {
        let (verdict, taken, counts) = self.run(frame);
        assert_eq!((verdict, counts), (u32::MAX, TAKEN), "{what}");
        taken
    }
}

const NONE: DecapCounts = DecapCounts {
    taken: 0,
    stranger: 0,
    other: 0,
    fragment: 0,
    malformed: 0,
    refused: 0,
};
const TAKEN: DecapCounts = DecapCounts { taken: 1, ..NONE };
const STRANGER: DecapCounts = DecapCounts {
    stranger: 1,
    ..NONE
};
const OTHER: DecapCounts = DecapCounts { other: 1, ..NONE };
const FRAGMENT: DecapCounts = DecapCounts {
    fragment: 1,
    ..NONE
};
const MALFORMED: DecapCounts = DecapCounts {
    malformed: 1,
    ..NONE
};

/// An outer packet, made without the balancer's program.
fn outer(from: &str, to: &str) -> Packet {
    Packet::eth().ip(addr(from), addr(to))
}

/// IPv4 or IPv6 in one from the balancer to the real.
fn tunneled(family: usize, within: usize, inner: &[u8]) -> Vec<u8> {
    let [from, to] = OUTER[family];
    let packet = outer(from, to).protocol(INNER[within]);
    packet.payload(inner).build()
}

fn gue(family: usize, head: &[u8], inner: &[u8]) -> Vec<u8> {
    let [from, to] = OUTER[family];
    let packet = outer(from, to).udp(0xc123, GUE_PORT);
    packet.payload(&[head, inner].concat()).build()
}

#[test]
fn root_what_a_balancer_sends_a_real_takes_out() {
    let path = Path::new();
    let real = RealSide::new(&decap_config());
    for hook in HOOKS {
        for way in WAYS {
            path.lead(way, MTU);
            for (inner, ethertype) in ETHERTYPE.into_iter().enumerate() {
                for payload in [0, 1, 1300] {
                    let frame = packet(inner).tcp(4000, 80).payload_len(payload).build();
                    let sent = path.sent(hook, &frame, Reason::Pass);
                    let taken = real.takes("of weir", &sent);
                    assert_eq!(taken[..12], sent[..12]);
                    assert_eq!(taken[12..ETH], ethertype);
                    assert_one_hop_less(&taken[ETH..], &frame);
                }
            }
        }
    }
}

#[test]
fn root_only_what_is_for_a_real_is_taken_out() {
    let config = decap_config();
    let real = RealSide::new(&config);
    for family in 0..2 {
        let [from, to] = OUTER[family];
        for within in 0..2 {
            let frame = packet(within).tcp(4000, 80).payload_len(30).build();
            let inner = &frame[ETH..];
            let whole = tunneled(family, within, inner);
            let forms = [
                ("IP in IP", whole.clone()),
                ("GUE, variant 1", gue(family, &[], inner)),
                (
                    "GUE, variant 0",
                    gue(family, &[0, INNER[within], 0, 0], inner),
                ),
            ];
            for (what, whole) in &forms {
                let taken = real.takes(what, whole);
                assert_eq!(taken[ETH..], *inner, "{what}");
                assert_eq!(taken[12..ETH], ETHERTYPE[within], "{what}");
                // The kernel makes no skb of less than an IP header.
                for cut in ETH + IP[family]..whole.len() {
                    let (verdict, left, counts) = real.run(&whole[..cut]);
                    assert_eq!(counts.taken, 0, "{what}, {cut} bytes");
                    let is_left = verdict == u32::MAX && counts == NONE && left == whole[..cut];
                    let is_dropped = verdict == 2 && counts == MALFORMED;
                    assert!(is_left || is_dropped, "{what}, {cut} bytes: {counts:?}");
                    // The outer header is whole: somebody is to know.
                    let ip = ETH + IP[family];
                    let head = if what.contains("GUE") { ip + 8 } else { ip };
                    assert_eq!(is_dropped, cut >= head, "{what}, {cut} bytes");
                }
                let mut padded = whole.clone();
                padded.extend([0xee; 9]);
                real.takes("padded", &padded);
            }
            // For others, or from others.
            let elsewhere = ["10.2.0.12", "fd02::12"][family];
            let packet = outer(from, elsewhere).protocol(INNER[within]);
            real.leaves("another host's", &packet.payload(inner).build(), NONE);
            let stranger = ["10.1.0.9", "fd01::9"][family];
            let of_stranger = outer(stranger, to).protocol(INNER[within]);
            let of_stranger = of_stranger.payload(inner).build();
            real.leaves("a stranger's", &of_stranger, STRANGER);
            let anybody = RealSide::new(&DecapConfig {
                balancers: vec![],
                ..config.clone()
            });
            anybody.takes("from anybody", &of_stranger);
            let mut for_other = whole.clone();
            let last = ETH + IP[family] + [19, 39][within];
            for_other[last] ^= 1;
            if within == 0 {
                let at = ETH + IP[family];
                for_other[at + 10..at + 12].fill(0);
                let sum = checksum(&for_other[at..at + 20]);
                for_other[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            }
            real.leaves("no virtual address", &for_other, OTHER);
            let part = outer(from, to).fragment(0, true);
            let part = part.protocol(INNER[within]).payload(inner).build();
            if family == 0 {
                real.leaves("a fragment", &part, FRAGMENT);
            } else {
                real.leaves("a fragment", &part, NONE);
            }
            real.leaves("not in a tunnel", &frame, NONE);
            let elsewhere = outer(from, to).udp(0xc123, GUE_PORT + 1);
            let elsewhere = elsewhere.payload(inner).build();
            real.leaves("another port", &elsewhere, NONE);
            // What contradicts itself.
            let change = |at: usize, with: u8| {
                let mut frame = whole.clone();
                frame[at] ^= with;
                frame
            };
            if family == 0 {
                real.drops("outer checksum", &change(ETH + 10, 1));
            }
            let at = ETH + IP[family];
            real.drops("another version within", &change(at, 0x20));
            let length = [at + 3, at + 5][within];
            real.drops("longer within than without", &change(length, 0x80));
            for head in [[0x01, 4, 0, 0], [0x20, 4, 0, 0], [0, 4, 0, 1], [0, 6, 0, 0]] {
                let frame = gue(family, &head, inner);
                real.drops(&format!("GUE {head:?}"), &frame);
            }
            for first in [0x50, 0x80, 0xc0] {
                let frame = gue(family, &[first, 0, 0, 0], inner);
                real.drops(&format!("GUE {first:x}"), &frame);
            }
            // Only what was asked for.
            let ipip = RealSide::new(&DecapConfig {
                gue_port: None,
                ..config.clone()
            });
            ipip.leaves("GUE", &forms[1].1, NONE);
            ipip.takes("IP in IP", &whole);
            let only_gue = RealSide::new(&DecapConfig {
                ipip: false,
                gue_port: Some(9000),
                ..config.clone()
            });
            only_gue.leaves("IP in IP", &whole, NONE);
            only_gue.leaves("GUE at another port", &forms[1].1, NONE);
        }
    }
}

//! Load balancing by BPF_PROG_RUN, on XDP and tc, IPv4 and IPv6: what leaves with which
//! link-layer addresses, what stays as it was, and what is left to the host. Root: loads
//! BPF.

#[path = "root_balance/methods.rs"]
mod methods;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use weir_bpf::{
    AnswerProgram, BanCounts, Generation, Geometry, Options,
    attachment::Hook,
    balance::{
        DEFAULT_FLOWS, MAX_POOLS, MAX_REALS, MAX_SERVICES, Real, SLOTS, VirtualService, real_id,
    },
    prog_test_run, small_maps,
};
use weir_core::{Protocol, Reason, decoy::DecoyPorts};
use weir_testkit::packet::{Packet, checksum};

#[path = "root_balance/all_ports.rs"]
mod all_ports;
#[path = "root_balance/drain.rs"]
mod drain;
#[path = "root_balance/flows.rs"]
mod flows;
#[path = "root_balance/least.rs"]
mod least;
#[path = "root_balance/quic.rs"]
mod quic;
#[path = "root_balance/vlan.rs"]
mod vlan;

const HOOKS: [Hook; 2] = [Hook::Xdp, Hook::Tcx];
const VIP: [&str; 2] = ["192.0.2.80", "2001:db8::80"];
/// What [`Packet`] addresses frames to, as the interface's own.
const HERE: usize = 0;
const SYN: u8 = 2;

/// Both virtual addresses with a port of each protocol, of pool 3.
fn services() -> impl Iterator<Item = VirtualService> {
    VIP.iter().flat_map(|vip| {
        [(Protocol::Tcp, 80), (Protocol::Udp, 443)].map(|(protocol, port)| VirtualService {
            addr: addr(vip),
            protocol,
            port: Some(port),
            pool: 3,
        })
    })
}

struct Path {
    generation: Generation,
    /// By which BPF_PROG_RUN says that a frame came in.
    ifindex: u32,
    mac: [u8; 6],
    /// The VLAN of the reals.
    vlan: u16,
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

impl Path {
    fn new() -> Self {
        Self::with_limits(0)
    }

    /// So many more flows are remembered in a window: 2^`shift` times.
    fn with_limits(shift: u32) -> Self {
        Self::with_room(DEFAULT_FLOWS, shift)
    }

    /// The same with room for so many flows.
    fn with_room(flows: u32, shift: u32) -> Self {
        let options = Options {
            v4_length: 24,
            balanced_flows: flows,
            ..Options::bans(Geometry::for_bans(BanCounts::each(200)))
        };
        let generation = Generation::create(1, &options, None).expect("the packet path loads");
        generation.shift_limits(shift);
        generation.answer(AnswerProgram::Balance).unwrap();
        let frame = packet(0, 9).tcp(4000, 80).build();
        let path = Self {
            generation,
            // BPF_PROG_RUN's frames come in by the loopback device.
            ifindex: 1,
            mac: frame[HERE..6].try_into().unwrap(),
            vlan: 0,
        };
        path.write_reals(&[true, true]);
        let balancer = &path.generation.balancer;
        balancer
            .write_services(&services().collect::<Vec<_>>())
            .unwrap();
        path.generation
            .table
            .set_port_features(path.generation.port_features());
        path
    }

    /// Two reals, half of the ring each, or all of it one.
    fn write_reals(&self, live: &[bool; 2]) {
        for number in 0..2 {
            self.write_real(number, live[usize::from(number)], false);
        }
        self.write_ring(live);
    }

    fn write_real(&self, number: u8, is_live: bool, drains: bool) {
        let real = Real {
            id: real_id("web", addr(&format!("10.0.0.{number}"))),
            dest: mac(10 + number),
            source: self.mac,
            ifindex: self.ifindex,
            vlan: self.vlan,
            tunnel: None,
            drains,
        };
        let balancer = &self.generation.balancer;
        let real = is_live.then_some(real);
        balancer.write_real(number.into(), real).unwrap();
    }

    /// New flows go to those of the two that take any, half of the ring each.
    fn write_ring(&self, takers: &[bool; 2]) {
        let balancer = &self.generation.balancer;
        let alive: Vec<u16> = (0..2u16).filter(|n| takers[usize::from(*n)]).collect();
        let slot = |n: usize| alive.get(n % alive.len().max(1)).copied();
        let ring: Vec<_> = (0..SLOTS).map(slot).collect();
        balancer.write_ring(3, &ring).unwrap();
    }

    #[track_caller]
    fn run(&self, hook: Hook, frame: &[u8], reason: Reason) -> prog_test_run::RunResult {
        let read = || small_maps::read_counters(&self.generation.counters).unwrap();
        let before = read();
        let program = self.generation.program(hook).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).expect("the program runs");
        let after = read();
        for r in Reason::ALL {
            let counted = after[r as usize].0 - before[r as usize].0;
            assert_eq!(counted, u64::from(r == reason), "{r} on {}", hook.name());
        }
        answer
    }

    /// Leaves for a real: which, and nothing is changed but the link-layer addresses and
    /// one hop.
    #[track_caller]
    fn forwarded(&self, hook: Hook, frame: &[u8]) -> u8 {
        let answer = self.run(hook, frame, Reason::Pass);
        // XDP_TX, TC_ACT_REDIRECT
        let sent = if hook == Hook::Tcx { 7 } else { 3 };
        assert_eq!(answer.verdict, sent, "on {}", hook.name());
        assert_one_hop_less(&answer.packet, frame);
        assert_eq!(answer.packet[6..12], self.mac);
        assert_eq!(answer.packet[..5], mac(0)[..5]);
        answer.packet[5] - 10
    }

    /// Asserts that the frame passes to the host as it came.
    #[track_caller]
    fn passes(&self, hook: Hook, what: &str, frame: &[u8]) {
        let answer = self.run(hook, frame, Reason::Pass);
        let pass = if hook == Hook::Tcx { u32::MAX } else { 2 };
        assert_eq!(answer.verdict, pass, "{what} on {}", hook.name());
        assert_eq!(answer.packet, frame, "{what} on {}", hook.name());
    }
}

/// Behind the link-layer addresses: IPv4's header adds up to what it added up to.
#[track_caller]
fn assert_one_hop_less(sent: &[u8], frame: &[u8]) {
    let mut expected = frame.to_vec();
    let at = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    if frame[at - 2..at] == [8, 0] {
        expected[at + 8] -= 1;
        let header = at..at + 20;
        assert_eq!(checksum(&sent[header.clone()]), checksum(&frame[header]));
        expected[at + 10..at + 12].copy_from_slice(&sent[at + 10..at + 12]);
    } else {
        expected[at + 7] -= 1;
    }
    assert_eq!(sent[12..], expected[12..]);
}

fn packet(family: usize, host: u8) -> Packet {
    let client = match family {
        0 => format!("203.0.113.{host}"),
        _ => format!("2001:db8:c::{host:x}"),
    };
    Packet::eth().ip(addr(&client), addr(VIP[family]))
}

#[test]
fn root_a_flow_leaves_for_one_real_and_stays_with_it() {
    for hook in HOOKS {
        let path = Path::new();
        for family in 0..2 {
            path.write_reals(&[true, true]);
            let frames: Vec<_> = (1..60u8)
                .flat_map(|host| {
                    [
                        packet(family, host).tcp(4000, 80).tcp_flags(SYN).build(),
                        packet(family, host).udp(4000, 443).build(),
                    ]
                })
                .collect();
            let first: Vec<_> = frames.iter().map(|f| path.forwarded(hook, f)).collect();
            assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 2);
            let again: Vec<_> = frames.iter().map(|f| path.forwarded(hook, f)).collect();
            assert_eq!(first, again);
            // Flows of the one that goes move, and stay where they are then.
            path.write_reals(&[false, true]);
            assert!(frames.iter().all(|f| path.forwarded(hook, f) == 1));
            path.write_reals(&[true, true]);
            assert!(frames.iter().all(|f| path.forwarded(hook, f) == 1));
            let other = packet(family, 99).tcp(4000, 80).tcp_flags(SYN).build();
            path.forwarded(hook, &other);
            path.write_reals(&[false, false]);
            let answer = path.run(hook, &other, Reason::NoReal);
            assert_eq!(answer.verdict, if hook == Hook::Tcx { 2 } else { 1 });
        }
    }
}

/// What a real sends from the VIP's port 80, as a router would quote it.
fn quoted(family: usize, host: u8, port: u16) -> Vec<u8> {
    let client = match family {
        0 => format!("203.0.113.{host}"),
        _ => format!("2001:db8:c::{host:x}"),
    };
    let answer = Packet::eth().ip(addr(VIP[family]), addr(&client));
    answer.tcp(80, port).build().split_off(14)
}

/// An ICMP error from a router to the VIP.
fn error(family: usize, kind: u8, about: &[u8]) -> Vec<u8> {
    let router = ["198.51.100.1", "2001:db8:f::1"][family];
    let to = Packet::eth().ip(addr(router), addr(VIP[family]));
    let error = match family {
        0 => to.icmp(kind, 4),
        _ => to.icmp6(kind, 0),
    };
    error.payload(about).build()
}

/// RFC 1191, RFC 8201: without it a real goes on sending what is too big.
#[test]
fn root_an_icmp_error_reaches_the_real_that_it_is_about() {
    let path = Path::new();
    let errors = [[3u8, 11, 12].as_slice(), &[1, 2, 3, 4]];
    for hook in HOOKS {
        for (family, kinds) in errors.iter().enumerate() {
            for host in 1..40 {
                let syn = packet(family, host).tcp(4000, 80).tcp_flags(SYN).build();
                let about = quoted(family, host, 4000);
                for kind in kinds.iter() {
                    // Of a flow that is not known the ring says it, as of the flow.
                    let before = path.forwarded(hook, &error(family, *kind, &about));
                    let real = path.forwarded(hook, &syn);
                    assert_eq!(before, real);
                    // Eight bytes of the packet behind its IP header are enough.
                    let least = [28, 48][family];
                    let short = error(family, *kind, &about[..least]);
                    assert_eq!(path.forwarded(hook, &short), real);
                }
                // Of a known one the table: the ring says something else by now.
                path.write_reals(&[false, true]);
                assert_eq!(path.forwarded(hook, &syn), 1);
                path.write_reals(&[true, true]);
                assert_eq!(path.forwarded(hook, &error(family, kinds[0], &about)), 1);
            }
            let about = quoted(family, 7, 4000);
            let kind = kinds[1];
            let flows = |path: &Path| {
                let counts = (0..2).map(|n| path.generation.balancer.real_count(n).unwrap());
                counts.map(|count| count.flows).sum::<u64>()
            };
            let before = flows(&path);
            path.forwarded(hook, &error(family, kind, &quoted(family, 200, 1)));
            assert_eq!(flows(&path), before, "an error begins no flow");

            for cut in 0..[28, 48][family] - 4 {
                let what = format!("{cut} bytes of the packet");
                path.passes(hook, &what, &error(family, kind, &about[..cut]));
            }
            let change = |at: usize, with: u8| {
                let mut about = about.clone();
                about[at] ^= with;
                error(family, kind, &about)
            };
            let ports = [20, 40][family];
            let (protocol, source) = ([9, 6][family], [15, 23][family]);
            path.passes(hook, "another port", &change(ports + 1, 1));
            path.passes(hook, "another protocol", &change(protocol, 0x40));
            path.passes(hook, "a packet of somebody else", &change(source, 1));
            if family == 0 {
                path.passes(hook, "a later fragment of it", &change(7, 9));
                path.passes(hook, "options in it", &change(0, 3));
            }
            let echo = [8, 128][family];
            path.passes(hook, "an echo request", &error(family, echo, &about));
            path.write_reals(&[false, false]);
            let answer = path.run(hook, &error(family, kind, &about), Reason::NoReal);
            assert_eq!(answer.verdict, if hook == Hook::Tcx { 2 } else { 1 });
            path.write_reals(&[true, true]);
        }
    }
}

#[test]
fn root_later_fragments_follow_the_first() {
    for hook in HOOKS {
        let path = Path::new();
        for family in 0..2 {
            for (id, host) in (1..40u16).zip(1..40u8) {
                let part = |id: u16, offset, more| {
                    let part = packet(family, host).fragment(offset, more);
                    let mut frame = part.udp(4000, 443).payload_len(64).build();
                    let at = [18, 60][family];
                    frame[at..at + 2].copy_from_slice(&id.to_be_bytes());
                    frame
                };
                let mut later = part(id, 9, false);
                // Bytes of the payload, whatever they look like.
                let behind = later.len() - 72;
                later[behind..behind + 4].fill(0xee);
                path.passes(hook, "a fragment whose first was not seen", &later);
                let whole = packet(family, host).udp(4000, 443).build();
                let real = path.forwarded(hook, &part(id, 0, true));
                assert_eq!(path.forwarded(hook, &whole), real);
                assert_eq!(path.forwarded(hook, &later), real);
                // Where they went stays, though new flows go elsewhere.
                path.write_reals(&[true, true]);
                assert_eq!(path.forwarded(hook, &later), real);
                let other = part(id + 1000, 9, false);
                path.passes(hook, "another packet's fragment", &other);
            }
            let elsewhere = packet(family, 7).fragment(0, true);
            let elsewhere = elsewhere.udp(4000, 444).payload_len(64).build();
            path.passes(hook, "of another port", &elsewhere);
        }
    }
}

/// A flood of packets that each begin a flow: those above the limit go where the ring
/// says, and are counted.
#[test]
fn root_of_new_flows_so_many_are_remembered() {
    let path = Path::new();
    let balancer = &path.generation.balancer;
    let unremembered = || -> u64 {
        let counts = (0..4).map(|n| balancer.service_count(n).unwrap());
        counts.map(|count| count.unremembered).sum()
    };
    let program = path.generation.program(Hook::Xdp).unwrap();
    let mut sent = 0u64;
    while unremembered() == 0 {
        for _ in 0..1000 {
            assert!(sent < 131_072, "all are remembered");
            let [_, high, middle, low] = (0x0012_0000 + sent as u32).to_be_bytes();
            let client = IpAddr::from([198, high, middle, low]);
            let frame = Packet::eth().ip(client, addr(VIP[0])).tcp(4000, 80).build();
            let answer = prog_test_run::packet(program, &frame, 1).unwrap();
            assert_eq!(answer.verdict, 3);
            sent += 1;
        }
    }
    let flows = (0..2).map(|n| balancer.real_count(n).unwrap().flows);
    assert_eq!(flows.sum::<u64>() + unremembered(), sent);
}

/// A frame to another host's link-layer address, as a switch floods it that has forgotten
/// where that host is: not remembered, nor does a flow leave its place by it.
#[test]
fn root_a_frame_that_a_switch_floods_is_not_remembered() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            let flows = || path.generation.balancer.real_count(0).unwrap().flows;
            let frames: Vec<_> = (1..40)
                .map(|host| packet(family, host).tcp(4000, 80).tcp_flags(SYN).build())
                .collect();
            path.write_reals(&[true, false]);
            let known = &frames[..20];
            assert!(known.iter().all(|frame| path.forwarded(hook, frame) == 0));
            let begun = flows();
            path.write_reals(&[false, true]);
            for frame in &frames {
                let mut flooded = frame.clone();
                flooded[HERE..6].copy_from_slice(&mac(77));
                path.passes(hook, "of another host", &flooded);
            }
            assert_eq!(path.generation.balancer.real_count(1).unwrap().flows, 0);
            // Those that are known are so, once their real is back; the others are nowhere.
            path.write_reals(&[true, true]);
            all_to_the_second(&path);
            for (n, frame) in frames.iter().enumerate() {
                assert_eq!(path.forwarded(hook, frame), u8::from(n >= 20));
            }
            assert_eq!(flows(), begun);
        }
    }
}

fn flooded(frame: &[u8]) -> Vec<u8> {
    let mut flooded = frame.to_vec();
    flooded[HERE..6].copy_from_slice(&mac(77));
    flooded
}

/// Such frames take nothing that frames for this host need: no turn, no part of what may be
/// remembered, and no later fragment follows them.
#[test]
fn root_a_frame_that_a_switch_floods_takes_nothing() {
    methods::stay_on_this_cpu();
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            path.by(weir_bpf::balance::SlotBy::Turn);
            let syn = |host| packet(family, host).tcp(4000, 80).tcp_flags(SYN).build();
            for host in (1..40).step_by(2) {
                let real = path.forwarded(hook, &syn(host));
                // The slots are the first's and the second's in turn.
                path.passes(hook, "of another host", &flooded(&syn(host + 100)));
                assert_eq!(path.forwarded(hook, &syn(host + 1)), 1 - real);
            }

            let first = packet(family, 9).fragment(0, true);
            let first = first.udp(4000, 443).payload_len(64).build();
            let later = packet(family, 9).fragment(9, false);
            let later = later.udp(4000, 443).payload_len(64).build();
            path.passes(hook, "of another host", &flooded(&first));
            path.passes(hook, "its first was another host's", &later);
            let real = path.forwarded(hook, &first);
            assert_eq!(path.forwarded(hook, &later), real);
            // Nor does one move them.
            path.write_reals(&[real == 1, real == 0]);
            let other = packet(family, 9).fragment(0, true);
            let other = other.udp(4001, 443).payload_len(64).build();
            path.passes(hook, "of another host", &flooded(&other));
            path.write_reals(&[true, true]);
            assert_eq!(path.forwarded(hook, &later), real);

            // One in eight of the 512 buckets in a window; with turns and without.
            for by in [
                weir_bpf::balance::SlotBy::Flow,
                weir_bpf::balance::SlotBy::Turn,
            ] {
                let path = Path::with_room(1024, 0);
                path.by(by);
                let from = |port| packet(family, 1).tcp(port, 80).tcp_flags(SYN).build();
                for port in 1000..1200 {
                    path.passes(hook, "of another host", &flooded(&from(port)));
                }
                for port in 2000..2050 {
                    path.forwarded(hook, &from(port));
                }
                let service = |n| path.generation.balancer.service_count(n).unwrap();
                let counts: Vec<_> = (0..4).map(service).collect();
                assert_eq!(counts.iter().map(|c| c.unremembered).sum::<u64>(), 0);
                let flows = |n| path.generation.balancer.real_count(n).unwrap().flows;
                assert_eq!(flows(0) + flows(1), 50);
            }
        }
    }
}

/// On whichever hook its packets come in.
#[test]
fn root_a_flow_is_known_to_all_programs_of_an_instance() {
    let path = Path::new();
    for family in 0..2 {
        for host in 1..40 {
            let frame = packet(family, host).tcp(4000, 80).tcp_flags(SYN).build();
            path.write_reals(&[true, true]);
            let real = path.forwarded(Hook::Xdp, &frame);
            all_to_the_second(&path);
            assert_eq!(path.forwarded(Hook::Tcx, &frame), real);
        }
    }
}

/// As where its program could not be loaded: a pool does not depend on it.
#[test]
fn root_a_pools_port_is_served_where_the_tarpit_is_missing() {
    let path = Path::new();
    let all = DecoyPorts::new(&["1-65535/tcp".parse().unwrap()]);
    path.generation.decoys.write_tarpits(&all);
    let features = path.generation.port_features();
    path.generation.table.set_port_features(features);
    for hook in HOOKS {
        for family in 0..2 {
            let frame = packet(family, 9).tcp(4000, 80).tcp_flags(SYN).build();
            path.forwarded(hook, &frame);
            let other = packet(family, 9).tcp(4000, 81).tcp_flags(SYN).build();
            path.passes(hook, "another port", &other);
        }
    }
}

/// In a flood a flow whose real is gone is remembered where it goes next, as it has its
/// place: it does not go back when that real returns.
#[test]
fn root_a_flow_that_moves_in_a_flood_stays_where_it_went() {
    let path = Path::new();
    let balancer = &path.generation.balancer;
    let flows = 0..64;
    let moving = flows.filter(|n| sent_to(&path, *n) == 0);
    let moving: Vec<_> = moving.collect();
    assert!(!moving.is_empty());
    let unremembered = || balancer.service_count(0).unwrap().unremembered;
    let mut forged = 0x0010_0000;
    // Until the limit is reached, and again should a window end meanwhile.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        path.write_reals(&[true, true]);
        let (before, mut sent) = (unremembered(), 0);
        while unremembered() == before {
            (0..200).for_each(|_| {
                sent_to(&path, forged);
                forged += 1;
            });
            sent += 200;
            assert!(sent < 131_072, "all are remembered");
        }
        path.write_reals(&[false, true]);
        let begun = unremembered();
        assert!(moving.iter().all(|n| sent_to(&path, *n) == 1));
        assert_eq!(unremembered(), begun, "those that have a place");
        sent_to(&path, forged);
        forged += 1;
        if unremembered() == begun + 1 {
            break;
        }
        assert!(Instant::now() < deadline, "no window was long enough");
    }
    path.write_reals(&[true, true]);
    let back = moving.iter().filter(|n| sent_to(&path, **n) == 0);
    assert_eq!(back.count(), 0);
}

/// A frame of a client's of its own, and the real that it leaves for.
fn sent_to(path: &Path, client: u32) -> u8 {
    let [_, high, middle, low] = client.to_be_bytes();
    let client = IpAddr::from([11, high, middle, low]);
    let frame = Packet::eth().ip(client, addr(VIP[0])).tcp(4000, 80).build();
    let program = path.generation.program(Hook::Xdp).unwrap();
    let answer = prog_test_run::packet(program, &frame, 1).unwrap();
    assert_eq!(answer.verdict, 3);
    answer.packet[5] - 10
}

/// Both reals live, and new flows all go to the second.
fn all_to_the_second(path: &Path) {
    let ring = vec![Some(1); SLOTS];
    path.generation.balancer.write_ring(3, &ring).unwrap();
}

#[test]
fn root_as_many_flows_stay_as_are_promised() {
    // The fewest, as many as without a word, and what is asked for where a million live.
    for flows in [1024, DEFAULT_FLOWS, 1 << 20] {
        let path = Path::with_room(flows, 20);
        assert_eq!(path.generation.balancer.flows(), flows);
        let before: Vec<_> = (0..flows).map(|client| sent_to(&path, client)).collect();
        all_to_the_second(&path);
        let moved = (0..).zip(&before);
        let moved = moved.filter(|(client, real)| sent_to(&path, *client) != **real);
        let moved = moved.count();
        // There is room for each, but in buckets that chance fills.
        assert!(moved * 200 < before.len(), "{moved} of {flows}");
        assert!(before.iter().filter(|real| **real == 0).count() > flows as usize / 3);
    }
}

/// Of four times as many flows a quarter is remembered still: the table is no larger than
/// was asked for. A number that is no power of two is the next one.
#[test]
fn root_more_flows_than_find_room_displace_one_another() {
    let path = Path::with_room(1025, 20);
    assert_eq!(path.generation.balancer.flows(), 2048);
    (0..16_384).for_each(|client| {
        sent_to(&path, client);
    });
    all_to_the_second(&path);
    let kept = (0..16_384).filter(|client| sent_to(&path, *client) == 0);
    // There are two places for each flow that was asked for, of which half are the first's.
    let kept = kept.count();
    assert!((1024..=4096).contains(&kept), "{kept}");
}

/// Tables that come later have the flows of those before, whatever size they are made with.
#[test]
fn root_the_table_of_flows_is_handed_on_as_it_is() {
    let path = Path::with_room(4096, 20);
    let before: Vec<_> = (0..500).map(|client| sent_to(&path, client)).collect();
    let options = Options {
        v4_length: 24,
        ..Options::bans(Geometry::for_bans(BanCounts::each(400)))
    };
    let next = Generation::create(2, &options, Some(&path.generation)).unwrap();
    assert_eq!(next.balancer.flows(), 4096);
    let path = Path {
        generation: next,
        ..path
    };
    all_to_the_second(&path);
    for (client, real) in (0..).zip(before) {
        assert_eq!(sent_to(&path, client), real);
    }
}

/// As many virtual addresses, and reals, as there may be: the first and the last are served,
/// IPv4 and IPv6, on both hooks.
#[test]
fn root_as_many_services_and_reals_as_there_may_be_are_served() {
    let path = Path::new();
    let balancer = &path.generation.balancer;
    let last = MAX_REALS as u16 - 1;
    let real = Real {
        id: real_id("web", addr("10.0.0.9")),
        dest: mac(19),
        source: path.mac,
        ifindex: path.ifindex,
        vlan: 0,
        tunnel: None,
        drains: false,
    };
    balancer.write_real(last.into(), Some(real)).unwrap();
    let pool = MAX_POOLS as u32 - 1;
    balancer.write_ring(pool, &vec![Some(last); SLOTS]).unwrap();
    let vip = |n: usize| match n % 2 {
        0 => IpAddr::from([10, 1, (n >> 8) as u8, n as u8]),
        _ => IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 0, n as u16]),
    };
    let service = |n: usize| VirtualService {
        addr: vip(n),
        protocol: Protocol::Tcp,
        port: Some(80),
        pool,
    };
    let mut services: Vec<_> = (0..MAX_SERVICES).map(service).collect();
    balancer.write_services(&services).unwrap();
    let features = path.generation.port_features();
    path.generation.table.set_port_features(features);
    for hook in HOOKS {
        for n in [0, 1, MAX_SERVICES / 2, MAX_SERVICES - 2, MAX_SERVICES - 1] {
            let client = addr(["203.0.113.9", "2001:db8:c::9"][n % 2]);
            let before = balancer.service_count(n as u32).unwrap().packets;
            let frame = Packet::eth().ip(client, vip(n)).tcp(4000, 80).build();
            assert_eq!(path.forwarded(hook, &frame), 9, "{}", vip(n));
            let count = balancer.service_count(n as u32).unwrap();
            assert_eq!(count.packets, before + 1, "{}", vip(n));
        }
    }
    let sent = balancer.real_count(last.into()).unwrap();
    assert_eq!(sent.packets, 10);
    services.push(service(MAX_SERVICES));
    let refused = balancer.write_services(&services).unwrap_err().to_string();
    assert!(refused.contains("at most 16384"), "{refused}");
}

/// Of flows that have one packet each there are three times as many as the table holds:
/// those that have had a second one stay, and nobody's packets choose whom they displace.
#[test]
fn root_a_flood_displaces_no_flow_that_is_confirmed() {
    let path = Path::with_limits(20);
    let confirmed = 0..4000;
    let before: Vec<_> = confirmed.clone().map(|n| sent_to(&path, n)).collect();
    confirmed.clone().for_each(|n| {
        sent_to(&path, n);
    });
    for forged in 0..400_000 {
        sent_to(&path, 0x0010_0000 + forged);
    }
    all_to_the_second(&path);
    let moved = confirmed.zip(before);
    let moved = moved.filter(|(n, real)| sent_to(&path, *n) != *real);
    assert_eq!(moved.count(), 0);
    // Of the others hardly one is left that was there first.
    let early = (0..4000).filter(|n| sent_to(&path, 0x0010_0000 + n) == 0);
    let early = early.count();
    assert!(early < 400, "{early} of the first forged ones");
}

/// Between two balancers, each a real of the other, a packet does not go round for ever:
/// the last one leaves it to its stack, which knows what to say.
#[test]
fn root_a_packet_that_goes_round_comes_to_an_end() {
    let path = Path::new();
    for hook in HOOKS {
        for family in 0..2 {
            for begin in [syn_of_hops(family, 255), syn_of_hops(family, 2)] {
                let hops = begin[[22, 21][family]];
                let mut frame = begin;
                for _ in 1..hops {
                    let real = path.forwarded(hook, &frame);
                    let program = path.generation.program(hook).unwrap();
                    frame = prog_test_run::packet(program, &frame, 1).unwrap().packet;
                    assert_eq!(frame[5], real + 10);
                    // As the other one sends it back.
                    frame[..6].copy_from_slice(&path.mac);
                }
                path.passes(hook, "no hop left", &frame);
            }
            path.passes(hook, "none at all", &syn_of_hops(family, 0));
        }
    }
}

fn syn_of_hops(family: usize, hops: u8) -> Vec<u8> {
    let syn = packet(family, 7).ttl(hops).tcp(4000, 80);
    syn.tcp_flags(SYN).build()
}

/// Two weirs with one ring choose the same real, whatever either has seen.
#[test]
fn root_two_weirs_choose_the_same_real() {
    let (one, other) = (Path::new(), Path::new());
    for family in 0..2 {
        for host in 1..80 {
            let frame = packet(family, host).tcp(1000, 80).tcp_flags(SYN).build();
            let chosen = one.forwarded(Hook::Xdp, &frame);
            assert_eq!(chosen, other.forwarded(Hook::Tcx, &frame));
        }
    }
}

#[test]
fn root_what_is_not_a_pools_is_the_hosts() {
    let path = Path::new();
    for hook in HOOKS {
        for family in 0..2 {
            let syn = || packet(family, 7).tcp(4000, 80).tcp_flags(SYN);
            path.forwarded(hook, &syn().build());
            path.passes(
                hook,
                "another port",
                &packet(family, 7).tcp(4000, 81).tcp_flags(SYN).build(),
            );
            path.passes(
                hook,
                "another protocol",
                &packet(family, 7).udp(4000, 80).build(),
            );
            let mut elsewhere = syn().build();
            let last = if family == 0 { 33 } else { 53 };
            elsewhere[last] ^= 1;
            path.passes(hook, "another address", &elsewhere);
            let mut flooded = syn().build();
            flooded[5] ^= 1;
            path.passes(hook, "another link-layer address", &flooded);
        }
        let tagged = Packet::eth().vlan(7).ip(addr("203.0.113.7"), addr(VIP[0]));
        path.passes(hook, "a tagged frame", &tagged.tcp(4000, 80).build());
    }
}

//! Least connections: who gets a new flow, and which flows count. The expected shares are
//! worked out from the counts alone.

use proptest::prelude::*;
use weir_bpf::balance::{CountedReal, PoolRules, SlotBy};
use weir_core::balance::maglev::{Member, ring};
use weir_testkit::packet::flag;

use super::*;

const ACK: u8 = flag::ACK;
/// Ticks a second, which the packet path is told of; windows are of 256 ticks.
const HZ: u64 = 256;

fn id(number: u32) -> u64 {
    real_id("web", addr(&format!("10.0.0.{number}")))
}

/// A client of its own, with a frame to the virtual address of its family.
fn from(family: usize, client: u32) -> Packet {
    let [_, high, middle, low] = client.to_be_bytes();
    let client = match family {
        0 => IpAddr::from([11, high, middle, low]),
        _ => addr(&format!(
            "2001:db8:1::{:x}:{low:x}",
            u32::from(high) << 8 | u32::from(middle)
        )),
    };
    Packet::eth().ip(client, addr(VIP[family]))
}

fn tcp(family: usize, client: u32, flags: u8) -> Vec<u8> {
    from(family, client).tcp(4000, 80).tcp_flags(flags).build()
}

fn syn(family: usize, client: u32) -> Vec<u8> {
    tcp(family, client, SYN)
}

/// The kernel's count of ticks, which flows are dated by.
fn now() -> u64 {
    weir_bpf::JiffyClock::probe().unwrap().now()
}

impl Path {
    /// Reals of these weights, of which those with 0 take no new flows.
    fn least(&self, weights: &[u32]) {
        let balancer = &self.generation.balancer;
        for (number, weight) in weights.iter().enumerate() {
            let real = Real {
                id: id(number as u32),
                dest: mac(10 + number as u8),
                source: self.mac,
                ifindex: self.ifindex,
                vlan: 0,
                tunnel: None,
                drains: *weight == 0,
            };
            balancer.write_real(number as u32, Some(real)).unwrap();
        }
        let names: Vec<_> = (0..weights.len()).map(|n| format!("10.0.0.{n}")).collect();
        let members = names.iter().zip(weights);
        let members: Vec<_> = members
            .map(|(name, weight)| Member {
                name,
                weight: *weight,
            })
            .collect();
        let slots: Vec<_> = ring(&members, SLOTS)
            .iter()
            .map(|n| Some(*n as u16))
            .collect();
        balancer.write_ring(3, &slots).unwrap();
        let mut pools = vec![PoolRules::default(); 4];
        pools[3] = PoolRules {
            slot_by: SlotBy::Least,
            any_drains: weights.contains(&0),
            udp_silence: Some(Duration::from_secs(60)),
            weights: (0..)
                .zip(weights.iter().copied())
                .filter(|(_, w)| *w > 0)
                .collect(),
            ..PoolRules::default()
        };
        let services: Vec<_> = services().collect();
        balancer.write_services_for(&services, &pools, HZ).unwrap();
    }

    /// What the kernel takes for the live flows of each of so many reals.
    fn active(&self, reals: u32) -> Vec<u64> {
        let balancer = &self.generation.balancer;
        (0..reals)
            .map(|number| balancer.active_flows(number))
            .collect()
    }

    /// Counts anew, so many windows behind these jiffies.
    fn count(&self, reals: u32, now: u64, windows: u64) {
        let counted: Vec<_> = (0..reals)
            .map(|number| CountedReal {
                number,
                id: id(number),
                udp_silence: 60,
                took_none_until: None,
            })
            .collect();
        let flows = self.generation.balancer.live_flows().unwrap();
        flows.correct(&counted, now + windows * 256, HZ);
    }

    /// The real that gets a frame on XDP.
    fn taker(&self, frame: &[u8]) -> usize {
        let program = self.generation.program(Hook::Xdp).unwrap();
        let answer = prog_test_run::packet(program, frame, 1).unwrap();
        assert_eq!(answer.verdict, 3);
        usize::from(answer.packet[5] - 10)
    }

    /// The takers of new flows of these clients, by real.
    fn takers(&self, reals: usize, clients: std::ops::Range<u32>) -> Vec<u64> {
        let mut taken = vec![0; reals];
        for client in clients {
            taken[self.taker(&syn(client as usize % 2, client))] += 1;
        }
        taken
    }
}

/// Flows that begin at once count at once; those that were there before make new ones go
/// to the others until all have as many.
#[test]
fn root_new_flows_go_where_fewer_live() {
    let path = Path::with_limits(20);
    path.least(&[1, 0]);
    assert_eq!(path.takers(2, 0..600), [600, 0]);
    assert_eq!(path.active(2), [600, 0]);
    path.least(&[1, 1]);
    let taken = path.takers(2, 1000..1400);
    assert!(taken[1] >= 350, "{taken:?}");
    path.takers(2, 2000..3000);
    let [one, two] = path.active(2)[..] else {
        unreachable!()
    };
    assert_eq!(one + two, 2000);
    assert!(one.abs_diff(two) < 60, "{one} {two}");
}

/// Each packet of a flow goes where its first one went, and what begins none goes by the
/// hash of "maglev".
#[test]
fn root_a_flow_that_went_to_the_less_loaded_stays_there() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::with_limits(20);
            path.least(&[1, 1, 1]);
            for client in 0..60 {
                let first = path.forwarded(hook, &syn(family, client));
                let again = from(family, client).tcp(4000, 80);
                for flags in [SYN, ACK, ACK | flag::PSH] {
                    let frame = again.clone().tcp_flags(flags).build();
                    assert_eq!(path.forwarded(hook, &frame), first);
                }
                let udp = from(family, client).udp(4000, 443).build();
                let first = path.forwarded(hook, &udp);
                assert_eq!(path.forwarded(hook, &udp), first);
            }
            let acks: Vec<_> = (100..140).map(|client| tcp(family, client, ACK)).collect();
            let taken: Vec<_> = acks.iter().map(|ack| path.forwarded(hook, ack)).collect();
            let other = Path::new();
            other.least(&[1, 1, 1]);
            other
                .generation
                .balancer
                .write_services(&services().collect::<Vec<_>>())
                .unwrap();
            let by_hash: Vec<_> = acks.iter().map(|ack| other.forwarded(hook, ack)).collect();
            assert_eq!(taken, by_hash);
        }
    }
}

/// A FIN or RST of the client counts once, and a next connection from its port is a new flow.
#[test]
fn root_a_flow_that_its_client_ends_counts_no_more() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::with_limits(20);
            path.least(&[1, 0]);
            let of = |client, flags| tcp(family, client, flags);
            for client in 0..40 {
                path.forwarded(hook, &of(client, SYN));
            }
            assert_eq!(path.active(2), [40, 0]);
            for client in 0..30 {
                let end = [flag::FIN | ACK, flag::RST, flag::RST | ACK][client as usize % 3];
                for flags in [ACK, end, ACK, end, flag::RST] {
                    assert_eq!(path.forwarded(hook, &of(client, flags)), 0);
                }
            }
            assert_eq!(path.active(2), [10, 0]);
            path.count(2, now(), 0);
            assert_eq!(path.active(2), [10, 0]);
            // What it acknowledges still goes there; a new connection goes where fewer are.
            path.least(&[1, 1]);
            let mut moved = 0;
            for client in 0..30 {
                assert_eq!(path.forwarded(hook, &of(client, ACK)), 0);
                let to = path.forwarded(hook, &of(client, SYN));
                assert_eq!(path.forwarded(hook, &of(client, SYN)), to);
                moved += u64::from(to);
            }
            assert_eq!(path.active(2), [40 - moved, moved]);
            assert!(moved >= 15, "{moved}");
            // One that nobody has ended does not leave.
            for client in 30..40 {
                assert_eq!(path.forwarded(hook, &of(client, SYN)), 0);
            }
        }
    }
}

/// Flows that say nothing any more, and those that are displaced or another real's, count
/// no more: sooner those that had a single packet, and those of UDP.
#[test]
fn root_live_flows_are_counted_in_the_table() {
    let tcp = |client, flags| tcp(0, client, flags);
    let udp = |client| from(1, client).udp(4000, 443).build();
    // 200 flows at one real, of which 120 have a second packet.
    let begun = || {
        let path = Path::with_limits(20);
        path.least(&[1, 0]);
        for client in 0..100 {
            path.taker(&tcp(client, SYN));
            path.taker(&udp(client));
            if client < 60 {
                path.taker(&tcp(client, ACK));
                path.taker(&udp(client));
            }
        }
        assert_eq!(path.active(2), [200, 0]);
        path
    };
    let path = begun();
    // One window is a second here.
    let now = now();
    for (windows, live) in [
        (0, 200),
        (2, 200),
        (8, 120),
        (50, 120),
        (70, 60),
        (890, 60),
        (910, 0),
    ] {
        // It is counted, and not summed up.
        for _ in 0..2 {
            path.count(2, now, windows);
            assert_eq!(path.active(2), [live, 0], "after {windows} windows");
        }
    }
    // The dates of flows begin anew after 65,536 windows, but not those flows.
    for windows in [65_536 - 10, 65_536, 65_536 + 10] {
        path.count(2, now, windows);
        assert_eq!(path.active(2), [0, 0], "after {windows} windows");
    }
    // The next packet counts one again, once.
    for _ in 0..2 {
        path.taker(&tcp(1, ACK));
        path.taker(&udp(2));
        assert_eq!(path.active(2), [2, 0]);
    }
    // It was down until ten seconds ago.
    let path = begun();
    for (windows, live) in [(2, 200), (8, 120), (15, 0)] {
        let back = CountedReal {
            number: 0,
            id: id(0),
            udp_silence: 60,
            took_none_until: Some(10),
        };
        let flows = path.generation.balancer.live_flows().unwrap();
        flows.correct(&[back], now + windows * 256, HZ);
        assert_eq!(path.active(2), [live, 0], "after {windows} windows");
    }
    // The number is another real's.
    let other = [CountedReal {
        number: 0,
        id: id(77),
        udp_silence: 60,
        took_none_until: None,
    }];
    let flows = path.generation.balancer.live_flows().unwrap();
    flows.correct(&other, now, HZ);
    assert_eq!(path.active(2), [0, 0]);
}

/// Nobody makes a real's count less than its flows, by the end of what has never begun to
/// count, or counts no more: that real would have all new flows.
#[test]
fn root_no_flow_ends_more_often_than_it_begins() {
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::with_limits(20);
            path.least(&[1, 0]);
            let of = |client, flags| tcp(family, client, flags);
            let fragment = from(family, 1).fragment(0, true).tcp(4000, 80);
            path.forwarded(hook, &fragment.tcp_flags(ACK).payload_len(64).build());
            assert_eq!(path.active(2), [1, 0]);
            path.forwarded(hook, &of(1, flag::FIN | ACK));
            path.forwarded(hook, &of(2, ACK));
            path.count(2, now(), 10);
            assert_eq!(path.active(2), [0, 0]);
            path.forwarded(hook, &of(2, flag::FIN | ACK));
            path.forwarded(hook, &of(3, SYN));
            assert_eq!(path.active(2), [1, 0], "{family}");
        }
    }
}

/// Whatever the counts say: of few reals nobody is left without new flows, and nobody gets
/// many more than twice its share where all weigh the same.
#[test]
fn root_no_count_sends_all_new_flows_to_one_real() {
    // Nobody ends the flows that somebody has begun at all reals but one.
    for reals in [2usize, 3, 8, 20] {
        let path = Path::with_limits(20);
        let all_but_last: Vec<_> = (0..reals).map(|n| u32::from(n + 1 < reals)).collect();
        path.least(&all_but_last);
        path.takers(reals, 0..20_000);
        path.least(&vec![1; reals]);
        let taken = path.takers(reals, 100_000..102_000);
        // Of 2,000 flows, and four standard deviations more.
        let share = 1.0 / reals as f64;
        let most = if reals == 2 { 15.0 / 16.0 } else { 2.0 * share };
        let deviation = (most * (1.0 - most) / 2000.0).sqrt();
        let last = taken[reals - 1] as f64 / 2000.0;
        assert!(last > 1.4 * share, "{taken:?}");
        assert!(last < most + 4.0 * deviation, "{taken:?}");
        assert!(taken.iter().all(|n| *n > 0), "{taken:?}");
    }
    // One that weighs less than the others gets more of its share, but not four times it.
    let path = Path::with_limits(20);
    path.least(&[1, 0]);
    path.takers(2, 0..20_000);
    path.least(&[9, 1]);
    let taken = path.takers(2, 100_000..102_000);
    assert!((600..800).contains(&taken[1]), "{taken:?}");
}

/// More flows than are remembered in a window go by the hash, and are not counted.
#[test]
fn root_a_flood_beyond_what_is_remembered_counts_no_further() {
    let path = Path::new();
    path.least(&[1, 1]);
    let taken = path.takers(2, 0..60_000);
    let counted: u64 = path.active(2).iter().sum();
    assert!(counted < 40_000, "{counted}");
    assert!(taken.iter().all(|n| *n > 20_000), "{taken:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Wherever flows live in the beginning, in the end each real has as many for its weight
    /// as the others, as far as two choices reach.
    #[test]
    fn root_flows_are_spread_by_weight(
        weights in prop::collection::vec(1..6u32, 2..9),
        before in prop::collection::vec(0..60u32, 8),
    ) {
        let path = Path::with_limits(20);
        let reals = weights.len();
        let mut client = 0;
        for (number, flows) in before.iter().take(reals).enumerate() {
            let only: Vec<_> = (0..reals).map(|n| u32::from(n == number)).collect();
            path.least(&only);
            path.takers(reals, client..client + flows);
            client += flows;
        }
        path.least(&weights);
        let total: u32 = 500 * reals as u32;
        path.takers(reals, client..total);
        let active = path.active(reals as u32);
        prop_assert_eq!(active.iter().sum::<u64>(), u64::from(total));
        let sum: u32 = weights.iter().sum();
        for (flows, weight) in active.iter().zip(&weights) {
            let share = f64::from(total) * f64::from(*weight) / f64::from(sum);
            let error = (*flows as f64 - share).abs();
            prop_assert!(error < 20.0 + share * 0.1, "{:?} for {:?}", active, weights);
        }
    }
}

//! The table of flows when it is full, and where a flow has two places in it.

use std::{fs, path::Path as Dir, sync::Barrier, thread};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_bpf::{abi, clock::JiffyClock, pins};

use super::*;

/// Bits of a flow's `state` that its hash is mixed with.
const SEALED: u64 = !0 << 32;
/// What XDP says of a frame that goes back out.
const XDP_TX: u32 = 3;
const PLACES: usize = abi::BALANCE_BUCKET as usize;

/// The table of a path's flows, as it stands in memory.
struct Table(MapHandle);

impl Table {
    fn of(path: &Path, name: &str) -> Self {
        let instance = format!("test-{name}-{}", std::process::id());
        let dir = pins::InstanceDir::open(Dir::new(pins::DEFAULT_ROOT), &instance).unwrap();
        let pin = dir.generation(1);
        path.generation.pin(&pin).unwrap();
        let map = MapHandle::from_pinned_path(pin.join("balance_flows")).unwrap();
        fs::remove_dir_all(Dir::new(pins::DEFAULT_ROOT).join(instance)).unwrap();
        Self(map)
    }

    fn bucket(&self, number: u32) -> [[u64; 2]; PLACES] {
        let value = self.0.lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap();
        let value = value.unwrap();
        let word = |at: usize| u64::from_ne_bytes(*value[8 * at..].first_chunk().unwrap());
        std::array::from_fn(|place| [word(2 * place), word(2 * place + 1)])
    }

    fn write(&self, number: u32, bucket: [[u64; 2]; PLACES]) {
        let value = bucket.as_flattened().iter().flat_map(|w| w.to_ne_bytes());
        let value: Vec<u8> = value.collect();
        self.0
            .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
            .unwrap();
    }

    /// The hash and state of each flow in it.
    fn flows(&self) -> Vec<(u64, u64)> {
        let buckets = (0..abi::BALANCE_BUCKETS).flat_map(|number| self.bucket(number));
        let flows = buckets.filter(|[_, state]| *state != 0);
        flows
            .map(|[sealed, state]| (sealed ^ (state & SEALED), state))
            .collect()
    }
}

/// Both buckets of a flow, by its hash.
fn buckets_of(hash: u64) -> [u32; 2] {
    let first = (hash >> 40) as u32;
    let second = first ^ ((hash >> 8) as u32 | 1);
    [first, second].map(|number| number & (abi::BALANCE_BUCKETS - 1))
}

fn displaced(path: &Path) -> u64 {
    let counts = (0..4).map(|n| path.generation.balancer.service_count(n).unwrap());
    counts.map(|count| count.displaced).sum()
}

/// Flows of two packets each, three times as many as the table holds, displace one another,
/// and no flow that has lasted for some seconds and is silent now; what else they displace
/// that may live is counted.
#[test]
fn root_a_flood_of_two_packets_a_flow_displaces_no_flow_that_has_lasted() {
    let path = Path::with_limits(20);
    let window = Duration::from_secs(256) / JiffyClock::probe().unwrap().hz() as u32;
    let lasting = 0..2000u32;
    let before: Vec<_> = lasting.clone().map(|n| sent_to(&path, n)).collect();
    for _ in 0..6 {
        thread::sleep(window + window / 20);
        lasting.clone().for_each(|n| {
            sent_to(&path, n);
        });
    }
    // As young as the flood, and with as many packets.
    let young = 4000..6000u32;
    let before_of_young: Vec<_> = young.clone().map(|n| sent_to(&path, n)).collect();
    young.clone().for_each(|n| {
        sent_to(&path, n);
    });
    assert_eq!(displaced(&path), 0, "there was room");
    let program = path.generation.program(Hook::Xdp).unwrap();
    for forged in 0..400_000u32 {
        let [_, high, middle, low] = (0x0010_0000 + forged).to_be_bytes();
        let client = IpAddr::from([11, high, middle, low]);
        let frame = Packet::eth().ip(client, addr(VIP[0])).tcp(4000, 80).build();
        for _ in 0..2 {
            prog_test_run::packet(program, &frame, 1).unwrap();
        }
    }
    all_to_the_second(&path);
    let moved = |flows: std::ops::Range<u32>, before: &[u8]| {
        let moved = flows.zip(before);
        moved
            .filter(|(n, real)| sent_to(&path, *n) != **real)
            .count()
    };
    assert_eq!(moved(lasting, &before), 0);
    // Half of them were the second real's anyway.
    let lost = moved(young, &before_of_young);
    assert!(lost > 500, "{lost}: that was no flood");
    assert!(displaced(&path) > 200_000, "{}", displaced(&path));
}

/// However a flow has got a second place, in its other bucket: what is read is what is
/// written, so it does not go back when the real returns that it has left.
#[test]
fn root_a_flow_with_two_places_goes_by_one_of_them() {
    let path = Path::new();
    let table = Table::of(&path, "twins");
    for client in 0..40 {
        path.write_reals(&[true, false]);
        let known: BTreeSet<_> = table.flows().into_iter().map(|(hash, _)| hash).collect();
        assert_eq!(sent_to(&path, client), 0);
        let new = table.flows();
        let new = new.iter().find(|(hash, _)| !known.contains(hash)).unwrap();
        let (hash, state) = *new;
        let [first, second] = buckets_of(hash);
        let place = |bucket: u32| {
            let flows = table.bucket(bucket);
            flows
                .iter()
                .position(|[sealed, _]| *sealed == hash ^ (state & SEALED))
        };
        let at = place(first).expect("it stands in its first bucket");
        assert_eq!(place(second), None);
        // Older than the other, or as young; with one packet, or several.
        let twin = match client % 4 {
            0 => state,
            1 => (state & !0xffff) | ((state - 9) & 0xffff),
            2 => state | 0x10000,
            _ => ((state & !0xffff) | ((state - 9) & 0xffff)) | 0x10000,
        };
        let mut bucket = table.bucket(second);
        bucket[0] = [hash ^ (twin & SEALED), twin];
        table.write(second, bucket);
        path.write_reals(&[false, true]);
        assert_eq!(sent_to(&path, client), 1);
        path.write_real(0, true, false);
        assert_eq!(sent_to(&path, client), 1, "twin {}", client % 4);
        let now = table.bucket(first)[at];
        assert_eq!(now[0] ^ (now[1] & SEALED), hash, "it stands where it stood");
    }
}

/// A frame that a switch floods: the flow has had no packet by it.
#[test]
fn root_a_flooded_frame_touches_no_known_flow() {
    const CONFIRMED: u64 = 0x10000;
    for hook in HOOKS {
        for family in 0..2 {
            let path = Path::new();
            let table = Table::of(&path, "flooded");
            let frame = packet(family, 1).tcp(4000, 80).tcp_flags(SYN).build();
            path.forwarded(hook, &frame);
            let before = table.flows();
            path.passes(hook, "of another host", &flooded(&frame));
            assert_eq!(table.flows(), before);
            assert_eq!((before.len(), before[0].1 & CONFIRMED), (1, 0));
            path.forwarded(hook, &frame);
            assert_eq!(table.flows()[0].1 & CONFIRMED, CONFIRMED);
        }
    }
}

/// Two CPUs on which the same flows begin at once give none of them two places, though turns
/// send them elsewhere on each.
#[test]
fn root_a_flow_that_begins_on_two_cpus_has_one_place() {
    const FLOWS: u32 = 30_000;
    if thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: two processors (probe: the affinity of this process)");
        return;
    }
    let path = Path::with_limits(20);
    let mut rules = vec![weir_bpf::balance::PoolRules::default(); 4];
    rules[3].slot_by = weir_bpf::balance::SlotBy::Turn;
    let all: Vec<_> = services().collect();
    let balancer = &path.generation.balancer;
    balancer.write_services_for(&all, &rules, 250).unwrap();
    let table = Table::of(&path, "cpus");
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for cpu in 0..2 {
            let (path, barrier) = (&path, &barrier);
            scope.spawn(move || {
                let mut cpus = rustix::thread::CpuSet::new();
                cpus.set(cpu);
                rustix::thread::sched_setaffinity(None, &cpus).unwrap();
                for client in 0..FLOWS {
                    // In step, as well as two system calls can be.
                    if client.is_multiple_of(64) {
                        barrier.wait();
                    }
                    sent_as_syn(path, client);
                }
            });
        }
    });
    let flows = table.flows();
    let hashes: BTreeSet<_> = flows.iter().map(|(hash, _)| hash).collect();
    // A third flow may have taken a place of the bucket between the two CPUs.
    let twins = flows.len() - hashes.len();
    assert!(twins <= 1, "{twins} flows with two places");
    // Of each both CPUs think the same from now on.
    assert!(flows.len() > FLOWS as usize * 99 / 100, "{}", flows.len());
}

fn sent_as_syn(path: &Path, client: u32) {
    let [_, high, middle, low] = client.to_be_bytes();
    let client = IpAddr::from([11, high, middle, low]);
    let frame = Packet::eth().ip(client, addr(VIP[0])).tcp(4000, 80);
    let frame = frame.tcp_flags(SYN).build();
    let program = path.generation.program(Hook::Xdp).unwrap();
    let answer = prog_test_run::packet(program, &frame, 1).unwrap();
    assert_eq!(answer.verdict, XDP_TX);
}

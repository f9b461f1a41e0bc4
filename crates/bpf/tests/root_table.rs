//! The ban table as the packet path reads it: against a model, under several
//! writers, through rebuilds and generations, at expiry. Root: loads BPF.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;
use weir_bpf::{
    BanCounts, Generation, Geometry, JiffyClock, Key, Options, Placed, Slot,
    attachment::Hook,
    events::EventReader,
    pins::{self, InstanceDir},
    prog_test_run, small_maps,
    table::NEVER,
};
use weir_core::{Prefix, Reason};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

const SEED: [u64; 3] = [0x5eed_0001, 0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];

fn generation(geometry: Geometry) -> Generation {
    let options = Options {
        seed: SEED,
        started: clock().now(),
        ..Options::bans(geometry)
    };
    Generation::create(1, &options, None).expect("the packet path loads")
}

fn clock() -> JiffyClock {
    static CLOCK: OnceLock<JiffyClock> = OnceLock::new();
    *CLOCK.get_or_init(|| JiffyClock::probe().expect("the clock program runs"))
}

/// A TCP segment to port 22 without more than its headers.
fn frame(source: IpAddr) -> Vec<u8> {
    let mut p = vec![0u8; 74];
    match source {
        IpAddr::V4(a) => {
            p[12..14].copy_from_slice(&[0x08, 0x00]);
            p[14] = 0x45;
            p[17] = 40;
            p[22] = 64;
            p[23] = 6;
            p[26..30].copy_from_slice(&a.octets());
            p[36..38].copy_from_slice(&22u16.to_be_bytes());
        }
        IpAddr::V6(a) => {
            p[12..14].copy_from_slice(&[0x86, 0xdd]);
            p[14] = 0x60;
            p[19] = 20;
            p[20] = 6;
            p[21] = 64;
            p[22..38].copy_from_slice(&a.octets());
            p[56..58].copy_from_slice(&22u16.to_be_bytes());
        }
    }
    p
}

fn verdict(generation: &Generation, source: IpAddr) -> u32 {
    prog_test_run::packet(generation.program(Hook::Xdp).unwrap(), &frame(source), 1)
        .expect("the program runs")
        .verdict
}

fn key(prefix: &str) -> Key {
    Key::of(prefix.parse::<Prefix>().unwrap()).unwrap()
}

/// Address `n` of a kind: 0 IPv4, 1 IPv6 /64, 2 IPv6 /128.
fn subject(kind: u8, n: u32) -> (Key, IpAddr) {
    let prefix = match kind {
        0 => Prefix::host(IpAddr::V4((0x0b00_0000 + n).into())),
        1 => {
            let net = 0x2001_0db8_0000_0000u64 + u64::from(n);
            Prefix::new(IpAddr::V6((u128::from(net) << 64 | 7).into()), 64).unwrap()
        }
        _ => {
            let host = 0x2001_0db8_ffff_0000_u128 << 64 | u128::from(n) << 32;
            Prefix::host(IpAddr::V6((host + 1).into()))
        }
    };
    (Key::of(prefix).unwrap(), prefix.addr())
}

#[derive(Debug, Clone, Copy)]
enum Ends {
    Past,
    Soon,
    /// Later than the table of IPv4 hosts has a form for.
    Late,
}

#[derive(Debug, Clone)]
enum Op {
    Insert {
        kind: u8,
        n: u32,
        policy: u16,
        ends: Ends,
    },
    Remove {
        kind: u8,
        n: u32,
        policy: Option<u16>,
    },
    Sweep,
    Rebuild,
    Shift,
    Grow,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // From 128 on, not in the table of IPv4 hosts.
    let policy = || prop_oneof![8 => 1..22u16, 1 => 127..130u16];
    let ends = prop_oneof![1 => Just(Ends::Past), 5 => Just(Ends::Soon), 1 => Just(Ends::Late)];
    let op = prop_oneof![
        24 => (0..3u8, 0..12u32, policy(), ends)
            .prop_map(|(kind, n, policy, ends)| Op::Insert { kind, n, policy, ends }),
        10 => (0..3u8, 0..12u32, prop::option::of(policy()))
            .prop_map(|(kind, n, policy)| Op::Remove { kind, n, policy }),
        6 => Just(Op::Sweep),
        4 => Just(Op::Rebuild),
        2 => Just(Op::Shift),
        // Loads the programs anew, which takes as long as all else.
        1 => Just(Op::Grow),
    ];
    prop::collection::vec(op, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]

    /// Tables of the least size and more entries a key than its two buckets hold, so
    /// that they overflow; what the kernel decides is what the model says, for every
    /// address after every run.
    #[test]
    fn root_table_agrees_with_a_map(ops in ops()) {
        let tiny = Geometry {
            v4_buckets: 2048, buckets64: 64, overflow64: 8, buckets128: 64, overflow128: 16, bloom_words: 64,
        };
        let now = clock().now();
        let started = now - 2_000_000;
        let options = Options { seed: SEED, started, ..Options::bans(tiny) };
        let mut generation = Generation::create(1, &options, None).unwrap();
        let mut model: HashMap<(Key, u16), u64> = HashMap::new();
        for op in ops {
            match op {
                Op::Insert { kind, n, policy, ends } => {
                    let (key, _) = subject(kind, n);
                    let expiry = match ends {
                        Ends::Past => now - 1_000_000,
                        Ends::Soon => now + 1_000_000,
                        Ends::Late => now + (1 << 32),
                    };
                    match generation.table.insert(Slot { key, policy, expiry }) {
                        Placed::NoRoom => {
                            // An IPv4 host's ban that is to end later than its own
                            // table can say stays as it was.
                            let is_there = model.contains_key(&(key, policy));
                            prop_assert!(!is_there || kind == 0, "no room for what is there");
                            continue;
                        }
                        Placed::New => prop_assert!(!model.contains_key(&(key, policy))),
                        Placed::Replaced => prop_assert!(model.contains_key(&(key, policy))),
                    }
                    model.insert((key, policy), expiry);
                }
                Op::Remove { kind, n, policy } => {
                    let (key, _) = subject(kind, n);
                    let lifted = generation.table.remove(key, |p| policy.is_none_or(|w| w == p));
                    let before = model.len();
                    model.retain(|(k, p), _| *k != key || policy.is_some_and(|w| w != *p));
                    prop_assert_eq!(lifted.len(), before - model.len());
                }
                Op::Sweep => {
                    generation.table.sweep(0..generation.table.buckets_in_all(), now);
                    model.retain(|_, expiry| *expiry > now);
                }
                Op::Rebuild => generation.table.rebuild_bloom(),
                Op::Shift => {
                    generation.table.shift_expiries(5);
                    model.values_mut().for_each(|e| *e += 5);
                }
                Op::Grow => {
                    let options = Options { seed: [3, 5, 7], started, ..Options::bans(tiny) };
                    let next = Generation::create(2, &options, Some(&generation)).unwrap();
                    let mut lost = Vec::new();
                    generation.table.for_each(0, |slot| {
                        if next.table.insert(slot) == Placed::NoRoom {
                            lost.push((slot.key, slot.policy));
                        }
                    });
                    for gone in lost {
                        model.remove(&gone);
                    }
                    generation = next;
                }
            }
        }
        let mut stored: Vec<_> = Vec::new();
        generation.table.for_each(0, |s| stored.push((s.key, s.policy, s.expiry)));
        stored.sort();
        let mut wanted: Vec<_> = model.iter().map(|((k, p), e)| (*k, *p, *e)).collect();
        wanted.sort();
        prop_assert_eq!(stored, wanted);
        for kind in 0..3 {
            for n in 0..12 {
                let (key, addr) = subject(kind, n);
                let banned = model.iter().any(|((k, _), e)| *k == key && *e > now);
                let expected = if banned { XDP_DROP } else { XDP_PASS };
                prop_assert_eq!(verdict(&generation, addr), expected, "{} {}", kind, n);
            }
        }
    }
}

#[test]
fn root_a_million_bans_are_each_dropped() {
    let n = 400_000;
    let generation = generation(Geometry::for_bans(BanCounts::each(n)));
    for i in 0..n as u32 {
        for kind in 0..3 {
            let (key, _) = subject(kind, i);
            let slot = Slot {
                key,
                policy: 1,
                expiry: NEVER,
            };
            assert_eq!(generation.table.insert(slot), Placed::New, "{kind} {i}");
        }
    }
    let filled = generation.table.filled();
    assert_eq!(filled.sum(), 3 * n);
    // Some IPv4 hosts find both their buckets full, and are with the networks.
    let apart = filled.networks - n;
    assert!(apart < n / 1000, "{filled:?}");
    for i in 0..n as u32 {
        for kind in 0..3 {
            assert_eq!(
                verdict(&generation, subject(kind, i).1),
                XDP_DROP,
                "{kind} {i}"
            );
        }
    }
    for i in n as u32..n as u32 + 10_000 {
        for kind in 0..3 {
            assert_eq!(
                verdict(&generation, subject(kind, i).1),
                XDP_PASS,
                "innocent {kind} {i}"
            );
        }
    }
}

/// Hosts are found by a fingerprint of 64 bits. Those that share one, which who
/// knows the seed can choose, and those whose fingerprint is what an empty or a
/// freed slot has, are told apart in the packet path, in listings and in lifting.
#[test]
fn root_hosts_of_one_fingerprint_are_told_apart() {
    // `hash64` of bpf/lib/hash.h with the seed of `generation`.
    let hash = |key: u64| {
        let mut h = key.wrapping_add(SEED[0]);
        h ^= h >> 32;
        h = h.wrapping_mul(SEED[1] | 1);
        h ^= h >> 29;
        h = h.wrapping_mul(SEED[2] | 1);
        h ^ h >> 32
    };
    for fingerprint in [0x1234_5678_9abc_def0, 0, 1] {
        let generation = generation(Geometry::for_bans(BanCounts::each(100)));
        let table = &generation.table;
        // Each also bans a neighbour in its /64, so that the bloom filter sends
        // its packets to the table.
        let hosts: Vec<(Key, IpAddr)> = (0..16u64)
            .map(|n| {
                let hi = 0x2001_0db8_0000_0000 | n;
                let addr = |lo| IpAddr::from((u128::from(hi) << 64 | u128::from(lo)).to_be_bytes());
                let neighbour = Slot {
                    key: Key::Long(hi, 7),
                    policy: 2,
                    expiry: NEVER,
                };
                assert_eq!(table.insert(neighbour), Placed::New);
                let lo = hash(hi) ^ fingerprint;
                (Key::Long(hi, lo), addr(lo))
            })
            .collect();
        let ban = |n: usize| Slot {
            key: hosts[n].0,
            policy: n as u16 + 3,
            expiry: NEVER,
        };
        let check = |banned: &dyn Fn(usize) -> bool, what: &str| {
            let mut stored = Vec::new();
            table.for_each(0, |slot| stored.push(slot));
            stored.retain(|slot| slot.policy != 2);
            stored.sort();
            let wanted: Vec<_> = (0..hosts.len()).filter(|n| banned(*n)).map(ban).collect();
            assert_eq!(stored, wanted, "{fingerprint:x} {what}");
            for (n, (key, addr)) in hosts.iter().enumerate() {
                let (entries, dropped) = if banned(n) {
                    (vec![ban(n)], XDP_DROP)
                } else {
                    (vec![], XDP_PASS)
                };
                assert_eq!(table.get(*key), entries, "{fingerprint:x} {what} {n}");
                assert_eq!(
                    verdict(&generation, *addr),
                    dropped,
                    "{fingerprint:x} {what} {n}"
                );
            }
        };
        check(&|_| false, "none");
        assert_eq!(table.insert(ban(0)), Placed::New);
        check(&|n| n == 0, "one");
        // More than two buckets hold, so that some overflow.
        for n in (2..16).step_by(2) {
            assert_eq!(table.insert(ban(n)), Placed::New);
        }
        check(&|n| n % 2 == 0, "every second");
        assert_eq!(table.remove(hosts[1].0, |_| true), []);
        for n in (0..16).step_by(4) {
            assert_eq!(table.remove(hosts[n].0, |_| true), [ban(n)]);
        }
        check(&|n| n % 4 == 2, "every fourth");
        for n in (1..16).step_by(2) {
            assert_eq!(table.insert(ban(n)), Placed::New);
        }
        check(&|n| n % 4 != 0, "but every fourth");
        for _ in 0..3 {
            table.sweep(0..table.buckets_in_all(), clock().now());
            table.rebuild_bloom();
        }
        check(&|n| n % 4 != 0, "after sweeps");
        assert_eq!(table.insert(ban(4)), Placed::New);
        assert_eq!(table.insert(ban(4)), Placed::Replaced);
        check(&|n| n % 4 != 0 || n == 4, "again");
    }
}

#[test]
fn root_several_writers_lose_nothing() {
    let generation = generation(Geometry::for_bans(BanCounts::each(45_000)));
    let (done, rebuilt) = (AtomicBool::new(false), AtomicBool::new(false));
    let (watched, watched_addr) = subject(2, 0xffff_fff0);
    generation.table.insert(Slot {
        key: watched,
        policy: 1,
        expiry: NEVER,
    });
    std::thread::scope(|scope| {
        // Subjects of the writers overlap, so they race for the same slots.
        let writers: Vec<_> = (0..4u32)
            .map(|w| {
                let table = &generation.table;
                scope.spawn(move || {
                    for i in 0..30_000 {
                        let (key, _) = subject((i % 3) as u8, (i + w * 7_000) % 44_000);
                        let placed = table.insert(Slot {
                            key,
                            policy: 1,
                            expiry: NEVER,
                        });
                        assert_ne!(placed, Placed::NoRoom);
                    }
                })
            })
            .collect();
        // Maintenance beside them, and a reader that must never miss.
        scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) || rounds < 1000 {
                generation.table.rebuild_bloom();
                rounds += 1;
                // As far apart as a packet takes, or a reader could see both copies cleared.
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
            rebuilt.store(true, Ordering::Relaxed);
        });
        let reader = scope.spawn(|| {
            let mut packets = 0u32;
            while !rebuilt.load(Ordering::Relaxed) {
                assert_eq!(
                    verdict(&generation, watched_addr),
                    XDP_DROP,
                    "after {packets} packets"
                );
                packets += 1;
            }
            assert!(packets > 1000, "the reader saw {packets} packets only");
        });
        let written: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|w| w.unwrap());
        reader.join().unwrap();
    });
    for w in 0..4u32 {
        for i in 0..30_000 {
            let (key, addr) = subject((i % 3) as u8, (i + w * 7_000) % 44_000);
            assert!(!generation.table.get(key).is_empty());
            if i % 16 == 0 {
                assert_eq!(verdict(&generation, addr), XDP_DROP);
            }
        }
    }
}

/// A ban that is to end later than the table of IPv4 hosts can say goes to the other
/// one. Where that has no room, it stays in force as it was.
#[test]
fn root_a_ban_that_cannot_be_renewed_stays() {
    let (now, late) = (clock().now(), clock().now() + (1 << 33));
    let tiny = Geometry {
        buckets64: 64,
        overflow64: 8,
        ..Geometry::for_bans(BanCounts::each(100))
    };
    let generation = generation(tiny);
    let table = &generation.table;
    let slot = |n, expiry| Slot {
        key: subject(0, n).0,
        policy: 1,
        expiry,
    };
    let soon = now + 1_000_000;
    let host = (0..1000).find(|n| {
        assert_eq!(table.insert(slot(*n, soon)), Placed::New);
        table.insert(slot(*n, late)) == Placed::NoRoom
    });
    let host = host.expect("the table of networks is full of the others");
    assert_eq!(table.get(subject(0, host).0), [slot(host, soon)]);
    assert_eq!(verdict(&generation, subject(0, host).1), XDP_DROP);
    for n in 0..host {
        assert_eq!(table.get(subject(0, n).0), [slot(n, late)]);
        assert_eq!(verdict(&generation, subject(0, n).1), XDP_DROP);
    }
    assert_eq!(table.filled().sum(), host as usize + 1);
    // And back again into its own table, in the next generation.
    assert!(!table.is_past_its_form(now));
    assert!(table.is_past_its_form(now + (1 << 32)));
}

#[test]
fn root_a_slot_comes_back_after_its_sweeps() {
    let generation = generation(Geometry::for_bans(BanCounts::each(10)));
    let all = 0..generation.table.buckets_in_all();
    let capacity = 3000; // more than the table has slots
    for round in 0..capacity {
        for kind in 0..3 {
            let (key, addr) = subject(kind, round);
            let slot = Slot {
                key,
                policy: 1,
                expiry: NEVER,
            };
            assert_eq!(generation.table.insert(slot), Placed::New, "round {round}");
            assert_eq!(generation.table.remove(key, |_| true), vec![slot]);
            assert_eq!(verdict(&generation, addr), XDP_PASS);
        }
        for _ in 0..3 {
            generation.table.sweep(all.clone(), clock().now());
        }
    }
}

#[test]
fn root_bans_that_end_together_end_at_their_jiffy() {
    let clock = clock();
    let generation = generation(Geometry::for_bans(BanCounts::each(40_000)));
    let expiry = clock.now() + 2 * clock.hz();
    for i in 0..33_400 {
        for kind in 0..3 {
            let (key, _) = subject(kind, i);
            generation.table.insert(Slot {
                key,
                policy: 1,
                expiry,
            });
        }
    }
    let (mut dropped, mut passed, mut i) = (0, 0, 0);
    while clock.now() < expiry + 50 {
        let (_, addr) = subject((i % 3) as u8, i % 33_400);
        let before = clock.now();
        let verdict = verdict(&generation, addr);
        let after = clock.now();
        if verdict == XDP_PASS {
            // user space may see a tick up to one late
            assert!(
                after + 1 >= expiry,
                "passed {} jiffies early",
                expiry - after
            );
            passed += 1;
        } else {
            assert!(
                before < expiry + 2,
                "dropped {} jiffies late",
                before - expiry
            );
            dropped += 1;
        }
        i += 1;
    }
    assert!(
        dropped > 100 && passed > 100,
        "{dropped} dropped, {passed} passed"
    );
}

#[test]
fn root_expiry_is_compared_at_full_width() {
    let generation = generation(Geometry::for_bans(BanCounts::each(100)));
    let now = clock().now();
    for (name, expiry, expected) in [
        ("just below 2^32", (1u64 << 32) - 1, (1u64 << 32) > now),
        ("2^32 ahead", now + (1 << 32), true),
        (
            "2^32 and one tick ago in the low half",
            (now & 0xffff_ffff) + 1,
            false,
        ),
        (
            "low half in the past, high half ahead",
            (2u64 << 32) | 1,
            true,
        ),
        ("without end", NEVER, true),
        ("zero", 0, false),
        ("now", now, false),
    ] {
        let expected = if now >> 32 == 0 {
            expiry > now
        } else {
            expected
        };
        let (key, addr) = subject(0, expiry as u32 & 0xffff);
        generation.table.remove(key, |_| true);
        generation.table.insert(Slot {
            key,
            policy: 1,
            expiry,
        });
        let wanted = if expected { XDP_DROP } else { XDP_PASS };
        assert_eq!(verdict(&generation, addr), wanted, "{name}");
    }
}

#[test]
fn root_pins_of_another_layout_are_refused() {
    let instance = format!("test-{}", std::process::id());
    let root = std::path::Path::new(pins::DEFAULT_ROOT);
    let dir = InstanceDir::open(root, &instance)
        .expect("bpffs")
        .generation(1);
    let made = generation(Geometry::for_bans(BanCounts::each(100)));
    let (k, addr) = subject(1, 5);
    made.table.insert(Slot {
        key: k,
        policy: 1,
        expiry: NEVER,
    });
    made.pin(&dir).unwrap();
    let guard = Removed(root.join(&instance));
    drop(made);
    let adopted = Generation::adopt(&dir).unwrap();
    assert_eq!(verdict(&adopted, addr), XDP_DROP);
    assert_eq!(adopted.table.get(k).len(), 1);
    std::fs::remove_file(dir.join("bloom")).unwrap();
    assert!(
        Generation::adopt(&dir).is_err(),
        "a directory that is not whole"
    );
    drop(guard);
    assert_eq!(key("192.0.2.1").prefix().to_string(), "192.0.2.1");
}

struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Of many drops few are told as events, and the headers of the others are not
/// looked at but for what saves a packet: they leave by the same exits. Printed:
/// what such a drop costs.
#[test]
fn root_drops_without_an_event_leave_as_the_others() {
    const RUNS: u32 = 1000;
    let generation = generation(Geometry::for_bans(BanCounts::each(100)));
    let allowed = ["198.51.100.9", "2001:db8:7::9"];
    let allow = allowed.iter().map(|a| a.parse().unwrap());
    generation.allow.write(&allow.collect()).unwrap();
    for source in ["198.51.100.7", "2001:db8:7::7", allowed[0], allowed[1]] {
        let prefix = Prefix::host(source.parse().unwrap());
        generation.table.insert(Slot {
            key: Key::of(prefix).unwrap(),
            policy: 1,
            expiry: NEVER,
        });
    }
    let count = |reason: Reason| {
        let all = small_maps::read_counters(&generation.counters).unwrap();
        all[reason as usize]
    };
    let events = EventReader::new(&generation.events).unwrap();
    let tell = || events.read(Duration::ZERO).unwrap();
    // TCP, UDP, DHCP of either side, its ports in TCP.
    let kinds = [
        (6, 22, 4000, Reason::BannedAll),
        (17, 53, 4000, Reason::BannedAll),
        (17, 68, 67, Reason::Essential),
        (17, 67, 68, Reason::Essential),
        (6, 68, 67, Reason::BannedAll),
        (1, 0, 0, Reason::BannedAll),
    ];
    for hook in [Hook::Xdp, Hook::Tcx] {
        for (protocol, from, to, reason) in kinds {
            for (source, is_allowed) in [
                ("198.51.100.7", false),
                ("2001:db8:7::7", false),
                (allowed[0], true),
                (allowed[1], true),
            ] {
                let source: IpAddr = source.parse().unwrap();
                let (from, to) = match source {
                    IpAddr::V6(_) if from > 60 && to > 60 => (from + 479, to + 479),
                    _ => (from, to),
                };
                let mut packet = frame(source);
                let (at, next) = if source.is_ipv4() { (34, 23) } else { (54, 20) };
                packet[next] = protocol;
                packet[at..at + 2].copy_from_slice(&u16::to_be_bytes(from));
                packet[at + 2..at + 4].copy_from_slice(&u16::to_be_bytes(to));
                packet[at + 5] = 20; // of UDP: its length
                let reason = match reason {
                    Reason::BannedAll if is_allowed => Reason::Allowed,
                    reason => reason,
                };
                let before = count(reason);
                let answer =
                    prog_test_run::packet(generation.program(hook).unwrap(), &packet, RUNS)
                        .unwrap();
                let after = count(reason);
                let name = format!("{} {source} {protocol} {from}>{to}", hook.name());
                let bytes = u64::from(RUNS) * packet.len() as u64;
                let counted = (after.0 - before.0, after.1 - before.1);
                assert_eq!(counted, (u64::from(RUNS), bytes), "{name}");
                let dropped = match hook {
                    Hook::Xdp => answer.verdict == XDP_DROP,
                    _ => answer.verdict == 2,
                };
                assert_eq!(dropped, reason == Reason::BannedAll, "{name}");
                for event in tell() {
                    assert_eq!(IpAddr::from(event.source).to_canonical(), source, "{name}");
                    assert_eq!(
                        (event.protocol, event.reason),
                        (protocol, reason as u32),
                        "{name}"
                    );
                    if protocol != 1 {
                        assert_eq!(event.port, to, "{name}");
                    }
                }
            }
        }
    }
    // Observed packets pass, whether or not they are told.
    generation.table.set_observe(true);
    let before = count(Reason::Observed).0;
    let packet = frame("198.51.100.7".parse().unwrap());
    let answer =
        prog_test_run::packet(generation.program(Hook::Xdp).unwrap(), &packet, RUNS).unwrap();
    assert_eq!(answer.verdict, XDP_PASS);
    assert_eq!(count(Reason::Observed).0 - before, u64::from(RUNS));
    generation.table.set_observe(false);
    for source in ["198.51.100.7", "2001:db8:7::7"] {
        let packet = frame(source.parse().unwrap());
        let mut nanos: Vec<_> = (0..9)
            .map(|_| {
                let program = generation.program(Hook::Xdp).unwrap();
                prog_test_run::packet(program, &packet, 1_000_000)
                    .unwrap()
                    .nanos
            })
            .collect();
        nanos.sort_unstable();
        println!(
            "a drop of {source} without an event: {} ns by PROG_RUN",
            nanos[4]
        );
    }
}

//! The kernel backend without a daemon: growth under writers, take-over,
//! eviction, suspended time, what it refuses. Root: loads BPF.

use std::{
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Placed, Slot,
    generator::Generator,
    link::Link,
    pins::{self, InstanceDir},
    run,
    tables::MAX_POLICIES,
};
use weir_core::{Action, Prefix, Producer, Scope, Subject, decoy::DecoyPorts};
use weir_enforce::{
    Backend, BootNanos, Choice, DecoyResponder, Decoys, Entry, Error, Expiry, Feature, Policy,
    Settings,
    hook_selection::{Advice, Calibration, HookCost, Measured, Prefer},
    hooks::{Hooks, Programs, Wanted},
    kernel::{self, Hook, Kernel, KernelConfig},
    nft,
};

/// `XDP_DROP` of linux/bpf.h.
const XDP_DROP: u32 = 1;
const HOUR: u64 = 3_600_000_000_000;

/// An instance of its own, gone with its pins at the end.
struct Instance(KernelConfig);

impl Instance {
    fn new(name: &str, max_bans: usize) -> Self {
        Self(KernelConfig {
            instance: format!("test-{name}-{}", std::process::id()),
            pin_root: pins::DEFAULT_ROOT.into(),
            room: Default::default(),
            ipv4_length: Some(24),
            settings: Settings {
                interfaces: Vec::new(),
                backend: Choice::Kernel(Hook::Tcx),
                advice: Default::default(),
                max_bans,
                observe: false,
            },
        })
    }

    fn open(&self) -> Arc<Kernel> {
        kernel::open(&self.0).expect("the backend opens")
    }

    fn pinned(&self) -> Generation {
        let dir = self
            .0
            .pin_root
            .join(pins::escape(&self.0.instance))
            .join("current");
        Generation::adopt(&dir).expect("a whole generation is pinned")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = kernel::detach(&self.0.pin_root, &self.0.instance);
    }
}

fn subject(n: u32) -> Subject {
    let addr: IpAddr = if n.is_multiple_of(2) {
        IpAddr::V4((0x0b00_0000 + n).into())
    } else {
        IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(n) << 8 | 1).into())
    };
    Subject::new(Prefix::host(addr)).unwrap()
}

fn entry(n: u32, producer: Producer, seconds: u64) -> Entry {
    Entry {
        subject: subject(n),
        policy: Arc::new(Policy {
            producer,
            scope: Scope::all(),
            action: Action::Drop,
        }),
        expiry: Expiry::At(BootNanos(BootNanos::now().0 + seconds * 1_000_000_000)),
    }
}

fn jail(name: &str) -> Producer {
    Producer::Jail(name.into())
}

#[test]
fn root_growth_under_writers_loses_nothing() {
    let instance = Instance::new("growth", 1_000_000);
    let backend = instance.open();
    let watched = entry(9_999_998, Producer::Manual, 3600);
    backend.insert(std::slice::from_ref(&watched)).unwrap();
    let (inserted, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let generations = std::thread::scope(|scope| {
        for w in 0..3u32 {
            let (backend, inserted) = (&backend, &inserted);
            scope.spawn(move || {
                for n in (w * 40_000..(w + 1) * 40_000)
                    .collect::<Vec<_>>()
                    .chunks(100)
                {
                    let entries: Vec<_> = n.iter().map(|n| entry(*n, jail("a"), 3600)).collect();
                    let new = backend.insert(&entries).unwrap().new;
                    inserted.fetch_add(new as u64, Ordering::Relaxed);
                }
            });
        }
        let maintenance = scope.spawn(|| {
            let mut generations = 1;
            while !done.load(Ordering::Relaxed) {
                backend.maintain().unwrap();
                generations = backend.usage().generation;
                let found = backend
                    .entries_for(watched.subject.prefix().addr())
                    .unwrap();
                assert_eq!(
                    found.len(),
                    1,
                    "the watched ban is gone in generation {generations}"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            generations
        });
        while inserted.load(Ordering::Relaxed) < 120_000 {
            assert!(!maintenance.is_finished(), "maintenance failed");
            std::thread::sleep(Duration::from_millis(5));
        }
        done.store(true, Ordering::Relaxed);
        maintenance.join().unwrap()
    });
    assert!(
        generations >= 3,
        "the table grew to generation {generations} only"
    );
    assert_eq!(backend.usage().bans, 120_001);
    assert_eq!(backend.entries().unwrap().len(), 120_001);
    for n in (0..120_000).step_by(7) {
        assert_eq!(
            backend
                .entries_for(subject(n).prefix().addr())
                .unwrap()
                .len(),
            1,
            "{n}"
        );
    }

    drop(backend);
    let next = instance.open();
    assert_eq!(next.entries().unwrap().len(), 120_001, "after a take-over");
    assert_eq!(
        next.entries_for(watched.subject.prefix().addr()).unwrap()[0].policy,
        watched.policy
    );
}

#[test]
fn root_the_cap_is_kept_within_a_producer() {
    let instance = Instance::new("cap", 100);
    let backend = instance.open();
    for n in 0..20 {
        backend.insert(&[entry(n, Producer::Manual, 60)]).unwrap();
    }
    for n in 20..60 {
        backend.insert(&[entry(n, jail("other"), 30)]).unwrap();
    }
    for n in 60..100 {
        backend
            .insert(&[entry(n, jail("loud"), 1000 + u64::from(n))])
            .unwrap();
    }
    for n in 100..130 {
        let done = backend.insert(&[entry(n, jail("loud"), 5000)]).unwrap();
        let gone: Vec<_> = done.evicted.iter().map(|e| e.subject).collect();
        assert_eq!(gone, [subject(n - 40)], "oldest-expiring first");
    }
    let usage = backend.usage();
    assert_eq!((usage.bans, usage.evicted), (100, 30));
    let of = |producer: Producer| {
        backend
            .entries()
            .unwrap()
            .iter()
            .filter(|e| e.policy.producer == producer)
            .count()
    };
    assert_eq!(
        (of(Producer::Manual), of(jail("other")), of(jail("loud"))),
        (20, 40, 40)
    );
    // Nothing of its own to give up, and manual bans give up nothing.
    for producer in [jail("new"), Producer::Manual] {
        let error = Error::from(backend.insert(&[entry(999, producer, 60)]).unwrap_err());
        assert!(matches!(error, Error::Full(100)), "{error}");
    }
    // Who had to go before an insertion ended early is told all the same.
    let (loud, refused) = (entry(200, jail("loud"), 5000), entry(998, jail("new"), 60));
    let ended = backend.insert(&[loud, refused]).unwrap_err();
    assert!(matches!(ended.error, Error::Full(100)), "{ended}");
    let gone: Vec<_> = ended.done.evicted.iter().map(|e| e.subject).collect();
    assert_eq!((ended.done.new, gone), (1, vec![subject(90)]));
    // The same ban again needs no place.
    assert_eq!(
        backend
            .insert(&[entry(5, Producer::Manual, 90)])
            .unwrap()
            .replaced,
        1
    );
}

/// At the cap all of the table is read for bans that are over when one can be, not
/// for each insertion.
#[test]
fn root_insertions_at_the_cap_read_the_table_when_a_ban_can_be_over() {
    let instance = Instance::new("passes", 100);
    let backend = instance.open();
    for n in 0..100 {
        backend.insert(&[entry(n, jail("a"), 3600)]).unwrap();
    }
    for n in 100..200 {
        let done = backend.insert(&[entry(n, jail("a"), 3600)]).unwrap();
        assert_eq!((done.new, done.evicted.len()), (1, 1));
        backend
            .insert(&[entry(n, jail("other"), 3600)])
            .unwrap_err();
    }
    assert_eq!(
        backend.work().expiry_passes,
        1,
        "of 200 insertions at the cap"
    );

    // One ban is soon over, and its place is another's: nobody has to go.
    backend.remove(subject(150), None, None).unwrap();
    let short = entry(500, jail("short"), 2);
    backend.insert(std::slice::from_ref(&short)).unwrap();
    let over = Instant::now() + Duration::from_secs(20);
    while !backend
        .entries_for(short.subject.prefix().addr())
        .unwrap()
        .is_empty()
    {
        assert!(Instant::now() < over, "a ban of two seconds does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = backend.insert(&[entry(501, jail("other"), 3600)]).unwrap();
    assert_eq!((done.new, done.evicted.len()), (1, 0));
    assert_eq!(backend.work().expiry_passes, 2);
    assert_eq!(backend.usage().bans, 100);
}

/// Runs a test in a process of its own, for it changes what all of a process has;
/// true there.
fn is_alone(name: &str) -> bool {
    if std::env::var_os("WEIR_TEST_ALONE").is_some() {
        return true;
    }
    let refused = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("WEIR_TEST_ALONE", "1")
        .env("WEIR_FAULT_REFUSE", refused)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    false
}

/// Has a fault point refuse what it stands before, for as long as this lives; in a
/// process that `is_alone`.
#[cfg(feature = "fault-points")]
struct Refused(std::path::PathBuf);

#[cfg(feature = "fault-points")]
impl Refused {
    fn at(point: &str) -> Self {
        let file = std::env::var_os("WEIR_FAULT_REFUSE").expect("is_alone sets it");
        std::fs::write(&file, point).unwrap();
        Self(file.into())
    }
}

#[cfg(feature = "fault-points")]
impl Drop for Refused {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The generations that have pins.
#[cfg(feature = "fault-points")]
fn pinned_generations(instance: &Instance) -> Vec<String> {
    let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
    let names = std::fs::read_dir(pins)
        .unwrap()
        .map(|pin| pin.unwrap().file_name());
    let names = names.map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| name.starts_with('g')).collect()
}

#[test]
#[cfg(feature = "fault-points")]
fn root_a_growth_that_is_refused_leaves_no_pins() {
    if !is_alone("root_a_growth_that_is_refused_leaves_no_pins") {
        return;
    }
    let instance = Instance::new("no-pins", 1_000_000);
    let backend = instance.open();
    let bulk: Vec<_> = (0..13_000).map(|n| entry(2 * n, jail("a"), 3600)).collect();
    {
        let _refused = Refused::at("pin-programs");
        let _ = backend.insert(&bulk);
    }
    assert!(backend.work().growths > 0, "nothing was tried");
    assert_eq!(backend.usage().generation, 1);
    assert_eq!(pinned_generations(&instance), ["g1"]);
}

/// Larger tables are given up when interfaces have them already, and these cannot be
/// told so: maintenance tells them, and no ban is made in vain meanwhile for long.
#[test]
#[cfg(feature = "fault-points")]
fn root_a_link_switch_that_failed_is_asked_again() {
    if !is_alone("root_a_link_switch_that_failed_is_asked_again") {
        return;
    }
    if weir_bpf::probe::tcx_programs(1).is_none() {
        eprintln!("skipped: tcx (probe: BPF_PROG_QUERY of tcx, Linux 6.6)");
        return;
    }
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new("relink", 1_000_000);
    instance.0.settings.interfaces = vec!["br0".into(), "br1".into()];
    host.enter(|| {
        for name in &instance.0.settings.interfaces {
            let added = std::process::Command::new("ip")
                .args(["link", "add", name, "up", "type", "bridge"])
                .status();
            assert!(added.unwrap().success());
        }
        let backend = instance.open();
        backend.attach().unwrap();
        let programs = || ["br0", "br1"].map(programs_of);
        let before = programs();
        let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
        std::fs::create_dir(pins.join("current-new")).unwrap();
        let bulk: Vec<_> = (0..13_000).map(|n| entry(2 * n, jail("a"), 3600)).collect();
        {
            let _refused = Refused::at("link-current");
            let _ = backend.insert(&bulk);
        }
        assert_eq!(backend.usage().generation, 1);
        assert_eq!(pinned_generations(&instance), ["g1"]);
        assert_ne!(programs(), before, "they have what was given up");
        let _ = backend.maintain();
        assert_eq!(programs(), before);
    })
    .unwrap();
}

/// Tables that have no room for a ban that comes while they are filled are not taken
/// into use: they are made again, larger.
#[test]
#[cfg(feature = "fault-points")]
fn root_bans_that_larger_tables_refuse_are_not_lost() {
    if !is_alone("root_bans_that_larger_tables_refuse_are_not_lost") {
        return;
    }
    let instance = Instance::new("refuses", 1_000_000);
    let backend = instance.open();
    let bulk: Vec<_> = (0..13_000).map(|n| entry(2 * n, jail("a"), 3600)).collect();
    let done = AtomicBool::new(false);
    let (inserted, made) = std::thread::scope(|scope| {
        let (done, backend, instance) = (&done, &backend, &instance);
        let writer = scope.spawn(move || {
            let mut inserted = Vec::new();
            for n in 100_000.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                if backend.insert(&[entry(n, jail("b"), 3600)]).is_ok() {
                    inserted.push(n);
                }
                // Few, so that the first tables have room.
                if inserted.len() > 3000 {
                    for n in inserted.drain(..2000) {
                        backend.remove(subject(n), None, None).unwrap();
                    }
                }
            }
            inserted
        });
        let refused = Refused::at("insert-next");
        scope.spawn(move || {
            let next = || pinned_generations(instance).contains(&"g2".to_owned());
            let mut was_there = false;
            while !done.load(Ordering::Relaxed) && !(was_there && !next()) {
                was_there |= next();
                std::thread::sleep(Duration::from_micros(100));
            }
            // The first ones were given up.
            drop(refused);
        });
        let made = backend.insert(&bulk);
        done.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), made)
    });
    assert_eq!(made.unwrap().new, bulk.len());
    assert_eq!(backend.usage().generation, 2);
    assert_eq!(backend.work().growths, 1);
    for n in inserted {
        let found = backend.entries_for(subject(n).prefix().addr()).unwrap();
        assert_eq!(found.len(), 1, "{n} is lost");
    }
    let count = backend.entries().unwrap();
    assert_eq!(count.len(), backend.usage().bans);
}

/// Tables that cannot grow, here for want of descriptors: the attempts become rarer,
/// each maintenance tells why, and what is over makes room all the same.
#[test]
fn root_a_growth_that_fails_waits_and_says_so() {
    if !is_alone("root_a_growth_that_fails_waits_and_says_so") {
        return;
    }
    const BANS: u32 = 13_000;
    const SHORT: u32 = 100;
    let instance = Instance::new("backoff", 100_000);
    let backend = instance.open();
    // More than the first tables are made for, and fewer than are a bulk.
    let all: Vec<_> = (0..BANS)
        .map(|n| entry(2 * n, jail("a"), if n < SHORT { 2 } else { 3600 }))
        .collect();
    for some in all.chunks(500) {
        backend.insert(some).unwrap();
    }
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let begun = Instant::now();
    let failing = loop {
        let failed = backend.maintain();
        let swept = backend.usage().bans == (BANS - SHORT) as usize;
        let waited = begun.elapsed() > Duration::from_secs(20);
        if failed.is_ok() || swept || waited {
            break failed.map(|()| swept).map_err(|error| (error, swept));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (attempts, elapsed) = (backend.work().growths, begun.elapsed());
    // As many as wait for a larger table go in as there is room for.
    let more = (20_000..25_000)
        .map(|n| entry(2 * n, jail("b"), 3600))
        .collect::<Vec<_>>();
    let bulk = backend.insert(&more);
    setrlimit(Resource::Nofile, before).unwrap();
    let (error, swept) = failing.unwrap_err();
    assert!(matches!(error, Error::Growth(_)), "{error}");
    assert!(swept, "bans that are over stay while the table cannot grow");
    assert!(
        attempts <= 2 + elapsed.as_secs(),
        "{attempts} attempts in {elapsed:?}"
    );
    let done = match bulk {
        Ok(done) => done,
        Err(ended) => ended.done,
    };
    assert!(done.new > 500, "{done:?}");
    let until = Instant::now() + Duration::from_secs(90);
    while let Err(error) = backend.maintain() {
        assert!(matches!(error, Error::Growth(_)), "{error}");
        assert!(Instant::now() < until, "it never grows again: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let usage = backend.usage();
    assert_eq!(usage.bans, (BANS - SHORT) as usize + done.new);
    assert_eq!(usage.generation, 2);
}

/// Evictions at the cap beside changes of generation. Each of them wants the
/// other's lock, so threads that took them in two orders waited for ever.
#[test]
fn root_evictions_go_on_beside_new_generations() {
    if !weir_bpf::decoy::supported() {
        eprintln!("skipped: decoy ports (probe: helper bpf_tcp_raw_check_syncookie_ipv6)");
        return;
    }
    const GENERATIONS: u64 = 40;
    let instance = Instance::new("order", 2000);
    let backend = instance.open();
    let (inserted, generations) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    // Not scoped: a thread that hangs must not keep the test from failing.
    for w in 0..2u32 {
        let (backend, inserted) = (backend.clone(), inserted.clone());
        let generations = generations.clone();
        std::thread::spawn(move || {
            let mut n = w << 20;
            while generations.load(Ordering::Relaxed) < GENERATIONS {
                backend.insert(&[entry(n, jail("a"), 3600)]).unwrap();
                inserted.fetch_add(1, Ordering::Relaxed);
                n += 1;
            }
        });
    }
    {
        let (backend, generations) = (backend.clone(), generations.clone());
        std::thread::spawn(move || {
            for n in 0..GENERATIONS {
                let mut decoys = Decoys::default();
                if n % 2 == 0 {
                    decoys.ports = DecoyPorts::new(&["23/tcp".parse().unwrap()]);
                }
                backend.set_decoys(&decoys).unwrap();
                backend.maintain().unwrap();
                generations.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let progress = || {
        (
            generations.load(Ordering::Relaxed),
            inserted.load(Ordering::Relaxed),
        )
    };
    let mut last = (progress(), Instant::now());
    while progress().0 < GENERATIONS {
        std::thread::sleep(Duration::from_millis(20));
        if progress() != last.0 {
            last = (progress(), Instant::now());
        }
        assert!(
            last.1.elapsed() < Duration::from_secs(20),
            "nothing moves any more after {} generations and {} insertions",
            last.0.0,
            last.0.1
        );
    }
    assert!(
        inserted.load(Ordering::Relaxed) > 2000,
        "the cap was never reached"
    );
    assert!(backend.usage().evicted > 0);
}

/// One address that is banned for more port sets than its places hold.
#[test]
fn root_refused_bans_leave_the_tables_as_they_are() {
    for (addr, places) in [("192.0.2.7", 40), ("2001:db8::7", 24)] {
        let instance = Instance::new("refused", 100_000);
        let backend = instance.open();
        let size = || (backend.usage().generation, backend.memory());
        let before = size();
        let mut ban = entry(0, Producer::Manual, 3600);
        ban.subject = addr.parse().unwrap();
        let (mut placed, mut refused) = (0, 0);
        for port in 1..=300 {
            Arc::make_mut(&mut ban.policy).scope = format!("{port}/tcp").parse().unwrap();
            match backend
                .insert(std::slice::from_ref(&ban))
                .map_err(Error::from)
            {
                Ok(done) => placed += done.new,
                Err(Error::Crowded(subject)) if subject == ban.subject => refused += 1,
                Err(error) => panic!("{addr}, port {port}: {error}"),
            }
        }
        assert!(
            placed > places / 2 && placed <= places,
            "{placed} of {addr}"
        );
        assert_eq!(placed + refused, 300);
        assert_eq!(size(), before, "{addr}: no table grew for what it refused");
        assert_eq!(
            backend.entries_for(addr.parse().unwrap()).unwrap().len(),
            placed
        );
        let neighbour = entry(8, Producer::Manual, 3600);
        assert_eq!(backend.insert(&[neighbour]).unwrap().new, 1);

        // What comes and goes leaves its place to what comes next.
        backend.remove(ban.subject, None, None).unwrap();
        for _ in 0..200 {
            let done = backend.insert(std::slice::from_ref(&ban)).unwrap();
            assert_eq!(done.new, 1);
            assert_eq!(backend.remove(ban.subject, None, None).unwrap().len(), 1);
        }
        assert_eq!(size(), before, "{addr}: nor for what came and went");
    }
}

/// A TCP segment to this port.
fn segment(source: IpAddr, port: u16) -> Vec<u8> {
    let mut p = vec![0u8; 74];
    match source {
        IpAddr::V4(a) => {
            p[12..14].copy_from_slice(&[0x08, 0x00]);
            (p[14], p[17], p[22], p[23]) = (0x45, 40, 64, 6);
            p[26..30].copy_from_slice(&a.octets());
            p[36..38].copy_from_slice(&port.to_be_bytes());
        }
        IpAddr::V6(a) => {
            p[12..14].copy_from_slice(&[0x86, 0xdd]);
            (p[14], p[19], p[20], p[21]) = (0x60, 20, 6, 64);
            p[22..38].copy_from_slice(&a.octets());
            p[56..58].copy_from_slice(&port.to_be_bytes());
        }
    }
    p
}

/// Is a segment from there to this port dropped?
fn is_dropped(generation: &Generation, source: IpAddr, port: u16) -> bool {
    let program = generation.program(Hook::Xdp).expect("it loads");
    run::packet(program, &segment(source, port), 1)
        .expect("the program runs")
        .verdict
        == XDP_DROP
}

/// More port sets in turn than there are numbers for them. Those in use stay
/// whose they are, for the packet path and after a restart.
#[test]
fn root_policy_numbers_are_given_out_again() {
    const IN_USE: u16 = 40;
    let instance = Instance::new("numbers", 100_000);
    let backend = instance.open();
    let banned = |n: u32, port: u16| {
        let mut ban = entry(n, jail("a"), 3600);
        Arc::make_mut(&mut ban.policy).scope = format!("{port}/tcp").parse().unwrap();
        ban
    };
    let mut wide = banned(0, 9999);
    wide.subject = "11.200.0.0/14".parse().unwrap();
    backend.insert(std::slice::from_ref(&wide)).unwrap();
    for port in 1..=IN_USE {
        backend.insert(&[banned(port.into(), port)]).unwrap();
    }
    let passing = |port: u16| {
        let ban = banned(1000 + u32::from(port) % 2, port);
        backend
            .insert(std::slice::from_ref(&ban))
            .unwrap_or_else(|e| panic!("port {port}: {e}"));
        ban
    };
    for port in 1000..1000 + 2 * MAX_POLICIES as u16 {
        let ban = passing(port);
        backend.remove(ban.subject, None, None).unwrap();
    }
    let held: Vec<_> = (20_000..20_000 + 4)
        .map(|port| (port, passing(port)))
        .collect();
    let check = |backend: &Kernel| {
        let pinned = instance.pinned();
        let of = |ban: &Entry| ban.subject.prefix().addr();
        let in_use = (1..=IN_USE).map(|port| (port, banned(port.into(), port)));
        for (port, ban) in in_use.chain(held.clone()) {
            let found = backend.entries_for(of(&ban)).unwrap();
            assert!(found.iter().any(|e| e.policy == ban.policy), "{port}");
            assert!(is_dropped(&pinned, of(&ban), port), "{port}");
            assert!(!is_dropped(&pinned, of(&ban), port + 500), "{port} only");
        }
        assert!(is_dropped(&pinned, "11.201.0.1".parse().unwrap(), 9999));
        assert!(!is_dropped(&pinned, "11.201.0.1".parse().unwrap(), 9998));
    };
    check(&backend);
    drop(backend);
    let backend = instance.open();
    check(&backend);

    // All of them in use: refused, until one is not.
    let mut refused = None;
    for n in 0..MAX_POLICIES {
        let ban = banned(2000 + n * 2, 30_000 + n as u16);
        match backend
            .insert(std::slice::from_ref(&ban))
            .map_err(Error::from)
        {
            Ok(_) => {}
            Err(Error::Policies(most)) => {
                assert_eq!(most, MAX_POLICIES as usize - 1);
                refused = Some(ban);
                break;
            }
            Err(error) => panic!("{n}: {error}"),
        }
    }
    let refused = refused.expect("there are no more numbers than that");
    // Not looked for again while no ban goes.
    let scans = backend.work().policy_scans;
    for _ in 0..20 {
        let error = backend.insert(std::slice::from_ref(&refused)).unwrap_err();
        assert!(matches!(error.error, Error::Policies(_)), "{error}");
    }
    assert_eq!(backend.work().policy_scans, scans);
    backend.remove(subject(2000), None, None).unwrap();
    backend.insert(std::slice::from_ref(&refused)).unwrap();
    check(&backend);
    assert_eq!(
        backend.remove(wide.subject, None, None).unwrap()[0].policy,
        wide.policy
    );
}

#[test]
fn root_tables_grow_to_the_cap_and_not_beyond() {
    // A little more than tables have room for at first: doubled is too much.
    const MOST: usize = 13_000;
    let instance = Instance::new("bound", MOST);
    let backend = instance.open();
    for n in 0..MOST as u32 + 1_000 {
        backend.insert(&[entry(2 * n, jail("a"), 3600)]).unwrap();
        if n.is_multiple_of(500) {
            backend.maintain().unwrap();
        }
    }
    assert_eq!(backend.usage().bans, MOST);
    assert!(backend.usage().generation > 1, "it began smaller");
    let memory = backend.memory().unwrap();
    let bound = Geometry::for_bans(BanCounts::each(MOST)).bytes();
    assert!(memory <= bound, "{memory} bytes, where {bound} hold all");
}

/// A reload that changes `observe` while larger tables are being loaded: they hold
/// what it says.
#[test]
fn root_a_change_of_observe_reaches_the_tables_that_are_loading() {
    let instance = Instance::new("observe", 1_000_000);
    let backend = instance.open();
    let watched = entry(9_999_998, Producer::Manual, 3600);
    backend.insert(std::slice::from_ref(&watched)).unwrap();
    let source = watched.subject.prefix().addr();
    let mut first = 0;
    for turn in 0..4 {
        let observe = turn % 2 == 0;
        let (growths, generation) = (backend.work().growths, backend.usage().generation);
        let many = 13_000 << turn;
        let bulk: Vec<_> = (first..first + many)
            .map(|n| entry(2 * n, jail("a"), 3600))
            .collect();
        first += many;
        std::thread::scope(|scope| {
            let growing = scope.spawn(|| backend.insert(&bulk).map(|done| done.new));
            while backend.work().growths == growths && !growing.is_finished() {
                std::thread::sleep(Duration::from_micros(100));
            }
            let mut settings = instance.0.settings.clone();
            settings.observe = observe;
            backend.reconfigure(&settings).unwrap();
            assert_eq!(growing.join().unwrap().unwrap(), many as usize);
        });
        assert!(backend.usage().generation > generation, "turn {turn}");
        let dropped = is_dropped(&instance.pinned(), source, 22);
        assert_eq!(dropped, !observe, "turn {turn}");
    }
}

/// Larger tables that cannot be made the current ones, here because something has
/// the name of that link: interfaces that ran their programs already run those of
/// the current ones again.
#[test]
fn root_interfaces_go_back_to_the_tables_that_stay_current() {
    if weir_bpf::probe::tcx_programs(1).is_none() {
        eprintln!("skipped: tcx (probe: BPF_PROG_QUERY of tcx, Linux 6.6)");
        return;
    }
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new("back", 1_000_000);
    instance.0.settings.interfaces = vec!["br0".into(), "br1".into()];
    host.enter(|| {
        for name in &instance.0.settings.interfaces {
            let added = std::process::Command::new("ip")
                .args(["link", "add", name, "up", "type", "bridge"])
                .status();
            assert!(added.unwrap().success());
        }
        let backend = instance.open();
        backend.attach().unwrap();
        let programs = || ["br0", "br1"].map(programs_of);
        let before = programs();
        let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
        std::fs::create_dir(pins.join("current-new")).unwrap();
        let bulk: Vec<_> = (0..13_000).map(|n| entry(2 * n, jail("a"), 3600)).collect();
        let growths = backend.work().growths;
        let _ = backend.insert(&bulk);
        assert!(backend.work().growths > growths, "nothing was tried");
        assert_eq!(backend.usage().generation, 1);
        assert_eq!(programs(), before);
        std::fs::remove_dir(pins.join("current-new")).unwrap();
        let until = Instant::now() + Duration::from_secs(90);
        while backend.usage().generation == 1 {
            assert!(Instant::now() < until, "it never grows again");
            let _ = backend.maintain();
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = programs();
        assert!(after != before && after[0] == after[1], "{after:?}");
    })
    .unwrap();
}

/// On tcx ingress.
fn programs_of(interface: &str) -> Vec<(u32, String)> {
    let index = weir_bpf::device::Device::find(interface).unwrap().index;
    weir_bpf::probe::tcx_programs(index).unwrap()
}

/// Two writers find no room at once in tables that are as large as they may be: one
/// has them made anew, and the other one is not told that they are full.
#[test]
fn root_tables_made_anew_have_room_for_every_writer() {
    const MOST: usize = 8192;
    let mut instance = Instance::new("anew", MOST);
    instance.0.room = BanCounts::each(MOST);
    let backend = instance.open();
    // IPv6 /64s: whose table is full has nowhere else to go.
    let ban = |n: u32| {
        let addr = IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(n) << 64).into());
        Entry {
            subject: Subject::new(Prefix::new(addr, 64).unwrap()).unwrap(),
            ..entry(0, jail("a"), 3600)
        }
    };
    let first = ban(0);
    backend.insert(std::slice::from_ref(&first)).unwrap();
    // Some buckets full and the others empty, behind the backend's back.
    let pinned = instance.pinned();
    let table = &pinned.table;
    let key = |n: u32| Key::of(ban(n).subject.prefix()).unwrap();
    let like = table.get(key(0))[0];
    let place = |n: u32| {
        table.insert(Slot {
            key: key(n),
            ..like
        })
    };
    for n in 1..100_000 {
        place(n);
    }
    let geometry = table.geometry();
    let (buckets, overflow) = (geometry.buckets64 as usize, geometry.overflow64 as usize);
    let mut others = Vec::new();
    table.for_each_in(buckets / 8..buckets, 0, &mut |slot| others.push(slot.key));
    for key in others {
        table.remove(key, |_| true);
    }
    let mut kept = 0;
    table.for_each_in(0..buckets + overflow, 0, &mut |_| kept += 1);
    assert!(kept > buckets / 8 && kept < MOST / 2, "{kept}");
    let without_room = (200_000..400_000).filter(|n| {
        let placed = place(*n);
        if placed == Placed::New {
            table.remove(key(*n), |_| true);
        }
        placed == Placed::NoRoom
    });
    let writers: Vec<u32> = without_room.take(2).collect();
    assert_eq!(writers.len(), 2);
    let together = std::sync::Barrier::new(writers.len());
    std::thread::scope(|scope| {
        for n in &writers {
            let (backend, together, ban) = (&backend, &together, ban(*n));
            scope.spawn(move || {
                together.wait();
                assert_eq!(backend.insert(&[ban]).unwrap().new, 1);
            });
        }
    });
    assert_eq!(backend.usage().generation, 2);
    for n in writers {
        let addr = ban(n).subject.prefix().addr();
        assert_eq!(backend.entries_for(addr).unwrap().len(), 1, "{addr}");
    }
}

#[test]
fn root_scopes_are_lifted_one_by_one() {
    let instance = Instance::new("scopes", 1000);
    let backend = instance.open();
    let mut ssh = entry(3, jail("sshd"), 600);
    Arc::make_mut(&mut ssh.policy).scope = "22/tcp".parse().unwrap();
    let mut web = entry(3, jail("nginx"), 600);
    Arc::make_mut(&mut web.policy).scope = "80/tcp,443/tcp".parse().unwrap();
    backend.insert(&[ssh.clone(), web.clone()]).unwrap();
    let lifted = backend
        .remove(ssh.subject, Some(&jail("sshd")), None)
        .unwrap();
    assert_eq!(lifted.len(), 1);
    assert_eq!(lifted[0].policy, ssh.policy);
    let left = backend.entries_for(web.subject.prefix().addr()).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].policy, web.policy);
    assert!(
        backend
            .remove(web.subject, None, Some(&Scope::all()))
            .unwrap()
            .is_empty()
    );
    assert_eq!(backend.remove(web.subject, None, None).unwrap().len(), 1);
}

#[test]
fn root_prefixes_of_any_length_are_banned_found_and_lifted() {
    let instance = Instance::new("length", 1000);
    let backend = instance.open();
    let prefixes = [
        "192.0.2.77",
        "192.0.2.0/24", // the one configured length
        "192.0.2.64/26",
        "192.0.0.0/14",
        "2001:db8::/64",
        "2001:db8::1",
        "2001:db8::/48",
        "2000::/3",
    ];
    for prefix in prefixes {
        let mut entry = entry(1, Producer::Manual, 60);
        entry.subject = prefix.parse().unwrap();
        for (new, replaced) in [(1, 0), (0, 1)] {
            let done = backend.insert(std::slice::from_ref(&entry)).unwrap();
            assert_eq!((done.new, done.replaced), (new, replaced), "{prefix}");
        }
    }
    let usage = backend.usage();
    assert_eq!((usage.bans, usage.wide), (4, 4), "{usage:?}");
    let names = |entries: Vec<Entry>| {
        let mut names: Vec<_> = entries.iter().map(|e| e.subject.to_string()).collect();
        names.sort();
        names
    };
    let mut all = prefixes.to_vec();
    all.sort_unstable();
    assert_eq!(names(backend.entries().unwrap()), all);
    for (addr, family) in [("192.0.2.77", 0..4), ("2001:db8::1", 4..8)] {
        let mut found = prefixes[family].to_vec();
        found.sort_unstable();
        let covering = backend.entries_for(addr.parse().unwrap()).unwrap();
        assert_eq!(names(covering), found);
    }
    for prefix in prefixes {
        let lifted = backend.remove(prefix.parse().unwrap(), None, None).unwrap();
        assert_eq!(names(lifted), [prefix]);
    }
    assert!(backend.entries().unwrap().is_empty());
}

/// jiffies stand still while a machine sleeps. As if the last daemon had
/// allowed for ten minutes more than there were: the expiries move by them.
#[test]
fn root_expiries_follow_suspended_time() {
    let instance = Instance::new("suspend", 1000);
    let backend = instance.open();
    let (short, forever) = (
        entry(2, jail("a"), 60),
        Entry {
            expiry: Expiry::Never,
            ..entry(4, jail("a"), 0)
        },
    );
    let wide = Entry {
        subject: "11.0.0.0/9".parse().unwrap(),
        ..short.clone()
    };
    backend
        .insert(&[short.clone(), forever.clone(), wide.clone()])
        .unwrap();
    drop(backend);
    let ten_minutes = HOUR / 6;
    let pinned = instance.pinned();
    pinned
        .set_suspended(pinned.suspended() + ten_minutes)
        .unwrap();
    drop(pinned);

    let backend = instance.open();
    let expiry = |e: &Entry| backend.entries_for(e.subject.prefix().addr()).unwrap()[0].expiry;
    let mut after = Vec::new();
    for entry in [&short, &wide] {
        let (Expiry::At(before), Expiry::At(end)) = (entry.expiry, expiry(entry)) else {
            panic!("a ban lost its end");
        };
        let moved = end.0.abs_diff(before.0 + ten_minutes);
        assert!(moved < 20_000_000, "off by {moved} ns");
        after.push((entry, end));
    }
    assert_eq!(expiry(&forever), Expiry::Never);
    // And only once.
    drop(backend);
    let backend = instance.open();
    for (entry, after) in after {
        let addr = entry.subject.prefix().addr();
        let Expiry::At(again) = backend.entries_for(addr).unwrap()[0].expiry else {
            panic!("a ban lost its end");
        };
        assert!(again.0.abs_diff(after.0) < 20_000_000);
    }
}

#[test]
fn root_one_instance_has_one_writer() {
    let instance = Instance::new("lock", 1000);
    let _backend = instance.open();
    let error = kernel::open(&instance.0)
        .err()
        .expect("a second writer")
        .to_string();
    assert!(error.contains("another weir daemon"), "{error}");
    let error = kernel::detach(&instance.0.pin_root, &instance.0.instance).unwrap_err();
    assert!(error.to_string().contains("another weir daemon"), "{error}");
}

/// From generic XDP to native XDP, which a bridge has not. What stands in
/// on tcx meanwhile is in the way of tcx itself: the kernel takes a program once.
#[test]
fn root_a_refused_xdp_ends_on_tcx() {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new("stand-in", 1000);
    instance.0.settings.interfaces = vec!["br0".into()];
    instance.0.settings.backend = Choice::Kernel(Hook::XdpGeneric);
    host.enter(|| {
        let added = std::process::Command::new("ip")
            .args(["link", "add", "br0", "up", "type", "bridge"])
            .status();
        assert!(added.unwrap().success());
        if weir_bpf::probe::tcx_programs(1).is_none() {
            eprintln!("skipped: tcx (probe: BPF_PROG_QUERY of tcx, Linux 6.6)");
            return;
        }
        let backend = instance.open();
        backend.attach().unwrap();
        assert_eq!(backend.attachments()[0].hook, "xdp-generic");
        let driver = weir_bpf::device::Device::find("br0").unwrap().driver;
        let cost = |hook, nanos| {
            let nanos = Duration::from_nanos(nanos);
            let drop = Measured {
                median: nanos,
                low: nanos,
                high: nanos,
            };
            HookCost {
                hook,
                drop: Some(drop),
                traffic: None,
            }
        };
        let mut settings = instance.0.settings.clone();
        settings.backend = Choice::Auto;
        settings.advice = Advice {
            prefer: Prefer::Drops,
            calibration: Some(Calibration {
                day: "2026-01-01".into(),
                driver,
                hooks: vec![cost(Hook::Xdp, 50), cost(Hook::Tcx, 500)],
                interfaces: Vec::new(),
            }),
        };
        backend.reconfigure(&settings).unwrap();
        let attached = backend.attachments();
        assert_eq!(attached[0].hook, "tcx", "{attached:?}");
        assert!(attached[0].note.contains("xdp: "), "{attached:?}");
        // A failed attempt would have been made good with netfilter loaded, and
        // nothing in place until then.
        assert_eq!(backend.usage().generation, 1);
        assert_eq!(programs_on("br0"), 1);
        // It is pinned: the next daemon takes it over.
        drop(backend);
        assert_eq!(programs_on("br0"), 1);
        instance.0.settings = settings;
        let backend = instance.open();
        backend.attach().unwrap();
        assert_eq!(backend.attachments()[0].hook, "tcx");
        assert_eq!(programs_on("br0"), 1);
    })
    .unwrap();
}

fn programs_on(interface: &str) -> usize {
    programs_of(interface).len()
}

/// The packet path with answers cannot be loaded, here for want of descriptors:
/// what asks for an answer is dropped, and a limit says so. In a process of its
/// own, for the limit on descriptors is all of a process's.
#[test]
fn root_a_reject_that_cannot_be_loaded_drops() {
    if !is_alone("root_a_reject_that_cannot_be_loaded_drops") {
        return;
    }
    let instance = Instance::new("answers", 1000);
    let backend = instance.open();
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    for n in [2, 3] {
        let mut ban = entry(n, Producer::Manual, 3600);
        Arc::make_mut(&mut ban.policy).action = Action::Reject;
        assert!(!is_limited(&*backend) || n == 3);
        setrlimit(Resource::Nofile, none).unwrap();
        let done = backend.insert(&[ban]);
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(done.unwrap().new, 1);
        assert!(
            is_limited(&*backend),
            "nothing says that it does not answer"
        );
        assert_eq!(backend.usage().generation, 1);
        let source = subject(n).prefix().addr();
        assert!(is_dropped(&instance.pinned(), source, 22));
    }
}

fn is_limited(backend: &dyn Backend) -> bool {
    let limits = backend.limits();
    limits.iter().any(|limit| limit.feature == Feature::Reject)
}

/// Every change of hook, there and back, on a real device.
#[test]
fn root_hooks_change_at_run_time() {
    let net = weir_netlab::Net::new().unwrap();
    let (host, other) = (
        net.namespace("host").unwrap(),
        net.namespace("net").unwrap(),
    );
    let opts = weir_netlab::VethOpts::new(&["10.9.2.1/24"], &["10.9.2.2/24"]).unwrap();
    net.veth(&host, "h0", &other, "n0", opts).unwrap();
    let mut instance = Instance::new("hooks", 1000);
    instance.0.settings.interfaces = vec!["h0".into()];
    host.enter(|| {
        let backend = instance.open();
        backend.attach().unwrap();
        for hook in [
            Hook::Xdp,
            Hook::XdpGeneric,
            Hook::Tcx,
            Hook::XdpGeneric,
            Hook::Xdp,
            Hook::Tcx,
            Hook::Xdp,
        ] {
            let mut settings = instance.0.settings.clone();
            settings.backend = Choice::Kernel(hook);
            backend.reconfigure(&settings).unwrap();
            let attached = backend.attachments();
            assert_eq!(attached[0].hook, hook.name(), "{attached:?}");
            let links = instance
                .0
                .pin_root
                .join(pins::escape(&instance.0.instance))
                .join("links");
            assert_eq!(
                std::fs::read_dir(links).unwrap().count(),
                1,
                "one link after {}",
                hook.name()
            );
        }
        drop(backend);
        // The next daemon takes the link over, and its hook.
        instance.0.settings.backend = Choice::Auto;
        let backend = instance.open();
        backend.attach().unwrap();
        assert_eq!(backend.attachments()[0].interface, "h0");
    })
    .unwrap();
}

/// The programs that are in the kernel over the tables of an instance, once those
/// that are given up have gone.
fn loaded(instance: &Instance, wanted: &[&str]) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let loaded = weir_bpf::probe::programs_over(&instance.pinned().policies).unwrap();
        if loaded == wanted || Instant::now() > until {
            return loaded;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program is loaded when its hook asks for it: at the start, when the hook
/// changes, when it is refused and the next one is tried, when larger tables are made.
#[test]
fn root_only_the_program_of_the_hook_in_use_is_loaded() {
    if weir_bpf::probe::tcx_programs(1).is_none() {
        eprintln!("skipped: tcx (probe: BPF_PROG_QUERY of tcx, Linux 6.6)");
        return;
    }
    let net = weir_netlab::Net::new().unwrap();
    let (host, other) = (
        net.namespace("host").unwrap(),
        net.namespace("net").unwrap(),
    );
    let opts = weir_netlab::VethOpts::new(&["10.9.3.1/24"], &["10.9.3.2/24"]).unwrap();
    net.veth(&host, "h0", &other, "n0", opts).unwrap();
    let mut instance = Instance::new("loaded", 1_000_000);
    instance.0.settings.interfaces = vec!["h0".into()];
    host.enter(|| {
        let added = std::process::Command::new("ip")
            .args(["link", "add", "br0", "up", "type", "bridge"])
            .status();
        assert!(added.unwrap().success());
        let backend = instance.open();
        assert_eq!(loaded(&instance, &[]), [""; 0], "tables need none");
        backend.attach().unwrap();
        assert_eq!(loaded(&instance, &["weir_tcx"]), ["weir_tcx"]);
        let mut settings = instance.0.settings.clone();
        settings.backend = Choice::Kernel(Hook::Xdp);
        backend.reconfigure(&settings).unwrap();
        let both = ["weir_tcx", "weir_xdp"];
        assert_eq!(loaded(&instance, &both), both);

        // Larger tables have the program that is attached.
        let bulk: Vec<_> = (0..13_000).map(|n| entry(n, jail("a"), 3600)).collect();
        backend.insert(&bulk).unwrap();
        assert_eq!(backend.usage().generation, 2);
        assert_eq!(loaded(&instance, &["weir_xdp"]), ["weir_xdp"]);
        assert_eq!(backend.attachments()[0].hook, "xdp");

        // A bridge has no native XDP: the next one is loaded for it.
        settings.interfaces = vec!["br0".into()];
        backend.reconfigure(&settings).unwrap();
        assert_eq!(backend.attachments()[0].hook, "xdp-generic");
        let all = ["weir_xdp", "weir_xdp_generi"];
        assert_eq!(loaded(&instance, &all), all);

        // Who takes it over needs what is attached, and nothing more.
        drop(backend);
        settings.backend = Choice::Kernel(Hook::XdpGeneric);
        instance.0.settings = settings;
        let backend = instance.open();
        backend.attach().unwrap();
        assert_eq!(loaded(&instance, &all), all);
        assert_eq!(backend.usage().generation, 2);
    })
    .unwrap();
}

/// Programs that belong to no backend.
struct OtherFeature {
    /// The hook that it has no program for.
    without: Option<Hook>,
    programs: Generator,
}

impl Programs for OtherFeature {
    fn refusal(&self, hook: Hook) -> Option<&'static str> {
        (hook == Hook::Netfilter || self.without == Some(hook)).then_some("it has no program there")
    }

    fn program(&self, hook: Hook) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.programs.bare_drop(hook))
    }

    fn judge_outbound(&self) -> bool {
        true
    }

    fn judge_interface(&self, _index: u32) -> Result<(), Error> {
        unreachable!("netfilter is refused")
    }

    fn judge_only(&self, indexes: &[u32]) {
        assert!(indexes.is_empty());
    }
}

/// A feature has its programs at interfaces while nftables enforces the bans, as
/// the firewall has where it is BPF: taken over, following its device, let go of.
#[test]
fn root_attach_points_need_no_backend() {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let name = format!("test-feature-{}", std::process::id());
    let ip = |args: &[&str]| {
        let done = std::process::Command::new("ip").args(args).status();
        assert!(done.unwrap().success(), "ip {args:?}");
    };
    let add = || ip(&["link", "add", "v0", "up", "type", "veth", "peer", "v1"]);
    host.enter(|| {
        add();
        let settings = Settings {
            interfaces: vec!["v0".into()],
            backend: Choice::Nft,
            advice: Advice::default(),
            max_bans: 100,
            observe: false,
        };
        let bans = nft::open(&name, None, &settings).unwrap();
        bans.attach().unwrap();

        let dir = InstanceDir::open(pins::DEFAULT_ROOT.as_ref(), &name).unwrap();
        let links = || {
            let pins = std::fs::read_dir(dir.links()).unwrap();
            let mut pins: Vec<_> = pins.map(|pin| pin.unwrap().path()).collect();
            pins.sort();
            let target = |pin: &std::path::PathBuf| Link::open(pin).unwrap().target().unwrap();
            pins.iter().map(target).collect::<Vec<_>>()
        };
        let feature = OtherFeature {
            programs: Generator::load().unwrap(),
            without: None,
        };
        let mut wanted = Wanted::by(&settings);
        let hooks = Hooks::new(dir.links(), &settings.interfaces);
        assert!(!hooks.is_attached());
        hooks.attach(&wanted, &feature).unwrap();
        assert!(hooks.is_attached() && !hooks.any_on_netfilter());
        assert_eq!(bans.attachments()[0].hook, "nft");
        let attached = links();
        assert_eq!(attached.len(), 2, "in and out: {attached:?}");
        drop(hooks);
        assert_eq!(links(), attached, "they outlive whoever attached them");

        // The same links with the next daemon, and another hook by name.
        let hooks = Hooks::new(dir.links(), &settings.interfaces);
        hooks.attach(&wanted, &feature).unwrap();
        assert_eq!(links(), attached);
        wanted.hook = Some(Hook::Xdp);
        let mut done = false;
        hooks
            .reconfigure(&settings.interfaces, &wanted, &feature, || done = true)
            .unwrap();
        assert!(done);
        assert_eq!(hooks.first_hook(), Some(Hook::Xdp));
        assert_eq!(hooks.attachments()[0].hook, "xdp");

        // A device that goes and comes back.
        let before = links();
        ip(&["link", "del", "v0"]);
        hooks.follow(&wanted, &feature).unwrap();
        assert_eq!((links().len(), hooks.first_hook()), (0, None));
        assert!(!hooks.attachments()[0].present);
        add();
        hooks.follow(&wanted, &feature).unwrap();
        let after = links();
        assert_eq!(after.len(), 2);
        assert_ne!(after[0].0, before[0].0, "another device");
        let other = OtherFeature {
            programs: Generator::load().unwrap(),
            without: None,
        };
        hooks.update(&other, || {}).unwrap();
        let updated = links();
        assert!(updated.iter().zip(&after).all(|(new, old)| new.1 != old.1));
        // Programs without one for a hook that is in use: nothing changes.
        let lacking = OtherFeature {
            programs: Generator::load().unwrap(),
            without: Some(Hook::Xdp),
        };
        let refused = hooks.update(&lacking, || {}).unwrap_err().to_string();
        assert_eq!(
            refused,
            "cannot change the program at xdp of v0: it has no program there"
        );
        assert_eq!(links(), updated);

        // Not an interface more, then none at all.
        hooks.reconfigure(&[], &wanted, &other, || {}).unwrap();
        assert_eq!(links(), []);
        assert!(bans.attachments()[0].present);
        dir.remove().unwrap();
        assert_eq!(nft::detach(&name).unwrap().len(), 1);
    })
    .unwrap();
}

//! Larger tables: made under writers, refused, given up, and made again.

use super::*;

#[test]
fn root_growth_under_writers_loses_nothing() {
    let instance = Instance::new("growth", 1_000_000);
    let backend = instance.open();
    let watched = entry(9_999_998, BanSource::Manual, 3600);
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
#[cfg(feature = "fault-points")]
fn root_a_growth_that_is_refused_leaves_no_pins() {
    if !is_alone("growth::root_a_growth_that_is_refused_leaves_no_pins") {
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
    if !is_alone("growth::root_a_link_switch_that_failed_is_asked_again") {
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
        add_bridges(&instance.0.settings.interfaces);
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
    if !is_alone("growth::root_bans_that_larger_tables_refuse_are_not_lost") {
        return;
    }
    let instance = Instance::new("refuses", 1_000_000);
    let backend = instance.open();
    let networks = || instance.pinned().table.geometry().target_load().networks;
    let before = networks();
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
            while !done.load(Ordering::Relaxed) && (!was_there || next()) {
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
    assert_eq!(networks(), before, "none was banned");
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
    if !is_alone("growth::root_a_growth_that_fails_waits_and_says_so") {
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
        let waited = begun.elapsed() > Duration::from_secs(60);
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
                // With a class stage and without: a generation each.
                let mut classes = Classes::default();
                if n % 2 == 0 {
                    classes.classes = vec![Default::default(); 2];
                    classes.v4 = vec![Span {
                        first: 1,
                        last: 9,
                        value: 1,
                    }];
                }
                backend.set_classes(&Arc::new(classes)).unwrap();
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
            last.1.elapsed() < Duration::from_secs(60),
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
        let mut ban = entry(0, BanSource::Manual, 3600);
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
        let neighbour = entry(8, BanSource::Manual, 3600);
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
    let watched = entry(9_999_998, BanSource::Manual, 3600);
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
        add_bridges(&instance.0.settings.interfaces);
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
            subject: BanTarget::new(Prefix::new(addr, 64).unwrap()).unwrap(),
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

/// Adds bridges in this network namespace.
pub(super) fn add_bridges(names: &[String]) {
    for name in names {
        let added = std::process::Command::new("ip")
            .args(["link", "add", name, "up", "type", "bridge"])
            .status();
        assert!(added.unwrap().success(), "{name}");
    }
}

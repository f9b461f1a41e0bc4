//! What insertions do not wait for, links that are switched and programs that are
//! loaded, and what they do.

use std::{path::PathBuf, sync::mpsc};

use super::*;

/// What should happen soon, and does not.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Holds up whoever comes to a fault point, for as long as this lives; in a process
/// that `is_alone`.
pub(super) struct Held(PathBuf);

impl Held {
    pub(super) fn at(point: &str) -> Self {
        let file = PathBuf::from(std::env::var_os("WEIR_FAULT_HOLD").expect("is_alone sets it"));
        std::fs::write(&file, point).unwrap();
        Self(file)
    }

    /// Waits until somebody is there.
    pub(super) fn reached(&self) {
        let point = std::fs::read_to_string(&self.0).unwrap();
        let mut reached = self.0.clone().into_os_string();
        reached.push(format!(".{point}"));
        soon("nobody comes there", || {
            std::fs::remove_file(&reached).is_ok()
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Does the work on a thread of its own; the channel has the result, unless that takes too
/// long.
pub(super) fn beside<T: Send + 'static>(
    backend: &Arc<Kernel>,
    work: impl FnOnce(&Kernel) -> T + Send + 'static,
) -> mpsc::Receiver<T> {
    let (send, receive) = mpsc::channel();
    let backend = backend.clone();
    // Not scoped: a thread that hangs must not keep the test from failing.
    std::thread::spawn(move || send.send(work(&backend)));
    receive
}

pub(super) fn bulk() -> Vec<Entry> {
    (0..13_000).map(|n| entry(2 * n, jail("a"), 3600)).collect()
}

fn adopt(instance: &Instance, generation: &str) -> Generation {
    let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
    Generation::adopt(&pins.join(generation)).expect("it is whole")
}

/// Two bridges, protected at tcx, in a namespace of their own.
fn with_bridges(name: &str, test: impl FnOnce(&Instance, &Arc<Kernel>) + Send) {
    if weir_bpf::probe::tcx_programs(1).is_none() {
        eprintln!("skipped: tcx (probe: BPF_PROG_QUERY of tcx, Linux 6.6)");
        return;
    }
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new(name, 1_000_000);
    instance.0.settings.interfaces = vec!["br0".into(), "br1".into()];
    host.enter(|| {
        growth::add_bridges(&instance.0.settings.interfaces);
        let backend = instance.open();
        test(&instance, &backend);
    })
    .unwrap();
}

/// One interface has the larger tables and the other one has not yet: bans come and
/// go in both.
#[test]
fn root_insertions_go_on_while_links_are_switched() {
    if !is_alone("waiting::root_insertions_go_on_while_links_are_switched") {
        return;
    }
    with_bridges("links", |instance, backend| {
        backend.attach().unwrap();
        let before = ["br0", "br1"].map(programs_of);
        let held = Held::at("switch-between-links");
        let growing = beside(backend, |backend| backend.insert(&bulk()));
        held.reached();
        let now = ["br0", "br1"].map(programs_of);
        assert!(now[0] != before[0] && now[1] == before[1], "{now:?}");
        let inserting = beside(backend, |backend| {
            for n in 50_000..51_000 {
                backend.insert(&[entry(n, jail("b"), 3600)]).unwrap();
            }
            backend.usage().generation
        });
        let inserted = inserting.recv_timeout(PATIENCE);
        assert_eq!(inserted, Ok(1), "insertions wait for the links");
        let of = |n| subject(n).prefix().addr();
        for generation in ["g1", "g2"] {
            let generation = adopt(instance, generation);
            for n in [50_000, 50_999] {
                assert!(is_dropped(&generation, of(n), 22), "{n}");
            }
        }
        drop(held);
        let grown = growing.recv_timeout(PATIENCE).unwrap();
        assert_eq!(grown.unwrap().new, bulk().len());
        let after = ["br0", "br1"].map(programs_of);
        assert!(after[0] == now[0] && after[1] == now[0], "{after:?}");
        assert_eq!(backend.usage().generation, 2);
        assert_eq!(backend.usage().bans, bulk().len() + 1000);
        assert_eq!(pinned_generations(instance), ["g2"]);
    });
}

/// An interface is given a program, which takes a verifier's time, and maintenance
/// wants the tables alone meanwhile.
#[test]
fn root_insertions_go_on_while_a_program_is_loaded() {
    if !is_alone("waiting::root_insertions_go_on_while_a_program_is_loaded") {
        return;
    }
    with_bridges("load", |_, backend| {
        let held = Held::at("before-program");
        let attaching = beside(backend, |backend| backend.attach());
        held.reached();
        // The machine has slept: every expiry is moved.
        let slept = std::env::var_os("WEIR_FAULT_SLEPT").expect("is_alone sets it");
        std::fs::write(slept, "100").unwrap();
        let maintaining = beside(backend, |backend| backend.maintain());
        let inserting = beside(backend, |backend| {
            for n in 0..2000 {
                backend.insert(&[entry(n, jail("b"), 3600)]).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let inserted = inserting.recv_timeout(PATIENCE);
        assert_eq!(inserted, Ok(()), "insertions wait for the program");
        assert!(attaching.try_recv().is_err(), "it was not held");
        drop(held);
        attaching.recv_timeout(PATIENCE).unwrap().unwrap();
        maintaining.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(programs_of("br1").len(), 1);
    });
}

/// A ban that the larger tables have no room for, when an interface has them already,
/// is acknowledged when no interface has them any more.
#[test]
fn root_a_ban_that_some_packets_would_miss_is_not_acknowledged() {
    if !is_alone("waiting::root_a_ban_that_some_packets_would_miss_is_not_acknowledged") {
        return;
    }
    with_bridges("misses", |instance, backend| {
        backend.attach().unwrap();
        let before = ["br0", "br1"].map(programs_of);
        let held = Held::at("switch-between-links");
        let growing = beside(backend, |backend| backend.insert(&bulk()));
        held.reached();
        let refused = Refused::at("insert-next");
        let ban = entry(50_000, jail("b"), 3600);
        let addr = ban.subject.prefix().addr();
        let inserting = beside(backend, move |backend| backend.insert(&[ban]));
        soon("it is not inserted", || {
            backend.entries_for(addr).unwrap().len() == 1
        });
        let early = inserting.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "acknowledged before it is in force");
        assert_ne!(programs_of("br0"), before[0]);
        drop(refused);
        drop(held);
        let inserted = inserting.recv_timeout(PATIENCE).unwrap();
        assert_eq!(inserted.unwrap().new, 1);
        let grown = growing.recv_timeout(PATIENCE).unwrap();
        assert_eq!(grown.unwrap().new, bulk().len());
        assert!(is_dropped(&instance.pinned(), addr, 22));
    });
}

/// Larger tables are given up when one of two interfaces has them, and that one cannot
/// be told so: they are written to until it can.
#[test]
fn root_tables_that_an_interface_keeps_are_written_to() {
    if !is_alone("waiting::root_tables_that_an_interface_keeps_are_written_to") {
        return;
    }
    with_bridges("keeps", |instance, backend| {
        backend.attach().unwrap();
        let before = ["br0", "br1"].map(programs_of);
        let held = Held::at("switch-between-links");
        let growing = beside(backend, |backend| backend.insert(&bulk()));
        held.reached();
        let given_up = adopt(instance, "g2");
        let first = entry(40_000, jail("b"), 3600);
        backend.insert(std::slice::from_ref(&first)).unwrap();
        // The half that is not done fails, and what is done cannot be taken back.
        let ip = |arguments: &[&str]| {
            let done = std::process::Command::new("ip").args(arguments).status();
            assert!(done.unwrap().success(), "{arguments:?}");
        };
        let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
        std::fs::create_dir(pins.join("current-new")).unwrap();
        let refused = Refused::at("link-current");
        drop(held);
        let _ = growing.recv_timeout(PATIENCE).unwrap();
        assert_eq!(backend.usage().generation, 1);
        assert_eq!(pinned_generations(instance), ["g1"]);
        assert_ne!(programs_of("br0"), before[0], "it has what was given up");

        // It is swept of what is over, so that there is room for what comes.
        let short = entry(70_001, jail("b"), 1);
        backend.insert(std::slice::from_ref(&short)).unwrap();
        let key = Key::of(short.subject.prefix()).unwrap();
        for tables in [&given_up, &instance.pinned()] {
            assert_eq!(tables.table.get(key).len(), 1);
        }
        soon("what is over stays in tables that were given up", || {
            assert!(backend.maintain().is_err(), "nothing says so");
            given_up.table.get(key).is_empty()
        });

        let second = entry(60_000, jail("b"), 3600);
        backend.insert(std::slice::from_ref(&second)).unwrap();
        backend.remove(first.subject, None, None).unwrap();
        let of = |ban: &Entry| ban.subject.prefix().addr();
        for tables in [&given_up, &instance.pinned()] {
            assert!(is_dropped(tables, of(&second), 22));
            assert!(!is_dropped(tables, of(&first), 22));
        }
        assert!(backend.maintain().is_err(), "nothing says so");
        drop(refused);
        soon("they are not told again", || {
            let _ = backend.maintain();
            ["br0", "br1"].map(programs_of) == before
        });
        std::fs::remove_dir(pins.join("current-new")).unwrap();
        ip(&["link", "del", "br1"]);
        soon("they never grow again", || {
            backend.maintain().is_ok() && backend.usage().generation == 2
        });
        assert_eq!(backend.entries_for(of(&second)).unwrap().len(), 1);
        assert_eq!(backend.entries_for(of(&first)).unwrap().len(), 0);
    });
}

/// One interface's link takes no other program, and never will: the tables grow all the
/// same, with that interface on another hook.
#[test]
fn root_a_link_that_cannot_be_changed_keeps_no_tables_from_growing() {
    if !is_alone("waiting::root_a_link_that_cannot_be_changed_keeps_no_tables_from_growing") {
        return;
    }
    with_bridges("stuck", |instance, backend| {
        backend.attach().unwrap();
        let before = ["br0", "br1"].map(programs_of);
        let _refused = Refused::at("update br0");
        // As many as there is room for, whatever comes of the first attempt.
        let _ = backend.insert(&bulk());
        assert_eq!(backend.usage().generation, 1, "nothing was refused");
        assert_eq!(["br0", "br1"].map(programs_of), before);
        assert!(is_dropped(
            &instance.pinned(),
            subject(0).prefix().addr(),
            22
        ));
        let told = backend.maintain().unwrap_err().to_string();
        assert!(told.contains("the program at tcx of br0"), "{told}");

        soon("they never grow", || {
            backend.maintain().is_ok() && backend.usage().generation == 2
        });
        let attached = backend.attachments();
        let hooks: Vec<_> = attached.iter().map(|one| one.hook.as_str()).collect();
        assert_eq!(hooks, ["cls_bpf", "tcx"]);
        assert!(attached[0].note.contains("of br0"), "{attached:?}");
        let after = ["br0", "br1"].map(programs_of);
        assert!(after[0].is_empty(), "what cannot be changed is there still");
        assert!(after[1].len() == 1 && after[1] != before[1], "{after:?}");
        let ban = entry(90_000, jail("b"), 3600);
        backend.insert(std::slice::from_ref(&ban)).unwrap();
        assert!(is_dropped(
            &instance.pinned(),
            ban.subject.prefix().addr(),
            22
        ));
    });
}

/// Geofence changes while an interface has tables that were given up, which are not told
/// of it: it is refused until that interface has the current ones.
#[test]
fn root_a_geofence_is_told_when_no_interface_has_tables_that_were_given_up() {
    if !is_alone("waiting::root_a_geofence_is_told_when_no_interface_has_tables_that_were_given_up")
    {
        return;
    }
    let fence = |last| {
        let span = Span {
            first: 1,
            last,
            value: 1,
        };
        Arc::new(Classes {
            classes: vec![Default::default(); 2],
            v4: vec![span],
            ..Classes::default()
        })
    };
    with_bridges("fence", move |instance, backend| {
        backend.attach().unwrap();
        backend.set_classes(&fence(9)).unwrap();
        let before = ["br0", "br1"].map(programs_of);
        let pins = instance.0.pin_root.join(pins::escape(&instance.0.instance));
        std::fs::create_dir(pins.join("current-new")).unwrap();
        let refused = Refused::at("link-current");
        let _ = backend.insert(&bulk());
        assert_ne!(["br0", "br1"].map(programs_of), before);
        let told = backend.set_classes(&fence(99)).unwrap_err().to_string();
        assert!(told.contains("update a link"), "{told}");
        drop(refused);
        backend.set_classes(&fence(99)).unwrap();
        assert_eq!(["br0", "br1"].map(programs_of), before);
        std::fs::remove_dir(pins.join("current-new")).unwrap();
    });
}

//! The kernel backend without a daemon: what it stores, lifts, evicts and takes over;
//! beside this file its growth, its hooks, its answers and what insertions wait for.
//! Root: loads BPF.

#[path = "root_kernel/answers.rs"]
mod answers;
#[path = "root_kernel/growth.rs"]
mod growth;
#[path = "root_kernel/hooks.rs"]
mod hooks;
#[cfg(feature = "fault-points")]
#[path = "root_kernel/waiting.rs"]
mod waiting;

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
    AnswerProgram, BanCounts, Generation, Geometry, Key, Placed, Slot,
    attachment::Link,
    generator::Generator,
    pins::{self, InstanceDir},
    prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS},
    prog_test_run,
    tables::MAX_POLICIES,
};
use weir_core::{
    Action, BanSource, BanTarget, PortSet, Prefix, Reason, address_class::Classes,
    decoy::DecoyPorts, geo::Span,
};
use weir_enforce::{
    Backend, BackendChoice, BootNanos, ClassFilter, DecoyResponder, Decoys, Entry, Error, Expiry,
    Feature, Policy, Settings,
    hook_selection::{Advice, Calibration, Estimate, HookCost, Prefer},
    hooks::{HookPlan, Hooks, Programs},
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
            balanced_flows: None,
            ipv4_length: Some(24),
            settings: Settings {
                interfaces: Vec::new(),
                backend: BackendChoice::Kernel(Hook::Tcx),
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

fn subject(n: u32) -> BanTarget {
    let addr: IpAddr = if n.is_multiple_of(2) {
        IpAddr::V4((0x0b00_0000 + n).into())
    } else {
        IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(n) << 8 | 1).into())
    };
    BanTarget::new(Prefix::host(addr)).unwrap()
}

fn entry(n: u32, producer: BanSource, seconds: u64) -> Entry {
    Entry {
        subject: subject(n),
        policy: Arc::new(Policy {
            producer,
            scope: PortSet::all(),
            action: Action::Drop,
        }),
        expiry: Expiry::At(BootNanos(BootNanos::now().0 + seconds * 1_000_000_000)),
    }
}

fn jail(name: &str) -> BanSource {
    BanSource::Jail(name.into())
}

#[test]
fn root_the_cap_is_kept_within_a_producer() {
    let instance = Instance::new("cap", 100);
    let backend = instance.open();
    for n in 0..20 {
        backend.insert(&[entry(n, BanSource::Manual, 60)]).unwrap();
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
    let of = |producer: BanSource| {
        backend
            .entries()
            .unwrap()
            .iter()
            .filter(|e| e.policy.producer == producer)
            .count()
    };
    assert_eq!(
        (of(BanSource::Manual), of(jail("other")), of(jail("loud"))),
        (20, 40, 40)
    );
    // Nothing of its own to give up, and manual bans give up nothing.
    for producer in [jail("new"), BanSource::Manual] {
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
            .insert(&[entry(5, BanSource::Manual, 90)])
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
    let over = Instant::now() + Duration::from_secs(60);
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
    let file = |what: &str| {
        let name = name.replace("::", "-");
        std::env::temp_dir().join(format!("weir-{name}-{what}-{}", std::process::id()))
    };
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("WEIR_TEST_ALONE", "1")
        .env("WEIR_FAULT_REFUSE", file("refuse"))
        .env("WEIR_FAULT_HOLD", file("hold"))
        .env("WEIR_FAULT_SLEPT", file("slept"))
        .env("WEIR_FAULT_PROLONG", "1")
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
    prog_test_run::packet(program, &segment(source, port), 1)
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

/// An IPv4 host whose bans of some ports lie in two tables, for the number of one's policy
/// has no form in the first: both are in force.
#[test]
fn root_bans_of_an_ipv4_host_in_two_tables_are_both_in_force() {
    let instance = Instance::new("two-tables", 1000);
    let backend = instance.open();
    let banned = |n: u32, port: u16| {
        let mut ban = entry(n, jail("a"), 3600);
        Arc::make_mut(&mut ban.policy).scope = format!("{port}/tcp").parse().unwrap();
        ban
    };
    for port in 1..=200 {
        backend.insert(&[banned(port.into(), port)]).unwrap();
    }
    backend
        .insert(&[banned(2000, 1), banned(2000, 200)])
        .unwrap();
    let source = subject(2000).prefix().addr();
    let pinned = instance.pinned();
    for (port, dropped) in [(1, true), (200, true), (300, false)] {
        assert_eq!(is_dropped(&pinned, source, port), dropped, "{port}");
    }
}

/// The programs on tcx ingress.
fn programs_of(interface: &str) -> Vec<(u32, String)> {
    let index = weir_bpf::device::Device::find(interface).unwrap().index;
    weir_bpf::probe::tcx_programs(index).unwrap()
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
            .remove(web.subject, None, Some(&PortSet::all()))
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
        let mut entry = entry(1, BanSource::Manual, 60);
        entry.subject = prefix.parse().unwrap();
        for (new, replaced) in [(1, 0), (0, 1)] {
            let done = backend.insert(std::slice::from_ref(&entry)).unwrap();
            assert_eq!((done.new, done.replaced), (new, replaced), "{prefix}");
        }
    }
    let usage = backend.usage();
    assert_eq!((usage.bans, usage.prefix_bans), (4, 4), "{usage:?}");
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

/// As many bans of prefixes as there may be: each can still become one that rejects, or
/// drop again, and how many there are is not counted for each question.
#[test]
fn root_prefixes_change_their_action_at_the_cap() {
    let instance = Instance::new("wide-cap", 1000);
    let backend = instance.open();
    let ban = |n: u32, producer: BanSource, action| {
        let mut ban = entry(0, producer, 3600);
        ban.subject =
            BanTarget::new(Prefix::new(IpAddr::V4((n << 12).into()), 20).unwrap()).unwrap();
        Arc::make_mut(&mut ban.policy).action = action;
        ban
    };
    let first = 11 << 12;
    let manual = MAX_PREFIX_BANS - MAX_SHARED_PREFIX_BANS;
    let mut all = vec![ban(first, BanSource::Manual, Action::Drop)];
    backend.insert(&all).unwrap();
    all.extend((1..MAX_PREFIX_BANS as u32).map(|n| match n as usize {
        n if n < manual => ban(first + n as u32, BanSource::Manual, Action::Drop),
        n => ban(first + n as u32, jail("a"), Action::Drop),
    }));
    backend.insert(&all[1..]).unwrap();
    let passes = backend.work().prefix_passes;
    let usage = backend.usage();
    assert_eq!(
        (usage.prefix_bans, usage.shared_prefix_bans),
        (MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS)
    );
    assert_eq!(backend.work().prefix_passes, passes, "of a usage");
    backend.entries().unwrap();
    assert_eq!(backend.work().prefix_passes, passes + 1);
    for action in [Action::Reject, Action::Drop] {
        for before in [&all[0], &all[MAX_PREFIX_BANS - 1]] {
            let mut changed = before.clone();
            Arc::make_mut(&mut changed.policy).action = action;
            let done = backend.insert(std::slice::from_ref(&changed)).unwrap();
            assert_eq!((done.new, done.replaced), (0, 1), "{changed:?}");
            assert!(done.evicted.is_empty(), "{:?}", done.evicted);
            let source = changed.subject.prefix().addr();
            let found = backend.entries_for(source).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].policy, changed.policy);
            assert!(is_dropped(&instance.pinned(), source, 22));
            let again = backend.insert(&[changed]).unwrap();
            assert_eq!((again.new, again.replaced), (0, 1));
        }
    }
    let usage = backend.usage();
    assert_eq!(
        (usage.prefix_bans, usage.shared_prefix_bans, usage.evicted),
        (MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS, 0)
    );
    let over = ban(first - 1, BanSource::Manual, Action::Reject);
    let refused = backend.insert(&[over]).unwrap_err();
    assert!(
        matches!(refused.error, Error::PrefixBansFull(_)),
        "{refused}"
    );
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

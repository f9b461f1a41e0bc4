//! What bans that reject and decoy ports do where nothing can answer.

use weir_core::Protocol;
use weir_enforce::{Balance, MAX_SERVICES, PoolRules, Real, SLOTS, VirtualService};

use super::*;

/// A bridge in a network namespace of its own, on which `instance` attaches.
fn with_bridge(instance: &mut Instance, test: impl FnOnce(&Instance) + Send) {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    instance.0.settings.interfaces = vec!["br0".into()];
    host.enter(|| {
        ip(&["link", "add", "br0", "up", "type", "bridge"]);
        test(instance);
    })
    .unwrap();
}

fn ip(arguments: &[&str]) {
    let done = std::process::Command::new("ip").args(arguments).status();
    assert!(done.unwrap().success(), "{arguments:?}");
}

/// At telnet's port, of no address of this host.
fn telnet() -> Decoys {
    Decoys {
        ports: DecoyPorts::new(&["23/tcp".parse().unwrap()]),
        ..Decoys::default()
    }
}

fn rejecting(n: u32) -> Entry {
    let mut ban = entry(n, BanSource::Manual, 3600);
    Arc::make_mut(&mut ban.policy).action = Action::Reject;
    ban
}

fn lacks_a_probe() -> bool {
    let has_tcx = weir_bpf::probe::tcx_programs(1).is_some();
    if AnswerProgram::ALL
        .iter()
        .all(|answer| answer.is_supported())
        && has_tcx
    {
        return false;
    }
    eprintln!(
        "skipped: what answers on tcx (probes: helpers bpf_tcp_raw_check_syncookie_ipv6 and bpf_xdp_load_bytes, BPF_PROG_QUERY of tcx)"
    );
    true
}

/// Neither copies a ban, nor is the firewall verified again; what answers is there when
/// no daemon is, and the next one takes it over.
#[test]
fn root_what_answers_comes_and_goes_without_new_tables() {
    if lacks_a_probe() {
        return;
    }
    let mut instance = Instance::new("answers-go", 1_000_000);
    with_bridge(&mut instance, |instance| {
        let firewalls = |generation: &Generation| {
            let programs = weir_bpf::probe::programs_over(&generation.policies).unwrap();
            programs.len()
        };
        let answers = |generation: &Generation| {
            let programs = weir_bpf::probe::programs_over(&generation.counters).unwrap();
            programs.len() - firewalls(generation)
        };
        let backend = instance.open();
        backend.attach().unwrap();
        let pinned = instance.pinned();
        assert_eq!((firewalls(&pinned), answers(&pinned)), (1, 0));
        backend.set_decoys(&telnet()).unwrap();
        backend.insert(&[rejecting(2)]).unwrap();
        assert_eq!((firewalls(&pinned), answers(&pinned)), (1, 2));
        assert_eq!(backend.usage().generation, 1);
        assert!(backend.limits().is_empty());
        backend.set_decoys(&Decoys::default()).unwrap();
        assert_eq!((firewalls(&pinned), answers(&pinned)), (1, 1));
        let tarpit = Decoys {
            tarpit: telnet().ports,
            ..Decoys::default()
        };
        backend.set_decoys(&tarpit).unwrap();
        assert_eq!((firewalls(&pinned), answers(&pinned)), (1, 2));
        assert!(pinned.decoys.are_tarpits_there() && !pinned.decoys.are_there());
        assert_eq!(backend.usage().generation, 1);
        backend.set_decoys(&telnet()).unwrap();
        // Larger tables have the same.
        let bulk: Vec<_> = (10..13_000).map(|n| entry(n, jail("a"), 3600)).collect();
        backend.insert(&bulk).unwrap();
        assert_eq!(backend.usage().generation, 2);
        drop(pinned);
        let rejected = |generation: &Generation| {
            let frame = segment(subject(2).prefix().addr(), 22);
            prog_test_run::packet(generation.program(Hook::Tcx).unwrap(), &frame, 1).unwrap();
            let counters = weir_bpf::small_maps::read_counters(&generation.counters).unwrap();
            let of = |reason: Reason| counters[reason as usize].0;
            of(Reason::Rejected) + of(Reason::RejectedSilent)
        };
        drop(backend);
        let pinned = instance.pinned();
        assert_eq!(answers(&pinned), 2, "gone with the daemon");
        assert_eq!(rejected(&pinned), 1);
        drop(pinned);
        let backend = instance.open();
        backend.attach().unwrap();
        let pinned = instance.pinned();
        assert_eq!((firewalls(&pinned), answers(&pinned)), (1, 2));
        assert_eq!(rejected(&pinned), 2);
        assert!(backend.limits().is_empty());
    });
}

/// What answers cannot be loaded, here for want of descriptors: what asks for an answer
/// is dropped, and a limit says so. In a process of its own, for the limit on
/// descriptors is all of a process's.
#[test]
fn root_a_reject_that_cannot_be_loaded_drops() {
    if !is_alone("answers::root_a_reject_that_cannot_be_loaded_drops") || lacks_a_probe() {
        return;
    }
    let mut instance = Instance::new("answers", 1000);
    with_bridge(&mut instance, |instance| {
        let backend = instance.open();
        backend.attach().unwrap();
        let before = getrlimit(Resource::Nofile);
        let none = Rlimit {
            current: Some(3),
            ..before
        };
        for n in [2, 3] {
            assert!(!is_limited(&*backend) || n == 3);
            setrlimit(Resource::Nofile, none).unwrap();
            let done = backend.insert(&[rejecting(n)]);
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
    });
}

fn is_limited(backend: &dyn Backend) -> bool {
    let limits = backend.limits();
    limits.iter().any(|limit| limit.feature == Feature::Reject)
}

/// The program with decoy ports cannot be loaded: a start, bans and larger tables go
/// on without, a limit and each maintenance say so, and when it can be, they are there.
#[test]
#[cfg(feature = "fault-points")]
fn root_decoys_that_cannot_be_loaded_stop_nothing_else() {
    if !is_alone("answers::root_decoys_that_cannot_be_loaded_stop_nothing_else") {
        return;
    }
    if lacks_a_probe() {
        return;
    }
    let mut instance = Instance::new("no-decoys", 1_000_000);
    with_bridge(&mut instance, |instance| {
        let lacks = |backend: &Kernel| {
            let mut limits = backend.limits().iter();
            limits.any(|limit| limit.feature == Feature::Decoys)
        };
        let is_there = |generation: &Generation| {
            let programs = weir_bpf::probe::programs_over(&generation.counters).unwrap();
            programs.iter().any(|name| name == "weir_decoy_tc")
        };
        let backend = instance.open();
        {
            let _refused = Refused::at("load-decoys");
            // As at a start: the ports come before the first program is loaded.
            backend.set_decoys(&telnet()).unwrap();
            backend.attach().unwrap();
            assert_eq!(backend.attachments()[0].hook, "tcx");
            assert!(lacks(&backend), "nothing says that there are none");
            let before = backend.usage().generation;
            let bulk: Vec<_> = (0..13_000).map(|n| entry(n, jail("a"), 3600)).collect();
            assert_eq!(backend.insert(&bulk).unwrap().new, bulk.len());
            assert!(backend.usage().generation > before, "they did not grow");
            let told = backend.maintain().unwrap_err().to_string();
            assert!(told.contains("load the program weir_decoy_tc"), "{told}");
            let pinned = instance.pinned();
            assert!(!is_there(&pinned));
            for n in [2, 3] {
                assert!(is_dropped(&pinned, subject(n).prefix().addr(), 22));
            }
            // An interface that went while decoy ports were asked for again, and in
            // vain, is protected when it is back.
            ip(&["link", "del", "br0"]);
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                assert!(backend.maintain().is_err(), "there are decoy ports");
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(!is_there(&instance.pinned()));
            ip(&["link", "add", "br0", "up", "type", "bridge"]);
            let _ = backend.maintain();
            assert_eq!(backend.attachments()[0].hook, "tcx");
        }
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = backend.maintain() {
            assert!(Instant::now() < until, "not asked again: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!lacks(&backend));
        assert!(is_there(&instance.pinned()));
        assert_eq!(backend.usage().bans, 13_000);
    });
}

/// `test` with `br0` and no other device yet, for `auto`, which gives netfilter's hook to
/// `tun0`; unless such a device cannot be made.
#[cfg(feature = "fault-points")]
fn with_auto(name: &str, test: impl FnOnce(&Instance, &Arc<Kernel>) + Send) {
    if lacks_a_probe() {
        return;
    }
    if !weir_bpf::programs::netfilter_supported() || !std::path::Path::new("/dev/net/tun").exists()
    {
        eprintln!("skipped: netfilter at a tun device (probes: BPF netfilter links, /dev/net/tun)");
        return;
    }
    let mut instance = Instance::new(name, 1_000_000);
    instance.0.settings.backend = BackendChoice::Auto;
    with_bridge(&mut instance, |instance| {
        let mut settings = instance.0.settings.clone();
        settings.interfaces.push("tun0".into());
        let backend = instance.open();
        backend.attach().unwrap();
        backend.reconfigure(&settings).unwrap();
        test(instance, &backend);
    });
}

#[cfg(feature = "fault-points")]
fn add_tun() {
    ip(&["tuntap", "add", "mode", "tun", "name", "tun0"]);
    ip(&["link", "set", "tun0", "up"]);
}

/// An interface comes between the look at the hooks and the decoy ports that are then
/// told to the kernel: it gets no hook without them.
#[test]
#[cfg(feature = "fault-points")]
fn root_no_interface_gets_netfilter_while_decoy_ports_come() {
    if !is_alone("answers::root_no_interface_gets_netfilter_while_decoy_ports_come") {
        return;
    }
    with_auto("decoys-race", |_, backend| {
        let held = waiting::Held::at("decoys-before-ports");
        let telling = waiting::beside(backend, |backend| backend.set_decoys(&telnet()));
        held.reached();
        add_tun();
        let following = waiting::beside(backend, Kernel::follow_interfaces);
        let _ = following.recv_timeout(Duration::from_millis(300));
        drop(held);
        telling.recv_timeout(waiting::PATIENCE).unwrap().unwrap();
        let told = backend.follow_interfaces().unwrap_err().to_string();
        assert!(told.contains("it has no decoy ports"), "{told}");
        assert_eq!(backend.attachments()[1].hook, "none");
    });
}

/// Decoy ports beside an interface with netfilter's hook, which has none: the tables
/// grow.
#[test]
#[cfg(feature = "fault-points")]
fn root_decoy_ports_keep_no_interface_from_larger_tables() {
    with_auto("decoys-grow", |instance, backend| {
        add_tun();
        backend.follow_interfaces().unwrap();
        assert_eq!(backend.attachments()[1].hook, "netfilter");
        let refused = backend.set_decoys(&telnet()).unwrap_err();
        assert!(matches!(refused, Error::NotOffered { .. }), "{refused}");
        // As an earlier daemon left them.
        instance.pinned().decoys.write_ports(&telnet().ports);
        backend.insert(&waiting::bulk()).unwrap();
        assert_eq!(backend.usage().generation, 2);
    });
}

/// What answers is lacking for a hook that no interface has any more: nothing says that
/// it is.
#[test]
#[cfg(feature = "fault-points")]
fn root_a_hook_that_is_not_in_use_lacks_no_answer() {
    if !is_alone("answers::root_a_hook_that_is_not_in_use_lacks_no_answer") {
        return;
    }
    if lacks_a_probe() {
        return;
    }
    let mut instance = Instance::new("unused", 1000);
    with_bridge(&mut instance, |instance| {
        let backend = instance.open();
        backend.attach().unwrap();
        let lacks = || {
            let mut limits = backend.limits().iter();
            limits.any(|limit| limit.feature == Feature::Decoys)
        };
        {
            let _refused = Refused::at("load-decoys");
            backend.set_decoys(&telnet()).unwrap();
            assert!(lacks());
        }
        let mut settings = instance.0.settings.clone();
        settings.backend = BackendChoice::Kernel(Hook::XdpGeneric);
        backend.reconfigure(&settings).unwrap();
        assert_eq!(backend.attachments()[0].hook, "xdp-generic");
        assert!(!lacks(), "tcx, which is not in use, has no decoy ports");
    });
}

/// A host with more addresses than decoy ports take: it can be freed of the last port.
#[test]
fn root_the_last_decoy_port_goes_beside_any_number_of_own_addresses() {
    if lacks_a_probe() {
        return;
    }
    let instance = Instance::new("own", 1000);
    let backend = instance.open();
    backend.set_decoys(&telnet()).unwrap();
    let own: Vec<_> = (0..=weir_bpf::decoy::MAX_OWN as u32)
        .map(|n| subject(2 * n).prefix().addr())
        .collect();
    let many = Decoys {
        own: own.clone(),
        ..telnet()
    };
    let refused = backend.set_decoys(&many).unwrap_err().to_string();
    assert!(refused.contains("at most"), "{refused}");
    assert!(instance.pinned().decoys.are_there());
    let none = Decoys {
        own,
        ..Decoys::default()
    };
    backend.set_decoys(&none).unwrap();
    assert!(!instance.pinned().decoys.are_there());
}

/// What is refused on the way to a pool's new number leaves it served by the old one:
/// the ring that nobody is to have is emptied when services have gone elsewhere.
#[test]
fn root_a_pool_that_gets_another_number_is_served_all_the_time() {
    if lacks_a_probe() {
        return;
    }
    let mut instance = Instance::new("answers-pool", 1000);
    with_bridge(&mut instance, |instance| {
        let backend = instance.open();
        backend.attach().unwrap();
        let vip = IpAddr::from([0, 0, 0, 0]);
        let of_pool = |pool: u32| Balance {
            services: vec![VirtualService {
                addr: vip,
                protocol: Protocol::Tcp,
                port: Some(80),
                pool,
            }],
            rings: (0..2)
                .map(|number| vec![(number == pool).then_some(0); SLOTS])
                .collect(),
            reals: vec![Some(Real {
                id: 1,
                dest: [2; 6],
                source: [0; 6],
                ifindex: 1,
                vlan: 0,
                tunnel: None,
                drains: false,
            })],
            pools: vec![PoolRules::default(); 2],
        };
        let forwarder = backend.balancer().unwrap();
        forwarder.set_balance(&of_pool(0)).unwrap();
        let pinned = instance.pinned();
        // Of another client each time: who is known stays served.
        let is_served = |client: u8| {
            let frame = segment(IpAddr::from([198, 51, 100, client]), 80);
            let program = pinned.program(Hook::Tcx).unwrap();
            let run = prog_test_run::packet(program, &frame, 1).unwrap();
            run.verdict == 7 // TC_ACT_REDIRECT
        };
        assert!(is_served(1));
        let mut refused = of_pool(1);
        let first = refused.services[0].clone();
        refused.services = vec![first; MAX_SERVICES + 1];
        forwarder.set_balance(&refused).unwrap_err();
        assert!(is_served(2), "with the services of before");
        forwarder.set_balance(&of_pool(1)).unwrap();
        assert!(is_served(3));
    });
}

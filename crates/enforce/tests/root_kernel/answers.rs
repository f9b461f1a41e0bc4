//! What bans that reject and decoy ports do where nothing can answer.

use super::*;

/// The packet path with answers cannot be loaded, here for want of descriptors:
/// what asks for an answer is dropped, and a limit says so. In a process of its
/// own, for the limit on descriptors is all of a process's.
#[test]
fn root_a_reject_that_cannot_be_loaded_drops() {
    if !is_alone("answers::root_a_reject_that_cannot_be_loaded_drops") {
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

/// The program with decoy ports cannot be loaded: a start, bans and larger tables go
/// on without, a limit and each maintenance say so, and when it can be, they are there.
#[test]
#[cfg(feature = "fault-points")]
fn root_decoys_that_cannot_be_loaded_stop_nothing_else() {
    if !is_alone("answers::root_decoys_that_cannot_be_loaded_stop_nothing_else") {
        return;
    }
    if !weir_bpf::decoy::supported() || weir_bpf::probe::tcx_programs(1).is_none() {
        eprintln!(
            "skipped: decoy ports on tcx (probes: helper bpf_tcp_raw_check_syncookie_ipv6, BPF_PROG_QUERY of tcx)"
        );
        return;
    }
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new("no-decoys", 1_000_000);
    instance.0.settings.interfaces = vec!["br0".into()];
    host.enter(|| {
        let ip = |arguments: &[&str]| {
            let done = std::process::Command::new("ip").args(arguments).status();
            assert!(done.unwrap().success(), "{arguments:?}");
        };
        ip(&["link", "add", "br0", "up", "type", "bridge"]);
        let lacks = |backend: &Kernel| {
            let mut limits = backend.limits().iter();
            limits.any(|limit| limit.feature == Feature::Decoys)
        };
        let decoys = Decoys {
            ports: DecoyPorts::new(&["23/tcp".parse().unwrap()]),
            own: Vec::new(),
        };
        let backend = instance.open();
        {
            let _refused = Refused::at("load-decoys");
            // As at a start: the ports come before the first program is loaded.
            backend.set_decoys(&decoys).unwrap();
            backend.attach().unwrap();
            assert_eq!(backend.attachments()[0].hook, "tcx");
            assert!(lacks(&backend), "nothing says that there are none");
            let before = backend.usage().generation;
            let bulk: Vec<_> = (0..13_000).map(|n| entry(n, jail("a"), 3600)).collect();
            assert_eq!(backend.insert(&bulk).unwrap().new, bulk.len());
            assert!(backend.usage().generation > before, "they did not grow");
            let told = backend.maintain().unwrap_err().to_string();
            assert!(told.contains("load the program weir_tcx for tcx"), "{told}");
            let pinned = instance.pinned();
            assert!(!pinned.has_decoys);
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
            assert!(!instance.pinned().has_decoys, "they were never tried");
            ip(&["link", "add", "br0", "up", "type", "bridge"]);
            let _ = backend.maintain();
            assert_eq!(backend.attachments()[0].hook, "tcx");
        }
        let until = Instant::now() + Duration::from_secs(20);
        while let Err(error) = backend.maintain() {
            assert!(Instant::now() < until, "not asked again: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!lacks(&backend));
        assert!(instance.pinned().has_decoys);
        assert_eq!(backend.usage().bans, 13_000);
    })
    .unwrap();
}

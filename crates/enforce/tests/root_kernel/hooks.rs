//! Attach points: which programs are there, and how one hook follows another.

use super::*;

/// From generic XDP to native XDP, which a bridge has not. What stands in
/// on tcx meanwhile is in the way of tcx itself: the kernel takes a program once.
#[test]
fn root_a_refused_xdp_ends_on_tcx() {
    let net = weir_netlab::Net::new().unwrap();
    let host = net.namespace("host").unwrap();
    let mut instance = Instance::new("stand-in", 1000);
    instance.0.settings.interfaces = vec!["br0".into()];
    instance.0.settings.backend = BackendChoice::Kernel(Hook::XdpGeneric);
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
            let drop = Estimate {
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
        settings.backend = BackendChoice::Auto;
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
            settings.backend = BackendChoice::Kernel(hook);
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
        instance.0.settings.backend = BackendChoice::Auto;
        let backend = instance.open();
        backend.attach().unwrap();
        assert_eq!(backend.attachments()[0].interface, "h0");
    })
    .unwrap();
}

/// The programs that are in the kernel over the tables of an instance, once those
/// that are given up have gone.
fn loaded(instance: &Instance, wanted: &[&str]) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(60);
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
        settings.backend = BackendChoice::Kernel(Hook::Xdp);
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
        settings.backend = BackendChoice::Kernel(Hook::XdpGeneric);
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
        match self.without == Some(hook) {
            true => Err(Error::Unsupported("it has no program there".into())),
            false => Ok(self.programs.bare_drop(hook)),
        }
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
            backend: BackendChoice::Nft,
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
        let mut wanted = HookPlan::by(&settings);
        let hooks = Hooks::new(dir.links(), &settings.interfaces);
        assert!(!hooks.is_attached());
        hooks.lock().attach(&wanted, &feature).unwrap();
        assert!(hooks.is_attached() && !hooks.any_on_netfilter());
        assert_eq!(bans.attachments()[0].hook, "nft");
        let attached = links();
        assert_eq!(attached.len(), 2, "in and out: {attached:?}");
        drop(hooks);
        assert_eq!(links(), attached, "they outlive whoever attached them");

        // The same links with the next daemon, and another hook by name.
        let hooks = Hooks::new(dir.links(), &settings.interfaces);
        hooks.lock().attach(&wanted, &feature).unwrap();
        assert_eq!(links(), attached);
        wanted.hook = Some(Hook::Xdp);
        let mut done = false;
        hooks
            .lock()
            .reconfigure(&settings.interfaces, &wanted, &feature, || done = true)
            .unwrap();
        assert!(done);
        assert_eq!(hooks.first_hook(), Some(Hook::Xdp));
        assert_eq!(hooks.attachments()[0].hook, "xdp");

        // A device that goes and comes back.
        let before = links();
        ip(&["link", "del", "v0"]);
        hooks.lock().follow(&wanted, &feature).unwrap();
        assert_eq!((links().len(), hooks.first_hook()), (0, None));
        assert!(!hooks.attachments()[0].present);
        add();
        hooks.lock().follow(&wanted, &feature).unwrap();
        let after = links();
        assert_eq!(after.len(), 2);
        assert_ne!(after[0].0, before[0].0, "another device");
        let other = OtherFeature {
            programs: Generator::load().unwrap(),
            without: None,
        };
        hooks.lock().update(&other, false, || {}).unwrap();
        let updated = links();
        assert!(updated.iter().zip(&after).all(|(new, old)| new.1 != old.1));
        // Programs without one for a hook that is in use: nothing changes.
        let lacking = OtherFeature {
            programs: Generator::load().unwrap(),
            without: Some(Hook::Xdp),
        };
        let refused = hooks
            .lock()
            .update(&lacking, false, || {})
            .unwrap_err()
            .to_string();
        assert_eq!(
            refused,
            "cannot change the program at xdp of v0: it has no program there"
        );
        assert_eq!(links(), updated);

        // Not an interface more, then none at all.
        hooks
            .lock()
            .reconfigure(&[], &wanted, &other, || {})
            .unwrap();
        assert_eq!(links(), []);
        assert!(bans.attachments()[0].present);
        dir.remove().unwrap();
        assert_eq!(nft::detach(&name).unwrap().len(), 1);
    })
    .unwrap();
}

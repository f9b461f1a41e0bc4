//! What is measured: a hook with the shipped packet path on it, or a backend
//! that drops by rules of the kernel's. A hook is attached for each round; the
//! rules of a backend, which take longer to write, stay in a testbed of their own.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use weir_bpf::{
    BanCounts, Generation, Geometry, Key, Options, Placed, Slot, attachment::Hook,
    pins::InstanceDir, small_maps, table::NEVER,
};
use weir_core::{Action, BanSource, BanTarget as Whom, PortSet, Reason};
use weir_enforce::{
    Backend, BackendChoice, Entry, Expiry, Policy, Settings,
    backend_swap::{self, BackendHome as State},
    kernel::DEFAULT_ROOT,
};
use weir_netlab::Net;

use super::{
    CalibrateError,
    testbed::{AttachedLink, BANS, TestEnd, Testbed},
};

type Result<T> = std::result::Result<T, CalibrateError>;

/// The hooks that are measured, and that `auto` chooses among.
pub(super) const HOOKS: [Hook; 5] = [
    Hook::Xdp,
    Hook::XdpGeneric,
    Hook::Tcx,
    Hook::ClsBpf,
    Hook::Netfilter,
];
/// The backends beside the hooks, for comparison.
pub(super) const RULES: [BackendChoice; 2] = [BackendChoice::Nft, BackendChoice::Ipset];

/// The packet path on hooks of a testbed.
pub(super) struct PacketPath {
    path: Generation,
    pins: io::Result<Pins>,
}

impl PacketPath {
    pub(super) fn new(testbed: &Testbed) -> Result<Self> {
        let path = empty_path(BANS as usize)?;
        for place in [&testbed.target, &testbed.served] {
            path.judge_interface(place.ifindex)?;
        }
        small_maps::write_policy(
            &path.policies,
            1,
            &PortSet::all(),
            Action::Drop,
            "calibrate",
        )?;
        for prefix in testbed.prefixes() {
            let placed = path.table.insert(Slot {
                key: Key::of(prefix).expect("hosts and /64 have one"),
                policy: 1,
                expiry: NEVER,
            });
            if placed == Placed::NoRoom {
                let why = "the ban table has no room for the flood's sources";
                return Err(CalibrateError::Implausible(why.to_owned()));
            }
        }
        let pins = Pins::new().map_err(|e| io::Error::other(e.to_string()));
        Ok(Self { path, pins })
    }

    pub(super) fn attach(&self, place: &TestEnd, hook: Hook) -> io::Result<AttachedLink> {
        let pin = match (hook, &self.pins) {
            // No links of an interface: known by what is pinned beside them.
            (Hook::ClsBpf | Hook::Netfilter, Ok(pins)) => Some(pins.directory().join(hook.name())),
            (Hook::ClsBpf | Hook::Netfilter, Err(why)) => {
                return Err(io::Error::other(why.to_string()));
            }
            _ => None,
        };
        let program = self.path.program(hook).map_err(io::Error::other)?;
        place.attach(program, hook, pin.as_deref())
    }

    pub(super) fn count(&self, reason: Reason) -> Result<u64> {
        Ok(small_maps::read_counters(&self.path.counters)?[reason as usize].0)
    }
}

/// A directory for pins, which goes with this value; those of runs that were
/// killed go with the next.
struct Pins(Option<InstanceDir>);

const PINS: &str = "calibrate-";

impl Pins {
    fn new() -> weir_bpf::Result<Self> {
        let root = Path::new(DEFAULT_ROOT);
        let dead = |name: &str| {
            let pid = name
                .strip_prefix(PINS)
                .and_then(|pid| pid.parse::<u32>().ok());
            pid.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true))
        };
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(name) = name.to_str()
                && dead(name)
            {
                InstanceDir::open(root, name).and_then(InstanceDir::remove)?;
            }
        }
        let own = format!("{PINS}{}", std::process::id());
        InstanceDir::open(root, &own).map(|dir| Self(Some(dir)))
    }

    fn directory(&self) -> PathBuf {
        self.0.as_ref().expect("until it is dropped").links()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            // The next run tries again.
            let _ = dir.remove();
        }
    }
}

/// Room for this many hosts and as many /64s.
fn room(bans: usize) -> BanCounts {
    BanCounts {
        v4_hosts: bans,
        networks: bans,
        ..BanCounts::default()
    }
}

/// The shipped packet path with room for this many bans.
pub(super) fn empty_path(bans: usize) -> Result<Generation> {
    let options = Options::bans(Geometry::for_bans(room(bans)));
    Ok(Generation::create(1, &options, None)?)
}

/// Why a hook cannot be had on a veth pair that is our own.
pub(super) fn refusal(hook: Hook, error: &io::Error) -> String {
    match hook {
        Hook::Tcx if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            "this kernel has no tcx (6.6 or newer)".to_owned()
        }
        Hook::Netfilter => format!("{error} (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)"),
        _ => error.to_string(),
    }
}

/// A backend's rules, in force in both places of a testbed. They end with the
/// testbed's namespaces.
pub(super) struct Rules {
    pub(super) testbed: Testbed,
    backend: Arc<dyn Backend>,
    _served: Arc<dyn Backend>,
}

impl Rules {
    pub(super) fn new(net: &Net, choice: BackendChoice) -> Result<Self> {
        let testbed = Testbed::new(net, choice.name())?;
        let policy = Arc::new(Policy {
            producer: BanSource::Jail("calibrate".into()),
            scope: PortSet::all(),
            action: Action::Drop,
        });
        let entries: Vec<Entry> = testbed
            .prefixes()
            .map(|prefix| Entry {
                subject: Whom::new(prefix).expect("the flood's sources may be banned"),
                policy: policy.clone(),
                expiry: Expiry::Never,
            })
            .collect();
        let enforce = |place: &TestEnd| -> Result<Arc<dyn Backend>> {
            let state = State {
                // Not that of the pins: this one has none.
                instance: format!("measured-{}", std::process::id()),
                pin_root: DEFAULT_ROOT.into(),
                ipv4_length: None,
                balanced_flows: None,
                room: room(entries.len()),
                settings: Settings {
                    interfaces: vec![place.dev.clone()],
                    backend: choice,
                    max_bans: entries.len(),
                    observe: false,
                    advice: Default::default(),
                },
            };
            Ok(place.namespace.enter(|| {
                let backend = backend_swap::open(&state)?;
                backend.insert(&entries)?;
                backend.attach()?;
                Ok::<_, weir_enforce::Error>(backend)
            })??)
        };
        let (backend, served) = (enforce(&testbed.target)?, enforce(&testbed.served)?);
        Ok(Self {
            testbed,
            backend,
            _served: served,
        })
    }

    pub(super) fn count(&self, reason: Reason) -> Result<u64> {
        let counters = self
            .testbed
            .target
            .namespace
            .enter(|| self.backend.counters())??;
        let counter = counters.iter().find(|counter| counter.reason == reason);
        Ok(counter.map_or(0, |counter| counter.packets))
    }
}

//! An instance from its beginning to its end: its tables loaded, or taken over as
//! an earlier daemon left them; what it has in the kernel, and all of that gone.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use weir_bpf::{
    BanCounts, Generation, Geometry, JiffyClock, Options,
    attachment::Hook,
    balance::DEFAULT_FLOWS,
    events::EventReader,
    fault,
    pins::InstanceDir,
    programs::{NO_NETFILTER, netfilter_supported},
};

use super::{
    Kernel,
    answers::RefusedAnswers,
    maintenance::MaintenanceLock,
    next_expiry::NextExpiry,
    policies::Policies,
    random_seed, rebuild,
    tables::{Tables, TablesLock},
    work::WorkCounts,
};
use crate::{
    Backend, BackendChoice, Error, Settings,
    hooks::{self, Hooks, link_events},
};

/// The instance, its place and its tables.
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Name of the pin directory: one daemon each.
    pub instance: String,
    /// Normally [`DEFAULT_ROOT`].
    pub pin_root: PathBuf,
    /// The IPv4 length below 32 that may be banned a million times.
    pub ipv4_length: Option<u8>,
    /// Bans that are about to come. New tables begin with this room: each growth
    /// costs some 0.2 s of the verifier.
    pub room: BanCounts,
    /// The flows of pools that are to find room, if the tables are new; `None`: as many as
    /// do without a word.
    pub balanced_flows: Option<u32>,
    /// The settings, which may change later.
    pub settings: Settings,
}

/// Can a backend protect the interface of this name, once it is there? Changes
/// nothing.
///
/// # Errors
/// The hook is not for an interface of its kind, as [`open`] says.
pub fn check_interface(name: &str, backend: BackendChoice) -> Result<(), Error> {
    hooks::check(name, backend.hook())
}

/// Loads the packet path, or takes over what an earlier daemon left; attaches
/// nothing yet (see [`Backend::attach`]).
///
/// # Errors
/// Another daemon holds the instance; no permission; interfaces that the hook is
/// not for; pins that are not whole.
pub fn open(config: &KernelConfig) -> Result<Arc<Kernel>, Error> {
    for name in &config.settings.interfaces {
        hooks::check(name, config.settings.backend.hook())?;
    }
    if config.settings.backend.hook() == Some(Hook::Netfilter) && !netfilter_supported() {
        return Err(Error::Unsupported(NO_NETFILTER.to_owned()));
    }
    // First, for it fails without permission before anything is made.
    let clock = JiffyClock::probe()?;
    let instance = InstanceDir::open(&config.pin_root, &config.instance)?;
    let v4_length = config.ipv4_length.unwrap_or(0);
    let pinned = instance.current();
    let other_layout = match pinned {
        Some(number) => Generation::is_of_other_layout(&instance.generation(number))?,
        None => false,
    };
    let (current, adopted) = match pinned {
        Some(number) if !other_layout => (Generation::adopt(&instance.generation(number))?, true),
        _ => (
            first_generation(config, &instance, pinned.unwrap_or(0) + 1, clock.now())?,
            false,
        ),
    };
    if other_layout {
        tracing::warn!(
            "the tables of an earlier weir have another layout: bans come from the database; what it attached enforces until then"
        );
    }
    for leftover in instance.generations() {
        if leftover != current.number {
            instance.remove_generation(leftover)?;
        }
    }
    let rebuild = adopted && (!current.is_of_this_build() || current.v4_length != v4_length);
    let policies = Policies::read(&current)?;
    let kernel = Kernel {
        hooks: Hooks::new(instance.links(), &config.settings.interfaces),
        instance,
        ipv4_length: config.ipv4_length,
        clock,
        refused: RefusedAnswers::default(),
        policies,
        events: Mutex::new(EventReader::new(&current.events)?),
        tables: TablesLock::new(Tables::of(current)?),
        settings: RwLock::new(Arc::new(config.settings.clone())),
        maintenance: MaintenanceLock::default(),
        evicted: AtomicU64::new(0),
        overflow: AtomicU64::new(0),
        next_expiry: NextExpiry::default(),
        numbers_left: AtomicBool::new(false),
        work: WorkCounts::default(),
        crowded: AtomicBool::new(false),
        unlinked: AtomicBool::new(false),
        classes: Mutex::default(),
    };
    kernel.follow_suspend(&kernel.maintenance.lock())?;
    kernel.answer_as_before();
    kernel.tidy_prefix_bans()?;
    if rebuild {
        kernel.widen_other_lengths()?;
        let geometry = kernel.tables().current.table.geometry();
        kernel.next_generation(&mut kernel.maintenance.lock(), geometry)?;
        // Until here links of the earlier daemon enforce its tables.
        kernel.attach()?;
    }
    kernel.narrow_own_length()?;
    kernel
        .tables()
        .current
        .table
        .set_observe(config.settings.observe);
    let kernel = Arc::new(kernel);
    link_events::start(&kernel, Kernel::follow_interfaces);
    Ok(kernel)
}

/// Empty tables, pinned under `number`. Links of an earlier daemon keep its
/// programs and their tables alive until [`Backend::attach`] exchanges them.
fn first_generation(
    config: &KernelConfig,
    instance: &InstanceDir,
    number: u64,
    started: u64,
) -> Result<Generation, Error> {
    // Of a daemon that died before it was current.
    instance.remove_generation(number)?;
    let most = config.settings.max_bans;
    let options = Options {
        geometry: Geometry::for_bans(
            config
                .room
                .with(rebuild::LEAST, |room, least| room.min(most).max(least)),
        ),
        started,
        seed: random_seed()?,
        v4_length: config.ipv4_length.unwrap_or(0),
        class_lines: 0,
        flow_jiffies: 0,
        balanced_flows: config.balanced_flows.unwrap_or(DEFAULT_FLOWS),
        drop_innocent: false,
    };
    let first = Generation::create(number, &options, None)?;
    first.pin(&instance.generation(number))?;
    fault::point("take-over-before-current");
    instance.set_current(number)?;
    Ok(first)
}

/// Are there pins of this instance?
pub(crate) fn is_there(pin_root: &Path, instance: &str) -> bool {
    let pins = pin_root.join(weir_bpf::pins::escape(instance));
    pins.join("current").exists()
}

/// The interfaces that an earlier daemon attached something to, by their names
/// now.
pub(crate) fn attached(pin_root: &Path, instance: &str) -> Vec<String> {
    let pins = pin_root.join(weir_bpf::pins::escape(instance));
    hooks::attached(&pins.join("links"))
}

/// The instances that have pins here.
pub(crate) fn instances(pin_root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(pin_root).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| weir_bpf::pins::unescape(entry.file_name().to_str()?))
        .collect()
}

/// Takes everything of an instance out of the kernel; returns the interfaces
/// that were attached. No daemon may hold the instance.
pub fn detach(pin_root: &Path, instance: &str) -> Result<Vec<String>, Error> {
    let pins = pin_root.join(weir_bpf::pins::escape(instance));
    match std::fs::symlink_metadata(&pins) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        // Not allowed to look is not: there is nothing.
        Err(error) => {
            return Err(weir_bpf::Error::new(format!("look at {}", pins.display()), error).into());
        }
    }
    let instance = InstanceDir::open(pin_root, instance)?;
    let interfaces = hooks::detach(&instance.links())?;
    instance.remove()?;
    Ok(interfaces)
}

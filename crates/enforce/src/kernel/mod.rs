//! The backends that drop in the kernel: XDP native, XDP generic and tcx, over
//! one ban table. What is in the kernel outlives the daemon; the next one
//! takes it over as it is.
//!
//! Locks: `tables` is read-locked by every insertion (several at once) and
//! write-locked only for the instants in which a generation's copy advances or
//! is switched. `maintenance` serialises whoever removes, evicts, sweeps or
//! grows. What holds a lock is a type, and the order is that of the types: the
//! tables are had alone only for a [`Maintenance`], which is refused to whoever
//! reads them ([`Reading`]), and the lock of the wide bans lies in the [`Tables`].
//! All other locks are let go of in the function that takes them, which takes
//! none beside.

mod classes;
mod decoy;
mod eviction;
mod growth;
mod growth_backoff;
mod insertion;
mod maintenance;
mod netfilter;
mod next_expiry;
mod policies;
mod programs;
mod tables;
mod wide;
mod work;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use weir_bpf::{
    Generation, Geometry, JiffyClock, Key, Options, Slot, clock, events::EventReader, fault,
    pins::InstanceDir, record, table::NEVER, wide::MAX_WIDE,
};
use weir_core::{
    Prefix, PrefixSet, Producer, Reason, Scope, Subject, class::Classes, decoy::Scanner,
};

pub use weir_bpf::link::Hook;
pub use weir_bpf::pins::{DEFAULT_ROOT, mount_bpffs};

use crate::choice::{Choice, WITHOUT_ANSWERS};
use crate::{
    Attachment, Backend, BootNanos, ClassFilter, Counter, DecoyResponder, Entry, Error, Expiry,
    InsertError, Inserted, Limit, PacketEvent, PacketEvents, Settings, Usage,
    hooks::{self, Hooks, Wanted, link_events},
};
pub(crate) use classes::ANSWER_WITHIN;
use maintenance::{Maintenance, MaintenanceLock};
use next_expiry::NextExpiry;
use policies::Policies;
use tables::{Reading, Tables};
pub use work::Work;
use work::WorkCounts;

/// Where and how to enforce.
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Name of the pin directory: one daemon each.
    pub instance: String,
    /// Normally [`DEFAULT_ROOT`].
    pub pin_root: PathBuf,
    /// The IPv4 length below 32 that may be banned a million times.
    pub ipv4_length: Option<u8>,
    /// Bans that are about to come: IPv4 and IPv6 /64, IPv6 /128. New tables
    /// begin with this room: each growth costs some 0.2 s of the verifier.
    pub room: (usize, usize),
    /// What may change later.
    pub settings: Settings,
}

/// Buckets swept a second at most: 16 MiB, some 5 ms.
const SWEEP_CHUNK: usize = 1 << 18;

/// The tables of one instance.
pub struct Kernel {
    instance: InstanceDir,
    ipv4_length: Option<u8>,
    clock: JiffyClock,
    settings: RwLock<Arc<Settings>>,
    tables: RwLock<Tables>,
    policies: Policies,
    hooks: Hooks,
    maintenance: MaintenanceLock,
    events: Mutex<EventReader>,
    evicted: AtomicU64,
    overflow: AtomicU64,
    next_expiry: NextExpiry,
    /// A ban or a class has gone since numbers were last looked for.
    numbers_left: AtomicBool,
    work: WorkCounts,
    crowded: AtomicBool,
    classes: Mutex<Option<Arc<Classes>>>,
    /// Should the next generation have its program?
    netfilter: AtomicBool,
    /// Are there bans that reject, or were there?
    answers: AtomicBool,
    /// When the kernel refused to load what answers them.
    answers_refused: Mutex<Option<Instant>>,
}

/// Random words, which an attacker who chooses addresses does not know.
fn random_seed<const WORDS: usize>() -> Result<[u64; WORDS], Error> {
    let mut seed = [0; WORDS];
    for word in &mut seed {
        *word = getrandom::u64()
            .map_err(|e| weir_bpf::Error::new("draw a random seed", std::io::Error::other(e)))?;
    }
    Ok(seed)
}

/// Can a backend protect the interface of this name, once it is there? Changes
/// nothing.
///
/// # Errors
/// The hook is not for an interface of its kind, as [`open`] says.
pub fn check_interface(name: &str, backend: Choice) -> Result<(), Error> {
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
    let netfilter = config.settings.backend.hook() == Some(Hook::Netfilter);
    if netfilter {
        netfilter::require()?;
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
            first_generation(config, &instance, pinned.unwrap_or(0) + 1, netfilter)?,
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
        answers: policies.any_rejects().into(),
        answers_refused: Mutex::default(),
        policies,
        events: Mutex::new(EventReader::new(&current.events)?),
        tables: RwLock::new(Tables::of(current)?),
        settings: RwLock::new(Arc::new(config.settings.clone())),
        maintenance: MaintenanceLock::default(),
        evicted: AtomicU64::new(0),
        overflow: AtomicU64::new(0),
        next_expiry: NextExpiry::default(),
        numbers_left: AtomicBool::new(false),
        work: WorkCounts::default(),
        crowded: AtomicBool::new(false),
        classes: Mutex::default(),
        netfilter: netfilter.into(),
    };
    kernel.follow_suspend(&kernel.maintenance.lock())?;
    kernel.tidy_wide()?;
    if rebuild {
        kernel.widen_other_lengths()?;
        // Links of the earlier daemon must be known before they are switched.
        kernel.attach()?;
        let geometry = kernel.tables().current.table.geometry();
        kernel.next_generation(&mut kernel.maintenance.lock(), geometry)?;
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
    netfilter: bool,
) -> Result<Generation, Error> {
    // Of a daemon that died before it was current.
    instance.remove_generation(number)?;
    let most = config.settings.max_bans;
    let options = Options {
        geometry: Geometry::for_bans(
            config.room.0.min(most).max(growth::LEAST.0),
            config.room.1.min(most).max(growth::LEAST.1),
        ),
        seed: random_seed()?,
        v4_length: config.ipv4_length.unwrap_or(0),
        class_lines: 0,
        reject: false,
        netfilter,
        flow_jiffies: 0,
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

impl Kernel {
    fn tables(&self) -> Reading<'_> {
        Reading::of(&self.tables)
    }

    /// Without anybody who inserts or looks: for whoever does maintenance.
    fn tables_alone(&self, _: &Maintenance<'_>) -> RwLockWriteGuard<'_, Tables> {
        tables::assert_none_here();
        self.tables.write().expect("no holder of this lock panics")
    }

    /// As they are now.
    fn settings(&self) -> Arc<Settings> {
        let settings = self.settings.read();
        settings.expect("no holder of this lock panics").clone()
    }

    /// The hook asked for, and what `auto` goes by.
    fn wanted(&self) -> Wanted {
        Wanted::by(&self.settings())
    }

    fn jiffies(&self, expiry: Expiry, suspended: u64) -> u64 {
        match expiry {
            Expiry::At(end) => self.clock.jiffy_after(end.0, suspended).min(NEVER - 1),
            Expiry::Never => NEVER,
        }
    }

    fn expiry(&self, jiffies: u64) -> Expiry {
        match jiffies {
            NEVER => Expiry::Never,
            jiffies => Expiry::At(BootNanos(self.clock.boottime_of(jiffies))),
        }
    }

    fn entry(&self, slot: Slot) -> Option<Entry> {
        let subject = Subject::new(slot.key.prefix()).ok()?;
        Some(Entry {
            subject,
            policy: self.policies.policy(slot.policy)?,
            expiry: self.expiry(slot.expiry),
        })
    }

    /// jiffies stand still while the machine is suspended, ban times do not.
    fn follow_suspend(&self, maintenance: &Maintenance<'_>) -> Result<(), Error> {
        let suspended = clock::suspended();
        let counted = self.tables().current.suspended();
        let delta = i128::from(suspended) - i128::from(counted);
        if delta.unsigned_abs() < u128::from(clock::SECOND / 10) {
            return Ok(());
        }
        let jiffies = (delta * i128::from(self.clock.hz())).div_euclid(i128::from(clock::SECOND));
        let jiffies = i64::try_from(jiffies).unwrap_or(i64::MAX);
        // Alone: an entry is moved or inserted as it should be, not both.
        let tables = self.tables_alone(maintenance);
        for generation in std::iter::once(&tables.current).chain(&tables.next) {
            generation.table.shift_expiries(-jiffies);
            generation.set_suspended(suspended)?;
        }
        self.next_expiry.forget();
        tables.wide().shift_expiries(-jiffies)?;
        Ok(())
    }

    fn attach_all(&self) -> Result<(), Error> {
        let wanted = self.wanted();
        self.hooks.attach(&wanted, &self.tables().current)
    }

    fn attach_as(&self, settings: &Settings) -> Result<(), Error> {
        let tables = self.tables();
        let then = || {
            for generation in std::iter::once(&tables.current).chain(&tables.next) {
                generation.table.set_observe(settings.observe);
            }
            let mut present = self.settings.write();
            let present = present.as_mut().expect("no holder of this lock panics");
            **present = Arc::new(settings.clone());
        };
        let wanted = Wanted::by(settings);
        self.hooks
            .reconfigure(&settings.interfaces, &wanted, &tables.current, then)
    }

    /// Attaches interfaces that came back under their name. Called on every
    /// change the kernel announces; cheap when nothing happened.
    pub fn follow_interfaces(&self) -> Result<(), Error> {
        if !self.hooks.is_attached() {
            return Ok(());
        }
        let wanted = self.wanted();
        self.hooks.follow(&wanted, &self.tables().current)
    }

    /// Rebuilds the bloom filter now; `maintain` does it when it is due.
    pub fn rebuild_bloom(&self) {
        let _alone = self.maintenance.lock();
        self.tables().current.table.rebuild_bloom();
    }
}

impl Backend for Kernel {
    fn name(&self) -> &'static str {
        self.hooks
            .first_hook()
            .or(self.settings().backend.hook())
            .map_or("auto", Hook::name)
    }

    fn limits(&self) -> &'static [Limit] {
        match self.effective().limits() {
            [] if self.lacks_answers() => &WITHOUT_ANSWERS,
            limits => limits,
        }
    }

    fn insert(&self, entries: &[Entry]) -> Result<Inserted, InsertError> {
        let mut done = Inserted::default();
        let outcome = self.insert_all(entries, &mut done);
        done.with(outcome)
    }

    fn remove(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Vec<Entry>, Error> {
        // Under this lock a number keeps its meaning.
        let maintenance = self.maintenance.lock();
        let numbers = self.policies.numbers(|p| {
            producer.is_none_or(|wanted| *wanted == p.producer)
                && scope.is_none_or(|wanted| *wanted == p.scope)
        });
        let now = self.clock.now();
        let which = |policy| numbers.contains(&policy);
        let Some(key) = self.key(subject) else {
            let lifted = self.lift_wide(subject.prefix(), which)?;
            return Ok(lifted
                .into_iter()
                .filter(|ban| ban.expiry > now)
                .filter_map(|ban| self.wide_entry(ban))
                .collect());
        };
        let lifted = self.lift(&maintenance, key, which);
        Ok(lifted
            .into_iter()
            .filter(|s| s.expiry > now)
            .filter_map(|s| self.entry(s))
            .collect())
    }

    fn entries(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        let now = self.clock.now();
        let tables = self.tables();
        let table = &tables.current.table;
        table.for_each(now, |slot| entries.extend(self.entry(slot)));
        let wide = tables.wide();
        let live = wide.iter().filter(|ban| ban.expiry > now);
        entries.extend(live.filter_map(|ban| self.wide_entry(ban)));
        Ok(entries)
    }

    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error> {
        let host = Prefix::host(addr);
        let wider = match host.addr() {
            IpAddr::V4(_) => self.ipv4_length,
            IpAddr::V6(_) => Some(64),
        };
        let prefixes = [
            Some(host),
            wider.and_then(|len| Prefix::new(host.addr(), len)),
        ];
        let now = self.clock.now();
        let tables = self.tables();
        let mut entries: Vec<_> = prefixes
            .into_iter()
            .flatten()
            .filter_map(Key::of)
            .flat_map(|key| tables.current.table.get(key))
            .filter(|slot| slot.expiry > now)
            .filter_map(|slot| self.entry(slot))
            .collect();
        let wide = tables.wide().covering(host);
        let live = wide.into_iter().filter(|ban| ban.expiry > now);
        entries.extend(live.filter_map(|ban| self.wide_entry(ban)));
        Ok(entries)
    }

    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error> {
        Ok(self.tables().current.allow.write(allow)?)
    }

    fn classes(&self) -> Option<&dyn ClassFilter> {
        Some(self)
    }

    fn decoys(&self) -> Option<&dyn DecoyResponder> {
        Some(self)
    }

    fn packet_events(&self) -> Option<&dyn PacketEvents> {
        Some(self)
    }

    fn counters(&self) -> Result<Vec<Counter>, Error> {
        let counts = record::read_counters(&self.tables().current.counters)?;
        Ok(Reason::ALL
            .into_iter()
            .zip(counts)
            .map(|(reason, (packets, bytes))| Counter {
                reason,
                packets,
                bytes,
            })
            .collect())
    }

    fn attach(&self) -> Result<(), Error> {
        let settings = self.settings();
        self.or_with_netfilter(&settings, || self.attach_all())
    }

    fn reconfigure(&self, settings: &Settings) -> Result<(), Error> {
        for name in &settings.interfaces {
            hooks::check(name, settings.backend.hook())?;
        }
        self.or_with_netfilter(settings, || self.attach_as(settings))
    }

    fn attachments(&self) -> Vec<Attachment> {
        self.hooks.attachments()
    }

    fn usage(&self) -> Usage {
        let tables = self.tables();
        let (short, long) = tables.current.table.filled();
        Usage {
            bans: short + long,
            max_bans: self.settings().max_bans,
            wide: tables.wide().len(),
            max_wide: MAX_WIDE,
            evicted: self.evicted.load(Ordering::Relaxed),
            overflow: self.overflow.load(Ordering::Relaxed) as usize,
            generation: tables.current.number,
        }
    }

    fn memory(&self) -> Option<u64> {
        Some(self.tables().current.table.geometry().bytes())
    }

    fn maintain(&self) -> Result<(), Error> {
        let mut maintenance = self.maintenance.lock();
        self.follow_suspend(&maintenance)?;
        self.tidy_wide()?;
        // Where there is no memory to grow, what is over must still make room.
        let grown = self.grow_if_crowded(&mut maintenance);
        let tables = self.tables();
        let table = &tables.current.table;
        let (start, all) = (maintenance.cursor, table.buckets_in_all());
        let end = (start + SWEEP_CHUNK).min(all);
        let swept = table.sweep(start..end, self.clock.now());
        self.note_left(swept.expired);
        maintenance.overflow += swept.overflow;
        maintenance.cursor = end;
        if end == all {
            self.overflow
                .store(maintenance.overflow as u64, Ordering::Relaxed);
            (maintenance.cursor, maintenance.overflow) = (0, 0);
        }
        // Stale bits cost innocents a table look-up; a rebuild reads all of
        // the table. Every 10 s is a fair price.
        let due = maintenance
            .last_rebuild
            .is_none_or(|t| t.elapsed() > Duration::from_secs(10));
        if due && table.bloom_is_stale() {
            table.rebuild_bloom();
            maintenance.last_rebuild = Some(Instant::now());
        }
        drop(tables);
        drop(maintenance);
        let followed = match self.follow_interfaces() {
            // One that came may be the first that only netfilter is for.
            Err(Error::Unsupported(_)) if self.hooks.is_attached() => {
                let settings = self.settings();
                self.or_with_netfilter(&settings, || self.follow_interfaces())
            }
            outcome => outcome,
        };
        grown.and(followed)
    }
}

impl PacketEvents for Kernel {
    fn poll_events(
        &self,
        timeout: Duration,
        each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error> {
        let read = self
            .events
            .lock()
            .expect("no holder of this lock panics")
            .read(timeout)?;
        let events: Vec<_> = read
            .into_iter()
            .filter_map(|e| {
                Some(PacketEvent {
                    at: BootNanos(e.at),
                    reason: Reason::from_number(e.reason)?,
                    source: IpAddr::V6(e.source).to_canonical(),
                    ifindex: e.ifindex,
                    protocol: e.protocol,
                    port: e.port,
                    scanner: Scanner::from_number(e.scanner),
                })
            })
            .collect();
        let count = events.len();
        events.into_iter().for_each(each);
        Ok(count)
    }
}

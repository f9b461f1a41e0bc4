//! The BPF backend: one ban table behind any of the hooks XDP native, XDP generic,
//! tcx, cls_bpf and netfilter. What is in the kernel outlives the daemon; the next one
//! takes it over as it is.
//!
//! Locks: `tables` is read-locked by every insertion (several at once) and
//! write-locked only for the instants in which a generation's copy advances or
//! two pointers change places. `maintenance` serialises whoever removes, evicts,
//! sweeps or grows. Whoever loads programs, attaches them or switches links has the
//! [`AttachPoints`] and no tables, for that takes as long as verifiers and
//! interfaces like; until they are let go of, no other generation becomes the
//! current one. What holds a lock is a type, and the order is that of the types:
//! [`Maintenance`], then the attach points, then the tables; the first two are refused
//! to whoever reads the tables ([`Reading`]), the tables are had alone only for a
//! [`Maintenance`], and the lock of the prefix bans lies in the [`Tables`].
//! All other locks are let go of in the function that takes them, which takes
//! none beside.

mod answers;
mod backend;
mod balance;
mod classes;
mod decoy;
mod eviction;
mod growth_backoff;
mod insertion;
mod maintenance;
mod next_expiry;
mod open;
mod policies;
mod prefix_bans;
mod programs;
mod rebuild;
mod tables;
mod upkeep;
mod work;

use std::sync::{
    Arc, Mutex, RwLock, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64},
};

use weir_bpf::{
    Generation, JiffyClock, Slot, events::EventReader, pins::InstanceDir, table::NEVER,
};
use weir_core::{BanTarget, address_class::Classes};

pub use open::{KernelConfig, check_interface, detach, open};
pub(crate) use open::{attached, instances, is_there};
pub use weir_bpf::attachment::Hook;
pub use weir_bpf::pins::{DEFAULT_ROOT, mount_bpffs};

use crate::{
    BootNanos, Entry, Error, Expiry, Settings,
    hooks::{AttachPoints, HookPlan, Hooks},
};
use answers::RefusedAnswers;
pub(crate) use classes::ANSWER_WITHIN;
use maintenance::{Maintenance, MaintenanceLock};
use next_expiry::NextExpiry;
use policies::Policies;
use tables::{Reading, Tables, TablesLock};
use work::WorkCounts;

/// The tables of one instance.
pub struct Kernel {
    instance: InstanceDir,
    ipv4_length: Option<u8>,
    clock: JiffyClock,
    settings: RwLock<Arc<Settings>>,
    tables: TablesLock,
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
    /// An interface may run programs of other tables than the current ones: asked
    /// again by maintenance.
    unlinked: AtomicBool,
    classes: Mutex<Option<Arc<Classes>>>,
    /// When the kernel refused to load what answers.
    refused: RefusedAnswers,
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

impl Kernel {
    fn tables(&self) -> Reading<'_> {
        self.tables.read()
    }

    /// Without anybody who inserts or looks: for whoever does maintenance.
    fn tables_alone(&self, _: &Maintenance<'_>) -> RwLockWriteGuard<'_, Tables> {
        self.tables.alone()
    }

    /// What attaches and what is to be attached: that generation stays the current one
    /// for as long as the attach points are held.
    fn attach_points(&self) -> (AttachPoints<'_>, Arc<Generation>) {
        tables::assert_none_here();
        let points = self.hooks.lock();
        let current = self.tables().current.clone();
        (points, current)
    }

    /// The settings as they are now.
    fn settings(&self) -> Arc<Settings> {
        let settings = self.settings.read();
        settings.expect("no holder of this lock panics").clone()
    }

    /// The hook asked for, and what `auto` goes by.
    fn wanted(&self) -> HookPlan {
        HookPlan::by(&self.settings())
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
        let subject = BanTarget::new(slot.key.prefix()).ok()?;
        Some(Entry {
            subject,
            policy: self.policies.policy(slot.policy)?,
            expiry: self.expiry(slot.expiry),
        })
    }

    /// Attaches interfaces that came back under their name. Called on every
    /// change the kernel announces; cheap when nothing happened.
    pub fn follow_interfaces(&self) -> Result<(), Error> {
        if !self.hooks.is_attached() {
            return Ok(());
        }
        let wanted = self.wanted();
        let (mut points, current) = self.attach_points();
        points.follow(&wanted, &*current)
    }

    /// Rebuilds the bloom filter now; `maintain` does it when it is due.
    pub fn rebuild_bloom(&self) {
        let _alone = self.maintenance.lock();
        self.tables().current.table.rebuild_bloom();
    }
}

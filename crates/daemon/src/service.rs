//! What the daemon does when told to, by a jail or over the control socket:
//! ban (`bans`, `manual_bans`), unban (`manual_bans`), allow (`allow_list`). The
//! order of the steps: exempt? → in force → told → remembered → durable (when
//! somebody waits for the answer). What it says when asked is in `questions`, in
//! which words in `answers`, its metrics in `gather`; what all of them share is here. Knows nothing of
//! HTTP, sources or threads.

mod allow_list;
mod answers;
mod bans;
mod gather;
mod manual_bans;
mod questions;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, RwLock, atomic::AtomicBool},
    time::Instant,
};

use jiff::Timestamp;
use weir_core::{AddrError, Ban, Subject, policy::Ledger};
use weir_enforce::{Backend, Entry};
use weir_events::{Events, alerts::Alerts};
use weir_sinks::SinkQueue;
use weir_sources::RingStatistics;

pub use answers::{
    Allowed, Done, Filled, HostNameStatus, JailStatus, Lifted, ListedBan, Protection, RingStatus,
    State, Status, Tracked, Why,
};

use crate::{
    access::classes::ClassSync,
    access::exemptions::{Collector, Exempt, Written},
    access::geo::Geography,
    access::lists::Lists,
    config::Config,
    decoy::Decoy,
    expiry::Expiries,
    metrics::Metrics,
    refused::RefusedBans,
    store::{AllowEntry, Store},
    threads::Pulses,
    uplinks::Uplinks,
    watch::{self, stats::WatchStats},
};

/// The longest reason or note, in bytes.
pub const MAX_REASON: usize = 1024;

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The request itself is wrong.
    #[error("{0}")]
    Malformed(String),
    /// Not an address, or one that nobody can ban.
    #[error(transparent)]
    Address(#[from] AddrError),
    /// The subject is exempt.
    #[error("{subject} cannot be banned: {reason}")]
    Exempt {
        /// Who was to be banned.
        subject: Subject,
        /// Why that is not done.
        reason: String,
    },
    /// There is nothing like that.
    #[error("{0}")]
    NotFound(String),
    /// The backend cannot do it.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
    /// Only a restart can do it, or the new configuration is wrong.
    #[error("{0}")]
    Reload(String),
}

/// Everything that the threads of the daemon share.
pub struct Service {
    config: RwLock<Arc<Config>>,
    /// Where decisions are carried out.
    pub backend: Arc<dyn Backend>,
    /// What is remembered.
    pub store: Store,
    /// Who is exempt.
    pub exempt: Exempt,
    /// Who wants to know.
    pub events: Events,
    /// What is wrong.
    pub alerts: Arc<Alerts>,
    /// What is counted.
    pub metrics: Metrics,
    /// Ports that nobody serves.
    pub decoy: Decoy,
    /// Where addresses are.
    pub geography: Arc<Geography>,
    /// Lists of denied and allowed prefixes.
    pub lists: Lists,
    /// Lists and geofence as they are enforced.
    pub classes: ClassSync,
    allow: Mutex<Vec<AllowEntry>>,
    allow_written: Written,
    collector: Mutex<Collector>,
    ledger: RwLock<Option<Arc<Ledger>>>,
    rings: Mutex<BTreeMap<String, RingStatistics>>,
    /// By the names of the workers: has each something to read?
    sources: Mutex<BTreeMap<String, bool>>,
    expiries: Expiries,
    telling: Mutex<()>,
    refused: RefusedBans,
    /// Read-locked while a ban comes into force and is remembered, also for the
    /// second time; write-locked while bans are lifted, so that nothing is left of
    /// one that was half there. Nobody waits for the disk meanwhile.
    in_force: RwLock<()>,
    /// Which interfaces are protected.
    pub uplinks: Uplinks,
    /// What the watches have done.
    pub watches: WatchStats,
    sinks: Mutex<Vec<Arc<SinkQueue>>>,
    started: (Timestamp, Instant),
    restored: String,
    /// The threads that must go on.
    pub pulses: Pulses,
    /// Set when the daemon is to end.
    pub stopping: AtomicBool,
}

impl Service {
    /// Joins the parts.
    pub fn new(
        config: Config,
        backend: Arc<dyn Backend>,
        store: Store,
        uplinks: Uplinks,
        alerts: Arc<Alerts>,
        restored: String,
    ) -> Self {
        let allow = store.allow();
        let geography = Arc::new(Geography::new(alerts.clone()));
        geography.configure(config.geofence.as_ref());
        let lists = Lists::open(&config.lists, &config.state_dir, alerts.clone());
        let (events, metrics) = (Events::default(), Metrics::default());
        alerts.tell(events.bus());
        Self {
            decoy: Decoy::new(backend.clone(), alerts.clone(), &metrics.decoy),
            classes: ClassSync::new(backend.clone(), lists.clone(), geography.clone()),
            lists,
            config: RwLock::new(Arc::new(config)),
            backend,
            store,
            exempt: Exempt::default(),
            events,
            alerts,
            refused: RefusedBans::new(metrics.table.refused_given_up.clone()),
            watches: WatchStats::new(metrics.watches.clone()),
            metrics,
            geography,
            allow: Mutex::new(allow),
            allow_written: Written::default(),
            collector: Mutex::default(),
            ledger: RwLock::default(),
            rings: Mutex::default(),
            sources: Mutex::default(),
            expiries: Expiries::default(),
            telling: Mutex::default(),
            in_force: RwLock::default(),
            uplinks,
            sinks: Mutex::default(),
            started: (Timestamp::now(), Instant::now()),
            restored,
            pulses: Pulses::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Puts another configuration into force.
    pub fn set_config(&self, config: Arc<Config>) {
        self.store.set_keep_history(config.keep_history);
        self.geography.configure(config.geofence.as_ref());
        *self.config.write().expect("no holder of this lock panics") = config;
    }

    /// Has the decoy ports be those of the configuration in force.
    pub fn configure_decoy(&self) {
        let (config, own) = (self.config(), self.own_addresses());
        self.decoy
            .configure(config.decoy.as_ref(), &own, &self.store);
    }

    /// Who counts findings now.
    pub fn set_ledger(&self, ledger: Arc<Ledger>) {
        ledger.set_own(&self.own_addresses());
        *self.ledger.write().expect("no holder of this lock panics") = Some(ledger);
    }

    /// The addresses of this host, as last read.
    pub(crate) fn own_addresses(&self) -> Vec<IpAddr> {
        let collector = self
            .collector
            .lock()
            .expect("no holder of this lock panics");
        collector.own()
    }

    /// What denies this address without a ban, the geofence or a list, in words.
    pub fn denies(&self, addr: IpAddr) -> Option<String> {
        let (_, denied) = self.classes.judge(addr, None)?;
        Some(denied)
    }

    /// The sinks that run from now on.
    pub fn set_sinks(&self, sinks: Vec<Arc<SinkQueue>>) {
        *self.lock_sinks() = sinks;
    }

    fn lock_sinks(&self) -> MutexGuard<'_, Vec<Arc<SinkQueue>>> {
        self.sinks.lock().expect("no holder of this lock panics")
    }

    fn ring_statistics(&self) -> MutexGuard<'_, BTreeMap<String, RingStatistics>> {
        self.rings.lock().expect("no holder of this lock panics")
    }

    fn lock_sources(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.sources.lock().expect("no holder of this lock panics")
    }

    /// The workers from now on: of one that is new nothing is read yet.
    pub fn set_sources(&self, names: &BTreeSet<String>) {
        let mut sources = self.lock_sources();
        let reads = |name: &String| sources.get(name).copied().unwrap_or(false);
        *sources = names.iter().map(|n| (n.clone(), reads(n))).collect();
    }

    /// Has this worker something to read?
    pub fn set_source(&self, name: &str, is_read: bool) {
        if let Some(before) = self.lock_sources().get_mut(name) {
            *before = is_read;
        }
    }

    /// Are there logs to be read, and none that can be?
    fn reads_no_log(&self) -> bool {
        let sources = self.lock_sources();
        !sources.is_empty() && !sources.values().any(|is_read| *is_read)
    }

    /// What a worker knows of its ring now.
    pub fn set_ring(&self, directory: &Path, statistics: RingStatistics) {
        let ring = directory.display().to_string();
        self.ring_statistics().insert(ring, statistics);
    }

    /// Other rings may be read from now on.
    pub fn forget_rings(&self) {
        self.ring_statistics().clear();
    }

    /// The ledger, once the workers have started.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.ledger
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Forgets what jails and watches have counted that the configuration in force
    /// does not have.
    pub fn forget_counters_of_others(&self) {
        let config = self.config();
        let is_jail = |name: &str| config.jails.iter().any(|jail| jail.name == name);
        self.metrics.jails.keep_only(is_jail);
        let is_watch = |name: &str| config.watches.iter().any(|watch| watch.name == name);
        self.watches.keep_only(is_watch);
    }
}

#[cfg(test)]
mod tests;

impl watch::Daemon for Service {
    fn alerts(&self) -> &Alerts {
        &self.alerts
    }
    fn events(&self) -> &Events {
        &self.events
    }
    fn exempt(&self) -> &Exempt {
        &self.exempt
    }
    fn ledger(&self) -> Option<Arc<Ledger>> {
        Self::ledger(self)
    }
    fn denies(&self, addr: IpAddr) -> Option<String> {
        Self::denies(self, addr)
    }
    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, weir_enforce::Error> {
        self.backend.entries_for(addr)
    }
    fn enforce(&self, bans: Vec<Ban>) {
        Self::enforce(self, bans);
    }
}

//! What the daemon does when told to over the control socket: ban and unban
//! (`manual_bans`), allow (`allow_list`), refresh lists (`list_refreshes`); what is
//! done is durable before it is answered. What it says when asked is in `questions`,
//! in which words in `answers`, its metrics in `gather`. Here the parts of the daemon
//! are joined. `run` has all of them, and hands each other module those that it
//! needs. Knows nothing of HTTP, sources or threads.

mod allow_list;
mod answers;
mod fail2ban_state;
mod gather;
mod list_refreshes;
mod manual_bans;
mod questions;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, atomic::AtomicBool},
    time::Instant,
};

use jiff::Timestamp;
use weir_core::{AddrError, Ban, BanSource, BanTarget, PortSet, policy::Ledger};
use weir_enforce::Backend;
use weir_events::{Events, alerts::Alerts};

pub use allow_list::AllowList;
pub use answers::{
    Allowed, Done, FailureCount, HostNameStatus, JailStatus, ListedBan, Protection, RingStatus,
    State, Status, TableUsage, UnbanOutcome, Why,
};
pub use fail2ban_state::{Fail2banState, TakenOver, in_words as taken_over_in_words};
pub use list_refreshes::ListRefreshes;
pub use manual_bans::ManualBans;
pub use questions::Questions;
pub(crate) use questions::is_a_jail;

use crate::{
    access::classes::ClassSync,
    access::exemptions::{Collector, Exempt, Written},
    access::geo::GeoService,
    access::lists::Lists,
    balance::Balancer,
    ban_log::BanLog,
    bans::Bans,
    config::Config,
    current::Current,
    decoy::Decoy,
    fail2ban_actions::Fail2banActions,
    identity::{Apps, PinPlace},
    ignore_command::{IgnoreChecks, Waited},
    interfaces::ProtectedInterfaces,
    log_status::LogStatus,
    metrics::Metrics,
    refused::RefusedBans,
    store::{Store, clock::Now},
    threads::Pulses,
    token::Tokens,
    vips::Vips,
    watch::stats::WatchStats,
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
        /// The subject that was to be banned.
        subject: BanTarget,
        /// The reason for the exemption.
        reason: String,
    },
    /// The named object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// It is there already, or the configuration's.
    #[error("{0}")]
    Conflict(String),
    /// The backend cannot do it.
    #[error(transparent)]
    Backend(#[from] weir_enforce::Error),
    /// Only a restart can do it, or the new configuration is wrong.
    #[error("{0}")]
    Reload(String),
}

/// The parts of the daemon, joined. Nobody but `run` has all of them.
pub struct Service {
    /// The configuration in force.
    pub config: Arc<Current<Config>>,
    /// The backend, which carries out decisions.
    pub backend: Arc<dyn Backend>,
    /// The database with bans, history and positions.
    pub store: Arc<Store>,
    /// The exempt addresses.
    pub exempt: Arc<Exempt>,
    /// The bus of events, with its readers.
    pub events: Arc<Events>,
    /// Alerts about what is wrong now.
    pub alerts: Arc<Alerts>,
    /// The metrics of the daemon.
    pub metrics: Arc<Metrics>,
    /// Ports that nobody serves.
    pub decoy: Arc<Decoy>,
    /// The load balancer.
    pub balancer: Arc<Balancer>,
    /// Virtual addresses that it holds itself.
    pub vips: Arc<Vips>,
    /// Rules about programs.
    pub apps: Arc<Apps>,
    /// Tokens of connections, and ports that want them.
    pub tokens: Arc<Tokens>,
    /// The databases with the country and system of addresses.
    pub geography: Arc<GeoService>,
    /// Lists of denied and allowed prefixes.
    pub lists: Lists,
    /// Lists and geofence as they are enforced.
    pub classes: Arc<ClassSync>,
    /// The ledger that counts findings now.
    pub ledger: Arc<Current<Ledger>>,
    /// The addresses of this host, as last read.
    pub own: Arc<Current<Vec<IpAddr>>>,
    /// What the workers say of their logs.
    pub log_status: Arc<LogStatus>,
    /// The interfaces that are protected.
    pub interfaces: ProtectedInterfaces,
    /// Counts of the watches.
    pub watches: Arc<WatchStats>,
    /// The threads that must go on.
    pub pulses: Arc<Pulses>,
    /// Set when the daemon is to end.
    pub stopping: Arc<AtomicBool>,
    /// Asks the commands that say who is not to be banned.
    pub ignore_checks: Arc<IgnoreChecks>,
    /// Runs what jails run beside their bans.
    pub actions: Arc<Fail2banActions>,
    /// Puts bans into force.
    pub bans: Arc<Bans>,
    /// Bans and lifts what a person names.
    pub manual_bans: Arc<ManualBans>,
    /// Takes bans of Fail2ban's over, and gives them back.
    pub fail2ban_state: Arc<Fail2banState>,
    /// The allow list, with commands that change it.
    pub allow_list: Arc<AllowList>,
    /// Refreshes of lists that a command asks for.
    pub list_refreshes: Arc<ListRefreshes>,
    /// Answers what is asked.
    pub questions: Arc<Questions>,
}

impl Service {
    /// Joins the parts.
    pub fn new(
        config: Config,
        backend: Arc<dyn Backend>,
        store: Store,
        interfaces: ProtectedInterfaces,
        alerts: Arc<Alerts>,
        restored: String,
    ) -> Self {
        let store = Arc::new(store);
        let geography = Arc::new(GeoService::new(alerts.clone()));
        geography.configure(config.geography().as_deref());
        let lists = Lists::open(&config.lists, &config.state_dir, alerts.clone());
        let (events, metrics) = (Arc::new(Events::default()), Arc::new(Metrics::default()));
        alerts.tell(events.bus());
        let exempt = Arc::new(Exempt::default());
        let config = Arc::new(Current::new(config));
        // The workers bring theirs.
        let ledger = Arc::new(Current::new(Ledger::new(Vec::new())));
        let own = Arc::new(Current::new(Vec::new()));
        let classes = ClassSync::new(backend.clone(), lists.clone(), geography.clone());
        let classes = Arc::new(classes);
        let decoy = Decoy::new(backend.clone(), alerts.clone(), &metrics.decoy);
        let decoy = Arc::new(decoy);
        let pulses = Arc::<Pulses>::default();
        let balancer = Arc::new(Balancer::new(
            backend.clone(),
            alerts.clone(),
            events.clone(),
            (geography.clone(), lists.clone()),
            &config.get().state_dir,
            pulses.clone(),
        ));
        let vips = Arc::new(Vips::new(
            alerts.clone(),
            events.clone(),
            balancer.clone(),
            &config.get().state_dir,
        ));
        let pins = PinPlace {
            root: config.get().enforcement.pin_root.clone(),
            instance: config.get().enforcement.instance.clone(),
        };
        let apps = Arc::new(Apps::new(
            pins.clone(),
            alerts.clone(),
            events.clone(),
            (geography.clone(), lists.clone()),
            store.clone(),
        ));
        let tokens = Arc::new(Tokens::new(pins, alerts.clone(), apps.clone()));
        let watches = Arc::new(WatchStats::new(metrics.watches.clone()));
        let log_status = Arc::new(LogStatus::default());
        let actions = Arc::new(Fail2banActions::new(
            alerts.clone(),
            metrics.actions.clone(),
            ledger.clone(),
            store.clone(),
        ));
        // Whoever has waited for an answer goes back to where bans come into force.
        let later = Arc::new(std::sync::OnceLock::<std::sync::Weak<Bans>>::new());
        let ignore_checks = Arc::new(IgnoreChecks::new(
            events.clone(),
            alerts.clone(),
            ledger.clone(),
            Arc::new(WaitedBans(later.clone())),
        ));
        let bans = Arc::new(Bans::new(
            backend.clone(),
            store.clone(),
            exempt.clone(),
            (events.clone(), alerts.clone()),
            geography.clone(),
            (actions.clone(), ignore_checks.clone()),
            (
                BanLog::new(alerts.clone()),
                RefusedBans::new(metrics.table.refused_given_up.clone()),
            ),
        ));
        bans.set_log_file(config.get().ban_log());
        let _first = later.set(Arc::downgrade(&bans));
        let manual_bans = Arc::new(ManualBans {
            bans: bans.clone(),
            backend: backend.clone(),
            store: store.clone(),
            exempt: exempt.clone(),
            config: config.clone(),
            ledger: ledger.clone(),
            classes: classes.clone(),
        });
        let fail2ban_state = Arc::new(Fail2banState {
            config: config.clone(),
            bans: bans.clone(),
            backend: backend.clone(),
            store: store.clone(),
            ledger: ledger.clone(),
            alerts: alerts.clone(),
        });
        let allow_list = Arc::new(AllowList {
            config: config.clone(),
            backend: backend.clone(),
            exempt: exempt.clone(),
            events: events.clone(),
            alerts: alerts.clone(),
            lists: lists.clone(),
            ledger: ledger.clone(),
            own: own.clone(),
            allow: Mutex::new(store.allow()),
            written: Written::default(),
            collector: Mutex::new(Collector::default()),
            store: store.clone(),
        });
        let list_refreshes = Arc::new(ListRefreshes {
            config: config.clone(),
            lists: lists.clone(),
            classes: classes.clone(),
            exempt: exempt.clone(),
            allow_list: allow_list.clone(),
            alerts: alerts.clone(),
        });
        let questions = Arc::new(Questions {
            config: config.clone(),
            backend: backend.clone(),
            store: store.clone(),
            exempt: exempt.clone(),
            alerts: alerts.clone(),
            metrics: metrics.clone(),
            decoy: decoy.clone(),
            balancer: balancer.clone(),
            vips: vips.clone(),
            apps: apps.clone(),
            tokens: tokens.clone(),
            geography: geography.clone(),
            lists: lists.clone(),
            classes: classes.clone(),
            ledger: ledger.clone(),
            log_status: log_status.clone(),
            watches: watches.clone(),
            bans: bans.clone(),
            allow_list: allow_list.clone(),
            sinks: Mutex::default(),
            started: (Timestamp::now(), Instant::now()),
            restored,
        });
        Self {
            config,
            backend,
            store,
            exempt,
            events,
            alerts,
            metrics,
            decoy,
            balancer,
            vips,
            apps,
            tokens,
            geography,
            lists,
            classes,
            ledger,
            own,
            log_status,
            interfaces,
            watches,
            pulses,
            ignore_checks,
            actions,
            stopping: Arc::default(),
            bans,
            manual_bans,
            fail2ban_state,
            allow_list,
            list_refreshes,
            questions,
        }
    }

    /// Puts another configuration into force.
    pub fn set_config(&self, config: Arc<Config>) {
        self.store.set_keep_history(config.keep_history);
        self.geography.configure(config.geography().as_deref());
        self.bans.set_log_file(config.ban_log());
        self.config.set(config);
    }

    /// Has the actions of the configuration in force run, and no others; none while
    /// nothing is dropped.
    pub(crate) fn run_actions(&self) {
        let config = self.config.get();
        self.ignore_checks.run(&config.jails);
        let now = Now::read();
        let all = std::cell::OnceCell::new();
        let observes = config.enforcement.drops_nothing().is_some();
        self.actions.run(&config.jails, observes, |jail| {
            // Without them it is as if nobody were banned; the backend tells why itself.
            let entries = all.get_or_init(|| self.backend.entries().unwrap_or_default());
            let is_its =
                |producer: &BanSource| matches!(producer, BanSource::Jail(name) if name == jail);
            let own = entries
                .iter()
                .filter(|entry| is_its(&entry.policy.producer));
            own.map(|entry| (entry.subject, entry.policy.clone(), now.until(entry.expiry)))
                .collect()
        });
    }

    /// Has the decoy ports be those of the configuration in force.
    pub fn configure_decoy(&self) {
        let (config, own) = (self.config.get(), self.own.get());
        self.decoy.configure(
            config.decoy.as_ref(),
            config.tarpit.as_ref(),
            &own,
            &self.store,
        );
    }

    /// Forgets what jails and watches have counted that the configuration in force
    /// does not have.
    pub fn forget_counters_of_others(&self) {
        let config = self.config.get();
        let is_jail = |name: &str| config.jails.iter().any(|jail| jail.name == name);
        self.metrics.jails.keep_only(is_jail);
        let is_watch = |name: &str| config.watches.iter().any(|watch| watch.name == name);
        self.watches.keep_only(is_watch);
    }
}

/// Where bans go that have waited for an answer; the bans themselves are made later.
struct WaitedBans(Arc<std::sync::OnceLock<std::sync::Weak<Bans>>>);

impl WaitedBans {
    fn bans(&self) -> Option<Arc<Bans>> {
        self.0.get().and_then(std::sync::Weak::upgrade)
    }
}

impl Waited for WaitedBans {
    fn put(&self, bans: Vec<Ban>) {
        if let Some(to) = self.bans() {
            to.enforce_admitted(bans);
        }
    }

    fn lift(&self, subject: BanTarget, producer: &BanSource, scope: Option<&PortSet>, why: &str) {
        let Some(from) = self.bans() else {
            return;
        };
        if let Err(error) = from.lift(subject, Some(producer), scope, why) {
            tracing::error!("{subject} is to be ignored and its ban cannot be lifted: {error}");
        }
    }
}

/// What tests of other modules look at.
#[cfg(test)]
impl Service {
    pub(crate) fn bans_in_force(
        &self,
        jail: Option<&str>,
    ) -> Result<Vec<weir_enforce::Entry>, Refusal> {
        self.questions.bans_in_force(jail)
    }

    pub(crate) fn explain(&self, entries: Vec<weir_enforce::Entry>) -> Vec<ListedBan> {
        self.questions.explain(entries)
    }
}

#[cfg(test)]
mod tests;

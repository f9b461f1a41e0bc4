//! What the daemon says when asked: bans, jails, why, the whole picture.
//! Changes nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use jiff::Timestamp;
use weir_core::{
    Action, BanSource, Prefix, Protocol, Reason,
    geo::Place,
    policy::{self, Ledger},
    verdict::{Asked, decide},
};
use weir_enforce::{Backend, Entry, Feature};
use weir_events::alerts::Alerts;
use weir_sinks::{SinkQueue, TestOutcome};

use super::{
    FailureCount, HostNameStatus, JailStatus, ListedBan, Protection, Refusal, RingStatus, State,
    Status, TableUsage, Why, allow_list::AllowList, answers::no_log,
};
use crate::{
    access::{
        classes::ClassSync,
        exemptions::{Exempt, Exemption},
        geo::GeoService,
        lists::{ListStatus, Lists},
    },
    balance::{Balancer, PoolStatus},
    ban_log,
    bans::Bans,
    config::{Config, NotInForce},
    current::Current,
    decoy::Decoy,
    identity::{AppStatus, Apps, AskedSocket, ProgramStatus, ShortLived, WhyProgram, WhySockets},
    log_status::LogStatus,
    metrics::Metrics,
    store::{Store, clock::Now},
    token::{TokenStatus, Tokens},
    vips::Vips,
    watch::stats::WatchStats,
};

/// Answers what is asked; changes nothing that is enforced or remembered.
pub struct Questions {
    pub(super) config: Arc<Current<Config>>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) store: Arc<Store>,
    pub(super) exempt: Arc<Exempt>,
    pub(super) alerts: Arc<Alerts>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) decoy: Arc<Decoy>,
    pub(super) balancer: Arc<Balancer>,
    pub(super) vips: Arc<Vips>,
    pub(super) apps: Arc<Apps>,
    pub(super) tokens: Arc<Tokens>,
    pub(super) geography: Arc<GeoService>,
    pub(super) lists: Lists,
    pub(super) classes: Arc<ClassSync>,
    pub(super) ledger: Arc<Current<Ledger>>,
    pub(super) log_status: Arc<LogStatus>,
    pub(super) watches: Arc<WatchStats>,
    pub(super) bans: Arc<Bans>,
    pub(super) allow_list: Arc<AllowList>,
    pub(super) sinks: Mutex<Vec<Arc<SinkQueue>>>,
    pub(super) started: (Timestamp, Instant),
    pub(super) restored: String,
}

/// Is a jail of this name enabled?
pub(crate) fn is_a_jail(config: &Config, jail: &str) -> Result<(), Refusal> {
    if config.jails.iter().any(|known| known.name == jail) {
        return Ok(());
    }
    let names: Vec<_> = config.jails.iter().map(|jail| jail.name.as_str()).collect();
    Err(Refusal::NotFound(format!(
        "there is no jail {jail:?}; enabled are: {}",
        match names.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        }
    )))
}

impl Questions {
    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config.get()
    }

    /// The bans in force, of one jail or all, by subject. A jail that is gone
    /// is known for as long as it has bans.
    pub fn bans_in_force(&self, jail: Option<&str>) -> Result<Vec<Entry>, Refusal> {
        let mut entries = self.backend.entries()?;
        if let Some(jail) = jail {
            let producer = BanSource::Jail(jail.to_owned());
            entries.retain(|e| e.policy.producer == producer);
            if entries.is_empty() {
                is_a_jail(&self.config.get(), jail)?;
            }
        }
        entries.sort_unstable_by(|a, b| (a.subject, &a.policy).cmp(&(b.subject, &b.policy)));
        Ok(entries)
    }

    /// Rules about programs as they are in force; `None`: there is no `[app]`.
    pub fn app(&self) -> Result<Option<AppStatus>, Refusal> {
        self.apps.status().map_err(Self::app_refusal)
    }

    /// The programs that are known.
    pub fn programs(&self) -> Vec<ProgramStatus> {
        self.apps.programs()
    }

    /// The identity of a process, and the rules that are about it.
    pub fn why_program(&self, pid: u32) -> Result<WhyProgram, Refusal> {
        let why = self.apps.why(pid).map_err(Self::app_refusal)?;
        let why = why.ok_or_else(|| self.no_app())?;
        why.map_err(|no_program| Refusal::NotFound(no_program.to_string()))
    }

    fn no_app(&self) -> Refusal {
        let why = match self.apps.is_queued() {
            true => "at level nfqueue of [app] nothing is kept of programs that could be explained",
            false => "there is no [app] in the configuration",
        };
        Refusal::NotFound(why.to_owned())
    }

    /// Who holds these sockets, and what was decided about them.
    pub fn why_sockets(&self, asked: &AskedSocket) -> Result<WhySockets, Refusal> {
        let why = self.apps.why_sockets(asked).map_err(Self::app_refusal)?;
        let why = why.ok_or_else(|| self.no_app())?;
        match why.sockets.is_empty() {
            true => Err(Refusal::NotFound(format!(
                "there is no socket {asked} of IPv4 or IPv6, as far as weir may see"
            ))),
            false => Ok(why),
        }
    }

    /// Programs that ended before it was known who they were.
    pub fn short_lived(&self) -> Vec<ShortLived> {
        self.apps.short_lived()
    }

    /// Tokens as they are in force; `None`: there is no `[token]`.
    pub fn token(&self) -> Result<Option<TokenStatus>, Refusal> {
        self.tokens.status().map_err(Self::app_refusal)
    }

    fn app_refusal(error: weir_bpf::Error) -> Refusal {
        Refusal::Backend(error.into())
    }

    /// Bans with their explanations.
    pub fn explain(&self, entries: Vec<Entry>) -> Vec<ListedBan> {
        let now = Now::read();
        let details = self.store.details(&entries);
        entries
            .into_iter()
            .zip(details)
            .map(|(entry, detail)| ListedBan::new(entry, detail, &now))
            .collect()
    }

    /// Why an address, or every address of a prefix, is dropped, or would be on this
    /// port. Lists and geofence are asked about single addresses only.
    pub fn why(&self, prefix: Prefix, port: Option<(Protocol, u16)>) -> Result<Why, Refusal> {
        let addr = prefix.addr();
        let mut entries = self.backend.entries_for(addr)?;
        entries.retain(|entry| entry.subject.prefix().covers(prefix));
        let within = match prefix.is_host() {
            true => 0,
            false => self.bans_within(prefix)?,
        };
        let host = prefix.is_host().then_some(addr);
        let exemptions = self.exempt.current();
        let exempt = exemptions.holding(prefix);
        let holds_exempt = match exempt {
            Some(_) => None,
            None => exemptions.set().inside(prefix),
        };
        let ports: Vec<(u8, u16)> = match port {
            None => Vec::new(),
            Some((Protocol::Any, port)) => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
                .map(|protocol| (protocol.number(), port))
                .to_vec(),
            Some((protocol, port)) => vec![(protocol.number(), port)],
        };
        let said = host.and_then(|addr| self.classes.judge(addr, port));
        let asked = Asked {
            source: host,
            ports: &ports,
            denied: said.as_ref().map(|(reason, _)| *reason),
            allowed: exempt.is_some(),
            observe: self.config.get().enforcement.observe,
        };
        let mut limits = self.backend.limits().iter();
        let answers = limits.all(|limit| limit.feature != Feature::Reject);
        let bans = entries.iter().map(|e| match e.policy.action {
            Action::Reject if !answers => (&e.policy.scope, Action::Drop),
            action => (&e.policy.scope, action),
        });
        let pools = host.map_or_else(Vec::new, |addr| self.balancer.access(addr, port));
        let verdict = match decide(bans, &asked) {
            drop if drop.is_drop() || drop == Reason::Observed => drop,
            // Exempt or not: it is no ban, but whom the pool is for.
            _ if port.is_some() && pools.iter().any(|pool| pool.denied) => match asked.observe {
                true => Reason::Observed,
                false => Reason::PoolDenied,
            },
            pass => pass,
        };
        let protection = self.protection();
        // Those of its first address are not the prefix's.
        let mut history = self
            .store
            .offences(addr, if prefix.is_host() { 10 } else { 1000 });
        history.retain(|offence| offence.subject.prefix().covers(prefix));
        history.truncate(10);
        Ok(Why {
            address: prefix,
            dropped: verdict.is_drop() && protection.state == State::Protected,
            would_drop: verdict.is_drop() || verdict == Reason::Observed,
            protection,
            verdict,
            exempt,
            holds_exempt,
            bans_only: host.is_none(),
            bans: self.explain(entries),
            within,
            place: host.map_or_else(Place::default, |addr| self.geography.place(addr)),
            lists: host.map_or_else(Vec::new, |addr| self.classes.listings(addr)),
            denied: said.map(|(_, text)| text),
            pools,
            history,
            tracked: self.tracked(prefix),
            counters: self.backend.counters()?,
        })
    }

    /// Bans in force of parts of this prefix.
    fn bans_within(&self, prefix: Prefix) -> Result<usize, Refusal> {
        let entries = self.backend.entries()?;
        let parts = entries.iter().map(|entry| entry.subject.prefix());
        let within = parts.filter(|part| *part != prefix && prefix.covers(*part));
        Ok(within.count())
    }

    /// Failures of subjects that hold this prefix and are not banned yet.
    fn tracked(&self, prefix: Prefix) -> Vec<FailureCount> {
        let ledger = self.ledger.get();
        ledger
            .snapshot(Timestamp::now())
            .into_iter()
            .filter(|tracked| tracked.subject.prefix().covers(prefix))
            .map(|tracked| FailureCount {
                findings: tracked.failures.iter().map(|f| f.attempts).sum(),
                max_retry: ledger
                    .jail(&tracked.jail)
                    .map_or(0, |jail| ledger.jails()[jail].limits.max_retry),
                jail: tracked.jail,
            })
            .collect()
    }

    /// The allow list: every exemption with its reason.
    pub fn exemptions(&self) -> Vec<Exemption> {
        self.exempt.current().list()
    }

    /// The jails with their numbers.
    pub fn jails(&self) -> Result<Vec<JailStatus>, Refusal> {
        Ok(self.jails_with(&self.backend.bans_by_producer()?))
    }

    /// The jails with their numbers, given the bans in force by producer.
    fn jails_with(&self, in_force: &BTreeMap<BanSource, u64>) -> Vec<JailStatus> {
        let ledger = self.ledger.get();
        let config = self.config.get();
        let own_bans = ban_log::path_in(&config.state_dir);
        config
            .jails
            .iter()
            .map(|jail| {
                let (counters, name) = (&self.metrics.jails, [jail.name.as_str()]);
                let stats = ledger.jail(&jail.name);
                let stats = stats.and_then(|jail| ledger.stats(jail));
                let stats = stats.unwrap_or_default();
                JailStatus {
                    name: jail.name.clone(),
                    filter: jail.filter.clone(),
                    source: match jail.own_bans {
                        Some(_) => format!("{} {}", jail.source, own_bans.display()),
                        None => jail.source.to_string(),
                    },
                    max_retry: jail.limits.max_retry,
                    find_time: policy::format_duration(jail.limits.find_time),
                    ban_time: jail.limits.ban_time.to_string(),
                    scope: jail.scope.clone(),
                    action: jail.action,
                    lines: counters.lines.get(name),
                    findings: counters.findings.get(name),
                    bans: counters.bans.get(name),
                    bans_in_force: in_force
                        .get(&BanSource::Jail(jail.name.clone()))
                        .copied()
                        .unwrap_or(0),
                    ignored: counters.ignored.get(name),
                    refused: counters.refused.get(name),
                    names_resolved: counters.names_resolved.get(name),
                    names_failed: counters.names_failed.get(name),
                    tracked: stats.tracked as u64,
                    forgotten: stats.evicted,
                }
            })
            .collect()
    }

    fn host_names(&self) -> HostNameStatus {
        let resolver = &self.metrics.resolver;
        let [waiting, findings_waiting, known] = resolver.load.get();
        let lookups = |result| resolver.lookups.get([result]);
        HostNameStatus {
            waiting,
            findings_waiting,
            known,
            resolved: lookups("addresses"),
            without_address: lookups("none"),
            failed: lookups("failed"),
            late: lookups("late"),
            refused: resolver.full.get(["names"]) + resolver.full.get(["findings"]),
        }
    }

    fn rings(&self) -> Vec<RingStatus> {
        self.log_status
            .rings()
            .iter()
            .map(|(ring, now)| RingStatus {
                ring: ring.clone(),
                workers: now.workers,
                segments: now.segments,
                unreadable: now.unreadable,
                bad: now.bad,
                records: now.records,
                lost: now.lost,
                lost_bytes: now.lost_bytes,
            })
            .collect()
    }

    /// Sends a test event to the sink of this name, and says what came of it.
    pub fn test_sink(&self, name: &str) -> Result<TestOutcome, Refusal> {
        let config = self.config.get();
        match config.sinks.iter().find(|sink| sink.name == name) {
            Some(sink) => Ok(weir_sinks::attempt(sink)),
            None => Err(Refusal::NotFound(format!(
                "there is no sink {name:?}; enabled are: {}",
                config
                    .sinks
                    .iter()
                    .map(|sink| sink.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
        }
    }

    /// The sinks that run from now on.
    pub fn set_sinks(&self, sinks: Vec<Arc<SinkQueue>>) {
        *self.lock_sinks() = sinks;
    }

    fn lock_sinks(&self) -> MutexGuard<'_, Vec<Arc<SinkQueue>>> {
        self.sinks.lock().expect("no holder of this lock panics")
    }

    /// The lists, as they are now.
    pub fn lists(&self) -> Vec<ListStatus> {
        let exempt: Vec<_> = self.exempt.current().own().collect();
        self.lists.status(&exempt)
    }

    /// Whether denied packets are dropped on this host, and why.
    fn protection(&self) -> Protection {
        Protection::of(
            self.backend.name(),
            self.config.get().enforcement.observe,
            &self.backend.attachments(),
        )
    }

    /// The pools, with what was counted of them.
    pub fn pools(&self) -> Result<Vec<PoolStatus>, Refusal> {
        Ok(self.balancer.status()?)
    }

    /// The pool of this name, with what was counted of it.
    pub fn pool(&self, name: &str) -> Result<PoolStatus, Refusal> {
        let mut pools = self.pools()?.into_iter();
        let pool = pools.find(|pool| pool.name == name);
        pool.ok_or_else(|| Refusal::NotFound(format!("there is no pool {}", crate::escape(name))))
    }

    /// What commands have added to the pools that is not in force.
    pub fn pools_not_in_force(&self) -> Vec<NotInForce> {
        self.config.get().added.not_in_force.clone()
    }

    /// The whole picture.
    pub fn status(&self) -> Result<Status, Refusal> {
        let config = self.config.get();
        let attachments = self.backend.attachments();
        let usage = self.backend.usage();
        let by_producer = self.backend.bans_by_producer()?;
        let bans = usage.bans + usage.prefix_bans;
        let is_blind = config.denies_by_jails_only() && self.log_status.reads_no_log();
        let is_idle = match (config.denies_nothing(), bans) {
            (true, 0) if config.jails.is_empty() => {
                Some("nothing is enabled that bans or denies".to_owned())
            }
            (true, 0) => Some(
                "its jails only notify, and nothing else is enabled that bans or denies".to_owned(),
            ),
            _ => is_blind.then(|| no_log(bans)),
        };
        let protection = self
            .protection()
            .unless(is_idle, &self.allow_list.allowed_too_wide())
            .with_jails(config.jails.len(), config.jails_that_cannot_run())
            .or_by_program(&config);
        let mut status = Status {
            protection,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            since: self.started.0,
            uptime_seconds: self.started.1.elapsed().as_secs(),
            config: config.file.display().to_string(),
            instance: config.enforcement.instance.clone(),
            backend: self.backend.name(),
            limits: self.backend.limits().to_vec(),
            observe: config.enforcement.observe,
            decoy: self.decoy.status(&by_producer)?,
            pools: self.balancer.status()?,
            vips: self.vips.status(),
            app: self.app()?,
            token: self.token()?,
            vrrp: self.vips.routers(),
            segments: self.vips.segments(),
            tarpit: self.decoy.tarpit_status(config.tarpit.as_ref())?,
            attachments,
            usage: TableUsage {
                entries: usage,
                map_bytes: self.backend.memory(),
            },
            counters: self.backend.counters()?,
            classes: self.classes.status(),
            dropped: match self.backend.classes() {
                Some(filter) => filter.class_counts()?,
                None => Vec::new(),
            },
            jails: self.jails_with(&by_producer),
            by_producer,
            host_names: self.host_names(),
            rings: self.rings(),
            watches: self.watches.status(&config.watches),
            sinks: self.lock_sinks().iter().map(|s| s.status()).collect(),
            alerts: self.alerts.list(),
            warnings: config.warnings.clone(),
            unsaved: self.store.pending(),
            unsaved_forgotten: self.store.forgotten(),
            restored: self.restored.clone(),
            metrics: Vec::new(),
        };
        status.metrics = self.gather(&status);
        Ok(status)
    }
}

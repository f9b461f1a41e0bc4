//! From the log line to the ban, run to completion: each group of sources has
//! one thread that reads a batch, runs the filters of its jails on it, counts
//! findings in the ledger and hands the bans to [`Bans::enforce`]. Nothing
//! is passed on per record, nobody else is woken.

mod alerts;
mod files_in_common;
mod findings;
mod group;
mod hands;
mod host_names;
mod in_hand;
mod line_filter;
mod name_lookups;
mod running;
mod worker;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use weir_core::{
    detect::{Age, DefinitionError, Program},
    policy::{Jail, Ledger},
};

use weir_events::{Events, alerts::Alerts};

use crate::{
    access::exemptions::Exempt,
    bans::Bans,
    config::Config,
    current::Current,
    ignore_command::IgnoreChecks,
    log_alerts::LogAlerts,
    log_status::LogStatus,
    metrics::Metrics,
    positions::Positions,
    store::{Change, Progress, Store},
    threads::{self, Pulses},
    watch::config::WatchConfig,
};
use alerts::{Own, SourceAlerts};
use group::{Group, Groups, read_back, running};
use hands::Hand;
use in_hand::InHand;
use line_filter::LineFilter;
use name_lookups::NameLookups;
use running::Running;
use worker::Worker;

/// A start waits this long for the sources to be opened: one on a dead network
/// file system must not keep the daemon from its other work.
const OPENED_WITHIN: Duration = Duration::from_secs(10);
/// A stop or a reload waits this long for threads that wait for file systems,
/// however many calls they make in that time. Slow servers answer in less.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);
/// The most threads that were given up and have not come back. Each holds a
/// stack, and the file that it waits for.
const MAX_GIVEN_UP: usize = 16;

/// Why the workers do not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A filter is wrong.
    #[error("filter {name:?}: {error}")]
    Filter {
        /// The name of the jail.
        name: String,
        /// The error in the filter's definition.
        error: DefinitionError,
    },
    /// No filter has this name.
    #[error("there is no filter {0:?}")]
    NoFilter(String),
    /// The system gives no thread.
    #[error("cannot start a worker: {0}")]
    Thread(std::io::Error),
    /// Too many of them have not come back.
    #[error(
        "{MAX_GIVEN_UP} threads wait for file systems that do not answer, one for {0}: mend the file system (umount -f makes it answer), or restart weir; what is banned stays banned meanwhile"
    )]
    GivenUp(String),
}

/// The filter of this name: the configuration's own, or one that weir brings.
pub fn filter(config: &Config, name: &str) -> Result<Program, WorkerError> {
    match config.filters.get(name) {
        Some(definition) => definition.compile().map_err(|error| WorkerError::Filter {
            name: name.to_owned(),
            error,
        }),
        None => Program::builtin(name).ok_or_else(|| WorkerError::NoFilter(name.to_owned())),
    }
}

/// What reading logs may touch of the daemon.
#[derive(Clone)]
pub struct Handles {
    /// The exempt addresses.
    pub exempt: Arc<Exempt>,
    /// Puts bans into force.
    pub bans: Arc<Bans>,
    /// Asked about whoever fails, where a jail does so.
    pub ignore_checks: Arc<IgnoreChecks>,
    /// Positions and counts.
    pub store: Arc<Store>,
    /// The bus of events, which is told of findings.
    pub events: Arc<Events>,
    /// Where trouble with a log is told.
    pub alerts: Arc<Alerts>,
    /// The metrics of jails and sources.
    pub metrics: Arc<Metrics>,
    /// Whether logs are read.
    pub log_status: Arc<LogStatus>,
    /// Where the ledger that counts is handed in.
    pub ledger: Arc<Current<Ledger>>,
    /// The addresses of this host.
    pub own: Arc<Current<Vec<IpAddr>>>,
    /// The threads that must go on.
    pub pulses: Arc<Pulses>,
}

/// The threads that read, and what they share.
pub struct Workers {
    daemon: Handles,
    threads: Vec<Reader>,
    stop: Arc<AtomicBool>,
    ledger: Arc<Ledger>,
    positions: Positions,
    alerts: Arc<SourceAlerts>,
    names: Arc<NameLookups>,
    /// Threads that a file system has not answered yet: nobody waits for them.
    given_up: Vec<Reader>,
}

/// What the jails of a configuration need to be read, before anything of it is in force.
pub struct Prepared {
    groups: Groups,
    hands: Vec<Hand>,
}

/// A thread, and what it has in hand.
struct Reader {
    thread: JoinHandle<()>,
    in_hand: Arc<InHand>,
}

impl Workers {
    /// Starts reading for all jails of `config`, where an earlier run stopped.
    pub fn start(daemon: Handles, config: &Config) -> Result<Self, WorkerError> {
        let ledger = Arc::new(Ledger::new(jails(config)));
        // Whose neighbours are counted by their own addresses.
        ledger.set_own(&daemon.own.get());
        ledger.restore_history(daemon.store.jail_history());
        ledger.restore(daemon.store.tracked(), Timestamp::now());
        let groups = running(&daemon.metrics.jails, config)?;
        let mut workers = Self {
            daemon: daemon.clone(),
            threads: Vec::new(),
            stop: Arc::default(),
            ledger,
            positions: Positions::new(daemon.store.positions()),
            alerts: Arc::default(),
            names: Arc::new(NameLookups::new(daemon.clone())),
            given_up: Vec::new(),
        };
        let hands = hands_for(&groups)?;
        workers.look_up_names(&groups)?;
        let named = groups.values().flatten();
        workers.names.jails().replace(&workers.ledger, named);
        workers.tell_not_run(None, config);
        workers.employ(&config.enforcement.instance, groups, hands, Age::Backlog);
        Ok(workers)
    }

    /// Makes all of another configuration that can fail; the one in force goes on.
    ///
    /// # Errors
    /// A filter, a thread or a file that a jail needs cannot be had.
    pub fn prepare(&mut self, new: &Config) -> Result<Prepared, WorkerError> {
        let groups = running(&self.daemon.metrics.jails, new)?;
        self.given_up.retain(|reader| !reader.thread.is_finished());
        if self.given_up.len() >= MAX_GIVEN_UP
            && let Some(call) = self.given_up.iter().find_map(Reader::waits_for)
        {
            return Err(WorkerError::GivenUp(call));
        }
        let hands = hands_for(&groups)?;
        self.look_up_names(&groups)?;
        Ok(Prepared { groups, hands })
    }

    /// Changes over to another configuration, for which all is prepared.
    pub fn replace(&mut self, old: &Config, new: &Config, prepared: Prepared) {
        let Prepared { mut groups, hands } = prepared;
        // Findings that wait for a name count for the new ledger.
        let names = self.names.clone();
        let mut named = names.jails();
        let read = self.stop_reading();
        for jail in groups.values_mut().flatten() {
            let mut before = read.iter().flat_map(|in_hand| in_hand.jails.iter());
            let filter = &jail.config.filter;
            let is_same = |other: &&Running| other.reads_as(jail);
            if old.filters.get(filter) == new.filters.get(filter)
                && let Some(before) = before.find(is_same)
            {
                jail.states = before.reopened_states();
            }
        }
        let now = Timestamp::now();
        let ledger = Arc::new(Ledger::new(jails(new)));
        ledger.take_over(&self.ledger, now);
        self.ledger = ledger;
        // Theirs may be another zone now.
        for jail in &old.jails {
            self.daemon
                .alerts
                .forget(&Running::about_stamps(&jail.name));
            LogAlerts::forget(&self.daemon.alerts, &jail.name);
        }
        named.replace(&self.ledger, groups.values().flatten());
        drop(named);
        self.tell_not_run(Some(old), new);
        // What has been written meanwhile is a moment old.
        self.employ(&new.enforcement.instance, groups, hands, Age::Unknown);
    }

    /// Raises an alert for each jail of Fail2ban's that cannot be run, for it protects
    /// nobody; those of a configuration before end.
    fn tell_not_run(&self, old: Option<&Config>, new: &Config) {
        let of = |config: &'_ Config| match &config.fail2ban {
            Some(fail2ban) => fail2ban.broken.clone(),
            None => Vec::new(),
        };
        let about = |jail: &str| format!("fail2ban:{}", crate::escape(jail));
        let broken = of(new);
        for (jail, _) in old.map(of).unwrap_or_default() {
            if !broken.iter().any(|(name, _)| *name == jail) {
                self.daemon.alerts.clear(&about(&jail));
            }
        }
        for (jail, why) in broken {
            let message = format!("jail {jail} is not run: {why}");
            self.daemon.alerts.raise(&about(&jail), message);
        }
    }

    /// Makes the threads that look host names up, if a jail needs them.
    fn look_up_names(&self, groups: &Groups) -> Result<(), WorkerError> {
        let jails = groups.values().flatten();
        self.names.start(jails).map_err(WorkerError::Thread)
    }

    fn employ(&mut self, instance: &str, groups: Groups, hands: Vec<Hand>, held: Age) {
        let mut hands = hands.into_iter().enumerate();
        self.stop = Arc::default();
        let daemon = &self.daemon;
        self.ledger.set_own(&daemon.own.get());
        daemon.ledger.set(self.ledger.clone());
        // Behind that: an answer of the resolver goes to the ledger that is current.
        daemon.ignore_checks.tell_names(&self.ledger);
        let (opened, all_opened) = mpsc::channel();
        daemon.log_status.forget_rings();
        let used = groups.keys().map(Group::key).collect();
        let names = self.ledger.jails().iter().map(|jail| jail.name.clone());
        let moved = self.positions.change_over(&used).into_iter();
        daemon.store.remember(
            moved
                .map(|(source, position)| match position {
                    None => Change::ForgetPosition(source),
                    position => Change::Progress(Progress {
                        source,
                        position,
                        tracked: Vec::new(),
                    }),
                })
                .chain([Change::KeepJails(names.collect())]),
        );
        let names: BTreeSet<String> = groups.keys().map(Group::title).collect();
        daemon
            .metrics
            .sources
            .keep_only(|source| names.contains(source));
        let workers: BTreeSet<String> = groups.keys().flat_map(Group::names).collect();
        self.alerts.forget_all_but(&daemon.alerts, &workers);
        daemon.log_status.set_sources(&workers);
        for (group, jails) in groups {
            let (key, title, names) = (group.key(), group.title(), group.names());
            // At a start only: a jail that a reload brings back would count anew what it
            // has counted, and ban anew whom somebody let go.
            let back = match held {
                Age::Backlog => read_back(&jails),
                _ => None,
            };
            let counted = jails.iter().filter(|jail| jail.saves_counts());
            let numbers: Vec<usize> = counted.map(|jail| jail.number).collect();
            Running::share_dates(&jails);
            let jails: Arc<[Running]> = jails.into();
            let parts = group.parts(instance, back).into_iter().zip(names);
            for (part, (open, source)) in parts.enumerate() {
                let (number, hand) = hands.next().expect("there is one for each part");
                // One thread saves what all of the group count.
                let saves = (part == 0).then(|| numbers.clone());
                let in_hand = Arc::new(InHand::new(
                    daemon,
                    daemon.pulses.of(format!("weir-worker-{number}")),
                    key.clone(),
                    jails.clone(),
                    saves,
                    self.ledger.clone(),
                    self.positions.clone(),
                ));
                let worker = Worker {
                    in_hand: in_hand.clone(),
                    open,
                    names: self.names.clone(),
                    alerts: Own::new(&self.alerts, &daemon.alerts, source),
                    log_status: daemon.log_status.clone(),
                    counters: daemon.metrics.sources.of(&title),
                    stop: self.stop.clone(),
                    zone: TimeZone::system(),
                    held,
                    opened: Some(opened.clone()),
                };
                let thread = hand.give(Box::new(move || worker.run()));
                self.threads.push(Reader { thread, in_hand });
            }
        }
        drop(opened);
        // Each worker drops its end: who is told that weir runs may rely on
        // the next line being read.
        let _: Result<(), _> = all_opened.recv_timeout(OPENED_WITHIN);
    }

    /// Ends the threads; their positions and counts are remembered, also of the
    /// findings for whose names there is an answer. One that a file system does not
    /// answer is left to itself.
    pub fn stop(&mut self) {
        let in_hand = self.stop_reading();
        self.names.finish();
        for in_hand in in_hand {
            in_hand.save(true, || None);
        }
    }

    /// Ends the threads while findings may still wait for their names; returns what the
    /// threads had in hand.
    fn stop_reading(&mut self) -> Vec<Arc<InHand>> {
        self.stop.store(true, Ordering::Relaxed);
        let patience = Instant::now() + GIVEN_UP_AFTER;
        let mut all = Vec::new();
        for reader in self.threads.drain(..) {
            all.push(reader.in_hand.clone());
            let is_over = || {
                reader.thread.is_finished()
                    || Instant::now() >= patience && reader.in_hand.give_up()
            };
            while !is_over() {
                thread::sleep(Duration::from_millis(2));
            }
            if reader.in_hand.pulse.is_given_up() {
                tracing::warn!(
                    "not waited for any more: {}",
                    reader.waits_for().unwrap_or_default()
                );
                reader.in_hand.finish();
                self.given_up.push(reader);
            } else {
                reader.thread.join().expect("a panic ends the daemon");
            }
        }
        all
    }
}

impl Reader {
    fn waits_for(&self) -> Option<String> {
        self.in_hand.pulse.waits_for()
    }
}

/// The jails as the ledger counts them, in the order of the configuration, and
/// the watches behind them.
fn jails(config: &Config) -> Vec<Jail> {
    config
        .jails
        .iter()
        .map(|jail| Jail {
            name: jail.name.clone(),
            limits: jail.limits.clone(),
            scope: jail.scope.clone(),
            action: jail.action,
            ignore: jail.ignore.clone(),
            names_prefixes: LineFilter::of(config, jail)
                .is_ok_and(|filter| filter.names_prefixes()),
        })
        .chain(config.watches.iter().map(WatchConfig::jail))
        .collect()
}
/// A thread for each part of what they read.
fn hands_for(groups: &Groups) -> Result<Vec<Hand>, WorkerError> {
    let count = groups.keys().map(Group::workers).sum();
    Hand::several(count, threads::spawn).map_err(WorkerError::Thread)
}

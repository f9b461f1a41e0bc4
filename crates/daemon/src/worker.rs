//! From the log line to the ban, run to completion: each group of sources has
//! one thread that reads a batch, runs the filters of its jails on it, counts
//! findings in the ledger and hands the bans to [`Service::enforce`]. Nothing
//! is passed on per record, nobody else is woken.

mod alerts;
mod hands;
mod in_hand;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use weir_bpf::fault;
use weir_core::{
    Prefix,
    detect::{Age, Clock, Context, DefinitionError, Finding, Line, Notices, Program, ProgramState},
    policy::{Jail, Ledger},
};
use weir_sources::{
    BatchInfo, FileConfig, FileSource, JournalConfig, JournalSource, JournalStart, Origin, Ring,
    RingConfig, Source, SourceError, journal,
};

use crate::{
    config::{Config, JailConfig, RingChoice, SourceChoice, WatchConfig, duration_text},
    events::{Event, Kind},
    judge::{Judge, Judgement, Offence, Suspect},
    log_alerts::LogAlerts,
    positions::{self, Positions},
    service::{JailCounters, Service},
    store::{Change, Progress},
    threads,
};
use alerts::{Own, SourceAlerts};
use hands::Hand;
use in_hand::InHand;

/// A worker looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// Positions are remembered this often, and counts with them.
const SAVE: Duration = Duration::from_secs(1);
/// A source that cannot be opened is tried again after this time.
const REOPEN: Duration = Duration::from_secs(5);
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
        /// Which.
        name: String,
        /// What is wrong.
        error: DefinitionError,
    },
    /// There is no such filter.
    #[error("there is no filter {0:?}")]
    NoFilter(String),
    /// No thread.
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

/// What a group of jails reads together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Log files that jails have in common, by each jail's patterns: a file is
    /// read once for all jails that subscribe to it.
    Files(Vec<Vec<String>>),
    /// The journal's entries of these programs, or with these fields.
    Journal {
        /// Identifiers of programs.
        programs: Vec<String>,
        /// Trusted fields and their values, if some are configured.
        fields: Vec<(String, String)>,
    },
    /// A ring's records.
    Ring(RingChoice),
}

/// How a worker opens what it reads, from where it was read to, given the age of
/// what lies behind that.
type Open = Box<dyn Fn(&Positions, Age) -> Result<Box<dyn Source>, SourceError> + Send>;

impl Group {
    /// Its name in the database.
    fn key(&self) -> String {
        match self {
            Self::Files(subscriptions) => positions::key_of_files(&patterns_of(subscriptions)),
            Self::Journal { programs, fields } => positions::key_of_journal(programs, fields),
            Self::Ring(ring) => format!("ring:{}", ring.directory.display()),
        }
    }

    /// What each of its threads is called.
    fn names(&self) -> impl Iterator<Item = String> + use<> {
        let key = self.key();
        (0..self.workers()).map(move |part| format!("{key}#{part}"))
    }

    /// How many threads read it.
    fn workers(&self) -> usize {
        match self {
            Self::Files(_) | Self::Journal { .. } => 1,
            Self::Ring(ring) => ring.workers,
        }
    }

    /// What each of its threads opens.
    fn parts(self, instance: &str) -> Vec<Open> {
        let key = self.key();
        match self {
            Self::Files(subscriptions) => vec![Box::new(move |positions, held| {
                Ok(Box::new(FileSource::open(FileConfig {
                    from: positions.of_files(&patterns_of(&subscriptions)),
                    subscriptions: subscriptions.clone(),
                    held,
                })?))
            })],
            Self::Journal { programs, fields } => vec![Box::new(move |positions, _| {
                let programs: Vec<_> = programs.iter().map(String::as_str).collect();
                let mut config = match fields.is_empty() {
                    true => JournalConfig::program(&programs),
                    false => JournalConfig::matching(&fields, &programs),
                };
                match positions.of_journal(&key) {
                    Some(cursor) => config.start = JournalStart::Cursor(cursor),
                    // While there is no journal yet, reading begins here.
                    None => _ = positions.set(&key, &journal::cursor_of(Timestamp::now())),
                }
                Ok(Box::new(JournalSource::open(config)?))
            })],
            Self::Ring(choice) => {
                let ring = Ring::new(RingConfig {
                    directory: choice.directory,
                    // Two daemons may read one ring, each for itself.
                    reader: format!("weir:{instance}"),
                    owner: choice.owner,
                    workers: choice.workers,
                    max_memory: choice.max_mib << 20,
                });
                let part = |index| {
                    let ring = ring.clone();
                    Box::new(move |_: &Positions, _: Age| {
                        Ok(Box::new(ring.source(index)?) as Box<dyn Source>)
                    }) as Open
                };
                (0..choice.workers).map(part).collect()
            }
        }
    }
}

/// All patterns that a group looks for: one jail's in their order, those of several
/// jails each once.
fn patterns_of(subscriptions: &[Vec<String>]) -> Vec<String> {
    match subscriptions {
        [alone] => alone.clone(),
        several => {
            let all: BTreeSet<_> = several.iter().flatten().cloned().collect();
            all.into_iter().collect()
        }
    }
}

/// A jail as a worker runs it; the workers of one ring share its states.
#[derive(Clone)]
struct Running {
    /// Its number in the ledger.
    number: usize,
    /// Its number among the subscriptions of its group.
    subscription: usize,
    config: JailConfig,
    filter: Program,
    states: Arc<[Mutex<ProgramState>]>,
    counters: Arc<JailCounters>,
    /// When a finding's stamp was last far off, in seconds; 0: never.
    stamps_off: Arc<AtomicI64>,
    log_alerts: Arc<LogAlerts>,
}

/// Once its stamps have been right for so long, a jail's alert ends.
const STAMPS_RIGHT: i64 = 600;

impl Running {
    /// The alert about the stamps of a jail's log.
    fn about_stamps(jail: &str) -> String {
        format!("jail:{jail}:time_zone")
    }

    /// Says that failures count as of now because their stamps do not fit, and
    /// that this is over.
    fn judge_stamp(&self, service: &Service, clock: Clock, now: Timestamp, zone: &TimeZone) {
        match clock {
            Clock::Off(by) => {
                if self.stamps_off.swap(now.as_second(), Ordering::Relaxed) == 0 {
                    let name = &self.config.name;
                    let side = if by.is_positive() {
                        "ahead of"
                    } else {
                        "behind"
                    };
                    let minutes = (by.unsigned_abs().as_secs() + 30) / 60;
                    let zone = match (zone.iana_name(), &self.config.time_zone) {
                        (Some(name), _) => name,
                        (None, Some(_)) => "the jail's zone",
                        (None, None) => "this host's zone",
                    };
                    service.alerts.raise(
                        &Self::about_stamps(name),
                        format!(
                            "the time stamps of its log, read in {zone}, are {} {side} the clock: its failures count as of now. Is the log of another time zone? Set time_zone in [jail.{name}]",
                            duration_text(Duration::from_secs(60 * minutes)),
                        ),
                    );
                }
            }
            Clock::Stamp => {
                let last = self.stamps_off.load(Ordering::Relaxed);
                if last != 0 && now.as_second() - last > STAMPS_RIGHT {
                    self.stamps_off.store(0, Ordering::Relaxed);
                    service.alerts.clear(&Self::about_stamps(&self.config.name));
                }
            }
            Clock::Source | Clock::Now => {}
        }
    }
}

/// Segments whose lines remember each other where several threads read: each
/// finds what the one before it, which had the segment, left there.
const STATES: usize = 64;

/// The threads that read, and what they share.
pub struct Workers {
    threads: Vec<Reader>,
    stop: Arc<AtomicBool>,
    ledger: Arc<Ledger>,
    positions: Positions,
    alerts: Arc<SourceAlerts>,
    /// Threads that a file system has not answered yet: nobody waits for them.
    given_up: Vec<Reader>,
}

/// A thread, and what it has in hand.
struct Reader {
    thread: JoinHandle<()>,
    in_hand: Arc<InHand>,
}

impl Workers {
    /// Starts reading for all jails of `config`, where an earlier run stopped.
    pub fn start(service: &Arc<Service>, config: &Config) -> Result<Self, WorkerError> {
        let ledger = Arc::new(Ledger::new(jails(config)));
        ledger.restore_history(service.store.jail_history());
        ledger.restore(service.store.tracked(), Timestamp::now());
        let mut workers = Self {
            threads: Vec::new(),
            stop: Arc::default(),
            ledger,
            positions: Positions::new(service.store.positions()),
            alerts: Arc::default(),
            given_up: Vec::new(),
        };
        let groups = running(service, config)?;
        let hands = hands_for(&groups)?;
        workers.employ(service, groups, hands, Age::Backlog);
        Ok(workers)
    }

    /// Changes over to another configuration. On an error the old one goes on: all
    /// that can fail comes before its threads are ended.
    pub fn replace(
        &mut self,
        service: &Arc<Service>,
        old: &Config,
        new: &Config,
    ) -> Result<(), WorkerError> {
        let groups = running(service, new)?;
        self.given_up.retain(|reader| !reader.thread.is_finished());
        if self.given_up.len() >= MAX_GIVEN_UP
            && let Some(call) = self.given_up.iter().find_map(Reader::waits_for)
        {
            return Err(WorkerError::GivenUp(call));
        }
        let hands = hands_for(&groups)?;
        self.stop();
        let now = Timestamp::now();
        let ledger = Arc::new(Ledger::new(jails(new)));
        ledger.take_over(&self.ledger, now);
        self.ledger = ledger;
        // Theirs may be another zone now.
        for jail in &old.jails {
            service.alerts.forget(&Running::about_stamps(&jail.name));
            LogAlerts::forget(&service.alerts, &jail.name);
        }
        // What has been written meanwhile is a moment old.
        self.employ(service, groups, hands, Age::Unknown);
        Ok(())
    }

    fn employ(&mut self, service: &Arc<Service>, groups: Groups, hands: Vec<Hand>, held: Age) {
        let mut hands = hands.into_iter().enumerate();
        self.stop = Arc::default();
        service.set_ledger(self.ledger.clone());
        let (opened, all_opened) = mpsc::channel();
        service.forget_rings();
        let instance = &service.config().enforcement.instance;
        let used = groups.keys().map(Group::key).collect();
        let names = self.ledger.jails().iter().map(|jail| jail.name.clone());
        let moved = self.positions.change_over(&used).into_iter();
        service.store.remember(
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
        let workers: BTreeSet<String> = groups.keys().flat_map(Group::names).collect();
        self.alerts.forget_all_but(&service.alerts, &workers);
        for (group, jails) in groups {
            let (key, names) = (group.key(), group.names());
            let numbers: Vec<usize> = jails.iter().map(|jail| jail.number).collect();
            let parts = group.parts(instance).into_iter().zip(names);
            for (part, (open, source)) in parts.enumerate() {
                let (number, hand) = hands.next().expect("there is one for each part");
                // One thread saves what all of the group count.
                let saves = if part == 0 {
                    numbers.clone()
                } else {
                    Vec::new()
                };
                let in_hand = Arc::new(InHand::new(
                    service,
                    service.pulses.of(format!("weir-worker-{number}")),
                    key.clone(),
                    saves,
                    self.ledger.clone(),
                    self.positions.clone(),
                ));
                let worker = Worker {
                    in_hand: in_hand.clone(),
                    open,
                    jails: jails.clone(),
                    alerts: Own::new(&self.alerts, &service.alerts, source),
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

    /// Ends the threads; their positions and counts are remembered. One that a
    /// file system does not answer is left to itself.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let patience = Instant::now() + GIVEN_UP_AFTER;
        for reader in self.threads.drain(..) {
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
        })
        .chain(config.watches.iter().map(WatchConfig::jail))
        .collect()
}

/// The jails with their compiled filters, by what they read.
type Groups = BTreeMap<Group, Vec<Running>>;

/// A thread for each part of what they read.
fn hands_for(groups: &Groups) -> Result<Vec<Hand>, WorkerError> {
    let count = groups.keys().map(Group::workers).sum();
    Hand::several(count, threads::spawn).map_err(WorkerError::Thread)
}

fn running(service: &Service, config: &Config) -> Result<Groups, WorkerError> {
    let mut groups = Groups::new();
    let files = files_in_common(&config.jails);
    for (number, jail) in config.jails.iter().enumerate() {
        let mut filter = filter(config, &jail.filter)?;
        if jail.journal_match.iter().any(|(field, _)| field == "_UID") {
            filter = filter.of_named_users();
        }
        let mut subscription = 0;
        let group = match &jail.source {
            SourceChoice::Files(patterns) => {
                let mut subscribed = files.iter().filter_map(|subscriptions| {
                    let number = subscriptions.iter().position(|other| other == patterns)?;
                    Some((number, subscriptions))
                });
                let (number, subscriptions) = subscribed.next().expect("it is in one of them");
                subscription = number;
                Group::Files(subscriptions.clone())
            }
            SourceChoice::Journal => Group::Journal {
                programs: filter.identifiers().map(str::to_owned).collect(),
                fields: jail.journal_match.clone(),
            },
            SourceChoice::Ring(ring) => Group::Ring(ring.clone()),
        };
        let states = if group.workers() > 1 { STATES } else { 1 };
        groups.entry(group).or_default().push(Running {
            number,
            subscription,
            config: jail.clone(),
            filter,
            states: (0..states).map(|_| Mutex::default()).collect(),
            counters: service.jail_counters(&jail.name),
            stamps_off: Arc::default(),
            log_alerts: Arc::new(LogAlerts::new(&jail.name)),
        });
    }
    Ok(groups)
}

/// The patterns of all jails that read files, those together that may find a file
/// in common. (Others are read apart: a file system that does not answer keeps
/// nobody else waiting.)
fn files_in_common(jails: &[JailConfig]) -> Vec<Vec<Vec<String>>> {
    let mut groups: Vec<BTreeSet<Vec<String>>> = Vec::new();
    for jail in jails {
        let SourceChoice::Files(patterns) = &jail.source else {
            continue;
        };
        let may_share = |group: &BTreeSet<Vec<String>>| {
            let mut others = group.iter().flatten();
            others.any(|other| {
                let mut own = patterns.iter();
                own.any(|own| positions::may_find_the_same(own, other))
            })
        };
        let (mut joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(may_share);
        joined.push([patterns.clone()].into());
        groups = apart;
        groups.push(joined.into_iter().flatten().collect());
    }
    let groups = groups.into_iter().map(|group| group.into_iter().collect());
    groups.collect()
}

/// One thread.
struct Worker {
    in_hand: Arc<InHand>,
    open: Open,
    jails: Vec<Running>,
    alerts: Own,
    stop: Arc<AtomicBool>,
    zone: TimeZone,
    /// The age of lines that are there when the source is opened first.
    held: Age,
    /// Dropped when the source has been opened, or could not be.
    opened: Option<mpsc::Sender<()>>,
}

impl Worker {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Somebody else does its work.
    fn is_given_up(&self) -> bool {
        self.in_hand.pulse.is_given_up()
    }

    fn run(mut self) {
        self.in_hand.pulse.follow_calls();
        let about = format!("source:{}", self.in_hand.key.replace('\n', " "));
        while !self.stopping() {
            let held = std::mem::replace(&mut self.held, Age::Unknown);
            let ended = match (self.open)(&self.in_hand.positions, held) {
                Ok(mut source) => {
                    let ended = self.read(source.as_mut());
                    self.save(source.as_ref(), true);
                    ended
                }
                Err(error) => Err(error),
            };
            self.opened = None;
            if let Err(error) = ended
                && !self.is_given_up()
            {
                self.alerts.raise(&about, error.to_string());
            }
            let again = Instant::now() + REOPEN;
            while !self.stopping() && Instant::now() < again {
                self.in_hand.pulse.beat();
                thread::sleep(WAIT);
            }
        }
    }

    fn read(&mut self, source: &mut dyn Source) -> Result<(), SourceError> {
        let mut saved = Instant::now();
        let mut rate_limited = 0_u64;
        let mut first = true;
        self.in_hand.reads(source.reached());
        // From the first moment: what is written while the daemon is down is read.
        self.save(source, false);
        self.opened = None;
        while !self.stopping() {
            self.in_hand.pulse.beat();
            let now = Cell::new(None);
            let mut judge = None;
            let info = source.read_batch(WAIT, &mut |line, origin| {
                // The clock is read when a line has come, not when waiting began.
                let now = now.get().unwrap_or_else(|| {
                    let time = Timestamp::now();
                    now.set(Some(time));
                    time
                });
                self.one_line(line, &origin, now, &mut judge);
            })?;
            if self.is_given_up() {
                return Ok(());
            }
            if now.get().is_some() {
                fault::trip("worker");
            }
            self.in_hand.enforce();
            self.tell_problems(&info);
            rate_limited = rate_limited.saturating_add(info.rate_limited);
            if std::mem::take(&mut first) {
                let unreadable = source.unreadable(&info);
                let unreadable = unreadable.iter().map(|path| about(path));
                self.alerts.keep_only(&unreadable.collect());
            }
            if saved.elapsed() >= SAVE {
                saved = Instant::now();
                self.save(source, false);
                self.tell_notices(std::mem::take(&mut rate_limited));
                if let Some((directory, statistics)) = source.ring() {
                    self.in_hand.service.set_ring(directory, statistics);
                }
            }
        }
        Ok(())
    }

    /// `judge`: of this batch, made when somebody is accused.
    fn one_line(
        &self,
        line: &[u8],
        origin: &Origin<'_>,
        now: Timestamp,
        judge: &mut Option<Judge>,
    ) {
        if self.is_given_up() {
            return;
        }
        let service = &self.in_hand.service;
        let shared = Line::from(origin.record(line));
        let subscribed = |jail: &&Running| origin.readers.has(jail.subscription);
        for jail in self.jails.iter().filter(subscribed) {
            let zone = jail.config.time_zone.as_ref().unwrap_or(&self.zone);
            let context = Context { now, zone };
            jail.counters.lines.fetch_add(1, Ordering::Relaxed);
            let finding = {
                // Nobody waits here: a part is read by one thread at a time.
                let state = &jail.states[origin.part % jail.states.len()];
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                jail.filter.read_line(&mut state, &shared, &context)
            };
            let Some(finding) = finding else { continue };
            jail.counters.findings.fetch_add(1, Ordering::Relaxed);
            jail.judge_stamp(service, finding.clock, now, zone);
            let judge = judge.get_or_insert_with(|| Judge::new(&service.exempt));
            let offence = Offence {
                jail: jail.number,
                suspect: Suspect::Found(&finding),
                line,
            };
            match judge.judge(&self.in_hand.ledger, offence, now) {
                Judgement::Exempt(exemption) => {
                    jail.counters.ignored.fetch_add(1, Ordering::Relaxed);
                    tell_finding(service, jail, &finding, &exemption.reason);
                }
                Judgement::Ban(ban) => {
                    jail.counters.bans.fetch_add(1, Ordering::Relaxed);
                    tell_finding(service, jail, &finding, &ban.reason);
                    self.in_hand.decide(ban);
                }
                Judgement::Counted { failures, of } => {
                    if service.events.has_readers() {
                        let count = format!("failure {failures} of {of}");
                        tell_finding(service, jail, &finding, &count);
                    }
                }
                Judgement::Ignored(_) | Judgement::TooOld => {
                    jail.counters.ignored.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn tell_problems(&self, info: &BatchInfo) {
        for problem in &info.problems {
            let about = about(&problem.path);
            if problem.resolved {
                self.alerts.clear(&about);
                continue;
            }
            self.alerts.raise(&about, problem.message.clone());
        }
        if info.cut + info.truncated + info.rotated > 0 {
            tracing::debug!(
                "{}: {} lines cut, {} files truncated, {} rotated",
                self.in_hand.key,
                info.cut,
                info.truncated,
                info.rotated
            );
        }
    }

    /// Raises alerts about what the filters have noticed of their log, and about
    /// what it has dropped by its rate limit.
    fn tell_notices(&self, rate_limited: u64) {
        for jail in &self.jails {
            let mut sum = Notices {
                rate_limited,
                ..Notices::default()
            };
            for state in jail.states.iter() {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                sum += state.take_notices();
            }
            let alerts = &self.in_hand.service.alerts;
            jail.log_alerts.add(alerts, sum, Instant::now());
        }
    }

    fn save(&self, source: &dyn Source, last: bool) {
        if !self.is_given_up() {
            self.in_hand.save(last, || source.position());
        }
    }
}

/// What the alert of a file, pattern or directory is about.
fn about(path: &Path) -> String {
    // Whoever may write to a ring's directory chooses names in it.
    format!("source:{}", crate::escape(&path.to_string_lossy()))
}

fn tell_finding(service: &Service, jail: &Running, finding: &Finding, count: &str) {
    let mut reason = match &finding.user {
        Some(user) => format!("user {user:?}; {count}"),
        None => count.to_owned(),
    };
    if let Some((end, _)) = reason.char_indices().nth(256) {
        reason.truncate(end);
    }
    let mut event = Event::new(Kind::Found, finding.time, reason).about(Prefix::host(finding.addr));
    event.jail = Some(jail.config.name.clone());
    service.events.tell(&event);
}

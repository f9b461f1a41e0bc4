//! What jails read together, and how it is opened: log files that they have in
//! common, the same entries of the journal, a ring.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    sync::Mutex,
    time::Duration,
};

use jiff::Timestamp;
use weir_core::detect::{Age, JournalMatch};
use weir_sources::{
    FileConfig, FileSource, JournalConfig, JournalSource, JournalStart, Ring, RingConfig, Source,
    SourceError, Start, journal,
};

use super::{
    WorkerError, files_in_common::files_in_common, line_filter::LineFilter, running::Running,
};
use crate::{
    ban_log,
    config::Config,
    jails::{RingChoice, SourceChoice, captured_names},
    log_alerts::LogAlerts,
    metrics::JailMetrics,
    positions::{self, Positions},
};

/// Segments whose lines remember each other where several threads read: each
/// finds what the one before it, which had the segment, left there.
const STATES: usize = 64;

/// Of a log file that was never read, so much of its end is read back at most …
const MAX_READ_BACK_BYTES: u64 = 16 << 20;
/// … and so long a time of the journal.
const MAX_READ_BACK: Duration = Duration::from_secs(24 * 3600);

/// How far back the logs of these jails are read that were never read before, as Fail2ban
/// does: by the longest `findtime` of its jails.
pub(super) fn read_back(jails: &[Running]) -> Option<Duration> {
    let fail2ban = jails.iter().filter(|jail| jail.config.fail2ban.is_some());
    fail2ban.map(|jail| jail.config.limits.find_time).max()
}

/// What a group of jails reads together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Log files that jails have in common, by each jail's patterns: a file is
    /// read once for all jails that subscribe to it.
    Files(Vec<Vec<String>>),
    /// The journal's entries of these programs, or with these fields.
    Journal {
        /// Identifiers of programs.
        programs: Vec<String>,
        /// Trusted fields, if the jail or its filter names some.
        journal_match: JournalMatch,
    },
    /// A ring's records.
    Ring(RingChoice),
}

/// How a worker opens what it reads, from where it was read to, given the age of
/// what lies behind that.
pub(super) type Open = Box<dyn Fn(&Positions, Age) -> Result<Box<dyn Source>, SourceError> + Send>;

impl Group {
    /// The group's name in the database.
    pub fn key(&self) -> String {
        match self {
            Self::Files(subscriptions) => positions::key_of_files(&patterns_of(subscriptions)),
            Self::Journal {
                programs,
                journal_match,
            } => positions::key_of_journal(programs, journal_match),
            Self::Ring(ring) => format!("ring:{}", ring.directory.display()),
        }
    }

    /// The group's name as it is shown.
    pub fn title(&self) -> String {
        self.key().replace('\n', " ")
    }

    /// What each of its threads is called.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        let key = self.key();
        (0..self.workers()).map(move |part| format!("{key}#{part}"))
    }

    /// The number of threads that read the group.
    pub fn workers(&self) -> usize {
        match self {
            Self::Files(_) | Self::Journal { .. } => 1,
            Self::Ring(ring) => ring.workers,
        }
    }

    /// The source that each thread of the group opens. What was never read is read back from
    /// `back` ago, if that is given.
    pub fn parts(self, instance: &str, back: Option<Duration>) -> Vec<Open> {
        let key = self.key();
        match self {
            Self::Files(subscriptions) => vec![Box::new(move |positions, held| {
                Ok(Box::new(FileSource::open(FileConfig {
                    from: match (positions.of_files(&patterns_of(&subscriptions)), back) {
                        // Lines that are too old do not count.
                        (Start::End, Some(_)) => Start::Tail(MAX_READ_BACK_BYTES),
                        (from, _) => from,
                    },
                    subscriptions: subscriptions.clone(),
                    held,
                })?))
            })],
            Self::Journal {
                programs,
                journal_match,
            } => vec![Box::new(move |positions, _| {
                let programs: Vec<_> = programs.iter().map(String::as_str).collect();
                let mut config = match journal_match.is_empty() {
                    true => JournalConfig::program(&programs),
                    false => JournalConfig::matching(&journal_match, &programs),
                };
                match positions.of_journal(&key) {
                    Some(cursor) => config.start = JournalStart::Cursor(cursor),
                    // While there is no journal yet, reading begins here.
                    None => {
                        let from = Timestamp::now() - back.unwrap_or_default().min(MAX_READ_BACK);
                        let cursor = journal::cursor_of(from);
                        positions.set(&key, &cursor);
                        if back.is_some() {
                            config.start = JournalStart::Cursor(cursor);
                        }
                    }
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
/// The jails with their compiled filters, by what they read.
pub(super) type Groups = BTreeMap<Group, Vec<Running>>;

pub(super) fn running(counters: &JailMetrics, config: &Config) -> Result<Groups, WorkerError> {
    let mut groups = Groups::new();
    let own_bans = [ban_log::path_in(&config.state_dir).display().to_string()];
    let files = files_in_common(config.jails.iter().filter_map(|jail| match &jail.source {
        SourceChoice::Files(patterns) => Some(&patterns[..]),
        _ => jail.own_bans.is_some().then_some(&own_bans[..]),
    }));
    // The group that reads a jail's files, and the jail's number in it.
    let group_of = |patterns: &[String]| {
        let mut subscribed = files.iter().filter_map(|subscriptions| {
            let number = subscriptions.iter().position(|other| other == patterns)?;
            Some((Group::Files(subscriptions.clone()), number))
        });
        subscribed.next().expect("it is in one of them")
    };
    for (number, jail) in config.jails.iter().enumerate() {
        let filter = LineFilter::of(config, jail)?;
        let mut subscription = 0;
        let group = match &jail.source {
            SourceChoice::Files(patterns) => {
                let (group, number) = group_of(patterns);
                subscription = number;
                group
            }
            SourceChoice::Journal => Group::Journal {
                programs: filter.identifiers(),
                journal_match: match jail.journal_match.is_empty() {
                    true => filter.journal_match(),
                    false => jail.journal_match.clone(),
                },
            },
            SourceChoice::Ring(ring) => Group::Ring(ring.clone()),
        };
        let states = if group.workers() > 1 { STATES } else { 1 };
        let running = Running {
            number,
            subscription,
            config: jail.clone(),
            captured: captured_names(&jail.commands),
            states: (0..states).map(|_| Mutex::new(filter.state())).collect(),
            filter,
            counters: Arc::new(counters.of(&jail.name)),
            stamps_off: Arc::default(),
            log_alerts: Arc::new(LogAlerts::new(&jail.name)),
        };
        if let Some(filter) = &jail.own_bans {
            let (group, subscription) = group_of(&own_bans);
            groups.entry(group).or_default().push(running.of_own_bans(
                filter,
                &own_bans,
                subscription,
            ));
        }
        groups.entry(group).or_default().push(running);
    }
    Ok(groups)
}

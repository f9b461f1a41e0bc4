//! One thread: it opens what its jails read, reads it batch by batch, judges what
//! their filters find, and saves how far it is.

use std::{
    cell::Cell,
    path::Path,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use jiff::{Timestamp, tz::TimeZone};
use weir_bpf::fault;
use weir_core::detect::{Age, Context, Finding, HostName, Line, Notices, Offender};
use weir_sources::{BatchInfo, Origin, Source, SourceError};

use super::{
    alerts::Own, group::Open, in_hand::InHand, name_lookups::NameLookups, running::Running,
};
use crate::{log_status::LogStatus, metrics::SourceCounters};

/// A worker looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// Positions are remembered this often, and counts with them.
const SAVE: Duration = Duration::from_secs(1);
/// A source that cannot be opened is tried again after this time.
const REOPEN: Duration = Duration::from_secs(5);

/// A thread that reads a group of sources.
pub(super) struct Worker {
    pub in_hand: Arc<InHand>,
    pub open: Open,
    pub names: Arc<NameLookups>,
    pub alerts: Own,
    pub log_status: Arc<LogStatus>,
    pub counters: SourceCounters,
    pub stop: Arc<AtomicBool>,
    pub zone: TimeZone,
    /// The age of lines that are there when the source is opened first.
    pub held: Age,
    /// Dropped when the source has been opened, or could not be.
    pub opened: Option<mpsc::Sender<()>>,
}

impl Worker {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Somebody else does its work.
    fn is_given_up(&self) -> bool {
        self.in_hand.pulse.is_given_up()
    }

    pub fn run(mut self) {
        self.in_hand.pulse.follow_calls();
        let about = format!("source:{}", self.in_hand.key.replace('\n', " "));
        while !self.stopping() {
            let held = std::mem::replace(&mut self.held, Age::Unknown);
            let ended = match (self.open)(&self.in_hand.positions, held) {
                Ok(mut source) => {
                    let mut rate_limited = 0;
                    let ended = self.read(source.as_mut(), &mut rate_limited);
                    if !self.is_given_up() {
                        // Of a batch that an error has ended, and of the last second.
                        self.in_hand.judge();
                        self.in_hand.enforce();
                        self.tell_notices(rate_limited);
                    }
                    self.save(source.as_ref(), true);
                    ended
                }
                Err(error) => Err(error),
            };
            self.opened = None;
            if let Err(error) = ended
                && !self.is_given_up()
            {
                self.tell_whether_read(None);
                self.alerts.raise(&about, error.to_string());
            }
            let again = Instant::now() + REOPEN;
            while !self.stopping() && Instant::now() < again {
                self.in_hand.pulse.beat();
                thread::sleep(WAIT);
            }
        }
    }

    /// `rate_limited`: how many entries the log daemon has dropped and nobody was told.
    fn read(&mut self, source: &mut dyn Source, rate_limited: &mut u64) -> Result<(), SourceError> {
        let mut saved = Instant::now();
        let mut first = true;
        self.in_hand.reads(source.reached());
        // On disk before the first line is: what is written while the daemon is down
        // is read, however soon it died. If it cannot be, there is an alert.
        self.save(source, false);
        let _ = self.in_hand.store.flush();
        self.tell_whether_read(Some(source));
        self.opened = None;
        while !self.stopping() {
            self.in_hand.pulse.beat();
            let now = Cell::new(None);
            let info = source.read_batch(WAIT, &mut |line, origin| {
                // The clock is read when a line has come, not when waiting began.
                let now = now.get().unwrap_or_else(|| {
                    let time = Timestamp::now();
                    now.set(Some(time));
                    time
                });
                self.one_line(line, &origin, now);
            })?;
            if self.is_given_up() {
                return Ok(());
            }
            self.in_hand.judge();
            if now.get().is_some() {
                fault::trip("worker");
            }
            self.in_hand.enforce();
            self.counters.add(&info);
            self.tell_problems(&info);
            *rate_limited = rate_limited.saturating_add(info.rate_limited);
            if std::mem::take(&mut first) {
                let unreadable = source.unreadable(&info);
                let unreadable = unreadable.iter().map(|path| about(path));
                self.alerts.keep_only(&unreadable.collect());
            }
            if saved.elapsed() >= SAVE {
                saved = Instant::now();
                self.save(source, false);
                self.tell_whether_read(Some(source));
                self.tell_notices(std::mem::take(rate_limited));
                if let Some((directory, statistics)) = source.ring() {
                    self.log_status.set_ring(directory, statistics);
                }
            }
        }
        Ok(())
    }

    fn one_line(&self, line: &[u8], origin: &Origin<'_>, now: Timestamp) {
        if self.is_given_up() {
            return;
        }
        let shared = Line::from(origin.record(line));
        let subscribed = |(_, jail): &(usize, &Running)| origin.readers.has(jail.subscription);
        let jails = self.in_hand.jails.iter().enumerate();
        for (place, jail) in jails.filter(subscribed) {
            let zone = jail.config.time_zone.as_ref().unwrap_or(&self.zone);
            let context = Context { now, zone };
            jail.counters.lines.inc();
            let mut captured = Vec::new();
            let finding = {
                // Nobody waits here: a part is read by one thread at a time.
                let state = &jail.states[origin.part % jail.states.len()];
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let finding = jail.filter.read_line(&mut state, &shared, &context);
                if finding.is_some() && !jail.captured.is_empty() {
                    captured = state.take_captured();
                }
                finding
            };
            let Some(finding) = finding else { continue };
            jail.counters.findings.inc();
            jail.judge_stamp(self.alerts.of_all(), finding.clock, now, zone);
            if origin.age == Age::Live {
                jail.judge_delay(&finding, now);
            }
            match &finding.offender {
                Offender::Name(name) => self.count_name(jail, name, &finding, line, now),
                _ => {
                    if !captured.is_empty() {
                        self.in_hand.captured(place, &finding, &captured);
                    }
                    self.in_hand.found(place, finding, line, now);
                }
            }
        }
    }

    /// Counts a failure of a host whose addresses are known; another waits for them.
    fn count_name(
        &self,
        jail: &Running,
        name: &HostName,
        finding: &Finding,
        line: &[u8],
        now: Timestamp,
    ) {
        let ledger = &self.in_hand.ledger;
        let bans = self.names.count(ledger, jail, (name, finding), line, now);
        self.in_hand.decide(bans);
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
        for warning in &info.warnings {
            tracing::warn!("{warning}");
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
        for jail in &*self.in_hand.jails {
            let mut sum = Notices {
                rate_limited,
                ..Notices::default()
            };
            for state in jail.states.iter() {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                sum += state.take_notices();
                let given_up = state.take_given_up();
                if given_up.lines > 0 {
                    jail.counters.given_up.add(given_up.lines);
                    jail.log_alerts.given_up(given_up.lines, &given_up.line);
                }
            }
            if sum.refused > 0 {
                jail.counters.refused.add(sum.refused);
            }
            jail.log_alerts
                .add(self.alerts.of_all(), sum, Instant::now());
        }
    }

    /// Without a file a source of files is open and has nothing to read.
    fn tell_whether_read(&self, source: Option<&dyn Source>) {
        let has_files = |source: &dyn Source| source.reached().is_none_or(|r| r.has_files());
        if !self.is_given_up() {
            self.log_status
                .set_source(&self.alerts.source, source.is_some_and(has_files));
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

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use weir_core::policy::Ledger;
    use weir_enforce::DryRun;
    use weir_events::alerts::Alerts;

    use super::*;
    use crate::{
        config::Config, host::Host, interfaces::ProtectedInterfaces, log_worker,
        positions::Positions, run::handles, service::Service, store::Store,
    };

    /// What reads a jail's only log, and what it has of the daemon.
    struct Reading {
        service: Arc<Service>,
        jail: Running,
        stop: Arc<AtomicBool>,
        thread: thread::JoinHandle<()>,
        dir: tempfile::TempDir,
    }

    impl Reading {
        fn start() -> Self {
            Self::of(None, "")
        }

        /// Of what somebody else opens, and with these keys in its jail.
        fn of(open: Option<Open>, keys: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (state, log) = (dir.path(), dir.path().join("auth.log"));
            let text = format!(
                "backend = \"dry-run\"\ninterfaces = []\nstate_dir = {state:?}\n\
                 [jail.sshd]\npaths = [{log:?}]\n{keys}"
            );
            fs::write(&log, "").unwrap();
            let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
            let alerts = Arc::new(Alerts::default());
            let (store, _) = Store::open(state, config.keep_history, alerts.clone());
            let backend = Arc::new(DryRun::new(1000, None));
            let service = Arc::new(Service::new(
                config.clone(),
                backend,
                store,
                ProtectedInterfaces::default(),
                alerts,
                String::new(),
            ));
            let handles = handles::of_logs(&service);
            let groups = log_worker::group::running(&handles.metrics.jails, &config);
            let (group, jails) = groups.unwrap().pop_first().unwrap();
            let (key, source) = (group.key(), group.names().next().unwrap());
            let (jail, counters) = (jails[0].clone(), service.metrics.sources.of(&key));
            let in_hand = InHand::new(
                &handles,
                service.pulses.of("weir-worker-0"),
                key,
                jails.into(),
                Some(vec![0]),
                Arc::new(Ledger::new(log_worker::jails(&config))),
                Positions::new(Default::default()),
            );
            let (opened, is_opened) = mpsc::channel();
            let stop = Arc::new(AtomicBool::new(false));
            let worker = Worker {
                in_hand: Arc::new(in_hand),
                open: open.unwrap_or_else(|| group.parts("default", None).pop().unwrap()),
                names: Arc::new(NameLookups::new(handles.clone())),
                alerts: Own::new(&Arc::default(), &service.alerts, source),
                log_status: service.log_status.clone(),
                counters,
                stop: stop.clone(),
                zone: TimeZone::UTC,
                held: Age::Backlog,
                opened: Some(opened),
            };
            let thread = thread::spawn(move || worker.run());
            let _: Result<(), _> = is_opened.recv();
            Self {
                service,
                jail,
                stop,
                thread,
                dir,
            }
        }

        fn until(&self, holds: impl Fn() -> bool) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !holds() {
                assert!(Instant::now() < deadline, "{:?}", self.alerts());
                thread::sleep(Duration::from_millis(5));
            }
        }

        fn alerts(&self) -> Vec<String> {
            let alerts = self.service.alerts.list().into_iter();
            alerts.map(|alert| alert.about).collect()
        }
    }

    #[test]
    fn what_is_noticed_in_the_last_second_is_told() {
        let reading = Reading::start();
        let log = fs::OpenOptions::new()
            .append(true)
            .open(reading.dir.path().join("auth.log"));
        let without_head = "Failed password for root from 192.0.2.7 port 22 ssh2\n";
        log.unwrap().write_all(without_head.as_bytes()).unwrap();
        reading.until(|| reading.jail.counters.lines.get() > 0);
        reading.stop.store(true, Ordering::Relaxed);
        reading.until(|| reading.thread.is_finished());
        assert_eq!(reading.alerts(), ["jail:sshd:headless"]);
    }

    /// Its stamp is behind by less than is an alert of its own, and by more than
    /// find_time: such lines did not count, and nobody was told.
    #[test]
    fn live_lines_that_are_older_than_find_time_are_an_alert() {
        let reading = Reading::of(None, "find_time = \"1m\"\n");
        let mut log = fs::OpenOptions::new()
            .append(true)
            .open(reading.dir.path().join("auth.log"))
            .unwrap();
        let mut write = |before: i64| {
            let stamp = Timestamp::now() - jiff::SignedDuration::from_secs(before);
            let line = format!(
                "{stamp} host sshd[7]: Failed password for root from 192.0.2.7 port 22 ssh2\n"
            );
            log.write_all(line.as_bytes()).unwrap();
        };
        write(30);
        reading.until(|| reading.jail.counters.findings.get() == 1);
        write(120);
        reading.until(|| reading.alerts() == ["jail:sshd:late"]);
        let message = &reading.service.alerts.list()[0].message;
        assert!(message.contains("such as one of 2m"), "{message}");
        assert!(message.contains("where find_time is 1m"), "{message}");
        reading.stop.store(true, Ordering::Relaxed);
        reading.until(|| reading.thread.is_finished());
    }

    /// A source that tells of dropped entries and cannot go on.
    struct Dropping {
        is_over: bool,
    }

    impl Source for Dropping {
        fn read_batch(
            &mut self,
            _: Duration,
            _: &mut dyn FnMut(&[u8], Origin<'_>),
        ) -> Result<BatchInfo, SourceError> {
            if std::mem::replace(&mut self.is_over, true) {
                return Err(SourceError::Pattern {
                    pattern: "x".to_owned(),
                    reason: "gone".to_owned(),
                });
            }
            Ok(BatchInfo {
                rate_limited: 7,
                ..BatchInfo::default()
            })
        }

        fn position(&self) -> Option<String> {
            None
        }
    }

    #[test]
    fn what_was_dropped_before_a_source_ends_by_an_error_is_told() {
        let reading = Reading::of(
            Some(Box::new(|_, _| Ok(Box::new(Dropping { is_over: false })))),
            "",
        );
        let has = |about: &str| {
            reading
                .alerts()
                .iter()
                .any(|alert| alert.starts_with(about))
        };
        reading.until(|| has("source:"));
        assert!(has("jail:sshd:rate-limit"), "{:?}", reading.alerts());
        reading.stop.store(true, Ordering::Relaxed);
        reading.until(|| reading.thread.is_finished());
    }

    /// It is read on, for its writer may still have it open.
    #[test]
    fn a_log_that_is_deleted_while_it_is_read_is_an_alert() {
        let reading = Reading::start();
        let log = reading.dir.path().join("auth.log");
        fs::remove_file(&log).unwrap();
        let about = [about(&log)];
        reading.until(|| reading.alerts() == about);
        fs::write(&log, "").unwrap();
        reading.until(|| reading.alerts().is_empty());
        reading.stop.store(true, Ordering::Relaxed);
        reading.until(|| reading.thread.is_finished());
    }
}

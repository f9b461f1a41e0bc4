//! Watches: commands that print the address of whoever misbehaved, one a line.
//! One thread each reads its command, has what it says judged, and hands the bans
//! to [`Bans::enforce`], as a worker does for lines of a log. A command that
//! ends is started again, later each time. What a line may say is in `line`,
//! the process in `child`.

pub mod config;
pub mod line;
pub mod stats;

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{
    Ban, BanSource, Prefix,
    policy::{Ledger, Outcome, format_duration},
};
use weir_enforce::Backend;
use weir_events::{Event, Events, Kind, alerts::Alerts};

use crate::command::child::{Group, Rights};
use crate::{
    access::{classes::ClassSync, exemptions::Exempt},
    bans::Bans,
    current::Current,
    judge::{Judge, Judgement, Offence, Suspect},
    threads,
};
use config::{OnlyIf, WatchConfig};
use line::{LineError, Lines, Sighting};
use stats::{Counters, WatchStats};

/// A thread looks this often whether it is to stop.
const WAIT: Duration = Duration::from_millis(250);
/// The first wait before a command is started again; each further one is twice
/// as long …
const RESTART: Duration = Duration::from_secs(1);
/// … up to this. A run longer than this makes the next wait the first one.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// A command that has run this long works.
const WORKS: Duration = Duration::from_secs(5);
/// Lines of its standard error that a minute may bring into the log.
const COMPLAINTS: u32 = 20;
/// What of a refused line is shown.
const SHOWN: usize = 120;

/// What a watch may touch of the daemon.
#[derive(Clone)]
pub struct Handles {
    /// Alerts, which tell that a command does not run.
    pub alerts: Arc<Alerts>,
    /// The bus of events, which is told of addresses that commands name.
    pub events: Arc<Events>,
    /// The exempt addresses.
    pub exempt: Arc<Exempt>,
    /// The ledger, once the workers have started.
    pub ledger: Arc<Current<Ledger>>,
    /// The classes that geofence and lists deny.
    pub classes: Arc<ClassSync>,
    /// The backend, with the bans in force.
    pub backend: Arc<dyn Backend>,
    /// Puts bans into force.
    pub bans: Arc<Bans>,
}

/// The watches that run.
#[derive(Default)]
pub struct Watches {
    running: Vec<Running>,
}

struct Running {
    config: WatchConfig,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watches {
    /// Runs these watches: one that is as before goes on, any other is ended or
    /// started.
    pub fn run(&mut self, daemon: &Handles, stats: &WatchStats, watches: &[WatchConfig]) {
        let before = std::mem::take(&mut self.running);
        let (keep, end) = before
            .into_iter()
            .partition(|running| watches.contains(&running.config));
        self.running = end;
        self.stop();
        self.running = keep;
        for watch in watches {
            if self.running.iter().any(|running| running.config == *watch) {
                continue;
            }
            let stop = Arc::new(AtomicBool::new(false));
            let watcher = Watcher {
                daemon: daemon.clone(),
                about: format!("watch:{}", watch.name),
                producer: BanSource::Watch(watch.name.clone()),
                counters: stats.of(&watch.name),
                config: watch.clone(),
                stop: stop.clone(),
            };
            let started = threads::spawn("weir-watch", move || watcher.run());
            match started {
                Ok(thread) => self.running.push(Running {
                    config: watch.clone(),
                    stop,
                    thread,
                }),
                Err(error) => daemon.alerts.raise(
                    &format!("watch:{}", watch.name),
                    format!("cannot start its thread: {error}"),
                ),
            }
        }
    }

    /// Ends all of them, and what they started.
    pub fn stop(&mut self) {
        for running in &self.running {
            running.stop.store(true, Relaxed);
        }
        for running in self.running.drain(..) {
            running.thread.join().expect("a panic ends the daemon");
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread of one watch.
struct Watcher {
    daemon: Handles,
    /// The subject of the watch's alerts.
    about: String,
    producer: BanSource,
    counters: Arc<Counters>,
    config: WatchConfig,
    stop: Arc<AtomicBool>,
}

impl Watcher {
    fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn run(self) {
        let mut wait = RESTART;
        while !self.stopping() {
            let begun = Instant::now();
            let environment = [("WEIR_WATCH", self.config.name.clone())];
            let command = &self.config.command;
            let started = Group::start(Rights::ReadLogs, &environment, command, Duration::ZERO);
            let ended = match started {
                Ok(group) => self.follow(group),
                Err(error) => format!("cannot be started: {error}"),
            };
            if self.stopping() {
                break;
            }
            if begun.elapsed() > RESTART_MAX {
                wait = RESTART;
            }
            self.daemon.alerts.raise(
                &self.about,
                format!(
                    "{} {ended}; started again after {}",
                    self.config.command[0],
                    format_duration(wait)
                ),
            );
            let again = Instant::now() + wait;
            while !self.stopping() && Instant::now() < again {
                thread::sleep(WAIT.min(again.saturating_duration_since(Instant::now())));
            }
            wait = (wait * 2).min(RESTART_MAX);
        }
        self.daemon.alerts.forget(&self.about);
    }

    /// Reads one run of the command to its end, and says how it ended.
    fn follow(&self, mut group: Group) -> String {
        self.counters.numbers.starts.inc();
        self.counters.pid.store(group.pid(), Relaxed);
        let begun = Instant::now();
        let (mut lines, mut complaints) = (Lines::default(), Complaints::new(&self.config.name));
        let mut bytes = vec![0; 16 * 1024];
        let why = loop {
            group.wait(WAIT);
            let over = self.stopping() || group.has_ended();
            match group.complaints().map(|pipe| pipe.read(&mut bytes)) {
                Some(Ok(n)) if n > 0 => complaints.take(&bytes[..n]),
                Some(Err(error)) if again(&error) => {}
                Some(_) => group.close_complaints(),
                None => {}
            }
            match group.output().map(|pipe| pipe.read(&mut bytes)) {
                Some(Ok(n)) if n > 0 => {
                    self.take(&mut lines, Some(&bytes[..n]));
                    // A command that floods must not hold up a stop.
                    if !self.stopping() {
                        continue;
                    }
                }
                Some(Err(error)) if again(&error) => {}
                Some(Err(error)) => break format!("cannot be read: {error}"),
                Some(Ok(_)) | None => break "closed its output".to_owned(),
            }
            if over {
                break String::new();
            }
            if begun.elapsed() > WORKS {
                self.daemon.alerts.clear(&self.about);
            }
        };
        self.counters.pid.store(0, Relaxed);
        self.take(&mut lines, None);
        complaints.finish();
        match (group.end(), why.as_str()) {
            (Ok(status), "" | "closed its output") => format!("ended ({status})"),
            (_, why) => why.to_owned(),
        }
    }

    /// Reads what came, or the rest of it; the bans go into force together.
    fn take(&self, lines: &mut Lines, bytes: Option<&[u8]>) {
        let mut bans = Vec::new();
        let mut each = |line: Result<&[u8], LineError>| {
            self.counters.numbers.lines.inc();
            match line.and_then(line::read) {
                Ok(None) => {}
                Ok(Some(sighting)) => {
                    let ban = self.judge(&sighting, &bans);
                    bans.extend(ban);
                }
                Err(rejected) => {
                    self.counters.numbers.rejected.inc();
                    let why = rejected.to_string().chars().take(SHOWN).collect();
                    *self.counters.last_rejected() = why;
                }
            }
        };
        match bytes {
            Some(bytes) => lines.take(bytes, &mut each),
            None => lines.finish(&mut each),
        }
        self.daemon.bans.enforce(bans);
    }

    /// Decides on a sighting. `bans` are about to be.
    fn judge(&self, sighting: &Sighting, bans: &[Ban]) -> Option<Ban> {
        let (prefix, now) = (sighting.prefix, Timestamp::now());
        let ignored = |why: &str| {
            self.counters.numbers.ignored.inc();
            self.tell(sighting, now, why);
            None
        };
        let ledger = self.daemon.ledger.get();
        let offence = Offence {
            jail: ledger.jail(&self.producer.ledger_name()?)?,
            suspect: Suspect::Named(prefix),
            line: sighting.line.as_bytes(),
        };
        let mut denied = None;
        let spare = || {
            let about_to_be = |ban: &Ban| ban.subject.prefix().covers(prefix);
            if bans.iter().any(about_to_be) || self.has_banned(prefix) {
                return Some(Spared::Known);
            }
            denied = self.daemon.classes.denies(prefix.addr());
            let must_be_denied = self.config.only_if == OnlyIf::Denied;
            (must_be_denied && denied.is_none()).then_some(Spared::NotDenied)
        };
        let mut judge = Judge::new(&self.daemon.exempt);
        match judge.judge_unless(&ledger, offence, now, spare) {
            Judgement::Judged(Outcome::Ban(mut ban)) => {
                self.counters.numbers.bans.inc();
                ban.reason = match denied {
                    Some(by) => format!("named by the watch, denied by {by}"),
                    None => "named by the watch".to_owned(),
                };
                self.tell(sighting, now, &ban.reason);
                Some(ban)
            }
            Judgement::Exempt(by) => ignored(&format!("not banned: {} is exempt", by.prefix)),
            Judgement::HoldsExempt(inside) => ignored(&format!("not banned: it holds {inside}")),
            Judgement::Judged(Outcome::Ignored(why)) => ignored(&format!("not banned: {why:?}")),
            Judgement::Spared(Spared::Known) => {
                self.counters.numbers.known.inc();
                None
            }
            Judgement::Spared(Spared::NotDenied) => {
                self.counters.numbers.not_denied.inc();
                self.tell(
                    sighting,
                    now,
                    "not banned: neither the geofence nor a list denies it",
                );
                None
            }
            // One makes a ban, and it is of now.
            Judgement::Judged(Outcome::Counted { .. } | Outcome::TooOld) => None,
        }
    }

    fn has_banned(&self, prefix: Prefix) -> bool {
        let entries = self.daemon.backend.entries_for(prefix.addr());
        entries.is_ok_and(|entries| {
            entries.iter().any(|entry| {
                entry.policy.producer == self.producer
                    && entry.policy.scope == self.config.scope
                    && entry.subject.prefix().covers(prefix)
            })
        })
    }

    fn tell(&self, sighting: &Sighting, now: Timestamp, reason: &str) {
        if self.daemon.events.has_readers() {
            let mut event = Event::new(Kind::Found, now, reason)
                .about(sighting.prefix)
                .by(&self.producer);
            event.evidence = vec![sighting.line.clone()];
            self.daemon.events.tell(&event);
        }
    }
}

/// Why a watch does not ban whom it could.
enum Spared {
    /// A line about somebody who is banned already is an echo: what was under way
    /// when the ban came, or a log that is read once more.
    Known,
    /// Not denied, with `only_if = "denied"`.
    NotDenied,
}

fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// What a command writes to standard error, a few lines a minute.
struct Complaints<'a> {
    watch: &'a str,
    lines: Lines,
    minute: Instant,
    told: u32,
    untold: u64,
}

impl<'a> Complaints<'a> {
    fn new(watch: &'a str) -> Self {
        Self {
            watch,
            lines: Lines::default(),
            minute: Instant::now(),
            told: 0,
            untold: 0,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.minute.elapsed() > Duration::from_secs(60) {
            self.finish();
            (self.minute, self.told) = (Instant::now(), 0);
        }
        let Self {
            watch,
            lines,
            told,
            untold,
            ..
        } = self;
        lines.take(bytes, &mut |line| {
            if *told >= COMPLAINTS {
                *untold += 1;
                return;
            }
            *told += 1;
            match line {
                Ok(line) => {
                    let line = crate::escape(&String::from_utf8_lossy(line));
                    tracing::warn!("watch {watch} says: {line}");
                }
                Err(long) => tracing::warn!("watch {watch} says: {long}"),
            }
        });
    }

    fn finish(&mut self) {
        if self.untold > 0 {
            let lines = crate::counted(self.untold, "line", "lines");
            tracing::warn!("watch {} said {lines} more", self.watch);
            self.untold = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_enforce::DryRun;

    use super::*;
    use crate::{config::Config, host::Host, run::handles, service::Service, store::Store};

    /// A watcher that is handed what its command would print.
    fn watcher(keys: &str) -> (Watcher, Service, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "backend = \"dry-run\"\ninterfaces = []\nstate_dir = \"{}\"\n\
             [list.bad]\nfile = \"{}/bad.txt\"\n[watch.mail]\ncommand = [\"/bin/true\"]\n{keys}",
            dir.path().display(),
            dir.path().display()
        );
        std::fs::write(dir.path().join("bad.txt"), "192.0.2.0/24\n").unwrap();
        let config = Config::check(Path::new("weir.toml"), &text, &Host).unwrap();
        let watch = config.watches[0].clone();
        let alerts = Arc::new(Alerts::default());
        let (store, _) = Store::open(dir.path(), config.keep_history, alerts.clone());
        let backend = Arc::new(DryRun::new(1000, None));
        let interfaces = crate::interfaces::ProtectedInterfaces::default();
        let service = Service::new(config, backend, store, interfaces, alerts, String::new());
        let ledger = Ledger::new(vec![watch.jail()]);
        service.ledger.set(Arc::new(ledger));
        let watcher = Watcher {
            about: "watch:mail".into(),
            producer: BanSource::Watch("mail".into()),
            counters: service.watches.of("mail"),
            daemon: handles::of_watches(&service),
            config: watch,
            stop: Arc::default(),
        };
        (watcher, service, dir)
    }

    fn banned(service: &Service) -> Vec<(String, String)> {
        let entries = service.bans_in_force(None).unwrap();
        let bans = service.explain(entries);
        bans.into_iter()
            .map(|ban| (ban.subject.to_string(), ban.reason))
            .collect()
    }

    #[test]
    fn with_only_if_denied_the_geofence_or_a_list_must_agree() {
        let (watcher, service, _dir) = watcher("only_if = \"denied\"");
        service
            .classes
            .follow(|| service.config.get().fences())
            .unwrap();
        let mut lines = Lines::default();
        watcher.take(&mut lines, Some(b"192.0.2.7\n2001:db8::7\n192.0."));
        watcher.take(&mut lines, Some(b"2.8 and why\n"));
        let why = "named by the watch, denied by list bad has 192.0.2.0/24";
        for (subject, (banned, reason)) in
            ["192.0.2.7", "192.0.2.8"].into_iter().zip(banned(&service))
        {
            assert_eq!(banned, subject);
            assert!(reason.starts_with(why), "{reason}");
        }
        assert_eq!(watcher.counters.numbers.not_denied.get(), 1);
    }

    #[test]
    fn lines_that_come_together_are_one_offence() {
        let (watcher, service, _dir) = watcher("increment = { factor = 2 }");
        let lines = b"192.0.2.7\n192.0.2.7\n2001:db8::7\n2001:db8::8\n192.0.2.7\n";
        watcher.take(&mut Lines::default(), Some(lines));
        assert_eq!(banned(&service).len(), 2);
        assert_eq!(watcher.counters.numbers.known.get(), 3);
        let ledger = service.ledger.get();
        assert!(ledger.history().iter().all(|offence| offence.offences == 1));
    }
}

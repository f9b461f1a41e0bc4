//! Keeps one list current: what it holds, when it is asked for again, and what
//! is done when that fails (the list stays as it was, an alert says why).

mod decisions;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant, SystemTime},
};

use jiff::Timestamp;
use weir_core::Prefix;
use weir_sources::list::{
    Admit, Decisions, FetchOutcome, Format, ListError, ParsedList, Patience, Request, Validators,
    fetch::{read_file, unpacked},
    get, parse,
};

use super::{
    CurrentList, ListAction, ListStatus, Shared, chance,
    config::{ListConfig, ListSource},
    left_out::{self, LeftOut},
};
use crate::threads;

/// A file is looked at this often; a change is read when it has stopped
/// changing for as long.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// After a failure it is tried again after this time, then twice of it, …
const RETRY: Duration = Duration::from_secs(5);
/// … at most this.
const MAX_RETRY: Duration = Duration::from_secs(3600);
/// Refreshes come up to this part of the interval later or earlier, so that
/// not all hosts ask a server at once.
const JITTER: f64 = 0.05;
/// Lists with fewer prefixes change by more than any percentage.
const SMALL: usize = 10;
/// One allow list holds this many prefixes of a family at most: the kernel's
/// allow list has room for 65,536, and others need some of it.
const MAX_ALLOWED: usize = 60_000;

/// Why a list stays as it was.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(
        "it has shrunk from {before} to {now} prefixes; if that is right: weir list refresh {name} --force"
    )]
    Shrunk {
        name: String,
        before: usize,
        now: usize,
    },
    #[error("it has {0} prefixes of one family: an allow list holds {MAX_ALLOWED} at most")]
    NoRoom(usize),
}

/// The thread that keeps one list current.
pub(super) struct Refresher {
    config: Mutex<ListConfig>,
    held: Mutex<ListState>,
    orders: Mutex<Orders>,
    ordered: Condvar,
    /// Held while the copy on disk is written.
    keeping: Mutex<()>,
}

/// The content of a list, and the refreshes that brought it.
#[derive(Default)]
struct ListState {
    prefixes: Arc<[Prefix]>,
    entries: usize,
    bytes: usize,
    format: Option<Format>,
    skipped: LeftOut,
    refused: LeftOut,
    malformed: LeftOut,
    /// Addresses in prefixes that are too wide, of IPv4 and of IPv6, in percent.
    left_out_percent: [f64; 2],
    /// Entity tag and time of the version that is held.
    validators: Option<Validators>,
    from_cache: bool,
    success: Option<Timestamp>,
    failure: Option<(Timestamp, String)>,
    next: Option<Timestamp>,
    /// The file as it was when it was read.
    stamp: Option<Stamp>,
    /// The decisions of CrowdSec in force.
    decisions: Decisions,
    /// The copy on disk says something else.
    unkept: bool,
}

#[derive(Default)]
struct Orders {
    stop: bool,
    /// Attempts wanted and made.
    wanted: u64,
    made: u64,
    force: bool,
    /// The configuration is another one: it may be due at another time.
    look: bool,
}

/// Failures and times that the loop remembers between refreshes.
struct Backoff {
    failures: u32,
    due: Instant,
    /// A file as it was when it was looked at last.
    seen: Option<Stamp>,
    /// CrowdSec: when everything was asked for; `None`: something may be lost.
    whole: Option<Instant>,
    /// The time from which the list may be kept on disk again.
    keep: Instant,
}

/// Whether a file is still the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp(u64, u64, u64, (i64, i64), (i64, i64));

impl Stamp {
    /// `None` when there is no such file.
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self(
            meta.dev(),
            meta.ino(),
            meta.size(),
            (meta.mtime(), meta.mtime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ))
    }
}

/// Begins to keep it current.
pub(super) fn start(shared: &Arc<Shared>, refresher: Arc<Refresher>) {
    let about = refresher.about();
    let thread = {
        let shared = shared.clone();
        threads::spawn(format!("list-{}", refresher.name()), move || {
            refresher.run(&shared)
        })
    };
    if let Err(error) = thread {
        let message = format!("cannot start its thread, so it is not refreshed: {error}");
        shared.alerts.raise(&about, message);
    }
}

impl Refresher {
    /// With what was kept of it, or with its file.
    pub fn open(config: ListConfig, shared: &Shared) -> Self {
        let refresher = Self {
            held: Mutex::default(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            keeping: Mutex::default(),
            config: Mutex::new(config),
        };
        let config = refresher.config();
        refresher.load(shared, &config);
        if let ListSource::File(path) = &config.source {
            let stamp = Stamp::of(path);
            let taken = file(path, &config)
                .map_err(Failure::from)
                .and_then(|bytes| refresher.take(shared, &config, bytes, None, false));
            // What is wrong is told when its thread comes to the same.
            if taken.is_ok() {
                let mut held = refresher.held();
                held.success = Some(Timestamp::now());
                held.stamp = stamp;
            }
        }
        refresher
    }

    /// The copy on disk, if there is one.
    fn load(&self, shared: &Shared, config: &ListConfig) {
        let source = config.source.key();
        let kept = match shared
            .cache
            .load(&config.name, &source, config.limits.max_bytes)
        {
            Ok(Some(kept)) => kept,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!("list {}: {error}", config.name);
                return;
            }
        };
        if matches!(config.source, ListSource::Crowdsec { .. }) {
            let decisions = Decisions::read(&kept.bytes, SystemTime::now());
            self.take_decisions(decisions);
            self.held().bytes = kept.bytes.len();
        } else {
            let parsed = match parse(&kept.bytes, config.format, admit(config), &config.limits) {
                Ok(parsed) => parsed,
                Err(error) => {
                    tracing::warn!("list {}: its copy on disk: {error}", config.name);
                    return;
                }
            };
            if let Err(error) = room(config, &parsed.prefixes) {
                tracing::warn!("list {}: its copy on disk: {error}", config.name);
                return;
            }
            self.hold(
                shared,
                config,
                parsed,
                kept.bytes.len(),
                Some(kept.validators),
            );
        }
        let mut held = self.held();
        held.from_cache = true;
        held.success = Timestamp::try_from(kept.checked).ok();
        tracing::info!(
            "list {}: {} from the copy on disk",
            config.name,
            crate::counted(held.prefixes.len() as u64, "prefix", "prefixes")
        );
    }

    fn config(&self) -> ListConfig {
        self.config
            .lock()
            .expect("no holder of this lock panics")
            .clone()
    }

    fn held(&self) -> MutexGuard<'_, ListState> {
        self.held.lock().expect("no holder of this lock panics")
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().expect("no holder of this lock panics")
    }

    pub fn name(&self) -> String {
        self.config
            .lock()
            .expect("no holder of this lock panics")
            .name
            .clone()
    }

    /// The subject of the list's alert.
    pub fn about(&self) -> String {
        format!("list:{}", self.name())
    }

    /// Goes on under this configuration, if what it holds may stay.
    pub fn adopt(&self, new: &ListConfig) -> bool {
        let mut config = self.config.lock().expect("no holder of this lock panics");
        if config.source != new.source
            || config.format != new.format
            || config.limits != new.limits
            || config.action != new.action
        {
            return false;
        }
        if *config != *new {
            *config = new.clone();
            drop(config);
            self.orders().look = true;
            self.ordered.notify_all();
        }
        true
    }

    pub fn stop(&self) {
        self.orders().stop = true;
        self.ordered.notify_all();
    }

    /// Wants a refresh; returns which attempt that will be.
    pub fn order(&self, force: bool) -> u64 {
        let mut orders = self.orders();
        // One that runs may have begun before what is asked for was there.
        orders.wanted = orders.made + 1 + u64::from(orders.wanted > orders.made);
        orders.force |= force;
        self.ordered.notify_all();
        orders.wanted
    }

    pub fn attempts(&self) -> u64 {
        self.orders().made
    }

    pub fn current(&self) -> CurrentList {
        let config = self.config();
        CurrentList {
            name: config.name,
            source: config.source.to_string(),
            action: config.action,
            scope: config.scope,
            direction: config.direction,
            prefixes: self.held().prefixes.clone(),
        }
    }

    pub fn status(&self, exempt: &[Prefix]) -> ListStatus {
        let current = self.current();
        let exempt = match current.action {
            ListAction::Deny => exempt
                .iter()
                .filter(|prefix| current.lookup(prefix.addr()).is_some())
                .count(),
            ListAction::Allow => 0,
        };
        let config = self.config();
        let held = self.held();
        let ipv4 = held.prefixes.partition_point(|p| p.addr().is_ipv4());
        ListStatus {
            name: config.name,
            source: config.source.to_string(),
            action: config.action,
            format: match (&config.source, held.format) {
                (ListSource::Crowdsec { .. }, _) => "crowdsec".to_owned(),
                (_, format) => format.unwrap_or(config.format).to_string(),
            },
            ports: config.scope,
            direction: config.direction.name(),
            prefixes: held.prefixes.len(),
            ipv4,
            ipv6: held.prefixes.len() - ipv4,
            entries: held.entries,
            skipped: held.skipped.clone(),
            refused: held.refused.clone(),
            malformed: held.malformed.clone(),
            left_out_percent_ipv4: held.left_out_percent[0],
            left_out_percent_ipv6: held.left_out_percent[1],
            exempt,
            bytes: held.bytes,
            from_cache: held.from_cache,
            last_success: held.success,
            last_failure: held.failure.as_ref().map(|(when, _)| *when),
            error: held.failure.as_ref().map(|(_, why)| why.clone()),
            next_refresh: held.next,
        }
    }

    /// Refreshes it when it is due or ordered, until it is told to stop.
    fn run(&self, shared: &Shared) {
        let mut backoff = self.backoff();
        loop {
            let (ordered, force) = {
                let orders = self.orders();
                let wait = self.wait(&backoff);
                let (mut orders, _) = self
                    .ordered
                    .wait_timeout_while(orders, wait, |orders| {
                        !orders.stop && !orders.look && orders.wanted <= orders.made
                    })
                    .expect("no holder of this lock panics");
                if orders.stop {
                    return;
                }
                if orders.look {
                    orders.look = false;
                    backoff.due = self.due();
                }
                (
                    orders.wanted > orders.made,
                    std::mem::take(&mut orders.force),
                )
            };
            self.expire(shared);
            self.keep_in_time(shared, &mut backoff);
            if !ordered && !self.is_due(&mut backoff) {
                continue;
            }
            let taken = self.refresh(shared, &mut backoff, force);
            if self.orders().stop {
                return;
            }
            self.settle(shared, &mut backoff, taken);
            if ordered {
                self.orders().made += 1;
            }
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff {
            failures: 0,
            due: self.due(),
            seen: None,
            whole: None,
            keep: Instant::now(),
        }
    }

    /// When it is to be asked for, going by the last time.
    fn due(&self) -> Instant {
        let config = self.config();
        let now = Instant::now();
        // A file is looked at all the time; CrowdSec's decisions of the time
        // before are asked for at once.
        if !matches!(config.source, ListSource::Url(_)) {
            return now;
        }
        let Some(success) = self.held().success else {
            return now;
        };
        let since = Timestamp::now().duration_since(success);
        let since = Duration::try_from(since).unwrap_or_default();
        let left = config.refresh.saturating_sub(since);
        self.held().next = Timestamp::now().checked_add(left).ok();
        now + left
    }

    /// How long nothing is to be done unless it is ordered.
    fn wait(&self, backoff: &Backoff) -> Duration {
        if matches!(self.config().source, ListSource::File(_)) {
            return POLL_INTERVAL;
        }
        let mut until = backoff.due.saturating_duration_since(Instant::now());
        let held = self.held();
        if held.unkept {
            until = until.min(backoff.keep.saturating_duration_since(Instant::now()));
        }
        let end = held.decisions.next_end();
        match end.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default()) {
            Some(end) => until.min(end.max(Duration::from_secs(1))),
            None => until,
        }
    }

    fn is_due(&self, backoff: &mut Backoff) -> bool {
        let config = self.config();
        let ListSource::File(path) = &config.source else {
            return Instant::now() >= backoff.due;
        };
        let now = Stamp::of(path);
        let settled = now == backoff.seen;
        backoff.seen = now;
        let read = self.held().stamp;
        match now {
            // Said once, and again now and then.
            None => settled && (read.is_some() || Instant::now() >= backoff.due),
            Some(_) => settled && now != read,
        }
    }

    fn refresh(&self, shared: &Shared, backoff: &mut Backoff, force: bool) -> Result<(), Failure> {
        let config = self.config();
        match &config.source {
            ListSource::File(path) => {
                // What is written while it is read is a change to come.
                self.held().stamp = Stamp::of(path);
                let bytes = file(path, &config)?;
                self.take(shared, &config, bytes, None, force)
            }
            ListSource::Url(url) => {
                let _turn = shared.turn();
                let known = self.held().validators.clone();
                let fetched = get(&Request {
                    url,
                    ca_file: config.ca_file.as_deref(),
                    max_bytes: config.limits.max_bytes,
                    known: known.as_ref(),
                    key: None,
                    patience: Patience::default(),
                })?;
                match fetched {
                    FetchOutcome::Unchanged => {
                        if let Err(error) = shared.cache.confirm(&config.name) {
                            tracing::warn!("list {}: {error}", config.name);
                        }
                        Ok(())
                    }
                    FetchOutcome::Changed { bytes, validators } => {
                        self.take(shared, &config, bytes, Some(validators), force)
                    }
                }
            }
            ListSource::Crowdsec { url, key_file } => {
                let _turn = shared.turn();
                self.follow_crowdsec(shared, &config, (url, key_file), backoff, force)
            }
        }
    }

    /// Takes a list, unless there is something about it.
    fn take(
        &self,
        shared: &Shared,
        config: &ListConfig,
        bytes: Vec<u8>,
        validators: Option<Validators>,
        force: bool,
    ) -> Result<(), Failure> {
        let parsed = parse(&bytes, config.format, admit(config), &config.limits)?;
        room(config, &parsed.prefixes)?;
        let (before, now) = (self.held().prefixes.len(), parsed.prefixes.len());
        let lost = before.saturating_sub(now);
        if !force && before >= SMALL && lost * 100 >= before * usize::from(config.max_shrink) {
            return Err(Failure::Shrunk {
                name: config.name.clone(),
                before,
                now,
            });
        }
        if self.orders().stop {
            return Ok(());
        }
        let kept = validators.clone().unwrap_or_default();
        self.keep(shared, config, &bytes, &kept);
        self.hold(shared, config, parsed, bytes.len(), validators);
        Ok(())
    }

    /// Keeps the list on disk; true when it is there. A failure has an alert of its own:
    /// the list itself is fine.
    fn keep(
        &self,
        shared: &Shared,
        config: &ListConfig,
        bytes: &[u8],
        validators: &Validators,
    ) -> bool {
        let about = format!("list-copy:{}", config.name);
        let source = config.source.key();
        match shared.cache.keep(&config.name, &source, bytes, validators) {
            Ok(()) => {
                shared.alerts.clear(&about);
                true
            }
            Err(error) => {
                shared.alerts.raise(
                    &about,
                    format!("list {}: {error}; it is in force, but a restart without its source would not have it", config.name),
                );
                false
            }
        }
    }

    fn hold(
        &self,
        shared: &Shared,
        config: &ListConfig,
        parsed: ParsedList,
        bytes: usize,
        validators: Option<Validators>,
    ) {
        left_out::tell(shared, config, left_out::too_wide(&parsed.wide));
        let mut held = self.held();
        if *held.prefixes != *parsed.prefixes {
            held.prefixes = parsed.prefixes.into();
        }
        held.entries = parsed.entries;
        held.format = Some(parsed.format);
        held.skipped = parsed.skipped.into();
        held.refused = parsed.refused.into();
        held.left_out_percent = parsed.wide.share.map(|share| f64::from(share) / 10.0);
        held.bytes = bytes;
        held.validators = validators;
        held.from_cache = false;
    }

    /// Acts on a refresh: raises or clears the alert, and sets the time of the next one.
    fn settle(&self, shared: &Shared, backoff: &mut Backoff, taken: Result<(), Failure>) {
        let config = self.config();
        let now = Timestamp::now();
        let wait = match &taken {
            Ok(()) => {
                backoff.failures = 0;
                config
                    .refresh
                    .mul_f64(1.0 + JITTER * (2.0 * chance() - 1.0))
            }
            Err(_) => {
                backoff.failures += 1;
                let longest = config.refresh.min(MAX_RETRY);
                RETRY
                    .saturating_mul(1 << (backoff.failures - 1).min(16))
                    .min(longest)
            }
        };
        backoff.due = Instant::now() + wait;
        {
            let mut held = self.held();
            held.next = match config.source {
                ListSource::File(_) => None,
                _ => now.checked_add(wait).ok(),
            };
            match &taken {
                Ok(()) => {
                    (held.success, held.failure) = (Some(now), None);
                    held.from_cache = false;
                }
                Err(error) => held.failure = Some((now, error.to_string())),
            }
        }
        match taken {
            Ok(()) => {
                shared.alerts.clear(&self.about());
                shared.publish();
            }
            Err(error) => {
                let held = self.held();
                let stays = match (held.prefixes.len(), held.success) {
                    (0, _) => "nothing is in force of it".to_owned(),
                    (n, when) => {
                        let when = when
                            .map(|when| when.strftime(" of %Y-%m-%d %H:%M UTC").to_string())
                            .unwrap_or_default();
                        let (prefixes, stay) = match n {
                            1 => ("prefix", "stays"),
                            _ => ("prefixes", "stay"),
                        };
                        format!("its {n} {prefixes}{when} {stay} in force")
                    }
                };
                drop(held);
                let message = format!("list {} ({}): {error}; {stays}", config.name, config.source);
                shared.alerts.raise(&self.about(), message);
            }
        }
    }
}

fn file(path: &Path, config: &ListConfig) -> Result<Vec<u8>, ListError> {
    let bytes = read_file(path, config.limits.max_bytes)?;
    unpacked(bytes, config.limits.max_bytes)
}

/// The prefixes that a list may hold. A list of one's own may name one's own networks; one
/// that others publish must not.
fn admit(config: &ListConfig) -> Admit {
    match (config.action, &config.source) {
        (ListAction::Allow, _) => Admit::Allow,
        (ListAction::Deny, ListSource::Url(_)) => Admit::Public,
        (ListAction::Deny, _) => Admit::Bannable,
    }
}

fn room(config: &ListConfig, prefixes: &[Prefix]) -> Result<(), Failure> {
    let ipv4 = prefixes.partition_point(|p| p.addr().is_ipv4());
    let most = ipv4.max(prefixes.len() - ipv4);
    match config.action == ListAction::Allow && most > MAX_ALLOWED {
        true => Err(Failure::NoRoom(most)),
        false => Ok(()),
    }
}

//! What the daemon does when told to, by a jail or over the control socket:
//! ban, unban, allow. The order of the steps is here: exempt? → in force → told
//! → remembered → durable (when somebody waits for the answer). What it says when
//! asked is in `questions`, in which words in `answers`. Knows nothing of HTTP,
//! sources or threads.

mod answers;
mod questions;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use weir_core::{Action, AddrError, Ban, Prefix, Producer, Scope, Subject, Until, policy::Ledger};
use weir_enforce::{Backend, BootNanos, Entry, Policy};
use weir_sources::RingStatistics;

pub use answers::{
    Allowed, Done, Filled, JailStatus, Lifted, ListedBan, Protection, RingStatus, State, Status,
    Tracked, Why,
};

use crate::{
    alerts::Alerts,
    classes::Border,
    config::{Config, duration_text},
    decoy::Decoy,
    events::{Event, Events, Kind},
    exempt::{Exempt, Gatherer, Written, is_too_wide, too_wide},
    expiry::{Ended, Expiries},
    geo::Geography,
    lists::Lists,
    refused::{Refused, RefusedBans},
    sinks::Inlet,
    store::{AllowEntry, Change, Detail, PORTION, Store, clock::Now},
    threads::Pulses,
    uplinks::Uplinks,
    watch::Board,
};

/// More prefixes than this are not taken into the allow list at run time.
pub const MAX_ALLOW: usize = 10_000;
/// The longest reason or note, in bytes.
pub const MAX_REASON: usize = 1024;
/// The longest ban that is not forever.
const MAX_BAN: Duration = Duration::from_secs(100 * 365 * 86_400);

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

/// A jail's numbers since the start of the daemon.
#[derive(Debug, Default)]
pub struct JailCounters {
    /// Lines read by its filter.
    pub lines: AtomicU64,
    /// Findings.
    pub findings: AtomicU64,
    /// Bans it made.
    pub bans: AtomicU64,
    /// Findings that its ignore rules or the exemptions kept from counting.
    pub ignored: AtomicU64,
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
    /// Ports that nobody serves.
    pub decoy: Decoy,
    /// Where addresses are.
    pub geography: Arc<Geography>,
    /// Lists of denied and allowed prefixes.
    pub lists: Lists,
    /// Lists and geofence as they are enforced.
    pub border: Border,
    allow: Mutex<Vec<AllowEntry>>,
    allow_written: Written,
    gatherer: Mutex<Gatherer>,
    jails: RwLock<BTreeMap<String, Arc<JailCounters>>>,
    ledger: RwLock<Option<Arc<Ledger>>>,
    rings: Mutex<BTreeMap<String, RingStatistics>>,
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
    pub watches: Board,
    sinks: Mutex<Vec<Arc<Inlet>>>,
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
        let events = Events::default();
        alerts.tell(events.outlets());
        Self {
            lists,
            border: Border::default(),
            config: RwLock::new(Arc::new(config)),
            backend,
            store,
            exempt: Exempt::default(),
            events,
            alerts,
            decoy: Decoy::default(),
            geography,
            allow: Mutex::new(allow),
            allow_written: Written::default(),
            gatherer: Mutex::default(),
            jails: RwLock::default(),
            ledger: RwLock::default(),
            rings: Mutex::default(),
            expiries: Expiries::default(),
            telling: Mutex::default(),
            refused: RefusedBans::default(),
            in_force: RwLock::default(),
            uplinks,
            watches: Board::default(),
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

    /// Who counts findings now.
    pub fn set_ledger(&self, ledger: Arc<Ledger>) {
        *self.ledger.write().expect("no holder of this lock panics") = Some(ledger);
    }

    /// What denies this address without a ban, the geofence or a list, in words.
    pub fn denies(&self, addr: IpAddr) -> Option<String> {
        let (_, denied) = self.border.judge(self, addr, None)?;
        Some(denied)
    }

    /// The sinks that run from now on.
    pub fn set_sinks(&self, sinks: Vec<Arc<Inlet>>) {
        *self.lock_sinks() = sinks;
    }

    fn lock_sinks(&self) -> MutexGuard<'_, Vec<Arc<Inlet>>> {
        self.sinks.lock().expect("no holder of this lock panics")
    }

    fn ring_statistics(&self) -> MutexGuard<'_, BTreeMap<String, RingStatistics>> {
        self.rings.lock().expect("no holder of this lock panics")
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

    /// The numbers of this jail; the same for the daemon's whole life.
    pub fn jail_counters(&self, jail: &str) -> Arc<JailCounters> {
        let mut jails = self.jails.write().expect("no holder of this lock panics");
        jails.entry(jail.to_owned()).or_default().clone()
    }

    /// Writes the allow list of commands into a database that was made anew.
    pub fn remember_allow_again(&self) {
        // Held meanwhile: what is taken back is not written again behind that.
        let allow = self.allow_entries();
        let entries = allow.iter().cloned();
        self.store.remember(entries.map(Change::AllowAdd));
    }

    fn allow_entries(&self) -> MutexGuard<'_, Vec<AllowEntry>> {
        self.allow.lock().expect("no holder of this lock panics")
    }

    /// Reads the exemptions again; tells the backend when they changed.
    pub fn refresh_exemptions(&self) -> Result<(), weir_enforce::Error> {
        self.refresh_exemptions_by(&self.config())
    }

    /// The same by a configuration that is not in force yet.
    pub fn refresh_exemptions_by(&self, config: &Config) -> Result<(), weir_enforce::Error> {
        let mut gatherer = self.gatherer.lock().expect("no holder of this lock panics");
        let allow = self.allow_entries().clone();
        let list = gatherer.gather(config, &allow, Instant::now());
        self.alert_on_wide();
        let changed = self.exempt.replace(list, self.lists.current());
        self.allow_written.follow(changed, || {
            let exempt = self.exempt.current();
            match exempt.overfull() {
                None => self.alerts.clear("allow-lists"),
                Some(list) => self.alerts.raise(
                    "allow-lists",
                    format!("the kernel's allow list has no room for the list {list} and those after it: they are not in force"),
                ),
            }
            self.backend.set_allow(exempt.set())
        })
    }

    /// As long as so much is allowed, it is said: bans, lists and geofence do
    /// nothing for it.
    fn alert_on_wide(&self) {
        let wide = self.allowed_too_wide();
        match wide.is_empty() {
            true => self.alerts.clear(WIDE),
            false => self.alerts.raise(WIDE, answers::allowed_in_vain(&wide)),
        }
    }

    /// What `allow add --force` allowed; the configuration cannot.
    fn allowed_too_wide(&self) -> Vec<Prefix> {
        let allow = self.allow_entries();
        let allowed = allow.iter().map(|entry| entry.prefix);
        allowed.filter(|prefix| is_too_wide(*prefix)).collect()
    }

    /// The hot path: bans decided by jails. In force first, then remembered
    /// within a second; nothing here waits for the disk.
    pub fn enforce(&self, bans: Vec<Ban>) {
        if bans.is_empty() {
            return;
        }
        let now = Now::read();
        let bans = self.without_exempt(bans, &now);
        let coming = self.coming_into_force();
        self.put_in_force(&coming, bans, &now);
    }

    /// Says of each ban that is not to be why it is not.
    fn without_exempt(&self, mut bans: Vec<Ban>, now: &Now) -> Vec<Ban> {
        let exempt = self.exempt.current();
        bans.retain(|ban| match exempt.covering(ban.subject) {
            None => true,
            Some(exemption) => {
                self.events.tell(
                    &Event::new(
                        Kind::Allow,
                        now.wall,
                        format!("not banned ({}): {}", ban.reason, exemption.reason),
                    )
                    .about(ban.subject.prefix())
                    .by(&ban.producer),
                );
                false
            }
        });
        bans
    }

    fn put_in_force(&self, coming: &Coming<'_>, bans: Vec<Ban>, now: &Now) {
        let entries: Vec<Entry> = bans.iter().map(|ban| entry(ban, now)).collect();
        let inserted = self.backend.insert(&entries);
        let mut decided: Vec<(Ban, Entry)> = bans.into_iter().zip(entries).collect();
        let mut refused = Vec::new();
        match inserted {
            Ok(inserted) => self.evicted(&inserted.evicted),
            Err(ended) => {
                tracing::debug!("bulk insert: {ended}");
                self.evicted(&ended.done.evicted);
                (decided, refused) = self.insert_one_by_one(decided);
            }
        }
        let in_force = decided.iter().map(|(_, entry)| entry);
        self.refused.follow(refused, in_force, &self.alerts);
        self.tell_and_remember(coming, decided, now);
    }

    /// These bans are in force now.
    fn tell_and_remember(&self, _coming: &Coming<'_>, bans: Vec<(Ban, Entry)>, now: &Now) {
        let order = self.telling();
        let in_force = bans.iter().map(|(_, entry)| entry);
        self.tell_ended(&self.expiries.put(in_force, now.boottime));
        for (ban, _) in &bans {
            self.events.tell(&self.geography.placed(Event::ban(ban)));
        }
        drop(order);
        self.store
            .remember(bans.into_iter().map(|(ban, entry)| Change::Ban {
                ban,
                expiry: entry.expiry,
            }));
    }

    /// One bad entry must not keep the others out: those that are in force, and
    /// those that are not.
    fn insert_one_by_one(&self, decided: Vec<(Ban, Entry)>) -> (Vec<(Ban, Entry)>, Vec<Refused>) {
        let (mut in_force, mut refused) = (Vec::new(), Vec::new());
        for (ban, entry) in decided {
            match self.backend.insert(std::slice::from_ref(&entry)) {
                Ok(inserted) => {
                    self.evicted(&inserted.evicted);
                    in_force.push((ban, entry));
                }
                Err(ended) => {
                    self.evicted(&ended.done.evicted);
                    let error = ended.error;
                    refused.push(Refused { ban, entry, error });
                }
            }
        }
        (in_force, refused)
    }

    /// Tries the bans again that the backend refused; for once a second.
    pub fn follow_refused(&self) {
        let now = Now::read();
        // Who lifts bans meanwhile finds each of them waiting, or in force.
        let coming = self.coming_into_force();
        let due = self.refused.take_due(now.boottime);
        if !due.is_empty() {
            let bans = due.into_iter().map(|refused| refused.ban).collect();
            let bans = self.without_exempt(bans, &now);
            self.put_in_force(&coming, bans, &now);
        }
        drop(coming);
        self.refused.settle(&self.alerts);
    }

    fn coming_into_force(&self) -> Coming<'_> {
        self.in_force.read().expect("no holder of this lock panics")
    }

    fn lifting(&self) -> RwLockWriteGuard<'_, ()> {
        self.in_force
            .write()
            .expect("no holder of this lock panics")
    }

    /// Writes the bans in force into a database that was made anew; waits for the
    /// disk as long as it answers. A ban that comes later is remembered anyway.
    pub fn remember_bans_again(&self) -> Result<(), weir_enforce::Error> {
        let mut entries = self.backend.entries()?;
        entries.sort_unstable_by_key(|entry| entry.subject);
        let mut saved = true;
        for portion in entries.chunks(PORTION) {
            {
                // As they are by now, and before any change of them is remembered.
                let _none_comes_or_goes = self.lifting();
                let now = Now::read();
                let mut current = Vec::with_capacity(portion.len());
                for of_subject in portion.chunk_by(|a, b| a.subject == b.subject) {
                    let subject = of_subject[0].subject;
                    let held = self.backend.entries_for(subject.prefix().addr())?;
                    current.extend(held.into_iter().filter(|entry| entry.subject == subject));
                }
                self.store.remember(current.into_iter().map(|entry| {
                    let until = now.until(entry.expiry);
                    Change::Recovered { entry, until }
                }));
            }
            // If it is not, there is an alert.
            saved = saved && self.store.flush().is_ok();
        }
        Ok(())
    }

    /// The alert that a table is full is over once a twentieth of it is free:
    /// not with the first place, which the next ban takes.
    pub(crate) fn follow_usage(&self) {
        let usage = self.backend.usage();
        let has_room = |used, most| used + most / 20 < most;
        if has_room(usage.bans, usage.max_bans) && has_room(usage.wide, usage.max_wide) {
            self.alerts.clear("table-full");
        }
    }

    /// Says and remembers who had to go at a table's cap.
    pub(crate) fn evicted(&self, evicted: &[Entry]) {
        if evicted.is_empty() {
            return;
        }
        let usage = self.backend.usage();
        let full = if usage.wide >= usage.max_wide {
            format!(
                "there are {} bans of prefixes other than single addresses and IPv6 /64: those that end first make room",
                usage.max_wide
            )
        } else {
            format!(
                "the ban table is at its cap of {}: the bans that end first make room; raise max_bans",
                usage.max_bans
            )
        };
        self.alerts.raise("table-full", full);
        self.expiries.remove(evicted);
        for entry in evicted {
            let why = "evicted: the table is at its cap";
            self.tell_end(entry.subject, &entry.policy, why);
        }
        self.store
            .remember(evicted.iter().map(|entry| Change::Unban {
                subject: entry.subject,
                policy: entry.policy.clone(),
            }));
    }

    /// With what is known of the ends of bans.
    pub fn with_expiries(self, expiries: Expiries) -> Self {
        Self { expiries, ..self }
    }

    /// Tells of bans that have ended by themselves since it was last called; for
    /// once a second.
    pub fn follow_expiries(&self) {
        let _order = self.telling();
        let now = BootNanos::now();
        let ended = self.expiries.take_ended(now);
        self.tell_ended(&ended);
        // Who starts next is not to tell of it again.
        self.store.remember(
            ended
                .into_iter()
                .map(|Ended { subject, policy }| Change::Ended {
                    subject,
                    policy,
                    by: now,
                }),
        );
    }

    fn tell_ended(&self, ended: &[Ended]) {
        for Ended { subject, policy } in ended {
            self.tell_end(*subject, policy, "its time is over");
        }
    }

    /// Held while a ban, or its end, is noted and told: the end of one is not
    /// told behind the next one of the same name.
    fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().expect("no holder of this lock panics")
    }

    /// Tells of a ban that is no longer in force.
    pub fn tell_end(&self, subject: Subject, policy: &Policy, why: &str) {
        let event = Event::unban(subject, &policy.producer, &policy.scope, why);
        self.events.tell(&self.geography.placed(event));
    }

    /// A manual ban: in force, then durable. Without a reason of its own it has
    /// that of the ban which it renews.
    pub fn ban(
        &self,
        subject: &str,
        length: Option<Duration>,
        scope: Scope,
        action: Action,
        reason: Option<String>,
    ) -> Result<Done<ListedBan>, Refusal> {
        let subject: Subject = subject.parse()?;
        let reason = match reason {
            Some(reason) => reason,
            None => self
                .reason_of_manual_ban(subject, &scope)?
                .unwrap_or_else(|| "by hand".to_owned()),
        };
        if reason.len() > MAX_REASON {
            return Err(Refusal::Malformed(format!(
                "the reason has {} bytes: at most {MAX_REASON}",
                reason.len()
            )));
        }
        if length.is_some_and(|l| l.is_zero() || l > MAX_BAN) {
            return Err(Refusal::Malformed(format!(
                "a ban lasts 1s-{}, or forever",
                duration_text(MAX_BAN)
            )));
        }
        if let Some(exemption) = self.exempt.current().covering(subject) {
            return Err(Refusal::Exempt {
                subject,
                reason: exemption.reason,
            });
        }
        let now = Now::read();
        let until = match length {
            None => Until::Never,
            Some(length) => Until::At(now.wall.checked_add(length).unwrap_or(Timestamp::MAX)),
        };
        let ban = Ban {
            subject,
            scope,
            producer: Producer::Manual,
            action,
            reason,
            since: now.wall,
            until,
            evidence: Vec::new(),
        };
        let entry = entry(&ban, &now);
        let detail = Detail {
            since: ban.since,
            reason: ban.reason.clone(),
            evidence: Vec::new(),
        };
        {
            let coming = self.coming_into_force();
            match self.backend.insert(std::slice::from_ref(&entry)) {
                Ok(inserted) => self.evicted(&inserted.evicted),
                Err(ended) => {
                    self.evicted(&ended.done.evicted);
                    return Err(ended.error.into());
                }
            }
            self.tell_and_remember(&coming, vec![(ban, entry.clone())], &now);
        }
        let saved = self.store.flush();
        Ok(Done::new(ListedBan::new(entry, Some(detail), &now), saved))
    }

    /// Why this subject is banned by hand on these ports, if it is.
    fn reason_of_manual_ban(
        &self,
        subject: Subject,
        scope: &Scope,
    ) -> Result<Option<String>, Refusal> {
        let mut entries = self.backend.entries_for(subject.prefix().addr())?;
        entries.retain(|entry| {
            entry.subject == subject
                && entry.policy.producer == Producer::Manual
                && entry.policy.scope == *scope
        });
        let mut details = self.store.details(&entries).into_iter().flatten();
        Ok(details.next().map(|detail| detail.reason))
    }

    /// Lifts the bans of exactly this subject, of one producer and scope if named.
    pub fn unban(
        &self,
        subject: &str,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Done<Lifted>, Refusal> {
        let prefix: Prefix = subject.parse()?;
        let subject = Subject::new(prefix)?;
        let lifted = self.lift(subject, producer, scope, "lifted by hand")?;
        if lifted == 0 {
            return Err(Refusal::NotFound(
                self.why_not_lifted(subject, producer, scope)?,
            ));
        }
        let saved = self.store.flush();
        if let Some(ledger) = self.ledger() {
            ledger.forgive(subject);
        }
        let still = self.still_denied(subject)?;
        Ok(Done::new(Lifted { lifted, still }, saved))
    }

    /// Why no ban of this subject is lifted: it has none, or not such a one.
    fn why_not_lifted(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<String, Refusal> {
        let entries = self.backend.entries_for(subject.prefix().addr())?;
        let (own, others): (Vec<_>, Vec<_>) = entries.iter().partition(|e| e.subject == subject);
        if let Some(own) = own.first() {
            let (mut asked, policy) = (String::new(), &own.policy);
            if let Some(producer) = producer.filter(|p| **p != policy.producer) {
                asked.push_str(&format!(" {}", by(producer)));
            }
            if let Some(scope) = scope.filter(|s| **s != policy.scope) {
                asked.push_str(&format!(" on {scope}"));
            }
            return Ok(format!("{}, not{asked}", in_words(own)));
        }
        Ok(match others.first() {
            Some(wider) => format!("{subject} itself is not banned, but {} is", wider.subject),
            None => format!("{subject} is not banned"),
        })
    }

    /// What denies this subject although a ban of it was lifted.
    fn still_denied(&self, subject: Subject) -> Result<Option<String>, Refusal> {
        let prefix = subject.prefix();
        if self.exempt.current().covering(subject).is_some() {
            return Ok(None);
        }
        let entries = self.backend.entries_for(prefix.addr())?;
        let mut holding = entries.iter().filter(|e| e.subject.prefix().covers(prefix));
        if let Some(entry) = holding.next() {
            return Ok(Some(format!(
                "{subject} is still denied: {}",
                in_words(entry)
            )));
        }
        let denied = match prefix.is_host() {
            true => self.denies(prefix.addr()),
            false => None,
        };
        Ok(denied.map(|denied| format!("{subject} is still denied: {denied}")))
    }

    /// Takes the bans of a subject out of force, and out of those that wait for
    /// it; returns how many.
    fn lift(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
        why: &str,
    ) -> Result<usize, Refusal> {
        let _none_comes = self.lifting();
        let lifted = self.backend.remove(subject, producer, scope)?;
        self.expiries.remove(&lifted);
        for entry in &lifted {
            self.tell_end(entry.subject, &entry.policy, why);
        }
        self.store
            .remember(lifted.iter().map(|entry| Change::Unban {
                subject,
                policy: entry.policy.clone(),
            }));
        let waiting = self
            .refused
            .lift(Some(subject), producer, scope, &self.alerts);
        Ok(lifted.len() + waiting)
    }

    /// Lifts every ban, or every one of a producer.
    pub fn unban_all(&self, producer: Option<&Producer>) -> Result<Done<Lifted>, Refusal> {
        let (mut entries, waiting) = {
            let _none_comes = self.lifting();
            let entries = self.backend.entries()?;
            if producer.is_none() {
                // Of all that are in force the database has been told.
                self.store.remember([Change::UnbanAll]);
            }
            let waiting = self.refused.lift(None, producer, None, &self.alerts);
            (entries, waiting)
        };
        entries.retain(|entry| producer.is_none_or(|p| *p == entry.policy.producer));
        if let Some(Producer::Jail(jail)) = producer
            && entries.is_empty()
            && waiting == 0
        {
            self.is_a_jail(jail)?;
        }
        entries.sort_unstable_by_key(|entry| entry.subject);
        let mut lifted = waiting;
        let mut saved = self.store.flush();
        for portion in entries.chunks(PORTION) {
            for of_subject in portion.chunk_by(|a, b| a.subject == b.subject) {
                let why = "lifted by hand, with all others";
                lifted += self.lift(of_subject[0].subject, producer, None, why)?;
            }
            saved = saved.and_then(|()| self.store.flush());
        }
        let of = producer.map_or_else(String::new, |producer| format!(" of {producer}"));
        tracing::info!("all {lifted} bans{of} lifted by hand");
        let still = None;
        Ok(Done::new(Lifted { lifted, still }, saved))
    }

    /// Allows a prefix from now on: durable, then in force. `force`: even one
    /// that holds a good part of all addresses.
    pub fn allow(&self, prefix: &str, note: String, force: bool) -> Result<Done<Allowed>, Refusal> {
        let prefix: Prefix = prefix.parse()?;
        if is_too_wide(prefix) && !force {
            let why = too_wide(prefix);
            return Err(Refusal::Malformed(format!("{why}, or --force")));
        }
        if note.len() > MAX_REASON {
            return Err(Refusal::Malformed(format!(
                "the note has {} bytes: at most {MAX_REASON}",
                note.len()
            )));
        }
        let entry = AllowEntry {
            prefix,
            since: Timestamp::now(),
            note,
        };
        {
            let mut allow = self.allow_entries();
            allow.retain(|e| e.prefix != prefix);
            if allow.len() >= MAX_ALLOW {
                return Err(Refusal::Malformed(format!(
                    "the allow list has {MAX_ALLOW} entries already"
                )));
            }
            allow.push(entry.clone());
            self.store.remember([Change::AllowAdd(entry)]);
        }
        let saved = self.store.flush();
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "allowed by hand").about(prefix));
        Ok(Done::new(Allowed { prefix }, saved))
    }

    /// Takes back what `allow` did.
    pub fn disallow(&self, prefix: &str) -> Result<Done<Allowed>, Refusal> {
        let prefix: Prefix = prefix.parse()?;
        {
            let mut allow = self.allow_entries();
            let before = allow.len();
            allow.retain(|e| e.prefix != prefix);
            if allow.len() == before {
                let why = self
                    .exempt
                    .current()
                    .list()
                    .into_iter()
                    .find(|e| e.prefix == prefix);
                return Err(Refusal::NotFound(match why {
                    Some(e) => format!("{prefix} was not allowed by hand: {}", e.reason),
                    None => format!("{prefix} is not on the allow list"),
                }));
            }
            self.store.remember([Change::AllowDel(prefix)]);
        }
        let saved = self.store.flush();
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "no longer allowed").about(prefix));
        Ok(Done::new(Allowed { prefix }, saved))
    }
}

/// The alert of [`is_too_wide`].
const WIDE: &str = "allow-wide";

/// A ban in words.
fn in_words(entry: &Entry) -> String {
    let policy = &entry.policy;
    format!(
        "{} is banned {} on {}",
        entry.subject,
        by(&policy.producer),
        policy.scope
    )
}

/// Who bans, in words.
fn by(producer: &Producer) -> String {
    match producer {
        Producer::Manual => "by hand".to_owned(),
        Producer::Jail(name) => format!("by jail {name}"),
        Producer::Watch(name) => format!("by watch {name}"),
        Producer::List(name) => format!("by list {name}"),
        Producer::Decoy => "by a decoy port".to_owned(),
        Producer::Geofence => "by the geofence".to_owned(),
    }
}

/// Held while a ban comes into force and is remembered.
type Coming<'a> = RwLockReadGuard<'a, ()>;

/// What the backend is told of a ban.
pub fn entry(ban: &Ban, now: &Now) -> Entry {
    Entry {
        subject: ban.subject,
        policy: Arc::new(Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
            action: ban.action,
        }),
        expiry: now.expiry(ban.until),
    }
}

#[cfg(test)]
mod tests;

//! What the daemon does when asked, by a jail or over the control socket: ban,
//! unban, allow, explain. The order of the steps is here: exempt? → durable
//! (when somebody waits for the answer) → in force → told. Knows nothing of
//! HTTP, sources or threads.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{
    AddrError, Ban, Prefix, Producer, Protocol, Reason, Scope, Subject, Until, policy::Ledger,
};
use weir_enforce::{Attachment, Backend, Counter, Entry, Expiry, Policy, Usage};

use crate::{
    alerts::{Alert, Alerts},
    config::{Config, duration_text},
    events::{Event, Events, Kind},
    exempt::{Exempt, Exemption, Gatherer},
    store::{AllowEntry, Change, Detail, Offence, Store, clock::Now},
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

/// A ban as listed: what is enforced, with its explanation.
#[derive(Debug, Clone, Serialize)]
pub struct ListedBan {
    /// Who.
    pub subject: Subject,
    /// Which ports.
    pub scope: Scope,
    /// Who says so.
    pub producer: Producer,
    /// Why.
    pub reason: String,
    /// Since when; unknown if the explanation was lost.
    pub since: Option<Timestamp>,
    /// Until when.
    pub until: Until,
    /// Seconds until then.
    pub remaining_seconds: Option<u64>,
    /// The lines that led to it.
    pub evidence: Vec<String>,
}

/// A part of the bans in force.
#[derive(Debug, Clone, Serialize)]
pub struct BanList {
    /// How many there are in all that were asked for.
    pub total: usize,
    /// As many as asked for.
    pub bans: Vec<ListedBan>,
}

/// The answer to a request that changes something.
#[derive(Debug, Clone, Serialize)]
pub struct Done<T: Serialize> {
    /// What was done.
    #[serde(flatten)]
    pub what: T,
    /// Is it on disk?
    pub saved: bool,
    /// What the administrator should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Why an address is dropped, or not.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    /// The address in question.
    pub address: IpAddr,
    /// Would its packets be dropped?
    pub dropped: bool,
    /// The exit by which they leave, as counted.
    pub verdict: Reason,
    /// The exemption that holds it.
    pub exempt: Option<Exemption>,
    /// Its bans in force.
    pub bans: Vec<ListedBan>,
    /// Its last bans, newest first.
    pub history: Vec<Offence>,
    /// Findings that have not led to a ban yet.
    pub tracked: Vec<Tracked>,
    /// Packets by exit, all sources together.
    pub counters: Vec<Counter>,
}

/// Findings of one jail about one subject.
#[derive(Debug, Clone, Serialize)]
pub struct Tracked {
    /// Which jail.
    pub jail: String,
    /// Findings in its window.
    pub findings: u32,
    /// How many make a ban.
    pub max_retry: u32,
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

/// A jail as shown.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)] // the fields are those of JailConfig and JailCounters
pub struct JailStatus {
    pub name: String,
    pub filter: String,
    pub source: String,
    pub max_retry: u32,
    pub find_time: String,
    pub ban_time: String,
    pub scope: Scope,
    pub lines: u64,
    pub findings: u64,
    pub bans: u64,
    pub bans_in_force: u64,
    pub ignored: u64,
    pub tracked: u64,
    pub forgotten: u64,
}

/// The whole picture.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// This program.
    pub version: &'static str,
    /// Its process.
    pub pid: u32,
    /// Since when it runs.
    pub since: Timestamp,
    /// The same in seconds.
    pub uptime_seconds: u64,
    /// The configuration in force.
    pub config: String,
    /// The name of its pins.
    pub instance: String,
    /// The backend in force.
    pub backend: &'static str,
    /// Does it count only?
    pub observe: bool,
    /// Interfaces and hooks.
    pub attachments: Vec<Attachment>,
    /// How full the table is.
    pub usage: Usage,
    /// Packets by exit.
    pub counters: Vec<Counter>,
    /// Jails.
    pub jails: Vec<JailStatus>,
    /// What is wrong now.
    pub alerts: Vec<Alert>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
    /// Changes that wait for the disk.
    pub unsaved: usize,
    /// How many bans were in force at the start, and where they came from.
    pub restored: String,
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
    allow: Mutex<Vec<AllowEntry>>,
    gatherer: Mutex<Gatherer>,
    jails: RwLock<BTreeMap<String, Arc<JailCounters>>>,
    ledger: RwLock<Option<Arc<Ledger>>>,
    started: (Timestamp, Instant),
    restored: String,
    /// Set when the daemon is to end.
    pub stopping: AtomicBool,
}

impl Service {
    /// Joins the parts.
    pub fn new(
        config: Config,
        backend: Arc<dyn Backend>,
        store: Store,
        alerts: Arc<Alerts>,
        restored: String,
    ) -> Self {
        let allow = store.allow();
        Self {
            config: RwLock::new(Arc::new(config)),
            backend,
            store,
            exempt: Exempt::default(),
            events: Events::default(),
            alerts,
            allow: Mutex::new(allow),
            gatherer: Mutex::default(),
            jails: RwLock::default(),
            ledger: RwLock::default(),
            started: (Timestamp::now(), Instant::now()),
            restored,
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
        *self.config.write().expect("no holder of this lock panics") = config;
    }

    /// Who counts findings now.
    pub fn set_ledger(&self, ledger: Arc<Ledger>) {
        *self.ledger.write().expect("no holder of this lock panics") = Some(ledger);
    }

    /// The ledger, once the workers have started.
    pub fn ledger(&self) -> Option<Arc<Ledger>> {
        self.ledger
            .read()
            .expect("no holder of this lock panics")
            .clone()
    }

    /// Failures of subjects that hold this address and are not banned yet.
    fn tracked(&self, addr: IpAddr) -> Vec<Tracked> {
        let Some(ledger) = self.ledger() else {
            return Vec::new();
        };
        ledger
            .snapshot(Timestamp::now())
            .into_iter()
            .filter(|tracked| tracked.subject.prefix().contains(addr))
            .map(|tracked| Tracked {
                findings: tracked.failures.iter().map(|f| f.attempts).sum(),
                max_retry: ledger
                    .jail(&tracked.jail)
                    .map_or(0, |jail| ledger.jails()[jail].limits.max_retry),
                jail: tracked.jail,
            })
            .collect()
    }

    /// The numbers of this jail; the same for the daemon's whole life.
    pub fn jail_counters(&self, jail: &str) -> Arc<JailCounters> {
        let mut jails = self.jails.write().expect("no holder of this lock panics");
        jails.entry(jail.to_owned()).or_default().clone()
    }

    fn allow_entries(&self) -> MutexGuard<'_, Vec<AllowEntry>> {
        self.allow.lock().expect("no holder of this lock panics")
    }

    /// Reads the exemptions again; tells the backend when they changed.
    pub fn refresh_exemptions(&self) -> Result<(), weir_enforce::Error> {
        let mut gatherer = self.gatherer.lock().expect("no holder of this lock panics");
        let allow = self.allow_entries().clone();
        let list = gatherer.gather(&self.config(), &allow, Instant::now());
        if self.exempt.replace(list) {
            self.backend.set_allow(self.exempt.current().set())?;
        }
        Ok(())
    }

    /// The hot path: bans decided by jails. In force first, then remembered
    /// within a second; nothing here waits for the disk.
    pub fn enforce(&self, bans: Vec<Ban>) {
        if bans.is_empty() {
            return;
        }
        let now = Now::read();
        let exempt = self.exempt.current();
        let bans: Vec<Ban> = bans
            .into_iter()
            .filter(|ban| match exempt.covering(ban.subject) {
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
            })
            .collect();
        let entries: Vec<Entry> = bans.iter().map(|ban| entry(ban, &now)).collect();
        match self.backend.insert(&entries) {
            Ok(inserted) => {
                self.alerts.clear("insert");
                self.evicted(&inserted.evicted);
            }
            Err(error) => {
                // One bad entry must not keep the others out.
                for entry in &entries {
                    if let Err(error) = self.backend.insert(std::slice::from_ref(entry)) {
                        self.alerts
                            .raise("insert", format!("cannot ban {}: {error}", entry.subject));
                    }
                }
                tracing::debug!("bulk insert: {error}");
            }
        }
        for ban in &bans {
            self.events.tell(&Event::ban(ban));
        }
        self.store.remember(
            bans.into_iter()
                .zip(entries)
                .map(|(ban, entry)| Change::Ban {
                    ban,
                    expiry: entry.expiry,
                }),
        );
    }

    fn evicted(&self, evicted: &[Entry]) {
        if evicted.is_empty() {
            return;
        }
        self.alerts.raise(
            "table-full",
            format!(
                "the ban table is at its cap of {}: the bans that end first make room; raise max_bans",
                self.backend.usage().max_bans
            ),
        );
        for entry in evicted {
            self.events.tell(&Event::unban(
                entry.subject,
                &entry.policy.producer,
                &entry.policy.scope,
                "evicted: the table is at its cap",
            ));
        }
        self.store
            .remember(evicted.iter().map(|entry| Change::Unban {
                subject: entry.subject,
                policy: entry.policy.clone(),
            }));
    }

    /// A ban by hand: durable, then in force.
    pub fn ban(
        &self,
        subject: &str,
        length: Option<Duration>,
        scope: Scope,
        reason: String,
    ) -> Result<Done<ListedBan>, Refusal> {
        let subject: Subject = subject.parse()?;
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
            reason,
            since: now.wall,
            until,
            evidence: Vec::new(),
        };
        let entry = entry(&ban, &now);
        let saved = self.store.remember_now(vec![Change::Ban {
            ban: ban.clone(),
            expiry: entry.expiry,
        }]);
        match self.backend.insert(std::slice::from_ref(&entry)) {
            Ok(inserted) => self.evicted(&inserted.evicted),
            Err(error) => {
                self.store.remember([Change::Unban {
                    subject,
                    policy: entry.policy,
                }]);
                return Err(error.into());
            }
        }
        self.events.tell(&Event::ban(&ban));
        let detail = Detail {
            since: ban.since,
            reason: ban.reason,
            evidence: Vec::new(),
        };
        Ok(done(listed(entry, Some(detail), &now), saved))
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
        let matching: Vec<Entry> = self
            .backend
            .entries_for(prefix.addr())?
            .into_iter()
            .filter(|e| {
                e.subject == subject
                    && producer.is_none_or(|p| *p == e.policy.producer)
                    && scope.is_none_or(|s| *s == e.policy.scope)
            })
            .collect();
        if matching.is_empty() {
            let hint = match self.backend.entries_for(prefix.addr())?.first() {
                Some(wider) => format!("{subject} itself is not banned, but {} is", wider.subject),
                None => format!("{subject} is not banned"),
            };
            return Err(Refusal::NotFound(hint));
        }
        let saved = self.store.remember_now(
            matching
                .iter()
                .map(|entry| Change::Unban {
                    subject,
                    policy: entry.policy.clone(),
                })
                .collect(),
        );
        let lifted = self.backend.remove(subject, producer, scope)?;
        if let Some(ledger) = self.ledger() {
            ledger.forgive(subject);
        }
        for entry in &lifted {
            self.events.tell(&Event::unban(
                entry.subject,
                &entry.policy.producer,
                &entry.policy.scope,
                "lifted by hand",
            ));
        }
        Ok(done(
            Lifted {
                lifted: lifted.len(),
            },
            saved,
        ))
    }

    /// Lifts every ban.
    pub fn unban_all(&self) -> Result<Done<Lifted>, Refusal> {
        let saved = self.store.remember_now(vec![Change::UnbanAll]);
        let mut lifted = 0;
        let mut subjects: Vec<_> = self.backend.entries()?.iter().map(|e| e.subject).collect();
        subjects.sort_unstable();
        subjects.dedup();
        for subject in subjects {
            lifted += self.backend.remove(subject, None, None)?.len();
        }
        self.events.tell(&Event::new(
            Kind::Unban,
            Timestamp::now(),
            format!("all {lifted} bans lifted by hand"),
        ));
        Ok(done(Lifted { lifted }, saved))
    }

    /// The bans in force, of one jail or all; at most `limit` of them.
    pub fn bans(&self, jail: Option<&str>, limit: usize) -> Result<BanList, Refusal> {
        let mut entries = self.backend.entries()?;
        if let Some(jail) = jail {
            let producer = Producer::Jail(jail.to_owned());
            entries.retain(|e| e.policy.producer == producer);
        }
        entries.sort_unstable_by(|a, b| (a.subject, &a.policy).cmp(&(b.subject, &b.policy)));
        let total = entries.len();
        entries.truncate(limit);
        Ok(BanList {
            total,
            bans: self.explain(entries),
        })
    }

    fn explain(&self, entries: Vec<Entry>) -> Vec<ListedBan> {
        let now = Now::read();
        let details = self.store.details(&entries);
        entries
            .into_iter()
            .zip(details)
            .map(|(entry, detail)| listed(entry, detail, &now))
            .collect()
    }

    /// Why an address is dropped, or would be on this port.
    pub fn why(&self, addr: IpAddr, port: Option<(Protocol, u16)>) -> Result<Why, Refusal> {
        let addr = addr.to_canonical();
        let entries = self.backend.entries_for(addr)?;
        let exempt = self.exempt.current().lookup(addr);
        let covering = entries.iter().filter(|e| match port {
            None => true,
            Some((Protocol::Any, port)) => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
                .iter()
                .any(|p| e.policy.scope.covers(p.number(), port)),
            Some((protocol, port)) => e.policy.scope.covers(protocol.number(), port),
        });
        let hit = covering
            .map(|e| match e.policy.scope.is_all() {
                true => Reason::BannedAll,
                false => Reason::BannedScope,
            })
            .min();
        let verdict = match hit {
            None if entries.is_empty() => Reason::Pass,
            None => Reason::OtherPort,
            Some(_) if exempt.is_some() => Reason::Allowed,
            Some(_) if self.config().enforcement.observe => Reason::Observed,
            Some(reason) => reason,
        };
        Ok(Why {
            address: addr,
            dropped: verdict.is_drop(),
            verdict,
            exempt,
            bans: self.explain(entries),
            history: self.store.offences(addr, 10),
            tracked: self.tracked(addr),
            counters: self.backend.counters()?,
        })
    }

    /// The allow list: every exemption with its reason.
    pub fn exemptions(&self) -> Vec<Exemption> {
        self.exempt.current().list()
    }

    /// Allows a prefix from now on: durable, then in force.
    pub fn allow(&self, prefix: &str, note: String) -> Result<Done<Allowed>, Refusal> {
        let prefix: Prefix = prefix.parse()?;
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
        }
        let saved = self.store.remember_now(vec![Change::AllowAdd(entry)]);
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "allowed by hand").about(prefix));
        Ok(done(Allowed { prefix }, saved))
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
        }
        let saved = self.store.remember_now(vec![Change::AllowDel(prefix)]);
        self.refresh_exemptions()?;
        self.events
            .tell(&Event::new(Kind::Allow, Timestamp::now(), "no longer allowed").about(prefix));
        Ok(done(Allowed { prefix }, saved))
    }

    /// The jails with their numbers.
    pub fn jails(&self) -> Result<Vec<JailStatus>, Refusal> {
        let mut in_force: BTreeMap<Producer, u64> = BTreeMap::new();
        for entry in self.backend.entries()? {
            *in_force.entry(entry.policy.producer).or_default() += 1;
        }
        let ledger = self.ledger();
        Ok(self
            .config()
            .jails
            .iter()
            .map(|jail| {
                let counters = self.jail_counters(&jail.name);
                let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
                let stats = ledger
                    .as_ref()
                    .and_then(|l| l.stats(l.jail(&jail.name)?))
                    .unwrap_or_default();
                JailStatus {
                    name: jail.name.clone(),
                    filter: jail.filter.clone(),
                    source: jail.source.to_string(),
                    max_retry: jail.limits.max_retry,
                    find_time: duration_text(jail.limits.find_time),
                    ban_time: jail.limits.ban_time.to_string(),
                    scope: jail.scope.clone(),
                    lines: read(&counters.lines),
                    findings: read(&counters.findings),
                    bans: read(&counters.bans),
                    bans_in_force: in_force
                        .get(&Producer::Jail(jail.name.clone()))
                        .copied()
                        .unwrap_or(0),
                    ignored: read(&counters.ignored),
                    tracked: stats.tracked as u64,
                    forgotten: stats.evicted,
                }
            })
            .collect())
    }

    /// The whole picture.
    pub fn status(&self) -> Result<Status, Refusal> {
        let config = self.config();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            since: self.started.0,
            uptime_seconds: self.started.1.elapsed().as_secs(),
            config: config.file.display().to_string(),
            instance: config.enforcement.instance.clone(),
            backend: self.backend.name(),
            observe: config.enforcement.observe,
            attachments: self.backend.attachments(),
            usage: self.backend.usage(),
            counters: self.backend.counters()?,
            jails: self.jails()?,
            alerts: self.alerts.list(),
            warnings: config.warnings.clone(),
            unsaved: self.store.pending(),
            restored: self.restored.clone(),
        })
    }
}

/// How many bans were lifted.
#[derive(Debug, Clone, Serialize)]
pub struct Lifted {
    /// Entries.
    pub lifted: usize,
}

/// Which prefix was allowed, or no longer is.
#[derive(Debug, Clone, Serialize)]
pub struct Allowed {
    /// Who.
    pub prefix: Prefix,
}

fn done<T: Serialize>(what: T, saved: Result<(), crate::store::NotSaved>) -> Done<T> {
    Done {
        what,
        saved: saved.is_ok(),
        warning: saved.err().map(|e| e.to_string()),
    }
}

/// What the backend is told of a ban.
pub fn entry(ban: &Ban, now: &Now) -> Entry {
    Entry {
        subject: ban.subject,
        policy: Policy {
            producer: ban.producer.clone(),
            scope: ban.scope.clone(),
        },
        expiry: now.expiry(ban.until),
    }
}

fn listed(entry: Entry, detail: Option<Detail>, now: &Now) -> ListedBan {
    let (since, reason, evidence) = match detail {
        Some(d) => (Some(d.since), d.reason, d.evidence),
        None => (None, "its explanation was lost".to_owned(), Vec::new()),
    };
    ListedBan {
        subject: entry.subject,
        scope: entry.policy.scope,
        producer: entry.policy.producer,
        reason,
        since,
        until: now.until(entry.expiry),
        remaining_seconds: match entry.expiry {
            Expiry::Never => None,
            Expiry::At(end) => Some(end.0.saturating_sub(now.boottime.0).div_ceil(1_000_000_000)),
        },
        evidence,
    }
}

//! What happens, as one JSON schema for all who want to know: the stream of
//! the API, the log, and the sinks of the configuration. Nobody is waited for:
//! a reader that is too slow is told how many events it missed, a sink has a
//! queue of its own (`sinks`). The log gets the first of each second and a
//! count of the rest (`log_throttle`). What an operator must know is `alerts`.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod alerts;
mod log_throttle;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::broadcast;
use weir_core::{Action, Ban, BanSource, BanTarget, PortSet, Prefix, Reason, Until};

use log_throttle::{Budget, LogThrottle};

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An address did something, once.
    Found,
    /// A ban came into force.
    Ban,
    /// A ban ended: lifted, evicted at `max_bans`, or expired.
    Unban,
    /// The kernel dropped a packet (rate-limited).
    Drop,
    /// The allow list changed, or kept somebody from a ban.
    Allow,
    /// This host has become, or ceased to be, the active one of a virtual router.
    Failover,
    /// Something failed that an administrator should know of.
    Error,
    /// The daemon has started.
    Start,
    /// The daemon is about to end.
    Stop,
    /// What a sink's rate limit held back.
    Summary,
    /// Somebody tries a sink.
    Test,
    /// A pool's real came, went, or was changed, or others take its new flows.
    Pool,
    /// A program was refused a connection, or is not known and was let through.
    App,
}

impl Kind {
    /// All of them, by the words of the configuration and of JSON.
    pub const ALL: [(&str, Self); 13] = [
        ("found", Self::Found),
        ("ban", Self::Ban),
        ("unban", Self::Unban),
        ("drop", Self::Drop),
        ("allow", Self::Allow),
        ("failover", Self::Failover),
        ("error", Self::Error),
        ("start", Self::Start),
        ("stop", Self::Stop),
        ("summary", Self::Summary),
        ("test", Self::Test),
        ("pool", Self::Pool),
        ("app", Self::App),
    ];

    /// Can a sink be told of it by the configuration? Not of what a sink makes by itself.
    pub fn can_be_chosen(self) -> bool {
        !matches!(self, Self::Summary | Self::Test)
    }

    /// The kind's word in JSON and in the log.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// The kind's bit, for sets of kinds.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A packet that was dropped, or would have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// The rule that held the packet.
    pub reason: Reason,
    /// The number of the packet's protocol.
    pub protocol: u8,
    /// The port it was for; 0 where there is none.
    pub port: u16,
    /// The interface's index.
    pub interface: u32,
}

/// A program that has sent, or was to receive, and what was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Actor {
    /// The path of its executable.
    pub path: String,
    /// The SHA-256 of that, as it is mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The SHA-256 of the whole program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<String>,
    /// The number of the process.
    pub pid: u32,
    /// The effective user id of the process.
    pub uid: u32,
    /// The parents of the process, the next one first: number and executable.
    pub parents: Vec<String>,
    /// The control group of the process.
    pub cgroup: String,
    /// The rule that has decided; `default`, `unknown` or `kind of socket` where none has.
    pub rule: String,
    /// `allow` or `deny`.
    pub verdict: &'static str,
    /// `out`: the program has begun it; else `in`.
    pub direction: &'static str,
    /// `tcp`, `udp`, `icmp`, `raw` or `other`.
    pub protocol: &'static str,
    /// The peer's port of what goes out, its own of what comes in.
    pub port: u16,
}

/// An event; absent fields are left out.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// The time of the event.
    pub time: Timestamp,
    /// The kind of the event.
    pub kind: Kind,
    /// The address or network that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Prefix>,
    /// The ports that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<PortSet>,
    /// Whether packets of the ban are dropped or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The reason, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The producer of the finding or ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<BanSource>,
    /// The jail's name, if the producer is a jail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jail: Option<String>,
    /// The name of the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The name of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The country of the subject, by the database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// When the ban expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Reason, protocol and port of the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<Packet>,
    /// The interface that it came in by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The program that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// The lines that led to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

impl Event {
    /// An event about nobody yet.
    pub fn new(kind: Kind, time: Timestamp, reason: impl Into<String>) -> Self {
        Self {
            time,
            kind,
            subject: None,
            scope: None,
            action: None,
            reason: reason.into(),
            producer: None,
            jail: None,
            list: None,
            pool: None,
            country: None,
            until: None,
            packet: None,
            interface: None,
            actor: None,
            evidence: Vec::new(),
        }
    }

    /// About this prefix.
    pub fn about(mut self, subject: Prefix) -> Self {
        self.subject = Some(subject);
        self
    }

    /// Sets the producer of the event.
    pub fn by(mut self, producer: &BanSource) -> Self {
        self.producer = Some(producer.clone());
        match producer {
            BanSource::Jail(name) => self.jail = Some(name.clone()),
            BanSource::List(name) => self.list = Some(name.clone()),
            _ => {}
        }
        self
    }

    /// A ban came into force.
    pub fn ban(ban: &Ban) -> Self {
        let mut event = Self::new(Kind::Ban, ban.since, ban.reason.clone())
            .about(ban.subject.prefix())
            .by(&ban.producer);
        event.scope = Some(ban.scope.clone());
        event.action = Some(ban.action);
        event.until = Some(ban.until);
        event.evidence.clone_from(&ban.evidence);
        event
    }

    /// A ban is no longer in force.
    pub fn unban(subject: BanTarget, producer: &BanSource, scope: &PortSet, why: &str) -> Self {
        let mut event = Self::new(Kind::Unban, Timestamp::now(), why)
            .about(subject.prefix())
            .by(producer);
        event.scope = Some(scope.clone());
        event
    }
}

/// How many events wait for a slow reader.
const BACKLOG: usize = 1024;

/// Lines of evidence that a sink's queue keeps of one event, the last ones.
const QUEUED_EVIDENCE: usize = 10;

/// A listener to events, besides the log and the API's readers.
///
/// Alerts are events and are raised from everywhere: whoever handles an event
/// takes no lock that is held where an alert is raised, and no lock is held
/// while he handles it.
pub trait Listener: Send + Sync {
    /// What his own alerts are about, behind `sink:`: he is not told of those.
    fn name(&self) -> &str;

    /// The kinds of events that he wants, as bits.
    fn kinds(&self) -> u32;

    /// Takes an event of one of these kinds. Nobody waits for him.
    fn offer(&self, event: &Arc<Event>);
}

/// The listeners, exchanged as a whole.
type Listeners = Arc<[Arc<dyn Listener>]>;

/// The bus that delivers events to the API's readers and to the sinks.
pub struct EventBus {
    sender: broadcast::Sender<Arc<str>>,
    listeners: RwLock<Listeners>,
    /// The kinds that some sink wants.
    wanted: AtomicU32,
}

impl EventBus {
    fn listeners(&self) -> Listeners {
        let listeners = self.listeners.read();
        listeners.expect("no holder of this lock panics").clone()
    }

    /// Tells it to all who listen, but not to the sink of this name.
    fn pass_on(&self, event: &Event, except: Option<&str>) {
        if self.wanted.load(Ordering::Relaxed) & event.kind.bit() != 0 {
            let mut event = event.clone();
            let surplus = event.evidence.len().saturating_sub(QUEUED_EVIDENCE);
            event.evidence.drain(..surplus);
            let event = Arc::new(event);
            // Not under the lock: a queue that overflows raises an alert, which
            // is told from here again.
            for listener in self.listeners().iter() {
                if except != Some(listener.name()) {
                    listener.offer(&event);
                }
            }
        }
        if self.sender.receiver_count() == 0 {
            return;
        }
        let Ok(line) = serde_json::to_string(event).map(weir_core::text::escape_json) else {
            return;
        };
        // Fails only when the last reader has just gone.
        let _ = self.sender.send(line.into());
    }

    /// Tells that something is wrong. A sink is not told of itself.
    pub fn alert(&self, about: &str, message: &str) {
        let reason = format!("{about}: {message}");
        let event = Event::new(Kind::Error, Timestamp::now(), reason);
        self.pass_on(&event, about.strip_prefix("sink:"));
    }
}

/// Tells events to whoever listens.
pub struct Events {
    bus: Arc<EventBus>,
    throttle: Mutex<LogThrottle>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            bus: Arc::new(EventBus {
                sender: broadcast::Sender::new(BACKLOG),
                listeners: RwLock::new(Arc::new([])),
                wanted: AtomicU32::new(0),
            }),
            throttle: Mutex::default(),
        }
    }
}

impl Events {
    /// Tells it to all who listen, and the log.
    pub fn tell(&self, event: &Event) {
        self.log(event);
        self.bus.pass_on(event, None);
    }

    /// For those who tell what is in the log already.
    pub fn bus(&self) -> Arc<EventBus> {
        self.bus.clone()
    }

    /// Sets the listeners that are told from now on, and no others.
    pub fn set_listeners(&self, listeners: Listeners) {
        let wanted = listeners.iter().fold(0, |all, one| all | one.kinds());
        let mut told = self.bus.listeners.write();
        **told.as_mut().expect("no holder of this lock panics") = listeners;
        drop(told);
        self.bus.wanted.store(wanted, Ordering::Relaxed);
    }

    fn log(&self, event: &Event) {
        let budget = match event.kind {
            Kind::Ban => Some(Budget::Bans),
            Kind::Unban => Some(Budget::Unbans),
            Kind::Allow => Some(Budget::Allows),
            Kind::App => Some(Budget::Apps),
            Kind::Error => None,
            // The log says so in its own words, or it is no affair of its.
            Kind::Failover | Kind::Start | Kind::Stop | Kind::Summary | Kind::Test | Kind::Pool => {
                return;
            }
            // Who asks for them wants all of them.
            Kind::Found | Kind::Drop if tracing::enabled!(tracing::Level::DEBUG) => None,
            Kind::Found | Kind::Drop => return,
        };
        if let Some(budget) = budget {
            let admitted = self.throttle().admit(budget, Instant::now());
            if let Some(missed) = admitted.missed {
                tracing::info!("{missed}");
            }
            if !admitted.write {
                return;
            }
        }
        let subject = event.subject.map(|s| s.to_string()).unwrap_or_default();
        let reason = weir_core::text::escape(&event.reason);
        let by = match &event.producer {
            Some(producer) => producer.to_string().replace(':', " "),
            None => "-".to_owned(),
        };
        match event.kind {
            Kind::Ban if event.action == Some(Action::Notify) => {
                tracing::info!("ban {subject}, {by}, notifies only: {reason}");
            }
            Kind::Ban => tracing::info!("ban {subject}, {by}: {reason}"),
            Kind::Unban => tracing::info!("unban {subject}, {by}: {reason}"),
            Kind::Error => tracing::error!("{subject} {reason}"),
            Kind::Allow => tracing::info!("allow {subject}: {reason}"),
            Kind::App => tracing::info!("app {reason}"),
            _ => tracing::debug!("{:?} {subject} {reason}", event.kind),
        }
    }

    /// Writes how many lines the log was spared in seconds that are over; for
    /// once a second. `all`: in this one as well.
    pub fn settle(&self, all: bool) {
        let missed = self.throttle().settle(Instant::now(), all);
        for missed in missed {
            tracing::info!("{missed}");
        }
    }

    fn throttle(&self) -> MutexGuard<'_, LogThrottle> {
        self.throttle.lock().expect("no holder of this lock panics")
    }

    /// Whether anybody listens. Then expensive events, findings and drops, are worth
    /// making.
    pub fn has_readers(&self) -> bool {
        let expensive = Kind::Found.bit() | Kind::Drop.bit();
        self.bus.sender.receiver_count() > 0
            || self.bus.wanted.load(Ordering::Relaxed) & expensive != 0
    }

    /// All events from now on, as JSON.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.bus.sender.subscribe()
    }
}

#[cfg(test)]
mod tests;

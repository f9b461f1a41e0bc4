//! What happens, as one JSON schema for every sink: the stream of the API and
//! the log. Nobody is waited for: a reader that is too slow is told how many
//! events it missed. The log gets the first of each second and a count of the
//! rest (`calm`).

mod calm;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::broadcast;
use weir_core::{Ban, Prefix, Producer, Scope, Subject, Until};

use calm::{Budget, Calm};

/// What kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An address did something, once.
    Found,
    /// A ban came into force.
    Ban,
    /// A ban was lifted.
    Unban,
    /// The kernel dropped a packet (rate-limited).
    Drop,
    /// The allow list changed, or kept somebody from a ban.
    Allow,
    /// Something failed.
    Error,
}

/// One event; absent fields are left out.
#[derive(Debug, Clone, Serialize)]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// What.
    pub kind: Kind,
    /// Who.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Prefix>,
    /// Which ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whose finding or ban.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jail: Option<String>,
    /// Which list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// Where the subject is said to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub country: Option<String>,
    /// Until when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
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
            reason: reason.into(),
            jail: None,
            list: None,
            country: None,
            until: None,
            evidence: Vec::new(),
        }
    }

    /// About this prefix.
    pub fn about(mut self, subject: Prefix) -> Self {
        self.subject = Some(subject);
        self
    }

    /// From this producer.
    pub fn by(mut self, producer: &Producer) -> Self {
        match producer {
            Producer::Jail(name) => self.jail = Some(name.clone()),
            Producer::List(name) => self.list = Some(name.clone()),
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
        event.until = Some(ban.until);
        event.evidence.clone_from(&ban.evidence);
        event
    }

    /// A ban is no longer in force.
    pub fn unban(subject: Subject, producer: &Producer, scope: &Scope, why: &str) -> Self {
        let mut event = Self::new(Kind::Unban, Timestamp::now(), why)
            .about(subject.prefix())
            .by(producer);
        event.scope = Some(scope.clone());
        event
    }
}

/// How many events wait for a slow reader.
const BACKLOG: usize = 1024;

/// Tells events to whoever listens.
pub struct Events {
    sender: broadcast::Sender<Arc<str>>,
    calm: Mutex<Calm>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(BACKLOG),
            calm: Mutex::default(),
        }
    }
}

impl Events {
    /// Tells it to all readers, and the log.
    pub fn tell(&self, event: &Event) {
        self.log(event);
        if self.sender.receiver_count() == 0 {
            return;
        }
        let Ok(line) = serde_json::to_string(event) else {
            return;
        };
        // Fails only when the last reader has just gone.
        let _ = self.sender.send(line.into());
    }

    fn log(&self, event: &Event) {
        let budget = match event.kind {
            Kind::Ban => Some(Budget::Bans),
            Kind::Unban => Some(Budget::Unbans),
            Kind::Allow => Some(Budget::Allows),
            Kind::Error => None,
            // Who asks for them wants all of them.
            Kind::Found | Kind::Drop if tracing::enabled!(tracing::Level::DEBUG) => None,
            Kind::Found | Kind::Drop => return,
        };
        if let Some(budget) = budget {
            let admitted = self.calm().admit(budget, Instant::now());
            if let Some(missed) = admitted.missed {
                tracing::info!("{missed}");
            }
            if !admitted.write {
                return;
            }
        }
        let subject = event.subject.map(|s| s.to_string()).unwrap_or_default();
        let reason = crate::escape(&event.reason);
        let jail = event.jail.as_deref().unwrap_or("-");
        match event.kind {
            Kind::Ban => tracing::info!("ban {subject}, jail {jail}: {reason}"),
            Kind::Unban => tracing::info!("unban {subject}, jail {jail}: {reason}"),
            Kind::Error => tracing::error!("{subject} {reason}"),
            Kind::Allow => tracing::info!("allow {subject}: {reason}"),
            Kind::Found | Kind::Drop => tracing::debug!("{:?} {subject} {reason}", event.kind),
        }
    }

    /// Writes how many lines the log was spared in seconds that are over; for
    /// once a second. `all`: in this one as well.
    pub fn settle(&self, all: bool) {
        let missed = self.calm().settle(Instant::now(), all);
        for missed in missed {
            tracing::info!("{missed}");
        }
    }

    fn calm(&self) -> MutexGuard<'_, Calm> {
        self.calm.lock().expect("no holder of this lock panics")
    }

    /// Does anybody listen? Then expensive events are worth making.
    pub fn has_readers(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// All events from now on, as JSON.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.sender.subscribe()
    }
}

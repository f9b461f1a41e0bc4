//! What requests are answered with, as it is written in JSON: the API's
//! documents. Fields here are an interface; how they are found out is
//! `service`'s.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{Action, Prefix, Producer, Reason, Scope, Subject, Until, geo::Place};
use weir_enforce::{Attachment, ClassCounter, Counter, Entry, Expiry, Limit, Usage};

use crate::{
    alerts::Alert,
    classes::{BorderStatus, Listing},
    decoy::DecoyStatus,
    exempt::Exemption,
    sinks::SinkStatus,
    store::{Detail, NotSaved, Offence, clock::Now},
    watch::WatchStatus,
};

/// A ban as listed: what is enforced, with its explanation.
#[derive(Debug, Clone, Serialize)]
pub struct ListedBan {
    /// Who.
    pub subject: Subject,
    /// Which ports.
    pub scope: Scope,
    /// Who says so.
    pub producer: Producer,
    /// What becomes of its packets.
    pub action: Action,
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

impl ListedBan {
    pub(super) fn new(entry: Entry, detail: Option<Detail>, now: &Now) -> Self {
        let (since, reason, evidence) = match detail {
            Some(d) => (Some(d.since), d.reason, d.evidence),
            None => (None, "its explanation was lost".to_owned(), Vec::new()),
        };
        Self {
            subject: entry.subject,
            scope: entry.policy.scope.clone(),
            producer: entry.policy.producer.clone(),
            action: entry.policy.action,
            reason,
            since,
            until: now.until(entry.expiry),
            remaining_seconds: match entry.expiry {
                Expiry::Never => None,
                Expiry::At(end) => {
                    Some(end.0.saturating_sub(now.boottime.0).div_ceil(1_000_000_000))
                }
            },
            evidence,
        }
    }
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

impl<T: Serialize> Done<T> {
    pub(super) fn new(what: T, saved: Result<(), NotSaved>) -> Self {
        Self {
            what,
            saved: saved.is_ok(),
            warning: saved.err().map(|e| e.to_string()),
        }
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
    /// Where it is said to be.
    pub place: Place,
    /// The lists that hold it.
    pub lists: Vec<Listing>,
    /// What lists and geofence say about the first packet of its flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
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
    pub action: Action,
    pub lines: u64,
    pub findings: u64,
    pub bans: u64,
    pub bans_in_force: u64,
    pub ignored: u64,
    pub tracked: u64,
    pub forgotten: u64,
}

/// A ring as its workers see it, since the start or the last reload.
#[derive(Debug, Clone, Serialize)]
pub struct RingStatus {
    /// Its directory.
    pub ring: String,
    /// Threads that read it.
    pub workers: usize,
    /// Segments being read.
    pub segments: usize,
    /// Files that are refused: no segments, or of a user who is not trusted.
    pub unreadable: usize,
    /// Segments found bad while they were read.
    pub bad: u64,
    /// Records read.
    pub records: u64,
    /// Records lost, overwritten or dropped.
    pub lost: u64,
    /// Their bytes.
    pub lost_bytes: u64,
}

/// How full the table is, and what it takes.
#[derive(Debug, Clone, Serialize)]
pub struct Filled {
    /// Entries.
    #[serde(flatten)]
    pub entries: Usage,
    /// Kernel memory, where the kernel tells it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_bytes: Option<u64>,
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
    /// What it cannot do.
    pub limits: Vec<Limit>,
    /// Does it count only?
    pub observe: bool,
    /// The decoy ports, if there are any.
    pub decoy: Option<DecoyStatus>,
    /// Interfaces and hooks.
    pub attachments: Vec<Attachment>,
    /// How full the table is.
    pub usage: Filled,
    /// Packets by exit.
    pub counters: Vec<Counter>,
    /// Geofence and lists, if there are any.
    pub border: Option<BorderStatus>,
    /// What they dropped, by list and country.
    pub dropped: Vec<ClassCounter>,
    /// Jails.
    pub jails: Vec<JailStatus>,
    /// Rings being read.
    pub rings: Vec<RingStatus>,
    /// Watches.
    pub watches: Vec<WatchStatus>,
    /// Sinks.
    pub sinks: Vec<SinkStatus>,
    /// What is wrong now.
    pub alerts: Vec<Alert>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<String>,
    /// Changes that wait for the disk.
    pub unsaved: usize,
    /// Changes that found no room while the disk could not be written.
    pub unsaved_forgotten: u64,
    /// How many bans were in force at the start, and where they came from.
    pub restored: String,
}

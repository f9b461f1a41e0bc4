//! Desired versus actual state. [`Backend`] is the one trait behind which a
//! decision is carried out; one file per backend. What a ban is *for* (its
//! reason, its evidence) is the daemon's to remember: a backend holds subject,
//! policy and expiry, and outlives the daemon where the kernel lets it.
#![deny(missing_docs)]

mod book;
pub mod calibration;
mod choice;
mod claim;
mod command;
mod dry_run;
mod entry;
mod error;
mod firewall;
pub mod hooks;
pub mod ipset;
pub mod kernel;
pub mod nft;
mod span;
pub mod switch;

pub use choice::{Choice, Feature, Limit};
pub use dry_run::DryRun;
pub use entry::{BootNanos, Entry, Expiry, Policy};
pub use error::Error;
pub use hooks::attachment::Attachment;
pub use weir_bpf::lock::is_stopped;

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use weir_core::{
    PrefixSet, Producer, Reason, Scope, Subject,
    class::Classes,
    decoy::{DecoyPorts, Scanner},
    geo::Country,
};

/// What may change while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names of the interfaces to protect.
    pub interfaces: Vec<String>,
    /// The backend, and its hook.
    pub backend: Choice,
    /// What `auto` goes by.
    pub advice: calibration::Advice,
    /// Bans at most, over all producers.
    pub max_bans: usize,
    /// Count what would be dropped, and pass it.
    pub observe: bool,
}

/// The outcome of [`Backend::insert`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// Entries that were not there before.
    pub new: usize,
    /// Entries whose (subject, policy) was there: their expiry was replaced.
    pub replaced: usize,
    /// Entries of the same producer that had to go because the table is at
    /// its cap, oldest-expiring first.
    pub evicted: Vec<Entry>,
}

/// An insertion that ended early, and what it had done until then: bans that
/// were evicted are gone whatever came after.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct InsertError {
    /// As if it had ended there.
    pub done: Inserted,
    /// Why it ended.
    pub error: Error,
}

impl From<InsertError> for Error {
    fn from(ended: InsertError) -> Self {
        ended.error
    }
}

impl Inserted {
    /// The outcome of an insertion that did this.
    fn with(self, outcome: Result<(), Error>) -> Result<Self, InsertError> {
        match outcome {
            Ok(()) => Ok(self),
            Err(error) => Err(InsertError { done: self, error }),
        }
    }

    fn count(&mut self, put: book::Put) {
        match put.replaced {
            true => self.replaced += 1,
            false => self.new += 1,
        }
        self.evicted.extend(put.evicted);
    }
}

/// Packets and bytes that left through one reason since the counters were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Which exit.
    pub reason: Reason,
    /// Packets, over all CPUs and interfaces.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// Packets that a list dropped, or the geofence because of a country.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassCounter {
    /// The list; the geofence otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// The country, if the geofence knew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub country: Option<Country>,
    /// Packets in both directions, over all CPUs and interfaces.
    pub packets: u64,
    /// Their bytes, from the Ethernet header on.
    pub bytes: u64,
}

/// How full the backend is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Entries in force, without those of `wide`.
    pub bans: usize,
    /// The configured cap.
    pub max_bans: usize,
    /// Entries in force for prefixes other than single addresses, IPv6 /64 and
    /// the configured IPv4 length.
    pub wide: usize,
    /// Their cap.
    pub max_wide: usize,
    /// Entries evicted at the cap since the start.
    pub evicted: u64,
    /// Entries in the overflow area.
    pub overflow: usize,
    /// Generation number of the tables.
    pub generation: u64,
}

/// A packet that the kernel thought worth telling; rate-limited per reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PacketEvent {
    /// When, CLOCK_BOOTTIME in nanoseconds, jiffy resolution.
    pub at: BootNanos,
    /// Why it left.
    pub reason: Reason,
    /// Its source address.
    pub source: std::net::IpAddr,
    /// Interface index it came in on.
    pub ifindex: u32,
    /// Transport protocol number, 0 when not parsed.
    pub protocol: u8,
    /// Destination port, 0 when not parsed.
    pub port: u16,
    /// Of a SYN to a decoy port: what sent it, when that shows.
    pub scanner: Option<Scanner>,
}

/// Ports that nobody serves, and where.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Decoys {
    /// Which.
    pub ports: DecoyPorts,
    /// The addresses of this host: what goes elsewhere is not judged.
    pub own: Vec<std::net::IpAddr>,
}

pub use weir_bpf::decoy::DecoyCounts;

/// Carries out decisions. All methods may be called from several threads at
/// once; `insert` never blocks on the others, but for prefixes counted as
/// [`Usage::wide`].
pub trait Backend: Send + Sync {
    /// The configuration's word for it: `xdp`, `tcx`, `dry-run`, …
    fn name(&self) -> &'static str;

    /// What this backend cannot do.
    fn limits(&self) -> &'static [Limit] {
        &[]
    }

    /// Puts entries into force; the same (subject, policy) again replaces the
    /// expiry, and the policy's twin goes. On an error those before the named one are in force, and of a
    /// large number perhaps others: they are inserted by several threads.
    fn insert(&self, entries: &[Entry]) -> Result<Inserted, InsertError>;

    /// Lifts the bans of exactly this subject (of one producer and scope when
    /// named); returns what was lifted.
    fn remove(
        &self,
        subject: Subject,
        producer: Option<&Producer>,
        scope: Option<&Scope>,
    ) -> Result<Vec<Entry>, Error>;

    /// What is in force now (unexpired), in no order; at most one pass over the table.
    fn entries(&self) -> Result<Vec<Entry>, Error>;

    /// The entries whose subject holds this address.
    fn entries_for(&self, addr: std::net::IpAddr) -> Result<Vec<Entry>, Error>;

    /// Replaces the allow list, which wins over every ban.
    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error>;

    /// Replaces geofence and lists as a whole: each packet is judged by the old
    /// ones or by the new. Nothing to judge costs nothing.
    ///
    /// # Errors
    /// The kernel has no room or no egress hook; the old ones stay.
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error>;

    /// Does it enforce any, perhaps since an earlier daemon?
    fn has_classes(&self) -> bool;

    /// What lists and geofence dropped, those that dropped something.
    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error>;

    /// Replaces the decoy ports. None: the packet path is without them.
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error>;

    /// What decoy ports answered.
    fn decoy_counts(&self) -> Result<DecoyCounts, Error>;

    /// Counters of every reason, in [`Reason::ALL`] order.
    fn counters(&self) -> Result<Vec<Counter>, Error>;

    /// Puts the packet path in place on the configured interfaces; links of an
    /// earlier daemon are taken over. Call it once the bans and the allow list
    /// are in: fill first, attach last.
    ///
    /// # Errors
    /// An interface where nothing can attach; those before it stay attached.
    fn attach(&self) -> Result<(), Error>;

    /// Takes on changed settings without a moment unenforced.
    fn reconfigure(&self, settings: &Settings) -> Result<(), Error>;

    /// Entries for which a change of settings had no room since this was last
    /// asked: they are no longer in force.
    fn take_evicted(&self) -> Vec<Entry> {
        Vec::new()
    }

    /// Interfaces and hooks.
    fn attachments(&self) -> Vec<Attachment>;

    /// How full it is.
    fn usage(&self) -> Usage;

    /// Kernel memory of the tables, bytes; `None` where the kernel does not tell.
    /// For those who ask: `ipset` is run for it.
    fn memory(&self) -> Option<u64> {
        None
    }

    /// Housekeeping, called every second or so by one thread: clears expired
    /// entries, rebuilds filters, grows, re-attaches interfaces that came
    /// back, corrects expiries after a suspend.
    fn maintain(&self) -> Result<(), Error>;

    /// Waits up to `timeout` for packet events and hands them over; returns how many.
    fn poll_events(
        &self,
        timeout: Duration,
        each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error>;
}

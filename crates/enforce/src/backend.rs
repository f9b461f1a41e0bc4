//! The traits behind which decisions are carried out: [`Backend`] is what every
//! backend can, bans above all; beside it is what only some can, each a trait that
//! a backend offers or not.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use weir_bpf::{
    balance::{CountedReal, KnownReal, PoolRules, Real, RealCount, ServiceCount, VirtualService},
    decoy::{DecoyCounts, TarpitCounts, TarpitLink},
};
use weir_core::{
    BanSource, BanTarget, PortSet, PrefixSet, Reason,
    address_class::Classes,
    decoy::{DecoyPorts, Scanner},
    geo::Country,
};

use crate::{
    backend_kind::Limit,
    entry::{BootNanos, Entry},
    error::Error,
    hooks::attachment::Attachment,
    settings::Settings,
};

/// The outcome of [`Backend::insert`].
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct InsertSummary {
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
    /// Counts of the entries before the failure, as if the insertion had ended there.
    pub done: InsertSummary,
    /// The error that ended the insertion.
    pub error: Error,
}

impl From<InsertError> for Error {
    fn from(ended: InsertError) -> Self {
        ended.error
    }
}

impl InsertSummary {
    /// The outcome of an insertion that did this.
    pub(crate) fn with(self, outcome: Result<(), Error>) -> Result<Self, InsertError> {
        match outcome {
            Ok(()) => Ok(self),
            Err(error) => Err(InsertError { done: self, error }),
        }
    }
}

/// Packets and bytes that left through one reason since the counters were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// The reason under which they were counted.
    pub reason: Reason,
    /// Packets, over all CPUs and interfaces.
    pub packets: u64,
    /// Bytes of these packets, from the Ethernet header on.
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
    /// Bytes of these packets, from the Ethernet header on.
    pub bytes: u64,
}

/// Entries and caps of the backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Entries in force, without those of `prefix_bans`.
    pub bans: usize,
    /// The configured cap.
    pub max_bans: usize,
    /// Entries in force for prefixes other than single addresses, IPv6 /64 and
    /// the configured IPv4 length.
    pub prefix_bans: usize,
    /// The cap on entries of `prefix_bans`.
    pub max_prefix_bans: usize,
    /// Entries of `prefix_bans` that are not manual.
    pub shared_prefix_bans: usize,
    /// The cap on entries that are not manual: the rest is kept for manual ones.
    pub max_shared_prefix_bans: usize,
    /// Bans that deny no packet, and are in no table of the kernel's: at most `max_bans`,
    /// and beside them `max_prefix_bans` of prefixes as in `prefix_bans`.
    pub notified: usize,
    /// Entries evicted at the cap since the start.
    pub evicted: u64,
    /// Entries in the overflow area.
    pub overflow: usize,
    /// Generation number of the tables.
    pub generation: u64,
}

/// How often something was done that takes long, over the whole table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Passes over the table for bans that are over, so that a new one has room.
    pub expiry_passes: u64,
    /// Attempts to make larger tables, for want of room.
    pub growths: u64,
    /// Passes over the table for policy numbers that nothing has any more.
    pub policy_scans: u64,
    /// Passes over the bans of prefixes of any length.
    pub prefix_passes: u64,
}

/// A packet that the kernel thought worth telling; rate-limited per reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PacketEvent {
    /// The time, CLOCK_BOOTTIME in nanoseconds, jiffy resolution.
    pub at: BootNanos,
    /// The exit that the packet took.
    pub reason: Reason,
    /// The packet's source address.
    pub source: IpAddr,
    /// Interface index it came in on.
    pub ifindex: u32,
    /// Transport protocol number, 0 when not parsed.
    pub protocol: u8,
    /// Destination port, 0 when not parsed.
    pub port: u16,
    /// The scanner that sent a SYN to a decoy port, when that shows.
    pub scanner: Option<Scanner>,
}

/// Ports that nobody serves, and where.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Decoys {
    /// Ports that answer with a cookie and no more.
    pub ports: DecoyPorts,
    /// Ports that hold whoever connects: none of `ports`.
    pub tarpit: DecoyPorts,
    /// Prefixes whose every address does so on all TCP ports, but for those that
    /// somebody has.
    pub addresses: PrefixSet,
    /// Prefixes whose addresses do so once nobody has answered for them for
    /// `dark_after` seconds.
    pub dark: PrefixSet,
    /// Not 0 where `dark` names any.
    pub dark_after: u32,
    /// The addresses of this host: what goes elsewhere is not judged.
    pub own: Vec<IpAddr>,
}

impl Decoys {
    /// Is there no port of either kind, and no such address?
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && !self.has_tarpits()
    }

    /// Is there a port or an address that holds whoever connects?
    pub fn has_tarpits(&self) -> bool {
        !self.tarpit.is_empty() || self.has_tarpit_addresses()
    }

    /// Whether there is an address that holds whoever connects.
    pub fn has_tarpit_addresses(&self) -> bool {
        !self.addresses.is_empty() || !self.dark.is_empty()
    }
}

/// The interfaces of this host and the live neighbours on their segments, at a moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct NeighbourSnapshot {
    /// The host's interfaces, by index: those on which addresses of tarpits are answered
    /// for.
    pub links: BTreeMap<u32, TarpitLink>,
    /// Addresses that somebody has, as the kernel's neighbour table says.
    pub alive: Vec<IpAddr>,
    /// The moment, in seconds of CLOCK_BOOTTIME.
    pub seconds: u32,
}

/// Services, rings and reals of the load balancer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Balance {
    /// Virtual addresses with their ports.
    pub services: Vec<VirtualService>,
    /// For each pool the numbers of the reals that its slots belong to; `None`: nobody.
    pub rings: Vec<Vec<Option<u16>>>,
    /// Reals by number; `None`: it takes nothing now.
    pub reals: Vec<Option<Real>>,
    /// The rules of each pool, by number.
    pub pools: Vec<PoolRules>,
}

impl Balance {
    /// Does any packet leave in an outer one?
    pub fn has_tunnels(&self) -> bool {
        self.reals
            .iter()
            .flatten()
            .any(|real| real.tunnel.is_some())
    }
}

/// Carries out decisions. All methods may be called from several threads at
/// once; `insert` never blocks on the others, but for prefixes counted as
/// [`Usage::prefix_bans`].
pub trait Backend: Send + Sync {
    /// The configuration's word for it: `xdp`, `tcx`, `dry-run`, …
    fn name(&self) -> &'static str;

    /// Features that the backend lacks.
    fn limits(&self) -> &'static [Limit] {
        &[]
    }

    /// Puts entries into force; the same (subject, policy) again replaces the
    /// expiry, and the one with another action goes. On an error those before the
    /// named one are in force, and of a large number perhaps others: they are inserted
    /// by several threads.
    fn insert(&self, entries: &[Entry]) -> Result<InsertSummary, InsertError>;

    /// Lifts the bans of exactly this subject (of one producer and scope when
    /// named); returns what was lifted.
    fn remove(
        &self,
        subject: BanTarget,
        producer: Option<&BanSource>,
        scope: Option<&PortSet>,
    ) -> Result<Vec<Entry>, Error>;

    /// What is in force now (unexpired), in no order; at most one pass over the table.
    fn entries(&self) -> Result<Vec<Entry>, Error>;

    /// How many bans each producer has in force; at most one pass over the table.
    fn bans_by_producer(&self) -> Result<BTreeMap<BanSource, u64>, Error> {
        let mut bans = BTreeMap::new();
        for entry in self.entries()? {
            *bans.entry(entry.policy.producer.clone()).or_default() += 1;
        }
        Ok(bans)
    }

    /// The entries whose subject holds this address.
    fn entries_for(&self, addr: IpAddr) -> Result<Vec<Entry>, Error>;

    /// Replaces the allow list, which wins over every ban.
    fn set_allow(&self, allow: &PrefixSet) -> Result<(), Error>;

    /// Geofence and lists, of a backend that judges by them.
    fn classes(&self) -> Option<&dyn ClassFilter> {
        None
    }

    /// Decoy ports, of a backend that answers at them.
    fn decoys(&self) -> Option<&dyn DecoyResponder> {
        None
    }

    /// Load balancing, of a backend that forwards.
    fn balancer(&self) -> Option<&dyn Forwarder> {
        None
    }

    /// Reports of single packets, of a backend that makes them.
    fn packet_events(&self) -> Option<&dyn PacketEvents> {
        None
    }

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

    /// Entries and caps of the backend now.
    fn usage(&self) -> Usage;

    /// Kernel memory of the tables, bytes; `None` where the kernel does not tell.
    /// For those who ask: `ipset` is run for it.
    fn memory(&self) -> Option<u64> {
        None
    }

    /// How often the table was gone over, of a backend with a table of its own.
    fn table_work(&self) -> Option<Work> {
        None
    }

    /// Housekeeping, called every second or so by one thread: clears expired
    /// entries, rebuilds filters, grows, re-attaches interfaces that came
    /// back, corrects expiries after a suspend.
    fn maintain(&self) -> Result<(), Error>;
}

/// Judges packets by the class of their address: geofence and lists.
pub trait ClassFilter {
    /// Replaces geofence and lists as a whole: each packet is judged by the old
    /// ones or by the new. Nothing to judge costs nothing.
    ///
    /// # Errors
    /// The kernel has no room or no egress hook, or the backend lacks what these
    /// need; the old ones stay.
    fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), Error>;

    /// Whether the backend enforces any classes, perhaps since an earlier daemon.
    fn has_classes(&self) -> bool;

    /// What lists and geofence dropped, those that dropped something.
    fn class_counts(&self) -> Result<Vec<ClassCounter>, Error>;
}

/// Answers in place of the host at ports that nobody serves.
pub trait DecoyResponder {
    /// Replaces the decoy ports. None: the packet path is without them.
    ///
    /// # Errors
    /// The kernel, or the hook in force, cannot answer.
    fn set_decoys(&self, decoys: &Decoys) -> Result<(), Error>;

    /// Tells the live neighbours of tarpit addresses; nothing is answered for these
    /// addresses before.
    ///
    /// # Errors
    /// The kernel's.
    fn set_segment(&self, segment: &NeighbourSnapshot) -> Result<(), Error>;

    /// Counters of the decoy ports.
    fn decoy_counts(&self) -> Result<DecoyCounts, Error>;

    /// Counters of the tarpit ports.
    fn tarpit_counts(&self) -> Result<TarpitCounts, Error>;
}

/// Sends what is for virtual addresses to the reals behind them.
pub trait Forwarder {
    /// Replaces who serves which virtual address. Nobody: the packet path is without.
    ///
    /// # Errors
    /// The kernel, or the hook in force, cannot forward.
    fn set_balance(&self, balance: &Balance) -> Result<(), Error>;

    /// The flows that find room and stay with their real; `None`: there is no table of them.
    fn flows(&self) -> Option<u32>;

    /// The reals that the kernel has, by [`weir_bpf::balance::real_id`]: those of an earlier
    /// daemon, too.
    ///
    /// # Errors
    /// The kernel does not tell.
    fn known_reals(&self) -> Result<HashMap<u64, KnownReal>, Error>;

    /// What was sent to the real of this number.
    fn real_count(&self, number: u32) -> Result<RealCount, Error>;

    /// Counts the live flows of these reals anew, in the table of flows: new flows of pools
    /// by least connections go by it. Reads all of the table.
    ///
    /// # Errors
    /// The kernel does not hand the table out.
    fn count_active_flows(&self, reals: &[CountedReal]) -> Result<(), Error>;

    /// The live flows of the real of this number, if they are counted.
    fn active_flows(&self, number: u32) -> u64;

    /// What came for the service of this number.
    fn service_count(&self, number: u32) -> Result<ServiceCount, Error>;

    /// Begins to count anew: these numbers are others' from now on.
    fn forget_balance_counts(&self, reals: &[u32], services: &[u32]) -> Result<(), Error>;
}

/// Tells of single packets.
pub trait PacketEvents {
    /// Waits up to `timeout` for packet events and hands them over; returns how many.
    fn poll_events(
        &self,
        timeout: Duration,
        each: &mut dyn FnMut(PacketEvent),
    ) -> Result<usize, Error>;
}

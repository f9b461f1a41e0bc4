//! What is counted, by services and by reals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that many threads change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The counter's value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// Counts one more.
    pub fn one(&self) {
        self.add(1);
    }

    /// Counts one less.
    pub fn take_one(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Adds one unless it is at `most`.
    pub(crate) fn one_below(&self, most: u64) -> bool {
        let next = |now: u64| (now < most).then_some(now + 1);
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

/// Counters of one virtual address with a port.
#[derive(Debug, Default)]
pub struct ServiceCounters {
    /// Flows that a real was found for.
    pub flows: Counter,
    /// Bytes from clients to reals.
    pub bytes_in: Counter,
    /// Bytes from reals to clients.
    pub bytes_out: Counter,
    /// Connections, and datagrams, of clients that the [`crate::Chooser`] does not admit.
    pub denied: Counter,
    /// Flows refused because no real takes any.
    pub no_real: Counter,
    /// Flows refused because the group has as many as it may.
    pub refused_total: Counter,
    /// Flows refused because their client has as many as it may.
    pub refused_client: Counter,
    /// Connections for which no real that was tried could be reached.
    pub unreachable: Counter,
    /// Connections ended because nothing was sent for too long.
    pub idle: Counter,
    /// Datagram flows ended early because the group had as many as it may.
    pub evicted: Counter,
    /// Times that accepting stopped for a moment for want of descriptors or memory.
    pub out_of_descriptors: Counter,
}

/// Counters of one real.
#[derive(Debug, Default)]
pub struct RealCounters {
    /// Flows that it has now.
    pub active: Counter,
    /// Flows that it got.
    pub flows: Counter,
    /// Bytes to it.
    pub bytes_in: Counter,
    /// Bytes from it.
    pub bytes_out: Counter,
    /// Connections that it refused, or did not answer in time.
    pub failed: Counter,
    /// Datagrams that it answered by "port unreachable".
    pub port_unreachable: Counter,
}

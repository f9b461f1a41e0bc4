//! The features that only some backends have; which one lacks what, `backend_kind.rs` says.

use serde::Serialize;

/// A feature that a backend may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Answering on decoy ports.
    Decoys,
    /// Load balancing by direct server return.
    Balance,
    /// Reals of pools beyond a router, in outer packets.
    Tunnels,
    /// Dropping by country and continent.
    Geofence,
    /// Lists and rules about packets on their way out.
    Outbound,
    /// Bans that reject.
    Reject,
    /// A report of single packets (`weir events`, `drop`).
    PacketEvents,
    /// Every counter of `weir status`.
    Counters,
    /// All that comes in by an interface, also what its stack never sees.
    Devices,
    /// Ends of bans to the jiffy, also after the machine was suspended.
    Clock,
}

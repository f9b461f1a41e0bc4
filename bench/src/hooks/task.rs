//! What a row is given (where to drop, and whom), and what it gives back.

use std::{net::IpAddr, sync::Arc};

use weir_bpf::generator::Flood;

use super::flood_target::FloodTarget;

/// As many bans as rows with a table have.
pub const BANS: u32 = 1 << 17;

/// Which sources a row's packets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sources {
    /// The rule is the paper's and names none: as many as there may be.
    Any,
    /// All of a table of [`BANS`], in turn.
    Banned,
    /// The one that is banned.
    One,
}

impl Sources {
    /// The number of source addresses; `any` where the rule names none.
    pub fn count(self, any: u32) -> u32 {
        match self {
            Self::Any => any,
            Self::Banned => BANS,
            Self::One => 1,
        }
    }
}

/// A row's rules or programs in the kernel; dropping the value removes them.
pub trait Running: Send {
    /// Packets it has dropped so far, by its own counter.
    fn dropped(&mut self) -> anyhow::Result<u64>;

    /// Seconds of CPU that a program of its own has used so far.
    fn cpu(&self) -> f64 {
        0.0
    }
}

/// The host and the sources that a row drops.
pub struct Task {
    /// The host whose interface is flooded.
    pub place: Arc<FloodTarget>,
    /// Makes the addresses that are banned.
    pub flood: Flood,
    /// The sources that the row drops.
    pub sources: Sources,
}

impl Task {
    /// The addresses to ban, if the row bans by source; each once: of so many IPv4
    /// addresses the generator makes a few twice.
    pub fn banned(&self) -> Vec<IpAddr> {
        let count = match self.sources {
            Sources::Any => 0,
            sources => sources.count(0),
        };
        let mut banned: Vec<IpAddr> = (0..count).map(|n| self.flood.source(n)).collect();
        banned.sort_unstable();
        banned.dedup();
        banned
    }

    /// Whether the flood is of IPv4.
    pub fn ipv4(&self) -> bool {
        self.place.host.is_ipv4()
    }
}

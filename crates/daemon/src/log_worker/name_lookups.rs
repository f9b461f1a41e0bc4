//! The looking up of host names, together with the parts of the daemon that it
//! touches.

use std::{
    io,
    sync::{Arc, RwLockWriteGuard},
};

use jiff::Timestamp;
use weir_core::{
    Ban,
    detect::{Finding, HostName},
    policy::Ledger,
};

use super::{
    Handles,
    host_names::{Counting, HostNames, Jails},
    running::Running,
};
use crate::judge::Judge;

/// Host names of one daemon.
pub(super) struct NameLookups {
    names: Arc<HostNames>,
    daemon: Arc<Handles>,
}

impl NameLookups {
    /// No thread looks any up yet.
    pub fn new(daemon: Handles) -> Self {
        Self {
            names: Arc::default(),
            daemon: Arc::new(daemon),
        }
    }

    /// Makes the threads, once a jail needs them.
    pub(super) fn start<'a>(&self, jails: impl IntoIterator<Item = &'a Running>) -> io::Result<()> {
        self.names.start(&self.daemon, jails)
    }

    /// Held while the jails change: nothing is counted meanwhile.
    pub(super) fn jails(&self) -> RwLockWriteGuard<'_, Jails> {
        self.names.jails()
    }

    /// Counts a failure of a host whose addresses are known, and returns the bans;
    /// another waits for them.
    pub(super) fn count(
        &self,
        ledger: &Ledger,
        jail: &Running,
        (name, finding): (&HostName, &Finding),
        line: &[u8],
        now: Timestamp,
    ) -> Vec<Ban> {
        let daemon = &self.daemon;
        let Some(addresses) = self.names.ask(daemon, jail, name, finding, line) else {
            return Vec::new();
        };
        let count = Counting {
            daemon,
            ledger,
            jail,
            now,
        };
        let mut judge = Judge::new(&daemon.exempt);
        count.each(&mut judge, (name, &addresses), finding, line)
    }

    /// The daemon ends: waits a moment for answers, and says what has none.
    pub(super) fn finish(&self) {
        self.names.finish(&self.daemon);
    }
}

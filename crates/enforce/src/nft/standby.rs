//! A second table that drops what lists and geofence deny while the first one is
//! made anew: in the transaction that does so, packets meet its rules before
//! their maps are filled. It stands right behind the first one, is made before
//! that transaction and goes after it; what a killed daemon left of it goes with
//! the next start.

use std::io;

use weir_core::Reason;

use super::{exists, inside::Inside, table::Table, wire::Batch};
use crate::firewall;

/// The table that stands by for this one.
pub(super) fn of(table: &Table) -> Table {
    table.beside("standby")
}

/// Does the counter with this name count what lists or geofence dropped?
fn counts_classes(name: &str) -> bool {
    let reasons = [
        Reason::Listed,
        Reason::Fenced,
        Reason::ListedOut,
        Reason::FencedOut,
    ];
    name.starts_with("list-")
        || name.starts_with("country-")
        || reasons.iter().any(|reason| reason.name() == name)
}

impl Inside {
    /// Takes the table that stood by away, and keeps what it counted: packets
    /// that it dropped had passed the first table, where it counted others.
    pub(super) fn stand_down(&mut self, table: &Table) -> io::Result<()> {
        let standby = of(table);
        if !exists(&self.socket, &standby)? {
            return Ok(());
        }
        for (name, (packets, bytes)) in self.read_counters(&standby)? {
            if counts_classes(&name) {
                firewall::add(&mut self.counted, &name, packets, bytes);
            }
        }
        let mut batch = Batch::new();
        standby.delete(&mut batch);
        self.socket.commit(batch)
    }
}

//! A second table that drops what the first one does while that is made anew.
//! Prerouting chains of one priority are asked newest first, so a packet that is
//! between the two while nf_tables changes over meets the new chain without its
//! rules and the old one without its rules, and passes: seven times in 300
//! starts on a machine with more work than processors. The second table stands
//! right behind both, is made before the change and goes after it; what a killed
//! daemon left of it goes with the next start. Where the first one cannot be led to
//! once it is filled, the second one is all that enforces, and follows each change.

use std::io;

use weir_core::Reason;

use super::{
    Nft, exists,
    kernel_state::KernelState,
    ruleset::{self, Ruleset},
    socket::Nftables,
    table::Table,
    wire::{Batch, MessageKind},
};
use crate::firewall::{self, Counted, Firewall};

/// The table that stands by for this one.
pub(super) fn of(table: &Table) -> Table {
    table.beside("standby")
}

/// Do packets come to the table? It is filled before they do.
pub(super) fn is_led_to(socket: &Nftables, table: &Table) -> io::Result<bool> {
    let chain = |to: &mut Batch| {
        to.text(1, &table.0);
        to.text(3, "in");
    };
    Ok(socket
        .get(MessageKind::GetChain, chain, |_| Some(()))?
        .is_some())
}

/// Does the counter with this name count drops?
fn counts_drops(name: &str) -> bool {
    let others = [
        Reason::Pass,
        Reason::Allowed,
        Reason::Essential,
        Reason::Reply,
        Reason::Observed,
    ];
    others.iter().all(|reason| reason.name() != name)
}

impl Nft {
    /// Writes the table that stands by anew, in one transaction: the first one is
    /// filled and not led to, so no third one stands by meanwhile. What it has
    /// counted it counts on from.
    pub(super) fn refresh_standby(
        &self,
        kernel: &mut KernelState,
        interfaces: &[String],
    ) -> io::Result<()> {
        let standby = of(&self.table);
        let mut counted = Counted::new();
        for (name, (packets, bytes)) in kernel.read_counters(&standby)? {
            firewall::add(&mut counted, &name, packets, bytes);
        }
        let [mut fill, lead] = {
            let desired = self.desired();
            let all = ruleset::Desired {
                bans: &desired.bans,
                allow: &desired.allow,
                class_rules: &kernel.class_rules,
                interfaces,
                observe: desired.settings.observe,
                counted: &counted,
            };
            Ruleset::build_standby(&standby, kernel.capabilities, true, &all)
        };
        fill.append(&lead);
        kernel.socket.commit(fill)?;
        kernel.standby_is_old = false;
        Ok(())
    }
}

impl KernelState {
    /// Takes the table that stood by away, and keeps what it counted: packets
    /// that it dropped had passed the first table, where it counted others.
    pub(super) fn stand_down(&mut self, table: &Table) -> io::Result<()> {
        let standby = of(table);
        if !exists(&self.socket, &standby)? {
            return Ok(());
        }
        for (name, (packets, bytes)) in self.read_counters(&standby)? {
            if counts_drops(&name) {
                firewall::add(&mut self.counted, &name, packets, bytes);
            }
        }
        let mut batch = Batch::new();
        standby.delete(&mut batch);
        self.socket.commit(batch)
    }
}

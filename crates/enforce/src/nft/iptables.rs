//! What iptables leaves in nf_tables, where it is built on that: the table `raw`
//! and its chain PREROUTING, made with the first rule and never taken away, so
//! that a ruleset would not be as it was. Only what is empty goes.

use std::io;

use super::{
    socket::Nftables,
    wire::{Batch, MessageKind},
};

const TABLE: &str = "raw";
const CHAIN: &str = "PREROUTING";
/// NFPROTO_IPV4, NFPROTO_IPV6.
const FAMILY: [u8; 2] = [2, 10];

/// Whether the table and the chain are there. Without nf_tables: yes, for all that can be
/// done about it.
pub(crate) fn are_there(family: usize) -> [bool; 2] {
    let ask = || -> io::Result<[bool; 2]> {
        let socket = Nftables::open()?;
        let family = FAMILY[family];
        let table = |to: &mut Batch| to.text(1, TABLE);
        let chain = |to: &mut Batch| {
            to.text(1, TABLE);
            to.text(3, CHAIN);
        };
        Ok([
            socket
                .get_of(family, MessageKind::GetTable, table, |_| Some(()))?
                .is_some(),
            socket
                .get_of(family, MessageKind::GetChain, chain, |_| Some(()))?
                .is_some(),
        ])
    };
    ask().unwrap_or([true; 2])
}

/// Takes away what of them nobody uses.
pub(crate) fn remove_empty(family: usize, table: bool, chain: bool) {
    let Ok(socket) = Nftables::open() else {
        return;
    };
    let family = FAMILY[family];
    if chain {
        let mut batch = Batch::of_family(family);
        batch.delete_empty(MessageKind::DelChain, |to| {
            to.text(1, TABLE);
            to.text(3, CHAIN);
        });
        // In use by now: it stays.
        let _ = socket.commit(batch);
    }
    if table {
        let mut batch = Batch::of_family(family);
        batch.delete_empty(MessageKind::DelTable, |to| to.text(1, TABLE));
        let _ = socket.commit(batch);
    }
}

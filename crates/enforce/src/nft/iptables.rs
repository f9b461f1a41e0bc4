//! What iptables leaves in nf_tables, where it is built on that: a table and a chain of its,
//! made with the first rule and never taken away, so that a ruleset would not be as it
//! was. Only what is empty goes.

use std::io;

use super::{
    socket::Nftables,
    wire::{Batch, MessageKind},
};

/// NFPROTO_IPV4, NFPROTO_IPV6.
const FAMILY: [u8; 2] = [2, 10];

/// Whether the table and the chain are there. Without nf_tables: yes, for all that can be
/// done about it.
pub(crate) fn are_there(family: usize, [table, chain]: [&str; 2]) -> [bool; 2] {
    let ask = || -> io::Result<[bool; 2]> {
        let socket = Nftables::open()?;
        let family = FAMILY[family];
        let in_table = |to: &mut Batch| to.text(1, table);
        let in_chain = |to: &mut Batch| {
            to.text(1, table);
            to.text(3, chain);
        };
        Ok([
            socket
                .get_of(family, MessageKind::GetTable, in_table, |_| Some(()))?
                .is_some(),
            socket
                .get_of(family, MessageKind::GetChain, in_chain, |_| Some(()))?
                .is_some(),
        ])
    };
    ask().unwrap_or([true; 2])
}

/// Takes away what of them nobody uses; `which`: the table, the chain.
pub(crate) fn remove_empty(
    family: usize,
    [table_name, chain_name]: [&str; 2],
    [table, chain]: [bool; 2],
) {
    let Ok(socket) = Nftables::open() else {
        return;
    };
    let family = FAMILY[family];
    if chain {
        let mut batch = Batch::of_family(family);
        batch.delete_empty(MessageKind::DelChain, |to| {
            to.text(1, table_name);
            to.text(3, chain_name);
        });
        // In use by now: it stays.
        let _ = socket.commit(batch);
    }
    if table {
        let mut batch = Batch::of_family(family);
        batch.delete_empty(MessageKind::DelTable, |to| to.text(1, table_name));
        let _ = socket.commit(batch);
    }
}

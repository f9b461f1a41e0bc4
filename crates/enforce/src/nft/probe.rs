//! What this kernel's nf_tables has, found out by transactions that make a table
//! of another name and take it away again: nobody ever sees it.

use std::io;

use super::{
    names::PRIORITY_IN,
    rule::{Meta, RejectReply, SCRATCH},
    ruleset::Capabilities,
    socket::Nftables,
    table::{Element, Hook, Shape, Table},
    wire::{Batch, MessageKind},
};

/// # Errors
/// The kernel takes no table at all.
pub(super) fn capabilities(socket: &Nftables, table: &Table) -> io::Result<Capabilities> {
    let probe = table.beside("probe");
    let takes = |fill: &dyn Fn(&mut Batch)| {
        let mut to = Batch::new();
        probe.create(&mut to);
        fill(&mut to);
        probe.delete(&mut to);
        socket.commit(to)
    };
    takes(&|_| {})?;
    let answers = takes(&|to| {
        probe.base_chain(to, "in", Hook::Prerouting(PRIORITY_IN));
        probe.rule(to, "in", |rule| {
            // A table that is not there drops nobody, but who can be sure.
            rule.meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[255])
                .reject(RejectReply::Prohibited);
        });
    });
    let destroys = takes(&|to| {
        probe.set(to, "some", 1, Shape::Bans(0));
        let nobody = [Element::key(&[192, 0, 2, 1])];
        probe.elements(to, MessageKind::DestroyElements, "some", &nobody);
    });
    Ok(Capabilities {
        answers: answers.is_ok(),
        destroys: destroys.is_ok(),
    })
}

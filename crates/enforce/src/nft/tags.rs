//! Frames with two priority tags (VLAN 0): Linux takes any number of them off, but
//! nftables' ingress gets a packet only from behind the first, and prerouting
//! leaves the packets of covered devices to ingress. So a second table, of the
//! family netdev and with the same name, drops such frames at the devices that are
//! covered; nobody sends any that means well. Sets are not shared between families,
//! so they are not judged.

use std::io;

use weir_core::Reason;

use super::{
    names::PRIORITY_IN,
    rule::{From, Meta, SCRATCH, Verdict},
    socket::Nftables,
    table::{Hook, Table},
    wire::{Batch, MessageKind, NETDEV},
};

/// The types of tags: 802.1Q, 802.1ad.
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
/// The bits of a tag that are its VLAN.
const VLAN: [u8; 2] = [0x0f, 0xff];
/// Where the first tag stands in a frame; the kernel has taken it off, and nftables
/// shows it there.
const FIRST: u32 = 14;

/// Drops such frames of a device from now on.
pub(super) fn drop_stacked(
    socket: &Nftables,
    table: &Table,
    chain: &str,
    device: &str,
    observe: bool,
) -> io::Result<()> {
    let (reason, verdict) = match observe {
        true => (Reason::Observed, Verdict::Accept),
        false => (Reason::TooManyTags, Verdict::Drop),
    };
    let mut to = Batch::of_family(NETDEV);
    table.create(&mut to);
    table.counter(&mut to, reason.name(), (0, 0));
    table.base_chain(&mut to, chain, Hook::Frames(device, PRIORITY_IN));
    table.empty_chain(&mut to, chain);
    for tag in TAGS {
        table.rule(&mut to, chain, |rule| {
            // Behind the question for the type nft (1.0.6) cannot print this one.
            rule.load(From::Network, 0, 2, SCRATCH)
                .mask(SCRATCH, &VLAN)
                .equals(SCRATCH, &[0, 0])
                .meta(Meta::FrameType, SCRATCH)
                .equals(SCRATCH, &tag)
                .load(From::Link, FIRST, 2, SCRATCH)
                .mask(SCRATCH, &VLAN)
                .equals(SCRATCH, &[0, 0])
                .count(reason.name())
                .verdict(verdict);
        });
    }
    socket.commit(to)
}

/// Takes the chain of a device away, if it is there.
pub(super) fn let_go(socket: &Nftables, table: &Table, chain: &str) -> io::Result<()> {
    let asked = |to: &mut Batch| {
        to.text(1, &table.0);
        to.text(3, chain);
    };
    if socket
        .get_of(NETDEV, MessageKind::GetChain, asked, |_| Some(()))?
        .is_none()
    {
        return Ok(());
    }
    let mut to = Batch::of_family(NETDEV);
    table.empty_chain(&mut to, chain);
    table.delete_chain(&mut to, chain);
    socket.commit(to)
}

/// Whether the table exists in the kernel.
pub(super) fn is_there(socket: &Nftables, table: &Table) -> io::Result<bool> {
    let asked = |to: &mut Batch| to.text(1, &table.0);
    let found = socket.get_of(NETDEV, MessageKind::GetTable, asked, |_| Some(()))?;
    Ok(found.is_some())
}

/// Whether the table has its rules for so many devices.
pub(super) fn is_whole(socket: &Nftables, table: &Table, devices: usize) -> io::Result<bool> {
    let of_table = |to: &mut Batch| to.text(1, &table.0);
    let rules = socket.dump_of(
        NETDEV,
        MessageKind::GetRule,
        of_table,
        |_, all: &mut Vec<()>| {
            all.push(());
        },
    )?;
    Ok(rules.len() == devices * TAGS.len())
}

/// Takes the table away; false when there was none.
pub(super) fn delete(socket: &Nftables, table: &Table) -> io::Result<bool> {
    let is_there = is_there(socket, table)?;
    if is_there {
        let mut to = Batch::of_family(NETDEV);
        table.delete(&mut to);
        socket.commit(to)?;
    }
    Ok(is_there)
}

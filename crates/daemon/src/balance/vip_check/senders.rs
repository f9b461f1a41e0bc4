//! Packet sockets that only send: one by each interface over which reals beyond a router are
//! asked, and family, as the next packets for them leave.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    os::fd::OwnedFd,
};

use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::filter::{ethertype, nothing};
use crate::host::interface_of;

/// Sockets by the index of the interface, for IPv6 or not. There are no more than ways to reals
/// ([`Senders::keep`]).
#[derive(Default)]
pub(super) struct Senders(BTreeMap<(u32, bool), OwnedFd>);

impl Senders {
    /// Sends a frame by this interface. `is_ipv6`: what its outermost packet is.
    ///
    /// # Errors
    /// The interface is gone or down, the frame is too long for it, or the daemon may not have
    /// packet sockets.
    pub(super) fn send(&mut self, ifindex: u32, is_ipv6: bool, frame: &[u8]) -> io::Result<()> {
        let key = (ifindex, is_ipv6);
        let socket = match self.0.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(open(ifindex, is_ipv6)?),
        };
        let sent = send(&*socket, frame, SendFlags::empty());
        // One of an interface that has gone never sends again; a full queue is one that passes.
        if matches!(sent, Err(Errno::NXIO | Errno::NODEV | Errno::NETDOWN)) {
            self.0.remove(&key);
        }
        sent?;
        Ok(())
    }

    /// Closes those of interfaces over which no packets for reals leave any more.
    pub(super) fn keep(&mut self, interfaces: &BTreeSet<u32>) {
        self.0
            .retain(|(ifindex, _), _| interfaces.contains(ifindex));
    }
}

fn open(ifindex: u32, is_ipv6: bool) -> io::Result<OwnedFd> {
    let interface = interface_of(ifindex)?.ok_or(io::ErrorKind::NotFound)?;
    let protocol = Protocol::from(i32::from(ethertype(is_ipv6).to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.attach_filter(&nothing())?;
    let socket = OwnedFd::from(socket);
    interface.bind(&socket)?;
    Ok(socket)
}

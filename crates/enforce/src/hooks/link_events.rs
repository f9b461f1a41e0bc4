//! Notices within a millisecond that an interface went or came back, by the
//! kernel's own announcements (rtnetlink, RTMGRP_LINK).

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Weak},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink::SocketAddrNetlink, recv,
        socket_with,
    },
};

use crate::Error;

/// linux/rtnetlink.h
const RTMGRP_LINK: u32 = 1;

/// Starts the watching thread in the caller's network namespace: it has the
/// backend `follow` each change, and ends within a second of the backend's end.
pub(crate) fn start<B: Send + Sync + 'static>(
    backend: &Arc<B>,
    follow: fn(&B) -> Result<(), Error>,
) {
    let socket = match announcements() {
        Ok(socket) => socket,
        Err(e) => {
            tracing::warn!(
                "cannot listen for interface changes ({e}); looking every second instead"
            );
            return;
        }
    };
    let backend = Arc::downgrade(backend);
    let spawned = std::thread::Builder::new()
        .name("interfaces".into())
        .spawn(move || watch(&socket, &backend, follow));
    if let Err(e) = spawned {
        tracing::warn!("cannot start the interface watch ({e}); looking every second instead");
    }
}

fn announcements() -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None, // NETLINK_ROUTE is 0, the default
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
    Ok(socket)
}

fn watch<B>(socket: &OwnedFd, backend: &Weak<B>, follow: fn(&B) -> Result<(), Error>) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut buffer = [0u8; 16384];
    loop {
        let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&second));
        let Some(backend) = backend.upgrade() else {
            return;
        };
        if !matches!(ready, Ok(n) if n > 0) {
            continue;
        }
        // What changed is looked up, not read here: an announcement may be
        // lost when the buffer overflows (ENOBUFS), the state is not.
        while recv(socket, &mut buffer, RecvFlags::empty()).is_ok() {}
        if let Err(e) = follow(&backend) {
            tracing::warn!("after a change of interfaces: {e}");
        }
    }
}

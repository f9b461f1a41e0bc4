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

use super::Kernel;

/// linux/rtnetlink.h
const RTMGRP_LINK: u32 = 1;

/// Starts the watching thread in the caller's network namespace; it ends
/// within a second of the backend's end.
pub(super) fn start(kernel: &Arc<Kernel>) {
    let socket = match announcements() {
        Ok(socket) => socket,
        Err(e) => {
            tracing::warn!(
                "cannot listen for interface changes ({e}); looking every second instead"
            );
            return;
        }
    };
    let kernel = Arc::downgrade(kernel);
    let spawned = std::thread::Builder::new()
        .name("interfaces".into())
        .spawn(move || watch(&socket, &kernel));
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

fn watch(socket: &OwnedFd, kernel: &Weak<Kernel>) {
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut buffer = [0u8; 16384];
    loop {
        let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&second));
        let Some(kernel) = kernel.upgrade() else {
            return;
        };
        if !matches!(ready, Ok(n) if n > 0) {
            continue;
        }
        // What changed is looked up, not read here: an announcement may be
        // lost when the buffer overflows (ENOBUFS), the state is not.
        while recv(socket, &mut buffer, RecvFlags::empty()).is_ok() {}
        if let Err(e) = kernel.follow_interfaces() {
            tracing::warn!("after a change of interfaces: {e}");
        }
    }
}

//! Sockets as the proxy needs them: none ever waits.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt},
};

use crate::service::Protocol;

/// Connections that may wait to be accepted; the kernel's own limit is often lower.
const BACKLOG: i32 = 4096;

fn new(of: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = match of {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, kind, flags, None)
}

fn kind(protocol: Protocol) -> SocketType {
    match protocol {
        Protocol::Tcp => SocketType::STREAM,
        Protocol::Udp => SocketType::DGRAM,
    }
}

/// Sockets that receive at an address, one for each of `count` workers.
///
/// # Errors
/// Another process has the address ([`io::ErrorKind::AddrInUse`]), or this one may not
/// have the port.
pub(crate) fn receivers(
    at: SocketAddr,
    protocol: Protocol,
    count: usize,
) -> io::Result<Vec<OwnedFd>> {
    // Sockets that all have SO_REUSEPORT share an address even over processes of one
    // user. Only one without it finds out that another server has the address.
    let alone = receiver(at, protocol, false)?;
    if count == 1 {
        return Ok(vec![alone]);
    }
    drop(alone);
    (0..count)
        .map(|_| Ok(receiver(at, protocol, true)?))
        .collect()
}

fn receiver(at: SocketAddr, protocol: Protocol, shared: bool) -> Result<OwnedFd, Errno> {
    let socket = new(at, kind(protocol))?;
    // A virtual address may come later, or be another host's for now.
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
    } else {
        sockopt::set_ip_freebind(&socket, true)?;
    }
    if shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if protocol == Protocol::Tcp {
        // Connections of an earlier daemon may still be in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        // Inherited by what is accepted.
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    bind(&socket, &at)?;
    if protocol == Protocol::Tcp {
        listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

/// A socket that is connected to a real, or will be; from `source`, if that is given, or from
/// another port of its address where one of this host's sockets has that port there.
pub(crate) fn connected(
    to: SocketAddr,
    protocol: Protocol,
    source: Option<SocketAddr>,
) -> Result<OwnedFd, Errno> {
    let connected = connected_from(to, protocol, source);
    match (connected, source) {
        // The client has asked another virtual address from the same port. What the real
        // answers would not tell the two apart.
        (Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL), Some(source)) => {
            connected_from(to, protocol, Some(SocketAddr::new(source.ip(), 0)))
        }
        (connected, _) => connected,
    }
}

fn connected_from(
    to: SocketAddr,
    protocol: Protocol,
    source: Option<SocketAddr>,
) -> Result<OwnedFd, Errno> {
    let socket = new(to, kind(protocol))?;
    if let Some(source) = source {
        transparent(&socket).map_err(|error| Errno::from_raw_os_error(error as i32))?;
        // Connections from one port to several reals, or that were there, are told apart by
        // the kernel, which refuses a second one to the same. Of sockets for datagrams it
        // would take any number, and give all answers to one of them.
        if protocol == Protocol::Tcp && source.port() != 0 {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        bind(&socket, &source)?;
    }
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Lets a socket have an address that is not this host's. The option of IPv4 is that of
/// IPv6, too: both set one flag.
fn transparent(socket: &OwnedFd) -> nix::Result<()> {
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::IpTransparent, &true)
}

/// Has closing it reset the connection, whatever is still to be sent.
pub(crate) fn reset_on_close(socket: impl AsFd) {
    // A socket that is gone already is as good.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

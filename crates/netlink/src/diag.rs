//! Sockets of IPv4 and IPv6 by sock_diag(7): found, listed and ended.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use crate::{Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Request, Socket, errno, family, word};

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY` of linux/sock_diag.h.
pub const BY_FAMILY: u16 = 20;
/// Ends a connection (`SOCK_DESTROY`).
pub const DESTROY: u16 = 21;
/// `ENOENT` of asm-generic/errno-base.h.
const ENOENT: i32 = 2;
/// Sockets in whatever state.
pub const ALL_STATES: u32 = u32::MAX;
/// One that listens (`TCP_LISTEN` of net/tcp_states.h), as a bit.
pub const LISTENING: u32 = 1 << 10;
/// The cookie of a socket that is asked for by its ends (`INET_DIAG_NOCOOKIE`).
const NO_COOKIE: u64 = u64::MAX;

/// What a request is about: `struct inet_diag_sockid`, with family and protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketId {
    /// AF_INET or AF_INET6.
    pub family: u8,
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub protocol: u8,
    /// The socket's own port, and its peer's: in the network's order.
    pub ports: [[u8; 2]; 2],
    /// The addresses in the same order; one of IPv4 has its bytes first.
    pub addresses: [[u8; 16]; 2],
    /// The interface that it is bound to; 0: any.
    pub interface: u32,
    /// The cookie; all ones: that of whichever has these ends.
    pub cookie: u64,
}

fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl SocketId {
    /// Whichever socket has these ends.
    pub fn of_ends(protocol: u8, own: SocketAddr, peer: SocketAddr, interface: u32) -> Self {
        Self {
            family: family(own.ip()),
            protocol,
            ports: [own, peer].map(|end| end.port().to_be_bytes()),
            addresses: [own, peer].map(|end| bytes_of(end.ip())),
            interface,
            cookie: NO_COOKIE,
        }
    }

    /// All of a family and a protocol.
    pub fn all(family: u8, protocol: u8) -> Self {
        Self {
            family,
            protocol,
            ports: [[0; 2]; 2],
            addresses: [[0; 16]; 2],
            interface: 0,
            cookie: NO_COOKIE,
        }
    }
}

/// `struct inet_diag_req_v2` of linux/inet_diag.h, about sockets in these states.
pub fn request(kind: u16, flags: u16, states: u32, id: &SocketId) -> Vec<u8> {
    let mut body = vec![id.family, id.protocol, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id.ports.concat());
    body.extend(id.addresses.concat());
    body.extend(id.interface.to_ne_bytes());
    for half in [id.cookie as u32, (id.cookie >> 32) as u32] {
        body.extend(half.to_ne_bytes());
    }
    Request::new(kind, NLM_F_REQUEST | flags, &body).finish()
}

/// A socket as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// By which it is ended.
    pub id: SocketId,
    /// As in net/tcp_states.h.
    pub state: u8,
    /// The socket's own end.
    pub own: SocketAddr,
    /// The other one; port 0: it has none.
    pub peer: SocketAddr,
    /// The inode of its descriptors; 0: nobody has any.
    pub inode: u32,
}

/// The socket of a message (`struct inet_diag_msg`).
fn listed(message: Message<'_>, protocol: u8) -> Option<Listed> {
    let body = message.body;
    let [family, state] = *body.first_chunk()?;
    let ports = [
        *body.get(4..)?.first_chunk()?,
        *body.get(6..)?.first_chunk()?,
    ];
    let addresses: [[u8; 16]; 2] = [
        *body.get(8..)?.first_chunk()?,
        *body.get(24..)?.first_chunk()?,
    ];
    let interface = word(body, 40)?;
    let cookie = u64::from(word(body, 44)?) | u64::from(word(body, 48)?) << 32;
    let inode = word(body, 68)?;
    let end = |number: usize| {
        let bytes: [u8; 16] = addresses[number];
        let address = match family {
            2 => IpAddr::from(*bytes.first_chunk::<4>()?),
            _ => Ipv6Addr::from(bytes).to_canonical(),
        };
        Some(SocketAddr::new(address, u16::from_be_bytes(ports[number])))
    };
    Some(Listed {
        id: SocketId {
            family,
            protocol,
            ports,
            addresses,
            interface,
            cookie,
        },
        state,
        own: end(0)?,
        peer: end(1)?,
        inode,
    })
}

/// The one socket that has these ends, or listens there; `None`: there is none.
///
/// # Errors
/// The kernel lacks the protocol's part of sock_diag.
pub fn find(socket: &Socket, id: &SocketId) -> io::Result<Option<Listed>> {
    let asked = request(BY_FAMILY, 0, ALL_STATES, id);
    let mut buffer = [0; 4096];
    socket.send(&asked)?;
    let datagram = socket.receive(&mut buffer)?;
    for message in crate::Messages::of(datagram) {
        match message.outcome() {
            crate::Outcome::Data => return Ok(listed(message, id.protocol)),
            crate::Outcome::Acknowledged(Err(error)) if errno(&error) == Some(ENOENT) => {
                return Ok(None);
            }
            crate::Outcome::Acknowledged(outcome) | crate::Outcome::Done(outcome) => outcome?,
            crate::Outcome::Nothing => {}
        }
    }
    Ok(None)
}

/// All sockets of a family and a protocol in these states.
///
/// # Errors
/// The kernel lacks the protocol's part of sock_diag.
pub fn list(socket: &Socket, family: u8, protocol: u8, states: u32) -> io::Result<Vec<Listed>> {
    let id = SocketId::all(family, protocol);
    let asked = request(BY_FAMILY, NLM_F_DUMP, states, &id);
    socket.ask(&asked, |message, found| {
        found.extend(listed(message, protocol));
    })
}

/// Ends a connection: its program gets ECONNABORTED, the peer a reset.
///
/// # Errors
/// There is none, or this kernel cannot (`CONFIG_INET_DIAG_DESTROY`).
pub fn end(socket: &Socket, id: &SocketId) -> io::Result<()> {
    let asked = request(DESTROY, NLM_F_ACK, ALL_STATES, id);
    socket.ask(&asked, |_, _: &mut Vec<()>| ()).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::{Protocol, half};

    #[test]
    fn a_request_is_as_long_as_the_kernel_has_it() {
        let id = SocketId::of_ends(
            6,
            "192.0.2.1:8080".parse().unwrap(),
            "198.51.100.7:443".parse().unwrap(),
            3,
        );
        let bytes = request(BY_FAMILY, 0, ALL_STATES, &id);
        assert_eq!(bytes.len(), crate::HEADER + 56);
        let body = &bytes[crate::HEADER..];
        assert_eq!(body[..4], [2, 6, 0, 0]);
        assert_eq!(body[8..16], [0x1f, 0x90, 1, 0xbb, 192, 0, 2, 1]);
        assert_eq!(half(body, 12), Some(u16::from_ne_bytes([192, 0])));
        assert_eq!(body[44..48], 3_u32.to_ne_bytes());
        assert_eq!(body[48..], [0xff; 8]);
    }

    #[test]
    fn sockets_of_this_process_are_found_by_their_ends() {
        let Ok(socket) = Socket::open(Protocol::SockDiag) else {
            return;
        };
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            let id = SocketId::of_ends(6, own, peer, 0);
            let found = match find(&socket, &id) {
                Ok(found) => found.unwrap(),
                Err(error) => {
                    println!("skipped: {error} (tcp_diag)");
                    return;
                }
            };
            assert_eq!((found.own, found.peer), (own, peer));
            assert_ne!(found.inode, 0);
            let all = list(&socket, id.family, 6, LISTENING).unwrap();
            assert!(all.iter().any(|one| one.own == peer), "{all:?}");
            let nobody = SocketId::of_ends(6, own, SocketAddr::new(own.ip(), 1), 0);
            assert_eq!(find(&socket, &nobody).unwrap(), None);
            let datagrams = UdpSocket::bind(address).unwrap();
            let all = list(&socket, id.family, 17, ALL_STATES).unwrap();
            let bound = datagrams.local_addr().unwrap();
            assert!(
                all.iter()
                    .any(|one| one.own == bound && one.peer.port() == 0)
            );
        }
    }
}

//! Ending connections by sock_diag(7), where no program can (`bpf_sock_destroy`, Linux 6.5):
//! a program says which ones, and here the kernel is asked to end them, one by one. The same
//! as `ss -K` does: the program gets `ECONNABORTED`, the peer a reset.

use std::io;

use weir_netlink::{NLM_F_ACK, NLM_F_REQUEST, Protocol, Request, Socket, errno};

use super::value_of;
use crate::{
    error::{Context, Result},
    skeleton::identity::types::ident_ended,
};

/// `SOCK_DESTROY` of linux/sock_diag.h.
const SOCK_DESTROY: u16 = 21;
/// `AF_INET` of linux/socket.h.
const INET: u8 = 2;
/// `IPPROTO_TCP` of linux/in.h.
const TCP: u8 = 6;
/// `ENOENT` of asm-generic/errno-base.h: there is no such connection.
const ENOENT: i32 = 2;
/// What a kernel says that cannot: `EOPNOTSUPP`, `EINVAL`, `EPROTONOSUPPORT`.
const CANNOT: [i32; 3] = [95, 22, 93];

/// `struct inet_diag_req_v2` of linux/inet_diag.h.
fn request(ended: &ident_ended) -> Vec<u8> {
    let mut body = vec![ended.family, ended.protocol, 0, 0];
    // Of all states.
    body.extend_from_slice(&u32::MAX.to_ne_bytes());
    // These are in the network's order already.
    body.extend_from_slice(&ended.own_port.to_ne_bytes());
    body.extend_from_slice(&ended.peer_port.to_ne_bytes());
    for word in ended.own.iter().chain(&ended.peer) {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body.extend_from_slice(&ended.interface.to_ne_bytes());
    for half in [ended.cookie as u32, (ended.cookie >> 32) as u32] {
        body.extend_from_slice(&half.to_ne_bytes());
    }
    Request::new(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, &body).finish()
}

fn end(socket: &Socket, ended: &ident_ended) -> io::Result<()> {
    match socket.ask(&request(ended), |_, _: &mut Vec<()>| ()) {
        // It has ended meanwhile.
        Err(error) if errno(&error) == Some(ENOENT) => Ok(()),
        done => done.map(|_| ()),
    }
}

/// Can this kernel end connections so (`CONFIG_INET_DIAG_DESTROY`)? It is asked for one that
/// there is not. Who may not ask is told so when connections are to be ended.
pub(super) fn can_end() -> bool {
    let nobody = ident_ended {
        family: INET,
        protocol: TCP,
        ..ident_ended::default()
    };
    let refused = Socket::open(Protocol::SockDiag).and_then(|socket| end(&socket, &nobody));
    let why = refused.err().and_then(|error| errno(&error));
    !why.is_some_and(|why| CANNOT.contains(&why))
}

/// Ends the connections that a program has written, of the thread's network namespace. One
/// that cannot be ended does not spare the others.
pub(super) fn end_all(written: &[u8]) -> Result<()> {
    if written.is_empty() {
        return Ok(());
    }
    let what = || "end connections by sock_diag".to_owned();
    let socket = Socket::open(Protocol::SockDiag).context(what)?;
    let mut done = Ok(());
    for ended in written.chunks_exact(size_of::<ident_ended>()) {
        let ended = value_of::<ident_ended>(ended).expect("it has that length");
        done = done.and(end(&socket, &ended));
    }
    done.context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_the_kernel_has_it() {
        let ended = ident_ended {
            cookie: 0x1122_3344_5566_7788,
            own_port: u16::from_be_bytes([0x1f, 0x90]),
            family: INET,
            protocol: 6,
            ..ident_ended::default()
        };
        let request = request(&ended);
        assert_eq!(request.len(), weir_netlink::HEADER + 56);
        let body = &request[weir_netlink::HEADER..];
        assert_eq!(body[..4], [2, 6, 0, 0]);
        assert_eq!(body[8..10], [0x1f, 0x90]);
        assert_eq!(body[48..52], 0x5566_7788_u32.to_ne_bytes());
        assert_eq!(body[52..], 0x1122_3344_u32.to_ne_bytes());
    }
}

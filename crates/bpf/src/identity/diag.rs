//! Ending connections by sock_diag(7), where no program can (`bpf_sock_destroy`, Linux 6.5):
//! a program says which ones, and here the kernel is asked to end them, one by one. The same
//! as `ss -K` does: the program gets `ECONNABORTED`, the peer a reset.

use std::{io, os::fd::BorrowedFd};

use weir_netlink::{
    NLM_F_ACK, NLM_F_DUMP, Protocol, Socket,
    diag::{ALL_STATES, BY_FAMILY, DESTROY, SocketId, request},
    errno,
};

use super::value_of;
use crate::{
    error::{Context, Error, Result},
    prog_test_run,
    skeleton::identity::types::ident_ended,
};

/// `AF_INET` of linux/socket.h.
const INET: u8 = 2;
/// `IPPROTO_TCP` and `IPPROTO_UDP` of linux/in.h.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// `ENOENT` of asm-generic/errno-base.h: there is no such connection, or nobody knows of any.
const ENOENT: i32 = 2;
/// `EOPNOTSUPP` of asm-generic/errno.h: of a kernel that can end others, a connection that
/// waits for nothing but late segments (`TIME_WAIT`).
const EOPNOTSUPP: i32 = 95;
/// What a kernel says that cannot: beside that `EINVAL`, `EPROTONOSUPPORT`.
const CANNOT: [i32; 3] = [EOPNOTSUPP, 22, 93];

/// The kernel's own words for it: ports and addresses are in the network's order already.
fn id_of(ended: &ident_ended) -> SocketId {
    let address = |words: &[u32; 4]| {
        let mut bytes = [0; 16];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    };
    SocketId {
        family: ended.family,
        protocol: ended.protocol,
        ports: [ended.own_port, ended.peer_port].map(u16::to_ne_bytes),
        addresses: [&ended.own, &ended.peer].map(address),
        interface: ended.interface,
        cookie: ended.cookie,
    }
}

fn end_request(ended: &ident_ended) -> Vec<u8> {
    request(DESTROY, NLM_F_ACK, ALL_STATES, &id_of(ended))
}

fn ask_end(socket: &Socket, ended: &ident_ended) -> io::Result<()> {
    let asked = socket.ask(&end_request(ended), |_, _: &mut Vec<()>| ());
    asked.map(|_| ())
}

/// What the kernel answers; false: it has ended meanwhile.
fn is_ended(asked: io::Result<()>) -> io::Result<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(error) if matches!(errno(&error), Some(ENOENT | EOPNOTSUPP)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Does the kernel know of connections of this protocol? That is a module of its own, which
/// is loaded if it is there: it is asked for those in no state.
fn has(socket: &Socket, nobody: &ident_ended) -> bool {
    let all = request(BY_FAMILY, NLM_F_DUMP, 0, &id_of(nobody));
    let refused = socket.ask(&all, |_, _: &mut Vec<()>| ()).err();
    refused.is_none_or(|error| errno(&error) != Some(ENOENT))
}

/// Can this kernel end connections so (`CONFIG_INET_DIAG_DESTROY`, `tcp_diag`, `udp_diag`)?
/// It is asked for one that there is not. Who may not ask is told so when connections are to
/// be ended.
pub(super) fn can_end() -> bool {
    let Ok(socket) = Socket::open(Protocol::SockDiag) else {
        return false;
    };
    [TCP, UDP].into_iter().all(|protocol| {
        let nobody = ident_ended {
            family: INET,
            protocol,
            ..ident_ended::default()
        };
        let refused = ask_end(&socket, &nobody).err();
        let why = refused.and_then(|error| errno(&error));
        has(&socket, &nobody) && !why.is_some_and(|why| CANNOT.contains(&why))
    })
}

/// Connections of the thread's network namespace that a program has come to are ended, as
/// they are read: there may be any number. One that cannot be ended does not spare the others.
pub(super) struct Ends<'a> {
    /// The program that counts what was ended.
    count: Option<BorrowedFd<'a>>,
    socket: Option<Socket>,
    /// The first one that went wrong.
    failed: Option<Error>,
}

impl<'a> Ends<'a> {
    /// None yet. `count`: the program that counts them; none: nobody writes any.
    pub(super) fn new(count: Option<BorrowedFd<'a>>) -> Self {
        Self {
            count,
            socket: None,
            failed: None,
        }
    }

    /// Ends what a program has written.
    pub(super) fn end(&mut self, written: &[u8]) {
        for ended in written.chunks_exact(size_of::<ident_ended>()) {
            let ended = value_of::<ident_ended>(ended).expect("it has that length");
            if let Err(error) = self.end_one(ended) {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn end_one(&mut self, mut ended: ident_ended) -> Result<()> {
        let what = || "end connections by sock_diag".to_owned();
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::open(Protocol::SockDiag).context(what)?,
        };
        let asked = ask_end(self.socket.insert(socket), &ended);
        match (is_ended(asked).context(what)?, self.count) {
            (true, Some(count)) => prog_test_run::syscall(count, &mut ended),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// One could not be ended, or not counted.
    pub(super) fn done(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_ended_meanwhile_is_no_error_and_is_not_counted() {
        let answer = |code| is_ended(Err(io::Error::from_raw_os_error(code)));
        assert!(is_ended(Ok(())).unwrap());
        for code in [ENOENT, EOPNOTSUPP] {
            assert!(!answer(code).unwrap(), "{code}");
        }
        // EPERM, EBUSY.
        for code in [1, 16] {
            assert!(answer(code).is_err(), "{code}");
        }
    }

    #[test]
    fn a_request_is_as_long_as_the_kernel_has_it() {
        let ended = ident_ended {
            cookie: 0x1122_3344_5566_7788,
            own_port: u16::from_ne_bytes([0x1f, 0x90]),
            family: INET,
            protocol: 6,
            ..ident_ended::default()
        };
        let request = end_request(&ended);
        assert_eq!(request.len(), weir_netlink::HEADER + 56);
        let body = &request[weir_netlink::HEADER..];
        assert_eq!(body[..4], [2, 6, 0, 0]);
        assert_eq!(body[8..10], [0x1f, 0x90]);
        assert_eq!(body[48..52], 0x5566_7788_u32.to_ne_bytes());
        assert_eq!(body[52..], 0x1122_3344_u32.to_ne_bytes());
    }
}

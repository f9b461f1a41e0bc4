//! A TCP connection: the real runs, and its server listens.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{SocketType, connect, sockopt},
};

use super::{Outcome, TOO_LATE, Target, socket, text};

/// A connection that is being made.
pub(super) struct Tcp {
    pub(super) socket: OwnedFd,
    pub(super) ends: Instant,
}

impl Tcp {
    /// Begins one; what comes of it is told by the first look even where it is known.
    pub(super) fn begin(target: &Target, timeout: Duration) -> io::Result<Self> {
        let socket = socket(target, SocketType::STREAM)?;
        match connect(&socket, &target.to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Self {
                socket,
                ends: Instant::now() + timeout,
            }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the connection is made by now.
    pub(super) fn look(&self) -> Outcome {
        let mut waiting = [PollFd::new(&self.socket, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if let Ok(1) = poll(&mut waiting, Some(&at_once)) {
            return Some(match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(errno)) | Err(errno) => Err(text(errno)),
            });
        }
        (Instant::now() >= self.ends).then(|| Err(TOO_LATE.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::{
        CheckKind,
        tests::{LOOPBACK, bound, outcome},
    };

    #[test]
    fn who_listens_lives() {
        for addr in LOOPBACK {
            let Some(listener) = bound(addr, TcpListener::bind(addr)) else {
                continue;
            };
            let addr = listener.local_addr().unwrap();
            assert_eq!(outcome(&CheckKind::Tcp, addr), Ok(()));
            drop(listener);
            let error = outcome(&CheckKind::Tcp, addr).unwrap_err();
            assert!(error.contains("refused"), "{error}");
        }
    }
}

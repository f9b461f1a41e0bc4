//! Does a real live? A TCP connection to its own address says so. That shows that it
//! runs and that its server listens, not that it has the virtual address.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
};

/// What is known of a real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing yet: the first check decides.
    Unknown,
    /// It answers its checks.
    Up,
    /// It does not.
    Down,
}

/// How it changes with each check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) life: Life,
    /// Checks in a row that said otherwise.
    against: u32,
}

impl Health {
    pub(super) const UNKNOWN: Self = Self {
        life: Life::Unknown,
        against: 0,
    };

    /// One more check; true: it lives now and did not, or the other way round.
    pub(super) fn note(&mut self, lives: bool, rise: u32, fall: u32) -> bool {
        let said = if lives { Life::Up } else { Life::Down };
        let needed = match self.life {
            Life::Unknown => 1,
            life if life == said => {
                self.against = 0;
                return false;
            }
            Life::Down => rise,
            Life::Up => fall,
        };
        self.against += 1;
        if self.against < needed {
            return false;
        }
        *self = Self {
            life: said,
            against: 0,
        };
        true
    }
}

/// A check that is under way.
pub(super) struct Check {
    socket: OwnedFd,
    ends: Instant,
}

/// What came of it; `None`: not yet known.
pub(super) type Outcome = Option<Result<(), String>>;

impl Check {
    /// Begins one; it may be known at once.
    pub(super) fn begin(to: SocketAddr, timeout: Duration) -> Result<Self, Result<(), String>> {
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let refused = |errno: Errno| Err(std::io::Error::from(errno).to_string());
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(refused)?;
        match connect(&socket, &to) {
            Ok(()) => Err(Ok(())),
            Err(Errno::INPROGRESS) => Ok(Self {
                socket,
                ends: Instant::now() + timeout,
            }),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Looks without waiting for it.
    pub(super) fn look(&self) -> Outcome {
        let mut waiting = [PollFd::new(&self.socket, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if let Ok(1) = poll(&mut waiting, Some(&at_once)) {
            let error = match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => return Some(Ok(())),
                Ok(Err(errno)) | Err(errno) => errno,
            };
            return Some(Err(std::io::Error::from(error).to_string()));
        }
        (Instant::now() >= self.ends).then(|| Err("no answer in time".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    #[test]
    fn a_real_falls_and_rises_after_as_many_checks_as_configured() {
        let mut health = Health::UNKNOWN;
        assert!(health.note(true, 2, 3));
        let checks = [
            (false, Life::Up),
            (false, Life::Up),
            (true, Life::Up),
            (false, Life::Up),
            (false, Life::Up),
            (false, Life::Down),
            (true, Life::Down),
            (false, Life::Down),
            (true, Life::Down),
            (true, Life::Up),
        ];
        for (n, (lives, then)) in checks.into_iter().enumerate() {
            let before = health.life;
            assert_eq!(health.note(lives, 2, 3), before != then, "{n}");
            assert_eq!(health.life, then, "{n}");
        }
        let mut health = Health::UNKNOWN;
        assert!(health.note(false, 2, 3) && health.life == Life::Down);
    }

    fn outcome(to: SocketAddr) -> Result<(), String> {
        let check = match Check::begin(to, Duration::from_secs(20)) {
            Ok(check) => check,
            Err(known) => return known,
        };
        loop {
            if let Some(known) = check.look() {
                return known;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_listens_lives() {
        for addr in [
            SocketAddr::from(([127, 0, 0, 1], 0)),
            (Ipv6Addr::LOCALHOST, 0).into(),
        ] {
            let Ok(listener) = TcpListener::bind(addr) else {
                assert!(addr.is_ipv6(), "a host without IPv4");
                continue;
            };
            let addr = listener.local_addr().unwrap();
            assert_eq!(outcome(addr), Ok(()));
            drop(listener);
            let error = outcome(addr).unwrap_err();
            assert!(error.contains("refused"), "{error}");
        }
    }
}

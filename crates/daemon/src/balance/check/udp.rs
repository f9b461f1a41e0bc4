//! A datagram. "Port unreachable" says that nobody has the port there; whether silence
//! is life or not, the check says.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, SocketType, connect, recv, send},
};

use super::{Outcome, TOO_LATE, Target, socket, text};
use crate::balance::config::UdpConfig;

/// So many datagrams are looked at in one look; there may be more in the next.
const MAX_DATAGRAMS: usize = 16;
/// Bytes of an answer that are read; a longer one is cut.
const MAX_BYTES: usize = 4096;

/// A datagram that was sent, and whose answer is waited for.
pub(super) struct Udp {
    socket: OwnedFd,
    ends: Instant,
}

impl Udp {
    pub(super) fn begin(payload: &[u8], target: &Target, timeout: Duration) -> io::Result<Self> {
        let socket = socket(target, SocketType::DGRAM)?;
        // From nobody else is anything received then, ICMP errors are.
        connect(&socket, &target.to)?;
        send(&socket, payload, SendFlags::NOSIGNAL)?;
        Ok(Self {
            socket,
            ends: Instant::now() + timeout,
        })
    }

    /// Looks at what has come, by `judge`, which knows an answer.
    pub(super) fn look(&self, judge: impl Fn(&[u8]) -> Outcome) -> Outcome {
        for _ in 0..MAX_DATAGRAMS {
            let mut buffer = [0; MAX_BYTES];
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((received, _)) => {
                    if let Some(known) = judge(&buffer[..received]) {
                        return Some(known);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(Errno::CONNREFUSED) => return Some(Err("port unreachable".to_owned())),
                Err(errno) => return Some(Err(text(errno))),
            }
        }
        (Instant::now() >= self.ends).then(|| Err(TOO_LATE.to_owned()))
    }
}

/// A datagram that is a check by itself.
pub(super) struct Payload {
    udp: Udp,
    require_answer: bool,
}

impl Payload {
    pub(super) fn begin(
        config: &UdpConfig,
        target: &Target,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            udp: Udp::begin(config.payload.as_bytes(), target, timeout)?,
            require_answer: config.require_answer,
        })
    }

    /// The result so far: any answer is life, and so is silence where no answer is needed,
    /// for most servers are silent about what is none of theirs.
    pub(super) fn look(&self) -> Outcome {
        match self.udp.look(|_| Some(Ok(())))? {
            Err(why) if why == TOO_LATE && !self.require_answer => Some(Ok(())),
            known => Some(known),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::{
        CheckKind,
        tests::{LOOPBACK, bound, outcome, outcome_within},
    };
    use super::*;

    fn kind(require_answer: bool) -> CheckKind {
        CheckKind::Udp(UdpConfig {
            payload: "ping".to_owned(),
            require_answer,
        })
    }

    #[test]
    fn nobody_at_the_port_is_down_and_silence_as_told() {
        for addr in LOOPBACK {
            let Some(server) = bound(addr, UdpSocket::bind(addr)) else {
                continue;
            };
            let addr = server.local_addr().unwrap();
            let time = Duration::from_millis(50);
            assert_eq!(outcome_within(&kind(false), addr, time), Ok(()));
            let silent = outcome_within(&kind(true), addr, time);
            assert_eq!(silent, Err("udp: no answer in time".to_owned()));
            let server = std::thread::spawn(move || {
                // Those two were not answered, and nobody waits any more.
                for _ in 0..2 {
                    server.recv_from(&mut [0; 16]).unwrap();
                }
                let mut buffer = [0; 16];
                let (len, from) = server.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..len], b"ping");
                server.send_to(b"", from).unwrap();
                server
            });
            assert_eq!(outcome(&kind(true), addr), Ok(()));
            // Of one that talks to somebody else alone, so that no other test takes its port.
            let server = server.join().unwrap();
            server.connect((addr.ip(), 1)).unwrap();
            for require_answer in [false, true] {
                let nobody = outcome(&kind(require_answer), addr);
                assert_eq!(nobody, Err("udp: port unreachable".to_owned()));
            }
        }
    }
}

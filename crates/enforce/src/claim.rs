//! The name of an instance, held by the process that enforces it: a socket in
//! the abstract namespace, which ends with its process and tells its number.
//! Like nftables and ipset it is of one network namespace. (Pins have a lock of
//! their own, which holds over all of them.)

use std::{
    io,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use crate::Error;

/// How long a child of a process that was killed may hold its name: from its fork
/// to its exec.
const LEFT_BY_THE_DEAD: Duration = Duration::from_secs(5);

/// Is there such a process, which has not ended? Children between fork and exec
/// hold the locks of one that has.
pub fn is_alive(pid: u32) -> bool {
    // Behind the program's name in brackets stands the state.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Held while this process is the instance's only one.
pub(crate) struct Claim(Option<UnixListener>);

fn name(instance: &str) -> String {
    format!("weir/{instance}")
}

impl Claim {
    /// # Errors
    /// A process of root, or of ours, holds it: [`Error::Busy`] names it.
    pub(crate) fn take(instance: &str) -> Result<Self, Error> {
        let until = Instant::now() + LEFT_BY_THE_DEAD;
        let address = || SocketAddr::from_abstract_name(name(instance));
        loop {
            let error = match address().and_then(|address| UnixListener::bind_addr(&address)) {
                Ok(listener) => {
                    // For `drain`; it cannot fail on a socket of ours.
                    let _ = listener.set_nonblocking(true);
                    return Ok(Self(Some(listener)));
                }
                Err(error) => error,
            };
            match holder(instance) {
                Ok(pid) if is_alive(pid) || Instant::now() > until => {
                    return Err(Error::Busy(format!(
                        "another weir daemon holds this instance ({instance:?}, pid {pid}): stop it first"
                    )));
                }
                Ok(_) => std::thread::sleep(Duration::from_millis(10)),
                // Whoever may not enforce must not keep from it either.
                Err(why) => {
                    tracing::warn!(
                        "the name of the instance {instance:?} cannot be held ({error}; {why})"
                    );
                    return Ok(Self(None));
                }
            }
        }
    }

    /// Lets go of those who asked who holds it.
    pub(crate) fn drain(&self) {
        if let Some(listener) = &self.0 {
            while listener.accept().is_ok() {}
        }
    }
}

/// The process that holds an instance, if it is one of root's or our own user's.
fn holder(instance: &str) -> io::Result<u32> {
    let socket: OwnedFd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address = SocketAddrUnix::new_abstract_name(name(instance).as_bytes())?;
    connect(&socket, &address)?;
    let peer = sockopt::socket_peercred(&socket)?;
    let us = rustix::process::geteuid();
    if peer.uid.is_root() || peer.uid == us {
        return Ok(peer.pid.as_raw_nonzero().get().cast_unsigned());
    }
    Err(io::Error::other(format!(
        "pid {} of uid {} holds it",
        peer.pid.as_raw_nonzero(),
        peer.uid.as_raw()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_an_instance_and_is_named() {
        let instance = format!("claim-{}", std::process::id());
        let first = Claim::take(&instance).unwrap();
        for _ in 0..3 {
            let error = Claim::take(&instance).map(|_| ()).unwrap_err().to_string();
            let us = format!("(\"{instance}\", pid {})", std::process::id());
            assert!(error.contains(&us), "{error}");
        }
        first.drain();
        drop(first);
        Claim::take(&instance).unwrap();
    }
}

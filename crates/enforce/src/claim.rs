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
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use weir_bpf::lock::{self, NotTaken};

use crate::Error;

/// Held while this process is the instance's only one.
pub(crate) struct Claim(Option<UnixListener>);

fn name(instance: &str) -> String {
    format!("weir/{instance}")
}

impl Claim {
    /// # Errors
    /// A process of root, or of ours, holds it: [`Error::Busy`] names it.
    pub(crate) fn take(instance: &str) -> Result<Self, Error> {
        let bind = || -> io::Result<UnixListener> {
            let address = SocketAddr::from_abstract_name(name(instance))?;
            let listener = UnixListener::bind_addr(&address)?;
            // For `drain`; it cannot fail on a socket of ours.
            let _ = listener.set_nonblocking(true);
            Ok(listener)
        };
        let mut refused: Option<io::Error> = None;
        let attempt = || match bind() {
            Ok(listener) => Ok(Some(listener)),
            Err(error) => {
                refused = Some(error);
                Ok(None)
            }
        };
        match lock::take(attempt, || holder(instance).map(Some)) {
            Ok(listener) => Ok(Self(Some(listener))),
            Err(NotTaken::Held(pid)) => Err(Error::Busy(format!(
                "another weir daemon holds this instance ({instance:?}, {}): stop it first",
                lock::owner(pid)
            ))),
            // Whoever may not enforce must not keep from it either.
            Err(NotTaken::Failed(why)) => {
                let error = refused.map_or_else(String::new, |error| format!("{error}; "));
                tracing::warn!(
                    "the name of the instance {instance:?} cannot be held ({error}{why})"
                );
                Ok(Self(None))
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
        // A child that another test makes has it, too, from its fork to its exec.
        let again = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            Claim::take(&instance).ok()
        });
        assert!(again.is_some());
    }
}

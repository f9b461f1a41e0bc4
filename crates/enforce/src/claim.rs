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

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
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
        let attempt = || match bind() {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        };
        match lock::take(attempt, || holder(instance)) {
            Ok(listener) => Ok(Self(Some(listener))),
            Err(not_taken) => Self::without(instance, not_taken),
        }
    }

    fn without(instance: &str, not_taken: NotTaken<io::Error>) -> Result<Self, Error> {
        let why = match not_taken {
            NotTaken::Held(Some(pid)) => {
                return Err(Error::Busy(format!(
                    "another weir daemon holds this instance ({instance:?}, pid {pid}): stop it first"
                )));
            }
            // Nobody knows whether there is another one.
            NotTaken::Failed(source) if is_exhausted(&source) => {
                let what = format!("cannot ask who holds the instance {instance:?}");
                return Err(Error::System { what, source });
            }
            NotTaken::Failed(why) => why.to_string(),
            NotTaken::Held(None) => "a process has it that takes no connection".to_owned(),
        };
        // Whoever may not enforce must not keep from it either.
        tracing::warn!("the name of the instance {instance:?} cannot be held ({why})");
        Ok(Self(None))
    }

    /// Lets go of those who asked who holds it.
    pub(crate) fn drain(&self) {
        if let Some(listener) = &self.0 {
            while listener.accept().is_ok() {}
        }
    }
}

/// Did it fail for want of descriptors or memory?
fn is_exhausted(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    number.is_some_and(|number| exhausted.contains(&number))
}

/// The process that holds an instance, if it is one of root's or our own user's.
/// `None`: it takes no connection now; it may be about to listen, to end, or have
/// more who ask than it has let go of yet.
fn holder(instance: &str) -> io::Result<Option<u32>> {
    let socket: OwnedFd = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address = SocketAddrUnix::new_abstract_name(name(instance).as_bytes())?;
    match connect(&socket, &address) {
        Err(Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
        connected => connected?,
    }
    let peer = sockopt::socket_peercred(&socket)?;
    let us = rustix::process::geteuid();
    if peer.uid.is_root() || peer.uid == us {
        return Ok(Some(peer.pid.as_raw_nonzero().get().cast_unsigned()));
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

    /// Between a daemon's bind and its listen nobody can ask who it is.
    #[test]
    fn one_that_is_about_to_listen_holds_it() {
        let instance = format!("claim-late-{}", std::process::id());
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(name(&instance).as_bytes()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            rustix::net::listen(&socket, 1).unwrap();
            socket
        });
        let error = Claim::take(&instance).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("another weir daemon holds"), "{error}");
        drop(late.join().unwrap());
    }

    #[test]
    fn without_descriptors_nobody_is_taken_for_alone() {
        let failed = |errno: Errno| Claim::without("x", NotTaken::Failed(errno.into()));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let error = failed(errno).map(|_| ()).unwrap_err().to_string();
            assert!(
                error.starts_with("cannot ask who holds the instance"),
                "{error}"
            );
        }
        // A stranger's process keeps nobody from enforcing.
        assert!(failed(Errno::ACCESS).is_ok());
        assert!(Claim::without("x", NotTaken::Held(None)).is_ok());
    }
}

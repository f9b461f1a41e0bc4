//! One check of a real, at its own address: begun, then looked at until it is known. No
//! call here waits. What a real answers may be an attacker's: it is bounded in length and
//! time, none of it is repeated to anybody, and what is not understood is a failure. It
//! shows that the real's server answers; whether it has the virtual address is asked
//! behind it (vip_check.rs).

mod command;
mod dns;
mod http;
mod tcp;
mod udp;

/// What answers to checks say, without their sockets.
pub mod answer {
    pub use super::{
        dns::{judge as dns_verdict, query as dns_query},
        http::status as http_status,
    };
}

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, socket_with},
};

use super::{config::CheckKind, not_begun::NotBegun};
use command::Command;
use dns::Dns;
pub(super) use dns::query as dns_query;
use http::Http;
use tcp::Tcp;
use udp::Payload;

/// The result of a check, an error as text; `None`: not yet known.
pub(super) type Outcome = Option<Result<(), String>>;

/// Why a check failed that was not done when its time was over.
const TOO_LATE: &str = "no answer in time";

/// A check that is under way.
pub(super) struct Check(UnderWay);

/// The real that a check asks, and on whose behalf.
pub(super) struct Target {
    /// The real, and a port of it.
    pub(super) to: SocketAddr,
    /// This host's address that asks; `None`: whichever the kernel takes.
    pub(super) from: Option<IpAddr>,
    /// A virtual address of the pool.
    pub(super) vip: IpAddr,
    /// The name of the pool.
    pub(super) pool: String,
}

enum UnderWay {
    Command(Command),
    Tcp(Tcp),
    Http(Http),
    Dns(Dns),
    Udp(Payload),
}

impl Check {
    /// Begins one; where it cannot be, that is why the real is down, unless this host is at
    /// fault.
    pub(super) fn begin(
        kind: &CheckKind,
        to: &Target,
        timeout: Duration,
    ) -> Result<Self, NotBegun> {
        let begun = match kind {
            CheckKind::Command(command) => {
                Command::begin(command, to, timeout).map(UnderWay::Command)
            }
            CheckKind::Tcp => Tcp::begin(to, timeout).map(UnderWay::Tcp),
            CheckKind::Http(config) => Http::begin(config, to, timeout).map(UnderWay::Http),
            CheckKind::Dns(name) => Dns::begin(name, to, timeout).map(UnderWay::Dns),
            CheckKind::Udp(config) => Payload::begin(config, to, timeout).map(UnderWay::Udp),
        };
        begun
            .map(Self)
            .map_err(|error| NotBegun::new(&error, named(kind, error.to_string())))
    }

    /// Whether the check runs a process.
    pub(super) fn is_command(&self) -> bool {
        matches!(self.0, UnderWay::Command(_))
    }

    /// Looks without waiting for it.
    pub(super) fn look(&mut self, kind: &CheckKind) -> Outcome {
        let outcome = match &mut self.0 {
            UnderWay::Command(command) => command.look(),
            UnderWay::Tcp(tcp) => tcp.look(),
            UnderWay::Http(http) => http.look(),
            UnderWay::Dns(dns) => dns.look(),
            UnderWay::Udp(payload) => payload.look(),
        };
        outcome.map(|known| known.map_err(|why| named(kind, why)))
    }
}

/// Puts the name of the check before why it failed.
fn named(kind: &CheckKind, why: String) -> String {
    match kind {
        CheckKind::Command(_) => format!("command: {why}"),
        CheckKind::Tcp => why,
        CheckKind::Http(_) => format!("http: {why}"),
        CheckKind::Dns(_) => format!("dns: {why}"),
        CheckKind::Udp(_) => format!("udp: {why}"),
    }
}

/// A socket for this target that never waits.
fn socket(target: &Target, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = match target.to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None)?;
    if let Some(from) = target.from {
        // Where it is gone, or not there yet, the kernel takes another.
        let _ = bind(&socket, &SocketAddr::new(from, 0));
    }
    Ok(socket)
}

/// An error in the system's words.
fn text(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    /// An address of this host in each family, with port 0.
    pub(super) const LOOPBACK: [SocketAddr; 2] = [
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
        SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0),
    ];

    /// What is done at an address of this host; `None`: it has none of that family.
    #[track_caller]
    pub(super) fn bound<T>(addr: SocketAddr, done: io::Result<T>) -> Option<T> {
        match done {
            Ok(bound) => Some(bound),
            Err(_) if addr.is_ipv6() => None,
            Err(error) => panic!("a host without IPv4: {error}"),
        }
    }

    /// What comes of a check, without a bound in time that a slow machine could reach.
    pub(super) fn outcome(kind: &CheckKind, to: SocketAddr) -> Result<(), String> {
        outcome_within(kind, to, Duration::from_secs(20))
    }

    pub(super) fn outcome_within(
        kind: &CheckKind,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<(), String> {
        let target = Target {
            to,
            from: None,
            vip: to.ip(),
            pool: "web".to_owned(),
        };
        let mut check = Check::begin(kind, &target, timeout).map_err(NotBegun::into_why)?;
        loop {
            if let Some(known) = check.look(kind) {
                return known;
            }
            std::thread::yield_now();
        }
    }
}

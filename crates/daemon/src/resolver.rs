//! The system's resolver (getaddrinfo, by the crate dns-lookup, which tells "no such name"
//! from "no answer" as the standard library does not), so that what the host is configured
//! to ask is asked: nsswitch.conf, resolv.conf and a local stub hold. (Of glibc's, /etc/hosts
//! has no name that ends with a dot.) A resolver of our own would have to follow all of these.
//! It cannot be given a time: whoever waits does so in a thread of its own.

use std::{io, net::IpAddr};

use dns_lookup::{AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use weir_core::detect::HostName;

/// The addresses of a name; none: there is no such name, or it has none. It is asked for with
/// a dot at its end, so that no search domain makes another one of it.
///
/// # Errors
/// Why nobody has answered.
pub fn addresses(name: &HostName) -> Result<Vec<IpAddr>, String> {
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    let found = match getaddrinfo(Some(&format!("{name}.")), None, Some(hints)) {
        Ok(found) => found,
        Err(error) => return none_or_failed(error),
    };
    let addresses: Result<Vec<_>, _> = found.map(|one| Ok(one?.sockaddr.ip())).collect();
    addresses.map_err(|error: io::Error| error.to_string())
}

fn none_or_failed(error: LookupError) -> Result<Vec<IpAddr>, String> {
    match error.kind() {
        LookupErrorKind::NoName | LookupErrorKind::NoData => Ok(Vec::new()),
        _ => Err(io::Error::from(error).to_string()),
    }
}

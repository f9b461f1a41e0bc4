//! The system's resolver (getaddrinfo, by the crate dns-lookup, which tells "no such name"
//! from "no answer" as the standard library does not), so that what the host is configured
//! to ask is asked: nsswitch.conf, resolv.conf and a local stub hold. (Of glibc's, /etc/hosts
//! has no name that ends with a dot.) A resolver of our own would have to follow all of these.
//! It cannot be given a time: whoever waits does so in a thread of its own.

use std::{io, net::IpAddr};

use dns_lookup::{AddrFamily, AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use weir_core::detect::HostName;

/// The addresses of a name, or why nobody has answered; none: there is no such name, or it has
/// none.
pub type Answer = Result<Vec<IpAddr>, String>;

/// The addresses of a name that a log has. It is asked for with a dot at its end, so that no
/// search domain makes another one of it.
///
/// # Errors
/// Why nobody has answered.
pub fn addresses(name: &HostName) -> Answer {
    ask(&format!("{name}."), None)
}

/// The addresses of a name that the administrator has written, IPv4 and IPv6 apart, since a
/// name server may answer for one of them only. It is asked for as it stands: names of
/// /etc/hosts and search domains hold, as in Fail2ban.
pub fn addresses_by_family(name: &HostName) -> [Answer; 2] {
    [AddrFamily::Inet, AddrFamily::Inet6].map(|family| ask(name.as_str(), Some(family)))
}

fn ask(name: &str, family: Option<AddrFamily>) -> Answer {
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        address: family.map_or(0, Into::into),
        ..AddrInfoHints::default()
    };
    let found = match getaddrinfo(Some(name), None, Some(hints)) {
        Ok(found) => found,
        Err(error) => return none_or_failed(error),
    };
    let addresses: Result<Vec<_>, _> = found.map(|one| Ok(one?.sockaddr.ip())).collect();
    addresses.map_err(|error: io::Error| error.to_string())
}

fn none_or_failed(error: LookupError) -> Answer {
    match error.kind() {
        LookupErrorKind::NoName | LookupErrorKind::NoData => Ok(Vec::new()),
        _ => Err(io::Error::from(error).to_string()),
    }
}

//! A server as Pen is told of one: `address:port:max:hard:weight:prio`.

use std::net::IpAddr;

use super::Place;

/// One of Pen's servers.
#[derive(Default, Clone)]
pub(super) struct Server {
    pub(super) place: Place,
    /// As typed, an address or a name.
    pub(super) host: String,
    /// 0: that at which Pen listens.
    pub(super) port: u16,
    pub(super) max: u64,
    pub(super) hard: u64,
    pub(super) weight: u64,
    pub(super) prio: u64,
    /// The access list with the clients that it takes; 0 unless Pen is told of another.
    pub(super) acl: usize,
}

impl Server {
    /// The address of one host on a network, if it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        unicast(&self.host)
    }

    /// Reads the fields of a server; second, those that are no numbers.
    pub(super) fn parse(place: &str, text: &str) -> (Self, Vec<String>) {
        let (host, rest) = split_host(text);
        let mut wrong = Vec::new();
        let mut number = |text: Option<&str>, most: u64| match text.unwrap_or_default() {
            "" => 0,
            text => match text.parse::<u64>() {
                Ok(value) if value <= most => value,
                _ => {
                    wrong.push(text.to_owned());
                    0
                }
            },
        };
        let mut fields = rest.split(':');
        let mut next = |most| number(fields.next(), most);
        let port = next(65_535) as u16;
        let server = Self {
            place: place.to_owned(),
            host: host.to_owned(),
            port,
            max: next(u64::MAX),
            hard: next(u64::MAX),
            weight: next(u64::MAX),
            prio: next(u64::MAX),
            acl: 0,
        };
        wrong.extend(fields.map(str::to_owned));
        (server, wrong)
    }
}

/// The host, without its brackets, and what follows the colon behind it.
pub(super) fn split_host(text: &str) -> (&str, &str) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return (host, rest.strip_prefix(':').unwrap_or(rest));
    }
    text.split_once(':').unwrap_or((text, ""))
}

/// The address, if `address` in `reals` takes it.
pub(super) fn unicast(text: &str) -> Option<IpAddr> {
    let addr = text.parse::<IpAddr>().ok()?.to_canonical();
    let fits = match addr {
        IpAddr::V4(v4) => v4.octets()[0] != 0 && !v4.is_broadcast() && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    };
    (fits && !addr.is_multicast()).then_some(addr)
}

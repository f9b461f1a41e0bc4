//! What a ban covers: all ports, or a set of port ranges per protocol. The
//! port is the destination on the wire, before address translation.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A transport protocol with ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// Any protocol that has ports.
    Any,
    /// Transmission Control Protocol, number 6.
    Tcp,
    /// User Datagram Protocol, number 17.
    Udp,
    /// Stream Control Transmission Protocol, number 132.
    Sctp,
}

impl Protocol {
    /// The number in the IP header (IANA); 0 stands for any.
    pub fn number(self) -> u8 {
        match self {
            Self::Any => 0,
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number in the IP header, 0 for any.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Any, Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|p| p.number() == number)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Ports `low` to `high`, both included, of one protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PortRange {
    /// The protocol of the ports.
    pub protocol: Protocol,
    /// The first port of the range.
    pub low: u16,
    /// The last port of the range.
    pub high: u16,
}

impl PortRange {
    /// A range of one port alone.
    pub fn one(protocol: Protocol, port: u16) -> Self {
        Self {
            protocol,
            low: port,
            high: port,
        }
    }

    /// All ports of one protocol.
    pub fn all(protocol: Protocol) -> Self {
        Self {
            protocol,
            low: 1,
            high: u16::MAX,
        }
    }

    /// Whether the range covers all ports of its protocol.
    pub fn is_all(&self) -> bool {
        (self.low, self.high) == (1, u16::MAX)
    }

    /// Is this port of this protocol in the range? [`Protocol::Any`] on either side is
    /// every protocol.
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        let any = Protocol::Any;
        (self.protocol == protocol || self.protocol == any || protocol == any)
            && (self.low..=self.high).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)?;
        } else {
            write!(f, "{}-{}", self.low, self.high)?;
        }
        match self.protocol {
            Protocol::Any => Ok(()),
            p => write!(f, "/{}", p.name()),
        }
    }
}

/// How many ranges one scope may hold: the kernel compares them one by one.
pub const MAX_RANGES: usize = 15;

/// The ports that a ban covers. Ranges are sorted and distinct, so that equal scopes
/// compare equal.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortSet(Vec<PortRange>);

/// Why a text is not a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortSetError {
    /// A part is not `PORT`, `LOW-HIGH`, with `/tcp`, `/udp` or `/sctp`.
    Malformed(String),
    /// The list has more than [`MAX_RANGES`] ranges.
    TooMany(usize),
}

impl fmt::Display for PortSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => {
                let text: String = text.chars().take(64).collect();
                write!(
                    f,
                    "{text:?} is not a port: write 22, 22/tcp or 6000-6010/udp (ports 1-65535; tcp, udp or sctp), or \"all\""
                )
            }
            Self::TooMany(n) => {
                write!(
                    f,
                    "{n} port ranges in one scope: at most {MAX_RANGES}; join neighbours or ban all ports"
                )
            }
        }
    }
}

impl std::error::Error for PortSetError {}

impl PortSet {
    /// Every port and protocol.
    pub fn all() -> Self {
        Self::default()
    }

    /// A set of these ranges; an empty list means all ports.
    pub fn ports(ranges: impl IntoIterator<Item = PortRange>) -> Result<Self, PortSetError> {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort_unstable();
        ranges.dedup();
        if ranges.len() > MAX_RANGES {
            return Err(PortSetError::TooMany(ranges.len()));
        }
        Ok(Self(ranges))
    }

    /// Whether the set covers all ports.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges; empty when all ports are covered.
    pub fn ranges(&self) -> &[PortRange] {
        &self.0
    }

    /// Is this destination port covered? `protocol` is the number in the IP header.
    pub fn covers(&self, protocol: u8, port: u16) -> bool {
        self.is_all()
            || self.0.iter().any(|r| {
                (r.protocol == Protocol::Any || r.protocol.number() == protocol)
                    && (r.low..=r.high).contains(&port)
            })
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_all() {
            return f.write_str("all ports");
        }
        for (i, range) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            range.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for PortSet {
    type Err = PortSetError;

    /// `all`, `all ports`, or a comma-separated list such as `22/tcp,6000-6010/udp,53`.
    fn from_str(text: &str) -> Result<Self, PortSetError> {
        if matches!(text, "all" | "all ports") {
            return Ok(Self::all());
        }
        Self::ports(
            text.split(',')
                .map(|part| parse_range(part.trim()))
                .collect::<Result<Vec<_>, _>>()?,
        )
    }
}

fn parse_range(text: &str) -> Result<PortRange, PortSetError> {
    let malformed = || PortSetError::Malformed(text.to_owned());
    let (ports, protocol) = match text.split_once('/') {
        Some((ports, "tcp")) => (ports, Protocol::Tcp),
        Some((ports, "udp")) => (ports, Protocol::Udp),
        Some((ports, "sctp")) => (ports, Protocol::Sctp),
        Some((ports, "any")) => (ports, Protocol::Any),
        Some(_) => return Err(malformed()),
        None => (text, Protocol::Any),
    };
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 && !text.starts_with('+') => Ok(port),
        _ => Err(malformed()),
    };
    let (low, high) = match ports.split_once('-') {
        Some((low, high)) => (port(low)?, port(high)?),
        None => (port(ports)?, port(ports)?),
    };
    if low > high {
        return Err(malformed());
    }
    Ok(PortRange {
        protocol,
        low,
        high,
    })
}

impl Serialize for PortSet {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PortSet {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_the_numbers_of_the_ip_header() {
        let known = [(0, "any"), (6, "tcp"), (17, "udp"), (132, "sctp")];
        for number in 0..=u8::MAX {
            let name = known.into_iter().find(|(n, _)| *n == number);
            let protocol = Protocol::from_number(number);
            assert_eq!(protocol.map(Protocol::name), name.map(|(_, name)| name));
            assert!(protocol.is_none_or(|p| p.number() == number));
        }
    }

    #[test]
    fn a_scope_prints_what_it_reads() {
        for (text, printed) in [
            ("all", "all ports"),
            ("22", "22"),
            ("22/tcp", "22/tcp"),
            ("443/tcp, 80/tcp,80/tcp", "80/tcp,443/tcp"),
            ("6000-6010/udp", "6000-6010/udp"),
        ] {
            let scope: PortSet = text.parse().unwrap();
            assert_eq!(scope.to_string(), printed);
            assert_eq!(printed.parse::<PortSet>().unwrap(), scope);
        }
    }

    #[test]
    fn malformed_scopes_are_errors() {
        for text in [
            "", ",", "0", "65536", "22/icmp", "22-", "30-20", "ssh", "22/tcp,", "+22",
        ] {
            assert!(text.parse::<PortSet>().is_err(), "{text:?}");
        }
        let many = (1..=16)
            .map(|p| (p * 2).to_string())
            .collect::<Vec<_>>()
            .join(",");
        assert_eq!(many.parse::<PortSet>(), Err(PortSetError::TooMany(16)));
    }

    #[test]
    fn a_range_of_all_ports_prints_what_it_reads() {
        let all = PortRange::all(Protocol::Tcp);
        assert_eq!(all.to_string().parse(), PortSet::ports([all]));
        assert!(all.is_all() && !PortRange::one(Protocol::Tcp, 1).is_all());
        assert!(all.contains(Protocol::Tcp, 1) && all.contains(Protocol::Any, 65535));
        assert!(!all.contains(Protocol::Udp, 1));
    }

    #[test]
    fn a_protocol_restricts_a_range() {
        let scope: PortSet = "22/tcp,53".parse().unwrap();
        assert!(scope.covers(6, 22) && !scope.covers(17, 22));
        assert!(scope.covers(6, 53) && scope.covers(17, 53));
        assert!(!scope.covers(6, 54));
    }
}

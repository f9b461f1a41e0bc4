//! Whom a line names: an address, a prefix as its program counts, or a host by name. What a line
//! names and nobody can be banned by is refused here, with the reason, so that
//! somebody can say so: a failure that is not counted in silence is a hole.

use std::{fmt, net::IpAddr};

use super::{
    fields::address,
    host_name::{self, HostName, MAX_HOST_NAME, NameError},
};
use crate::Prefix;

/// The widest prefix that a line may name, of IPv4 and of IPv6: half of what the
/// smallest networks are from which a registry assigns to others. A ban of more
/// is a person's to make, not a line's.
pub const WIDEST_PREFIX: [u8; 2] = [16, 32];

/// The address, prefix or host that a finding names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offender {
    /// An address; IPv4-mapped IPv6 is IPv4, a zone is cut off.
    Addr(IpAddr),
    /// More than an address, and no wider than [`WIDEST_PREFIX`]. It is counted,
    /// and banned, as a whole.
    Prefix(Prefix),
    /// A host whose addresses somebody else has to look up.
    Name(HostName),
}

impl Offender {
    /// The addresses as a prefix; `None` where only a name is known.
    pub fn prefix(&self) -> Option<Prefix> {
        match self {
            Self::Addr(addr) => Some(Prefix::host(*addr)),
            Self::Prefix(prefix) => Some(*prefix),
            Self::Name(_) => None,
        }
    }
}

/// The address, prefix or host that a finding names, as a part of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    Addr(IpAddr),
    Prefix(Prefix),
    /// A host name that has been checked.
    Name(&'a [u8]),
}

impl From<Named<'_>> for Offender {
    fn from(named: Named<'_>) -> Self {
        match named {
            Named::Addr(addr) => Self::Addr(addr),
            Named::Prefix(prefix) => Self::Prefix(prefix),
            Named::Name(text) => Self::Name(HostName::new(text).expect("it has been checked")),
        }
    }
}

impl From<IpAddr> for Offender {
    fn from(addr: IpAddr) -> Self {
        Self::Addr(addr.to_canonical())
    }
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// Why what stands in a field is not one that can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// A prefix whose length is greater than 32 (IPv4) or 128 (IPv6).
    Length,
    /// A prefix wider than [`WIDEST_PREFIX`].
    TooWide,
    /// Neither an address nor a host name.
    Name(NameError),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ipv4, ipv6] = WIDEST_PREFIX;
        match self {
            Self::Length => f.write_str(
                "the length of the prefix is out of range (at most 32 for IPv4, 128 for IPv6)",
            ),
            Self::TooWide => write!(
                f,
                "the prefix is wider than a line may name (/{ipv4} of IPv4, /{ipv6} of IPv6)"
            ),
            Self::Name(NameError::TooLong) => {
                write!(
                    f,
                    "it has more than the {MAX_HOST_NAME} bytes of a host name"
                )
            }
            Self::Name(NameError::Malformed) => {
                f.write_str("it is neither an address nor a host name")
            }
        }
    }
}

/// An address, or `ADDR/LEN` as a program wrote it: bits behind the length are
/// cleared, as Fail2ban does, because many programs write the address that they
/// saw. `None`: it is neither.
pub(super) fn prefix(text: &[u8]) -> Option<Result<Named<'_>, Refused>> {
    let Some(slash) = text.iter().position(|b| *b == b'/') else {
        return Some(Ok(Named::Addr(address(text)?)));
    };
    let (addr, digits) = (&text[..slash], &text[slash + 1..]);
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // A zone, or the mapped form, which `address` would make IPv4 with a length
    // for IPv6.
    let addr: IpAddr = std::str::from_utf8(addr).ok()?.parse().ok()?;
    let length = digits
        .iter()
        .fold(0_u32, |n, digit| n * 10 + u32::from(digit - b'0'));
    let length = u8::try_from(length).ok();
    let Some(prefix) = length.and_then(|length| Prefix::new(addr, length)) else {
        return Some(Err(Refused::Length));
    };
    let [ipv4, ipv6] = WIDEST_PREFIX;
    let widest = if prefix.addr().is_ipv4() { ipv4 } else { ipv6 };
    Some(match prefix {
        _ if prefix.bits() < widest => Err(Refused::TooWide),
        _ if prefix.is_host() => Ok(Named::Addr(prefix.addr())),
        _ => Ok(Named::Prefix(prefix)),
    })
}

/// An address, or a host name. `None`: there is nothing.
pub(super) fn host(text: &[u8]) -> Option<Result<Named<'_>, Refused>> {
    if text.is_empty() {
        return None;
    }
    Some(match address(text) {
        Some(addr) => Ok(Named::Addr(addr)),
        None => match host_name::check(text) {
            Ok(name) => Ok(Named::Name(name)),
            Err(why) => Err(Refused::Name(why)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_as_a_program_writes_it() {
        for (text, read) in [
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("192.0.2.255/31", "192.0.2.254/31"),
            ("192.0.2.0/024", "192.0.2.0/24"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("::ffff:192.0.2.7/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.7/128", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("2001:db8::7/128", "2001:db8::7"),
            ("2001:db8::7/127", "2001:db8::6/127"),
            ("2001:db8:1:2::7/48", "2001:db8:1::/48"),
            ("2001:DB8::/32", "2001:db8::/32"),
        ] {
            let offender = Offender::from(prefix(text.as_bytes()).expect(text).expect(text));
            assert_eq!(offender.to_string(), read, "{text}");
            let is_host = !read.contains('/');
            assert_eq!(matches!(offender, Offender::Addr(_)), is_host, "{text}");
        }
    }

    #[test]
    fn a_prefix_that_cannot_be_counted_is_refused_with_the_reason() {
        for (text, why) in [
            ("192.0.2.0/33", Refused::Length),
            ("192.0.2.0/255", Refused::Length),
            ("192.0.2.0/256", Refused::Length),
            ("192.0.2.0/280", Refused::Length),
            ("192.0.2.0/99999999", Refused::Length),
            ("2001:db8::/129", Refused::Length),
            ("0.0.0.0/0", Refused::TooWide),
            ("::/0", Refused::TooWide),
            ("::ffff:0.0.0.0/96", Refused::TooWide),
            ("::ffff:10.0.0.0/111", Refused::TooWide),
            ("10.0.0.0/8", Refused::TooWide),
            ("10.0.0.0/15", Refused::TooWide),
            ("2001:db8::/31", Refused::TooWide),
        ] {
            assert_eq!(prefix(text.as_bytes()), Some(Err(why)), "{text}");
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        for (text, read) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("fe80::1%eth0", "fe80::1"),
            ("Mail.Example.org.", "mail.example.org"),
        ] {
            let named = host(text.as_bytes()).expect(text).expect(text);
            assert_eq!(Offender::from(named).to_string(), read, "{text}");
            assert_eq!(
                matches!(named, Named::Name(_)),
                read.contains("org"),
                "{text}"
            );
        }
        assert_eq!(host(b""), None);
        for text in [
            "192.0.2.700",
            "2001:db8::x",
            "192.0.2.0/24",
            "a b",
            "b\u{fc}cher.example",
        ] {
            let refused = Err(Refused::Name(NameError::Malformed));
            assert_eq!(host(text.as_bytes()), Some(refused), "{text}");
        }
        let refused = Err(Refused::Name(NameError::TooLong));
        assert_eq!(host("x.".repeat(200).as_bytes()), Some(refused));
    }

    #[test]
    fn other_texts_are_no_prefix() {
        for text in [
            "",
            "/",
            "/24",
            "192.0.2.0/",
            "192.0.2.0/+4",
            "192.0.2.0/-1",
            "192.0.2.0/24/24",
            "192.0.2.0/123456789",
            "192.0.2/24",
            "192.0.2.256/24",
            "fe80::1%eth0/64",
            "2001:db8::/x",
            "host/24",
            "192.0.2.0/\u{663}",
        ] {
            assert_eq!(prefix(text.as_bytes()), None, "{text:?}");
        }
    }
}

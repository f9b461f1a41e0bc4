//! Addresses as weir sees them: `Prefix` (canonical, IPv4-mapped IPv6 is
//! IPv4), `BanTarget` (a prefix that may be banned) and `PrefixSet`. Which
//! addresses belong to this host is not known here.
//!
//! By hand: ipnet's types keep host bits, tell a mapped address from IPv4, and
//! take texts that are mistakes here, so each use would need what is here
//! around them; what they would save is two masks.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// An address with a prefix length; host bits are zero, `::ffff:a.b.c.d` is
/// stored as IPv4 `a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// Why a text is not a prefix, or a prefix not a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddrError {
    /// Not an IPv4 or IPv6 address, optionally with `/length`.
    Malformed(String),
    /// The length is greater than 32 (IPv4) or 128 (IPv6).
    Length(String),
    /// Bits are set behind the prefix length.
    HostBits(String, Prefix),
    /// This address can never be banned, with the reason.
    Unbannable(Prefix, &'static str),
    /// Part of it can never be banned: which, and why.
    HoldsUnbannable(Prefix, Prefix, &'static str),
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(text) => write!(
                f,
                "{:?} is not an address: write it as 192.0.2.7, 2001:db8::7 or 2001:db8::/64",
                clip(text)
            ),
            Self::Length(text) => write!(
                f,
                "{:?} has a prefix length out of range: at most 32 for IPv4, 128 for IPv6",
                clip(text)
            ),
            Self::HostBits(text, canonical) => write!(
                f,
                "{:?} has bits set behind its prefix length: write {canonical}",
                clip(text)
            ),
            Self::Unbannable(prefix, why) => write!(f, "{prefix} cannot be banned: {why}"),
            Self::HoldsUnbannable(prefix, part, why) => write!(
                f,
                "{prefix} cannot be banned: it holds {part}, and {why}; ban smaller prefixes"
            ),
        }
    }
}

impl std::error::Error for AddrError {}

/// At most 64 characters of somebody's text, for a message.
fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

impl Prefix {
    /// The prefix of `len` bits that holds `addr`; host bits are cleared.
    /// `None` when `len` is too long for the family.
    pub fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let (addr, len) = match addr {
            IpAddr::V6(v6) if len >= 96 => match v6.to_ipv4_mapped() {
                Some(v4) => (IpAddr::V4(v4), len.checked_sub(96)?),
                None => (addr, len),
            },
            _ => (addr, len),
        };
        let addr = match addr {
            IpAddr::V4(v4) if len <= 32 => IpAddr::V4(Ipv4Addr::from(v4.to_bits() & mask32(len))),
            IpAddr::V6(v6) if len <= 128 => IpAddr::V6(Ipv6Addr::from(v6.to_bits() & mask128(len))),
            _ => return None,
        };
        Some(Self { addr, len })
    }

    /// The prefix that holds exactly this address (/32 or /128).
    pub fn host(addr: IpAddr) -> Self {
        let addr = addr.to_canonical();
        let len = if addr.is_ipv4() { 32 } else { 128 };
        Self { addr, len }
    }

    /// The first address.
    pub fn addr(self) -> IpAddr {
        self.addr
    }

    /// The length in bits: 0–32 for IPv4, 0–128 for IPv6.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Whether the prefix is a single address.
    pub fn is_host(self) -> bool {
        self.len == if self.addr.is_ipv4() { 32 } else { 128 }
    }

    /// Does this prefix hold the address? IPv4-mapped addresses count as IPv4.
    pub fn contains(self, addr: IpAddr) -> bool {
        match (self.addr, addr.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(a)) => a.to_bits() & mask32(self.len) == net.to_bits(),
            (IpAddr::V6(net), IpAddr::V6(a)) => a.to_bits() & mask128(self.len) == net.to_bits(),
            _ => false,
        }
    }

    /// Does this prefix hold all of `other`?
    pub fn covers(self, other: Prefix) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }
}

fn mask32(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

fn mask128(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl FromStr for Prefix {
    type Err = AddrError;

    /// Accepts `ADDR` and `ADDR/LEN`; bits behind the length are an error,
    /// so that a typing mistake does not ban a network.
    fn from_str(text: &str) -> Result<Self, AddrError> {
        let malformed = || AddrError::Malformed(text.to_owned());
        let (addr, len) = match text.split_once('/') {
            Some((addr, len)) => {
                if len.is_empty() || len.len() > 3 || !len.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(malformed());
                }
                (addr, Some(len))
            }
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| malformed())?;
        let Some(len) = len else {
            return Ok(Self::host(addr));
        };
        let len: u16 = len.parse().map_err(|_| malformed())?;
        let too_long = || AddrError::Length(text.to_owned());
        let len = u8::try_from(len).map_err(|_| too_long())?;
        let prefix = Self::new(addr, len).ok_or_else(too_long)?;
        if prefix.addr != addr.to_canonical() {
            return Err(AddrError::HostBits(text.to_owned(), prefix));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() {
            write!(f, "{}", self.addr)
        } else {
            write!(f, "{}/{}", self.addr, self.len)
        }
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A prefix that may be banned. Never the unspecified address, loopback,
/// multicast, broadcast or `::/24` (whose keys the kernel table uses for IPv4):
/// without them a host loses its own network. Of link-local IPv6, which is the
/// same prefix on every link, single addresses only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BanTarget(Prefix);

/// What no ban may touch, and why.
const NEVER: [(Prefix, &str); 9] = [
    (v4([0, 0, 0, 0], 8), "it is \"this network\" (RFC 1122)"),
    (v4([127, 0, 0, 0], 8), "it is loopback"),
    (v4([224, 0, 0, 0], 4), "it is multicast"),
    (v4([255, 255, 255, 255], 32), "it is the broadcast address"),
    (v6(0, 128), "it is the unspecified address"),
    (v6(1, 128), "it is loopback"),
    (
        v6(0xfe80 << 112, 10),
        "link-local addresses are those of every link, and banned one by one",
    ),
    (v6(0xff00 << 112, 8), "it is multicast"),
    (v6(0, 24), "it is reserved (RFC 4291)"),
];

const fn v4(octets: [u8; 4], len: u8) -> Prefix {
    let [a, b, c, d] = octets;
    Prefix {
        addr: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        len,
    }
}

const fn v6(bits: u128, len: u8) -> Prefix {
    Prefix {
        addr: IpAddr::V6(Ipv6Addr::from_bits(bits)),
        len,
    }
}

/// Whether the prefix is sure not to touch any of [`NEVER`]. So are nearly all that are
/// asked about, and every finding asks: IPv4 of one first octet, and global unicast IPv6
/// (2000::/3).
fn is_ordinary(prefix: Prefix) -> bool {
    match prefix.addr {
        IpAddr::V4(addr) => prefix.len >= 8 && matches!(addr.octets()[0], 1..=126 | 128..=223),
        IpAddr::V6(addr) => prefix.len >= 3 && addr.octets()[0] >> 5 == 0b001,
    }
}

/// Is all of it link-local IPv6 (RFC 4291)?
fn is_link_local(prefix: Prefix) -> bool {
    v6(0xfe80 << 112, 10).covers(prefix)
}

impl BanTarget {
    /// Checks that `prefix` is bannable.
    pub fn new(prefix: Prefix) -> Result<Self, AddrError> {
        if is_ordinary(prefix) || is_link_local(prefix) && prefix.is_host() {
            return Ok(Self(prefix));
        }
        for (never, why) in NEVER {
            if never.covers(prefix) {
                return Err(AddrError::Unbannable(prefix, why));
            }
            if prefix.covers(never) {
                return Err(AddrError::HoldsUnbannable(prefix, never, why));
            }
        }
        Ok(Self(prefix))
    }

    /// The prefix itself.
    pub fn prefix(self) -> Prefix {
        self.0
    }
}

impl fmt::Display for BanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BanTarget {
    type Err = AddrError;
    fn from_str(text: &str) -> Result<Self, AddrError> {
        Self::new(text.parse()?)
    }
}

impl Serialize for BanTarget {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for BanTarget {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::new(Prefix::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// A set of prefixes with longest-match questions, for allow lists and
/// exemptions: small (thousands), asked on the way to a ban, never per packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixSet {
    sorted: Vec<Prefix>,
    /// The lengths in use, longest first, of IPv4 and of IPv6: an address is
    /// looked up once per length, and every finding asks.
    lengths: [Vec<u8>; 2],
}

impl PrefixSet {
    /// The members in order, without duplicates.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.sorted.iter().copied()
    }

    /// How many prefixes were put in.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether the set has no prefix.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Adds a prefix; false when it was there already.
    pub fn insert(&mut self, prefix: Prefix) -> bool {
        match self.sorted.binary_search(&prefix) {
            Ok(_) => false,
            Err(at) => {
                self.sorted.insert(at, prefix);
                self.note_length(prefix);
                true
            }
        }
    }

    /// Takes exactly this prefix out; false when it was not there.
    pub fn remove(&mut self, prefix: Prefix) -> bool {
        match self.sorted.binary_search(&prefix) {
            Ok(at) => {
                self.sorted.remove(at);
                let same = |other: &Prefix| {
                    other.bits() == prefix.bits() && family(*other) == family(prefix)
                };
                if !self.sorted.iter().any(same) {
                    self.lengths[family(prefix)].retain(|len| *len != prefix.bits());
                }
                true
            }
            Err(_) => false,
        }
    }

    fn note_length(&mut self, prefix: Prefix) {
        let lengths = &mut self.lengths[family(prefix)];
        if let Err(at) = lengths.binary_search_by(|len| prefix.bits().cmp(len)) {
            lengths.insert(at, prefix.bits());
        }
    }

    /// The longest member that covers all of `prefix`.
    pub fn covering(&self, prefix: Prefix) -> Option<Prefix> {
        self.lengths[family(prefix)]
            .iter()
            .filter(|len| **len <= prefix.bits())
            .find_map(|len| {
                let candidate = Prefix::new(prefix.addr(), *len)?;
                self.sorted
                    .binary_search(&candidate)
                    .ok()
                    .map(|_| candidate)
            })
    }

    /// The first member of which all is inside `prefix`.
    pub fn inside(&self, prefix: Prefix) -> Option<Prefix> {
        let at = self.sorted.partition_point(|member| *member < prefix);
        let member = self.sorted.get(at).copied();
        member.filter(|member| prefix.covers(*member))
    }

    /// The longest member that holds this address.
    pub fn lookup(&self, addr: IpAddr) -> Option<Prefix> {
        self.covering(Prefix::host(addr))
    }
}

impl FromIterator<Prefix> for PrefixSet {
    fn from_iter<I: IntoIterator<Item = Prefix>>(prefixes: I) -> Self {
        let mut sorted: Vec<_> = prefixes.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let mut set = Self {
            sorted,
            ..Self::default()
        };
        for at in 0..set.sorted.len() {
            set.note_length(set.sorted[at]);
        }
        set
    }
}

/// Which of a pair is a prefix's: that of IPv4, or that of IPv6.
fn family(prefix: Prefix) -> usize {
    usize::from(prefix.addr().is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    /// What is answered at once is what the table says.
    #[test]
    fn a_set_is_empty_until_it_has_a_prefix() {
        let mut set = PrefixSet::default();
        assert!(set.is_empty());
        set.insert("192.0.2.0/24".parse().unwrap());
        assert!(!set.is_empty());
    }

    #[test]
    fn a_set_tells_what_is_inside_a_prefix() {
        let set: PrefixSet = [
            "192.0.2.0/24",
            "192.0.2.7",
            "198.51.100.255",
            "2001:db8::/64",
        ]
        .map(prefix)
        .into_iter()
        .collect();
        for (asked, inside) in [
            ("192.0.0.0/16", Some("192.0.2.0/24")),
            ("192.0.2.0/24", Some("192.0.2.0/24")),
            ("192.0.2.0/25", Some("192.0.2.7")),
            ("192.0.2.7", Some("192.0.2.7")),
            ("192.0.2.8/29", None),
            ("192.0.2.128/25", None),
            ("198.51.100.0/24", Some("198.51.100.255")),
            ("198.51.101.0/24", None),
            ("255.0.0.0/8", None),
            ("2001:db8::/32", Some("2001:db8::/64")),
            ("2001:db8::/65", None),
            ("2001:db8:1::/48", None),
            ("::/0", Some("2001:db8::/64")),
        ] {
            assert_eq!(set.inside(prefix(asked)), inside.map(prefix), "{asked}");
        }
    }

    #[test]
    fn ordinary_prefixes_touch_nothing_that_is_never_banned() {
        let of = |first: u8, length: u8| {
            let v4 = IpAddr::V4(Ipv4Addr::new(first, 1, 2, 3));
            let v6 = IpAddr::V6(Ipv6Addr::from_bits(u128::from(first) << 120 | 7));
            [Prefix::new(v4, length.min(32)), Prefix::new(v6, length)]
        };
        let mut ordinary = 0;
        for first in 0..=u8::MAX {
            for prefix in (0..=128).flat_map(|length| of(first, length)).flatten() {
                let touches =
                    |(never, _): &(Prefix, _)| never.covers(prefix) || prefix.covers(*never);
                if is_ordinary(prefix) {
                    assert!(!NEVER.iter().any(touches), "{prefix}");
                    ordinary += 1;
                }
            }
        }
        assert!(ordinary > 10_000, "{ordinary}");
    }

    #[test]
    fn a_mapped_address_is_ipv4() {
        assert_eq!(prefix("::ffff:192.0.2.7"), prefix("192.0.2.7"));
        assert_eq!(prefix("::ffff:192.0.2.0/120"), prefix("192.0.2.0/24"));
    }

    #[test]
    fn malformed_texts_are_named() {
        for text in [
            "",
            "/",
            "1.2.3",
            "1.2.3.4/",
            "1.2.3.4/33",
            "1.2.3.4/-1",
            "1.2.3.4/+8",
            "::/129",
            "1.2.3.4/0x8",
            "1.2.3.4 ",
            "01.2.3.4",
            "fe80::1%eth0",
            "$(reboot)",
            "1.2.3.4/24",
        ] {
            let error = text.parse::<Prefix>().expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn hosts_keep_their_network() {
        for text in [
            "::",
            "::1",
            "fe80::/64",
            "fe80::/9",
            "ff02::1",
            "0.0.0.0",
            "0.0.0.0/0",
            "127.0.0.1",
            "255.255.255.255",
            "224.0.0.1",
            "::/0",
            "192.0.0.0/2",
        ] {
            let error = text.parse::<BanTarget>().expect_err(text).to_string();
            assert!(error.contains("cannot be banned"), "{error}");
        }
        for text in [
            "192.0.2.7",
            "2001:db8::7",
            "2001:db8::/64",
            "198.51.100.0/24",
            "fe80::1",
        ] {
            assert_eq!(text.parse::<BanTarget>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_set_answers_as_a_list_would_after_every_change() {
        // Few bits, so that members cover one another often.
        let nth = |n: u32| {
            let addr: IpAddr = if n & 1 == 0 {
                [n as u8 & 0xf0, 0, 0, 0].into()
            } else {
                [(n as u16 & 0xf0) << 8, 0, 0, 0, 0, 0, 0, 0].into()
            };
            Prefix::new(addr, (n >> 8) as u8 % 5).unwrap()
        };
        let (mut set, mut list) = (PrefixSet::default(), Vec::new());
        let mut random = 1u32;
        for _ in 0..2000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (prefix, asked) = (nth(random >> 8), nth(random >> 13));
            if random >> 31 == 0 {
                assert_eq!(set.insert(prefix), !list.contains(&prefix));
                list.retain(|other| *other != prefix);
                list.push(prefix);
            } else {
                assert_eq!(set.remove(prefix), list.contains(&prefix));
                list.retain(|other| *other != prefix);
            }
            let longest = list
                .iter()
                .filter(|member| member.covers(asked))
                .max_by_key(|member| member.bits());
            assert_eq!(set.covering(asked), longest.copied(), "{asked} in {list:?}");
            let anew: PrefixSet = list.iter().copied().collect();
            assert_eq!(set, anew);
        }
    }

    #[test]
    fn the_longest_covering_member_is_found() {
        let set: PrefixSet = ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"]
            .map(prefix)
            .into_iter()
            .collect();
        assert_eq!(
            set.lookup("10.1.2.3".parse().unwrap()),
            Some(prefix("10.1.0.0/16"))
        );
        assert_eq!(
            set.lookup("10.2.2.3".parse().unwrap()),
            Some(prefix("10.0.0.0/8"))
        );
        assert_eq!(set.lookup("11.2.2.3".parse().unwrap()), None);
        assert_eq!(
            set.covering(prefix("2001:db8:1::/48")),
            Some(prefix("2001:db8::/32"))
        );
        assert_eq!(set.covering(prefix("2001::/16")), None);
    }
}

//! Where an address is said to be: country, continent, autonomous system.
//! Countries and continents are separate types, so that allowing North America
//! (continent NA) can never allow Namibia (country NA). `countries` is the
//! table of them, `builder` makes a [`GeoTable`].

mod builder;
mod countries;

pub use builder::{GeoTableBuilder, MAX_PLACES, TooManyPlaces};

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Serialize, Serializer};

/// A country by its ISO 3166-1 alpha-2 code, two capitals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Country([u8; 2]);

impl Country {
    /// From two ASCII letters of either case; whether a country has this code
    /// is not asked (databases know codes such as XK that ISO does not).
    pub fn from_letters(letters: [u8; 2]) -> Option<Self> {
        letters
            .iter()
            .all(u8::is_ascii_alphabetic)
            .then(|| Self(letters.map(|b| b.to_ascii_uppercase())))
    }

    /// The code, two capital letters.
    pub fn letters(self) -> [u8; 2] {
        self.0
    }

    /// 0..676, in alphabetical order: a place in a table of all codes.
    pub fn index(self) -> usize {
        usize::from(self.0[0] - b'A') * 26 + usize::from(self.0[1] - b'A')
    }
}

impl fmt::Display for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.0.map(char::from);
        write!(f, "{a}{b}")
    }
}

impl fmt::Debug for Country {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "country:{self}")
    }
}

impl Serialize for Country {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// A continent by the two-letter code of MaxMind's format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the codes of the format")]
pub enum Continent {
    Af,
    An,
    As,
    Eu,
    Na,
    Oc,
    Sa,
}

impl Continent {
    /// All continents with their codes and names.
    pub const ALL: [(Self, &str, &str); 7] = [
        (Self::Af, "AF", "Africa"),
        (Self::An, "AN", "Antarctica"),
        (Self::As, "AS", "Asia"),
        (Self::Eu, "EU", "Europe"),
        (Self::Na, "NA", "North America"),
        (Self::Oc, "OC", "Oceania"),
        (Self::Sa, "SA", "South America"),
    ];

    /// The continent of a code, in either case.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|(_, known, _)| known.eq_ignore_ascii_case(code))
            .map(|(continent, ..)| continent)
    }

    /// The continent's English name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    /// The continent's code of two letters, as MaxMind has it.
    pub fn code(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for Continent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// What a database says about an address; nothing of it is certain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Place {
    /// The country, if the database names one.
    pub country: Option<Country>,
    /// The continent, named by the database or that of the country.
    pub continent: Option<Continent>,
    /// The autonomous system's number, where the database has them.
    pub asn: Option<u32>,
}

/// An address as a number that ranges can be made of: `u32` for IPv4, `u128`
/// for IPv6, both in host order.
pub trait Number: Copy + Ord + fmt::Debug + Send + Sync + 'static {
    /// The highest address of the family.
    const MAX: Self;
    /// The lowest address of the family.
    const MIN: Self;
    /// The next one up; `None` behind the highest.
    fn next(self) -> Option<Self>;
    /// The next one down, of an address above the lowest.
    fn previous(self) -> Self;
    /// The number as an address.
    fn addr(self) -> IpAddr;
}

impl Number for u32 {
    const MAX: Self = u32::MAX;
    const MIN: Self = 0;
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn previous(self) -> Self {
        self - 1
    }
    fn addr(self) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(self))
    }
}

impl Number for u128 {
    const MAX: Self = u128::MAX;
    const MIN: Self = 0;
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn previous(self) -> Self {
        self - 1
    }
    fn addr(self) -> IpAddr {
        IpAddr::V6(std::net::Ipv6Addr::from_bits(self))
    }
}

/// The addresses from `first` to `last`, both included, and what holds for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span<A, T> {
    /// The lowest address.
    pub first: A,
    /// The highest address of the span.
    pub last: A,
    /// The value of all addresses in the span.
    pub value: T,
}

/// What a database says about every address of both families. Spans are
/// sorted, disjoint, and name a place by its index; an address in none is
/// unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GeoTable {
    /// The different places, at most 65,536.
    pub places: Vec<Place>,
    /// The spans of IPv4 addresses.
    pub v4: Vec<Span<u32, u16>>,
    /// The spans of IPv6 addresses.
    pub v6: Vec<Span<u128, u16>>,
}

impl GeoTable {
    /// The country, continent and system of this address; IPv4 in IPv6 is IPv4.
    pub fn place(&self, addr: IpAddr) -> Place {
        let index = match addr.to_canonical() {
            IpAddr::V4(a) => find(&self.v4, a.to_bits()),
            IpAddr::V6(a) => find(&self.v6, a.to_bits()),
        };
        index
            .and_then(|index| self.places.get(usize::from(*index)))
            .copied()
            .unwrap_or_default()
    }
}

/// The value of the span that holds `addr`; spans are sorted and disjoint.
pub fn find<A: Number, T>(spans: &[Span<A, T>], addr: A) -> Option<&T> {
    let after = spans.partition_point(|span| span.first <= addr);
    let span = &spans[after.checked_sub(1)?];
    (addr <= span.last).then_some(&span.value)
}

/// What a geofence rule may name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Selector {
    /// `country:NL`
    Country(Country),
    /// `continent:EU`
    Continent(Continent),
    /// `asn:64496`
    Asn(u32),
}

/// The text is not a selector.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a place; allowed: country:NL, continent:EU, asn:64496")]
pub struct SelectorError(String);

impl FromStr for Selector {
    type Err = SelectorError;
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let wrong = || SelectorError(text.to_owned());
        let (space, code) = text.split_once(':').ok_or_else(wrong)?;
        match space {
            "country" => <[u8; 2]>::try_from(code.as_bytes())
                .ok()
                .and_then(Country::from_letters)
                .map(Self::Country),
            "continent" => Continent::from_code(code).map(Self::Continent),
            "asn" => {
                let digits = code.strip_prefix("AS").unwrap_or(code);
                digits.parse().ok().map(Self::Asn)
            }
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Country(country) => write!(f, "country:{country}"),
            Self::Continent(continent) => write!(f, "continent:{continent}"),
            Self::Asn(asn) => write!(f, "asn:{asn}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_countries_in_a_table_are_in_order() {
        let index = |letters: &[u8; 2]| Country::from_letters(*letters).unwrap().index();
        let known = [b"AA", b"AB", b"AZ", b"BA", b"NL", b"ZZ"].map(index);
        assert_eq!(known, [0, 1, 25, 26, 349, 675]);
    }

    #[test]
    fn continents_have_their_code_and_name() {
        for (continent, code, name) in Continent::ALL {
            assert_eq!((continent.code(), continent.name()), (code, name));
            assert_eq!(Continent::from_code(code), Some(continent));
        }
    }
}

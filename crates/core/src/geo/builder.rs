//! Makes a [`GeoTable`] from what databases say, network by network.

use std::{collections::HashMap, net::IpAddr};

use super::{Country, GeoTable, Number, Place, Span};
use crate::Prefix;

/// More different places than a [`GeoTable`] can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("more than {} different places", MAX_PLACES)]
pub struct TooManyPlaces;

/// What an index of [`Span`] can tell apart.
pub const MAX_PLACES: usize = 1 << 16;

/// A GeoTable in the making. Networks come in any order; where two overlap, the
/// one that begins lower holds.
#[derive(Default)]
pub struct GeoTableBuilder {
    numbers: HashMap<Place, u16>,
    places: Vec<Place>,
    v4: Vec<Span<u32, u16>>,
    v6: Vec<Span<u128, u16>>,
}

impl GeoTableBuilder {
    /// The index of this place.
    ///
    /// # Errors
    /// There are too many places already.
    pub fn number(&mut self, place: Place) -> Result<u16, TooManyPlaces> {
        if let Some(number) = self.numbers.get(&place) {
            return Ok(*number);
        }
        let number = u16::try_from(self.places.len()).map_err(|_| TooManyPlaces)?;
        self.places.push(place);
        self.numbers.insert(place, number);
        Ok(number)
    }

    /// States that `network` is at the place of this index.
    pub fn add(&mut self, network: Prefix, place: u16) {
        match network.addr() {
            IpAddr::V4(addr) => {
                let first = addr.to_bits();
                let last = first | u32::MAX.checked_shr(network.bits().into()).unwrap_or(0);
                let value = place;
                push(&mut self.v4, Span { first, last, value });
            }
            IpAddr::V6(addr) => {
                let first = addr.to_bits();
                let last = first | u128::MAX.checked_shr(network.bits().into()).unwrap_or(0);
                let value = place;
                push(&mut self.v6, Span { first, last, value });
            }
        }
    }

    /// Ends the building: what it found, in the order of addresses.
    pub fn finish(self) -> GeoTable {
        GeoTable {
            places: self.places,
            v4: disjoint(self.v4),
            v6: disjoint(self.v6),
        }
    }
}

/// Joins it to the span before where it can: databases tell their networks in
/// order, and most neighbours are of one place.
fn push<A: Number>(spans: &mut Vec<Span<A, u16>>, span: Span<A, u16>) {
    match spans.last_mut() {
        Some(last) if last.value == span.value && last.last.next() == Some(span.first) => {
            last.last = span.last;
        }
        _ => spans.push(span),
    }
}

/// Sorted and disjoint, neighbours joined.
fn disjoint<A: Number>(mut spans: Vec<Span<A, u16>>) -> Vec<Span<A, u16>> {
    let ordered = spans.windows(2).all(|pair| pair[0].last < pair[1].first);
    if !ordered {
        spans.sort_by_key(|span| span.first);
        let mut kept: Vec<Span<A, u16>> = Vec::with_capacity(spans.len());
        for mut span in spans {
            if let Some(before) = kept.last()
                && span.first <= before.last
            {
                match before.last.next() {
                    Some(free) if free <= span.last => span.first = free,
                    _ => continue,
                }
            }
            push(&mut kept, span);
        }
        spans = kept;
    }
    spans.shrink_to_fit();
    spans
}

impl GeoTable {
    /// This GeoTable, and from `systems` the numbers of autonomous systems; an
    /// address that only one of them knows has what that one says.
    ///
    /// # Errors
    /// Together they have too many places.
    pub fn with_systems(&self, systems: &GeoTable) -> Result<GeoTable, TooManyPlaces> {
        let mut builder = GeoTableBuilder::default();
        let mut pairs = HashMap::new();
        let mut number = |country: Option<u16>, system: Option<u16>| {
            let known = |places: &[Place], at: Option<u16>| {
                at.and_then(|at| places.get(usize::from(at)).copied())
                    .unwrap_or_default()
            };
            *pairs.entry((country, system)).or_insert_with(|| {
                let place = Place {
                    asn: known(&systems.places, system).asn,
                    ..known(&self.places, country)
                };
                builder.number(place)
            })
        };
        let v4 = overlay(&self.v4, &systems.v4, &mut number)?;
        let v6 = overlay(&self.v6, &systems.v6, &mut number)?;
        Ok(GeoTable {
            places: builder.places,
            v4,
            v6,
        })
    }

    /// The countries that it names, sorted.
    pub fn countries(&self) -> Vec<Country> {
        let mut countries: Vec<_> = self.places.iter().filter_map(|p| p.country).collect();
        countries.sort_unstable();
        countries.dedup();
        countries
    }
}

/// Cuts two layers where either changes.
fn overlay<A: Number>(
    below: &[Span<A, u16>],
    above: &[Span<A, u16>],
    number: &mut impl FnMut(Option<u16>, Option<u16>) -> Result<u16, TooManyPlaces>,
) -> Result<Vec<Span<A, u16>>, TooManyPlaces> {
    let mut out = Vec::with_capacity(below.len() + above.len());
    let (mut below, mut above) = (below.iter().peekable(), above.iter().peekable());
    let mut from = Some(A::MIN);
    while let Some(at) = from {
        while below.next_if(|span| span.last < at).is_some() {}
        while above.next_if(|span| span.last < at).is_some() {}
        let mut last = A::MAX;
        let mut holds = |span: Option<&&Span<A, u16>>| {
            let span = span?;
            if span.first <= at {
                last = last.min(span.last);
                Some(span.value)
            } else {
                last = last.min(span.first.previous());
                None
            }
        };
        let values = (holds(below.peek()), holds(above.peek()));
        if values != (None, None) {
            let value = number(values.0, values.1)?;
            push(
                &mut out,
                Span {
                    first: at,
                    last,
                    value,
                },
            );
        }
        from = last.next();
    }
    out.shrink_to_fit();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(code: &str) -> Place {
        let country = Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap();
        Place {
            country: Some(country),
            continent: country.continent(),
            asn: None,
        }
    }

    fn builder(networks: &[(&str, Place)]) -> GeoTable {
        let mut builder = GeoTableBuilder::default();
        for (network, place) in networks {
            let number = builder.number(*place).unwrap();
            builder.add(network.parse().unwrap(), number);
        }
        builder.finish()
    }

    #[test]
    fn neighbours_of_one_place_are_one_span() {
        let geo_table = builder(&[
            ("192.0.2.0/25", place("NL")),
            ("192.0.2.128/25", place("NL")),
            ("192.0.3.0/24", place("DE")),
            ("255.255.255.255/32", place("DE")),
            ("2001:db8::/33", place("NL")),
            ("2001:db8:8000::/33", place("NL")),
        ]);
        assert_eq!(geo_table.v4.len(), 3);
        assert_eq!(geo_table.v6.len(), 1);
        for (addr, expected) in [
            ("192.0.1.255", None),
            ("192.0.2.0", Some("NL")),
            ("192.0.2.255", Some("NL")),
            ("192.0.3.0", Some("DE")),
            ("192.0.4.0", None),
            ("255.255.255.255", Some("DE")),
            ("::ffff:192.0.2.1", Some("NL")),
            ("2001:db8:ffff::1", Some("NL")),
            ("2001:db9::", None),
        ] {
            let found = geo_table.place(addr.parse().unwrap()).country;
            assert_eq!(found.map(|c| c.to_string()).as_deref(), expected, "{addr}");
        }
    }

    #[test]
    fn a_database_names_its_countries_once() {
        let geo_table = builder(&[
            ("192.0.2.0/24", place("NL")),
            ("198.51.100.0/24", place("DE")),
            ("203.0.113.0/24", place("NL")),
            ("10.0.0.0/8", Place::default()),
        ]);
        assert_eq!(
            format!("{:?}", geo_table.countries()),
            "[country:DE, country:NL]"
        );
    }

    #[test]
    fn overlaps_and_disorder_make_disjoint_spans() {
        let geo_table = builder(&[
            ("198.51.100.128/25", place("DE")),
            ("198.51.100.0/24", place("NL")),
            ("192.0.2.0/24", place("FR")),
            ("198.51.100.200/32", place("US")),
        ]);
        assert!(
            geo_table
                .v4
                .windows(2)
                .all(|pair| pair[0].last < pair[1].first)
        );
        let country = |addr: &str| geo_table.place(addr.parse().unwrap()).country.unwrap();
        assert_eq!(country("198.51.100.1").to_string(), "NL");
        assert_eq!(country("192.0.2.1").to_string(), "FR");
    }

    #[test]
    fn too_many_places_are_an_error() {
        let mut builder = GeoTableBuilder::default();
        let system = |asn| Place {
            asn: Some(asn),
            ..Place::default()
        };
        for asn in 0..MAX_PLACES as u32 {
            builder.number(system(asn)).unwrap();
        }
        assert_eq!(builder.number(system(7)), Ok(7));
        assert_eq!(
            builder.number(system(MAX_PLACES as u32)),
            Err(TooManyPlaces)
        );
    }

    #[test]
    fn systems_are_laid_over_countries() {
        let countries = builder(&[
            ("192.0.2.0/24", place("NL")),
            ("198.51.100.0/24", place("DE")),
            ("0.0.0.0/8", place("US")),
            ("ffff::/16", place("US")),
        ]);
        let system = |asn| Place {
            asn: Some(asn),
            ..Place::default()
        };
        let systems = builder(&[
            ("192.0.2.128/25", system(64496)),
            ("203.0.113.0/24", system(64497)),
            ("ffff:8000::/17", system(64498)),
            ("ffff:4000::/24", system(64499)),
        ]);
        let both = countries.with_systems(&systems).unwrap();
        for (addr, country, asn) in [
            ("0.0.0.0", Some("US"), None),
            ("192.0.2.127", Some("NL"), None),
            ("192.0.2.128", Some("NL"), Some(64496)),
            ("192.0.3.0", None, None),
            ("203.0.113.255", None, Some(64497)),
            ("203.0.114.0", None, None),
            ("ffff:3fff:ffff:ffff::", Some("US"), None),
            ("ffff:40ff:ffff:ffff::", Some("US"), Some(64499)),
            ("ffff:4100::", Some("US"), None),
            ("ffff:7fff:ffff:ffff::", Some("US"), None),
            (
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                Some("US"),
                Some(64498),
            ),
        ] {
            let found = both.place(addr.parse().unwrap());
            assert_eq!(found.asn, asn, "{addr}");
            assert_eq!(
                found.country.map(|c| c.to_string()).as_deref(),
                country,
                "{addr}"
            );
        }
    }
}

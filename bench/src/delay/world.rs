//! The country database as the benchmark needs it: one address for the
//! NFQUEUE program, all ranges for nft. weir reads the same file by itself.

use std::{net::IpAddr, path::Path};

use anyhow::Context;
use weir_core::geo::{Country, GeoTable};
use weir_sources::geo::Database;

/// IPv4 addresses from the first to the second, in one country.
pub type Range = (u32, u32, Country);

/// An open database.
pub struct World(Database);

impl World {
    /// Reads a file, or the database that is built in.
    pub fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let database = match file {
            Some(file) => {
                Database::open(file).with_context(|| format!("open {}", file.display()))?
            }
            None => Database::built_in()?,
        };
        Ok(Self(database))
    }

    /// The country of an address, looked up in the file's own tree.
    pub fn country(&self, addr: IpAddr) -> Option<Country> {
        self.0.locate(addr).ok()??.place.country
    }

    /// All IPv4 ranges in order, neighbours in one country joined.
    pub fn ranges(&self) -> anyhow::Result<Vec<Range>> {
        Ok(joined(&self.0.countries()?))
    }
}

fn joined(geo_table: &GeoTable) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    for span in &geo_table.v4 {
        let Some(country) = geo_table.places[usize::from(span.value)].country else {
            continue;
        };
        match ranges.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(span.first) && before.2 == country => {
                before.1 = span.last;
            }
            _ => ranges.push((span.first, span.last, country)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use weir_core::geo::{Place, Span};

    use super::*;

    #[test]
    fn neighbours_in_one_country_are_one_range() {
        let country = |letters| Country::from_letters(letters);
        let place = |letters| Place {
            country: country(letters),
            ..Place::default()
        };
        let span = |first, last, value| Span { first, last, value };
        let geo_table = GeoTable {
            places: vec![place(*b"NL"), place(*b"FR"), Place::default()],
            v4: vec![
                span(0, 9, 0),
                span(10, 19, 0),
                span(20, 29, 1),
                span(31, 39, 1),
                span(40, 49, 2),
            ],
            v6: Vec::new(),
        };
        let [nl, fr] = [*b"NL", *b"FR"].map(|letters| country(letters).unwrap());
        assert_eq!(
            joined(&geo_table),
            [(0, 19, nl), (20, 29, fr), (31, 39, fr)]
        );
    }
}

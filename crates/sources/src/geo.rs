//! Where addresses are said to be: reads databases in MaxMind's format (mmdb)
//! of any maker, and the one that weir brings along, into an
//! [`GeoTable`](weir_core::geo::GeoTable). What follows from a place is the
//! geofence's business.
//!
//! A database is somebody else's file: read into memory, so that nobody can
//! truncate it under the reader; every network visited once, with a bound on
//! networks, places and time; and refused as a whole when any of it is broken,
//! or when it names no place at all. The latter is no formality: a geofence
//! that reads a file whose keys it does not know passes everybody.

mod record;
mod special_purpose;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr},
    path::Path,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use serde::de::IgnoredAny;
use weir_core::{
    Prefix,
    geo::{Country, GeoTable, GeoTableBuilder, Place, TooManyPlaces},
};

use record::Record;

/// The database that is built in, compressed; `data/README.md` says which.
static BUILT_IN: &[u8] = include_bytes!("../../../data/geo-whois-asn-country.mmdb.xz");
/// The name of the built-in database in messages.
pub const BUILT_IN_NAME: &str = "built-in";
/// Larger files are refused; the largest city databases have some 150 MB.
pub const MAX_FILE: u64 = 512 << 20;
/// A file whose records refer to one another can be small and still take days.
const MAX_TIME: Duration = Duration::from_secs(60);

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GeoError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// The path is not a regular file, or the file is too large.
    #[error("{0}")]
    File(String),
    /// The file is not in MaxMind's format, or is damaged.
    #[error("not a whole database in MaxMind's format: {0}")]
    Broken(#[from] MaxMindDbError),
    /// A tree that refers to itself, or records that take too long.
    #[error("its search tree or records refer to themselves")]
    Endless,
    /// The database has no records of the wanted kind.
    #[error("it names no {wanted}: its type is {kind:?}, its records have {keys}")]
    Foreign {
        /// Countries, or autonomous systems.
        wanted: &'static str,
        /// The file's own word.
        kind: String,
        /// The keys of its first record.
        keys: String,
    },
    /// The database tells too many places apart.
    #[error("it has {0}")]
    TooManyPlaces(#[from] TooManyPlaces),
}

/// A database in memory.
pub struct Database {
    reader: Reader<Vec<u8>>,
    /// Prefixes that the database is not asked about: their addresses are unknown.
    unknown: Vec<Prefix>,
}

/// What a database says about one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeoLookup {
    /// The network that it says it of.
    pub network: Prefix,
    /// Country and continent of the address.
    pub place: Place,
}

impl Database {
    /// The one that is built in. Private, documentation and other addresses that are
    /// nowhere (RFC 6890) are unknown to it, whatever its makers found registered.
    ///
    /// # Errors
    /// None is expected: a test reads it.
    pub fn built_in() -> Result<Self, GeoError> {
        let mut bytes = Vec::new();
        lzma_rust2::XzReader::new(BUILT_IN, false)
            .take(MAX_FILE)
            .read_to_end(&mut bytes)?;
        let mut built_in = Self::from_bytes(bytes)?;
        built_in.unknown = special_purpose::prefixes();
        Ok(built_in)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is larger than [`MAX_FILE`], or not a database.
    pub fn open(path: &Path) -> Result<Self, GeoError> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(GeoError::File("it is not a regular file".to_owned()));
        }
        if about.len() > MAX_FILE {
            return Err(GeoError::File(format!(
                "it has {} bytes: at most {MAX_FILE} are read",
                about.len()
            )));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(about.len()).unwrap_or(0));
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Self::from_bytes(bytes)
    }

    /// Takes a file's bytes.
    ///
    /// # Errors
    /// The bytes are not a database.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GeoError> {
        Ok(Self {
            reader: Reader::from_source(bytes)?,
            unknown: Vec::new(),
        })
    }

    /// The type that the database says of itself, such as `GeoLite2-Country`.
    pub fn kind(&self) -> &str {
        &self.reader.metadata().database_type
    }

    /// The time when the database was built; `None` if it has none.
    pub fn built(&self) -> Option<Timestamp> {
        let seconds = i64::try_from(self.reader.metadata().build_epoch).ok()?;
        Timestamp::from_second(seconds).ok()
    }

    /// Looks one address up.
    ///
    /// # Errors
    /// The database is broken there.
    pub fn locate(&self, addr: IpAddr) -> Result<Option<GeoLookup>, GeoError> {
        let addr = addr.to_canonical();
        let is_unknown = self.unknown.iter().any(|prefix| prefix.contains(addr));
        if is_unknown || addr.is_ipv6() && self.reader.metadata().ip_version == 4 {
            return Ok(None);
        }
        let found = self.reader.lookup(addr)?;
        let Some(record) = found.decode::<Record>()? else {
            return Ok(None);
        };
        let network = found.network()?;
        let network = match addr.is_ipv4() && network.ip().is_ipv6() {
            // One record for all of ::/96 and more is about IPv4 as well.
            true => Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            false => Prefix::new(network.ip(), network.prefix()),
        };
        Ok(network.map(|network| GeoLookup {
            network,
            place: record.place(),
        }))
    }

    /// All it says about countries and continents.
    ///
    /// # Errors
    /// It is broken somewhere, or names neither a country nor a continent.
    pub fn countries(&self) -> Result<GeoTable, GeoError> {
        self.builder("countries", |place| {
            let known = place.country.is_some() || place.continent.is_some();
            known.then_some(Place { asn: None, ..place })
        })
    }

    /// The networks of these autonomous systems. The others are left out: there are more of
    /// them than places in a GeoTable.
    ///
    /// # Errors
    /// It is broken somewhere, or names no autonomous system.
    pub fn systems(&self, wanted: &BTreeSet<u32>) -> Result<GeoTable, GeoError> {
        let mut any = false;
        let geo_table = self.survey_if(|place| {
            any |= place.asn.is_some();
            let asn = place.asn.filter(|asn| wanted.contains(asn))?;
            Some(Place {
                asn: Some(asn),
                ..Place::default()
            })
        })?;
        if !any {
            return Err(self.foreign("autonomous systems"));
        }
        Ok(geo_table)
    }

    fn builder(
        &self,
        wanted: &'static str,
        keep: impl FnMut(Place) -> Option<Place>,
    ) -> Result<GeoTable, GeoError> {
        let geo_table = self.survey_if(keep)?;
        if geo_table.places.is_empty() {
            return Err(self.foreign(wanted));
        }
        Ok(geo_table)
    }

    /// Visits every network once; `keep` is asked once per record.
    fn survey_if(
        &self,
        mut keep: impl FnMut(Place) -> Option<Place>,
    ) -> Result<GeoTable, GeoError> {
        let begin = Instant::now();
        let metadata = self.reader.metadata();
        // A tree has one leaf more than nodes; some makers let equal branches
        // share theirs. IPv4's part is visited once, however many refer to it.
        let mut left = 3 * u64::from(metadata.node_count) + 16;
        // Leaves without data count: so a step is never longer than a path.
        let options = WithinOptions::default().include_networks_without_data();
        let mut builder = GeoTableBuilder::default();
        let mut records: HashMap<usize, Option<u16>> = HashMap::new();
        for network in self.reader.networks(options)? {
            left = left.checked_sub(1).ok_or(GeoError::Endless)?;
            let found = network?;
            let Some(offset) = found.offset() else {
                continue;
            };
            let number = match records.get(&offset) {
                Some(number) => *number,
                None => {
                    if begin.elapsed() > MAX_TIME {
                        return Err(GeoError::Endless);
                    }
                    let place = found.decode::<Record>()?.and_then(|r| keep(r.place()));
                    let number = place.map(|place| builder.number(place)).transpose()?;
                    records.insert(offset, number);
                    number
                }
            };
            let Some(number) = number else { continue };
            let network = found.network()?;
            let Some(network) = Prefix::new(network.ip(), network.prefix()) else {
                continue;
            };
            special_purpose::without(network, &self.unknown, &mut |part| {
                builder.add(part, number);
            });
            // One record for all of ::/96 and more is about IPv4 as well.
            if network.addr() == IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED) && network.bits() < 96
            {
                let all = Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                let all = all.expect("0.0.0.0/0 is a prefix");
                special_purpose::without(all, &self.unknown, &mut |part| {
                    builder.add(part, number);
                });
            }
        }
        Ok(builder.finish())
    }

    fn foreign(&self, wanted: &'static str) -> GeoError {
        let keys = self.first_keys().unwrap_or_default();
        GeoError::Foreign {
            wanted,
            kind: self.kind().chars().take(64).collect(),
            keys: match keys.as_slice() {
                [] => "no keys".to_owned(),
                keys => keys.join(", "),
            },
        }
    }

    fn first_keys(&self) -> Option<Vec<String>> {
        let mut networks = self.reader.networks(WithinOptions::default()).ok()?;
        let first = networks.next()?.ok()?;
        let record = first.decode::<BTreeMap<String, IgnoredAny>>().ok()??;
        Some(
            record
                .into_keys()
                .take(8)
                .map(|key| key.chars().take(32).collect())
                .collect(),
        )
    }
}

/// The countries of `names` that `geo_table` knows nothing of.
pub fn unheard_of(geo_table: &GeoTable, names: impl IntoIterator<Item = Country>) -> Vec<Country> {
    let known = geo_table.countries();
    names
        .into_iter()
        .filter(|country| known.binary_search(country).is_err())
        .collect()
}

#[cfg(test)]
mod tests;

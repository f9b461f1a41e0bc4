//! The databases that a configuration names, opened: for one question each
//! (`weir geo`), or to be made into a GeoTable (`geo`).

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use serde::Serialize;
use weir_core::{
    Prefix,
    geo::{Continent, Country, GeoTable},
};
use weir_sources::geo::{BUILT_IN_NAME, Database, GeoError, GeoLookup};

/// Name, kind and date of a database, for messages and answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatabaseInfo {
    /// The path of the database, or `built-in`.
    pub name: String,
    /// The type that the database says of itself, such as `GeoLite2-Country`.
    pub kind: String,
    /// The time when the database was built; `None` if it has none.
    pub built: Option<Timestamp>,
}

impl DatabaseInfo {
    /// The day it was made, for messages.
    pub fn day(&self) -> String {
        match self.built {
            Some(built) => built.to_string().chars().take(10).collect(),
            None => "an unknown day".to_owned(),
        }
    }
}

/// A database and where it came from.
pub(super) struct Opened {
    database: Database,
    pub about: DatabaseInfo,
}

impl Opened {
    /// Opens this file; `None` is the built-in database.
    pub fn open(path: Option<&Path>) -> Result<Self, GeoError> {
        let database = match path {
            Some(path) => Database::open(path)?,
            None => Database::built_in()?,
        };
        let name = path.map_or_else(|| BUILT_IN_NAME.to_owned(), |p| p.display().to_string());
        Ok(Self {
            about: DatabaseInfo {
                name,
                kind: database.kind().chars().take(64).collect(),
                built: database.built(),
            },
            database,
        })
    }

    fn locate(&self, addr: IpAddr) -> Result<Option<GeoLookup>, DatabaseError> {
        self.database.locate(addr).map_err(|source| DatabaseError {
            name: self.about.name.clone(),
            source,
        })
    }

    pub fn countries(&self) -> Result<GeoTable, GeoError> {
        self.database.countries()
    }

    pub fn systems(&self, wanted: &BTreeSet<u32>) -> Result<GeoTable, GeoError> {
        self.database.systems(wanted)
    }
}

/// A database file, and who named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseFile {
    /// The configuration: one that cannot be used is replaced, as the daemon
    /// does it, with a warning.
    Configured(PathBuf),
    /// Whoever asks: it answers, or nothing does.
    Required(PathBuf),
}

impl DatabaseFile {
    fn path(&self) -> &Path {
        match self {
            Self::Configured(path) | Self::Required(path) => path,
        }
    }

    /// The database, or a warning why it is to be done without.
    ///
    /// # Errors
    /// A required file cannot be used.
    fn open(&self) -> Result<Result<Opened, String>, DatabaseError> {
        let path = self.path();
        match (Opened::open(Some(path)), self) {
            (Ok(opened), _) => Ok(Ok(opened)),
            (Err(error), Self::Configured(_)) => Ok(Err(format!("{}: {error}", path.display()))),
            (Err(source), Self::Required(_)) => Err(DatabaseError {
                name: path.display().to_string(),
                source,
            }),
        }
    }
}

/// A database cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}")]
pub struct DatabaseError {
    /// The path of the database, or `built-in`.
    pub name: String,
    /// The reason why the database cannot be used.
    source: GeoError,
}

/// What is asked about single addresses, without a GeoTable.
pub struct Databases {
    countries: Opened,
    systems: Option<Opened>,
    /// What could not be opened, and what is used instead.
    pub warnings: Vec<String>,
}

/// Country, continent and system of one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GeoAnswer {
    /// The address in question.
    pub address: IpAddr,
    /// The country that it is said to be in.
    pub country: Option<Country>,
    /// The English name of that country.
    pub country_name: Option<&'static str>,
    /// The continent of the address.
    pub continent: Option<Continent>,
    /// The network that the database says it of.
    pub network: Option<Prefix>,
    /// The autonomous system.
    pub asn: Option<u32>,
    /// The network that is said to be that system's.
    pub asn_network: Option<Prefix>,
}

impl GeoAnswer {
    /// Whether any database has the address.
    pub fn is_known(&self) -> bool {
        self.country.is_some() || self.continent.is_some() || self.asn.is_some()
    }
}

impl Databases {
    /// Opens these; `None` is the built-in one of countries, and none of
    /// systems.
    ///
    /// # Errors
    /// A required file cannot be used, or nothing at all.
    pub fn open(
        countries: Option<&DatabaseFile>,
        systems: Option<&DatabaseFile>,
    ) -> Result<Self, DatabaseError> {
        let mut warnings = Vec::new();
        let named = match countries.map(DatabaseFile::open).transpose()? {
            Some(Ok(opened)) => Some(opened),
            Some(Err(warning)) => {
                warnings.push(format!("{warning}; the built-in database answers"));
                None
            }
            None => None,
        };
        let countries = match named {
            Some(opened) => opened,
            None => Opened::open(None).map_err(|source| DatabaseError {
                name: BUILT_IN_NAME.to_owned(),
                source,
            })?,
        };
        let systems = match systems.map(DatabaseFile::open).transpose()? {
            Some(Ok(opened)) => Some(opened),
            Some(Err(warning)) => {
                warnings.push(warning);
                None
            }
            None => None,
        };
        Ok(Self {
            countries,
            systems,
            warnings,
        })
    }

    /// Names and dates of the databases in use.
    pub fn list(&self) -> Vec<&DatabaseInfo> {
        let systems = self.systems.as_ref().map(|opened| &opened.about);
        [Some(&self.countries.about), systems]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Looks an address up in both databases.
    ///
    /// # Errors
    /// A file is broken there; it may know other addresses.
    pub fn ask(&self, addr: IpAddr) -> Result<GeoAnswer, DatabaseError> {
        let addr = addr.to_canonical();
        let found = self.countries.locate(addr)?;
        let place = found.map(|found| found.place).unwrap_or_default();
        let mut answer = GeoAnswer {
            address: addr,
            country: place.country,
            country_name: place.country.and_then(Country::name),
            continent: place.continent,
            network: found.map(|found| found.network),
            asn: place.asn,
            asn_network: found.filter(|f| f.place.asn.is_some()).map(|f| f.network),
        };
        if let Some(systems) = &self.systems
            && let Some(found) = systems.locate(addr)?
            && found.place.asn.is_some()
        {
            answer.asn = found.place.asn;
            answer.asn_network = Some(found.network);
        }
        Ok(answer)
    }
}

/// The databases that a configuration names, as far as it can be read: a
/// mistake elsewhere in the file must not keep a question from its answer.
pub fn named_in(config: &Path) -> (Option<DatabaseFile>, Option<DatabaseFile>) {
    let named = || {
        let text = std::fs::read_to_string(config).ok()?;
        let table: toml::Table = text.parse().ok()?;
        let geofence = table.get("geofence")?.clone();
        Some(move |key| {
            let path = geofence.get(key)?.as_str()?;
            Some(DatabaseFile::Configured(path.into()))
        })
    };
    named().map_or((None, None), |path| {
        (path("database"), path("asn_database"))
    })
}

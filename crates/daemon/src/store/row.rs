//! How values are written in a row of the database, and what is wrong with it
//! when they cannot be read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use rusqlite::ErrorCode;
use weir_core::{BanTarget, Prefix};

/// A key, which may be no text, and a record; `None`: that is no text, or too long.
pub type TextRow = (Vec<u8>, Option<String>);

/// A fault of the database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// SQLite has answered with an error.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The database's file cannot be looked at.
    #[error("cannot read it: {0}")]
    File(String),
    /// The database was written by a newer weir.
    #[error("it has version {found}, and this weir knows {known}: it was written by a newer weir")]
    Newer {
        /// The file's version.
        found: i64,
        /// The latest of this weir.
        known: i64,
    },
}

impl DatabaseError {
    /// Is the file beyond use, as opposed to not writable just now?
    pub fn is_corrupt(&self) -> bool {
        matches!(
            self,
            Self::Sqlite(rusqlite::Error::SqliteFailure(e, _))
                if matches!(e.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ) || matches!(
            self,
            Self::Sqlite(
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::InvalidColumnType(..)
            )
        )
    }
}

pub(super) fn blob(prefix: Prefix) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(17);
    bytes.push(prefix.bits());
    match prefix.addr() {
        IpAddr::V4(addr) => bytes.extend(addr.octets()),
        IpAddr::V6(addr) => bytes.extend(addr.octets()),
    }
    bytes
}

pub(super) fn prefix_from(bytes: &[u8]) -> Option<Prefix> {
    let (len, addr) = bytes.split_first()?;
    let addr: IpAddr = match addr.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(addr).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(addr).ok()?).into(),
        _ => return None,
    };
    Prefix::new(addr, *len)
}

pub(super) fn subject_from(bytes: &[u8]) -> Option<BanTarget> {
    BanTarget::new(prefix_from(bytes)?).ok()
}

pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

//! The executables that rules by `path` are about (`identity/pins.rs`): a row a path, in the
//! words of whoever keeps them. Nothing here asks what they mean.

use rusqlite::{Connection, Transaction, params};

use super::row::{DatabaseError, TextRow};

/// The table; part of the schema.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS pins (path TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
";

/// What is kept of one path, to be written, or to go.
#[derive(Debug, Clone)]
pub struct PinRow {
    /// The path of an executable; of a row to delete as [`all`] has read it.
    pub path: Vec<u8>,
    /// The text to keep; `None` deletes the row.
    pub record: Option<String>,
}

pub(super) fn write(transaction: &Transaction<'_>, row: &PinRow) -> Result<(), DatabaseError> {
    match &row.record {
        Some(record) => transaction
            .prepare_cached("INSERT OR REPLACE INTO pins VALUES (CAST(?1 AS TEXT), ?2)")?
            .execute(params![row.path, record])?,
        // Also one that is no text.
        None => transaction
            .prepare_cached("DELETE FROM pins WHERE path IN (CAST(?1 AS TEXT), ?1)")?
            .execute([&row.path])?,
    };
    Ok(())
}

/// So many rows at most: paths, which may be no text, and records; `None` is one that is longer
/// than so many bytes, or no text.
pub(super) fn all(
    connection: &Connection,
    rows: usize,
    longest: usize,
) -> Result<Vec<TextRow>, DatabaseError> {
    let mut query = connection.prepare(
        "SELECT CAST(path AS BLOB),
                CASE WHEN length(CAST(record AS BLOB)) <= ?1 THEN record END
         FROM pins ORDER BY path LIMIT ?2",
    )?;
    let longest = i64::try_from(longest).unwrap_or(i64::MAX);
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    let rows = query.query_map(params![longest, rows], |row| {
        let path = row.get_ref(0)?.as_blob().unwrap_or_default().to_owned();
        let record = row.get_ref(1)?.as_str().ok().map(str::to_owned);
        Ok((path, record))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

//! The addresses that names in rules had last (`identity/names.rs`): a row a name, in the
//! words of whoever looks them up. Nothing here asks what they mean.

use rusqlite::{Connection, Transaction, params};

use super::row::{DatabaseError, TextRow};

/// The table; part of the schema.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS resolved (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
";

/// The longest name that is read: of a longer one no more than this.
const LONGEST_NAME: i64 = 254;

/// The addresses of one name, to be written, or to go.
#[derive(Debug, Clone)]
pub struct ResolvedRow {
    /// The name of a host, as rules have it; of a row to delete as [`all`] has read it.
    pub name: Vec<u8>,
    /// The text to keep; `None` deletes the row.
    pub record: Option<String>,
}

pub(super) fn write(transaction: &Transaction<'_>, row: &ResolvedRow) -> Result<(), DatabaseError> {
    match &row.record {
        Some(record) => transaction
            .prepare_cached("INSERT OR REPLACE INTO resolved VALUES (CAST(?1 AS TEXT), ?2)")?
            .execute(params![row.name, record])?,
        // Also one that is no text, or is longer than what is read of it.
        None => transaction
            .prepare_cached("DELETE FROM resolved WHERE substr(CAST(name AS BLOB), 1, ?2) = ?1")?
            .execute(params![row.name, LONGEST_NAME])?,
    };
    Ok(())
}

/// Deletes all rows.
pub(super) fn forget(transaction: &Transaction<'_>) -> Result<(), DatabaseError> {
    Ok(transaction.execute_batch("DELETE FROM resolved")?)
}

/// So many rows at most: names, which may be no text, and records; `None` is one that is
/// longer than so many bytes, or no text.
pub(super) fn all(
    connection: &Connection,
    rows: usize,
    longest: usize,
) -> Result<Vec<TextRow>, DatabaseError> {
    let mut query = connection.prepare(
        "SELECT substr(CAST(name AS BLOB), 1, ?1),
                CASE WHEN length(CAST(record AS BLOB)) <= ?2 THEN record END
         FROM resolved ORDER BY name LIMIT ?3",
    )?;
    let longest = i64::try_from(longest).unwrap_or(i64::MAX);
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    let rows = query.query_map(params![LONGEST_NAME, longest, rows], |row| {
        let name = row.get_ref(0)?.as_blob().unwrap_or_default().to_owned();
        let record = row.get_ref(1)?.as_str().ok().map(str::to_owned);
        Ok((name, record))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

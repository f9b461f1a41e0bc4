//! What programs were seen doing (`identity/learning.rs`): a row a program, in the words of
//! whoever learns. Nothing here asks what they mean.

use rusqlite::{Connection, Transaction, params};

use super::row::{DatabaseError, TextRow};

/// The table; part of the schema.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS learned (key TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
";

/// A row that is written, or that goes.
#[derive(Debug, Clone)]
pub struct LearnedRow {
    /// The row's name in the table; of a row to delete as [`all`] has read it.
    pub key: Vec<u8>,
    /// The text to keep; `None` deletes the row.
    pub record: Option<String>,
}

pub(super) fn write(transaction: &Transaction<'_>, row: &LearnedRow) -> Result<(), DatabaseError> {
    match &row.record {
        Some(record) => transaction
            .prepare_cached("INSERT OR REPLACE INTO learned VALUES (CAST(?1 AS TEXT), ?2)")?
            .execute(params![row.key, record])?,
        // Also one that is no text.
        None => transaction
            .prepare_cached("DELETE FROM learned WHERE key IN (CAST(?1 AS TEXT), ?1)")?
            .execute([&row.key])?,
    };
    Ok(())
}

/// All rows: keys, which may be no text, and records; `None` is one that is no text.
pub(super) fn all(connection: &Connection) -> Result<Vec<TextRow>, DatabaseError> {
    let mut query =
        connection.prepare("SELECT CAST(key AS BLOB), record FROM learned ORDER BY key")?;
    let rows = query.query_map([], |row| {
        let key = row.get_ref(0)?.as_blob().unwrap_or_default().to_owned();
        let record = row.get_ref(1)?.as_str().ok().map(str::to_owned);
        Ok((key, record))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

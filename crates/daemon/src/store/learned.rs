//! What programs were seen doing (`identity/learning.rs`): a row a program, in the words of
//! whoever learns. Nothing here asks what they mean.

use rusqlite::{Connection, Transaction, params};

use super::row::DatabaseError;

/// The table; part of the schema.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS learned (key TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
";

/// A row that is written, or that goes.
#[derive(Debug, Clone)]
pub struct LearnedRow {
    /// The row's name in the table.
    pub key: String,
    /// The text to keep; `None` deletes the row.
    pub record: Option<String>,
}

pub(super) fn write(transaction: &Transaction<'_>, row: &LearnedRow) -> Result<(), DatabaseError> {
    match &row.record {
        Some(record) => transaction
            .prepare_cached("INSERT OR REPLACE INTO learned VALUES (?1, ?2)")?
            .execute(params![row.key, record])?,
        None => transaction
            .prepare_cached("DELETE FROM learned WHERE key = ?1")?
            .execute([&row.key])?,
    };
    Ok(())
}

/// All rows: keys and records.
pub(super) fn all(connection: &Connection) -> Result<Vec<(String, String)>, DatabaseError> {
    let mut query = connection.prepare("SELECT key, record FROM learned ORDER BY key")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

//! How far each source was read and what its lines have changed in the counts:
//! one row a source, one row a subject, written in one transaction, so that a
//! crash repeats no line and loses none.

use std::collections::HashMap;

use rusqlite::{Connection, Transaction, params};
use weir_core::policy::Tracked;

use super::row::{DatabaseError, blob, subject_from};

/// How far a source was read, with the counts of that moment.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The source's name.
    pub source: String,
    /// The source's own words for the place; `None` where it remembers that itself.
    pub position: Option<String>,
    /// Subjects whose counted failures have changed.
    pub tracked: Vec<Tracked>,
}

pub(super) fn tracked(connection: &Connection) -> Result<Vec<Tracked>, DatabaseError> {
    let mut query = connection.prepare("SELECT jail, subject, failures FROM tracked")?;
    let mut rows = query.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let subject = subject_from(row.get_ref(1)?.as_blob().unwrap_or_default());
        let failures = serde_json::from_str(row.get_ref(2)?.as_str().unwrap_or_default());
        if let (Some(subject), Ok(failures)) = (subject, failures) {
            all.push(Tracked {
                jail: row.get(0)?,
                subject,
                failures,
            });
        }
    }
    Ok(all)
}

pub(super) fn positions(connection: &Connection) -> Result<HashMap<String, String>, DatabaseError> {
    let mut query = connection.prepare("SELECT source, position FROM positions")?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn write(
    transaction: &Transaction<'_>,
    progress: &Progress,
) -> Result<(), DatabaseError> {
    let mut set =
        transaction.prepare_cached("INSERT OR REPLACE INTO tracked VALUES (?1, ?2, ?3)")?;
    let mut forget =
        transaction.prepare_cached("DELETE FROM tracked WHERE jail = ?1 AND subject = ?2")?;
    for tracked in &progress.tracked {
        let subject = blob(tracked.subject.prefix());
        if tracked.failures.is_empty() {
            forget.execute(params![tracked.jail, subject])?;
        } else {
            let failures = serde_json::to_string(&tracked.failures).unwrap_or_default();
            set.execute(params![tracked.jail, subject, failures])?;
        }
    }
    if let Some(position) = &progress.position {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO positions VALUES (?1, ?2)")?
            .execute(params![progress.source, position])?;
    }
    Ok(())
}

/// Forgets the counts of all other jails.
pub(super) fn keep_jails(
    transaction: &Transaction<'_>,
    names: &[String],
) -> Result<(), DatabaseError> {
    let names = serde_json::to_string(names).unwrap_or_default();
    transaction.execute(
        "DELETE FROM tracked WHERE jail NOT IN (SELECT value FROM json_each(?1))",
        [names],
    )?;
    Ok(())
}

/// From version 2, which kept each subject as one text without a key.
pub(super) fn from_2(connection: &Connection) -> Result<(), DatabaseError> {
    let mut query = connection.prepare("SELECT failures FROM tracked")?;
    let texts = query.query_map([], |row| row.get::<_, String>(0))?;
    let all: Vec<Tracked> = texts
        .filter_map(|text| serde_json::from_str(&text.ok()?).ok())
        .collect();
    drop(query);
    let transaction = connection.unchecked_transaction()?;
    transaction.execute_batch(
        "DROP TABLE tracked;
         CREATE TABLE tracked (
             jail TEXT NOT NULL, subject BLOB NOT NULL, failures TEXT NOT NULL,
             PRIMARY KEY (jail, subject)) WITHOUT ROWID;
         PRAGMA user_version = 3;",
    )?;
    let progress = Progress {
        source: String::new(),
        position: None,
        tracked: all,
    };
    write(&transaction, &progress)?;
    transaction.commit()?;
    Ok(())
}

//! The bans that actions elsewhere were told of (`fail2ban_actions`): a row for each that
//! an action keeps beyond its stop, so that the next daemon tells it of no ban twice, of
//! each that it missed, and of each end.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, Transaction, params};
use weir_core::{BanTarget, Until};

use super::row::{DatabaseError, blob, subject_from, timestamp};

/// The table; part of the schema.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS action_notices (
    jail TEXT NOT NULL, action TEXT NOT NULL, subject BLOB NOT NULL,
    commands INTEGER NOT NULL, since INTEGER NOT NULL, until INTEGER,
    failures INTEGER NOT NULL, restored INTEGER NOT NULL,
    PRIMARY KEY (jail, action, subject)) WITHOUT ROWID;
";

/// An action of a jail, and the text of its commands: what other commands were told says
/// nothing of what these know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActionKey {
    /// The jail's name.
    pub jail: String,
    /// The action's name.
    pub action: String,
    /// A number that stands for the text of the action's commands.
    pub commands: i64,
}

/// A number that stands for these texts, the same in each daemon (FNV-1a, each text with an
/// end of its own).
pub fn number_of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> i64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    let number = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    number.cast_signed()
}

/// What a filter has captured of a failure, by its names: `user` of `<F-USER>`. A client's
/// text, bounded and without control characters.
pub type CapturedValues = Arc<[(Arc<str>, String)]>;

/// A ban as an action was told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionNotice {
    /// The address or network that is banned.
    pub subject: BanTarget,
    /// The time at which the ban began.
    pub since: Timestamp,
    /// The time at which the ban ends.
    pub until: Until,
    /// The number of failures that led to the ban.
    pub failures: u32,
    /// Whether the ban was made before the action was told.
    pub is_restored: bool,
    /// What the filter has captured, as far as commands ask for it; not in the database.
    pub captured: Option<CapturedValues>,
}

/// A row that is written, or that goes.
#[derive(Debug, Clone)]
pub enum ActionNoticeChange {
    /// The action was told of the ban.
    Put(ActionKey, ActionNotice),
    /// The action was told of the ban's end, or is never told of it.
    Delete(ActionKey, BanTarget),
}

pub(super) fn write(
    transaction: &Transaction<'_>,
    change: &ActionNoticeChange,
) -> Result<(), DatabaseError> {
    match change {
        ActionNoticeChange::Put(key, notice) => transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO action_notices VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                key.jail,
                key.action,
                blob(notice.subject.prefix()),
                key.commands,
                notice.since.as_microsecond(),
                match notice.until {
                    Until::Never => None,
                    Until::At(end) => Some(end.as_microsecond()),
                },
                notice.failures,
                notice.is_restored,
            ])?,
        ActionNoticeChange::Delete(key, subject) => transaction
            .prepare_cached(
                "DELETE FROM action_notices
                 WHERE jail = ?1 AND action = ?2 AND subject = ?3 AND commands = ?4",
            )?
            .execute(params![
                key.jail,
                key.action,
                blob(subject.prefix()),
                key.commands
            ])?,
    };
    Ok(())
}

/// All rows, by action.
pub(super) fn all(
    connection: &Connection,
) -> Result<Vec<(ActionKey, ActionNotice)>, DatabaseError> {
    let mut query = connection.prepare(
        "SELECT jail, action, commands, subject, since, until, failures, restored
         FROM action_notices ORDER BY jail, action, subject",
    )?;
    let mut rows = query.query([])?;
    let mut notices = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(subject) = subject_from(row.get_ref(3)?.as_blob().unwrap_or_default()) else {
            continue;
        };
        let key = ActionKey {
            jail: row.get(0)?,
            action: row.get(1)?,
            commands: row.get(2)?,
        };
        let until: Option<i64> = row.get(5)?;
        let notice = ActionNotice {
            subject,
            since: timestamp(row.get(4)?),
            until: until.map_or(Until::Never, |end| Until::At(timestamp(end))),
            failures: row.get(6)?,
            is_restored: row.get(7)?,
            captured: None,
        };
        notices.push((key, notice));
    }
    Ok(notices)
}

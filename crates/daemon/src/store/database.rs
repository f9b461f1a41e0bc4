//! The SQLite file: its tables, how it is opened, moved aside when it is
//! broken, read and written. Threads and retries are the parent's business.
//!
//! Bans are two tables: `bans` is narrow, so that a million of them are read
//! in one quick scan at start; `details` holds the words.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, config::DbConfig, params,
};
use weir_core::{Ban, BanTarget, PrefixSet, Until};
use weir_enforce::{BanCounts, BootNanos, Entry, Expiry, Policy};

use super::{
    AllowEntry, Change, Detail, action_notices,
    clock::Now,
    learned, pins, progress, resolved,
    restore::{Boot, Row, StoredState},
    row::{DatabaseError, blob, prefix_from, subject_from, timestamp},
};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS boots (
    id INTEGER PRIMARY KEY, boot TEXT NOT NULL UNIQUE,
    last_wall INTEGER NOT NULL, last_boottime INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS policies (
    id INTEGER PRIMARY KEY, producer TEXT NOT NULL, scope TEXT NOT NULL,
    action TEXT NOT NULL, UNIQUE (producer, scope, action));
CREATE TABLE IF NOT EXISTS bans (
    subject BLOB NOT NULL, policy INTEGER NOT NULL, boot INTEGER NOT NULL,
    expiry INTEGER, until INTEGER, PRIMARY KEY (subject, policy)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS details (
    subject BLOB NOT NULL, policy INTEGER NOT NULL, since INTEGER NOT NULL,
    reason TEXT NOT NULL, evidence TEXT NOT NULL, PRIMARY KEY (subject, policy)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS allow (
    prefix BLOB PRIMARY KEY, since INTEGER NOT NULL, note TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY, subject BLOB NOT NULL, policy INTEGER NOT NULL,
    since INTEGER NOT NULL, until INTEGER, reason TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS history_subject ON history (subject);
CREATE TABLE IF NOT EXISTS tracked (
    jail TEXT NOT NULL, subject BLOB NOT NULL, failures TEXT NOT NULL,
    PRIMARY KEY (jail, subject)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
    source TEXT PRIMARY KEY, position TEXT NOT NULL) WITHOUT ROWID;
";

/// `PRAGMA user_version` of the tables above.
const VERSION: i64 = 3;

/// From version 1, whose bans all dropped.
const FROM_1: &str = "
BEGIN;
ALTER TABLE policies RENAME TO policies_1;
CREATE TABLE policies (
    id INTEGER PRIMARY KEY, producer TEXT NOT NULL, scope TEXT NOT NULL,
    action TEXT NOT NULL, UNIQUE (producer, scope, action));
INSERT INTO policies SELECT id, producer, scope, 'drop' FROM policies_1;
DROP TABLE policies_1;
PRAGMA user_version = 2;
COMMIT;
";

/// The page cache of the writer during a batch, given back after a large one.
const CACHE_KIB: i64 = 16 * 1024;
const LARGE_BATCH: usize = 1000;

/// One process at a time has the database, and the index of its log is in that
/// process's memory: in a file that is mapped, as usual, whoever cuts it short,
/// or makes it immutable, ends the daemon by SIGBUS.
const VFS: &str = "unix-excl";

/// Writes what is in the log before the file into the file, and forgets the log.
pub(super) fn checkpoint(connection: &Connection) -> Result<(), DatabaseError> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?)
}

/// Opens for writing and makes the tables. A new file is its owner's alone,
/// whatever the umask, and so are the log and the index that SQLite puts beside
/// it: they take its mode. One that is there keeps the mode that it has.
pub(super) fn open(path: &Path) -> Result<Connection, DatabaseError> {
    // Whatever is wrong with the path, SQLite says it below.
    let _ = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let connection = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), VFS)?;
    connection.busy_timeout(std::time::Duration::from_secs(2))?;
    // A file that somebody has put in our file's place is not to be written to.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |r| r.get(0))?;
    if mode != "wal" {
        tracing::warn!("the database is in journal mode {mode}, not WAL");
    }
    // A reply says durable: each commit is synced. Batches make this one sync a second.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |r| r.get(0))?;
    if version > VERSION {
        return Err(DatabaseError::Newer {
            found: version,
            known: VERSION,
        });
    }
    if version == 1 {
        connection.execute_batch(FROM_1)?;
    }
    if matches!(version, 1 | 2) {
        progress::from_2(&connection)?;
    }
    connection.execute_batch(SCHEMA)?;
    connection.execute_batch(learned::SCHEMA)?;
    connection.execute_batch(action_notices::SCHEMA)?;
    connection.execute_batch(resolved::SCHEMA)?;
    connection.execute_batch(pins::SCHEMA)?;
    if version < VERSION {
        connection.pragma_update(None, "user_version", VERSION)?;
    }
    Ok(connection)
}

/// Opens for reading; a file on a read-only disk as well.
pub(super) fn open_reader(path: &Path) -> Result<Connection, DatabaseError> {
    // For writing as well, where that can be: else SQLite maps the index.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, VFS)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.busy_timeout(std::time::Duration::from_secs(2))?;
    let readable: Result<i64, _> =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0));
    match readable {
        Ok(_) => Ok(connection),
        // Without write access to its directory, a WAL database opens only as immutable.
        Err(rusqlite::Error::SqliteFailure(e, _))
            if matches!(e.code, ErrorCode::CannotOpen | ErrorCode::ReadOnly) =>
        {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_URI;
            Ok(Connection::open_with_flags(immutable(path), flags)?)
        }
        Err(other) => Err(other.into()),
    }
}

/// The file's URI, for one that nobody writes.
fn immutable(path: &Path) -> String {
    let path = percent_encode(path.as_os_str().as_bytes(), &RESERVED);
    format!("file:{path}?immutable=1")
}

/// What is not a path in a URI that SQLite reads.
const RESERVED: AsciiSet = CONTROLS.add(b'%').add(b'?').add(b'#');

/// How many bans there are. A subject begins with its length, IPv6 of up to 32 bits
/// is rare; this reads pages, not rows.
pub(super) fn count(connection: &Connection) -> Result<BanCounts, DatabaseError> {
    let (all, v4_hosts, v6_hosts): (i64, i64, i64) = connection.query_row(
        "SELECT (SELECT count(*) FROM bans),
                (SELECT count(*) FROM bans WHERE subject >= x'20' AND subject < x'21'),
                (SELECT count(*) FROM bans WHERE subject >= x'80')",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let number = |count: i64| count.max(0) as usize;
    Ok(BanCounts {
        v4_hosts: number(v4_hosts),
        networks: number(all - v4_hosts - v6_hosts),
        v6_hosts: number(v6_hosts),
    })
}

pub(super) fn load(connection: &Connection) -> Result<StoredState, DatabaseError> {
    let mut loaded = StoredState::default();
    let mut boot_index = HashMap::new();
    let mut boots = connection.prepare("SELECT id, boot, last_wall, last_boottime FROM boots")?;
    let mut rows = boots.query([])?;
    while let Some(row) = rows.next()? {
        boot_index.insert(row.get::<_, i64>(0)?, loaded.boots.len());
        loaded.boots.push(Boot {
            id: row.get(1)?,
            last_wall: timestamp(row.get(2)?),
            last_boottime: BootNanos(row.get::<_, i64>(3)?.max(0) as u64),
        });
    }
    let policies = policies(connection)?;
    let mut bans = connection.prepare("SELECT subject, policy, boot, expiry, until FROM bans")?;
    let mut rows = bans.query([])?;
    while let Some(row) = rows.next()? {
        let (Some(subject), Some(policy), Some(boot)) = (
            subject_from(row.get_ref(0)?.as_blob().unwrap_or_default()),
            policies.get(&row.get(1)?),
            boot_index.get(&row.get(2)?),
        ) else {
            continue;
        };
        loaded.rows.push(Row {
            subject,
            policy: policy.clone(),
            boot: *boot,
            expiry: row
                .get::<_, Option<i64>>(3)?
                .map_or(Expiry::Never, |ns| Expiry::At(BootNanos(ns.max(0) as u64))),
            until: until_from(row.get(4)?),
        });
    }
    Ok(loaded)
}

pub(super) fn policies(
    connection: &Connection,
) -> Result<HashMap<i64, Arc<Policy>>, DatabaseError> {
    let mut policies = HashMap::new();
    let version: i64 = connection.query_row("PRAGMA user_version", [], |r| r.get(0))?;
    // A disk that nobody can write to may hold the tables of version 1.
    let mut query = connection.prepare_cached(match version {
        1 => "SELECT id, producer, scope, 'drop' FROM policies",
        _ => "SELECT id, producer, scope, action FROM policies",
    })?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let producer = row.get_ref(1)?.as_str().unwrap_or_default().parse();
        let scope = row.get_ref(2)?.as_str().unwrap_or_default().parse();
        let action = row.get_ref(3)?.as_str().unwrap_or_default().parse();
        if let (Ok(producer), Ok(scope), Ok(action)) = (producer, scope, action) {
            let policy = Policy {
                producer,
                scope,
                action,
            };
            policies.insert(row.get(0)?, Arc::new(policy));
        }
    }
    Ok(policies)
}

pub(super) fn allow(connection: &Connection) -> Result<Vec<AllowEntry>, DatabaseError> {
    let mut query = connection.prepare("SELECT prefix, since, note FROM allow ORDER BY prefix")?;
    let mut rows = query.query([])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(prefix) = prefix_from(row.get_ref(0)?.as_blob().unwrap_or_default()) {
            entries.push(AllowEntry {
                prefix,
                since: timestamp(row.get(1)?),
                note: row.get(2)?,
            });
        }
    }
    Ok(entries)
}

pub(super) fn detail(
    connection: &Connection,
    subject: BanTarget,
    policy: &Policy,
) -> Result<Option<Detail>, DatabaseError> {
    let mut query = connection.prepare_cached(
        "SELECT d.since, d.reason, d.evidence FROM details d, policies p
         WHERE p.id = d.policy AND d.subject = ?1
           AND p.producer = ?2 AND p.scope = ?3 AND p.action = ?4",
    )?;
    let found = query
        .query_row(
            params![
                blob(subject.prefix()),
                policy.producer.to_string(),
                policy.scope.to_string(),
                policy.action.name()
            ],
            |row| {
                Ok(Detail {
                    since: timestamp(row.get(0)?),
                    reason: row.get(1)?,
                    evidence: serde_json::from_str(row.get_ref(2)?.as_str().unwrap_or("[]"))
                        .unwrap_or_default(),
                })
            },
        )
        .optional()?;
    Ok(found)
}

/// Writes a batch in one transaction.
pub(super) fn write(
    connection: &mut Connection,
    changes: &[Change],
    now: &Now,
) -> Result<(), DatabaseError> {
    let transaction = connection.transaction()?;
    let boot = this_boot(&transaction, now)?;
    let mut policy_ids = PolicyIds::default();
    let mut rest = changes;
    while let Some(first) = rest.first() {
        // Changes of different subjects commute. In the order of the trees'
        // keys each page is touched once: a flood's bans come in any order.
        let run = rest.iter().take_while(|c| c.subject().is_some()).count();
        if run == 0 {
            write_one(&transaction, first, boot, now, &mut policy_ids)?;
            rest = &rest[1..];
            continue;
        }
        let mut sorted: Vec<&Change> = rest[..run].iter().collect();
        sorted.sort_by_key(|change| change.subject());
        for change in sorted {
            write_one(&transaction, change, boot, now, &mut policy_ids)?;
        }
        rest = &rest[run..];
    }
    transaction.commit()?;
    if changes.len() >= LARGE_BATCH {
        connection.execute_batch("PRAGMA shrink_memory")?;
    }
    Ok(())
}

fn this_boot(transaction: &Transaction<'_>, now: &Now) -> Result<i64, DatabaseError> {
    Ok(transaction.query_row(
        "INSERT INTO boots (boot, last_wall, last_boottime) VALUES (?1, ?2, ?3)
         ON CONFLICT (boot) DO UPDATE SET last_wall = ?2, last_boottime = ?3 RETURNING id",
        params![now.boot, now.wall.as_microsecond(), now.boottime.0 as i64],
        |row| row.get(0),
    )?)
}

/// The numbers of the policies in a batch, and of those with other actions, if the database
/// has met them.
type PolicyIds = HashMap<Policy, (i64, Vec<i64>)>;

fn policy_id(
    transaction: &Transaction<'_>,
    policy: &Policy,
    known: &mut PolicyIds,
) -> Result<(i64, Vec<i64>), DatabaseError> {
    if let Some(ids) = known.get(policy) {
        return Ok(ids.clone());
    }
    let names = [policy.producer.to_string(), policy.scope.to_string()];
    let action = policy.action.name();
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO policies (producer, scope, action) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![names[0], names[1], action])?;
    let own = known_policy_id(transaction, policy)?.unwrap_or_default();
    let mut others = Vec::new();
    for other in policy.with_other_actions() {
        others.extend(known_policy_id(transaction, &other)?);
        // One that comes later in the batch has this one's number to forget.
        known.remove(&other);
    }
    known.insert(policy.clone(), (own, others.clone()));
    Ok((own, others))
}

/// The number of a policy that the database has met.
fn known_policy_id(
    transaction: &Transaction<'_>,
    policy: &Policy,
) -> Result<Option<i64>, DatabaseError> {
    Ok(transaction
        .prepare_cached(
            "SELECT id FROM policies WHERE producer = ?1 AND scope = ?2 AND action = ?3",
        )?
        .query_row(
            params![
                policy.producer.to_string(),
                policy.scope.to_string(),
                policy.action.name()
            ],
            |row| row.get(0),
        )
        .optional()?)
}

/// Forgets one ban.
fn forget(transaction: &Transaction<'_>, subject: &[u8], policy: i64) -> Result<(), DatabaseError> {
    for statement in [
        "DELETE FROM bans WHERE subject = ?1 AND policy = ?2",
        "DELETE FROM details WHERE subject = ?1 AND policy = ?2",
    ] {
        transaction
            .prepare_cached(statement)?
            .execute(params![subject, policy])?;
    }
    Ok(())
}

/// One more ban in the history.
fn remember_past(
    transaction: &Transaction<'_>,
    ban: &Ban,
    policy: i64,
) -> Result<(), DatabaseError> {
    transaction
        .prepare_cached(
            "INSERT INTO history (subject, policy, since, until, reason)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            blob(ban.subject.prefix()),
            policy,
            ban.since.as_microsecond(),
            until_to(ban.until),
            ban.reason
        ])?;
    Ok(())
}

fn write_one(
    transaction: &Transaction<'_>,
    change: &Change,
    boot: i64,
    now: &Now,
    policy_ids: &mut PolicyIds,
) -> Result<(), DatabaseError> {
    match change {
        Change::Ban { ban, expiry } => {
            let policy = Policy {
                producer: ban.producer.clone(),
                scope: ban.scope.clone(),
                action: ban.action,
            };
            let (policy, others) = policy_id(transaction, &policy, policy_ids)?;
            let subject = blob(ban.subject.prefix());
            for other in others {
                forget(transaction, &subject, other)?;
            }
            write_row(transaction, &subject, policy, boot, *expiry, ban.until)?;
            transaction
                .prepare_cached("INSERT OR REPLACE INTO details VALUES (?1, ?2, ?3, ?4, ?5)")?
                .execute(params![
                    subject,
                    policy,
                    ban.since.as_microsecond(),
                    ban.reason,
                    serde_json::to_string(&ban.evidence).unwrap_or_default()
                ])?;
            remember_past(transaction, ban, policy)?;
        }
        Change::PastBans { ban, count } => {
            let policy = Policy {
                producer: ban.producer.clone(),
                scope: ban.scope.clone(),
                action: ban.action,
            };
            let (policy, _) = policy_id(transaction, &policy, policy_ids)?;
            for _ in 0..*count {
                remember_past(transaction, ban, policy)?;
            }
        }
        Change::Recovered { entry, until } => {
            let (policy, _) = policy_id(transaction, &entry.policy, policy_ids)?;
            let subject = blob(entry.subject.prefix());
            let is_known = transaction
                .prepare_cached("SELECT 1 FROM bans WHERE subject = ?1 AND policy = ?2")?
                .exists(params![subject, policy])?;
            if is_known {
                write_row(transaction, &subject, policy, boot, entry.expiry, *until)?;
            } else {
                let ban = recovered(entry, *until, now);
                let expiry = entry.expiry;
                let change = Change::Ban { ban, expiry };
                write_one(transaction, &change, boot, now, policy_ids)?;
            }
        }
        Change::Restored { entry, until } => {
            let (policy, _) = policy_id(transaction, &entry.policy, policy_ids)?;
            let subject = blob(entry.subject.prefix());
            write_row(transaction, &subject, policy, boot, entry.expiry, *until)?;
        }
        Change::Unban { subject, policy } => {
            let (policy, _) = policy_id(transaction, policy, policy_ids)?;
            forget(transaction, &blob(subject.prefix()), policy)?;
        }
        Change::Ended {
            subject,
            policy,
            by,
        } => {
            let (policy, _) = policy_id(transaction, policy, policy_ids)?;
            let subject = blob(subject.prefix());
            let over = transaction
                .prepare_cached(
                    "SELECT 1 FROM bans WHERE subject = ?1 AND policy = ?2 AND boot = ?3
                     AND expiry <= ?4",
                )?
                .exists(params![subject, policy, boot, by.0 as i64])?;
            if over {
                forget(transaction, &subject, policy)?;
            }
        }
        Change::UnbanAll => {
            transaction.execute_batch("DELETE FROM bans; DELETE FROM details;")?;
        }
        Change::AllowAdd(entry) => {
            transaction.execute(
                "INSERT OR REPLACE INTO allow VALUES (?1, ?2, ?3)",
                params![blob(entry.prefix), entry.since.as_microsecond(), entry.note],
            )?;
        }
        Change::AllowDel(prefix) => {
            transaction.execute("DELETE FROM allow WHERE prefix = ?1", [blob(*prefix)])?;
        }
        Change::Progress(progress) => progress::write(transaction, progress)?,
        Change::KeepJails(names) => progress::keep_jails(transaction, names)?,
        Change::ForgetPosition(source) => {
            transaction.execute("DELETE FROM positions WHERE source = ?1", [source])?;
        }
        Change::Learned(row) => learned::write(transaction, row)?,
        Change::Pin(row) => pins::write(transaction, row)?,
        Change::Resolved(row) => resolved::write(transaction, row)?,
        Change::ForgetResolved => resolved::forget(transaction)?,
        Change::ActionNotice(change) => action_notices::write(transaction, change)?,
    }
    Ok(())
}

/// A ban that nobody can explain any more.
fn recovered(entry: &Entry, until: Until, now: &Now) -> Ban {
    Ban {
        subject: entry.subject,
        scope: entry.policy.scope.clone(),
        producer: entry.policy.producer.clone(),
        action: entry.policy.action,
        reason: "recovered from the kernel's table; its explanation was lost".into(),
        since: now.wall,
        until,
        evidence: Vec::new(),
    }
}

fn write_row(
    transaction: &Transaction<'_>,
    subject: &[u8],
    policy: i64,
    boot: i64,
    expiry: Expiry,
    until: Until,
) -> Result<(), DatabaseError> {
    let expiry = match expiry {
        Expiry::Never => None,
        Expiry::At(end) => Some(i64::try_from(end.0).unwrap_or(i64::MAX)),
    };
    transaction
        .prepare_cached("INSERT OR REPLACE INTO bans VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![subject, policy, boot, expiry, until_to(until)])?;
    Ok(())
}

/// Rows that one call forgets at most.
pub(super) const PURGE: i64 = 20_000;

/// Forgets what has ended: bans of this boot that are over, boots without bans.
/// Bounded work per call; true when there may be more.
pub(super) fn purge(connection: &mut Connection, now: &Now) -> Result<bool, DatabaseError> {
    let transaction = connection.transaction()?;
    let boot = this_boot(&transaction, now)?;
    let mut over = transaction.prepare_cached(
        "SELECT subject, policy FROM bans WHERE boot = ?1 AND expiry <= ?2 LIMIT ?3",
    )?;
    let ended: Vec<(Vec<u8>, i64)> = over
        .query_map(params![boot, now.boottime.0 as i64, PURGE], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<Result<_, _>>()?;
    drop(over);
    for (subject, policy) in &ended {
        forget(&transaction, subject, *policy)?;
    }
    transaction.execute(
        "DELETE FROM boots WHERE id <> ?1 AND id NOT IN (SELECT DISTINCT boot FROM bans)
         AND id < ?1 - 8",
        [boot],
    )?;
    transaction.commit()?;
    Ok(ended.len() as i64 == PURGE)
}

/// A prefix as stored: its length, then the address bytes.
fn until_to(until: Until) -> Option<i64> {
    match until {
        Until::Never => None,
        Until::At(end) => Some(end.as_microsecond()),
    }
}

pub(super) fn until_from(micros: Option<i64>) -> Until {
    micros.map_or(Until::Never, |end| Until::At(timestamp(end)))
}

/// The prefixes of all stored allow entries.
pub fn allow_set(entries: &[AllowEntry]) -> PrefixSet {
    entries.iter().map(|entry| entry.prefix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_uri_is_that_file_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["plain", "a%3fb", "a?b#c", "a b&c=d", "ä\u{1}", "a%"] {
            let path = directory.path().join(name);
            let made = Connection::open(&path).unwrap();
            made.pragma_update(None, "user_version", VERSION).unwrap();
            made.close().unwrap();
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            let opened = Connection::open_with_flags(immutable(&path), flags).unwrap();
            let version = opened.pragma_query_value(None, "user_version", |row| row.get(0));
            assert_eq!(version, Ok(VERSION), "{name:?}");
        }
    }
}

//! Fail2ban's database (`fail2ban.sqlite3`, version 4): read when its jails move over, and
//! written when they move back. It is never changed by being read. What becomes of its
//! bans is `service::fail2ban_state`'s.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead as _, Read as _},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use md5::{Digest as _, Md5};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha1::Sha1;
use weir_core::{BanTarget, Until};
use weir_sources::{Fingerprint, Position};

/// `fail2banDb.version` of the tables that are known.
const VERSION: i64 = 4;
/// Another process that has it open is waited for so long.
const LOCKED_FOR: Duration = Duration::from_secs(2);
/// Rows that are read; more are a file of somebody else's.
const MAX_ROWS: usize = 5_000_000;
/// Lines kept of a ban, and how much of each, in bytes.
const MAX_MATCHES: usize = 10;
const MAX_MATCH: usize = 512;
/// A log whose first line is longer is not known again by it, in bytes.
const MAX_FIRST_LINE: u64 = 1 << 20;
/// Rows that are kept of one log; of a jail each.
const MAX_LOG_ROWS: usize = 1_000;

/// Why the database is not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// There is no such file.
    #[error("there is no such file")]
    Missing,
    /// Another process writes it.
    #[error("another process has it locked; stop Fail2ban and try again")]
    Locked,
    /// The tables of the database are of another version.
    #[error("its tables have version {0}, and weir knows version {VERSION}")]
    Version(i64),
    /// It is no database, or not one of Fail2ban's.
    #[error("it is damaged or not Fail2ban's: {0}")]
    Damaged(String),
    /// The system refuses.
    #[error("{0}")]
    Io(String),
}

impl From<rusqlite::Error> for StateError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error_code();
        match code {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked,
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
                Self::Io(error.to_string())
            }
            _ => Self::Damaged(error.to_string()),
        }
    }
}

/// The last ban of an address by a jail; it may be over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBan {
    /// The jail's name.
    pub jail: String,
    /// The address or prefix that is or was banned.
    pub subject: BanTarget,
    /// The time of the ban.
    pub since: Timestamp,
    /// The end of the ban, which may be over.
    pub until: Until,
    /// How many bans there were, with this one.
    pub count: u32,
    /// The lines that led to it, the last ones.
    pub matches: Vec<String>,
}

/// What a database holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredState {
    /// Bans, one for each jail and address.
    pub bans: Vec<StoredBan>,
    /// How far log files were read, by each jail.
    pub logs: BTreeMap<PathBuf, Vec<LogRow>>,
    /// Rows that name nobody who can be banned.
    pub unreadable: usize,
}

/// How far a jail has read a log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// The end of what was read, in bytes from the file's beginning.
    pub offset: u64,
    /// The hash of the file's first line, by which Fail2ban knows the file again; empty where
    /// the file had no whole line. The column is named for MD5, and has SHA-1 where Python's
    /// MD5 does not take what Fail2ban tries it with, as on Debian 12.
    pub first_line: String,
}

impl LogRow {
    /// Is it about a file whose first line is this, as far as can be told?
    fn is_of(&self, line: Option<&[u8]>) -> bool {
        match self.first_line.len() {
            MD5_DIGITS | SHA1_DIGITS => self.first_line == hash_as(&self.first_line, line),
            _ => true,
        }
    }
}

/// Reads a database.
///
/// # Errors
/// It is not there, locked, of another version, or damaged. Nothing of it is used then.
pub fn read(path: &Path) -> Result<StoredState, StateError> {
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() => {}
        // A FIFO would be waited for without an end.
        Ok(_) => return Err(StateError::Io("it is no regular file".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(StateError::Missing),
        Err(error) => return Err(StateError::Io(error.to_string())),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(LOCKED_FOR)?;
    // One moment of it.
    connection.execute_batch("BEGIN")?;
    check_version(&connection)?;
    let mut state = StoredState::default();
    let mut query =
        connection.prepare("SELECT jail, ip, timeofban, bantime, bancount, data FROM bips")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        if state.bans.len() + state.unreadable >= MAX_ROWS {
            return Err(StateError::Damaged(format!("more than {MAX_ROWS} bans")));
        }
        let text = |column| row.get::<_, String>(column).ok();
        let subject = text(1).and_then(|name| name.parse().ok());
        let since = Timestamp::from_second(seconds(row.get_ref(2)?)).ok();
        // What one row has does not cost the others.
        let (Some(jail), Some(subject), Some(since)) = (text(0), subject, since) else {
            state.unreadable += 1;
            continue;
        };
        let until = match seconds(row.get_ref(3)?) {
            ..0 => Until::Never,
            length => {
                let end = since.as_second().checked_add(length);
                let end = end.and_then(|end| Timestamp::from_second(end).ok());
                end.map_or(Until::Never, Until::At)
            }
        };
        state.bans.push(StoredBan {
            jail,
            subject,
            since,
            until,
            count: u32::try_from(seconds(row.get_ref(4)?).max(1)).unwrap_or(u32::MAX),
            matches: matches(row.get_ref(5)?.as_bytes_or_null().ok().flatten()),
        });
    }
    let mut query = connection.prepare("SELECT path, lastfilepos, firstlinemd5 FROM logs")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (Ok(path), Ok(at)) = (row.get::<_, String>(0), row.get::<_, i64>(1)) else {
            continue;
        };
        let known = state.logs.entry(path.into()).or_default();
        if known.len() < MAX_LOG_ROWS {
            known.push(LogRow {
                offset: u64::try_from(at).unwrap_or(0),
                first_line: row.get(2).unwrap_or_default(),
            });
        }
    }
    Ok(state)
}

/// A whole number, of seconds for instance, however SQLite keeps it; 0 for what is none.
fn seconds(value: rusqlite::types::ValueRef<'_>) -> i64 {
    match value {
        rusqlite::types::ValueRef::Integer(whole) => whole,
        rusqlite::types::ValueRef::Real(real) => real as i64,
        _ => 0,
    }
}

fn check_version(connection: &Connection) -> Result<(), StateError> {
    let version: i64 =
        connection.query_row("SELECT version FROM fail2banDb LIMIT 1", [], |row| {
            row.get(0)
        })?;
    match version {
        VERSION => Ok(()),
        other => Err(StateError::Version(other)),
    }
}

/// The lines in the JSON of a ban: a text each, or the parts of one.
fn matches(data: Option<&[u8]>) -> Vec<String> {
    let data: Value = data
        .and_then(|data| serde_json::from_slice(data).ok())
        .unwrap_or_default();
    let lines = data["matches"].as_array().map(Vec::as_slice);
    let lines = lines.unwrap_or_default();
    let first = lines.len().saturating_sub(MAX_MATCHES);
    let text = |line: &Value| {
        let parts = line
            .as_array()
            .map_or(std::slice::from_ref(line), Vec::as_slice);
        let mut text: String = parts.iter().filter_map(Value::as_str).collect();
        let mut end = text.len().min(MAX_MATCH);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    };
    lines[first..].iter().map(text).collect()
}

/// Hexadecimal digits of an MD5.
const MD5_DIGITS: usize = 32;
/// Hexadecimal digits of a SHA-1.
const SHA1_DIGITS: usize = 40;

/// The hash of a log's first line with its end, in hexadecimal digits: of the kind that `known`
/// is, or SHA-1. Empty where there is no whole line.
fn hash_as(known: &str, line: Option<&[u8]>) -> String {
    let Some(line) = line else {
        return String::new();
    };
    match known.len() {
        MD5_DIGITS => hex::encode(Md5::digest(line)),
        _ => hex::encode(Sha1::digest(line)),
    }
}

/// A file's first line with its end; `None`: there is no whole line, or a very long one.
fn first_line(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut file = io::BufReader::new(file).take(MAX_FIRST_LINE);
    file.read_until(b'\n', &mut line)?;
    Ok((line.last() == Some(&b'\n')).then_some(line))
}

/// Opens a log; one that is no regular file is not waited for.
fn open_log(path: &Path) -> Option<(File, std::fs::Metadata)> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let file = File::options()
        .read(true)
        .custom_flags(i32::try_from(flags).ok()?)
        .open(path)
        .ok()?;
    let about = file.metadata().ok()?;
    about.is_file().then_some((file, about))
}

/// Where a log file is to be read from: where Fail2ban stood in it, if it is still that file as
/// far as can be told; of several jails where the hindmost stood. `None`: it was rotated, or is
/// no more.
pub(crate) fn position(path: &Path, rows: &[LogRow]) -> Option<Position> {
    let (file, about) = open_log(path)?;
    let first_line = first_line(&file).ok()?;
    let same = rows.iter().filter(|row| row.is_of(first_line.as_deref()));
    let at = same.map(|row| row.offset).min()?;
    if about.len() < at {
        return None;
    }
    let mut before = [0];
    let is_behind_a_line = match at.checked_sub(1) {
        None => true,
        Some(last) => file.read_exact_at(&mut before, last).is_ok() && before == [b'\n'],
    };
    is_behind_a_line.then(|| Position {
        path: path.to_owned(),
        device: about.dev(),
        inode: about.ino(),
        offset: at,
        fingerprint: Fingerprint::nothing(),
    })
}

const TABLES: &str = "
CREATE TABLE fail2banDb (version INTEGER);
CREATE TABLE jails (
    name TEXT NOT NULL UNIQUE, enabled INTEGER NOT NULL DEFAULT 1);
CREATE TABLE logs (
    jail TEXT NOT NULL, path TEXT, firstlinemd5 TEXT, lastfilepos INTEGER DEFAULT 0,
    FOREIGN KEY (jail) REFERENCES jails (name) ON DELETE CASCADE,
    UNIQUE (jail, path), UNIQUE (jail, path, firstlinemd5));
CREATE TABLE bans (
    jail TEXT NOT NULL, ip TEXT, timeofban INTEGER NOT NULL, bantime INTEGER NOT NULL,
    bancount INTEGER NOT NULL DEFAULT 1, data JSON,
    FOREIGN KEY (jail) REFERENCES jails (name));
CREATE TABLE bips (
    ip TEXT NOT NULL, jail TEXT NOT NULL, timeofban INTEGER NOT NULL, bantime INTEGER NOT NULL,
    bancount INTEGER NOT NULL DEFAULT 1, data JSON,
    PRIMARY KEY (ip, jail), FOREIGN KEY (jail) REFERENCES jails (name));
CREATE INDEX jails_name ON jails (name);
CREATE INDEX logs_path ON logs (path);
CREATE INDEX logs_jail_path ON logs (jail, path);
CREATE INDEX bans_jail_timeofban_ip ON bans (jail, timeofban);
CREATE INDEX bans_jail_ip ON bans (jail, ip);
CREATE INDEX bans_ip ON bans (ip);
CREATE INDEX bips_timeofban ON bips (timeofban);
CREATE INDEX bips_ip ON bips (ip);
";

/// Writes bans into a database: one that is there keeps what else it has.
///
/// # Errors
/// A file that is there and locked, of another version or damaged; it is as before then.
pub fn write(path: &Path, bans: &[StoredBan]) -> Result<(), StateError> {
    // Root's alone, as Fail2ban's directory is.
    let made = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let is_new = match made {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(StateError::Io(error.to_string())),
    };
    let written = write_into(path, bans, is_new);
    if is_new && written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write_into(path: &Path, bans: &[StoredBan], is_new: bool) -> Result<(), StateError> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.busy_timeout(LOCKED_FOR)?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive)?;
    if is_new {
        transaction.execute_batch(TABLES)?;
        transaction.execute("INSERT INTO fail2banDb (version) VALUES (?1)", [VERSION])?;
    } else {
        check_version(&transaction)?;
    }
    if !is_new {
        go_on_behind_read_lines(&transaction)?;
    }
    let jails: BTreeSet<_> = bans.iter().map(|ban| ban.jail.as_str()).collect();
    for jail in jails {
        transaction.execute("INSERT OR IGNORE INTO jails (name) VALUES (?1)", [jail])?;
    }
    for ban in bans {
        let since = ban.since.as_second();
        let length = match ban.until {
            Until::Never => -1,
            // Its length is whole seconds; the kernel's end of it is a little off.
            Until::At(end) => {
                let length = end.as_microsecond() - ban.since.as_microsecond();
                (length + 500_000).div_euclid(1_000_000).max(0)
            }
        };
        let data = serde_json::json!({
            "matches": ban.matches,
            "failures": ban.matches.len(),
        });
        let data = data.to_string().into_bytes();
        let subject = ban.subject.to_string();
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO bips (ip, jail, timeofban, bantime, bancount, data)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![subject, ban.jail, since, length, ban.count, data])?;
        transaction
            .prepare_cached(
                "INSERT INTO bans (ip, jail, timeofban, bantime, bancount, data)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![subject, ban.jail, since, length, ban.count, data])?;
    }
    transaction.commit()?;
    Ok(())
}

/// What stands in the logs by now weir has read: Fail2ban is not to count it again, also
/// where a log was rotated since, which Fail2ban sees by its first line.
fn go_on_behind_read_lines(transaction: &Connection) -> Result<(), StateError> {
    let mut query = transaction.prepare("SELECT rowid, path, firstlinemd5 FROM logs")?;
    let mut rows = query.query([])?;
    let mut known = Vec::new();
    while let Some(row) = rows.next()? {
        // A name that is no text is of no log.
        if let Ok(path) = row.get::<_, String>(1) {
            let hash: String = row.get(2).unwrap_or_default();
            known.push((row.get::<_, i64>(0)?, path, hash));
        }
    }
    for (row, path, hash) in known {
        let Some((file, about)) = open_log(Path::new(&path)) else {
            continue;
        };
        let (Ok(line), Ok(length)) = (first_line(&file), i64::try_from(about.len())) else {
            continue;
        };
        let hash = hash_as(&hash, line.as_deref());
        transaction
            .prepare_cached("UPDATE logs SET lastfilepos = ?1, firstlinemd5 = ?2 WHERE rowid = ?3")?
            .execute(params![length, hash, row])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(jail: &str, who: &str, until: Option<i64>) -> StoredBan {
        StoredBan {
            jail: jail.to_owned(),
            subject: who.parse().unwrap(),
            since: Timestamp::from_second(1_000).unwrap(),
            until: until.map_or(Until::Never, |end| {
                Until::At(Timestamp::from_second(end).unwrap())
            }),
            count: 3,
            matches: vec!["one".to_owned(), "two".to_owned()],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.sqlite3");
        let mut bans = vec![
            ban("sshd", "192.0.2.7", Some(1_600)),
            ban("sshd", "2001:db8::7", None),
            ban("web", "192.0.2.7", Some(2_000)),
        ];
        write(&path, &bans).unwrap();
        let order = |ban: &StoredBan| (ban.jail.clone(), ban.subject);
        let mut found = read(&path).unwrap().bans;
        found.sort_by_key(order);
        bans.sort_by_key(order);
        assert_eq!(found, bans);
        // A second time, over the first.
        bans[0].until = Until::Never;
        write(&path, &bans[..1]).unwrap();
        let mut found = read(&path).unwrap().bans;
        found.sort_by_key(order);
        assert_eq!(found, bans);
    }

    #[test]
    fn what_cannot_be_used_is_named_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.sqlite3");
        assert!(matches!(read(&path), Err(StateError::Missing)));
        // Nor is a FIFO waited for.
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(read(&fifo), Err(StateError::Io(_))));
        let ban = [ban("sshd", "192.0.2.7", None)];
        write(&path, &ban).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        assert!(matches!(read(&path), Err(StateError::Locked)));
        assert!(matches!(write(&path, &ban), Err(StateError::Locked)));
        other
            .execute_batch("COMMIT; UPDATE fail2banDb SET version = 5")
            .unwrap();
        let newer = read(&path).unwrap_err().to_string();
        assert_eq!(newer, "its tables have version 5, and weir knows version 4");
        assert!(matches!(write(&path, &ban), Err(StateError::Version(5))));
        drop(other);
        for text in [&b"not a database at all, but long enough to look"[..], b""] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(read(&path), Err(StateError::Damaged(_))));
            assert!(matches!(write(&path, &ban), Err(StateError::Damaged(_))));
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
        assert!(matches!(
            write(Path::new("/nowhere/f.sqlite3"), &ban),
            Err(StateError::Io(_))
        ));
    }

    #[test]
    fn rows_of_others_are_counted_and_lines_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.sqlite3");
        write(&path, &[]).unwrap();
        let db = Connection::open(&path).unwrap();
        // Of jails that are in no table: Fail2ban's own SQLite does not look.
        db.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        let lines: Vec<_> = (0..50)
            .map(|n| vec!["a ".repeat(500), n.to_string()])
            .collect();
        let data = serde_json::json!({ "matches": lines }).to_string();
        db.execute(
            "INSERT INTO bips VALUES ('192.0.2.7', 'x', 1000.5, 9e18, -4, ?1), ('anna', 'x', 1, 2, 3, NULL),
             ('192.0.2.8', 'x', 1000, 10, 'many', 'no json'), (x'ff', 'x', 1, 2, 3, NULL),
             ('192.0.2.9', x'ff', 1, 2, 3, NULL)",
            [data],
        )
        .unwrap();
        db.execute_batch(
            "INSERT INTO logs VALUES ('x', '/l', '', 70), ('y', '/l', '', 50), ('z', NULL, '', 1)",
        )
        .unwrap();
        let state = read(&path).unwrap();
        assert_eq!((state.bans.len(), state.unreadable), (2, 3));
        assert_eq!(state.bans[1].count, 1);
        let long = &state.bans[0];
        assert_eq!(
            (long.until, long.count, long.matches.len()),
            (Until::Never, 1, 10)
        );
        assert!(long.matches.iter().all(|line| line.len() <= MAX_MATCH));
        let rows = [70, 50].map(|offset| LogRow {
            offset,
            first_line: String::new(),
        });
        let logs = [(PathBuf::from("/l"), rows.to_vec())];
        assert_eq!(state.logs, BTreeMap::from(logs));
    }

    fn row(offset: u64, first_line: &str) -> LogRow {
        LogRow {
            offset,
            first_line: first_line.to_owned(),
        }
    }

    #[test]
    fn a_log_is_read_on_only_behind_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let at = |at| position(&path, &[row(at, "")]).map(|position| position.offset);
        assert_eq!([at(0), at(4), at(8)], [Some(0), Some(4), Some(8)]);
        assert_eq!([at(3), at(9)], [None; 2]);
        assert_eq!(position(Path::new("/nowhere/log"), &[row(0, "")]), None);
    }

    /// A rotated log may be as long as the one before it, with a line's end at the same place.
    #[test]
    fn a_log_with_another_first_line_is_another_log() {
        const ONE: &str = "5bbf5a52328e7439ae6e719dfe712200";
        const TWO: &str = "c193497a1a06b2c72230e6146ff47080";
        const ONE_SHA1: &str = "c7059bb19433cc3cabaa6236c83d56668a843dd2";
        const TWO_SHA1: &str = "7bbef45b3bc70855010e02460717643125c3beca";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "one\ntwo\nmore").unwrap();
        let at = |rows: &[LogRow]| position(&path, rows).map(|position| position.offset);
        assert_eq!(at(&[row(4, ONE)]), Some(4));
        assert_eq!(at(&[row(4, ONE_SHA1)]), Some(4));
        assert_eq!(at(&[row(4, TWO)]), None);
        assert_eq!(at(&[row(4, TWO_SHA1)]), None);
        // Of jails that have seen this file, the hindmost; of none that has, nothing.
        assert_eq!(at(&[row(0, TWO), row(8, ONE), row(4, ONE)]), Some(4));
        assert_eq!(at(&[]), None);
        // Of a hash of another kind nothing is known.
        assert_eq!(at(&[row(8, &"a".repeat(64))]), Some(8));

        // Whatever stood in its place before, Fail2ban goes on at its end.
        let database = dir.path().join("f.sqlite3");
        write(&database, &[]).unwrap();
        let db = Connection::open(&database).unwrap();
        db.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        for (jail, md5, at) in [("a", ONE, 4), ("b", TWO, 4), ("c", TWO_SHA1, 100)] {
            let log = path.display().to_string();
            db.execute(
                "INSERT INTO logs VALUES (?1, ?2, ?3, ?4)",
                params![jail, log, md5, at],
            )
            .unwrap();
        }
        write(&database, &[]).unwrap();
        let state = read(&database).unwrap();
        let rows = [row(12, ONE), row(12, ONE), row(12, ONE_SHA1)];
        assert_eq!(state.logs[&path], rows);

        // Neither an unfinished line nor an endless one is read as a first line.
        for text in ["", "one", &"x".repeat(2 << 20)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(first_line(&File::open(&path).unwrap()).unwrap(), None);
        }
    }
}

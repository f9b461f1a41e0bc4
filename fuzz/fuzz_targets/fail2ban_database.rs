//! Fail2ban's database, when its jails move over: rows of any values, or a damaged file.
#![no_main]

use std::{fs, path::PathBuf, sync::LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rusqlite::{Connection, params, types::Value};
use tempfile::TempDir;
use weir_daemon::fail2ban_state::read;

#[derive(Debug, Arbitrary)]
enum Cell {
    Null,
    Whole(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Cell {
    fn value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Whole(whole) => Value::Integer(whole),
            Self::Real(real) => Value::Real(real),
            Self::Text(text) => Value::Text(text),
            Self::Bytes(bytes) => Value::Blob(bytes),
        }
    }
}

#[derive(Debug, Arbitrary)]
struct Input {
    version: Option<i64>,
    bans: Vec<[Cell; 6]>,
    logs: Vec<[Cell; 3]>,
    /// Bytes of the file that become others.
    changes: Vec<(u16, u8)>,
    cut: Option<u16>,
}

static DIR: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a directory"));

fn write(input: Input) -> rusqlite::Result<PathBuf> {
    let file = DIR.path().join("fail2ban.sqlite3");
    let _ = fs::remove_file(&file);
    let database = Connection::open(&file)?;
    // As Fail2ban has them, without the constraints on what a cell is.
    database.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;
         CREATE TABLE fail2banDb(version INTEGER);
         CREATE TABLE bips(ip, jail, timeofban, bantime, bancount, data);
         CREATE TABLE logs(jail, path, firstlinemd5, lastfilepos);",
    )?;
    let version = input.version.unwrap_or(4);
    database.execute("INSERT INTO fail2banDb VALUES(?1)", params![version])?;
    for row in input.bans {
        let row = row.map(Cell::value);
        database.execute("INSERT INTO bips VALUES(?1, ?2, ?3, ?4, ?5, ?6)", row)?;
    }
    for row in input.logs {
        let row = row.map(Cell::value);
        database.execute("INSERT INTO logs VALUES('sshd', ?1, ?2, ?3)", row)?;
    }
    database.execute_batch("COMMIT")?;
    drop(database);
    if !input.changes.is_empty() || input.cut.is_some() {
        let mut bytes = fs::read(&file).expect("it was written");
        for (at, value) in input.changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(bytes.len() - usize::from(input.cut.unwrap_or(0)) % bytes.len());
        fs::write(&file, bytes).expect("a file");
    }
    Ok(file)
}

fuzz_target!(|input: Input| {
    let (rows, is_damaged) = (
        input.bans.len(),
        !input.changes.is_empty() || input.cut.is_some(),
    );
    let version = input.version.unwrap_or(4);
    let Ok(file) = write(input) else {
        return;
    };
    match read(&file) {
        Ok(state) if !is_damaged => {
            assert_eq!(version, 4);
            assert_eq!(state.bans.len() + state.unreadable, rows);
        }
        Ok(_) => {}
        Err(error) => assert!(is_damaged || version != 4, "{error}"),
    }
});

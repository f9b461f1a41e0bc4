//! Is the database's file still the one that was opened? SQLite does not ask: it
//! would write on into a file that was deleted, and a checkpoint would mix ours
//! with one that somebody put in its place.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use rusqlite::Connection;

use super::row::DatabaseError;

/// Where SQLite's header holds what is compared: its magic and page size, and
/// `application_id`, which each file of ours has its own of.
const MAGIC: std::ops::Range<usize> = 0..18;
const APPLICATION: std::ops::Range<usize> = 68..72;
const HEADER: usize = 100;

/// A file as it was opened. It stays open as long as this is: a process that
/// closes any descriptor of a file loses all of its POSIX locks on it (fcntl(2)),
/// SQLite's among them.
#[derive(Debug)]
pub(super) struct Identity {
    open: File,
    file: (u64, u64),
    header: [u8; HEADER],
    /// Bytes of the file, which never shrinks.
    len: u64,
}

impl Identity {
    /// The identity of the file that this connection has made or opened; gives it a number.
    pub(super) fn of(connection: &Connection, path: &Path) -> Result<Self, DatabaseError> {
        let number: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        if number == 0 {
            let random: i32 =
                connection.query_row("SELECT (random() & 0x7ffffffe) + 1", [], |row| row.get(0))?;
            connection.pragma_update(None, "application_id", random)?;
        }
        // The header is in the file, not only in the log before it.
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        Self::read(path).map_err(|error| DatabaseError::File(error.to_string()))
    }

    fn read(path: &Path) -> io::Result<Self> {
        let open = File::open(path)?;
        let meta = open.metadata()?;
        let mut header = [0; HEADER];
        open.read_exact_at(&mut header, 0)?;
        Ok(Self {
            open,
            file: (meta.dev(), meta.ino()),
            header,
            len: meta.len(),
        })
    }

    /// What happened to the file since then, if it is not what it was.
    pub(super) fn lost(&self, path: &Path) -> Option<&'static str> {
        let now = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some("deleted"),
            // Whatever that is, writing will tell.
            Err(_) => return None,
            Ok(now) => now,
        };
        if (now.dev(), now.ino()) != self.file {
            return Some("replaced by another file");
        }
        if now.len() < self.len {
            return Some("cut short");
        }
        let mut header = [0; HEADER];
        match self.open.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some("cut short"),
            Err(_) => None,
            Ok(())
                if header[MAGIC] != self.header[MAGIC]
                    || header[APPLICATION] != self.header[APPLICATION] =>
            {
                Some("overwritten")
            }
            Ok(()) => None,
        }
    }
}

//! The systemd journal, through libsystemd. Which entries are trusted is
//! decided here: any local user can log with `SYSLOG_IDENTIFIER=sshd`, so
//! entries are chosen by fields that journald itself adds (`_COMM`, `_UID`,
//! `_SYSTEMD_UNIT`; a leading underscore cannot be sent by a client). Only among
//! those of a service, that is of its cgroup and of a system user, does the
//! identifier say which of its programs it was.
//!
//! A cursor names the last entry delivered; reading goes on behind it.

use std::{
    io,
    os::fd::RawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use systemd::journal::{
    Journal, JournalWaitResult, OpenDirectoryOptions, OpenFilesOptions, OpenOptions,
};
use weir_core::detect::Age;

use crate::{BatchInfo, MAX_LINE, Origin, Problem, SourceError};

/// Entries per batch, so that positions are stored in between.
const BATCH: u64 = 4096;

/// Which entries, and from where.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// A journal directory, or a `.journal` file; the host's journal if `None`.
    pub path: Option<PathBuf>,
    /// Which entries: any of these sets of fields and values. In a set, values
    /// of one field are alternatives, and different fields must all fit. See
    /// [`JournalConfig::program`] and [`JournalConfig::matching`].
    pub matches: Vec<Vec<(String, String)>>,
    /// Entries of people's processes are passed over, whatever fits.
    pub system_users: bool,
    /// Where to begin.
    pub start: JournalStart,
}

/// Where reading begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalStart {
    /// With entries that come from now on.
    End,
    /// With the oldest entry.
    Beginning,
    /// Behind the entry of this cursor; if it is gone, with the next one kept.
    Cursor(String),
}

impl JournalConfig {
    /// The host's journal from now on, entries of these programs: of root's
    /// processes of that name, `["sshd", "sshd-session"]`, and of a service of
    /// that name (the part before a slash) under this identifier,
    /// `["postfix/smtpd"]`. The kernel cuts names of processes (`_COMM`) to 15
    /// bytes, and so does this.
    pub fn program(names: &[&str]) -> Self {
        let cut = |name: &&str| {
            let mut end = name.len().min(15);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            ("_COMM".to_owned(), name[..end].to_owned())
        };
        let mut of_root: Vec<_> = names.iter().map(cut).collect();
        of_root.push(("_UID".into(), "0".into()));
        let mut of_service = Vec::new();
        for name in names {
            let service = name.split('/').next().unwrap_or(name);
            for unit in [format!("{service}.service"), format!("{service}@-.service")] {
                of_service.push((UNIT.to_owned(), unit));
            }
            of_service.push((IDENTIFIER.to_owned(), (*name).to_owned()));
        }
        let mut matches = vec![of_root];
        if !of_service.is_empty() {
            matches.push(of_service);
        }
        Self {
            path: None,
            matches,
            system_users: true,
            start: JournalStart::End,
        }
    }

    /// The host's journal from now on, entries with these trusted fields, and
    /// with one of these identifiers unless the program is named (`_COMM`).
    pub fn matching(fields: &[(String, String)], identifiers: &[&str]) -> Self {
        let has = |wanted: &str| fields.iter().any(|(field, _)| field == wanted);
        let mut all = fields.to_vec();
        if !has("_COMM") {
            let tag = |name: &&str| (IDENTIFIER.to_owned(), (*name).to_owned());
            all.extend(identifiers.iter().map(tag));
        }
        Self {
            path: None,
            matches: vec![all],
            system_users: !has(USER),
            start: JournalStart::End,
        }
    }
}

const IDENTIFIER: &str = "SYSLOG_IDENTIFIER";
const UNIT: &str = "_SYSTEMD_UNIT";
const USER: &str = "_UID";

/// Fields that only journald sets, and that say who wrote an entry.
pub const TRUSTED: [&str; 4] = [UNIT, USER, "_COMM", "_EXE"];

/// Is this no person's number? Those of services are below 1000; systemd's
/// dynamic users have a range of their own.
fn is_system_user(uid: u32) -> bool {
    uid < 1000 || (61_184..=65_519).contains(&uid)
}

/// An open journal. Not `Send`: open it on the thread that reads it.
pub struct JournalSource {
    journal: Journal,
    path: PathBuf,
    system_users: bool,
    cursor: Option<String>,
    /// Told already that the journal cannot be read.
    failing: bool,
    more: bool,
}

impl JournalSource {
    /// Opens the journal and goes to the start.
    pub fn open(config: JournalConfig) -> Result<Self, SourceError> {
        let path = config.path.as_deref();
        let opened = match path {
            None => OpenOptions::default().system(true).local_only(true).open(),
            Some(path) if path.is_file() => OpenFilesOptions::default().open_files([text(path)?]),
            Some(path) => OpenDirectoryOptions::default().open_directory(text(path)?),
        };
        let shown = path.unwrap_or(Path::new("/var/log/journal"));
        let mut journal = opened.map_err(|error| none(shown, &format!(": {error}")))?;
        let persistent = journal
            .has_persistent_files()
            .map_err(|e| failed("open the journal", e))?;
        let runtime = journal
            .has_runtime_files()
            .map_err(|e| failed("open the journal", e))?;
        // These two tell of the host's directories only.
        if path.is_none() && !persistent && !runtime {
            return Err(none(shown, ""));
        }
        journal
            .set_data_threshold(MAX_LINE + "MESSAGE=".len() + 1)
            .map_err(|e| failed("limit the journal's field size", e))?;
        for set in &config.matches {
            journal
                .match_or()
                .map_err(|e| failed("choose entries of the journal", e))?;
            for (field, value) in set {
                journal
                    .match_add(field, value.as_str())
                    .map_err(|e| failed(&format!("match {field}={value} in the journal"), e))?;
            }
        }
        let mut source = Self {
            journal,
            path: shown.to_owned(),
            system_users: config.system_users,
            cursor: None,
            failing: false,
            more: true,
        };
        source
            .seek(&config.start)
            .map_err(|e| failed("seek in the journal", e))?;
        Ok(source)
    }

    fn seek(&mut self, start: &JournalStart) -> io::Result<()> {
        match start {
            JournalStart::Beginning => Ok(self.journal.seek_head()?),
            JournalStart::Cursor(cursor) => {
                self.journal.seek_cursor(cursor.as_str())?;
                self.cursor = Some(cursor.clone());
                Ok(())
            }
            JournalStart::End => {
                self.journal.seek_tail()?;
                if self.journal.previous()? > 0 {
                    self.cursor = Some(self.journal.cursor()?);
                    return Ok(());
                }
                // From the tail of a journal without a fitting entry, next()
                // would never find a later one: seek by time instead. A cursor
                // may name a time only, and is there to be saved from now on:
                // what comes while nobody reads is read later.
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap_or_default();
                let cursor = format!("t={:x}", now.as_micros());
                self.journal.seek_cursor(cursor.as_str())?;
                self.cursor = Some(cursor);
                Ok(())
            }
        }
    }

    /// Behind the last entry delivered, or the moment when reading began; store
    /// it with what its lines led to.
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    /// Readable when there may be something new; for a poll over several
    /// sources.
    pub fn fd(&self) -> io::Result<RawFd> {
        Ok(self.journal.fd()?)
    }

    /// Delivers what is there, or waits up to `timeout` for something.
    pub fn read_batch(
        &mut self,
        timeout: Duration,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> Result<BatchInfo, SourceError> {
        let mut info = BatchInfo::default();
        if !self.more {
            match self.journal.wait(Some(timeout)) {
                Ok(JournalWaitResult::Nop) => return Ok(info),
                Ok(_) => {}
                Err(error) => {
                    self.fails(&error.into(), &mut info);
                    return Ok(info);
                }
            }
        }
        let read = self.drain(&mut info, each);
        match read {
            Ok(more) => {
                self.more = more;
                if self.failing {
                    self.failing = false;
                    info.problems.push(Problem {
                        path: self.path.clone(),
                        message: "the journal can be read again".into(),
                        resolved: true,
                    });
                }
            }
            Err(error) => {
                self.more = false;
                self.fails(&error, &mut info);
            }
        }
        info.more = self.more;
        Ok(info)
    }

    fn drain(
        &mut self,
        info: &mut BatchInfo,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> io::Result<bool> {
        for entry in 0..BATCH {
            if self.journal.next()? == 0 {
                return Ok(false);
            }
            // Behind a seek the next entry may be the cursor's own.
            if let Some(cursor) = &self.cursor
                && entry == 0
                && self.journal.test_cursor(cursor.as_str())?
            {
                continue;
            }
            let time = Timestamp::from_microsecond(self.journal.timestamp_usec()? as i64).ok();
            if self.is_trusted()?
                && let Some(field) = self.journal.get_data("MESSAGE")?
                && let Some(message) = field.value()
            {
                let cut = message.len() > MAX_LINE;
                let message = &message[..message.len().min(MAX_LINE)];
                let origin = Origin {
                    path: &self.path,
                    part: 0,
                    time,
                    message_only: true,
                    age: Age::Unknown,
                };
                each(message, origin);
                info.lines += 1;
                info.bytes += message.len() as u64;
                info.cut += u64::from(cut);
            }
            self.cursor = Some(self.journal.cursor()?);
        }
        Ok(true)
    }

    /// Is the entry of a user whose entries are read? In a service's cgroup may
    /// be programs of people: what Postfix runs for a mailbox.
    fn is_trusted(&mut self) -> io::Result<bool> {
        if !self.system_users {
            return Ok(true);
        }
        let Some(field) = self.journal.get_data(USER)? else {
            return Ok(false);
        };
        let uid = field
            .value()
            .and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
        Ok(uid.is_some_and(is_system_user))
    }

    // libsystemd returns at once while it fails: do not spin.
    fn fails(&mut self, error: &io::Error, info: &mut BatchInfo) {
        std::thread::sleep(Duration::from_millis(100));
        if !self.failing {
            self.failing = true;
            info.problems.push(Problem {
                path: self.path.clone(),
                message: format!("cannot read the journal: {error}; trying again"),
                resolved: false,
            });
        }
    }
}

fn text(path: &Path) -> Result<&str, SourceError> {
    path.to_str().ok_or_else(|| SourceError::Pattern {
        pattern: path.display().to_string(),
        reason: "journal paths are UTF-8".into(),
    })
}

fn none(path: &Path, why: &str) -> SourceError {
    SourceError::NoJournal(format!(
        "no journal can be read in {}{why}; run weir as root or in the group systemd-journal, or name a log file as source",
        path.display()
    ))
}

fn failed(what: &str, error: impl Into<io::Error>) -> SourceError {
    SourceError::Io {
        what: format!("cannot {what}"),
        error: error.into(),
    }
}

#[cfg(test)]
mod tests;

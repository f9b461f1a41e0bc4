//! The systemd journal, through libsystemd. Which entries are trusted is
//! decided here: any local user can log with `SYSLOG_IDENTIFIER=sshd`, so
//! entries are chosen by fields that journald itself adds (`_COMM`, `_UID`,
//! `_SYSTEMD_UNIT`; a leading underscore cannot be sent by a client).
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
    /// Fields and values: values of one field are alternatives, different
    /// fields must all fit. See [`JournalConfig::program`].
    pub matches: Vec<(String, String)>,
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
    /// The host's journal from now on, entries of root's processes of these
    /// names: `["sshd", "sshd-session"]`. The kernel cuts names (`_COMM`) to 15
    /// bytes, and so does this.
    pub fn program(names: &[&str]) -> Self {
        let cut = |name: &&str| {
            let mut end = name.len().min(15);
            while !name.is_char_boundary(end) {
                end -= 1;
            }
            ("_COMM".to_owned(), name[..end].to_owned())
        };
        let mut matches: Vec<_> = names.iter().map(cut).collect();
        matches.push(("_UID".into(), "0".into()));
        Self {
            path: None,
            matches,
            start: JournalStart::End,
        }
    }
}

/// An open journal. Not `Send`: open it on the thread that reads it.
pub struct JournalSource {
    journal: Journal,
    path: PathBuf,
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
        for (field, value) in &config.matches {
            journal
                .match_add(field, value.as_str())
                .map_err(|e| failed(&format!("match {field}={value} in the journal"), e))?;
        }
        let mut source = Self {
            journal,
            path: shown.to_owned(),
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
        while info.lines < BATCH {
            if self.journal.next()? == 0 {
                return Ok(false);
            }
            // Behind a seek the next entry may be the cursor's own.
            if let Some(cursor) = &self.cursor
                && info.lines == 0
                && self.journal.test_cursor(cursor.as_str())?
            {
                continue;
            }
            let time = Timestamp::from_microsecond(self.journal.timestamp_usec()? as i64).ok();
            if let Some(field) = self.journal.get_data("MESSAGE")?
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

//! The systemd journal, through libsystemd. Which entries are trusted is
//! decided here: any local user can log with `SYSLOG_IDENTIFIER=sshd`, so
//! entries are chosen by fields that journald itself adds (`_COMM`, `_UID`,
//! `_SYSTEMD_UNIT`; a leading underscore cannot be sent by a client). Only among
//! those of a service, that is of its cgroup and of a system user, does the
//! identifier say which of its programs it was.
//!
//! What a program writes to standard output or error, journald cuts into entries
//! at line breaks (`_TRANSPORT=stdout`); syslog and journald's own protocol
//! (`syslog`, `journal`) keep a message whole. An entry of any other transport,
//! or of none (journald sets one always; some journals are made by other
//! programs), is delivered like those of standard output: whether it counts is
//! for the filter to say.
//!
//! A cursor names the last entry delivered; reading goes on behind it.

use std::{
    collections::BTreeSet,
    io,
    os::fd::RawFd,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use systemd::journal::{
    Journal, JournalWaitResult, OpenDirectoryOptions, OpenFilesOptions, OpenOptions,
};
use weir_core::detect::{Age, JournalMatch, Writer, suppressed};

use crate::{BatchInfo, MAX_LINE, Origin, Problem, Readers, Source, SourceError};

/// The most services of which journald's own entries are read.
const MAX_SERVICES: usize = 64;

/// Entries per batch, so that positions are stored in between.
const BATCH: u64 = 4096;

/// The entries to read, and the place to begin at.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// A journal directory, or a `.journal` file; the host's journal if `None`.
    pub path: Option<PathBuf>,
    /// The entries that are read: those that fit any of these sets of fields and values. In
    /// a set, values of one field are alternatives, and different fields must all fit. See
    /// [`JournalConfig::program`] and [`JournalConfig::matching`].
    pub matches: Vec<Vec<(String, String)>>,
    /// Entries of people's processes are passed over, whatever fits, but for those
    /// of these users.
    pub named_users: BTreeSet<u32>,
    /// The place to begin at.
    pub start: JournalStart,
}

/// The place where reading begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalStart {
    /// With entries that come from now on.
    End,
    /// At the oldest entry.
    Beginning,
    /// Behind the entry of this cursor; if it is gone, with the next one kept.
    Cursor(String),
}

/// A cursor that names no entry but a time: the next entry is the first one
/// since then.
pub fn cursor_of(time: Timestamp) -> String {
    format!("t={:x}", time.as_microsecond().max(0))
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
            named_users: BTreeSet::new(),
            start: JournalStart::End,
        }
    }

    /// The host's journal from now on, entries with one of these sets of trusted
    /// fields, and with one of these identifiers where a set does not name the
    /// program (`_COMM`).
    pub fn matching(journal_match: &JournalMatch, identifiers: &[&str]) -> Self {
        let with_tags = |set: &Vec<(String, String)>| {
            let mut all = set.clone();
            if !set.iter().any(|(field, _)| field == "_COMM") {
                let tag = |name: &&str| (IDENTIFIER.to_owned(), (*name).to_owned());
                all.extend(identifiers.iter().map(tag));
            }
            all
        };
        Self {
            path: None,
            matches: journal_match.sets().iter().map(with_tags).collect(),
            named_users: journal_match.users().collect(),
            start: JournalStart::End,
        }
    }
}

const IDENTIFIER: &str = "SYSLOG_IDENTIFIER";
/// As much of an identifier as is told of; syslog allows 48 characters.
const MAX_NAME: usize = 128;
const UNIT: &str = "_SYSTEMD_UNIT";
const USER: &str = "_UID";
const TRANSPORT: &str = "_TRANSPORT";

/// journald's own entries about messages that it has dropped: nobody else has
/// this transport (systemd.journal-fields, SD_MESSAGE_JOURNAL_DROPPED).
const DROPPED: [(&str, &str); 2] = [
    (TRANSPORT, "driver"),
    ("MESSAGE_ID", "a596d6fe7bfa4994828e72309e95d61e"),
];

/// Whether the user id is no person's. Those of services are below 1000; systemd's dynamic
/// users have a range of their own.
fn is_system_user(uid: u32) -> bool {
    uid < 1000 || (61_184..=65_519).contains(&uid)
}

/// An open journal. Not `Send`: open it on the thread that reads it.
pub struct JournalSource {
    journal: Journal,
    path: PathBuf,
    named_users: BTreeSet<u32>,
    /// The services whose entries are read: asked for by name, or seen.
    services: BTreeSet<String>,
    cursor: Option<String>,
    /// The identifier by which the program of the present entry calls itself.
    identifier: Vec<u8>,
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
            Some(path) if path.is_file() => {
                OpenFilesOptions::default().open_files([path_text(path)?])
            }
            Some(path) => OpenDirectoryOptions::default().open_directory(path_text(path)?),
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
        let sets = config.matches.iter().map(|set| {
            let pairs = set.iter();
            pairs.map(|(f, v)| (f.as_str(), v.as_str())).collect()
        });
        for set in sets.chain([DROPPED.to_vec()]) {
            let set: Vec<(&str, &str)> = set;
            journal
                .match_or()
                .map_err(|e| failed("choose entries of the journal", e))?;
            for (field, value) in set {
                journal
                    .match_add(field, value)
                    .map_err(|e| failed(&format!("match {field}={value} in the journal"), e))?;
            }
        }
        let asked = config.matches.iter().flatten();
        let services = asked.filter_map(|(field, unit)| (field == UNIT).then_some(unit));
        let mut source = Self {
            journal,
            path: shown.to_owned(),
            named_users: config.named_users,
            services: services.cloned().collect(),
            cursor: None,
            identifier: Vec::new(),
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
                let cursor = cursor_of(Timestamp::now());
                self.journal.seek_cursor(cursor.as_str())?;
                self.cursor = Some(cursor);
                Ok(())
            }
        }
    }

    /// Readable when there may be something new; for a poll over several
    /// sources.
    pub fn fd(&self) -> io::Result<RawFd> {
        Ok(self.journal.fd()?)
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
            self.deliver(info, each)?;
            self.cursor = Some(self.journal.cursor()?);
        }
        Ok(true)
    }

    fn deliver(
        &mut self,
        info: &mut BatchInfo,
        each: &mut dyn FnMut(&[u8], Origin<'_>),
    ) -> io::Result<()> {
        let (stdout, by_journald) = match self.journal.get_data(TRANSPORT)? {
            Some(field) => match field.value() {
                Some(b"syslog" | b"journal") => (false, false),
                Some(b"driver") => (true, true),
                _ => (true, false),
            },
            None => (true, false),
        };
        if by_journald {
            info.rate_limited = info.rate_limited.saturating_add(self.dropped()?);
            return Ok(());
        }
        let uid = self.number(USER)?;
        let is_read = |uid| is_system_user(uid) || self.named_users.contains(&uid);
        if !uid.is_some_and(is_read) {
            return Ok(());
        }
        let pid = self.number("_PID")?;
        if self.services.len() < MAX_SERVICES
            && let Some(unit) = self.text(UNIT)?
            && unit.ends_with(".service")
        {
            self.services.insert(unit);
        }
        let time = Timestamp::from_microsecond(self.journal.timestamp_usec()? as i64).ok();
        self.identifier.clear();
        if let Some(field) = self.journal.get_data(IDENTIFIER)? {
            let name = field.value().unwrap_or_default();
            self.identifier.extend(&name[..name.len().min(MAX_NAME)]);
        }
        let Some(field) = self.journal.get_data("MESSAGE")? else {
            return Ok(());
        };
        let Some(message) = field.value() else {
            return Ok(());
        };
        let cut = message.len() > MAX_LINE;
        let message = &message[..message.len().min(MAX_LINE)];
        let origin = Origin {
            path: &self.path,
            readers: Readers::All,
            part: 0,
            stream: 0,
            time,
            message_only: true,
            age: Age::Unknown,
            writer: Writer { pid, uid, stdout },
            identifier: Some(&*self.identifier).filter(|name| !name.is_empty()),
        };
        each(message, origin);
        info.lines += 1;
        info.bytes += message.len() as u64;
        info.cut += u64::from(cut);
        Ok(())
    }

    /// How many messages of the services that are read journald says in this
    /// entry it has dropped.
    fn dropped(&mut self) -> io::Result<u64> {
        let message = self.text("MESSAGE")?.unwrap_or_default();
        let ours = suppressed(message.as_bytes()).filter(|(_, unit)| {
            let unit = String::from_utf8_lossy(unit);
            self.services.contains(unit.as_ref())
        });
        Ok(ours.map_or(0, |(count, _)| count))
    }

    fn text(&mut self, name: &str) -> io::Result<Option<String>> {
        let field = self.journal.get_data(name)?;
        let value = field.as_ref().and_then(|field| field.value());
        Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
    }

    fn number(&mut self, name: &str) -> io::Result<Option<u32>> {
        Ok(self.text(name)?.and_then(|text| text.parse().ok()))
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

impl Source for JournalSource {
    fn read_batch(
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

    /// Behind the last entry delivered, or the moment when reading began.
    fn position(&self) -> Option<String> {
        self.cursor.clone()
    }
}

fn path_text(path: &Path) -> Result<&str, SourceError> {
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

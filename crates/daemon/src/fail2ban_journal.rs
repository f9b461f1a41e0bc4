//! The journal's entries as Fail2ban's `systemd` backend formats them, for whoever tries a
//! filter out on what is there already.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use weir_sources::{JournalConfig, JournalSource, JournalStart, Source as _, SourceError};

use crate::fail2ban_filter::journal_line;

/// The ways into the journal: every entry has come by one of them.
const TRANSPORTS: [&str; 6] = ["audit", "driver", "syslog", "journal", "stdout", "kernel"];

/// Reads the entries with one of these sets of `FIELD=value` (all entries, if there is
/// none) from the oldest to the last one, each with its time. `path`: a directory of
/// journals or a file, in place of the host's.
///
/// # Errors
/// The journal cannot be read, or a field has no value.
pub fn read_journal(
    path: Option<PathBuf>,
    matches: &[Vec<String>],
    each: &mut dyn FnMut(&str, Timestamp),
) -> Result<(), SourceError> {
    let field = |text: &String| match text.split_once('=') {
        Some((field, value)) => Ok((field.to_owned(), value.to_owned())),
        None => Err(SourceError::NoJournal(format!(
            "journalmatch {text}: allowed: FIELD=value"
        ))),
    };
    let sets = matches.iter().map(|set| set.iter().map(field).collect());
    let mut matches = sets.collect::<Result<Vec<Vec<_>>, _>>()?;
    if matches.is_empty() {
        let any = TRANSPORTS.map(|word| ("_TRANSPORT".to_owned(), word.to_owned()));
        matches.push(any.to_vec());
    }
    let mut source = JournalSource::open(JournalConfig {
        path,
        matches,
        named_users: Default::default(),
        start: JournalStart::Beginning,
    })?;
    let mut text = String::new();
    loop {
        let info = source.read_batch(Duration::ZERO, &mut |line, origin| {
            let message = String::from_utf8_lossy(line);
            journal_line(&mut text, origin.identifier, origin.writer.pid, &message);
            each(&text, origin.time.unwrap_or_else(Timestamp::now));
        })?;
        if let Some(problem) = info.problems.iter().find(|problem| !problem.resolved) {
            return Err(SourceError::NoJournal(problem.message.clone()));
        }
        if !info.more {
            return Ok(());
        }
    }
}

//! weir's own bans as Fail2ban would log them, for jails that count bans (`recidive`):
//! a file in the state directory, read beside Fail2ban's own log, which nobody writes
//! any more once weir runs in its place.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use jiff::{Timestamp, tz::TimeZone};
use weir_core::{Ban, BanSource, Prefix};
use weir_events::alerts::Alerts;

/// The file's name in the state directory.
const NAME: &str = "fail2ban.log";
/// At this size a file is put aside as `fail2ban.log.1`, in place of the one before it.
const MAX_FILE: u64 = 8 << 20;
/// Bytes that wait for the next second; a disk that does not answer holds nobody up.
const MAX_WAITING: usize = 1 << 20;
/// The subject of its alerts.
const ABOUT: &str = "ban-log";

/// The log of the daemon whose state is in this directory.
pub fn path_in(state_dir: &Path) -> PathBuf {
    state_dir.join(NAME)
}

/// Notes bans, and writes them once a second.
pub struct BanLog {
    /// `None` while no jail counts bans.
    file: Mutex<Option<PathBuf>>,
    alerts: Arc<Alerts>,
    waiting: Mutex<Waiting>,
}

/// The lines that wait to be written.
#[derive(Default)]
struct Waiting {
    text: String,
    /// Bans that found no room in it.
    lost: u64,
}

impl BanLog {
    /// Notes nothing yet.
    pub fn new(alerts: Arc<Alerts>) -> Self {
        Self {
            file: Mutex::default(),
            alerts,
            waiting: Mutex::default(),
        }
    }

    /// Writes bans into this file from now on; `None`: into none.
    pub fn set_file(&self, file: Option<PathBuf>) {
        if file.is_none() {
            self.alerts.clear(ABOUT);
        }
        *self.file.lock().expect("no holder of this lock panics") = file;
    }

    /// Whether some jail counts bans.
    pub fn is_kept(&self) -> bool {
        let file = self.file.lock().expect("no holder of this lock panics");
        file.is_some()
    }

    /// Notes those bans that a jail has made; for while [`Self::is_kept`].
    pub fn note<'a>(&self, bans: impl Iterator<Item = &'a Ban>) {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        for ban in bans {
            let BanSource::Jail(jail) = &ban.producer else {
                continue;
            };
            if waiting.text.len() < MAX_WAITING {
                write_line(&mut waiting.text, ban.since, jail, ban.subject.prefix());
            } else {
                waiting.lost += 1;
            }
        }
    }

    /// Writes what waits; for once a second, and at the end.
    pub fn flush(&self) {
        let Some(path) = self.file() else {
            return;
        };
        let Waiting { text, lost } =
            std::mem::take(&mut *self.waiting.lock().expect("no holder of this lock panics"));
        match append(&path, &text) {
            Err(error) => {
                self.alerts.raise(
                    ABOUT,
                    format!(
                        "{}: {error}; jails that count bans (recidive) miss those of now until it can be written",
                        path.display()
                    ),
                );
                self.keep(text, lost);
            }
            Ok(()) if lost > 0 => self.alerts.raise(
                ABOUT,
                format!(
                    "{}: {} no room within a second; jails that count bans (recidive) miss them",
                    path.display(),
                    crate::counted(lost, "ban found", "bans found")
                ),
            ),
            // An alert of lost bans stays until the next bans are all written.
            Ok(()) if !text.is_empty() => self.alerts.clear(ABOUT),
            Ok(()) => {}
        }
    }

    /// Has these lines be written with the next ones, as far as there is room.
    fn keep(&self, text: String, lost: u64) {
        let mut waiting = self.waiting.lock().expect("no holder of this lock panics");
        let newer = std::mem::replace(&mut waiting.text, text);
        for line in newer.split_inclusive('\n') {
            match waiting.text.len() < MAX_WAITING {
                true => waiting.text.push_str(line),
                false => waiting.lost += 1,
            }
        }
        waiting.lost += lost;
    }

    fn file(&self) -> Option<PathBuf> {
        let file = self.file.lock().expect("no holder of this lock panics");
        file.clone()
    }
}

/// A line as Fail2ban's: its words, and the time with its zone, since a jail may read
/// others in a zone of its own.
fn write_line(text: &mut String, since: Timestamp, jail: &str, banned: Prefix) {
    let at = since.to_zoned(TimeZone::UTC);
    // Jails count an IPv6 network by any address in it; Fail2ban's filters know no others.
    let who = match banned.is_host() || banned.addr().is_ipv6() {
        true => banned.addr().to_string(),
        false => banned.to_string(),
    };
    let _: std::fmt::Result = writeln!(
        text,
        "{},{:03} +0000 fail2ban.actions        [{}]: NOTICE  [{jail}] Ban {who}",
        at.strftime("%Y-%m-%d %H:%M:%S"),
        since.subsec_nanosecond().unsigned_abs() / 1_000_000,
        std::process::id(),
    );
}

/// Makes the file, so that its readers know it, and appends `text`, or nothing of it.
fn append(path: &Path, text: &str) -> io::Result<()> {
    let open = || {
        let mut options = File::options();
        options.create(true).append(true).mode(0o600).open(path)
    };
    if text.is_empty() && path.exists() {
        return Ok(());
    }
    let mut file = open()?;
    if file.metadata()?.len() >= MAX_FILE {
        fs::rename(path, path.with_extension("log.1"))?;
        file = open()?;
    }
    let length = file.metadata()?.len();
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // Half a line would spoil the next one, and whole ones come again.
        file.set_len(length)?;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_is_a_line_as_fail2ban_writes_it() {
        let since: Timestamp = "2026-11-26T05:31:20.1239Z".parse().unwrap();
        let pid = std::process::id();
        for (banned, who) in [
            ("192.0.2.7", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("2001:db8:7::/64", "2001:db8:7::"),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            let mut text = String::new();
            write_line(&mut text, since, "sshd", banned.parse().unwrap());
            let expected = format!(
                "2026-11-26 05:31:20,123 +0000 fail2ban.actions        [{pid}]: NOTICE  [sshd] Ban {who}\n"
            );
            assert_eq!(text, expected);
        }
    }

    /// As on a full disk: nothing is lost as long as it fits, and nothing comes twice.
    #[test]
    fn what_cannot_be_written_waits() {
        let dir = tempfile::tempdir().unwrap();
        let alerts = Arc::new(Alerts::default());
        let log = BanLog::new(alerts.clone());
        let missing = dir.path().join("missing");
        log.set_file(Some(path_in(&missing)));
        log.waiting.lock().unwrap().text.push_str("one\n");
        log.flush();
        log.waiting.lock().unwrap().text.push_str("two\n");
        log.flush();
        fs::create_dir(&missing).unwrap();
        log.flush();
        log.flush();
        assert_eq!(fs::read_to_string(path_in(&missing)).unwrap(), "one\ntwo\n");
        log.keep("x".repeat(MAX_WAITING), 1);
        log.keep("y\n".to_owned(), 1);
        let waiting = log.waiting.lock().unwrap();
        assert_eq!((waiting.text.len(), waiting.lost), (2 + MAX_WAITING, 2));
    }

    #[test]
    fn a_large_log_is_put_aside_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_in(dir.path());
        let line = "x".repeat(1 << 20);
        for _ in 0..20 {
            append(&path, &line).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        let sizes = names.iter().map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, file.metadata().unwrap().len())
        });
        let expected = [
            ("fail2ban.log".to_owned(), 4 << 20),
            ("fail2ban.log.1".to_owned(), MAX_FILE),
        ];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
    }
}

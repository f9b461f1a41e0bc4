//! Whether this host has a systemd journal that somebody writes.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Is there a journal that somebody writes? An empty directory is what a host
/// has whose log is written by somebody else; files that nobody has written
/// since this host (or container) started are left from before, and with
/// `Storage=none` journald keeps nothing.
pub(super) fn is_there() -> bool {
    const DIRECTORIES: [&str; 2] = ["/var/log/journal", "/run/log/journal"];
    if storage(Path::new("/")).as_deref() == Some("none") {
        return false;
    }
    let since = started();
    DIRECTORIES
        .iter()
        .any(|directory| has_journal_files(Path::new(directory), since))
}

/// The time when the first process started; where nobody knows, any time.
fn started() -> SystemTime {
    // In ticks since the boot. (The time of its directory in /proc is another.)
    let ticks = || {
        let stat = fs::read_to_string("/proc/1/stat").ok()?;
        let fields = stat.rsplit(')').next()?;
        // starttime is field 22; field 3 follows the name.
        fields.split_whitespace().nth(19)?.parse::<u64>().ok()
    };
    let up = || {
        let text = fs::read_to_string("/proc/uptime").ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    // USER_HZ, of /proc: 100 on every architecture that weir knows.
    let age = ticks().zip(up()).map(|(t, up)| up - t as f64 / 100.0);
    let age = age.and_then(|age| Duration::try_from_secs_f64(age).ok());
    age.and_then(|age| SystemTime::now().checked_sub(age + SLACK))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A host without a clock of its own sets it after its start.
const SLACK: Duration = Duration::from_secs(600);

/// What journald.conf and its drop-ins below `root` say of `Storage=`: the last
/// word of the directories in which systemd looks, by the names of the files.
fn storage(root: &Path) -> Option<String> {
    const PLACES: [&str; 4] = [
        "usr/lib/systemd",
        "usr/local/lib/systemd",
        "run/systemd",
        "etc/systemd",
    ];
    let mut files: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    let mut main = None;
    for place in PLACES {
        let file = root.join(place).join("journald.conf");
        if file.is_file() {
            main = Some(file);
        }
        let dropins = fs::read_dir(root.join(place).join("journald.conf.d"));
        for entry in dropins.into_iter().flatten().flatten().take(1000) {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "conf") {
                files.insert(entry.file_name(), path);
            }
        }
    }
    let mut last = None;
    for path in main.into_iter().chain(files.into_values()) {
        let text = fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once('=')
                && key.trim() == "Storage"
            {
                last = Some(value.trim().to_ascii_lowercase());
            }
        }
    }
    last
}

fn has_journal_files(directory: &Path, since: SystemTime) -> bool {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    let is_journal = |path: &Path| {
        let written = || path.metadata().and_then(|meta| meta.modified());
        path.extension().is_some_and(|e| e == "journal") && written().is_ok_and(|at| at >= since)
    };
    entries(directory).take(1000).any(|entry| {
        let path = entry.path();
        is_journal(&path) || entries(&path).take(10_000).any(|e| is_journal(&e.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        let any = SystemTime::UNIX_EPOCH;
        assert!(!has_journal_files(dir.path(), any));
        assert!(!has_journal_files(&dir.path().join("none"), any));
        let machine = dir.path().join("0f1e2d3c4b5a69788796a5b4c3d2e1f0");
        fs::create_dir(&machine).unwrap();
        assert!(!has_journal_files(dir.path(), any));
        fs::write(machine.join("system.journal"), "").unwrap();
        assert!(has_journal_files(dir.path(), any));
    }

    #[test]
    fn a_journal_that_nobody_writes_any_more_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("system.journal");
        fs::write(&file, "").unwrap();
        let since = started();
        assert!(since < SystemTime::now());
        assert!(has_journal_files(dir.path(), since));
        let old = fs::File::options().write(true).open(&file).unwrap();
        old.set_modified(since - Duration::from_secs(1)).unwrap();
        assert!(!has_journal_files(dir.path(), since));
    }

    #[test]
    fn what_journald_is_told_to_keep_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let told = || storage(dir.path());
        assert_eq!(told(), None);
        write("etc/systemd/journald.conf", "[Journal]\n#Storage=auto\n");
        assert_eq!(told(), None);
        write("etc/systemd/journald.conf", "[Journal]\nStorage = None\n");
        assert_eq!(told().as_deref(), Some("none"));
        // A drop-in goes before, whichever directory it is in; of one name, etc's.
        write(
            "usr/lib/systemd/journald.conf.d/50-x.conf",
            "[Journal]\nStorage=volatile\n",
        );
        assert_eq!(told().as_deref(), Some("volatile"));
        write("etc/systemd/journald.conf.d/50-x.conf", "[Journal]\n");
        assert_eq!(told().as_deref(), Some("none"));
    }
}

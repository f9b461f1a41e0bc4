//! Which files make up a configuration: `weir.toml`, and beside a file of that
//! name
//!
//! - `conf.d/*.toml`, with sections (and keys) of the same kind,
//! - `filter.d/NAME.toml`, each the table `[filter.NAME]`,
//! - `jail.d/NAME.toml`, each the table `[jail.NAME]`,
//!
//! in the order of their names. What they say is `check`'s business.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use weir_config::{ConfigError, ConfigErrors, Source};

use crate::threads;

const MAIN: &str = "weir.toml";

/// The most files in one directory, and bytes in one of them.
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 16 << 20;

/// The configuration file that a path means.
pub(super) fn main_file(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join(MAIN),
        false => path.to_owned(),
    }
}

/// Reads all of them.
pub(super) fn read(path: &Path) -> Result<Vec<Source>, ConfigErrors> {
    let main = main_file(path);
    let mut files = vec![(main.clone(), text(&main)?, None)];
    for (directory, table) in [
        ("conf.d", None),
        ("filter.d", Some("filter")),
        ("jail.d", Some("jail")),
    ] {
        for file in beside(&main, directory)? {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let table = table.map(|table| (table, name.into_owned()));
            let text = text(&file)?;
            files.push((file, text, table));
        }
    }
    Ok(files)
}

/// What conf.d holds, as far as it can be read.
pub(super) fn fragments(main: &Path) -> Vec<PathBuf> {
    beside(main, "conf.d").unwrap_or_default()
}

/// The files of a directory beside the configuration file, by name.
fn beside(main: &Path, directory: &str) -> Result<Vec<PathBuf>, ConfigErrors> {
    if main.file_name().is_none_or(|name| name != MAIN) {
        return Ok(Vec::new());
    }
    let directory = main.with_file_name(directory);
    let wrong = |error: io::Error| whole(&directory, format!("cannot read: {error}"));
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(wrong)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Editors leave others, and hide theirs.
        if name.ends_with(".toml") && !name.starts_with('.') {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(whole(
                &directory,
                format!("more than {MAX_FILES} files; join some"),
            ));
        }
    }
    files.sort();
    Ok(files)
}

/// What a file holds. A FIFO is not waited for.
pub(super) fn bytes(file: &Path) -> io::Result<Vec<u8>> {
    let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let kind = fs::metadata(file)?.file_type();
    if kind.is_fifo() || kind.is_socket() {
        return wrong("it is no regular file");
    }
    let mut bytes = Vec::new();
    File::open(file)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => wrong(&format!("it is longer than {MAX_BYTES} bytes")),
        false => Ok(bytes),
    }
}

pub(super) fn text(file: &Path) -> Result<String, ConfigErrors> {
    let bytes = bytes(file).map_err(|error| whole(file, format!("cannot read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..at];
        ConfigErrors(vec![ConfigError {
            file: file.to_owned(),
            line: before.iter().filter(|b| **b == b'\n').count() + 1,
            message: "not UTF-8".to_owned(),
        }])
    })
}

pub(super) fn whole(file: &Path, message: String) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        file: file.to_owned(),
        line: 0,
        message,
    }])
}

/// The file system of a log has this long to answer: a reload does not wait for
/// one that never does.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Questions that wait for an answer at most; each has a thread.
const MAX_WAITING: usize = 16;

/// Asks a file system, on a thread that may wait for ever; `None`: no answer yet.
fn ask<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    if WAITING.fetch_add(1, Relaxed) >= MAX_WAITING {
        WAITING.fetch_sub(1, Relaxed);
        return None;
    }
    let (tell, answer) = mpsc::channel();
    let asked = threads::spawn("weir-ask-file", move || {
        // Nobody may be waiting any more.
        let _ = tell.send(question());
        WAITING.fetch_sub(1, Relaxed);
    });
    if asked.is_err() {
        WAITING.fetch_sub(1, Relaxed);
        return None;
    }
    answer.recv_timeout(ANSWER_WITHIN).ok()
}

/// Is there such a file? One whose file system does not answer may be.
pub(super) fn exists(path: &Path) -> bool {
    let path = path.to_owned();
    ask(move || path.exists()).unwrap_or(true)
}

/// The last lines of a log.
pub(super) fn log_end(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    ask(move || read_log_end(&path)).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

fn read_log_end(path: &Path) -> io::Result<Vec<u8>> {
    const ENOUGH: u64 = 8 << 10;
    // A FIFO is not waited for.
    if !fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(ENOUGH)))?;
    let mut end = Vec::new();
    file.take(ENOUGH).read_to_end(&mut end)?;
    if len > ENOUGH {
        let whole = end
            .iter()
            .position(|b| *b == b'\n')
            .map_or(end.len(), |at| at + 1);
        end.drain(..whole);
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const MAIN_TEXT: &str =
        "backend = \"dry-run\"\ninterfaces = []\n\n[jail.sshd]\nmax_retry = 2\n";

    #[test]
    fn directories_beside_the_file_are_read() {
        let dir = directory(&[
            ("weir.toml", MAIN_TEXT),
            (
                "conf.d/b.toml",
                "keep_history = \"2d\"\n[jail.two]\nfilter = \"own\"\npaths = [\"/x\"]\n",
            ),
            ("conf.d/a.toml", "[lockout]\ngrace = \"5m\"\n"),
            ("conf.d/a.toml~", "no"),
            ("conf.d/.b.toml", "no"),
            (
                "filter.d/own.toml",
                "identifiers = [\"own\"]\n[[patterns]]\ntext = \"denied <addr>\"\n",
            ),
            ("jail.d/three.toml", "filter = \"own\"\npaths = [\"/y\"]\n"),
        ]);
        for path in [dir.path().to_owned(), dir.path().join("weir.toml")] {
            let config = Config::load(&path).unwrap_or_else(|e| panic!("{e}"));
            let jails: Vec<_> = config.jails.iter().map(|jail| jail.name.as_str()).collect();
            assert_eq!(jails, ["sshd", "two", "three"]);
            assert_eq!(config.lockout.grace.as_secs(), 300);
            assert_eq!(config.keep_history.time.as_secs(), 2 * 86_400);
            assert_eq!(config.filters["own"].identifiers, ["own"]);
            assert_eq!(config.file, dir.path().join("weir.toml"));
        }
        // Beside a file of another name they are somebody else's.
        fs::write(dir.path().join("other.toml"), MAIN_TEXT).unwrap();
        let config = Config::load(&dir.path().join("other.toml")).unwrap();
        assert_eq!(config.jails.len(), 1);
        let socket = |text: &str| {
            fs::write(dir.path().join("conf.d/a.toml"), text).unwrap();
            super::super::socket_of(dir.path())
        };
        assert_eq!(socket("socket = \"/a/b\"\n"), Some("/a/b".into()));
        assert_eq!(socket(""), None);
        assert_eq!(socket("instance = \"b\"\n"), None);
        let (_, instance) = super::super::place_of(dir.path()).unwrap();
        assert_eq!(instance, "b");
    }

    #[test]
    fn a_mistake_is_named_with_its_own_file_and_line() {
        for (file, text, said) in [
            (
                "conf.d/a.toml",
                "\n[jail.x]\nfilter = \"sshd\"\nretry = 3\n",
                "conf.d/a.toml:4: unknown key \"retry\" in [jail.x]",
            ),
            ("conf.d/a.toml", "\n\n[jail.x\n", "conf.d/a.toml:3: "),
            (
                "conf.d/a.toml",
                "[jail.sshd]\n",
                "conf.d/a.toml:1: jail.sshd is in {dir}/weir.toml:4 already",
            ),
            (
                "conf.d/a.toml",
                "\nbackend = \"xdp\"\n",
                "conf.d/a.toml:2: backend is in {dir}/weir.toml:1 already",
            ),
            (
                "conf.d/a.toml",
                "nonsense = 1\n",
                "conf.d/a.toml:1: unknown key \"nonsense\"",
            ),
            (
                "filter.d/own.toml",
                "\npatterns = [\"x\"]\n",
                "filter.d/own.toml:2: [filter.own]: patterns[0]",
            ),
            (
                "filter.d/own.toml",
                "patterns = [\"<addr>\"]\nretry = 3\n",
                "filter.d/own.toml:2: unknown key \"retry\" in [filter.own]; allowed: identifiers, ",
            ),
            (
                "jail.d/own.toml",
                "filter = \"sshd\"\n[jail.own]\n",
                "jail.d/own.toml:2: unknown key \"jail\" in [jail.own]",
            ),
            (
                "jail.d/sshd.toml",
                "max_retry = 3\n",
                "jail.d/sshd.toml:1: jail.sshd is in {dir}/weir.toml:4 already",
            ),
            (
                "jail.d/own.toml",
                "filter = \"sshd\"\nobserve = true\n",
                "own.toml:2: unknown key \"observe\" in [jail.own]; allowed: enabled",
            ),
            (
                "jail.d/own.toml",
                "filter = \"sshd\"\nobserve = true\n",
                "; it is a top-level key: write it above the first [table] of {dir}/weir.toml",
            ),
        ] {
            let dir = directory(&[("weir.toml", MAIN_TEXT), (file, text)]);
            let error = Config::load(dir.path())
                .map(drop)
                .expect_err(text)
                .to_string();
            let said = said.replace("{dir}", &dir.path().display().to_string());
            assert!(error.contains(&said), "{file} {text:?}: {error}");
        }
        let dir = directory(&[("weir.toml", MAIN_TEXT)]);
        fs::create_dir(dir.path().join("jail.d")).unwrap();
        fs::write(dir.path().join("jail.d/x.toml"), b"\nignore = [\xff]").unwrap();
        let error = Config::load(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("jail.d/x.toml:2: not UTF-8"), "{error}");
    }
}

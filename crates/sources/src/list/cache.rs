//! The last good copy of each list on disk, so that a restart without the
//! server has it: `NAME.list`, mode 0600, one line of JSON about its source and
//! then the list as it came. Replaced whole or not at all, also by a crash.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{ListError, Validators, fetch::read_file};

/// A directory of copies.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// A copy of a list on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The list as it came, unpacked.
    pub bytes: Vec<u8>,
    /// The server's marks of this version.
    pub validators: Validators,
    /// The time at which the list was last known to be the newest.
    pub checked: SystemTime,
}

/// The first line of a copy.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The source of the list: a copy of another source is none.
    source: String,
    /// Bytes behind this line: a copy of another length is damaged.
    bytes: usize,
    #[serde(flatten)]
    validators: Validators,
}

/// The longest first line: URL and validators are bounded.
const MAX_HEAD: usize = 16 * 1024;

impl Cache {
    /// In this directory, which is made when something is kept.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the copy of a list is. The name has been checked: letters,
    /// digits, `-` and `_`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.list"))
    }

    /// The copy of this list from this source, if there is a whole one.
    pub fn load(
        &self,
        name: &str,
        source: &str,
        max_bytes: usize,
    ) -> Result<Option<Kept>, ListError> {
        let path = self.path(name);
        let damaged = |what: &str| ListError::File {
            what: format!("cannot use the copy {}", path.display()),
            error: what.to_owned(),
        };
        let mut bytes = match path.try_exists() {
            Ok(false) => return Ok(None),
            _ => read_file(&path, max_bytes.saturating_add(MAX_HEAD))?,
        };
        let end = memchr::memchr(b'\n', &bytes).ok_or_else(|| damaged("its first line is cut"))?;
        let head: Head =
            serde_json::from_slice(&bytes[..end]).map_err(|error| damaged(&error.to_string()))?;
        if head.source != source {
            return Ok(None);
        }
        bytes.drain(..=end);
        if bytes.len() != head.bytes {
            return Err(damaged("its length is not what it should be"));
        }
        let checked = fs::metadata(&path)
            .and_then(|meta| meta.modified())
            .map_err(|error| ListError::file("look at", &path, &error))?;
        Ok(Some(Kept {
            bytes,
            validators: head.validators,
            checked,
        }))
    }

    /// Keeps this copy in place of the one before.
    pub fn keep(
        &self,
        name: &str,
        source: &str,
        bytes: &[u8],
        validators: &Validators,
    ) -> Result<(), ListError> {
        let path = self.path(name);
        let head = Head {
            source: source.to_owned(),
            bytes: bytes.len(),
            validators: validators.clone(),
        };
        self.write(&path, &head, bytes)
            .map_err(|error| ListError::file("keep a copy in", &path, &error))
    }

    fn write(&self, path: &Path, head: &Head, bytes: &[u8]) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let new = path.with_extension("new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        let mut line = serde_json::to_vec(head)?;
        line.push(b'\n');
        let written = file
            .write_all(&line)
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| File::open(&self.dir)?.sync_all());
        if written.is_err() {
            // A full disk: what has been written is of no use.
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// The source says that the copy is still its newest version.
    pub fn confirm(&self, name: &str) -> Result<(), ListError> {
        let path = self.path(name);
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()))
            .map_err(|error| ListError::file("touch", &path, &error))
    }

    /// Removes the copies of all lists but these.
    pub fn forget_others(&self, names: &[&str]) {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let known = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .is_some_and(|stem| names.contains(&stem));
            let ours = path
                .extension()
                .is_some_and(|extension| extension == "list" || extension == "new");
            if ours && !known {
                // It is only a copy; the next start tries again.
                let _ = fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SOURCE: &str = "https://lists.example/drop.txt";

    fn tagged() -> Validators {
        Validators {
            etag: Some("\"7\"".to_owned()),
            last_modified: None,
        }
    }

    #[test]
    fn a_copy_is_read_back_for_its_source_only() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("lists"));
        assert_eq!(cache.load("drop", SOURCE, 100).unwrap(), None);
        cache
            .keep("drop", SOURCE, b"198.51.100.7\n\n", &tagged())
            .unwrap();
        let kept = cache.load("drop", SOURCE, 100).unwrap().unwrap();
        assert_eq!(kept.bytes, b"198.51.100.7\n\n");
        assert_eq!(kept.validators, tagged());
        assert_eq!(
            cache.load("drop", "https://else.example/", 100).unwrap(),
            None
        );

        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&cache.path("drop")), 0o600);
        assert_eq!(mode(&dir.path().join("lists")), 0o700);

        cache
            .keep("drop", SOURCE, b"", &Validators::default())
            .unwrap();
        let kept = cache.load("drop", SOURCE, 100).unwrap().unwrap();
        assert_eq!(
            (kept.bytes, kept.validators),
            (Vec::new(), Validators::default())
        );
        cache.keep("other", SOURCE, b"x", &tagged()).unwrap();
        cache.forget_others(&["other"]);
        assert_eq!(cache.load("drop", SOURCE, 100).unwrap(), None);
        assert!(cache.load("other", SOURCE, 100).unwrap().is_some());
    }

    #[test]
    fn confirming_moves_the_time_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        cache.keep("drop", SOURCE, b"x", &tagged()).unwrap();
        let old = SystemTime::now() - std::time::Duration::from_secs(5000);
        let file = File::options()
            .write(true)
            .open(cache.path("drop"))
            .unwrap();
        file.set_modified(old).unwrap();
        let before = cache.load("drop", SOURCE, 100).unwrap().unwrap();
        cache.confirm("drop").unwrap();
        let after = cache.load("drop", SOURCE, 100).unwrap().unwrap();
        assert!(after.checked > before.checked);
        assert_eq!(after.bytes, before.bytes);
    }

    #[test]
    fn a_damaged_copy_is_an_error_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path());
        cache
            .keep("drop", SOURCE, b"198.51.100.7\n", &tagged())
            .unwrap();
        let whole = fs::read(cache.path("drop")).unwrap();
        for cut in 0..whole.len() {
            fs::write(cache.path("drop"), &whole[..cut]).unwrap();
            let error = cache.load("drop", SOURCE, 100).unwrap_err().to_string();
            assert!(error.contains("drop.list"), "{error}");
        }
        fs::write(
            cache.path("drop"),
            [&whole[..], &[b'x'; MAX_HEAD + 100]].concat(),
        )
        .unwrap();
        assert!(cache.load("drop", SOURCE, 100).is_err());
    }
}

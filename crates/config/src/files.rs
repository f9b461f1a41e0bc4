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
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use crate::{ConfigError, ConfigErrors, Source};

const MAIN: &str = "weir.toml";

/// The most files in one directory, and bytes in one of them.
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 16 << 20;

/// The configuration file that a path means.
pub fn main_file(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join(MAIN),
        false => path.to_owned(),
    }
}

/// Reads all of them.
pub fn read(path: &Path) -> Result<Vec<Source>, ConfigErrors> {
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
pub fn fragments(main: &Path) -> Vec<PathBuf> {
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

/// The bytes of a regular file, at most `MAX_BYTES`. A FIFO is not waited for.
pub fn bytes(file: &Path) -> io::Result<Vec<u8>> {
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

/// The text of a file; a mistake with file and line where it is not UTF-8.
pub fn text(file: &Path) -> Result<String, ConfigErrors> {
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

/// A mistake of a file as a whole.
pub fn whole(file: &Path, message: String) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        file: file.to_owned(),
        line: 0,
        message,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[Source]) -> Vec<String> {
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        files.iter().map(|(path, ..)| name(path)).collect()
    }

    #[test]
    fn files_stand_beside_a_configuration_of_that_name_only() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("conf.d")).unwrap();
        fs::create_dir(at("jail.d")).unwrap();
        for name in [
            "weir.toml",
            "other.toml",
            "conf.d/b.toml",
            "conf.d/a.toml",
            "conf.d/.hidden.toml",
            "conf.d/a.toml~",
            "jail.d/sshd.toml",
        ] {
            fs::write(at(name), name).unwrap();
        }
        let files = read(dir.path()).unwrap();
        assert_eq!(
            names(&files),
            ["weir.toml", "a.toml", "b.toml", "sshd.toml"]
        );
        assert_eq!(files[3].2, Some(("jail", "sshd".to_owned())));
        assert_eq!(
            fragments(&at("weir.toml")),
            [at("conf.d/a.toml"), at("conf.d/b.toml")]
        );
        assert_eq!(names(&read(&at("other.toml")).unwrap()), ["other.toml"]);
    }

    #[test]
    fn a_directory_has_a_thousand_files_and_not_one_more() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join(MAIN);
        fs::write(&main, "").unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        let add = |number: usize| {
            let name = format!("conf.d/{number}.toml");
            fs::write(dir.path().join(name), "").unwrap();
        };
        (0..MAX_FILES).for_each(add);
        assert_eq!(read(&main).unwrap().len(), 1 + MAX_FILES);
        add(MAX_FILES);
        let error = read(&main).unwrap_err().to_string();
        assert!(error.contains("conf.d: more than 1000 files"), "{error}");
    }

    #[test]
    fn a_file_has_sixteen_mebibytes_and_not_one_byte_more() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join(MAIN);
        let blank = |bytes: usize| fs::write(&main, vec![b' '; bytes]).unwrap();
        blank(16 << 20);
        assert_eq!(bytes(&main).unwrap().len(), 16 << 20);
        blank((16 << 20) + 1);
        let error = read(&main).unwrap_err().to_string();
        assert!(error.contains("longer than 16777216 bytes"), "{error}");
    }
}

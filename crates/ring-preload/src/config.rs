//! What the environment asks for, read once when the library is loaded, and
//! which files it names.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The settings; see the README for what each is for.
#[derive(Debug)]
pub(crate) struct Config {
    /// The directory of the segments.
    pub(crate) directory: PathBuf,
    /// Whether lines go to the file as well.
    pub(crate) tee: bool,
    /// Bytes of each segment.
    pub(crate) size: u64,
    /// Permissions of each segment.
    pub(crate) mode: u32,
    /// What segments are called, before their number.
    pub(crate) program: String,
    patterns: Vec<CString>,
}

const SIZE: u64 = 1 << 20;

/// Readers write, too: they publish how far they are.
const MODE: u32 = 0o600;

impl Config {
    /// `Ok(None)`: nothing is asked for, the library is to do nothing.
    pub(crate) fn read(
        variable: impl Fn(&str) -> Option<OsString>,
        program: &str,
    ) -> Result<Option<Config>, String> {
        let Some(directory) = variable("WEIR_RING").filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let directory = PathBuf::from(directory);
        if !directory.is_absolute() {
            return Err("WEIR_RING must be an absolute path".into());
        }
        let files = variable("WEIR_RING_FILES").unwrap_or_default();
        let patterns: Vec<CString> = files
            .as_bytes()
            .split(|&byte| byte == b':')
            .filter(|pattern| !pattern.is_empty())
            .filter_map(|pattern| CString::new(pattern).ok())
            .collect();
        if patterns.is_empty() {
            return Err("WEIR_RING_FILES names no file".into());
        }
        let tee = match variable("WEIR_RING_TEE").as_deref().map(OsStr::as_bytes) {
            None | Some(b"" | b"0") => false,
            Some(b"1") => true,
            Some(_) => return Err("WEIR_RING_TEE must be 0 or 1".into()),
        };
        let size = match variable("WEIR_RING_SIZE").filter(|value| !value.is_empty()) {
            None => SIZE,
            Some(value) => value
                .to_str()
                .and_then(|value| value.parse::<u64>().ok())
                .filter(|size| {
                    size.is_power_of_two()
                        && (weir_ring::MIN_SIZE..=weir_ring::MAX_SIZE).contains(size)
                })
                .ok_or("WEIR_RING_SIZE must be a power of two, 4096 or more")?,
        };
        let mode = match variable("WEIR_RING_MODE").filter(|value| !value.is_empty()) {
            None => MODE,
            Some(value) => value
                .to_str()
                .and_then(|value| u32::from_str_radix(value, 8).ok())
                .filter(|mode| mode & 0o600 == 0o600 && mode & !0o666 == 0)
                .ok_or("WEIR_RING_MODE must be octal, 600 to 666")?,
        };
        Ok(Some(Config {
            directory,
            tee,
            size,
            mode,
            program: file_name(program),
            patterns,
        }))
    }

    /// Whether a file is one of those named. A pattern without a slash is
    /// for the last part of the path, any other for the whole of it.
    pub(crate) fn names(&self, path: &Path) -> bool {
        let Ok(whole) = CString::new(path.as_os_str().as_bytes()) else {
            return false;
        };
        let last = path
            .file_name()
            .and_then(|name| CString::new(name.as_bytes()).ok());
        self.patterns.iter().any(|pattern| {
            if pattern.as_bytes().contains(&b'/') {
                matches(pattern, &whole)
            } else {
                last.as_ref().is_some_and(|last| matches(pattern, last))
            }
        })
    }
}

fn matches(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: both are C strings that live through the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), libc::FNM_PATHNAME) == 0 }
}

/// The program's name as part of a segment's: a hidden file, or one in
/// another directory, would never be read.
fn file_name(program: &str) -> String {
    let name: String = program
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        })
        .take(64)
        .collect();
    if name.is_empty() {
        "program".into()
    } else {
        name
    }
}

/// The absolute path of what `open` was given, without `.` and `..` parts;
/// symbolic links stay, since it is names that patterns are for.
pub(crate) fn absolute(directory: libc::c_int, path: &CStr) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let mut whole = if path.is_absolute() {
        PathBuf::new()
    } else if directory == libc::AT_FDCWD {
        std::env::current_dir().ok()?
    } else {
        std::fs::read_link(format!("/proc/self/fd/{directory}")).ok()?
    };
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                whole.pop();
            }
            part => whole.push(part),
        }
    }
    Some(PathBuf::from(OsString::from_vec(
        whole.into_os_string().into_vec(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Config>, String> {
        let find = |name: &str| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        Config::read(find, "nginx: worker/.x")
    }

    #[test]
    fn nothing_asked_for_is_nothing_done() {
        assert!(read(&[]).expect("no error").is_none());
        assert!(read(&[("WEIR_RING", "")]).expect("no error").is_none());
    }

    #[test]
    fn each_bad_setting_is_named() {
        let files = ("WEIR_RING_FILES", "/var/log/a");
        for (pairs, word) in [
            (vec![("WEIR_RING", "relative"), files], "absolute"),
            (vec![("WEIR_RING", "/dev/shm/a")], "WEIR_RING_FILES"),
            (
                vec![("WEIR_RING", "/a"), files, ("WEIR_RING_TEE", "yes")],
                "WEIR_RING_TEE",
            ),
            (
                vec![("WEIR_RING", "/a"), files, ("WEIR_RING_SIZE", "5000")],
                "WEIR_RING_SIZE",
            ),
            (
                vec![("WEIR_RING", "/a"), files, ("WEIR_RING_MODE", "460")],
                "WEIR_RING_MODE",
            ),
            (
                vec![("WEIR_RING", "/a"), files, ("WEIR_RING_MODE", "4660")],
                "WEIR_RING_MODE",
            ),
        ] {
            let error = read(&pairs).expect_err("an error");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn patterns_are_for_the_path_or_its_last_part() {
        let config = read(&[
            ("WEIR_RING", "/dev/shm/a"),
            ("WEIR_RING_FILES", "/var/log/n/*.log::error.txt"),
        ])
        .expect("no error")
        .expect("a configuration");
        assert_eq!(config.program, "nginx--worker--x");
        for (path, named) in [
            ("/var/log/n/access.log", true),
            ("/var/log/n/deep/access.log", false),
            ("/var/log/n/access.log.1", false),
            ("/anywhere/error.txt", true),
            ("/anywhere/error.txt/x", false),
        ] {
            assert_eq!(config.names(Path::new(path)), named, "{path}");
        }
    }

    #[test]
    fn paths_are_made_absolute() {
        let at = |path: &CStr| absolute(libc::AT_FDCWD, path).expect("a path");
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(at(c"/a/./b/../c"), Path::new("/a/c"));
        assert_eq!(at(c"./x"), here.join("x"));
        assert_eq!(at(c"../x"), here.parent().expect("a parent").join("x"));
    }
}

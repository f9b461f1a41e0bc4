//! A directory of Fail2ban's: reading it ends, whatever it includes and interpolates; a
//! mistake has its file, and a filter that is read compiles or is refused with its place.
#![no_main]

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use libfuzzer_sys::fuzz_target;
use weir_fail2ban::{Files, LogFacts, load_filter, load_jails, matching::Filter};

/// The files, by their paths.
struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.0.get(path).cloned().ok_or_else(missing)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let inside = self.0.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.cloned().collect())
    }
}

struct Nothing;

impl LogFacts for Nothing {
    fn has_log(&self, _: &str) -> bool {
        false
    }
    fn has_journal(&self) -> bool {
        true
    }
}

/// What the parts of the input are, between NULs.
const NAMES: [&str; 5] = [
    "/f/jail.conf",
    "/f/filter.d/a.conf",
    "/f/jail.d/b.conf",
    "/f/action.d/a.conf",
    "/f/filter.d/b.conf",
];

fuzz_target!(|data: &[u8]| {
    let parts = data.split(|byte| *byte == 0);
    let files = NAMES.iter().zip(parts);
    let files = Memory(
        files
            .map(|(name, part)| (PathBuf::from(name), part.to_vec()))
            .collect(),
    );
    match load_jails(&files, Path::new("/f"), &Nothing) {
        Err(error) => assert!(error.to_string().starts_with("/f/"), "{error}"),
        Ok(all) => {
            for (name, error) in &all.broken {
                assert!(!error.message.is_empty(), "{name}");
                assert!(!all.jails.iter().any(|jail| jail.name == *name), "{name}");
            }
            for jail in all.jails.iter().take(4) {
                let _ = Filter::new(&jail.filter);
            }
        }
    }
    if let Ok(source) = load_filter(&files, Path::new("/f"), "a", &[]) {
        let _ = Filter::new(&source);
    }
});

//! Files for tests: on the disk, and in memory; and the trees of Fail2ban's that a test
//! may find on this machine.
#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use weir_fail2ban::Files;

/// The disk as it is.
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match fs::read_dir(dir) {
            Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }
}

/// Files that a test writes down.
#[derive(Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| (PathBuf::from(path), text.as_bytes().to_vec());
        Self(files.iter().map(file).collect())
    }

    pub fn bytes(mut self, path: &str, bytes: &[u8]) -> Self {
        self.0.insert(path.into(), bytes.to_vec());
        self
    }
}

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

/// Fail2ban's own tree with its tests: what FAIL2BAN_TREE names, else what lies beside
/// the checkout. `None`, said aloud, if there is none.
pub fn upstream() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance/fail2ban");
    let tree = env::var_os("FAIL2BAN_TREE").map_or(beside, PathBuf::from);
    there("fail2ban tree", tree, "config/filter.d")
}

/// The configuration of the installed package.
pub fn installed() -> Option<PathBuf> {
    there(
        "fail2ban package",
        "/etc/fail2ban".into(),
        "filter.d/sshd.conf",
    )
}

fn there(probe: &str, tree: PathBuf, inside: &str) -> Option<PathBuf> {
    if tree.join(inside).exists() {
        return Some(tree);
    }
    eprintln!(
        "skipped: {probe}: there is no {}",
        tree.join(inside).display()
    );
    None
}

/// The names of the filters in `dir`, those only included apart.
pub fn filters(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir.join("filter.d"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let name = name.strip_suffix(".conf")?.to_owned();
            (!name.ends_with("common")).then_some(name)
        })
        .collect();
    names.sort();
    names
}

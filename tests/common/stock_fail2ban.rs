//! The configuration of Debian's fail2ban package, for tests that run it.
#![allow(dead_code)] // each test file uses its part

use std::{fs, path::Path};

/// Where the package has its configuration.
pub const STOCK: &str = "/etc/fail2ban";

/// Says why a test cannot run where the package is not installed.
pub fn is_missing() -> bool {
    let is_missing = !Path::new(STOCK).join("jail.conf").exists();
    if is_missing {
        println!("skipped: fail2ban package: there is no {STOCK}/jail.conf");
    }
    is_missing
}

/// A copy of a part of it, or of all (`""`), in `to`.
pub fn copy(part: &str, to: &Path) {
    copy_tree(&Path::new(STOCK).join(part), to);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), to).unwrap(),
        }
    }
}

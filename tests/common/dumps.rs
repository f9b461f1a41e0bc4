//! Programs that may dump their core, in a directory, and whether they do.
#![allow(dead_code)] // each test file uses its part

use std::{os::unix::process::ExitStatusExt, path::Path, process::Command};

/// The words before a program that it runs with: no limit of core dumps, and this directory for
/// them.
pub fn words(dir: &Path) -> Vec<String> {
    let enter = format!(
        "cd '{}' && ulimit -c unlimited && exec \"$@\"",
        dir.display()
    );
    ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
}

/// Says why nobody's core is dumped here.
pub fn are_none_here(dir: &Path) -> bool {
    let words = words(dir);
    let ended = Command::new(&words[0])
        .args(&words[1..])
        .args(["sh", "-c", "kill -ABRT $$"])
        .status()
        .unwrap();
    if !ended.core_dumped() {
        eprintln!("skipped: a core is never dumped here (probe: sh with SIGABRT)");
        return true;
    }
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if is_core(&path) {
            std::fs::remove_file(path).unwrap();
        }
    }
    false
}

fn is_core(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    name == "core" || name.starts_with("core.")
}

/// Whether a core was dumped there.
pub fn is_in(dir: &Path) -> bool {
    let mut entries = std::fs::read_dir(dir).unwrap();
    entries.any(|entry| is_core(&entry.unwrap().path()))
}

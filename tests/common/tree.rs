//! The files of this repository, for the tests that read them: without what a build
//! makes, and without what is hidden.
#![allow(dead_code)] // each test file uses its part

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The repository's top.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// All files below a directory of the repository ("" is its top), sorted, by their
/// paths from the top. A path that is a file is that file alone.
///
/// # Panics
/// When there is no such path.
pub fn files(path: &str) -> Vec<String> {
    let mut all = Vec::new();
    if is_dir(path) {
        for name in entries(path) {
            all.extend(files(&join(path, &name)));
        }
    } else {
        all.push(path.to_owned());
    }
    all
}

/// The names in a directory of the repository, sorted.
///
/// # Panics
/// When there is no such directory.
pub fn entries(dir: &str) -> Vec<String> {
    let inside = fs::read_dir(at(dir)).unwrap_or_else(|e| panic!("{dir}: {e}"));
    let names = inside.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    names.sort();
    names
}

/// The directories of the crates below `crates/`, from the top.
pub fn crates() -> Vec<String> {
    let names = entries("crates").into_iter();
    let all: Vec<_> = names.map(|name| format!("crates/{name}")).collect();
    assert!(all.len() > 10, "only {all:?}");
    all
}

/// Where a path of the repository is on the disk.
pub fn at(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}

fn is_dir(path: &str) -> bool {
    at(path).is_dir()
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

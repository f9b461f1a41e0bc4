//! What docs/dependencies.md says of Cargo.lock.

use std::collections::{BTreeMap, BTreeSet};

use crate::read;

/// The part of a version that says what it is compatible with.
fn compatible(version: &str) -> String {
    match version.split_once('.').expect("major.minor.patch") {
        ("0", rest) => format!("0.{}", rest.split('.').next().unwrap_or_default()),
        (major, _) => major.to_owned(),
    }
}

/// Crates of which Cargo.lock has several versions.
fn locked() -> BTreeMap<String, BTreeSet<String>> {
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    let mut versions = BTreeMap::<String, BTreeSet<String>>::new();
    for package in lock["package"].as_array().unwrap() {
        let text = |key: &str| package[key].as_str().unwrap().to_owned();
        let version = compatible(&text("version"));
        let fresh = versions.entry(text("name")).or_default().insert(version);
        assert!(fresh, "two compatible versions of {}", text("name"));
    }
    versions.retain(|_, versions| versions.len() > 1);
    versions
}

#[test]
fn the_crates_that_are_there_twice_are_those_of_the_document() {
    let document = read("docs/dependencies.md");
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| ")?.split(" | ").collect();
        (cells[0] != "crate").then(|| {
            let versions = cells[1].split(", ").map(str::to_owned).collect();
            (cells[0].to_owned(), versions)
        })
    });
    assert_eq!(rows.collect::<BTreeMap<_, BTreeSet<_>>>(), locked());
}

//! tests/README.md lists every test program of the workspace, those of tests/ under
//! a heading of their own, says of each whether it needs root and whether it runs
//! alone, and lists no others.

use std::collections::BTreeMap;

use crate::{read, tree};

/// Whether a program needs root, and whether it runs alone.
type Needs = (bool, bool);

/// The rows of a list. A name without a directory is one of the directory that the
/// heading above it names; other headings have paths.
fn listed(document: &str) -> BTreeMap<String, Needs> {
    let (mut rows, mut heading) = (BTreeMap::new(), "");
    for line in document.lines() {
        heading = line.strip_prefix("## ").unwrap_or(heading);
        let Some(row) = line.strip_prefix("| `") else {
            continue;
        };
        let cells: Vec<_> = row.split(" | ").collect();
        assert!(cells.len() == 4 && cells[3].len() > 10, "{line}");
        let name = cells[0].trim_end_matches('`');
        let is_path = name.contains('/');
        assert_ne!(is_path, heading.contains("`tests/`"), "{heading}: {line}");
        let path = match is_path {
            true => name.to_owned(),
            false => format!("tests/{name}"),
        };
        let needs = (cells[1] == "yes", cells[2] == "yes");
        assert_eq!(rows.insert(path, needs), None, "twice: {line}");
    }
    rows
}

/// The programs in a directory, if there is one.
fn programs(dir: &str) -> BTreeMap<String, Needs> {
    let names = match tree::at(dir).exists() {
        true => tree::entries(dir),
        false => Vec::new(),
    };
    let programs = names.into_iter().filter(|name| name.ends_with(".rs"));
    let needs = programs.map(|name| {
        let path = format!("{dir}/{name}");
        let source = read(&path);
        let alone = source
            .lines()
            .any(|line| line.starts_with("//! Runs alone:"));
        (path, (name.starts_with("root_"), alone))
    });
    needs.collect()
}

#[test]
fn the_list_of_test_programs_is_that_of_the_tree() {
    let mut there = programs("tests");
    let others = ["bench", "demo"].map(str::to_owned);
    for dir in tree::crates().into_iter().chain(others) {
        there.extend(programs(&format!("{dir}/tests")));
    }
    assert!(there.len() > 80, "only {} programs", there.len());
    assert_eq!(listed(&read("tests/README.md")), there);
}

#[test]
fn rows_say_what_a_program_needs() {
    let rows = "## All of it: `tests/`\n| program | root | alone | what |\n|---|---|---|---|\n\
                | `cli.rs` | no | no | every verb of it |\n## Of crates\n\
                | `crates/x/tests/root_y.rs` | yes | yes | something else |\n";
    let expected = [
        ("tests/cli.rs", (false, false)),
        ("crates/x/tests/root_y.rs", (true, true)),
    ];
    let expected = expected.map(|(name, needs)| (name.to_owned(), needs));
    assert_eq!(listed(rows), BTreeMap::from(expected));
}

#[test]
fn rows_under_the_wrong_heading_and_second_rows_are_found() {
    let row = "| `root_vips.rs` | yes | no | addresses that weir holds |\n";
    for wrong in [
        format!("## Of crates\n{row}"),
        format!("## All: `tests/`\n{row}{row}"),
    ] {
        let caught = std::panic::catch_unwind(|| listed(&wrong));
        assert!(caught.is_err(), "{wrong}");
    }
}

//! tests/README.md lists every test program of the workspace, says of each whether it
//! needs root and whether it runs alone, and lists no others.

use std::collections::BTreeMap;

use crate::{read, tree};

/// What is said of a program: does it need root, does it run alone?
type Needs = (bool, bool);

/// The rows of a list.
fn listed(document: &str) -> BTreeMap<String, Needs> {
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix("| `")?.split(" | ").collect();
        let name = cells[0].trim_end_matches('`');
        let name = match name.split_once('/') {
            None => format!("tests/{name}"),
            Some(_) => name.to_owned(),
        };
        assert!(cells.len() == 4 && cells[3].len() > 10, "{line}");
        Some((name, (cells[1] == "yes", cells[2] == "yes")))
    });
    rows.collect()
}

/// The programs in a directory.
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
    let crates = tree::crates();
    for dir in crates.iter().map(String::as_str).chain(["bench", "demo"]) {
        there.extend(programs(&format!("{dir}/tests")));
    }
    assert!(there.len() > 60, "only {} programs", there.len());
    assert_eq!(listed(&read("tests/README.md")), there);
}

#[test]
fn rows_say_what_a_program_needs() {
    let rows = "| program | root | alone | what |\n|---|---|---|---|\n\
                | `cli.rs` | no | no | every verb of it |\n\
                | `crates/x/tests/root_y.rs` | yes | yes | something else |\n";
    let expected = [
        ("tests/cli.rs", (false, false)),
        ("crates/x/tests/root_y.rs", (true, true)),
    ];
    let expected = expected.map(|(name, needs)| (name.to_owned(), needs));
    assert_eq!(listed(rows), BTreeMap::from(expected));
}

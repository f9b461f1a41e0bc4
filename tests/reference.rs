//! The reference of the configuration, held against the code that it is made from:
//! docs/configuration.md is what `weir man --markdown` writes. That its keys, types
//! and defaults are the reader's is tested beside the definition, in
//! `weir_daemon::config::manual`. Needs no privilege.

use std::{fs, path::Path, process::Command};

use weir_core::policy::{format_duration, parse_duration};

#[test]
fn the_committed_reference_is_what_the_code_generates() {
    let dir = tempfile::tempdir().unwrap();
    let mut man = Command::new(env!("CARGO_BIN_EXE_weir"));
    man.args(["man", "--markdown"]).arg(dir.path());
    assert!(man.status().unwrap().success());
    let made = fs::read_to_string(dir.path().join("configuration.md")).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differ = made.lines().zip(committed.lines()).find(|(a, b)| a != b);
    assert!(
        made == committed,
        "docs/configuration.md is not what the code generates; `make reference` writes it anew; \
         the first line that differs: {differ:?}"
    );
}

/// What the reference says of durations is what their reader takes.
#[test]
fn the_durations_of_the_reference_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = fs::read_to_string(path).unwrap();
    let told = page
        .lines()
        .find(|line| line.starts_with("A duration, "))
        .expect("it says what a duration is");
    let examples: Vec<_> = told.split('"').skip(1).step_by(2).collect();
    assert_eq!(examples, ["90s", "1h30m", "1d 12h", "forever"]);
    for example in &examples[..3] {
        parse_duration(example).unwrap_or_else(|e| panic!("{e}"));
    }
    assert_eq!(parse_duration("600"), parse_duration("10m"));
    let (_, units) = told.split_once("add up: ").unwrap();
    let (units, _) = units.split_once(';').unwrap();
    let units: Vec<_> = units
        .split([',', ' '])
        .filter(|word| word.len() == 1)
        .collect();
    assert_eq!(units, ["y", "w", "d", "h", "m", "s"]);
    for unit in &units {
        parse_duration(&format!("1{unit}")).unwrap_or_else(|e| panic!("{e}"));
    }
    let year = parse_duration("1y").unwrap();
    assert_eq!(
        parse_duration("365d").map(format_duration),
        Ok(format_duration(year))
    );
    for mistake in ["1.5h", "+3m", "-5", "10 m"] {
        assert!(parse_duration(mistake).is_err(), "{mistake}");
    }
}

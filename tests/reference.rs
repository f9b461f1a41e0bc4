//! The reference of the configuration, held against the code that it is made from:
//! docs/configuration.md is what `weir man --markdown` writes. That its keys, types
//! and defaults are the reader's is tested beside the definition, in
//! `weir_daemon::config::manual`. Needs no privilege.

use std::{fs, path::Path, process::Command};

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

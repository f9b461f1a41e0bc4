//! `tests/run.py`, with a script in place of cargo and one in place of a test program: a
//! test that is skipped for want of a program or of root fails where SKIPS_FAIL=1 says
//! that all is installed, and nowhere else.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

/// Writes a script that can be run.
fn script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A run of one test program that prints this and is green.
fn run(prints: &str, skips_fail: Option<&str>) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("one.rs"), "").unwrap();
    fs::write(at("said"), prints).unwrap();
    let result = "test result: ok. 1 passed; 0 failed";
    let body = format!("cat {}; echo '{result}'", at("said").display());
    script(&at("program"), &body);
    let built = serde_json::json!({
        "reason": "compiler-artifact",
        "executable": at("program"),
        "profile": { "test": true },
        "manifest_path": at("Cargo.toml"),
        "target": { "src_path": at("one.rs") },
    });
    fs::write(at("built"), format!("{built}\n")).unwrap();
    script(&at("cargo"), &format!("cat {}", at("built").display()));
    let mut runner = Command::new("python3");
    runner
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run.py"))
        .args(["--test", "one"])
        .env("CARGO", at("cargo"))
        .env_remove("SKIPS_FAIL");
    if let Some(value) = skips_fail {
        runner.env("SKIPS_FAIL", value);
    }
    runner.output().unwrap()
}

#[test]
fn what_is_skipped_fails_where_all_is_installed() {
    for (prints, is_fault) in [
        ("", false),
        ("skipped: no program nginx\n", true),
        ("skipped: no program /usr/sbin/sshd\n", true),
        (
            "skipped: not root: network namespaces need CAP_SYS_ADMIN\n",
            true,
        ),
        ("---- a stdout ----\nskipped: needs root\n", true),
        // Another mail server has its place.
        ("skipped: no program postfix\n", false),
        ("skipped: no program /usr/sbin/postfix\n", false),
        (
            "skipped: no program postfix\nskipped: no program tshark\n",
            true,
        ),
        // What the kernel, the machine or the network lacks.
        ("skipped: this kernel has tcx\n", false),
        (
            "skipped: no wireguard device: Unknown device type.\n",
            false,
        ),
        ("skipped: boofuzz cannot be installed from PyPI: x\n", false),
        ("it was not skipped: needs root\n", false),
    ] {
        for skips_fail in [None, Some("0"), Some("1")] {
            let output = run(prints, skips_fail);
            let fails = is_fault && skips_fail == Some("1");
            let code = output.status.code();
            assert_eq!(code, Some(i32::from(fails)), "{prints:?}: {output:?}");
            let out = String::from_utf8_lossy(&output.stdout);
            for line in prints.lines().filter(|line| line.starts_with("skipped: ")) {
                let named = out.contains(line);
                assert!(named || fails && line.contains("postfix"), "{out}");
            }
            assert_eq!(out.contains("1 passed"), !fails, "{out}");
        }
    }
}

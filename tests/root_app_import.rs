//! Rules of DAF and of OpenSnitch, as `weir import` writes them, in force: who was let through
//! is, and who was not is not.

#[path = "common/app_host.rs"]
mod app_host;
mod common;
#[path = "common/plain.rs"]
mod plain;

use std::{fs, path::Path, process::Command};

use app_host::{ADDRESSES, TestHost, sha256};
use common::soon;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// What `weir import` makes of a file, without the head of `[app]`, which the host writes.
fn imported(kind: &str, from: &Path) -> String {
    let done = Command::new(WEIR).args(["import", kind]).arg(from).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(!text.contains("not honoured"), "{text}");
    let (_, rules) = text.split_once("[app]\n").expect("[app]");
    rules.to_owned()
}

/// curl gets to port 8080 of both addresses, python3 does not.
fn curl_alone_passes(name: &str, rules: &str) {
    let Some(host) = TestHost::new(name, rules) else {
        return;
    };
    for address in ADDRESSES {
        soon("curl to pass", || {
            (host.curl(address) == "200").then_some(())
        });
        soon("python3 to be known, and refused", || {
            (host.connects(address).trim() == "PermissionError").then_some(())
        });
    }
}

#[test]
fn root_rules_of_daf_hold_as_weirs() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("rules.sh");
    let curl = sha256("/usr/bin/curl");
    let text = format!(
        "#!/bin/sh\n./app-fw -e obj --pol-out DROP --pol-in ACCEPT\n\
         ctl-fw -A -c OUTPUT -v ACCEPT -p tcp --dport 8080 --sng-hash {curl}\n"
    );
    fs::write(&script, text).unwrap();
    curl_alone_passes("daf", &imported("daf", &script));
}

#[test]
fn root_rules_of_opensnitch_hold_as_weirs() {
    let dir = tempfile::tempdir().unwrap();
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    for (name, action, operator) in [
        (
            "000-allow-curl",
            "allow",
            r#"{"type": "list", "operand": "list", "data": "", "list": [
                {"type": "simple", "operand": "process.path", "data": "/usr/bin/curl"},
                {"type": "simple", "operand": "dest.port", "data": "8080"}]}"#
                .to_owned(),
        ),
        (
            "001-deny-python",
            "reject",
            format!(
                r#"{{"type": "simple", "operand": "process.path", "data": "{}"}}"#,
                python.display()
            ),
        ),
    ] {
        let text = format!(
            r#"{{"created": "2026-01-01T00:00:00Z", "name": "{name}", "enabled": true, "precedence": true,
               "action": "{action}", "duration": "always", "operator": {operator}}}"#
        );
        fs::write(dir.path().join(format!("{name}.json")), text).unwrap();
    }
    curl_alone_passes("snitch", &imported("opensnitch", dir.path()));
}

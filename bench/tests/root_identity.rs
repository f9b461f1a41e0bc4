//! `weir-bench identity`, small: the rows that others read are there, with a figure each.

use std::process::Command;

use serde_json::Value;

#[test]
fn root_every_level_carries_what_is_sent() {
    let lacks = weir_bpf::identity::missing();
    if !lacks.is_empty() {
        eprintln!(
            "skipped: this kernel lacks {} (probe: its BTF)",
            lacks.join(", ")
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("rows.json");
    let out = Command::new(env!("CARGO_BIN_EXE_weir-bench"))
        .args(["identity", "--rounds", "1", "--millis", "200", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{name} is missing: {told}"))
    };
    for number in [1, 8] {
        let strict = row(&format!("target stream {number} strict"));
        assert!(strict["ratio"].as_f64().unwrap() > 0.0, "{strict}");
        assert_eq!(strict["ratio_to"], format!("stream {number} none"));
        assert!(
            row(&format!("stream {number} conntrack"))["value"]
                .as_f64()
                .unwrap()
                > 0.0
        );
    }
    for load in ["known", "unknown"] {
        assert!(
            row(&format!("connect {load} none"))["value"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        assert_eq!(
            row(&format!("target connect {load} strict"))["unit"],
            "µs added"
        );
    }
    for name in [
        "queries strict",
        "connections strict",
        "queries strict ipv6",
    ] {
        assert!(row(name)["ratio"].as_f64().unwrap() > 0.0);
    }
    if let Some(why) = without_opensnitch(&told) {
        println!("skipped: {why} (probe: opensnitch)");
    } else {
        for family in ["", " ipv6"] {
            for load in ["stream 1", "stream 8", "queries", "connections"] {
                let opensnitch = row(&format!("{load} opensnitch{family}"));
                assert!(opensnitch["ratio"].as_f64().unwrap() > 0.0, "{opensnitch}");
                assert_eq!(opensnitch["ratio_to"], format!("{load} none{family}"));
            }
            let connect = row(&format!("connect known opensnitch{family}"));
            assert_eq!(connect["unit"], "µs added");
        }
    }
    row("connect known strict, 1000 programs and 100 rules");
    row("judge 10,000 sockets again");
}

/// Why there are no rows of OpenSnitch, if this machine is the reason. Where it runs, and does
/// not judge, its rows are missing.
fn without_opensnitch(told: &str) -> Option<&str> {
    told.lines()
        .filter_map(|line| line.strip_prefix("skipped: opensnitch: "))
        .find(|why| why.starts_with("no program ") || why.starts_with("this kernel lacks "))
}

//! `weir-bench token`, small: the rows that others read are there, with a figure each.

use std::process::Command;

use serde_json::Value;

#[test]
fn root_every_way_of_signing_carries_what_is_sent() {
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
        .args(["token", "--rounds", "1", "--millis", "200", "--json"])
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
    let compared = |name: String, to: String| {
        let row = row(&name);
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ratio_to"], to);
    };
    for family in ["", " ipv6"] {
        for number in [1, 8] {
            let base = format!("stream {number} none{family}");
            for conduit in ["tcp-option", "ip-option", "payload"] {
                let target = format!("target stream {number} {conduit}{family}");
                compared(target, base.clone());
            }
            for name in [
                "strict",
                "signed",
                "one segment at a time",
                "payload signed",
            ] {
                compared(format!("stream {number} {name}{family}"), base.clone());
            }
        }
        for level in ["one segment at a time", "payload signed", "payload"] {
            let base = format!("unpaced stream 1 none{family}");
            compared(format!("unpaced stream 1 {level}{family}"), base);
        }
        for level in ["strict", "signed", "ip-option"] {
            let base = format!("datagrams none{family}");
            compared(format!("datagrams {level}{family}"), base);
        }
        for load in ["unsigned stream 1", "unsigned queries"] {
            let base = format!("{load} strict{family}");
            compared(format!("target {load} tcp-option{family}"), base);
        }
    }
    // Signatures of DAF are of IPv4.
    for (target, load) in [
        ("target ", "stream 1"),
        ("target ", "stream 8"),
        ("", "unpaced stream 1"),
    ] {
        compared(format!("{target}{load} daf"), format!("{load} none"));
    }
    assert!(!told.contains("daf ipv6"), "{told}");
    assert_eq!(row("stated stream 1 DAF signed")["value"], 0.03);
    for name in [
        "signed",
        "tcp-option",
        "tcp-option ipv6",
        "ip-option",
        "ip-option ipv6",
        "payload",
        "payload ipv6",
        "daf",
    ] {
        let connections = row(&format!("connections {name}"));
        assert!(
            connections["ratio"].as_f64().unwrap() > 0.0,
            "{connections}"
        );
        assert_eq!(row(&format!("connect {name}"))["unit"], "µs added");
    }
    for name in [
        "target verify new flow",
        "target verify packet",
        "verify segment",
        "target verify new flow ipv6",
        "target verify packet ipv6",
        "verify segment ipv6",
        "forward verify new flow",
        "forward verify packet",
        "forward verify new flow ipv6",
        "forward verify packet ipv6",
        "forward xdp verify new flow",
        "forward xdp verify packet",
        "forward xdp verify new flow ipv6",
        "forward xdp verify packet ipv6",
    ] {
        let verify = row(name);
        assert_eq!(verify["unit"], "ns");
        assert!(verify["value"].as_f64().unwrap() > 0.0, "{verify}");
    }
}

//! `weir-bench balance`, small: the rows that others read are there, with a ratio each,
//! and every packet came back (the verb fails where one in a hundred does not).

use std::process::Command;

use serde_json::Value;

#[test]
fn root_every_row_forwards_what_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("rows.json");
    let rows_of = |only: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_weir-bench"))
            .args(["balance", "--rounds", "1", "--only", only, "--json"])
            .arg(&json)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{told}");
        let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        (report["rows"].as_array().unwrap().clone(), told)
    };
    let (rows, told) = rows_of("target ");
    for of in ["ipv4 xdp", "ipv4 tcx", "ipv6 xdp", "ipv6 tcx"] {
        let name = format!("target dsr {of}");
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        let row = row.unwrap_or_else(|| panic!("{name} is missing: {rows:?}"));
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ratio_to"], format!("bare rewrite and send {of}"));
    }
    for family in ["ipv4", "ipv6"] {
        let name = format!("target tarpit {family} xdp");
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        let row = row.unwrap_or_else(|| panic!("{name} is missing: {rows:?}"));
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ratio_to"], format!("unconditional XDP_TX {family}"));
    }
    for load in ["", " small"] {
        let name = format!("target proxy tcp{load}");
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        let row = row.unwrap_or_else(|| panic!("{name} is missing: {rows:?}"));
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["ratio_to"], format!("haproxy tcp{load}"));
    }
    assert!(told.contains("not to be had: netmap"), "{told}");
    let (rows, _) = rows_of("encap ");
    let found: Vec<_> = rows
        .iter()
        .filter(|row| row["ratio"].as_f64() > Some(0.0))
        .map(|row| (row["name"].clone(), row["ratio_to"].clone()))
        .collect();
    let expected = [
        ("encap ipip ipv4 xdp", "bare rewrite and send ipv4 xdp"),
        ("encap gue ipv4 xdp", "bare rewrite and send ipv4 xdp"),
        ("encap ip6ip6 ipv6 xdp", "bare rewrite and send ipv6 xdp"),
    ];
    assert_eq!(found, expected.map(|(row, to)| (row.into(), to.into())));
}

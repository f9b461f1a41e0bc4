//! `weir-bench flood`, small: that its figures are made of real packets, that
//! its counters add up, and that it leaves nothing behind.
//! Runs alone: it sends at a rate.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn skipped() -> bool {
    let why = weir_netlab::missing(&[]);
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_some()
}

/// 20 k unwanted requests a second from 500 clients.
fn flood(only: &str, seconds: &str) -> Command {
    let bench = Path::new(env!("CARGO_BIN_EXE_weir-bench"));
    let weir = bench.with_file_name("weir");
    assert!(
        weir.exists(),
        "there is no {}: cargo build -p weir, or test the workspace",
        weir.display()
    );
    let mut command = Command::new(bench);
    command
        .args(["flood", "--rate", "20000", "--clients", "500"])
        .args(["--ban-time", "1", "--seconds", seconds, "--only", only])
        .arg("--weir")
        .arg(weir);
    command
}

/// Namespaces, pins and rings that a run with this process id has made.
fn left_by(pid: u32) -> Vec<PathBuf> {
    let namespaces = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with(&format!("wl{pid}-"))
        })
        .map(|entry| entry.path());
    let pins = PathBuf::from(format!("/sys/fs/bpf/weir/bench-flood-{pid}"));
    let rings = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let ours = format!("weir-bench-flood-{pid}-");
            name.to_string_lossy().starts_with(&ours)
        })
        .map(|entry| entry.path());
    let pins = pins.exists().then_some(pins);
    namespaces.chain(pins).chain(rings).collect()
}

/// Runs these and checks what all runs have in common; the runs, and the table.
fn checked(only: &str, dir: &Path) -> (Vec<Value>, String) {
    let json = dir.join("flood.json");
    let mut command = flood(only, "3");
    command.arg("--json").arg(&json);
    command.arg("--plot").arg(dir);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert_eq!(left_by(pid), [] as [PathBuf; 0]);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), only.split(',').count());
    for run in runs {
        let name = run["name"].as_str().unwrap();
        let end = run["samples"].as_array().unwrap().last().unwrap();
        let of = |value: &Value, key: &str| {
            value[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {key} of {value}"))
        };
        let end = |key: &str| of(end, key);
        // Sent at the rate that was asked for (others may hold the machine).
        assert!(end("unwanted") > 20_000.0, "{name}: {}", end("unwanted"));
        // Every request is somewhere, once. On a machine that stands still for a
        // moment wanted ones, too, may find the server's buffer full.
        let unanswered = end("wanted") - end("answered");
        assert!(
            (0.0..=end("overflowed")).contains(&unanswered),
            "{name}: {unanswered} of {} overflowed",
            end("overflowed")
        );
        assert_eq!(
            end("unwanted") + unanswered,
            end("dropped") + end("received") + end("overflowed"),
            "{name}"
        );
        let noise = of(run, "arrived") - end("unwanted") - end("wanted");
        assert!(
            (0.0..100.0).contains(&noise),
            "{name}: {noise} more arrived"
        );
        // Bans of 1 s: each client is banned again and again.
        assert!(of(run, "bans") > 500.0, "{name}: {}", of(run, "bans"));
        assert!(end("dropped") > end("unwanted") / 2.0, "{name}");
        if !name.starts_with("oracle") {
            assert_eq!(end("logged"), end("received"), "{name}");
            let lost = run["lost"].as_f64();
            assert_eq!(lost.is_some(), name.starts_with("ring"), "{name}");
            // None is lost unnoticed.
            assert_eq!(
                of(run, "read") + lost.unwrap_or(0.0),
                end("logged"),
                "{name}"
            );
        }
        let file = format!("{}.svg", name.replace(' ', "-"));
        assert!(dir.join(&file).exists(), "{file}");
    }
    (
        runs.clone(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
    )
}

#[test]
fn root_flood_counts_every_packet_once() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let only = "oracle mixed 20k,file ipv4 20k,file ipv6 20k,file mixed 20k";
    let (_, table) = checked(only, dir.path());
    assert!(table.contains("| 2 | file ipv6 20k | 500 |"), "{table}");
}

#[test]
fn root_flood_over_a_ring_counts_every_record_once() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let only = "ring ipv6 20k,ring-overwrite mixed 20k,ring-second-reader mixed 20k,\
                ring-stealing mixed 20k,ring-message mixed 20k";
    let (runs, table) = checked(only, dir.path());
    assert!(table.contains("| 3 | ring ipv6 20k | 500 |"), "{table}");
    for run in runs {
        let second = &run["second"];
        let expected = run["name"].as_str().unwrap().contains("second-reader");
        assert_eq!(second.is_array(), expected, "{run}");
        if expected {
            let logged = &run["samples"].as_array().unwrap().last().unwrap()["logged"];
            let sum = second[0].as_u64().unwrap() + second[1].as_u64().unwrap();
            assert_eq!(Some(sum), logged.as_u64(), "{second}");
        }
    }
}

#[test]
fn root_flood_interrupted_leaves_nothing() {
    if skipped() {
        return;
    }
    let mut child = flood("file ipv4 20k", "60")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    // The pins are the last that a run makes.
    weir_netlab::wait_for("the daemon's pins", SOON, || {
        Ok((left_by(pid).len() == 4).then_some(()))
    })
    .unwrap();
    let bench = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(bench, rustix::process::Signal::INT).unwrap();
    weir_netlab::wait_for("the end", SOON, || Ok(child.try_wait().unwrap()))
        .map(|status| assert_ne!(status.code(), Some(0)))
        .unwrap();
    assert_eq!(left_by(pid), [] as [PathBuf; 0]);
}

//! `weir-bench delay`, small: that every path has its rows, that all of them
//! were given the same work and every packet of it is somewhere, and that
//! nothing is left behind.
//! Runs alone: what a path adds to 0.1 ms is lost in the noise of others.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use weir_testkit::mmdb::{Mmdb, country};

/// The client's country, the background's, and one that is denied.
const WORLD: [(&str, &str, &str); 4] = [
    ("145.0.0.0/8", "NL", "EU"),
    ("11.0.0.0/8", "US", "NA"),
    ("16.0.0.0/4", "FR", "EU"),
    ("32.0.0.0/3", "FR", "EU"),
];
const PATHS: [(&str, Option<&str>); 6] = [
    ("nothing", None),
    ("conntrack", Some("iptables-legacy")),
    ("weir xdp", None),
    ("weir tcx", None),
    ("nft ingress", Some("nft")),
    ("nfqueue first batched same-core", Some("iptables-legacy")),
];
const RATE: u64 = 5000;

fn left_by(pid: u32) -> Vec<PathBuf> {
    let named = |dir: &str, begin: String| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin))
            .map(|entry| entry.path())
            .collect()
    };
    let mut left = named("/run/netns", format!("wl{pid}-"));
    left.extend(named("/sys/fs/bpf/weir", format!("bench-delay-{pid}")));
    left
}

/// Runs all parts on these paths; what the JSON says.
fn delay(paths: &[&str], dir: &Path) -> Value {
    let database = WORLD.iter().fold(
        Mmdb::new("Test-Country"),
        |mmdb, (network, code, continent)| mmdb.with(network, country(code, continent)),
    );
    let file = dir.join("world.mmdb");
    std::fs::write(&file, database.build()).unwrap();
    let bench = Path::new(env!("CARGO_BIN_EXE_weir-bench"));
    let weir = bench.with_file_name("weir");
    assert!(
        weir.exists(),
        "there is no {}: cargo build -p weir, or test the workspace",
        weir.display()
    );
    let json = dir.join("delay.json");
    let child = Command::new(bench)
        .args(["delay", "--quick", "--rounds", "1"])
        .args(["--rates", &RATE.to_string(), "--paths", &paths.join(",")])
        .args([Path::new("--database"), &file, Path::new("--weir"), &weir])
        .args([Path::new("--json"), &json, Path::new("--plot"), dir])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert_eq!(left_by(pid), [] as [PathBuf; 0]);
    let table = String::from_utf8_lossy(&out.stdout);
    for path in paths {
        assert!(table.contains(&format!("\n| {path} |")), "{path}: {table}");
    }
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("{key} in {of}"))
}

#[test]
fn root_delay_gives_all_paths_the_same_work_and_loses_no_packet() {
    if let Some(why) = weir_netlab::missing(&[]) {
        println!("skipped: {why}");
        return;
    }
    let mut paths = Vec::new();
    for (path, program) in PATHS {
        match program.and_then(|program| weir_netlab::missing(&[program])) {
            None => paths.push(path),
            Some(why) => println!("skipped: {path}: {why}"),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let report = delay(&paths, dir.path());
    let points = report["points"].as_array().unwrap();
    for path in paths {
        let of = |part: &str| -> Vec<&Value> {
            let found = points
                .iter()
                .filter(|point| point["path"] == path && point["part"] == part);
            found.collect()
        };
        // Nothing on the wire but the client; one of its rates; at 50 k a second
        // and the generator's limit; no flood, a slow one, one at the limit.
        for (part, count) in [("idle", 1), ("load", 1), ("cost", 2), ("flood", 3)] {
            assert_eq!(of(part).len(), count, "{path}: {part}");
            for point in of(part) {
                let handled = number(point, "delivered") + number(point, "denied");
                let lost = number(point, "queue_full") + number(point, "wire_full");
                let sent = number(point, "sent");
                assert!(handled <= sent && sent <= handled + lost, "{point}");
                assert_eq!(sent > 0, number_or_limit(point) > 0, "{point}");
            }
        }
        for kind in ["tcp", "udp"] {
            let latency = &of("idle")[0][kind];
            assert_eq!(number(latency, "tried"), 200, "{path}: {latency}");
            assert_eq!(number(latency, "lost"), 0, "{path}: {latency}");
            assert!(latency["p50"].as_f64().unwrap() > 1.0, "{path}: {latency}");
        }
        // Allowed flows all come through, at a rate that all paths keep up with;
        // the generator's very first packet is of a source in France.
        let load = of("load")[0];
        let (delivered, denied) = (number(load, "delivered"), number(load, "denied"));
        assert_eq!(delivered + denied, number(load, "sent"), "{load}");
        assert!(denied <= 1, "{load}");
        assert_eq!(number(load, "rate"), RATE);
        // A flood from all over the world (1 % of it from the client's /8) is
        // dropped by whoever filters, and by no one else.
        let flood = of("flood")[1];
        let (delivered, denied) = (number(flood, "delivered"), number(flood, "denied"));
        assert_eq!(delivered + denied, number(flood, "sent"), "{flood}");
        if path.starts_with("weir") || path.starts_with("nf") {
            assert!(delivered * 10 < denied, "{flood}");
        } else {
            assert_eq!(denied, 0, "{flood}");
        }
        let simulations = report["simulations"].as_array().unwrap();
        let own: Vec<_> = simulations.iter().filter(|s| s["path"] == path).collect();
        assert_eq!(own.len(), 2, "{path}");
        for simulation in own {
            assert_eq!(number(simulation, "returned"), number(simulation, "sent"));
            let delay = &simulation["delay"];
            assert_eq!(delay.is_null(), path == "nothing", "{simulation}");
        }
    }
    for file in ["latency-by-rate", "added"] {
        let svg = std::fs::read_to_string(dir.path().join(format!("{file}.svg"))).unwrap();
        assert!(svg.contains("weir tcx"), "{file}");
    }
}

/// The rate as ordered; the generator's limit is a rate, too.
fn number_or_limit(point: &Value) -> u64 {
    point["rate"].as_u64().unwrap_or(1)
}

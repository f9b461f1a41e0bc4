//! Files as they may be found: good, of another machine, and bad in every way.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;
use weir_enforce::hook_selection::Estimate;

use super::*;

fn spread(median: f64) -> Spread {
    Spread {
        median,
        low: median - 1.0,
        high: median + 1.0,
    }
}

fn hook(name: &str, drop: f64, loss: f64) -> HookFigures {
    HookFigures {
        hook: name.to_owned(),
        refused: None,
        drop_ns: Some(spread(drop)),
        drop_ns_ipv4: Some(spread(drop)),
        drop_ns_ipv6: Some(spread(drop)),
        drop_ratio: Some(Spread {
            median: drop / 800.0,
            low: drop / 1000.0,
            high: drop / 500.0,
        }),
        innocent_ns: Some(spread(3.0)),
        tcp_gbit: Some(spread(20.0)),
        tcp_loss: Some(spread(loss)),
    }
}

fn figures() -> Figures {
    let baseline = Baseline {
        unwanted_ns: spread(800.0),
        unwanted_ns_ipv4: spread(700.0),
        unwanted_ns_ipv6: spread(900.0),
        innocent_ns: spread(450.0),
        tcp_gbit: spread(20.0),
    };
    let mut refused = hook("xdp-generic", 300.0, 0.0);
    refused.refused = Some("no".to_owned());
    let hooks = vec![
        hook("xdp", 90.0, 60.4),
        refused,
        hook("tcx", 327.0, -3.0),
        hook("of-a-later-weir", 1.0, 1.0),
    ];
    let run = Run {
        rounds: 7,
        seconds: 20,
        settled: true,
        company: Company {
            others: 12.5,
            stolen: 0.0,
        },
    };
    let mut figures = Figures::new(run, baseline, hooks);
    figures.interfaces.push(SeenInterface {
        name: "eth0".to_owned(),
        driver: "igb".to_owned(),
        ethernet: true,
        mtu: Some(1500),
        native_xdp: Some(true),
        native_frags: None,
        offloads: vec!["gro".to_owned()],
        queues: Some([1, 4]),
        programs: Vec::new(),
        tried: Vec::new(),
        advice: Vec::new(),
    });
    figures
}

#[test]
fn what_is_saved_is_what_auto_goes_by() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("not/there/yet");
    assert_eq!(load(&state), Ok(None));
    save(&state, &figures()).unwrap();
    let mode = fs::metadata(state.join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let advice = load(&state).unwrap().expect("it was saved");
    let nanos = |[low, median, high]: [u64; 3]| {
        let [low, median, high] = [low, median, high].map(Duration::from_nanos);
        Some(Estimate { median, low, high })
    };
    let lost = |[low, median, high]: [u8; 3]| Some(Estimate { median, low, high });
    let cost = |hook, drop, traffic| HookCost {
        hook,
        drop: nanos(drop),
        traffic: lost(traffic),
    };
    assert_eq!(
        advice.hooks,
        [
            cost(Hook::Xdp, [72, 90, 144], [59, 60, 61]),
            cost(Hook::Tcx, [262, 327, 523], [0, 0, 0])
        ]
    );
    assert_eq!(advice.interfaces[0].native, Some(true));
    assert_eq!((advice.driver.as_str(), advice.day.len()), ("veth", 10));

    // Again: the new one replaces the old one, and nothing else is left.
    save(&state, &figures()).unwrap();
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
}

/// Scripts read `weir calibrate --json`: other keys want another [`FORMAT`].
#[test]
fn the_keys_of_the_file_stay() {
    let all = serde_json::to_value(figures()).unwrap();
    let keys = |pointer: &str| -> String {
        let object = all.pointer(pointer).and_then(|value| value.as_object());
        let keys = object
            .unwrap_or_else(|| panic!("{pointer} in {all}"))
            .keys();
        let mut keys: Vec<_> = keys.map(String::as_str).collect();
        keys.sort_unstable();
        keys.join(" ")
    };
    for (pointer, expected) in [
        (
            "",
            "abi baseline cpu date driver format hooks interfaces kernel run weir",
        ),
        ("/run", "others rounds seconds settled stolen"),
        (
            "/baseline",
            "innocent_ns tcp_gbit unwanted_ns unwanted_ns_ipv4 unwanted_ns_ipv6",
        ),
        ("/baseline/tcp_gbit", "high low median"),
        (
            "/hooks/0",
            "drop_ns drop_ns_ipv4 drop_ns_ipv6 drop_ratio hook innocent_ns tcp_gbit tcp_loss",
        ),
        (
            "/interfaces/0",
            "driver ethernet mtu name native_frags native_xdp offloads programs queues",
        ),
    ] {
        assert_eq!(keys(pointer), expected, "{pointer}");
    }
}

#[test]
fn figures_of_another_machine_are_ignored_by_name() {
    let dir = TempDir::new().unwrap();
    save(dir.path(), &figures()).unwrap();
    let here = Machine::this();
    assert!(load_for(dir.path(), &here).unwrap().is_some());
    for (now, word) in [
        (
            Machine {
                kernel: "9.9.9".into(),
                ..here.clone()
            },
            "under the kernel",
        ),
        (
            Machine {
                cpu: "abacus".into(),
                ..here.clone()
            },
            "on the processor",
        ),
        (
            Machine {
                abi: here.abi + 1,
                ..here.clone()
            },
            "packet path's layout",
        ),
    ] {
        let why = load_for(dir.path(), &now).unwrap_err();
        assert!(
            why.contains(word) && why.contains("weir calibrate"),
            "{why}"
        );
    }
}

#[test]
fn a_bad_file_is_a_message() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(FILE);
    save(dir.path(), &figures()).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    for (name, text, word) in [
        ("empty", String::new(), "damaged"),
        ("not JSON", "\u{1b}[2J".to_owned(), "damaged"),
        ("another document", "{}".to_owned(), "damaged"),
        ("a list", "[2]".to_owned(), "damaged"),
        (
            "of an earlier weir",
            edited("\"format\": 2", "\"format\": 1"),
            "format 1",
        ),
        (
            "of a later weir",
            edited("\"format\": 2", "\"format\": 3"),
            "format 3",
        ),
        ("no date", edited("\"date\": \"2", "\"date\": \"x2"), "date"),
        (
            "a figure below zero",
            edited("\"median\": 90.0", "\"median\": -90.0"),
            "out of range",
        ),
        (
            "a figure out of order",
            edited("\"median\": 90.0", "\"median\": 900.0"),
            "out of range",
        ),
        (
            "a figure too large",
            edited("\"median\": 90.0", "\"median\": 1e300"),
            "out of range",
        ),
        (
            "no number",
            edited("\"median\": 90.0", "\"median\": null"),
            "damaged",
        ),
        (
            "a hook twice",
            edited("\"of-a-later-weir\"", "\"tcx\""),
            "twice",
        ),
        (
            "huge",
            good.clone() + &" ".repeat(MAX_SIZE as usize),
            "bytes, more than",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let why = load(dir.path()).expect_err(name);
        assert!(why.contains(word), "{name}: {why}");
        assert!(!why.contains('\u{1b}'), "{name}: {why}");
    }
    // Cut anywhere but in the last newline.
    let here = Machine::this();
    for cut in 0..good.len() - 2 {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(load_for(dir.path(), &here).is_err(), "cut at {cut}");
    }
    // Unreadable, and not even for root.
    for other in ["directory", "pipe"] {
        let _ = fs::remove_file(&path);
        match other {
            "directory" => fs::create_dir(&path).unwrap(),
            _ => {
                fs::remove_dir(&path).unwrap();
                let status = std::process::Command::new("mkfifo").arg(&path).status();
                assert!(status.unwrap().success());
            }
        }
        let why = load(dir.path()).expect_err(other);
        assert!(why.contains("no regular file"), "{other}: {why}");
    }
}

/// A file that others may write is ignored: whoever writes it chooses the hook that
/// protects the host.
#[test]
fn a_file_that_others_may_write_is_ignored() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(FILE);
    save(dir.path(), &figures()).unwrap();
    let ignored = |word: &str| {
        let why = load(dir.path()).expect_err(word);
        assert!(why.contains(word), "{why}");
    };
    for mode in [0o664, 0o646] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        ignored("others than its owner may write");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        ignored("belongs to user 65534");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    assert!(load(dir.path()).unwrap().is_some());
    fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    ignored("symbolic link");
    // The next calibration replaces the link, not what it points to.
    save(dir.path(), &figures()).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert!(load(dir.path()).unwrap().is_some());
}

#[test]
fn a_save_that_fails_leaves_the_old_file() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    fs::write(&state, "a file where the directory should be").unwrap();
    assert!(save(&state, &figures()).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

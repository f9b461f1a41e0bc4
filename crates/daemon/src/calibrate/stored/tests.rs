//! Files as they may be found: good, of another machine, and bad in every way.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;

fn spread(median: f64) -> Spread {
    Spread {
        median,
        min: median - 1.0,
        max: median + 1.0,
    }
}

fn tcp() -> Tcp {
    Tcp {
        gbit: spread(20.0),
        cpu_per_gb: Spread::of(&[0.4, 0.5, 0.6]).expect("three rounds"),
    }
}

fn hook(name: &str, drop: f64, loss: f64) -> HookFigures {
    HookFigures {
        hook: name.to_owned(),
        refused: None,
        drop_ns: Some(spread(drop)),
        drop_ratio: Some(spread(1.5)),
        innocent_ns: Some(spread(3.0)),
        tcp: Some(tcp()),
        tcp_loss: Some(spread(loss)),
    }
}

fn figures() -> Figures {
    let baseline = Baseline {
        unwanted_ns: spread(800.0),
        innocent_ns: spread(450.0),
        tcp: tcp(),
    };
    let mut refused = hook("xdp-generic", 300.0, 0.0);
    refused.refused = Some("no".to_owned());
    let hooks = vec![
        hook("xdp", 90.4, 60.4),
        refused,
        hook("tcx", 327.0, -3.0),
        hook("of-a-later-weir", 1.0, 1.0),
    ];
    let mut figures = Figures::new(false, baseline, hooks);
    figures.interfaces.push(SeenInterface {
        name: "eth0".to_owned(),
        driver: "igb".to_owned(),
        ethernet: true,
        mtu: Some(1500),
        native_xdp: Some(true),
        native_frags: None,
        programs: Vec::new(),
        tried: Vec::new(),
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
    let cost = |hook, nanos, traffic| HookCost {
        hook,
        drop: Some(Duration::from_nanos(nanos)),
        traffic: Some(traffic),
    };
    assert_eq!(
        advice.hooks,
        [cost(Hook::Xdp, 90, 60), cost(Hook::Tcx, 327, 0)]
    );
    assert_eq!(advice.interfaces[0].native, Some(true));
    assert_eq!((advice.driver.as_str(), advice.day.len()), ("veth", 10));

    // Again: the new one replaces the old one, and nothing else is left.
    save(&state, &figures()).unwrap();
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
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
        ("a list", "[1]".to_owned(), "damaged"),
        (
            "of a later weir",
            edited("\"format\": 1", "\"format\": 2"),
            "format 2",
        ),
        ("no date", edited("\"date\": \"2", "\"date\": \"x2"), "date"),
        (
            "a figure below zero",
            edited("\"median\": 90.4", "\"median\": -90.4"),
            "out of range",
        ),
        (
            "a figure out of order",
            edited("\"median\": 90.4", "\"median\": 900.4"),
            "out of range",
        ),
        (
            "a figure too large",
            edited("\"median\": 90.4", "\"median\": 1e300"),
            "out of range",
        ),
        (
            "no number",
            edited("\"median\": 90.4", "\"median\": null"),
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

#[test]
fn a_save_that_fails_leaves_the_old_file() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    fs::write(&state, "a file where the directory should be").unwrap();
    assert!(save(&state, &figures()).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_spread_is_of_its_rounds() {
    assert_eq!(Spread::of(&[]), None);
    let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
    assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 3.0));
}

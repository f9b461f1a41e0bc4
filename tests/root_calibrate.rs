//! `weir calibrate` in the real kernel, and what `backend = "auto"` makes of
//! its result: measured here, edited as another host's, damaged.
//! Runs alone: it measures.

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use common::{TestNet, WEIR, Weir, skipped};
use serde_json::{Value, json};
use weir_bpf::{
    attachment::{Hook, Link, xdp_program_on},
    generator::Generator,
};
use weir_netlab::{Child, wait_for};

const AUTO: &str = "interfaces = [\"eth0\"]\n";

fn file(weir: &Weir) -> PathBuf {
    weir.path("state/calibration.json")
}

/// What `weir calibrate --quick` measured, once for all tests.
fn measured() -> &'static Value {
    static MEASURED: OnceLock<Value> = OnceLock::new();
    MEASURED.get_or_init(|| {
        let net = TestNet::new();
        let weir = Weir::new(&net.host, AUTO);
        let answer = weir.ask(&["calibrate", "--quick", "--json"]).done();
        let figures = answer.json();
        let stored: Value = serde_json::from_slice(&fs::read(file(&weir)).unwrap()).unwrap();
        assert_eq!(figures, stored, "what is shown is what is stored");
        let mode = fs::metadata(file(&weir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert!(answer.err.contains("round 1, "), "{}", answer.err);
        figures
    })
}

/// Locks out other calibrations: one takes all of two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    measured();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For a calibration to begin or to end.
const PATIENCE: Duration = Duration::from_secs(90);

fn hook<'v>(figures: &'v Value, name: &str) -> &'v Value {
    let hooks = figures["hooks"].as_array().unwrap();
    let hook = hooks.iter().find(|hook| hook["hook"] == name);
    hook.unwrap_or_else(|| panic!("no {name} in {figures}"))
}

/// Stores figures, perhaps edited, for a daemon that is to come.
fn store(weir: &Weir, figures: &Value) {
    fs::create_dir_all(weir.path("state")).unwrap();
    fs::write(file(weir), figures.to_string()).unwrap();
}

fn median(figures: &Value, of: &str) -> f64 {
    figures[of]["median"].as_f64().unwrap()
}

/// What was measured here, with other figures: for each hook by its name the
/// nanoseconds of a drop and the percentage of TCP that it costs, for certain.
fn with_figures(of: impl Fn(&str) -> (f64, f64)) -> Value {
    let mut figures = measured().clone();
    let without = median(&figures["baseline"], "unwanted_ns");
    let exactly = |figure: f64| json!({"median": figure, "low": figure, "high": figure});
    for hook in figures["hooks"].as_array_mut().unwrap() {
        if hook["refused"].is_string() {
            continue;
        }
        let (nanos, lost) = of(hook["hook"].as_str().unwrap());
        hook["drop_ratio"] = exactly(nanos / without);
        hook["tcp_loss"] = exactly(lost);
    }
    figures
}

#[test]
fn root_calibrate_measures_each_hook() {
    if skipped(&[]) {
        return;
    }
    let figures = measured();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(figures["kernel"], release.trim());
    assert_eq!(figures["driver"], "veth");
    let without = median(&figures["baseline"], "unwanted_ns");
    assert!(figures["run"]["rounds"].as_u64().unwrap() >= 3, "{figures}");
    for name in ["xdp", "xdp-generic", "tcx", "cls_bpf", "netfilter"] {
        let hook = hook(figures, name);
        if hook["refused"].is_string() {
            assert!(!name.starts_with("xdp"), "a veth end carries both: {hook}");
            println!("skipped: {name}: {}", hook["refused"]);
            continue;
        }
        // Which of them is dearer is the machine's to say: a test that asserts
        // it fails on a busy one.
        for figure in ["drop_ns", "drop_ns_ipv4", "drop_ns_ipv6", "drop_ratio"] {
            assert!(median(hook, figure) > 0.0, "{name}: {figure}: {hook}");
        }
        println!("{name}: a drop takes {} of {without} ns", hook["drop_ns"]);
        assert!(median(hook, "tcp_gbit") > 0.0, "{hook}");
        for figure in ["drop_ratio", "tcp_loss"] {
            let of = |bound: &str| hook[figure][bound].as_f64().unwrap();
            let (low, middle, high) = (of("low"), of("median"), of("high"));
            assert!(low <= middle && middle <= high, "{name}: {figure}: {hook}");
        }
    }
    for family in ["ipv4", "ipv6"] {
        let without = median(&figures["baseline"], &format!("unwanted_ns_{family}"));
        assert!(without > 0.0, "{figures}");
    }
    // Compared with, but not chosen by auto.
    for name in ["nft", "ipset"] {
        let backend = hook(figures, name);
        let measured = backend["drop_ns"]["median"].as_f64();
        assert_eq!(
            measured.is_none(),
            backend["refused"].is_string(),
            "{backend}"
        );
    }
    // The configured interface was looked at.
    let seen = &figures["interfaces"][0];
    assert_eq!(
        (&seen["name"], &seen["driver"]),
        (&json!("eth0"), &json!("veth"))
    );
    assert_eq!(seen["programs"], json!([]));
}

/// Under TCP load a hook behind the driver, where only drops count native XDP;
/// each time status says why, with figures and day.
#[test]
fn root_auto_takes_the_hook_that_was_measured_cheapest() {
    if skipped(&[]) {
        return;
    }
    // What a veth pair on a quiet machine shows: native XDP drops cheapest, and
    // costs most of its TCP.
    let figures = with_figures(|hook| match hook {
        "xdp" => (110.0, 60.0),
        "xdp-generic" => (400.0, 10.0),
        "tcx" => (440.0, 0.0),
        "cls_bpf" => (490.0, 0.0),
        _ => (620.0, 0.0),
    });
    let day = &figures["date"].as_str().unwrap()[..10];
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, AUTO);
    store(&weir, &figures);
    let check = weir.json(&["check"]);
    assert_eq!(check["calibrated"], day, "{check}");
    assert!(
        weir.ask(&["check"])
            .done()
            .out
            .contains(&format!("auto (calibrated {day})"))
    );
    weir.run();
    let (hook, note) = weir.attachment("eth0");
    assert!(
        ["tcx", "cls_bpf", "xdp-generic"].contains(&hook.as_str()),
        "{hook}: {note}"
    );
    assert!(
        note.contains(&format!("auto: {hook}, calibrated {day}: {hook} drops at ")),
        "{note}"
    );
    assert!(
        note.contains("; xdp drops at ") && note.contains(" but costs TCP "),
        "{note}"
    );
    assert_eq!(weir.json(&["status"])["backend"], *hook);

    // By a reload, while bans hold.
    weir.configure(&format!("{AUTO}prefer = \"drops\"\n"));
    weir.ask(&["reload"]).done();
    let (hook, note) = weir.attachment("eth0");
    assert_eq!(hook, "xdp", "{note}");
    assert!(
        note.contains("auto: xdp, calibrated") && note.contains("prefer = \"drops\""),
        "{note}"
    );
    let index = net.host.ifindex("eth0").unwrap();
    let program = net.host.enter(|| xdp_program_on(index)).unwrap();
    assert_eq!(program.map(|(_, mode)| mode), Some("xdp"));

    // And a daemon that finds the other hook in place moves to the better one.
    weir.stop();
    weir.configure(AUTO);
    weir.run();
    let (hook, note) = weir.attachment("eth0");
    assert_ne!(hook, "xdp", "{note}");
    let left = net.host.enter(|| xdp_program_on(index)).unwrap();
    assert!(left.is_none_or(|(_, mode)| mode != "xdp"), "{left:?}");
}

/// The figures decide, not the names of the hooks.
#[test]
fn root_auto_follows_other_figures() {
    if skipped(&[]) {
        return;
    }
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, AUTO);
    let figures = with_figures(|hook| match hook {
        "xdp" => (90.0, 1.0),
        _ => (400.0, 0.0),
    });
    store(&weir, &figures);
    weir.run();
    let (hook, note) = weir.attachment("eth0");
    assert_eq!(hook, "xdp", "{note}");
    assert!(
        note.contains("xdp drops at 0.09 µs and costs TCP 1 %"),
        "{note}"
    );

    // Where somebody else has the hook, the next one, and both reasons.
    drop(weir);
    let generator = Generator::load().unwrap();
    let index = net.host.ifindex("eth0").unwrap();
    let attach = || Link::attach(generator.bare_drop(Hook::Xdp), index, Hook::Xdp);
    let _theirs = net.host.enter(attach).unwrap().unwrap();
    let mut weir = Weir::new(&net.host, AUTO);
    store(&weir, &figures);
    weir.run();
    let (hook, note) = weir.attachment("eth0");
    assert_eq!(hook, "tcx", "{note}");
    assert!(
        note.contains("calibrated") && note.contains("another XDP program"),
        "{note}"
    );
}

/// A file of another kernel, another driver or a damaged one is told of and
/// not used, and the daemon starts.
#[test]
fn root_a_calibration_that_does_not_hold_is_ignored_with_a_message() {
    if skipped(&[]) {
        return;
    }
    let good = measured();
    let with = |key: &str, value: Value| {
        let mut figures = good.clone();
        figures[key] = value;
        figures.to_string()
    };
    let cases = [
        (
            "another kernel",
            with("kernel", json!("5.15.0-1")),
            "under the kernel \"5.15.0-1\"",
        ),
        (
            "another processor",
            with("cpu", json!("abacus")),
            "on the processor \"abacus\"",
        ),
        ("another layout", with("abi", json!(999)), "layout 999"),
        ("cut", good.to_string()[..500].to_owned(), "damaged"),
        ("empty", String::new(), "damaged"),
        ("huge", " ".repeat(1 << 20), "more than"),
    ];
    for (name, text, word) in cases {
        let net = TestNet::new();
        let mut weir = Weir::new(&net.host, AUTO);
        fs::create_dir_all(weir.path("state")).unwrap();
        fs::write(file(&weir), text).unwrap();
        let check = weir.ask(&["check"]).done();
        assert!(
            check.out.contains(word) && check.out.contains("not calibrated"),
            "{name}: {check:?}"
        );
        weir.run();
        assert!(weir.said().contains(word), "{name}: {}", weir.said());
        let status = weir.ask(&["status"]).out;
        assert!(
            status.contains("warning: the calibration in") && status.contains(word),
            "{name}: {status}"
        );
        let (hook, note) = weir.attachment("eth0");
        assert_eq!(hook, "tcx", "{name}: {note}");
        assert!(note.contains("virtual device"), "{name}: {note}");
    }

    // The driver of an interface: known only at the interface.
    let net = TestNet::new();
    let mut weir = Weir::new(&net.host, &format!("{AUTO}prefer = \"drops\"\n"));
    let mut figures = good.clone();
    figures["interfaces"][0]["driver"] = json!("igb");
    store(&weir, &figures);
    weir.run();
    let (_, note) = weir.attachment("eth0");
    assert!(
        note.contains("when its driver was \"igb\": ignored"),
        "{note}"
    );
}

/// Looking touches nothing; trying is for who asks for it.
#[test]
fn root_calibrate_looks_at_an_interface_and_attaches_on_request() {
    if skipped(&[]) {
        return;
    }
    let _alone = alone();
    let net = TestNet::new();
    let weir = Weir::new(&net.host, "interfaces = [\"lo\"]\n");
    let generator = Generator::load().unwrap();
    let index = net.host.ifindex("eth0").unwrap();
    let attach = || Link::attach(generator.bare_drop(Hook::Tcx), index, Hook::Tcx);
    let theirs = net.host.enter(attach).unwrap().unwrap();

    weir.ask(&["calibrate", "--seconds", "1", "--attach"])
        .refused(&["--interface"]);
    weir.ask(&["calibrate", "--seconds", "1", "--interface", "nosuch0"])
        .refused(&["nosuch0"]);
    let seen = weir.json(&["calibrate", "--seconds", "1", "--interface", "eth0"]);
    let seen = &seen["interfaces"][0];
    assert_eq!(
        (&seen["name"], &seen["mtu"]),
        (&json!("eth0"), &json!(1500))
    );
    assert!(
        seen["programs"][0]
            .as_str()
            .unwrap()
            .starts_with("tcx: weir_drop_tcx (id "),
        "{seen}"
    );
    assert!(seen["tried"].is_null(), "{seen}");

    let tried = weir.json(&[
        "calibrate",
        "--seconds",
        "1",
        "--interface",
        "eth0",
        "--attach",
    ]);
    let seen = &tried["interfaces"][0];
    for (at, name) in ["xdp", "xdp-generic", "tcx"].into_iter().enumerate() {
        assert_eq!(
            seen["tried"][at],
            json!({"hook": name, "refused": null}),
            "{seen}"
        );
    }
    assert_eq!(seen["native_xdp"], true);
    // Nothing of ours stays, and theirs does.
    assert_eq!(net.host.enter(|| xdp_program_on(index)).unwrap(), None);
    assert_ne!(theirs.target().unwrap().0, 0);
    let text = weir
        .ask(&["calibrate", "--seconds", "1", "--interface", "eth0"])
        .done()
        .out;
    assert!(
        text.contains("eth0: driver veth, ")
            && text.contains("there is tcx: weir_drop_tcx")
            && text.contains("  auto: "),
        "{text}"
    );
}

/// Ctrl-C in the middle: no namespace, no file, exit code 2.
#[test]
fn root_calibrate_interrupted_leaves_nothing() {
    if skipped(&[]) {
        return;
    }
    let _alone = alone();
    let net = TestNet::new();
    let weir = Weir::new(&net.host, AUTO);
    let mut command = Command::new(WEIR);
    command
        .arg("--config")
        .arg(weir.path("weir.toml"))
        .arg("calibrate")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(weir.path("calibrate.err")).unwrap());
    let mut run: Child = net.host.spawn(command).unwrap();
    let ours = format!("wl{}-", run.pid());
    let namespaces = || -> Vec<String> {
        let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(&ours))
            .collect()
    };
    let said = || fs::read_to_string(weir.path("calibrate.err")).unwrap();
    wait_for("the first round", PATIENCE, || {
        Ok(said().contains("round 1, ").then_some(()))
    })
    .unwrap();
    assert!(!namespaces().is_empty());
    run.signal(2).unwrap();
    let status = run.wait(PATIENCE).unwrap().expect("it ends");
    assert_eq!(status.code(), Some(2), "{}", said());
    assert!(said().contains("interrupted"), "{}", said());
    assert_eq!(namespaces(), [""; 0]);
    assert!(!weir.path("state").exists());
    let pins = format!("/sys/fs/bpf/weir/calibrate-{}", run.pid());
    assert!(!fs::exists(pins).unwrap());
}

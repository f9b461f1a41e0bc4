//! Configurations that change while flows live.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::*;

/// The number of changes of the configuration.
const CHANGES: usize = 500;

/// One of many configurations, all of which have both reals.
fn variant(n: usize) -> String {
    let [one, two] = REAL;
    let weights = [1 + n % 7, 1 + n % 3];
    let method = [
        "maglev",
        "source-hash",
        "source-port-hash",
        "round-robin",
        "least-connections",
    ][n % 5];
    let order = match n % 2 {
        0 => format!(
            "{{ address = \"{one}\", weight = {} }}, {{ address = \"{two}\", weight = {} }}",
            weights[0], weights[1]
        ),
        _ => format!(
            "{{ address = \"{two}\", weight = {} }}, {{ address = \"{one}\", weight = {} }}",
            weights[1], weights[0]
        ),
    };
    let ports = ["\"80/tcp\"", "\"80/tcp\", \"5353/udp\"", "\"79-82/tcp\""][n % 3];
    let mut text = format!(
        "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n[balance]\ninterface = \"eth0\"\n\
         [pool.web]\nvip = [\"{}\", \"{}\"]\nports = [{ports}]\nreals = [{order}]\n\
         method = \"{method}\"\nslow_start = \"{}s\"\n\
         check = {{ port = 80, interval = \"{}s\", rise = {}, fall = 3 }}\n",
        VIP[0],
        VIP[1],
        n % 5,
        1 + n % 2,
        1 + n % 3,
    );
    if n % 3 == 1 {
        text += "acl = [\"deny 192.0.2.66\", \"allow 192.0.2.0/24\", \"allow 2001:db8::/64\"]\nacl_default = \"deny\"\n";
    }
    if n % 4 == 1 {
        text += "emergency = \"other\"\n";
    }
    if n % 4 == 1 || n.is_multiple_of(5) {
        text += &format!(
            "[pool.other]\nvip = [\"{}\"]\nports = [\"{}/tcp\"]\nreals = [{{ address = \"{two}\" }}]\ncheck = {{ port = 80 }}\n",
            VIP[0],
            8000 + n % 9
        );
    }
    text
}

/// What is shown of the pools that is no count, no moment and no place of a file.
fn settings(weir: &Weir) -> Value {
    let mut pools = weir.json(&["pool", "list"])["pools"].take();
    for pool in pools.as_array_mut().unwrap() {
        let counted = [
            "packets",
            "bytes",
            "unserved",
            "unremembered",
            "denied",
            "displaced",
            "quic_placed",
            "quic_unknown",
            "flows",
            "new_flows_per_second",
            "since",
            "why",
            "origin",
        ];
        pool.as_object_mut().unwrap().remove("origin");
        for of in ["services", "reals"] {
            for one in pool[of].as_array_mut().unwrap() {
                let one = one.as_object_mut().unwrap();
                one.retain(|key, _| !counted.contains(&key.as_str()));
            }
        }
    }
    pools
}

/// No live flow breaks, and each setting is in force that was written last.
#[test]
fn root_p7_five_hundred_reloads_break_no_flow_and_lose_no_setting() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &variant(0));
    live_of_all_soon(&weir);
    let mut flows = Vec::new();
    while flows.len() < 40 {
        flows.extend(segment.flows());
    }
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let begin = Instant::now();
    thread::scope(|scope| {
        for part in flows.chunks_mut(10) {
            let (stop, asked) = (&stop, &asked);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (family, number, flow) in &mut *part {
                        assert_eq!(flow.ask(CLIENT[*family]), *number);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                    // The daemon needs the processors as well.
                    thread::sleep(Duration::from_millis(5));
                }
            });
        }
        // Whatever comes of it, the others are to end.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 1..=CHANGES {
                weir.configure(&variant(n));
                weir.ask(&["reload"]).done();
            }
            let shown = settings(&weir);
            let pools = shown.as_array().unwrap();
            let web = pools.iter().find(|pool| pool["name"] == "web").unwrap();
            assert_eq!(web["method"], "maglev", "{shown}");
            assert_eq!(web["live"], 2, "{shown}");
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    println!(
        "{CHANGES} reloads in {:?}, {} requests over 40 flows",
        begin.elapsed(),
        asked.into_inner()
    );
    let alerts = weir.json(&["status"])["alerts"].to_string();
    assert_eq!(alerts, "[]");

    // After all of that it is what a start by the same file makes of it.
    for n in [1, 5, 10, 62] {
        weir.configure(&variant(n));
        weir.ask(&["reload"]).done();
        live_of_all_soon(&weir);
        let reloaded = settings(&weir);
        let fresh = PoolNetwork::new("tcx");
        let started = Weir::start(&fresh.host, &variant(n));
        live_of_all_soon(&started);
        let mut started = settings(&started);
        // Link-layer addresses are each segment's own.
        for (pool, other) in started
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .zip(reloaded.as_array().unwrap())
        {
            let reals = pool["reals"].as_array_mut().unwrap().iter_mut();
            for (real, of) in reals.zip(other["reals"].as_array().unwrap()) {
                real["mac"] = of["mac"].clone();
            }
        }
        assert_eq!(reloaded, started);
    }
}

#[track_caller]
fn live_of_all_soon(weir: &Weir) {
    soon("all reals to live", || {
        let pools = weir.json(&["pool", "list"])["pools"].clone();
        let mut reals = pools
            .as_array()?
            .iter()
            .flat_map(|pool| pool["reals"].as_array().unwrap().clone());
        reals
            .all(|real| real["state"] == "up" && real["mac"].is_string())
            .then_some(())
    });
}

/// Pen never notices.
#[test]
fn root_p2_new_flows_leave_a_real_that_dies_or_is_removed() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let config = config("tcx").replace(
        "interval = \"1s\"",
        "interval = \"1s\", fall = 1, rise = 1, timeout = \"5s\"",
    );
    let weir = Weir::start(&segment.host, &config);
    live_soon(&weir, 2);
    let mut flows = segment.flows();
    let died = Instant::now();
    segment.kill(0);
    live_soon(&weir, 1);
    // One interval, and what a machine under load takes to say so.
    assert!(
        died.elapsed() < Duration::from_secs(15),
        "{:?}",
        died.elapsed()
    );
    assert_eq!(segment.all_served_by(40), [1].into());
    let of = |number: usize, flows: &mut Vec<(usize, usize, Flow)>| {
        for (family, _, flow) in flows.iter_mut().filter(|(_, n, _)| *n == number) {
            assert_eq!(flow.ask(CLIENT[*family]), number);
        }
    };
    of(1, &mut flows);
    segment.serve(0);
    live_soon(&weir, 2);
    let mut flows = segment.flows();
    // Removed: new flows go at once, and those of the one that stays live on.
    let without = config.replace(&format!("{{ address = \"{}\" }}, ", REAL[0]), "");
    weir.configure(&without);
    weir.ask(&["reload"]).done();
    assert_eq!(segment.all_served_by(40), [1].into());
    of(1, &mut flows);
    // Blacklisted by an administrator: drained, its flows stay as well.
    weir.configure(&config);
    weir.ask(&["reload"]).done();
    live_soon(&weir, 2);
    let mut flows = segment.flows();
    weir.ask(&["real", "drain", "web", REAL[0]]).done();
    assert_eq!(segment.all_served_by(40), [1].into());
    of(0, &mut flows);
    of(1, &mut flows);
}

/// Reals that had flows keep them, and get new ones, while a first check goes on for longer
/// than a start or a reload waits for it.
#[test]
fn root_a_slow_first_check_moves_no_flow() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let checked_for = |seconds: &str| {
        let check = format!(
            "check = {{ command = [\"/bin/sleep\", \"{seconds}\"], interval = \"1s\", timeout = \"20s\""
        );
        config("tcx").replace("check = { interval = \"1s\"", &check)
    };
    let mut weir = Weir::start(&segment.host, &checked_for("0"));
    live_of_all_soon(&weir);
    let mut flows = segment.flows();
    let mut keep_theirs = |weir: &Weir| {
        let unknown = |weir: &Weir| {
            let shown = pool(weir);
            let mut reals = shown["reals"].as_array().unwrap().iter();
            reals.all(|real| real["state"] == "unknown")
        };
        assert!(unknown(weir), "the check is over: {}", pool(weir));
        for (family, number, flow) in &mut flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
        assert_eq!(segment.all_served_by(40), [0, 1].into());
        let shown = weir.ask(&["pool", "show", "web"]).done().out;
        assert!(
            shown.contains("not checked yet, keeps its flows"),
            "{shown}"
        );
        assert_eq!(weir.json(&["status"])["alerts"].to_string(), "[]");
        live_of_all_soon(weir);
        for (family, number, flow) in &mut flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
    };
    weir.kill();
    weir.configure(&checked_for("5"));
    weir.run();
    keep_theirs(&weir);
    weir.configure(&checked_for("5.5"));
    weir.ask(&["reload"]).done();
    keep_theirs(&weir);
}

/// What was said of a real that a configuration leaves out is forgotten when that is in
/// force, and not when it is refused for another reason.
#[test]
fn root_a_refused_reload_forgets_nothing_that_was_said_of_a_real() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let mut weir = Weir::start(&segment.host, &config("tcx"));
    live_soon(&weir, 2);
    let settings = |weir: &Weir| -> Vec<(Value, Value)> {
        let shown = pool(weir);
        let reals = shown["reals"].as_array().unwrap().iter();
        reals
            .map(|real| (real["address"].clone(), real["mode"].clone()))
            .collect()
    };
    let disabled = [(REAL[0], "disabled"), (REAL[1], "enabled")];
    let disabled = disabled.map(|(real, mode)| (Value::from(real), Value::from(mode)));
    weir.ask(&["real", "disable", "web", REAL[0]]).done();
    assert_eq!(settings(&weir), disabled);
    let without = config("tcx").replace(&format!("{{ address = \"{}\" }}, ", REAL[0]), "");
    // Refused behind the pools: by tokens, without the real and without any pool.
    let no_keys = "[token]\nkeys = \"/nowhere/keys\"\n";
    let no_pool = "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n";
    for refused in [&*without, no_pool] {
        weir.configure(&format!("{refused}{no_keys}"));
        weir.ask(&["reload"]).refused(&["/nowhere/keys"]);
        assert_eq!(settings(&weir), disabled);
        live_soon(&weir, 1);
        assert_eq!(segment.all_served_by(20), [1].into());
    }
    // On disk as well.
    weir.kill();
    weir.configure(&config("tcx"));
    weir.run();
    live_soon(&weir, 1);
    assert_eq!(settings(&weir), disabled);
    assert_eq!(segment.all_served_by(20), [1].into());
    // In force without the real: it comes back as it is configured.
    for config in [&*without, &config("tcx")] {
        weir.configure(config);
        weir.ask(&["reload"]).done();
    }
    live_soon(&weir, 2);
    assert_eq!(settings(&weir)[0].1, "enabled");
    assert_eq!(segment.all_served_by(40), [0, 1].into());
}

/// Nothing of the pools changes before the rest of a configuration is accepted: packets are
/// counted on, and flows to a real that it leaves out, or to any, stay.
#[test]
fn root_a_refused_reload_changes_nothing_that_is_served() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &config("tcx"));
    live_of_all_soon(&weir);
    let mut flows = segment.flows();
    let without = config("tcx").replace(&format!("{{ address = \"{}\" }}, ", REAL[0]), "");
    let no_keys = "[token]\nkeys = \"/nowhere/keys\"\n";
    let no_pool = "interfaces = [\"eth0\"]\nbackend = \"tcx\"\n";
    // What a pool that was made anew would have begun to count.
    let counted = |weir: &Weir| {
        let shown = pool(weir);
        let all = shown["reals"].as_array().unwrap().iter();
        let since: Vec<_> = all.clone().map(|real| real["since"].clone()).collect();
        let flows: Vec<_> = all.map(|real| real["flows"].as_u64().unwrap()).collect();
        (since, flows)
    };
    let before = counted(&weir);
    assert!(before.1.iter().all(|flows| *flows > 0), "{before:?}");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (family, number, flow) in &mut flows {
                    assert_eq!(flow.ask(CLIENT[*family]), *number);
                }
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for refused in [&*without, no_pool, &*without, no_pool] {
                weir.configure(&format!("{refused}{no_keys}"));
                weir.ask(&["reload"]).refused(&["/nowhere/keys"]);
                assert_eq!(counted(&weir), before);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    assert_eq!(weir.packets("no-real"), 0);
    assert_eq!(weir.json(&["status"])["alerts"].to_string(), "[]");
    // A backend that forwards nothing is taken where the pools go with the one before it.
    weir.configure(&no_pool.replace("tcx", "netfilter"));
    weir.ask(&["reload"]).done();
    assert_eq!(weir.json(&["pool", "list"])["pools"].to_string(), "[]");
    assert_eq!(weir.attachment("eth0").0, "netfilter");
    weir.configure(&no_pool.replace("tcx", "nft"));
    weir.ask(&["reload"]).done();
    weir.configure(&config("tcx"));
    weir.ask(&["reload"]).done();
    live_of_all_soon(&weir);
    weir.configure(&no_pool.replace("tcx", "nft"));
    weir.ask(&["reload"]).done();
    assert_eq!(weir.json(&["pool", "list"])["pools"].to_string(), "[]");
}

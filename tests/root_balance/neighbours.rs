//! Reals whose neighbour entries on the balancer come, go and change.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::*;

/// The link-layer address of a real, as `weir pool show` has it.
fn mac(weir: &Weir, number: usize) -> String {
    let shown = pool(weir);
    let mut reals = shown["reals"].as_array().unwrap().iter();
    let real = reals.find(|real| real["address"] == REAL[number]);
    real.unwrap()["mac"].as_str().unwrap_or("none").to_owned()
}

/// Nothing sends to the reals here but clients: their checks run a command.
#[test]
fn root_a_real_without_a_neighbour_entry_keeps_its_flows() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let config = config("tcx").replace(
        "check = { interval = \"1s\"",
        "check = { command = \"/bin/true\", vip = false, interval = \"1s\"",
    );
    let mut weir = Weir::start(&segment.host, &config);
    // The kernel is told to find them out.
    soon("both to be neighbours", || {
        (0..2).all(|n| mac(&weir, n) != "none").then_some(())
    });
    live_soon(&weir, 2);
    let macs = [0, 1].map(|n| mac(&weir, n));
    let mut flows = segment.flows();
    let flush = || segment.host.ip(&["neigh flush dev eth0".into()]).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        flush();
        for (family, number, flow) in &mut flows {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
        assert_eq!([0, 1].map(|n| mac(&weir, n)), macs);
    }
    // Whatever the daemon knows of them at a start.
    weir.kill();
    flush();
    // Nobody answers for the first one any more.
    let one = format!("neigh replace {} nud failed dev eth0", REAL[0]);
    segment.host.ip(&[one]).unwrap();
    weir.run();
    assert_eq!([0, 1].map(|n| mac(&weir, n)), macs);
    for (family, number, flow) in &mut flows {
        assert_eq!(flow.ask(CLIENT[*family]), *number);
    }
    assert_eq!(weir.json(&["status"])["alerts"].to_string(), "[]");
}

#[test]
fn root_a_neighbour_with_two_addresses_in_turns_is_told_and_moves_nothing() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &config("tcx"));
    live_soon(&weir, 2);
    let own = mac(&weir, 0);
    let other = "02:00:00:00:00:66";
    let mut seen = BTreeSet::from([own.clone()]);
    let mut changes = 0;
    let mut last = own.clone();
    let mut alerts = String::new();
    // The other one for shorter, so that it never seems to stay, however late anybody looks.
    for turn in 0..12 {
        let (now, millis) = [(other, 700), (&*own, 1500)][turn % 2];
        let line = format!(
            "neigh replace {} lladdr {now} nud permanent dev eth0",
            REAL[0]
        );
        segment.host.ip(&[line]).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(millis) {
            let shown = mac(&weir, 0);
            changes += usize::from(shown != last);
            seen.insert(shown.clone());
            last = shown;
            thread::sleep(Duration::from_millis(100));
        }
        alerts = weir.json(&["status"])["alerts"].to_string();
    }
    assert_eq!(changes, 0, "{seen:?}");
    let told = format!("{} has the link-layer addresses", REAL[0]);
    for words in [&*told, &own, other, "in turns"] {
        assert!(alerts.contains(words), "{alerts}");
    }
    // The right one alone, in the end.
    soon("the address of the real", || {
        (mac(&weir, 0) == own).then_some(())
    });
    live_soon(&weir, 2);
    assert_eq!(segment.all_served_by(40), BTreeSet::from([0, 1]));
}

//! Reals that this host cannot ask, because it lacks what a check takes.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::*;

/// The ports from which the host may ask.
fn ports(segment: &PoolNetwork, range: &str) {
    let setting = format!("net.ipv4.ip_local_port_range={range}");
    segment.host.run("sysctl", &["-q", "-w", &setting]).unwrap();
}

/// A host without free ports says so, and takes no real for dead, IPv4 and IPv6.
#[test]
fn root_a_host_without_ports_takes_no_real_for_dead() {
    if skipped(&["nginx", "python3", "sysctl"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let weir = checked_by(&segment, "interval = \"1s\", fall = 2, rise = 1");
    let mut flows = segment.flows();
    let alerts = || weir.json(&["status"])["alerts"].to_string();
    assert_eq!(alerts(), "[]");
    // The connection of a check that is over holds its port for a minute.
    ports(&segment, "40000 40000");
    soon("an alert", || {
        let alerts = alerts();
        let words = [
            "cannot begin checks of reals",
            "Cannot assign requested address",
        ];
        words
            .iter()
            .all(|words| alerts.contains(words))
            .then_some(())
    });
    // Longer than it takes a real that fails to be taken for dead.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let shown = pool(&weir);
        assert_eq!(shown["live"], 2, "{shown}");
        thread::sleep(Duration::from_millis(200));
    }
    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    assert!(shown.contains("cannot be checked: "), "{shown}");
    for (family, number, flow) in &mut flows {
        assert_eq!(flow.ask(CLIENT[*family]), *number);
    }
    assert_eq!(segment.all_served_by(40), [0, 1].into());
    ports(&segment, "32768 60999");
    soon("no alert", || (alerts() == "[]").then_some(()));
    // And a real that dies is noticed again.
    segment.kill(1);
    live_soon(&weir, 1);
}

//! How a new flow finds its real. (Which slot it takes: crates/bpf/tests/root_balance.)

use std::time::Duration;

use super::*;

pub(crate) fn by(method: &str, weights: [u32; 2], more: &str) -> String {
    let reals = |weights: [&str; 2]| {
        format!(
            "reals = [{{ address = \"{}\"{} }}, {{ address = \"{}\"{} }}]",
            REAL[0], weights[0], REAL[1], weights[1]
        )
    };
    let with = weights.map(|weight| format!(", weight = {weight}"));
    config("tcx").replace(
        &reals(["", ""]),
        &format!(
            "{}\nmethod = \"{method}\"\n{more}",
            reals([&with[0], &with[1]])
        ),
    )
}

#[test]
fn root_reals_take_turns_and_keep_their_flows() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &by("round-robin", [3, 1], ""));
    live_soon(&weir, 2);
    // A connection has more than one packet, which all go where its first one went; each
    // processor has turns of its own.
    let mut taken = [0; 2];
    for n in 0..80 {
        taken[segment.served_by(n % 2)] += 1;
    }
    assert!((55..=65).contains(&taken[0]), "{taken:?}");
    assert_eq!(pool(&weir)["method"], "round-robin");
    let mut flows = segment.flows();
    weir.ask(&["real", "weight", "web", REAL[0], "0"]).done();
    assert_eq!(segment.all_served_by(20), [1].into());
    for (family, number, flow) in &mut flows {
        assert_eq!(flow.ask(CLIENT[*family]), *number);
    }
}

#[test]
fn root_all_flows_of_a_client_go_to_one_real() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let weir = Weir::start(&segment.host, &by("source-hash", [1, 1], ""));
    live_soon(&weir, 2);
    for (family, clients) in [CLIENT, BANNED].iter().flat_map(|c| [(0, c[0]), (1, c[1])]) {
        let served = (0..20).map(|_| segment.open(clients, family).unwrap().ask(clients));
        assert_eq!(served.collect::<BTreeSet<_>>().len(), 1, "{clients}");
    }
    weir.configure(&by("source-port-hash", [1, 1], ""));
    weir.ask(&["reload"]).done();
    assert_eq!(segment.all_served_by(40), [0, 1].into());
}

#[test]
fn root_a_real_that_comes_back_starts_slowly() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let mut segment = PoolNetwork::new("tcx");
    let slow = by("round-robin", [1, 1], "slow_start = \"40s\"");
    let slow = slow.replace(
        "interval = \"1s\"",
        "interval = \"1s\", rise = 1, fall = 1, timeout = \"5s\"",
    );
    let weir = Weir::start(&segment.host, &slow);
    live_soon(&weir, 2);
    // Not at the start, where all are new.
    let share = || {
        let served = (0..40).map(|n| segment.served_by(n % 2));
        served.filter(|number| *number == 0).count()
    };
    assert!(share() >= 17);
    segment.kill(0);
    live_soon(&weir, 1);
    segment.serve(0);
    live_soon(&weir, 2);
    let share = || {
        let served = (0..40).map(|n| segment.served_by(n % 2));
        served.filter(|number| *number == 0).count()
    };
    let first = share();
    assert!((1..=15).contains(&first), "{first} of 40");
    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    assert!(shown.contains("slow start, "), "{shown}");
    let begin = std::time::Instant::now();
    soon("all of its weight", || (share() >= 17).then_some(()));
    assert!(begin.elapsed() > Duration::from_secs(5));
    soon("the end of it", || {
        let shown = weir.ask(&["pool", "show", "web"]).done().out;
        (!shown.contains("slow start")).then_some(())
    });
}

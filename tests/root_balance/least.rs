//! Least connections: a new flow goes where few live, whatever the daemon does meanwhile.
//! (Who gets which share: crates/bpf/tests/root_balance/least.rs.)
//!
//! The real is the less loaded one of up to four draws, so that of two reals the busier one
//! gets a flow in sixteen. What is asked of so many flows goes wrong by chance less often
//! than once in a million runs.

use super::{methods::by, *};

/// Connections that stay open.
struct Held(Vec<(usize, usize, Flow)>);

impl Held {
    /// Opens so many, of both families in turns; each is with whoever answers.
    fn open(segment: &PoolNetwork, count: usize) -> Self {
        let flows = (0..count).map(|n| {
            let family = n % 2;
            let mut flow = segment.open(CLIENT[family], family).expect("a connection");
            let number = flow.ask(CLIENT[family]);
            (family, number, flow)
        });
        Self(flows.collect())
    }

    /// How many each real has.
    fn by_real(&self) -> [usize; 2] {
        [0, 1].map(|number| self.0.iter().filter(|(_, n, _)| *n == number).count())
    }

    /// All are where they were.
    #[track_caller]
    fn stay(&mut self) {
        for (family, number, flow) in &mut self.0 {
            assert_eq!(flow.ask(CLIENT[*family]), *number);
        }
    }
}

/// What weir takes for the live flows of each real.
fn active(weir: &Weir) -> Vec<u64> {
    let shown = pool(weir);
    let reals = shown["reals"].as_array().unwrap().iter();
    reals
        .map(|real| real["active"].as_u64().expect("it is counted"))
        .collect()
}

#[track_caller]
fn active_soon(weir: &Weir, expected: [usize; 2]) {
    soon(&format!("{expected:?} live flows"), || {
        let active = active(weir);
        (active == expected.map(|n| n as u64)).then_some(())
    });
}

fn sum(one: [usize; 2], other: [usize; 2]) -> [usize; 2] {
    [one[0] + other[0], one[1] + other[1]]
}

#[test]
fn root_new_connections_go_to_the_real_with_fewer() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let mut weir = Weir::start(&segment.host, &by("least-connections", [1, 1], ""));
    live_soon(&weir, 2);
    assert_eq!(pool(&weir)["method"], "least-connections");
    // Long ones pile up on the first.
    weir.ask(&["real", "drain", "web", REAL[1]]).done();
    let mut long = Held::open(&segment, 80);
    assert_eq!(long.by_real(), [80, 0]);
    active_soon(&weir, [80, 0]);
    weir.ask(&["real", "enable", "web", REAL[1]]).done();
    let mut new = Held::open(&segment, 60);
    assert!(new.by_real()[1] >= 44, "{:?}", new.by_real());
    let both = sum(long.by_real(), new.by_real());
    active_soon(&weir, both);
    let shown = weir.ask(&["pool", "show", "web"]).done().out;
    assert!(shown.contains("ACTIVE"), "{shown}");
    for (real, active) in REAL.iter().zip(both) {
        let metric = weir.metric("weir_pool_real_active_flows", &["web", real]);
        assert_eq!(metric, Some(active as u64));
    }
    long.stay();
    new.stay();

    // Those that end count no more, and the first is the one with fewer.
    drop(long);
    active_soon(&weir, new.by_real());
    let more = Held::open(&segment, 28);
    assert!(more.by_real()[0] >= 17, "{:?}", more.by_real());

    // The daemon is not asked about any of this.
    weir.kill();
    let of_both = sum(new.by_real(), more.by_real());
    drop(more);
    let fewer = Held::open(&segment, 28);
    assert!(
        fewer.by_real()[0] >= 17,
        "{:?} of {of_both:?}",
        fewer.by_real()
    );
    // Until there are as many at both.
    let mut even = Held::open(&segment, 100);
    let all = sum(sum(new.by_real(), fewer.by_real()), even.by_real());
    assert!(all[0].abs_diff(all[1]) <= 12, "{all:?}");
    new.stay();
    even.stay();
    weir.run();
    live_soon(&weir, 2);
    active_soon(&weir, all);
    new.stay();
}

#[test]
fn root_connections_are_as_many_as_weights_say() {
    if skipped(&["nginx", "python3"]) {
        return;
    }
    let segment = PoolNetwork::new("tcx");
    let slow = "slow_start = \"120s\"";
    let weir = Weir::start(&segment.host, &by("least-connections", [3, 1], slow));
    live_soon(&weir, 2);
    let mut held = Held::open(&segment, 80);
    let [heavy, light] = held.by_real();
    assert!((54..=66).contains(&heavy), "{heavy} {light}");
    active_soon(&weir, [heavy, light]);
    // Another weight holds for those that come.
    weir.ask(&["real", "weight", "web", REAL[1], "9"]).done();
    let new = Held::open(&segment, 40);
    assert!(new.by_real()[1] >= 32, "{:?}", new.by_real());
    held.stay();
    drop((held, new));
    active_soon(&weir, [0, 0]);
    // One that comes back has none, and gets no flood of new ones for it.
    weir.ask(&["real", "weight", "web", REAL[1], "3"]).done();
    weir.ask(&["real", "drain", "web", REAL[1]]).done();
    let held = Held::open(&segment, 40);
    assert_eq!(held.by_real(), [40, 0]);
    weir.ask(&["real", "enable", "web", REAL[1]]).done();
    let new = Held::open(&segment, 40);
    let [_, slow] = new.by_real();
    assert!((1..=16).contains(&slow), "{slow}");
}

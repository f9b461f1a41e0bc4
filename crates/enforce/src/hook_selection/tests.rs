//! The choice over tables of figures; those of the first cases are near what a
//! veth pair shows.

use super::*;

fn cost(hook: Hook, nanos: u64, traffic: impl Into<Option<u8>>) -> HookCost {
    HookCost {
        hook,
        drop: (nanos != 0).then(|| sure(Duration::from_nanos(nanos))),
        traffic: traffic.into().map(sure),
    }
}

/// As measured in rounds that were all alike.
fn sure<T: Copy>(figure: T) -> Estimate<T> {
    Estimate {
        median: figure,
        low: figure,
        high: figure,
    }
}

/// Drop cost and cost to TCP, each as (low, median, high).
fn unsure(hook: Hook, nanos: [u64; 3], lost: [u8; 3]) -> HookCost {
    let [low, median, high] = nanos.map(Duration::from_nanos);
    let drop = Estimate { median, low, high };
    let [low, median, high] = lost;
    HookCost {
        hook,
        drop: Some(drop),
        traffic: Some(Estimate { median, low, high }),
    }
}

use Hook::{ClsBpf, Netfilter, Tcx, Xdp, XdpGeneric};
use Prefer::{Drops, Traffic};

#[test]
fn the_preference_decides_over_the_figures() {
    struct Case {
        name: &'static str,
        costs: Vec<HookCost>,
        prefer: Prefer,
        hooks: &'static [Hook],
        why: &'static str,
    }
    let veth = vec![
        cost(Xdp, 90, 60),
        cost(XdpGeneric, 400, 2),
        cost(Tcx, 330, 0),
    ];
    for case in [
        Case {
            name: "native drops cheapest but costs TCP",
            costs: veth.clone(),
            prefer: Traffic,
            hooks: &[Tcx, XdpGeneric, Xdp],
            why: "tcx drops at 0.33 µs and costs TCP 0 %; xdp drops at 0.09 µs but costs TCP 60 %",
        },
        Case {
            name: "the same where only drops count",
            costs: veth,
            prefer: Drops,
            hooks: &[Xdp, Tcx, XdpGeneric],
            why: "xdp drops at 0.09 µs and costs TCP 60 %; next tcx drops at 0.33 µs and costs TCP 0 %; prefer = \"drops\"",
        },
        Case {
            name: "equal TCP: the cheapest drop",
            costs: vec![
                cost(Tcx, 330, 1),
                cost(XdpGeneric, 200, 1),
                cost(Xdp, 80, 1),
            ],
            prefer: Traffic,
            hooks: &[Xdp, XdpGeneric, Tcx],
            why: "xdp drops at 0.08 µs and costs TCP 1 %; next xdp-generic drops at 0.20 µs and costs TCP 1 %",
        },
        Case {
            name: "drops nearly the same: the hook that leaves room",
            costs: vec![
                cost(XdpGeneric, 303, 0),
                cost(ClsBpf, 329, 0),
                cost(Tcx, 327, 0),
            ],
            prefer: Traffic,
            hooks: &[Tcx, ClsBpf, XdpGeneric],
            why: "tcx drops at 0.33 µs and costs TCP 0 %; xdp-generic drops at 0.30 µs, no cheaper as far as the rounds can tell, and tcx goes first: it leaves room for other programs",
        },
        Case {
            name: "drops that the rounds do not tell apart",
            costs: vec![
                unsure(XdpGeneric, [180, 220, 310], [0, 2, 4]),
                unsure(Tcx, [300, 330, 360], [0, 0, 2]),
                unsure(Netfilter, [320, 400, 480], [0, 0, 2]),
            ],
            prefer: Traffic,
            hooks: &[Tcx, XdpGeneric, Netfilter],
            why: "tcx drops at 0.33 µs and costs TCP 0 %; xdp-generic drops at 0.22 µs, no cheaper as far as the rounds can tell, and tcx goes first: it leaves room for other programs",
        },
        Case {
            name: "drops that they do",
            costs: vec![
                unsure(XdpGeneric, [180, 220, 260], [0, 2, 4]),
                unsure(Tcx, [300, 330, 360], [0, 0, 2]),
            ],
            prefer: Traffic,
            hooks: &[XdpGeneric, Tcx],
            why: "xdp-generic drops at 0.22 µs and costs TCP 2 %; next tcx drops at 0.33 µs and costs TCP 0 %",
        },
        Case {
            name: "equals where only drops count",
            costs: vec![
                unsure(Xdp, [80, 150, 400], [50, 60, 70]),
                unsure(XdpGeneric, [150, 160, 170], [0, 0, 0]),
            ],
            prefer: Drops,
            hooks: &[XdpGeneric, Xdp],
            why: "xdp-generic drops at 0.16 µs and costs TCP 0 %; xdp drops at 0.15 µs, no cheaper as far as the rounds can tell, and xdp-generic goes first: it needs nothing of the driver; prefer = \"drops\"",
        },
        Case {
            name: "not surely above the limit: behind what is below it, before what is above it",
            costs: vec![
                unsure(Xdp, [80, 90, 100], [50, 60, 70]),
                unsure(XdpGeneric, [180, 200, 220], [4, 12, 20]),
                unsure(Tcx, [320, 330, 340], [0, 1, 3]),
            ],
            prefer: Traffic,
            hooks: &[Tcx, XdpGeneric, Xdp],
            why: "tcx drops at 0.33 µs and costs TCP 1 %; xdp-generic drops at 0.20 µs but costs TCP 4 to 20 %; xdp drops at 0.09 µs but costs TCP 60 %",
        },
        Case {
            name: "costs to TCP that the rounds do not tell apart, on both sides of the limit",
            costs: vec![
                unsure(Xdp, [310, 320, 330], [70, 78, 85]),
                unsure(Tcx, [820, 840, 860], [0, 14, 47]),
                unsure(Netfilter, [960, 980, 1000], [0, 8, 41]),
            ],
            prefer: Traffic,
            hooks: &[Tcx, Netfilter, Xdp],
            why: "tcx drops at 0.84 µs and costs TCP 0 to 47 %; xdp drops at 0.32 µs but costs TCP 78 %",
        },
        Case {
            name: "netfilter where it is the only one that does no harm",
            costs: vec![
                cost(Xdp, 90, 60),
                cost(XdpGeneric, 400, 25),
                cost(Netfilter, 500, 1),
            ],
            prefer: Traffic,
            hooks: &[Netfilter, XdpGeneric, Xdp],
            why: "netfilter drops at 0.50 µs and costs TCP 1 %; xdp-generic drops at 0.40 µs but costs TCP 25 %; xdp drops at 0.09 µs but costs TCP 60 %",
        },
        Case {
            name: "the limit itself is not above it",
            costs: vec![cost(Xdp, 90, TRAFFIC_LIMIT), cost(Tcx, 330, 0)],
            prefer: Traffic,
            hooks: &[Xdp, Tcx],
            why: "xdp drops at 0.09 µs and costs TCP 10 %; next tcx drops at 0.33 µs and costs TCP 0 %",
        },
        Case {
            name: "an unknown cost to TCP is better than a known high one",
            costs: vec![cost(Xdp, 90, 60), cost(Tcx, 330, None)],
            prefer: Traffic,
            hooks: &[Tcx, Xdp],
            why: "tcx drops at 0.33 µs and costs TCP an unknown share; xdp drops at 0.09 µs but costs TCP 60 %",
        },
        Case {
            name: "an unknown drop comes last of its kind",
            costs: vec![cost(Tcx, 0, 0), cost(XdpGeneric, 500, 3), cost(Xdp, 90, 60)],
            prefer: Traffic,
            hooks: &[XdpGeneric, Tcx, Xdp],
            why: "xdp-generic drops at 0.50 µs and costs TCP 3 %; xdp drops at 0.09 µs but costs TCP 60 %",
        },
        Case {
            name: "nothing known of drops: the rank",
            costs: vec![cost(Xdp, 0, None), cost(Tcx, 0, None)],
            prefer: Drops,
            hooks: &[Tcx, Xdp],
            why: "tcx drops at an unknown cost and costs TCP an unknown share; next xdp drops at an unknown cost and costs TCP an unknown share; prefer = \"drops\"",
        },
        Case {
            name: "all too dear: the least harm",
            costs: vec![cost(Xdp, 90, 60), cost(XdpGeneric, 400, 25)],
            prefer: Traffic,
            hooks: &[XdpGeneric, Xdp],
            why: "xdp-generic drops at 0.40 µs and costs TCP 25 %; xdp drops at 0.09 µs but costs TCP 60 %",
        },
    ] {
        let (hooks, why) = order(&case.costs, case.prefer).expect(case.name);
        assert_eq!(hooks, case.hooks, "{}", case.name);
        assert_eq!(why, case.why, "{}", case.name);
    }
    assert_eq!(order(&[], Traffic), None);
}

fn device(driver: &str) -> Device {
    Device {
        index: 7,
        kind: 1,
        driver: driver.to_owned(),
    }
}

fn advice(prefer: Prefer, interfaces: Vec<KnownInterface>) -> Advice {
    Advice {
        prefer,
        calibration: Some(Calibration {
            day: "2026-11-21".to_owned(),
            driver: "veth".to_owned(),
            hooks: vec![
                cost(Xdp, 90, 60),
                cost(XdpGeneric, 200, 2),
                cost(Tcx, 330, 0),
            ],
            interfaces,
        }),
    }
}

fn known(driver: &str, native: Option<bool>) -> Vec<KnownInterface> {
    vec![KnownInterface {
        name: "eth0".to_owned(),
        driver: driver.to_owned(),
        native,
    }]
}

/// Figures of XDP hold for the measured driver only; what is behind the driver
/// costs the same everywhere.
#[test]
fn a_device_takes_what_was_measured_of_it() {
    for (name, advice, driver, hooks, why) in [
        (
            "as measured",
            advice(Traffic, vec![]),
            "veth",
            &[XdpGeneric, Tcx, Xdp][..],
            "auto: xdp-generic, calibrated 2026-11-21: ",
        ),
        (
            "only drops",
            advice(Drops, vec![]),
            "veth",
            &[Xdp, XdpGeneric, Tcx],
            "auto: xdp, calibrated 2026-11-21: ",
        ),
        (
            "another virtual device",
            advice(Traffic, vec![]),
            "bridge",
            &[Tcx, XdpGeneric],
            "auto: tcx, calibrated 2026-11-21 on veth: bridge is a virtual device; tcx drops",
        ),
        (
            "another virtual device, only drops",
            advice(Drops, vec![]),
            "bridge",
            &[Xdp, Tcx, XdpGeneric],
            "auto: xdp, calibrated 2026-11-21 on veth: the driver bridge may",
        ),
        (
            "hardware",
            advice(Traffic, vec![]),
            "igb",
            &[Xdp, Tcx, XdpGeneric],
            "auto: xdp, calibrated 2026-11-21 on veth: the driver igb may carry native XDP; else tcx drops at 0.33",
        ),
        (
            "hardware that carries it",
            advice(Traffic, known("igb", Some(true))),
            "igb",
            &[Xdp, Tcx, XdpGeneric],
            "auto: xdp, ",
        ),
        (
            "hardware that does not",
            advice(Traffic, known("genet", Some(false))),
            "genet",
            &[Tcx, XdpGeneric],
            "auto: tcx, calibrated 2026-11-21 on veth: the driver genet has no native XDP",
        ),
        (
            "another driver than then",
            advice(Traffic, known("genet", Some(false))),
            "igb",
            &[Xdp, Tcx, ClsBpf, XdpGeneric],
            "auto: the driver igb may carry native XDP; calibrated 2026-11-21, when its driver was \"genet\": ignored",
        ),
        (
            "no calibration, virtual",
            Advice::default(),
            "veth",
            &[Tcx, ClsBpf, XdpGeneric],
            "auto: veth is a virtual device, where native XDP costs TCP more",
        ),
        (
            "no calibration, hardware",
            Advice::default(),
            "igb",
            &[Xdp, Tcx, ClsBpf, XdpGeneric],
            "auto: the driver igb may",
        ),
        (
            "no calibration, only drops",
            Advice {
                prefer: Drops,
                calibration: None,
            },
            "veth",
            &[Xdp, Tcx, ClsBpf, XdpGeneric],
            "auto: only drops count",
        ),
    ] {
        let (found, said) = candidates(&advice, "eth0", &device(driver));
        // Where all others are refused.
        assert_eq!(found, [hooks, &[Netfilter]].concat(), "{name}: {said}");
        assert!(said.starts_with(why), "{name}: {said}");
    }
}

/// A file without any hook that attached is no reason to try none.
#[test]
fn an_empty_calibration_leaves_the_rule_of_the_driver() {
    let mut empty = advice(Traffic, vec![]);
    empty
        .calibration
        .as_mut()
        .expect("there is one")
        .hooks
        .clear();
    let (hooks, _) = candidates(&empty, "eth0", &device("veth"));
    assert_eq!(hooks, [Tcx, ClsBpf, XdpGeneric, Netfilter]);
}

/// Whatever was measured.
#[test]
fn a_device_without_ethernet_frames_has_netfilter_alone() {
    let wireguard = Device {
        index: 8,
        kind: 0xfffe,
        driver: "wireguard".to_owned(),
    };
    for advice in [
        advice(Traffic, vec![]),
        advice(Drops, vec![]),
        Advice::default(),
    ] {
        let (hooks, why) = candidates(&advice, "wg0", &wireguard);
        assert_eq!(hooks, [Netfilter], "{why}");
        assert!(
            why.contains("wireguard carries no Ethernet frames"),
            "{why}"
        );
    }
}

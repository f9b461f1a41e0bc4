use serde_json::json;

use super::*;

fn of<'a>(metrics: &'a [Metric], name: &str) -> &'a Metric {
    let found = metrics.iter().find(|metric| metric.name == name);
    found.unwrap_or_else(|| panic!("{name} is not there"))
}

#[test]
fn what_is_declared_is_in_json_and_text_in_a_stable_order() {
    let mut registry = Registry::default();
    let lines = registry.counters("weir_lines_total", "Lines.", &["jail"]);
    let bans = registry.gauges("weir_bans", "Bans \\ all.", &[]);
    let packets = registry.totals("weir_packets_total", "Packets.", &["list", "country"]);
    let age = registry.gauges("weir_age_seconds", "Age.", &["list"]);
    lines.of(["sshd"]).add(41);
    lines.of(["nginx"]).inc();
    lines.of(["sshd"]).inc();
    let metrics = registry.gather(|samples| {
        samples.total(packets, ["bad", ""], u64::MAX);
        samples.gauge(bans, [], 7_usize);
        samples.gauge(bans, [], 8_usize);
    });
    assert_eq!(
        text(&metrics[1..]),
        "# HELP weir_lines_total Lines.\n\
         # TYPE weir_lines_total counter\n\
         weir_lines_total{jail=\"nginx\"} 1\n\
         weir_lines_total{jail=\"sshd\"} 42\n\
         # HELP weir_bans Bans \\\\ all.\n\
         # TYPE weir_bans gauge\n\
         weir_bans 8\n\
         # HELP weir_packets_total Packets.\n\
         # TYPE weir_packets_total counter\n\
         weir_packets_total{list=\"bad\",country=\"\"} 18446744073709551615\n\
         # HELP weir_age_seconds Age.\n\
         # TYPE weir_age_seconds gauge\n"
    );
    assert_eq!(
        serde_json::to_value(&metrics[1..3]).unwrap(),
        json!([
            { "name": "weir_lines_total", "kind": "counter", "help": "Lines.", "samples": [
                { "labels": { "jail": "nginx" }, "value": 1 },
                { "labels": { "jail": "sshd" }, "value": 42 },
            ]},
            { "name": "weir_bans", "kind": "gauge", "help": "Bans \\ all.", "samples": [
                { "labels": {}, "value": 8 },
            ]},
        ])
    );
    let real = registry.gather(|samples| samples.gauge(age, ["bad"], 0.25));
    assert!(text(&real).ends_with("weir_age_seconds{list=\"bad\"} 0.25\n"));
    let (names, declared): (Vec<_>, Vec<_>) = (
        metrics.iter().map(|metric| metric.name).collect(),
        registry.declared().map(|declared| declared.name).collect(),
    );
    assert_eq!(names, declared);
}

/// Names that the configuration may have, and what a hostile one would write.
#[test]
fn no_label_value_ends_its_line_or_its_quotes() {
    let mut registry = Registry::default();
    let entries = registry.counters("weir_entries_total", "Entries.", &["list"]);
    let hostile = "a\"} 1\nweir_entries_total{list=\"b\\";
    entries.of([hostile]).inc();
    let written = text(&registry.gather(|_| ()));
    let line = written.lines().last().unwrap();
    assert_eq!(
        line,
        r#"weir_entries_total{list="a\"} 1\nweir_entries_total{list=\"b\\"} 1"#
    );
}

#[test]
fn a_family_at_its_cap_counts_what_it_leaves_out() {
    let mut registry = Registry::default();
    let counted = registry.counters("weir_counted_total", "Counted.", &["list"]);
    let said = registry.gauges("weir_said", "Said.", &["list"]);
    let names: Vec<_> = (0..MAX_SAMPLES + 3).map(|n| format!("{n:06}")).collect();
    let gather = || {
        registry.gather(|samples| {
            for name in &names {
                samples.gauge(said, [name], 1_u64);
            }
        })
    };
    for name in &names {
        counted.of([name]).inc();
    }
    // Those that have a place keep it.
    counted.of([&names[0]]).inc();
    assert_eq!(counted.get([&names[0]]), 2);
    let metrics = gather();
    for name in ["weir_counted_total", "weir_said"] {
        let samples = &of(&metrics, name).samples;
        assert_eq!(samples.len(), MAX_SAMPLES, "{name}");
        assert_eq!(samples[MAX_SAMPLES - 1].labels[0].1, names[MAX_SAMPLES - 1]);
    }
    let left_out = |metrics: &[Metric]| {
        let samples = of(metrics, "weir_metrics_left_out_total").samples.clone();
        let named = samples.into_iter().map(|sample| {
            let (_, metric) = sample.labels.into_iter().next().unwrap();
            (metric, sample.value)
        });
        named.collect::<BTreeMap<_, _>>()
    };
    let expected = [("weir_counted_total", 3), ("weir_said", 3)];
    let of_names = |expected: [(&str, u64); 2]| {
        expected
            .map(|(name, count)| (name.to_owned(), Value::Whole(count)))
            .into()
    };
    assert_eq!(left_out(&metrics), of_names(expected));
    let again = [("weir_counted_total", 3), ("weir_said", 6)];
    assert_eq!(left_out(&gather()), of_names(again));
    // Room again.
    counted.keep_only(|name| name == names[1]);
    counted.of([&names[MAX_SAMPLES]]).inc();
    assert_eq!(counted.get([&names[MAX_SAMPLES]]), 1);
    assert_eq!(of(&gather(), "weir_counted_total").samples.len(), 2);
}

#[test]
fn what_is_no_more_is_forgotten_and_begins_anew() {
    let mut registry = Registry::default();
    let lines = registry.counters("weir_lines_total", "Lines.", &["jail"]);
    let (old, kept) = (lines.of(["old"]), lines.of(["kept"]));
    old.inc();
    kept.inc();
    lines.keep_only(|jail| jail == "kept");
    // A thread that nobody waits for may count on.
    old.inc();
    let samples = of(&registry.gather(|_| ()), "weir_lines_total")
        .samples
        .clone();
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].value, Value::Whole(1));
    assert_eq!((lines.get(["old"]), lines.of(["old"]).get()), (0, 0));
}

#[test]
fn a_declaration_that_prometheus_would_not_take_is_refused() {
    type Declare = fn(&mut Registry);
    let wrong: [(&str, Declare); 7] = [
        ("no total", |r| _ = r.counters("weir_lines", "Lines.", &[])),
        ("a total", |r| _ = r.gauges("weir_bans_total", "Bans.", &[])),
        ("no prefix", |r| _ = r.gauges("bans", "Bans.", &[])),
        ("no name", |r| _ = r.gauges("weir_bans-now", "Bans.", &[])),
        ("a label", |r| _ = r.gauges("weir_b", "Bans.", &["__name"])),
        ("no sentence", |r| _ = r.gauges("weir_bans", "bans", &[])),
        ("twice", |r| {
            r.gauges("weir_bans", "Bans.", &[]);
            r.gauges("weir_bans", "Bans.", &["jail"]);
        }),
    ];
    for (what, declare) in wrong {
        let refused = std::panic::catch_unwind(|| declare(&mut Registry::default()));
        assert!(refused.is_err(), "{what}");
    }
}

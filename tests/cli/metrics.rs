//! Metrics as Prometheus and scripts read them.

use std::{collections::BTreeMap, fs};

use serde_json::Value;
use weir_daemon::metrics::Metrics;

use super::Host;

/// A family as the text has it: its kind, and its samples' values by labels.
type Family = (String, BTreeMap<Vec<(String, String)>, f64>);

/// Reads Prometheus' text format 0.0.4, and nothing that is not quite that.
fn families(text: &str) -> Vec<(String, Family)> {
    let mut families: Vec<(String, Family)> = Vec::new();
    assert!(text.ends_with('\n'), "the last line has an end");
    let mut helped = "";
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = help.split_once(' ').expect("a name and a sentence").0;
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a name and a kind");
            assert_eq!(name, helped, "help comes first");
            families.push((name.to_owned(), (kind.to_owned(), BTreeMap::new())));
            continue;
        }
        let (name, family) = families.last_mut().expect("a sample has a family");
        let rest = line.strip_prefix(name.as_str());
        let mut rest = rest.unwrap_or_else(|| panic!("{line} is not of {name}"));
        let mut labels = Vec::new();
        while let Some(label) = rest.strip_prefix(['{', ',']) {
            let (label, quoted) = label.split_once("=\"").expect("a label has a value");
            let (mut value, mut chars) = (String::new(), quoted.char_indices());
            let end = loop {
                match chars.next().expect("a value ends") {
                    (at, '"') => break at,
                    (_, '\\') => value.push(match chars.next().expect("an escape").1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        c => panic!("\\{c} in {line}"),
                    }),
                    (_, c) => value.push(c),
                }
            };
            labels.push((label.to_owned(), value));
            rest = &quoted[end + 1..];
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
        }
        let value = rest.strip_prefix(' ').expect("a value").parse().unwrap();
        labels.sort();
        assert!(family.1.insert(labels, value).is_none(), "{line} twice");
    }
    families
}

/// The families that `--json` prints.
fn from_json(metrics: &Value) -> Vec<(String, Family)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let families = metrics.as_array().unwrap().iter().map(|metric| {
        let samples = metric["samples"].as_array().unwrap().iter().map(|sample| {
            let labels = sample["labels"].as_object().unwrap().iter();
            let mut labels: Vec<_> = labels.map(|(k, v)| (k.clone(), text(v))).collect();
            labels.sort();
            (labels, sample["value"].as_f64().unwrap())
        });
        let family = (text(&metric["kind"]), samples.collect());
        (text(&metric["name"]), family)
    });
    families.collect()
}

fn names(families: &[(String, Family)]) -> Vec<&str> {
    families.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn every_declared_metric_is_in_the_status_and_in_the_text() {
    let mut host = Host::new();
    let dir = host.path("").display().to_string();
    let hostile = "a\"} 1 b=\"\\";
    fs::write(host.path(hostile), "").unwrap();
    fs::write(host.path("bad.txt"), "192.0.2.0/24\n").unwrap();
    host.configure(&format!(
        "[decoy]\nports = [\"1/tcp\"]\n[tarpit]\nports = [\"2/tcp\"]\n[geofence]\ndeny = [\"country:RU\"]\n\
         [list.bad]\nfile = \"{dir}bad.txt\"\n\
         [balance]\ninterface = \"lo\"\n[pool.web]\nvip = [\"192.0.2.80\"]\nports = [\"80/tcp\"]\n\
         reals = [{{ address = \"192.0.2.81\" }}]\n\
         [watch.idle]\ncommand = [\"/bin/sleep\", \"1000\"]\n\
         [sink.log]\nkind = \"file\"\npath = \"{dir}events.json\"\n\
         [jail.hostile]\nfilter = \"sshd\"\npaths = ['{dir}{hostile}']\n"
    ));
    host.start();
    let declared = Metrics::default();
    let declared: Vec<_> = declared.declared().map(|metric| metric.name).collect();
    let json = host.weir(&["metrics", "--json"]);
    assert_eq!(json.code, 0, "{}", json.err);
    assert_eq!(names(&from_json(&json.json())), declared);
    let status = host.status();
    assert_eq!(names(&from_json(&status["metrics"])), declared);
    let printed = host.weir(&["metrics"]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let text = families(&printed.out);
    assert_eq!(names(&text), declared);
    let kinds = |families: &[(String, Family)]| -> Vec<String> {
        families.iter().map(|(_, (kind, _))| kind.clone()).collect()
    };
    assert_eq!(kinds(&text), kinds(&from_json(&status["metrics"])));

    // Each has a value here, but for what needs a kernel, a ring, or a mishap.
    let without = |name: &&str| {
        let absent = [
            "weir_metrics_left_out_total",
            "weir_alerts",
            "weir_denied_packets_total",
            "weir_denied_bytes_total",
            "weir_interface_attached",
            "weir_table_memory_bytes",
            "weir_table_expiry_passes_total",
            "weir_table_growths_total",
            "weir_table_policy_scans_total",
            "weir_producer_bans_in_force",
            // Of pools that are proxied: tests/root_proxy.rs.
            "weir_pool_real_active_flows",
            "weir_pool_real_failed_connections_total",
            "weir_pool_service_refused_flows_total",
            // Of pools whose reals have a QUIC server ID: tests/root_balance.rs.
            "weir_pool_service_quic_packets_total",
        ];
        // Virtual addresses are held by root: tests/root_vips.rs, tests/root_vrrp.rs. Actions
        // are Fail2ban's: tests/fail2ban_actions.rs. Rules about programs, and tokens, need root.
        let elsewhere = [
            "weir_action_",
            "weir_app_",
            "weir_ring_",
            "weir_token_",
            "weir_vip_",
            "weir_vrrp_",
        ];
        !absent.contains(name) && !elsewhere.iter().any(|start| name.starts_with(start))
    };
    let empty = text.iter().filter(|(_, (_, samples))| samples.is_empty());
    let empty: Vec<_> = empty.map(|(name, _)| name.as_str()).collect();
    let empty: Vec<_> = empty.into_iter().filter(without).collect();
    assert_eq!(empty, [""; 0], "declared, and nobody says what they are");

    // A log's name that would end its quotes comes back as it was.
    let of_source = declared
        .iter()
        .position(|n| *n == "weir_source_lines_total");
    for families in [&text, &from_json(&status["metrics"])] {
        let (_, (_, samples)) = &families[of_source.unwrap()];
        let is_it = |labels: &Vec<(String, String)>| labels[0].1.ends_with(hostile);
        assert_eq!(
            samples.keys().filter(|l| is_it(l)).count(),
            1,
            "{samples:?}"
        );
    }
}

/// The value of the sample with these labels.
fn value(host: &Host, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let families = families(&host.weir(&["metrics"]).out);
    let (_, (_, samples)) = families.into_iter().find(|(n, _)| n == name).unwrap();
    let owned = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    samples.get(&owned.collect::<Vec<_>>()).copied()
}

#[test]
fn what_a_reload_removes_has_no_metrics_any_more() {
    let mut host = Host::new();
    let dir = host.path("").display().to_string();
    let sink = |name: &str, more: &str| {
        format!("[sink.{name}]\nkind = \"file\"\npath = \"{dir}{name}.json\"\n{more}")
    };
    let jail = format!("[jail.gone]\nfilter = \"sshd\"\npaths = [\"{dir}auth.log\"]\n");
    host.configure(&(sink("gone", "") + &sink("stays", "") + &jail));
    host.start();
    host.fail("203.0.113.7", 2);
    let lines = |host: &Host, jail: &str| value(host, "weir_jail_lines_total", &[("jail", jail)]);
    let source = format!("file:{dir}auth.log");
    let read = |host: &Host| value(host, "weir_source_lines_total", &[("source", &source)]);
    host.until("all is counted", |h| {
        let counts = [lines(h, "sshd"), lines(h, "gone"), read(h)];
        counts == [Some(2.0); 3]
    });
    assert_eq!(host.weir(&["ban", "203.0.113.9"]).code, 0);
    let delivered = |host: &Host, name: &str| {
        value(host, "weir_sink_delivered_events_total", &[("sink", name)])
    };
    for name in ["gone", "stays"] {
        host.until("both have the event", |h| {
            delivered(h, name).is_some_and(|count| count >= 1.0)
        });
    }
    let before = delivered(&host, "stays").unwrap();
    // Another queue, the same sink.
    host.configure(&sink("stays", "queue = 7\n"));
    assert_eq!(host.weir(&["reload"]).code, 0);
    assert_eq!(delivered(&host, "gone"), None);
    assert_eq!(
        value(&host, "weir_sink_queued_events", &[("sink", "gone")]),
        None
    );
    assert!(delivered(&host, "stays").unwrap() >= before);
    assert_eq!(
        (lines(&host, "sshd"), lines(&host, "gone")),
        (Some(2.0), None)
    );
    assert_eq!(read(&host), Some(2.0), "the other jail reads it still");
}

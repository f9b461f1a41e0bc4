use std::os::unix::fs::PermissionsExt;

use weir_option_probe::{
    result_file::{Conditions, Ends, Measurement, write_head, write_pair},
    verdict::Tally,
};
use weir_token::config::Scope;

use super::*;

const NOW: &str = "2026-11-27T08:00:00Z";
const MEASURED: &str = "2026-11-26T08:00:00Z";

/// `[token]` that signs to these, UDP likewise, with a file of measurements.
fn config(to: &[&str], conduits: &[Conduit]) -> TokenConfig {
    let to: Vec<Prefix> = to.iter().map(|text| text.parse().unwrap()).collect();
    TokenConfig {
        keys: "/etc/weir/token-keys".into(),
        sign_to: to.clone(),
        scope: Scope::Flow,
        daf_secret: None,
        sign_udp_to: to,
        interfaces: None,
        conduits: conduits.to_vec(),
        probe: Some(ProbeUse {
            result: "/result.jsonl".into(),
            site: None,
            max_age: std::time::Duration::from_secs(90 * 86_400),
            pass_percent: 90,
        }),
        forward: None,
        strip: None,
        cgroup: None,
        requirements: Vec::new(),
    }
}

/// What was measured from the host of these tests, or another one: option, carrier, and how
/// many of 20 packets arrived with it.
fn pair(from: &str, ends: [&str; 2], rows: &[(&str, Carrier, u16)]) -> PairResult {
    let tally = |passed| Tally {
        sent: 20,
        passed,
        stripped: 20 - passed,
        altered: 0,
    };
    let plain = Carrier::ALL.map(|carrier| Measurement {
        option: None,
        carrier,
        tally: tally(20),
    });
    let rows = rows.iter().map(|(option, carrier, passed)| Measurement {
        option: Some(option.parse().unwrap()),
        carrier: *carrier,
        tally: tally(*passed),
    });
    let [source, dest] = ends.map(|text| text.parse::<IpAddr>().unwrap());
    PairResult {
        from: from.to_owned(),
        to: format!("at-{}", ends[1]),
        is_v4: source.is_ipv4(),
        conditions: Some(Conditions {
            port: 443,
            tries: 20,
            ends: Some(Ends {
                source,
                dest,
                told: Some(false),
            }),
        }),
        measured: Some(MEASURED.parse().unwrap()),
        measurements: plain.into_iter().chain(rows).collect(),
    }
}

fn choose(config: &TokenConfig, pairs: &[PairResult]) -> Conduits {
    let file = ResultFile {
        pairs: pairs.to_vec(),
        ..ResultFile::default()
    };
    let own = ["192.0.2.1", "2001:db8:1::1"].map(|text| text.parse().unwrap());
    let probe = config.probe.as_ref().unwrap();
    Conduits::by_file(config, probe, Arc::new(file), &own, NOW.parse().unwrap())
}

/// Conduits by network, those of TCP and then those of UDP, and the problem.
fn told(chosen: &Conduits) -> (Vec<&'static str>, String) {
    let conduits = chosen.networks.iter();
    let names = conduits.map(|to| to.conduit.map_or("none", Conduit::name));
    (names.collect(), chosen.problem.clone().unwrap_or_default())
}

const BOTH: [Conduit; 2] = [Conduit::IpOption, Conduit::TcpOption];
const WEST: &str = "192.0.2.1";
const WEST6: &str = "2001:db8:1::1";

#[test]
fn a_network_takes_the_first_conduit_that_passed_to_its_sites() {
    use Carrier::{Tcp, Udp};
    let config = config(
        &["198.51.100.0/24", "2001:db8:2::/48", "203.0.113.0/24"],
        &BOTH,
    );
    let rows = |ip, tcp, udp| {
        [
            ("ip:30/20", Tcp, ip),
            ("tcp:254/20", Tcp, tcp),
            ("ip:30/20", Udp, udp),
        ]
    };
    let east = |ip, tcp, udp| pair("west", [WEST, "198.51.100.1"], &rows(ip, tcp, udp));
    let usual = "ip-option";
    let chosen = choose(&config, &[east(20, 20, 20)]);
    assert_eq!(told(&chosen), (vec![usual; 6], String::new()));
    let measured = chosen.networks[0].measured.as_ref().unwrap();
    assert_eq!(measured.at, Some(MEASURED.parse().unwrap()));
    assert_eq!(measured.sites, ["at-198.51.100.1"]);
    assert_eq!(chosen.networks[1].measured, None);
    // The other one is taken where the first does not pass, or half of the time; UDP has one.
    for passed in [0, 10, 17] {
        let chosen = choose(&config, &[east(passed, 20, 20)]);
        assert_eq!(told(&chosen).0[..2], ["tcp-option", usual]);
        assert_eq!(told(&chosen).1, "", "{passed}");
    }
    assert_eq!(told(&choose(&config, &[east(18, 20, 20)])).0[0], usual);
    let (names, problem) = told(&choose(&config, &[east(0, 20, 10)]));
    assert_eq!(names, ["tcp-option", usual, usual, "none", usual, usual]);
    assert_eq!(
        problem,
        "probe_result /result.jsonl: to 198.51.100.0/24 no token is sent by UDP: none of ip:30/20 was measured and passed to all of at-198.51.100.1"
    );
    let (names, problem) = told(&choose(&config, &[east(0, 0, 20)]));
    assert_eq!(names[0], "none");
    assert!(
        problem.contains("no token is sent by TCP: none of ip:30/20, tcp:254/20 was measured"),
        "{problem}"
    );
    // An option as long as a token counts, not a longer one for which a path has no room.
    let longer = [
        ("ip:30/20", Tcp, 20),
        ("ip:30/36", Tcp, 0),
        ("ip:30/20", Udp, 20),
    ];
    let chosen = choose(&config, &[pair("west", [WEST, "198.51.100.1"], &longer)]);
    assert_eq!(told(&chosen).0[0], usual);
    // IPv6 by its own option; what another direction or protocol shows is nothing here.
    let rows6 = [
        ("dst:0x1e/20", Tcp, 0),
        ("tcp:254/20", Tcp, 20),
        ("dst:0x1e/20", Udp, 20),
    ];
    let pairs = [
        pair("west", [WEST6, "2001:db8:2::1"], &rows6),
        pair("east", ["198.51.100.1", WEST], &rows(0, 0, 0)),
        pair("north", ["203.0.113.9", "198.51.100.1"], &rows(0, 0, 0)),
    ];
    assert_eq!(
        told(&choose(&config, &pairs)),
        (
            vec![usual, "tcp-option", usual, usual, usual, usual],
            String::new()
        )
    );
    // All sites of a network have to get it, and each is one of the smallest network.
    let two = [
        east(20, 20, 20),
        pair("west", [WEST, "198.51.100.2"], &rows(0, 20, 20)),
    ];
    assert_eq!(told(&choose(&config, &two)).0[0], "tcp-option");
    let inner = super::tests::config(&["198.51.100.0/24", "198.51.100.2/32"], &BOTH);
    let (names, problem) = told(&choose(&inner, &two));
    assert_eq!(
        (names[..2].to_vec(), problem),
        (vec![usual, "tcp-option"], String::new())
    );
    let kernel = choose(&inner, &two).kernel(false);
    assert_eq!(
        kernel
            .iter()
            .map(|(_, conduit)| *conduit)
            .collect::<Vec<_>>(),
        [kernel::Conduit::IpOption, kernel::Conduit::TcpOption]
    );
}

#[test]
fn what_a_result_does_not_say_is_told() {
    use Carrier::{Icmp, Tcp, Udp};
    let config = config(&["198.51.100.0/24"], &BOTH);
    let ends = [WEST, "198.51.100.1"];
    let whole = [
        ("ip:30/20", Tcp, 0),
        ("tcp:254/20", Tcp, 20),
        ("ip:30/20", Udp, 20),
    ];
    let good = pair("west", ends, &whole);
    let usual = vec!["ip-option", "ip-option"];
    let is_told = |pairs: &[PairResult], wanted: &str| {
        let (names, problem) = told(&choose(&config, pairs));
        assert!(problem.contains(wanted), "{problem}");
        names
    };
    // Of other options, by another protocol, or while nothing arrived.
    let other = pair("west", ends, &[("ip:rr", Tcp, 20), ("ip:30/20", Icmp, 0)]);
    let measure = "measure with --option ip:30/20 --option tcp:254/20";
    assert_eq!(is_told(&[other], measure), usual);
    let mut away = good.clone();
    away.measurements.iter_mut().for_each(|m| {
        m.tally = Tally {
            sent: 20,
            ..Tally::default()
        };
    });
    assert_eq!(is_told(&[away], measure), usual);
    // Of one of two conduits, which fails: the other one has not passed.
    let one = pair("west", ends, &[("ip:30/20", Tcp, 0), ("ip:30/20", Udp, 20)]);
    assert_eq!(
        is_told(&[one], "no token is sent by TCP"),
        ["none", "ip-option"]
    );
    // Of other sites.
    let foreign = pair("paris", ["203.0.113.9", "198.51.100.1"], &whole);
    let names = is_told(
        std::slice::from_ref(&foreign),
        "no site of it has sent from an address of this host: name this one in probe_site; its sites: at-198.51.100.1, paris",
    );
    assert_eq!(names, usual);
    let far = pair("west", [WEST, "203.0.113.1"], &whole);
    assert_eq!(
        is_told(
            &[far],
            "no site to which west has sent is in sign_to or sign_udp_to"
        ),
        usual
    );
    is_told(
        &[
            good.clone(),
            PairResult {
                from: "twin".into(),
                ..good.clone()
            },
        ],
        "several sites of it have sent from addresses of this host: name this one in probe_site; allowed: twin, west",
    );
    assert_eq!(is_told(&[], "no site of it has sent"), usual);
    let mut named = config.clone();
    named.probe.as_mut().unwrap().site = Some("paris".into());
    let (names, problem) = told(&choose(&named, &[foreign]));
    assert_eq!((names[0], problem.as_str()), ("tcp-option", ""));
    let (_, problem) = told(&choose(&named, std::slice::from_ref(&good)));
    assert!(
        problem.contains(
            "it has no site paris, which probe_site names; its sites: at-198.51.100.1, west"
        ),
        "{problem}"
    );
    // Old, of a clock that is ahead, and of an earlier weir: used, and told.
    let at = |time: Option<&str>| PairResult {
        measured: time.map(|time| time.parse().unwrap()),
        ..good.clone()
    };
    for (time, wanted) in [
        (Some("2026-08-01T00:00:00Z"), "118 days ago"),
        (Some("2027-08-01T00:00:00Z"), "which is yet to come"),
        (None, "without a time: measure again"),
    ] {
        assert_eq!(is_told(&[at(time)], wanted), ["tcp-option", "ip-option"]);
    }
    let bare = PairResult {
        conditions: None,
        ..good
    };
    assert_eq!(is_told(&[bare], "without addresses: measure again"), usual);
}

/// A hostile site tells the address of another, or of one in a network that it is not in, and
/// has what was sent there stripped.
#[test]
fn an_address_that_only_its_host_has_told_decides_nothing() {
    use Carrier::{Tcp, Udp};
    let config = config(&["198.51.100.0/24", "203.0.113.0/24"], &BOTH);
    let site = |to: &str, passed, told| {
        let rows = [("ip:30/20", Tcp, passed), ("ip:30/20", Udp, passed)];
        let mut pair = pair("west", [WEST, to], &rows);
        let ends = pair.conditions.as_mut().unwrap().ends.as_mut().unwrap();
        ends.told = told;
        pair
    };
    let good = site("198.51.100.1", 20, Some(false));
    for address in ["198.51.100.7", "203.0.113.7"] {
        let evil = site(address, 0, Some(true));
        let (names, problem) = told(&choose(&config, &[good.clone(), evil]));
        assert_eq!(names, ["ip-option"; 4]);
        let wanted =
            format!("only their own host has told (at-{address} {address}): measure again");
        assert!(problem.contains(&wanted), "{problem}");
    }
    // Where it is in no network it is no concern of anybody's.
    let elsewhere = site("192.0.2.99", 0, Some(true));
    let (names, problem) = told(&choose(&config, &[good.clone(), elsewhere]));
    assert_eq!((names, problem), (vec!["ip-option"; 4], String::new()));
    // A file that does not say who named addresses is used as before, and told.
    let unsaid = site("198.51.100.7", 0, None);
    let (names, problem) = told(&choose(&config, &[good, unsaid]));
    assert_eq!(names, ["none", "ip-option", "none", "ip-option"]);
    assert!(
        problem.contains("without who named the addresses of sites"),
        "{problem}"
    );
}

/// A host that starts before its network has no address that a site sent from; and a daemon
/// that runs for long says when what it goes by has become too old.
#[test]
fn conduits_are_chosen_again_when_addresses_come_and_measurements_age() {
    let config = config(&["198.51.100.0/24"], &BOTH);
    let rows = [
        ("ip:30/20", Carrier::Tcp, 0),
        ("tcp:254/20", Carrier::Tcp, 20),
    ];
    let file = ResultFile {
        pairs: vec![pair("west", [WEST, "198.51.100.1"], &rows)],
        ..ResultFile::default()
    };
    let now: Timestamp = NOW.parse().unwrap();
    let probe = config.probe.as_ref().unwrap();
    let at_start = Conduits::by_file(&config, probe, Arc::new(file), &[], now);
    let (names, problem) = told(&at_start);
    assert_eq!(names[0], "ip-option");
    assert!(problem.contains("no site of it has sent"), "{problem}");
    assert!(at_start.again(&config, &[], now).is_none());
    let own = [WEST.parse().unwrap()];
    let later = at_start.again(&config, &own, now).unwrap();
    let (names, problem) = told(&later);
    assert_eq!(names[0], "tcp-option", "{problem}");
    assert!(!problem.contains("days ago"), "{problem}");
    assert!(later.again(&config, &own, now).is_none());
    // The address goes, and comes back.
    let without = later.again(&config, &[], now).unwrap();
    let (names, problem) = told(&without);
    assert_eq!(names[0], "tcp-option");
    assert!(problem.ends_with("; tokens go as before"), "{problem}");
    let back = without.again(&config, &own, now).unwrap();
    assert_eq!(told(&back), told(&later));
    let old = now + jiff::SignedDuration::from_hours(24 * 400);
    let (names, problem) = told(&later.again(&config, &own, old).unwrap());
    assert_eq!(names[0], "tcp-option");
    assert!(problem.contains("days ago"), "{problem}");
}

/// Nobody knows of a conduit at a site where it was not measured.
#[test]
fn a_conduit_passes_where_it_was_measured_at_all_sites() {
    let config = config(&["198.51.100.0/24"], &BOTH);
    let (ip, tcp) = (
        ("ip:30/20", Carrier::Tcp, 20),
        ("tcp:254/20", Carrier::Tcp, 20),
    );
    let one = pair("west", [WEST, "198.51.100.1"], &[ip, tcp]);
    let other = pair("west", [WEST, "198.51.100.2"], &[tcp]);
    assert_eq!(
        told(&choose(&config, &[one.clone(), other])).0[0],
        "tcp-option"
    );
    // One that was down says nothing about any.
    let mut down = pair("west", [WEST, "198.51.100.3"], &[ip, tcp]);
    for measurement in &mut down.measurements {
        (measurement.tally.passed, measurement.tally.stripped) = (0, 0);
    }
    let (names, problem) = told(&choose(&config, &[one, down.clone()]));
    assert_eq!(names[0], "ip-option", "{problem}");
    let (names, problem) = told(&choose(&config, &[down]));
    assert_eq!(names[0], "ip-option");
    assert!(problem.contains("it has no measurement of"), "{problem}");
}

#[test]
fn a_file_that_is_none_is_refused_with_its_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("result.jsonl");
    let mut config = config(&["198.51.100.0/24"], &BOTH);
    config.probe.as_mut().unwrap().result = path.clone();
    let own = [WEST.parse().unwrap()];
    let choose = || Conduits::choose(&config, &own, NOW.parse().unwrap());
    let refused = |wanted: &str| {
        let error = choose().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        // Nothing of it steers a terminal.
        assert!(!error.contains(char::is_control), "{error:?}");
        error
    };
    refused("probe_result: cannot read ");
    let rows = [
        ("ip:30/20", Carrier::Tcp, 0),
        ("tcp:254/20", Carrier::Tcp, 20),
    ];
    let mut whole = Vec::new();
    write_head(&mut whole).unwrap();
    write_pair(&mut whole, &pair("west", [WEST, "198.51.100.1"], &rows)).unwrap();
    fs::write(&path, &whole).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    refused("its mode is 0664; allowed: root's, and writable for nobody else");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(told(&choose().unwrap()).0[0], "tcp-option");
    // Cut: what is whole counts.
    let head = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for (cut, name) in [
        (whole.len() - 1, "ip-option"),
        (head + 1, "ip-option"),
        (3, "ip-option"),
    ] {
        fs::write(&path, &whole[..cut]).unwrap();
        let (names, problem) = told(&choose().unwrap());
        assert_eq!(names[0], name);
        assert!(problem.contains("its last line is cut"), "{problem}");
    }
    fs::write(&path, "\u{1b}[2J").unwrap();
    refused("line 1: it is no file of weir options probe");
    let text = String::from_utf8(whole).unwrap();
    fs::write(
        &path,
        text.replace("\"from\"", "\"\\u001b]0;x\\u0007\\u202e\""),
    )
    .unwrap();
    refused("line 2: unknown field");
    fs::write(
        &path,
        text.replace("\"from\"", &format!("\"{}\"", "y".repeat(9000))),
    )
    .unwrap();
    assert!(refused("line 2: ").len() < 600);
    fs::write(
        &path,
        text.replace("\"dest\":\"198.51.100.1\"", "\"dest\":\"2001:db8::1\""),
    )
    .unwrap();
    refused("is of another family");
    fs::File::create(&path)
        .unwrap()
        .set_len(MAX_BYTES + 1)
        .unwrap();
    refused("it has 67108865 bytes; allowed: up to 67,108,864");
    fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    refused("it is no file; allowed: a file");
}

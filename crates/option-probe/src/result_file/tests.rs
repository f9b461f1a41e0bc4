use super::*;

const CONDITIONS: Conditions = Conditions {
    port: 443,
    tries: 3,
    ends: Some(Ends {
        source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        dest: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)),
        told: Some(false),
    }),
};

fn pair(to: &str) -> PairResult {
    let measurement = |option: Option<&str>, passed| Measurement {
        option: option.map(|text| text.parse().unwrap()),
        carrier: Carrier::Icmp,
        tally: Tally {
            sent: 3,
            passed,
            ..Tally::default()
        },
    };
    PairResult {
        from: "west".into(),
        to: to.into(),
        is_v4: true,
        conditions: Some(CONDITIONS),
        measured: Some("2026-11-26T08:00:00Z".parse().unwrap()),
        measurements: vec![
            measurement(None, 3),
            measurement(Some("ip:rr"), 0),
            measurement(Some("ip:94=aabb"), 3),
        ],
    }
}

fn file(pairs: &[PairResult]) -> Vec<u8> {
    let mut out = Vec::new();
    write_head(&mut out).unwrap();
    for pair in pairs {
        write_pair(&mut out, pair).unwrap();
    }
    out
}

#[test]
fn what_is_written_is_read() {
    let pairs = [pair("east"), pair("north")];
    let bytes = file(&pairs);
    let read = ResultFile::read(&bytes[..]).unwrap();
    assert_eq!(read.pairs, pairs);
    assert_eq!((read.whole, read.is_cut), (bytes.len() as u64, false));
    let route = "ip:rr".parse().unwrap();
    assert_eq!(
        pairs[0].verdict(&route, Carrier::Icmp),
        Some(Verdict::Dropped)
    );
    assert_eq!(pairs[0].verdict(&route, Carrier::Udp), None);
    let wanted = [(Some(route), Carrier::Icmp)];
    assert!(
        read.find("west", "east", true, CONDITIONS, &wanted)
            .is_some()
    );
    assert!(
        read.find("west", "east", false, CONDITIONS, &wanted)
            .is_none()
    );
    let more = [(None, Carrier::Udp)];
    assert!(read.find("west", "east", true, CONDITIONS, &more).is_none());
}

#[test]
fn a_file_that_is_cut_anywhere_keeps_its_whole_lines() {
    let pairs = [pair("east"), pair("north")];
    let bytes = file(&pairs);
    let ends: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').collect();
    for cut in 0..=bytes.len() {
        let read = ResultFile::read(&bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end < cut).count();
        assert_eq!(read.pairs.len(), whole.saturating_sub(1), "{cut}");
        assert_eq!(read.is_cut, read.whole != cut as u64);
    }
    // A pair that is measured again counts as it was measured last.
    let again = [pair("east"), pair("north"), pair("east")];
    assert_eq!(ResultFile::read(&file(&again)[..]).unwrap().pairs.len(), 2);
}

#[test]
fn a_foreign_file_without_the_end_of_a_line_is_no_cut_one() {
    for foreign in [
        "n",
        "notes of mine",
        "{\"weir_options_probe\":2}",
        "{\"a\":1}",
    ] {
        let error = ResultFile::read(foreign.as_bytes()).unwrap_err();
        assert!(matches!(error, ResultFileError::Head), "{foreign}: {error}");
    }
    let head = ResultFile::read(&b"{\"weir_opt"[..]).unwrap();
    assert_eq!((head.whole, head.is_cut), (0, true));
}

#[test]
fn other_ports_and_tries_are_other_measurements() {
    let mut file = ResultFile::default();
    file.add(pair("east"));
    let wanted = [(Some("ip:rr".parse().unwrap()), Carrier::Icmp)];
    let found = |file: &ResultFile, port, tries| {
        let conditions = Conditions {
            port,
            tries,
            ..CONDITIONS
        };
        file.find("west", "east", true, conditions, &wanted)
            .is_some()
    };
    assert!(found(&file, 443, 3));
    assert!(!found(&file, 80, 3));
    assert!(!found(&file, 443, 4));
    // Of other conditions nothing stays, so that a table is of one measurement.
    let mut other = pair("east");
    other.conditions = Some(Conditions {
        port: 80,
        ..CONDITIONS
    });
    other.measurements.truncate(2);
    file.add(other.clone());
    assert_eq!(file.pairs, [other]);
    // A line of an earlier weir is read, and is measured again.
    let line = r#"{"from":"west","to":"east","family":4,"measurements":[]}"#;
    let old = format!("{}{line}\n", head_line().unwrap());
    let old = ResultFile::read(old.as_bytes()).unwrap();
    assert_eq!(old.pairs[0].conditions, None);
    assert!(old.find("west", "east", true, CONDITIONS, &[]).is_none());
}

#[test]
fn measurements_of_other_options_stay() {
    let with = |text: &str, plain, passed| {
        let mut pair = pair("east");
        pair.measurements.truncate(2);
        pair.measurements[0].tally.passed = plain;
        pair.measurements[1].option = Some(text.parse().unwrap());
        pair.measurements[1].tally.passed = passed;
        pair
    };
    let verdict = |file: &ResultFile, text: &str| {
        file.pairs[0].verdict(&text.parse().unwrap(), Carrier::Icmp)
    };
    let mut file = ResultFile::default();
    file.add(with("ip:rr", 3, 0));
    file.add(with("ip:nop", 3, 3));
    assert_eq!(file.pairs[0].measurements.len(), 3);
    assert_eq!(verdict(&file, "ip:rr"), Some(Verdict::Dropped));
    assert_eq!(verdict(&file, "ip:nop"), Some(Verdict::Pass));
    // Where there was no path, nothing was dropped, although there is one now.
    file.add(with("ip:ts", 0, 0));
    assert_eq!(verdict(&file, "ip:rr"), None);
    assert_eq!(verdict(&file, "ip:ts"), Some(Verdict::NoPath));
    file.add(with("ip:rr", 3, 0));
    assert_eq!(verdict(&file, "ip:ts"), None);
    assert_eq!(verdict(&file, "ip:nop"), Some(Verdict::Pass));
}

#[test]
fn mistakes_are_named_by_line() {
    let good = String::from_utf8(file(&[pair("east")])).unwrap();
    for (from, to, said) in [
        (
            "\"weir_options_probe\":1",
            "\"weir_options_probe\":2",
            "line 1: it is no file",
        ),
        (
            "\"family\":4",
            "\"family\":5",
            "line 2: family is 5; allowed: 4, 6",
        ),
        (
            "\"to\":\"east\"",
            "\"to\":\"ea st\"",
            "line 2: \"ea st\" is no name",
        ),
        (
            "ip:rr",
            "ip:no",
            "line 2: option \"ip:no\": ip has no option",
        ),
        (
            "\"icmp\"",
            "\"ICMP\"",
            "line 2: carrier \"ICMP\": allowed: icmp, udp, tcp",
        ),
        (
            "\"passed\":3",
            "\"passed\":4",
            "line 2: 4 packets arrived of 3",
        ),
        (
            "ip:exp-94=aabb",
            "ip:rr",
            "line 2: ip:rr on icmp is there twice",
        ),
        (
            "\"sent\":3",
            "\"sent\":3,\"more\":1",
            "unknown field `more`",
        ),
        ("\"sent\":3", "\"sent\":70000", "line 2: "),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        let error = ResultFile::read(bad.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let long = format!("{good}{}", " ".repeat(1 << 20));
    assert!(ResultFile::read(long.as_bytes()).is_err());
}

#[test]
fn a_file_has_so_many_sites_and_measurements() {
    let line = |from: &str, to: &str, rows: usize| {
        let row = |at: usize| {
            format!(
                r#"{{"option":"tcp:{}={:02x}","carrier":"tcp","sent":1,"passed":1,"stripped":0,"altered":0}}"#,
                100 + at / 200,
                at % 200
            )
        };
        let rows: Vec<_> = (0..rows).map(row).collect();
        let rows = rows.join(",");
        format!(r#"{{"from":"{from}","to":"{to}","family":4,"measurements":[{rows}]}}"#) + "\n"
    };
    let file = |lines: Vec<String>| {
        let text = format!("{}{}", head_line().unwrap(), lines.concat());
        ResultFile::read(text.as_bytes())
    };
    let sites = |count: usize| {
        (1..count)
            .map(|n| line(&format!("s{n}"), "hub", 1))
            .collect()
    };
    assert_eq!(file(sites(MAX_SITES)).unwrap().sites().len(), MAX_SITES);
    let error = file(sites(MAX_SITES + 1)).unwrap_err().to_string();
    assert_eq!(error, "line 65: more than 64 sites");
    // The head is a line, too.
    let again = |count: usize| file(vec![line("a", "b", 1); count]);
    assert_eq!(again(MAX_LINES - 1).unwrap().pairs.len(), 1);
    let error = again(MAX_LINES).unwrap_err().to_string();
    assert_eq!(error, "line 32769: more than 32768 lines");
    let full = |pair: usize| {
        let (from, to) = (format!("a{}", pair / 32), format!("b{}", pair % 32));
        line(&from, &to, MAX_ROWS)
    };
    let mut lines: Vec<_> = (0..MAX_MEASUREMENTS / MAX_ROWS).map(full).collect();
    // A later line stands for an earlier one of the same pair.
    lines.push(full(0));
    assert_eq!(file(lines.clone()).unwrap().pairs.len(), 1024);
    lines.push(line("a0", "a1", 1));
    let error = file(lines).unwrap_err().to_string();
    assert_eq!(error, "line 1027: more than 1048576 measurements");
}

#[test]
fn a_file_is_one_writers() {
    let path = std::env::temp_dir().join(format!("weir-results-{}", std::process::id()));
    let open = || {
        let mut options = File::options();
        options.write(true).create(true).truncate(false);
        options.open(&path).unwrap()
    };
    let first = LockedFile::lock(open()).unwrap().unwrap();
    assert!(LockedFile::lock(open()).unwrap().is_none());
    drop(first);
    assert!(LockedFile::lock(open()).unwrap().is_some());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_result_has_the_addresses_and_the_time_of_its_oldest_measurement() {
    let at = |time: Option<&str>| time.map(|time| time.parse::<Timestamp>().unwrap());
    let mut file = ResultFile::default();
    file.add(pair("east"));
    let mut fresh = pair("east");
    fresh.measured = at(Some("2026-11-27T08:00:00Z"));
    fresh.measurements.truncate(2);
    file.add(fresh.clone());
    // One of the earlier measurements has stayed.
    assert_eq!(file.pairs[0].measurements.len(), 3);
    assert_eq!(file.pairs[0].measured, pair("east").measured);
    // To another address it is another measurement.
    let conditions = fresh.conditions.as_mut().unwrap();
    conditions.ends.as_mut().unwrap().dest = "198.51.100.2".parse().unwrap();
    file.add(fresh.clone());
    assert_eq!(file.pairs, [fresh]);
    let text = String::from_utf8(super::tests::file(&file.pairs)).unwrap();
    let other = text.replace("198.51.100.2", "2001:db8::2");
    let error = ResultFile::read(other.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "line 2: 2001:db8::2 is of another family than 4");
}

/// A weir that did not write yet who had named an address.
#[test]
fn an_earlier_file_is_read_and_measured_again() {
    let now = String::from_utf8(file(&[pair("east")])).unwrap();
    let earlier = now.replace(",\"told\":false", "");
    assert_ne!(now, earlier);
    let read = ResultFile::read(earlier.as_bytes()).unwrap();
    let ends = read.pairs[0].conditions.unwrap().ends.unwrap();
    assert_eq!(ends.told, None);
    let wanted = [(None, Carrier::Icmp)];
    assert!(
        read.find("west", "east", true, CONDITIONS, &wanted)
            .is_none()
    );
}

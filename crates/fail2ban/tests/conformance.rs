//! Fail2ban's own checks of its filters, where its tree lies beside the checkout: one
//! line after the other through the filter they belong to, and what it must find.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use common::Disk;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;
use weir_fail2ban::{
    date::Clock,
    load_filter,
    matching::{Failure, Filter, LogLine},
};

/// Of what is there, so much must be right.
const FLOOR: f64 = 0.99;

const ZONE: &str = "CET-1CEST-2,M3.5.0,M10.5.0";
const NOW: i64 = 1_124_013_600;

/// The first difference between what is expected and what was found.
fn difference(expected: &Value, found: Option<&Failure>) -> Option<String> {
    let Some(found) = found else {
        return (expected["match"] == Value::Bool(true)).then(|| "no failure found".to_owned());
    };
    if expected["match"] == Value::Bool(false) {
        return Some(format!("found {found:?}"));
    }
    let address = |text: &str| match text.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => text.to_owned(),
    };
    let fields = expected.as_object().expect("it is an object");
    for (name, value) in fields {
        let got = match &**name {
            "match" | "time" => continue,
            "time_epoch" => {
                let seconds = found.time.map(|time| time.as_nanosecond() as f64 / 1e9);
                let expected = value.as_f64();
                if seconds
                    .zip(expected)
                    .is_some_and(|(a, b)| (a - b).abs() < 1e-6)
                {
                    continue;
                }
                format!("{seconds:?}")
            }
            "host" if value.as_str().map(address) == Some(address(&found.id)) => continue,
            "host" => found.id.clone(),
            "users" => {
                let mut wanted: Vec<_> = (value.as_array().into_iter().flatten())
                    .filter_map(Value::as_str)
                    .collect();
                wanted.sort_unstable();
                if wanted == found.users {
                    continue;
                }
                format!("{:?}", found.users)
            }
            "attempts" if value.as_u64() == Some(u64::from(found.attempts)) => continue,
            "attempts" => found.attempts.to_string(),
            name => {
                let got = found.value(name).map(address);
                if got == value.as_str().map(address) {
                    continue;
                }
                format!("{got:?}")
            }
        };
        return Some(format!("{name} is {value}, not {got}"));
    }
    None
}

/// The cases beside the checkout, and the tree they are of.
fn cases() -> Option<(PathBuf, Vec<Value>)> {
    let tree = common::upstream()?;
    let file = tree.parent()?.join("cases.jsonl");
    let Ok(text) = fs::read_to_string(&file) else {
        eprintln!("skipped: fail2ban cases: there is no {}", file.display());
        return None;
    };
    let cases = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("it is JSON"));
    Some((tree, cases.collect()))
}

#[test]
fn filters_find_what_fail2bans_tests_expect() {
    let Some((tree, cases)) = cases() else { return };
    let zone = TimeZone::posix(ZONE).unwrap();
    let clock = Clock {
        now: Timestamp::from_second(NOW).unwrap(),
        zone: &zone,
    };
    let mut filters = BTreeMap::new();
    let mut wrong: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for case in &cases {
        let text = |key: &str| case[key].as_str().expect("it is a text");
        let (name, instance) = (text("filter"), text("instance"));
        *counts.entry(name).or_default() += 1;
        let filter = filters.entry((name, instance)).or_insert_with(|| {
            let root = Path::new(text("conf")).parent().and_then(Path::parent);
            let options: Vec<_> = (case["options"].as_object().into_iter().flatten())
                .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
                .collect();
            let root = tree.join(root.expect("it is in a filter.d"));
            let source = load_filter(&Disk, &root, name, &options).map_err(|e| e.to_string())?;
            let filter = Filter::new(&source).map_err(|e| e.to_string())?;
            let state = filter.state();
            Ok::<_, String>((filter, state))
        });
        let difference = match filter {
            Err(why) => Some(why.clone()),
            Ok((filter, state)) => {
                let lines = case["lines"].as_array().expect("it has lines").iter();
                let mut found = None;
                for line in lines {
                    let line = LogLine {
                        text: line.as_str().unwrap(),
                        time: (case["journal"] == Value::Bool(true)).then_some(clock.now),
                    };
                    found = filter.read(state, line, clock).ok();
                }
                difference(&case["expected"], found.as_ref())
            }
        };
        if let Some(difference) = difference {
            let case = format!("{}: {difference}", text("id"));
            wrong.entry(name).or_default().push(case);
        }
    }
    let failed: usize = wrong.values().map(Vec::len).sum();
    let right = 1.0 - failed as f64 / cases.len() as f64;
    println!(
        "{} of {} cases, {} of {} filters wholly",
        cases.len() - failed,
        cases.len(),
        counts.len() - wrong.len(),
        counts.len()
    );
    for (name, wrong) in &wrong {
        println!("{name}: {} of {} wrong", wrong.len(), counts[name]);
        for case in wrong {
            println!("    {case}");
        }
    }
    assert!(right >= FLOOR, "{:.2} % are right", right * 100.0);
}

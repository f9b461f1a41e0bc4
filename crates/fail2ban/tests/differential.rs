//! Fail2ban's own reader and ours on the same files: the package's configuration and, where
//! it is there, the one of Fail2ban's repository. Whatever Fail2ban would send to its
//! server for a filter, we read, too, in the same order.

mod common;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

use common::{Disk, filters, installed, upstream};
use weir_fail2ban::{FilterSource, UseDns, load_filter};

/// Prints what Fail2ban's reader makes of filters, one JSON object a line of input:
/// [directory, name, options].
const READER: &str = r#"
import json, sys, logging
logging.disable(logging.CRITICAL)
from fail2ban.client.filterreader import FilterReader
for line in sys.stdin:
    base, name, options = json.loads(line)
    f = FilterReader(name, "jail", options, basedir=base)
    out = {"failregex": [], "ignoreregex": [], "journalmatch": []}
    try:
        f.read()
        f.getOptions({})
        for command in f.convert():
            what, value = command[2], command[3:]
            if what.startswith("add"):
                what = what[3:]
                if what == "journalmatch":
                    out[what].append(value)
                else:
                    out[what] += value[0] if isinstance(value[0], list) else value
            else:
                out[what] = str(value[0])
    except Exception as e:
        out = {"error": str(e)}
    print(json.dumps(out))
"#;

type Options = Vec<(String, String)>;

fn ours(source: &FilterSource) -> serde_json::Value {
    let texts = |patterns: &[weir_fail2ban::Pattern]| {
        let texts: Vec<_> = patterns.iter().map(|p| p.text.clone()).collect();
        serde_json::Value::from(texts)
    };
    // One call by line of journalmatch there, one set by `+` here.
    let sets: Vec<Vec<String>> = source.journalmatch.clone();
    let mut all = serde_json::json!({
        "failregex": texts(&source.failregex),
        "ignoreregex": texts(&source.ignoreregex),
        "journalmatch": sets,
    });
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            all[key] = value.into();
        }
    };
    put(
        "prefregex",
        source.prefregex.as_ref().map(|p| p.text.clone()),
    );
    put(
        "datepattern",
        source.datepattern.as_ref().map(|p| p.text.clone()),
    );
    put(
        "maxlines",
        (source.maxlines > 1).then(|| source.maxlines.to_string()),
    );
    put(
        "usedns",
        source.usedns.map(|use_dns| {
            let word = match use_dns {
                UseDns::Yes => "yes",
                UseDns::Warn => "warn",
                UseDns::No => "no",
                UseDns::Raw => "raw",
            };
            word.to_owned()
        }),
    );
    all
}

/// Fail2ban's answer in the form of [`ours`].
fn normal(mut theirs: serde_json::Value) -> serde_json::Value {
    let mut sets = Vec::new();
    for call in theirs["journalmatch"].as_array().unwrap() {
        let words: Vec<&str> = call
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_str().unwrap())
            .collect();
        let parts = words.split(|word| *word == "+").map(<[&str]>::to_vec);
        sets.extend(parts.filter(|set| !set.is_empty()));
    }
    theirs["journalmatch"] = serde_json::json!(sets);
    for key in ["prefregex", "datepattern", "usedns", "maxlines"] {
        if theirs[key] == "" || (key == "maxlines" && theirs[key] == "1") || theirs[key].is_null() {
            theirs.as_object_mut().unwrap().remove(key);
        }
    }
    theirs
}

/// What the package's own reader says; `None` if it is not installed.
fn theirs(cases: &[(&Path, &str, Options)]) -> Option<Vec<serde_json::Value>> {
    let probe = Command::new("/usr/bin/python3")
        .args(["-c", "import fail2ban.client.filterreader"])
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        eprintln!("skipped: fail2ban reader: python3 has no fail2ban");
        return None;
    }
    let lines: Vec<String> = cases
        .iter()
        .map(|(dir, name, options)| {
            let options: BTreeMap<_, _> = options.iter().cloned().collect();
            serde_json::json!([dir, name, options]).to_string()
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("cases");
    std::fs::write(&input, lines.join("\n")).unwrap();
    let out = Command::new("/usr/bin/python3")
        .args(["-c", READER])
        .stdin(std::fs::File::open(input).unwrap())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).unwrap();
    Some(
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

/// Every filter of a directory, with each of its modes and kinds of logs.
fn compare(dir: &Path, names: &[String], least: usize) {
    let mut cases = Vec::new();
    for name in names {
        cases.push((dir, name.as_str(), Vec::new()));
        for (key, values) in [
            (
                "mode",
                &[
                    "normal",
                    "ddos",
                    "extra",
                    "aggressive",
                    "auth",
                    "errors",
                    "rbl",
                    "more",
                    "fallback",
                ][..],
            ),
            ("logtype", &["file", "journal", "short", "rfc5424"][..]),
        ] {
            for value in values {
                cases.push((dir, name, vec![(key.to_owned(), (*value).to_owned())]));
            }
        }
    }
    let Some(theirs) = theirs(&cases) else { return };
    assert_eq!(theirs.len(), cases.len());
    let (mut equal, mut regexes) = (0, 0);
    for ((dir, name, options), theirs) in cases.iter().zip(theirs) {
        let source = load_filter(&Disk, dir, name, options);
        if let Some(error) = theirs.get("error") {
            assert!(
                source.is_err(),
                "{name} {options:?}: Fail2ban refuses it: {error}"
            );
            continue;
        }
        let source = source.unwrap_or_else(|e| panic!("{name} {options:?}: {e}"));
        assert_eq!(ours(&source), normal(theirs), "{name} {options:?}");
        for pattern in &source.failregex {
            assert!(pattern.origin.line > 0, "{name}: {pattern:?}");
        }
        equal += 1;
        regexes += source.failregex.len();
    }
    println!("{equal} filters and parameters, {regexes} expressions are equal");
    assert!(equal >= least, "only {equal} were compared");
}

#[test]
fn the_filters_of_the_package_are_read_as_fail2ban_reads_them() {
    let Some(dir) = installed() else { return };
    compare(&dir, &filters(&dir), 1000);
}

#[test]
fn the_filters_of_fail2bans_repository_are_read_as_fail2ban_reads_them() {
    let Some(tree) = upstream() else { return };
    let dir = tree.join("config");
    let names = filters(&dir);
    assert_eq!(names.len(), 97, "{names:?}");
    compare(&dir, &names, 1000);
    // These include config/ by a path of their own.
    let tests = tree.join("fail2ban/tests/config");
    let names = filters(&tests);
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| name.starts_with("zzz-"))
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    compare(&tests, &names, 20);
}

/// The place of each expression is the line that it stands in.
#[test]
fn each_expression_is_where_its_origin_says() {
    let Some(dir) = installed() else { return };
    let mut checked = 0;
    for name in filters(&dir) {
        let source = load_filter(&Disk, &dir, &name, &[]).unwrap();
        for pattern in &source.failregex {
            let text = std::fs::read_to_string(&pattern.origin.file).unwrap();
            let line = text.lines().nth(pattern.origin.line as usize - 1).unwrap();
            let value = line
                .split_once(" = ")
                .map_or(line, |(_, value)| value)
                .trim();
            // Only what no interpolation touched is the same text.
            let has_tag = value.match_indices('<').any(|(at, _)| {
                value[at + 1..].starts_with(|c: char| c == '_' || c.is_ascii_lowercase())
            });
            if !value.contains('%') && !has_tag && line.starts_with([' ', 'f']) {
                assert_eq!(value, pattern.text, "{name}: {pattern:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 70, "only {checked} were checked");
}

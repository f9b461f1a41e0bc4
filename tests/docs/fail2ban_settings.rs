//! The guide names each setting of Fail2ban's that its package has, or that Fail2ban asks of a
//! file in filter.d or action.d, and says what becomes of it.

use std::{collections::BTreeSet, fs, path::Path};

use crate::read;

/// What Fail2ban asks of filters and actions.
const OF_FILES: [&str; 22] = [
    "actionban",
    "actioncheck",
    "actionflush",
    "actionprolong",
    "actionreban",
    "actionrepair",
    "actionrepair_on_unban",
    "actionstart",
    "actionstart_on_demand",
    "actionstop",
    "actionunban",
    "datepattern",
    "failregex",
    "ignoreregex",
    "journalmatch",
    "logtimezone",
    "logtype",
    "maxlines",
    "norestored",
    "prefregex",
    "skip_if_nologs",
    "timeout",
];

/// The keys of a file, those that are only proposed in a comment as well (`#usedns = no`).
fn keys(text: &str) -> BTreeSet<String> {
    let key = |line: &str| {
        let (key, _) = line.strip_prefix('#').unwrap_or(line).split_once('=')?;
        let key = key.trim_end();
        let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c);
        (!key.is_empty() && key.chars().all(is_key)).then(|| key.to_owned())
    };
    text.lines().filter_map(key).collect()
}

#[test]
fn the_guide_says_what_becomes_of_each_setting() {
    let known = keys("a = 1\n#b.c = 2\n# what = d\n e = 3\n[f]\n");
    assert_eq!(Vec::from_iter(known), ["a", "b.c"]);
    let guide = read("docs/guide/fail2ban.md");
    let (_, table) = guide
        .split_once("| setting | what becomes of it |")
        .expect("the table of settings");
    let (table, _) = table.split_once("\n\n").unwrap();
    let named: BTreeSet<_> = table.split('`').skip(1).step_by(2).collect();
    let mut wanted: BTreeSet<_> = OF_FILES.map(str::to_owned).into();
    for file in ["jail.conf", "fail2ban.conf"] {
        match fs::read_to_string(Path::new("/etc/fail2ban").join(file)) {
            Ok(text) => wanted.extend(keys(&text)),
            Err(_) => println!("skipped: fail2ban package: there is no {file}"),
        }
    }
    // What includes files, and is no setting.
    wanted.remove("before");
    let missing: Vec<_> = wanted
        .iter()
        .filter(|key| !named.contains(key.as_str()))
        .collect();
    assert!(missing.is_empty(), "the guide does not name {missing:?}");
}

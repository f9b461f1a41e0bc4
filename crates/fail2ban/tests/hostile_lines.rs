//! Lines that are written to make matching slow: what GHSA-33wh-ccjc-p397 did to
//! Fail2ban, and worse.

use std::time::{Duration, Instant};

use jiff::{Timestamp, tz::TimeZone};
use weir_fail2ban::{
    FilterSource, Origin, Pattern,
    date::Clock,
    matching::{Filter, LogLine},
};

fn filter(failregex: &[&str]) -> Filter {
    filter_with(failregex, &[])
}

fn filter_with(failregex: &[&str], ignoreregex: &[&str]) -> Filter {
    let pattern = |text: &&str| Pattern {
        text: (*text).to_owned(),
        origin: Origin::default(),
    };
    Filter::new(&FilterSource {
        name: "hostile".to_owned(),
        failregex: failregex.iter().map(pattern).collect(),
        ignoreregex: ignoreregex.iter().map(pattern).collect(),
        prefregex: None,
        datepattern: Some(pattern(&"{NONE}")),
        maxlines: 1,
        says_maxlines: false,
        journalmatch: Vec::new(),
        logencoding: None,
        usedns: None,
        logtype: None,
        origin: "hostile.conf".into(),
    })
    .unwrap()
}

/// The shortest time of some, and whether it was a failure, and how many searches were
/// given up.
fn time(filter: &Filter, line: &str) -> (Duration, bool, u64) {
    let clock = Clock {
        now: Timestamp::UNIX_EPOCH,
        zone: &TimeZone::UTC,
    };
    let line = LogLine {
        text: line,
        time: None,
    };
    let mut state = filter.state();
    let mut best = Duration::MAX;
    let mut found = false;
    for _ in 0..5 {
        let begin = Instant::now();
        found = filter.read(&mut state, line, clock).is_ok();
        best = best.min(begin.elapsed());
    }
    (best, found, state.exhausted())
}

#[test]
fn a_hostile_line_costs_bounded_time() {
    // Words that a loop may take in very many ways.
    let words = filter(&[r"^smtp: (?:[^\[]+ )*\[?<HOST>\]? authentication failure \S+$"]);
    let many = "A ".repeat(10_000);
    let (took, found, _) = time(
        &words,
        &format!("smtp: {many}192.0.2.5 authentication failure x y"),
    );
    assert!(!found && took < Duration::from_millis(50), "{took:?}");
    let (took, found, _) = time(
        &words,
        &format!("smtp: {many}192.0.2.5 authentication failure x"),
    );
    assert!(found && took < Duration::from_millis(50), "{took:?}");

    // No automaton rules these out: the text fits but for what only lookarounds and back
    // references see. Twelve of those letters are a second in Python.
    for (pattern, exhausts) in [
        (r"^(?:(?!b)a+)+(?!c)c <HOST>", false),
        (r"^(?:a|a)*(?<!a)c <HOST>", false),
        (r"^(?P<x>a*)(?:a+)+(?P=x)(?!c)c <HOST>", true),
    ] {
        let line = format!("{}c 192.0.2.5", "a".repeat(8_000));
        let (took, found, exhausted) = time(&filter(&[pattern]), &line);
        assert!(!found, "{pattern}");
        assert!(took < Duration::from_millis(250), "{pattern}: {took:?}");
        assert_eq!(exhausted > 0, exhausts, "{pattern}");
    }
}

/// A client chooses when a search is given up: no other expression may then read the line
/// as it likes, and nobody is banned whom an `ignoreregex` would have spared.
#[test]
fn a_line_that_is_given_up_is_nobodys() {
    let slow = r"^ login failed user=\w*(\w*)(\w*)(\w*)-\3\2\1 from <HOST>(?: text .*)?$";
    let loose = r"^ login failed .* from <HOST>$";
    let hostile = format!(
        " login failed user={}-{} from 198.51.100.7 text x from 203.0.113.9",
        "a".repeat(150),
        "a".repeat(100)
    );
    let plain = " login failed user=b-b from 198.51.100.7 text x from 203.0.113.9";
    let both = filter(&[slow, loose]);
    let (_, found, exhausted) = time(&both, &hostile);
    assert!(!found && exhausted > 0, "{exhausted}");
    assert!(time(&both, plain).1);
    let spares = filter_with(&[loose], &[&slow.replace("<HOST>", r"\S+")]);
    let (_, found, exhausted) = time(&spares, &hostile);
    assert!(!found && exhausted > 0, "{exhausted}");
}

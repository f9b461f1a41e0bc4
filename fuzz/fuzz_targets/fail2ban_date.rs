//! A `datepattern` and lines: it is refused or compiled; what is cut out of a line lies in
//! it, and the time that it says is the same when the same line comes again.
#![no_main]

use jiff::{Timestamp, tz::TimeZone};
use libfuzzer_sys::fuzz_target;
use weir_fail2ban::date::{Clock, Dates};

fuzz_target!(|data: (&str, bool, &str)| {
    let (pattern, is_usual, lines) = data;
    let pattern = (!is_usual).then_some(pattern);
    // Compiling is bounded by the length of a pattern, which a file's line bounds.
    if pattern.is_some_and(|pattern| pattern.len() > 300) {
        return;
    }
    let Ok(dates) = Dates::new(pattern) else {
        return;
    };
    let zone = TimeZone::UTC;
    let clock = Clock {
        now: Timestamp::from_second(1_764_000_000).unwrap(),
        zone: &zone,
    };
    let mut state = dates.state();
    for line in lines.lines().take(8) {
        let Some(dated) = dates.find(&mut state, line, clock) else {
            continue;
        };
        let (begin, end) = dated.cut;
        assert!(line.get(begin..end).is_some(), "{line:?}: {begin}..{end}");
        let again = dates.find(&mut state, line, clock);
        let again = again.expect("what was found is found again");
        if again.cut == dated.cut {
            assert_eq!(again.time, dated.time, "{line:?}");
        }
    }
});

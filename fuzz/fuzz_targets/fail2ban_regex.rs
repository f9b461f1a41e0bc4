//! An expression of a Fail2ban filter with its tags, and a line: it is refused or compiled;
//! what the exact matcher finds the automaton has named as a candidate, groups lie in the
//! line, and the search ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fail2ban::regex::{NONE, Regex, Scratch, Search, expand};

fuzz_target!(|data: (bool, bool, &str, &str)| {
    let (multi_line, names, pattern, line) = data;
    let expanded = expand(pattern, names);
    let Ok(regex) = Regex::new(&expanded, multi_line) else {
        return;
    };
    let mut scratch = Scratch::default();
    let found = regex.search(line, 0, &mut scratch);
    if found != Search::Found {
        return;
    }
    for group in 0..regex.groups() {
        let [begin, end] = [0, 1].map(|n| scratch.slots[2 * group + n]);
        if end != NONE && begin <= end {
            assert!(
                line.get(begin..end).is_some(),
                "group {group}: {begin}..{end}"
            );
        }
    }
    let candidates = Regex::candidates(std::iter::once(&regex));
    let mut cache = candidates.cache();
    let can_fit = candidates.of(line, &mut cache).next().is_some();
    assert!(
        can_fit,
        "{expanded:?} fits {line:?}, and the automaton rules it out"
    );
});

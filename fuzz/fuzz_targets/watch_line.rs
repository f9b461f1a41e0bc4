//! What a watch prints, in any pieces: a line names a prefix that may be
//! banned and stands at its beginning, or nobody.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_core::{Prefix, BanTarget};
use weir_daemon::watch::line::{Lines, MAX_LINE, read};

fuzz_target!(|pieces: Vec<&[u8]>| {
    let mut whole = Vec::new();
    let mut cut = Lines::default();
    let mut seen = Vec::new();
    {
        let mut each = |line: Result<&[u8], _>| seen.push(line.map(<[u8]>::to_vec).ok());
        for piece in &pieces {
            cut.take(piece, &mut each);
        }
        cut.finish(&mut each);
    }
    pieces
        .iter()
        .for_each(|piece| whole.extend_from_slice(piece));
    if whole.last() == Some(&b'\n') {
        whole.pop();
    } else if whole.is_empty() {
        assert!(seen.is_empty());
        return;
    }
    // A text that is nothing but its newline has one line, an empty one.
    let expected: Vec<_> = whole
        .split(|byte| *byte == b'\n')
        .map(|line| (line.len() <= MAX_LINE).then(|| line.to_vec()))
        .collect();
    assert_eq!(seen, expected);
    for line in seen.iter().flatten() {
        let Ok(Some(sighting)) = read(line) else {
            continue;
        };
        let word = sighting.line.split([' ', '\t']).next().unwrap_or_default();
        assert_eq!(word.parse::<Prefix>(), Ok(sighting.prefix));
        assert!(BanTarget::new(sighting.prefix).is_ok());
        assert!(sighting.prefix.bits() >= 16);
    }
});

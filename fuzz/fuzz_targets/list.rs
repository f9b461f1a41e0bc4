//! A list of addresses as a server sends it, in every grammar and for every
//! use: what is taken is sorted, disjoint, within the caps, holds nothing that
//! nobody may ban, and prints as a list that reads as the same. Also as an
//! answer of CrowdSec's.
#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use libfuzzer_sys::fuzz_target;
use weir_core::BanTarget;
use weir_sources::list::{Admit, Decisions, Format, Limits, WIDEST, parse, print};

const LIMITS: Limits = Limits {
    max_bytes: 1 << 16,
    max_entries: 500,
    widest: WIDEST,
};

fuzz_target!(|bytes: &[u8]| {
    let formats = [
        Format::Auto,
        Format::Plain,
        Format::Csv(2),
        Format::Ipset,
        Format::Hosts,
        Format::Json,
    ];
    for format in formats {
        for admit in [Admit::Public, Admit::Bannable, Admit::Allow] {
            let Ok(list) = parse(bytes, format, admit, &LIMITS) else {
                continue;
            };
            assert!(list.prefixes.len() <= LIMITS.max_entries);
            assert!(list.refused.count <= list.entries && list.refused.first.len() <= 5);
            for pair in list.prefixes.windows(2) {
                assert!(pair[0] < pair[1] && !pair[0].covers(pair[1]), "{pair:?}");
            }
            if admit != Admit::Allow {
                for prefix in &list.prefixes {
                    assert!(BanTarget::new(*prefix).is_ok(), "{prefix}");
                }
            }
            if !list.prefixes.is_empty() {
                let again = parse(
                    print(&list.prefixes).as_bytes(),
                    Format::Plain,
                    admit,
                    &LIMITS,
                );
                assert_eq!(again.map(|again| again.prefixes), Ok(list.prefixes));
            }
        }
    }
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut decisions = Decisions::default();
    let before = decisions.clone();
    match decisions.apply(bytes, true, now, LIMITS.max_entries) {
        Ok(()) => {
            let again = Decisions::read(decisions.print().as_bytes(), now);
            assert_eq!(again.prefixes(), decisions.prefixes());
        }
        Err(_) => assert_eq!(decisions, before),
    }
});

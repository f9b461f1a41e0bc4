//! Addresses, prefixes, ports, producers and lengths of time as somebody types
//! them: what is accepted prints in a form that reads as the same.
#![no_main]

use std::{fmt::Display, str::FromStr};

use libfuzzer_sys::fuzz_target;
use weir_core::{
    Prefix, PrefixSet, BanSource, PortSet, BanTarget,
    policy::{format_duration, parse_duration},
};

fn round_trip<T: FromStr + Display + PartialEq + std::fmt::Debug>(text: &str) -> Option<T> {
    let read: T = text.parse().ok()?;
    let printed = read.to_string();
    let again = printed.parse::<T>();
    assert_eq!(
        again.ok().as_ref(),
        Some(&read),
        "{text:?} prints as {printed:?}"
    );
    Some(read)
}

fuzz_target!(|text: &str| {
    if let Some(prefix) = round_trip::<Prefix>(text) {
        assert!(prefix.contains(prefix.addr()) && prefix.covers(prefix));
        let mut set = PrefixSet::default();
        assert!(set.insert(prefix));
        assert_eq!(set.lookup(prefix.addr()), Some(prefix));
        assert_eq!(set.covering(prefix), Some(prefix));
        assert!(set.remove(prefix) && set.is_empty());
    }
    if let Some(subject) = round_trip::<BanTarget>(text) {
        let addr = subject.prefix().addr();
        assert!(!addr.is_unspecified() || !subject.prefix().is_host());
        assert!(!addr.is_multicast() || !subject.prefix().is_host());
    }
    if let Some(scope) = round_trip::<PortSet>(text) {
        for range in scope.ranges() {
            assert!(range.low <= range.high, "{scope}");
            let number = if range.protocol.number() == 0 {
                6
            } else {
                range.protocol.number()
            };
            assert!(
                scope.covers(number, range.low) && scope.covers(number, range.high),
                "{scope}"
            );
        }
    }
    round_trip::<BanSource>(text);
    if let Ok(time) = parse_duration(text) {
        // Printed rounded down to two units, so it prints the same again.
        let printed = format_duration(time);
        let read = parse_duration(&printed).expect(&printed);
        assert!(read <= time, "{text:?} prints as {printed:?}");
        assert_eq!(format_duration(read), printed, "{text:?}");
    }
});

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::{PrefixSet, geo::Country};

fn country(code: &str) -> Country {
    Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap()
}

fn fence(deny: &[&str], except: &[&str]) -> Fence {
    Fence {
        name: "geofence".into(),
        scope: Scope::all(),
        direction: Direction::In,
        default: Fate::Pass,
        allow: Vec::new(),
        deny: deny.iter().map(|s| s.parse().unwrap()).collect(),
        unknown: Fate::Pass,
        except: except.iter().map(|p| p.parse().unwrap()).collect(),
    }
}

/// What the layers say about one address, each asked by itself.
fn reference(plan: &Plan<'_>, addr: IpAddr) -> Class {
    let never: PrefixSet = NEVER_JUDGED.iter().map(|p| p.parse().unwrap()).collect();
    if never.lookup(addr).is_some() {
        return Class::default();
    }
    let place = plan.atlas.place(addr);
    let mut class = Class::default();
    for (bit, fence) in plan.fences.iter().enumerate() {
        if fence.judge(&place) == Fate::Drop && fence.except.lookup(addr).is_none() {
            class.denied |= 1 << bit;
            class.country = place.country;
        }
    }
    for (bit, list) in plan.lists.iter().enumerate() {
        let set: PrefixSet = list.prefixes.iter().copied().collect();
        class.lists |= u64::from(set.lookup(addr).is_some()) << bit;
    }
    class
}

fn edges(classes: &Classes) -> Vec<IpAddr> {
    let mut edges: Vec<IpAddr> = vec![
        "0.0.0.0".parse().unwrap(),
        "255.255.255.255".parse().unwrap(),
        "::".parse().unwrap(),
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(),
    ];
    for span in &classes.v4 {
        for at in [
            span.first,
            span.last,
            span.first.wrapping_sub(1),
            span.last.wrapping_add(1),
        ] {
            edges.push(at.addr());
        }
    }
    for span in &classes.v6 {
        for at in [
            span.first,
            span.last,
            span.first.wrapping_sub(1),
            span.last.wrapping_add(1),
        ] {
            // Mapped addresses are IPv4's.
            if at >> 32 != 0xffff {
                edges.push(at.addr());
            }
        }
    }
    edges
}

fn prefix() -> impl Strategy<Value = Prefix> {
    // Few bits vary, so that prefixes meet.
    prop_oneof![
        (0u32..4, 0u32..8, 0u8..=32).prop_map(|(a, b, len)| Prefix::new(
            IpAddr::V4((a << 30 | b << 5).into()),
            len
        )
        .unwrap()),
        (0u128..4, 0u128..8, 0u8..=128).prop_map(|(a, b, len)| {
            Prefix::new(IpAddr::V6((a << 126 | 1 << 125 | b << 60).into()), len).unwrap()
        }),
    ]
}

proptest! {
    #[test]
    fn the_partition_says_what_each_layer_says(
        one in prop::collection::vec(prefix(), 0..12),
        two in prop::collection::vec(prefix(), 0..12),
        except in prop::collection::vec(prefix(), 0..4),
        cuts in prop::collection::vec((any::<u32>(), 0u16..3), 0..8),
    ) {
        let mut atlas = Atlas {
            places: ["RU", "NL", "NA"]
                .map(|c| Place { country: Some(country(c)), ..Place::default() })
                .into(),
            ..Atlas::default()
        };
        let mut cuts = cuts;
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            if pair[0].0 < pair[1].0 {
                atlas.v4.push(Span { first: pair[0].0, last: pair[1].0 - 1, value: pair[0].1 });
                atlas.v6.push(Span {
                    first: u128::from(pair[0].0) << 96,
                    last: (u128::from(pair[1].0) << 96) - 1,
                    value: pair[0].1,
                });
            }
        }
        let mut strict = fence(&[], &[]);
        strict.default = Fate::Drop;
        strict.unknown = Fate::Drop;
        strict.allow = vec!["country:NL".parse().unwrap()];
        let mut lax = fence(&["country:RU"], &[]);
        lax.except = except.into_iter().collect();
        let fences = [strict, lax];
        let all = Scope::all();
        let list = |name, prefixes| ListLayer { name, scope: &all, direction: Direction::In, prefixes };
        let lists = [list("one", &one), list("two", &two)];
        let plan = Plan { atlas: &atlas, fences: &fences, lists: &lists };
        let classes = plan.join().unwrap();
        for addr in edges(&classes) {
            prop_assert_eq!(classes.class(addr), reference(&plan, addr), "{}", addr);
        }
        let mut last: Option<&Span<u32, u16>> = None;
        for span in &classes.v4 {
            prop_assert!(span.first <= span.last && span.value != 0);
            if let Some(before) = last {
                prop_assert!(before.last < span.first);
                prop_assert!(before.value != span.value || before.last + 1 != span.first);
            }
            last = Some(span);
        }
    }
}

#[test]
fn a_country_is_not_the_continent_of_the_same_letters() {
    let namibia = Place {
        country: Some(country("NA")),
        continent: Some(crate::geo::Continent::Af),
        asn: None,
    };
    let canada = Place {
        country: Some(country("CA")),
        continent: Some(crate::geo::Continent::Na),
        asn: None,
    };
    let mut rule = fence(&[], &[]);
    rule.default = Fate::Drop;
    rule.allow = vec!["continent:NA".parse().unwrap()];
    assert_eq!(rule.judge(&namibia), Fate::Drop);
    assert_eq!(rule.judge(&canada), Fate::Pass);
    rule.allow = vec!["country:NA".parse().unwrap()];
    assert_eq!(rule.judge(&namibia), Fate::Pass);
    assert_eq!(rule.judge(&canada), Fate::Drop);
}

#[test]
fn more_lists_than_bits_are_refused() {
    let all = Scope::all();
    let list = ListLayer {
        name: "x",
        scope: &all,
        direction: Direction::In,
        prefixes: &[],
    };
    let lists = vec![list; MAX_LISTS + 1];
    let plan = Plan {
        atlas: &Atlas::default(),
        fences: &[],
        lists: &lists,
    };
    assert_eq!(plan.join().unwrap_err().most, MAX_LISTS);
}

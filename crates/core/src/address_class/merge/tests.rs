use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::{
    PrefixSet,
    geo::{Country, Number},
};

fn country(code: &str) -> Country {
    Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap()
}

fn fence(deny: &[&str], except: &[&str]) -> Fence {
    Fence {
        name: "geofence".into(),
        scope: PortSet::all(),
        direction: Direction::In,
        default: RuleAction::Pass,
        allow: Vec::new(),
        deny: deny.iter().map(|s| s.parse().unwrap()).collect(),
        unknown: RuleAction::Pass,
        except: except.iter().map(|p| p.parse().unwrap()).collect(),
    }
}

/// What the layers say about one address, each asked by itself.
fn reference(plan: &Plan<'_>, addr: IpAddr) -> Class {
    let never: PrefixSet = NEVER_JUDGED.iter().map(|p| p.parse().unwrap()).collect();
    if never.lookup(addr).is_some() {
        return Class::default();
    }
    let place = plan.geo_table.place(addr);
    let mut class = Class::default();
    for (bit, fence) in plan.fences.iter().enumerate() {
        if fence.judge(&place) == RuleAction::Drop && fence.except.lookup(addr).is_none() {
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

/// Classes, and what they are of: IPv4, IPv6.
type Partition = (Vec<Class>, Vec<Span<u32, u16>>, Vec<Span<u128, u16>>);

/// The whole partition, by asking [`reference`] at each address where any layer
/// may change: what the sweep must come to, numbers of the classes included.
fn naive(plan: &Plan<'_>) -> Partition {
    let never: Vec<Prefix> = NEVER_JUDGED.iter().map(|p| p.parse().unwrap()).collect();
    let excepted = plan.fences.iter().flat_map(|f| f.except.iter());
    let listed = plan.lists.iter().flat_map(|l| l.prefixes.iter().copied());
    let prefixes: Vec<Prefix> = never.into_iter().chain(excepted).chain(listed).collect();
    let mut classes = vec![Class::default()];
    let v4 = naive_family(plan, &prefixes, &plan.geo_table.v4, &mut classes);
    let v6 = naive_family(plan, &prefixes, &plan.geo_table.v6, &mut classes);
    (classes, v4, v6)
}

fn naive_family<A: Family>(
    plan: &Plan<'_>,
    prefixes: &[Prefix],
    geo_table: &[Span<A, u16>],
    classes: &mut Vec<Class>,
) -> Vec<Span<A, u16>> {
    let ranges = prefixes.iter().filter_map(|prefix| A::range(*prefix));
    let ranges = ranges.chain(geo_table.iter().map(|span| (span.first, span.last)));
    let mut edges: Vec<A> = vec![A::MIN];
    edges.extend(
        ranges
            .flat_map(|(first, last)| [Some(first), last.next()])
            .flatten(),
    );
    edges.sort_unstable();
    edges.dedup();
    let mut spans: Vec<Span<A, u16>> = Vec::new();
    for (n, first) in edges.iter().copied().enumerate() {
        let last = edges.get(n + 1).map_or(A::MAX, |next| next.previous());
        let class = reference(plan, first.addr());
        let value = classes.iter().position(|known| *known == class);
        let value = value.unwrap_or_else(|| {
            classes.push(class);
            classes.len() - 1
        });
        match spans.last_mut() {
            _ if value == 0 => {}
            Some(span) if usize::from(span.value) == value && span.last.next() == Some(first) => {
                span.last = last;
            }
            _ => spans.push(Span {
                first,
                last,
                value: value as u16,
            }),
        }
    }
    spans
}

proptest! {
    #[test]
    fn the_sweep_comes_to_what_a_look_at_each_edge_comes_to(
        lists in prop::collection::vec(prop::collection::vec(prefix(), 0..9), 0..9),
        sort in any::<bool>(),
        except in prop::collection::vec(prefix(), 0..4),
        cuts in prop::collection::vec((0u32..64, 0u16..2), 0..6),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        cuts.dedup_by_key(|cut| cut.0);
        let mut geo_table = GeoTable {
            places: ["RU", "NL"]
                .map(|c| Place { country: Some(country(c)), ..Place::default() })
                .into(),
            ..GeoTable::default()
        };
        // Neighbours, gaps, and one that ends with the last address.
        for (n, (cut, value)) in cuts.iter().copied().enumerate() {
            let end = cuts.get(n + 1).map_or(64, |next| next.0);
            let last = if value == 0 { end } else { (cut + end).div_ceil(2) };
            let v4 = |at: u32| u64::from(at) << 26;
            let v6 = |at: u32| u128::from(at) << 122;
            geo_table.v4.push(Span { first: v4(cut) as u32, last: (v4(last) - 1) as u32, value });
            let last = if last == 64 { u128::MAX } else { v6(last) - 1 };
            geo_table.v6.push(Span { first: v6(cut), last, value });
        }
        let mut lists = lists;
        if sort {
            lists.iter_mut().for_each(|list| list.sort_unstable());
        }
        let mut rule = fence(&["country:RU"], &[]);
        rule.except = except.into_iter().collect();
        let fences = [rule];
        let all = PortSet::all();
        let layer = |prefixes| ListLayer { name: "l", scope: &all, direction: Direction::In, prefixes };
        let lists: Vec<_> = lists.iter().map(|list| layer(list)).collect();
        let plan = Plan { geo_table: &geo_table, fences: &fences, lists: &lists };
        let joined = plan.join().unwrap();
        prop_assert_eq!((joined.classes, joined.v4, joined.v6), naive(&plan));
    }

    #[test]
    fn the_partition_says_what_each_layer_says(
        one in prop::collection::vec(prefix(), 0..12),
        two in prop::collection::vec(prefix(), 0..12),
        except in prop::collection::vec(prefix(), 0..4),
        cuts in prop::collection::vec((any::<u32>(), 0u16..3), 0..8),
    ) {
        let mut geo_table = GeoTable {
            places: ["RU", "NL", "NA"]
                .map(|c| Place { country: Some(country(c)), ..Place::default() })
                .into(),
            ..GeoTable::default()
        };
        let mut cuts = cuts;
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            if pair[0].0 < pair[1].0 {
                geo_table.v4.push(Span { first: pair[0].0, last: pair[1].0 - 1, value: pair[0].1 });
                geo_table.v6.push(Span {
                    first: u128::from(pair[0].0) << 96,
                    last: (u128::from(pair[1].0) << 96) - 1,
                    value: pair[0].1,
                });
            }
        }
        let mut strict = fence(&[], &[]);
        strict.default = RuleAction::Drop;
        strict.unknown = RuleAction::Drop;
        strict.allow = vec!["country:NL".parse().unwrap()];
        let mut lax = fence(&["country:RU"], &[]);
        lax.except = except.into_iter().collect();
        let fences = [strict, lax];
        let all = PortSet::all();
        let list = |name, prefixes| ListLayer { name, scope: &all, direction: Direction::In, prefixes };
        let lists = [list("one", &one), list("two", &two)];
        let plan = Plan { geo_table: &geo_table, fences: &fences, lists: &lists };
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
    rule.default = RuleAction::Drop;
    rule.allow = vec!["continent:NA".parse().unwrap()];
    assert_eq!(rule.judge(&namibia), RuleAction::Drop);
    assert_eq!(rule.judge(&canada), RuleAction::Pass);
    rule.allow = vec!["country:NA".parse().unwrap()];
    assert_eq!(rule.judge(&namibia), RuleAction::Pass);
    assert_eq!(rule.judge(&canada), RuleAction::Drop);
}

#[test]
fn more_lists_than_bits_are_refused() {
    let all = PortSet::all();
    let list = ListLayer {
        name: "x",
        scope: &all,
        direction: Direction::In,
        prefixes: &[],
    };
    let lists = vec![list; MAX_LISTS + 1];
    let plan = Plan {
        geo_table: &GeoTable::default(),
        fences: &[],
        lists: &lists,
    };
    assert_eq!(plan.join().unwrap_err().most, MAX_LISTS);
}

/// The measurement of issue 13: 64 lists of 100,000 prefixes, one of them changed. Run with
/// `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn sixty_four_lists_of_a_hundred_thousand() {
    let mut state = 1_u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state >> 16
    };
    let lists: Vec<Vec<Prefix>> = (0..64)
        .map(|_| {
            let mut list: Vec<Prefix> = (0..100_000)
                .map(|n| match n % 2 {
                    0 => Prefix::host(IpAddr::V4((random() as u32).into())),
                    _ => {
                        let net = 0x2000 << 112 | u128::from(random()) << 64;
                        Prefix::new(IpAddr::V6(net.into()), 64).unwrap()
                    }
                })
                .collect();
            list.sort_unstable();
            list
        })
        .collect();
    let all = PortSet::all();
    let lists: Vec<_> = lists
        .iter()
        .map(|prefixes| ListLayer {
            name: "l",
            scope: &all,
            direction: Direction::In,
            prefixes,
        })
        .collect();
    let plan = Plan {
        geo_table: &GeoTable::default(),
        fences: &[],
        lists: &lists,
    };
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM"));
        line.unwrap_or_default().to_owned()
    };
    let before = peak();
    let begun = std::time::Instant::now();
    let classes = plan.join().unwrap();
    println!(
        "{} + {} spans, {} classes in {:?}; before {before}, after {}",
        classes.v4.len(),
        classes.v6.len(),
        classes.classes.len(),
        begun.elapsed(),
        peak()
    );
}

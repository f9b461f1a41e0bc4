use proptest::prelude::*;
use weir_core::{
    PortSet, Prefix,
    address_class::{Classes, ListLayer, Plan},
    geo::{GeoTable, Number},
    geofence::Direction,
};

use std::net::IpAddr;

use super::*;

/// Seed of the exceptions' hash: any will do.
const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];

fn joined(lists: &[Vec<Prefix>]) -> Classes {
    let scope = PortSet::all();
    let layers: Vec<_> = lists
        .iter()
        .map(|prefixes| ListLayer {
            name: "list",
            scope: &scope,
            direction: Direction::In,
            prefixes,
        })
        .collect();
    Plan {
        geo_table: &GeoTable::default(),
        fences: &[],
        lists: &layers,
    }
    .join()
    .expect("few lists")
}

fn edges(classes: &Classes) -> Vec<IpAddr> {
    let mut edges = Vec::new();
    for span in &classes.v4 {
        for at in [span.first, span.last] {
            edges.extend([at.wrapping_sub(1), at, at.wrapping_add(1)].map(Number::addr));
        }
    }
    for span in &classes.v6 {
        for at in [span.first, span.last] {
            edges.extend([at.wrapping_sub(1), at, at.wrapping_add(1)].map(Number::addr));
        }
    }
    edges.retain(|addr| addr.to_canonical() == *addr);
    edges
}

fn prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (any::<u32>(), 1u8..=32)
            .prop_map(|(a, len)| Prefix::new(IpAddr::V4(a.into()), len).unwrap()),
        // Near one another, so that nodes have many runs.
        (0u32..1 << 16, 16u8..=32).prop_map(|(a, len)| Prefix::new(
            IpAddr::V4((0x0a14_0000 | a).into()),
            len
        )
        .unwrap()),
        (any::<u64>(), 3u8..=128).prop_map(|(a, len)| {
            let bits = 0x2001_0db8u128 << 96 | u128::from(a) << 20;
            Prefix::new(IpAddr::V6(bits.into()), len).unwrap()
        }),
        // In one another, as far as exceptions go.
        (0u8..4, any::<bool>(), 33u8..=128).prop_map(|(a, far, len)| {
            let bits = 0x2001_0db9u128 << 96 | u128::from(a) << 79 | u128::from(far) << 63;
            Prefix::new(IpAddr::V6(bits.into()), len).unwrap()
        }),
    ]
}

proptest! {
    #[test]
    fn the_image_has_the_partition(
        one in prop::collection::vec(prefix(), 0..60),
        two in prop::collection::vec(prefix(), 0..60),
    ) {
        let classes = joined(&[one, two]);
        let image = ClassImage::build(&classes, &[0, 0], SEED);
        for addr in edges(&classes) {
            let found = &classes.classes[image.class(addr) as usize];
            prop_assert_eq!(*found, classes.class(addr), "{}", addr);
        }
    }
}

/// `count` single addresses in 10.0/16 with as many between them, on one list.
fn every_other(count: u32) -> Classes {
    let prefixes = (0..count)
        .map(|n| Prefix::host(IpAddr::V4((0x0a00_0001 + 2 * n).into())))
        .collect();
    joined(&[prefixes])
}

#[test]
fn few_parts_are_exceptions_and_many_make_nodes() {
    let small = ClassImage::build(&every_other(1), &[0], SEED).lines();
    // Some entries more than fit a line of the filter, or one bucket.
    let hashed = ClassImage::build(&every_other(64), &[0], SEED).lines();
    assert!(
        hashed - small < 64,
        "{hashed} lines, {small} for one address"
    );
    for count in [1, 63, 64, 65, 128] {
        let classes = every_other(count);
        let image = ClassImage::build(&classes, &[0], SEED);
        for addr in edges(&classes) {
            let found = classes.classes[image.class(addr) as usize];
            assert_eq!(found, classes.class(addr), "{addr} of {count}");
        }
    }
}

#[test]
fn a_hundred_thousand_addresses_are_found_and_nobody_else() {
    let prefixes: Vec<_> = (0..100_000u32)
        .flat_map(|n| {
            let n = n.wrapping_mul(0x9e37_79b1);
            let bits = 0x2a00u128 << 112 | u128::from(n) << 80 | u128::from(n % 7);
            [IpAddr::V4(n.into()), IpAddr::V6(bits.into())]
        })
        .map(Prefix::host)
        .collect();
    let classes = joined(&[prefixes]);
    let image = ClassImage::build(&classes, &[0], SEED);
    // 2 x 100,000 entries at 13 to 26 bytes, behind 6.5 MiB that are always there.
    assert!(image.lines() < 210_000, "{}", image.lines());
    for addr in edges(&classes) {
        let found = classes.classes[image.class(addr) as usize];
        assert_eq!(found, classes.class(addr), "{addr}");
    }
}

#[test]
fn counters_name_lists_and_countries() {
    assert_eq!(by(0), By::List(0));
    assert_eq!(by(MAX_LISTS), By::Country(None));
    let nl = Country::from_letters(*b"NL");
    assert_eq!(by(MAX_LISTS + 1 + nl.unwrap().index()), By::Country(nl));
}

use proptest::prelude::*;
use weir_core::{
    Prefix, Scope,
    class::{ListLayer, Plan},
    fence::Direction,
    geo::Atlas,
};

use super::*;

fn joined(lists: &[Vec<Prefix>]) -> Classes {
    let scope = Scope::all();
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
        atlas: &Atlas::default(),
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
    ]
}

proptest! {
    #[test]
    fn the_image_has_the_partition(
        one in prop::collection::vec(prefix(), 0..60),
        two in prop::collection::vec(prefix(), 0..60),
    ) {
        let classes = joined(&[one, two]);
        let image = ClassImage::build(&classes, &[0, 0]);
        for addr in edges(&classes) {
            let found = &classes.classes[image.class(addr) as usize];
            prop_assert_eq!(*found, classes.class(addr), "{}", addr);
        }
    }
}

#[test]
fn runs_of_one_address_each_fill_a_node() {
    let every_other = (0..128u32)
        .map(|n| Prefix::host(IpAddr::V4((0x0a00_0001 + 2 * n).into())))
        .collect();
    let classes = joined(&[every_other]);
    let image = ClassImage::build(&classes, &[0]);
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

//! Ranges of addresses with a chain each: the maps of geofence and lists.

use std::sync::Arc;

use super::{
    table::{Element, Table},
    wire::{Batch, MessageKind},
};

/// A range: its first address, the one behind its last unless there is none,
/// and the chain for it.
pub(super) type Range = (Vec<u8>, Option<Vec<u8>>, Arc<str>);

pub(super) fn range4(first: u32, last: u32, chain: Arc<str>) -> Range {
    let end = last.checked_add(1).map(|end| end.to_be_bytes().to_vec());
    (first.to_be_bytes().to_vec(), end, chain)
}

pub(super) fn range6(first: u128, last: u128, chain: Arc<str>) -> Range {
    let end = last.checked_add(1).map(|end| end.to_be_bytes().to_vec());
    (first.to_be_bytes().to_vec(), end, chain)
}

/// Puts sorted disjoint ranges into a set of ranges.
pub(super) fn put_ranges(table: &Table, to: &mut Batch, set: &str, ranges: &[Range]) {
    let elements: Vec<_> = ranges
        .iter()
        .flat_map(|(first, end, chain)| {
            let begin = Element {
                jump: Some(chain),
                ..Element::key(first)
            };
            let end = end.as_ref().map(|end| Element {
                ends_range: true,
                ..Element::key(end)
            });
            [Some(begin), end].into_iter().flatten()
        })
        .collect();
    table.elements(to, MessageKind::NewElements, set, &elements);
}

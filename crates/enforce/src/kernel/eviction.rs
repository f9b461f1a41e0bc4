//! Who goes when the table is at its cap: of the producer that overflows, the
//! entry that would expire first.

use std::collections::{BinaryHeap, HashMap, VecDeque};

use weir_bpf::{BanTable, Slot};
use weir_core::BanSource;

/// Victims found by the last pass over the table, per producer.
///
/// One pass finds the thousandth of the cap that expires first, so an
/// insertion at the cap costs a thousandth of a pass. Entries inserted after
/// the pass that expire before its last victim are seen by the next one.
#[derive(Default)]
pub(super) struct Eviction {
    victims: HashMap<BanSource, VecDeque<Slot>>,
}

impl Eviction {
    /// The next entry to evict among those whose policy is in `numbers`.
    pub(super) fn next(
        &mut self,
        producer: &BanSource,
        numbers: &[u16],
        max_bans: usize,
        table: &BanTable,
    ) -> Option<Slot> {
        let victims = self.victims.entry(producer.clone()).or_default();
        loop {
            if victims.is_empty() {
                let most = (max_bans / 1024).max(1);
                let mut first = BinaryHeap::new();
                table.for_each(0, |slot| {
                    if numbers.contains(&slot.policy) {
                        first.push((slot.expiry, slot));
                        if first.len() > most {
                            first.pop();
                        }
                    }
                });
                victims.extend(first.into_sorted_vec().into_iter().map(|(_, slot)| slot));
            }
            let slot = victims.pop_front()?;
            // Still there, with the same expiry?
            if table.get(slot.key).contains(&slot) {
                return Some(slot);
            }
        }
    }
}

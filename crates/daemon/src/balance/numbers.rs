//! The numbers by which the kernel knows pools and reals.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers below `PLACES` that stay with what has them: flows are known by them.
pub(super) struct Numbers<T, const PLACES: usize>(pub(super) BTreeMap<T, u32>);

impl<T, const PLACES: usize> Default for Numbers<T, PLACES> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone, const PLACES: usize> Numbers<T, PLACES> {
    /// At a start: each keeps the number that it had under an earlier daemon, if `known`
    /// names one that is its own.
    pub(super) fn take_over(&mut self, wanted: &[T], known: impl Fn(&T) -> Option<u32>) {
        let mut used: BTreeSet<u32> = self.0.values().copied().collect();
        for one in wanted {
            if self.0.contains_key(one) {
                continue;
            }
            let number = known(one).filter(|number| (*number as usize) < PLACES);
            if let Some(number) = number.filter(|number| used.insert(*number)) {
                self.0.insert(one.clone(), number);
            }
        }
    }

    /// Gives these one each, at most as many as there are places. What has one keeps it,
    /// and one that is given up now is given out last: who still finds it meanwhile does
    /// not find another there. Returns the numbers that are given out anew.
    pub(super) fn keep(&mut self, wanted: &[T]) -> Vec<u32> {
        let before: BTreeSet<u32> = self.0.values().copied().collect();
        self.0.retain(|known, _| wanted.contains(known));
        let used: BTreeSet<u32> = self.0.values().copied().collect();
        let unused = (0..PLACES as u32).filter(|n| !before.contains(n));
        let mut free = unused.chain(before.difference(&used).copied());
        let mut fresh = Vec::new();
        for one in wanted {
            if self.0.contains_key(one) {
                continue;
            }
            let number = free
                .next()
                .expect("a configuration wants no more than there are places");
            self.0.insert(one.clone(), number);
            fresh.push(number);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_those_given_up_are_given_out_last() {
        let mut numbers = Numbers::<_, 5>::default();
        assert_eq!(numbers.keep(&["a", "b", "c"]), [0, 1, 2]);
        assert_eq!(numbers.keep(&["c", "d"]), [3]);
        assert_eq!(numbers.0, [("c", 2), ("d", 3)].into());
        assert_eq!(numbers.keep(&["c", "d", "e"]), [0]);
    }

    #[test]
    fn at_a_start_each_has_the_number_that_it_had_before() {
        let mut numbers = Numbers::<_, 5>::default();
        let before = |name: &&str| match *name {
            "b" => Some(0),
            "a" => Some(3),
            // Damaged: taken, and none of this table.
            "d" => Some(3),
            "e" => Some(5),
            _ => None,
        };
        numbers.take_over(&["a", "b", "c", "d", "e"], before);
        assert_eq!(numbers.0, [("a", 3), ("b", 0)].into());
        assert_eq!(numbers.keep(&["a", "b", "c", "d", "e"]), [1, 2, 4]);
    }

    /// Beyond its places the kernel has none: what is written there is refused.
    #[test]
    fn numbers_of_a_full_table_are_given_out_again() {
        const PLACES: usize = 32;
        let mut numbers = Numbers::<_, PLACES>::default();
        for round in 0..5 {
            let all: Vec<_> = (0..PLACES).map(|n| n + round * 20).collect();
            numbers.keep(&all);
            let given: BTreeSet<_> = numbers.0.values().copied().collect();
            assert_eq!(given, (0..PLACES as u32).collect(), "of round {round}");
        }
    }
}

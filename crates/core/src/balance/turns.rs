//! The ring of a pool whose reals take turns: read slot by slot, each real comes as often
//! as its weight says, and as evenly spread as can be. (The smooth weighted round robin of
//! nginx: who is owed most is next.)

use super::maglev::Member;

/// For each of `slots` the place in `members` of whose turn it is; empty when nobody's.
pub fn turns(members: &[Member<'_>], slots: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..members.len())
        .filter(|n| members[*n].weight > 0)
        .collect();
    order.sort_unstable_by_key(|n| members[*n].name);
    let total: i64 = order.iter().map(|n| i64::from(members[*n].weight)).sum();
    if total == 0 {
        return Vec::new();
    }
    let mut owed = vec![0i64; order.len()];
    let next = |_| {
        for (owed, member) in owed.iter_mut().zip(&order) {
            *owed += i64::from(members[*member].weight);
        }
        // Of those who are owed the same the first.
        let most = (0..owed.len())
            .rev()
            .max_by_key(|n| owed[*n])
            .expect("somebody has a weight");
        owed[most] -= total;
        order[most]
    };
    (0..slots).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(members: &[(&'static str, u32)], slots: usize) -> Vec<usize> {
        let members = members.iter().map(|(name, weight)| Member {
            name,
            weight: *weight,
        });
        turns(&members.collect::<Vec<_>>(), slots)
    }

    #[test]
    fn who_weighs_more_comes_more_often_and_evenly() {
        assert_eq!(of(&[("b", 1), ("a", 1)], 5), [1, 0, 1, 0, 1]);
        assert_eq!(
            of(&[("a", 5), ("b", 1), ("c", 1)], 7),
            [0, 0, 1, 0, 2, 0, 0]
        );
        assert_eq!(of(&[("a", 0), ("b", 3)], 3), [1, 1, 1]);
        assert!(of(&[("a", 0)], 3).is_empty() && of(&[], 3).is_empty());
        // In every stretch as long as the sum of weights, wherever it begins.
        let weights = [("a", 7), ("b", 3), ("c", 1), ("d", 2)];
        let ring = of(&weights, 400);
        for stretch in ring.windows(13) {
            for (n, (_, weight)) in weights.iter().enumerate() {
                let turns = stretch.iter().filter(|taker| **taker == n).count();
                assert_eq!(turns, *weight as usize);
            }
        }
    }
}

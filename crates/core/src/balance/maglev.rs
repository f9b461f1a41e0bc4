//! The ring of a pool after Maglev (Eisenbud et al., NSDI 2016, section 3.4), with
//! weights: every real has a permutation of all slots of its own, and the reals take
//! turns at taking the next slot of theirs that is free, a real of twice the weight twice
//! as often. The ring depends on which reals there are and not on their order, so two
//! weirs with one configuration choose the same real, and when one real goes, few slots
//! of the others change.

/// A real that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// What it is known by; different for each.
    pub name: &'a str,
    /// Its share, of the sum of all; one with 0 takes no flow.
    pub weight: u32,
}

/// For each of `slots`, a prime, the place in `members` of who takes it; empty when
/// nobody does.
pub fn ring(members: &[Member<'_>], slots: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..members.len())
        .filter(|n| members[*n].weight > 0)
        .collect();
    order.sort_unstable_by_key(|n| members[*n].name);
    let Some(most) = order.iter().map(|n| members[*n].weight).max() else {
        return Vec::new();
    };
    struct Turn {
        member: usize,
        next: usize,
        skip: usize,
        weight: u64,
        credit: u64,
    }
    let mut turns: Vec<Turn> = order
        .iter()
        .map(|&member| {
            let name = members[member].name.as_bytes();
            Turn {
                member,
                next: (hash(name, 0x9ae1_6a3b_2f90_404f) % slots as u64) as usize,
                skip: (hash(name, 0xc3a5_c85c_97cb_3127) % (slots as u64 - 1) + 1) as usize,
                weight: members[member].weight.into(),
                credit: 0,
            }
        })
        .collect();
    let mut ring = vec![usize::MAX; slots];
    let mut filled = 0;
    loop {
        for turn in &mut turns {
            turn.credit += turn.weight;
            if turn.credit < u64::from(most) {
                continue;
            }
            turn.credit -= u64::from(most);
            while ring[turn.next] != usize::MAX {
                turn.next = (turn.next + turn.skip) % slots;
            }
            ring[turn.next] = turn.member;
            filled += 1;
            if filled == slots {
                return ring;
            }
        }
    }
}

/// FNV-1a, and a finish that spreads it: similar names are to differ in every bit.
fn hash(name: &[u8], seed: u64) -> u64 {
    let mut hash = name.iter().fold(seed, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOTS: usize = 16381;

    fn members<'a>(names: &'a [String], weights: &[u32]) -> Vec<Member<'a>> {
        let both = names.iter().zip(weights);
        both.map(|(name, &weight)| Member { name, weight })
            .collect()
    }

    fn shares(ring: &[usize], members: usize) -> Vec<usize> {
        let mut shares = vec![0; members];
        ring.iter().for_each(|n| shares[*n] += 1);
        shares
    }

    #[test]
    fn nobody_takes_what_is_for_nobody() {
        assert!(ring(&[], SLOTS).is_empty());
        let none = Member {
            name: "10.0.0.1",
            weight: 0,
        };
        assert!(ring(&[none], SLOTS).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// The share that its weight says, but for the last round: in that, those whose turn
        /// has come have a slot more, and each has been owed a part of one.
        #[test]
        fn each_has_the_share_of_its_weight(weights in prop::collection::vec(1..=10u32, 1..40)) {
            let names: Vec<_> = (0..weights.len()).map(|n| format!("10.0.0.{n}")).collect();
            let shares = shares(&ring(&members(&names, &weights), SLOTS), weights.len());
            let sum: u32 = weights.iter().sum();
            for (share, weight) in shares.iter().zip(&weights) {
                let due = SLOTS as f64 * f64::from(*weight) / f64::from(sum);
                let owed = weights.len() as f64 * f64::from(*weight) / f64::from(sum);
                prop_assert!((*share as f64 - due).abs() <= 1.0 + owed, "{share} of {due}");
            }
        }

        #[test]
        fn the_order_of_reals_is_none_of_its_business(
            weights in prop::collection::vec(1..=5u32, 2..20),
            turn in 1..20usize,
        ) {
            let names: Vec<_> = (0..weights.len()).map(|n| format!("2001:db8::{n}")).collect();
            let one = members(&names, &weights);
            let mut other = one.clone();
            other.rotate_left(turn % one.len());
            other.reverse();
            let of_one = ring(&one, SLOTS);
            let of_other = ring(&other, SLOTS);
            for (a, b) in of_one.iter().zip(&of_other) {
                prop_assert_eq!(one[*a].name, other[*b].name);
            }
        }

        /// Of the slots of those that stay, few have another real when one goes.
        #[test]
        fn few_flows_of_others_move_when_a_real_goes(count in 3..30usize, gone in 0..30usize) {
            let gone = gone % count;
            let names: Vec<_> = (0..count).map(|n| format!("10.0.0.{n}")).collect();
            let mut weights = vec![1; count];
            let before = ring(&members(&names, &weights), SLOTS);
            weights[gone] = 0;
            let after = ring(&members(&names, &weights), SLOTS);
            let of_others = before.iter().zip(&after).filter(|(a, _)| **a != gone);
            let moved = of_others.filter(|(a, b)| a != b).count();
            prop_assert!(moved * 100 <= SLOTS * 12, "{moved} of {SLOTS}");
            prop_assert!(after.iter().all(|n| *n != gone));
        }
    }
}

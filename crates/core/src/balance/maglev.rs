//! The ring of a pool: for each slot the real that takes flows with that hash. A table as
//! that of Maglev (Eisenbud et al., NSDI 2016, section 3.4), with weights, and filled so
//! that hardly a flow moves that need not.
//!
//! Every real claims slots of its own choice at times of its own choice, one of twice the
//! weight twice as often, and a slot is of whoever claims it first. A claim that comes too
//! late is lost, so no real's claims depend on who else there is: when one goes, its slots
//! fall to whoever claimed them next, and all others stay. (In Maglev whoever comes too
//! late claims again in the same turn, and that moves up to 12 % of the others' slots.)
//!
//! First claims alone would share out as dice do. So nobody takes more than a hundredth
//! above its share; what it claims beyond that is left to the next. Which of two
//! neighbouring whole numbers that is says its name, for a change that moves every share by
//! a fraction is to move few slots. The less room there is above the shares, the more slots
//! of others move with one real's: without any 1.2 % of them were seen to, with this 0.7 %.
//!
//! The ring depends on which reals there are and not on their order, so two weirs with one
//! configuration choose the same real.

/// A real that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// The real's name, different for each.
    pub name: &'a str,
    /// The real's share, of the sum of all; one with 0 takes no flow.
    pub weight: u32,
}

/// The claims of a real.
struct Claims {
    member: usize,
    /// The position in the real's sequence of slots.
    state: u64,
    /// When the next one is due, and how long after it the one behind that.
    time: u64,
    step: u64,
    /// Slots that it may still take.
    room: u64,
}

impl Claims {
    /// SplitMix64, whose numbers are spread over the slots.
    fn next(&mut self, slots: usize) -> usize {
        self.time += self.step;
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        scale(z ^ z >> 31, slots as u64) as usize
    }
}

/// A random number made one below `limit`.
fn scale(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// Claims that are put in order at once: about so many, or one of each real.
const BATCH: u64 = 512;
/// The time between two claims of the heaviest real.
const UNIT: u64 = 1 << 24;
const FREE: usize = usize::MAX;
/// A real takes this part of its share more than that.
const ROOM: u128 = 100;

/// For each of `slots`, the place in `members` of who takes it; empty when nobody does.
pub fn ring(members: &[Member<'_>], slots: usize) -> Vec<usize> {
    let sum: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let Some(most) = members.iter().map(|member| member.weight).max() else {
        return Vec::new();
    };
    if most == 0 {
        return Vec::new();
    }
    let begin = |(member, one): (usize, &Member<'_>)| {
        let (name, weight) = (one.name.as_bytes(), u64::from(one.weight));
        let step = UNIT * u64::from(most) / weight;
        let share = ((slots as u128 * u128::from(weight)) << 32) / u128::from(sum);
        let limit = share + share / ROOM;
        let fraction = hash(name, 0x9ae1_6a3b_2f90_404f) >> 32;
        Claims {
            member,
            state: hash(name, 0xc3a5_c85c_97cb_3127),
            time: scale(hash(name, 0xb492_b66f_be98_f273), step),
            step,
            room: (limit as u64 + fraction) >> 32,
        }
    };
    let takes_part = |(_, one): &(usize, &Member<'_>)| one.weight > 0;
    let mut active: Vec<_> = members
        .iter()
        .enumerate()
        .filter(takes_part)
        .map(begin)
        .collect();
    active.retain(|claims| claims.room > 0);
    active.sort_unstable_by_key(|claims| (claims.time, members[claims.member].name));
    let mut ring = vec![FREE; slots];
    let mut free = slots;
    let mut batch = Vec::new();
    let mut end = 0;
    while free > 0 && !active.is_empty() {
        let weights = active
            .iter()
            .map(|claims| u64::from(members[claims.member].weight));
        let batch_len = BATCH.max(active.len() as u64);
        end += UNIT * u64::from(most) / weights.sum::<u64>() * batch_len;
        for (n, claims) in active.iter_mut().enumerate() {
            while claims.time < end {
                batch.push((claims.time, n, claims.next(slots)));
            }
        }
        batch.sort_unstable();
        for (_, n, slot) in batch.drain(..) {
            let claims = &mut active[n];
            if ring[slot] == FREE && claims.room > 0 {
                ring[slot] = claims.member;
                claims.room -= 1;
                free -= 1;
            }
        }
        active.retain(|claims| claims.room > 0);
    }
    // Shares were rounded down by chance: the rest, which is few, goes by chance, too.
    for (slot, taker) in ring
        .iter_mut()
        .enumerate()
        .filter(|(_, taker)| **taker == FREE)
    {
        let worth = |one: &Member<'_>| {
            let random = hash(one.name.as_bytes(), slot as u64) >> 32;
            (random * u64::from(one.weight), one.name.to_owned())
        };
        let best = (0..members.len()).max_by_key(|n| worth(&members[*n]));
        *taker = best.expect("there is one of some weight");
    }
    ring
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

    const SLOTS: usize = 65_537;

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

        /// And a hundredth more at most, with a slot for rounding and one that rounding leaves
        /// over; less by as much as dice may give less.
        #[test]
        fn each_has_the_share_of_its_weight(weights in prop::collection::vec(1..=10u32, 1..40)) {
            let names: Vec<_> = (0..weights.len()).map(|n| format!("10.0.0.{n}")).collect();
            let shares = shares(&ring(&members(&names, &weights), SLOTS), weights.len());
            let sum: u32 = weights.iter().sum();
            for (share, weight) in shares.iter().zip(&weights) {
                let due = SLOTS as f64 * f64::from(*weight) / f64::from(sum);
                let (most, least) = (due * 1.01 + 2.0, due - 5.0 * due.sqrt());
                prop_assert!(least <= *share as f64 && *share as f64 <= most, "{share} of {due}");
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

        /// Of the slots of those that stay, hardly one has another real when one goes, comes,
        /// or has another weight.
        #[test]
        fn hardly_a_flow_of_others_moves(
            weights in prop::collection::vec(1..=10u32, 2..60),
            changed in any::<prop::sample::Index>(),
            weight in 0..=20u32,
        ) {
            let names: Vec<_> = (0..weights.len()).map(|n| format!("10.0.0.{n}")).collect();
            let changed = changed.index(weights.len());
            let moved = moved(&names, &weights, SLOTS, changed, weight);
            prop_assert!(moved * 100 <= SLOTS, "{moved} of {SLOTS}");
        }
    }

    /// How many slots move that are neither the changed one's before nor after.
    fn moved(
        names: &[String],
        weights: &[u32],
        slots: usize,
        changed: usize,
        weight: u32,
    ) -> usize {
        let before = ring(&members(names, weights), slots);
        let mut weights = weights.to_owned();
        weights[changed] = weight;
        let after = ring(&members(names, &weights), slots);
        if after.is_empty() {
            return 0;
        }
        assert!(weight > 0 || after.iter().all(|n| *n != changed));
        let of_others = before.iter().zip(&after);
        let of_others = of_others.filter(|(a, b)| **a != changed && **b != changed);
        of_others.filter(|(a, b)| a != b).count()
    }

    #[test]
    fn hardly_a_flow_of_others_moves_among_a_thousand() {
        let names: Vec<_> = (0..1000)
            .map(|n| format!("10.0.{}.{}", n / 250, n % 250))
            .collect();
        let equal = vec![1; names.len()];
        let weighted: Vec<_> = (0..1000).map(|n| 1 + n % 10).collect();
        for slots in [16_381, SLOTS] {
            for weights in [&equal, &weighted] {
                for (changed, weight) in [(17, 0), (503, 0), (999, 5)] {
                    let moved = moved(&names, weights, slots, changed, weight);
                    assert!(moved * 100 <= slots, "{moved} of {slots}");
                }
            }
        }
    }
}

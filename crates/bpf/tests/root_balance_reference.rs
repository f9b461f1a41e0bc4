//! The balancer against the reference decision (`weir_core::balance::decision`), which shares
//! no code with it: random pools, and random packets by BPF_PROG_RUN on XDP and tc, IPv4 and
//! IPv6. Verdict, reason, counters and every byte that leaves have to agree. Root: loads BPF.

#[path = "root_balance_reference/cases.rs"]
mod cases;
#[path = "root_balance_reference/packets.rs"]
mod packets;
#[path = "root_balance_reference/path.rs"]
mod path;
#[path = "root_balance_reference/pools.rs"]
mod pools;

use std::collections::BTreeMap;

use packets::Packets;
use path::Path;

/// xorshift64*: the same pools and packets in every run of one seed.
pub(crate) struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// Random sets of pools, how often each changes, and packets between two changes.
const POOLS: usize = 100;
const CHANGES: usize = 3;
const PACKETS: usize = 250;

/// Another seed by `WEIR_BALANCE_SEED`.
fn seed() -> u64 {
    let given = std::env::var("WEIR_BALANCE_SEED").ok();
    given.map_or(0x9e37_79b9_7f4a_7c15, |seed| {
        seed.parse().expect("WEIR_BALANCE_SEED is a number")
    })
}

#[test]
fn root_the_balancer_decides_as_the_reference_does() {
    let seed = seed();
    println!("WEIR_BALANCE_SEED={seed}");
    let mut random = Random(seed.max(1));
    let mut path = Path::new();
    let mut fates: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..POOLS {
        path.begin(pools::generated(&mut random, path.next_id()));
        let mut packets = Packets::default();
        for change in 0..CHANGES {
            if change > 0 {
                path.change(|pools| pools::changed(&mut random, pools));
            }
            for n in 0..PACKETS {
                let (hook, frame) = packets.next(&mut random, &path.config);
                let what = format!("seed {seed}, pools {number}.{change}, packet {n}");
                let fate = path.agree(hook, &frame, &what);
                *fates.entry(fate).or_default() += 1;
            }
            path.counters_agree(&format!("seed {seed}, pools {number}.{change}"));
        }
    }
    println!("{fates:#?}");
    // It has been about everything, and not about packets that nobody serves.
    let all: usize = fates.values().sum();
    assert_eq!(all, POOLS * CHANGES * PACKETS);
    let leaves = |fate: &str| {
        [" to a real", " in an", " by QUIC", " and told"]
            .iter()
            .any(|part| fate.contains(part))
    };
    let left: usize = fates
        .iter()
        .filter(|(fate, _)| leaves(fate))
        .map(|(_, n)| n)
        .sum();
    assert!(left * 3 > all, "{left} of {all} leave");
    for family in ["IPv4", "IPv6"] {
        for fate in [
            "not served",
            "denied",
            "no real",
            "to the host",
            "malformed",
            "to a real, whole",
            "to a real, first fragment",
            "to a real, later fragment",
            "to a real, ICMP error",
            "in an outer packet, whole",
            "in an outer packet, first fragment",
            "in an outer packet, later fragment",
            "in an outer packet, ICMP error",
            "by QUIC",
            "too big",
            "too big and told",
        ] {
            let seen = fates.get(&format!("{family} {fate}")).copied().unwrap_or(0);
            assert!(seen >= 20, "{family} {fate}: {seen} of {all}");
        }
    }
}

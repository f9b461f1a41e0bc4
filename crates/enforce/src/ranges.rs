//! Prefixes as disjoint ranges of addresses: what sets of ranges take, which
//! refuse members that overlap.

use std::net::IpAddr;

use weir_core::Prefix;

/// The first and the last address of a range.
pub(crate) type Range<A> = (A, A);

/// The ranges of IPv4 and of IPv6, sorted, those that touch joined.
pub(crate) fn of_prefixes(
    prefixes: impl Iterator<Item = Prefix>,
) -> (Vec<Range<u32>>, Vec<Range<u128>>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for prefix in prefixes {
        match prefix.addr() {
            IpAddr::V4(addr) => {
                let first = addr.to_bits();
                let rest = u32::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
                v4.push((first, first | rest));
            }
            IpAddr::V6(addr) => {
                let first = addr.to_bits();
                let rest = u128::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
                v6.push((first, first | rest));
            }
        }
    }
    (
        joined(v4, |last| last.checked_add(1)),
        joined(v6, |last| last.checked_add(1)),
    )
}

/// All addresses of a list of prefixes.
#[derive(Default)]
pub(crate) struct Covered {
    v4: Vec<Range<u32>>,
    v6: Vec<Range<u128>>,
}

impl Covered {
    pub(crate) fn new(prefixes: impl Iterator<Item = Prefix>) -> Self {
        let (v4, v6) = of_prefixes(prefixes);
        Self { v4, v6 }
    }

    pub(crate) fn v4(&self) -> &[Range<u32>] {
        &self.v4
    }

    pub(crate) fn v6(&self) -> &[Range<u128>] {
        &self.v6
    }

    /// The fewest prefixes that hold the same addresses.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = Prefix> + '_ {
        let v4 = self.v4.iter();
        let v4 = v4.flat_map(|(first, last)| prefixes_of((*first).into(), (*last).into(), 32));
        let v6 = self.v6.iter();
        v4.chain(v6.flat_map(|(first, last)| prefixes_of(*first, *last, 128)))
    }

    /// Is any address of the prefix among them?
    pub(crate) fn touches(&self, prefix: Prefix) -> bool {
        match of_prefixes([prefix].into_iter()) {
            (v4, _) if !v4.is_empty() => meets(&self.v4, v4[0]),
            (_, v6) => v6.first().is_some_and(|span| meets(&self.v6, *span)),
        }
    }
}

fn meets<A: Copy + Ord>(spans: &[Range<A>], (first, last): Range<A>) -> bool {
    let at = spans.partition_point(|(_, end)| *end < first);
    spans.get(at).is_some_and(|(begin, _)| *begin <= last)
}

fn joined<A: Copy + Ord>(mut spans: Vec<Range<A>>, next: impl Fn(A) -> Option<A>) -> Vec<Range<A>> {
    spans.sort_unstable();
    let mut out: Vec<Range<A>> = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        match out.last_mut() {
            Some(before) if next(before.1).is_none_or(|next| first <= next) => {
                before.1 = before.1.max(last);
            }
            _ => out.push((first, last)),
        }
    }
    out
}

/// The prefixes that a range of addresses consists of.
pub(crate) fn prefixes_of(first: u128, last: u128, bits: u8) -> Vec<Prefix> {
    let mut prefixes = Vec::new();
    let mut at = first;
    loop {
        let aligned = match at {
            0 => u32::from(bits),
            at => at.trailing_zeros().min(bits.into()),
        };
        // As large as its alignment allows, and no further than the end.
        let left = last - at;
        let size = (0..=aligned)
            .rev()
            .find(|size| {
                let reach = u128::MAX.checked_shr(128 - size).unwrap_or(0);
                reach <= left
            })
            .unwrap_or(0);
        let addr = match bits {
            32 => IpAddr::V4((at as u32).into()),
            _ => IpAddr::V6(at.into()),
        };
        prefixes.extend(Prefix::new(addr, bits - size as u8));
        let reach = u128::MAX.checked_shr(128 - size).unwrap_or(0);
        match at.checked_add(reach).and_then(|end| end.checked_add(1)) {
            Some(next) if next <= last => at = next,
            _ => return prefixes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_touches_what_is_in_it_and_what_it_is_in() {
        let of = ["10.0.0.0/24", "10.0.2.7", "2001:db8::/48"];
        let covered = Covered::new(of.iter().map(|p| p.parse().unwrap()));
        for touched in [
            "10.0.0.9",
            "10.0.2.0/24",
            "0.0.0.0/0",
            "2001:db8::/64",
            "2001::/16",
        ] {
            assert!(covered.touches(touched.parse().unwrap()), "{touched}");
        }
        for other in ["10.0.1.0/24", "10.0.2.8", "11.0.0.0/8", "2001:db9::1"] {
            assert!(!covered.touches(other.parse().unwrap()), "{other}");
        }
        assert!(!Covered::default().touches("0.0.0.0/0".parse().unwrap()));
    }

    #[test]
    fn what_overlaps_or_touches_is_one_range() {
        let prefixes = [
            "10.1.0.0/16",
            "10.0.0.0/8",
            "11.0.0.0/8",
            "192.0.2.7",
            "255.255.255.255",
            "2001:db8::/32",
            "2001:db8::1",
        ];
        let (v4, v6) = of_prefixes(prefixes.iter().map(|p| p.parse().unwrap()));
        let address = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
        assert_eq!(
            v4,
            [
                (address("10.0.0.0"), address("11.255.255.255")),
                (address("192.0.2.7"), address("192.0.2.7")),
                (u32::MAX, u32::MAX),
            ]
        );
        assert_eq!(v6, [(0x2001_0db8 << 96, (0x2001_0db9 << 96) - 1)]);
    }
}

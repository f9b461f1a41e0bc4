//! Spans of addresses as the fewest prefixes: overlaps and neighbours joined,
//! exceptions taken out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::{Prefix, geo::Number};

/// From a first address to a last one, both included, as numbers.
pub(super) type Span<A> = (A, A);

/// Overlapping and neighbouring spans joined, in order.
pub(super) fn joined<A: Number>(mut spans: Vec<Span<A>>) -> Vec<Span<A>> {
    spans.sort_unstable();
    joined_in_order(&spans)
}

/// Overlapping and neighbouring spans joined, of spans in order.
pub(super) fn joined_in_order<A: Number>(spans: &[Span<A>]) -> Vec<Span<A>> {
    let mut out: Vec<Span<A>> = Vec::with_capacity(spans.len());
    for &(first, last) in spans {
        match out.last_mut() {
            Some(before) if before.1.next().is_none_or(|next| first <= next) => {
                before.1 = before.1.max(last);
            }
            _ => out.push((first, last)),
        }
    }
    out
}

/// What is left of joined spans without other joined spans.
pub(super) fn without<A: Number>(spans: Vec<Span<A>>, except: &[Span<A>]) -> Vec<Span<A>> {
    if except.is_empty() {
        return spans;
    }
    let mut out = Vec::with_capacity(spans.len());
    let mut at = 0;
    'spans: for (mut first, last) in spans {
        while at < except.len() && except[at].1 < first {
            at += 1;
        }
        for (from, to) in &except[at..] {
            if *from > last {
                break;
            }
            if *from > first {
                out.push((first, from.previous()));
            }
            match to.next() {
                Some(next) if next <= last => first = first.max(next),
                _ => continue 'spans,
            }
        }
        out.push((first, last));
    }
    out
}

/// The fewest prefixes that are exactly this span, in a family of `width` bits.
pub(super) fn prefixes<A: Number + Into<u128>>(
    span: Span<A>,
    width: u32,
) -> impl Iterator<Item = Prefix> {
    let (mut first, last): Span<u128> = (span.0.into(), span.1.into());
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        // One less than how many addresses are left: 2^128 does not fit.
        let left = last - first;
        let fits = match left.checked_add(1) {
            Some(size) => size.ilog2(),
            None => 128,
        };
        let bits = first.trailing_zeros().min(width).min(fits);
        let prefix = Prefix::new(address(first, width), (width - bits) as u8);
        let rest = match bits {
            128 => u128::MAX,
            bits => (1 << bits) - 1,
        };
        if left == rest {
            done = true;
        } else {
            first += rest + 1;
        }
        Some(prefix.expect("the length is within the family's width"))
    })
}

/// A span as text: a prefix if it is one.
pub(super) fn shown<A: Number + Into<u128>>(span: Span<A>, width: u32) -> String {
    let mut all = prefixes(span, width);
    match (all.next(), all.next()) {
        (Some(only), None) => only.to_string(),
        _ => {
            let [first, last] = [span.0, span.1].map(|end| address(end.into(), width));
            format!("{first}-{last}")
        }
    }
}

fn address(number: u128, width: u32) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if width == 32 => Ipv4Addr::from_bits(number).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(first: u128, last: u128, width: u32) -> Vec<String> {
        prefixes((first, last), width)
            .map(|p| p.to_string())
            .collect()
    }

    #[test]
    fn a_span_is_the_fewest_prefixes() {
        assert_eq!(parts(0, u32::MAX.into(), 32), ["0.0.0.0/0"]);
        assert_eq!(parts(0, u128::MAX, 128), ["::/0"]);
        assert_eq!(parts(5, 5, 32), ["0.0.0.5"]);
        assert_eq!(
            parts(1, 10, 32),
            [
                "0.0.0.1",
                "0.0.0.2/31",
                "0.0.0.4/30",
                "0.0.0.8/31",
                "0.0.0.10"
            ]
        );
        assert_eq!(
            parts(u128::MAX - 2, u128::MAX, 128),
            [
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffd",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"
            ]
        );
        assert_eq!(parts(1, u128::MAX, 128).len(), 128);
    }

    #[test]
    fn joining_and_taking_out_agree_with_sets() {
        let mut random = 7u64;
        let mut next = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as u128
        };
        for _ in 0..2000 {
            let mut spans = |most: u128| -> Vec<Span<u128>> {
                (0..next() % most)
                    .map(|_| {
                        let first = next() % 60;
                        (first, (first + next() % 9).min(63))
                    })
                    .collect()
            };
            let (taken, except) = (spans(9), spans(5));
            let holds = |spans: &[Span<u128>], n| spans.iter().any(|(a, b)| (*a..=*b).contains(&n));
            let left = without(joined(taken.clone()), &joined(except.clone()));
            for n in 0..64 {
                let expected = holds(&taken, n) && !holds(&except, n);
                assert_eq!(
                    holds(&left, n),
                    expected,
                    "{n}: {taken:?} without {except:?}"
                );
            }
            assert!(left.iter().all(|(a, b)| a <= b));
            assert!(left.windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}

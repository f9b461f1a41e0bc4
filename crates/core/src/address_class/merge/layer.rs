//! The inputs of the sweep: each a sequence of ranges of addresses, sorted and
//! disjoint, that is walked once and not copied.

use std::{borrow::Cow, net::IpAddr, slice};

use crate::{
    Prefix,
    geo::{Number, Span},
};

/// An address that prefixes of its family are made of.
pub(super) trait Family: Number {
    /// The prefixes of this family, of sorted ones.
    fn own(sorted: &[Prefix]) -> &[Prefix];
    /// The first and the last address of a prefix, if it is of this family.
    fn range(prefix: Prefix) -> Option<(Self, Self)>;
}

/// IPv4 comes first.
fn by_family(sorted: &[Prefix]) -> (&[Prefix], &[Prefix]) {
    sorted.split_at(sorted.partition_point(|prefix| prefix.addr().is_ipv4()))
}

impl Family for u32 {
    fn own(sorted: &[Prefix]) -> &[Prefix] {
        by_family(sorted).0
    }
    fn range(prefix: Prefix) -> Option<(Self, Self)> {
        let IpAddr::V4(addr) = prefix.addr() else {
            return None;
        };
        let first = addr.to_bits();
        let hosts = Self::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
        Some((first, first | hosts))
    }
}

impl Family for u128 {
    fn own(sorted: &[Prefix]) -> &[Prefix] {
        by_family(sorted).1
    }
    fn range(prefix: Prefix) -> Option<(Self, Self)> {
        let IpAddr::V6(addr) = prefix.addr() else {
            return None;
        };
        let first = addr.to_bits();
        let hosts = Self::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
        Some((first, first | hosts))
    }
}

/// Prefixes in the order of their first addresses; as they are, if they came so.
pub(super) fn sorted(prefixes: &[Prefix]) -> Cow<'_, [Prefix]> {
    match prefixes.is_sorted() {
        true => Cow::Borrowed(prefixes),
        false => {
            let mut prefixes = prefixes.to_vec();
            prefixes.sort_unstable();
            Cow::Owned(prefixes)
        }
    }
}

/// The source of a layer's ranges.
enum Ranges<'a, A> {
    GeoTable(slice::Iter<'a, Span<A, u16>>),
    /// Overlapping and adjacent prefixes are one range.
    Prefixes {
        rest: slice::Iter<'a, Prefix>,
        /// Read, and not part of the range before.
        ahead: Option<(A, A)>,
    },
}

/// A range, and what the layer says of its addresses.
struct Range<A> {
    first: A,
    last: A,
    value: u32,
}

impl<A: Family> Ranges<'_, A> {
    fn next(&mut self) -> Option<Range<A>> {
        let (rest, ahead) = match self {
            Self::GeoTable(rest) => {
                return rest.next().map(|span| Range {
                    first: span.first,
                    last: span.last,
                    value: u32::from(span.value) + 1,
                });
            }
            Self::Prefixes { rest, ahead } => (rest, ahead),
        };
        let mut ranges = rest.filter_map(|prefix| A::range(*prefix));
        let (first, mut last) = ahead.take().or_else(|| ranges.next())?;
        for range in ranges {
            if last.next().is_some_and(|next| range.0 > next) {
                *ahead = Some(range);
                break;
            }
            last = last.max(range.1);
        }
        Some(Range {
            first,
            last,
            value: 1,
        })
    }
}

/// One input of the sweep, at one address of it. It says 0 outside of its ranges.
pub(super) struct Layer<'a, A> {
    ranges: Ranges<'a, A>,
    /// The range that the sweep is in, or comes to next.
    current: Option<Range<A>>,
    inside: bool,
}

impl<'a, A: Family> Layer<'a, A> {
    /// The layer of a GeoTable, whose value is a place's number plus one.
    pub fn geo_table(spans: &'a [Span<A, u16>]) -> Self {
        Self::new(Ranges::GeoTable(spans.iter()))
    }

    /// 1 for what these prefixes hold, which are sorted.
    pub fn prefixes(sorted: &'a [Prefix]) -> Self {
        Self::new(Ranges::Prefixes {
            rest: A::own(sorted).iter(),
            ahead: None,
        })
    }

    fn new(mut ranges: Ranges<'a, A>) -> Self {
        let current = ranges.next();
        Self {
            ranges,
            current,
            inside: false,
        }
    }

    /// The first address from which on it says something else; `None`: it is the
    /// same to the end.
    pub fn change(&self) -> Option<A> {
        let range = self.current.as_ref()?;
        match self.inside {
            true => range.last.next(),
            false => Some(range.first),
        }
    }

    /// Goes to that address; returns what it says from there on.
    pub fn step(&mut self) -> u32 {
        self.inside = !self.inside;
        if !self.inside {
            self.current = self.ranges.next();
        }
        match &self.current {
            Some(range) if self.inside => range.value,
            _ => 0,
        }
    }
}

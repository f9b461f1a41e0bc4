//! Lays the atlas, the geofence's exceptions and the lists over one another.

use std::collections::HashMap;

use super::{Class, Classes, Cover, MAX_CLASSES, MAX_FENCES, MAX_LISTS};
use crate::{
    Prefix, Scope,
    fence::{Direction, Fate, Fence},
    geo::{Atlas, Number, Place, Span},
};

/// A list of denied prefixes.
#[derive(Clone, Copy, Debug)]
pub struct ListLayer<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which ports its entries may not use.
    pub scope: &'a Scope,
    /// Which packets it is about.
    pub direction: Direction,
    /// Its entries, in any order, overlapping as they like.
    pub prefixes: &'a [Prefix],
}

/// What is to be joined.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// What the database says.
    pub atlas: &'a Atlas,
    /// The rules of the geofence, the first that covers a flow decides.
    pub fences: &'a [Fence],
    /// The lists.
    pub lists: &'a [ListLayer<'a>],
}

/// There is no room for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{count} {what}; at most {most} are possible")]
pub struct TooMany {
    /// Of what.
    pub what: &'static str,
    /// How many.
    pub count: usize,
    /// How many are possible.
    pub most: usize,
}

/// Addresses that no list and no rule is about, whatever it says: those without
/// which a host has no network, and those that are no single host's. ::/24 holds
/// `::`, loopback and the mapped forms of IPv4.
pub const NEVER_JUDGED: [&str; 7] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/24",
    "fe80::/10",
    "ff00::/8",
];

/// One input of the sweep: disjoint sorted spans, of which the current one is
/// remembered. 0 is the value outside of them.
struct Layer<A> {
    spans: Vec<Span<A, u32>>,
    next: usize,
    now: u32,
}

impl<A: Number> Layer<A> {
    fn new(spans: Vec<Span<A, u32>>) -> Self {
        Self {
            spans,
            next: 0,
            now: 0,
        }
    }

    /// The first address from which on something else holds; `None`: to the end.
    fn change(&self) -> Option<A> {
        let span = self.spans.get(self.next)?;
        if self.now == 0 {
            Some(span.first)
        } else {
            span.last.next()
        }
    }

    /// Goes to `at`, where a change is.
    fn advance(&mut self, at: A) {
        while self.change() == Some(at) {
            if self.now != 0 {
                self.now = 0;
                self.next += 1;
            } else {
                self.now = self.spans[self.next].value;
            }
        }
    }
}

/// The prefixes of one family as disjoint sorted spans; overlaps are merged.
fn merged<A: Number>(mut spans: Vec<Span<A, u32>>) -> Vec<Span<A, u32>> {
    spans.sort_unstable_by_key(|span| (span.first, span.last));
    let mut out: Vec<Span<A, u32>> = Vec::with_capacity(spans.len());
    for span in spans {
        match out.last_mut() {
            Some(last) if last.last.next().is_none_or(|next| span.first <= next) => {
                last.last = last.last.max(span.last);
            }
            _ => out.push(span),
        }
    }
    out
}

fn v4(prefix: Prefix) -> Option<Span<u32, u32>> {
    let std::net::IpAddr::V4(addr) = prefix.addr() else {
        return None;
    };
    let first = addr.to_bits();
    let last = first | u32::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
    Some(Span {
        first,
        last,
        value: 1,
    })
}

fn v6(prefix: Prefix) -> Option<Span<u128, u32>> {
    let std::net::IpAddr::V6(addr) = prefix.addr() else {
        return None;
    };
    let first = addr.to_bits();
    let last = first | u128::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
    Some(Span {
        first,
        last,
        value: 1,
    })
}

impl Plan<'_> {
    /// Joins everything.
    ///
    /// # Errors
    /// More lists, rules or classes than there are places for.
    pub fn join(&self) -> Result<Classes, TooMany> {
        let room = |what, count, most| {
            if count > most {
                return Err(TooMany { what, count, most });
            }
            Ok(())
        };
        room("lists of denied prefixes", self.lists.len(), MAX_LISTS)?;
        room("rules of the geofence", self.fences.len(), MAX_FENCES)?;
        // Per place, then for the places in no span at all.
        let places = [Place::default()];
        let denied: Vec<Class> = places
            .iter()
            .chain(&self.atlas.places)
            .map(|place| self.class_of(place))
            .collect();
        let mut numbers = Numbers::default();
        let v4 = self.family(v4, &self.atlas.v4, &denied, &mut numbers);
        let v6 = self.family(v6, &self.atlas.v6, &denied, &mut numbers);
        room("classes of addresses", numbers.classes.len(), MAX_CLASSES)?;
        Ok(Classes {
            lists: self
                .lists
                .iter()
                .map(|list| Cover {
                    name: list.name.to_owned(),
                    scope: list.scope.clone(),
                    direction: list.direction,
                })
                .collect(),
            fences: self
                .fences
                .iter()
                .map(|fence| Cover {
                    name: fence.name.clone(),
                    scope: fence.scope.clone(),
                    direction: fence.direction,
                })
                .collect(),
            classes: numbers.classes,
            v4,
            v6,
        })
    }

    fn class_of(&self, place: &Place) -> Class {
        let mut class = Class::default();
        for (bit, fence) in self.fences.iter().enumerate() {
            if fence.judge(place) == Fate::Drop {
                class.denied |= 1 << bit;
                class.country = place.country;
            }
        }
        class
    }

    /// Sweeps over one family from its lowest address to its highest.
    fn family<A: Number>(
        &self,
        span: impl Fn(Prefix) -> Option<Span<A, u32>>,
        atlas: &[Span<A, u16>],
        denied: &[Class],
        numbers: &mut Numbers,
    ) -> Vec<Span<A, u16>> {
        let of = |prefixes: &mut dyn Iterator<Item = Prefix>| {
            Layer::new(merged(prefixes.filter_map(&span).collect()))
        };
        let mut layers = vec![Layer::new(
            atlas
                .iter()
                .map(|span| Span {
                    first: span.first,
                    last: span.last,
                    value: u32::from(span.value) + 1,
                })
                .collect(),
        )];
        let (fences, lists) = (self.fences.len(), self.lists.len());
        let never = NEVER_JUDGED.map(|prefix| prefix.parse().expect("a prefix"));
        layers.push(of(&mut never.into_iter()));
        layers.extend(self.fences.iter().map(|f| of(&mut f.except.iter())));
        layers.extend(
            self.lists
                .iter()
                .map(|l| of(&mut l.prefixes.iter().copied())),
        );

        let mut out: Vec<Span<A, u16>> = Vec::new();
        let mut at = A::MIN;
        loop {
            for layer in &mut layers {
                layer.advance(at);
            }
            let mut class = denied[layers[0].now as usize];
            for (bit, except) in layers[2..][..fences].iter().enumerate() {
                if except.now != 0 {
                    class.denied &= !(1 << bit);
                }
            }
            if class.denied == 0 {
                class.country = None;
            }
            for (bit, list) in layers[2 + fences..][..lists].iter().enumerate() {
                class.lists |= u64::from(list.now != 0) << bit;
            }
            if layers[1].now != 0 {
                class = Class::default();
            }
            let end = layers.iter().filter_map(Layer::change).min();
            let last = end.map_or(A::MAX, A::previous);
            let value = numbers.number(class);
            if value != 0 {
                match out.last_mut() {
                    Some(before) if before.value == value && before.last.next() == Some(at) => {
                        before.last = last;
                    }
                    _ => out.push(Span {
                        first: at,
                        last,
                        value,
                    }),
                }
            }
            match end {
                Some(next) => at = next,
                None => return out,
            }
        }
    }
}

/// Numbers for classes as they come up.
struct Numbers {
    classes: Vec<Class>,
    known: HashMap<Class, u16>,
    /// The class asked for last: most spans repeat it.
    recent: (Class, u16),
}

impl Default for Numbers {
    fn default() -> Self {
        let nobody = Class::default();
        Self {
            classes: vec![nobody],
            known: HashMap::from([(nobody, 0)]),
            recent: (nobody, 0),
        }
    }
}

impl Numbers {
    fn number(&mut self, class: Class) -> u16 {
        if self.recent.0 == class {
            return self.recent.1;
        }
        let next = self.classes.len();
        let number = *self.known.entry(class).or_insert_with(|| {
            self.classes.push(class);
            // Beyond the limit the whole plan is refused at its end.
            u16::try_from(next).unwrap_or(u16::MAX)
        });
        self.recent = (class, number);
        number
    }
}

#[cfg(test)]
mod tests;

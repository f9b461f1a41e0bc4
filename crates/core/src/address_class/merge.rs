//! Lays the GeoTable, the geofence's exceptions and the lists over one another: one
//! sweep from the lowest address to the highest, from change to change. A heap
//! says whose change comes next, so that a change costs what the logarithm of the
//! number of layers does, and no layer is copied.

mod layer;

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, binary_heap::PeekMut},
};

use super::{Class, Classes, Cover, MAX_CLASSES, MAX_FENCES, MAX_LISTS};
use crate::{
    PortSet, Prefix,
    geo::{GeoTable, Place, Span},
    geofence::{Direction, Fence, RuleAction},
};
use layer::{Family, Layer, sorted};

/// A list of denied prefixes.
#[derive(Clone, Copy, Debug)]
pub struct ListLayer<'a> {
    /// The list's name, as configured.
    pub name: &'a str,
    /// The ports that the list's entries may not use.
    pub scope: &'a PortSet,
    /// The direction of the packets that the list denies.
    pub direction: Direction,
    /// The list's prefixes, in any order, overlapping as they like.
    pub prefixes: &'a [Prefix],
}

/// The databases, rules and lists that are merged into one table.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The country and system of each address, by the database.
    pub geo_table: &'a GeoTable,
    /// The rules of the geofence, the first that covers a flow decides.
    pub fences: &'a [Fence],
    /// Lists that deny, each with its ports.
    pub lists: &'a [ListLayer<'a>],
}

/// There is no room for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{count} {what}; at most {most} are possible")]
pub struct TooMany {
    /// The kind of thing there are too many of.
    pub what: &'static str,
    /// The number that the configuration has.
    pub count: usize,
    /// The most that there may be.
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
            .chain(&self.geo_table.places)
            .map(|place| self.class_of(place))
            .collect();
        let never = NEVER_JUDGED.map(|prefix| prefix.parse().expect("a prefix"));
        let mut prefixes = vec![Cow::from(sorted(&never).into_owned())];
        prefixes.extend(self.fences.iter().map(|fence| {
            let except: Vec<Prefix> = fence.except.iter().collect();
            Cow::from(sorted(&except).into_owned())
        }));
        prefixes.extend(self.lists.iter().map(|list| sorted(list.prefixes)));
        let mut numbers = Numbers::default();
        let v4 = self.family(&self.geo_table.v4, &prefixes, &denied, &mut numbers);
        let v6 = self.family(&self.geo_table.v6, &prefixes, &denied, &mut numbers);
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
            if fence.judge(place) == RuleAction::Drop {
                class.denied |= 1 << bit;
                class.country = place.country;
            }
        }
        class
    }

    /// Sweeps over one family from its lowest address to its highest. `prefixes`:
    /// what is never judged, then the exceptions of each rule, then the lists.
    fn family<A: Family>(
        &self,
        geo_table: &[Span<A, u16>],
        prefixes: &[Cow<'_, [Prefix]>],
        denied: &[Class],
        numbers: &mut Numbers,
    ) -> Vec<Span<A, u16>> {
        let mut layers = vec![Layer::geo_table(geo_table)];
        layers.extend(prefixes.iter().map(|prefixes| Layer::prefixes(prefixes)));
        let changes = layers.iter().enumerate();
        let changes = changes.filter_map(|(n, layer)| Some(Reverse((layer.change()?, n))));
        let mut changes: BinaryHeap<_> = changes.collect();
        let lists = 2 + self.fences.len();

        let mut out: Vec<Span<A, u16>> = Vec::new();
        let mut here = Here::default();
        let mut at = A::MIN;
        loop {
            while let Some(mut next) = changes.peek_mut() {
                let Reverse((change, n)) = *next;
                if change != at {
                    break;
                }
                let layer = &mut layers[n];
                let value = layer.step();
                let held = u64::from(value != 0);
                match n {
                    0 => here.place = value as usize,
                    1 => here.never = value != 0,
                    n if n < lists => set(&mut here.except, n - 2, held),
                    n => set(&mut here.lists, n - lists, held),
                }
                match layer.change() {
                    Some(change) => *next = Reverse((change, n)),
                    None => drop(PeekMut::pop(next)),
                }
            }
            let end = changes.peek().map(|Reverse((change, _))| *change);
            let last = end.map_or(A::MAX, A::previous);
            let value = numbers.number(here.class(denied));
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

/// What the layers say of the addresses that the sweep is at.
#[derive(Default)]
struct Here {
    /// The place's number and one.
    place: usize,
    never: bool,
    /// The rules that except them, and the lists that hold them, a bit each.
    except: u64,
    lists: u64,
}

fn set(bits: &mut u64, bit: usize, to: u64) {
    *bits = *bits & !(1 << bit) | to << bit;
}

impl Here {
    /// `denied`: the class of each place by the rules alone.
    fn class(&self, denied: &[Class]) -> Class {
        if self.never {
            return Class::default();
        }
        let mut class = denied[self.place];
        // There are no more rules than bits.
        class.denied &= !(self.except as u16);
        if class.denied == 0 {
            class.country = None;
        }
        class.lists = self.lists;
        class
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

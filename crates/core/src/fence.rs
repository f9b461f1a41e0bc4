//! The geofence: rules that say from which places flows may begin. A rule
//! covers ports and directions; the first rule that covers a flow decides it.

use crate::{
    PrefixSet, Scope,
    geo::{Place, Selector},
};

/// Which way the first packet of a flow goes, seen from this host's interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Towards the host: its source is judged.
    In,
    /// Away from it: its destination is judged.
    Out,
    /// Either.
    Both,
}

impl Direction {
    /// Does it hold for packets that come in?
    pub fn inbound(self) -> bool {
        self != Self::Out
    }

    /// Does it hold for packets that go out?
    pub fn outbound(self) -> bool {
        self != Self::In
    }

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Both => "both",
        }
    }
}

/// What happens to a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It may begin.
    Pass,
    /// Its first packet is dropped.
    Drop,
}

/// One rule of the geofence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Its name in messages: `geofence`, or that of its section.
    pub name: String,
    /// Which local ports it covers.
    pub scope: Scope,
    /// Which way flows begin that it judges.
    pub direction: Direction,
    /// For places that neither list names.
    pub default: Fate,
    /// Places that may.
    pub allow: Vec<Selector>,
    /// Places that may not.
    pub deny: Vec<Selector>,
    /// For addresses of which the database does not know the country.
    pub unknown: Fate,
    /// Prefixes that the rule does not judge.
    pub except: PrefixSet,
}

impl Fence {
    /// May flows with this place begin? The most specific selector wins: system,
    /// then country, then continent; `deny` before `allow` in the same one.
    pub fn judge(&self, place: &Place) -> Fate {
        let named = [
            place.asn.map(Selector::Asn),
            place.country.map(Selector::Country),
            place.continent.map(Selector::Continent),
        ];
        for selector in named.into_iter().flatten() {
            if self.deny.contains(&selector) {
                return Fate::Drop;
            }
            if self.allow.contains(&selector) {
                return Fate::Pass;
            }
        }
        if place.country.is_none() && place.continent.is_none() {
            return self.unknown;
        }
        self.default
    }
}

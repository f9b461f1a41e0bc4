//! The geofence: rules that say from which places flows may begin. A rule
//! covers ports and directions; the first rule that covers a flow decides it.

use crate::{
    PortSet, PrefixSet,
    geo::{Place, Selector},
};

/// Which way the first packet of a flow goes, seen from this host's interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Packets towards the host: their source is judged.
    In,
    /// Away from it: its destination is judged.
    Out,
    /// Flows in both directions.
    Both,
}

impl Direction {
    /// Whether the direction holds for packets that come in.
    pub fn inbound(self) -> bool {
        self != Self::Out
    }

    /// Whether the direction holds for packets that go out.
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

/// The effect of a rule on a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleAction {
    /// The flow may begin.
    Pass,
    /// The flow's first packet is dropped.
    Drop,
}

/// One rule of the geofence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The rule's name in messages: `geofence`, or that of its section.
    pub name: String,
    /// The local ports that the rule covers.
    pub scope: PortSet,
    /// The direction of the flows that the rule judges.
    pub direction: Direction,
    /// The action for places that neither list names.
    pub default: RuleAction,
    /// Places that may.
    pub allow: Vec<Selector>,
    /// Places that may not.
    pub deny: Vec<Selector>,
    /// For addresses of which the database does not know the country.
    pub unknown: RuleAction,
    /// Prefixes that the rule does not judge.
    pub except: PrefixSet,
}

impl Fence {
    /// May flows with this place begin? The most specific selector wins: system,
    /// then country, then continent; `deny` before `allow` in the same one.
    pub fn judge(&self, place: &Place) -> RuleAction {
        let named = [
            place.asn.map(Selector::Asn),
            place.country.map(Selector::Country),
            place.continent.map(Selector::Continent),
        ];
        for selector in named.into_iter().flatten() {
            if self.deny.contains(&selector) {
                return RuleAction::Drop;
            }
            if self.allow.contains(&selector) {
                return RuleAction::Pass;
            }
        }
        if place.country.is_none() && place.continent.is_none() {
            return self.unknown;
        }
        self.default
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geo::Country;

    fn fence(default: RuleAction, allow: &[&str], deny: &[&str], unknown: RuleAction) -> Fence {
        let read = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
        Fence {
            name: "geofence".to_owned(),
            scope: PortSet::all(),
            direction: Direction::In,
            default,
            allow: read(allow),
            deny: read(deny),
            unknown,
            except: PrefixSet::default(),
        }
    }

    fn place(code: &str, asn: Option<u32>) -> Place {
        let country = Country::from_letters(code.as_bytes().try_into().unwrap()).unwrap();
        Place {
            country: Some(country),
            continent: country.continent(),
            asn,
        }
    }

    #[test]
    fn a_direction_is_one_way_or_both() {
        for (direction, name, inbound, outbound) in [
            (Direction::In, "in", true, false),
            (Direction::Out, "out", false, true),
            (Direction::Both, "both", true, true),
        ] {
            assert_eq!(direction.name(), name);
            assert_eq!(direction.inbound(), inbound, "{name}");
            assert_eq!(direction.outbound(), outbound, "{name}");
        }
    }

    #[test]
    fn the_most_specific_selector_wins() {
        use RuleAction::{Drop, Pass};
        let fence = fence(
            Pass,
            &["country:ZA", "asn:64496"],
            &["continent:AF", "country:RU", "asn:64497"],
            Pass,
        );
        for (code, asn, fate) in [
            ("NL", None, Pass),
            ("RU", None, Drop),
            ("NG", None, Drop),
            ("ZA", None, Pass),
            ("ZA", Some(64497), Drop),
            ("NG", Some(64496), Pass),
            ("RU", Some(64496), Pass),
            ("NL", Some(64497), Drop),
            ("NL", Some(64498), Pass),
        ] {
            assert_eq!(fence.judge(&place(code, asn)), fate, "{code} {asn:?}");
        }
    }

    #[test]
    fn a_continent_is_never_the_country_of_its_code() {
        // Rule G3: North America is allowed, Namibia is not; and so on.
        for code in ["NA", "SA", "AF", "AS"] {
            let continent = format!("continent:{code}");
            let allow = fence(RuleAction::Drop, &[&continent], &[], RuleAction::Drop);
            assert_eq!(allow.judge(&place(code, None)), RuleAction::Drop, "{code}");
            let country = format!("country:{code}");
            let deny = fence(RuleAction::Pass, &[], &[&country], RuleAction::Drop);
            for other in ["US", "BR", "NG", "CN"] {
                assert_eq!(deny.judge(&place(other, None)), RuleAction::Pass, "{code}");
            }
        }
    }

    #[test]
    fn an_unknown_country_has_a_fate_of_its_own() {
        // Rule G4, for every default.
        for default in [RuleAction::Pass, RuleAction::Drop] {
            for unknown in [RuleAction::Pass, RuleAction::Drop] {
                let fence = fence(default, &["country:NL", "asn:64496"], &[], unknown);
                assert_eq!(fence.judge(&Place::default()), unknown);
                let system = |asn| Place {
                    asn: Some(asn),
                    ..Place::default()
                };
                assert_eq!(fence.judge(&system(64496)), RuleAction::Pass);
                assert_eq!(fence.judge(&system(64497)), unknown);
                // A continent without a country is known.
                let europe = Place {
                    continent: Some(crate::geo::Continent::Eu),
                    ..Place::default()
                };
                assert_eq!(fence.judge(&europe), default);
            }
        }
    }
}

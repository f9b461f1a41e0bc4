//! Requirements that contradict each other: two about one port and source that want
//! different tokens, or one of which only logs, or is content with one in the SYN. The kernel
//! asks one of them, so the other would not hold, and nothing would say so.

use weir_config::Section;
use weir_core::{PortRange, Prefix};

use super::{Requirement, Scope};

/// Notes each requirement that contradicts an earlier one; each comes with its line, counted
/// through all files.
pub(super) fn check(section: &Section<'_, '_>, all: &[(Requirement, usize)]) {
    for (number, (later, line)) in all.iter().enumerate() {
        let before = all[..number].iter();
        let contradicting = before.filter(|(earlier, _)| !wants_the_same(earlier, later));
        let mut overlaps = contradicting
            .filter_map(|(earlier, at)| Some((earlier, *at, overlap(earlier, later)?)));
        let Some((earlier, at, overlap)) = overlaps.next() else {
            continue;
        };
        let what = if earlier.drops != later.drops {
            "have different modes (of a rule with peer it is \"require\")"
        } else if (earlier.scope == Scope::Daf) != (later.scope == Scope::Daf) {
            "want different things (one signatures of DAF, by compat, and the other tokens, as rules with peer do)"
        } else if earlier.scope != later.scope {
            "have different scopes (of a rule with peer it is \"flow\")"
        } else {
            "name different programs"
        };
        section.error(
            *line,
            format!(
                "{} and {} ({}) {what}, and both are about {overlap}, where only one of them could hold; allowed: the same programs, mode and scope in both, or ports or from that have nothing in common",
                table_of(later),
                table_of(earlier),
                section.full_place(at),
            ),
        );
    }
}

/// The head of the requirement's table.
fn table_of(requirement: &Requirement) -> String {
    match requirement.name.starts_with("app.rules.") {
        true => format!("[{}]", requirement.name),
        false => match requirement.name.strip_prefix("forward.") {
            Some(name) => format!("[token.forward.require.{name}]"),
            None => format!("[token.require.{}]", requirement.name),
        },
    }
}

/// Does whoever meets the one meet the other, and is done the same with others?
fn wants_the_same(one: &Requirement, other: &Requirement) -> bool {
    let has_all = |of: &Requirement, all: &Requirement| {
        let mut aggregates = of.aggregates.iter();
        aggregates.all(|digest| all.aggregates.contains(digest))
    };
    let is_alike = one.drops == other.drops && one.scope == other.scope;
    is_alike && has_all(one, other) && has_all(other, one)
}

/// A port and source that both are about, in words.
fn overlap(one: &Requirement, other: &Requirement) -> Option<String> {
    let both = |one: &PortRange, other: &PortRange| {
        let (low, high) = (one.low.max(other.low), one.high.min(other.high));
        let protocol = one.protocol;
        let is_both = protocol == other.protocol && low <= high;
        is_both.then_some(PortRange {
            protocol,
            low,
            high,
        })
    };
    let mut ports = one.ports.iter();
    let ports = ports.find_map(|range| {
        let mut others = other.ports.iter();
        others.find_map(|other| both(range, other))
    });
    let ports = ports?;
    let to = match (&one.to, &other.to) {
        (None, None) => None,
        // Sockets of this host, and what it forwards.
        (Some(_), None) | (None, Some(_)) => return None,
        (Some(to), Some(others)) => Some(both_of(to, others)?),
    };
    let source = match (&one.from, &other.from) {
        (None, None) => None,
        (Some(from), None) | (None, Some(from)) => Some(*from.first()?),
        (Some(from), Some(others)) => Some(both_of(from, others)?),
    };
    let to = to.map_or_else(String::new, |to| format!(" to {to}"));
    Some(match source {
        None => format!("{ports} from everybody{to}"),
        Some(source) => format!("{ports} from {source}{to}"),
    })
}

/// A network that is in both lists.
fn both_of(some: &[Prefix], others: &[Prefix]) -> Option<Prefix> {
    some.iter().find_map(|one| {
        let mut others = others.iter();
        others.find_map(|other| narrower(*one, *other))
    })
}

/// The one of two prefixes that is within the other one.
fn narrower(one: Prefix, other: Prefix) -> Option<Prefix> {
    match (one.covers(other), other.covers(one)) {
        (true, _) => Some(other),
        (_, true) => Some(one),
        _ => None,
    }
}

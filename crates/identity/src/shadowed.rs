//! Rules that never decide, because one before them does: shadowed ones, as they are called of
//! packet filters. What is told here is so whoever holds a socket and whatever lists, names and
//! namespaces stand for (see `decision`); a rule that several before it shadow together is not
//! found.

use weir_core::{
    balance::acl::Who,
    geofence::Direction::{Both, In, Out},
};

use crate::{
    Condition, Criterion, Peer, Peers, Protocols, Rule, Verdict,
    Verdict::{Allow, Log},
};

/// So many pairs of rules, and of their entries, are compared.
const MAX_COMPARED: u32 = 1 << 24;

/// A rule that never decides, but for these sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shadow {
    /// The number of the rule.
    pub rule: usize,
    /// The number of the rule before it that decides.
    pub by: usize,
    /// It does decide where somebody else holds the socket as well, whom the rule before it,
    /// which allows, is not about.
    pub but_shared: bool,
    /// It does decide of raw sockets, and those of other protocols than TCP, UDP and ICMP, which
    /// the rule before it, which allows, is not about.
    pub but_raw: bool,
}

/// The rules of a list that never decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadowed {
    /// Rules that never decide, in order.
    pub found: Vec<Shadow>,
    /// So many of the rules were compared with those before them: all, unless they have
    /// too many entries.
    pub compared: usize,
}

/// The rules that never decide.
pub fn shadowed(rules: &[Rule]) -> Shadowed {
    within(rules, MAX_COMPARED)
}

fn within(rules: &[Rule], comparisons: u32) -> Shadowed {
    let ports: Vec<_> = rules.iter().map(ports_of).collect();
    let mut left = Budget(comparisons);
    let mut found = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        // One with peer has its port want tokens, whatever decides there.
        if rule.verdict == Log || !rule.peer.is_empty() {
            continue;
        }
        for (by, before) in rules[..number].iter().enumerate() {
            if left.is_spent() {
                let compared = number;
                return Shadowed { found, compared };
            }
            let Some(but_shared) = is_shadowed_by(rule, before) else {
                continue;
            };
            let of_kind = |kind: usize| {
                let (these, wide) = (&ports[number][kind], &ports[by][kind]);
                these.are_within(wide, rule.verdict, before.verdict)
            };
            let but_raw = !(USUAL..KINDS.len()).all(of_kind);
            let is_usual = ports[number][..USUAL].iter().any(|ports| !ports.are_none());
            if (0..USUAL).all(of_kind)
                && (!but_raw || is_usual)
                && is_about_who(rule, before, but_shared, &mut left)
                && is_where(rule, before, &mut left)
            {
                found.push(Shadow {
                    rule: number,
                    by,
                    but_shared,
                    but_raw,
                });
                break;
            }
        }
    }
    Shadowed {
        found,
        compared: rules.len(),
    }
}

/// Comparisons that are left.
struct Budget(u32);

impl Budget {
    fn is_spent(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

/// May the verdicts be so that the one before decides wherever the other would? `Some(true)`: as
/// long as one program holds the socket.
fn is_shadowed_by(rule: &Rule, before: &Rule) -> Option<bool> {
    match (before.verdict, rule.verdict) {
        (Log, _) => None,
        _ if before.who.is_empty() => Some(false),
        // Who is nobody in particular is not within somebody.
        _ if rule.who.is_empty() => None,
        // All holders have to meet it, and one is enough for the other.
        (Allow, verdict) if verdict.holds_for_any() => Some(true),
        _ => Some(false),
    }
}

/// Is each program that the rule is about one that the rule before it is about?
fn is_about_who(rule: &Rule, before: &Rule, but_shared: bool, left: &mut Budget) -> bool {
    // What a rule that denies takes for shown one that allows does not.
    if but_shared && !rule.who.iter().all(is_certain) {
        return false;
    }
    let mut wide = before.who.iter();
    wide.all(|wide| rule.who.iter().any(|narrow| implies(narrow, wide, left)))
}

/// Does it say the same of a program in a rule that allows as in one that denies?
fn is_certain(condition: &Condition) -> bool {
    match condition.criterion {
        Criterion::Unit(_) => false,
        Criterion::Exe(_)
        | Criterion::Object(_)
        | Criterion::Aggregate(_)
        | Criterion::Path(_)
        | Criterion::Container(_) => !condition.is_negated,
        Criterion::User(_)
        | Criterion::Cgroup(_)
        | Criterion::Package(_)
        | Criterion::Script(_)
        | Criterion::Anonymous
        | Criterion::Altered => true,
    }
}

/// Does who meets `narrow` meet `wide` as well?
fn implies(narrow: &Condition, wide: &Condition, left: &mut Budget) -> bool {
    use Criterion::{
        Aggregate, Altered, Anonymous, Cgroup, Container, Exe, Object, Package, Path, Script, Unit,
        User,
    };
    if narrow.is_negated != wide.is_negated {
        return false;
    }
    let (a, b) = match narrow.is_negated {
        false => (&narrow.criterion, &wide.criterion),
        true => (&wide.criterion, &narrow.criterion),
    };
    match (a, b) {
        (Exe(a), Exe(b)) | (Object(a), Object(b)) | (Aggregate(a), Aggregate(b)) => {
            is_part(a, b, PartialEq::eq, left)
        }
        // By their paths: the files there change, for both rules alike.
        (Path(a), Path(b)) => is_part(a, b, |a, b| a.path == b.path, left),
        (User(a), User(b)) => is_part(a, b, PartialEq::eq, left),
        (Cgroup(a), Cgroup(b)) => is_part(a, b, PartialEq::eq, left),
        (Unit(a), Unit(b)) | (Package(a), Package(b)) => is_part(a, b, PartialEq::eq, left),
        (Container(a), Container(b)) => is_part(a, b, PartialEq::eq, left),
        (Script(a), Script(b)) => is_part(a, b, PartialEq::eq, left),
        (Anonymous, Anonymous) | (Altered, Altered) => true,
        _ => false,
    }
}

/// Is there one among `b` for each of `a`?
fn is_part<T>(a: &[T], b: &[T], is_in: impl Fn(&T, &T) -> bool, left: &mut Budget) -> bool {
    a.iter()
        .all(|a| b.iter().any(|b| !left.is_spent() && is_in(a, b)))
}

/// Kinds of sockets, each by itself.
const KINDS: [Protocols; 5] = [
    Protocols::TCP,
    Protocols::UDP,
    Protocols::ICMP,
    Protocols::RAW,
    Protocols::OTHER,
];

/// So many of them, from the first on, a rule that allows is about without naming them.
const USUAL: usize = 3;

/// At which ports a rule is about a kind of sockets.
#[derive(Debug, Default, Clone)]
struct Ports {
    /// At all, and where there is none.
    is_any: bool,
    /// First and last port, in order and apart.
    ranges: Vec<(u16, u16)>,
}

/// The ports of each of [`KINDS`].
fn ports_of(rule: &Rule) -> [Ports; KINDS.len()] {
    let mut of_kinds: [Ports; KINDS.len()] = Default::default();
    for (protocols, ranges) in rule.place.by_protocol() {
        for (kind, ports) in KINDS.iter().zip(&mut of_kinds) {
            let is_kind = match protocols.is_any() {
                true => {
                    rule.verdict.holds_for_any() || !Protocols::RAW.and(Protocols::OTHER).has(*kind)
                }
                false => protocols.has(*kind),
            };
            if is_kind {
                ports.is_any |= ranges.is_empty();
                ports.ranges.extend(&ranges);
            }
        }
    }
    for ports in &mut of_kinds {
        ports.ranges.sort_unstable();
        ports.ranges.dedup_by(|next, last| {
            let joins = u32::from(next.0) <= u32::from(last.1) + 1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
    }
    of_kinds
}

impl Ports {
    fn are_none(&self) -> bool {
        !self.is_any && self.ranges.is_empty()
    }

    fn are_within(&self, wide: &Self, verdict: Verdict, of_wide: Verdict) -> bool {
        // Of packets without a port that is known only a rule that denies is about its ports.
        let has_unknown = of_wide.holds_for_any();
        let wants_unknown = self.is_any || verdict.holds_for_any();
        let has = |(low, high): &(u16, u16)| {
            let mut ranges = wide.ranges.iter();
            ranges.any(|(first, last)| first <= low && high <= last)
        };
        self.are_none()
            || wide.is_any
            || (has_unknown || !wants_unknown)
                && (!self.is_any || has(&(0, u16::MAX)))
                && self.ranges.iter().all(has)
    }
}

/// Does the rule before it hold in each direction, for each peer and in each namespace?
fn is_where(rule: &Rule, before: &Rule, left: &mut Budget) -> bool {
    let (place, wide) = (&rule.place, &before.place);
    let is_namespace = wide.netns.is_none() || wide.netns == place.netns;
    let is_direction = wide.direction == Both || wide.direction == place.direction;
    let mut has = |peers: &Option<Peers>, wide: &Option<Peers>| match (peers, wide) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(peers), Some(wide)) => has_peers(peers, wide, (rule, before), left),
    };
    is_namespace
        && is_direction
        && (place.direction == In || has(&place.to, &wide.to))
        && (place.direction == Out || has(&place.from, &wide.from))
}

fn has_peers(peers: &Peers, wide: &Peers, of: (&Rule, &Rule), left: &mut Budget) -> bool {
    if peers.is_negated != wide.is_negated {
        return false;
    }
    // While one of them is not known, a rule about all others holds for everybody or nobody.
    let may_be_unknown = |peer: &Peer| !matches!(peer, Peer::Known(Who::Prefix(_) | Who::Place(_)));
    let mut all = peers.entries.iter().chain(&wide.entries);
    if peers.is_negated && all.any(may_be_unknown) {
        let (rule, before) = of;
        let is_as_wide = before.verdict.holds_for_any() || !rule.verdict.holds_for_any();
        return is_as_wide && !left.is_spent() && peers == wide;
    }
    let is_in = |a: &Peer, b: &Peer| match (a, b) {
        (Peer::Known(Who::Prefix(a)), Peer::Known(Who::Prefix(b))) => b.covers(*a),
        (a, b) => a == b,
    };
    match peers.is_negated {
        false => is_part(&peers.entries, &wide.entries, is_in, left),
        true => is_part(&wide.entries, &peers.entries, is_in, left),
    }
}

#[cfg(test)]
mod tests;

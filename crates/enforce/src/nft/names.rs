//! What sets and chains are called and what comments in the table say: `nft list` shows
//! both, and the next daemon reads its bans from them.

use weir_core::{Action, BanSource, PortSet, Reason};

use super::{table::comment_of, wire::Attributes};
use crate::Policy;

/// Family and length of a prefix.
pub(super) type BackendHome = (usize, u8);

/// linux/netfilter_ipv4.h: before the table `raw`, connection tracking and
/// reassembly, so that fragments of banned sources take no memory.
pub(super) const PRIORITY_IN: i32 = -450;
/// The judgement of a family's packets at a device's own hook: without answers,
/// which the kernel has further up only.
pub(super) const FRONT: [&str; 2] = ["front4", "front6"];
/// The devices whose own hook judges, by their numbers.
pub(super) const COVERED: &str = "covered";

/// What a set of bans is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Use {
    /// Bans of all ports of subjects without an allowed address: dropped at once.
    Sure,
    /// Bans of all ports of the others.
    All,
    /// Whoever has a ban of some ports.
    Some,
    /// Bans of the scope with this number.
    PortSet(u32),
    /// Whoever has a ban that rejects.
    Rejecting,
    /// Bans that reject, of the scope with this number; 0: of all ports.
    Reject(u32),
    /// Bans of a scope that a longer one of the same scope stands in front of,
    /// counted from 1: no packet asks for them, only the next daemon.
    Behind(u32, usize),
}

/// The number of the scope of all ports.
pub(super) const ALL_PORTS: u32 = 0;

pub(super) fn set((family, length): BackendHome, what: Use) -> String {
    let of = format!("bans{}-{length}", [4, 6][family]);
    match what {
        Use::Sure => format!("{of}-sure"),
        Use::All => format!("{of}-all"),
        Use::Some => format!("{of}-some"),
        Use::PortSet(scope) => format!("{of}-ports-{scope}"),
        Use::Rejecting => format!("{of}-rejecting"),
        Use::Reject(scope) => format!("{of}-reject-{scope}"),
        Use::Behind(scope, rank) => format!("{of}-behind-{scope}-{rank}"),
    }
}

/// The prefix length of a set of bans and the number of their scope, by its
/// name; `None` of sets whose elements are in another one as well.
pub(super) fn read_set(name: &str) -> Option<(u8, u32)> {
    let rest = name
        .strip_prefix("bans4-")
        .or(name.strip_prefix("bans6-"))?;
    let mut parts = rest.split('-');
    let length = parts.next()?.parse().ok()?;
    let scope = match parts.next()? {
        "sure" | "all" => ALL_PORTS,
        "ports" | "reject" | "behind" => parts.next()?.parse().ok()?,
        _ => return None,
    };
    Some((length, scope))
}

/// The chain that compares the ports of a scope, for bans that drop.
pub(super) fn scope_chain(number: u32) -> String {
    format!("scope-{number}")
}

/// The chain that compares the ports of a scope, for bans that reject.
pub(super) fn refused_chain(number: u32) -> String {
    format!("refused-{number}")
}

/// Where those are asked who have a ban of some ports.
pub(super) fn some_chain((family, length): BackendHome) -> String {
    format!("some{}-{length}", [4, 6][family])
}

/// Where those are asked who have a ban that rejects.
pub(super) fn rejecting_chain((family, length): BackendHome) -> String {
    format!("rejecting{}-{length}", [4, 6][family])
}

/// In front of each range in the comments of a scope's chain.
pub(super) const ABOUT_SCOPE: &str = "ban of";

/// What a rule's comment says about the scope of its chain: its number, and one
/// of its ranges.
pub(super) fn read_scope(rule: Attributes<'_>) -> Option<(u32, PortSet)> {
    let number = rule.text(2)?.strip_prefix("scope-")?.parse().ok()?;
    let scope = comment_of(rule.get(7)?)?.strip_prefix(ABOUT_SCOPE)?;
    Some((number, scope.trim_start().parse().ok()?))
}

/// The comment at a rule that counts for a reason by itself.
pub(super) fn counts(reason: Reason) -> String {
    format!("counts {reason}")
}

/// The reason that such a comment names.
pub(super) fn read_counts(rule: Attributes<'_>) -> Option<&str> {
    comment_of(rule.get(7)?)?.strip_prefix("counts ")
}

/// The comment at a ban's element: who bans, and how if it is not by a drop.
pub(super) fn comment(policy: &Policy) -> String {
    match policy.action {
        Action::Drop => policy.producer.to_string(),
        Action::Reject | Action::Notify => format!("{} {}", policy.producer, policy.action),
    }
}

/// Reads the producer and the action from such a comment.
pub(super) fn read_comment(comment: &str) -> Option<(BanSource, Action)> {
    let (producer, action) = match comment.split_once(' ') {
        Some((producer, action)) => (producer, action.parse().ok()?),
        None => (comment, Action::Drop),
    };
    Some((producer.parse().ok()?, action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sets_are_read_back() {
        for place in [(0, 32), (0, 8), (1, 64), (1, 128)] {
            for (what, scope) in [
                (Use::Sure, 0),
                (Use::All, 0),
                (Use::PortSet(7), 7),
                (Use::Reject(0), 0),
                (Use::Reject(3), 3),
                (Use::Behind(7, 1), 7),
            ] {
                let name = set(place, what);
                assert_eq!(read_set(&name), Some((place.1, scope)), "{name}");
            }
            // They are in the others as well.
            for what in [Use::Some, Use::Rejecting] {
                assert_eq!(read_set(&set(place, what)), None);
            }
        }
        for other in ["bans5-1-sure", "bans4", "allow4", "bans4-x-sure", "bans4-8"] {
            assert_eq!(read_set(other), None);
        }
    }
}

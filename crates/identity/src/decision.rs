//! The decision that the kernel's programs (bpf/identity/judge.h) have to agree on, told
//! by its meaning and not by its bits: may the holders of a socket talk to this peer?
//!
//! The first rule that holds decides. One that allows holds if every holder meets it, one
//! that denies if any does. While a holder is not known, a rule about some programs may
//! hold or not: then `unknown` of the policy decides, unless a holder that is known
//! meets a rule that denies, or fails one that allows, whoever else there is. Of a holder
//! whose executable alone is known, rules that ask for nothing else are met or not.

use std::net::IpAddr;

use weir_core::geofence::Direction;

use crate::{
    Program, Protocols, Rule, Unknown, Verdict,
    policy::{ExecutableBits, Place, Policy, RuleBits},
};

/// A connection or a flow of datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The program began it; else its peer.
    pub is_outward: bool,
    /// One kind of socket.
    pub protocol: Protocols,
    /// The address at the other end.
    pub peer: IpAddr,
    /// The peer's port of what goes out, one's own of what comes in; `None`: it has none
    /// that is known, as raw sockets and fragments.
    pub port: Option<u16>,
    /// The socket's network namespace, by its inode.
    pub netns: u64,
}

/// Who holds a reference to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// By the places that it meets ([`Policy::met_by`]).
    Known(RuleBits),
    /// By its executable file alone ([`Policy::met_by_executable`]).
    Executable(ExecutableBits),
    /// Nobody knows yet, or it cannot be seen.
    Unknown,
}

impl Holder {
    /// Does the holder meet the place of this number? `None`: that is not known.
    fn meets(&self, place: usize) -> Option<bool> {
        match self {
            Self::Known(bits) => Some(bits.contains(place)),
            Self::Executable(bits) if bits.meets.contains(place) => Some(true),
            Self::Executable(bits) if !bits.may.contains(place) => Some(false),
            Self::Executable(_) | Self::Unknown => None,
        }
    }
}

/// What has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The place of this number.
    Place(usize),
    /// No rule holds: `default` of the policy has decided.
    Default,
    /// A rule might hold; `unknown` of the policy has decided.
    Unknown,
}

/// What becomes of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Allow, drop or reject.
    pub verdict: Verdict,
    /// It passes to be recorded, because its program is not known.
    pub is_learned: bool,
    /// What says so.
    pub by: DecidedBy,
}

impl Place {
    /// Is it about this flow, whoever holds the socket?
    pub fn is_about(&self, flow: &Flow) -> bool {
        let (goes, networks) = match flow.is_outward {
            true => (self.direction != Direction::In, &self.to),
            false => (self.direction != Direction::Out, &self.from),
        };
        let denies = self.verdict.holds_for_any();
        let is_kind = match self.protocols.is_any() {
            // Who may send anything at all is told so by name.
            true => denies || !Protocols::RAW.and(Protocols::OTHER).has(flow.protocol),
            false => self.protocols.has(flow.protocol),
        };
        let is_port = match flow.port {
            _ if self.ports.is_empty() => true,
            _ if flow.protocol == Protocols::ICMP => false,
            None => denies,
            Some(port) => self
                .ports
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&port)),
        };
        goes && is_kind
            && is_port
            && self.netns.is_none_or(|inode| inode == flow.netns)
            && networks
                .as_ref()
                .is_none_or(|networks| networks.hold(flow.peer))
    }
}

impl Policy {
    /// The rules that log this flow of these holders.
    pub fn logged<'a>(
        &'a self,
        holders: &'a [Program],
        flow: &'a Flow,
    ) -> impl Iterator<Item = &'a Rule> {
        let logs = self.logs.iter().filter(|place| place.is_about(flow));
        let rules = logs.map(|place| &self.rules[place.rule]);
        rules.filter(|rule| {
            rule.who.is_empty() || holders.iter().any(|program| rule.is_about(program))
        })
    }

    /// What becomes of a flow of a socket with these holders; without any, it is a socket
    /// whose holder cannot be seen.
    pub fn decide(&self, holders: &[Holder], flow: &Flow) -> Decision {
        // Somebody holds it who cannot be seen.
        let holders = match holders {
            [] => &[Holder::Unknown],
            holders => holders,
        };
        for (number, place) in self.places.iter().enumerate() {
            if !place.is_about(flow) {
                continue;
            }
            let decides = Decision {
                verdict: place.verdict,
                is_learned: false,
                by: DecidedBy::Place(number),
            };
            if !place.has_who {
                return decides;
            }
            let says = |answer| holders.iter().any(|holder| holder.meets(number) == answer);
            let (is_met, is_open) = match place.verdict.holds_for_any() {
                true => (says(Some(true)), says(None)),
                false => (!says(Some(false)) && !says(None), !says(Some(false))),
            };
            if is_met {
                return decides;
            }
            if is_open {
                return self.unknown();
            }
        }
        Decision {
            verdict: self.default,
            is_learned: false,
            by: DecidedBy::Default,
        }
    }

    fn unknown(&self) -> Decision {
        Decision {
            verdict: match self.unknown {
                Unknown::Drop => Verdict::Drop,
                Unknown::Learn | Unknown::Allow => Verdict::Allow,
            },
            is_learned: self.unknown == Unknown::Learn,
            by: DecidedBy::Unknown,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

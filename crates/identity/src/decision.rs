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
    policy::{ExecutableBits, Networks, Place, Policy, RuleBits},
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
        self.is_of_kind(flow) && self.has_port(flow) && self.has_peer(flow)
    }

    fn is_of_kind(&self, flow: &Flow) -> bool {
        let goes = match flow.is_outward {
            true => self.direction != Direction::In,
            false => self.direction != Direction::Out,
        };
        let denies = self.verdict.holds_for_any();
        let is_kind = match self.protocols.is_any() {
            // Who may send anything at all is told so by name.
            true => denies || !Protocols::RAW.and(Protocols::OTHER).has(flow.protocol),
            false => self.protocols.has(flow.protocol),
        };
        goes && is_kind && self.netns.is_none_or(|inode| inode == flow.netns)
    }

    fn has_port(&self, flow: &Flow) -> bool {
        match flow.port {
            _ if self.ports.is_empty() => true,
            _ if flow.protocol == Protocols::ICMP => false,
            None => self.verdict.holds_for_any(),
            Some(port) => self
                .ports
                .iter()
                .any(|(low, high)| (*low..=*high).contains(&port)),
        }
    }

    fn networks(&self, is_outward: bool) -> &Option<Networks> {
        match is_outward {
            true => &self.to,
            false => &self.from,
        }
    }

    fn has_peer(&self, flow: &Flow) -> bool {
        let networks = self.networks(flow.is_outward).as_ref();
        networks.is_none_or(|networks| networks.hold(flow.peer))
    }

    /// Does it ask who the peer is: its address, or the port that the program sends to?
    fn asks_peer(&self, is_outward: bool) -> bool {
        self.networks(is_outward).is_some() || is_outward && !self.ports.is_empty()
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
        let about = |(_, place): &(usize, &Place)| place.is_about(flow);
        let mut places = self.places.iter().enumerate().filter(about);
        let decided = places.find_map(|(number, place)| self.decide_at(number, place, holders));
        decided.unwrap_or_else(|| self.by_default())
    }

    /// What becomes of flows of these holders with whatever peer: what each place says that asks
    /// who the peer is, for those that it names, and last what holds for everybody else. The
    /// peer of `flow`, and of one that goes out the port, are nobody's.
    pub fn decide_for_any_peer(&self, holders: &[Holder], flow: &Flow) -> Vec<(Decision, bool)> {
        let mut found: Vec<(Decision, bool)> = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            let is_narrow = place.asks_peer(flow.is_outward);
            let any_port = flow.is_outward && Protocols::TCP.and(Protocols::UDP).has(flow.protocol);
            if !place.is_of_kind(flow) || !(any_port || place.has_port(flow)) {
                continue;
            }
            let Some(decision) = self.decide_at(number, place, holders) else {
                continue;
            };
            if !is_narrow {
                found.push((decision, true));
                return found;
            }
            if !found.contains(&(decision, false)) {
                found.push((decision, false));
            }
        }
        found.push((self.by_default(), true));
        found
    }

    /// What a place says that is about the flow; `None`: it does not hold for these holders.
    fn decide_at(&self, number: usize, place: &Place, holders: &[Holder]) -> Option<Decision> {
        // Somebody holds it who cannot be seen.
        let holders = match holders {
            [] => &[Holder::Unknown],
            holders => holders,
        };
        let decides = Decision {
            verdict: place.verdict,
            is_learned: false,
            by: DecidedBy::Place(number),
        };
        if !place.has_who {
            return Some(decides);
        }
        let says = |answer| holders.iter().any(|holder| holder.meets(number) == answer);
        let (is_met, is_open) = match place.verdict.holds_for_any() {
            true => (says(Some(true)), says(None)),
            false => (!says(Some(false)) && !says(None), !says(Some(false))),
        };
        if is_met {
            return Some(decides);
        }
        is_open.then(|| self.unknown())
    }

    fn by_default(&self) -> Decision {
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

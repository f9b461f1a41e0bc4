//! The decision that the balancer in the kernel (`bpf/balance/balance.h`) has to agree on:
//! what becomes of a frame, byte by byte. It is written from the standards and the guide
//! (`docs/guide/balance.md`, `docs/guide/reals-beyond-a-router.md`) in the plainest way, to
//! compare the packet path with. It shares no code with it, and nobody may make it fast.
//! No program of weir's asks it: it is the reference of a test program
//! (`crates/bpf/tests/root_balance_reference.rs`), as `crate::verdict` is of the backends.
//!
//! Given are frames that the firewall lets pass. Where the standards leave a choice:
//! * The host's stack has what is no pool's: other addresses and ports, IPv4 options, IPv6
//!   extension headers but that of a fragment, ICMP but errors, whatever ends before its
//!   ports; and of a pool's what has no hop left, is addressed to another host's link-layer
//!   address or to a group, or has another VLAN than its real, or two tags. A real beyond a
//!   router takes no tag, not even one of VLAN 0.
//! * Ports are where they stand in the frame. A packet that is longer or shorter by its own
//!   account leaves for a real on the segment as it is, which knows what to do with it. For
//!   one beyond a router the account says how long the outer packet is; if the frame is
//!   shorter, the host's stack has it, as malformed. A datagram's server ID of QUIC is within
//!   the length of the datagram.
//! * Which real a new flow goes to is a function of its [`Affinity`], whose hash is nobody's
//!   business here: a [`Memory`] learns from what is seen, and demands the same afterwards.

mod departure;
mod packet;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

pub use departure::{Departure, Fate, Spread};
use packet::Packet;
pub use packet::{Flow, Fragments, Part};

use super::{
    acl::{Access, Acl},
    quic::ServerId,
};
use crate::{Protocol, Reason, geo::Place};

/// How a frame came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The index of its interface.
    pub ifindex: u32,
    /// Whether the kernel has made an skb of it, as for tc, and has taken its tag off. (One
    /// that had a tag cannot be given here.)
    pub is_skb: bool,
    /// The link-layer address of its interface, where the hook can tell: XDP cannot.
    pub mac: Option<[u8; 6]>,
}

/// By what a new flow finds its real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By both addresses and ports.
    Flow,
    /// By turns: each begins with the next real.
    Turn,
    /// By how many flows live at each real: how many somebody has counted is nobody's
    /// business here, so it may be any real.
    Least,
    /// By the client's address.
    Source,
    /// By the client's address and port.
    SourcePort,
}

/// Pools as they are now.
#[derive(Debug, Clone)]
pub struct Pools {
    /// Each has an address, protocol and port of its own.
    pub services: Vec<Service>,
    /// The pools that services name.
    pub pools: Vec<Pool>,
    /// The reals that pools name; `None`: it takes nothing.
    pub reals: Vec<Option<Real>>,
    /// Whether clients that access lists deny are counted and served.
    pub observe: bool,
}

/// A virtual address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// The virtual address.
    pub addr: IpAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The service's port; `None`: all ports that no other service of the address and
    /// protocol names.
    pub port: Option<u16>,
    /// The place of its pool.
    pub pool: usize,
}

/// Reals that share services.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The places of those that new flows go to; empty: nobody takes any.
    pub ring: Vec<u16>,
    /// How a new flow finds one of them.
    pub method: Method,
    /// Which clients are served; `None`: all.
    pub acl: Option<Acl>,
    /// Reals whose QUIC connections are known by their server IDs, all of one length.
    pub quic_servers: Vec<(ServerId, u16)>,
}

/// A server behind virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Real {
    /// Another real in its place has another.
    pub id: u64,
    /// The link-layer address of the real, or of the router before it.
    pub dest: [u8; 6],
    /// The link-layer address of the interface through which it is reached.
    pub source: [u8; 6],
    /// The index of that interface.
    pub ifindex: u32,
    /// The VLAN of the frames that it takes; 0: those without one.
    pub vlan: u16,
    /// How packets reach it beyond a router, without a VLAN.
    pub tunnel: Option<Tunnel>,
    /// Whether it takes no new flows and keeps those that it has.
    pub drains: bool,
}

/// The outer header of what goes to a real beyond a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// This host's address.
    pub source: IpAddr,
    /// The real's own address, of the same family.
    pub dest: IpAddr,
    /// Bytes of the largest outer packet.
    pub mtu: u32,
    /// The port of GUE; `None`: IP in IP.
    pub gue_port: Option<u16>,
}

/// What new flows have in common that go to one real while the pool stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Affinity {
    /// Both addresses and ports, to all pools with the method.
    Flow(usize, Flow),
    /// The client's address.
    Source(usize, IpAddr),
    /// The client's address and port.
    SourcePort(usize, IpAddr, u16),
}

/// What becomes of a frame.
#[derive(Debug, Clone)]
pub enum Decision<'a> {
    /// The frame is no pool's.
    NotServed,
    /// The access list denies its client; the place of the service.
    Denied(usize),
    /// A real is to have it.
    Served(Served<'a>),
}

/// A frame of a service, and where it may go.
#[derive(Debug, Clone)]
pub struct Served<'a> {
    /// The place of the service; not of a later fragment: see [`Choice::service`].
    pub service: usize,
    /// Whether its QUIC connection ID names a real that is there; `None`: it names nobody.
    pub is_quic_placed: Option<bool>,
    /// Each of these would be right.
    pub choices: Vec<Choice>,
    passes: Reason,
    arrival: Arrival,
    packet: Packet<'a>,
}

/// A real that may get a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The place of the real; that of nobody, where a pool has none.
    pub number: Option<u16>,
    /// The place of the service that counts it; of a later fragment that of its first one.
    pub service: usize,
    /// What becomes of the frame then.
    pub fate: Fate,
    by: By,
    /// The frame is addressed to this host, as far as it is known: a switch floods frames of
    /// other hosts, of which nothing is remembered.
    is_here: bool,
}

/// What says that a real gets a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The flow is there already.
    Memory,
    Affinity(Affinity),
    Turn,
    /// The frame names the real.
    Name,
}

/// A real as a flow knows it: its place, and its id.
type Known = (u16, u64);

/// What earlier frames say of later ones. Where it is not known which of several reals has
/// a flow, it is one of them.
#[derive(Debug, Default)]
pub struct Memory {
    /// `None`: it may be that it is not remembered.
    flows: HashMap<Flow, BTreeSet<Option<Known>>>,
    /// The service and the real of the first fragment; `None`: it may be that none was
    /// seen.
    fragments: HashMap<Fragments, BTreeSet<Option<(usize, Known)>>>,
    slots: HashMap<Affinity, BTreeSet<Option<u16>>>,
    /// Flows that their clients have ended, of pools with [`Method::Least`], where it is
    /// remembered; `false`: it may be so.
    ended: HashMap<Flow, bool>,
}

impl Memory {
    /// The reals of new flows have changed.
    pub fn forget_slots(&mut self) {
        self.slots.clear();
    }

    /// Notes which of the choices it has been: all that agree with what was seen.
    pub fn note(&mut self, pools: &Pools, served: &Served<'_>, seen: &[&Choice]) {
        let first = seen.first().map(|choice| choice.by);
        if let Some(By::Affinity(slot)) = first
            && seen.iter().all(|choice| Some(choice.by) == first)
        {
            let numbers = seen.iter().map(|choice| choice.number).collect();
            self.slots.insert(slot, numbers);
        }
        let known = |number: u16| pools.real(number).map(|real| (number, real.id));
        let numbers = seen.iter().filter_map(|choice| choice.number);
        let taken: BTreeSet<Known> = numbers.filter_map(known).collect();
        if taken.is_empty() {
            return;
        }
        let here = seen.iter().filter(|choice| choice.is_here);
        let here = here.filter_map(|choice| known(choice.number?)).map(Some);
        let here: BTreeSet<Option<Known>> = here.collect();
        let is_flooded = seen.iter().any(|choice| !choice.is_here);
        let flow = match served.packet.part {
            Part::FirstFragment(flow, fragments) => {
                let of_service = |known: &Option<Known>| known.map(|it| (served.service, it));
                let mut after: BTreeSet<_> = here.iter().map(of_service).collect();
                // No later one follows what is not for this host.
                if is_flooded {
                    let unknown = BTreeSet::from([None]);
                    after.extend(self.fragments.get(&fragments).unwrap_or(&unknown));
                }
                self.fragments.insert(fragments, after);
                flow
            }
            Part::Whole(flow) => flow,
            // They begin no flow.
            Part::LaterFragment(_) | Part::Error(_) => return,
        };
        let unknown = BTreeSet::from([None]);
        let before = self.flows.get(&flow).unwrap_or(&unknown);
        // One datagram that names another real moves no flow.
        let is_named = seen.iter().any(|choice| choice.by == By::Name);
        let (stay, leave): (BTreeSet<_>, BTreeSet<_>) = (before.iter().copied())
            .partition(|known| known.is_some_and(|known| pools.stays(known, &served.packet)));
        let is_left = stay.is_empty();
        let mut after = match (is_named, stay.is_empty(), leave.is_empty()) {
            (true, false, true) => stay,
            (true, false, false) => &stay | &here,
            _ => here,
        };
        let method = pools.pools[pools.services[served.service].pool].method;
        let is_whole = matches!(served.packet.part, Part::Whole(_));
        let ends = is_whole && method == Method::Least && served.packet.ends();
        let opens = is_whole && served.packet.opens();
        let all_here = seen.iter().all(|choice| choice.is_here);
        let any_here = seen.iter().any(|choice| choice.is_here);
        let all_stay = before
            .iter()
            .all(|known| known.is_some_and(|known| pools.stays(known, &served.packet)));
        match self.ended.get(&flow) {
            // What is not for this host ends nothing.
            _ if ends && !any_here => (),
            _ if ends => {
                self.ended.insert(flow, all_here);
            }
            None => (),
            // It is there as it was.
            Some(_) if all_stay && !opens => (),
            Some(_) if all_here && (opens || is_left) => {
                self.ended.remove(&flow);
            }
            Some(_) => {
                self.ended.insert(flow, false);
            }
        }
        // A flow does not leave its place either by what is not for this host.
        if is_flooded {
            after.extend(before);
        }
        self.flows.insert(flow, after);
    }
}

impl Pools {
    /// What becomes of a frame that the firewall lets pass, after what is remembered.
    pub fn decide<'a>(&self, memory: &Memory, arrival: &Arrival, frame: &'a [u8]) -> Decision<'a> {
        let Some(packet) = Packet::read(frame, arrival) else {
            return Decision::NotServed;
        };
        let mut served = Served {
            service: 0,
            is_quic_placed: None,
            choices: Vec::new(),
            passes: Reason::Pass,
            arrival: *arrival,
            packet,
        };
        let flow = match packet.part {
            Part::Whole(flow) | Part::FirstFragment(flow, _) | Part::Error(flow) => flow,
            Part::LaterFragment(fragments) => {
                let firsts = memory.fragments.get(&fragments).into_iter().flatten();
                for first in firsts {
                    let known = first.and_then(|(service, (number, id))| {
                        let real = self.real(number).filter(|real| real.id == id)?;
                        Some((service, number, real))
                    });
                    let choice = match known {
                        Some((service, number, real)) => {
                            served.service = service;
                            self.choice(&served, Some(number), Some(real), By::Memory)
                        }
                        // Where the others are nobody knows any more.
                        None => Choice {
                            number: None,
                            service: 0,
                            fate: Fate::Host(Reason::Pass),
                            by: By::Memory,
                            is_here: true,
                        },
                    };
                    served.choices.push(choice);
                }
                return match served.choices.is_empty() {
                    true => Decision::NotServed,
                    false => Decision::Served(served),
                };
            }
        };
        let serves = |port: Option<u16>| {
            let is_its = |service: &Service| {
                (service.addr, service.protocol, service.port) == (flow.vip, flow.protocol, port)
            };
            self.services.iter().position(is_its)
        };
        let Some(number) = serves(Some(flow.port)).or_else(|| serves(None)) else {
            return Decision::NotServed;
        };
        served.service = number;
        let pool_number = self.services[number].pool;
        let pool = &self.pools[pool_number];
        if let Some(acl) = &pool.acl {
            let rule = acl.deciding(flow.client, &Place::default(), |_| false);
            if rule.map_or(acl.default, |rule| rule.access) == Access::Deny {
                if !self.observe {
                    return Decision::Denied(number);
                }
                served.passes = Reason::Observed;
            }
        }
        let named = self.named(pool, &packet);
        served.is_quic_placed = named.map(|real| real.is_some());
        let mut reals: Vec<(Option<u16>, By)> = Vec::new();
        if let Some(Some(real)) = named {
            reals.push((Some(real), By::Name));
        } else {
            let before = memory.flows.get(&flow);
            // One more connection from the port of an earlier one.
            let opens = matches!(packet.part, Part::Whole(_)) && packet.opens();
            let ended = memory.ended.get(&flow).filter(|_| opens);
            // A pool that has no use for it may not see that one opens.
            let is_over = pool.method == Method::Least && ended == Some(&true);
            let stays = |known: &&Known| !is_over && self.stays(**known, &packet);
            let stay = before.into_iter().flatten().flatten().filter(stays);
            reals.extend(stay.map(|(number, _)| (Some(*number), By::Memory)));
            if ended.is_some() || before.is_none_or(|before| reals.len() < before.len()) {
                reals.extend(self.of_ring(memory, pool_number, &flow, &packet));
            }
        }
        for (number, by) in reals {
            let real = number.and_then(|number| self.real(number));
            let choice = self.choice(&served, number, real, by);
            served.choices.push(choice);
        }
        Decision::Served(served)
    }

    fn real(&self, number: u16) -> Option<&Real> {
        self.reals.get(usize::from(number))?.as_ref()
    }

    /// Does a known flow stay with its real with this packet? It leaves one that is gone,
    /// and one that drains with one more connection.
    fn stays(&self, (number, id): Known, packet: &Packet<'_>) -> bool {
        let begins = matches!(packet.part, Part::Whole(_)) && packet.opens();
        let real = self.real(number).filter(|real| real.id == id);
        real.is_some_and(|real| !(real.drains && begins))
    }

    /// The real that a QUIC packet's connection ID names; `Some(None)`: one that is not
    /// there.
    fn named(&self, pool: &Pool, packet: &Packet<'_>) -> Option<Option<u16>> {
        let (first, _) = pool.quic_servers.first()?;
        let named = packet.quic_server_id(first.bytes().len())?;
        let mut servers = pool.quic_servers.iter();
        let server = servers.find(|(id, _)| id.bytes() == named);
        Some(
            server
                .map(|(_, real)| *real)
                .filter(|real| self.real(*real).is_some()),
        )
    }

    /// The reals that a new flow may go to.
    fn of_ring(
        &self,
        memory: &Memory,
        number: usize,
        flow: &Flow,
        packet: &Packet<'_>,
    ) -> Vec<(Option<u16>, By)> {
        let pool = &self.pools[number];
        // What begins no flow that is remembered has no turn.
        let begins = matches!(packet.part, Part::Whole(_))
            && (flow.protocol == Protocol::Udp || packet.opens());
        let by = match pool.method {
            Method::Turn | Method::Least if begins => By::Turn,
            Method::Turn | Method::Least | Method::Flow => {
                By::Affinity(Affinity::Flow(number, *flow))
            }
            Method::Source => By::Affinity(Affinity::Source(number, flow.client)),
            Method::SourcePort => {
                let slot = Affinity::SourcePort(number, flow.client, flow.client_port);
                By::Affinity(slot)
            }
        };
        if let By::Affinity(slot) = by
            && let Some(numbers) = memory.slots.get(&slot)
        {
            return numbers.iter().map(|number| (*number, by)).collect();
        }
        if pool.ring.is_empty() {
            return vec![(None, by)];
        }
        pool.ring.iter().map(|number| (Some(*number), by)).collect()
    }

    fn choice(
        &self,
        served: &Served<'_>,
        number: Option<u16>,
        real: Option<&Real>,
        by: By,
    ) -> Choice {
        let fate = match real {
            Some(real) => departure::fate(&served.packet, &served.arrival, real, served.passes),
            None => Fate::Dropped(Reason::NoReal),
        };
        let is_here =
            real.is_none_or(|real| departure::is_here(&served.packet, &served.arrival, real));
        Choice {
            number,
            service: served.service,
            fate,
            by,
            is_here,
        }
    }
}

impl Served<'_> {
    /// How the frame belongs to its flow.
    pub fn part(&self) -> Part {
        self.packet.part
    }

    /// Whether it is served only because what would be dropped is observed.
    pub fn is_observed(&self) -> bool {
        self.passes == Reason::Observed
    }
}

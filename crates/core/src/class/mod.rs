//! Geofence and lists joined into one partition of all addresses: every
//! address has a class, and a class says which lists hold it and which rules of
//! the geofence deny it. This is what the kernel looks up per packet; its form
//! there is `weir-bpf`'s.

mod overlay;

pub use overlay::{ListLayer, NEVER_JUDGED, Plan, TooMany};

use std::net::IpAddr;

use crate::{
    Scope,
    fence::Direction,
    geo::{Country, Span, find},
};

/// Lists of denied prefixes at most: a bit each.
pub const MAX_LISTS: usize = 64;
/// Rules of the geofence at most: a bit each.
pub const MAX_FENCES: usize = 16;
/// Classes at most.
pub const MAX_CLASSES: usize = 65_535;

/// What holds for all addresses of a class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Class {
    /// The lists that hold them, a bit each in the order of [`Classes::lists`].
    pub lists: u64,
    /// The rules that deny them, in the order of [`Classes::fences`].
    pub denied: u16,
    /// Their country; named only where a rule denies them.
    pub country: Option<Country>,
}

/// What a list or rule covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cover {
    /// Its name.
    pub name: String,
    /// The ports: local ones for packets in, remote ones for packets out.
    pub scope: Scope,
    /// Packets in, out, or both.
    pub direction: Direction,
}

/// The partition. Class 0 is that of addresses nobody says anything about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Classes {
    /// The lists, by bit.
    pub lists: Vec<Cover>,
    /// The rules of the geofence, by bit.
    pub fences: Vec<Cover>,
    /// The classes; the first is the default one.
    pub classes: Vec<Class>,
    /// IPv4, sorted and disjoint, without class 0, neighbours joined.
    pub v4: Vec<Span<u32, u16>>,
    /// IPv6, in the same way.
    pub v6: Vec<Span<u128, u16>>,
}

impl Classes {
    /// The class of this address.
    pub fn class(&self, addr: IpAddr) -> Class {
        let index = match addr.to_canonical() {
            IpAddr::V4(a) => find(&self.v4, a.to_bits()),
            IpAddr::V6(a) => find(&self.v6, a.to_bits()),
        };
        index
            .and_then(|index| self.classes.get(usize::from(*index)))
            .copied()
            .unwrap_or_default()
    }

    /// Is there nothing to enforce?
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// What lists and geofence say about a flow's first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Nothing: it passes.
    Nothing,
    /// This list denies it.
    Listed(usize),
    /// This rule of the geofence denies it.
    Fenced(usize),
}

impl Classes {
    /// What the packet path says about the first packet of a flow with `addr`
    /// that comes in (or goes out, with `outbound`). `port`: protocol number and
    /// the port that covers are about; `None`: any of them, if one denies it.
    pub fn judge(&self, addr: IpAddr, outbound: bool, port: Option<(u8, u16)>) -> Said {
        let class = self.class(addr);
        let covers = |cover: &Cover| {
            let way = match outbound {
                true => cover.direction.outbound(),
                false => cover.direction.inbound(),
            };
            way && port.is_none_or(|(protocol, port)| cover.scope.covers(protocol, port))
        };
        let listed = |(bit, cover): &(usize, &Cover)| class.lists >> bit & 1 == 1 && covers(cover);
        if let Some((bit, _)) = self.lists.iter().enumerate().find(listed) {
            return Said::Listed(bit);
        }
        for (bit, cover) in self.fences.iter().enumerate() {
            let denies = class.denied >> bit & 1 == 1;
            // Of any port, a later rule may still deny another one.
            if covers(cover) && (denies || port.is_some()) {
                return match denies {
                    true => Said::Fenced(bit),
                    false => Said::Nothing,
                };
            }
        }
        Said::Nothing
    }
}

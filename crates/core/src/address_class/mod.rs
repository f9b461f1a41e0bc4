//! Geofence and lists joined into one partition of all addresses: every
//! address has a class, and a class says which lists hold it and which rules of
//! the geofence deny it. This is what the kernel looks up per packet; its form
//! there is `weir-bpf`'s.

mod merge;

pub use merge::{ListLayer, NEVER_JUDGED, Plan, TooMany};

use std::net::IpAddr;

use crate::{
    PortSet,
    geo::{Country, Span, find},
    geofence::Direction,
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
    /// The country of these addresses; named only where a rule denies them.
    pub country: Option<Country>,
}

/// What a list or rule covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cover {
    /// The list's name, as configured.
    pub name: String,
    /// The ports: local ones for packets in, remote ones for packets out.
    pub scope: PortSet,
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

    /// Whether no address has a class, so that there is nothing to enforce.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

/// What lists and geofence say about a flow's first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassVerdict {
    /// No list and no rule denies the flow: it passes.
    Nothing,
    /// The list of this number denies the flow.
    Listed(usize),
    /// The rule of the geofence of this number denies the flow.
    GeoDenied(usize),
}

impl Classes {
    /// What the packet path says about the first packet of a flow with `addr`
    /// that comes in (or goes out, with `outbound`). `port`: protocol number and
    /// the port that covers are about; `None`: any of them, if one denies it.
    pub fn judge(&self, addr: IpAddr, outbound: bool, port: Option<(u8, u16)>) -> ClassVerdict {
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
            return ClassVerdict::Listed(bit);
        }
        for (bit, cover) in self.fences.iter().enumerate() {
            let denies = class.denied >> bit & 1 == 1;
            // Of any port, a later rule may still deny another one.
            if covers(cover) && (denies || port.is_some()) {
                return match denies {
                    true => ClassVerdict::GeoDenied(bit),
                    false => ClassVerdict::Nothing,
                };
            }
        }
        ClassVerdict::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(name: &str, scope: &str, direction: Direction) -> Cover {
        Cover {
            name: name.to_owned(),
            scope: scope.parse().unwrap(),
            direction,
        }
    }

    /// 192.0.2.0/24 is in both lists, 198.51.100.0/24 denied by the first rule,
    /// 2001:db8::/32 in the second list and denied by both rules.
    fn classes() -> Classes {
        let class = |lists, denied| Class {
            lists,
            denied,
            country: None,
        };
        let v4 = |first: [u8; 4], value| Span {
            first: u32::from_be_bytes(first),
            last: u32::from_be_bytes(first) | 0xff,
            value,
        };
        let v6 = 0x2001_0db8 << 96;
        Classes {
            lists: vec![
                cover("web", "80/tcp", Direction::In),
                cover("mail", "25/tcp", Direction::Both),
            ],
            fences: vec![
                cover("ssh", "22/tcp", Direction::In),
                cover("rest", "all", Direction::Out),
            ],
            classes: vec![
                Class::default(),
                class(0b11, 0),
                class(0, 0b01),
                class(0b10, 0b11),
            ],
            v4: vec![v4([192, 0, 2, 0], 1), v4([198, 51, 100, 0], 2)],
            v6: vec![Span {
                first: v6,
                last: v6 | u128::MAX >> 32,
                value: 3,
            }],
        }
    }

    #[test]
    fn the_first_that_covers_a_flow_decides_it() {
        use ClassVerdict::{GeoDenied, Listed, Nothing};
        let classes = classes();
        const TCP: u8 = 6;
        for (addr, outbound, port, said) in [
            // A list covers its ports and directions, and no others.
            ("192.0.2.7", false, Some((TCP, 80)), Listed(0)),
            ("192.0.2.7", false, Some((TCP, 25)), Listed(1)),
            ("192.0.2.7", false, Some((TCP, 22)), Nothing),
            ("192.0.2.7", false, Some((17, 80)), Nothing),
            ("192.0.2.7", true, Some((TCP, 80)), Nothing),
            ("192.0.2.7", true, Some((TCP, 25)), Listed(1)),
            ("192.0.2.7", true, None, Listed(1)),
            ("::ffff:192.0.2.7", false, None, Listed(0)),
            // So does a rule.
            ("198.51.100.7", false, Some((TCP, 22)), GeoDenied(0)),
            ("198.51.100.7", false, Some((TCP, 80)), Nothing),
            ("198.51.100.7", false, None, GeoDenied(0)),
            ("198.51.100.7", true, Some((TCP, 22)), Nothing),
            ("198.51.100.7", true, None, Nothing),
            // Lists before rules; rules that deny where none before them covers.
            ("2001:db8::7", false, Some((TCP, 25)), Listed(1)),
            ("2001:db8::7", false, Some((TCP, 22)), GeoDenied(0)),
            ("2001:db8::7", true, Some((TCP, 22)), GeoDenied(1)),
            ("2001:db8::7", true, None, Listed(1)),
            // Nobody says anything about others.
            ("192.0.3.0", false, None, Nothing),
            ("2001:db9::", true, None, Nothing),
        ] {
            let judged = classes.judge(addr.parse().unwrap(), outbound, port);
            assert_eq!(judged, said, "{addr} {outbound} {port:?}");
        }
        assert!(!classes.is_empty() && Classes::default().is_empty());
        let one_family = Classes {
            v6: Vec::new(),
            ..classes
        };
        assert!(!one_family.is_empty());
    }

    /// A rule that covers a port and does not deny it keeps the ones behind it out.
    #[test]
    fn a_rule_that_passes_a_port_is_the_last_one_asked() {
        let mut classes = classes();
        classes.lists.clear();
        classes.fences = vec![
            cover("ssh", "22/tcp", Direction::Both),
            cover("rest", "all", Direction::Both),
        ];
        classes.classes[2].denied = 0b10;
        let addr = "198.51.100.7".parse().unwrap();
        assert_eq!(
            classes.judge(addr, false, Some((6, 22))),
            ClassVerdict::Nothing
        );
        assert_eq!(
            classes.judge(addr, false, Some((6, 80))),
            ClassVerdict::GeoDenied(1)
        );
        assert_eq!(classes.judge(addr, false, None), ClassVerdict::GeoDenied(1));
    }
}

//! Would this packet be dropped? The decision that every backend carries out,
//! as a function: what `weir why` answers by, and what tests hold backends
//! against.

use std::net::IpAddr;

use crate::{Action, PortSet, Reason, address_class::ClassVerdict};

/// What is known about a packet's source when it is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked<'a> {
    /// The source itself; none: of a prefix, whose sources may be any of it.
    pub source: Option<IpAddr>,
    /// Protocol number and destination port, or several that it may be; none:
    /// any of them.
    pub ports: &'a [(u8, u16)],
    /// What lists and geofence say about it.
    pub denied: Option<Reason>,
    /// Whether the allow list holds the source.
    pub allowed: bool,
    /// Whether nothing is to be dropped.
    pub observe: bool,
}

/// Can no host have this address, so that no packet comes from it: `0.0.0.0/8`
/// (RFC 1122), and `::/24` (RFC 4291: unspecified, IPv4-compatible and -mapped,
/// reserved) without `::1`? What a host sends to get an address has such a source
/// and passes: DHCP and IGMP from `0.0.0.0`; router and neighbour solicitations and
/// multicast listener reports from `::`.
pub fn is_invalid_source(source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => source.octets()[0] == 0,
        IpAddr::V6(source) => source.to_bits() >> 104 == 0 && !source.is_loopback(),
    }
}

/// The exit by which it leaves; `bans`: scopes and actions of all bans in force
/// whose subject holds the source. Of several, one that rejects is enough for
/// an answer. One that only notifies is nothing to packets.
pub fn decide<'s>(bans: impl Iterator<Item = (&'s PortSet, Action)>, asked: &Asked<'_>) -> Reason {
    let (mut any, mut hit) = (false, None);
    for (scope, action) in bans {
        let covers = |(protocol, port): &(u8, u16)| scope.covers(*protocol, *port);
        let covers = asked.ports.is_empty() || asked.ports.iter().any(covers);
        let reason = match (action, scope.is_all()) {
            (Action::Notify, _) => continue,
            (Action::Reject, _) => Reason::Rejected,
            (Action::Drop, true) => Reason::BannedAll,
            (Action::Drop, false) => Reason::BannedScope,
        };
        any = true;
        if covers {
            hit = match hit {
                Some(Reason::Rejected) => hit,
                Some(other) if reason != Reason::Rejected => Some(other.min(reason)),
                _ => Some(reason),
            };
        }
    }
    let invalid = asked.source.is_some_and(is_invalid_source);
    let invalid = invalid.then_some(Reason::InvalidSource);
    match invalid.or(hit).or(asked.denied) {
        None if any => Reason::OtherPort,
        None => Reason::Pass,
        Some(_) if asked.allowed => Reason::Allowed,
        Some(_) if asked.observe => Reason::Observed,
        Some(reason) => reason,
    }
}

impl ClassVerdict {
    /// The exit of what comes in and is said so about.
    pub fn reason(self) -> Option<Reason> {
        match self {
            Self::Nothing => None,
            Self::Listed(_) => Some(Reason::Listed),
            Self::GeoDenied(_) => Some(Reason::Fenced),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_first_that_drops() {
        let (all, ssh): (PortSet, PortSet) = ("all".parse().unwrap(), "22/tcp".parse().unwrap());
        let plain = Asked {
            source: Some("192.0.2.7".parse().unwrap()),
            ports: &[(6, 22)],
            denied: None,
            allowed: false,
            observe: false,
        };
        let other = Asked {
            ports: &[(6, 80)],
            ..plain
        };
        let listed = |asked| Asked {
            denied: ClassVerdict::Listed(0).reason(),
            ..asked
        };
        for (bans, asked, reason) in [
            (&[][..], plain, Reason::Pass),
            (&[&ssh], plain, Reason::BannedScope),
            (&[&ssh], other, Reason::OtherPort),
            (&[&ssh, &all], plain, Reason::BannedAll),
            (&[&ssh], listed(other), Reason::Listed),
            (&[&ssh], listed(plain), Reason::BannedScope),
            (
                &[&ssh],
                Asked {
                    ports: &[],
                    ..plain
                },
                Reason::BannedScope,
            ),
            (
                &[&all],
                Asked {
                    allowed: true,
                    ..plain
                },
                Reason::Allowed,
            ),
            (
                &[&all],
                Asked {
                    observe: true,
                    ..plain
                },
                Reason::Observed,
            ),
            (
                &[],
                Asked {
                    allowed: true,
                    ..plain
                },
                Reason::Pass,
            ),
            (
                &[],
                Asked {
                    denied: ClassVerdict::GeoDenied(3).reason(),
                    ..plain
                },
                Reason::Fenced,
            ),
        ] {
            let bans = bans.iter().map(|scope| (*scope, Action::Drop));
            let decided = decide(bans.clone(), &asked);
            assert_eq!(decided, reason, "{:?} {asked:?}", bans.collect::<Vec<_>>());
        }
        for bans in [
            [(&ssh, Action::Reject), (&all, Action::Drop)],
            [(&all, Action::Drop), (&ssh, Action::Reject)],
        ] {
            let decided = decide(bans.into_iter(), &plain);
            assert_eq!(decided, Reason::Rejected, "{bans:?}");
            let decided = decide(bans.into_iter(), &other);
            assert_eq!(decided, Reason::BannedAll, "{bans:?}");
        }
        // Whoever is only told of passes, beside a ban of other ports as well.
        let notified = (&all, Action::Notify);
        for (bans, reason) in [
            (vec![notified], Reason::Pass),
            (vec![notified, (&ssh, Action::Drop)], Reason::OtherPort),
            (vec![(&all, Action::Drop), notified], Reason::BannedAll),
        ] {
            let decided = decide(bans.iter().copied(), &other);
            assert_eq!(decided, reason, "{bans:?}");
        }
    }

    #[test]
    fn nobody_has_the_addresses_that_begin_with_zeros() {
        let asked = |source: &str, allowed, observe| Asked {
            source: Some(source.parse().unwrap()),
            ports: &[],
            denied: ClassVerdict::GeoDenied(0).reason(),
            allowed,
            observe,
        };
        for (source, invalid) in [
            ("0.0.0.0", true),
            ("0.1.2.3", true),
            ("0.255.255.255", true),
            ("1.0.0.0", false),
            ("127.0.0.1", false),
            ("::", true),
            ("::1", false),
            ("::5", true),
            ("::1.2.3.4", true),
            ("::ffff:198.51.100.7", true),
            ("0:ff:ffff::1", true),
            ("64:ff9b::1.2.3.4", false),
            ("100::1", false),
            ("2001:db8::1", false),
        ] {
            let denied = match invalid {
                true => Reason::InvalidSource,
                false => Reason::Fenced,
            };
            for (allowed, observe, reason) in [
                (false, false, denied),
                (false, true, Reason::Observed),
                (true, false, Reason::Allowed),
            ] {
                let decided = decide([].into_iter(), &asked(source, allowed, observe));
                assert_eq!(decided, reason, "{source}");
            }
        }
    }
}

//! Subjects as the tables know them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_core::Prefix;

/// A subject as the table stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// IPv4 (address | length << 32) or the upper half of an IPv6 /64.
    Short(u64),
    /// An IPv6 host: upper and lower half.
    Long(u64, u64),
}

impl Key {
    /// `None` when the table has no form for this prefix: IPv6 lengths other
    /// than 64 and 128, and `::/24`.
    pub fn of(prefix: Prefix) -> Option<Self> {
        match prefix.addr() {
            IpAddr::V4(a) => Some(Self::Short(
                u64::from(a.to_bits()) | u64::from(prefix.bits()) << 32,
            )),
            IpAddr::V6(a) => {
                let (hi, lo) = ((a.to_bits() >> 64) as u64, a.to_bits() as u64);
                match prefix.bits() {
                    _ if hi >> 40 == 0 => None,
                    64 => Some(Self::Short(hi)),
                    128 => Some(Self::Long(hi, lo)),
                    _ => None,
                }
            }
        }
    }

    /// One IPv4 address, which has a table of its own?
    pub fn is_v4_host(self) -> bool {
        matches!(self, Self::Short(key) if key >> 32 == 32)
    }

    /// The prefix it stands for.
    pub fn prefix(self) -> Prefix {
        let (addr, len): (IpAddr, u8) = match self {
            Self::Short(key) if key >> 40 == 0 => {
                (Ipv4Addr::from(key as u32).into(), (key >> 32) as u8)
            }
            Self::Short(hi) => (Ipv6Addr::from(u128::from(hi) << 64).into(), 64),
            Self::Long(hi, lo) => (
                Ipv6Addr::from(u128::from(hi) << 64 | u128::from(lo)).into(),
                128,
            ),
        };
        Prefix::new(addr, len).expect("keys are made from prefixes")
    }
}

//! The packets that were refused last, by outcome: read from the pinned tables, so that
//! it is said without a daemon as well.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::Path,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::{Outcome, dir_of, value_of};
use crate::{
    abi, clock,
    error::{Context, Result},
    skeleton::token::types::token_refused,
};

/// Packets of each outcome that are kept.
pub const KEPT: u64 = abi::TOKEN_KEPT as u64;

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// A packet that proved nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPacket {
    /// Nanoseconds of CLOCK_BOOTTIME at which the packet came.
    pub at: u64,
    /// The reason for which it was refused.
    pub outcome: Outcome,
    /// Whether it was a UDP datagram, and not a TCP segment.
    pub is_udp: bool,
    /// Address and port of the sender.
    pub source: (IpAddr, u16),
    /// Address and port that it was sent to.
    pub dest: (IpAddr, u16),
    /// Whether it was dropped, and not only counted.
    pub is_dropped: bool,
    /// The key's id and the first bytes of the aggregate that its token names, true or not.
    pub claim: Option<(u8, [u8; 4])>,
}

/// The packets that are kept, and how many there were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    /// The packets, the last one first.
    pub packets: Vec<RefusedPacket>,
    /// Packets of each outcome that was met since the tables are there; of more than
    /// [`KEPT`] the earlier ones are not kept.
    pub counts: Vec<(Outcome, u64)>,
}

/// The refused packets that are kept of an instance; `None`: it has no tables of tokens.
///
/// # Errors
/// They cannot be read: it takes root.
pub fn refusals(root: &Path, instance: &str) -> Result<Option<Refusals>> {
    let what = || "read the refused tokens (needs CAP_BPF)".to_owned();
    let dir = dir_of(root, instance);
    let open = |name: &str| MapHandle::from_pinned_path(dir.join(name)).context(what);
    // A daemon before this table was.
    if !dir.join("token_refusals").exists() {
        return Ok(None);
    }
    let (kept, numbers) = (open("token_refusals")?, open("token_refusal_counts")?);
    let mut packets = Vec::new();
    let mut counts = Vec::new();
    for outcome in Outcome::ALL.into_iter().filter(|outcome| !outcome.passes()) {
        let key = (outcome as u32).to_ne_bytes();
        let count = numbers.lookup(&key, MapFlags::ANY).context(what)?;
        let count = count.and_then(|bytes| bytes.try_into().ok());
        let count = count.map_or(0, u64::from_ne_bytes);
        if count > 0 {
            counts.push((outcome, count));
        }
        for place in 0..count.min(KEPT) as u32 {
            let key = (outcome as u32 * abi::TOKEN_KEPT + place).to_ne_bytes();
            let found = kept.lookup(&key, MapFlags::ANY).context(what)?;
            let found = found.as_deref().and_then(value_of::<token_refused>);
            packets.extend(found.filter(|raw| raw.at > 0).map(|raw| RefusedPacket {
                at: raw.at,
                outcome,
                is_udp: raw.protocol == UDP,
                source: endpoint(raw.flow.source, raw.flow.source_port),
                dest: endpoint(raw.flow.dest, raw.flow.dest_port),
                is_dropped: raw.is_dropped != 0,
                claim: (raw.has_token != 0).then_some((raw.key, raw.tag)),
            }));
        }
    }
    packets.sort_by_key(|packet| std::cmp::Reverse(packet.at));
    Ok(Some(Refusals { packets, counts }))
}

impl RefusedPacket {
    /// How long ago the packet came, in nanoseconds.
    pub fn age(&self) -> u64 {
        clock::boottime().saturating_sub(self.at)
    }
}

/// An address as the kernel's tables have it, and a port in network order.
fn endpoint(addr: [u8; 16], port: u16) -> (IpAddr, u16) {
    let addr = Ipv6Addr::from(addr).to_canonical();
    (addr, u16::from_be(port))
}

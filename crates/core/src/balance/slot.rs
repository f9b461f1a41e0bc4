//! The slot of a flow in the ring of its pool: the same hashes as the packet path's
//! (`bpf/balance/pools.h`, `bpf/balance/turns.h`). They are not keyed, so that two weirs, and
//! direct server return and the proxy, choose the same real.

use std::net::{IpAddr, SocketAddr};

use crate::Protocol;

/// By a hash of both addresses and ports.
pub fn of_flow(client: SocketAddr, vip: SocketAddr, protocol: Protocol, slots: usize) -> usize {
    let ports = u64::from(protocol.number()) << 32 | raw(vip.port()) << 16 | raw(client.port());
    let words = words(vip.ip()).into_iter().chain([ports]);
    scale(words.fold(source_hash(client.ip()), mix), slots)
}

/// By a hash of the client's address.
pub fn of_source(client: IpAddr, slots: usize) -> usize {
    scale(source_hash(client), slots)
}

/// By a hash of the client's address and port.
pub fn of_source_port(client: SocketAddr, slots: usize) -> usize {
    scale(mix(source_hash(client.ip()), raw(client.port())), slots)
}

fn words(addr: IpAddr) -> [u64; 2] {
    let bytes = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_ne_bytes(half.try_into().expect("half of 16 bytes")))
}

/// A port as it stands in a packet.
fn raw(port: u16) -> u64 {
    u64::from(u16::from_ne_bytes(port.to_be_bytes()))
}

fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}

fn source_hash(client: IpAddr) -> u64 {
    words(client).into_iter().fold(0x243f_6a88_85a3_08d3, mix)
}

fn scale(hash: u64, slots: usize) -> usize {
    let hash = mix(hash, hash >> 29);
    (((hash & 0xffff_ffff) * slots as u64) >> 32) as usize
}

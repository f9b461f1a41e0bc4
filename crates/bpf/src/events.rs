//! Packet events from the ring buffer. The packet path wakes nobody for a few
//! events, so a reader polls: every 100 ms or so is calm and soon enough.

use std::{net::Ipv6Addr, time::Duration};

use libbpf_rs::MapHandle;

use crate::{error::Result, ring_reader::RingReader, skeleton::clock::types::event};

/// A packet on its way to a drop, as the kernel saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketEvent {
    /// CLOCK_BOOTTIME, nanoseconds.
    pub at: u64,
    /// jiffies64 with which its ban was compared.
    pub jiffies: u64,
    /// Source address, IPv4 as IPv4-mapped.
    pub source: Ipv6Addr,
    /// Interface it came in on.
    pub ifindex: u32,
    /// `enum reason`.
    pub reason: u32,
    /// Destination port, 0 when not parsed.
    pub port: u16,
    /// Transport protocol, 0 when not parsed.
    pub protocol: u8,
    /// `enum scanner`.
    pub scanner: u8,
}

/// Reads one generation's ring buffer.
pub struct EventReader(RingReader<PacketEvent>);

impl EventReader {
    /// Over the map of a generation; later generations use the same one.
    pub fn new(map: &MapHandle) -> Result<Self> {
        Ok(Self(RingReader::new(map, "packet events", decode)?))
    }

    /// What has come, waiting up to `timeout` when the kernel wakes nobody.
    pub fn read(&self, timeout: Duration) -> Result<Vec<PacketEvent>> {
        self.0.read(timeout)
    }
}

fn decode(bytes: &[u8]) -> Option<PacketEvent> {
    if bytes.len() < size_of::<event>() {
        return None;
    }
    // SAFETY: long enough, and every bit pattern is an `event`.
    let e: event = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    Some(PacketEvent {
        at: e.at_ns,
        jiffies: e.jiffies,
        source: e.source.into(),
        ifindex: e.ifindex,
        reason: e.reason,
        port: e.port,
        protocol: e.protocol,
        scanner: e.scanner,
    })
}

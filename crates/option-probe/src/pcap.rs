//! A capture file of IP packets, as Wireshark and tcpdump read it: pcap of nanoseconds.

use std::io::{self, Write};

/// The link type of packets that begin with their IP header.
const LINKTYPE_RAW: u32 = 101;
const SNAP_LENGTH: u32 = 65535;

/// Writes the head of a capture file.
///
/// # Errors
/// Those of the writer.
pub fn write_head(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&0xa1b2_3c4d_u32.to_le_bytes())?;
    out.write_all(&[2, 0, 4, 0])?;
    out.write_all(&[0; 8])?;
    out.write_all(&SNAP_LENGTH.to_le_bytes())?;
    out.write_all(&LINKTYPE_RAW.to_le_bytes())
}

/// Writes a packet that was on the wire so many nanoseconds after 1970.
///
/// # Errors
/// Those of the writer.
pub fn write_packet(out: &mut impl Write, time_ns: u64, packet: &[u8]) -> io::Result<()> {
    const SECOND: u64 = 1_000_000_000;
    // Beyond 2106 the form has no seconds.
    let seconds = u32::try_from(time_ns / SECOND).unwrap_or(u32::MAX);
    let length = packet.len().min(SNAP_LENGTH as usize);
    out.write_all(&seconds.to_le_bytes())?;
    out.write_all(&((time_ns % SECOND) as u32).to_le_bytes())?;
    out.write_all(&(length as u32).to_le_bytes())?;
    out.write_all(&(packet.len() as u32).to_le_bytes())?;
    out.write_all(&packet[..length])
}

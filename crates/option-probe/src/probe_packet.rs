//! Packets that are sent to see what becomes of an option: crafted whole, each with a marker
//! by which the far side knows it, whatever happened to its options.

use std::{fmt, net::IpAddr, str::FromStr};

use weir_core::checksum::checksum;
use weir_options::{Layer, OptionSpec, SectionError, Sections};

use crate::packet::{PacketParts, word};

/// What the payload of a probe begins with.
const MAGIC: &[u8; 8] = b"weir-opt";
/// Bytes of a probe's payload.
const PAYLOAD: usize = 16;
/// Hops that a probe may make.
const TTL: u8 = 64;
/// Bytes of a probe packet at most.
pub const MAX_PROBE: usize = 600;

/// The protocol of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carrier {
    /// An echo request of ICMP or ICMPv6.
    Icmp,
    /// A UDP datagram.
    Udp,
    /// A SYN, which has no payload: its sequence number is the marker.
    Tcp,
}

impl Carrier {
    /// All protocols that carry probes.
    pub const ALL: [Self; 3] = [Self::Icmp, Self::Udp, Self::Tcp];

    /// The carrier's word in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Icmp => "icmp",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }

    /// Whether a packet of this kind and family can have options of the layer.
    pub fn can_carry(self, layer: Layer, is_v4: bool) -> bool {
        match layer {
            Layer::Ip => is_v4,
            Layer::Tcp => self == Self::Tcp,
            Layer::Udp => self == Self::Udp,
            Layer::HopByHop | Layer::Destination | Layer::Extension => !is_v4,
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|carrier| carrier.name() == text)
            .ok_or_else(|| "allowed: icmp, udp, tcp".to_owned())
    }
}

/// By which a packet is known: the run of measurements, and the number of the packet in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Marker {
    /// Random, one for each run.
    pub run: u32,
    /// Number of the packet.
    pub index: u16,
}

impl Marker {
    fn payload(self) -> [u8; PAYLOAD] {
        let mut payload = [0; PAYLOAD];
        payload[..8].copy_from_slice(MAGIC);
        payload[8..12].copy_from_slice(&self.run.to_be_bytes());
        payload[12..14].copy_from_slice(&self.index.to_be_bytes());
        payload
    }

    /// The sequence number of a SYN.
    fn sequence(self) -> u32 {
        self.run & 0xffff_0000 | u32::from(self.index)
    }

    /// The source port of a probe: an ephemeral one.
    fn port(self) -> u16 {
        0xc000 | (self.run & 0x3fff) as u16
    }

    /// The marker of a packet that arrived, if it is one of this run; also of a packet that
    /// cannot be taken apart any more, as long as its payload is whole. A packet with the probe
    /// in it as a whole is none: that of a tunnel, out of which the probe comes as well, or an
    /// ICMP error that quotes it.
    pub fn find(packet: &[u8], run: u32) -> Option<Self> {
        let wanted = [&MAGIC[..], &run.to_be_bytes()].concat();
        let behind = match PacketParts::read(packet) {
            Some(parts) if parts.protocol == 6 => {
                let [high, low] = [word(parts.header, 4)?, word(parts.header, 6)?];
                let is_syn = parts.header[13] & 0x12 == 2;
                let is_ours = is_syn && u32::from(high) << 16 == run & 0xffff_0000;
                return is_ours.then_some(Self { run, index: low });
            }
            Some(parts) if parts.payload.starts_with(&wanted) => &parts.payload[wanted.len()..],
            _ => {
                let at = packet.windows(wanted.len()).position(|b| b == wanted)?;
                if (1..at).any(|begin| is_probe(&packet[begin..], &wanted)) {
                    return None;
                }
                &packet[at + wanted.len()..]
            }
        };
        let index = word(behind, 0)?;
        Some(Self { run, index })
    }
}

/// Whether it is a whole packet of ICMP or UDP with this payload.
fn is_probe(packet: &[u8], payload: &[u8]) -> bool {
    PacketParts::read(packet).is_some_and(|parts| {
        matches!(parts.protocol, 1 | 17 | 58) && parts.payload.starts_with(payload)
    })
}

/// The ends of a path, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The address of the sender, as its host has it.
    pub source: IpAddr,
    /// The address by which the receiver is reached.
    pub dest: IpAddr,
    /// The destination port of TCP and UDP.
    pub port: u16,
}

/// Makes a probe packet: with an option, or without any.
///
/// # Errors
/// The option does not go into a packet.
pub fn craft(
    path: &Path,
    carrier: Carrier,
    option: Option<&OptionSpec>,
    marker: Marker,
) -> Result<Vec<u8>, SectionError> {
    let options: Vec<_> = option.cloned().into_iter().collect();
    let sections = Sections::of(&options)?;
    let is_v4 = path.dest.is_ipv4();
    let (source, dest) = (octets(path.source), octets(path.dest));
    let mut transport = match carrier {
        Carrier::Icmp => {
            let kind = if is_v4 { 8 } else { 128 };
            let mut bytes = vec![kind, 0, 0, 0];
            bytes.extend(marker.port().to_be_bytes());
            bytes.extend(marker.index.to_be_bytes());
            bytes.extend(marker.payload());
            bytes
        }
        Carrier::Udp => {
            let mut bytes = ports(marker, path.port);
            bytes.extend([0, 8 + PAYLOAD as u8, 0, 0]);
            bytes.extend(marker.payload());
            bytes
        }
        Carrier::Tcp => {
            let mut bytes = ports(marker, path.port);
            bytes.extend(marker.sequence().to_be_bytes());
            bytes.extend([0; 4]);
            let words = 5 + sections.tcp.len() as u8 / 4;
            bytes.extend([words << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
            bytes.extend(&sections.tcp);
            bytes
        }
    };
    let (protocol, at) = match carrier {
        Carrier::Icmp if is_v4 => (1, 2),
        Carrier::Icmp => (58, 2),
        Carrier::Udp => (17, 6),
        Carrier::Tcp => (6, 16),
    };
    let pseudo = [
        &source[..],
        &dest,
        &(transport.len() as u32).to_be_bytes(),
        &[0, 0, 0, protocol],
    ]
    .concat();
    let sum = match (protocol, checksum(&[&pseudo, &transport])) {
        (1, _) => checksum(&[&transport]),
        (17, 0) => 0xffff,
        (_, sum) => sum,
    };
    transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    if carrier == Carrier::Udp {
        transport.extend(&sections.udp_even);
    }
    if is_v4 {
        let header = 20 + sections.ip.len();
        let mut packet = vec![0x40 | (header / 4) as u8, 0];
        packet.extend(((header + transport.len()) as u16).to_be_bytes());
        packet.extend(marker.index.to_be_bytes());
        packet.extend([0, 0, TTL, protocol, 0, 0]);
        packet.extend([&source[..], &dest, &sections.ip].concat());
        let sum = checksum(&[&packet]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(transport);
        return Ok(packet);
    }
    let chain = sections.extensions.before(protocol);
    let first = if chain.is_empty() {
        protocol
    } else {
        sections.extensions.first
    };
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(((chain.len() + transport.len()) as u16).to_be_bytes());
    packet.extend([first, TTL]);
    packet.extend([&source[..], &dest, &chain, &transport].concat());
    Ok(packet)
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

fn ports(marker: Marker, to: u16) -> Vec<u8> {
    [marker.port().to_be_bytes(), to.to_be_bytes()].concat()
}

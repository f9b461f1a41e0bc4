//! What a frame holds of a flow, read from 802.1Q, RFC 791, 792, 4443, 8200, 9000 and 9293.

use std::net::IpAddr;

use super::Arrival;
use crate::Protocol;

/// A client's flow to a virtual address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The client's address.
    pub client: IpAddr,
    /// The client's port.
    pub client_port: u16,
    /// The virtual address.
    pub vip: IpAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The service's port.
    pub port: u16,
}

/// What all fragments of a packet have: of IPv4 addresses, identification and protocol
/// (RFC 791), of IPv6 addresses and identification, for the next header of later ones is
/// not looked at (RFC 8200 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragments {
    source: IpAddr,
    dest: IpAddr,
    id: u32,
    protocol: Option<u8>,
}

/// How a frame belongs to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A packet of its own.
    Whole(Flow),
    /// The first fragment of a packet, which has the ports.
    FirstFragment(Flow, Fragments),
    /// Another fragment, which follows the first one.
    LaterFragment(Fragments),
    /// An ICMP error about a packet that the flow's real has sent.
    Error(Flow),
}

/// A frame that may be a pool's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) frame: &'a [u8],
    /// From the IP header on, with the padding of the frame.
    pub(super) ip: &'a [u8],
    pub(super) is_v4: bool,
    /// The number in the frame's tag of 802.1Q.
    pub(super) tag: Option<u16>,
    pub(super) part: Part,
}

pub(super) const ETH: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

/// 16 bits in network order.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*two))
}

fn addr_v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
    Some(octets.into())
}

fn addr_v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(octets.into())
}

/// An IP header without options or extension headers but that of a fragment.
struct Header {
    source: IpAddr,
    dest: IpAddr,
    /// The protocol of what is behind the header.
    protocol: u8,
    /// Identification, and whether it is the first one; `None`: no fragment.
    fragment: Option<(u32, bool)>,
    /// The offset of what is behind the header.
    end: usize,
}

impl Header {
    fn read(ip: &[u8], is_v4: bool) -> Option<Self> {
        if is_v4 {
            let fragment = half(ip, 6)?;
            let id = half(ip, 4)?;
            return (ip.first()? & 0xf == 5).then_some(Self {
                source: addr_v4(ip, 12)?,
                dest: addr_v4(ip, 16)?,
                protocol: *ip.get(9)?,
                // More to come, or not the first.
                fragment: (fragment & 0x3fff != 0).then_some((id.into(), fragment & 0x1fff == 0)),
                end: 20,
            });
        }
        let mut header = Self {
            source: addr_v6(ip, 8)?,
            dest: addr_v6(ip, 24)?,
            protocol: *ip.get(6)?,
            fragment: None,
            end: 40,
        };
        if header.protocol == FRAGMENT {
            let id = u32::from(half(ip, 44)?) << 16 | u32::from(half(ip, 46)?);
            header.protocol = ip[40];
            header.fragment = Some((id, half(ip, 42)? >> 3 == 0));
            header.end = 48;
        }
        Some(header)
    }

    /// Source and destination port.
    fn ports(&self, ip: &[u8]) -> Option<(Protocol, u16, u16)> {
        let protocol = match self.protocol {
            TCP => Protocol::Tcp,
            UDP => Protocol::Udp,
            _ => return None,
        };
        Some((protocol, half(ip, self.end)?, half(ip, self.end + 2)?))
    }

    fn flow(&self, ip: &[u8]) -> Option<Flow> {
        let (protocol, client_port, port) = self.ports(ip)?;
        Some(Flow {
            client: self.source,
            client_port,
            vip: self.dest,
            protocol,
            port,
        })
    }

    /// The flow of which the packet in an error is: one that the real has sent.
    fn flow_of_error(&self, ip: &[u8], is_v4: bool) -> Option<Flow> {
        let kind = *ip.get(self.end)?;
        let is_error = match (is_v4, self.protocol) {
            (true, 1) => [3, 4, 11, 12].contains(&kind),
            (false, 58) => (1..=4).contains(&kind),
            _ => false,
        };
        if !is_error {
            return None;
        }
        let quote = ip.get(self.end + 8..)?;
        let quoted = Header::read(quote, is_v4)?;
        if quoted.source != self.dest || quoted.fragment.is_some_and(|(_, is_first)| !is_first) {
            return None;
        }
        let (protocol, port, client_port) = quoted.ports(quote)?;
        Some(Flow {
            client: quoted.dest,
            client_port,
            vip: quoted.source,
            protocol,
            port,
        })
    }
}

impl<'a> Packet<'a> {
    /// `None`: whoever it is for, it is no pool's.
    pub(super) fn read(frame: &'a [u8], arrival: &Arrival) -> Option<Self> {
        let (tag, at) = match half(frame, 12)? {
            // Of an skb the kernel has taken the tag off; one that is there is a second.
            0x8100 if !arrival.is_skb => (Some(half(frame, 14)? & 0xfff), 16),
            _ => (None, 12),
        };
        let is_v4 = match half(frame, at)? {
            0x0800 => true,
            0x86dd => false,
            _ => return None,
        };
        let ip = &frame[at + 2..];
        let header = Header::read(ip, is_v4)?;
        let part = match header.fragment {
            None => match header.flow(ip) {
                Some(flow) => Part::Whole(flow),
                None => Part::Error(header.flow_of_error(ip, is_v4)?),
            },
            Some((id, is_first)) => {
                let fragments = Fragments {
                    source: header.source,
                    dest: header.dest,
                    id,
                    protocol: is_v4.then_some(header.protocol),
                };
                if is_first {
                    Part::FirstFragment(header.flow(ip)?, fragments)
                } else {
                    Part::LaterFragment(fragments)
                }
            }
        };
        Some(Self {
            frame,
            ip,
            is_v4,
            tag,
            part,
        })
    }

    /// Bytes of the IP header.
    pub(super) fn head(&self) -> usize {
        if self.is_v4 { 20 } else { 40 }
    }

    /// The protocol of what is behind the IP header, extension headers included.
    pub(super) fn protocol(&self) -> u8 {
        self.ip[if self.is_v4 { 9 } else { 6 }]
    }

    /// Bytes of the packet by its own account, from the IP header on.
    pub(super) fn len(&self) -> usize {
        let field = |at| half(self.ip, at).map_or(0, usize::from);
        if self.is_v4 { field(2) } else { 40 + field(4) }
    }

    /// Time to live, or hop limit.
    pub(super) fn hops(&self) -> u8 {
        self.ip[if self.is_v4 { 8 } else { 7 }]
    }

    /// Source and destination of the IP header.
    pub(super) fn addrs(&self) -> Option<(IpAddr, IpAddr)> {
        if self.is_v4 {
            Some((addr_v4(self.ip, 12)?, addr_v4(self.ip, 16)?))
        } else {
            Some((addr_v6(self.ip, 8)?, addr_v6(self.ip, 24)?))
        }
    }

    /// Does the packet open a TCP connection: SYN without ACK?
    pub(super) fn opens(&self) -> bool {
        let flags = self.ip.get(self.head() + 13);
        self.protocol() == TCP && flags.is_some_and(|flags| flags & 0x12 == 0x02)
    }

    /// Does the packet end a TCP connection: FIN or RST, without SYN?
    pub(super) fn ends(&self) -> bool {
        let flags = self.ip.get(self.head() + 13);
        let ends = |flags: &u8| flags & 0x02 == 0 && flags & 0x05 != 0;
        self.protocol() == TCP && flags.is_some_and(ends)
    }

    /// What may be the server ID in a QUIC packet's connection ID: `len` bytes of a short
    /// header whose connection ID is of configuration 0.
    pub(super) fn quic_server_id(&self, len: usize) -> Option<&'a [u8]> {
        let Part::Whole(Flow { protocol, .. }) = self.part else {
            return None;
        };
        let udp = self.ip.get(self.head()..)?;
        // Each QUIC packet has more bytes than these ten (RFC 9001 5.4.2).
        if protocol != Protocol::Udp || half(udp, 4)? < 8 + 10 {
            return None;
        }
        let quic = udp.get(8..18)?;
        (quic[0] & 0x80 == 0 && quic[1] >> 5 == 0).then_some(&quic[2..2 + len])
    }
}

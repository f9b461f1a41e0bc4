//! A network segment on which virtual addresses are: what others say there of who has an
//! address, advertisements of virtual routers, and frames and packets of our own. What
//! follows from it is [`super::Vips`]'s.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6},
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use weir_core::neighbour::{self, Message};
use weir_vrrp::{
    GROUP_V4, GROUP_V6, PROTOCOL, ParseError, TTL,
    packet::{ReceivedAdvertisement, read_ipv4, read_ipv6},
};

use crate::host::Interface;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// So many frames are read of each kind at a time.
pub(super) const AT_ONCE: usize = 256;
/// No frame that is read is longer.
const LONGEST: usize = 2048;

/// linux/filter.h
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Neighbour solicitations and advertisements, without extension headers as RFC 4861 has
/// them. The kernel asks this of each IPv6 packet for this host, and hands on no other.
const NEIGHBOUR_DISCOVERY: [SockFilter; 7] = [
    SockFilter::new(LOAD_BYTE, 0, 0, 14 + 6),
    SockFilter::new(JUMP_IF_EQUAL, 0, 4, 58),
    SockFilter::new(LOAD_BYTE, 0, 0, 14 + 40),
    SockFilter::new(JUMP_IF_EQUAL, 1, 0, 135),
    SockFilter::new(JUMP_IF_EQUAL, 0, 1, 136),
    SockFilter::new(RETURN, 0, 0, LONGEST as u32),
    SockFilter::new(RETURN, 0, 0, 0),
];

/// Advertisements of virtual routers over IPv6, by the same means.
const VRRP: [SockFilter; 4] = [
    SockFilter::new(LOAD_BYTE, 0, 0, 14 + 6),
    SockFilter::new(JUMP_IF_EQUAL, 0, 1, PROTOCOL as u32),
    SockFilter::new(RETURN, 0, 0, LONGEST as u32),
    SockFilter::new(RETURN, 0, 0, 0),
];
const ETHERNET: usize = 14;

/// The sockets by which weir listens on an interface.
pub(super) struct LinkListener {
    /// The interface as it was when the sockets were opened.
    pub interface: Interface,
    arp: Arc<OwnedFd>,
    nd: Arc<OwnedFd>,
    /// Advertisements over IPv4 and over IPv6, where a virtual router has the family.
    vrrp: [Option<Arc<OwnedFd>>; 2],
    /// Keeps the interface in the group of IPv6.
    _member: Option<Socket>,
    /// Counters of what was refused.
    pub counts: Counts,
    /// The last advertisement over IPv4 of another version than 3.
    pub other_version: Option<OtherVersion>,
}

/// An advertisement of VRRP of another version.
#[derive(Debug, Clone, Copy)]
pub(super) struct OtherVersion {
    /// The address of the host that sent it.
    pub from: Ipv4Addr,
    /// The virtual router that it is about.
    pub id: u8,
    /// The moment at which it came.
    pub at: Instant,
}

impl OtherVersion {
    /// Of an IPv4 packet whose payload is such a one.
    fn read(packet: &[u8]) -> Option<Self> {
        let payload = usize::from(packet.first()? & 15) * 4;
        Some(Self {
            from: Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?),
            id: *packet.get(payload + 1)?,
            at: Instant::now(),
        })
    }
}

/// Frames of a segment that were refused.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Frames that were not as their RFC has them.
    pub malformed: u64,
    /// Advertisements by the reason for which they were refused: a fixed set.
    pub refused: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Adds the counts of another time.
    pub fn add(&mut self, other: &Self) {
        self.malformed += other.malformed;
        for (why, count) in &other.refused {
            *self.refused.entry(why).or_default() += count;
        }
    }
}

impl LinkListener {
    /// Listens on an interface; to virtual routers over IPv4, and over IPv6, as far as
    /// `vrrp` asks for them. A family of which there is none is left alone, for a kernel
    /// may be without IPv6 (`ipv6.disable=1`).
    pub fn open(interface: Interface, name: &str, vrrp: [bool; 2]) -> io::Result<Self> {
        let listen = |ethertype: u16, filter: &[SockFilter]| {
            let protocol = Protocol::from(i32::from(ethertype.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            if !filter.is_empty() {
                socket.attach_filter(filter)?;
            }
            let socket = OwnedFd::from(socket);
            interface.bind(&socket)?;
            // What came before, of any interface.
            while recv(&socket, &mut [0; 1], RecvFlags::empty()).is_ok() {}
            Ok::<_, io::Error>(Arc::new(socket))
        };
        let (mut v4, mut v6, mut member) = (None, None, None);
        let [needs_v4, needs_v6] = vrrp;
        if needs_v4 {
            let socket = raw(Domain::IPV4, name)?;
            let index = socket2::InterfaceIndexOrAddress::Index(interface.index);
            socket.join_multicast_v4_n(&GROUP_V4, &index)?;
            v4 = Some(Arc::new(OwnedFd::from(socket)));
        }
        if needs_v6 {
            let socket = raw(Domain::IPV6, name)?;
            socket.join_multicast_v6(&GROUP_V6, interface.index)?;
            // It has no header of what it receives: the packet socket has.
            socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
            member = Some(socket);
            v6 = Some(listen(ETHERTYPE_IPV6, &VRRP)?);
        }
        Ok(Self {
            vrrp: [v4, v6],
            _member: member,
            arp: listen(ETHERTYPE_ARP, &[])?,
            nd: listen(ETHERTYPE_IPV6, &NEIGHBOUR_DISCOVERY)?,
            interface,
            counts: Counts::default(),
            other_version: None,
        })
    }

    /// Whether it is the same interface still, with the same link-layer address, and
    /// virtual routers of the same families.
    pub fn is_of(&self, now: &Interface, vrrp: [bool; 2]) -> bool {
        let is_same = (self.interface.index, self.interface.mac) == (now.index, now.mac);
        is_same && self.vrrp.each_ref().map(Option::is_some) == vrrp
    }

    /// The sockets, which become readable when a message comes.
    pub fn sockets(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        let vrrp = self.vrrp.iter().flatten().cloned();
        [self.arp.clone(), self.nd.clone()].into_iter().chain(vrrp)
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(&self.arp, frame, SendFlags::empty())?;
        Ok(())
    }

    /// What others have said since, at most so much at a time.
    pub fn read(&mut self) -> Vec<Message> {
        let mut heard = Vec::new();
        let mut frame = [0; LONGEST];
        for socket in [&self.arp, &self.nd] {
            for _ in 0..AT_ONCE {
                // There is none, or its interface is gone: that is seen each second.
                let Ok((len, _)) = recv(socket, &mut frame, RecvFlags::empty()) else {
                    break;
                };
                match neighbour::read(&frame[..len]) {
                    Ok(message) => heard.extend(message),
                    Err(_) => self.counts.malformed += 1,
                }
            }
        }
        heard.retain(|message| message.sender != self.interface.mac);
        heard
    }

    /// The advertisements that have come since, at most so many at a time.
    pub fn read_vrrp(&mut self) -> Vec<ReceivedAdvertisement> {
        let mut heard = Vec::new();
        let mut packet = [0; LONGEST];
        for (family, socket) in self.vrrp.iter().enumerate() {
            let Some(socket) = socket else {
                continue;
            };
            for _ in 0..AT_ONCE {
                let Ok((len, _)) = recv(socket, &mut packet, RecvFlags::empty()) else {
                    break;
                };
                let read = match family {
                    0 => read_ipv4(&packet[..len]),
                    _ => read_ipv6(packet[..len].get(ETHERNET..).unwrap_or_default()),
                };
                match read {
                    Ok(received) => heard.push(received),
                    Err(why) => {
                        *self.counts.refused.entry(why.name()).or_default() += 1;
                        if why == ParseError::Version && family == 0 {
                            self.other_version = OtherVersion::read(&packet[..len]);
                        }
                    }
                }
            }
        }
        heard
    }

    /// Counts an advertisement that is well-formed and not taken.
    pub fn refuse(&mut self, why: &'static str) {
        *self.counts.refused.entry(why).or_default() += 1;
    }

    /// Sends an advertisement from one of this host's addresses.
    pub fn send_vrrp(
        &self,
        name: &str,
        from: IpAddr,
        to: IpAddr,
        message: &[u8],
    ) -> io::Result<()> {
        let index = self.interface.index;
        let at = |address: IpAddr| match address {
            IpAddr::V4(v4) => SocketAddr::from((v4, 0)),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, index).into(),
        };
        let socket = match from {
            IpAddr::V4(_) => {
                let socket = raw(Domain::IPV4, name)?;
                socket.set_ttl_v4(TTL.into())?;
                socket.set_multicast_ttl_v4(TTL.into())?;
                socket.set_multicast_loop_v4(false)?;
                socket
            }
            IpAddr::V6(_) => {
                let socket = raw(Domain::IPV6, name)?;
                socket.set_unicast_hops_v6(TTL.into())?;
                socket.set_multicast_hops_v6(TTL.into())?;
                socket.set_multicast_loop_v6(false)?;
                socket.set_multicast_if_v6(index)?;
                socket
            }
        };
        socket.bind(&at(from).into())?;
        socket.send_to(message, &at(to).into())?;
        Ok(())
    }
}

/// A socket of the protocol, of this interface alone.
fn raw(domain: Domain, name: &str) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(PROTOCOL))))?;
    socket.set_nonblocking(true)?;
    socket.bind_device(Some(name.as_bytes()))?;
    Ok(socket)
}

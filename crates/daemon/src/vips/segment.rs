//! A network segment on which virtual addresses are: what others say there of who has an
//! address, and frames of our own. What follows from it is [`super::Vips`]'s.

use std::{io, os::fd::OwnedFd, sync::Arc};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use weir_core::neighbour::{self, Message};

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

/// One that is listened to.
pub(super) struct Segment {
    /// Its interface when it was opened.
    pub interface: Interface,
    arp: Arc<OwnedFd>,
    nd: Arc<OwnedFd>,
    /// Frames that were not as their RFC has them.
    pub malformed: u64,
}

impl Segment {
    /// Listens on an interface.
    pub fn open(interface: Interface) -> io::Result<Self> {
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
        Ok(Self {
            arp: listen(ETHERTYPE_ARP, &[])?,
            nd: listen(ETHERTYPE_IPV6, &NEIGHBOUR_DISCOVERY)?,
            interface,
            malformed: 0,
        })
    }

    /// Is it the same interface still, with the same link-layer address?
    pub fn is_of(&self, now: &Interface) -> bool {
        (self.interface.index, self.interface.mac) == (now.index, now.mac)
    }

    /// Those that become readable when somebody says something.
    pub fn sockets(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        [self.arp.clone(), self.nd.clone()].into_iter()
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
                    Err(_) => self.malformed += 1,
                }
            }
        }
        heard.retain(|message| message.sender != self.interface.mac);
        heard
    }
}

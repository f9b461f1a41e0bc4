//! The packet sockets by which reals are asked at virtual addresses: of a segment, by one
//! interface, and beyond routers, in the outer header of the pool and by the interface of the
//! route. What is asked, and what an answer means, is vip_check.rs's.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    os::fd::OwnedFd,
};

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::set_socket_recv_buffer_size_force};
use socket2::{Domain, Protocol, Socket, Type};
use weir_core::{
    Protocol as Transport,
    balance::probe::{self, Answer, ETHERNET, Question, outer::Outer},
};
use weir_enforce::Real;

use super::{
    filter::{ethertype, filter},
    senders::Senders,
};
use crate::host::{Interface, Mac, interface};

/// So many frames are read at a time.
const FRAMES: usize = 4096;
/// So much of a frame is read: any headers in front of a TCP header, or those of the packet
/// that an error quotes.
const LONGEST: usize = 128;
/// The ports of this host that ask: above those that Linux gives away.
pub(super) const FIRST_PORT: u16 = 61_000;
pub(super) const LAST_PORT: u16 = 64_999;
/// Room for the answers of all reals that are asked at once, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// The way that questions to a real take.
#[derive(Debug, Clone, Copy)]
pub(in crate::balance) enum Way {
    /// On the segment, to this link-layer address.
    Segment(Mac),
    /// Beyond a router, in an outer header.
    Tunnel(TunnelWay),
}

/// The way to a real beyond a router.
#[derive(Debug, Clone, Copy)]
pub(in crate::balance) struct TunnelWay {
    outer: Outer,
    /// The link-layer addresses of the next hop and of the interface.
    next_hop: Mac,
    source_mac: Mac,
    ifindex: u32,
    /// Bytes of the longest frame.
    longest: usize,
}

impl TunnelWay {
    /// The way of clients' packets to this real, if that is a tunnel.
    pub(in crate::balance) fn of(real: &Real) -> Option<Self> {
        let tunnel = real.tunnel.as_ref()?;
        Some(Self {
            outer: Outer {
                source: tunnel.source,
                dest: tunnel.dest,
                gue_port: tunnel.gue_port,
            },
            next_hop: real.dest,
            source_mac: real.source,
            ifindex: real.ifindex,
            longest: ETHERNET + tunnel.mtu as usize,
        })
    }

    fn wrap(&self, frame: &[u8], question: &Question) -> Vec<u8> {
        self.outer.wrap(frame, question.source_port)
    }
}

impl Way {
    /// Whether the frame of this question is not too long for it.
    pub(super) fn takes(&self, frame: &[u8], question: &Question) -> bool {
        match self {
            Self::Segment(_) => true,
            Self::Tunnel(way) => way.wrap(frame, question).len() <= way.longest,
        }
    }
}

/// Bytes of the link-layer header that the sockets of tunnels show: none, whatever the
/// interface.
const BARE: usize = 0;

/// A packet socket that takes answers of this family; `l2`: bytes of link-layer header of what
/// it shows.
fn answers_of(is_ipv6: bool, l2: usize) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(ethertype(is_ipv6).to_be()));
    let kind = if l2 == BARE { Type::DGRAM } else { Type::RAW };
    let socket = Socket::new(Domain::PACKET, kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.attach_filter(&filter(is_ipv6, l2, FIRST_PORT..=LAST_PORT, LONGEST))?;
    Ok(socket)
}

/// Leaves room for the answers of all that are asked, and forgets what came before the filter.
fn make_ready(socket: &OwnedFd) {
    // Without CAP_NET_ADMIN the usual room must do.
    let _ = set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER);
    for _ in 0..FRAMES {
        if recv(socket, &mut [0; 1], RecvFlags::empty()).is_err() {
            break;
        }
    }
}

/// The next frame of a socket. `None`: there is none, or the interface is gone, which is seen
/// each second.
fn receive<'a>(socket: &OwnedFd, frame: &'a mut [u8; LONGEST]) -> Option<&'a [u8]> {
    let (len, _) = recv(socket, &mut *frame, RecvFlags::empty()).ok()?;
    Some(&frame[..len])
}

/// The sockets by which reals of an interface's segment are asked.
struct SegmentAsker {
    interface: Interface,
    /// The packet sockets of IPv4 and of IPv6.
    sockets: [OwnedFd; 2],
}

impl SegmentAsker {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The daemon may not have packet sockets (CAP_NET_RAW), or the interface is gone.
    fn open(interface: Interface) -> io::Result<Self> {
        let open = |is_ipv6| {
            let socket = OwnedFd::from(answers_of(is_ipv6, ETHERNET)?);
            interface.bind(&socket)?;
            make_ready(&socket);
            Ok::<_, io::Error>(socket)
        };
        Ok(Self {
            sockets: [open(false)?, open(true)?],
            interface,
        })
    }

    fn send(&self, frame: &[u8], vip: IpAddr) -> io::Result<()> {
        send(
            &self.sockets[usize::from(vip.is_ipv6())],
            frame,
            SendFlags::empty(),
        )?;
        Ok(())
    }

    /// What has come back since, at most so much at a time. A real whose port is open is
    /// told at once, and however late, that no connection follows.
    fn read(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut buffer = [0; LONGEST];
        for socket in &self.sockets {
            for _ in 0..FRAMES {
                let Some(frame) = receive(socket, &mut buffer) else {
                    break;
                };
                let Some(answer) = probe::read(frame) else {
                    continue;
                };
                if answer.is_open && answer.question.protocol == Transport::Tcp {
                    // Lost, the real gives up by itself within a minute.
                    let _ = self.send(&probe::reset(&answer.question), answer.question.vip);
                }
                answers.push(answer);
            }
        }
        answers
    }
}

/// The sockets by which reals beyond a router are asked.
struct TunnelAsker {
    /// Takes answers by any interface, of IPv4 and of IPv6.
    sockets: [OwnedFd; 2],
    senders: Senders,
}

impl TunnelAsker {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The daemon may not have packet sockets (CAP_NET_RAW).
    fn open() -> io::Result<Self> {
        let open = |is_ipv6| {
            let socket = OwnedFd::from(answers_of(is_ipv6, BARE)?);
            make_ready(&socket);
            Ok::<_, io::Error>(socket)
        };
        Ok(Self {
            sockets: [open(false)?, open(true)?],
            senders: Senders::default(),
        })
    }

    fn send(&mut self, way: &TunnelWay, frame: &[u8], question: &Question) -> io::Result<()> {
        let wrapped = way.wrap(frame, question);
        let is_ipv6 = way.outer.dest.is_ipv6();
        self.senders.send(way.ifindex, is_ipv6, &wrapped)
    }

    fn read(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut buffer = [0; LONGEST];
        for (socket, is_ipv4) in self.sockets.iter().zip([true, false]) {
            for _ in 0..FRAMES {
                let Some(packet) = receive(socket, &mut buffer) else {
                    break;
                };
                answers.extend(probe::read_packet(is_ipv4, packet));
            }
        }
        answers
    }
}

/// What reals are asked by, once one was.
#[derive(Default)]
pub(in crate::balance) struct VipAsker {
    segment: Option<SegmentAsker>,
    tunnels: Option<TunnelAsker>,
    numbers: RandomState,
    asked: u64,
}

/// What has come back, by the way that its question took.
#[derive(Default)]
pub(in crate::balance) struct Answers {
    segment: Vec<Answer>,
    tunnels: Vec<Answer>,
}

impl Answers {
    /// Those that have come to questions by such a way.
    pub(super) fn by(&self, way: &Way) -> &[Answer] {
        match way {
            Way::Segment(_) => &self.segment,
            Way::Tunnel(_) => &self.tunnels,
        }
    }
}

impl VipAsker {
    /// The index of the interface whose segment is asked; its sockets are opened. `None`: there
    /// is no interface.
    ///
    /// # Errors
    /// The daemon may not have packet sockets (CAP_NET_RAW).
    pub(in crate::balance) fn open_segment(&mut self, name: &str) -> io::Result<Option<u32>> {
        if self.segment.is_none() {
            let Some(interface) = interface(name)? else {
                return Ok(None);
            };
            self.segment = Some(SegmentAsker::open(interface)?);
        }
        let segment = self.segment.as_ref();
        Ok(segment.map(|asker| asker.interface.index))
    }

    /// Opens the sockets by which reals beyond a router are asked.
    ///
    /// # Errors
    /// The daemon may not have packet sockets (CAP_NET_RAW).
    pub(in crate::balance) fn open_tunnels(&mut self) -> io::Result<()> {
        if self.tunnels.is_none() {
            self.tunnels = Some(TunnelAsker::open()?);
        }
        Ok(())
    }

    /// Closes the sockets of the segment, unless it is that of this interface still, with the
    /// same link-layer address; whether it is.
    pub(in crate::balance) fn keep_segment(&mut self, link: Option<(u32, Mac)>) -> bool {
        let is_same = |asker: &SegmentAsker| {
            link.is_some_and(|link| (asker.interface.index, asker.interface.mac) == link)
        };
        let keeps = self.segment.as_ref().is_some_and(is_same);
        self.segment.take_if(|_| !keeps);
        keeps
    }

    /// Closes the sockets of interfaces over which no packets for reals leave any more.
    pub(in crate::balance) fn keep_senders(&mut self, interfaces: &BTreeSet<u32>) {
        if let Some(tunnels) = &mut self.tunnels {
            tunnels.senders.keep(interfaces);
        }
    }

    /// What has come back since, at most so much at a time.
    pub(in crate::balance) fn read(&self) -> Answers {
        let segment = self.segment.as_ref().map(SegmentAsker::read);
        let tunnels = self.tunnels.as_ref().map(TunnelAsker::read);
        Answers {
            segment: segment.unwrap_or_default(),
            tunnels: tunnels.unwrap_or_default(),
        }
    }

    /// A frame that cannot be sent is one that is not answered.
    pub(super) fn send(&mut self, way: &Way, frame: &[u8], question: &Question) {
        let sent = match way {
            Way::Segment(_) => match &self.segment {
                Some(segment) => segment.send(frame, question.vip),
                None => return,
            },
            Way::Tunnel(way) => match &mut self.tunnels {
                Some(tunnels) => tunnels.send(way, frame, question),
                None => return,
            },
        };
        if let Err(error) = sent {
            tracing::debug!("cannot ask at {}: {error}", question.vip);
        }
    }

    /// The link-layer addresses of who sends and of the next hop; `None`: the sockets of this way
    /// are not open.
    pub(super) fn ends(&self, way: &Way) -> Option<[Mac; 2]> {
        match way {
            Way::Segment(real) => Some([self.segment.as_ref()?.interface.mac, *real]),
            Way::Tunnel(way) => Some([way.source_mac, way.next_hop]),
        }
    }

    /// What a question's port and number are made of: nobody can guess it.
    pub(super) fn draw(&mut self) -> u64 {
        self.asked += 1;
        self.numbers.hash_one(self.asked)
    }
}

#[cfg(test)]
mod tests {
    use weir_core::balance::probe::datagram;
    use weir_enforce::Tunnel;

    use super::*;

    /// The packet path drops what is too big, and would tell a client.
    #[test]
    fn a_question_too_long_for_the_tunnel_is_known() {
        let question = Question {
            source_mac: [2; 6],
            real: [4; 6],
            source: [192, 0, 2, 1].into(),
            protocol: Transport::Udp,
            source_port: FIRST_PORT,
            vip: [198, 51, 100, 80].into(),
            port: 53,
            number: 0,
        };
        let frame = datagram(&question, &[0; 1200]);
        let way = |mtu, gue_port| {
            let real = Real {
                id: 0,
                dest: [4; 6],
                source: [2; 6],
                ifindex: 2,
                vlan: 0,
                tunnel: Some(Tunnel {
                    source: [192, 0, 2, 1].into(),
                    dest: [10, 2, 1, 11].into(),
                    mtu,
                    gue_port,
                }),
                drains: false,
            };
            Way::Tunnel(TunnelWay::of(&real).unwrap())
        };
        // Two IPv4 headers and one of UDP, and with GUE another one.
        for (least, gue_port) in [(1248, None), (1256, Some(6080))] {
            assert!(way(least, gue_port).takes(&frame, &question));
            assert!(!way(least - 1, gue_port).takes(&frame, &question));
        }
        assert!(Way::Segment([4; 6]).takes(&frame, &question));
    }
}

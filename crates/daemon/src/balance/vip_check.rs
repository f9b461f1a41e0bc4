//! Whether a real serves the virtual addresses of its pool: behind each check that it
//! passes at its own address it is asked at them, by a SYN to its link-layer address, as
//! the packet path sends it those of clients. A real without the address gives no answer.
//!
//! The kernel of this host, which may have the virtual address itself, neither sends such
//! a frame nor takes the answer to it, so both go through packet sockets. Port and sequence
//! number are drawn anew for each question: nobody who does not see it can answer in a
//! real's place, and a real that still waits for the end of an earlier one (its RST was
//! lost) answers all the same.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    time::Instant,
};

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt::set_socket_recv_buffer_size_force};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use weir_core::{
    Protocol as Transport,
    balance::probe::{self, Answer, ETHERNET, Question},
};

use super::{
    config::{CheckKind, Forward, PoolConfig},
    sources,
};
use crate::host::{Interface, InterfaceAddress, Mac};

/// The most virtual addresses that one check asks; of more, the next ones come next.
const AT_ONCE: usize = 8;
/// So many frames are read at a time.
const FRAMES: usize = 4096;
/// So much of a frame is read: any headers in front of a TCP header.
const LONGEST: usize = 128;
/// The ports of this host that ask: above those that Linux gives away.
const FIRST_PORT: u16 = 61_000;
const LAST_PORT: u16 = 64_999;
/// Room for the answers of all reals that are asked at once, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const TCP: u32 = 6;
/// linux/filter.h
const LOAD_BYTE: u16 = 0x30;
const LOAD_INDEX: u16 = 0x01;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_BYTE_BEHIND: u16 = 0x50;
/// Four times the lower half of a byte: the length of an IPv4 header.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ABOVE: u16 = 0x25;
const JUMP_IF_NOT_BELOW: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ACK: u32 = 0x10;
const SYN_OR_RST: u32 = 0x06;

/// Takes TCP segments to one of the ports that ask which acknowledge a SYN or refuse it,
/// and nothing else: the kernel asks it of each packet of the family that reaches this
/// host's stack by the interface.
fn filter(ethertype: u16) -> [SockFilter; 11] {
    let l3 = ETHERNET as u32;
    let (protocol, header) = match ethertype {
        ETHERTYPE_IPV4 => (l3 + 9, SockFilter::new(LOAD_HEADER_LENGTH, 0, 0, l3)),
        _ => (l3 + 6, SockFilter::new(LOAD_INDEX, 0, 0, 40)),
    };
    [
        SockFilter::new(LOAD_BYTE, 0, 0, protocol),
        SockFilter::new(JUMP_IF_EQUAL, 0, 8, TCP),
        header,
        SockFilter::new(LOAD_HALF_BEHIND, 0, 0, l3 + 2),
        SockFilter::new(JUMP_IF_NOT_BELOW, 0, 5, FIRST_PORT.into()),
        SockFilter::new(JUMP_IF_ABOVE, 4, 0, LAST_PORT.into()),
        SockFilter::new(LOAD_BYTE_BEHIND, 0, 0, l3 + 13),
        SockFilter::new(JUMP_IF_ANY_BIT, 0, 2, ACK),
        SockFilter::new(JUMP_IF_ANY_BIT, 0, 1, SYN_OR_RST),
        SockFilter::new(RETURN, 0, 0, LONGEST as u32),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// The sockets by which reals of an interface's segment are asked.
pub(super) struct VipAsker {
    interface: Interface,
    /// The packet sockets of IPv4 and of IPv6.
    sockets: [OwnedFd; 2],
    numbers: RandomState,
    asked: u64,
}

impl VipAsker {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The daemon may not have packet sockets (CAP_NET_RAW), or the interface is gone.
    pub(super) fn open(interface: Interface) -> io::Result<Self> {
        let open = |ethertype: u16| {
            let protocol = Protocol::from(i32::from(ethertype.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            socket.attach_filter(&filter(ethertype))?;
            let socket = OwnedFd::from(socket);
            interface.bind(&socket)?;
            // Without CAP_NET_ADMIN the usual room must do.
            let _ = set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER);
            // What came before, of any interface.
            for _ in 0..FRAMES {
                if recv(&socket, &mut [0; 1], RecvFlags::empty()).is_err() {
                    break;
                }
            }
            Ok::<_, io::Error>(socket)
        };
        Ok(Self {
            sockets: [open(ETHERTYPE_IPV4)?, open(ETHERTYPE_IPV6)?],
            interface,
            numbers: RandomState::new(),
            asked: 0,
        })
    }

    /// The index of the interface.
    pub(super) fn index(&self) -> u32 {
        self.interface.index
    }

    /// Whether it is the same interface still, with the same link-layer address.
    pub(super) fn is_of(&self, index: u32, mac: Mac) -> bool {
        (self.interface.index, self.interface.mac) == (index, mac)
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
    pub(super) fn read(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut frame = [0; LONGEST];
        for socket in &self.sockets {
            for _ in 0..FRAMES {
                // There is none, or the interface is gone: that is seen each second.
                let Ok((len, _)) = recv(socket, &mut frame, RecvFlags::empty()) else {
                    break;
                };
                let Some(answer) = probe::read(&frame[..len]) else {
                    continue;
                };
                if answer.is_open {
                    // Lost, the real gives up by itself within a minute.
                    let _ = self.send(&probe::reset(&answer.question), answer.question.vip);
                }
                answers.push(answer);
            }
        }
        answers
    }

    fn question(&mut self, real: Mac, source: IpAddr, vip: IpAddr, port: u16) -> Question {
        self.asked += 1;
        let drawn = self.numbers.hash_one(self.asked);
        let ports = u64::from(LAST_PORT - FIRST_PORT + 1);
        Question {
            source_mac: self.interface.mac,
            real,
            source,
            source_port: FIRST_PORT + ((drawn >> 32) % ports) as u16,
            vip,
            port,
            number: drawn as u32,
        }
    }
}

/// A real that is being asked.
pub(super) struct VipCheck {
    /// The questions, and whether each was answered.
    asked: Vec<(Question, bool)>,
    /// Whether the port must be open: a check has just found it so at the real's own
    /// address.
    must_be_open: bool,
    refused: Option<IpAddr>,
    /// The time at which those that have not answered are asked once more.
    again: Option<Instant>,
    until: Instant,
}

impl VipCheck {
    /// Asks a real at the virtual addresses of its pool, from the `turn`th on. `None`:
    /// there is nothing to ask. The pool is not on the segment, has no TCP port, or this
    /// host no address of its own to ask from.
    pub(super) fn begin(
        pool: &PoolConfig,
        (address, mac): (IpAddr, Mac),
        turn: usize,
        sources: &[InterfaceAddress],
        asker: &mut VipAsker,
    ) -> Option<Self> {
        if !pool.asks_vips() {
            return None;
        }
        let (port, must_be_open) = port(pool)?;
        let count = pool.vips.len();
        let next = (0..count.min(AT_ONCE)).map(|n| pool.vips[(turn + n) % count]);
        // The address that the real has just answered to, where it is of the family.
        let source = |vip: IpAddr| match vip.is_ipv4() == address.is_ipv4() {
            true => sources::of(sources, address),
            false => sources::of(sources, vip),
        };
        let asked: Vec<_> = next
            .filter_map(|vip| Some((vip, source(vip)?)))
            .map(|(vip, source)| (asker.question(mac, source, vip, port), false))
            .collect();
        let now = Instant::now();
        let timeout = pool.check.timeout;
        let check = Self {
            asked,
            must_be_open,
            refused: None,
            again: Some(now + timeout / 2),
            until: now + timeout,
        };
        check.ask(asker);
        (!check.asked.is_empty()).then_some(check)
    }

    /// How far the next check is to begin behind the first virtual address of one that was
    /// passed; behind another one the same are asked again.
    pub(super) const STEP: usize = AT_ONCE;

    /// A frame that cannot be sent is one that is not answered.
    fn ask(&self, asker: &VipAsker) {
        for (question, _) in self.asked.iter().filter(|(_, is_answered)| !is_answered) {
            if let Err(error) = asker.send(&probe::syn(question), question.vip) {
                tracing::debug!("cannot ask at {}: {error}", question.vip);
            }
        }
    }

    /// Takes note of answers to any questions, and says what is known by now.
    pub(super) fn look(
        &mut self,
        answers: &[Answer],
        asker: &VipAsker,
    ) -> Option<Result<(), String>> {
        for answer in answers {
            let of = |question: &Question| (question.vip, question.source_port, question.number);
            let found = self
                .asked
                .iter_mut()
                .find(|(asked, _)| of(asked) == of(&answer.question));
            let Some((question, is_answered)) = found else {
                continue;
            };
            *is_answered = true;
            if !answer.is_open && self.must_be_open {
                self.refused = Some(question.vip);
            }
        }
        let port = self.asked.first().map_or(0, |(question, _)| question.port);
        if let Some(vip) = self.refused {
            return Some(Err(format!(
                "nobody listens at the virtual address {vip}, port {port}"
            )));
        }
        let silent = self.asked.iter().find(|(_, is_answered)| !is_answered);
        let Some((question, _)) = silent else {
            return Some(Ok(()));
        };
        let now = Instant::now();
        if now >= self.until {
            return Some(Err(format!(
                "no answer at the virtual address {}: the real needs it on its loopback interface (weir real-side)",
                question.vip
            )));
        }
        if self.again.is_some_and(|again| now >= again) {
            self.again = None;
            self.ask(asker);
        }
        None
    }
}

impl PoolConfig {
    /// Whether its reals are asked at its virtual addresses as well.
    pub(crate) fn asks_vips(&self) -> bool {
        self.check.asks_vips && self.forward == Forward::L2
    }
}

/// The port at which a real is asked, and whether it must be open there: that which the
/// check asks, if clients are sent to it, or else the pool's first TCP port.
fn port(pool: &PoolConfig) -> Option<(u16, bool)> {
    let mut ports = pool.ports.iter();
    let is_checked = matches!(pool.check.kind, CheckKind::Tcp | CheckKind::Http(_))
        && ports.any(|one| *one == (Transport::Tcp, pool.check.port));
    let mut tcp = pool.ports.iter();
    let first = tcp.find(|(protocol, _)| *protocol == Transport::Tcp);
    match is_checked {
        true => Some((pool.check.port, true)),
        false => first.map(|(_, port)| (*port, false)),
    }
}

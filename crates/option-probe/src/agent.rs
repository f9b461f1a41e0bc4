//! The agent at a site of `weir options probe`: sends packets that it is given, as they are,
//! and keeps those of a run that arrive. It is asked over its standard input, by
//! `crates/option-probe/src/agent_protocol.rs`, and ends with it.

use std::{
    io::{self, BufRead, IoSliceMut, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use nix::sys::{
    socket::{
        self, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol,
        SockType, setsockopt, sockopt,
    },
    time::TimeVal,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    agent_protocol::{
        Captured, HexBytes, MAX_ADDRESSES, MAX_CAPTURED, MAX_PACKETS, ProtocolError, Request,
        Response, VERSION, read_message, write_message,
    },
    packet::PacketParts,
    probe_packet::Marker,
    site_address::can_be_reached,
};

/// How soon the end of the listening is noticed.
const TICK_US: i64 = 50_000;
/// How long packets are looked at that wait when the listening ends: on a busy host there is
/// always one more.
const DRAIN: Duration = Duration::from_millis(500);
/// Bytes of packets that wait to be looked at: what does not fit is lost, and would read as
/// lost on the path.
const BUFFER: usize = 32 << 20;
/// `PACKET_OUTGOING` of linux/if_packet.h: packets that this host sends.
const OUTGOING: u8 = 4;
/// IPPROTO_RAW: packets with their IP headers.
const RAW: i32 = 255;
/// The longest pause between two packets.
const MAX_GAP_US: u32 = 100_000;

/// Packets that were kept.
struct Kept {
    packets: Vec<Captured>,
    beyond: u64,
    /// Packets that had no room in the socket's buffer.
    lost: u64,
}

/// A packet that was received.
struct Received {
    length: usize,
    /// Whether this host sends it.
    is_outgoing: bool,
    /// Packets that the socket has lost before it, since it was made; `None`: no word.
    lost: Option<u32>,
}

/// A thread that keeps the packets of a run.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Kept>,
}

impl Listener {
    fn begin(run: u32) -> io::Result<Self> {
        let wire = socket::socket(
            AddressFamily::Packet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )?;
        setsockopt(&wire, sockopt::ReceiveTimeout, &TimeVal::new(0, TICK_US))?;
        // A smaller buffer will do, too.
        let _ = setsockopt(&wire, sockopt::RcvBufForce, &BUFFER);
        setsockopt(&wire, sockopt::RxqOvfl, &1)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new()
            .name("weir-options".into())
            .spawn(move || {
                let receive = |bytes: &mut [u8]| receive(&wire, bytes);
                listen(receive, send_to_itself, run, &stopped, DRAIN)
            })?;
        Ok(Self { stop, thread })
    }

    fn end(self) -> Kept {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(kept) => kept,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Waits for a packet; `None`: none came within a tick.
fn receive(wire: &OwnedFd, bytes: &mut [u8]) -> Option<Received> {
    let mut space = nix::cmsg_space!(u32);
    let mut parts = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::empty();
    let message =
        socket::recvmsg::<LinkAddr>(wire.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
    let mut notes = message.cmsgs().into_iter().flatten();
    let lost = notes.find_map(|note| match note {
        ControlMessageOwned::RxqOvfl(lost) => Some(lost),
        _ => None,
    });
    Some(Received {
        length: message.bytes,
        is_outgoing: message
            .address
            .is_some_and(|from| from.pkttype() == OUTGOING),
        lost,
    })
}

/// Has one more packet arrive on this host: packets say how many were lost before them, and
/// nothing says it of the last ones. Without a loopback interface there is none.
fn send_to_itself() {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    let _ = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.send_to(&[], here));
}

/// Keeps the packets of a run until it is stopped, and what waits by then, for so long at most.
fn listen(
    mut receive: impl FnMut(&mut [u8]) -> Option<Received>,
    mut send_to_itself: impl FnMut(),
    run: u32,
    stop: &AtomicBool,
    drain: Duration,
) -> Kept {
    let mut kept = Kept {
        packets: Vec::new(),
        beyond: 0,
        lost: 0,
    };
    let mut bytes = [0; MAX_CAPTURED];
    let mut end: Option<Instant> = None;
    let mut is_last_asked = false;
    loop {
        if stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now > *end.get_or_insert(now + drain) {
                return kept;
            }
        }
        let Some(Received {
            length,
            is_outgoing,
            lost,
        }) = receive(&mut bytes)
        else {
            match (end, is_last_asked) {
                (Some(_), true) => return kept,
                (Some(_), false) => {
                    is_last_asked = true;
                    send_to_itself();
                }
                (None, _) => {}
            }
            continue;
        };
        kept.lost = kept.lost.max(lost.unwrap_or(0).into());
        let packet = &bytes[..length];
        if is_outgoing || Marker::find(packet, run).is_none() {
            continue;
        }
        if kept.packets.len() == MAX_PACKETS {
            kept.beyond += 1;
            continue;
        }
        kept.packets.push(Captured {
            time_ns: now_ns(),
            packet: HexBytes(packet.to_vec()),
        });
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Sends packets with their IP headers; those that did not leave, and the first error.
fn send(packets: &[HexBytes], gap: Duration) -> (Vec<usize>, Option<String>) {
    let mut error = None;
    let mut sockets: [Option<Socket>; 2] = [None, None];
    let mut refused = Vec::new();
    for (at, packet) in packets.iter().enumerate() {
        if let Err(why) = send_one(&packet.0, &mut sockets) {
            error.get_or_insert_with(|| why.to_string());
            refused.push(at);
        }
        thread::sleep(gap);
    }
    (refused, error)
}

fn send_one(packet: &[u8], sockets: &mut [Option<Socket>; 2]) -> io::Result<()> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidInput, "a packet is malformed");
    let dest = PacketParts::read(packet).ok_or_else(malformed)?.dest;
    let domain = if dest.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = &mut sockets[usize::from(dest.is_ipv6())];
    let socket = match socket {
        Some(socket) => socket,
        None => socket.insert(Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?),
    };
    socket.send_to(packet, &SocketAddr::new(dest, 0).into())?;
    Ok(())
}

/// The addresses by which other hosts may reach this one.
fn addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let all = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    all.filter(can_be_reached).take(MAX_ADDRESSES).collect()
}

/// Answers requests until there is none any more.
///
/// # Errors
/// The other side's lines cannot be read, or are no requests.
pub fn serve(input: &mut impl BufRead, out: &mut impl Write) -> Result<(), ProtocolError> {
    let mut listener: Option<Listener> = None;
    loop {
        let request: Request = match read_message(input) {
            Ok(request) => request,
            Err(ProtocolError::End) => return Ok(()),
            Err(error) => {
                let message = error.to_string();
                // Nobody may be left to tell.
                let _ = write_message(out, &Response::Error { message });
                return Err(error);
            }
        };
        let answer = match request.check() {
            Ok(()) => answer(request, &mut listener),
            Err(message) => Response::Error { message },
        };
        write_message(out, &answer)?;
    }
}

fn answer(request: Request, listener: &mut Option<Listener>) -> Response {
    match request {
        Request::Hello { .. } => Response::Hello {
            version: VERSION,
            addresses: addresses(),
        },
        Request::Listen { run } => {
            if let Some(before) = listener.take() {
                before.end();
            }
            match Listener::begin(run) {
                Ok(begun) => {
                    *listener = Some(begun);
                    Response::Listening {}
                }
                Err(error) => Response::Error {
                    message: format!("cannot listen to packets: {error}"),
                },
            }
        }
        Request::Send { packets, gap_us } => {
            let gap = Duration::from_micros(gap_us.min(MAX_GAP_US).into());
            let (refused, error) = send(&packets, gap);
            Response::Sent { refused, error }
        }
        Request::Collect {} => match listener.take() {
            Some(listener) => {
                let Kept {
                    packets,
                    beyond,
                    lost,
                } = listener.end();
                Response::Arrived {
                    packets,
                    beyond,
                    lost,
                }
            }
            None => Response::Error {
                message: "it does not listen".into(),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe_packet::{Carrier, Path, craft};

    #[test]
    fn listening_ends_among_packets_without_a_pause() {
        let path = Path {
            source: "192.0.2.1".parse().unwrap(),
            dest: "192.0.2.2".parse().unwrap(),
            port: 443,
        };
        let marker = Marker { run: 7, index: 3 };
        let probe = craft(&path, Carrier::Udp, None, marker).unwrap();
        let stop = AtomicBool::new(false);
        let mut count = 0;
        let busy = |bytes: &mut [u8]| {
            count += 1;
            // Nobody's packets, before and behind the probe, which is there when it is stopped.
            stop.store(count >= 10, Ordering::Relaxed);
            let packet: &[u8] = if count == 11 { &probe } else { b"another" };
            bytes[..packet.len()].copy_from_slice(packet);
            Some(Received {
                length: packet.len(),
                is_outgoing: false,
                lost: Some(count / 11),
            })
        };
        let kept = listen(busy, || {}, 7, &stop, Duration::from_millis(20));
        assert_eq!((kept.packets.len(), kept.beyond), (1, 0));
        assert!(kept.lost > 0);
    }

    #[test]
    fn packets_that_do_not_leave_are_named() {
        let packets = [HexBytes(vec![1]), HexBytes(vec![0x45])];
        let (refused, error) = send(&packets, Duration::ZERO);
        assert_eq!(refused, [0, 1]);
        assert_eq!(error.as_deref(), Some("a packet is malformed"));
    }

    #[test]
    fn listening_ends_when_nothing_waits() {
        let stop = AtomicBool::new(true);
        let kept = listen(|_| None, || {}, 7, &stop, Duration::from_secs(3600));
        assert_eq!((kept.packets.len(), kept.lost), (0, 0));
    }

    /// By a socket that needs no privilege: the kernel counts for all of them alike.
    #[test]
    fn what_has_no_room_in_the_socket_is_counted() {
        let wire = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        setsockopt(&wire, sockopt::RcvBuf, &4096).unwrap();
        setsockopt(&wire, sockopt::RxqOvfl, &1).unwrap();
        setsockopt(&wire, sockopt::ReceiveTimeout, &TimeVal::new(0, TICK_US)).unwrap();
        let here = wire.local_addr().unwrap();
        let wire = OwnedFd::from(wire);
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for _ in 0..200 {
            sender.send_to(&[0; 600], here).unwrap();
        }
        let mut bytes = [0; MAX_CAPTURED];
        let mut there = 0_u32;
        while let Some(received) = receive(&wire, &mut bytes) {
            assert_eq!((received.length, received.is_outgoing), (600, false));
            there += 1;
        }
        assert!(there < 200);
        // The last ones are lost without a word, until one more arrives.
        sender.send_to(&[0; 1], here).unwrap();
        let last = receive(&wire, &mut bytes).unwrap();
        assert_eq!(last.lost, Some(200 - there));
    }

    #[test]
    fn packets_that_are_lost_last_are_counted_by_one_more() {
        let stop = AtomicBool::new(true);
        let is_asked = std::cell::Cell::new(false);
        let mut said = false;
        let receive = |_: &mut [u8]| {
            let is_it = is_asked.get() && !std::mem::replace(&mut said, is_asked.get());
            is_it.then_some(Received {
                length: 0,
                is_outgoing: true,
                lost: Some(3),
            })
        };
        let ask = || is_asked.set(true);
        let kept = listen(receive, ask, 7, &stop, Duration::from_secs(3600));
        assert_eq!((kept.packets.len(), kept.lost), (0, 3));
    }
}

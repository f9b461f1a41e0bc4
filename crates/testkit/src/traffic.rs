//! Real clients and servers of the kernel's own stack, placed in a namespace:
//! TCP, UDP and ping, IPv4 and IPv6, from any source address. Each client call
//! is one try with a time limit; trying again is for the caller.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

use weir_netlab::{Context, Error, ErrorKind, Namespace, Result};

use crate::packet::checksum;

/// How soon a server thread sees that it shall stop.
const TICK: Duration = Duration::from_millis(20);

/// A socket for `to`, bound to `from` when given, local address or not.
fn socket(kind: Type, to: IpAddr, from: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(domain(to), kind, None)?;
    bind_source(&socket, from)?;
    Ok(socket)
}

fn domain(addr: IpAddr) -> Domain {
    if addr.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    }
}

fn bind_source(socket: &Socket, from: Option<IpAddr>) -> io::Result<()> {
    match from {
        None => return Ok(()),
        Some(IpAddr::V4(_)) => socket.set_freebind_v4(true)?,
        Some(IpAddr::V6(_)) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&SocketAddr::new(from.expect("matched above"), 0).into())
}

/// Makes a call again while it ends with EINTR, as a wait with a time limit does
/// when the process is stopped and goes on, also without a handler (signal(7)).
pub fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Opens a TCP connection and closes it; answers how long the handshake took.
/// A refusal, an unreachable host and silence are told apart by the error.
pub fn tcp_connect(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<Duration> {
    let (_, took) = tcp_open(namespace, from, to, timeout)?;
    Ok(took)
}

/// Opens a TCP connection and keeps it; the stream may be used anywhere.
pub fn tcp_open(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    timeout: Duration,
) -> Result<(TcpStream, Duration)> {
    namespace
        .enter(|| {
            let socket = socket(Type::STREAM, to.ip(), from)?;
            let begun = Instant::now();
            socket.connect_timeout(&to.into(), timeout)?;
            Ok::<_, io::Error>((TcpStream::from(socket), begun.elapsed()))
        })?
        .context(|| describe("connect", namespace, from, to))
}

/// Opens a TCP connection from a port of one's own, which an earlier connection may have
/// had that ended by [`reset`], and keeps it.
pub fn tcp_open_from(
    namespace: &Namespace,
    from: SocketAddr,
    to: SocketAddr,
    timeout: Duration,
) -> Result<TcpStream> {
    namespace
        .enter(|| {
            let socket = Socket::new(domain(to.ip()), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&from.into())?;
            socket.connect_timeout(&to.into(), timeout)?;
            Ok::<_, io::Error>(TcpStream::from(socket))
        })?
        .context(|| describe("connect", namespace, Some(from.ip()), to))
}

/// Ends a TCP connection by RST, so that its port is free at once.
pub fn reset(stream: TcpStream) -> io::Result<()> {
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO))
}

/// Sends one datagram and waits for one from the same place; answers it and
/// how long it took.
pub fn udp_request(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    request: &[u8],
    timeout: Duration,
) -> Result<(Vec<u8>, Duration)> {
    namespace
        .enter(|| {
            let socket = UdpSocket::from(socket(Type::DGRAM, to.ip(), from)?);
            socket.connect(to)?;
            socket.set_read_timeout(Some(timeout))?;
            let begun = Instant::now();
            socket.send(request)?;
            let mut answer = vec![0; 65536];
            let len = retry_interrupted(|| socket.recv(&mut answer))?;
            answer.truncate(len);
            Ok::<_, io::Error>((answer, begun.elapsed()))
        })?
        .context(|| describe("ask by UDP", namespace, from, to))
}

/// Sends datagrams without waiting for anything; answers how many left.
pub fn udp_send(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: SocketAddr,
    payload: &[u8],
    count: u64,
) -> Result<u64> {
    namespace
        .enter(|| {
            let socket = UdpSocket::from(socket(Type::DGRAM, to.ip(), from)?);
            let sent = (0..count)
                .filter(|_| socket.send_to(payload, to).is_ok())
                .count();
            Ok::<_, io::Error>(sent as u64)
        })?
        .context(|| describe("send by UDP", namespace, from, to))
}

/// Sends frames as they are out through a device, whatever they claim to be;
/// answers how many left.
pub fn send_frames<'f>(
    namespace: &Namespace,
    dev: &str,
    frames: impl Iterator<Item = &'f [u8]> + Send,
) -> Result<u64> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType};
    namespace
        .enter(|| {
            let no_device = || io::Error::from(io::ErrorKind::NotFound);
            let device = nix::ifaddrs::getifaddrs()?
                .filter(|i| i.interface_name == dev)
                .find_map(|i| i.address?.as_link_addr().copied())
                .ok_or_else(no_device)?;
            let (family, kind) = (AddressFamily::Packet, SockType::Raw);
            let socket = socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
            socket::bind(socket.as_raw_fd(), &device)?;
            let sent = frames
                .filter(|frame| socket::send(socket.as_raw_fd(), frame, MsgFlags::empty()).is_ok());
            Ok::<_, io::Error>(sent.count() as u64)
        })?
        .context(|| format!("send frames out through {dev} in {}", namespace.name()))
}

/// One echo request (ICMP or ICMPv6); answers the round trip time.
pub fn ping(
    namespace: &Namespace,
    from: Option<IpAddr>,
    to: IpAddr,
    timeout: Duration,
) -> Result<Duration> {
    static SEQUENCE: AtomicU16 = AtomicU16::new(1);
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let id = (std::process::id() as u16).to_be_bytes();
    let (protocol, ask, answer) = match to {
        IpAddr::V4(_) => (Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Protocol::ICMPV6, 128, 129),
    };
    let what = || describe("ping", namespace, from, SocketAddr::new(to, 0));
    let answered = namespace
        .enter(|| -> io::Result<Option<Duration>> {
            let socket = Socket::new(domain(to), Type::RAW, Some(protocol))?;
            bind_source(&socket, from)?;
            let mut request = vec![ask, 0, 0, 0, id[0], id[1], sequence[0], sequence[1]];
            if to.is_ipv4() {
                // For ICMPv6 the kernel does it, it knows the addresses.
                let sum = checksum(&request).to_be_bytes();
                request[2..4].copy_from_slice(&sum);
            }
            let begun = Instant::now();
            socket.send_to(&request, &SocketAddr::new(to, 0).into())?;
            let mut bytes = [0; 2048];
            while let Some(left) = timeout
                .checked_sub(begun.elapsed())
                .filter(|d| !d.is_zero())
            {
                socket.set_read_timeout(Some(left))?;
                let len = match (&socket).read(&mut bytes) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    other => other?,
                };
                // IPv4 raw sockets show the IP header, IPv6 ones do not.
                let skip = if to.is_ipv4() {
                    usize::from(bytes[0] & 0x0f) * 4
                } else {
                    0
                };
                let [kind, _, _, _, reply @ ..] = bytes.get(skip..len).unwrap_or(&[]) else {
                    continue;
                };
                if *kind == answer && reply.starts_with(&request[4..]) {
                    return Ok(Some(begun.elapsed()));
                }
            }
            Ok(None)
        })?
        .context(what)?;
    answered.ok_or_else(|| {
        Error::new(
            ErrorKind::TimedOut,
            what(),
            format!("not within {timeout:?}"),
        )
    })
}

fn describe(verb: &str, namespace: &Namespace, from: Option<IpAddr>, to: SocketAddr) -> String {
    let from = from.map(|addr| format!(" from {addr}")).unwrap_or_default();
    format!("{verb}{from} to {to} in {}", namespace.name())
}

/// A TCP server that greets, then echoes, each connection on its own thread.
#[derive(Debug)]
pub struct TcpServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicU64>,
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Listens in the namespace; port 0 lets the kernel choose. `::` serves
    /// IPv4 as well.
    pub fn start(namespace: &Namespace, at: SocketAddr, banner: &[u8]) -> Result<Self> {
        let what = || format!("listen at {at} in {}", namespace.name());
        let listener = namespace.enter(|| listen(at))?.context(what)?;
        let addr = listener.local_addr().context(what)?;
        let ours = listener.try_clone().context(what)?;
        let stop = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicU64::new(0));
        let (stopped, count, banner) = (stop.clone(), accepted.clone(), banner.to_vec());
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = ours.accept() {
                count.fetch_add(1, Ordering::Relaxed);
                let (stop, banner) = (stopped.clone(), banner.clone());
                thread::spawn(move || echo(stream, &banner, &stop));
            }
        });
        Ok(Self {
            addr,
            stop,
            accepted,
            listener,
            thread: Some(thread),
        })
    }

    /// The address at which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes accept(), which then fails.
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(domain(at.ip()), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Ends with the connection, or with the server.
fn echo(mut stream: TcpStream, banner: &[u8], stop: &AtomicBool) {
    let _ = stream.set_read_timeout(Some(TICK));
    let _ = stream.set_nodelay(true);
    if stream.write_all(banner).is_err() {
        return;
    }
    let mut bytes = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => {
                if stream.write_all(&bytes[..len]).is_err() {
                    return;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => (),
            Err(_) => return,
        }
    }
}

/// A UDP server that sends every datagram back.
#[derive(Debug)]
pub struct UdpServer {
    addr: SocketAddr,
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// Binds in the namespace; port 0 lets the kernel choose.
    pub fn start(namespace: &Namespace, at: SocketAddr) -> Result<Self> {
        let what = || format!("serve UDP at {at} in {}", namespace.name());
        let socket = namespace.enter(|| UdpSocket::bind(at))?.context(what)?;
        let addr = socket.local_addr().context(what)?;
        socket.set_read_timeout(Some(TICK)).context(what)?;
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (stop.clone(), received.clone());
        let thread = thread::spawn(move || {
            let mut bytes = vec![0; 65536];
            while !stopped.load(Ordering::Relaxed) {
                // Errors here are timeouts and ICMP answers to earlier replies.
                let Ok((len, from)) = socket.recv_from(&mut bytes) else {
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&bytes[..len], from);
            }
        });
        Ok(Self {
            addr,
            stop,
            received,
            thread: Some(thread),
        })
    }

    /// The address at which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Datagrams received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

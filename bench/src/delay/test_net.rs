//! One path's own network: the clients' namespace, the host's with its servers
//! and the path, a veth pair between them, and the counters on the way. All
//! nets of a run stand side by side, so that rounds can be interleaved.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd,
    path::Path as File,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::Context;
use socket2::{Domain, SockFilter, Socket, Type};
use weir_bpf::{
    attachment::{Hook, Link},
    clients::{Clients, Crowd, Families},
    device::set_gro,
    generator::Flood,
};
use weir_netlab::{Namespace, Net, Side, VethOpts};

use super::{
    layout::{CLIENT_CORE, DEVICE, LOAD_CORE},
    path::{self, Around, Path, Policy, Running},
};
use crate::cores;

/// The host, as the clients know it.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The client's address: always allowed, and the one that is measured.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(145, 10, 0, 1);
/// The background's flows come from 11.0.0.0/8, each from the next address.
pub const BACKGROUND: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);

const TCP_PORT: u16 = 443;
const UDP_PORT: u16 = 5300;
/// The port of the background load: packets to it are counted and thrown away.
const SINK_PORT: u16 = 12345;
/// Distinct background flows; a conntrack table has less room.
const FLOWS: u32 = 1 << 24;
/// How soon a server sees that it shall stop.
const TICK: Duration = Duration::from_millis(50);

/// Counters of a net since it was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that came to the device, the client's included.
    pub arrived: u64,
    /// Background packets that came to the sink.
    pub delivered: u64,
    /// Packets that the path has denied.
    pub denied: u64,
    /// Packets that its queue had no room for.
    pub queue_full: u64,
}

/// A path in its network.
pub struct TestNet {
    /// The packet path that is measured.
    pub path: Path,
    running: Running,
    clients: Clients,
    flood: Flood,
    host: Namespace,
    outside: Namespace,
    _sink: Socket,
    _idle: Link,
    _dir: tempfile::TempDir,
    _net: Net,
}

impl TestNet {
    /// Builds it and sets the path up.
    pub fn new(path: Path, policy: &Policy<'_>) -> anyhow::Result<Self> {
        let net = Net::new()?;
        let (outside, host) = (net.namespace("net")?, net.namespace("host")?);
        let opts = VethOpts::new(&["10.9.0.1/24"], &["10.9.0.2/24"])?;
        let veth = net.veth(&outside, "g0", &host, DEVICE, opts.queues(2))?;
        let dir = tempfile::Builder::new()
            .prefix("weir-bench-delay-")
            .tempdir()?;
        queue_by_core(&outside, dir.path())?;
        let none = VethOpts::new(&[], &[])?;
        let idle = net.veth(&outside, "idle0", &outside, "idle1", none)?;
        outside.ip(&[
            format!("addr add {CLIENT}/32 dev lo"),
            format!("route add default via {HOST} dev g0"),
        ])?;
        host.ip(&[format!("route add default via 10.9.0.1 dev {DEVICE}")])?;
        for dev in ["all", DEVICE] {
            host.sysctl(&format!("ipv4.conf.{dev}.send_redirects"), "0")?;
        }
        host.sysctl("ipv4.ip_forward", "1")?;
        // Redirected frames reach a device that has NAPI, and XDP brings that
        // with it: all paths get it.
        host.enter(|| set_gro(DEVICE, true))?
            .context("switch GRO on")?;
        let macs = [veth.mac(Side::B), veth.mac(Side::A)];
        let ifindex = outside.ifindex("g0")?;
        let clients = Clients::load(Crowd {
            families: Families::Ipv4,
            unwanted: 1,
            wanted: FLOWS,
            dest: (HOST, Ipv6Addr::UNSPECIFIED),
            port: SINK_PORT,
            macs,
            ifindex,
        })?;
        let on = outside.ifindex(idle.dev(Side::A))?;
        let link = outside.enter(|| Link::attach(clients.request(), on, Hook::Xdp))?;
        let sink = host.enter(sink)??;
        let running = Running::start(path, &host, policy, dir.path())
            .with_context(|| format!("set {} up", path.name()))?;
        Ok(Self {
            path,
            running,
            clients,
            flood: Flood {
                sources: 1 << 17,
                salt: 0,
                dest: HOST.into(),
                port: SINK_PORT,
                macs,
                ifindex,
            },
            host,
            outside,
            _sink: sink,
            _idle: link.context("attach the background's program")?,
            _dir: dir,
            _net: net,
        })
    }

    /// Where the clients and the background are.
    pub fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// The senders of the background's flows.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// A flood of this host from all over the world.
    pub fn flood(&self) -> Flood {
        self.flood
    }

    /// Reads the counters of both ends.
    pub fn counts(&mut self) -> anyhow::Result<Counts> {
        let files = ["dev", "snmp"].map(|name| File::new("/proc/thread-self/net").join(name));
        let [dev, snmp] = self
            .host
            .enter(|| files.map(std::fs::read_to_string))?
            .map(|text| text.unwrap_or_default());
        let arrived = dev
            .lines()
            .find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'))
            .and_then(|line| line.split_whitespace().nth(1))
            .context("the device's packets")?
            .parse()?;
        let around = Around {
            device: arrived,
            stack: snmp_value(&snmp, "Ip", "InReceives")?,
            host: snmp_value(&snmp, "Ip", "InDelivers")?,
        };
        let queued = matches!(self.path, Path::Queue { .. });
        Ok(Counts {
            arrived,
            delivered: snmp_value(&snmp, "Udp", "InErrors")?,
            denied: self.running.denied(&around)?,
            queue_full: if queued {
                path::queue_dropped(&self.host)?
            } else {
                0
            },
        })
    }

    /// Rules that the path has inserted.
    pub fn banned(&mut self) -> anyhow::Result<u64> {
        self.running.banned()
    }

    /// Seconds of CPU of the path's process, its children not included.
    pub fn cpu_of_path(&self) -> f64 {
        self.running.pid().map_or(0.0, crate::flood::cpu_seconds)
    }

    /// Runs TCP and UDP servers until `stop`, on the clients' core.
    pub fn serve(&self, stop: &AtomicBool, ready: &std::sync::Barrier) -> anyhow::Result<()> {
        self.host.enter(|| -> anyhow::Result<()> {
            let sockets = (|| -> anyhow::Result<_> {
                let tcp = TcpListener::bind((HOST, TCP_PORT))?;
                let udp = UdpSocket::bind((HOST, UDP_PORT))?;
                nix::sys::socket::setsockopt(
                    &tcp.as_fd(),
                    nix::sys::socket::sockopt::ReceiveTimeout,
                    &nix::sys::time::TimeVal::new(0, TICK.subsec_micros().into()),
                )?;
                udp.set_read_timeout(Some(TICK))?;
                Ok((tcp, udp))
            })();
            ready.wait();
            let (tcp, udp) = sockets.context("open the servers' sockets")?;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    cores::pin(CLIENT_CORE);
                    while !stop.load(Ordering::Relaxed) {
                        drop(tcp.accept());
                    }
                });
                cores::pin(CLIENT_CORE);
                let mut request = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = udp.recv_from(&mut request) {
                        let _ = udp.send_to(&request[..len], from);
                    }
                }
            });
            Ok(())
        })?
    }

    /// The server's address for one of the two protocols.
    pub fn server(tcp: bool) -> SocketAddr {
        let port = if tcp { TCP_PORT } else { UDP_PORT };
        (IpAddr::from(HOST), port).into()
    }
}

/// The clients' device has a queue for each core, as a network card has: what
/// the load's core sends takes no room from the client in the receiver's ring.
/// Without it that happened to native XDP alone, for all others take only the
/// generator's frames from the ring.
fn queue_by_core(outside: &Namespace, dir: &File) -> anyhow::Result<()> {
    for core in [CLIENT_CORE, LOAD_CORE] {
        let mask = dir.join("xps_cpus");
        std::fs::write(&mask, format!("{:x}\n", 1 << core))?;
        let queue = format!("/sys/class/net/g0/queues/tx-{core}/xps_cpus");
        // A namespace's devices are in a sysfs of its own, which this mounts.
        let args = ["netns", "exec", outside.name(), "cp"].map(AsRef::as_ref);
        let files = [mask.as_os_str(), queue.as_ref()];
        outside.run("ip", &[&args[..], &files].concat())?;
    }
    Ok(())
}

/// A counter of /proc/net/snmp.
fn snmp_value(text: &str, protocol: &str, name: &str) -> anyhow::Result<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
    let (names, values) = lines.next().zip(lines.next()).context("lines of snmp")?;
    let (_, value) = names
        .split(' ')
        .zip(values.split(' '))
        .find(|(found, _)| *found == name)
        .with_context(|| format!("{protocol} {name} in snmp"))?;
    Ok(value.trim().parse()?)
}

/// A socket whose filter takes nothing: what reaches it is counted by the
/// kernel as an error, and costs no wake-up.
fn sink() -> std::io::Result<Socket> {
    /// `ret 0` of classic BPF.
    const TAKE_NOTHING: SockFilter = SockFilter::new(0x06, 0, 0, 0);
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.attach_filter(&[TAKE_NOTHING])?;
    socket.bind(&SocketAddr::from((HOST, SINK_PORT)).into())?;
    Ok(socket)
}

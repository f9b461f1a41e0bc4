//! The server under flood, a process of its own (`weir-bench flood-server`): it
//! answers wanted requests and refuses unwanted ones, told apart by the first
//! byte of the payload. A refusal is logged, or, as the oracle, counted here
//! and the client banned without a detour. Who sends is `clients`' matter.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, IoSliceMut, Write},
    net::IpAddr,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use jiff::Timestamp;
use nix::sys::{
    socket::{
        self, AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrIn6, sockopt,
    },
    time::{TimeVal, TimeValLike},
};
use weir_bpf::clients;
use weir_core::{Action, BanSource, BanTarget, PortSet, Prefix};
use weir_enforce::{
    Backend, BackendChoice, BootNanos, Entry, Expiry, Policy, Settings,
    kernel::{self, Hook, KernelConfig},
};
use weir_ring::Writer;

/// A ban follows this many refusals.
pub const LIMIT: u8 = 3;
/// Requests taken by one system call at most.
const BATCH: usize = 64;
/// Bytes of a request that are received: only the first one is looked at.
const REQUEST: usize = 16;
/// Threads, each with a socket of its own.
pub const THREADS: usize = 2;
/// Bytes of a thread's segment: some 330,000 lines.
const SEGMENT: u64 = 32 << 20;
/// Receive buffer of one socket. A live frame is a page: some 16,000 requests.
const RECEIVE_BUFFER: usize = 64 << 20;
/// A thread looks this often whether it is to stop.
const TICK: i64 = 100;

/// Arguments of the server.
#[derive(clap::Args)]
pub struct ServerArgs {
    /// UDP port, both families
    #[arg(long)]
    port: u16,
    /// Log a line per refused request to this file
    #[arg(long, required_unless_present_any = ["ring", "oracle"])]
    log: Option<PathBuf>,
    /// Log to segments in this directory
    #[arg(long, conflicts_with = "log")]
    ring: Option<PathBuf>,
    /// Segments overwrite their oldest records
    #[arg(long, requires = "ring")]
    overwrite: bool,
    /// Log only the message, without stamp, host and tag
    #[arg(long, requires = "ring")]
    message: bool,
    /// Log nothing: ban a client at its third refused request, as this instance
    #[arg(long, conflicts_with_all = ["log", "ring"])]
    oracle: Option<String>,
    /// The oracle's interface
    #[arg(long, default_value = "d0")]
    interface: String,
    /// The oracle's bans last so many milliseconds
    #[arg(long, default_value_t = 30_000)]
    ban_time: u64,
}

/// What the server has done so far, over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Wanted requests received.
    pub wanted: u64,
    /// Answers that were sent.
    pub answered: u64,
    /// Unwanted requests received.
    pub unwanted: u64,
    /// Records of them logged.
    pub logged: u64,
    /// Bans stored by the oracle.
    pub bans: u64,
}

impl Served {
    /// Reads what the server prints.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let numbers = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .with_context(|| format!("the server said {line:?}"))?;
        let [wanted, answered, unwanted, logged, bans] = numbers[..] else {
            anyhow::bail!("the server said {line:?}");
        };
        Ok(Self {
            wanted,
            answered,
            unwanted,
            logged,
            bans,
        })
    }
}

#[derive(Default)]
struct Counters {
    wanted: AtomicU64,
    answered: AtomicU64,
    unwanted: AtomicU64,
    logged: AtomicU64,
    bans: AtomicU64,
}

impl Counters {
    fn line(&self) -> String {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        format!(
            "{} {} {} {} {}",
            read(&self.wanted),
            read(&self.answered),
            read(&self.unwanted),
            read(&self.logged),
            read(&self.bans)
        )
    }
}

/// The destination of one thread's refusals: a log file, a ring or the oracle.
enum Sink {
    File(LogFile),
    Ring(Box<LogRing>),
    Oracle(Oracle),
}

impl Sink {
    fn refuse(&mut self, client: IpAddr) {
        match self {
            Self::File(log) => log.refuse(client),
            Self::Ring(log) => log.refuse(client),
            Self::Oracle(oracle) => oracle.refuse(client),
        }
    }

    fn end_of_batch(&mut self, counters: &Counters) -> anyhow::Result<()> {
        match self {
            Self::File(log) => log.end_of_batch(counters),
            Self::Ring(log) => {
                log.end_of_batch(counters);
                Ok(())
            }
            Self::Oracle(oracle) => oracle.end_of_batch(counters),
        }
    }
}

/// A line as syslog daemons write it. Stamp, host and tag are made once for what
/// one system call received.
#[derive(Default)]
struct Line {
    head: Vec<u8>,
    /// Bytes of the head up to the message.
    tag: usize,
}

impl Line {
    fn begin_batch(&mut self) {
        self.head.clear();
        let now = Timestamp::now();
        let _ = write!(
            self.head,
            "{}+00:00 host udpserver[{}]: ",
            now.strftime("%Y-%m-%dT%H:%M:%S%.6f"),
            std::process::id()
        );
        self.tag = self.head.len();
        self.head.extend_from_slice(b"refused request from ");
    }

    /// The whole line, or its message only.
    fn push(&self, text: &mut Vec<u8>, client: IpAddr, message: bool) {
        let from = if message { self.tag } else { 0 };
        text.extend_from_slice(&self.head[from..]);
        push_address(text, client);
    }
}

/// A log file, one write for what one system call received.
struct LogFile {
    file: File,
    text: Vec<u8>,
    lines: u64,
    line: Line,
}

impl LogFile {
    fn refuse(&mut self, client: IpAddr) {
        if self.lines == 0 {
            self.line.begin_batch();
        }
        self.line.push(&mut self.text, client, false);
        self.text.push(b'\n');
        self.lines += 1;
    }

    fn end_of_batch(&mut self, counters: &Counters) -> anyhow::Result<()> {
        if self.lines > 0 {
            self.file.write_all(&self.text).context("write the log")?;
            counters.logged.fetch_add(self.lines, Ordering::Relaxed);
            self.text.clear();
            self.lines = 0;
        }
        Ok(())
    }
}

/// A thread's segment; every record is published at once.
struct LogRing {
    writer: Writer,
    message: bool,
    text: Vec<u8>,
    records: u64,
    line: Line,
}

impl LogRing {
    fn refuse(&mut self, client: IpAddr) {
        if self.records == 0 {
            self.line.begin_batch();
            self.writer.refresh_time();
        }
        self.text.clear();
        self.line.push(&mut self.text, client, self.message);
        // Full: dropped, and counted by the segment, where readers see it.
        let _ = self.writer.write(&self.text);
        self.records += 1;
    }

    fn end_of_batch(&mut self, counters: &Counters) {
        counters.logged.fetch_add(self.records, Ordering::Relaxed);
        self.records = 0;
    }
}

/// Appends an address as text; IPv4 without the formatter, which would cost more than
/// receiving.
fn push_address(text: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => {
            for (i, byte) in addr.octets().into_iter().enumerate() {
                if i > 0 {
                    text.push(b'.');
                }
                if byte >= 100 {
                    text.push(b'0' + byte / 100);
                }
                if byte >= 10 {
                    text.push(b'0' + byte / 10 % 10);
                }
                text.push(b'0' + byte % 10);
            }
        }
        IpAddr::V6(addr) => {
            let _ = write!(text, "{addr}");
        }
    }
}

/// The best that the same server could do with a filter that hears of a
/// client's third request in that very moment.
struct Oracle {
    backend: Arc<dyn Backend>,
    ban_time: Duration,
    policy: Arc<Policy>,
    counts: HashMap<IpAddr, u8>,
    due: Vec<Entry>,
}

impl Oracle {
    fn refuse(&mut self, client: IpAddr) {
        let count = self.counts.entry(client).or_default();
        *count += 1;
        if *count < LIMIT {
            return;
        }
        *count = 0;
        if let Ok(subject) = BanTarget::new(Prefix::host(client)) {
            self.due.push(Entry {
                subject,
                policy: self.policy.clone(),
                expiry: Expiry::At(BootNanos(
                    BootNanos::now().0 + self.ban_time.as_nanos() as u64,
                )),
            });
        }
    }

    fn end_of_batch(&mut self, counters: &Counters) -> anyhow::Result<()> {
        if !self.due.is_empty() {
            self.backend.insert(&self.due)?;
            counters
                .bans
                .fetch_add(self.due.len() as u64, Ordering::Relaxed);
            self.due.clear();
        }
        Ok(())
    }
}

/// Serves until the standard input ends; a line there asks for the counters.
pub fn run(args: &ServerArgs) -> anyhow::Result<()> {
    let counters = Arc::new(Counters::default());
    let stop = Arc::new(AtomicBool::new(false));
    let backend = args.oracle.as_ref().map(|name| oracle_backend(args, name));
    let backend = backend.transpose()?;
    let mut threads = Vec::new();
    for thread in 0..THREADS {
        let socket = bind(args.port).context("open the server's socket")?;
        let sink = match (&backend, &args.log, &args.ring) {
            (Some(backend), ..) => Sink::Oracle(Oracle {
                backend: backend.clone(),
                ban_time: Duration::from_millis(args.ban_time),
                policy: Arc::new(Policy {
                    producer: BanSource::Jail("oracle".into()),
                    scope: PortSet::all(),
                    action: Action::Drop,
                }),
                counts: HashMap::new(),
                due: Vec::new(),
            }),
            (None, Some(path), _) => Sink::File(LogFile {
                file: File::options().append(true).create(true).open(path)?,
                text: Vec::new(),
                lines: 0,
                line: Line::default(),
            }),
            (None, None, Some(dir)) => Sink::Ring(Box::new(LogRing {
                writer: segment(dir, thread, args.overwrite)?,
                message: args.message,
                text: Vec::new(),
                records: 0,
                line: Line::default(),
            })),
            (None, None, None) => anyhow::bail!("neither --log nor --ring nor --oracle"),
        };
        let (counters, stop) = (counters.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            serve(&socket, sink, &counters, &stop)
        }));
    }
    if let Some(backend) = backend {
        let stop = stop.clone();
        threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                backend.maintain()?;
                std::thread::sleep(Duration::from_secs(1));
            }
            Ok(())
        }));
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        line?;
        if threads.iter().any(|thread| thread.is_finished()) {
            break;
        }
        println!("{}", counters.line());
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a server's thread does not panic")?;
    }
    Ok(())
}

fn segment(dir: &Path, thread: usize, overwrite: bool) -> Result<Writer, weir_ring::Error> {
    let policy = if overwrite {
        weir_ring::Policy::OverwriteOldest
    } else {
        weir_ring::Policy::DropNewest
    };
    let options = weir_ring::Options::new()
        .size(SEGMENT)
        .policy(policy)
        // Asked for at each batch: what one system call received came at once.
        .clock(weir_ring::Clock::Every(BATCH as u32));
    Writer::create(dir.join(format!("thread-{thread}")), &options)
}

fn oracle_backend(args: &ServerArgs, instance: &str) -> anyhow::Result<Arc<dyn Backend>> {
    let backend = kernel::open(&KernelConfig {
        instance: instance.to_owned(),
        pin_root: kernel::DEFAULT_ROOT.into(),
        room: Default::default(),
        balanced_flows: None,
        ipv4_length: None,
        settings: Settings {
            interfaces: vec![args.interface.clone()],
            backend: BackendChoice::Kernel(Hook::Xdp),
            advice: Default::default(),
            max_bans: 1_000_000,
            observe: false,
        },
    })?;
    backend.attach()?;
    Ok(backend)
}

/// A socket for both families that shares the port with the other threads'.
fn bind(port: u16) -> anyhow::Result<OwnedFd> {
    let socket = socket::socket(
        AddressFamily::Inet6,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    socket::setsockopt(&socket, sockopt::ReusePort, &true)?;
    socket::setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    socket::setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
    socket::setsockopt(
        &socket,
        sockopt::ReceiveTimeout,
        &TimeVal::milliseconds(TICK),
    )?;
    let any = std::net::SocketAddrV6::new(std::net::Ipv6Addr::UNSPECIFIED, port, 0, 0);
    socket::bind(socket.as_raw_fd(), &SockaddrIn6::from(any))?;
    Ok(socket)
}

/// One thread: receives in batches, which saves a system call per request.
fn serve(
    socket: &OwnedFd,
    mut sink: Sink,
    counters: &Counters,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let fd = socket.as_raw_fd();
    let mut headers = MultiHeaders::<SockaddrIn6>::preallocate(BATCH, None);
    let mut bytes = [[0u8; REQUEST]; BATCH];
    let mut kinds: Vec<(u8, SockaddrIn6)> = Vec::with_capacity(BATCH);
    while !stop.load(Ordering::Relaxed) {
        kinds.clear();
        {
            let mut slices: [[IoSliceMut<'_>; 1]; BATCH] = {
                let mut rest = bytes.iter_mut();
                std::array::from_fn(|_| [IoSliceMut::new(rest.next().expect("as many"))])
            };
            let received = socket::recvmmsg(
                fd,
                &mut headers,
                slices.iter_mut(),
                MsgFlags::MSG_WAITFORONE,
                None,
            );
            match received {
                Ok(messages) => kinds.extend(messages.filter_map(|message| {
                    let kind = *message.iovs().next()?.first()?;
                    Some((kind, message.address?))
                })),
                // A timeout, a signal, an ICMP answer to an earlier reply.
                Err(_) => continue,
            }
        }
        let mut unwanted = 0;
        let mut wanted = 0;
        let mut answered = 0;
        for (kind, from) in &kinds {
            if *kind == clients::WANTED {
                wanted += 1;
                let sent = socket::sendto(fd, b"A", from, MsgFlags::MSG_DONTWAIT);
                answered += u64::from(sent.is_ok());
            } else {
                unwanted += 1;
                sink.refuse(from.ip().to_canonical());
            }
        }
        sink.end_of_batch(counters)?;
        counters.wanted.fetch_add(wanted, Ordering::Relaxed);
        counters.answered.fetch_add(answered, Ordering::Relaxed);
        counters.unwanted.fetch_add(unwanted, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_standard_library_does() {
        for text in ["0.0.0.0", "9.10.99.100", "255.254.1.200", "2a00:1::1", "::"] {
            let mut out = Vec::new();
            push_address(&mut out, text.parse().unwrap());
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}

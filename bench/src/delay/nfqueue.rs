//! A geofence in user space behind NFQUEUE, a process of its own (`weir-bench
//! delay-queue`): what ipt_geofence does with a packet, less its slow parts. It
//! judges the source only, without text on the way, and refuses a packet
//! instead of letting the first one pass; one queue, one thread, 8,192 packets,
//! no fail-open, as there. Which packets are queued is `path`'s matter.

use std::{
    collections::HashSet,
    io::{BufRead, IoSliceMut, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, MultiHeaders, NetlinkAddr, recvmmsg, setsockopt, sockopt},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_core::geo::Country;
use weir_netlink::{
    Messages, Writer,
    queue::{Packet, Queue, all_pass, verdict},
};

use super::world::World;

/// Connection marks of ipt_geofence's sample configuration.
pub const MARK_PASS: u32 = 1000;
/// Where denied sources are dropped by rules of their own.
pub const DENIED_CHAIN: &str = "DENIED";

/// Messages taken by one system call at most, and verdicts given by one.
const BATCH: usize = 64;
/// Room for one packet's message: its head, attributes and the copied bytes.
const MESSAGE: usize = 4096;
const MAX_LEN: u32 = 8192;
const RECEIVE_BUFFER: usize = 512 << 20;

/// Arguments of the program that serves the queue.
#[derive(clap::Args)]
pub struct QueueArgs {
    /// The queue's number
    #[arg(long)]
    queue: u16,
    /// The country database; by default the one that is built in
    #[arg(long)]
    database: Option<PathBuf>,
    /// Sources in these countries pass, all others are denied
    #[arg(long, value_delimiter = ',')]
    allow: Vec<String>,
    /// Keep to this core
    #[arg(long)]
    core: usize,
    /// Take up to 64 packets by one system call, and give their verdicts by one
    #[arg(long)]
    batch: bool,
    /// Let every packet pass: what the queue alone costs
    #[arg(long)]
    accept: bool,
    /// Let packets pass so many at a time, by one verdict about all of them, as DAF does (b)
    #[arg(
        long,
        value_name = "PACKETS",
        requires = "accept",
        conflicts_with = "batch"
    )]
    together: Option<u32>,
    /// The first of them waits so long at most (DAF's B)
    #[arg(long, default_value_t = 100, value_name = "MICROSECONDS")]
    within: u64,
    /// Room for packets that wait to be read
    #[arg(long, default_value_t = RECEIVE_BUFFER, value_name = "BYTES")]
    buffer: usize,
    /// Double it each time that packets were lost for want of room (DAF's way)
    #[arg(long)]
    grow: bool,
    /// Run `iptables -I` for each denied source, once, before its verdict
    #[arg(long)]
    ban: bool,
}

/// What the program has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Packets let pass.
    pub passed: u64,
    /// Packets that were given the verdict "drop".
    pub denied: u64,
    /// Rules that were inserted to ban a source.
    pub banned: u64,
}

impl Judged {
    /// Reads the counts from the program's answer.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || -> anyhow::Result<u64> { Ok(numbers.next().context("a count")??) };
        Ok(Self {
            passed: next()?,
            denied: next()?,
            banned: next()?,
        })
    }
}

/// Counted by the judging thread, read by the one that answers.
#[derive(Default)]
struct Counts {
    passed: AtomicU64,
    denied: AtomicU64,
    banned: AtomicU64,
}

/// Runs until standard input ends; answers each line there with the counts.
pub fn run(args: &QueueArgs) -> anyhow::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(args.core);
    rustix::thread::sched_setaffinity(None, &cpus)?;
    let allow = args
        .allow
        .iter()
        .map(|code| {
            let letters = code.as_bytes().try_into().ok();
            letters
                .and_then(Country::from_letters)
                .with_context(|| format!("{code:?} is no country"))
        })
        .collect::<anyhow::Result<_>>()?;
    let counts = Arc::new(Counts::default());
    let mut judge = Judge {
        world: World::open(args.database.as_deref())?,
        allow,
        accepts_all: args.accept,
        ban: args.ban,
        banned: HashSet::new(),
        counts: counts.clone(),
    };
    let socket = open(args.queue, args.buffer)?;
    let (batch, queue) = (args.batch, args.queue);
    let together = args.together.map(|packets| Together {
        packets,
        within: Duration::from_micros(args.within),
    });
    let mut room = Room {
        bytes: args.buffer,
        grows: args.grow,
    };
    std::thread::spawn(move || {
        let error = match together {
            Some(together) => judge.together(&socket, queue, together, &mut room),
            None if batch => judge.in_batches(&socket),
            None => judge.one_by_one(&socket, &mut room),
        };
        eprintln!("{error:#}");
        std::process::exit(2);
    });
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let [passed, denied, banned] = [&counts.passed, &counts.denied, &counts.banned]
            .map(|count| count.load(Ordering::Relaxed));
        writeln!(out, "{passed} {denied} {banned}")?;
        out.flush()?;
    }
    Ok(())
}

/// How packets get their verdict, many at a time.
#[derive(Debug, Clone, Copy)]
struct Together {
    packets: u32,
    within: Duration,
}

/// The room for packets that wait to be read.
struct Room {
    bytes: usize,
    grows: bool,
}

impl Room {
    /// Receives the next message; `None`: there is none yet. Where packets were lost for want
    /// of room it is doubled first, if it grows.
    fn receive(
        &mut self,
        socket: &Queue,
        buffer: &mut [u8],
        flags: MsgFlags,
    ) -> anyhow::Result<Option<usize>> {
        loop {
            match nix::sys::socket::recv(socket.as_fd().as_raw_fd(), buffer, flags) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ENOBUFS) if self.grows && self.bytes < RECEIVE_BUFFER => {
                    self.bytes *= 2;
                    setsockopt(socket, sockopt::RcvBufForce, &self.bytes)?;
                }
                Err(Errno::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A socket that this queue's packets come to, with so many bytes of room for them.
fn open(queue: u16, room: usize) -> anyhow::Result<Queue> {
    let room = weir_netlink::queue::Room {
        packets: MAX_LEN,
        fails_open: false,
        copied: 0xffff,
        bytes: room,
        // Each segment by itself, as these programs have them.
        whole: false,
        tells_overflow: true,
    };
    Queue::take(queue, room).context("take the queue")
}

/// The packet in a message of the kernel; an error that it reports is one.
fn parse(message: &[u8]) -> anyhow::Result<Packet<'_>> {
    let message = Messages::of(message).next();
    let packet = Packet::of(message.context("a message of the kernel is cut")?)?;
    packet.context("a message of the kernel is no packet")
}

/// Where an IP packet says that it comes from.
fn source(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let bytes: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            Some(Ipv4Addr::from(bytes).into())
        }
        6 => {
            let bytes: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// The thread that takes packets from the queue and decides.
struct Judge {
    world: World,
    allow: HashSet<Country>,
    accepts_all: bool,
    ban: bool,
    banned: HashSet<IpAddr>,
    counts: Arc<Counts>,
}

impl Judge {
    /// One recv, one verdict: ipt_geofence's way. Returns when it fails.
    fn one_by_one(&mut self, socket: &Queue, room: &mut Room) -> anyhow::Error {
        let mut buffer = vec![0; 1 << 17];
        let mut verdicts = Writer::default();
        loop {
            let mut step = || -> anyhow::Result<()> {
                let received = room.receive(socket, &mut buffer, MsgFlags::empty())?;
                let received = received.context("a packet")?;
                verdicts.clear();
                self.judge(&buffer[..received], &mut verdicts)?;
                socket.send(&verdicts)?;
                Ok(())
            };
            if let Err(error) = step() {
                return error;
            }
        }
    }

    /// One verdict for all packets up to one of them (NFQNL_MSG_VERDICT_BATCH), once there are
    /// so many, or the first of them has waited so long. Returns when it fails.
    fn together(
        &mut self,
        socket: &Queue,
        queue: u16,
        together: Together,
        room: &mut Room,
    ) -> anyhow::Error {
        let mut buffer = vec![0; 1 << 17];
        let mut verdicts = Writer::default();
        // The last packet that waits, how many do, and until when.
        let (mut last, mut waiting) = (0, 0);
        let mut until = Instant::now();
        loop {
            let mut step = || -> anyhow::Result<()> {
                let received = room.receive(socket, &mut buffer, MsgFlags::MSG_DONTWAIT)?;
                if let Some(length) = received {
                    let packet = parse(&buffer[..length])?;
                    if waiting == 0 {
                        until = Instant::now() + together.within;
                    }
                    (last, waiting) = (packet.id, waiting + 1);
                }
                let left = until.saturating_duration_since(Instant::now());
                if waiting > 0 && (waiting >= together.packets || left.is_zero()) {
                    verdicts.clear();
                    all_pass(&mut verdicts, queue, last);
                    socket.send(&verdicts)?;
                    let passed = u64::from(waiting);
                    self.counts.passed.fetch_add(passed, Ordering::Relaxed);
                    waiting = 0;
                } else if received.is_none() {
                    let mut polled = [PollFd::new(socket, PollFlags::IN)];
                    let left = (waiting > 0).then_some(left);
                    let left = left.map(Timespec::try_from).transpose()?;
                    poll(&mut polled, left.as_ref())?;
                }
                Ok(())
            };
            if let Err(error) = step() {
                return error;
            }
        }
    }

    /// Up to 64 packets, then their verdicts together. Returns when it fails.
    fn in_batches(&mut self, socket: &Queue) -> anyhow::Error {
        let mut buffers = vec![[0u8; MESSAGE]; BATCH];
        let mut headers = MultiHeaders::<NetlinkAddr>::preallocate(BATCH, None);
        let mut verdicts = Writer::default();
        let mut lengths = Vec::with_capacity(BATCH);
        loop {
            let mut step = || -> anyhow::Result<()> {
                lengths.clear();
                {
                    let mut slices: Vec<_> = buffers
                        .iter_mut()
                        .map(|buffer| [IoSliceMut::new(buffer)])
                        .collect();
                    let received = recvmmsg(
                        socket.as_fd().as_raw_fd(),
                        &mut headers,
                        slices.iter_mut(),
                        MsgFlags::MSG_WAITFORONE,
                        None,
                    )?;
                    lengths.extend(received.map(|message| message.bytes));
                }
                verdicts.clear();
                for (buffer, len) in buffers.iter().zip(&lengths) {
                    self.judge(&buffer[..*len], &mut verdicts)?;
                }
                socket.send(&verdicts)?;
                Ok(())
            };
            if let Err(error) = step() {
                return error;
            }
        }
    }

    /// Appends the verdict on the packet in this message.
    fn judge(&mut self, message: &[u8], out: &mut Writer) -> anyhow::Result<()> {
        let packet = parse(message)?;
        let from = source(packet.bytes);
        let country = || from.and_then(|addr| self.world.country(addr));
        let allowed =
            self.accepts_all || country().is_some_and(|country| self.allow.contains(&country));
        if allowed {
            self.counts.passed.fetch_add(1, Ordering::Relaxed);
            verdict(out, packet.queue, packet.id, true, Some(MARK_PASS));
            return Ok(());
        }
        self.counts.denied.fetch_add(1, Ordering::Relaxed);
        if let Some(source) = from
            && self.ban
            && self.banned.insert(source)
        {
            insert_rule(source)?;
            self.counts.banned.fetch_add(1, Ordering::Relaxed);
        }
        verdict(out, packet.queue, packet.id, false, None);
        Ok(())
    }
}

/// A program for each denied source, as there; but without a shell.
fn insert_rule(source: IpAddr) -> anyhow::Result<()> {
    let program = match source {
        IpAddr::V4(_) => "iptables-legacy",
        IpAddr::V6(_) => "ip6tables-legacy",
    };
    let status = Command::new(program)
        .args(["-I", DENIED_CHAIN, "-s", &source.to_string(), "-j", "DROP"])
        .status()
        .with_context(|| format!("run {program}"))?;
    anyhow::ensure!(status.success(), "{program} failed for {source}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let mut packet = [0u8; 28];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&[192, 0, 2, 7]);
        let message = weir_netlink::queue::message_for_test(5, 258, &packet);
        let read = parse(&message).unwrap();
        assert_eq!((read.queue, read.id), (5, 258));
        assert_eq!(source(read.bytes), Some("192.0.2.7".parse().unwrap()));
        for cut in 0..message.len() {
            assert!(parse(&message[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_an_error() {
        let mut message = vec![36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        message.extend((-1i32).to_ne_bytes());
        message.resize(36, 0);
        let error = parse(&message).unwrap_err().to_string();
        assert!(error.contains("not permitted"), "{error}");
    }
}

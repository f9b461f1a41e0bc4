//! Background load: new flows at a rate, or as many as the generator gives, and
//! floods of denied sources. Sent by live frames on a core of its own; what the
//! host's softirq does with them runs there, too.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use weir_bpf::{
    attachment::{Hook, Link},
    generator::{Flood, Generator},
};
use weir_netlab::{Net, VethOpts};

use super::{layout::LOAD_CORE, test_net::TestNet};
use crate::cores;

/// Packets leave in bursts this far apart, as many as are due.
const BURST: Duration = Duration::from_millis(1);
/// A sender that was held up for longer forgives the rest of its debt: the
/// rate that is reported is the one that was sent.
const CATCH_UP: Duration = Duration::from_millis(20);
/// The length of a call when sending without a pause.
const SLICE: Duration = Duration::from_millis(10);

/// Packets and processor time of the background load.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// Packets that the generator has sent.
    pub packets: u64,
    /// How long it has sent, in seconds.
    pub seconds: f64,
    /// CPU of the sending thread, the softirqs in it included.
    pub cpu: f64,
}

/// The background load beside the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// No packets beside the clients' own.
    None,
    /// New flows of allowed sources, so many a second.
    Flows(u32),
    /// New flows of allowed sources, as many a second as the generator can send.
    FlowsAtLimit,
    /// Packets of sources all over the world, so many a second.
    Flood(u32),
    /// Packets of sources all over the world, as many a second as the generator can send.
    FloodAtLimit,
}

/// The generator of floods. Its program is attached to an idle device: without
/// that, each call enters it into the kernel's XDP dispatcher and takes it out,
/// 25 ms.
pub struct Floods {
    generator: Generator,
    /// Counts on through all nets: no source comes twice.
    salt: AtomicU64,
    _idle: Link,
    _net: Net,
}

impl Floods {
    /// Loads the generator's programs.
    pub fn new() -> anyhow::Result<Self> {
        let net = Net::new()?;
        let namespace = net.namespace("idle")?;
        let none = VethOpts::new(&[], &[])?;
        net.veth(&namespace, "idle0", &namespace, "idle1", none)?;
        let generator = Generator::load()?;
        let on = namespace.ifindex("idle0")?;
        let link = namespace.enter(|| Link::attach(generator.program(), on, Hook::Xdp))?;
        Ok(Self {
            generator,
            salt: AtomicU64::new(0),
            _idle: link.context("attach the generator")?,
            _net: net,
        })
    }

    fn send(&self, flood: Flood, packets: u32) -> anyhow::Result<()> {
        let size = u64::from(flood.sources);
        let past = self
            .salt
            .fetch_add(u64::from(packets).next_multiple_of(size), Ordering::Relaxed);
        let salt = (past % (1 << 31)) as u32;
        self.generator.send(&Flood { salt, ..flood }, packets)?;
        Ok(())
    }
}

/// Sends until `stop`; `begun` is set behind the first burst.
pub fn run(
    net: &TestNet,
    floods: Option<&Floods>,
    load: Load,
    stop: &AtomicBool,
    begun: &AtomicBool,
) -> anyhow::Result<Sent> {
    let send = |packets: u32| -> anyhow::Result<()> {
        match load {
            Load::None => Ok(()),
            Load::Flows(_) | Load::FlowsAtLimit => Ok(net.clients().send(packets, 1.0)?),
            Load::Flood(_) | Load::FloodAtLimit => {
                let floods = floods.context("a generator of floods")?;
                floods.send(net.flood(), packets)
            }
        }
    };
    net.outside().enter(|| {
        cores::pin(LOAD_CORE);
        let cpu = thread_cpu();
        let start = Instant::now();
        let packets = match load {
            Load::None => 0,
            Load::Flows(rate) | Load::Flood(rate) => pace(rate, send, stop, begun)?,
            Load::FlowsAtLimit | Load::FloodAtLimit => rush(send, stop, begun)?,
        };
        Ok(Sent {
            packets,
            seconds: start.elapsed().as_secs_f64(),
            cpu: thread_cpu() - cpu,
        })
    })?
}

fn pace(
    rate: u32,
    send: impl Fn(u32) -> anyhow::Result<()>,
    stop: &AtomicBool,
    begun: &AtomicBool,
) -> anyhow::Result<u64> {
    let rate = f64::from(rate);
    let mut paid = Instant::now();
    let mut next = paid;
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        paid = paid.max(now.checked_sub(CATCH_UP).unwrap_or(now));
        let due = (rate * (now - paid).as_secs_f64()) as u32;
        if due > 0 {
            send(due)?;
            sent += u64::from(due);
            paid += Duration::from_secs_f64(f64::from(due) / rate);
            begun.store(true, Ordering::Relaxed);
        }
        next = (next + BURST).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(sent)
}

fn rush(
    send: impl Fn(u32) -> anyhow::Result<()>,
    stop: &AtomicBool,
    begun: &AtomicBool,
) -> anyhow::Result<u64> {
    let mut rate = 5e5;
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let packets = (rate * SLICE.as_secs_f64()).clamp(640.0, 1e6) as u32;
        let start = Instant::now();
        send(packets)?;
        sent += u64::from(packets);
        rate = f64::from(packets) / start.elapsed().as_secs_f64().max(1e-6);
        begun.store(true, Ordering::Relaxed);
    }
    Ok(sent)
}

/// Seconds of CPU of the calling thread.
fn thread_cpu() -> f64 {
    cpu_in("/proc/thread-self/schedstat")
}

/// Seconds of CPU of the kernel's threads that take over softirqs.
pub fn softirq_cpu() -> f64 {
    static THREADS: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| {
            let comm = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let file = entry.path().join("schedstat");
            comm.starts_with("ksoftirqd/")
                .then(|| file.to_string_lossy().into_owned())
        })
        .collect()
    });
    THREADS.iter().map(|file| cpu_in(file)).sum()
}

fn cpu_in(file: &str) -> f64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
    nanos.unwrap_or(0.0) / 1e9
}

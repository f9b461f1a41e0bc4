//! One point: a path under a load for a moment, with the client beside it or
//! not, and all counters before and after.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::{
    clients::{self, Latency, Pace},
    load::{self, Floods, Load, Sent},
    test_net::{Counts, TestNet},
};

/// What still is in a queue when sending ends gets so long to come out.
const DRAIN: Duration = Duration::from_secs(2);

/// The parts of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Latency of a new flow, nothing else on the wire.
    Idle,
    /// Latency of clients beside new flows at rising rates.
    Load,
    /// CPU for a million new flows, no client.
    Cost,
    /// Latency and loss of an allowed client in a flood of denied sources.
    Flood,
    /// The paper's own method.
    Paper,
}

/// Latencies, packets and processor time of one measured window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    /// The part of the benchmark to which the point belongs.
    pub part: Part,
    /// Name of the path.
    pub path: String,
    /// The number of the round in which the point was measured.
    pub round: u32,
    /// The load as ordered: packets a second; `None` is the generator's limit.
    pub rate: Option<u32>,
    /// Latency of `connect()`; `None` if TCP was not measured.
    pub tcp: Option<Latency>,
    /// Latency of a datagram from a new socket and its answer; `None` without UDP clients.
    pub udp: Option<Latency>,
    /// Background packets that left the generator.
    pub sent: u64,
    /// The length of the measured window, in seconds.
    pub seconds: f64,
    /// Packets of these for which the ring of the wire itself had no room.
    pub wire_full: u64,
    /// Packets that reached the sink behind the path.
    pub delivered: u64,
    /// Packets that the path denied.
    pub denied: u64,
    /// Packets for which the path's queue had no room, the client's included.
    pub queue_full: u64,
    /// Rules that the path has inserted meanwhile.
    pub rules: u64,
    /// Seconds of CPU: the generator's thread, softirqs on its back included.
    pub cpu_sender: f64,
    /// CPU seconds of the kernel's softirq threads.
    pub cpu_softirq: f64,
    /// CPU seconds of the path's process.
    pub cpu_path: f64,
}

impl Point {
    /// Background packets that were not handled: neither delivered nor denied.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.delivered + self.denied)
    }

    /// Background packets that were not handled, in percent of those sent.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost() as f64 / self.sent.max(1) as f64
    }

    /// Packets handled, a second.
    pub fn handled_rate(&self) -> f64 {
        (self.delivered + self.denied) as f64 / self.seconds.max(1e-9)
    }

    /// CPU seconds for a million packets, the generator's included.
    pub fn cpu_per_million(&self) -> f64 {
        let handled = (self.delivered + self.denied).max(1) as f64;
        (self.cpu_sender + self.cpu_softirq + self.cpu_path) / handled * 1e6
    }
}

/// The part, round, load and clients of one point.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The part of the benchmark to which the point belongs.
    pub part: Part,
    /// The round in which the point is measured.
    pub round: u32,
    /// The background load beside the clients.
    pub load: Load,
    /// The pace of new connections; `None`: no TCP clients.
    pub tcp: Option<Pace>,
    /// The pace of datagrams; `None`: no UDP clients.
    pub udp: Option<Pace>,
    /// The length of the window where there is no client.
    pub alone: Duration,
}

/// Tells all threads to stop, whatever happens.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Measures one point.
pub fn point(net: &mut TestNet, floods: Option<&Floods>, plan: Plan) -> anyhow::Result<Point> {
    let before = net.counts()?;
    let rules = net.banned()?;
    let cpu = (load::softirq_cpu(), net.cpu_of_path());
    let (tcp, udp, sent) = {
        let net: &TestNet = net;
        run(net, floods, plan)?
    };
    let after = drain(net)?;
    let cpu_softirq = load::softirq_cpu() - cpu.0;
    let cpu_path = net.cpu_of_path() - cpu.1;
    let rate = match plan.load {
        Load::None => Some(0),
        Load::Flows(rate) | Load::Flood(rate) => Some(rate),
        Load::FlowsAtLimit | Load::FloodAtLimit => None,
    };
    Ok(Point {
        part: plan.part,
        path: net.path.name(),
        round: plan.round,
        rate,
        tcp,
        udp,
        sent: sent.packets,
        seconds: sent.seconds,
        wire_full: sent.packets.saturating_sub(after.arrived - before.arrived),
        delivered: after.delivered - before.delivered,
        denied: after.denied - before.denied,
        queue_full: after.queue_full - before.queue_full,
        rules: net.banned()? - rules,
        cpu_sender: sent.cpu,
        cpu_softirq,
        cpu_path,
    })
}

fn run(
    net: &TestNet,
    floods: Option<&Floods>,
    plan: Plan,
) -> anyhow::Result<(Option<Latency>, Option<Latency>, Sent)> {
    let (stop_load, stop_server) = (AtomicBool::new(false), AtomicBool::new(false));
    let begun = AtomicBool::new(plan.load == Load::None);
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let guard = (Stop(&stop_load), Stop(&stop_server));
        let server = scope.spawn(|| net.serve(&stop_server, &ready));
        ready.wait();
        let sender = scope.spawn(|| load::run(net, floods, plan.load, &stop_load, &begun));
        let deadline = Instant::now() + DRAIN;
        while !begun.load(Ordering::Relaxed) && !sender.is_finished() {
            ensure!(Instant::now() < deadline, "the background does not begin");
            std::thread::sleep(Duration::from_micros(200));
        }
        let tcp = plan.tcp.map(|pace| clients::tcp(net, pace)).transpose()?;
        let udp = plan.udp.map(|pace| clients::udp(net, pace)).transpose()?;
        if tcp.is_none() && udp.is_none() {
            std::thread::sleep(plan.alone);
        }
        drop(guard);
        let sent = sender.join().expect("the sender does not panic")?;
        server.join().expect("the server does not panic")?;
        Ok((tcp, udp, sent))
    })
}

/// Waits until nothing moves any more.
fn drain(net: &mut TestNet) -> anyhow::Result<Counts> {
    let until = Instant::now() + DRAIN;
    let mut before = net.counts()?;
    loop {
        std::thread::sleep(Duration::from_millis(15));
        let now = net.counts()?;
        if now == before || Instant::now() > until {
            return Ok(now);
        }
        before = now;
    }
}

//! One point: a hook under a flood for a moment, all counters before and
//! after. The generator and what its packets cost the receiver run on one
//! core; what the generator costs alone is a point of its own.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use weir_bpf::{
    attachment::{Hook as KernelHook, Link},
    generator::{Flood, Generator, Payload},
};
use weir_netlab::{Namespace, Net, Side, VethOpts};

use super::{
    cpu,
    flood_target::{Arrived, FloodTarget},
    task::Running,
};
use crate::cores;
use crate::energy::{Meter, Window, unix_now};

/// The row of what the generator costs when nobody receives.
pub const ALONE: &str = "generator alone";
/// Where the generator runs, and the softirqs that it raises.
const GENERATOR_CORE: usize = 0;
/// A call sends for about so long: signals are heard in between.
const SLICE: Duration = Duration::from_millis(50);
/// Packets of the first call, when the rate is not known.
const FIRST: u32 = 10_000;
/// What warms caches and page pools up.
const WARM_UP: Duration = Duration::from_millis(5);
/// What still is in a queue when sending ends gets so long to come out.
const DRAIN: Duration = Duration::from_secs(2);

/// Packets, processor time and energy of one measured window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The name of the row.
    pub hook: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Bytes of UDP payload.
    pub payload: u16,
    /// Bytes of a whole frame, without preamble and checksum.
    pub frame: u32,
    /// The number of the round in which the point was measured.
    pub round: u32,
    /// The number of source addresses; 0: the sender is another machine.
    pub sources: u32,
    /// Packets that the generator sent; 0: the sender is another machine.
    pub sent: u64,
    /// Packets that came to the interface.
    pub arrived: u64,
    /// Packets that the hook dropped, by its own counter.
    pub dropped: u64,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// CPU seconds of the sending thread, softirqs on its back included.
    pub cpu_sender: f64,
    /// CPU seconds of the kernel's softirq threads.
    pub cpu_softirq: f64,
    /// CPU seconds of the row's own program.
    pub cpu_program: f64,
    /// What each core was busy, of one.
    pub cores: Vec<f64>,
    /// When, by the wall clock, seconds since 1970: for logs of meters.
    pub from: f64,
    /// The end of the window, in seconds since 1970.
    pub to: f64,
    /// Energy by each meter, in joules, idle included.
    pub joules: BTreeMap<String, f64>,
}

impl Point {
    /// All CPU seconds by the scheduler's count; where there is no sending
    /// thread, by the cores'.
    pub fn cpu(&self) -> f64 {
        if self.sent == 0 {
            self.cores.iter().sum::<f64>() * self.seconds
        } else {
            self.cpu_sender + self.cpu_softirq + self.cpu_program
        }
    }

    /// The window of the point, for the log of a meter.
    pub fn window(&self) -> Window {
        Window {
            from: self.from,
            to: self.to,
            cpu_seconds: self.cpu(),
        }
    }
}

/// The row, packets and round of one point.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The row's name.
    pub hook: &'a str,
    /// The packets that are sent.
    pub flood: Flood,
    /// The length of their payload.
    pub payload: Payload,
    /// The order of points.
    pub round: u32,
    /// The length of the measured window.
    pub time: Duration,
}

/// The in-kernel generator, kept ready.
pub struct Sender {
    generator: Generator,
    _idle: Link,
    _net: Net,
}

struct Sent {
    packets: u64,
    seconds: f64,
    cpu: f64,
}

impl Sender {
    /// Loads the generator's programs.
    pub fn new() -> anyhow::Result<Self> {
        let net = Net::new()?;
        let namespace = net.namespace("idle")?;
        let none = VethOpts::new(&[], &[])?;
        let veth = net.veth(&namespace, "idle0", &namespace, "idle1", none)?;
        let generator = Generator::load()?;
        let on = namespace.ifindex(veth.dev(Side::A))?;
        let link = namespace.enter(|| Link::attach(generator.program(), on, KernelHook::Xdp))?;
        Ok(Self {
            generator,
            _idle: link.context("attach the generator")?,
            _net: net,
        })
    }

    /// Sends for this long. The sources of a flood whose rule names nobody are
    /// all of them in turn, however short the calls.
    fn send(&self, flood: &Flood, payload: Payload, time: Duration) -> anyhow::Result<Sent> {
        cores::pin(GENERATOR_CORE);
        let (start, cpu) = (Instant::now(), cpu::of_thread());
        let (mut packets, mut next, mut count) = (0, 0, FIRST);
        while start.elapsed() < time {
            crate::flood::interrupted()?;
            let (took, first) = self.slice(flood, payload, next, count)?;
            next = first;
            packets += u64::from(count);
            let rate = f64::from(count) / took.as_secs_f64().max(1e-6);
            count = (rate * SLICE.min(time).as_secs_f64()).clamp(640.0, 2e6) as u32;
        }
        Ok(Sent {
            packets,
            seconds: start.elapsed().as_secs_f64(),
            cpu: cpu::of_thread() - cpu,
        })
    }

    /// Sends through an interface of the caller's namespace: packets, seconds.
    pub fn rush(
        &self,
        flood: &Flood,
        payload: Payload,
        time: Duration,
    ) -> anyhow::Result<(u64, f64)> {
        let sent = self.send(flood, payload, time)?;
        Ok((sent.packets, sent.seconds))
    }

    /// Some packets from source `first` on; how long that took, and the source
    /// that comes next.
    fn slice(
        &self,
        flood: &Flood,
        payload: Payload,
        first: u32,
        count: u32,
    ) -> anyhow::Result<(Duration, u32)> {
        let took = self.generator.send_sized(flood, payload, first, count)?;
        Ok((took, first.wrapping_add(count)))
    }
}

/// All counters of a hook at one moment.
#[derive(Clone, Copy, PartialEq)]
struct Counts {
    arrived: Arrived,
    dropped: u64,
}

fn counts(place: &FloodTarget, running: &mut dyn Running) -> anyhow::Result<Counts> {
    Ok(Counts {
        arrived: place.arrived()?,
        dropped: running.dropped()?,
    })
}

/// Waits until nothing moves any more.
fn drain(place: &FloodTarget, running: &mut dyn Running) -> anyhow::Result<Counts> {
    let until = Instant::now() + DRAIN;
    let mut before = counts(place, running)?;
    loop {
        std::thread::sleep(Duration::from_millis(10));
        let now = counts(place, running)?;
        if now == before || Instant::now() > until {
            return Ok(now);
        }
        before = now;
    }
}

/// What runs between two readings of all clocks and meters.
struct Watched<T> {
    value: T,
    seconds: f64,
    cores: Vec<f64>,
    softirq: f64,
    from: f64,
    to: f64,
}

fn watch<T>(
    meters: &mut [Box<dyn Meter>],
    run: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Watched<T>> {
    for meter in &mut *meters {
        meter.begin();
    }
    let (start, from) = (Instant::now(), unix_now());
    let (cores, softirq) = (cpu::of_cores(), cpu::of_softirq_threads());
    let value = run()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Watched {
        value,
        seconds,
        cores: cpu::of_cores()
            .iter()
            .zip(cores)
            .map(|(after, before)| (after - before).max(0.0) / seconds)
            .collect(),
        softirq: cpu::of_softirq_threads() - softirq,
        from,
        to: unix_now(),
    })
}

/// Asks every meter what the window took; one that fails has no figure.
pub fn read(meters: &mut [Box<dyn Meter>], window: &Window) -> BTreeMap<String, f64> {
    let mut joules = BTreeMap::new();
    for meter in meters {
        match meter.end(window) {
            Ok(value) => {
                joules.insert(meter.name(), value);
            }
            Err(error) => eprintln!("{}: no energy for this point: {error:#}", meter.name()),
        }
    }
    joules
}

/// The idle machine for a while. An estimate is of our own CPU time, of which
/// there is none then; under a load from elsewhere, of the machine's.
pub fn idle(
    meters: &mut [Box<dyn Meter>],
    time: Duration,
    from_elsewhere: bool,
) -> anyhow::Result<(Window, BTreeMap<String, f64>)> {
    let watched = watch(meters, || wait(time))?;
    let cores: f64 = watched.cores.iter().sum();
    let window = Window {
        from: watched.from,
        to: watched.to,
        cpu_seconds: if from_elsewhere {
            cores * watched.seconds
        } else {
            0.0
        },
    };
    Ok((window, watts(meters, &window)))
}

/// Each meter's power in a window.
pub fn watts(meters: &mut [Box<dyn Meter>], window: &Window) -> BTreeMap<String, f64> {
    let mut watts = read(meters, window);
    for value in watts.values_mut() {
        *value /= window.to - window.from;
    }
    watts
}

/// Lets time pass, but not a signal.
fn wait(time: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        crate::flood::interrupted()?;
        std::thread::sleep(SLICE.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// One point in namespaces; without a hook, the generator alone.
pub fn point(
    sender: &Sender,
    outside: &Namespace,
    hook: Option<(&FloodTarget, &mut dyn Running)>,
    meters: &mut [Box<dyn Meter>],
    plan: Plan<'_>,
) -> anyhow::Result<Point> {
    let mut hook = hook;
    let flood = plan.flood;
    let send = |time: Duration| outside.enter(|| sender.send(&flood, plan.payload, time))?;
    send(WARM_UP)?;
    let before = hook
        .as_mut()
        .map(|(place, running)| drain(place, *running))
        .transpose()?;
    let program = |hook: &Option<(&FloodTarget, &mut dyn Running)>| {
        hook.as_ref().map_or(0.0, |(_, running)| running.cpu())
    };
    let cpu_program = program(&hook);
    let watched = watch(meters, || send(plan.time))?;
    let window = Window {
        from: watched.from,
        to: watched.to,
        cpu_seconds: watched.value.cpu + watched.softirq + program(&hook) - cpu_program,
    };
    let joules = read(meters, &window);
    let after = hook
        .as_mut()
        .map(|(place, running)| drain(place, *running))
        .transpose()?;
    let sent = watched.value.packets;
    let (arrived, dropped) = match before.zip(after) {
        Some((before, after)) => (
            after.arrived.packets - before.arrived.packets,
            after.dropped - before.dropped,
        ),
        None => (sent, sent),
    };
    Ok(Point {
        hook: plan.hook.to_owned(),
        family: family(&flood).to_owned(),
        payload: plan.payload.bytes(),
        frame: plan.payload.frame(flood.dest) as u32,
        round: plan.round,
        sources: flood.sources,
        sent,
        arrived,
        dropped,
        seconds: watched.value.seconds,
        cpu_sender: watched.value.cpu,
        cpu_softirq: watched.softirq,
        cpu_program: program(&hook) - cpu_program,
        cores: watched.cores,
        from: window.from,
        to: window.to,
        joules,
    })
}

/// One point of a load that comes from elsewhere, at whatever rate.
pub fn arriving(
    place: &FloodTarget,
    running: &mut dyn Running,
    meters: &mut [Box<dyn Meter>],
    plan: Plan<'_>,
) -> anyhow::Result<Point> {
    std::thread::sleep(WARM_UP);
    let (before, program) = (counts(place, running)?, running.cpu());
    let watched = watch(meters, || wait(plan.time))?;
    let cpu_seconds = watched.cores.iter().sum::<f64>() * watched.seconds;
    let window = Window {
        from: watched.from,
        to: watched.to,
        cpu_seconds,
    };
    let joules = read(meters, &window);
    let after = counts(place, running)?;
    Ok(Point {
        hook: plan.hook.to_owned(),
        family: family(&plan.flood).to_owned(),
        payload: plan.payload.bytes(),
        frame: plan.payload.frame(plan.flood.dest) as u32,
        round: plan.round,
        sources: 0,
        sent: 0,
        arrived: after.arrived.packets - before.arrived.packets,
        dropped: after.dropped - before.dropped,
        seconds: watched.seconds,
        cpu_sender: 0.0,
        cpu_softirq: watched.softirq,
        cpu_program: running.cpu() - program,
        cores: watched.cores,
        from: window.from,
        to: window.to,
        joules,
    })
}

/// The address family's name.
pub fn family(flood: &Flood) -> &'static str {
    if flood.dest.is_ipv4() { "ipv4" } else { "ipv6" }
}

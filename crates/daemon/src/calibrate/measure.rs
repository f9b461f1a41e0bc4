//! What each hook costs here, measured between network namespaces that end
//! with the run: a veth pair under the in-kernel generator for what a dropped
//! and an innocent packet cost one core, another one under a TCP stream.
//! Nothing leaves the host. Rounds are interleaved, so that what else the
//! host does meanwhile falls on all hooks alike.

use std::{
    net::IpAddr,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use weir_core::{Action, Prefix, Reason, Scope};
use weir_kernel::{
    Generation, Geometry, Key, Options, Placed, Slot,
    device::set_gro,
    generator::{Flood, Generator},
    link::{Hook, Link},
    record,
    table::NEVER,
};
use weir_lab::{Namespace, Net, Side, Veth, VethOpts};

use super::{
    CalibrateError,
    stored::{Baseline, Figures, HookFigures, Spread, Tcp},
    stream::{Ends, Flow, Processors},
};

type Result<T> = std::result::Result<T, CalibrateError>;

/// The hooks that are measured.
pub const HOOKS: [Hook; 3] = [Hook::Xdp, Hook::XdpGeneric, Hook::Tcx];

/// Bans in the table, and sources of the flood: more than fit the nearest
/// caches, as under a real attack.
const BANS: u32 = 1 << 16;
/// Innocent sources: a salt far from the banned ones.
const INNOCENT: u32 = 1 << 30;
const PORT: u16 = 12345;
/// The receiver, and an address that nobody has: the stack lets go of packets
/// to it as soon as it has looked up the route, so that the hook's own cost
/// stands out.
const HERE: [&str; 2] = ["10.9.0.2", "2001:db8:9::2"];
const NOBODY: [&str; 2] = ["10.9.0.77", "2001:db8:9::77"];

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    quick: bool,
    rounds: usize,
    packets: u32,
    stream: Duration,
}

impl Plan {
    /// Some 25 seconds.
    pub const FULL: Self = Self {
        quick: false,
        rounds: 5,
        packets: 400_000,
        stream: Duration::from_millis(300),
    };
    /// Some 5 seconds, with more noise.
    pub const QUICK: Self = Self {
        quick: true,
        rounds: 3,
        packets: 100_000,
        stream: Duration::from_millis(150),
    };
}

/// Measures every hook. `progress` is told what is going on; once `stop` is
/// set, the run ends within a second and leaves nothing behind.
pub fn measure(plan: &Plan, stop: &AtomicBool, progress: &mut dyn FnMut(&str)) -> Result<Figures> {
    progress("making namespaces and loading the packet path");
    let site = Site::new(plan)?;
    let mut rows: Vec<Row> = HOOKS.into_iter().map(Row::new).collect();
    let mut nothing = Rounds::default();
    for row in &mut rows {
        // What cannot be attached is reported; the run goes on.
        row.refused = site
            .attach(&site.target, row.hook)
            .err()
            .map(|e| refusal(row.hook, &e));
    }
    // The first round warms caches and page pools up.
    for round in 0..=plan.rounds {
        let mut keep = Rounds::default();
        let into = if round == 0 { &mut keep } else { &mut nothing };
        let watch = |what: &str, progress: &mut dyn FnMut(&str)| {
            progress(&format!("round {round} of {}: {what}", plan.rounds));
            match stop.load(Ordering::Relaxed) {
                true => Err(CalibrateError::Interrupted),
                false => Ok(()),
            }
        };
        watch("no hook", progress)?;
        let alone = site.send(&site.alone)?;
        into.unwanted.push(site.nanos(&site.banned, alone)?);
        into.innocent.push(site.nanos(&site.innocent, alone)?);
        into.flow.push(site.ends.run(round, plan.stream)?);
        for row in rows.iter_mut().filter(|row| row.refused.is_none()) {
            watch(row.hook.name(), progress)?;
            let mut keep = Rounds::default();
            let into = if round == 0 {
                &mut keep
            } else {
                &mut row.rounds
            };
            {
                let _link = site.attached(&site.target, row.hook)?;
                let before = site.count(BANNED)?;
                into.unwanted.push(site.nanos(&site.banned, alone)?);
                site.counted(row.hook, BANNED, before)?;
                let before = site.count(PASSED)?;
                into.innocent.push(site.nanos(&site.innocent, alone)?);
                site.counted(row.hook, PASSED, before)?;
            }
            let _link = site.attached(&site.served, row.hook)?;
            into.flow.push(site.ends.run(round, plan.stream)?);
        }
    }
    let hooks = rows.into_iter().map(|row| row.figures(&nothing)).collect();
    let baseline = Baseline {
        unwanted_ns: spread(&nothing.unwanted),
        innocent_ns: spread(&nothing.innocent),
        tcp: tcp(&nothing.flow),
    };
    Ok(Figures::new(plan.quick, baseline, hooks))
}

/// What was measured in each round.
#[derive(Default)]
struct Rounds {
    unwanted: Vec<f64>,
    innocent: Vec<f64>,
    flow: Vec<Flow>,
}

struct Row {
    hook: Hook,
    refused: Option<String>,
    rounds: Rounds,
}

impl Row {
    fn new(hook: Hook) -> Self {
        Self {
            hook,
            refused: None,
            rounds: Rounds::default(),
        }
    }

    fn figures(self, nothing: &Rounds) -> HookFigures {
        // Round by round: what disturbed one disturbed its neighbour, too.
        let beside = |ours: &[f64], theirs: &[f64], f: fn(f64, f64) -> f64| {
            let pairs = ours.iter().zip(theirs);
            Spread::of(&pairs.map(|(a, b)| f(*a, *b)).collect::<Vec<_>>())
        };
        let (ours, flows) = (&self.rounds, |rounds: &Rounds| -> Vec<f64> {
            rounds.flow.iter().map(Flow::cpu_per_gb).collect()
        });
        HookFigures {
            hook: self.hook.name().to_owned(),
            drop_ns: Spread::of(&ours.unwanted),
            drop_ratio: beside(&ours.unwanted, &nothing.unwanted, |a, b| a / b),
            innocent_ns: beside(&ours.innocent, &nothing.innocent, |a, b| a - b),
            tcp: (!ours.flow.is_empty()).then(|| tcp(&ours.flow)),
            tcp_loss: beside(&flows(ours), &flows(nothing), |a, b| 100.0 * (1.0 - b / a)),
            refused: self.refused,
        }
    }
}

fn spread(rounds: &[f64]) -> Spread {
    Spread::of(rounds).expect("a plan has at least one round")
}

fn tcp(flows: &[Flow]) -> Tcp {
    let of = |f: fn(&Flow) -> f64| spread(&flows.iter().map(f).collect::<Vec<_>>());
    Tcp {
        gbit: of(Flow::gbit),
        cpu_per_gb: of(Flow::cpu_per_gb),
    }
}

const BANNED: Reason = Reason::BannedAll;
const PASSED: Reason = Reason::Pass;

/// One end of a veth pair, where a hook is attached.
struct Place {
    namespace: Namespace,
    ifindex: u32,
}

impl Place {
    fn attach(&self, program: BorrowedFd<'_>, hook: Hook) -> std::io::Result<Link> {
        self.namespace
            .enter(|| Link::attach(program, self.ifindex, hook))
            .map_err(std::io::Error::other)?
    }
}

/// Of both families, as many packets each.
type Floods = [Flood; 2];

/// All that a measurement needs; it goes with this value.
struct Site {
    /// See [`Generator::program`].
    _idle: Option<Link>,
    cpu: Processors,
    generator: Generator,
    path: Generation,
    packets: u32,
    sender: Namespace,
    /// Where packets are dropped, and where TCP is served.
    target: Place,
    served: Place,
    ends: Ends,
    banned: Floods,
    innocent: Floods,
    alone: Floods,
    _net: Net,
}

impl Site {
    fn new(plan: &Plan) -> Result<Self> {
        let net = Net::new()?;
        let place = |veth: &Veth, side: Side| -> Result<Place> {
            let namespace = veth.namespace(side).clone();
            let ifindex = namespace.ifindex(veth.dev(side))?;
            Ok(Place { namespace, ifindex })
        };
        let (sender, receiver) = (net.namespace("flood")?, net.namespace("target")?);
        let opts = VethOpts::new(
            &["10.9.0.1/24", "2001:db8:9::1/64"],
            &["10.9.0.2/24", "2001:db8:9::2/64"],
        )?;
        let wire = net.veth(&sender, "g0", &receiver, "d0", opts)?;
        // Without an XDP program a veth end takes redirected frames with GRO only.
        receiver
            .enter(|| set_gro("d0", true))?
            .map_err(CalibrateError::system("switch GRO on"))?;
        let generator = Generator::load()?;
        let idle = net.veth(&sender, "i0", &receiver, "i1", VethOpts::new(&[], &[])?)?;
        let idle = place(&idle, Side::A)?;
        let idle = idle.attach(generator.program(), Hook::Xdp).ok();
        // As container runtimes make them: no GRO.
        let (client, server) = (net.namespace("client")?, net.namespace("server")?);
        let opts = VethOpts::new(
            &["10.9.1.1/24", "2001:db8:a::1/64"],
            &["10.9.1.2/24", "2001:db8:a::2/64"],
        )?;
        let pipe = net.veth(&client, "c0", &server, "s0", opts)?;

        let flood = Flood {
            sources: BANS,
            salt: 0,
            dest: addr(HERE[0]),
            port: PORT,
            macs: [wire.mac(Side::B), wire.mac(Side::A)],
            ifindex: sender.ifindex("g0")?,
        };
        let to = |dests: [&str; 2], flood: Flood| {
            dests.map(|dest| Flood {
                dest: addr(dest),
                ..flood
            })
        };
        let banned = to(HERE, flood);
        Ok(Self {
            _idle: idle,
            cpu: Processors::new(),
            generator,
            path: packet_path(&banned)?,
            packets: plan.packets,
            target: place(&wire, Side::B)?,
            served: place(&pipe, Side::B)?,
            ends: Ends::new(client, server, ["10.9.1.2", "2001:db8:a::2"].map(addr)),
            sender,
            banned,
            innocent: to(
                NOBODY,
                Flood {
                    salt: INNOCENT,
                    ..flood
                },
            ),
            alone: to(
                HERE,
                Flood {
                    ifindex: 0,
                    ..flood
                },
            ),
            _net: net,
        })
    }

    fn attach(&self, place: &Place, hook: Hook) -> std::io::Result<Link> {
        place.attach(self.path.program(hook), hook)
    }

    /// A hook that was attached before, for as long as the answer lives.
    fn attached(&self, place: &Place, hook: Hook) -> Result<Attached> {
        let what = format!("attach by {}", hook.name());
        let link = self
            .attach(place, hook)
            .map_err(CalibrateError::system(what))?;
        Ok(Attached(link))
    }

    /// The processor time of floods.
    fn send(&self, floods: &Floods) -> Result<Duration> {
        let (spent, sent) = self.sender.enter(|| {
            pin(0);
            self.cpu.spent(|| {
                floods
                    .iter()
                    .try_for_each(|flood| self.generator.send(flood, self.packets / 2).map(drop))
            })
        })?;
        sent?;
        Ok(spent)
    }

    /// What a packet costs one core beyond making it. The receiving softirq
    /// runs in the context of the thread that sends.
    fn nanos(&self, floods: &Floods, alone: Duration) -> Result<f64> {
        let took = self.send(floods)?.as_secs_f64() - alone.as_secs_f64();
        Ok(took * 1e9 / f64::from(self.packets))
    }

    fn count(&self, reason: Reason) -> Result<u64> {
        Ok(record::read_counters(&self.path.counters)?[reason as usize].0)
    }

    /// Was the work done that was measured?
    fn counted(&self, hook: Hook, reason: Reason, before: u64) -> Result<()> {
        let counted = self.count(reason)? - before;
        if counted * 100 >= u64::from(self.packets) * 99 {
            return Ok(());
        }
        Err(CalibrateError::Implausible(format!(
            "{}: only {counted} of {} packets reached the hook",
            hook.name(),
            self.packets
        )))
    }
}

/// Dropping a link's last descriptor frees its hook a little later.
struct Attached(Link);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.detach();
    }
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("a constant address")
}

/// The shipped packet path with room for this many bans.
pub(super) fn empty_path(bans: usize) -> Result<Generation> {
    let options = Options {
        geometry: Geometry::for_bans(bans, 0),
        // Nobody chooses addresses here.
        seed: [
            0x9e37_79b9_7f4a_7c15,
            0xd6e8_feb8_6659_fd93,
            0xa076_1d64_78bd_642f,
        ],
        v4_length: 0,
        class_lines: 0,
        flow_jiffies: 0,
        reject: false,
        drop_innocent: false,
    };
    Ok(Generation::create(1, &options, None)?)
}

/// The shipped packet path with the floods' sources banned: addresses of IPv4,
/// /64 of IPv6.
fn packet_path(banned: &Floods) -> Result<Generation> {
    let path = empty_path(2 * BANS as usize)?;
    record::write_policy(&path.policies, 1, &Scope::all(), Action::Drop, "calibrate")?;
    let prefixes = banned.iter().flat_map(|flood| {
        (0..BANS).map(|n| match flood.source(n) {
            v4 @ IpAddr::V4(_) => Prefix::new(v4, 32),
            v6 => Prefix::new(v6, 64),
        })
    });
    for prefix in prefixes {
        let key = prefix
            .and_then(Key::of)
            .expect("the length suits the family");
        let placed = path.table.insert(Slot {
            key,
            policy: 1,
            expiry: NEVER,
        });
        if placed == Placed::NoRoom {
            let why = "the ban table has no room for the flood's sources";
            return Err(CalibrateError::Implausible(why.to_owned()));
        }
    }
    Ok(path)
}

/// Puts the calling thread on the first or second of the processors that this
/// process may use: the receiving softirq then runs where the packets are made.
pub(super) fn pin(which: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    if let Some(cpu) = cpus.get(which).or(cpus.first()) {
        let mut one = CpuSet::new();
        one.set(*cpu);
        // Unpinned it measures, too, with more noise.
        let _ = sched_setaffinity(None, &one);
    }
}

/// Why a hook cannot be had on a veth pair that is our own.
fn refusal(hook: Hook, error: &std::io::Error) -> String {
    match hook {
        Hook::Tcx if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            "this kernel has no tcx (6.6 or newer)".to_owned()
        }
        _ => error.to_string(),
    }
}

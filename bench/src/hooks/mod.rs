//! `weir-bench hooks`: what it costs to drop a packet at each place where
//! Linux lets one be dropped. It repeats the comparison of Silverio and Guardia
//! ("Filtragem de pacotes na borda da rede", UFSCar, 2023) with their rule,
//! UDP to port 12345 from any source, adds the hooks that they had not, and
//! weir itself. All rows stand side by side in networks of their own and take
//! turns in every round; with `--interface` they take turns on a real one.

mod cpu;
mod figures;
mod flood_target;
mod measure;
mod plot;
mod programs;
mod remote;
mod rules;
mod sockets;
mod summary;
mod table;
mod task;
mod weir;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use weir_bpf::generator::{Flood, Payload};

use crate::{
    energy::{self, Meter, Source, Window},
    report::Report,
};
use flood_target::{HOST, TestNet};
use measure::{ALONE, Plan, Point, Sender};
use table::{HOOKS, Hook};
use task::{Running, Task};

/// The payload sizes of the paper, in bytes.
const SIZES: [u16; 8] = [16, 32, 64, 128, 256, 512, 1024, 1472];

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
enum Family {
    Ipv4,
    Ipv6,
}

/// Which program sends the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum From {
    /// Another machine: says how, and measures only.
    Remote,
    /// This machine, and it measures nothing: for the load machine.
    Here,
}

#[derive(clap::Args)]
pub struct HooksArgs {
    /// Write every point to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Measure nothing: report on these files of earlier runs.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    join: Vec<PathBuf>,
    /// Only these rows; several, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    hooks: Vec<String>,
    /// Bytes of UDP payload; those that IPv6 has no room for are cut to 1452.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES)]
    sizes: Vec<u16>,
    /// Address families that are measured.
    #[arg(long, value_name = "FAMILY", value_delimiter = ',', default_values = ["ipv4", "ipv6"])]
    family: Vec<Family>,
    /// Interleaved rounds; the median is shown, and the standard deviation.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: u32,
    /// How long each point is measured.
    #[arg(long, default_value_t = 0.4, value_name = "SECONDS")]
    seconds: f64,
    /// Sources of packets that no rule names, a power of two.
    #[arg(long, default_value_t = 1 << 24, value_name = "N")]
    sources: u32,
    /// Where energy is measured: auto, none, rapl, perf, hwmon[:CHIP], battery,
    /// csv:FILE[:COLUMN], scpi:HOST:PORT[:QUERY].
    #[arg(long, default_value = "auto", value_name = "SOURCE")]
    energy: Source,
    /// Beside it, an estimate: so many watts for each busy core.
    #[arg(long, value_name = "W")]
    watts_per_core: Option<f64>,
    /// The idle machine is measured for so long first.
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    idle: f64,
    /// A real interface of this machine; --sender says who sends to it.
    #[arg(long, value_name = "IF", requires = "sender")]
    interface: Option<String>,
    /// `remote`: print the commands for the load machine and measure what comes.
    /// `here`: send through --interface to --to, and measure nothing.
    #[arg(long, value_name = "WHO", requires = "interface")]
    sender: Option<From>,
    /// The address that is flooded: this machine's own with `remote`, by default
    /// the interface's first; the other's with `here`.
    #[arg(long, value_name = "ADDRESS")]
    to: Option<IpAddr>,
    /// With `here`: where frames go on the wire, the other machine or a router.
    #[arg(long, value_name = "MAC")]
    to_mac: Option<remote::Mac>,
}

impl HooksArgs {
    fn time(&self) -> anyhow::Result<Duration> {
        seconds(self.seconds).context("--seconds")
    }

    /// The rows that were asked for.
    fn rows(&self) -> anyhow::Result<Vec<&'static Hook>> {
        for name in &self.hooks {
            ensure!(
                HOOKS.iter().any(|hook| hook.name == name),
                "no hook {name:?}: {}",
                HOOKS.iter().map(|h| h.name).collect::<Vec<_>>().join(", ")
            );
        }
        Ok(HOOKS
            .iter()
            .filter(|hook| self.hooks.is_empty() || self.hooks.iter().any(|h| h == hook.name))
            .collect())
    }

    fn payloads(&self, host: IpAddr) -> anyhow::Result<Vec<Payload>> {
        let mut payloads = Vec::new();
        for &bytes in &self.sizes {
            ensure!(bytes <= Payload::MAX, "--sizes: at most {}", Payload::MAX);
            let payload = Payload::new(bytes, host)
                .or_else(|| Payload::new(Payload::MAX - 20, host))
                .context("a payload")?;
            if !payloads.contains(&payload) {
                payloads.push(payload);
            }
        }
        Ok(payloads)
    }
}

fn seconds(value: f64) -> anyhow::Result<Duration> {
    ensure!(
        (0.0..=3600.0).contains(&value),
        "{value} is no number of seconds up to 3600"
    );
    Ok(Duration::from_secs_f64(value))
}

/// A row that this machine does not have, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// The name of the row.
    pub hook: String,
    /// The family in which the row is missing.
    pub family: String,
    /// The step that found out, and what it was told.
    pub probe: String,
}

/// All points of a run, with the rows that are missing and the idle power; JSON files hold
/// these beside machine and command.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Every point that was measured.
    pub points: Vec<Point>,
    /// Rows that are not available.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// When the machine was idle.
    #[serde(default)]
    pub idle: Option<Window>,
    /// Watts of the idle machine, by meter.
    #[serde(default)]
    pub idle_watts: BTreeMap<String, f64>,
    /// Why there is no measured energy.
    #[serde(default)]
    pub no_energy: Option<String>,
    /// Whether the load came from another machine.
    #[serde(default)]
    pub remote: bool,
}

impl Run {
    fn add(&mut self, other: Self) {
        self.points.extend(other.points);
        for missing in other.missing {
            if !self.missing.contains(&missing) {
                self.missing.push(missing);
            }
        }
        self.idle = self.idle.or(other.idle);
        self.idle_watts.extend(other.idle_watts);
        self.no_energy = self.no_energy.take().or(other.no_energy);
        self.remote |= other.remote;
    }
}

/// What a file of an earlier run holds.
#[derive(Deserialize)]
struct Earlier {
    machine: String,
    kernel: String,
    commit: String,
    #[serde(flatten)]
    run: Run,
}

/// Measures what was asked for and prints the tables.
pub fn run(args: &HooksArgs) -> anyhow::Result<()> {
    let mut report = Report::new();
    let run = if args.join.is_empty() {
        if let Some(why) = weir_netlab::missing(&[]) {
            bail!("cannot measure here: {why}");
        }
        ensure!(args.sources.is_power_of_two(), "--sources: a power of two");
        crate::flood::catch_signals()?;
        cpu::go_first();
        match (&args.interface, args.sender) {
            (Some(interface), Some(From::Here)) => return remote::send(args, interface),
            (Some(interface), Some(From::Remote)) => remote::measure(args, interface)?,
            _ => measured(args)?,
        }
    } else {
        let (place, run) = joined(args)?;
        if let Some((machine, kernel)) = place.machine {
            report.measured_on(machine, kernel, place.commits.join(", "));
        }
        run
    };
    print!("{}\n{}", report.heading(), summary::tables(&run));
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir)?;
        plot::draw(&run, dir)?;
    }
    if let Some(file) = &args.json {
        report.attach("points", &run.points)?;
        report.attach("missing", &run.missing)?;
        report.attach("idle", &run.idle)?;
        report.attach("idle_watts", &run.idle_watts)?;
        report.attach("no_energy", &run.no_energy)?;
        report.attach("remote", &run.remote)?;
        std::fs::write(file, report.json()?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

/// Meters, and why there is none that measures.
type Meters = (Vec<Box<dyn Meter>>, Option<String>);

fn meters(args: &HooksArgs) -> anyhow::Result<Meters> {
    let mut meters = Vec::new();
    let mut none = None;
    match energy::open(&args.energy, Path::new("/")) {
        Ok(meter) => meters.push(meter),
        // One that was asked for by name must be there.
        Err(why) if matches!(args.energy, Source::Auto | Source::None) => {
            none = Some(format!("{why:#}"));
        }
        Err(why) => return Err(why),
    }
    meters.extend(args.watts_per_core.map(energy::estimate));
    Ok((meters, none))
}

/// The meters, and a run that so far has the idle machine.
fn begin(args: &HooksArgs) -> anyhow::Result<(Vec<Box<dyn Meter>>, Run)> {
    let (mut meters, no_energy) = meters(args)?;
    let mut run = Run {
        no_energy,
        ..Run::default()
    };
    // A log of the meter may come later: then it has the idle machine, too.
    if args.energy != Source::None && args.idle > 0.0 {
        let time = seconds(args.idle).context("--idle")?;
        let (window, watts) = measure::idle(&mut meters, time, args.interface.is_some())?;
        (run.idle, run.idle_watts) = (Some(window), watts);
    }
    Ok((meters, run))
}

/// A row in its network.
struct Stand {
    hook: &'static Hook,
    // Taken away before its network is.
    running: Box<dyn Running>,
    net: TestNet,
    flood: Flood,
}

impl Stand {
    fn new(hook: &'static Hook, host: IpAddr, any: u32) -> anyhow::Result<Result<Self, Missing>> {
        let net = TestNet::new(host)?;
        let flood = Flood {
            sources: hook.sources.count(any),
            ..net.flood
        };
        let task = Task {
            place: net.place.clone(),
            flood,
            sources: hook.sources,
        };
        Ok(match (hook.start)(&task) {
            Ok(running) => Ok(Self {
                hook,
                running,
                net,
                flood,
            }),
            Err(why) => Err(missing(hook, &flood, &why)),
        })
    }
}

/// Says that a row is not available, and goes on.
fn missing(hook: &Hook, flood: &Flood, why: &anyhow::Error) -> Missing {
    let missing = Missing {
        hook: hook.name.to_owned(),
        family: measure::family(flood).to_owned(),
        probe: format!("{why:#}"),
    };
    eprintln!("{} unavailable (probe: {})", missing.hook, missing.probe);
    missing
}

/// In networks of our own, at the rate that each row gives.
fn measured(args: &HooksArgs) -> anyhow::Result<Run> {
    let rows = args.rows()?;
    let sender = Sender::new()?;
    let (mut meters, mut run) = begin(args)?;
    for family in &args.family {
        let host: IpAddr = HOST[usize::from(*family == Family::Ipv6)].parse()?;
        let mut stands = Vec::new();
        for &hook in &rows {
            crate::flood::interrupted()?;
            match Stand::new(hook, host, args.sources)? {
                Ok(stand) => stands.push(stand),
                Err(missing) => run.missing.push(missing),
            }
        }
        let alone = TestNet::new(host)?;
        for round in 0..args.rounds.max(1) {
            for &payload in &args.payloads(host)? {
                let plan = |hook, flood| Plan {
                    hook,
                    flood,
                    payload,
                    round,
                    time: args.time().unwrap_or_default(),
                };
                let nowhere = Flood {
                    ifindex: 0,
                    sources: args.sources,
                    ..alone.flood
                };
                let plan_alone = plan(ALONE, nowhere);
                let point = measure::point(&sender, &alone.outside, None, &mut meters, plan_alone)?;
                eprintln!("{}", summary::line(&point));
                run.points.push(point);
                for stand in &mut stands {
                    crate::flood::interrupted()?;
                    let running: &mut dyn Running = &mut *stand.running;
                    let hook = Some((&*stand.net.place, running));
                    let plan = plan(stand.hook.name, stand.flood);
                    let point =
                        measure::point(&sender, &stand.net.outside, hook, &mut meters, plan)
                            .with_context(|| stand.hook.name)?;
                    eprintln!("{}", summary::line(&point));
                    run.points.push(point);
                }
            }
        }
    }
    Ok(run)
}

/// The machine and commits of earlier runs.
#[derive(Default)]
struct Where {
    /// The machine and its kernel.
    machine: Option<(String, String)>,
    /// The commits that were measured.
    commits: Vec<String>,
}

/// Files of earlier runs of one machine, with the energy that a log tells now,
/// or an estimate.
fn joined(args: &HooksArgs) -> anyhow::Result<(Where, Run)> {
    let mut run = Run::default();
    let mut place = Where::default();
    for file in &args.join {
        let text = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let earlier: Earlier = serde_json::from_slice(&text)
            .with_context(|| format!("the points in {}", file.display()))?;
        let this = (earlier.machine, earlier.kernel);
        let first = place.machine.get_or_insert_with(|| this.clone());
        ensure!(
            *first == this,
            "{} is of another machine: {}, Linux {}",
            file.display(),
            this.0,
            this.1
        );
        if !place.commits.contains(&earlier.commit) {
            place.commits.push(earlier.commit);
        }
        run.add(earlier.run);
    }
    let mut meters = Vec::new();
    if matches!(args.energy, Source::Csv(_)) {
        meters.push(energy::open(&args.energy, Path::new("/"))?);
    }
    meters.extend(args.watts_per_core.map(energy::estimate));
    if let Some(window) = run.idle {
        run.idle_watts.extend(measure::watts(&mut meters, &window));
    }
    for point in &mut run.points {
        for (meter, joules) in measure::read(&mut meters, &point.window()) {
            point.joules.insert(meter, joules);
        }
    }
    Ok((place, run))
}

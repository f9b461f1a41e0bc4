//! `weir-bench delay`: what a new flow pays for a geofence, and what breaks
//! first. It repeats the evaluation of ipt_geofence (Lorenzoni, Caprini,
//! Guastella, 2022) by its own method (`paper`), and asks the same by ours:
//! the latency of new connections and datagrams at rising rates of new flows,
//! loss, CPU, and a flood of denied sources. All paths stand side by side, in
//! networks of their own, and take turns in every round.

mod clients;
mod layout;
mod load;
mod measure;
mod nfqueue;
mod nft;
mod paper;
mod path;
mod plot;
mod table;
mod test_net;
mod world;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use weir_core::geo::Country;

pub use nfqueue::{QueueArgs, run as judge};

use crate::report::Report;
use clients::Pace;
use load::{Floods, Load};
use measure::{Part, Plan, Point};
use paper::Simulation;
use path::{Path, Policy};
use test_net::TestNet;
use world::World;

/// Background rates of the part `load`, as many as the generator gives last.
const RATES: [u32; 8] = [
    10_000, 30_000, 60_000, 80_000, 100_000, 200_000, 400_000, LIMIT,
];
/// In place of a rate: the generator's own limit.
const LIMIT: u32 = 0;
/// The paper's sample, and the rate of its second attempt; the first was sent
/// as fast as the sender went.
const PAPER_PACKETS: usize = 100_000;
const PAPER_RATE: u32 = 30_000;
/// Each simulation has the port after the last one's.
const PAPER_PORT: u16 = 20_000;
/// A flood that a program for each denied source does not survive.
const FLOOD_RATE: u32 = 2000;
/// The rate at which CPU is counted; all paths keep up with it.
const COST_RATE: u32 = 50_000;

#[derive(clap::Args)]
pub struct DelayArgs {
    /// The country database in MaxMind's format; by default the one built in.
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Write rows and points to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// These parts alone.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Only paths whose name holds this text; several, separated by commas.
    #[arg(long, default_value = "", value_name = "TEXT")]
    paths: String,
    /// Background rates of the part `load`, packets a second; 0 is as many as go.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = RATES)]
    rates: Vec<u32>,
    /// Interleaved rounds; the median is shown.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: u32,
    /// A few seconds in all, to see that everything works: no figure of it counts.
    #[arg(long)]
    quick: bool,
    /// Add the points of an earlier run to the tables and plots.
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// The weir binary; beside this one by default.
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
    /// Replace weir's [geofence] section by this text.
    #[arg(long, value_name = "TOML")]
    weir_config: Option<String>,
}

impl DelayArgs {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn paths(&self) -> Vec<Path> {
        let asked = |name: &str| self.paths.split(',').any(|text| name.contains(text.trim()));
        let mut paths = Vec::new();
        for path in Path::ALL {
            let name = path.name();
            if !asked(&name) {
                continue;
            }
            match path.missing() {
                None => paths.push(path),
                Some(why) => eprintln!("skipped: {name}: {why}"),
            }
        }
        paths
    }

    /// A length of time, or what a smoke test needs.
    fn time(&self, millis: u64) -> Duration {
        Duration::from_millis(if self.quick { 60 } else { millis })
    }
}

/// Measures what was asked for and prints the tables.
pub fn run(args: &DelayArgs) -> anyhow::Result<()> {
    if let Some(why) = weir_netlab::missing(&[]) {
        anyhow::bail!("cannot measure here: {why}");
    }
    crate::flood::catch_signals()?;
    let weir = crate::weir_binary(args.weir.as_deref())?;
    ensure!(
        weir.exists(),
        "{} is missing: cargo build --release, or pass --weir",
        weir.display()
    );
    let mut shown = Shown::default();
    for file in &args.with {
        shown.add(earlier(file)?);
    }
    let world = World::open(args.database.as_deref())?;
    let country = |addr: std::net::Ipv4Addr| {
        world
            .country(addr.into())
            .with_context(|| format!("{addr} has no country in the database"))
    };
    let client = country(test_net::CLIENT)?;
    let background = country(test_net::BACKGROUND)?;
    let policy = |allow| Policy {
        world: &world,
        database: args.database.as_deref(),
        allow,
        weir: &weir,
        weir_config: args.weir_config.as_deref(),
    };
    let both: &[Country] = &[client, background];
    let parts = [Part::Idle, Part::Load, Part::Cost, Part::Paper];
    if parts.into_iter().any(|part| args.wants(part)) {
        let mut nets = nets(args, &policy(both), |path| !path.bans())?;
        shown.points.extend(flows(args, &mut nets)?);
        if args.wants(Part::Paper) {
            shown.simulations.extend(simulations(args, &nets)?);
        }
    }
    if args.wants(Part::Flood) {
        shown.points.extend(flood(args, &policy(&both[..1]))?);
    }
    let mut report = Report::new();
    table::rows(&mut report, &shown);
    print!("{}\n{}", report.table(), table::tables(&shown));
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir)?;
        plot::draw(&shown, dir)?;
    }
    if let Some(file) = &args.json {
        report.attach("points", &shown.points)?;
        report.attach("simulations", &shown.simulations)?;
        std::fs::write(file, report.json()?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

/// What tables and plots are made of.
#[derive(Default, serde::Deserialize)]
pub struct Shown {
    /// Points measured by our own method.
    pub points: Vec<Point>,
    /// Points measured by the paper's method.
    pub simulations: Vec<Simulation>,
}

impl Shown {
    fn add(&mut self, other: Self) {
        self.points.extend(other.points);
        self.simulations.extend(other.simulations);
    }
}

/// What the JSON of an earlier run holds.
fn earlier(file: &std::path::Path) -> anyhow::Result<Shown> {
    let text = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("the points in {}", file.display()))
}

/// The paper's simulations: the first path is what the others differ from.
fn simulations(args: &DelayArgs, nets: &[TestNet]) -> anyhow::Result<Vec<Simulation>> {
    let packets = if args.quick { 2000 } else { PAPER_PACKETS };
    let mut all = Vec::new();
    let mut port = PAPER_PORT;
    for round in 0..args.rounds.max(1) {
        for rate in [Some(PAPER_RATE), None] {
            let mut without: Option<paper::Trips> = None;
            for net in nets {
                crate::flood::interrupted()?;
                port += 1;
                let (mut simulation, trips) = paper::simulate(net, packets, rate, port, round)?;
                simulation.delay = without.as_ref().and_then(|w| paper::delay(&trips, w));
                eprintln!("{simulation:?}");
                all.push(simulation);
                if net.path == Path::Nothing {
                    without = Some(trips);
                }
            }
        }
    }
    Ok(all)
}

fn nets(
    args: &DelayArgs,
    policy: &Policy<'_>,
    wanted: impl Fn(&Path) -> bool,
) -> anyhow::Result<Vec<TestNet>> {
    let mut nets = Vec::new();
    for path in args.paths().into_iter().filter(wanted) {
        crate::flood::interrupted()?;
        nets.push(TestNet::new(path, policy)?);
    }
    Ok(nets)
}

/// Parts with allowed flows alone.
fn flows(args: &DelayArgs, nets: &mut [TestNet]) -> anyhow::Result<Vec<Point>> {
    // Back to back where nothing else runs; beside a load five thousand a
    // second at most, so that the client's core has time for a path's program.
    let idle = Pace {
        most: if args.quick { 200 } else { 4000 },
        window: Duration::from_secs(2),
        pause: Duration::ZERO,
    };
    let beside = Pace {
        most: usize::MAX,
        window: args.time(200),
        pause: Duration::from_micros(100),
    };
    let mut plans = Vec::new();
    let mut plan = |part, load, pace: Option<Pace>| {
        plans.push(Plan {
            part,
            round: 0,
            load,
            tcp: pace,
            udp: pace,
            alone: args.time(500),
        });
    };
    if args.wants(Part::Idle) {
        plan(Part::Idle, Load::None, Some(idle));
    }
    if args.wants(Part::Load) {
        for rate in &args.rates {
            let load = match *rate {
                LIMIT => Load::FlowsAtLimit,
                rate => Load::Flows(rate),
            };
            plan(Part::Load, load, Some(beside));
        }
    }
    if args.wants(Part::Cost) {
        plan(Part::Cost, Load::Flows(COST_RATE), None);
        plan(Part::Cost, Load::FlowsAtLimit, None);
    }
    rounds(args, nets, None, &plans)
}

/// Denied sources from all over the world, the client beside them.
fn flood(args: &DelayArgs, policy: &Policy<'_>) -> anyhow::Result<Vec<Point>> {
    let floods = Floods::new()?;
    let beside = Pace {
        most: usize::MAX,
        window: args.time(200),
        pause: Duration::from_micros(100),
    };
    let plans = [Load::None, Load::Flood(FLOOD_RATE), Load::FloodAtLimit].map(|load| Plan {
        part: Part::Flood,
        round: 0,
        load,
        tcp: Some(beside),
        udp: Some(beside),
        alone: Duration::ZERO,
    });
    let mut quiet = nets(args, policy, |path| !path.bans())?;
    let mut points = rounds(args, &mut quiet, Some(&floods), &plans)?;
    drop(quiet);
    // A rule for each source takes CPU for seconds after the flood: these have
    // the machine to themselves, and new tables in each round.
    for round in 0..args.rounds.max(1) {
        for mut net in nets(args, policy, |path| path.bans())? {
            for plan in plans {
                points.push(point(&mut net, Some(&floods), Plan { round, ..plan })?);
            }
        }
    }
    Ok(points)
}

/// Every plan on every net, round by round.
fn rounds(
    args: &DelayArgs,
    nets: &mut [TestNet],
    floods: Option<&Floods>,
    plans: &[Plan],
) -> anyhow::Result<Vec<Point>> {
    let mut points = Vec::new();
    for round in 0..args.rounds.max(1) {
        for plan in plans {
            for net in &mut *nets {
                points.push(point(net, floods, Plan { round, ..*plan })?);
            }
        }
    }
    Ok(points)
}

/// One point, shown as it comes.
fn point(net: &mut TestNet, floods: Option<&Floods>, plan: Plan) -> anyhow::Result<Point> {
    crate::flood::interrupted()?;
    let point = measure::point(net, floods, plan)
        .with_context(|| format!("{} at {:?}", net.path.name(), plan.load))?;
    eprintln!("{}", table::line(&point));
    Ok(point)
}

//! `weir options probe`

mod output;

use std::{
    io::{self, IsTerminal, Write},
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use weir_daemon::escape;
use weir_option_probe::{
    matrix::Matrix,
    measure::{MeasuredPair, ProbeError, ProbePlan, measure},
    probe_packet::{self, Carrier},
    result_file::{MAX_SITES, PairResult},
    site::{AgentOptions, Site, SiteSpec},
    verdict::Verdict,
};

use self::output::{Captures, Drawing, Results};
use super::{
    super::{ExitAnswer, show},
    inject::read_options,
};

/// What is measured unless options are named: what each layer knows, and what it does not.
const USUAL: [&str; 19] = [
    "ip:nop",
    "ip:rr",
    "ip:ts",
    "ip:rtralt",
    "ip:unassigned-93",
    "ip:exp-94",
    "tcp:nop",
    "tcp:sack-permitted",
    "tcp:ts",
    "tcp:reserved-71",
    "tcp:exp-254",
    "udp:nop",
    "udp:time",
    "udp:unassigned-125",
    "udp:exp",
    "hop:padn",
    "hop:exp-1e",
    "dst:exp-1e",
    "ext:fragment",
];

/// Measure which options pass between sites, are stripped, altered or dropped
///
/// Each site sends packets with each option to each other, which says what
/// arrived: all to all, in each direction, by ICMP, UDP and TCP (SYN), IPv4 and
/// IPv6, beside packets without options. A site is netns:NAME, a network
/// namespace, or ssh:HOST, where weir is installed and may open raw sockets;
/// LABEL= before it names it in results, and /ADDRESS behind it says how others
/// reach it. At the sites nothing but "weir options agent" runs, for as long.
///
/// pass: each packet arrived with the option; stripped: without it; altered:
/// with another; dropped: none arrived, and packets without the option did;
/// mixed: some one way, some another; no-path: packets without it do not arrive
/// either.
///
/// Exit code 2: a pair could not be measured; the others are.
#[derive(clap::Args)]
pub struct Args {
    /// The sites, such as netns:west, ssh:root@192.0.2.1, paris=ssh:host/192.0.2.7,2001:db8::7
    #[arg(value_name = "SITE", required = true, num_args = 2..)]
    sites: Vec<SiteSpec>,
    /// Measure this option; may be given several times [default: 19 of all layers]
    #[arg(long = "option", value_name = "OPTION")]
    options: Vec<String>,
    /// Only packets of these protocols: icmp, udp, tcp
    #[arg(long, value_name = "PROTOCOL", value_delimiter = ',')]
    carrier: Vec<Carrier>,
    /// Measure by IPv4 and not by IPv6
    #[arg(long, conflicts_with = "ipv6")]
    ipv4: bool,
    /// Measure by IPv6 and not by IPv4
    #[arg(long)]
    ipv6: bool,
    /// Packets of each kind
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=50))]
    tries: u16,
    /// The destination port of TCP and UDP
    #[arg(long, value_name = "PORT", default_value_t = 443, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Wait so long for the last packets of a pair
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    wait: u64,
    /// Keep results in this file, pair by pair, and do not measure again what it has
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Keep what was sent and what arrived in this directory, two captures a pair and family
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Draw the matrices of senders and receivers into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the matrices, not only how many pairs fared how
    #[arg(long, conflicts_with = "json")]
    matrix: bool,
    /// The command that starts the agent on a host that ssh reaches
    #[arg(long, value_name = "COMMAND", default_value = "weir options agent")]
    agent: String,
    /// A configuration file for ssh in place of the user's
    #[arg(long, value_name = "FILE")]
    ssh_config: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn plan(&self) -> anyhow::Result<ProbePlan> {
        let usual = USUAL.map(str::to_owned);
        let options = read_options(match self.options.is_empty() {
            true => &usual,
            false => &self.options,
        })?;
        let carriers = match self.carrier.is_empty() {
            true => Carrier::ALL.to_vec(),
            false => self.carrier.clone(),
        };
        let plan = ProbePlan {
            options,
            carriers,
            tries: self.tries,
            port: self.port,
            wait: Duration::from_secs(self.wait),
        };
        ensure!(
            plan.packets() > 0,
            "none of these options goes into packets of these protocols"
        );
        ensure!(
            plan.packets() <= ProbePlan::MAX_PACKETS,
            "a pair would take {} packets; allowed: up to {}: name fewer options, protocols or --tries",
            plan.packets(),
            ProbePlan::MAX_PACKETS
        );
        Ok(plan)
    }

    fn families(&self) -> &'static [bool] {
        match (self.ipv4, self.ipv6) {
            (true, _) => &[true],
            (_, true) => &[false],
            _ => &[true, false],
        }
    }
}

/// A line for the administrator beside the results.
fn say(text: &str) {
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "weir: {}", escape(text));
}

/// Says how far it is: on a terminal in one line, else nothing.
fn progress(done: usize, of: usize, what: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        let what = escape(what);
        let _ = match done == of {
            true => write!(err, "\r\x1b[K"),
            false => write!(err, "\r\x1b[K{done} of {of} pairs; {what}"),
        };
        let _ = err.flush();
    }
}

/// An ordered pair of sites, by their numbers, in a family.
struct Pair {
    from: usize,
    to: usize,
    is_v4: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let plan = args.plan()?;
    ensure!(
        args.sites.len() <= MAX_SITES,
        "there are {} sites; allowed: up to {MAX_SITES}",
        args.sites.len()
    );
    for (at, site) in args.sites.iter().enumerate() {
        let label = &site.label;
        if args.sites[..at].iter().any(|other| other.label == *label) {
            bail!("two sites are called {label:?}: give one another name by LABEL=");
        }
    }
    // All that is written is opened first: measuring may take hours.
    let mut results = Results::open(args.resume.as_deref())?;
    results.has_room_for(args.sites.iter().map(|site| &*site.label))?;
    let captures = args.pcap.as_deref().map(Captures::open).transpose()?;
    let drawing = args.svg.as_deref().map(Drawing::open).transpose()?;
    if let (Some(drawing), Some(path)) = (&drawing, &args.resume) {
        drawing.is_another_file(path)?;
    }
    let options = AgentOptions {
        remote_command: args.agent.clone(),
        ssh_config: args.ssh_config.clone(),
    };
    let mut failed = false;
    let mut sites = Vec::new();
    for spec in &args.sites {
        let opened = Site::open(spec, &options);
        if let Err(error) = &opened {
            say(&error.to_string());
            failed = true;
        }
        sites.push(opened.ok());
    }
    let families = args.families();
    for (at, error) in Site::shared_addresses(&sites, families) {
        say(&error.to_string());
        failed = true;
        sites[at] = None;
    }
    for site in sites.iter().flatten() {
        let told = site.told_addresses();
        if !told.is_empty() {
            let told: Vec<_> = told.iter().map(ToString::to_string).collect();
            say(&format!(
                "site {}: others send to {}, as its host says: for [token] that decides nothing, unless it is behind / of the site",
                site.label,
                told.join(" and ")
            ));
        }
    }
    for (site, is_v4) in sites
        .iter()
        .flatten()
        .flat_map(|s| families.iter().map(move |f| (s, *f)))
    {
        if site.address(is_v4).is_some() && site.source(is_v4).is_none() {
            say(&format!(
                "site {}: its host has no {} address of its own: it sends nothing so",
                site.label,
                if is_v4 { "IPv4" } else { "IPv6" }
            ));
        }
    }
    let pairs = pairs(&sites, families, &plan);
    if pairs.is_empty() {
        say(
            "no two of the sites have addresses of the same family, and options for it: nothing is measured",
        );
        failed = true;
    }
    for (done, pair) in pairs.iter().enumerate() {
        let [from, to] = [pair.from, pair.to].map(|site| &args.sites[site].label);
        let family = if pair.is_v4 { "IPv4" } else { "IPv6" };
        progress(done, pairs.len(), &format!("{from} to {to}, {family}"));
        let probes = plan.probes(pair.is_v4);
        let is_told = |site: &Site| site.is_told(pair.is_v4);
        let is_told = sites[pair.to].as_ref().is_some_and(is_told);
        let conditions =
            ends(&sites, pair).map(|(source, dest)| plan.conditions(source, dest, is_told));
        let kept = &results.kept;
        if let Some(conditions) = conditions
            && kept
                .find(from, to, pair.is_v4, conditions, &probes)
                .is_some()
        {
            continue;
        }
        match measured(&mut sites, pair, &plan) {
            Ok(Some(measured)) => {
                if let Some((count, error)) = &measured.refused {
                    say(&format!(
                        "{from} to {to}, {family}: {count} packets did not leave, and count for nothing: {error}"
                    ));
                }
                if measured.lost > 0 {
                    say(&format!(
                        "{from} to {to}, {family}: {} packets were lost on the receiver's host itself, each time: options of which one is missing are left out; measure again when it has less traffic",
                        measured.lost
                    ));
                    failed = true;
                }
                if let Some(captures) = &captures {
                    captures.keep(&measured)?;
                }
                if measured.result.measurements.is_empty() {
                    failed = true;
                } else {
                    results.add(measured.result)?;
                }
            }
            // A site that failed before.
            Ok(None) => {}
            Err(error) => {
                say(&format!("{from} to {to}, {family}: {error:#}"));
                failed = true;
            }
        }
    }
    progress(pairs.len(), pairs.len(), "");
    print(args, drawing, &results.kept.pairs)?;
    Ok(match failed {
        true => ExitAnswer::Mistaken,
        false => ExitAnswer::Done,
    })
}

/// All ordered pairs that have addresses of a family in common, of whose sender's host as well.
fn pairs(sites: &[Option<Site>], families: &[bool], plan: &ProbePlan) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for is_v4 in families.iter().copied() {
        if plan.probes(is_v4).is_empty() {
            continue;
        }
        let sends = |site: &Option<Site>| site.as_ref().is_some_and(|s| s.source(is_v4).is_some());
        let has = |site: &Option<Site>| site.as_ref().is_some_and(|s| s.address(is_v4).is_some());
        for (from, sender) in sites.iter().enumerate() {
            for (to, receiver) in sites.iter().enumerate() {
                if from != to && sends(sender) && has(sender) && has(receiver) {
                    pairs.push(Pair { from, to, is_v4 });
                }
            }
        }
    }
    pairs
}

/// Between which addresses the packets of a pair go; `None`: one of its sites is gone.
fn ends(sites: &[Option<Site>], pair: &Pair) -> Option<(IpAddr, IpAddr)> {
    let [from, to] = [pair.from, pair.to].map(|site| sites[site].as_ref());
    Some((from?.source(pair.is_v4)?, to?.address(pair.is_v4)?))
}

/// Measures a pair; `None`: one of its sites is gone. One that fails goes.
fn measured(
    sites: &mut [Option<Site>],
    pair: &Pair,
    plan: &ProbePlan,
) -> anyhow::Result<Option<MeasuredPair>> {
    let Some((source, dest)) = ends(sites, pair) else {
        return Ok(None);
    };
    let Ok([from, to]) = sites.get_disjoint_mut([pair.from, pair.to]) else {
        return Ok(None);
    };
    let (Some(sender), Some(receiver)) = (from.as_mut(), to.as_mut()) else {
        return Ok(None);
    };
    let path = probe_packet::Path {
        source,
        dest,
        port: plan.port,
    };
    match measure(sender, receiver, &path, plan) {
        Ok(measured) => Ok(Some(measured)),
        Err(error) => {
            if let ProbeError::Site(failed) = &error {
                for site in [from, to] {
                    site.take_if(|site| site.label == failed.label());
                }
            }
            Err(error.into())
        }
    }
}

fn pair_json(pair: &PairResult) -> Value {
    let rows: Vec<_> = pair
        .measurements
        .iter()
        .map(|m| {
            json!({
                "option": m.option.as_ref().map(ToString::to_string),
                "carrier": m.carrier.name(),
                "verdict": m.tally.verdict(&pair.plain(m.carrier)).name(),
                "sent": m.tally.sent,
                "passed": m.tally.passed,
                "stripped": m.tally.stripped,
                "altered": m.tally.altered,
            })
        })
        .collect();
    json!({
        "from": pair.from,
        "to": pair.to,
        "family": if pair.is_v4 { "ipv4" } else { "ipv6" },
        "measurements": rows,
    })
}

fn print(args: &Args, drawing: Option<Drawing>, pairs: &[PairResult]) -> anyhow::Result<()> {
    let matrix = Matrix::new(pairs);
    if let Some(drawing) = drawing {
        drawing.write(&matrix.svg())?;
    }
    if args.json {
        let pairs: Vec<_> = pairs.iter().map(pair_json).collect();
        return show::json(&json!({ "pairs": pairs }));
    }
    let head: Vec<String> = ["OPTION", "PROTOCOL", "FAMILY"]
        .into_iter()
        .map(str::to_owned)
        .chain(Verdict::ALL.map(|verdict| verdict.name().to_uppercase()))
        .collect();
    let rows: Vec<Vec<String>> = matrix
        .subjects()
        .iter()
        .map(|subject| {
            let family = if subject.is_v4 { "IPv4" } else { "IPv6" };
            [
                subject.option.to_string(),
                subject.carrier.to_string(),
                family.to_owned(),
            ]
            .into_iter()
            .chain(matrix.counts(subject).map(|count| count.to_string()))
            .collect()
        })
        .collect();
    let head: Vec<_> = head.iter().map(String::as_str).collect();
    show::table(&head, &rows)?;
    if args.matrix {
        show::text_as_it_is(&matrix.text())?;
    }
    Ok(())
}

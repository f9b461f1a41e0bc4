//! `weir-bench flood`: the experiments of the thesis on Simplefail2ban
//! (section 4): a UDP server that logs unwanted requests, under a flood of them
//! from very many clients, with a steady stream of wanted ones beside it. In
//! network namespaces on one machine, by live frames; the thesis had two
//! machines of 16 cores, and runs of 300 s with bans of 30 s.

mod fail2ban;
mod ideal;
mod measure;
mod plot;
mod scenario;
mod second;
mod server;
mod test_net;
mod weir;

use std::{
    fmt::Write,
    path::PathBuf,
    sync::{Arc, LazyLock, atomic::AtomicBool},
    time::Duration,
};

use anyhow::ensure;

pub use server::{ServerArgs, run as serve};
pub use test_net::{cpu_seconds, interrupted};

use crate::report::Report;
use measure::Outcome;
use scenario::Filter;

/// Set by SIGINT and SIGTERM.
static CAUGHT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on they make [`interrupted`] an error instead of ending the process.
pub fn catch_signals() -> std::io::Result<()> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, CAUGHT.clone())?;
    }
    Ok(())
}

#[derive(clap::Args)]
pub struct FloodArgs {
    /// Write rows and samples to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw each run into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Only runs whose name holds this text; several, separated by commas.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
    /// Seconds of each run (the thesis: 300).
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Seconds of a ban (the thesis: 30).
    #[arg(long, value_name = "N")]
    ban_time: Option<u64>,
    /// Send unwanted requests at this rate a second in place of each run's own.
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Unwanted clients in place of each run's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    clients: Option<u32>,
    /// The weir binary; beside this one by default.
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
}

/// Runs what was asked for and prints the tables.
pub fn run(args: &FloodArgs) -> anyhow::Result<()> {
    let weir = crate::weir_binary(args.weir.as_deref())?;
    ensure!(
        weir.exists(),
        "{} is missing: cargo build --release, or pass --weir",
        weir.display()
    );
    catch_signals()?;
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir)?;
    }
    let mut report = Report::new();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut failed = Vec::new();
    let asked = |name: &str| args.only.split(',').any(|text| name.contains(text.trim()));
    let seconds = |n: Option<u64>| n.map(Duration::from_secs);
    for mut scenario in scenario::all(seconds(args.seconds), seconds(args.ban_time)) {
        if let Some(rate) = args.rate {
            scenario.rate = scenario::Rate::PerSecond(rate);
        }
        scenario.clients = args.clients.unwrap_or(scenario.clients);
        let name = scenario.name();
        // With --rate several become one.
        if !asked(&name) || outcomes.iter().any(|outcome| outcome.name == name) {
            continue;
        }
        if scenario.filter == Filter::Fail2ban
            && let Some(why) = fail2ban::missing()
        {
            eprintln!("skipped: {name}: {why}");
            continue;
        }
        let outcome = match measure::run(&scenario, &weir) {
            Ok(outcome) => outcome,
            Err(error) => {
                test_net::interrupted()?;
                eprintln!("failed: {name}: {error:#}");
                failed.push(name);
                continue;
            }
        };
        add_rows(&mut report, &outcome, &outcomes, &scenario.oracle());
        for alert in &outcome.alerts {
            eprintln!("{name}: the daemon says: {alert}");
        }
        if let Some(dir) = &args.plot {
            plot::draw(&outcome, dir)?;
        }
        outcomes.push(outcome);
    }
    print!("{}\n{}", report.table(), table(&outcomes));
    if let Some(file) = &args.json {
        report.attach("runs", &outcomes)?;
        std::fs::write(file, report.json()?)?;
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn add_rows(report: &mut Report, outcome: &Outcome, before: &[Outcome], oracle: &str) {
    let oracle = before.iter().find(|other| other.name == oracle);
    let name = &outcome.name;
    let mut add = |what: &str, unit, value: Option<f64>, base: Option<f64>| {
        let row = format!("{name}: {what}");
        match (value, base, oracle) {
            (Some(value), Some(base), Some(oracle)) => {
                let to = format!("{}: {what}", oracle.name);
                report.add_ratio(&row, unit, &[value], (&to, &[base]));
            }
            (Some(value), ..) => report.add(&row, unit, &[value]),
            (None, ..) => {}
        }
    };
    let end = outcome.end();
    let rate = |n: u64| n as f64 / outcome.length() / 1e3;
    add("unwanted sent", "kpps", Some(rate(end.unwanted)), None);
    add(
        "unwanted dropped",
        "packets",
        Some(end.dropped as f64),
        None,
    );
    add(
        "unwanted dropped of sent",
        "%",
        Some(outcome.of_sent()),
        None,
    );
    add(
        "unwanted dropped of ideal",
        "%",
        Some(outcome.of_ideal()),
        oracle.map(Outcome::of_ideal),
    );
    add(
        "unwanted dropped of ideal, from the second cycle on",
        "%",
        outcome.of_ideal_later(),
        oracle.and_then(Outcome::of_ideal_later),
    );
    add("records read of logged", "%", outcome.records_read(), None);
    add(
        "records lost, all counted",
        "records",
        outcome.lost.map(|n| n as f64),
        None,
    );
    add(
        "second reader: records lost, all counted",
        "records",
        outcome.second.map(|(_, lost)| lost as f64),
        None,
    );
    add("CPU of the filter", "s", outcome.cpu_filter, None);
    add(
        "CPU of the server",
        "s",
        Some(outcome.cpu_server),
        oracle.map(|o| o.cpu_server),
    );
    add(
        "wanted answered",
        "%",
        Some(outcome.wanted_answered()),
        oracle.map(Outcome::wanted_answered),
    );
}

/// One line a run, as the thesis sets them out.
fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "| experiment | run | clients | s / ban s | unwanted sent | dropped | of sent | of ideal | from 2nd cycle | reached the server | socket full | bans | records logged | read | lost | CPU filter / server, s | wanted sent | answered |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    let percent = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.2} %"));
    for o in outcomes {
        let end = o.end();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.0} / {:.0} | {} | {} | {:.2} % | {} | {} | {} | {} | {} | {} | {} | {} | {} / {:.2} | {} | {:.2} % |",
            o.experiment.map_or("-".into(), |n| n.to_string()),
            o.name,
            o.clients,
            o.length(),
            o.ban_seconds,
            end.unwanted,
            end.dropped,
            o.of_sent(),
            percent(Some(o.of_ideal())),
            percent(o.of_ideal_later()),
            end.received,
            end.overflowed,
            o.bans.map_or("-".into(), |n| n.to_string()),
            end.logged,
            percent(o.records_read()),
            o.lost.map_or("-".into(), |n| n.to_string()),
            o.cpu_filter.map_or("-".into(), |n| format!("{n:.2}")),
            o.cpu_server,
            end.wanted,
            o.wanted_answered(),
        );
    }
    out
}

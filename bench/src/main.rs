//! `weir-bench`: shows weir's budgets as ratios to the peer and to the limit,
//! measured in one run on one machine. One file per question.

mod delay;
mod live;
mod report;
mod tables;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use report::Report;

/// Benchmarks of weir; they need root, make their own network namespaces and
/// send no packet elsewhere.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The packet path, insertion, restore, and log line to drop.
    Packet(PacketArgs),
}

#[derive(clap::Args)]
struct PacketArgs {
    /// Write the rows to this file as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Interleaved rounds a row; the median is shown.
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,
    /// Only rows whose name holds this text.
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
    /// The weir binary for the rows with a daemon; beside this one by default.
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let What::Packet(args) = Args::parse().what;
    if let Some(why) = weir_lab::missing(&[]) {
        anyhow::bail!("cannot measure here: {why}");
    }
    let weir = match &args.weir {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("weir"),
    };
    let mut report = Report::new();
    let wanted =
        |part: &str| args.only.is_empty() || args.only.contains(part) || part.contains(&args.only);
    live::run(&mut report, args.rounds.max(1), &args.only)?;
    if wanted("insert") || wanted("restore") {
        tables::run(&mut report, &weir)?;
    }
    if wanted("delay") {
        delay::run(&mut report, &weir)?;
    }
    print!("{}", report.table());
    if let Some(file) = &args.json {
        std::fs::write(file, report.json()?)?;
    }
    Ok(())
}

//! `weir-bench`: shows weir's budgets as ratios to the peer and to the limit,
//! measured in one run on one machine. One file per question.

mod balance;
mod ban_latency;
mod bars;
mod class_rows;
mod cores;
mod delay;
mod energy;
mod fail2ban_lines;
mod fail2ban_start;
mod fill;
mod flood;
mod hooks;
mod identity;
mod lines;
mod packet;
mod proxy;
mod report;
mod ring;
mod wire;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

use report::Report;

/// Benchmarks of weir. Most need root, make their own network namespaces and
/// send no packet elsewhere.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The packet path, insertion, restore, start, and log line to drop.
    Packet(PacketArgs),
    /// Log lines to findings: the sshd filter and the ledger on one core.
    Lines(lines::LinesArgs),
    /// A server under a flood from very many clients, behind weir, Fail2ban
    /// and an oracle.
    Flood(flood::FloodArgs),
    /// Records through shared memory, from one core to the other.
    Ring(ring::RingArgs),
    /// Load balancing by direct server return, beside a bare rewrite and Pen.
    Balance(balance::BalanceArgs),
    /// Rows that another command wrote as JSON, as a picture with bars.
    Bars(bars::BarsArgs),
    /// What a new flow pays for a geofence, and what breaks first.
    Delay(delay::DelayArgs),
    /// What dropping a packet costs at each hook of the kernel, and energy.
    Hooks(hooks::HooksArgs),
    /// What it costs that traffic is judged by program, beside connection
    /// tracking and a queue to user space.
    Identity(identity::IdentityArgs),
    /// What it costs that connections are signed, and that a port wants that.
    Token(identity::IdentityArgs),
    /// The client of `identity`, a process of its own.
    #[command(hide = true)]
    IdentityClient(identity::ClientArgs),
    /// The server of `flood`, a process of its own.
    #[command(hide = true)]
    FloodServer(flood::ServerArgs),
    /// The NFQUEUE program of `delay`, a process of its own.
    #[command(hide = true)]
    DelayQueue(delay::QueueArgs),
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
    match Args::parse().what {
        What::Ring(args) => ring::run(&args),
        What::FloodServer(args) => flood::serve(&args),
        What::DelayQueue(args) => delay::judge(&args),
        What::Lines(args) => lines::run(&args),
        What::Packet(args) => with_root(|| packet(&args)),
        What::Flood(args) => with_root(|| flood::run(&args)),
        What::Bars(args) => bars::run(&args),
        What::Balance(args) => with_root(|| balance::run(&args)),
        What::Identity(args) => with_root(|| identity::run(&args)),
        What::Token(args) => with_root(|| identity::tokens(&args)),
        What::IdentityClient(args) => identity::client(&args),
        What::Delay(args) => delay::run(&args),
        What::Hooks(args) => hooks::run(&args),
    }
}

/// Measures if there is what namespaces and programs in the kernel need.
fn with_root(measure: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if let Some(why) = weir_netlab::missing(&[]) {
        anyhow::bail!("cannot measure here: {why}");
    }
    measure()
}

/// The program to measure: as told, or the one beside this.
fn weir_binary(told: Option<&Path>) -> anyhow::Result<PathBuf> {
    match told {
        Some(path) => Ok(path.to_owned()),
        None => Ok(std::env::current_exe()?.with_file_name("weir")),
    }
}

fn packet(args: &PacketArgs) -> anyhow::Result<()> {
    let weir = weir_binary(args.weir.as_deref())?;
    let mut report = Report::new();
    let wanted =
        |part: &str| args.only.is_empty() || args.only.contains(part) || part.contains(&args.only);
    packet::run(&mut report, args.rounds.max(1), &args.only)?;
    if wanted("class table") {
        class_rows::rows(&mut report, args.rounds.clamp(1, 5))?;
    }
    if wanted("insert") || wanted("restore") {
        fill::run(&mut report, &weir)?;
    }
    if wanted("start with 99 jails") || wanted("memory of 99 jails") {
        fail2ban_start::run(&mut report, &weir, args.rounds.clamp(1, 5))?;
    }
    if wanted("delay") {
        ban_latency::file(&mut report, &weir)?;
    }
    report.finish(args.json.as_deref())
}

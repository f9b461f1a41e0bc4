//! `weir real-side`

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf};

use clap::ValueEnum;
use serde_json::json;
use weir_daemon::real_side::{self, DecapSettings, GUE_PORT, Outcome, Packets, RealSide, Step};

use super::{ExitAnswer, show};

/// Prepare this host as a real of a pool: virtual addresses without ARP, and tunnels
///
/// For the servers of a pool (its reals), and without the daemon: adds the virtual
/// addresses to the loopback interface and, for IPv4, sets arp_ignore and arp_announce,
/// so that only the balancer is found by them. With --decap a program takes their packets
/// out of what a balancer sends through routers (forward = "ipip" or "gue" in its pool).
/// Without addresses it shows what was done; exit code 1 if nothing was, or not all of
/// it is so any more. All of it goes with a reboot.
#[derive(clap::Args)]
pub struct Args {
    /// The virtual addresses; with --undo: all that were added, if none is named
    #[arg(value_name = "VIP")]
    vips: Vec<IpAddr>,
    /// Take packets for the virtual addresses out of these tunnels: ipip, gue
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true,
        conflicts_with = "undo"
    )]
    decap: Vec<Kind>,
    /// The UDP port of GUE
    #[arg(long, value_name = "PORT", default_value_t = GUE_PORT, requires = "decap",
          value_parser = clap::value_parser!(u16).range(1..))]
    gue_port: u16,
    /// Accept outer packets from these balancers only; without it from anybody
    #[arg(long, value_name = "ADDR", value_delimiter = ',', requires = "decap")]
    from: Vec<IpAddr>,
    /// The interfaces at which outer packets arrive [default: the interfaces with a default route]
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "decap")]
    interface: Vec<String>,
    /// Take back what this verb did, and nothing else
    #[arg(long)]
    undo: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// The file that records what was done
    #[arg(long, value_name = "FILE", default_value = real_side::DEFAULT_RECORD)]
    record: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// The kind of a balancer's tunnel.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    // IPv4 or IPv6 in IPv4 or IPv6
    Ipip,
    // The same in UDP (Generic UDP Encapsulation)
    Gue,
}

impl Args {
    fn decap(&self) -> Option<DecapSettings> {
        (!self.decap.is_empty()).then(|| {
            DecapSettings::new(
                self.decap.contains(&Kind::Ipip),
                self.decap.contains(&Kind::Gue).then_some(self.gue_port),
                self.from.iter().map(IpAddr::to_canonical).collect(),
                self.interface.iter().cloned().collect(),
            )
        })
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let real = RealSide::new(&args.record, args.dry_run);
    let vips: BTreeSet<_> = args.vips.iter().copied().collect();
    let decap = args.decap();
    let is_shown = vips.is_empty() && !args.undo && decap.is_none();
    let steps = match args.undo {
        true => real.undo(&vips)?,
        false if is_shown => real.status()?,
        false => real.set(&vips, decap)?,
    };
    if args.json {
        show::json(&json!({ "steps": steps, "dry_run": args.dry_run }))?;
    } else {
        for step in &steps {
            show::line(words(step, args.dry_run))?;
        }
        if steps.is_empty() {
            show::line("weir real-side has done nothing here")?;
        }
    }
    let is_as_said = |step: &Step| step.outcome == Outcome::Kept;
    Ok(
        match !is_shown || !steps.is_empty() && steps.iter().all(is_as_said) {
            true => ExitAnswer::Done,
            false => ExitAnswer::No,
        },
    )
}

fn words(step: &Step, is_dry: bool) -> String {
    let value = match &step.value {
        Some((before, after)) if before != after => format!(" {before} -> {after}"),
        Some((_, after)) => format!(" {after}"),
        None => String::new(),
    };
    let outcome = match (step.outcome, is_dry) {
        (Outcome::Set, false) => "set",
        (Outcome::Set, true) => "would be set",
        (Outcome::Kept, _) => "set by weir before",
        (Outcome::Foreign, _) => "there already, not by weir: --undo leaves it",
        (Outcome::Undone, false) => "taken back",
        (Outcome::Undone, true) => "would be taken back",
        (Outcome::Gone, _) => "gone already",
        (Outcome::Changed, _) => "changed by somebody else since: it stays so",
    };
    let packets = step.packets.map(|packets| {
        let Packets {
            taken,
            stranger,
            other,
            fragment,
            malformed,
            refused,
        } = packets;
        format!(
            "; packets taken out {taken}, left {} (not from a balancer {stranger}, for no virtual address {other}, in fragments {fragment}), dropped {} (malformed {malformed}, refused by the kernel {refused})",
            stranger + other + fragment,
            malformed + refused
        )
    });
    let packets = packets.unwrap_or_default();
    format!("{} {}{value}: {outcome}{packets}", step.kind, step.name)
}

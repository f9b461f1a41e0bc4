//! `weir real-side`

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf};

use clap::{ArgMatches, Command, FromArgMatches, ValueEnum, error::ErrorKind};
use serde_json::json;
use weir_daemon::real_side::{
    self, DecapSettings, GUE_PORT, Outcome, Packets, RealSide, Step, TunnelEnds,
};

use super::{ExitAnswer, show};

/// Prepare this host as a real of a pool: virtual addresses without ARP, and tunnels
///
/// For the servers of a pool (its reals), and without the daemon: adds the virtual
/// addresses to the loopback interface and, for IPv4, sets arp_ignore and arp_announce,
/// so that only the balancer is found by them. With --decap a program takes their packets
/// out of what a balancer sends through routers (forward = "ipip" or "gue" in its pool).
/// Without addresses it shows what was done; exit code 1 if nothing was, or not all of
/// it is so any more. All of it goes with a reboot.
///
/// weir real-side 198.51.100.80 2001:db8::80 --decap gue --from 10.1.0.1,10.1.0.2
#[derive(clap::Args)]
struct Typed {
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
    /// Accept outer packets from these balancers only, as A,B; without it from anybody, who
    /// can then send packets with any client's address past the balancer's firewall
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

/// What was typed, where no word can be taken for another than it is.
pub struct Args(Typed);

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        let behind = behind_balancer(matches);
        let typed = Typed::from_arg_matches_mut(matches)?;
        match behind {
            Some((balancer, vip)) => Err(clap::Error::raw(
                ErrorKind::ValueValidation,
                format!(
                    "{vip} behind --from {balancer} is a balancer or a virtual address: balancers are one word (--from {balancer},{vip}), virtual addresses come before the options (weir real-side {vip} --decap gue --from {balancer})\n"
                ),
            )),
            None => Ok(Self(typed)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        Typed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Typed::augment_args_for_update(command)
    }
}

/// A virtual address behind --from, and the balancer before it: whoever types it there may
/// mean a balancer.
fn behind_balancer(matches: &ArgMatches) -> Option<(IpAddr, IpAddr)> {
    let at = |id: &str| {
        let indices = matches.indices_of(id)?;
        let values = matches.get_many::<IpAddr>(id)?;
        Some(indices.zip(values.copied()).collect::<Vec<_>>())
    };
    let (balancers, vips) = (at("from")?, at("vips")?);
    vips.iter().find_map(|(at, vip)| {
        let mut before = balancers.iter().rev();
        let (_, balancer) = before.find(|(index, _)| index < at)?;
        Some((*balancer, *vip))
    })
}

impl Typed {
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

pub fn run(Args(args): &Args) -> anyhow::Result<ExitAnswer> {
    let real = RealSide::new(&args.record, args.dry_run);
    let vips: BTreeSet<_> = args.vips.iter().copied().collect();
    let decap = args.decap();
    let is_shown = vips.is_empty() && !args.undo && decap.is_none();
    let steps = match args.undo {
        true => real.undo(&vips)?,
        false if is_shown => real.status()?,
        false => real.set(&vips, decap)?,
    };
    let warnings: Vec<_> = steps.iter().flat_map(warnings).collect();
    if args.json {
        show::json(&json!({ "steps": steps, "dry_run": args.dry_run, "warnings": warnings }))?;
    } else {
        for step in &steps {
            show::line(words(step, args.dry_run))?;
        }
        for warning in &warnings {
            show::wrapped(format!("warning: {warning}"))?;
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
    let ends = step.ends.as_ref().map(|TunnelEnds { from, vips, .. }| {
        let from = match from.is_empty() {
            true => "anybody".to_owned(),
            false => list(from),
        };
        format!(", from {from}, for {}", list(vips))
    });
    let ends = ends.unwrap_or_default();
    format!(
        "{} {}{ends}{value}: {outcome}{packets}",
        step.kind, step.name
    )
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    let all: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    all.join(", ")
}

/// What lets in more than the balancers send, and what less.
fn warnings(step: &Step) -> Vec<String> {
    let Some(ends) = &step.ends else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    if ends.from.is_empty() {
        warnings.push(format!(
            "{}: anybody who reaches this host can send it encapsulated packets with any client's address, past the balancer's firewall; name the balancers: --from ADDR,ADDR",
            step.name
        ));
    }
    if ends.is_strict {
        warnings.push(format!(
            "{}: the kernel drops packets of clients to whom routes lead by another interface, and counts them nowhere here: rp_filter is 1; set net.ipv4.conf.all.rp_filter or that of the interface to 2",
            step.name
        ));
    }
    warnings
}

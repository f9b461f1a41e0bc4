//! `weir import`: turns other programs' configuration into weir's, as text on
//! standard output. Nothing is installed, and nobody is banned.

mod fail2ban;
mod ipt_geofence;
mod jsonc;
mod ports;

use std::{fs, io::Read, path::PathBuf};

use anyhow::{Context, bail};

use super::{ExitAnswer, show};

/// Another program's configuration
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Say what the jails of a Fail2ban configuration become
    ///
    /// Prints a weir.toml that runs the enabled jails as they are, with a comment for
    /// each of them, and for each setting that is not honoured, with file and line.
    /// Exit code 1 if a jail cannot be run.
    Fail2ban {
        /// The directory with Fail2ban's jail.conf
        #[arg(default_value = weir_daemon::fail2ban::DEFAULT_PATH)]
        path: PathBuf,
        /// Print what becomes of the jails, and no weir.toml
        #[arg(long)]
        dry_run: bool,
    },
    /// Turn ipt_geofence's config.json into weir.toml
    ///
    /// Prints the sections that do the same, with a comment for each thing that
    /// changes, is asked back, or is not carried over. Look through it, write
    /// it to /etc/weir/weir.toml, and `weir check` it.
    ///
    /// With --bans, FILE is the dump of banned addresses (an address, a tab and
    /// the number of its offences per line), and a `weir ban` command is
    /// printed for each: weir import ipt_geofence --bans FILE | sh
    #[command(name = "ipt_geofence")]
    IptGeofence(Args),
}

#[derive(clap::Args)]
pub struct Args {
    /// The config.json, or the dump of bans
    file: PathBuf,
    /// FILE is the dump of banned addresses
    #[arg(long)]
    bans: bool,
    /// Where the token of Telegram and the key of ZeroMQ will be
    #[arg(long, value_name = "DIR", default_value = "/etc/weir")]
    secrets: PathBuf,
}

/// Nobody's configuration is larger; a dump of a million bans is not.
const MAX_FILE: u64 = 64 << 20;

pub fn run(verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let args = match verb {
        Verb::Fail2ban { path, dry_run } => return fail2ban::run(path, *dry_run),
        Verb::IptGeofence(args) => args,
    };
    let name = args.file.display();
    let mut text = String::new();
    fs::File::open(&args.file)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .with_context(|| format!("reading {name}"))?;
    if text.len() as u64 > MAX_FILE {
        bail!("{name} has more than {MAX_FILE} bytes");
    }
    let printed = match args.bans {
        true => ipt_geofence::bans(&text),
        false => ipt_geofence::configuration(&text, &args.secrets)
            .with_context(|| format!("reading {name}"))?,
    };
    for line in printed.lines() {
        show::line(line)?;
    }
    Ok(ExitAnswer::Done)
}

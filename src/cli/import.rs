//! `weir import`: turns other programs' configuration into weir's, as text on
//! standard output. Nothing is installed, and nobody is banned, but by `--bans` for
//! Fail2ban's.

mod fail2ban;

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use weir_import::{daf, ipt_geofence, opensnitch, pen};

use super::{Common, ExitAnswer, show};

/// Turn another program's configuration into weir's
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Say what the jails of a Fail2ban configuration become
    ///
    /// Prints a weir.toml that runs the enabled jails as they are, with a comment for
    /// each of them, and for each setting that is not honoured, with file and line.
    /// Exit code 1 if a jail cannot be run.
    Fail2ban {
        /// The directory with Fail2ban's jail.conf [default: /etc/fail2ban]; with --bans the
        /// database [default: where Fail2ban's configuration says]
        path: Option<PathBuf>,
        /// Print what becomes of the jails, and no weir.toml
        #[arg(long, conflicts_with = "bans")]
        dry_run: bool,
        /// Have the daemon take over the bans in Fail2ban's database, with their ends,
        /// and how often each address was banned
        #[arg(long)]
        bans: bool,
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
    /// Turn Pen's command line or its file of commands into weir.toml
    ///
    /// Prints [balance], [pool.pen] and [tarpit], with a comment for each thing
    /// that changes, is asked back, or is not carried over, and the word or
    /// line where it was typed. Files that -F and include name are read. Exit code 1 if
    /// the pool has to be completed and is printed as a comment, 2 if nothing makes one.
    ///
    /// weir import pen 'pen -df -O "dsr_if eth1" 192.0.2.10:80 192.0.2.2 192.0.2.3'
    Pen(PenArgs),
    /// Turn DAF's rules, as commands of ctl-fw, into weir.toml
    ///
    /// Prints [app] and [app.rules.NAME] for a file of commands, one a line, with a
    /// comment for each line that is not read. A rule of which a part cannot be
    /// honoured is printed as a comment, because it would hold for more than it did.
    Daf {
        /// The commands, as in the script that sets the rules up
        file: PathBuf,
    },
    /// Turn OpenSnitch's rules into weir.toml
    ///
    /// Prints [app] and [app.rules.NAME] for a directory of rules, a JSON file each,
    /// in the order in which OpenSnitch lets them decide. A rule of which a part
    /// cannot be honoured is printed as a comment with file and line.
    #[command(name = "opensnitch")]
    OpenSnitch {
        /// The directory of rules, or one rule
        #[arg(default_value = "/etc/opensnitchd/rules")]
        path: PathBuf,
    },
}

#[derive(clap::Args)]
pub struct PenArgs {
    /// The command line as one word, or a file as -F names it
    #[arg(value_name = "COMMAND LINE|FILE")]
    typed: String,
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

/// The longest file that is read, in bytes: no configuration is longer, nor is a dump of a
/// million bans.
const MAX_FILE: u64 = 64 << 20;

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let mut is_whole = true;
    let printed = match verb {
        Verb::Fail2ban {
            path, bans: true, ..
        } => return fail2ban::take_over_bans(common, path.as_deref()),
        Verb::Fail2ban { path, dry_run, .. } => {
            let usual = || PathBuf::from(weir_daemon::fail2ban::DEFAULT_PATH);
            return fail2ban::run(&path.clone().unwrap_or_else(usual), *dry_run);
        }
        Verb::IptGeofence(args) => from_ipt_geofence(args)?,
        Verb::Pen(args) => {
            let pen::Imported { text, incomplete } = from_pen(&args.typed)?;
            if let Some(why) = incomplete {
                is_whole = false;
                super::complain(&anyhow!("[pool.pen] is printed as a comment: {why}"));
            }
            text
        }
        Verb::Daf { file } => daf::configuration(&file.display().to_string(), &read(file)?)
            .with_context(|| format!("reading {}", file.display()))?,
        Verb::OpenSnitch { path } => from_opensnitch(path)?,
    };
    for line in printed.lines() {
        show::line(line)?;
    }
    Ok(match is_whole {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

fn from_ipt_geofence(args: &Args) -> anyhow::Result<String> {
    let text = read(&args.file)?;
    Ok(match args.bans {
        true => ipt_geofence::bans(&text),
        false => ipt_geofence::configuration(&text, &args.secrets)
            .with_context(|| format!("reading {}", args.file.display()))?,
    })
}

fn from_pen(typed: &str) -> anyhow::Result<pen::Imported> {
    let named = |name: &str| read(Path::new(name)).map_err(|error| format!("{error:#}"));
    let file = Path::new(typed);
    if file.is_file() {
        return pen::file(typed, &read(file)?, &named).with_context(|| format!("reading {typed}"));
    }
    if !typed.contains(char::is_whitespace) {
        bail!("{typed} is no file, and no command line of Pen's: it takes more than a word");
    }
    pen::command_line(typed, &named).context("reading the command line")
}

fn from_opensnitch(path: &Path) -> anyhow::Result<String> {
    /// More than weir has room for: the importer says so.
    const MAX_FILES: usize = 2000;
    let mut files = Vec::new();
    if path.is_dir() {
        let named = || format!("reading {}", path.display());
        for entry in fs::read_dir(path).with_context(named)? {
            let file = entry.with_context(named)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                files.push(file);
            }
            if files.len() >= MAX_FILES {
                break;
            }
        }
    } else {
        files.push(path.to_owned());
    }
    files.sort();
    let rules = files
        .iter()
        .map(|file| Ok((file.display().to_string(), read(file)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    opensnitch::configuration(&rules).with_context(|| format!("reading {}", path.display()))
}

fn read(file: &Path) -> anyhow::Result<String> {
    let name = file.display();
    let mut text = String::new();
    fs::File::open(file)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .with_context(|| format!("reading {name}"))?;
    if text.len() as u64 > MAX_FILE {
        bail!("{name} has more than {MAX_FILE} bytes");
    }
    Ok(text)
}

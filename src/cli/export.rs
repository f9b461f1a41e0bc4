//! `weir export`: the way back to another program.

use std::path::PathBuf;

use anyhow::Context;
use weir_daemon::fail2ban_state::{self, StoredBan};

use super::{Common, ExitAnswer, show};

/// Write state for another program to go on with
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Write the bans of all jails into Fail2ban's database
    ///
    /// Fail2ban restores them when it starts. It must not run meanwhile. A database
    /// that is there keeps what else it has; none is made anew with a directory.
    Fail2ban {
        /// The database of Fail2ban to write
        #[arg(default_value = "/var/lib/fail2ban/fail2ban.sqlite3")]
        file: PathBuf,
    },
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let Verb::Fail2ban { file } = verb;
    let answer = common.client().get("/v1/fail2ban/bans")?.ok()?;
    let bans: Vec<StoredBan> =
        serde_json::from_value(answer).context("reading the daemon's answer")?;
    fail2ban_state::write(file, &bans).with_context(|| format!("writing {}", file.display()))?;
    show::line(format!("{} bans written to {}", bans.len(), file.display()))?;
    Ok(ExitAnswer::Done)
}

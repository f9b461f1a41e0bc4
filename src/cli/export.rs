//! `weir export`: the way back to another program.

use std::path::PathBuf;

use anyhow::{Context, bail};
use weir_daemon::{
    escape,
    fail2ban_state::{self, StoredBan},
    file_users::other_user_of,
};

use super::{Common, ExitAnswer, show};

/// Write state for another program to go on with
#[derive(clap::Subcommand)]
pub enum Verb {
    /// Write the bans of all jails into Fail2ban's database
    ///
    /// Fail2ban restores them when it starts. It must not run meanwhile: a database that
    /// another process has open is left alone. One that is there keeps what else it has;
    /// none is made anew with a directory.
    Fail2ban {
        /// The database of Fail2ban to write
        #[arg(default_value = "/var/lib/fail2ban/fail2ban.sqlite3")]
        file: PathBuf,
        /// Write although another process, such as a running Fail2ban, has it open
        #[arg(long)]
        force: bool,
    },
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let Verb::Fail2ban { file, force } = verb;
    if let Some(user) = other_user_of(file).filter(|_| !force) {
        bail!(
            "{} is open in {} (pid {}): a Fail2ban that runs does not read what is written there; stop it first (systemctl stop fail2ban), or write all the same with --force",
            file.display(),
            escape(&user.name),
            user.pid
        );
    }
    let answer = common.client().get("/v1/fail2ban/bans")?.ok()?;
    let bans: Vec<StoredBan> =
        serde_json::from_value(answer).context("reading the daemon's answer")?;
    fail2ban_state::write(file, &bans).with_context(|| format!("writing {}", file.display()))?;
    let bans = weir_daemon::counted(bans.len() as u64, "ban", "bans");
    show::line(format!("{bans} written to {}", file.display()))?;
    Ok(ExitAnswer::Done)
}

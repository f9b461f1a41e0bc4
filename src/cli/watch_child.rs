//! `weir watch-child`: what the daemon starts for each watch, see
//! `weir_daemon::command::child`. Nobody else has a use for it.

use std::ffi::OsString;

use super::ExitAnswer;

/// Run the command of a watch: the daemon's own use
#[derive(clap::Args)]
pub struct Args {
    /// Keep the rights of the daemon
    #[arg(long)]
    as_daemon: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    // The command's own exit code, for the daemon to tell.
    std::process::exit(
        weir_daemon::command::child::supervise(&args.command, args.as_daemon)?.into(),
    )
}

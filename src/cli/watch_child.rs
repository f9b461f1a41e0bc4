//! `weir watch-child`: what the daemon starts for each watch, see
//! `weir_daemon::command::supervisor`. Nobody else has a use for it.

use std::{ffi::OsString, time::Duration};

use weir_daemon::command::supervisor::supervise;

use super::ExitAnswer;

/// Run the command of a watch: the daemon's own use
#[derive(clap::Args)]
pub struct Args {
    /// Keep the rights of the daemon
    #[arg(long)]
    as_daemon: bool,
    /// What the command leaves behind may go on for so many milliseconds since its start
    #[arg(long, default_value_t = 0)]
    leave_ms: u64,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<ExitAnswer> {
    let leave = Duration::from_millis(args.leave_ms);
    // The command's own exit code, for the daemon to tell.
    std::process::exit(supervise(&args.command, args.as_daemon, leave)?.into())
}

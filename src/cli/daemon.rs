//! `weir daemon`

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use super::{Answer, Common};

/// Run the daemon in the foreground
///
/// Reads the logs of the enabled jails, bans, and answers on the control
/// socket. SIGHUP reloads the configuration; SIGTERM ends the daemon, and what
/// is banned stays banned in the kernel (see `weir detach`). Messages go to
/// standard error; WEIR_LOG=debug shows more.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(common: &Common, _: &Args) -> anyhow::Result<Answer> {
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // The journal has its own time stamps.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    weir_daemon::wiring::run(&common.config)?;
    Ok(Answer::Done)
}

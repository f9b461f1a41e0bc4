//! `weir events`

use std::io::Write;

use super::{Common, ExitAnswer};

/// Stream events as JSON lines
///
/// Findings, bans and their ends, drops (rate-limited), changes of the allow list,
/// of pools and of virtual routers, programs, alerts, and start and stop of the
/// daemon, as they happen, until interrupted.
#[derive(clap::Args)]
pub struct Args {
    /// Follow the events (the default; for scripts that say so)
    #[arg(long)]
    follow: bool,
    /// These are JSON lines already
    #[arg(long, hide = true)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    // There is no other way yet to read events than to follow them.
    let _ = (args.follow, args.json);
    let mut out = std::io::stdout();
    common.client().stream("/v1/events", &mut |data| {
        // The daemon has escaped what could steer a terminal.
        out.write_all(data)?;
        out.flush()?;
        Ok(())
    })?;
    Ok(ExitAnswer::Done)
}

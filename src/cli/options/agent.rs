//! `weir options agent`

use std::io;

use super::super::ExitAnswer;

/// Serve weir options probe at a site, over standard input and output
///
/// weir options probe starts it, in a network namespace or by ssh. It sends the
/// packets that it is given, keeps those that arrive, and ends with its input.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> anyhow::Result<ExitAnswer> {
    weir_option_probe::agent::serve(&mut io::stdin().lock(), &mut io::stdout().lock())?;
    Ok(ExitAnswer::Done)
}

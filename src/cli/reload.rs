//! `weir reload`

use super::{Common, ExitAnswer, show};

/// Reload the configuration, all of it or nothing
///
/// A mistake in the file is named, exit code 2, and the old configuration stays
/// in force.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(common: &Common, _: &Args) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().reload()?;
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        show::line(format!("warning: {}", show::text(warning)))?;
    }
    show::line("reloaded")?;
    Ok(ExitAnswer::Done)
}

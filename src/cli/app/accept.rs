//! `weir app accept`: a rule by path is about the file that is there now.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use weir_daemon::identity::PackageRecord;

use super::digest;
use crate::cli::{Common, ExitAnswer, show};

/// Have the rules by a path be about the file that is there now
///
/// With packages = "follow" in [app] a rule by path stays with the file that it was about,
/// unless dpkg or rpm has the new one on record. This takes the new one as it is, whoever has
/// put it there: find out first. The alert app:replaced names such files.
#[derive(clap::Args)]
pub struct Args {
    /// The path, as the rule has it
    path: PathBuf,
    /// Print what it stands for as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let path = std::path::absolute(&args.path)?;
    let text = path.to_str().context("the path is no text")?;
    let body = json!({ "path": text });
    let answer = common.client().post("/v1/app/pins", &body)?.ok()?;
    if args.json {
        show::json(&answer["accepted"])?;
        return Ok(ExitAnswer::Done);
    }
    show::line(format!(
        "{} is accepted: SHA-256 {}",
        weir_daemon::escape(text),
        digest(&answer["accepted"]["digest"])
    ))?;
    show::line(PackageRecord::of(&path).words())?;
    Ok(ExitAnswer::Done)
}

//! `weir detach`

use std::path::PathBuf;

use serde_json::json;
use weir_daemon::config;
use weir_enforce::{kernel, switch};

use super::{Answer, Common, show};

/// Take everything of weir out of the kernel
///
/// Programs, tables and pins of one instance go; nothing is dropped any more.
/// The daemon must be stopped before. Its database stays, so that a later
/// start restores the bans.
#[derive(clap::Args)]
pub struct Args {
    /// The instance [default: the configuration's]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// The bpffs directory of all instances [default: the configuration's]
    #[arg(long, value_name = "DIR")]
    pin_root: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    // Works with a broken configuration as well: this is the way out.
    let configured = config::Config::load(&common.config)
        .map(|c| (c.enforcement.pin_root, c.enforcement.instance))
        .unwrap_or_else(|_| (kernel::DEFAULT_ROOT.into(), "default".to_owned()));
    let pin_root = args.pin_root.clone().unwrap_or(configured.0);
    let instance = args.instance.clone().unwrap_or(configured.1);
    let detached = switch::detach(&pin_root, &instance)?;
    if args.json {
        show::json(&json!({ "instance": instance, "detached": detached }))?;
    } else if detached.is_empty() {
        show::line(format!("instance {instance:?}: nothing was attached"))?;
    } else {
        show::line(format!("detached from {}", detached.join(", ")))?;
    }
    Ok(Answer::Done)
}

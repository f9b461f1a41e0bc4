//! `weir detach`

use std::path::PathBuf;

use anyhow::Context;
use serde_json::json;
use weir_daemon::{
    config,
    instance::{InstanceError, lock},
    vips,
};
use weir_enforce::{backend_swap, kernel};

use super::{Common, ExitAnswer, show};

/// Remove all weir programs, maps and pins of an instance
///
/// Afterwards nothing is dropped any more; rules of nft and ipset go as well, and
/// virtual addresses that weir has added to interfaces.
/// The daemon must be stopped before. Its database stays, so that a later
/// start restores the bans. Exit code 1: the configuration's instance had
/// nothing there, but others have.
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

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    anyhow::ensure!(
        weir_daemon::instance::may_detach(),
        "cannot detach: it needs root (CAP_NET_ADMIN and CAP_BPF)"
    );
    let (pin_root, instance, state_dir) = place(common, args)?;
    // A daemon that drops nothing has no claim to the instance; what it has in the kernel for [app]
    // and [token] goes all the same, and it would not notice.
    let _alone = match state_dir.as_deref().filter(|dir| dir.exists()).map(lock) {
        Some(Err(InstanceError::Busy { owner, .. })) => anyhow::bail!(
            "cannot detach the instance {instance:?}: another weir daemon holds this instance ({instance:?}, {owner}): stop it first"
        ),
        // A disk that fails keeps nobody from the way out.
        lock => lock.and_then(Result::ok).flatten(),
    };
    let detached = backend_swap::detach(&pin_root, &instance)
        .with_context(|| format!("cannot detach the instance {instance:?}"))?;
    let vips = match &state_dir {
        Some(dir) => {
            vips::take_away(dir).context("cannot take virtual addresses from their interfaces")?
        }
        None => Vec::new(),
    };
    let vips: Vec<_> = vips
        .into_iter()
        .map(|(interface, address)| format!("{address} from {interface}"))
        .collect();
    let others = match detached.is_empty() {
        true => backend_swap::instances(&pin_root),
        false => Vec::new(),
    };
    if args.json {
        show::json(
            &json!({ "instance": instance, "detached": detached, "vips": vips, "others": others }),
        )?;
    } else if !detached.is_empty() {
        show::line(format!("detached from {}", detached.join(", ")))?;
    } else {
        show::line(format!("instance {instance:?}: nothing was attached"))?;
    }
    if !vips.is_empty() && !args.json {
        show::line(format!("took away {}", vips.join(", ")))?;
    }
    if !others.is_empty() && !args.json {
        show::line(format!(
            "in the kernel are other instances: {} (weir detach --instance NAME)",
            others.join(", ")
        ))?;
    }
    // Who did not name it may have meant another.
    Ok(match others.is_empty() || args.instance.is_some() {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// Works with a mistake in the configuration as well, for this is the way out;
/// but what cannot be read names no instance, and none is guessed.
/// (The state directory is that of the configuration's own instance.)
fn place(common: &Common, args: &Args) -> anyhow::Result<(PathBuf, String, Option<PathBuf>)> {
    let configured = match config::places_of(&common.config) {
        Ok(places) => places,
        Err(error) => {
            let nowhere = || PathBuf::from(kernel::DEFAULT_ROOT);
            let Some(instance) = args.instance.clone() else {
                anyhow::bail!(
                    "{error}: it does not say which instance; weir detach --instance NAME does"
                );
            };
            let pin_root = args.pin_root.clone().unwrap_or_else(nowhere);
            return Ok((pin_root, instance, None));
        }
    };
    let instance = args.instance.clone();
    let instance = instance.unwrap_or_else(|| configured.instance.clone());
    let is_own = instance == configured.instance;
    Ok((
        args.pin_root.clone().unwrap_or(configured.pin_root),
        instance,
        is_own.then_some(configured.state_dir),
    ))
}

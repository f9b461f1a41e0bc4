//! `weir token`

mod daf;
mod verify;
mod why;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use jiff::Timestamp;
use serde_json::json;
use weir_daemon::{
    config::Config,
    token::{KeyStatus, keys},
};
use weir_token::{KeyId, config::DEFAULT_KEYS};

use super::{Common, ExitAnswer, show};

/// Make and retire the keys of tokens, verify a capture, say why tokens were refused
///
/// Hosts that prove to each other which program began a connection have the
/// same keys. A key is copied between them as a file (scp -p); its secret is
/// printed nowhere.
#[derive(Subcommand)]
pub enum Verb {
    /// The keys that hosts share
    #[command(subcommand)]
    Key(KeyVerb),
    /// Say which connections and datagrams of a capture proved whose they are, or why not
    ///
    /// Of a connection whose scope is the payload it says how many segments have a right token,
    /// and which have not, and why.
    ///
    /// Exit code 0: each connection, segment and datagram is proved; 1: one is not, or there is
    /// none; 2: the file is cut or wrong, after what was read of it is shown.
    Verify(verify::VerifyArgs),
    /// Show the packets that were refused last, by whom and why; exit code 1 if there is none
    ///
    /// The kernel keeps the last 64 of each reason, also while no daemon runs.
    Why(why::WhyArgs),
}

#[derive(Subcommand)]
pub enum KeyVerb {
    /// Make a key and print where it is
    ///
    /// It is accepted from the next start or reload on. Give all hosts the
    /// time to get it before it signs.
    New {
        /// When it begins to sign, such as 2026-11-26T08:00:00Z: later than the key did that
        /// signs now [default: now]
        #[arg(long, value_name = "TIME", value_parser = moment)]
        sign_from: Option<Timestamp>,
        #[command(flatten)]
        place: Place,
    },
    /// List the keys, without their secrets; exit code 1 if there is none
    List {
        #[command(flatten)]
        place: Place,
    },
    /// End a key: its secret is deleted, and its tokens are refused from the next reload on
    Retire {
        /// The key's id
        id: KeyId,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(clap::Args)]
pub struct Place {
    /// The directory of the keys [default: the configuration's, else /etc/weir/token-keys]
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Place {
    fn directory(&self, common: &Common) -> PathBuf {
        let configured = || {
            let config = Config::load(&common.config).ok()?;
            Some(config.token?.keys)
        };
        let named = self.keys.clone().or_else(configured);
        named.unwrap_or_else(|| DEFAULT_KEYS.into())
    }
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let verb = match verb {
        Verb::Key(verb) => verb,
        Verb::Verify(args) => return verify::run(common, args),
        Verb::Why(args) => return why::run(common, args),
    };
    match verb {
        KeyVerb::New { sign_from, place } => new(&place.directory(common), *sign_from, place.json),
        KeyVerb::List { place } => list(&place.directory(common), place.json),
        KeyVerb::Retire { id, place } => retire(&place.directory(common), *id, place.json),
    }
}

/// Shows the packets that were refused last, from this address or from all: `weir why --token`.
pub fn why_refused(
    common: &Common,
    address: Option<&str>,
    is_json: bool,
) -> anyhow::Result<ExitAnswer> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            anyhow::anyhow!(
                "{text:?} is no address; with --token one address is allowed, and no prefix"
            )
        })
    };
    let address = address.map(parse).transpose()?;
    why::run(common, &why::WhyArgs::of(address, is_json))
}

/// A time with its zone.
fn moment(text: &str) -> Result<Timestamp, &'static str> {
    let told = "allowed: a date and a time with its zone, such as 2026-11-26T08:00:00Z or 2026-11-26T09:00:00+01:00";
    text.parse().map_err(|_| told)
}

fn new(dir: &Path, sign_from: Option<Timestamp>, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let now = Timestamp::now();
    let now = now.round(jiff::Unit::Second).unwrap_or(now);
    let key = keys::make(dir, sign_from.unwrap_or(now))?;
    let path = dir.join(format!("{}.key", key.id));
    if is_json {
        show::json(&json!({ "id": key.id, "file": path, "sign_from": key.sign_from }))?;
    } else {
        show::line(format!(
            "key {}: {}, signs from {}",
            key.id,
            path.display(),
            show::moment(&key.sign_from.to_string())
        ))?;
        show::line(
            "copy it to the other hosts (scp -p), and have weir read it on all of them: weir reload",
        )?;
    }
    Ok(ExitAnswer::Done)
}

fn list(dir: &Path, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let ring = keys::read(dir)?;
    let now = Timestamp::now();
    let keys: Vec<_> = ring
        .keys()
        .iter()
        .map(|key| KeyStatus::of(key, &ring, now))
        .collect();
    if is_json {
        show::json(&serde_json::to_value(&keys)?)?;
    } else if keys.is_empty() {
        show::line(format!("there is no key in {}", dir.display()))?;
    } else {
        let rows: Vec<_> = keys
            .iter()
            .map(|key| {
                vec![
                    key.id.to_string(),
                    key.r#use.to_owned(),
                    key.fingerprint.clone().unwrap_or_else(|| "-".to_owned()),
                    show::moment(&key.created.to_string()),
                    show::moment(&key.sign_from.to_string()),
                ]
            })
            .collect();
        show::table(&["ID", "USE", "FINGERPRINT", "MADE", "SIGNS FROM"], &rows)?;
    }
    Ok(match keys.is_empty() {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

fn retire(dir: &Path, id: KeyId, is_json: bool) -> anyhow::Result<ExitAnswer> {
    keys::retire(dir, id)?;
    if is_json {
        show::json(&json!({ "id": id, "use": "retired" }))?;
    } else {
        show::line(format!(
            "key {id} is retired here: weir reload, and the same on the other hosts; tokens of those that still sign with it are refused from then on"
        ))?;
    }
    Ok(ExitAnswer::Done)
}

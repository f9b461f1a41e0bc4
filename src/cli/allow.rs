//! `weir allow`

use clap::Subcommand;
use serde_json::json;

use super::{
    Common, ExitAnswer,
    client::{Reply, quote},
    show,
};

/// Exempt addresses from every ban
#[derive(Subcommand)]
pub enum Verb {
    /// Allow an address or prefix from now on; it wins over every ban
    Add {
        /// An address or prefix
        prefix: String,
        /// Why, for those who ask later
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
        /// Allow also what is wider than IPv4 /8 or IPv6 /16; an alert lasts as long as it is
        #[arg(long)]
        force: bool,
    },
    /// Take back what `allow add` did; exit code 1 if it was not there
    #[command(visible_alias = "remove")]
    Del {
        /// The address or prefix as it was added
        prefix: String,
    },
    /// List all exempt prefixes with the reason of each
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    match verb {
        Verb::Add {
            prefix,
            note,
            force,
        } => {
            let mut request = json!({ "prefix": prefix, "note": note });
            if *force {
                request["force"] = true.into();
            }
            let answer = client.post("/v1/allow", &request)?.ok()?;
            show::warning(&answer);
            show::line(format!("{} is allowed", show::text(&answer["prefix"])))?;
        }
        Verb::Del { prefix } => match client.delete(&format!("/v1/allow/{}", quote(prefix)))? {
            Reply::Ok(answer) => {
                show::warning(&answer);
                show::line(format!(
                    "{} is no longer allowed",
                    show::text(&answer["prefix"])
                ))?;
            }
            Reply::NotFound(why) => {
                show::line(weir_daemon::escape(&why))?;
                return Ok(ExitAnswer::No);
            }
        },
        Verb::List { json } => {
            let answer = client.get("/v1/allow")?.ok()?;
            if *json {
                show::json(&answer)?;
                return Ok(ExitAnswer::Done);
            }
            let rows: Vec<_> = answer["allow"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|e| vec![show::text(&e["prefix"]), show::text(&e["reason"])])
                .collect();
            show::table(&["PREFIX", "REASON"], &rows)?;
        }
    }
    Ok(ExitAnswer::Done)
}

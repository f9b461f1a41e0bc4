//! `weir unban`

use super::{
    Answer, Common,
    client::{Reply, quote},
    show,
};

/// Lift the bans of an address or prefix
///
/// Exit code 1 if it was not banned.
#[derive(clap::Args)]
pub struct Args {
    /// The address or prefix as it was banned
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    subject: Option<String>,
    /// Lift every ban
    #[arg(long)]
    all: bool,
    /// Only the ban of this jail
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    jail: Option<String>,
    /// Only the ban of exactly these ports
    #[arg(long, value_name = "PORTS", conflicts_with = "all")]
    port: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let client = common.client();
    let path = match &args.subject {
        None => "/v1/bans".to_owned(),
        Some(subject) => {
            let mut query = Vec::new();
            if let Some(jail) = &args.jail {
                query.push(format!("producer=jail:{}", quote(jail)));
            }
            if let Some(port) = &args.port {
                query.push(format!("port={}", quote(port)));
            }
            format!("/v1/bans/{}?{}", quote(subject), query.join("&"))
        }
    };
    match client.delete(&path)? {
        Reply::Ok(answer) => {
            show::warning(&answer);
            if args.json {
                show::json(&answer)?;
            } else {
                let lifted = answer["lifted"].as_u64().unwrap_or(0);
                let bans = if lifted == 1 { "ban" } else { "bans" };
                show::line(format!("{lifted} {bans} lifted"))?;
            }
            Ok(Answer::Done)
        }
        Reply::NotFound(why) => {
            if args.json {
                show::json(&serde_json::json!({ "lifted": 0, "error": why }))?;
            } else {
                show::line(weir_daemon::escape(&why))?;
            }
            Ok(Answer::No)
        }
    }
}

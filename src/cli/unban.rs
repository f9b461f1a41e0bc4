//! `weir unban`

use serde_json::{Value, json};

use super::{
    Common, ExitAnswer,
    client::{self, Client, Reply, quote},
    complain, show, targets,
};

/// Lift the bans of addresses and prefixes
///
/// Says what denies one of them still: a wider ban, a list, the geofence. Exit
/// code 1 if one of them was not banned, 2 if one is no address, or if there is
/// no such jail.
#[derive(clap::Args)]
pub struct Args {
    /// Addresses or prefixes as they were banned; - reads them from standard
    /// input, one a line
    #[arg(
        required_unless_present = "all",
        conflicts_with = "all",
        value_name = "SUBJECT"
    )]
    subjects: Vec<String>,
    /// Lift every ban, with --jail every one of that jail
    #[arg(long)]
    all: bool,
    /// Only the bans of this jail
    #[arg(long, value_name = "NAME")]
    jail: Option<String>,
    /// Only the ban of exactly these ports
    #[arg(long, value_name = "PORTS", conflicts_with = "all")]
    port: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The path of a request, for one subject or for all.
    fn path(&self, subject: Option<&str>) -> String {
        let mut query = Vec::new();
        if let Some(jail) = &self.jail {
            query.push(format!("producer=jail:{}", quote(jail)));
        }
        if let Some(port) = &self.port {
            query.push(format!("port={}", quote(port)));
        }
        let subject = subject.map_or_else(String::new, |s| format!("/{}", quote(s)));
        format!("/v1/bans{subject}?{}", query.join("&"))
    }

    /// The daemon's answer, or why there was nothing to lift.
    fn unban(
        &self,
        client: &Client,
        subject: Option<&str>,
    ) -> anyhow::Result<Result<Value, String>> {
        let reply = client.delete(&self.path(subject))?;
        Ok(match reply {
            Reply::Ok(answer) => {
                show::warning(&answer);
                Ok(answer)
            }
            Reply::NotFound(why) if subject.is_some() => Err(why),
            Reply::NotFound(why) => anyhow::bail!(why),
        })
    }
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    let subjects = match args.all {
        true => vec![None],
        false => targets::read(&args.subjects)?
            .into_iter()
            .map(Some)
            .collect(),
    };
    let (mut lifted, mut still) = (0, Vec::new());
    let (mut errors, mut mistaken) = (Vec::new(), false);
    for subject in subjects {
        match args.unban(&client, subject.as_deref()) {
            Ok(Ok(answer)) => {
                lifted += answer["lifted"].as_u64().unwrap_or(0);
                still.extend(answer["still"].as_str().map(str::to_owned));
            }
            Ok(Err(why)) => {
                if !args.json {
                    show::line(weir_daemon::escape(&why))?;
                }
                errors.push(why);
            }
            Err(error) if !client::is_answer(&error) => return Err(error),
            // What is no address keeps nobody else from being free.
            Err(error) => {
                complain(&error);
                errors.push(error.to_string());
                mistaken = true;
            }
        }
    }
    let is_done = errors.is_empty();
    if args.json {
        let mut answer = json!({ "lifted": lifted });
        if !still.is_empty() {
            answer["still"] = json!(still);
        }
        if !is_done {
            answer["error"] = errors.join("; ").into();
        }
        show::json(&answer)?;
    } else if is_done || lifted > 0 {
        let bans = if lifted == 1 { "ban" } else { "bans" };
        show::line(format!("{lifted} {bans} lifted"))?;
        for why in still {
            show::line(weir_daemon::escape(&why))?;
        }
    }
    Ok(match (is_done, mistaken) {
        (true, _) => ExitAnswer::Done,
        (false, false) => ExitAnswer::No,
        (false, true) => ExitAnswer::Mistaken,
    })
}

//! `weir unban`

use serde_json::json;

use super::{
    Answer, Common,
    client::{self, Client, Reply, quote},
    complain, show, targets,
};

/// Lift the bans of addresses and prefixes
///
/// Exit code 1 if one of them was not banned, 2 if one is no address.
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

    /// How many bans were lifted, or why none.
    fn unban(&self, client: &Client, subject: Option<&str>) -> anyhow::Result<Result<u64, String>> {
        Ok(match client.delete(&self.path(subject))? {
            Reply::Ok(answer) => {
                show::warning(&answer);
                Ok(answer["lifted"].as_u64().unwrap_or(0))
            }
            Reply::NotFound(why) => Err(why),
        })
    }
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let client = common.client();
    let subjects = match args.all {
        true => vec![None],
        false => targets::read(&args.subjects)?
            .into_iter()
            .map(Some)
            .collect(),
    };
    let (mut lifted, mut errors, mut mistaken) = (0, Vec::new(), false);
    for subject in subjects {
        match args.unban(&client, subject.as_deref()) {
            Ok(Ok(count)) => lifted += count,
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
        if !is_done {
            answer["error"] = errors.join("; ").into();
        }
        show::json(&answer)?;
    } else if is_done || lifted > 0 {
        let bans = if lifted == 1 { "ban" } else { "bans" };
        show::line(format!("{lifted} {bans} lifted"))?;
    }
    Ok(match (is_done, mistaken) {
        (true, _) => Answer::Done,
        (false, false) => Answer::No,
        (false, true) => Answer::Mistaken,
    })
}

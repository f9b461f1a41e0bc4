//! `weir app learn`

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::{Common, ExitAnswer, show};

/// Record what programs do, to make rules of it
#[derive(Subcommand)]
pub enum Verb {
    /// Begin to record who connects to whom, and who listens; nothing is denied by that
    ///
    /// What was recorded before stays. It goes on over restarts of the daemon.
    Start {
        /// End by itself after this time, such as 1d
        #[arg(long = "for", value_name = "TIME")]
        length: Option<String>,
    },
    /// Record nothing more; what was recorded stays
    Stop,
    /// Say whether it is recorded; exit code 1 if it is not
    Status {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget all that was recorded
    Forget,
}

/// Learning in a line.
pub fn words(learning: &Value) -> String {
    let moment = |key: &str| learning[key].as_str().map(show::moment);
    let mut words = match (learning["is_on"] == true, moment("since")) {
        (true, Some(since)) => format!("learning since {since}"),
        (true, None) => "learning".to_owned(),
        (false, _) => "not learning".to_owned(),
    };
    if let Some(until) = moment("until") {
        words.push_str(&format!(" until {until}"));
    }
    words.push_str(&format!(
        ", {} recorded",
        show::counted(&learning["programs"], "program", "programs")
    ));
    if let Some(reviewed) = moment("reviewed") {
        words.push_str(&format!(", reviewed {reviewed}"));
    }
    for (key, what) in [
        ("forgotten", "programs forgotten for want of room"),
        (
            "unidentified",
            "connections of programs that were gone too soon",
        ),
    ] {
        if learning[key].as_u64().unwrap_or_default() > 0 {
            words.push_str(&format!(", {} {what}", learning[key]));
        }
    }
    words
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    let answer = match verb {
        Verb::Start { length } => client.post("/v1/app/learning", &json!({ "for": length }))?,
        Verb::Stop => client.delete("/v1/app/learning")?,
        Verb::Forget => client.delete("/v1/app/learned")?,
        Verb::Status { json } => {
            let answer = client.get("/v1/app")?.ok()?;
            let learning = &answer["app"]["learning"];
            match json {
                true => show::json(learning)?,
                false if learning.is_null() => {
                    show::line("there is no [app] in the configuration: nothing is recorded")?;
                }
                false => show::wrapped(words(learning))?,
            }
            return Ok(match learning["is_on"] == true {
                true => ExitAnswer::Done,
                false => ExitAnswer::No,
            });
        }
    };
    let answer = answer.ok()?;
    show::warning(&answer);
    show::wrapped(words(&answer["learning"]))?;
    Ok(ExitAnswer::Done)
}

//! `weir sink`

use clap::Subcommand;
use serde_json::Value;

use super::{Common, ExitAnswer, client, show};

/// Test an event sink
#[derive(Subcommand)]
pub enum Verb {
    /// Send a test event to a sink and print the result
    ///
    /// Exit code 1 if it was not delivered. What waits in the sink's queue is
    /// not touched.
    Test(Test),
}

#[derive(clap::Args)]
pub struct Test {
    /// The name of the sink
    name: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let Verb::Test(test) = verb;
    let path = format!(
        "/v1/sinks/{}/test",
        client::quote(&test.name).replace('/', "%2F")
    );
    let tried = common.client().post(&path, &Value::Null)?.ok()?;
    let delivered = tried["delivered"].as_bool().unwrap_or(false);
    if test.json {
        show::json(&tried)?;
    } else {
        let (sink, target) = (show::text(&tried["sink"]), show::text(&tried["target"]));
        show::line(match delivered {
            true => format!(
                "sink {sink}: {target} took the event in {} ms",
                tried["milliseconds"]
            ),
            false => format!(
                "sink {sink}: {target} did not get the event: {}",
                show::text(&tried["error"])
            ),
        })?;
    }
    Ok(match delivered {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

//! `weir ban`

use serde_json::{Value, json};

use super::{Common, ExitAnswer, client, complain, show, targets};

/// Ban addresses and prefixes
///
/// Each ban is on disk and in force when the command returns. Own addresses,
/// gateways, resolvers, peers of administrators' logins and the allow list cannot be
/// banned; inside a wider prefix they pass. One that cannot be banned does not
/// keep the others from it; exit code 2 then. A manual ban that is there already
/// on these ports gets the new end, and the new reason if there is one.
#[derive(clap::Args)]
pub struct Args {
    /// Addresses or prefixes, such as 192.0.2.7 or 2001:db8::/48; - reads them
    /// from standard input, one a line
    #[arg(required = true, value_name = "SUBJECT")]
    subjects: Vec<String>,
    /// How long, such as 90s, 10m, 1h, 7d; without it the ban is permanent
    #[arg(long = "for", value_name = "TIME")]
    length: Option<String>,
    /// Only these ports, such as 22/tcp or 80/tcp,443/tcp; without it all
    #[arg(long, value_name = "PORTS")]
    port: Option<String>,
    /// Answer its packets at once (TCP reset, ICMP unreachable) instead of
    /// dropping them without a word
    #[arg(long)]
    reject: bool,
    /// Why, for those who ask later
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print the ban as JSON; of several targets, a list of bans and one of
    /// those that were refused
    #[arg(long)]
    json: bool,
}

impl Args {
    fn ban(&self, client: &client::Client, subject: &str) -> anyhow::Result<Value> {
        let answer = client.post(
            "/v1/bans",
            &json!({
                "subject": subject,
                "for": self.length,
                "port": self.port,
                "action": self.reject.then_some("reject"),
                "reason": self.reason,
            }),
        )?;
        let answer = answer.ok()?;
        show::warning(&answer);
        if !self.json {
            let rejected = match answer["action"].as_str() {
                Some("reject") => " (reject)",
                _ => "",
            };
            show::line(format!(
                "{} banned{rejected}, {}, {}",
                show::text(&answer["subject"]),
                show::text(&answer["scope"]),
                show::end(&answer)
            ))?;
        }
        Ok(answer)
    }
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let client = common.client();
    if let [subject] = args.subjects.as_slice()
        && subject != "-"
    {
        let ban = args.ban(&client, subject)?;
        if args.json {
            show::json(&ban)?;
        }
        return Ok(ExitAnswer::Done);
    }
    let (mut bans, mut refused) = (Vec::new(), Vec::new());
    for subject in targets::read(&args.subjects)? {
        match args.ban(&client, &subject) {
            Ok(ban) => bans.push(ban),
            Err(error) if !client::is_answer(&error) => return Err(error),
            Err(error) => {
                complain(&error);
                refused.push(json!({ "subject": subject, "error": error.to_string() }));
            }
        }
    }
    let is_done = refused.is_empty();
    if args.json {
        show::json(&json!({ "bans": bans, "refused": refused }))?;
    }
    Ok(match is_done {
        true => ExitAnswer::Done,
        false => ExitAnswer::Mistaken,
    })
}

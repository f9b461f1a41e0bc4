//! `weir ban`

use serde_json::json;

use super::{Answer, Common, show};

/// Ban an address or prefix
///
/// The ban is on disk and in force when the command returns. Own addresses,
/// gateways, resolvers, peers of root's logins and the allow list cannot be
/// banned; inside a wider prefix they pass.
#[derive(clap::Args)]
pub struct Args {
    /// An address or prefix, such as 192.0.2.7 or 2001:db8::/48
    subject: String,
    /// How long, such as 90s, 10m, 1h, 7d; without it until lifted
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
    /// Print the ban as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let answer = common
        .client()
        .post(
            "/v1/bans",
            &json!({
                "subject": args.subject,
                "for": args.length,
                "port": args.port,
                "action": args.reject.then_some("reject"),
                "reason": args.reason,
            }),
        )?
        .ok()?;
    show::warning(&answer);
    if args.json {
        show::json(&answer)?;
    } else {
        show::line(format!(
            "{} banned{}, {}, {}",
            show::text(&answer["subject"]),
            show::rejected(&answer),
            show::text(&answer["scope"]),
            show::end(&answer)
        ))?;
    }
    Ok(Answer::Done)
}

//! `weir why`

use serde_json::Value;

use super::{Common, ExitAnswer, client::quote, show, token};

/// Say why an address is dropped; exit code 1 if it is not
///
/// Of a prefix, such as 192.0.2.0/24, it says whether a ban holds for all of it,
/// and how many bans there are of parts of it. Lists and geofence are not asked about
/// prefixes: exit code 1 says that no ban holds for all of it, not that it passes.
///
/// Shows its bans with reason, time and the log lines that led to them, what
/// exempts it, earlier bans, and failures that are still counted. With
/// backend = "dry-run" and with observe = true, which drop nothing, it says what
/// would be dropped, and so does the exit code: 0. Where weir should drop and
/// does not, as `weir status` says with NOT PROTECTED, the exit code is 1.
///
/// With --token it shows the packets whose token was refused, as `weir token why` does.
#[derive(clap::Args)]
pub struct Args {
    /// The address or prefix
    #[arg(required_unless_present = "token")]
    address: Option<String>,
    /// For packets to this port, such as 22 or 22/tcp
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// Show the packets that were refused last because of their tokens, from this address or all
    #[arg(long, conflicts_with = "port")]
    token: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let address = args.address.as_deref();
    if args.token {
        return token::why_refused(common, address, args.json);
    }
    let mut path = format!("/v1/why/{}", quote(address.unwrap_or_default()));
    if let Some(port) = &args.port {
        path.push_str(&format!("?port={}", quote(port)));
    }
    let answer = common.client().get(&path)?.ok()?;
    if args.json {
        show::json(&answer)?;
    } else {
        explain(&answer)?;
    }
    let as_configured = answer["protection"]["state"] == "observing";
    let is_denied = answer["dropped"] == true || (answer["would_drop"] == true && as_configured);
    Ok(match is_denied {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// On which ports packets are rejected, if it is not on all of them.
fn where_rejected(answer: &Value) -> String {
    let bans = answer["bans"].as_array().into_iter().flatten();
    let mut ports = Vec::new();
    for ban in bans.filter(|ban| ban["action"] == "reject") {
        match ban["scope"].as_str() {
            Some(scope) if scope != "all ports" => ports.push(show::text(&ban["scope"])),
            _ => return " on all ports".to_owned(),
        }
    }
    match ports.as_slice() {
        [] => String::new(),
        ports => format!(" on {}; other ports pass", ports.join(" ")),
    }
}

fn explain(answer: &Value) -> std::io::Result<()> {
    let address = show::text(&answer["address"]);
    let verdict = answer["verdict"].as_str().unwrap_or_default();
    let would_only = answer["would_drop"] == true && answer["dropped"] == false;
    let is = if would_only { "would be" } else { "is" };
    show::line(match verdict {
        "banned-all" => format!("{address} {is} dropped: banned on all ports"),
        "banned-scope" => format!("{address} {is} dropped on the ports below"),
        "rejected" => format!("{address} {is} rejected{}", where_rejected(answer)),
        "listed" | "fenced" | "observed" | "pool-denied" => {
            format!("{address} {is} dropped: see below")
        }
        "pass" | "other-port" if answer["bans_only"] == true => format!(
            "{address}: no ban holds for all of it{}; lists and geofence are not asked about prefixes",
            if verdict == "other-port" {
                " on this port"
            } else {
                ""
            }
        ),
        "allowed" => format!("{address} passes: denied, but exempt"),
        "other-port" => format!("{address} passes on this port: its bans cover other ports"),
        "pass"
            if answer["bans"]
                .as_array()
                .is_some_and(|bans| !bans.is_empty()) =>
        {
            format!("{address} passes: its bans only notify")
        }
        _ => format!("{address} passes: it is not banned"),
    })?;
    if would_only {
        let why = show::text(&answer["protection"]["why"]);
        show::line(format!("  but it passes: {why}"))?;
    }
    if let Some(reason) = answer["exempt"]["reason"].as_str() {
        show::line(format!(
            "  exempt: {}, {}",
            show::text(&answer["exempt"]["prefix"]),
            weir_daemon::escape(reason)
        ))?;
    }
    if !answer["holds_exempt"].is_null() {
        let inside = show::text(&answer["holds_exempt"]);
        show::line(format!(
            "  but not {inside} in it, which is exempt and passes"
        ))?;
    }
    if let Some(denied) = answer["denied"].as_str() {
        show::line(format!("  {}", weir_daemon::escape(denied)))?;
    }
    for pool in answer["pools"].as_array().into_iter().flatten() {
        let vips = pool["vips"].as_array().into_iter().flatten();
        let vips: Vec<_> = vips.map(show::text).collect();
        show::line(format!(
            "  pool {} at {}: {} ({})",
            show::text(&pool["pool"]),
            vips.join(", "),
            match pool["denied"] == true {
                true => "denied",
                false => "served",
            },
            show::text(&pool["rule"])
        ))?;
    }
    for list in answer["lists"].as_array().into_iter().flatten() {
        show::line(format!(
            "  on list {} ({}): {}, from {}",
            show::text(&list["list"]),
            show::text(&list["action"]),
            show::text(&list["prefix"]),
            show::text(&list["source"])
        ))?;
    }
    let place: Vec<_> = ["country", "continent", "asn"]
        .into_iter()
        .filter(|key| !answer["place"][key].is_null())
        .map(|key| format!("{key} {}", show::text(&answer["place"][key])))
        .collect();
    if !place.is_empty() {
        show::line(format!("  {}", place.join(", ")))?;
    }
    for ban in answer["bans"].as_array().into_iter().flatten() {
        let holds = match show::only_notifies(ban) {
            true => "that notifies only and drops nothing".to_owned(),
            false => format!("on {}", show::ports(ban)),
        };
        show::line(format!(
            "  ban of {} {holds}, {}, {}",
            show::text(&ban["subject"]),
            show::by(ban),
            show::end(ban)
        ))?;
        if let Some(since) = ban["since"].as_str() {
            show::line(format!("    since {}", show::moment(since)))?;
        }
        show::line(format!("    reason: {}", show::text(&ban["reason"])))?;
        for line in ban["evidence"].as_array().into_iter().flatten() {
            show::line(format!("    | {}", show::text(line)))?;
        }
    }
    if let Some(within) = answer["within"].as_u64() {
        let (bans, are) = if within == 1 {
            ("ban", "is")
        } else {
            ("bans", "are")
        };
        show::line(format!(
            "  there {are} {within} {bans} of parts of it (weir bans)"
        ))?;
    }
    for tracked in answer["tracked"].as_array().into_iter().flatten() {
        show::line(format!(
            "  jail {}: {} of {} counted",
            show::text(&tracked["jail"]),
            tracked["findings"],
            show::counted(&tracked["max_retry"], "failure", "failures")
        ))?;
    }
    let history = answer["history"].as_array().map_or(&[][..], Vec::as_slice);
    if !history.is_empty() {
        show::line("  last bans:")?;
    }
    for past in history {
        show::line(format!(
            "    {} {}, {}: {}",
            show::moment(past["since"].as_str().unwrap_or_default()),
            show::text(&past["subject"]),
            show::by(past),
            show::text(&past["reason"])
        ))?;
    }
    counters(&answer["counters"])
}

/// The packets of all sources, by exit; those that there were.
pub fn counters(counters: &Value) -> std::io::Result<()> {
    let seen: Vec<_> = counters
        .as_array()
        .into_iter()
        .flatten()
        .filter(|c| c["packets"].as_u64() > Some(0))
        .map(|c| format!("{} {}", show::text(&c["reason"]), c["packets"]))
        .collect();
    if !seen.is_empty() {
        show::line(format!("  packets, all sources: {}", seen.join(", ")))?;
    }
    Ok(())
}

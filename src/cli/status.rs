//! `weir status`

use std::time::Duration;

use serde_json::Value;
use weir_daemon::config::duration_text;

use super::{Answer, Common, show, why};

/// Show what the daemon does, or one jail
#[derive(clap::Args)]
pub struct Args {
    /// Only this jail
    jail: Option<String>,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let status = common.client().get("/v1/status")?.ok()?;
    let jails = status["jails"].as_array().cloned().unwrap_or_default();
    if let Some(name) = &args.jail {
        let Some(jail) = jails.iter().find(|jail| jail["name"] == **name) else {
            let names: Vec<_> = jails.iter().map(|jail| show::text(&jail["name"])).collect();
            anyhow::bail!(
                "there is no jail {name:?}; enabled are: {}",
                names.join(", ")
            );
        };
        if args.json {
            show::json(jail)?;
        } else {
            one_jail(jail)?;
        }
        return Ok(Answer::Done);
    }
    if args.json {
        show::json(&status)?;
    } else {
        all(&status, &jails)?;
    }
    Ok(Answer::Done)
}

fn all(status: &Value, jails: &[Value]) -> anyhow::Result<()> {
    let up = Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or(0));
    show::line(format!(
        "weir {} runs since {} (pid {}), {}",
        show::text(&status["version"]),
        duration_text(up),
        status["pid"],
        show::text(&status["config"])
    ))?;
    let observe = match status["observe"].as_bool() {
        Some(true) => ", observing only: nothing is dropped",
        _ => "",
    };
    let memory = match status["usage"]["map_bytes"].as_u64() {
        Some(bytes) => format!(", {} KiB of kernel memory", bytes / 1024),
        None => String::new(),
    };
    show::line(format!(
        "backend {}{observe}: {} of {} bans, {} of {} of wide prefixes, {} evicted{memory}; {}",
        show::text(&status["backend"]),
        status["usage"]["bans"],
        status["usage"]["max_bans"],
        status["usage"]["wide"],
        status["usage"]["max_wide"],
        status["usage"]["evicted"],
        show::text(&status["restored"])
    ))?;
    for attachment in status["attachments"].as_array().into_iter().flatten() {
        let note = match attachment["note"].as_str() {
            None | Some("") => String::new(),
            Some(note) => format!(" ({})", weir_daemon::escape(note)),
        };
        show::line(format!(
            "  {}: {}{note}",
            show::text(&attachment["interface"]),
            show::text(&attachment["hook"])
        ))?;
    }
    for limit in status["limits"].as_array().into_iter().flatten() {
        show::line(format!("  {}", show::text(&limit["says"])))?;
    }
    why::counters(&status["counters"])?;
    border(status)?;
    let decoy = &status["decoy"];
    if let Some(ports) = decoy["ports"].as_array() {
        let ports: Vec<_> = ports.iter().map(show::text).collect();
        show::line(format!(
            "decoy ports {} (proof {}): {} SYNs answered, {} above the limit, {} proofs, {} bans, {} in force, {} strikes told",
            ports.join(" "),
            show::text(&decoy["proof"]),
            decoy["answered"],
            decoy["unanswered"],
            decoy["proofs"],
            decoy["bans"],
            decoy["bans_in_force"],
            decoy["strikes"]
        ))?;
    }
    for ring in status["rings"].as_array().into_iter().flatten() {
        show::line(format!(
            "ring {}: {} records read of {} segments by {} workers, {} ({} bytes) lost; {} files bad, {} unreadable",
            show::text(&ring["ring"]),
            ring["records"],
            ring["segments"],
            ring["workers"],
            ring["lost"],
            ring["lost_bytes"],
            ring["bad"],
            ring["unreadable"]
        ))?;
    }
    for alert in status["alerts"].as_array().into_iter().flatten() {
        show::line(format!(
            "ALERT since {}: {}",
            show::moment(alert["since"].as_str().unwrap_or_default()),
            show::text(&alert["message"])
        ))?;
    }
    for warning in status["warnings"].as_array().into_iter().flatten() {
        show::line(format!("warning: {}", show::text(warning)))?;
    }
    watches(&status["watches"])?;
    sinks(&status["sinks"])?;
    let rows: Vec<_> = jails
        .iter()
        .map(|jail| {
            [
                "name",
                "lines",
                "findings",
                "tracked",
                "bans",
                "bans_in_force",
                "ignored",
                "source",
            ]
            .map(|key| show::text(&jail[key]))
            .to_vec()
        })
        .collect();
    show::table(
        &[
            "JAIL", "LINES", "FINDINGS", "TRACKED", "BANS", "IN FORCE", "IGNORED", "SOURCE",
        ],
        &rows,
    )?;
    Ok(())
}

/// Geofence and lists, and what they dropped.
fn border(status: &Value) -> anyhow::Result<()> {
    let border = &status["border"];
    for rule in border["rules"].as_array().into_iter().flatten() {
        show::line(show::text(rule))?;
    }
    for database in border["databases"].as_array().into_iter().flatten() {
        show::line(format!(
            "  places by {} of {}",
            show::text(&database["name"]),
            show::moment(database["built"].as_str().unwrap_or_default())
        ))?;
    }
    if border.is_object() {
        show::line(format!(
            "geofence and lists: {} IPv4 and {} IPv6 ranges in {} classes, rebuilt in {} ms",
            border["ranges"][0], border["ranges"][1], border["classes"], border["rebuilt_in_ms"]
        ))?;
    }
    let dropped: Vec<_> = status["dropped"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|by| {
            let what = match (by["list"].as_str(), by["country"].as_str()) {
                (Some(list), _) => format!("list {}", weir_daemon::escape(list)),
                (None, Some(country)) => format!("country {country}"),
                (None, None) => "unknown country".to_owned(),
            };
            format!("{what} {}", by["packets"])
        })
        .collect();
    if !dropped.is_empty() {
        show::line(format!("  packets dropped: {}", dropped.join(", ")))?;
    }
    Ok(())
}

fn watches(watches: &Value) -> anyhow::Result<()> {
    for watch in watches.as_array().into_iter().flatten() {
        let runs = match watch["pid"].as_u64() {
            Some(pid) => format!("runs (pid {pid})"),
            None => "does not run".to_owned(),
        };
        let last = match show::text(&watch["last_rejected"]) {
            last if last.is_empty() => String::new(),
            last => format!("; last rejected: {last}"),
        };
        show::line(format!(
            "watch {} {runs}, started {} times: {} lines, {} banned, {} banned already, {} not denied, {} ignored, {} rejected{last}",
            show::text(&watch["name"]),
            watch["starts"],
            watch["lines"],
            watch["bans"],
            watch["known"],
            watch["not_denied"],
            watch["ignored"],
            watch["rejected"],
        ))?;
    }
    Ok(())
}

fn sinks(sinks: &Value) -> anyhow::Result<()> {
    for sink in sinks.as_array().into_iter().flatten() {
        let failing = match sink["failing"].as_str() {
            Some(why) => format!("; failing: {}", weir_daemon::escape(why)),
            None => String::new(),
        };
        show::line(format!(
            "sink {} to {}: {} delivered, {} waiting, {} lost, {} held back by its rate, {} refused{failing}",
            show::text(&sink["name"]),
            show::text(&sink["target"]),
            sink["delivered"],
            sink["queued"],
            sink["lost"],
            sink["held_back"],
            sink["refused"],
        ))?;
    }
    Ok(())
}

fn one_jail(jail: &Value) -> anyhow::Result<()> {
    let Some(fields) = jail.as_object() else {
        anyhow::bail!("the daemon's answer is not a jail");
    };
    for (key, value) in fields {
        show::line(format!(
            "{:14} {}",
            key.replace('_', " "),
            show::text(value)
        ))?;
    }
    Ok(())
}

//! `weir status`

mod jail;
mod token;

pub use token::conduit as token_conduit;

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use weir_core::policy::format_duration;
use weir_daemon::{config, instance, token::unguarded};
use weir_enforce::{backend_swap, kernel::DEFAULT_ROOT};

use super::{
    Common, ExitAnswer, client, show,
    show::{Tone, counted, headline, text, wrapped},
    why,
};

/// Show whether this host is protected, and what the daemon does
///
/// The first line says PROTECTED, OBSERVING (nothing is dropped, as configured)
/// or NOT PROTECTED, and why; alerts follow. Exit code 1 if there is an alert or
/// the host is not protected; 2 if the daemon does not run, or does not answer
/// at this socket (NO ANSWER): what it left in the kernel goes on dropping, and is named. With a
/// jail: only that jail.
#[derive(clap::Args)]
pub struct Args {
    /// Only this jail
    jail: Option<String>,
    /// Print the status as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let status = match common.client().get("/v1/status") {
        Ok(reply) => reply.ok()?,
        Err(error) => {
            if error.downcast_ref::<client::Unreachable>().is_some() {
                without_daemon(common, args.json, None)?;
            } else if let Some(silent) = error.downcast_ref::<client::Silent>() {
                without_daemon(common, args.json, Some(silent))?;
            }
            return Err(error);
        }
    };
    let jails = status["jails"].as_array().cloned().unwrap_or_default();
    if let Some(name) = &args.jail {
        let Some(jail) = jails.iter().find(|jail| jail["name"] == **name) else {
            let names: Vec<_> = jails.iter().map(|jail| text(&jail["name"])).collect();
            anyhow::bail!(
                "there is no jail {name:?}; enabled are: {}",
                names.join(", ")
            );
        };
        if args.json {
            show::json(jail)?;
        } else {
            let path = format!(
                "/v1/bans?limit={}&jail={}",
                jail::MAX_BANS,
                client::quote(name)
            );
            let bans = common.client().get(&path)?.ok()?;
            jail::report(jail, &status, &bans)?;
        }
        return Ok(ExitAnswer::Done);
    }
    if args.json {
        show::json(&status)?;
    } else {
        all(&status, &jails)?;
    }
    let is_well = alerts(&status).is_empty() && status["protection"]["state"] != "not-protected";
    Ok(match is_well {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// Shows what holds although nobody answers: bans and lists stay in the kernel. Without a
/// daemon nobody bans; whether one that is silent does nobody knows.
fn without_daemon(
    common: &Common,
    as_json: bool,
    silent: Option<&client::Silent>,
) -> anyhow::Result<()> {
    let (state, word, daemon, others) = match silent {
        Some(client::Silent(why)) => ("unknown", "NO ANSWER", why.as_str(), ""),
        None => (
            "not-protected",
            "NOT PROTECTED",
            "the daemon does not run",
            ", and bans nobody else",
        ),
    };
    // A configuration that says nothing is no reason not to look.
    let (pin_root, name) = match config::places_of(&common.config) {
        Ok(places) => (places.pin_root, places.instance),
        Err(_) => (DEFAULT_ROOT.into(), "default".to_owned()),
    };
    let left = backend_swap::left_in_kernel(&pin_root, &name);
    // Their packets go on, and nobody notices a real that dies.
    let pools: Vec<_> = match (left.as_slice(), silent) {
        ([], _) | (_, Some(_)) => Vec::new(),
        _ => {
            let config = config::Config::load_with_added(&common.config).ok();
            let pools = config.and_then(|config| config.balance);
            let pools = pools.into_iter().flat_map(|balance| balance.pools);
            pools.map(|pool| pool.name).collect()
        }
    };
    let unchecked = match pools.as_slice() {
        [] => String::new(),
        [one] => {
            format!("; pool {one} goes on with the reals that lived last, which nobody checks")
        }
        all => format!(
            "; pools {} go on with the reals that lived last, which nobody checks",
            all.join(", ")
        ),
    };
    // A program goes with its interface, and nobody covers the one that has the name now.
    let unguarded = match (left.as_slice(), silent) {
        ([], _) | (_, Some(_)) => Vec::new(),
        _ => {
            let config = config::Config::load_with_added(&common.config).ok();
            let token = config.and_then(|config| config.token);
            token.map_or_else(Vec::new, |token| unguarded(&token, &pin_root, &name))
        }
    };
    let open: String = unguarded
        .iter()
        .map(|one| {
            let (table, interface) = (one.table, &one.interface);
            format!("; {interface} is unguarded: no program of {table} is there")
        })
        .collect();
    let why = match left.as_slice() {
        [] if instance::is_root() => {
            format!("{daemon}, and nothing of weir is in the kernel")
        }
        [] => format!("{daemon}; what it left in the kernel only root can see"),
        left => format!(
            "{daemon}; instance {name:?} goes on dropping what it had banned ({}){others}{unchecked}{open}",
            left.join(", ")
        ),
    };
    if as_json {
        show::json(&json!({
            "protection": { "state": state, "why": why },
            "instance": name,
            "left_in_kernel": left,
            "unchecked_pools": pools,
            // Others than root may not look.
            "unguarded": instance::is_root().then(|| {
                let each = unguarded.iter();
                each.map(|one| json!({ "table": one.table, "interface": one.interface }))
                    .collect::<Vec<_>>()
            }),
        }))?;
    } else {
        let rest = format!(": {}", weir_daemon::escape(&why));
        headline(Tone::Bad, word, &rest)?;
    }
    Ok(())
}

fn alerts(status: &Value) -> &[Value] {
    status["alerts"].as_array().map_or(&[][..], Vec::as_slice)
}

fn all(status: &Value, jails: &[Value]) -> anyhow::Result<()> {
    protection(status)?;
    for alert in alerts(status) {
        let rest = format!(
            " {} since {}: {}",
            text(&alert["about"]),
            show::moment(alert["since"].as_str().unwrap_or_default()),
            text(&alert["message"])
        );
        headline(Tone::Bad, "ALERT", &rest)?;
    }
    let up = Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or(0));
    wrapped(format!(
        "weir {}, up {}, pid {}, instance {}, {}",
        text(&status["version"]),
        format_duration(up),
        status["pid"],
        text(&status["instance"]),
        text(&status["config"])
    ))?;
    let memory = match status["usage"]["map_bytes"].as_u64() {
        Some(bytes) => format!(", {} KiB of kernel memory", bytes / 1024),
        None => String::new(),
    };
    let notified = match status["usage"]["notified"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} that only notify"),
    };
    wrapped(format!(
        "backend {}: {} of {} bans, {} of {} bans of other prefixes{notified}, {} evicted{memory}; {}",
        text(&status["backend"]),
        status["usage"]["bans"],
        status["usage"]["max_bans"],
        status["usage"]["prefix_bans"],
        status["usage"]["max_prefix_bans"],
        status["usage"]["evicted"],
        text(&status["restored"])
    ))?;
    for attachment in status["attachments"].as_array().into_iter().flatten() {
        let note = match attachment["note"].as_str() {
            None | Some("") => String::new(),
            Some(note) => format!(" ({})", weir_daemon::escape(note)),
        };
        wrapped(format!(
            "  {}: {}{note}",
            text(&attachment["interface"]),
            text(&attachment["hook"])
        ))?;
    }
    for limit in status["limits"].as_array().into_iter().flatten() {
        wrapped(format!("  {}", text(&limit["says"])))?;
    }
    why::counters(&status["counters"])?;
    classes(status)?;
    let decoy = &status["decoy"];
    if let Some(ports) = decoy["ports"].as_array() {
        let ports: Vec<_> = ports.iter().map(text).collect();
        wrapped(format!(
            "decoy ports {} (proof {}): {} answered, {} above the limit, {}, {}, {} in force, {} without proof",
            ports.join(" "),
            text(&decoy["proof"]),
            counted(&decoy["answered"], "SYN", "SYNs"),
            decoy["unanswered"],
            counted(&decoy["proofs"], "proof", "proofs"),
            counted(&decoy["bans"], "ban", "bans"),
            decoy["bans_in_force"],
            counted(&decoy["strikes"], "visit", "visits")
        ))?;
    }
    for pool in status["pools"].as_array().into_iter().flatten() {
        let reals = pool["reals"].as_array().into_iter().flatten();
        let reals = reals.filter(|real| real["role"] == "real").count();
        let served_by = match pool["served_by"].as_str() {
            Some("reals" | "nobody") | None => String::new(),
            Some(others) => format!(" ({} takes them)", weir_daemon::escape(others)),
        };
        let unserved: u64 = pool["services"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|service| service["unserved"].as_u64())
            .sum();
        let origin = match pool["origin"] == "added" {
            true => " (added)",
            false => "",
        };
        wrapped(format!(
            "pool {}{origin}: {} of {} flows{served_by}, {} dropped for want of one",
            text(&pool["name"]),
            pool["live"],
            weir_daemon::counted(reals as u64, "real takes", "reals take"),
            weir_daemon::counted(unserved, "packet", "packets"),
        ))?;
    }
    vrrp(&status["vrrp"])?;
    vips(&status["vips"])?;
    app(&status["app"])?;
    token::token(&status["token"])?;
    let tarpit = &status["tarpit"];
    if let Some(ports) = tarpit["ports"].as_array() {
        let addresses = tarpit["addresses"].as_array();
        let mut places: Vec<_> = ports.iter().map(text).collect();
        places.extend(addresses.into_iter().flatten().map(text));
        let dark = tarpit["dark"].as_array();
        let dark = dark.into_iter().flatten().map(text);
        places.extend(dark.map(|prefix| format!("dark {prefix}")));
        wrapped(format!(
            "tarpit {} {}: {} answered, {} completed, {} answered with a window of zero, {} above the limit",
            if ports.is_empty() {
                "addresses"
            } else {
                "ports"
            },
            places.join(" "),
            counted(&tarpit["answered"], "SYN", "SYNs"),
            counted(&tarpit["handshakes"], "handshake", "handshakes"),
            counted(&tarpit["held"], "packet", "packets"),
            tarpit["unanswered"]
        ))?;
    }
    for ring in status["rings"].as_array().into_iter().flatten() {
        wrapped(format!(
            "ring {}: {} read of {} by {}, {} ({}) lost; {} bad, {} unreadable",
            text(&ring["ring"]),
            counted(&ring["records"], "record", "records"),
            counted(&ring["segments"], "segment", "segments"),
            counted(&ring["workers"], "worker", "workers"),
            ring["lost"],
            counted(&ring["lost_bytes"], "byte", "bytes"),
            counted(&ring["bad"], "file", "files"),
            ring["unreadable"]
        ))?;
    }
    host_names(&status["host_names"])?;
    for warning in status["warnings"].as_array().into_iter().flatten() {
        wrapped(format!("warning: {}", text(warning)))?;
    }
    watches(&status["watches"])?;
    sinks(&status["sinks"])?;
    table(jails)?;
    Ok(())
}

/// Virtual routers, and who is active where this host is not.
fn vrrp(routers: &Value) -> std::io::Result<()> {
    for router in routers.as_array().into_iter().flatten() {
        let addresses = router["addresses"].as_array().into_iter().flatten();
        let addresses: Vec<_> = addresses.map(text).collect();
        let active = match &router["active"] {
            Value::Null => String::new(),
            active => format!(
                ", {} is active (priority {})",
                text(active),
                router["active_priority"]
            ),
        };
        wrapped(format!(
            "virtual router {} ({}, id {}) on {}: {} with priority {} for {}{active}",
            text(&router["name"]),
            text(&router["family"]),
            router["id"],
            text(&router["interface"]),
            text(&router["state"]),
            router["priority"],
            addresses.join(", ")
        ))?;
    }
    Ok(())
}

/// Rules about programs: how exact they are, and what they do not see.
fn app(app: &Value) -> std::io::Result<()> {
    if app.is_null() {
        return Ok(());
    }
    let rules = app["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let dropped: u64 = rules
        .iter()
        .filter_map(|rule| rule["dropped"].as_u64())
        .sum();
    let observe = match app["observe"] == true {
        true => ", observing",
        false => "",
    };
    wrapped(format!(
        "programs: level {} in {}, {}, default {}, unknown {}{observe}; {} known, {} denied",
        text(&app["level"]),
        text(&app["cgroup"]),
        weir_daemon::counted(rules.len().saturating_sub(2) as u64, "rule", "rules"),
        text(&app["default"]),
        text(&app["unknown"]),
        counted(&app["programs"], "program", "programs"),
        weir_daemon::counted(dropped, "packet or call", "packets and calls"),
    ))?;
    if let Some(open @ 1..) = app["prompt"]["open"].as_u64() {
        wrapped(format!(
            "  {} open, connections wait: weir app prompt answers them",
            weir_daemon::counted(open, "question", "questions")
        ))?;
    }
    if app["learning"]["is_on"] == true {
        wrapped("  learning what programs do: weir app review shows it")?;
    }
    let kept = app["kept_names"].as_array().into_iter().flatten();
    let kept: Vec<_> = kept
        .map(|kept| format!("name:{} ({})", text(&kept["name"]), kept["addresses"]))
        .collect();
    if !kept.is_empty() {
        wrapped(format!(
            "  addresses from before the start, until a name server answers: {}",
            kept.join(", ")
        ))?;
    }
    let misses = app["misses"].as_array().into_iter().flatten();
    let misses: Vec<_> = misses.map(text).collect();
    wrapped(format!("  not seen: {}", misses.join("; ")))
}

/// Virtual addresses that weir holds: how many of each interface, and what is not so.
fn vips(vips: &Value) -> std::io::Result<()> {
    let mut held: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for vip in vips.as_array().into_iter().flatten() {
        let (address, interface) = (text(&vip["address"]), text(&vip["interface"]));
        match vip["state"].as_str() {
            Some("standby") => (),
            Some("held") => held.entry(interface).or_default().push(address),
            _ => {
                let other = match &vip["other"] {
                    Value::Null => String::new(),
                    other => format!(", {} has it", text(other)),
                };
                wrapped(format!(
                    "virtual address {address} on {interface}: {}{other}",
                    text(&vip["state"])
                ))?;
            }
        }
    }
    for (interface, addresses) in held {
        let all = addresses.join(", ");
        wrapped(format!("virtual addresses held on {interface}: {all}"))?;
    }
    Ok(())
}

/// The first line.
fn protection(status: &Value) -> std::io::Result<()> {
    let alerts = alerts(status).len();
    let (mut tone, word) = match status["protection"]["state"].as_str() {
        Some("protected") => (Tone::Good, "PROTECTED"),
        Some("observing") => (Tone::Doubtful, "OBSERVING"),
        _ => (Tone::Bad, "NOT PROTECTED"),
    };
    if alerts > 0 && tone == Tone::Good {
        tone = Tone::Doubtful;
    }
    let with = match alerts {
        0 => String::new(),
        n => format!(", {}", weir_daemon::counted(n as u64, "alert", "alerts")),
    };
    let why = text(&status["protection"]["why"]);
    let rest = format!(": {why}{}{with}", programs(status));
    headline(tone, word, &rest)
}

/// Whether it is judged which program sends.
fn programs(status: &Value) -> String {
    let app = &status["app"];
    let Some(level) = app["level"].as_str() else {
        return String::new();
    };
    let is_without = alerts(status)
        .iter()
        .any(|alert| alert["about"] == "app:cgroup");
    let denies = app["default"] != "allow"
        || app["unknown"] == "drop"
        || app["rules"].as_array().is_some_and(|rules| {
            rules.iter().any(|rule| {
                ["drop", "reject"]
                    .iter()
                    .any(|verdict| rule["verdict"] == *verdict)
            })
        });
    match (is_without, denies, app["observe"] == true) {
        (true, ..) => "; programs: NOT judged".to_owned(),
        (false, false, _) => "; programs: none denied".to_owned(),
        (false, true, true) => "; programs: observed".to_owned(),
        (false, true, false) => format!("; programs: judged ({level})"),
    }
}

/// Longer names are cut in the table; they stand whole below it.
const MAX_NAME: usize = 22;

/// The jails with their numbers, and below what each reads.
fn table(jails: &[Value]) -> std::io::Result<()> {
    const NUMBERS: [&str; 6] = [
        "lines",
        "findings",
        "tracked",
        "bans",
        "bans_in_force",
        "ignored",
    ];
    let row = |jail: &Value| {
        let name = text(&jail["name"]);
        let name = match name.chars().count() > MAX_NAME {
            true => name.chars().take(MAX_NAME - 1).chain(['…']).collect(),
            false => name,
        };
        let numbers = NUMBERS.iter().map(|key| text(&jail[key]));
        std::iter::once(name).chain(numbers).collect()
    };
    let rows: Vec<Vec<String>> = jails.iter().map(row).collect();
    show::table(
        &[
            "JAIL", "LINES", "FINDINGS", "TRACKED", "BANS", "IN FORCE", "IGNORED",
        ],
        &rows,
    )?;
    for jail in jails {
        let effect = match show::only_notifies(jail) {
            true => ", and notifies only: weir drops nothing for it",
            false => "",
        };
        wrapped(format!(
            "  {} reads {}{effect}",
            text(&jail["name"]),
            text(&jail["source"])
        ))?;
    }
    Ok(())
}

/// Geofence and lists, and what they dropped.
fn classes(status: &Value) -> anyhow::Result<()> {
    let classes = &status["classes"];
    for rule in classes["rules"].as_array().into_iter().flatten() {
        wrapped(text(rule))?;
    }
    for database in classes["databases"].as_array().into_iter().flatten() {
        wrapped(format!(
            "  places by {} of {}",
            text(&database["name"]),
            show::moment(database["built"].as_str().unwrap_or_default())
        ))?;
    }
    if classes.is_object() {
        wrapped(format!(
            "geofence and lists: {} IPv4 and {} IPv6 ranges in {} classes, rebuilt in {} ms",
            classes["ranges"][0], classes["ranges"][1], classes["count"], classes["rebuilt_in_ms"]
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
        wrapped(format!("  packets dropped: {}", dropped.join(", ")))?;
    }
    Ok(())
}

/// The names that logs have, once there was one.
fn host_names(names: &Value) -> anyhow::Result<()> {
    let has_any = |key: &str| names[key].as_u64().is_some_and(|count| count > 0);
    let begun = [
        "waiting",
        "resolved",
        "without_address",
        "failed",
        "late",
        "refused",
    ];
    if begun.into_iter().any(has_any) {
        wrapped(format!(
            "host names: {} waiting with {}, {} known; {} looked up, {} without address, {} without answer, {} too late, {} without room",
            names["waiting"],
            counted(&names["findings_waiting"], "failure", "failures"),
            names["known"],
            names["resolved"],
            names["without_address"],
            names["failed"],
            names["late"],
            counted(&names["refused"], "failure", "failures")
        ))?;
    }
    Ok(())
}

fn watches(watches: &Value) -> anyhow::Result<()> {
    for watch in watches.as_array().into_iter().flatten() {
        let runs = match watch["pid"].as_u64() {
            Some(pid) => format!("runs (pid {pid})"),
            None => "does not run".to_owned(),
        };
        let last = match text(&watch["last_rejected"]) {
            last if last.is_empty() => String::new(),
            last => format!("; last rejected: {last}"),
        };
        wrapped(format!(
            "watch {} {runs}, started {}: {}, {} banned, {} banned already, {} not denied, {} ignored, {} rejected{last}",
            text(&watch["name"]),
            counted(&watch["starts"], "time", "times"),
            counted(&watch["lines"], "line", "lines"),
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
        wrapped(format!(
            "sink {} to {}: {} delivered, {} waiting, {} lost, {} held back by its rate, {} refused{failing}",
            text(&sink["name"]),
            text(&sink["target"]),
            sink["delivered"],
            sink["queued"],
            sink["lost"],
            sink["held_back"],
            sink["refused"],
        ))?;
    }
    Ok(())
}

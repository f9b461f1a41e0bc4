//! `weir list`

use clap::Subcommand;
use serde_json::{Value, json};

use super::{Common, ExitAnswer, client::quote, show};

/// Show and refresh lists of denied and allowed addresses
#[derive(Subcommand)]
pub enum Verb {
    /// Show the lists: how many prefixes, since when, what went wrong
    Status {
        /// Only this list, with the lines that were left out
        name: Option<String>,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Fetch a list now, or all of them; exit code 1 if one stays as it was
    Refresh {
        /// Only this list
        name: Option<String>,
        /// Take it also if it has shrunk by max_shrink percent or more
        #[arg(long)]
        force: bool,
    },
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::Status { name, json } => status(common, name.as_deref(), *json),
        Verb::Refresh { name, force } => refresh(common, name.as_deref(), *force),
    }
}

fn lists(common: &Common) -> anyhow::Result<Vec<Value>> {
    let answer = common.client().get("/v1/lists")?.ok()?;
    Ok(answer["lists"].as_array().cloned().unwrap_or_default())
}

fn status(common: &Common, name: Option<&str>, json: bool) -> anyhow::Result<ExitAnswer> {
    let lists = lists(common)?;
    if let Some(name) = name {
        let Some(list) = lists.iter().find(|list| list["name"] == name) else {
            let names: Vec<_> = lists.iter().map(|list| show::text(&list["name"])).collect();
            anyhow::bail!(
                "there is no list {name:?}; enabled are: {}",
                match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                }
            );
        };
        match json {
            true => show::json(list)?,
            false => one(list)?,
        }
        return Ok(ExitAnswer::Done);
    }
    if json {
        show::json(&Value::Array(lists))?;
        return Ok(ExitAnswer::Done);
    }
    let rows: Vec<_> = lists
        .iter()
        .map(|list| {
            let copy = match list["from_cache"].as_bool() {
                Some(true) => " (copy)",
                _ => "",
            };
            vec![
                show::text(&list["name"]),
                show::text(&list["action"]),
                list["ipv4"].to_string(),
                list["ipv6"].to_string(),
                list["skipped"]["count"].to_string(),
                list["refused"]["count"].to_string(),
                format!("{}{copy}", moment(&list["last_success"])),
                moment(&list["next_refresh"]),
                show::text(&list["source"]),
            ]
        })
        .collect();
    show::table(
        &[
            "LIST", "ACTION", "IPV4", "IPV6", "SKIPPED", "REFUSED", "AS OF", "NEXT", "SOURCE",
        ],
        &rows,
    )?;
    for list in &lists {
        if let Some(error) = list["error"].as_str() {
            show::line(format!(
                "{}: since {}: {}",
                show::text(&list["name"]),
                moment(&list["last_failure"]),
                weir_daemon::escape(error)
            ))?;
        }
    }
    Ok(ExitAnswer::Done)
}

fn moment(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), show::moment)
}

fn one(list: &Value) -> anyhow::Result<()> {
    let Some(fields) = list.as_object() else {
        anyhow::bail!("the daemon's answer is not a list");
    };
    for (key, value) in fields {
        let key = key.replace('_', " ");
        if value.is_object() {
            show::line(format!("{key:14} {}", value["count"]))?;
            for line in value["first"].as_array().into_iter().flatten() {
                // What several lines make has no number, nor what has no lines.
                let number = match line["line"].as_u64() {
                    Some(number @ 1..) => format!("line {number}: "),
                    _ => String::new(),
                };
                show::line(format!("{:14} {number}{}", "", show::text(&line["text"])))?;
            }
        } else if !value.is_null() {
            show::line(format!("{key:14} {}", show::text(value)))?;
        }
    }
    Ok(())
}

fn refresh(common: &Common, name: Option<&str>, force: bool) -> anyhow::Result<ExitAnswer> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => lists(common)?
            .iter()
            .filter_map(|list| Some(list["name"].as_str()?.to_owned()))
            .collect(),
    };
    let mut all = ExitAnswer::Done;
    for name in names {
        let path = format!("/v1/lists/{}/refresh", quote(&name).replace('/', "%2F"));
        let answer = common
            .client()
            .post(&path, &json!({ "force": force }))?
            .ok()?;
        let list = &answer["list"];
        let name = weir_daemon::escape(&name);
        if answer["done"] != true {
            show::line(format!("{name}: still at it; see weir list status"))?;
            all = ExitAnswer::No;
        } else if let Some(error) = list["error"].as_str() {
            show::line(format!(
                "{name}: stays as it was: {}",
                weir_daemon::escape(error)
            ))?;
            all = ExitAnswer::No;
        } else {
            show::line(format!(
                "{name}: {} ({} IPv4, {} IPv6), {} skipped, {} refused",
                show::counted(&list["prefixes"], "prefix", "prefixes"),
                list["ipv4"],
                list["ipv6"],
                show::counted(&list["skipped"]["count"], "line", "lines"),
                show::counted(&list["refused"]["count"], "entry", "entries")
            ))?;
        }
    }
    Ok(all)
}

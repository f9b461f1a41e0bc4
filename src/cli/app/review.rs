//! `weir app review`

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::{Value, json};
use weir_daemon::identity::PackageRecord;

use super::{array, learn};
use crate::cli::{Common, ExitAnswer, show};

/// Peers of one line that are named.
const NAMED: usize = 3;

/// Show what programs were seen doing, and what is new since the last review
///
/// Each line is a kind of connections: which way it began, the port, the peers, how often
/// and when, and what the rules in force say of it. "no rule" is what would be denied if
/// the default were "drop". Exit code 1 if there is nothing to show.
#[derive(clap::Args)]
pub struct Args {
    /// Only what has not been reviewed
    #[arg(long)]
    new: bool,
    /// Mark what is shown, and all that was recorded before, as reviewed: `weir app enforce`
    /// makes rules of it
    #[arg(long)]
    accept: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let mut answer = common.client().get("/v1/app/learned")?.ok()?;
    let records = package_records(&answer);
    if let Some(programs) = answer["programs"].as_array_mut() {
        for program in programs.iter_mut() {
            let record = program["path"].as_str().and_then(|path| {
                let digest = program["digest"].as_str()?;
                records.get(&(path.to_owned(), digest.to_owned()))
            });
            program["record"] = json!(record);
            if let Some(flows) = program["flows"].as_array_mut()
                && args.new
            {
                flows.retain(|flow| flow["is_new"] == true);
            }
        }
        programs.retain(|program| !array(&program["flows"]).is_empty());
    }
    let is_empty = array(&answer["programs"]).is_empty();
    if args.json {
        show::json(&answer)?;
    } else {
        show::wrapped(learn::words(&answer["learning"]))?;
        for program in array(&answer["programs"]) {
            show_program(program)?;
        }
        if is_empty {
            show::line(match args.new {
                true => "nothing is new since the last review",
                false if answer["learning"]["is_on"] == true => "nothing was recorded yet",
                false => "nothing was recorded; weir app learn start begins",
            })?;
        }
    }
    if args.accept {
        let request = json!({ "as_of": answer["as_of"] });
        let done = common.client().post("/v1/app/learned/reviewed", &request)?;
        show::warning(&done.ok()?);
        if !args.json {
            show::line(match is_empty {
                true => "there was nothing to review; what is seen from now on is new",
                false => "reviewed: what is seen from now on is new",
            })?;
        }
    }
    Ok(match is_empty {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

/// What dpkg and rpm say of the executables, by path and SHA-256.
fn package_records(answer: &Value) -> BTreeMap<(String, String), PackageRecord> {
    let programs = array(&answer["programs"]).iter();
    let files = programs.filter(|program| program["is_at_path"] == true);
    let files: Vec<(PathBuf, _)> = files
        .filter_map(|program| {
            let digest = program["digest"].as_str()?.parse().ok()?;
            Some((program["path"].as_str()?.into(), digest))
        })
        .collect();
    let records = PackageRecord::of_all(&files);
    files
        .iter()
        .filter_map(|(path, digest)| {
            let record = records.get(path)?.clone();
            let path = path.to_string_lossy().into_owned();
            Some(((path, digest.to_string()), record))
        })
        .collect()
}

fn show_program(program: &Value) -> anyhow::Result<()> {
    let mut head = show::text(&program["path"]);
    if program["script"].is_string() {
        head.push_str(&format!(" {}", show::text(&program["script"])));
    }
    if program["is_new"] == true {
        head.push_str(" (new)");
    }
    show::line("")?;
    show::line(head)?;
    let digest = match program["digest"].as_str() {
        Some(digest) => format!("SHA-256 {digest}"),
        None => "no SHA-256 that counts: no rule can be made for it".to_owned(),
    };
    show::line(format!("  {digest}"))?;
    let record = &program["record"];
    let package = show::text(&record["package"]);
    match record["state"].as_str() {
        Some("agrees") => show::line(format!("  package {package}, as it is on record"))?,
        Some("differs") => show::line(format!("  not as it is on record of package {package}"))?,
        Some(_) => show::line("  of no package")?,
        None => {}
    }
    let others = array(&program["others"]);
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(show::text).collect();
        show::wrapped(format!(
            "  another executable was seen at this path, too: {}",
            others.join(", ")
        ))?;
    }
    let names = |key: &str| {
        let names: Vec<_> = array(&program[key]).iter().map(show::text).collect();
        names.join("; ")
    };
    if !array(&program["parents"]).is_empty() {
        show::wrapped(format!("  started by {}", names("parents")))?;
    }
    show::table(
        &[
            "  ", "WAY", "PORT", "PEERS", "TIMES", "DENIED", "LAST", "RULE",
        ],
        &rows(program),
    )?;
    Ok(())
}

/// Flows that differ by their peers are one row.
fn rows(program: &Value) -> Vec<Vec<String>> {
    #[derive(Default)]
    struct Row {
        peers: BTreeSet<String>,
        count: u64,
        denied: u64,
        last: String,
    }
    let mut rows: BTreeMap<(bool, String, String, String, String), Row> = BTreeMap::new();
    for flow in array(&program["flows"]) {
        let protocol = show::text(&flow["protocol"]);
        let port = match flow["port"].as_u64() {
            Some(0) => protocol.clone(),
            Some(port) => format!("{port}/{protocol}"),
            None => format!("any/{protocol}"),
        };
        let rule = match flow["needs_rule"] == true {
            true if flow["rule"] == "default" => "no rule".to_owned(),
            true => format!("denied by {}", show::text(&flow["rule"])),
            false => show::text(&flow["rule"]),
        };
        let way = show::text(&flow["direction"]);
        let sort = format!("{:05}", flow["port"].as_u64().unwrap_or(u64::MAX));
        let key = (flow["is_new"] != true, way, sort, port, rule);
        let row = rows.entry(key).or_default();
        row.peers.insert(match flow["peer"].as_str() {
            Some(peer) => weir_daemon::escape(peer),
            None => "anybody".to_owned(),
        });
        row.count += flow["count"].as_u64().unwrap_or_default();
        row.denied += flow["denied"].as_u64().unwrap_or_default();
        let last = show::text(&flow["last"]);
        row.last = row.last.clone().max(last);
    }
    rows.into_iter()
        .map(|((is_old, way, _, port, rule), row)| {
            let mut peers: Vec<_> = row.peers.iter().take(NAMED).cloned().collect();
            if row.peers.len() > NAMED {
                peers.push(format!("and {} more", row.peers.len() - NAMED));
            }
            vec![
                if is_old { "  " } else { "new" }.to_owned(),
                way,
                port,
                peers.join(", "),
                row.count.to_string(),
                row.denied.to_string(),
                show::moment(&row.last),
                rule,
            ]
        })
        .collect()
}

/// Is something that was learned a connection that comes in at this TCP port, and will it be
/// allowed?
pub fn lets_in(learned: &Value, port: u16, with_unreviewed: bool) -> bool {
    array(&learned["programs"]).iter().any(|program| {
        array(&program["flows"]).iter().any(|flow| {
            let is_there = flow["direction"] == "in"
                && flow["protocol"] == "tcp"
                && (flow["port"].is_null() || flow["port"] == port);
            let has_rule = flow["needs_rule"] != true;
            let gets_rule = flow["rule"] == "default"
                && (flow["is_new"] != true || with_unreviewed)
                && program["digest"].is_string();
            is_there && (has_rule || gets_rule)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(port: Value, is_new: bool, rule: &str, needs_rule: bool) -> Value {
        json!({"programs": [{"path": "/usr/sbin/sshd", "digest": "aa", "flows": [{
            "direction": "in", "protocol": "tcp", "port": port, "is_new": is_new,
            "rule": rule, "needs_rule": needs_rule, "peer": "192.0.2.1", "count": 2,
            "denied": 1, "last": "2026-11-25T20:00:00Z",
        }]}]})
    }

    #[test]
    fn a_login_goes_on_if_its_port_was_seen_and_gets_a_rule() {
        for (learned, unreviewed, is) in [
            (learned(json!(22), false, "default", true), false, true),
            (learned(json!(22), true, "default", true), false, false),
            (learned(json!(22), true, "default", true), true, true),
            (learned(json!(22), true, "ssh", false), false, true),
            (learned(json!(22), false, "nobody", true), false, false),
            (learned(Value::Null, false, "default", true), false, true),
            (learned(json!(80), false, "default", true), false, false),
        ] {
            assert_eq!(lets_in(&learned, 22, unreviewed), is, "{learned}");
        }
    }

    #[test]
    fn a_row_says_what_is_new_and_what_has_no_rule() {
        let of = |learned: Value| rows(&learned["programs"][0]).remove(0);
        let row = of(learned(json!(22), true, "default", true));
        assert_eq!(row[0], "new");
        assert_eq!(row[2..6], ["22/tcp", "192.0.2.1", "2", "1"]);
        assert_eq!(row[7], "no rule");
        let row = of(learned(json!(0), false, "x", true));
        assert_eq!((&*row[0], &*row[2], &*row[7]), ("  ", "tcp", "denied by x"));
        let row = of(learned(Value::Null, false, "x", false));
        assert_eq!((&*row[2], &*row[7]), ("any/tcp", "x"));
    }
}

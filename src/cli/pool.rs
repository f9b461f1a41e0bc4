//! `weir pool`

use clap::Subcommand;
use serde_json::Value;

use super::{Common, ExitAnswer, show};

/// Show the pools of servers behind virtual addresses
#[derive(Subcommand)]
pub enum Verb {
    /// Show the pools: what each serves, and how many of its reals live
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one pool: its reals, and what was sent to each; exit code 1 if none lives
    Show {
        /// The name of the pool
        name: String,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/pools")?.ok()?;
    let pools = array(&answer["pools"]);
    match verb {
        Verb::List { json: true } => show::json(&answer["pools"])?,
        Verb::List { json: false } => list(pools)?,
        Verb::Show { name, json } => {
            let Some(pool) = pools.iter().find(|pool| pool["name"] == *name) else {
                let names: Vec<_> = pools.iter().map(|pool| show::text(&pool["name"])).collect();
                anyhow::bail!(
                    "there is no pool {name:?}; there are: {}",
                    match names.is_empty() {
                        true => "none".to_owned(),
                        false => names.join(", "),
                    }
                );
            };
            match json {
                true => show::json(pool)?,
                false => one(pool)?,
            }
            if pool["live"] == 0 {
                return Ok(ExitAnswer::No);
            }
        }
    }
    Ok(ExitAnswer::Done)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn sum(values: &[Value], key: &str) -> String {
    let numbers = values.iter().filter_map(|value| value[key].as_u64());
    numbers.sum::<u64>().to_string()
}

fn list(pools: &[Value]) -> anyhow::Result<()> {
    let rows: Vec<_> = pools
        .iter()
        .map(|pool| {
            let (services, reals) = (array(&pool["services"]), array(&pool["reals"]));
            vec![
                show::text(&pool["name"]),
                show::text(&pool["method"]),
                format!("{}/{}", pool["live"], reals.len()),
                sum(reals, "flows"),
                sum(services, "packets"),
                sum(services, "bytes"),
                sum(services, "unserved"),
            ]
        })
        .collect();
    let head = [
        "POOL", "METHOD", "LIVE", "FLOWS", "PACKETS", "BYTES", "UNSERVED",
    ];
    Ok(show::table(&head, &rows)?)
}

fn one(pool: &Value) -> anyhow::Result<()> {
    let cells = |value: &Value, keys: &[&str]| -> Vec<String> {
        let cell = |key: &&str| match &value[key] {
            Value::String(_) => show::text(&value[key]),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        keys.iter().map(cell).collect()
    };
    let keys = [
        "vip",
        "port",
        "packets",
        "bytes",
        "unserved",
        "unremembered",
    ];
    let rows: Vec<_> = array(&pool["services"])
        .iter()
        .map(|service| cells(service, &keys))
        .collect();
    let head = [
        "VIP",
        "PORT",
        "PACKETS",
        "BYTES",
        "UNSERVED",
        "UNREMEMBERED",
    ];
    show::table(&head, &rows)?;
    let rows: Vec<_> = array(&pool["reals"])
        .iter()
        .map(|real| {
            let keys = [
                "address", "weight", "state", "mac", "flows", "packets", "bytes", "why",
            ];
            cells(real, &keys)
        })
        .collect();
    let head = [
        "REAL", "WEIGHT", "STATE", "MAC", "FLOWS", "PACKETS", "BYTES", "WHY",
    ];
    Ok(show::table(&head, &rows)?)
}

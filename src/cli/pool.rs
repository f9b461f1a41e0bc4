//! `weir pool` and `weir real`

mod add;

use clap::Subcommand;
use serde_json::{Value, json};

use super::{Common, ExitAnswer, client::quote, show};
use add::{New, table};

/// Drain, disable or enable a real of a pool, change its weight, add or delete one
///
/// A real is a server of a pool. A change holds at once, over reloads, restarts and
/// crashes, until it is taken back or the real leaves the configuration.
#[derive(Subcommand)]
pub enum RealVerb {
    /// Give a real no new flows; those that it has stay
    Drain(Real),
    /// Take a real out at once; its connections break
    Disable(Real),
    /// Let a real take flows again, as its checks say
    Enable(Real),
    /// Change a real's share of new flows
    Weight {
        #[command(flatten)]
        real: Real,
        /// 0-1000, beside those of the others; or "default", the configuration's
        #[arg(value_parser = parse_weight)]
        weight: Weight,
    },
    /// Add a real to a pool; it takes flows once a check of it has succeeded
    ///
    /// Flows that other reals have stay there, and of new flows the new real gets its share.
    Add {
        #[command(flatten)]
        real: Real,
        /// Its other keys, as a table of `reals` in weir.toml(5) has them, such as weight=2
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
    },
    /// Delete a real that was added by a command; its connections break: drain it first
    Del(Real),
}

/// Which real, by its pool and address.
#[derive(clap::Args)]
pub struct Real {
    /// The name of the pool
    pool: String,
    /// The real's own address
    address: std::net::IpAddr,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// `None`: the configuration's.
#[derive(Clone, Copy)]
pub struct Weight(Option<u32>);

fn parse_weight(text: &str) -> Result<Weight, String> {
    match text.parse() {
        _ if text == "default" => Ok(Weight(None)),
        Ok(weight) if weight <= weir_daemon::balance::MAX_WEIGHT => Ok(Weight(Some(weight))),
        _ => Err(format!(
            "allowed: 0-{} or default",
            weir_daemon::balance::MAX_WEIGHT
        )),
    }
}

pub fn change(common: &Common, verb: &RealVerb) -> anyhow::Result<ExitAnswer> {
    let (real, change) = match verb {
        RealVerb::Add { real, keys } => return add_real(common, real, keys),
        RealVerb::Del(real) => return delete_real(common, real),
        RealVerb::Drain(real) => (real, json!({ "mode": "draining" })),
        RealVerb::Disable(real) => (real, json!({ "mode": "disabled" })),
        RealVerb::Enable(real) => (real, json!({ "mode": "enabled" })),
        RealVerb::Weight { real, weight } => (real, json!({ "weight": weight.0 })),
    };
    let path = format!("{}/reals/{}", path_of(&real.pool), real.address);
    let answer = common.client().post(&path, &change)?.ok()?;
    answered(&answer, real.json, || shown_real(real, &answer["real"]))
}

fn path_of(pool: &str) -> String {
    format!("/v1/pools/{}", quote(pool).replace('/', "%2F"))
}

fn shown_real(real: &Real, now: &Value) -> String {
    shown(&real.address.to_string(), &real.pool, now)
}

fn shown(address: &str, pool: &str, now: &Value) -> String {
    format!(
        "{address} of pool {}: {}, weight {}, {}",
        weir_daemon::escape(pool),
        show::text(&now["mode"]),
        now["weight"],
        show::text(&now["state"]),
    )
}

/// Says what is not on disk, and what is probably not meant.
fn warn(answer: &Value) {
    let warnings = array(&answer["warnings"]).iter();
    for warning in answer["warning"]
        .as_str()
        .into_iter()
        .chain(warnings.filter_map(Value::as_str))
    {
        eprintln!("warning: {}", weir_daemon::escape(warning));
    }
}

/// Prints the answer, or this line in its place.
fn answered(
    answer: &Value,
    json: bool,
    line: impl FnOnce() -> String,
) -> anyhow::Result<ExitAnswer> {
    match json {
        true => show::json(answer)?,
        false => show::line(line())?,
    }
    warn(answer);
    Ok(ExitAnswer::Done)
}

fn add_real(common: &Common, real: &Real, keys: &[String]) -> anyhow::Result<ExitAnswer> {
    let mut table = table("real", keys.iter().map(String::as_str))?;
    table.insert("address".to_owned(), real.address.to_string().into());
    let path = format!("{}/reals", path_of(&real.pool));
    let answer = common.client().post(&path, &Value::Object(table))?.ok()?;
    answered(&answer, real.json, || match &answer["real"] {
        Value::Null => {
            let pool = weir_daemon::escape(&real.pool);
            format!("{} of pool {pool}: added", real.address)
        }
        now => shown_real(real, now),
    })
}

fn delete_real(common: &Common, real: &Real) -> anyhow::Result<ExitAnswer> {
    let path = format!("{}/reals/{}", path_of(&real.pool), real.address);
    let answer = common.client().delete(&path)?.ok()?;
    answered(&answer, real.json, || {
        let pool = weir_daemon::escape(&real.pool);
        format!("{} of pool {pool}: deleted", real.address)
    })
}

/// Show the pools of servers behind virtual addresses, add, delete, drain or disable one
#[derive(Subcommand)]
pub enum Verb {
    /// Add a pool to those of the configuration, at once
    ///
    /// It has the keys of `[pool.NAME]` in weir.toml(5), and is kept over reloads, restarts
    /// and crashes until `weir pool del`. Flows of other pools stay where they are. Where the
    /// configuration later has a pool of this name, or the same port of a virtual address, the
    /// configuration takes precedence, and an alert says so.
    Add(New),
    /// Delete a pool that was added by a command
    ///
    /// Its connections end. A pool of the configuration is removed there.
    Del(Named),
    /// Give all reals of a pool no new flows; those that they have stay
    ///
    /// For maintenance of all of them: new flows go to what the pool has for an emergency.
    Drain(Named),
    /// Take all reals of a pool out at once; their connections break
    Disable(Named),
    /// Let all reals of a pool take flows again, as their checks say
    Enable(Named),
    /// Show the pools: what each serves, and how many of its reals live
    List {
        /// Print them as JSON, with what was added and is not in force
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

/// A pool by its name, and how to print the answer.
#[derive(clap::Args)]
pub struct Named {
    /// The name of the pool
    name: String,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

fn change_all(common: &Common, pool: &Named, mode: &str) -> anyhow::Result<ExitAnswer> {
    let change = json!({ "mode": mode });
    let answer = common.client().post(&path_of(&pool.name), &change)?.ok()?;
    let lines = || {
        let of_one = |real: &Value| shown(&show::text(&real["address"]), &pool.name, real);
        let lines: Vec<_> = array(&answer["reals"]).iter().map(of_one).collect();
        lines.join("\n")
    };
    answered(&answer, pool.json, lines)
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::Add(new) => add(common, new),
        Verb::Del(pool) => {
            let answer = common.client().delete(&path_of(&pool.name))?.ok()?;
            let line = || format!("pool {} is deleted", weir_daemon::escape(&pool.name));
            answered(&answer, pool.json, line)
        }
        Verb::Drain(pool) => change_all(common, pool, "draining"),
        Verb::Disable(pool) => change_all(common, pool, "disabled"),
        Verb::Enable(pool) => change_all(common, pool, "enabled"),
        Verb::List { json } => show_all(common, *json),
        Verb::Show { name, json } => show_one(common, name, *json),
    }
}

fn add(common: &Common, new: &New) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().post("/v1/pools", &new.body()?)?.ok()?;
    answered(&answer, new.json, || {
        let pool = &answer["pool"];
        if pool.is_null() {
            return format!("pool {} is added", weir_daemon::escape(&new.name));
        }
        format!(
            "pool {} is added: {} of {} reals are live",
            show::text(&pool["name"]),
            pool["live"],
            own_reals(pool)
        )
    })
}

fn show_all(common: &Common, json: bool) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/pools")?.ok()?;
    match json {
        true => show::json(&answer)?,
        false => list(array(&answer["pools"]))?,
    }
    for one in array(&answer["not_in_force"]) {
        let real = one["real"].as_str().map(|real| format!("real {real} of "));
        eprintln!(
            "warning: {}pool {}, added by a command, is not in force: {}",
            weir_daemon::escape(&real.unwrap_or_default()),
            show::text(&one["pool"]),
            show::text(&one["why"])
        );
    }
    Ok(ExitAnswer::Done)
}

fn show_one(common: &Common, name: &str, json: bool) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/pools")?.ok()?;
    let pools = array(&answer["pools"]);
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
    Ok(match pool["live"] == 0 {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

/// The number of reals that are none for an emergency.
fn own_reals(pool: &Value) -> usize {
    let reals = array(&pool["reals"]).iter();
    reals.filter(|real| real["role"] == "real").count()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn sum(values: &[Value], key: &str) -> String {
    let numbers = values.iter().filter_map(|value| value[key].as_u64());
    numbers.sum::<u64>().to_string()
}

/// New flows a second of all these reals, once it is known of one.
fn rate(reals: &[Value]) -> String {
    let rates = { reals.iter() }.filter_map(|real| real["new_flows_per_second"].as_f64());
    let rates: Vec<_> = rates.collect();
    match rates.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.1}", rates.iter().sum::<f64>()),
    }
}

fn list(pools: &[Value]) -> anyhow::Result<()> {
    let rows: Vec<_> = pools
        .iter()
        .map(|pool| {
            let (services, reals) = (array(&pool["services"]), array(&pool["reals"]));
            let own = own_reals(pool);
            vec![
                show::text(&pool["name"]),
                show::text(&pool["method"]),
                format!("{}/{own}", pool["live"]),
                show::text(&pool["served_by"]),
                sum(reals, "flows"),
                rate(reals),
                sum(services, "packets"),
                sum(services, "bytes"),
                sum(services, "unserved"),
                show::text(&pool["origin"]),
            ]
        })
        .collect();
    let head = [
        "POOL",
        "METHOD",
        "LIVE",
        "SERVED BY",
        "FLOWS",
        "NEW/S",
        "PACKETS",
        "BYTES",
        "UNSERVED",
        "FROM",
    ];
    Ok(show::table(&head, &rows)?)
}

/// A column: its head, and the key of the value, in another one or not.
type Column = (&'static str, &'static str);

const SERVICE: &[Column] = &[
    ("VIP", "/vip"),
    ("PORT", "/port"),
    ("FLOWS", "/flows"),
    ("NEW/S", "/new_flows_per_second"),
    ("PACKETS", "/packets"),
    ("BYTES", "/bytes"),
    ("UNSERVED", "/unserved"),
    ("UNREMEMBERED", "/unremembered"),
    ("DENIED", "/denied"),
    ("DISPLACED", "/displaced"),
    ("QUIC-PLACED", "/quic_placed"),
    ("QUIC-UNKNOWN", "/quic_unknown"),
];
const REAL: &[Column] = &[
    ("REAL", "/address"),
    ("ROLE", "/role"),
    ("WEIGHT", "/weight"),
    ("MODE", "/mode"),
    ("STATE", "/state"),
    ("MAC", "/mac"),
    ("QUIC-ID", "/quic_server_id"),
    ("ACTIVE", "/active"),
    ("FLOWS", "/flows"),
    ("NEW/S", "/new_flows_per_second"),
    ("PACKETS", "/packets"),
    ("BYTES", "/bytes"),
    ("FROM", "/origin"),
    ("WHY", "/why"),
];
const PROXIED_SERVICE: &[Column] = &[
    ("VIP", "/vip"),
    ("PORT", "/port"),
    ("FLOWS", "/proxy/flows"),
    ("NEW/S", "/new_flows_per_second"),
    ("BYTES-IN", "/proxy/bytes_in"),
    ("BYTES-OUT", "/proxy/bytes_out"),
    ("NO-REAL", "/proxy/no_real"),
    ("DENIED", "/denied"),
    ("REFUSED", "/proxy/refused"),
    ("OF-CLIENT", "/proxy/refused_client"),
    ("UNREACHABLE", "/proxy/unreachable"),
    ("IDLE", "/proxy/idle"),
    ("EVICTED", "/proxy/evicted"),
];
const PROXIED_REAL: &[Column] = &[
    ("REAL", "/address"),
    ("PORT", "/port"),
    ("ROLE", "/role"),
    ("WEIGHT", "/weight"),
    ("MODE", "/mode"),
    ("STATE", "/state"),
    ("ACTIVE", "/proxy/active"),
    ("FLOWS", "/proxy/flows"),
    ("NEW/S", "/new_flows_per_second"),
    ("BYTES-IN", "/proxy/bytes_in"),
    ("BYTES-OUT", "/proxy/bytes_out"),
    ("FAILED", "/proxy/failed"),
    ("FROM", "/origin"),
    ("WHY", "/why"),
];

fn one(pool: &Value) -> anyhow::Result<()> {
    let (service, real) = match pool["forward"] == "proxy" {
        true => (PROXIED_SERVICE, PROXIED_REAL),
        false => (SERVICE, REAL),
    };
    for (columns, key) in [(service, "services"), (real, "reals")] {
        let cell = |value: Option<&Value>| match value {
            Some(text @ Value::String(_)) => show::text(text),
            None | Some(Value::Null) => "-".to_owned(),
            Some(other) => other.to_string(),
        };
        let row = |value: &Value| {
            let cells = columns.iter().map(|(_, key)| cell(value.pointer(key)));
            cells.collect::<Vec<_>>()
        };
        let rows: Vec<_> = array(&pool[key]).iter().map(row).collect();
        let head: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
        show::table(&head, &rows)?;
        if let Some(acl) = pool.get("acl").filter(|_| key == "services") {
            let rules: Vec<_> = array(&acl["rules"]).iter().map(show::text).collect();
            show::line(format!(
                "acl: {}; others: {} ({} networks)",
                rules.join(", "),
                show::text(&acl["default"]),
                acl["networks"]
            ))?;
        }
    }
    Ok(())
}

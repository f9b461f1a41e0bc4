//! `weir pool`

use clap::Subcommand;
use serde_json::{Value, json};

use super::{Common, ExitAnswer, client::quote, show};

/// Drain, disable or enable a real of a pool, or change its weight
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
}

/// Which real, by its pool and address.
#[derive(clap::Args)]
pub struct Real {
    /// The name of the pool
    pool: String,
    /// The real's own address
    address: std::net::IpAddr,
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
        RealVerb::Drain(real) => (real, json!({ "mode": "draining" })),
        RealVerb::Disable(real) => (real, json!({ "mode": "disabled" })),
        RealVerb::Enable(real) => (real, json!({ "mode": "enabled" })),
        RealVerb::Weight { real, weight } => (real, json!({ "weight": weight.0 })),
    };
    let pool = quote(&real.pool).replace('/', "%2F");
    let path = format!("/v1/pools/{pool}/reals/{}", real.address);
    let answer = common.client().post(&path, &change)?.ok()?;
    let now = &answer["real"];
    show::line(format!(
        "{} of pool {}: {}, weight {}, {}",
        real.address,
        weir_daemon::escape(&real.pool),
        show::text(&now["mode"]),
        now["weight"],
        show::text(&now["state"]),
    ))?;
    if let Some(warning) = answer["warning"].as_str() {
        eprintln!("warning: {}", weir_daemon::escape(warning));
    }
    Ok(ExitAnswer::Done)
}

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
            let own = reals.iter().filter(|real| real["role"] == "real").count();
            vec![
                show::text(&pool["name"]),
                show::text(&pool["method"]),
                format!("{}/{own}", pool["live"]),
                show::text(&pool["served_by"]),
                sum(reals, "flows"),
                sum(services, "packets"),
                sum(services, "bytes"),
                sum(services, "unserved"),
            ]
        })
        .collect();
    let head = [
        "POOL",
        "METHOD",
        "LIVE",
        "SERVED BY",
        "FLOWS",
        "PACKETS",
        "BYTES",
        "UNSERVED",
    ];
    Ok(show::table(&head, &rows)?)
}

/// A column: its head, and the key of the value, in another one or not.
type Column = (&'static str, &'static str);

const SERVICE: &[Column] = &[
    ("VIP", "/vip"),
    ("PORT", "/port"),
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
    ("FLOWS", "/flows"),
    ("PACKETS", "/packets"),
    ("BYTES", "/bytes"),
    ("WHY", "/why"),
];
const PROXIED_SERVICE: &[Column] = &[
    ("VIP", "/vip"),
    ("PORT", "/port"),
    ("FLOWS", "/proxy/flows"),
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
    ("BYTES-IN", "/proxy/bytes_in"),
    ("BYTES-OUT", "/proxy/bytes_out"),
    ("FAILED", "/proxy/failed"),
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

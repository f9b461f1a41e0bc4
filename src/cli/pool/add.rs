//! `weir pool add`: what a pool is to be, and keys that are typed as KEY=VALUE.

use serde_json::{Map, Value};

/// Keys whose value is a number, where it looks like one …
const NUMBERS: [&str; 7] = [
    "weight",
    "port",
    "rise",
    "fall",
    "gue_port",
    "max_connections",
    "max_connections_per_client",
];
/// … and those whose value is true or false.
const BOOLEANS: [&str; 3] = ["vip", "require_answer", "transparent"];

/// What was typed as KEY=VALUE, with the type that the key has; in brackets, braces or
/// quotes as in weir.toml(5).
fn pair(of: &str, text: &str) -> anyhow::Result<(String, Value)> {
    let Some((key, typed)) = text.split_once('=') else {
        anyhow::bail!("{of} has {text:?}; allowed: KEY=VALUE such as \"weight=2\"");
    };
    let (key, typed) = (key.trim(), typed.trim());
    let value = match typed {
        _ if typed.starts_with(['[', '{', '"', '\'']) => toml_value(&format!("{of} {key}"), typed)?,
        "true" | "false" if BOOLEANS.contains(&key) => (typed == "true").into(),
        _ if NUMBERS.contains(&key) => match typed.parse::<i64>() {
            Ok(number) => number.into(),
            Err(_) => typed.into(),
        },
        _ => typed.into(),
    };
    Ok((key.to_owned(), value))
}

fn toml_value(of: &str, text: &str) -> anyhow::Result<Value> {
    let read = toml::from_str::<Map<String, Value>>(&format!("value = {text}"));
    let mut read = read.map_err(|error| {
        anyhow::anyhow!(
            "{of}: {text} is no value as in weir.toml: {}",
            error.message()
        )
    })?;
    Ok(read.remove("value").unwrap_or_default())
}

pub(super) fn table<'a>(
    of: &str,
    pairs: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Map<String, Value>> {
    let mut table = Map::new();
    for text in pairs {
        let (key, value) = pair(of, text)?;
        anyhow::ensure!(
            table.insert(key.clone(), value).is_none(),
            "{of} has {key} twice; allowed: once"
        );
    }
    Ok(table)
}

/// `ADDRESS[,KEY=VALUE,…]`, or a table as in weir.toml.
fn real_table(of: &str, text: &str) -> anyhow::Result<Value> {
    if text.starts_with('{') {
        return toml_value(of, text);
    }
    let (address, keys) = text.split_once(',').unwrap_or((text, ""));
    let mut table = table(of, keys.split(',').filter(|text| !text.is_empty()))?;
    anyhow::ensure!(
        table.insert("address".to_owned(), address.into()).is_none(),
        "{of} {text} has two addresses; allowed: ADDRESS[,weight=N]"
    );
    Ok(Value::Object(table))
}

/// What a pool is to be, with the keys of `[pool.NAME]` in weir.toml(5).
#[derive(clap::Args)]
#[command(
    override_usage = "weir pool add NAME --vip ADDR... --port PORT... --real ADDR[,KEY=VALUE…]... [OPTIONS]"
)]
pub struct New {
    /// The name of the pool; first, before the options: some of them take all words behind them
    pub(super) name: String,
    /// The virtual addresses, IPv4 and IPv6
    #[arg(long, required = true, num_args = 1.., value_delimiter = ',', value_name = "ADDR")]
    vip: Vec<String>,
    /// The ports that it serves, such as 80/tcp, 443/udp, 8000-8003/tcp, 1-65535/tcp or all
    #[arg(long, required = true, num_args = 1.., value_delimiter = ',', value_name = "PORT")]
    port: Vec<String>,
    /// The reals: each an address, with keys behind it such as 192.0.2.11,weight=2
    #[arg(long, required = true, num_args = 1.., value_name = "ADDR[,KEY=VALUE…]")]
    real: Vec<String>,
    /// How a new flow finds its real, such as maglev or round-robin
    #[arg(long)]
    method: Option<String>,
    /// How packets reach the reals: l2, ipip, gue or proxy
    #[arg(long)]
    forward: Option<String>,
    /// The health check, such as http=/healthz,interval=1s; or a table as in weir.toml
    #[arg(long, value_name = "KEY=VALUE[,…]")]
    check: Option<String>,
    /// Who takes new flows while no real does: another pool, or a real as with --real
    #[arg(long, num_args = 1.., value_name = "POOL|ADDR[,…]")]
    emergency: Vec<String>,
    /// Another key of [pool.NAME]: slow_start=30s, or 'acl=["allow country:DE"]' acl_default=deny
    #[arg(long, num_args = 1.., value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl New {
    /// The body of `POST /v1/pools`.
    pub(super) fn body(&self) -> anyhow::Result<Value> {
        let mut pool = table("--set", self.set.iter().map(String::as_str))?;
        let reals = |of: &str, reals: &[String]| {
            let reals = reals.iter().map(|real| real_table(of, real));
            reals.collect::<anyhow::Result<Vec<_>>>()
        };
        let is_address = |text: &String| {
            let address = text.split(',').next().unwrap_or_default();
            text.starts_with('{') || address.parse::<std::net::IpAddr>().is_ok()
        };
        let check = self
            .check
            .as_deref()
            .map(|text| match text.starts_with('{') {
                true => toml_value("--check", text),
                false => Ok(Value::Object(table("--check", text.split(','))?)),
            });
        let emergency = match &*self.emergency {
            [] => None,
            [pool] if !is_address(pool) => Some(Value::from(pool.as_str())),
            several => Some(reals("--emergency", several)?.into()),
        };
        let keys = [
            ("name", Some(self.name.as_str().into())),
            ("vip", Some(self.vip.clone().into())),
            ("ports", Some(self.port.clone().into())),
            ("reals", Some(reals("--real", &self.real)?.into())),
            ("method", self.method.as_deref().map(Value::from)),
            ("forward", self.forward.as_deref().map(Value::from)),
            ("check", check.transpose()?),
            ("emergency", emergency),
        ];
        for (key, value) in keys {
            let Some(value) = value else {
                continue;
            };
            anyhow::ensure!(
                pool.insert(key.to_owned(), value).is_none(),
                "--set has {key}, which has an option of its own"
            );
        }
        Ok(Value::Object(pool))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use serde_json::json;

    use super::super::Verb;
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        verb: Verb,
    }

    fn parse(words: &str) -> Result<Value, String> {
        let words = words.split_whitespace();
        match Cli::try_parse_from(words)
            .map_err(|error| error.to_string())?
            .verb
        {
            Verb::Add(new) => new.body().map_err(|error| error.to_string()),
            _ => panic!("the words add a pool"),
        }
    }

    #[test]
    fn the_name_of_a_pool_is_before_its_options() {
        let options =
            "--vip 198.51.100.81 --port 80/tcp --real 198.51.100.11,weight=2 198.51.100.12";
        let body = parse(&format!("pool add shop {options}")).unwrap();
        assert_eq!(
            body,
            json!({
                "name": "shop", "vip": ["198.51.100.81"], "ports": ["80/tcp"],
                "reals": [{ "address": "198.51.100.11", "weight": 2 }, { "address": "198.51.100.12" }],
            })
        );
        let error = parse(&format!("pool add {options} shop")).unwrap_err();
        assert!(error.contains("<NAME>"), "{error}");
        assert!(error.contains("Usage: weir pool add NAME --vip"), "{error}");
        // Behind an option with one value it may be.
        let body = parse(&format!("pool add {options} --method maglev shop")).unwrap();
        assert_eq!(body["name"], "shop");
    }
}

//! `weir geo`

use std::{net::IpAddr, path::PathBuf};

use anyhow::Context;
use serde_json::json;
use weir_daemon::geo::{Answer as Place, Databases, named_in};

use super::{Answer, Common, complain, show};

/// Say where addresses are said to be; exit code 1 if one is unknown
///
/// Reads the databases that the configuration's [geofence] names, else the one
/// that is built in; the daemon is not asked. Databases are guesses: registries
/// know who an address was given to, not where it is used.
#[derive(clap::Args)]
pub struct Args {
    /// The addresses
    #[arg(required = true, value_name = "ADDR")]
    addresses: Vec<IpAddr>,
    /// Ask this database of countries
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Ask this database of autonomous systems
    #[arg(long, value_name = "FILE")]
    asn_database: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<Answer> {
    let (countries, systems) = named_in(&common.config);
    let countries = args.database.clone().or(countries);
    let systems = args.asn_database.clone().or(systems);
    let databases = Databases::open(countries.as_deref(), systems.as_deref())?;
    for warning in &databases.warnings {
        complain(&anyhow::anyhow!("warning: {warning}"));
    }
    let places: Vec<Place> = args
        .addresses
        .iter()
        .map(|addr| databases.ask(*addr).with_context(|| addr.to_string()))
        .collect::<anyhow::Result<_>>()?;
    if args.json {
        show::json(&json!({ "places": places, "databases": databases.list() }))?;
    } else {
        for place in &places {
            show::line(line(place))?;
        }
        for database in databases.list() {
            show::line(format!(
                "  from {}: {} of {}",
                weir_daemon::escape(&database.name),
                weir_daemon::escape(&database.kind),
                database.day()
            ))?;
        }
    }
    Ok(match places.iter().all(Place::is_known) {
        true => Answer::Done,
        false => Answer::No,
    })
}

fn line(place: &Place) -> String {
    let mut parts = Vec::new();
    if let Some(country) = place.country {
        let name = place.country_name.unwrap_or("no country of ISO 3166");
        parts.push(format!("country:{country} ({name})"));
    }
    if let Some(continent) = place.continent {
        parts.push(format!("continent:{continent} ({})", continent.name()));
    }
    if let Some(asn) = place.asn {
        parts.push(match place.asn_network {
            Some(network) if place.asn_network != place.network => format!("asn:{asn} ({network})"),
            _ => format!("asn:{asn}"),
        });
    }
    if parts.is_empty() {
        parts.push("unknown".to_owned());
    }
    let network = match place.network {
        Some(network) => format!(", network {network}"),
        None => String::new(),
    };
    format!("{}: {}{network}", place.address, parts.join(", "))
}

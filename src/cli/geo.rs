//! `weir geo`

use std::{net::IpAddr, path::PathBuf};

use serde_json::json;
use weir_daemon::access::geo::{
    DatabaseError, DatabaseFile, Databases, GeoAnswer as Place, named_in,
};

use super::{Common, ExitAnswer, complain, show};

/// Look up the country and ASN of addresses; exit code 1 if one is unknown
///
/// Reads the databases that the configuration's [geofence] names, else the one
/// that is built in; the daemon is not asked. One that is named here must answer:
/// exit code 2 if it cannot. Databases are guesses: registries
/// know who an address was given to, not where it is used.
#[derive(clap::Args)]
pub struct Args {
    /// The addresses to look up
    #[arg(required = true, value_name = "ADDR")]
    addresses: Vec<IpAddr>,
    /// Ask this database of countries
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Ask this database of autonomous systems
    #[arg(long, value_name = "FILE")]
    asn_database: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let (countries, systems) = named_in(&common.config);
    let required = |file: &Option<PathBuf>| file.clone().map(DatabaseFile::Required);
    let countries = required(&args.database).or(countries);
    let systems = required(&args.asn_database).or(systems);
    let databases = Databases::open(countries.as_ref(), systems.as_ref())?;
    for warning in &databases.warnings {
        complain(&anyhow::anyhow!("warning: {warning}"));
    }
    // A record that is broken says nothing about the other addresses.
    let places: Vec<(IpAddr, Result<Place, DatabaseError>)> = args
        .addresses
        .iter()
        .map(|addr| (*addr, databases.ask(*addr)))
        .collect();
    let shown = |(address, place): &(IpAddr, Result<Place, DatabaseError>)| match place {
        Ok(place) => json!(place),
        Err(error) => json!({ "address": address, "error": error.to_string() }),
    };
    if args.json {
        let places: Vec<_> = places.iter().map(shown).collect();
        show::json(&json!({ "places": places, "databases": databases.list() }))?;
    } else {
        for (_, place) in &places {
            if let Ok(place) = place {
                show::line(line(place))?;
            }
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
    let broken = places.iter().filter(|(_, place)| place.is_err()).count();
    for (address, place) in &places {
        if let Err(error) = place {
            complain(&anyhow::anyhow!("{address}: {error}"));
        }
    }
    if broken > 0 {
        anyhow::bail!("{broken} of {} addresses have no answer", places.len());
    }
    let known = |(_, place): &(IpAddr, Result<Place, DatabaseError>)| {
        place.as_ref().is_ok_and(Place::is_known)
    };
    Ok(match places.iter().all(known) {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
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

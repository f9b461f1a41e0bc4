//! `weir options`

mod agent;
mod inject;
mod list;
mod probe;

use clap::Subcommand;

use super::ExitAnswer;

/// Put options on packets, and measure which of them paths let through
///
/// Options of IPv4, TCP and UDP (RFC 9868) and extension headers of IPv6. No
/// daemon is needed.
#[derive(Subcommand)]
pub enum Verb {
    /// List the options that have a name, with IANA's number and the document of each
    List(list::Args),
    Inject(inject::Args),
    Probe(probe::Args),
    Agent(agent::Args),
}

pub fn run(verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::List(args) => list::run(args),
        Verb::Inject(args) => inject::run(args),
        Verb::Probe(args) => probe::run(args),
        Verb::Agent(args) => agent::run(args),
    }
}

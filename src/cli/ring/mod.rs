//! `weir ring`: shared-memory log rings from the command line. Needs no daemon;
//! what a ring is and how it works is the `weir-ring` crate's.

mod lines;
mod message;
mod pipe;
mod segment;
mod status;
mod syslog;
mod tail;

use clap::Subcommand;

use super::ExitAnswer;

/// Fill and read shared-memory log rings
#[derive(Subcommand)]
pub enum Verb {
    Pipe(pipe::Args),
    Syslog(syslog::Args),
    Tail(tail::Args),
    Status(status::Args),
}

pub fn run(verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::Pipe(args) => pipe::run(args),
        Verb::Syslog(args) => syslog::run(args),
        Verb::Tail(args) => tail::run(args),
        Verb::Status(args) => status::run(args),
    }
}

//! `weir ring`: shared-memory log rings from the command line. Needs no daemon;
//! what a ring is and how it works is the `weir-ring` crate's.

mod lines;
mod pipe;
mod segment;

use clap::Subcommand;

use super::Answer;

/// Fill and read shared-memory log rings
#[derive(Subcommand)]
pub enum Verb {
    /// Write the lines of standard input to a ring, one record each
    Pipe(pipe::Args),
}

pub fn run(verb: &Verb) -> anyhow::Result<Answer> {
    match verb {
        Verb::Pipe(args) => pipe::run(args),
    }
}

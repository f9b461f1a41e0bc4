//! Man pages and shell completions, made from the definition of the verbs, and the
//! reference of the configuration, made from its reader: weir.toml(5) and
//! docs/configuration.md.

mod config_page;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::{ExitAnswer, Weir};

/// The date that the man pages carry; the release's.
const DATE: &str = "2026-11-21";

/// Write the man pages to a directory
#[derive(clap::Args)]
pub struct ManArgs {
    /// Where weir.1, weir-ban.1, … and weir.toml.5 are written
    dir: PathBuf,
    /// Write the reference of the configuration instead, as in docs/configuration.md
    #[arg(long)]
    markdown: bool,
}

/// Print a completion script
#[derive(clap::Args)]
pub struct CompletionArgs {
    /// For which shell
    shell: Shell,
}

pub fn man(args: &ManArgs) -> anyhow::Result<ExitAnswer> {
    let write = || {
        std::fs::create_dir_all(&args.dir)?;
        if args.markdown {
            let path = args.dir.join("configuration.md");
            return std::fs::write(path, config_page::markdown());
        }
        let mut weir = Weir::command();
        weir.build();
        pages(weir, &args.dir)?;
        std::fs::write(args.dir.join("weir.toml.5"), config_page::roff(DATE))
    };
    write().with_context(|| format!("writing pages to {}", args.dir.display()))?;
    Ok(ExitAnswer::Done)
}

/// A page for a command, and for each of its verbs that is not hidden; `help`
/// needs none.
/// (clap_mangen's own generate_to leaves the date out, and the fields of the
/// header move up by one.)
fn pages(command: clap::Command, dir: &Path) -> io::Result<()> {
    let is_shown = |verb: &&clap::Command| !verb.is_hide_set() && verb.get_name() != "help";
    for verb in command.get_subcommands().filter(is_shown) {
        pages(verb.clone(), dir)?;
    }
    clap_mangen::Man::new(command)
        .date(DATE)
        .source(concat!("weir ", env!("CARGO_PKG_VERSION")))
        .manual("weir manual")
        .generate_to(dir)
        .map(drop)
}

pub fn completions(args: &CompletionArgs) -> anyhow::Result<ExitAnswer> {
    // The generator panics where its reader has gone away.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut offered(), "weir", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitAnswer::Done)
}

/// The verbs for people: completion scripts offer hidden ones as well.
fn offered() -> clap::Command {
    let all = Weir::command();
    let verbs = all.get_subcommands().filter(|verb| !verb.is_hide_set());
    clap::Command::new("weir")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .args(all.get_arguments().cloned())
        .subcommands(verbs.cloned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_verbs_is_sound() {
        super::Weir::command().debug_assert();
    }
}

//! Man pages and shell completions, made from the definition of the verbs.

use std::{io, path::PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::{Answer, Weir};

/// Write the man pages to a directory
#[derive(clap::Args)]
pub struct ManArgs {
    /// Where weir.1, weir-ban.1, … are written
    dir: PathBuf,
}

/// Print a completion script
#[derive(clap::Args)]
pub struct CompletionArgs {
    /// For which shell
    shell: Shell,
}

pub fn man(args: &ManArgs) -> anyhow::Result<Answer> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Weir::command(), &args.dir))
        .with_context(|| format!("writing man pages to {}", args.dir.display()))?;
    Ok(Answer::Done)
}

pub fn completions(args: &CompletionArgs) -> anyhow::Result<Answer> {
    clap_complete::generate(args.shell, &mut Weir::command(), "weir", &mut io::stdout());
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_verbs_is_sound() {
        super::Weir::command().debug_assert();
    }
}

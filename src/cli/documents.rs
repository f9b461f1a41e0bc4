//! Man pages and shell completions, made from the definition of the verbs, and the
//! reference of the configuration, made from its reader: weir.toml(5) and
//! docs/configuration.md.

mod config_page;
mod examples;
mod page_parts;

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
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let name = command.get_display_name().unwrap_or("weir").to_owned();
    let called = command.get_bin_name().unwrap_or_default();
    let verb = called.strip_prefix("weir").unwrap_or_default();
    let verb = verb.trim_start().to_owned();
    let page = clap_mangen::Man::new(command)
        .date(DATE)
        .source(concat!("weir ", env!("CARGO_PKG_VERSION")))
        .manual("weir manual");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = page_parts::with_parts(&String::from_utf8_lossy(&text), &verb, &about);
    std::fs::write(dir.join(format!("{name}.1")), text)
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
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::{
        examples::{EXAMPLES, of_verb},
        page_parts::with_parts,
    };

    /// The verbs that do something, as they are typed behind `weir`.
    fn verbs(command: &clap::Command, before: &str) -> BTreeSet<String> {
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let each = shown.flat_map(|verb| {
            let name = format!("{before} {}", verb.get_name()).trim().to_owned();
            match verb.has_subcommands() {
                true => verbs(verb, &name),
                false => BTreeSet::from([name]),
            }
        });
        each.collect()
    }

    #[test]
    fn every_verb_has_an_example_and_every_example_is_a_command() {
        let verbs = verbs(&super::Weir::command(), "");
        assert!(verbs.len() > 60, "{verbs:?}");
        for verb in &verbs {
            assert!(of_verb(verb).count() > 0, "{verb} has no example");
        }
        for (verb, line, _) in EXAMPLES {
            assert!(
                verb.is_empty() || verbs.contains(*verb),
                "there is no {verb}"
            );
            let words = shlex::split(line).unwrap();
            let mut is_of_verb = verb.is_empty();
            for command in words.split(|word| word == "&&") {
                let command = command.iter().filter(|word| !word.starts_with('<'));
                let command: Vec<_> = command.cloned().collect();
                is_of_verb |= format!("{} ", command.join(" ")).contains(&format!(" {verb} "));
                if let Err(why) = super::Weir::try_parse_from(&command) {
                    panic!("{line}: {why}");
                }
            }
            assert!(is_of_verb, "{line} is no example of {verb}");
        }
    }

    #[test]
    fn a_page_has_what_its_verb_means_by_exit_codes_and_the_files_of_it() {
        let made = ".TH weir-app-x 1\n.SH OPTIONS\nx\n.SH VERSION\nv1\n";
        let about = "Say who it is; exit code 1 if none is\n\nMore. Exit code 0: a; 1: b, or\nc; 2: d. Else\n";
        let page = with_parts(made, "app allow", about);
        let parts = page.lines().filter_map(|line| line.strip_prefix(".SH "));
        let parts: Vec<_> = parts.collect();
        assert_eq!(
            parts,
            ["OPTIONS", "EXIT STATUS", "FILES", "EXAMPLES", "VERSION"]
        );
        for line in [
            "Here: exit code 1 if none is. Exit code 0: a; 1: b, or c; 2: d.",
            "\\fB/etc/weir/conf.d/50\\-app\\-rules.toml\\fR",
            "\\fBweir app deny \\-\\-user nobody \\-\\-out\\fR",
        ] {
            assert_eq!(
                page.lines().any(|one| one == line),
                !line.contains("deny"),
                "{line}: {page}"
            );
        }
        assert!(!page.contains("opensnitch"), "{page}");
        assert!(!with_parts(made, "app", "About").contains("EXAMPLES"));
    }

    #[test]
    fn the_definition_of_the_verbs_is_sound() {
        super::Weir::command().debug_assert();
    }
}

//! `weir app allow` and `weir app deny`: one rule more, by the SHA-256 of a file as it is
//! now.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use weir_daemon::identity::{PackageRecord, digest_of, never_runs};

use super::drop_in::DropIn;
use crate::cli::{Common, ExitAnswer, show};

/// The file that they write; before that of `weir app enforce`.
const FILE: &str = "50-app-rules.toml";
const HEAD: &str = "# Rules by weir app allow and weir app deny, the first that holds first.\n";

// Both take the same; what each does is said where they are named.
#[derive(clap::Args)]
pub struct Args {
    /// The executable, by its path; its SHA-256 as it is now stands in the rule
    program: PathBuf,
    /// It is a library: the rule is about every program that has it mapped
    #[arg(long)]
    library: bool,
    /// Only with this peer, which the program connects to: an address, prefix, list:NAME,
    /// country:DE or name:example.org; may be repeated
    #[arg(long, value_name = "PEER", conflicts_with = "incoming")]
    to: Vec<String>,
    /// Only with this peer, which connects to the program; may be repeated
    #[arg(long, value_name = "PEER", conflicts_with = "outgoing")]
    from: Vec<String>,
    /// Only at this port, such as 443/tcp: the peer's of what goes out, its own of what
    /// comes in; may be repeated
    #[arg(long, value_name = "PORT")]
    port: Vec<String>,
    /// Only what others begin with it
    #[arg(long = "in", conflicts_with = "outgoing")]
    incoming: bool,
    /// Only what it begins
    #[arg(long = "out")]
    outgoing: bool,
    /// The rule's name [default: made of the program's]
    #[arg(long)]
    name: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The SHA-256 that the file has to have.
    #[arg(skip)]
    expected: Option<String>,
}

/// What the rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// It may, where the rule is about the connection.
    Allow,
    /// The program may not: connect fails at once.
    Deny,
}

impl Says {
    /// As the command is called.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Args {
    /// The executable at this path, as long as it has this SHA-256, with any peer at this
    /// port (`443/tcp`).
    pub fn of_port(path: &Path, digest: String, port: &str, is_out: bool) -> Self {
        Self {
            program: path.to_owned(),
            library: false,
            to: Vec::new(),
            from: Vec::new(),
            port: vec![port.to_owned()],
            incoming: !is_out,
            outgoing: is_out,
            name: None,
            dry_run: false,
            expected: Some(digest),
        }
    }
}

pub fn run(common: &Common, says: Says, args: &Args) -> anyhow::Result<ExitAnswer> {
    add(common, says, args, true)?;
    Ok(ExitAnswer::Done)
}

/// Adds the rule. `is_shown`: what changes is printed.
pub fn add(common: &Common, says: Says, args: &Args, is_shown: bool) -> anyhow::Result<()> {
    let path = fs::canonicalize(&args.program)
        .with_context(|| format!("cannot find {}", args.program.display()))?;
    let digest =
        digest_of(&path).map_err(|why| anyhow::anyhow!("cannot hash {}: {why}", path.display()))?;
    let is_other = |expected: &String| *expected != digest.to_string();
    if args.expected.as_ref().is_some_and(is_other) {
        bail!(
            "{} was replaced meanwhile: no rule was written",
            path.display()
        );
    }
    if !args.library
        && let Some(why) = never_runs(&path)
    {
        bail!("no process is ever {}: {why}", path.display());
    }
    let file = DropIn::of(common, FILE)?;
    let mut names = names_in(file.text());
    for (_, text) in file.others()? {
        names.extend(names_in(&text));
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => free_name(says, &path, &names),
    };
    let rule = rule(says, args, &name, &path, &digest.to_string());
    let after = insert(file.text(), says, &rule);
    if is_shown {
        file.show_difference(&after)?;
    }
    if !args.dry_run {
        let warnings = file.put(common, &after)?;
        if is_shown {
            warnings.into_iter().try_for_each(show::line)?;
            show::line(format!(
                "[app.rules.{}] is in force",
                weir_daemon::escape(&name)
            ))?;
        }
    }
    Ok(())
}

fn names_in(text: &str) -> BTreeSet<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let rules = table
        .get("app")
        .and_then(|app| app.get("rules")?.as_table());
    rules
        .into_iter()
        .flat_map(|rules| rules.keys().cloned())
        .collect()
}

/// Of letters, digits, - and _, as names of rules are.
fn free_name(says: Says, path: &Path, taken: &BTreeSet<String>) -> String {
    let verb = says.word();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let fine = |c: char| match c {
        c if c.is_ascii_alphanumeric() || c == '-' => c,
        _ => '_',
    };
    let base: String = file.chars().map(fine).take(32).collect();
    let base = format!("{verb}-{base}");
    let mut names = std::iter::once(base.clone()).chain((2..).map(|n| format!("{base}-{n}")));
    names
        .find(|name| !taken.contains(name))
        .expect("numbers do not end")
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn rule(says: Says, args: &Args, name: &str, path: &Path, digest: &str) -> String {
    let of = match PackageRecord::of(path) {
        PackageRecord::Agrees(package) => format!(", of package {package}"),
        PackageRecord::Differs(package) => {
            format!(", which is not as it is on record of package {package}")
        }
        PackageRecord::None => String::new(),
    };
    let mut text = format!(
        "\n# {}{of}\n[app.rules.{}]\nverdict = \"{}\"\n{} = \"{digest}\"\n",
        weir_daemon::escape(&path.display().to_string()),
        // A name that is none is refused by the reader.
        match name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !name.is_empty()
        {
            true => name.to_owned(),
            false => quoted(name),
        },
        match says {
            Says::Allow => "allow",
            Says::Deny => "reject",
        },
        if args.library { "object" } else { "exe" },
    );
    for (key, list) in [
        ("to", &args.to),
        ("from", &args.from),
        ("ports", &args.port),
    ] {
        if !list.is_empty() {
            let list: Vec<_> = list.iter().map(|entry| quoted(entry)).collect();
            text.push_str(&format!("{key} = [{}]\n", list.join(", ")));
        }
    }
    for (is_only, word) in [(args.incoming, "in"), (args.outgoing, "out")] {
        if is_only {
            text.push_str(&format!("direction = \"{word}\"\n"));
        }
    }
    text
}

/// A rule that allows comes last, and one that denies first: it is to hold also where one
/// that allows is there.
fn insert(before: &str, says: Says, rule: &str) -> String {
    let before = if before.is_empty() { HEAD } else { before };
    match (says, before.strip_prefix(HEAD)) {
        (Says::Deny, Some(rest)) => format!("{HEAD}{rule}{rest}"),
        (Says::Deny, None) => format!("{HEAD}{rule}\n{before}"),
        (Says::Allow, _) => {
            let end = if before.ends_with('\n') { "" } else { "\n" };
            format!("{before}{end}{rule}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_denies_comes_before_those_that_allow() {
        let one = insert("", Says::Allow, "\n[app.rules.a]\n");
        let two = insert(&one, Says::Deny, "\n[app.rules.d]\n");
        let three = insert(&two, Says::Allow, "\n[app.rules.b]\n");
        let heads: Vec<_> = three.lines().filter(|line| line.starts_with('[')).collect();
        assert_eq!(heads, ["[app.rules.d]", "[app.rules.a]", "[app.rules.b]"]);
        assert_eq!(three.matches(HEAD).count(), 1);
        let by_hand = insert("[app]\n[app.rules.x]", Says::Deny, "\n[app.rules.d]\n");
        assert!(
            by_hand.find("rules.d") < by_hand.find("rules.x"),
            "{by_hand}"
        );
    }

    #[test]
    fn names_are_made_of_the_program_and_not_given_twice() {
        let taken = names_in("[app.rules.allow-curl]\n[app.rules.allow-curl-2]\n");
        let name = free_name(Says::Allow, Path::new("/usr/bin/curl"), &taken);
        assert_eq!(name, "allow-curl-3");
        let name = free_name(Says::Deny, Path::new("/opt/a \"b\"]"), &taken);
        assert_eq!(name, "deny-a__b__");
    }
}

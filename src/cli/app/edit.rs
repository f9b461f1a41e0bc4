//! `weir app allow` and `weir app deny`: one rule more, by the SHA-256 of a file as it is
//! now, or by whatever else rules know programs by.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use weir_daemon::identity::{PackageRecord, digest_of, never_runs};
use weir_identity::Digest;

use super::{drop_in::DropIn, hash::whole_of};
use crate::cli::{Common, ExitAnswer, show};

/// The file that they write; before that of `weir app enforce`.
pub const FILE: &str = "50-app-rules.toml";
pub const HEAD: &str = "# Rules by weir app allow and weir app deny, the first that holds first.\n";

// Both take the same; what each does is said where they are named.
#[derive(clap::Args, Default)]
#[command(group(clap::ArgGroup::new("who").required(true).multiple(true)))]
pub struct Args {
    /// The executable, by its path; its SHA-256 as it is now stands in the rule
    #[arg(group = "who")]
    program: Option<PathBuf>,
    /// It is a library: the rule is about every program that has it mapped
    #[arg(long, requires = "program")]
    library: bool,
    #[command(flatten)]
    who: Who,
    /// The other way round: a key of the rule that is named here, such as user, is to differ;
    /// may be repeated
    #[arg(long, value_name = "KEY")]
    not: Vec<String>,
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
    /// Only sockets of this kind, tcp, udp, icmp, raw or other; may be repeated
    #[arg(long, value_name = "KIND", conflicts_with = "port")]
    protocol: Vec<String>,
    /// Only what others begin with it
    #[arg(long = "in", conflicts_with = "outgoing")]
    incoming: bool,
    /// Only what it begins
    #[arg(long = "out")]
    outgoing: bool,
    /// The rule's name [default: made of whom it is about]
    #[arg(long)]
    name: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The SHA-256 that the file has to have.
    #[arg(skip)]
    expected: Option<String>,
}

/// Whom a rule is about beside, or without, an executable by its SHA-256.
#[derive(clap::Args, Default)]
#[command(
    next_help_heading = "Whom the rule is about; all that is given has to fit, of what is repeated one"
)]
struct Who {
    /// The executable that is at this path whenever the configuration is read
    #[arg(long, value_name = "PATH", group = "who")]
    path: Vec<PathBuf>,
    /// The package whose record has the executable
    #[arg(long, value_name = "NAME", group = "who")]
    package: Vec<String>,
    /// The script that an interpreter was started with: beside a program, --path or --package
    #[arg(long, value_name = "PATH", group = "who")]
    script: Vec<PathBuf>,
    /// The effective user, by name or number
    #[arg(long, value_name = "USER", group = "who")]
    user: Vec<String>,
    /// The control group by its path from the root, or above it; * is any text within a part
    #[arg(long, value_name = "PATH", group = "who")]
    cgroup: Vec<String>,
    /// The systemd unit; * is any text
    #[arg(long, value_name = "UNIT", group = "who")]
    unit: Vec<String>,
    /// The container by a label, KEY or KEY=VALUE; * in the value is any text
    #[arg(long, value_name = "LABEL", group = "who")]
    container: Vec<String>,
    /// Any file that is mapped executable, by its path or its SHA-256
    #[arg(long, value_name = "FILE|SHA256", group = "who")]
    object: Vec<String>,
    /// The whole program by its aggregate SHA-256, or as the process pid:NUMBER is now
    #[arg(long, value_name = "SHA256|PROCESS", group = "who")]
    aggregate: Vec<String>,
    /// Programs with executable memory that is of no file
    #[arg(long, group = "who")]
    anonymous: bool,
    /// Programs whose code was changed in memory, or that another process has traced
    #[arg(long, group = "who")]
    altered: bool,
    /// Sockets in this network namespace, such as /run/netns/blue
    #[arg(long, value_name = "FILE", group = "who")]
    netns: Option<PathBuf>,
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
            program: Some(path.to_owned()),
            port: vec![port.to_owned()],
            incoming: !is_out,
            outgoing: is_out,
            expected: Some(digest),
            ..Self::default()
        }
    }
}

pub fn run(common: &Common, says: Says, args: &Args) -> anyhow::Result<ExitAnswer> {
    add(common, says, args, true)?;
    Ok(ExitAnswer::Done)
}

/// The keys of the rule that say whom it is about, each with its values as they are written;
/// and what it is about, for people.
struct Said {
    keys: Vec<(&'static str, String)>,
    about: String,
    /// Text of which the rule's name is made.
    name: String,
}

/// The SHA-256 of a file, which is no script; and its path without links.
fn executable(program: &Path) -> anyhow::Result<(PathBuf, String)> {
    let path = fs::canonicalize(program).with_context(|| {
        let hint = match program.parent() {
            Some(parent) if parent.as_os_str().is_empty() => {
                "; a program is named by its path, such as /usr/bin/curl"
            }
            _ => "",
        };
        format!("cannot find {}{hint}", program.display())
    })?;
    let digest =
        digest_of(&path).map_err(|why| anyhow::anyhow!("cannot hash {}: {why}", path.display()))?;
    Ok((path, digest.to_string()))
}

fn refuse_script(path: &Path) -> anyhow::Result<()> {
    match never_runs(path) {
        Some(why) => bail!("no process is ever {}: {why}", path.display()),
        None => Ok(()),
    }
}

fn absolute(path: &Path) -> anyhow::Result<String> {
    let path =
        std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
    let text = path.to_str();
    let text = text.with_context(|| format!("{} is no text", path.display()))?;
    Ok(text.to_owned())
}

/// One value as it is, several as a list.
fn written(values: &[String]) -> String {
    let quoted: Vec<_> = values.iter().map(|value| quoted(value)).collect();
    match &quoted[..] {
        [one] => one.clone(),
        _ => format!("[{}]", quoted.join(", ")),
    }
}

fn who(common: &Common, args: &Args) -> anyhow::Result<Said> {
    let Who {
        path,
        package,
        script,
        user,
        cgroup,
        unit,
        container,
        object,
        aggregate,
        anonymous,
        altered,
        netns,
    } = &args.who;
    let (mut keys, mut about, mut name) = (Vec::new(), Vec::new(), String::new());
    let mut objects = Vec::new();
    if let Some(program) = &args.program {
        let (path, digest) = executable(program)?;
        let is_other = |expected: &String| *expected != digest;
        if args.expected.as_ref().is_some_and(is_other) {
            bail!(
                "{} was replaced meanwhile: no rule was written",
                path.display()
            );
        }
        if !args.library {
            refuse_script(&path)?;
        }
        let of = match PackageRecord::of(&path) {
            PackageRecord::Agrees(package) => format!(", of package {package}"),
            PackageRecord::Differs(package) => {
                format!(", which is not as it is on record of package {package}")
            }
            PackageRecord::None => String::new(),
        };
        about.push(format!("{}{of}", path.display()));
        name = file_name(&path);
        match args.library {
            true => objects.push(digest),
            false => keys.push(("exe", vec![digest])),
        }
    }
    for one in object {
        if let Ok(digest) = one.parse::<Digest>() {
            objects.push(digest.to_string());
            continue;
        }
        let (path, digest) = executable(Path::new(one))?;
        about.push(path.display().to_string());
        objects.push(digest);
        if name.is_empty() {
            name = file_name(&path);
        }
    }
    let mut wholes = Vec::new();
    for one in aggregate {
        let process = one.strip_prefix("pid:").map(str::parse::<u32>);
        wholes.push(match (process, one.parse::<Digest>()) {
            (Some(Ok(pid)), _) => whole_of(common, pid)?,
            (_, Ok(digest)) => digest.to_string(),
            _ => bail!(
                "--aggregate {one:?}; allowed: a SHA-256 of 64 hexadecimal digits, sha256: before them or not, or pid:NUMBER"
            ),
        });
    }
    let mut paths = Vec::new();
    for one in path {
        refuse_script(one)?;
        paths.push(absolute(one)?);
    }
    let scripts = script.iter().map(|path| absolute(path));
    let scripts = scripts.collect::<anyhow::Result<Vec<_>>>()?;
    keys.extend([
        ("object", objects),
        ("aggregate", wholes),
        ("path", paths),
        ("package", package.clone()),
        ("script", scripts),
        ("user", user.clone()),
        ("cgroup", cgroup.clone()),
        ("unit", unit.clone()),
        ("container", container.clone()),
    ]);
    keys.retain(|(_, values)| !values.is_empty());
    for (key, values) in keys.iter().filter(|(_, values)| !values.is_empty()) {
        let is_of_file = ["exe", "object", "aggregate"].contains(key);
        if !is_of_file {
            about.push(format!("{key} {}", values.join(" or ")));
        }
        if name.is_empty() {
            name = match is_of_file {
                true => (*key).to_owned(),
                false => file_name(Path::new(&values[0])),
            };
        }
    }
    let keys = keys.into_iter();
    let mut keys: Vec<_> = keys.map(|(key, values)| (key, written(&values))).collect();
    for (is, key) in [(*anonymous, "anonymous"), (*altered, "altered")] {
        if is {
            keys.push((key, "true".to_owned()));
            about.push(format!("{key} programs"));
            if name.is_empty() {
                name = key.to_owned();
            }
        }
    }
    if let Some(netns) = netns {
        let netns = absolute(netns)?;
        about.push(format!("network namespace {netns}"));
        if name.is_empty() {
            name = file_name(Path::new(&netns));
        }
        keys.push(("netns", quoted(&netns)));
    }
    if !args.not.is_empty() {
        about.push(format!("not that {}", args.not.join(" nor ")));
        keys.push(("not", written(&args.not)));
    }
    let about = about.join("; ");
    Ok(Said { keys, about, name })
}

/// Adds the rule. `is_shown`: what changes is printed.
pub fn add(common: &Common, says: Says, args: &Args, is_shown: bool) -> anyhow::Result<()> {
    let said = who(common, args)?;
    let file = DropIn::of(common, FILE)?;
    let mut names = names_in(file.text());
    let mut is_on = has_app(file.text());
    for (_, text) in file.others()? {
        names.extend(names_in(&text));
        is_on |= has_app(&text);
    }
    if !is_on {
        bail!(
            "there is no [app] in the configuration, so that weir judges no program, and this rule would have it judge all of them: write [app] first, with its default, and reload"
        );
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => free_name(says, &said.name, &names),
    };
    let rule = rule(says, args, &name, &said);
    let after = insert(file.text(), says, &rule);
    file.refuse_mistakes(Some(&after))?;
    let warnings = match args.dry_run {
        true => None,
        false => Some(file.put(common, Some(&after))?),
    };
    if is_shown {
        file.show_difference(&after)?;
        if let Some(warnings) = warnings {
            warnings.into_iter().try_for_each(show::line)?;
            show::line(format!(
                "[app.rules.{}] is in force",
                weir_daemon::escape(&name)
            ))?;
        }
    }
    Ok(())
}

fn has_app(text: &str) -> bool {
    let table: toml::Table = text.parse().unwrap_or_default();
    table.contains_key("app")
}

pub fn names_in(text: &str) -> BTreeSet<String> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let rules = table
        .get("app")
        .and_then(|app| app.get("rules")?.as_table());
    rules
        .into_iter()
        .flat_map(|rules| rules.keys().cloned())
        .collect()
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Of letters, digits, - and _, as names of rules are.
fn free_name(says: Says, about: &str, taken: &BTreeSet<String>) -> String {
    let verb = says.word();
    let fine = |c: char| match c {
        c if c.is_ascii_alphanumeric() || c == '-' => c,
        _ => '_',
    };
    let base: String = about.chars().map(fine).take(32).collect();
    let base = format!("{verb}-{base}");
    let mut names = std::iter::once(base.clone()).chain((2..).map(|n| format!("{base}-{n}")));
    names
        .find(|name| !taken.contains(name))
        .expect("numbers do not end")
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn rule(says: Says, args: &Args, name: &str, said: &Said) -> String {
    let mut text = format!(
        "\n# {}\n[app.rules.{}]\nverdict = \"{}\"\n",
        weir_daemon::escape(&said.about),
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
    );
    for (key, value) in &said.keys {
        text.push_str(&format!("{key} = {value}\n"));
    }
    for (key, list) in [
        ("to", &args.to),
        ("from", &args.from),
        ("ports", &args.port),
        ("protocols", &args.protocol),
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
        let name = free_name(Says::Allow, "curl", &taken);
        assert_eq!(name, "allow-curl-3");
        let name = free_name(Says::Deny, "a \"b\"]", &taken);
        assert_eq!(name, "deny-a__b__");
    }
}

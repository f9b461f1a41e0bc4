//! `weir app enforce`

use std::path::PathBuf;

use anyhow::bail;
use serde_json::Value;
use weir_daemon::{
    counted,
    identity::{MADE_BY, SshLogin},
};

use super::{drop_in::DropIn, review};
use crate::cli::{Common, ExitAnswer, show};

/// The file that it writes; after those with rules by hand.
const FILE: &str = "60-app-learned.toml";

/// Make rules of what was reviewed, and put them into force
///
/// Writes conf.d/60-app-learned.toml beside weir.toml: a rule for each program and what it
/// did, and "drop" for everything else. Shows what changes in that file, and reloads; if
/// the reload is refused, the file is as it was. Rules in weir.toml and in files before
/// this one are asked first. Exit code 1 if nothing was reviewed.
#[derive(clap::Args)]
pub struct Args {
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the rules for a file of your own, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Allow only the peers that were seen, not only their ports
    #[arg(long)]
    peers: bool,
    /// Name the whole program in each form that was seen, so that no other library may be
    /// mapped (LD_PRELOAD); an upgrade of any library ends the rule
    #[arg(long)]
    whole: bool,
    /// Name the scripts of interpreters; each process is identified by itself then
    #[arg(long)]
    scripts: bool,
    /// With what has not been reviewed
    #[arg(long)]
    unreviewed: bool,
    /// Also if this login came in at a port that no rule would allow
    #[arg(long)]
    force: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let made = |has_defaults: bool| -> anyhow::Result<Value> {
        let options = [
            ("peers", args.peers),
            ("whole", args.whole),
            ("scripts", args.scripts),
            ("unreviewed", args.unreviewed),
            ("defaults", has_defaults),
        ];
        let query: Vec<_> = options.map(|(key, is)| format!("{key}={is}")).into();
        let path = format!("/v1/app/learned/rules?{}", query.join("&"));
        common.client().get(&path)?.ok()
    };
    if args.print {
        let made = made(true)?;
        show::text_as_it_is(made["text"].as_str().unwrap_or_default())?;
        return Ok(answer(&made));
    }
    let file = DropIn::of(common, FILE)?;
    if !file.text().is_empty() && !file.text().starts_with(MADE_BY) {
        bail!(
            "{} was not made by weir app enforce, or somebody has changed its head: rename it, or remove it",
            file.path.display()
        );
    }
    let defaults = Defaults::of(&file)?;
    let made = made(defaults.is_free())?;
    let learned = common.client().get("/v1/app/learned")?.ok()?;
    let has_rules = made["rules"] != 0;
    // Before a plan is shown that will not come about.
    let refused = match defaults.obstacle() {
        Some(obstacle) => Some(obstacle),
        None => ends_this_login(args, &learned),
    };
    if let Some(why) = refused.filter(|_| has_rules) {
        match args.dry_run {
            true => show::wrapped(format!("it would be refused: {why}"))?,
            false => bail!(why),
        }
    }
    let text = made["text"].as_str().unwrap_or_default();
    if has_rules {
        file.refuse_mistakes(Some(text))?;
    }
    summary(&made)?;
    if !has_rules {
        show::line(
            "no rules: weir app learn start records, weir app review --accept says what is reviewed",
        )?;
        return Ok(ExitAnswer::No);
    }
    let missed = learned["learning"]["unidentified"].as_u64().unwrap_or(0);
    if missed > 0 {
        show::wrapped(format!(
            "{} no rule, because their programs were gone before they were identified: weir app list --short-lived names them",
            counted(missed, "connection has", "connections have")
        ))?;
    }
    if args.dry_run {
        file.show_difference(text)?;
        return Ok(ExitAnswer::Done);
    }
    let warnings = file.put(common, Some(text))?;
    file.show_difference(text)?;
    warnings.into_iter().try_for_each(show::line)?;
    show::line(format!(
        "in force: {}, everything else is dropped",
        show::counted(&made["rules"], "rule", "rules")
    ))?;
    Ok(ExitAnswer::Done)
}

/// Why the login in which this runs would be cut.
fn ends_this_login(args: &Args, learned: &Value) -> Option<String> {
    let SshLogin { port, .. } = SshLogin::of_this_process()?;
    let is_cut = !args.force && !review::lets_in(learned, port, args.unreviewed);
    is_cut.then(|| format!(
        "this login came in at port {port}/tcp, and nothing that was reviewed allows that: it would be cut. Learn and review a connection to it, or add a rule (weir app allow); --force enforces all the same"
    ))
}

fn answer(made: &Value) -> ExitAnswer {
    match made["rules"] == 0 {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    }
}

/// Connections without a rule.
const KINDS: [&str; 2] = [
    "kind of connections is left out",
    "kinds of connections are left out",
];

fn summary(made: &Value) -> std::io::Result<()> {
    for (key, [one, many], why) in [
        (
            "unreviewed",
            KINDS,
            "because nobody has reviewed them (weir app review --new)",
        ),
        ("denied", KINDS, "because a rule denies them"),
        (
            "left_out",
            ["program has no rule", "programs have no rule"],
            "because a file of theirs has no SHA-256 that counts",
        ),
    ] {
        if made[key] != 0 {
            let what = show::counted(&made[key], one, many);
            show::wrapped(format!("{what}, {why}"))?;
        }
    }
    Ok(())
}

/// Where `default` and `unknown` of `[app]` are set in other files.
struct Defaults(Vec<(PathBuf, &'static str, String)>);

impl Defaults {
    fn of(file: &DropIn) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        for (path, text) in file.others()? {
            let table: toml::Table = text.parse().unwrap_or_default();
            for key in ["default", "unknown"] {
                let value = table.get("app").and_then(|app| app.get(key)?.as_str());
                if let Some(value) = value {
                    found.push((path.clone(), key, value.to_owned()));
                }
            }
        }
        Ok(Self(found))
    }

    /// This file may say what they are.
    fn is_free(&self) -> bool {
        self.0.is_empty()
    }

    /// Why rules cannot be put into force beside them.
    fn obstacle(&self) -> Option<String> {
        let denies = |value: &str| matches!(value, "drop" | "reject");
        let [first, rest @ ..] = &self.0[..] else {
            return None;
        };
        if rest.len() == 1 && self.0.iter().all(|(_, _, value)| denies(value)) {
            return None;
        }
        let (path, key, value) = self
            .0
            .iter()
            .find(|(_, _, value)| !denies(value))
            .unwrap_or(first);
        Some(format!(
            "{} has {key} = {value:?} in [app], so that what has no rule would not be dropped: remove default and unknown from [app] there, for {FILE} sets both, and enforce again",
            path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_file_says_of_everybody_else_is_not_overridden() {
        let of = |found: &[(&'static str, &str)]| {
            let found = found.iter();
            Defaults(
                found
                    .map(|(key, value)| ("/etc/weir/weir.toml".into(), *key, (*value).to_owned()))
                    .collect(),
            )
        };
        assert!(of(&[]).is_free());
        assert_eq!(of(&[]).obstacle(), None);
        assert_eq!(
            of(&[("default", "reject"), ("unknown", "drop")]).obstacle(),
            None
        );
        let one = of(&[("default", "drop")]).obstacle().unwrap();
        assert!(one.contains("weir.toml has default = \"drop\""), "{one}");
        let learns = of(&[("default", "drop"), ("unknown", "learn")]);
        assert!(!learns.is_free());
        let why = learns.obstacle().unwrap();
        assert!(why.contains("unknown = \"learn\""), "{why}");
    }
}

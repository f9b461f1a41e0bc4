//! `weir app`

mod accept;
mod drop_in;
mod edit;
mod enforce;
mod hash;
mod learn;
mod prompt;
mod remove;
mod review;
mod why;

use clap::Subcommand;
use serde_json::Value;

use super::{Common, ExitAnswer, show};

/// Show which programs may talk to whom, and who they are
#[derive(Subcommand)]
pub enum Verb {
    /// List the rules with what each has decided; exit code 1 if there is no [app]
    List {
        /// List the programs that are known instead, and the rules about each
        #[arg(long)]
        programs: bool,
        /// List instead programs that ended before it was known who they were: what the
        /// kernel told of them
        #[arg(long, conflicts_with = "programs")]
        short_lived: bool,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    Hash(hash::Args),
    Why(why::Args),
    #[command(subcommand)]
    Learn(learn::Verb),
    Review(review::Args),
    Enforce(enforce::Args),
    /// Add a rule that allows a program, or whoever else it names, and reload
    ///
    /// A program is named by its SHA-256 as it is now. The rule comes last in
    /// conf.d/50-app-rules.toml beside weir.toml. If the reload is refused, the file is as it
    /// was. weir app remove takes it away again.
    Allow(Box<edit::Args>),
    /// Add a rule that refuses a program, or whoever else it names, and reload
    ///
    /// A program is named by its SHA-256 as it is now. The rule comes first in
    /// conf.d/50-app-rules.toml beside weir.toml: it holds also where a rule there allows the
    /// program. If the reload is refused, the file is as it was. weir app remove takes it away
    /// again.
    Deny(Box<edit::Args>),
    Remove(remove::Args),
    Accept(accept::Args),
    Prompt(prompt::Args),
    /// List the rules that decide most, by decisions since they are in force
    Top {
        /// How many rules to list
        #[arg(long, default_value = "10")]
        count: usize,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn run(common: &Common, verb: &Verb) -> anyhow::Result<ExitAnswer> {
    match verb {
        Verb::List {
            short_lived: true,
            json,
            ..
        } => short_lived(common, *json),
        Verb::List {
            programs: false,
            json,
            ..
        } => rules(common, *json, None),
        Verb::List { json, .. } => programs(common, *json),
        Verb::Top { count, json } => rules(common, *json, Some(*count)),
        Verb::Learn(verb) => learn::run(common, verb),
        Verb::Review(args) => review::run(common, args),
        Verb::Enforce(args) => enforce::run(common, args),
        Verb::Allow(args) => edit::run(common, edit::Says::Allow, args),
        Verb::Deny(args) => edit::run(common, edit::Says::Deny, args),
        Verb::Accept(args) => accept::run(common, args),
        Verb::Remove(args) => remove::run(common, args),
        Verb::Prompt(args) => prompt::run(common, args),
        Verb::Why(args) => why::run(common, args),
        Verb::Hash(args) => hash::run(common, args),
    }
}

fn rules(common: &Common, is_json: bool, top: Option<usize>) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/app")?.ok()?;
    let app = &answer["app"];
    let mut rules = array(&app["rules"]).to_vec();
    if let Some(count) = top {
        rules.sort_by_key(|rule| std::cmp::Reverse(rule["judged"].as_u64()));
        rules.truncate(count);
    }
    if is_json {
        match top {
            Some(_) => show::json(&Value::Array(rules))?,
            None => show::json(app)?,
        }
    } else if app.is_null() {
        show::line("there is no [app] in the configuration: every program may talk to everybody")?;
    } else {
        let rows: Vec<_> = rules
            .iter()
            .map(|rule| {
                let number = |key: &str| rule[key].to_string();
                vec![
                    show::text(&rule["name"]),
                    show::text(&rule["verdict"]),
                    number("programs"),
                    number("judged"),
                    number("dropped"),
                ]
            })
            .collect();
        show::table(
            &["RULE", "VERDICT", "PROGRAMS", "DECISIONS", "DENIED"],
            &rows,
        )?;
    }
    Ok(match app.is_null() {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

fn names(rules: &Value) -> String {
    let names: Vec<_> = array(rules).iter().map(show::text).collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(", "),
    }
}

fn digest(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), str::to_owned)
}

fn programs(common: &Common, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/app/programs")?.ok()?;
    let programs = array(&answer["programs"]);
    if is_json {
        show::json(&answer["programs"])?;
        return Ok(ExitAnswer::Done);
    }
    let rows: Vec<_> = programs
        .iter()
        .map(|program| {
            vec![
                digest(&program["exe"]["path"]),
                program["objects"].to_string(),
                program["uid"].to_string(),
                names(&program["rules"]),
                digest(&program["exe"]["digest"]),
            ]
        })
        .collect();
    show::table(&["PROGRAM", "FILES", "UID", "RULES", "SHA-256"], &rows)?;
    Ok(ExitAnswer::Done)
}

fn short_lived(common: &Common, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let answer = common.client().get("/v1/app/short-lived")?.ok()?;
    let programs = array(&answer["short_lived"]);
    if is_json {
        show::json(&answer["short_lived"])?;
        return Ok(ExitAnswer::Done);
    }
    let rows: Vec<_> = programs
        .iter()
        .map(|program| {
            vec![
                digest(&program["path"]),
                show::text(&program["comm"]),
                program["uid"].to_string(),
                program["count"].to_string(),
                show::text(&program["last"]),
            ]
        })
        .collect();
    show::table(&["PROGRAM", "CALLS ITSELF", "UID", "TIMES", "LAST"], &rows)?;
    Ok(ExitAnswer::Done)
}

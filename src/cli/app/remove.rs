//! `weir app remove`: takes rules away that `weir app allow`, `weir app deny` or an answer of
//! `weir app prompt` has added.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::bail;
use serde_json::{Value, json};

use super::{
    drop_in::DropIn,
    edit::{FILE, HEAD, names_in},
};
use crate::cli::{Common, ExitAnswer, show};

/// Take rules away that weir app allow, deny or prompt has added, and reload
///
/// Without a name it lists those that are there; exit code 1 if none is. Rules of other files
/// stay: who has written them takes them away. If the reload is refused, the file is as it was.
#[derive(clap::Args)]
pub struct Args {
    /// The names of rules, as this command lists them
    names: Vec<String>,
    /// Show what would change, and change nothing
    #[arg(long, requires = "names")]
    dry_run: bool,
    /// List them as JSON
    #[arg(long, conflicts_with = "names")]
    json: bool,
}

pub fn run(common: &Common, args: &Args) -> anyhow::Result<ExitAnswer> {
    let file = DropIn::of(common, FILE)?;
    if args.names.is_empty() {
        return list(&file, args.json);
    }
    let here = names_in(file.text());
    let wanted: BTreeSet<&String> = args.names.iter().collect();
    for name in &wanted {
        if !here.contains(*name) {
            bail!(not_here(&file, name, &here)?);
        }
    }
    let mut text = file.text().to_owned();
    for name in &wanted {
        let Some(without) = without(&text, name) else {
            bail!(
                "[app.rules.{}] is not written in {} as weir writes rules: take it away there by hand, then weir reload",
                weir_daemon::escape(name),
                file.path.display()
            );
        };
        text = without;
    }
    let is_empty = text.trim().is_empty() || text.trim() == HEAD.trim();
    let after = (!is_empty).then_some(&*text);
    file.refuse_mistakes(after)?;
    if args.dry_run {
        file.show_difference(&text)?;
        return Ok(ExitAnswer::Done);
    }
    let warnings = file.put(common, after)?;
    file.show_difference(&text)?;
    warnings.into_iter().try_for_each(show::line)?;
    for name in wanted {
        show::line(format!(
            "[app.rules.{}] is no more",
            weir_daemon::escape(name)
        ))?;
    }
    Ok(ExitAnswer::Done)
}

/// Why there is no such rule to be taken away.
fn not_here(file: &DropIn, name: &str, here: &BTreeSet<String>) -> anyhow::Result<String> {
    let others = file.others()?;
    let elsewhere: Option<PathBuf> = others
        .into_iter()
        .find(|(_, text)| names_in(text).contains(name))
        .map(|(path, _)| path);
    let shown = weir_daemon::escape(name);
    let here: Vec<_> = here.iter().map(|name| weir_daemon::escape(name)).collect();
    let allowed = match here.is_empty() {
        true => format!("there is none in {}", file.path.display()),
        false => format!("allowed: {}", here.join(", ")),
    };
    Ok(match elsewhere {
        Some(path) => format!(
            "[app.rules.{shown}] is in {}, which this command leaves alone: take it away there, then weir reload; {allowed}",
            path.display()
        ),
        None => format!("there is no rule {shown:?} that was added; {allowed}"),
    })
}

fn list(file: &DropIn, is_json: bool) -> anyhow::Result<ExitAnswer> {
    let table: toml::Table = file.text().parse().unwrap_or_default();
    let rules = table
        .get("app")
        .and_then(|app| app.get("rules")?.as_table());
    let rules: Vec<_> = rules.into_iter().flatten().collect();
    if is_json {
        let rules = rules
            .iter()
            .map(|(name, rule)| Ok(json!({ "name": name, "rule": serde_json::to_value(rule)? })));
        show::json(&Value::Array(rules.collect::<anyhow::Result<_>>()?))?;
    } else if rules.is_empty() {
        show::line(format!("no rule was added: {}", file.path.display()))?;
    } else {
        let rows: Vec<_> = rules
            .iter()
            .map(|(name, rule)| {
                let says = |key: &str| rule.get(key).and_then(toml::Value::as_str);
                let verdict = says("verdict").unwrap_or("-");
                let rest = rule.as_table().into_iter().flatten();
                let rest = rest.filter(|(key, _)| *key != "verdict");
                let rest: Vec<_> = rest
                    .map(|(key, value)| format!("{key} = {value}"))
                    .collect();
                vec![
                    weir_daemon::escape(name),
                    weir_daemon::escape(verdict),
                    weir_daemon::escape(&rest.join(", ")),
                ]
            })
            .collect();
        show::table(&["RULE", "VERDICT", "OF WHOM, AND WHERE"], &rows)?;
    }
    Ok(match rules.is_empty() {
        true => ExitAnswer::No,
        false => ExitAnswer::Done,
    })
}

/// The rule that a line is the head of.
fn head(line: &str) -> Option<String> {
    if !line.trim_start().starts_with('[') {
        return None;
    }
    let mut names = names_in(line).into_iter();
    names.next()
}

/// The text without that rule and the comment above it; `None`: it is not written in a table of
/// its own, or something else would go with it.
fn without(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let at = lines
        .iter()
        .position(|line| head(line).as_deref() == Some(name))?;
    let is_head = |line: &&str| line.trim_start().starts_with('[');
    let is_beside = |line: &str| {
        let line = line.trim();
        (line.is_empty() || line.starts_with('#')) && line != HEAD.trim()
    };
    // Up to the head of the next one, whose comment stays.
    let mut end = lines[at + 1..]
        .iter()
        .position(is_head)
        .map_or(lines.len(), |next| at + 1 + next);
    if end < lines.len() {
        while end > at + 1 && is_beside(lines[end - 1]) {
            end -= 1;
        }
    }
    let mut begin = at;
    while begin > 0 && lines[begin - 1].trim_start().starts_with('#') && is_beside(lines[begin - 1])
    {
        begin -= 1;
    }
    while begin > 0 && lines[begin - 1].trim().is_empty() {
        begin -= 1;
    }
    let rest = [&lines[..begin], &lines[end..]].concat().concat();
    let mut wanted: toml::Table = text.parse().ok()?;
    let app = wanted.get_mut("app")?.as_table_mut()?;
    let rules = app.get_mut("rules")?.as_table_mut()?;
    rules.remove(name)?;
    if rules.is_empty() {
        app.remove("rules");
    }
    let is_empty = app.is_empty();
    if is_empty {
        wanted.remove("app");
    }
    let mut is: toml::Table = rest.parse().ok()?;
    if is_empty
        && is
            .get("app")
            .and_then(toml::Value::as_table)
            .is_some_and(toml::Table::is_empty)
    {
        is.remove("app");
    }
    (is == wanted).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_goes_with_its_comment_and_nothing_else() {
        let text = format!(
            "{HEAD}\n# one\n[app.rules.a]\nverdict = \"allow\"\nexe = \"x\"\n\n# by hand\n# of two lines\n[app.rules.\"b c\"]\nverdict = \"drop\"\n# inside\nuser = \"u\"\n\n# three\n[app.rules.d]\nverdict = \"drop\"\n"
        );
        let a = without(&text, "a").unwrap();
        assert!(
            !a.contains("# one") && a.contains("# by hand\n# of two lines"),
            "{a}"
        );
        assert!(a.starts_with(HEAD), "{a}");
        let b = without(&text, "b c").unwrap();
        assert!(!b.contains("by hand") && !b.contains("inside"), "{b}");
        assert!(b.contains("# three") && b.contains("# one"), "{b}");
        let all = without(&without(&a, "d").unwrap(), "b c").unwrap();
        assert_eq!(all.trim(), HEAD.trim());
        assert_eq!(without(&text, "e"), None);
        // Written in another way, or with a key that is of the table before: by hand.
        assert_eq!(
            without("[app]\nrules.a = { verdict = \"drop\" }\n", "a"),
            None
        );
        let deep = "[app.rules.a]\nverdict = \"drop\"\n[app.rules.a.more]\nx = 1\n";
        assert_eq!(without(deep, "a"), None);
        // What looks like a head within a text of several lines.
        let odd =
            "[app.rules.b]\nuser = '''\n[app.rules.a]\n'''\n[app.rules.a]\nverdict = \"drop\"\n";
        assert_eq!(without(odd, "a"), None);
        let plain = "[app]\ndefault = \"drop\"\n[app.rules.a]\nverdict = \"drop\"\n";
        assert_eq!(without(plain, "a").unwrap(), "[app]\ndefault = \"drop\"\n");
    }
}

//! `weir import fail2ban`: what each enabled jail becomes, and what of it is not honoured.

use std::path::Path;

use anyhow::Context;
use weir_daemon::{
    fail2ban::{self, Fail2ban},
    host::Host,
};

use crate::cli::{Common, ExitAnswer, show};

/// Prints a weir.toml that runs the configuration in `dir`; of a dry run only what it says.
/// The answer is no if a jail cannot be run.
pub fn run(dir: &Path, is_dry: bool) -> anyhow::Result<ExitAnswer> {
    let dir = std::path::absolute(dir).with_context(|| format!("reading {}", dir.display()))?;
    let found = fail2ban::found(&dir, &Host)?;
    let comment = if is_dry { "" } else { "# " };
    for line in report(&found) {
        show::line(format!("{comment}{}", weir_daemon::escape(&line)))?;
    }
    if !is_dry {
        let path = toml::Value::from(dir.to_string_lossy().into_owned());
        show::line(format!("\n[fail2ban]\npath = {path}"))?;
    }
    Ok(match found.broken.is_empty() {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

/// Has the daemon take over what Fail2ban's database holds. The answer is no if some of its
/// bans have no jail here.
pub fn take_over_bans(common: &Common, path: Option<&Path>) -> anyhow::Result<ExitAnswer> {
    let path = path.map(std::path::absolute).transpose()?;
    let body = serde_json::json!({ "path": path });
    let answer = common.client().post("/v1/fail2ban/bans", &body)?.ok()?;
    let number = |key: &str| answer[key].as_u64().unwrap_or(0);
    show::line(format!(
        "taken over: {}; already in force here: {}; expired, and counted as past bans: {}",
        number("bans"),
        number("known"),
        number("over")
    ))?;
    if number("unreadable") > 0 {
        show::line(format!(
            "unreadable rows, left out: {}",
            number("unreadable")
        ))?;
    }
    let others = answer["other_jails"].as_object();
    for (jail, count) in others.into_iter().flatten() {
        let jail = weir_daemon::escape(jail);
        show::line(format!(
            "not taken over: {count} bans of jail {jail}, which does not run here"
        ))?;
    }
    Ok(match others.is_none_or(serde_json::Map::is_empty) {
        true => ExitAnswer::Done,
        false => ExitAnswer::No,
    })
}

fn report(found: &Fail2ban) -> Vec<String> {
    let mut lines = Vec::new();
    for jail in &found.jails {
        lines.push(fail2ban::describe(jail));
        let own = |(name, note): &&(String, String)| {
            let others = found.notes.iter().filter(|(_, other)| other == note);
            *name == jail.name && others.count() == 1
        };
        let notes = found.notes.iter().filter(own);
        lines.extend(notes.map(|(_, note)| format!("  not honoured: {note}")));
    }
    // What several jails have in common stands there once.
    let common = fail2ban::grouped(&found.notes).into_iter();
    let common = common.filter(|note| !note.starts_with("jail "));
    lines.extend(common.map(|note| format!("not honoured by {note}")));
    let of_server = found.server_notes.iter();
    lines.extend(of_server.map(|note| format!("not honoured: {note}")));
    for (name, why) in &found.broken {
        lines.push(format!("{name}: NOT RUN: {why}"));
    }
    let are = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    lines.push(format!(
        "{}, {}; {} not enabled",
        are(found.jails.len(), "jail runs", "jails run"),
        match found.broken.len() {
            0 => "none is broken".to_owned(),
            broken => are(broken, "is broken", "are broken"),
        },
        are(found.disabled, "more is", "more are"),
    ));
    lines
}

//! `weir status JAIL` for a person: what the jail does, what it has found, and whom it bans.

use serde_json::Value;
use weir_daemon::counted;

use super::{alerts, show, text, wrapped};
use crate::cli::show::{Tone, headline};

/// So many bans are shown; `weir bans --jail` has all.
pub const MAX_BANS: usize = 20;

/// Prints the report. `bans`: the answer about the jail's bans, [`MAX_BANS`] at most.
pub fn report(jail: &Value, status: &Value, bans: &Value) -> anyhow::Result<()> {
    let name = text(&jail["name"]);
    let number = |key: &str| jail[key].as_u64().unwrap_or(0);
    wrapped(format!(
        "jail {name}: {}, {} failures that make no ban yet",
        counted(number("bans_in_force"), "ban in force", "bans in force"),
        counted(number("tracked"), "address with", "addresses with")
    ))?;
    let about =
        |alert: &&Value| is_about(alert["about"].as_str().unwrap_or_default(), &jail["name"]);
    for alert in alerts(status).iter().filter(about) {
        let since = show::moment(alert["since"].as_str().unwrap_or_default());
        let rest = format!(" since {since}: {}", text(&alert["message"]));
        headline(Tone::Bad, "ALERT", &rest)?;
    }
    let effect = match jail["action"].as_str() {
        Some("notify") => "; it notifies only: weir drops nothing for it".to_owned(),
        Some("reject") => format!(", of ports {}, rejected", text(&jail["scope"])),
        _ => format!(", of ports {}, dropped", text(&jail["scope"])),
    };
    let rows = [
        ("source", text(&jail["source"])),
        ("filter", text(&jail["filter"])),
        (
            "a ban",
            format!(
                "at {} failures in {}, for {}{effect}",
                jail["max_retry"],
                text(&jail["find_time"]),
                text(&jail["ban_time"])
            ),
        ),
        ("lines", format!("{} read", number("lines"))),
        (
            "failures",
            format!("{} found{}", number("findings"), left_out(jail)),
        ),
        (
            "bans",
            format!(
                "{} made, {} in force",
                number("bans"),
                number("bans_in_force")
            ),
        ),
    ];
    for (what, says) in rows {
        wrapped(format!("  {what}: {says}"))?;
    }
    let shown = bans["bans"].as_array().map_or(&[][..], Vec::as_slice);
    if shown.is_empty() {
        return Ok(());
    }
    let row = |ban: &Value| vec![text(&ban["subject"]), show::end(ban), text(&ban["reason"])];
    let rows: Vec<_> = shown.iter().map(row).collect();
    show::table(&["BANNED", "END", "REASON"], &rows)?;
    let total = bans["total"].as_u64().unwrap_or(0);
    if total > shown.len() as u64 {
        wrapped(format!(
            "{} of {total}; weir bans --jail {name} --limit 0 lists all",
            shown.len()
        ))?;
    }
    Ok(())
}

/// Is an alert with this `about` the jail's: `jail:NAME`, `jail:NAME:KIND`, `action:NAME/ACTION`?
fn is_about(about: &str, jail: &Value) -> bool {
    let Some(jail) = jail.as_str() else {
        return false;
    };
    let rest = ["jail:", "fail2ban:", "action:"]
        .into_iter()
        .find_map(|kind| about.strip_prefix(kind)?.strip_prefix(jail));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
}

/// Failures that did not count, by why.
fn left_out(jail: &Value) -> String {
    let parts: Vec<_> = [
        ("ignored", "of addresses that are never banned"),
        ("refused", "that name nobody who can be banned"),
        ("forgotten", "forgotten for want of room"),
        ("names_failed", "of host names without an address"),
    ]
    .into_iter()
    .filter_map(|(key, what)| match jail[key].as_u64() {
        None | Some(0) => None,
        Some(number) => Some(format!("{number} {what}")),
    })
    .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("; not counted: {}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_of_a_jail_are_known_by_what_they_are_about() {
        for (about, is) in [
            ("jail:sshd", true),
            ("jail:sshd:head", true),
            ("action:sshd/mail", true),
            ("fail2ban:sshd", true),
            ("jail:sshd-2", false),
            ("jail:sshd-2:head", false),
            ("list:sshd", false),
            ("resolver", false),
        ] {
            assert_eq!(is_about(about, &"sshd".into()), is, "{about}");
        }
    }
}

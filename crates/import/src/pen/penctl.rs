//! What penctl tells a running Pen, and what tells a running weir the same. It is no
//! configuration: it becomes an error that says what to type, or which key to change.

use std::net::IpAddr;

use super::commands::{by_kind, instead};
use crate::Error;

/// Longer commands are not repeated.
const MAX_SHOWN: usize = 200;

/// Keys and commands in the place of those of penctl's that are no question to a server.
const IN_PLACE: &[(&[&str], &str)] = &[
    (
        &[
            "servers",
            "status",
            "mode",
            "recent",
            "connection",
            "socket",
        ],
        "weir pool show pen (--json), and weir status",
    ),
    (
        &["close"],
        "weir real disable pen ADDRESS, which ends all that a server has; a single connection has no number here",
    ),
    (
        &["listen"],
        "weir pool add, or `vip` and `ports` of [pool.pen], then weir reload",
    ),
    (
        &["acl", "client_acl"],
        "`acl` of [pool.pen], then weir reload; for the whole host weir ban ADDRESS",
    ),
    (
        &["blacklist", "timeout"],
        "`rise` and `timeout` of `check` in [pool.pen] (of a proxy `connect_timeout`), then weir reload",
    ),
    (
        &["conn_max", "idle_timeout"],
        "`max_connections` and `idle_timeout` of [pool.pen], if that is a proxy, then weir reload",
    ),
    (
        &["transparent"],
        "`transparent` of [pool.pen], if that is a proxy, then weir reload; with dsr_if nothing: the servers see each client's own address",
    ),
    (
        &["hash", "roundrobin", "weight", "prio", "stubborn"],
        "`method` of [pool.pen], then weir reload, and weir real weight pen ADDRESS WEIGHT",
    ),
    (
        &["tarpit_acl"],
        "`addresses` and `dark` of [tarpit], then weir reload",
    ),
    (&["pid"], "systemctl show -p MainPID weir"),
    (&["exit"], "systemctl stop weir"),
    (
        &["include"],
        "weir import pen FILE, which prints what that file becomes, then weir reload",
    ),
    (
        &["debug", "log", "web_stats"],
        "weir events, weir why ADDRESS, and the metrics",
    ),
];

/// What is said of `penctl HOST:PORT COMMAND`; `words` are those behind its name.
pub(super) fn in_its_place(words: &[String]) -> Error {
    let words: Vec<&str> = words
        .iter()
        .flat_map(|word| word.split_whitespace())
        .collect();
    let begin =
        "penctl tells a running Pen something, and weir import pen takes what Pen was started with";
    let Some(command) = words.get(1..).filter(|command| !command.is_empty()) else {
        return Error(format!("{begin}: no command of penctl's is in it"));
    };
    let shown: String = command.join(" ").chars().take(MAX_SHOWN).collect();
    Error(format!(
        "{begin}. In the place of `{shown}`: {}",
        of(command)
    ))
}

fn of(command: &[&str]) -> String {
    match command {
        ["server", number, rest @ ..] => of_server(number, rest),
        ["no", name, ..] if is_told(name) => format!("the opposite in {}", of(&[name])),
        [name, ..] => in_place(name)
            .or_else(|| {
                let by_kind = by_kind(name)?;
                Some(format!(
                    "with dsr_if {}; of a proxy {}",
                    by_kind.dsr, by_kind.proxy
                ))
            })
            .unwrap_or_else(|| "nothing: it is no command of penctl's".to_owned()),
        [] => "nothing".to_owned(),
    }
}

/// Is it a command that has a place here?
fn is_told(name: &str) -> bool {
    in_place(name).is_some() || by_kind(name).is_some()
}

fn in_place(name: &str) -> Option<String> {
    let entry = IN_PLACE.iter().find(|(names, _)| names.contains(&name));
    let text = entry.map(|(_, text)| *text).or_else(|| instead(name));
    text.map(str::to_owned)
}

/// `server N` with values: a command for each of them.
fn of_server(number: &str, rest: &[&str]) -> String {
    let mut commands = Vec::new();
    let number = number
        .parse::<u16>()
        .map_or("N".to_owned(), |n| n.to_string());
    for pair in rest.chunks(2) {
        let value = pair.get(1).copied().unwrap_or_default();
        commands.push(match pair[0] {
            "weight" => match value.parse::<u32>() {
                Ok(weight) => format!("weir real weight pen ADDRESS {}", weight.min(1000)),
                Err(_) => "weir real weight pen ADDRESS WEIGHT".to_owned(),
            },
            "blacklist" if value == "0" => "weir real enable pen ADDRESS".to_owned(),
            "blacklist" => "weir real disable pen ADDRESS, until weir real enable pen ADDRESS (weir real drain lets its connections end)".to_owned(),
            "address" => {
                let new = value.parse::<IpAddr>().map_or("NEW-ADDRESS".to_owned(), |a| a.to_string());
                format!("weir real add pen {new}, then weir real del pen ADDRESS (or in [pool.pen], then weir reload)")
            }
            "port" => {
                let port = value.parse::<u16>().map_or("PORT".to_owned(), |p| p.to_string());
                format!("of a proxy `port = {port}` of the real in [pool.pen], then weir reload")
            }
            "acl" => "`acl` of [pool.pen], then weir reload".to_owned(),
            "max" | "hard" => "nothing: the server limits itself".to_owned(),
            "prio" => "weir real weight pen ADDRESS 0 for one that is there for later, or `emergency` of [pool.pen]".to_owned(),
            _ => "nothing: it is nothing of a server's".to_owned(),
        });
    }
    if commands.is_empty() {
        commands.push("weir pool show pen".to_owned());
    }
    format!(
        "{} (ADDRESS is that of server {number})",
        commands.join("; ")
    )
}

//! `fail2ban-client`, and `fail2ban-server -t`: the front ends of these names, for scripts
//! and people who are used to them. The daemon answers (`POST /v1/fail2ban`); here its
//! replies get the texts that Fail2ban prints, since exporters and panels parse them.

mod configuration;

use std::{ffi::OsStr, path::PathBuf, process::ExitCode};

use clap::Parser;
use serde_json::{Value, json};

use super::{Common, client::Reply, complain, show};

/// The exit code of Fail2ban's client when a command fails.
const FAILED: u8 = 255;

/// Commands of fail2ban-client, answered by weir for its jails
///
/// ping, version, status [--all|JAIL] [short], stats, banned [IP...], unban --all|IP...,
/// reload [--unban] [JAIL], flushlogs, echo WORD..., get dbpurgeage, -t, -d,
/// get JAIL banip|banned|bantime|findtime|maxretry|maxlines|usedns|ignoreself,
/// get JAIL bantime.increment|bantime.rndtime|bantime.overalljails,
/// get JAIL logpath|logencoding|logtimezone|journalmatch|ignoreip|ignorecommand|actions,
/// get JAIL prefregex|failregex|ignoreregex|datepattern,
/// set JAIL banip|unbanip|addignoreip|delignoreip IP...,
/// set JAIL attempt IP [LINE...], set JAIL bantime|findtime TIME, set JAIL maxretry N
#[derive(Parser)]
#[command(name = "fail2ban-client", disable_version_flag = true)]
pub struct Args {
    /// weir's configuration file, or the directory that holds it; for -t and -d one of
    /// Fail2ban's as well
    #[arg(short, long, value_name = "FILE", default_value = weir_daemon::config::DEFAULT_PATH)]
    conf: PathBuf,
    /// The daemon's control socket
    #[arg(short, long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Check the configuration and do nothing else
    #[arg(short, long)]
    test: bool,
    /// Print what is configured, as the commands that Fail2ban would send to its server
    #[arg(short, long = "dump")]
    dump: bool,
    /// The same as -d, by Fail2ban's other name for it
    #[arg(long, visible_alias = "dp")]
    dump_pretty: bool,
    /// Print the reply as JSON
    #[arg(long)]
    json: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Turns an abbreviation such as 1d12h into seconds
    #[arg(long, value_name = "TIME")]
    str2sec: Option<String>,
    /// Accepted for scripts that ask for more or fewer messages
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Accepted for scripts that ask for fewer messages
    #[arg(short, action = clap::ArgAction::Count)]
    quiet: u8,
    /// The command with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Was the program called by one of these front ends' names?
pub fn is_called(program: Option<&OsStr>) -> bool {
    let name = program
        .map(std::path::Path::new)
        .and_then(|p| p.file_name());
    name.is_some_and(|name| name == "fail2ban-client" || name == "fail2ban-server")
}

/// Does what the command line says, and exits as Fail2ban's client does.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) if super::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(FAILED)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.version {
        show::line(format!("weir {}", env!("CARGO_PKG_VERSION")))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(text) = &args.str2sec {
        let time = weir_fail2ban::duration(text)
            .map_err(|why| anyhow::anyhow!("{text:?} is not a length of time: {why}"))?;
        let seconds = time.map_or("-1".to_owned(), |time| time.as_secs().to_string());
        show::line(seconds)?;
        return Ok(ExitCode::SUCCESS);
    }
    // The socket that speaks Fail2ban's protocol is the same daemon's.
    let is_fail2bans =
        |path: &PathBuf| weir_daemon::config::fail2ban_socket_of(&args.conf).as_ref() == Some(path);
    let common = Common {
        config: args.conf.clone(),
        socket: args.socket.clone().filter(|path| !is_fail2bans(path)),
    };
    if args.test || args.dump || args.dump_pretty {
        return configured(args);
    }
    let command: Vec<&str> = args.command.iter().map(String::as_str).collect();
    anyhow::ensure!(
        !command.is_empty(),
        "there is no command; fail2ban-client --help lists those that weir answers"
    );
    let body = json!({ "command": command });
    match common.client().post("/v1/fail2ban", &body)? {
        Reply::Ok(answer) if args.json => show::json(&answer["reply"])?,
        Reply::Ok(answer) => {
            show::line(words(&command, &answer["reply"]))?;
            // Not in the text, which programs read.
            for jail in values(&answer["not_run"]) {
                let (name, why) = (text(&jail["jail"]), text(&jail["why"]));
                complain(&anyhow::anyhow!("jail {name} is not run: {why}"));
            }
        }
        Reply::NotFound(_) => {
            let jail = command.get(1).unwrap_or(&"");
            complain(&anyhow::anyhow!(
                "Sorry but the jail '{jail}' does not exist"
            ));
            return Ok(ExitCode::from(FAILED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `-t` and `-d`.
fn configured(args: &Args) -> anyhow::Result<ExitCode> {
    let configured = configuration::read(&args.conf)?;
    if args.dump || args.dump_pretty {
        let commands = configured.commands();
        match args.json {
            true => show::json(&Value::from(commands))?,
            false => {
                for command in &commands {
                    show::line(weir_daemon::escape(&python(command)))?;
                }
            }
        }
    }
    for warning in &configured.warnings {
        complain(&anyhow::anyhow!("warning: {warning}"));
    }
    for why in &configured.broken {
        complain(&anyhow::anyhow!("{why}"));
    }
    if args.test && !configured.broken.is_empty() {
        complain(&anyhow::anyhow!("ERROR: test configuration failed"));
        return Ok(ExitCode::from(FAILED));
    }
    if args.test {
        show::line("OK: configuration test is successful")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A reply in the words of Fail2ban's client.
fn words(command: &[&str], reply: &Value) -> String {
    match command {
        ["ping"] => format!("Server replied: {}", text(reply)),
        ["status"] => tree("Status".to_owned(), reply),
        ["status", "--all", ..] => {
            let (jails, overview) = values(reply).split_last().unwrap_or((reply, &[]));
            let mut texts = vec![tree("Status".to_owned(), &overview.to_vec().into())];
            for (jail, status) in jails.as_object().into_iter().flatten() {
                texts.push(tree(format!("Status for the jail: {jail}"), status));
            }
            texts.join("\n\n")
        }
        ["stats" | "statistics"] => stats(reply),
        ["status", jail, ..] => tree(format!("Status for the jail: {jail}"), reply),
        ["get", "loglevel"] => format!("Current logging level is '{}'", text(reply)),
        ["get", "logtarget"] => format!("Current logging target is:\n`- {}", text(reply)),
        ["get", "syslogsocket"] => format!("Current syslog socket is:\n`- {}", text(reply)),
        ["get", "dbfile"] => format!("Current database file is:\n`- {}", text(reply)),
        ["get", _, "logpath"] => listed(
            reply,
            "No file is currently monitored",
            "Current monitored log file(s):",
        ),
        ["get", _, "ignoreip"] | ["set", _, "addignoreip" | "delignoreip", ..] => listed(
            reply,
            "No IP address/network is ignored",
            "These IP addresses/networks are ignored:",
        ),
        ["echo", ..] => texts(reply).join(" "),
        ["get", "dbpurgeage"] => {
            format!("Current database purge age is:\n`- {}seconds", text(reply))
        }
        ["get", _, "logencoding"] => {
            format!("Current log encoding is set to:\n{}", text(reply))
        }
        ["get", _, "datepattern"] => {
            let what = match values(reply) {
                [Value::Null, form] => text(form),
                [pattern, form] => format!("{} ({})", text(pattern), text(form)),
                _ => "Not set/required".to_owned(),
            };
            format!("Current date pattern set to: {what}")
        }
        ["get", _, "failregex" | "ignoreregex"] => {
            let numbered = texts(reply).into_iter().enumerate();
            let numbered = numbered.map(|(number, one)| format!("[{number}]: {one}"));
            listed(
                &numbered.collect(),
                "No regular expression is defined",
                "The following regular expression are defined:",
            )
        }
        ["get", _, "journalmatch"] => {
            let sets: Vec<_> = values(reply)
                .iter()
                .map(|set| texts(set).join(" "))
                .collect();
            match sets.is_empty() {
                true => "No journal match filter set".to_owned(),
                false => format!("Current match filter:\n{}", sets.join(" + ")),
            }
        }
        ["get", jail, "actions"] => match values(reply).is_empty() {
            true => format!("No actions for jail {jail}"),
            false => format!(
                "The jail {jail} has the following actions:\n{}",
                texts(reply).join(", ")
            ),
        },
        ["get", _, "banip", "--with-time"] => texts(reply).join("\n"),
        ["get", _, "banip"] => texts(reply).join(" "),
        ["get", _, "banip", separator] => texts(reply).join(separator),
        _ => match reply {
            Value::String(text) => text.clone(),
            other => python(other),
        },
    }
}

/// A line for each jail, in columns.
fn stats(reply: &Value) -> String {
    let jails = reply.as_object().into_iter().flatten();
    let head = ["Jail", "Backend", "Failed", "Total", "Banned", "Total"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(jails.map(|(name, row)| {
        let (failed, banned) = (&row[1], &row[2]);
        let counts = [&row[0], &failed[0], &failed[1], &banned[0], &banned[1]].map(text);
        let [backend, failing, failed, banned, bans] = counts;
        [name.clone(), backend, failing, failed, banned, bans]
    }));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let line = |row: &[String; 6]| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(column, cell)| match column {
            0 | 1 => format!("{cell:<0$}", width(column)),
            _ => format!("{cell:>0$}", width(column)),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn values(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(list: &Value) -> Vec<String> {
    values(list).iter().map(text).collect()
}

/// As Python's `str` has it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => python(other),
    }
}

/// As Python's `repr` has it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(python).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(pairs) => {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(name, value)| format!("'{name}': {}", python(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// A line for each value, below a title; the last one ends the branch.
fn listed(list: &Value, empty: &str, title: &str) -> String {
    let texts = texts(list);
    let Some((last, before)) = texts.split_last() else {
        return empty.to_owned();
    };
    let mut lines = vec![title.to_owned()];
    lines.extend(before.iter().map(|one| format!("|- {one}")));
    lines.push(format!("`- {last}"));
    lines.join("\n")
}

/// Names with values, or with names and values of their own.
fn tree(title: String, pairs: &Value) -> String {
    let mut lines = vec![title];
    let pairs = values(pairs);
    for (at, pair) in pairs.iter().enumerate() {
        let is_last = at + 1 == pairs.len();
        let branch = if is_last { "`-" } else { "|-" };
        let (name, value) = (text(&pair[0]), &pair[1]);
        let inner = values(value);
        if inner.iter().all(|one| !one.is_array()) {
            lines.push(format!("{branch} {name}:\t{}", joined(value)));
            continue;
        }
        lines.push(format!("{branch} {name}"));
        let indent = if is_last { "   " } else { "|  " };
        for (at, pair) in inner.iter().enumerate() {
            let branch = if at + 1 == inner.len() { "`-" } else { "|-" };
            lines.push(format!(
                "{indent}{branch} {}:\t{}",
                text(&pair[0]),
                joined(&pair[1])
            ));
        }
    }
    lines.join("\n")
}

/// A list's values with blanks between; sets of journal fields with a plus.
fn joined(value: &Value) -> String {
    match value {
        Value::Array(values) if values.iter().any(Value::is_array) => {
            let sets: Vec<_> = values.iter().map(|set| texts(set).join(" ")).collect();
            sets.join(" + ")
        }
        Value::Array(_) => texts(value).join(" "),
        other => text(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts that Fail2ban 1.0.2 prints for these replies.
    #[test]
    fn replies_have_the_texts_of_fail2ban() {
        let of = |command: &[&str], reply: Value| words(command, &reply);
        assert_eq!(of(&["ping"], json!("pong")), "Server replied: pong");
        assert_eq!(
            of(
                &["status"],
                json!([["Number of jail", 2], ["Jail list", "a, b"]])
            ),
            "Status\n|- Number of jail:\t2\n`- Jail list:\ta, b"
        );
        let jail = json!([
            [
                "Filter",
                [
                    ["Currently failed", 1],
                    ["Total failed", 7],
                    ["File list", ["/a", "/b"]]
                ]
            ],
            [
                "Actions",
                [
                    ["Currently banned", 0],
                    ["Total banned", 1],
                    ["Banned IP list", []]
                ]
            ]
        ]);
        assert_eq!(
            of(&["status", "sshd"], jail),
            "Status for the jail: sshd\n|- Filter\n|  |- Currently failed:\t1\n|  |- Total failed:\t7\n|  `- File list:\t/a /b\n`- Actions\n   |- Currently banned:\t0\n   |- Total banned:\t1\n   `- Banned IP list:\t"
        );
        assert_eq!(
            of(&["banned"], json!([{ "sshd": ["192.0.2.1", "192.0.2.2"] }])),
            "[{'sshd': ['192.0.2.1', '192.0.2.2']}]"
        );
        assert_eq!(of(&["get", "a", "banip"], json!(["x", "y"])), "x y");
        assert_eq!(of(&["get", "a", "banip", ","], json!(["x", "y"])), "x,y");
        assert_eq!(of(&["get", "a", "bantime"], json!(600)), "600");
        assert_eq!(
            of(&["get", "a", "logpath"], json!(["/a", "/b"])),
            "Current monitored log file(s):\n|- /a\n`- /b"
        );
        assert_eq!(
            of(
                &["get", "a", "journalmatch"],
                json!([["_A=1", "_B=2"], ["_C=3"]])
            ),
            "Current match filter:\n_A=1 _B=2 + _C=3"
        );
        assert_eq!(
            of(&["get", "a", "failregex"], json!(["x"])),
            "The following regular expression are defined:\n`- [0]: x"
        );
    }
}

//! `watches`, and who is told: `telegram`, `zmq`, `cmd`.

use std::path::Path;

use super::{BAN_TIMES, Keys, Toml, ban_times, brief};

/// Characters that a shell would act on: such a command is no program with arguments.
const SHELL: &[char] = &[
    '|', ';', '&', '$', '`', '<', '>', '(', ')', '{', '}', '*', '?', '[', ']', '~', '#', '\n',
];

pub(super) fn watches(root: &mut Keys, toml: &mut Toml) {
    let list = root.list("watches", toml);
    if list.is_empty() {
        return;
    }
    toml.line("");
    toml.note(&format!("changed: watches: a command is run as a program with arguments, never by a shell, and started again when it ends. {BAN_TIMES}"));
    let mut names = Vec::new();
    for value in list {
        if !value.is_object() {
            toml.note(&format!(
                "not carried over: {} in watches: no watch",
                brief(&value)
            ));
            continue;
        }
        let mut watch = Keys::new("watches", Some(value), toml);
        let (name, command) = (watch.text("name"), watch.text("cmd"));
        let mode = watch.text("mode");
        watch.finish(toml);
        let Some(command) = command else {
            toml.note("not carried over: a watch without a cmd");
            continue;
        };
        one_watch(
            &distinct(name.as_deref(), &mut names),
            &command,
            mode.as_deref(),
            toml,
        );
    }
}

fn one_watch(name: &str, command: &str, mode: Option<&str>, toml: &mut Toml) {
    toml.line("");
    if command.contains("auth.py") {
        toml.note("asked: this looks like ipt_geofence's auth.py, which takes user names for addresses: [jail.sshd] reads the log itself, with nothing else to run.");
    }
    let words = match command.contains(SHELL) {
        true => None,
        false => shlex::split(command),
    };
    let words = words.filter(|words| {
        words
            .first()
            .is_some_and(|program| program.starts_with('/'))
    });
    match words {
        Some(words) => {
            toml.line(&format!("[watch.{name}]"));
            toml.set("command", words);
            if mode == Some("geo-ip") {
                toml.set("only_if", "denied");
            } else if let Some(mode) = mode {
                toml.note(&format!(
                    "not carried over: mode {mode:?}, which ipt_geofence does not know either"
                ));
            }
            ban_times(toml);
        }
        None => {
            toml.note(&format!(
                "asked: the command of watch {name} is a shell's, or names its program without the whole \
                 path. Write it into a script and name that: {command}"
            ));
            toml.line(&format!("#[watch.{name}]"));
            toml.suggest("command", vec![format!("/usr/local/lib/weir/{name}")]);
            if mode == Some("geo-ip") {
                toml.suggest("only_if", "denied");
            }
        }
    }
}

fn distinct(name: Option<&str>, names: &mut Vec<String>) -> String {
    let mut plain: String = name
        .unwrap_or("watch")
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        })
        .take(28)
        .collect();
    if plain.is_empty() {
        plain.push_str("watch");
    }
    let mut name = plain.clone();
    let mut n = 2;
    while names.contains(&name) {
        name = format!("{plain}-{n}");
        n += 1;
    }
    names.push(name.clone());
    name
}

pub(super) fn telegram(root: &mut Keys, secrets: &Path, toml: &mut Toml) {
    let mut keys = root.object("telegram", toml);
    let (token, chat) = (keys.text("bot_token"), keys.text("chat_id"));
    keys.finish(toml);
    match (token, chat) {
        (None, None) => {}
        (Some(_), Some(chat)) => {
            let file = secrets.join("telegram.token").display().to_string();
            toml.line("");
            toml.note(&format!(
                "changed: the token is a secret and not for this file: put telegram.bot_token of the old one \
                 into {file} (mode 0600)."
            ));
            toml.line("[sink.telegram]");
            toml.set("kind", "telegram");
            toml.set("events", vec!["ban", "unban", "start", "stop"]);
            toml.set("token_file", file);
            toml.set("chat_id", chat);
        }
        _ => toml.note("not carried over: telegram: bot_token and chat_id are both needed."),
    }
}

pub(super) fn zmq(root: &mut Keys, secrets: &Path, toml: &mut Toml) {
    let mut keys = root.object("zmq", toml);
    let (url, key) = (keys.text("url"), keys.text("encryption_key"));
    keys.finish(toml);
    let Some(url) = url else {
        if key.is_some() {
            toml.note("not carried over: zmq.encryption_key without zmq.url");
        }
        return;
    };
    toml.line("");
    let file = secrets.join("zmq.key").display().to_string();
    match &key {
        Some(key) if is_curve(key) => toml.note(&format!(
            "changed: zmq.encryption_key belongs into a file, as it is: {file}. When it cannot be used \
             weir refuses to start; ipt_geofence went on in clear text."
        )),
        Some(_) => toml.note(&format!(
            "asked: zmq.encryption_key is not the 40 characters of a CURVE key in hexadecimal digits: \
             ipt_geofence sent in clear text. Put the server's public key into {file}."
        )),
        None => toml.note("asked: there is no zmq.encryption_key, so it is sent in clear text, for everybody on the way to read; server_key_file = \"…\" instead of plain = true encrypts it."),
    }
    toml.line("[sink.zmq]");
    toml.set("kind", "zmq");
    toml.note("The records and the header that its subscribers know.");
    toml.set("format", "ipt_geofence");
    toml.set("events", vec!["ban", "unban", "drop", "start", "stop"]);
    toml.set("url", url);
    match key {
        Some(_) => toml.set("server_key_file", file),
        None => toml.set("plain", true),
    }
}

/// Z85 of 32 bytes, each character as two hexadecimal digits.
fn is_curve(key: &str) -> bool {
    let is_z85 = |b: u8| b.is_ascii_alphanumeric() || b".-:+=^!/*?&<>()[]{}@%$#".contains(&b);
    key.len() == 80 && hex::decode(key).is_ok_and(|bytes| bytes.into_iter().all(is_z85))
}

pub(super) fn commands(root: &mut Keys, toml: &mut Toml) {
    let mut keys = root.object("cmd", toml);
    for key in ["ban", "unban"] {
        if let Some(command) = keys.text(key) {
            toml.note(&format!(
                "not carried over: cmd.{key} {command:?}: weir runs no command per {key}. `weir events` \
                 prints each as a line of JSON, for a program of yours to read; a webhook sink sends it."
            ));
        }
    }
    keys.finish(toml);
}

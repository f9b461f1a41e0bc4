//! What `fail2ban.conf` says of Fail2ban's server and has no meaning for weir, or another
//! one: told where somebody has changed it. Where the database and the log are is
//! `database`'s.

use std::path::Path;

use crate::{
    error::{Error, ErrorKind},
    expression,
    files::Files,
    includes, ini, interpolate, unknown_names,
};

/// A setting of the server that weir does not go by.
struct Setting {
    section: &'static str,
    key: &'static str,
    /// What it is where nobody has changed it.
    usual: &'static [&'static str],
    /// What weir goes by.
    instead: &'static str,
}

const fn definition(
    key: &'static str,
    usual: &'static [&'static str],
    instead: &'static str,
) -> Setting {
    Setting {
        section: "Definition",
        key,
        usual,
        instead,
    }
}

const SETTINGS: [Setting; 8] = [
    definition(
        "loglevel",
        &["INFO"],
        "WEIR_LOG of the environment says how much weir logs",
    ),
    definition(
        "syslogsocket",
        &["auto"],
        "weir logs to the journal, or to its standard error",
    ),
    definition(
        "socket",
        &[
            "/var/run/fail2ban/fail2ban.sock",
            "/run/fail2ban/fail2ban.sock",
        ],
        "fail2ban_socket of weir.toml says where weir answers Fail2ban's clients",
    ),
    definition(
        "pidfile",
        &[
            "/var/run/fail2ban/fail2ban.pid",
            "/run/fail2ban/fail2ban.pid",
        ],
        "weir writes none",
    ),
    definition(
        "dbpurgeage",
        &["1d"],
        "keep_history of weir.toml says how long past bans are known",
    ),
    definition(
        "dbmaxmatches",
        &["10"],
        "weir keeps the lines of a ban within bounds of its own",
    ),
    definition(
        "allowipv6",
        &["auto", "yes", "true", "1", "on"],
        "weir bans IPv6 as it does IPv4",
    ),
    Setting {
        section: "Thread",
        key: "stacksize",
        usual: &["0"],
        instead: "weir's threads have stacks of their own size",
    },
];

/// The settings that are honoured.
const HONOURED: [&str; 2] = ["dbfile", "logtarget"];

/// The settings below `root` that weir does not go by and that somebody has changed, and keys
/// that are mistyped.
///
/// # Errors
/// fail2ban.conf cannot be read, or is no INI file.
pub fn server_limits(files: &dyn Files, root: &Path) -> Result<Vec<Error>, Error> {
    let Some(layers) = includes::read(files, &root.join("fail2ban"))? else {
        return Ok(Vec::new());
    };
    let mut limits = Vec::new();
    for setting in &SETTINGS {
        let text = interpolate::get(&layers, setting.section, setting.key, &interpolate::NoVars);
        let text = match text {
            Ok(Some(text)) if !text.is_empty() => text,
            Ok(_) => continue,
            // What has no effect keeps no jail from its work.
            Err(error) => {
                limits.push(error);
                continue;
            }
        };
        let value = text.joined();
        if !setting.usual.iter().any(|usual| is_same(usual, &value)) {
            let (key, value) = (setting.key, ini::clip(&value));
            let message = format!("{key} = {value} is not read: {}", setting.instead);
            limits.push(Error::new(text.origin(), ErrorKind::Value, message));
        }
    }
    let known = || {
        let keys = SETTINGS.iter().map(|setting| setting.key);
        keys.chain(HONOURED)
    };
    let sections = ["Definition", "Thread"];
    let sections = sections
        .iter()
        .filter_map(|name| layers.sections.get(*name));
    for (key, text) in sections.chain([&layers.defaults]).flatten() {
        let meant = unknown_names::did_you_mean(key, known());
        if !meant.is_empty() && !known().any(|known| known == key) {
            let message = format!("{}: there is no such key{meant}", ini::clip(key));
            limits.push(Error::new(text.origin(), ErrorKind::Value, message));
        }
    }
    Ok(limits)
}

/// Do these mean the same, as words or as lengths of time?
fn is_same(usual: &str, value: &str) -> bool {
    let value = value.trim();
    let time = |text| expression::duration(text).ok().flatten();
    usual.eq_ignore_ascii_case(value) || time(usual).is_some_and(|usual| time(value) == Some(usual))
}

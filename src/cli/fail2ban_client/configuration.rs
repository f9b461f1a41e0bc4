//! `-t` and `-d`: whether a configuration is sound, and what it makes weir do, as the
//! commands that Fail2ban's client would send to its server.

use std::path::Path;

use serde_json::{Value, json};
use weir_core::policy::BanTime;
use weir_daemon::{
    config::Config,
    fail2ban,
    host::Host,
    jails::{JailConfig, SourceChoice, UseDns},
};
use weir_fail2ban::Pattern;

/// The jails of a configuration, and why others of it cannot run.
pub struct Configured {
    jails: Vec<JailConfig>,
    /// Each with the name of its jail, and file and line.
    pub broken: Vec<String>,
    /// What is not honoured, and logs that are not there.
    pub warnings: Vec<String>,
}

/// Reads weir's configuration, or a directory of Fail2ban's.
///
/// # Errors
/// It cannot be read, or weir's own has a mistake.
pub fn read(path: &Path) -> anyhow::Result<Configured> {
    let (jails, broken, warnings) = match path.join("jail.conf").exists() {
        true => {
            let found = fail2ban::found(path, &Host)?;
            let mut warnings = found.server_notes;
            warnings.extend(fail2ban::grouped(&found.notes));
            warnings.extend(fail2ban::missing_logs(&found.jails, &Host));
            (found.jails, found.broken, warnings)
        }
        false => {
            let config = Config::load(path).map_err(|error| {
                anyhow::anyhow!(
                    "{error}; and there is no {}",
                    path.join("jail.conf").display()
                )
            })?;
            let broken = config.fail2ban.map(|fail2ban| fail2ban.broken);
            (config.jails, broken.unwrap_or_default(), config.warnings)
        }
    };
    let broken = broken.into_iter();
    Ok(Configured {
        jails,
        broken: broken
            .map(|(jail, why)| format!("jail {jail}: {why}"))
            .collect(),
        warnings,
    })
}

impl Configured {
    /// The commands, each a list of words and values.
    pub fn commands(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.jails.iter().flat_map(commands).collect();
        all.extend(self.jails.iter().map(|jail| json!(["start", jail.name])));
        all
    }
}

fn commands(jail: &JailConfig) -> Vec<Value> {
    let name = &jail.name;
    let backend = match &jail.source {
        SourceChoice::Journal => "systemd",
        _ => "auto",
    };
    let mut all = vec![json!(["add", name, backend])];
    let mut set = |key: &str, value: Value| all.push(json!(["set", name, key, value]));
    set(
        "usedns",
        match jail.use_dns {
            UseDns::Yes => "yes",
            UseDns::Warn => "warn",
            UseDns::No => "no",
        }
        .into(),
    );
    let limits = &jail.limits;
    set("maxretry", limits.max_retry.into());
    set("findtime", limits.find_time.as_secs().into());
    set(
        "bantime",
        match limits.ban_time {
            BanTime::For(time) => time.as_secs().into(),
            BanTime::Never => json!(-1),
        },
    );
    for prefix in jail.ignore.iter() {
        set("addignoreip", prefix.to_string().into());
    }
    if let Some(filter) = &jail.fail2ban {
        let source = filter.source();
        if let Some(prefregex) = &source.prefregex {
            set("prefregex", prefregex.text.as_str().into());
        }
        if source.maxlines > 1 {
            set("maxlines", source.maxlines.into());
        }
        if let Some(pattern) = &source.datepattern {
            set("datepattern", pattern.text.as_str().into());
        }
        for (key, patterns) in [
            ("addfailregex", &source.failregex),
            ("addignoreregex", &source.ignoreregex),
        ] {
            let texts: Vec<&str> = patterns.iter().map(|p: &Pattern| &*p.text).collect();
            if !texts.is_empty() {
                all.push(json!(["multi-set", name, key, texts]));
            }
        }
    } else {
        set("addfilter", jail.filter.as_str().into());
    }
    match &jail.source {
        SourceChoice::Journal => {
            let text = jail.journal_match.to_string();
            let mut command = vec!["set", name, "addjournalmatch"];
            command.extend(text.split(' ').filter(|word| !word.is_empty()));
            all.push(json!(command));
        }
        SourceChoice::Files(paths) => {
            for path in paths {
                all.push(json!(["set", name, "addlogpath", path, "head"]));
            }
        }
        SourceChoice::Ring(ring) => {
            all.push(json!(["set", name, "addlogpath", ring.directory, "head"]));
        }
    }
    for action in jail.action_names() {
        all.push(json!(["set", name, "addaction", action]));
    }
    all
}

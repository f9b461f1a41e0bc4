//! `[watch.NAME]`: a command that prints addresses, and what happens to them.

use std::time::Duration;

use weir_core::{
    Action, PortSet, Prefix, PrefixSet,
    policy::{Jail, JailLimits},
};

use crate::command::{self, Fault};
use weir_config::manual::{
    ACTION, ENABLED, IGNORE, INCREMENT, PORTS, Table,
    Usual::{Is, Required},
    key,
};
use weir_config::{
    At, Section,
    values::{action, check_name, limits, scope},
};

/// `[watch.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[Table {
    name: "watch.NAME",
    about: "Bans the addresses that a command prints, one a line.",
    needs: &[("command", "[\"/bin/true\"]")],
    keys: &[
        ENABLED,
        key(
            "command",
            Required,
            "The command and its arguments. It is started again when it ends. Nobody but root may be able to change it.",
        ),
        key(
            "only_if",
            Is("\"any\""),
            "With \"denied\", an address is banned only where the geofence or a deny list denies it as well.",
        ),
        key(
            "ban_time",
            Is("\"1h\""),
            "How long a ban lasts. \"forever\" is a permanent ban.",
        ),
        INCREMENT,
        PORTS,
        ACTION,
        IGNORE,
    ],
}];

const COMMAND: &str = "a list such as [\"/usr/local/lib/weir/mail-watch\", \"/var/log/mail.log\"]: an absolute path and its arguments, no shell";

/// One enabled watch.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchConfig {
    /// The watch's name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The length of the watch's bans.
    pub limits: JailLimits,
    /// The ports that a ban covers.
    pub scope: PortSet,
    /// Whether packets of a ban are dropped or rejected.
    pub action: Action,
    /// Prefixes that this watch names in vain.
    pub ignore: PrefixSet,
    /// The addresses that the watch bans, of those that its command names.
    pub only_if: OnlyIf,
}

/// The addresses that a watch bans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnlyIf {
    /// All addresses that the command names.
    Any,
    /// Addresses that the geofence or a list denies as well.
    Denied,
}

impl WatchConfig {
    /// A watch as the ledger counts it: a jail whose first failure bans.
    pub fn jail(&self) -> Jail {
        Jail {
            name: format!("watch:{}", self.name),
            limits: self.limits.clone(),
            scope: self.scope.clone(),
            action: self.action,
            ignore: self.ignore.clone(),
            names_prefixes: true,
        }
    }
}

pub(crate) fn read(root: &mut Section<'_, '_>, warnings: &mut Vec<String>) -> Vec<WatchConfig> {
    let mut watches = Vec::new();
    for (name, mut section) in root.named_sections("watch") {
        check_name(&section, "watch", &name);
        let enabled = section.boolean("enabled").unwrap_or(true);
        let command = command(&mut section, &name, enabled, warnings);
        let mut limits = limits(&mut section, false);
        limits.max_retry = 1;
        limits.find_time = Duration::from_secs(1);
        let scope = scope(&mut section);
        let action = action(&mut section);
        let ignore = section
            .parsed_list::<Prefix>("ignore", "a list of prefixes such as \"192.0.2.0/24\"")
            .unwrap_or_default()
            .into_iter()
            .collect();
        let only_if = section.choice(
            "only_if",
            &[("any", OnlyIf::Any), ("denied", OnlyIf::Denied)],
        );
        section.finish();
        if enabled {
            watches.push(WatchConfig {
                name,
                command,
                limits,
                scope,
                action,
                ignore,
                only_if: only_if.map_or(OnlyIf::Any, |at| at.value),
            });
        }
    }
    watches
}

fn command(
    section: &mut Section<'_, '_>,
    name: &str,
    enabled: bool,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let line = section.line();
    let Some(words) = section.list("command", COMMAND) else {
        section.error(
            line,
            format!("command is missing in [watch.{name}], or is no list; allowed: {COMMAND}"),
        );
        return Vec::new();
    };
    for word in &words.value {
        if word.value.contains('\0') {
            section.error(
                word.line,
                format!("command in [watch.{name}] has a NUL; allowed: {COMMAND}"),
            );
        }
    }
    match words.value.first() {
        None => section.error(
            words.line,
            format!("command in [watch.{name}] is empty; allowed: {COMMAND}"),
        ),
        Some(program) if !program.value.starts_with('/') => section.error(
            program.line,
            format!(
                "command in [watch.{name}] begins with {:?}; allowed: {COMMAND}",
                program.value
            ),
        ),
        Some(program) => match command::judge(&values(&words.value)) {
            Ok(()) => {}
            // A package that is not there yet, or no longer, must not keep the
            // daemon from its other work.
            Err(Fault::Missing(why)) if enabled => warnings.push(format!(
                "[watch.{name}]: {why}; it is tried again and again"
            )),
            Err(Fault::Missing(_)) => {}
            Err(Fault::Unsafe(why)) => section.error(
                program.line,
                format!(
                    "command in [watch.{name}]: {why}, and root would run it; allowed: programs and scripts that only root can change"
                ),
            ),
        },
    }
    values(&words.value)
}

fn values(words: &[At<String>]) -> Vec<String> {
    words.iter().map(|at| at.value.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{config::Config, host::Host};

    fn check(text: &str) -> Result<Config, String> {
        let text = format!("backend = \"dry-run\"\ninterfaces = []\n{text}");
        Config::check(Path::new("weir.toml"), &text, &Host).map_err(|errors| errors.to_string())
    }

    #[test]
    fn each_mistake_is_named_with_line_key_and_what_is_allowed() {
        let command = "command = [\"/bin/true\"]";
        let cases: &[(&str, &[&str])] = &[
            (
                "[watch.mail]",
                &[
                    "weir.toml:3: command is missing in [watch.mail]",
                    "absolute path",
                    "no shell",
                ],
            ),
            (
                "[watch.mail]\ncommand = \"mail-watch /var/log/mail.log\"",
                &[
                    "weir.toml:4: command in [watch.mail] is \"mail-watch",
                    "allowed: a list",
                ],
            ),
            (
                "[watch.mail]\ncommand = []",
                &["weir.toml:4: command in [watch.mail] is empty"],
            ),
            (
                "[watch.mail]\ncommand = [\"tail\", \"-f\"]",
                &["weir.toml:4: command in [watch.mail] begins with \"tail\""],
            ),
            (
                "[watch.mail]\ncommand = [\"/bin/true\", \"a\\u0000b\"]",
                &["weir.toml:4: command in [watch.mail] has a NUL"],
            ),
            (
                "[watch.\"my mail\"]\ncommand = [\"/bin/true\"]",
                &["weir.toml:3: watch name \"my mail\"; allowed: 1-48 letters"],
            ),
            (
                &format!("[watch.mail]\n{command}\nmax_retry = 3"),
                &[
                    "weir.toml:5: unknown key \"max_retry\" in [watch.mail]",
                    "ban_time",
                    "only_if",
                ],
            ),
            (
                &format!("[watch.mail]\n{command}\nonly_if = \"denied?\""),
                &[
                    "weir.toml:5: only_if in [watch.mail] is \"denied?\" (did you mean denied?); allowed: \"any\", \"denied\"",
                ],
            ),
            (
                &format!("[watch.mail]\n{command}\nban_time = \"soon\""),
                &["weir.toml:5: ban_time in [watch.mail] is \"soon\""],
            ),
            (
                &format!("[watch.mail]\n{command}\nports = [\"smtp\"]"),
                &["weir.toml:5: ports"],
            ),
            (
                &format!("[watch.mail]\n{command}\nincrement = {{ factor = 0 }}"),
                &[
                    "weir.toml:5: factor in [watch.mail.increment]",
                    "allowed: a number 1-100",
                ],
            ),
            (
                &format!("[watch.mail]\n{command}\nignore = [\"here\"]"),
                &["weir.toml:5: ignore in [watch.mail]"],
            ),
        ];
        for (text, words) in cases {
            let errors = check(text).expect_err(text);
            for word in *words {
                assert!(
                    errors.contains(word),
                    "no {word:?} for {text:?} in: {errors}"
                );
            }
        }
    }

    #[test]
    fn a_watch_is_a_jail_whose_first_failure_bans() {
        let config = check(
            "[watch.mail]\ncommand = [\"/bin/true\", \"x\"]\nban_time = \"1d\"\n\
             [watch.off]\nenabled = false\ncommand = [\"/nonexistent\"]",
        );
        let config = config.unwrap();
        let [watch] = &config.watches[..] else {
            panic!("{:?}", config.watches);
        };
        assert_eq!(watch.command, ["/bin/true", "x"]);
        assert_eq!(watch.only_if, OnlyIf::Any);
        let jail = watch.jail();
        assert_eq!((&*jail.name, jail.limits.max_retry), ("watch:mail", 1));
        assert_eq!(jail.limits.check(), Ok(()));
        assert!(!config.warnings.iter().any(|w| w.contains("no jail")));
    }
}

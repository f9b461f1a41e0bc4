//! The commands of `action.d`, made scripts for a shell into which no value is ever
//! written: what configuration says is expanded when they are read, and each tag whose
//! value is known only when somebody is banned becomes a variable of the environment
//! (`tag`), quoted as its place asks (`script`). What cannot be made safe is refused, by
//! file and line: `runners` knows programs that run what they read, `words` how a shell
//! splits a command.

mod runners;
mod script;
mod tag;
#[cfg(test)]
mod tests;
mod words;

use std::{collections::BTreeSet, time::Duration};

use crate::{definition::Definition, error::Error, expression, filter_files::wrong, text::Text};
pub use script::Script;
pub(crate) use script::script;
pub(crate) use tag::captured_name;
pub use tag::{CAPTURED_ID, Tag, captured_variable};

/// How long a command may run, if `timeout` says nothing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest `timeout`.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// What Fail2ban calls IPv4 and IPv6 in `[Init?family=inet6]`.
pub(crate) const FAMILIES: [&str; 2] = ["inet4", "inet6"];

/// The commands of one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// For IPv4 and for IPv6.
    pub families: [FamilyCommands; 2],
    /// Bans that were made before the start are not told to it.
    pub norestored: bool,
    /// Whether actionstart waits for the first ban; `None`: where the families differ.
    pub start_on_demand: Option<bool>,
    /// An actionunban that fails has the action checked and repaired, too.
    pub repair_on_unban: bool,
    /// How long one of its commands may run.
    pub timeout: Duration,
}

/// The commands of one action for one family of addresses; those that are empty are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the fields are Fail2ban's keys, without "action"
pub struct FamilyCommands {
    pub start: Option<Script>,
    pub stop: Option<Script>,
    pub flush: Option<Script>,
    pub check: Option<Script>,
    pub repair: Option<Script>,
    pub ban: Option<Script>,
    pub unban: Option<Script>,
    pub prolong: Option<Script>,
    pub reban: Option<Script>,
}

impl FamilyCommands {
    /// The scripts that are not empty.
    pub fn scripts(&self) -> impl Iterator<Item = &Script> {
        [
            &self.start,
            &self.stop,
            &self.flush,
            &self.check,
            &self.repair,
            &self.ban,
            &self.unban,
            &self.prolong,
            &self.reban,
        ]
        .into_iter()
        .flatten()
    }
}

impl Commands {
    /// The values that its commands read of those which filters capture.
    pub(crate) fn captured(&self) -> BTreeSet<&str> {
        let scripts = self.families.iter().flat_map(FamilyCommands::scripts);
        scripts
            .flat_map(|script| script.captured.iter().map(String::as_str))
            .collect()
    }

    /// The names by which filters capture what its commands ask for: `user` of `<F-USER>`,
    /// and `fid` of `<F-ID>`.
    pub fn asks_filters_for(&self) -> BTreeSet<&str> {
        let mut scripts = self.families.iter().flat_map(FamilyCommands::scripts);
        let mut names = self.captured();
        if scripts.any(|script| script.tags.contains(&Tag::Id)) {
            names.insert(CAPTURED_ID);
        }
        names
    }

    /// Reads the commands of an action's definition.
    ///
    /// # Errors
    /// A command that cannot be made safe, and a `timeout` or `norestored` that is none.
    pub(crate) fn read(definition: &mut Definition) -> Result<Self, Error> {
        let mut families = FAMILIES.map(|_| FamilyCommands::default());
        for (family, commands) in FAMILIES.into_iter().zip(&mut families) {
            definition.family = Some(family);
            for (key, about_ban, command) in [
                ("actionstart", false, &mut commands.start),
                ("actionstop", false, &mut commands.stop),
                ("actionflush", false, &mut commands.flush),
                ("actioncheck", false, &mut commands.check),
                ("actionrepair", false, &mut commands.repair),
                ("actionban", true, &mut commands.ban),
                ("actionunban", true, &mut commands.unban),
                ("actionprolong", true, &mut commands.prolong),
                ("actionreban", true, &mut commands.reban),
            ] {
                if let Some(text) = definition.get(key)? {
                    *command = script(key, &text, about_ban)?;
                }
            }
        }
        definition.family = None;
        let word = |key: &str| -> Result<Option<Text>, Error> {
            Ok(definition.get(key)?.filter(|text| !text.is_empty()))
        };
        let is_true = |key: &str| -> Result<Option<bool>, Error> {
            let Some(text) = word(key)? else {
                return Ok(None);
            };
            match text.joined().trim().to_lowercase().as_str() {
                "1" | "on" | "true" | "yes" => Ok(Some(true)),
                "0" | "off" | "false" | "no" | "none" => Ok(Some(false)),
                _ => Err(wrong(key, &text, "true or false")),
            }
        };
        let norestored = is_true("norestored")?.unwrap_or(false);
        let start_on_demand = is_true("actionstart_on_demand")?;
        let repair_on_unban = is_true("actionrepair_on_unban")?.unwrap_or(false);
        let timeout = match word("timeout")? {
            None => TIMEOUT,
            Some(text) => match expression::duration(&text.joined()) {
                Ok(Some(time)) if !time.is_zero() && time <= MAX_TIMEOUT => time,
                _ => return Err(wrong("timeout", &text, "a time from 1s to 1h")),
            },
        };
        Ok(Self {
            families,
            norestored,
            start_on_demand,
            repair_on_unban,
            timeout,
        })
    }

    /// Is there anything to run?
    pub fn is_empty(&self) -> bool {
        self.families
            .iter()
            .all(|one| *one == FamilyCommands::default())
    }
}

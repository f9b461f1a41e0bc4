//! The settings of an enabled jail: limits and times, whom it ignores, what it runs. Which
//! filter and log it has is known by then.

use std::{collections::BTreeSet, time::Duration};

use super::{InJail, Jail, Log, Reader};
use crate::{
    action_command::{self, Script},
    ban_action::{self, ActionKind, JailAction},
    ban_time::Growth,
    definition::Values,
    encoding::{ENCODINGS, LogEncoding},
    error::{Error, ErrorKind},
    expression,
    filter_files::wrong,
    filter_source::{FilterSource, UseDns},
    ignored_addresses::{self, Ignored},
    ini, parameters,
    text::Text,
    unknown_names,
};

/// The most failures and lines that a jail may ask for.
const MAX_COUNT: usize = 1_000_000;

/// A switch, in the words of Fail2ban's reader; anything else is a mistake, since a jail
/// that is switched off by one guards nothing, silently.
pub(super) fn switch(key: &str, text: &Text) -> Result<bool, Error> {
    let word = text.joined();
    match word.to_lowercase().as_str() {
        "1" | "on" | "true" | "yes" => Ok(true),
        "0" | "off" | "false" | "no" => Ok(false),
        _ => Err(Error::new(
            text.origin(),
            ErrorKind::Value,
            format!("{key} = {}; allowed: true, false", ini::clip(&word)),
        )),
    }
}

/// A jail's keys with their values; one without a value is none.
struct Settings<'a>(&'a Values);

/// How long bans last by how many there were before, with `bantime.increment`.
#[derive(Default)]
struct Increments {
    table: Option<Vec<Option<Duration>>>,
    random: Duration,
    counts_all_jails: bool,
}

impl<'a> Settings<'a> {
    fn get(&self, key: &str) -> Option<&'a Text> {
        self.0.get(key).filter(|text| !text.is_empty())
    }

    fn is_on(&self, key: &str) -> Result<bool, Error> {
        self.get(key).map_or(Ok(false), |text| switch(key, text))
    }

    fn max_retry(&self) -> Result<u32, Error> {
        let Some(text) = self.get("maxretry") else {
            return Ok(3);
        };
        let number = text.joined().parse().ok();
        let allowed = number.filter(|number| (1..=MAX_COUNT as u32).contains(number));
        allowed.ok_or_else(|| wrong("maxretry", text, "a number from 1"))
    }

    fn max_matches(&self, max_retry: u32) -> Result<usize, Error> {
        let Some(text) = self.get("maxmatches") else {
            return Ok(max_retry as usize);
        };
        let number = text.joined().trim().parse().ok();
        let allowed = number.filter(|number| *number <= MAX_COUNT);
        allowed.ok_or_else(|| wrong("maxmatches", text, "a number up to 1000000"))
    }

    /// A time of ten minutes if nothing is said; `None`: for ever.
    fn time(&self, key: &str) -> Result<Option<Duration>, Error> {
        let Some(text) = self.get(key) else {
            return Ok(Some(Duration::from_secs(600)));
        };
        expression::duration(&text.joined())
            .map_err(|e| wrong(key, text, &format!("a time such as 10m: {e}")))
    }

    /// `findtime` and `bantime`, neither of them none.
    fn times(&self) -> Result<(Duration, Option<Duration>), Error> {
        let find_time = self.time("findtime")?.unwrap_or(Duration::ZERO);
        let ban_time = self.time("bantime")?;
        for (key, time) in [("findtime", Some(find_time)), ("bantime", ban_time)] {
            if let (Some(text), Some(Duration::ZERO)) = (self.get(key), time) {
                return Err(wrong(key, text, "more than 0"));
            }
        }
        Ok((find_time, ban_time))
    }

    fn increments(&self, ban_time: Option<Duration>) -> Result<Increments, Error> {
        let is_on = self.is_on("bantime.increment")?;
        let Some(ban_time) = ban_time.filter(|_| is_on) else {
            return Ok(Increments::default());
        };
        let growth = Growth {
            formula: self.get("bantime.formula"),
            factor: self.get("bantime.factor"),
            multipliers: self.get("bantime.multipliers"),
            max_time: self.get("bantime.maxtime"),
        };
        Ok(Increments {
            table: Some(growth.table(ban_time)?),
            random: self.random_time()?,
            counts_all_jails: self.is_on("bantime.overalljails")?,
        })
    }

    fn random_time(&self) -> Result<Duration, Error> {
        let key = "bantime.rndtime";
        let Some(text) = self.get(key) else {
            return Ok(Duration::ZERO);
        };
        match expression::duration(&text.joined()) {
            Ok(Some(time)) => Ok(time),
            Ok(None) => Err(wrong(key, text, "a time from 0")),
            Err(e) => Err(wrong(key, text, &format!("a time such as 10m: {e}"))),
        }
    }

    fn ignore_command(&self) -> Result<Option<(Script, Duration)>, Error> {
        let Some(text) = self.get("ignorecommand") else {
            return Ok(None);
        };
        let Some(script) = action_command::script("ignorecommand", text, true)? else {
            return Ok(None);
        };
        let holds = ignored_addresses::cache_time(self.get("ignorecache"))?;
        Ok(Some((script, holds)))
    }

    /// What becomes of `ignoreself = false`, if it is there.
    fn ignores_not_itself(&self) -> Result<Option<Error>, Error> {
        let Some(text) = self.get("ignoreself") else {
            return Ok(None);
        };
        let is_ignored = self.is_on("ignoreself")?;
        let message = "ignoreself: this host's own addresses are never banned";
        let error = Error::new(text.origin(), ErrorKind::Value, message.to_owned());
        Ok((!is_ignored).then_some(error))
    }

    /// The name of the log's character set.
    fn encoding(&self) -> Result<Option<String>, Error> {
        let Some(text) = self.get("logencoding") else {
            return Ok(None);
        };
        let word = text.joined();
        match LogEncoding::of(&word) {
            Some(_) => Ok(Some(word)),
            None => Err(wrong("logencoding", text, ENCODINGS)),
        }
    }
}

impl Reader<'_> {
    /// The jail of this log and this filter, with its settings by `keys`.
    pub(super) fn with_settings(
        &self,
        name: &str,
        log: Log,
        mut filter: FilterSource,
        keys: &Values,
    ) -> Result<Jail, Error> {
        let settings = Settings(keys);
        let max_retry = settings.max_retry()?;
        let (find_time, ban_time) = settings.times()?;
        let increments = settings.increments(ban_time)?;
        let ignore_command = settings.ignore_command()?;
        let counts_bans = self.reads_own_log(&log, &filter) || filter.name == "recidive";
        let mut limits: Vec<_> = settings.ignores_not_itself()?.into_iter().collect();
        if let Some(encoding) = settings.encoding()? {
            filter.logencoding = Some(encoding);
        }
        let ignored = self.ignored(&settings)?;
        limits.extend(ignored.left_out);
        let actions = self.actions(name, &settings)?;
        limits.extend(actions.iter().flat_map(|action| action.left_out.clone()));
        let never_captured = actions.iter().flat_map(|one| never_captured(one, &filter));
        limits.extend(never_captured);
        Ok(Jail {
            name: name.to_owned(),
            log,
            use_dns: filter.usedns.unwrap_or(UseDns::Warn),
            filter,
            max_retry,
            find_time,
            ban_time,
            ban_times: increments.table,
            random_time: increments.random,
            counts_all_jails: increments.counts_all_jails,
            ignore_command,
            ignore: ignored.prefixes,
            ignore_names: ignored.names,
            time_zone: settings.get("logtimezone").map(Text::joined),
            notifies_only: notifies_only(&actions),
            max_matches: settings.max_matches(max_retry)?,
            actions,
            counts_bans,
            ban_log_filter: None,
            limits,
        })
    }

    /// Whether the log is the one that Fail2ban itself writes.
    fn reads_own_log(&self, log: &Log, filter: &FilterSource) -> bool {
        match (log, &self.log_target) {
            (Log::Files(paths), Some(target)) => paths.contains(target),
            (Log::Files(_), None) => false,
            (Log::Journal, _) => filter.journalmatch.iter().any(|set| is_fail2bans(set)),
        }
    }

    /// The addresses and hosts of `ignoreip`.
    fn ignored(&self, settings: &Settings<'_>) -> Result<Ignored, Error> {
        match settings.get("ignoreip") {
            None => Ok(Ignored::default()),
            Some(text) => ignored_addresses::read(self.files, self.root, text),
        }
    }

    /// The actions of `action`, in order.
    fn actions(&self, name: &str, settings: &Settings<'_>) -> Result<Vec<JailAction>, Error> {
        let Some(text) = settings.get("action") else {
            return Ok(Vec::new());
        };
        let parts = parameters::split(&text.joined()).into_iter();
        let actions = parts.map(|(line, part)| {
            let origin = text.lines[line].place.origin();
            let named = parameters::parse(&part)
                .map_err(|message| Error::new(origin.clone(), ErrorKind::Syntax, message))?;
            ban_action::read(
                self.files,
                self.root,
                &self.services,
                name,
                settings.0,
                (&named, &origin),
                &InJail(self, name),
            )
        });
        actions.collect()
    }
}

/// Whether actions run commands, and none is a firewall's.
fn notifies_only(actions: &[JailAction]) -> bool {
    let runs = |action: &JailAction| matches!(action.kind, ActionKind::Run(_));
    // A firewall's action that is not carried out leaves nothing of what its jail is for,
    // and one with commands of its own may be such an action.
    let is_firewalls = |action: &JailAction| {
        matches!(action.kind, ActionKind::Ban { .. } | ActionKind::Refused(_))
            || ban_action::is_firewall(&action.name)
    };
    !actions.iter().any(is_firewalls) && (actions.is_empty() || actions.iter().any(runs))
}

/// What an action's commands ask for and no expression of the filter captures, so that it is
/// empty: mostly it is mistyped.
fn never_captured(action: &JailAction, filter: &FilterSource) -> Vec<Error> {
    let ActionKind::Run(commands) = &action.kind else {
        return Vec::new();
    };
    let expressions = filter.failregex.iter().chain(&filter.prefregex);
    let tags = expressions.flat_map(|one| one.text.split('<').skip(1));
    let known: BTreeSet<String> = tags
        .filter_map(|tag| action_command::captured_name(tag.split_once('>')?.0))
        // weir has it of every ban.
        .chain(["id".to_owned()])
        .collect();
    let named = |name: &str| match name {
        "fport" => "F-PORT".to_owned(),
        _ => format!("F-{}", name.to_uppercase()),
    };
    let known_tags: Vec<_> = known.iter().map(|name| named(name)).collect();
    let missing = commands
        .captured()
        .into_iter()
        .filter(|n| !known.contains(*n));
    missing
        .map(|name| {
            let tag = named(name);
            let meant = unknown_names::did_you_mean(&tag, known_tags.iter().map(String::as_str));
            let message = format!(
                "action {}: <{tag}> is empty: the filter {} captures no such value{meant}",
                action.name, filter.name
            );
            Error::new(action.origin.clone(), ErrorKind::Value, message)
        })
        .collect()
}

/// Are these fields of the journal those of entries that Fail2ban writes?
fn is_fail2bans(fields: &[String]) -> bool {
    let mut values = fields.iter().filter_map(|field| field.split_once('='));
    values.any(|(_, value)| ["fail2ban.service", "fail2ban-server", "fail2ban"].contains(&value))
}

//! `jail.conf` and what goes with it: the enabled jails, each with its filter, logs, limits
//! and actions, and what of it is not honoured.

mod settings;
mod unknown;

use std::{collections::BTreeMap, path::Path, time::Duration};

use weir_core::{Prefix, detect::HostName};

use crate::{
    action_command::Script,
    ban_action::{ActionKind, JailAction, Places},
    database,
    definition::{self, Definition, Values},
    error::{Error, ErrorKind, Origin},
    files::Files,
    filter_files,
    filter_source::{FilterSource, UseDns},
    includes, ini,
    interpolate::{self, Var, Vars},
    layers::Layers,
    log_paths::{self, Backend},
    parameters,
    ports::Services,
    text::Text,
    unknown_names::{self, Asked},
};

/// What `%(fail2ban_version)s` says: the version whose configuration is understood.
const VERSION: &str = "1.1.1";

/// Keys that a jail has in Fail2ban, besides those of filters.
const KEYS: [&str; 23] = [
    "enabled",
    "backend",
    "maxretry",
    "maxmatches",
    "findtime",
    "bantime",
    "bantime.increment",
    "bantime.factor",
    "bantime.formula",
    "bantime.multipliers",
    "bantime.maxtime",
    "bantime.rndtime",
    "bantime.overalljails",
    "ignorecommand",
    "ignoreself",
    "ignoreip",
    "ignorecache",
    "filter",
    "logtimezone",
    "logencoding",
    "logpath",
    "action",
    "skip_if_nologs",
];

/// Keys that jails of the package have for each other's values and for actions.
const OTHER_KEYS: [&str; 13] = [
    "banaction",
    "banaction_allports",
    "chain",
    "destemail",
    "logtype",
    "mode",
    "mta",
    "port",
    "protocol",
    "sender",
    "systemd_if_nologs",
    "tcpport",
    "udpport",
];

/// What a configuration wants to know of its host.
pub trait LogFacts {
    /// Is there a log file that fits the pattern?
    fn has_log(&self, pattern: &str) -> bool;
    /// Is there a journal of systemd's?
    fn has_journal(&self) -> bool;
}

/// A configuration's jails.
#[derive(Debug, Clone, PartialEq)]
pub struct Jails {
    /// Those that can run, in the order of the files.
    pub jails: Vec<Jail>,
    /// Those that cannot, by name, and why.
    pub broken: Vec<(String, Error)>,
    /// How many are there and not enabled.
    pub disabled: usize,
}

/// One enabled jail.
#[derive(Debug, Clone, PartialEq)]
pub struct Jail {
    /// The jail's name.
    pub name: String,
    /// Where its lines are.
    pub log: Log,
    /// What reads them.
    pub filter: FilterSource,
    /// Failures that make a ban …
    pub max_retry: u32,
    /// … within this time.
    pub find_time: Duration,
    /// How long a ban lasts; `None` is for ever.
    pub ban_time: Option<Duration>,
    /// With `bantime.increment`: how long one lasts by how many there were before.
    pub ban_times: Option<Vec<Option<Duration>>>,
    /// With `ban_times`: how much longer a ban may last, by chance.
    pub random_time: Duration,
    /// Bans of all jails count for `ban_times`.
    pub counts_all_jails: bool,
    /// A command that says with exit code 0 that an address is to be ignored, and how long
    /// its answer holds.
    pub ignore_command: Option<(Script, Duration)>,
    /// The addresses and networks that the jail never bans.
    pub ignore: Vec<Prefix>,
    /// The hosts that the jail never bans, whatever addresses they have.
    pub ignore_names: Vec<HostName>,
    /// What becomes of host names.
    pub use_dns: UseDns,
    /// The zone of stamps that name none, as `UTC+0200`.
    pub time_zone: Option<String>,
    /// None of its actions is a firewall's that weir stands in for, and what commands it has
    /// run: who is banned is told to them, and no packet is dropped.
    pub notifies_only: bool,
    /// Lines that an action is told of, the last ones.
    pub max_matches: usize,
    /// The actions of a ban, in order.
    pub actions: Vec<JailAction>,
    /// It reads the log that Fail2ban itself writes, and so counts bans.
    pub counts_bans: bool,
    /// The filter as it reads that log in a file, if the jail counts bans and reads the journal.
    pub ban_log_filter: Option<FilterSource>,
    /// Settings that are not honoured: where, and what becomes of them.
    pub limits: Vec<Error>,
}

/// Where a jail's lines are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// Files, by absolute paths or patterns.
    Files(Vec<String>),
    /// Entries of the journal with the fields of the filter.
    Journal,
}

/// The most jails of one configuration that may be enabled: each has filters, counts and
/// caches of its own.
const MAX_JAILS: usize = 500;

/// Reads the jails below `root`, which is as /etc/fail2ban.
///
/// # Errors
/// There is no jail.conf, or a mistake in it or in what goes with it. A mistake in one
/// jail, its filter or its actions is that jail's ([`Jails::broken`]).
pub fn load_jails(files: &dyn Files, root: &Path, host: &dyn LogFacts) -> Result<Jails, Error> {
    let read = includes::read_leniently(files, &root.join("jail"))?;
    let (mut layers, broken) = read.ok_or_else(|| {
        let origin = Origin {
            file: root.join("jail.conf"),
            line: 0,
        };
        Error::new(origin, ErrorKind::Read, "there is no such file")
    })?;
    // A mistake in a jail is one of that jail; what all of them go by must be sound, as
    // whom to ignore.
    let mut broken_jails = Vec::new();
    for (section, error) in broken {
        match section {
            Some(name) if name != ini::DEFAULT && name != "INCLUDES" => {
                broken_jails.push((name, error));
            }
            _ => return Err(error),
        }
    }
    let confpath = root.to_string_lossy();
    for (key, value) in [
        ("fail2ban_version", VERSION),
        ("fail2ban_confpath", &*confpath),
    ] {
        layers
            .defaults
            .insert(key.to_owned(), Text::parameter(value.replace('%', "%%")));
    }
    let reader = Reader {
        files,
        root,
        host,
        layers: &layers,
        services: Services::read(files),
        asked: Asked::of(&layers),
        // A mistake there is told of by whoever asks for the database.
        log_target: database::log_target(files, root).ok().flatten(),
    };
    let mut all = Jails {
        jails: Vec::new(),
        broken: broken_jails,
        disabled: 0,
    };
    let broken: Vec<_> = all.broken.iter().map(|(name, _)| name.clone()).collect();
    let is_jail = |name: &&String| *name != "INCLUDES" && !broken.contains(name);
    for name in layers.order.iter().filter(is_jail) {
        match reader.jail(name) {
            Ok(Some(_)) if all.jails.len() >= MAX_JAILS => {
                let origin = Origin {
                    file: root.join("jail.conf"),
                    line: 0,
                };
                let message =
                    format!("more than {MAX_JAILS} jails are enabled; allowed: {MAX_JAILS}");
                return Err(Error::new(origin, ErrorKind::Value, message));
            }
            Ok(Some(jail)) => all.jails.push(jail),
            Ok(None) => match reader.mistyped_section(name) {
                Some(error) => all.broken.push((name.clone(), error)),
                None => all.disabled += 1,
            },
            Err(error) => all.broken.push((name.clone(), error)),
        }
    }
    Ok(all)
}

struct Reader<'a> {
    files: &'a dyn Files,
    root: &'a Path,
    host: &'a dyn LogFacts,
    layers: &'a Layers,
    services: Services,
    /// What the values of jails ask for.
    asked: Asked,
    /// The log that Fail2ban itself would write.
    log_target: Option<String>,
}

/// `known/…`: what the jail's filter has, before the jail's own keys.
struct Known<'a>(Option<&'a Definition>);

impl Vars for Known<'_> {
    fn var(&self, key: &str) -> Result<Option<Var>, Error> {
        let (Some(filter), Some(key)) = (self.0, key.strip_prefix("known/")) else {
            return Ok(None);
        };
        Ok(filter.get(key)?.map(Var::Done))
    }
}

/// A jail of this name, as far as it says where things stand.
struct InJail<'a>(&'a Reader<'a>, &'a str);

impl Places for InJail<'_> {
    fn of_key(&self, key: &str, value: &str) -> Option<Origin> {
        self.0.place_of(self.1, key, value)
    }

    fn of_ban_action(&self, action: &str) -> Option<(Origin, String)> {
        ["banaction", "banaction_allports"].iter().find_map(|key| {
            let text = interpolate::get(self.0.layers, self.1, key, &Known(None)).ok()??;
            let said = text.joined();
            let options = said.trim().strip_prefix(action)?.strip_prefix('[')?;
            Some((text.origin(), options.to_owned()))
        })
    }
}

impl Reader<'_> {
    fn jail(&self, name: &str) -> Result<Option<Jail>, Error> {
        let first = |key: &str| interpolate::get(self.layers, name, key, &Known(None));
        let enabled = first("enabled")?.map(|text| settings::switch("enabled", &text));
        if !enabled.unwrap_or(Ok(false))? {
            return Ok(None);
        }
        let backend = Backend::of(name, first("backend")?.as_ref())?;
        let filter_text = first("filter")?.filter(|text| !text.is_empty());
        let Some(filter_text) = filter_text else {
            let origin = self.layers.sections[name].values().next().map(Text::origin);
            let message = format!("[{name}] has no filter");
            return Err(Error::new(
                origin.unwrap_or_default(),
                ErrorKind::Value,
                message,
            ));
        };
        let named = parameters::parse(&filter_text.joined())
            .map_err(|message| Error::new(filter_text.origin(), ErrorKind::Syntax, message))?;
        let in_filter = |e: Error| match e.kind {
            ErrorKind::Read => {
                let message = format!("filter {}: {e}", named.name);
                Error::new(filter_text.origin(), ErrorKind::Read, message)
            }
            _ => e,
        };
        let filter_layers =
            definition::read(self.files, self.root, "filter.d", &named.name).map_err(in_filter)?;
        let mut options: Vec<_> = named
            .options
            .iter()
            .map(|(key, value)| {
                (
                    key.clone(),
                    Text::new(value.clone(), filter_text.place().clone()),
                )
            })
            .collect();

        // The journal has no head before its messages, and auto is one or the other.
        let log_path = first("logpath")?;
        let has_match = || -> Result<bool, Error> {
            let own = first("journalmatch")?.is_some_and(|text| !text.is_empty());
            let plain = Definition::new(filter_layers.clone(), &options, &Values::new())?;
            Ok(own
                || plain
                    .get("journalmatch")?
                    .is_some_and(|text| !text.is_empty()))
        };
        let patterns = log_paths::patterns(log_path.as_ref());
        let is_journal = match backend {
            Backend::Journal => true,
            Backend::Files => false,
            Backend::Auto => {
                let has_log = patterns.iter().any(|pattern| self.host.has_log(pattern));
                !has_log && self.host.has_journal() && has_match()?
            }
        };
        let says_type = options.iter().any(|(key, _)| key == "logtype");
        if !says_type && !Definition::has_own(&filter_layers, "logtype") {
            let word = if is_journal { "journal" } else { "file" };
            options.push(("logtype".to_owned(), Text::parameter(word)));
        }
        let mut early = Values::new();
        for key in ["enabled", "backend", "filter"] {
            early.extend(first(key)?.map(|text| (key.to_owned(), text)));
        }
        let resolved = |options: &[(String, Text)]| {
            let known = Definition::new(filter_layers.clone(), options, &early)?;
            let mut keys = Values::new();
            for key in KEYS.iter().chain(&filter_files::KEYS) {
                let value = interpolate::get(self.layers, name, key, &Known(Some(&known)))?;
                keys.extend(value.map(|text| ((*key).to_owned(), text)));
            }
            let definition = Definition::new(filter_layers.clone(), options, &keys)?;
            let filter = filter_files::source(&named.name, &definition, &keys)?;
            Ok::<_, Error>((keys, filter))
        };
        let (keys, mut filter) = resolved(&options)?;
        let asked = Asked::of(&filter_layers);
        let mut unknown = self.unknown_names(name, (&filter_text, &named), &filter_layers, &asked);
        for expressions in [&mut filter.ignoreregex, &mut filter.failregex] {
            let missing = unknown_names::take_out_choices(expressions, &filter_layers, &asked);
            unknown.extend(missing.map(|missing| {
                let place = self.place_of(name, &missing.parameter, &missing.value);
                let origin = place.unwrap_or_else(|| filter_text.origin());
                let message = format!("filter {}: {}", named.name, missing.message);
                Error::new(origin, ErrorKind::Value, message)
            }));
        }
        if filter.failregex.is_empty() {
            let own = keys.get("failregex").unwrap_or(&filter_text);
            return Err(finds_nothing(&named.name, own, unknown));
        }
        let log = match is_journal {
            true => journal_of(name, &filter, &filter_text)?,
            false => files_of(name, &keys, &filter_text)?,
        };
        let mut jail = self.with_settings(name, log, filter, &keys)?;
        jail.limits.extend(unknown);
        if !is_journal {
            jail.limits
                .extend(log_paths::tail_limits(keys.get("logpath")));
        }
        if jail.counts_bans && jail.log == Log::Journal {
            options.retain(|(key, _)| key != "logtype");
            options.push(("logtype".to_owned(), Text::parameter("file")));
            let (_, mut filter) = resolved(&options)?;
            for expressions in [&mut filter.ignoreregex, &mut filter.failregex] {
                // Told of already.
                drop(unknown_names::take_out_choices(
                    expressions,
                    &filter_layers,
                    &asked,
                ));
            }
            jail.ban_log_filter = Some(filter);
        }
        Ok(Some(jail))
    }

    /// Where the jail says a key, or all jails do, if it has this value there.
    fn place_of(&self, name: &str, key: &str, value: &str) -> Option<Origin> {
        let text = interpolate::get(self.layers, name, key, &Known(None)).ok()??;
        (text.joined().trim() == value).then(|| text.origin())
    }
}

/// The error for a filter without an expression; where a mistyped name is why, that is the
/// place to mend.
fn finds_nothing(filter: &str, failregex: &Text, unknown: Vec<Error>) -> Error {
    let (origin, why) = match unknown.into_iter().next() {
        Some(error) => (error.origin, format!(": {}", error.message)),
        None => (failregex.origin(), String::new()),
    };
    let message =
        format!("filter {filter} has no failregex, so that this jail would find nothing{why}");
    Error::new(origin, ErrorKind::Value, message)
}

/// The journal, if the filter says which of its entries.
fn journal_of(jail: &str, filter: &FilterSource, filter_text: &Text) -> Result<Log, Error> {
    if !filter.journalmatch.is_empty() {
        return Ok(Log::Journal);
    }
    let message = format!(
        "[{jail}] reads the journal, and its filter {} has no journalmatch; allowed: journalmatch = _SYSTEMD_UNIT=…",
        filter.name
    );
    Err(Error::new(filter_text.origin(), ErrorKind::Value, message))
}

/// The files of `logpath`.
fn files_of(jail: &str, keys: &Values, filter_text: &Text) -> Result<Log, Error> {
    let text = keys.get("logpath").filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| {
        let message = format!("[{jail}] has no logpath");
        Error::new(filter_text.origin(), ErrorKind::Value, message)
    })?;
    Ok(Log::Files(log_paths::absolute_patterns(text)?))
}

/// A jail's limits and the commands that it would have run, by place.
pub fn notes(jail: &Jail) -> Vec<String> {
    let mut by_place = BTreeMap::<&Origin, Vec<String>>::new();
    for limit in &jail.limits {
        by_place
            .entry(&limit.origin)
            .or_default()
            .push(limit.message.clone());
    }
    for action in &jail.actions {
        if let ActionKind::NotRun(why) | ActionKind::Refused(why) = &action.kind {
            let message = format!("action {}: {why}", action.name);
            by_place.entry(&action.origin).or_default().push(message);
        }
    }
    let notes = by_place.into_iter().flat_map(|(origin, messages)| {
        messages
            .into_iter()
            .map(move |message| format!("{origin}: {message}"))
    });
    notes.collect()
}

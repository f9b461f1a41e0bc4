//! `jail.conf` and what goes with it: the enabled jails, each with its filter, logs, limits
//! and actions, and what of it is not honoured.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use weir_core::Prefix;

use crate::{
    action_command::{self, Script},
    ban_action::{self, ActionKind, JailAction, Places},
    ban_time::Growth,
    database,
    definition::{self, Definition, Values},
    encoding::{ENCODINGS, LogEncoding},
    error::{Error, ErrorKind, Origin},
    expression,
    files::Files,
    filter_files::{self, wrong},
    filter_source::{FilterSource, UseDns},
    ignored_addresses, includes, ini,
    interpolate::{self, Var, Vars},
    layers::Layers,
    log_paths::{self, Backend},
    parameters::{self, Named},
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

/// A switch, in the words of Fail2ban's reader; anything else is a mistake, since a jail
/// that is switched off by one guards nothing, silently.
fn switch(key: &str, text: &Text) -> Result<bool, Error> {
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
        let enabled = first("enabled")?.map(|text| switch("enabled", &text));
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
            // Where a mistyped name is why, that is the place to mend.
            let why = unknown.into_iter().next();
            let (origin, why) = match why {
                Some(error) => (error.origin, format!(": {}", error.message)),
                None => {
                    let own = keys.get("failregex").unwrap_or(&filter_text);
                    (own.origin(), String::new())
                }
            };
            let message = format!(
                "filter {} has no failregex, so that this jail would find nothing{why}",
                named.name
            );
            return Err(Error::new(origin, ErrorKind::Value, message));
        }
        let log = match is_journal {
            true if filter.journalmatch.is_empty() => {
                let message = format!(
                    "[{name}] reads the journal, and its filter {} has no journalmatch; allowed: journalmatch = _SYSTEMD_UNIT=…",
                    named.name
                );
                return Err(Error::new(filter_text.origin(), ErrorKind::Value, message));
            }
            true => Log::Journal,
            false => {
                let text = keys.get("logpath").filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| {
                    let message = format!("[{name}] has no logpath");
                    Error::new(filter_text.origin(), ErrorKind::Value, message)
                })?;
                Log::Files(log_paths::absolute_patterns(text)?)
            }
        };
        let mut jail = self.finish(name, log, filter, &keys)?;
        jail.limits.extend(unknown);
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

    /// A section of no jail, whose name is near that of one for all jails: what it says is
    /// said to nobody.
    fn mistyped_section(&self, name: &str) -> Option<Error> {
        let meant = unknown_names::did_you_mean(&name.to_uppercase(), [ini::DEFAULT, "INCLUDES"]);
        let text = self.layers.sections[name].values().next()?;
        let message = format!("[{}] is no jail that is enabled{meant}", ini::clip(name));
        (!meant.is_empty()).then(|| Error::new(text.origin(), ErrorKind::Value, message))
    }

    /// What the jail `name` says of itself, and its filter of itself, that nobody asks for.
    fn unknown_names(
        &self,
        name: &str,
        (filter_text, named): (&Text, &Named),
        filter: &Layers,
        asked: &Asked,
    ) -> Vec<Error> {
        let wrong =
            |text: &Text, message: String| Error::new(text.origin(), ErrorKind::Value, message);
        let known = || {
            let all = KEYS.iter().chain(&filter_files::KEYS);
            all.chain(&OTHER_KEYS).copied()
        };
        let own = &self.layers.sections[name];
        let mut all = Vec::new();
        for (section, may_have_more) in [(own, false), (&self.layers.defaults, true)] {
            for (key, text) in section {
                if known().any(|known| known == key) || self.asked.has(key) {
                    continue;
                }
                let meant = unknown_names::did_you_mean(key, known());
                // Files of paths have names there that other files may ask for.
                if !may_have_more || !meant.is_empty() {
                    let key = ini::clip(key);
                    all.push(wrong(text, format!("{key}: there is no such key{meant}")));
                }
            }
        }
        let parameters = filter_files::parameters();
        for (key, value) in &named.options {
            // All jails hand on the one of [DEFAULT], whatever filter they have.
            let says = |key: &str| own.contains_key(key);
            if key == "mode" && !says("mode") && !says("filter") {
                continue;
            }
            if let Some(message) = unknown_names::parameter(filter, asked, &parameters, key) {
                let place = self.place_of(name, key, value);
                let origin = place.unwrap_or_else(|| filter_text.origin());
                let message = format!("filter {}: {message}", named.name);
                all.push(Error::new(origin, ErrorKind::Value, message));
            }
        }
        let keys = unknown_names::keys(filter, asked, &parameters);
        let of_filter = |message| format!("filter {}: {message}", named.name);
        all.extend(
            keys.into_iter()
                .map(|(text, message)| wrong(text, of_filter(message))),
        );
        all
    }

    /// Where the jail says a key, or all jails do, if it has this value there.
    fn place_of(&self, name: &str, key: &str, value: &str) -> Option<Origin> {
        let text = interpolate::get(self.layers, name, key, &Known(None)).ok()??;
        (text.joined().trim() == value).then(|| text.origin())
    }

    fn finish(
        &self,
        name: &str,
        log: Log,
        mut filter: FilterSource,
        keys: &Values,
    ) -> Result<Jail, Error> {
        let get = |key: &str| keys.get(key).filter(|text| !text.is_empty());
        let mut limits = Vec::new();
        let mut limit = |text: &Text, message: String| {
            limits.push(Error::new(text.origin(), ErrorKind::Value, message));
        };
        let max_retry = match get("maxretry") {
            None => 3,
            Some(text) => {
                let number = text.joined().parse().ok();
                let allowed = number.filter(|number| (1..=1_000_000).contains(number));
                allowed.ok_or_else(|| wrong("maxretry", text, "a number from 1"))?
            }
        };
        let time = |key: &str, usual: u64| match get(key) {
            None => Ok(Some(Duration::from_secs(usual))),
            Some(text) => expression::duration(&text.joined())
                .map_err(|e| wrong(key, text, &format!("a time such as 10m: {e}"))),
        };
        let find_time = time("findtime", 600)?.unwrap_or(Duration::ZERO);
        let ban_time = time("bantime", 600)?;
        for (key, time) in [("findtime", Some(find_time)), ("bantime", ban_time)] {
            if let (Some(text), Some(Duration::ZERO)) = (get(key), time) {
                return Err(wrong(key, text, "more than 0"));
            }
        }
        let on = |key: &str| get(key).map_or(Ok(false), |text| switch(key, text));
        let mut ban_times = None;
        let (mut random_time, mut counts_all_jails) = (Duration::ZERO, false);
        if on("bantime.increment")?
            && let Some(ban_time) = ban_time
        {
            let growth = Growth {
                formula: get("bantime.formula"),
                factor: get("bantime.factor"),
                multipliers: get("bantime.multipliers"),
                max_time: get("bantime.maxtime"),
            };
            ban_times = Some(growth.table(ban_time)?);
            if let Some(text) = get("bantime.rndtime") {
                random_time = match expression::duration(&text.joined()) {
                    Ok(Some(time)) => time,
                    Ok(None) => return Err(wrong("bantime.rndtime", text, "a time from 0")),
                    Err(e) => {
                        let allowed = format!("a time such as 10m: {e}");
                        return Err(wrong("bantime.rndtime", text, &allowed));
                    }
                };
            }
            counts_all_jails = on("bantime.overalljails")?;
        }
        let ignore_command = match get("ignorecommand") {
            None => None,
            Some(text) => match action_command::script("ignorecommand", text, true)? {
                None => None,
                Some(script) => Some((script, ignored_addresses::cache_time(get("ignorecache"))?)),
            },
        };
        let reads_own_log = match (&log, &self.log_target) {
            (Log::Files(paths), Some(target)) => paths.contains(target),
            (Log::Files(_), None) => false,
            (Log::Journal, _) => filter.journalmatch.iter().any(|set| is_fail2bans(set)),
        };
        let counts_bans = reads_own_log || filter.name == "recidive";
        if let Some(text) = get("ignoreself")
            && !on("ignoreself")?
        {
            limit(
                text,
                "ignoreself: this host's own addresses are never banned".to_owned(),
            );
        }
        if let Some(text) = get("logencoding") {
            let word = text.joined();
            if LogEncoding::of(&word).is_none() {
                return Err(wrong("logencoding", text, ENCODINGS));
            }
            filter.logencoding = Some(word);
        }
        let mut ignore = Vec::new();
        if let Some(text) = get("ignoreip") {
            let left_out;
            (ignore, left_out) = ignored_addresses::addresses(self.files, self.root, text)?;
            limits.extend(left_out);
        }
        let use_dns = filter.usedns.unwrap_or(UseDns::Warn);
        let mut actions = Vec::new();
        for (line, part) in get("action").iter().flat_map(|text| {
            let parts = parameters::split(&text.joined()).into_iter();
            parts.map(|(line, part)| (&text.lines[line], part))
        }) {
            let origin = line.place.origin();
            let named = parameters::parse(&part)
                .map_err(|message| Error::new(origin.clone(), ErrorKind::Syntax, message))?;
            let at = (&named, &origin);
            actions.push(ban_action::read(
                self.files,
                self.root,
                &self.services,
                name,
                keys,
                at,
                &InJail(self, name),
            )?);
        }
        let bans = |action: &JailAction| matches!(action.kind, ActionKind::Ban { .. });
        let runs = |action: &JailAction| matches!(action.kind, ActionKind::Run(_));
        limits.extend(actions.iter().flat_map(|action| action.left_out.clone()));
        limits.extend(
            actions
                .iter()
                .flat_map(|action| never_captured(action, &filter)),
        );
        // A firewall's action that is not carried out leaves nothing of what its jail is for,
        // and one with commands of its own may be such an action.
        let refused = |action: &JailAction| matches!(action.kind, ActionKind::Refused(_));
        let notifies_only = !actions
            .iter()
            .any(|action| bans(action) || refused(action) || ban_action::is_firewall(&action.name))
            && (actions.is_empty() || actions.iter().any(runs));
        let max_matches = match get("maxmatches") {
            None => max_retry as usize,
            Some(text) => {
                let number = text.joined().trim().parse().ok();
                let allowed = number.filter(|number| *number <= 1_000_000);
                allowed.ok_or_else(|| wrong("maxmatches", text, "a number up to 1000000"))?
            }
        };
        Ok(Jail {
            name: name.to_owned(),
            log,
            filter,
            max_retry,
            find_time,
            ban_time,
            ban_times,
            random_time,
            counts_all_jails,
            ignore_command,
            ignore,
            use_dns,
            time_zone: get("logtimezone").map(Text::joined),
            notifies_only,
            max_matches,
            actions,
            counts_bans,
            ban_log_filter: None,
            limits,
        })
    }
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

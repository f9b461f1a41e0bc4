//! `[fail2ban]`: the enabled jails of a Fail2ban configuration, run as they are. Reading
//! them is `weir_fail2ban`'s; here each becomes a jail of weir's, and what reads its
//! lines a filter beside weir's own (`fail2ban_filter`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::tz::{Offset, TimeZone};
use weir_config::{
    Section,
    manual::{
        Table,
        Usual::{Is, Required},
        key,
    },
    values::name_byte,
};
use weir_core::{
    Action, PortSet,
    ban::MAX_NAME,
    detect::JournalMatch,
    policy::{BanTime, JailLimits, format_duration},
};
use weir_fail2ban::{
    ActionKind, FilterSource, Jail, Log, LogFacts, load_jails, notes, server_limits,
};

pub use crate::fail2ban_journal::read_journal;
use crate::{
    ban_log,
    fail2ban_filter::Fail2banFilter,
    host::HostFacts,
    jails::{IgnoreCommand, JailCommands, JailConfig, SourceChoice, UseDns},
};

/// Where Fail2ban's configuration is.
pub const DEFAULT_PATH: &str = "/etc/fail2ban";

/// `[fail2ban]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[Table {
    name: "fail2ban",
    about: "Runs the enabled jails of a Fail2ban configuration as they are. weir-import(1) says what each of them becomes.",
    needs: &[("path", "\"/etc/fail2ban\"")],
    keys: &[
        key(
            "path",
            Required,
            "The directory with jail.conf, filter.d and action.d.",
        ),
        key(
            "ipv6_prefix",
            Is("128"),
            "IPv6 addresses are counted and banned by prefixes of this length: 32 to 64, or 128, as Fail2ban does.",
        ),
    ],
}];

/// What a Fail2ban configuration makes weir do.
#[derive(Debug, Clone, Default)]
pub struct Fail2ban {
    /// The directory with jail.conf.
    pub path: PathBuf,
    /// Fail2ban's database; `None` where it keeps none.
    pub database: Option<PathBuf>,
    /// The jails that can run.
    pub jails: Vec<JailConfig>,
    /// Those that cannot, by name, and why.
    pub broken: Vec<(String, String)>,
    /// Settings that are not honoured, by jail, each with file and line.
    pub notes: Vec<(String, String)>,
    /// The same of Fail2ban's server, in fail2ban.conf.
    pub server_notes: Vec<String>,
    /// The names of the jails that read Fail2ban's own log, and so count bans (`recidive`).
    pub count_bans: Vec<String>,
    /// How many jails are there and not enabled.
    pub disabled: usize,
}

/// Reads the section and what it names. Its jails stand behind weir's own, whose names
/// go before.
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    (host, drops_nothing, state_dir): (&dyn HostFacts, Option<&str>, &Path),
    jails: &mut Vec<JailConfig>,
    warnings: &mut Vec<String>,
) -> Option<Fail2ban> {
    const PATH: &str = "an absolute path such as \"/etc/fail2ban\"";
    let mut section = root.section("fail2ban")?;
    let line = section.line();
    let path = section.string("path", PATH);
    if path.is_none() && !section.has("path") {
        section.error(
            line,
            format!("path is missing in [fail2ban]; allowed: {PATH}"),
        );
    }
    let mut ipv6_prefix = 128;
    if let Some(prefix) = section.integer("ipv6_prefix", 0..=128) {
        match prefix.value {
            32..=64 | 128 => ipv6_prefix = prefix.value as u8,
            other => section.error(
                prefix.line,
                format!("ipv6_prefix in [fail2ban] is {other}; allowed: 32-64, 128"),
            ),
        }
    }
    let mut read = None;
    if let Some(path) = path {
        match Path::new(&path.value) {
            dir if !dir.is_absolute() => section.error(
                path.line,
                format!("path in [fail2ban] is {:?}; allowed: {PATH}", path.value),
            ),
            dir => match found(dir, host) {
                Ok(found) => read = Some(found),
                Err(error) => section.error(path.line, format!("path in [fail2ban]: {error}")),
            },
        }
    }
    section.finish();
    let mut read = read?;
    let runs = read.jails.iter().filter(|jail| !jail.commands.is_empty());
    let runs: Vec<_> = runs.map(|jail| jail.name.clone()).collect();
    if let Some(setting) = drops_nothing
        && !runs.is_empty()
    {
        warnings.push(format!(
            "[fail2ban]: while {setting} the actions of these jails run no commands: {}",
            runs.join(", ")
        ));
    }
    let notifying = read.jails.iter().filter(|jail| only_notifies(jail));
    warnings.extend(notifying.map(|jail| {
        format!(
            "[fail2ban]: jail {} notifies only, and weir drops nothing for it: no action of it is a firewall's; with a banaction, as in action = %(action_)s, it drops",
            jail.name
        )
    }));
    let mut notes = read.server_notes.clone();
    notes.extend(grouped(&read.notes));
    warnings.extend(notes.into_iter().map(|note| format!("[fail2ban]: {note}")));
    for mut jail in std::mem::take(&mut read.jails) {
        if jails.iter().any(|own| own.name == jail.name) {
            let name = jail.name;
            warnings.push(format!(
                "[fail2ban]: jail {name} is not run: [jail.{name}] is there as well, and goes before"
            ));
            continue;
        }
        let missing = missing_logs(std::slice::from_ref(&jail), host);
        warnings.extend(missing.map(|missing| format!("[fail2ban]: {missing}")));
        jail.limits.ipv6_prefix = ipv6_prefix;
        if read.count_bans.contains(&jail.name) {
            if let SourceChoice::Files(patterns) = &mut jail.source {
                let own = ban_log::path_in(state_dir).display().to_string();
                patterns.push(own);
            }
            // It bans what was banned: networks, if other jails ban these.
            let others = jails.iter().map(|jail| jail.limits.ipv6_prefix);
            jail.limits.ipv6_prefix = others.fold(ipv6_prefix, u8::min);
        }
        read.jails.push(jail.clone());
        jails.push(jail);
    }
    Some(read)
}

/// Does the jail deny no packet?
fn only_notifies(jail: &JailConfig) -> bool {
    !jail.action.denies_packets()
}

/// Notes by jail, each once for all jails that have it: `jail NAME: NOTE`, or `jails A, B: NOTE`.
pub fn grouped(notes: &[(String, String)]) -> Vec<String> {
    let mut by_note: Vec<(&str, Vec<&str>)> = Vec::new();
    for (jail, note) in notes {
        match by_note.iter_mut().find(|(known, _)| known == note) {
            Some((_, jails)) => jails.push(jail),
            None => by_note.push((note, vec![jail])),
        }
    }
    let lines = by_note.into_iter().map(|(note, jails)| match &jails[..] {
        [jail] => format!("jail {jail}: {note}"),
        [first, second] => format!("jails {first}, {second}: {note}"),
        [first, .., last] => format!("{} jails, {first} to {last}: {note}", jails.len()),
        [] => note.to_owned(),
    });
    lines.collect()
}

/// The logs of jails that are not there, in words.
pub fn missing_logs<'a>(
    jails: &'a [JailConfig],
    host: &'a dyn HostFacts,
) -> impl Iterator<Item = String> + use<'a> {
    jails.iter().flat_map(move |jail| {
        let patterns = match &jail.source {
            SourceChoice::Files(patterns) => &patterns[..],
            _ => &[],
        };
        let missing = patterns
            .iter()
            .filter(move |pattern| !host.has_match(pattern));
        missing.map(move |pattern| {
            format!(
                "jail {}: there is no log {pattern} yet; it is read once it is there",
                jail.name
            )
        })
    })
}

/// What the configuration in `dir` makes weir do on this host.
///
/// # Errors
/// There is no jail.conf, or a mistake in it or in a file that goes with it.
pub fn found(dir: &Path, host: &dyn HostFacts) -> Result<Fail2ban, weir_fail2ban::Error> {
    let files = host.fail2ban_files();
    let all = load_jails(files, dir, &Facts(host))?;
    let server_limits = server_limits(files, dir)?.into_iter();
    let mut found = Fail2ban {
        path: dir.to_owned(),
        database: weir_fail2ban::database(files, dir)?,
        server_notes: server_limits.map(|limit| limit.to_string()).collect(),
        disabled: all.disabled,
        ..Fail2ban::default()
    };
    for (name, error) in all.broken {
        found.broken.push((name, error.to_string()));
    }
    let mut compiled = Compiled::default();
    for jail in all.jails {
        match jail_config(&jail, &mut compiled) {
            Ok(config) => {
                if jail.counts_bans {
                    found.count_bans.push(jail.name.clone());
                }
                found.jails.push(config);
            }
            Err(why) => {
                found.broken.push((jail.name, why));
                continue;
            }
        }
        let notes = notes(&jail)
            .into_iter()
            .map(|note| (jail.name.clone(), note));
        found.notes.extend(notes);
    }
    Ok(found)
}

struct Facts<'a>(&'a dyn HostFacts);

impl LogFacts for Facts<'_> {
    fn has_log(&self, pattern: &str) -> bool {
        self.0.has_match(pattern)
    }

    fn has_journal(&self) -> bool {
        self.0.has_journal()
    }
}

/// The filters that are compiled already: jails that read by the same one have it in common.
#[derive(Default)]
struct Compiled(Vec<Arc<Fail2banFilter>>);

impl Compiled {
    fn of(&mut self, source: &FilterSource) -> Result<Arc<Fail2banFilter>, String> {
        if let Some(known) = self.0.iter().find(|known| known.source() == source) {
            return Ok(known.clone());
        }
        let filter = Arc::new(Fail2banFilter::new(source).map_err(|e| e.to_string())?);
        self.0.push(filter.clone());
        Ok(filter)
    }
}

/// A jail of Fail2ban's as weir runs it.
fn jail_config(jail: &Jail, compiled: &mut Compiled) -> Result<JailConfig, String> {
    let name = &jail.name;
    if name.len() > MAX_NAME || !name.bytes().all(name_byte) {
        return Err(format!(
            "[{name}]: the name of a jail; allowed: 1-{MAX_NAME} letters, digits, - and _"
        ));
    }
    let (scope, action) = ban_of(jail)?;
    let bans_for = |time: Option<Duration>| time.map_or(BanTime::Never, BanTime::For);
    let limits = JailLimits {
        max_retry: jail.max_retry,
        find_time: jail.find_time,
        ban_time: bans_for(jail.ban_time),
        ban_times: jail
            .ban_times
            .iter()
            .flatten()
            .copied()
            .map(bans_for)
            .collect(),
        random_time: jail.random_time,
        counts_all_jails: jail.counts_all_jails,
        ..JailLimits::default()
    };
    limits
        .check()
        .map_err(|(key, allowed)| format!("{} {allowed}", key.replace('_', "")))?;
    let fields = |set: &Vec<String>| {
        let fields = set.iter().map(|field| field.split_once('='));
        let owned = |(field, value): (&str, &str)| (field.to_owned(), value.to_owned());
        fields
            .map(|field| field.map(owned))
            .collect::<Option<Vec<_>>>()
    };
    let sets = jail
        .filter
        .journalmatch
        .iter()
        .map(fields)
        .collect::<Option<_>>();
    let sets = sets.ok_or("journalmatch: allowed: FIELD=value")?;
    let source = match &jail.log {
        Log::Journal => SourceChoice::Journal,
        Log::Files(patterns) => {
            for pattern in patterns {
                glob::Pattern::new(pattern).map_err(|e| format!("logpath {pattern}: {e}"))?;
            }
            SourceChoice::Files(patterns.clone())
        }
    };
    let time_zone = match &jail.time_zone {
        None => None,
        Some(text) => Some(log_time_zone(text).ok_or_else(|| {
            format!("logtimezone = {text}; allowed: UTC, or with an offset as UTC+0200")
        })?),
    };
    Ok(JailConfig {
        name: name.clone(),
        filter: jail.filter.name.clone(),
        source,
        journal_match: JournalMatch::of_any_fields(sets),
        limits,
        scope,
        action,
        ignore: jail.ignore.iter().copied().collect(),
        ignore_names: jail.ignore_names.clone(),
        time_zone,
        use_dns: match jail.use_dns {
            weir_fail2ban::UseDns::Yes => UseDns::Yes,
            weir_fail2ban::UseDns::Warn => UseDns::Warn,
            // A firewall bans addresses.
            weir_fail2ban::UseDns::No | weir_fail2ban::UseDns::Raw => UseDns::No,
        },
        ignore_command: jail
            .ignore_command
            .clone()
            .map(|(script, keep)| IgnoreCommand { script, keep }),
        commands: commands(jail),
        fail2ban: Some(compiled.of(&jail.filter)?),
        own_bans: match &jail.ban_log_filter {
            Some(filter) => Some(compiled.of(filter)?),
            None => None,
        },
    })
}

/// What the jail's actions ban together. Of several the mildest counts only if all are:
/// one that rejects and one that drops drop. A jail without a firewall's action only notifies.
fn ban_of(jail: &Jail) -> Result<(PortSet, Action), String> {
    let mut ban: Option<(PortSet, Action)> = None;
    for action in &jail.actions {
        let ActionKind::Ban { ports, action } = &action.kind else {
            continue;
        };
        ban = Some(match ban {
            None => (ports.clone(), *action),
            Some((before, does)) => {
                let all = match before.is_all() || ports.is_all() {
                    true => PortSet::all(),
                    false => PortSet::ports(before.ranges().iter().chain(ports.ranges()).copied())
                        .map_err(|e| format!("its actions together: {e}"))?,
                };
                (all, if does == *action { does } else { Action::Drop })
            }
        });
    }
    if let Some(ban) = ban {
        return Ok(ban);
    }
    if jail.notifies_only {
        return Ok((PortSet::all(), Action::Notify));
    }
    let not_run = jail.actions.iter().filter_map(|action| match &action.kind {
        ActionKind::NotRun(why) | ActionKind::Refused(why) => {
            Some(format!("{}: {why}", action.name))
        }
        _ => None,
    });
    Err(format!(
        "what of its actions is to ban cannot be carried out, so that it would ban nobody ({})",
        not_run.collect::<Vec<_>>().join("; ")
    ))
}

/// The commands that a jail runs beside its bans.
fn commands(jail: &Jail) -> Vec<JailCommands> {
    let run = |action: &weir_fail2ban::JailAction| match &action.kind {
        ActionKind::Run(commands) => Some(JailCommands {
            name: action.name.clone(),
            commands: Arc::new((**commands).clone()),
            max_matches: jail.max_matches,
        }),
        _ => None,
    };
    jail.actions.iter().filter_map(run).collect()
}

/// `UTC`, `GMT`, `Z`, each with or without an offset; `None` for anything else.
pub fn log_time_zone(text: &str) -> Option<TimeZone> {
    let rest = ["UTC", "GMT", "Z"]
        .iter()
        .find_map(|word| text.strip_prefix(word));
    let rest = rest.unwrap_or(text);
    if rest.is_empty() {
        return (!text.is_empty()).then_some(TimeZone::UTC);
    }
    let (sign, digits) = match rest.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let digits = digits.replacen(':', "", 1);
    if !matches!(digits.len(), 1 | 2 | 4) {
        return None;
    }
    let (hours, minutes) = digits.split_at(digits.len().min(2));
    let hours: i32 = hours.parse().ok()?;
    let minutes: i32 = if minutes.is_empty() {
        0
    } else {
        minutes.parse().ok()?
    };
    let offset = Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()?;
    (minutes < 60).then(|| TimeZone::fixed(offset))
}

/// A jail in a line, as `weir import` has it.
pub fn describe(jail: &JailConfig) -> String {
    let limits = &jail.limits;
    let length = |time: &BanTime| match time {
        BanTime::For(time) => format!("for {}", format_duration(*time)),
        BanTime::Never => "permanently".to_owned(),
    };
    let ban_time = match &limits.ban_times[..] {
        [] => length(&limits.ban_time),
        [first, .., BanTime::Never] => format!("{}, growing to permanent", length(first)),
        [first, .., last] => format!("{}, growing to {last}", length(first)),
        [only] => length(only),
    };
    let source = match &jail.source {
        SourceChoice::Journal => format!("journal, {}", jail.journal_match),
        source => source.to_string(),
    };
    let names: Vec<_> = jail.commands.iter().map(|run| run.name.as_str()).collect();
    let runs = match names.is_empty() {
        true => String::new(),
        false => format!(", and runs {}", names.join(", ")),
    };
    let asks = match jail.ignore_command {
        Some(_) => ", and asks ignorecommand before a ban, for 2 seconds at most",
        None => "",
    };
    if only_notifies(jail) {
        return format!(
            "{}: NOTIFIES ONLY, weir drops nothing for it: filter {} reads {source}; {} failures in {} make a ban {ban_time} that only notifies{runs}{asks}",
            jail.name,
            jail.filter,
            limits.max_retry,
            format_duration(limits.find_time),
        );
    }
    format!(
        "{}: filter {} reads {source}; {} failures in {} ban {} {ban_time} ({}){runs}{asks}",
        jail.name,
        jail.filter,
        limits.max_retry,
        format_duration(limits.find_time),
        jail.scope,
        jail.action
    )
}

#[cfg(test)]
mod tests {
    use weir_fail2ban::{Origin, Pattern};

    use super::*;

    fn source(failregex: &str) -> FilterSource {
        FilterSource {
            name: "shop".to_owned(),
            failregex: vec![Pattern {
                text: failregex.to_owned(),
                origin: Origin::default(),
            }],
            ignoreregex: Vec::new(),
            prefregex: None,
            datepattern: None,
            maxlines: 1,
            says_maxlines: false,
            journalmatch: Vec::new(),
            logencoding: None,
            usedns: None,
            logtype: None,
            origin: "shop.conf".into(),
        }
    }

    #[test]
    fn jails_that_read_alike_have_one_filter_in_common() {
        let mut compiled = Compiled::default();
        let mut of = |failregex| compiled.of(&source(failregex)).unwrap();
        let (first, other, again) = (of("^no <HOST>$"), of("^not <HOST>$"), of("^no <HOST>$"));
        assert!(Arc::ptr_eq(&first, &again));
        assert!(!Arc::ptr_eq(&first, &other));
        assert_ne!(first.failregex(), other.failregex());
    }
}

//! From what was typed to a checked [`Config`]: every key, its default, its
//! range, and the questions that involve several keys or the host.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::tz::TimeZone;
use weir_config::{
    At, ConfigErrors, Document, Part, Section,
    values::{DAY, YEARS, action, limits, name_byte, scope},
};
use weir_core::{
    Action, Prefix, PrefixSet,
    ban::MAX_NAME,
    detect::{Definition, Program},
};
use weir_enforce::{Choice, Feature, hook_selection::Advice};

use super::{
    Config, Enforcement, HostFacts, JailConfig, Lockout, SourceChoice,
    allow::{is_too_wide, too_wide},
    backend_limits, decoy, filter, geofence, heads, hook_preference, journal, list, ring, watch,
};
use crate::store::KeepHistory;

/// Read when a jail's source is `auto` and there is no journal.
const AUTH_LOG: &str = "/var/log/auth.log";

pub(super) fn check(files: &[Part], host: &dyn HostFacts) -> Result<Config, ConfigErrors> {
    let document = Document::new(files);
    let mut root = document.root();
    let mut warnings = Vec::new();

    let lines = ["decoy", "geofence"].map(|section| root.line_of(section));
    let mut enforcement = enforcement(&mut root, host, &mut warnings);
    let state_dir = path(&mut root, "state_dir", "/var/lib/weir");
    enforcement.advice =
        hook_preference::read(&mut root, host, &enforcement, &state_dir, &mut warnings);
    let socket = path(&mut root, "socket", super::DEFAULT_SOCKET);
    let allow = allow(&mut root);
    let keep_history = KeepHistory {
        time: root
            .duration("keep_history", DAY..=YEARS)
            .map_or(30 * DAY, |at| at.value),
        bytes: root
            .integer("history_mb", 1..=100_000)
            .map_or(64, |at| at.value)
            * 1_000_000,
    };
    let lockout = lockout(&mut root);
    let filters = filter::read(&mut root);
    let jails = jails(&mut root, &filters, host, &mut warnings);
    let decoy = decoy::read(&mut root, host, &jails, &mut warnings);
    let geofence = geofence::read(&mut root, host, &mut warnings);
    let lists = list::read(&mut root, host, &mut warnings);
    let watches = watch::read(&mut root, &mut warnings);
    let sinks = weir_sinks::config::read(&mut root, &mut warnings);
    let asked = [
        decoy.as_ref().map(|_| (lines[0], "decoy", Feature::Decoys)),
        geofence
            .as_ref()
            .map(|_| (lines[1], "geofence", Feature::Geofence)),
    ];
    let asked: Vec<_> = asked.into_iter().flatten().collect();
    let rejects = |action: &Action| *action == Action::Reject;
    let jails_that = jails.iter().filter(|jail| rejects(&jail.action));
    let watches_that = watches.iter().filter(|watch| rejects(&watch.action));
    let rejecting: Vec<String> = jails_that
        .map(|jail| format!("jail.{}", jail.name))
        .chain(watches_that.map(|watch| format!("watch.{}", watch.name)))
        .collect();
    backend_limits::check(
        &root,
        enforcement.backend,
        &asked,
        &lists,
        &rejecting,
        &mut warnings,
    );
    root.finish();

    let mut config = Config {
        file: files[0].file.clone(),
        enforcement,
        state_dir,
        socket,
        allow,
        lockout,
        keep_history,
        jails,
        decoy,
        geofence,
        lists,
        filters: filters
            .into_iter()
            .filter_map(|(name, filter)| Some((name, filter?)))
            .collect(),
        watches,
        sinks,
        warnings,
    };
    if config.denies_nothing() {
        config.warnings.push(
            "nothing is enabled that bans or denies: only manual bans are enforced".to_owned(),
        );
    }
    document.finish(config)
}

/// Who is exempt: as much as `weir allow add` takes without --force.
fn allow(root: &mut Section<'_, '_>) -> PrefixSet {
    let list = root.list("allow", "a list of prefixes such as \"192.0.2.0/24\"");
    let mut allow = PrefixSet::default();
    for At { value, line } in list.map(|at| at.value).unwrap_or_default() {
        match value.parse::<Prefix>() {
            Ok(prefix) if is_too_wide(prefix) => {
                root.error(line, format!("allow: {}", too_wide(prefix)));
            }
            Ok(prefix) => {
                allow.insert(prefix);
            }
            Err(error) => root.error(line, format!("allow: {error}")),
        }
    }
    allow
}

/// `IFNAMSIZ` of linux/if.h, less the NUL.
const MAX_INTERFACE: usize = 15;

fn enforcement(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Enforcement {
    const INTERFACES: &str =
        "\"auto\" (those with a default route) or a list of interface names such as [\"eth0\"]";
    let backend = root
        .choice("backend", &Choice::ALL)
        .map_or(Choice::Auto, |at| at.value);
    let typed = root.word_or_list("interfaces", INTERFACES);
    let mut interfaces = Vec::new();
    let mut auto = false;
    match typed {
        Some(Ok(word)) if word.value != "auto" => root.error(
            word.line,
            format!("interfaces is {:?}; allowed: {INTERFACES}", word.value),
        ),
        Some(Err(list)) => {
            if list.value.is_empty() && backend != Choice::DryRun {
                root.error(
                    list.line,
                    format!("interfaces is empty; allowed: {INTERFACES}"),
                );
            }
            for name in list.value {
                // A modem, a tunnel: it may come later, or be a mistake.
                if !host.has_interface(&name.value) && backend != Choice::DryRun {
                    warnings.push(format!(
                        "interfaces: there is no interface {:?} now: it is protected as soon as it is there; this host has: {}",
                        name.value,
                        host.interfaces().join(", ")
                    ));
                }
                if name.value.is_empty() || name.value.len() > MAX_INTERFACE {
                    root.error(
                        name.line,
                        format!(
                            "interfaces: {:?} is no name of an interface; allowed: 1-{MAX_INTERFACE} bytes",
                            name.value
                        ),
                    );
                }
                interfaces.push(name.value);
            }
            interfaces.dedup();
        }
        _ => {
            auto = true;
            interfaces = host.default_route_interfaces();
            // At boot weir starts before the network: no mistake.
            if interfaces.is_empty() && backend != Choice::DryRun {
                warnings.push(
                    "interfaces = \"auto\": no interface has a default route yet; each one is attached to when it gets one".to_owned(),
                );
            }
        }
    }
    let instance = root
        .string("instance", "a name of letters, digits, - and _")
        .map(|at| {
            if at.value.is_empty() || at.value.len() > 32 || !at.value.bytes().all(name_byte) {
                root.error(
                    at.line,
                    format!(
                        "instance is {:?}; allowed: 1-32 letters, digits, - and _",
                        at.value
                    ),
                );
            }
            at.value
        })
        .unwrap_or_else(|| "default".to_owned());
    Enforcement {
        interfaces,
        auto,
        backend,
        advice: Advice::default(),
        instance,
        observe: root.boolean("observe").unwrap_or(false),
        max_bans: root
            .integer("max_bans", 16..=16_000_000)
            .map_or(1_000_000, |at| at.value as usize),
        ipv4_length: root
            .integer("ipv4_length", 8..=31)
            .and_then(|at| u8::try_from(at.value).ok()),
        pin_root: path(root, "pin_root", "/sys/fs/bpf/weir"),
    }
}

fn path(root: &mut Section<'_, '_>, key: &'static str, default: &str) -> PathBuf {
    let allowed = format!("an absolute path such as {default:?}");
    match root.string(key, &allowed) {
        Some(at) if Path::new(&at.value).is_absolute() => at.value.into(),
        Some(at) => {
            root.error(
                at.line,
                format!("{key} is {:?}; allowed: {allowed}", at.value),
            );
            default.into()
        }
        None => default.into(),
    }
}

fn lockout(root: &mut Section<'_, '_>) -> Lockout {
    let mut lockout = Lockout {
        grace: Duration::from_secs(3600),
        logins: true,
    };
    if let Some(mut section) = root.section("lockout") {
        if let Some(at) = section.duration("grace", Duration::ZERO..=30 * DAY) {
            lockout.grace = at.value;
        }
        if let Some(logins) = section.boolean("logins") {
            lockout.logins = logins;
        }
        section.finish();
    }
    lockout
}

fn jails(
    root: &mut Section<'_, '_>,
    filters: &BTreeMap<String, Option<Definition>>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Vec<JailConfig> {
    let mut jails = Vec::new();
    for (name, mut section) in root.named_sections("jail") {
        let line = section.line();
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(name_byte) {
            section.error(
                line,
                format!("jail name {name:?}; allowed: 1-{MAX_NAME} letters, digits, - and _"),
            );
        }
        let enabled = section.boolean("enabled").unwrap_or(true);
        let filter = section.string("filter", "the name of a filter");
        let filter_line = filter.as_ref().map_or(line, |at| at.line);
        let filter = filter.map_or_else(|| name.clone(), |at| at.value);
        if !filters.contains_key(&filter) && Definition::builtin(&filter).is_none() {
            section.error(
                filter_line,
                format!(
                    "[jail.{name}]: there is no filter {filter:?}; allowed: {}, or one of your own as [filter.{filter}]",
                    Definition::builtin_names()
                        .into_iter()
                        .chain(filters.keys().map(String::as_str))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            );
        }
        let source = source(&mut section, &name, host, warnings);
        let mut limits = limits(&mut section, true);
        let scope = scope(&mut section);
        let action = action(&mut section);
        let ignore = section
            .parsed_list::<Prefix>("ignore", "a list of prefixes such as \"192.0.2.0/24\"")
            .unwrap_or_default()
            .into_iter()
            .collect();
        if let Some(prefix) = section.integer("ipv6_prefix", 0..=128) {
            match prefix.value {
                // Nobody is given less than a /64, so what lies between tells
                // no two attackers apart.
                32..=64 | 128 => limits.ipv6_prefix = prefix.value as u8,
                other => section.error(
                    prefix.line,
                    format!("ipv6_prefix in [jail.{name}] is {other}; allowed: 32-64, 128"),
                ),
            }
        }
        if let Some(at) = section.integer("max_tracked", 16..=10_000_000) {
            limits.max_tracked = at.value as usize;
        }
        let time_zone = time_zone(&mut section, &name, &source, warnings);
        if enabled && let Some(filter) = compiled(&filter, filters) {
            heads::check(&section, &name, &filter, &source, host, warnings);
        }
        if let SourceChoice::Ring(choice) = &source
            && enabled
        {
            ring::check_against(&section, &name, choice, &jails);
        }
        let journal_match = journal::read(&mut section, &name, &source, host);
        section.finish();
        if enabled {
            jails.push(JailConfig {
                name,
                filter,
                source,
                journal_match,
                limits,
                scope,
                action,
                ignore,
                time_zone,
            });
        }
    }
    jails
}

/// The filter of this name, if it is one.
fn compiled(name: &str, filters: &BTreeMap<String, Option<Definition>>) -> Option<Program> {
    match filters.get(name) {
        Some(definition) => definition.as_ref()?.compile().ok(),
        None => Program::builtin(name),
    }
}

/// The zone of a log's stamps.
fn time_zone(
    section: &mut Section<'_, '_>,
    jail: &str,
    source: &SourceChoice,
    warnings: &mut Vec<String>,
) -> Option<TimeZone> {
    const ZONES: &str = "a time zone such as \"UTC\", \"Europe/Berlin\" or \"CET-1CEST\"";
    let At { value, line } = section.string("time_zone", ZONES)?;
    if *source == SourceChoice::Journal {
        warnings.push(format!(
            "[jail.{jail}]: time_zone has no effect: the journal knows when each line was written"
        ));
    }
    let zone = TimeZone::get(&value).or_else(|_| TimeZone::posix(&value));
    if zone.is_err() {
        section.error(
            line,
            format!("time_zone in [jail.{jail}] is {value:?}; allowed: {ZONES}"),
        );
    }
    zone.ok()
}

#[derive(Clone, Copy)]
enum SourceWord {
    Auto,
    Journal,
    File,
    Ring,
}

fn source(
    section: &mut Section<'_, '_>,
    jail: &str,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> SourceChoice {
    let line = section.line();
    let word = section.choice(
        "source",
        &[
            ("auto", SourceWord::Auto),
            ("journal", SourceWord::Journal),
            ("file", SourceWord::File),
            ("ring", SourceWord::Ring),
        ],
    );
    let line = word.as_ref().map_or(line, |at| at.line);
    let paths = section.list("paths", "a list of absolute paths or patterns");
    let paths = paths.map(|list| {
        for path in &list.value {
            let problem = if !path.value.starts_with('/') {
                Some("must be absolute".to_owned())
            } else {
                glob::Pattern::new(&path.value)
                    .err()
                    .map(|e| e.msg.to_owned())
            };
            if let Some(problem) = problem {
                section.error(
                    path.line,
                    format!("paths in [jail.{jail}]: {:?} {problem}; allowed: absolute paths or patterns such as \"/var/log/nginx/*.log\"", path.value),
                );
            }
        }
        if list.value.is_empty() {
            section.error(
                list.line,
                format!("paths in [jail.{jail}] is empty; allowed: absolute paths or patterns"),
            );
        }
        let paths: Vec<String> = list.value.into_iter().map(|at| at.value).collect();
        for path in &paths {
            if !path.contains(['*', '?', '[']) && !host.has_file(path) {
                warnings.push(format!(
                    "[jail.{jail}]: {path} does not exist yet; it is read as soon as it appears"
                ));
            }
        }
        (list.line, paths)
    });
    let word = word.map_or(SourceWord::Auto, |at| at.value);
    let ring = ring::read(section, jail, host, warnings);
    if let Some(ring) = ring {
        if let Some((line, _)) = paths {
            section.error(
                line,
                format!("[jail.{jail}] has both ring and paths; allowed: one of them"),
            );
        } else if matches!(word, SourceWord::Journal | SourceWord::File) {
            section.error(
                ring.line,
                format!("ring in [jail.{jail}]: the source is another one; allowed: source = \"ring\", or no ring"),
            );
        }
        return SourceChoice::Ring(ring.value);
    }
    match (word, paths) {
        (SourceWord::Ring, _) => {
            section.error(
                line,
                format!("ring is missing in [jail.{jail}]; source = \"ring\" needs ring = \"/run/weir-ring/…\""),
            );
            SourceChoice::Journal
        }
        (SourceWord::Journal, Some((line, _))) => {
            section.error(
                line,
                format!("paths in [jail.{jail}]: the source is the journal; allowed: source = \"file\", or no paths"),
            );
            SourceChoice::Journal
        }
        (SourceWord::Journal, None) => {
            if !host.has_journal() {
                warnings.push(format!(
                    "[jail.{jail}]: this host has no journal in /var/log/journal or /run/log/journal"
                ));
            }
            SourceChoice::Journal
        }
        (SourceWord::Auto | SourceWord::File, Some((_, paths))) => SourceChoice::Files(paths),
        (SourceWord::File, None) => {
            section.error(
                line,
                format!("paths is missing in [jail.{jail}]; source = \"file\" needs paths = [\"/var/log/…\"]"),
            );
            SourceChoice::Files(Vec::new())
        }
        (SourceWord::Auto, None) if host.has_journal() => SourceChoice::Journal,
        (SourceWord::Auto, None) => {
            if !host.has_file(AUTH_LOG) {
                warnings.push(format!(
                    "[jail.{jail}]: there is neither a journal nor {AUTH_LOG}; name the log with paths = [\"…\"]"
                ));
            }
            SourceChoice::Files(vec![AUTH_LOG.to_owned()])
        }
    }
}

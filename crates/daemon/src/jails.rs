//! `[jail.NAME]`: which lines of which logs are failures, and how many make a ban.
//! `[filter.NAME]` is in `filter`; what a jail says of the journal and of rings is
//! in `journal` and `ring`, and whether its filter reads its lines at all in `heads`.

mod filter;
mod heads;
mod journal;
mod ring;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use jiff::tz::TimeZone;
use weir_config::manual::{
    ACTION, Case, ENABLED, FACTOR, IGNORE, INCREMENT, NONE, PORTS, Table,
    Usual::{By, Is, Means},
    key,
};
use weir_config::{
    At, Section,
    values::{action, check_name, limits, scope},
};
use weir_core::{
    Action, PortSet, Prefix, PrefixSet,
    detect::{Definition, HostName, JournalMatch, Program},
    policy::JailLimits,
};

use weir_fail2ban::{Commands, Script};

use crate::{fail2ban_filter::Fail2banFilter, host::HostFacts};

pub use filter::filter_of;
pub(crate) use filter::read as read_filters;

/// `[jail.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[
    Table {
        name: "jail.NAME",
        about: "Bans addresses that fail too often in a log.",
        needs: &[("filter", "\"sshd\"")],
        keys: &[
            ENABLED,
            key(
                "filter",
                Means("the jail's own name"),
                "Which lines are failures: a built-in filter (weir filter list) or a table [filter.NAME].",
            ),
            key(
                "source",
                Is("\"auto\""),
                "Where the lines are: \"auto\" is the journal where there is one, else /var/log/auth.log; a jail with paths reads files, one with ring a ring.",
            ),
            key("paths", NONE, "Files, or patterns of files, that are read."),
            key(
                "journal_match",
                NONE,
                "Trusted fields of the journal that its entries must have, in place of the filter's own; \"+\" stands between sets of which any may fit.",
            ),
            key(
                "time_zone",
                Means("this host's"),
                "The time zone of time stamps that name none.",
            ),
            key(
                "use_dns",
                Is("\"warn\""),
                "What becomes of host names that <host> finds: \"yes\" looks them up, \"warn\" also writes a line to the log, \"no\" does not count them.",
            ),
            key(
                "ring",
                NONE,
                "The directory of a shared-memory ring that is read.",
            ),
            key(
                "ring_owner",
                Means("root's only"),
                "The user whose segments of the ring are read besides root's.",
            ),
            key(
                "ring_max_mib",
                By(&[Case {
                    value: "1024",
                    when: "",
                    with: &[("ring", "\"/run/weir-ring/shop\"")],
                    without: &[],
                }]),
                "MiB that the segments of the ring may take together; the others are not read.",
            ),
            key(
                "workers",
                Means("one for each processor, 8 at most"),
                "Threads that read the ring.",
            ),
            key(
                "max_retry",
                Is("5"),
                "An address is banned after this number of failures within find_time.",
            ),
            key(
                "find_time",
                Is("\"10m\""),
                "The time within which failures count together.",
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
            key(
                "ipv6_prefix",
                Is("64"),
                "IPv6 addresses are counted and banned by prefixes of this length: 32 to 64, or 128.",
            ),
            key(
                "max_tracked",
                Is("131072"),
                "Addresses whose failures are remembered at once; of more the oldest are forgotten.",
            ),
        ],
    },
    Table {
        name: "jail.NAME.increment",
        about: "How the bans of an address that comes back grow longer; also written as increment = { ... } in the jail. [watch.NAME.increment] is the same.",
        needs: &[],
        keys: &[
            FACTOR,
            key("max", Is("\"5w\""), "The longest that a ban may last."),
        ],
    },
];

/// Read when a jail's source is `auto` and there is no journal.
const AUTH_LOG: &str = "/var/log/auth.log";

/// One enabled jail.
#[derive(Debug, Clone, PartialEq)]
pub struct JailConfig {
    /// The jail's name.
    pub name: String,
    /// The filter that reads the jail's lines.
    pub filter: String,
    /// The journal, files or ring that the lines come from.
    pub source: SourceChoice,
    /// Trusted fields of its entries in the journal; none: those of the programs
    /// that its filter names.
    pub journal_match: JournalMatch,
    /// The limits at which the jail bans, and the length of its bans.
    pub limits: JailLimits,
    /// The ports that a ban covers.
    pub scope: PortSet,
    /// Whether packets of a ban are dropped or rejected.
    pub action: Action,
    /// Prefixes whose findings this jail ignores.
    pub ignore: PrefixSet,
    /// Hosts that this jail does not ban, whatever addresses they have.
    pub ignore_names: Vec<HostName>,
    /// The zone of stamps that name none; the host's if `None`.
    pub time_zone: Option<TimeZone>,
    /// What is done with host names that its filter finds.
    pub use_dns: UseDns,
    /// Says who is not to be banned.
    pub ignore_command: Option<IgnoreCommand>,
    /// Commands that the jail runs beside its bans.
    pub commands: Vec<JailCommands>,
    /// Reads its lines in place of a filter of weir's.
    pub fail2ban: Option<Arc<Fail2banFilter>>,
    /// Reads weir's own bans for a jail that counts bans and whose source is the journal,
    /// where they are not.
    pub own_bans: Option<Arc<Fail2banFilter>>,
}

impl JailConfig {
    /// The names of the jail's actions as `fail2ban-client` shows them: weir's own ban,
    /// unless the jail only notifies, and the commands beside it.
    pub fn action_names(&self) -> Vec<String> {
        let denies = self.action.denies_packets();
        let own = denies.then(|| format!("weir-{}", self.action));
        let runs = self.commands.iter().map(|run| run.name.clone());
        own.into_iter().chain(runs).collect()
    }
}

/// What of a filter's captures the commands of actions ask for, by its names: `user` of
/// `<F-USER>`.
pub(crate) fn captured_names(commands: &[JailCommands]) -> Vec<String> {
    let commands = commands.iter().map(|action| &action.commands);
    let names: BTreeSet<_> = commands.flat_map(|one| one.asks_filters_for()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// An action of a jail that runs commands.
#[derive(Debug, Clone, PartialEq)]
pub struct JailCommands {
    /// The action's name, as `sendmail-whois`.
    pub name: String,
    /// The commands of the action.
    pub commands: Arc<Commands>,
    /// Lines that a command is told of a ban, the last ones.
    pub max_matches: usize,
}

/// A command that a jail asks who is not to be banned.
#[derive(Debug, Clone, PartialEq)]
pub struct IgnoreCommand {
    /// Exit code 0 says that an address is to be ignored.
    pub script: Script,
    /// An answer holds for so long.
    pub keep: Duration,
}

/// What is done with a host name that a line has, as Fail2ban's `usedns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UseDns {
    /// The name is looked up.
    Yes,
    /// The name is looked up, and the log tells of it.
    #[default]
    Warn,
    /// The finding does not count.
    No,
}

/// Where a jail's lines come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceChoice {
    /// The systemd journal.
    Journal,
    /// The files that match these patterns.
    Files(Vec<String>),
    /// A shared-memory ring.
    Ring(RingChoice),
}

/// A ring's directory, owner and limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingChoice {
    /// The directory with its segments.
    pub directory: PathBuf,
    /// A user whose segments are read, besides root and the daemon's own.
    pub owner: Option<u32>,
    /// The number of threads that read the ring.
    pub workers: usize,
    /// MiB that its segments may take together.
    pub max_mib: u64,
}

impl fmt::Display for SourceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal => f.write_str("journal"),
            Self::Files(paths) => f.write_str(&paths.join(" ")),
            Self::Ring(ring) => write!(f, "ring {}", ring.directory.display()),
        }
    }
}

/// The jails of the file that are enabled, in its order.
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    filters: &BTreeMap<String, Option<Definition>>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Vec<JailConfig> {
    let mut jails = Vec::new();
    for (name, mut section) in root.named_sections("jail") {
        let line = section.line();
        check_name(&section, "jail", &name);
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
        let words = [
            ("yes", UseDns::Yes),
            ("warn", UseDns::Warn),
            ("no", UseDns::No),
        ];
        let use_dns = section.choice("use_dns", &words).map(|at| at.value);
        let names_hosts = compiled(&filter, filters).is_none_or(|filter| filter.names_hosts());
        if use_dns.is_some() && !names_hosts {
            warnings.push(format!(
                "[jail.{name}]: use_dns has no effect: no pattern of the filter {filter:?} has <host>"
            ));
        }
        // Of one that is wrong it is said already.
        let entries_are_named = section.has("journal_match");
        let journal_match = journal::read(&mut section, &name, &source, host);
        if enabled && let Some(filter) = compiled(&filter, filters) {
            heads::check(
                &section,
                &name,
                &filter,
                &source,
                entries_are_named,
                host,
                warnings,
            );
        }
        if let SourceChoice::Ring(choice) = &source
            && enabled
        {
            ring::check_against(&section, &name, choice, &jails);
        }
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
                ignore_names: Vec::new(),
                time_zone,
                use_dns: use_dns.unwrap_or_default(),
                ignore_command: None,
                commands: Vec::new(),
                fail2ban: None,
                own_bans: None,
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

#[cfg(test)]
mod tests;

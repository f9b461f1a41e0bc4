//! `[list.NAME]`: a named list of prefixes, where it is from and what it does.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use weir_config::manual::{
    Case, DIRECTION, ENABLED, NONE, PORTS, Table,
    Usual::{By, Is, Means},
    key,
};
use weir_config::{
    At, Section,
    values::{check_name, scope},
};
use weir_core::{PortSet, address_class::MAX_LISTS, geofence::Direction};
use weir_sources::list::{Format, Limits, WIDEST, fetch::is_url, grammar::FORMATS};

use crate::host::HostFacts;

/// `[list.NAME]` in weir.toml(5).
pub(crate) const MANUAL: &[Table] = &[Table {
    name: "list.NAME",
    about: "A list of addresses and prefixes. It needs one of url, file and crowdsec.",
    needs: &[("file", "\"/etc/hostname\"")],
    keys: &[
        ENABLED,
        key("url", NONE, "The URL from which the list is fetched."),
        key(
            "file",
            NONE,
            "The list as a file of this host; each change counts within seconds.",
        ),
        key(
            "crowdsec",
            NONE,
            "The local API of a CrowdSec, whose decisions are the list.",
        ),
        key(
            "key_file",
            NONE,
            "The bouncer's key for CrowdSec; required with crowdsec.",
        ),
        key(
            "action",
            Is("\"deny\""),
            "\"deny\" drops the packets of the addresses on the list; addresses on an \"allow\" list cannot be banned.",
        ),
        key("format", Is("\"auto\""), "The format of the list."),
        key(
            "refresh",
            By(&[
                Case {
                    value: "\"1d\"",
                    when: "",
                    with: &[("url", "\"https://localhost/list\"")],
                    without: &["file"],
                },
                Case {
                    value: "\"30s\"",
                    when: "with crowdsec",
                    with: &[
                        ("crowdsec", "\"http://127.0.0.1:8080\""),
                        ("key_file", "\"/etc/hostname\""),
                    ],
                    without: &["file"],
                },
            ]),
            "How often the list is fetched.",
        ),
        PORTS,
        key("direction", Is("\"in\""), DIRECTION),
        key(
            "max_bytes",
            Is("67108864"),
            "A list of more bytes is refused; the last good one stays.",
        ),
        key(
            "max_entries",
            Is("2000000"),
            "A list with more entries is refused; the last good one stays.",
        ),
        key(
            "max_shrink",
            Is("90"),
            "A list that has lost this percentage of its entries at once is refused until the next refresh brings it again.",
        ),
        key(
            "ca_file",
            Means("the system's"),
            "Certificate authorities that are trusted instead.",
        ),
    ],
}];

/// One enabled list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListConfig {
    /// The list's name.
    pub name: String,
    /// The URL, file or service that the list is from.
    pub source: ListSource,
    /// Whether addresses of the list are denied or allowed.
    pub action: ListAction,
    /// The grammar of the list.
    pub format: Format,
    /// How often it is asked for; a file is followed.
    pub refresh: Duration,
    /// The ports that a denied address may not use.
    pub scope: PortSet,
    /// Packets from it, to it, or both.
    pub direction: Direction,
    /// Larger ones are refused.
    pub limits: Limits,
    /// One that is smaller by this many percent or more is not believed.
    pub max_shrink: u8,
    /// A file with the certificates that the list's server is trusted by; `None`: the
    /// system's.
    pub ca_file: Option<PathBuf>,
}

/// The origin of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListSource {
    /// A web server.
    Url(String),
    /// A file of this host.
    File(PathBuf),
    /// CrowdSec's local API.
    Crowdsec {
        /// The URL of the local API.
        url: String,
        /// The file with the key.
        key_file: PathBuf,
    },
}

impl ListSource {
    /// All of it, to tell whether a copy is of this source; not to be shown.
    pub fn key(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::File(path) => path.display().to_string(),
            Self::Crowdsec { url, .. } => format!("crowdsec {url}"),
        }
    }
}

/// The source in messages: without the query, which is where paid lists have their key.
impl std::fmt::Display for ListSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => match url.split_once('?') {
                Some((list, _)) => write!(f, "{list}?…"),
                None => f.write_str(url),
            },
            Self::File(path) => path.display().fmt(f),
            Self::Crowdsec { url, .. } => write!(f, "CrowdSec at {url}"),
        }
    }
}

/// The effect of a list on its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ListAction {
    /// Packets are dropped.
    Deny,
    /// Bans, other lists and the geofence do not apply to the addresses.
    Allow,
}

/// [`Limits::widest`] of a deny list of one's own: what a ban may hold.
const WHATEVER: [u8; 2] = [0; 2];
/// Of an allow list of one's own, whose addresses nobody can ban.
const QUARTER: [u8; 2] = [2; 2];
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// CrowdSec's decisions are about attacks of this minute.
const CROWDSEC_REFRESH: Duration = Duration::from_secs(30);
const URL: &str =
    "a URL such as \"https://www.spamhaus.org/drop/drop.txt\", without user and password";
const FILE: &str = "an absolute path such as \"/etc/weir/bad.txt\"";
const API: &str = "the URL of CrowdSec's local API such as \"http://127.0.0.1:8080\"";
const KEY: &str = "the absolute path of a file with a key of CrowdSec's (cscli bouncers add weir)";
const CA: &str = "the absolute path of a file with PEM certificates";

/// All lists of the file that are enabled, in its order.
pub(crate) fn read(
    root: &mut Section<'_, '_>,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Vec<ListConfig> {
    let mut lists: Vec<ListConfig> = Vec::new();
    let mut kinds = [0usize; 2];
    for (name, mut section) in root.named_sections("list") {
        let line = section.line();
        check_name(&section, "list", &name);
        let enabled = section.boolean("enabled").unwrap_or(true);
        let list = one(&mut section, &name, host, warnings);
        section.finish();
        let Some(list) = list.filter(|_| enabled) else {
            continue;
        };
        let kind = &mut kinds[usize::from(list.action == ListAction::Allow)];
        *kind += 1;
        if *kind > MAX_LISTS {
            root.error(
                line,
                format!("[list.{name}] is one list too many; allowed: {MAX_LISTS} that deny, {MAX_LISTS} that allow"),
            );
        }
        lists.push(list);
    }
    lists
}

fn one(
    section: &mut Section<'_, '_>,
    name: &str,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Option<ListConfig> {
    let action = section.choice(
        "action",
        &[("deny", ListAction::Deny), ("allow", ListAction::Allow)],
    );
    let action = action.map_or(ListAction::Deny, |at| at.value);
    let source = source(section, name, action, host, warnings);
    let is_url = matches!(source, Some(ListSource::Url(_)));
    let is_file = matches!(source, Some(ListSource::File(_)));
    let is_crowdsec = matches!(source, Some(ListSource::Crowdsec { .. }));

    let mut format = Format::Auto;
    if let Some(at) = section.string("format", FORMATS) {
        match at.value.parse() {
            _ if is_crowdsec => section.error(
                at.line,
                format!("format in [list.{name}]: CrowdSec has its own; allowed: no format"),
            ),
            Ok(known) => format = known,
            Err(()) => section.error(
                at.line,
                format!(
                    "format in [list.{name}] is {:?}; allowed: {FORMATS}",
                    at.value
                ),
            ),
        }
    }
    let refresh = section.duration("refresh", SECOND..=30 * DAY);
    if let (Some(at), true) = (&refresh, is_file) {
        section.error(
            at.line,
            format!("refresh in [list.{name}]: a file is followed, each change within seconds; allowed: no refresh"),
        );
    }
    let default = if is_crowdsec { CROWDSEC_REFRESH } else { DAY };
    let refresh = refresh.map_or(default, |at| at.value);

    // An allow list wins over everything, everywhere.
    if action == ListAction::Allow {
        for key in ["ports", "direction"] {
            if let Some(line) = section.line_of(key) {
                section.error(
                    line,
                    format!("{key} in [list.{name}]: an allow list holds for all packets; allowed: only with action = \"deny\""),
                );
            }
        }
    }
    let scope = scope(section);
    let direction = section.choice(
        "direction",
        &[
            ("in", Direction::In),
            ("out", Direction::Out),
            ("both", Direction::Both),
        ],
    );
    let max_bytes = section.integer("max_bytes", 1024..=1 << 30);
    let max_entries = section.integer("max_entries", 1..=10_000_000);
    let max_shrink = section.integer("max_shrink", 1..=100);
    let ca_file = section.string("ca_file", CA);
    if let Some(at) = &ca_file {
        if is_file {
            section.error(
                at.line,
                format!("ca_file in [list.{name}] is about servers; allowed: with url or crowdsec"),
            );
        }
        absolute(section, "ca_file", at, name, CA);
        missing(&at.value, "ca_file", name, host, warnings);
    }
    if let (true, Some(ListSource::Url(url))) = (is_url, &source)
        && url.starts_with("http:")
        && !is_local(url)
    {
        warnings.push(format!(
            "[list.{name}]: anybody between here and the server can change what http brings; use https if it has it"
        ));
    }
    Some(ListConfig {
        name: name.to_owned(),
        source: source?,
        action,
        format,
        refresh,
        scope,
        direction: direction.map_or(Direction::In, |at| at.value),
        limits: Limits {
            max_bytes: max_bytes.map_or(64 << 20, |at| at.value as usize),
            max_entries: max_entries.map_or(2_000_000, |at| at.value as usize),
            widest: match (is_file, action) {
                (false, _) => WIDEST,
                (true, ListAction::Deny) => WHATEVER,
                (true, ListAction::Allow) => QUARTER,
            },
        },
        max_shrink: max_shrink.map_or(90, |at| at.value as u8),
        ca_file: ca_file.map(|at| at.value.into()),
    })
}

fn source(
    section: &mut Section<'_, '_>,
    name: &str,
    action: ListAction,
    host: &dyn HostFacts,
    warnings: &mut Vec<String>,
) -> Option<ListSource> {
    let url = section.string("url", URL);
    let file = section.string("file", FILE);
    let crowdsec = section.string("crowdsec", API);
    let key_file = section.string("key_file", KEY);
    if let (None, Some(key)) = (&crowdsec, &key_file) {
        section.error(
            key.line,
            format!("key_file in [list.{name}] is about CrowdSec; allowed: with crowdsec = \"http://127.0.0.1:8080\""),
        );
    }
    let named: Vec<usize> = [&url, &file, &crowdsec]
        .into_iter()
        .flatten()
        .map(|at| at.line)
        .collect();
    if named.len() != 1 {
        let line = named.last().copied().unwrap_or(section.line());
        let what = match named.len() {
            0 => "no source",
            _ => "several sources",
        };
        section.error(
            line,
            format!("[list.{name}] has {what}; allowed: one of url, file, crowdsec"),
        );
        return None;
    }
    if let Some(at) = url {
        if !is_url(&at.value) {
            let text = format!("url in [list.{name}] is {:?}; allowed: {URL}", at.value);
            section.error(at.line, text);
        }
        return Some(ListSource::Url(at.value));
    }
    if let Some(at) = file {
        absolute(section, "file", &at, name, FILE);
        missing(&at.value, "file", name, host, warnings);
        return Some(ListSource::File(at.value.into()));
    }
    let at = crowdsec?;
    if !is_url(&at.value) {
        let text = format!(
            "crowdsec in [list.{name}] is {:?}; allowed: {API}",
            at.value
        );
        section.error(at.line, text);
    }
    if action == ListAction::Allow {
        section.error(
            at.line,
            format!(
                "crowdsec in [list.{name}]: its decisions are bans; allowed: action = \"deny\""
            ),
        );
    }
    let Some(key) = key_file else {
        section.error(
            at.line,
            format!("key_file is missing in [list.{name}]; crowdsec needs {KEY}"),
        );
        return None;
    };
    absolute(section, "key_file", &key, name, KEY);
    missing(&key.value, "key_file", name, host, warnings);
    Some(ListSource::Crowdsec {
        url: at.value,
        key_file: key.value.into(),
    })
}

fn absolute(section: &Section<'_, '_>, key: &str, at: &At<String>, name: &str, allowed: &str) {
    if !Path::new(&at.value).is_absolute() {
        section.error(
            at.line,
            format!(
                "{key} in [list.{name}] is {:?}; allowed: {allowed}",
                at.value
            ),
        );
    }
}

fn missing(path: &str, key: &str, name: &str, host: &dyn HostFacts, warnings: &mut Vec<String>) {
    if !host.has_file(path) {
        warnings.push(format!(
            "[list.{name}]: {key} {path} does not exist yet; it is read as soon as it appears"
        ));
    }
}

/// Whether the URL stays on this host.
fn is_local(url: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]"]
        .iter()
        .any(|local| url.starts_with(local))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, host::Host};

    fn check(text: &str) -> Result<Config, String> {
        let whole = format!("backend = \"dry-run\"\ninterfaces = []\n{text}");
        Config::check(Path::new("weir.toml"), &whole, &Host).map_err(|e| e.to_string())
    }

    #[test]
    fn a_list_is_read_with_its_defaults() {
        let config = check(
            "[list.drop]\nurl = \"https://lists.example/drop.txt\"\n\
             [list.office]\nfile = \"/etc/hostname\"\naction = \"allow\"\nformat = \"plain\"\n\
             [list.off]\nfile = \"/nonexistent\"\nenabled = false\n\
             [list.crowd]\ncrowdsec = \"http://127.0.0.1:8080\"\nkey_file = \"/etc/hostname\"\nports = [\"22/tcp\"]\ndirection = \"both\"\nmax_shrink = 50\nrefresh = \"5s\"",
        )
        .unwrap();
        let [drop, office, crowd] = &config.lists[..] else {
            panic!("{:?}", config.lists);
        };
        assert_eq!(drop.source.to_string(), "https://lists.example/drop.txt");
        assert_eq!(
            (
                drop.action,
                drop.format,
                drop.refresh,
                drop.direction,
                drop.max_shrink
            ),
            (ListAction::Deny, Format::Auto, DAY, Direction::In, 90)
        );
        assert_eq!(drop.limits.max_bytes, 67_108_864);
        assert_eq!(drop.limits.max_entries, 2_000_000);
        assert!(drop.scope.is_all());
        assert_eq!(
            (office.action, office.format),
            (ListAction::Allow, Format::Plain)
        );
        assert_eq!(crowd.refresh, Duration::from_secs(5));
        assert_eq!((crowd.direction, crowd.max_shrink), (Direction::Both, 50));
        assert_eq!(crowd.scope.to_string(), "22/tcp");
    }

    #[test]
    fn a_key_in_a_url_is_not_shown() {
        let source = ListSource::Url("https://lists.example/get?key=secret&x=1".to_owned());
        assert_eq!(source.to_string(), "https://lists.example/get?…");
        assert!(source.key().contains("secret"));
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, words) in [
            (
                "[list.a]\naction = \"deny\"",
                "weir.toml:3: [list.a] has no source; allowed: one of url, file, crowdsec",
            ),
            (
                "[list.a]\nurl = \"https://a.example/\"\nfile = \"/x\"",
                "weir.toml:5: [list.a] has several sources",
            ),
            (
                "[list.a]\nurl = \"ftp://a.example/\"",
                "weir.toml:4: url in [list.a] is \"ftp://a.example/\"; allowed: a URL",
            ),
            (
                "[list.a]\nfile = \"bad.txt\"",
                "weir.toml:4: file in [list.a] is \"bad.txt\"; allowed: an absolute path",
            ),
            (
                "[list.a]\nfile = \"/x\"\nrefresh = \"1d\"",
                "weir.toml:5: refresh in [list.a]: a file is followed",
            ),
            (
                "[list.a]\nfile = \"/x\"\nformat = \"csv:0\"",
                "weir.toml:5: format in [list.a] is \"csv:0\"; allowed: \"auto\", \"plain\", \"csv:COLUMN\"",
            ),
            (
                "[list.a]\nfile = \"/x\"\naction = \"drop\"",
                "weir.toml:5: action in [list.a] is \"drop\"; allowed: \"deny\", \"allow\"",
            ),
            (
                "[list.a]\nfile = \"/x\"\naction = \"allow\"\nports = [\"22/tcp\"]",
                "weir.toml:6: ports in [list.a]: an allow list holds for all packets",
            ),
            (
                "[list.a]\nfile = \"/x\"\nca_file = \"/y\"",
                "weir.toml:5: ca_file in [list.a] is about servers",
            ),
            (
                "[list.a]\ncrowdsec = \"http://127.0.0.1:8080\"",
                "weir.toml:4: key_file is missing in [list.a]",
            ),
            (
                "[list.a]\ncrowdsec = \"http://127.0.0.1:8080\"\nkey_file = \"/k\"\naction = \"allow\"",
                "its decisions are bans",
            ),
            (
                "[list.a]\ncrowdsec = \"http://127.0.0.1:8080\"\nkey_file = \"/k\"\nformat = \"plain\"",
                "CrowdSec has its own",
            ),
            (
                "[list.a]\nfile = \"/x\"\nkey_file = \"/k\"",
                "weir.toml:5: key_file in [list.a] is about CrowdSec",
            ),
            (
                "[list.a]\nfile = \"/x\"\nmax_shrink = 0",
                "weir.toml:5: max_shrink",
            ),
            (
                "[list.a]\nfile = \"/x\"\nmax_bytes = 5",
                "weir.toml:5: max_bytes",
            ),
            (
                "[list.a]\nfile = \"/x\"\nmax_entires = 5",
                "unknown key \"max_entires\" in [list.a] (did you mean max_entries?); allowed: ",
            ),
            (
                "[list.\"a b\"]\nfile = \"/x\"",
                "list name \"a b\"; allowed: ",
            ),
            (
                "[list.a]\nurl = \"http://a.example/\"\nrefresh = \"10ms\"",
                "weir.toml:5: refresh in [list.a] is \"10ms\"; allowed: 1s-",
            ),
        ] {
            let errors = check(text).expect_err(text);
            assert!(errors.contains(words), "no {words:?} in {errors}");
        }
        let many: String = (0..=MAX_LISTS)
            .map(|n| format!("[list.n{n}]\nfile = \"/x\"\n"))
            .collect();
        assert!(
            check(&many)
                .unwrap_err()
                .contains("one list too many; allowed: 64")
        );
    }

    #[test]
    fn what_is_probably_not_meant_is_warned_about() {
        let warnings = check(
            "[list.a]\nurl = \"http://lists.example/\"\n[list.b]\nfile = \"/nonexistent\"\n[list.c]\nurl = \"http://127.0.0.1:8000/\"",
        )
        .unwrap()
        .warnings;
        let all = warnings.join("\n");
        assert!(all.contains("[list.a]: anybody between here"), "{all}");
        assert!(
            all.contains("[list.b]: file /nonexistent does not exist yet"),
            "{all}"
        );
        assert!(!all.contains("[list.c]"), "{all}");
    }
}

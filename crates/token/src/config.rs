//! `[token]` and `[token.require.NAME]`: to whom connections and datagrams are signed, and
//! which ports want a token; and `[token.forward]`: which ports behind this host;
//! and `[token.strip]`: where tokens of others are overwritten.

mod compat;
mod conduits;
mod forward;
mod overlap;
mod strip;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use weir_config::{
    At, Section,
    manual::{
        NONE, Table,
        Usual::{Is, Means, Required},
        key,
    },
    values::{check_name, optional_path, path},
};
use weir_core::{PortRange, Prefix, Protocol, balance::acl::Who};
use weir_identity::{AppConfig, Digest, Peer, Rule};

pub use conduits::{Conduit, ProbeUse};
pub use forward::{ForwardConfig, ForwardHook};
pub use strip::{StripConfig, StripDirection};

/// Where keys are by default.
pub const DEFAULT_KEYS: &str = "/etc/weir/token-keys";
/// Requirements of one configuration.
pub const MAX_REQUIREMENTS: usize = 64;
/// Identities that one requirement names.
pub const MAX_AGGREGATES: usize = 256;
/// Networks of one list.
pub const MAX_PREFIXES: usize = 256;
/// Interfaces at which datagrams get tokens.
pub const MAX_INTERFACES: usize = 64;

/// `[token]` in weir.toml(5).
pub const MANUAL: &[Table] = &[
    Table {
        name: "token",
        about: "Tokens: a host proves to another which program began a TCP connection, by an option in its SYN that is bound to the flow, or which one sends UDP datagrams, by an option in their IP headers.",
        needs: &[],
        keys: &[
            key(
                "keys",
                Is("\"/etc/weir/token-keys\""),
                "The directory of the keys that the hosts share, as weir-token-key(1) makes them.",
            ),
            key(
                "sign_to",
                NONE,
                "Networks to which connections are signed, if one program that [app] knows begins them. Whoever is there sees four bytes of its digest.",
            ),
            key(
                "scope",
                Is("\"flow\""),
                "What the tokens of sign_to are about: \"flow\", the connection, in its SYN; or \"payload\", each segment that this host sends on it as well, and what it carries. Then no superpackets (GSO) are made for the interfaces by which they leave, for other connections either.",
            ),
            key(
                "compat",
                NONE,
                "\"daf\": instead of tokens each TCP segment to sign_to, which are of IPv4 then, has the signature of DAF, whatever program sends it: an IPv4 option with HMAC-SHA256 of the payload. It is weak: bound to no connection and no time, so that each can be sent again; the same for all segments without data; of one key that cannot be changed without a break. Superpackets as with scope \"payload\".",
            ),
            key(
                "daf_secret",
                NONE,
                "The key of DAF's hosts, as their -s names it: a file of 1 to 4096 bytes, root's and readable for nobody else. Needed with compat, here or in [token.require.NAME].",
            ),
            key(
                "sign_udp_to",
                NONE,
                "Networks to which UDP datagrams are signed likewise, each with an IPv4 option or an IPv6 destination options header of its own. Some routers drop these: weir-options-probe(1) shows it.",
            ),
            key(
                "interfaces",
                Means("those that routes to sign_udp_to, or sign_to, lead to"),
                "Interfaces by which these datagrams leave, SYNs with their token in the IP header, and the segments of scope \"payload\" or of compat.",
            ),
            key(
                "conduits",
                Is("[\"tcp-option\"]"),
                "Where the token of a TCP connection stands: \"tcp-option\", or \"ip-option\", which is an IPv4 option or an IPv6 destination option of the SYN; the preferred one first. Without probe_result it is the first one. With scope \"payload\" there is \"tcp-option\" alone.",
            ),
            key(
                "probe_result",
                NONE,
                "A file of weir-options-probe(1) (--resume), read at the start and at a reload: to each network of sign_to and sign_udp_to in which a site of it is, tokens go by the first conduit that passed to it from this host, or not at all.",
            ),
            key(
                "probe_site",
                Means("the site that sent from an address of this host"),
                "What this host is called in probe_result.",
            ),
            key(
                "probe_max_age",
                Means("with probe_result 90d"),
                "How old a result of probe_result may be before an alert asks for another one. It is used all the same.",
            ),
            key(
                "probe_pass_percent",
                Means("with probe_result 90"),
                "So many of a hundred packets with an option have to arrive with it, or the conduit does not count as passing.",
            ),
            key(
                "cgroup",
                Means("that of [app], else the root"),
                "The control group (version 2) whose processes sign, and whose ports may want tokens, as a directory.",
            ),
            key(
                "require",
                NONE,
                "Ports that want a token; tables, see below.",
            ),
            key(
                "forward",
                NONE,
                "Ports behind this host, as a gateway, that want a token; a table, see below.",
            ),
            key(
                "strip",
                NONE,
                "Uplinks at which tokens of others are overwritten; a table, see below.",
            ),
        ],
    },
    Table {
        name: "token.require.NAME",
        about: "TCP and UDP ports of this host that want a token, whichever program listens there; rules of [app] with peer want one as well, at the ports of the rule. Two that are about one port and source name the same programs, in the same mode.",
        needs: &[
            ("ports", "[\"8080/tcp\"]"),
            (
                "aggregate",
                "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"",
            ),
        ],
        keys: &[
            key("ports", Required, "The ports."),
            key(
                "aggregate",
                Means("with compat none, else it has to be there"),
                "The SHA-256 of the programs that get in, as a whole: aggregate in weir-app-list(1) with --programs, on their host.",
            ),
            key(
                "from",
                Means("everybody, this host itself too"),
                "Sources that it is about; others need no token.",
            ),
            key(
                "mode",
                Is("\"require\""),
                "\"require\" drops what has no valid token; \"log\" counts it and lets it pass.",
            ),
            key(
                "scope",
                Is("\"flow\""),
                "\"payload\" wants a valid token in each segment to these ports, which are of TCP then; sign_to of the other host has the same scope.",
            ),
            key(
                "compat",
                NONE,
                "\"daf\" wants in each segment to these ports, which are of TCP then, the signature of DAF instead of a token, and takes nothing else: IPv6 does not get in. It says that a host has daf_secret, and not which program sends; whoever has seen a segment can send it again.",
            ),
        ],
    },
    forward::TABLE,
    forward::REQUIREMENT,
    strip::TABLE,
];

const PORTS: &str = "a list of TCP and UDP ports such as [\"22/tcp\", \"6000-6010/udp\"]";
const INTERFACES: &str = "a list of 1 to 64 interfaces such as [\"eth0\"]";
const PREFIXES: &str =
    "a list of addresses and networks such as [\"192.0.2.0/24\", \"2001:db8::/32\"]";
const AGGREGATES: &str =
    "a SHA-256 of 64 hexadecimal digits, \"sha256:\" before them or not, or a list of them";

/// What a token is about.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The connection: it is in the SYN.
    #[default]
    Flow,
    /// Each segment behind the SYN, and what it carries, as well.
    Payload,
    /// With `compat`: no token, but the signature of DAF in each segment.
    Daf,
}

impl Scope {
    /// The words of `scope` in the configuration.
    const WORDS: [(&str, Self); 2] = [("flow", Self::Flow), ("payload", Self::Payload)];
    /// The words of `compat` there.
    const COMPAT: [(&str, Self); 1] = [("daf", Self::Daf)];

    /// The word for it in the configuration, of `scope` or of `compat`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Payload => "payload",
            Self::Daf => "daf",
        }
    }
}

/// A checked `[token]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenConfig {
    /// The directory of keys.
    pub keys: PathBuf,
    /// To whom connections are signed.
    pub sign_to: Vec<Prefix>,
    /// What the tokens of these connections are about.
    pub scope: Scope,
    /// The file with the key of DAF; there is one where a scope is [`Scope::Daf`].
    pub daf_secret: Option<PathBuf>,
    /// To whom UDP datagrams are signed.
    pub sign_udp_to: Vec<Prefix>,
    /// The interfaces by which these, and segments of the scope `payload`, leave; `None`: those
    /// that their routes lead to.
    pub interfaces: Option<Vec<String>>,
    /// Where tokens of TCP connections may stand, the preferred one first; never empty.
    pub conduits: Vec<Conduit>,
    /// What is made of measurements of the path; `None`: the first conduit is taken.
    pub probe: Option<ProbeUse>,
    /// The directory of the control group; `None`: the root.
    pub cgroup: Option<PathBuf>,
    /// Where forwarded packets are judged; there is one where a requirement is about these.
    pub forward: Option<ForwardConfig>,
    /// Where tokens of others are overwritten.
    pub strip: Option<StripConfig>,
    /// Two that are about one port and source want the same.
    pub requirements: Vec<Requirement>,
}

/// A checked `[token.require.NAME]` or `[token.forward.require.NAME]`, or what a rule of `[app]`
/// with `peer` wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// What stands in the place of NAME; of a rule `app.rules.NAME`, of one about forwarded
    /// packets `forward.NAME`.
    pub name: String,
    /// TCP and UDP ports.
    pub ports: Vec<PortRange>,
    /// Sources that it is about; `None`: all.
    pub from: Option<Vec<Prefix>>,
    /// The programs that get in; with signatures of DAF none are named.
    pub aggregates: Vec<Digest>,
    /// Who does not is dropped, and not only counted.
    pub drops: bool,
    /// What the tokens at these ports are about.
    pub scope: Scope,
    /// It is about packets that this host forwards to these networks; `None`: about those for
    /// its own sockets.
    pub to: Option<Vec<Prefix>>,
}

/// Reads `[token]`; rules of `[app]` with `peer` want tokens as well.
pub fn read(
    root: &mut Section<'_, '_>,
    app: Option<&AppConfig>,
    warnings: &mut Vec<String>,
) -> Option<TokenConfig> {
    let mut section = root.section("token")?;
    let line = section.line();
    let keys = path(&mut section, "keys", DEFAULT_KEYS);
    let sign_line = section.line_of("sign_to").unwrap_or(line);
    let of_tokens = compat::OF_TOKENS.map(|key| (key, section.line_of(key)));
    let sign_to = prefixes(&mut section, "sign_to").unwrap_or_default();
    let sign_udp_line = section.line_of("sign_udp_to").unwrap_or(line);
    let sign_udp_to = prefixes(&mut section, "sign_udp_to").unwrap_or_default();
    let scope = section.choice("scope", &Scope::WORDS);
    if let Some(at) = &scope
        && at.value == Scope::Payload
        && sign_to.is_empty()
    {
        section.error(
            at.line,
            "scope in [token] is \"payload\", without sign_to: it is about the connections that are signed; allowed: a sign_to beside it, or no scope (that of a port is in [token.require.NAME])",
        );
    }
    let conduits = conduits::read(&mut section, !sign_to.is_empty());
    if let Some(at) = &scope
        && at.value == Scope::Payload
        && conduits.contains(&Conduit::IpOption)
    {
        section.error(
            at.line,
            "scope in [token] is \"payload\", and conduits has \"ip-option\": segments have their tokens in the TCP header, so where no TCP option gets through none of them would; allowed: conduits = [\"tcp-option\"] beside it, or scope = \"flow\"",
        );
    }
    let scope = scope.map_or(Scope::Flow, |at| at.value);
    let compat = compat::read_signing(&mut section, &of_tokens, sign_line, &sign_to);
    let scope = compat.unwrap_or(scope);
    let is_any =
        !sign_udp_to.is_empty() || conduits.contains(&Conduit::IpOption) || scope != Scope::Flow;
    let interfaces = interfaces(&mut section, is_any);
    let signs = !sign_to.is_empty() || !sign_udp_to.is_empty();
    let probe = conduits::read_probe(&mut section, signs);
    let cgroup_line = section.line_of("cgroup").unwrap_or(line);
    let own_cgroup = optional_path(&mut section, "cgroup", "/sys/fs/cgroup/system.slice");
    for (key, networks, line) in [
        ("sign_to", &sign_to, sign_line),
        ("sign_udp_to", &sign_udp_to, sign_udp_line),
    ] {
        let is_of_programs = key != "sign_to" || scope != Scope::Daf;
        if !networks.is_empty() && is_of_programs && app.is_none() {
            section.error(
                line,
                format!("{key} in [token]: without [app] no program is known that could sign; allowed: an [app] beside it, or no {key}"),
            );
        }
    }
    let of_app = app.map(|app| app.cgroup.as_deref());
    let rules = app
        .iter()
        .flat_map(|app| app.rules.iter().zip(&app.rule_lines));
    let rules: Vec<_> = rules.filter(|(rule, _)| !rule.peer.is_empty()).collect();
    if let Some(own) = &own_cgroup {
        let differs = of_app.is_some_and(|of_app| of_app.is_some_and(|of_app| of_app != own));
        let is_wrong = (differs && signs) || (of_app != Some(Some(own)) && !rules.is_empty());
        if is_wrong {
            section.error(
                cgroup_line,
                "cgroup in [token] is another one than that of [app], which says who signs and whose peers are asked; allowed: the same one, or none",
            );
        }
    }
    let mut requirements = Vec::new();
    let mut tags = BTreeMap::<[u8; 4], Digest>::new();
    for (name, mut table) in section.named_sections("require") {
        let line = table.line();
        check_name(&table, "requirement", &name);
        let mistakes = table.mistakes();
        let requirement = requirement(&name, &format!("[token.require.{name}]"), &mut table);
        if let Some(mistake) = note_tags(&mut tags, &requirement) {
            table.error(
                line,
                format!("aggregate in [token.require.{name}]: {mistake}"),
            );
        }
        let is_right = table.mistakes() == mistakes;
        table.finish();
        if is_right {
            requirements.push((requirement, line));
        }
    }
    let forward = forward::read(&mut section, &mut requirements, &mut tags);
    let strip = strip::read(&mut section);
    for (rule, rule_line) in rules {
        let requirement = of_rule(rule);
        if let Some(mistake) = note_tags(&mut tags, &requirement) {
            section.error(
                *rule_line,
                format!("peer in [{}]: {mistake}", requirement.name),
            );
        }
        requirements.push((requirement, *rule_line));
    }
    let by_daf = |(requirement, _): &&(Requirement, usize)| requirement.scope == Scope::Daf;
    let daf_line = requirements.iter().find(by_daf).map(|(_, line)| *line);
    let daf_secret = compat::read_secret(&mut section, scope == Scope::Daf, daf_line, warnings);
    overlap::check(&section, &requirements);
    if requirements.len() > MAX_REQUIREMENTS {
        section.error(
            line,
            format!(
                "[token] has {} requirements, those of rules with peer included; allowed: at most {MAX_REQUIREMENTS}",
                requirements.len()
            ),
        );
    }
    if !signs && requirements.is_empty() && strip.is_none() {
        warnings.push(format!(
            "{}: [token] signs nothing and requires nothing",
            section.place(line)
        ));
    }
    section.finish();
    Some(TokenConfig {
        keys,
        sign_to,
        scope,
        daf_secret,
        sign_udp_to,
        interfaces,
        conduits,
        probe,
        forward,
        strip,
        cgroup: own_cgroup.or_else(|| of_app.flatten().map(Path::to_owned)),
        requirements: requirements.into_iter().map(|(r, _)| r).collect(),
    })
}

/// Remembers of which programs tokens are wanted; `Some`: the mistake if a token could not
/// tell two of them apart.
fn note_tags(tags: &mut BTreeMap<[u8; 4], Digest>, requirement: &Requirement) -> Option<String> {
    requirement.aggregates.iter().find_map(|digest| {
        let tag = *digest.0.first_chunk().expect("it has 32 bytes");
        let other = tags.insert(tag, *digest).filter(|other| other != digest)?;
        Some(format!(
            "{digest} and {other} begin alike, and a token has these digits only; allowed: one of them"
        ))
    })
}

/// What the ports of a rule with `peer` want of whoever begins there.
fn of_rule(rule: &Rule) -> Requirement {
    let place = &rule.place;
    let from = place.from.as_ref().map(|from| {
        let prefixes = from.entries.iter().filter_map(|entry| match entry {
            Peer::Known(Who::Prefix(prefix)) => Some(*prefix),
            // Such a rule is refused when it is read.
            _ => None,
        });
        prefixes.collect()
    });
    Requirement {
        name: format!("app.rules.{}", rule.name),
        ports: place.ports.clone(),
        from,
        aggregates: rule.peer.clone(),
        drops: true,
        scope: Scope::Flow,
        to: None,
    }
}

/// Reads a requirement, whose head is `of`.
fn requirement(name: &str, of: &str, table: &mut Section<'_, '_>) -> Requirement {
    let line = table.line();
    let mut ports = Vec::new();
    match table.list("ports", PORTS) {
        None if table.mistakes() == 0 || !table.has("ports") => {
            table.error(line, format!("ports is missing in {of}; allowed: {PORTS}"))
        }
        None => {}
        Some(list) => {
            if list.value.is_empty() {
                table.error(
                    list.line,
                    format!("ports in {of} is empty; allowed: {PORTS}"),
                );
            }
            for At { value, line } in &list.value {
                let parsed = value.parse::<weir_core::PortSet>().ok();
                let ranges = parsed.as_ref().filter(|set| !set.is_all());
                let ranges = ranges.map(|set| set.ranges()).unwrap_or_default();
                let has_tokens =
                    |range: &PortRange| matches!(range.protocol, Protocol::Tcp | Protocol::Udp);
                if ranges.is_empty() || !ranges.iter().all(has_tokens) {
                    let value: String = value.chars().take(64).collect();
                    table.error(
                        *line,
                        format!("ports in {of}: {value:?} is no port of TCP or UDP, and tokens are of these; allowed: {PORTS}"),
                    );
                }
                ports.extend(ranges);
            }
        }
    }
    let compat = compat::read_required(table, of, &ports);
    let mut aggregates = Vec::new();
    let had_aggregate = table.has("aggregate");
    let typed = match table.word_or_list("aggregate", AGGREGATES) {
        None => Vec::new(),
        Some(Ok(word)) => vec![word],
        Some(Err(list)) => list.value,
    };
    for At { value, line } in &typed {
        match value.parse::<Digest>() {
            Ok(digest) => aggregates.push(digest),
            Err(error) => table.error(
                *line,
                format!("aggregate in {of}: {error}; allowed: {AGGREGATES}"),
            ),
        }
    }
    if typed.is_empty() && !had_aggregate && compat.is_none() {
        table.error(
            line,
            format!("aggregate is missing in {of}: nobody would get in; allowed: {AGGREGATES}"),
        );
    }
    if aggregates.len() > MAX_AGGREGATES {
        table.error(
            line,
            format!(
                "aggregate in {of} has {} digests; allowed: at most {MAX_AGGREGATES}",
                aggregates.len()
            ),
        );
    }
    let from_line = table.line_of("from").unwrap_or(line);
    let from = prefixes(table, "from");
    if compat.is_some() {
        compat::check_sources(table, of, from_line, from.as_deref());
    }
    let modes = [("require", true), ("log", false)];
    let drops = table.choice("mode", &modes).is_none_or(|at| at.value);
    let scope = table.choice("scope", &Scope::WORDS);
    let is_udp = |range: &PortRange| range.protocol == Protocol::Udp;
    if let Some(at) = &scope
        && at.value == Scope::Payload
        && let Some(range) = ports.iter().copied().find(is_udp)
    {
        table.error(
            at.line,
            format!("scope in {of} is \"payload\", and {range} is a port of UDP, whose datagrams have no such tokens; allowed: ports of TCP beside it, and a requirement of its own for those of UDP"),
        );
    }
    let scope = scope.map_or(Scope::Flow, |at| at.value);
    let scope = compat.unwrap_or(scope);
    Requirement {
        name: name.to_owned(),
        ports,
        from,
        aggregates,
        drops,
        scope,
        to: None,
    }
}

/// `interfaces`, at which packets get tokens, if any do.
fn interfaces(section: &mut Section<'_, '_>, is_any: bool) -> Option<Vec<String>> {
    if let (Some(line), false) = (section.line_of("interfaces"), is_any) {
        section.error(
            line,
            "interfaces in [token] without sign_udp_to, without \"ip-option\" in conduits, and without scope \"payload\" or compat: other tokens are not put in at interfaces; allowed: one of these beside it, or no interfaces",
        );
    }
    interface_names(section, "[token]")
}

/// The names in `interfaces` of a table whose head is `of`.
fn interface_names(section: &mut Section<'_, '_>, of: &str) -> Option<Vec<String>> {
    let list = section.list("interfaces", INTERFACES)?;
    if list.value.is_empty() || list.value.len() > MAX_INTERFACES {
        let count = list.value.len();
        section.error(
            list.line,
            format!("interfaces in {of} has {count} names; allowed: {INTERFACES}"),
        );
    }
    let mut seen = BTreeSet::new();
    for At { value, line } in &list.value {
        if !seen.insert(value.as_str()) {
            section.error(
                *line,
                format!("interfaces in {of} has {value:?} twice; allowed: each interface once"),
            );
            continue;
        }
        // As the kernel takes them (dev_valid_name).
        let is_fit = (1..16).contains(&value.len())
            && !value.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
        if !is_fit {
            let value: String = value.chars().take(64).collect();
            section.error(
                *line,
                format!("interfaces in {of} has {value:?}, which is no name of an interface; allowed: {INTERFACES}"),
            );
        }
    }
    Some(list.value.into_iter().map(|at| at.value).collect())
}

fn prefixes(section: &mut Section<'_, '_>, key: &'static str) -> Option<Vec<Prefix>> {
    let line = section.line_of(key).unwrap_or_default();
    let prefixes = section.parsed_list::<Prefix>(key, PREFIXES)?;
    if prefixes.is_empty() || prefixes.len() > MAX_PREFIXES {
        section.error(
            line,
            format!(
                "{key} has {} networks; allowed: 1 to {MAX_PREFIXES}",
                prefixes.len()
            ),
        );
    }
    Some(prefixes)
}

#[cfg(test)]
mod tests;

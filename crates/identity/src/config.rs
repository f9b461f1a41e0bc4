//! `[app]` and `[app.rules.NAME]`: which programs may talk to whom.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_config::{
    At, Section, WordOrList, did_you_mean,
    manual::{
        NONE, Table,
        Usual::{Is, Means, Required},
        key,
    },
    values::{check_name, optional_path, tcp_udp_scope},
};
use weir_core::{PortRange, Protocol, balance::acl::Who, geo::Selector, geofence::Direction};

use crate::{
    CgroupPattern, Condition, Criterion, Digest, Label, Level, MAX_PEERS, MAX_RULES, NamePattern,
    Peer, Peers, Pinned, Protocols, Rule, Unknown, Upgrades, Verdict, Where,
    names::is_host_name,
    rule::{MAX_PORTS, is_plain},
    shadowed::{Shadow, Shadowed, shadowed},
};

/// So many entries may a condition have.
pub const MAX_ENTRIES: usize = 256;
/// So many different names of hosts may the rules have.
pub const MAX_NAMES: usize = 256;
/// So many files may rules by `path` have that follow upgrades.
pub const MAX_PINNED: usize = 4096;
/// A question about a connection is open for at least, and at most, this time.
const MIN_PROMPT: Duration = Duration::from_secs(1);
const MAX_PROMPT: Duration = Duration::from_secs(3600);
/// So long may the path of a control group, the name of a package or of a unit be.
const MAX_TEXT: usize = 512;
/// So many rules that never decide have a warning of their own.
const MAX_SHADOWED: usize = 16;
/// Container runtimes that are asked.
const MAX_SOCKETS: usize = 8;
/// Bytes of the path of one (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
/// Bytes of the path of a directory.
const MAX_DIRECTORY: usize = 512;

/// `[app]` in weir.toml(5).
pub const MANUAL: &[Table] = &[
    Table {
        name: "app",
        about: "Application identity: which programs of this host may talk to whom. A program is known by the files that it has mapped executable, not by its name; it is looked at again at each send.",
        needs: &[],
        keys: &[
            key(
                "default",
                Is("\"allow\""),
                "What becomes of connections that no rule is about.",
            ),
            key(
                "prompt_timeout",
                NONE,
                "With a time such as \"1m\" (1s-1h): connections that no rule is about wait, and weir-app-prompt(1) asks whether they may. Where nobody answers within that time, \"default\" decides. It takes unknown = \"drop\".",
            ),
            key(
                "unknown",
                Is("\"learn\""),
                "What becomes of connections of a program that is not known yet, while a rule is about some programs: \"learn\" lets them pass and records them.",
            ),
            key(
                "cgroup",
                Means("the root: every process, those of containers too"),
                "The control group (version 2) whose processes are judged, as a directory.",
            ),
            key(
                "level",
                Is("\"auto\""),
                "How it is seen who sends: \"auto\" takes the best way that this kernel has; \"tracepoint\", \"fentry\" or \"push\" takes that one, and is refused where the kernel lacks it. With \"nfqueue\", which \"auto\" takes where the kernel has no other, the first packet of each connection waits for the daemon. The guide says what each one takes, misses and costs.",
            ),
            key(
                "container_sockets",
                Is(RUNTIMES),
                "The sockets of the container runtimes that are asked for the labels of containers, in this order: of root's, with Docker's API.",
            ),
            key(
                "container_bundles",
                Is(BUNDLES),
                "Directories in which containerd or CRI-O keeps a directory for each container of Kubernetes that runs, with its config.json: there its pod's name and namespace, and its own name, are read as labels. Root alone may be able to write to them.",
            ),
            key(
                "private_names",
                NONE,
                "Names of hosts whose addresses may be private, of loopback, of this host or of its gateway: \"nas.home.arpa\", or \"*.home.arpa\" for all below it. Of other names in rules such an answer is refused (DNS rebinding).",
            ),
            key(
                "packages",
                Is("\"tell\""),
                "What becomes of a rule by path when the file there is another one: \"tell\" raises an alert, and the next reading of the configuration takes the file as it is then, whoever has put it there; \"follow\" takes it if dpkg (MD5) or rpm (SHA-256) has this very file on record, at once, and else stays with the one before, also over reloads and restarts, until weir-app-accept(1).",
            ),
            key(
                "rules",
                NONE,
                "Rules, of which the first that holds decides; tables, see below.",
            ),
        ],
    },
    Table {
        name: "app.rules.NAME",
        about: "A rule about programs. Rules are asked in the order of the file, and files of conf.d in the order of their names. A rule holds where all of its keys fit; of a list any entry. If several processes hold a socket, a rule that allows holds if all of them fit, any other if one does.",
        needs: &[("verdict", "\"drop\"")],
        keys: &[
            key(
                "verdict",
                Required,
                "\"allow\"; \"drop\"; \"reject\" has connect fail with EPERM; \"log\" tells of it, and the next rules are asked.",
            ),
            key(
                "exe",
                NONE,
                "The SHA-256 of the executable, as weir-app-hash(1) prints it.",
            ),
            key(
                "object",
                NONE,
                "The SHA-256 of any file that is mapped executable: a library too.",
            ),
            key(
                "aggregate",
                NONE,
                "The SHA-256 of the whole program: over the digests of all its executable files in the order of their paths, as weir-app-hash(1) prints it with --aggregate.",
            ),
            key(
                "path",
                NONE,
                "An executable by its path. Its digest is taken when the configuration is read; an alert tells when the file is another one since.",
            ),
            key(
                "package",
                NONE,
                "The package whose record has this very executable.",
            ),
            key(
                "script",
                NONE,
                "The script that an interpreter was started with, by its own arguments, which it may forge: only beside exe, path or package.",
            ),
            key("user", NONE, "The effective user, by name or number."),
            key(
                "cgroup",
                NONE,
                "The control group by its path from the root, or above it; * stands for any text within a part.",
            ),
            key(
                "unit",
                NONE,
                "The systemd unit, by a part of the control group's path; * stands for any text. A rule that allows is not met by a name below another unit.",
            ),
            key(
                "container",
                NONE,
                "The container, by a label that docker(1) or podman(1) has given it (--label), or that its image has: a key, or key=value, in which * stands for any text. A container of Kubernetes has io.kubernetes.pod.namespace, io.kubernetes.pod.name, io.kubernetes.pod.uid and io.kubernetes.container.name.",
            ),
            key(
                "anonymous",
                Is("false"),
                "With true: programs that have executable memory of no file, which is compiled at run time or injected: also of a file that lies on no disk (memfd, shared memory, /dev/zero).",
            ),
            key(
                "altered",
                Is("false"),
                "With true: programs whose code somebody has changed in memory (ptrace, /proc/PID/mem), or that another process has traced while they sent, as a debugger does.",
            ),
            key(
                "netns",
                Means("any"),
                "The network namespace in which the socket is, as a file.",
            ),
            key(
                "not",
                NONE,
                "Keys of this rule that are to be the other way round: \"object\" then says that no file is mapped that has this digest, \"to\" that the peer is none of these.",
            ),
            key(
                "direction",
                Means("those that to, from or peer is about, else both"),
                "Whose connections: those that the program begins, those that others begin with it, or both.",
            ),
            key(
                "to",
                Means("anybody"),
                "Peers with whom the program begins: prefixes, list:NAME (a [list.NAME]), country:DE, continent:EU, name:example.org.",
            ),
            key(
                "from",
                Means("anybody"),
                "Peers that begin with the program; as to.",
            ),
            key(
                "peer",
                NONE,
                "Aggregates of programs, one of which who begins has to prove by the token of its SYN or datagram: for that [token] has the keys. What proves none is dropped at these ports, whichever program listens there and whatever another rule, also an earlier one, says.",
            ),
            key(
                "ports",
                Is("\"all\""),
                "The peer's ports of what goes out, the program's of what comes in.",
            ),
            key(
                "protocols",
                Means(
                    "those of ports, else all; a rule that allows is about raw and other sockets only by name",
                ),
                "Kinds of sockets.",
            ),
        ],
    },
];

const DIGEST: &str =
    "a SHA-256 of 64 hexadecimal digits, \"sha256:\" before them or not, or a list of them";
const PATHS: &str =
    "the absolute path of an executable such as \"/usr/bin/curl\", or a list of them";
const SCRIPTS: &str =
    "the absolute path of a script such as \"/usr/local/bin/backup.py\", or a list of them";
const USERS: &str =
    "a user of this host by name or number such as \"www-data\" or \"33\", or a list of them";
const CGROUPS: &str = "a path from the root of the control groups such as \"/system.slice/docker-*.scope\", or a list of them";
const UNITS: &str =
    "a unit of systemd such as \"nginx.service\" or \"docker-*.scope\", or a list of them";
const CONTAINERS: &str = "a label of a container such as \"app=web\" or \"app\", or a list of them";
const RUNTIMES: &str = "[\"/run/docker.sock\", \"/run/podman/podman.sock\"]";
const SOCKETS: &str =
    "a list of 1-8 absolute paths of up to 107 bytes such as [\"/run/docker.sock\"]";
const BUNDLES: &str = "[\"/run/containerd/io.containerd.runtime.v2.task/k8s.io\", \"/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io\", \"/run/containers/storage/overlay-containers\"]";
const DIRECTORIES: &str = "a list of 1-8 absolute paths of up to 512 bytes such as [\"/run/k0s/containerd/io.containerd.runtime.v2.task/k8s.io\"]";
const PACKAGES: &str = "the name of a package such as \"curl\", or a list of them";
const PEERS: &str = "a list of peers such as [\"192.0.2.0/24\", \"list:NAME\", \"country:DE\", \"continent:EU\", \"name:example.org\"]";
const NOT: &str = "a key of the rule such as \"object\", or a list of them: exe, object, aggregate, path, package, script, user, cgroup, unit, container, to, from";
const PROTOCOLS: &str = "\"tcp\", \"udp\", \"icmp\", \"raw\" or \"other\", or a list of them";
const NETNS: &str = "/run/netns/blue";
const PRIVATE_NAMES: &str =
    "a list of names of hosts such as [\"nas.home.arpa\", \"*.example.internal\"]";

pub use crate::rule::AppConfig;

/// What the reader asks of this host.
pub trait Facts {
    /// The number of the user of this name.
    fn user(&self, name: &str) -> Option<u32>;
    /// The digest of a file as it is now, or why there is none; `None`: there is no such file.
    fn digest(&self, path: &Path) -> Result<Option<Digest>, String>;
    /// Why no process ever has the file at this path as its executable, and what to write
    /// instead; `None`: one may.
    fn never_runs(&self, path: &Path) -> Option<String>;
    /// The names of the packages whose files the package managers have on record, or why they
    /// cannot be had.
    fn packages(&self) -> Result<BTreeSet<String>, String>;
}

/// Says how somebody is asked, to whom has written that as a verdict.
fn hint_at_prompt(section: &Section<'_, '_>) {
    for key in ["default", "unknown"] {
        if let (Some("ask" | "prompt"), Some(line)) = (section.peek(key), section.line_of(key)) {
            section.error(
                line,
                format!(
                    "{key} in [app] cannot ask; prompt_timeout = \"1m\" with unknown = \"drop\" asks somebody, and default is what holds where nobody answers"
                ),
            );
        }
    }
}

/// Reads `[app]`; `lists`: the names of those that are configured.
pub fn read(
    root: &mut Section<'_, '_>,
    facts: &dyn Facts,
    lists: &[&str],
    warnings: &mut Vec<String>,
) -> Option<AppConfig> {
    let has_token = root.has("token");
    let mut section = root.section("app")?;
    let line = section.line();
    hint_at_prompt(&section);
    let default = section
        .choice("default", &Verdict::ALL[..3])
        .map_or(Verdict::Allow, |at| at.value);
    let unknown_at = section.choice("unknown", &Unknown::ALL);
    let unknown = unknown_at.as_ref().map_or(Unknown::Learn, |at| at.value);
    let prompt_timeout = section.duration("prompt_timeout", MIN_PROMPT..=MAX_PROMPT);
    if let Some(at) = &prompt_timeout
        && unknown != Unknown::Drop
    {
        section.error(
            unknown_at.map_or(at.line, |at| at.line),
            format!(
                "unknown in [app] is {:?}; allowed with prompt_timeout: \"drop\", or programs that are not known yet would pass before anybody is asked",
                unknown.name()
            ),
        );
    }
    let level = section
        .choice("level", &Level::ALL)
        .map_or(Level::Auto, |at| at.value);
    let cgroup = optional_path(&mut section, "cgroup", "/sys/fs/cgroup/system.slice");
    let private_names = private_names(&mut section);
    let sockets = runtimes(&mut section, "container_sockets", SOCKETS, MAX_SOCKET_PATH);
    let bundles = runtimes(
        &mut section,
        "container_bundles",
        DIRECTORIES,
        MAX_DIRECTORY,
    );
    let upgrades = section
        .choice("packages", &Upgrades::ALL)
        .map_or(Upgrades::Tell, |at| at.value);
    let mut rules: Vec<Rule> = Vec::new();
    let mut rule_lines = Vec::new();
    let mut heads = Vec::new();
    let mut packages = None;
    let mut places = 0;
    for (name, mut table) in section.named_sections("rules") {
        let line = table.line();
        check_name(&table, "rule", &name);
        // A key that was read is there no more.
        let place_of_path = table.place(table.line_of("path").unwrap_or(line));
        let place_of_package = table.place(table.line_of("package").unwrap_or(line));
        let rule_line = table.line_of("peer").unwrap_or(line);
        let rule = RuleReader {
            of: format!("[app.rules.{name}]"),
            section: &mut table,
            facts,
            lists,
            has_token,
        }
        .read(&name);
        heads.push(table.full_place(line));
        table.finish();
        let Some(rule) = rule else {
            heads.pop();
            continue;
        };
        for pinned in rule.pinned() {
            if pinned.digest == Digest::NONE {
                let path = pinned.path.display();
                warnings.push(format!(
                    "{place_of_path}: path in [app.rules.{name}] has \"{path}\", and there is no such file: the rule is not about it before weir is reloaded when there is"
                ));
                continue;
            }
            if let Some(why) = facts.never_runs(&pinned.path) {
                let path = pinned.path.display();
                warnings.push(format!(
                    "{place_of_path}: path in [app.rules.{name}] has \"{path}\", which is never a program: {why}"
                ));
            }
        }
        for package in rule.packages() {
            let there = packages.get_or_insert_with(|| facts.packages());
            if let Some(why) = is_missing(package, there) {
                warnings.push(format!(
                    "{place_of_package}: package in [app.rules.{name}] has {package:?}, {why}"
                ));
            }
        }
        places += match rule.verdict {
            Verdict::Log => 0,
            _ => rule.place.by_protocol().len(),
        };
        rules.push(rule);
        rule_lines.push(rule_line);
    }
    if rules.len().max(places) > MAX_RULES {
        section.error(
            line,
            format!(
                "[app] has {} rules; allowed: at most {MAX_RULES}, and a rule counts once for each {} ranges of ports of a protocol",
                rules.len().max(places),
                MAX_PORTS
            ),
        );
    }
    for (key, at, usual) in [
        ("container_sockets", &sockets, usual_sockets()),
        ("container_bundles", &bundles, usual_bundles()),
    ] {
        if let Some(at) = at
            && at.value != usual
            && !rules.iter().any(Rule::asks_container)
        {
            section.error(
                at.line,
                format!("{key} in [app] without a rule that has container, so that nobody is asked; allowed: one beside it, or no {key}"),
            );
        }
    }
    let peers = rules.iter().flat_map(Rule::peers);
    let names: BTreeSet<_> = peers
        .filter_map(|peer| match peer {
            Peer::Name(name) => Some(name),
            Peer::Known(_) => None,
        })
        .collect();
    if names.len() > MAX_NAMES {
        let number = names.len();
        section.error(
            line,
            format!("[app] has {number} names of hosts; allowed: at most {MAX_NAMES}"),
        );
    }
    let paths: BTreeSet<_> = rules
        .iter()
        .flat_map(Rule::pinned)
        .map(|p| &p.path)
        .collect();
    if upgrades == Upgrades::Follow && paths.len() > MAX_PINNED {
        let number = paths.len();
        section.error(
            line,
            format!("[app] with packages = \"follow\" has {number} files in path; allowed: at most {MAX_PINNED}"),
        );
    }
    if rules.is_empty()
        && default == Verdict::Allow
        && unknown != Unknown::Learn
        && prompt_timeout.is_none()
    {
        warnings.push(format!(
            "{}: [app] denies nothing and learns nothing: every program passes",
            section.place(line)
        ));
    }
    let allows = |rule: &Rule| rule.verdict == Verdict::Allow;
    if default != Verdict::Allow && prompt_timeout.is_none() && !rules.iter().any(allows) {
        warnings.push(format!(
            "{}: [app] has default = {:?} and no rule that allows: no program gets through, such as the one by which you are logged in (weir app learn start finds what there is)",
            section.place(line),
            default.name()
        ));
    }
    if rules.len() <= MAX_RULES {
        warn_of_shadowed(&rules, &heads, warnings);
    }
    section.finish();
    Some(AppConfig {
        default,
        unknown,
        prompt_timeout: prompt_timeout.map(|at| at.value),
        level,
        cgroup,
        private_names,
        container_sockets: sockets.map_or_else(usual_sockets, |at| at.value),
        container_bundles: bundles.map_or_else(usual_bundles, |at| at.value),
        upgrades,
        rules,
        rule_lines,
    })
}

/// The container runtimes that are asked where the configuration names none.
fn usual_sockets() -> Vec<PathBuf> {
    ["/run/docker.sock", "/run/podman/podman.sock"]
        .map(PathBuf::from)
        .to_vec()
}

/// The directories of containers of Kubernetes: containerd's, k3s's, which RKE2 has as well, and
/// CRI-O's.
fn usual_bundles() -> Vec<PathBuf> {
    [
        "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/run/containers/storage/overlay-containers",
    ]
    .map(PathBuf::from)
    .to_vec()
}

/// The paths of container runtimes, of so many bytes at most.
fn runtimes(
    section: &mut Section<'_, '_>,
    key: &'static str,
    allowed: &'static str,
    longest: usize,
) -> Option<At<Vec<PathBuf>>> {
    let At { value, line } = section.list(key, allowed)?;
    if value.is_empty() || value.len() > MAX_SOCKETS {
        let number = value.len();
        section.error(
            line,
            format!("{key} in [app] has {number} entries; allowed: {allowed}"),
        );
    }
    let mut paths = Vec::new();
    for At { value, line } in value {
        let path = PathBuf::from(&value);
        match is_plain(&path) && value.len() <= longest {
            true => paths.push(path),
            false => {
                let value = value.chars().take(128).collect::<String>();
                section.error(
                    line,
                    format!("{key} in [app] has {value:?}; allowed: {allowed}"),
                );
            }
        }
    }
    Some(At { value: paths, line })
}

fn private_names(section: &mut Section<'_, '_>) -> Vec<NamePattern> {
    let Some(list) = section.list("private_names", PRIVATE_NAMES) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    for At { value, line } in list.value {
        match NamePattern::new(&value) {
            Some(pattern) => names.push(pattern),
            None => {
                let value = value.chars().take(128).collect::<String>();
                section.error(
                    line,
                    format!("private_names in [app] has {value:?}; allowed: {PRIVATE_NAMES}"),
                );
            }
        }
    }
    names
}

/// Why no program is of a package; `None`: one may be.
fn is_missing(package: &str, there: &Result<BTreeSet<String>, String>) -> Option<String> {
    match there {
        Err(why) => Some(format!(
            "and whether this host has it cannot be said: {why}"
        )),
        Ok(there) if there.is_empty() => Some(
            "and this host has no package on record, of dpkg or rpm: no program is of one"
                .to_owned(),
        ),
        Ok(there) if !there.contains(package) => Some(format!(
            "and no package of this host is called that{}: no program is of it unless it is installed",
            did_you_mean(package, there.iter().map(String::as_str))
        )),
        Ok(_) => None,
    }
}

/// Warns of rules that never decide; `heads`: where each rule is.
fn warn_of_shadowed(rules: &[Rule], heads: &[String], warnings: &mut Vec<String>) {
    let Shadowed { found, compared } = shadowed(rules);
    let of = |rule: usize| format!("[app.rules.{}]", rules[rule].name);
    for Shadow {
        rule,
        by,
        but_shared,
        but_raw,
    } in found.iter().take(MAX_SHADOWED)
    {
        let decides = match (but_shared, but_raw) {
            (false, false) => "never decides",
            (true, false) => "decides only of sockets that another program holds as well",
            (false, true) => "decides only of raw sockets, and those of SCTP and other protocols",
            (true, true) => {
                "decides only of raw sockets, those of SCTP and other protocols, and those that another program holds as well"
            }
        };
        warnings.push(format!(
            "{}: {} {decides}: {} at {} does before it",
            heads[*rule],
            of(*rule),
            of(*by),
            heads[*by]
        ));
    }
    if let Some(more @ 1..) = found.len().checked_sub(MAX_SHADOWED) {
        let rules = match more {
            1 => "1 more rule".to_owned(),
            more => format!("{more} more rules"),
        };
        warnings.push(format!(
            "[app]: of {rules} it is the same: one before decides"
        ));
    }
    if compared < rules.len() {
        warnings.push(format!(
            "{}: whether {} and the rules behind it ever decide was not looked at: those before have too many entries; a [list.NAME] can stand for many peers",
            heads[compared],
            of(compared)
        ));
    }
}

struct RuleReader<'a, 'd, 'i> {
    of: String,
    section: &'a mut Section<'d, 'i>,
    facts: &'a dyn Facts,
    lists: &'a [&'a str],
    has_token: bool,
}

impl RuleReader<'_, '_, '_> {
    fn read(mut self, name: &str) -> Option<Rule> {
        let (line, mistakes) = (self.section.line(), self.section.mistakes());
        let has_verdict = self.section.has("verdict");
        let verdict = self.section.choice("verdict", &Verdict::ALL);
        if !has_verdict {
            let words = Verdict::ALL.map(|(word, _)| format!("{word:?}")).join(", ");
            let of = &self.of;
            self.error(
                line,
                format!("verdict is missing in {of}; allowed: {words}"),
            );
        }
        let who = self.who();
        let line_of_peer = self.section.line_of("peer");
        let digest = |text: &str| text.parse().map_err(|error| format!("{error}"));
        let peer = self.entries("peer", DIGEST, digest);
        let mut place = self.place(peer.is_some());
        let negated = self.negated();
        for At { value: key, line } in &negated {
            let peers = match key.as_str() {
                "to" => place.to.as_mut(),
                "from" => place.from.as_mut(),
                _ => None,
            };
            match peers {
                Some(peers) => peers.is_negated = true,
                None if who.iter().any(|(known, _)| known == key) => (),
                None => self.error(
                    *line,
                    format!(
                        "not in {} has {key:?}, which is no key of the rule that can be the other way round; allowed: {NOT}",
                        self.of
                    ),
                ),
            }
        }
        let is_negated = |key: &str| negated.iter().any(|at| at.value == key);
        let who = who.into_iter().map(|(key, criterion)| Condition {
            is_negated: is_negated(key),
            criterion,
        });
        let who: Vec<_> = who.collect();
        if self.section.mistakes() == mistakes {
            self.check_contradictions(line, &who);
        }
        if let (Some(line), Some(at)) = (line_of_peer, &verdict)
            && self.section.mistakes() == mistakes
        {
            self.check_peer(line, at.value, &place);
        }
        if self.section.mistakes() > mistakes {
            return None;
        }
        Some(Rule {
            name: name.into(),
            verdict: verdict?.value,
            who,
            place,
            peer: peer.unwrap_or_default(),
        })
    }

    fn error(&self, line: usize, message: String) {
        self.section.error(line, message);
    }

    /// The conditions by their keys.
    fn who(&mut self) -> Vec<(&'static str, Criterion)> {
        let facts = self.facts;
        let mut who = Vec::new();
        for (key, criterion) in [
            ("exe", Criterion::Exe as fn(Vec<Digest>) -> Criterion),
            ("object", Criterion::Object),
            ("aggregate", Criterion::Aggregate),
        ] {
            let read = |text: &str| text.parse().map_err(|error| format!("{error}"));
            who.extend(
                self.entries(key, DIGEST, read)
                    .map(|all| (key, criterion(all))),
            );
        }
        let pinned = |text: &str| {
            let path = PathBuf::from(text);
            if !is_plain(&path) {
                return Err("it is no absolute path".to_owned());
            }
            let digest = facts.digest(&path)?.unwrap_or(Digest::NONE);
            Ok(Pinned { path, digest })
        };
        who.extend(
            self.entries("path", PATHS, pinned)
                .map(|all| ("path", Criterion::Path(all))),
        );
        let package = |text: &str| {
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"+-._:~".contains(&b);
            let fine = !text.is_empty() && text.len() <= MAX_TEXT && text.bytes().all(fine);
            fine.then(|| text.to_owned())
                .ok_or_else(|| "it is no name of a package".to_owned())
        };
        let packages = self.entries("package", PACKAGES, package);
        who.extend(packages.map(|all| ("package", Criterion::Package(all))));
        let line_of_script = self.section.line_of("script");
        let script = |text: &str| {
            let path = PathBuf::from(text);
            is_plain(&path)
                .then_some(path)
                .ok_or_else(|| "it is no absolute path".to_owned())
        };
        let scripts = self.entries("script", SCRIPTS, script);
        let has_executable = who
            .iter()
            .any(|(key, _)| ["exe", "path", "package"].contains(key));
        if let (Some(line), false) = (line_of_script, has_executable) {
            let of = &self.of;
            self.error(line, format!("script in {of} without the interpreter that runs it, so that any program may name it; allowed: beside exe, path or package"));
        }
        who.extend(scripts.map(|all| ("script", Criterion::Script(all))));
        let user = |text: &str| {
            let number = text
                .parse()
                .ok()
                .filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
            let user = number.or_else(|| facts.user(text));
            user.ok_or_else(|| "this host has no such user".to_owned())
        };
        who.extend(
            self.entries("user", USERS, user)
                .map(|all| ("user", Criterion::User(all))),
        );
        let cgroup = |text: &str| {
            let pattern = CgroupPattern::new(text).filter(|_| text.len() <= MAX_TEXT);
            let pattern = pattern.filter(|_| !text.starts_with("/sys/fs/cgroup"));
            pattern.ok_or_else(|| {
                "it is no path of a control group from their root on, as in /proc/PID/cgroup, such as /system.slice".to_owned()
            })
        };
        let cgroups = self.entries("cgroup", CGROUPS, cgroup);
        who.extend(cgroups.map(|all| ("cgroup", Criterion::Cgroup(all))));
        let unit = |text: &str| {
            let fine = !matches!(text, "" | "*") && text.len() <= MAX_TEXT && !text.contains('/');
            let is_whole = text.contains(['.', '*']);
            match (fine, is_whole) {
                (true, true) => Ok(text.to_owned()),
                (true, false) => Err(format!(
                    "no unit is called that; write {text}.service, or whatever of systemd's suffixes it has"
                )),
                _ => Err("it is no name of a unit".to_owned()),
            }
        };
        who.extend(
            self.entries("unit", UNITS, unit)
                .map(|all| ("unit", Criterion::Unit(all))),
        );
        let label = |text: &str| {
            let label = Label::new(text).filter(|_| text.len() <= MAX_TEXT);
            label.ok_or_else(|| "it is no label".to_owned())
        };
        who.extend(
            self.entries("container", CONTAINERS, label)
                .map(|all| ("container", Criterion::Container(all))),
        );
        if self.section.boolean("anonymous") == Some(true) {
            who.push(("anonymous", Criterion::Anonymous));
        }
        if self.section.boolean("altered") == Some(true) {
            who.push(("altered", Criterion::Altered));
        }
        who
    }

    /// An entry, or a list of them; those that are none are noted and left out.
    fn entries<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (line, texts) = match self.section.word_or_list(key, allowed)? {
            Ok(one) => (one.line, vec![one]),
            Err(list) => (list.line, list.value),
        };
        let of = &self.of;
        if texts.is_empty() || texts.len() > MAX_ENTRIES {
            let number = texts.len();
            self.error(line, format!("{key} in {of} has {number} entries; allowed: 1-{MAX_ENTRIES} of them: {allowed}"));
        }
        let mut entries = Vec::new();
        for At { value, line } in texts.iter().take(MAX_ENTRIES) {
            match read(value) {
                Ok(entry) => entries.push(entry),
                Err(why) => {
                    let value = value.chars().take(128).collect::<String>();
                    self.error(
                        *line,
                        format!("{key} in {of} is {value:?}: {why}; allowed: {allowed}"),
                    );
                }
            }
        }
        Some(entries)
    }

    fn place(&mut self, has_peer: bool) -> Where {
        let lines = ["to", "from", "direction"].map(|key| self.section.line_of(key));
        let to = self.peers("to");
        let from = self.peers("from");
        let choices = [Direction::In, Direction::Out, Direction::Both].map(|d| (d.name(), d));
        let direction = self.section.choice("direction", &choices);
        let of = &self.of;
        let usual = match (&to, &from) {
            (Some(_), None) => Direction::Out,
            (None, Some(_)) => Direction::In,
            (None, None) if has_peer => Direction::In,
            _ => Direction::Both,
        };
        let chosen = direction.map_or(usual, |at| at.value);
        for (line, fits, key, other) in [
            (lines[0], chosen.outbound(), "to", "out"),
            (lines[1], chosen.inbound(), "from", "in"),
        ] {
            if let (Some(line), false) = (line, fits) {
                let direction = chosen.name();
                self.error(line, format!("{key} in {of} with direction = {direction:?} holds for nothing; allowed: with {other:?} or \"both\""));
            }
        }
        let line_of_ports = self.section.line_of("ports");
        let ports = tcp_udp_scope(self.section);
        let mut protocols = Protocols::default();
        let line_of_protocols = self.section.line_of("protocols");
        if let Some(words) = self.section.word_or_list("protocols", PROTOCOLS) {
            protocols = self.protocols(words);
        }
        if let (Some(line), false) = (line_of_protocols, ports.is_all()) {
            self.error(line, format!("protocols in {of} beside ports; allowed: the protocol with each port, such as ports = [\"443/tcp\"]"));
        }
        let ranges: Vec<PortRange> = ports.ranges().to_vec();
        if let Some(range) = ranges.iter().find(|range| range.protocol == Protocol::Sctp) {
            let line = line_of_ports.unwrap_or_default();
            self.error(line, format!("ports in {of} has {range}; allowed: ports of tcp and udp, and protocols = [\"other\"] for SCTP as a whole"));
        }
        let netns = optional_path(self.section, "netns", NETNS);
        Where {
            direction: chosen,
            protocols,
            ports: ranges,
            to,
            from,
            netns,
        }
    }

    fn protocols(&self, words: WordOrList) -> Protocols {
        let (line, words) = match words {
            Ok(one) => (one.line, vec![one]),
            Err(list) => (list.line, list.value),
        };
        let of = &self.of;
        if words.is_empty() {
            self.error(
                line,
                format!("protocols in {of} is empty; allowed: {PROTOCOLS}"),
            );
        }
        let mut protocols = Protocols::default();
        for At { value, line } in words {
            match Protocols::ALL.iter().find(|(word, _)| *word == value) {
                Some((_, kind)) => protocols = protocols.and(*kind),
                None => self.error(
                    line,
                    format!("protocols in {of} has {value:?}; allowed: {PROTOCOLS}"),
                ),
            }
        }
        protocols
    }

    fn peers(&mut self, key: &'static str) -> Option<Peers> {
        let list = self.section.list(key, PEERS)?;
        let of = &self.of;
        if list.value.is_empty() || list.value.len() > MAX_PEERS {
            let number = list.value.len();
            self.error(list.line, format!("{key} in {of} has {number} entries; allowed: 1-{MAX_PEERS} of them, or a [list.NAME]: {PEERS}"));
        }
        let mut entries = Vec::new();
        for At { value, line } in list.value.into_iter().take(MAX_PEERS) {
            let shown = value.chars().take(128).collect::<String>();
            match peer(&value) {
                Ok(Peer::Known(Who::List(name))) if !self.lists.contains(&&*name) => {
                    let there = match self.lists.is_empty() {
                        true => "there is no [list.NAME]".to_owned(),
                        false => format!("allowed: {}", self.lists.join(", ")),
                    };
                    self.error(
                        line,
                        format!("{key} in {of} has list:{name}, which is not configured; {there}"),
                    );
                }
                Ok(peer) => entries.push(peer),
                Err(why) => self.error(
                    line,
                    format!("{key} in {of} has {shown:?}: {why}; allowed: {PEERS}"),
                ),
            }
        }
        Some(Peers {
            is_negated: false,
            entries,
        })
    }

    fn negated(&mut self) -> Vec<At<String>> {
        match self.section.word_or_list("not", NOT) {
            None => Vec::new(),
            Some(Ok(one)) => vec![one],
            Some(Err(list)) => {
                if list.value.is_empty() {
                    let of = &self.of;
                    self.error(list.line, format!("not in {of} is empty; allowed: {NOT}"));
                }
                list.value
            }
        }
    }

    /// A token is in the SYN or datagram of whoever begins with this host, and is wanted at a port,
    /// whatever namespace that is in.
    fn check_peer(&self, line: usize, verdict: Verdict, place: &Where) {
        let of = &self.of;
        let is_plain = |peer: &Peer| matches!(peer, Peer::Known(Who::Prefix(_)));
        let has_tokens =
            |range: &PortRange| matches!(range.protocol, Protocol::Tcp | Protocol::Udp);
        let mut from = place.from.iter();
        let (what, allowed) = if !self.has_token {
            (
                "without [token], which has the keys of tokens",
                "a [token] beside [app]",
            )
        } else if verdict != Verdict::Allow {
            (
                "with another verdict: who proves nothing is dropped anyway",
                "verdict = \"allow\"",
            )
        } else if place.direction != Direction::In {
            (
                "in a rule about what the program begins: a token is of who begins",
                "no to, and no direction but \"in\"",
            )
        } else if place.ports.is_empty() || !place.ports.iter().all(has_tokens) {
            (
                "without ports of TCP or UDP, and tokens are of these",
                "ports such as [\"5432/tcp\", \"53/udp\"]",
            )
        } else if !from.all(|from| !from.is_negated && from.entries.iter().all(is_plain)) {
            (
                "beside sources that may change",
                "addresses and networks in from, without not",
            )
        } else if place.netns.is_some() {
            (
                "beside netns, and a port wants tokens in each of them",
                "no netns",
            )
        } else {
            return;
        };
        self.error(line, format!("peer in {of} {what}; allowed: {allowed}"));
    }

    /// Conditions that nothing can meet together: whoever wrote the rule believes in a
    /// protection that is not there.
    fn check_contradictions(&self, line: usize, who: &[Condition]) {
        let mut executables: Option<Vec<Digest>> = None;
        for condition in who.iter().filter(|condition| !condition.is_negated) {
            let digests: Vec<Digest> = match &condition.criterion {
                Criterion::Exe(digests) => digests.clone(),
                Criterion::Path(pinned) => pinned.iter().map(|pinned| pinned.digest).collect(),
                _ => continue,
            };
            match &executables {
                Some(others) if !digests.iter().any(|digest| others.contains(digest)) => {
                    let of = &self.of;
                    self.error(line, format!("{of} wants an executable with a digest of exe and with that of a file of path, and no file of path has one; allowed: one of the two keys"));
                }
                _ => executables = Some(digests),
            }
        }
    }
}

fn peer(text: &str) -> Result<Peer, String> {
    match text.split_once(':') {
        Some(("list", name)) if !name.is_empty() => Ok(Peer::Known(Who::List(name.to_owned()))),
        Some(("country" | "continent", _)) => {
            let place: Selector = text.parse().map_err(|error| format!("{error}"))?;
            Ok(Peer::Known(Who::Place(place)))
        }
        Some(("name", name)) => match is_host_name(name) {
            true => Ok(Peer::Name(name.trim_end_matches('.').to_ascii_lowercase())),
            false => Err("it is no host name".to_owned()),
        },
        _ => match text.parse() {
            Ok(prefix) => Ok(Peer::Known(Who::Prefix(prefix))),
            Err(error) => Err(format!("{error}")),
        },
    }
}

#[cfg(test)]
pub(crate) mod tests;

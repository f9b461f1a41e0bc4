//! A rule about programs: what it says, of whom ([`Condition`]) and about which peers
//! ([`Where`]).

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use weir_core::{
    PortRange, Protocol,
    balance::acl::{self, Who},
    geofence::Direction,
};

use crate::{Container, Digest, NamePattern, Program};

/// So many places (see [`crate::policy::Place`]) may the rules of a configuration have:
/// mostly one for each rule.
pub const MAX_RULES: usize = 1024;
/// So many ranges of ports has a place.
pub const MAX_PORTS: usize = 8;
/// So many entries may `to`, and `from`, of a rule have.
pub const MAX_PEERS: usize = acl::MAX_RULES;

/// What becomes of a connection or flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Packets of the connection pass.
    Allow,
    /// Packets of the connection are dropped.
    Drop,
    /// connect and sendto fail with EPERM; what cannot be told so is dropped.
    Reject,
    /// It is told, and the next rules are asked. Never a verdict of [`crate::decision`].
    Log,
}

impl Verdict {
    /// By the words of the configuration.
    pub const ALL: [(&str, Self); 4] = [
        ("allow", Self::Allow),
        ("drop", Self::Drop),
        ("reject", Self::Reject),
        ("log", Self::Log),
    ];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Does it hold as soon as one of several holders meets the rule, and not only if
    /// all do?
    pub fn holds_for_any(self) -> bool {
        self != Self::Allow
    }
}

/// What becomes of programs that are not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unknown {
    /// Unknown programs may, and weir records it.
    Learn,
    /// Unknown programs may send and receive.
    Allow,
    /// They may not, until they are known.
    Drop,
}

impl Unknown {
    /// By the words of the configuration.
    pub const ALL: [(&str, Self); 3] = [
        ("learn", Self::Learn),
        ("allow", Self::Allow),
        ("drop", Self::Drop),
    ];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The way in which it is seen who sends; docs/guide/app.md says what each one takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The best one that the kernel has.
    Auto,
    /// By the tracepoint `tcp_sendmsg_locked`.
    Tracepoint,
    /// By the beginning of that function.
    Fentry,
    /// By either, with each change of mappings noted when it is made.
    Push,
    /// By the daemon, which the first packet of a connection waits for.
    Nfqueue,
}

impl Level {
    /// By the words of the configuration.
    pub const ALL: [(&str, Self); 5] = [
        ("auto", Self::Auto),
        ("tracepoint", Self::Tracepoint),
        ("fentry", Self::Fentry),
        ("push", Self::Push),
        ("nfqueue", Self::Nfqueue),
    ];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// What becomes of a rule by `path` when its file is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Upgrades {
    /// An alert tells; the next reading of the configuration takes the file as it is then.
    Tell,
    /// The rule is about the new file if the package manager has it on record, and else about
    /// the one before.
    Follow,
}

impl Upgrades {
    /// By the words of the configuration.
    pub const ALL: [(&str, Self); 2] = [("tell", Self::Tell), ("follow", Self::Follow)];

    /// The configuration's word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// Kinds of sockets, as bits: as `IDENT_TCP` and so on in bpf/abi/identity.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Protocols(pub u8);

impl Protocols {
    /// TCP over IPv4 and IPv6.
    pub const TCP: Self = Self(1);
    /// UDP over IPv4 and IPv6.
    pub const UDP: Self = Self(2);
    /// ICMP and ICMPv6 of datagram sockets ("ping" sockets).
    pub const ICMP: Self = Self(4);
    /// Raw sockets, whatever they send.
    pub const RAW: Self = Self(8);
    /// SCTP, DCCP and so on.
    pub const OTHER: Self = Self(16);
    /// By the words of the configuration.
    pub const ALL: [(&str, Self); 5] = [
        ("tcp", Self::TCP),
        ("udp", Self::UDP),
        ("icmp", Self::ICMP),
        ("raw", Self::RAW),
        ("other", Self::OTHER),
    ];

    /// No word about protocols: every kind; but that a rule that allows holds for raw
    /// sockets and for others only where it names them.
    pub fn is_any(self) -> bool {
        self.0 == 0
    }

    /// Is one of these among them? Without regard to [`Protocols::is_any`].
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The protocols of both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The words for them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Self::ALL.into_iter();
        all.filter(move |(_, kind)| self.has(*kind))
            .map(|(name, _)| name)
    }
}

/// An executable by the digest that the file of this path had when the rules were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The path that is configured.
    pub path: PathBuf,
    /// The SHA-256 of the file at that time.
    pub digest: Digest,
}

/// Control groups by a path whose parts may have `*`: one of them, or below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPattern(String);

impl CgroupPattern {
    /// `None`: it does not begin with `/`, is `/` alone, or has an empty part or `..`.
    pub fn new(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('/')?.split('/');
        let fine = parts.all(|part| !matches!(part, "" | "." | "..")) && !text.contains('\0');
        fine.then(|| Self(text.to_owned()))
    }

    /// Is the control group of this path one of them?
    pub fn contains(&self, cgroup: &str) -> bool {
        let mut parts = cgroup.split('/').filter(|part| !part.is_empty());
        let mut wanted = self.0.split('/').filter(|part| !part.is_empty());
        wanted.all(|pattern| parts.next().is_some_and(|part| fits(pattern, part)))
    }
}

impl fmt::Display for CgroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Divides the path of a control group behind the first service, scope or other unit that has
/// processes: before it are systemd's own, which are slices. Below it systemd makes no units. Who
/// is there makes groups as he likes: a user with his own manager (`user@1000.service`), or root
/// in a container. The same holds below a group that is no slice, such as that of a container which
/// systemd has not made.
pub fn split_at_unit(cgroup: &str) -> (&str, &str) {
    let mut end = 0;
    for part in cgroup.split_inclusive('/') {
        let name = part.strip_suffix('/').unwrap_or(part);
        let kinds = [".service", ".scope", ".socket", ".mount", ".swap"];
        let is_unit = kinds.iter().any(|kind| name.ends_with(kind));
        if !is_unit && !name.is_empty() && !name.ends_with(".slice") {
            break;
        }
        end += part.len();
        if is_unit {
            break;
        }
    }
    cgroup.split_at(end)
}

/// The name of a unit, of which systemd puts `_` before those that are the kernel's in a control
/// group, such as `cpu.service` (cg_escape in its cgroup-util.c).
fn unescaped(part: &str) -> &str {
    part.strip_prefix('_').unwrap_or(part)
}

/// Does `text` fit a pattern in which `*` is any text? In linear time but for the number
/// of `*`.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A label of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    key: String,
    /// Any text for `*`; `None`: whatever the value is.
    value: Option<String>,
}

impl Label {
    /// The label of `KEY` or `KEY=VALUE`; `None`: it has no key.
    pub fn new(text: &str) -> Option<Self> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        let key = key.to_owned();
        (!key.is_empty()).then_some(Self { key, value })
    }

    /// Whether one of these labels is this one.
    fn is_among(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| fits(value, found)))
    }
}

/// What a condition asks; any of its entries is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Criterion {
    /// The program's executable file.
    Exe(Vec<Digest>),
    /// Any object that is mapped executable.
    Object(Vec<Digest>),
    /// The program as a whole ([`Program::aggregate`]).
    Aggregate(Vec<Digest>),
    /// The executable, by the files of paths.
    Path(Vec<Pinned>),
    /// The effective user.
    User(Vec<u32>),
    /// The control group.
    Cgroup(Vec<CgroupPattern>),
    /// The systemd unit: a part of the control group's path, which may have `*`.
    Unit(Vec<String>),
    /// The labels of the container.
    Container(Vec<Label>),
    /// The package that owns the executable.
    Package(Vec<String>),
    /// The script that the executable was started with.
    Script(Vec<PathBuf>),
    /// Executable memory that is of no file.
    Anonymous,
    /// Code that differs from its files, or a process that another one has traced.
    Altered,
}

/// What a process does about a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    /// A digest, or a label, that would tell is not known.
    Open,
    /// Somebody says so who may say what he likes.
    Claimed,
}

/// A condition of a rule on the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// It is met where what it asks is not so.
    pub is_negated: bool,
    /// The question about the program.
    pub criterion: Criterion,
}

impl Condition {
    /// Does the program meet it, for a rule of this verdict?
    ///
    /// Where a digest or a container's labels are not known that would tell: nothing says that
    /// the program is what a rule names, so an unnegated condition is not met. "Not this one"
    /// cannot be shown either: then a rule that allows does not hold, and one that denies does.
    /// So it is with what is only claimed, negated or not.
    pub fn is_met(&self, program: &Program, verdict: Verdict) -> bool {
        match (self.answer(program), self.is_negated) {
            (Answer::Yes, negated) => !negated,
            (Answer::No, negated) => negated,
            (Answer::Open, negated) => negated && verdict.holds_for_any(),
            (Answer::Claimed, _) => verdict.holds_for_any(),
        }
    }

    fn answer(&self, program: &Program) -> Answer {
        let known = |is: bool| if is { Answer::Yes } else { Answer::No };
        let exe = |fits: &dyn Fn(Digest) -> bool| {
            let digest = program.exe.as_ref().and_then(|exe| exe.digest);
            digest.map_or(Answer::Open, |digest| known(fits(digest)))
        };
        match &self.criterion {
            Criterion::Exe(digests) => exe(&|digest| digests.contains(&digest)),
            Criterion::Path(pinned) => exe(&|digest| pinned.iter().any(|p| p.digest == digest)),
            Criterion::Object(digests) => {
                let mut objects = program.objects.iter();
                let is_one =
                    |object: &crate::Object| object.digest.is_some_and(|d| digests.contains(&d));
                if objects.any(is_one) {
                    Answer::Yes
                } else if program.truncated || program.objects.iter().any(|o| o.digest.is_none()) {
                    Answer::Open
                } else {
                    Answer::No
                }
            }
            Criterion::Aggregate(digests) => {
                // What runs is more than these files, or less.
                let aggregate = program.aggregate().filter(|_| !program.altered);
                aggregate.map_or(Answer::Open, |digest| known(digests.contains(&digest)))
            }
            Criterion::User(users) => known(users.contains(&program.uid)),
            Criterion::Cgroup(patterns) => known(
                patterns
                    .iter()
                    .any(|pattern| pattern.contains(&program.cgroup)),
            ),
            Criterion::Unit(units) => {
                let is_one = |part: &str| units.iter().any(|unit| fits(unit, unescaped(part)));
                let (own, delegated) = split_at_unit(&program.cgroup);
                match (own.split('/').any(is_one), delegated.split('/').any(is_one)) {
                    (true, _) => Answer::Yes,
                    (false, true) => Answer::Claimed,
                    (false, false) => Answer::No,
                }
            }
            Criterion::Container(wanted) => match &program.container {
                Container::None => Answer::No,
                Container::Unknown => Answer::Open,
                Container::Labels(labels) => known(wanted.iter().any(|one| one.is_among(labels))),
            },
            Criterion::Package(names) => {
                let package = program.package.as_ref();
                exe(&|_| package.is_some_and(|package| names.contains(package)))
            }
            Criterion::Script(paths) => {
                let script = program.script.as_ref();
                known(script.is_some_and(|script| paths.contains(script)))
            }
            Criterion::Anonymous => known(program.anonymous),
            Criterion::Altered => known(program.altered),
        }
    }
}

/// An entry of `to` or `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// `192.0.2.0/24`, `country:DE`, `continent:EU`, `list:NAME`
    Known(acl::Who),
    /// `name:example.org`: its addresses, as the daemon looks them up.
    Name(String),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(acl::Who::Prefix(prefix)) => write!(f, "{prefix}"),
            Self::Known(acl::Who::Place(place)) => write!(f, "{place}"),
            Self::Known(acl::Who::List(name)) => write!(f, "list:{name}"),
            Self::Name(name) => write!(f, "name:{name}"),
        }
    }
}

/// Peers of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers {
    /// The rule holds for all other peers.
    pub is_negated: bool,
    /// At least one, at most [`MAX_PEERS`].
    pub entries: Vec<Peer>,
}

/// Which connections and flows a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Where {
    /// Which end begins the connections: `Out` the program, `In` its peer.
    pub direction: Direction,
    /// The kinds of sockets.
    pub protocols: Protocols,
    /// Of the peer for what goes out, of the program for what comes in. None: any.
    pub ports: Vec<PortRange>,
    /// To whom what goes out goes; `None`: to anybody.
    pub to: Option<Peers>,
    /// From whom what comes in comes; `None`: from anybody.
    pub from: Option<Peers>,
    /// The file of a network namespace in which the socket is.
    pub netns: Option<PathBuf>,
}

impl Where {
    /// Its ports as so many places of the kernel: kinds of sockets, with at most
    /// [`MAX_PORTS`] ranges each.
    pub fn by_protocol(&self) -> Vec<(Protocols, Vec<(u16, u16)>)> {
        if self.ports.is_empty() {
            return vec![(self.protocols, Vec::new())];
        }
        let mut places = Vec::new();
        for (protocol, kinds) in [
            (Protocol::Any, Protocols::TCP.and(Protocols::UDP)),
            (Protocol::Tcp, Protocols::TCP),
            (Protocol::Udp, Protocols::UDP),
        ] {
            let of_kind = self.ports.iter().filter(|range| range.protocol == protocol);
            let ranges: Vec<_> = of_kind.map(|range| (range.low, range.high)).collect();
            places.extend(
                ranges
                    .chunks(MAX_PORTS)
                    .map(|ranges| (kinds, ranges.to_vec())),
            );
        }
        places
    }
}

/// One rule of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The name of the rule in the configuration.
    pub name: Arc<str>,
    /// The verdict of the rule.
    pub verdict: Verdict,
    /// All of them are to be met; none: it is about every program.
    pub who: Vec<Condition>,
    /// About which connections it is.
    pub place: Where,
    /// Aggregates of programs, one of which who begins has to prove by a token (`[token]`);
    /// none: nobody has to.
    pub peer: Vec<Digest>,
}

impl Rule {
    /// Does the program meet all conditions?
    pub fn is_about(&self, program: &Program) -> bool {
        let mut who = self.who.iter();
        who.all(|condition| condition.is_met(program, self.verdict))
    }

    /// What an executable with this digest tells, whatever else its program has mapped: that
    /// the rule is about it, or that it is not; `None`: conditions ask for something else.
    pub fn is_about_executable(&self, executable: Digest) -> Option<bool> {
        let answers = self.who.iter().map(|condition| {
            let is = match &condition.criterion {
                Criterion::Exe(digests) => digests.contains(&executable),
                Criterion::Path(pinned) => pinned.iter().any(|p| p.digest == executable),
                _ => return None,
            };
            Some(is != condition.is_negated)
        });
        let mut is_about = Some(true);
        for answer in answers {
            match answer {
                Some(false) => return Some(false),
                Some(true) => (),
                None => is_about = None,
            }
        }
        is_about
    }

    /// The files whose digests were taken when the rule was read.
    pub fn pinned(&self) -> impl Iterator<Item = &Pinned> {
        self.who
            .iter()
            .flat_map(|condition| match &condition.criterion {
                Criterion::Path(pinned) => &pinned[..],
                _ => &[],
            })
    }

    /// The packages that it names.
    pub fn packages(&self) -> impl Iterator<Item = &str> {
        let named = self
            .who
            .iter()
            .flat_map(|condition| match &condition.criterion {
                Criterion::Package(names) => &names[..],
                _ => &[],
            });
        named.map(String::as_str)
    }

    /// The lists, or names of DNS, that it asks about.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        let both = [&self.place.to, &self.place.from].into_iter().flatten();
        both.flat_map(|peers| &peers.entries)
    }

    /// Does a condition ask for the user?
    pub fn asks_user(&self) -> bool {
        self.asks(|criterion| matches!(criterion, Criterion::User(_)))
    }

    /// Does a condition ask for the control group?
    pub fn asks_cgroup(&self) -> bool {
        self.asks(|criterion| {
            use Criterion::{Cgroup, Container, Unit};
            matches!(criterion, Cgroup(_) | Unit(_) | Container(_))
        })
    }

    /// Does a condition ask for the labels of the container?
    pub fn asks_container(&self) -> bool {
        self.asks(|criterion| matches!(criterion, Criterion::Container(_)))
    }

    /// Does a condition ask for the arguments, which two processes of one program may
    /// have otherwise?
    pub fn asks_script(&self) -> bool {
        self.asks(|criterion| matches!(criterion, Criterion::Script(_)))
    }

    /// Does a condition ask whether code was changed?
    pub fn asks_altered(&self) -> bool {
        self.asks(|criterion| matches!(criterion, Criterion::Altered))
    }

    /// Does a condition ask for the package?
    pub fn asks_package(&self) -> bool {
        self.asks(|criterion| matches!(criterion, Criterion::Package(_)))
    }

    fn asks(&self, is: impl Fn(&Criterion) -> bool) -> bool {
        self.who.iter().any(|condition| is(&condition.criterion))
    }
}

/// A checked `[app]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppConfig {
    /// Where no rule holds: allow, drop or reject.
    pub default: Verdict,
    /// What becomes of programs that are not known yet.
    pub unknown: Unknown,
    /// Somebody is asked where no rule holds, and `default` decides if nobody answers within
    /// this time; `None`: it decides at once.
    pub prompt_timeout: Option<Duration>,
    /// The way in which it is seen who sends.
    pub level: Level,
    /// The directory of the control group in which it holds; `None`: the root.
    pub cgroup: Option<PathBuf>,
    /// Names whose addresses may be private, or this host's own.
    pub private_names: Vec<NamePattern>,
    /// Sockets of the container runtimes that are asked for labels.
    pub container_sockets: Vec<PathBuf>,
    /// Directories in which runtimes of Kubernetes keep their containers.
    pub container_bundles: Vec<PathBuf>,
    /// What becomes of rules by `path` when their files are upgraded.
    pub upgrades: Upgrades,
    /// In the order in which they are asked.
    pub rules: Vec<Rule>,
    /// The line of each rule's `peer`, or else of its head, counted through all files of the
    /// configuration: for mistakes that only show beside other tables.
    pub rule_lines: Vec<usize>,
}

impl AppConfig {
    /// Does any rule name a country or continent?
    pub fn names_places(&self) -> bool {
        let mut peers = self.peers();
        peers.any(|peer| matches!(peer, Peer::Known(Who::Place(_))))
    }

    /// The lists that rules ask.
    pub fn lists(&self) -> impl Iterator<Item = &str> {
        self.peers().filter_map(|peer| match peer {
            Peer::Known(Who::List(name)) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The executables that rules name by their paths, each once.
    pub fn pinned(&self) -> BTreeMap<&Path, Digest> {
        let pinned = self.rules.iter().flat_map(Rule::pinned);
        pinned
            .map(|pinned| (&*pinned.path, pinned.digest))
            .collect()
    }

    /// The names of DNS whose addresses rules ask.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.peers().filter_map(|peer| match peer {
            Peer::Name(name) => Some(name.as_str()),
            Peer::Known(_) => None,
        })
    }

    fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.rules.iter().flat_map(Rule::peers)
    }
}

/// Is the path that of a script or file as rules name it: absolute, without `..`?
pub(crate) fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path
            .components()
            .all(|c| c != std::path::Component::ParentDir)
}

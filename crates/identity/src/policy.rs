//! Rules in the form that fits into maps of the kernel.
//!
//! A rule has two halves. *Who* it is about is asked once for each program, in user space:
//! [`Policy::met_by`] gives a program's rules as bits ([`RuleBits`]), and the kernel keeps
//! them by identity. *Where* it holds is a [`Place`]: directions, kinds of sockets, at
//! most [`MAX_PORTS`] ranges of ports and a number of networks. All parts of a place have
//! to fit. A rule whose ports do not fit into one place becomes several, one behind the
//! other: bits and numbers are those of places, and [`Place::rule`] says whose it is.
//!
//! Rules that log decide nothing, so they are no places. Who is told of each decision
//! asks [`Policy::logged`].

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use weir_core::{
    Prefix,
    balance::acl::{Access, Acl, Exceptions, Rule as AclRule, Who},
    geo::GeoTable,
    geofence::Direction,
};

use crate::{
    AppConfig, Digest, MAX_RULES, Peer, Peers, Pinned, Program, Protocols, Rule, Unknown, Verdict,
    Where,
};

pub use crate::rule::MAX_PORTS;

/// So many networks have all places of a policy.
pub const MAX_NETWORKS: usize = 524_288;
/// So many addresses of one name of DNS count.
pub const MAX_ADDRESSES: usize = 1000;

/// Places by their numbers, as the kernel has them: bit `n % 64` of word `n / 64`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleBits(pub [u64; MAX_RULES / 64]);

impl RuleBits {
    /// Adds a place; those from [`MAX_RULES`] on there are not.
    pub fn insert(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }

    /// Is the place with this number in the set?
    pub fn contains(&self, place: usize) -> bool {
        let word = self.0.get(place / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    /// The numbers in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX_RULES).filter(|place| self.contains(*place))
    }
}

impl FromIterator<usize> for RuleBits {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut bits = Self::default();
        places.into_iter().for_each(|place| bits.insert(place));
        bits
    }
}

/// What an executable file alone tells of a program that runs it, while nobody knows yet
/// what else the program has mapped.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ExecutableBits {
    /// Places of rules that are about the program for certain.
    pub meets: RuleBits,
    /// Those, and places of rules that may be about it; all others are not.
    pub may: RuleBits,
}

/// Networks of peers, IPv4 and IPv6: disjoint, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    /// Prefixes of which none holds another.
    pub prefixes: Arc<[Prefix]>,
    /// The place holds outside of them.
    pub outside: bool,
}

impl Networks {
    /// Does a place with these networks hold for this peer?
    pub fn hold(&self, peer: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(peer)) != self.outside
    }
}

/// Where a rule holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of its rule in the configuration.
    pub rule: usize,
    /// What its rule says; never [`Verdict::Log`].
    pub verdict: Verdict,
    /// It is about some programs, not about all.
    pub has_who: bool,
    /// Which way connections begin that it is about.
    pub direction: Direction,
    /// The kinds of sockets; see [`Protocols::is_any`].
    pub protocols: Protocols,
    /// First and last port, of the peer for what goes out, of the program for what comes
    /// in. None: any, and also what has no ports; at most [`MAX_PORTS`].
    pub ports: Vec<(u16, u16)>,
    /// Peers of what goes out; `None`: all.
    pub to: Option<Networks>,
    /// Peers of what comes in; `None`: all.
    pub from: Option<Networks>,
    /// A network namespace, by its inode; `None`: any.
    pub netns: Option<u64>,
}

/// What the daemon knows and a configuration only names.
pub trait Resolve {
    /// Where addresses are; asked if [`AppConfig::names_places`].
    fn places(&self) -> &GeoTable;
    /// The prefixes of a list; `None`: it has not been read yet.
    fn list(&self, name: &str) -> Option<&[Prefix]>;
    /// The addresses of a name; `None`: they are not known.
    fn addresses(&self, name: &str) -> Option<&[IpAddr]>;
    /// The inode of the namespace that this file is; `None`: there is none.
    fn netns(&self, file: &Path) -> Option<u64>;
}

/// What could not be resolved, for an alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// The name of the rule.
    pub rule: Arc<str>,
    /// The thing that the rule names: `list:NAME`, `name:example.org` or the file of a namespace.
    pub what: String,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, what } = self;
        write!(f, "[app.rules.{rule}]: {what} is not known")
    }
}

/// The rules cannot be put into force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rules of [app] have {found} {what}; allowed: at most {most}")]
pub struct TooMany {
    /// What there are too many of, in the plural.
    pub what: &'static str,
    /// How many there are.
    pub found: usize,
    /// How many may be.
    pub most: usize,
}

/// The rules of a configuration, the first that holds first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// As configured, in order.
    pub rules: Vec<Rule>,
    /// At most [`MAX_RULES`].
    pub places: Vec<Place>,
    /// Places of rules that log: told beside the decision.
    pub logs: Vec<Place>,
    /// Where no place holds: allow, drop or reject.
    pub default: Verdict,
    /// Somebody is asked first where no place holds.
    pub asks: bool,
    /// What becomes of programs that are not known yet.
    pub unknown: Unknown,
    /// Rules of which a part holds for nobody until these are known.
    pub unresolved: Vec<Unresolved>,
}

impl Policy {
    /// The rules of a configuration with all that they name.
    ///
    /// What is not known is left out. Where a rule is about all peers but those, one that
    /// allows holds for none, and one that denies for all, until they are known.
    ///
    /// # Errors
    /// There are more places or networks than the kernel has room for.
    pub fn compile(config: &AppConfig, known: &dyn Resolve) -> Result<Self, TooMany> {
        let (mut places, mut logs) = (Vec::new(), Vec::new());
        let mut unresolved = Vec::new();
        for (number, rule) in config.rules.iter().enumerate() {
            let Where {
                direction,
                to,
                from,
                netns,
                ..
            } = &rule.place;
            let mut missing = |what: String| {
                let rule = rule.name.clone();
                unresolved.push(Unresolved { rule, what });
            };
            for pinned in rule.pinned() {
                let has_digest =
                    |one: &Pinned| one.path == pinned.path && one.digest != Digest::NONE;
                if pinned.digest == Digest::NONE && !rule.pinned().any(has_digest) {
                    let path = pinned.path.display();
                    missing(format!("the SHA-256 of {path}, which is not there,"));
                }
            }
            let mut peers = |peers: &Option<Peers>| {
                let peers = peers.as_ref()?;
                Some(networks(peers, rule.verdict, known, &mut missing))
            };
            let (to, from) = (peers(to), peers(from));
            let inode = match netns {
                None => None,
                Some(file) => match known.netns(file) {
                    Some(inode) => Some(inode),
                    // Nobody is in it.
                    None => {
                        missing(format!("network namespace {}", file.display()));
                        continue;
                    }
                },
            };
            let to_places = match rule.verdict {
                Verdict::Log => &mut logs,
                _ => &mut places,
            };
            to_places.extend(
                rule.place
                    .by_protocol()
                    .into_iter()
                    .map(|(protocols, ports)| Place {
                        rule: number,
                        verdict: rule.verdict,
                        has_who: !rule.who.is_empty(),
                        direction: *direction,
                        protocols,
                        ports,
                        to: to.clone(),
                        from: from.clone(),
                        netns: inode,
                    }),
            );
        }
        let count = |networks: &Option<Networks>| networks.as_ref().map_or(0, |n| n.prefixes.len());
        let networks = places
            .iter()
            .map(|place| count(&place.to) + count(&place.from));
        let networks: usize = networks.sum();
        for (what, found, most) in [
            ("places", places.len(), MAX_RULES),
            ("networks", networks, MAX_NETWORKS),
        ] {
            if found > most {
                return Err(TooMany { what, found, most });
            }
        }
        Ok(Self {
            rules: config.rules.clone(),
            places,
            logs,
            default: config.default,
            asks: config.prompt_timeout.is_some(),
            unknown: config.unknown,
            unresolved,
        })
    }

    /// The places of all rules whose conditions the program meets, and of those that have
    /// none.
    pub fn met_by(&self, program: &Program) -> RuleBits {
        let met: Vec<bool> = self
            .rules
            .iter()
            .map(|rule| rule.is_about(program))
            .collect();
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| met[place.rule])
            .map(|(number, _)| number)
            .collect()
    }

    /// What an executable with this digest tells of programs that run it.
    pub fn met_by_executable(&self, executable: crate::Digest) -> ExecutableBits {
        let rules = self.rules.iter();
        let about: Vec<_> = rules
            .map(|rule| rule.is_about_executable(executable))
            .collect();
        let mut bits = ExecutableBits::default();
        for (number, place) in self.places.iter().enumerate() {
            match about[place.rule] {
                Some(true) => {
                    bits.meets.insert(number);
                    bits.may.insert(number);
                }
                None => bits.may.insert(number),
                Some(false) => (),
            }
        }
        bits
    }

    /// The places that are about every program.
    pub fn of_everybody(&self) -> RuleBits {
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| !place.has_who)
            .map(|(number, _)| number)
            .collect()
    }

    /// Files whose content is another one than when the rules were read: the program of
    /// that path no longer meets its rule. `digest`: of what is there now.
    pub fn changed_files(
        &self,
        digest: impl Fn(&Path) -> Option<crate::Digest>,
    ) -> Vec<(Arc<str>, PathBuf)> {
        let pinned = self.rules.iter().flat_map(|rule| {
            let of_rule = rule.pinned();
            of_rule.map(|pinned| (rule.name.clone(), pinned))
        });
        let changed = pinned.filter(|(_, pinned)| digest(&pinned.path) != Some(pinned.digest));
        changed
            .map(|(rule, pinned)| (rule, pinned.path.clone()))
            .collect()
    }
}

fn networks(
    peers: &Peers,
    verdict: Verdict,
    known: &dyn Resolve,
    missing: &mut dyn FnMut(String),
) -> Networks {
    let mut rules = Vec::new();
    let mut addresses: Vec<Prefix> = Vec::new();
    let mut is_whole = true;
    for peer in &peers.entries {
        let is_known = match peer {
            Peer::Known(who) => {
                let is_known = match who {
                    Who::List(name) => known.list(name).is_some(),
                    _ => true,
                };
                let (access, who) = (Access::Allow, who.clone());
                rules.push(AclRule { access, who });
                is_known
            }
            Peer::Name(name) => {
                let of_name = known.addresses(name);
                let at_most = of_name.unwrap_or_default().iter().take(MAX_ADDRESSES);
                addresses.extend(at_most.map(|addr| Prefix::host(*addr)));
                of_name.is_some()
            }
        };
        if !is_known {
            missing(peer.to_string());
            is_whole = false;
        }
    }
    let nobody = GeoTable::default();
    let acl = Acl {
        rules,
        default: Access::Deny,
    };
    let table = if acl.names_places() {
        known.places()
    } else {
        &nobody
    };
    let found = acl.exceptions(table, |name| known.list(name).unwrap_or_default());
    let v4 = found
        .v4
        .iter()
        .filter_map(|(first, len)| Prefix::new(IpAddr::V4((*first).into()), *len));
    let v6 = found
        .v6
        .iter()
        .filter_map(|(first, len)| Prefix::new(IpAddr::V6((*first).into()), *len));
    let mut prefixes: Vec<Prefix> = v4.chain(v6).collect();
    addresses.retain(|addr| !found_in(&found, *addr));
    prefixes.extend(addresses);
    prefixes.sort_unstable();
    prefixes.dedup();
    let (prefixes, outside) = match peers.is_negated && !is_whole {
        true => (Vec::new(), verdict.holds_for_any()),
        false => (prefixes, peers.is_negated),
    };
    Networks {
        prefixes: prefixes.into(),
        outside,
    }
}

fn found_in(found: &Exceptions, addr: Prefix) -> bool {
    found.access(addr.addr()) == Access::Allow
}

//! What our table looks like, and what changes in it when the desired state
//! does.
//!
//! Bans of all ports, of one family and prefix length, are in one hash set with
//! timeouts, keyed by the masked source address: an innocent packet pays one
//! look-up a length in use, whatever the number of jails. Bans of some ports are
//! in a set for each scope; one more set a length holds all that have any, so
//! that nobody else is looked up in each. Of two producers that ban the same,
//! the second is in a set of a higher rank, which is there only while somebody
//! needs it. A comment at each element says who bans: the next daemon reads it.
//!
//! An interval set, which could hold all lengths at once, costs milliseconds to
//! add to. A map from the address to its policy would need a second look-up by
//! the result; nft (1.0.6) cannot print that and ends with an assertion, for
//! everybody who lists the ruleset.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use weir_core::{Action, PrefixSet, Producer, Reason, Scope, Subject};

use super::{
    border::Border,
    rule::{From, KEY, Meta, Rule, SCRATCH, Verdict},
    table::{ADDRESS, Element, Shape, Table, comment_of},
    wire::{Attributes, Batch, Kind},
};
use crate::{
    BootNanos, Expiry, Policy,
    book::{Book, Held},
    span,
};

/// linux/netfilter_ipv4.h: before the table `raw`, connection tracking and
/// reassembly, so that fragments of banned sources take no memory.
const PRIORITY_IN: i32 = -450;
/// Behind address translation: the addresses that go out on the wire.
const PRIORITY_OUT: i32 = 300;
const PREROUTING: u32 = 0;
const POSTROUTING: u32 = 4;
/// NFPROTO_IPV4, NFPROTO_IPV6.
const FAMILY: [u8; 2] = [2, 10];
/// TCP, UDP, DCCP, SCTP, UDPLITE: as bpf/parse.h.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
/// Where the addresses lie in the IP header: source, destination.
pub(super) const SOURCE: [u32; 2] = [12, 8];
pub(super) const DESTINATION: [u32; 2] = [16, 24];
/// Reasons with a counter of their own.
pub(super) const COUNTED: [Reason; 11] = [
    Reason::Pass,
    Reason::Allowed,
    Reason::Essential,
    Reason::Reply,
    Reason::Observed,
    Reason::BannedAll,
    Reason::BannedScope,
    Reason::Listed,
    Reason::Fenced,
    Reason::ListedOut,
    Reason::FencedOut,
];

/// 0 for IPv4, 1 for IPv6.
pub(super) fn family(addr: IpAddr) -> usize {
    usize::from(addr.is_ipv6())
}

/// The octets of an address as they are on the wire.
fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

/// All that the table is made from.
pub(super) struct Desired<'a> {
    pub(super) book: &'a Book,
    pub(super) allow: &'a PrefixSet,
    pub(super) border: &'a Border,
    pub(super) interfaces: &'a [String],
    pub(super) observe: bool,
}

/// Family and length of a prefix.
type Place = (usize, u8);

/// What a set of bans is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Use {
    /// Bans of all ports, of this rank.
    All(usize),
    /// Whoever has a ban of some ports.
    Some,
    /// Bans of the scope with this number, of this rank.
    Scope(u32, usize),
}

/// What of it is in the kernel.
pub(super) struct Ruleset {
    table: Table,
    sets: BTreeMap<Place, BTreeSet<Use>>,
    scopes: HashMap<Scope, u32>,
    /// Numbers given so far, to sets and to classes.
    numbers: u32,
    /// The number of the classes in force; 0: none.
    classes: u32,
    /// The maps of classes, by family: on the way in, on the way out.
    maps: [[Option<String>; 2]; 2],
    observe: bool,
}

fn set_name((family, length): Place, what: Use) -> String {
    let family = [4, 6][family];
    match what {
        Use::All(rank) => format!("bans{family}-{length}-all-{rank}"),
        Use::Some => format!("bans{family}-{length}-some"),
        Use::Scope(scope, rank) => format!("bans{family}-{length}-{scope}-{rank}"),
    }
}

fn scope_chain(number: u32) -> String {
    format!("scope-{number}")
}

fn some_chain((family, length): Place) -> String {
    format!("some{}-{length}", [4, 6][family])
}

/// The rest of a ban's time in milliseconds; `None` when there is none.
fn timeout(expiry: Expiry, now: BootNanos) -> Option<Option<u64>> {
    match expiry {
        Expiry::Never => Some(None),
        Expiry::At(end) => match end.0.saturating_sub(now.0).div_ceil(1_000_000) {
            0 => None,
            milliseconds => Some(Some(milliseconds)),
        },
    }
}

impl Ruleset {
    /// The whole table in one transaction, in place of the one that is there.
    pub(super) fn build(table: &Table, is_there: bool, desired: &Desired<'_>) -> (Self, Batch) {
        let mut to = Batch::new();
        if is_there {
            table.delete(&mut to);
        }
        table.create(&mut to);
        let mut new = Self {
            table: table.clone(),
            sets: BTreeMap::new(),
            scopes: HashMap::new(),
            numbers: 0,
            classes: 0,
            maps: Default::default(),
            observe: desired.observe,
        };
        new.skeleton(&mut to, desired);
        let all = desired.book.all().map(|(subject, _)| (subject, false));
        new.put_bans(&mut to, all, desired.book);
        new.put_allow(&mut to, desired.allow);
        new.put_border(&mut to, desired.border);
        new.put_base_chains(&mut to);
        (new, to)
    }

    fn set(&mut self, to: &mut Batch, name: &str, shape: Shape) {
        let number = self.next_set();
        self.table.set(to, name, number, shape);
    }

    fn skeleton(&mut self, to: &mut Batch, desired: &Desired<'_>) {
        for reason in COUNTED {
            self.table.counter(to, reason.name());
        }
        self.set(to, "interfaces", Shape::Names);
        let names: Vec<_> = desired
            .interfaces
            .iter()
            .map(|name| {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(16, 0);
                bytes
            })
            .collect();
        self.put(
            to,
            "interfaces",
            names.iter().map(|name| Element::key(name)),
        );
        self.set(to, "with-ports", Shape::Protocols);
        let protocols = WITH_PORTS.chunks(1).map(Element::key);
        self.put(to, "with-ports", protocols);
        for (family, name) in ["allow4", "allow6"].into_iter().enumerate() {
            self.set(to, name, Shape::Ranges(family));
        }
        for (chain, at) in [("saved-in", SOURCE), ("saved-out", DESTINATION)] {
            self.table.chain(to, chain);
            self.saved(to, chain, at);
        }
        for reason in [Reason::BannedAll, Reason::BannedScope] {
            self.table.chain(to, reason.name());
            self.end(to, reason.name(), "saved-in", &[reason.name()]);
        }
        for chain in ["in4", "in6", "out4", "out6"] {
            self.table.chain(to, chain);
        }
    }

    fn put<'e>(&self, to: &mut Batch, set: &str, elements: impl Iterator<Item = Element<'e>>) {
        let elements: Vec<_> = elements.collect();
        self.table.elements(to, Kind::NewElements, set, &elements);
    }

    /// What saves a packet that somebody denies: the allow list, and that the
    /// host would lose its network without it.
    fn saved(&self, to: &mut Batch, chain: &str, at: [u32; 2]) {
        let table = &self.table;
        let udp = |rule: Rule<'_>, from: u16, to: u16| {
            let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
            rule.meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[17])
                .load(From::Transport, 0, 4, SCRATCH)
                .equals(SCRATCH, &ports)
                .count(Reason::Essential.name())
                .verdict(Verdict::Accept);
        };
        for (from, there) in [(67, 68), (68, 67)] {
            table.rule(to, chain, |rule| {
                let whole = rule
                    .meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &FAMILY[..1])
                    .load(From::Network, 6, 2, SCRATCH)
                    .mask(SCRATCH, &[0x3f, 0xff])
                    .equals(SCRATCH, &[0, 0]);
                udp(whole, from, there);
            });
        }
        fn whole6(rule: Rule<'_>) -> Rule<'_> {
            rule.meta(Meta::Family, SCRATCH)
                .equals(SCRATCH, &FAMILY[1..])
                .has_fragment_header(SCRATCH)
                .equals(SCRATCH, &[0])
        }
        for (from, there) in [(547, 546), (546, 547)] {
            table.rule(to, chain, |rule| udp(whole6(rule), from, there));
        }
        // RFC 4861 7.1: hop limit 255, code 0.
        table.rule(to, chain, |rule| {
            whole6(rule)
                .meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[58])
                .load(From::Network, 7, 1, SCRATCH)
                .equals(SCRATCH, &[255])
                .load(From::Transport, 0, 1, SCRATCH)
                .within(SCRATCH, &[133], &[137])
                .load(From::Transport, 1, 1, SCRATCH)
                .equals(SCRATCH, &[0])
                .count(Reason::Essential.name())
                .verdict(Verdict::Accept);
        });
        for family in [0, 1] {
            table.rule(to, chain, |rule| {
                rule.meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &[FAMILY[family]])
                    .load(From::Network, at[family], ADDRESS[family], KEY)
                    .in_set(["allow4", "allow6"][family], KEY)
                    .count(Reason::Allowed.name())
                    .verdict(Verdict::Accept);
            });
        }
    }

    /// The end of a packet that is denied, unless something saves it. The first
    /// of `counters` is the reason's, which nobody counts who only observes.
    pub(super) fn end(&self, to: &mut Batch, chain: &str, saved: &str, counters: &[&str]) {
        self.table
            .rule(to, chain, |rule| rule.verdict(Verdict::Jump(saved)));
        self.table.rule(to, chain, |mut rule| {
            for counter in &counters[1..] {
                rule = rule.count(counter);
            }
            if self.observe {
                rule.count(Reason::Observed.name()).verdict(Verdict::Accept);
            } else {
                rule.count(counters[0]).verdict(Verdict::Drop);
            }
        });
    }

    /// Sends packets to these ports on to `target`, and those whose ports cannot
    /// be known; returns with the others. `about` is in front of each comment.
    pub(super) fn ports(
        &self,
        to: &mut Batch,
        chain: &str,
        scope: &Scope,
        target: &str,
        about: &str,
    ) {
        let table = &self.table;
        for range in scope.ranges() {
            let comment = match about {
                "" => String::new(),
                about => format!("{about} {range}"),
            };
            table.rule_about(to, chain, &comment, |rule| {
                let rule = rule.meta(Meta::Protocol, KEY);
                let rule = match range.protocol.number() {
                    0 => rule.in_set("with-ports", KEY),
                    number => rule.equals(KEY, &[number]),
                };
                let (low, high) = (range.low.to_be_bytes(), range.high.to_be_bytes());
                let rule = rule.load(From::Transport, 2, 2, SCRATCH);
                match low == high {
                    true => rule.equals(SCRATCH, &low),
                    false => rule.within(SCRATCH, &low, &high),
                }
                .verdict(Verdict::Goto(target));
            });
        }
        table.rule(to, chain, |rule| {
            rule.meta(Meta::Protocol, KEY)
                .in_set("with-ports", KEY)
                .load(From::Transport, 0, 2, SCRATCH)
                .verdict(Verdict::Return);
        });
        table.rule(to, chain, |rule| {
            rule.meta(Meta::Protocol, KEY)
                .outside("with-ports", KEY)
                .verdict(Verdict::Return);
        });
        for family in [0, 1] {
            table.rule(to, chain, |rule| {
                is_later_fragment(rule, family).verdict(Verdict::Return);
            });
        }
        table.rule(to, chain, |rule| rule.verdict(Verdict::Goto(target)));
    }

    /// The number of a scope; new ones get a chain.
    fn scope(&mut self, to: &mut Batch, scope: &Scope) -> u32 {
        if let Some(number) = self.scopes.get(scope) {
            return *number;
        }
        let number = self.scopes.len() as u32 + 1;
        self.scopes.insert(scope.clone(), number);
        let chain = scope_chain(number);
        self.table.chain(to, &chain);
        let end = Reason::BannedScope.name();
        self.ports(to, &chain, scope, end, "ban of");
        number
    }

    /// Where each ban of a subject goes: with its rank among those of the same
    /// scope.
    fn uses<'b>(&mut self, to: &mut Batch, held: &'b [Held]) -> Vec<(Use, &'b Held)> {
        let mut uses = Vec::with_capacity(held.len());
        for (at, one) in held.iter().enumerate() {
            let scope = &one.0.scope;
            let rank = held[..at].iter().filter(|h| h.0.scope == *scope).count();
            let to_use = match scope.is_all() {
                true => Use::All(rank),
                false => Use::Scope(self.scope(to, scope), rank),
            };
            uses.push((to_use, one));
        }
        uses
    }

    /// Has the kernel hold against these subjects what the book does. With each:
    /// does the kernel hold anything against it?
    pub(super) fn put_bans(
        &mut self,
        to: &mut Batch,
        subjects: impl Iterator<Item = (Subject, bool)>,
        book: &Book,
    ) {
        let now = BootNanos::now();
        let mut gone: BTreeMap<Place, Vec<Vec<u8>>> = BTreeMap::new();
        let mut come: BTreeMap<(Place, Use), Vec<Ban>> = BTreeMap::new();
        let mut names: HashMap<Arc<Policy>, Arc<str>> = HashMap::new();
        let before = self.sets.clone();
        for (subject, known) in subjects {
            let prefix = subject.prefix();
            let place = (family(prefix.addr()), prefix.bits());
            let key = octets(prefix.addr());
            if known && before.contains_key(&place) {
                gone.entry(place).or_default().push(key.clone());
            }
            let mut longest: Option<Option<u64>> = None;
            for (what, (policy, expiry)) in self.uses(to, book.held(subject)) {
                let Some(timeout) = timeout(*expiry, now) else {
                    continue;
                };
                let name = names
                    .entry(policy.clone())
                    .or_insert_with(|| who_and_how(policy).into());
                let ban = (key.clone(), Some(name.clone()), timeout);
                come.entry((place, what)).or_default().push(ban);
                if matches!(what, Use::Scope(..)) {
                    longest = Some(match longest {
                        Some(other) => other.zip(timeout).map(|(a, b)| a.max(b)),
                        None => timeout,
                    });
                }
            }
            if let Some(timeout) = longest {
                let ban = (key, None, timeout);
                come.entry((place, Use::Some)).or_default().push(ban);
            }
        }
        for (place, what) in come.keys() {
            self.make_room(to, *place, *what);
        }
        if self.sets != before {
            self.put_family_chains(to);
        }
        for (place, keys) in &gone {
            let elements: Vec<_> = keys.iter().map(|key| Element::key(key)).collect();
            for what in &before[place] {
                let set = set_name(*place, *what);
                self.table
                    .elements(to, Kind::DestroyElements, &set, &elements);
            }
        }
        for ((place, what), bans) in &come {
            let elements = bans.iter().map(|(key, comment, timeout)| Element {
                comment: comment.as_deref(),
                timeout: *timeout,
                ..Element::key(key)
            });
            self.put(to, &set_name(*place, *what), elements);
        }
    }

    fn make_room(&mut self, to: &mut Batch, place: Place, what: Use) {
        let known = self.sets.entry(place).or_default();
        if !known.insert(what) {
            return;
        }
        if what == Use::Some {
            self.table.chain(to, &some_chain(place));
        }
        self.set(to, &set_name(place, what), Shape::Bans(place.0));
    }

    /// What happens to the packets of each family.
    fn put_family_chains(&self, to: &mut Batch) {
        let table = &self.table;
        for chain in ["in4", "in6", "out4", "out6"] {
            table.empty_chain(to, chain);
        }
        // Longest first: of those that match, the first tells the reason.
        for (place, uses) in self.sets.iter().rev() {
            let chain = ["in4", "in6"][place.0];
            let some = some_chain(*place);
            if uses.contains(&Use::Some) {
                table.empty_chain(to, &some);
            }
            for what in uses {
                let scope;
                let (chain, verdict) = match what {
                    Use::All(_) => (chain, Verdict::Goto(Reason::BannedAll.name())),
                    Use::Some => (chain, Verdict::Jump(&some)),
                    Use::Scope(number, _) => {
                        scope = scope_chain(*number);
                        (some.as_str(), Verdict::Jump(&scope))
                    }
                };
                table.rule(to, chain, |rule| {
                    masked_source(rule, *place)
                        .in_set(&set_name(*place, *what), KEY)
                        .verdict(verdict);
                });
            }
        }
        for (family, maps) in self.maps.iter().enumerate() {
            let ways = [("in", SOURCE), ("out", DESTINATION)];
            for (map, (way, at)) in maps.iter().zip(ways) {
                let Some(map) = map else {
                    continue;
                };
                let chain = format!("{way}{}", [4, 6][family]);
                table.rule(to, &chain, |rule| {
                    rule.load(From::Network, at[family], ADDRESS[family], KEY)
                        .verdict_of(map, KEY);
                });
            }
        }
    }

    fn put_base_chains(&self, to: &mut Batch) {
        self.put_family_chains(to);
        let name = Meta::InName;
        self.put_base_chain(to, "in", PREROUTING, PRIORITY_IN, name, ["in4", "in6"]);
        self.table.rule(to, "in", |rule| {
            rule.count(Reason::Pass.name()).verdict(Verdict::Accept);
        });
        if self.classes > 0 {
            self.put_way_out(to);
        }
    }

    fn put_way_out(&self, to: &mut Batch) {
        let (name, chains) = (Meta::OutName, ["out4", "out6"]);
        self.put_base_chain(to, "out", POSTROUTING, PRIORITY_OUT, name, chains);
    }

    fn put_base_chain(
        &self,
        to: &mut Batch,
        chain: &str,
        hook: u32,
        priority: i32,
        name: Meta,
        chains: [&str; 2],
    ) {
        let table = &self.table;
        table.base_chain(to, chain, hook, priority);
        table.rule(to, chain, |rule| {
            rule.meta(name, KEY)
                .outside("interfaces", KEY)
                .verdict(Verdict::Accept);
        });
        for (family, next) in chains.into_iter().enumerate() {
            table.rule(to, chain, |rule| {
                rule.meta(Meta::Family, SCRATCH)
                    .equals(SCRATCH, &[FAMILY[family]])
                    .verdict(Verdict::Jump(next));
            });
        }
    }

    /// The change for bans of these subjects.
    pub(super) fn change(&mut self, subjects: &HashMap<Subject, bool>, book: &Book) -> Batch {
        let mut to = Batch::new();
        let subjects = subjects.iter().map(|(subject, known)| (*subject, *known));
        self.put_bans(&mut to, subjects, book);
        to
    }

    /// The change to another allow list.
    pub(super) fn change_allow(&self, allow: &PrefixSet) -> Batch {
        let mut to = Batch::new();
        for set in ["allow4", "allow6"] {
            self.table.empty_set(&mut to, set);
        }
        self.put_allow(&mut to, allow);
        to
    }

    fn put_allow(&self, to: &mut Batch, allow: &PrefixSet) {
        let (v4, v6) = span::of_prefixes(allow.iter());
        let v4 = v4
            .into_iter()
            .map(|(first, last)| range4(first, last, None));
        put_ranges(&self.table, to, "allow4", &v4.collect::<Vec<_>>());
        let v6 = v6
            .into_iter()
            .map(|(first, last)| range6(first, last, None));
        put_ranges(&self.table, to, "allow6", &v6.collect::<Vec<_>>());
    }

    /// The change to other lists and another geofence.
    pub(super) fn change_border(&mut self, border: &Border, before: &Border) -> Batch {
        let mut to = Batch::new();
        let old = self.classes;
        self.put_border(&mut to, border);
        if old > 0 && self.classes == 0 {
            self.table.empty_chain(&mut to, "out");
            self.table.delete_chain(&mut to, "out");
        }
        self.put_family_chains(&mut to);
        if old == 0 && self.classes > 0 {
            self.put_way_out(&mut to);
        }
        if old > 0 {
            before.remove(&mut to, &self.table, old);
        }
        to
    }

    fn put_border(&mut self, to: &mut Batch, border: &Border) {
        if border.is_empty() {
            self.classes = 0;
            self.maps = Default::default();
            return;
        }
        // Never a number that is in force.
        self.classes = self.next_set();
        self.maps = [0, 1].map(|family| border.maps(self.classes, family));
        border.write(to, &self.table.clone(), self, self.classes);
    }

    /// A number for another set.
    pub(super) fn next_set(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// How many scopes there are.
    pub(super) fn scopes(&self) -> usize {
        self.scopes.len()
    }

    /// How many sets of bans there are.
    pub(super) fn sets(&self) -> usize {
        self.sets.values().map(BTreeSet::len).sum()
    }
}

/// Key, who bans, milliseconds.
type Ban = (Vec<u8>, Option<Arc<str>>, Option<u64>);

/// A range: its first address, the one behind its last unless there is none,
/// and the chain for it.
pub(super) type Range = (Vec<u8>, Option<Vec<u8>>, Option<Arc<str>>);

pub(super) fn range4(first: u32, last: u32, chain: Option<Arc<str>>) -> Range {
    let end = last.checked_add(1).map(|end| end.to_be_bytes().to_vec());
    (first.to_be_bytes().to_vec(), end, chain)
}

pub(super) fn range6(first: u128, last: u128, chain: Option<Arc<str>>) -> Range {
    let end = last.checked_add(1).map(|end| end.to_be_bytes().to_vec());
    (first.to_be_bytes().to_vec(), end, chain)
}

/// Puts sorted disjoint ranges into a set of ranges.
pub(super) fn put_ranges(table: &Table, to: &mut Batch, set: &str, ranges: &[Range]) {
    let elements: Vec<_> = ranges
        .iter()
        .flat_map(|(first, end, chain)| {
            let begin = Element {
                jump: chain.as_deref(),
                ..Element::key(first)
            };
            let end = end.as_ref().map(|end| Element {
                ends_range: true,
                ..Element::key(end)
            });
            [Some(begin), end].into_iter().flatten()
        })
        .collect();
    table.elements(to, Kind::NewElements, set, &elements);
}

/// Loads the source address without what is behind the prefix length.
fn masked_source(rule: Rule<'_>, (family, length): Place) -> Rule<'_> {
    let address = ADDRESS[family];
    let rule = rule.load(From::Network, SOURCE[family], address, KEY);
    if u32::from(length) == address * 8 {
        return rule;
    }
    let mask = u128::MAX
        .checked_shl(128 - u32::from(length))
        .unwrap_or(0)
        .to_be_bytes();
    rule.mask(KEY, &mask[..address as usize])
}

/// Goes on with fragments that are not the first of their packet.
pub(super) fn is_later_fragment(rule: Rule<'_>, family: usize) -> Rule<'_> {
    let rule = rule
        .meta(Meta::Family, SCRATCH)
        .equals(SCRATCH, &[FAMILY[family]]);
    let (rule, mask) = match family {
        0 => (rule.load(From::Network, 6, 2, SCRATCH), [0x1f, 0xff]),
        _ => (rule.fragment(2, 2, SCRATCH), [0xff, 0xf8]),
    };
    rule.mask(SCRATCH, &mask).differs(SCRATCH, &[0, 0])
}

/// What a rule's comment says about the scope of its chain: its number, and one
/// of its ranges.
pub(super) fn read_scope(rule: Attributes<'_>) -> Option<(u32, Scope)> {
    let number = rule.text(2)?.strip_prefix("scope-")?.parse().ok()?;
    let scope = comment_of(rule.get(7)?)?.strip_prefix("ban of ")?;
    Some((number, scope.parse().ok()?))
}

/// The prefix length of a set of bans, and the number of their scope: 0 for all
/// ports. By its name.
pub(super) fn read_set_name(name: &str) -> Option<(u8, u32)> {
    let rest = name
        .strip_prefix("bans4-")
        .or(name.strip_prefix("bans6-"))?;
    let (length, rest) = rest.split_once('-')?;
    let (scope, _rank) = rest.split_once('-')?;
    let scope = match scope {
        "all" => 0,
        number => number.parse().ok()?,
    };
    Some((length.parse().ok()?, scope))
}

/// The comment at a ban's element: who bans, and how if it is not by a drop.
fn who_and_how(policy: &Policy) -> String {
    match policy.action {
        Action::Drop => policy.producer.to_string(),
        Action::Reject => format!("{} {}", policy.producer, policy.action),
    }
}

/// What such a comment says.
pub(super) fn read_comment(comment: &str) -> Option<(Producer, Action)> {
    let (producer, action) = match comment.split_once(' ') {
        Some((producer, action)) => (producer, action.parse().ok()?),
        None => (comment, Action::Drop),
    };
    Some((producer.parse().ok()?, action))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sets_are_read_back() {
        for place in [(0, 32), (0, 8), (1, 64), (1, 128)] {
            for (what, scope) in [(Use::All(1), 0), (Use::Scope(7, 0), 7)] {
                let name = set_name(place, what);
                assert_eq!(read_set_name(&name), Some((place.1, scope)), "{name}");
            }
            // They are in the others as well.
            assert_eq!(read_set_name(&set_name(place, Use::Some)), None);
        }
        for other in ["bans5-1-0", "bans4", "allow4", "bans4-x-0"] {
            assert_eq!(read_set_name(other), None);
        }
    }

    #[test]
    fn what_is_left_of_a_ban_is_never_zero() {
        let now = BootNanos(5_000_000);
        let at = |end| timeout(Expiry::At(BootNanos(end)), now);
        assert_eq!(at(5_000_000), None);
        assert_eq!(at(4_000_000), None);
        assert_eq!(at(5_000_001), Some(Some(1)));
        assert_eq!(at(7_000_000), Some(Some(2)));
        assert_eq!(timeout(Expiry::Never, now), Some(None));
    }
}

//! What our table looks like, and what changes in it when the desired state
//! does.
//!
//! What a packet is asked first decides what everything costs: most are of
//! nobody, or of somebody whose every packet is dropped. So each family and
//! prefix length in use has one hash set with timeouts of the bans of all ports,
//! keyed by the masked source address, and that is asked before all others; who
//! is in it is dropped with no question about the allow list, because bans that
//! touch an allowed address are in another set. Bans of some ports are in a set
//! for each scope; one more set a length holds all that have any, so that nobody
//! else is looked up in each. The same for bans that reject. Of two producers
//! that ban the same, the one whose ban ends last is in the set that is asked;
//! the others are in sets that no packet asks, for the next daemon, and move up
//! when it is lifted. A comment at each element says who bans.
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

use weir_core::{Action, BanTarget, PortSet, Reason};

use super::{
    class_rules::ClassRules,
    names::{self, ALL_PORTS, BackendHome, COVERED, Use, rejecting_chain, some_chain},
    table::{Element, Shape, Table},
    verdict_chains::{VerdictChains, WITH_PORTS},
    wire::{Batch, MessageKind},
};
use crate::{
    BootNanos, Expiry, Policy,
    desired_bans::{ActiveBan, DesiredBans, Pending},
    firewall::Counted,
    ranges::Covered,
};

/// Reasons with a counter of their own.
const COUNTED: [Reason; 14] = [
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
    Reason::Rejected,
    Reason::RejectedSilent,
    Reason::InvalidSource,
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

/// What the kernel has, as far as it differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Capabilities {
    /// Answers to rejected packets.
    pub(super) answers: bool,
    /// Deletions of what may not be there: Linux 6.3.
    pub(super) destroys: bool,
}

/// All that the table is made from.
pub(super) struct Desired<'a> {
    pub(super) bans: &'a DesiredBans,
    pub(super) allow: &'a Arc<Covered>,
    pub(super) class_rules: &'a ClassRules,
    pub(super) interfaces: &'a [String],
    pub(super) observe: bool,
    /// Packets and bytes with which the counters begin.
    pub(super) counted: &'a Counted,
}

/// The part of the desired state that is in the kernel.
pub(super) struct Ruleset {
    capabilities: Capabilities,
    verdicts: VerdictChains,
    pub(super) sets: BTreeMap<BackendHome, BTreeSet<Use>>,
    scopes: HashMap<PortSet, u32>,
    /// Scopes with a chain for bans that reject.
    refused: BTreeSet<u32>,
    /// Numbers given so far, to sets and to classes.
    numbers: u32,
    /// The number of the classes in force; 0: none.
    pub(super) classes: u32,
    /// The maps of classes, by family: on the way in, on the way out.
    pub(super) maps: [[Option<String>; 2]; 2],
    allow: Arc<Covered>,
    /// The distance of the chains behind their usual priority.
    pub(super) behind: i32,
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
    /// The whole table in place of the one that is there, in two transactions:
    /// filled, then led to. Packets that met its rules before its sets are
    /// filled would pass, or be dropped although they are allowed.
    pub(super) fn build(
        table: &Table,
        capabilities: Capabilities,
        is_there: bool,
        desired: &Desired<'_>,
    ) -> (Self, [Batch; 2]) {
        Self::build_at(table, capabilities, is_there, desired, 0)
    }

    /// The same under another name and right behind the table that it stands
    /// by for.
    pub(super) fn build_standby(
        table: &Table,
        capabilities: Capabilities,
        is_there: bool,
        desired: &Desired<'_>,
    ) -> [Batch; 2] {
        Self::build_at(table, capabilities, is_there, desired, 1).1
    }

    fn build_at(
        table: &Table,
        capabilities: Capabilities,
        is_there: bool,
        desired: &Desired<'_>,
        behind: i32,
    ) -> (Self, [Batch; 2]) {
        let (mut new, mut fill) = Self::begin(table, capabilities, is_there, desired);
        new.behind = behind;
        let all = desired.bans.all().map(|(subject, _)| (subject, false));
        new.put_bans(&mut fill, all, desired.bans);
        new.put_class_rules(&mut fill, desired.class_rules);
        let mut lead = Batch::new();
        new.put_base_chains(&mut lead);
        (new, [fill, lead])
    }

    fn begin(
        table: &Table,
        capabilities: Capabilities,
        is_there: bool,
        desired: &Desired<'_>,
    ) -> (Self, Batch) {
        let mut to = Batch::new();
        if is_there {
            table.delete(&mut to);
        }
        table.create(&mut to);
        let mut new = Self {
            capabilities,
            verdicts: VerdictChains {
                table: table.clone(),
                observe: desired.observe,
                answers: capabilities.answers,
                allow: Default::default(),
            },
            sets: BTreeMap::new(),
            scopes: HashMap::new(),
            refused: BTreeSet::new(),
            numbers: 0,
            classes: 0,
            maps: Default::default(),
            allow: desired.allow.clone(),
            behind: 0,
        };
        new.skeleton(&mut to, desired);
        (new, to)
    }

    pub(super) fn table(&self) -> &Table {
        &self.verdicts.table
    }

    fn set(&mut self, to: &mut Batch, name: &str, shape: Shape) {
        let number = self.next_set();
        self.table().set(to, name, number, shape);
    }

    fn skeleton(&mut self, to: &mut Batch, desired: &Desired<'_>) {
        let reasons = COUNTED.map(|reason| reason.name());
        let others = desired.counted.keys().map(String::as_str);
        for name in reasons.into_iter().chain(others) {
            let counted = desired.counted.get(name).copied().unwrap_or_default();
            self.table().counter(to, name, counted);
        }
        self.set(to, COVERED, Shape::Indexes);
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
        self.put_allow(to);
        self.verdicts.make(to);
        self.make_family_chains(to);
    }

    fn put<'e>(&self, to: &mut Batch, set: &str, elements: impl Iterator<Item = Element<'e>>) {
        let elements: Vec<_> = elements.collect();
        self.table()
            .elements(to, MessageKind::NewElements, set, &elements);
    }

    /// The number of a scope; new ones get a chain.
    fn scope(&mut self, to: &mut Batch, scope: &PortSet) -> u32 {
        if scope.is_all() {
            return ALL_PORTS;
        }
        if let Some(number) = self.scopes.get(scope) {
            return *number;
        }
        let number = self.scopes.len() as u32 + 1;
        self.scopes.insert(scope.clone(), number);
        self.verdicts.scope(to, scope, number);
        number
    }

    /// Where each ban of a subject goes: of those of one scope, the one that
    /// ends last to where packets ask.
    fn uses<'b>(
        &mut self,
        to: &mut Batch,
        subject: BanTarget,
        held: &'b [ActiveBan],
    ) -> Vec<(Use, &'b ActiveBan)> {
        let mut held: Vec<_> = held.iter().collect();
        held.sort_by_key(|one| std::cmp::Reverse(one.1));
        let mut uses: Vec<(Use, &ActiveBan)> = Vec::with_capacity(held.len());
        for one in held {
            let scope = self.scope(to, &one.0.scope);
            let rejects = self.capabilities.answers && one.0.action == Action::Reject;
            let asked = match (rejects, scope) {
                (true, _) => Use::Reject(scope),
                (false, ALL_PORTS) if self.allow.touches(subject.prefix()) => Use::All,
                (false, ALL_PORTS) => Use::Sure,
                (false, _) => Use::PortSet(scope),
            };
            if rejects && scope != ALL_PORTS && self.refused.insert(scope) {
                self.verdicts.refused(to, &one.0.scope, scope);
            }
            let ranks = (1..).map(|rank| Use::Behind(scope, rank));
            let free = std::iter::once(asked)
                .chain(ranks)
                .find(|what| uses.iter().all(|(other, _)| other != what));
            uses.extend(free.map(|what| (what, one)));
        }
        uses
    }

    /// Has the kernel hold against these subjects what is desired. With each:
    /// does the kernel hold anything against it?
    pub(super) fn put_bans(
        &mut self,
        to: &mut Batch,
        subjects: impl Iterator<Item = (BanTarget, bool)>,
        bans: &DesiredBans,
    ) {
        let now = BootNanos::now();
        let mut gone: BTreeMap<BackendHome, Vec<Vec<u8>>> = BTreeMap::new();
        let mut come: BTreeMap<(BackendHome, Use), Vec<Ban>> = BTreeMap::new();
        let mut comments: HashMap<Arc<Policy>, Arc<str>> = HashMap::new();
        let before = self.sets.clone();
        for (subject, known) in subjects {
            let prefix = subject.prefix();
            let place = (family(prefix.addr()), prefix.bits());
            let key = octets(prefix.addr());
            if known && before.contains_key(&place) {
                gone.entry(place).or_default().push(key.clone());
            }
            let mut longest: BTreeMap<Use, Option<u64>> = BTreeMap::new();
            for (what, (policy, expiry)) in self.uses(to, subject, bans.held(subject)) {
                let Some(timeout) = timeout(*expiry, now) else {
                    continue;
                };
                let comment = comments
                    .entry(policy.clone())
                    .or_insert_with(|| names::comment(policy).into());
                let ban = (key.clone(), Some(comment.clone()), timeout);
                come.entry((place, what)).or_default().push(ban);
                let gathered = match what {
                    Use::PortSet(_) => Use::Some,
                    Use::Reject(_) => Use::Rejecting,
                    _ => continue,
                };
                // They come by their ends, the last one first.
                longest.entry(gathered).or_insert(timeout);
            }
            for (what, timeout) in longest {
                let ban = (key.clone(), None, timeout);
                come.entry((place, what)).or_default().push(ban);
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
                let set = names::set(*place, *what);
                if self.capabilities.destroys {
                    self.table()
                        .elements(to, MessageKind::DestroyElements, &set, &elements);
                } else {
                    // What is there now can be deleted.
                    for kind in [MessageKind::NewElements, MessageKind::DelElements] {
                        self.table().elements(to, kind, &set, &elements);
                    }
                }
            }
        }
        for ((place, what), bans) in &come {
            let elements = bans.iter().map(|(key, comment, timeout)| Element {
                comment: comment.as_deref(),
                timeout: *timeout,
                ..Element::key(key)
            });
            self.put(to, &names::set(*place, *what), elements);
        }
    }

    fn make_room(&mut self, to: &mut Batch, place: BackendHome, what: Use) {
        let known = self.sets.entry(place).or_default();
        if !known.insert(what) {
            return;
        }
        match what {
            Use::Some => self.table().chain(to, &some_chain(place)),
            Use::Rejecting => self.table().chain(to, &rejecting_chain(place)),
            _ => {}
        }
        self.set(to, &names::set(place, what), Shape::Bans(place.0));
    }

    /// The change for bans of these subjects.
    pub(super) fn change(&mut self, subjects: &Pending, bans: &DesiredBans) -> Batch {
        let mut to = Batch::new();
        let subjects = subjects.iter().map(|(subject, known)| (*subject, *known));
        self.put_bans(&mut to, subjects, bans);
        to
    }

    /// The change to another allow list, with the bans that take another place
    /// for it, in three transactions like [`Self::change_class_rules`].
    pub(super) fn change_allow(
        &mut self,
        allow: &Arc<Covered>,
        subjects: &Pending,
        bans: &DesiredBans,
    ) -> [Batch; 3] {
        let [mut fill, mut switch, mut remove] = [(); 3].map(|()| Batch::new());
        let old = self.verdicts.allow.clone();
        let before = std::mem::replace(&mut self.allow, allow.clone());
        self.put_allow(&mut fill);
        self.verdicts.ask_allow(&mut switch);
        // A change of bans may have taken along what was pending for this one, and
        // put it where the list before asks for it.
        let mut subjects = subjects.clone();
        let mut moving = Vec::new();
        for (subject, _) in bans.all() {
            let prefix = subject.prefix();
            if before.touches(prefix) != allow.touches(prefix) {
                subjects.entry(subject).or_insert(true);
                moving.push(subject);
            }
        }
        // In the new place before they leave the old one: a packet that has asked the one
        // set would meet the other one as the next transaction leaves it.
        self.put_bans(&mut fill, moving.into_iter().map(|one| (one, false)), bans);
        let subjects = subjects.iter().map(|(subject, known)| (*subject, *known));
        self.put_bans(&mut switch, subjects, bans);
        for set in old.values() {
            self.table().delete_set(&mut remove, set);
        }
        [fill, switch, remove]
    }

    /// The allow list in new sets, one for each length of its prefixes. They are
    /// hash sets: an interval set is empty for packets while the transaction that
    /// fills it is carried out, also when its rules are made in the same one.
    fn put_allow(&mut self, to: &mut Batch) {
        let mut keys: BTreeMap<BackendHome, Vec<Vec<u8>>> = BTreeMap::new();
        for prefix in self.allow.prefixes() {
            let place = (family(prefix.addr()), prefix.bits());
            keys.entry(place).or_default().push(octets(prefix.addr()));
        }
        self.verdicts.allow.clear();
        for (place, keys) in keys {
            let number = self.next_set();
            let name = format!("allow{}-{}-{number}", [4, 6][place.0], place.1);
            let shape = Shape::Addresses(place.0);
            self.table().set(to, &name, number, shape);
            self.put(to, &name, keys.iter().map(|key| Element::key(key)));
            self.verdicts.allow.insert(place, name);
        }
    }

    /// The change to other lists and another geofence, in three transactions:
    /// the new maps are filled, the rules change over to them, the old maps go.
    /// In one transaction packets would meet rules whose map is not filled yet,
    /// or is empty already.
    pub(super) fn change_class_rules(
        &mut self,
        class_rules: &ClassRules,
        before: &ClassRules,
    ) -> [Batch; 3] {
        let [mut fill, mut switch, mut remove] = [(); 3].map(|()| Batch::new());
        let old = self.classes;
        self.put_class_rules(&mut fill, class_rules);
        if old > 0 && self.classes == 0 {
            self.table().empty_chain(&mut switch, "out");
            self.table().delete_chain(&mut switch, "out");
        }
        self.put_family_chains(&mut switch);
        if old == 0 && self.classes > 0 {
            self.put_way_out(&mut switch);
        }
        if old > 0 {
            before.remove(&mut remove, self.table(), old);
        }
        [fill, switch, remove]
    }

    fn put_class_rules(&mut self, to: &mut Batch, class_rules: &ClassRules) {
        if class_rules.is_empty() {
            self.classes = 0;
            self.maps = Default::default();
            return;
        }
        // Never a number that is in force.
        self.classes = self.next_set();
        self.maps = [0, 1].map(|family| class_rules.maps(self.classes, family));
        let (verdicts, number) = (self.verdicts.clone(), self.classes);
        class_rules.write(to, &verdicts, number, || self.next_set());
    }

    /// A number for another set.
    pub(super) fn next_set(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// The number of scopes.
    pub(super) fn scopes(&self) -> usize {
        self.scopes.len()
    }

    /// Numbers on which the rules depend: sets, scopes, rejecting scopes, classes and allowed
    /// prefixes.
    pub(super) fn chains(&self) -> [usize; 5] {
        let sets = self.sets.values().map(BTreeSet::len).sum();
        let classes = self.classes as usize;
        let allow = self.verdicts.allow.len();
        [sets, self.scopes.len(), self.refused.len(), classes, allow]
    }
}

/// Key, who bans, milliseconds.
type Ban = (Vec<u8>, Option<Arc<str>>, Option<u64>);

#[cfg(test)]
mod tests {
    use super::*;

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

//! Geofence and lists as rules: for each way and family a map from ranges of
//! addresses to a chain for what is said about them, which asks the lists and
//! then the rules of the geofence as
//! [`weir_core::address_class::Classes::judge`] does. New ones are made beside the old
//! ones and take over when they are whole ([`Ruleset::change_class_rules`]).
//!
//! A flow without handshake is known by whoever spoke first: sets with a
//! timeout, stamped on the way of the first packet, read before an answer
//! would be dropped. No connection tracking.

use std::{collections::HashMap, sync::Arc};

use weir_bpf::abi;
use weir_core::{
    Reason,
    address_class::{Class, Classes, Cover},
    geo::Country,
};

use super::{
    ranges::{Range, put_ranges, range4, range6},
    rule::{From, KEY, Meta, Rule, SCRATCH, Verdict},
    table::{ADDRESS, Shape, Table},
    verdict_chains::{DESTINATION, SOURCE, VerdictChains, is_later_fragment, neighbour_discovery},
    wire::Batch,
};
use crate::{ClassCounter, firewall::Counted, kernel::ANSWER_WITHIN};

/// Flows that are remembered at most, in each set.
const FLOWS: u32 = abi::FLOW_CELLS;
/// With more combinations than this the geofence counts no countries.
const MOST_COUNTED: usize = 2048;
/// First and last of the ICMP types that tell of an error.
const ICMP_ERRORS: [(u8, &[u8]); 2] = [(1, &[3, 4, 11, 12]), (58, &[1, 2, 3, 4])];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    In,
    Out,
}

impl Way {
    const BOTH: [Self; 2] = [Self::In, Self::Out];

    fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }

    fn back(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::In,
        }
    }

    /// Is the cover about packets this way?
    fn is_of(self, cover: &Cover) -> bool {
        match self {
            Self::In => cover.direction.inbound(),
            Self::Out => cover.direction.outbound(),
        }
    }

    /// Where the other side's address lies.
    fn remote(self) -> [u32; 2] {
        match self {
            Self::In => SOURCE,
            Self::Out => DESTINATION,
        }
    }

    /// Where the other side's port lies, and ours.
    fn ports(self) -> [u32; 2] {
        match self {
            Self::In => [0, 2],
            Self::Out => [2, 0],
        }
    }

    fn reasons(self) -> [Reason; 2] {
        match self {
            Self::In => [Reason::Listed, Reason::Fenced],
            Self::Out => [Reason::ListedOut, Reason::FencedOut],
        }
    }
}

/// What is to be enforced, ordered for the kernel.
#[derive(Default)]
pub(super) struct ClassRules {
    classes: Arc<Classes>,
    /// Classes with a verdict, without doubles: the number of a class is its index + 1.
    said: Vec<Class>,
    /// The number by class; 0: nothing.
    numbers: Vec<u32>,
}

fn country_name(country: Option<Country>) -> String {
    match country {
        Some(country) => format!("country-{country}"),
        None => "country-unknown".to_owned(),
    }
}

fn list_counter(cover: &Cover) -> String {
    format!("list-{}", cover.name)
}

fn flows_name(way: Way, family: usize) -> String {
    format!("begun-{}{}", way.name(), [4, 6][family])
}

impl ClassRules {
    pub(super) fn new(classes: &Arc<Classes>) -> Self {
        let mut new = Self {
            classes: classes.clone(),
            ..Self::default()
        };
        new.number(true);
        if new.said.len() > MOST_COUNTED {
            new.number(false);
        }
        new
    }

    fn number(&mut self, countries: bool) {
        let mut known = HashMap::new();
        self.said.clear();
        self.numbers.clear();
        for class in &self.classes.classes {
            let mut class = *class;
            if !countries || class.denied == 0 {
                class.country = None;
            }
            let number = if class.lists == 0 && class.denied == 0 {
                0
            } else {
                *known.entry(class).or_insert_with(|| {
                    self.said.push(class);
                    self.said.len() as u32
                })
            };
            self.numbers.push(number);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.said.is_empty() || self.classes.is_empty()
    }

    /// Are there flows of this way that somebody will have to know?
    fn remembers(&self, way: Way) -> bool {
        self.classes.fences.iter().any(|f| way.back().is_of(f))
    }

    /// Makes sets, chains and counters whose names carry this number.
    pub(super) fn write(
        &self,
        to: &mut Batch,
        verdicts: &VerdictChains,
        number: u32,
        mut next_set: impl FnMut() -> u32,
    ) {
        let table = &verdicts.table;
        for list in &self.classes.lists {
            table.counter(to, &list_counter(list), (0, 0));
        }
        for class in self.said.iter().filter(|class| class.denied != 0) {
            table.counter(to, &country_name(class.country), (0, 0));
        }
        for family in [0, 1] {
            for way in Way::BOTH {
                let id = next_set();
                let time = ANSWER_WITHIN.as_millis() as u64;
                let shape = Shape::Flows(family, FLOWS, time);
                table.set(to, &flows_name(way, family), id, shape);
            }
        }
        for way in Way::BOTH.into_iter().filter(|way| self.is_about(*way)) {
            self.write_ends(to, verdicts, way, number);
            for (place, class) in self.said.iter().enumerate() {
                let chain = class_chain(place, way, number);
                table.chain(to, &chain);
                self.judge(to, verdicts, *class, way, number, &chain);
            }
            for family in [0, 1] {
                let (map, id) = (ranges(way, family, number), next_set());
                table.set(to, &map, id, Shape::RangeVerdicts(family));
                put_ranges(table, to, &map, &self.ranges(family, way, number));
            }
        }
    }

    /// Whether the rules say anything about packets of this direction. Those that begin
    /// flows one way are remembered for the other.
    fn is_about(&self, way: Way) -> bool {
        let lists = &self.classes.lists;
        !self.classes.fences.is_empty() || lists.iter().any(|list| way.is_of(list))
    }

    /// The names of the maps that packets are looked up in.
    pub(super) fn maps(&self, number: u32, family: usize) -> [Option<String>; 2] {
        Way::BOTH.map(|way| self.is_about(way).then(|| ranges(way, family, number)))
    }

    fn ranges(&self, family: usize, way: Way, version: u32) -> Vec<Range> {
        let number = |class: u16| self.numbers.get(usize::from(class)).copied().unwrap_or(0);
        let chains: Vec<Arc<str>> = (0..self.said.len())
            .map(|place| class_chain(place, way, version).into())
            .collect();
        let chain = |number: u32| chains[number as usize - 1].clone();
        let mut all: Vec<Range> = Vec::new();
        if family == 0 {
            let spans = self.classes.v4.iter();
            let said = spans.map(|s| (s.first, s.last, number(s.value)));
            all.extend(
                joined(said, |last: u32| last.checked_add(1))
                    .into_iter()
                    .map(|(first, last, number)| range4(first, last, chain(number))),
            );
        } else {
            let spans = self.classes.v6.iter();
            let said = spans.map(|s| (s.first, s.last, number(s.value)));
            all.extend(
                joined(said, |last: u128| last.checked_add(1))
                    .into_iter()
                    .map(|(first, last, number)| range6(first, last, chain(number))),
            );
        }
        all
    }

    /// Writes the chains where packets of this direction end: one a list, one a country,
    /// and one for flows that may begin.
    fn write_ends(&self, to: &mut Batch, verdicts: &VerdictChains, way: Way, number: u32) {
        let table = &verdicts.table;
        let saved = format!("saved-{}", way.name());
        let [listed, fenced] = way.reasons();
        for (bit, list) in self.classes.lists.iter().enumerate() {
            let chain = list_chain(bit, way, number);
            table.chain(to, &chain);
            let counters = [listed.name(), &list_counter(list)];
            verdicts.end(to, &chain, &saved, &counters);
        }
        for country in self.countries() {
            let chain = fenced_chain(country, way, number);
            table.chain(to, &chain);
            for family in [0, 1] {
                let set = flows_name(way.back(), family);
                flow_rules(to, table, &chain, way, family, |rule| {
                    rule.in_set(&set, KEY)
                        .count(Reason::Reply.name())
                        .verdict(Verdict::Accept);
                });
            }
            let counters = [fenced.name(), &country_name(country)];
            verdicts.end(to, &chain, &saved, &counters);
        }
        let chain = begins_chain(way, number);
        table.chain(to, &chain);
        if self.remembers(way) {
            for family in [0, 1] {
                let set = flows_name(way, family);
                let stamp = |rule: Rule<'_>| rule.stamp(&set, KEY);
                flow_rules(to, table, &chain, way, family, stamp);
                // For later fragments of the answer.
                table.rule(to, &chain, |rule| {
                    let rule = rule.meta(Meta::Protocol, KEY).differs(KEY, &[6]);
                    stamp(flow_key(rule, way, family, false));
                });
            }
        }
        table.rule(to, &chain, |rule| {
            let rule = match way {
                Way::In => rule.count(Reason::Pass.name()),
                Way::Out => rule,
            };
            rule.verdict(Verdict::Accept);
        });
    }

    fn countries(&self) -> Vec<Option<Country>> {
        let denied = self.said.iter().filter(|class| class.denied != 0);
        let mut all: Vec<_> = denied.map(|class| class.country).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The chain of one class.
    fn judge(
        &self,
        to: &mut Batch,
        verdicts: &VerdictChains,
        class: Class,
        way: Way,
        number: u32,
        chain: &str,
    ) {
        let table = &verdicts.table;
        for (bit, list) in self.classes.lists.iter().enumerate() {
            if class.lists >> bit & 1 == 0 || !way.is_of(list) {
                continue;
            }
            let end = list_chain(bit, way, number);
            if ask(to, verdicts, chain, bit, list, &end) {
                return;
            }
        }
        if class.denied == 0 {
            return;
        }
        goes_on(to, table, chain);
        let highest = 16 - class.denied.leading_zeros() as usize;
        for (bit, fence) in self.classes.fences.iter().enumerate().take(highest) {
            if !way.is_of(fence) {
                continue;
            }
            let end = match class.denied >> bit & 1 {
                1 => fenced_chain(class.country, way, number),
                _ => begins_chain(way, number),
            };
            if ask(to, verdicts, chain, 64 + bit, fence, &end) {
                return;
            }
        }
        let begins = begins_chain(way, number);
        table.rule(to, chain, |rule| rule.verdict(Verdict::Goto(&begins)));
    }

    /// Takes away what [`Self::write`] made under this number.
    pub(super) fn remove(&self, to: &mut Batch, table: &Table, number: u32) {
        let mut chains = Vec::new();
        for way in Way::BOTH.into_iter().filter(|way| self.is_about(*way)) {
            for family in [0, 1] {
                table.delete_set(to, &ranges(way, family, number));
            }
            for (place, class) in self.said.iter().enumerate() {
                let chain = class_chain(place, way, number);
                chains.extend(self.asked(*class, way).map(|at| asked_chain(&chain, at)));
                chains.push(chain);
            }
            let lists = 0..self.classes.lists.len();
            chains.extend(lists.map(|bit| list_chain(bit, way, number)));
            let countries = self.countries().into_iter();
            chains.extend(countries.map(|country| fenced_chain(country, way, number)));
            chains.push(begins_chain(way, number));
        }
        for chain in &chains {
            table.empty_chain(to, chain);
        }
        for chain in &chains {
            table.delete_chain(to, chain);
        }
    }

    /// The lists and rules for which the chain of a class has chains of their
    /// own: those of some ports, up to the first of all ports.
    fn asked(&self, class: Class, way: Way) -> impl Iterator<Item = usize> {
        let lists = self.classes.lists.iter().enumerate();
        let lists = lists.filter(move |(bit, _)| class.lists >> bit & 1 == 1);
        let highest = 16 - class.denied.leading_zeros() as usize;
        let fences = self.classes.fences.iter().enumerate().take(highest);
        lists
            .chain(fences.map(|(bit, fence)| (64 + bit, fence)))
            .filter(move |(_, cover)| way.is_of(cover))
            .take_while(|(_, cover)| !cover.scope.is_all())
            .map(|(at, _)| at)
    }

    /// What was dropped, by the names of counters.
    pub(super) fn count(&self, counted: &Counted) -> Vec<ClassCounter> {
        let lists = self.classes.lists.iter().map(|list| {
            let name = Some(list.name.clone());
            (list_counter(list), name, None)
        });
        let countries = self.countries().into_iter();
        let countries = countries.map(|country| (country_name(country), None, country));
        lists
            .chain(countries)
            .filter_map(|(counter, list, country)| {
                let (packets, bytes) = *counted.get(&counter)?;
                (packets > 0).then_some(ClassCounter {
                    list,
                    country,
                    packets,
                    bytes,
                })
            })
            .collect()
    }
}

fn ranges(way: Way, family: usize, number: u32) -> String {
    format!("ranges-{}{}-{number}", way.name(), [4, 6][family])
}

fn class_chain(place: usize, way: Way, number: u32) -> String {
    format!("class-{}-{}-{number}", place + 1, way.name())
}

fn list_chain(bit: usize, way: Way, number: u32) -> String {
    format!("listed-{bit}-{}-{number}", way.name())
}

fn fenced_chain(country: Option<Country>, way: Way, number: u32) -> String {
    let country = country.map_or_else(|| "unknown".to_owned(), |c| c.to_string());
    format!("fenced-{country}-{}-{number}", way.name())
}

fn begins_chain(way: Way, number: u32) -> String {
    format!("begins-{}-{number}", way.name())
}

fn asked_chain(chain: &str, at: usize) -> String {
    format!("{chain}-{at}")
}

/// Sends packets that a list or rule covers on to their end; true if those are
/// all packets.
fn ask(
    to: &mut Batch,
    verdicts: &VerdictChains,
    chain: &str,
    at: usize,
    cover: &Cover,
    end: &str,
) -> bool {
    let table = &verdicts.table;
    if cover.scope.is_all() {
        table.rule(to, chain, |rule| rule.verdict(Verdict::Goto(end)));
        return true;
    }
    let asked = asked_chain(chain, at);
    table.chain(to, &asked);
    verdicts.ports(to, &asked, &cover.scope, end, "");
    table.rule(to, chain, |rule| rule.verdict(Verdict::Jump(&asked)));
    false
}

/// Returns with packets that cannot begin a flow: TCP but a bare SYN, its later
/// fragments (but those that may overwrite the first one's flags), ICMP errors, without
/// which path MTU discovery breaks, and neighbour discovery.
fn goes_on(to: &mut Batch, table: &Table, chain: &str) {
    for (family, second) in [[0, 1], [0, 1 << 3]].into_iter().enumerate() {
        table.rule(to, chain, |rule| {
            is_later_fragment(rule, family)
                .differs(SCRATCH, &second)
                .meta(Meta::Protocol, SCRATCH)
                .equals(SCRATCH, &[6])
                .verdict(Verdict::Return);
        });
    }
    table.rule(to, chain, |rule| {
        rule.meta(Meta::Protocol, SCRATCH)
            .equals(SCRATCH, &[6])
            .load(From::Transport, 13, 1, SCRATCH)
            .mask(SCRATCH, &[0x12])
            .differs(SCRATCH, &[0x02])
            .verdict(Verdict::Return);
    });
    for (protocol, types) in ICMP_ERRORS {
        for kind in types {
            table.rule(to, chain, |rule| {
                rule.meta(Meta::Protocol, SCRATCH)
                    .equals(SCRATCH, &[protocol])
                    .load(From::Transport, 0, 1, SCRATCH)
                    .equals(SCRATCH, &[*kind])
                    .verdict(Verdict::Return);
            });
        }
    }
    table.rule(to, chain, |rule| {
        neighbour_discovery(rule).verdict(Verdict::Return);
    });
}

/// Rules that have a flow's key when `then` comes: one for packets with ports,
/// one for protocols without, one for later fragments. TCP has none of them, it
/// is known by its SYN.
fn flow_rules(
    to: &mut Batch,
    table: &Table,
    chain: &str,
    way: Way,
    family: usize,
    then: impl Fn(Rule<'_>),
) {
    table.rule(to, chain, |rule| {
        let rule = rule
            .meta(Meta::Protocol, KEY)
            .differs(KEY, &[6])
            .in_set("with-ports", KEY);
        then(flow_key(rule, way, family, true));
    });
    table.rule(to, chain, |rule| {
        let rule = rule.meta(Meta::Protocol, KEY).outside("with-ports", KEY);
        then(flow_key(rule, way, family, false));
    });
    table.rule(to, chain, |rule| {
        let rule = is_later_fragment(rule, family)
            .meta(Meta::Protocol, KEY)
            .differs(KEY, &[6]);
        then(flow_key(rule, way, family, false));
    });
}

/// Protocol (there already), the other side's address and port, our port; ports
/// are 0 where there are none.
fn flow_key(rule: Rule<'_>, way: Way, family: usize, ports: bool) -> Rule<'_> {
    let length = ADDRESS[family];
    let rule = rule
        .meta(Meta::Family, SCRATCH)
        .equals(SCRATCH, &[[2], [10]][family])
        .load(From::Network, way.remote()[family], length, KEY.plus(1));
    let (there, here) = (KEY.plus(1 + length / 4), KEY.plus(2 + length / 4));
    let [remote, local] = way.ports();
    match ports {
        true => rule
            .load(From::Transport, remote, 2, there)
            .load(From::Transport, local, 2, here),
        false => rule.constant(0, there).constant(0, here),
    }
}

/// Neighbours of which the same is said become one.
fn joined<A: Copy + PartialEq>(
    spans: impl Iterator<Item = (A, A, u32)>,
    next: impl Fn(A) -> Option<A>,
) -> Vec<(A, A, u32)> {
    let mut out: Vec<(A, A, u32)> = Vec::new();
    for (first, last, number) in spans.filter(|(.., number)| *number != 0) {
        match out.last_mut() {
            Some(before) if before.2 == number && next(before.1) == Some(first) => before.1 = last,
            _ => out.push((first, last, number)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_kind_are_joined() {
        let spans = [(1u32, 2, 5), (3, 4, 5), (5, 6, 7), (8, 9, 7), (10, 11, 0)];
        assert_eq!(
            joined(spans.into_iter(), |last| last.checked_add(1)),
            [(1, 4, 5), (5, 6, 7), (8, 9, 7)]
        );
    }
}

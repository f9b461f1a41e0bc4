//! The chains that ask: who a packet is of, in which order, and where it goes on
//! then. They are written anew when a set of bans comes that there was none of.

use std::collections::BTreeSet;

use weir_core::Reason;

use super::{
    names::{
        self, ALL_PORTS, BackendHome, COVERED, FRONT, PRIORITY_IN, Use, rejecting_chain, some_chain,
    },
    rule::{From, KEY, Meta, SCRATCH, Verdict},
    ruleset::Ruleset,
    table::{ADDRESS, Hook, Table},
    verdict_chains::{DESTINATION, FAMILY, INVALID, PASS, REJECTED, SOURCE, SURE, masked_address},
    wire::Batch,
};

/// The priority behind address translation: the addresses that go out on the wire.
const PRIORITY_OUT: i32 = 300;
/// The whole judgement of a family's packets.
const JUDGED: [&str; 2] = ["in4", "in6"];
/// What is left to ask of packets that the hook of their device has judged.
const AGAIN: &str = "again";
/// Chains that have rules for each set of bans.
fn of_families() -> impl Iterator<Item = &'static str> {
    FRONT
        .into_iter()
        .chain(JUDGED)
        .chain(["out4", "out6", AGAIN])
}

impl Ruleset {
    pub(super) fn make_family_chains(&self, to: &mut Batch) {
        for chain in of_families() {
            self.table().chain(to, chain);
        }
    }

    /// What happens to the packets of each family.
    pub(super) fn put_family_chains(&self, to: &mut Batch) {
        let table = self.table();
        for chain in of_families() {
            table.empty_chain(to, chain);
        }
        // Where the source begins with zeros, nobody has it.
        for family in [0, 1] {
            for chain in [JUDGED[family], FRONT[family]] {
                table.rule(to, chain, |rule| {
                    let zeros = [&[0][..], &[0, 0]][family];
                    rule.load(From::Network, SOURCE[family], zeros.len() as u32, KEY)
                        .equals(KEY, zeros)
                        .verdict(Verdict::Jump(INVALID[family]));
                });
            }
        }
        // Longest first: of those that match, the first tells the reason.
        for (place, uses) in self.sets.iter().rev() {
            self.put_rejects(to, *place, uses);
        }
        for (place, uses) in self.sets.iter().rev() {
            self.put_drops(to, *place, uses);
        }
        for (family, maps) in self.maps.iter().enumerate() {
            let [way_in, way_out] = maps;
            let out = ["out4", "out6"][family];
            for (map, at, chains) in [
                (way_in, SOURCE, &[JUDGED[family], FRONT[family]][..]),
                (way_out, DESTINATION, &[out]),
            ] {
                let Some(map) = map else {
                    continue;
                };
                for chain in chains {
                    table.rule(to, chain, |rule| {
                        rule.load(From::Network, at[family], ADDRESS[family], KEY)
                            .verdict_of(map, KEY);
                    });
                }
            }
        }
        for chain in JUDGED {
            table.rule(to, chain, |rule| rule.verdict(Verdict::Goto(PASS)));
        }
        table.rule(to, AGAIN, |rule| rule.verdict(Verdict::Accept));
    }

    /// Writes the rules for subjects whose ban rejects: left alone at the device's hook,
    /// judged as a whole where there are answers.
    fn put_rejects(&self, to: &mut Batch, place: BackendHome, uses: &BTreeSet<Use>) {
        if !uses.contains(&Use::Rejecting) {
            return;
        }
        let (table, set) = (self.table(), names::set(place, Use::Rejecting));
        let chain = rejecting_chain(place);
        table.rule(to, FRONT[place.0], |rule| {
            masked_address(rule, place, SOURCE)
                .in_set(&set, KEY)
                .verdict(Verdict::Accept);
        });
        table.rule(to, AGAIN, |rule| {
            let rule = rule
                .meta(Meta::Family, SCRATCH)
                .equals(SCRATCH, &[FAMILY[place.0]]);
            masked_address(rule, place, SOURCE)
                .in_set(&set, KEY)
                .verdict(Verdict::Goto(JUDGED[place.0]));
        });
        table.rule(to, JUDGED[place.0], |rule| {
            masked_address(rule, place, SOURCE)
                .in_set(&set, KEY)
                .verdict(Verdict::Jump(&chain));
        });
        table.empty_chain(to, &chain);
        for what in uses {
            let refused;
            let verdict = match what {
                Use::Reject(ALL_PORTS) => Verdict::Goto(REJECTED),
                Use::Reject(scope) => {
                    refused = names::refused_chain(*scope);
                    Verdict::Jump(&refused)
                }
                _ => continue,
            };
            table.rule(to, &chain, |rule| {
                masked_address(rule, place, SOURCE)
                    .in_set(&names::set(place, *what), KEY)
                    .verdict(verdict);
            });
        }
    }

    fn put_drops(&self, to: &mut Batch, place: BackendHome, uses: &BTreeSet<Use>) {
        let table = self.table();
        let some = some_chain(place);
        if uses.contains(&Use::Some) {
            table.empty_chain(to, &some);
        }
        for what in uses {
            let scope;
            let ways = [JUDGED[place.0], FRONT[place.0]];
            let (chains, verdict) = match what {
                Use::Sure => (&ways[..], Verdict::Goto(SURE[place.0])),
                Use::All => (&ways[..], Verdict::Goto(Reason::BannedAll.name())),
                Use::Some => (&ways[..], Verdict::Jump(&some)),
                Use::PortSet(number) => {
                    scope = names::scope_chain(*number);
                    (&[some.as_str()][..], Verdict::Jump(&scope))
                }
                Use::Rejecting | Use::Reject(_) | Use::Behind(..) => continue,
            };
            for chain in chains {
                table.rule(to, chain, |rule| {
                    masked_address(rule, place, SOURCE)
                        .in_set(&names::set(place, *what), KEY)
                        .verdict(verdict);
                });
            }
        }
    }

    pub(super) fn put_base_chains(&self, to: &mut Batch) {
        self.put_family_chains(to);
        let table = self.table();
        table.base_chain(to, "in", Hook::Prerouting(PRIORITY_IN + self.behind));
        table.rule(to, "in", |rule| {
            rule.meta(Meta::InIndex, KEY)
                .in_set(COVERED, KEY)
                .verdict(Verdict::Goto(AGAIN));
        });
        self.leave_others(to, "in", Meta::InName);
        by_family(table, to, "in", JUDGED.map(Verdict::Goto));
        if self.classes > 0 {
            self.put_way_out(to);
        }
    }

    pub(super) fn put_way_out(&self, to: &mut Batch) {
        let table = self.table();
        table.base_chain(to, "out", Hook::Postrouting(PRIORITY_OUT + self.behind));
        self.leave_others(to, "out", Meta::OutName);
        by_family(table, to, "out", ["out4", "out6"].map(Verdict::Goto));
    }

    /// Other interfaces than ours are nobody's business.
    fn leave_others(&self, to: &mut Batch, chain: &str, name: Meta) {
        self.table().rule(to, chain, |rule| {
            rule.meta(name, KEY)
                .outside("interfaces", KEY)
                .verdict(Verdict::Accept);
        });
    }
}

/// Sends a base chain's packets on, each family to its chain.
pub(super) fn by_family(table: &Table, to: &mut Batch, chain: &str, next: [Verdict<'_>; 2]) {
    for (family, next) in FAMILY.into_iter().zip(next) {
        table.rule(to, chain, |rule| {
            rule.meta(Meta::Family, SCRATCH)
                .equals(SCRATCH, &[family])
                .verdict(next);
        });
    }
}

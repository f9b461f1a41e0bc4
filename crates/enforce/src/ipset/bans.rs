//! Which set each ban goes to, and the lines that tell ipset.

use std::collections::HashMap;

use weir_core::{BanTarget, PortSet};

use super::{
    KernelState,
    sets::{self, Bans},
};
use crate::{
    BootNanos,
    desired_bans::{ActiveBan, DesiredBans},
    ranges::Covered,
};

impl KernelState {
    fn scope(&mut self, scope: &PortSet) -> u32 {
        if scope.is_all() {
            return 0;
        }
        let known = self.scopes.iter().position(|other| other == scope);
        let place = known.unwrap_or_else(|| {
            self.scopes.push(scope.clone());
            self.scopes.len() - 1
        });
        place as u32 + 1
    }

    /// The sets that a subject's bans belong to: of those of one scope, the one
    /// that ends last is in the set that packets ask.
    fn places<'b>(
        &mut self,
        subject: BanTarget,
        held: &'b [ActiveBan],
        allow: &Covered,
    ) -> Vec<(Bans, &'b ActiveBan)> {
        let prefix = subject.prefix();
        let mut held: Vec<_> = held.iter().collect();
        held.sort_by_key(|one| std::cmp::Reverse(one.1));
        let mut places: Vec<(Bans, &ActiveBan)> = Vec::with_capacity(held.len());
        for one in held {
            let scope = &one.0.scope;
            let mut place = Bans {
                generation: self.generation,
                family: usize::from(prefix.addr().is_ipv6()),
                hosts: prefix.is_host(),
                scope: self.scope(scope),
                touched: scope.is_all() && allow.touches(prefix),
                rank: 0,
            };
            while places.iter().any(|(other, _)| *other == place) {
                place.rank += 1;
            }
            places.push((place, one));
        }
        places
    }

    /// Has the sets hold against these subjects what is desired. Returns the
    /// lines that make and fill sets, and those that take out of sets what is not
    /// there any more or is in another one: for when the rules ask that.
    pub(super) fn put_bans(
        &mut self,
        base: &str,
        subjects: impl Iterator<Item = (BanTarget, bool)>,
        bans: &DesiredBans,
        allow: &Covered,
    ) -> (String, String) {
        let now = BootNanos::now();
        let (mut creates, mut lines, mut deletes) = (String::new(), String::new(), String::new());
        let mut names: HashMap<Bans, String> = HashMap::new();
        let mut name = move |bans: Bans| -> String {
            names.entry(bans).or_insert_with(|| bans.name(base)).clone()
        };
        let before = self.sets.clone();
        let mut coming: HashMap<Bans, usize> = HashMap::new();
        for (subject, known) in subjects {
            let mut live = Vec::new();
            for (place, (policy, expiry)) in self.places(subject, bans.held(subject), allow) {
                let Some(seconds) = sets::seconds(*expiry, now) else {
                    continue;
                };
                self.sets.insert(place);
                *coming.entry(place).or_default() += 1;
                sets::add(&mut lines, &name(place), subject, seconds, policy);
                live.push(place);
            }
            if !known {
                continue;
            }
            let prefix = subject.prefix();
            let of_its_kind = before.iter().filter(|set| {
                set.family == usize::from(prefix.addr().is_ipv6()) && set.hosts == prefix.is_host()
            });
            for set in of_its_kind.filter(|set| !live.contains(set)) {
                sets::delete(&mut deletes, &name(*set), subject);
            }
        }
        for place in self.sets.difference(&before) {
            place.create(&mut creates, base, coming[place]);
        }
        (creates + &lines, deletes)
    }
}

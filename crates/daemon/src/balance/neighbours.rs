//! The link-layer addresses to which packets for reals and routers go: as the kernel resolves
//! them, but held where its entry comes and goes, or has one address and then another. Tables
//! that followed each of its answers would break flows each time.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::host::{self, Mac, mac_text};

/// A neighbour keeps its link-layer address for so long without an entry of the kernel's. A
/// host that answers is found again within it, and one that is dead fails its checks.
const KEPT: Duration = Duration::from_secs(10);
/// Another address is followed once the kernel has had it, and no other, for so long: one
/// forged answer that the neighbour corrects moves nothing.
const STAYS: Duration = Duration::from_secs(3);
/// The same while two addresses come in turns.
const UNSEEN: Duration = Duration::from_secs(10);
/// An address that the kernel has had for so long, and no other, is the neighbour's; and two
/// are told for so long after they were seen.
const UNSETTLED: Duration = Duration::from_secs(60);

/// The neighbours that were asked for, over all looks.
#[derive(Default)]
pub(super) struct Neighbours {
    /// The kernel's entries by interface, read once a look.
    resolved: BTreeMap<u32, BTreeMap<IpAddr, Mac>>,
    /// By interface and address.
    followed: BTreeMap<(u32, IpAddr), Neighbour>,
}

/// A neighbour with the address that is in force.
struct Neighbour {
    mac: Mac,
    /// The address that was found first, or has stayed longest since: packets return to it as
    /// soon as the kernel has it again.
    home: Mac,
    /// The one that the kernel had last.
    found: Mac,
    /// The time since when it has had that one, if it had another before.
    changed: Option<Instant>,
    /// Whether the kernel has had any: the first may be what an earlier daemon knew.
    is_found: bool,
    /// When the kernel had any for it.
    resolved: Instant,
    /// The last other one that was found or in force.
    other: Option<Mac>,
    /// When two were seen in turns.
    contested: Option<Instant>,
    is_asked_for: bool,
}

impl Neighbour {
    fn new(mac: Mac, now: Instant) -> Self {
        Self {
            mac,
            home: mac,
            found: mac,
            changed: None,
            is_found: false,
            resolved: now,
            other: None,
            contested: None,
            is_asked_for: true,
        }
    }

    /// Takes note of the kernel's entry; false: it has had none for too long.
    fn note(&mut self, resolved: Option<Mac>, now: Instant) -> bool {
        let Some(mac) = resolved else {
            return now.duration_since(self.resolved) < KEPT;
        };
        self.resolved = now;
        if !std::mem::replace(&mut self.is_found, true) {
            (self.mac, self.home, self.found) = (mac, mac, mac);
        }
        let is_fresh = |at: Instant| now.duration_since(at) < UNSETTLED;
        if mac != self.found {
            if self.changed.is_some_and(is_fresh) {
                self.contested = Some(now);
            }
            (self.found, self.changed) = (mac, Some(now));
        }
        let stayed = self.changed.map(|at| now.duration_since(at));
        let is_contested = self.contested.is_some_and(is_fresh);
        let needed = if is_contested { UNSEEN } else { STAYS };
        if mac != self.mac {
            let is_followed = mac == self.home || stayed.is_none_or(|time| time >= needed);
            self.other = Some(match is_followed {
                true => std::mem::replace(&mut self.mac, mac),
                false => mac,
            });
        }
        if mac == self.mac && stayed.is_some_and(|time| time >= UNSETTLED) {
            self.home = mac;
        }
        true
    }
}

impl Neighbours {
    /// Begins a look: what is not asked for in it is forgotten by [`Self::end`].
    pub(super) fn begin(&mut self) {
        self.resolved.clear();
        let all = self.followed.values_mut();
        all.for_each(|neighbour| neighbour.is_asked_for = false);
    }

    /// The link-layer address of a neighbour, if it is known. `before`: the one that an
    /// earlier daemon had for it, which is right until the kernel has another. `is_on_link`:
    /// the kernel is told to find it out where it has no entry.
    ///
    /// # Errors
    /// The kernel does not tell its neighbours.
    pub(super) fn find(
        &mut self,
        (ifindex, addr): (u32, IpAddr),
        before: Option<Mac>,
        is_on_link: bool,
    ) -> io::Result<Option<Mac>> {
        let entries = match self.resolved.entry(ifindex) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(host::neighbours(ifindex)?),
        };
        let resolved = entries.get(&addr).copied();
        if resolved.is_none()
            && is_on_link
            && let Err(error) = host::resolve(ifindex, addr)
        {
            tracing::debug!("cannot have {addr} resolved: {error}");
        }
        Ok(self.follow((ifindex, addr), resolved, before, Instant::now()))
    }

    fn follow(
        &mut self,
        key: (u32, IpAddr),
        resolved: Option<Mac>,
        before: Option<Mac>,
        now: Instant,
    ) -> Option<Mac> {
        let neighbour = match self.followed.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Neighbour::new(before.or(resolved)?, now)),
        };
        neighbour.is_asked_for = true;
        if neighbour.note(resolved, now) {
            return Some(neighbour.mac);
        }
        self.followed.remove(&key);
        None
    }

    /// Ends a look.
    pub(super) fn end(&mut self) {
        self.followed.retain(|_, neighbour| neighbour.is_asked_for);
    }

    /// An alert if a neighbour has two link-layer addresses in turns.
    pub(super) fn contested(&self, now: Instant) -> Option<String> {
        let all = self.followed.iter();
        let with = all.filter_map(|((_, addr), neighbour)| {
            let at = neighbour.contested?;
            if now.duration_since(at) >= UNSETTLED {
                return None;
            }
            Some(format!(
                "{addr} has the link-layer addresses {} (in force) and {} in turns",
                mac_text(neighbour.mac),
                mac_text(neighbour.other?)
            ))
        });
        let with: Vec<_> = with.collect();
        if with.is_empty() {
            return None;
        }
        Some(format!(
            "{}: two hosts have the address, or one pretends to. Packets go to the one that was there first, or to another that alone is seen for {} s",
            with.join("; "),
            UNSEEN.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 0xa];
    const B: Mac = [2, 0, 0, 0, 0, 0xb];

    /// Looks each second, at a neighbour of each family; the addresses in force.
    fn looks(
        neighbours: &mut Neighbours,
        from: &mut Instant,
        seen: &[Option<Mac>],
    ) -> Vec<Option<Mac>> {
        let mut found = Vec::new();
        for resolved in seen {
            *from += Duration::from_secs(1);
            neighbours.begin();
            let [four, six] = ["192.0.2.11", "2001:db8::11"].map(|addr| {
                let key = (2, addr.parse().unwrap());
                neighbours.follow(key, *resolved, None, *from)
            });
            neighbours.end();
            assert_eq!(four, six);
            found.push(four);
        }
        found
    }

    #[test]
    fn an_entry_that_comes_and_goes_changes_nothing() {
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        assert_eq!(looks(&mut neighbours, &mut now, &[None]), [None]);
        for gone in 1..9 {
            let mut seen = vec![Some(A)];
            seen.extend(vec![None; gone]);
            let found = looks(&mut neighbours, &mut now, &seen);
            assert_eq!(found, vec![Some(A); gone + 1]);
        }
        // One that stays away is none.
        let found = looks(&mut neighbours, &mut now, &[None; 10]);
        assert_eq!(found.iter().filter(|mac| mac.is_some()).count(), 1);
        assert_eq!(found.last(), Some(&None));
        assert_eq!(looks(&mut neighbours, &mut now, &[Some(B)]), [Some(B)]);
        assert_eq!(neighbours.contested(now), None);
    }

    #[test]
    fn one_forged_answer_moves_nothing_and_a_longer_one_no_longer_than_it_is_believed() {
        let (a, b) = (Some(A), Some(B));
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        let found = looks(&mut neighbours, &mut now, &[a, b, b, a, a]);
        assert_eq!(found, [a; 5]);
        assert!(neighbours.contested(now).is_some());
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        let found = looks(&mut neighbours, &mut now, &[a, b, b, b, b, b, a, a]);
        assert_eq!(found, [a, a, a, a, b, b, a, a]);
    }

    #[test]
    fn an_address_that_stays_is_followed_and_is_the_neighbours_in_time() {
        let (a, b) = (Some(A), Some(B));
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        looks(&mut neighbours, &mut now, &[a]);
        // A server with a new card.
        let found = looks(&mut neighbours, &mut now, &[b; 70]);
        let (held, then) = found.split_at(3);
        assert!(held.iter().all(|mac| *mac == a));
        assert!(then.iter().all(|mac| *mac == b));
        assert_eq!(neighbours.contested(now), None);
        assert_eq!(looks(&mut neighbours, &mut now, &[a, b]), [b, b]);
    }

    #[test]
    fn two_addresses_in_turns_are_told_and_move_no_packets() {
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        looks(&mut neighbours, &mut now, &[Some(A)]);
        let turns: Vec<_> = [B, A, A, B]
            .map(Some)
            .into_iter()
            .cycle()
            .take(200)
            .collect();
        let found = looks(&mut neighbours, &mut now, &turns);
        assert!(found.iter().all(|mac| *mac == Some(A)));
        let told = neighbours.contested(now).unwrap();
        for words in [
            "192.0.2.11 has the link-layer addresses",
            "2001:db8::11 has the link-layer addresses",
            "02:00:00:00:00:0a (in force)",
            "02:00:00:00:00:0b in turns",
        ] {
            assert!(told.contains(words), "{told}");
        }
        // One of them goes; the other was seen a second before.
        let found = looks(&mut neighbours, &mut now, &[Some(B); 70]);
        let (held, then) = found.split_at(9);
        assert!(held.iter().all(|mac| *mac == Some(A)));
        assert!(then.iter().all(|mac| *mac == Some(B)));
        assert_eq!(neighbours.contested(now), None);
    }

    #[test]
    fn what_an_earlier_daemon_had_counts_until_the_kernel_knows_better() {
        for (seen, then) in [(Some(B), Some(B)), (None, Some(A))] {
            let mut neighbours = Neighbours::default();
            let (key, now) = ((2, IpAddr::from([192, 0, 2, 11])), Instant::now());
            assert_eq!(neighbours.follow(key, seen, Some(A), now), then);
            // It is one for as long as an entry that has gone.
            let later = now + KEPT;
            assert_eq!(neighbours.follow(key, None, None, later), None);
        }
    }
}

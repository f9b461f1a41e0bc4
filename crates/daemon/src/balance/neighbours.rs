//! The link-layer addresses to which packets for reals and routers go: as the kernel resolves
//! them, but held where its entry comes and goes, or has one address and then another. Tables
//! that followed each of its answers would break flows each time.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::host::{self, Mac};

/// A neighbour keeps its link-layer address for so long without an entry of the kernel's. A
/// host that answers is found again within it, and one that is dead fails its checks.
const KEPT: Duration = Duration::from_secs(10);
/// A neighbour that has changed lately changes again only when its address in force was not
/// seen for so long.
const UNSEEN: Duration = Duration::from_secs(10);
/// Behind a change a neighbour counts as unsettled for so long, and two addresses are told
/// for so long after they were seen.
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
    /// The time of the last change, if there was one.
    changed: Option<Instant>,
    /// When the kernel had this link-layer address last.
    seen: Instant,
    /// When the kernel had any for it.
    resolved: Instant,
    /// The last other one that it had.
    other: Option<Mac>,
    /// When two were seen in turns.
    contested: Option<Instant>,
    is_asked_for: bool,
}

impl Neighbour {
    fn new(mac: Mac, now: Instant) -> Self {
        Self {
            mac,
            changed: None,
            seen: now,
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
        if mac == self.mac {
            self.seen = now;
            return true;
        }
        let is_over = |at: Option<Instant>| at.is_none_or(|at| now.duration_since(at) >= UNSETTLED);
        let is_settled = is_over(self.changed) && is_over(self.contested);
        if !is_settled {
            self.contested = Some(now);
        }
        self.other = Some(mac);
        if is_settled || now.duration_since(self.seen) >= UNSEEN {
            self.other = Some(std::mem::replace(&mut self.mac, mac));
            (self.changed, self.seen) = (Some(now), now);
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
                text(neighbour.mac),
                text(neighbour.other?)
            ))
        });
        let with: Vec<_> = with.collect();
        if with.is_empty() {
            return None;
        }
        Some(format!(
            "{}: two hosts have the address, or one pretends to. Packets stay with the one in force until it is not seen for {} s",
            with.join("; "),
            UNSEEN.as_secs()
        ))
    }
}

fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
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
    fn two_addresses_in_turns_are_told_and_move_packets_once() {
        let (mut neighbours, mut now) = (Neighbours::default(), Instant::now());
        looks(&mut neighbours, &mut now, &[Some(A)]);
        // A server with a new card.
        assert_eq!(looks(&mut neighbours, &mut now, &[Some(B)]), [Some(B)]);
        assert_eq!(neighbours.contested(now), None);
        let turns: Vec<_> = [A, B].map(Some).into_iter().cycle().take(200).collect();
        let found = looks(&mut neighbours, &mut now, &turns);
        assert!(found.iter().all(|mac| *mac == Some(B)));
        let told = neighbours.contested(now).unwrap();
        for words in [
            "192.0.2.11 has the link-layer addresses",
            "2001:db8::11 has the link-layer addresses",
            "02:00:00:00:00:0a",
            "02:00:00:00:00:0b",
        ] {
            assert!(told.contains(words), "{told}");
        }
        // One of them goes.
        let found = looks(&mut neighbours, &mut now, &[Some(A); 70]);
        let (held, then) = found.split_at(9);
        assert!(held.iter().all(|mac| *mac == Some(B)));
        assert!(then.iter().all(|mac| *mac == Some(A)));
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

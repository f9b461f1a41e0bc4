//! Whose programs are looked at next: of those who have some that are not known the one for whom
//! least time was spent, so that nobody keeps others' unknown by as many and as large files as he
//! likes, whatever comes of the looks.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use weir_bpf::identity::{IdentityEvent, IdentityEventKind};

use super::restless::Whose;

/// So many events wait; of more the last one goes of whoever has most. A program that is not known
/// is asked about again when it sends.
const MAX_EVENTS: usize = 4096;
/// So many owners are remembered for whom time was spent, and who have nothing that waits; of more
/// the one goes for whom least was.
const MAX_OWNERS: usize = 256;

/// Events about programs that are not known, by owner, and what comes behind them.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: BTreeMap<Whose, VecDeque<IdentityEvent>>,
    /// The processes that they are about, with their owners, and how many are about each.
    about: BTreeMap<u32, (Whose, usize)>,
    count: usize,
    /// What was spent for each, and for who comes anew.
    spent: BTreeMap<Whose, Duration>,
    level: Duration,
}

impl Turns {
    /// Has an event wait; one that is to be heard at once is handed back: it is about nobody of
    /// whom others wait. `whose`: the owner of a process.
    pub(super) fn add(
        &mut self,
        event: IdentityEvent,
        whose: impl FnOnce(&IdentityEvent) -> Whose,
    ) -> Option<IdentityEvent> {
        let before = self.about.get(&event.pid).map(|(whose, _)| whose.clone());
        let whose = match (before, event.kind) {
            (Some(whose), _) => whose,
            (None, IdentityEventKind::Unknown) => whose(&event),
            (None, _) => return Some(event),
        };
        let about = self.about.entry(event.pid);
        about.or_insert((whose.clone(), 0)).1 += 1;
        let level = self.level;
        let spent = self.spent.entry(whose.clone()).or_insert(level);
        let waiting = self.waiting.entry(whose).or_default();
        // Who had nothing that waited has saved nothing by that.
        if waiting.is_empty() {
            *spent = level.max(*spent);
        }
        waiting.push_back(event);
        self.count += 1;
        if self.count > MAX_EVENTS {
            let most = self.waiting.iter().max_by_key(|(_, events)| events.len());
            if let Some(whose) = most.map(|(whose, _)| whose.clone()) {
                self.take(&whose, VecDeque::pop_back);
            }
        }
        None
    }

    /// The next event, and whose it is.
    pub(super) fn next(&mut self) -> Option<(Whose, IdentityEvent)> {
        let spent = |whose: &Whose| self.spent.get(whose).copied().unwrap_or(self.level);
        let whose = self
            .waiting
            .keys()
            .min_by_key(|whose| spent(whose))?
            .clone();
        self.level = self.level.max(spent(&whose));
        let event = self.take(&whose, VecDeque::pop_front)?;
        Some((whose, event))
    }

    fn take(
        &mut self,
        whose: &Whose,
        which: fn(&mut VecDeque<IdentityEvent>) -> Option<IdentityEvent>,
    ) -> Option<IdentityEvent> {
        let events = self.waiting.get_mut(whose)?;
        let event = which(events)?;
        if events.is_empty() {
            self.waiting.remove(whose);
        }
        self.count -= 1;
        if let Some((_, count)) = self.about.get_mut(&event.pid) {
            *count -= 1;
            if *count == 0 {
                self.about.remove(&event.pid);
            }
        }
        Some(event)
    }

    /// An event of his took so long.
    pub(super) fn spend(&mut self, whose: Whose, took: Duration) {
        *self.spent.entry(whose).or_insert(self.level) += took;
        let (level, waiting) = (self.level, &self.waiting);
        self.spent
            .retain(|whose, spent| *spent > level || waiting.contains_key(whose));
        let idle = |whose: &&Whose| !waiting.contains_key(*whose);
        while self.spent.keys().filter(idle).count() > MAX_OWNERS {
            let least = self.spent.iter().filter(|(whose, _)| idle(whose));
            let least = least.min_by_key(|(_, spent)| **spent);
            let Some(whose) = least.map(|(whose, _)| whose.clone()) else {
                break;
            };
            self.spent.remove(&whose);
        }
    }

    /// Does nothing wait?
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Nobody has wanted anything for a while: all begin anew.
    pub(super) fn rest(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv6Addr;

    use weir_bpf::identity::{Comm, DecidedBy, Key};

    use super::*;

    /// About a process of root's, which nothing else is known of.
    pub(in super::super) fn event(pid: u32, kind: IdentityEventKind) -> IdentityEvent {
        IdentityEvent {
            kind,
            key: Key {
                set: [1, 1],
                cgroup: 0,
                uid: 0,
                space: 0,
                anonymous: false,
                altered: false,
            },
            pid,
            uid: 0,
            comm: Comm::default(),
            executable: None,
            cgroup: 0,
            netns: 0,
            holder: None,
            holders: Default::default(),
            peer: Ipv6Addr::UNSPECIFIED,
            port: 0,
            protocol: 0,
            is_out: true,
            by: DecidedBy::Unknown,
            passes: false,
            is_of_second: false,
        }
    }

    fn unknown(turns: &mut Turns, pid: u32, user: u32) {
        let event = event(pid, IdentityEventKind::Unknown);
        assert!(turns.add(event, |_| Whose::User(user)).is_none());
    }

    /// Serves the next one, for so long.
    fn serve(turns: &mut Turns, millis: u64) -> u32 {
        let (whose, event) = turns.next().unwrap();
        turns.spend(whose, Duration::from_millis(millis));
        event.pid
    }

    /// One user with as many large files as he likes, of which each look ends somehow.
    #[test]
    fn who_has_much_to_be_looked_at_keeps_nobody_waiting() {
        let mut turns = Turns::default();
        for pid in 0..150 {
            unknown(&mut turns, pid, 1000);
        }
        assert_eq!(serve(&mut turns, 1000), 0);
        for turn in 1..100 {
            unknown(&mut turns, 1000 + turn, 1001);
            // The other one's program first, then one of his: he goes on as well.
            assert_eq!(serve(&mut turns, 1), 1000 + turn);
            assert_eq!(serve(&mut turns, 1000), turn);
            unknown(&mut turns, turn, 1000);
        }
        // Who comes anew has saved nothing up, and owes nothing.
        unknown(&mut turns, 2000, 1002);
        unknown(&mut turns, 2001, 1002);
        assert_eq!(serve(&mut turns, 5000), 2000);
        assert!(serve(&mut turns, 1000) < 150);
        // Who waits alone waits for nobody.
        while !turns.is_empty() {
            serve(&mut turns, 1);
        }
        turns.rest();
        assert!(turns.spent.is_empty() && turns.about.is_empty());
    }

    #[test]
    fn what_is_told_of_a_process_comes_in_its_order() {
        let mut turns = Turns::default();
        let denied = |pid| event(pid, IdentityEventKind::Denied);
        let nobody = |_: &IdentityEvent| unreachable!();
        assert_eq!(turns.add(denied(1), nobody).unwrap().pid, 1);
        unknown(&mut turns, 1, 1000);
        assert!(turns.add(denied(1), nobody).is_none());
        assert_eq!(turns.add(denied(2), nobody).unwrap().pid, 2);
        let kinds = [IdentityEventKind::Unknown, IdentityEventKind::Denied];
        for kind in kinds {
            let (_, event) = turns.next().unwrap();
            assert_eq!((event.pid, event.kind), (1, kind));
        }
        assert!(turns.next().is_none());
        assert_eq!(turns.add(denied(1), nobody).unwrap().pid, 1);
    }

    #[test]
    fn at_the_cap_who_has_most_loses_the_last() {
        let mut turns = Turns::default();
        for pid in 0..MAX_EVENTS as u32 + 10 {
            unknown(&mut turns, pid, 1000);
        }
        unknown(&mut turns, u32::MAX, 1001);
        assert_eq!(turns.count, MAX_EVENTS);
        assert_eq!(turns.waiting[&Whose::User(1001)].len(), 1);
        assert_eq!(turns.about.len(), MAX_EVENTS);
        assert!(!turns.about.contains_key(&(MAX_EVENTS as u32)));
        for user in 0..MAX_OWNERS as u32 + 10 {
            turns.spend(Whose::User(2000 + user), Duration::from_secs(user.into()));
        }
        assert!(turns.spent.len() <= MAX_OWNERS + 2);
    }
}

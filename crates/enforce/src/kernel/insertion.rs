//! Entries in and out of the tables that are there; when those are full, who
//! goes or what must grow.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use weir_bpf::{Key, Placed, PrefixBan, PrefixBanPlaced, Slot, fault, tables::MAX_POLICIES};
use weir_core::BanSource;

use super::{Kernel, WorkCounts, maintenance::Maintenance, next_expiry::Noting};
use crate::{Entry, Error, InsertSummary, Policy};

/// Entries inserted under one read lock: a switch of generations waits at most
/// some 100 µs for it.
const LOCK_CHUNK: usize = 1024;
/// From this many entries on, room is made for all of them at once.
const BULK: usize = 4096;
/// Entries that are worth a thread of their own: some 10 ms.
const SHARE: usize = 1 << 15;
/// Entries whose places are read ahead together.
const WARM: usize = 16;

/// At the cap, bans that are over are looked for at most this often, unless
/// there is nobody else to go.
const EXPIRE_AFTER: Duration = Duration::from_secs(1);

/// So often tables are made larger for one entry: other writers may have filled the
/// first before it came to its turn.
const GROWTHS: usize = 2;

/// Why a run of insertions ended.
enum Stop {
    Done,
    /// The next entry would be one too many.
    AtCap(usize),
    /// The next entry would be a prefix ban too many.
    AtPrefixBanCap,
    /// The next entry's places in this generation are taken.
    NoRoom(u64),
    /// The next entry's policy has no number, and none is left.
    NoNumber,
    /// The last entry is not in tables that some packets may meet.
    Unsettled,
}

impl Kernel {
    /// Inserts as many of the entries as go without eviction or growth, under
    /// one read lock; returns how many.
    fn insert_run(
        &self,
        entries: &[Entry],
        done: &mut InsertSummary,
    ) -> Result<(usize, Stop), Error> {
        let tables = self.tables();
        let table = &tables.current.table;
        let max_bans = self.settings().max_bans;
        // Entries of one producer follow one another.
        let mut known: Option<(&Arc<Policy>, u16, Option<u16>)> = None;
        // What the table allows for, not what it will once `follow_suspend` has
        // noticed a sleep: that moves every entry, these among them.
        let suspended = tables.current.suspended();
        let mut ends = Noting::new(&self.next_expiry);
        for (n, entry) in entries.iter().enumerate() {
            if n == WARM {
                fault::point("insert-mid-run");
            }
            if n % WARM == 0 && entries.len() - n >= WARM {
                for entry in &entries[n..n + WARM] {
                    if let Some(key) = self.key(entry.subject) {
                        table.prefetch(key);
                    }
                }
            }
            let (policy, opposite) = match known {
                Some((policy, number, opposite)) if *policy == entry.policy => (number, opposite),
                _ if !entry.policy.action.denies_packets() => {
                    return Err(Error::OnlyNotifies(entry.subject));
                }
                _ => match self.policies.number(&entry.policy, &tables.current) {
                    Ok(number) => (number, self.policies.opposite_action(&entry.policy)),
                    Err(Error::Policies(_)) => return Ok((n, Stop::NoNumber)),
                    Err(error) => return Err(error),
                },
            };
            known = Some((&entry.policy, policy, opposite));
            let expiry = self.jiffies(entry.expiry, suspended);
            let Some(key) = self.key(entry.subject) else {
                let prefix = entry.subject.prefix();
                let ban = PrefixBan {
                    prefix,
                    policy,
                    expiry,
                };
                match self.insert_prefix_ban(ban, &entry.policy.producer, opposite, &tables)? {
                    PrefixBanPlaced::New => done.new += 1,
                    PrefixBanPlaced::Replaced => done.replaced += 1,
                    PrefixBanPlaced::Full => return Ok((n, Stop::AtPrefixBanCap)),
                    PrefixBanPlaced::TooDeep => return Err(Error::TooDeep(entry.subject)),
                }
                continue;
            };
            let slot = Slot {
                key,
                policy,
                expiry,
            };
            let filled = table.filled();
            let is_same = |s: &Slot| s.policy == policy || Some(s.policy) == opposite;
            if filled.sum() >= max_bans && !table.get(key).iter().any(is_same) {
                return Ok((n, Stop::AtCap(max_bans)));
            }
            match table.insert(slot) {
                Placed::New => done.new += 1,
                Placed::Replaced => done.replaced += 1,
                Placed::NoRoom => return Ok((n, Stop::NoRoom(tables.current.number))),
            }
            ends.note(expiry);
            if !tables.insert_next(slot) {
                return Ok((n + 1, Stop::Unsettled));
            }
            if filled.exceed(table.geometry().target_load()) {
                self.crowded.store(true, Ordering::Relaxed);
            }
        }
        Ok((entries.len(), Stop::Done))
    }

    /// Inserts them, by several threads when there are many; `done` is what was
    /// done in any case.
    pub(super) fn insert_all(
        &self,
        entries: &[Entry],
        done: &mut InsertSummary,
    ) -> Result<(), Error> {
        self.prepare_answers(entries);
        if entries.len() > BULK {
            self.reserve(entries);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let writers = (entries.len() / SHARE).min(cores);
        if writers < 2 {
            return self.insert_in_turn(entries, done);
        }
        std::thread::scope(|scope| {
            let insert = |share| {
                let mut done = InsertSummary::default();
                let outcome = self.insert_in_turn(share, &mut done);
                (done, outcome)
            };
            let writers: Vec<_> = entries
                .chunks(entries.len().div_ceil(writers))
                .map(|share| {
                    let writer = std::thread::Builder::new();
                    let writer = writer.spawn_scoped(scope, move || insert(share));
                    (share, writer)
                })
                .collect();
            let mut outcome = Ok(());
            for (share, writer) in writers {
                let (inserted, ended) = match writer {
                    Ok(writer) => writer.join().expect("inserting does not panic"),
                    // The system has no thread left: this one does it.
                    Err(_) => insert(share),
                };
                done.new += inserted.new;
                done.replaced += inserted.replaced;
                done.evicted.extend(inserted.evicted);
                outcome = outcome.and(ended);
            }
            outcome
        })
    }

    pub(super) fn insert_in_turn(
        &self,
        entries: &[Entry],
        done: &mut InsertSummary,
    ) -> Result<(), Error> {
        for entries in entries.chunks(LOCK_CHUNK) {
            let mut rest = entries;
            let mut grown = (None, 0);
            while !rest.is_empty() {
                let (inserted, stop) = self.insert_run(rest, done)?;
                self.lift_opposites(&rest[..inserted], done)?;
                rest = &rest[inserted..];
                match stop {
                    Stop::Done => {}
                    // Which of the tables stay is decided under this lock.
                    Stop::Unsettled => drop(self.maintenance.lock()),
                    Stop::AtCap(max_bans) => {
                        let producer = &rest[0].policy.producer;
                        done.evicted.extend(self.make_room(producer, max_bans)?);
                    }
                    Stop::AtPrefixBanCap => {
                        self.make_room_for_prefix_ban(&rest[0].policy.producer, done)?;
                    }
                    Stop::NoRoom(generation) => {
                        let subject = rest[0].subject;
                        let crowded = self.key(subject).is_some_and(|key| {
                            self.tables().current.table.is_crowded_by_itself(key)
                        });
                        if grown.0 != Some(subject) {
                            grown = (Some(subject), 0);
                        }
                        if crowded || grown.1 == GROWTHS {
                            return Err(Error::Crowded(subject));
                        }
                        // Larger ones that others have made meanwhile cost nothing.
                        grown.1 += usize::from(self.grow_from(generation)?);
                    }
                    Stop::NoNumber => {
                        if self.free_policies(&mut self.maintenance.lock()) == 0 {
                            return Err(Error::Policies(MAX_POLICIES as usize - 1));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Lifts what these entries replace under their policies' other action.
    fn lift_opposites(&self, entries: &[Entry], done: &mut InsertSummary) -> Result<(), Error> {
        for same in entries.chunk_by(|a, b| a.policy == b.policy) {
            if self.policies.opposite_action(&same[0].policy).is_none() {
                continue;
            }
            // Again under the lock, under which a number keeps its meaning.
            let maintenance = self.maintenance.lock();
            let Some(opposite) = self.policies.opposite_action(&same[0].policy) else {
                continue;
            };
            for entry in same {
                let replaced = match self.key(entry.subject) {
                    Some(key) => self
                        .lift(&maintenance, key, |policy| policy == opposite)
                        .len(),
                    None => {
                        let prefix = entry.subject.prefix();
                        self.lift_prefix_ban(prefix, |policy| policy == opposite)?
                            .len()
                    }
                };
                // With a replaced one of its own, it was not counted as new.
                let replaced = replaced.min(done.new);
                done.new -= replaced;
                done.replaced += replaced;
            }
        }
        Ok(())
    }

    /// Makes room at the cap for a ban of this producer; returns whom it evicted
    /// for it, if that was necessary.
    fn make_room(&self, producer: &BanSource, max_bans: usize) -> Result<Option<Entry>, Error> {
        let mut maintenance = self.maintenance.lock();
        if self.tables().current.table.filled().sum() < max_bans {
            return Ok(None); // somebody else has made room
        }
        let is_recent = |at: Instant| at.elapsed() < EXPIRE_AFTER;
        if !maintenance.expired.is_some_and(is_recent) && self.expire(&mut maintenance) > 0 {
            return Ok(None);
        }
        match self.evict(&mut maintenance, producer, max_bans) {
            Err(Error::Full(_)) if self.expire(&mut maintenance) > 0 => Ok(None),
            outcome => outcome,
        }
    }

    /// Lifts what is over in all tables; how many in the current one. Where
    /// nothing can be over, nothing is read.
    fn expire(&self, maintenance: &mut Maintenance<'_>) -> usize {
        let now = self.clock.now();
        if !self.next_expiry.is_due(now) {
            return 0;
        }
        maintenance.expired = Some(Instant::now());
        WorkCounts::count(&self.work.expiry_passes);
        let tables = self.tables();
        if let Some(next) = &tables.next {
            next.generation.table.expire(now);
        }
        let gone = self.next_expiry.after(|| tables.current.table.expire(now));
        self.note_left(gone);
        gone
    }

    fn evict(
        &self,
        maintenance: &mut Maintenance<'_>,
        producer: &BanSource,
        max_bans: usize,
    ) -> Result<Option<Entry>, Error> {
        if *producer == BanSource::Manual {
            return Err(Error::Full(max_bans));
        }
        let numbers = self.policies.numbers(|p| p.producer == *producer);
        let victim =
            maintenance
                .eviction
                .next(producer, &numbers, max_bans, &self.tables().current.table);
        let slot = victim.ok_or(Error::Full(max_bans))?;
        self.lift(maintenance, slot.key, |policy| policy == slot.policy);
        if slot.expiry <= self.clock.now() {
            return Ok(None); // it was over
        }
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.entry(slot).map(Some).ok_or(Error::Full(max_bans))
    }

    pub(super) fn lift(
        &self,
        _: &Maintenance<'_>,
        key: Key,
        which: impl Fn(u16) -> bool,
    ) -> Vec<Slot> {
        let tables = self.tables();
        if let Some(next) = &tables.next {
            next.generation.table.remove(key, &which);
        }
        let lifted = tables.current.table.remove(key, &which);
        self.note_left(lifted.len());
        lifted
    }
}

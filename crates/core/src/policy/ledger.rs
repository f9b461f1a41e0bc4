//! Counts findings per subject and says when a jail bans. Sharded by subject,
//! so that several workers count at once; each shard is bounded, as is the
//! text kept as evidence. Time comes in with each call.
//!
//! Rules: a failure counts for `find_time`, by its own time, never later than
//! now. The ban comes with the failure that makes `max_retry`; the count of
//! that subject then starts anew, with failures that are later than the ban. A
//! clock that is set back loses nothing: what was counted at a time that is now
//! in the future counts as of now. Subjects whose last failure no longer counts
//! are forgotten.
//!
//! For the database, the ledger knows what has changed since it was last asked:
//! a subject that changes becomes the newest of its map, so that the changed
//! ones are the first of [`Lru::newest_first`], and nothing is kept beside it.

mod admission;
mod books;
mod evidence;

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use admission::Accusation;
use admission::{Case, counted_as};
use books::Books;
use evidence::{Entry, Evidence, Moment};

use super::{
    BanTime, Jail, JailLimits, Offence, format_duration, lru::Hashed, offences::PastOffences,
};
use crate::{Ban, BanSource, BanTarget, Prefix, Until};

const SHARDS: usize = 16;

/// The ledger's answer to a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome {
    /// The finding does not count, for this reason.
    Ignored(Ignored),
    /// The finding happened longer than `find_time` ago.
    TooOld,
    /// The finding counts, and is not enough for a ban.
    Counted {
        /// Failures of this subject within `find_time`.
        failures: u32,
        /// The number of failures that make a ban.
        of: u32,
    },
    /// The finding was the last one that a ban takes; this is the ban.
    Ban(Ban),
}

/// Why a finding does not count.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ignored {
    /// The jail's ignore list holds the address, by this entry.
    Listed(Prefix),
    /// The address can never be banned, with the reason.
    Unbannable(String),
    /// The finding happened before the subject's last ban by this jail: a late line.
    BeforeBan,
    /// The finding names a host, and this ledger counts addresses.
    HostName,
    /// There is no jail of this number.
    NoSuchJail,
}

/// One counted failure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The time of the failure, by the record.
    pub time: Timestamp,
    /// The number of attempts at once.
    pub attempts: u32,
    /// The line, as far as it is still kept.
    pub line: String,
}

/// A subject that is counted but not banned. Without failures: one that no
/// longer is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tracked {
    /// The jail's name.
    pub jail: String,
    /// The addresses whose failures these are.
    pub subject: BanTarget,
    /// The subject's failures, oldest first.
    pub failures: Vec<Failure>,
}

/// A jail's counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct JailStats {
    /// Subjects counted now.
    pub tracked: usize,
    /// Attempts that were counted.
    pub failures: u64,
    /// Bans that were decided.
    pub bans: u64,
    /// Findings that did not count.
    pub ignored: u64,
    /// Findings older than `find_time`.
    pub too_old: u64,
    /// Subjects forgotten because `max_tracked` was reached.
    pub evicted: u64,
}

/// Findings and past bans of all jails. Shared between threads as it is.
#[derive(Debug)]
pub struct Ledger {
    jails: Vec<Jail>,
    counters: Vec<Counters>,
    shards: Vec<Mutex<Shard>>,
    hash: RandomState,
    shared: RwLock<SharedNetworks>,
}

/// IPv6 addresses whose networks others share who are to be counted apart.
#[derive(Debug, Default)]
struct SharedNetworks {
    /// Addresses of this host.
    own: Vec<Ipv6Addr>,
    /// Those of hosts that a jail ignores by name, by the jail's number.
    named: Vec<Vec<Ipv6Addr>>,
}

#[derive(Debug, Default)]
struct Counters {
    failures: AtomicU64,
    bans: AtomicU64,
    ignored: AtomicU64,
    too_old: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    /// The books of each jail, by the jail's number.
    jails: Vec<Books>,
    evidence: Evidence,
}

fn ipv6(addrs: &[IpAddr]) -> Vec<Ipv6Addr> {
    let ipv6 = addrs.iter().filter_map(|addr| match addr {
        IpAddr::V4(_) => None,
        IpAddr::V6(addr) => Some(*addr),
    });
    ipv6.collect()
}

impl SharedNetworks {
    /// The addresses that count for this jail.
    fn of(&self, jail: usize) -> [&[Ipv6Addr]; 2] {
        [&self.own, self.named.get(jail).map_or(&[], Vec::as_slice)]
    }
}

impl Ledger {
    /// An empty ledger; a jail's number is its place in `jails`.
    pub fn new(jails: Vec<Jail>) -> Self {
        let shard = |n: usize| Shard {
            jails: jails
                .iter()
                .map(|jail| {
                    let max = jail.limits.max_tracked;
                    Books::new(max / SHARDS + usize::from(n < max % SHARDS))
                })
                .collect(),
            evidence: Evidence::default(),
        };
        Self {
            counters: jails.iter().map(|_| Counters::default()).collect(),
            shards: (0..SHARDS).map(|n| Mutex::new(shard(n))).collect(),
            hash: RandomState::new(),
            shared: RwLock::default(),
            jails,
        }
    }

    /// The addresses of this host: with whom it shares a network by IPv6 is
    /// counted by his own address, whatever a jail's length, or one of them would
    /// have all of them banned. To be told before stored counts are restored.
    pub fn set_own(&self, own: &[IpAddr]) {
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        shared.own = ipv6(own);
    }

    /// The addresses of hosts that each jail, by its name, ignores by name: whom the jail
    /// counts with them in one network is counted by his own address there.
    pub fn set_named(&self, named: &HashMap<String, Vec<IpAddr>>) {
        let of = |jail: &Jail| {
            named
                .get(&jail.name)
                .map_or(Vec::new(), |addrs| ipv6(addrs))
        };
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        shared.named = self.jails.iter().map(of).collect();
    }

    fn shared(&self) -> RwLockReadGuard<'_, SharedNetworks> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jails, by number.
    pub fn jails(&self) -> &[Jail] {
        &self.jails
    }

    /// The number of the jail of this name.
    pub fn jail(&self, name: &str) -> Option<usize> {
        self.jails.iter().position(|jail| jail.name == name)
    }

    #[inline]
    fn judge(&self, shard: &mut Shard, case: &Case<'_>, now: Timestamp) -> Outcome {
        let jail = &self.jails[case.jail];
        let limits = &jail.limits;
        let (key, moment) = (case.key, Moment::from(now));
        let Shard { jails, evidence } = shard;
        let books = &mut jails[case.jail];
        if let Some(last) = books.past.get(key).and_then(|past| past.last.as_mut()) {
            *last = (*last).min(now);
            if case.time <= Moment::from(*last) {
                if let Some(counted) = books.tracked.get(key) {
                    counted.age_from(moment);
                }
                return Outcome::Ignored(Ignored::BeforeBan);
            }
        }
        let (counted, evicted) = books.touch(key);
        if evicted {
            self.counters[case.jail].evicted.fetch_add(1, Relaxed);
        }
        let entry = Entry::new(case.time, case.attempts.max(1), evidence.push(case.line));
        let failures = counted.add(entry, case.oldest, moment);
        if failures < limits.max_retry {
            return Outcome::Counted {
                failures,
                of: limits.max_retry,
            };
        }
        let entries = books.remove(key).expect("touched above");
        let elsewhere = match limits.counts_all_jails {
            false => 0,
            true => self.offences_elsewhere(jails, case.jail, key),
        };
        let books = &mut jails[case.jail];
        let past = books.past.touch(key).0;
        let chance = self.hash.hash_one((key.hash, now.as_nanosecond()));
        let ban = Ban {
            subject: key.subject,
            scope: jail.scope.clone(),
            producer: BanSource::of_ledger_name(&jail.name),
            action: jail.action,
            reason: reason(failures, &entries),
            since: now,
            until: until(limits, past.offences.saturating_add(elsewhere), now, chance),
            evidence: entries.iter().map(|e| evidence.line(e)).collect(),
        };
        past.offences = past.offences.saturating_add(1);
        past.last = Some(now);
        Outcome::Ban(ban)
    }

    /// Past bans of a subject by other jails than this one, as far as they share its shard:
    /// all do that track as many subjects as there are shards.
    fn offences_elsewhere(&self, jails: &mut [Books], jail: usize, key: Hashed) -> u32 {
        let shard = self.shard_of(jail, key);
        let mut offences = 0u32;
        for (number, books) in jails.iter_mut().enumerate() {
            if number != jail
                && self.shard_of(number, key) == shard
                && let Some(past) = books.past.get(key)
            {
                offences = offences.saturating_add(past.offences);
            }
        }
        offences
    }

    /// Forgets the counted failures of a subject in all jails: it was
    /// unbanned or allowed. Past bans stay.
    pub fn forgive(&self, subject: BanTarget) {
        for number in 0..self.jails.len() {
            let key = self.key(subject);
            self.shard(number, key).jails[number].remove(key);
        }
    }

    /// A jail's counters.
    pub fn stats(&self, jail: usize) -> Option<JailStats> {
        let counters = self.counters.get(jail)?;
        Some(JailStats {
            tracked: self
                .shards
                .iter()
                .map(|s| lock(s).jails[jail].tracked.len())
                .sum(),
            failures: counters.failures.load(Relaxed),
            bans: counters.bans.load(Relaxed),
            ignored: counters.ignored.load(Relaxed),
            too_old: counters.too_old.load(Relaxed),
            evicted: counters.evicted.load(Relaxed),
        })
    }

    /// What is counted at `now`, to be restored after a restart.
    pub fn snapshot(&self, now: Timestamp) -> Vec<Tracked> {
        let mut all = vec![];
        for shard in &self.shards {
            let shard = lock(shard);
            for (jail, books) in self.jails.iter().zip(&shard.jails) {
                let oldest = Moment::from(before(now, jail.limits.find_time));
                all.extend(books.tracked.iter().filter_map(|(subject, counted)| {
                    let entries = counted.entries().iter();
                    let entries = entries.filter(|e| e.moment() >= oldest);
                    let failures = shard.evidence.failures(entries);
                    (!failures.is_empty()).then(|| Tracked {
                        jail: jail.name.clone(),
                        subject,
                        failures,
                    })
                }));
            }
        }
        all
    }

    /// The subjects of these jails that have changed since this was last
    /// called: for the database, together with how far the lines were read
    /// that changed them; or `all` of them. One thread at a time may ask for a
    /// jail.
    pub fn take_changes(&self, jails: &[usize], all: bool) -> Vec<Tracked> {
        let mut changes = vec![];
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard {
                jails: books,
                evidence,
            } = &mut *shard;
            for number in jails {
                let (Some(jail), Some(books)) = (self.jails.get(*number), books.get_mut(*number))
                else {
                    continue;
                };
                let Books {
                    tracked,
                    turn,
                    gone,
                    ..
                } = books;
                tracked.newest_first(|subject, counted| {
                    if counted.changed != *turn && !all {
                        return false;
                    }
                    counted.saved = true;
                    changes.push(Tracked {
                        jail: jail.name.clone(),
                        subject,
                        failures: evidence.failures(counted.entries().iter()),
                    });
                    true
                });
                *turn = turn.wrapping_add(1);
                for subject in gone.drain(..) {
                    if tracked.get(self.key(subject)).is_none() {
                        changes.push(Tracked {
                            jail: jail.name.clone(),
                            subject,
                            failures: vec![],
                        });
                    }
                }
            }
        }
        changes
    }

    /// Forgets the subjects whose failures no longer count.
    pub fn forget_expired(&self, now: Timestamp) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            for (jail, books) in self.jails.iter().zip(&mut shard.jails) {
                let oldest = before(now, jail.limits.find_time);
                books.forget_expired(oldest.into(), now.into());
            }
        }
    }

    /// Takes counts that an earlier run stored, past bans being there already
    /// ([`Ledger::restore_history`]): what happened before a subject's last ban
    /// has had its effect. Left out are unknown jails and subjects that the jail
    /// no longer counts by; what reaches `max_retry` by now lower limits counts
    /// as one less, the next failure bans. Returns how many subjects are counted
    /// from it.
    pub fn restore(&self, tracked: impl IntoIterator<Item = Tracked>, now: Timestamp) -> usize {
        self.take_in(tracked, now, false)
    }

    /// Takes counts and past bans of the ledger of another configuration.
    pub fn take_over(&self, other: &Self, now: Timestamp) {
        let theirs = other.shared();
        let named = |jail: &Jail| {
            let number = other.jail(&jail.name)?;
            theirs.named.get(number).cloned()
        };
        let shared = SharedNetworks {
            own: theirs.own.clone(),
            named: self
                .jails
                .iter()
                .map(|jail| named(jail).unwrap_or_default())
                .collect(),
        };
        drop(theirs);
        *self.shared.write().unwrap_or_else(PoisonError::into_inner) = shared;
        self.restore_history(other.history());
        self.take_in(other.snapshot(now), now, true);
    }

    fn take_in(
        &self,
        tracked: impl IntoIterator<Item = Tracked>,
        now: Timestamp,
        changed: bool,
    ) -> usize {
        let mut restored = 0;
        for Tracked {
            jail,
            subject,
            mut failures,
        } in tracked
        {
            let Some(number) = self.jail(&jail) else {
                continue;
            };
            let Jail {
                limits,
                ignore,
                names_prefixes,
                ..
            } = &self.jails[number];
            // Neighbours in the host's own networks are not counted by the jail's length.
            let counts_by = {
                let shared = self.shared();
                counted_as(subject.prefix().addr(), limits, ignore, &shared.of(number))
            };
            let is_counted = *names_prefixes || counts_by == Ok(subject);
            let key = self.key(subject);
            let mut shard = self.shard(number, key);
            let Shard { jails, evidence } = &mut *shard;
            let books = &mut jails[number];
            let banned = books.past.get(key).and_then(|past| past.last);
            let oldest = before(now, limits.find_time);
            failures.retain(|f| {
                is_counted && f.time >= oldest && banned.is_none_or(|last| f.time > last)
            });
            failures.sort_by_key(|f| f.time);
            let mut room = limits.max_retry - 1;
            let mut kept = vec![];
            for mut failure in failures.into_iter().rev() {
                failure.attempts = failure.attempts.max(1).min(room);
                if failure.attempts == 0 {
                    break;
                }
                room -= failure.attempts;
                kept.push(failure);
            }
            if kept.is_empty() {
                books.gone.push(subject);
                continue;
            }
            let (counted, evicted) = books.touch(key);
            if evicted {
                self.counters[number].evicted.fetch_add(1, Relaxed);
            }
            counted.set(
                kept.into_iter()
                    .rev()
                    .map(|failure| {
                        let at = evidence.push(failure.line.as_bytes());
                        Entry::new(failure.time.min(now).into(), failure.attempts, at)
                    })
                    .collect(),
            );
            let turn = books.turn;
            if let Some(counted) = books.tracked.get(key) {
                counted.saved = true;
                counted.changed = turn.wrapping_sub(u32::from(!changed));
            }
            restored += 1;
        }
        restored
    }

    /// Past bans, for the database.
    pub fn history(&self) -> Vec<Offence> {
        let mut all = vec![];
        for shard in &self.shards {
            let shard = lock(shard);
            for (jail, books) in self.jails.iter().zip(&shard.jails) {
                all.extend(books.past.iter().filter_map(|(subject, past)| {
                    Some(Offence {
                        jail: jail.name.clone(),
                        subject,
                        offences: past.offences,
                        last: past.last?,
                    })
                }));
            }
        }
        all
    }

    /// A subject's past bans by a jail: how many, and when the last one was.
    pub fn offences(&self, jail: usize, subject: BanTarget) -> Option<(u32, Timestamp)> {
        self.jails.get(jail)?;
        let key = self.key(subject);
        let mut shard = self.shard(jail, key);
        let past = shard.jails[jail].past.get(key)?;
        Some((past.offences, past.last?))
    }

    /// Takes past bans from the database, the oldest first where they are more
    /// than `max_tracked`; unknown jails are left out. Returns how many it took.
    pub fn restore_history(&self, offences: impl IntoIterator<Item = Offence>) -> usize {
        let numbers: HashMap<&str, usize> = self
            .jails
            .iter()
            .enumerate()
            .map(|(i, jail)| (jail.name.as_str(), i))
            .collect();
        let mut restored = 0;
        for offence in offences {
            let Some(number) = numbers.get(offence.jail.as_str()).copied() else {
                continue;
            };
            let key = self.key(offence.subject);
            let mut shard = self.shard(number, key);
            *shard.jails[number].past.touch(key).0 = PastOffences {
                offences: offence.offences,
                last: Some(offence.last),
            };
            restored += 1;
        }
        restored
    }

    fn key(&self, subject: BanTarget) -> Hashed {
        let prefix = subject.prefix();
        let addr = match prefix.addr() {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        // In one piece: half of what the derived hash costs.
        let mut bytes = [prefix.bits(); 17];
        bytes[..16].copy_from_slice(&addr.octets());
        let mut hasher = self.hash.build_hasher();
        hasher.write(&bytes);
        Hashed {
            subject,
            hash: hasher.finish(),
        }
    }

    fn shard_of(&self, jail: usize, key: Hashed) -> usize {
        // A jail that tracks fewer subjects than there are shards uses as many.
        let shards = self.jails[jail].limits.max_tracked.clamp(1, SHARDS);
        // The maps use the lowest and the highest bits.
        (key.hash >> 32) as usize % shards
    }

    fn shard(&self, jail: usize, key: Hashed) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_of(jail, key)])
    }
}

/// A panic of another worker leaves counts that are still sound.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn before(now: Timestamp, time: Duration) -> Timestamp {
    SignedDuration::try_from(time)
        .ok()
        .and_then(|time| now.checked_sub(time).ok())
        .unwrap_or(Timestamp::MIN)
}

/// `chance` is any number.
fn until(limits: &JailLimits, offences: u32, now: Timestamp, chance: u64) -> Until {
    let row = limits.ban_times.get(offences as usize);
    let row = row.or(limits.ban_times.last());
    let BanTime::For(time) = *row.unwrap_or(&limits.ban_time) else {
        return Until::Never;
    };
    let time = match limits.increment {
        // `max` holds back increments, not the ban time itself.
        Some(increment) if offences > 0 && row.is_none() => {
            let seconds = time.as_secs_f64() * increment.factor.powi(offences.min(1000) as i32);
            Duration::try_from_secs_f64(seconds)
                .unwrap_or(increment.max)
                .min(increment.max)
                .max(time)
        }
        _ if offences > 0 && row.is_some() => {
            let part = chance as f64 / u64::MAX as f64;
            time.saturating_add(limits.random_time.mul_f64(part.min(1.0)))
        }
        _ => time,
    };
    Until::At(
        SignedDuration::try_from(time)
            .ok()
            .and_then(|time| now.checked_add(time).ok())
            .unwrap_or(Timestamp::MAX),
    )
}

fn reason(failures: u32, entries: &[Entry]) -> String {
    let span = match (entries.first(), entries.last()) {
        (Some(first), Some(last)) => last.time().duration_since(first.time()).unsigned_abs(),
        _ => Duration::ZERO,
    };
    let plural = if failures == 1 { "" } else { "s" };
    if span.as_secs() == 0 {
        format!("{failures} failure{plural} within a second")
    } else {
        format!("{failures} failure{plural} in {}", format_duration(span))
    }
}

#[cfg(test)]
mod tests;

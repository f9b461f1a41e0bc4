//! When bans end by themselves. The kernel sees to it that they do; here it is
//! only known when, so that whoever was told of a ban is told of its end, by
//! `follow_expiries` in `bans`. One entry for each ban in force that has an end:
//! 12 bytes for IPv4, 24 for IPv6, in a hash table that doubles; not more than there
//! are bans.
//!
//! Nothing is asked of the kernel. An end is told up to a second late, and never
//! before the kernel's own, which is a few milliseconds behind the clock.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use weir_core::{BanSource, BanTarget, PortSet, Prefix};
use weir_enforce::{BootNanos, Entry, Expiry, Policy};

/// Since boot, in tenths of a second: enough for 13 years.
type Tenths = u32;
const TENTH: u64 = 100_000_000;
/// As far as the kernel's end may lie behind the clock's.
const GRACE: Tenths = 1;
/// A table with room for less is left as it is.
const SMALL: usize = 4096;

/// A ban that has ended by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredBan {
    /// The address or network that was banned.
    pub subject: BanTarget,
    /// The producer, ports and action of the ban.
    pub policy: Arc<Policy>,
}

/// The ends of all bans in force.
#[derive(Default)]
pub struct Expiries(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Bans that ended before anybody asked.
    over: Vec<ExpiredBan>,
    v4: HashMap<Key<[u8; 4]>, Tenths>,
    v6: HashMap<Key<[u8; 16]>, Tenths>,
    policies: Policies,
    /// The earliest end: no ban ends before.
    next: Tenths,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key<A> {
    addr: A,
    policy: u16,
    bits: u8,
}

/// Numbers for policies while some ban has them. A ban with the other action is
/// the same one: producer and ports name it.
#[derive(Default)]
struct Policies {
    numbers: HashMap<(BanSource, PortSet), u16>,
    used: Vec<Option<(Arc<Policy>, usize)>>,
}

impl Policies {
    fn find(&self, policy: &Policy) -> Option<u16> {
        let name = (policy.producer.clone(), policy.scope.clone());
        self.numbers.get(&name).copied()
    }

    /// The number of a policy that one ban more has; `None` when there is none
    /// left, which the kernel's table of policies does not let happen.
    fn take(&mut self, policy: &Arc<Policy>) -> Option<u16> {
        if let Some(number) = self.find(policy) {
            let (known, users) = self.used[usize::from(number)].as_mut()?;
            known.clone_from(policy);
            *users += 1;
            return Some(number);
        }
        let free = self.used.iter().position(Option::is_none);
        let at = free.unwrap_or(self.used.len());
        let number = u16::try_from(at).ok()?;
        if at == self.used.len() {
            self.used.push(None);
        }
        self.used[at] = Some((policy.clone(), 1));
        let name = (policy.producer.clone(), policy.scope.clone());
        self.numbers.insert(name, number);
        Some(number)
    }

    /// Releases one ban's hold on a policy; returns the policy of that number.
    fn give_back(&mut self, number: u16) -> Option<Arc<Policy>> {
        let place = self.used.get_mut(usize::from(number))?;
        let (policy, users) = place.as_mut()?;
        let policy = policy.clone();
        *users -= 1;
        if *users == 0 {
            *place = None;
            let name = (policy.producer.clone(), policy.scope.clone());
            self.numbers.remove(&name);
        }
        Some(policy)
    }
}

impl Inner {
    fn set(&mut self, subject: BanTarget, number: u16, end: Tenths) -> Option<Tenths> {
        let bits = subject.prefix().bits();
        match subject.prefix().addr() {
            IpAddr::V4(addr) => self.v4.insert(key(addr.octets(), number, bits), end),
            IpAddr::V6(addr) => self.v6.insert(key(addr.octets(), number, bits), end),
        }
    }

    fn end_of(&self, subject: BanTarget, policy: &Policy) -> Option<Tenths> {
        let number = self.policies.find(policy)?;
        let bits = subject.prefix().bits();
        match subject.prefix().addr() {
            IpAddr::V4(addr) => self.v4.get(&key(addr.octets(), number, bits)),
            IpAddr::V6(addr) => self.v6.get(&key(addr.octets(), number, bits)),
        }
        .copied()
    }

    fn unset(&mut self, subject: BanTarget, policy: &Policy) -> Option<Tenths> {
        let number = self.policies.find(policy)?;
        let bits = subject.prefix().bits();
        let end = match subject.prefix().addr() {
            IpAddr::V4(addr) => self.v4.remove(&key(addr.octets(), number, bits)),
            IpAddr::V6(addr) => self.v6.remove(&key(addr.octets(), number, bits)),
        }?;
        self.policies.give_back(number);
        Some(end)
    }

    fn put(&mut self, entry: &Entry, now: Tenths) -> Option<ExpiredBan> {
        let before = self.unset(entry.subject, &entry.policy);
        if let Expiry::At(end) = entry.expiry
            && let Some(number) = self.policies.take(&entry.policy)
        {
            let end = tenths(end).saturating_add(GRACE + 1);
            self.set(entry.subject, number, end);
            self.next = self.next.min(end);
        }
        before.filter(|end| *end <= now).map(|_| ExpiredBan {
            subject: entry.subject,
            policy: entry.policy.clone(),
        })
    }
}

fn key<A>(addr: A, policy: u16, bits: u8) -> Key<A> {
    Key { addr, policy, bits }
}

fn tenths(time: BootNanos) -> Tenths {
    Tenths::try_from(time.0 / TENTH).unwrap_or(Tenths::MAX)
}

/// Takes out what has ended; the earliest end of the rest is noted.
fn ended<A: Hash + Eq + Copy + Into<IpAddr>>(
    table: &mut HashMap<Key<A>, Tenths>,
    now: Tenths,
    next: &mut Tenths,
    all: &mut Vec<(IpAddr, u8, u16)>,
) {
    table.retain(|key, end| {
        if *end <= now {
            all.push((key.addr.into(), key.bits, key.policy));
            return false;
        }
        *next = (*next).min(*end);
        true
    });
    if table.capacity() > SMALL && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2);
    }
}

impl Expiries {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Has these ends instead of those that it has.
    pub fn replace(&self, ends: Expiries) {
        *self.lock() = ends.0.into_inner().expect("no holder of this lock panics");
    }

    /// Bans that ended while no daemon ran.
    pub fn add_over(&self, over: impl IntoIterator<Item = ExpiredBan>) {
        let mut inner = self.lock();
        inner.over.extend(over);
    }

    /// Bans that are in force from now on. Returns those that had ended before
    /// and were not told: of the same name as a new one.
    pub fn put<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a Entry>,
        now: BootNanos,
    ) -> Vec<ExpiredBan> {
        let now = tenths(now);
        let mut inner = self.lock();
        let entries = entries.into_iter();
        entries.filter_map(|e| inner.put(e, now)).collect()
    }

    /// Is a ban of this name in force that has an end? Then another one only prolongs it.
    pub fn is_in_force(&self, entry: &Entry, now: BootNanos) -> bool {
        let end = self.lock().end_of(entry.subject, &entry.policy);
        // The kernel's end, without what is waited before it is told.
        end.is_some_and(|end| end.saturating_sub(GRACE + 1) > tenths(now))
    }

    /// Bans that were lifted or evicted: told already.
    pub fn remove<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) {
        let mut inner = self.lock();
        for entry in entries {
            inner.unset(entry.subject, &entry.policy);
        }
    }

    /// The bans that have ended since this was last asked.
    pub fn take_ended(&self, now: BootNanos) -> Vec<ExpiredBan> {
        let now = tenths(now);
        let mut inner = self.lock();
        let Inner {
            v4,
            v6,
            policies,
            next,
            over,
        } = &mut *inner;
        let mut told = std::mem::take(over);
        if now < *next {
            return told;
        }
        let mut all = Vec::new();
        *next = Tenths::MAX;
        ended(v4, now, next, &mut all);
        ended(v6, now, next, &mut all);
        told.extend(all.into_iter().filter_map(|(addr, bits, number)| {
            let policy = policies.give_back(number)?;
            let subject = BanTarget::new(Prefix::new(addr, bits)?).ok()?;
            Some(ExpiredBan { subject, policy })
        }));
        told
    }

    /// Bytes that the tables take.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let inner = self.lock();
        // One byte more for each place: hashbrown's control bytes.
        let table = |capacity: usize, entry: usize| (capacity * 8 / 7).next_power_of_two() * entry;
        table(inner.v4.capacity(), 1 + size_of::<(Key<[u8; 4]>, Tenths)>())
            + table(
                inner.v6.capacity(),
                1 + size_of::<(Key<[u8; 16]>, Tenths)>(),
            )
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use weir_core::Action;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(second: u64) -> BootNanos {
        BootNanos(second * SECOND)
    }

    fn ban(subject: &str, jail: &str, end: Option<u64>) -> Entry {
        Entry {
            subject: subject.parse().unwrap(),
            policy: Arc::new(Policy {
                producer: BanSource::Jail(jail.into()),
                scope: PortSet::all(),
                action: Action::Drop,
            }),
            expiry: end.map_or(Expiry::Never, |end| Expiry::At(at(end))),
        }
    }

    fn told(expiries: &Expiries, now: u64) -> Vec<String> {
        let mut told: Vec<_> = expiries
            .take_ended(at(now))
            .into_iter()
            .map(|ended| format!("{} {}", ended.subject, ended.policy.producer))
            .collect();
        told.sort();
        told
    }

    #[test]
    fn each_end_is_told_once() {
        let expiries = Expiries::default();
        let bans = [
            ban("192.0.2.7", "a", Some(10)),
            ban("192.0.2.7", "b", Some(20)),
            ban("2001:db8::/64", "a", Some(10)),
            ban("192.0.2.0/24", "a", Some(10)),
            ban("192.0.2.8", "a", None),
        ];
        assert_eq!(expiries.put(&bans, at(0)), []);
        assert_eq!(
            told(&expiries, 10),
            [""; 0],
            "the kernel may be a moment behind"
        );
        assert_eq!(
            told(&expiries, 11),
            [
                "192.0.2.0/24 jail:a",
                "192.0.2.7 jail:a",
                "2001:db8::/64 jail:a"
            ]
        );
        assert_eq!(told(&expiries, 12), [""; 0]);
        assert_eq!(told(&expiries, 9999), ["192.0.2.7 jail:b"]);
        assert!(expiries.lock().policies.numbers.is_empty());
    }

    #[test]
    fn what_was_lifted_or_made_longer_does_not_end() {
        let expiries = Expiries::default();
        let bans = [
            ban("192.0.2.7", "a", Some(10)),
            ban("192.0.2.8", "a", Some(10)),
        ];
        expiries.put(&bans, at(0));
        assert!(bans.iter().all(|ban| expiries.is_in_force(ban, at(9))));
        assert!(!expiries.is_in_force(&bans[0], at(12)));
        assert!(!expiries.is_in_force(&ban("192.0.2.7", "b", None), at(9)));
        expiries.remove(&bans[..1]);
        assert!(!expiries.is_in_force(&bans[0], at(9)));
        expiries.remove(&bans[..1]);
        assert_eq!(expiries.put([&ban("192.0.2.8", "a", Some(30))], at(9)), []);
        assert_eq!(told(&expiries, 20), [""; 0]);
        assert_eq!(told(&expiries, 31), ["192.0.2.8 jail:a"]);
        // For good, and with the other action.
        expiries.put([&ban("192.0.2.8", "a", Some(40))], at(31));
        expiries.put([&ban("192.0.2.8", "a", None)], at(32));
        assert_eq!(told(&expiries, 50), [""; 0]);
        let dropped = ban("192.0.2.9", "a", Some(60));
        let rejected = Entry {
            policy: Arc::new(dropped.policy.with_opposite_action()),
            ..dropped.clone()
        };
        expiries.put([&dropped, &rejected], at(50));
        assert_eq!(told(&expiries, 61), ["192.0.2.9 jail:a"]);
    }

    #[test]
    fn a_ban_that_comes_right_behind_the_end_of_another_tells_of_it() {
        let expiries = Expiries::default();
        let first = ban("192.0.2.7", "a", Some(10));
        expiries.put([&first], at(0));
        let ended = expiries.put([&ban("192.0.2.7", "a", Some(21))], at(11));
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].subject, first.subject);
        assert_eq!(told(&expiries, 11), [""; 0]);
        assert_eq!(told(&expiries, 22).len(), 1);
    }

    /// Memory of a million ends, within the bounds of docs/guide/ban-and-unban.md.
    #[test]
    fn a_million_ends_take_a_bounded_memory() {
        for (v6, most) in [(false, 28 << 20), (true, 54 << 20)] {
            let expiries = Expiries::default();
            let policy = ban("192.0.2.7", "a", None).policy;
            let million = (0..1_000_000u32).map(|n| {
                let addr = match v6 {
                    false => Ipv4Addr::from_bits(0x0b00_0000 + n).into(),
                    true => Ipv6Addr::from_bits((0x2a00 << 112) | u128::from(n) << 64).into(),
                };
                let prefix = Prefix::new(addr, if v6 { 64 } else { 32 }).unwrap();
                Entry {
                    subject: BanTarget::new(prefix).unwrap(),
                    policy: policy.clone(),
                    expiry: Expiry::At(at(u64::from(n % 100))),
                }
            });
            for entry in million {
                expiries.put([&entry], at(0));
            }
            assert!(expiries.bytes() <= most, "{} bytes", expiries.bytes());
            assert_eq!(expiries.take_ended(at(200)).len(), 1_000_000);
            assert!(expiries.bytes() < 1 << 20, "{} bytes", expiries.bytes());
        }
    }
}

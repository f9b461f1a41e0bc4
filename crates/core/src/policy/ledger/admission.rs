//! How findings come to be counted: which of them may count at all, for whom, and
//! in which order a batch of them is judged. What is counted, and what becomes of it,
//! is the ledger's.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::atomic::Ordering::Relaxed,
};

use jiff::Timestamp;

use super::{
    Ignored, Ledger, Outcome, SHARDS, Shard, SharedNetworks, before, evidence::Moment, lock,
};
use crate::{
    BanTarget, Prefix, PrefixSet,
    detect::{Finding, Offender},
    policy::{Jail, JailLimits, lru::Hashed},
};

/// What a jail counts of a finding, of whom, and where it was read.
#[derive(Clone, Copy, Debug)]
pub struct Accusation<'a> {
    /// The jail's number.
    pub jail: usize,
    /// The address, prefix or host name that failed.
    pub offender: &'a Offender,
    /// The time of the failure, by the record.
    pub time: Timestamp,
    /// The number of attempts at once.
    pub attempts: u32,
    /// The line; kept as evidence.
    pub line: &'a [u8],
}

/// An accusation that may count.
pub(super) struct Case<'a> {
    pub jail: usize,
    pub key: Hashed,
    shard: usize,
    /// The time of the failure, not later than now.
    pub time: Moment,
    pub attempts: u32,
    pub line: &'a [u8],
    /// Since when failures count for the jail.
    pub oldest: Moment,
}

/// The reason why an accusation cannot count.
enum Dismissal {
    Ignored(Ignored),
    TooOld,
}

impl From<Ignored> for Dismissal {
    fn from(why: Ignored) -> Self {
        Self::Ignored(why)
    }
}

impl From<Dismissal> for Outcome {
    fn from(why: Dismissal) -> Self {
        match why {
            Dismissal::Ignored(why) => Self::Ignored(why),
            Dismissal::TooOld => Self::TooOld,
        }
    }
}

/// Now, and since when failures count for the jail that was asked about last:
/// making that costs more than looking at a failure does.
struct FindTimes {
    time: Timestamp,
    now: Moment,
    last: Option<(usize, Moment)>,
}

/// The sums that a jail's counters grow by.
#[derive(Default)]
struct Sums {
    failures: u64,
    bans: u64,
    ignored: u64,
    too_old: u64,
}

impl Ledger {
    /// Counts a finding of a jail. `line` is where it was read, kept as evidence.
    pub fn record(&self, jail: usize, finding: &Finding, line: &[u8], now: Timestamp) -> Outcome {
        let accusation = Accusation::new(jail, finding, line);
        let shared = self.shared();
        let case = self.admit(&accusation, &shared, &mut FindTimes::new(now));
        drop(shared);
        self.decide(jail, case, accusation.attempts, now)
    }

    /// Counts one failure, now, of a prefix that somebody named: an address by
    /// the jail's IPv6 length, anything wider as it is.
    pub fn record_prefix(
        &self,
        jail: usize,
        prefix: Prefix,
        line: &[u8],
        now: Timestamp,
    ) -> Outcome {
        let offender = Offender::Prefix(prefix);
        let accusation = Accusation {
            jail,
            offender: &offender,
            time: now,
            attempts: 1,
            line,
        };
        let shared = self.shared();
        let case = self.admit(&accusation, &shared, &mut FindTimes::new(now));
        drop(shared);
        self.decide(jail, case, 1, now)
    }

    fn decide(
        &self,
        jail: usize,
        case: Result<Case<'_>, Dismissal>,
        attempts: u32,
        now: Timestamp,
    ) -> Outcome {
        let outcome = match case {
            Ok(case) => self.judge(&mut lock(&self.shards[case.shard]), &case, now),
            Err(why) => why.into(),
        };
        let mut sums = Sums::default();
        sums.add(&outcome, attempts);
        self.account(jail, sums);
        outcome
    }

    /// Counts findings as [`Ledger::record`] does one after the other; the outcomes
    /// are in their order. Each shard is locked once, and what its findings need is
    /// fetched from memory side by side: with many subjects, waiting for memory is
    /// most of what counting costs.
    pub fn record_batch(&self, accusations: &[Accusation<'_>], now: Timestamp) -> Vec<Outcome> {
        let mut cases = Vec::with_capacity(accusations.len());
        let mut outcomes = Vec::with_capacity(accusations.len());
        // Cases of each shard.
        let mut counts = [0; SHARDS];
        let shared = self.shared();
        let mut find_times = FindTimes::new(now);
        for (number, accusation) in accusations.iter().enumerate() {
            match self.admit(accusation, &shared, &mut find_times) {
                Ok(case) => {
                    counts[case.shard] += 1;
                    cases.push((number, case));
                    // Until it is judged.
                    outcomes.push(Outcome::TooOld);
                }
                Err(why) => outcomes.push(why.into()),
            }
        }
        drop(shared);
        let mut sum = 0;
        let starts = counts.map(|count| {
            let start = sum;
            sum += count;
            start
        });
        let mut order = vec![0; cases.len()];
        let mut ends = starts;
        for (at, (_, case)) in cases.iter().enumerate() {
            order[ends[case.shard]] = at;
            ends[case.shard] += 1;
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let order = &order[starts[number]..ends[number]];
            if order.is_empty() {
                continue;
            }
            let mut shard = lock(shard);
            let fetched = order.iter().map(|at| shard.glance(&cases[*at].1));
            std::hint::black_box(fetched.fold(0, u64::wrapping_add));
            for at in order {
                let (number, case) = &cases[*at];
                outcomes[*number] = self.judge(&mut shard, case, now);
            }
        }
        self.account_all(accusations, &outcomes);
        outcomes
    }

    fn account_all(&self, accusations: &[Accusation<'_>], outcomes: &[Outcome]) {
        let mut all = accusations.iter().zip(outcomes).peekable();
        while let Some((first, outcome)) = all.next() {
            let mut sums = Sums::default();
            sums.add(outcome, first.attempts);
            while let Some((next, outcome)) = all.next_if(|(next, _)| next.jail == first.jail) {
                sums.add(outcome, next.attempts);
            }
            self.account(first.jail, sums);
        }
    }

    /// There may be no such jail.
    fn account(&self, jail: usize, sums: Sums) {
        let Some(counters) = self.counters.get(jail) else {
            return;
        };
        for (counter, sum) in [
            (&counters.failures, sums.failures),
            (&counters.bans, sums.bans),
            (&counters.ignored, sums.ignored),
            (&counters.too_old, sums.too_old),
        ] {
            if sum > 0 {
                counter.fetch_add(sum, Relaxed);
            }
        }
    }

    /// What does not depend on what is counted already.
    fn admit<'a>(
        &self,
        accusation: &Accusation<'a>,
        shared: &SharedNetworks,
        find_times: &mut FindTimes,
    ) -> Result<Case<'a>, Dismissal> {
        let Accusation {
            jail,
            offender,
            time,
            attempts,
            line,
        } = *accusation;
        let Some(Jail { ignore, limits, .. }) = self.jails.get(jail) else {
            return Err(Ignored::NoSuchJail.into());
        };
        let Some(prefix) = offender.prefix() else {
            return Err(Ignored::HostName.into());
        };
        if let Some(entry) = ignore.covering(prefix) {
            return Err(Ignored::Listed(entry).into());
        }
        // An address by the jail's IPv6 length, anything wider as it is.
        let subject = match prefix.is_host() {
            true => counted_as(prefix.addr(), limits, ignore, &shared.of(jail)),
            false => BanTarget::new(prefix).map_err(|error| error.to_string()),
        };
        match subject {
            Ok(subject) => self.case(jail, subject, (time, attempts), line, find_times),
            Err(why) => Err(Ignored::Unbannable(why).into()),
        }
    }

    fn case<'a>(
        &self,
        jail: usize,
        subject: BanTarget,
        (time, attempts): (Timestamp, u32),
        line: &'a [u8],
        find_times: &mut FindTimes,
    ) -> Result<Case<'a>, Dismissal> {
        let time = Moment::from(time).min(find_times.now);
        let oldest = find_times.oldest(jail, &self.jails[jail].limits);
        if time < oldest {
            return Err(Dismissal::TooOld);
        }
        let key = self.key(subject);
        Ok(Case {
            jail,
            key,
            shard: self.shard_of(jail, key),
            time,
            attempts,
            line,
            oldest,
        })
    }
}

impl Shard {
    /// Reads what judging a case will need of memory; the sum says nothing.
    fn glance(&self, case: &Case<'_>) -> u64 {
        let tracked = &self.jails[case.jail].tracked;
        let Some((counted, neighbours)) = tracked.glance(case.key) else {
            return 0;
        };
        let entries = counted.entries();
        let ends = [entries.first(), entries.last()];
        let ends = ends.into_iter().flatten().map(|entry| entry.attempts);
        ends.chain(neighbours).map(u64::from).sum()
    }
}

impl<'a> Accusation<'a> {
    /// The accusation that a finding makes.
    pub fn new(jail: usize, finding: &'a Finding, line: &'a [u8]) -> Self {
        Self {
            jail,
            offender: &finding.offender,
            time: finding.time,
            attempts: finding.attempts,
            line,
        }
    }
}

impl Sums {
    fn add(&mut self, outcome: &Outcome, attempts: u32) {
        match outcome {
            Outcome::Ignored(_) => self.ignored += 1,
            Outcome::TooOld => self.too_old += 1,
            Outcome::Counted { .. } => self.failures += u64::from(attempts),
            Outcome::Ban(_) => {
                self.bans += 1;
                self.failures += u64::from(attempts);
            }
        }
    }
}

impl FindTimes {
    fn new(time: Timestamp) -> Self {
        Self {
            time,
            now: time.into(),
            last: None,
        }
    }

    /// Since when failures count for a jail.
    fn oldest(&mut self, jail: usize, limits: &JailLimits) -> Moment {
        match self.last {
            Some((last, oldest)) if last == jail => oldest,
            _ => {
                let oldest = before(self.time, limits.find_time).into();
                self.last = Some((jail, oldest));
                oldest
            }
        }
    }
}

/// The address or network that a jail counts, and bans, for this address.
pub(super) fn counted_as(
    addr: IpAddr,
    limits: &JailLimits,
    ignore: &PrefixSet,
    shared: &[&[Ipv6Addr]],
) -> Result<BanTarget, String> {
    let host = Prefix::host(addr);
    let prefix = match host.addr() {
        IpAddr::V4(_) => host,
        IpAddr::V6(addr) if addr.is_unicast_link_local() => host,
        IpAddr::V6(_) => {
            let is_shared = |wide: &Prefix| {
                let mut shared = shared.iter().copied().flatten();
                shared.any(|addr| wide.contains((*addr).into())) || ignore.inside(*wide).is_some()
            };
            // With one /64 or more each, neighbours in something wider have
            // more than an address.
            [limits.ipv6_prefix, 64.max(limits.ipv6_prefix)]
                .into_iter()
                .filter_map(|length| Prefix::new(host.addr(), length))
                .find(|wide| !is_shared(wide))
                .unwrap_or(host)
        }
    };
    BanTarget::new(prefix).map_err(|error| error.to_string())
}

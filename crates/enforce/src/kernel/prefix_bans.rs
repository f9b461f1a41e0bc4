//! Bans of prefixes that the ban table has no form for: any but single
//! addresses, IPv6 /64 and the configured IPv4 length. They have a cap of their
//! own and make room among themselves. One lock, which only a holder of the tables
//! can take: what the packet path is told of the families never falls behind what
//! is in force.

use std::sync::atomic::Ordering;

use weir_bpf::{
    Key, PrefixBan, PrefixBanPlaced, PrefixBans,
    prefix_bans::{MAX_PREFIX_BANS, MAX_SHARED_PREFIX_BANS},
};
use weir_core::{BanSource, BanTarget, Prefix};

use super::{Kernel, tables::Tables};
use crate::{Entry, Error, InsertSummary};

impl Kernel {
    /// The ban table's form for a subject, if it has one.
    pub(super) fn key(&self, subject: BanTarget) -> Option<Key> {
        let prefix = subject.prefix();
        let fits =
            prefix.addr().is_ipv6() || prefix.is_host() || self.ipv4_length == Some(prefix.bits());
        Key::of(prefix).filter(|_| fits)
    }

    /// The number of prefix bans that are not manual.
    pub(super) fn shared_prefix_bans(&self, prefix_bans: &PrefixBans) -> usize {
        let is_shared = |policy| {
            let policy = self.policies.policy(policy);
            policy.is_none_or(|policy| policy.producer != BanSource::Manual)
        };
        let shared = prefix_bans
            .counts()
            .filter(|(policy, _)| is_shared(*policy));
        shared.map(|(_, count)| count).sum()
    }

    /// Are there as many as there may be of those that are not manual?
    fn is_share_full(&self, prefix_bans: &PrefixBans) -> bool {
        prefix_bans.len() >= MAX_SHARED_PREFIX_BANS
            && self.shared_prefix_bans(prefix_bans) >= MAX_SHARED_PREFIX_BANS
    }

    /// Puts an entry into force, of this producer, if need be in the place of the one
    /// with the `opposite` policy; see [`PrefixBans::insert`].
    pub(super) fn insert_prefix_ban(
        &self,
        ban: PrefixBan,
        producer: &BanSource,
        opposite: Option<u16>,
        tables: &Tables,
    ) -> Result<PrefixBanPlaced, Error> {
        tables.change_prefix_bans(|prefix_bans| {
            if let Some(opposite) = opposite
                && prefix_bans.exchange(ban, opposite)?
            {
                self.note_left(1);
                return Ok(PrefixBanPlaced::Replaced);
            }
            if *producer != BanSource::Manual
                && !prefix_bans.has(ban.prefix, ban.policy)
                && self.is_share_full(prefix_bans)
            {
                return Ok(PrefixBanPlaced::Full);
            }
            let mut placed = prefix_bans.insert(ban)?;
            if placed == PrefixBanPlaced::TooDeep && prefix_bans.expire(self.clock.now())? > 0 {
                self.note_left(1);
                placed = prefix_bans.insert(ban)?;
            }
            Ok(placed)
        })
    }

    /// Makes room for an entry of this producer; somebody has to go for it,
    /// unless it is enough that what was over is gone.
    pub(super) fn make_room_for_prefix_ban(
        &self,
        producer: &BanSource,
        done: &mut InsertSummary,
    ) -> Result<(), Error> {
        let full = match producer {
            BanSource::Manual => Error::PrefixBansFull(MAX_PREFIX_BANS),
            _ => Error::PrefixBanShareFull(MAX_SHARED_PREFIX_BANS),
        };
        self.tables().change_prefix_bans(|prefix_bans| {
            if prefix_bans.expire(self.clock.now())? > 0 {
                self.note_left(1);
                return Ok(());
            }
            if *producer == BanSource::Manual {
                return Err(full);
            }
            let numbers = self.policies.numbers(|p| p.producer == *producer);
            let victim = prefix_bans
                .iter()
                .filter(|ban| numbers.contains(&ban.policy))
                .min_by_key(|ban| ban.expiry);
            let Some(victim) = victim else {
                return Err(full);
            };
            let removed = prefix_bans.remove(victim.prefix, |policy| policy == victim.policy);
            self.note_left(1);
            self.evicted.fetch_add(1, Ordering::Relaxed);
            done.evicted.extend(self.prefix_ban_entry(victim));
            removed.map(drop).map_err(Error::from)
        })
    }

    pub(super) fn lift_prefix_ban(
        &self,
        prefix: Prefix,
        which: impl Fn(u16) -> bool,
    ) -> Result<Vec<PrefixBan>, Error> {
        let lifted = self
            .tables()
            .change_prefix_bans(|prefix_bans| prefix_bans.remove(prefix, which))?;
        self.note_left(lifted.len());
        Ok(lifted)
    }

    /// Takes out what is over, and tells the kernel again what it refused.
    pub(super) fn tidy_prefix_bans(&self) -> Result<(), Error> {
        let now = self.clock.now();
        let gone = self
            .tables()
            .change_prefix_bans(|prefix_bans| prefix_bans.expire(now))?;
        self.note_left(gone);
        Ok(())
    }

    pub(super) fn prefix_ban_entry(&self, ban: PrefixBan) -> Option<Entry> {
        Some(Entry {
            subject: BanTarget::new(ban.prefix).ok()?,
            policy: self.policies.policy(ban.policy)?,
            expiry: self.expiry(ban.expiry),
        })
    }

    /// Moves what the ban table holds of an IPv4 length that it no longer has
    /// a form for; before the programs that look for it go.
    pub(super) fn widen_other_lengths(&self) -> Result<(), Error> {
        let mut others = Vec::new();
        let tables = self.tables();
        tables.current.table.for_each(self.clock.now(), |slot| {
            let prefix = slot.key.prefix();
            if BanTarget::new(prefix).is_ok_and(|subject| self.key(subject).is_none()) {
                others.push((slot, prefix));
            }
        });
        let mut lost = 0;
        for (slot, prefix) in others {
            let ban = PrefixBan {
                prefix,
                policy: slot.policy,
                expiry: slot.expiry,
            };
            let policy = self.policies.policy(slot.policy);
            let producer = policy.map_or(BanSource::Manual, |policy| policy.producer.clone());
            match self.insert_prefix_ban(ban, &producer, None, &tables)? {
                PrefixBanPlaced::New | PrefixBanPlaced::Replaced => {}
                PrefixBanPlaced::Full | PrefixBanPlaced::TooDeep => lost += 1,
            }
            tables
                .current
                .table
                .remove(slot.key, |policy| policy == slot.policy);
        }
        if lost > 0 {
            tracing::warn!(
                "ipv4_length is another one now: {lost} bans of the old length had no room among the {MAX_PREFIX_BANS} of other lengths and are lifted"
            );
        }
        Ok(())
    }

    /// Moves what the ban table has a form for now.
    pub(super) fn narrow_own_length(&self) -> Result<(), Error> {
        let bans: Vec<_> = self
            .tables()
            .prefix_bans()
            .iter()
            .filter(|ban| BanTarget::new(ban.prefix).is_ok_and(|s| self.key(s).is_some()))
            .collect();
        let entries: Vec<_> = bans
            .iter()
            .filter_map(|b| self.prefix_ban_entry(*b))
            .collect();
        self.insert_in_turn(&entries, &mut InsertSummary::default())?;
        for ban in bans {
            self.lift_prefix_ban(ban.prefix, |policy| policy == ban.policy)?;
        }
        Ok(())
    }
}

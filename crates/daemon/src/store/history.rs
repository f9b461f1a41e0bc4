//! The bans of the past, in the database: what grows with each offence, what
//! `weir why` tells of an address, and when it is forgotten.

use std::{net::IpAddr, time::Duration};

use rusqlite::{Connection, params};
use weir_config::{
    Section,
    values::{DAY, YEARS},
};
use weir_core::{BanSource, BanTarget, Prefix, policy};

use super::{
    Offence,
    clock::Now,
    database::{PURGE, policies, until_from},
    row::{DatabaseError, blob, subject_from, timestamp},
};

/// The age and size to which history is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepHistory {
    /// Offences younger than this …
    pub time: Duration,
    /// … as far as they, with their index, take no more than this many bytes.
    pub bytes: u64,
}

impl KeepHistory {
    /// Reads `keep_history` and `history_mb` from the top of the configuration.
    pub(crate) fn read(root: &mut Section<'_, '_>) -> Self {
        Self {
            time: root
                .duration("keep_history", DAY..=YEARS)
                .map_or(30 * DAY, |at| at.value),
            bytes: root
                .integer("history_mb", 1..=100_000)
                .map_or(64, |at| at.value)
                * 1_000_000,
        }
    }
}

/// Counts of one call of [`purge`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Purged {
    /// Whether there is more to forget: call it again.
    pub more: bool,
    /// Offences forgotten for want of room.
    pub for_size: usize,
}

/// Past bans by producer and subject, whatever their ports and actions were, the
/// oldest first; a bounded number. Of the producers that `name` has a name for.
pub(super) fn past_bans(
    connection: &Connection,
    name: impl Fn(&BanSource) -> Option<String>,
) -> Result<Vec<policy::Offence>, DatabaseError> {
    let mut query = connection.prepare(
        "SELECT h.subject, p.producer, count(*), max(h.since)
         FROM history h JOIN policies p ON p.id = h.policy
         GROUP BY h.subject, p.producer ORDER BY 4",
    )?;
    let mut rows = query.query([])?;
    let mut offences = Vec::new();
    while let Some(row) = rows.next()? {
        let (Some(subject), Some(jail)) = (
            subject_from(row.get_ref(0)?.as_blob().unwrap_or_default()),
            row.get_ref(1)?
                .as_str()
                .ok()
                .and_then(|producer| name(&producer.parse().ok()?)),
        ) else {
            continue;
        };
        offences.push(policy::Offence {
            jail,
            subject,
            offences: row.get(2)?,
            last: timestamp(row.get(3)?),
        });
    }
    Ok(offences)
}

/// The last bans of prefixes that hold, or lie in, the given one.
pub(super) fn offences(
    connection: &Connection,
    addr: IpAddr,
    limit: usize,
) -> Result<Vec<Offence>, DatabaseError> {
    let policies = policies(connection)?;
    let host = Prefix::host(addr);
    let mut query = connection.prepare_cached(
        "SELECT policy, since, until, reason FROM history WHERE subject = ?1
         ORDER BY id DESC LIMIT ?2",
    )?;
    let mut offences = Vec::new();
    for len in (0..=host.bits()).rev() {
        let Some(prefix) = Prefix::new(addr, len) else {
            continue;
        };
        let mut rows = query.query(params![blob(prefix), limit as i64])?;
        while let Some(row) = rows.next()? {
            let (Some(policy), Ok(subject)) = (policies.get(&row.get(0)?), BanTarget::new(prefix))
            else {
                continue;
            };
            offences.push(Offence {
                subject,
                producer: policy.producer.clone(),
                scope: policy.scope.clone(),
                since: timestamp(row.get(1)?),
                until: until_from(row.get(2)?),
                reason: row.get(3)?,
            });
        }
    }
    offences.sort_by_key(|offence| std::cmp::Reverse(offence.since));
    offences.truncate(limit);
    Ok(offences)
}

/// Forgets offences that are too old, and the oldest of those that take too much
/// room. Bounded work per call, but for reading the size.
pub(super) fn purge(
    connection: &mut Connection,
    now: &Now,
    keep: KeepHistory,
) -> Result<Purged, DatabaseError> {
    let time = i64::try_from(keep.time.as_micros()).unwrap_or(i64::MAX);
    let oldest = now.wall.as_microsecond().saturating_sub(time);
    let old = connection.execute(
        "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE since < ?1
         ORDER BY id LIMIT ?2)",
        params![oldest, PURGE],
    )?;
    let surplus = surplus(connection, keep.bytes)?;
    let for_size = connection.execute(
        "DELETE FROM history WHERE id IN (SELECT id FROM history ORDER BY id LIMIT ?1)",
        [surplus.min(PURGE)],
    )?;
    Ok(Purged {
        more: old as i64 == PURGE || surplus > PURGE,
        for_size,
    })
}

/// The least that an offence takes, with its place in the index.
const LEAST: u64 = 32;

/// How many offences are too many, so that the rest takes nine tenths of `bytes`.
fn surplus(connection: &Connection, bytes: u64) -> Result<i64, DatabaseError> {
    // Their numbers are given in order: this reads two pages.
    let most: i64 = connection.query_row(
        "SELECT ifnull((SELECT max(id) FROM history) - (SELECT min(id) FROM history) + 1, 0)",
        [],
        |row| row.get(0),
    )?;
    let most = u64::try_from(most).unwrap_or(0);
    if most.saturating_mul(LEAST) <= bytes {
        return Ok(0);
    }
    let (taken, rows): (i64, i64) = connection.query_row(
        "SELECT (SELECT ifnull(sum(pgsize - unused), 0) FROM dbstat('main', 1)
                 WHERE name IN ('history', 'history_subject')),
                (SELECT count(*) FROM history)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let (taken, rows) = (taken.max(0) as u64, rows.max(0) as u64);
    if taken <= bytes {
        return Ok(0);
    }
    let keep = (u128::from(rows) * u128::from(bytes) * 9 / 10 / u128::from(taken)) as u64;
    Ok((rows - keep) as i64)
}

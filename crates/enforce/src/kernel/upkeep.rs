//! What has to be done once a second: bans that are over go, filters are rebuilt,
//! crowded tables grow, ends follow a suspended machine.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_bpf::{BanTable, clock};

use super::{Kernel, maintenance::Maintenance};
use crate::Error;

/// Buckets swept a second at most: 16 MiB, some 5 ms.
const SWEEP_CHUNK: usize = 1 << 18;

impl Kernel {
    /// jiffies stand still while the machine is suspended, ban times do not.
    pub(super) fn follow_suspend(&self, maintenance: &Maintenance<'_>) -> Result<(), Error> {
        let suspended = clock::suspended();
        let counted = self.tables().current.suspended();
        let delta = i128::from(suspended) - i128::from(counted);
        if delta.unsigned_abs() < u128::from(clock::SECOND / 10) {
            return Ok(());
        }
        let jiffies = (delta * i128::from(self.clock.hz())).div_euclid(i128::from(clock::SECOND));
        let jiffies = i64::try_from(jiffies).unwrap_or(i64::MAX);
        // Alone: an entry is moved or inserted as it should be, not both.
        let tables = self.tables_alone(maintenance);
        for generation in tables.generations() {
            generation.table.shift_expiries(-jiffies);
            generation.set_suspended(suspended)?;
        }
        self.next_expiry.forget();
        tables.prefix_bans().shift_expiries(-jiffies)?;
        Ok(())
    }

    /// See [`crate::Backend::maintain`].
    pub(super) fn look_after(&self) -> Result<(), Error> {
        let mut maintenance = self.maintenance.lock();
        self.follow_suspend(&maintenance)?;
        self.tidy_prefix_bans()?;
        // Where there is no memory to grow, what is over must still make room.
        let grown = self.grow_if_crowded(&mut maintenance);
        let tables = self.tables();
        let (table, now) = (&tables.current.table, self.clock.now());
        let buckets = tables.generations().map(|g| g.table.buckets_in_all());
        let all = buckets.max().expect("there is a current one");
        let start = maintenance.cursor.min(all);
        let end = (start + SWEEP_CHUNK).min(all);
        let sweep = |table: &BanTable| {
            let buckets = table.buckets_in_all();
            let swept = table.sweep(start.min(buckets)..end.min(buckets), now);
            self.note_left(swept.expired);
            swept
        };
        let swept = sweep(table);
        if let Some(given_up) = &tables.next {
            // Packets may meet it, and every ban must have room in it.
            sweep(&given_up.generation.table);
        }
        maintenance.overflow += swept.overflow;
        maintenance.cursor = end;
        if end == all {
            self.overflow
                .store(maintenance.overflow as u64, Ordering::Relaxed);
            (maintenance.cursor, maintenance.overflow) = (0, 0);
        }
        // Stale bits cost innocents a table look-up; a rebuild reads all of
        // the table. Every 10 s is a fair price.
        let due = maintenance
            .last_rebuild
            .is_none_or(|t| t.elapsed() > Duration::from_secs(10));
        if due && table.bloom_is_stale() {
            table.rebuild_bloom();
            maintenance.last_rebuild = Some(Instant::now());
        }
        drop(tables);
        let decoys = self.ask_for_answers(&maintenance);
        let linked = match self.unlinked.load(Ordering::Relaxed) {
            true => self.link_current(&maintenance),
            false => Ok(()),
        };
        drop(maintenance);
        let followed = self.follow_interfaces();
        grown.and(linked).and(followed).and(decoys)
    }
}

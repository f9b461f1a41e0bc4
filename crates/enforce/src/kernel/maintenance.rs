//! The maintenance lock. Whoever removes, evicts, sweeps or grows does so
//! alone, and shows it by a [`Maintenance`], which nothing but
//! [`MaintenanceLock::lock`] makes: a function that takes one cannot run
//! without the lock, nor take it a second time. Whoever wants the tables alone
//! shows it, too, so this lock comes before that one. What belongs to the work,
//! the choice of whom to evict among it, lies behind this one lock, so that there
//! is no second one to take in another order.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard},
    time::Instant,
};

use super::{eviction::Eviction, growth_backoff::GrowthBackoff, tables};

/// See the file's head.
#[derive(Default)]
pub(super) struct MaintenanceLock(Mutex<Progress>);

/// Proof that the lock is held, and what it protects.
pub(super) struct Maintenance<'a>(MutexGuard<'a, Progress>);

/// How far the recurring work has come.
#[derive(Default)]
pub(super) struct Progress {
    /// The next bucket to sweep.
    pub(super) cursor: usize,
    /// Overflow entries seen in the round so far.
    pub(super) overflow: usize,
    pub(super) last_rebuild: Option<Instant>,
    pub(super) eviction: Eviction,
    pub(super) growth: GrowthBackoff,
    /// Programs of tables to come, or links, were refused: the next ones may be put at
    /// other hooks.
    pub(super) insist: bool,
    /// When all of the table was last read for bans that are over.
    pub(super) expired: Option<Instant>,
    /// The last scan for policy numbers found all of them in use.
    pub(super) no_number: bool,
    /// When the tables were made, if this daemon made them.
    pub(super) made: Option<Instant>,
}

impl MaintenanceLock {
    /// Waits for whoever has it, and that may be for the tables.
    pub(super) fn lock(&self) -> Maintenance<'_> {
        tables::assert_none_here();
        Maintenance(self.0.lock().expect("no holder of this lock panics"))
    }
}

impl Maintenance<'_> {
    /// The tables are other ones: nothing that was found in the earlier ones holds.
    pub(super) fn begin_anew(&mut self) {
        *self.0 = Progress {
            made: Some(Instant::now()),
            ..Progress::default()
        };
    }
}

impl Deref for Maintenance<'_> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.0
    }
}

impl DerefMut for Maintenance<'_> {
    fn deref_mut(&mut self) -> &mut Progress {
        &mut self.0
    }
}
